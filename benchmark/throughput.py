"""Steps per second of a script, and of stable-baselines3's PPO with the same sizes, measured in turns.

    python benchmark/throughput.py --script ppo
    python benchmark/throughput.py --script ppo_atari --arguments="--precision bf16" --against="--precision fp32"
    python benchmark/throughput.py --script ppo --vary num-envs 4 16 64 256

Every measurement has a process of its own. The script trains at its defaults, but for --arguments, and is timed from
outside, by HOOKS, until enough updates were seen. --against measures it once more, with other arguments, and in one
process if --processes starts more. Times are of the wall clock: medians over the updates after the warm-up, and in the
table over the rounds. A ratio is the median of the rounds' ratios, each within one round, with their range, so a slow
hour of the machine hardly moves it. stable-baselines3 runs as it installs, with torch's default number of threads, and
with one thread, which suits small networks better; where the script steps its environments in worker processes or C++
threads, it is measured with its SubprocVecEnv, too. --vary measures how speed, split and memory grow with an argument
of the script, or with `processes`.
"""

import contextlib
import importlib
import importlib.metadata
import importlib.util
import json
import multiprocessing
import os
import platform
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import tyro
from shared import in_parallel, script_words, version, write_whole

ROOT = Path(__file__).resolve().parents[1]
HOOKS = {  # the functions to time: of each list the first that the script has
    "environment": ["NormalizedVectorEnv.step", "VectorEnv.step"],
    "end of the update": ["SharedRun.log", "Run.log"],  # as it returns
}
PARTS = ("environment", "policy", "update")  # update: from the last step to the log; policy: all the rest
SB3 = {  # threads of torch (None: its default), and whether environments are worker processes
    "default threads": (None, False),
    "1 thread": (1, False),
    "default threads, SubprocVecEnv": (None, True),
    "1 thread, SubprocVecEnv": (1, True),
}
SHORT = "--num-steps 32 --num-minibatches 1"  # an eighth of a rollout, as one minibatch of the usual size: quicker
DEFAULTS = {  # what isn't typed
    "ppo_atari": {"arguments": "--precision bf16", "against": ""},
    "ppo_atari_lstm": {"arguments": "--precision bf16", "against": ""},
    "ppo_atari_envpool": {"arguments": "--precision bf16 --env-threads 2", "against": "--env-threads 2"},
    "ppo_atari_multigpu": {"processes": 2, "against": "", "sb3": False},
    "ppo_atari_multigpu_envpool": {"processes": 2, "against": "", "sb3": False},
    "ppo_procgen": {
        "arguments": f"--precision bf16 {SHORT}", "sb3": False,
        "against": f"--no-channels-last --no-malloc-tuning {SHORT}",
    },
}  # fmt: skip


@dataclass
class Args:
    script: str = "ppo"  # name of a script in cleanrl/
    env_id: str | None = None  # environment, instead of the script's default
    arguments: str | None = None  # further arguments of the script, as one string after =: --arguments="--num-envs 8"
    against: str | None = None  # the same of a second measurement of the script, to compare with
    processes: int | None = None  # as torchrun starts them; 1, or 2 of a multigpu script without --arguments
    seconds: float = 4.0  # length of each measurement
    warm_up: float = 1.0  # seconds of training before each measurement
    rounds: int = 5  # rounds, each with one measurement of everything
    sb3: bool = True  # measure stable-baselines3 too
    vary: list[str] = field(default_factory=list)  # an argument and its values, instead: how the script's speed grows
    output: str | None = None  # JSON file, instead of {script}.json or growth/{script}_{argument}.json in the results


def fail(message: str):
    """Ends the program with one line on stderr and status 2."""
    print(f"{Path(__file__).name}: error: {' '.join(message.split())}", file=sys.stderr)
    raise SystemExit(2)


class Enough(BaseException):
    """Ends a training that was watched for long enough; no handler of errors catches it."""


