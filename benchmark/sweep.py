"""Runs a script on several environments and seeds. Type the same command again after a kill, and it goes on.

    python benchmark/sweep.py --command "python cleanrl/ppo.py" --env-ids CartPole-v1 Acrobot-v1 --workers 2
    python benchmark/sweep.py … --grid learning-rate=1e-3,3e-4 num-envs=4,8    every combination of them
    python benchmark/sweep.py … --status     what is done, on any machine that sees the run folders
    python benchmark/sweep.py … --task 3     only run 3, for job arrays: see benchmark/slurm.sh

A run is recognized by its folder: its arguments are those of the command, except for what concerns only machine, speed
or recording, and its script has the version that it has now. If the last checkpoint is there, the run is done and
skipped. If an earlier one is, the run is resumed from it.
"""

import contextlib
import csv
import hashlib
import itertools
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import filelock
import tyro
from shared import checkpoints, fail, identity, planned_steps, script_args, table, version

ATTEMPTS = 2  # starts of a run before it counts as failed
LAST_LINES = 12  # of a failed run's log, which are shown
PARSING = threading.Lock()  # Python 3.11's ast.parse fails in two threads at once, and tune.py has several
RUNS = Path("runs")
LOGS = Path("runs", "logs")


@dataclass
class Args:
    # what to run
    env_ids: list[str] = field(default_factory=list)  # environments
    command: str = "python cleanrl/ppo.py"  # what trains; --env-id and --seed are added to it
    grid: list[str] = field(default_factory=list)  # options to combine, as in learning-rate=1e-3,3e-4 num-envs=4,8
    num_seeds: int = 3  # runs of each environment, with each combination
    start_seed: int = 1  # seed of the first of them
    # how
    workers: int = 1  # runs at a time
    threads: int | None = None  # CPU threads of a run; by default the workers share the cores
    status: bool = False  # only show what is done; exit status 0 if every run is, else 1
    left: bool = False  # only print the numbers of the runs that are left, for --array of sbatch
    task: int | None = None  # make only the run of this number, counted from 0


# ----------------------------------------------------------------------------------------------------- The runs to make


@dataclass
class Job:
    """A run that the sweep shall end with."""

    env_id: str
    seed: int
    point: list[str]  # options of the grid
    start: list[str]  # the command up to the script
    options: list[str]  # what follows in it
    arguments: dict  # as config.json has them
    last_update: int  # whose checkpoint ends the run
    digest: str  # of the arguments
    state: str = "queued"  # or running, elsewhere (in another process), done, failed, stopped, interrupted
    note: str = ""
    attempts: int = 0
    process: subprocess.Popen | None = None
    claim: filelock.BaseFileLock | None = None  # held while this process makes the run
    told_to_stop: bool = False

    @property
    def words(self) -> list[str]:
        return self.start + self.options

    @property
    def script(self) -> Path:
        return Path(self.start[-1])

    @property
    def name(self) -> str:
        return " ".join([self.env_id, *self.point, "seed", str(self.seed)])

    @property
    def log(self) -> Path:
        name = f"{self.env_id}__{self.arguments['exp_name']}__{self.seed}__{self.digest}.log"
        return LOGS / name.replace("/", "_").replace(":", "_")


def split_command(command: str) -> tuple[list[str], list[str]]:
    """The words of a command up to its script, and those after it. Raises ValueError if it can't be run."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ValueError(f"--command {command}: can't be split into words ({error}); check the quotes") from None
    scripts = [i for i, word in enumerate(words) if word.endswith(".py")]
    if not scripts:
        raise ValueError(f'--command "{command}": names no script; write it like "python cleanrl/ppo.py --gamma 0.9"')
    end = scripts[0] + 1
    if not Path(words[end - 1]).is_file():
        raise ValueError(f"--command: there is no file {words[end - 1]}; run this in the folder that holds it")
    find_program(words[0])
    return words[:end], words[end:]


def find_program(word: str) -> str:
    """The path of a command's program. `python` is the one that runs this, and what is installed beside it comes first.
    Raises ValueError if there is none."""
    if word in ("python", "python3"):
        return sys.executable
    found = shutil.which(word, path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
    if found:
        return found
    if Path(word).is_file():
        raise ValueError(f'--command: {word} is not executable; begin with python, as in "python {word}"')
    raise ValueError(f"--command: there is no program {word}; install it or type its full path")


def grid_points(grid: list[str]) -> list[list[str]]:
    """Every combination of the grid's values, each as words of a command line. Raises ValueError if it is no grid."""
    axes = []
    for axis in grid:
        name, _, values = axis.partition("=")
        if not name or not values:
            raise ValueError(f"--grid {axis}: write an option and its values, as in learning-rate=1e-3,3e-4")
        name = name.replace("_", "-")
        switches = {"true": f"--{name}", "false": f"--no-{name}"}
        axes.append([switches.get(value.lower(), f"--{name}={value}") for value in values.split(",")])
    return [list(point) for point in itertools.product(*axes)]


