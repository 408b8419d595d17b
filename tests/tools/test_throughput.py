"""benchmark/throughput.py as a user types it. Absolute speeds are the machine's, so none is asserted."""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest
import throughput as tool
from command_line import with_values

THROUGHPUT = Path(tool.__file__)
ROOT = THROUGHPUT.parents[1]
QUICK = ["--script", "ppo_numpy", "--seconds", "0.3", "--warm-up", "0", "--rounds", "1"]


def throughput(folder, *words):
    """Types the tool in the folder, which is the temporary folder too."""
    command = [sys.executable, str(THROUGHPUT), *words]
    environment = os.environ | {"TMPDIR": str(folder)}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)


@pytest.mark.seldom
def test_measures_a_script_beside_stable_baselines3_and_leaves_nothing_behind(tmp_path):
    pytest.importorskip("stable_baselines3")
    output = tmp_path / "folder" / "mine.json"
    words = [*QUICK, "--arguments", "--env-id Acrobot-v1 --num-steps 32", "--output", str(output)]
    done = throughput(tmp_path, *words)
    assert done.returncode == 0, done.stderr
    result = json.loads(output.read_text())["throughput/ppo_numpy"]
    assert {"stable-baselines3", "torch", "numpy", "ppo_numpy"} <= result["versions"].keys()
    assert result["hardware"]["cores"] > 0 and result["hardware"]["cpu"] == tool.cpu_name()
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
    before = (ROOT / "benchmark" / "results" / "speed.json").read_text()
    assert "Acrobot-v1" not in before  # without --keep, nothing is published
    left = {path.name for path in tmp_path.iterdir() if not path.name.startswith("torch")}  # torch has a cache there
    assert left == {"folder"}


def test_speed_is_the_median_over_the_updates_after_the_warm_up():
    args = tool.Args(warm_up=2.0, seconds=4.0)
    times = [1.0, 3.0, 4.0, 6.0, 6.5]  # of the ends of updates; the first is warm-up
    assert not tool.is_enough(times, args)
    assert tool.is_enough([*times, 7.0], args)
    assert not tool.is_enough([3.0, 9.0, 10.0], args)  # too few
    found = tool.speed([*times, 7.0], 100, args)
    assert (found["steps_per_second"], found["updates"]) == (100 / 0.75, 4)
    assert (found["slowest"], found["fastest"]) == (100 / 1.5, 100 / 0.5)  # of 1 and 2, 0.5, and 0.5 seconds


@pytest.mark.seldom
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


