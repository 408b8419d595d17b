"""benchmark/report.py, and that what it makes of benchmark/results is what is committed."""

import base64
import csv
import io
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import pytest
import report
import shared
from helpers import train, type_here, type_in_the_readmes_environment
from PIL import Image
from scipy.stats import t

ROOT = Path(__file__).parents[1]
RUNS = report.load(report.RESULTS)


def make_run(folder, seed, returns, env_id="Toy-v0", exp_name="ppo", complete=True, **more):
    """A run of one update a ten steps, one episode a step, a tenth of a second each."""
    run = folder / f"{env_id}__{exp_name}__{seed}__1"
    (run / "checkpoints").mkdir(parents=True)
    total = len(returns) if complete else 2 * len(returns)
    (run / "checkpoints" / f"{len(returns) // 10}.pt").touch()
    arguments = {"exp_name": exp_name, "env_id": env_id, "seed": seed, "num_envs": 1, "num_steps": 10}
    arguments |= {"total_timesteps": total} | more
    command = f"python /some/where/ppo.py --env-id {env_id} --seed {seed}"
    config = {"arguments": arguments, "command": command, "versions": {"numpy": "1"}, "git_commit": "abc"}
    (run / "config.json").write_text(json.dumps(config))
    (run / "ppo.py").write_text(f"# the source of {exp_name}\nprint('</script>')\n")
    with (run / "episodes.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["global_step", "episodic_return", "episodic_length", "seconds"])
        writer.writerows((step + 1, value, 1, (step + 1) / 10) for step, value in enumerate(returns))
    with (run / "metrics.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["global_step", "charts/episodic_return", "charts/SPS", "losses/policy_loss"])
        writer.writerows((step, 0, 10, 1 / step) for step in range(10, len(returns) + 1, 10))
    return run


@pytest.fixture
def report_here(tool_here):
    return partial(tool_here, report)


def type_report(folder, *words, status=0):
    command = [sys.executable, str(ROOT / "benchmark" / "report.py"), *map(str, words)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == status, (done.stdout, done.stderr)
    return done.stdout, done.stderr


# -------------------------------------------------------------------------------------------------------------- Numbers


def test_table_is_mean_and_spread_of_the_last_hundred_episodes(tmp_path):
    for seed in (1, 2):
        report.keep_run(make_run(tmp_path, seed, [0.0] * 50 + [10.0 * seed] * 100), tmp_path / "kept")
    (environments,) = report.load(tmp_path / "kept").values()
    row = report.table("ppo", environments).splitlines()[2]
    assert row.startswith("| Toy-v0 | 15.00 ± 7.07 | ± 63.53 | 2 |")
    full = report.full_table("ppo", environments).splitlines()
    assert full[2].startswith("| Toy-v0 | 15.00 ± 7.07 | ± 63.53 | 15.00 [10.00, 20.00] | 2 | 150 | 10 | 0.2 |")
    assert len({line.count("|") for line in full}) == 1


def test_interquartile_mean_leaves_out_the_outer_quarters_and_its_interval_is_the_bootstraps():
    scores = np.array([-1000.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 1000.0])
    assert report.interquartile_mean(scores) == pytest.approx(3.5)
    low, high = report.interval(scores)
    rng = np.random.default_rng(7)  # the same by hand, with other random numbers
    samples = np.sort(rng.choice(scores, (20_000, 8)), axis=1)[:, 2:6].mean(1)
    np.testing.assert_allclose([low, high], np.percentile(samples, [2.5, 97.5]), rtol=0.1)
    many = np.random.default_rng(3).normal(size=20)
    assert report.interval(many) == report.interval(many)  # the same runs give the same table
    assert report.interval(np.array([7.0, 7.0, 7.0])) == (7.0, 7.0)
    assert report.interval(np.array([7.0])) is None


def test_evaluations_stand_at_the_steps_that_all_seeds_share(tmp_path):
    for seed, steps in ((1, 400), (2, 400), (3, 300)):
        run = make_run(tmp_path, seed, np.full(400, 5.0), exp_name="ppo_procgen")
        write_levels(run, [6.0, 8.0 + 2 * seed], [3.0 * seed], steps)
    runs = report.find_runs([tmp_path])
    header = "| environment | steps | training levels | test levels |\n|---|---|---|---|\n"
    first = "| Toy-v0 | 10 | −9.00 | −9.00 |\n"
    both = report.table_by_step({"Toy-v0": [run for run in runs if run.seed < 3]})
    assert both == header + first + "| Toy-v0 | 400 | 8.50 | 4.50 |\n"
    assert report.table_by_step({"Toy-v0": runs}) == header + first


def test_published_numbers_stand_beside_runs_of_as_many_steps():
    published = report.published_results()["ppo", "CartPole-v1"]
    environments = RUNS["ppo"]
    (row,) = (row for row in report.summarise("ppo", environments) if row["environment"] == "CartPole-v1")
    assert [row["published"][name] for name in report.PUBLISHED] == [published[name] for name in report.PUBLISHED]
    short = report.Run(environments["CartPole-v1"][0].folder)
    short.total = 20_000
    (row,) = report.summarise("ppo", {"CartPole-v1": [short]})
    assert set(row["published"].values()) == {"–"}


def test_curve_is_the_mean_of_the_last_hundred_episodes_so_far():
    steps, returns = np.arange(1, 301), np.random.default_rng(1).normal(size=300)
    curve = report.curve(steps, returns, np.array([0, 1, 50, 250]))
    assert np.isnan(curve[0])
    expected = [returns[:1].mean(), returns[:50].mean(), returns[150:250].mean()]
    np.testing.assert_allclose(curve[1:], expected)


def test_command_keeps_runs_and_writes_table_and_pictures(tmp_path):
    runs = [make_run(tmp_path, seed, np.arange(200.0)) for seed in (1, 2)]
    type_report(tmp_path, "--results", "kept", "--keep", *runs)
    assert "149.50 ± 0.00" in (tmp_path / "kept" / "ppo.md").read_text()
    assert (tmp_path / "kept" / "ppo.png").stat().st_size > 10_000
    assert (tmp_path / "kept" / "ppo.svg").read_text().count("Toy-v0") >= 1
    (environments,) = report.load(tmp_path / "kept").values()
    run = environments["Toy-v0"][0]
    assert run.steps.tolist() == list(range(1, 201)) and run.returns.tolist() == np.arange(200.0).tolist()
    kept = tmp_path / "kept" / "runs" / "ppo" / runs[0].name
    assert sorted(path.name for path in kept.iterdir()) == ["config.json", "episodes.csv.gz"]


def test_the_clock_of_several_processes_need_not_be_one(report_here, tmp_path):
    """Episodes of another process whose clock is behind stand after later ones; over time they come together."""
    run = make_run(tmp_path / "runs", 1, [0.0] * 200 + [1.0] * 200)
    lines = (run / "episodes.csv").read_text().splitlines()
    late = [line.rpartition(",")[0] + f",{float(line.rpartition(',')[2]) - 15:.1f}" for line in lines[152::2]]
    lines[152::2] = late
    (run / "episodes.csv").write_text("\n".join(lines) + "\n")
    (read,) = report.find_runs([run])
    curve = report.curve(read.seconds, read.returns, np.array([19.0, 19.9, 30.0, 40.0]))
    assert curve == pytest.approx([0.0, 0.0, 1.0, 1.0])
    assert read.wall_seconds == pytest.approx(39.9) and (np.diff(read.seconds) >= 0).all()


def test_a_kept_run_stays_in_the_folder_of_the_results(report_here, tmp_path):
    for seed, exp_name in enumerate(("../../../outside", "/tmp/outside", "..", "a/b")):
        run = make_run(tmp_path / "runs" / str(seed), seed, np.arange(200.0), exp_name="x")
        config = json.loads((run / "config.json").read_text())
        config["arguments"]["exp_name"] = exp_name
        (run / "config.json").write_text(json.dumps(config))
    runs = [path.parent for path in (tmp_path / "runs").rglob("config.json")]
    before = set(tmp_path.rglob("*"))
    report_here("--keep", *runs, "--results", tmp_path / "some" / "kept")
    assert len(list((tmp_path / "some" / "kept" / "runs").glob("*/*/config.json"))) == 4
    made = set(tmp_path.rglob("*")) - before
    assert all((tmp_path / "some") in (path, *path.parents) for path in made)


def test_kept_configurations_name_no_folder_of_a_machine(report_here, tmp_path):
    run = make_run(tmp_path, 1, np.full(200, 5.0))
    report_here("--keep", run, "--results", tmp_path / "results")
    (config,) = (tmp_path / "results").rglob("config.json")
    assert json.loads(config.read_text())["command"] == "python cleanrl/ppo.py --env-id Toy-v0 --seed 1"
    kept = [*ROOT.glob("benchmark/results/**/config.json"), *ROOT.glob("benchmark/agents/*/config.json")]
    commands = [json.loads(path.read_text())["command"] for path in kept]
    assert len(commands) > 100 and not [command for command in commands if " /" in command]


def test_the_last_weights_are_kept_for_those_who_evaluate(report_here, tmp_path, capsys):
    run = train(checkpoints=2)
    report_here("--keep", run, "--weights", "--results", tmp_path / "results")
    (checkpoint,) = (tmp_path / "results").rglob("*.pt")
    last = max(run.glob("checkpoints/*.pt"), key=lambda path: int(path.stem))
    assert checkpoint.name == last.name and checkpoint.stat().st_size < 0.55 * last.stat().st_size
    said = []
    for folder in (run, checkpoint.parents[1]):
        type_here("--evaluate", folder, "--episodes", "3")
        said.append([line for line in capsys.readouterr().out.splitlines() if line.startswith("episode")])
    assert said[0] == said[1] and len(said[0]) == 3
    last.write_bytes(last.read_bytes()[:1000])
    _, stderr = report_here("--keep", run, "--weights", "--results", tmp_path / "others", status=2)
    assert f"{last.name}: is not a whole checkpoint" in stderr and not (tmp_path / "others").exists()


def test_pages_get_the_tables_and_are_told_of_labels_that_are_gone(report_here, tmp_path, monkeypatch):
    (tmp_path / "benchmark").mkdir()
    shutil.copy(ROOT / "benchmark" / "published.csv", tmp_path / "benchmark")
    monkeypatch.setattr(report, "ROOT", tmp_path)
    monkeypatch.setattr(report, "RESULTS", tmp_path / "kept")
    (tmp_path / "README.md").write_text(
        "<!-- results mine -->\nold\n<!-- end of results -->\n<!-- results gone -->\nkept\n<!-- end of results -->\n"
    )
    run = make_run(tmp_path / "runs", 1, np.full(200, 5.0), exp_name="mine")
    _, stderr = report_here("--keep", run, "--results", "kept")  # as a user types it, not the absolute path
    text = (tmp_path / "README.md").read_text()
    assert "| Toy-v0 | 5.00 |" in text and "old" not in text and "kept" in text
    assert stderr == "README.md: no kept runs are labelled gone; its table stays as it was\n"


def test_a_stopped_run_is_kept_with_the_steps_that_it_reached(report_here, tmp_path):
    run = make_run(tmp_path, 1, np.full(400, 7.0), complete=False)
    report_here("--keep", run, "--stopped", "--results", tmp_path / "results")
    table = (tmp_path / "results" / "ppo.md").read_text()
    assert "| Toy-v0 | 7.00 |" in table and "| 400 |" in table and "800" not in table
    (config,) = (tmp_path / "results").rglob("config.json")
    assert json.loads(config.read_text())["stopped_at"] == 400


def test_a_wrong_folder_beside_good_ones_keeps_nothing(report_here, tmp_path):
    run = make_run(tmp_path / "runs", 1, np.full(200, 7.0))
    _, stderr = report_here("--keep", run, "nothere", "--results", "kept", status=2)
    assert "nothere" in stderr and not (tmp_path / "kept").exists()


@pytest.mark.parametrize("words", [("runs", "--keep", "--stopped"), ("--weights",)])
def test_flags_of_keep_without_a_run_are_refused(words, tmp_path):
    make_run(tmp_path / "runs", 1, np.full(200, 1.0))
    stdout, stderr = type_report(tmp_path, *words, "--results", tmp_path / "results", status=2)
    assert not stdout and stderr.startswith("report.py: error: --stopped, --weights: ") and stderr.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


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
    assert (report.RESULTS / f"{script}.md").read_text() == report.full_table(script, RUNS[script], times=False)
    for page in [ROOT / "README.md", *ROOT.glob("docs/**/*.md")]:
        assert report.place_tables(page.read_text(), {script: table}) == page.read_text()
    assert {(report.RESULTS / f"{script}{suffix}").is_file() for suffix in (".png", ".svg")} == {True}


def test_no_speed_is_published_from_runs_that_shared_a_machine():
    for page in report.RESULTS.glob("*.md"):
        assert not re.search("steps/s|minutes", page.read_text()), page
    assert not [*report.RESULTS.glob("*_time.*")]


def test_committed_speed_table_follows_from_what_was_measured():
    page, table = (ROOT / "docs" / "speed.md").read_text(), report.speed_table(report.RESULTS)
    assert report.place_tables(page, {"speed": table}) == page and table in page and "ppo_numpy.py | CartPole" in table
    table = report.launch_table(report.RESULTS)
    assert table in page and table.count("\n") == 2 + len(list(report.RESULTS.glob("throughput/*.json")))


def test_time_table_is_the_median_and_the_seconds_of_each_seed(tmp_path):
    runs = [{"seconds": seconds, "env_id": "Toy-v0"} for seconds in (3.26, 9.0, 1.0)]
    options = {"arguments": "--fast", "target": 60.5}
    (tmp_path / "time_to_return").mkdir()
    measured = {"options": options, "runs": runs, "median_seconds": 3.26}
    (tmp_path / "time_to_return" / "mine.json").write_text(json.dumps(measured))
    row = report.time_table(tmp_path).splitlines()[2]
    assert row == "| mine.py --fast | Toy-v0 | 60.5 | 3.3 s | 3.3, 9.0, 1.0 |"


def test_the_page_on_humanoid_says_what_was_kept():
    runs = report.load(report.RESULTS)["ppo_continuous_action_numpy"]["Humanoid-v4"]
    results = np.array([run.result for run in runs])
    half = t.ppf(0.975, len(results) - 1) * results.std(ddof=1) / len(results) ** 0.5
    page = " ".join((ROOT / "docs" / "ppo_continuous_action.md").read_text().split())
    assert len(results) == 10 and f"Humanoid's mean, {results.mean():.2f}, is below the published" in page
    assert f"(Student's t) is {results.mean() - half:.2f} to {results.mean() + half:.2f}" in page
    published = report.published_results()["ppo_continuous_action_numpy", "Humanoid-v4"].values()
    means = sorted(float(x.split(" ± ")[0]) for x in published if " ± " in x)
    assert (
        f"the published {means[0]:.2f} to {means[-1]:.2f}" in page and results.mean() < means[0] < results.mean() + half
    )


def test_the_page_on_pong_says_what_was_kept():
    (run,) = report.load(report.RESULTS)["ppo_atari"]["PongNoFrameskip-v4"]
    games = next(i for i in range(20, len(run.returns)) if np.mean(run.returns[i - 20 : i]) >= 15)
    page = " ".join((ROOT / "docs" / "ppo_atari.md").read_text().split())
    assert f"first reached 15 after {run.steps[games - 1]:,.0f} steps, {run.seconds[games - 1]:,.0f} seconds" in page
    assert f"At its end, after {run.wall_seconds:,.0f} seconds" in page
    assert f"of the last 100 games was {run.result:.2f}; published" in page
    published = report.published_results()["ppo_atari", "PongNoFrameskip-v4"].values()
    means = sorted(float(x.split(" ± ")[0]) for x in published if " ± " in x)
    assert f"default settings are {means[0]} to {means[-1]}" in page
    assert "[19.5 after two hours]" in (ROOT / "README.md").read_text() and 19.45 <= run.result < 19.55


def test_committed_times_from_launch_follow_from_what_was_measured():
    page, (file,) = (ROOT / "docs" / "speed.md").read_text(), report.RESULTS.glob("time_to_return/*.json")
    measured = json.loads(file.read_text())
    assert measured["median_seconds"] == median(run["seconds"] for run in measured["runs"])
    assert all(run["mean_return"] >= measured["options"]["target"] for run in measured["runs"])
    table = report.time_table(report.RESULTS)
    assert report.place_tables(page, {"time_to_return": table}) == page and table in page


def test_speed_table_says_what_each_ratio_is_of(tmp_path):
    """The ratios of the rounds and their range, not those of the speeds: a script against other arguments of its own,
    and against stable-baselines3, each alone and both. Where the script's environments are parallel, a cell says how
    those of stable-baselines3 are stepped."""
    (tmp_path / "throughput").mkdir()
    launch = {"launch": {"first_row_seconds": 1.5, "peak_mb": 100.0}}
    sb3 = {"default threads": {"steps_per_second": 10.0}, "1 thread": {"steps_per_second": 20.0}}
    both = {"script": {"steps_per_second": 1200.0}, "against": {"steps_per_second": 400.0}}
    of_sb3 = {"default threads": 121.0, "1 thread": 61.0}
    workers = {"1 thread, SubprocVecEnv": {"steps_per_second": 30.0}}
    for name, medians in {
        "a": {"script": both["script"], **sb3, "ratios": of_sb3},
        "bb": {**both, "ratios": {"against": 3.1}},
        "ccc": {**both, **sb3, "ratios": {"against": 3.1, **of_sb3}, "against_ratios": {**of_sb3, "1 thread": 20.0}},
        "dddd": {"script": both["script"], **sb3, **workers, "ratios": of_sb3 | {"1 thread, SubprocVecEnv": 41.0}},
        "eeeee": {"script": both["script"], **sb3, "ratios": of_sb3},
    }.items():
        options = {"arguments": "--fast", "against": "--slow"} if "against" in medians else {}
        kinds = {kind: medians[kind] for kind in ("ratios", "against_ratios") if kind in medians}
        parallel = {"dddd": {"env_threads": None}, "eeeee": {"vectorization": "async"}}.get(name, {})
        rounds = [{"script": {"arguments": {"env_id": "Toy-v0"} | parallel}} | kinds]
        for change in (-1.0, 0.5):  # the other rounds' ratios
            rounds.append({kind: {base: x + change for base, x in ratios.items()} for kind, ratios in kinds.items()})
        measured = {"options": options, "medians": medians | launch, "rounds": rounds}
        (tmp_path / "throughput" / f"{name}.json").write_text(json.dumps(measured))
    both_bases = "10: 121.0× (120.0–121.5) | 20: 61.0× (60.0–61.5)"
    workers = "serial 20: 61.0× (60.0–61.5)<br>workers 30: 41.0× (40.0–41.5)"
    assert report.speed_table(tmp_path).splitlines()[2:] == [
        f"| a.py | Toy-v0 | 1,200 | {both_bases} | – |",
        "| bb.py --fast | Toy-v0 | 1,200 | – | – | 3.1× (2.1–3.6) |",
        "| bb.py --slow | Toy-v0 | 400 | – | – | – |",
        f"| ccc.py --fast | Toy-v0 | 1,200 | {both_bases} | 3.1× (2.1–3.6) |",
        "| ccc.py --slow | Toy-v0 | 400 | 10: 121.0× (120.0–121.5) | 20: 20.0× (19.0–20.5) | – |",
        f"| dddd.py | Toy-v0 | 1,200 | serial 10: 121.0× (120.0–121.5) | {workers} | – |",
        f"| eeeee.py | Toy-v0 | 1,200 | serial {both_bases.replace('| ', '| serial ')} | – |",
    ]
    assert "| bb.py --fast | 1.5 s | 100 MB |\n" in report.launch_table(tmp_path)


def test_growth_table_is_the_medians_of_each_value(report_here, tmp_path):
    def point(speed):
        parts = {"environment": 1.0, "policy": 2.0, "update": speed / 10}
        script = {"steps_per_second": speed, "ms_per_update": sum(parts.values()), "ms": parts}
        return {"script": script, "launch": {"peak_mb": 10 * speed}}

    rounds = [{"4": point(10.0 + i), "16": point(20.0 + i)} for i in (-5, 0, 1)]
    measured = {"options": {"vary": ["num-envs", "4", "16"]}, "rounds": rounds, "medians": rounds[1]}
    (tmp_path / "kept" / "growth").mkdir(parents=True)
    (tmp_path / "kept" / "growth" / "ppo_num-envs.json").write_text(json.dumps(measured))
    assert report.growth_table(measured).splitlines() == [
        "| num-envs | steps/s | ms per update | environment | policy | update | peak memory |",
        "|---|---|---|---|---|---|---|",
        "| 4 | 10 (5–11) | 4.0 | 1.0 | 2.0 | 1.0 | 100 MB |",
        "| 16 | 20 (15–21) | 5.0 | 1.0 | 2.0 | 2.0 | 200 MB |",
    ]
    report_here("--keep", make_run(tmp_path, 1, np.arange(200.0)), "--results", tmp_path / "kept")
    assert (tmp_path / "kept" / "growth" / "ppo_num-envs.svg").read_text().count("num-envs") >= 3


def test_results_hold_the_runs_behind_the_readme():
    rows = [line.split(" | ") for line in report.summary_table(RUNS).splitlines()[2:]]
    assert {"CartPole-v1", "HalfCheetah-v4"} <= {row[0].strip("| ") for row in rows} and len(rows) >= 7
    single = {"Breakout-v5, precision=bf16"}  # hours a run: one seed, as the table says
    assert {row[0].strip("| ") for row in rows if int(row[2]) < 3} == single


def test_what_envpools_page_says_of_pongs_last_games():
    page = (report.ROOT / "docs" / "ppo_atari_envpool.md").read_text()
    first, second, third = RUNS["ppo_atari_envpool"]["Pong-v5"]
    columns, rows = report.read_csv(first.folder / "episodes.csv.gz")
    last = dict(zip(columns, rows.T[:, -200:]))
    lengths = last["episodic_length"][last["episodic_return"] == 3]
    assert f"Pong's seeds end at {first.result:.2f}, at {second.result:.2f} and at {third.result:.2f}." in page
    assert np.median(last["episodic_return"]) == 19
    assert "Of the first one's last 200 games half end at 19 or more" in page
    assert f"{len(lengths)} end at exactly 3,\neach after {min(lengths):,.0f} to {max(lengths):,.0f} steps" in page


def test_the_lstms_page_says_when_pong_was_learned():
    page = (report.ROOT / "docs" / "ppo_atari_lstm.md").read_text()
    rows = [row.strip("| ").split(" | ") for row in page.splitlines() if row.startswith("|")]
    rows = [row for row in rows if row[1:2] in (["LSTM, single frames"], ["four frames"])]
    runs = RUNS["ppo_atari_lstm"]["PongNoFrameskip-v4"] + RUNS["ppo_atari_envpool"]["Pong-v5"]
    for row, run in zip(rows, runs, strict=True):
        means = report.curve(run.steps, run.returns, run.steps)
        first = [next((f"{x:,.0f}" for x in run.steps[99:][means[99:] >= level]), "never") for level in (0, 15, 18)]
        assert row[2] == f"{run.result:.2f}"
        assert row[3:] == first


def test_of_a_script_and_its_twin_in_numpy_the_one_with_more_seeds_is_shown():
    means = {}
    for name in ("ppo", "ppo_numpy"):
        runs = RUNS[name]["CartPole-v1"]
        means[name] = report.cells_of(report.summarise(name, {"CartPole-v1": runs})[0])[1]
        twins = ("ppo", "ppo_numpy")
        groups = {twin: {"CartPole-v1": RUNS[twin]["CartPole-v1"][: None if twin == name else 3]} for twin in twins}
        assert f"| CartPole-v1 | {means[name]} | 5 |" in report.summary_table(groups)
    assert means["ppo"] != means["ppo_numpy"]


def test_results_stay_small():
    sizes = [path.stat().st_size for path in report.RESULTS.rglob("*") if path.is_file()]
    assert max(sizes) < 3_000_000 and sum(sizes) < 60_000_000  # an agent that sees pixels; 1,035 runs of ablations


def test_a_changed_result_changes_the_table(tmp_path):
    """What the tests of the committed tables rest on."""
    (environment, runs), *_ = RUNS["ppo"].items()
    before = report.table("ppo", {environment: runs})
    changed = report.Run(runs[0].folder)
    changed.returns = changed.returns + 1.0
    assert report.table("ppo", {environment: [changed, *runs[1:]]}) != before


# ---------------------------------------------------------------------------------------------- A report of run folders

MP4 = base64.b64decode("AAAAIGZ0eXBpc29tAAACAGlzb21pc28yYXZjMW1wNDE=")  # a header is enough for a file to be linked


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two scripts on two environments, three seeds each; one run has not ended, and one was made with another gamma."""
    folder = tmp_path_factory.mktemp("runs")
    for exp_name, gain in (("ppo", 1.0), ("mine", 2.0)):
        for env_id in ("Toy-v0", "Other-v0"):
            for seed in (1, 2, 3):
                returns = gain * np.linspace(0, 100, 400) + seed
                make_run(folder / "runs", seed, returns, env_id, exp_name, gamma=0.99)
    make_run(folder / "runs", 4, np.full(200, 1e6), "Toy-v0", "ppo", complete=False, gamma=0.99)
    (folder / "runs" / "Toy-v0__ppo__1__1" / "videos").mkdir()
    for update in (8, 40):
        (folder / "runs" / "Toy-v0__ppo__1__1" / "videos" / f"{update}.mp4").write_bytes(MP4)
    stdout, stderr = type_report(folder, "runs")
    assert "report/index.html: 13 runs" in stdout and "Toy-v0__ppo__4__1: has not ended" in stderr
    return folder


def test_report_of_run_folders(runs):
    tables = (runs / "report" / "tables.md").read_text()
    last = np.linspace(0, 100, 400)[-100:].mean()
    middle = f"{last + 2:.2f} [{last + 1:.2f}, {last + 3:.2f}]"
    assert f"| Toy-v0 | {last + 2:.2f} ± 1.00 | ± 2.48 | {middle} | 3 | 400 | 10 | 0.7 |" in tables
    assert f"| Other-v0 | {2 * last + 2:.2f} ± 1.00 |" in tables and "1000000" not in tables
    for name in ("ppo", "ppo_time", "mine", "mine_time"):
        assert (runs / "report" / f"{name}.png").stat().st_size > 10_000
        assert "Toy-v0, 3 seeds" in (runs / "report" / f"{name}.svg").read_text()
    page = (runs / "report" / "index.html").read_text()
    (data,) = re.findall(r'id="data">(.*?)</script>', page)
    rest = page.replace("\n".join(report.BOKEH.js_raw), "").replace(data, "")
    assert len(rest) < 30_000 and not re.search(r"(src|href)=|https?://", rest)
    assert len(page) < 5_000_000
    assert page.count("</script>") == 3  # a source that holds one can't end the page's


def write_levels(run, training, test, step=400):
    """An evaluation.csv like ppo_procgen.py's, with a worse evaluation before the last."""
    lines = [
        "global_step,levels,episodic_return,episodic_length",
        *(f"10,{one},-9.0,5" for one in ("training", "test")),
    ]
    for levels, returns in (("training", training), ("test", test)):
        lines += [f"{step},{levels},{value},5" for value in returns]
    (run / "evaluation.csv").write_text("\n".join(lines) + "\n")


def test_returns_on_training_and_test_levels_stand_side_by_side(report_here, tmp_path):
    for seed in (1, 2):
        run = make_run(tmp_path / "runs", seed, np.full(400, 5.0), exp_name="ppo_procgen")
        write_levels(run, [6.0, 8.0 + 2 * seed], [3.0, 3.0 + 2 * seed])
    make_run(tmp_path / "runs", 1, np.full(400, 5.0), env_id="Other-v0", exp_name="ppo_procgen")  # without the file
    stdout, _ = report_here("runs")
    header = "| environment | ours | mean's 95% | IQM [95%] | seeds | training levels | test levels | gap | steps |"
    assert header in stdout
    assert re.search(r"Toy-v0 .* 2 \| 8.50 \| 4.50 \| 4.00 \| 400 ", stdout)
    assert re.search(r"Other-v0 .* 1 \| – \| – \| – \| 400 ", stdout)
    data = (tmp_path / "report" / "index.html").read_text()
    assert '"levels":{"training levels":8.5,"test levels":4.5,"gap":4.0}' in data
    (run / "evaluation.csv").write_text("global_step,levels,episodic_return\n400,training,nonsense\n")
    assert "evaluation.csv: can't be read" in report_here("runs")[1]


def test_published_numbers_stand_beside_runs_whose_other_settings_are_named(tmp_path, monkeypatch):
    theirs = {"steps": "200", report.PUBLISHED[0]: "7"}
    monkeypatch.setattr(report, "published_results", lambda: {("ppo", "Toy-v0"): theirs})
    for seed in (1, 2):
        make_run(tmp_path / "runs", seed, np.full(200, 5.0), norm_adv=False)
    sizes = ", num_envs=1, num_steps=10"  # of all runs here
    groups = report.group(report.find_runs([tmp_path / "runs"]))
    assert f"| Toy-v0, norm_adv=False{sizes} | 5.00 ± 0.00 | ± 0.00 |" in report.table("ppo", groups["ppo"])
    change(make_run(tmp_path / "runs" / "stopped", 3, np.full(100, 9.0)), {"total_timesteps": 100})  # others' length
    groups = report.group(report.find_runs([tmp_path / "runs"]))
    assert len(groups) == 2 and f"| Toy-v0, norm_adv=False{sizes} | 5.00 ± 0.00 | 2 | 7 |" in report.summary_table(
        groups
    )
    shorter = next(report.table(label, group) for label, group in groups.items() if "total_timesteps=100" in label)
    assert f"| Toy-v0{sizes}, 100 steps | 9.00 | – | 1 |\n" in shorter  # and no published number
    make_run(
        tmp_path / "runs" / "usual", 4, np.full(200, 6.0), norm_adv=True
    )  # as published, which goes before more seeds
    groups = report.group(report.find_runs([tmp_path / "runs"]))
    assert f"| Toy-v0{sizes} | 6.00 | 1 | 7 |" in report.summary_table(groups)


def test_the_half_width_is_students():
    scores = np.array([1.0, 2.0, 4.0, 9.0])
    draws = np.random.default_rng(1).standard_t(3, 1_000_000)
    assert report.half_width(scores) == pytest.approx(np.percentile(draws, 97.5) * scores.std(ddof=1) / 2, rel=0.01)
    assert report.half_width(scores[:1]) is None


def test_a_page_that_is_no_reports_stays(report_here, tmp_path):
    make_run(tmp_path / "runs", 1, np.full(200, 5.0))
    (tmp_path / "site" / "videos").mkdir(parents=True)
    (tmp_path / "site" / "index.html").write_text("<title>mine</title>")
    _, stderr = report_here("runs", "--output", "site", status=2)
    assert "--output site: its index.html is no report's" in stderr and stderr.count("\n") == 1
    assert (tmp_path / "site" / "videos").is_dir() and len([*(tmp_path / "site").iterdir()]) == 2


def test_a_full_disk_leaves_what_was_kept_whole(report_here, tmp_path):
    returns = np.random.default_rng(1).normal(size=2000)
    run = make_run(tmp_path / "runs", 1, returns)
    report_here("--keep", run, "--results", tmp_path / "results")
    before = {path: path.read_bytes() for path in (tmp_path / "results").rglob("*") if path.is_file()}
    command = f"ulimit -f 1; exec {sys.executable} {ROOT}/benchmark/report.py --results results"  # files of 1 KiB
    for more in (f" --keep {run}", ""):
        done = subprocess.run(["bash", "-c", command + more], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
        assert "File too large" in done.stderr and "with room on the disk" in done.stderr
        assert before == {path: path.read_bytes() for path in (tmp_path / "results").rglob("*") if path.is_file()}


def test_kept_runs_keep_their_levels(report_here, tmp_path):
    run = make_run(tmp_path / "runs", 1, np.full(400, 5.0), exp_name="ppo_procgen")
    write_levels(run, [6.0], [3.0])
    stdout, _ = report_here("--keep", run, "--results", tmp_path / "results")
    table = (tmp_path / "results" / "ppo_procgen.md").read_text()
    for text in (stdout, table):  # a page shows the first
        assert "| seeds | training levels | test levels | gap |" in text and "| 6.00 | 3.00 | 3.00 |" in text


def test_runs_of_different_arguments_are_kept_apart(report_here, tmp_path):
    for gamma, gain in ((0.9, 1.0), (0.99, 5.0)):
        for seed in (1, 2):
            make_run(tmp_path / str(gamma), seed, np.full(200, gain), gamma=gamma)
    report_here("0.9", "0.99", "--output", "out")
    tables = (tmp_path / "out" / "tables.md").read_text()
    assert "### ppo gamma=0.9\n" in tables and "### ppo\n" in tables  # 0.99 is ppo.py's default
    assert (tmp_path / "out" / "ppo_gamma_0.9.svg").is_file() and not list((tmp_path / "out").glob("*=*"))
    assert "| Toy-v0 | 1.00 ± 0.00" in tables and "| Toy-v0 | 5.00 ± 0.00" in tables


@pytest.mark.parametrize("source", ["own", "the repository's"])
def test_labels_leave_out_what_is_the_default(report_here, tmp_path, source):
    """Of the script as it ran, where the run has it. A run that is usual in all has the script's name alone."""
    for seed, (gamma, checkpoints) in enumerate(((0.9, None), (0.99, None), (0.99, 7), (0.5, 7))):
        run = make_run(tmp_path / "runs", seed, np.full(200, 1.0), gamma=gamma, checkpoints=checkpoints)
        (run / "ppo.py").write_text("class Args:\n    gamma: float = 0.5\n    checkpoints: int | None = None\n")
        if source != "own":
            (run / "ppo.py").unlink()
            change(run, version="1234567")
    stdout, _ = report_here("runs")
    labels = {"ppo gamma=0.9", "ppo", "ppo checkpoints=7", "ppo checkpoints=7 gamma=0.5"}
    if source == "own":
        labels = {"ppo gamma=0.9", "ppo gamma=0.99", "ppo checkpoints=7 gamma=0.99", "ppo checkpoints=7"}
    assert set(re.findall(r"^### (.+)$", stdout, re.MULTILINE)) == labels


def test_a_run_of_seconds_has_no_speed(report_here, tmp_path):
    make_run(tmp_path / "runs", 1, np.full(90, 1.0))
    make_run(tmp_path / "runs", 2, np.full(90, 1.0))
    make_run(tmp_path / "runs", 1, np.full(110, 1.0), env_id="Other-v0")
    stdout, _ = report_here("runs")
    assert "| 2 | 90 | – | 0.1 |" in stdout and "| 1 | 110 | 10 | 0.2 |" in stdout
    data = (tmp_path / "report" / "index.html").read_text()
    assert data.count('"speed":null') == 2 and '"steps_per_second":null' in data


def change(run, arguments=(), **more):
    config = json.loads((run / "config.json").read_text())
    config["arguments"] |= dict(arguments)
    (run / "config.json").write_text(json.dumps(config | more))


def test_runs_of_different_machines_are_seeds_of_one_experiment(report_here, tmp_path):
    """Whatever concerns only machine or speed, and the number of checkpoints that were placed by default."""
    machines = [
        {"num_threads": 2, "cuda": False, "backend": "gloo", "checkpoints": 4, "capture_video": True},
        {"num_threads": None, "cuda": True, "backend": "nccl", "checkpoints": None, "capture_video": False},
        {"num_threads": 8, "cuda": True, "backend": "nccl", "checkpoints": 4, "torch_deterministic": False},
    ]
    for seed, machine in enumerate(machines):
        change(make_run(tmp_path / "runs", seed, np.full(40_000, float(seed))), machine)
    stdout, _ = report_here("runs")
    assert "### ppo\n" in stdout and "| Toy-v0 | 1.00 ± 1.00 | ± 2.48 | 1.00 [0.00, 2.00] | 3 |" in stdout


@pytest.mark.parametrize("path", sorted((ROOT / "cleanrl").glob("*.py")), ids=lambda path: path.stem)
def test_no_argument_of_speed_or_machine_makes_another_experiment(path):
    """Those that stand under `# speed`, but for the precision, which changes what is learned."""
    _, _, group = path.read_text().partition("    # speed\n")
    names = re.findall(r"^    (\w+): ", group.partition("\n\n")[0], re.MULTILINE)
    assert shared.identity(dict.fromkeys([*names, "gamma"])).keys() - {"precision"} == {"gamma"}
    assert names or "numpy" in path.stem


@pytest.mark.parametrize("typed", [None, 1, 3, 50])
def test_checkpoints_by_default_are_those_that_ppo_places(typed, in_tmp_path):
    sizes = {"total_timesteps": 42_000, "num_envs": 2, "num_steps": 1000, "num_minibatches": 1}
    run = train(checkpoints=typed, **sizes)
    arguments = json.loads((run / "config.json").read_text())["arguments"]
    assert arguments["checkpoints"] == typed
    made = len(list(run.glob("checkpoints/*.pt")))
    assert made == shared.identity(arguments)["checkpoints"] == {None: 2, 50: 21}.get(typed, typed)


def test_versions_of_a_script_are_kept_apart(report_here, tmp_path):
    for seed, (result, source) in enumerate(
        ((100.0, "loss = 1\n"), (100.0, "loss = 1  # the loss\n"), (0.0, "loss = 2\n"))
    ):
        run = make_run(tmp_path / "runs", seed, np.full(200, result))
        (run / "ppo.py").write_text(f"{source}\n# {'=' * 9} The run: nothing below is about PPO\nprint({seed})\n")
    stdout, stderr = report_here("runs")
    one, other = (shared.version(f"loss = {i}\n") for i in (1, 2))
    assert f"### ppo version={one}\n" in stdout and f"### ppo version={other}\n" in stdout
    assert (
        "| Toy-v0 | 100.00 ± 0.00 | ± 0.00 | 100.00 [100.00, 100.00] | 2 |" in stdout
        and "| Toy-v0 | 0.00 | – | 0.00 | 1 |" in stdout
    )
    assert "ppo: the runs are of several versions of the script" in stderr


def test_a_kept_run_has_the_version_of_its_script_or_else_its_commit(report_here, tmp_path):
    runs = [make_run(tmp_path / "runs", seed, np.full(200, 1.0)) for seed in (1, 2)]
    report_here("--keep", *runs, "--results", tmp_path / "kept")
    before_versions = make_run(tmp_path / "kept" / "runs" / "ppo", 3, np.full(200, 1.0))
    (before_versions / "ppo.py").unlink()
    change(before_versions, git_commit="0123456789abcdef")
    read = report.find_runs([tmp_path / "kept" / "runs"])
    version = shared.version((runs[0] / "ppo.py").read_text())
    assert {run.seed: run.version for run in read} == {1: version, 2: version, 3: "0123456"}
    assert {run.label for run in read} == {f"ppo version={version}", "ppo version=0123456"}


def test_a_version_is_the_text_above_the_ruler_without_its_comments_and_docstrings():
    scripts = [path.read_text() for path in sorted((ROOT / "cleanrl").glob("*.py"))]
    assert len({*map(shared.version, scripts)}) == len(scripts)
    source = (ROOT / "cleanrl" / "ppo.py").read_text()
    version = shared.version(source)
    same = [
        source + "print()\n",
        source.replace("  # [core-5]", ""),
        source.replace("import numpy as np\n", "import numpy as np\n\n", 1),
        re.sub(r'"""PPO for .*?"""', '"""Other words."""', source, count=1, flags=re.DOTALL),
        re.sub(r' +"""Generalised .*?"""\n', "", source, count=1, flags=re.DOTALL),
    ]
    assert {*map(shared.version, same)} == {version} and all(text != source for text in same)
    upstairs = source.replace("reversed(range(len(rewards)))", "range(len(rewards))")
    assert upstairs != source and shared.version(upstairs) != version
    for code in ('x = "# text"\n', '"text".join(x)\n', 'f("""text""")\n', 'f(\n"text"\n)\n', 'x = """\ntext\n"""\n'):
        assert shared.version(code) != shared.version(code.replace("text", "another")), code
    assert re.fullmatch(r"[0-9a-f]{7}", version)
    assert shared.version("def f(:\n  ") != shared.version("def g(:\n  ")  # no Python


def test_a_run_that_is_there_twice_counts_once(report_here, tmp_path):
    run = make_run(tmp_path / "runs", 1, np.full(200, 3.0))
    shutil.copytree(run, run.with_name(run.name.replace("__1__1", "__1__2")))
    _, stderr = report_here("runs")
    assert "is the same run" in stderr
    assert "| Toy-v0 | 3.00 | – | 3.00 | 1 |" in (tmp_path / "report" / "tables.md").read_text()


def test_damaged_runs_are_left_out_and_said(report_here, tmp_path):
    for seed in range(1, 7):
        make_run(tmp_path / "runs", seed, np.full(200, float(seed)))
    for seed, name, content in (
        (1, "config.json", "{"),
        (2, "episodes.csv", "global_step\n1\n"),
        (3, "config.json", "{}"),
        (6, "episodes.csv", "global_step,episodic_return,episodic_length,seconds\n1,nan,1,0.1\n"),
    ):
        (tmp_path / "runs" / f"Toy-v0__ppo__{seed}__1" / name).write_text(content)
    with (tmp_path / "runs" / "Toy-v0__ppo__5__1" / "episodes.csv").open("a") as file:
        file.write("201,9")  # as a kill leaves it
    _, stderr = report_here("runs")
    assert stderr.count("is left out") == 4 and stderr.count("\n") == 4 and "Traceback" not in stderr
    assert "| Toy-v0 | 4.50 ± 0.71 |" in (tmp_path / "report" / "tables.md").read_text()


def test_a_run_in_its_first_update_is_in_the_page(report_here, tmp_path):
    make_run(tmp_path / "runs", 1, np.full(200, 1.0))
    young = make_run(tmp_path / "runs", 2, np.zeros(50), complete=False)
    (young / "metrics.csv").write_text("")
    _, stderr = report_here("runs")
    assert "has not ended" in stderr and young.name in (tmp_path / "report" / "index.html").read_text()


def test_a_run_that_lacks_an_argument_hides_no_difference_of_the_others(tmp_path):
    for seed in (1, 2):
        for x in (False, True):
            make_run(tmp_path / f"{seed}{x}", seed, np.full(200, 300.0 if x else 100.0), anneal_clip=x)
    make_run(tmp_path / "old", 3, np.full(200, 7.0))
    groups = report.group(report.find_runs([tmp_path]))
    results = {label: [run.result for run in environments["Toy-v0"]] for label, environments in groups.items()}
    assert results == {"ppo": [100.0, 100.0, 7.0], "ppo anneal_clip=True": [300.0, 300.0]}  # off is the default


def test_a_stopped_run_is_no_seed_of_those_that_ended(report_here, tmp_path):
    report_here("--keep", make_run(tmp_path, 1, np.full(200, 5.0)), "--results", tmp_path / "results")
    stopped = make_run(tmp_path, 2, np.full(100, 9.0), complete=False)
    _, stderr = report_here("--keep", stopped, "--stopped", "--results", tmp_path / "results")
    assert [*report.load(tmp_path / "results")] == ["ppo", "ppo stopped_at=100"] and not stderr


def test_names_of_files_are_short_and_differ():
    long = "ppo " + " ".join(f"argument-{i}=0.000{i}" for i in range(12))
    assert len({report.slug(f"{long} version={x}") for x in "ab"}) == 2 and len(report.slug(long)) == 150
    assert report.slug("ppo gamma=0.9") == "ppo_gamma_0.9"


def test_the_report_takes_nothing_away_that_it_did_not_make(report_here, tmp_path):
    run = make_run(tmp_path / "runs", 1, np.full(200, 1.0))
    for folder in (run, tmp_path / "mine"):
        (folder / "videos").mkdir(parents=True)
        (folder / "videos" / "10.mp4").write_bytes(b"film")
    _, stderr = report_here("runs", "--output", run, status=2)
    assert f"--output {run}: is a run folder" in stderr and (run / "videos" / "10.mp4").is_file()
    report_here("runs", "--output", "mine")
    (run / "videos" / "10.mp4").rename(run / "videos" / "20.mp4")
    (tmp_path / "mine" / "videos" / "0001").mkdir()
    report_here("runs", "--output", "mine")  # anew: what the report before had copied goes, and nothing else
    kept = sorted(path.relative_to(tmp_path / "mine" / "videos") for path in tmp_path.glob("mine/videos/**/*"))
    assert [*map(str, kept)] == ["0000", "0000/20.mp4", "0001", "10.mp4"]


def test_what_to_install_is_one_line(tmp_path):
    make_run(tmp_path / "runs", 1, np.full(200, 1.0))
    done = type_in_the_readmes_environment(tmp_path, "report.py", "runs")
    assert done.returncode == 2 and not done.stdout and done.stderr.count("\n") == 1, done
    assert done.stderr.startswith("report.py: error: ") and "pip install -e '.[benchmark]'" in done.stderr
    assert not (tmp_path / "report").exists()


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["nowhere"], "nowhere: is not a folder"),
        (["empty"], "empty: holds no run folder"),
        (["runs", "--output", "file"], "--output file"),
        (["runs", "--keep", "runs"], "--keep"),
        (["--results", "empty"], "holds no runs"),
        (["--results", "file", "--keep", "runs/Toy-v0__ppo__1__1"], "--results file"),
    ],
)
def test_wrong_use_is_one_line(report_here, tmp_path, words, part):
    make_run(tmp_path / "runs", 1, np.arange(200.0))
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    _, stderr = report_here(*words, status=2)
    assert stderr.count("\n") == 1 and part in stderr
    assert not (tmp_path / "report").exists()


def test_a_hundred_runs_of_ten_thousand_episodes_take_less_than_a_minute_and_a_gigabyte(tmp_path):
    rng = np.random.default_rng(1)
    for script in ("a", "b", "c", "d", "e"):
        for env_id in ("One-v0", "Two-v0", "Three-v0", "Four-v0"):
            for seed in range(5):
                make_run(tmp_path / "runs", seed, rng.normal(size=10_000), env_id, script)
    code = (
        "import runpy, sys; sys.argv = ['report.py', 'runs']; "
        f"runpy.run_path({str(ROOT / 'benchmark' / 'report.py')!r}, run_name='__main__'); "
        "print(open('/proc/self/status').read())"  # its own peak; what wait4 tells includes that of pytest
    )
    before = time.monotonic()
    variables = os.environ | {"PYTHONPATH": str(ROOT / "benchmark")}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=variables, capture_output=True, text=True)
    assert done.returncode == 0 and (tmp_path / "report" / "tables.md").read_text().count("| 5 |") == 20, done.stderr
    assert time.monotonic() - before < 60
    assert int(re.search(r"VmHWM:\s+(\d+) kB", done.stdout)[1]) < 1e6


