#!/usr/bin/env bash
# The runs of ppo_atari_envpool.py: three games, three seeds, one after the other.
set -euo pipefail
for env_id in Pong-v5 Breakout-v5 BeamRider-v5; do
    for seed in 1 2 3; do
        python cleanrl/ppo_atari_envpool.py --env-id "$env_id" --seed "$seed"
    done
done
