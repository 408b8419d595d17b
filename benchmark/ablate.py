"""What each detail is worth: takes them out one at a time, trains, and measures the difference.

    python benchmark/ablate.py run --workers 2         the runs of the core details; typed again, it goes on
    python benchmark/ablate.py run --suite continuous --env-ids HalfCheetah-v4 --num-seeds 3 --only cont-6 core-7
    python benchmark/ablate.py status                  what is done of them
    python benchmark/ablate.py keep                    finished runs into benchmark/results
    python benchmark/ablate.py report                  tables and pictures in docs/, from what is kept there
    python benchmark/ablate.py scripts                 the changed scripts, and a sweep.py command for each

benchmark/ablations/manifest.toml names the details and what stands in the place of each; the changes are diffs beside
it. They are applied to copies of the scripts in runs/ablations/scripts, whose runs get names of their own, such as
ppo_numpy-without-core-7. The runs are sweep.py's: it skips what is done and resumes what was interrupted. They go
through all details with one seed, then with the next, one environment after the other. A run whose loss is no longer
finite ends with status 1; `keep --broken` keeps what such runs had until then.

A difference is that of a run and the run of the untouched script with the same seed, mean over the seeds, with a 95%
interval (shared.mean_interval). The untouched run is one of the same machine, since another one rounds otherwise. What
is compared is the mean return of the last 100 episodes, and the area under the curve: the mean of the same number over
the steps, from the first episode's end on.
"""

import os
import shlex
import tomllib
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
POINTS = 201  # of a curve
LINEAR = 10  # differences beyond are drawn on a logarithmic scale where one is far larger than the others
ELSEWHERE = ", another machine"
BY_CHANCE = (LEAST_SEEDS, 10), (1 / 12, 1 / 19)  # seeds → share of intervals that leave out 0 with no effect


@dataclass
class Args:
    action: tyro.conf.Positional[Literal["run", "status", "keep", "report", "scripts"]]  # what to do
    suite: str = "core"  # which scripts, environments and details: a suite of the manifest
    only: list[str] = field(default_factory=list)  # ablations to run, instead of all of the suite
    env_ids: list[str] = field(default_factory=list)  # environments, instead of the suite's
    start_seed: int = 1  # the first seed
    num_seeds: int | None = None  # seeds from there, instead of as many as the suite says
    broken: bool = False  # `keep` stores what runs had that broke, too
    arguments: str = ""  # further arguments for all the runs, as one string after =: --arguments="--num-envs 8"
    workers: int = 1  # runs at a time
    threads: int | None = None  # CPU threads of a run; the cores are shared out if not given
    folder: Path = Path("runs/ablations")  # takes the changed scripts, and the runs and logs below it


# ------------------------------------------------------------------------------------------------------------ The diffs
@dataclass(frozen=True)
class Ablation:
    name: str
    instead: str  # what stands in the detail's place
    flag: str = ""  # arguments that do it
    on: bool = False  # the detail is off by default, and the flag turns it on
    tag: str = ""
    idle: str = ""  # why it isn't trained

    @property
    def diff(self) -> Path:
        return ABLATIONS / f"{self.name}.diff"

    @property
    def title(self) -> str:
        return f"{self.instead} (turned on)" if self.on else self.instead

    @property
    def link(self) -> str:
        return f"[{self.tag}](details.md#{self.tag})"

    def exp_name(self, script: str) -> str:
        return f"{script}-{'with' if self.on else 'without'}-{self.name}"


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
    for line in diff.read_text("utf-8").splitlines(keepends=True) if diff.is_file() else []:
        if line.startswith("--- "):
            script = Path(line.split()[1]).stem
            changes[script] = []
        elif line.startswith("@@"):
            changes[script].append(["", ""])
        elif line[0] in " -+" and changes and changes[script]:
            if line[0] != "+":
                changes[script][-1][0] += line[1:]
            if line[0] != "-":
                changes[script][-1][1] += line[1:]
    return changes


