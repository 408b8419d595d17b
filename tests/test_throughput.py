"""benchmark/throughput.py as a user types it. Absolute speeds are the machine's, so none is asserted."""

import importlib
import json
import os
import re
import shlex
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from statistics import median

import pytest
import throughput as tool
import tyro
from helpers import type_in_the_readmes_environment
from shared import script_words

ROOT = Path(__file__).parents[1]
THROUGHPUT = ROOT / "benchmark" / "throughput.py"


def throughput(folder, *arguments):
    command = [sys.executable, str(THROUGHPUT), *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize(("seconds", "processes"), [("30", 1), ("2", 2)])
def test_sigterm_leaves_nothing_behind(tmp_path, seconds, processes):
    """In the training that is timed, and in the launch of the script that comes after it."""
    words = ["--script", "ppo_numpy", "--no-sb3", "--rounds", "1", "--seconds", seconds, "--output", "x.json"]
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    tool = subprocess.Popen([sys.executable, str(THROUGHPUT), *words], cwd=tmp_path, env=environment)
    try:
        seen, start = [], time.monotonic()
        while len(seen) < processes:
            seen += [x for lock in tmp_path.glob("*/runs/*/lock") if (x := lock.read_text()) and x not in seen]
            assert time.monotonic() - start < 120
            time.sleep(0.02)
        tool.terminate()
        assert tool.wait(60) == 143
        for pid in seen:
            with pytest.raises(ProcessLookupError):
                os.kill(int(pid), 0)
        assert not list(tmp_path.iterdir())
    finally:
        tool.kill()


def test_measures_script_environments_sb3_and_launch(tmp_path):
    pytest.importorskip("stable_baselines3")
    output = tmp_path / "folder" / "ppo_numpy.json"
    quick = ["--seconds", "0.5", "--warm-up", "0.1", "--rounds", "1", "--arguments=--num-steps 3.2e1"]
    done = throughput(tmp_path, "--script", "ppo_numpy", "--env-id", "Acrobot-v1", *quick, "--output", str(output))
    assert done.returncode == 0, done.stderr
    result = json.loads(output.read_text())
    assert {"torch", "stable_baselines3", "python"} <= result["versions"].keys()
    assert result["hardware"]["cpu"] and result["hardware"]["cores"] > 0
    (one,) = result["rounds"]
    arguments = one["script"]["arguments"]
    assert (arguments["env_id"], arguments["num_steps"]) == ("Acrobot-v1", 32)
    for name in ("script", "default threads", "1 thread"):
        for numbers in (one[name], result["medians"][name]):
            assert min(numbers["steps_per_second"], *numbers["ms"].values()) > 0
        laps = one[name]["laps_ms"]  # of each update, its parts
        assert len(laps) >= 3 and one[name]["ms_per_update"] == pytest.approx(median(map(sum, laps)), abs=0.01)
        assert list(one[name]["ms"].values()) == pytest.approx([median(part) for part in zip(*laps)], abs=0.01)
        assert one[name]["timers_ms"] < 0.1 * one[name]["ms_per_update"]
    for name, ratio in one["ratios"].items():
        assert ratio == pytest.approx(one["script"]["steps_per_second"] / one[name]["steps_per_second"])
    assert one["script"]["environment_limit"] > 0
    assert min(one["launch"].values()) > 0
    header, _, *rows = done.stdout.splitlines()
    assert "steps/s" in header and len(rows) == 4 and len({row.count("|") for row in (header, *rows)}) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]  # the runs leave nothing behind


