"""How often an unchanged script seems to improve, and how large an effect some seeds can find: docs/how-many-seeds.md.

    python docs/how_many_seeds.py                  fills the page's tables, from docs/how_many_seeds.csv
                                                   and the kept ablations
    python docs/how_many_seeds.py --collect runs   makes that file anew from run folders

That file has a row a run: environment, seed and the mean return of the last 100 episodes. How often each rule is wrong
is also in docs/how_many_seeds_shares.csv, for docs/build/drawings.py.
"""

import argparse
import csv
import sys
from pathlib import Path

import numpy as np
from scipy.stats import nct, t

DOCS = Path(__file__).resolve().parent
sys.path += [str(DOCS / "build"), str(DOCS.parent / "benchmark")]
import ablation_tables  # noqa: E402
import blocks  # noqa: E402
from intervals import difference_interval, verdict  # noqa: E402
from pages import markdown  # noqa: E402
from runs import find_runs  # noqa: E402

PAGE = DOCS / "how-many-seeds.md"
TABLE = DOCS / "how_many_seeds.csv"
SHARES = DOCS / "how_many_seeds_shares.csv"
ENV_IDS = ("CartPole-v1", "Acrobot-v1")
SEEDS = (1, 3, 5, 10, 20)  # in each of the sets that are compared
TRIALS = 1000
LEAST = {"higher mean": 1, "no overlap of ±": 3, "best of three": 1, "best of three, compared": 5, "compared": 5}
RULES = tuple(LEAST)  # with the least seeds that they need


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
    returns = {env_id: [] for env_id in ENV_IDS}
    with open(TABLE, newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            returns[row["env_id"]].append(float(row["return"]))
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


def false_alarms(returns: np.ndarray) -> dict[int, np.ndarray]:
    """How often each rule sees an improvement, (len(RULES),) shares by number of seeds: all of SEEDS that leave enough
    for four sets."""
    rng = np.random.default_rng(1)
    shares = {}
    for seeds in SEEDS:
        if 4 * seeds <= len(returns):
            shares[seeds] = np.mean([improvements(returns, seeds, rng) for _ in range(TRIALS)], axis=0)
    return shares


def alarm_table(shares: dict[int, np.ndarray]) -> str:
    """Markdown: a row a number of seeds."""
    rows = []
    for seeds, row in shares.items():
        cells = [f"{share:.1%}" if share < 0.1 else f"{share:.0%}" for share in row]
        rows.append([str(seeds), *[cell if seeds >= LEAST[rule] else "–" for rule, cell in zip(RULES, cells)]])
    return markdown(["seeds", *RULES], rows)


def write_shares(shares: dict[str, dict[int, np.ndarray]]) -> None:
    rows = [("env_id", "seeds", *RULES)]
    for env_id, of_seeds in shares.items():
        rows += [(env_id, seeds, *row) for seeds, row in of_seeds.items()]
    with open(SHARES, "w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)


def smallest_effect(seeds: int) -> float:
    """The difference of means, in standard deviations of a seed, that an interval of Student's t leaves 0 out for in 4
    of 5 comparisons of two sets of so many seeds."""
    freedom = 2 * seeds - 2
    limit = t.ppf(0.975, freedom)
    effects = np.linspace(0.01, 10.0, 1000)
    found = 1.0 - nct.cdf(limit, freedom, effects * np.sqrt(seeds / 2.0))
    return float(effects[np.argmax(found >= 0.8)])


def effects_table(returns: dict[str, np.ndarray]) -> str:
    """Markdown: the smallest difference of means that some seeds find, by environment."""
    rows = []
    for seeds in (3, 5, 10, 20, 50):
        effect = smallest_effect(seeds)
        rows.append([str(seeds), f"{effect:.1f}", *[f"{effect * x.std(ddof=1):.0f}" for x in returns.values()]])
    return markdown(["seeds on each side", "in ± of a seed", *returns], rows)


def found_table() -> str:
    """Markdown: how often a real improvement by one standard deviation is found, by ten thousand draws of normally
    distributed returns."""
    rng = np.random.default_rng(1)
    rows = []
    for seeds in (3, 5, 10, 20):
        before = rng.normal(0.0, 1.0, (10_000, seeds))
        after = rng.normal(1.0, 1.0, (10_000, seeds))
        change = after.mean(1) - before.mean(1)
        spreads = after.std(1, ddof=1), before.std(1, ddof=1)
        is_apart = change > sum(spreads)
        error = np.sqrt((spreads[0] ** 2 + spreads[1] ** 2) / seeds)
        is_found = change > t.ppf(0.975, 2 * seeds - 2) * error
        compared = f"{is_found.mean():.0%}" if seeds >= LEAST["compared"] else "–"
        rows.append([str(seeds), f"{(change > 0).mean():.0%}", f"{is_apart.mean():.1%}", compared])
    return markdown(["seeds", "higher mean", "no overlap of ±", "compared"], rows)


def seeds_for(effect: float) -> int:
    """How many seeds on each side find an effect of so many standard deviations in 4 of 5 comparisons: at least the 5
    that report.py asks for."""
    seeds = 5
    while smallest_effect(seeds) > effect:
        seeds += 1
    return seeds


def details_table() -> str:
    """Markdown: the effects that the kept ablations found, by how many seeds it takes to find them."""
    groups = {"5": [], "6 to 10": [], "11 to 20": [], "more": []}
    for suite in ("core", "continuous"):
        for environment, cells in ablation_tables.load()[suite].items():
            for name, ablation in ablation_tables.all_ablations().items():
                if name not in cells or ablation_tables.seen_in(cells[name].last) not in ("worse", "better"):
                    continue
                before = np.array([run.result for run in cells[name].untouched or cells[""].runs])
                after = np.array([run.result for run in cells[name].runs])
                spread = np.sqrt((before.var(ddof=1) + after.var(ddof=1)) / 2)
                change = cells[name].last.mean()
                needed = seeds_for(abs(change) / spread)
                group = next((key for key, most in zip(groups, (5, 10, 20)) if needed <= most), "more")
                says = f"{ablation.link} {environment.partition('-')[0]} {ablation_tables.number(change)}"
                groups[group].append(f"{says} ({needed})" if group == "more" else says)
    counts = markdown(["seeds on each side", "effects"], [[seeds, str(len(found))] for seeds, found in groups.items()])
    rows = [[seeds, one] for seeds, found in groups.items() for one in found]
    each = markdown(["seeds on each side", "effect (seeds, where more than 20)"], rows)
    return f"{counts}\n<details markdown><summary>Which</summary>\n\n{each}\n</details>\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--collect", type=Path, help="folder with the runs")
    args = parser.parse_args()
    if args.collect:
        collect(args.collect)
    returns = read_returns()
    shares = {env_id: false_alarms(values) for env_id, values in returns.items()}
    write_shares(shares)
    for env_id, values in returns.items():
        text = f"{len(values)} seeds: {values.mean():.0f} ± {values.std(ddof=1):.0f}"
        text = f"{text}, from {values.min():.0f} to {values.max():.0f}.".replace("-", "−")
        blocks.fill(PAGE, f"seeds {env_id}", f"\n{text}\n\n{alarm_table(shares[env_id])}\n")
    blocks.fill(PAGE, "seeds found", f"\n{found_table()}\n")
    blocks.fill(PAGE, "seeds effects", f"\n{effects_table(returns)}\n")
    blocks.fill(PAGE, "seeds details", f"\n{details_table()}\n")
    print(f"docs/{PAGE.name} is that of {sum(map(len, returns.values()))} runs")


if __name__ == "__main__":
    main()
