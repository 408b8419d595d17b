"""Writes the tables and curves of the kept runs into the pages that have a place for them.

    python docs/build/result_tables.py

A table goes into its place, between <!-- results NAME --> and <!-- end of results -->. The runs are those of
benchmark/results, where `python benchmark/report.py --keep` keeps them; the speeds are those that
`benchmark/throughput.py --keep`, `cleanrl_speed.py` and `simulator_speed.py` measured.
"""

import argparse
import csv
import json
import math
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path

import blocks
import cleanrl_speed
import numpy as np
import simulator_speed
from blocks import ROOT
from command_line import one_line_errors
from intervals import LAST, mean_interval
from kept import RESULTS, kept_runs, read_json
from pages import between, markdown, pictures, save_picture, signed, spread
from report import (
    Compare,
    compare,
    comparison_table,
    counted,
    differing,
    draw_comparison,
    draw_curves,
    label_of,
    machines,
    results,
    sides,
)
from runs import Run
from throughput import launch_rows, speed_rows

PUBLISHED = [  # columns of published.csv
    "openai/baselines PPO",
    "openai/baselines PPO, first v2 table",
    "CleanRL, first v2 table",
    "CleanRL, older table",
    "CleanRL, Nov 2023",
    "CleanRL, EnvPool with XLA",
]
COMPARISONS = {
    "ppo_numpy_against_ppo": Compare("ppo", "ppo_numpy", release="1.0"),
    "ppo_continuous_action_numpy_against_ppo_continuous_action": Compare(
        "ppo_continuous_action", "ppo_continuous_action_numpy", release="1.0"
    ),
    "ppo_atari_bf16_against_fp32": Compare("fp32", "ppo_atari", only=["env-id=BreakoutNoFrameskip-v4"]),
    "bf16_against_fp32": Compare("fp32", "ppo_atari_envpool", release="0.2"),
}
FIRST_STEPS = {"ppo_atari_bf16_against_fp32": 3_400_000, "bf16_against_fp32": 2_000_000}  # where runs had more


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


def rows_of(runs: list[Run]) -> dict[str, list[Row]]:
    """The rows of the tables by name of the experiment, environments with published numbers first."""
    published = published_results()
    places = {place: i for i, place in enumerate(published)}
    groups = defaultdict(lambda: defaultdict(list))
    for run in sorted(latest(runs), key=lambda run: run.seed):
        order = places.get((run.script, run.env_id), len(places))
        groups[run.exp_name, order, run.env_id][json.dumps(run.identity, sort_keys=True)].append(run)
    tables = defaultdict(list)
    for group in sorted(groups):
        exp_name, _, env_id = group
        # Default options first
        for _, kind in sorted(groups[group].items(), key=lambda item: (len(item[1][0].settings), item[0])):
            names = differing([runs[0] for runs in groups[group].values()]) | {"changed_on_resume"}
            if len({run.release for run in latest(runs) if run.exp_name == exp_name}) > 1:
                names.add("version")  # every row says which
            theirs = published.get((kind[0].script, env_id), {})
            if theirs:  # then whatever isn't as published is said
                names |= kind[0].settings.keys()
            if theirs and int(theirs["steps"]) != kind[0].total:
                names.add("total_timesteps")
                theirs = {}
            tables[exp_name].append(Row(label_of(env_id, kind[0], names), kind, theirs))
    return tables


def latest(runs: list[Run]) -> list[Run]:
    """The runs without those of older releases, where a newer one has the same experiment."""
    groups = defaultdict(list)
    for run in runs:
        groups[run.exp_name, run.env_id, run.total, json.dumps(run.settings, sort_keys=True)].append(run)
    kept = []
    for group in groups.values():
        newest = max((run.release for run in group if run.release), default=None)
        kept += [run for run in group if run.release in (newest, None)]
    return kept


def result_cells(rows: list[Row], without: tuple = ()) -> list[list[str]]:
    """The table of an experiment, header first, without these columns and those that have no number."""
    releases = sorted({row.runs[0].release for row in rows} - {None})
    ours = f"ours, release {', '.join(releases)}" if releases else "return"
    cells = [["environment", ours, "95% interval", "seeds", *PUBLISHED]]
    for row in rows:
        _, low, high = mean_interval(results(row.runs))
        theirs = [row.published.get(name) or "–" for name in PUBLISHED]
        cells.append([row.label, spread(results(row.runs)), between(low, high), str(len(row.runs)), *theirs])
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


