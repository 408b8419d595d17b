"""Runs a script on several environments and seeds. Type the same command again after a kill, and it goes on.

    python benchmark/sweep.py --command "python cleanrl/ppo.py" --env-ids CartPole-v1 Acrobot-v1 --workers 2
    python benchmark/sweep.py … --grid learning-rate=1e-3,3e-4 num-envs=4,8    every combination of them
    python benchmark/sweep.py … --status     what is done, on any machine that sees the run folders
    python benchmark/sweep.py … --task 3     only run 3, for job arrays: see benchmark/slurm.sh

A run is recognized by its arguments, except for what concerns only machine, speed or recording, and by the version of
its script. With its last checkpoint it is done and skipped; from an earlier one it is resumed.
"""

import contextlib
import csv
import hashlib
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
import shared
import tyro
from shared import checkpoints, curve, identity, in_one_line, last_step, script_args, table, version, words_of

LAST_LINES = 12  # of a failed run's log, which are shown
RUNS = Path("runs")
LOGS = RUNS / "logs"
PYTHON = ("python", "python3")  # in a command: the one that runs this
PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])  # torchrun of this Python first
IN_SLURM_STEP = "SLURM_STEP_ID" in os.environ  # then Slurm sends its signals to every process, the runs included


@dataclass
class Args:
    env_ids: list[str] = field(default_factory=list)  # environments
    command: str = "python cleanrl/ppo.py"  # what trains; --env-id and --seed are added to it
    grid: list[str] = field(default_factory=list)  # options to combine, as in learning-rate=1e-3,3e-4 num-envs=4,8
    num_seeds: int = 3  # runs of each environment, with each combination
    start_seed: int = 1  # seed of the first of them
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
    arguments: dict  # of the script
    last_update: int  # whose checkpoint ends the run
    digest: str  # of the arguments
    state: str = "queued"  # or running, elsewhere (in another process), done, failed, stopped, interrupted
    note: str = ""
    process: subprocess.Popen | None = None
    claim: filelock.BaseFileLock | None = None  # held while this process makes the run
    told_to_stop: bool = False

    @property
    def script(self) -> Path:
        return Path(self.start[-1])

    @property
    def name(self) -> str:
        return " ".join([self.env_id, *self.point, "seed", str(self.seed)])

    @property
    def log(self) -> Path:
        which = f"{self.digest}{version_seen(self.script)}"
        name = f"{self.env_id}__{self.arguments['exp_name']}__{self.seed}__{which}.log"
        return LOGS / name.replace("/", "_").replace(":", "_")

    def becomes(self, state: str, note: str = "") -> None:
        """Sets the state, and prints it if it is news."""
        if (state, note) != (self.state, self.note):
            print(f"{self.name}: {', '.join(word for word in (state, note) if word)}", flush=True)
        self.state = state
        self.note = note


def split_command(command: str) -> tuple[list[str], list[str]]:
    """The words of a command up to its script, and those after it. Raises ValueError if it can't be run."""
    words = words_of("--command", command)
    ends = [i + 1 for i, word in enumerate(words) if word.endswith(".py")]
    if not ends:
        raise ValueError(f'--command "{command}": names no script; write it like "python cleanrl/ppo.py --gamma 0.9"')
    if words[0] not in PYTHON and shutil.which(words[0], path=PATH) is None:
        raise ValueError(f"--command: there is no program {words[0]}; begin with python, or type its full path")
    return words[: ends[0]], words[ends[0] :]


def grid_points(grid: list[str]) -> list[list[str]]:
    """Every combination of the grid's values, each as words of a command line. Raises ValueError if it is no grid."""
    axes = {}
    for axis in grid:
        name, _, values = axis.partition("=")
        if not name or not values or name in axes:
            raise ValueError(f"--grid {axis}: write an option and its values, once, as in learning-rate=1e-3,3e-4")
        switches = {"true": f"--{name}", "false": f"--no-{name}"}
        axes[name] = [switches.get(value.lower(), f"--{name}={value}") for value in values.split(",")]
    return [list(point) for point in itertools.product(*axes.values())]


def option_names(words: list[str]) -> list[str]:
    return [word.partition("=")[0].replace("_", "-") for word in words if word.startswith("--")]


def read_arguments(script: Path, words: list[str]) -> dict:
    """The script's arguments with these words typed. Raises ValueError if it refuses them."""
    words = [word for word in words if word not in ("--cuda", "--no-cuda")]  # as the scripts take them for --device
    kind = script_args(script)
    try:
        arguments = tyro.cli(kind, args=words, console_outputs=False)
    except (SystemExit, TypeError):  # TypeError: tyro looks for the help of a class whose module is gone
        typed = shlex.join(words)
        raise ValueError(f"{script.name} does not take {typed}; `python {script} {typed}` says why") from None
    return asdict(arguments)


