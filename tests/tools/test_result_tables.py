"""docs/build/result_tables.py: the tables of the pages, from the kept runs and the measured speeds."""

import memory
import numpy as np
import pages
import pytest
import report
import result_tables
from fake_runs import SCRIPT, cells_of, make_run, make_seeds
from kept import append_runs, kept_runs
from runs import ROOT, find_runs, release
from throughput import launch_rows, speed_rows


def test_published_numbers_stand_beside_runs_of_as_many_steps(tmp_path):
    sizes = {"env_id": "CartPole-v1", "num_envs": 500, "num_steps": 500, "updates": 7813}  # two updates of 250,000
    make_seeds(tmp_path / "runs", [490.0], total_timesteps=500_000, **sizes)
    make_seeds(tmp_path / "runs", [300.0], total_timesteps=250_000, number=2, **sizes)
    header, *rows = result_tables.result_cells(result_tables.rows_of(find_runs([tmp_path / "runs"]))["ppo"])
    found = {row[0]: dict(zip(header, row)) for row in rows}
    label = "CartPole-v1, num_envs=500, num_steps=500"
    assert found[f"{label}, 500,000 steps"]["CleanRL, Nov 2023"] == "490.04 ± 6.12"
    assert found[f"{label}, 250,000 steps"]["CleanRL, Nov 2023"] == "–"


def test_every_published_number_has_a_column():
    published = result_tables.published_results()
    of_others = {"script", "steps", "environment", "minutes, Nov 2023"}
    assert {name for row in published.values() for name in row} - of_others == set(result_tables.PUBLISHED)
    hopper = published["ppo_continuous_action", "Hopper-v4"]
    assert hopper["CleanRL, first v2 table"] == "2231.12 ± 656.72"
    assert result_tables.published_range(hopper) == "2,050 to 2,520"  # the best is openai/baselines' on Hopper-v2


def test_kept_runs_make_the_same_table_as_their_folders(tmp_path):
    make_seeds(tmp_path / "runs", [10.0, 12.0, 11.0, 14.0, 9.0])
    found = find_runs([tmp_path / "runs"])
    append_runs(found, results=tmp_path / "kept")
    tables = []
    for runs in (found, kept_runs("results", tmp_path / "kept")):
        tables.append(result_tables.result_cells(result_tables.rows_of(runs)["ppo"]))
    assert tables[1][0][1] == f"ours, release {release()}" and tables[0][1] == tables[1][1]


def test_tables_name_the_releases_of_kept_runs(tmp_path):
    make_seeds(tmp_path / "runs", [10.0])
    make_seeds(tmp_path / "runs", [20.0], script=SCRIPT.replace("1000", "2000"), number=2)
    runs = find_runs([tmp_path / "runs"])
    runs[0].release = "0.2"
    header, row = result_tables.result_cells(result_tables.rows_of(runs[:1])["ppo"])
    assert header[1] == "ours, release 0.2" and row[0] == "Toy-v0"
    labels = [row.label for row in result_tables.rows_of(runs)["ppo"]]
    assert sorted(labels) == ["Toy-v0, release 0.2", f"Toy-v0, version {runs[1].version}"]  # and a folder
    runs[1].release = "0.3"
    (only,) = result_tables.rows_of(runs)["ppo"]  # the newer one
    assert only.runs == runs[1:] and only.label == "Toy-v0"


def test_the_first_steps_of_longer_runs_are_as_they_were(tmp_path):
    """Until step 400, when none had diverged yet, and until step 900."""
    make_run(tmp_path / "runs", [1.0] * 50 + [9.0] * 50)
    make_run(tmp_path / "runs", [1.0] * 100, seed=2, total_timesteps=960, end="diverged", updates=8)
    runs = find_runs([tmp_path / "runs"])
    early = [result_tables.shortened(run, 400) for run in runs]
    assert [(run.total, run.end, run.result) for run in early] == [(400, "whole", 1.0)] * 2
    assert report.differing(runs) == {"total_timesteps"} and report.differing(early) == set()
    late = [result_tables.shortened(run, 900) for run in runs]
    assert [(run.total, run.end) for run in late] == [(900, "whole"), (900, "diverged")]
    assert late[0].result == pytest.approx((50 * 1 + 43 * 9) / 93)


def test_a_picture_has_minutes_if_the_machine_had_nothing_else_to_do(tmp_path):
    """Rows whose seeds took equally long, unequally long, and of which nobody knows."""
    for env_id, paces in {"Even-v0": (0.1, 0.11), "Busy-v0": (0.1, 0.2), "Old-v0": (None, None)}.items():
        for seed, pace in enumerate(paces, 1):
            make_run(tmp_path / "runs", [1.0, 2.0, 3.0], env_id=env_id, seed=seed, pace=pace)
    append_runs(find_runs([tmp_path / "runs"]), results=tmp_path / "kept")
    rows = result_tables.rows_of(kept_runs("results", tmp_path / "kept"))["ppo"]
    assert [row.label for row in rows if result_tables.have_one_pace(row.runs)] == ["Even-v0"]
    result_tables.draw(rows, tmp_path / "picture.svg")
    picture = (tmp_path / "picture.svg").read_text()
    assert (picture.count("environment steps"), picture.count("minutes of training")) == (3, 1)
    even = next(row for row in rows if row.label == "Even-v0")
    even.runs[1].config["hardware"]["cores"] = 64
    assert not result_tables.have_one_pace(even.runs)