def result_table(rows: list[Row]) -> str:
    """Markdown: the table of an experiment, narrow enough for a phone; what each one published is folded below it."""
    header, *cells = result_cells(rows)
    names = [name for name in header if name in PUBLISHED]
    if len(names) < 2:
        return markdown(header, cells)
    ours = [i for i, name in enumerate(header) if name not in PUBLISHED]
    theirs = [0, *(header.index(name) for name in names)]
    narrow = []
    for row, line in zip(rows, cells):
        narrow.append([*(line[i] for i in ours), published_range(row.published) if row.published else "–"])
    wide = [[line[i] for i in theirs] for row, line in zip(rows, cells) if row.published]
    folded = markdown([header[i] for i in theirs], wide)
    summary = "<details markdown><summary>Each published number</summary>"
    return markdown([*(header[i] for i in ours), "published"], narrow) + f"\n{summary}\n\n{folded}\n</details>\n"


def published_rows(tables: dict[str, list[Row]]) -> list[Row]:
    """The rows with published numbers: environment by environment, and there script by script, with as few settings
    that aren't the published ones as there are."""
    found = {}
    for (script, environment), theirs in published_results().items():
        rows = [row for row in tables.get(script, []) if row.runs[0].env_id == environment and row.published]
        if rows and any(theirs[name] for name in PUBLISHED):
            found.setdefault(environment, []).append(min(rows, key=lambda row: len(row.runs[0].settings)))
    return [row for rows in found.values() for row in rows]


def overview_cells(row: Row, folder: str) -> dict[str, str]:
    """What the README and the page of results say of a row, by column; the pages are in the folder."""
    run = row.runs[0]
    return {
        "environment": row.label.removesuffix(f", release {run.release}"),
        "ours": rounded_spread(results(row.runs)),
        "95% interval": rounded_interval(results(row.runs)),
        "published": published_range(row.published),
        "seeds": str(len(row.runs)),
        "script": f"[`{run.exp_name}.py`]({folder}{run.exp_name}.md#results)",
        "release": run.release or "–",
    }


def summary_table(tables: dict[str, list[Row]]) -> str:
    """Markdown, narrow: all environments with published numbers; of a script and the one without torch, the newest
    release's, and of one release that with more seeds."""
    chosen = {}
    for row in published_rows(tables):
        task = row.runs[0].env_id, row.runs[0].exp_name.removesuffix("_numpy")
        rank = row.runs[0].release or "", len(row.runs)
        if task not in chosen or rank > chosen[task][0]:
            chosen[task] = rank, row
    cells = [overview_cells(row, "docs/") for _, row in chosen.values()]
    return markdown(list(cells[0]), [list(line.values()) for line in cells])


def overview_table(tables: dict[str, list[Row]]) -> str:
    """Markdown: every script and environment with published numbers."""
    cells = [overview_cells(row, "") for row in published_rows(tables)]
    return markdown(list(cells[0]), [list(line.values()) for line in cells])


def rounded_spread(returns: list[float]) -> str:
    """Mean ± standard deviation with two digits of the deviation; of one seed, three digits of its mean."""
    mean = np.mean(returns)
    if len(returns) == 1:
        return rounded(mean, mean / 10)
    deviation = np.std(returns, ddof=1)
    if deviation == 0:
        return rounded(mean, mean / 10)
    return f"{rounded(mean, deviation)} ± {rounded(deviation, deviation)}"


def rounded_interval(returns: list[float]) -> str:
    """The 95% interval of the mean, with two digits of the standard deviation; – of few runs and of equal ones."""
    _, low, high = mean_interval(returns)
    if not np.isfinite(low) or low == high:
        return "–"
    deviation = np.std(returns, ddof=1)
    return f"{rounded(low, deviation)} to {rounded(high, deviation)}"


def published_range(theirs: dict[str, str]) -> str:
    """The lowest and the highest published mean, three digits each."""
    texts = [theirs[name].split()[0] for name in PUBLISHED if theirs[name]]
    means = sorted(float(text.replace("−", "-")) for text in texts)
    ends = [rounded(mean, mean / 10) for mean in (means[0], means[-1])]
    return ends[0] if ends[0] == ends[1] else " to ".join(ends)


def rounded(number: float, scale: float) -> str:
    """The number with as many digits as leave two of the scale."""
    digits = 1 - math.floor(math.log10(abs(scale)))
    return f"{round(number, digits):,.{max(digits, 0)}f}".replace("-", "−")


def growth_table(growth: dict) -> str:
    """Markdown: how the speed grew with the number of environments in release 0.2, as multiples of each first one."""
    rows = []
    for measured in growth.values():
        if measured["options"]["vary"][0] == "num-envs":
            speeds = {value: one["script"]["steps_per_second"] for value, one in measured["medians"].items()}
            first = next(iter(speeds.values()))
            cells = [f"{value}: {speed / first:.1f}×" for value, speed in speeds.items()]
            options = measured["options"]
            rows.append([f"{options['script']}.py {options['arguments']}".strip(), ", ".join(cells)])
    return markdown(["script", "environments: speed"], rows)