def changed(ablation: Ablation, script: str) -> str:
    """The script with the diff applied. Its lines are looked for by their text, so that it fits wherever they stand;
    ends the program with one line where they are gone, or there twice."""
    text = "\n" + (ROOT / "cleanrl" / f"{script}.py").read_text("utf-8")
    changes = hunks(ablation.diff).get(script)
    if not changes:
        fail(f"{ablation.diff.name}: changes nothing in {script}.py; add a hunk, or a flag to manifest.toml")
    for before, after in changes:
        found = text.count(f"\n{before}")
        if found != 1:
            first = before.strip().splitlines()[0].strip()
            lines = f'the lines of {script}.py that it changes, from "{first}" on'
            fail(f"{ablation.diff.name}: {lines}, are there {found} times; make it anew, as manifest.toml says")
        text = text.replace(f"\n{before}", f"\n{after}")
    return text[1:]


def commands_of(suite: dict, ablations: list[Ablation]) -> dict[str, tuple[str, str]]:
    """By ablation, "" first for the untouched script: the name of the script, and the command line from the folder."""
    script = suite["script"]
    found = {"": (script, f"python scripts/{script}.py {suite['arguments']}".strip())}
    for one in ablations:
        if one.flag:
            flag = f" {one.flag} --exp-name {one.exp_name(script)}"  # what is typed last counts
            found[one.name] = script, f"{found[''][1]}{flag}"
        else:
            name = one.exp_name(script)
            found[one.name] = name, f"python scripts/{name}.py {suite['arguments']}".strip()
    return found


def write_scripts(suite: dict, ablations: list[Ablation], folder: Path) -> None:
    """Writes the untouched script and the changed ones, where they are not there already."""
    texts = {suite["script"]: (ROOT / "cleanrl" / f"{suite['script']}.py").read_text("utf-8")}
    texts |= {one.exp_name(suite["script"]): changed(one, suite["script"]) for one in ablations if not one.flag}
    for name, text in texts.items():
        path = folder / "scripts" / f"{name}.py"
        try:
            if not path.is_file() or path.read_text("utf-8") != text:
                shared.write_atomically(path, text)
        except OSError as error:
            fail(f"--folder {folder}: can't be written ({error.strerror}); name another folder")


# ------------------------------------------------------------------------------------------------------------- The runs
def chosen(args: Args) -> tuple[dict, list[Ablation]]:
    """The suite as the arguments have it, and its ablations."""
    suites = manifest()["suites"]
    if args.suite not in suites:
        fail(f"--suite {args.suite}: there is none of this name; there are {', '.join(suites)}")
    suite = suites[args.suite] | {"name": args.suite}
    for option, typed, there in (("only", args.only, suite["ablations"]), ("env-ids", args.env_ids, suite["env_ids"])):
        unknown = sorted(set(typed) - set(there))
        if unknown:
            fail(f"--{option} {' '.join(unknown)}: not in the suite, which has {' '.join(there)}; see manifest.toml")
    for name, least in {"num_seeds": 1, "workers": 1, "threads": 1, "start_seed": 0}.items():
        value = getattr(args, name)
        if value is not None and value < least:
            fail(f"--{name.replace('_', '-')} {value}: must be {least} or more")
    suite["env_ids"] = args.env_ids or suite["env_ids"]
    suite["num_seeds"] = args.num_seeds or suite["num_seeds"]
    suite["arguments"] = f"{suite.get('arguments', '')} {args.arguments}".strip()
    try:
        shlex.split(args.arguments)
    except ValueError:
        fail(f"--arguments {args.arguments}: has a quote without its second one; add it")
    wanted = [all_ablations()[name] for name in args.only or suite["ablations"]]
    script = shlex.quote(str(ROOT / "cleanrl" / f"{suite['script']}.py"))
    sweep.make_jobs(sweep.Args(env_ids=suite["env_ids"], command=f"python {script} {suite['arguments']}"))  # complains
    return suite, wanted


