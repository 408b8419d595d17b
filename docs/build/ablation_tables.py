"""Fills docs/ablations.md and docs/details.md with what the kept ablations say, and draws their pictures.

    python docs/build/ablation_tables.py

`python benchmark/ablate.py keep` keeps runs in benchmark/results.
"""

import argparse
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmark"))
import blocks
from ablate import Ablation, all_ablations, manifest
from blocks import ROOT
from intervals import LEAST_SEEDS, curve, mean_interval, verdict
from kept import RESULTS, kept_runs
from pages import markdown, pictures, save_picture, signed
from runs import Run, version

DOCS = ROOT / "docs"
POINTS = 201  # of a curve
ELSEWHERE = ", another machine"
LINEAR = 10  # differences beyond are drawn on a logarithmic scale where one is far larger than the others
SHORT = ("atari", "lstm")  # suites that train 3% of a run, which says too little for the details' page
BY_CHANCE = {5: 1 / 12, 10: 1 / 19}  # by seeds: the share of intervals that leave out 0 with no effect


# ---------------------------------------------------------------------------------------------------- What was measured
@dataclass
class Cell:
    """An ablation in an environment, beside the untouched script; (S,) by the seeds that both have."""

    runs: list[Run]
    untouched: list[Run]  # those of the same machine, where they were kept
    last: np.ndarray  # (S,) differences of the last 100 episodes' mean return
    area: np.ndarray  # (S,) differences of the area under the curve, divided by the steps


Suite = dict[str, dict[str, Cell]]  # environment → ablation → its cell; "" is the untouched script itself


def area(run: Run) -> float:
    """The mean over the steps, from the first episode's end on, of the last 100 episodes' mean return; it stays what it
    was when a run diverges."""
    grid = np.linspace(0, run.arguments["total_timesteps"], POINTS)
    return float(np.nanmean(curve(run.steps, run.returns, grid)))


def largest(runs: list[Run], kind) -> list[Run]:
    """The runs of the kind that most are of; says when others are left out."""
    groups = defaultdict(list)
    for run in runs:
        groups[kind(run)].append(run)
    if len(groups) > 1:
        what = f"{runs[0].ablation['suite']} {runs[0].ablation['name'] or 'untouched'} on {runs[0].env_id}"
        print(f"{what}: fewer runs are of another version, or longer or shorter; they are left out")
    return max(groups.values(), key=len, default=[])


def load() -> dict[str, Suite]:
    """The kept runs by suite: of each environment those of one version and length that are most."""
    kept = kept_runs("ablations", RESULTS)
    by_name = {run.name: run for run in [*kept, *kept_runs("beside", RESULTS)]}
    found = defaultdict(dict)
    for suite, entry in manifest()["suites"].items():
        for env_id in entry["env_ids"]:
            runs = [run for run in kept if (run.ablation["suite"], run.env_id) == (suite, env_id)]
            runs = largest(runs, lambda run: (run.ablation["base"], run.arguments["total_timesteps"]))
            cells = cells_of(runs, by_name)
            if cells:
                found[suite][env_id] = cells
    return found


def cells_of(runs: list[Run], by_name: dict[str, Run]) -> dict[str, Cell]:
    """The cells of one environment. Of several runs with one seed, of several machines, the first one counts."""
    groups = defaultdict(list)
    for run in sorted(runs, key=lambda run: (run.seed, run.name), reverse=True):
        groups[run.ablation["name"]].append(run)
    baseline = {run.seed: run for run in groups[""]}
    cells = {}
    for name, group in groups.items():
        of_seeds = {run.seed: run for run in largest(group, lambda run: run.version)}
        own = [of_seeds[seed] for seed in sorted(of_seeds.keys() & baseline.keys())]
        untouched = [by_name.get(run.ablation.get("beside"), baseline[run.seed]) for run in own]
        if own:
            last = np.array([run.result for run in own]) - [run.result for run in untouched]
            areas = np.array([area(run) for run in own]) - [area(run) for run in untouched]
            cells[name] = Cell(own, untouched, last, areas)
    return cells


