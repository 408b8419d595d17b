"""What the tools share: messages, a script's arguments and version, runs and their episodes, intervals, tables, pages.

Results are tables, not folders. `benchmark/results/runs.parquet` has a row for each run, and the tables below
`benchmark/results/episodes` and `benchmark/results/ablations` have a row for each episode: its run, the step at which
it ended, its return, its length, and the milliseconds since the run began. `speed.json` and `growth.json` hold what
throughput.py measured, by the name of the measurement.
"""

import ast
import contextlib
import hashlib
import importlib.util
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
RUNS = "runs.parquet"
LAST = 100  # a run's result is the mean return of its last 100 episodes
LEAST_SEEDS = 5  # for an interval: a bootstrap of fewer means nothing
RESAMPLES = 9_999
IN_TABLES = frozenset("exp_name env_id total_timesteps checkpoints".split())  # what a row of a table says anyway
RULER = "# ===="  # begins the line between a script's two parts

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


def need(*packages: str) -> None:
    """Ends the program with one line unless these packages of the extra `benchmark` are installed."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            fail(f"{package} is not installed; pip install -e '.[benchmark]'")


def write_atomically(path: Path, content: str | bytes) -> None:
    """Writes a file beside its place and moves it there, so that the old one stays whole until the new one is. Makes
    the folder if there is none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        if isinstance(content, str):
            new.write_text(content, encoding="utf-8", newline="\n")
        else:
            new.write_bytes(content)
        os.replace(new, path)
    finally:
        new.unlink(missing_ok=True)


# -------------------------------------------------------------------------------------------------------------- Scripts


@cache
def script_args(script: Path) -> type:
    """The dataclass Args of a script, which is run for it as a module. Ends the program with one line if the script
    can't be imported or has none."""
    try:
        found = runpy.run_path(str(script)).get("Args")
    except (OSError, SyntaxError, ImportError) as error:
        fail(f"{script}: can't be read ({type(error).__name__}: {error})")
    if found is None:
        fail(f"{script}: has no class Args; name a script such as cleanrl/ppo.py")
    return found


def defaults(script: Path) -> dict:
    """The defaults of a script's Args that are plain values, by their names. Unlike script_args it doesn't run the
    script: a run folder can come from anywhere, and what its script imports may be missing here."""
    found = {}
    try:
        tree = ast.parse(script.read_text(encoding="utf-8", errors="replace"))
    except (SyntaxError, ValueError):
        return found
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == "Args":
            for one in node.body:
                if isinstance(one, ast.AnnAssign) and one.value is not None:
                    with contextlib.suppress(ValueError):  # what is computed, such as exp_name
                        found[one.target.id] = ast.literal_eval(one.value)
    return found


def version(script: Path) -> str:
    """Twelve hex digits that tell the versions of a script apart: a hash of the code above its ruler (of all code if it
    has none) without comments, docstrings and layout. Of text that is no Python, a hash of the text."""
    lines = script.read_text(encoding="utf-8", errors="replace").splitlines()
    rulers = [i for i, line in enumerate(lines) if line.startswith(RULER) and " The run" in line]
    if rulers:
        lines = lines[: rulers[0]]
    text = "\n".join(lines)
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return hashlib.sha256(text.encode()).hexdigest()[:12]
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if ast.get_docstring(node, clean=False) is not None:
                node.body = node.body[1:] or [ast.Pass()]
    return hashlib.sha256(ast.unparse(tree).encode()).hexdigest()[:12]


