#!/usr/bin/env bash
# ppo_procgen.py on the three games with published results, three seeds, easy levels without a limit; then each once on
# 200 levels, with levels that training never saw as the test set (levels.csv).
# What is typed after it goes to sweep.py: --workers 2, --status, --num-seeds 1 …
set -euo pipefail
trap "exit 143" TERM # when the sweep, which slurm.sh signals too, has ended
status=0
python benchmark/sweep.py --command "python cleanrl/ppo_procgen.py --precision bf16" --num-seeds 3 \
    --env-ids starpilot bossfight bigfish "$@" || status=$?
if [ "$status" -gt 1 ]; then exit "$status"; fi # a mistake or Ctrl-C; 1 is a failed run
levels="--exp-name ppo_procgen_200_levels --num-levels 200 --eval-start-level 200 --episodes 100"
python benchmark/sweep.py --command "python cleanrl/ppo_procgen.py --precision bf16 $levels" --num-seeds 1 \
    --env-ids starpilot bossfight bigfish "$@" || status=$?
exit "$status"
