"""Speeds on a GPU, and where the time goes: the part of gpu.sh that measures.

    python benchmark/gpu_kit.py --folder runs/gpu
    python benchmark/gpu_kit.py --folder runs/gpu --group compiled

Each row trains one script by its own main and stops it once three windows of whole updates are timed, or two for a
profile. The first update doesn't count, since it chooses kernels and fills caches; compiled, nor does the second. A row
that was begun on this device in this size is not begun again, so after a crash the same command goes on with the next
one. Results: speeds.csv and profile.csv, a line as soon as it is measured.
"""

import csv
import gc
import importlib
import os
import platform
import signal
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Literal

import torch
import tyro
from command_line import UserError, one_line_errors

ROOT = Path(__file__).resolve().parent.parent
PROCGEN = {"env_id": "starpilot", "num_threads": 4}  # which also is the number of Procgen's own threads
SMALL = {"num_steps": 16, "num_minibatches": 2, "update_epochs": 1}


@dataclass
class Args:
    folder: Path | None = None  # where results go: runs/gpu, with --small runs/gpu_try
    group: Literal["plain", "compiled"] = "plain"  # which rows
    device: str = "cuda"  # cpu: to try it out
    small: bool = False  # tiny sizes, to try it out
    window: float = 1.0  # least seconds of a window
    limit: float = 25.0  # most seconds of a row
    seconds: float = 3600.0  # most seconds of all rows
    only: tuple[str, ...] = ()  # names of rows; all of the group if empty

    def __post_init__(self):
        if self.folder is None:
            self.folder = Path("runs/gpu_try" if self.small else "runs/gpu")


@dataclass
class Row:
    name: str
    script: str  # of cleanrl/, or stable_baselines3
    arguments: dict
    profile: bool = False  # where the time goes, instead of speed


def plain_rows() -> list[Row]:
    """The most important ones first, since time may run out."""
    envpool = "ppo_atari_envpool"
    bf16 = {**PROCGEN, "precision": "bf16"}
    cheetah = {"env_id": "HalfCheetah-v4"}
    return [
        Row(f"{envpool}, 8 games, fp32", envpool, {"num_envs": 8}),
        Row(f"{envpool}, 8 games, bf16", envpool, {"num_envs": 8, "precision": "bf16"}),
        Row(f"{envpool}, 8 games, fp32", envpool, {"num_envs": 8}, profile=True),
        Row(f"{envpool}, 64 games, fp32", envpool, {"num_envs": 64}),
        Row(f"{envpool}, 64 games, bf16", envpool, {"num_envs": 64, "precision": "bf16"}),
        Row("ppo_procgen, 64 games, bf16", "ppo_procgen", bf16),
        Row("ppo_procgen, 64 games, fp32", "ppo_procgen", PROCGEN),
        Row(f"{envpool}, 64 games, fp32", envpool, {"num_envs": 64}, profile=True),
        Row("ppo_procgen, 64 games, bf16", "ppo_procgen", bf16, profile=True),
        Row("ppo_atari_lstm, 8 games, fp32", "ppo_atari_lstm", {}),
        Row("stable-baselines3, Atari, 8 games", "stable_baselines3", {}),
        Row("ppo_atari, 8 games, fp32", "ppo_atari", {}),
        Row(f"{envpool}, 128 games, fp32", envpool, {"num_envs": 128}),
        Row(f"{envpool}, 128 games, bf16", envpool, {"num_envs": 128, "precision": "bf16"}),
        Row("ppo_continuous_action, 1 environment", "ppo_continuous_action", cheetah),
        Row("ppo_continuous_action, 1 environment, on the CPU", "ppo_continuous_action", {**cheetah, "device": "cpu"}),
    ]


def compiled_rows() -> list[Row]:
    rows = []
    for games in (8, 64, 128):
        arguments = {"num_envs": games, "compile": True}
        rows.append(Row(f"ppo_atari_envpool, {games} games, fp32, compiled", "ppo_atari_envpool", arguments))
    return rows


# -------------------------------------------------------------------------------------------------------------- Timing
class Enough(BaseException):
    """Ends a training from within; a BaseException, since no script catches one."""


