"""Steps per second of a script, in turns with stable-baselines3's PPO at the same sizes; or its time to a return.

    python benchmark/throughput.py --script ppo
    python benchmark/throughput.py --script ppo_atari --arguments="--precision bf16" --against="--precision fp32"
    python benchmark/throughput.py --script ppo --vary num-envs 4 16 64 256
    python benchmark/throughput.py --script ppo_numpy --env-id CartPole-v1 --target 475

A script is launched as a user does, in a temporary folder, and timed by its metrics.csv until enough updates are seen.
Times are of the wall clock, without checkpoints. A measurement is the median over the updates after the warm-up, and in
the table the median over the rounds. A ratio is the median of the rounds' ratios, with their range: each compares two
measurements of one round, so that a slow hour of the machine hardly moves it. stable-baselines3 runs as it installs and
with one torch thread; where the script steps environments in processes or C++ threads, also with its SubprocVecEnv.

--target measures the seconds from the launch until the mean return of the last 100 episodes is reached, start-up
included. The script writes episodes.csv after each update, so they include the rest of the last update.

Runs on Linux and macOS.
"""

import contextlib
import csv
import importlib.metadata
import importlib.util
import io
import itertools
import json
import math
import multiprocessing
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean, median

import psutil
import tyro
from shared import RESULTS, fail, release, table, version, write_atomically, write_json

CLEANRL = Path(__file__).resolve().parents[1] / "cleanrl"
SB3_THREADS = {"default threads": None, "1 thread": 1}  # of torch; None is its default
LEAST_UPDATES = 3  # in a measurement
LAST = 100  # episodes that --target looks at
SHORT = "--num-steps 32 --num-minibatches 1"  # an eighth of Procgen's rollout as one minibatch of the usual size
DEFAULTS = {  # where neither --arguments nor --against is typed
    "ppo_atari": {"arguments": "--precision bf16", "against": ""},
    "ppo_atari_lstm": {"arguments": "--precision bf16", "against": ""},
    "ppo_atari_envpool": {"arguments": "--precision bf16 --env-threads 2", "against": "--env-threads 2"},
    "ppo_atari_multigpu": {"processes": 2, "against": "", "sb3": False},
    "ppo_atari_multigpu_envpool": {"processes": 2, "against": "", "sb3": False},
    "ppo_procgen": {"arguments": f"--precision bf16 {SHORT}", "against": SHORT, "sb3": False},
}


@dataclass
class Args:
    script: str = "ppo"  # name of a script in cleanrl/
    env_id: str | None = None  # environment, instead of the script's default
    arguments: str | None = None  # further arguments of the script, as one string after =: --arguments="--num-envs 8"
    against: str | None = None  # arguments of a second measurement of the script, to compare with
    processes: int | None = None  # processes that torchrun starts; 2 for a multigpu script at its defaults, else 1
    seconds: float = 4.0  # length of each measurement
    warm_up: float = 1.0  # seconds of training before each measurement
    rounds: int = 5  # rounds, each with one measurement of everything
    sb3: bool = True  # measure stable-baselines3 too
    vary: list[str] = field(default_factory=list)  # an argument (or `processes`) and its values: how the speed grows
    target: float | None = None  # mean return of the last 100 episodes: measure the time to it instead of the speed
    num_seeds: int = 5  # runs for --target, with the seeds 1, 2, …
    limit: float = 600.0  # seconds after which a run for --target is given up
    output: Path | None = None  # JSON file to write, instead of the published results


# ---------------------------------------------------------------------------------------------------- A launched script
def typed(env_id: str | None, arguments: str) -> list[str]:
    """The command line after the script's name."""
    words = shlex.split(arguments)
    return ["--env-id", env_id, *words] if env_id else words


