#!/usr/bin/env bash
# The runs behind the table of docs/ppo_numpy.md: three environments, five seeds.
# What is typed after it goes to sweep.py: --workers 2, --status, --slurm, --num-seeds 1 …
set -euo pipefail
python benchmark/sweep.py --command "python cleanrl/ppo_numpy.py" --num-seeds 5 \
    --env-ids CartPole-v1 Acrobot-v1 MountainCar-v0 "$@"
