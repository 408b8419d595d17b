"""Steps per second of a script, in turns with stable-baselines3's PPO at the same sizes; of scripts with an LSTM, with
sb3-contrib's RecurrentPPO.

    python benchmark/throughput.py --script ppo
    python benchmark/throughput.py --script ppo ppo_numpy    two scripts beside one stable-baselines3
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
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import tyro
from command_line import UserError, one_line_errors, print_table, with_values, words_of
from files import write_atomically
from kept import write_json
from runs import ROOT, read_log, release, version

with one_line_errors():
    import psutil

# What one stable-baselines3 has in common with all scripts that are measured beside it
SIZES = ("num_envs", "num_steps", "num_minibatches", "update_epochs")
LEAST_UPDATES = 3  # in a measurement
PROFILED = 5  # updates of a profile, after the first one


@dataclass
class Args:
    script: tuple[str, ...] = ("ppo",)  # names of scripts in cleanrl/; several of one task share one stable-baselines3
    arguments: str = ""  # arguments of each script, as one string: "--num-envs 8"
    against: str | None = None  # arguments of a second measurement of each script, to compare with
    processes: int = 1  # processes that torchrun starts, for a multigpu script
    seconds: float = 4.0  # length of each measurement
    warm_up: float = 1.0  # seconds of training before each measurement
    rounds: int = 5  # rounds, each with one measurement of everything
    sb3: bool = True  # measure stable-baselines3 too
    output: Path | None = None  # JSON file to write
    keep: bool = False  # put it into the published results, benchmark/results/speed.json
    profile: bool = False  # measure the parts of an update instead: environment, acting, copies and learning


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
    thirds = [steps / np.mean(part) for part in np.array_split(seconds, 3)]
    return {
        "steps_per_second": steps / median(seconds),
        "slowest": min(thirds),
        "fastest": max(thirds),
        "updates": len(seconds),
    }


@contextlib.contextmanager
def launched(script: str, arguments: str, processes: int) -> Iterator[tuple[psutil.Popen, Path]]:
    """A script as a user launches it: its process and the temporary folder where it runs. Both are gone in the end."""
    command = [sys.executable]
    if processes > 1:
        command += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    command += [str(ROOT / "cleanrl" / f"{script}.py"), *words_of(f"{script}.py", arguments)]
    with tempfile.TemporaryDirectory(prefix="throughput-") as folder:
        with open(Path(folder, "errors.txt"), "w", encoding="utf-8") as errors:
            process = psutil.Popen(
                command,
                cwd=folder,
                env=os.environ | {"TMPDIR": folder},  # torchrun leaves folders behind
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,
            )
        try:
            yield process, Path(folder)
        finally:
            for one in family(process):
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.kill()
            process.wait()


def family(process: psutil.Popen) -> list[psutil.Process]:
    """The process and those that it has started, unless it has ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return [process, *process.children(recursive=True)]
    return []


def measure_script(args: Args, script: str, arguments: str, processes: int) -> dict[str, dict]:
    """Watches a training until enough updates have ended. Returns its speed, what its launch took, and its
    config.json."""
    name = f"{script}.py {arguments}".strip()
    begin = time.perf_counter()
    launch = {"first_row_seconds": 0.0, "peak_mb": 0.0}
    rows: list[dict[str, str]] = []
    times: list[float] = []  # seconds of training at the end of each update
    with launched(script, arguments, processes) as (process, folder):
        while not is_enough(times, args):
            has_ended = process.poll() is not None  # then what is read next is all
            for path in folder.glob("runs/*/metrics.csv"):
                rows = list(csv.DictReader(read_log(path).splitlines()))
            times = [float(row["global_step"]) / float(row["charts/SPS"]) for row in rows]  # SPS: until then
            for one in family(process):
                with contextlib.suppress(psutil.NoSuchProcess):
                    launch["peak_mb"] = max(launch["peak_mb"], one.memory_info().rss / 1e6)
            if has_ended:
                break
            if not rows:
                launch["first_row_seconds"] = time.perf_counter() - begin
            time.sleep(0.1 if rows else 0.01)
        if process.poll():
            print((folder / "errors.txt").read_text("utf-8").rstrip(), file=sys.stderr)
            raise UserError(f"{name}: ended with status {process.poll()}; it says why above")
        if not rows:
            raise UserError(f"{name}: has ended without a training; leave out such as --help and --evaluate")
        (config,) = folder.glob("runs/*/config.json")
        return {
            "speed": speed(times, int(rows[0]["global_step"]), args),
            "launch": launch,
            "config": json.loads(config.read_text("utf-8")),
        }


