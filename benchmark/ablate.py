"""Takes details out one at a time, trains, and measures the difference.

    python benchmark/ablate.py run --workers 2         the runs of the core details; typed again, it goes on
    python benchmark/ablate.py run --suite continuous --env-ids HalfCheetah-v4 --num-seeds 3 --only cont-6 core-7
    python benchmark/ablate.py status                  what is done of them
    python benchmark/ablate.py keep                    finished runs into benchmark/results
    python benchmark/ablate.py report                  tables and pictures in docs/, from what is kept there

benchmark/ablations/manifest.toml names the details and what stands in the place of each; the changes are diffs beside
it, applied to copies of the scripts in runs/ablations/scripts. The runs are sweep.py's: all details with one seed, then
with the next, one environment after the other. A run is compared with the untouched script's of the same seed and
machine, since another machine rounds otherwise.
"""

import os
import tomllib
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np
import shared
import sweep
import tyro
from shared import LEAST_SEEDS, RESULTS, ROOT, Run, fail, markdown

ABLATIONS = ROOT / "benchmark" / "ablations"
DOCS = ROOT / "docs"
FOLDER = Path("runs/ablations")  # of the changed scripts, and of their runs
POINTS = 201  # of a curve
LINEAR = 10  # differences beyond are drawn on a logarithmic scale where one is far larger than the others
ELSEWHERE = ", another machine"
BY_CHANCE = (LEAST_SEEDS, 10), (1 / 12, 1 / 19)  # seeds → share of intervals that leave out 0 with no effect


@dataclass
class Args:
    action: tyro.conf.Positional[Literal["run", "status", "keep", "report"]]  # what to do
    suite: str = "core"  # which scripts, environments and details: a suite of the manifest
    only: list[str] = field(default_factory=list)  # ablations to run, instead of all of the suite
    env_ids: list[str] = field(default_factory=list)  # environments, instead of the suite's
    num_seeds: int | None = None  # seeds from 1 on, instead of as many as the suite says
    workers: int = 1  # runs at a time
    broken: bool = False  # `keep` stores what runs had that broke or were stopped, too


# ------------------------------------------------------------------------------------------------------------ The diffs
@dataclass
class Ablation:
    name: str
    instead: str  # what stands in the detail's place
    flag: str = ""  # arguments that do it
    on: bool = False  # the detail is off by default, and the flag turns it on
    tag: str = ""
    idle: str = ""  # why it isn't trained

    def __post_init__(self):
        self.title = f"{self.instead} (turned on)" if self.on else self.instead
        self.link = f"[{self.tag}](details.md#{self.tag})"

    @property
    def diff(self) -> Path:
        return ABLATIONS / f"{self.name}.diff"


@cache
def manifest() -> dict[str, dict]:
    return tomllib.loads((ABLATIONS / "manifest.toml").read_text("utf-8"))


@cache
def all_ablations() -> dict[str, Ablation]:
    """The ablations by their names."""
    return {name: Ablation(name, **{"tag": name} | entry) for name, entry in manifest()["ablations"].items()}


def hunks(diff: Path) -> dict[str, list[tuple[str, str]]]:
    """What a diff changes, by script: pairs of the lines that are there and those that come in their place, each with
    the lines around them."""
    changes = {}
    text = diff.read_text("utf-8") if diff.is_file() else ""
    for of_script in f"\n{text}".split("\n--- ")[1:]:
        script = Path(of_script.split()[0]).stem
        changes[script] = []
        for hunk in of_script.split("\n@@")[1:]:
            lines = f"{hunk}\n".splitlines(keepends=True)[1:]
            before = "".join(line[1:] for line in lines if line[0] in " -")
            after = "".join(line[1:] for line in lines if line[0] in " +")
            changes[script].append((before, after))
    return changes


def changed(ablation: Ablation, script: str) -> str:
    """The script with the diff applied wherever its lines are; one line ends the program unless they are there once."""
    text = "\n" + (ROOT / "cleanrl" / f"{script}.py").read_text("utf-8")
    changes = hunks(ablation.diff).get(script)
    if not changes:
        fail(f"{ablation.diff.name}: changes nothing in {script}.py; add a hunk, or a flag to manifest.toml")
    for before, after in changes:
        found = text.count(f"\n{before}")
        if found != 1:
            lines = f'the lines from "{before.strip().splitlines()[0].strip()}" on are in {script}.py {found} times'
            fail(f"{ablation.diff.name}: {lines}; make it anew, as manifest.toml says")
        text = text.replace(f"\n{before}", f"\n{after}")
    return text[1:]


