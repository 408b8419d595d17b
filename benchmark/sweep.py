"""Runs a script on several environments and seeds. Type the same command again after a kill, and it goes on.

    python benchmark/sweep.py --command "python cleanrl/ppo.py" --env-ids CartPole-v1 Acrobot-v1 --workers 2
    python benchmark/sweep.py … --grid learning-rate=1e-3,3e-4 num-envs=4,8    every combination of them
    python benchmark/sweep.py … --grid 'env-kwargs={"gravity": -10},{"gravity": -5}'    values may be JSON
    python benchmark/sweep.py … --gpus 0 1   two runs at a time, each with a GPU of its own
    python benchmark/sweep.py … --status     what is done, on any machine that sees the run folders
    python benchmark/sweep.py … --task 3     only run 3, for job arrays: see benchmark/slurm.sh

A run is recognized by its arguments, except for what concerns only machine, speed or recording, and by the version of
its script. How it ended is in its end.json: one that is whole, or that a break in train ended, is done and skipped, and
one that diverged stays as it is. All others are resumed from their last checkpoint.
"""

import contextlib
import hashlib
import io
import itertools
import json
import math
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter, deque
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path

import filelock
import numpy as np
import tyro
from command_line import UserError, one_line_errors, print_table, with_values, words_of
from intervals import curve
from runs import (
    checkpoints,
    defined_in,
    identity,
    last_step,
    planned_steps,
    read_config,
    read_end,
    read_episodes,
    version,
)

LAST_LINES = 12  # of a failed run's log, which are shown
PYTHON = ("python", "python3")  # in a command: the one that runs this
PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])  # torchrun of this Python first


@dataclass
class Args:
    env_ids: list[str] = field(default_factory=list)  # environments
    command: str = "python cleanrl/ppo.py"  # what trains; --env-id and --seed are added to it
    grid: list[str] = field(default_factory=list)  # options to combine, as in learning-rate=1e-3,3e-4 num-envs=4,8
    num_seeds: int = 3  # runs of each environment, with each combination
    start_seed: int = 1  # seed of the first of them
    workers: int | None = None  # runs at a time; by default one, or with --gpus one for each GPU
    gpus: list[str] = field(default_factory=list)  # GPUs that the runs share out: each run sees only one of them
    threads: int | None = None  # CPU threads of a run; by default the workers share the cores
    status: bool = False  # only show what is done; exit status 0 if every run is, else 1
    left: bool = False  # only print the numbers of the runs that can still go on, for --array of sbatch
    task: int | None = None  # make only the run of this number, counted from 0


# ----------------------------------------------------------------------------------------------------- The runs to make
@dataclass
class Job:
    """A run that the sweep shall end with."""

    env_id: str
    seed: int
    point: str  # of the grid, as in learning-rate=1e-3
    start: list[str]  # the command up to the script
    options: list[str]  # what follows in it
    arguments: dict  # of the script
    digest: str  # of the arguments
    folder: Path = Path()  # where it runs: its run folder is in runs/ there
    state: str = "queued"  # or running, elsewhere (in another process), done, diverged, failed, stopped, interrupted
    note: str = ""
    gpu: str | None = None
    process: subprocess.Popen | None = None
    claim: filelock.BaseFileLock | None = None  # held while this process makes the run
    told_to_stop: bool = False

    @property
    def script(self) -> Path:
        return Path(self.start[-1])

    @property
    def name(self) -> str:
        words = [self.env_id, self.point, "seed", str(self.seed)]
        return " ".join(word for word in words if word)

    @property
    def log(self) -> Path:
        which = f"{self.digest}{version_seen(self.script)}"
        name = f"{self.env_id}__{self.arguments['exp_name']}__{self.seed}__{which}.log"
        return self.folder / "runs" / "logs" / name.replace("/", "_").replace(":", "_")

    def becomes(self, state: str, note: str = "") -> None:
        """Sets the state, and prints it if it is news."""
        if (state, note) != (self.state, self.note):
            print(f"{self.name}: {state}, {note}" if note else f"{self.name}: {state}", flush=True)
        self.state = state
        self.note = note