def has_memory(script: str) -> bool:
    return script.endswith("_lstm")


def sb3_env_id(arguments: dict) -> str:
    """Gymnasium's name of the script's environment; EnvPool has its own for games."""
    if "env_threads" in arguments:
        return arguments["env_id"].removesuffix("-v5") + "NoFrameskip-v4"
    return arguments["env_id"]


def sb3_envs(arguments: dict, workers: bool, frames: int):
    """The script's environment for stable-baselines3, stepped in turn (DummyVecEnv) or by `workers`, a process each.
    Games go through stable-baselines3's own Atari wrappers, which are the scripts' details, and show their last
    `frames` frames."""
    import gymnasium as gym
    from stable_baselines3.common.env_util import make_atari_env, make_vec_env
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecFrameStack, VecNormalize

    env_id = sb3_env_id(arguments)
    options = {"n_envs": arguments["num_envs"], "seed": arguments["seed"], "vec_env_cls": DummyVecEnv}
    options["env_kwargs"] = json.loads(arguments.get("env_kwargs", "{}"))
    if workers:  # forked, they know the games that are registered here
        options |= {"vec_env_cls": SubprocVecEnv, "vec_env_kwargs": {"start_method": "fork"}}
    if "NoFrameskip" in env_id:
        import ale_py

        gym.register_envs(ale_py)
        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
        return VecFrameStack(make_atari_env(env_id, **options), frames)
    envs = make_vec_env(env_id, **options)
    if len(envs.observation_space.shape) > 1:
        raise UserError(f"{env_id}: observes images, for which no stable-baselines3 is set up here; use --no-sb3")
    if isinstance(envs.action_space, gym.spaces.Box):
        return VecNormalize(envs, gamma=arguments["gamma"])
    return envs


def measure_sb3(arguments: dict, threads: int | None, workers: bool, args: Args) -> dict:
    """Trains by stable-baselines3's PPO with the script's arguments, on `threads` threads of torch (None: its default).
    Its networks are the scripts': two of 64 and 64 tanh units, or for games the convolutions of Nature. A memory is
    RecurrentPPO's: one LSTM of the script's size for policy and value, without the small scripts' layer before it and
    without their critic's network."""
    import torch

    memory = has_memory(args.script[0])

    with contextlib.redirect_stderr(io.StringIO()):  # old gym, which Procgen needs, complains of itself
        from stable_baselines3 import PPO
        from stable_baselines3.common.callbacks import BaseCallback
        from stable_baselines3.common.logger import Logger

        if memory:
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
    envs = sb3_envs(arguments, workers, frames=1 if memory else 4)
    same = ("gamma", "gae_lambda", "ent_coef", "vf_coef", "max_grad_norm", "seed")
    batch_size = arguments["num_envs"] * arguments["num_steps"]
    algorithm: type = PPO
    kind = "Cnn" if len(envs.observation_space.shape) > 1 else "Mlp"
    policy = f"{kind}Policy"
    network = {}
    if memory:
        algorithm = RecurrentPPO
        policy = f"{kind}LstmPolicy"
        network = {"lstm_hidden_size": arguments.get("hidden_size", 128)}  # ppo_atari_lstm.py's is 128
        network |= {"shared_lstm": True, "enable_critic_lstm": False, "net_arch": []}
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