def seen_in(differences: np.ndarray) -> str:
    """What the interval of their mean says, in words; nothing for too few seeds."""
    _, low, high = mean_interval(differences)
    return verdict(low, high)


def in_words(differences: np.ndarray) -> str:
    """−12.3 [−20.1, −4.0], bold where the interval leaves out 0."""
    mean, low, high = mean_interval(differences)
    if not verdict(low, high):
        return number(mean)
    text = f"{number(mean)} [{number(low)}, {number(high)}]"
    if low > 0 or high < 0:
        return f"**{text}**"
    return text


def number(x: float) -> str:
    """Three digits with a sign; none for zero."""
    digits = 2
    if abs(x) >= 10:
        digits = 0 if abs(x) >= 100 else 1
    rounded = round(x, digits)
    return f"{rounded:+.{digits}f}".replace("-", "−") if rounded else "0.00"


def result_rows(cells: dict[str, Cell]) -> list[list[str]]:
    """The differences in one environment, a row an ablation, header first."""
    rows = []
    elsewhere = {}
    own = {run.name for run in cells[""].runs}
    for ablation in [one for one in all_ablations().values() if one.name in cells]:
        cell = cells[ablation.name]
        seeds = str(len(cell.runs))
        stopped = [run.total for run in cell.runs if run.stopped_at is not None]
        if stopped:
            seeds += f", {len(stopped)} diverged from step {min(stopped):,} on"
        if not own.issuperset(run.name for run in cell.untouched):
            seeds += ELSEWHERE
            elsewhere |= {run.name: run for run in cell.untouched if run.name not in own}
        differences = [in_words(cell.last), number(np.median(cell.last)), in_words(cell.area)]
        rows.append([ablation.link, ablation.title, *differences, seeds])
    for runs, where in ((list(elsewhere.values()), ELSEWHERE), (cells[""].runs, "")):
        if runs:
            results = [run.result for run in runs]
            numbers = np.mean(results), np.median(results), np.mean([area(run) for run in runs])
            rows.insert(0, ["untouched", "", *[signed(float(x)) for x in numbers], f"{len(runs)}{where}"])
    return [["", "in its place", "last 100 episodes", "its median", "area under the curve", "seeds"], *rows]


# ------------------------------------------------------------------------------------------------------------ The pages
def chip(differences: np.ndarray) -> str:
    """▼ −12.3, ▲ +4.5, ≈, or nothing for too few seeds."""
    mean = number(differences.mean())
    chips = {"worse": f"▼ {mean}", "better": f"▲ {mean}", "no difference seen": "≈", "": ""}
    return chips[seen_in(differences)]


def plain(environment: str) -> str:
    """An environment's name without the module that it is registered by."""
    return environment.rpartition(":")[2]


def thousands(steps: int) -> str:
    return f"{steps // 1_000_000}M" if steps >= 1_000_000 else f"{steps // 1000}k"


def results_table(cells: dict[str, Cell]) -> str:
    """Markdown: the differences in one environment, a row an ablation."""
    header, *rows = result_rows(cells)
    return markdown(header, rows)


def cells_with(ablation: Ablation, suites: dict[str, Suite]) -> list[tuple[str, Cell]]:
    """Environment and cell wherever the ablation was trained."""
    columns = [column for suite in suites.values() for column in suite.items()]
    return [(environment, cells[ablation.name]) for environment, cells in columns if ablation.name in cells]