def test_stable_baselines3_gets_the_scripts_sizes_and_coefficients(monkeypatch):
    sb3 = pytest.importorskip("stable_baselines3")

    class Noted:
        """Trains nothing: an update ends after each rollout of half a second, and the first 2.5 are its warm-up."""

        def __init__(self, policy, envs, **settings):
            made.append(settings | {"policy": policy, "envs": envs})

        def set_logger(self, logger):
            pass

        def learn(self, total_timesteps, callback):
            assert total_timesteps == 10_000
            now = [0.0]
            monkeypatch.setattr(tool.time, "perf_counter", lambda: now[0])
            callback._on_training_start()
            callback._on_rollout_start()
            while callback._on_step():
                now[0] += 0.5
                callback._on_rollout_start()

    made = []
    monkeypatch.setattr(sb3, "PPO", Noted)
    numbers = {"gamma": 0.9, "gae_lambda": 0.8, "ent_coef": 0.1, "vf_coef": 0.7, "max_grad_norm": 0.4, "seed": 5}
    others = {"num_envs": 2, "num_steps": 16, "num_minibatches": 4, "update_epochs": 3, "learning_rate": 1e-3}
    others |= {"anneal_lr": True, "norm_adv": True, "clip_coef": 0.3, "clip_vloss": True, "env_id": "CartPole-v1"}
    arguments = numbers | others | {"total_timesteps": 1e4}
    found = tool.measure_sb3(arguments, None, False, tool.Args(warm_up=2.5, seconds=2.0))
    other = {"anneal_lr": False, "norm_adv": False, "clip_vloss": False, "device": "auto"}
    tool.measure_sb3(arguments | other, 1, False, tool.Args())
    for settings, remaining in zip(made, ([1e-3, 5e-4], [1e-3, 1e-3])):
        sizes = {name: settings[name] for name in ("n_steps", "batch_size", "n_epochs", "clip_range", "policy")}
        wanted = {"n_steps": 16, "batch_size": 8, "n_epochs": 3, "clip_range": 0.3, "policy": "MlpPolicy"}
        assert sizes == wanted and settings["device"] == "cpu"
        assert [settings["learning_rate"](1.0), settings["learning_rate"](0.5)] == remaining
        assert [settings[name] for name in numbers] == list(numbers.values())
    assert [settings["clip_range_vf"] for settings in made] == [0.3, None]
    assert [settings["normalize_advantage"] for settings in made] == [True, False]
    assert (found["steps_per_second"], found["updates"]) == (2 * 16 / 0.5, 4)
    monkeypatch.setattr(pytest.importorskip("sb3_contrib"), "RecurrentPPO", Noted)
    tool.measure_sb3(arguments | {"hidden_size": 32}, 1, False, tool.Args(script=("ppo_lstm",)))
    one_lstm = {"lstm_hidden_size": 32, "shared_lstm": True, "enable_critic_lstm": False, "net_arch": []}
    assert (made[-1]["policy"], made[-1]["policy_kwargs"]) == ("MlpLstmPolicy", one_lstm)
    pytest.importorskip("ale_py")
    for script, policy, frames in (("ppo_atari", "CnnPolicy", 4), ("ppo_atari_lstm", "CnnLstmPolicy", 1)):
        tool.measure_sb3(arguments | {"env_id": "PongNoFrameskip-v4"}, 1, False, tool.Args(script=(script,)))
        assert (made[-1]["policy"], made[-1]["envs"].observation_space.shape) == (policy, (84, 84, frames))
    assert made[-1]["policy_kwargs"] == one_lstm | {"lstm_hidden_size": 128}


def test_stable_baselines3_has_the_scripts_environments(monkeypatch):
    env_util = pytest.importorskip("stable_baselines3.common.env_util")
    pytest.importorskip("ale_py")
    arguments = {"env_id": "Pendulum-v1", "num_envs": 2, "seed": 1, "gamma": 0.9, "env_kwargs": '{"g": 5.0}'}
    envs = tool.sb3_envs(arguments, False, 4)
    assert envs.gamma == 0.9 and [env.unwrapped.g for env in envs.venv.envs] == [5.0, 5.0]
    assert not hasattr(tool.sb3_envs({"env_id": "CartPole-v1", "num_envs": 3, "seed": 1}, False, 4), "gamma")
    made = []

    def make_atari_env(env_id, **options):
        made.append((env_id, options["n_envs"], options["vec_env_cls"].__name__))
        raise KeyboardInterrupt  # before it plays

    monkeypatch.setattr(env_util, "make_atari_env", make_atari_env)
    for env_id, threads, workers in (("Pong-v5", {"env_threads": 2}, True), ("PongNoFrameskip-v4", {}, False)):
        with pytest.raises(KeyboardInterrupt):
            tool.sb3_envs({"env_id": env_id, "num_envs": 2, "seed": 1} | threads, workers, 4)
    assert made == [("PongNoFrameskip-v4", 2, "SubprocVecEnv"), ("PongNoFrameskip-v4", 2, "DummyVecEnv")]


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
    sides = {"default threads": (None, False), "1 thread": (1, False)}
    if several:
        sides |= {"default threads, SubprocVecEnv": (None, True), "1 thread, SubprocVecEnv": (1, True)}
    assert tool.sb3_sides(arguments) == sides


