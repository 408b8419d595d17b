#!/usr/bin/env bash
# ppo_atari_lstm.py on the three environments with published results, three seeds.
# What is typed after it goes to sweep.py: --workers 2, --status, --num-seeds 1 …
set -euo pipefail
exec python benchmark/sweep.py --command "python cleanrl/ppo_atari_lstm.py" --num-seeds 3 \
    --env-ids BreakoutNoFrameskip-v4 PongNoFrameskip-v4 BeamRiderNoFrameskip-v4 "$@"
