#!/usr/bin/env bash
# The runs of ppo_atari_multigpu.py: three games, three seeds, on two processes of this machine.
set -euo pipefail
for env_id in PongNoFrameskip-v4 BreakoutNoFrameskip-v4 BeamRiderNoFrameskip-v4; do
    for seed in 1 2 3; do
        torchrun --standalone --nnodes=1 --nproc_per_node=2 \
            cleanrl/ppo_atari_multigpu.py --env-id "$env_id" --seed "$seed"
    done
done
