"""Steps per second of scripts of this repository and of CleanRL's with the same names, in turns, on one thread.

    git clone https://github.com/vwxyzjn/cleanrl ../cleanrl
    git -C ../cleanrl checkout fe8d8a03c41a7ef5b523e2e354bd01c363e786bb
    python3.11 -m venv ../cleanrl/.venv
    ../cleanrl/.venv/bin/pip install torch==2.13.0 gymnasium==0.29.1 numpy==1.26.4 mujoco==2.3.7 ale-py==0.10.1 \
        stable-baselines3==2.3.2 "tyro<1" tensorboard opencv-python-headless imageio pygame
    python benchmark/cleanrl_speed.py --cleanrl ../cleanrl --python ../cleanrl/.venv/bin/python

All options are the scripts' defaults, but for the number of steps. A speed is the script's own charts/SPS at the end:
the steps of its training by the seconds since it began.
"""

import csv
import importlib.metadata
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro
from command_line import UserError, one_line_errors, print_table
from files import write_atomically
from runs import ROOT, release

MEASURED = {  # environment and steps: 10 to 30 seconds of CleanRL's
    "ppo": ("CartPole-v1", 65_536),
    "ppo_continuous_action": ("HalfCheetah-v4", 20_480),
    "ppo_atari": ("BreakoutNoFrameskip-v4", 4_096),
    "ppo_atari_lstm": ("BreakoutNoFrameskip-v4", 4_096),
}
# CleanRL's ale-py registers its games by itself, but has no ROMs; newer ones have them and register when imported
WITH_GAMES = "import runpy, sys, ale_py; del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')"


@dataclass
class Args:
    cleanrl: Path  # a checkout of CleanRL
    python: Path  # a Python in which its scripts run
    only: tuple[str, ...] = tuple(MEASURED)  # scripts to measure
    rounds: int = 5  # rounds, each with one training of everything
    output: Path | None = None  # JSON file to write


def train(start: list[str], script: Path, name: str, folder: str) -> str:
    """Trains in the folder. Returns what the script printed."""
    modules = str(script.parents[1])  # CleanRL's scripts for Atari import cleanrl_utils
    env_id, steps = MEASURED[name]
    command = [*start, str(script), "--env-id", env_id, "--total-timesteps", str(steps), "--seed", "1"]
    done = subprocess.run(
        command,
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": modules},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise UserError(f"{script}: ended with status {done.returncode}: {done.stderr.strip()[-500:]}")
    return done.stdout


def our_speed(name: str) -> float:
    with tempfile.TemporaryDirectory(prefix="cleanrl-speed-") as folder:
        train([sys.executable], ROOT / "cleanrl" / f"{name}.py", name, folder)
        (path,) = Path(folder).glob("runs/*/metrics.csv")
        with path.open(encoding="utf-8") as file:
            return float(list(csv.DictReader(file))[-1]["charts/SPS"])


def their_speed(args: Args, name: str) -> float:
    start = [str(args.python.absolute()), "-u"]
    if "atari" in name:
        start += ["-c", WITH_GAMES]
    with tempfile.TemporaryDirectory(prefix="cleanrl-speed-") as folder:
        printed = train(start, args.cleanrl.resolve() / "cleanrl" / f"{name}.py", name, folder)
    return float(re.findall(r"SPS: (\d+)", printed)[-1])


def table(measured: dict) -> list[list[str]]:
    """A header and a row for each script: medians, and the median and range of the rounds' ratios."""
    rows = [["script", "environment", "CleanRL, steps/s", "ours, steps/s", "ratio"]]
    for name, speeds in measured["scripts"].items():
        ratios = [ours / theirs for ours, theirs in zip(speeds["ours"], speeds["cleanrl"])]
        medians = [f"{statistics.median(speeds[side]):,.0f}" for side in ("cleanrl", "ours")]
        spread = f"{statistics.median(ratios):.1f}× ({min(ratios):.1f}–{max(ratios):.1f})"
        rows.append([f"{name}.py", MEASURED[name][0], *medians, spread])
    return rows


def main(args: Args) -> None:
    """Measures, and prints a table."""
    unknown = set(args.only) - set(MEASURED)
    if unknown or args.rounds < 1:
        raise UserError(f"--only takes {', '.join(MEASURED)}, and --rounds 1 or more")
    for path in (args.python, args.cleanrl / "cleanrl" / "ppo.py"):
        if not path.is_file():
            raise UserError(f"{path}: there is no such file; --help shows what to install")
    commit = subprocess.run(["git", "-C", args.cleanrl, "rev-parse", "HEAD"], capture_output=True, text=True)
    measured: dict[str, Any] = {
        "release": release(),
        "cleanrl": commit.stdout.strip(),
        "torch": importlib.metadata.version("torch"),
        "scripts": {name: {"cleanrl": [], "ours": []} for name in args.only},
    }
    for number in range(args.rounds):
        print(f"round {number + 1} of {args.rounds}", file=sys.stderr)
        for name, speeds in measured["scripts"].items():
            speeds["cleanrl"].append(their_speed(args, name))
            speeds["ours"].append(our_speed(name))
    print_table(table(measured))
    if args.output:
        write_atomically(args.output, json.dumps(measured, indent=2) + "\n")


if __name__ == "__main__":
    with one_line_errors():
        main(tyro.cli(Args, description=__doc__))