class Launch:
    """A script as a user launches it, in a temporary folder. Both are gone after the `with` block."""

    def __init__(self, script: str, words: list[str], processes: int = 1):
        self.name = f"{script}.py {shlex.join(words)}".strip()
        torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
        launcher = torchrun if processes > 1 else []
        self.command = [sys.executable, *launcher, str(CLEANRL / f"{script}.py"), *words]
        self.peak_bytes = 0  # resident memory of its largest process, as far as wait_for has looked

    def __enter__(self) -> "Launch":
        self.folder = tempfile.TemporaryDirectory(prefix="throughput-")
        self.errors = tempfile.TemporaryFile("w+", encoding="utf-8")
        self.start = time.perf_counter()
        self.process = subprocess.Popen(
            self.command,
            cwd=self.folder.name,
            env=os.environ | {"TMPDIR": self.folder.name},  # torchrun leaves folders behind
            stdout=subprocess.DEVNULL,
            stderr=self.errors,
            start_new_session=True,
        )
        return self

    def __exit__(self, *error) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)  # with workers and the processes of torchrun
        self.process.wait()
        self.errors.close()
        self.folder.cleanup()

    def file(self, name: str) -> Path | None:
        """A file of the run folder, if there is one yet."""
        return next(Path(self.folder.name).glob(f"runs/*/{name}"), None)

    def rows(self, name: str) -> list[dict[str, str]]:
        """The whole rows of a CSV file of the run folder, so far."""
        path = self.file(name)
        lines = path.read_text("utf-8").splitlines(keepends=True) if path else []
        return list(csv.DictReader(line for line in lines if line.endswith("\n")))

    def config(self) -> dict:
        return json.loads(self.file("config.json").read_text("utf-8"))

    def wait_for(self, condition: Callable[[], bool], interval: float) -> bool:
        """Waits until the condition holds, or the script has ended. Returns whether it holds; a script that breaks ends
        this program, which shows what the script said."""
        while not condition():
            if self.process.poll() is not None:
                if self.process.returncode:
                    self.errors.seek(0)
                    print(self.errors.read().rstrip(), file=sys.stderr)
                    fail(f"{self.name}: ended with status {self.process.returncode}; it says why above")
                return condition()
            self.look_at_memory()
            time.sleep(interval)
        return True

    def look_at_memory(self) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            parent = psutil.Process(self.process.pid)
            for process in [parent, *parent.children(recursive=True)]:
                self.peak_bytes = max(self.peak_bytes, process.memory_info().rss)


def try_out(script: str, words: list[str], processes: int) -> dict:
    """Launches the script until it has made its run folder, so that a mistake is noticed before anything is measured.
    Returns its config.json."""
    with Launch(script, words, processes) as launch:
        if not launch.wait_for(lambda: launch.file("metrics.csv") is not None, 0.02):
            fail(f"{launch.name}: has trained nothing; leave out what keeps it from training")
        return launch.config()


# --------------------------------------------------------------------------------------------------------- Measurements
def speed(times: list[float], steps: int) -> dict[str, float]:
    """Speed by the times at which updates of `steps` steps ended: the median over the updates between them."""
    seconds = [after - before for before, after in itertools.pairwise(times)]
    of_update = median(seconds)
    return {"steps_per_second": steps / of_update, "ms_per_update": 1e3 * of_update, "updates": len(seconds)}


def is_enough(times: list[float], args: Args) -> bool:
    """Whether the ends of updates cover warm-up and measurement."""
    measured = [x for x in times if x >= args.warm_up]
    return len(measured) > LEAST_UPDATES and measured[-1] - measured[0] >= args.seconds


def measure_script(args: Args, arguments: str, processes: int) -> dict:
    """Watches a training until enough updates have ended."""
    with Launch(args.script, typed(args.env_id, arguments), processes) as launch:

        def times() -> list[float]:
            """Seconds of training at the end of each update: its steps by the steps per second until then."""
            return [float(row["global_step"]) / float(row["charts/SPS"]) for row in launch.rows("metrics.csv")]

        launch.wait_for(lambda: bool(times()), 0.01)
        first_row_seconds = time.perf_counter() - launch.start
        if not launch.wait_for(lambda: is_enough(times(), args), 0.1):
            fail(f"--seconds {args.seconds}: the whole training is over sooner; use fewer, or more --total-timesteps")
        steps = int(launch.rows("metrics.csv")[0]["global_step"])
        result = speed([x for x in times() if x >= args.warm_up], steps)
        return result | {"first_row_seconds": first_row_seconds, "peak_mb": launch.peak_bytes / 1e6}


