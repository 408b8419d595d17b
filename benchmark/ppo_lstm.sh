#!/usr/bin/env bash
# With a memory and without one (docs/memory.md), by default options, without one also with the memory's learning rate
# and number of environments; with the environments' own rewards and observations. Ten seeds, on which nothing was
# chosen; three of LunarLander.
# What is typed after it goes to sweep.py: --workers 2, --status, --num-seeds 1 …
set -euo pipefail
trap "exit 143" TERM # when the sweep, which slurm.sh signals too, has ended
export PYTHONPATH="$PWD/benchmark${PYTHONPATH:+:$PYTHONPATH}" # cue.py, no_velocity.py
memory="ppo_lstm.py"
none="ppo.py --exp-name ppo_no_memory"
stack="--env-kwargs '{\"stack\": 4}'"     # the last four observations
same="--learning-rate 1e-3 --num-envs 8" # as with a memory
none_same="ppo.py --exp-name ppo_no_memory_same_options $same"
status=0
sweep() { # SCRIPT TASK STEPS SEEDS …
    python benchmark/sweep.py --command "python cleanrl/$1 --total-timesteps $3 --checkpoints 1" --env-ids "$2" \
        --start-seed 801 --num-seeds "$4" "${@:5}" || status=$?
    if [ "$status" -gt 1 ]; then exit "$status"; fi # a mistake or Ctrl-C; 1 is a failed run
}
for script in "$memory" "$none"; do
    sweep "$script" CartPole-v1 200000 10 "$@"
    sweep "$script" no_velocity:CartPoleNoVelocity-v0 300000 10 "$@"
    sweep "$script" Acrobot-v1 100000 10 "$@"
    sweep "$script" cue:Cue-v0 50000 10 "$@"
    sweep "$script" LunarLander-v3 500000 3 "$@"
done
sweep "ppo.py --exp-name ppo_stacked $stack" no_velocity:CartPoleNoVelocity-v0 300000 10 "$@"
sweep "ppo.py --exp-name ppo_stacked_same_options $stack $same" no_velocity:CartPoleNoVelocity-v0 300000 10 "$@"
sweep "$none_same" CartPole-v1 200000 10 "$@"
sweep "$none_same" Acrobot-v1 100000 10 "$@"
sweep "$none_same" LunarLander-v3 500000 3 "$@"
exit "$status"
