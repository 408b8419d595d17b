"""Tables and learning curves of runs, and comparisons: did a change help?

    python benchmark/report.py runs                    all runs below runs/ that have ended, into report/
    python benchmark/report.py runs --only env-id=CartPole-v1 exp-name=ppo,ppo_mine    filters by argument
    python benchmark/report.py compare runs_a runs_b   two sets of runs; see report.py compare --help
    python benchmark/report.py runs --x minutes        curves against the time of training
    python benchmark/report.py --keep runs/RUN …       add ended runs to the tables of benchmark/results

Runs that differ in an argument or in the version of their script, which is its text above the line of = signs, are
variants; what concerns only the machine or the speed doesn't count. Each environment has a panel, in which each variant
has a curve. A run's result is the mean return of its last 100 episodes; a run that ended early keeps what it had then.
Five seeds and more have a 95% interval of the mean and an interquartile mean. Differences are those from an
environment's first variant, paired by seed where both have the same seeds.
"""

import glob
import json
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import tyro
from command_line import UserError, one_line_errors, print_table
from files import write_atomically
from intervals import LAST, LEAST_SEEDS, curve, difference_interval, interquartile_mean, mean_interval, verdict
from kept import RESULTS, append_runs, kept_runs
from pages import between, markdown, pictures, save_picture, signed, spread
from runs import Run, find_runs, plain

POINTS = 101  # of a curve
BAND_POINTS = 26  # of the interval around it
LINES = ("-", "--", ":", "-.")  # the next one each time that the colors are used up
COLORS = [f"tab:{name}" for name in ("blue", "orange", "green", "red", "purple", "brown", "pink", "olive", "cyan")]
NOT_COMPARED = frozenset(  # arguments that change nothing in what a run learns or how fast
    """capture_video checkpoints debug deterministic env_id episodes evaluate exp_name resume seed track wandb_entity
    wandb_project_name""".split()
)
PACKAGES = ("torch", "numpy", "gymnasium")  # whose versions are compared where both sides have them


@dataclass
class Args:
    runs: tyro.conf.Positional[list[Path]] = field(default_factory=list)  # run folders, or folders that hold them
    only: list[str] = field(default_factory=list)  # filters, as in env-id=CartPole-v1 learning-rate=1e-3,3e-4
    output: Path = Path("report")  # folder that gets the tables and curves
    x: Literal["steps", "minutes"] = "steps"  # what the curves are drawn against; minutes are those of training alone
    keep: list[Path] | None = None  # run folders to add to the kept results, benchmark/results


@dataclass
class Compare:
    """Did a change help? Compares two sets of runs on the environments that both have.

        python benchmark/report.py compare "runs/*__ppo__*" "runs/*__ppo_mine__*"
        python benchmark/report.py compare ppo ppo_numpy --release 1.0

    A and B are a run folder, a folder that holds runs, a pattern in quotes, or the name of kept runs. The difference
    B − A of the means has a 95% interval if both have five seeds. Where it leaves out 0, B is better or worse.
    """

    a: tyro.conf.Positional[str]  # the runs before
    b: tyro.conf.Positional[str]  # the runs after
    only: list[str] = field(default_factory=list)  # filters of both, as in env-id=CartPole-v1
    paired: bool = True  # pair the runs of a seed, if both sets have the same seeds
    release: str | None = None  # compare kept runs of this release
    output: Path = Path("comparison")  # the files' name, to which .md and .svg are added


# ------------------------------------------------------------------------------------------------- What runs differ in
def selected(runs: list[Run], only: list[str]) -> list[Run]:
    """The runs whose arguments have the values of the filters."""
    for word in only:
        option, equals, typed = word.partition("=")
        name = option.lstrip("-").replace("-", "_")
        if not equals or not any(name in run.arguments for run in runs):
            raise UserError(f"--only {word}: write an argument of the runs and its values, as in exp-name=ppo,ppo_mine")
        values = typed.split(",")
        runs = [run for run in runs if any(is_value(run.arguments.get(name), value) for value in values)]
        if not runs:
            raise UserError(f"--only {word}: no run is left")
    return runs


def is_value(value, typed: str) -> bool:
    """Whether an argument has the value that was typed; 1e-3 is 0.001, and True is true."""
    if str(value).lower() == typed.lower():
        return True
    try:
        return not isinstance(value, bool | None) and float(value) == float(typed)
    except (ValueError, TypeError):  # such as of a list
        return False


