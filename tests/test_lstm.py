"""What ppo_lstm.py and ppo_continuous_action_lstm.py add: a memory in acting, learning and evaluation."""

import json
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
from helpers import assert_resumes, error_line, learn, rows, state, type_here

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


class Paid(gym.Env):
    """Noise in which an episode has some steps, and each of them pays a factor times more noise, or nothing."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)

    def __init__(self, factor=1.0, length=5, box=False):
        self.factor = factor
        self.length = length
        self.action_space = gym.spaces.Box(-1, 1, (2,)) if box else gym.spaces.Discrete(3)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return self.np_random.normal(size=3).astype(np.float32), {}

    def step(self, action):
        self.count += 1
        reward = self.factor * self.np_random.normal()
        return self.np_random.normal(size=3).astype(np.float32), reward, self.count == self.length, False, {}


class Thousandfold(gym.Wrapper):
    """Each reward times 1,000."""

    def step(self, action):
        observation, reward, *rest = super().step(action)
        return observation, 1000 * reward, *rest


gym.register("Paid-v0", Paid)
gym.register("ThousandfoldCartPole-v0", lambda **options: Thousandfold(gym.make("CartPole-v1", **options)))
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
    gains = {agent.network[0]: 2**0.5, agent.actor: 0.01, agent.critic[4]: 1.0}
    for layer, gain in {**gains, agent.critic[0]: 2**0.5, agent.critic[2]: 2**0.5}.items():
        assert layer.weight.norm().item() == pytest.approx(gain * min(layer.weight.shape) ** 0.5, rel=1e-5)
        assert not layer.bias.any()
    first = agent.initial_state(3)
    assert first.shape == (2, 3, 16) and not first.any() and not first.requires_grad


def test_log_prob_and_entropy_are_those_of_the_policys_distribution(script):
    agent = new_agent(script, scale=0.3)
    actions = torch.from_numpy(np.stack([SPACES[script].sample() for _ in range(5)]))
    obs, state, dones = torch.randn(5, 3), torch.randn(2, 5, 16), torch.zeros(5)
    log_prob, entropy, _ = agent.evaluate_actions(obs, actions, state, dones)
    hidden, _ = agent.step(obs, state, dones)
    outputs = agent.actor(hidden)
    if script is ppo_lstm:
        distribution = torch.distributions.Categorical(logits=outputs)
    else:
        distribution = torch.distributions.Independent(torch.distributions.Normal(outputs, agent.log_std.exp()), 1)
    torch.testing.assert_close(log_prob, distribution.log_prob(actions))
    torch.testing.assert_close(entropy, distribution.entropy())


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


# ---------------------------------------------------------------------------------------------------- Sizes of rewards
def test_the_values_loss_changes_no_memory_and_the_policys_no_critic(script):
    agent = new_agent(script, scale=0.3)
    space = SPACES[script]
    actions = torch.from_numpy(np.stack([space.sample() for _ in range(21)]))
    given = (torch.randn(21, 3), actions, torch.randn(2, 3, 16), random_dones(3, 7, 0.2).flatten())
    log_prob, entropy, value = agent.evaluate_actions(*given)
    value.square().sum().backward()
    learning = {name.partition(".")[0] for name, x in agent.named_parameters() if x.grad is not None}
    assert learning == {"critic"}
    agent.zero_grad(set_to_none=True)
    log_prob, entropy, _ = agent.evaluate_actions(*given)
    (log_prob + entropy).sum().backward()
    idle = {name.partition(".")[0] for name, x in agent.named_parameters() if x.grad is None}
    assert idle == {"critic"}
    assert all(x.grad.any() for x in agent.network.parameters())


def test_the_critic_sees_the_observation_and_what_the_memory_holds(script):
    agent = new_agent(script, scale=0.3)
    obs = torch.randn(1, 3).repeat(3, 1)
    hidden = torch.randn(1, 16).repeat(3, 1)
    obs[1] += 1.0
    hidden[2] += 1.0
    *_, value = agent(obs, hidden)
    one, of_other_obs, of_other_memory = value.tolist()
    assert abs(of_other_obs - one) > 1e-3 and abs(of_other_memory - one) > 1e-3


def test_a_new_scale_changes_no_value():
    agent = new_agent(ppo_lstm, scale=0.3)
    given = torch.randn(5, 3), torch.randn(2, 5, 16), torch.zeros(5)
    for scale in (37.0, 1e-4, 1e6):
        before = agent.get_value(*given)
        agent.set_scale(torch.tensor(scale))
        torch.testing.assert_close(agent.get_value(*given), before)
        assert agent.scale == scale


def test_the_loss_is_in_units_of_the_newest_returns_root_mean_square(in_tmp_path, spy):
    gae_calls = spy(ppo_lstm, "compute_gae")
    losses = spy(ppo_lstm, "ppo_loss")
    ppo_lstm.main(ppo_lstm.Args(env_id="CartPole-v1", **TINY))
    for i, call in enumerate(gae_calls):
        _, returns = call.result
        scale = np.sqrt(np.square(returns).mean())
        epoch = losses[4 * i : 4 * i + 2]
        for name, column in (("returns", returns), ("values", call.values)):
            seen = np.concatenate([getattr(loss.mb, name) for loss in epoch])
            np.testing.assert_allclose(np.sort(seen), np.sort(column.ravel() / scale), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(epoch[0].value, epoch[0].mb.values, rtol=0, atol=1e-4)


def weights_of_an_update(script, monkeypatch, factor):
    """Weights before and after an update of 4 minibatches, by name; all rewards, and the critic's scale where there is
    one, are multiplied by the factor."""
    made = script.Agent

    def make(*arguments):
        agent = made(*arguments)
        if hasattr(agent, "scale"):
            agent.scale *= factor
        before.update({name: x.clone() for name, x in agent.state_dict().items()})
        return agent

    before = {}
    monkeypatch.setattr(script, "Agent", make)
    kwargs = {"factor": factor, "box": script is ppo_continuous_action_lstm}
    folder = script.main(script.Args(env_id="Paid-v0", env_kwargs=json.dumps(kwargs), **TINY | {"total_timesteps": 32}))
    monkeypatch.setattr(script, "Agent", made)
    return before, state(folder, 1)["model"]


@pytest.mark.parametrize("factor", [1000.0, 0.001])
def test_the_rewards_size_changes_no_weight_of_an_update(script, factor, in_tmp_path, monkeypatch):
    if script is ppo_continuous_action_lstm and factor < 1:
        pytest.skip("its statistics of rewards begin with a variance of 1, of which so small rewards see more")
    first, one = weights_of_an_update(script, monkeypatch, 1.0)
    _, other = weights_of_an_update(script, monkeypatch, factor)
    learned = [name for name in one if name != "scale"]
    for name in learned:
        moved = (one[name] - first[name]).abs().max().item()
        assert moved > 1e-4 or name.startswith("critic.4")  # which a new scale changes, too
        torch.testing.assert_close(other[name], one[name], rtol=0, atol=0.01 * max(moved, 1e-4), msg=name)
    if "scale" in one:
        assert other["scale"].item() == pytest.approx(factor * one["scale"].item(), rel=1e-4)


@pytest.mark.parametrize("factor", [0.0, 1e-3, 1e6])
@pytest.mark.parametrize("length", [1, 5])
def test_rewards_of_any_size_and_episodes_of_one_step_are_learned_from(script, factor, length, train, spy):
    losses = spy(script, "ppo_loss")
    kwargs = {"factor": factor, "length": length, "box": script is ppo_continuous_action_lstm}
    folder = train(env_id="Paid-v0", env_kwargs=json.dumps(kwargs))
    assert len(losses) == 6 * 4
    for call in losses[::4]:  # the first minibatch of each update
        np.testing.assert_allclose(call.log_prob, call.mb.log_probs, rtol=0, atol=1e-4)
    for row in rows(folder, "metrics.csv"):
        metrics = {name: float(row[name]) for name in row if name.startswith("losses/")}
        if factor > 1:  # smaller ones are first drowned by the values that the critic begins with
            assert metrics["losses/value_loss"] < 10
        assert all(np.isfinite(value) for name, value in metrics.items() if name != "losses/explained_variance")
    assert all(x.isfinite().all() for x in state(folder, 6)["model"].values())


def test_returns_of_nothing_at_all_are_no_scale(in_tmp_path, monkeypatch):
    class Blank(ppo_lstm.Agent):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            torch.nn.init.zeros_(self.critic[-1].weight)  # all values are 0

    monkeypatch.setattr(ppo_lstm, "Agent", Blank)
    folder = ppo_lstm.main(ppo_lstm.Args(env_id="Paid-v0", env_kwargs='{"factor": 0.0}', **TINY))
    assert state(folder, 6)["model"]["scale"] > 0
    assert all(float(row["losses/value_loss"]) == 0 for row in rows(folder, "metrics.csv"))


# ------------------------------------------------------------------------------------------------ Resume and evaluation
def test_a_checkpoint_of_another_shape_gets_one_line(script, train, capsys):
    folder = train(total_timesteps=32)
    path = folder / "checkpoints" / "1.pt"
    checkpoint = torch.load(path, weights_only=True)
    model = {name: x for name, x in checkpoint["model"].items() if not name.startswith(("critic", "scale"))}
    checkpoint["model"] = {**model, "critic.weight": torch.zeros(1, 64), "critic.bias": torch.zeros(1)}  # as in 0.4
    torch.save(checkpoint, path)
    for flag in ("--resume", "--evaluate"):
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            type_here(flag, folder, script=script.__file__)
        line = error_line(capsys.readouterr().err, script)
        assert stop.value.code == 2
        assert f"{path}, which {script.__name__}.py wrote: its model doesn't fit" in line and "critic" in line


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


def test_a_reward_of_a_thousand_a_step_is_no_hindrance(in_tmp_path):
    """CartPole with default options but for the annealing: at random an episode lasts 22 steps."""
    args = ppo_lstm.Args(env_id="ThousandfoldCartPole-v0", total_timesteps=16_384, anneal_lr=False, checkpoints=1)
    learn(ppo_lstm, args, enough=80_000, episodes=20)


def test_the_page_shows_the_environments_of_the_sweeps():
    assert (DOCS.parent / "benchmark" / "no_velocity.py").read_text("utf-8") in (DOCS / "memory.md").read_text("utf-8")
