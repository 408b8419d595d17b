"""Searches a script's hyperparameters with Optuna: a trial is a run, started by the command that a user would type.

    python benchmark/tune.py --command "python cleanrl/ppo_numpy.py --total-timesteps 300000" \\
        --env-ids LunarLander-v3 --trials 60 --workers 2
    python benchmark/tune.py … --env-ids CartPole-v1 Acrobot-v1 --targets CartPole-v1=20:500 Acrobot-v1=-500:-80

A trial's value is the mean return of the last 100 episodes, over its environments and seeds. With several environments
each return becomes a score first: 0 at the lower of its two targets and 1 at the upper. A trial whose best value so far
is below the median of earlier trials at the same point is pruned. Type the same command again after any kill: the
search is in runs/tune.db, and the runs of its open trials are recognized and resumed. In the end the best three and the
defaults run on fresh seeds, since the best of many was lucky too. `optuna-dashboard sqlite:///runs/tune.db` shows a
search in the browser. The runs' names end in _tune, which keeps them apart in reports.
"""

import contextlib
import hashlib
import json
import math
import shlex
import sys
import time
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

import filelock
import numpy as np
import sweep
import tyro
from command_line import UserError, one_line_errors, print_table, with_values
from report import variant_cells
from runs import Run, find_runs, identity, last_step, planned_steps

with one_line_errors():
    import optuna
    from optuna import distributions
    from optuna.trial import FrozenTrial, Trial, TrialState

SPACES = Path(__file__).with_name("spaces.toml")
FOLDER = Path("runs")  # of the search's database, too
POINTS = 20  # of a run, at which it can be pruned


@dataclass
class Args:
    env_ids: list[str] = field(default_factory=list)  # environments
    command: str = "python cleanrl/ppo_numpy.py"  # what trains; hyperparameters, --env-id and --seed are added to it
    targets: list[str] = field(default_factory=list)  # returns that score 0 and 1, as in CartPole-v1=20:500
    space: Path = SPACES  # what is searched
    num_seeds: int = 1  # runs of each environment in a trial
    trials: int = 60  # in all; with a larger number the same command goes on
    workers: int = 1  # trials at a time
    confirm: int = 5  # fresh seeds on which the best three and the defaults are compared; 0 leaves it out


# ----------------------------------------------------------------------------------------------------- What is searched
def distribution(name: str, spec: list | dict) -> distributions.BaseDistribution:
    """What a hyperparameter is drawn from: the choices in a list, or a range."""
    try:
        if isinstance(spec, list):
            return distributions.CategoricalDistribution(spec)
        if isinstance(spec["low"], int) and isinstance(spec["high"], int):
            return distributions.IntDistribution(**spec)
        return distributions.FloatDistribution(**spec)
    except (ValueError, TypeError, KeyError):
        raise UserError(f"--space: {name} = {spec}; write choices, [1, 2], or {{ low = 1, high = 2 }}") from None


def read_space(args: Args, job: sweep.Job) -> dict[str, distributions.BaseDistribution]:
    """What each hyperparameter is drawn from, less those that the command types."""
    try:
        space = tomllib.loads(args.space.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"--space {args.space}: {error}; see benchmark/spaces.toml") from None
    if all(isinstance(spec, dict) and "low" not in spec for spec in space.values()):  # tables of several scripts
        names = [name for name in space if job.script.stem.startswith(name)]
        space = space.get(max(names, key=len, default="ppo"), {})
    options = [name.removeprefix("--").removeprefix("no-") for name in sweep.option_names(job.options)]
    left = {name: distribution(name, x) for name, x in space.items() if name.replace("_", "-") not in options}
    if not left:
        raise UserError(f"--space {args.space}: has nothing for {job.script.name} that the command leaves open")
    firsts = {name: getattr(x, "choices", [getattr(x, "low", None)])[0] for name, x in left.items()}
    make_jobs(args, firsts, 1, 1)  # raises if the script has no such option
    return left


def read_targets(args: Args) -> dict[str, tuple[float, float]]:
    """By environment the returns that score 0 and 1; of a single one the score is the return."""
    if not args.targets and len(args.env_ids) == 1:
        return {args.env_ids[0]: (0.0, 1.0)}
    targets = {}
    with contextlib.suppress(ValueError):
        for word in args.targets:
            env_id, _, ends = word.rpartition("=")
            low, high = [float(end) for end in ends.split(":")]
            if -math.inf < low < high < math.inf:
                targets[env_id] = low, high
    if targets.keys() != set(args.env_ids):
        form = " ".join(f"{env_id}=LOW:HIGH" for env_id in args.env_ids) + "; LOW is below HIGH"
        raise UserError(f"--targets: type for each environment the returns that score 0 and 1: --targets {form}")
    return targets


