"""What each detail is worth: takes them out one at a time, trains, and measures the difference.

    python benchmark/ablate.py run --workers 2         the runs of the core details; typed again, it goes on
    python benchmark/ablate.py run --suite continuous --env-ids HalfCheetah-v4 --num-seeds 3 --only cont-6 core-7
    python benchmark/ablate.py status                  what is done of them
    python benchmark/ablate.py keep                    finished runs into benchmark/results/ablations
    python benchmark/ablate.py report                  tables, pictures and "Worth:" lines from what is kept there
    python benchmark/ablate.py commands                a sweep.py command for each, to which --slurm can be added
    python benchmark/ablate.py scripts                 only the changed scripts

benchmark/ablations/manifest.toml names the details and what stands in the place of each; the changes are diffs beside
it. They are applied to copies of the scripts in runs/ablations/scripts, whose runs get names of their own, such as
ppo_numpy-without-core-7. The runs are sweep.py's: it skips what is done and resumes what was interrupted; with
--skip-kept also what was kept, on whatever machine. They go through all details with one seed, then with the next, one
environment after the other.

A difference is that of a run and the run of the untouched script with the same seed, mean over the seeds, with a 95%
interval of 9,999 bootstrap samples of the seeds. Plain percentiles of so few are too narrow: with normal differences
and no effect they leave out 0 in about one case of six with 5 seeds, of eleven with 10. Percentiles further out, as
Student's t asks for (Hesterberg 2015, "What Teachers Should Know About the Bootstrap"), do in one of twelve and of
nineteen. Compared are the mean return of the last 100 episodes, and the area under the curve: the mean of the same
number over the steps, from the first episode's end on.
"""

import json
import os
import re
import shlex
import sys
import tomllib
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np
import report
import sweep
import tyro
from report import plt
from scipy.stats import bootstrap, norm, t
from shared import identity, version, write_whole

ROOT = Path(__file__).resolve().parent.parent
ABLATIONS = ROOT / "benchmark" / "ablations"
DOCS, KEPT = ROOT / "docs", ROOT / "benchmark" / "results" / "ablations"
LEAST_SEEDS = 5  # for an interval
LINEAR = 10  # differences beyond are drawn on a logarithmic scale where one is far larger than the others
ELSEWHERE = ", another machine"
BY_CHANCE = (LEAST_SEEDS, 10), (1 / 12, 1 / 19)  # seeds → share of intervals that leave out 0 with no effect


@dataclass
class Args:
    action: tyro.conf.Positional[Literal["run", "status", "keep", "report", "commands", "scripts"]]  # what to do
    suite: str = "core"  # which scripts, environments and details: a suite of the manifest
    only: list[str] = field(default_factory=list)  # ablations to run, instead of all of the suite
    env_ids: list[str] = field(default_factory=list)  # environments, instead of the suite's
    start_seed: int = 1  # the first seed
    num_seeds: int | None = None  # seeds from there, instead of as many as the suite says
    skip_kept: bool = False  # leave out what `keep` has stored, but the untouched runs beside those that are to be made
    arguments: str = ""  # further arguments for all the runs, as one string after =: --arguments="--num-envs 8"
    workers: int = 1  # runs at a time
    threads: int | None = None  # CPU threads of a run; the cores are shared out if not given
    folder: Path = Path("runs/ablations")  # takes the changed scripts, and the runs and logs below it


def fail(message: str):
    """Ends the program with one line on stderr and status 2."""
    print(f"{Path(__file__).name}: error: {' '.join(message.split())}", file=sys.stderr)
    raise SystemExit(2)


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

    def exp_name(self, script: str) -> str:
        return f"{script}-{'with' if self.on else 'without'}-{self.name}"


@cache
def manifest() -> tuple[dict[str, Ablation], dict[str, dict]]:
    """The ablations and the suites by their names."""
    content = tomllib.loads((ABLATIONS / "manifest.toml").read_text())
    ablations = {name: Ablation(name, **{"tag": name} | entry) for name, entry in content["ablations"].items()}
    return ablations, content["suites"]


