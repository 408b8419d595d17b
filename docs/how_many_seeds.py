"""How often an unchanged script seems to improve, and how large an effect some seeds can find: docs/how-many-seeds.md.

    python docs/how_many_seeds.py                  fills the page's tables from docs/how_many_seeds.csv
    python docs/how_many_seeds.py --collect runs   makes that file anew from run folders

The file has a row a run: environment, seed and the mean return of the last 100 episodes.
"""

import argparse
import csv
import sys
from pathlib import Path

import numpy as np
from scipy.stats import nct, t

DOCS = Path(__file__).resolve().parent
sys.path += [str(DOCS / "build"), str(DOCS.parent / "benchmark")]
import ablate  # noqa: E402
import blocks  # noqa: E402
from intervals import difference_interval, verdict  # noqa: E402
from pages import markdown  # noqa: E402
from runs import find_runs  # noqa: E402

TABLE = DOCS / "how_many_seeds.csv"
SEEDS = (1, 3, 5, 10, 20)  # in each of the sets that are compared
TRIALS = 1000
RULES = ("higher mean", "no overlap of ±", "best of three", "best of three, then compare", "compare")


def collect(folder: Path) -> None:
    """Writes the table from the runs below a folder that have the defaults and 100,000 steps."""
    rows = []
    for run in find_runs([folder]):
        if run.exp_name == "ppo_numpy" and not run.settings and run.planned == 100_000:
            rows.append((run.env_id, run.seed, f"{run.result:.2f}"))
    with open(TABLE, "w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([("env_id", "seed", "return"), *sorted(rows)])


def read_returns() -> dict[str, np.ndarray]:
    """The returns of all seeds by environment."""
    returns = {}
    with open(TABLE, newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            returns.setdefault(row["env_id"], []).append(float(row["return"]))
    return {env_id: np.array(values) for env_id, values in returns.items()}


def is_better(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether report.py compare says so of B, whose seeds aren't A's."""
    _, low, high = difference_interval(a, b, paired=False)
    return verdict(low, high) == "better"


def improvements(returns: np.ndarray, seeds: int, rng: np.random.Generator) -> np.ndarray:
    """Whether each of RULES calls one run of this experiment an improvement, though nothing was changed: four sets of
    different seeds, of which one is "before" and the others are three "changes". (len(RULES),)"""
    before, *changes = rng.permutation(returns)[: 4 * seeds].reshape(4, seeds)
    first = changes[0]
    best = max(changes, key=np.mean)
    is_apart = False
    if seeds > 1:
        is_apart = first.mean() - first.std(ddof=1) > before.mean() + before.std(ddof=1)
    return np.array(
        [first.mean() > before.mean(), is_apart, best.mean() > before.mean(), is_better(before, best),
         is_better(before, first)]
    )  # fmt: skip


def false_alarms(returns: np.ndarray) -> np.ndarray:
    """How often each rule sees an improvement, by number of seeds: (len(SEEDS), len(RULES)) of shares."""
    rng = np.random.default_rng(1)
    return np.array([np.mean([improvements(returns, n, rng) for _ in range(TRIALS)], axis=0) for n in SEEDS])


def alarm_table(shares: np.ndarray) -> str:
    """Markdown: a row a number of seeds."""
    rows = []
    for seeds, row in zip(SEEDS, shares):
        cells = [f"{100 * share:.1f}%" if share < 0.1 else f"{100 * share:.0f}%" for share in row]
        if seeds == 1:
            cells[RULES.index("no overlap of ±")] = "–"
        rows.append([str(seeds), *cells])
    return markdown(["seeds", *RULES], rows)


def smallest_effect(seeds: int) -> float:
    """The difference of means, in standard deviations of a seed, that an interval of Student's t leaves 0 out for in 4
    of 5 comparisons of two sets of so many seeds."""
    freedom = 2 * seeds - 2
    limit = t.ppf(0.975, freedom)
    effects = np.linspace(0.01, 10.0, 1000)
    found = 1.0 - nct.cdf(limit, freedom, effects * np.sqrt(seeds / 2.0))
    return float(effects[np.argmax(found >= 0.8)])


def seeds_for(effect: float) -> int | None:
    """How many seeds on each side find an effect of so many standard deviations in 4 of 5 comparisons; None: more than
    1,000."""
    for seeds in range(2, 1001):
        if smallest_effect(seeds) <= effect:
            return seeds
    return None


def details_table() -> str:
    """Markdown: a row for each effect of a detail that the kept ablations found, and how many seeds it takes."""
    rows = []
    for suite in ("core", "continuous"):
        for environment, cells in ablate.load()[suite].items():
            for name, ablation in ablate.all_ablations().items():
                if name not in cells or ablate.seen_in(cells[name].last) not in ("worse", "better"):
                    continue
                before = np.array([run.result for run in cells[name].untouched or cells[""].runs])
                after = np.array([run.result for run in cells[name].runs])
                spread = np.sqrt((before.var(ddof=1) + after.var(ddof=1)) / 2)
                change = cells[name].last.mean()
                needed = seeds_for(abs(change) / spread)
                rows.append((needed, [f"{ablation.link} {ablation.title}", environment, ablate.number(change),
                                      f"{spread:,.0f}", str(max(needed, 5))]))  # fmt: skip
    return markdown(["without the detail", "environment", "difference", "± of a seed", "seeds"],
                    [row for _, row in sorted(rows, key=lambda row: row[0])])  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--collect", type=Path, help="folder with the runs")
    args = parser.parse_args()
    if args.collect:
        collect(args.collect)
    for env_id, returns in read_returns().items():
        print(f"{env_id}: {returns.mean():.1f} ± {returns.std(ddof=1):.1f}, {len(returns)} seeds")
        print(alarm_table(false_alarms(returns)))
    print(details_table())


if __name__ == "__main__":
    main()