def typed(values: dict) -> list[str]:
    """Hyperparameters as words of the command line's --grid."""
    return [f"{name}={x:.6g}" if isinstance(x, float) else f"{name}={x}" for name, x in values.items()]


def make_jobs(args: Args, values: dict, start_seed: int, num_seeds: int) -> list[sweep.Job]:
    """The runs of some hyperparameters, the first seed of every environment first."""
    start, options = sweep.split_command(args.command)
    words = [*start, *options]
    if "--exp-name" not in sweep.option_names(options):
        words += ["--exp-name", f"{Path(start[-1]).stem}_tune"]
    one = sweep.Args(args.env_ids, shlex.join(words), typed(values), num_seeds, start_seed)
    return sweep.make_jobs(one, named=False)


# ----------------------------------------------------------------------------------------------------------- The search
def counted(study: optuna.Study) -> list[FrozenTrial]:
    """The trials of a search, without those that a killed process left open: others make their runs."""
    trials = study.get_trials(deepcopy=False)
    return [trial for trial in trials if trial.state != TrialState.FAIL or "error" in trial.user_attrs]


@dataclass
class ActiveTrial:
    """A trial that is being made, one run after another."""

    trial: Trial
    jobs: list[sweep.Job]
    scores: list[float] = field(default_factory=list)  # of the runs that are done
    reported: int = 0  # the last point that Optuna knows: POINTS * i + k is point k of run i


@dataclass
class Search:
    """Makes trials until there are enough. All that a trial needs is in the study and in its run folders."""

    args: Args
    space: dict[str, distributions.BaseDistribution]
    targets: dict[str, tuple[float, float]]
    study: optuna.Study
    runs: sweep.Sweep
    active: list[ActiveTrial] = field(default_factory=list)

    def run(self) -> None:
        """Returns when there are enough trials and all have ended."""
        for trial in self.study.get_trials(states=[TrialState.RUNNING]):  # a killed process left them open
            self.study.tell(trial.number, state=TrialState.FAIL)
            self.study.enqueue_trial(trial.params)  # the runs are recognized and resumed
        with contextlib.closing(self.runs):
            while self.runs.running or not self.runs.stops:
                if not self.runs.stops:
                    for one in list(self.active):
                        self.advance(one)
                    while len(self.active) < self.args.workers and self.more_wanted():
                        self.begin(self.study.ask(self.space))
                    if not self.active:
                        return
                self.runs.tick()
                time.sleep(0.2)
        print("stopped; the same command goes on")
        raise SystemExit(128 + self.runs.stops[0])

    def more_wanted(self) -> bool:
        trials = counted(self.study)
        return len(trials) < self.args.trials or any(trial.state == TrialState.WAITING for trial in trials)

    def begin(self, trial: Trial) -> None:
        try:
            jobs = make_jobs(self.args, trial.params, 1, self.args.num_seeds)
        except UserError as error:  # the script does not take them
            self.end(trial, error=str(error))
            return
        self.active.append(ActiveTrial(trial, jobs))
        self.runs.queue.append(jobs[0])

    def advance(self, one: ActiveTrial) -> None:
        """Reports how far a trial's run is. When it has ended, queues the trial's next run or ends the trial."""
        job = one.jobs[len(one.scores)]
        self.report(one, job)
        if job.state == "running":
            if one.trial.should_prune():
                self.runs.stop(job)
        elif job.told_to_stop:
            self.end(one.trial, state=TrialState.PRUNED)
        elif job.state in ("failed", "diverged"):
            last_line = job.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1]
            self.end(one.trial, error=f"{job.note}: {last_line}")
        elif job.state == "done":
            one.scores.append(self.score(job, math.inf))
            if math.isnan(one.scores[-1]):
                self.end(one.trial, error=f"no episode ended; see {job.log}")
            elif len(one.scores) == len(one.jobs):
                self.end(one.trial, float(np.mean(one.scores)))
            else:
                self.runs.queue.append(one.jobs[len(one.scores)])

    def report(self, one: ActiveTrial, job: sweep.Job) -> None:
        """Tells Optuna the mean score at every point that the run has passed, with those of the runs before it."""
        runs = sweep.matching_runs(job)
        if not runs:
            return
        before = POINTS * len(one.scores)
        passed = POINTS * last_step(runs[-1]) // planned_steps(job.arguments)
        while one.reported < before + passed:
            one.reported += 1
            score = self.score(job, planned_steps(job.arguments) * (one.reported - before) / POINTS)
            if not math.isnan(score):
                one.trial.report(float(np.mean([*one.scores, score])), one.reported)

    def score(self, job: sweep.Job, step: float) -> float:
        """Of the job's run at this step, NaN before its first episode has ended."""
        low, high = self.targets[job.env_id]
        (mean_return,) = sweep.returns_at(sweep.matching_runs(job)[-1], [step])
        return float((mean_return - low) / (high - low))

    def end(self, trial: Trial, value=None, state: TrialState | None = None, error: str = "") -> None:
        if error:
            trial.set_user_attr("error", error)
            state = TrialState.FAIL
        print(describe(self.study.tell(trial, value, state)), flush=True)
        self.active = [one for one in self.active if one.trial.number != trial.number]


