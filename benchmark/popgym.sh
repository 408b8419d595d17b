#!/usr/bin/env bash
# Three of POPGym's tasks (docs/memory.md; pip install popgym): with a memory and without one. Five seeds, on which
# nothing was chosen.
# What is typed after it goes to sweep.py: --workers 2, --status, --num-seeds 1 …
set -euo pipefail
trap "exit 143" TERM # when the sweep, which slurm.sh signals too, has ended
options="--total-timesteps 300000 --num-envs 16 --num-minibatches 8 --learning-rate 1e-3 --checkpoints 1"
tasks="popgym:popgym-RepeatPreviousEasy-v0 popgym:popgym-CountRecallEasy-v0 popgym:popgym-PositionOnlyCartPoleEasy-v0"
status=0
for script in ppo_lstm.py "ppo.py --exp-name ppo_no_memory"; do
    # shellcheck disable=SC2086 # a word each
    python benchmark/sweep.py --command "python cleanrl/$script $options" --num-seeds 5 --start-seed 101 \
        --env-ids $tasks "$@" || status=$?
    if [ "$status" -gt 1 ]; then exit "$status"; fi # a mistake or Ctrl-C; 1 is a failed run
done
exit "$status"
