#!/usr/bin/env bash
# Measures the tables "Beside CleanRL", "All rows" and "Start-up and memory" of docs/speed.md anew, in one go: an hour
# on two cores, on a machine that does nothing else.
# What it writes is published: benchmark/results/speed.json and cleanrl_speed.json; make results puts them into the pages.
#
#     benchmark/speed.sh --cleanrl ../cleanrl --python ../cleanrl/.venv/bin/python
#
# The options say where CleanRL is: benchmark/cleanrl_speed.py --help shows how to install it. The rest needs what make
# test installs.
set -euo pipefail
python benchmark/cleanrl_speed.py --output benchmark/results/cleanrl_speed.json "$@"
throughput() {
    python benchmark/throughput.py --keep "$@"
}
bf16=(--arguments "--precision bf16" --against "")
small="--num-steps 32 --num-minibatches 1" # Procgen's rollouts are long; the minibatch stays the default's
throughput --script ppo ppo_numpy ppo_multidiscrete
throughput --script ppo_lstm
throughput --script ppo_continuous_action ppo_continuous_action_numpy
throughput --script ppo_continuous_action_lstm
throughput --script ppo_atari ppo_atari_visual ppo_atari_envpool "${bf16[@]}"
throughput --script ppo_atari_lstm "${bf16[@]}"
throughput --script ppo_atari_multigpu ppo_atari_multigpu_envpool --processes 2 --against "" --no-sb3
throughput --script ppo_procgen --arguments "--precision bf16 $small" --against "$small" --no-sb3
throughput --script ppo_continuous_action_gpu --no-sb3
