"""Searches a script's hyperparameters with Optuna: a trial is a run, started by the command that a user would type.

    python benchmark/tune.py --command "python cleanrl/ppo_numpy.py --total-timesteps 300000" \\
        --env-ids LunarLander-v3 --trials 60 --workers 2
    python benchmark/tune.py … --env-ids CartPole-v1 Acrobot-v1 --targets CartPole-v1=20:500 Acrobot-v1=-500:-80
    python benchmark/tune.py … --space mine.toml            instead of the script's table in spaces.toml
    python benchmark/tune.py … --storage postgresql+psycopg://user:password@host/tune        from many machines

A trial's value is the mean return of the last 100 episodes, over its environments and seeds. With several environments
each return becomes a score first: 0 at the lower of its two targets and 1 at the upper. A trial whose best value so far
is below the median of earlier trials at the same point is pruned. The same command goes on after any kill, and shares
the trials with whoever types it elsewhere. In the end the best three and the defaults run on fresh seeds, since the
best of many was lucky too. `optuna-dashboard sqlite:///runs/tune.db` shows a search in the browser.
"""

import hashlib
import json
import math
import shlex
import threading
import time
import tomllib
import warnings
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import filelock
import numpy as np
import sweep
import tyro
from shared import curve, difference_interval, fail, identity, last_step, planned_steps, table, version

try:
    import optuna
    from optuna.exceptions import ExperimentalWarning, OptunaError, UpdateFinishedTrialError
    from optuna.storages import RDBStorage, RetryHeartbeatStaleTrialCallback, fail_stale_trials
    from optuna.trial import FixedTrial, FrozenTrial, Trial, TrialState
    from sqlalchemy.exc import SQLAlchemyError
except ImportError as error:
    fail(f"{error.name} is not installed; pip install -e '.[tune]'")

warnings.simplefilter("ignore", ExperimentalWarning)  # heartbeats are experimental since 2021
SPACES = Path(__file__).with_name("spaces.toml")
POINTS = 20  # of a run, at which it can be pruned
BEST = 3  # trials that are confirmed
HOPELESS = 5  # trials after which a search ends if all have failed
RETRY = RetryHeartbeatStaleTrialCallback(inherit_intermediate_values=True)  # queues a trial again, with its values


@dataclass
class Args:
    # what to search
    env_ids: list[str] = field(default_factory=list)  # environments
    command: str = "python cleanrl/ppo_numpy.py"  # what trains; hyperparameters, --env-id and --seed are added to it
    targets: list[str] = field(default_factory=list)  # returns that score 0 and 1, as in CartPole-v1=20:500
    space: Path = SPACES  # TOML file of what is searched
    num_seeds: int = 1  # runs of each environment in a trial
    start_seed: int = 1  # seed of the first of them
    # the search
    trials: int = 60  # in all, whoever makes them; with a larger number the same command goes on
    prune: bool = True  # stop trials whose best so far is below the median of earlier ones
    storage: str = "sqlite:///runs/tune.db"  # any Optuna storage URL
    grace: int = 60  # seconds without a sign of life after which another process goes on with a trial
    confirm: int = 5  # fresh seeds on which the best three and the defaults are compared; 0 leaves it out
    # here
    workers: int = 1  # trials at a time
    threads: int | None = None  # CPU threads of a run; by default the workers share the cores


class TrialFailed(Exception):
    """A trial whose runs failed, with the reason."""


class Stopped(Exception):
    """The program was told to stop; the trial goes on when it is started again."""


# ----------------------------------------------------------------------------------------------------- What is searched


def suggest(trial: Trial | FixedTrial, name: str, spec: list | dict):
    """A value of the hyperparameter: one of the choices in a list, or a number of a range."""
    if isinstance(spec, list):
        return trial.suggest_categorical(name, spec)
    if isinstance(spec["low"], int) and isinstance(spec["high"], int):
        return trial.suggest_int(name, **spec)
    return trial.suggest_float(name, **spec)


