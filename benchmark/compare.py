"""Did a change help? Compares two sets of runs on the environments that both have.

    python benchmark/compare.py runs_before runs_after
    python benchmark/compare.py "runs/*__ppo__*" "runs/*__mine__*" --output comparison
    python benchmark/compare.py runs runs --only-a learning-rate=1e-3 --only-b learning-rate=3e-4
    python benchmark/compare.py runs runs --only-a precision=fp32 --only-b precision=bf16 --steps 2000000

A and B are a run folder, a folder that holds runs, or a pattern in quotes; --only-a and --only-b choose among them by
what report.py's labels say, `version` included. --steps compares what runs of different lengths have in common: of
each run, what had ended by that step. A run's result is the mean return of its last 100 episodes. The
difference B − A of the mean results comes with Welch's 95% interval (of two sets with unequal
variances; it is wide for few seeds, as it should be). Where the interval leaves out 0, B is better or worse; where it
doesn't, more seeds may tell. Writes the table, and the curves of both with the differences below them as PNG and SVG.
"""

import glob
import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import report
import tyro
from report import plt
from scipy.stats import ttest_ind
from shared import script_words


@dataclass
class Args:
    a: tyro.conf.Positional[str]  # the runs before: a folder, or a pattern in quotes
    b: tyro.conf.Positional[str]  # the runs after
    only_a: list[str] = field(
        default_factory=list
    )  # choose among the runs before, as in learning-rate=1e-3 exp-name=ppo
    only_b: list[str] = field(default_factory=list)  # the same for the runs after
    steps: int | None = None  # compare the first so many steps of each run; by default all, which must be equally many
    output: Path = Path("comparison")  # the files' name, to which .md, .png and .svg are added


def fail(message: str):
    print(f"compare.py: error: {' '.join(message.split())}", file=sys.stderr)
    raise SystemExit(2)


def has(run: report.Run, argument: str, typed: str) -> bool:
    """Whether the run's argument is what was typed: 1e-3 is 0.001, true is True."""
    value = run.identity.get(argument)
    try:
        return float(value) == float(typed)
    except (TypeError, ValueError):
        return str(value).lower() == typed.lower()


def choose(runs: list[report.Run], option: str, only: list[str]) -> list[report.Run]:
    """The runs that have all of the arguments. Ends the program with one line if there are none."""
    for word in only:
        argument, _, typed = word.partition("=")
        argument = argument.replace("-", "_")
        chosen = [run for run in runs if has(run, argument, typed)]
        if not chosen:
            there = sorted({f"{argument}={run.identity[argument]}" for run in runs if argument in run.identity})
            fail(f"{option} {word}: no run has it; they have {', '.join(there) or f'no argument {argument}'}")
        runs = chosen
    return runs


def shorten(runs: list[report.Run], steps: int) -> None:
    """Leaves of each run the episodes that had ended by that step. Ends the program with one line if a run is shorter,
    or if none had ended."""
    for run in runs:
        ended = run.steps <= steps
        if run.total < steps or not ended.any():
            most = f"has {run.total:,} steps" if run.total < steps else "has no episode that had ended by then"
            fail(f"--steps {steps}: {run.folder} {most}; name a step that every run has come to")
        run.steps, run.returns, run.seconds = run.steps[ended], run.returns[ended], run.seconds[ended]
        run.total = run.config["stopped_at"] = steps
    report.label_configurations(runs)  # those stopped at different steps are the same experiment now


def read(name: str, pattern: str, only: list[str], steps: int | None) -> dict[str, list[report.Run]]:
    """The complete runs of one set by environment. Ends the program with one line if they are not of one experiment."""
    folders = sorted(Path(path) for path in glob.glob(pattern) if Path(path).is_dir())
    if not folders:
        fail(f"{name} {pattern}: there is no such folder; name run folders, a folder that holds them, or a pattern")
    option = f"--only-{name.lower()}"
    runs = choose(report.find_runs(folders), option, only)
    if unfinished := [str(run.folder) for run in runs if not run.is_complete]:
        print(f"{name}: {', '.join(unfinished)}: not ended, left out", file=sys.stderr)
    if steps is not None:
        shorten([run for run in runs if run.is_complete], steps)
    groups = report.group(runs)
    if not groups:
        fail(
            f"{name} {pattern}: holds no run that has ended; resume one, or keep what it has done so far by "
            "report.py's --stopped and compare that by --steps"
        )
    if len(groups) > 1:
        versions = {label: next(iter(sets.values()))[0].version for label, sets in groups.items()}
        if len({*versions.values()}) > 1:  # of one script: each is told by what --only takes
            groups = [label if "version=" in label else f"{label} version={versions[label]}" for label in groups]
        several = "; ".join(groups)
        fail(f"{name} {pattern}: holds runs of several kinds ({several}); choose one by {option} ARGUMENT=VALUE")
    (environments,) = groups.values()
    return environments


def difference(a: np.ndarray, b: np.ndarray) -> tuple[float, float, float]:
    """mean(b) − mean(a) and Welch's 95% interval of it, from the results of (S_a,) and (S_b,) seeds. With one seed on a
    side there is no interval: (−∞, ∞)."""
    delta = float(b.mean() - a.mean())
    if len(a) < 2 or len(b) < 2:
        return delta, -np.inf, np.inf
    if a.std() == b.std() == 0:  # every seed gave the same result
        return delta, delta, delta
    low, high = ttest_ind(b, a, equal_var=False).confidence_interval(0.95)
    return delta, float(low), float(high)


