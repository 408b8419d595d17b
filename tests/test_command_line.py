"""Scripts as a user types them: help, learning, evaluation, and wrong uses, which cost one line and create nothing."""

import contextlib
import importlib
import json
import os
import pickle
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path

import environments_cli
import gymnasium as gym
import numpy as np
import ppo
import ppo_multidiscrete
import pytest
import torch
from helpers import SCRIPT, error_line, rows, run, state, train, tree, type_here

SCRIPTS = sorted(path.stem for path in SCRIPT.parent.glob("ppo*.py"))


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
        before = tree(in_tmp_path)
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            type_here(*typed)
        _, stderr = capsys.readouterr()
        assert stop.value.code == 2, stderr
        assert tree(in_tmp_path) == before
        return error_line(stderr)

    return refused_words


# ------------------------------------------------------------------------------------------------- Help and start


@pytest.mark.parametrize("script", SCRIPTS)
def test_help_shows_every_option(script, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as stop:
        importlib.import_module(script).read_arguments(["--help"])
    stdout, stderr = capsys.readouterr()
    assert stop.value.code == 0 and stderr == ""
    for option in ("--env-id", "--total-timesteps", "--resume", "--evaluate", "--deterministic", "--env-kwargs"):
        assert option in stdout


def test_cartpole_is_learned_as_typed(in_tmp_path):
    """A tenth of the default steps; ppo_numpy.py, which computes the same, takes them all: test_numpy.py."""
    stdout, stderr = run("--total-timesteps", "51200", "--learning-rate", "1e-3")
    (folder,) = Path().glob("runs/CartPole-v1__ppo__1__*")
    returns = [float(row["episodic_return"]) for row in rows(folder, "episodes.csv")]
    assert np.mean(returns[:50]) < 50 and np.mean(returns[-50:]) > 150
    assert f"run folder: {folder}" in stdout
    assert stderr == ""


def test_a_million_is_typed_as_1e6_and_saved_as_a_whole_number(in_tmp_path):
    type_here("--total-timesteps", "1.024e3", "--exp-name", "1e3")
    (folder,) = Path("runs").iterdir()
    arguments = json.loads((folder / "config.json").read_text())["arguments"]
    assert arguments["total_timesteps"] == 1024 and isinstance(arguments["total_timesteps"], int)
    assert arguments["exp_name"] == "1e3"


def test_make_with_an_old_python_says_so_in_one_line_and_leaves_no_environment(in_tmp_path):
    shutil.copy(SCRIPT.parents[1] / "Makefile", in_tmp_path)
    for name in ("requirements.txt", "requirements-dev.txt", "requirements-docs.txt", "requirements-procgen.txt"):
        Path(name).touch()
    old = Path("python3.10")  # pretends to be one, and would leave a file if it was asked for more than its version
    old.write_text(
        f'#!/bin/sh\n[ "$1" = -c ] && exec {sys.executable} -c '
        '"import sys; sys.version_info, sys.version = (3, 10), \'3.10 (main)\'; exec(sys.argv[1])" "$2"\ntouch asked\n'
    )
    old.chmod(0o755)
    made = subprocess.run(["make", "train", "PYTHON=./python3.10"], capture_output=True, text=True)
    assert "Python 3.11 or newer is needed" in made.stderr.splitlines()[0]
    assert made.returncode == 2 and not Path(".venv").exists() and not Path("asked").exists()


# ----------------------------------------------------------------------------------------------------- Wrong uses


@pytest.mark.parametrize(
    "typed, named",
    [
        ("--env-id Nope-v0", "--env-id Nope-v0"),
        ("--env-id ALE/Nope-v5", "ppo_atari.py"),
        ("--env-id nope:Nope-v0", "--env-id nope:Nope-v0"),
        ("--env-id Pendulum-v1", "ppo_continuous_action.py"),
        ("--env-id CopyMultiDiscrete-v0", "ppo_multidiscrete.py"),
        ("--env-id FailingReset-v0", "no simulator"),
        ("--env-id Wordless-v0", "--debug"),
        ("--env-id WrongShape-v0", "--env-id WrongShape-v0"),
        ("--env-id NoPicture-v0 --capture-video", "--no-capture-video"),
        ("--env-id Constant-v0 --capture-video", "--no-capture-video"),  # its class takes no render_mode
        ("--env-kwargs [1]", "--env-kwargs [1]"),
        ("--env-kwargs {option:1}", "--env-kwargs {option:1}"),
        ('--env-kwargs {"option":1}', '--env-kwargs {"option":1}'),
        ("--num-envs 0", "--num-envs 0"),
        ("--gamma 1.01", "--gamma 1.01"),
        ("--learning-rate nan", "--learning-rate nan"),
        ("--total-timesteps 511", "--total-timesteps 511"),
        ("--num-minibatches 5", "--num-minibatches 5"),
        ("--num-threads 0", "--num-threads 0"),
        ("--seed -1", "--seed -1"),
        ("--episodes 0 --evaluate runs/half", "--episodes 0"),
        ("--device mps", "--device mps"),
        ("--resume runs/half/checkpoints/20.pt", "--resume runs/half/checkpoints/20.pt"),
        ("--resume runs/half --num-steps 8", "--num-steps"),
        ("--evaluate nowhere", "nowhere"),
        ("--evaluate runs", "runs"),
        ("--evaluate runs/half/config.json", "runs/half/config.json"),
    ],
)
def test_a_wrong_use_costs_one_line(refused, half, typed, named):
    assert named in refused(*typed.split())


FLOATS = gym.spaces.Box(-1, 1, (2,), np.float32)
BYTES = gym.spaces.Box(0, 255, (2,), np.uint8)


@pytest.mark.parametrize(
    "lie, named",
    [
        ({"values": 4}, "expected 5, got 4"),
        ({"reward": None}, "reward is None"),
        ({"reward": "1"}, "reward is '1'"),
        ({"reward": np.ones(1)}, "reward is array"),
        ({"observation": np.zeros(3)}, "observes float64 (3,)"),
        ({"observation": np.full(2, np.nan)}, "from nan to nan"),
        ({"observation": np.full(2, 0.5), "observation_space": BYTES}, "observation_space says uint8 (2,)"),
        ({"observation": {"x": [0.5, 0]}, "observation_space": gym.spaces.Dict(x=BYTES)}, "says uint8 (2,)"),
        ({"observation": (4, [300, 0]), "observation_space": gym.spaces.Tuple([gym.spaces.Discrete(5), BYTES])}, "300"),
        ({"observation": np.zeros(2), "next_observation": np.full(2, 0.5), "observation_space": BYTES}, "says uint8"),
        ({"observation": "left", "observation_space": gym.spaces.Text(9)}, "observes Text"),
        ({"observation": {"x": "left"}, "observation_space": gym.spaces.Dict(x=gym.spaces.Text(9))}, "observes Text"),
        ({"observation": (), "observation_space": gym.spaces.Sequence(FLOATS)}, "observes Sequence"),
        ({"observation": {"x": ()}, "observation_space": gym.spaces.Dict(x=gym.spaces.Sequence(FLOATS))}, "Sequence"),
    ],
)
@pytest.mark.parametrize("script", [ppo, ppo_multidiscrete])
def test_an_environment_that_lies_about_itself_costs_one_line(refusal, script, lie, named):
    gym.register("Lie-v0", "environments_cli:Lying", kwargs=lie)
    assert named in refusal(script, env_id="Lie-v0", total_timesteps=512)


@pytest.mark.parametrize(
    "truth",
    [
        {"observation": [5, -5], "reward": np.float32(1)},  # out of its bounds
        {"observation": [1.0, 0.0], "reward": Fraction(1, 2), "observation_space": BYTES},  # nothing is lost
        {"observation": [1, 2], "observation_space": BYTES},  # int64
        {"observation": np.zeros(2), "reward": True},  # float64
        {"observation": (4, [1, 2]), "observation_space": gym.spaces.Tuple([gym.spaces.Discrete(5), FLOATS])},
    ],
)
def test_what_is_unusual_but_right_trains(in_tmp_path, truth):
    gym.register("Truth-v0", "environments_cli:Lying", kwargs=truth)
    train(env_id="Truth-v0", total_timesteps=48)


def test_rewards_and_observations_are_looked_at_in_other_scripts_too(refusal):
    space = gym.spaces.Box(0, 255, (64, 64, 3), np.uint8)
    picture = {"observation": np.full((64, 64, 3), 0.5), "observation_space": space}
    gym.register("Lie-v0", "environments_cli:Lying", kwargs=picture)
    assert "says uint8" in refusal(importlib.import_module("ppo_atari"), env_id="Lie-v0", device="cpu")
    gym.register("Lie-v0", "environments_cli:Lying", kwargs={"reward": None})
    assert "reward is None" in refusal(importlib.import_module("ppo_numpy"), env_id="Lie-v0")


def test_a_first_step_is_one_that_a_mask_allows(in_tmp_path):
    script = importlib.import_module("ppo_multidiscrete")
    for seed in range(3):
        np.random.seed(seed)
        script.check_arguments(script.Args(env_id="doors:Doors-info-v0"))  # it asserts that its mask is kept to


@pytest.mark.parametrize("typed", ["--env-id FailingReset-v0", "--env-id Nope-v0", "--env-id nope:Nope-v0"])
def test_every_message_of_somebody_elses_says_how_to_see_where_it_came_from(refused, typed):
    message = refused(*typed.split())
    assert message.endswith("; --debug shows where") and ".;" not in message


@pytest.mark.parametrize("method", ["reset", "step", "render"])
def test_an_environment_that_ends_python_at_once_costs_one_line(refused, monkeypatch, method):
    monkeypatch.setattr(environments_cli.Quitting, "calls", 0)
    typed = ["--env-id", "Quitting-v0", "--env-kwargs", json.dumps({"method": method}), "--capture-video"]
    assert "SystemExit" in refused(*typed)


def test_an_environment_that_ends_python_when_it_is_closed_trains(in_tmp_path, monkeypatch):
    monkeypatch.setattr(environments_cli.Quitting, "calls", 0)
    folder = train(env_id="Quitting-v0", env_kwargs='{"method": "close"}', capture_video=True)
    assert environments_cli.Quitting.calls > 1 and len(list(folder.glob("videos/*.mp4"))) == 4


def test_an_environment_that_ends_python_later_is_no_success(in_tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(environments_cli.Quitting, "calls", 0)
    with pytest.raises(ppo.UserError, match=r"sys\.exit"):
        train(env_id="Quitting-v0", env_kwargs='{"method": "step", "after": 500}')
    monkeypatch.setattr(environments_cli.Quitting, "calls", 0)
    folder = train(env_id="Quitting-v0", env_kwargs='{"method": "render", "after": 6}', capture_video=True)
    assert capsys.readouterr().err.count("warning: no video") == 3 and len(list(folder.glob("videos/*.mp4"))) == 1
    monkeypatch.setattr(environments_cli.Quitting, "calls", 0)
    typed = ["--evaluate", str(folder), "--env-kwargs", '{"method": "step", "after": 10}']
    with pytest.raises(ppo.UserError, match=r"sys\.exit"):
        ppo.main(*ppo.read_arguments(typed))
    assert len(rows(folder, "evaluation.csv")) == 2  # those that were played before


@pytest.mark.parametrize("flag", ["--resume", "--evaluate"])
def test_an_empty_variable_starts_no_training(refused, flag):
    assert refused(flag, "")


@pytest.mark.parametrize("script", SCRIPTS)
def test_what_users_of_cleanrl_type_is_taken(script):
    script = importlib.import_module(script)
    typed = "--gym-id Mine-v0 --prod-mode True --anneal-lr False --torch-deterministic False --capture-video True"
    today = "--env-id Mine-v0 --track --no-anneal-lr --no-torch-deterministic --capture-video"
    if "gpu" in script.__name__.split("_"):  # it has no videos
        typed = typed.replace(" --capture-video True", "")
        today = today.replace(" --capture-video", "")
    if "numpy" in script.__name__:
        typed = typed.replace("--torch-deterministic False ", "")
        today = today.replace("--no-torch-deterministic ", "")
    else:
        typed += " --cuda False"
        today += " --device cpu"
    assert script.read_arguments(typed.split()) == script.read_arguments(today.split())
    assert script.read_arguments(["--track", "False"]) == script.read_arguments([])
    for old, new in (("--kle-stop", "--target-kl"), ("--gae", "--gae-lambda")):
        with pytest.raises(script.UserError, match=f"{old}: .*{new}"):
            script.read_arguments([old])


def test_another_environment_is_a_run_of_its_own(refused, half):
    line = refused("--resume", "runs/half", "--env-id", "CartPole-v1")
    assert "load_checkpoint('runs/half')['model']" in line and "docs/make-it-your-own.md" in line


def test_a_training_in_another_thread_is_refused_and_an_evaluation_is_not(half, capsys):
    before = tree("runs")
    with ThreadPoolExecutor() as threads:
        with pytest.raises(ppo.UserError, match="main thread"):
            threads.submit(train).result()
        assert tree("runs") == before
        typed = ["--evaluate", "runs/half", "--episodes", "1"]
        threads.submit(lambda: ppo.main(*ppo.read_arguments(typed))).result()
    assert "episode 1: return" in capsys.readouterr().out


@pytest.mark.parametrize("other", ["ppo_numpy", "ppo_lstm"])
def test_the_run_of_another_script_names_it(half, in_tmp_path, other):
    script = importlib.import_module(other)
    options = {"env_id": "Random-v0", "total_timesteps": 64, "num_envs": 4, "num_steps": 16}
    folder = script.main(script.Args(**options))
    with pytest.raises(ppo.UserError, match=f"{other}.py"):
        ppo.load(folder)
    with pytest.raises(script.UserError, match=r"\bppo.py"):
        script.load(half)


def test_cuda_is_accepted_and_refused_where_there_is_none(refused, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "--device cpu" in refused("--cuda")
    type_here("--no-cuda", "--total-timesteps", "512")


def test_a_missing_package_is_named(refused, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "pip install wandb" in refused("--track")


def write_module(name):
    """A module in the current folder that registers Own-v0, and leaves a file when it is imported."""
    lines = ["from pathlib import Path", "import gymnasium as gym", "Path('imported').touch()"]
    lines.append("gym.register('Own-v0', 'environments:Random')")
    Path(f"{name}.py").write_text("\n".join(lines))


def test_a_module_in_the_current_folder_is_found_and_its_ids_are_listed(in_tmp_path, monkeypatch, capsys):
    monkeypatch.delitem(gym.registry, "Own-v0", raising=False)
    write_module("mine")
    with pytest.raises(SystemExit):
        type_here("--env-id", "mine:Owen-v0")
    assert "Own-v0" in error_line(capsys.readouterr().err)
    type_here("--env-id", "mine:Own-v0", "--total-timesteps", "512")


def test_a_module_that_registers_nothing_is_told_so(refused):
    Path("empty.py").touch()
    assert "registers nothing" in refused("--env-id", "empty:NotHere-v0")


def test_an_edit_may_take_out_the_wrapper_of_statistics(monkeypatch):
    def make(args, render_mode=None):
        return gym.wrappers.ClipReward(gym.make(args.env_id).unwrapped, 0.0, 1.0)

    monkeypatch.setattr(ppo, "make_env", make)
    ppo.check_arguments(ppo.Args())  # takes a first step


def test_actions_that_no_script_takes_need_a_wrapper(refused):
    lines = ["import environments", "import gymnasium as gym", "class Two(environments.Random):"]
    lines.append("    action_space = gym.spaces.Tuple([gym.spaces.Discrete(2)] * 2)")
    lines.append("gym.register('Two-v0', Two)")
    Path("two.py").write_text("\n".join(lines))
    assert "no script takes Tuple actions" in refused("--env-id", "two:Two-v0")


def test_load_raises_what_other_programs_can_catch(in_tmp_path):
    with pytest.raises(ValueError, match="nowhere"):
        ppo.load("nowhere")


def test_debug_shows_the_traceback(in_tmp_path):
    with pytest.raises(ValueError, match="no simulator") as error:
        type_here("--env-id", "FailingReset-v0", "--debug")
    assert isinstance(error.value.__cause__, RuntimeError)


class Spaces(gym.Env):
    def __init__(self, observation_space, action_space, render_mode=None):
        self.observation_space = observation_space
        self.action_space = action_space

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), 1.0, bool(self.np_random.random() < 0.2), False, {}


@pytest.mark.parametrize("shape", [(64, 64), (64, 64, 3), (3, 84, 96)])
def test_pictures_are_refused(refused, shape):
    kwargs = {"observation_space": gym.spaces.Box(0, 255, shape, np.uint8), "action_space": gym.spaces.Discrete(2)}
    gym.register("Spaces-v0", Spaces, kwargs=kwargs)
    assert "ppo_atari.py" in refused("--env-id", "Spaces-v0")


def test_numbers_in_dicts_and_boards_are_flattened(in_tmp_path):
    inner = gym.spaces.Tuple([gym.spaces.Discrete(4), gym.spaces.Box(0, 255, (5, 5, 3), np.uint8)])
    observation_space = gym.spaces.Dict(a=inner, b=gym.spaces.Box(-1, 1, (2,)))
    kwargs = {"observation_space": observation_space, "action_space": gym.spaces.Discrete(2)}
    gym.register("Spaces-v0", Spaces, kwargs=kwargs)
    folder = train(env_id="Spaces-v0")
    assert state(folder, 40)["model"]["actor.0.weight"].shape == (64, 4 + 75 + 2)


# ----------------------------------------------------------------------------------------------- Checkpoint files


class Bomb:
    def __reduce__(self):
        return os.mkdir, ("exploded",)


def test_triton_is_loaded_before_anything_draws(tmp_path):
    """Torch's CUDA build has it, and it crashes when it is loaded after Mesa's EGL, which draws MuJoCo's pictures."""
    (tmp_path / "triton.py").write_text("")
    code = "import sys; import ppo; sys.exit('triton' not in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code], cwd=SCRIPT.parent, env=environment, check=True)


def test_nothing_that_a_checkpoint_holds_is_executed(refused, half):
    with open(half / "checkpoints" / "20.pt", "wb") as file:
        torch.save({**state(half, 10), "bomb": Bomb()}, file)
    assert "20.pt" in refused("--resume", "runs/half")
    (half / "checkpoints" / "20.pt").write_bytes(pickle.dumps(Bomb()))
    assert "20.pt" in refused("--evaluate", "runs/half")
    assert not Path("exploded").exists()


def test_a_cut_checkpoint_is_named(refused, half):
    path = half / "checkpoints" / "20.pt"
    path.write_bytes(path.read_bytes()[:1000])
    assert "20.pt" in refused("--evaluate", "runs/half")


def test_a_checkpoint_of_another_network_or_environment_does_not_fit(half, refused):
    assert "20.pt" in refused("--evaluate", "runs/half", "--env-id", "CartPole-v1")


def test_a_strangers_checkpoint_imports_a_module_only_if_it_is_typed(half, capsys):
    write_module("strange")
    saved = state(half, 20)
    path = "runs/half/checkpoints/20.pt"
    torch.save({**saved, "args": {**saved["args"], "env_id": "strange:Own-v0"}}, path)
    with pytest.raises(SystemExit):
        type_here("--evaluate", path)
    assert "--env-id" in error_line(capsys.readouterr().err) and not Path("imported").exists()
    type_here("--evaluate", path, "--env-id", "strange:Own-v0")
    assert Path("imported").exists()


def test_a_checkpoint_may_have_fewer_or_other_options(half):
    saved = state(half, 20)
    del saved["args"]["max_grad_norm"]
    saved["args"]["an_option_that_went"] = 1
    torch.save(saved, half / "checkpoints" / "20.pt")
    assert ppo.load_checkpoint(half)["args"].max_grad_norm == 0.5


# ----------------------------------------------------------------------------------------------------- Evaluation


def test_evaluate_writes_what_it_prints(half, capsys):
    type_here("--evaluate", "runs/half", "--episodes", "3", "--seed", "7")
    printed = capsys.readouterr().out.splitlines()
    table = rows(half, "evaluation.csv")
    assert [(row["checkpoint"], row["seed"], row["episode"]) for row in table] == [
        ("20.pt", "7", str(i)) for i in (1, 2, 3)
    ]
    returns = [float(row["episodic_return"]) for row in table]
    assert printed[-1].startswith(f"mean return {np.mean(returns):.2f} ± {np.std(returns):.2f}")
    type_here("--evaluate", "runs/half/checkpoints/10.pt", "--episodes", "1")
    assert [row["checkpoint"] for row in rows(half, "evaluation.csv")] == ["10.pt"]


def test_deterministic_takes_the_most_probable_action(in_tmp_path):
    folder = train(env_id="Counter-v0")  # pays 1 for action 1
    saved = state(folder, 40)
    saved["model"]["actor.4.bias"] = torch.tensor([0.0, 0.3])
    saved["model"]["actor.4.weight"] *= 0
    torch.save(saved, folder / "checkpoints" / "40.pt")
    type_here("--evaluate", str(folder), "--deterministic", "--episodes", "5")
    assert {row["episodic_return"] for row in rows(folder, "evaluation.csv")} == {"8.0"}
    type_here("--evaluate", str(folder), "--episodes", "5")
    assert {row["episodic_return"] for row in rows(folder, "evaluation.csv")} != {"8.0"}


def test_a_long_episode_says_so_and_one_that_never_ends_is_cut(in_tmp_path, monkeypatch, capsys):
    folder = train(env_id="Endless-v0")  # pays 1 for action 1
    capsys.readouterr()
    monkeypatch.setattr(ppo, "LONG_EPISODE", 20)
    ppo.main(*ppo.read_arguments(["--evaluate", str(folder), "--longest-episode", "50", "--episodes", "2"]))
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("20 steps") and printed[1].endswith("length 50 when it was cut")
    table = rows(folder, "evaluation.csv")
    assert [(row["episodic_length"], row["is_cut"]) for row in table] == [("50", "1")] * 2
    for row, line in zip(table, printed[1::2]):
        assert 0 < float(row["episodic_return"]) < 50
        assert f"return {float(row['episodic_return']):.2f}" in line


@pytest.mark.parametrize("longest, is_cut", [(7, "1"), (8, "0")])
def test_an_episode_that_ends_at_the_limit_is_not_cut(in_tmp_path, longest, is_cut):
    folder = train(env_id="LimitedCounter-v0", total_timesteps=48)
    ppo.main(*ppo.read_arguments(["--evaluate", str(folder), "--longest-episode", str(longest), "--episodes", "1"]))
    assert [row["is_cut"] for row in rows(folder, "evaluation.csv")] == [is_cut]
