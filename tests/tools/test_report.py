"""benchmark/report.py: tables and curves of run folders, filters, and comparisons."""

import json
import statistics
from functools import partial
from xml.etree import ElementTree

import intervals
import numpy as np
import pages
import pytest
import report
from command_line import UserError
from fake_runs import SCRIPT, cells_of, make_run, make_seeds, new_run
from runs import release


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


def tables(folder):
    """The rows of the report by their variant."""
    return cells_of((folder / "report" / "tables.md").read_text(), column=1)


# --------------------------------------------------------------------------------------------------------------- Report
def test_a_table_gives_mean_deviation_interval_iqm_and_seeds(report_here, tmp_path):
    results = [10.0, 12.0, 11.0, 14.0, 9.0]
    make_seeds(tmp_path / "runs", results)
    stdout, stderr = report_here("runs")
    row = tables(tmp_path)["ppo"]
    _, low, high = intervals.mean_interval(results)
    assert row["return"] == f"{np.mean(results):.2f} ± {np.std(results, ddof=1):.2f}"
    assert row["95% interval"] == f"[{low:.2f}, {high:.2f}]" and row["seeds"] == "5 seeds" and row["IQM"] == "11.00"
    assert "difference" not in row and not stderr  # there is only one variant
    assert "tensorboard --logdir runs" in stdout


def test_few_seeds_have_no_interval_and_one_no_deviation(report_here, tmp_path):
    make_seeds(tmp_path / "runs", [10.0])
    report_here("runs")
    row = tables(tmp_path)["ppo"]
    assert row["return"] == "10.00" and not {"95% interval", "IQM"} & row.keys()


def test_a_copy_with_a_change_is_put_over_the_original(report_here, tmp_path):
    """The seeds differ by far more than the change does, which only pairs can tell."""
    before = [0.0, 100.0, 200.0, 300.0, 400.0]
    after = [x + 1 + 0.1 * i for i, x in enumerate(before)]
    make_seeds(tmp_path / "runs", before)
    make_seeds(tmp_path / "runs", after, exp_name="ppo_mine")
    make_seeds(tmp_path / "runs", after[:3], exp_name="ppo_other")
    report_here("runs")
    row = tables(tmp_path)["ppo_mine"]
    difference, low, high = intervals.difference_interval(before, after, paired=True)
    assert (row["difference"], row["its 95% interval"]) == (pages.signed(difference), pages.between(low, high))
    assert low > 0 and tables(tmp_path)["ppo_other"]["its 95% interval"] == "–"
    picture = (tmp_path / "report" / "curves.svg").read_text()
    assert picture.count("Toy-v0") == 1 and "ppo_mine: 5 seeds" in picture and "ppo: 5 seeds" in picture


def test_runs_that_differ_are_variants_which_say_how(report_here, tmp_path):
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


def test_a_default_that_is_typed_makes_no_other_variant(report_here, compare_here, tmp_path):
    """Args may have the int 1 as the default of a float; typed, it is 1.0. Lists are compared as they are."""
    script = SCRIPT.replace("seed: int", "vf_coef: float = 1\n    sizes: list = [1]\n    seed: int")
    for seed, vf_coef, size in ((1, 1, 1), (2, 1.0, 1), (3, 1.0, 1.0), (4, 1, 1), (5, 1.0, 1)):
        make_run(tmp_path / "runs", [seed], script=script, seed=seed, vf_coef=vf_coef, sizes=[size])
        make_run(tmp_path / "b", [seed], script=script, seed=seed, vf_coef=1.0, sizes=[1], exp_name="mine")
    report_here("runs", "b")
    found = tables(tmp_path)
    assert {name: row["seeds"] for name, row in found.items()} == {"mine": "5 seeds", "ppo": "5 seeds"}
    assert found["ppo"]["its 95% interval"] == "[0.00, 0.00]"  # of pairs: the seeds' results differ
    assert "vf_coef" not in compare_here("runs", "b", "--only", "seed=1,2,4,5")


