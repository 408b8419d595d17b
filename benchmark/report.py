"""Tables and learning curves of runs, from their folders or from the kept results of this repository.

    python benchmark/report.py runs                    tables and curves of the runs below runs/, into report/
    python benchmark/report.py compare runs_a runs_b   did a change help? See report.py compare --help
    python benchmark/report.py --keep runs/RUN …       add finished runs to the tables of benchmark/results
    python benchmark/report.py                         rebuild the tables and curves of the pages from those

To browse runs, `tensorboard --logdir runs` shows all their metrics.

A run's result is the mean return of its last 100 episodes. Tables give the mean ± standard deviation of the results
over seeds, and the 95% interval of the mean (by bootstrap, for five seeds and more). Runs that differ in an argument,
or in the version of their script, stand in different rows, which say how they differ. What concerns only the machine or
the speed doesn't count.

A table goes into the pages that have a place for it, between <!-- results NAME --> and <!-- end of results -->. A
picture is made if a page shows it. A kept run names the release that made it; tables say so where the script has
changed since.
"""

import csv
import glob
import json
import sys
from collections import defaultdict
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import numpy as np
import shared
import tyro
from shared import RESULTS, ROOT, Run, fail, markdown, signed

LONG_ENOUGH = 10  # seconds of training from which on steps per second are more than start-up and noise
POINTS = 101  # of a curve
PUBLISHED = ["openai/baselines PPO", "CleanRL, first table", "CleanRL, Nov 2023", "CleanRL, EnvPool with XLA"]
DETAILED = ("95% interval", "CleanRL, EnvPool with XLA")  # columns that the summary leaves out
STAGES = ["environment", "policy", "update"]  # of an update, as release 0.2 measured them
SHORT_SPEED = ["ppo", "ppo_numpy", "ppo_continuous_action", "ppo_continuous_action_numpy", "ppo_atari"]

# What the pages compare: a name, A, B, and of how many steps
COMPARISONS = [
    ("ppo_numpy_against_ppo", "ppo", "ppo_numpy", None),
    ("ppo_continuous_action_numpy_against_ppo_continuous_action", "ppo_continuous_action",
     "ppo_continuous_action_numpy", None),
    ("bootstrap_truncated", "ppo_continuous_action_numpy", "ppo_continuous_action_numpy_bootstrap_truncated", None),
    ("bf16_against_fp32", "fp32", "ppo_atari_envpool", 2_000_000),
]  # fmt: skip


@dataclass
class Args:
    runs: tyro.conf.Positional[list[Path]] = field(default_factory=list)  # run folders, or folders that hold them
    output: Path = Path("report")  # folder for the report of those runs
    keep: list[Path] = field(default_factory=list)  # run folders to add to the kept results first
    stopped: bool = False  # keep runs that were stopped before their end too, with the step that they reached
    results: Path = RESULTS  # folder of the kept results; with another one than the repository's no page is changed


# ----------------------------------------------------------------------------------------------------------------- Rows


@dataclass
class Row:
    """The seeds of one experiment in one environment, and what was published of the same."""

    environment: str  # and in what the runs differ from those of other rows
    runs: list[Run]
    published: dict[str, str]

    @property
    def results(self) -> np.ndarray:
        """The seeds' results, (S,)."""
        return np.array([run.result for run in self.runs])

    def is_outdated(self) -> bool:
        """Whether the runs were kept, and their script has another version by now."""
        return self.runs[0].release is not None and self.runs[0].version != present_version(self.runs[0].script)


@cache
def present_version(script: str) -> str:
    """The version of a script of this repository as it is now; empty if there is none of this name."""
    path = ROOT / "cleanrl" / f"{script}.py"
    return shared.version(path) if path.is_file() else ""


def published_results() -> dict[tuple[str, str], dict[str, str]]:
    """What others published, by script and environment."""
    with (ROOT / "benchmark" / "published.csv").open(encoding="utf-8") as file:
        return {(row["script"], row["environment"]): row for row in csv.DictReader(file)}


