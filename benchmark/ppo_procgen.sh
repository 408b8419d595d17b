#!/usr/bin/env bash
# ppo_procgen.py on the three environments with published results, three seeds.
# What is typed after it goes to sweep.py: --workers 2, --status, --slurm, --num-seeds 1 …
set -euo pipefail
python benchmark/sweep.py --command "python cleanrl/ppo_procgen.py" --num-seeds 3 \
    --env-ids starpilot bossfight bigfish "$@"
