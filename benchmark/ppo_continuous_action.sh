#!/usr/bin/env bash
# The runs behind the table of docs/ppo_continuous_action.md: four MuJoCo tasks, five seeds.
# What is typed after it goes to sweep.py: --workers 2, --status, --num-seeds 1 …
set -euo pipefail
python benchmark/sweep.py --command "python cleanrl/ppo_continuous_action.py" --num-seeds 5 \
    --env-ids HalfCheetah-v4 Walker2d-v4 Hopper-v4 InvertedPendulum-v4 "$@"