def hunks(diff: Path) -> dict[str, list[tuple[str, str]]]:
    """What a diff changes, by script: pairs of the lines that are there and those that come in their place, each with
    the lines around them."""
    changes, script = defaultdict(list), ""
    for line in diff.read_text().splitlines(keepends=True) if diff.is_file() else ():
        if line.startswith("--- "):
            script = Path(line.split()[1]).stem
        elif line.startswith("@@"):
            changes[script].append(("", ""))
        elif line[0] in " -+" and changes[script]:
            before, after = changes[script][-1]
            changes[script][-1] = before + line[1:] * (line[0] != "+"), after + line[1:] * (line[0] != "-")
    return dict(changes)


def changed(ablation: Ablation, script: str) -> str:
    """The script with the diff applied. Its lines are looked for by their text, so that it fits wherever they stand;
    ends the program with one line where they are gone, or there twice."""
    text = (ROOT / "cleanrl" / f"{script}.py").read_text()
    changes = hunks(ablation.diff).get(script)
    if not changes:
        fail(f"{ablation.diff.name}: changes nothing in {script}.py; add a hunk, or a flag to manifest.toml")
    for before, after in changes:
        found = f"\n{text}".count(f"\n{before}")
        if found != 1:
            first = before.strip().splitlines()[0].strip()
            fail(f'{ablation.diff.name}: the lines of {script}.py that it changes, from "{first}" on, are there '
                 f"{found} times; make it anew, as manifest.toml says")  # fmt: skip
        text = f"\n{text}".replace(f"\n{before}", f"\n{after}")[1:]
    return text


def write_scripts(suite: dict, ablations: list[Ablation], folder: Path) -> dict[str, str]:
    """Writes the untouched script and the changed ones. Returns the commands, from the folder, by ablation; that of
    the untouched script comes first, under ""."""
    script, commands = suite["script"], {}
    sources = {"": (ROOT / "cleanrl" / f"{script}.py").read_text()}
    sources |= {one.name: changed(one, script) for one in ablations if not one.flag}
    try:
        (folder / "scripts").mkdir(parents=True, exist_ok=True)
        for one in (None, *ablations):
            name = one.exp_name(script) if one and not one.flag else script
            path = folder / "scripts" / f"{name}.py"
            text = sources[one.name if one and not one.flag else ""]
            if not path.is_file() or path.read_text() != text:
                path.write_text(text)
            flags = f" {one.flag} --exp-name {one.exp_name(script)}" if one and one.flag else ""
            commands[one.name if one else ""] = f"python scripts/{path.name}{flags}"
    except OSError as error:
        fail(f"--folder {folder}: {error}; name a folder that can be written")
    return commands


# ------------------------------------------------------------------------------------------------------------- The runs


def flags(words: str) -> set[str]:
    """The arguments that are typed, --no-anneal-lr as --anneal-lr."""
    typed = [word.split("=")[0].replace("_", "-") for word in words.split() if word.startswith("--")]
    return {word.replace("--no-", "--", 1) for word in typed}


def chosen(args: Args) -> tuple[dict, list[Ablation]]:
    """The suite as the arguments have it, and its ablations."""
    ablations, suites = manifest()
    if args.suite not in suites:
        fail(f"--suite {args.suite}: there is none of this name; there are {', '.join(suites)}")
    suite = suites[args.suite] | {"name": args.suite}
    if unknown := set(args.only) - set(suite["ablations"]):
        fail(f"--only {' '.join(sorted(unknown))}: is not in the suite, which has {' '.join(suite['ablations'])}")
    for name in ("num_seeds", "workers", "threads"):
        if (value := getattr(args, name)) is not None and value < 1:
            fail(f"--{name.replace('_', '-')} {value}: must be 1 or more")
    if args.start_seed < 0:
        fail(f"--start-seed {args.start_seed}: must be 0 or more")
    suite["env_ids"], suite["num_seeds"] = args.env_ids or suite["env_ids"], args.num_seeds or suite["num_seeds"]
    if unknown := set(args.env_ids) - set(suites[args.suite]["env_ids"]):
        others = ", ".join(suites[args.suite]["env_ids"])
        fail(f"--env-ids {' '.join(sorted(unknown))}: is not in the suite, which has {others}; add it to manifest.toml")
    suite["arguments"] = f"{suite.get('arguments', '')} {args.arguments}".strip()
    wanted = [ablations[name] for name in suite["ablations"] if not args.only or name in args.only]
    for one in wanted:  # what is typed last counts
        if taken := flags(suite["arguments"]) & flags(one.flag):
            fail(f"--arguments: hold {' '.join(sorted(taken))}, which {one.name} sets itself; leave it out, or choose "
                 "others by --only")  # fmt: skip
    words = f"python {shlex.quote(str(ROOT / 'cleanrl' / suite['script']))}.py {suite['arguments']}".strip()
    sweep.make_jobs(sweep.Args(env_ids=list(suite["env_ids"]), command=words))  # complains, before there is a folder
    return suite, wanted


