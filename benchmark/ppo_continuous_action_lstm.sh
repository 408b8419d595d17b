#!/usr/bin/env bash
# Pendulum, MountainCarContinuous and HalfCheetah without velocities (docs/memory.md): with a memory, without one, and on
# four stacked observations. Ten seeds, on which nothing was chosen; three of HalfCheetah.
# What is typed after it goes to sweep.py: --workers 2, --status, --num-seeds 1 …
set -euo pipefail
trap "exit 143" TERM # when the sweep, which slurm.sh signals too, has ended
export PYTHONPATH="$PWD/benchmark${PYTHONPATH:+:$PYTHONPATH}" # no_velocity.py
memory="ppo_continuous_action_lstm.py"
none="ppo_continuous_action.py --exp-name ppo_continuous_action_no_memory"
stacked="ppo_continuous_action.py --exp-name ppo_continuous_action_stacked --env-kwargs '{\"stack\": 4}'"
status=0
sweep() { # SCRIPT TASK SEEDS OPTIONS …
    python benchmark/sweep.py --command "python cleanrl/$1 $4 --checkpoints 1" \
        --env-ids "no_velocity:$2NoVelocity-v0" --start-seed 901 --num-seeds "$3" "${@:5}" || status=$?
    if [ "$status" -gt 1 ]; then exit "$status"; fi # a mistake or Ctrl-C; 1 is a failed run
}
for script in "$memory" "$none" "$stacked"; do
    sweep "$script" Pendulum 10 "--total-timesteps 200000 --learning-rate 1e-3 --gamma 0.9" "$@"
    sweep "$script" MountainCarContinuous 10 "--total-timesteps 60000" "$@"
    sweep "$script" HalfCheetah 3 "--total-timesteps 500000 --bootstrap-truncated" "$@"
done
exit "$status"
