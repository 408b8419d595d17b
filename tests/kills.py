"""Kills short runs with --exact-resume by SIGKILL at random moments, and compares how they end, bit for bit.

    python tests/kills.py                  100 kills over all scripts
    python tests/kills.py --kills 5 ppo    5 kills of ppo.py

A run that nobody disturbs comes first. Then another one is started, killed and resumed until it has had its share of
kills, and must end with the same weights, moments, statistics, episodes and metrics (but for the clock). One that was
killed before its first checkpoint is started anew, as a user would. Not a part of `make test`; exit status 1 if any
run ends otherwise. What was left of a failure stays in the folder that the line names.
"""

import argparse
import contextlib
import csv
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

CLEANRL = Path(__file__).resolve().parents[1] / "cleanrl"
SMALL = "--total-timesteps 12288 --checkpoints 12 --bootstrap-truncated --exact-resume"
SIZES = "--num-envs 4 --num-steps 32 --num-minibatches 2 --update-epochs 2"
PIXELS = f"--total-timesteps 2048 {SIZES} --checkpoints 8 --device cpu --exact-resume"
ATARI = f"{PIXELS} --bootstrap-truncated"
ARGUMENTS = {
    "ppo": SMALL,
    "ppo_multidiscrete": SMALL,
    "ppo_numpy": SMALL.replace("12288", "40960"),
    "ppo_continuous_action": f"--env-id BipedalWalker-v3 --num-steps 512 {SMALL}",
    "ppo_continuous_action_numpy": f"--env-id HopperBulletEnv-v0 --num-steps 512 {SMALL}",
    "ppo_atari": f"{ATARI} --vectorization async",
    "ppo_atari_visual": f"{ATARI} --no-capture-video",
    "ppo_atari_lstm": ATARI,
    "ppo_atari_envpool": ATARI,
    "ppo_procgen": f"{PIXELS} --env-id coinrun --num-levels 20 --eval-start-level 50 --episodes 1",
    "ppo_atari_multigpu": ATARI,
    "ppo_atari_multigpu_envpool": ATARI,
}


def command(script: str, *typed: str) -> list[str]:
    start = [sys.executable]
    if "multigpu" in script:
        start += ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    return [*start, str(CLEANRL / f"{script}.py"), *typed]


def start(script: str, *typed: str) -> subprocess.Popen:
    with open("output", "a") as output:
        return subprocess.Popen(command(script, *typed), stdout=output, stderr=output, start_new_session=True)


def family(pid: int) -> list[int]:
    """The process and all below it; torchrun's are in sessions of their own, and would train on without it."""
    children = Path(f"/proc/{pid}/task/{pid}/children")
    below = children.read_text().split() if children.exists() else []
    return [pid, *(x for child in below for x in family(int(child)))]


def last_checkpoint(folder: Path) -> Path | None:
    saved = [path for path in folder.glob("checkpoints/*") if path.stem.isdigit() and path.suffix != ".tmp"]
    return max(saved, key=lambda path: int(path.stem), default=None)


def load(path: Path):
    return np.load(path) if path.suffix == ".npz" else torch.load(path, weights_only=True)


def differences(one, other, name: str = "") -> list[str]:
    """The names of all values that aren't the same to the bit."""
    if hasattr(one, "keys"):
        if one.keys() != other.keys():
            return [f"{name}: other keys"]
        return [x for key in one.keys() for x in differences(one[key], other[key], f"{name}.{key}")]
    if isinstance(one, list | tuple):
        return [x for i, pair in enumerate(zip(one, other, strict=True)) for x in differences(*pair, f"{name}[{i}]")]
    if isinstance(one, np.ndarray) and one.dtype.kind == "U":  # JSON, which has the clock in it
        one, other = ("".join(str(x).split('"seconds"')[0]) for x in (one, other))
    if isinstance(one, torch.Tensor | np.ndarray):
        same = one.shape == other.shape and bool((one == other).all())
    else:
        same = one == other
    return [] if same or name in (".seconds", ".args.resume") or name.startswith(".log_sizes") else [name]


def rows(path: Path) -> list[dict]:
    with path.open(newline="") as file:
        return [{k: x for k, x in row.items() if k not in ("seconds", "charts/SPS")} for row in csv.DictReader(file)]


def compare(folder: Path, undisturbed: Path) -> list[str]:
    one, other = last_checkpoint(folder), last_checkpoint(undisturbed)
    if one is None or one.name != other.name:
        return [f"ends with {one}"]
    found = differences(dict(load(one)), dict(load(other)))
    return found + [name for name in ("episodes.csv", "metrics.csv") if rows(folder / name) != rows(undisturbed / name)]


def torment(script: str, kills: int, chance: random.Random) -> list[str]:
    """Runs the script undisturbed, and once more with so many kills, below the working directory."""
    typed = ARGUMENTS[script].split()
    began = time.monotonic()
    if start(script, *typed).wait():
        return [f"fails undisturbed: {Path('output').read_text()[-1000:]}"]
    duration = time.monotonic() - began
    (run,) = Path("runs").iterdir()
    undisturbed = run.rename("undisturbed")
    done = 0
    while True:
        (run,) = [*Path("runs").iterdir(), None][:1]
        if run and last_checkpoint(run) is None:
            shutil.rmtree(run)
            run = None
        process = start(script, *(["--resume", str(run)] if run else typed))
        try:
            status = process.wait(chance.uniform(0.3, 1.0) * duration if done < kills else None)
        except subprocess.TimeoutExpired:
            for pid in family(process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait()
            done += 1
            continue
        (run,) = Path("runs").iterdir()
        if status:
            found = [f"status {status}: {Path('output').read_text()[-1000:]}"]
        else:
            found = compare(run, undisturbed)
        if found or done >= kills:
            return found
        shutil.rmtree(run)  # it has ended before its share: another one


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scripts", nargs="*", default=[*ARGUMENTS], help="names of scripts, by default all")
    parser.add_argument("--kills", type=int, default=100, help="kills in all")
    parser.add_argument("--seed", type=int, default=None, help="seed of the moments")
    args = parser.parse_args()
    seed = random.randrange(10**6) if args.seed is None else args.seed
    print(f"seed of the moments: {seed}", flush=True)
    chance, failed, total = random.Random(seed), 0, 0
    for i, script in enumerate(args.scripts):
        kills = args.kills * (i + 1) // len(args.scripts) - args.kills * i // len(args.scripts)
        folder = tempfile.mkdtemp(prefix=f"kills-{script}-")
        os.chdir(folder)
        found = torment(script, kills, chance)
        total, failed = total + kills, failed + bool(found)
        result = f"differs, see {folder}: {', '.join(found)}" if found else "ends as it should"
        print(f"{script}.py: {kills} kills, {result}", flush=True)
        os.chdir("/")
        if not found:
            shutil.rmtree(folder)
    print(f"{total} kills, {len(args.scripts) - failed} scripts passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
