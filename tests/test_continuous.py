"""What ppo_continuous_action.py adds to ppo.py: the nine details for continuous actions, and statistics that last."""

import csv
import importlib.util
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import imageio.v2 as imageio
import numpy as np
import ppo_continuous_action as ppo
import pytest
import torch
from helpers import error_line, run
from scipy.stats import norm

SCRIPT = Path(ppo.__file__)


class Recorder(gym.Env):
    """Float64 observations on very different scales; keeps the actions that it was given. True end every 7 steps."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (3,), np.float64)
    actions: list[np.ndarray] = []  # noqa: RUF012 (shared by all, as the test has no hold of the instances)

    def __init__(self, bound=0.1, nan_after=math.inf, dictionary=False, render_mode=None):
        self.action_space = gym.spaces.Box(-bound, bound, (2,), np.float32)
        self.nan_after, self.dictionary, self.steps = nan_after, dictionary, 0
        if dictionary:
            self.observation_space = gym.spaces.Dict(
                position=gym.spaces.Box(-np.inf, np.inf, (2,)), speed=gym.spaces.Box(-np.inf, np.inf, ())
            )

    def observe(self):
        row = self.np_random.normal(size=3) * [1e-3, 1.0, 1e3] + [0.0, 5.0, -1e3]
        row = row if self.steps < self.nan_after else row * np.nan
        return {"position": row[:2].astype(np.float32), "speed": np.float32(row[2])} if self.dictionary else row

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.age = 0
        return self.observe(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        Recorder.actions.append(action.copy())
        self.steps, self.age = self.steps + 1, self.age + 1
        return self.observe(), float(self.np_random.normal() * 100 + 30), self.age == 7, False, {}


gym.register("Recorder-v0", Recorder)
gym.register("LimitedRecorder-v0", Recorder, max_episode_steps=5)
gym.register("UnboundedRecorder-v0", Recorder, kwargs={"bound": np.inf})
gym.register("DictRecorder-v0", Recorder, kwargs={"dictionary": True})
gym.register("NanRecorder-v0", Recorder, kwargs={"nan_after": 20})


class Fast(gym.Wrapper):
    """A MuJoCo environment whose agent gets 20 metres ahead in each step."""

    def step(self, action):
        env = self.unwrapped
        env.set_state(env.data.qpos + 20 * (np.arange(env.model.nq) == 0), env.data.qvel)
        return self.env.step(action)


for name in ("HalfCheetah-v4", "HalfCheetah-v5", "Ant-v4", "Hopper-v4", "Walker2d-v4"):
    gym.register(f"Fast{name}", lambda name=name, **options: Fast(gym.make(name, **options)), max_episode_steps=3)

SMALL = {"num_steps": 16, "num_minibatches": 4, "update_epochs": 2, "total_timesteps": 96, "checkpoints": 3}


def spy(monkeypatch, owner, name):
    """Records the arguments and the result of every call of owner.name."""
    calls, original = [], getattr(owner, name)

    def wrapper(*args, **kwargs):
        result = original(*args, **kwargs)
        calls.append((args, result))
        return result

    monkeypatch.setattr(owner, name, wrapper)
    return calls


def last_checkpoint(folder):
    return max(folder.glob("checkpoints/*.pt"), key=lambda file: int(file.stem))


def last_state(folder):
    return torch.load(last_checkpoint(folder), weights_only=True)


def normalized_envs(env_id, gamma):
    return ppo.NormalizedVectorEnv(ppo.Args(env_id=env_id, gamma=gamma))


def resumed(folder):
    """A copy of the run that lost all checkpoints but the first, and was resumed."""
    cut = Path(shutil.copytree(folder, folder.with_name("cut")))
    later = sorted(cut.glob("checkpoints/*.pt"), key=lambda file: int(file.stem))[1:]
    assert later
    for file in later:
        file.unlink()
    ppo.main(ppo.Args(resume=str(cut)))
    return cut


def assert_same_end(folder, other):
    for name in ("update", "model", "optimizer", "rng", "statistics"):
        assert_same(last_state(folder)[name], last_state(other)[name])


def assert_same(a, b):
    """Equal to the last bit, through nested dictionaries and lists."""
    assert type(a) is type(b)
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            assert_same(a[key], b[key])
    elif isinstance(a, list):
        assert len(a) == len(b)
        for x, y in zip(a, b):
            assert_same(x, y)
    else:
        assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


# The policy


def test_log_prob_and_entropy_are_those_of_independent_normals():  # cont-1, cont-3
    agent = ppo.Agent(3, 2)
    agent.log_std.data = torch.tensor([0.3, -0.7])
    obs, actions = torch.randn(5, 3), torch.randn(5, 2)
    _, log_prob, entropy, value = agent.get_action_and_value(obs, actions)
    mean, std = agent.actor(obs).detach().numpy(), np.exp([0.3, -0.7])
    np.testing.assert_allclose(log_prob.detach(), norm.logpdf(actions, mean, std).sum(-1), rtol=1e-5)
    np.testing.assert_allclose(entropy.detach(), np.full(5, norm.entropy(0, std).sum()), rtol=1e-6)
    torch.testing.assert_close(value, agent.get_value(obs))


def test_std_is_one_row_of_parameters_from_zero_that_observations_do_not_change():  # cont-2
    agent = ppo.Agent(3, 2)
    entropies = agent.get_action_and_value(torch.randn(50, 3) * 100)[2]
    assert len(set(entropies.tolist())) == 1
    assert torch.equal(agent.log_std, torch.zeros(2)) and agent.log_std.requires_grad


@pytest.mark.parametrize("obs_dim, action_dim, count", [(17, 6, 11_085), (11, 3, 10_119)])
def test_networks_are_separate_and_of_the_published_size(obs_dim, action_dim, count):  # cont-4
    agent = ppo.Agent(obs_dim, action_dim)
    assert sum(parameter.numel() for parameter in agent.parameters()) == count
    agent.get_value(torch.randn(4, obs_dim)).sum().backward()
    assert all(parameter.grad is None for parameter in agent.actor.parameters())
    assert [type(layer).__name__ for layer in agent.actor] == ["Linear", "Tanh", "Linear", "Tanh", "Linear"]


def test_drawn_actions_follow_the_distribution():
    agent = ppo.Agent(3, 2)
    agent.log_std.data = torch.tensor([0.3, -0.7])
    obs = torch.randn(1, 3).expand(20_000, 3)
    actions = agent.get_action_and_value(obs)[0]
    torch.testing.assert_close(actions.std(0), agent.log_std.exp(), rtol=0.03, atol=0)
    torch.testing.assert_close(actions.mean(0), agent.actor(obs[:1])[0], rtol=0, atol=0.05)


def test_only_the_environment_sees_clipped_actions(in_tmp_path, monkeypatch):  # cont-5
    Recorder.actions.clear()
    losses = spy(monkeypatch, ppo, "ppo_loss")
    policy_calls = spy(monkeypatch, ppo.Agent, "get_action_and_value")
    ppo.main(ppo.Args(env_id="Recorder-v0", **SMALL))
    stored = policy_calls[-9][0][2].numpy()  # the last rollout: an update is one call on it, and eight on minibatches
    given = np.array(Recorder.actions[-16:])
    assert (np.abs(stored) > 0.1).any()
    np.testing.assert_array_equal(given, stored.clip(-0.1, 0.1))
    per_update = len(losses) // 6
    for log_prob, _, _, old_log_probs, *_ in (call[0] for call in losses[::per_update]):
        torch.testing.assert_close(log_prob, old_log_probs, rtol=0, atol=1e-5)  # the ratio is 1


# The statistics


def test_statistics_are_those_of_all_rows_pooled():  # cont-6
    rng = np.random.default_rng(1)
    batches = [rng.normal(3, 2, (n, 4)) for n in (1, 5, 1, 8, 2)]
    statistics = ppo.RunningStatistics((4,))
    for batch in batches:
        statistics.update(batch)
    rows = np.concatenate(batches)
    weight = len(rows) + 1e-4  # it starts as if 1e-4 rows of mean 0 and variance 1 had been seen
    mean = rows.sum(0) / weight
    var = ((rows - mean) ** 2).sum(0) / weight + 1e-4 * (1 + mean**2) / weight
    np.testing.assert_allclose(statistics.mean, mean, rtol=1e-12)
    np.testing.assert_allclose(statistics.var, var, rtol=1e-12)
    assert statistics.count == pytest.approx(weight) and statistics.mean.dtype == np.float64


def test_statistics_keep_float64_precision_far_from_zero():
    statistics = ppo.RunningStatistics((1,))
    rows = np.random.default_rng(1).normal(1e6, 1.0, (20_000, 1))
    for row in rows:
        statistics.update(row[None])
    assert statistics.var[0] - 1e-4 * 1e12 / 20_000 == pytest.approx(rows.var(), rel=1e-3)


def test_observations_enter_the_statistics_before_they_are_normalised_and_are_clipped(monkeypatch):  # cont-6, cont-7
    seen = spy(monkeypatch, ppo.VectorEnv, "reset"), spy(monkeypatch, ppo.VectorEnv, "step")
    envs = normalized_envs("Recorder-v0", 0.99)
    normalized = [envs.reset([1, 2])]
    actions = np.zeros((2, 2), np.float32)
    normalized += [envs.step(actions)[0] for _ in range(20)]
    raw = [seen[0][0][1]] + [result[0] for _, result in seen[1]]
    rows = np.zeros((0, 3))
    for batch, result in zip(raw, normalized):
        rows = np.concatenate([rows, batch])
        weight = len(rows) + 1e-4
        mean = rows.sum(0) / weight
        var = (((rows - mean) ** 2).sum(0) + 1e-4 * (1 + mean**2)) / weight
        np.testing.assert_allclose(result, ((batch - mean) / np.sqrt(var + 1e-8)).clip(-10, 10), rtol=1e-6)
    envs.obs_statistics.mean, envs.obs_statistics.var = np.zeros(3), np.full(3, 1e-6)
    envs.obs_statistics.count = 1e9
    outliers = envs.step(actions)[0]
    assert outliers.max() <= 10.0 and outliers.min() == -10.0


@pytest.mark.parametrize("env_id", ["Recorder-v0", "LimitedRecorder-v0"])  # true ends and time limits
def test_rewards_are_scaled_by_the_spread_of_the_discounted_return(env_id, monkeypatch):  # cont-8
    raw = spy(monkeypatch, ppo.VectorEnv, "step")
    envs = normalized_envs(env_id, 0.9)
    envs.reset([1, 2])
    scaled = [envs.step(np.zeros((2, 2), np.float32))[1] for _ in range(30)]
    discounted, seen = np.zeros(2), []
    for (_, (_, rewards, dones, _, _)), result in zip(raw, scaled):
        discounted = 0.9 * discounted + rewards
        seen.extend(discounted)
        weight = len(seen) + 1e-4
        mean = np.sum(seen) / weight
        var = (np.sum((np.array(seen) - mean) ** 2) + 1e-4 * (1 + mean**2)) / weight
        np.testing.assert_allclose(result, (rewards / np.sqrt(var + 1e-8)).clip(-10, 10), rtol=1e-9)
        discounted[dones == 1] = 0.0
    assert any(result[2].any() for _, result in raw)


def test_scaled_rewards_are_clipped():  # cont-9
    envs = normalized_envs("Recorder-v0", 0.9)
    envs.reset([1, 2])
    envs.return_statistics.var, envs.return_statistics.count = np.float64(1e-4), 1e12
    rewards = np.concatenate([envs.step(np.zeros((2, 2), np.float32))[1] for _ in range(20)])
    assert rewards.max() == 10.0 and rewards.min() == -10.0


def test_reported_returns_are_not_scaled(in_tmp_path, monkeypatch):
    steps = spy(monkeypatch, ppo.VectorEnv, "step")
    folder = ppo.main(ppo.Args(env_id="Recorder-v0", **SMALL | {"checkpoints": 1}))
    with (folder / "episodes.csv").open() as file:
        rows = list(csv.DictReader(file))
    rewards = [result[1][0] for _, result in steps[1:]]  # the first step is validate's
    assert len(rows) == 96 // 7
    for i, row in enumerate(rows):
        assert float(row["episodic_return"]) == pytest.approx(sum(rewards[7 * i : 7 * i + 7]))


# Checkpoints and evaluation


def test_evaluation_of_the_loaded_file_equals_evaluation_after_training(in_tmp_path, monkeypatch, capsys):
    agents, all_envs = spy(monkeypatch, ppo.Agent, "__init__"), spy(monkeypatch, ppo.NormalizedVectorEnv, "__init__")
    sizes = {"num_envs": 2, "num_steps": 256, "num_minibatches": 8, "total_timesteps": 2048}
    folder = ppo.main(ppo.Args(env_id="Pendulum-v1", **sizes))
    agent, envs = agents[0][0][0], all_envs[0][0][0]
    args, before = ppo.Args(env_id="Pendulum-v1"), envs.state_dict()
    after_training = list(ppo.evaluate(agent, envs.obs_statistics, args, 3, 5))
    assert_same(envs.state_dict(), before)  # frozen
    capsys.readouterr()
    ppo.main(ppo.Args(evaluate=str(folder), episodes=3, seed=5))
    lines = [f"episode {i}: return {x:.2f}, length {length}" for i, (x, length) in enumerate(after_training)]
    assert capsys.readouterr().out.splitlines()[:3] == lines
    forgotten = list(ppo.evaluate(agent, ppo.RunningStatistics((3,)), args, 3, 5))
    assert forgotten != after_training  # so the statistics matter here


def test_checkpoints_hold_the_statistics_under_these_names(in_tmp_path):
    """Those of runs from before environments were normalised by a class with a state_dict are opened too."""
    folder = ppo.main(ppo.Args(env_id="LimitedRecorder-v0", num_envs=2, **SMALL))
    statistics = last_state(folder)["statistics"]
    assert {name: list(values) for name, values in statistics.items()} == {
        "observations": ["mean", "var", "count"], "returns": ["mean", "var", "count"],
    }  # fmt: skip
    assert statistics["observations"]["count"] == pytest.approx(2 * 51)  # 48 steps, three resets of two environments


def test_statistics_of_another_shape_are_one_line(in_tmp_path, capsys):
    folder = ppo.main(ppo.Args(env_id="Recorder-v0", **SMALL))
    file, state = last_checkpoint(folder), last_state(folder)
    state["statistics"]["observations"]["mean"] = torch.zeros(4, dtype=torch.float64)
    torch.save(state, file)
    with pytest.raises(SystemExit) as stop:
        ppo.main(ppo.Args(evaluate=str(folder)))
    assert stop.value.code == 2
    assert "does not fit" in capsys.readouterr().err


# Environments


@pytest.mark.parametrize(
    "env_id",
    [
        "HalfCheetah-v4", "HalfCheetah-v5", "BipedalWalker-v3", "LunarLanderContinuous-v3", "Pendulum-v1",
        "dm_control/cartpole-balance-v0", "HopperBulletEnv-v0", "UnboundedRecorder-v0", "DictRecorder-v0",
        "LimitedRecorder-v0",
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore")
def test_every_family_trains_and_a_resumed_run_ends_the_same(env_id, in_tmp_path):
    sizes = {"num_envs": 2, "num_steps": 64, "num_minibatches": 4, "total_timesteps": 512, "checkpoints": 2}
    folder = ppo.main(ppo.Args(env_id=env_id, **sizes))
    assert all(weight.isfinite().all() for weight in last_state(folder)["model"].values())
    assert_same_end(folder, resumed(folder))


def test_pybullets_agent_is_played_with_a_video(in_tmp_path):
    """It draws by the first client of the process, which the environment that was tried before must not take along,
    however late that is collected."""
    sizes = {"num_envs": 1, "num_steps": 32, "num_minibatches": 1, "total_timesteps": 32, "checkpoints": 1}
    folder = ppo.main(ppo.Args(env_id="HopperBulletEnv-v0", **sizes))
    Path("late.py").write_text(
        f"import gc, sys\nsys.path.insert(0, {str(SCRIPT.parent)!r})\nimport ppo_continuous_action as ppo\n"
        "gc.disable()\nreset = ppo.VectorEnv.reset\n"
        "ppo.VectorEnv.reset = lambda self, seeds: (reset(self, seeds), gc.collect())[0]\n"
        "ppo.main(ppo.Args(evaluate=sys.argv[1], capture_video=True, episodes=2))\n"
    )
    stdout, _ = run(str(folder), script="late.py")
    assert (folder / "checkpoints" / "1.mp4").stat().st_size > 1000 and stdout.count("episode ") == 2


@pytest.mark.parametrize(
    "env_id, module, install",
    [
        ("dm_control/cartpole-balance-v0", "shimmy", "shimmy[dm-control]"),
        ("HopperBulletEnv-v0", "pybullet", "pybullet"),
    ],
)
def test_missing_family_is_named_with_its_install_command(env_id, module, install, in_tmp_path, monkeypatch, capsys):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if module in name else find_spec(name))
    with pytest.raises(SystemExit) as stop:
        ppo.main(ppo.Args(env_id=env_id))
    assert stop.value.code == 2 and f"pip install '{install}" in error_line(capsys.readouterr().err, ppo)
    assert not list(in_tmp_path.iterdir())


@pytest.mark.parametrize(
    "env_id, module, extra", [("HalfCheetah-v4", "mujoco", "mujoco"), ("BipedalWalker-v3", "Box2D", "box2d")]
)
def test_a_missing_simulator_is_named_with_its_install_command(env_id, module, extra, in_tmp_path):
    Path(f"{module}.py").write_text("raise ImportError")
    command, path = [sys.executable, str(SCRIPT), "--env-id", env_id], {**os.environ, "PYTHONPATH": str(in_tmp_path)}
    ended = subprocess.run(command, env=path, capture_output=True, text=True)
    assert ended.returncode == 2 and f'pip install "gymnasium[{extra}]"' in error_line(ended.stderr, ppo)
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    "env_id, named", [("CartPole-v1", "acts by Discrete(2); use ppo.py"), ("Taxi-v4", "ppo_multidiscrete.py")]
)
def test_environments_for_other_scripts_are_one_line(env_id, named, in_tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        ppo.main(ppo.Args(env_id=env_id))
    assert stop.value.code == 2 and named in error_line(capsys.readouterr().err, ppo)
    assert not list(in_tmp_path.iterdir())


@pytest.mark.parametrize("name", ["HalfCheetah-v4", "HalfCheetah-v5", "Ant-v4", "Hopper-v4", "Walker2d-v4"])
@pytest.mark.filterwarnings("ignore")
def test_videos_follow_the_agent(name, tmp_path):
    args, video = ppo.Args(env_id=f"Fast{name}"), tmp_path / "video.mp4"
    env = ppo.make_env(args.env_id)
    statistics = ppo.RunningStatistics(env.observation_space.shape)
    agent = ppo.Agent(*env.observation_space.shape, *env.action_space.shape)
    assert len(list(ppo.evaluate(agent, statistics, args, 1, 1, video))) == 1
    red, green, blue = np.moveaxis(imageio.mimread(video)[-1].astype(int), -1, 0)
    assert ((red > green) & (green > blue) & (red > blue + 40)).mean() > 0.004  # nothing but the agent is brown


def test_videos_of_dm_control_follow_the_agent():
    env = ppo.make_env("dm_control/cheetah-run-v0").unwrapped
    followed = env._env.physics.model.cam_mode == 2  # mjCAMLIGHT_TRACKCOM
    assert followed[env.render_kwargs["camera_id"]]


def test_nan_from_the_simulator_stops_the_run_and_keeps_the_last_good_checkpoint(in_tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:  # after 20 steps of an environment, new after updates 1 and 3
        ppo.main(ppo.Args(env_id="NanRecorder-v0", **SMALL | {"total_timesteps": 64}))
    assert stop.value.code == 1
    assert "update 3: not finite: observation;" in capsys.readouterr().err
    (folder,) = Path("runs").iterdir()
    state = last_state(folder)
    assert state["update"] == 1 and all(weight.isfinite().all() for weight in state["model"].values())


def test_inverted_pendulum_is_learned(tmp_path):
    command = f"{SCRIPT} --env-id InvertedPendulum-v4 --total-timesteps 40000 --learning-rate 1e-3 --update-epochs 4"
    subprocess.run([sys.executable, *command.split()], cwd=tmp_path, check=True, capture_output=True)
    (episodes,) = tmp_path.glob("runs/*/episodes.csv")
    returns = np.loadtxt(episodes, delimiter=",", skiprows=1, usecols=1)
    assert returns[:20].mean() < 50 and returns[-20:].mean() > 500