def option_names(words: list[str]) -> list[str]:
    return [word.partition("=")[0].replace("_", "-") for word in words if word.startswith("--")]


def read_arguments(script: Path, words: list[str]) -> dict:
    """The script's arguments with these words typed, as config.json has them. Raises ValueError if it refuses them."""
    words = [word for word in words if word not in ("--cuda", "--no-cuda")]  # as the scripts take them for --device
    kind = script_args(script)
    known = {f"--{one.name.replace('_', '-')}" for one in fields(kind)}
    for option in option_names(words):
        if option not in known and option.replace("--no-", "--", 1) not in known:
            raise ValueError(f"{script.name} has no option {option}; `python {script} --help` lists them")
    try:
        arguments = tyro.cli(kind, args=words, console_outputs=False)
    except (SystemExit, TypeError):  # TypeError: tyro looks for the help of a class whose module is gone
        typed = shlex.join(words)
        raise ValueError(
            f"{script.name} does not take these values: {typed}; `python {script} {typed}` says which"
        ) from None
    return json.loads(json.dumps(asdict(arguments)))


def make_jobs(args: Args) -> list[Job]:
    """Environments × grid × seeds in the order in which they run: the first seed of everything comes first. Raises
    ValueError with one line that says what to change."""
    if not args.env_ids:
        raise ValueError("name the environments, as in: python benchmark/sweep.py --env-ids CartPole-v1 Acrobot-v1")
    start, options = split_command(args.command)
    points = grid_points(args.grid)
    for option in option_names(options + points[0]):
        if option in ("--env-id", "--seed", "--resume", "--evaluate"):
            raise ValueError(f"--command and --grid: leave out {option}, which the sweep sets")
    jobs = {}
    seeds = range(args.start_seed, args.start_seed + args.num_seeds)
    for seed, env_id, point in itertools.product(seeds, args.env_ids, points):
        words = [*options, *point, "--env-id", env_id, "--seed", str(seed)]
        arguments = read_arguments(Path(start[-1]), words)
        try:
            last_update = planned_steps(arguments) // (arguments["num_envs"] * arguments["num_steps"])
        except (KeyError, ValueError, ZeroDivisionError, OverflowError) as error:
            raise ValueError(f"{start[-1]} makes no run with {shlex.join(words)} ({error!r})") from None
        if last_update < 1:
            raise ValueError(f"--total-timesteps {arguments['total_timesteps']}: is less than one update; use more")
        digest = digest_of(arguments)
        if digest in jobs:
            raise ValueError(f"--env-ids and --grid: {' '.join([env_id, *point])} is the same run twice; leave one out")
        jobs[digest] = Job(env_id, seed, point, start, words, arguments, last_update, digest)
    return list(jobs.values())


# --------------------------------------------------------------------------------------------- What the run folders say


def digest_of(arguments: dict) -> str:
    """What two run folders of one run have in common, but for the version of the script."""
    same = identity(arguments) | {"seed": arguments["seed"], "total_timesteps": int(arguments["total_timesteps"])}
    return hashlib.sha256(json.dumps(same, sort_keys=True).encode()).hexdigest()[:8]


@cache
def version_when(script: Path, modified: int) -> str:
    """The script's version; `modified`, the time of the last edit, is what the cache notices one by."""
    return version(script)


def version_now(script: Path) -> str:
    with PARSING:
        return version_when(script, script.stat().st_mtime_ns)