def verdict(low: float, high: float) -> str:
    if np.isinf(low):
        return "two or more seeds of each are needed"
    if low == high == 0:
        return "all runs are alike"
    return "B is better" if low > 0 else "B is worse" if high < 0 else "the runs can't tell"


def spread(results: np.ndarray) -> str:
    return report.signed(results.mean()) + (f" ± {results.std(ddof=1):.2f}" if len(results) > 1 else "")


def picture(rows: list[tuple], names: tuple[str, str], path: Path) -> None:
    """Above, the curves of both sets for each environment; below, the difference with its interval."""
    figure, axes = plt.subplots(
        2, len(rows), figsize=(max(4.2 * len(rows), 5), 4.2), squeeze=False, height_ratios=(4, 1)
    )
    for (above, below), (environment, runs_a, runs_b, (delta, low, high)) in zip(axes.T, rows):
        for runs, colour, name in ((runs_a, "tab:gray", names[0]), (runs_b, "tab:blue", names[1])):
            grid = report.grids(runs, report.POINTS)["steps"]
            curves = np.array([report.curve(run.steps, run.returns, grid) for run in runs])
            report.shade(above, grid, curves, colour, f"{name}, {len(runs)} seed{'s' * (len(runs) > 1)}")
        above.set_title(environment, fontsize=10, pad=28)  # the legend stands between it and the curves
        above.set_xlabel("environment steps")
        above.xaxis.set_major_formatter(report.thousands)
        above.grid(alpha=0.3)
        above.legend(fontsize=7, loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0, frameon=False)
        below.axvline(0, color="black", linewidth=0.8)
        below.plot([delta], [0], "o", color="tab:blue")
        if np.isfinite(low):
            below.plot([low, high], [0, 0], color="tab:blue", linewidth=2)
        below.set_yticks([])
        below.set_xlabel("difference B − A, 95% interval")
        for axis in (above, below):
            axis.spines[["top", "right"]].set_visible(False)
        below.spines["left"].set_visible(False)
    axes[0][0].set_ylabel(f"return, last {report.LAST} episodes")
    report.save(figure, path)


def main(args: Args) -> None:
    a, b = read("A", args.a, args.only_a, args.steps), read("B", args.b, args.only_b, args.steps)
    common = sorted(a.keys() & b.keys())
    if not common:
        fail(f"A has {', '.join(a)} and B has {', '.join(b)}: there is no environment in common")
    rows, cells = [], []
    for environment in common:
        runs_a, runs_b = a[environment], b[environment]
        if runs_a[0].total != runs_b[0].total:
            steps = f"A has {runs_a[0].total:,} steps and B {runs_b[0].total:,}"
            fail(f"{environment}: {steps}; compare equal lengths, or add --steps")
        planned = [{run.arguments["total_timesteps"] for run in runs} for runs in (runs_a, runs_b)]
        if planned[0] != planned[1]:
            print(f"{environment}: A was to run for other steps than B, and what is annealed fell otherwise",
                  file=sys.stderr)  # fmt: skip
        results = [np.array([run.result for run in runs]) for runs in (runs_a, runs_b)]
        delta, low, high = difference(*results)
        rows.append((environment, runs_a, runs_b, (delta, low, high)))
        interval = "–" if np.isinf(low) else f"[{report.signed(low)}, {report.signed(high)}]"
        seeds = f"{len(runs_a)} and {len(runs_b)}"
        cells.append([environment, *map(spread, results), seeds, report.signed(delta), interval, verdict(low, high)])
    names = tuple(next(iter(runs.values()))[0].label for runs in (a, b))
    if names[0] == names[1]:  # then by what tells the two from each other
        report.label_configurations([run for name in common for run in (*a[name], *b[name])])
        names = a[common[0]][0].label, b[common[0]][0].label
    first = f"; of each the first {args.steps:,} steps" if args.steps is not None else ""
    table = f"A is {names[0]} ({args.a}), B is {names[1]} ({args.b}){first}\n\n"
    header = ["environment", "A", "B", "seeds", "B − A", "95% interval", "verdict"]
    table += report.markdown(header, cells)
    labels = ("A", "B") if names[0] == names[1] else (f"A: {names[0]}", f"B: {names[1]}")
    try:
        args.output.parent.mkdir(parents=True, exist_ok=True)
        report.write_whole(args.output.with_name(args.output.name + ".md"), table)
        picture(rows, labels, args.output)
    except (OSError, ValueError) as error:  # ValueError: a path without a name
        fail(f"--output {args.output}: {error}; name files that can be written")
    print(table)
    for name, more in (("A", a.keys() - b.keys()), ("B", b.keys() - a.keys())):
        if more:
            print(f"only in {name}: {', '.join(sorted(more))}", file=sys.stderr)


if __name__ == "__main__":
    report.TOOL = Path(__file__).name
    main(tyro.cli(Args, description=__doc__, args=script_words(sys.argv[1:])))