def measure_sb3(arguments: dict, threads: int | None, workers: bool, args: Args) -> dict:
    """Trains by stable-baselines3's PPO with the script's arguments, on `threads` threads of torch (None: its default),
    with environments that are stepped in turn (DummyVecEnv, its default) or by `workers`, a process each.

    Its MlpPolicy is two networks of 64 and 64 tanh units and its CnnPolicy the convolutions of Nature, like the
    scripts'; games go through its own Atari wrappers, which are the scripts' details. It writes no log.
    """
    import gymnasium as gym
    import torch

    with contextlib.redirect_stderr(io.StringIO()):  # old gym, which Procgen needs, complains of itself
        from stable_baselines3 import PPO
        from stable_baselines3.common.callbacks import BaseCallback
        from stable_baselines3.common.env_util import make_atari_env, make_vec_env
        from stable_baselines3.common.logger import Logger
        from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecFrameStack, VecNormalize

    class Clock(BaseCallback):
        """Takes down when each rollout begins, which is when the update before it has ended."""

        def _on_training_start(self) -> None:
            self.start = time.perf_counter()
            self.times = []
            self.has_enough = False

        def _on_rollout_start(self) -> None:
            self.times.append(time.perf_counter() - self.start)
            self.has_enough = is_enough(self.times, args)

        def _on_step(self) -> bool:
            return not self.has_enough

    if threads:
        torch.set_num_threads(threads)
    env_id = arguments["env_id"]
    if "env_threads" in arguments:  # EnvPool's name of the game
        env_id = env_id.removesuffix("-v5") + "NoFrameskip-v4"
    is_game = "NoFrameskip" in env_id
    options = {"n_envs": arguments["num_envs"], "seed": arguments["seed"], "vec_env_cls": DummyVecEnv}
    options["env_kwargs"] = json.loads(arguments.get("env_kwargs", "{}"))
    if workers:  # forked, they know the games that are registered here
        options |= {"vec_env_cls": SubprocVecEnv, "vec_env_kwargs": {"start_method": "fork"}}
    if is_game:
        import ale_py

        gym.register_envs(ale_py)
        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
        envs = VecFrameStack(make_atari_env(env_id, **options), 4)
    else:
        envs = make_vec_env(env_id, **options)
        if len(envs.observation_space.shape) > 1:
            fail(f"{env_id}: observes images, for which no stable-baselines3 is set up here; use --no-sb3")
    if isinstance(envs.action_space, gym.spaces.Box):
        envs = VecNormalize(envs, gamma=arguments["gamma"])
    same = ("gamma", "gae_lambda", "ent_coef", "vf_coef", "max_grad_norm", "seed")
    batch_size = arguments["num_envs"] * arguments["num_steps"]
    model = PPO(
        "CnnPolicy" if is_game else "MlpPolicy",
        envs,
        device="cpu",
        learning_rate=lambda remaining: arguments["learning_rate"] * (remaining if arguments["anneal_lr"] else 1.0),
        n_steps=arguments["num_steps"],
        batch_size=batch_size // arguments["num_minibatches"],
        n_epochs=arguments["update_epochs"],
        normalize_advantage=arguments["norm_adv"],
        clip_range=arguments["clip_coef"],
        clip_range_vf=arguments["clip_coef"] if arguments["clip_vloss"] else None,
        **{name: arguments[name] for name in same},
    )
    model.set_logger(Logger(folder=None, output_formats=[]))  # or it makes a folder
    clock = Clock()
    model.learn(int(arguments["total_timesteps"]), callback=clock)
    envs.close()
    if not clock.has_enough:
        fail(f"--seconds {args.seconds}: the whole training is over sooner; use fewer, or more --total-timesteps")
    return speed([x for x in clock.times if x >= args.warm_up], batch_size) | {"threads": torch.get_num_threads()}


def end_on_sigterm() -> None:
    """Has SIGTERM end this process by way of finally, once it has ended those that it started."""

    def end(number, frame):
        for child in multiprocessing.active_children():
            child.terminate()
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, end)