# --------------------------------------------------------------------------------------------------------- In a browser


def texts(browser, selector):
    return [element.text for element in browser.find_elements("css selector", selector)]


def click(browser, selector):
    browser.execute_script("document.querySelector(arguments[0]).click()", selector)


def titles(browser, section):
    return [title for title in texts(browser, f"{section} h3") if title]  # a hidden one's text is empty


def figures(browser, section):
    """What Bokeh has drawn in the visible panels of a section. Waits until it has."""
    script = """
        const [section, done] = arguments;
        const plots = [...document.querySelectorAll(`${section} .panel:not([hidden]) .plot:not([hidden])`)];
        const look = () => {
          const views = plots.map((plot) => Bokeh.index.roots.find((view) => plot.contains(view.el)));
          if (!views.every((view) => view?.model.document.is_idle)) return setTimeout(look, 20);
          requestAnimationFrame(() => setTimeout(() => done(views.map(({ model }) => {
            const { script, mean, outlineY } = model.renderers[0].data_source.data, values = outlineY.flat();
            const figure = { id: model.id, label: model.below[0].axis_label, script, mean };
            figure.outline = [Math.min(...values), Math.max(...values)];
            figure.ranges = [model.x_range, model.y_range].map(({ start, end }) => [start, end]);
            return figure;
          })), 50));
        };
        look();"""
    return browser.execute_async_script(script, section)


