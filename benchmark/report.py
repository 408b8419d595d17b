"""Builds the table and the learning curves of each script from the episodes of its runs.

    python benchmark/report.py                         rebuild everything from benchmark/results/runs
    python benchmark/report.py --keep runs/RUN …       add finished runs to benchmark/results/runs first

For each script it writes benchmark/results/{script}.md, .svg and .png, and puts the table between the two comments
`<!-- results {script} -->` and `<!-- end of results -->` of README.md and docs/, wherever they stand.
"""

import csv
import gzip
import json
import re
import shutil
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import matplotlib
import numpy as np
import tyro

matplotlib.use("Agg")
import matplotlib.pyplot as plt

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmark" / "results"
LAST = 100  # episodes that a run's result is the mean of


@dataclass
class Args:
    keep: list[str] = field(default_factory=list)  # run folders whose episodes and configuration are added first
    results: Path = RESULTS  # folder that holds runs/ and takes the tables and pictures


def fail(message: str):
    print(f"report.py: error: {message}", file=sys.stderr)
    raise SystemExit(2)


def keep_run(run: Path, results: Path) -> None:
    """Stores the episodes (compressed) and the configuration of a finished run under results/runs/{script}/{run}."""
    try:
        config = json.loads((run / "config.json").read_text())
        episodes = (run / "episodes.csv").read_bytes()
        batch = config["arguments"]["num_envs"] * config["arguments"]["num_steps"]
        last = config["arguments"]["total_timesteps"] // batch
    except (OSError, KeyError, ValueError) as error:
        fail(f"{run}: not a run folder ({error}); name one that holds config.json and episodes.csv")
    if not any((run / "checkpoints" / f"{last}{suffix}").is_file() for suffix in (".pt", ".npz")):
        fail(f"{run}: has not ended, checkpoints/{last} is missing; resume it first")
    kept = results / "runs" / config["arguments"]["exp_name"] / run.name
    kept.mkdir(parents=True, exist_ok=True)
    shutil.copy(run / "config.json", kept)
    with (kept / "episodes.csv.gz").open("wb") as file:
        file.write(gzip.compress(episodes, mtime=0))  # no time in it: the same run gives the same file


def read_episodes(run: Path) -> tuple[np.ndarray, np.ndarray]:
    """Global steps and returns of a kept run's episodes, (E,) each, in the order in which they ended."""
    with gzip.open(run / "episodes.csv.gz", "rt") as file:
        episodes = np.loadtxt(file, delimiter=",", skiprows=1, usecols=(0, 1), ndmin=2)
    return episodes[:, 0], episodes[:, 1]


