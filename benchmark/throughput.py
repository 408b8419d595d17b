"""Steps per second of a script, in turns with stable-baselines3's PPO at the same sizes; of ppo_lstm.py and
ppo_continuous_action_lstm.py, with sb3-contrib's RecurrentPPO.

    python benchmark/throughput.py --script ppo
    python benchmark/throughput.py --script ppo --arguments "--num-envs 16"
    python benchmark/throughput.py --script ppo_atari --arguments "--precision bf16" --against "--precision fp32"
    python benchmark/throughput.py --script ppo_atari_envpool --arguments "--device cuda" --against "" --no-sb3
    python benchmark/throughput.py --script ppo_atari_envpool --profile    where the time of an update goes

A script is launched in a temporary folder, and timed by its metrics.csv: the median over the updates after the warm-up.
A ratio is the median of the ratios within each round, so that a slow hour of the machine hardly moves it.
Runs on Linux and macOS.
"""

import contextlib
import csv
import importlib.metadata
import importlib.util
import io
import json
import multiprocessing
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil
import tyro
from command_line import UserError, one_line_errors, print_table, with_values, words_of
from files import write_atomically
from kept import write_json
from runs import ROOT, release, version

SB3_THREADS = {"default threads": None, "1 thread": 1}  # of torch; None is its default
WITH_MEMORY = ("ppo_lstm", "ppo_continuous_action_lstm")  # they are measured beside RecurrentPPO
LEAST_UPDATES = 3  # in a measurement
PROFILED = 5  # updates of a profile, after the first one
PARTS = ("update", "environment", "acting", "copies", "learning")  # of a profile
SHORT = "--num-steps 32 --num-minibatches 1"  # an eighth of Procgen's rollout as one minibatch of the usual size
DEFAULTS: dict[str, dict[str, Any]] = {  # where neither --arguments nor --against is typed
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
    arguments: str | None = None  # arguments of the script, as one string: "--num-envs 8"
    against: str | None = None  # arguments of a second measurement of the script, to compare with
    processes: int | None = None  # processes that torchrun starts; 2 for a multigpu script at its defaults, else 1
    seconds: float = 4.0  # length of each measurement
    warm_up: float = 1.0  # seconds of training before each measurement
    rounds: int = 5  # rounds, each with one measurement of everything
    sb3: bool = True  # measure stable-baselines3 too
    output: Path | None = None  # JSON file to write
    keep: bool = False  # put it into the published results, benchmark/results/speed.json
    profile: bool = False  # measure the parts of an update instead: environment, acting, copies and learning


# ---------------------------------------------------------------------------------------------------- A launched script
class Launch:
    """A script as a user launches it, in a temporary folder. Both are gone after the `with` block."""

    def __init__(self, script: str, arguments: str, processes: int = 1):
        self.name = f"{script}.py {arguments}".strip()
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
        words = [str(ROOT / "cleanrl" / f"{script}.py"), *words_of(f"{script}.py", arguments)]
        self.command = [sys.executable, *launcher, *words] if processes > 1 else [sys.executable, *words]
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
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self.process.pid).children(recursive=True):  # torchrun's have other groups
                child.kill()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.errors.close()
        self.folder.cleanup()

    def text(self, name: str) -> str:
        """A file of the run folder, empty if there is none yet."""
        for path in Path(self.folder.name).glob(f"runs/*/{name}"):
            return path.read_text("utf-8")
        return ""

    def rows(self, name: str) -> list[dict[str, str]]:
        """The whole rows of a CSV file of the run folder, so far."""
        text = self.text(name)
        return list(csv.DictReader(text[: text.rfind("\n") + 1].splitlines()))

    def wait_for(self, condition: Callable[[], bool], interval: float) -> bool:
        """Waits until the condition holds, or the script has ended. Returns whether it holds; of a script that breaks
        it shows what it said."""
        while not condition():
            if self.process.poll() is not None:
                if self.process.returncode:
                    self.errors.seek(0)
                    print(self.errors.read().rstrip(), file=sys.stderr)
                    raise UserError(f"{self.name}: ended with status {self.process.returncode}; it says why above")
                return condition()
            with contextlib.suppress(psutil.NoSuchProcess):
                parent = psutil.Process(self.process.pid)
                for process in [parent, *parent.children(recursive=True)]:
                    self.peak_bytes = max(self.peak_bytes, process.memory_info().rss)
            time.sleep(interval)
        return True