def differing(runs: list[Run]) -> set[str]:
    """The names of what differs among runs, but for seeds. What a run lacks, its version of the script didn't have."""
    values = defaultdict(set)
    for run in runs:
        for name, value in ({"changed_on_resume": False} | run.identity).items():
            values[name].add(json.dumps(value))
    return {name for name in values if len(values[name]) > 1}


def label_of(name: str, run: Run, names: set[str]) -> str:
    """The name, and what the run has of what differs; nothing for what is its script's default."""
    parts = [name]
    for one in sorted(names):
        if one in run.settings:
            parts.append(f"{one}={run.settings[one]}")
    if "total_timesteps" in names:
        parts.append(f"{run.total:,} steps")
    if "version" in names:
        parts.append(f"version {run.version}" if run.release is None else f"release {run.release}")
    return ", ".join(parts)


def counted(runs: list[Run]) -> str:
    """How many seeds there are, and how many of them ended early."""
    seeds = "1 seed" if len(runs) == 1 else f"{len(runs)} seeds"
    return ", ".join([seeds, *early_ends(runs)])


def early_ends(runs: list[Run]) -> list[str]:
    """How many of the runs diverged, and how many a break ended; nothing where none did."""
    ends = Counter(run.end for run in runs)
    texts = []
    if ends["diverged"]:
        texts.append(f"{ends['diverged']} diverged")
    if ends["break"]:
        texts.append(f"{ends['break']} ended early")
    return texts


def results(runs: list[Run]) -> list[float]:
    return [run.result for run in runs]


def are_pairs(a: list[Run], b: list[Run]) -> bool:
    """Whether both have the same seeds, each once; they are ordered by seed."""
    seeds = [run.seed for run in a]
    return seeds == [run.seed for run in b] and len(set(seeds)) == len(seeds)


# --------------------------------------------------------------------------------------------------------------- Report
def variants_of(runs: list[Run]) -> dict[str, dict[str, list[Run]]]:
    """The runs by environment and by the name of the variant: its --exp-name, and in what runs of this name differ."""
    groups = defaultdict(lambda: defaultdict(list))
    for run in sorted(runs, key=lambda run: (run.env_id, run.exp_name, run.seed)):
        groups[run.env_id][run.exp_name, json.dumps(run.identity, sort_keys=True)].append(run)
    variants = {}
    for env_id, of_environment in groups.items():
        variants[env_id] = {}
        for (exp_name, _), members in of_environment.items():
            namesakes = [one[0] for (name, _), one in of_environment.items() if name == exp_name]
            names = differing(namesakes) | {"changed_on_resume"}
            of_label = variants[env_id].setdefault(label_of(exp_name, members[0], names), [])
            of_label.extend(members)  # of equal labels, such as for [1] and [1.0], none may get lost
            of_label.sort(key=lambda run: run.seed)
    return variants


def variant_cells(variants: dict[str, dict[str, list[Run]]]) -> list[list[str]]:
    """The table of a report, header first, without columns that have nothing in any row."""
    cells = [["environment", "variant", "return", "95% interval", "IQM", "seeds", "difference", "its 95% interval"]]
    for env_id, of_environment in variants.items():
        first = next(iter(of_environment.values()))
        for name, runs in of_environment.items():
            _, low, high = mean_interval(results(runs))
            iqm = signed(interquartile_mean(results(runs))) if len(runs) >= LEAST_SEEDS else "–"
            row = [env_id, name, spread(results(runs)), between(low, high), iqm, counted(runs)]
            if runs is first:
                row += ["–", "–"]
            else:
                paired = are_pairs(first, runs)
                difference, low, high = difference_interval(results(first), results(runs), paired=paired)
                row += [signed(difference), between(low, high)]
            cells.append(row)
    kept = [i for i in range(len(cells[0])) if any(row[i] != "–" for row in cells[1:])]
    return [[row[i] for i in kept] for row in cells]


def positions(run: Run, x: str) -> np.ndarray:
    """Where a curve against steps or minutes has its episodes, (E,)."""
    return run.steps if x == "steps" else run.seconds / 60


def machines(runs: list[Run]) -> set[str]:
    """The machines on which runs were made. Scripts without torch write no GPUs down."""
    return {json.dumps({"gpus": []} | run.config.get("hardware", {}), sort_keys=True) for run in runs}