def make_jobs(args: Args) -> list[sweep.Job]:
    """The runs, in the order in which they are made; goes to the folder, which they are relative to."""
    suite, ablations = chosen(args)
    commands = write_scripts(suite, ablations, args.folder)
    os.chdir(args.folder)
    jobs = []
    for name, command in commands.items():
        words = f"{command} {suite['arguments']}".strip()
        seeds = {"num_seeds": suite["num_seeds"], "start_seed": args.start_seed}
        wanted = sweep.Args(env_ids=list(suite["env_ids"]), command=words, **seeds)
        for job in sweep.make_jobs(wanted):
            job.point = name or "untouched"
            jobs.append(job)
    kept = [job for job in jobs if args.skip_kept and is_kept(job)]
    wanted = {(job.env_id, job.seed) for job in jobs if job not in kept}  # another machine may round otherwise
    for job in kept:
        if job.point != "untouched" or (job.env_id, job.seed) not in wanted:
            job.state = "kept"
    order = [name or "untouched" for name in commands]
    return sorted(jobs, key=lambda job: (suite["env_ids"].index(job.env_id), job.seed, order.index(job.point)))


def is_kept(job: sweep.Job) -> bool:
    """Whether `keep` has stored a run of the same arguments by the same version of the script."""
    for path in KEPT.glob(f"runs/{report.slug(job.arguments['exp_name'])}/*/config.json"):
        config = json.loads(path.read_text())
        if config.get("version") == job.version and identity(config["arguments"]) == identity(job.arguments):
            return True
    return False


def run(args: Args) -> int:
    jobs = make_jobs(args)
    wanted = [job for job in jobs if job.state != "kept"]
    made = sweep.Sweep(wanted, sweep.Args(workers=args.workers, threads=args.threads))
    status = made.run(sweep.Lines())
    sweep.report_failures(made)
    print_status(jobs, made.folders)
    return status


def show_status(args: Args) -> int:
    jobs, folders = make_jobs(args), sweep.Folders(Path(), False)
    sweep.look([job for job in jobs if job.state != "kept"], folders)
    print_status(jobs, folders)
    return int(any(job.state not in ("done", "kept") for job in jobs))


def print_status(jobs: list[sweep.Job], folders: sweep.Folders) -> None:
    """A line for each ablation: how many of its runs are done in each environment, and their mean return."""
    cells, environments = defaultdict(list), list(dict.fromkeys(job.env_id for job in jobs))
    for job in jobs:
        cells[job.point, job.env_id].append(job)
    rows = [["", *environments]]
    for point in dict.fromkeys(job.point for job in jobs):
        row = [point]
        for environment in environments:
            of_cell = cells[point, environment]
            done, kept = ([job for job in of_cell if job.state == state] for state in ("done", "kept"))
            returns = [sweep.progress(folders.matching(job)[-1])[2] for job in done]
            returns = [x for x in returns if x is not None]
            mean = f"  {np.mean(returns):9.1f}" if returns else f"{'':11}"
            others = {job.state for job in of_cell} - {"done", "queued"}
            row.append(f"{len(done + kept)}/{len(of_cell)}{mean} {' '.join(sorted(others))}".rstrip())
        rows.append(row)
    widths = [max(map(len, column)) for column in zip(*rows)]
    print(*("  ".join(f"{x:{width}}" for x, width in zip(row, widths)).rstrip() for row in rows), sep="\n")
    done = sum(job.state in ("done", "kept") for job in jobs)
    kept = sum(is_kept(job) for job in jobs if job.state not in ("done", "kept"))
    more = f" here; {kept} others are kept in benchmark/results, --skip-kept leaves them out" if kept else ""
    print(f"{done} of {len(jobs)} runs are done{more}", flush=True)


