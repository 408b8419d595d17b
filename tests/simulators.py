"""The files of benchmark/simulators for MuJoCo Playground, brax and mjlab, on a CPU: they step, keep the last
observations of episodes, and the script learns with them. `make test-simulators` runs it, each in a virtual environment
of its own.
"""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "cleanrl"), str(ROOT / "benchmark" / "simulators")]
import ppo_continuous_action_gpu as ppo  # noqa: E402

N = 4  # environments


def follow(envs, actions):
    """Resets, takes the actions (T, N, A), and returns copies of what each step returned."""
    first_obs = envs.reset(3).clone()
    return first_obs, [[x.clone() for x in envs.step(action)] for action in actions]


def check_learning(folder, env_id, env_kwargs):
    """A short training and an evaluation, as they are typed."""
    sizes = ["--num-envs", str(N), "--num-steps", "8", "--total-timesteps", str(N * 8 * 3), "--device", "cpu"]
    run = ppo.main(*ppo.read_arguments(["--env-id", env_id, "--env-kwargs", env_kwargs, *sizes]))
    table = (folder / run / "metrics.csv").read_text("utf-8").splitlines()
    assert len(table) == 4


@pytest.mark.parametrize(
    "name, task, limit, options",
    [
        ("Playground", "CartpoleBalance", "episode_length", {"impl": "jax"}),
        ("Brax", "fast", "max_episode_steps", {}),
    ],
    ids=["playground", "brax"],
)
def test_jax(name, task, limit, options):
    if importlib.util.find_spec("mujoco_playground") is None:
        pytest.skip("not in this environment")
    import jax_envs

    make = getattr(jax_envs, name)
    actions = torch.zeros(6, N, make(N, "cpu", task, **options).action_dim) + 0.3
    first_obs, cut = follow(make(N, "cpu", task, **options, **{limit: 5}), actions)
    _, whole = follow(make(N, "cpu", task, **options, **{limit: 1000}), actions)
    for t, (obs, rewards, terminated, truncated, final_obs) in enumerate(cut):
        assert rewards.shape == (N,) and rewards.dtype == torch.float32
        assert truncated.tolist() == [t == 4] * N and not terminated.any()
        if t < 4:
            assert torch.equal(obs, final_obs)
        if t <= 4:
            torch.testing.assert_close(final_obs, whole[t][0])  # as if nothing had been cut
    torch.testing.assert_close(cut[4][0], first_obs)  # back in the first state


@pytest.mark.parametrize("env_id", ["jax_envs:Playground:CartpoleBalance", "jax_envs:Brax:fast"])
def test_jax_is_learned(tmp_path, monkeypatch, env_id):
    if importlib.util.find_spec("mujoco_playground") is None:
        pytest.skip("not in this environment")
    monkeypatch.chdir(tmp_path)
    check_learning(tmp_path, env_id, '{"impl": "jax"}' if "Playground" in env_id else "{}")


def test_mjlab(tmp_path, monkeypatch):
    """One simulation for all, since each compiles for a minute or two."""
    if importlib.util.find_spec("mjlab") is None:
        pytest.skip("not in this environment")
    import mjlab_envs

    envs = mjlab_envs.Mjlab(N, "cpu", "Mjlab-Cartpole-Swingup")
    actions = torch.zeros(6, N, envs.action_dim) + 0.3
    _, whole = follow(envs, actions)
    envs.reset(3)
    ages = torch.zeros_like(envs.ages)
    ages[:2] = envs.max_episode_steps - 4  # two environments reach their limit in the fourth step
    envs.ages = ages
    for t, action in enumerate(actions[:4]):
        obs, rewards, terminated, truncated, final_obs = envs.step(action)
        torch.testing.assert_close(final_obs, whole[t][4])
        assert rewards.shape == (N,) and not terminated.any()
        assert truncated.tolist() == [t == 3, t == 3, False, False]
    assert (obs[:2] != final_obs[:2]).any(1).all() and torch.equal(obs[2:], final_obs[2:])
    assert envs.ages.tolist() == [0, 0, 4, 4]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(mjlab_envs, "Mjlab", lambda *_: envs)
    check_learning(tmp_path, "mjlab_envs:Mjlab:Mjlab-Cartpole-Swingup", "{}")
