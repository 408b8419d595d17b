"""benchmark/compare.py: the difference of two sets of runs with its interval."""

import subprocess
import sys
from functools import partial
from pathlib import Path

import compare
import numpy as np
import pytest
import report
from helpers import type_in_the_readmes_environment
from shared import version
from test_report import change, make_run

ROOT = Path(__file__).parents[1]


@pytest.fixture
def compare_here(tool_here):
    return partial(tool_here, compare)


def make_runs(folder, exp_name, results, env_id="Toy-v0", **more):
    for seed, result in enumerate(results):
        make_run(folder, seed, np.full(200, float(result)), env_id, exp_name, **more)


def test_welchs_interval():
    a, b = np.array([1.0, 2.0, 3.0]), np.array([2.0, 4.0, 9.0, 5.0])
    delta, low, high = compare.difference(a, b)
    va, vb = a.var(ddof=1) / 3, b.var(ddof=1) / 4
    freedom = (va + vb) ** 2 / (va**2 / 2 + vb**2 / 3)
    draws = np.random.default_rng(1).standard_t(freedom, 1_000_000)  # the t distribution without its formula
    half = np.percentile(draws, 97.5) * np.sqrt(va + vb)
    assert delta == 3.0 and [low, high] == pytest.approx([3.0 - half, 3.0 + half], rel=0.01)


def test_the_interval_holds_the_truth_in_95_of_100_cases():
    rng, covered = np.random.default_rng(2), 0
    for _ in range(1000):
        _, low, high = compare.difference(rng.normal(0, 1, 5), rng.normal(1, 3, 5))
        covered += low < 1 < high
    assert 930 <= covered <= 975


@pytest.mark.filterwarnings("error")
def test_edges():
    same = np.array([5.0, 5.0])
    assert compare.difference(same, same) == (0.0, 0.0, 0.0)
    assert compare.difference(same, same + 1) == (1.0, 1.0, 1.0)
    assert compare.difference(same, np.array([7.0])) == (2.0, -np.inf, np.inf)