def diverged(log: Path) -> bool:
    """Whether the script ended the run because a loss or a weight was not finite."""
    lines = log.read_text(errors="replace").splitlines() if log.is_file() else []
    return any(": error: update " in line and ": not finite: " in line for line in lines[-1:])


def kept_as(exp_name: str, run: str) -> Path:
    """The folder of a kept run, from where report.keep_run was told to keep it."""
    return Path("runs", report.slug(exp_name), run)


def keep(args: Args) -> int:
    """Stores what finished runs of the scripts as they are now have left, with the version of the untouched script and
    its run on this machine with the same seed; of a run that diverged what it had until then, with the last step logged
    as stopped_at."""
    jobs, folders, ended, count = make_jobs(args), sweep.Folders(Path(), False), {}, 0
    base = version(next(job.script for job in jobs if job.point == "untouched").read_text())
    for job in jobs:
        if (runs := folders.matching(job)) and sweep.last_checkpoint(runs[-1]):
            if sweep.last_checkpoint(runs[-1]) >= job.last_update or diverged(Path(job.log)):
                ended[job.point, job.env_id, job.seed] = job, runs[-1]
    new = {key for key, (job, _) in ended.items() if not is_kept(job)}
    beside = {key: ("untouched", *key[1:]) for key in new if ("untouched", *key[1:]) in ended}
    for key in sorted(new | set(beside.values())):
        job, folder = ended[key]
        places = [KEPT, KEPT / "beside"]  # the latter for untouched runs of further machines
        if any((place / kept_as(job.arguments["exp_name"], folder.name)).is_dir() for place in places):
            continue
        what = {"suite": args.suite, "name": "" if job.point == "untouched" else job.point, "base": base}
        what |= {"arguments": args.arguments} if args.arguments else {}
        what |= {"beside": ended[beside[key]][1].name} if key in beside and what["name"] else {}
        stopped = sweep.last_checkpoint(folder) < job.last_update
        report.keep_run(folder, places[key not in new], stopped=stopped, ablation=what)
        count += 1
    print(f"{count} runs added to {KEPT}; `python benchmark/ablate.py report` makes the tables anew")
    return 0


def print_commands(args: Args) -> int:
    suite, ablations = chosen(args)
    sizes = f"--env-ids {shlex.join(suite['env_ids'])} --num-seeds {suite['num_seeds']}"
    sizes += f" --start-seed {args.start_seed}" if args.start_seed != 1 else ""
    for command in write_scripts(suite, ablations, args.folder).values():
        typed = shlex.quote(f"{command} {suite['arguments']}".strip())
        tool = shlex.quote(str(Path(sweep.__file__)))
        print(f"(cd {shlex.quote(str(args.folder))} && python {tool} {sizes} --command {typed})")
    return 0


# ---------------------------------------------------------------------------------------------------- What was measured

Seeds = dict[int, report.Run]  # the runs of one script in one environment


@dataclass
class Measured:
    """An ablation in an environment beside the untouched script."""

    seeds: int
    last: np.ndarray  # (S,) differences of the last 100 episodes' mean return
    area: np.ndarray  # (S,) differences of the area under the curve, divided by the steps
    beside: list[report.Run]  # the S untouched runs


@cache
def area(run: report.Run) -> float:
    """The mean over the steps, from the first episode's end on, of the mean return of the last 100 episodes; it stays
    what it was when a run diverges."""
    grid = np.linspace(0, run.arguments["total_timesteps"], report.POINTS)
    return float(np.nanmean(report.curve(run.steps, run.returns, grid)))


