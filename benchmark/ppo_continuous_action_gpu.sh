#!/usr/bin/env bash
# The runs behind docs/ppo_continuous_action_gpu.md, all on a CPU: Pendulum by default options and
# with fewer environments, SwingUp, and HalfCheetah beside the parent.
# What is typed after it goes to sweep.py: --workers 2, --status, --num-seeds 1 …
set -euo pipefail
trap "exit 143" TERM # when the sweep, which slurm.sh signals too, has ended
export PYTHONPATH="$PWD/benchmark/simulators${PYTHONPATH:+:$PYTHONPATH}" # gymnasium_envs.py and swing_up.py
script="python cleanrl/ppo_continuous_action_gpu.py --device cpu"
small="--num-envs 256 --adaptive-kl 0.01 --checkpoints 1"
same="--num-envs 8 --num-steps 256 --num-minibatches 32 --update-epochs 10 --learning-rate 3e-4 --checkpoints 1"
status=0
sweep() { # SEEDS COMMAND ENV_ID OPTIONS …
    python benchmark/sweep.py --num-seeds "$1" --command "$2" --env-ids "$3" "${@:4}" || status=$?
    if [ "$status" -gt 1 ]; then exit "$status"; fi # a mistake or Ctrl-C; 1 is a failed run
}
sweep 5 "$script --checkpoints 1" Pendulum "$@"
sweep 5 "$script $small --total-timesteps 500000" Pendulum "$@"
sweep 5 "$script --num-envs 256 --checkpoints 1 --total-timesteps 3000000" swing_up:SwingUp "$@"
sweep 3 "$script $same --total-timesteps 1000000" gymnasium_envs:Gymnasium:HalfCheetah-v4 "$@"
sweep 3 "python cleanrl/ppo_continuous_action.py $same --total-timesteps 1000000 --bootstrap-truncated \
    --exp-name ppo_continuous_action_beside_gpu" HalfCheetah-v4 "$@"
exit "$status"