def digest_of(arguments: dict) -> str:
    """What two run folders of one run have in common, but for the version of the script."""
    same = json.dumps(identity(arguments) | {"seed": arguments["seed"]}, sort_keys=True)
    return hashlib.sha256(same.encode()).hexdigest()[:8]


def make_jobs(args: Args) -> list[Job]:
    """Environments × grid × seeds, with the first seed of everything first. Raises ValueError for a user's mistake."""
    if not args.env_ids or "" in args.env_ids:
        raise ValueError("name the environments, as in --env-ids CartPole-v1 Acrobot-v1")
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
        batch_size = arguments["num_envs"] * arguments["num_steps"]
        if not 1 <= batch_size <= arguments["total_timesteps"] <= sys.maxsize:
            sizes = f"--num-envs * --num-steps = {batch_size}, --total-timesteps {arguments['total_timesteps']}"
            raise ValueError(f"{sizes}: makes no update, or too many; choose other sizes")
        last_update = int(arguments["total_timesteps"]) // batch_size
        digest = digest_of(arguments)
        if digest in jobs:
            raise ValueError(f"--env-ids and --grid: {' '.join([env_id, *point])} is the same run twice; leave one out")
        jobs[digest] = Job(env_id, seed, point, start, words, arguments, last_update, digest)
    return list(jobs.values())


# --------------------------------------------------------------------------------------------- What the run folders say
@cache
def version_seen(script: Path) -> str:
    """The version of a script when this process first looked: the one that its runs are to have."""
    return version(script)


@cache  # of what never changes in a run folder; an error is not cached
def read_folder(run: Path) -> tuple[str, dict[str, str]]:
    """The digest of a run folder's arguments, and the version of each script in it. Raises if it is no run folder."""
    config = json.loads((run / "config.json").read_text(encoding="utf-8"))
    return digest_of(shared.last_arguments(config)), {path.name: version(path) for path in run.glob("*.py")}


def matching_runs(job: Job) -> list[Path]:
    """The job's run folders, the furthest last."""
    found = []
    for run in RUNS.glob("*/"):
        try:
            digest, versions = read_folder(run)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):  # not a run folder, or not one yet
            continue
        if digest == job.digest and versions.get(job.script.name) == version_seen(job.script):
            found.append(run)
    return sorted(found, key=lambda run: (last_checkpoint(run), run.stat().st_mtime))


def last_checkpoint(run: Path) -> int:
    """The update of a run's last checkpoint, 0 if there is none."""
    found = checkpoints(run)
    return int(found[-1].stem) if found else 0


def is_done(job: Job) -> bool:
    """Whether a run folder has the last checkpoint, which a script writes when everything else is written."""
    return found_state(job)[0] == "done"


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
    users = [run for run in runs if is_held(run / "lock")]
    last = last_checkpoint(runs[-1]) if runs else 0
    if last >= job.last_update:
        return "done", ""
    if users:
        return "elsewhere", f"a process is writing to {users[0]}"
    if last:
        return "interrupted", f"can go on from update {last}"
    return "queued", ""


def look(jobs: list[Job]) -> None:
    """Sets the states of the jobs by their folders and locks."""
    for job in jobs:
        job.state, job.note = found_state(job)
        if job.state == "elsewhere" or (job.state != "done" and is_held(job.log.with_suffix(".lock"))):
            job.state = "running"