def load(kept: Path) -> dict[str, dict[str, dict[str, Seeds]]]:
    """The kept runs by suite, environment and ablation ("" is the untouched script); of one version of the scripts and
    with the same further --arguments, those that are most. A run's `beside` is the untouched one of its machine."""
    if not any(kept.glob("runs/*/*/config.json")):
        return {}
    suites, groups = manifest()[1], defaultdict(list)
    for one in report.find_runs([kept / "runs"]):
        what = one.config["ablation"]
        groups[what["suite"], one.env_id, (what["base"], what.get("arguments"))].append(one)
    largest = sorted(groups.items(), key=lambda item: len(item[1]))
    of_suites = defaultdict(dict)
    for (suite, env_id, _), runs in largest:  # the last one stays
        if env_id in of_suites[suite]:
            print(f"{suite} on {env_id}: fewer runs are of another version of the script, or with other --arguments; "
                  "they are left out", file=sys.stderr)  # fmt: skip
        of_suites[suite][env_id] = of_name = defaultdict(dict)
        untouched = {one.folder.name: one for one in runs if not one.config["ablation"]["name"]}
        for one in runs:
            name = one.config["ablation"].get("beside")
            elsewhere = kept / "beside" / kept_as(suites[suite]["script"], str(name))
            one.beside = untouched.get(name) or (report.Run(elsewhere) if name else None)
        for name in dict.fromkeys(one.config["ablation"]["name"] for one in runs):
            changed_alike = defaultdict(list)  # by version: the diff may have been another one once
            for one in runs:
                if one.config["ablation"]["name"] == name:
                    changed_alike[one.version].append(one)
            if len(changed_alike) > 1:
                print(f"{suite} on {env_id}: fewer runs of {name} are of another diff; they are left out",
                      file=sys.stderr)  # fmt: skip
            of_name[name] = {one.seed: one for one in max(changed_alike.values(), key=len)}
    return {
        suite: {x: of_suites[suite][x] for x in suites[suite]["env_ids"] if "" in of_suites[suite].get(x, ())}
        for suite in suites
        if suite in of_suites
    }


def compare(baseline: Seeds, other: Seeds) -> Measured | None:
    """The differences of the seeds that both have; from the untouched run of the same machine where it was kept, since
    another one rounds otherwise, which changes a run as much as another seed."""
    pairs = [(one.beside or baseline[seed], one) for seed, one in sorted(other.items()) if seed in baseline]
    if not pairs:
        return None
    last, areas = (np.array([f(one) - f(beside) for beside, one in pairs]) for f in (lambda x: x.result, area))
    return Measured(len(pairs), last, areas, [beside for beside, _ in pairs])


def interval(differences: np.ndarray) -> tuple[float, float] | None:
    """95% interval of the mean of (S,) differences, by the expanded percentile bootstrap; None for too few."""
    if (n := len(differences)) < LEAST_SEEDS:
        return None
    if np.ptp(differences) == 0:
        return float(differences[0]), float(differences[0])
    outside = 2 * norm.cdf(-t.ppf(0.975, n - 1) * np.sqrt(n / (n - 1)))
    options = {"method": "percentile", "n_resamples": 9999, "vectorized": True, "rng": np.random.default_rng(1)}
    low, high = bootstrap((differences,), np.mean, confidence_level=1 - outside, **options).confidence_interval
    return float(low), float(high)


def in_words(differences: np.ndarray) -> str:
    """−12.3 [−20.1, −4.0], bold where the interval leaves out 0."""
    limits = interval(differences)
    text = number(differences.mean()) + ("" if limits is None else f" [{number(limits[0])}, {number(limits[1])}]")
    return f"**{text}**" if limits and (limits[0] > 0 or limits[1] < 0) else text


def verdict(differences: np.ndarray) -> str:
    """What the interval says, in words; nothing where there is none."""
    limits = interval(differences)
    if limits is None:
        return ""
    return "better" if limits[0] > 0 else "worse" if limits[1] < 0 else "no difference seen"


def number(x: float) -> str:
    """Three digits with a sign."""
    digits = 0 if abs(x) >= 100 else 1 if abs(x) >= 10 else 2
    text = f"{x:+.{digits}f}".replace("-", "−")
    return text.replace("+", "").replace("−", "") if not text.strip("+−0.") else text


