"""benchmark/kept.py: the tables of kept runs, and what they hold; files that are written whole; blocks of pages."""

import json
import os
import shutil
import subprocess
import sys

import blocks
import fill
import kept as tables
import numpy as np
import pandas
import pytest
from command_line import UserError
from fake_runs import make_run
from files import write_atomically
from runs import ROOT, release, run_of_folder


def test_a_file_stays_whole_when_writing_fails(tmp_path, monkeypatch):
    path = tmp_path / "new" / "file.txt"
    write_atomically(path, "old")

    def write_half(path, content):
        path.write_text("half")
        raise OSError("the disk is full")

    monkeypatch.setattr(type(path), "write_bytes", write_half)
    with pytest.raises(OSError, match="full"):
        write_atomically(path, "new")
    assert path.read_text() == "old" and [file.name for file in path.parent.iterdir()] == ["file.txt"]


def test_a_command_names_no_folder_of_a_machine():
    typed = "python /home/me/cleanrl/ppo.py --exp-name 'a b' --resume runs/x.py"
    assert tables.portable(typed) == "python cleanrl/ppo.py --exp-name 'a b' --resume runs/x.py"


def columns(run):
    seconds = None if run.seconds is None else list(np.float32(run.seconds))
    return [list(run.steps), list(np.float32(run.returns)), seconds]


def test_kept_runs_come_back_as_they_were(tmp_path):
    returns = np.random.default_rng(1).normal(size=300).astype("float32")
    paces = {1: 0.02, 2: None}  # the second one's episodes don't have their seconds
    folders = [make_run(tmp_path / "runs", returns + seed, seed=seed, pace=pace) for seed, pace in paces.items()]
    folders.append(make_run(tmp_path / "runs", [], exp_name="mine", learning_rate=1.0))
    runs = [run_of_folder(folder) for folder in folders]
    runs[2].end = "stopped"
    runs[2].stopped_at = 500
    assert tables.append_runs(runs[:1], results=tmp_path) == 1
    assert tables.append_runs(runs, results=tmp_path) == 2  # the first one is there
    assert tables.append_runs(runs, results=tmp_path) == 0
    kept = {run.name: run for run in tables.kept_runs("results", tmp_path)}
    assert len(kept) == 3 and tables.kept_runs("ablations", tmp_path) == []
    assert kept[runs[0].name].config["hardware"]["cores"] == 2  # of one machine or of several: minutes ask for it
    for run in runs:
        one = kept[run.name]
        assert columns(one) == columns(run)
        for name in ("script", "exp_name", "env_id", "seed", "version", "arguments", "settings", "end", "stopped_at"):
            assert getattr(one, name) == getattr(run, name)
        assert one.release == release()
    row = tables.read_runs(tmp_path).iloc[0]
    assert row["command"] == "python cleanrl/ppo.py --seed 1" and json.loads(row["hardware"])["cores"] == 2
    assert json.loads(row["versions"]) == runs[0].config["versions"]
    assert kept[runs[2].name].total == 500 and kept[runs[0].name].total == 1000


def test_a_seed_is_kept_once_and_what_is_left_out_is_named(tmp_path, capsys):
    one, copy, other = (run_of_folder(make_run(tmp_path / "runs", [1.0], number=number)) for number in (1, 2, 3))
    one.end = "stopped"
    one.stopped_at = 500
    copy.end = "stopped"
    copy.stopped_at = 500
    other.release = "0.1"
    assert tables.append_runs([one], results=tmp_path) == 1
    assert tables.append_runs([one, copy, other], results=tmp_path) == 1  # of another release
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(":")[0] for line in lines] == [one.name, copy.name]
    assert "stopped at step 500" in lines[0] and one.name in lines[1]
    copy.end = "whole"  # it went on, and is another run now
    assert tables.append_runs([copy], results=tmp_path) == 1
    assert tables.append_runs([copy], "fp32", tmp_path) == 0  # names are there once in all collections
    twins = [run_of_folder(make_run(tmp_path / "runs", [1.0], seed=2, number=number)) for number in (1, 2)]
    assert tables.append_runs(twins, results=tmp_path) == 1  # also if neither was there
    assert tables.append_runs(twins, "fp32", tmp_path) == 1  # another collection may have it too


def test_a_run_whose_row_is_missing_is_kept_again_whole_and_in_order(tmp_path):
    run = run_of_folder(make_run(tmp_path, [3.0, 1.0, 2.0]))
    run.steps = np.array([7.0, 7.0, 7.0])
    tables.append_runs([run], results=tmp_path)
    (tmp_path / "runs.parquet").unlink()  # as if keeping had been killed before its last step
    tables.append_runs([run], results=tmp_path)
    assert list(tables.kept_runs("results", tmp_path)[0].returns) == [3.0, 1.0, 2.0]


def test_ablations_have_a_table_for_each_suite(tmp_path):
    run = run_of_folder(make_run(tmp_path, [1.0, 2.0]))
    run.ablation = {"suite": "core", "name": "core-7"}
    tables.append_runs([run], "ablations", tmp_path)
    assert (tmp_path / "ablations" / "core.parquet").is_file()
    (kept,) = tables.kept_runs("ablations", tmp_path)
    assert kept.ablation == run.ablation and list(kept.returns) == [1.0, 2.0]