def make_jobs(args: Args, suite: dict, ablations: list[Ablation]) -> list[sweep.Job]:
    """The runs, in the order in which they are made; goes to the folder, which they are relative to."""
    os.chdir(args.folder)
    commands = commands_of(suite, ablations)
    jobs = []
    for name, (_, command) in commands.items():
        sizes = {"num_seeds": suite["num_seeds"], "start_seed": args.start_seed}
        for job in sweep.make_jobs(sweep.Args(env_ids=suite["env_ids"], command=command, **sizes)):
            job.point = [name or "untouched"]
            jobs.append(job)
    order = [name or "untouched" for name in commands]
    return sorted(jobs, key=lambda job: (suite["env_ids"].index(job.env_id), job.seed, order.index(job.point[0])))


def there_already(args: Args, suite: dict, ablations: list[Ablation]) -> list[sweep.Job]:
    """The jobs of a folder that `run` has made, with their states."""
    for script, _ in commands_of(suite, ablations).values():
        if not (args.folder / "scripts" / f"{script}.py").is_file():
            fail(f"--folder {args.folder}: has no scripts/{script}.py; `run` with the same options makes it")
    jobs = make_jobs(args, suite, ablations)
    sweep.look(jobs)
    return jobs


def print_status(jobs: list[sweep.Job]) -> int:
    """A row for each ablation: how many of its runs are in which state, by environment. Returns the exit status."""
    environments = list(dict.fromkeys(job.env_id for job in jobs))
    rows = [["", *environments]]
    for point in dict.fromkeys(job.point[0] for job in jobs):
        row = [point]
        for environment in environments:
            row.append(sweep.count_states([x for x in jobs if (x.point[0], x.env_id) == (point, environment)]))
        rows.append(row)
    shared.table(rows)
    done = sum(job.state == "done" for job in jobs)
    print(f"{done} of {len(jobs)} runs are done", flush=True)
    return 0 if done == len(jobs) else 1


def run(args: Args) -> int:
    suite, ablations = chosen(args)
    write_scripts(suite, ablations, args.folder)
    jobs = make_jobs(args, suite, ablations)
    status = sweep.make_runs(jobs, sweep.Args(workers=args.workers, threads=args.threads))
    print_status(jobs)
    return status


def keep(args: Args) -> int:
    """Stores finished runs of the scripts as they are in the folder, each with the name of the untouched run beside
    it."""
    suite, ablations = chosen(args)
    jobs = there_already(args, suite, ablations)
    base = shared.version(Path("scripts", f"{suite['script']}.py"))
    runs = {}
    for job in jobs:
        folders = sweep.matching_runs(job)
        broke = args.broken and job.state in ("interrupted", "queued") and folders
        if job.state != "done" and not (broke and sweep.last_checkpoint(folders[-1])):
            continue
        one = shared.run_of_folder(folders[-1])
        one.script = suite["script"]
        one.stopped_at = None if job.state == "done" else int(one.steps[-1])
        name = "" if job.point == ["untouched"] else job.point[0]
        one.ablation = {"suite": suite["name"], "name": name, "base": base}
        if args.arguments:
            one.ablation["arguments"] = args.arguments
        if name and ("", job.env_id, job.seed) in runs:
            one.ablation["beside"] = runs["", job.env_id, job.seed].name
        runs[name, job.env_id, job.seed] = one
    if not runs:
        fail(f"--folder {args.folder}: none of its runs has ended; see `status`")
    added = shared.append_runs(list(runs.values()), "ablations", RESULTS)
    print(f"{added} runs added to {RESULTS}; `python benchmark/ablate.py report` makes the tables anew")
    return 0