def plain(environment: str) -> str:
    """An environment's name without the module that it is registered by."""
    return environment.rpartition(":")[2]


def link(ablation: Ablation) -> str:
    return f"[{ablation.tag}](details.md#{ablation.tag})"


def results_table(of_name: dict[str, Seeds]) -> str:
    """Markdown: the differences in one environment, a row an ablation."""
    baseline, rows, elsewhere = of_name[""], [], {}
    for name, ablation in manifest()[0].items():
        if name in of_name and (found := compare(baseline, of_name[name])):
            of_last = in_words(found.last), number(np.median(found.last))
            stopped = sorted(x.total for x in of_name[name].values() if "stopped_at" in x.config)
            seeds = f"{found.seeds}" + (f", {len(stopped)} diverged from step {stopped[0]:,} on" if stopped else "")
            others = {x.folder: x for x in found.beside if x is not baseline[x.seed]}
            seeds, elsewhere = seeds + ELSEWHERE * bool(others), elsewhere | others
            rows.append([link(ablation), ablation.title, *of_last, in_words(found.area), seeds])
    for runs, where in ((elsewhere, ELSEWHERE), (baseline, "")):
        results, areas = (np.array([f(one) for one in runs.values()]) for f in (lambda x: x.result, area))
        if runs:
            of_results = (report.signed(x) for x in (results.mean(), np.median(results), areas.mean()))
            rows.insert(0, ["untouched", "", *of_results, f"{len(runs)}{where}"])
    header = ["", "in its place", "last 100 episodes", "its median", "area under the curve", "seeds"]
    return report.markdown(header, rows)


def list_of_all(suites: dict[str, dict[str, dict[str, Seeds]]]) -> str:
    """Markdown: every ablation, what stands in the detail's place and how."""
    rows, seeds = [], defaultdict(int)
    for of_name in (of_name for suite in suites.values() for of_name in suite.values()):
        for name, runs in of_name.items():
            seeds[name] = max(seeds[name], len(runs))
    for ablation in manifest()[0].values():
        how = f"`{ablation.flag}`, " if ablation.flag else ""
        if ablation.diff.is_file():
            how += f"[{ablation.diff.name}](../benchmark/ablations/{ablation.diff.name})"
        few = f"{seeds[ablation.name]} of {LEAST_SEEDS} seeds" if seeds[ablation.name] else "not measured"
        trained = "yes" if seeds[ablation.name] >= LEAST_SEEDS else f"no: {ablation.idle}" if ablation.idle else few
        rows.append([link(ablation), ablation.title, how.removesuffix(", "), trained])
    return report.markdown(["detail", "in its place", "by", "trained"], rows)


def verdicts(ablation: Ablation, suites: dict[str, dict[str, dict[str, Seeds]]]) -> dict[str, dict[str, np.ndarray]]:
    """What the ablation did to the last 100 episodes, in words → environment → the seeds' differences."""
    of_words = defaultdict(dict)
    for environment, of_name in ((x, y) for suite in suites.values() for x, y in suite.items()):
        found = compare(of_name[""], of_name.get(ablation.name, {}))
        if found and (words := verdict(found.last)):
            of_words[words][environment] = found.last
    return of_words


def in_short(suites: dict[str, dict[str, dict[str, Seeds]]]) -> str:
    """Markdown: which ablations were worse and which better, where and by how much; those of which nothing can be seen;
    and how many intervals leave out 0 by chance."""
    lists, intervals = {"Worse": [], "Better": [], "No difference seen at the end": []}, []
    for ablation in manifest()[0].values():
        of_words = verdicts(ablation, suites)
        intervals += [x for environments in of_words.values() for x in environments.values() if x.any()]
        for words in ("worse", "better"):
            if words in of_words:
                where = ", ".join(f"{plain(x)} {in_words(found)}" for x, found in of_words[words].items())
                lists[words.capitalize()].append(f"{ablation.title} ({link(ablation)}): {where}")
        if [*of_words] == ["no difference seen"]:
            lists["No difference seen at the end"].append(f"{ablation.title} ({link(ablation)})")
    lines = []
    for words, found in lists.items():
        several = "\n    - " if words in ("Worse", "Better") else " "
        lines += [f"- **{words}**:{several}{f';{several}'.join(found)}."] * bool(found)
    by_chance = sum(np.interp(len(x), *BY_CHANCE) for x in intervals)
    lines += ["", f"Of the {len(intervals)} intervals behind this about {by_chance:.0f} would leave out 0 by chance."]
    return "\n".join(lines) + "\n" if intervals else "Not measured.\n"


