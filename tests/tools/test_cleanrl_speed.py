"""Speeds of this repository's scripts in turns with CleanRL's, and on Pendulum with other libraries'."""

import json
import os
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import cleanrl_speed
import pytest
import simulator_speed
import torch
from command_line import UserError
from fake_runs import make_run
from gymnasium.envs.classic_control import PendulumEnv
from runs import ROOT, release

THEIRS = """import os, sys
import cleanrl_utils
variables = os.environ["OMP_NUM_THREADS"], os.environ["CUDA_VISIBLE_DEVICES"]
has_all = sys.argv[1:] == {arguments} and variables == ("1", "") and __name__ == "__main__"
print("SPS: 50")
print("SPS:", 100 if has_all else 0)
"""


@pytest.fixture
def args(tmp_path, monkeypatch) -> cleanrl_speed.Args:
    monkeypatch.setattr(cleanrl_speed, "MEASURED", {"ppo": ("CartPole-v1", 1024)})
    arguments = ["--env-id", "CartPole-v1", "--total-timesteps", "1024", "--seed", "1"]
    script = tmp_path / "cleanrl" / "ppo.py"
    script.parent.mkdir()
    script.write_text(THEIRS.format(arguments=arguments))
    (tmp_path / "cleanrl_utils.py").touch()
    python = Path(sys.executable)
    return cleanrl_speed.Args(cleanrl=tmp_path, python=python, only=("ppo",), rounds=2, output=tmp_path / "speed.json")


def test_both_train_in_turns_with_the_same_arguments(args, capsys):
    cleanrl_speed.main(args)
    measured = json.loads(args.output.read_text("utf-8"))
    assert (measured["cleanrl"], measured["release"]) == ("", release())  # CleanRL's commit: its folder is no checkout
    speeds = measured["scripts"]["ppo"]
    assert speeds["cleanrl"] == [100.0, 100.0]  # the last one it said
    assert len(speeds["ours"]) == 2 and min(speeds["ours"]) > 0
    assert "CartPole-v1" in capsys.readouterr().out


def test_a_script_of_theirs_for_atari_finds_its_games(args, monkeypatch):
    pytest.importorskip("ale_py")
    (args.cleanrl / "cleanrl" / "ppo.py").rename(args.cleanrl / "cleanrl" / "ppo_atari.py")
    with (args.cleanrl / "cleanrl" / "ppo_atari.py").open("a") as file:
        file.write("assert 'ale_py' in sys.modules\n")
    monkeypatch.setattr(cleanrl_speed, "MEASURED", {"ppo_atari": ("CartPole-v1", 1024)})
    assert cleanrl_speed.their_speed(args, "ppo_atari") == 100.0


def test_our_speed_is_that_of_the_whole_training(monkeypatch):
    def train(start, script, name, folder):
        run = make_run(Path(folder) / "runs", [1.0])
        (run / "metrics.csv").write_text("global_step,charts/SPS\n64,10\n128,30\n192,20\n")

    monkeypatch.setattr(cleanrl_speed, "train", train)
    assert cleanrl_speed.our_speed("ppo") == 20.0


def test_a_table_has_the_ratios_of_the_rounds(monkeypatch):
    monkeypatch.setattr(cleanrl_speed, "MEASURED", {"ppo": ("CartPole-v1", 1024)})
    speeds = {"cleanrl": [100.0, 200.0, 300.0], "ours": [300.0, 400.0, 450.0]}
    _, row = cleanrl_speed.table({"scripts": {"ppo": speeds}})
    assert row == ["ppo.py", "CartPole-v1", "200", "400", "2.0× (1.5–3.0)"]


def test_a_script_of_theirs_that_breaks_is_one_line(args):
    (args.cleanrl / "cleanrl" / "ppo.py").write_text("raise SystemExit('no such module')")
    with pytest.raises(UserError, match=r"ended with status 1: no such module"):
        cleanrl_speed.main(args)
    with pytest.raises(UserError, match="there is no such file"):
        cleanrl_speed.main(cleanrl_speed.Args(cleanrl=ROOT / "docs", python=Path(sys.executable), only=("ppo",)))
    for wrong in ({"rounds": 0}, {"only": ("ppo", "ppo_procgen")}):
        with pytest.raises(UserError, match="--only takes ppo, and --rounds 1 or more"):
            cleanrl_speed.main(replace(args, **wrong))


# ----------------------------------------------------------------------------------------------------------- Simulators
def test_the_first_two_updates_are_not_counted(monkeypatch):
    """An update takes a second; the first two take a hundred."""
    seconds = [0.0, 100.0, 200.0, 201.0, 202.0, 203.0, 204.0]
    monkeypatch.setattr(simulator_speed, "time", SimpleNamespace(perf_counter=iter(seconds).__next__))
    clock = simulator_speed.Clock(num_envs=10, seconds=3.5)
    was_last = [clock.mark() for _ in seconds]
    assert was_last == [False] * 6 + [True]  # 4 s are more than 3.5
    assert clock.speed() == 240.0  # rollouts of 24 steps


