#!/usr/bin/env bash
# The runs behind the table of docs/ppo_continuous_action.md: three MuJoCo tasks, five seeds, and Hopper, ten.
# What is typed after it goes to sweep.py: --workers 2, --status, --num-seeds 1 …
set -euo pipefail
trap "exit 143" TERM # when the sweep, which slurm.sh signals too, has ended
status=0
python benchmark/sweep.py --command "python cleanrl/ppo_continuous_action.py" --num-seeds 5 \
    --env-ids HalfCheetah-v4 Walker2d-v4 InvertedPendulum-v4 "$@" || status=$?
if [ "$status" -gt 1 ]; then exit "$status"; fi # a mistake or Ctrl-C; 1 is a failed run
python benchmark/sweep.py --command "python cleanrl/ppo_continuous_action.py" --num-seeds 10 \
    --env-ids Hopper-v4 "$@" || status=$?
exit "$status"