def release() -> str:
    """The version of this repository, as in "0.2"."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return project["version"].removesuffix(".0")


def identity(arguments: dict) -> dict:
    """The arguments that make a run what it is, without its seed. How many checkpoints are saved counts only if fresh
    episodes begin after each."""
    kept = {name: value for name, value in arguments.items() if name not in NOT_IDENTITY}
    if "total_timesteps" in kept:
        kept["total_timesteps"] = int(kept["total_timesteps"])  # 1e6 is a number too
    if not kept.get("exact_resume"):
        kept.pop("exact_resume", None)
        kept.pop("checkpoints", None)
    return kept


def portable(command: str) -> str:
    """A run's command with cleanrl/ instead of the folder of a script that was typed in full: a kept run names no path
    of a machine."""
    try:
        words = shlex.split(command)
    except ValueError:  # an open quote: no script wrote this
        return command
    for i, word in enumerate(words):
        if word.endswith(".py") and Path(word).is_absolute():
            words[i] = f"cleanrl/{Path(word).name}"
    return shlex.join(words)


def checkpoints(run: Path) -> list[Path]:
    """The checkpoints of a run folder, ordered by their updates."""
    found = []
    for path in run.glob("checkpoints/*"):
        if path.suffix in (".pt", ".npz") and path.stem.isdecimal():
            found.append(path)
    return sorted(found, key=lambda path: int(path.stem))


# ----------------------------------------------------------------------------------------------------------------- Runs


class Unreadable(Exception):
    """A folder that is no whole run folder, with the reason."""


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
    stopped_at: int | None = None  # of a kept run that was stopped or diverged before its end: the last step logged
    collection: str = ""  # of a kept run: results, earlier_rounds, fp32, ablations or beside; see append_runs
    ablation: dict = field(default_factory=dict)  # suite, name ("" is untouched), base, beside, arguments
    config: dict = field(default_factory=dict, repr=False)  # config.json; of a kept run what is left of it
    evaluations: list = field(default_factory=list, repr=False)  # [step, levels, return]: Procgen's of release 0.2

    @property
    def identity(self) -> dict:
        """What seeds of one experiment have in common."""
        return identity(self.arguments) | {"version": self.version, "stopped_at": self.stopped_at}

    @property
    def result(self) -> float:
        """Mean return of the last 100 episodes, NaN without any."""
        if len(self.returns) == 0:
            return float("nan")
        return float(self.returns[-LAST:].mean())


def read_run(folder: Path):
    """(config, episodes) of a run folder: config.json as a dictionary, and a data frame with the columns global_step,
    episodic_return, episodic_length and seconds. A half row at the end of episodes.csv, of a run that was killed, is
    left out. Raises Unreadable if either file is missing or damaged."""
    import pandas

    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        if not isinstance(config, dict) or not isinstance(config.get("arguments"), dict):
            raise ValueError("config.json holds no arguments")
        text = (folder / "episodes.csv").read_text(encoding="utf-8")
        whole = text[: text.rfind("\n") + 1]
        episodes = pandas.read_csv(io.StringIO(whole))
        episodes = episodes[["global_step", "episodic_return", "episodic_length", "seconds"]].astype(float)
        if not np.isfinite(episodes.to_numpy()).all():
            raise ValueError("episodes.csv holds a number that is not finite")
    except (OSError, KeyError, TypeError, ValueError) as error:  # pandas' errors and JSON's are ValueErrors
        reason = " ".join(str(error).split())
        raise Unreadable(f"{folder}: is no whole run folder ({type(error).__name__}: {reason})") from None
    return config, episodes


def planned_steps(arguments: dict) -> int:
    """The step at which a run with these arguments ends: that of its last whole update."""
    batch_size = int(arguments["num_envs"]) * int(arguments["num_steps"])
    return int(arguments["total_timesteps"]) // batch_size * batch_size


def last_step(folder: Path) -> int:
    """The last step in a run folder's metrics.csv, 0 before the first update."""
    try:
        lines = (folder / "metrics.csv").read_text(encoding="utf-8").split("\n")
    except OSError:
        return 0
    if len(lines) < 3:  # the header, a row, and what follows its end
        return 0
    position = lines[0].split(",").index("global_step")
    return int(float(lines[-2].split(",")[position]))


def run_of_folder(folder: Path) -> Run:
    """The run of a run folder. Raises Unreadable if it is no whole one."""
    config, episodes = read_run(folder)
    arguments = config["arguments"]
    try:
        scripts = sorted(folder.glob("*.py"))
        if scripts:
            usual = list(identity(defaults(scripts[0])).items())
            made_by = version(scripts[0])
        else:
            usual = []
            made_by = str(config.get("git_commit"))[:12]
        last = planned_steps(arguments)
        own = identity(arguments)
        return Run(
            name=folder.resolve().name,
            script=str(config.get("script") or arguments["exp_name"]),
            exp_name=str(arguments["exp_name"]),
            env_id=str(arguments["env_id"]),
            seed=int(arguments["seed"]),
            version=made_by,
            release=None,
            arguments=arguments,
            settings={name: own[name] for name in sorted(own.keys() - IN_TABLES) if (name, own[name]) not in usual},
            total=int(arguments["total_timesteps"]),
            ended=0 < last <= last_step(folder),
            steps=episodes["global_step"].to_numpy(),
            returns=episodes["episodic_return"].to_numpy(),
            lengths=episodes["episodic_length"].to_numpy(),
            seconds=episodes["seconds"].cummax().to_numpy(),  # clocks of several processes can run apart a little
            config=config,
        )
    except (KeyError, TypeError, ValueError, OverflowError, ZeroDivisionError) as error:
        reason = " ".join(str(error).split())
        raise Unreadable(f"{folder}: config.json is not of a script's run ({type(error).__name__}: {reason})") from None