def scripts(args: Args) -> int:
    """Writes the changed scripts, and prints a command for each, to make its runs elsewhere."""
    suite, ablations = chosen(args)
    write_scripts(suite, ablations, args.folder)
    sizes = f"--env-ids {shlex.join(suite['env_ids'])} --num-seeds {suite['num_seeds']} --start-seed {args.start_seed}"
    tool = shlex.quote(sweep.__file__)
    for _, command in commands_of(suite, ablations).values():
        typed = f"python {tool} {sizes} --command {shlex.quote(command)}"
        print(f"(cd {shlex.quote(str(args.folder))} && {typed})")
    return 0


# ---------------------------------------------------------------------------------------------------- What was measured
@dataclass
class Cell:
    """An ablation in an environment, beside the untouched script; (S,) by the seeds that both have."""

    runs: list[Run]
    untouched: list[Run]  # those of the same machine where they were kept, since another one rounds otherwise
    last: np.ndarray  # (S,) differences of the last 100 episodes' mean return
    area: np.ndarray  # (S,) differences of the area under the curve, divided by the steps


Suite = dict[str, dict[str, Cell]]  # environment → ablation → its cell; "" is the untouched script itself


def area(run: Run) -> float:
    """The mean over the steps, from the first episode's end on, of the mean return of the last 100 episodes; it stays
    what it was when a run diverges."""
    grid = np.linspace(0, run.arguments["total_timesteps"], POINTS)
    return float(np.nanmean(shared.curve(run.steps, run.returns, grid)))


def largest(groups: dict, what: str):
    """The group with most runs; says when others are left out."""
    if len(groups) > 1:
        print(f"{what}: fewer runs are of another version, or with other --arguments; they are left out")
    return max(groups.values(), key=len, default=())


def load() -> dict[str, Suite]:
    """The kept runs by suite: of each environment those of one version and the same --arguments that are most."""
    kept = shared.kept_runs("ablations", RESULTS)
    by_name = {run.name: run for run in [*kept, *shared.kept_runs("beside", RESULTS)]}
    environments = {}
    for run in kept:
        groups = environments.setdefault((run.ablation["suite"], run.env_id), {})
        groups.setdefault((run.ablation["base"], run.ablation.get("arguments")), []).append(run)
    found = {}
    for suite, entry in manifest()["suites"].items():
        for env_id in entry["env_ids"]:
            groups = environments.get((suite, env_id), {})
            cells = cells_of(largest(groups, f"{suite} on {env_id}"), by_name, f"{suite} on {env_id}")
            if "" in cells:
                found.setdefault(suite, {})[env_id] = cells
    return found


def cells_of(runs: list[Run], by_name: dict[str, Run], what: str) -> dict[str, Cell]:
    """The cells of one environment. Of several runs with one seed, of several machines, the first one counts."""
    groups = {}
    for run in sorted(runs, key=lambda run: (run.seed, run.name), reverse=True):
        groups.setdefault(run.ablation["name"], {}).setdefault(run.version, {})[run.seed] = run
    of_seeds = {name: largest(versions, f"{what}, {name}") for name, versions in groups.items()}
    baseline = of_seeds.get("", {})
    cells = {}
    for name, changed_runs in of_seeds.items():
        pairs = []
        for seed in sorted(changed_runs.keys() & baseline.keys()):
            run = changed_runs[seed]
            pairs.append((run, by_name.get(run.ablation.get("beside"), baseline[seed])))
        if pairs:
            last = np.array([run.result - untouched.result for run, untouched in pairs])
            areas = np.array([area(run) - area(untouched) for run, untouched in pairs])
            cells[name] = Cell([run for run, _ in pairs], [untouched for _, untouched in pairs], last, areas)
    return cells


def in_words(differences: np.ndarray) -> str:
    """−12.3 [−20.1, −4.0], bold where the interval leaves out 0."""
    mean, low, high = shared.mean_interval(differences)
    if len(differences) < LEAST_SEEDS:
        return number(mean)
    text = f"{number(mean)} [{number(low)}, {number(high)}]"
    return f"**{text}**" if low > 0 or high < 0 else text