def test_speed_is_told_by_medians_and_ranges():
    medians = {"script": {"steps_per_second": 2000.0, "ms_per_update": 1.5}, "1 thread": {"steps_per_second": 1000.0}}
    medians |= {"default threads": {"steps_per_second": 500.0}, "ratios": {"1 thread": 2.0, "default threads": 4.0}}
    medians["launch"] = {"first_row_seconds": 0.25, "peak_mb": 1234.0}
    of_rounds = [{"1 thread": x, "default threads": 2 * x} for x in (1.5, 2.0, 2.5)]
    rounds = [{"ratios": ratios, "against_ratios": ratios} for ratios in of_rounds]
    measured = {"arguments": {"env_id": "Toy-v0"}, "medians": medians, "rounds": rounds, "release": release()}
    measured["options"] = {"arguments": "--x 1", "against": None, "processes": 1}
    speeds = {"throughput/ppo": measured, "throughput/ppo_numpy": measured | {"release": "0.2"}}
    header, *rows = speed_rows(speeds)
    found = cells_of(pages.markdown(header, rows))
    row = found["ppo.py --x 1"]
    assert row["steps/s"] == "2,000" and row["stable-baselines3, 1 thread"] == "1,000: 2.0× (1.5–2.5)"
    assert "ppo_numpy.py --x 1, release 0.2" in found
    assert launch_rows(speeds)[1] == ["ppo.py --x 1", "0.2 s", "1,234 MB"]


def test_growth_is_told_for_each_number_of_environments():
    medians = {value: {"script": {"steps_per_second": speed}} for value, speed in {"4": 2000.0, "8": 3000.0}.items()}
    measured = {"options": {"vary": ["num-envs", "4", "8"], "script": "ppo", "arguments": ""}, "medians": medians}
    other = {"options": {"vary": ["num-threads", "1"]}}
    text = result_tables.growth_table({"ppo_num-envs": measured, "ppo_num-threads": other})
    assert text.splitlines()[2:] == ["| ppo.py | 4: 1.0×, 8: 1.5× |"]


def test_results_on_levels_are_kept_and_told_by_step(tmp_path):
    run = make_run(tmp_path / "runs", [10.0])
    rows = ["64,training,1.0,5", "64,training,3.0,5", "64,test,0.5,5", "128,training,4.0,5", "128,test,1.5,5"]
    (run / "levels.csv").write_text("\n".join(["global_step,levels,episodic_return,episodic_length", *rows, ""]))
    append_runs(find_runs([tmp_path / "runs"]), results=tmp_path / "kept")
    table = result_tables.table_by_step(result_tables.rows_of(kept_runs("results", tmp_path / "kept"))["ppo"])
    assert table.splitlines()[2:] == ["| Toy-v0 | 64 | 2.00 | 0.50 |", "| Toy-v0 | 128 | 4.00 | 1.50 |"]


def test_the_pages_have_the_tables_that_the_kept_runs_give():
    text = result_tables.all_tables(result_tables.rows_of(kept_runs("results")), result_tables.comparisons())
    stale = []
    for page in [ROOT / "README.md", *ROOT.glob("docs/**/*.md")]:
        content = page.read_text(encoding="utf-8")
        for name in text:
            begin = f"<!-- results {name} -->\n"
            if begin in content and not content.partition(begin)[2].startswith(text[name] + "<!-- end of results -->"):
                stale.append(f"{page.name}: {name}")
    assert stale == [], "run make results"


def test_velocities_are_read_by_a_map_that_was_fitted_to_other_episodes():
    rng = np.random.default_rng(1)
    episodes = []
    for _ in range(2):
        episodes.append({"states": rng.normal(size=(5, 12)), "velocities": rng.normal(size=(5, 2))})
    assert (memory.mean_explained(episodes, "states") < 0.5).all()  # noise; fitted to its own episode it would be 1


def test_the_page_on_memory_has_the_table_that_the_kept_runs_give():
    content = (ROOT / "docs" / "memory.md").read_text(encoding="utf-8")
    assert f"<!-- memory -->\n{memory.table()}<!-- end of memory -->" in content, "run make results"


def test_the_pages_tables_say_what_was_measured():
    """Numbers of the tables of release 0.2, by way of every step from the kept episodes to the table."""
    rows = result_tables.rows_of(kept_runs("results"))
    bullet = next(row for row in rows["ppo_continuous_action_numpy"] if row.runs[0].env_id == "HopperBulletEnv-v0")
    assert result_tables.spread(report.results(bullet.runs)) == "1827.38 ± 165.20" and len(bullet.runs) == 3
    summary = cells_of(result_tables.summary_table(rows))
    breakout = summary["Breakout-v5, precision=bf16"]
    assert (breakout["ours"], breakout["seeds"], breakout["published"]) == ("411", "1", "211 to 424")
    assert breakout["script"] == "[`ppo_atari_envpool.py`](docs/ppo_atari_envpool.md#results)"
    pusher = summary["Pusher-v4"]
    assert pusher["ours"] == "−51.9 ± 8.6" and pusher["published"] == "−56.8 to −40.4"


def test_the_overview_has_each_script_and_a_table_folds_what_is_published():
    rows = result_tables.rows_of(kept_runs("results"))
    lines = [line for line in result_tables.overview_table(rows).splitlines() if line.startswith("| Hopper-v4")]
    scripts = ["ppo_continuous_action", "ppo_continuous_action_numpy"]
    assert [f"[`{name}.py`]({name}.md#results)" in line for name, line in zip(scripts, lines)] == [True, True]
    narrow, _, folded = result_tables.result_table(rows["ppo_continuous_action"]).partition("<details")
    label = next(row.label for row in rows["ppo_continuous_action"] if row.runs[0].env_id == "Hopper-v4")
    assert cells_of(narrow)[label]["published"] == "2,050 to 2,520"
    assert f"| {label} | 2158.65 ± 302.33 (v2) | 2518.95 ± 850.46 |" in folded
    assert "details" not in result_tables.result_table(rows["ppo_multidiscrete"])