def returns_at(run: Path, steps: list[float]) -> np.ndarray:
    """The mean return of the last 100 episodes that had ended by each of the steps; NaN where none had."""
    rows = list(csv.DictReader(shared.read_log(run / "episodes.csv").splitlines()))
    ends = np.array([float(row["global_step"]) for row in rows])
    returns = np.array([float(row["episodic_return"]) for row in rows])
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

    def __init__(self, jobs: list[Job], workers: int, threads: int | None, stops: list[int]):
        self.queue = deque(jobs)
        self.running = []
        self.workers = workers
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        self.threads = threads or int(os.environ.get("SLURM_CPUS_PER_TASK", max(1, cores // workers)))
        self.stops = stops

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
        """Takes note of runs that have ended, and starts others until every worker has one; or stops all."""
        for job in list(self.running):
            if job.process.poll() is not None:
                self.end(job)
            elif self.stops.count(signal.SIGINT) > 1:  # a second Ctrl-C
                job.process.kill()
            elif self.stops and not IN_SLURM_STEP:
                self.stop(job)
        for _ in range(len(self.queue)):
            if not self.stops and len(self.running) < self.workers:
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
            job.becomes("elsewhere", "another sweep is making it")
            return
        state, note = found_state(job)
        if state in ("queued", "interrupted") and version(job.script) != version_seen(job.script):
            shared.fail(f"{job.script} was edited; type the command again for runs of the new version", status=1)
        if state == "queued":
            self.start_process(job, job.start + job.options)
            job.becomes("running")
        elif state == "interrupted":
            run = matching_runs(job)[-1]
            self.start_process(job, [*job.start, *job.options, "--resume", str(run)])
            job.becomes("running", f"resumed from update {last_checkpoint(run)}")
        else:
            job.claim.release()
            job.becomes(state, note)

    def start_process(self, job: Job, words: list[str]) -> None:
        command = [sys.executable, *words[1:]] if words[0] in PYTHON else words
        if sys.platform == "linux" and shutil.which("setpriv"):  # if the sweep is killed, its runs save and end
            command = ["setpriv", "--pdeathsig", "TERM", *command]
        with job.log.open("a", encoding="utf-8") as log:
            print("#", time.strftime("%Y-%m-%d %H:%M:%S"), shlex.join(words), file=log, flush=True)
            job.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | {"PATH": PATH, "OMP_NUM_THREADS": str(self.threads)},
                start_new_session=not IN_SLURM_STEP,  # Ctrl-C reaches the sweep alone, which passes it on
            )
        self.running.append(job)

    def end(self, job: Job) -> None:
        """Decides what becomes of a job whose process has ended."""
        self.running.remove(job)
        job.claim.release()
        if is_done(job):  # whatever the status: a run with its last checkpoint is whole
            job.becomes("done")
        elif self.stops or job.told_to_stop:
            job.becomes("stopped", "the same command goes on" if self.stops else "")
        else:
            status = job.process.returncode
            job.becomes("failed", f"ended with status {status} before its last checkpoint; see {job.log}")

    def stop(self, job: Job) -> None:
        """Lets a run save a checkpoint and end. A second call makes no difference."""
        if not job.told_to_stop:
            job.process.send_signal(signal.SIGINT if os.name == "posix" else signal.SIGTERM)
        job.told_to_stop = True


# ---------------------------------------------------------------------------------------------------------- The command
def count_states(jobs: list[Job]) -> str:
    return ", ".join(f"{count} {state}" for state, count in Counter(job.state for job in jobs).items())


def make_runs(jobs: list[Job], workers: int, threads: int | None = None) -> int:
    """Makes the runs. Returns the exit status: 0 if every run is done, 1 if one failed, 128 + n after the signal n."""
    with caught_signals() as stops:
        Sweep(jobs, workers, threads, stops).run()
    for job in jobs:
        if job.state == "failed":
            print(f"\n{job.name}: {job.note}, which ends with:", file=sys.stderr)
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
        cells = ["", ""]
        runs = matching_runs(job)
        if runs:
            with contextlib.suppress(OSError, ValueError, LookupError, TypeError):  # a damaged one has empty cells
                step = last_step(runs[-1])
                share = step / shared.planned_steps(job.arguments)
                cells = [f"{step:,} ({share:.0%})", f"{returns_at(runs[-1], [math.inf])[0]:.2f}"]
        rows.append([job.env_id, " ".join(job.point), str(job.seed), job.state, *cells, job.note])
    table(rows)
    print(count_states(jobs))


def main(args: Args) -> int:
    """Returns the exit status. Raises ValueError with one line for a mistake, before anything is created."""
    if min(args.num_seeds, args.workers, 1 if args.threads is None else args.threads, 1 + (args.task or 0)) < 1:
        raise ValueError("--num-seeds, --workers and --threads: must be 1 or more, and --task 0 or more")
    jobs = make_jobs(args)
    if args.status:
        print_status(jobs)
        return 0 if all(job.state == "done" for job in jobs) else 1
    if args.left:
        print(",".join(str(i) for i, job in enumerate(jobs) if not is_done(job)))
        return 0
    if args.task is not None:
        if args.task not in range(len(jobs)):  # a job array may be made for a larger sweep too
            print(f"--task {args.task}: this sweep has the runs 0 to {len(jobs) - 1} only; nothing to do")
            return 0
        jobs = [jobs[args.task]]
    return make_runs(jobs, args.workers, args.threads)


if __name__ == "__main__":
    with in_one_line(ValueError):
        raise SystemExit(main(tyro.cli(Args, description=__doc__)))
