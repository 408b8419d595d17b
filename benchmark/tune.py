"""Searches a script's hyperparameters with Optuna: a trial is a run, started by the command that a user would type.

    python benchmark/tune.py --command "python cleanrl/ppo_numpy.py --total-timesteps 300000" \\
        --env-ids LunarLander-v3 --trials 60 --workers 2
    python benchmark/tune.py … --env-ids CartPole-v1 Acrobot-v1 --targets CartPole-v1=20:500 Acrobot-v1=-500:-80
    python benchmark/tune.py … --space mine.toml            instead of the script's table in spaces.toml
    python benchmark/tune.py … --storage postgresql+psycopg://user:password@host/tune        from many machines

A trial's value is the mean return of the last 100 episodes, over its environments and seeds. Of several environments
each return becomes a score first, 0 at the lower of its two targets and 1 at the upper. The same number on the way,
twenty times a run, prunes: a trial whose best so far is below the median of those before it, at the same point, is
stopped by SIGTERM. All that a trial needs is in the storage and in its run folders, so the same command goes on after
any kill, and whoever types it elsewhere shares the trials. In the end the best three and the defaults run on fresh
seeds, for the best of many was lucky too.
"""

import contextlib
import hashlib
import html
import io
import json
import math
import os
import shlex
import shutil
import signal
import socket
import sys
import time
import tomllib
import warnings
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

try:
    import optuna
    import plotly  # noqa: F401 (Optuna's pictures are made with it)
    from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
    from optuna.exceptions import OptunaError
    from optuna.trial import FrozenTrial, Trial, TrialState
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import SQLAlchemyError
except ImportError as missing:
    print(f"tune.py: error: {missing.name} is not installed; pip install -e '.[tune]'", file=sys.stderr)
    raise SystemExit(2) from None

import compare
import numpy as np
import report
import sweep
from shared import identity, version, write_whole
from sweep import fail, make_jobs

SPACES = Path(__file__).with_name("spaces.toml")
POINTS = 20  # of a run, at which it can be pruned
BEST = 3  # trials that are confirmed
HOPELESS = 5  # failed trials without a better one with which a search ends that has just begun
BEAT = 10.0  # seconds between two signs of life of a trial
GRACE = 60.0  # seconds without one after which another process goes on with it


@dataclass
class Args:
    # what to search
    env_ids: list[str] = field(default_factory=list)  # environments
    command: str = "python cleanrl/ppo_numpy.py"  # what trains; hyperparameters, --env-id and --seed are added to it
    targets: list[str] = field(default_factory=list)  # returns that score 0 and 1, as in CartPole-v1=20:500
    space: Path | None = None  # TOML file of what is searched; by default the script's table in benchmark/spaces.toml
    num_seeds: int = 1  # runs of each environment in a trial
    start_seed: int = 1  # seed of the first of them
    # the search
    trials: int = 60  # in all, whoever makes them; with a larger number the same command goes on
    prune: bool = True  # stop runs whose best so far is below the median of earlier trials there
    storage: str = "sqlite:///runs/tune.db"  # any Optuna storage URL
    confirm: int = 5  # fresh seeds on which the best three and the defaults are compared; 0 leaves it out
    # here
    workers: int = 1  # trials at a time
    threads: int | None = None  # CPU threads of a run; the cores are shared out if not given


# ----------------------------------------------------------------------------------------------------------- The search


def read_space(args: Args, script: Path) -> dict[str, BaseDistribution]:
    """The distribution of each hyperparameter, less those that the command types."""
    file = args.space or SPACES
    try:
        table = tomllib.loads(file.read_text())
    except (OSError, ValueError) as error:
        fail(f"--space {file}: can't be read ({error}); name a TOML file like benchmark/spaces.toml")
    if all(isinstance(spec, dict) and "low" not in spec for spec in table.values()):  # tables of several scripts
        table = table.get(max((name for name in table if script.stem.startswith(name)), key=len, default="ppo"), {})
    typed = {word.split("=")[0].replace("_", "-") for word in shlex.split(args.command)}
    typed = {word.removeprefix("--").removeprefix("no-") for word in typed}
    space: dict[str, BaseDistribution] = {}
    for name in [name for name in table if name.replace("_", "-") not in typed]:
        try:
            if isinstance(spec := table[name], list):
                space[name] = CategoricalDistribution(spec)
            else:
                whole = isinstance(spec["low"], int) and isinstance(spec["high"], int)
                space[name] = (IntDistribution if whole else FloatDistribution)(**spec)
        except (ValueError, TypeError, KeyError) as error:
            fail(f"--space {file}: {name} = {table[name]} is no list of choices and no range ({error}); write [1, 2] "
                 "or { low = 1e-4, high = 1e-2, log = true }")  # fmt: skip
    return space or fail(f"--space {file}: has nothing for {script.name} that the command leaves open; add some")


