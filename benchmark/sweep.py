"""Runs a script on several environments and seeds, here or on a cluster, and loses nothing on the way.

    python benchmark/sweep.py --command "python cleanrl/ppo.py" --env-ids CartPole-v1 Acrobot-v1 --workers 2
    python benchmark/sweep.py … --grid learning-rate=1e-3,3e-4 num-envs=4,8      every combination of them
    python benchmark/sweep.py … --status           what the run folders say, from anywhere that sees them
    python benchmark/sweep.py … --slurm            one array job, a task a run
    python benchmark/sweep.py … --aws-batch --job-queue Q --job-definition D --folder /mnt/runs

A run is recognised by its folder: its arguments are those of the command, but for what concerns only speed or machine,
and its script has the version that it has now (shared.py says which arguments, and what a version is). If its last
checkpoint is there, it is skipped; if an earlier one is, it is resumed. Each run holds a lock on its log for as long as
any process of it lives, so two sweeps never train the same run at the same time.
"""

import ast
import contextlib
import ctypes
import fcntl
import hashlib
import io
import itertools
import json
import math
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import types
from collections import Counter, deque
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from string import Template

import tyro
from shared import checkpoints, identity, script_words, version

SWEEP = Path(__file__).resolve()
ATTEMPTS = 2  # starts of a run before it counts as failed
SLURM_GRACE = 5.0  # seconds for a run to end by the signal that it got from Slurm itself
TAIL = 12  # lines of a failed run's log that are shown


@dataclass
class Args:
    # what to run
    env_ids: list[str] = field(default_factory=list)  # environments
    command: str = "python cleanrl/ppo.py"  # what trains; --env-id and --seed are added to it
    grid: list[str] = field(default_factory=list)  # arguments to combine, as in learning-rate=1e-3,3e-4 num-envs=4,8
    num_seeds: int = 3  # runs of each environment, with each combination
    start_seed: int = 1  # seed of the first of them
    any_source: bool = False  # count runs of another version of the script too
    folder: str = "."  # folder of runs/ and logs/; for --aws-batch, where the container has the mounted or synced path
    # here
    workers: int = 1  # runs at a time
    threads: int | None = None  # CPU threads of a run; the cores are shared out if not given
    status: bool = False  # only show what the run folders say; exit status 0 if every run is done, else 1
    task: str | None = None  # do one run only: its number from 0, or the environment variable that holds the number
    # a cluster
    slurm: bool = False  # submit the runs that are not done as one Slurm array job
    aws_batch: bool = False  # submit the runs as one AWS Batch array job
    minutes: int | None = None  # time limit of a task; a Slurm task is saved, requeued and resumed at its limit
    cpus: int | None = None  # CPUs of a task
    gpus: int | None = None  # GPUs of a task
    memory: int | None = None  # memory of a task in MB
    partition: str | None = None  # Slurm partition
    concurrency: int | None = None  # Slurm tasks at a time
    job_queue: str | None = None  # AWS Batch job queue
    job_definition: str | None = None  # AWS Batch job definition, whose image holds this repository


def fail(message: str, status: int = 2):
    """Ends the program with one line on stderr. Status 2: the user can mend it. Status 1: something broke."""
    print(f"{SWEEP.name}: error: {' '.join(message.split())}", file=sys.stderr)
    raise SystemExit(status)


def parse(kind: type, words: list[str] | None, complaint: str, description: str | None = None):
    """A dataclass from words as typed (None: the command line's); what tyro says of a mistake is cut to one line."""
    try:
        with contextlib.redirect_stderr(io.StringIO()) as report:
            return tyro.cli(kind, args=words, description=description)
    except SystemExit as end:
        if not end.code:  # --help
            raise
    lines = [line.strip("│ \n") for line in report.getvalue().splitlines()[1:]]
    fail(complaint + " ".join(lines[: next((i for i, line in enumerate(lines) if line[:1] in "─╰"), None)]))


# ----------------------------------------------------------------------------------------------------- The runs to make


