"""benchmark/throughput.py as a user types it. Absolute speeds are the machine's, so none is asserted."""

import importlib
import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
import throughput as tool
import tyro

ROOT = Path(__file__).parents[1]
THROUGHPUT = ROOT / "benchmark" / "throughput.py"


def throughput(folder, *arguments):
    command = [sys.executable, str(THROUGHPUT), *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)


def test_measures_script_environments_sb3_and_launch(tmp_path):
    pytest.importorskip("stable_baselines3")
    output = tmp_path / "folder" / "ppo.json"
    quick = ["--seconds", "0.5", "--warm-up", "0.1", "--rounds", "1"]
    done = throughput(tmp_path, "--script", "ppo", "--env-id", "Acrobot-v1", *quick, "--output", str(output))
    assert done.returncode == 0, done.stderr
    result = json.loads(output.read_text())
    assert {"torch", "stable_baselines3", "python"} <= result["versions"].keys()
    assert result["hardware"]["cpu"] and result["hardware"]["cores"] > 0
    (one,) = result["rounds"]
    assert one["script"]["arguments"]["env_id"] == "Acrobot-v1"
    for name in ("script", "default threads", "1 thread"):
        for numbers in (one[name], result["medians"][name]):
            assert min(numbers["steps_per_second"], *numbers["ms"].values()) > 0
            assert sum(numbers["ms"].values()) == pytest.approx(numbers["ms_per_update"], rel=0.15)
        assert len(one[name]["laps_ms"]) >= 3
        assert one[name]["timers_ms"] < 0.1 * one[name]["ms_per_update"]
    for name, ratio in one["ratios"].items():
        assert ratio == pytest.approx(one["script"]["steps_per_second"] / one[name]["steps_per_second"])
    assert one["script"]["environment_limit"] > 0
    assert min(one["launch"].values()) > 0
    header, _, *rows = done.stdout.splitlines()
    assert "steps/s" in header and len(rows) == 4 and len({row.count("|") for row in (header, *rows)}) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]  # the runs leave nothing behind


def sb3(script, needs, env_id):
    """Measures a short training of stable-baselines3 with a script's arguments."""
    for package in ("stable_baselines3", *needs):
        pytest.importorskip(package)
    sizes = {"num_envs": 2, "num_steps": 16, "num_minibatches": 2, "update_epochs": 1}
    args = importlib.import_module(script).Args(env_id=env_id, **sizes)
    return tool.measure_sb3(asdict(args), threads=1, warm_up=0.0, seconds=0.1)


@pytest.mark.parametrize(
    ("script", "needs", "env_id"),
    [
        ("ppo_continuous_action", ["mujoco"], "HalfCheetah-v5"),  # no game of EnvPool
        ("ppo_atari", ["ale_py"], "PongNoFrameskip-v4"),
        ("ppo_atari_envpool", ["ale_py", "envpool"], "Pong-v5"),
    ],
)
def test_sb3_trains_in_the_scripts_environment_and_its_steps_are_timed(script, needs, env_id):
    result = sb3(script, needs, env_id)
    assert min(result["steps_per_second"], *result["ms"].values()) > 0
    assert all(lap[0] > 0 for lap in result["laps_ms"])


def test_the_commands_of_the_docstring_are_understood():
    commands = re.findall(r"^    python benchmark/throughput.py (.+)$", tool.__doc__, re.M)
    assert len(commands) == 2
    for command in commands:
        options = tyro.cli(tool.Args, args=shlex.split(command))
        assert (ROOT / "cleanrl" / f"{options.script}.py").is_file()
    assert (options.arguments, options.against) == ("--precision bf16", "--precision fp32")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--script", "pppo"], ["--script pppo", "ppo"]),
        (["--rounds", "0"], ["--rounds"]),
        (["--no-sb3", "--env-id", "CartPool-v1"], ["CartPool-v1", "CartPole-v1"]),
    ],
)
def test_wrong_use_is_one_line(tmp_path, arguments, words):
    done = throughput(tmp_path, *arguments)
    *progress, line = done.stderr.splitlines()
    assert done.returncode == 2 and not done.stdout
    assert all(word in line for word in words) and not any("Traceback" in other for other in progress)


def test_several_processes_train_as_one_job_beside_one_process(tmp_path):
    pytest.importorskip("ale_py")
    tiny = "--num-envs 2 --num-steps 8 --num-minibatches 1 --update-epochs 1"
    quick = ["--seconds", "0.2", "--warm-up", "0", "--rounds", "1", "--no-sb3", "--output", str(tmp_path / "one.json")]
    arguments = ["--processes", "2", f"--arguments={tiny}", f"--against={tiny}", *quick]
    done = throughput(tmp_path, "--script", "ppo_atari_multigpu", *arguments)
    assert done.returncode == 0, done.stderr
    (one,) = json.loads((tmp_path / "one.json").read_text())["rounds"]
    assert one["script"]["arguments"]["num_envs"] == one["against"]["arguments"]["num_envs"] == 2
    cores = os.cpu_count()
    assert one["against"]["arguments"]["num_threads"] == cores
    assert one["script"]["arguments"]["num_threads"] == max(1, cores // 2)  # each process knew of the other
    assert one["ratios"]["against"] == one["script"]["steps_per_second"] / one["against"]["steps_per_second"]
    assert min(one["launch"].values()) > 0
    assert [line.split("|")[1].strip()[:14] for line in done.stdout.splitlines()[2:4]] == [
        "2 processes of",
        "one process of",
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["one.json"]


def test_a_script_of_one_process_gets_no_more(tmp_path):
    done = throughput(tmp_path, "--script", "ppo", "--processes", "2")
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "--processes 2: ppo.py takes only one" in done.stderr


@pytest.mark.parametrize("path", sorted((ROOT / "benchmark/results/throughput").glob("*.json")), ids=lambda p: p.stem)
def test_a_committed_measurement_is_what_the_script_alone_measures(path):
    """`throughput.py --script NAME`, as the README types it, gives the rows that are published."""
    options = json.loads(path.read_text())["options"]
    wanted = {"arguments": "", "against": None, "processes": 1, "sb3": True} | tool.DEFAULTS.get(path.stem, {})
    assert {name: options.get(name, 1) for name in wanted} == wanted and options["output"] is None