# ------------------------------------------------------------------------------------------- What is made of the speeds
def test_a_script_is_timed_by_its_metrics(tmp_path, monkeypatch):
    """One that sleeps before its first row and before the others, and ends: 64 steps in 0.5, 1, 1 and 2 s."""
    rows = ["global_step,charts/SPS", "64,128.0", f"128,{128 / 1.5}", f"192,{192 / 2.5}", f"256,{256 / 4.5}"]
    lines = [
        "import pathlib, sys, time",
        "folder = pathlib.Path('runs/one')",
        "folder.mkdir(parents=True)",
        "(folder / 'config.json').write_text('{\"typed\": \"' + ' '.join(sys.argv[1:]) + '\"}')",
        f"for rows in {[rows[:2], rows[2:]]}:",
        "    time.sleep(0.5)",
        "    with (folder / 'metrics.csv').open('a') as file:",
        "        print(*rows, sep='\\n', file=file)",
    ]
    (tmp_path / "cleanrl").mkdir()
    (tmp_path / "cleanrl" / "quick.py").write_text("\n".join(lines))
    monkeypatch.setattr(tool, "ROOT", tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    args = tool.Args(warm_up=0.0, seconds=4.0)
    begin = time.perf_counter()
    found = tool.measure_script(args, "quick", "--x 'two words'", 1)
    seconds = time.perf_counter() - begin
    assert found["speed"] == {"steps_per_second": 64, "slowest": 32, "fastest": 64, "updates": 3}
    assert found["config"] == {"typed": "--x two words"}
    assert 0.1 < found["launch"]["first_row_seconds"] < seconds - 0.5 and 1 < found["launch"]["peak_mb"] < 100
    assert [path.name for path in tmp_path.iterdir()] == ["cleanrl"]


TASK = {"env_id": "Toy-v0", "num_envs": 8, "num_steps": 4, "num_minibatches": 2, "update_epochs": 1}


@pytest.fixture
def measured(monkeypatch):
    """What a round measures, without measuring: a script makes 600 steps/s and its other side 200, and both 6 more in
    each later round; ppo_numpy makes twice as many. stable-baselines3 makes 300, and 100 on one thread. Returns a list
    of what was asked for, and each script's task, to be changed."""
    asked = []
    tasks = {script: dict(TASK) for script in ("ppo", "ppo_numpy", "ppo_atari_multigpu", "ppo_atari_envpool")}
    tasks["ppo_atari_envpool"]["env_threads"] = None

    def measure_script(args, script, arguments, processes):
        asked.append((script, arguments, processes))
        steps = {"": 600, "--other": 200}[arguments] + len(asked) // 4 * 6
        config = {"arguments": tasks[script], "versions": {"numpy": "2"}, "hardware": {"cores": 2}}
        launch = {"first_row_seconds": float(len(asked)), "peak_mb": 50.0}
        speed = {"steps_per_second": 2 * steps if script == "ppo_numpy" else steps}
        return {"speed": speed, "launch": launch, "config": config}

    def in_child(function, arguments, threads, workers, args):
        asked.append((function.__name__, arguments["env_id"], threads, workers))
        return {"steps_per_second": 300 if threads is None else 100}

    monkeypatch.setattr(tool, "measure_script", measure_script)
    monkeypatch.setattr(tool, "in_child", in_child)
    return asked, tasks


def test_a_round_measures_each_side_and_compares_their_speeds(measured):
    asked, _ = measured
    script = "ppo_atari_multigpu"
    result = tool.measure_round(tool.Args(script=(script,), against="--other", processes=2))[script]
    sb3 = [("measure_sb3", "Toy-v0", None, False), ("measure_sb3", "Toy-v0", 1, False)]
    assert asked == [(script, "", 2), (script, "--other", 1), *sb3]  # the other side is one process
    assert result["ratios"] == {"against": 3, "default threads": 2, "1 thread": 6}
    assert result["against_ratios"] == {"default threads": pytest.approx(2 / 3), "1 thread": 2}
    assert result["launch"]["first_row_seconds"] == 1 and result["config"]["arguments"] == TASK
    alone = tool.measure_round(tool.Args(script=("ppo",), sb3=False))["ppo"]
    assert alone.keys() == {"script", "launch", "config"}


def test_several_scripts_of_a_task_share_one_stable_baselines3(measured):
    asked, tasks = measured
    result = tool.measure_round(tool.Args(script=("ppo", "ppo_numpy")))
    assert [one[0] for one in asked] == ["ppo", "ppo_numpy", "measure_sb3", "measure_sb3"]
    assert result["ppo"]["ratios"] == {"default threads": 2, "1 thread": 6}
    assert result["ppo_numpy"]["ratios"] == {"default threads": 4, "1 thread": 12}
    assert result["ppo"]["1 thread"] == result["ppo_numpy"]["1 thread"]
    tasks["ppo"]["env_id"] = "PongNoFrameskip-v4"
    tasks["ppo_atari_envpool"]["env_id"] = "Pong-v5"  # the same game; its environments are parallel
    asked.clear()
    result = tool.measure_round(tool.Args(script=("ppo", "ppo_atari_envpool")))
    assert [one[3] for one in asked[2:]] == [False, False, True, True]
    assert "1 thread, SubprocVecEnv" in result["ppo_atari_envpool"] and "1 thread, SubprocVecEnv" not in result["ppo"]


@pytest.mark.parametrize("name", TASK)
def test_scripts_of_other_sizes_are_measured_apart(measured, name):
    _, tasks = measured
    tasks["ppo_numpy"][name] = "Other-v0" if name == "env_id" else 16
    with pytest.raises(tool.UserError, match="measure it apart"):
        tool.measure_round(tool.Args(script=("ppo", "ppo_numpy")))
    tool.measure_round(tool.Args(script=("ppo", "ppo_numpy"), sb3=False))


def test_the_median_round_is_written_and_kept_where_it_is_to_be(measured, tool_here, tmp_path, monkeypatch):
    kept = []
    monkeypatch.setattr(tool, "write_json", lambda *words: kept.append(words))
    words = ["--script", "ppo", "--against=--other", "--rounds", "3", "--output", "folder/one.json"]
    stdout, stderr = tool_here(tool, *words)
    result = json.loads((tmp_path / "folder" / "one.json").read_text())["throughput/ppo"]
    assert len(result["rounds"]) == 3 and stderr.count("round ") == 3 and not kept
    speeds = [one["script"]["steps_per_second"] for one in result["rounds"]]
    assert speeds == [600, 606, 612] and result["medians"]["script"]["steps_per_second"] == 606
    assert result["medians"]["ratios"]["1 thread"] == 6.06 and result["options"]["output"] is None
    assert result["versions"].keys() == {"numpy", "ppo", "stable-baselines3", "torch"}
    assert result["versions"]["ppo"] == tool.version(ROOT / "cleanrl" / "ppo.py")
    assert result["hardware"] == {"cores": 2, "cpu": tool.cpu_name()} and result["arguments"] == TASK
    assert "ppo.py --other" in stdout and "6.1× (6.0–6.1)" in stdout
    stdout, _ = tool_here(tool, "--script", "ppo", "ppo_numpy", "--no-sb3", "--rounds", "1", "--keep")
    assert [words[:2] for words in kept] == [("speed.json", f"throughput/{name}") for name in ("ppo", "ppo_numpy")]
    assert [words[2]["versions"].keys() for words in kept] == [{"numpy", "ppo"}, {"numpy", "ppo_numpy"}]
    assert stdout.count("ppo_numpy.py") == 2


def test_what_was_measured_is_written_before_it_is_printed(measured, tool_here, tmp_path, monkeypatch):
    def print_table(rows):
        raise ModuleNotFoundError(name="rich")

    monkeypatch.setattr(tool, "print_table", print_table)
    _, stderr = tool_here(tool, "--rounds", "1", "--output", "one.json", status=2)
    assert "rich is not installed" in stderr
    assert json.loads((tmp_path / "one.json").read_text()).keys() == {"throughput/ppo"}


def test_a_profile_needs_no_stable_baselines3(tool_here, tmp_path, monkeypatch):
    config = {"arguments": TASK, "versions": {}, "hardware": {}}
    found = {"parts": {"update": 2.0, "learning": 1.0}, "config": config}
    monkeypatch.setattr(tool, "in_child", lambda function, script, arguments: found)
    monkeypatch.setattr(tool.importlib.util, "find_spec", lambda name: None)
    stdout, _ = tool_here(tool, "--profile", "--rounds", "1", "--output", "one.json")
    result = json.loads((tmp_path / "one.json").read_text())["throughput/ppo"]
    assert result["medians"] == {"profile": found["parts"]} and result["versions"].keys() == {"ppo"}
    assert "milliseconds of" in stdout and "2.0" in stdout


def test_medians_are_of_each_number_apart():
    rounds = [{"a": 1.0, "b": {"c": 9.0}}, {"a": 2.0, "b": {"c": 1.0}}, {"a": 90.0, "b": {"c": 2.0}}]
    assert tool.medians(rounds) == {"a": 2.0, "b": {"c": 2.0}}


def test_a_value_may_begin_with_a_dash():
    words = ["--arguments", "--gamma 0.9", "--seconds", "3", "--against", "", "--sb3"]
    joined = ["--arguments=--gamma 0.9", "--seconds", "3", "--against=", "--sb3"]
    assert with_values(words, ("--arguments", "--against")) == joined


@pytest.mark.parametrize(("script", "package"), [("ppo", "stable-baselines3"), ("ppo_lstm", "sb3-contrib")])
def test_the_package_that_a_script_is_measured_beside_must_be_there(tool_here, monkeypatch, script, package):
    there = {"stable_baselines3", "sb3_contrib"} - {package.replace("-", "_")}
    monkeypatch.setattr(tool.importlib.util, "find_spec", lambda name: "there" if name in there else None)
    _, stderr = tool_here(tool, "--script", script, status=2)
    assert f"error: {package} is not installed" in stderr and stderr.count("\n") == 1


# ---------------------------------------------------------------------------------------------------------- The program
def test_sigterm_leaves_nothing_behind(tmp_path):
    command = [sys.executable, str(THROUGHPUT), "--script", "ppo_numpy", "--no-sb3", "--seconds", "60"]
    with subprocess.Popen(command, cwd=tmp_path, env=os.environ | {"TMPDIR": str(tmp_path)}) as process:
        deadline = time.monotonic() + 60
        children = []
        while not children or not list(tmp_path.glob("*/runs/*/metrics.csv")):
            assert time.monotonic() < deadline
            time.sleep(0.02)
            children = psutil.Process(process.pid).children(recursive=True)
        process.terminate()
        assert process.wait(60) == 143
    assert not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in children)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--script", "pppo"], "--script pppo: unknown; cleanrl/ has "),
        (["--rounds", "0"], "--rounds: must be 1 or more"),
        (["--processes", "2"], "--processes 2: ppo_numpy.py takes only one"),
        (["--output", "."], "--output .: is a folder; name a file in it"),
        (["--script", "ppo", "ppo_lstm", "--sb3"], "--script: only some have an LSTM"),
        (["--profile", "--script", "ppo", "ppo_atari"], "--profile: is of one process"),
        (["--profile", "--keep"], "--profile: is of one process and is not kept"),
        (["--profile", "--against", ""], "--profile: is of one process and is not kept"),
        (["--profile", "--script", "ppo_atari_multigpu", "--processes", "2"], "--profile: is of one process"),
        (["--seconds", "9", "--arguments=--total-timesteps 2048"], "the whole training is over sooner"),
        (["--arguments=--help"], "ppo_numpy.py --help: has ended without a training"),
        (["--arguments=--gamma 2"], "--gamma 2: ended with status 2; it says why above"),
        (["--against=--gamma 2"], "--gamma 2: ended with status 2; it says why above"),
    ],
)
def test_wrong_use_is_one_line(tool_here, tmp_path, monkeypatch, words, said):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    stdout, stderr = tool_here(tool, *QUICK, "--no-sb3", *words, status=2)
    lines = [line for line in stderr.splitlines() if not line.startswith("round ")]
    if "why above" in said:
        assert lines.pop(0) == "ppo_numpy.py: error: --gamma 2.0: must be from 0 to 1"
    assert len(lines) == 1 and said in lines[0] and not stdout
    assert not list(tmp_path.iterdir())