def studies_table(suites: dict[str, dict[str, dict[str, Seeds]]]) -> str:
    """Markdown: what others found on the same choices, beside what the kept runs say."""
    content, rows = tomllib.loads((ABLATIONS / "manifest.toml").read_text()), []
    for tag, study in content["studies"].items():
        found = {one.title: verdicts(one, suites) for one in manifest()[0].values() if one.tag == tag}
        ours = [
            f"{title}: " + ", ".join(f"{words} on {', '.join(map(plain, where))}" for words, where in of_words.items())
            for title, of_words in found.items()
            if of_words
        ]
        rows.append([f"[{tag}](details.md#{tag}) {study['choice']}", study["engstrom"], study["andrychowicz"],
                     "; ".join(ours) or "not measured"])  # fmt: skip
    return report.markdown(["", "Engstrom et al.", "Andrychowicz et al.", "here, last 100 episodes"], rows)


def forest(environments: dict[str, dict[str, Seeds]], path: Path) -> None:
    """path.svg and path.png: a row an ablation, a column an environment; a dot for the last 100 episodes and a ring for
    the area under the curve, with their intervals."""
    shown = [x for name, x in manifest()[0].items() if any(name in of_name for of_name in environments.values())]
    size = 4.2 + 2.6 * len(environments), 1.0 + 0.34 * len(shown)
    figure, axes = plt.subplots(1, len(environments), figsize=size, sharey=True, squeeze=False)
    for axis, (environment, of_name) in zip(axes[0], environments.items()):
        axis.axvline(0, color="black", linewidth=0.8)
        ends = []
        for row, ablation in enumerate(shown):
            found = compare(of_name[""], of_name.get(ablation.name, {}))
            for differences, shift, filled in ((found.last, -0.15, True), (found.area, 0.15, False)) if found else ():
                limits = interval(differences)
                low, high = limits or (differences.mean(),) * 2
                ends += [abs(low), abs(high)]
                seen = "tab:red" if high < 0 else "tab:blue" if low > 0 else "dimgray"
                colour = seen if limits else "dimgray"
                axis.plot([low, high], [row + shift] * 2, color=colour, linewidth=1.6)
                axis.plot([differences.mean()], [row + shift], "o", color=colour, markersize=5,
                          markerfacecolor=colour if filled else "white")  # fmt: skip
        seeds = [len(runs) for runs in of_name.values()]
        counts = f"{min(seeds)}" if min(seeds) == max(seeds) else f"{min(seeds)} to {max(seeds)}"
        axis.set_title(f"{plain(environment)}, {counts} seeds", fontsize=10)
        axis.grid(alpha=0.3)
        axis.set_xlabel("difference of the return")
        low, high = axis.dataLim.intervalx
        if max(ends) > 10 * max(np.median(ends), LINEAR):  # one large effect would squeeze all others into a line
            axis.set_xlabel(f"difference of the return\n(logarithmic beyond ±{LINEAR})")
            axis.set_xscale("symlog", linthresh=LINEAR, subs=range(2, 10))
            axis.set_xlim(-max(-1.4 * low, 2 * LINEAR), max(1.4 * high, 2 * LINEAR))
        axis.xaxis.set_major_formatter(report.thousands)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0][0].set_yticks(range(len(shown)), [f"{x.tag}  {x.title}" for x in shown], fontsize=9)
    axes[0][0].set_ylim(len(shown) - 0.5, -0.5)
    report.save(figure, path)