def list_of_all(suites: dict[str, Suite]) -> str:
    """Markdown: every ablation, what stands in the detail's place and how."""
    rows = []
    for ablation in all_ablations().values():
        ways = [f"`{ablation.flag}`"] if ablation.flag else []
        if ablation.diff.is_file():
            ways.append(f"[{ablation.diff.name}](../benchmark/ablations/{ablation.diff.name})")
        seeds = max([len(cell.runs) for _, cell in cells_with(ablation, suites)], default=0)
        trained = f"no: {ablation.idle}" if ablation.idle else "–"
        if seeds:
            trained = "yes" if seeds >= LEAST_SEEDS else f"{seeds} of {LEAST_SEEDS} seeds"
        rows.append([ablation.link, ablation.title, ", ".join(ways), trained])
    return markdown(["detail", "in its place", "by", "trained"], rows)


def heat_map(suites: dict[str, Suite]) -> str:
    """Markdown: details × environments, each cell the difference of the last 100 episodes where its interval leaves out
    0, and ≈ where it doesn't; and how many would leave it out by chance."""
    columns = []
    header = ["", "in its place"]
    for suite, environments in suites.items():
        for environment, cells in environments.items():
            columns.append(cells)
            short = plain(environment).replace("NoFrameskip", "").partition("-")[0]
            if suite == "lstm":
                short += ", LSTM"
            header.append(f"{short} {thousands(cells[''].runs[0].planned)}")
    rows = []
    by_chance = []
    for name, ablation in all_ablations().items():
        row = [chip(cells[name].last) if name in cells else "" for cells in columns]
        if any(row):
            rows.append([ablation.link, ablation.title, *row])
        for cells, shown in zip(columns, row):
            if shown and cells[name].last.any():
                seeds = len(cells[name].last)
                by_chance.append(np.interp(seeds, list(BY_CHANCE), list(BY_CHANCE.values())))
    text = f"By chance alone, about {sum(by_chance):.0f} of these {len(by_chance)} intervals would exclude zero."
    return f"{markdown(header, rows)}\n{text}\n"


def studies_table(suites: dict[str, Suite]) -> str:
    """Markdown: what others found on the same choices, beside what the kept runs say."""
    rows = []
    for tag, study in manifest()["studies"].items():
        ours = []
        for ablation in [one for one in all_ablations().values() if one.tag == tag]:
            of_words = defaultdict(list)
            for environment, cell in cells_with(ablation, suites):
                of_words[seen_in(cell.last)].append(plain(environment))
            said = [f"{words} on {', '.join(where)}" for words, where in of_words.items() if words]
            if said:
                ours.append(f"{ablation.title}: {', '.join(said)}")
        choice = f"[{tag}](details.md#{tag}) {study['choice']}"
        rows.append([choice, study["engstrom"], study["andrychowicz"], "; ".join(ours) or "–"])
    return markdown(["", "Engstrom et al.", "Andrychowicz et al.", "here, last 100 episodes"], rows)


def worth(tag: str, suites: dict[str, Suite]) -> str:
    """Markdown for a detail's section: what was seen without it, a chip an environment, or why nothing was trained."""
    lines = []
    idle = ""
    whole = {name: suite for name, suite in suites.items() if name not in SHORT}
    for ablation in [one for one in all_ablations().values() if one.tag == tag]:
        idle = idle or ablation.idle
        chips = [f"{plain(x)} {chip(cell.last)}" for x, cell in cells_with(ablation, whole) if seen_in(cell.last)]
        if chips:
            lines.append(f"{ablation.title}: [{' · '.join(chips)}](ablations.md)")
        elif cells_with(ablation, suites):
            lines.append(f"{ablation.title}: tried in [3% of a run](ablations.md) only")
    if lines:
        return "  \n".join(lines) + "\n"
    return f"No ablation: {idle}.\n" if idle else "No ablation.\n"


