"""What the tools share: messages, a script's arguments and version, runs and their episodes, intervals, tables, pages.

Results are tables. `benchmark/results/runs.parquet` has a row for each run; the tables in `episodes` and `ablations`
beside it have one for each episode: its run, the step at which it ended, its return, its length, and the milliseconds
since the run began. `speed.json` and `growth.json` hold what throughput.py measured, by the measurement's name.
"""

import ast
import contextlib
import csv
import errno
import glob
import hashlib
import io
import json
import os
import runpy
import shlex
import sys
import tomllib
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmark" / "results"
LAST = 100  # a run's result is the mean return of its last 100 episodes
LEAST_SEEDS = 5  # for an interval: a bootstrap of fewer means nothing
IN_TABLES = frozenset("exp_name env_id total_timesteps checkpoints".split())  # what a row of a table says anyway
RULER = "= The run: nothing below is about PPO"  # ends the line between a script's two parts
PLAIN = ["script", "exp_name", "env_id", "seed", "version"]  # columns of runs.parquet that a Run has as they are
AS_JSON = ["arguments", "settings", "ablation", "evaluations"]  # and those that it has as JSON
ENCODINGS = {  # of the columns of episodes: a third of the bytes of Parquet's own choice
    "step": "DELTA_BINARY_PACKED", "milliseconds": "DELTA_BINARY_PACKED",
    "return": "BYTE_STREAM_SPLIT", "length": "BYTE_STREAM_SPLIT",
}  # fmt: skip

# Arguments that concern only the machine, the speed, or what is recorded of a run, in this release or in 0.2. Two runs
# that agree in all others, and in the version of their script, are seeds of one experiment.
NOT_IDENTITY = frozenset(
    """backend capture_video channels_last compile cuda cuda_graphs debug deterministic device device_ids env_threads
    episodes evaluate malloc_tuning num_threads resume seed torch_deterministic track vectorization wandb_entity
    wandb_project_name""".split()
)


def fail(message: str, status: int = 2):
    """Ends the program with one line on stderr, which begins with the name of the tool that was typed."""
    print(f"{Path(sys.argv[0]).name}: error: {' '.join(str(message).split())}", file=sys.stderr)
    raise SystemExit(status)


@contextlib.contextmanager
def in_one_line(*mistakes: type[Exception]):
    """Here these mistakes, missing packages, files and full disks end the program with one line; Ctrl-C, with none."""
    try:
        yield
    except ImportError as error:
        fail(f"{error}; pip install -e '.[benchmark]'")
    except (*mistakes, OSError) as error:
        if getattr(error, "errno", None) == errno.ENOSPC:
            fail(f"{error}; make room, and type the same command again", status=1)
        fail(error)
    except KeyboardInterrupt:
        raise SystemExit(130) from None


def words_of(option: str, typed: str) -> list[str]:
    """The words of a command line. Raises ValueError if a quote in it has no end."""
    try:
        return shlex.split(typed)
    except ValueError as error:
        raise ValueError(f"{option} {typed}: {error}; end the quote, or put another kind around it") from None


def write_atomically(path: Path, content: str | bytes) -> None:
    """Writes a file, and its folder if there is none. The old file stays whole until the new one is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        new.write_bytes(content.encode() if isinstance(content, str) else content)
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


# -------------------------------------------------------------------------------------------------------------- Scripts
@cache
def script_args(script: Path) -> type:
    """The dataclass Args of a script, which is run as a module. Ends the program with one line if there is none."""
    sys.path.insert(0, str(script.resolve().parent))  # for modules beside it, as Python itself does
    try:
        return runpy.run_path(str(script))["Args"]
    except (OSError, SyntaxError, ImportError, KeyError) as error:
        reason = f"{type(error).__name__}: {error}"
        fail(f"{script}: has no Args that can be read ({reason}); name a script such as cleanrl/ppo.py")


def defaults(script: Path) -> dict:
    """The defaults of a script's Args that are plain values, without running it: a run folder can be from anywhere."""
    found = {}
    for node in ast.parse(script.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef) and node.name == "Args":
            for one in node.body:
                if isinstance(one, ast.AnnAssign) and one.value is not None:
                    with contextlib.suppress(ValueError):  # what is computed, such as exp_name
                        found[one.target.id] = ast.literal_eval(one.value)
    return found