class Stopwatch:
    """Splits the updates of a training into PARTS, told by `timed` steps, of which a rollout has `num_steps`, and by
    `end_update`."""

    def __init__(self, warm_up: float, seconds: float, num_steps: int = 0):
        self.warm_up, self.seconds, self.num_steps, self.steps = warm_up, seconds, num_steps, 0
        self.laps, self.started, self.warm, self.in_environment = [], None, False, 0.0  # laps: seconds of each part

    def timed(self, step):
        """The environments' step, timed; what the timing itself takes is in the result, as timers_ms."""

        def timed_step(*arguments):
            start = time.perf_counter()
            result = step(*arguments)
            self.in_environment += time.perf_counter() - start
            self.last_call = (step, arguments)
            self.steps += 1
            if self.steps == self.num_steps:
                self.end_rollout()
            return result

        return timed_step

    def end_rollout(self) -> None:
        now = time.perf_counter()
        if self.warm:
            update, rollout = self.update_ended - self.rollout_ended, now - self.update_ended
            self.laps.append((self.in_environment, rollout - self.in_environment, update))
            if now - self.started > self.seconds and len(self.laps) >= 3:
                raise Enough
        elif self.started is None:
            self.started = now
        elif now - self.started > self.warm_up:
            self.started, self.warm = now, True
        self.rollout_ended, self.in_environment = now, 0.0

    def end_update(self) -> None:
        self.update_ended, self.steps = time.perf_counter(), 0

    def watch(self, train) -> None:
        with contextlib.suppress(Enough):
            train()
            fail(f"--seconds {self.seconds}: the whole training is over sooner; use fewer")

    def result(self, args: dict) -> dict:
        """Speed and split, medians over the updates seen, and each of those."""
        steps, totals = args["num_envs"] * args["num_steps"], [sum(lap) for lap in self.laps]
        timed_nothing, start = Stopwatch(0, 0).timed(lambda: None), time.perf_counter()
        for _ in range(args["num_steps"]):
            timed_nothing()
        timers = time.perf_counter() - start
        return {
            "steps_per_second": steps / median(totals),
            "mean_steps_per_second": steps * len(totals) / sum(totals),
            "ms_per_update": 1e3 * median(totals),
            "ms": {part: 1e3 * median(seconds) for part, seconds in zip(PARTS, zip(*self.laps))},
            "timers_ms": 1e3 * timers,
            "laps_ms": [[round(1e3 * seconds, 3) for seconds in lap] for lap in self.laps],
        }

    def environment_limit(self, args) -> float:
        """Steps per second of the script's environments alone, by random actions, from fresh episodes."""
        import numpy as np

        step, (trained, actions) = self.last_call
        envs = type(trained)(args)
        envs.reset(list(range(len(actions))))
        drawn = np.array([[envs.action_space.sample() for _ in actions] for _ in range(100)])
        drawn = drawn.reshape(100, *np.shape(actions)).astype(np.asarray(actions).dtype)
        count, start = 0, time.perf_counter()
        while time.perf_counter() - start < self.seconds / 2:
            for random_actions in drawn:
                step(envs, random_actions)
            count += len(drawn) * len(actions)
        seconds = time.perf_counter() - start
        if hasattr(envs, "close"):
            envs.close()
        return count / seconds


def hook(owner, name: str, after) -> None:
    """Has after() called when a function of a module, a class or an object has returned."""
    inner = getattr(owner, name)

    def outer(*arguments, **options):
        result = inner(*arguments, **options)
        after()
        return result

    setattr(owner, name, outer)


def find_hook(module, part: str) -> tuple:
    """The owner and the name of the function that the script has for the part."""
    for path in HOOKS[part]:
        *owner, name = path.split(".")
        holder = getattr(module, owner[0], None) if owner else module
        if hasattr(holder, name):
            return holder, name
    fail(f"--script {module.__name__}: has no {' or '.join(HOOKS[part])}; add what marks its {part} to HOOKS")