def split_command(command: str) -> tuple[list[str], list[str]]:
    """The words of a command up to its script, and those after it."""
    words = words_of("--command", command)
    ends = [i + 1 for i, word in enumerate(words) if word.endswith(".py")]
    if not ends:
        raise UserError(f'--command "{command}": names no script; write it like "python cleanrl/ppo.py --gamma 0.9"')
    if words[0] not in PYTHON and shutil.which(words[0], path=PATH) is None:
        hint = "begin with python, or type its full path"
        if "=" in words[0]:
            hint = "variables go before python benchmark/sweep.py; --gpus gives each run a GPU"
        raise UserError(f"--command: there is no program {words[0]}; {hint}")
    return words[: ends[0]], words[ends[0] :]


def grid_points(grid: list[str]) -> dict[str, list[str]]:
    """Every combination of the grid's values: its name and its words of a command line."""
    axes = {}
    for axis in grid:
        option, _, values = axis.partition("=")
        if not option or not values or option in axes:
            raise UserError(f"--grid {axis}: write an option and its values, once, as in learning-rate=1e-3,3e-4")
        axes[option] = grid_values(axis, values)
    points = {}
    for point in itertools.product(*axes.values()):
        name = "_".join(f"{option}={named(value)}" for option, value in zip(axes, point))
        if name in points:
            raise UserError(f"--grid: two of its points would be called {name}; leave one out")
        points[name] = []
        for option, value in zip(axes, point):
            points[name] += grid_words(option, value)
    return points


def grid_values(axis: str, text: str) -> list[str]:
    """The values of an axis, which commas separate. What begins with a brace or a bracket is JSON, with commas of its
    own."""
    values = []
    start = 0
    while start <= len(text):
        if text.startswith(("{", "["), start):
            try:
                _, end = json.JSONDecoder().raw_decode(text, start)
            except ValueError as error:
                raise UserError(f"--grid {axis}: a value in braces or brackets must be JSON ({error})") from None
        else:
            end = text.find(",", start) if "," in text[start:] else len(text)
        if end < len(text) and text[end] != ",":
            raise UserError(f"--grid {axis}: {text[end:]} follows a JSON value; write a comma between two values")
        values.append(text[start:end])
        start = end + 1
    return values


def named(value: str) -> str:
    """A value as a part of a folder's name: of JSON, its words and numbers."""
    if not value.startswith(("{", "[")):
        return value
    return "".join(char for char in value.replace(":", "-") if char.isalnum() or char in "_.,+-")


def grid_words(option: str, value: str) -> list[str]:
    """An option with its value as words of a command line. A JSON list is an option with several values."""
    if value.lower() == "true":
        return [f"--{option}"]
    if value.lower() == "false":
        return [f"--no-{option}"]
    if value.startswith("["):
        return [f"--{option}", *(str(one) for one in json.loads(value))]
    return [f"--{option}={value}"]


def option_names(words: list[str]) -> list[str]:
    return [word.partition("=")[0].replace("_", "-") for word in words if word.startswith("--")]


def read_arguments(script: Path, words: list[str]) -> dict:
    """The script's arguments with these words typed, as it reads them itself."""
    read = defined_in(script, "read_arguments")
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            arguments, _ = read(words)
    except (Exception, SystemExit):  # tyro's, or one line of the script's own; typing it shows which
        typed = shlex.join(words)
        raise UserError(f"{script.name} does not take {typed}; `python {script} {typed}` says why") from None
    return asdict(arguments)


def digest_of(arguments: dict) -> str:
    """What two run folders of one run have in common, but for the version of the script."""
    same = json.dumps(identity(arguments) | {"seed": arguments["seed"]}, sort_keys=True)
    return hashlib.sha256(same.encode()).hexdigest()[:8]


