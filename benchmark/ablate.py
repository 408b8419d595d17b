"""Takes details out one at a time, trains, and measures the difference.

    python benchmark/ablate.py run --workers 2         the runs of the core details; typed again, it goes on
    python benchmark/ablate.py run --suite continuous --env-ids HalfCheetah-v4 --num-seeds 3 --only cont-6 core-7
    python benchmark/ablate.py run --total-timesteps 100000 --num-seeds 5 --env-ids CartPole-v1 --only core-3
    python benchmark/ablate.py status …                what is done of them
    python benchmark/ablate.py report …                what they say; docs/ablations.md has what the kept runs say
    python benchmark/ablate.py keep …                  ended runs into benchmark/results

benchmark/ablations/manifest.toml names the details and what stands in the place of each; the changes are diffs beside
it, applied to copies of the scripts in runs/ablations/scripts. The runs are sweep.py's: all details with one seed, then
with the next, one environment after the other. A run is compared with the untouched script's of the same seed and
machine, since another machine rounds otherwise.
"""

import shlex
import tomllib
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Literal

import sweep
import tyro
from command_line import UserError, one_line_errors, print_table
from files import write_atomically
from kept import RESULTS, append_runs
from report import variant_cells
from runs import ROOT, Run, run_of_folder, version

ABLATIONS = ROOT / "benchmark" / "ablations"
FOLDER = Path("runs/ablations")  # of the changed scripts, and of their runs


@dataclass
class Args:
    action: tyro.conf.Positional[Literal["run", "status", "report", "keep"]]  # what to do
    suite: str = "core"  # which scripts, environments and details: a suite of the manifest
    only: list[str] = field(default_factory=list)  # ablations to run, instead of all of the suite
    env_ids: list[str] = field(default_factory=list)  # environments, instead of the suite's
    num_seeds: int | None = None  # seeds from 1 on, instead of as many as the suite says
    total_timesteps: int | None = None  # steps of a run, instead of as many as the suite says
    workers: int = 1  # runs at a time
    broken: bool = False  # `keep` stores what runs had that diverged or were stopped, too


# ------------------------------------------------------------------------------------------------------------ The diffs
@dataclass
class Ablation:
    name: str
    instead: str  # what stands in the detail's place
    flag: str = ""  # arguments that do it
    on: bool = False  # the detail is off by default, and the flag turns it on
    tag: str = ""
    idle: str = ""  # why it isn't trained

    @property
    def title(self) -> str:
        return f"{self.instead} (turned on)" if self.on else self.instead

    @property
    def link(self) -> str:
        return f"[{self.tag}](details.md#{self.tag})"

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
    lines = diff.read_text("utf-8").splitlines(keepends=True) if diff.is_file() else []
    for line in lines:
        if line.startswith("--- "):
            script = Path(line.split()[1]).stem
            changes[script] = []
        elif line.startswith("@@"):
            changes[script].append(("", ""))
        elif not line.startswith(("+++ ", "diff ", "index ")):  # as git heads the lines of a file
            before, after = changes[script][-1]
            if line[0] != "+":
                before += line[1:]
            if line[0] != "-":
                after += line[1:]
            changes[script][-1] = (before, after)
    return changes


def changed(ablation: Ablation, script: str) -> str:
    """The script with the diff applied wherever its lines are, which must be there once."""
    text = "\n" + (ROOT / "cleanrl" / f"{script}.py").read_text("utf-8")
    changes = hunks(ablation.diff).get(script)
    if not changes:
        raise UserError(f"{ablation.diff.name}: changes nothing in {script}.py; add a hunk, or a flag to manifest.toml")
    for before, after in changes:
        found = text.count(f"\n{before}")
        if found != 1:
            first = before.strip().splitlines()[0].strip()
            lines = f'the lines from "{first}" on are in {script}.py {found} times'
            raise UserError(f"{ablation.diff.name}: {lines}; make it anew, as manifest.toml says")
        text = text.replace(f"\n{before}", f"\n{after}")
    return text[1:]


# ------------------------------------------------------------------------------------------------------------- The runs
def chosen(args: Args) -> dict:
    """The suite as the arguments have it."""
    suites = manifest()["suites"]
    if args.suite not in suites:
        raise UserError(f"--suite {args.suite}: there is none of this name; there are {', '.join(suites)}")
    suite = suites[args.suite] | {"name": args.suite}
    for key, typed in (("ablations", args.only), ("env_ids", args.env_ids)):
        unknown = sorted(set(typed) - set(suite[key]))
        if unknown:
            names = " ".join(suite[key])
            raise UserError(f"{' '.join(unknown)}: not in the suite, which has {names}; see manifest.toml")
        if typed:
            suite[key] = typed
    if args.num_seeds is not None:
        suite["num_seeds"] = args.num_seeds
    if args.total_timesteps is not None:  # of an option that is typed twice, the second one counts
        suite["arguments"] = f"{suite.get('arguments', '')} --total-timesteps {args.total_timesteps}"
    if suite["num_seeds"] < 1 or args.workers < 1:
        raise UserError("--num-seeds and --workers: must be 1 or more")
    return suite


