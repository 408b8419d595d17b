"""Seconds from the launch of a script to a mean return of its last 100 episodes, start-up included.

    python benchmark/time_to_return.py --script ppo_numpy --env-id CartPole-v1 --target 475

Launches the script as a user does, one seed after the other, and reads its episodes.csv until the mean is reached; the
run is then stopped and removed. The script writes that file after each update, so the time includes the rest of the
update in which the last of the episodes ended.
"""

import csv
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median

import tyro
from shared import write_whole
from throughput import ROOT, describe_machine, is_quoted, is_writable, typed

LAST = 100  # episodes


@dataclass
class Args:
    script: str = "ppo_numpy"  # name of a script in cleanrl/
    env_id: str | None = None  # environment, instead of the script's default
    arguments: str = ""  # further arguments of the script, as one string after =: --arguments="--num-envs 8"
    target: float = 475.0  # mean return of the last 100 episodes
    num_seeds: int = 5  # runs, with the seeds 1, 2, …
    limit: float = 600.0  # seconds after which a run is given up
    output: str | None = None  # JSON file, instead of benchmark/results/time_to_return/{script}.json


def fail(message: str):
    """Ends the program with one line on stderr and status 2."""
    print(f"{Path(__file__).name}: error: {' '.join(message.split())}", file=sys.stderr)
    raise SystemExit(2)


def returns(folder: Path) -> list[float]:
    """The episodes' returns so far, of the one run in the folder."""
    for file in folder.glob("runs/*/episodes.csv"):
        rows = [row for row in file.read_text().splitlines(keepends=True) if row.endswith("\n")]
        return [float(row["episodic_return"]) for row in csv.DictReader(rows)]
    return []


def measure(args: Args, seed: int) -> dict:
    """Trains with one seed until the mean is reached."""
    script = ROOT / "cleanrl" / f"{args.script}.py"
    command = [sys.executable, str(script), *typed(args.env_id, args.arguments), "--seed", str(seed)]
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as errors:
        start = time.perf_counter()
        process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=errors)
        try:
            while True:
                ended, seconds, last = process.poll(), time.perf_counter() - start, returns(Path(folder))[-LAST:]
                if len(last) == LAST and fmean(last) >= args.target:
                    break
                if ended is not None or seconds > args.limit:
                    errors.seek(0)
                    reached = f"{fmean(last):.1f}" if last else "no episode's end"
                    what = f"{script.name}, seed {seed}: reached {reached} in {seconds:.0f} s"
                    if ended:
                        fail(f"{script.name}, seed {seed}: ended with status {ended}: {errors.read()}")
                    fail(f"{what}, not --target {args.target}; choose another")
                time.sleep(0.02)
            config = json.loads(next(Path(folder).glob("runs/*/config.json")).read_text())
            os.kill(process.pid, signal.SIGTERM)
            process.wait()
        finally:
            process.kill()
            process.wait()
    print(f"{script.name}, seed {seed}: {seconds:.1f} s", file=sys.stderr)
    return {"seed": seed, "seconds": seconds, "mean_return": fmean(last), "env_id": config["arguments"]["env_id"]}


def main(args: Args) -> None:
    """Measures, writes the JSON and prints the median."""
    if not (ROOT / "cleanrl" / f"{args.script}.py").is_file():
        scripts = sorted(file.stem for file in (ROOT / "cleanrl").glob("*.py"))
        fail(f"--script {args.script}: unknown; cleanrl/ has {', '.join(scripts)}")
    if args.num_seeds < 1 or not 0 < args.limit < 1e6 or not math.isfinite(args.target):
        what = f"--num-seeds {args.num_seeds} --limit {args.limit} --target {args.target}"
        fail(f"{what}: must be 1 or more, above 0, and a number")
    output = Path(args.output or ROOT / "benchmark" / "results" / "time_to_return" / f"{args.script}.json")
    if not is_writable(output):
        fail(f"--output {output}: can't be written; name a file in a folder that can")
    if not is_quoted(args.arguments):
        fail(f"--arguments {args.arguments}: has a quote without its second one; add it")
    result = {"options": asdict(args), **describe_machine(args.script)}
    result["runs"] = [measure(args, seed) for seed in range(1, args.num_seeds + 1)]
    seconds = [run["seconds"] for run in result["runs"]]
    result["median_seconds"] = median(seconds)
    print(f"median {median(seconds):.1f} s ({min(seconds):.1f} to {max(seconds):.1f} s), {len(seconds)} seeds")
    try:
        write_whole(output, json.dumps(result, indent=2) + "\n")
    except OSError as error:
        fail(f"--output {output}: can't be written ({error.strerror})")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # by way of finally
    try:
        main(tyro.cli(Args, description=__doc__))
    except KeyboardInterrupt:
        print("time_to_return.py: stopped; nothing was written", file=sys.stderr)
        raise SystemExit(130) from None