def measure_parts(script: str, typed: str) -> dict[str, dict]:
    """Milliseconds of an update by its parts, and the run's config.json. The script is loaded here: call it in a
    process of its own."""
    import torch

    def now() -> float:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.perf_counter()

    sys.path.insert(0, str(ROOT / "cleanrl"))
    module: Any = importlib.import_module(script)  # its classes are replaced below
    if not hasattr(module.Agent, "get_action_and_value"):
        raise UserError(f"--profile: {script}.py has no torch; profile another script")
    words = words_of("--arguments", typed)
    args = tyro.cli(module.Args, args=words)
    total = args.num_envs * args.num_steps * (PROFILED + 1)
    args = tyro.cli(module.Args, args=[*words, "--total-timesteps", str(total)])
    times: list[float] = []

    class TimedVectorEnv(module.VectorEnv):
        def step(self, actions):
            times.append(time.perf_counter())
            result = super().step(actions)
            times.append(time.perf_counter())
            return result

    class TimedAgent(module.Agent):
        def get_action_and_value(self, *inputs):
            times.append(now())
            result = super().get_action_and_value(*inputs)
            times.append(now())
            return result

    train = module.train

    def timed_train(args, run):
        times.clear()  # before that, the script tries out the environment
        train(args, run)
        times.append(now())

    module.VectorEnv, module.Agent, module.train = TimedVectorEnv, TimedAgent, timed_train
    with tempfile.TemporaryDirectory(prefix="throughput-") as folder, contextlib.redirect_stdout(sys.stderr):
        os.chdir(folder)
        module.main(args)
        os.chdir(ROOT)  # the folder goes
        (config,) = Path(folder).glob("runs/*/config.json")
        return {"parts": parts_of(times, args.num_steps), "config": json.loads(config.read_text("utf-8"))}


def parts_of(times: list[float], steps: int) -> dict[str, float]:
    """Milliseconds of an update by its parts, the mean over the updates after the first one. In `times`, each of the
    `steps` steps of an update has four: acting begins, has ended, the environments' step begins, has ended. The end of
    the training is the last. Learning is what lies between a rollout's last step and the next one's first action;
    "copies" are those of observations to the device and of actions from it, and bookkeeping."""
    of_steps = np.array(times[:-1]).reshape(-1, steps, 4)[1:]  # (U, T, 4)
    ends = [*of_steps[1:, 0, 0], times[-1]]  # of the updates, (U,)
    update = times[-1] - of_steps[0, 0, 0]
    acting = np.sum(of_steps[:, :, 1] - of_steps[:, :, 0])
    environment = np.sum(of_steps[:, :, 3] - of_steps[:, :, 2])
    learning = np.sum(ends - of_steps[:, -1, 3])
    copies = update - environment - acting - learning
    seconds = {"update": update, "environment": environment, "acting": acting, "copies": copies, "learning": learning}
    return {part: 1e3 * float(one) / len(of_steps) for part, one in seconds.items()}


def end(number: int, frame) -> None:
    """Upon a signal: ends the processes that this one started, and this one by way of finally."""
    for child in multiprocessing.active_children():
        child.terminate()
    sys.exit(128 + number)


