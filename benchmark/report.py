"""Tables, learning curves and a page to browse, from run folders alone.

    python benchmark/report.py runs                    tables, curves and report/index.html, from the runs below runs/
    python benchmark/report.py                         rebuild everything in benchmark/results from the runs kept there
    python benchmark/report.py --keep runs/RUN …       add finished runs to benchmark/results/runs first

Runs of one name that differ in an argument or in the version of their script stand in rows of their own, whose labels
say in what they differ from the script's defaults and from its present version; what concerns only machine or speed
doesn't count (shared.py says what does, and what a version is).

A run's result is the mean return of its last 100 episodes. Tables give the mean ± standard deviation of the results
over seeds, and their interquartile mean (what is left without the lowest and the highest quarter, Agarwal et al. 2021;
of three seeds that is all) with a 95% interval: the percentiles of 9,999 bootstrap samples of the seeds. With
few seeds such an interval is too narrow rather than too wide.

The tables of benchmark/results stand between the comments `<!-- results {label} -->` and `<!-- end of results -->` of
README.md and docs/ too.
"""

import csv
import gzip
import hashlib
import io
import json
import re
import shlex
import shutil
import sys
import zlib
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import tyro
from shared import checkpoints, defaults, identity, in_parallel, portable, slim, version, version_of_run, write_whole

try:
    import matplotlib
    from bokeh.resources import Resources
    from scipy.stats import bootstrap, t, trim_mean
except ImportError as missing:
    tool = Path(sys.argv[0]).name  # or compare.py, which imports this file
    print(f"{tool}: error: {missing.name} is not installed; pip install -e '.[benchmark]'", file=sys.stderr)
    raise SystemExit(2) from None

matplotlib.use("Agg")
import matplotlib.pyplot as plt

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmark" / "results"
TEMPLATE = ROOT / "benchmark" / "report.html"
LAST = 100  # episodes that a run's result is the mean of
LONG_ENOUGH = 10  # seconds of training from which on steps per second are more than start-up and noise
POINTS = 201  # of a curve
BROWSER_POINTS = 101  # of a curve in the HTML report
BOKEH = Resources("inline", components=["bokeh", "bokeh-api"], log_level="error")  # what the page draws with
PUBLISHED = ["openai/baselines PPO", "CleanRL, first table", "CleanRL, Nov 2023"]


@dataclass
class Args:
    runs: tyro.conf.Positional[list[Path]] = field(default_factory=list)  # run folders, or folders that hold them
    output: Path = Path("report")  # folder for the report of those runs
    keep: list[Path] = field(default_factory=list)  # run folders whose episodes and configuration are kept first
    stopped: bool = False  # keep runs that were stopped before their end too, with the step that they reached
    weights: bool = False  # keep the weights of their last checkpoints too, which the scripts' --evaluate plays
    results: Path = RESULTS  # folder that holds the kept runs and takes their tables and pictures


TOOL = Path(__file__).name  # the program that was typed, whose name stands in the error messages


def fail(message: str):
    print(f"{TOOL}: error: {' '.join(message.split())}", file=sys.stderr)
    raise SystemExit(2)


# ----------------------------------------------------------------------------------------------------------------- Runs


class Unreadable(Exception):
    """A folder that is no run folder, with the reason."""


def read_csv(path: Path) -> tuple[list[str], np.ndarray]:
    """Columns and rows (E, columns) of a CSV file of numbers, perhaps compressed. A half row at its end is left out."""
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    header, _, rows = content[: content.rfind(b"\n") + 1].partition(b"\n")
    columns = header.decode().split(",")
    if not rows:
        return columns, np.empty((0, len(columns)))
    return columns, np.loadtxt(io.BytesIO(rows), delimiter=",", ndmin=2)


