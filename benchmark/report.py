"""Tables and learning curves of runs, from their folders or from the kept results of this repository.

    python benchmark/report.py runs                    tables and curves of the runs below runs/, into report/
    python benchmark/report.py compare runs_a runs_b   did a change help? See report.py compare --help
    python benchmark/report.py --keep runs/RUN …       add finished runs to the tables of benchmark/results
    python benchmark/report.py                         rebuild the tables and curves of the pages from those

A run's result is the mean return of its last 100 episodes. Tables give the mean ± standard deviation of the results
over seeds, and the 95% interval of the mean for five seeds and more. Runs that differ in an argument, or in the version
of their script, have different rows; what concerns only the machine or the speed doesn't count. A table goes into the
pages that have a place for it, between <!-- results NAME --> and <!-- end of results -->.
"""

import csv
import glob
import json
import sys
from collections import defaultdict
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import shared
import tyro
from shared import RESULTS, ROOT, Run, between, fail, markdown, signed, spread

POINTS = 101  # of a curve
PUBLISHED = ["openai/baselines PPO", "CleanRL, first table", "CleanRL, Nov 2023", "CleanRL, EnvPool with XLA"]
SHORT_SPEED = ["ppo", "ppo_numpy", "ppo_continuous_action", "ppo_continuous_action_numpy", "ppo_atari"]
SPEED_TABLES = {
    "speed": ["script", "environment", "steps/s", "stable-baselines3, default threads", "stable-baselines3, 1 thread",
              "speedup over the row below"],
    "short_speed": ["script", "environment", "steps/s", "stable-baselines3", "faster"],
    "launch": ["script", "launch to first update", "peak memory"],
}  # fmt: skip


@dataclass
class Args:
    runs: tyro.conf.Positional[list[Path]] = field(default_factory=list)  # run folders, or folders that hold them
    keep: list[Path] | None = None  # run folders to add to the kept results


@dataclass
class Compare:
    """Did a change help? Compares two sets of runs on the environments that both have.

        python benchmark/report.py compare "runs/*__ppo__*" "runs/*__mine__*" --output comparison
        python benchmark/report.py compare ppo ppo_numpy --release 0.3

    A and B are a run folder, a folder that holds runs, a pattern in quotes, or the name of kept runs. The difference
    B − A of the means has a 95% interval if both have five seeds. Where it leaves out 0, B is better or worse.
    """

    a: tyro.conf.Positional[str]  # the runs before
    b: tyro.conf.Positional[str]  # the runs after
    steps: int | None = None  # compare the first so many steps of each run; by default all, which must be equally many
    release: str | None = None  # compare kept runs of this release
    output: Path = Path("comparison")  # the files' name, to which .md and .svg are added


COMPARISONS = {  # what the pages compare: A, B, the first so many steps of them, and the release that ran them
    "ppo_numpy_against_ppo": ("ppo", "ppo_numpy", None, "0.3"),
    "ppo_continuous_action_numpy_against_ppo_continuous_action":
        ("ppo_continuous_action", "ppo_continuous_action_numpy", None, "0.3"),
    "bootstrap_truncated":
        ("ppo_continuous_action_numpy", "ppo_continuous_action_numpy_bootstrap_truncated", None, "0.2"),
    "bf16_against_fp32": ("fp32", "ppo_atari_envpool", 2_000_000, "0.2"),
}  # fmt: skip


# --------------------------------------------------------------------------------------------------------------- Tables
@dataclass
class Row:
    """The seeds of one experiment in one environment, and what was published of the same."""

    label: str  # the environment, and in what the runs differ from those of other rows
    runs: list[Run]
    published: dict[str, str]


def published_results() -> dict[tuple[str, str], dict[str, str]]:
    """What others published, by script and environment."""
    with (ROOT / "benchmark" / "published.csv").open(encoding="utf-8") as file:
        return {(row["script"], row["environment"]): row for row in csv.DictReader(file)}


def differing(runs: list[Run]) -> set[str]:
    """The names of what differs among runs, but for seeds. What a run lacks, its version of the script didn't have."""
    values = defaultdict(set)
    for run in runs:
        for name, value in ({"changed_on_resume": False} | run.identity).items():
            values[name].add(json.dumps(value))
    return {name for name in values if len(values[name]) > 1}