def in_child(function, *arguments) -> dict:
    """Calls the function in a fresh process, whose threads and imports are its own."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn, initializer=end_on_sigterm) as pool:
        return pool.submit(function, *arguments).result()


def sides_of(args: Args, arguments: dict) -> Iterator[tuple[str, str, Callable[[], dict]]]:
    """What a round measures: key in the results, name for people, and the function that measures it."""
    several = f"{args.processes} × " if args.processes > 1 else ""
    name = f"{several}{args.script}.py {args.arguments}".strip()
    yield "script", name, lambda: measure_script(args, args.arguments, args.processes)
    if args.against is not None:
        one = "1 × " if several else ""
        yield "against", f"{one}{args.script}.py {args.against}".strip(), lambda: measure_script(args, args.against, 1)
    in_parallel = arguments.get("vectorization") == "async" or "env_threads" in arguments
    for workers in [False, True] if in_parallel else [False]:
        for threads in SB3_THREADS if args.sb3 else []:
            key = f"{threads}, SubprocVecEnv" if workers else threads
            how = (arguments, SB3_THREADS[threads], workers, args)
            yield key, f"stable-baselines3, {key}", lambda how=how: in_child(measure_sb3, *how)


def measure_round(args: Args, arguments: dict) -> dict:
    """One measurement of everything, in turn, with the ratios of their speeds."""
    result = {}
    for key, name, measure in sides_of(args, arguments):
        result[key] = measure()
        print(f"{name}: {result[key]['steps_per_second']:,.0f} steps/s", file=sys.stderr)
    speeds = {key: one["steps_per_second"] for key, one in result.items()}
    result["launch"] = {name: result["script"].pop(name) for name in ("first_row_seconds", "peak_mb")}
    for kind, key in (("ratios", "script"), ("against_ratios", "against")):
        others = [name for name in speeds if name not in ("script", key)]
        if key in speeds and others:
            result[kind] = {name: speeds[key] / speeds[name] for name in others}
    return result


def medians(rounds: list):
    """The median of each number over the rounds, in the same nested form."""
    if isinstance(rounds[0], dict):
        return {name: medians([one[name] for one in rounds]) for name in rounds[0]}
    return median(rounds)


def time_to_return(args: Args, seed: int) -> dict:
    """Trains with one seed until the mean return of the last episodes is reached."""
    words = [*typed(args.env_id, args.arguments), "--seed", str(seed)]
    with Launch(args.script, words) as launch:

        def last_mean() -> float:
            returns = [float(row["episodic_return"]) for row in launch.rows("episodes.csv")[-LAST:]]
            return fmean(returns) if len(returns) == LAST else -math.inf

        def is_over() -> bool:
            return last_mean() >= args.target or time.perf_counter() - launch.start > args.limit

        launch.wait_for(is_over, 0.02)
        seconds, reached = time.perf_counter() - launch.start, last_mean()
        if reached < args.target:
            fail(f"{launch.name}: reached {reached:.1f} in {seconds:.0f} s, not --target {args.target}; choose another")
        print(f"{launch.name}: {seconds:.1f} s", file=sys.stderr)
        env_id = launch.config()["arguments"]["env_id"]
    return {"seed": seed, "seconds": seconds, "mean_return": reached, "env_id": env_id}


# ---------------------------------------------------------------------------------------------------------- The program
def speed_rows(args: Args, measured: dict) -> list[list[str]]:
    """The medians of the rounds as a table, header first."""
    rounds = measured["rounds"]
    names = {key: name for key, name, _ in sides_of(args, measured["arguments"])}
    rows = [[f"medians, rounds: {len(rounds)}", "steps/s", "ms per update", "first update, s", "memory, MB"]]
    for key, name in names.items():
        numbers = measured["medians"][key]
        rows.append([name, f"{numbers['steps_per_second']:,.0f}", f"{numbers['ms_per_update']:.1f}", "", ""])
    launch = measured["medians"]["launch"]
    rows[1][-2:] = f"{launch['first_row_seconds']:.1f}", f"{launch['peak_mb']:.0f}"
    for kind, base in (("ratios", "script"), ("against_ratios", "against")):
        if kind in rounds[0]:
            rows[0].append(f"{names[base]} is faster by")
            for key, row in zip(names, rows[1:]):
                ratios = [one[kind][key] for one in rounds if key in one[kind]]
                row.append(f"{median(ratios):.2f}× ({min(ratios):.2f} to {max(ratios):.2f})" if ratios else "")
    return rows


def growth_rows(measured: dict) -> list[list[str]]:
    """How speed and memory grow, a row a value, header first."""
    rows = [[measured["options"]["vary"][0], "steps/s", "ms per update", "memory, MB"]]
    for value, one in measured["medians"].items():
        speeds = [each[value]["script"]["steps_per_second"] for each in measured["rounds"]]
        speed = f"{one['script']['steps_per_second']:,.0f} ({min(speeds):,.0f} to {max(speeds):,.0f})"
        rows.append([value, speed, f"{one['script']['ms_per_update']:.1f}", f"{one['launch']['peak_mb']:.0f}"])
    return rows


def filled_in(args: Args) -> Args:
    """The arguments with the script's DEFAULTS where neither --arguments nor --against is typed."""
    filled = {"arguments": args.arguments or "", "processes": 1}
    if args.arguments is None and args.against is None and args.target is None:
        filled |= DEFAULTS.get(args.script, {})
    if args.processes is not None:
        filled["processes"] = args.processes
    if args.vary:
        filled |= {"against": None, "sb3": False}
        filled["vary"] = [args.vary[0].removeprefix("--").replace("_", "-"), *args.vary[1:]]
    return replace(args, **filled)