def test_runs_that_ended_early_or_diverged_count_and_are_named(report_here, tmp_path):
    for seed, (end, updates) in enumerate([("whole", 15), ("break", 9), ("diverged", 5), ("stopped", 7)], 1):
        make_run(tmp_path / "runs", [1.0], end=end, updates=updates, seed=seed)
    report_here("runs")
    assert tables(tmp_path)["ppo"]["seeds"] == "3 seeds, 1 diverged, 1 ended early"


def test_checkpoints_are_named_where_episodes_begin_anew_after_each(report_here, tmp_path):
    for number, checkpoints in enumerate((5, 10), 1):
        make_run(tmp_path / "runs", [float(number)], exact_resume=True, checkpoints=checkpoints, number=number)
    report_here("runs")
    found = {row["return"]: name for name, row in tables(tmp_path).items()}
    assert "checkpoints=5" in found["1.00"] and "checkpoints=10" in found["2.00"]


def test_filters_leave_what_has_the_values(report_here, tmp_path):
    for rate in (1e-3, 3e-4):
        for env_id in ("A-v0", "B-v0"):
            make_seeds(tmp_path / "runs", [10.0, 20.0], learning_rate=rate, env_id=env_id, exp_name=f"ppo_{rate}")
    report_here("runs", "--only", "env-id=A-v0", "learning_rate=1e-3,7", "seed=2")
    (row,) = tables(tmp_path).values()
    assert (row["environment"], row["variant"], row["return"]) == ("A-v0", "ppo_0.001", "20.00")
    assert report.is_value([0], "[0]") and not report.is_value([0], "0")
    assert report.is_value(True, "true") and not report.is_value(True, "1") and report.is_value(None, "none")
    assert "--only gama=1: write an argument" in report_here("runs", "--only", "gama=1", status=2)[1]
    assert "no run is left" in report_here("runs", "--only", "seed=9", status=2)[1]
    make_run(tmp_path / "runs", [1.0], flag=True)  # only this script has the argument
    assert [run.exp_name for run in report.selected(report.find_runs([tmp_path / "runs"]), ["flag=true"])] == ["ppo"]


def test_a_picture_is_the_same_again_and_has_no_background(report_here, tmp_path):
    make_seeds(tmp_path / "runs", [10.0, 20.0])
    make_seeds(tmp_path / "runs", [10.0], exp_name="mine", env_id="Other-v0")
    report_here("runs")
    content = (tmp_path / "report" / "curves.svg").read_bytes()
    report_here("runs")
    assert (tmp_path / "report" / "curves.svg").read_bytes() == content
    assert b"#ffffff" not in content and b"#000000" not in content
    ElementTree.fromstring(content)


def test_the_band_of_published_curves_is_one_standard_deviation_over_seeds(tmp_path):
    for seed, result in ((1, 10.0), (2, 20.0), (3, 60.0)):
        make_run(tmp_path, [result] * 10, seed=seed)
    _, panel = pages.pictures().subplots()
    report.draw_curves(panel, report.find_runs([tmp_path]), "tab:blue", deviation=True)
    (band,) = panel.collections
    heights = band.get_paths()[0].vertices[:, 1]
    deviation = statistics.stdev([10, 20, 60])
    assert (heights.min(), heights.max()) == pytest.approx((30 - deviation, 30 + deviation))


def test_the_band_of_five_seeds_is_their_interval_and_fewer_have_a_line_each(tmp_path):
    results = [10.0, 12.0, 11.0, 14.0, 9.0]
    for seed, result in enumerate(results, 1):
        make_run(tmp_path, [result] * 10, seed=seed)
    runs = report.find_runs([tmp_path])
    _, (five, two) = pages.pictures().subplots(2)
    report.draw_curves(five, runs, "tab:blue")
    (band,) = five.collections
    heights = band.get_paths()[0].vertices[:, 1]
    assert (heights.min(), heights.max()) == pytest.approx(intervals.mean_interval(results)[1:])
    assert len(five.lines) == 1
    runs[1].steps = runs[1].steps + 200  # its first episode ends at step 204
    report.draw_curves(two, runs[:2], "tab:blue")
    assert not two.collections and [line.get_ydata()[-1] for line in two.lines] == [10.0, 12.0, 11.0]
    steps, means = two.lines[-1].get_data()
    assert steps[np.isfinite(means)][0] == 210  # before, the mean would be that of one seed


