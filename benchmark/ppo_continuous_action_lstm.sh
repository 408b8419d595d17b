#!/usr/bin/env bash
# Pendulum and MountainCarContinuous without velocities (docs/memory.md): with a memory, without one, and on four stacked
# observations. Ten seeds, on which nothing was chosen.
# What is typed after it goes to sweep.py: --workers 2, --status, --num-seeds 1 …
set -euo pipefail
export PYTHONPATH="$PWD/docs${PYTHONPATH:+:$PYTHONPATH}" # docs/no_velocity.py
pendulum="--total-timesteps 100000 --num-envs 8 --num-steps 128 --num-minibatches 4 --update-epochs 10 --checkpoints 1 \
    --learning-rate 1e-3 --gamma 0.9 --ent-coef 0.01 --vf-coef 2 --bootstrap-truncated"
mountain_car="--total-timesteps 60000 --num-envs 8 --num-steps 128 --num-minibatches 4 --update-epochs 10 --checkpoints 1 \
    --learning-rate 1e-3 --bootstrap-truncated" # each is held for five steps of the simulator
stacked="ppo_continuous_action.py --exp-name ppo_continuous_action_stacked --env-kwargs '{\"stack\": 4}'"
status=0
for task in Pendulum MountainCarContinuous; do
    options="$pendulum"
    first_seed=201
    if [ "$task" = MountainCarContinuous ]; then
        options="$mountain_car"
        first_seed=101
    fi
    for script in ppo_continuous_action_lstm.py \
        "ppo_continuous_action.py --exp-name ppo_continuous_action_no_memory" "$stacked"; do
        python benchmark/sweep.py --command "python cleanrl/$script $options" --num-seeds 10 --start-seed $first_seed \
            --env-ids "no_velocity:${task}NoVelocity-v0" "$@" || status=$?
        if [ "$status" -gt 1 ]; then exit "$status"; fi # a mistake or Ctrl-C; 1 is a failed run
    done
done
exit "$status"