def version(script: Path) -> str:
    """Twelve hex digits: a hash of the code above a script's ruler, without comments, docstrings and layout."""
    text, _, _ = script.read_text(encoding="utf-8", errors="replace").partition(RULER)
    with contextlib.suppress(SyntaxError, ValueError):  # while it is edited it may be no Python
        tree = ast.parse(text)
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                if ast.get_docstring(node, clean=False) is not None:
                    node.body = node.body[1:] or [ast.Pass()]
        text = ast.unparse(tree)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def release() -> str:
    """The version of this repository, as in "0.2"."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return project["version"].removesuffix(".0")


def identity(arguments: dict) -> dict:
    """The arguments that make a run what it is, without its seed. How many checkpoints are saved counts only if fresh
    episodes begin after each."""
    kept = {name: value for name, value in arguments.items() if name not in NOT_IDENTITY}
    kept["total_timesteps"] = int(kept["total_timesteps"])  # 1e6 is a number too
    if not kept.get("exact_resume"):
        kept.pop("exact_resume", None)
        kept.pop("checkpoints", None)
    return kept


def last_arguments(config: dict) -> dict:
    """The arguments with which a folder's run was last resumed or, without a resume, begun. If a resume changed what
    the run is, they have one more, changed_on_resume: a run that had them from its first step on is another run."""
    arguments = [part["arguments"] for part in (config, *config.get("resumed", []))]
    changed = any(identity(one) != identity(arguments[0]) for one in arguments)
    return arguments[-1] | ({"changed_on_resume": True} if changed else {})


def planned_steps(arguments: dict) -> int:
    """The step at which a run with these arguments ends: that of its last whole update."""
    batch_size = int(arguments["num_envs"]) * int(arguments["num_steps"])
    return int(arguments["total_timesteps"]) // batch_size * batch_size


# ----------------------------------------------------------------------------------------------------------------- Runs
@dataclass(eq=False)
class Run:
    """A run: a folder's, or a kept one."""

    name: str  # of its folder
    script: str  # file name of the script without .py, ppo_numpy; for ablations, of the untouched one
    exp_name: str
    env_id: str
    seed: int
    version: str  # of the script that ran
    release: str | None  # of a kept run: the release of the repository with which it was made
    arguments: dict
    settings: dict  # what of identity(arguments), but for IN_TABLES, is not the script's default
    total: int  # steps planned, or where it was stopped
    ended: bool
    steps: np.ndarray = field(repr=False)  # (E,) at which its episodes ended
    returns: np.ndarray = field(repr=False)  # (E,)
    lengths: np.ndarray = field(repr=False)  # (E,)
    seconds: np.ndarray = field(repr=False)  # (E,) since the run began
    stopped_at: int | None = None  # of a kept run that was stopped or diverged before its end: the last step
    ablation: dict = field(default_factory=dict)  # suite, name ("" is untouched), base, beside
    config: dict = field(default_factory=dict, repr=False)  # of a folder: its config.json
    evaluations: list = field(default_factory=list, repr=False)  # [step, levels, return] of Procgen's at checkpoints

    @property
    def identity(self) -> dict:
        """What seeds of one experiment have in common."""
        return identity(self.arguments) | {"version": self.version, "stopped_at": self.stopped_at}

    @property
    def result(self) -> float:
        """Mean return of the last 100 episodes, NaN without any."""
        return float(self.returns[-LAST:].mean()) if len(self.returns) else float("nan")


def checkpoints(run: Path) -> list[Path]:
    """The checkpoints of a run folder, ordered by their updates."""
    found = [path for path in run.glob("checkpoints/*") if path.suffix in (".pt", ".npz") and path.stem.isdecimal()]
    return sorted(found, key=lambda path: int(path.stem))


def read_log(path: Path) -> str:
    """The text of a CSV file that a process may be writing, without half a last row."""
    text = path.read_text(encoding="utf-8")
    return text[: text.rfind("\n") + 1]


def last_step(folder: Path) -> int:
    """The last step in a run folder's metrics.csv, 0 before the first update."""
    path = folder / "metrics.csv"
    rows = read_log(path).splitlines()[1:] if path.is_file() else []
    return int(float(rows[-1].split(",")[0])) if rows else 0


def evaluations_of(folder: Path) -> list:
    """[step, levels, return] of each episode in a run folder's levels.csv, which ppo_procgen.py writes."""
    path = folder / "levels.csv"
    rows = csv.DictReader(read_log(path).splitlines()) if path.is_file() else []
    return [[int(row["global_step"]), row["levels"], float(row["episodic_return"])] for row in rows]