def in_child(function, *arguments) -> dict:
    """Calls the function in a fresh process, whose threads and imports are its own."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def measure_round(args: Args) -> dict[str, dict]:
    """One measurement of everything, in turn. Returns of each script its speeds and their ratios, what its launch
    took, and its config.json."""
    found: dict[str, dict] = {}
    configs = {}
    launches = {}
    for script in args.script:
        first = measure_script(args, script, args.arguments, args.processes)
        found[script] = {"script": first["speed"]}
        if args.against is not None:
            found[script]["against"] = measure_script(args, script, args.against, 1)["speed"]
        configs[script] = first["config"]
        launches[script] = first["launch"]
    if args.sb3:
        for script, sides in measure_sb3_beside(configs, args).items():
            found[script] |= sides
    for script, one in found.items():
        speeds = {key: speed["steps_per_second"] for key, speed in one.items()}
        for key, steps in speeds.items():
            print(f"{script}, {key}: {steps:,.0f} steps/s", file=sys.stderr)
        one |= {"launch": launches[script], "config": configs[script]}
        for kind, key in (("ratios", "script"), ("against_ratios", "against")):
            others = [name for name in speeds if name not in ("script", key)]
            if key in speeds and others:
                one[kind] = {name: speeds[key] / speeds[name] for name in others}
    return found


def measure_sb3_beside(configs: dict[str, dict], args: Args) -> dict[str, dict]:
    """Measures stable-baselines3 once for all scripts, whose config.json are given. Returns its speeds, by script."""
    first = configs[args.script[0]]["arguments"]
    sides = {}
    for script in args.script:
        arguments = configs[script]["arguments"]
        for name in SIZES:
            if arguments[name] != first[name]:
                raise UserError(f"{script}: has {name} {arguments[name]}, the first {first[name]}; measure it apart")
        if sb3_env_id(arguments) != sb3_env_id(first):
            raise UserError(f"{script}: trains on {arguments['env_id']}, the first elsewhere; measure it apart")
        sides |= sb3_sides(arguments)
    speeds = {}
    for key, (threads, workers) in sides.items():
        speeds[key] = in_child(measure_sb3, first, threads, workers, args)
    beside = {}
    for script in args.script:
        beside[script] = {key: speeds[key] for key in sb3_sides(configs[script]["arguments"])}
    return beside


def sb3_sides(arguments: dict) -> dict[str, tuple[int | None, bool]]:
    """How stable-baselines3 is measured, by name: on how many threads of torch (None is its default), and whether its
    environments have a process each, as they do beside a script that steps them in parallel."""
    sides: dict[str, tuple[int | None, bool]] = {"default threads": (None, False), "1 thread": (1, False)}
    if arguments.get("vectorization") == "async" or "env_threads" in arguments:
        sides |= {"default threads, SubprocVecEnv": (None, True), "1 thread, SubprocVecEnv": (1, True)}
    return sides


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
def check(args: Args) -> None:
    """Raises UserError at the first option that can't work."""
    scripts = sorted(file.stem for file in (ROOT / "cleanrl").glob("*.py"))
    for script in args.script:
        if script not in scripts:
            raise UserError(f"--script {script}: unknown; cleanrl/ has {', '.join(scripts)}")
        if args.sb3 and has_memory(script) != has_memory(args.script[0]):
            raise UserError("--script: only some have an LSTM, whose stable-baselines3 is another; measure them apart")
        if args.processes != 1 and "multigpu" not in script:
            raise UserError(f"--processes {args.processes}: {script}.py takes only one")
    if args.rounds < 1:
        raise UserError("--rounds: must be 1 or more")
    if args.output and args.output.is_dir():
        raise UserError(f"--output {args.output}: is a folder; name a file in it")
    if args.profile and (len(args.script) > 1 or args.keep or args.against is not None or args.processes != 1):
        raise UserError("--profile: is of one process and is not kept; leave out --keep, --against and --processes")
    package = "sb3-contrib" if has_memory(args.script[0]) else "stable-baselines3"
    if args.sb3 and not args.profile and importlib.util.find_spec(package.replace("-", "_")) is None:
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


def measure_all(args: Args) -> dict[str, dict]:
    """What the published results have of each script, by its name there."""
    rounds = []
    for number in range(args.rounds):
        print(f"round {number + 1} of {args.rounds}", file=sys.stderr)
        if args.profile:
            found = in_child(measure_parts, args.script[0], args.arguments)
            rounds.append({args.script[0]: {"profile": found["parts"], "config": found["config"]}})
        else:
            rounds.append(measure_round(args))
    measured = {}
    for script in args.script:
        of_script = [one[script] for one in rounds]
        configs = [one.pop("config") for one in of_script]
        versions = configs[-1]["versions"] | {script: version(ROOT / "cleanrl" / f"{script}.py")}
        for package in ["stable-baselines3", "torch"] if args.sb3 and not args.profile else []:
            versions[package] = importlib.metadata.version(package)
        measured[f"throughput/{script}"] = {
            "options": asdict(args) | {"output": None},
            "hardware": configs[-1]["hardware"] | {"cpu": cpu_name()},
            "versions": versions,
            "release": release(),
            "arguments": configs[-1]["arguments"],
            "medians": medians(of_script),
            "rounds": of_script,
        }
    return measured


def main(args: Args) -> None:
    """Measures, writes the files that it is to, and prints the tables."""
    check(args)
    measured = measure_all(args)
    if args.output:
        write_atomically(args.output, json.dumps(measured, indent=2) + "\n")
    if args.keep:
        for name, one in measured.items():
            write_json("speed.json", name, one)
    if args.profile:
        for name, one in measured.items():
            parts = one["medians"]["profile"]
            script = name.removeprefix("throughput/")
            print_table([["milliseconds of", *parts], [script, *(f"{part:,.1f}" for part in parts.values())]])
    else:
        for rows in (speed_rows(measured), launch_rows(measured)):
            print_table([[cell.replace("<br>", "; ") for cell in row] for row in rows])


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
    with one_line_errors():
        words = with_values(sys.argv[1:], ("--arguments", "--against"))
        main(tyro.cli(Args, description=__doc__, args=words))