def read_targets(args: Args) -> dict[str, tuple[float, float]]:
    """By environment the returns that score 0 and 1; of a single one without targets the score is the return."""
    targets = {} if args.targets or len(args.env_ids) > 1 else {args.env_ids[0]: (0.0, 1.0)}
    for word in args.targets:
        env_id, _, ends = word.rpartition("=")
        try:
            targets[env_id] = low, high = tuple(map(float, ends.split(":")))
            if not -math.inf < low < high < math.inf:
                raise ValueError(word)
        except ValueError:
            fail(f"--targets {word}: write an environment and the returns that score 0 and 1: CartPole-v1=20:500")
    if targets.keys() != {*args.env_ids}:
        fail(
            f"--targets {' '.join(args.targets)}: of several environments each needs its own: {' '.join(args.env_ids)}"
        )
    return targets


def make_trial(args: Args, values: dict, exp_name: str = "", **seeds) -> list[sweep.Job]:
    """The runs of some hyperparameters, the first seed of every environment first."""
    grid = [f"{name}={x:.6g}" if isinstance(x, float) else f"{name}={x}" for name, x in values.items()]
    command = args.command + (f" --exp-name {exp_name}" if exp_name else "")
    seeds = {"num_seeds": args.num_seeds, "start_seed": args.start_seed} | seeds
    return make_jobs(sweep.Args(env_ids=args.env_ids, command=command, grid=grid, **seeds))


@dataclass
class Active:
    """A trial that this process is making."""

    trial: Trial
    jobs: list[sweep.Job]  # its runs, made one after another
    reported: int  # the last point that the storage has; POINTS · i + k is point k of run i
    scores: list[float] = field(default_factory=list)  # of the runs that are done
    pruned: bool = False
    beats: int = 0
    last_beat: float = 0.0