def test_a_clear_change_is_told_and_a_doubtful_one_is_not(tmp_path):
    make_runs(tmp_path / "before", "ppo", [10, 11, 12])
    make_runs(tmp_path / "before", "ppo", [10, 11, 12], "Other-v0")
    make_runs(tmp_path / "before", "ppo", [10, 11, 12], "Third-v0")
    make_runs(tmp_path / "after", "mine", [20, 21, 22])
    make_runs(tmp_path / "after", "mine", [10, 19, 8], "Other-v0")
    command = [sys.executable, str(ROOT / "benchmark" / "compare.py"), "before", "after", "--output", "out/change"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("A is ppo (before), B is mine (after)")
    (toy,) = (line for line in lines if "Toy-v0" in line)
    assert "| 11.00 ± 1.00 | 21.00 ± 1.00 | 3 and 3 | 10.00 | [7.73, 12.27] | B is better |" in toy
    assert any("Other-v0" in line and "the runs can't tell" in line for line in lines)
    assert "only in A: Third-v0" in done.stderr and "Third-v0" not in done.stdout
    assert (tmp_path / "out" / "change.md").read_text() + "\n" == done.stdout
    assert (tmp_path / "out" / "change.png").stat().st_size > 10_000
    assert "B: mine, 3 seeds" in (tmp_path / "out" / "change.svg").read_text()


def test_the_table_in_the_docs_is_what_the_committed_runs_give(compare_here):
    results = ROOT / "benchmark" / "results" / "runs"
    stdout, _ = compare_here(str(results / "ppo"), str(results / "ppo_numpy"))
    rows = [line for line in (ROOT / "docs" / "sweeps.md").read_text().splitlines() if "the runs can't tell |" in line]
    assert len(rows) == 2 and all(row in stdout.splitlines() for row in rows)


def test_patterns_and_a_single_seed(compare_here, tmp_path):
    make_runs(tmp_path / "runs", "ppo", [30, 31])
    make_runs(tmp_path / "runs", "mine", [7])
    stdout, _ = compare_here("runs/*__ppo__*", "runs/*__mine__*")
    assert "| Toy-v0 | 30.50 ± 0.71 | 7.00 | 2 and 1 | −23.50 | – | two or more seeds of each are needed |" in stdout


def test_runs_of_different_lengths_are_compared_as_far_as_both_go(compare_here, tmp_path):
    """One side ended, the other was stopped and kept, its seeds at different steps; all were to be 300 steps long."""
    for name, seed, steps, level in (("a", 1, 300, 0), ("b", 1, 150, 7), ("b", 2, 200, 7)):
        run = make_run(tmp_path / name, seed, np.arange(float(steps)) + level, precision=name)
        change(run, {"total_timesteps": 300})
        if steps < 300:
            report.keep_run(run, tmp_path / "kept", stopped=True)
    _, stderr = compare_here("a", "kept/runs/*", status=2)
    assert "holds runs of several kinds (ppo stopped_at=150; ppo stopped_at=200)" in stderr
    stdout, stderr = compare_here("a", "kept/runs/*", "--steps", "150")
    assert stdout.splitlines()[0].endswith("; of each the first 150 steps")
    assert not stderr and "| Toy-v0 | 99.50 | 106.50 ± 0.00 | 1 and 2 | 7.00 |" in stdout  # the mean of 50 to 149
    assert stdout.startswith("A is ppo precision=a (a), B is ppo precision=b (kept/runs/*); ")
    _, stderr = compare_here("a", "kept/runs/*", "--steps", "200", status=2)
    assert "has 150 steps" in stderr
    make_run(tmp_path / "shorter", 1, np.arange(150.0))
    _, stderr = compare_here("a", "shorter", "--steps", "150")
    assert stderr == "Toy-v0: A was to run for other steps than B, and what is annealed fell otherwise\n"


@pytest.fixture
def sweep_of_two_rates(tmp_path):
    """Runs of two learning rates in one folder, as a sweep leaves them, and of a newer version of the script."""
    for rate, result in ((1e-3, 10), (3e-4, 20)):
        for seed in (1, 2):
            run = make_run(tmp_path / "runs" / f"{rate} {seed}", seed, np.full(200, result + float(seed)))
            change(run, {"learning_rate": rate, "anneal_lr": rate == 1e-3})
    for seed in (1, 2):
        run = make_run(tmp_path / "runs" / f"new {seed}", seed, np.full(200, 50.0 + seed))
        change(run, {"learning_rate": 1e-3, "anneal_lr": True})
        (run / "ppo.py").write_text("another\n")


def test_sides_are_chosen_by_argument_and_by_version(compare_here, sweep_of_two_rates):
    old, new = (version(text) for text in ("print('</script>')\n", "another\n"))
    stdout, _ = compare_here(
        "runs", "runs", "--only-a", "learning-rate=1e-3", f"version={old}", "--only-b", "anneal_lr=false"
    )
    assert stdout.startswith(f"A is ppo learning_rate=0.001 version={old} (runs), B is ppo anneal_lr=False ")
    assert "| Toy-v0 | 11.50 ± 0.71 | 21.50 ± 0.71 | 2 and 2 | 10.00 |" in stdout
    stdout, _ = compare_here("runs", "runs", "--only-a", "learning_rate=3e-4", "--only-b", f"version={new}")
    assert "| Toy-v0 | 21.50 ± 0.71 | 51.50 ± 0.71 | 2 and 2 | 30.00 |" in stdout


def test_a_script_that_was_edited_in_place_is_told_from_what_it_was(compare_here, tmp_path):
    """The message names both versions as --only-a and --only-b take them, that of the file as it is now, too."""
    now = (ROOT / "cleanrl" / "ppo.py").read_text()
    for seed, (result, text) in enumerate([(10, now), (11, now), (20, "edited\n"), (21, "edited\n")]):
        run = make_run(tmp_path / "runs" / str(seed), seed, np.full(200, float(result)))
        (run / "ppo.py").write_text(text)
    _, stderr = compare_here("runs", "runs", status=2)
    kinds = [f"version={version(text)}" for text in (now, "edited\n")]
    assert f"holds runs of several kinds (ppo {kinds[0]}; ppo {kinds[1]}); choose one by --only-a" in stderr
    stdout, _ = compare_here("runs", "runs", "--only-a", kinds[0], "--only-b", kinds[1])
    assert "| Toy-v0 | 10.50 ± 0.71 | 20.50 ± 0.71 | 2 and 2 | 10.00 |" in stdout


@pytest.mark.parametrize(
    ("only", "part"),
    [
        (
            "learning-rate=0.1",
            "--only-a learning-rate=0.1: no run has it; they have learning_rate=0.0003, learning_rate=0.001",
        ),
        ("learning-rat=0.1", "--only-a learning-rat=0.1: no run has it; they have no argument learning_rat"),
        ("learning-rate=0.001", "choose one by --only-a ARGUMENT=VALUE"),
    ],
)
def test_a_choice_that_is_none_is_one_line(compare_here, sweep_of_two_rates, only, part):
    _, stderr = compare_here("runs", "runs", "--only-a", only, "--only-b", "learning-rate=3e-4", status=2)
    *said, error = stderr.splitlines()
    assert part in error and said == ["ppo: the runs are of several versions of the script, which are kept apart"]


def test_what_to_install_is_one_line(tmp_path):
    done = type_in_the_readmes_environment(tmp_path, "compare.py", "a", "b")
    assert done.returncode == 2 and not done.stdout and done.stderr.count("\n") == 1, done
    assert done.stderr.startswith("compare.py: error: ") and "pip install -e '.[benchmark]'" in done.stderr


@pytest.mark.parametrize(
    ("a", "b", "part"),
    [
        ("nowhere", "one", "A nowhere: there is no such folder"),
        ("one", "[none]", "B [none]: there is no such folder"),
        ("both", "one", "holds runs of several kinds (mine; ppo)"),
        ("one", "elsewhere", "there is no environment in common"),
        ("one", "short", "compare equal lengths"),
        ("one", "unfinished", "holds no run that has ended; resume one, or keep"),
        ("one", "one --steps 201", "--steps 201: one/Toy-v0__ppo__0__1 has 200 steps"),
        ("one", "one --steps 0", "has no episode that had ended by then"),
    ],
)
def test_wrong_use_is_one_line(compare_here, tmp_path, a, b, part):
    make_runs(tmp_path / "one", "ppo", [1, 2])
    make_runs(tmp_path / "both", "ppo", [1, 2])
    make_runs(tmp_path / "both", "mine", [1, 2])
    make_runs(tmp_path / "elsewhere", "ppo", [1, 2], "Other-v0")
    make_run(tmp_path / "short", 1, np.zeros(100))
    make_run(tmp_path / "unfinished", 1, np.zeros(100), complete=False)
    _, stderr = compare_here(a, *b.split(), status=2)
    *said, error = stderr.splitlines()
    assert part in error and all(line.endswith("not ended, left out") for line in said)
    assert not list(tmp_path.glob("comparison*"))


def test_a_mistake_is_told_by_the_program_that_was_typed(tmp_path):
    (tmp_path / "empty").mkdir()
    command = [sys.executable, str(ROOT / "benchmark" / "compare.py"), "empty", "empty"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and done.stderr.startswith("compare.py: error: empty: ")


def made_again(name: str, before: str, after: str, tmp_path: Path, *more: str) -> list[list[str]]:
    """The rows of a comparison in the repository, which follows from its runs."""
    runs = [f"benchmark/results/{folder}" for folder in (before, after)]
    command = [sys.executable, "benchmark/compare.py", *runs, *more, "--output", str(tmp_path / name)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=120)
    committed = ROOT / "benchmark" / "results" / name
    table = committed.with_name(f"{name}.md").read_text()
    assert (tmp_path / f"{name}.md").read_text() == table
    assert all(committed.with_name(name + suffix).is_file() for suffix in (".png", ".svg"))
    return [line.strip("| ").split(" | ") for line in table.splitlines()[4:]]


@pytest.mark.parametrize("parent", ["ppo", "ppo_continuous_action"])
def test_gradients_by_hand_learn_as_autograd_does(parent, tmp_path):
    """The comparison finds no difference on any environment."""
    rows = made_again(f"{parent}_numpy_against_{parent}", f"runs/{parent}", f"runs/{parent}_numpy", tmp_path)
    assert len(rows) >= 3 and {row[-1] for row in rows} - {"all runs are alike"} == {"the runs can't tell"}
    assert all(int(seeds) >= 3 for row in rows for seeds in row[3].split(" and "))


def test_the_page_says_what_the_bootstrap_at_time_limits_is_worth(tmp_path):
    name = "ppo_continuous_action_numpy"
    (row,) = made_again("bootstrap_truncated", f"runs/{name}", f"runs/{name}_bootstrap_truncated", tmp_path)
    *_, seeds, _, _, verdict = row
    page = " ".join((ROOT / "docs" / "how-an-episode-ends.md").read_text().split())
    assert " | ".join(row) in page and seeds == "10 and 10"
    assert verdict == "the runs can't tell" and "can't tell the two apart" in page
    kept = report.load(report.RESULTS)
    without, with_it = (
        sorted(run.result for run in kept[label]["HalfCheetah-v4"]) for label in (name, f"{name}_bootstrap_truncated")
    )
    assert with_it[0] > without[7] and "each of the ten with it ends above eight of the ten without" in page
    stay = "Those that stay in the local optimum end at {:,.0f} to {:,.0f} with it, and at {:,.0f} to {:,.0f} without."
    assert stay.format(with_it[0], with_it[6], without[0], without[7]) in page


def test_the_page_has_bfloat16_beside_float32(tmp_path):
    runs = "fp32", "runs/ppo_atari_envpool"
    (row,) = made_again("bf16_against_fp32", *runs, tmp_path, "--steps", "2000000")
    page = " ".join((ROOT / "docs" / "ppo_atari_envpool.md").read_text().split())
    environment, fp32, bf16, seeds, difference, *_ = row
    assert f"| {environment} | {fp32} | {bf16} | {difference} |" in page and seeds == "1 and 1"
    assert "one seed each can't tell" in page and "bf16_against_fp32.svg" in page
