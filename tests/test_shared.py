"""benchmark/shared.py: versions of scripts, runs and their tables, intervals, blocks of pages; and the kept data."""

import json
import subprocess

import numpy as np
import pandas
import pytest
import shared
from scipy.stats import bootstrap, norm, t

from tests.fake_runs import SCRIPT, make_run

# -------------------------------------------------------------------------------------------------------------- Scripts


@pytest.fixture
def version_of(tmp_path):
    """The version of a script with this text."""

    def version(text):
        path = tmp_path / "script.py"
        path.write_text(text)
        return shared.version(path)

    return version


@pytest.mark.parametrize(
    "before, after",
    [
        ('"""A script of which', '"""Another docstring, of which'),
        ("    seed: int = 1\n", "    seed:   int   =  1  # the seed\n\n"),
        ("print_nothing = True", "print_nothing = False"),  # below the ruler
    ],
)
def test_version_is_that_of_the_code_above_the_ruler(version_of, before, after):
    assert before in SCRIPT
    assert version_of(SCRIPT.replace(before, after)) == version_of(SCRIPT)


@pytest.mark.parametrize("before, after", [("2.5e-4", "2.6e-4"), ("num_envs", "num_env"), ("= The run", "= No ruler")])
def test_version_changes_with_the_code(version_of, before, after):
    assert version_of(SCRIPT.replace(before, after)) != version_of(SCRIPT)
    mine = SCRIPT.replace("@dataclass", "# ========= mine\n@dataclass", 1)  # no ruler
    assert version_of(mine.replace(before, after)) != version_of(mine)
    assert len(version_of(SCRIPT)) == 12 and int(version_of(SCRIPT), 16) >= 0


def test_text_that_is_no_python_has_a_version_too(version_of):
    assert version_of("def f(:") != version_of("def g(:")


def test_args_of_a_script_are_read_by_running_it_with_what_lies_beside_it(tmp_path):
    (tmp_path / "beside_it.py").touch()
    (tmp_path / "ppo.py").write_text(f"import beside_it\n{SCRIPT}")
    assert shared.script_args(tmp_path / "ppo.py")().learning_rate == 2.5e-4
    assert shared.script_args(tmp_path / "ppo.py") is shared.script_args(tmp_path / "ppo.py")


@pytest.mark.parametrize("text", ["x = 1\n", "import no_such_package\n", "def f(:\n"])
def test_a_script_without_args_ends_the_tool_with_one_line(tmp_path, capsys, text):
    (tmp_path / "broken.py").write_text(text)
    with pytest.raises(SystemExit) as ended:
        shared.script_args(tmp_path / "broken.py")
    stderr = capsys.readouterr().err
    assert ended.value.code == 2 and stderr.count("\n") == 1 and "broken.py" in stderr


def test_seeds_of_one_experiment_differ_in_machine_and_speed_only():
    one = {"seed": 1, "num_threads": 1, "device": "cpu", "gamma": 0.99, "total_timesteps": 1e6, "checkpoints": 3}
    other = {"seed": 2, "num_threads": 8, "cuda": True, "gamma": 0.99, "total_timesteps": 1_000_000, "checkpoints": 9}
    assert shared.identity(one) == shared.identity(other | {"exact_resume": False})
    assert shared.identity(one) != shared.identity(other | {"gamma": 0.9})
    assert shared.identity(one) != shared.identity(one | {"exact_resume": True})  # fresh episodes after checkpoints


def test_a_command_names_no_folder_of_a_machine():
    typed = "python /home/me/cleanrl/ppo.py --exp-name 'a b' --resume runs/x.py"
    assert shared.portable(typed) == "python cleanrl/ppo.py --exp-name 'a b' --resume runs/x.py"


def test_a_file_stays_whole_when_writing_fails(tmp_path, monkeypatch):
    path = tmp_path / "new" / "file.txt"
    shared.write_atomically(path, "old")

    def write_half(path, content):
        path.write_text("half")
        raise OSError("the disk is full")

    monkeypatch.setattr(type(path), "write_bytes", write_half)
    with pytest.raises(OSError, match="full"):
        shared.write_atomically(path, "new")
    assert path.read_text() == "old" and [file.name for file in path.parent.iterdir()] == ["file.txt"]


