"""The version is one, and the examples of docs/use-a-trained-agent.md run where there is nothing
but a run folder and its script."""

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import ppo
import ppo_continuous_action
import ppo_numpy
import pytest
import torch
from test_docs import blocks

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    """A run folder, and a folder that holds nothing but it and the script; its name is not a simple one."""
    here = tmp_path_factory.mktemp("examples") / "mein Übungsordner"
    here.mkdir()
    shutil.copy(ROOT / "cleanrl" / "ppo.py", here)
    command = [sys.executable, here / "ppo.py", "--total-timesteps", "512", "--exp-name", "a"]
    subprocess.run(command, cwd=here, check=True, capture_output=True)
    (folder,) = (here / "runs").iterdir()
    return folder


def type_example(name: str, run_folder: Path, *words: str) -> str:
    """Runs an example of docs/use-a-trained-agent.md, with further words; returns what it prints."""
    (block,) = [block for block in blocks(ROOT / "docs" / "use-a-trained-agent.md") if block.title == name]
    folder = run_folder.parents[1]
    (folder / name).write_text(block.text, "utf-8")
    done = subprocess.run([sys.executable, name, run_folder, *words], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_ten_lines_play_a_trained_agent_where_there_is_only_the_script_and_a_run(run_folder):
    printed = type_example("play.py", run_folder)
    assert printed == type_example("play.py", run_folder) and printed.startswith("return ")
    assert type_example("policy.py", run_folder) in ("action 0\n", "action 1\n")


def test_the_policy_is_exported_to_onnx(run_folder):
    needed = "pip install onnx onnxruntime onnxscript"
    pytest.importorskip("onnxscript", reason=f"onnx is not installed: {needed}")
    onnxruntime = pytest.importorskip("onnxruntime", reason=f"onnxruntime is not installed: {needed}")
    type_example("export.py", run_folder)
    session = onnxruntime.InferenceSession(run_folder.parents[1] / "policy.onnx")
    obs = np.float32([[0.1, -0.2, 0.3, -0.4]])
    (logits,) = session.run(None, {"obs": obs})
    with torch.no_grad():
        assert logits == pytest.approx(ppo.load(run_folder).agent.actor(torch.from_numpy(obs)).numpy(), abs=1e-6)
    player = ppo.load(run_folder, deterministic=True)
    assert type_example("act_onnx.py", run_folder) == f"return {ppo.play(player, 1)['r']:.0f}\n"


def test_a_box_policy_is_exported_with_its_normalization_and_bounds(tmp_path):
    needed = "pip install onnx onnxruntime onnxscript"
    pytest.importorskip("onnxscript", reason=f"onnx is not installed: {needed}")
    onnxruntime = pytest.importorskip("onnxruntime", reason=f"onnxruntime is not installed: {needed}")
    shutil.copy(ROOT / "cleanrl" / "ppo_continuous_action.py", tmp_path)
    words = "--env-id Pendulum-v1 --num-steps 512 --total-timesteps 512 --learning-rate 0.003 --no-anneal-lr".split()
    command = [sys.executable, "ppo_continuous_action.py", *words]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    (folder,) = (tmp_path / "runs").iterdir()
    path = folder / "checkpoints" / "1.pt"
    checkpoint = torch.load(path, weights_only=True)
    checkpoint["model"]["actor.4.weight"] *= 30.0  # so that some actions leave the bounds
    checkpoint["model"]["actor.4.bias"] *= 30.0
    torch.save(checkpoint, path)
    type_example("export_box.py", folder)
    session = onnxruntime.InferenceSession(tmp_path / "box_policy.onnx")
    player = ppo_continuous_action.load(folder, deterministic=True)
    observations = np.float32([[[0.1, -0.9, 7.0]], [[1.0, 0.0, 0.0]], [[0.9, 0.4, 1.0]], [[-1.0, 0.0, -8.0]]])
    unclipped = np.concatenate([player.act(player.normalize(obs)) for obs in observations])
    actions = np.concatenate([session.run(None, {"obs": obs})[0] for obs in observations])
    assert actions == pytest.approx(unclipped.clip(-2.0, 2.0), abs=1e-5)
    assert 0 < (abs(unclipped) > 2.0).sum() < len(unclipped)


ROOM = """
import gymnasium as gym
import numpy as np


class Heater(gym.Env):
    observation_space = gym.spaces.Box(-50, 100, (2,), np.float32)
    action_space = gym.spaces.Box(np.float32([0, -3]), np.float32([100, 9]))

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        return self.np_random.normal(20, 9, 2).astype(np.float32), {}

    def step(self, action):
        self.last_action = action
        return self.np_random.normal(20, 9, 2).astype(np.float32), float(action[0]), False, False, {}


gym.register("Heater-v0", lambda **options: gym.wrappers.RescaleAction(Heater(**options), -1, 1), max_episode_steps=50)
"""


@pytest.mark.parametrize("script", ["ppo_continuous_action", "ppo_continuous_action_numpy"])
def test_an_exported_action_is_in_the_machines_units(script, tmp_path):
    """With RescaleAction, it is what the environment gets in a step of the player."""
    needed = "pip install onnx onnxruntime onnxscript"
    onnxruntime = pytest.importorskip("onnxruntime", reason=f"onnxruntime is not installed: {needed}")
    pytest.importorskip("onnxscript", reason=f"onnx is not installed: {needed}")
    shutil.copy(ROOT / "cleanrl" / f"{script}.py", tmp_path)
    (tmp_path / "heater.py").write_text(ROOM, "utf-8")
    words = "--env-id heater:Heater-v0 --num-steps 64 --num-minibatches 2 --total-timesteps 1024 --learning-rate 0.003"
    subprocess.run([sys.executable, f"{script}.py", *words.split()], cwd=tmp_path, check=True, capture_output=True)
    (folder,) = (tmp_path / "runs").iterdir()
    if script.endswith("numpy"):
        type_example("export_numpy.py", folder, script)
        path = "policy.onnx"
    else:
        type_example("export_box.py", folder)
        path = "box_policy.onnx"
    observations = np.float32([[20.0, 20.0], [-30.0, 5.0], [40.0, 60.0]])
    session = onnxruntime.InferenceSession(tmp_path / path)
    exported = np.concatenate([session.run(None, {"obs": obs[None]})[0] for obs in observations])
    program = (
        f"import sys; sys.path.insert(0, '.'); import {script} as ppo, numpy as np\n"
        f"player = ppo.load({str(folder)!r}, deterministic=True)\nplayer.reset([1])\n"
        f"for obs in {observations.tolist()}:\n"
        "    player.step(player.act(player.normalize(np.float32([obs]))))\n"
        "    print(*player.vector.envs[0].unwrapped.last_action)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    stepped = np.array([line.split() for line in done.stdout.splitlines()], float)
    assert exported == pytest.approx(stepped, abs=1e-3) and np.ptp(stepped, axis=0).max() > 0.01


def test_a_run_of_ppo_numpy_is_exported_without_torch(tmp_path):
    pytest.importorskip("onnx", reason="onnx is not installed: pip install onnx onnxruntime")
    onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: pip install onnxruntime")
    shutil.copy(ROOT / "cleanrl" / "ppo_numpy.py", tmp_path)
    command = [sys.executable, "ppo_numpy.py", "--total-timesteps", "1024"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    (folder,) = (tmp_path / "runs").iterdir()
    type_example("export_numpy.py", folder, "ppo_numpy")
    session = onnxruntime.InferenceSession(tmp_path / "policy.onnx")
    obs = np.float32([[0.1, -0.2, 0.3, -0.4], [0.0, 1.0, 0.0, 1.0]])
    (logits,) = session.run(None, {"obs": obs})
    assert logits == pytest.approx(ppo_numpy.load(folder).agent.get_logits(obs), abs=1e-5)


def test_the_version_is_one():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text("utf-8")
    assert f"\n## {version}, " in (ROOT / "CHANGELOG.md").read_text("utf-8")
