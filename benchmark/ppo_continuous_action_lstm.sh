#!/usr/bin/env bash
# Pendulum, MountainCarContinuous and HalfCheetah without velocities (docs/memory.md): with a memory, without one, and on
# four stacked observations. Ten seeds, on which nothing was chosen; three of HalfCheetah.
# What is typed after it goes to sweep.py: --workers 2, --status, --num-seeds 1 …
set -euo pipefail
trap "exit 143" TERM # when the sweep, which slurm.sh signals too, has ended
export PYTHONPATH="$PWD/benchmark${PYTHONPATH:+:$PYTHONPATH}" # no_velocity.py
stacked="ppo_continuous_action.py --exp-name ppo_continuous_action_stacked --env-kwargs '{\"stack\": 4}'"
status=0
sweep() { # TASK HIDDEN_SIZE OPTIONS FIRST_SEED SEEDS …
    for script in "ppo_continuous_action_lstm.py --hidden-size $2" \
        "ppo_continuous_action.py --exp-name ppo_continuous_action_no_memory" "$stacked"; do
        python benchmark/sweep.py --command "python cleanrl/$script $3 --num-envs 8 --update-epochs 10 --bootstrap-truncated" \
            --env-ids "no_velocity:$1NoVelocity-v0" --start-seed "$4" --num-seeds "$5" "${@:6}" || status=$?
        if [ "$status" -gt 1 ]; then exit "$status"; fi # a mistake or Ctrl-C; 1 is a failed run
    done
}
# Of Pendulum's and the car's steps, the simulator makes two and five
sweep Pendulum 256 "--total-timesteps 50000 --num-steps 100 --num-minibatches 4 --checkpoints 1 --learning-rate 1e-3 \
    --gamma 0.9 --ent-coef 0.01 --vf-coef 2" 501 10 "$@"
sweep MountainCarContinuous 64 "--total-timesteps 60000 --num-steps 128 --num-minibatches 4 --checkpoints 1 \
    --learning-rate 1e-3" 101 10 "$@"
sweep HalfCheetah 64 "--total-timesteps 500000 --num-steps 256 --num-minibatches 8 --checkpoints 1" 101 3 "$@"
exit "$status"