def published_name(exp_name: str, published: dict) -> str:
    """The script whose published numbers are set beside runs of this name: ppo's beside those of ppo_numpy."""
    scripts = sorted({script for script, _ in published}, key=len, reverse=True)
    for script in scripts:
        if exp_name.startswith(script):
            return script
    return exp_name


def kinds_of(runs: list[Run]) -> list[list[Run]]:
    """The runs by experiment: those that agree in all but the seed, in the order of their seeds."""
    kinds = defaultdict(list)
    for run in sorted(runs, key=lambda run: run.seed):
        kinds[json.dumps(run.identity, sort_keys=True)].append(run)
    return sorted(kinds.values(), key=lambda kind: json.dumps(kind[0].identity, sort_keys=True))


def differing(kinds: list[list[Run]]) -> set[str]:
    """The names of what differs among experiments. What a run lacks, its version of the script didn't have."""
    values = defaultdict(set)
    for kind in kinds:
        for name, value in kind[0].identity.items():
            values[name].add(json.dumps(value))
    return {name for name in values if len(values[name]) > 1}


def described(run: Run, names: set[str], kinds: list[list[Run]]) -> list[str]:
    """What the run has of these names, for the label of its row; nothing for what is its script's default."""
    parts = [f"{name}={run.settings[name]}" for name in sorted(names) if name in run.settings]
    if "total_timesteps" in names:
        parts.append(f"{run.total:,} steps")
    if "stopped_at" in names and run.stopped_at is not None:
        parts.append(f"stopped at {run.stopped_at:,} steps")
    if "version" in names and run.version != present_version(run.script):
        releases = [kind[0].release for kind in kinds]
        by_release = run.release is not None and releases.count(run.release) == 1
        parts.append(f"release {run.release}" if by_release else f"version {run.version}")
    return parts


def ended_runs(runs: list[Run]) -> list[Run]:
    """The runs that have ended and in which an episode did. Names the others on stderr."""
    found = []
    for run in runs:
        if not run.ended:
            print(f"{run.name}: has not ended; it is left out", file=sys.stderr)
        elif len(run.returns) == 0:
            print(f"{run.name}: no episode ended in it; it is left out", file=sys.stderr)
        else:
            found.append(run)
    return found


def rows_of(runs: list[Run]) -> dict[str, list[Row]]:
    """The rows of the tables by name of the experiment, environments with published numbers first."""
    published = published_results()
    by_name = defaultdict(lambda: defaultdict(list))
    for run in ended_runs(runs):
        by_name[run.exp_name][run.env_id].append(run)
    tables = {}
    for exp_name in sorted(by_name):
        base = published_name(exp_name, published)
        environments = by_name[exp_name]
        ordered = [environment for script, environment in published if script == base and environment in environments]
        ordered += sorted(environments.keys() - set(ordered))
        tables[exp_name] = []
        for environment in ordered:
            kinds = kinds_of(environments[environment])
            for kind in kinds:
                names = differing(kinds)
                theirs = published.get((base, environment), {})
                if theirs:  # then whatever isn't as published is said
                    names = names | kind[0].settings.keys()
                if theirs and int(theirs["steps"]) != kind[0].total:
                    names = names | {"total_timesteps"}
                    theirs = {}
                label = ", ".join([environment, *described(kind[0], names, kinds)])
                tables[exp_name].append(Row(label, kind, theirs))
    return tables


# --------------------------------------------------------------------------------------------------------------- Tables


def spread(results: np.ndarray) -> str:
    """Mean ± standard deviation over seeds, of one seed the number alone."""
    if len(results) == 1:
        return signed(results[0])
    return f"{signed(results.mean())} ± {results.std(ddof=1):.2f}"


def between(low: float, high: float) -> str:
    """An interval as a cell."""
    return f"[{signed(low)}, {signed(high)}]" if np.isfinite(low) else "–"


def mean_speed(runs: list[Run]) -> str:
    """Steps per second, the mean over the runs that were long enough to tell."""
    speeds = [run.steps[-1] / run.seconds[-1] for run in runs if run.seconds[-1] >= LONG_ENOUGH]
    return f"{np.mean(speeds):,.0f}" if speeds else "–"