def label_of(name: str, run: Run, names: set[str]) -> str:
    """The name, and what the run has of what differs; nothing for what is its script's default."""
    parts = [name, *[f"{one}={run.settings[one]}" for one in sorted(names) if one in run.settings]]
    if "total_timesteps" in names:
        parts.append(f"{run.total:,} steps")
    if "version" in names:
        parts.append(f"version {run.version}" if run.release is None else f"release {run.release}")
    return ", ".join(parts)


def rows_of(runs: list[Run]) -> dict[str, list[Row]]:
    """The rows of the tables by name of the experiment, environments with published numbers first."""
    published = published_results()
    places = {place: i for i, place in enumerate(published)}
    groups = defaultdict(lambda: defaultdict(list))
    for run in sorted(runs, key=lambda run: run.seed):
        order = places.get((run.script, run.env_id), len(places))
        groups[run.exp_name, order, run.env_id][json.dumps(run.identity, sort_keys=True)].append(run)
    tables = defaultdict(list)
    for group in sorted(groups):
        exp_name, _, env_id = group
        for _, kind in sorted(groups[group].items()):
            names = differing([runs[0] for runs in groups[group].values()]) | {"changed_on_resume"}
            if len({run.release for run in runs if run.exp_name == exp_name}) > 1:
                names.add("version")  # every row says which
            theirs = published.get((kind[0].script, env_id), {})
            if theirs:  # then whatever isn't as published is said
                names |= kind[0].settings.keys()
            if theirs and int(theirs["steps"]) != kind[0].total:
                names.add("total_timesteps")
                theirs = {}
            tables[exp_name].append(Row(label_of(env_id, kind[0], names), kind, theirs))
    return tables


def counted(runs: list[Run]) -> str:
    return "1 seed" if len(runs) == 1 else f"{len(runs)} seeds"


def result_cells(rows: list[Row], without: tuple = ()) -> list[list[str]]:
    """The table of an experiment, header first, without these columns and those that have no number."""
    releases = sorted({row.runs[0].release for row in rows} - {None})
    ours = f"ours, release {' and '.join(releases)}" if releases else "return"
    cells = [["environment", ours, "95% interval", "seeds", *PUBLISHED]]
    for row in rows:
        results = [run.result for run in row.runs]
        _, low, high = shared.mean_interval(results)
        theirs = [row.published.get(name) or "–" for name in PUBLISHED]
        cells.append([row.label, spread(results), between(low, high), str(len(results)), *theirs])
    kept = [i for i, name in enumerate(cells[0]) if name not in without and any(line[i] != "–" for line in cells[1:])]
    return [[line[i] for i in kept] for line in cells]


def table_by_step(rows: list[Row]) -> str:
    """Markdown: mean returns on training levels and on levels that training never saw, by step."""
    import pandas

    found = [[row.label, *one] for row in rows for run in row.runs for one in run.evaluations]
    frame = pandas.DataFrame(found, columns=["environment", "steps", "levels", "return"])
    means = frame.groupby(["environment", "steps", "levels"])["return"].mean().unstack()
    cells = []
    for key, one in means.iterrows():
        cells.append([key[0], f"{key[1]:,}", signed(one["training"]), signed(one["test"])])
    return markdown(["environment", "steps", "training levels", "test levels"], cells)


def summary_table(tables: dict[str, list[Row]]) -> str:
    """Markdown: all environments with published numbers; of a script and its numpy twin, the one with more seeds."""
    chosen = []
    for (script, environment), theirs in published_results().items():
        rows = tables.get(script, []) + tables.get(f"{script}_numpy", [])
        rows = [row for row in rows if row.runs[0].env_id == environment and row.published]
        if rows and not script.endswith("_numpy") and any(theirs[name] for name in PUBLISHED):
            chosen.append(min(rows, key=lambda row: (len(row.runs[0].settings), -len(row.runs))))
    header, *cells = result_cells(chosen, without=("95% interval", "CleanRL, EnvPool with XLA"))
    return markdown([*header, "script"], [[*line, f"{row.runs[0].script}.py"] for row, line in zip(chosen, cells)])


def faster(measured: dict, key: str, base: str) -> str:
    """How much faster a side was than `base`: the median of the rounds' ratios, and their range."""
    ratios = "ratios" if key == "script" else "against_ratios"
    if base not in measured["medians"].get(ratios, {}):
        return "–"
    of_rounds = [one[ratios][base] for one in measured["rounds"]]
    return f"{measured['medians'][ratios][base]:.1f}× ({min(of_rounds):.1f}–{max(of_rounds):.1f})"