class Run:
    """A run folder, or what is kept of one. Raises Unreadable where something is missing or damaged."""

    beside: "Run | None" = None  # what ablate.py compares it with, where that is of another machine than usual

    def __init__(self, folder: Path):
        self.folder = folder
        try:
            self.config = json.loads((folder / "config.json").read_text())
            self.arguments = self.config["arguments"]
            self.script, self.env_id = str(self.arguments["exp_name"]), str(self.arguments["env_id"])
            self.seed = int(self.arguments["seed"])
            self.version = version_of_run(folder, self.config)
            self.identity = identity(self.arguments) | {"version": self.version}
            self.total = int(self.config.get("stopped_at", self.arguments["total_timesteps"]))  # see keep_run
            self.last_update = self.total // (self.arguments["num_envs"] * self.arguments["num_steps"])
            self.kept = (folder / "episodes.csv.gz").is_file()
            columns, rows = read_csv(folder / ("episodes.csv.gz" if self.kept else "episodes.csv"))
            names = ("global_step", "episodic_return", "seconds")
            self.steps, self.returns, seconds = (rows[:, columns.index(name)] for name in names)  # (E,) each
            self.seconds = np.maximum.accumulate(seconds)  # clocks of several processes can run apart a little
            if not np.isfinite([self.steps, self.returns, self.seconds]).all():
                raise ValueError("a number that isn't finite in its episodes")
        except (OSError, EOFError, zlib.error, LookupError, TypeError, AttributeError, ValueError,
                ZeroDivisionError) as error:  # fmt: skip
            raise Unreadable(f"{folder}: not a whole run folder ({type(error).__name__}: {error})") from None
        self.label = self.script

    @property
    def is_complete(self) -> bool:
        checkpoints = self.folder / "checkpoints"
        return self.kept or any((checkpoints / f"{self.last_update}{suffix}").is_file() for suffix in (".pt", ".npz"))

    @property
    def result(self) -> float:
        """Mean return of the last 100 episodes, NaN without any."""
        return float(self.returns[-LAST:].mean()) if len(self.returns) else float("nan")

    @property
    def wall_seconds(self) -> float:
        """Seconds of training up to the end of the last episode."""
        return float(self.seconds[-1]) if len(self.seconds) else float("nan")

    @property
    def steps_per_second(self) -> float:
        """NaN for a run that was too short to tell."""
        return float(self.steps[-1]) / self.wall_seconds if self.wall_seconds >= LONG_ENOUGH else float("nan")

    @cached_property
    def usual(self) -> dict:
        """identity with the defaults of the script that ran, or of this repository's, and with the present version."""
        words = str(self.config.get("command") or "").split()
        here = ROOT / "cleanrl" / Path(next((word for word in words if word.endswith(".py")), "?.py")).name
        present = here.read_text() if here.is_file() else ""
        ran = "".join(path.read_text(errors="replace") for path in sorted(self.folder.glob("*.py"))[:1])
        known = defaults(ran) or defaults(present)
        placed = identity(self.arguments | {"checkpoints": known.get("checkpoints")})  # with this run's sizes
        known |= {name: placed[name] for name in ("checkpoints",) if name in known and name in placed}
        return known | {"version": version(present), "stopped_at": None}

    @property
    def settings(self) -> dict:
        """What isn't the script's default, but for what stands in the tables anyway and when it was saved."""
        shown = {"exp_name", "env_id", "seed", "version", "total_timesteps", "checkpoints"}
        differing = {name: x for name, x in self.identity.items() if name not in self.usual or self.usual[name] != x}
        return {name: differing[name] for name in sorted(differing.keys() - shown)}

    @property
    def described(self) -> dict:
        """identity, and where the run was stopped."""
        return self.identity | {"stopped_at": self.config.get("stopped_at")}

    @cached_property
    def metrics(self) -> dict[str, np.ndarray]:
        """The columns of metrics.csv, (updates,) each; empty for a kept run, which has none."""
        if not (self.folder / "metrics.csv").is_file():
            return {}
        try:
            columns, rows = read_csv(self.folder / "metrics.csv")
        except ValueError as error:
            print(f"{self.folder}: metrics.csv can't be read ({error}); its losses are left out", file=sys.stderr)
            return {}
        return dict(zip(columns, rows.T)) if "global_step" in columns else {}  # it is empty in the first update

    @cached_property
    def evaluations(self) -> dict[int, dict[str, float]]:
        """By step, mean returns on training levels and on levels that training never saw, as "training" and "test":
        ppo_procgen.py's evaluation.csv. Empty without one."""
        file = self.folder / ("evaluation.csv.gz" if self.kept else "evaluation.csv")
        if not file.is_file():
            return {}
        try:
            content = gzip.decompress(file.read_bytes()) if self.kept else file.read_bytes()
            returns = defaultdict(lambda: defaultdict(list))
            for row in csv.DictReader(io.StringIO(content.decode())):
                returns[int(row["global_step"])][row["levels"]].append(float(row["episodic_return"]))
            return {
                step: {levels: float(np.mean(found[levels])) for levels in ("training", "test") if levels in found}
                for step, found in sorted(returns.items())
            }
        except (OSError, EOFError, zlib.error, KeyError, TypeError, ValueError) as error:
            print(f"{file}: can't be read ({type(error).__name__}: {error}); it is left out", file=sys.stderr)
            return {}

    @property
    def levels(self) -> dict[str, float]:
        """The last of the evaluations."""
        return next(reversed(self.evaluations.values()), {})


def find_runs(paths: Iterable[Path]) -> list[Run]:
    """The runs at and below the paths; of two that are the same run the later one. Says on stderr what it leaves out;
    ends the program with one line if a path is wrong."""
    folders: list[Path] = []
    for path in paths:
        if not path.is_dir():
            fail(f"{path}: is not a folder; name run folders, or a folder that holds them")
        found = [path] if (path / "config.json").is_file() else [p.parent for p in sorted(path.rglob("config.json"))]
        if not found:
            fail(f"{path}: holds no run folder; name one that has a config.json, or a folder of such")
        folders += found
    runs: dict[str, Run] = {}
    for folder in sorted(dict.fromkeys(folders), key=lambda folder: folder.name):
        try:
            run = Run(folder)
        except Unreadable as reason:
            print(f"{reason}; it is left out", file=sys.stderr)
            continue
        same = json.dumps(run.identity, sort_keys=True)
        if same in runs:
            older, run = sorted((runs[same], run), key=lambda run: run.is_complete)
            print(f"{older.folder}: {run.folder.name} is the same run; it is left out", file=sys.stderr)
        runs[same] = run
    if not runs:
        fail(f"{' '.join(map(str, paths))}: no run folder can be read")
    label_configurations(list(runs.values()))
    return sorted(runs.values(), key=lambda run: (run.label, run.env_id, run.seed))