def curve(steps: np.ndarray, returns: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """Mean return of the last 100 episodes that had ended by each step of the grid; NaN before the first."""
    sums = np.concatenate([[0.0], returns.cumsum()])
    ended = np.searchsorted(steps, grid, side="right")
    first = np.maximum(ended - LAST, 0)
    return np.divide(sums[ended] - sums[first], ended - first, out=np.full(len(grid), np.nan), where=ended > 0)


def load(results: Path) -> dict[str, dict[str, list[Path]]]:
    """Kept runs by script and environment, ordered by seed."""
    runs: dict[str, dict[str, list[Path]]] = defaultdict(lambda: defaultdict(list))
    configs = [
        (path.parent, json.loads(path.read_text())["arguments"]) for path in results.glob("runs/*/*/config.json")
    ]
    for run, arguments in sorted(configs, key=lambda item: (item[1]["env_id"], item[1]["seed"])):
        runs[arguments["exp_name"]][arguments["env_id"]].append(run)
    return runs


def table(script: str, environments: dict[str, list[Path]]) -> str:
    """Markdown: per environment the mean ± standard deviation over seeds, beside the published numbers."""
    with (ROOT / "benchmark" / "published.csv").open() as file:
        published = {(row["script"], row["environment"]): row for row in csv.DictReader(file)}
    columns = ["openai/baselines PPO", "CleanRL, first table", "CleanRL, Nov 2023"]
    base = next((s for s in sorted({s for s, _ in published}, key=len, reverse=True) if script.startswith(s)), script)
    order = [environment for s, environment in published if s == base and environment in environments]
    lines = [f"| environment | ours | seeds | {' | '.join(columns)} |", "|---|---|---|" + "---|" * len(columns)]
    for environment in order + sorted(environments.keys() - set(order)):
        runs = environments[environment]
        ours = np.array([read_episodes(run)[1][-LAST:].mean() for run in runs])
        row = published.get((base, environment), {})
        spread = f" ± {ours.std(ddof=1):.2f}" if len(ours) > 1 else ""
        cells = [environment, f"{ours.mean():.2f}{spread}".replace("-", "−"), str(len(runs))]
        lines.append("| " + " | ".join(cells + [row.get(column, "–") for column in columns]) + " |")
    return "\n".join(lines) + "\n"


def speed_table(results: Path) -> str:
    """Markdown: what benchmark/throughput.py measured, medians of its rounds, one row a script."""
    lines = [
        "| script | environment | steps/s | stable-baselines3, default threads | stable-baselines3, 1 thread "
        "| faster by | launch to first update | peak memory |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for path in sorted(results.glob("throughput/*.json"), key=lambda path: (len(path.stem), path.stem)):
        measured = json.loads(path.read_text())
        medians, environment = measured["medians"], measured["rounds"][0]["script"]["arguments"]["env_id"]
        speeds = [medians[key]["steps_per_second"] for key in ("script", "default threads", "1 thread")]
        ratios = [f"{medians['ratios'][key]:.1f}×" for key in ("default threads", "1 thread")]
        launch = f"{medians['launch']['first_row_seconds']:.1f} s | {medians['launch']['peak_mb']:.0f} MB"
        cells = [f"{path.stem}.py", environment, *(f"{speed:,.0f}" for speed in speeds), " and ".join(ratios), launch]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def picture(environments: dict[str, list[Path]], path: Path) -> None:
    """Learning curves, one panel an environment: each seed as a thin line, their mean as a thick one."""
    figure, axes = plt.subplots(1, len(environments), figsize=(4 * len(environments), 3), squeeze=False)
    for axis, (environment, runs) in zip(axes[0], environments.items()):
        end = json.loads((runs[0] / "config.json").read_text())["arguments"]["total_timesteps"]
        grid = np.linspace(0, end, 201)
        curves = np.array([curve(*read_episodes(run), grid) for run in runs])
        axis.plot(grid, curves.T, color="tab:blue", alpha=0.3, linewidth=0.8)
        axis.plot(grid, curves.mean(0), color="tab:blue", linewidth=2)
        axis.set_title(f"{environment}, {len(runs)} seeds", fontsize=10)
        axis.set_xlabel("environment steps")
        axis.xaxis.set_major_formatter(lambda x, _: f"{x / 1000:.0f}k")
        axis.grid(alpha=0.3)
    axes[0][0].set_ylabel(f"return, last {LAST} episodes")
    figure.tight_layout()
    for suffix, metadata in ((".svg", {"Date": None}), (".png", {})):
        figure.savefig(path.with_suffix(suffix), dpi=120, metadata=metadata)
    plt.close(figure)


def place_tables(text: str, tables: dict[str, str]) -> str:
    """The page with every table between its two comments replaced."""

    def replace(match: re.Match) -> str:
        return f"{match[1]}\n{tables.get(match[2], match[3])}{match[4]}"

    return re.sub(r"(<!-- results (\S+) -->)\n(.*?)(<!-- end of results -->)", replace, text, flags=re.DOTALL)


def main(args: Args) -> None:
    for run in args.keep:
        keep_run(Path(run), args.results)
    runs = load(args.results)
    if not runs:
        fail(f"{args.results}: holds no runs; add some with --keep runs/RUN …")
    plt.rcParams["svg.hashsalt"] = "ppo"  # the same data gives the same file
    tables = {}
    for script, environments in runs.items():
        tables[script] = table(script, environments)
        (args.results / f"{script}.md").write_text(tables[script])
        picture(environments, args.results / script)
        print(f"{script}\n{tables[script]}")
    tables["speed"] = speed_table(args.results)
    if args.results == RESULTS:
        for page in [ROOT / "README.md", *ROOT.glob("docs/**/*.md")]:
            page.write_text(place_tables(page.read_text(), tables))


if __name__ == "__main__":
    main(tyro.cli(Args))