def result_cells(rows: list[Row], times: bool = False) -> list[list[str]]:
    """The table of an experiment, header first; with `times` also the steps and what each run took. Columns without a
    number are left out."""
    outdated = {row.runs[0].release for row in rows if row.is_outdated()}
    all_of_one = len(outdated) == 1 and all(row.is_outdated() for row in rows)
    ours = "return"
    if rows[0].runs[0].release is not None:
        ours = f"ours, release {min(outdated)}" if all_of_one else "ours"
    cells = [["environment", ours, "95% interval", "seeds", "steps", "steps/s", "minutes", *PUBLISHED]]
    for row in rows:
        label = row.environment
        if row.is_outdated() and not all_of_one and "release" not in label:
            label += f", release {row.runs[0].release}"
        _, low, high = shared.mean_interval(row.results)
        measured = ["–", "–", "–"]
        if times:
            minutes = np.mean([run.seconds[-1] for run in row.runs]) / 60
            measured = [f"{row.runs[0].total:,}", mean_speed(row.runs), f"{minutes:.1f}"]
        theirs = [row.published.get(name) or "–" for name in PUBLISHED]
        cells.append([label, spread(row.results), between(low, high), f"{len(row.runs)}", *measured, *theirs])
    kept = [i for i in range(len(cells[0])) if any(line[i] != "–" for line in cells[1:])]
    return [[line[i] for i in kept] for line in cells]


def table_by_step(rows: list[Row]) -> str:
    """Markdown: mean returns on training levels and on levels that training never saw, by step, where all runs of a row
    were evaluated on both."""
    cells = []
    for row in rows:
        returns = defaultdict(list)
        for run in row.runs:
            for step, levels, episodic_return in run.evaluations:
                returns[step, levels].append(episodic_return)
        for step in sorted({step for step, _ in returns}):
            means = [signed(np.mean(returns[step, levels])) for levels in ("training", "test")]
            cells.append([row.environment, f"{step:,}", *means])
    return markdown(["environment", "steps", "training levels", "test levels"], cells)


def summary_table(tables: dict[str, list[Row]]) -> str:
    """Markdown: every environment with published numbers, all scripts in one table. Of a script and its numpy twin the
    one that ran as published, with its defaults, and with more seeds."""
    chosen = []
    for (script, environment), theirs in published_results().items():
        if script.endswith("_numpy"):
            continue
        rows = []
        for exp_name in (script, f"{script}_numpy"):
            rows += [row for row in tables.get(exp_name, []) if row.runs[0].env_id == environment and row.published]
        if rows and any(theirs[name] for name in PUBLISHED):
            chosen.append(min(rows, key=lambda row: (len(row.runs[0].settings), -len(row.runs))))
    if not chosen:
        return "Not measured.\n"
    header, *cells = result_cells(chosen)
    shown = [i for i in range(len(header)) if header[i] not in DETAILED]
    return markdown([header[i] for i in shown], [[line[i] for i in shown] for line in cells])


# --------------------------------------------------------------------------------------------------------------- Speed


def throughputs(results: Path) -> list[tuple[str, dict]]:
    """What throughput.py measured, by script, short names first."""
    measured = shared.read_json("speed.json", results)
    found = [(name.removeprefix("throughput/"), measured[name]) for name in measured if name.startswith("throughput/")]
    return sorted(found, key=lambda pair: (len(pair[0]), pair[0]))


def sides_of(script: str, measured: dict) -> list[tuple[str, str, str]]:
    """The script and, where it was measured against other arguments, the script with those: the key of the numbers,
    that of the ratios, and how it was called."""
    options = measured["options"]
    sides = []
    processes = options.get("processes", 1)
    for key, ratios, option in (("script", "ratios", "arguments"), ("against", "against_ratios", "against")):
        if key in measured["medians"]:
            name = f"{script}.py {options.get(option) or ''}".strip()
            if processes > 1:
                name = f"{processes if key == 'script' else 1} × {name}"
            sides.append((key, ratios, name))
    return sides


