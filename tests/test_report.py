"""benchmark/report.py: tables and curves of run folders, kept runs, comparisons, and the tables of the pages."""

import json
from functools import partial
from xml.etree import ElementTree

import numpy as np
import pytest
import report
import shared

from tests.fake_runs import SCRIPT, make_run


@pytest.fixture
def report_here(tool_here):
    """report.py as typed below tmp_path; returns its stdout and stderr."""
    return partial(tool_here, report)


@pytest.fixture
def compare_here(tool_here, tmp_path):
    """report.py compare as typed below tmp_path; returns the rows of its table, or what it says on stderr."""

    def call(*words, status=0):
        _, stderr = tool_here(report, *words, status=status, kind="Compare")
        return stderr if status else cells_of((tmp_path / "comparison.md").read_text())

    return call


def cells_of(text):
    """The rows of a Markdown table by their first cell, each a dictionary by the header."""
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return {line[0]: dict(zip(lines[0], line)) for line in lines[1:]}


def tables(folder):
    return cells_of((folder / "report" / "tables.md").read_text())


def make_seeds(folder, results, **arguments):
    """A run for each result, whose last 100 episodes have it as their mean; the episodes before don't count."""
    for seed, result in enumerate(results, 1):
        returns = [-1000.0] * 20 + [result - 1, result + 1] * 50
        make_run(folder, returns, seed=seed, **arguments)


# --------------------------------------------------------------------------------------------------------------- Tables


def test_a_table_gives_mean_deviation_interval_and_seeds(report_here, tmp_path):
    results = [10.0, 12.0, 11.0, 14.0, 9.0]
    make_seeds(tmp_path / "runs", results)
    stdout, stderr = report_here("runs")
    row = tables(tmp_path)["Toy-v0"]
    _, low, high = shared.mean_interval(results)
    assert row["return"] == f"{np.mean(results):.2f} ± {np.std(results, ddof=1):.2f}"
    assert row["95% interval"] == f"[{low:.2f}, {high:.2f}]" and row["seeds"] == "5"
    assert "CleanRL" not in stdout and "ours" not in stdout and not stderr  # nothing was published of Toy-v0
    assert "tensorboard --logdir runs" in stdout


def test_few_seeds_have_no_interval_and_one_no_deviation(report_here, tmp_path):
    make_seeds(tmp_path / "runs", [10.0])
    report_here("runs")
    assert tables(tmp_path)["Toy-v0"]["return"] == "10.00" and "95% interval" not in tables(tmp_path)["Toy-v0"]


def test_runs_that_differ_have_rows_of_their_own_which_say_how(report_here, tmp_path):
    make_seeds(tmp_path / "runs", [10.0, 20.0], num_threads=1)
    make_seeds(tmp_path / "more", [30.0], num_threads=8, checkpoints=3)  # the same run as the one with 10, begun later
    make_seeds(tmp_path / "runs", [40.0], learning_rate=1e-3, number=4)
    make_seeds(tmp_path / "runs", [50.0], total_timesteps=900, number=2)
    make_seeds(tmp_path / "runs", [60.0], script=SCRIPT.replace("= 16", "= 32"), number=3)
    _, stderr = report_here("runs", "more")
    found = {row["return"]: name for name, row in tables(tmp_path).items()}
    assert sorted(found) == ["25.00 ± 7.07", "40.00", "50.00", "60.00"] and stderr.count("left out") == 1
    assert "learning_rate=0.001" in found["40.00"] and "900 steps" in found["50.00"]
    assert "version" in found["60.00"]


def test_a_run_that_was_resumed_with_other_arguments_is_an_experiment_of_its_own(tmp_path):
    found = []
    for seed, x in enumerate([2, 1]):
        folder = make_run(tmp_path, [1.0], seed=seed, x=2)
        config = json.loads((folder / "config.json").read_text())
        config["resumed"] = [{"arguments": config["arguments"] | {"x": x, "num_threads": 9}}]
        (folder / "config.json").write_text(json.dumps(config))
        found.append(shared.run_of_folder(folder))
    assert {row.label[6:] for row in report.rows_of(found)["ppo"]} == {", changed_on_resume=True, x=1", ", x=2"}


