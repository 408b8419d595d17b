#!/usr/bin/env bash
# ppo_continuous_action_numpy.py on five of the README's MuJoCo tasks, ten seeds; on tasks of dm_control, Box2D and
# PyBullet, three; and the ablation of the bootstrap at time limits.
# Pusher-v4, the sixth, needs an older MuJoCo: see docs/ppo_continuous_action_numpy.md.
# What is typed after it goes to sweep.py: --workers 2, --status, --num-seeds 1 …
set -euo pipefail
trap "exit 143" TERM # when the sweep, which slurm.sh signals too, has ended
status=0
python benchmark/sweep.py --command "python cleanrl/ppo_continuous_action_numpy.py" --num-seeds 10 \
    --env-ids HalfCheetah-v4 Walker2d-v4 Hopper-v4 InvertedPendulum-v4 Humanoid-v4 "$@" || status=$?
if [ "$status" -gt 1 ]; then exit "$status"; fi # a mistake or Ctrl-C; 1 is a failed run
python benchmark/sweep.py --command "python cleanrl/ppo_continuous_action_numpy.py" --num-seeds 3 \
    --env-ids dm_control/cartpole-balance-v0 dm_control/cheetah-run-v0 BipedalWalker-v3 HopperBulletEnv-v0 \
    "$@" || status=$?
if [ "$status" -gt 1 ]; then exit "$status"; fi
ablation="--bootstrap-truncated --exp-name ppo_continuous_action_numpy_bootstrap_truncated"
python benchmark/sweep.py --command "python cleanrl/ppo_continuous_action_numpy.py $ablation" --num-seeds 10 \
    --env-ids HalfCheetah-v4 "$@" || status=$?
exit "$status"
