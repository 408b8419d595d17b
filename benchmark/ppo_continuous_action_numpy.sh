#!/usr/bin/env bash
# ppo_continuous_action_numpy.py on the MuJoCo tasks of ppo_continuous_action.sh, three seeds.
# What is typed after it goes to sweep.py: --workers 2, --status, --slurm, --num-seeds 1 …
set -euo pipefail
python benchmark/sweep.py --command "python cleanrl/ppo_continuous_action_numpy.py" --num-seeds 3 \
    --env-ids HalfCheetah-v4 Walker2d-v4 Hopper-v4 InvertedPendulum-v4 "$@"