def find_runs(paths: list[Path]) -> list[Run]:
    """The runs at and below the paths. Says on stderr which it leaves out: what can't be read, and the older of two
    that are the same run. Ends the program with one line if a path holds none."""
    folders = []
    for path in paths:
        if not path.is_dir():
            fail(f"{path}: is not a folder; name run folders, or a folder that holds them")
        if (path / "config.json").is_file():
            found = [path]
        else:
            found = [config.parent for config in sorted(path.rglob("config.json"))]
        if not found:
            fail(f"{path}: holds no run folder; name one that has a config.json, or a folder of such")
        folders += found
    runs = {}
    for folder in sorted({folder.resolve(): folder for folder in folders}.values(), key=lambda folder: folder.name):
        try:
            run = run_of_folder(folder)
        except Unreadable as reason:
            print(f"{reason}; it is left out", file=sys.stderr)
            continue
        same = json.dumps(run.identity | {"seed": run.seed}, sort_keys=True)
        if same in runs and runs[same].ended and not run.ended:
            print(f"{folder}: is the same run as {runs[same].name}, which has ended; it is left out", file=sys.stderr)
            continue
        if same in runs:
            print(f"{runs[same].name}: is the same run as {folder}; the older one is left out", file=sys.stderr)
        runs[same] = run
    if not runs:
        fail(f"{' '.join(str(path) for path in paths)}: no run folder can be read")
    return sorted(runs.values(), key=lambda run: (run.exp_name, run.env_id, run.seed))


PLAIN = ["script", "exp_name", "env_id", "seed", "version"]  # columns of runs.parquet that a Run has as they are
JSON_OF_RUN = ["arguments", "settings", "ablation", "evaluations"]  # and those that it has as JSON,
JSON_OF_CONFIG = ["resolved", "hardware", "versions"]  # and those of its config


def read_runs(results: Path = RESULTS):
    """The table of kept runs as a data frame, a row a run, with JSON as text; empty if there is none."""
    import pandas

    if not (results / RUNS).is_file():
        return pandas.DataFrame()
    return pandas.read_parquet(results / RUNS)


def read_episodes(table: str, results: Path = RESULTS):
    """The episodes of one table ("episodes/ppo" or "ablations/core") as a data frame: run, step, return, length,
    milliseconds. Episodes of a run are in the order in which they were logged."""
    import pandas

    return pandas.read_parquet(results / f"{table}.parquet", read_dictionary=["run"])


def kept_runs(collection: str, results: Path = RESULTS, exp_name: str | None = None) -> list[Run]:
    """The kept runs of a collection: results, earlier_rounds, fp32, ablations or beside (see append_runs); with
    exp_name only those of this name."""
    rows = read_runs(results)
    if len(rows) == 0:
        return []
    rows = rows[rows["collection"] == collection]
    if exp_name is not None:
        rows = rows[rows["exp_name"] == exp_name]
    runs = []
    for table, of_table in rows.groupby("table"):
        episodes = dict(list(read_episodes(table, results).groupby("run", observed=True)))
        for row in of_table.to_dict("records"):
            runs.append(_kept_run(row, episodes.get(row["run"])))
    return sorted(runs, key=lambda run: (run.exp_name, run.env_id, run.seed))


def _kept_run(row: dict, episodes) -> Run:
    """The run of a row of runs.parquet and of its rows of episodes, None if no episode ended in it."""
    columns = {}
    for name in ("step", "return", "length", "milliseconds"):
        columns[name] = np.empty(0) if episodes is None else episodes[name].to_numpy(dtype=float)
    values = {name: json.loads(row[name]) for name in JSON_OF_RUN + JSON_OF_CONFIG}
    stopped_at = int(row["stopped_at"]) if row["stopped_at"] >= 0 else None
    return Run(
        name=row["run"],
        collection=row["collection"],
        release=row["release"],
        stopped_at=stopped_at,
        total=int(values["arguments"]["total_timesteps"]) if stopped_at is None else stopped_at,
        ended=True,
        steps=columns["step"],
        returns=columns["return"],
        lengths=columns["length"],
        seconds=np.maximum.accumulate(columns["milliseconds"]) / 1000,
        config={name: row[name] for name in ("command", "git_commit")} | values,
        **{name: row[name] for name in PLAIN},
        **{name: values[name] for name in JSON_OF_RUN},
    )