# ----------------------------------------------------------------------------------------------------------------- Runs


def test_a_run_folder_is_read(tmp_path):
    run = shared.run_of_folder(make_run(tmp_path, range(200), learning_rate=1e-3, total_timesteps=1e3))
    assert (run.script, run.exp_name, run.env_id, run.seed, run.total) == ("ppo", "ppo", "Toy-v0", 1, 1000)
    assert run.ended and run.settings == {"learning_rate": 1e-3} and run.result == np.mean(range(100, 200))
    assert len(run.steps) == len(run.lengths) == 200 and run.seconds[-1] == 19.2 and run.release is None


def test_a_run_has_ended_with_its_last_whole_update(tmp_path):
    for number, (updates, ended) in enumerate([(15, True), (14, False), (1, False), (0, False)]):
        run = shared.run_of_folder(make_run(tmp_path, [1.0], updates=updates, number=number))
        assert run.ended == ended


def test_half_a_row_is_left_out(tmp_path):
    folder = make_run(tmp_path, [1.0, 2.0, 3.0])
    text = (folder / "episodes.csv").read_text()
    (folder / "episodes.csv").write_text(text + "961,4.")
    assert list(shared.run_of_folder(folder).returns) == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    "file, text",
    [
        ("config.json", "{"),
        ("config.json", '{"arguments": {"exp_name": "ppo"}}'),
        ("episodes.csv", "global_step,episodic_return,episodic_length,seconds\n1,a lot,1,1\n"),
        ("config.json", '{"script": "ppo", "arguments": []}'),
        ("episodes.csv", "global_step,episodic_return,episodic_length,seconds\n1,,1,1\n"),
        ("episodes.csv", None),
        ("ppo.py", None),
    ],
)
def test_what_is_no_run_folder_is_left_out_by_name(tmp_path, capsys, file, text):
    whole, damaged = make_run(tmp_path, [1.0]), make_run(tmp_path, [1.0], seed=2)
    (damaged / file).unlink()
    if text is not None:
        (damaged / file).write_text(text)
    assert [run.name for run in shared.find_runs([tmp_path])] == [whole.name]
    stderr = capsys.readouterr().err
    assert damaged.name in stderr and stderr.count("\n") == 1


def test_links_are_followed_and_a_folder_that_is_not_there_is_named(tmp_path, capsys):
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "one").symlink_to(make_run(tmp_path / "runs", [1.0]))
    assert len(shared.find_runs([tmp_path / "links"])) == 1
    with pytest.raises(SystemExit):
        shared.find_runs([tmp_path / "links", tmp_path / "typo"])
    assert "typo: there is no such folder" in capsys.readouterr().err


def test_of_two_that_are_the_same_run_one_stays(tmp_path, capsys):
    make_run(tmp_path, [1.0], number=1)
    make_run(tmp_path, [2.0], number=2)
    make_run(tmp_path, [3.0], number=3, updates=3)  # begun last, and not ended
    make_run(tmp_path, [4.0], number=4, learning_rate=1.0)
    make_run(tmp_path, [], number=5, learning_rate=2.0)
    assert sorted(run.returns[0] for run in shared.find_runs([tmp_path])) == [2.0, 4.0]
    assert capsys.readouterr().err.count("left out") == 3


def test_a_report_runs_no_script_of_a_run_folder(tmp_path):
    text = SCRIPT.replace("from dataclasses", "import no_such_package\nraise SystemExit(3)\nfrom dataclasses")
    run = shared.run_of_folder(make_run(tmp_path, [1.0], script=text, num_envs=8, total_timesteps=1920))
    assert run.settings == {"num_envs": 8}  # Args are read all the same


def columns(run):
    return [list(x) for x in (run.steps, run.returns, run.lengths, run.seconds)]