@dataclass
class Job:
    """A run that the sweep shall end with."""

    env_id: str
    seed: int
    point: str  # of the grid
    words: list[str]  # what starts it, less the interpreter's path
    start_of_resume: list[str]  # what resumes it, up to the name of the run folder
    arguments: dict  # as config.json has them
    last_update: int  # whose checkpoint ends the run
    script: Path
    version: str  # of the script, as it was when the run was started last
    log: Path
    state: str = "queued"  # or running, elsewhere (in a process of another sweep), done, failed, stopped
    note: str = ""
    attempts: int = 0
    process: subprocess.Popen | None = None
    told_to_stop: bool = False

    @property
    def name(self) -> str:
        return f"{self.env_id} {self.point} seed {self.seed}".replace("  ", " ")


def script_arguments(script: Path) -> type:
    """The script's dataclass `Args`, without the seconds and packages that an import of the whole script takes."""
    try:
        tree = ast.parse(script.read_text())
    except (SyntaxError, ValueError) as error:
        fail(f"--command: {script} is no Python that can be read ({error}); mend it")

    def binds(node: ast.stmt) -> set[str]:
        match node:
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                return {(alias.asname or alias.name).split(".")[0] for alias in names}
            case ast.Assign(targets=targets):
                return {target.id for target in targets if isinstance(target, ast.Name)}
            case ast.ClassDef(name="Args"):
                return {"Args"}
        return set()

    needed: set[str] = set()
    names = {"Args"}
    while names - needed:  # with what Args uses, and with what that uses
        needed |= names
        used = [node for node in tree.body if binds(node) & needed]
        names = {part.id for node in used for part in ast.walk(node) if isinstance(part, ast.Name)}
    tree.body = used
    module = types.ModuleType("script_arguments")
    module.__file__ = str(script)
    sys.modules[module.__name__] = module  # dataclass and tyro look the class's module up
    try:
        exec(compile(tree, str(script), "exec"), module.__dict__)
        return module.Args
    except Exception as error:  # the script's own code
        fail(f"--command: the class Args of {script} can't be read ({type(error).__name__}: {error}); it needs to be a "
             "dataclass that uses nothing but imports and constants of the script")  # fmt: skip


def grid_points(grid: list[str]) -> list[list[str]]:
    """Every combination of the grid's values, each as words for a script's command line."""
    axes = []
    for axis in grid:
        name, _, values = axis.partition("=")
        if not re.fullmatch(r"[\w-]+", name) or not values:
            fail(f"--grid {axis}: write an argument and its values, like learning-rate=1e-3,3e-4")
        flag, switch = name.replace("_", "-"), {"true": "", "false": "no-"}
        words = [(x, switch.get(x.lower())) for x in values.split(",")]
        axes.append([f"--{flag}={x}" if prefix is None else f"--{prefix}{flag}" for x, prefix in words])
    names = [axis.partition("=")[0].replace("_", "-") for axis in grid]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        fail(
            f"--grid {' '.join(grid)}: has {', '.join(twice)} twice; write all values in one word, like gamma=0.9,0.99"
        )
    return [list(point) for point in itertools.product(*axes)]