def append_runs(runs: list[Run], collection: str = "results", results: Path = RESULTS) -> int:
    """Adds runs to the tables, with the present release as theirs unless they have one, and returns how many were
    added; a run whose name is kept already is left as it is. `collection` says what a run is kept for: "results" for
    the tables of the scripts (episodes/{exp_name}.parquet), "ablations" for what ablate.py compares, "beside" for
    untouched runs of further machines that it compares single ablations with (both in ablations/{suite}.parquet); any
    other name has its own table (episodes/{collection}.parquet). The runs come into runs.parquet last: episodes of a
    run without a row there are not read."""
    import pandas

    old = read_runs(results)
    there = set(old["run"]) if len(old) else set()
    rows = []
    episodes = {}
    for run in runs:
        if run.name in there:
            continue
        there.add(run.name)
        if collection in ("ablations", "beside"):
            table = f"ablations/{run.ablation['suite']}"
        elif collection == "results":
            table = f"episodes/{run.exp_name}"
        else:
            table = f"episodes/{collection}"
        rows.append(_row(run, collection, table))
        episodes.setdefault(table, []).append(_episode_rows(run))
    for table, parts in episodes.items():
        if (results / f"{table}.parquet").is_file():
            before = read_episodes(table, results).astype({"run": str})
            before = before[~before["run"].isin([row["run"] for row in rows])]
            parts = [before, *parts]
        _write_table(pandas.concat(parts, ignore_index=True), results / f"{table}.parquet")
    if rows:
        _write_table(pandas.concat([old, pandas.DataFrame(rows)], ignore_index=True), results / RUNS)
    return len(rows)


def _row(run: Run, collection: str, table: str) -> dict:
    """A run as a row of runs.parquet."""
    row = {"run": run.name, "collection": collection, "table": table}
    row |= {name: getattr(run, name) for name in PLAIN}
    row |= {name: json.dumps(getattr(run, name)) for name in JSON_OF_RUN}
    row |= {name: json.dumps(run.config.get(name) or {}) for name in JSON_OF_CONFIG}
    row["release"] = run.release or release()
    row["stopped_at"] = -1 if run.stopped_at is None else run.stopped_at
    row["command"] = portable(str(run.config.get("command") or ""))
    row["git_commit"] = str(run.config.get("git_commit") or "")
    return row


def _episode_rows(run: Run):
    """A run's episodes as rows of an episodes table. Ablations keep whole seconds: their curves are over steps."""
    import pandas

    digits = 0 if run.ablation else 3
    columns = {
        "run": run.name,
        "step": run.steps.astype("int32"),
        "return": run.returns.astype("float32"),
        "length": run.lengths.astype("int32"),
        "milliseconds": (run.seconds.round(digits) * 1000).round().astype("int32"),
    }
    return pandas.DataFrame(columns)


def _write_table(frame, path: Path) -> None:
    """Writes a table as small as it gets. Rows are ordered by run; those of a run stay in their order."""
    import pyarrow
    import pyarrow.parquet

    frame = frame.sort_values("run", kind="stable", ignore_index=True)
    options = {"compression": "zstd", "compression_level": 22, "use_dictionary": True}
    if "step" in frame:
        encodings = dict.fromkeys(("step", "milliseconds"), "DELTA_BINARY_PACKED")
        encodings |= dict.fromkeys(("return", "length"), "BYTE_STREAM_SPLIT")
        options |= {"use_dictionary": ["run"], "column_encoding": encodings, "data_page_size": 2**24}
    content = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pandas(frame, preserve_index=False), content, **options)
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


# -------------------------------------------------------------------------------------------------------------- Numbers


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
    """The mean of (S,) values, one a seed, and its 95% interval: percentiles of the means of 9,999 bootstrap samples.
    The 2.5th and the 97.5th would be too narrow for few seeds, so it takes those further out that Student's t asks for
    (the expanded percentile interval of Hesterberg 2015, "What Teachers Should Know About the Bootstrap", section 5.3).
    Seeded: the same values give the same interval. With fewer than LEAST_SEEDS values it is (−inf, inf)."""
    values = np.asarray(values, dtype=float)
    n = len(values)
    mean = float(values.mean())
    if n < LEAST_SEEDS:
        return mean, -np.inf, np.inf
    low, high = _expanded(_bootstrap_means(values, np.random.default_rng(1)), n - 1, n / (n - 1))
    return mean, low, high