def points(args: Args) -> dict[str, Args]:
    """What is measured: by the values of --vary, or all under one empty name."""
    if not args.vary:
        return {"": args}
    name, *values = args.vary
    if len(values) < 2 or len(set(values)) < len(values):
        fail(f"--vary {' '.join(args.vary)}: needs an argument and two or more values, like num-envs 4 16 64")
    found = {}
    for value in values:
        if name != "processes":
            found[value] = replace(args, arguments=f"{args.arguments} --{name} {value}".strip())
        elif value.isdigit():
            found[value] = replace(args, processes=int(value))
        else:
            fail(f"--vary {' '.join(args.vary)}: processes are whole numbers")
    return found


def check(args: Args) -> None:
    """Ends the program with one line at the first option that can't work."""
    scripts = sorted(file.stem for file in CLEANRL.glob("*.py"))
    if args.script not in scripts:
        fail(f"--script {args.script}: unknown; cleanrl/ has {', '.join(scripts)}")
    numbers = [args.rounds, args.seconds, args.warm_up, args.num_seeds, args.limit, args.target or 0.0]
    if (
        not all(map(math.isfinite, numbers))
        or min(args.rounds, args.num_seeds) < 1
        or min(args.seconds, args.limit) <= 0
    ):
        fail("--rounds and --num-seeds must be 1 or more, --seconds and --limit above 0, and --target a number")
    for name in ("arguments", "against"):
        try:
            shlex.split(getattr(args, name) or "")
        except ValueError:
            fail(f"--{name} {getattr(args, name)}: has a quote without its second one; add it")
    most = 64 if "multigpu" in args.script else 1
    if not 1 <= args.processes <= most:
        fail(f"--processes {args.processes}: {args.script}.py takes {f'1 to {most}' if most > 1 else 'only one'}")
    if args.sb3 and args.target is None and importlib.util.find_spec("stable_baselines3") is None:
        fail("stable-baselines3 is not installed; pip install stable-baselines3, or leave it out by --no-sb3")
    place = (args.output or RESULTS / "speed.json").absolute()
    parent = next(path for path in place.parents if path.exists())
    if place.is_dir() or not parent.is_dir() or not os.access(parent, os.W_OK):
        fail(f"--output {place}: can't be written; name a file in a folder that can")


def main(args: Args) -> None:
    """Measures, prints the table and writes the JSON."""
    args = filled_in(args)
    check(args)
    varied = points(args)
    for one in varied.values():
        check(one)
        config = try_out(one.script, typed(one.env_id, one.arguments), one.processes)
    if args.against is not None:
        try_out(args.script, typed(args.env_id, args.against), 1)
    arguments = config["arguments"] | config["resolved"]
    measured = {
        "options": asdict(args) | {"output": None},
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "load_average": os.getloadavg()[0],  # of the minute before; what else runs slows the measurements
        "hardware": config["hardware"],
        "versions": config["versions"] | {args.script: version(CLEANRL / f"{args.script}.py")},
        "release": release(),
        "arguments": arguments,
    }
    if args.sb3 and args.target is None:
        measured["versions"] |= {name: importlib.metadata.version(name) for name in ("stable-baselines3", "torch")}
    if args.target is not None:
        name = f"time_to_return/{args.script}"
        runs = [time_to_return(args, seed) for seed in range(1, args.num_seeds + 1)]
        seconds = [run["seconds"] for run in runs]
        measured |= {"runs": runs, "median_seconds": median(seconds)}
        print(f"median {median(seconds):.1f} s ({min(seconds):.1f} to {max(seconds):.1f} s), {len(seconds)} seeds")
    else:
        name = f"{args.script}_{args.vary[0]}" if args.vary else f"throughput/{args.script}"
        rounds = []
        for number in range(args.rounds):
            print(f"round {number + 1} of {args.rounds}", file=sys.stderr)
            of_values = {value: measure_round(one, arguments) for value, one in varied.items()}
            rounds.append(of_values if args.vary else of_values[""])
        measured |= {"medians": medians(rounds), "rounds": rounds}
        table(growth_rows(measured) if args.vary else speed_rows(args, measured))
    if args.output:
        write_atomically(args.output, json.dumps(measured, indent=2) + "\n")
    else:
        write_json("growth.json" if args.vary else "speed.json", name, measured)


if __name__ == "__main__":
    end_on_sigterm()
    try:
        main(tyro.cli(Args, description=__doc__))
    except KeyboardInterrupt:
        print("throughput.py: stopped; nothing was written", file=sys.stderr)
        raise SystemExit(130) from None