def read_space(args: Args) -> dict[str, list | dict]:
    """The choices or the range of each hyperparameter, less those that the command types. Raises ValueError."""
    start, options = sweep.split_command(args.command)
    script = Path(start[-1])
    try:
        space = tomllib.loads(args.space.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"--space {args.space}: can't be read ({error}); name a file like {SPACES.name}") from None
    if all(isinstance(table, dict) and "low" not in table for table in space.values()):  # tables of several scripts
        names = [name for name in space if script.stem.startswith(name)]
        space = space.get(max(names, key=len, default="ppo"), {})
    for option in sweep.option_names(options):
        for name in (option.removeprefix("--"), option.removeprefix("--no-")):
            space.pop(name, None)
            space.pop(name.replace("-", "_"), None)
    if not space:
        raise ValueError(f"--space {args.space}: has nothing for {script.name} that the command leaves open")
    for name, spec in space.items():
        try:
            first = spec[0] if isinstance(spec, list) else spec["low"]
            suggest(FixedTrial({name: first}), name, spec)
        except (ValueError, TypeError, KeyError, IndexError):
            form = "write choices, [1, 2], or a range, { low = 1e-4, high = 1e-2, log = true }"
            raise ValueError(f"--space {args.space}: {name} = {spec} is neither; {form}") from None
    return space


def read_targets(args: Args) -> dict[str, tuple[float, float]]:
    """By environment the returns that score 0 and 1; for one without targets the score is the return. Raises
    ValueError."""
    if not args.targets and len(args.env_ids) == 1:
        return {args.env_ids[0]: (0.0, 1.0)}
    targets = {}
    try:
        for word in args.targets:
            env_id, _, ends = word.rpartition("=")
            low, high = [float(end) for end in ends.split(":")]
            if -math.inf < low < high < math.inf:
                targets[env_id] = low, high
    except ValueError:
        targets = {}
    if targets.keys() != set(args.env_ids):
        form = " ".join(f"{env_id}=LOW:HIGH" for env_id in args.env_ids)
        raise ValueError(f"--targets: type for each environment the returns that score 0 and 1: --targets {form}")
    return targets


def make_trial(args: Args, values: dict, num_seeds: int, start_seed: int) -> list[sweep.Job]:
    """The runs of some hyperparameters, the first seed of every environment first. Raises ValueError."""
    grid = [f"{name}={x:.6g}" if isinstance(x, float) else f"{name}={x}" for name, x in values.items()]
    seeds = {"num_seeds": num_seeds, "start_seed": start_seed}
    return sweep.make_jobs(sweep.Args(env_ids=args.env_ids, command=args.command, grid=grid, **seeds))


# ----------------------------------------------------------------------------------------------------------- The search


def returns_at(run: Path, steps: list[float]) -> np.ndarray:
    """The mean return of the last 100 episodes that had ended by each of the steps; NaN where none had."""
    episodes = sweep.last_rows(run / "episodes.csv", None)
    ends = np.array([float(row["global_step"]) for row in episodes])
    returns = np.array([float(row["episodic_return"]) for row in episodes])
    return curve(ends, returns, np.array(steps))


def result_of(job: sweep.Job) -> float:
    return float(returns_at(sweep.matching_runs(job)[-1], [math.inf])[0])