def difference_interval(a, b, paired: bool) -> tuple[float, float, float]:
    """mean(b) − mean(a) with its 95% interval by the method of mean_interval. paired: a[i] and b[i] belong together
    (the same seed, (S,) each); otherwise the two are sampled apart, (S_a,) and (S_b,), with Welch's degrees of
    freedom. With fewer than LEAST_SEEDS values in either it is (−inf, inf)."""
    a = np.asarray(a, dtype=float)
    b = np.asarray(b, dtype=float)
    if paired:
        return mean_interval(b - a)
    difference = float(b.mean() - a.mean())
    if min(len(a), len(b)) < LEAST_SEEDS:
        return difference, -np.inf, np.inf
    rng = np.random.default_rng(1)
    samples = _bootstrap_means(b, rng) - _bootstrap_means(a, rng)
    parts = np.array([a.var(ddof=1) / len(a), b.var(ddof=1) / len(b)])  # squared standard errors
    if parts.sum() == 0:
        return difference, difference, difference
    freedom = parts.sum() ** 2 / (parts[0] ** 2 / (len(a) - 1) + parts[1] ** 2 / (len(b) - 1))
    resampled = a.var() / len(a) + b.var() / len(b)  # the squared standard error that the bootstrap has
    low, high = _expanded(samples, freedom, parts.sum() / resampled)
    return difference, low, high


def _bootstrap_means(values, rng):
    """The means of RESAMPLES samples, drawn with replacement from (S,) values."""
    return values[rng.integers(0, len(values), (RESAMPLES, len(values)))].mean(axis=1)


def _expanded(samples, freedom: float, variance_ratio: float) -> tuple[float, float]:
    """The percentiles of the samples that are as far out, in standard errors of the bootstrap, as Student's t is in
    unbiased ones."""
    from scipy.stats import norm, t

    outside = norm.cdf(-t.ppf(0.975, freedom) * np.sqrt(variance_ratio))
    low, high = np.percentile(samples, [100 * outside, 100 * (1 - outside)])
    return float(low), float(high)


# ----------------------------------------------------------------------------------------------------- Tables and pages


def signed(number: float) -> str:
    """Two digits after the point, with a minus sign as print has it."""
    return f"{number:.2f}".replace("-", "−")


def markdown(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [f"| {' | '.join(header)} |", f"|{'---|' * len(header)}"]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join(lines) + "\n"


def table(rows: list[list[str]], title: str = "") -> None:
    """Prints a table to the terminal; the first row is the header."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    if not console.is_terminal:
        console = Console(width=200)
    shown = Table(title=title or None, title_justify="left")
    for name in rows[0]:
        shown.add_column(name, overflow="fold")
    for row in rows[1:]:
        shown.add_row(*[Text(str(cell)) for cell in row])
    console.print(shown)


def thousands(x: float, position=None) -> str:
    """A number on an axis: 1500000 as 1.5M."""
    if abs(x) >= 1e6:
        return f"{x / 1e6:g}M"
    if abs(x) >= 1e3:
        return f"{x / 1e3:g}k"
    return f"{x:g}"


def pictures():
    """matplotlib.pyplot for pictures that can be read on light and on dark pages: no background, gray text."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    gray = "#808080"
    for name in ("text.", "axes.label", "axes.edge", "axes.title", "xtick.", "ytick.", "grid."):
        plt.rcParams[f"{name}color"] = gray
    plt.rcParams["axes.grid"] = True
    plt.rcParams["axes.axisbelow"] = True
    plt.rcParams["grid.alpha"] = 0.3
    plt.rcParams["axes.spines.top"] = False
    plt.rcParams["axes.spines.right"] = False
    plt.rcParams["legend.framealpha"] = 0
    plt.rcParams["svg.fonttype"] = "none"  # text as text, in the font of the reader
    plt.rcParams["svg.hashsalt"] = "ppo"  # the same data gives the same file
    return plt


def shade(axis, grid, curves, color: str, label: str | None = None) -> None:
    """Draws the mean of (S, G) curves, with a band of one standard deviation over the seeds where all have begun."""
    mean = curves.mean(axis=0)
    if len(curves) > 1:
        deviation = curves.std(axis=0, ddof=1)
        axis.fill_between(grid, mean - deviation, mean + deviation, color=color, alpha=0.25, linewidth=0)
    axis.plot(grid, mean, color=color, linewidth=1.8, label=label)


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
    for the name "results ppo": the second comment has the name's first word. Returns whether the page has the block;
    ends the program with one line if the block has no end."""
    content = page.read_text(encoding="utf-8")
    begin = f"<!-- {name} -->\n"
    end = f"<!-- end of {name.split()[0]} -->"
    before, found, rest = content.partition(begin)
    if not found:
        return False
    _, ended, after = rest.partition(end)
    if not ended:
        fail(f"{page}: {begin.strip()} has no {end}; add it where the block ends")
    filled = before + begin + text + end + after
    if filled != content:
        write_atomically(page, filled)
    return True