class Tuner:
    def __init__(self, args: Args, space: dict[str, BaseDistribution], study: optuna.Study, storage):
        self.args, self.space, self.targets, self.study, self.storage = args, space, read_targets(args), study, storage
        self.sweep = sweep.Sweep([], sweep.Args(command=args.command, workers=args.workers, threads=args.threads))
        self.active: list[Active] = []
        self.marks: dict[int, tuple[tuple, float]] = {}  # of others' trials: the last sign of life, when it was seen
        with contextlib.suppress(OSError):  # process ids mean something within one such place, on Linux
            self.place = f"{socket.gethostname()} {os.readlink('/proc/self/ns/pid')}"
        self.owner = f"{getattr(self, 'place', socket.gethostname())} {os.getpid()}"

    def trials(self) -> list[FrozenTrial]:
        return self.study.get_trials(deepcopy=False)

    def is_orphan(self, trial: FrozenTrial) -> bool:
        """Whether the process that made the trial is gone: it said so, or it was on this machine and isn't any more, or
        it has given no sign of life for a while, by our own clock."""
        owner = trial.user_attrs.get("owner", "unknown")
        place, _, process = owner.rpartition(" ")
        if owner in ("", self.owner) or (place == getattr(self, "place", None) and not Path("/proc", process).exists()):
            return True
        mark, now = (owner, trial.user_attrs.get("beat")), time.monotonic()
        if self.marks.get(trial.number, (None,))[0] != mark:
            self.marks[trial.number] = mark, now
        return now - self.marks[trial.number][1] > GRACE

    def take_on(self) -> bool:
        """Takes on a trial whose process is gone, or a new one, unless there are enough. Whether one was taken on."""
        mine, trials = {one.trial.number for one in self.active}, self.trials()
        for frozen in trials:
            if frozen.state == TrialState.RUNNING and frozen.number not in mine and self.is_orphan(frozen):
                trial = Trial(self.study, frozen._trial_id)
                trial.set_user_attr("owner", self.owner)
                time.sleep(1.0)  # of several processes that saw it alone, the last to write its name has it
                if self.trials()[frozen.number].user_attrs["owner"] == self.owner:
                    return self.begin(trial, "goes on", max(frozen.intermediate_values, default=0))
        if sum(frozen.state != TrialState.WAITING for frozen in trials) >= self.args.trials:
            return False
        trial = self.study.ask()
        trial.set_user_attr("owner", self.owner)
        if trial.number >= self.args.trials:  # another process asked for the last one at the same time
            self.storage.set_trial_state_values(trial._trial_id, TrialState.WAITING)
            return False
        return self.begin(trial, "starts")

    def begin(self, trial: Trial, verb: str, reported: int = 0) -> bool:
        values = {name: trial._suggest(name, x) for name, x in self.space.items()}  # those that it has, or new ones
        self.active.append(one := Active(trial, [], reported))
        try:
            with contextlib.redirect_stderr(io.StringIO()) as complaint:
                one.jobs = make_trial(self.args, values)
        except SystemExit:  # more environments and steps than --total-timesteps, say
            self.finish(one, TrialState.FAIL, error=complaint.getvalue().strip())
        self.sweep.jobs += one.jobs
        if one.jobs:
            print(f"trial {trial.number}: {verb}: {one.jobs[0].point}", flush=True)
        return True

    def score(self, job: sweep.Job, mean_return: float) -> float:
        low, high = self.targets[job.env_id]
        return (mean_return - low) / (high - low)

    def advance(self, one: Active) -> None:
        """Starts the trial's next run, or looks at the one that is running, and tells Optuna what has come of it."""
        job = one.jobs[len(one.scores)]
        if time.monotonic() - one.last_beat > BEAT:
            frozen = self.trials()[one.trial.number]
            if frozen.state != TrialState.RUNNING or frozen.user_attrs["owner"] != self.owner:
                self.active.remove(one)  # we were silent for so long that another process has gone on with it
                if job.process:
                    job.process.terminate()
                    job.process.wait()
                    job.process = None
                return None
            one.last_beat, one.beats = time.monotonic(), one.beats + 1
            one.trial.set_user_attr("beat", one.beats)
        if job.process is None:
            self.sweep.start(job)
        elif job.process.poll() is not None:
            self.sweep.end(job)
            if one.pruned and not self.sweep.stops:
                return self.finish(one, TrialState.PRUNED)
        if job.state == "failed":
            lines = (self.sweep.folder / job.log).read_text(errors="replace").strip().splitlines()
            return self.finish(one, TrialState.FAIL, error=f"{job.note}: {lines[-1]}; {job.log}")
        runs = self.sweep.folders.matching(job)
        if one.pruned or not runs:
            return None
        first, step = POINTS * len(one.scores), sweep.progress(runs[-1])[0]
        passed = POINTS if job.state == "done" else POINTS * step // job.arguments["total_timesteps"]
        if first + passed > one.reported:
            self.note(one, job, report.Run(runs[-1]), range(one.reported + 1 - first, passed + 1))
        if job.state == "done":
            one.scores.append(self.score(job, report.Run(runs[-1]).result))
        if one.scores and np.isnan(one.scores[-1]):
            self.finish(one, TrialState.FAIL, error=f"no episode ended in {runs[-1]}")
        elif len(one.scores) == len(one.jobs):
            self.finish(one, TrialState.COMPLETE, float(np.mean(one.scores)))
        return None

    def note(self, one: Active, job: sweep.Job, run: report.Run, points: range) -> None:
        """Reports the mean score at points of a run, with those of the runs before it, and prunes the trial by it."""
        for point, value in zip(points, report.curve(run.steps, run.returns, np.array(points) * run.total / POINTS)):
            one.reported = POINTS * len(one.scores) + point
            if np.isfinite(value):  # an episode has ended by then
                one.trial.report(float(np.mean([*one.scores, self.score(job, value)])), one.reported)
        if self.args.prune and job.process and one.trial.should_prune():
            one.pruned = True
            job.process.terminate()

    def finish(self, one: Active, state: TrialState, value: float | None = None, error: str = "") -> None:
        if error:
            one.trial.set_user_attr("error", error)
        self.study.tell(one.trial, value, state)
        self.active.remove(one)
        print(line(self.trials()[one.trial.number]), flush=True)
        first = [trial.state for trial in self.trials()[:HOPELESS]]
        if error and first == [TrialState.FAIL] * HOPELESS and not any(t.value is not None for t in self.trials()):
            fail(f"the first {HOPELESS} trials failed, and none was better; the last said: {error}", status=1)

    def run(self) -> None:
        """Makes trials until there are enough and all have ended, those of other processes too. A signal ends the
        program, once every run has saved a checkpoint."""
        handled, last_look = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP), 0.0
        handlers = {number: signal.signal(number, lambda n, frame: self.sweep.stops.append(n)) for number in handled}
        try:
            while not self.sweep.stops:
                while len(self.active) < self.args.workers and time.monotonic() - last_look > 1.0:
                    if not self.take_on():
                        last_look = time.monotonic()
                        if not self.active and all(trial.state != TrialState.RUNNING for trial in self.trials()):
                            return
                for one in [*self.active]:
                    self.advance(one)
                time.sleep(0.2)
            print("stopping; the same command goes on", flush=True)
        finally:
            while self.sweep.running:  # each saves a checkpoint and ends; Ctrl-C once more ends them at once
                self.sweep.stop_running()
                for job in self.sweep.running:
                    if job.process.poll() is not None:
                        job.process = None
                time.sleep(0.05)
            for one in self.active:
                with contextlib.suppress(SQLAlchemyError, OptunaError):  # the reason why we are here, perhaps
                    one.trial.set_user_attr("owner", "")
            for number, handler in handlers.items():
                signal.signal(number, handler)
        raise SystemExit(128 + self.sweep.stops[0])