@cache  # of what never changes in a run folder; an error is not cached
def read_folder(run: Path) -> tuple[str, dict[str, str]]:
    """The digest of a run folder's arguments, and the version of each script in it. Raises if it is no run folder."""
    arguments = json.loads((run / "config.json").read_text(encoding="utf-8"))["arguments"]
    return digest_of(arguments), {path.name: version_now(path) for path in run.glob("*.py")}


def matching_runs(job: Job, any_version: bool = False) -> list[Path]:
    """The job's run folders, the furthest last."""
    now = version_now(job.script)
    found = []
    for run in RUNS.glob("*/"):
        try:
            digest, versions = read_folder(run)
        except (OSError, ValueError, KeyError, TypeError):  # not a run folder, or not one yet
            continue
        if digest == job.digest and (any_version or versions.get(job.script.name) == now):
            found.append(run)
    return sorted(found, key=lambda run: (last_checkpoint(run), run.stat().st_mtime))


def last_checkpoint(run: Path) -> int:
    """The update of a run's last checkpoint, 0 if there is none."""
    found = checkpoints(run)
    return int(found[-1].stem) if found else 0


def is_done(job: Job) -> bool:
    """Whether a run folder has the last checkpoint, which a script writes when everything else is written."""
    runs = matching_runs(job)
    return bool(runs) and last_checkpoint(runs[-1]) >= job.last_update


def is_held(lock: Path) -> bool:
    """Whether a living process holds the lock."""
    if not lock.is_file():
        return False
    try:
        with filelock.FileLock(lock, blocking=False):
            return False
    except filelock.Timeout:
        return True
    except OSError:  # another user's file
        return False


def last_rows(path: Path, count: int | None) -> list[dict[str, str]]:
    """The last rows of a CSV file, or all, without the one that is being written."""
    with contextlib.suppress(OSError), path.open(encoding="utf-8") as file:
        header = file.readline()
        lines = [line for line in deque(file, maxlen=count) if line.endswith("\n")]
        return list(csv.DictReader([header, *lines]))
    return []


def progress(run: Path) -> tuple[int, float, float | None]:
    """Step, steps per second, and mean return of the last 100 episodes (None before the first) of a run."""
    step, speed = 0, 0.0
    for row in last_rows(run / "metrics.csv", 2):  # the last of them may be half written
        step, speed = int(float(row["global_step"])), float(row["charts/SPS"])
    returns = [float(row["episodic_return"]) for row in last_rows(run / "episodes.csv", 100)]
    return step, speed, sum(returns) / len(returns) if returns else None


# ------------------------------------------------------------------------------------------------------------ The sweep


@contextlib.contextmanager
def caught_signals():
    """A list that collects SIGINT, SIGTERM and SIGHUP; they don't end the program."""
    caught = []
    numbers = [signal.SIGINT, signal.SIGTERM]
    if hasattr(signal, "SIGHUP"):  # not on Windows
        numbers.append(signal.SIGHUP)
    handlers = {number: signal.signal(number, lambda number, frame: caught.append(number)) for number in numbers}
    try:
        yield caught
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def share_of_cores(workers: int) -> int:
    if "SLURM_CPUS_PER_TASK" in os.environ:
        return int(os.environ["SLURM_CPUS_PER_TASK"])
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, cores // workers)


def in_slurm_step() -> bool:
    """Then Slurm sends its signals to every process, the runs included."""
    return "SLURM_STEP_ID" in os.environ