def speed_row(measured: dict, key: str, name: str) -> list[str]:
    """A side's row of the speed table."""
    medians = measured["medians"]
    cells = [name, measured["arguments"]["env_id"], f"{medians[key]['steps_per_second']:,.0f}"]
    for base in ("default threads", "1 thread"):
        theirs = []
        for how, one in (("serial ", base), ("workers ", f"{base}, SubprocVecEnv")):
            if one in medians:
                theirs.append(f"{how}{medians[one]['steps_per_second']:,.0f}: {faster(measured, key, one)}")
        if len(theirs) == 1:
            theirs = [theirs[0].removeprefix("serial ")]
        cells.append("<br>".join(theirs) or "–")
    return [*cells, faster(measured, key, "against")]


def speed_tables(speeds: dict) -> dict[str, str]:
    """Markdown by the name of the table: what throughput.py measured of each script, short names first. "short_speed"
    has some scripts at their defaults, next to stable-baselines3's faster setting. Rows of another release say so."""
    tables = {name: [] for name in SPEED_TABLES}
    short = {}
    for measurement in sorted(speeds, key=lambda name: (len(name), name)):
        measured = speeds[measurement]
        script = measurement.removeprefix("throughput/")
        options = measured["options"]
        older = "" if measured["release"] == shared.release() else f", release {measured['release']}"
        name = f"{script}.py {options['arguments']}".strip() + older
        medians = measured["medians"]
        names = {"script": name, "against": f"{script}.py {options['against'] or ''}".strip() + older}
        if options["processes"] > 1:
            names = {"script": f"{options['processes']} × {name}", "against": f"1 × {names['against']}"}
        sides = [key for key in names if key in medians]
        tables["speed"] += [speed_row(measured, key, names[key]) for key in sides]
        launch = [f"{medians['launch']['first_row_seconds']:.1f} s", f"{medians['launch']['peak_mb']:,.0f} MB"]
        tables["launch"].append([names["script"], *launch])
        if script in SHORT_SPEED and "1 thread" in medians:
            base = max(("default threads", "1 thread"), key=lambda base: medians[base]["steps_per_second"])
            side = "against" if options["against"] == "" else "script"
            pair = [f"{medians[key]['steps_per_second']:,.0f}" for key in (side, base)]
            short[script] = [names[side], measured["arguments"]["env_id"], *pair, faster(measured, side, base)]
    tables["short_speed"] = [short[script] for script in SHORT_SPEED if script in short]
    return {name: markdown(SPEED_TABLES[name], rows) for name, rows in tables.items()}


def growth_table(measured: dict) -> str:
    """Markdown: what throughput.py --vary measured, medians of its rounds, a row for each value of the argument."""
    rows = []
    for value, medians in measured["medians"].items():
        script = medians["script"]
        speeds = [one[value]["script"]["steps_per_second"] for one in measured["rounds"]]
        speed = f"{script['steps_per_second']:,.0f} ({min(speeds):,.0f}–{max(speeds):,.0f})"
        memory = f"{medians['launch']['peak_mb']:.0f} MB"
        rows.append([value, speed, f"{script['ms_per_update']:.1f}", memory])
    return markdown([measured["options"]["vary"][0], "steps/s", "ms per update", "peak memory"], rows)


# ------------------------------------------------------------------------------------------------------------- Pictures
def draw_curves(panel, runs: list[Run], color: str, label: str | None = None) -> None:
    """The mean curve of some seeds, with a band of one standard deviation where all have begun."""
    from matplotlib.ticker import EngFormatter

    grid = np.linspace(0, runs[0].total, POINTS)
    curves = np.array([shared.curve(run.steps, run.returns, grid) for run in runs])
    mean = curves.mean(axis=0)
    if len(runs) > 1:
        deviation = curves.std(axis=0, ddof=1)
        panel.fill_between(grid, mean - deviation, mean + deviation, color=color, alpha=0.25, linewidth=0)
    panel.plot(grid, mean, color=color, linewidth=1.8, label=label)
    panel.set_xlabel("environment steps")
    panel.xaxis.set_major_formatter(EngFormatter(sep=""))  # 1500000 as 1.5M