def test_the_split_of_an_update(monkeypatch):
    """Two steps of 1 s of policy and 3 s of environment each, then an update of 5 s, by a clock of the test's own."""
    clock = [0.0]

    def takes(seconds):
        clock[0] += seconds

    monkeypatch.setattr(tool.time, "perf_counter", lambda: clock[0])
    stopwatch = tool.Stopwatch(warm_up=0.0, seconds=60.0, num_steps=2)
    step = stopwatch.timed(takes)
    step(100.0)  # as a script tries its environment before it trains

    def train():
        while True:
            for _ in range(2):
                takes(1.0)
                step(3.0)
            takes(5.0)
            stopwatch.end_update()

    stopwatch.watch(train)
    assert stopwatch.laps == [(6.0, 2.0, 5.0)] * 5  # the first with more than 60 s behind it is the last
    result = stopwatch.result({"num_envs": 26, "num_steps": 2})
    assert result["ms"] == {"environment": 6000.0, "policy": 2000.0, "update": 5000.0}
    assert (result["ms_per_update"], result["steps_per_second"]) == (13_000.0, 4.0)


def test_a_ratio_is_the_median_of_the_rounds_ratios_with_their_range():
    def one_round(ours, theirs):
        sides = {name: {"steps_per_second": speed, "ms_per_update": 1.0, "ms": {}}
                 for name, speed in (("script", ours), ("1 thread", theirs))}  # fmt: skip
        sides["script"]["environment_limit"] = 1.0
        return sides | {"launch": {"first_row_seconds": 1.0, "peak_mb": 1.0}, "ratios": {"1 thread": ours / theirs}}

    rounds = [one_round(19_540.0, 7_515.0), one_round(20_000.0, 10_000.0), one_round(9_000.0, 9_079.0)]
    table = tool.markdown_table(tool.Args(arguments="", processes=1), tool.medians(rounds), rounds).splitlines()
    assert table[0].startswith("| medians, rounds: 3 | steps/s | ppo.py is faster by |")
    assert table[3].startswith("| stable-baselines3, 1 thread | 9,079 | 2.00× (0.99 to 2.60) |")


def sb3(script, needs, env_id, workers=False):
    """Measures a short training of stable-baselines3 with a script's arguments."""
    for package in ("stable_baselines3", *needs):
        pytest.importorskip(package)
    sizes = {"num_envs": 2, "num_steps": 16, "num_minibatches": 2, "update_epochs": 1}
    args = importlib.import_module(script).Args(env_id=env_id, **sizes)
    return tool.measure_sb3(asdict(args), threads=1, workers=workers, warm_up=0.0, seconds=0.1)


@pytest.mark.parametrize(
    ("script", "needs", "env_id"),
    [
        ("ppo_continuous_action", ["mujoco"], "HalfCheetah-v5"),  # no game of EnvPool
        ("ppo_atari", ["ale_py"], "PongNoFrameskip-v4"),
        ("ppo_atari_envpool", ["ale_py", "envpool"], "Pong-v5"),
    ],
)
@pytest.mark.parametrize("workers", [False, True])
def test_sb3_trains_in_the_scripts_environment_and_its_steps_are_timed(script, needs, env_id, workers, monkeypatch):
    pytest.importorskip("stable_baselines3")
    from stable_baselines3.common import vec_env

    made = []

    class Watched(vec_env.SubprocVecEnv):
        def __init__(self, *arguments, **options):
            made.append(self)
            super().__init__(*arguments, **options)

    monkeypatch.setattr(vec_env, "SubprocVecEnv", Watched)
    result = sb3(script, needs, env_id, workers)
    assert min(result["steps_per_second"], *result["ms"].values()) > 0
    assert all(lap[0] > 0 for lap in result["laps_ms"])
    assert [len(envs.processes) for envs in made] == [2] * workers
    assert not any(process.is_alive() for envs in made for process in envs.processes)


