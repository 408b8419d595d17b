"""What ppo_lstm.py and ppo_continuous_action_lstm.py add: a memory in acting, learning and evaluation."""

from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import ppo
import ppo_continuous_action
import ppo_continuous_action_lstm
import ppo_lstm
import pytest
import torch
from helpers import assert_resumes, learn, rows

DOCS = Path(__file__).parents[1] / "docs"
PARENTS = {ppo_lstm: ppo, ppo_continuous_action_lstm: ppo_continuous_action}
SPACES = {ppo_lstm: gym.spaces.Discrete(3), ppo_continuous_action_lstm: gym.spaces.Box(-1, 1, (2,))}
NOISE = {ppo_lstm: "Random-v0", ppo_continuous_action_lstm: "RandomBox-v0"}
CUE = {ppo_lstm: "VectorCue-v0", ppo_continuous_action_lstm: "VectorCueBox-v0"}
# 6 updates of 32 samples, of 4 minibatches each
TINY = {
    "total_timesteps": 192, "num_envs": 4, "num_steps": 8, "num_minibatches": 2, "update_epochs": 2, "checkpoints": 1,
}  # fmt: skip


class VectorCue(gym.Env):
    """A short T-maze: the first observation says left or right, -1 or 1; the others are 0. Each of the last 4 of 8
    steps pays 1 for that way and -1 for the other one. Whoever remembers gets 4, everyone else 0 on average."""

    observation_space = gym.spaces.Box(-1, 1, (1,))

    def __init__(self, box=False):
        self.action_space = gym.spaces.Box(-1, 1, (1,)) if box else gym.spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        self.way = 1 - 2 * int(self.np_random.integers(2))
        return np.full(1, self.way, np.float32), {}

    def step(self, action):
        self.count += 1
        goes_right = action[0] > 0 if self.action_space.shape else action == 1
        reward = 0.0
        if self.count > 4:
            reward = 1.0 if goes_right == (self.way == 1) else -1.0
        return np.zeros(1, np.float32), reward, self.count == 8, False, {}


gym.register("VectorCue-v0", VectorCue)
gym.register("VectorCueBox-v0", VectorCue, kwargs={"box": True})


@pytest.fixture(params=PARENTS, ids=lambda script: script.__name__)
def script(request):
    return request.param


@pytest.fixture
def train(script, in_tmp_path):
    return lambda **arguments: script.main(script.Args(**{"env_id": NOISE[script], **TINY, **arguments}))


def new_agent(script, seed=1, scale=0.0):
    """An agent of 16 numbers' memory; with a scale, it is far from its initial weights, so that what it holds shows."""
    torch.manual_seed(seed)
    envs = SimpleNamespace(observation_space=gym.spaces.Box(-1, 1, (3,)), action_space=SPACES[script])
    agent = script.Agent(envs, script.Args(hidden_size=16))
    with torch.no_grad():
        for parameter in agent.parameters():
            parameter.add_(scale * torch.randn_like(parameter))
    return agent


def random_dones(steps, num_envs, share):
    return torch.from_numpy((np.random.default_rng(1).random((steps, num_envs)) < share).astype(np.float32))


def one_step_at_a_time(agent, obs, lstm_state, dones):
    """The LSTM's outputs and last state the plainest way: environment after environment, step after step, by the
    equations of an LSTM. Observations are (N, T, D)."""
    outputs = []
    states = []
    for env in range(len(obs)):
        h, c = lstm_state[:, env]
        for feature, done in zip(agent.network(obs[env]), dones[env]):
            if done:
                h = torch.zeros(16)
                c = torch.zeros(16)
            x = agent.lstm.weight_ih_l0 @ feature + agent.lstm.bias_ih_l0
            i, f, g, o = (x + agent.lstm.weight_hh_l0 @ h + agent.lstm.bias_hh_l0).chunk(4)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            outputs.append(h)
        states.append(torch.stack([h, c]))
    return torch.stack(outputs), torch.stack(states, 1)


# -------------------------------------------------------------------------------------------- lstm-1, lstm-2: the start
def test_the_lstms_weights_are_orthogonal_its_biases_and_first_state_zero(script):
    agent = new_agent(script)
    for weight in (agent.lstm.weight_ih_l0, agent.lstm.weight_hh_l0):  # (64, 64), (64, 16)
        torch.testing.assert_close(weight.T @ weight, torch.eye(weight.shape[1]), rtol=0, atol=1e-5)
    assert not agent.lstm.bias_ih_l0.any() and not agent.lstm.bias_hh_l0.any()
    first = agent.initial_state(3)
    assert first.shape == (2, 3, 16) and not first.any() and not first.requires_grad