def try_out(script: str, arguments: str, processes: int) -> dict:
    """Launches the script until it has made its run folder, so that a mistake is noticed before anything is measured.
    Returns its config.json."""
    with Launch(script, arguments, processes) as launch:
        if not launch.wait_for(lambda: bool(launch.text("metrics.csv")), 0.02):
            raise UserError(f"{launch.name}: has ended without a training; leave out such as --help and --evaluate")
        return json.loads(launch.text("config.json"))


# --------------------------------------------------------------------------------------------------------- Measurements
def is_enough(times: list[float], args: Args) -> bool:
    """Whether the ends of updates cover warm-up and measurement."""
    measured = [x for x in times if x >= args.warm_up]
    return len(measured) > LEAST_UPDATES and measured[-1] - measured[0] >= args.seconds


def speed(times: list[float], steps: int, args: Args) -> dict[str, float]:
    """Speed by the times at which updates of `steps` steps ended: the median over the updates after the warm-up, and
    that of the slowest and the fastest third of the time."""
    if not is_enough(times, args):
        hint = "use fewer, or more --total-timesteps"
        raise UserError(f"--seconds {args.seconds}: the whole training is over sooner; {hint}")
    seconds = np.diff([x for x in times if x >= args.warm_up])
    of_update = median(seconds)
    thirds = [steps / np.mean(part) for part in np.array_split(seconds, 3)]
    return {
        "steps_per_second": steps / of_update,
        "slowest": min(thirds),
        "fastest": max(thirds),
        "ms_per_update": 1e3 * of_update,
        "updates": len(seconds),
    }


def measure_script(args: Args, arguments: str, processes: int) -> dict:
    """Watches a training until enough updates have ended."""
    with Launch(args.script, arguments, processes) as launch:

        def times() -> list[float]:
            """Seconds of training at the end of each update: its steps by the steps per second until then."""
            return [float(row["global_step"]) / float(row["charts/SPS"]) for row in launch.rows("metrics.csv")]

        launch.wait_for(lambda: bool(times()), 0.01)
        first_row_seconds = time.perf_counter() - launch.start
        launch.wait_for(lambda: is_enough(times(), args), 0.1)
        result = speed(times(), int(launch.rows("metrics.csv")[0]["global_step"]), args)
        return result | {"first_row_seconds": first_row_seconds, "peak_mb": launch.peak_bytes / 1e6}


def sb3_envs(arguments: dict, workers: bool):
    """The script's environment for stable-baselines3, stepped in turn (DummyVecEnv) or by `workers`, a process each.
    Games go through stable-baselines3's own Atari wrappers, which are the scripts' details."""
    import gymnasium as gym
    from stable_baselines3.common.env_util import make_atari_env, make_vec_env
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecFrameStack, VecNormalize

    env_id = arguments["env_id"]
    options = {"n_envs": arguments["num_envs"], "seed": arguments["seed"], "vec_env_cls": DummyVecEnv}
    options["env_kwargs"] = json.loads(arguments.get("env_kwargs", "{}"))
    if workers:  # forked, they know the games that are registered here
        options |= {"vec_env_cls": SubprocVecEnv, "vec_env_kwargs": {"start_method": "fork"}}
    if "env_threads" in arguments:  # EnvPool's name of the game
        env_id = env_id.removesuffix("-v5") + "NoFrameskip-v4"
    if "NoFrameskip" in env_id:
        import ale_py

        gym.register_envs(ale_py)
        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
        return VecFrameStack(make_atari_env(env_id, **options), 4)
    envs = make_vec_env(env_id, **options)
    if len(envs.observation_space.shape) > 1:
        raise UserError(f"{env_id}: observes images, for which no stable-baselines3 is set up here; use --no-sb3")
    if isinstance(envs.action_space, gym.spaces.Box):
        return VecNormalize(envs, gamma=arguments["gamma"])
    return envs


