"""Scripts as a user types them: help, evaluation, and every wrong use, which costs one line and creates nothing."""

import contextlib
import dataclasses
import json
import math
import os
import pickle
import random
import re
import shutil
import signal
import subprocess
import sys
import warnings
import zipfile
from pathlib import Path
from unittest.mock import Mock

import environments_cli
import gymnasium as gym
import imageio.v3 as iio
import numpy as np
import ppo
import pytest
import torch
from helpers import (
    SCRIPT,
    assert_same_state,
    checkpoints,
    error_line,
    fork,
    rows,
    run,
    state,
    train,
    tree,
    type_here,
    wait,
    words,
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of a small run that ended, with settings that are not the default."""
    with contextlib.chdir(tmp_path_factory.mktemp("trained")):
        return train(seed=5, gamma=0.9, anneal_lr=False).resolve()


@pytest.fixture
def half(trained, in_tmp_path):
    """The same, as it was after half of its updates."""
    shutil.copytree(trained, "runs/half")
    for update in (30, 40):
        Path(f"runs/half/checkpoints/{update}.pt").unlink()
    return Path("runs/half")


@pytest.fixture
def refused(in_tmp_path, capsys):
    """Types words that must cost one line and status 2, and leave every file as it was; returns the line."""

    def refused_words(*typed):
        stderr = nothing_but_stderr(in_tmp_path, capsys, *typed)
        return error_line(stderr)

    return refused_words


def nothing_but_stderr(folder, capsys, *typed):
    """Types words that must cost status 2 and leave every file as it was."""
    before = tree(folder)
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop, warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        type_here(*typed)
    stdout, stderr = capsys.readouterr()
    assert stop.value.code == 2, stderr
    assert stdout == ""
    assert not [str(warning.message) for warning in shown]  # each would be two lines on stderr
    assert tree(folder) == before
    return stderr


def assert_names(line, *parts):
    assert all(part in line for part in parts), line


# -------------------------------------------------------------------------------------------------------- Installation


@pytest.mark.parametrize("target", ["train", "test"])
def test_make_with_an_old_python_says_so_in_one_line_and_leaves_no_environment(in_tmp_path, target):
    shutil.copy(Path(__file__).parents[1] / "Makefile", in_tmp_path)
    for name in ("requirements.txt", "requirements-dev.txt", "requirements-docs.txt", "requirements-procgen.txt"):
        Path(name).touch()
    pretend = "import sys; sys.version_info, sys.version = (3, 10, 12), '3.10.12 (main)'; exec(sys.argv[1])"
    old = Path("python3.10")  # answers -c as the old version would; asked for anything else, it makes a file
    old.write_text(f'#!/bin/sh\n[ "$1" = -c ] && exec {sys.executable} -c "{pretend}" "$2"\ntouch asked\n')
    old.chmod(0o755)
    made = subprocess.run(["make", target, "PYTHON=./python3.10"], capture_output=True, text=True, timeout=60)
    line, *end = made.stderr.splitlines()
    assert_names(
        line, "Python 3.11 or newer is needed, and ./python3.10 is 3.10.12", f"make PYTHON=python3.12 {target}"
    )
    assert made.returncode == 2 and all(x.startswith("make") for x in end), made.stderr
    assert not Path(".venv").exists() and not Path("asked").exists()


# ---------------------------------------------------------------------------------------------------- Help and defaults


def test_help_says_what_the_script_is_and_names_every_argument(capsys):
    with pytest.raises(SystemExit) as stop:
        type_here("--help")
    stdout, stderr = capsys.readouterr()
    assert (stop.value.code, stderr) == (0, "")
    help_text = " ".join(stdout.replace("│", " ").split())
    assert " ".join(ppo.__doc__.split()) in help_text
    for field in dataclasses.fields(ppo.Args):
        assert f"--{field.name.replace('_', '-')}" in help_text
    assert "layers of 64 units are faster on one CPU core" in help_text  # why --cuda is off


@pytest.mark.parametrize("script", ["ppo", "ppo_numpy", "ppo_atari_multigpu", "ppo_procgen"])
def test_help_has_the_groups_of_the_file(capsys, script):
    script = SCRIPT.with_name(f"{script}.py")
    with pytest.raises(SystemExit):
        type_here("--help", script=script)
    groups, found = {}, []
    for line in capsys.readouterr().out.splitlines():
        if re.fullmatch(r" \w+", line):
            groups[line.strip()] = found = []
        elif line.startswith("  --"):
            found.append(line.split()[0].strip(","))
    written = re.split(r"\n    # (.+)", re.search(r"\nclass Args:(.*?)\n\n", script.read_text(), re.DOTALL)[1])[1:]
    fields = [re.findall(r"^    (\w+):", text, re.MULTILINE) for text in written[1::2]]
    assert groups == {
        name: [f"--{field.replace('_', '-')}" for field in names] for name, names in zip(written[::2], fields)
    }
    assert list(groups)[:3] == ["run", "environment", "PPO"] and list(groups)[3:] in (["speed"], [])


def test_defaults_are_those_of_the_paper_and_cleanrl():
    published = {
        "exp_name": "ppo", "seed": 1, "torch_deterministic": True, "cuda": False, "track": False,
        "wandb_project_name": "cleanRL", "wandb_entity": None, "capture_video": False, "env_id": "CartPole-v1",
        "total_timesteps": 500_000, "learning_rate": 2.5e-4, "num_envs": 4, "num_steps": 128, "anneal_lr": True,
        "gamma": 0.99, "gae_lambda": 0.95, "num_minibatches": 4, "update_epochs": 4, "norm_adv": True,
        "clip_coef": 0.2, "clip_vloss": True, "ent_coef": 0.01, "vf_coef": 0.5, "max_grad_norm": 0.5,
        "target_kl": None, "anneal_clip": False, "bootstrap_truncated": False,
    }  # fmt: skip
    assert published.items() <= dataclasses.asdict(ppo.Args()).items()


# --------------------------------------------------------------------------------------------------- Wrong use as typed


def test_wrong_use_as_typed(in_tmp_path):
    stdout, stderr = run("--env-id", "CartPol-v1", status=2)
    assert_names(error_line(stderr), "--env-id CartPol-v1", "Did you mean", "CartPole", "module:Name-v0")
    assert stdout == ""
    assert not tree(in_tmp_path)


def test_runs_is_a_file(refused):
    Path("runs").write_text("a file")
    assert_names(refused(), "runs: ", "Not a directory")


@pytest.mark.parametrize(
    "typed, parts",
    [
        (["--seeed", "3"], ["--seeed", "--seed INT"]),  # what was meant
        (["--seed", "three"], ["--seed", "three"]),
        (["--seed"], ["--seed"]),
        (["--num-envs", "1.5"], ["--num-envs", "1.5"]),
        (["--num-envs", "nan"], ["--num-envs", "nan"]),
        (["--total-timesteps", "1.2.3e4"], ["--total-timesteps", "1.2.3e4"]),
        (["ppo"], ["ppo"]),
    ],
)
def test_words_that_are_no_arguments(in_tmp_path, capsys, typed, parts):
    assert_names(nothing_but_stderr(in_tmp_path, capsys, *typed), *parts, "--help")


@pytest.mark.parametrize(
    "typed, total, learning_rate",
    [
        (["--total-timesteps", "1e2", "--learning-rate", "1e-3"], 100, 1e-3),
        (["--total-timesteps=1.5e2", "--learning-rate=1e0"], 150, 1.0),
        (["--total-timesteps", "1_20"], 120, 2.5e-4),
    ],
)
def test_numbers_as_they_are_written(in_tmp_path, typed, total, learning_rate):
    type_here(*typed, *words(num_envs=2, num_steps=25, num_minibatches=1))
    (folder,) = Path().glob("runs/*")
    arguments = json.loads((folder / "config.json").read_text())["arguments"]
    assert (arguments["total_timesteps"], arguments["learning_rate"]) == (total, learning_rate)
    assert len(rows(folder, "metrics.csv")) == total // 50


# -------------------------------------------------------------------------------------------------------- Wrong numbers

COUNTS = "total_timesteps num_envs num_steps num_minibatches update_epochs checkpoints episodes".split()
ABOVE_0 = ["learning_rate", "clip_coef", "max_grad_norm", "target_kl"]
FROM_0 = ["ent_coef", "vf_coef"]
FROM_0_TO_1 = ["gamma", "gae_lambda"]


def test_every_number_is_in_a_list_of_this_test():
    kinds = (int, float, int | None, float | None)
    numbers = {field.name for field in dataclasses.fields(ppo.Args) if field.type in kinds}
    assert numbers == {*COUNTS, *ABOVE_0, *FROM_0, *FROM_0_TO_1, "seed", "num_threads"}


@pytest.mark.parametrize(
    "name, value",
    [(name, value) for name in COUNTS for value in ("0", "-1", "1e19")]
    + [(name, value) for name in ABOVE_0 for value in ("0", "-0.1", "nan", "inf", "-inf")]
    + [(name, value) for name in FROM_0 for value in ("-0.1", "nan", "inf", "-inf")]
    + [(name, value) for name in FROM_0_TO_1 for value in ("-0.1", "1.1", "nan", "inf", "-inf")]
    + [("seed", "-1"), ("seed", "1e19")],
)
def test_a_number_out_of_range(in_tmp_path, capsys, name, value):
    with pytest.raises(SystemExit) as stop:
        number = int(float(value)) if name in (*COUNTS, "seed") else float(value)
        ppo.main(ppo.Args(**{"total_timesteps": 512, name: number}))
    line, flag = error_line(capsys.readouterr().err), f"--{name.replace('_', '-')}"
    assert stop.value.code == 2
    assert_names(line, f"{flag} ", f"must be a number {'above' if name in (*COUNTS, *ABOVE_0) else 'from'} 0")
    assert name not in FROM_0_TO_1 or line.endswith(" to 1")
    assert math.isclose(float(re.search(f"{flag} (\\S+):", line)[1]), float(value)) or value == "nan"
    assert not tree(in_tmp_path)


def test_a_new_option_may_be_0(monkeypatch):
    """Of a script that somebody changed: an option is free to be 0 until `validate` names it."""
    args = dataclasses.make_dataclass("Args", [("weight_decay", float, 0.0)], bases=(ppo.Args,))
    ppo.validate(args(total_timesteps=512))
    with pytest.raises(SystemExit):
        ppo.validate(args(total_timesteps=512, weight_decay=math.nan))


def test_a_number_out_of_range_as_typed(refused):
    assert_names(refused("--gamma=1.1"), "--gamma 1.1: must be a number from 0")


@pytest.mark.parametrize("number", [-1, 0, 1025, 2**40])
def test_threads_that_no_machine_has(refused, number):
    """With 100,000 of them torch ends in a segmentation fault, with more in an overflow."""
    assert_names(refused("--num-threads", number), f"--num-threads {number}: ", "to 1024")


@pytest.mark.parametrize("name", [*FROM_0, *FROM_0_TO_1, "seed"])
def test_0_is_legal(name):
    ppo.validate(ppo.Args(**{name: 0}))


@pytest.mark.parametrize(
    "typed, parts",
    [
        (
            "--num-envs 3 --num-steps 5 --total-timesteps 512",
            ["--num-envs 3", "--num-steps 5", "15", "--num-minibatches 4"],
        ),
        ("--num-envs 3 --num-steps 7 --num-minibatches 20 --total-timesteps 512", ["21", "--num-minibatches 20"]),
        ("--num-minibatches 513 --total-timesteps 512", ["512", "--num-minibatches 513"]),
        ("--total-timesteps 511", ["512", "--total-timesteps 511"]),
    ],
)
def test_sizes_that_do_not_fit(refused, typed, parts):
    assert_names(refused(*typed.split()), *parts)


def test_sizes_that_just_fit():
    ppo.validate(ppo.Args(num_minibatches=512, total_timesteps=512))


# ---------------------------------------------------------------------------------------------------- Wrong environment


@pytest.mark.parametrize(
    "env_id, parts",
    [
        ("CartPole-v9", ["CartPole", "v1"]),
        ("LunarLander-v2", ["LunarLander-v3"]),
        ("cartpole-v1", ["Did you mean", "CartPole"]),
        ("CartPole v1", ["CartPole v1"]),
        ("", ["--env-id"]),
        ("no_such_module:CartPole-v1", ["no_such_module"]),
        ("a:b:c", ["a:b:c"]),
        (":CartPole-v1", [":CartPole-v1"]),
        ("ALE/Pong-v5", ["ppo_atari.py"]),
        ("NoSuchGame-v0", ["module:Name-v0"]),
        ("Pendulum-v1", ["Box(-2.0, 2.0", "use ppo_continuous_action.py"]),
        ("MultiDiscrete-v0", ["MultiDiscrete([2 3])", "ppo_multidiscrete.py"]),
    ],
)
def test_an_environment_that_does_not_fit(refused, monkeypatch, env_id, parts):
    for name in [name for name in gym.registry if name.startswith("ALE/")]:  # tests of Atari games register them
        monkeypatch.delitem(gym.registry, name)
    assert_names(refused("--env-id", env_id), f"--env-id {env_id}", *parts)


@pytest.mark.parametrize(
    "env_id, parts",
    [
        ("WrongShape-v0", ["declares Box(", "(2,)", "reset returned (3,)"]),
        ("WrongLaterShape-v0", ["declares Box(", "(2,)", "step returned (3,)"]),
        ("OldReset-v0", ["declares Box(", "(2,)", "reset returned ()"]),
        ("NoReward-v0", ["NoneType"]),
        ("ObjectDtype-v0", ["words"]),
        ("FailingReset-v0", ["RuntimeError: no simulator"]),
    ],
)
def test_an_environment_that_breaks_its_word(refused, env_id, parts):
    assert_names(refused("--env-id", env_id), f"--env-id {env_id}: ", *parts)


@pytest.mark.parametrize(
    "env_id, size", [("FrozenLake-v1", 16), ("Taxi-v4", 500), ("Blackjack-v1", 45), ("CliffWalking-v1", 48)]
)
def test_observations_that_are_no_vectors(in_tmp_path, env_id, size):
    folder = train(env_id=env_id, total_timesteps=96, checkpoints=1)
    assert state(folder, 2)["model"]["actor.0.weight"].shape == (64, size)
    ppo.main(ppo.Args(evaluate=str(folder), episodes=1, seed=2))


def test_the_package_of_an_environment_is_missing(refused):
    line = refused("--env-id", "NeedsPackage-v0")
    assert_names(line, "--env-id NeedsPackage-v0", "no_such_package")
    assert "unknown" not in line  # the id is right


def test_box2d_is_missing(refused, monkeypatch):
    for name in [name for name in sys.modules if name.startswith(("Box2D", "gymnasium.envs.box2d"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "Box2D", None)
    assert_names(refused("--env-id", "LunarLander-v3"), "--env-id LunarLander-v3", "pip install", "box2d")


@pytest.mark.parametrize("package, flag", [("pygame", "--capture-video"), ("wandb", "--track")])
def test_a_package_that_a_flag_needs_is_missing(refused, monkeypatch, package, flag):
    monkeypatch.setitem(sys.modules, package, None)
    assert_names(refused("--env-id", "CartPole-v1", flag), flag, package)


@pytest.mark.parametrize(
    "env_id, part",
    [
        ("Random-v0", ""),
        ("Constant-v0", ""),
        ("OldMetadata-v0", ""),
        ("NoPicture-v0", "leave --capture-video out"),
        ("NeedsRenderer-v0", "no_such_renderer"),
    ],
)
def test_an_environment_that_can_not_be_rendered(refused, env_id, part):
    assert_names(refused("--env-id", env_id, "--capture-video"), f"--env-id {env_id} --capture-video: ", part)


def test_an_environment_without_render_modes_can_be_learned(in_tmp_path):
    train(env_id="Constant-v0", total_timesteps=48)


def test_cuda_without_a_gpu(refused, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert_names(refused("--cuda"), "--cuda", torch.__version__, "leave --cuda out")


def test_a_default_of_cuda_means_where_there_is_one(monkeypatch):
    """The default of scripts with convolutions."""
    for gpu in (True, False):
        monkeypatch.setattr(torch.cuda, "is_available", lambda gpu=gpu: gpu)
        assert ppo.fit_to_machine(ppo.Args(cuda=True)).cuda == gpu
        assert not ppo.fit_to_machine(ppo.Args(cuda=False)).cuda


def test_threads_are_those_that_the_process_may_use():
    """As taskset and OMP_NUM_THREADS say."""
    code = "import sys, ppo; print(ppo.fit_to_machine(ppo.Args(num_threads=None)).num_threads)"
    environment = {name: x for name, x in os.environ.items() if name != "OMP_NUM_THREADS"}
    one_core, all_cores = {min(os.sched_getaffinity(0))}, os.sched_getaffinity(0)

    def threads(cores, **variables):
        return subprocess.Popen(
            [sys.executable, "-c", code], cwd=SCRIPT.parent, env=environment | variables, text=True,
            stdout=subprocess.PIPE, preexec_fn=lambda: os.sched_setaffinity(0, cores),
        )  # fmt: skip

    started = [threads(one_core), threads(all_cores, OMP_NUM_THREADS="1")]
    assert [int(process.communicate()[0]) for process in started] == [1, 1]


def test_a_number_of_threads_is_a_number_of_threads(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 7)
    asked = (None, 5)
    assert [ppo.fit_to_machine(ppo.Args(num_threads=number)).num_threads for number in asked] == [7, 5]
    assert ppo.fit_to_machine(ppo.Args()).num_threads == 1  # this script's default


# ---------------------------------------------------------------------------------------------------- Wrong run folders


def test_a_name_that_is_too_long(refused):
    Path("runs").mkdir()
    assert_names(refused("--exp-name", "x" * 300), "runs: ", "File name too long")


def test_runs_is_a_link_to_nowhere(in_tmp_path):
    """As after a disk was taken out. The alarm ends a search for a free name that never ends."""
    Path("runs").symlink_to("nowhere")
    status, stderr = wait(fork(lambda: signal.alarm(10)))
    assert status == 2, stderr
    assert_names(error_line(stderr), "runs: ", "File exists")
    assert not Path("nowhere").exists()


@pytest.mark.parametrize("flag", ["--resume", "--evaluate"])
def test_a_run_folder_without_checkpoints(refused, half, flag):
    shutil.rmtree(half / "checkpoints")
    assert_names(refused(flag, half), str(half), "checkpoint")
    (half / "checkpoints").mkdir()
    (half / "checkpoints" / "10.pt.tmp").write_text("half")
    assert_names(refused(flag, half), str(half), "checkpoint")


def test_resume_takes_a_run_folder(refused, half):
    checkpoint = half / "checkpoints" / "20.pt"
    assert_names(refused("--resume", checkpoint), f"{checkpoint}: --resume takes a folder with checkpoints/*.pt")
    assert_names(refused("--resume", half, "--evaluate", half), "--resume", "--evaluate")


def test_files_beside_the_checkpoints(half):
    shutil.copy(half / "checkpoints" / "10.pt", half / "checkpoints" / "99 of another run.pt")
    ppo.main(ppo.Args(evaluate=str(half), episodes=1, seed=5))
    type_here("--resume", half)
    assert state(half, 40)["update"] == 40


@pytest.mark.parametrize("name", ["metrics.csv", "episodes.csv"])
def test_a_run_folder_without_its_rows(half, capsys, name):
    (half / name).unlink()
    with pytest.raises(SystemExit) as stop:
        type_here("--resume", half)
    assert stop.value.code == 1
    assert_names(error_line(capsys.readouterr().err), f"{half}: ", name)
    assert checkpoints(half) == [10, 20]


def test_resume_of_a_run_that_ended(trained, in_tmp_path, capsys):
    shutil.copytree(trained, "run")
    before = tree("run")
    type_here("--resume", "run")
    stdout, stderr = capsys.readouterr()
    assert_names(stdout, "run: 40 updates, 40 done", "run folder: run\n")
    assert stderr == ""
    after = tree("run")
    assert all(after[path] == content for path, content in before.items() if path.name != "lock")


# ------------------------------------------------------------------------------------ Arguments beside the checkpoint's


@pytest.mark.parametrize(
    "typed, parts",
    [
        ("--seed 6", ["--seed 6", "5"]),
        ("--seed 1", ["--seed 1", "5"]),  # the default
        ("--seed=1", ["--seed 1", "5"]),
        ("--gamma 0.99", ["--gamma 0.99", "0.9"]),  # the default
        ("--anneal-lr", ["--anneal-lr True", "False"]),  # the default
        ("--no-bootstrap-truncated", ["--bootstrap-truncated False", "True"]),  # the default
        ("--target-kl None", ["--target-kl None", "1.0"]),  # the default
        ("--total-timesteps 3840", ["--total-timesteps 3840", "1920"]),
        ("--env-id CartPole-v1", ["--env-id CartPole-v1", "Random-v0"]),  # the default
        ("--env-id Acrobot-v1", ["--env-id Acrobot-v1", "Random-v0"]),
    ],
)
def test_a_flag_that_contradicts_the_checkpoint(refused, half, typed, parts):
    assert_names(refused("--resume", half, *typed.split()), *parts, "leave the flag out")


@pytest.mark.parametrize("typed", ["--gamma 0.99", "--env-id CartPole-v1", "--no-clip-vloss"])
def test_a_flag_that_contradicts_the_evaluated_checkpoint(refused, half, typed):
    assert_names(refused("--evaluate", half, *typed.split()), typed.split()[0].replace("--no-", "--"))


def test_arguments_are_compared_without_a_command_line_too(in_tmp_path, half):
    with pytest.raises(SystemExit):
        ppo.main(ppo.Args(resume=str(half), seed=6))


@pytest.mark.parametrize("typed", ["", "--seed 5 --gamma=0.9 --no-anneal-lr --env-id Random-v0 --target-kl 1"])
def test_resume_needs_no_flags_and_takes_the_same_ones(half, typed):
    type_here("--resume", half, *typed.split())
    assert checkpoints(half) == [10, 20, 30, 40]


@pytest.mark.parametrize("name", ["seed", "..seed"])
def test_words_that_are_no_flags_are_no_flags(half, name):
    half.rename(name)
    type_here("--resume", name)
    assert checkpoints(Path(name)) == [10, 20, 30, 40]


def test_an_argument_that_came_later_has_its_default(trained, refused, half):
    file = half / "checkpoints" / "20.pt"
    content = change(file)
    for name in ("bootstrap_truncated", "anneal_clip"):
        del content["args"][name]
    torch.save(content, file)
    assert_names(refused("--resume", half, "--anneal-clip"), "--anneal-clip True: the checkpoint has False")
    type_here("--resume", half)
    arguments = state(half, 40)["args"]
    assert (arguments["bootstrap_truncated"], arguments["anneal_clip"]) == (False, False)
    assert arguments.keys() == state(trained, 40)["args"].keys()


def test_another_run_folder_leaves_no_trace_in_a_checkpoint(trained, half):
    type_here("--resume", half)
    assert state(half, 40)["args"] == state(trained, 40)["args"]


def test_a_run_on_a_gpu_goes_on_with_a_gpu_alone_but_is_evaluated_anywhere(refused, half, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    change(half / "checkpoints" / "20.pt", args={"cuda": True})
    for typed in (["--resume", half], [f"--resume={half}"]):
        assert_names(refused(*typed), "--cuda", "no GPU")
    type_here("--evaluate", half, "--episodes", 2)
    assert "over 2 episodes" in capsys.readouterr().out
    type_here("--evaluate", half, "--episodes", 2, "--num-threads", 2, "--no-cuda")
    assert "over 2 episodes" in capsys.readouterr().out


def test_the_checkpoint_of_another_that_imports_a_module(refused, half):
    """A run folder is one's own; a single file may be anybody's."""
    Path("module_of_the_checkpoint.py").write_text("open('imported', 'w')")
    file = half / "checkpoints" / "20.pt"
    change(file, args={"env_id": "module_of_the_checkpoint:Random-v0"})
    sys.path.insert(0, "")
    try:
        assert_names(refused("--evaluate", file), "module_of_the_checkpoint", "--env-id")
        assert not Path("imported").exists()
        type_here("--evaluate", file, "--env-id", "module_of_the_checkpoint:Random-v0")
        assert Path("imported").exists()
        sys.modules.pop("module_of_the_checkpoint")
        for flag in ("--evaluate", "--resume"):
            Path("imported").unlink()
            type_here(flag, half)
            assert Path("imported").exists()
            sys.modules.pop("module_of_the_checkpoint")
    finally:
        sys.path.remove("")


# -------------------------------------------------------------------------------------------- Damaged and hostile files


class Hostile:
    """Unpickled without care, it makes a file."""

    def __reduce__(self):
        return open, ("hacked", "w")


def change(file, path=(), **entries):
    """Changes entries of a checkpoint, at a path of keys inside; returns the content."""
    content = torch.load(file, weights_only=True)
    for name, value in entries.items():
        inside = content
        for key in path:
            inside = inside[key]
        inside[name] = {**inside[name], **value} if isinstance(value, dict) and value else value
    torch.save(content, file)
    return content


def truncate(file, part):
    file.write_bytes(file.read_bytes()[: int(part * file.stat().st_size)])


def other_zip(file):
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("notes.txt", "not a checkpoint")


DAMAGES = {
    "empty": lambda file: file.write_bytes(b""),
    "text": lambda file: file.write_text("not a checkpoint\n"),
    "1 % of it": lambda file: truncate(file, 0.01),
    "half of it": lambda file: truncate(file, 0.5),
    "99 % of it": lambda file: truncate(file, 0.99),
    "another zip": other_zip,
    "a number": lambda file: torch.save(3, file),
    "a list": lambda file: torch.save([1, 2], file),
    "a bare state dict": lambda file: torch.save(change(file)["model"], file),
    "hostile pickle": lambda file: file.write_bytes(pickle.dumps({"script": "ppo", "model": Hostile()})),
    "hostile old format": lambda file: torch.save(
        {"script": "ppo", "model": Hostile()}, file, _use_new_zipfile_serialization=False
    ),
    "hostile": lambda file: torch.save(torch.load(file, weights_only=True) | {"model": Hostile()}, file),
}


@pytest.mark.parametrize("flag", ["--resume", "--evaluate"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint(refused, half, flag, damage):
    file = half / "checkpoints" / "20.pt"
    DAMAGES[damage](file)
    assert_names(refused(flag, half), str(file), "not a whole checkpoint", "move it away or name another")
    assert not Path("hacked").exists()


@pytest.mark.parametrize("flag", ["--resume", "--evaluate"])
def test_an_empty_variable_starts_no_training(refused, flag):
    assert_names(refused(flag, ""), "--resume takes a folder with checkpoints/*.pt")


@pytest.mark.parametrize("flag", ["--resume", "--evaluate"])
def test_a_run_that_is_not_there(refused, flag):
    assert_names(refused(flag, "runs/RUN"), "runs/RUN: --resume takes a folder with checkpoints/*.pt")


def test_a_run_without_a_checkpoint_is_no_damaged_one(refused, half):
    shutil.rmtree(half / "checkpoints")
    (half / "checkpoints").mkdir()
    assert_names(refused("--evaluate", half), f"{half}: --resume takes a folder with checkpoints/*.pt, --evaluate")


def test_no_flipped_byte_goes_unnoticed(trained, in_tmp_path, capsys):
    """Each is refused, or the content is the same, since zip files have bytes without meaning."""
    whole, wanted = (trained / "checkpoints" / "40.pt").read_bytes(), state(trained, 40)
    seed = random.SystemRandom().randrange(10**6)
    print("seed", seed)
    chance, file, refusals = random.Random(seed), Path("flipped.pt"), 0
    for position in chance.sample(range(len(whole)), 100):
        flipped = bytearray(whole)
        flipped[position] ^= 1 << chance.randrange(8)
        file.write_bytes(flipped)
        try:
            content = ppo.Run(ppo.Args(evaluate=str(file))).state
        except SystemExit as stop:
            assert stop.code == 2
            refusals += 1
        else:
            assert content["args"] == wanted["args"]
            assert all(torch.equal(content["model"][name], wanted["model"][name]) for name in wanted["model"])
    assert refusals > 50
    assert capsys.readouterr().err.count("\n") == refusals


ADAM = ("optimizer", "state", 0)
TAMPERED = {
    "weights of another shape": {"model": {"actor.0.weight": torch.zeros(64, 4)}},
    "weights as text": {"model": {"actor.0.weight": "zeros"}},
    "other weights": {"model": {"actor.6.weight": torch.zeros(3)}},
    "no generator": {"rng": {}},
    "generator of another kind": {"rng": {"bit_generator": "MT19937"}},
    "short torch_rng": {"torch_rng": torch.zeros(3, dtype=torch.uint8)},
    "float torch_rng": {"torch_rng": torch.zeros(5056)},
    "unknown argument": {"args": {"learning_speed": 1}},
    "argument not as text": {"args": {3: 4}},
    "learning rate not finite": {"args": {"learning_rate": math.nan}},
    "unknown environment": {"args": {"env_id": "Rondom-v0"}},
    "another environment": {"args": {"env_id": "CartPole-v1"}},
    "Adam's means of another shape": {"path": ADAM, "exp_avg": torch.zeros(3)},
    "Adam's squares of another shape": {"path": ADAM, "exp_avg_sq": torch.zeros(3)},
    "Adam's means as text": {"path": ADAM, "exp_avg": "zeros"},
    "Adam's step of another shape": {"path": ADAM, "step": torch.zeros(3)},
    "Adam's step as text": {"path": ADAM, "step": "3"},
}


@pytest.mark.parametrize("change_name", TAMPERED)
def test_a_tampered_checkpoint(refused, half, change_name):
    """In processes of their own, since some of these end without care in a crash."""
    file = half / "checkpoints" / "20.pt"
    change(file, **TAMPERED[change_name])
    before = tree(Path("runs"))
    status, stderr = wait(fork(resume=str(half), seed=5, gamma=0.9, anneal_lr=False))
    assert status == 2, stderr
    error_line(stderr)
    assert tree(Path("runs")) == before


HOSTILE_TENSORS = {
    "integers": lambda n: torch.zeros(n, dtype=torch.int64),
    "twice as wide": lambda n: torch.zeros(n, dtype=torch.float64),
    "half as wide": lambda n: torch.zeros(n, dtype=torch.float16),
    "complex": lambda n: torch.zeros(n, dtype=torch.complex64),
    "sparse": lambda n: torch.zeros(n).to_sparse(),
    "no memory": lambda n: torch.zeros(n, device="meta"),
}


@pytest.mark.parametrize("kind", HOSTILE_TENSORS)
def test_hostile_means_of_adam_do_not_crash_the_process(half, kind):
    file = half / "checkpoints" / "20.pt"
    parameters = len(state(half, 20)["optimizer"]["state"][0]["exp_avg"])
    change(file, path=ADAM, exp_avg=HOSTILE_TENSORS[kind](parameters))
    status, stderr = wait(fork(resume=str(half), seed=5, gamma=0.9, anneal_lr=False))
    assert status >= 0, stderr  # below 0, a signal


@pytest.mark.parametrize("name", ["exp_avg", "exp_avg_sq"])
def test_means_of_adam_that_share_one_number(half, name):
    """The shape is right, but there is memory for one number only: to write them all would overwrite other memory."""
    file = half / "checkpoints" / "20.pt"
    parameters = len(state(half, 20)["optimizer"]["state"][0][name])
    change(file, path=ADAM, **{name: torch.zeros(1).expand(parameters)})
    status, stderr = wait(fork(resume=str(half), seed=5, gamma=0.9, anneal_lr=False))
    assert status in (0, 2), stderr
    assert stderr == "" if status == 0 else error_line(stderr)


@pytest.mark.parametrize(
    "name",
    "script args update global_step seconds recent_returns model optimizer rng torch_rng".split(),
)
def test_a_checkpoint_that_lacks_an_entry(refused, half, name):
    file = half / "checkpoints" / "20.pt"
    content = change(file)
    del content[name]
    torch.save(content, file)
    assert_names(refused("--resume", half), str(file), name)


def test_a_checkpoint_that_lacks_the_squares_of_adam(refused, half):
    file = half / "checkpoints" / "20.pt"
    content = change(file)
    del content["optimizer"]["state"][0]["exp_avg_sq"]
    torch.save(content, file)
    assert_names(refused("--resume", half), str(file), "exp_avg_sq")


@pytest.mark.parametrize("entry", [{"betas": "0.9"}, {"betas": (0.5, 0.5)}, {"eps": None}, {"amsgrad": True}])
def test_settings_of_adam_are_refused_or_not_used(trained, half, entry):
    """The arguments say them already."""
    change(half / "checkpoints" / "20.pt", path=("optimizer", "param_groups", 0), **entry)
    status, stderr = wait(fork(resume=str(half), seed=5, gamma=0.9, anneal_lr=False))
    if status == 0:
        assert_same_state(state(half, 40), state(trained, 40))
    else:
        assert status == 2, stderr
        error_line(stderr)


@pytest.mark.parametrize("flag", ["--resume", "--evaluate"])
def test_a_checkpoint_of_another_script(refused, half, flag):
    change(half / "checkpoints" / "20.pt", script="ppo_atari")
    assert_names(refused(flag, half), "20.pt", "ppo_atari.py")


# ------------------------------------------------------------------------------------------------ Numbers that run away


@pytest.mark.parametrize(
    "env_id, what",
    [
        ("NaN-blink-v0", "loss, weight"),
        ("Infinite-blink-v0", "loss, weight"),
        ("NaN-obs-v0", "observation, loss, weight"),
        ("Infinite-obs-v0", "observation, loss, weight"),
        ("Huge-obs-v0", "loss, weight"),
        ("NaN-reward-v0", "loss, weight"),
        ("Infinite-reward-v0", "loss, weight"),
        ("Huge-reward-v0", "loss, weight"),
    ],
)
def test_what_is_not_finite_stops_the_run_and_leaves_the_last_checkpoint(in_tmp_path, monkeypatch, env_id, what):
    monkeypatch.setattr(environments_cli.Spoiled, "steps", 0)
    status, stderr = wait(fork(env_id=env_id, checkpoints=20))  # the 160th step of all environments is in update 4
    assert status == 1, stderr
    (folder,) = Path().glob("runs/*")
    assert_names(error_line(stderr), f"update 4: not finite: {what}; {folder} holds what was saved before")
    assert checkpoints(folder) == [2]
    assert all(weights.isfinite().all() for weights in state(folder, 2)["model"].values())
    assert len(rows(folder, "metrics.csv")) == 3
    ppo.main(ppo.Args(evaluate=str(folder), episodes=1))


# ----------------------------------------------------------------------------------------------------------- Evaluation


def evaluation(text):
    """Mean, standard deviation, mean length, and return and length of each episode, as printed."""
    summary = re.search(r"return (\S+) ± (\S+), length (\S+) over (\d+) episodes", text)
    episodes = re.findall(r"^episode (\d+): return (\S+), length (\d+)$", text, re.MULTILINE)
    assert [int(number) for number, *_ in episodes] == list(range(int(summary[4])))
    return [float(x) for x in summary.groups()[:3]], np.array(episodes, float)[:, 1:]


@pytest.fixture(scope="module")
def balanced(tmp_path_factory):
    """The folder of a short run of CartPole, whose return is its length."""
    with contextlib.chdir(tmp_path_factory.mktemp("balanced")):
        return train(env_id="CartPole-v1", total_timesteps=480, checkpoints=10).resolve()


def test_evaluate_as_typed(balanced, in_tmp_path, capsys):
    shutil.copytree(balanced, "run")
    before = tree(in_tmp_path)
    stdout, stderr = run("--evaluate", "run", "--episodes", "12")
    assert stderr == ""
    assert "run/checkpoints/10.pt: return" in stdout
    (mean, std, length), episodes = evaluation(stdout)
    assert len(episodes) == 12
    assert len(set(episodes[:, 0])) > 3
    assert (episodes[:, 0] == episodes[:, 1]).all()
    assert np.allclose([mean, std, length], [episodes.mean(), episodes[:, 0].std(), episodes.mean()], atol=0.05)
    type_here("--evaluate", "run", "--episodes", 12)
    assert capsys.readouterr().out == stdout  # the same twice
    assert tree(in_tmp_path) == before


def test_evaluate_one_checkpoint_with_another_seed(balanced, capsys):
    returns = []
    for name, *typed in (["10.pt"], ["9.pt", "--seed", 7]):
        type_here("--evaluate", balanced / "checkpoints" / name, *typed)
        stdout = capsys.readouterr().out
        assert f"checkpoints/{name}: return" in stdout
        returns.append(evaluation(stdout)[1][:, 0].tolist())
    assert returns[0] != returns[1]


def test_evaluate_prints_each_game_as_it_ends(balanced, monkeypatch, capsys):
    evaluate, printed = ppo.evaluate, []

    def noted(*arguments):
        for result in evaluate(*arguments):
            printed.append(capsys.readouterr().out.splitlines())
            yield result

    monkeypatch.setattr(ppo, "evaluate", noted)
    assert ppo.main(ppo.Args(evaluate=str(balanced), episodes=3)) is None
    assert [len(lines) for lines in printed] == [0, 1, 1]
    assert printed[2][0].startswith("episode 1: return ")
    assert len(capsys.readouterr().out.splitlines()) == 2  # the last one and the mean


def test_evaluate_that_fails_names_no_way_to_resume(balanced, monkeypatch, capsys):
    def printed(*words, **options):
        raise BrokenPipeError(32, "Broken pipe")  # as when `| head -1` has seen enough

    monkeypatch.setattr(ppo, "print", printed, raising=False)
    monkeypatch.setattr(ppo, "fail", Mock(side_effect=SystemExit))
    with pytest.raises(SystemExit):
        ppo.main(ppo.Args(evaluate=str(balanced), episodes=3))
    (message,) = ppo.fail.call_args.args
    assert message == f"{balanced}: [Errno 32] Broken pipe"


def test_evaluate_makes_no_training_environments(balanced, monkeypatch, capsys):
    made = []
    make_env = ppo.make_env
    monkeypatch.setattr(ppo, "make_env", lambda *arguments: made.append(arguments) or make_env(*arguments))
    folder = train(env_id="CartPole-v1", num_envs=40, num_steps=2, total_timesteps=80, checkpoints=1)
    assert len(made) >= 40
    del made[:]
    ppo.main(ppo.Args(evaluate=str(folder), episodes=1))
    assert len(made) < 8


def test_evaluate_with_a_video(balanced, in_tmp_path, capsys):
    shutil.copytree(balanced, "run")
    before = set(tree(in_tmp_path))
    type_here("--evaluate", "run", "--episodes", 2, "--capture-video")
    stdout, video = capsys.readouterr().out, Path("run/checkpoints/10.mp4")
    assert set(tree(in_tmp_path)) - before == {in_tmp_path / video}
    assert stdout.splitlines()[-1] == f"video: {video}"
    _, episodes = evaluation(stdout)
    assert len(iio.imread(video, plugin="FFMPEG")) == episodes[0, 1]  # the first episode's
