#!/usr/bin/env bash
# The runs behind the README's table of ppo_continuous_action.py, and the ablation of the bootstrap at time limits.
# What is typed after it goes to sweep.py: --workers 2, --status, --slurm, --num-seeds 1 …
set -euo pipefail
status=0
python benchmark/sweep.py --command "python cleanrl/ppo_continuous_action.py" --num-seeds 3 \
    --env-ids HalfCheetah-v4 Walker2d-v4 Hopper-v4 InvertedPendulum-v4 "$@" || status=$?
if [ "$status" -gt 1 ]; then exit "$status"; fi # a mistake or Ctrl-C; 1 is a failed run
ablation="--bootstrap-truncated --exp-name ppo_continuous_action_bootstrap_truncated"
python benchmark/sweep.py --command "python cleanrl/ppo_continuous_action.py $ablation" --num-seeds 3 \
    --env-ids HalfCheetah-v4 "$@" || status=$?
exit "$status"