class TrialRuns:
    """The runs of a trial, made one after another, and what they report to Optuna on the way."""

    def __init__(self, tuner: "Tuner", trial: Trial, jobs: list[sweep.Job]):
        self.tuner = tuner
        self.trial = trial
        self.jobs = jobs
        self.scores = []  # of the runs that are done
        self.pruned = False
        self.last_look = 0.0
        frozen = tuner.study.get_trials(deepcopy=False)[trial.number]
        self.reported = max(frozen.intermediate_values, default=0)  # POINTS * i + k is point k of run i

    def run(self) -> float:
        """Makes the runs and returns the trial's value. Raises TrialPruned, TrialFailed or Stopped."""
        args = self.tuner.args
        for job in self.jobs:
            sweep.Sweep([job], args.workers, args.threads, self.tuner.stops).run(self.look)
            if self.tuner.stops and job.state != "done":
                raise Stopped
            if job.state == "failed":
                raise TrialFailed(f"{job.note}: {job.log.read_text(errors='replace').strip().splitlines()[-1]}")
            self.report(job)
            if self.pruned:
                raise optuna.TrialPruned
            result = result_of(job)
            if math.isnan(result):
                raise TrialFailed(f"no episode ended in {sweep.matching_runs(job)[-1]}")
            self.scores.append(self.tuner.score(job, result))
        return float(np.mean(self.scores))

    def look(self, current: sweep.Sweep) -> None:
        """Called while a run is made: reports, and stops a run that is to be pruned."""
        if not current.running or self.pruned or time.monotonic() - self.last_look < 0.5:
            return
        self.last_look = time.monotonic()
        job = current.running[0]
        self.report(job)
        if self.tuner.args.prune and self.trial.should_prune():
            self.pruned = True
            job.told_to_stop = True
            job.process.terminate()

    def report(self, job: sweep.Job) -> None:
        """Tells Optuna the mean score at every point that the run has passed, with those of the runs before it."""
        runs = sweep.matching_runs(job)
        if not runs:
            return
        total = planned_steps(job.arguments)
        before = POINTS * len(self.scores)
        points = range(self.reported - before + 1, POINTS * last_step(runs[-1]) // total + 1)
        for point, mean_return in zip(points, returns_at(runs[-1], [total * point / POINTS for point in points])):
            self.reported = before + point
            if not math.isnan(mean_return):
                self.trial.report(float(np.mean([*self.scores, self.tuner.score(job, mean_return)])), self.reported)


class Tuner:
    """Makes trials until there are enough. All that a trial needs is in the storage and in its run folders."""

    def __init__(self, args: Args, space: dict, targets: dict, study: optuna.Study, stops: list[int]):
        self.args = args
        self.space = space
        self.targets = targets
        self.study = study
        self.stops = stops
        self.parsing = threading.Lock()  # tyro is not made for threads
        self.interrupted = []  # numbers of trials that the stop of this process ended
        self.given_up = False  # whether another process went on with a trial of this one
        self.broken = None  # an error that is neither the script's nor the user's
        self.suspects = {}  # when this process saw first that a trial was lost, by the trial's number

    def score(self, job: sweep.Job, mean_return: float) -> float:
        low, high = self.targets[job.env_id]
        return (mean_return - low) / (high - low)

    def objective(self, trial: Trial) -> float:
        try:
            time.sleep(0.2)  # for the first heartbeat, which another thread writes
            trial.set_user_attr("begun", trial.number)
            if self.stops:
                raise Stopped
            values = {name: suggest(trial, name, spec) for name, spec in self.space.items()}
            with self.parsing:
                jobs = make_trial(self.args, values, self.args.num_seeds, self.args.start_seed)
            say(f"trial {trial.number}: {' '.join(jobs[0].point)}")
            value = TrialRuns(self, trial, jobs).run()
            trial.set_user_attr("begun", trial.number)  # raises if another process has given this trial up
            return value
        except optuna.TrialPruned:
            raise
        except Stopped:
            self.interrupted.append(trial.number)
            raise
        except UpdateFinishedTrialError:  # this process was silent for longer than --grace, as a laptop that slept
            self.given_up = True
            raise
        except (TrialFailed, ValueError) as error:  # ValueError: the script does not take the values
            trial.set_user_attr("error", str(error))
            raise TrialFailed(str(error)) from error
        except Exception as error:
            self.broken = error  # optimize swallows it if this is one of its last trials
            raise

    def after_trial(self, study: optuna.Study, trial: FrozenTrial) -> None:
        say(describe(trial))
        trials = counted(study)
        waiting = any(one.state == TrialState.WAITING for one in trials)
        if (len(trials) >= self.args.trials and not waiting) or is_hopeless(trials):
            study.stop()

    def run(self) -> None:
        """Returns when there are enough trials and all have ended, those of other processes too."""
        while not self.stops:
            fail_stale_trials(self.study)
            trials = counted(self.study)
            waiting = [trial for trial in trials if trial.state == TrialState.WAITING]
            count = self.args.trials - len(trials) + len(waiting)
            if count > 0:
                how = {"n_jobs": min(self.args.workers, count), "catch": TrialFailed, "callbacks": [self.after_trial]}
                try:
                    self.study.optimize(self.objective, count, **how)
                except Stopped:
                    break
                except ValueError:  # Optuna's complaint that a trial has ended already
                    if not self.given_up:
                        raise
                if self.broken:
                    raise self.broken
                trials = counted(self.study)
                if is_hopeless(trials):
                    fail(f"all {len(trials)} trials failed; the last: {trials[-1].user_attrs.get('error')}", status=1)
            elif self.find_lost(trials) or any(trial.state == TrialState.RUNNING for trial in trials):
                time.sleep(1.0)
            else:
                return
        for number in self.interrupted:  # they wait in the storage for whoever comes next
            RETRY(self.study, self.study.get_trials()[number])
        say("stopped; the same command goes on")
        raise SystemExit(128 + self.stops[0])

    def find_lost(self, trials: list[FrozenTrial]) -> bool:
        """Whether there are trials whose process was killed before the first heartbeat, or after a trial was given up
        and before its retry was there. They are retried after a while, since the process may only be slow."""
        now = time.monotonic()
        suspects = {}
        for trial in trials:
            never_begun = trial.state == TrialState.RUNNING and trial.user_attrs.get("begun") != trial.number
            given_up = trial.state == TrialState.FAIL and "error" not in trial.user_attrs
            if not never_begun and not given_up:
                continue
            suspects[trial.number] = self.suspects.get(trial.number, now)
            if now - suspects[trial.number] > self.args.grace:
                try:
                    if never_begun:
                        self.study.tell(trial.number, state=TrialState.FAIL)
                    RETRY(self.study, self.study.get_trials()[trial.number])
                except (OptunaError, ValueError):  # another process was faster
                    continue
        self.suspects = suspects
        return bool(suspects)


def counted(study: optuna.Study) -> list[FrozenTrial]:
    """The trials of a search, less those that another one goes on with."""
    trials = study.get_trials(deepcopy=False)
    continued = set()
    for trial in trials:
        continued.update(RetryHeartbeatStaleTrialCallback.retry_history(trial))
    return [trial for trial in trials if trial.number not in continued]


def is_hopeless(trials: list[FrozenTrial]) -> bool:
    ended = [trial.state for trial in trials if trial.state.is_finished()]
    return len(ended) >= HOPELESS and set(ended) == {TrialState.FAIL}


# ------------------------------------------------------------------------------------------------------ What came of it


def say(line: str) -> None:
    print(line + "\n", end="", flush=True)  # in one piece, since trials print from several threads


def describe(trial: FrozenTrial) -> str:
    """A trial that has ended, in a line."""
    words = [f"trial {trial.number}:", trial.state.name.lower().replace("fail", "failed")]
    if trial.value is not None:
        words.append(f"at {trial.value:.2f}")
    if "error" in trial.user_attrs:
        words.append(f"({trial.user_attrs['error']})")
    for name, value in trial.params.items():
        words.append(f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}")
    return " ".join(words)


def confirm(args: Args, best: list[FrozenTrial]) -> None:
    """Runs the defaults and the best trials on seeds that no trial had, and shows how they differ."""
    fresh = args.start_seed + args.num_seeds
    candidates = {"defaults": make_trial(args, {}, args.confirm, fresh)}
    for trial in best:
        candidates[f"trial {trial.number}"] = make_trial(args, trial.params, args.confirm, fresh)
    jobs = [job for candidate in candidates.values() for job in candidate]
    status = sweep.make_runs(jobs, sweep.Args(workers=args.workers, threads=args.threads))
    if status:
        raise SystemExit(status)
    rows = [["environment", "hyperparameters", "mean return", "more than the defaults", "95% interval"]]
    for env_id in args.env_ids:
        results = {}
        for name, candidate in candidates.items():
            results[name] = np.array([result_of(job) for job in candidate if job.env_id == env_id])
            difference, low, high = difference_interval(results["defaults"], results[name], paired=False)
            rows.append([env_id, name, *(f"{x:.2f}" for x in (results[name].mean(), difference))])
            rows[-1].append(f"[{low:.2f}, {high:.2f}]")
    table(rows, f"{args.confirm} fresh seeds")


# ---------------------------------------------------------------------------------------------------------- The command


class SQLiteStorage(RDBStorage):
    """SQLite locks no rows, so that two threads or processes could both take the same waiting trial; a file does it."""

    def __init__(self, path: Path, **options):
        path.parent.mkdir(parents=True, exist_ok=True)
        self.lock = filelock.FileLock(f"{path}.lock")
        super().__init__(f"sqlite:///{path}", {"connect_args": {"timeout": 60}}, **options)

    def set_trial_state_values(self, *args, **kwargs) -> bool:
        with self.lock:
            return super().set_trial_state_values(*args, **kwargs)


def open_storage(args: Args) -> RDBStorage:
    """Raises ValueError with one line if it can't be opened."""
    heartbeat = {"heartbeat_interval": max(1, args.grace // 4), "grace_period": args.grace}
    heartbeat["heartbeat_stale_trial_callback"] = RETRY
    for attempt in range(3):  # if two processes make the tables at once, one of them fails
        try:
            if args.storage.startswith("sqlite:///"):
                return SQLiteStorage(Path(args.storage.removeprefix("sqlite:///")), **heartbeat)
            return RDBStorage(args.storage, **heartbeat)
        except (SQLAlchemyError, OptunaError, ImportError, OSError, RuntimeError, ValueError) as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            time.sleep(attempt)
    raise ValueError(
        f"--storage: can't be opened ({reason}); write a URL like sqlite:///runs/tune.db or "
        "postgresql+psycopg://user:password@host/database"
    )


def main(args: Args) -> None:
    """Raises ValueError with one line for a mistake of the user."""
    for name, least in {"trials": 1, "num_seeds": 1, "workers": 1, "grace": 2, "start_seed": 0, "confirm": 0}.items():
        if getattr(args, name) < least:
            raise ValueError(f"--{name.replace('_', '-')} {getattr(args, name)}: must be {least} or more")
    if not args.env_ids:
        raise ValueError("name the environments, as in: python benchmark/tune.py --env-ids LunarLander-v3")
    job = make_trial(args, {}, args.num_seeds, args.start_seed)[0]
    space = read_space(args)
    targets = read_targets(args)
    firsts = {name: spec[0] if isinstance(spec, list) else spec["low"] for name, spec in space.items()}
    make_trial(args, firsts, args.num_seeds, args.start_seed)
    same = [identity(job.arguments) | {"env_id": None}, targets, args.num_seeds, space, version(job.script)]
    name = f"{job.script.stem}_{hashlib.sha256(json.dumps(same).encode()).hexdigest()[:8]}"
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    storage = open_storage(args)
    try:
        pruner = optuna.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=POINTS // 4)
        study = optuna.create_study(
            storage=storage,
            sampler=optuna.samplers.TPESampler(),
            pruner=pruner,
            study_name=name,
            direction="maximize",
            load_if_exists=True,
        )
        with sweep.caught_signals() as stops:
            Tuner(args, space, targets, study, stops).run()
        trials = counted(study)
    except (SQLAlchemyError, OptunaError) as error:
        fail(f"--storage: {str(error).splitlines()[0]}; once it is mended, the same command goes on", status=1)
    states = Counter(trial.state for trial in trials)
    print(", ".join(f"{count} {state.name.lower().replace('fail', 'failed')}" for state, count in states.items()))
    complete = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    best = sorted(complete, key=lambda trial: trial.value, reverse=True)[:BEST]
    if not best:
        fail("no trial was completed; the lines above say why", status=1)
    print(f"best: {describe(best[0])}")
    print(shlex.join(make_trial(args, best[0].params, 1, args.start_seed)[0].words), flush=True)
    if args.confirm:
        confirm(args, best)
    print(f"study {name} in {args.storage.rpartition('@')[2]}")


if __name__ == "__main__":
    try:
        main(tyro.cli(Args, description=__doc__))
    except KeyboardInterrupt:  # before the first trial
        raise SystemExit(130) from None
    except ValueError as error:
        fail(str(error))
    except OSError as error:
        fail(f"{error}; what was saved is whole. Once this is mended, the same command goes on", status=1)
