#!/usr/bin/env bash
# The runs behind the README's table of ppo_numpy.py: three environments, five seeds, one after the other.
set -euo pipefail
for env_id in CartPole-v1 Acrobot-v1 MountainCar-v0; do
    for seed in 1 2 3 4 5; do
        python cleanrl/ppo_numpy.py --env-id "$env_id" --seed "$seed"
    done
done