# ------------------------------------------------------------------------------------------------------------- The runs
def chosen(args: Args) -> dict:
    """The suite as the arguments have it."""
    suites = manifest()["suites"]
    if args.suite not in suites:
        fail(f"--suite {args.suite}: there is none of this name; there are {', '.join(suites)}")
    suite = suites[args.suite] | {"name": args.suite}
    for key, typed in (("ablations", args.only), ("env_ids", args.env_ids)):
        unknown = sorted(set(typed) - set(suite[key]))
        if unknown:
            fail(f"{' '.join(unknown)}: not in the suite, which has {' '.join(suite[key])}; see manifest.toml")
        suite[key] = typed or suite[key]
    suite["num_seeds"] = suite["num_seeds"] if args.num_seeds is None else args.num_seeds
    if min(suite["num_seeds"], args.workers) < 1:
        fail("--num-seeds and --workers: must be 1 or more")
    return suite


def make_jobs(suite: dict) -> list[sweep.Job]:
    """The runs, in the order in which they are made. Writes the scripts, and goes to the folder that has them."""
    script = suite["script"]
    arguments = suite.get("arguments", "")
    texts = {script: (ROOT / "cleanrl" / f"{script}.py").read_text("utf-8")}
    commands = {"untouched": f"python scripts/{script}.py {arguments}"}
    for one in [all_ablations()[name] for name in suite["ablations"]]:
        name = f"{script}-{'with' if one.on else 'without'}-{one.name}"
        if one.flag:
            commands[one.name] = f"python scripts/{script}.py {arguments} {one.flag} --exp-name {name}"
        else:
            texts[name] = changed(one, script)
            commands[one.name] = f"python scripts/{name}.py {arguments}"
    for name, text in texts.items():
        shared.write_atomically(FOLDER / "scripts" / f"{name}.py", text)
    os.chdir(FOLDER)
    jobs = []
    for name, command in commands.items():
        wanted = sweep.Args(env_ids=suite["env_ids"], command=command, num_seeds=suite["num_seeds"])
        for job in sweep.make_jobs(wanted):
            job.point = [name]
            jobs.append(job)
    return sorted(jobs, key=lambda job: (suite["env_ids"].index(job.env_id), job.seed))


def keep(jobs: list[sweep.Job], suite: dict, broken: bool) -> None:
    """Stores finished runs, each with the name of the untouched run beside it."""
    sweep.look(jobs)
    base = shared.version(Path("scripts", f"{suite['script']}.py"))
    runs = {}
    wanted = ["done", "interrupted"] if broken else ["done"]
    for job in [job for job in jobs if job.state in wanted]:
        run = shared.run_of_folder(sweep.matching_runs(job)[-1])
        if not len(run.steps):  # it was stopped before its first episode ended
            continue
        run.script = suite["script"]
        run.stopped_at = None if job.state == "done" else int(run.steps[-1])
        name = "" if job.point == ["untouched"] else job.point[0]
        run.ablation = {"suite": suite["name"], "name": name, "base": base}
        if ("", job.env_id, job.seed) in runs:
            run.ablation["beside"] = runs["", job.env_id, job.seed].name
        runs[name, job.env_id, job.seed] = run
    added = shared.append_runs(list(runs.values()), "ablations", RESULTS)
    print(f"{added} runs added to {RESULTS}; `python benchmark/ablate.py report` makes the tables anew")


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
    return float(np.nanmean(shared.curve(run.steps, run.returns, grid)))


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
    kept = shared.kept_runs("ablations", RESULTS)
    by_name = {run.name: run for run in [*kept, *shared.kept_runs("beside", RESULTS)]}
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


def verdict(differences: np.ndarray) -> str:
    """What the interval says, in words; nothing where there is none."""
    _, low, high = shared.mean_interval(differences)
    if not np.isfinite(low):  # too few seeds
        return ""
    if low > 0:
        return "better"
    return "worse" if high < 0 else "no difference seen"


def chip(differences: np.ndarray) -> str:
    """▼ −12.3, ▲ +4.5, ≈, or nothing for too few seeds."""
    mean = number(differences.mean())
    return {"worse": f"▼ {mean}", "better": f"▲ {mean}", "no difference seen": "≈", "": ""}[verdict(differences)]


def in_words(differences: np.ndarray) -> str:
    """−12.3 [−20.1, −4.0], bold where the interval leaves out 0."""
    mean, low, high = shared.mean_interval(differences)
    if not verdict(differences):
        return number(mean)
    text = f"{number(mean)} [{number(low)}, {number(high)}]"
    return f"**{text}**" if low > 0 or high < 0 else text


def number(x: float) -> str:
    """Three digits with a sign; none for zero."""
    digits = 2
    if abs(x) >= 10:
        digits = 0 if abs(x) >= 100 else 1
    rounded = round(x, digits)
    return f"{rounded:+.{digits}f}".replace("-", "−") if rounded else "0.00"