def test_published_numbers_stand_beside_runs_of_as_many_steps(report_here, tmp_path):
    sizes = {"env_id": "CartPole-v1", "num_envs": 500, "num_steps": 500, "updates": 7813}  # two updates of 250,000
    make_seeds(tmp_path / "runs", [490.0], total_timesteps=500_000, **sizes)
    make_seeds(tmp_path / "runs", [300.0], total_timesteps=250_000, number=2, **sizes)
    report_here("runs")
    found = tables(tmp_path)
    label = "CartPole-v1, num_envs=500, num_steps=500"
    assert found[f"{label}, 500,000 steps"]["CleanRL, Nov 2023"] == "490.04 ± 6.12"
    assert found[f"{label}, 250,000 steps"]["CleanRL, Nov 2023"] == "–"


def test_pictures_are_the_same_again_and_have_no_background(report_here, tmp_path):
    make_seeds(tmp_path / "runs", [10.0, 20.0])
    make_seeds(tmp_path / "runs", [10.0], exp_name="mine", env_id="Other-v0")
    report_here("runs")
    pictures = {path: path.read_bytes() for path in (tmp_path / "report").glob("*.svg")}
    report_here("runs")
    assert {path.name for path in pictures} == {"ppo.svg", "mine.svg"}
    for path, content in pictures.items():
        assert path.read_bytes() == content and b"#ffffff" not in content and b"#000000" not in content
        ElementTree.fromstring(content)


# ----------------------------------------------------------------------------------------------------------- Kept runs


def test_kept_runs_make_the_same_table_as_their_folders(report_here, tmp_path, monkeypatch):
    monkeypatch.setattr(report, "RESULTS", tmp_path / "kept")
    make_seeds(tmp_path / "runs", [10.0, 12.0, 11.0, 14.0, 9.0])
    late = make_run(tmp_path / "runs", [1.0], seed=6, updates=9)
    report_here("runs")
    for added in ("5 runs added", "0 runs added"):
        stdout, stderr = report_here("--keep", *(tmp_path / "runs").iterdir())
        assert added in stdout and f"{late.name}: has not ended" in stderr
    header, row = report.result_cells(report.rows_of(shared.kept_runs("results", tmp_path / "kept"))["ppo"])
    assert header[1] == f"ours, release {shared.release()}"
    assert row[2:] == [tables(tmp_path)["Toy-v0"][name] for name in ("95% interval", "seeds")]


def test_tables_name_the_releases_of_kept_runs(tmp_path):
    make_seeds(tmp_path / "runs", [10.0])
    make_seeds(tmp_path / "runs", [20.0], script=SCRIPT.replace("1000", "2000"), number=2)
    runs = shared.find_runs([tmp_path / "runs"])
    runs[0].release = "0.2"
    header, row = report.result_cells(report.rows_of(runs[:1])["ppo"])
    assert header[1] == "ours, release 0.2" and row[0] == "Toy-v0"
    labels = [row.label for row in report.rows_of(runs)["ppo"]]
    assert sorted(labels) == ["Toy-v0, release 0.2", f"Toy-v0, version {runs[1].version}"]  # and a folder


# ---------------------------------------------------------------------------------------------------------- Comparison


BEFORE = [10.0, 12.0, 11.0, 14.0, 9.0]


@pytest.mark.parametrize(
    "before, after, verdict",
    [
        (BEFORE, [20.0, 21.0, 22.0, 23.0, 24.0], "B is better"),
        (BEFORE, [1.0, 2.0, 3.0, 2.0, 1.0], "B is worse"),
        (BEFORE, [9.0, 12.0, 15.0, 8.0, 13.0], "the runs can't tell"),
        (BEFORE, [10.0, 11.0], "5 seeds of each are needed"),
        ([10.0] * 5, [10.0] * 5, "all runs are alike"),
    ],
)
def test_compare_tells_whether_a_change_helped(compare_here, tmp_path, before, after, verdict):
    make_seeds(tmp_path / "runs", before)
    make_seeds(tmp_path / "runs", after, exp_name="mine")
    row = compare_here("runs/*__ppo__*", "runs/*__mine__*")["Toy-v0"]
    mean, low, high = shared.difference_interval(before, after, paired=False)
    assert row["verdict"] == verdict and row["seeds"] == f"5 and {len(after)}"
    assert row["B − A"] == report.signed(mean) and row["95% interval"] == report.between(low, high)
    ElementTree.parse(tmp_path / "comparison.svg")