def is_writable(output: Path) -> bool:
    """Whether the measurement can be written, by `write_whole`, which is to be known before it is made."""
    parent = next(path for path in output.absolute().parents if path.exists())
    return parent.is_dir() and os.access(parent, os.W_OK) and not output.is_dir()


def is_quoted(arguments: str) -> bool:
    """Whether a string of arguments has its quotes in pairs."""
    with contextlib.suppress(ValueError):
        shlex.split(arguments)
        return True
    return False


def typed(env_id: str | None, arguments: str) -> list[str]:
    return [*(["--env-id", env_id] if env_id else []), *shlex.split(arguments)]


def train(folder: str, script: str, env_id: str | None, arguments: str, stopwatch: Stopwatch | None = None):
    """Trains by the script's main, in the folder and without a word, until the stopwatch has seen enough of it. Returns
    the arguments that it has, as an object of the script."""
    sys.path.insert(0, str(ROOT / "cleanrl"))
    module = importlib.import_module(script)
    sys.argv = [str(ROOT / "cleanrl" / f"{script}.py"), *script_words(typed(env_id, arguments))]
    args = tyro.cli(module.Args, args=sys.argv[1:])
    with contextlib.chdir(folder), open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        if stopwatch is None:
            module.main(args)
        else:
            envs, step = find_hook(module, "environment")
            setattr(envs, step, stopwatch.timed(getattr(envs, step)))
            stopwatch.num_steps = args.num_steps
            hook(*find_hook(module, "end of the update"), after=stopwatch.end_update)
            stopwatch.watch(lambda: module.main(args))
        config = json.loads(next(Path().glob("runs/*/config.json")).read_text())
    return module.Args(**config["arguments"] | config["resolved"])


@contextlib.contextmanager
def joined(processes: int, folder: str, *script: str | None):
    """Makes this process the first of those that torchrun would start, and starts the others."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    others = []
    for rank in reversed(range(processes)) if processes > 1 else []:
        world = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes}
        os.environ |= {name: str(value) for name, value in world.items()}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        if rank:  # a process gets the variables of the moment
            others.append(multiprocessing.get_context("spawn").Process(target=train, args=(folder, *script)))
            others[-1].start()
    try:
        yield
    finally:
        for process in others:
            process.kill()


def measure_script(
    script: str, env_id: str | None, arguments: str, processes: int, warm_up: float, seconds: float
) -> dict:
    """Watches a training, in a folder that is then removed; then steps the environments (of the first process)."""
    stopwatch = Stopwatch(warm_up, seconds)
    with tempfile.TemporaryDirectory() as folder, joined(processes, folder, script, env_id, arguments):
        args = train(folder, script, env_id, arguments, stopwatch)
    limit = stopwatch.environment_limit(args)
    return stopwatch.result(asdict(args)) | {"environment_limit": limit, "arguments": asdict(args)}


def measure_sb3(args: dict, threads: int | None, workers: bool, warm_up: float, seconds: float) -> dict:
    """Trains by stable-baselines3's PPO with the script's arguments, on `threads` threads of torch (None: its default),
    with its environments stepped in turn (DummyVecEnv, its default) or by `workers`, a process each (SubprocVecEnv).
    Its MlpPolicy is two networks of 64 and 64 tanh units, its CnnPolicy the convolutions of Nature, like the script's;
    games go through its own Atari wrappers, which are the script's details. It writes no log, the script does."""
    import gymnasium as gym
    import torch
    from gymnasium.spaces import Box
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_atari_env, make_vec_env
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecFrameStack, VecNormalize

    if threads:
        torch.set_num_threads(threads)
    policy, make_envs = "MlpPolicy", make_vec_env
    env_id = args["env_id"]
    if "env_threads" in args:  # EnvPool's name of the game
        env_id = re.sub("-v5$", "NoFrameskip-v4", env_id)
    if "NoFrameskip" in env_id:
        import ale_py

        gym.register_envs(ale_py)
        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
        policy, make_envs = "CnnPolicy", make_atari_env
    # Forked workers know the games that were registered here
    kind = {"vec_env_cls": SubprocVecEnv, "vec_env_kwargs": {"start_method": "fork"}} if workers else {}
    envs = make_envs(env_id, args["num_envs"], seed=args["seed"], **{"vec_env_cls": DummyVecEnv} | kind)
    if policy == "CnnPolicy":
        envs = VecFrameStack(envs, 4)
    elif len(envs.observation_space.shape) > 1:
        fail(f"{args['env_id']}: observes images, for which no stable-baselines3 is set up here; use --no-sb3")
    if isinstance(envs.action_space, Box):
        envs = VecNormalize(envs, gamma=args["gamma"])
    same = {name: args[name] for name in ("gamma", "gae_lambda", "ent_coef", "vf_coef", "max_grad_norm", "seed")}
    model = PPO(
        policy, envs, **same, device="cpu", normalize_advantage=args["norm_adv"],
        batch_size=args["num_envs"] * args["num_steps"] // args["num_minibatches"],
        n_steps=args["num_steps"], n_epochs=args["update_epochs"],
        learning_rate=lambda remaining: args["learning_rate"] * (remaining if args["anneal_lr"] else 1.0),
        clip_range=args["clip_coef"], clip_range_vf=args["clip_coef"] if args["clip_vloss"] else None,
    )  # fmt: skip
    stopwatch = Stopwatch(warm_up, seconds, args["num_steps"])
    model.env.step = stopwatch.timed(model.env.step)  # of the outermost: PPO wraps environments that show images
    hook(model, "train", after=stopwatch.end_update)
    stopwatch.watch(lambda: model.learn(args["total_timesteps"]))
    envs.close()
    return stopwatch.result(args) | {"threads": torch.get_num_threads()}


