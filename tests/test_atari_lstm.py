"""What ppo_atari_lstm.py adds to ppo_atari.py: the five details of the LSTM, in acting, learning and evaluation."""

from itertools import pairwise

import environments_atari  # noqa: F401 (registers them)
import gymnasium as gym
import numpy as np
import ppo_atari_lstm as ppo
import pytest
import torch
from helpers import assert_resumes, learn, small_agent

# 3 updates of 32 samples, a checkpoint at the end
TINY = {
    "env_id": "Noise-v0", "total_timesteps": 96, "num_envs": 4, "num_steps": 8, "num_minibatches": 2,
    "update_epochs": 2, "checkpoints": 1, "num_threads": 1, "device": "cpu",
}  # fmt: skip


@pytest.fixture
def train(in_tmp_path):
    return lambda **arguments: ppo.main(ppo.Args(**TINY | arguments))


def make_agent(num_actions=3, **options):
    envs = ppo.VectorEnv(ppo.Args(env_id="Noise-v0"), 1)
    envs.action_space = gym.spaces.Discrete(num_actions)
    return ppo.Agent(envs, ppo.Args(**options))


def random_agent(num_actions=3, seed=1, **options):
    """An agent whose policy and biases are far from their initial values, so that what the state holds shows."""
    torch.manual_seed(seed)
    agent = make_agent(num_actions, **options)
    with torch.no_grad():
        for parameter in (*agent.actor.parameters(), *agent.lstm.parameters()):
            parameter.add_(0.3 * torch.randn_like(parameter))
    return agent


def frames(steps, num_envs):
    return torch.randint(256, (steps * num_envs, 84, 84, 1), dtype=torch.uint8)


def one_step_at_a_time(agent, obs, lstm_state, dones):
    """The LSTM's outputs and last state the plainest way: one environment after the other, step after step.
    Observations are (N, T, 84, 84, 1)."""
    outputs, states = [], []
    for env in range(len(obs)):
        h, c = lstm_state[:, env]
        for feature, done in zip(agent.network(obs[env].movedim(-1, 1) / 255), dones[env]):
            if done:
                h, c = torch.zeros(128), torch.zeros(128)
            x = agent.lstm.weight_ih_l0 @ feature + agent.lstm.bias_ih_l0
            i, f, g, o = (x + agent.lstm.weight_hh_l0 @ h + agent.lstm.bias_hh_l0).chunk(4)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            outputs.append(h)
        states.append(torch.stack([h, c]))
    return torch.stack(outputs), torch.stack(states, 1)


# lstm-1, lstm-2
def test_the_lstms_weights_are_orthogonal_its_biases_and_first_state_zero():
    agent = make_agent(4)
    assert sum(parameter.numel() for parameter in agent.parameters()) == 2_007_333
    lstm = agent.lstm
    assert (lstm.input_size, lstm.hidden_size, lstm.num_layers) == (512, 128, 1)
    for weight in (lstm.weight_ih_l0.detach(), lstm.weight_hh_l0.detach()):  # (512, 512), (512, 128)
        torch.testing.assert_close(weight.T @ weight, torch.eye(weight.shape[1]), rtol=0, atol=1e-5)
    assert not lstm.bias_ih_l0.any() and not lstm.bias_hh_l0.any()
    for layer, gain in ((agent.actor, 0.01), (agent.critic, 1.0)):
        weight = layer.weight.detach()
        torch.testing.assert_close(weight @ weight.T, gain**2 * torch.eye(len(weight)), rtol=0, atol=1e-5)
    first = agent.initial_state(3)
    assert first.shape == (2, 3, 128) and not first.any() and not first.requires_grad


# lstm-3
@pytest.mark.parametrize("ended", [0, 0.1, 0.3, 0.6, 1])
def test_a_sequence_equals_its_steps_gradients_too(ended):
    noise = torch.from_numpy(np.random.default_rng(1).random((3, 7)))
    agent, dones = random_agent(), (noise < ended).float()
    obs, first, weights = frames(3, 7).view(3, 7, 84, 84, 1), torch.randn(2, 3, 128), torch.randn(21, 128)
    wanted, last_state = one_step_at_a_time(agent, obs, first, dones)
    unrolled = agent.unroll(obs.flatten(0, 1), first, dones.flatten())
    gradients = []
    for outputs in (wanted, unrolled):
        agent.zero_grad()
        (outputs * weights).sum().backward()
        gradients.append([parameter.grad.clone() for parameter in agent.parameters() if parameter.grad is not None])
    torch.testing.assert_close(unrolled, wanted, rtol=1e-5, atol=1e-5)
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-4 * one.abs().max().item())
    stepped, lstm_state = [], first
    for t in range(7):  # as in acting
        output, lstm_state = agent.step(obs[:, t], lstm_state, dones[:, t])
        stepped.append(output)
    torch.testing.assert_close(torch.stack(stepped, 1).flatten(0, 1), wanted, rtol=0, atol=1e-5)
    torch.testing.assert_close(lstm_state, last_state, rtol=1e-5, atol=1e-5)