def test_kept_runs_come_back_as_they_were(tmp_path):
    returns = np.random.default_rng(1).normal(size=300).astype("float32")
    folders = [make_run(tmp_path / "runs", returns + seed, seed=seed) for seed in (1, 2)]
    folders.append(make_run(tmp_path / "runs", [], exp_name="mine", learning_rate=1.0))
    runs = [shared.run_of_folder(folder) for folder in folders]
    runs[2].stopped_at = 500
    assert shared.append_runs(runs[:1], results=tmp_path) == 1
    assert shared.append_runs(runs, results=tmp_path) == 2  # the first one is there
    assert shared.append_runs(runs, results=tmp_path) == 0
    kept = {run.name: run for run in shared.kept_runs("results", tmp_path)}
    assert len(kept) == 3 and shared.kept_runs("ablations", tmp_path) == []
    for run in runs:
        one = kept[run.name]
        assert columns(one) == [list(np.float32(x)) if i == 1 else list(x) for i, x in enumerate(columns(run))]
        for name in ("script", "exp_name", "env_id", "seed", "version", "arguments", "settings", "stopped_at"):
            assert getattr(one, name) == getattr(run, name)
        assert one.release == shared.release()
    row = shared.read_runs(tmp_path).iloc[0]
    assert row["command"] == "python cleanrl/ppo.py --seed 1" and json.loads(row["hardware"])["cores"] == 2
    assert kept[runs[2].name].total == 500 and kept[runs[0].name].total == 1000


def test_a_run_whose_row_is_missing_is_kept_again_whole_and_in_order(tmp_path):
    run = shared.run_of_folder(make_run(tmp_path, [3.0, 1.0, 2.0]))
    run.steps = np.array([7.0, 7.0, 7.0])
    shared.append_runs([run], results=tmp_path)
    (tmp_path / "runs.parquet").unlink()  # as if keeping had been killed before its last step
    shared.append_runs([run], results=tmp_path)
    assert list(shared.kept_runs("results", tmp_path)[0].returns) == [3.0, 1.0, 2.0]


def test_ablations_have_a_table_for_each_suite(tmp_path):
    run = shared.run_of_folder(make_run(tmp_path, [1.0, 2.0]))
    run.ablation = {"suite": "core", "name": "core-7"}
    shared.append_runs([run], "ablations", tmp_path)
    assert (tmp_path / "ablations" / "core.parquet").is_file()
    (kept,) = shared.kept_runs("ablations", tmp_path)
    assert kept.ablation == run.ablation and list(kept.seconds) == [0.0, 19.0]  # whole seconds


def test_measurements_take_each_others_place(tmp_path):
    assert shared.read_json("speed.json", tmp_path) == {}
    for name, measured in (("b", {"x": 1}), ("a", {"x": 2}), ("b", {"x": 3})):
        shared.write_json("speed.json", name, measured, tmp_path)
    assert shared.read_json("speed.json", tmp_path) == {"a": {"x": 2}, "b": {"x": 3}}


# -------------------------------------------------------------------------------------------------------------- Numbers


def test_curve_is_the_mean_of_the_last_hundred():
    rng = np.random.default_rng(2)
    steps, returns = np.sort(rng.integers(0, 1000, 300)), rng.normal(size=300)
    grid = np.linspace(0, 1000, 21)
    found = shared.curve(steps, returns, grid)
    for position, value in zip(grid, found):
        ended = returns[steps <= position][-100:]
        assert np.isclose(value, ended.mean()) if len(ended) else np.isnan(value)


def test_interval_is_the_expanded_percentile_bootstrap():
    values = np.random.default_rng(3).normal(5, 2, size=8)
    outside = 2 * norm.cdf(-t.ppf(0.975, 7) * np.sqrt(8 / 7))
    how = {"method": "percentile", "n_resamples": 9999, "vectorized": True, "rng": np.random.default_rng(1)}
    expected = bootstrap((values,), np.mean, confidence_level=1 - outside, **how).confidence_interval
    assert np.allclose(shared.mean_interval(values), (values.mean(), *expected))
    assert shared.mean_interval(values) == shared.mean_interval(values)