def measure_launch(script: str, env_id: str | None, arguments: str, processes: int, seconds: float) -> dict:
    """Launches the script as a user does. Returns the seconds to the first row of metrics.csv, and the peak memory
    (resident set of the largest process, in MB of 10⁶ bytes) of a run that is stopped `seconds` later."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nnodes=1", f"--nproc_per_node={processes}"]
    command = [sys.executable, *(torchrun if processes > 1 else []), str(ROOT / "cleanrl" / f"{script}.py")]
    command += typed(env_id, arguments)
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as errors:
        start = time.perf_counter()
        process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=errors)
        try:
            while not any(file.read_text().count("\n") > 1 for file in Path(folder).glob("runs/*/metrics.csv")):
                if process.poll() is not None:
                    errors.seek(0)
                    fail(f"cleanrl/{script}.py ended with status {process.returncode}: {errors.read()}")
                time.sleep(0.005)
            first_row = time.perf_counter() - start
            time.sleep(seconds)
            os.kill(process.pid, signal.SIGTERM)
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        finally:
            process.kill()
            process.wait()
    return {
        "first_row_seconds": first_row,
        "peak_mb": usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e6,
    }


def end_on_sigterm() -> None:
    """Has SIGTERM end this process by way of finally, once it has ended those that it started."""

    def end(number, frame):
        for child in multiprocessing.active_children():
            child.terminate()
        sys.exit(143)

    signal.signal(signal.SIGTERM, end)


def in_child(function, *arguments):
    """Calls the function in a fresh process, where imports, threads and environment variables are its own."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn, initializer=end_on_sigterm) as pool:
        return pool.submit(function, *arguments).result()


def names(args: Args) -> dict[str, str]:
    """What is measured of the script, in words."""
    several = f"{args.processes} processes of " if args.processes > 1 else ""
    one = "one process of " if several else ""
    measured = {"script": f"{several}{args.script}.py {args.arguments}".strip()}
    return measured | ({} if args.against is None else {"against": f"{one}{args.script}.py {args.against}".strip()})