# Acting
def test_states_are_handed_on_over_steps_and_rollouts_and_start_anew_with_fresh_episodes(train, spy):
    calls, gae_calls = spy(ppo.Agent, "get_action_and_value"), spy(ppo, "compute_gae")
    train(total_timesteps=128, checkpoints=2, exact_resume=True)
    for fresh in (0, 16):
        assert not calls[fresh].lstm_state.any()  # [lstm-2]
    for t, (call, later) in enumerate(pairwise(calls), 1):
        assert (call.result[-1] == later.lstm_state).all() == (t != 16)
    dones = np.concatenate([call.dones for call in gae_calls])  # (4 * T, N)
    np.testing.assert_array_equal([call.dones for call in calls], dones)
    assert 0 < dones[1:16].mean() < 1 and not dones[[8, 24]].all()  # episodes go on from a rollout to the next


def test_observations_are_single_frames(train, spy):
    calls = spy(ppo.Agent, "get_action_and_value")
    train(env_id="Clock-v0", total_timesteps=32)
    assert all(call.obs.shape == (4, 84, 84, 1) and call.obs.dtype == np.uint8 for call in calls)
    assert [np.unique(call.obs).tolist() for call in calls] == [[20 * (t % 5)] for t in range(8)]


def test_next_value_is_that_of_the_state_after_the_rollout(train, spy):
    calls, gae_calls = spy(ppo.Agent, "get_action_and_value"), spy(ppo, "compute_gae")
    values = spy(ppo.Agent, "get_value")
    train()
    assert len(values) == len(gae_calls) == 3
    for value, gae, acted in zip(values, gae_calls, calls[7::8], strict=True):
        np.testing.assert_array_equal(value.lstm_state, acted.result[-1])
        np.testing.assert_array_equal(value.dones, gae.next_done)
        np.testing.assert_array_equal(value.result, gae.next_value)
    for value, acted in zip(values, calls[8::8]):  # the next rollout starts from the same
        for name in ("obs", "lstm_state", "dones"):
            np.testing.assert_array_equal(getattr(value, name), getattr(acted, name))


def test_bootstrap_truncated_takes_the_state_of_the_environment_that_was_cut(train, spy, monkeypatch):
    step = ppo.VectorEnv.step

    def cut_one(envs, actions):
        observations, rewards, dones, _, episodes = step(envs, actions)
        truncated_obs = {2: observations[2]} if len(observations) > 2 else {}  # one is looked at before training
        return observations, rewards, dones, truncated_obs, episodes

    monkeypatch.setattr(ppo.VectorEnv, "step", cut_one)
    calls, values = spy(ppo.Agent, "get_action_and_value"), spy(ppo.Agent, "get_value")
    train(total_timesteps=32, bootstrap_truncated=True)
    for acted, value in zip(calls, values):
        np.testing.assert_array_equal(value.lstm_state, acted.result[-1][:, [2]])
    assert (acted.result[-1][:, 0] != acted.result[-1][:, 2]).any()


def test_bootstrap_truncated_takes_the_state_before_the_reset(train, spy, monkeypatch):
    agent = random_agent()
    episode = torch.arange(6, dtype=torch.uint8).repeat_interleave(84 * 84).view(6, 84, 84, 1) * 20
    with torch.no_grad():
        state = agent.initial_state(1)
        for t in range(5):
            _, state = agent.step(episode[t : t + 1], state, torch.zeros(1))
        value = agent.get_value(episode[-1:], state, torch.zeros(1)).item()  # frames 0 to 5 in a row
        forgetful = agent.get_value(episode[-1:], agent.initial_state(1), torch.zeros(1)).item()
    assert abs(value - forgetful) > 0.01
    monkeypatch.setattr(ppo, "Agent", lambda *_: agent)
    gae_calls = spy(ppo, "compute_gae")
    train(env_id="Clock-v0", total_timesteps=32, bootstrap_truncated=True)
    wanted = np.zeros((8, 4))
    wanted[4] = 0.99 * value
    np.testing.assert_allclose(gae_calls[0].rewards, wanted, atol=1e-5)