@pytest.mark.parametrize("library", ["ours", "parent", "sb3"])
def test_libraries_collect_24_steps_and_learn_5_epochs_of_4_minibatches(library, monkeypatch):
    """Five updates, the least that are made."""
    if library == "sb3":
        pytest.importorskip("stable_baselines3")
    import ppo_continuous_action_gpu

    calls = Counter()

    def count_steps(owner):
        step = owner.step

        def counted(self, *words, **options):
            calls[owner.__name__] += 1
            return step(self, *words, **options)

        monkeypatch.setattr(owner, "step", counted)

    for owner in (torch.optim.Adam, PendulumEnv, ppo_continuous_action_gpu.VectorEnv):
        count_steps(owner)
    clock = simulator_speed.Clock(num_envs=4, seconds=0.0)
    simulator_speed.MEASURES[library](4, clock)
    simulated = {"VectorEnv": 5 * 24} if library == "ours" else {"PendulumEnv": 5 * 24 * 4}
    assert calls == {"Adam": 5 * 5 * 4} | simulated and len(clock.marks) == 6


def measured_with(speeds, monkeypatch, tmp_path, **options):
    """The status, the file, and the library and number of environments of each measurement, which gave these speeds."""
    measured = []

    def measure(library, num_envs, seconds):
        measured.append((num_envs, library))
        return speeds.pop(0)

    monkeypatch.setattr(simulator_speed, "measure_in_a_process", measure)
    monkeypatch.setattr(simulator_speed.importlib.metadata, "version", lambda package: "2.9")
    args = simulator_speed.Args(only=("ours", "sb3"), output=tmp_path / "speed.json", **options)
    return simulator_speed.main(args), json.loads(args.output.read_text("utf-8")), measured


def test_libraries_are_measured_in_turns_and_a_row_has_median_and_range(monkeypatch, tmp_path, capsys):
    speeds = [1000.0, 100.0, 2000.0, 7000.0, 1400.0, 4000.0, 3000.0, 2700.0, 9000.0]
    status, file, measured = measured_with(speeds, monkeypatch, tmp_path, num_envs=(1024, 4096), rounds=3)
    assert status == 0 and file["release"] == release()
    assert measured == [(1024, "ours"), (1024, "sb3"), (4096, "ours")] * 3  # 4,096 would take sb3 minutes
    assert simulator_speed.table(file) == [
        ["environments", "1,024", "4,096"],
        ["`ppo_continuous_action_gpu.py`", "1", "1"],
        ["stable-baselines3, 2.9", "0.2× (0.1–0.9)", "–"],  # each round by itself
    ]
    assert "0.2× (0.1–0.9)" in capsys.readouterr().out


def test_a_library_that_fails_is_left_out_and_the_status_says_so(monkeypatch, tmp_path):
    speeds = [10.0, None, 10.0, 30.0]
    status, file, _ = measured_with(speeds, monkeypatch, tmp_path, num_envs=(64,), rounds=2)
    assert status == 1 and simulator_speed.table(file)[2] == ["stable-baselines3, 2.9", "3.0× (3.0–3.0)"]
    for wrong in ({"only": ("ours", "jaxrl")}, {"rounds": 0}):
        with pytest.raises(UserError, match="--only takes ours, parent, sb3, rsl_rl, brax, and --rounds 1 or more"):
            simulator_speed.main(simulator_speed.Args(**wrong))


def test_a_measurement_is_a_process(tmp_path, monkeypatch):
    program = tmp_path / "program.py"
    program.write_text(
        "import json, sys\nprint('hello')\nprint(json.dumps(sys.argv[1:]))\nsys.exit('--fail' in sys.argv)\n"
    )
    monkeypatch.setattr(simulator_speed, "__file__", str(program))
    words = simulator_speed.measure_in_a_process("brax", 64, 2.0)
    assert words == ["--measure", "brax", "--num-envs", "64", "--seconds", "2.0"]
    assert simulator_speed.measure_in_a_process("--fail", 64, 2.0) is None


def test_a_process_measures_what_is_typed_on_one_core(monkeypatch, capsys):
    def measure(num_envs, clock):
        return [num_envs, clock.num_envs, clock.seconds, len(os.sched_getaffinity(0)), torch.get_num_threads()]

    cores = os.sched_getaffinity(0)
    monkeypatch.setattr(simulator_speed, "MEASURES", {"ours": measure})
    try:
        assert simulator_speed.main(simulator_speed.Args(measure="ours", num_envs=(8,), seconds=3.0)) == 0
    finally:
        os.sched_setaffinity(0, cores)
    assert json.loads(capsys.readouterr().out) == [8, 8, 3.0, 1, 1]
