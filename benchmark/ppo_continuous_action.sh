#!/usr/bin/env bash
# The runs behind the README's table of ppo_continuous_action.py, and the ablation of the bootstrap at time limits.
set -euo pipefail
for env_id in HalfCheetah-v4 Walker2d-v4 Hopper-v4 InvertedPendulum-v4; do
    for seed in 1 2 3; do
        python cleanrl/ppo_continuous_action.py --env-id "$env_id" --seed "$seed"
    done
done
for seed in 1 2 3; do
    python cleanrl/ppo_continuous_action.py --env-id HalfCheetah-v4 --seed "$seed" --bootstrap-truncated \
        --exp-name ppo_continuous_action_bootstrap_truncated
done
