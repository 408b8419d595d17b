"""What ppo_continuous_action.py adds to ppo.py: the nine details for continuous actions, and statistics that last."""

import importlib.util
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import ppo_continuous_action as ppo
import ppo_continuous_action_numpy
import pytest
import torch
from helpers import assert_resumes, learn, rows, state
from scipy.stats import norm

SMALL = {"num_steps": 16, "num_minibatches": 4, "update_epochs": 2, "total_timesteps": 96, "checkpoints": 3}


class Recorder(gym.Env):
    """Float64 observations on very different scales; keeps the actions that it was given. True end every 7 steps."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (3,), np.float64)
    actions: list[np.ndarray] = []  # noqa: RUF012 (shared by all, as the test has no hold of the instances)

    def __init__(self, bound=0.1, dictionary=False, render_mode=None):
        self.action_space = gym.spaces.Box(-bound, bound, (1, 2), np.float32)
        self.dictionary = dictionary
        if dictionary:
            self.observation_space = gym.spaces.Dict(
                position=gym.spaces.Box(-np.inf, np.inf, (2,)), speed=gym.spaces.Box(-np.inf, np.inf, ())
            )

    def observe(self):
        row = self.np_random.normal(size=3) * [1e-3, 1.0, 1e3] + [0.0, 5.0, -1e3]
        return {"position": row[:2].astype(np.float32), "speed": np.float32(row[2])} if self.dictionary else row

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.age = 0
        return self.observe(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        Recorder.actions.append(action.ravel())
        self.age += 1
        return self.observe(), float(self.np_random.normal() * 100 + 30), self.age == 7, False, {}


gym.register("Recorder-v0", Recorder)
gym.register("LimitedRecorder-v0", Recorder, max_episode_steps=5)
gym.register("UnboundedRecorder-v0", Recorder, kwargs={"bound": np.inf})
gym.register("DictRecorder-v0", Recorder, kwargs={"dictionary": True})


def new_agent(obs_dim, action_dim):
    observation_space = gym.spaces.Box(-1, 1, (obs_dim,))
    action_space = gym.spaces.Box(-1, 1, (action_dim,))
    envs = SimpleNamespace(observation_space=observation_space, action_space=action_space)
    return ppo.Agent(envs, ppo.Args())


def new_envs(env_id="Recorder-v0", num_envs=2, **arguments):
    return ppo.VectorEnv(ppo.Args(env_id=env_id, **arguments), num_envs)


def moments(seen):
    """Mean and variance of rows, if 1e-4 rows of mean 0 and variance 1 were seen before."""
    seen = np.array(seen)
    weight = len(seen) + 1e-4
    mean = seen.sum(0) / weight
    return mean, (((seen - mean) ** 2).sum(0) + 1e-4 * (1 + mean**2)) / weight


# ----------------------------------------------------------------------------------------------------------- The policy
def test_log_prob_and_entropy_are_those_of_independent_normals():  # cont-1, cont-3
    agent = new_agent(3, 2)
    agent.log_std.data = torch.tensor([0.3, -0.7])
    obs, actions = torch.randn(5, 3), torch.randn(5, 2)
    log_prob, entropy, value = agent.evaluate_actions(obs, actions)
    mean, std = agent.actor(obs).detach().numpy(), np.exp([0.3, -0.7])
    np.testing.assert_allclose(log_prob.detach(), norm.logpdf(actions, mean, std).sum(-1), rtol=1e-5)
    np.testing.assert_allclose(entropy.detach(), np.full(5, norm.entropy(0, std).sum()), rtol=1e-6)
    torch.testing.assert_close(value, agent.get_value(obs))


def test_std_is_one_row_of_parameters_from_zero_that_observations_do_not_change():  # cont-2
    agent = new_agent(3, 2)
    _, std = agent.get_mean_and_std(torch.randn(50, 3) * 100)
    assert torch.equal(std.expand(50, 2), torch.ones(50, 2)) and isinstance(agent.log_std, torch.nn.Parameter)


@pytest.mark.parametrize("obs_dim, action_dim, count", [(17, 6, 11_085), (11, 3, 10_119)])
def test_networks_are_separate_and_of_the_published_size(obs_dim, action_dim, count):  # cont-4
    agent = new_agent(obs_dim, action_dim)
    assert sum(parameter.numel() for parameter in agent.parameters()) == count
    for network, last_gain in ((agent.critic, 1.0), (agent.actor, 0.01)):
        for layer, gain in zip(network[::2], (2**0.5, 2**0.5, last_gain), strict=True):  # of orthogonal weights
            assert layer.weight.norm().item() == pytest.approx(gain * min(layer.weight.shape) ** 0.5, rel=1e-5)
    agent.get_value(torch.randn(4, obs_dim)).sum().backward()
    assert all(parameter.grad is None for parameter in agent.actor.parameters())


def test_drawn_actions_follow_the_distribution_and_without_noise_are_its_mean():
    agent = new_agent(3, 2)
    agent.log_std.data = torch.tensor([0.3, -0.7])
    obs = torch.randn(1, 3).expand(20_000, 3)
    actions, _, _ = agent.get_action_and_value(obs, agent.draw_noise(20_000))
    torch.testing.assert_close(actions.std(0), agent.log_std.exp(), rtol=0.03, atol=0)
    torch.testing.assert_close(actions.mean(0), agent.actor(obs[:1])[0], rtol=0, atol=0.05)
    actions, _, _ = agent.get_action_and_value(obs, torch.zeros(2))
    torch.testing.assert_close(actions, agent.actor(obs))


def test_only_the_environment_sees_clipped_actions(in_tmp_path, spy):  # cont-5
    acting_calls = spy(ppo.Agent, "get_action_and_value")
    losses = spy(ppo, "ppo_loss")
    Recorder.actions.clear()
    ppo.main(ppo.Args(env_id="Recorder-v0", **SMALL))
    stored = np.concatenate([call.result[0].reshape(-1, call.result[0].shape[-1]) for call in acting_calls])
    given = np.array(Recorder.actions[-96:])
    assert (np.abs(stored) > 0.1).any()
    np.testing.assert_array_equal(given, stored.clip(-0.1, 0.1))
    for call in losses[:: len(losses) // 6]:  # the first minibatch of each update: the ratio is 1
        np.testing.assert_allclose(call.log_prob, call.mb[2], rtol=0, atol=1e-5)


# ------------------------------------------------------------------------------------------------------- The statistics
def test_statistics_are_those_of_all_rows_pooled_in_float64():  # cont-6
    rng = np.random.default_rng(1)
    batches = [rng.normal(1e6, 2, (n, 4)) for n in (1, 5, 1, 8, 2)]
    statistics = ppo.RunningStatistics((4,))
    for batch in batches:
        statistics.update(batch)
    mean, var = moments(np.concatenate(batches))
    np.testing.assert_allclose(statistics.mean, mean, rtol=1e-12)
    np.testing.assert_allclose(statistics.var, var, rtol=1e-9)
    assert statistics.count == pytest.approx(17 + 1e-4)


def test_observations_enter_the_statistics_before_they_are_normalized_and_are_clipped():  # cont-6, cont-7
    envs, raw = new_envs(), new_envs()
    seen = []
    actions = np.zeros((2, 2), np.float32)
    for step in range(20):
        observations = envs.step(actions)[0] if step else envs.reset([1, 2])
        rows_now = raw.vector.step(actions.reshape(2, 1, 2))[0] if step else raw.vector.reset(seed=[1, 2])[0]
        seen.extend(rows_now.copy())  # the vector writes into this array again
        mean, var = moments(seen)
        np.testing.assert_allclose(observations, ((rows_now - mean) / np.sqrt(var + 1e-8)).clip(-10, 10), rtol=1e-5)
        assert observations.dtype == np.float32
    envs.obs_statistics.mean, envs.obs_statistics.var = np.zeros(3), np.full(3, 1e-6)
    envs.obs_statistics.count = 1e9
    outliers = envs.step(actions)[0]
    assert outliers.max() <= 10.0 and outliers.min() == -10.0


def test_last_observations_are_normalized_and_enter_no_statistics():
    envs, raw = new_envs("LimitedRecorder-v0"), new_envs("LimitedRecorder-v0")
    envs.reset([1, 2])
    raw.vector.reset(seed=[1, 2])
    actions = np.zeros((2, 2), np.float32)
    for _ in range(5):
        _, _, dones, truncated_obs, _ = envs.step(actions)
        infos = raw.vector.step(actions.reshape(2, 1, 2))[-1]
    assert dones.all() and sorted(truncated_obs) == [0, 1]
    statistics = envs.obs_statistics
    assert round(statistics.count) == 12  # two resets, and the observation after each step
    for i in (0, 1):
        expected = (infos["final_obs"][i] - statistics.mean) / np.sqrt(statistics.var + 1e-8)
        np.testing.assert_allclose(truncated_obs[i], expected.clip(-10, 10), rtol=1e-5)
        assert np.abs(truncated_obs[i]).max() < 10 < np.abs(infos["final_obs"][i]).max()


@pytest.mark.parametrize("script", [ppo, ppo_continuous_action_numpy])
def test_bootstrap_truncated_adds_the_value_of_the_last_observation(script, in_tmp_path, spy):
    steps = spy(script.VectorEnv, "step")
    values = spy(script.Agent, "get_value")
    gaes = spy(script, "compute_gae")
    script.main(script.Args(env_id="LimitedRecorder-v0", bootstrap_truncated=True, gamma=0.8, num_envs=2, **SMALL))
    del steps[0]  # the look before training
    value_of = {call.obs.tobytes(): call.result for call in values}
    expected = np.array([call.result[1] for call in steps])
    for row, call in zip(expected, steps, strict=True):
        cut = call.result[3]
        if cut:
            row[list(cut)] += 0.8 * value_of[np.stack(list(cut.values())).tobytes()]
    np.testing.assert_allclose(np.concatenate([call.rewards for call in gaes]), expected, rtol=1e-5, atol=1e-6)
    assert sum(len(call.result[3]) for call in steps) == 2 * (48 // 5)


@pytest.mark.parametrize("env_id", ["Recorder-v0", "LimitedRecorder-v0"])  # true ends and time limits
def test_rewards_are_scaled_by_the_spread_of_the_discounted_return(env_id):  # cont-8
    envs, raw = new_envs(env_id, gamma=0.9), new_envs(env_id)
    envs.reset([1, 2])
    raw.vector.reset(seed=[1, 2])
    discounted, seen = np.zeros(2), []
    for _ in range(30):
        _, scaled, dones, _, _ = envs.step(np.zeros((2, 2), np.float32))
        rewards = raw.vector.step(np.zeros((2, 1, 2), np.float32))[1]
        discounted = 0.9 * discounted + rewards
        seen.extend(discounted)
        _, var = moments(seen)
        np.testing.assert_allclose(scaled, (rewards / np.sqrt(var + 1e-8)).clip(-10, 10), rtol=1e-9)
        discounted[dones == 1] = 0.0


def test_scaled_rewards_are_clipped():  # cont-9
    envs = new_envs()
    envs.reset([1, 2])
    envs.return_statistics.var, envs.return_statistics.count = np.float64(1e-4), 1e12
    rewards = np.concatenate([envs.step(np.zeros((2, 2), np.float32))[1] for _ in range(20)])
    assert rewards.max() == 10.0 and rewards.min() == -10.0


def test_reported_returns_are_not_scaled(in_tmp_path):
    folder = ppo.main(ppo.Args(env_id="Recorder-v0", **SMALL | {"checkpoints": 1}))
    returns = [float(row["episodic_return"]) for row in rows(folder, "episodes.csv")]
    assert len(returns) == 96 // 7 and np.std(returns) > 100


# ------------------------------------------------------------------------------------------- Checkpoints and evaluation
def test_statistics_are_in_the_checkpoint_and_evaluation_leaves_them(in_tmp_path):
    folder = ppo.main(ppo.Args(env_id="LimitedRecorder-v0", num_envs=2, **SMALL))
    saved = state(folder, 3)["envs"]
    assert round(saved["observations"]["count"]) == 2 * 49  # 48 steps and the first reset
    assert round(saved["returns"]["count"]) == 2 * 48
    player = ppo.load(folder, deterministic=True)
    ppo.play(player, 1)
    ppo.play(player, 2)
    after = player.state_dict()
    for name in ("observations", "returns"):
        assert all(torch.equal(torch.as_tensor(after[name][x]), torch.as_tensor(saved[name][x])) for x in saved[name])


# --------------------------------------------------------------------------------------------------------- Environments
@pytest.mark.parametrize(
    "env_id, package",
    [
        ("HalfCheetah-v5", "mujoco"), ("dm_control/cartpole-balance-v0", "shimmy"),
        ("HopperBulletEnv-v0", "pybullet"), ("UnboundedRecorder-v0", "gymnasium"), ("DictRecorder-v0", "gymnasium"),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore")
def test_every_family_trains_and_a_resumed_run_ends_the_same(env_id, package, in_tmp_path):
    pytest.importorskip(package)
    sizes = {"num_envs": 2, "num_steps": 32, "num_minibatches": 4, "total_timesteps": 256, "checkpoints": 2}
    folder = ppo.main(ppo.Args(env_id=env_id, exact_resume=True, bootstrap_truncated=True, **sizes))
    if package != "pybullet":  # whose reset doesn't return to one state
        assert_resumes(ppo, folder, after=2)


@pytest.mark.parametrize("env_id", ["dm_control/cartpole-balance-v0", "HopperBulletEnv-v0"])
def test_missing_family_is_named_with_its_install_command(env_id, refusal, monkeypatch):
    find_spec = importlib.util.find_spec
    missing = ("shimmy", "pybullet_envs_gymnasium")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in missing else find_spec(name))
    assert "pip install '" in refusal(ppo, env_id=env_id)


@pytest.mark.parametrize(
    "env_id, named", [("CartPole-v1", "ppo.py for Discrete"), ("CopyMultiBinary-v0", "ppo_multidiscrete.py")]
)
def test_environments_for_other_scripts_are_one_line(env_id, named, refusal):
    assert named in refusal(ppo, env_id=env_id)


def test_videos_of_mujoco_follow_the_agent():
    pytest.importorskip("mujoco")
    env = ppo.make_simulator("Ant-v5", {"render_mode": "rgb_array"})
    env.reset(seed=1)
    renderer = env.unwrapped.mujoco_renderer
    assert renderer.model.camera(renderer.camera_id).name == "track" and env.render().std() > 1


def test_videos_of_dm_control_follow_the_agent():
    pytest.importorskip("shimmy")
    env = ppo.make_simulator("dm_control/cheetah-run-v0", {}).unwrapped
    followed = env._env.physics.model.cam_mode == 2  # mjCAMLIGHT_TRACKCOM
    assert followed[env.render_kwargs["camera_id"]]


def test_inverted_pendulum_is_learned(in_tmp_path):
    pytest.importorskip("mujoco")
    sizes = {"num_envs": 4, "num_steps": 256, "total_timesteps": 16_384, "checkpoints": 1}
    args = ppo.Args(env_id="InvertedPendulum-v5", learning_rate=1e-3, update_epochs=4, **sizes)
    returns = learn(ppo, args, enough=100, episodes=20)
    assert np.mean(returns[:20]) < 20