def plain(environment: str) -> str:
    """An environment's name without the module that it is registered by."""
    return environment.rpartition(":")[2]


# ------------------------------------------------------------------------------------------------------------- The page
def results_table(cells: dict[str, Cell]) -> str:
    """Markdown: the differences in one environment, a row an ablation."""
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
            rows.insert(0, ["untouched", "", *[shared.signed(x) for x in numbers], f"{len(runs)}{where}"])
    return markdown(["", "in its place", "last 100 episodes", "its median", "area under the curve", "seeds"], rows)


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
            header.append(f"{short}, LSTM" if suite == "lstm" else short)
    rows = []
    by_chance = []
    for name, ablation in all_ablations().items():
        row = [chip(cells[name].last) if name in cells else "" for cells in columns]
        if any(row):
            rows.append([ablation.link, ablation.title, *row])
        for cells, shown in zip(columns, row):
            if shown and cells[name].last.any():
                by_chance.append(np.interp(len(cells[name].last), *BY_CHANCE))
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
                of_words[verdict(cell.last)].append(plain(environment))
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
    for ablation in [one for one in all_ablations().values() if one.tag == tag]:
        idle = idle or ablation.idle
        chips = [f"{plain(x)} {chip(cell.last)}" for x, cell in cells_with(ablation, suites) if verdict(cell.last)]
        if chips:
            lines.append(f"{ablation.title}: [{' · '.join(chips)}](ablations.md)")
    if lines:
        return "  \n".join(lines) + "\n"
    return f"No ablation: {idle}.\n" if idle else "No ablation.\n"


def forest(suite: Suite, path: Path) -> None:
    """An SVG: a row an ablation, a column an environment; a dot for the last 100 episodes and a ring for the area under
    the curve, with their intervals."""
    shown = [x for name, x in all_ablations().items() if any(name in cells for cells in suite.values())]
    size = 4.2 + 2.6 * len(suite), 1.0 + 0.34 * len(shown)
    figure, axes = shared.pictures().subplots(1, len(suite), figsize=size, sharey=True, squeeze=False)
    for axis, (environment, cells) in zip(axes[0], suite.items()):
        draw_column(axis, [cells.get(ablation.name) for ablation in shown])
        seeds = sorted({len(cell.runs) for cell in cells.values()})
        counts = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
        axis.set_title(f"{plain(environment)}, {counts} seeds", fontsize=10)
    axes[0][0].set_yticks(range(len(shown)), [f"{x.tag}  {x.title}" for x in shown], fontsize=9)
    axes[0][0].set_ylim(len(shown) - 0.5, -0.5)
    shared.save_picture(figure, path)


def draw_column(axis, cells: list[Cell | None]) -> None:
    """One environment of a forest plot."""
    axis.axvline(0, color="#808080", linewidth=0.8)
    ends = []
    for row, cell in enumerate(cells):
        if cell is None:
            continue
        for differences, shift, is_filled in ((cell.last, -0.15, True), (cell.area, 0.15, False)):
            mean, low, high = shared.mean_interval(differences)
            if not np.isfinite(low):  # too few seeds
                low = mean
                high = mean
            color = {"worse": "tab:red", "better": "tab:blue"}.get(verdict(differences), "#808080")
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
            if run.version != shared.version(ROOT / "cleanrl" / f"{run.script}.py"):
                tables[name] += f"\nMeasured with release {run.release}; {run.script}.py has changed since.\n"
    for name, text in tables.items():
        shared.fill(DOCS / "ablations.md", f"ablations {name}", f"\n{text}\n")
    for tag in {ablation.tag for ablation in all_ablations().values()}:
        shared.fill(DOCS / "details.md", f"worth {tag}", f"\n{worth(tag, suites)}\n")
    print("docs/ablations.md, docs/details.md and benchmark/results/ablations_*.svg are those of the kept runs")


def main(args: Args) -> int:
    """Does what is typed; returns the exit status. Raises ValueError with one line for a mistake."""
    if args.action == "report":
        report()
        return 0
    suite = chosen(args)
    if args.action == "keep" and not (FOLDER / "runs").is_dir():
        fail(f"{FOLDER}: holds no runs; make them by `python benchmark/ablate.py run`, and keep them from this folder")
    jobs = make_jobs(suite)
    if args.action == "run":
        return sweep.make_runs(jobs, args.workers)
    if args.action == "keep":
        keep(jobs, suite, args.broken)
    else:
        sweep.print_status(jobs)
    return 0


if __name__ == "__main__":
    with shared.in_one_line(ValueError):  # sweep.py's
        raise SystemExit(main(tyro.cli(Args, description=__doc__)))