# ------------------------------------------------------------------------------------------------ lstm-3: the sequences
@pytest.mark.parametrize("share", [0, 0.2, 1])
def test_a_sequence_equals_its_steps_gradients_too(script, share):
    agent = new_agent(script, scale=0.3)
    dones = random_dones(3, 7, share)
    obs = torch.randn(3, 7, 3)
    first = torch.randn(2, 3, 16)
    wanted, last = one_step_at_a_time(agent, obs, first, dones)
    unrolled = agent.unroll(obs.flatten(0, 1), first, dones.flatten())
    gradients = []
    for outputs in (wanted, unrolled):
        agent.zero_grad()
        outputs.square().sum().backward()
        gradients.append([parameter.grad.clone() for parameter in agent.parameters() if parameter.grad is not None])
    torch.testing.assert_close(unrolled, wanted, rtol=1e-4, atol=1e-5)
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-4 * one.abs().max().item())

    state = first
    stepped = []
    for t in range(7):  # as in acting
        output, state = agent.step(obs[:, t], state, dones[:, t])
        stepped.append(output)
    torch.testing.assert_close(torch.stack(stepped, 1).flatten(0, 1), wanted, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(state, last, rtol=1e-4, atol=1e-5)


def test_an_output_depends_on_its_own_environments_episode_so_far_and_nothing_else(script):
    agent = new_agent(script, scale=0.3)
    dones = random_dones(3, 6, 0.2)
    assert 0 < dones[:, 1:].mean() < 0.5
    first = torch.randn(2, 3, 16)

    def outputs(obs, state):
        return agent.unroll(obs, state, dones.flatten()).sum(-1)

    by_obs, by_state = torch.autograd.functional.jacobian(outputs, (torch.randn(18, 3), first))
    depends = (by_obs != 0).any(-1).view(3, 6, 3, 6)
    on_state = (by_state != 0).any(-1).any(1).view(3, 6, 3)
    episodes = dones.cumsum(1)  # of each environment, counted
    for env, t in np.ndindex(3, 6):
        for other, s in np.ndindex(3, 6):
            same_episode = env == other and s <= t and bool(episodes[env, s] == episodes[env, t])
            assert depends[env, t, other, s] == same_episode
        for other in range(3):
            assert on_state[env, t, other] == (env == other and episodes[env, t] == 0)


# ---------------------------------------------------------------------------------------------------------- The rollout
def test_states_are_handed_on_over_steps_and_rollouts_and_start_anew_with_fresh_episodes(train, script, spy):
    calls = spy(script.Agent, "get_action_and_value")
    train(total_timesteps=128, checkpoints=2, exact_resume=True)
    assert len(calls) == 32
    for t, call in enumerate(calls):
        assert call.lstm_state.any() == (t not in (0, 16))
    for t, (call, later) in enumerate(pairwise(calls), 1):
        assert t == 16 or (call.result[-1] == later.lstm_state).all()


def test_the_value_after_the_rollout_is_that_of_the_state_after_it(train, script, spy):
    calls = spy(script.Agent, "get_action_and_value")
    values = spy(script.Agent, "get_value")
    gae_calls = spy(script, "compute_gae")
    train()
    for value, acted, gae in zip(values, calls[7::8], gae_calls, strict=True):
        np.testing.assert_array_equal(value.lstm_state, acted.result[-1])
        np.testing.assert_array_equal(value.dones, gae.next_done)
        np.testing.assert_array_equal(value.result, gae.next_value)
    for value, acted in zip(values, calls[8::8]):  # the next rollout starts from the same
        for name in ("obs", "lstm_state", "dones"):
            np.testing.assert_array_equal(getattr(value, name), getattr(acted, name))


def test_a_time_limit_takes_the_value_of_the_state_before_the_reset(train, script, spy):
    acting = spy(script.Agent, "get_action_and_value")
    values = spy(script.Agent, "get_value")
    steps = spy(script.VectorEnv, "step")
    gae_calls = spy(script, "compute_gae")
    train(total_timesteps=32, bootstrap_truncated=True)
    del steps[0]  # the look before training
    cuts = 0
    for t, (acted, step) in enumerate(zip(acting, steps, strict=True)):
        _, rewards, _, truncated_obs, _ = step.result
        wanted = np.array(rewards)
        if truncated_obs:
            cut = list(truncated_obs)
            value = values[cuts]
            cuts += 1
            np.testing.assert_array_equal(value.obs, list(truncated_obs.values()))
            np.testing.assert_array_equal(value.lstm_state, acted.result[-1][:, cut])
            assert not value.dones.any() and value.lstm_state.any()
            wanted[cut] += script.Args.gamma * np.array(value.result)
        np.testing.assert_allclose(gae_calls[0].rewards[t], wanted, atol=1e-6)
    assert cuts > 1 and len(values) == cuts + 1


# --------------------------------------------------------------------------------------------- lstm-4, lstm-5: learning
def test_ratio_is_1_in_the_first_minibatch_of_every_update(train, script, spy):
    losses = spy(script, "ppo_loss")
    gae_calls = spy(script, "compute_gae")
    learning = spy(script.Agent, "evaluate_actions")
    train(learning_rate=1e-2)
    for call in losses[::4]:
        np.testing.assert_allclose(call.log_prob, call.mb.log_probs, rtol=0, atol=1e-4)
        np.testing.assert_allclose(call.value, call.mb.values, rtol=0, atol=1e-4)
    assert all(np.abs(call.log_prob - call.mb.log_probs).max() > 1e-3 for call in losses[3::4])
    assert all(0 < call.dones[1:].mean() < 1 for call in gae_calls)  # ends in the middle of every rollout
    assert all(not call.dones[0].all() for call in gae_calls[1:])  # and episodes from one rollout to the next
    assert all(call.lstm_state.any() for call in learning[4:])


def test_minibatches_are_whole_environments_in_time_order(train, script, spy):
    acting = spy(script.Agent, "get_action_and_value")
    learning = spy(script.Agent, "evaluate_actions")
    train(total_timesteps=48, num_envs=6, num_minibatches=3, update_epochs=4)
    obs = np.array([call.obs for call in acting])  # (T, N, D)
    dones = np.array([call.dones for call in acting])
    orders = []
    for epoch in range(4):
        order = []
        for call in learning[3 * epoch : 3 * epoch + 3]:
            mb_obs = np.array(call.obs).reshape(2, 8, 3)
            mb_dones = np.array(call.dones).reshape(2, 8)
            for i in range(2):
                (env,) = [env for env in range(6) if (obs[:, env] == mb_obs[i]).all()]
                assert (dones[:, env] == mb_dones[i]).all()
                order.append(env)
        assert sorted(order) == list(range(6))
        orders.append(order)
    assert len({tuple(order) for order in orders}) > 1  # a new order each epoch


def test_environments_must_divide_into_minibatches(script, refusal):
    line = refusal(script, env_id=NOISE[script], num_envs=6, num_minibatches=4, total_timesteps=1000)
    assert "--num-envs 6: must be a multiple of --num-minibatches 4" in line


# ------------------------------------------------------------------------------------------------ Resume and evaluation
def test_a_resumed_run_ends_as_an_undisturbed_one_to_the_bit(train, script):
    options = {"total_timesteps": 128, "checkpoints": 2, "exact_resume": True, "bootstrap_truncated": True}
    assert_resumes(script, train(**options), after=2)


def test_the_player_keeps_its_state_in_an_episode_and_begins_each_with_zeros(train, script, spy):
    player = script.load(train(total_timesteps=32))
    player.act(np.zeros((1, *player.observation_space.shape), np.float32))  # who steps elsewhere needs no reset
    calls = spy(script.Agent, "get_action_and_value")
    obs = player.reset([1])
    begins = [0]
    for t in range(1, 40):
        obs, _, dones, _, _ = player.step(player.act(obs))
        if t == 21:  # in the middle of an episode
            assert not dones.any()
            obs = player.reset([2])
        if t == 21 or dones.any():
            begins.append(t)
    player.act(obs)
    assert len(begins) > 3
    for t, call in enumerate(calls):
        if t in begins:
            assert not call.lstm_state.any()
        else:
            assert (call.lstm_state == calls[t - 1].result[-1]).all() and call.lstm_state.any()


# ------------------------------------------------------------------------------------------------------------- Learning
def test_it_learns_what_only_a_memory_solves(script, in_tmp_path):
    sizes = {"num_envs": 32, "num_steps": 8, "num_minibatches": 2, "total_timesteps": 5120, "checkpoints": 1}
    options = {"env_id": CUE[script], "learning_rate": 1e-2, "update_epochs": 4, "anneal_lr": False, **sizes}
    learn(script, script.Args(**options), enough=3, episodes=256)  # 4 is perfect
    parent = PARENTS[script]
    returns = [float(row["episodic_return"]) for row in rows(parent.main(parent.Args(**options)), "episodes.csv")]
    assert abs(np.mean(returns[-256:])) < 1  # 0 is what there is without a memory


def test_the_page_shows_the_environments_of_the_sweeps():
    assert (DOCS.parent / "benchmark" / "no_velocity.py").read_text("utf-8") in (DOCS / "memory.md").read_text("utf-8")