def run_of_folder(folder: Path) -> Run:
    """The run of a run folder. Raises ValueError if it is no whole one."""
    import pandas

    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        arguments = last_arguments(config)
        script = folder / f"{config['script']}.py"
        own = identity(arguments)
        usual = defaults(script)
        settings = {name: own[name] for name in own if name not in usual or own[name] != usual[name]}
        episodes = pandas.read_csv(io.StringIO(read_log(folder / "episodes.csv")), dtype=float)
        if episodes.isna().any(axis=None):
            raise ValueError("episodes.csv has a cell that is no number")
        return Run(
            name=folder.resolve().name,
            script=script.stem,
            exp_name=arguments["exp_name"],
            env_id=arguments["env_id"],
            seed=arguments["seed"],
            version=version(script),
            release=None,
            arguments=arguments,
            settings={name: settings[name] for name in sorted(settings.keys() - IN_TABLES)},
            total=own["total_timesteps"],
            ended=0 < planned_steps(arguments) <= last_step(folder),
            steps=episodes["global_step"].to_numpy(),
            returns=episodes["episodic_return"].to_numpy(),
            lengths=episodes["episodic_length"].to_numpy(),
            seconds=episodes["seconds"].cummax().to_numpy(),  # clocks of several processes can run apart a little
            config=config,
            evaluations=evaluations_of(folder),
        )
    except (ArithmeticError, AttributeError, LookupError, OSError, SyntaxError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{folder}: is no whole run folder ({type(error).__name__}: {reason})") from None


def find_runs(paths: list[Path]) -> list[Run]:
    """The runs at and below the paths that have ended. Says on stderr which it leaves out: others, those in which no
    episode ended, what can't be read, and the older of two that are the same run. Ends the program if none is left."""
    for path in paths:
        if not path.exists():
            fail(f"{path}: there is no such folder")
    patterns = [f"{glob.escape(str(path))}/**/config.json" for path in paths]  # as Path.rglob, but it follows links
    configs = [config for pattern in patterns for config in sorted(glob.glob(pattern, recursive=True))]
    folders = [Path(config).parent.resolve() for config in configs]
    found = {}
    for folder in sorted(dict.fromkeys(folders), key=lambda folder: folder.name):
        try:
            run = run_of_folder(folder)
        except ValueError as reason:
            print(f"{reason}; it is left out", file=sys.stderr)
            continue
        if not run.ended or len(run.returns) == 0:
            print(f"{folder}: has not ended, or no episode in it has; it is left out", file=sys.stderr)
            continue
        same = json.dumps(run.identity | {"seed": run.seed}, sort_keys=True)
        if same in found:
            print(f"{found[same].name}: is the same run as {run.name}; the older is left out", file=sys.stderr)
        found[same] = run
    if not found:
        fail(f"{' '.join(map(str, paths)) or 'nothing'}: holds no run that has ended; name folders of runs")
    return sorted(found.values(), key=lambda run: (run.exp_name, run.env_id, run.seed))


def read_runs(results: Path = RESULTS):
    """The table of kept runs as a data frame, a row a run, with JSON as text; empty if there is none."""
    import pandas

    path = results / "runs.parquet"
    return pandas.read_parquet(path) if path.is_file() else pandas.DataFrame(columns=["run", "collection", "table"])


def kept_runs(collection: str, results: Path = RESULTS) -> list[Run]:
    """The kept runs of a collection: "results", "ablations", "beside" (untouched runs of further machines for the
    ablations), "earlier_rounds" (of recipes) or "fp32"."""
    import pandas

    rows = read_runs(results)
    runs = []
    for table, of_table in rows[rows["collection"] == collection].groupby("table"):
        all_episodes = pandas.read_parquet(results / f"{table}.parquet")
        by_run = dict(list(all_episodes.groupby("run")))
        for row in of_table.to_dict("records"):
            episodes = by_run.get(row["run"], all_episodes[:0]).drop(columns="run").astype(float)
            of_json = {name: json.loads(row[name]) for name in AS_JSON}
            stopped_at = row["stopped_at"] if row["stopped_at"] >= 0 else None
            run = Run(
                name=row["run"],
                release=row["release"],
                stopped_at=stopped_at,
                total=int(of_json["arguments"]["total_timesteps"]) if stopped_at is None else stopped_at,
                ended=True,
                steps=episodes["step"].to_numpy(),
                returns=episodes["return"].to_numpy(),
                lengths=episodes["length"].to_numpy(),
                seconds=episodes["milliseconds"].cummax().to_numpy() / 1000,
                **{name: row[name] for name in PLAIN},
                **of_json,
            )
            runs.append(run)
    return sorted(runs, key=lambda run: (run.exp_name, run.env_id, run.seed))


def append_runs(runs: list[Run], collection: str = "results", results: Path = RESULTS) -> int:
    """Adds runs to the tables, but those whose names are there, and returns how many. Their release is the present one
    unless they have one. runs.parquet comes last: episodes of a run without a row there are not read."""
    import pandas

    old = read_runs(results)
    new = {run.name: run for run in runs if run.name not in set(old["run"])}
    if not new:
        return 0
    types = {"step": "int32", "return": "float32", "length": "int32", "milliseconds": "int32"}
    rows = pandas.DataFrame([_row(run, collection) for run in new.values()])
    for table, names in rows.groupby("table")["run"]:
        path = results / f"{table}.parquet"
        parts = []
        if path.is_file():
            before = pandas.read_parquet(path)
            parts.append(before[~before["run"].isin(new)])
        for name in names:
            run = new[name]
            digits = 0 if run.ablation else 3  # ablations keep whole seconds: their curves are over steps
            columns = {"run": name, "step": run.steps, "return": run.returns, "length": run.lengths}
            columns["milliseconds"] = (run.seconds.round(digits) * 1000).round()
            parts.append(pandas.DataFrame(columns).astype(types))
        _write_table(pandas.concat(parts), path, use_dictionary=["run"], column_encoding=ENCODINGS)
    _write_table(pandas.concat([old, rows] if len(old) else [rows]), results / "runs.parquet")
    return len(new)


def portable(command: str) -> str:
    """A run's command with cleanrl/ instead of a script's whole path: a kept run names no folder of a machine."""
    words = shlex.split(command)
    for i, word in enumerate(words):
        if word.endswith(".py") and Path(word).is_absolute():
            words[i] = f"cleanrl/{Path(word).name}"
    return shlex.join(words)


def _row(run: Run, collection: str) -> dict:
    """A run as a row of runs.parquet."""
    table = f"ablations/{run.ablation['suite']}" if collection == "ablations" else f"episodes/{run.exp_name}"
    row = {"run": run.name, "collection": collection, "table": table, "release": run.release or release()}
    row |= {name: getattr(run, name) for name in PLAIN}
    row |= {name: json.dumps(getattr(run, name)) for name in AS_JSON}
    row |= {name: json.dumps(run.config.get(name) or {}) for name in ("resolved", "hardware", "versions")}
    row["stopped_at"] = -1 if run.stopped_at is None else run.stopped_at
    row |= {"command": portable(run.config.get("command") or ""), "git_commit": run.config.get("git_commit") or ""}
    return row


def _write_table(frame, path: Path, **options) -> None:
    """Writes a data frame, as small as it gets. Rows are ordered by run; those of a run keep their order."""
    content = io.BytesIO()
    frame = frame.sort_values("run", kind="stable")
    frame.to_parquet(content, index=False, compression="zstd", compression_level=22, **options)
    write_atomically(path, content.getvalue())


def read_json(name: str, results: Path = RESULTS) -> dict:
    """speed.json or growth.json as a dictionary of measurements by their names; empty if there is none."""
    path = results / name
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def write_json(name: str, measurement: str, measured: dict, results: Path = RESULTS) -> None:
    """Puts a measurement into speed.json or growth.json, a line each, in place of an earlier one of the name."""
    content = read_json(name, results) | {measurement: measured}
    lines = [f"{json.dumps(key)}: {json.dumps(content[key])}" for key in sorted(content)]
    write_atomically(results / name, "{\n" + ",\n".join(lines) + "\n}\n")


def curve(positions, returns, grid):
    """Mean return of the last 100 episodes that had ended by each position (a step or a second) of the grid, (G,); NaN
    before the first. positions, returns: (E,)."""
    sums = np.concatenate([[0.0], np.cumsum(returns)])
    ended = np.searchsorted(positions, grid, side="right")
    first = np.maximum(ended - LAST, 0)
    means = np.full(len(grid), np.nan)
    np.divide(sums[ended] - sums[first], ended - first, out=means, where=ended > 0)
    return means


def mean_interval(values) -> tuple[float, float, float]:
    """The mean of (S,) values, one a seed, with its 95% interval; see _interval."""
    return _interval(np.mean, values)


def difference_interval(a, b, paired: bool) -> tuple[float, float, float]:
    """mean(b) − mean(a) with its 95% interval. paired: a[i] and b[i] belong together (the same seed, (S,) each);
    otherwise the two are sampled apart, (S_a,) and (S_b,)."""
    if paired:
        return mean_interval(np.subtract(b, a))
    return _interval(lambda b, a, axis: b.mean(axis) - a.mean(axis), b, a)


def _interval(statistic, *samples) -> tuple[float, float, float]:
    """The statistic, a mean or a difference of two, and its 95% interval from 9,999 seeded bootstrap samples; (−inf,
    inf) with fewer than LEAST_SEEDS values. The 2.5th and 97.5th percentiles would be too narrow for few seeds: these
    are as far out, in standard errors, as Student's t with Welch's degrees of freedom (Hesterberg 2015, "What Teachers
    Should Know About the Bootstrap", section 5.3)."""
    from scipy.stats import bootstrap, norm, t

    samples = [np.asarray(sample, dtype=float) for sample in samples]
    value = float(statistic(*samples, axis=-1))
    counts = np.array([len(sample) for sample in samples])
    if counts.min() < LEAST_SEEDS:
        return value, -np.inf, np.inf
    errors = np.array([sample.var(ddof=1) / len(sample) for sample in samples])  # squared standard errors
    if errors.sum() == 0:
        return value, value, value
    biased = sum(sample.var() / len(sample) for sample in samples)  # what the bootstrap has in their place
    freedom = errors.sum() ** 2 / (errors**2 / (counts - 1)).sum()
    outside = norm.cdf(-t.ppf(0.975, freedom) * np.sqrt(errors.sum() / biased))
    found = bootstrap(samples, statistic, method="percentile", vectorized=True, rng=np.random.default_rng(1))
    low, high = np.percentile(found.bootstrap_distribution, [100 * outside, 100 * (1 - outside)])
    return value, float(low), float(high)


# ----------------------------------------------------------------------------------------------------- Tables and pages
def signed(number: float) -> str:
    """Two digits after the point, with a minus sign as print has it."""
    return f"{number:.2f}".replace("-", "−")


def spread(results: list[float]) -> str:
    """Mean ± standard deviation over seeds, of one seed the number alone."""
    if len(results) == 1:
        return signed(results[0])
    return f"{signed(np.mean(results))} ± {np.std(results, ddof=1):.2f}"


def between(low: float, high: float) -> str:
    """An interval as a cell."""
    return f"[{signed(low)}, {signed(high)}]" if np.isfinite(low) else "–"


def markdown(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [f"| {' | '.join(header)} |", f"|{'---|' * len(header)}"]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join(lines) + "\n"


def table(rows: list[list[str]], title: str | None = None) -> None:
    """Prints a table to the terminal; the first row is the header."""
    from rich.console import Console
    from rich.table import Column, Table

    shown = Table(*[Column(name, overflow="fold") for name in rows[0]], title=title, title_justify="left")
    for row in rows[1:]:
        shown.add_row(*row)
    Console(width=None if sys.stdout.isatty() else 200, markup=False, highlight=False).print(shown)


def pictures():
    """matplotlib.pyplot for pictures that can be read on light and on dark pages: no background, gray text."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    gray = ("text.color", "axes.labelcolor", "axes.edgecolor", "axes.titlecolor", "xtick.color", "ytick.color")
    plt.rcParams.update(dict.fromkeys((*gray, "grid.color"), "#808080"))
    plt.rcParams.update({"axes.grid": True, "axes.axisbelow": True, "grid.alpha": 0.3, "legend.framealpha": 0})
    plt.rcParams.update({"axes.spines.top": False, "axes.spines.right": False})
    plt.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "ppo"})  # the reader's font; the same file again
    return plt


def save_picture(figure, path: Path) -> None:
    """Writes the figure as an SVG and closes it."""
    import matplotlib.pyplot as plt

    figure.tight_layout()
    content = io.BytesIO()
    figure.savefig(content, format="svg", transparent=True, metadata={"Date": None})
    write_atomically(path, content.getvalue())
    plt.close(figure)


def fill(page: Path, name: str, text: str) -> bool:
    """Puts the text into the block of this name of a page, between `<!-- results ppo -->` and `<!-- end of results -->`
    for the name "results ppo". Returns whether the page has the block; ValueError if the block has no end."""
    content = page.read_text(encoding="utf-8")
    begin = f"<!-- {name} -->\n"
    before, found, rest = content.partition(begin)
    if not found:
        return False
    filled = before + begin + text + rest[rest.index(f"<!-- end of {name.split()[0]} -->") :]
    if filled != content:
        write_atomically(page, filled)
    return True