def draw(rows: list[Row], path: Path) -> None:
    """The learning curves of a table, as an SVG with a panel for each row."""
    plt = shared.pictures()
    columns = min(len(rows), 4)
    height = (len(rows) + columns - 1) // columns
    title_lines = max(row.label.count(", ") for row in rows)
    figure = plt.figure(figsize=(4 * columns, max(3, 2.4 + 0.25 * title_lines) * height))
    for i, row in enumerate(rows):
        panel = figure.add_subplot(height, columns, i + 1)
        draw_curves(panel, row.runs, "tab:blue")
        label = row.label.replace(", ", "\n")  # one line would be wider than the panel
        panel.set_title(f"{label}\n{counted(row.runs)}", fontsize=10)
        if i % columns == 0:
            panel.set_ylabel(f"return, last {shared.LAST} episodes")
    shared.save_picture(figure, path)


def draw_comparison(both: dict[str, list[list[Run]]], labels: list[str], path: Path) -> None:
    """Above, the curves of both sets in each environment; below, the difference with its interval."""
    plt = shared.pictures()
    figure, axes = plt.subplots(2, len(both), squeeze=False, height_ratios=(4, 1))
    figure.set_size_inches(max(4.2 * len(both), 5), 4.2)
    for environment, above, below in zip(both, axes[0], axes[1]):
        for runs, color, label in zip(both[environment], ("tab:orange", "tab:blue"), labels):
            draw_curves(above, runs, color, f"{label}, {counted(runs)}")
        above.set_title(environment, fontsize=10, pad=28)  # the legend is between it and the curves
        above.legend(fontsize=7, loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0, frameon=False)
        results = [[run.result for run in runs] for runs in both[environment]]
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


# ----------------------------------------------------------------------------------------------------------- Comparison
def shortened(run: Run, steps: int) -> Run:
    """The run as it was at this step."""
    ended = run.steps <= steps
    if run.total < steps or not ended.any():
        fail(f"--steps {steps}: {run.name} has {run.total:,}, and its first episode ended at {run.steps[0]:,.0f}")
    columns = {name: getattr(run, name)[ended] for name in ("steps", "returns", "lengths", "seconds")}
    return replace(run, total=steps, stopped_at=steps, **columns)


def compared_runs(pattern: str, args: Compare) -> dict[str, list[Run]]:
    """The runs of one side by environment. Ends the program with one line unless they are of one experiment."""
    folders = [Path(path) for path in sorted(glob.glob(pattern) or [pattern]) if Path(path).is_dir()]
    if folders:
        runs = shared.find_runs(folders)
    else:
        kept = shared.kept_runs(pattern) or [run for run in shared.kept_runs("results") if run.exp_name == pattern]
        runs = [run for run in kept if args.release in (None, run.release)]
    if not runs:
        which = f"kept runs of release {args.release}" if args.release else "kept runs"
        fail(f"{pattern}: is no folder and no {which}; name folders, a pattern in quotes, or kept runs such as ppo")
    if args.steps is not None:
        runs = [shortened(run, args.steps) for run in runs]
    environments = defaultdict(list)
    for run in sorted(runs, key=lambda run: (run.env_id, run.seed)):
        environments[run.env_id].append(run)
    for environment, members in environments.items():
        names = ", ".join(sorted(differing(members)))
        if names:
            fail(f"{pattern}: its runs in {environment} differ in {names}; name folders of one kind, or --release")
    return environments


def verdict(low: float, high: float) -> str:
    if np.isinf(low):
        return f"{shared.LEAST_SEEDS} seeds of each are needed"
    if low == high == 0:
        return "all runs are alike"
    if low > 0:
        return "B is better"
    return "B is worse" if high < 0 else "the runs can't tell"


def compare(args: Compare) -> tuple[dict[str, list[list[Run]]], list[str]]:
    """([runs of A, runs of B] by environment, and a label for each of the two)."""
    a = compared_runs(args.a, args)
    b = compared_runs(args.b, args)
    both = {environment: [a[environment], b[environment]] for environment in sorted(a.keys() & b.keys())}
    if not both:
        fail(f"{args.a} and {args.b}: have no environment in common")
    names = [{run.name for runs in side.values() for run in runs} for side in (a, b)]
    if names[0] & names[1]:
        fail(f"{args.a} and {args.b}: both have {min(names[0] & names[1])}; name two sets of runs")
    for environment in both:
        firsts = [a[environment][0], b[environment][0]]
        if firsts[0].total != firsts[1].total:
            fail(f"{environment}: A has {firsts[0].total:,} steps and B {firsts[1].total:,}; add --steps")
    names = differing(firsts) if firsts[0].exp_name == firsts[1].exp_name else set()
    return both, [f"{side}: {label_of(run.exp_name, run, names)}" for side, run in zip("AB", firsts)]


