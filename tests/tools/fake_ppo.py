"""A script in the format of the run folders that trains nothing, for tests of the tools that start scripts.

Its returns are the better the nearer --x is to 0.3. It notes every update in the file `updates`. With --hold it waits
in the middle while there is a file `hold`. With --crash it ends there with status 1, unless there is a file `once`;
with --early, as by a break in train; with --diverge, as a run does whose weights are not finite.
"""

import json
import os
import shutil
import signal
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

import filelock
import tyro


@dataclass
class Args:
    exp_name: str = Path(__file__).stem
    env_id: str = "A"
    seed: int = 1
    total_timesteps: int | float = 2000
    num_envs: int = 1
    num_steps: int = 100
    checkpoints: int | None = None
    exact_resume: bool = False
    x: float = 0.9
    env_kwargs: str = "{}"
    sizes: list[int] = field(default_factory=lambda: [64])
    hold: float = 2.0  # waits if x is at least this
    crash: bool = False
    early: bool = False
    diverge: bool = False
    stubborn: bool = False  # goes on after SIGINT
    num_threads: int | None = None
    device: str = "auto"
    resume: str | None = None


# ==================================================================== The run: nothing below is about PPO
stops = []


def make_folder(args):
    folder = Path("runs", f"{args.env_id}__{args.exp_name}__{args.seed}__{time.time_ns()}")
    (folder / "checkpoints").mkdir(parents=True)
    shutil.copy(__file__, folder)
    (folder / "episodes.csv").write_text("global_step,episodic_return,episodic_length,seconds\n")
    (folder / "metrics.csv").write_text("global_step,charts/SPS\n")
    (folder / "config.json").write_text(json.dumps({"script": "fake_ppo", "arguments": asdict(args)}))
    (folder / "checkpoints" / "0.npz").touch()
    return folder


def write_end(folder, how, update):
    (folder / "end.json").write_text(json.dumps({"end": how, "update": update, "global_step": update * 100}))


def main(args):
    signal.signal(signal.SIGTERM, lambda number, frame: stops.append(number))
    if not args.stubborn:
        signal.signal(signal.SIGINT, lambda number, frame: stops.append(number))
    else:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    first = 1
    if args.resume:
        folder = Path(args.resume)
        (folder / "end.json").unlink(missing_ok=True)
        args = Args(**json.loads((folder / "config.json").read_text())["arguments"])
        first = 1 + max(int(path.stem) for path in folder.glob("checkpoints/*.npz"))
    elif args.env_id == "Unknown":
        sys.exit(2)
    else:
        folder = make_folder(args)
    lock = filelock.FileLock(folder / "lock", blocking=False)
    lock.acquire()
    print("threads", os.environ["OMP_NUM_THREADS"], "GPU", os.environ.get("CUDA_VISIBLE_DEVICES"), flush=True)
    updates = int(args.total_timesteps) // 100
    for update in range(first, updates + 1):
        while update == updates // 2 and args.x >= args.hold and not stops and Path("hold").exists():
            time.sleep(0.01)
        if update == updates // 2 and args.crash and not Path("once").exists():
            Path("crashed").touch()
            sys.exit("fake_ppo: a crash in the middle")
        if update == updates // 2 and args.diverge:
            write_end(folder, "diverged", update)
            sys.exit(2)
        with (folder / "episodes.csv").open("a") as file:
            for step in (50, 100):
                mean_return = -abs(args.x - 0.3) * (updates + 1 - update)
                print((update - 1) * 100 + step, mean_return, 50, 0.1, sep=",", file=file)
        with (folder / "metrics.csv").open("a") as file:
            print(update * 100, 1000.0, sep=",", file=file)
        with open("updates", "a") as file:
            print(args.env_id, args.seed, args.x, args.exp_name, update, file=file)
        if stops or update in (2, updates):
            (folder / "checkpoints" / f"{update}.npz").touch()
        if stops and update < updates:
            write_end(folder, "stopped", update)
            sys.exit(128 + stops[0])
        if update == updates // 2 and args.early:
            write_end(folder, "break", update)
            return
    write_end(folder, "whole", updates)


def read_arguments(words=None):
    """The arguments, and None for no checkpoint; --cuda is a word of CleanRL's, as the scripts take some."""
    words = sys.argv[1:] if words is None else words
    return tyro.cli(Args, args=["--device=cuda" if word == "--cuda" else word for word in words]), None


if __name__ == "__main__":
    arguments, _ = read_arguments()
    main(arguments)
