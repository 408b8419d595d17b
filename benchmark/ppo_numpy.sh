#!/usr/bin/env bash
# The runs behind the table of docs/ppo_numpy.md: three environments, twenty seeds, and Taxi-v4, three.
# What is typed after it goes to sweep.py: --workers 2, --status, --num-seeds 1 …
set -euo pipefail
trap "exit 143" TERM # when the sweep, which slurm.sh signals too, has ended
status=0
python benchmark/sweep.py --command "python cleanrl/ppo_numpy.py" --num-seeds 20 \
    --env-ids CartPole-v1 Acrobot-v1 MountainCar-v0 "$@" || status=$?
if [ "$status" -gt 1 ]; then exit "$status"; fi # a mistake or Ctrl-C; 1 is a failed run
python benchmark/sweep.py --command "python cleanrl/ppo_numpy.py" --num-seeds 3 --env-ids Taxi-v4 "$@" || status=$?
exit "$status"
