"""The measurements of benchmark/gpu.sh, tried out on the CPU: each makes its row, without an error in it."""

import csv

import gpu_graphs
import gpu_kit
import pytest


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