@pytest.mark.parametrize(
    ("arguments", "parallel"),
    [
        ({}, False),
        ({"vectorization": "sync"}, False),
        ({"vectorization": "async"}, True),
        ({"env_threads": None}, True),
    ],
)
def test_beside_parallel_environments_those_of_sb3_are_parallel_too(arguments, parallel, monkeypatch, capsys):
    """One round in which every measurement returns what it was asked for."""

    def measured(function, *arguments_of_it):
        return {
            "steps_per_second": 1.0,
            "first_row_seconds": 1.0,
            "arguments": arguments,
            "asked": [function.__name__, *arguments_of_it],
        }

    monkeypatch.setattr(tool, "in_child", measured)
    one = tool.measure_round(tool.Args(script="ppo", arguments="", processes=1, seconds=2.0, warm_up=3.0))
    asked = {
        name: result["asked"] for name, result in one.items() if "asked" in result and name not in ("script", "launch")
    }
    serial = {"default threads": (None, False), "1 thread": (1, False)}
    workers = {f"{name}, SubprocVecEnv": (threads, True) for name, (threads, _) in serial.items()}
    expected = serial | (workers if parallel else {})
    assert asked == {name: ["measure_sb3", arguments, *how, 3.0, 2.0] for name, how in expected.items()}
    assert one["ratios"].keys() == expected.keys()


def test_growth_with_an_argument(tmp_path):
    """Speed, split and memory of each value, in a table and two pictures beside the JSON file."""
    pytest.importorskip("matplotlib")
    quick = ["--seconds", "0.2", "--warm-up", "0", "--rounds", "1", "--arguments=--num-steps 16"]
    quick += ["--script", "ppo_numpy"]
    done = throughput(tmp_path, *quick, "--vary", "num-envs", "2", "8", "--output", str(tmp_path / "grown.json"))
    assert done.returncode == 0, done.stderr
    measured = json.loads((tmp_path / "grown.json").read_text())
    for one in measured["rounds"]:
        assert {value: one[value]["script"]["arguments"]["num_envs"] for value in one} == {"2": 2, "8": 8}
        assert all(point.keys() == {"script", "launch"} for point in one.values())
    rows = [[cell.strip() for cell in line.split("|")] for line in done.stdout.splitlines()]
    assert rows[0][1:3] == ["num-envs", "steps/s"] and [row[1] for row in rows[2:4]] == ["2", "8"]
    memory = measured["medians"]["8"]["launch"]["peak_mb"]
    assert f"{memory:.0f} MB" in rows[3] and memory < 100  # without matplotlib, which throughput.py itself has loaded
    assert sorted(path.name for path in tmp_path.iterdir()) == ["grown.json", "grown.png", "grown.svg"]
    assert (tmp_path / "grown.png").stat().st_size > 10_000


def test_growth_with_the_number_of_processes():
    args = tool.Args(script="ppo_atari_multigpu", arguments="--num-envs 8", vary=["processes", "1", "2"])
    found = {value: (one.processes, one.arguments, one.sb3) for value, one in tool.points(args).items()}
    assert found == {"1": (1, "--num-envs 8", False), "2": (2, "--num-envs 8", False)}


@pytest.mark.parametrize(
    "words, expected",
    [("ppo", (1, True)), ("ppo_atari_multigpu", (2, False)), ("ppo_atari_multigpu --processes 4", (4, False)),
     ("ppo_atari_multigpu --processes 1", (1, False)), ("ppo_atari_multigpu --arguments=--cuda", (1, True))],
)  # fmt: skip
def test_what_is_typed_counts_more_than_the_scripts_default(words, expected, monkeypatch):
    found = []
    monkeypatch.setattr(tool, "validate", lambda args: found.append((args.processes, args.sb3)) or sys.exit())
    with pytest.raises(SystemExit):
        tool.main(tyro.cli(tool.Args, args=["--script", *words.split()]))
    assert found == [expected]


def test_words_are_read_as_the_scripts_read_them():
    words = ["--total-timesteps", "1e6", "--num-steps=3.2e1", "--learning-rate", "1e-3", "--exp-name", "1.2.3e4"]
    assert script_words(words) == [*words[:1], "1000000", "--num-steps=32", *words[3:]]