def test_a_variant_has_one_look_in_all_panels_and_each_a_different_one(tmp_path, monkeypatch):
    """Ten variants, of which the second environment and those after it have two; there are nine colors."""
    looks = {}
    figures = []

    def note(panel, runs, color, label, line, x):
        looks.setdefault(label, set()).add((color, line))
        panel.plot([], label=label)

    monkeypatch.setattr(report, "draw_curves", note)
    monkeypatch.setattr(report, "save_picture", lambda figure, path: figures.append(figure))
    every = {f"ppo_{i}": [new_run(f"{i}", [1.0])] for i in range(10)}
    two = {name: every[name] for name in ("ppo_9", "ppo_4")}
    report.draw_variants({"A-v0": every, "B-v0": two, "C-v0": two, "D-v0": two}, tmp_path / "curves.svg")
    titles = [axis.get_title() for axis in figures[0].axes if axis.get_visible()]
    assert titles == ["A-v0", "B-v0", "C-v0", "D-v0"]
    assert {len(look) for look in looks.values()} == {1} and len({look.pop() for look in looks.values()}) == 10


def test_runs_are_kept_once(report_here, tmp_path, monkeypatch):
    monkeypatch.setattr(report, "RESULTS", tmp_path / "kept")
    make_seeds(tmp_path / "runs", [10.0, 12.0, 11.0, 14.0, 9.0])
    late = make_run(tmp_path / "runs", [1.0], seed=6, updates=9, end=None)
    for added in ("5 runs added", "0 runs added"):
        stdout, stderr = report_here("--keep", *(tmp_path / "runs").iterdir())
        assert added in stdout and f"{late.name}: has no end.json" in stderr
    assert {run.release for run in report.kept_runs("results", tmp_path / "kept")} == {release()}


def test_curves_are_drawn_against_minutes(report_here, tmp_path):
    """The same returns at the same steps, twice as slowly in one variant."""
    for name, pace in (("fast", 0.1), ("slow", 0.2)):
        make_run(tmp_path / "runs", [1.0, 2.0, 3.0], exp_name=name, pace=pace)
    plt = pages.pictures()
    ends = {}
    for run in report.find_runs([tmp_path / "runs"]):
        _, panel = plt.subplots()
        report.draw_curves(panel, [run], "tab:blue", x="minutes")
        minutes, means = panel.lines[-1].get_data()
        ends[run.exp_name] = minutes[-1]
        assert means[-1] == 2.0 and panel.get_xlabel() == "minutes of training"
        plt.close()
    assert ends == {"fast": pytest.approx(960 * 0.1 / 60), "slow": pytest.approx(960 * 0.2 / 60)}
    _, panel = plt.subplots()
    report.draw_curves(panel, report.find_runs([tmp_path / "runs"]), "tab:blue", x="minutes")
    assert panel.lines[-1].get_xdata()[-1] == pytest.approx(ends["slow"])  # until the last of them has ended
    plt.close()
    _, stderr = report_here("runs", "--x", "minutes")
    assert "minutes of training" in (tmp_path / "report" / "curves.svg").read_text() and not stderr
    config = next((tmp_path / "runs").glob("*slow*")) / "config.json"
    without_torch = json.loads(config.read_text())
    del without_torch["hardware"]["gpus"]
    config.write_text(json.dumps(without_torch))
    assert not report_here("runs", "--x", "minutes")[1]
    config.write_text(config.read_text().replace('"cores": 2', '"cores": 64'))
    assert "2 kinds of machines" in report_here("runs", "--x", "minutes")[1]
    make_run(tmp_path / "runs", [1.0], exp_name="old", pace=None)
    assert "has no seconds" in report_here("runs", "--x", "minutes", status=2)[1]
    assert "environment steps" in (report_here("runs"), (tmp_path / "report" / "curves.svg").read_text())[1]


# ----------------------------------------------------------------------------------------------------------- Comparison
BEFORE = [10.0, 12.0, 11.0, 14.0, 9.0]