def verdict(differences: np.ndarray) -> str:
    """What the interval says, in words; nothing where there is none."""
    _, low, high = shared.mean_interval(differences)
    if len(differences) < LEAST_SEEDS:
        return ""
    if low > 0:
        return "better"
    return "worse" if high < 0 else "no difference seen"


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
    rows, elsewhere = [], {}
    own = {run.name for run in cells[""].runs}
    for name, ablation in all_ablations().items():
        if name not in cells:
            continue
        cell = cells[name]
        seeds = str(len(cell.runs))
        stopped = sorted(run.total for run in cell.runs if run.stopped_at is not None)
        if stopped:
            seeds += f", {len(stopped)} diverged from step {stopped[0]:,} on"
        others = {run.name: run for run in cell.untouched if run.name not in own}
        if others:
            seeds += ELSEWHERE
            elsewhere |= others
        differences = [in_words(cell.last), number(np.median(cell.last)), in_words(cell.area)]
        rows.append([ablation.link, ablation.title, *differences, seeds])
    for runs, where in ((list(elsewhere.values()), ELSEWHERE), (cells[""].runs, "")):
        if runs:
            results = [run.result for run in runs]
            numbers = np.mean(results), np.median(results), np.mean([area(run) for run in runs])
            rows.insert(0, ["untouched", "", *[shared.signed(x) for x in numbers], f"{len(runs)}{where}"])
    header = ["", "in its place", "last 100 episodes", "its median", "area under the curve", "seeds"]
    return markdown(header, rows)


def list_of_all(suites: dict[str, Suite]) -> str:
    """Markdown: every ablation, what stands in the detail's place and how."""
    rows = []
    for ablation in all_ablations().values():
        ways = [f"`{ablation.flag}`"] if ablation.flag else []
        if ablation.diff.is_file():
            ways.append(f"[{ablation.diff.name}](../benchmark/ablations/{ablation.diff.name})")
        seeds = max([len(cell.runs) for _, cell in cells_with(ablation, suites)], default=0)
        trained = f"{seeds} of {LEAST_SEEDS} seeds" if seeds else "not measured"
        if seeds >= LEAST_SEEDS:
            trained = "yes"
        elif ablation.idle:
            trained = f"no: {ablation.idle}"
        rows.append([ablation.link, ablation.title, ", ".join(ways), trained])
    return markdown(["detail", "in its place", "by", "trained"], rows)


def cells_with(ablation: Ablation, suites: dict[str, Suite]) -> list[tuple[str, Cell]]:
    """Environment and cell wherever the ablation was trained."""
    found = []
    for suite in suites.values():
        for environment, cells in suite.items():
            if ablation.name in cells:
                found.append((environment, cells[ablation.name]))
    return found


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
        row = []
        for cells in columns:
            row.append(chip(cells[name].last) if name in cells else "")
            if row[-1] and cells[name].last.any():
                by_chance.append(np.interp(len(cells[name].last), *BY_CHANCE))
        if any(row):
            rows.append([ablation.link, ablation.title, *row])
    text = f"Of these {len(by_chance)} intervals about {sum(by_chance):.0f} would leave out 0 by chance."
    return f"{markdown(header, rows)}\n{text}\n"


def chip(differences: np.ndarray) -> str:
    """▼ −12.3, ▲ +4.5, ≈, or nothing for too few seeds."""
    signs = {"worse": "▼ ", "better": "▲ ", "no difference seen": "≈", "": ""}
    words = verdict(differences)
    return signs[words] + (number(differences.mean()) if words in ("worse", "better") else "")