def test_the_commands_of_the_docstring_are_understood():
    commands = re.findall(r"^    python benchmark/throughput.py (.+)$", tool.__doc__, re.M)
    assert len(commands) == 3
    plain, compared, grown = (tyro.cli(tool.Args, args=shlex.split(command)) for command in commands)
    assert plain.rounds >= 5 and plain.vary == []
    assert (compared.arguments, compared.against) == ("--precision bf16", "--precision fp32")
    points = tool.points(tool.replace(grown, arguments=""))
    assert [one.arguments for one in points.values()] == [f"--num-envs {value}" for value in (4, 16, 64, 256)]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--script", "pppo"], ["--script pppo", "ppo"]),
        (["--rounds", "0"], ["--rounds"]),
        (["--no-sb3", "--env-id", "CartPool-v1"], ["CartPool-v1", "Did you mean: `CartPole`?"]),
        (["--no-sb3", "--output", "/dev/null/x.json"], ["--output /dev/null/x.json: can't be written; name a file"]),
        (["--no-sb3", "--arguments='"], ["--arguments ': has a quote without its second one"]),
        (["--vary", "num-envs", "4"], ["--vary num-envs 4", "two or more values"]),
        (["--vary", "num-envs", "4", "4"], ["--vary num-envs 4 4", "two or more values"]),
        (["--vary", "processes", "1", "2"], ["--processes 2: ppo.py takes only one"]),
    ],
)
def test_wrong_use_is_one_line(tmp_path, arguments, words):
    done = throughput(tmp_path, *arguments)
    *progress, line = done.stderr.splitlines()
    assert done.returncode == 2 and not done.stdout
    assert all(word in line for word in words) and not any("Traceback" in other for other in progress)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ([], "throughput.py: error: stable-baselines3 is not installed; pip install "),
        (["--vary", "num-envs", "1", "2"], "throughput.py: error: matplotlib is not installed; pip install "),
    ],
)
def test_what_to_install_is_one_line(tmp_path, arguments, line):
    done = type_in_the_readmes_environment(tmp_path, "throughput.py", *arguments)
    assert done.returncode == 2 and not done.stdout and done.stderr.count("\n") == 1, done
    assert done.stderr.startswith(line)


def test_several_processes_train_as_one_job_beside_one_process(tmp_path, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests"))
    tiny = "--num-envs 2 --num-steps 8 --num-minibatches 1 --update-epochs 1"
    quick = ["--seconds", "0.2", "--warm-up", "0", "--rounds", "1", "--no-sb3", "--output", str(tmp_path / "one.json")]
    quick += ["--env-id", "environments_atari:Noise-v0"]
    arguments = ["--processes", "2", f"--arguments={tiny}", f"--against={tiny}", *quick]
    done = throughput(tmp_path, "--script", "ppo_atari_multigpu", *arguments)
    assert done.returncode == 0, done.stderr
    (one,) = json.loads((tmp_path / "one.json").read_text())["rounds"]
    assert one["script"]["arguments"]["num_envs"] == one["against"]["arguments"]["num_envs"] == 2
    assert one["against"]["arguments"]["num_threads"] == len(os.sched_getaffinity(0))
    assert one["script"]["arguments"]["num_threads"] == 1  # torchrun's OMP_NUM_THREADS
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


COMMITTED = [
    path for kind in ("throughput", "growth") for path in sorted((ROOT / "benchmark/results" / kind).glob("*.json"))
]


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.stem)
def test_what_is_committed_follows_from_its_rounds(path):
    """The medians of the rounds, and in each round the ratios of its speeds: no number is typed by hand."""
    measured = json.loads(path.read_text())
    assert measured["medians"] == tool.medians(measured["rounds"])
    for one in measured["rounds"]:
        for kind, key in (("ratios", "script"), ("against_ratios", "against")):
            for base, ratio in one.get(kind, {}).items():
                assert ratio == pytest.approx(one[key]["steps_per_second"] / one[base]["steps_per_second"])
        for side in ("script", "against", *tool.SB3):
            if side in one:
                laps = [sum(lap) for lap in one[side]["laps_ms"]]
                assert one[side]["ms_per_update"] == pytest.approx(median(laps), abs=0.01)