def have_one_pace(runs: list[Run]) -> bool:
    """Whether a curve against minutes says something: they were recorded, on one machine, which had nothing else to do.
    Where it had, some runs take longer than others: a quarter longer for a step is too much."""
    if any(run.seconds is None for run in runs) or len(machines(runs)) > 1:
        return False
    paces = [run.seconds[-1] / run.steps[-1] for run in runs]
    return max(paces) <= 1.25 * min(paces)


def draw(rows: list[Row], path: Path) -> None:
    """The learning curves of a table, as an SVG with a panel for each row, and a second one, against minutes, for each
    that has them. A row whose returns are all the same has no curve."""
    plt = pictures()
    rows = [row for row in rows if len({float(one) for run in row.runs for one in run.returns}) > 1]
    panels = [(row, "steps") for row in rows] + [(row, "minutes") for row in rows if have_one_pace(row.runs)]
    columns = min(len(panels), 2)
    height = (len(panels) + columns - 1) // columns
    title_lines = max(row.label.count(", ") for row in rows)
    figure = plt.figure(figsize=(4 * columns, max(3, 2.4 + 0.25 * title_lines) * height))
    for i, (row, x) in enumerate(panels):
        panel = figure.add_subplot(height, columns, i + 1)
        draw_curves(panel, row.runs, "tab:blue", deviation=True, x=x)
        label = row.label.replace(", ", "\n")  # one line would be wider than the panel
        panel.set_title(f"{label}\n{counted(row.runs)}", fontsize=10)
        if i % columns == 0:
            panel.set_ylabel(f"return, last {LAST} episodes")
    save_picture(figure, path)


def comparisons() -> dict[str, dict]:
    """What compare gives for each of COMPARISONS."""
    compared = {}
    for name, one in COMPARISONS.items():
        both = sides(one)
        if name in FIRST_STEPS:
            both = [[shortened(run, FIRST_STEPS[name]) for run in runs] for runs in both]
        compared[name] = compare(one, *both)
    return compared


def shortened(run: Run, steps: int) -> Run:
    """The run as it was at this step; if it had ended earlier, with how it ended."""
    ended = run.steps <= steps
    had_ended = run.stopped_at is not None and run.stopped_at < steps
    return replace(
        run,
        arguments=run.arguments | {"total_timesteps": steps},
        end=run.end if had_ended else "whole",
        steps=run.steps[ended],
        returns=run.returns[ended],
        seconds=None,
    )


def all_tables(tables: dict[str, list[Row]], compared: dict[str, dict]) -> dict[str, str]:
    """Every table that a page can have, by its name."""
    speeds = read_json("speed.json")
    text = {"summary": summary_table(tables), "overview": overview_table(tables)}
    for name, (header, *cells) in {"speed": speed_rows(speeds), "launch": launch_rows(speeds)}.items():
        text[name] = markdown(header, cells)
    text["growth"] = growth_table(read_json("growth.json"))
    header, *cells = cleanrl_speed.table(read_json("cleanrl_speed.json"))
    text["cleanrl"] = markdown(header, cells)
    header, *cells = simulator_speed.table(read_json("simulator_speed.json"))
    text["simulators"] = markdown(header, cells)
    for exp_name, rows in tables.items():
        text[exp_name] = result_table(rows)
        if any(run.evaluations for row in rows for run in row.runs):
            text[f"{exp_name} by step"] = table_by_step(rows)
    for name, both in compared.items():
        header, *cells = comparison_table(both, paired=False)
        text[name] = markdown(header, cells)
    return text


def rebuild() -> None:
    """Writes the tables and curves of the kept runs that pages show."""
    tables = rows_of(kept_runs("results"))
    compared = comparisons()
    pages = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
    shown = "".join(page.read_text(encoding="utf-8") for page in pages)
    for exp_name, rows in tables.items():
        if f"benchmark/results/{exp_name}.svg" in shown:
            draw(rows, RESULTS / f"{exp_name}.svg")
    for name, both in compared.items():
        draw_comparison(both, RESULTS / f"{name}.svg", paired=False, deviation=True)
    for name, content in all_tables(tables, compared).items():
        for page in pages:
            blocks.fill(page, f"results {name}", content)
    print("the tables and curves of the pages are those of the kept runs")


if __name__ == "__main__":
    formatter = argparse.RawDescriptionHelpFormatter
    argparse.ArgumentParser(description=__doc__, formatter_class=formatter).parse_args()  # --help
    with one_line_errors():
        rebuild()