def studies_table(suites: dict[str, Suite]) -> str:
    """Markdown: what others found on the same choices, beside what the kept runs say."""
    rows = []
    for tag, study in manifest()["studies"].items():
        ours = []
        for ablation in all_ablations().values():
            of_words = {}
            for environment, cell in cells_with(ablation, suites) if ablation.tag == tag else []:
                if verdict(cell.last):
                    of_words.setdefault(verdict(cell.last), []).append(plain(environment))
            if of_words:
                said = [f"{words} on {', '.join(where)}" for words, where in of_words.items()]
                ours.append(f"{ablation.title}: {', '.join(said)}")
        choice = f"[{tag}](details.md#{tag}) {study['choice']}"
        rows.append([choice, study["engstrom"], study["andrychowicz"], "; ".join(ours) or "not measured"])
    return markdown(["", "Engstrom et al.", "Andrychowicz et al.", "here, last 100 episodes"], rows)


def worth(tag: str, suites: dict[str, Suite]) -> str:
    """Markdown for a detail's section: what was seen without it, a chip an environment, or why nothing was trained."""
    lines, idle = [], ""
    for ablation in all_ablations().values():
        if ablation.tag != tag:
            continue
        idle = idle or ablation.idle
        chips = [f"{plain(x)} {chip(cell.last)}" for x, cell in cells_with(ablation, suites) if verdict(cell.last)]
        if chips:
            lines.append(f"{ablation.title}: [{' · '.join(chips)}](ablations.md)")
    if lines:
        return "  \n".join(lines) + "\n"
    return f"Not measured: {idle}.\n" if idle else "Not measured.\n"


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
        for differences, shift, is_filled in ((cell.last, -0.15, True), (cell.area, 0.15, False)) if cell else []:
            mean, low, high = shared.mean_interval(differences)
            if not np.isfinite(low):  # too few seeds
                low = high = mean
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


def made_by(suite: Suite) -> str:
    """Markdown: the release that a suite was measured with, where its script has changed since."""
    run = next(iter(suite.values()))[""].runs[0]
    if run.version == shared.version(ROOT / "cleanrl" / f"{run.script}.py"):
        return ""
    return f"\nMeasured with release {run.release}; {run.script}.py has changed since.\n"


def report(args: Args) -> int:
    """Fills the blocks of docs/ablations.md and docs/details.md, and draws the pictures."""
    suites = load()
    tables = {"short": heat_map(suites), "list": list_of_all(suites), "studies": studies_table(suites)}
    for suite, entry in manifest()["suites"].items():
        tables[suite] = "Not measured.\n"
        if suite in suites:
            forest(suites[suite], RESULTS / f"ablations_{suite}.svg")
            tables[suite] = (
                f"![differences, {suite}](../benchmark/results/ablations_{suite}.svg)\n{made_by(suites[suite])}"
            )
        for env_id in entry["env_ids"]:
            cells = suites.get(suite, {}).get(env_id)
            text = f'<div class="changes" markdown>\n\n{results_table(cells)}\n</div>\n' if cells else "Not measured.\n"
            tables[f"{suite} {env_id}"] = text
    for name, text in tables.items():
        shared.fill(DOCS / "ablations.md", f"ablations {name}", f"\n{text}\n")
    for tag in {ablation.tag for ablation in all_ablations().values()}:
        shared.fill(DOCS / "details.md", f"worth {tag}", f"\n{worth(tag, suites)}\n")
    runs = sum(len(cell.runs) for suite in suites.values() for cells in suite.values() for cell in cells.values())
    print(f"{runs} runs: docs/ablations.md, docs/details.md, benchmark/results/ablations_*.svg")
    return 0


def status(args: Args) -> int:
    suite, ablations = chosen(args)
    return print_status(there_already(args, suite, ablations))


ACTIONS = {"run": run, "status": status, "keep": keep, "report": report, "scripts": scripts}

if __name__ == "__main__":
    args = tyro.cli(Args, description=__doc__)
    try:
        raise SystemExit(ACTIONS[args.action](args))
    except ValueError as error:  # sweep.py's
        fail(str(error))