class Sweep:
    """Makes the runs of some jobs. A signal in the list `stops` ends it (see caught_signals)."""

    def __init__(self, jobs: list[Job], workers: int, threads: int | None, stops: list[int]):
        self.jobs = jobs
        self.workers = workers
        self.threads = threads or share_of_cores(workers)
        self.stops = stops
        self.queue = deque(jobs)

    @property
    def running(self) -> list[Job]:
        return [job for job in self.jobs if job.process]

    def run(self, show) -> int:
        """Makes the runs, and calls show(self) on the way. Returns the exit status: 0 if every run is done, 1 if one
        failed, 128 + n after the signal n."""
        try:
            while self.running or (self.queue and not self.stops):
                for job in self.running:
                    if job.process.poll() is not None:
                        self.end(job)
                show(self)
                if self.stops:
                    for job in self.running:
                        self.stop(job)
                else:
                    self.start_queued()
                show(self)
                time.sleep(0.1 if self.running else 0.5)
        finally:  # an error here leaves no run behind
            for job in self.running:
                job.process.terminate()
                job.process.wait()
                job.claim.release()
        show(self)
        if all(job.state == "done" for job in self.jobs):
            return 0
        return 128 + self.stops[0] if self.stops else 1

    def start_queued(self) -> None:
        """Starts runs until every worker has one. What runs elsewhere goes back into the queue."""
        for _ in range(len(self.queue)):
            if len(self.running) < self.workers:
                job = self.queue.popleft()
                self.start(job)
                if job.state == "elsewhere":
                    self.queue.append(job)

    def start(self, job: Job) -> None:
        """Starts or resumes a run, unless it is done or alive elsewhere by now."""
        LOGS.mkdir(parents=True, exist_ok=True)
        job.claim = filelock.FileLock(job.log.with_suffix(".lock"), blocking=False)  # free when this process ends
        try:
            job.claim.acquire()
        except filelock.Timeout:
            job.state, job.note = "elsewhere", "another sweep is making it"
            return
        runs = matching_runs(job)
        users = [run for run in runs if is_held(run / "lock")]
        if is_done(job):
            job.state, job.note = "done", ""
        elif users:
            job.state, job.note = "elsewhere", f"a process is writing to {users[0]}"
        elif runs and last_checkpoint(runs[-1]):
            self.start_process(job, [*job.start, "--resume", str(runs[-1])])
            job.note = f"resumed from update {last_checkpoint(runs[-1])}"
        else:
            self.start_process(job, job.words)
        if job.process is None:
            job.claim.release()

    def start_process(self, job: Job, words: list[str]) -> None:
        command = [find_program(words[0]), *words[1:]]
        if sys.platform == "linux" and shutil.which("setpriv"):  # if the sweep is killed, its runs save and end
            command = ["setpriv", "--pdeathsig", "TERM", *command]
        threads = {"OMP_NUM_THREADS": str(self.threads), "MKL_NUM_THREADS": str(self.threads)}
        with job.log.open("a", encoding="utf-8") as log:
            print("#", datetime.now().isoformat(timespec="seconds"), shlex.join(words), file=log, flush=True)
            job.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | threads,
                start_new_session=not in_slurm_step(),  # Ctrl-C reaches the sweep alone, which passes it on
            )
        job.state, job.note = "running", ""
        job.attempts += 1

    def end(self, job: Job) -> None:
        """Decides what becomes of a job whose process has ended."""
        status = job.process.returncode
        job.process = None
        job.claim.release()
        if is_done(job):  # whatever the status: a run with its last checkpoint is whole
            job.state, job.note = "done", ""
        elif self.stops or job.told_to_stop:
            job.state, job.note = "stopped", "the same command goes on"
        elif job.attempts < ATTEMPTS and status != 2:  # 2 is a mistake in the command, which stays one
            job.state, job.note = "queued", f"ended with status {status}, is tried again"
            self.queue.append(job)
        else:
            job.state, job.note = "failed", f"ended with status {status}; see {job.log}"
            if status == 0:
                job.note = f"ended without a last checkpoint in {RUNS}; see {job.log}"

    def stop(self, job: Job) -> None:
        """Lets a run save a checkpoint and end. A second Ctrl-C ends it at once."""
        if self.stops.count(signal.SIGINT) > 1:
            job.process.kill()
        elif not job.told_to_stop and not in_slurm_step():
            job.process.send_signal(signal.SIGINT if os.name == "posix" else signal.SIGTERM)
        job.told_to_stop = True


# -------------------------------------------------------------------------------------------------------------- Display


def count_states(jobs: list[Job]) -> str:
    return ", ".join(f"{count} {state}" for state, count in Counter(job.state for job in jobs).items())


def status_rows(jobs: list[Job]) -> list[list[str]]:
    """The table of the runs, with its header."""
    rows = [["environment", "options", "seed", "state", "steps", "steps/s", "return", ""]]
    for job in jobs:
        cells = ["", "", ""]
        runs = matching_runs(job)
        if runs:
            step, speed, mean_return = progress(runs[-1])
            share = step / job.arguments["total_timesteps"]
            cells = [f"{step:,} ({share:.0%})", f"{speed:,.0f}", "" if mean_return is None else f"{mean_return:.2f}"]
        rows.append([job.env_id, " ".join(job.point), str(job.seed), job.state, *cells, job.note])
    return rows