def make_jobs(args: Args) -> list[Job]:
    """Environments × grid × seeds in the order in which they run, the first seed of everything first."""
    try:
        words = shlex.split(args.command)
    except ValueError as error:
        fail(f"--command {args.command}: can't be split into words ({error}); mend the quotes")
    position = next((i for i, word in enumerate(words) if word.endswith(".py")), None)
    if position is None or not Path(words[position]).is_file():
        missing = "names no script that ends in .py" if position is None else f"there is no {words[position]}"
        fail(f'--command "{args.command}": {missing}; write it like "python cleanrl/ppo.py --gamma 0.9"')
    points = grid_points(args.grid)
    typed = [word.split("=")[0].replace("_", "-") for word in words + points[0]]
    if taken := {"--env-id", "--seed", "--resume", "--evaluate"} & {*typed}:
        fail(f"--command, --grid: hold {' '.join(sorted(taken))}, which the sweep sets itself; leave it out")
    if args.env_ids != list(dict.fromkeys(args.env_ids)) or not args.env_ids:
        fail(f"--env-ids {' '.join(args.env_ids)}: needs one or more environments, each of them once")
    script, kind = Path(words[position]).resolve(), script_arguments(Path(words[position]))
    if args.folder != ".":
        words[position] = str(script)  # the run's working folder is another
    jobs, seen = [], set()
    seeds = range(args.start_seed, args.start_seed + args.num_seeds)
    for seed, env_id, point in itertools.product(seeds, args.env_ids, points):
        options = [*words[position + 1 :], *point, "--env-id", env_id, "--seed", str(seed)]
        wanted = parse(kind, script_words(options), f"--command, --grid: {script.name} would not take it: ")
        try:
            arguments, name, last_update = json.loads(json.dumps(asdict(wanted))), wanted.exp_name, wanted.num_updates
        except (AttributeError, TypeError, ValueError, ZeroDivisionError) as error:
            fail(f"--command: {script.name} with {' '.join(options)} makes no run with num_updates: {error}")
        if last_update < 1:
            fail(f"--command: {wanted.total_timesteps} --total-timesteps are less than one update; use more")
        digest = hashlib.sha256(json.dumps(identity(arguments), sort_keys=True).encode()).hexdigest()[:8]
        if digest in seen:
            fail(f"--grid {' '.join(args.grid)}: {' '.join(point)} is the same run as one before it; leave it out")
        seen.add(digest)
        jobs.append(Job(
            env_id, seed, " ".join(word.removeprefix("--") for word in point), words[: position + 1] + options,
            [*words[: position + 1], "--resume"], arguments, last_update, script, version(script.read_text()),
            Path("logs", re.sub("[/:]", "_", f"{env_id}__{name}__{seed}__{digest}.log")),
        ))  # fmt: skip
    return jobs


# --------------------------------------------------------------------------------------------- What the run folders say


def last_checkpoint(run: Path) -> int:
    """The update of a run's last checkpoint, 0 if there is none."""
    return int(found[-1].stem) if (found := checkpoints(run)) else 0


class Folders:
    """The run folders below folder/runs. A configuration never changes, so each is read once."""

    def __init__(self, folder: Path, any_source: bool):
        self.folder, self.any_source, self.known = folder, any_source, {}

    def read(self, run: Path) -> tuple[dict, dict[str, str]] | None:
        """What makes the run what it is, and the version of each script in it."""
        if run not in self.known:
            try:
                arguments = identity(json.loads((run / "config.json").read_text())["arguments"])
            except (OSError, ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError):
                return None  # not a run folder, or not one yet
            versions = {path.name: version(path.read_text(errors="replace")) for path in run.glob("*.py")}
            self.known[run] = arguments, versions
        return self.known[run]

    def matching(self, job: Job, of_any_source: bool = False) -> list[Path]:
        """The job's run folders, the furthest last."""
        found, wanted = [], identity(job.arguments)
        for run in self.folder.glob("runs/*/"):
            arguments, versions = self.read(run) or (None, {})
            same_source = versions.get(job.script.name) == job.version
            if arguments == wanted and (same_source or of_any_source or self.any_source):
                found.append(run)
        return sorted(found, key=lambda run: (last_checkpoint(run), run.stat().st_mtime, run.name))

    def is_done(self, job: Job) -> bool:
        return any(last_checkpoint(run) >= job.last_update for run in self.matching(job))


def in_use(run: Path) -> bool:
    """Whether a process, perhaps one that was started by hand, holds the lock of the run folder: it is training it."""
    try:
        with (run / "lock").open() as file:
            fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except (BlockingIOError, PermissionError):  # which of the two, POSIX leaves open
        return True
    return False


def last_rows(path: Path, count: int) -> list[dict[str, str]]:
    """The last whole rows of a CSV file, without reading the rest of it."""
    try:
        with path.open("rb") as file:
            header = file.readline().decode().strip().split(",")
            start = max(file.tell() - 1, path.stat().st_size - 400 * (count + 1))
            file.seek(max(start, 0))
            rows = file.read().decode(errors="replace").split("\n")[1:-1]  # a half row, and what is being written
    except OSError:
        return []
    return [dict(zip(header, row.split(","))) for row in rows[-count:]]


