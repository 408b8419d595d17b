"""benchmark/throughput.py as a user types it. Absolute speeds are the machine's, so none is asserted."""

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from statistics import median

import psutil
import pytest
import throughput as tool

THROUGHPUT = Path(tool.__file__)
QUICK = ["--script", "ppo_numpy", "--seconds", "0.3", "--warm-up", "0", "--rounds", "1"]


def throughput(folder, *words):
    """Types the tool in the folder, which is the temporary folder too."""
    command = [sys.executable, str(THROUGHPUT), *words]
    environment = os.environ | {"TMPDIR": str(folder)}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)


def test_measures_a_script_beside_stable_baselines3_and_leaves_nothing_behind(tmp_path):
    pytest.importorskip("stable_baselines3")
    output = tmp_path / "folder" / "mine.json"
    words = [*QUICK, "--env-id", "Acrobot-v1", "--arguments=--num-steps 32", "--output", str(output)]
    done = throughput(tmp_path, *words)
    assert done.returncode == 0, done.stderr
    result = json.loads(output.read_text())
    assert {"stable-baselines3", "torch", "numpy", "ppo_numpy"} <= result["versions"].keys()
    assert result["hardware"]["cores"] > 0
    assert (result["arguments"]["env_id"], result["arguments"]["num_steps"]) == ("Acrobot-v1", 32)
    (one,) = result["rounds"]
    for name in ("script", "default threads", "1 thread"):
        assert one[name]["steps_per_second"] > 0
        assert one[name]["updates"] >= tool.LEAST_UPDATES
        assert result["medians"][name] == one[name]
    for name, ratio in one["ratios"].items():
        assert ratio == one["script"]["steps_per_second"] / one[name]["steps_per_second"]
    assert one["launch"]["first_row_seconds"] > 0
    assert 10 < one["launch"]["peak_mb"] < 1000
    assert done.stdout.count("stable-baselines3") == 2
    left = {path.name for path in tmp_path.iterdir() if not path.name.startswith("torch")}  # torch has a cache there
    assert left == {"folder"}


def test_speed_is_the_median_over_the_updates_after_the_warm_up():
    args = tool.Args(warm_up=2.0, seconds=4.0)
    times = [1.0, 3.0, 4.0, 6.0, 6.5]  # of the ends of updates; the first is warm-up
    assert not tool.is_enough(times, args)
    assert tool.is_enough([*times, 7.0], args)
    assert not tool.is_enough([3.0, 9.0, 10.0], args)  # too few
    found = tool.speed([3.0, 4.0, 6.0, 6.5], 100)
    assert found["steps_per_second"] == 100 / 1.0  # of 1, 2 and 0.5 seconds
    assert (found["ms_per_update"], found["updates"]) == (1000.0, 3)


def test_a_ratio_is_the_median_of_the_rounds_ratios_with_their_range():
    rounds = []
    for ours, theirs in ((19_540.0, 7_515.0), (20_000.0, 10_000.0), (9_000.0, 9_079.0)):
        sides = {
            name: {"steps_per_second": x, "ms_per_update": 1.0} for name, x in (("script", ours), ("1 thread", theirs))
        }
        launch = {"first_row_seconds": 1.0, "peak_mb": 1.0}
        rounds.append(sides | {"launch": launch, "ratios": {"default threads": 1.0, "1 thread": ours / theirs}})
        rounds[-1]["default threads"] = sides["1 thread"]
    args = tool.filled_in(tool.Args())
    rows = tool.speed_rows(args, {"arguments": {}, "rounds": rounds, "medians": tool.medians(rounds)})
    assert rows[0][5] == "ppo.py is faster by"
    assert rows[3] == ["stable-baselines3, 1 thread", "9,079", "1.0", "", "", "2.00× (0.99 to 2.60)"]
    assert median([19_540 / 7_515, 2.0, 9_000 / 9_079]) == 2.0


@pytest.mark.parametrize(
    ("needs", "arguments", "workers"),
    [
        ("mujoco", {"env_id": "HalfCheetah-v4"}, False),
        ("ale_py", {"env_id": "Pong-v5", "env_threads": 2}, True),  # as EnvPool names it
    ],
)
def test_stable_baselines3_trains_in_the_scripts_environment(needs, arguments, workers):
    for package in ("stable_baselines3", needs):
        pytest.importorskip(package)
    sizes = {"num_envs": 2, "num_steps": 16, "num_minibatches": 2, "update_epochs": 1, "total_timesteps": 10_000}
    others = {"gamma": 0.9, "gae_lambda": 0.9, "ent_coef": 0.0, "vf_coef": 0.5, "max_grad_norm": 0.5, "seed": 1}
    others |= {"learning_rate": 1e-3, "anneal_lr": True, "norm_adv": True, "clip_coef": 0.2, "clip_vloss": True}
    args = tool.Args(warm_up=0.0, seconds=0.1)
    result = tool.in_child(tool.measure_sb3, sizes | others | arguments, 1, workers, args)
    assert result["steps_per_second"] > 0
    assert result["threads"] == 1


@pytest.mark.parametrize(
    ("arguments", "several"),
    [
        ({}, False),
        ({"vectorization": "sync"}, False),
        ({"vectorization": "async"}, True),
        ({"env_threads": None}, True),
    ],
)
def test_beside_parallel_environments_those_of_stable_baselines3_are_parallel_too(arguments, several):
    keys = [key for key, _, _ in tool.sides_of(tool.filled_in(tool.Args()), arguments)]
    workers = ["default threads, SubprocVecEnv", "1 thread, SubprocVecEnv"]
    assert keys == ["script", "default threads", "1 thread", *(workers if several else [])]