# ------------------------------------------------------------------------------------------------------ What came of it


def line(trial: FrozenTrial) -> str:
    """A trial that has ended, for people."""
    values = ", ".join(f"{name} {x:.4g}" if isinstance(x, float) else f"{name} {x}" for name, x in trial.params.items())
    result = "failed" if trial.value is None else f"{trial.value:.2f}"
    result += " when it was pruned" * (trial.state == TrialState.PRUNED)
    error = f" ({trial.user_attrs['error']})" if "error" in trial.user_attrs else ""
    return f"trial {trial.number}: {result}{error}: {values}"


def write_page(study: optuna.Study, best: list[str], tables: list[str], path: Path) -> None:
    """One page that needs nothing else: the best command lines, Optuna's pictures, the confirmation, every trial."""
    parts = [f"<!doctype html><meta charset=utf-8><title>{study.study_name}</title><h1>{study.study_name}</h1>"]
    for kind in ("optimization_history", "param_importances", "parallel_coordinate"):
        try:
            with warnings.catch_warnings(action="ignore"):  # the same reason for nothing to see, once more
                picture = getattr(optuna.visualization, f"plot_{kind}")(study)
            library = not any("Plotly.newPlot" in part for part in parts)  # in the page once
            parts.append(picture.to_html(full_html=False, include_plotlyjs=library, default_height="480px"))
        except (ValueError, RuntimeError, ZeroDivisionError) as error:  # too few trials for it
            parts.append(f"<p>{kind}: {html.escape(str(error))}</p>")
    ended = sorted((x for x in study.trials if x.state.is_finished()), key=lambda x: (x.state.value, -(x.value or 0)))
    for text in ["\n".join(best), *tables, "\n".join(map(line, ended))]:
        parts.append(f"<pre>{html.escape(text)}</pre>")
    write_whole(path, "\n".join(parts))


def confirm(args: Args, name: str, best: list[FrozenTrial]) -> list[str]:
    """Runs the defaults and the best trials on seeds that no trial had. Returns compare.py's tables."""
    candidates = {f"{name}_defaults": {}}
    for trial in best:  # with another storage, or after it was deleted, the same number may be another trial
        digest = hashlib.sha256(json.dumps(trial.params, sort_keys=True).encode()).hexdigest()[:6]
        candidates[f"{name}_trial{trial.number}_{digest}"] = trial.params
    seeds = {"num_seeds": args.confirm, "start_seed": args.start_seed + args.num_seeds}
    jobs = [job for exp_name, values in candidates.items() for job in make_trial(args, values, exp_name, **seeds)]
    runs = sweep.Sweep(jobs, sweep.Args(command=args.command, workers=args.workers, threads=args.threads))
    if status := runs.run(sweep.Lines()):
        sweep.report_failures(runs)
        raise SystemExit(status)
    defaults, *others = candidates
    for exp_name in others:
        compare.main(compare.Args(f"runs/*__{defaults}__*", f"runs/*__{exp_name}__*", output=Path("runs", exp_name)))
    return [Path("runs", f"{exp_name}.md").read_text() for exp_name in others]


