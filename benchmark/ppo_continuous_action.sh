#!/usr/bin/env bash
# The runs behind the table of docs/ppo_continuous_action.md: five MuJoCo tasks, ten seeds.
# What is typed after it goes to sweep.py: --workers 2, --status, --num-seeds 1 …
set -euo pipefail
exec python benchmark/sweep.py --command "python cleanrl/ppo_continuous_action.py" --num-seeds 10 \
    --env-ids HalfCheetah-v4 Walker2d-v4 Hopper-v4 InvertedPendulum-v4 Humanoid-v4 "$@"