def label_configurations(runs: list[Run]) -> None:
    """Runs of one experiment name and environment with different arguments, or of different versions of the script, are
    different experiments: where such runs differ, their labels say what isn't usual."""
    by_script = defaultdict(lambda: defaultdict(list))
    for run in runs:
        by_script[run.script][run.env_id].append(run)
    for script, environments in by_script.items():
        differing: set[str] = set()
        for members in environments.values():
            # An argument that a run lacks is one that its version of the script didn't have yet
            for name in set.union(*(set(run.described) for run in members)) - {"seed", "env_id"}:
                if len({json.dumps(run.described[name]) for run in members if name in run.described}) > 1:
                    differing.add(name)
        if "version" in differing:
            print(f"{script}: the runs are of several versions of the script, which are kept apart", file=sys.stderr)
        for run in (run for members in environments.values() for run in members):
            told = {name: run.described[name] for name in sorted(differing & run.described.keys())}
            parts = (f"{name}={x}" for name, x in told.items() if name not in run.usual or run.usual[name] != x)
            run.label = " ".join([script, *parts])


def slug(label: str) -> str:
    """The label as the name of a file, below the folder in which it is put; a long one ends with a hash."""
    name = re.sub(r"[^\w.-]+|^\.+", "_", label)
    return name if len(name) <= 150 else f"{name[:141]}_{hashlib.sha256(label.encode()).hexdigest()[:8]}"


Groups = dict[str, dict[str, list[Run]]]


def group(runs: Iterable[Run]) -> Groups:
    """Complete runs by label and environment, ordered by seed."""
    groups: Groups = defaultdict(lambda: defaultdict(list))
    for run in sorted(runs, key=lambda run: (run.label, run.env_id, run.seed)):
        if run.is_complete and len(run.returns):
            groups[run.label][run.env_id].append(run)
    return groups


def load(results: Path) -> Groups:
    """The kept runs."""
    return group(find_runs([results / "runs"])) if any(results.glob("runs/*/*/config.json")) else {}


def check_kept(folder: Path, stopped: bool) -> Run:
    """The run, if it can be kept; otherwise the program ends with one line."""
    try:
        run = Run(folder)
    except Unreadable as reason:
        fail(f"{reason}; name one that holds config.json and episodes.csv")
    if not run.is_complete and not (stopped and len(run.steps)):
        fail(f"{folder}: has not ended, checkpoints/{run.last_update} is missing; resume it first, or use --stopped")
    if run.kept:
        fail(f"{folder}: is kept already; name the run folder that it came from")
    return run


def keep_run(folder: Path, results: Path, stopped: bool = False, weights: bool = False, **more) -> None:
    """Stores the episodes (compressed) and the configuration of a finished run under results/runs/{script}/{run}, the
    configuration with the version of the script and what is given as `more`; or of one that was `stopped` before its
    end, whose configuration then says so, as stopped_at with the last step logged. The configuration comes last: a
    folder without one isn't read."""
    run = check_kept(folder, stopped)
    last = last_weights(folder) if weights else {}
    kept = results / "runs" / slug(run.script) / folder.resolve().name
    kept.mkdir(parents=True, exist_ok=True)
    config = run.config | {"version": run.version} | more
    if "command" in config:
        config["command"] = portable(str(config["command"]))
    if not run.is_complete:
        config["stopped_at"] = int(run.metrics.get("global_step", run.steps)[-1])
    for name in ["episodes.csv", *(["evaluation.csv"] if run.levels else [])]:  # mtime: the same run, the same file
        write_whole(kept / f"{name}.gz", gzip.compress((folder / name).read_bytes(), mtime=0))
    for name, content in last.items():
        write_whole(kept / "checkpoints" / name, content)
    write_whole(kept / "config.json", json.dumps(config, indent=2))


def last_weights(folder: Path) -> dict[str, bytes]:
    """A run's last checkpoint by its name, without Adam's moments, two thirds of it, which evaluation doesn't need."""
    if not (found := checkpoints(folder)):
        fail(f"{folder}: holds no checkpoint; leave --weights out")
    try:
        return {found[-1].name: slim(found[-1])}
    except ValueError as damaged:
        fail(str(damaged))


# -------------------------------------------------------------------------------------------------------------- Numbers


def interquartile_mean(scores: np.ndarray, axis: int = -1) -> np.ndarray:
    return trim_mean(scores, 0.25, axis=axis)


def interval(scores: np.ndarray) -> tuple[float, float] | None:
    """95% interval of the interquartile mean of (S,) seeds' scores, by the percentile bootstrap; None for one seed."""
    if len(scores) < 2:
        return None
    rng = np.random.default_rng(1)  # the same runs give the same table
    options = {"method": "percentile", "n_resamples": 9999, "vectorized": True, "rng": rng}
    low, high = bootstrap((scores,), interquartile_mean, **options).confidence_interval
    return float(low), float(high)


def half_width(scores: np.ndarray) -> float | None:
    """Half of the 95% interval of the mean of (S,) seeds' scores, by Student's t; None for one seed."""
    n = len(scores)
    return float(t.ppf(0.975, n - 1) * scores.std(ddof=1) / np.sqrt(n)) if n > 1 else None