# ---------------------------------------------------------------------------------------------------------- The command


def open_storage(url: str) -> optuna.storages.RDBStorage:
    try:
        local = make_url(url).get_backend_name() == "sqlite"
        if local:
            Path(make_url(url).database or "").parent.mkdir(parents=True, exist_ok=True)
        for last in (False, False, True):
            try:
                return optuna.storages.RDBStorage(url, {"connect_args": {"timeout": 60}} if local else None)
            except SQLAlchemyError:  # of two processes that make the tables at once, one fails
                if last:
                    raise
                time.sleep(1.0)
    except (SQLAlchemyError, OptunaError, ImportError, OSError, RuntimeError, ValueError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        fail(f"--storage: can't be opened ({reason}); write a URL like sqlite:///runs/tune.db or "
             "postgresql+psycopg://user:password@host/database")  # fmt: skip


def main(args: Args) -> None:
    for name, least in {"trials": 1, "num_seeds": 1, "workers": 1, "start_seed": 0, "confirm": 0}.items():
        if getattr(args, name) < least:
            fail(f"--{name.replace('_', '-')} {getattr(args, name)}: must be {least} or more")
    job = make_trial(args, {})[0]  # complains about the command and the environments
    targets, space = read_targets(args), read_space(args, job.script)
    make_trial(args, {name: x.choices[0] if hasattr(x, "choices") else x.low for name, x in space.items()})
    if shutil.which(program := sweep.find_program(job.words)[0]) is None:
        fail(f'--command "{args.command}": there is no program {program}; install it or write its whole path')
    distributions = {name: optuna.distributions.distribution_to_json(x) for name, x in space.items()}
    same = [identity(job.arguments) | {"env_id": None}, targets, args.num_seeds, version(job.script.read_text())]
    name = f"{job.script.stem}_{hashlib.sha256(json.dumps([*same, distributions]).encode()).hexdigest()[:8]}"
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    storage = open_storage(args.storage)
    sampler = optuna.samplers.TPESampler()
    pruner = optuna.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=POINTS // 4)
    how = {"sampler": sampler, "pruner": pruner, "direction": "maximize", "load_if_exists": True}
    try:
        study = optuna.create_study(storage=storage, study_name=name, **how)
        Tuner(args, space, study, storage).run()
        trials = [trial for trial in study.trials if trial.state.is_finished()]
    except (SQLAlchemyError, OptunaError) as error:
        fail(f"--storage: {str(error).splitlines()[0]}; when it is mended, the same command goes on", status=1)
    for trial in trials:
        if trial.state == TrialState.FAIL:
            print(line(trial))
    counts = Counter(trial.state.name.lower().replace("fail", "failed") for trial in trials)
    print(", ".join(f"{count} {state}" for state, count in counts.items()))
    done = sorted((t for t in trials if t.state == TrialState.COMPLETE), key=lambda t: t.value, reverse=True)
    if not done:
        fail("no trial was completed; the lines above and logs/ say why", status=1)
    best = [shlex.join(job.words) for job in make_trial(args, done[0].params, num_seeds=1)]
    print(f"best: {line(done[0])}", *best, sep="\n", flush=True)
    (page := Path("runs", f"{name}.html")).parent.mkdir(exist_ok=True)
    write_page(study, best, [], page)
    if args.confirm:
        write_page(study, best, confirm(args, name, done[:BEST]), page)
    print(f"page: {page}")


if __name__ == "__main__":
    sweep.SWEEP, report.TOOL = Path(__file__), Path(__file__).name  # which stands in the error messages
    try:
        main(sweep.parse(Args, None, "", __doc__))
    except KeyboardInterrupt:  # before the first trial
        raise SystemExit(130) from None
    except OSError as error:
        fail(f"{error}; what was saved is whole. When it is mended, the same command goes on", status=1)