def read_at_the_middle(browser, selector, right=0):
    """The lines that appear when the pointer stands there in a panel, or so many pixels to its right."""
    from selenium.webdriver import ActionChains

    plot = browser.find_element("css selector", selector)
    browser.execute_script("arguments[0].scrollIntoView({ block: 'center' })", plot)
    figures(browser, selector.split(" ")[0])
    ActionChains(browser).move_to_element_with_offset(plot, right, 0).perform()
    figures(browser, selector.split(" ")[0])
    (tooltip,) = browser.find_elements("css selector", ".bk-Tooltip")
    return tooltip.shadow_root.find_element("css selector", ".bk-tooltip-content").text.split("\n")


def colours_in(browser, selector):
    """How often each colour is in a panel as the screen shows it."""
    figures(browser, selector.split(" ")[0])
    picture = Image.open(io.BytesIO(browser.find_element("css selector", selector).screenshot_as_png)).convert("RGB")
    return Counter(picture.getpixel((x, y)) for x in range(picture.width) for y in range(picture.height))


def test_the_page_in_a_browser(browser, runs):
    browser.get((runs / "report" / "index.html").as_uri())
    assert texts(browser, "#about") == ["13 runs, 12 of them ended, 2 scripts, 2 environments"]
    assert len(texts(browser, "#summary tr")) == 1 + 4
    assert "gap" not in texts(browser, "#summary tr")[0]
    assert titles(browser, "#curves") == ["Other-v0", "Toy-v0"]
    both = figures(browser, "#curves")
    assert [figure["script"] for figure in both] == [["mine", "ppo"]] * 2 and len(figures(browser, "#losses")) == 2
    assert len(texts(browser, "details.run")) == 13 and len(texts(browser, ".warn")) == 1

    click(browser, "#environment input[value='Other-v0']")  # filters
    assert titles(browser, "#curves") == ["Toy-v0"] and len(texts(browser, "details.run")) == 7
    click(browser, "#script input[value='mine']")
    assert len(texts(browser, "#summary tr")) == 1 + 1 and len(texts(browser, "details.run")) == 4
    assert "environment=Toy-v0" in browser.current_url and "script=ppo" in browser.current_url
    (before,) = figures(browser, "#curves")
    assert before["id"] == both[1]["id"] and before["script"] == ["ppo"]  # the same figure, with other data
    for figure, highest in ((both[1], 176), (before, 90.5)):  # mean return of the last 100 episodes, and its spread
        (start, end), (low, high) = figure["ranges"]
        assert (start, end) == (0, 400) and figure["outline"] == pytest.approx([0, highest], abs=3)
        assert low < figure["outline"][0] and highest < high < 1.1 * highest + 5  # y follows what is shown
    click(browser, "#axis input[value='seconds']")
    (after,) = figures(browser, "#curves")
    assert [before["label"], after["label"]] == ["environment steps", "seconds of training"]
    assert after["id"] == before["id"] and after["ranges"][0] == [0, 40]
    assert abs(len(before["mean"][0]) - len(after["mean"][0])) < 3  # an episode every tenth of a second: the same curve
    assert titles(browser, "#losses") == ["Toy-v0, losses/policy_loss"]
    browser.find_element("css selector", "#metric option[value='charts/SPS']").click()
    assert titles(browser, "#losses") == ["Toy-v0, charts/SPS"] and "metric=charts" in browser.current_url
    assert set(figures(browser, "#losses")[0]["mean"][0]) == {10}

    summary, command, source = "details.run:nth-child(1) > summary", "details.run:nth-child(1) .command", "pre.source"
    assert "ppo" in texts(browser, summary)[0] and "seed 1" in texts(browser, summary)[0]
    click(browser, summary)
    browser.implicitly_wait(5)
    assert texts(browser, command) == ["python cleanrl/ppo.py --env-id Toy-v0 --seed 1"]
    browser.implicitly_wait(0)
    configuration = texts(browser, "details.run:nth-child(1) .config tr")
    assert "gamma 0.99" in configuration and "versions numpy 1" in configuration and "git_commit abc" in configuration
    click(browser, ".body details > summary")
    assert texts(browser, source) == ["# the source of ppo\nprint('</script>')"]
    video = browser.find_element("css selector", "video").get_attribute("src")
    assert video.endswith("40.mp4") and Path(video.removeprefix("file://")).read_bytes() == MP4
    assert texts(browser, "select[aria-label=video] option") == ["after update 8", "after update 40"]

    browser.get("about:blank")  # the address alone leads back to the view
    browser.get((runs / "report" / "index.html").as_uri() + "#script=mine&environment=Other-v0&axis=seconds")
    assert len(texts(browser, "details.run")) == 3 and titles(browser, "#curves") == ["Other-v0"]
    (figure,) = figures(browser, "#curves")
    assert figure["script"] == ["mine"] and figure["label"] == "seconds of training"
    loaded = browser.execute_script("return performance.getEntriesByType('resource').map((entry) => entry.name)")
    assert not [name for name in loaded if not name.startswith("file:")]
    errors = [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
    assert not errors, errors


def test_the_curves_can_be_read(browser, runs):
    browser.get((runs / "report" / "index.html").as_uri())
    figures(browser, "#curves")
    browser.execute_script("for (const { model } of Bokeh.index.roots) model.frame_width = 300")
    for right in (0, 1, 2):  # one of three pixels is a point of the grid
        lines = read_at_the_middle(browser, "#curves .plot", right)
        for line, script, gain in zip(lines, ("mine", "ppo"), (2, 1), strict=True):
            step, mean = re.fullmatch(rf"{script} at (\d+): ([\d.]+) ± 1", line).groups()
            assert 150 < int(step) < 250 and float(mean) == pytest.approx(gain * (int(step) - 50) / 4 + 2, abs=1)
    assert browser.find_element("css selector", "#curves .panel").get_attribute("aria-label") == "Other-v0"


def test_the_curves_have_the_colours_of_their_script_and_of_the_scheme(browser, runs):
    browser.get((runs / "report" / "index.html").as_uri())
    ppo, grid = (224, 123, 0), {"light": (223, 227, 234), "dark": (48, 56, 70)}
    for scheme, other in (("light", "dark"), ("dark", "light")):  # the second while the page is open
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        found = colours_in(browser, "#curves .plot")
        assert found[ppo] > 50 and found[grid[scheme]] > 500 and not found[grid[other]]
    click(browser, "#script input[value='ppo']")
    assert not colours_in(browser, "#curves .plot")[ppo]


def test_panels_say_when_there_is_nothing_to_show(browser, report_here, tmp_path):
    for env_id in ("Toy-v0", "Other-v0"):
        make_run(tmp_path / "runs", 1, np.arange(200.0), env_id=env_id)
    metrics = next((tmp_path / "runs").glob("Toy-v0*/metrics.csv"))
    metrics.write_text(re.sub(r"[\d.]+$", "nan", metrics.read_text(), flags=re.MULTILINE))
    report_here("runs")
    browser.get((tmp_path / "report" / "index.html").as_uri())
    assert texts(browser, "#losses .panel") == [
        "Other-v0, losses/policy_loss",
        "Toy-v0, losses/policy_loss\nnothing to show",
    ]
    assert len(figures(browser, "#losses")) == 1 and not texts(browser, "#losses + p")[0]
    for metrics in (tmp_path / "runs").glob("*/metrics.csv"):
        metrics.unlink()
    report_here("runs")
    browser.get((tmp_path / "report" / "index.html").as_uri())
    assert not titles(browser, "#losses") and texts(browser, "#losses + p") == ["These runs have no metrics.csv."]


def test_names_in_the_page_are_text(browser, report_here, tmp_path):
    evil = "<img src=x onerror=document.title='run'></script><script>document.title='run'</script>"
    run = make_run(tmp_path / "runs", 1, np.arange(200.0))
    config = json.loads((run / "config.json").read_text())
    config["arguments"] |= {"exp_name": evil, "env_id": evil, "note": evil}
    (run / "config.json").write_text(json.dumps(config | {"command": evil}))
    report_here("runs")
    browser.get((tmp_path / "report" / "index.html").as_uri())
    click(browser, "details.run > summary")
    browser.implicitly_wait(5)
    assert browser.find_elements("css selector", ".command")
    browser.implicitly_wait(0)
    (line,) = read_at_the_middle(browser, "#curves .plot")
    assert line.startswith(f"{evil} at ")
    assert browser.title == "PPO runs" and titles(browser, "#curves") == [evil]


def test_last_videos_stand_side_by_side(browser, report_here, tmp_path):
    for seed in (1, 2):
        run = make_run(tmp_path / "runs", seed, np.arange(200.0))
        (run / "videos").mkdir()
        for update in (9, 20, "30.tmp"):  # the last is what a kill leaves of a video
            (run / "videos" / f"{update}.mp4").write_bytes(MP4)
    make_run(tmp_path / "runs", 3, np.arange(200.0), env_id="Other-v0")
    report_here("runs")
    browser.get((tmp_path / "report" / "index.html").as_uri())
    sources = [one.get_attribute("src") for one in browser.find_elements("css selector", "#videos video")]
    assert len(sources) == 2 and all(source.endswith("/20.mp4") for source in sources)
    assert texts(browser, "#videos figcaption")[0] == "Toy-v0 ppo, seed 1, return 149.50"
    click(browser, "#environment input[value='Toy-v0']")
    assert not browser.find_element("css selector", "#watch").is_displayed()


def test_the_header_stays_small_with_many_runs(browser, report_here, tmp_path, monkeypatch):
    monkeypatch.setattr(report, "draw", lambda *_: None)  # a hundred pictures, which the header has none of
    for i in range(24):
        env_id = f"A-long-name-{i % 6}-v0"
        make_run(tmp_path / "runs", i, np.arange(200.0), env_id=env_id, gamma=0.9 + i / 1000)
        make_run(tmp_path / "runs" / "more", i, np.arange(200.0), env_id=env_id, gamma=0.5)
    report_here("runs")
    browser.get((tmp_path / "report" / "index.html").as_uri())
    height = "return document.getElementById('filters').getBoundingClientRect().height"
    small = browser.execute_script(height)
    assert len(texts(browser, "#script .chip")) == 25 and small < 130
    click(browser, "#script .more")
    assert small < browser.execute_script(height) < 700
    click(browser, "#script .more")
    assert browser.execute_script(height) == small
    assert browser.execute_script("return document.documentElement.scrollWidth <= innerWidth")


def test_the_page_fits_a_telephone(browser, runs):
    narrow = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", narrow)
    browser.get((runs / "report" / "index.html").as_uri())
    assert len(read_at_the_middle(browser, "#curves .plot")) == 2
    assert browser.execute_script("return document.documentElement.scrollWidth") == 390
    for x in range(150, 230, 10):  # a finger that goes to the right reads, and doesn't scroll
        event = {"type": "touchMove" if x > 150 else "touchStart", "touchPoints": [{"x": x, "y": 422}]}
        browser.execute_cdp_cmd("Input.dispatchTouchEvent", event)
        figures(browser, "#curves")
    assert len(browser.find_elements("css selector", ".bk-Tooltip")) == 1
    browser.execute_cdp_cmd("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
    assert browser.execute_script("return document.documentElement.scrollWidth") == 390
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