def make_jobs(suite: dict, anew: bool) -> list[sweep.Job]:
    """The runs, in the order in which they are made. Writes the scripts, `anew` or only those that are not there: a
    run may be going on with the others, and what has ended is of them."""
    script = suite["script"]
    scripts = (FOLDER / "scripts").resolve()
    arguments = suite.get("arguments", "")
    texts = {script: (ROOT / "cleanrl" / f"{script}.py").read_text("utf-8")}
    commands = {"untouched": f"{shlex.quote(str(scripts / script))}.py {arguments}"}
    for one in [all_ablations()[name] for name in suite["ablations"]]:
        name = f"{script}-{'with' if one.on else 'without'}-{one.name}"
        if one.flag:
            commands[one.name] = f"{commands['untouched']} {one.flag} --exp-name {name}"
        else:
            texts[name] = changed(one, script)
            commands[one.name] = f"{shlex.quote(str(scripts / name))}.py {arguments}"
    for name, text in texts.items():
        path = scripts / f"{name}.py"
        if anew or not path.is_file():
            write_atomically(path, text)
    jobs = []
    for name, command in commands.items():
        wanted = sweep.Args(env_ids=suite["env_ids"], command=f"python {command}", num_seeds=suite["num_seeds"])
        for job in sweep.make_jobs(wanted, FOLDER):
            job.point = name
            jobs.append(job)
    return sorted(jobs, key=lambda job: (suite["env_ids"].index(job.env_id), job.seed))


def made_runs(jobs: list[sweep.Job], suite: dict, states: list[str]) -> list[Run]:
    """The runs in these states, each with the name of the untouched run beside it; those that diverged or were stopped,
    as far as they went."""
    sweep.look(jobs)
    base = version(FOLDER / "scripts" / f"{suite['script']}.py")
    runs = {}
    for job in [job for job in jobs if job.state in states]:
        try:
            run = run_of_folder(sweep.matching_runs(job)[-1])
        except ValueError as reason:
            print(f"{reason}; it is left out")
            continue
        if not len(run.steps):  # it was stopped before its first episode ended
            continue
        run.script = suite["script"]
        if run.end in ("diverged", "stopped"):
            run.end = "stopped"  # its curve ends there
            run.stopped_at = int(run.steps[-1])
        name = "" if job.point == "untouched" else job.point
        run.ablation = {"suite": suite["name"], "name": name, "base": base}
        if ("", job.env_id, job.seed) in runs:
            run.ablation["beside"] = runs["", job.env_id, job.seed].name
        runs[name, job.env_id, job.seed] = run
    return list(runs.values())


# ---------------------------------------------------------------------------------------------------------- The command
def report(jobs: list[sweep.Job], suite: dict) -> None:
    """Prints what these runs say, by environment: the untouched script's first, then the differences from it."""
    own = made_runs(jobs, suite, ["done", "diverged"])
    variants: dict[str, dict[str, list[Run]]] = {}
    for name in ("", *suite["ablations"]):
        for run in sorted(own, key=lambda run: run.seed):
            if run.ablation["name"] == name:
                title = f"{name}, {all_ablations()[name].title}" if name else "untouched"
                variants.setdefault(run.env_id, {}).setdefault(title, []).append(run)
    whole = {env_id: rows for env_id, rows in variants.items() if "untouched" in rows}
    if not whole:
        raise UserError(f"{FOLDER}: in no environment has a run of the untouched script ended", status=1)
    print_table(variant_cells(whole))


def main(args: Args) -> int:
    """Does what is typed; returns the exit status."""
    suite = chosen(args)
    if args.action != "run" and not (FOLDER / "runs").is_dir():
        hint = "make them by `python benchmark/ablate.py run`, and type this in the same folder"
        raise UserError(f"{FOLDER}: holds no runs; {hint}")
    jobs = make_jobs(suite, anew=args.action == "run")
    if args.action == "run":
        return sweep.make_runs(jobs, args.workers)
    if args.action == "keep":
        states = ["done", "diverged", "interrupted"] if args.broken else ["done"]
        added = append_runs(made_runs(jobs, suite, states), "ablations", RESULTS)
        print(f"{added} runs added to {RESULTS}")
        left_out = Counter(job.state for job in jobs if job.state in ("diverged", "interrupted"))
        if left_out and not args.broken:
            counts = " and ".join(f"{count} {state}" for state, count in sorted(left_out.items()))
            print(f"left out: {counts}; --broken keeps what they had")
    elif args.action == "report":
        report(jobs, suite)
    else:
        sweep.print_status(jobs)
    return 0


if __name__ == "__main__":
    with one_line_errors():
        raise SystemExit(main(tyro.cli(Args, description=__doc__)))