@pytest.mark.seldom
def test_several_processes_train_as_one_job(tmp_path):
    pytest.importorskip("ale_py")
    tiny = "--num-envs 2 --num-steps 8 --num-minibatches 1 --update-epochs 1 --env-id PongNoFrameskip-v4"
    words = ["--script", "ppo_atari_multigpu", "--processes", "2", f"--arguments={tiny}", "--no-sb3", *QUICK[2:]]
    done = throughput(tmp_path, *words, "--output", "one.json")
    assert done.returncode == 0, done.stderr
    (result,) = json.loads((tmp_path / "one.json").read_text()).values()
    assert result["medians"]["script"]["steps_per_second"] > 0
    assert "2 × ppo_atari_multigpu.py" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["one.json"]


def test_a_profile_has_the_parts_of_an_update(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the profile changes it
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "ppo", raising=False)
    found = tool.measure_parts("ppo", "--num-steps 32")
    del sys.modules["ppo"]  # its classes were replaced
    assert found["config"]["arguments"]["total_timesteps"] == 4 * 32 * (tool.PROFILED + 1)
    parts = found["parts"]
    assert sum(parts.values()) == pytest.approx(2 * parts["update"]) and min(parts.values()) > 0
    assert parts["learning"] > parts["copies"]
    assert not list(tmp_path.iterdir()) and not list(ROOT.glob("runs/*num-steps*"))