def test_two_that_keep_at_once_lose_nothing(tmp_path):
    code = "import sys; from kept import append_runs; from runs import find_runs; from pathlib import Path; "
    code += "append_runs(find_runs([Path(sys.argv[1])]), results=Path(sys.argv[2]))"
    processes = []
    for name in ("a", "b", "c"):
        for seed in range(3):
            make_run(tmp_path / name, [1.0], seed=seed, exp_name=name)
        words = [sys.executable, "-c", code, tmp_path / name, tmp_path / "kept"]
        processes.append(subprocess.Popen(words, env=os.environ | {"PYTHONPATH": str(ROOT / "benchmark")}))
    assert [process.wait(60) for process in processes] == [0, 0, 0]
    assert len(tables.kept_runs("results", tmp_path / "kept")) == 9


def test_a_truncated_table_is_named(tmp_path):
    tables.append_runs([run_of_folder(make_run(tmp_path / "runs", [1.0]))], results=tmp_path)
    path = tmp_path / "episodes" / "ppo.parquet"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(UserError, match=r"ppo\.parquet: is no whole table"):
        tables.kept_runs("results", tmp_path)


def test_measurements_take_each_others_place(tmp_path):
    assert tables.read_json("speed.json", tmp_path) == {}
    for name, measured in (("b", {"x": 1}), ("a", {"x": 2}), ("b", {"x": 3})):
        tables.write_json("speed.json", name, measured, tmp_path)
    assert tables.read_json("speed.json", tmp_path) == {"a": {"x": 2}, "b": {"x": 3}}


# --------------------------------------------------------------------------------------------------------------- Blocks
PAGE = (
    "# A page\n\n<!-- results ppo -->\nold\n<!-- end of results -->\n\n<!-- results b -->\nb\n<!-- end of results -->\n"
)


def test_a_block_of_a_page_is_filled_and_nothing_else(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    assert blocks.fill(page, "results ppo", "| new |\n")
    assert page.read_text() == PAGE.replace("old\n", "| new |\n")
    before = page.stat().st_mtime_ns
    assert blocks.fill(page, "results ppo", "| new |\n") and page.stat().st_mtime_ns == before
    assert not blocks.fill(page, "results pp", "no such block")


def test_a_block_without_an_end_is_left_alone(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("<!-- results ppo -->\n")
    with pytest.raises(ValueError):
        blocks.fill(page, "results ppo", "new")
    assert page.read_text() == "<!-- results ppo -->\n"


def test_a_link_to_what_is_not_there_stays_and_ends_with_status_1(tmp_path):
    """fill.py in a repository that has nothing but a script and a page."""
    for name in ("fill.py", "blocks.py"):
        (tmp_path / "docs" / "build").mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "docs" / "build" / name, tmp_path / "docs" / "build")
    for name in ("benchmark", "cleanrl"):
        (tmp_path / name).symlink_to(ROOT / name)
    page = tmp_path / "README.md"
    there, missing = '[a](cleanrl/ppo.py#L1 "Agent.get_value")', '[b](cleanrl/ppo.py#L1 "core-99")'
    command = [sys.executable, tmp_path / "docs" / "build" / "fill.py"]
    for links, status in ((f"{there} {missing}\n", 1), (f"{there}\n", 0)):
        page.write_text(f"1 lines of PPO, then 2 that run it; {links}")
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == status, done.stderr
        assert ("cleanrl/ppo.py has no core-99" in done.stderr) == bool(status)
        text = page.read_text()
        assert (missing in text) == bool(status)
        assert there not in text and "; [a](cleanrl/ppo.py#L" in text and fill.lengths() in text


def test_every_block_of_lines_options_and_metrics_is_one_that_fill_knows():
    for page in [ROOT / "README.md", *ROOT.glob("docs/*.md")]:
        text = page.read_text(encoding="utf-8")
        ends = [line for line in text.splitlines() if line in {f"<!-- end of {kind} -->" for kind in fill.KINDS}]
        assert len(fill.BLOCK.findall(text)) == len(ends), page.name


# ------------------------------------------------------------------------------------------------------- The kept data
def test_kept_runs_and_their_episodes_are_all_there():
    """Those of release 0.2 with the counts of the 1,293 run folders that the tables were made of."""
    runs = tables.read_runs()
    assert runs["run"].is_unique and not runs["command"].str.contains(" /").any()  # no folder of a machine
    made = runs[runs["release"] == "0.2"]
    assert made["collection"].value_counts().to_dict() == {
        "ablations": 1035, "results": 227, "earlier_rounds": 25, "beside": 5, "fp32": 1,
    }  # fmt: skip
    count = 0
    for table, rows in runs.groupby("table"):
        episodes = pandas.read_parquet(tables.RESULTS / f"{table}.parquet").astype({"run": "category"})
        assert set(episodes["run"].cat.categories) <= set(rows["run"])
        same_run = np.diff(episodes["run"].cat.codes) == 0
        assert (np.diff(episodes["step"])[same_run] >= 0).all() and np.isfinite(episodes["return"]).all()
        count += episodes["run"].isin(made["run"]).sum()
    assert count == 3_936_808


def test_a_checkout_stays_under_40_megabytes():
    names = subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).splitlines()
    assert sum((ROOT / name).stat().st_size for name in names) < 40e6


def test_every_picture_is_shown_and_speeds_are_there():
    text = "".join(page.read_text(encoding="utf-8") for page in [ROOT / "README.md", *ROOT.glob("docs/**/*.md")])
    for path in tables.RESULTS.rglob("*.svg"):
        assert f"results/{path.name})" in text, f"{path.name} is shown by no page"
    assert tables.read_json("speed.json")["throughput/ppo"]["medians"]