class Clock:
    """Notes when each update of a training begins, at the first step of its rollout, and how long the parts take."""

    def __init__(self, window: float, windows: int, warm_up: int):
        self.window = window  # least seconds
        self.wanted = windows
        self.warm_up = warm_up  # updates that don't count
        self.rollout_steps = None  # known once training begins
        self.steps = 0
        self.begins = []
        self.environment = 0.0  # seconds, as the next two; acting and learning only in a profile
        self.acting = 0.0
        self.learning = 0.0
        self.rollout_end = None

    def start(self, rollout_steps: int) -> None:
        self.rollout_steps = rollout_steps

    def before_step(self) -> float:
        now = time.perf_counter()
        if self.steps % self.rollout_steps == 0:
            if len(self.begins) == self.warm_up:  # what was added up until now was warming up
                self.environment = 0.0
                self.acting = 0.0
                self.learning = 0.0
            self.begins.append(now)
            if len(self.windows()) == self.wanted:
                raise Enough
        return now

    def after_step(self, begin: float) -> None:
        now = time.perf_counter()
        self.environment += now - begin
        self.steps += 1
        if self.steps % self.rollout_steps == 0:
            self.rollout_end = now

    def windows(self) -> list[float]:
        """Updates per second in each window of whole updates, at least as long as asked for."""
        rates = []
        counted = self.begins[self.warm_up :]
        if not counted:
            return rates
        first = 0
        for i in range(1, len(counted)):
            seconds = counted[i] - counted[first]
            if seconds >= self.window:
                rates.append((i - first) / seconds)
                first = i
        return rates

    def rates(self) -> list[float]:
        """The windows' or, if time ran out within the first one, what there is."""
        rates = self.windows()
        counted = self.begins[self.warm_up :]
        if not rates and len(counted) > 1:
            rates = [(len(counted) - 1) / (counted[-1] - counted[0])]
        return rates


@contextmanager
def replaced(owner, name: str, new):
    """Lets owner.name be something else for a while."""
    original = getattr(owner, name)
    setattr(owner, name, new)
    try:
        yield
    finally:
        setattr(owner, name, original)


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def time_up(number: int, frame) -> None:
    raise Enough


def load_script(name: str):
    sys.path.insert(0, str(ROOT / "cleanrl"))
    return importlib.import_module(name)


def run_script(name: str, arguments: dict, clock: Clock, profile: bool, limit: float, train=None) -> dict:
    """Trains until the clock has its windows or the limit is reached. `train`: instead of the script's. Returns Args'
    batch size and steps."""
    script = load_script(name)
    args = script.Args(**arguments)
    train = train or script.train
    original_step = script.VectorEnv.step
    original_act = script.Agent.get_action_and_value

    def timed_train(args, run) -> None:
        clock.start(args.num_steps)
        train(args, run)

    def timed_step(envs, actions):
        if clock.rollout_steps is None:  # the script tries out the environment
            return original_step(envs, actions)
        begin = clock.before_step()
        result = original_step(envs, actions)
        clock.after_step(begin)
        return result

    def timed_act(agent, *inputs):
        synchronize()
        begin = time.perf_counter()
        if clock.rollout_end is not None:
            clock.learning += begin - clock.rollout_end
            clock.rollout_end = None
        result = original_act(agent, *inputs)
        synchronize()
        clock.acting += time.perf_counter() - begin
        return result

    act = timed_act if profile else original_act
    signal.signal(signal.SIGALRM, time_up)
    signal.setitimer(signal.ITIMER_REAL, limit)
    try:
        with (
            replaced(script, "train", timed_train),
            replaced(script.VectorEnv, "step", timed_step),
            replaced(script.Agent, "get_action_and_value", act),
        ):
            script.main(args)
    except Enough:
        pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return {"batch_size": args.batch_size, "num_steps": args.num_steps}


def run_sb3(arguments: dict, clock: Clock, limit: float, device: str) -> dict:
    """stable-baselines3's PPO with ppo_atari.py's settings, its own Atari wrappers and its default vector."""
    import ale_py
    import gymnasium as gym
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_atari_env
    from stable_baselines3.common.vec_env import VecFrameStack

    class Ticks(BaseCallback):
        def _on_step(self) -> bool:  # called after each step of the environments
            clock.before_step()
            clock.steps += 1
            return True

    gym.register_envs(ale_py)
    sizes = {"num_steps": 128, "num_minibatches": 4, "update_epochs": 4, **arguments}
    clock.start(sizes["num_steps"])
    envs = VecFrameStack(make_atari_env("BreakoutNoFrameskip-v4", n_envs=8, seed=1), 4)
    batch_size = 8 * sizes["num_steps"]
    model = PPO(
        "CnnPolicy", envs, device=device, learning_rate=2.5e-4, n_steps=sizes["num_steps"],
        batch_size=batch_size // sizes["num_minibatches"], n_epochs=sizes["update_epochs"], clip_range=0.1,
        clip_range_vf=0.1, ent_coef=0.01, seed=1,
    )  # fmt: skip
    signal.signal(signal.SIGALRM, time_up)
    signal.setitimer(signal.ITIMER_REAL, limit)
    try:
        model.learn(10_000_000, callback=Ticks())
    except Enough:
        pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        envs.close()
    return {"batch_size": batch_size, "num_steps": sizes["num_steps"]}