def measure_sb3(arguments: dict, threads: int | None, workers: bool, args: Args) -> dict:
    """Trains by stable-baselines3's PPO with the script's arguments, on `threads` threads of torch (None: its default).
    Its networks are the scripts': two of 64 and 64 tanh units, or for games the convolutions of Nature. A memory is
    RecurrentPPO's: one LSTM of the script's size for policy and value, without the layer before it."""
    import torch

    with contextlib.redirect_stderr(io.StringIO()):  # old gym, which Procgen needs, complains of itself
        from stable_baselines3 import PPO
        from stable_baselines3.common.callbacks import BaseCallback
        from stable_baselines3.common.logger import Logger

        if args.script in WITH_MEMORY:
            from sb3_contrib import RecurrentPPO

    class Clock(BaseCallback):
        """Takes down when each rollout begins, which is when the update before it has ended."""

        def _on_training_start(self) -> None:
            self.start = time.perf_counter()
            self.times = []

        def _on_rollout_start(self) -> None:
            self.times.append(time.perf_counter() - self.start)

        def _on_step(self) -> bool:
            return not is_enough(self.times, args)

    if threads:
        torch.set_num_threads(threads)
    envs = sb3_envs(arguments, workers)
    same = ("gamma", "gae_lambda", "ent_coef", "vf_coef", "max_grad_norm", "seed")
    batch_size = arguments["num_envs"] * arguments["num_steps"]
    algorithm: type = PPO
    policy = "CnnPolicy" if len(envs.observation_space.shape) > 1 else "MlpPolicy"
    network = {}
    if args.script in WITH_MEMORY:
        algorithm = RecurrentPPO
        policy = "MlpLstmPolicy"
        network = {"lstm_hidden_size": arguments["hidden_size"], "shared_lstm": True, "enable_critic_lstm": False}
        network["net_arch"] = []
    model = algorithm(
        policy,
        envs,
        policy_kwargs=network,
        device="cuda" if arguments.get("device") == "cuda" else "cpu",
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
    return speed(clock.times, batch_size, args) | {"threads": torch.get_num_threads()}


class Clock:
    """Seconds of the parts of an update: those of the environments' steps, of acting, and of learning, which is what
    lies between a rollout's last step and the next one's first action. The first update warms up and doesn't count."""

    def __init__(self, steps: int):
        self.steps = steps  # of a rollout
        self.parts = dict.fromkeys(("environment", "acting", "learning"), 0.0)
        self.taken = 0
        self.begin = time.perf_counter()  # of what counts
        self.rollout_end: float | None = None

    def add(self, part: str, begin: float) -> float:
        now = time.perf_counter()
        self.parts[part] += now - begin
        return now

    def acts(self, begin: float) -> None:
        if self.rollout_end is not None:
            self.parts["learning"] += begin - self.rollout_end
            self.rollout_end = None
            if self.taken == self.steps:  # what was added up until now was warming up
                self.parts = dict.fromkeys(self.parts, 0.0)
                self.begin = begin

    def has_stepped(self, now: float) -> None:
        self.taken += 1
        if self.taken % self.steps == 0:
            self.rollout_end = now


def measure_parts(script: str, typed: str, updates: int) -> dict[str, float]:
    """Milliseconds of an update by its parts, the mean of so many updates; "copies" are those of observations to the
    device and of actions from it, and bookkeeping. The script is loaded here: call it in a process of its own."""
    import torch

    def synchronized() -> float:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.perf_counter()

    sys.path.insert(0, str(ROOT / "cleanrl"))
    module: Any = importlib.import_module(script)  # its classes are replaced below
    if not hasattr(module.Agent, "get_action_and_value"):
        raise UserError(f"--profile: {script}.py has no torch; profile another script")
    words = words_of("--arguments", typed)
    args = tyro.cli(module.Args, args=words)
    total = args.num_envs * args.num_steps * (updates + 1)
    args = tyro.cli(module.Args, args=[*words, "--total-timesteps", str(total)])
    clocks = []

    class TimedVectorEnv(module.VectorEnv):
        def step(self, actions):
            begin = time.perf_counter()
            result = super().step(actions)
            if clocks:  # before that, the script tries out the environment
                clocks[0].has_stepped(clocks[0].add("environment", begin))
            return result

    class TimedAgent(module.Agent):
        def get_action_and_value(self, *inputs):
            begin = synchronized()
            clocks[0].acts(begin)
            result = super().get_action_and_value(*inputs)
            synchronized()
            clocks[0].add("acting", begin)
            return result

    train = module.train
    seconds = []

    def timed_train(args, run):
        clocks.append(Clock(args.num_steps))
        train(args, run)
        now = synchronized()
        clocks[0].acts(now)
        seconds.append(now - clocks[0].begin)

    module.VectorEnv, module.Agent, module.train = TimedVectorEnv, TimedAgent, timed_train
    with tempfile.TemporaryDirectory(prefix="throughput-") as folder, contextlib.redirect_stdout(sys.stderr):
        os.chdir(folder)
        module.main(args)
        os.chdir(ROOT)  # the folder goes
    parts = {name: 1e3 * part / updates for name, part in clocks[0].parts.items()}
    whole = 1e3 * seconds[0] / updates
    return {"update": whole, **parts, "copies": whole - sum(parts.values())}


def end(number: int, frame) -> None:
    """Upon a signal: ends the processes that this one started, and this one by way of finally."""
    for child in multiprocessing.active_children():
        child.terminate()
    sys.exit(128 + number)


def in_child(function, *arguments) -> dict:
    """Calls the function in a fresh process, whose threads and imports are its own."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def sides_of(args: Args, arguments: dict) -> Iterator[tuple[str, Callable[[], dict]]]:
    """What a round measures: key in the results, and the function that measures it."""
    yield "script", partial(measure_script, args, args.arguments, args.processes)
    if args.against is not None:
        yield "against", partial(measure_script, args, args.against, 1)
    if not args.sb3:
        return
    in_parallel = arguments.get("vectorization") == "async" or "env_threads" in arguments
    for workers in [False, True] if in_parallel else [False]:
        for name, threads in SB3_THREADS.items():
            key = f"{name}, SubprocVecEnv" if workers else name
            yield key, partial(in_child, measure_sb3, arguments, threads, workers, args)


def measure_round(args: Args, arguments: dict) -> dict:
    """One measurement of everything, in turn, with the ratios of their speeds."""
    result = {}
    for key, measure in sides_of(args, arguments):
        result[key] = measure()
        print(f"{args.script}, {key}: {result[key]['steps_per_second']:,.0f} steps/s", file=sys.stderr)
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


# ---------------------------------------------------------------------------------------------------- What was measured
def names_of_sides(script: str, measured: dict) -> dict[str, str]:
    """The names of the script's measurements in tables; those of another release say so."""
    options = measured["options"]
    older = "" if measured["release"] == release() else f", release {measured['release']}"
    names = {}
    for side, typed in (("script", options["arguments"]), ("against", options["against"] or "")):
        names[side] = f"{script}.py {typed}".strip() + older
    if options["processes"] > 1:
        names = {"script": f"{options['processes']} × {names['script']}", "against": f"1 × {names['against']}"}
    return {side: name for side, name in names.items() if side in measured["medians"]}


def faster(measured: dict, key: str, base: str) -> str:
    """How much faster a side was than `base`: the median of the rounds' ratios, and their range."""
    ratios = "ratios" if key == "script" else "against_ratios"
    if base not in measured["medians"].get(ratios, {}):
        return "–"
    of_rounds = [one[ratios][base] for one in measured["rounds"]]
    return f"{measured['medians'][ratios][base]:.1f}× ({min(of_rounds):.1f}–{max(of_rounds):.1f})"


def speed_row(measured: dict, key: str, name: str) -> list[str]:
    """A side's row of the speed table."""
    medians = measured["medians"]
    cells = [name, measured["arguments"]["env_id"], f"{medians[key]['steps_per_second']:,.0f}"]
    for base in ("default threads", "1 thread"):
        theirs = []
        for how, one in (("serial ", base), ("workers ", f"{base}, SubprocVecEnv")):
            if one in medians:
                theirs.append(f"{how}{medians[one]['steps_per_second']:,.0f}: {faster(measured, key, one)}")
        if len(theirs) == 1:
            theirs = [theirs[0].removeprefix("serial ")]
        cells.append("<br>".join(theirs) or "–")
    return [*cells, faster(measured, key, "against")]


def by_length(speeds: dict) -> list[tuple[str, dict]]:
    """Scripts and their measurements, short names first."""
    names = sorted(speeds, key=lambda name: (len(name), name))
    return [(name.removeprefix("throughput/"), speeds[name]) for name in names]


def speed_rows(speeds: dict) -> list[list[str]]:
    """The table of speeds, header first."""
    rows = [["script", "environment", "steps/s", "stable-baselines3, default threads", "stable-baselines3, 1 thread",
             "speedup over the row below"]]  # fmt: skip
    for script, measured in by_length(speeds):
        for side, name in names_of_sides(script, measured).items():
            rows.append(speed_row(measured, side, name))
    return rows


def launch_rows(speeds: dict) -> list[list[str]]:
    """The table of launches, header first."""
    rows = [["script", "launch to first update", "peak memory"]]
    for script, measured in by_length(speeds):
        launch = measured["medians"]["launch"]
        cells = [f"{launch['first_row_seconds']:.1f} s", f"{launch['peak_mb']:,.0f} MB"]
        rows.append([names_of_sides(script, measured)["script"], *cells])
    return rows


# ---------------------------------------------------------------------------------------------------------- The program
def filled_in(args: Args) -> Args:
    """The arguments with the script's DEFAULTS where neither --arguments nor --against is typed."""
    filled: dict[str, Any] = {"arguments": args.arguments or "", "processes": 1}
    if args.arguments is None and args.against is None:
        filled |= DEFAULTS.get(args.script, {})
    if args.processes is not None:
        filled["processes"] = args.processes
    return replace(args, **filled)


def check(args: Args) -> None:
    """Raises UserError at the first option that can't work."""
    scripts = sorted(file.stem for file in (ROOT / "cleanrl").glob("*.py"))
    if args.script not in scripts:
        raise UserError(f"--script {args.script}: unknown; cleanrl/ has {', '.join(scripts)}")
    if args.rounds < 1 or args.processes < 1:
        raise UserError("--rounds and --processes: must be 1 or more")
    if not 0 < args.seconds < np.inf or not 0 <= args.warm_up < np.inf:
        raise UserError("--seconds must be above 0, and --warm-up 0 or more")
    if args.processes != 1 and "multigpu" not in args.script:
        raise UserError(f"--processes {args.processes}: {args.script}.py takes only one")
    if args.output and args.output.is_dir():
        raise UserError(f"--output {args.output}: is a folder; name a file in it")
    if args.profile and (args.keep or args.against is not None or args.processes != 1):
        raise UserError("--profile: is of one process and is not kept; leave out --keep, --against and --processes")
    package = "sb3-contrib" if args.script in WITH_MEMORY else "stable-baselines3"
    if args.sb3 and importlib.util.find_spec(package.replace("-", "_")) is None:
        raise UserError(f"{package} is not installed; pip install {package}, or leave it out by --no-sb3")


def cpu_name() -> str:
    """The processor's name, as the system tells it."""
    if Path("/proc/cpuinfo").is_file():
        for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(": ")[2]
    if sys.platform == "darwin":
        return subprocess.check_output(["sysctl", "-n", "machdep.cpu.brand_string"], text=True).strip()
    return platform.processor()


def measure_all(args: Args, config: dict) -> dict:
    """What the published results have of a script."""
    measured = {
        "options": asdict(args) | {"output": None},
        "hardware": config["hardware"] | {"cpu": cpu_name()},
        "versions": config["versions"] | {args.script: version(ROOT / "cleanrl" / f"{args.script}.py")},
        "release": release(),
        "arguments": config["arguments"],
    }
    for package in ["stable-baselines3", "torch"] if args.sb3 else []:
        measured["versions"][package] = importlib.metadata.version(package)
    rounds = []
    for number in range(args.rounds):
        print(f"round {number + 1} of {args.rounds}", file=sys.stderr)
        if args.profile:
            rounds.append({"profile": in_child(measure_parts, args.script, args.arguments, PROFILED)})
        else:
            rounds.append(measure_round(args, config["arguments"]))
    return measured | {"medians": medians(rounds), "rounds": rounds}


def main(args: Args) -> None:
    """Measures, prints the tables, and writes the files that it is to."""
    args = filled_in(args)
    check(args)
    config = try_out(args.script, args.arguments, args.processes)
    if args.against is not None:
        try_out(args.script, args.against, 1)
    measured = measure_all(args, config)
    name = f"throughput/{args.script}"
    if args.profile:
        parts = measured["medians"]["profile"]
        print_table([["milliseconds of", *PARTS], [args.script, *(f"{parts[part]:,.1f}" for part in PARTS)]])
    else:
        for rows in (speed_rows({name: measured}), launch_rows({name: measured})):
            print_table([[cell.replace("<br>", "; ") for cell in row] for row in rows])
    if args.output:
        write_atomically(args.output, json.dumps(measured, indent=2) + "\n")
    if args.keep:
        write_json("speed.json", name, measured)


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
    with one_line_errors():
        words = with_values(sys.argv[1:], ("--arguments", "--against"))
        main(tyro.cli(Args, description=__doc__, args=words))