def test_growth_with_an_argument(tmp_path):
    words = [*QUICK, "--arguments=--num-steps 16", "--vary", "num_envs", "2", "8", "--output", "grown.json"]
    done = throughput(tmp_path, *words)
    assert done.returncode == 0, done.stderr
    measured = json.loads((tmp_path / "grown.json").read_text())
    (one,) = measured["rounds"]
    assert list(one) == ["2", "8"]
    assert all(point.keys() == {"script", "launch"} for point in one.values())
    assert one["2"]["script"]["ms_per_update"] < one["8"]["script"]["ms_per_update"]
    assert "num-envs" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["grown.json"]


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ({"script": "ppo"}, (1, True, None)),
        ({"script": "ppo_atari_multigpu"}, (2, False, "")),
        ({"script": "ppo_atari_multigpu", "processes": 1}, (1, False, "")),
        ({"script": "ppo_atari_multigpu", "arguments": "--device cpu"}, (1, True, None)),
    ],
)
def test_what_is_typed_counts_more_than_the_scripts_default(typed, expected):
    args = tool.filled_in(replace(tool.Args(), **typed))
    assert (args.processes, args.sb3, args.against) == expected


def test_time_to_a_return(tmp_path):
    output = tmp_path / "times" / "one.json"
    words = ["--arguments=--num-envs 8", "--target", "40", "--num-seeds", "2", "--output", str(output)]
    done = throughput(tmp_path, "--script", "ppo_numpy", *words)
    assert done.returncode == 0, done.stderr
    measured = json.loads(output.read_text())
    assert [run["seed"] for run in measured["runs"]] == [1, 2]
    for run in measured["runs"]:
        assert run["mean_return"] >= 40
        assert run["env_id"] == "CartPole-v1"
    assert measured["median_seconds"] == median(run["seconds"] for run in measured["runs"])
    assert [path.name for path in tmp_path.iterdir()] == ["times"]


@pytest.mark.parametrize("words", [["--no-sb3", "--seconds", "60", "--rounds", "1"], ["--target", "10000"]])
def test_sigterm_leaves_nothing_behind(tmp_path, words):
    command = [sys.executable, str(THROUGHPUT), "--script", "ppo_numpy", "--output", "x.json", *words]
    with subprocess.Popen(command, cwd=tmp_path, env=os.environ | {"TMPDIR": str(tmp_path)}) as process:
        deadline = time.monotonic() + 60
        while not list(tmp_path.glob("*/runs/*/metrics.csv")):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        time.sleep(0.5)  # past what is launched to try the arguments out
        children = psutil.Process(process.pid).children(recursive=True)
        process.terminate()
        assert process.wait(60) == 143
    assert children
    assert not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in children)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--script", "pppo"], "--script pppo: unknown; cleanrl/ has "),
        (["--rounds", "0"], "--rounds and --num-seeds must be 1 or more"),
        (["--arguments='"], "--arguments ': has a quote without its second one"),
        (["--output", "/dev/null/x.json"], "--output /dev/null/x.json: can't be written"),
        (["--vary", "num-envs", "4"], "--vary num-envs 4: needs an argument and two or more values"),
        (["--vary", "num-envs", "4", "4"], "--vary num-envs 4 4: needs an argument and two or more values"),
        (["--vary", "processes", "1", "2"], "--processes 2: ppo_numpy.py takes only one"),
        (["--processes", "2"], "--processes 2: ppo_numpy.py takes only one"),
        (["--num-seeds", "0"], "--num-seeds must be 1 or more"),
        (["--target", "nan"], "--target a number"),
        (["--target", "475", "--arguments=--total-timesteps 2048"], "not --target 475.0; choose another"),
        (["--target", "501", "--limit", "1"], "not --target 501.0; choose another"),
        (["--seconds", "9", "--arguments=--total-timesteps 2048"], "the whole training is over sooner"),
    ],
)
def test_wrong_use_is_one_line(tmp_path, words, said):
    done = throughput(tmp_path, "--script", "ppo_numpy", "--no-sb3", *words, "--rounds", "1", *words)
    lines = [line for line in done.stderr.splitlines() if not line.startswith("round ")]
    assert done.returncode == 2, done
    assert len(lines) == 1 and said in lines[0] and not done.stdout
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("words", [["--arguments=--gamma 2"], ["--against=--gamma 2"], ["--vary", "gamma", "0.9", "2"]])
def test_wrong_arguments_of_the_script_are_noticed_before_round_1(tmp_path, words):
    done = throughput(tmp_path, "--script", "ppo_numpy", "--no-sb3", *words)
    assert done.returncode == 2
    assert "round" not in done.stderr and "--gamma 2" in done.stderr


def test_several_processes_train_as_one_job(tmp_path):
    pytest.importorskip("ale_py")
    tiny = "--num-envs 2 --num-steps 8 --num-minibatches 1 --update-epochs 1 --env-id PongNoFrameskip-v4"
    words = ["--script", "ppo_atari_multigpu", "--processes", "2", f"--arguments={tiny}", "--no-sb3", *QUICK[2:]]
    done = throughput(tmp_path, *words, "--output", "one.json")
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "one.json").read_text())["medians"]["script"]["steps_per_second"] > 0
    assert "2 × ppo_atari_multigpu.py" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["one.json"]