def draw_curves(
    panel, runs: list[Run], color: str, label: str | None = None, deviation: bool = False, line: str = "-", x="steps"
) -> None:
    """The mean curve of some seeds against steps or minutes. Around it the 95% interval of the mean, of few seeds each
    one's own curve, or a band of one standard deviation."""
    from matplotlib.ticker import EngFormatter

    end = runs[0].total if x == "steps" else max(positions(run, x)[-1] for run in runs)
    grid = np.linspace(0, end, POINTS)
    curves = np.array([curve(positions(run, x), run.returns, grid) for run in runs])
    mean = curves.mean(axis=0)
    if deviation and len(runs) > 1:
        spreads = curves.std(axis=0, ddof=1)
        panel.fill_between(grid, mean - spreads, mean + spreads, color=color, alpha=0.25, linewidth=0)
    elif len(runs) >= LEAST_SEEDS:
        wanted = np.unique(np.linspace(0, POINTS - 1, BAND_POINTS).astype(int))
        places = [place for place in wanted if np.isfinite(mean[place])]  # where all have begun
        intervals = np.array([mean_interval(curves[:, place]) for place in places]).reshape(-1, 3)
        panel.fill_between(grid[places], intervals[:, 1], intervals[:, 2], color=color, alpha=0.25, linewidth=0)
    elif len(runs) > 1:
        panel.plot(grid, curves.T, color=color, linewidth=0.6, alpha=0.6)
    panel.plot(grid, mean, color=color, linestyle=line, linewidth=1.8, label=label)
    if x == "steps":
        panel.set_xlabel("environment steps")
        panel.xaxis.set_major_formatter(EngFormatter(sep=""))  # 1500000 as 1.5M
    else:
        panel.set_xlabel("minutes of training")