@pytest.mark.parametrize(
    "before, after, verdict",
    [
        (BEFORE, [20.0, 21.0, 22.0, 23.0, 24.0], "B is better"),
        (BEFORE, [1.0, 2.0, 3.0, 2.0, 1.0], "B is worse"),
        (BEFORE, [9.0, 12.0, 15.0, 8.0, 13.0], "inconclusive"),
        (BEFORE, [10.0, 11.0], "5 seeds of each are needed"),
        ([10.0] * 5, [10.0] * 5, "all runs are alike"),
    ],
)
def test_compare_tells_whether_a_change_helped(compare_here, tmp_path, before, after, verdict):
    make_seeds(tmp_path / "runs", before)
    make_seeds(tmp_path / "runs", after, exp_name="mine")
    row = compare_here("runs/*__ppo__*", "runs/*__mine__*")["Toy-v0"]
    mean, low, high = intervals.difference_interval(before, after, paired=len(after) == 5)
    assert row["verdict"] == verdict and row["seeds"] == ("5 pairs" if len(after) == 5 else "5 and 2")
    assert row["B − A"] == report.signed(mean) and row["95% interval"] == report.between(low, high)
    ElementTree.parse(tmp_path / "comparison.svg")


def test_other_seeds_are_no_pairs_though_they_are_as_many(report_here, compare_here, tmp_path):
    """The results of equal ranks are 1 apart, which would be a clear difference of pairs."""
    before = [0.0, 100.0, 200.0, 300.0, 400.0]
    make_seeds(tmp_path / "runs", before)
    for seed, result in zip(range(6, 11), before):
        make_run(tmp_path / "runs", [result + 1 + seed / 100] * 100, seed=seed, exp_name="mine")
    row = compare_here("runs/*__ppo__*", "runs/*__mine__*")["Toy-v0"]
    assert (row["seeds"], row["verdict"]) == ("5 and 5", "inconclusive")
    report_here("runs")
    low, _, high = tables(tmp_path)["ppo"]["its 95% interval"].strip("[]").partition(", ")
    assert low.startswith("−") and float(high) > 100
    twice = [new_run("a", [1.0]), new_run("b", [2.0])]  # which of them belongs to which, nobody knows
    assert not report.are_pairs(twice, twice) and report.are_pairs(twice[:1], twice[1:])


def test_a_difference_that_all_pairs_have_is_no_equality():
    assert report.answer(1.0, 1.0) == "B is better" and report.answer(-1.0, -1.0) == "B is worse"