def test_the_parts_of_an_update_are_told_without_the_first_one():
    """Three updates of two steps: acting takes 1 second, a step 2, learning 10 and what is between them 3."""
    times = []
    now = 7.0
    for update in range(3):
        for _ in range(2):
            times += [now, now + 1, now + 4, now + 6]
            now += 9 if update > 0 else 90
        now += 7  # instead of the 3 seconds to the next action
    parts = tool.parts_of([*times, now], 2)
    assert parts == {"update": 25e3, "environment": 4e3, "acting": 2e3, "copies": 9e3, "learning": 10e3}


@pytest.mark.parametrize(
    "words, settings, said",
    [
        (["resume"], {}, "for how many seconds"),
        (["resume", "soon"], {}, "for how many seconds"),
        ([], {}, "no GPU"),
        ([], {"SMALL": "1", "FOLDER": "real"}, "real is of DEVICE=cuda SMALL=,"),
    ],
)
def test_a_mistake_of_gpu_sh_is_one_line_and_measures_nothing(tmp_path, words, settings, said):
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "made_with.txt").write_text("DEVICE=cuda SMALL=\n")
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "PYTHON": sys.executable} | settings
    command = ["bash", str(ROOT / "benchmark" / "gpu.sh"), *words]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 2 and said in done.stderr and done.stderr.count("\n") == 1 and not done.stdout
    assert [path.name for path in tmp_path.rglob("*")] == ["real", "made_with.txt"]