def progress(run: Path) -> tuple[int, float, float | None]:
    """Step, steps per second, and mean return of the last 100 episodes (None before the first) of a run."""
    step, speed, returns = 0, 0.0, []
    with contextlib.suppress(KeyError, ValueError):  # this is for show, and scripts may have other columns
        for row in last_rows(run / "metrics.csv", 1):
            step, speed = int(row["global_step"]), float(row["charts/SPS"])
        returns = [float(row["episodic_return"]) for row in last_rows(run / "episodes.csv", 100)]
    return step, speed, sum(returns) / len(returns) if returns else None


# ------------------------------------------------------------------------------------------------------------ The sweep


def take(log: Path):
    """Opens the log and locks it. None if another process has it: a run of this job is alive somewhere.

    The lock belongs to the open file, which the run inherits as its stdout. So it is held for exactly as long as the
    run or a process of it lives, whatever becomes of the sweep.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    file = log.open("a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file


def is_taken(log: Path) -> bool:
    """Whether a process holds the lock of `take`; needs no right to write."""
    try:
        with log.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def find_program(words: list[str]) -> list[str]:
    """The command with the path of its program: `python` is the one that runs the sweep, and so are its neighbours."""
    if words[0] in ("python", "python3"):
        return [sys.executable, *words[1:]]
    if "/" in words[0]:
        return [str(Path(words[0]).absolute()), *words[1:]]  # the run's working folder can be another
    neighbour = Path(sys.executable).with_name(words[0])
    return [str(neighbour) if neighbour.is_file() else words[0], *words[1:]]


class Sweep:
    def __init__(self, jobs: list[Job], args: Args):
        self.jobs, self.args, self.folder = jobs, args, Path(args.folder)
        self.folders, self.queue, self.stops = Folders(self.folder, args.any_source), deque(jobs), []
        self.stopped_at: float | None = None
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        processes = re.search(r"--nproc[-_]per[-_]node[= ](\d+)", args.command)  # torchrun's
        self.threads = max(1, (args.threads or cores // args.workers) // (int(processes[1]) if processes else 1))
        self.libc = ctypes.CDLL(None) if sys.platform == "linux" else None

    def start(self, job: Job) -> bool:
        """Starts or resumes the run, unless it is done or alive elsewhere by now. Whether a process was started."""
        log = take(self.folder / job.log)
        if log is None:
            job.state, job.note = "elsewhere", "in a process that another call started"
            return False
        with log:
            job.version = version(job.script.read_text())  # it may have been edited since the sweep began
            runs = self.folders.matching(job)
            if runs and last_checkpoint(runs[-1]) >= job.last_update:
                job.state = "done"
                return False
            if users := [run for run in runs if in_use(run)]:
                job.state, job.note = "elsewhere", f"a process is writing to {users[0].relative_to(self.folder)}"
                return False
            resumable = [run for run in runs if last_checkpoint(run)]
            words = [*job.start_of_resume, str(resumable[-1].relative_to(self.folder))] if resumable else job.words
            log.write(f"# {datetime.now().isoformat(timespec='seconds')} {shlex.join(words)}\n")
            log.flush()
            sweep = os.getpid()

            def before_exec():
                if self.libc:  # when the sweep is killed, its runs get SIGTERM, save a checkpoint and end
                    self.libc.prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
                    if os.getppid() != sweep:
                        os._exit(143)

            threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(self.threads))
            job.process = subprocess.Popen(
                find_program(words), cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                env=os.environ | threads, preexec_fn=before_exec,
                start_new_session=True,  # Ctrl-C in the terminal reaches the sweep alone, which passes it on once
            )  # fmt: skip
        job.state, job.attempts = "running", job.attempts + 1
        job.note = f"resumed from update {last_checkpoint(resumable[-1])}" if resumable else ""
        return True

    def end(self, job: Job) -> None:
        """Decides what becomes of a job whose process has ended."""
        status, job.process = job.process.returncode, None
        if self.folders.is_done(job):  # whatever the status: a run is whole when its last checkpoint is
            job.state, job.note = "done", ""
        elif self.stops:
            job.state, job.note = "stopped", "the same command goes on"
        elif job.attempts < ATTEMPTS and status != 2:  # a mistake in the command, which stays one
            job.state, job.note = "queued", f"ended with status {status}, is tried again"
            self.queue.append(job)
        else:
            job.state, job.note = "failed", f"ended with status {status}"
            job.note += f", {job.attempts} times" * (job.attempts > 1)
            if status == 0:
                job.note += f", and left no run in {self.folder / 'runs'}"

    def stop_running(self) -> None:
        """Lets every run save a checkpoint and end. Ctrl-C once more ends them at once."""
        self.stopped_at = self.stopped_at or time.monotonic()
        for job in self.running:
            if not job.told_to_stop:
                # Slurm sends SIGTERM to every process of a step, so the run is most likely at its end soon
                if "SLURM_STEP_ID" in os.environ and self.stops and time.monotonic() - self.stopped_at < SLURM_GRACE:
                    continue
                # SIGINT, for if it did get SIGTERM already: scripts end at once on the second signal of a kind
                job.process.send_signal(signal.SIGINT)
                job.told_to_stop = True
            elif self.stops.count(signal.SIGINT) > 1:
                os.killpg(job.process.pid, signal.SIGKILL)  # torchrun's workers too

    @property
    def running(self) -> list[Job]:
        return [job for job in self.jobs if job.process]

    def run(self, show) -> int:
        """Makes the runs and calls `show` on the way. Returns the exit status: 0 if every run is done, 1 if one failed,
        128 + n after the signal n."""
        handled = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        handlers = {number: signal.signal(number, lambda n, frame: self.stops.append(n)) for number in handled}
        try:
            while self.running or (self.queue and not self.stops):
                for job in self.running:
                    if job.process.poll() is not None:
                        self.end(job)
                show(self)
                for _ in range(len(self.queue)):
                    if self.stops or len(self.running) >= self.args.workers:
                        break
                    job = self.queue.popleft()
                    if not self.start(job) and job.state == "elsewhere":
                        self.queue.append(job)  # looked at again, until it is done or free
                if self.stops:
                    self.stop_running()
                show(self)
                if self.running or self.queue:
                    time.sleep(0.1 if self.running else 1.0)
        except OSError as error:
            fail(f"{error}; what was saved is whole. When it is mended, the same command goes on", status=1)
        finally:
            self.stop_running()
            for number, handler in handlers.items():
                signal.signal(number, handler)
        show(self, last=True)
        if self.stops and any(job.state != "done" for job in self.jobs):
            return 128 + self.stops[0]
        return int(any(job.state != "done" for job in self.jobs))


# -------------------------------------------------------------------------------------------------------------- Display


def table(jobs: list[Job], folders: Folders, height: int | None = None) -> list[tuple[str, str]]:
    """The lines of a table of the runs, each with the state that it shows; those that matter most first if there is no
    room for all."""
    ranks = ["failed", "running", "elsewhere", "stopped", "interrupted", "queued", "done"]
    shown = jobs
    if height is not None and len(jobs) > height:
        shown = sorted(jobs, key=lambda job: ranks.index(job.state))[:height]
    rows = [["environment", "arguments", "seed", "state", "steps", "steps/s", "return", ""]]
    for job in shown:
        cells = ["", "", ""]
        if runs := folders.matching(job):
            newest = runs[-1] if job.state == "done" else max(runs, key=lambda run: run.stat().st_mtime)
            step, speed, mean_return = progress(newest)
            share = step / job.arguments["total_timesteps"]
            cells = [f"{step:,} ({share:.0%})", f"{speed:,.0f}", "" if mean_return is None else f"{mean_return:.1f}"]
        rows.append([job.env_id, job.point, str(job.seed), job.state, *cells, job.note])
    if not any(job.point for job in jobs):
        rows = [[row[0], *row[2:]] for row in rows]
    widths, left = [max(map(len, column)) for column in zip(*rows)], ("environment", "arguments", "state", "")
    lines = []
    for row, state in zip(rows, ["", *(job.state for job in shown)]):
        aligned = [f"{x:{'<' if name in left else '>'}{width}}" for x, name, width in zip(row, rows[0], widths)]
        lines.append(("  ".join(aligned).rstrip(), state))
    counts = Counter(job.state for job in jobs)
    return [*lines, (", ".join(f"{counts[state]} {state}" for state in reversed(ranks) if counts[state]), "")]


class Lines:
    """A line for each change of a run, for a log or a pipe."""

    def __init__(self):
        self.states = {}

    def __call__(self, sweep: Sweep, last: bool = False) -> None:
        for job in sweep.jobs:
            now = (job.state, job.note, job.attempts)
            if self.states.get(job.name, ("queued", "", 0)) != now:
                self.states[job.name] = now
                result = ""
                if job.state == "done":
                    step, speed, mean_return = progress(sweep.folders.matching(job)[-1])
                    result = f", {step:,} steps at {speed:,.0f} steps/s"
                    result += "" if mean_return is None else f", return {mean_return:.1f}"
                print(f"{job.name}: {job.state}{result}{job.note and ', '}{job.note}", flush=True)


class LiveTable:
    """The table, drawn anew in its place every half second."""

    def __init__(self):
        self.height, self.drawn = 0, -math.inf

    def __call__(self, sweep: Sweep, last: bool = False) -> None:
        if not last and time.monotonic() - self.drawn < 0.5:
            return
        columns, height = shutil.get_terminal_size()
        lines = table(sweep.jobs, sweep.folders, None if last else height - 4)
        colours = {"failed": "31", "running": "36", "done": "32"}
        shown = [f"\033[{colours.get(state, '')}m{line[:columns]}\033[m" for line, state in lines]
        print(f"\033[{self.height}F\033[J" if self.height else "", "\n".join(shown), sep="", flush=True)
        self.height, self.drawn = len(shown), time.monotonic()


def report_failures(sweep: Sweep) -> None:
    for job in sweep.jobs:
        if job.state == "failed":
            log = sweep.folder / job.log
            print(f"\n{job.name}: {job.note}; the end of {log}:", file=sys.stderr)
            for line in log.read_text(errors="replace").splitlines()[-TAIL:]:
                print(f"    {line}", file=sys.stderr)


def look(jobs: list[Job], folders: Folders) -> None:
    """Sets the states of the jobs by what their folders and locks say."""
    for job in jobs:
        runs, log = folders.matching(job), folders.folder / job.log
        if runs and last_checkpoint(runs[-1]) >= job.last_update:
            job.state = "done"
        elif is_taken(log) or any(in_use(run) for run in runs):
            job.state = "running"
        elif resumable := [run for run in runs if last_checkpoint(run)]:
            job.state, job.note = "interrupted", f"can go on from update {last_checkpoint(resumable[-1])}"
        elif log.is_file() and (lines := log.read_text(errors="replace").strip().splitlines()):
            job.note = f"ended without a checkpoint: {lines[-1]}"
        if job.state == "queued" and (others := folders.matching(job, of_any_source=True)):
            job.note = f"{others[-1].relative_to(folders.folder)} is of another version of {job.script.name}"


# ------------------------------------------------------------------------------------------------------------- Clusters

SLURM_TEMPLATE = Template("""\
#!/bin/bash
#SBATCH --job-name=$name
#SBATCH --array=$array
#SBATCH --nodes=1 --ntasks=1
#SBATCH --requeue --open-mode=append
#SBATCH --signal=TERM@120
#SBATCH --output=$output
$options
# A run that gets SIGTERM, by preemption, by scancel --signal=TERM or 120 s before its time limit, saves a checkpoint
# and ends with status 143. Requeued, the task goes on from there. A failed run is tried once more within the task.
trap : TERM
cd $directory || exit 1
srun $step $command --task SLURM_ARRAY_TASK_ID
status=$$?
if [ $$status -eq 143 ]; then
    scontrol requeue "$$SLURM_JOB_ID"