def test_the_picture_of_a_comparison_has_the_difference_below_the_curves(tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(report, "save_picture", lambda figure, path: figures.append(figure))
    both = {}
    for env_id, change in (("A-v0", 0.0), ("B-v0", 0.0), ("C-v0", 5.0)):
        a = [new_run(f"{env_id} a {seed}", [10.0 * seed], seed=seed) for seed in range(1, 6)]
        b = [new_run(f"{env_id} b {seed}", [10.0 * seed + seed + change], seed=seed) for seed in range(1, 6)]
        both[env_id] = [a, b]
    report.draw_comparison(both, tmp_path / "comparison.svg", paired=True, deviation=True)
    shown = [axis for axis in figures[0].axes if axis.axison]
    assert [axis.get_title() for axis in shown] == ["A-v0", "B-v0", "", "", "C-v0", ""]  # two and two, then the third
    above, below = shown[-2:]
    ends = {line.get_color(): line.get_ydata()[-1] for line in above.lines}
    assert ends == {"tab:orange": 30.0, "tab:blue": 38.0}
    zero, dot, interval = below.lines
    difference, low, high = intervals.mean_interval([6.0, 7.0, 8.0, 9.0, 10.0])
    assert list(zero.get_xdata()) == [0, 0] and dot.get_xdata()[0] == difference
    assert list(interval.get_xdata()) == [low, high]


def test_runs_are_not_compared_with_themselves(compare_here, tmp_path):
    make_seeds(tmp_path / "runs", BEFORE)
    assert "both have Toy-v0__ppo__1__1" in compare_here("runs", "runs/*", status=2)


def test_runs_of_several_kinds_are_not_compared(compare_here, tmp_path):
    make_seeds(tmp_path / "runs", [10.0])
    late = make_run(tmp_path / "runs", [1.0], seed=2, updates=9, exp_name="mine", end="stopped")
    make_seeds(tmp_path / "runs", [20.0], learning_rate=1e-3, number=2)
    make_seeds(tmp_path / "other", [30.0], number=3)
    said = compare_here("runs", "other", status=2)
    assert f"{late.name}: was stopped" in said and "runs: its runs in Toy-v0 differ in learning_rate" in said
    row = compare_here("runs/*1__1", "runs/*1__2")["Toy-v0"]
    assert (row["A"], row["B"]) == ("10.00", "20.00")
    assert "B: ppo, learning_rate=0.001" in (tmp_path / "comparison.svg").read_text()


def test_a_run_whose_arguments_changed_is_no_seed_of_those_that_had_them_at_once(tmp_path):
    for seed in (1, 2):
        folder = make_run(tmp_path, [1.0], seed=seed, learning_rate=2.5e-4 if seed == 1 else 1e-3)
    arguments = json.loads((folder / "config.json").read_text())["arguments"]
    (folder / "resumed_after_9.json").write_text(json.dumps(arguments | {"learning_rate": 2.5e-4}))
    runs = report.find_runs([tmp_path])
    with pytest.raises(UserError, match="differ in changed_on_resume"):
        report.by_environment("runs", runs)
    whole, changed = report.variants_of(runs)["Toy-v0"]
    assert whole == "ppo" and "changed_on_resume=learning_rate 0.001 to 0.00025" in changed
    assert list(report.variants_of(runs[1:])["Toy-v0"]) == [changed]  # also without the others


def test_all_that_differs_is_named(compare_here, tmp_path):
    make_seeds(tmp_path / "runs", BEFORE)
    changed = SCRIPT.replace("= 16", "= 32")
    make_seeds(tmp_path / "runs", BEFORE, exp_name="mine", script=changed, learning_rate=1e-3, num_threads=8, flag=True)
    found = compare_here("runs/*__ppo__*", "runs/*__mine__*")
    named = {name for name, row in found.items() if "verdict" not in row}
    assert named >= {"learning_rate", "num_threads", "flag", "version of the script"}
    assert (found["learning_rate"]["A"], found["learning_rate"]["B"]) == ("0.00025", "0.001")
    assert (found["flag"]["A"], found["flag"]["B"]) == ("–", "True")


def test_of_what_is_only_recorded_nothing_differs_but_versions_of_packages_that_both_have(tmp_path):
    make_run(tmp_path / "a", [1.0], capture_video=False, track=False)
    make_run(tmp_path / "b", [1.0], capture_video=True, track=True, checkpoints=3, exp_name="mine", seed=2)
    (a,) = report.find_runs([tmp_path / "a"])
    (b,) = report.find_runs([tmp_path / "b"])
    a.config["versions"] = {"torch": "2.13", "numpy": "2.0", "moviepy": "1"}
    b.config["versions"] = {"numpy": "2.1", "moviepy": "2"}  # a script without torch
    assert report.differences([a], [b]) == {"numpy": ("2.0", "2.1")}


def test_environments_of_one_side_are_named(tool_here, tmp_path):
    for folder, env_ids in (("a", ("A-v0", "B-v0")), ("b", ("B-v0", "C-v0"))):
        for env_id in env_ids:
            make_seeds(tmp_path / folder, BEFORE, env_id=env_id, number=folder)
    _, stderr = tool_here(report, "a", "b", "--output", "lr-0.001", kind="Compare")
    assert stderr.count("\n") == 1 and "A-v0 (only A), C-v0 (only B)" in stderr
    assert "B-v0" in cells_of((tmp_path / "lr-0.001.md").read_text()) and (tmp_path / "lr-0.001.svg").is_file()


def test_a_release_is_of_kept_runs(compare_here, tmp_path):
    sizes = {"env_id": "CartPole-v1", "total_timesteps": 500_000, "updates": 31_250}
    make_seeds(tmp_path / "a", BEFORE, **sizes)  # one side may be kept
    make_seeds(tmp_path / "b", BEFORE, number=2, **sizes)
    assert "--release 0.2: is of kept runs" in compare_here("a", "b", "--release", "0.2", status=2)
    words = ["--release", "0.2", "--only", "env-id=CartPole-v1"]
    assert compare_here("a", "ppo", *words)["CartPole-v1"]["seeds"].startswith("5 ")


def test_what_differs_in_some_environments_names_them(compare_here, tmp_path):
    for env_id, rate in (("A-v0", 2.5e-4), ("B-v0", 1e-3)):
        make_seeds(tmp_path / "a", BEFORE, env_id=env_id)
        make_seeds(tmp_path / "b", BEFORE, env_id=env_id, number=2, learning_rate=rate, num_threads=8)
    found = compare_here("a", "b")
    assert "learning_rate (B-v0)" in found and "num_threads" in found
    picture = (tmp_path / "comparison.svg").read_text()
    assert picture.count("B: ppo, learning_rate=0.001") == 1  # in the panel of B-v0 alone


def test_runs_that_diverged_are_named_beside_the_verdict(compare_here, tmp_path):
    make_seeds(tmp_path / "runs", BEFORE)
    for seed in range(1, 6):
        ends = {"end": "diverged", "updates": 8} if seed < 3 else {}
        make_run(tmp_path / "runs", [20.0] * 100, seed=seed, exp_name="mine", **ends)
    row = compare_here("runs/*__ppo__*", "runs/*__mine__*")["Toy-v0"]
    assert row["seeds"] == "5 pairs, of B 2 diverged"


def test_points_of_a_grid_are_compared_by_filters(compare_here, tmp_path):
    for rate, results in ((1e-3, [10.0]), (3e-4, [20.0])):
        make_seeds(tmp_path / "runs", results, learning_rate=rate, exp_name=f"ppo_learning-rate={rate}")
    row = compare_here("runs/*learning-rate=0.001_*", "runs/*learning-rate=0.0003_*")["Toy-v0"]
    assert (row["A"], row["B"]) == ("10.00", "20.00")


def test_runs_that_are_not_equally_long_are_not_compared(compare_here, tmp_path):
    make_run(tmp_path / "runs", [1.0])
    make_run(tmp_path / "runs", [2.0], exp_name="mine", total_timesteps=500)
    assert "A has 1,000 steps and B 500" in compare_here("runs/*__ppo__*", "runs/*__mine__*", status=2)


def test_kept_runs_are_compared_by_name(compare_here):
    rows = compare_here("ppo", "ppo_numpy", "--release", "0.2")
    assert rows.keys() >= {"Acrobot-v1", "CartPole-v1", "MountainCar-v0"}
    assert (rows["CartPole-v1"]["A"], rows["CartPole-v1"]["B"]) == ("495.70 ± 3.33", "492.06 ± 4.11")


# ------------------------------------------------------------------------------------------------------------ Mistakes


@pytest.mark.parametrize(
    "words, said",
    [
        (["nowhere"], "there is no such folder"),
        (["late"], "holds no run that has ended"),
        ([], "name run folders"),
        (["--keep", "late"], "holds no run that has ended"),
        (["runs", "--keep", "runs"], "--keep: takes its own run folders"),
        (["--keep", "runs", "--only", "seed=1"], "--keep: takes its own run folders"),
    ],
)
def test_mistakes_end_with_one_line(report_here, tmp_path, monkeypatch, words, said):
    monkeypatch.setattr(report, "RESULTS", tmp_path / "kept")  # whatever a mistake may do
    make_seeds(tmp_path / "runs", [10.0])
    make_run(tmp_path / "late", [1.0], updates=3, end=None)
    _, stderr = report_here(*words, status=2)
    assert said in stderr.splitlines()[-1] and "Traceback" not in stderr


@pytest.mark.parametrize("words", [["ppo", "nothing"], ["nothing", "ppo"], ["ppo", "ppo_multidiscrete"]])
def test_mistakes_of_compare_end_with_one_line(compare_here, words):
    assert len(compare_here(*words, status=2).splitlines()) == 1