def test_runs_are_not_compared_with_themselves(compare_here, tmp_path):
    make_seeds(tmp_path / "runs", BEFORE)
    assert "both have Toy-v0__ppo__1__1" in compare_here("runs", "runs/*", status=2)


def test_runs_of_several_kinds_are_not_compared(compare_here, tmp_path):
    make_seeds(tmp_path / "runs", [10.0])
    late = make_run(tmp_path / "runs", [1.0], seed=2, updates=9, exp_name="mine")
    make_seeds(tmp_path / "runs", [20.0], learning_rate=1e-3, number=2)
    assert f"{late.name}: has not ended" in compare_here("runs", "runs", status=2)
    assert "differ in learning_rate" in compare_here("runs", "runs", status=2)
    row = compare_here("runs/*1__1", "runs/*1__2")["Toy-v0"]
    assert (row["A"], row["B"]) == ("10.00", "20.00")
    assert "learning_rate=0.001" in (tmp_path / "comparison.md").read_text()


def test_the_first_steps_of_longer_runs_can_be_compared(compare_here, tmp_path):
    make_run(tmp_path / "runs", [1.0] * 50 + [9.0] * 50)
    make_run(tmp_path / "runs", [2.0] * 100, exp_name="mine", total_timesteps=500)
    words = ["runs/*__ppo__*", "runs/*__mine__*"]
    assert "A has 1,000 steps and B 500" in compare_here(*words, status=2)
    row = compare_here(*words, "--steps", 400)["Toy-v0"]
    assert (row["A"], row["B"]) == ("1.00", "2.00")
    assert "mine" in compare_here(*words, "--steps", 600, status=2)
    assert "first episode ended at 4" in compare_here(*words, "--steps", 3, status=2)


def test_kept_runs_are_compared_by_name(compare_here):
    rows = compare_here("ppo", "ppo_numpy", "--release", "0.2")
    assert set(rows) == {"Acrobot-v1", "CartPole-v1", "MountainCar-v0"}
    assert (rows["CartPole-v1"]["A"], rows["CartPole-v1"]["B"]) == ("495.70 ± 3.33", "492.06 ± 4.11")


# ------------------------------------------------------------------------------------------------------------ Mistakes


@pytest.mark.parametrize(
    "words, said",
    [
        (["nowhere"], "there is no such folder"),
        (["late"], "holds no run that has ended"),
        (["runs"], "report"),
        (["--keep", "late"], "holds no run that has ended"),
    ],
)
def test_mistakes_end_with_one_line(report_here, tmp_path, words, said):
    make_seeds(tmp_path / "runs", [10.0])
    make_run(tmp_path / "late", [1.0], updates=3)
    (tmp_path / "report").write_text("")  # no folder
    _, stderr = report_here(*words, status=2)
    assert said in stderr.splitlines()[-1] and "Traceback" not in stderr


@pytest.mark.parametrize("words", [["ppo", "nothing"], ["nothing", "ppo"], ["ppo", "ppo_numpy", "--output", "file/x"],
                                   ["ppo", "ppo_multidiscrete"]])  # fmt: skip
def test_mistakes_of_compare_end_with_one_line(compare_here, tmp_path, words):
    (tmp_path / "file").write_text("")
    assert len(compare_here(*words, status=2).splitlines()) == 1


# ------------------------------------------------------------------------------------------------------ What pages show