def draw_variants(variants: dict[str, dict[str, list[Run]]], path: Path, x: str = "steps") -> None:
    """A panel for each environment, in which each variant has a curve against steps or minutes."""
    plt = pictures()
    columns = min(len(variants), 3)
    rows = (len(variants) + columns - 1) // columns
    lines = max(len(of_environment) for of_environment in variants.values())
    figure, axes = plt.subplots(rows, columns, squeeze=False)
    figure.set_size_inches(4.6 * columns, (3.2 + 0.2 * lines) * rows)
    names = list(dict.fromkeys(name for of_environment in variants.values() for name in of_environment))
    for panel, (env_id, of_environment) in zip(axes.flat, variants.items()):
        for name, runs in of_environment.items():
            place = names.index(name)
            color = COLORS[place % len(COLORS)]
            line = LINES[place // len(COLORS) % len(LINES)]
            draw_curves(panel, runs, color, f"{name}: {counted(runs)}", line=line, x=x)
        panel.set_title(env_id, fontsize=10)
        panel.legend(fontsize=7, loc="upper left", bbox_to_anchor=(0, -0.18), borderaxespad=0, frameon=False)
    for panel in axes.flat[len(variants) :]:
        panel.set_visible(False)
    for panel in axes[:, 0]:
        panel.set_ylabel(f"return, last {LAST} episodes")
    save_picture(figure, path)


def report_runs(paths: list[Path], only: list[str], output: Path, x: str) -> None:
    """Table and curves of some run folders, into the output folder."""
    if output.is_file():
        raise UserError(f"--output {output}: is a file; name a folder")
    runs = selected(find_runs(paths), only)
    if x == "minutes":
        for run in runs:
            if run.seconds is None:
                raise UserError(f"--x minutes: {run.name}/episodes.csv has no seconds; leave that run out, or --x")
        if len(machines(runs)) > 1:
            print(f"--x minutes: the runs are of {len(machines(runs))} kinds of machines", file=sys.stderr)
    variants = variants_of(runs)
    header, *cells = variant_cells(variants)
    draw_variants(variants, output / "curves.svg", x)
    write_atomically(output / "tables.md", f"{markdown(header, cells)}\n![curves](curves.svg)\n")
    print_table([header, *cells])
    print(
        f"{output}/tables.md and {output}/curves.svg are written; to browse the runs: tensorboard --logdir {paths[0]}"
    )


# ----------------------------------------------------------------------------------------------------------- Comparison
def runs_named(pattern: str, release: str | None) -> list[Run]:
    """The runs of a folder, of a pattern, or the kept ones of a name."""
    folders = [Path(path) for path in sorted(glob.glob(pattern) or [pattern]) if Path(path).is_dir()]
    if folders:
        return find_runs(folders)
    kept = kept_runs(pattern) or kept_runs("results", exp_name=pattern)
    runs = [run for run in kept if release in (None, run.release)]
    if not runs:
        which = f"kept runs of release {release}" if release else "kept runs"
        raise UserError(f"{pattern}: is no folder and no {which}; name folders, a pattern in quotes, or such as ppo")
    return runs


def by_environment(name: str, runs: list[Run]) -> dict[str, list[Run]]:
    """The runs of one side. They must be of one experiment in each environment."""
    environments = defaultdict(list)
    for run in sorted(runs, key=lambda run: (run.env_id, run.seed)):
        environments[run.env_id].append(run)
    for environment, members in environments.items():
        names = ", ".join(sorted(differing(members)))
        if names:
            raise UserError(f"{name}: its runs in {environment} differ in {names}; add --only, or name fewer folders")
    return environments


def differences(a: list[Run], b: list[Run]) -> dict[str, tuple[str, str]]:
    """All in which two sets of runs differ, but for seeds and what is only recorded: what A has and what B has."""
    sides = []
    for runs in (a, b):
        values = defaultdict(set)
        for run in runs:
            values["script"].add(f"{run.script}.py")
            values["version of the script"].add(run.version)
            for name, value in run.arguments.items():
                if name not in NOT_COMPARED:
                    values[name].add(str(plain(value)))
            for package in PACKAGES:
                if package in run.config.get("versions", {}):
                    values[package].add(run.config["versions"][package])
        sides.append(values)
    found = {}
    for name in sorted(sides[0].keys() | sides[1].keys()):
        texts = [" and ".join(sorted(values[name])) or "–" for values in sides]
        if texts[0] != texts[1] and not (name in PACKAGES and "–" in texts):
            found[name] = (texts[0], texts[1])
    return found


def answer(low: float, high: float) -> str:
    """What the interval of B − A says of B."""
    if low == high == 0:
        return "all runs are alike"
    answers = {
        "": f"{LEAST_SEEDS} seeds of each are needed",
        "better": "B is better",
        "worse": "B is worse",
        "no difference seen": "inconclusive",
    }
    return answers[verdict(low, high)]


def sides(args: Compare) -> list[list[Run]]:
    """The runs of A and those of B."""
    both = [selected(runs_named(pattern, args.release), args.only) for pattern in (args.a, args.b)]
    if args.release is not None and all(run.release is None for runs in both for run in runs):
        raise UserError(f"--release {args.release}: is of kept runs; {args.a} and {args.b} are folders")
    shared = {run.name for run in both[0]} & {run.name for run in both[1]}
    if shared:
        raise UserError(f"{args.a} and {args.b}: both have {min(shared)}; name two sets of runs")
    return both


def compare(args: Compare, runs_a: list[Run], runs_b: list[Run]) -> dict[str, list[list[Run]]]:
    """[runs of A, runs of B] by environment."""
    a = by_environment(args.a, runs_a)
    b = by_environment(args.b, runs_b)
    both = {environment: [a[environment], b[environment]] for environment in sorted(a.keys() & b.keys())}
    if not both:
        raise UserError(f"{args.a} and {args.b}: have no environment in common")
    alone = [f"{environment} (only {'A' if environment in a else 'B'})" for environment in sorted(a.keys() ^ b.keys())]
    if alone:
        where = ", ".join(alone)
        print(f"{args.a} and {args.b}: only one side has runs in {where}; they are left out", file=sys.stderr)
    for environment, (of_a, of_b) in both.items():
        steps = [of_a[0].total, of_b[0].total]
        if steps[0] != steps[1]:
            raise UserError(f"{environment}: A has {steps[0]:,} steps and B {steps[1]:,}; compare equally long runs")
    return both


def side_labels(a: list[Run], b: list[Run]) -> list[str]:
    """What A and B are called in an environment: by the names of their experiments, and if these are one, by what
    differs."""
    firsts = [a[0], b[0]]
    names = differing(firsts) if firsts[0].exp_name == firsts[1].exp_name else set()
    return [f"{side}: {label_of(run.exp_name, run, names)}" for side, run in zip("AB", firsts)]


def comparison_table(both: dict[str, list[list[Run]]], paired: bool) -> list[list[str]]:
    """The table of a comparison, header first."""
    cells = [["environment", "A", "B", "seeds", "B − A", "95% interval", "verdict"]]
    for environment, (a, b) in both.items():
        are_paired = paired and are_pairs(a, b)
        difference, low, high = difference_interval(results(a), results(b), paired=are_paired)
        seeds = f"{len(a)} pairs" if are_paired else f"{len(a)} and {len(b)}"
        for side, runs in (("A", a), ("B", b)):
            if early_ends(runs):
                seeds += f", of {side} {', '.join(early_ends(runs))}"
        row = [environment, spread(results(a)), spread(results(b)), seeds]
        cells.append([*row, signed(difference), between(low, high), answer(low, high)])
    return cells


def difference_rows(both: dict[str, list[list[Run]]]) -> list[list[str]]:
    """A row for each thing in which A and B differ, with the environments where it is so unless it is in all."""
    environments = defaultdict(list)
    for environment, (a, b) in both.items():
        for name, texts in differences(a, b).items():
            environments[name, *texts].append(environment)
    rows = []
    for (name, of_a, of_b), places in sorted(environments.items()):
        where = f" ({', '.join(places)})" if len(places) < len(both) else ""
        rows.append([name + where, of_a, of_b])
    return rows


def draw_comparison(both: dict[str, list[list[Run]]], path: Path, paired: bool, **look) -> None:
    """Above, the curves of both sets in each environment; below, the difference with its interval."""
    plt = pictures()
    columns = min(len(both), 2)
    rows = (len(both) + columns - 1) // columns
    figure, axes = plt.subplots(2 * rows, columns, squeeze=False, height_ratios=(4, 1) * rows)
    figure.set_size_inches(max(4.2 * columns, 5), 4.2 * rows)
    for axis in axes.flat:  # the last place may stay empty
        axis.set_axis_off()
    for i, environment in enumerate(both):
        above = axes[i // columns * 2][i % columns]
        below = axes[i // columns * 2 + 1][i % columns]
        above.set_axis_on()
        below.set_axis_on()
        labels = side_labels(*both[environment])
        for runs, color, label in zip(both[environment], ("tab:orange", "tab:blue"), labels):
            draw_curves(above, runs, color, f"{label}, {counted(runs)}", **look)
        above.set_title(environment, fontsize=10, pad=28)  # the legend is between it and the curves
        above.legend(fontsize=7, loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0, frameon=False)
        a, b = both[environment]
        difference, low, high = difference_interval(results(a), results(b), paired=paired and are_pairs(a, b))
        below.axvline(0, color="gray", linewidth=0.8)
        below.plot([difference], [0], "o", color="tab:blue")
        if np.isfinite(low):
            below.plot([low, high], [0, 0], color="tab:blue", linewidth=2)
        below.set_yticks([])
        below.set_xlabel("difference B − A, 95% interval")
        below.spines["left"].set_visible(False)
    axes[0][0].set_ylabel(f"return, last {LAST} episodes")
    save_picture(figure, path)


def report_comparison(args: Compare) -> None:
    """Compares, prints the tables, and writes them and the picture."""
    both = compare(args, *sides(args))
    cells = comparison_table(both, args.paired)
    header = ["what differs", "A", "B"]
    rows = difference_rows(both)
    title = f"A: {args.a}, B: {args.b}"
    text = f"{title}\n\n{markdown(cells[0], cells[1:])}\n"
    if rows:
        text += markdown(header, rows)
    else:
        text += "Nothing else differs.\n"
    write_atomically(Path(f"{args.output}.md"), text)
    draw_comparison(both, Path(f"{args.output}.svg"), args.paired)
    print_table(cells, title)
    if rows:
        print_table([header, *rows])


def main(args: Args | Compare) -> None:
    if isinstance(args, Compare):
        report_comparison(args)
    elif args.keep is not None:
        if args.runs or args.only:
            raise UserError("--keep: takes its own run folders, and all of them; leave out the others and --only")
        added = append_runs(find_runs(args.keep), results=RESULTS)
        print(f"{added} runs added to {RESULTS}")
    elif args.runs:
        report_runs(args.runs, args.only, args.output, args.x)
    else:
        raise UserError("name run folders, or a folder that holds them: python benchmark/report.py runs")


if __name__ == "__main__":
    with one_line_errors():
        if sys.argv[1:2] == ["compare"]:
            main(tyro.cli(Compare, prog="report.py compare", args=sys.argv[2:]))
        else:
            main(tyro.cli(Args, description=__doc__))