def make_jobs(args: Args, folder: Path = Path(), named: bool = True) -> list[Job]:
    """Environments × grid × seeds, with the first seed of everything first. If they are `named`, runs of a grid have
    its point in their --exp-name, and so in the names of their folders."""
    if not args.env_ids or "" in args.env_ids:
        raise UserError("name the environments, as in --env-ids CartPole-v1 Acrobot-v1")
    start, options = split_command(args.command)
    script = Path(start[-1])
    points = grid_points(args.grid)
    for words in [options, *points.values()]:
        for option in option_names(words):
            if option in ("--env-id", "--gym-id", "--seed", "--resume", "--evaluate"):
                raise UserError(f"--command and --grid: leave out {option}, which the sweep sets")
    jobs = {}
    seeds = range(args.start_seed, args.start_seed + args.num_seeds)
    for seed, env_id, point in itertools.product(seeds, args.env_ids, points):
        words = [*options, *points[point], "--env-id", env_id, "--seed", str(seed)]
        if point and named and "--exp-name" not in option_names(points[point]):
            exp_name = read_arguments(script, options)["exp_name"]
            words += ["--exp-name", f"{exp_name}_{point}"]
        arguments = read_arguments(script, words)
        batch_size = arguments["num_envs"] * arguments["num_steps"]
        if not 1 <= batch_size <= arguments["total_timesteps"] <= sys.maxsize:
            sizes = f"--num-envs * --num-steps = {batch_size}, --total-timesteps {arguments['total_timesteps']}"
            raise UserError(f"{sizes}: makes no update, or too many; choose other sizes")
        digest = digest_of(arguments)
        if digest in jobs:
            raise UserError(f"--env-ids: {env_id} is the same run twice; leave one out")
        jobs[digest] = Job(env_id, seed, point, start, words, arguments, digest, folder)
    values = [digest_of(job.arguments | {"exp_name": ""}) for job in jobs.values()]
    if len(set(values)) < len(values):
        raise UserError("--grid: two of its points are the same, such as 0.1 and 1e-1; leave one out")
    return list(jobs.values())


# --------------------------------------------------------------------------------------------- What the run folders say
@cache
def version_seen(script: Path) -> str:
    """The version of a script when this process first looked: the one that its runs are to have."""
    return version(script)


@cache  # of what never changes in a run folder; an error is not cached
def read_folder(run: Path) -> tuple[str, dict[str, str]]:
    """The digest of a run folder's arguments, and the version of each script in it. Raises OSError or ValueError if it
    is no run folder."""
    return digest_of(read_config(run)["arguments"]), {path.name: version(path) for path in run.glob("*.py")}


def matching_runs(job: Job) -> list[Path]:
    """The job's run folders, the furthest last."""
    found = []
    for run in job.folder.glob("runs/*/"):
        try:
            digest, versions = read_folder(run)
        except (OSError, ValueError):  # not a run folder, or not one yet
            continue
        if digest == job.digest and versions.get(job.script.name) == version_seen(job.script):
            found.append(run)
    return sorted(found, key=furthest)


def furthest(run: Path) -> tuple:
    """Ended runs come after others, those with a later checkpoint after others."""
    end = read_end(run)
    has_ended = end is not None and end["end"] != "stopped"
    return has_ended, last_checkpoint(run), run.stat().st_mtime


def last_checkpoint(run: Path) -> int:
    """The update of a run's last checkpoint, −1 if there is none."""
    found = checkpoints(run)
    return int(found[-1].stem) if found else -1


def is_held(lock: Path) -> bool:
    """Whether a living process holds the lock."""
    if not lock.is_file():
        return False
    try:
        with filelock.FileLock(lock, blocking=False):
            return False
    except filelock.Timeout:
        return True
    except OSError:  # a folder of others, which can only be read
        return False


def found_state(job: Job) -> tuple[str, str]:
    """The state of a job that this process isn't making, and a note, by its run folders."""
    runs = matching_runs(job)
    if not runs:
        return "queued", ""
    end = read_end(runs[-1])
    if end is not None and end["end"] == "whole":
        return "done", ""
    if end is not None and end["end"] == "break":
        return "done", f"by a break in update {end['update']}"
    if end is not None and end["end"] == "diverged":
        return "diverged", f"in update {end['update']}; {runs[-1]} stays as it is"
    for run in runs:
        if is_held(run / "lock"):
            return "elsewhere", f"a process is writing to {run}"
    if last_checkpoint(runs[-1]) >= 0:
        return "interrupted", f"can go on from update {last_checkpoint(runs[-1])}"
    return "queued", ""


def look(jobs: list[Job]) -> None:
    """Sets the states of the jobs by their folders and locks."""
    for job in jobs:
        job.state, job.note = found_state(job)
        if job.state == "elsewhere":
            job.state = "running"
        elif job.state in ("queued", "interrupted") and is_held(job.log.with_suffix(".lock")):
            job.state = "running"


def returns_at(run: Path, steps: list[float]) -> np.ndarray:
    """The mean return of the last 100 episodes that had ended by each of the steps; NaN where none had."""
    ends, returns = read_episodes(run)
    return curve(ends, returns, np.array(steps))


