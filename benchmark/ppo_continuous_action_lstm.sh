#!/usr/bin/env bash
# ppo_continuous_action_lstm.py on two MuJoCo tasks, five seeds, as a check that a memory does no harm; no page shows these runs.
# What is typed after it goes to sweep.py: --workers 2, --status, --num-seeds 1 …
set -euo pipefail
python benchmark/sweep.py --command "python cleanrl/ppo_continuous_action_lstm.py" --num-seeds 5 \
    --env-ids HalfCheetah-v4 Hopper-v4 "$@"
