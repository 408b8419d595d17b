#!/usr/bin/env bash
# The runs behind the README's table of ppo.py: three environments, twenty seeds.
# What is typed after it goes to sweep.py: --workers 2, --status, --num-seeds 1 …
set -euo pipefail
exec python benchmark/sweep.py --command "python cleanrl/ppo.py" --num-seeds 20 \
    --env-ids CartPole-v1 Acrobot-v1 MountainCar-v0 "$@"