# ------------------------------------------------------------------------------------------------------------ The sweep
@contextlib.contextmanager
def caught_signals():
    """A list that collects SIGINT and SIGTERM; they don't end the program."""
    caught = []
    handlers = {}

    def catch(number, frame):
        caught.append(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        handlers[number] = signal.signal(number, catch)
    try:
        yield caught
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


class Sweep:
    """Makes runs. A signal in the list `stops` ends it (see caught_signals)."""

    def __init__(
        self, jobs: list[Job], workers: int, threads: int | None, stops: list[int], gpus: tuple[str, ...] = ()
    ):
        self.queue = deque(jobs)
        self.running = []
        self.workers = workers
        self.gpus = gpus
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        cores = int(os.environ.get("SLURM_CPUS_PER_TASK", cores))
        self.threads = threads or max(1, cores // workers)
        self.stops = stops
        self.edited: Path | None = None  # a script that is another version by now, so that no run of it begins

    def run(self) -> None:
        """Returns when every job is done or failed, or when the sweep was stopped."""
        with contextlib.closing(self):
            while self.running or (self.queue and not self.stops):
                self.tick()
                time.sleep(0.1 if self.running else 0.5)

    def close(self) -> None:
        """Leaves no run behind after an error."""
        for job in self.running:
            job.process.terminate()
            job.process.wait()
            job.claim.release()

    def tick(self) -> None:
        """Takes note of runs that have ended, and starts others until every worker has one; or stops all. Raises
        UserError if a script was edited, when the runs of its old version have ended."""
        for job in list(self.running):
            if job.process.poll() is not None:
                self.end(job)
            elif self.stops.count(signal.SIGINT) > 1:  # a second Ctrl-C
                job.process.kill()
            elif self.stops:
                self.stop(job)
        for _ in range(len(self.queue)):
            if self.queue and not self.stops and len(self.running) < self.workers:
                job = self.queue.popleft()
                try:
                    self.start(job)
                except OSError as error:  # such as a full disk
                    job.becomes("failed", str(error))
                    if job.claim:
                        job.claim.release()
                if job.state == "elsewhere":
                    self.queue.append(job)
        if self.edited is not None and not self.running and not self.stops:
            raise UserError(f"{self.edited} was edited; type the command again for runs of the new version", status=1)

    def start(self, job: Job) -> None:
        """Starts or resumes a run, unless it is done or alive elsewhere by now."""
        job.log.parent.mkdir(parents=True, exist_ok=True)
        job.claim = filelock.FileLock(job.log.with_suffix(".lock"), blocking=False)  # free when this process ends
        try:
            job.claim.acquire()
        except filelock.Timeout:
            job.becomes("elsewhere", "another sweep is making it")
            return
        state, note = found_state(job)
        if state in ("queued", "interrupted") and version(job.script) != version_seen(job.script):
            self.edited = job.script
            self.queue.clear()
            job.claim.release()
        elif state == "queued":
            self.start_process(job, job.start + job.options)
            job.becomes("running")
        elif state == "interrupted":
            run = matching_runs(job)[-1]
            resume = run.relative_to(job.folder)
            self.start_process(job, [*job.start, *job.options, "--resume", str(resume)])
            job.becomes("running", f"resumed from update {last_checkpoint(run)}")
        else:
            job.claim.release()
            job.becomes(state, note)

    def start_process(self, job: Job, words: list[str]) -> None:
        command = [sys.executable, *words[1:]] if words[0] in PYTHON else words
        variables = os.environ | {"PATH": PATH, "OMP_NUM_THREADS": str(self.threads)}
        if self.gpus:
            job.gpu = self.free_gpu()
            variables["CUDA_VISIBLE_DEVICES"] = job.gpu
        if sys.platform == "linux" and shutil.which("setpriv"):  # if the sweep is killed, its runs save and end
            command = ["setpriv", "--pdeathsig", "TERM", *command]
        with job.log.open("a", encoding="utf-8") as log:
            print("#", time.strftime("%Y-%m-%d %H:%M:%S"), shlex.join(words), file=log, flush=True)
            job.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=variables,
                cwd=job.folder,
                start_new_session=True,  # Ctrl-C reaches the sweep alone, which passes it on
            )
        self.running.append(job)

    def free_gpu(self) -> str:
        """The GPU that the fewest of the runs have."""
        taken = Counter(job.gpu for job in self.running)
        return min(self.gpus, key=lambda gpu: taken[gpu])

    def end(self, job: Job) -> None:
        """Decides what becomes of a job whose process has ended, by what the run recorded."""
        self.running.remove(job)
        job.claim.release()
        state, note = found_state(job)
        if state in ("done", "diverged"):
            job.becomes(state, note)
        elif self.stops:
            job.becomes("stopped", "the same command goes on")
        elif job.told_to_stop:
            job.becomes("stopped")
        else:
            status = job.process.returncode
            job.becomes("failed", f"its process ended with status {status}, and the run hasn't ended; see {job.log}")

    def stop(self, job: Job) -> None:
        """Lets a run save a checkpoint and end. A second call makes no difference."""
        if not job.told_to_stop:
            job.process.send_signal(signal.SIGINT if os.name == "posix" else signal.SIGTERM)
        job.told_to_stop = True


# ---------------------------------------------------------------------------------------------------------- The command
def count_states(jobs: list[Job]) -> str:
    return ", ".join(f"{count} {state}" for state, count in Counter(job.state for job in jobs).items())


def make_runs(jobs: list[Job], workers: int, threads: int | None = None, gpus: tuple = ()) -> int:
    """Makes the runs. Returns the exit status: 0 if every run is done, 1 if one isn't, 128 + n after the signal n."""
    with caught_signals() as stops:
        Sweep(jobs, workers, threads, stops, gpus).run()
    for job in jobs:
        if job.state in ("failed", "diverged") and job.log.is_file():
            print(f"\n{job.name}: {job.state}, {job.note}; the log ends with:", file=sys.stderr)
            for line in job.log.read_text(encoding="utf-8", errors="replace").splitlines()[-LAST_LINES:]:
                print(f"    {line}", file=sys.stderr)
    print(count_states(jobs), flush=True)
    if all(job.state == "done" for job in jobs):
        return 0
    return 128 + stops[0] if stops else 1


def print_status(jobs: list[Job]) -> None:
    """A table of the runs."""
    look(jobs)
    rows = [["environment", "options", "seed", "state", "steps", "return", ""]]
    for job in jobs:
        rows.append([job.env_id, job.point, str(job.seed), job.state, *progress(job), job.note])
    print_table(rows)
    print(count_states(jobs))


def progress(job: Job) -> list[str]:
    """How many steps a job's run has made, and its return: two cells, which are empty without a whole run folder."""
    runs = matching_runs(job)
    if not runs:
        return ["", ""]
    try:
        step = last_step(runs[-1])
        mean_return = returns_at(runs[-1], [math.inf])[0]
    except (OSError, ValueError, KeyError):
        return ["", ""]
    return [f"{step:,} ({step / planned_steps(job.arguments):.0%})", f"{mean_return:.2f}"]


def main(args: Args) -> int:
    """Returns the exit status. Raises UserError for a mistake, before anything is created."""
    for option, value in (("--num-seeds", args.num_seeds), ("--workers", args.workers), ("--threads", args.threads)):
        if value is not None and value < 1:
            raise UserError(f"{option} {value}: must be 1 or more")
    jobs = make_jobs(args)
    if args.status:
        print_status(jobs)
        return 0 if all(job.state == "done" for job in jobs) else 1
    if args.left:
        print(",".join(str(i) for i, job in enumerate(jobs) if found_state(job)[0] not in ("done", "diverged")))
        return 0
    if args.task is not None:
        if args.task not in range(len(jobs)):  # a job array may be made for a larger sweep too
            print(f"--task {args.task}: this sweep has the runs 0 to {len(jobs) - 1} only; nothing to do")
            return 0
        jobs = [jobs[args.task]]
    if args.gpus and jobs[0].arguments.get("device") == "cpu":
        raise UserError(f"--gpus: {jobs[0].script.name} runs on the CPU if --command has no --device cuda")
    workers = args.workers or max(1, len(args.gpus))
    return make_runs(jobs, workers, args.threads, tuple(args.gpus))


if __name__ == "__main__":
    with one_line_errors():
        words = with_values(sys.argv[1:], ("--command",))
        raise SystemExit(main(tyro.cli(Args, description=__doc__, args=words)))