def faster(measured: dict, ratios: str, base: str) -> str:
    """How much faster something was than `base`: the median of the rounds' ratios, and their range."""
    if base not in measured["medians"].get(ratios, {}):
        return "–"
    of_rounds = [one[ratios][base] for one in measured["rounds"]]
    return f"{measured['medians'][ratios][base]:.1f}× ({min(of_rounds):.1f}–{max(of_rounds):.1f})"


def speed_table(results: Path) -> str:
    """Markdown: the medians of the rounds, a row for each script and set of arguments."""
    rows = []
    for script, measured in throughputs(results):
        medians = measured["medians"]
        arguments = measured["arguments"]
        in_parallel = arguments.get("vectorization") == "async" or "env_threads" in arguments
        for key, ratios, name in sides_of(script, measured):
            cells = [name, arguments["env_id"], f"{medians[key]['steps_per_second']:,.0f}"]
            for base in ("default threads", "1 thread"):
                bases = [("", base)]
                if in_parallel:
                    bases = [("serial ", base), ("workers ", f"{base}, SubprocVecEnv")]
                theirs = []
                for how, one in bases:
                    if one in medians:
                        speed = f"{medians[one]['steps_per_second']:,.0f}"
                        theirs.append(f"{how}{speed}: {faster(measured, ratios, one)}")
                cells.append("<br>".join(theirs) or "–")
            rows.append([*cells, faster(measured, ratios, "against")])
    header = ["script", "environment", "steps/s", "stable-baselines3, default threads",
              "stable-baselines3, 1 thread", "faster than the next row"]  # fmt: skip
    return markdown(header, rows)


def short_speed_table(results: Path) -> str:
    """Markdown: five rows of the speed table, each against the faster of stable-baselines3's two settings."""
    found = dict(throughputs(results))
    rows = []
    for script in SHORT_SPEED:
        if script in found:
            measured = found[script]
            medians = measured["medians"]
            base = max(("default threads", "1 thread"), key=lambda base: medians[base]["steps_per_second"])
            speeds = [f"{medians[side]['steps_per_second']:,.0f}" for side in ("script", base)]
            name = sides_of(script, measured)[0][2]
            rows.append([name, measured["arguments"]["env_id"], *speeds, faster(measured, "ratios", base)])
    return markdown(["script", "environment", "steps/s", "stable-baselines3", "faster"], rows)


def launch_table(results: Path) -> str:
    """Markdown: how long a script takes to its first update, and the memory that it needs."""
    rows = []
    for script, measured in throughputs(results):
        launch = measured["medians"]["launch"]
        name = sides_of(script, measured)[0][2]
        rows.append([name, f"{launch['first_row_seconds']:.1f} s", f"{launch['peak_mb']:,.0f} MB"])
    return markdown(["script", "launch to first update", "peak memory"], rows)


def stages_table(results: Path) -> str:
    """Markdown: milliseconds of an update and where they go, in scripts and in stable-baselines3 with one thread."""
    rows = []
    for script, measured in throughputs(results):
        sides = [(key, f"**{name}**") for key, _, name in sides_of(script, measured)]
        for key, name in [*sides, ("1 thread", "stable-baselines3, 1 thread")]:
            side = measured["medians"].get(key, {})
            if "ms" in side:
                parts = [f"{side['ms'][part]:.1f}" for part in STAGES]
                rows.append([name, f"{side['ms_per_update']:.1f}", *parts])
    return markdown(["", "ms an update", *STAGES], rows)


def growth_table(measured: dict) -> str:
    """Markdown: what throughput.py --vary measured, medians of its rounds, a row for each value of the argument."""
    rows = []
    for value, medians in measured["medians"].items():
        script = medians["script"]
        speeds = [one[value]["script"]["steps_per_second"] for one in measured["rounds"]]
        speed = f"{script['steps_per_second']:,.0f} ({min(speeds):,.0f}–{max(speeds):,.0f})"
        parts = [f"{ms:.1f}" for ms in script.get("ms", {}).values()]
        memory = f"{medians['launch']['peak_mb']:.0f} MB"
        rows.append([value, speed, f"{script['ms_per_update']:.1f}", *parts, memory])
    stages = STAGES if "ms" in script else []
    return markdown([measured["options"]["vary"][0], "steps/s", "ms per update", *stages, "peak memory"], rows)