def measure_round(args: Args) -> dict:
    """One measurement of everything, in turn."""
    result, ratios = {}, {}
    for key, name in names(args).items():
        arguments, processes = (args.arguments, args.processes) if key == "script" else (args.against, 1)
        training = (args.script, args.env_id, arguments, processes)
        result[key] = in_child(measure_script, *training, args.warm_up, args.seconds)
        print(f"{name}: {result[key]['steps_per_second']:,.0f} steps/s", file=sys.stderr)
    if args.sb3:
        arguments = result["script"]["arguments"]
        for name, (threads, workers) in SB3.items():
            if workers and not in_parallel(arguments):
                continue
            result[name] = in_child(measure_sb3, arguments, threads, workers, args.warm_up, args.seconds)
            print(f"stable-baselines3, {name}: {result[name]['steps_per_second']:,.0f} steps/s", file=sys.stderr)
    for kind, key in (("ratios", "script"), ("against_ratios", "against")):
        others = [name for name in result if name not in ("script", key)]
        if key in result and others:
            speed = result[key]["steps_per_second"]
            ratios[kind] = {name: speed / result[name]["steps_per_second"] for name in others}
    launched = (args.script, args.env_id, args.arguments, args.processes, args.seconds)
    result["launch"] = in_child(measure_launch, *launched)  # Linux counts the memory of who launches it, too
    print(f"launch to first update: {result['launch']['first_row_seconds']:.1f} s", file=sys.stderr)
    return result | ratios


def medians(rounds: list):
    """The median of each number over the rounds, in the same nested form."""
    if isinstance(rounds[0], dict):
        kept = [name for name in rounds[0] if name not in ("laps_ms", "arguments")]
        return {name: medians([one[name] for one in rounds]) for name in kept}
    return median(rounds)


def markdown_table(args: Args, result: dict, rounds: list[dict]) -> str:
    """The medians of the rounds as a table for people."""
    shown = names(args)
    faster = {kind: shown[key] for kind, key in (("ratios", "script"), ("against_ratios", "against")) if kind in result}
    shown |= {name: f"stable-baselines3, {name}" for name in SB3 if name in result}
    columns = [f"{name} is faster by" for name in faster.values()]
    header = [
        f"medians, rounds: {len(rounds)}",
        "steps/s",
        *columns,
        "ms per update",
        *PARTS,
        "first update, s",
        "peak memory, MB",
    ]
    rows = [header, ["---", *["---:"] * (len(header) - 1)]]
    for key, name in shown.items():
        cells = [name, f"{result[key]['steps_per_second']:,.0f}"]
        for kind in faster:
            ratios = [one[kind][key] for one in rounds if key in one[kind]]
            cells.append(f"{median(ratios):.2f}× ({min(ratios):.2f} to {max(ratios):.2f})" if ratios else "")
        rows.append(cells + [f"{ms:.1f}" for ms in (result[key]["ms_per_update"], *result[key]["ms"].values())])
    rows[2] += [f"{result['launch']['first_row_seconds']:.1f}", f"{result['launch']['peak_mb']:.0f}"]
    of_one = " in one process" if args.processes > 1 else ""
    rows.append([f"environments of {args.script}.py{of_one} alone", f"{result['script']['environment_limit']:,.0f}"])
    return "\n".join(f"| {' | '.join(row + [''] * (len(header) - len(row)))} |" for row in rows)


def describe_machine(script: str | None = None) -> dict:
    """Where and with what the numbers were measured, and the version of the script."""
    cpu_info = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    cpu = re.search("model name\t: (.*)", cpu_info)
    packages = [name for name in ("gymnasium", "numpy", "stable_baselines3", "torch") if importlib.util.find_spec(name)]
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "hardware": {"cpu": cpu[1] if cpu else platform.processor(), "cores": os.cpu_count()},
        "load_average": os.getloadavg()[0],  # of the minute before; what else runs slows the measurements
        "versions": {"python": platform.python_version()}
        | {name: importlib.metadata.version(name) for name in packages}
        | ({script: version((ROOT / "cleanrl" / f"{script}.py").read_text())} if script else {}),
    }