class Display:
    """Prints a line for each change of a run and, on a terminal, keeps a table below them."""

    def __init__(self, live):
        self.live = live
        self.states = {}
        self.drawn = 0.0

    def __call__(self, sweep: Sweep) -> None:
        for job in sweep.jobs:
            now = (job.state, job.note)
            if now != self.states.get(job.name, ("queued", "")):
                self.states[job.name] = now
                print(f"{job.name}: {', '.join(word for word in now if word)}", flush=True)
        if self.live and time.monotonic() - self.drawn > 1:
            from rich.table import Table

            header, *rows = status_rows(sweep.jobs)
            picture = Table(*header)
            for row in rows:
                picture.add_row(*row)
            self.live.update(picture, refresh=True)
            self.drawn = time.monotonic()


def make_runs(jobs: list[Job], args: Args) -> int:
    """Makes the runs and shows what becomes of them. Returns the exit status."""
    with contextlib.ExitStack() as stack:
        live = None
        if sys.stdout.isatty() and find_spec("rich"):
            from rich.live import Live

            live = stack.enter_context(Live(auto_refresh=False, transient=True))
        sweep = Sweep(jobs, args.workers, args.threads, stack.enter_context(caught_signals()))
        status = sweep.run(Display(live))
    for job in jobs:
        if job.state == "failed":
            print(f"\n{job.name}: {job.note}, which ends with:", file=sys.stderr)
            for line in job.log.read_text(encoding="utf-8", errors="replace").splitlines()[-LAST_LINES:]:
                print(f"    {line}", file=sys.stderr)
        for run in matching_runs(job):
            if not last_checkpoint(run):
                print(f"{run} ended before its first checkpoint and is left as it is")
    print(count_states(jobs), flush=True)
    return status


def look(jobs: list[Job]) -> None:
    """Sets the states of the jobs by their folders and locks."""
    for job in jobs:
        runs = matching_runs(job)
        others = matching_runs(job, any_version=True)
        if is_done(job):
            job.state = "done"
        elif is_held(job.log.with_suffix(".lock")) or any(is_held(run / "lock") for run in runs):
            job.state = "running"
        elif runs and last_checkpoint(runs[-1]):
            job.state, job.note = "interrupted", f"can go on from update {last_checkpoint(runs[-1])}"
        elif others and not runs:
            job.note = f"{others[-1]} is of another version of {job.script.name}"
        elif job.log.is_file():
            job.note = f"ended without a checkpoint; see {job.log}"


# ---------------------------------------------------------------------------------------------------------- The command


def main(args: Args) -> int:
    """Returns the exit status. Raises ValueError with one line for a mistake, before anything is created."""
    for name, least in {"num_seeds": 1, "workers": 1, "threads": 1, "start_seed": 0, "task": 0}.items():
        value = getattr(args, name)
        if value is not None and value < least:
            raise ValueError(f"--{name.replace('_', '-')} {value}: must be {least} or more")
    if [args.status, args.left, args.task is not None].count(True) > 1:
        raise ValueError("--status, --left and --task: choose one of them")
    if args.status and find_spec("rich") is None:
        raise ValueError("--status: draws its table with rich, which is not installed; pip install rich")
    jobs = make_jobs(args)
    if args.status:
        look(jobs)
        table(status_rows(jobs))
        print(count_states(jobs))
        return 0 if all(job.state == "done" for job in jobs) else 1
    if args.left:
        print(",".join(str(i) for i, job in enumerate(jobs) if not is_done(job)))
        return 0
    if args.task is not None:
        if args.task >= len(jobs):  # a job array may be made for a larger sweep too
            print(f"--task {args.task}: this sweep has the runs 0 to {len(jobs) - 1} only; nothing to do")
            return 0
        jobs = jobs[args.task : args.task + 1]
    return make_runs(jobs, args)


if __name__ == "__main__":
    try:
        raise SystemExit(main(tyro.cli(Args, description=__doc__)))
    except KeyboardInterrupt:  # before the first run
        raise SystemExit(130) from None
    except ValueError as error:
        fail(str(error))
    except OSError as error:
        fail(f"{error}; what was saved is whole. Once this is mended, the same command goes on", status=1)