def test_speed_is_told_by_medians_and_ranges():
    medians = {"script": {"steps_per_second": 2000.0, "ms_per_update": 1.5}, "1 thread": {"steps_per_second": 1000.0}}
    medians |= {"default threads": {"steps_per_second": 500.0}, "ratios": {"1 thread": 2.0, "default threads": 4.0}}
    medians["launch"] = {"first_row_seconds": 0.25, "peak_mb": 1234.0}
    of_rounds = [{"1 thread": x, "default threads": 2 * x} for x in (1.5, 2.0, 2.5)]
    rounds = [{"ratios": ratios, "against_ratios": ratios} for ratios in of_rounds]
    measured = {"arguments": {"env_id": "Toy-v0"}, "medians": medians, "rounds": rounds, "release": shared.release()}
    measured["options"] = {"arguments": "--x 1", "against": None, "processes": 1}
    texts = report.speed_tables({"throughput/ppo": measured, "throughput/ppo_numpy": measured | {"release": "0.2"}})
    found = {name: cells_of(text) for name, text in texts.items()}
    row = found["speed"]["ppo.py --x 1"]
    assert row["steps/s"] == "2,000" and row["stable-baselines3, 1 thread"] == "1,000: 2.0× (1.5–2.5)"
    row = found["short_speed"]["ppo.py --x 1"]
    assert (row["stable-baselines3"], row["faster"]) == ("1,000", "2.0× (1.5–2.5)")  # the faster of its settings
    assert found["launch"]["ppo.py --x 1"]["peak memory"] == "1,234 MB"
    assert "ppo_numpy.py --x 1, release 0.2" in found["speed"]
    measured["options"]["against"] = ""
    medians |= {"against": {"steps_per_second": 1900.0}, "against_ratios": {"1 thread": 1.9}}
    assert "ppo.py | Toy-v0 | 1,900 | 1,000 | 1.9× (1.5–2.5)" in report.speed_tables({"ppo": measured})["short_speed"]


def test_growth_is_told_for_each_value():
    script = {"steps_per_second": 2000.0, "ms_per_update": 1.5}
    medians = {"4": {"script": script, "launch": {"peak_mb": 99.5}}}
    rounds = [{"4": {"script": {"steps_per_second": x}}} for x in (1000.0, 3000.0)]
    text = report.growth_table({"options": {"vary": ["num-envs", "4"]}, "medians": medians, "rounds": rounds})
    row = cells_of(text)["4"]
    assert row["steps/s"] == "2,000 (1,000–3,000)" and row["ms per update"] == "1.5"


def test_results_on_levels_are_kept_and_told_by_step(report_here, tmp_path, monkeypatch):
    monkeypatch.setattr(report, "RESULTS", tmp_path / "kept")
    run = make_run(tmp_path / "runs", [10.0])
    rows = ["64,training,1.0,5", "64,training,3.0,5", "64,test,0.5,5", "128,training,4.0,5", "128,test,1.5,5"]
    (run / "levels.csv").write_text("\n".join(["global_step,levels,episodic_return,episodic_length", *rows, ""]))
    report_here("--keep", run)
    report_here("runs")
    table = report.table_by_step(report.rows_of(shared.kept_runs("results", tmp_path / "kept"))["ppo"])
    assert table.splitlines()[2:] == ["| Toy-v0 | 64 | 2.00 | 0.50 |", "| Toy-v0 | 128 | 4.00 | 1.50 |"]
    assert table in (tmp_path / "report" / "tables.md").read_text()


def test_only_rows_of_release_0_2_name_no_release_in_the_readme():
    for rows in report.rows_of(shared.kept_runs("results")).values():
        for row in [row for row in rows if row.published]:
            assert f"release {row.runs[0].release}" in row.label or row.runs[0].release == "0.2"


def test_the_pages_have_the_tables_that_the_kept_runs_give():
    text = report.all_tables(report.rows_of(shared.kept_runs("results")), report.comparisons())
    stale = []
    for page in [shared.ROOT / "README.md", *shared.ROOT.glob("docs/**/*.md")]:
        content = page.read_text(encoding="utf-8")
        for name in text:
            begin = f"<!-- results {name} -->\n"
            if begin in content and not content.partition(begin)[2].startswith(text[name] + "<!-- end of results -->"):
                stale.append(f"{page.name}: {name}")
    assert stale == [], "run make results"


def test_the_pages_tables_say_what_was_measured():
    """Numbers of the tables of release 0.2, by way of every step from the kept episodes to the table."""
    rows = report.rows_of(shared.kept_runs("results"))
    bullet = next(row for row in rows["ppo_continuous_action_numpy"] if row.runs[0].env_id == "HopperBulletEnv-v0")
    assert report.spread([run.result for run in bullet.runs]) == "1827.38 ± 165.20" and len(bullet.runs) == 3
    breakout = cells_of(report.summary_table(rows))["Breakout-v5, precision=bf16"]
    assert breakout["CleanRL, first table"] == "389.57 ± 29.62" and "410.82" in breakout.values()
    measured = json.loads((shared.RESULTS / "growth.json").read_text())["ppo_num-envs"]
    assert cells_of(report.growth_table(measured))["256"]["steps/s"] == "43,469 (41,749–45,553)"