def forest(suite: Suite, path: Path) -> None:
    """An SVG: a row an ablation, a column an environment; a dot for the last 100 episodes and a ring for the area under
    the curve, with their intervals."""
    shown = [x for name, x in all_ablations().items() if any(name in cells for cells in suite.values())]
    size = 4.2 + 2.6 * len(suite), 1.0 + 0.34 * len(shown)
    figure, axes = pictures().subplots(1, len(suite), figsize=size, sharey=True, squeeze=False)
    for axis, (environment, cells) in zip(axes[0], suite.items()):
        draw_column(axis, [cells.get(ablation.name) for ablation in shown])
        seeds = sorted({len(cell.runs) for cell in cells.values()})
        counts = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
        axis.set_title(f"{plain(environment)}, {counts} seeds", fontsize=10)
    axes[0][0].set_yticks(range(len(shown)), [f"{x.tag}  {x.title}" for x in shown], fontsize=9)
    axes[0][0].set_ylim(len(shown) - 0.5, -0.5)
    save_picture(figure, path)


def draw_column(axis, cells: list[Cell | None]) -> None:
    """One environment of a forest plot."""
    axis.axvline(0, color="#808080", linewidth=0.8)
    ends = []
    for row, cell in enumerate(cells):
        if cell is None:
            continue
        for differences, shift, is_filled in ((cell.last, -0.15, True), (cell.area, 0.15, False)):
            mean, low, high = mean_interval(differences)
            if not np.isfinite(low):  # too few seeds
                low = mean
                high = mean
            color = {"worse": "tab:red", "better": "tab:blue"}.get(seen_in(differences), "#808080")
            axis.plot([low, high], [row + shift] * 2, color=color, linewidth=1.6)
            axis.plot([mean], [row + shift], "o", color=color, markersize=5, fillstyle="full" if is_filled else "none")
            ends += [abs(low), abs(high)]
    axis.set_xlabel("difference of the return")
    low, high = axis.dataLim.intervalx
    if max(ends) > 10 * max(np.median(ends), LINEAR):  # one large effect would squeeze all others into a line
        axis.set_xlabel(f"difference of the return\n(logarithmic beyond ±{LINEAR})")
        axis.set_xscale("symlog", linthresh=LINEAR, subs=range(2, 10))
        axis.set_xlim(-max(-1.4 * low, 2 * LINEAR), max(1.4 * high, 2 * LINEAR))
    axis.xaxis.set_major_formatter(lambda x, position: f"{x / 1e3:g}k" if abs(x) >= 1e3 else f"{x:g}")


def report() -> None:
    """Fills the blocks of docs/ablations.md and docs/details.md, and draws the pictures."""
    suites = load()
    tables = {"short": heat_map(suites), "list": list_of_all(suites), "studies": studies_table(suites)}
    for name, entry in manifest()["suites"].items():
        suite = suites.get(name, {})
        for env_id in entry["env_ids"]:
            cells = suite.get(env_id)
            text = f'<div class="changes" markdown>\n\n{results_table(cells)}\n</div>\n' if cells else "No ablation.\n"
            tables[f"{name} {env_id}"] = text
        tables[name] = "No ablation.\n"
        if suite:
            forest(suite, RESULTS / f"ablations_{name}.svg")
            tables[name] = f"![differences, {name}](../benchmark/results/ablations_{name}.svg)\n"
            run = next(iter(suite.values()))[""].runs[0]
            if run.version != version(ROOT / "cleanrl" / f"{run.script}.py"):
                tables[name] += f"\nMeasured with release {run.release}; {run.script}.py has changed since.\n"
    for name, text in tables.items():
        blocks.fill(DOCS / "ablations.md", f"ablations {name}", f"\n{text}\n")
    for tag in {ablation.tag for ablation in all_ablations().values()}:
        blocks.fill(DOCS / "details.md", f"worth {tag}", f"\n{worth(tag, suites)}\n")
    print("docs/ablations.md, docs/details.md and benchmark/results/ablations_*.svg are those of the kept runs")


if __name__ == "__main__":
    formatter = argparse.RawDescriptionHelpFormatter
    argparse.ArgumentParser(description=__doc__, formatter_class=formatter).parse_args()  # --help
    report()