fi
exit $$status
""")


def command_line(args: Args, python: str, sweep: str, folder: str) -> list[str]:
    """The words that make the same sweep somewhere else; --task N then picks a run of it."""
    words = [python, sweep, "--env-ids", *args.env_ids, "--command", args.command]
    words += ["--num-seeds", str(args.num_seeds), "--start-seed", str(args.start_seed), "--folder", folder]
    words += ["--grid", *args.grid] if args.grid else []
    threads = args.threads or args.cpus
    return words + (["--threads", str(threads)] if threads else []) + (["--any-source"] if args.any_source else [])


def submit_to_slurm(jobs: list[Job], args: Args) -> None:
    """Writes the batch script of an array job beside the logs and submits it."""
    folder = Path(args.folder)
    open_tasks = [i for i, job in enumerate(jobs) if job.state not in ("done", "running")]
    if not open_tasks:
        print(f"all {len(jobs)} runs are done or running; nothing to submit")
        return
    concurrency = f"%{args.concurrency}" if args.concurrency else ""
    options = {"time": args.minutes, "partition": args.partition, "mem": args.memory and f"{args.memory}M"}
    options |= {"cpus-per-task": args.cpus, "gres": args.gpus and f"gpu:{args.gpus}"}
    digest = hashlib.sha256(json.dumps([job.arguments for job in jobs]).encode()).hexdigest()[:8]
    logs = (folder / "logs").resolve()
    text = SLURM_TEMPLATE.substitute(
        name=re.sub(r"[^\w-]", "-", f"sweep-{jobs[0].script.stem}"),
        array=",".join(map(str, open_tasks)) + concurrency,
        output=shlex.quote(str(logs / "slurm-%A_%a.out")),
        options="".join(f"#SBATCH --{name}={value}\n" for name, value in options.items() if value),
        directory=shlex.quote(str(Path.cwd())),
        step=f"--cpus-per-task={args.cpus}" if args.cpus else "",  # srun doesn't take it over from the job
        command=shlex.join(command_line(args, sys.executable, str(SWEEP), args.folder)),
    )
    try:
        logs.mkdir(exist_ok=True)
        (batch := logs / f"sweep_{digest}.sbatch").write_text(text)
    except OSError as error:
        fail(f"--folder {args.folder}: {error}; name a folder that can be written")
    done = subprocess.run(["sbatch", "--parsable", str(batch)], capture_output=True, text=True)
    if done.returncode:
        fail(f"sbatch does not take {batch}: {done.stderr.strip()}; mend the options that it names")
    number = done.stdout.strip().split(";")[0]
    print(
        f"{batch}\nSlurm job {number}: {len(open_tasks)} tasks; {len(jobs) - len(open_tasks)} runs are done or running"
    )


def submit_to_aws_batch(jobs: list[Job], args: Args) -> None:
    """Submits an array job of every run of the sweep; the task of a run that is done sees that and ends at once."""
    import boto3
    import botocore.exceptions

    single = len(jobs) == 1  # AWS Batch has no arrays of one
    task = "0" if single else "AWS_BATCH_JOB_ARRAY_INDEX"
    command = [*command_line(args, "python", "benchmark/sweep.py", args.folder), "--task", task]
    needs = {"VCPU": args.cpus, "MEMORY": args.memory, "GPU": args.gpus}
    resources = [{"type": kind, "value": str(value)} for kind, value in needs.items() if value]
    # A reclaimed machine and a run that was told to stop start again; a failure has been tried again within the task
    again = [{"onStatusReason": "Host EC2*", "action": "RETRY"}, {"onExitCode": "143", "action": "RETRY"}]
    request = {
        "jobName": re.sub(r"[^A-Za-z0-9_-]", "-", f"sweep-{jobs[0].script.stem}"),
        "jobQueue": args.job_queue, "jobDefinition": args.job_definition,
        "containerOverrides": {"command": command} | ({"resourceRequirements": resources} if resources else {}),
        "retryStrategy": {"attempts": 10, "evaluateOnExit": [*again, {"onReason": "*", "action": "EXIT"}]},
    }  # fmt: skip
    if not single:
        request["arrayProperties"] = {"size": len(jobs)}
    if args.minutes:
        request["timeout"] = {"attemptDurationSeconds": 60 * args.minutes}
    try:
        answer = boto3.client("batch").submit_job(**request)
    except (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError, ValueError) as error:
        fail(f"AWS Batch does not take the job: {error}")
    print(f"AWS Batch job {answer['jobId']}: {len(jobs)} tasks")


def validate(args: Args) -> None:
    """Ends the program with one line at the first argument that can't work; nothing has been created by then."""
    for name in ("num_seeds", "workers", "threads", "minutes", "cpus", "gpus", "memory", "concurrency"):
        if (value := getattr(args, name)) is not None and value < 1:
            fail(f"--{name.replace('_', '-')} {value}: must be 1 or more")
    if args.start_seed < 0:
        fail(f"--start-seed {args.start_seed}: must be 0 or more")
    if len(chosen := [name for name in ("slurm", "aws_batch", "status", "task") if getattr(args, name)]) > 1:
        fail(f"{' and '.join('--' + name.replace('_', '-') for name in chosen)}: choose one of them")
    both = ["minutes", "cpus", "gpus", "memory"]
    of_slurm, of_aws = [*both, "partition", "concurrency"], [*both, "job_queue", "job_definition"]
    place, known = "a sweep on this machine", []
    if args.slurm or args.aws_batch:
        place, known = ("--slurm", of_slurm) if args.slurm else ("--aws-batch", of_aws)
    for name in dict.fromkeys(of_slurm + of_aws):
        if name not in known and getattr(args, name) is not None:
            fail(f"--{name.replace('_', '-')}: means nothing to {place}; leave it out")
    if args.slurm and args.minutes and args.minutes < 5:
        fail(f"--minutes {args.minutes}: a Slurm task saves and stops two minutes before its limit; type 5 or more")
    if args.aws_batch:
        if args.job_queue is None or args.job_definition is None:
            fail("--aws-batch: needs --job-queue and --job-definition")
        if not args.folder.startswith("/"):
            fail(
                f"--folder {args.folder}: --aws-batch needs the absolute path of what outlives the container: /mnt/runs"
            )
        try:
            import boto3  # noqa: F401
        except ImportError:
            fail("--aws-batch: the package boto3 is not installed; pip install boto3")
    elif not Path(args.folder).is_dir():
        fail(f"--folder {args.folder}: is not a folder; make it first or name another one")
    if args.slurm and not shutil.which("sbatch"):
        fail("--slurm: there is no sbatch here; run it where Slurm's commands are installed")