def curve(positions: np.ndarray, returns: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """Mean return of the last 100 episodes that had ended by each position (a step or a second) of the grid, (G,); NaN
    before the first. positions, returns: (E,)."""
    sums = np.concatenate([[0.0], returns.cumsum()])
    ended = np.searchsorted(positions, grid, side="right")
    first = np.maximum(ended - LAST, 0)
    return np.divide(sums[ended] - sums[first], ended - first, out=np.full(len(grid), np.nan), where=ended > 0)


def grids(runs: list[Run], points: int) -> dict[str, np.ndarray]:
    """The positions at which the curves of some seeds are compared: steps, and seconds up to the fastest one's end."""
    end = min(run.wall_seconds for run in runs)
    return {"steps": np.linspace(0, runs[0].total, points), "seconds": np.linspace(0, end, points)}


def published_results() -> dict[tuple[str, str], dict[str, str]]:
    with (ROOT / "benchmark" / "published.csv").open() as file:
        return {(row["script"], row["environment"]): row for row in csv.DictReader(file)}


def levels_of(runs: list[Run]) -> dict[str, float] | None:
    """Mean returns over the runs on training and on test levels, and the gap, the first minus the second; None unless
    all of the runs were evaluated on both."""
    if not all(len(run.levels) == 2 for run in runs):
        return None
    training, test = (float(np.mean([run.levels[levels] for run in runs])) for levels in ("training", "test"))
    return {"training levels": training, "test levels": test, "gap": training - test}


def mean_or_none(numbers: list[float]) -> float | None:
    known = [x for x in numbers if np.isfinite(x)]
    return float(np.mean(known)) if known else None


def published_script(label: str, published: dict) -> str:
    """The script whose published numbers are set beside runs of this label: of a script's numpy twin, or of runs with
    another setting that their name ends with, the script itself."""
    script = label.split(" ")[0]
    scripts = sorted({name for name, _ in published}, key=len, reverse=True)
    return next((name for name in scripts if script.startswith(name)), script)


def summarise(label: str, environments: dict[str, list[Run]]) -> list[dict]:
    """A dictionary for each environment, in the order of the published tables: the numbers of ours, and beside them
    the published ones where they are of as many steps."""
    published = published_results()
    base = published_script(label, published)
    order = [environment for name, environment in published if name == base and environment in environments]
    rows = []
    for environment in order + sorted(environments.keys() - set(order)):
        runs = environments[environment]
        results = np.array([run.result for run in runs])
        theirs = published.get((base, environment), {})
        settings = "".join(f", {name}={x}" for name, x in runs[0].settings.items()) if theirs else ""
        if theirs and int(theirs["steps"]) != runs[0].total:
            theirs, settings = {}, f"{settings}, {runs[0].total:,} steps"
        rows.append({
            "script": label, "environment": environment, "settings": settings, "steps": runs[0].total,
            "seeds": len(runs),
            "mean": float(results.mean()), "std": float(results.std(ddof=1)) if len(runs) > 1 else None,
            "half": half_width(results), "iqm": float(interquartile_mean(results)), "interval": interval(results),
            "steps_per_second": mean_or_none([run.steps_per_second for run in runs]),
            "minutes": float(np.mean([run.wall_seconds for run in runs])) / 60,
            "levels": levels_of(runs),
            "published": {name: theirs.get(name) or "–" for name in [*PUBLISHED, "minutes, Nov 2023"]},
        })  # fmt: skip
    return rows


# -------------------------------------------------------------------------------------------------- Tables and pictures


def signed(number: float) -> str:
    return f"{number:.2f}".replace("-", "−")


def markdown(header: list[str], rows: Iterable[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return (
        "".join(f"| {' | '.join(cells)} |\n" for cells in lines).replace("| --- ", "|---").replace("---|\n", "---|\n")
    )


def cells_of(row: dict) -> list[str]:
    mean = signed(row["mean"]) + ("" if row["std"] is None else f" ± {row['std']:.2f}")
    iqm = signed(row["iqm"])
    iqm += "" if row["interval"] is None else f" [{signed(row['interval'][0])}, {signed(row['interval'][1])}]"
    half = "–" if row["half"] is None else f"± {row['half']:.2f}"
    return [row["environment"] + row["settings"], mean, half, iqm, str(row["seeds"])]


def on_levels(row: dict, levels: list[str]) -> list[str]:
    return [signed(row["levels"][name]) if row["levels"] else "–" for name in levels]


def table(label: str, environments: dict[str, list[Run]]) -> str:
    """Markdown for a page: per environment the result over seeds, beside those on Procgen's test levels and the
    published ones, where there are any."""
    rows = summarise(label, environments)
    published = [name for name in PUBLISHED if any(row["published"][name] != "–" for row in rows)]
    levels = next((list(row["levels"]) for row in rows if row["levels"]), [])
    cells = []
    for row in rows:
        environment, mean, half, _, seeds = cells_of(row)
        theirs = (row["published"][name] for name in published)
        cells.append([environment, mean, half, seeds, *on_levels(row, levels), *theirs])
    return markdown(["environment", "ours", "mean's 95%", "seeds", *levels, *published], cells)


def table_by_step(environments: dict[str, list[Run]]) -> str:
    """Markdown: mean returns over the runs on training and on test levels, at the steps at which all were evaluated."""
    rows = []
    for environment, runs in environments.items():
        for step in sorted(set.intersection(*(set(run.evaluations) for run in runs))):
            means = [
                signed(float(np.mean([run.evaluations[step].get(x, np.nan) for run in runs])))
                for x in ("training", "test")
            ]
            rows.append([environment, f"{step:,}", *means])
    return markdown(["environment", "steps", "training levels", "test levels"], rows)


def full_table(label: str, environments: dict[str, list[Run]], times: bool = True) -> str:
    """Markdown: the same with the interquartile mean and the steps; with `times` also the speed and the duration, which
    the published tables leave out: their runs shared a machine."""
    summary = summarise(label, environments)
    levels = next((list(row["levels"]) for row in summary if row["levels"]), [])
    measured = ["steps/s", "minutes"] if times else []
    shown = ["environment", "ours", "mean's 95%", "IQM [95%]", "seeds", *levels, "steps", *measured]
    published = [*PUBLISHED, *(["minutes, Nov 2023"] if times else [])]
    rows = []
    for row in summary:
        per_second = row["steps_per_second"]
        speed = ["–" if per_second is None else f"{per_second:,.0f}", f"{row['minutes']:.1f}"][: len(measured)]
        theirs = [row["published"][name] for name in published]
        rows.append([*cells_of(row), *on_levels(row, levels), f"{row['steps']:,}", *speed, *theirs])
    return markdown([*shown, *published], rows)


def summary_table(groups: Groups) -> str:
    """Markdown: results on environments of published tables, all scripts in one; of a script with torch and its twin in
    numpy the one with more seeds there."""
    published = published_results()
    rows = []
    for script in dict.fromkeys(script.removesuffix("_numpy") for script, _ in published):
        twins = [group for label, group in groups.items() if label.split(" ")[0] in (script, f"{script}_numpy")]
        names = dict.fromkeys(environment for twin in twins for environment in twin)
        environments = {}
        for name in names:
            steps, sets = published.get((script, name), {}).get("steps"), [x[name] for x in twins if name in x]
            as_published = [runs for runs in sets if str(runs[0].total) == steps]
            environments[name] = min(as_published or sets, key=lambda runs: (len(runs[0].settings), -len(runs)))
        for row in summarise(script, environments):
            theirs = [row["published"][name] for name in PUBLISHED]
            if set(theirs) != {"–"}:
                environment, mean, _, _, seeds = cells_of(row)
                rows.append([environment, mean, seeds, *theirs])
    return markdown(["environment", "ours", "seeds", *PUBLISHED], rows)


def faster(measured: dict, kind: str, base: str) -> str:
    """How much faster something was than `base`: the median of the rounds' ratios, and their range."""
    ratios = [one[kind][base] for one in measured["rounds"]]
    return f"{measured['medians'][kind][base]:.1f}× ({min(ratios):.1f}–{max(ratios):.1f})"


def speed_table(results: Path) -> str:
    """Markdown: what benchmark/throughput.py measured, medians of its rounds, one row a script and set of arguments."""
    header = ["script", "environment", "steps/s", "stable-baselines3, default threads", "stable-baselines3, 1 thread",
              "faster than the next row"]  # fmt: skip
    lines = [f"| {' | '.join(header)} |", "|---|---|---:|---:|---:|---:|"]
    for path in sorted(results.glob("throughput/*.json"), key=lambda path: (len(path.stem), path.stem)):
        measured = json.loads(path.read_text())
        medians, arguments = measured["medians"], measured["rounds"][0]["script"]["arguments"]
        for key, kind, option in (("script", "ratios", "arguments"), ("against", "against_ratios", "against")):
            if key not in medians:
                continue
            cells = [
                measured_name(path.stem, measured, option),
                arguments["env_id"],
                f"{medians[key]['steps_per_second']:,.0f}",
            ]
            for base in ("default threads", "1 thread"):
                sides = {"": base}
                if in_parallel(arguments):
                    sides = {"serial ": base, "workers ": f"{base}, SubprocVecEnv"}
                speeds = {what: medians[one]["steps_per_second"] for what, one in sides.items() if one in medians}
                theirs = [f"{what}{x:,.0f}: {faster(measured, kind, sides[what])}" for what, x in speeds.items()]
                cells.append("<br>".join(theirs) or "–")
            cells.append(faster(measured, kind, "against") if "against" in medians.get(kind, {}) else "–")
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def measured_name(script: str, measured: dict, option: str) -> str:
    """A script with the arguments that it was measured with: those of throughput.py's `arguments` or `against`."""
    name = f"{script}.py {measured['options'].get(option) or ''}".strip()
    processes = measured["options"].get("processes", 1)
    return name if processes == 1 else f"{processes if option == 'arguments' else 1} × {name}"


def launch_table(results: Path) -> str:
    """Markdown: how long a script takes to its first update, and the memory that it needs."""
    lines = ["| script | launch to first update | peak memory |", "|---|---:|---:|"]
    for path in sorted(results.glob("throughput/*.json"), key=lambda path: (len(path.stem), path.stem)):
        launch = (measured := json.loads(path.read_text()))["medians"]["launch"]
        times = f"{launch['first_row_seconds']:.1f} s | {launch['peak_mb']:,.0f} MB"
        lines.append(f"| {measured_name(path.stem, measured, 'arguments')} | {times} |")
    return "\n".join(lines) + "\n"


def short_speed_table(results: Path) -> str:
    """Markdown: five rows of the speed table, each against the faster of stable-baselines3's two settings."""
    header = ["script", "environment", "steps/s", "stable-baselines3", "faster"]
    lines = [f"| {' | '.join(header)} |", "|---|---|---:|---:|---:|"]
    for name in ("ppo", "ppo_numpy", "ppo_continuous_action", "ppo_continuous_action_numpy", "ppo_atari"):
        path = results / "throughput" / f"{name}.json"
        if not path.is_file():
            continue
        measured = json.loads(path.read_text())
        medians, environment = measured["medians"], measured["rounds"][0]["script"]["arguments"]["env_id"]
        base = max(("default threads", "1 thread"), key=lambda base: medians[base]["steps_per_second"])
        cells = [f"{name}.py {measured['options']['arguments']}".strip(), environment]
        cells += [f"{medians[side]['steps_per_second']:,.0f}" for side in ("script", base)]
        lines.append(f"| {' | '.join([*cells, faster(measured, 'ratios', base)])} |")
    return "\n".join(lines) + "\n"


def growth_table(measured: dict) -> str:
    """Markdown: what throughput.py --vary measured, medians of its rounds, one row a value of the argument."""
    rows = []
    for value, medians in measured["medians"].items():
        speeds = [one[value]["script"]["steps_per_second"] for one in measured["rounds"]]
        speed = f"{medians['script']['steps_per_second']:,.0f} ({min(speeds):,.0f}–{max(speeds):,.0f})"
        parts = [f"{ms:.1f}" for ms in (medians["script"]["ms_per_update"], *medians["script"]["ms"].values())]
        rows.append([value, speed, *parts, f"{medians['launch']['peak_mb']:.0f} MB"])
    header = [measured["options"]["vary"][0], "steps/s", "ms per update", "environment", "policy", "update"]
    return markdown([*header, "peak memory"], rows)


def growth_picture(measured: dict, path: Path) -> None:
    """The same as path.png and path.svg: speed, where a step's time goes, memory."""
    medians = measured["medians"]
    scripts, x = [one["script"] for one in medians.values()], range(len(medians))
    figure, (speed, split, memory) = plt.subplots(1, 3, figsize=(12, 3.2))
    speed.plot(x, [one["steps_per_second"] for one in scripts], "o-", color="tab:blue")
    speed.set_ylabel("steps/s")
    below = np.zeros(len(x))
    for part in scripts[0]["ms"]:
        share = [one["ms"][part] / one["ms_per_update"] / one["steps_per_second"] * 1e6 for one in scripts]
        split.bar(x, share, bottom=below, label=part)
        below += share
    split.set_ylabel("µs per step")
    split.legend(fontsize=8)
    memory.bar(x, [one["launch"]["peak_mb"] for one in medians.values()], color="tab:gray")
    memory.set_ylabel("peak memory, MB")
    for axis in (speed, split, memory):
        axis.set_xticks(x, list(medians))
        axis.set_xlabel(measured["options"]["vary"][0])
        axis.set_ylim(bottom=0)
        axis.yaxis.set_major_formatter(thousands)
        axis.grid(alpha=0.3, axis="y")
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
    save(figure, path)


def time_table(results: Path) -> str:
    """Markdown: what benchmark/time_to_return.py measured, one row a script."""
    rows = []
    for path in sorted(results.glob("time_to_return/*.json")):
        measured = json.loads(path.read_text())
        name = f"{path.stem}.py {measured['options']['arguments']}".strip()
        seconds = [f"{run['seconds']:.1f}" for run in measured["runs"]]
        goal = [measured["runs"][0]["env_id"], f"{measured['options']['target']:g}"]
        rows.append([name, *goal, f"{measured['median_seconds']:.1f} s", ", ".join(seconds)])
    return markdown(["script", "environment", "mean return", "median", "seconds of each seed"], rows)


def thousands(x: float, _=None) -> str:
    return f"{x / 1e6:g}M" if abs(x) >= 1e6 else f"{x / 1e3:g}k" if abs(x) >= 1e3 else f"{x:g}"


def shade(axis, grid: np.ndarray, curves: np.ndarray, colour: str, label: str | None = None) -> None:
    """The mean of (S, G) curves, with a band of one standard deviation over the seeds where all of them have begun."""
    mean, std = curves.mean(0), curves.std(0, ddof=1) if len(curves) > 1 else np.zeros(curves.shape[1])
    axis.fill_between(grid, mean - std, mean + std, color=colour, alpha=0.2, linewidth=0)
    axis.plot(grid, mean, color=colour, linewidth=1.8, label=label)


def draw(panels: list[tuple[str, list[tuple]]], xlabel: str, path: Path) -> None:
    """A PNG and an SVG of some panels: each a title and series (grid (G,), curves (S, G), colour, label)."""
    columns = min(len(panels), 4)
    rows = -(-len(panels) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(4 * columns, 3 * rows), squeeze=False)
    for axis in axes.flat[len(panels) :]:
        axis.remove()
    for axis, (title, series) in zip(axes.flat, panels):
        for grid, curves, colour, label in series:
            shade(axis, grid, curves, colour, label)
        axis.set_title(title, fontsize=10)
        axis.set_xlabel(xlabel)
        axis.xaxis.set_major_formatter(thousands)
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
        if any(label for *_, label in series):
            axis.legend(fontsize=8)
    for axis in axes[:, 0]:
        axis.set_ylabel(f"return, last {LAST} episodes")
    save(figure, path)


def save(figure, path: Path) -> None:
    """The figure as path.svg and path.png."""
    plt.rcParams["svg.hashsalt"] = "ppo"  # the same data gives the same file
    figure.tight_layout()
    for suffix, metadata in ((".svg", {"Date": None}), (".png", {})):
        picture = io.BytesIO()
        figure.savefig(picture, format=suffix[1:], dpi=100, metadata=metadata)
        write_whole(path.with_name(path.name + suffix), picture.getvalue())
    plt.close(figure)


def pictures(environments: dict[str, list[Run]], path: Path, times: bool = True) -> None:
    """Learning curves over steps, in path.png and path.svg, and over time, in path_time.png and path_time.svg."""
    axes = [("steps", "environment steps", ""), ("seconds", "seconds of training", "_time")]
    for axis, xlabel, suffix in axes[: 1 + times]:
        panels = []
        for environment, runs in environments.items():
            grid = grids(runs, POINTS)[axis]
            curves = np.array([curve(getattr(run, axis), run.returns, grid) for run in runs])
            panels.append(
                (f"{environment}, {len(runs)} seed{'s' * (len(runs) > 1)}", [(grid, curves, "tab:blue", None)])
            )
        draw(panels, xlabel, path.with_name(path.name + suffix))


def place_tables(text: str, tables: dict[str, str]) -> str:
    """The page with every table between its two comments replaced."""

    def replace(match: re.Match) -> str:
        return f"{match[1]}\n{tables.get(match[2], match[3])}{match[4]}"

    return re.sub(r"(<!-- results ([^\n]+?) -->)\n(.*?)(<!-- end of results -->)", replace, text, flags=re.DOTALL)


# ---------------------------------------------------------------------------------------------------------- HTML report


def short(values: np.ndarray) -> list[float | None]:
    """For JSON: five digits, None where there is no number."""
    return [float(f"{value:.5g}") if np.isfinite(value) else None for value in values.tolist()]


def reproduction(run: Run) -> str:
    """The command that makes the run again, in a clone of this repository."""
    try:
        words = shlex.split(str(run.config.get("command") or ""))
    except ValueError:
        return str(run.config["command"])
    script = next((i for i, word in enumerate(words) if word.endswith(".py")), None)
    if script is not None and (ROOT / "cleanrl" / Path(words[script]).name).is_file():
        words[script] = f"cleanrl/{Path(words[script]).name}"
    return shlex.join(words)


def config_rows(config: dict) -> list[list[str]]:
    """The configuration as rows of a name and a value: the arguments first, and what the machine made of them."""
    parts = {"": config["arguments"], "resolved": config.get("resolved", {})}
    parts |= {name: config.get(name) for name in ("versions", "hardware", "git_commit")}
    rows = []
    for part, values in parts.items():
        for name, value in values.items() if isinstance(values, dict) else [("", values)]:
            rows.append([f"{part} {name}".strip(), value if isinstance(value, str) else json.dumps(value)])
    return rows


def metric_on_grid(run: Run, name: str, grid: np.ndarray) -> np.ndarray:
    """Means of a metric over the updates that end in each interval of the grid of steps, (G,); NaN where none does."""
    values, bins = run.metrics[name], np.searchsorted(grid, run.metrics["global_step"])
    finite = np.isfinite(values) & (bins < len(grid))
    sums = np.bincount(bins[finite], values[finite], len(grid))
    counts = np.bincount(bins[finite], minlength=len(grid))
    return np.divide(sums, counts, out=np.full(len(grid), np.nan), where=counts > 0)


def page_data(runs: list[Run], output: Path) -> dict:
    """What the page shows, for JSON; copies the videos into the output folder."""
    sources, entries, together = {}, [], defaultdict(list)
    for run in runs:
        together[run.label, run.env_id].append(run)
    for (label, env_id), members in together.items():
        complete = [run for run in members if run.is_complete and len(run.returns)]
        ended = complete or [run for run in members if len(run.returns)]
        axes = grids(ended or members, BROWSER_POINTS) if ended else {"steps": np.linspace(0, members[0].total, 2)}
        for number, run in enumerate(members):
            name = f"{len(entries):04}"
            curves = {}
            if len(run.returns):
                for axis, grid in axes.items():
                    curves[axis] = short(curve(getattr(run, axis), run.returns, grid))
                    beyond = (
                        grid > getattr(run, axis)[-1] + grid[1] if not run.is_complete else np.zeros(len(grid), bool)
                    )
                    curves[axis] = [None if cut else value for value, cut in zip(curves[axis], beyond)]
            losses = [name for name in run.metrics if name not in ("global_step", "charts/episodic_return")]
            source = sorted(run.folder.glob("*.py"))
            text = source[0].read_text(errors="replace") if source else None
            key = hashlib.sha256(text.encode()).hexdigest()[:12] if text is not None else None
            if key:
                sources[key] = {"name": source[0].name, "text": text}
            numbers = [run.result, run.steps_per_second, run.wall_seconds]
            videos = []
            ended = [path for path in run.folder.glob("videos/*.mp4") if path.stem.isdecimal()]  # not N.tmp.mp4
            for video in sorted(ended, key=lambda path: int(path.stem)):
                (output / "videos" / name).mkdir(parents=True, exist_ok=True)
                shutil.copy(video, output / "videos" / name)
                videos.append({"update": video.stem, "file": f"videos/{name}/{video.name}"})
            entries.append({
                "name": run.folder.name, "script": label, "environment": env_id, "seed": run.seed,
                "complete": run.is_complete, "step": int(run.steps[-1]) if len(run.steps) else 0, "total": run.total,
                **dict(zip(("result", "speed", "seconds"), short(np.array(numbers)))),
                "curves": curves, "losses": {name: short(metric_on_grid(run, name, axes["steps"])) for name in losses},
                "grid": {axis: short(grid) for axis, grid in axes.items()} if number == 0 else None,
                "command": reproduction(run), "config": config_rows(run.config), "source": key, "videos": videos,
            })  # fmt: skip
    summary = [row for label, environments in group(runs).items() for row in summarise(label, environments)]
    return {"runs": entries, "summary": summary, "sources": sources, "published": [*PUBLISHED, "minutes, Nov 2023"]}


def write_page(runs: list[Run], output: Path) -> None:
    """output/index.html, which needs nothing but the videos beside it: BokehJS, 1.4 MB, stands in it."""
    data = json.dumps(page_data(runs, output), separators=(",", ":"), allow_nan=False)
    data = data.replace("<", "\\u003c")  # so that no name or source in it can end the script element
    page = TEMPLATE.read_text().replace("{{ BOKEH }}", "\n".join(BOKEH.js_raw))
    before, after = page.split("{{ DATA }}")
    write_whole(output / "index.html", before + data + after)


# --------------------------------------------------------------------------------------------------------- The commands


def report_runs(paths: list[Path], output: Path) -> None:
    """Everything about some run folders, into the output folder."""
    if (output / "config.json").is_file():
        fail(f"--output {output}: is a run folder; name one of the report's own")
    page, title = output / "index.html", re.search("<title>.*</title>", TEMPLATE.read_text())[0]
    if page.is_file() and title not in page.read_text(errors="replace"):
        fail(f"--output {output}: its index.html is no report's and would be replaced; name another folder")
    runs = find_runs(paths)
    for run in runs:
        if not run.is_complete:
            print(f"{run.folder}: has not ended; the page shows it, tables and pictures don't", file=sys.stderr)
        elif not len(run.returns):
            print(f"{run.folder}: no episode ended in it; tables and pictures leave it out", file=sys.stderr)
    try:
        output.mkdir(parents=True, exist_ok=True)
        tables = []
        for label, environments in group(runs).items():
            tables.append(f"### {label}\n\n{full_table(label, environments)}")
            pictures(environments, output / slug(label))
        write_whole(output / "tables.md", "\n".join(tables))
        print("\n".join(tables))
        if page.is_file():
            for number in {*re.findall(r'"videos/(\d{4,})/', page.read_text(errors="replace"))}:  # of the report before
                shutil.rmtree(output / "videos" / number, ignore_errors=True)
        write_page(runs, output)
    except OSError as error:
        fail(f"--output {output}: {error}; name a folder that can be written, with room on the disk")
    print(f"{output / 'index.html'}: {len(runs)} runs")


def rebuild_results(results: Path) -> None:
    groups = load(results)
    if not groups:
        fail(f"{results}: holds no runs; add some with --keep runs/RUN …")
    tables = {}
    for label, environments in groups.items():
        tables[label] = table(label, environments)
        tables[f"{label} by step"] = table_by_step(environments)
        write_whole(results / f"{slug(label)}.md", full_table(label, environments, times=False))
        pictures(environments, results / slug(label), times=False)
        print(f"{label}\n{tables[label]}")
    tables |= {"summary": summary_table(groups), "speed": speed_table(results), "launch": launch_table(results)}
    tables |= {"time_to_return": time_table(results)}
    for path in sorted(results.glob("growth/*.json")):
        tables[f"growth_{path.stem}"] = growth_table(measured := json.loads(path.read_text()))
        growth_picture(measured, path.with_suffix(""))
    if results.resolve() == RESULTS:
        tables["short_speed"] = short_speed_table(results)
        for page in [ROOT / "README.md", *ROOT.glob("docs/**/*.md")]:
            text = page.read_text()
            labels = {*re.findall(r"<!-- results (?!scale_)([^\n]+?) -->", text)}  # scale.py's tables are its own
            for label in sorted(labels - tables.keys()):
                print(f"{page.name}: no kept runs are labelled {label}; its table stays as it was", file=sys.stderr)
            write_whole(page, place_tables(text, tables))


def main(args: Args) -> None:
    if (args.stopped or args.weights) and not args.keep:
        fail("--stopped, --weights: say what is kept of the runs after --keep, and none is named there")
    if args.runs and args.keep:
        fail("--keep: adds to the results of the repository, so it takes no other runs beside it; make two calls")
    if args.runs:
        report_runs(args.runs, args.output)
        return
    try:
        for run in args.keep:
            check_kept(run, args.stopped)
        for run in args.keep:
            keep_run(run, args.results, args.stopped, args.weights)
        rebuild_results(args.results)
    except OSError as error:
        fail(f"--results {args.results}: {error}; name a folder that can be written, with room on the disk")


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
