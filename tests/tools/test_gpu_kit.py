"""The measurements of benchmark/gpu.sh, tried out on the CPU: each makes its row, without an error in it."""

import csv
import os
import subprocess
import sys

import gpu_graphs
import gpu_kit
import pytest
from command_line import UserError
from runs import ROOT


@pytest.mark.parametrize("profile, train", [(False, None), (True, None), (False, gpu_graphs.train)])
def test_a_row_is_measured(tmp_path, monkeypatch, profile, train):
    monkeypatch.chdir(tmp_path)  # measure_all leaves it
    row = gpu_kit.Row("a row", "ppo_atari_envpool", {"num_envs": 8}, profile)
    args = gpu_kit.Args(tmp_path, device="cpu", small=True, window=0.1, limit=60)
    gpu_kit.measure_all([row], args, train)
    with open(tmp_path / ("profile.csv" if profile else "speeds.csv"), encoding="utf-8", newline="") as file:
        (line,) = csv.DictReader(file)
    assert not line["error"]
    assert float(line["update" if profile else "steps_per_second"]) > 0


def test_what_was_tried_out_is_measured_all_the_same(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    measured = []
    monkeypatch.setattr(gpu_kit, "measure", lambda row, args, limit, train: measured.append(args.small))
    for small in (True, True, False, False):
        gpu_kit.measure_all([gpu_kit.Row("a row", "ppo", {})], gpu_kit.Args(tmp_path, device="cpu", small=small))
    assert measured == [True, False]
    assert capsys.readouterr().out.count("already begun") == 2
    assert gpu_kit.Args().folder != gpu_kit.Args(small=True).folder


def test_without_a_gpu_no_row_is_begun(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(gpu_kit.torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match="no GPU"):
        gpu_kit.measure_all(gpu_kit.plain_rows(), gpu_kit.Args(tmp_path / "gpu"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "words, settings, said",
    [
        (["resume"], {}, "for how many seconds"),
        (["resume", "soon"], {}, "for how many seconds"),
        ([], {}, "no GPU"),
        ([], {"SMALL": "1", "FOLDER": "real"}, "real is of DEVICE=cuda SMALL=,"),
    ],
)
def test_a_mistake_is_one_line_and_measures_nothing(tmp_path, words, settings, said):
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "made_with.txt").write_text("DEVICE=cuda SMALL=\n")
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "PYTHON": sys.executable} | settings
    command = ["bash", str(ROOT / "benchmark" / "gpu.sh"), *words]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 2 and said in done.stderr and done.stderr.count("\n") == 1 and not done.stdout
    assert [path.name for path in tmp_path.rglob("*")] == ["real", "made_with.txt"]
