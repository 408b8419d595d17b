#!/usr/bin/env bash
# CartPole without velocities (docs/memory.md): with a memory, without one, and on four stacked observations. Ten seeds,
# on which nothing was chosen.
# What is typed after it goes to sweep.py: --workers 2, --status, --num-seeds 1 …
set -euo pipefail
trap "exit 143" TERM # when the sweep, which slurm.sh signals too, has ended
export PYTHONPATH="$PWD/docs${PYTHONPATH:+:$PYTHONPATH}" # docs/no_velocity.py
options="--total-timesteps 100000 --num-envs 8 --num-steps 128 --num-minibatches 8 --update-epochs 20 --checkpoints 1 \
    --learning-rate 2e-3 --gamma 0.995 --anneal-clip --ent-coef 0 --max-grad-norm 0.2 --no-clip-vloss \
    --bootstrap-truncated --target-kl 0.01"
stacked="ppo.py --exp-name ppo_stacked --env-kwargs '{\"stack\": 4}'"
status=0
for script in "ppo_lstm.py --hidden-size 128" "ppo.py --exp-name ppo_no_memory" "$stacked"; do
    python benchmark/sweep.py --command "python cleanrl/$script $options" --num-seeds 10 --start-seed 701 \
        --env-ids no_velocity:CartPoleNoVelocity-v0 "$@" || status=$?
    if [ "$status" -gt 1 ]; then exit "$status"; fi # a mistake or Ctrl-C; 1 is a failed run
done
exit "$status"