def validate(args: Args) -> None:
    """Ends the program with one line at the first option that can't work."""
    scripts = sorted(file.stem for file in (ROOT / "cleanrl").glob("*.py"))
    if args.script not in scripts:
        fail(f"--script {args.script}: unknown; cleanrl/ has {', '.join(scripts)}")
    if args.rounds < 1 or not 0 < args.seconds < 3600 or not 0 <= args.warm_up < 3600:
        fail("--rounds must be 1 or more, --seconds above 0, --warm-up 0 or more, and neither above an hour")
    for name in ("arguments", "against"):
        if not is_quoted(words := getattr(args, name) or ""):
            fail(f"--{name} {words}: has a quote without its second one; add it")
    several = "WORLD_SIZE" in (ROOT / "cleanrl" / f"{args.script}.py").read_text()
    if not 1 <= args.processes <= (64 if several else 1):
        fail(f"--processes {args.processes}: {args.script}.py takes {'1 to 64' if several else 'only one'}; change one")
    if args.sb3 and importlib.util.find_spec("stable_baselines3") is None:
        fail("stable-baselines3 is not installed; pip install stable-baselines3==2.9.2, or leave it out by --no-sb3")


def points(args: Args) -> dict[str, Args]:
    """What --vary measures, by the argument's value."""
    name, *values = args.vary
    name = name.removeprefix("--").replace("_", "-")
    if len(values) < 2 or len({*values}) < len(values) or (name == "processes" and not all(map(str.isdigit, values))):
        fail(f"--vary {' '.join(args.vary)}: needs an argument and two or more values, like num-envs 4 16 64")
    alone = replace(args, against=None, sb3=False)
    if name == "processes":
        return {value: replace(alone, processes=int(value)) for value in values}
    return {value: replace(alone, arguments=f"{args.arguments} --{name} {value}".strip()) for value in values}


def main(args: Args) -> None:
    """Measures, writes the JSON and prints the table."""
    if args.arguments is args.against is None:
        typed = {} if args.processes is None else {"processes": args.processes}
        args = replace(args, **DEFAULTS.get(args.script, {}) | typed)
    args = replace(args, arguments=args.arguments or "", sb3=args.sb3 and not args.vary)
    args = replace(args, processes=1 if args.processes is None else args.processes)
    varied = points(args) if args.vary else {}
    for one in varied.values() or [args]:
        validate(one)
    if args.vary:
        import report  # its table and pictures; here, since it needs further packages
    file = f"growth/{args.script}_{args.vary[0].removeprefix('--').replace('_', '-')}" if args.vary else ""
    output = Path(args.output or ROOT / "benchmark" / "results" / f"{file or f'throughput/{args.script}'}.json")
    if not is_writable(output):
        fail(f"--output {output}: can't be written; name a file in a folder that can")
    result, rounds = {"options": asdict(args), **describe_machine(args.script)}, []
    for number in range(args.rounds):
        print(f"round {number + 1} of {args.rounds}", file=sys.stderr)
        measured = {value: measure_round(one) for value, one in varied.items()}
        rounds.append(measured or measure_round(args))
    result |= {"medians": medians(rounds), "rounds": rounds}
    print(report.growth_table(result) if args.vary else markdown_table(args, result["medians"], rounds))
    try:
        lines = ",\n".join(f'  "{key}": {json.dumps(value)}' for key, value in result.items())
        write_whole(output, f"{{\n{lines}\n}}\n")
        if args.vary:
            report.growth_picture(result, output.with_suffix(""))
    except OSError as error:
        fail(f"--output {output}: can't be written ({error.strerror})")


if __name__ == "__main__":
    end_on_sigterm()
    try:
        main(tyro.cli(Args, description=__doc__))
    except KeyboardInterrupt:
        print("throughput.py: stopped; nothing was written", file=sys.stderr)
        raise SystemExit(130) from None