# ------------------------------------------------------------------------------------------------------------- Results
def machine(device: str) -> dict:
    if device == "cuda":
        name = torch.cuda.get_device_name()
    else:
        name = platform.processor() or platform.machine()
    return {"device": name, "cores": os.cpu_count(), "torch": torch.__version__}


def add_line(path: Path, line: dict) -> None:
    """Adds a line to a CSV file, with a header if it is the first."""
    is_new = not path.exists()
    with open(path, "a", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(line))
        if is_new:
            writer.writeheader()
        writer.writerow(line)
    print(", ".join(f"{name} {value}" for name, value in line.items() if value != ""), flush=True)


def speed_line(row_name: str, clock: Clock, batch_size: int, error: str) -> dict:
    rates = [rate * batch_size for rate in clock.rates()]
    line = {"row": row_name, "steps_per_second": "", "slowest": "", "fastest": "", "windows": len(rates)}
    if rates:
        line["steps_per_second"] = round(median(rates))
        line["slowest"] = round(min(rates))
        line["fastest"] = round(max(rates))
    elif not error:
        error = "no update was finished within the limit"
    return {**line, "error": error}


def profile_line(row_name: str, clock: Clock, error: str) -> dict:
    """Milliseconds of an update. "copies": of observations to the device and actions from it, and bookkeeping."""
    updates = len(clock.begins) - clock.warm_up - 1
    names = ("environment", "acting", "copies", "learning")
    line = {"row": row_name, "update": "", **dict.fromkeys(names, "")}
    if updates > 0:
        total = clock.begins[-1] - clock.begins[clock.warm_up]
        parts = [clock.environment, clock.acting, clock.learning]
        parts.insert(2, total - sum(parts))
        line["update"] = round(1000 * total / updates, 1)
        for name, seconds in zip(names, parts):
            line[name] = round(1000 * seconds / updates, 1)
    elif not error:
        error = "no update was finished within the limit"
    return {**line, "error": error}


def describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def measure(row: Row, args: Args, limit: float, train=None) -> None:
    """Runs a row for at most so many seconds and writes its line, whatever happens."""
    device = row.arguments.get("device", args.device)
    clock = Clock(args.window, windows=2 if row.profile else 3, warm_up=2 if "compile" in row.arguments else 1)
    arguments = dict(SMALL) if args.small else {}
    arguments.update(row.arguments)
    batch_size = 0
    error = ""
    try:
        if row.script == "stable_baselines3":
            torch.set_num_threads(1)
            batch_size = run_sb3(arguments, clock, limit, device)["batch_size"]
        else:
            arguments = {"num_threads": 1, "torch_deterministic": False, "device": device, **arguments}
            batch_size = run_script(row.script, arguments, clock, row.profile, limit, train)["batch_size"]
    except (Exception, SystemExit) as problem:  # a missing package, say: the script's line is above
        error = describe(problem)
    where = machine(device)
    where["arguments"] = " ".join(f"{name}={value}" for name, value in arguments.items())
    if row.profile:
        add_line(args.folder / "profile.csv", {**profile_line(row.name, clock, error), **where})
    else:
        add_line(args.folder / "speeds.csv", {**speed_line(row.name, clock, batch_size, error), **where})
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    torch._dynamo.reset()


def measure_all(rows: list[Row], args: Args, train=None) -> None:
    """Measures the rows that were not begun before; scripts leave their run folders in folder/measured."""
    devices = {row.arguments.get("device", args.device) for row in rows}
    if "cuda" in devices and not torch.cuda.is_available():
        raise UserError("--device cuda: torch finds no GPU; `--device cpu --small` tries it out")
    args.folder = args.folder.resolve()
    work = args.folder / "measured"
    work.mkdir(parents=True, exist_ok=True)
    os.chdir(work)
    begun_file = args.folder / "begun.txt"
    begun = begun_file.read_text("utf-8").splitlines() if begun_file.exists() else []
    end = time.monotonic() + args.seconds
    for row in rows:
        key = f"{row.name}: profile" if row.profile else row.name
        if args.only and key not in args.only:
            continue
        of_row = f"{key}; {row.arguments.get('device', args.device)}{', small' if args.small else ''}"
        if of_row in begun:
            print(f"{of_row}: already begun, as {begun_file} says")
            continue
        limit = min(args.limit, end - time.monotonic())
        if limit < 3:
            print(f"no time is left for {key}")
            return
        with open(begun_file, "a", encoding="utf-8") as file:
            print(of_row, file=file)
        measure(row, args, limit, train)


if __name__ == "__main__":
    with one_line_errors():
        typed = tyro.cli(Args, description=__doc__)
        groups = {"plain": plain_rows, "compiled": compiled_rows}
        measure_all(groups[typed.group](), typed)