# lstm-4, lstm-5
@pytest.mark.parametrize("num_envs, num_minibatches", [(6, 3), (3, 1)])
def test_minibatches_are_whole_environments_in_time_order(train, spy, num_envs, num_minibatches):
    acting, learning = spy(ppo.Agent, "get_action_and_value"), spy(ppo.Agent, "evaluate_actions")
    sizes = {"num_envs": num_envs, "num_minibatches": num_minibatches, "num_steps": 8, "update_epochs": 4}
    train(total_timesteps=num_envs * 8, **sizes)
    obs = np.array([call.obs for call in acting])  # (T, N, ...)
    dones = np.array([call.dones for call in acting])
    actions = np.array([call.result[0] for call in acting])
    orders = []
    for epoch in range(4):
        order = []
        for call in learning[epoch * num_minibatches :][:num_minibatches]:
            columns = (call.obs, call.dones, call.actions)
            mb_obs, mb_dones, mb_actions = (x.reshape(-1, 8, *x.shape[1:]) for x in columns)
            for i in range(num_envs // num_minibatches):
                (env,) = [env for env in range(num_envs) if (obs[:, env] == mb_obs[i]).all()]
                assert (dones[:, env] == mb_dones[i]).all() and (actions[:, env] == mb_actions[i]).all()
                order.append(env)
        assert sorted(order) == list(range(num_envs))
        orders.append(order)
    if num_envs > num_minibatches > 1:
        assert len({tuple(order) for order in orders}) > 1  # a new order each epoch


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_ratio_is_1_in_the_first_minibatch_of_every_update(train, spy, precision):
    losses, gae_calls = spy(ppo, "ppo_loss"), spy(ppo, "compute_gae")
    train(total_timesteps=32 * 6, learning_rate=1e-3, precision=precision)
    first, later = losses[::4], losses[3::4]
    assert len(first) == 6
    for call in first:
        assert np.abs(np.exp(call.log_prob - call.mb.log_probs) - 1).max() < 1e-4
        np.testing.assert_allclose(call.value, call.mb.values, rtol=0, atol=1e-4)
    assert all(np.abs(np.exp(call.log_prob - call.mb.log_probs) - 1).max() > 1e-3 for call in later)
    assert all(0 < call.dones[1:].mean() < 1 for call in gae_calls)  # ends in the middle of every rollout
    assert any(not call.dones[0].all() for call in gae_calls)  # and episodes from one rollout to the next


# Resume and evaluation
def test_a_resumed_run_ends_as_an_undisturbed_one_to_the_bit(train):
    options = {"bootstrap_truncated": True, "target_kl": 1.0, "anneal_clip": True, "precision": "bf16"}
    assert_resumes(ppo, train(total_timesteps=128, checkpoints=2, exact_resume=True, **options), after=2)


def test_evaluation_plays_with_the_state(train, spy):
    checkpoint = ppo.load_checkpoint(train(env_id="Cue-v0", total_timesteps=32))
    checkpoint["model"] = random_agent(2).state_dict()
    player = ppo.Player(checkpoint, checkpoint["args"])
    calls = spy(ppo.Agent, "get_action_and_value")
    results = [ppo.play(player, seed) for seed in (1, 2, 3)]
    assert [episode["l"] for episode in results] == [8] * 3
    for t, call in enumerate(calls):
        if t % 8 == 0:
            assert not call.lstm_state.any()
        else:
            assert (call.lstm_state == calls[t - 1].result[-1]).all()
    assert [ppo.play(player, seed) for seed in (1, 2, 3)] == results


def test_a_lost_life_and_a_reset_in_mid_episode_begin_a_new_state_in_evaluation(train, spy, monkeypatch):
    options = {"losses": (60, 120), "lives": 2}
    monkeypatch.setattr(gym.registry["FakeAtari-v0"], "kwargs", options)
    checkpoint = ppo.load_checkpoint(train(env_id="FakeAtari-v0", total_timesteps=32))
    checkpoint["model"] = random_agent(4).state_dict()  # whose state is never zero by itself
    player = ppo.Player(checkpoint, checkpoint["args"])
    calls = spy(ppo.Agent, "get_action_and_value")
    steps = spy(ppo.VectorEnv, "step")
    ppo.play(player, 1)
    begins = [not call.lstm_state.any() for call in calls]
    assert sum(begins) == 2
    assert begins[1:] == [bool(step.result[2].item()) for step in steps[:-1]]
    player.act(player.reset([2]))
    player.act(player.reset([3]))
    assert not calls[-1].lstm_state.any()


# Wrong use
def test_environments_must_divide_into_minibatches(refusal):
    line = refusal(ppo, num_envs=6, num_minibatches=4)
    assert "--num-envs 6: must be a multiple of --num-minibatches 4" in line


# Learning
def test_it_learns_what_only_a_memory_solves(in_tmp_path, monkeypatch):
    monkeypatch.setattr(ppo, "Agent", small_agent(ppo))
    sizes = {"num_envs": 16, "num_steps": 16, "total_timesteps": 4096, "checkpoints": 1}
    args = ppo.Args(env_id="Cue-v0", learning_rate=2e-3, num_threads=1, device="cpu", **sizes)
    learn(ppo, args, enough=3.4, episodes=128)  # 4 is perfect, chance gives 0