def test_intervals_of_normal_samples_hold_the_truth_in_about_95_of_100_cases():
    rng = np.random.default_rng(4)
    hits = {"mean": 0, "difference": 0}
    for _ in range(200):
        a, b = rng.normal(1, 1, size=10), rng.normal(3, 2, size=15)
        _, low, high = shared.mean_interval(a)
        hits["mean"] += low < 1 < high
        _, low, high = shared.difference_interval(a, b, paired=False)
        hits["difference"] += low < 2 < high
    assert all(0.9 < count / 200 < 0.99 for count in hits.values())


def test_difference_of_pairs_is_the_interval_of_their_differences():
    rng = np.random.default_rng(5)
    a = rng.normal(0, 100, size=6)
    b = a + rng.normal(1, 0.1, size=6)
    assert shared.difference_interval(a, b, paired=True) == shared.mean_interval(b - a)
    mean, low, high = shared.difference_interval(a, b, paired=False)
    assert np.isclose(mean, (b - a).mean()) and high - low > 50  # without the pairs nothing can be told
    assert shared.difference_interval(a, a + 1000, paired=False)[1] > 0
    assert shared.difference_interval([1] * 5, [3] * 5, paired=False) == (2.0, 2.0, 2.0)


def test_few_seeds_have_no_interval():
    assert shared.mean_interval([1, 2, 3, 4]) == (2.5, -np.inf, np.inf)
    assert shared.difference_interval([1] * 9, [2] * 4, paired=False) == (1.0, -np.inf, np.inf)


# ---------------------------------------------------------------------------------------------------------------- Pages

PAGE = (
    "# A page\n\n<!-- results ppo -->\nold\n<!-- end of results -->\n\n<!-- results b -->\nb\n<!-- end of results -->\n"
)


def test_a_block_of_a_page_is_filled_and_nothing_else(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    assert shared.fill(page, "results ppo", "| new |\n")
    assert page.read_text() == PAGE.replace("old\n", "| new |\n")
    before = page.stat().st_mtime_ns
    assert shared.fill(page, "results ppo", "| new |\n") and page.stat().st_mtime_ns == before
    assert not shared.fill(page, "results pp", "no such block")


def test_a_block_without_an_end_is_left_alone(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("<!-- results ppo -->\n")
    with pytest.raises(ValueError):
        shared.fill(page, "results ppo", "new")
    assert page.read_text() == "<!-- results ppo -->\n"


# ------------------------------------------------------------------------------------------------------- The kept data


def test_kept_runs_and_their_episodes_are_all_there():
    """Those of release 0.2 with the counts of the 1,293 run folders that the tables were made of."""
    runs = shared.read_runs()
    assert runs["run"].is_unique and not runs["command"].str.contains(" /").any()  # no folder of a machine
    made = runs[runs["release"] == "0.2"]
    assert made["collection"].value_counts().to_dict() == {
        "ablations": 1035, "results": 227, "earlier_rounds": 25, "beside": 5, "fp32": 1,
    }  # fmt: skip
    count = 0
    for table, rows in runs.groupby("table"):
        episodes = pandas.read_parquet(shared.RESULTS / f"{table}.parquet").astype({"run": "category"})
        assert set(episodes["run"].cat.categories) <= set(rows["run"])
        same_run = np.diff(episodes["run"].cat.codes) == 0
        assert (np.diff(episodes["step"])[same_run] >= 0).all() and np.isfinite(episodes["return"]).all()
        count += episodes["run"].isin(made["run"]).sum()
    assert count == 3_936_808


def test_a_checkout_stays_under_40_megabytes():
    names = subprocess.check_output(["git", "ls-files"], cwd=shared.ROOT, text=True).splitlines()
    assert sum((shared.ROOT / name).stat().st_size for name in names) < 40e6


def test_results_hold_nothing_that_nobody_reads():
    readers = [shared.ROOT / "README.md", *shared.ROOT.glob("docs/**/*.md"), *shared.ROOT.glob("tests/*.py")]
    text = "".join(page.read_text(encoding="utf-8") for page in readers)
    for path in shared.RESULTS.rglob("*"):
        if path.is_file() and path.suffix not in (".parquet", ".json"):
            assert f"results/{path.name})" in text or f'"{path.name}"' in text, f"{path.name} is shown by no page"
    assert json.loads((shared.RESULTS / "speed.json").read_text())["throughput/ppo"]["medians"]