def time_table(results: Path) -> str:
    """Markdown: what throughput.py --target measured, a row for each script."""
    rows = []
    for name, measured in sorted(shared.read_json("speed.json", results).items()):
        if name.startswith("time_to_return/"):
            script = f"{name.removeprefix('time_to_return/')}.py {measured['options']['arguments'] or ''}".strip()
            seconds = ", ".join(f"{run['seconds']:.1f}" for run in measured["runs"])
            goal = [measured["runs"][0]["env_id"], f"{measured['options']['target']:g}"]
            rows.append([script, *goal, f"{measured['median_seconds']:.1f} s", seconds])
    return markdown(["script", "environment", "mean return", "median", "seconds of each seed"], rows)


# ------------------------------------------------------------------------------------------------------------- Pictures


def curves_of(runs: list[Run]) -> tuple[np.ndarray, np.ndarray]:
    """(grid of steps (G,), curves (S, G)) of some seeds."""
    grid = np.linspace(0, runs[0].total, POINTS)
    return grid, np.array([shared.curve(run.steps, run.returns, grid) for run in runs])


def seeds(count: int) -> str:
    return f"{count} seed" if count == 1 else f"{count} seeds"


def draw(rows: list[Row], path: Path) -> None:
    """The learning curves of a table, as an SVG with a panel for each row."""
    plt = shared.pictures()
    columns = min(len(rows), 4)
    height = -(-len(rows) // columns)
    figure, axes = plt.subplots(height, columns, figsize=(4 * columns, 3 * height), squeeze=False)
    for panel in axes.flat[len(rows) :]:
        panel.remove()
    for panel, row in zip(axes.flat, rows):
        shared.shade(panel, *curves_of(row.runs), "tab:blue")
        panel.set_title(f"{row.environment}\n{seeds(len(row.runs))}", fontsize=10)
        panel.set_xlabel("environment steps")
        panel.xaxis.set_major_formatter(shared.thousands)
    for panel in axes[:, 0]:
        panel.set_ylabel(f"return, last {shared.LAST} episodes")
    shared.save_picture(figure, path)


# ----------------------------------------------------------------------------------------------------------- Comparison


@dataclass
class Compare:
    """Did a change help? Compares two sets of runs on the environments that both have.

        python benchmark/report.py compare runs_before runs_after
        python benchmark/report.py compare "runs/*__ppo__*" "runs/*__mine__*" --output comparison
        python benchmark/report.py compare runs runs --only-a learning_rate=0.001 --only-b learning_rate=0.003
        python benchmark/report.py compare ppo ppo_numpy

    A and B are a run folder, a folder that holds runs, a pattern in quotes, or the name of kept runs (ppo,
    ppo_numpy, …). A run's result is the mean return of its last 100 episodes. The difference B − A of the means comes
    with a 95% bootstrap interval if both have five seeds. Where the interval leaves out 0, B is better or worse.
    """

    a: tyro.conf.Positional[str]  # the runs before
    b: tyro.conf.Positional[str]  # the runs after
    only_a: list[str] = field(default_factory=list)  # of A those with these arguments: learning_rate=0.001 version=…
    only_b: list[str] = field(default_factory=list)  # the same for B
    steps: int | None = None  # compare the first so many steps of each run; by default all, which must be equally many
    output: Path = Path("comparison")  # the files' name, to which .md and .svg are added


def named_runs(side: str, pattern: str) -> list[Run]:
    """The runs of a folder, of a pattern, or the kept ones of this name."""
    folders = [Path(path) for path in sorted(glob.glob(pattern)) if Path(path).is_dir()]
    if folders:
        return shared.find_runs(folders)
    kept = shared.kept_runs(pattern) or shared.kept_runs("results", exp_name=pattern)
    if not kept:
        fail(f"{side} {pattern}: no folder is so called, and no kept runs; name run folders, a folder that holds them, "
             "a pattern in quotes, or kept runs such as ppo")  # fmt: skip
    return kept


def is_value(value, typed: str) -> bool:
    """Whether an argument is what was typed: 1e-3 is 0.001, true is True."""
    try:
        return float(value) == float(typed)
    except (TypeError, ValueError):
        return str(value).lower() == typed.lower()


def chosen_runs(runs: list[Run], option: str, only: list[str]) -> list[Run]:
    """The runs that have all of these arguments, or this version or release."""
    for word in only:
        name, _, typed = word.partition("=")
        name = name.replace("-", "_")
        values = {id(run): (run.identity | {"release": run.release}).get(name) for run in runs}
        found = [run for run in runs if is_value(values[id(run)], typed)]
        if not found:
            there = ", ".join(sorted({f"{name}={value}" for value in values.values()}))
            fail(f"{option} {word}: no run has it; they have {there}")
        runs = found
    return runs


def shortened(run: Run, steps: int) -> Run:
    """The run as it was at this step."""
    ended = run.steps <= steps
    if run.total < steps:
        fail(f"--steps {steps}: {run.name} has {run.total:,} steps; name a step that every run has come to")
    if not ended.any():
        fail(f"--steps {steps}: {run.name} has no episode that had ended by then; name a later step")
    columns = {name: getattr(run, name)[ended] for name in ("steps", "returns", "lengths", "seconds")}
    return replace(run, total=steps, stopped_at=steps, **columns)


def compared_runs(side: str, pattern: str, only: list[str], steps: int | None) -> dict[str, list[Run]]:
    """The runs of one side by environment. Ends the program with one line if they are not of one experiment."""
    option = f"--only-{side.lower()}"
    runs = ended_runs(chosen_runs(named_runs(side, pattern), option, only))
    if not runs:
        fail(f"{side} {pattern}: holds no run that has ended; resume one first")
    if steps is not None:
        runs = [shortened(run, steps) for run in runs]
    environments = defaultdict(list)
    for run in sorted(runs, key=lambda run: (run.env_id, run.seed)):
        environments[run.env_id].append(run)
    for environment, members in environments.items():
        kinds = kinds_of(members)
        if len(kinds) > 1:
            names = differing(kinds)
            said = []
            for kind in kinds:
                said.append(" ".join(f"{name}={kind[0].identity.get(name)}" for name in sorted(names)))
            fail(f"{side} {pattern}: holds runs of several kinds in {environment} ({'; '.join(said)}); choose one by "
                 f"{option} ARGUMENT=VALUE")  # fmt: skip
    return dict(environments)


def verdict(low: float, high: float) -> str:
    if np.isinf(low):
        return f"{shared.LEAST_SEEDS} seeds of each are needed"
    if low == high == 0:
        return "all runs are alike"
    if low > 0:
        return "B is better"
    return "B is worse" if high < 0 else "the runs can't tell"


def draw_comparison(both: dict[str, tuple[list[Run], list[Run]]], names: tuple[str, str], path: Path) -> None:
    """Above, the curves of both sets in each environment; below, the difference with its interval."""
    plt = shared.pictures()
    size = (max(4.2 * len(both), 5), 4.2)
    figure, axes = plt.subplots(2, len(both), figsize=size, squeeze=False, height_ratios=(4, 1))
    for i, (environment, sides) in enumerate(both.items()):
        above = axes[0][i]
        below = axes[1][i]
        for runs, color, name in zip(sides, ("tab:orange", "tab:blue"), names):
            shared.shade(above, *curves_of(runs), color, f"{name}, {seeds(len(runs))}")
        above.set_title(environment, fontsize=10, pad=28)  # the legend stands between it and the curves
        above.set_xlabel("environment steps")
        above.xaxis.set_major_formatter(shared.thousands)
        above.legend(fontsize=7, loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0, frameon=False)
        results = [[run.result for run in runs] for runs in sides]
        difference, low, high = shared.difference_interval(*results, paired=False)
        below.axvline(0, color="gray", linewidth=0.8)
        below.plot([difference], [0], "o", color="tab:blue")
        if np.isfinite(low):
            below.plot([low, high], [0, 0], color="tab:blue", linewidth=2)
        below.set_yticks([])
        below.set_xlabel("difference B − A, 95% interval")
        below.spines["left"].set_visible(False)
    axes[0][0].set_ylabel(f"return, last {shared.LAST} episodes")
    shared.save_picture(figure, path)


def compare(args: Compare) -> tuple[dict, tuple[str, str], list[list[str]]]:
    """(the runs of A and B by environment, their names for a legend, the table with its header first)."""
    a = compared_runs("A", args.a, args.only_a, args.steps)
    b = compared_runs("B", args.b, args.only_b, args.steps)
    both = {environment: (a[environment], b[environment]) for environment in sorted(a.keys() & b.keys())}
    if not both:
        fail(f"A has {', '.join(a)} and B has {', '.join(b)}: they have no environment in common")
    cells = [["environment", "A", "B", "seeds", "B − A", "95% interval", "verdict"]]
    for environment, (before, after) in both.items():
        if {run.name for run in before} & {run.name for run in after}:
            fail(f"{environment}: A and B have runs in common; choose different ones by --only-a and --only-b")
        if before[0].total != after[0].total:
            fail(f"{environment}: A has {before[0].total:,} steps and B {after[0].total:,}; add --steps")
        returns = [np.array([run.result for run in runs]) for runs in (before, after)]
        difference, low, high = shared.difference_interval(*returns, paired=False)
        counts = f"{len(before)} and {len(after)}"
        spreads = [spread(one) for one in returns]
        cells.append([environment, *spreads, counts, signed(difference), between(low, high), verdict(low, high)])
    kinds = list(next(iter(both.values())))
    names = [kind[0].exp_name for kind in kinds]
    if names[0] == names[1]:
        names = [", ".join([kind[0].exp_name, *described(kind[0], differing(kinds), kinds)]) for kind in kinds]
    return both, (f"A: {names[0]}", f"B: {names[1]}"), cells


def compare_command(args: Compare) -> None:
    """Compares, prints the table, and writes it and the picture."""
    shared.need("matplotlib", "pandas", "pyarrow", "rich", "scipy")
    both, names, cells = compare(args)
    title = f"{names[0]} ({args.a}), {names[1]} ({args.b})"
    if args.steps is not None:
        title += f"; of each the first {args.steps:,} steps"
    try:
        text = f"{title}\n\n{markdown(cells[0], cells[1:])}"
        shared.write_atomically(args.output.with_name(args.output.name + ".md"), text)
        draw_comparison(both, names, args.output.with_name(args.output.name + ".svg"))
    except (OSError, ValueError) as error:  # ValueError: a path without a name
        fail(f"--output {args.output}: {error}; name files that can be written")
    shared.table(cells, title)
    for before, after in both.values():
        if before[0].arguments["total_timesteps"] != after[0].arguments["total_timesteps"]:
            print("A was to run for other steps than B, so what is annealed fell otherwise", file=sys.stderr)
            break


# --------------------------------------------------------------------------------------------------------- The commands


def report_runs(paths: list[Path], output: Path) -> None:
    """Tables and curves of some run folders, into the output folder."""
    if (output / "config.json").is_file():
        fail(f"--output {output}: is a run folder; name one of the report's own")
    runs = shared.find_runs(paths)
    text = []
    try:
        for exp_name, rows in rows_of(runs).items():
            draw(rows, output / f"{exp_name}.svg")
            header, *cells = result_cells(rows, times=True)
            text.append(f"## {exp_name}\n\n{markdown(header, cells)}\n![curves]({exp_name}.svg)\n")
            shared.table([header, *cells], exp_name)
        if not text:
            fail(f"{' '.join(str(path) for path in paths)}: none of the runs has ended; resume one first")
        shared.write_atomically(output / "tables.md", "\n".join(text))
    except OSError as error:
        fail(f"--output {output}: {error}; name a folder that can be written, with room on the disk")
    print(f"{output / 'tables.md'} and the curves are written; to browse the runs: tensorboard --logdir {paths[0]}")


def keep(folders: list[Path], stopped: bool, results: Path) -> None:
    """Adds runs to the kept results, all of them or none."""
    runs = []
    for folder in folders:
        try:
            run = shared.run_of_folder(folder)
        except shared.Unreadable as reason:
            fail(f"{reason}; name one that holds config.json and episodes.csv")
        if not run.ended and not stopped:
            done = f"it is at step {shared.last_step(folder):,} of {run.total:,}"
            fail(f"{folder}: has not ended, {done}; resume it first, or use --stopped")
        if len(run.returns) == 0:
            fail(f"{folder}: no episode ended in it")
        if not run.ended:
            run.stopped_at = shared.last_step(folder)
        runs.append(run)
    added = shared.append_runs(runs, results=results)
    print(f"{added} runs added to {results}" + (f"; {len(runs) - added} were there" if added < len(runs) else ""))


def comparisons() -> dict[str, tuple]:
    """What compare gives for each of COMPARISONS."""
    found = {}
    for name, a, b, steps in COMPARISONS:
        found[name] = compare(Compare(a, b, ["release=0.2"], ["release=0.2"], steps))
    return found


def all_tables(tables: dict[str, list[Row]], compared: dict[str, tuple], results: Path) -> dict[str, str]:
    """Every table that a page can have, by its name."""
    text = {}
    for exp_name, rows in tables.items():
        header, *cells = result_cells(rows)
        text[exp_name] = markdown(header, cells)
        text[f"{exp_name} by step"] = table_by_step(rows)
    text |= {"summary": summary_table(tables), "time_to_return": time_table(results)}
    text |= {"speed": speed_table(results), "short_speed": short_speed_table(results)}
    text |= {"launch": launch_table(results), "stages": stages_table(results)}
    for name, measured in shared.read_json("growth.json", results).items():
        text[f"growth_{name}"] = growth_table(measured)
    for name, (_, _, cells) in compared.items():
        text[name] = markdown(cells[0], cells[1:])
    return text


def rebuild(results: Path) -> None:
    """Writes the tables and curves of the kept runs: into the pages that show them, or, of others than this
    repository's, all of them into their folder."""
    tables = rows_of(shared.kept_runs("results", results))
    if not tables:
        fail(f"{results}: holds no runs; add some with --keep runs/RUN …")
    mine = results.resolve() != RESULTS
    compared = {} if mine else comparisons()
    text = all_tables(tables, compared, results)
    if mine:
        for exp_name, rows in tables.items():
            shared.write_atomically(results / f"{exp_name}.md", text[exp_name])
            draw(rows, results / f"{exp_name}.svg")
        print(f"{results}: {len(tables)} tables with their curves")
        return
    pages = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
    shown = "".join(page.read_text(encoding="utf-8") for page in pages)
    pictures_made = 0
    filled = 0
    for exp_name, rows in tables.items():
        if f"benchmark/results/{exp_name}.svg" in shown:
            draw(rows, results / f"{exp_name}.svg")
            pictures_made += 1
    for name, (both, names, _) in compared.items():
        if f"benchmark/results/{name}.svg" in shown:
            draw_comparison(both, names, results / f"{name}.svg")
            pictures_made += 1
    for page in pages:
        for name, content in text.items():
            filled += shared.fill(page, f"results {name}", content)
    print(f"{filled} tables in the pages and {pictures_made} pictures, of {len(tables)} scripts and settings")


def main(args: Args) -> None:
    shared.need("matplotlib", "pandas", "pyarrow", "rich", "scipy")
    if args.stopped and not args.keep:
        fail("--stopped: says what may be kept, and no run is named after --keep")
    if args.runs and args.keep:
        fail("--keep: adds to the kept results, so it takes no other runs beside it; make two calls")
    if args.runs:
        report_runs(args.runs, args.output)
        return
    try:
        if args.keep:
            keep(args.keep, args.stopped, args.results)
        rebuild(args.results)
    except OSError as error:
        fail(f"--results {args.results}: {error}; name a folder that can be written, with room on the disk")


if __name__ == "__main__":
    if sys.argv[1:2] == ["compare"]:
        compare_command(tyro.cli(Compare, prog="report.py compare", args=sys.argv[2:]))
    else:
        main(tyro.cli(Args, description=__doc__))