# ------------------------------------------------------------------------------------------------------ What came of it
def describe(trial: FrozenTrial) -> str:
    """A trial that has ended, in a line."""
    result = trial.user_attrs.get("error", trial.value)
    if isinstance(result, float):
        result = f"{result:.2f}"
    return f"trial {trial.number}: {trial.state.name.lower()} ({result}) {' '.join(typed(trial.params))}"


def confirm(args: Args, best: list[FrozenTrial]) -> None:
    """Runs the defaults and the best trials on seeds that no trial had, and shows how they differ. A run that diverges
    counts with the episodes that it had."""
    candidates = {"defaults": {}} | {f"trial {trial.number}": trial.params for trial in best}
    jobs = {name: make_jobs(args, values, 1 + args.num_seeds, args.confirm) for name, values in candidates.items()}
    all_jobs = [job for of_candidate in jobs.values() for job in of_candidate]
    status = sweep.make_runs(all_jobs, args.workers)
    if any(job.state not in ("done", "diverged") for job in all_jobs):
        raise SystemExit(status)
    variants: dict[str, dict[str, list[Run]]] = {env_id: {} for env_id in args.env_ids}
    for name, of_candidate in jobs.items():
        for run in find_runs([sweep.matching_runs(job)[-1] for job in of_candidate]):
            variants[run.env_id].setdefault(name, []).append(run)
    print_table(variant_cells(variants), f"{args.confirm} fresh seeds")


# ---------------------------------------------------------------------------------------------------------- The command
def open_study(name: str) -> optuna.Study:
    """The search of this name, an old one or a new one."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    storage = f"sqlite:///{FOLDER / 'tune.db'}"
    pruner = optuna.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=POINTS // 4)
    return optuna.create_study(
        study_name=name, storage=storage, pruner=pruner, direction="maximize", load_if_exists=True
    )


def name_of_search(args: Args, job: sweep.Job, space: dict, targets: dict) -> str:
    """The same for the same script, arguments, space and targets."""
    drawn_from = {name: distributions.distribution_to_json(one) for name, one in space.items()}
    own = identity(job.arguments) | {"env_id": None}
    same = json.dumps([own, targets, args.num_seeds, drawn_from, sweep.version_seen(job.script)])
    return f"{job.script.stem}_{hashlib.sha256(same.encode()).hexdigest()[:8]}"


def main(args: Args) -> None:
    for option, value in (("--trials", args.trials), ("--num-seeds", args.num_seeds), ("--workers", args.workers)):
        if value < 1:
            raise UserError(f"{option} {value}: must be 1 or more")
    job = make_jobs(args, {}, 1, args.num_seeds)[0]
    space = read_space(args, job)
    targets = read_targets(args)
    name = name_of_search(args, job, space, targets)
    FOLDER.mkdir(exist_ok=True)
    try:
        with filelock.FileLock(FOLDER / f"{name}.lock", blocking=False):
            search(args, space, targets, open_study(name))
    except filelock.Timeout:
        hint = "to make more trials at a time, give it more --workers"
        raise UserError(f"another process makes this search; {hint}") from None


def search(args: Args, space: dict, targets: dict, study: optuna.Study) -> None:
    """Makes the trials, prints the best one's command, and confirms the best ones."""
    with sweep.caught_signals() as stops:
        Search(args, space, targets, study, sweep.Sweep([], args.workers, None, stops)).run()
    trials = counted(study)
    complete = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    print(f"{len(complete)} of {len(trials)} trials are complete")
    best = []
    for trial in sorted(complete, key=lambda trial: trial.value, reverse=True):
        if len(best) < 3 and trial.params not in [one.params for one in best]:
            best.append(trial)
    if not best:
        raise UserError("no trial was completed; the lines above say why", status=1)
    print(f"best: {describe(best[0])}")
    job = make_jobs(args, best[0].params, 1, 1)[0]
    print(shlex.join(job.start + job.options), flush=True)
    if args.confirm > 0:
        confirm(args, best)


if __name__ == "__main__":
    with one_line_errors():
        main(tyro.cli(Args, description=__doc__, args=with_values(sys.argv[1:], ("--command",))))
