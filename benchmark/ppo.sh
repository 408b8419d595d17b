#!/usr/bin/env bash
# The runs behind the README's table of ppo.py: CartPole and Acrobot with twenty seeds, and MountainCar with five.
# What is typed after it goes to sweep.py: --workers 2, --status, --num-seeds 1 …
set -euo pipefail
status=0
python benchmark/sweep.py --command "python cleanrl/ppo.py" --num-seeds 20 \
    --env-ids CartPole-v1 Acrobot-v1 "$@" || status=$?
if [ "$status" -gt 1 ]; then exit "$status"; fi # a mistake or Ctrl-C; 1 is a failed run
python benchmark/sweep.py --command "python cleanrl/ppo.py" --num-seeds 5 --env-ids MountainCar-v0 "$@" || status=$?
exit "$status"