def test_gpu_sh_measures_each_row_once(tmp_path):
    """A python that only writes what --output names, and says what was typed."""
    python = tmp_path / "python"
    python.write_text('#!/bin/bash\necho "typed: $*"\nwhile [ "$1" != --output ]; do shift; done\ntouch "$2"\n')
    python.chmod(0o755)
    settings = {"DEVICE": "cpu", "SMALL": "1", "TOTAL": "100", "GRACE": "90", "FOLDER": "here", "PYTHON": str(python)}
    command = ["bash", str(ROOT / "benchmark" / "gpu.sh")]
    printed = []
    for _ in range(2):
        done = subprocess.run(command, cwd=tmp_path, env=os.environ | settings, capture_output=True, text=True)
        assert done.returncode == 0
        printed.append([line for line in done.stdout.splitlines() if line.startswith("typed: ")])
        (tmp_path / "here" / "lstm_8_fp32.json").unlink()
    assert (len(printed[0]), len(printed[1])) == (13, 1)
    assert len([line for line in printed[0] if "--profile" in line]) == 3
    assert len([line for line in printed[0] if "--no-sb3" not in line]) == 1
    assert "--script ppo_atari_lstm --arguments --num-threads 1 --device cpu" in printed[1][0]


def test_speed_sh_measures_each_script_once(tmp_path):
    """A python that only says what was typed."""
    python = tmp_path / "python"
    python.write_text('#!/bin/bash\necho "$@"\n')
    python.chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    command = ["bash", str(ROOT / "benchmark" / "speed.sh"), "--cleanrl", "here"]
    printed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    cleanrl, *typed = printed.splitlines()
    assert cleanrl.endswith("benchmark/results/cleanrl_speed.json --cleanrl here")
    measured = []
    for line in typed:
        words = line.split()
        assert words[:2] == ["benchmark/throughput.py", "--keep"]
        measured += [word for word in words if word.startswith("ppo")]
    assert sorted(measured) == sorted(path.stem for path in (ROOT / "cleanrl").glob("*.py"))