def worth(tag: str, suites: dict[str, dict[str, dict[str, Seeds]]]) -> str:
    """The line of a detail's section that says what it is worth, by environments in which enough seeds were trained."""
    parts, idle = [], ""
    for ablation in manifest()[0].values():
        if ablation.tag != tag:
            continue
        idle = idle or ablation.idle
        of_words = defaultdict(list)
        for environment, of_name in ((x, y) for suite in suites.values() for x, y in suite.items()):
            found = compare(of_name[""], of_name.get(ablation.name, {}))
            if found and found.seeds >= LEAST_SEEDS:
                words = verdict(found.last)
                numbers = [in_words(found.last)] * (words != "no difference seen")
                if verdict(found.area) in ("better", "worse"):
                    numbers.append(f"area under the curve {in_words(found.area)}")
                of_words[words].append(plain(environment) + f" ({'; '.join(numbers)})" * bool(numbers))
        where = "; ".join(f"{words} on {', '.join(x)}".removeprefix(" on ") for words, x in of_words.items())
        if where:
            parts.append(f"{'turned on,' if ablation.on else 'instead,'} {ablation.instead}: {where}.")
    if not parts:
        return f"Worth: not measured{', since ' * bool(idle)}{idle}."
    return f"Worth: {' Or '.join(parts)} [What that means](ablations.md)."


def with_worths(text: str, suites: dict) -> str:
    """docs/details.md with each section's "Worth:" paragraph, before that of its source."""
    text = re.sub(r"^Worth: .*\n\n", "", text, flags=re.MULTILINE)
    heading = re.compile(r"^### .*?`?\b([a-z]+-\d+|impala)\b", re.MULTILINE)
    parts = re.split(r"^(?=Source: )", text, flags=re.MULTILINE)
    for i in range(len(parts) - 1):
        if tags := heading.findall(parts[i]):
            parts[i] += f"{worth(tags[-1], suites)}\n\n"
    return "".join(parts)


def pages(kept: Path) -> dict[Path, str]:
    """The text of the pages of docs/ as the kept runs have it."""
    suites = load(kept)
    tables = {"short": in_short(suites), "list": list_of_all(suites), "studies": studies_table(suites)}
    for suite, of_suite in manifest()[1].items():
        picture = f"![differences, {suite}](../benchmark/results/ablations_{suite}.svg)\n"
        tables[suite] = picture if suite in suites else "Not measured.\n"
        for env_id in of_suite["env_ids"]:
            of_name = suites.get(suite, {}).get(env_id)
            table = f'<div class="changes" markdown>\n\n{results_table(of_name)}\n</div>\n' if of_name else ""
            tables[f"{suite} {env_id}"] = table or "Not measured.\n"

    def replace(match: re.Match) -> str:
        return f"{match[1]}\n\n{tables.get(match[2], match[3].strip())}\n{match[4]}"

    page = DOCS / "ablations.md"
    marked = r"(<!-- ablations ([\w: -]+) -->)\n(.*?)(<!-- end of ablations -->)"
    return {
        page: re.sub(marked, replace, page.read_text(), flags=re.DOTALL),
        DOCS / "details.md": with_worths((DOCS / "details.md").read_text(), suites),
    }


def make_report(args: Args) -> int:
    suites = load(KEPT)
    for suite, environments in suites.items():
        forest(environments, KEPT.with_name(f"ablations_{suite}"))
    for path, text in pages(KEPT).items():
        write_whole(path, text)
    runs = sum(len(seeds) for suite in suites.values() for of_name in suite.values() for seeds in of_name.values())
    print(f"{runs} runs: {DOCS / 'ablations.md'}, {DOCS / 'details.md'}, {KEPT.with_name('ablations_*.svg')}")
    return 0


def main(args: Args) -> int:
    if args.action == "scripts":
        suite, ablations = chosen(args)
        for command in write_scripts(suite, ablations, args.folder).values():
            print(f"(cd {shlex.quote(str(args.folder))} && {command})")
        return 0
    actions = {"run": run, "status": show_status, "keep": keep, "report": make_report, "commands": print_commands}
    return actions[args.action](args)


if __name__ == "__main__":
    sweep.SWEEP, report.TOOL = Path(__file__), Path(__file__).name  # which stands in the error messages
    raise SystemExit(main(tyro.cli(Args, description=__doc__)))
