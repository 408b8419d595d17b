#!/usr/bin/env bash
# The runs behind docs/ppo_multidiscrete.md: doors.py with and without its mask, ten seeds.
# What is typed after it goes to sweep.py: --workers 2, --status, --num-seeds 1 …
set -euo pipefail
export PYTHONPATH="$PWD/benchmark${PYTHONPATH:+:$PYTHONPATH}" # doors.py
sizes="--total-timesteps 40000 --num-steps 64 --learning-rate 2.5e-3 --checkpoints 1"
exec python benchmark/sweep.py --command "python cleanrl/ppo_multidiscrete.py $sizes" --num-seeds 10 \
    --env-ids doors:Doors-info-v0 doors:Doors-None-v0 "$@"