def main(args: Args) -> int:
    validate(args)
    jobs = make_jobs(args)
    if args.aws_batch:
        submit_to_aws_batch(jobs, args)
        return 0
    program = find_program(jobs[0].words)[0]
    if shutil.which(program) is None:
        fail(f'--command "{args.command}": there is no program {program}; install it or write its whole path')
    if args.task is not None:
        number = args.task if args.task.isdecimal() else os.environ.get(args.task, "")
        if not number.isdecimal() or int(number) >= len(jobs):
            fail(f"--task {args.task}: needs a number from 0 to {len(jobs) - 1}, or a variable that holds one")
        jobs = [jobs[int(number)]]
    folders = Folders(Path(args.folder), args.any_source)
    if args.status or args.slurm:
        look(jobs, folders)
    if args.slurm:
        submit_to_slurm(jobs, args)
        return 0
    if args.status:
        print(*(line for line, _ in table(jobs, folders)), sep="\n")
        return int(any(job.state != "done" for job in jobs))
    sweep = Sweep(jobs, args)
    status = sweep.run(LiveTable() if sys.stdout.isatty() and args.task is None else Lines())
    report_failures(sweep)
    ended = {run for job in jobs for run in folders.matching(job) if not last_checkpoint(run) and not in_use(run)}
    for run in sorted(ended):
        print(f"{run} ended before its first checkpoint and is left as it is")
    counts = Counter(job.state for job in jobs)
    print(", ".join(f"{count} {state}" for state, count in counts.items()), flush=True)
    return status


if __name__ == "__main__":
    try:
        raise SystemExit(main(parse(Args, None, "", __doc__)))
    except KeyboardInterrupt:  # before the first run
        raise SystemExit(130) from None
    except OSError as error:
        fail(f"{error}; what was saved is whole. When it is mended, the same command goes on", status=1)