def comparison_table(both: dict[str, list[list[Run]]]) -> list[list[str]]:
    """The table of a comparison, header first."""
    cells = [["environment", "A", "B", "seeds", "B − A", "95% interval", "verdict"]]
    for environment, sides in both.items():
        results = [[run.result for run in runs] for runs in sides]
        difference, low, high = shared.difference_interval(*results, paired=False)
        row = [environment, *map(spread, results), f"{len(results[0])} and {len(results[1])}"]
        cells.append([*row, signed(difference), between(low, high), verdict(low, high)])
    return cells


def report_comparison(args: Compare) -> None:
    """Compares, prints the table, and writes it and the picture."""
    both, labels = compare(args)
    cells = comparison_table(both)
    title = f"{labels[0]} ({args.a}), {labels[1]} ({args.b})"
    shared.write_atomically(Path(f"{args.output}.md"), f"{title}\n\n{markdown(cells[0], cells[1:])}")
    draw_comparison(both, labels, Path(f"{args.output}.svg"))
    shared.table(cells, title)


def report_runs(paths: list[Path], output: Path) -> None:
    """Tables and curves of some run folders, into the output folder."""
    text = []
    for exp_name, rows in rows_of(shared.find_runs(paths)).items():
        draw(rows, output / f"{exp_name}.svg")
        header, *cells = result_cells(rows)
        text.append(f"## {exp_name}\n\n{markdown(header, cells)}\n![curves]({exp_name}.svg)\n")
        if any(run.evaluations for row in rows for run in row.runs):
            text.append(table_by_step(rows))
        shared.table([header, *cells], exp_name)
    shared.write_atomically(output / "tables.md", "\n".join(text))
    print(f"{output / 'tables.md'} and the curves are written; to browse the runs: tensorboard --logdir {paths[0]}")


def comparisons() -> dict[str, tuple]:
    """What compare gives for each of COMPARISONS."""
    return {name: compare(Compare(*typed)) for name, typed in COMPARISONS.items()}


def all_tables(tables: dict[str, list[Row]], compared: dict[str, tuple]) -> dict[str, str]:
    """Every table that a page can have, by its name."""
    text = speed_tables(shared.read_json("speed.json")) | {"summary": summary_table(tables)}
    for exp_name, rows in tables.items():
        header, *cells = result_cells(rows)
        text[exp_name] = markdown(header, cells)
        text[f"{exp_name} by step"] = table_by_step(rows)
    for name, measured in shared.read_json("growth.json").items():
        text[f"growth_{name}"] = growth_table(measured)
    for name, one in compared.items():
        header, *cells = comparison_table(one[0])
        text[name] = markdown(header, cells)
    return text


def rebuild() -> None:
    """Writes the tables and curves of the kept runs that pages show."""
    tables = rows_of(shared.kept_runs("results"))
    compared = comparisons()
    pages = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
    shown = "".join(page.read_text(encoding="utf-8") for page in pages)
    for exp_name, rows in tables.items():
        if f"benchmark/results/{exp_name}.svg" in shown:
            draw(rows, RESULTS / f"{exp_name}.svg")
    for name, one in compared.items():
        draw_comparison(*one, RESULTS / f"{name}.svg")
    for name, content in all_tables(tables, compared).items():
        for page in pages:
            shared.fill(page, f"results {name}", content)
    print("the tables and curves of the pages are those of the kept runs")


def main(args: Args | Compare) -> None:
    if isinstance(args, Compare):
        report_comparison(args)
    elif args.keep is not None:
        added = shared.append_runs(shared.find_runs(args.keep), results=RESULTS)
        print(f"{added} runs added to {RESULTS}")
    elif args.runs:
        report_runs(args.runs, Path("report"))
    else:
        rebuild()


if __name__ == "__main__":
    with shared.in_one_line():
        if sys.argv[1:2] == ["compare"]:
            main(tyro.cli(Compare, prog="report.py compare", args=sys.argv[2:]))
        else:
            main(tyro.cli(Args, description=__doc__))
