#!/usr/bin/env bash
# ppo_atari_multigpu.py with two processes on the three environments with published results, three seeds.
# What is typed after it goes to sweep.py: --workers 2, --status, --num-seeds 1 …
set -euo pipefail
exec python benchmark/sweep.py --num-seeds 3 --threads 1 \
    --command "torchrun --standalone --nnodes=1 --nproc_per_node=2 cleanrl/ppo_atari_multigpu.py" \
    --env-ids BreakoutNoFrameskip-v4 PongNoFrameskip-v4 BeamRiderNoFrameskip-v4 "$@"
