"""benchmark/report.py, and that what it makes of benchmark/results is what is committed."""

import csv
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import report

ROOT = Path(__file__).parents[1]
RUNS = report.load(report.RESULTS)


def make_run(folder, seed, returns, env_id="Toy-v0"):
    """A finished run of one update a ten steps, one episode a step."""
    run = folder / f"{env_id}__ppo__{seed}__1"
    (run / "checkpoints").mkdir(parents=True)
    (run / "checkpoints" / f"{len(returns) // 10}.pt").touch()
    arguments = {"exp_name": "ppo", "env_id": env_id, "seed": seed, "num_envs": 1, "num_steps": 10}
    (run / "config.json").write_text(json.dumps({"arguments": arguments | {"total_timesteps": len(returns)}}))
    with (run / "episodes.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["global_step", "episodic_return", "episodic_length", "seconds"])
        writer.writerows((step + 1, value, 1, 0.1) for step, value in enumerate(returns))
    return run


def test_table_is_mean_and_spread_of_the_last_hundred_episodes(tmp_path):
    for seed in (1, 2):
        report.keep_run(make_run(tmp_path, seed, [0.0] * 50 + [10.0 * seed] * 100), tmp_path / "kept")
    (environments,) = report.load(tmp_path / "kept").values()
    row = report.table("ppo", environments).splitlines()[2]
    assert row.startswith("| Toy-v0 | 15.00 ± 7.07 | 2 |")


def test_curve_is_the_mean_of_the_last_hundred_episodes_so_far():
    steps, returns = np.arange(1, 301), np.random.default_rng(1).normal(size=300)
    curve = report.curve(steps, returns, np.array([0, 1, 50, 250]))
    assert np.isnan(curve[0])
    expected = [returns[:1].mean(), returns[:50].mean(), returns[150:250].mean()]
    np.testing.assert_allclose(curve[1:], expected)


def test_command_keeps_runs_and_writes_table_and_pictures(tmp_path):
    runs = [make_run(tmp_path, seed, np.arange(200.0)) for seed in (1, 2)]
    command = [sys.executable, str(ROOT / "benchmark" / "report.py"), "--results", "kept", "--keep", *map(str, runs)]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    assert "149.50 ± 0.00" in (tmp_path / "kept" / "ppo.md").read_text()
    assert (tmp_path / "kept" / "ppo.png").stat().st_size > 10_000
    assert (tmp_path / "kept" / "ppo.svg").read_text().count("Toy-v0") >= 1
    steps, returns = report.read_episodes(tmp_path / "kept" / "runs" / "ppo" / runs[0].name)
    assert steps.tolist() == list(range(1, 201)) and returns.tolist() == np.arange(200.0).tolist()


@pytest.mark.parametrize("broken", ["config.json", "checkpoints/20.pt"])
def test_run_that_has_not_ended_is_refused_in_one_line(broken, tmp_path, capsys):
    run = make_run(tmp_path, 1, np.arange(200.0))
    (run / broken).unlink()
    with pytest.raises(SystemExit) as stop:
        report.keep_run(run, tmp_path / "kept")
    error = capsys.readouterr().err
    assert stop.value.code == 2 and broken.removesuffix(".pt") in error and error.count("\n") == 1


@pytest.mark.parametrize("script", sorted(RUNS))
def test_committed_tables_follow_from_the_committed_episodes(script):
    table = report.table(script, RUNS[script])
    assert (report.RESULTS / f"{script}.md").read_text() == table
    readme = (ROOT / "README.md").read_text()
    assert report.place_tables(readme, {script: table}) == readme


def test_committed_speed_table_follows_from_what_was_measured():
    readme = (ROOT / "README.md").read_text()
    assert "ppo_numpy.py | CartPole-v1" in readme
    assert report.place_tables(readme, {"speed": report.speed_table(report.RESULTS)}) == readme


def test_results_hold_the_runs_behind_the_readme():
    assert "ppo" in RUNS and all(len(runs) >= 3 for environments in RUNS.values() for runs in environments.values())


def test_results_stay_small():
    sizes = [path.stat().st_size for path in report.RESULTS.rglob("*") if path.is_file()]
    assert max(sizes) < 1_000_000 and sum(sizes) < 20_000_000
