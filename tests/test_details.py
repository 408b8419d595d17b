"""Each implementation detail of ppo.py against numpy or a closed form; each test fails when its detail is taken out."""

import csv
import inspect
import random
from itertools import pairwise
from types import SimpleNamespace

import environments
import environments_cli  # noqa: F401 (registers them)
import gymnasium as gym
import numpy as np
import ppo
import pytest
import torch
import torch.nn as nn

TINY = dict(env_id="Random-v0", total_timesteps=48, num_envs=2, num_steps=8, checkpoints=1)  # 3 updates of 16 samples
ARGS = ppo.Args(**TINY)


@pytest.fixture
def train(in_tmp_path):
    """Runs a tiny training in this process; returns the columns of its metrics.csv, and the run folder as `folder`."""

    def train(**arguments):
        folder = ppo.main(ppo.Args(**TINY | arguments))
        rows = list(csv.DictReader((folder / "metrics.csv").open()))
        columns = {name.split("/")[-1]: np.array([float(row[name]) for row in rows]) for name in rows[0]}
        return SimpleNamespace(folder=folder, **columns)

    return train


def copied(x):
    """A copy of x in numpy, since the training reuses its buffers."""
    if isinstance(x, torch.Tensor):
        return x.detach().numpy().copy()
    if isinstance(x, list | tuple):
        return tuple(map(copied, x))
    if isinstance(x, dict):
        return {name: copied(value) for name, value in x.items()}
    return x.copy() if isinstance(x, np.ndarray) else x


@pytest.fixture
def spy(monkeypatch):
    """Lets spy(owner, name) list the calls of a function, with its arguments by name and its result as `result`."""

    def spy(owner, name):
        function, calls = getattr(owner, name), []

        def spied(*args, **kwargs):
            arguments = inspect.signature(function).bind(*args, **kwargs).arguments
            calls.append(SimpleNamespace(**copied(arguments), in_training=torch.is_grad_enabled()))
            result = function(*args, **kwargs)
            calls[-1].result = copied(result)
            return result

        monkeypatch.setattr(owner, name, spied)
        return calls

    return spy


@pytest.fixture
def adam_steps(monkeypatch):
    """Lists the steps of Adam: learning rate, joint gradient, and all parameters before and after."""
    step, steps = torch.optim.Adam.step, []

    def spied(optimizer):
        (group,) = optimizer.param_groups
        before, gradient = joint(group["params"]), joint(parameter.grad for parameter in group["params"])
        step(optimizer)
        after = joint(group["params"])
        steps.append(SimpleNamespace(lr=group["lr"], gradient=gradient, before=before, after=after))

    monkeypatch.setattr(torch.optim.Adam, "step", spied)
    return steps


def joint(tensors):
    return np.concatenate([copied(tensor).ravel() for tensor in tensors])


def rollouts(agent_calls):
    """The calls on whole rollouts, one an update."""
    return [call for call in agent_calls if not call.in_training]


@pytest.fixture
def biased_agent(monkeypatch):
    """Makes every new agent act with the probabilities 0.6, 0.3 and 0.1, whatever it observes."""
    init = ppo.Agent.__init__

    def biased_init(agent, *sizes):
        init(agent, *sizes)
        with torch.no_grad():
            agent.actor[-1].weight.zero_()
            agent.actor[-1].bias.copy_(torch.tensor([0.6, 0.3, 0.1]).log())

    monkeypatch.setattr(ppo.Agent, "__init__", biased_init)
    return np.array([0.6, 0.3, 0.1])


# ----------------------------------------------------------------------------------- core-1: segments of a fixed length


@pytest.mark.parametrize("env_id", ["Counter-v0", "LimitedCounter-v0", "EndAtLimit-v0"])
def test_episodes_carry_on_from_one_rollout_to_the_next(train, spy, env_id):
    agent_calls, gae_calls = spy(ppo.Agent, "get_action_and_value"), spy(ppo, "compute_gae")
    train(env_id=env_id, num_steps=5, num_minibatches=2, total_timesteps=30)
    observed = [call.obs.reshape(5, 2).T.tolist() for call in rollouts(agent_calls)]
    assert observed == [[[0, 1, 2, 3, 4]] * 2, [[5, 6, 7, 0, 1]] * 2, [[2, 3, 4, 5, 6]] * 2]
    dones = [call.dones.T.tolist() for call in gae_calls]
    assert dones == [[[1, 0, 0, 0, 0]] * 2, [[0, 0, 0, 1, 0]] * 2, [[0, 0, 0, 0, 0]] * 2]


def test_an_episode_that_ends_on_the_last_step_marks_the_next_rollout(train, spy):
    gae_calls = spy(ppo, "compute_gae")
    train(env_id="Counter-v0", num_steps=8)
    assert [call.next_done.tolist() for call in gae_calls] == [[1, 1]] * 3
    assert [call.dones[0].tolist() for call in gae_calls] == [[1, 1]] * 3


def test_episodes_start_afresh_after_a_checkpoint(train, spy):
    agent_calls, gae_calls = spy(ppo.Agent, "get_action_and_value"), spy(ppo, "compute_gae")
    train(env_id="Counter-v0", num_steps=5, num_minibatches=2, total_timesteps=40, checkpoints=2)
    assert [call.obs[0].item() for call in rollouts(agent_calls)] == [0, 5, 0, 5]
    assert [call.dones[0].tolist() for call in gae_calls] == [[1, 1], [0, 0], [1, 1], [0, 0]]


# -------------------------------------------------------------------------------------------- core-2, core-13: networks


def test_weights_are_orthogonal_and_biases_zero():
    agent = ppo.Agent(4, 2)
    for network, gain in ((agent.critic, 1.0), (agent.actor, 0.01)):
        for layer, layer_gain in zip(network[::2], (2**0.5, 2**0.5, gain), strict=True):
            weight = copied(layer.weight)
            gram = weight @ weight.T if len(weight) <= weight.shape[1] else weight.T @ weight
            np.testing.assert_allclose(gram, layer_gain**2 * np.eye(len(gram)), atol=1e-5 * layer_gain**2)
            assert not layer.bias.any()


def test_training_starts_from_the_initial_weights(train, adam_steps):
    train(seed=5)
    torch.manual_seed(5)
    assert (adam_steps[0].before == joint(ppo.Agent(3, 3).parameters())).all()


def test_policy_and_value_networks_share_nothing():
    agent = ppo.Agent(4, 2)
    assert sum(parameter.numel() for parameter in agent.parameters()) == 9155
    _, log_prob, entropy, value = agent.get_action_and_value(torch.randn(8, 4))
    value.sum().backward(retain_graph=True)
    assert all(parameter.grad is None for parameter in agent.actor.parameters())
    assert all(parameter.grad is not None for parameter in agent.critic.parameters())
    agent.zero_grad()
    (log_prob + entropy).sum().backward()
    assert all(parameter.grad is None for parameter in agent.critic.parameters())


def test_networks_have_two_layers_of_tanh():
    agent, obs = ppo.Agent(4, 2), torch.randn(8, 4)
    for network in (agent.critic, agent.actor):
        w1, b1, w2, b2, w3, b3 = map(copied, network.parameters())
        assert w1.shape == (64, 4) and w2.shape == (64, 64)
        expected = np.tanh(np.tanh(obs.numpy() @ w1.T + b1) @ w2.T + b2) @ w3.T + b3
        np.testing.assert_allclose(copied(network(obs)), expected, atol=1e-6)


def test_log_prob_and_entropy_are_the_categorical_distributions(biased_agent):
    agent, action = ppo.Agent(3, 3), torch.tensor([0, 1, 2])
    same_action, log_prob, entropy, value = agent.get_action_and_value(obs := torch.randn(3, 3), action)
    assert same_action is action
    np.testing.assert_allclose(copied(log_prob), np.log(biased_agent), atol=1e-6)
    np.testing.assert_allclose(copied(entropy), [-(biased_agent * np.log(biased_agent)).sum()] * 3, atol=1e-6)
    np.testing.assert_allclose(copied(value), copied(agent.get_value(obs)))


def test_flattened_parameters_stay_the_agents():
    agent = ppo.Agent(4, 2)
    initial = joint(agent.parameters())
    flat = ppo.flatten_parameters(agent)
    assert (copied(flat) == initial).all()
    agent.get_value(torch.ones(1, 4)).backward()
    assert (copied(flat.grad) == joint(parameter.grad for parameter in agent.parameters())).all() and flat.grad.any()
    flat.data.fill_(1.0)
    assert (joint(agent.parameters()) == 1.0).all()


# -------------------------------------------------------------------------------------------- core-3, core-4: optimizer


def test_adam_has_epsilon_1e_5_and_default_betas(train):
    folder = train().folder
    state = torch.load(folder / "checkpoints" / "3.pt", weights_only=True)
    (group,) = state["optimizer"]["param_groups"]
    assert group["eps"] == 1e-5 and group["betas"] == (0.9, 0.999)
    assert not group["weight_decay"] and not group["amsgrad"]


def test_steps_are_adams(train, adam_steps):
    train(learning_rate=1e-3)
    first, second = 0.0, 0.0
    for t, step in enumerate(adam_steps, start=1):
        gradient = step.gradient.astype(np.float64)
        first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2
        expected = step.lr * (first / (1 - 0.9**t)) / (np.sqrt(second / (1 - 0.999**t)) + 1e-5)
        np.testing.assert_allclose(step.before - step.after, expected, atol=2e-7)
    assert len(adam_steps) == 3 * 4 * 4


def test_learning_rate_falls_linearly_and_never_to_0(train, adam_steps):
    logged = train(learning_rate=0.004, total_timesteps=64).learning_rate
    np.testing.assert_allclose(logged, [0.004, 0.003, 0.002, 0.001])
    np.testing.assert_allclose([step.lr for step in adam_steps], np.repeat(logged, 16))


def test_learning_rate_is_constant_without_annealing(train, adam_steps):
    assert train(learning_rate=0.004, anneal_lr=False).learning_rate.tolist() == [0.004] * 3
    assert {step.lr for step in adam_steps} == {0.004}


# --------------------------------------------------------------------------------------------------- core-5: advantages

GAMMA = 0.9


def random_rollout(steps=12, envs=5, seed=0):
    """Rewards, values, dones, next_value and next_done, with ends in the middle and on the last step."""
    rng = np.random.default_rng(seed)
    rewards, values, next_value = rng.normal(size=(steps, envs)), rng.normal(size=(steps, envs)), rng.normal(size=envs)
    dones = (rng.random((steps + 1, envs)) < 0.2).astype(float)
    dones[-1] = [1, 0, 1, 0, 0]
    dones[:, 4] = 0
    return rewards, values, dones[:-1], next_value, dones[-1]


def td_errors(rewards, values, dones, next_value, next_done):
    later_values, later_dones = np.vstack([values[1:], next_value]), np.vstack([dones[1:], next_done])
    return rewards + GAMMA * later_values * (1 - later_dones) - values


@pytest.mark.parametrize("gae_lambda", [0.95, 0.5])
def test_advantages_are_the_double_sum(gae_lambda):
    rollout = random_rollout()
    deltas, ends = td_errors(*rollout), np.vstack([rollout[2][1:], rollout[4]])
    expected = np.zeros_like(deltas)
    for t, env in np.ndindex(deltas.shape):
        for k in range(t, len(deltas)):
            expected[t, env] += (GAMMA * gae_lambda) ** (k - t) * deltas[k, env]
            if ends[k, env]:
                break
    advantages, returns = ppo.compute_gae(*rollout, GAMMA, gae_lambda)
    np.testing.assert_allclose(advantages, expected, rtol=1e-12)
    np.testing.assert_allclose(returns, expected + rollout[1], rtol=1e-12)


def test_lambda_1_gives_monte_carlo_returns():
    rollout = rewards, _, dones, next_value, next_done = random_rollout()
    ends, expected = np.vstack([dones[1:], next_done]), np.zeros_like(rewards)
    for t, env in np.ndindex(rewards.shape):
        ended = np.flatnonzero(ends[t:, env])
        length = ended[0] + 1 if len(ended) else len(rewards) - t
        expected[t, env] = sum(GAMMA**k * rewards[t + k, env] for k in range(length))
        expected[t, env] += 0 if len(ended) else GAMMA**length * next_value[env]
    np.testing.assert_allclose(ppo.compute_gae(*rollout, GAMMA, 1.0)[1], expected, rtol=1e-10)


def test_lambda_0_gives_td_errors():
    rollout = random_rollout()
    np.testing.assert_allclose(ppo.compute_gae(*rollout, GAMMA, 0.0)[0], td_errors(*rollout), rtol=1e-12)


def test_advantages_are_computed_from_what_the_rollout_saw(train, spy):
    gae_calls, agent_calls = spy(ppo, "compute_gae"), spy(ppo.Agent, "get_action_and_value")
    env_calls = spy(ppo.VectorEnv, "step")
    train(gamma=0.7, gae_lambda=0.6)
    env_calls = np.split(np.array(env_calls[1:]), 3)  # the first was a look at the environment before the run
    for call, rollout, steps in zip(gae_calls, rollouts(agent_calls), env_calls, strict=True):
        assert (call.gamma, call.gae_lambda) == (0.7, 0.6)
        np.testing.assert_allclose(call.rewards, [step.result[1] for step in steps], rtol=1e-6)
        assert call.dones[1:].tolist() == [step.result[2].tolist() for step in steps[:-1]]
        assert call.next_done.tolist() == steps[-1].result[2].tolist()
        assert call.values.tolist() == rollout.result[3].reshape(8, 2).tolist()


def test_a_rollout_bootstraps_from_the_next_observation(train, spy):
    gae_calls = spy(ppo, "compute_gae")
    train(learning_rate=1e-30)  # so that the next rollout is valued by the same weights
    for call, later in pairwise(gae_calls):
        np.testing.assert_allclose(call.next_value, later.values[0], atol=1e-6)


# -------------------------------------------------------------------------------------------------- core-6: minibatches


def sample_orders(agent_calls, gae_calls, loss_calls):
    """The order (epochs, B) in which samples reach the loss, each with all that the rollout holds on it."""
    minibatches = iter(zip([call for call in agent_calls if call.in_training], loss_calls, strict=True))
    orders = []
    for rollout, gae in zip(rollouts(agent_calls), gae_calls, strict=True):
        columns = rollout.obs, rollout.action, rollout.result[1], rollout.result[3], *map(np.ravel, gae.result)
        samples = np.column_stack(columns)
        order = []
        for _ in range(ARGS.update_epochs * ARGS.num_minibatches):
            agent, loss = next(minibatches)
            columns = agent.obs, agent.action, loss.old_log_probs, loss.old_values, loss.advantages, loss.returns
            same = (np.column_stack(columns)[:, None] == samples).all(-1)  # (M, B)
            assert (same.sum(-1) == 1).all() and len(same) == len(samples) // ARGS.num_minibatches
            order += same.argmax(-1).tolist()
        orders += np.split(np.array(order), ARGS.update_epochs)
    return np.array(orders)


def test_each_epoch_takes_every_sample_once_in_a_new_order(train, spy):
    spies = spy(ppo.Agent, "get_action_and_value"), spy(ppo, "compute_gae"), spy(ppo, "ppo_loss")
    train()
    orders = sample_orders(*spies)
    assert (np.sort(orders) == np.arange(16)).all()
    assert len({tuple(order) for order in [*orders.tolist(), range(16)]}) == len(orders) + 1 == 3 * 4 + 1


# ---------------------------------------------------------------------------------------------- core-7 to core-10: loss


def loss_of(clip_coef=0.2, norm_adv=False, clip_vloss=True, ent_coef=0.0, vf_coef=0.0, **columns):
    """ppo_loss of a minibatch whose other columns are 0."""
    names = "log_prob entropy value old_log_probs old_values advantages returns".split()
    zeros = torch.zeros(len(next(iter(columns.values()))))
    tensors = [torch.as_tensor(columns.get(name, zeros), dtype=torch.float32) for name in names]
    return ppo.ppo_loss(*tensors, clip_coef, norm_adv, clip_vloss, ent_coef, vf_coef)


def normalised(advantages):
    """The advantages that weigh the log-probs in the loss: at ratio 1, the gradient is -A / M."""
    log_prob = torch.zeros(len(advantages), requires_grad=True)
    loss_of(log_prob=log_prob, advantages=advantages, norm_adv=True)[0].backward()
    return -log_prob.grad.numpy() * len(advantages)


@pytest.mark.parametrize("scale, shift", [(1.0, 0.0), (100.0, 50.0)])
def test_advantages_are_normalised_in_each_minibatch(scale, shift):
    advantages = scale * np.random.default_rng(0).normal(size=8) + shift
    expected = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    np.testing.assert_allclose(normalised(advantages), expected, rtol=1e-4, atol=1e-5)


def test_equal_advantages_are_normalised_to_0():
    assert not normalised(np.full(4, 3.0)).any() and not normalised(np.array([3.0])).any()


CLIPPED = [  # ratio, advantage, loss, gradient by the log-prob at ε = 0.2
    (0.5, 1.0, -0.5, -0.5),
    (1.0, 1.0, -1.0, -1.0),
    (1.5, 1.0, -1.2, 0.0),
    (0.5, -1.0, 0.8, 0.0),
    (1.0, -1.0, 1.0, 1.0),
    (1.5, -1.0, 1.5, 1.5),
]


def test_surrogate_is_clipped_on_the_pessimistic_side():
    ratio, advantages, losses, gradient = np.array(CLIPPED).T
    log_prob = torch.tensor(np.log(ratio), dtype=torch.float32, requires_grad=True)
    loss, debug = loss_of(log_prob=log_prob, advantages=advantages)
    loss.backward()
    assert loss.item() == pytest.approx(losses.mean())
    np.testing.assert_allclose(debug["losses/policy_loss"], losses, rtol=1e-6)
    np.testing.assert_allclose(log_prob.grad * len(ratio), gradient, atol=1e-6)


def test_ratio_is_to_the_old_log_prob():
    loss, _ = loss_of(log_prob=np.log([0.3]), old_log_probs=np.log([0.25]), advantages=[1.0], clip_coef=0.5)
    assert loss.item() == pytest.approx(-1.2)


def test_ratio_is_1_until_the_first_step_of_each_update(train, spy):
    loss_calls = spy(ppo, "ppo_loss")
    train(learning_rate=0.01)
    for update in np.split(np.array(loss_calls), 3):
        np.testing.assert_allclose(update[0].log_prob, update[0].old_log_probs, atol=1e-5)
        assert all(np.abs(call.log_prob - call.old_log_probs).max() > 1e-3 for call in update[1:])


VALUES = [  # value, old value, return, loss at ε = 0.2, its gradient by the value
    (1.0, 0.0, 1.5, 1.3**2, 0.0),  # the clipped value is further off
    (1.0, 0.0, 0.0, 1.0, 2.0),  # the value itself is further off
    (-1.0, 0.0, -1.5, 1.3**2, 0.0),
    (0.1, 0.0, 0.5, 0.4**2, -0.8),  # within the clip range
]


def test_value_loss_takes_the_larger_of_the_clipped_and_the_plain_error():
    values, old_values, returns, losses, gradient = np.array(VALUES).T
    value = torch.tensor(values, dtype=torch.float32, requires_grad=True)
    loss, debug = loss_of(value=value, old_values=old_values, returns=returns, vf_coef=1.0)
    loss.backward()
    assert loss.item() == pytest.approx(0.5 * losses.mean())
    np.testing.assert_allclose(debug["losses/value_loss"], 0.5 * losses, rtol=1e-6)
    np.testing.assert_allclose(value.grad * len(values), 0.5 * gradient, atol=1e-6)


def test_value_loss_clips_by_the_same_range_as_the_ratio():
    loss, _ = loss_of(value=[1.0], old_values=[0.0], returns=[1.5], vf_coef=1.0, clip_coef=0.5)
    assert loss.item() == pytest.approx(0.5)


def test_value_loss_without_clipping_is_half_the_squared_error():
    values, old_values, returns, *_ = np.array(VALUES).T
    loss, _ = loss_of(value=values, old_values=old_values, returns=returns, vf_coef=1.0, clip_vloss=False)
    assert loss.item() == pytest.approx(0.5 * np.square(values - returns).mean())


def test_loss_is_policy_loss_minus_entropy_plus_value_loss():
    names = "log_prob entropy value old_log_probs old_values advantages returns".split()
    columns = dict(zip(names, np.random.default_rng(0).normal(size=(len(names), 8))))
    loss, debug = loss_of(**columns, norm_adv=True, ent_coef=0.3, vf_coef=0.7)
    policy_loss, entropy, value_loss = (
        debug[f"losses/{x}"].mean().item() for x in ("policy_loss", "entropy", "value_loss")
    )
    assert entropy == pytest.approx(columns["entropy"].mean())
    assert loss.item() == pytest.approx(policy_loss - 0.3 * entropy + 0.7 * value_loss)


def test_gradient_reaches_entropy_and_value():
    entropy, value = torch.zeros(4, requires_grad=True), torch.zeros(4, requires_grad=True)
    loss_of(entropy=entropy, value=value, returns=np.ones(4), ent_coef=0.3, vf_coef=0.7)[0].backward()
    np.testing.assert_allclose(entropy.grad, -0.3 / 4)
    np.testing.assert_allclose(value.grad, -0.7 / 4)


def test_training_passes_its_coefficients_to_the_loss(train, spy):
    loss_calls = spy(ppo, "ppo_loss")
    train(clip_coef=0.3, norm_adv=False, clip_vloss=False, ent_coef=0.02, vf_coef=0.7)
    for call in loss_calls:
        assert (call.clip_coef, call.norm_adv, call.clip_vloss) == (0.3, False, False)
        assert (call.ent_coef, call.vf_coef) == (0.02, 0.7)


# ------------------------------------------------------------------------------------------- core-11: gradient clipping


@pytest.fixture
def true_gradients(monkeypatch, spy):
    """Lets true_gradients(scale) scale the loss; returns the list of its gradients before they are clipped."""
    agent_calls, loss_of_minibatch, gradients = spy(ppo.Agent, "get_action_and_value"), ppo.ppo_loss, []

    def scale_loss(scale):
        def scaled(*arguments):
            loss, debug = loss_of_minibatch(*arguments)
            parameters = list(agent_calls[-1].self.parameters())
            gradients.append(joint(torch.autograd.grad(scale * loss, parameters, retain_graph=True)))
            return scale * loss, debug

        monkeypatch.setattr(ppo, "ppo_loss", scaled)
        return gradients

    return scale_loss


def test_large_gradients_are_scaled_to_a_joint_norm_of_a_half(train, adam_steps, true_gradients):
    gradients = true_gradients(1e4)
    train()
    for step, gradient in zip(adam_steps, gradients, strict=True):
        norm = np.linalg.norm(gradient)
        assert norm > 50 and np.linalg.norm(step.gradient) == pytest.approx(0.5, rel=1e-5)
        np.testing.assert_allclose(step.gradient, gradient * (0.5 / norm), atol=1e-6)


def test_small_gradients_are_left_alone(train, adam_steps, true_gradients):
    gradients = true_gradients(1e-4)
    train()
    for step, gradient in zip(adam_steps, gradients, strict=True):
        assert np.linalg.norm(gradient) < 0.5
        np.testing.assert_allclose(step.gradient, gradient, rtol=1e-6)


def test_max_grad_norm_is_the_limit(train, adam_steps, true_gradients):
    true_gradients(1e4)
    train(max_grad_norm=2.0)
    np.testing.assert_allclose([np.linalg.norm(step.gradient) for step in adam_steps], 2.0, rtol=1e-5)


# --------------------------------------------------------------------------------------------- core-12: debug variables


def test_debug_variables_have_their_closed_forms():
    ratio = np.array([0.5, 0.81, 1.0, 1.19, 1.5])
    log_prob = torch.tensor(np.log(ratio), dtype=torch.float32, requires_grad=True)
    _, debug = loss_of(log_prob=log_prob, advantages=np.ones(5), entropy=np.arange(5.0))
    np.testing.assert_allclose(debug["losses/old_approx_kl"], -np.log(ratio), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(debug["losses/approx_kl"], ratio - 1 - np.log(ratio), rtol=1e-4, atol=1e-7)
    assert debug["losses/clipfrac"].tolist() == [1, 0, 0, 0, 1]
    assert debug["losses/entropy"].tolist() == [0, 1, 2, 3, 4]


def test_debug_variables_carry_no_graph():
    names = "log_prob entropy value advantages returns".split()
    columns = {name: torch.randn(4, requires_grad=name in ("log_prob", "entropy", "value")) for name in names}
    loss, debug = ppo.ppo_loss(
        columns["log_prob"], columns["entropy"], columns["value"], torch.zeros(4), torch.zeros(4),
        columns["advantages"], columns["returns"], 0.2, True, True, 0.01, 0.5,
    )  # fmt: skip
    assert loss.requires_grad and len(debug) == 6
    assert not any(value.requires_grad for value in debug.values())


def test_logged_metrics_are_means_over_all_samples(train, spy):
    loss_calls = spy(ppo, "ppo_loss")
    metrics = train(learning_rate=0.01)
    for name in ("policy_loss", "value_loss", "entropy", "old_approx_kl", "approx_kl", "clipfrac"):
        samples = np.reshape([call.result[1][f"losses/{name}"] for call in loss_calls], (3, 16 * 4))
        assert np.ptp(samples.reshape(3, 16, 4).mean(-1), axis=1).all()  # no minibatch is like the others
        np.testing.assert_allclose(getattr(metrics, name), samples.mean(1), rtol=1e-4, atol=1e-6)


def test_explained_variance_compares_returns_with_values(train, spy):
    gae_calls = spy(ppo, "compute_gae")
    metrics = train()
    expected = [1 - (call.result[1] - call.values).var() / call.result[1].var() for call in gae_calls]
    np.testing.assert_allclose(metrics.explained_variance, expected, rtol=1e-5)


def test_explained_variance_is_nan_when_returns_do_not_vary(train):
    metrics = train(num_envs=1, num_steps=1, num_minibatches=1, total_timesteps=3)
    assert np.isnan(metrics.explained_variance).all()


def test_explained_variance_is_nan_when_returns_vary_by_rounding_alone(train):
    metrics = train(env_id="CartPole-v1", gamma=0.0, total_timesteps=128)  # every reward is 1
    assert np.isnan(metrics.explained_variance).all()


# ---------------------------------------------------------------------------------------- aux-1, aux-3, plus-1: options


def test_clip_range_falls_linearly_with_anneal_clip(train, spy):
    loss_calls = spy(ppo, "ppo_loss")
    train(anneal_clip=True, total_timesteps=64)
    np.testing.assert_allclose([call.clip_coef for call in loss_calls], np.repeat([0.2, 0.15, 0.1, 0.05], 16))


def test_clip_range_is_constant_by_default(train, spy):
    loss_calls = spy(ppo, "ppo_loss")
    train()
    assert {call.clip_coef for call in loss_calls} == {0.2}


def minibatches_taken(train, monkeypatch, kls, **arguments):
    """Minibatches of the one update of a run whose approximate KLs are given."""
    loss_of_minibatch, taken = ppo.ppo_loss, []

    def with_given_kl(*columns):
        loss, debug = loss_of_minibatch(*columns)
        taken.append(kls[len(taken)])
        return loss, debug | {"losses/approx_kl": torch.full((8,), taken[-1])}

    monkeypatch.setattr(ppo, "ppo_loss", with_given_kl)
    train(num_minibatches=2, update_epochs=3, total_timesteps=16, **arguments)
    return len(taken)


@pytest.mark.parametrize(
    "kls, taken",
    [
        ([0.03, 0.0] * 3, 2),  # the last minibatch alone is below
        ([0.0, 0.015] * 3, 6),  # the last minibatch alone is above
        ([0.0, 0.0, 0.03, 0.0, 0.0, 0.0], 4),  # the mean over both epochs is below
        ([0.01] * 6, 6),  # as high as the target
    ],
)
def test_update_ends_after_an_epoch_whose_mean_kl_is_above_the_target(train, monkeypatch, kls, taken):
    assert minibatches_taken(train, monkeypatch, kls, target_kl=0.01) == taken


def test_kl_ends_no_update_by_default(train, monkeypatch):
    assert minibatches_taken(train, monkeypatch, [100.0] * 6) == 6


def test_an_update_cut_short_by_kl_does_not_end_the_run(train, spy):
    loss_calls = spy(ppo, "ppo_loss")
    metrics = train(target_kl=1e-9, learning_rate=0.01)
    assert len(loss_calls) == 3 * 4
    expected = np.reshape([call.result[1]["losses/approx_kl"] for call in loss_calls], (3, 16)).mean(1)
    np.testing.assert_allclose(metrics.approx_kl, expected, rtol=1e-4)


@pytest.fixture
def reward_gains(train, spy, monkeypatch):
    """Runs reward_gains(env_id, …); returns what each reward gained on its way into compute_gae and V(8), by update."""

    def reward_gains(env_id, **arguments):
        env_calls, agent_calls = spy(ppo.VectorEnv, "step"), spy(ppo.Agent, "get_action_and_value")
        compute_gae, updates = ppo.compute_gae, []

        def compare(rewards, *rest):
            from_env = np.array([call.result[1] for call in env_calls[-len(rewards) :]])
            last_value = agent_calls[-1].self.critic(torch.tensor([[8.0]])).item()
            updates.append((rewards - from_env, last_value))
            return compute_gae(rewards, *rest)

        monkeypatch.setattr(ppo, "compute_gae", compare)
        train(env_id=env_id, num_steps=20, total_timesteps=120, learning_rate=0.01, **arguments)
        return updates

    return reward_gains


def test_bootstrap_truncated_adds_the_value_of_the_last_observation_at_a_time_limit(reward_gains):
    at_limit = np.arange(60).reshape(3, 20) % 8 == 7
    gains = reward_gains("LimitedCounter-v0", bootstrap_truncated=True, gamma=0.8)
    assert max(abs(last_value) for _, last_value in gains) > 0.05
    for (gain, last_value), limits in zip(gains, at_limit, strict=True):
        expected = np.where(limits, 0.8 * last_value, 0.0)
        np.testing.assert_allclose(gain, np.column_stack([expected, expected]), atol=1e-6)


@pytest.mark.parametrize("env_id", ["Counter-v0", "EndAtLimit-v0"])
def test_bootstrap_truncated_adds_nothing_at_a_true_end(reward_gains, env_id):
    assert not any(gain.any() for gain, _ in reward_gains(env_id, bootstrap_truncated=True))


def test_a_time_limit_counts_as_a_true_end_by_default(reward_gains):
    assert not any(gain.any() for gain, _ in reward_gains("LimitedCounter-v0"))


def test_bootstrapped_rewards_stay_out_of_the_reported_returns(train):
    folder = train(env_id="LimitedCounter-v0", num_steps=8, bootstrap_truncated=True).folder
    returns = [float(row["episodic_return"]) for row in csv.DictReader((folder / "episodes.csv").open())]
    assert len(returns) == 6 and all(value.is_integer() for value in returns)


# ------------------------------------------------------------------------------------------- numpy_forward and sampling

NETWORKS = {
    "mlp": lambda: ppo.mlp(3, 2, gain=1.0),
    "other layers": lambda: nn.Sequential(
        nn.Linear(3, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 8, bias=False), nn.Tanh(), nn.Linear(8, 2)
    ),
    "nested": lambda: nn.Sequential(nn.Sequential(nn.Linear(3, 4), nn.ReLU()), nn.Linear(4, 2)),
    "of its own": lambda: Residual(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3)),
}


class Residual(nn.Sequential):
    def forward(self, x):
        return x + super().forward(x)


@pytest.mark.parametrize("name", NETWORKS)
def test_numpy_forward_equals_the_network(name):
    network, x = NETWORKS[name](), torch.randn(5, 3)
    forward = ppo.numpy_forward(network)
    np.testing.assert_allclose(forward(x.numpy()), copied(network(x)), rtol=1e-5, atol=1e-5)
    for parameter in network.parameters():
        parameter.data.add_(torch.randn_like(parameter))
    np.testing.assert_allclose(forward(x.numpy()), copied(network(x)), rtol=1e-5, atol=1e-5)


def test_numpy_forward_follows_the_flattened_parameters():
    agent, x = ppo.Agent(3, 2), torch.randn(5, 3)
    flat = ppo.flatten_parameters(agent)
    forward = ppo.numpy_forward(agent.actor)
    flat.data.add_(torch.randn_like(flat))
    np.testing.assert_allclose(forward(x.numpy()), copied(agent.actor(x)), rtol=1e-5, atol=1e-5)


def evaluated(env_id, agent, episodes, seed=1):
    """(return, length) of each episode."""
    return list(ppo.evaluate(agent, ppo.Args(env_id=env_id), episodes, seed))


def assert_frequencies(actions, probabilities):
    frequencies = np.bincount(actions, minlength=len(probabilities)) / len(actions)
    deviation = np.sqrt(probabilities * (1 - probabilities) / len(actions))
    assert (np.abs(frequencies - probabilities) < 4 * deviation).all(), frequencies


def test_rollout_draws_actions_from_the_softmax(train, spy, biased_agent):
    agent_calls = spy(ppo.Agent, "get_action_and_value")
    train(num_steps=4000, num_envs=2, total_timesteps=8000, update_epochs=1)
    (rollout,) = rollouts(agent_calls)
    assert_frequencies(rollout.action, biased_agent)
    first, second = rollout.action.reshape(4000, 2).T
    assert_frequencies(3 * first + second, np.outer(biased_agent, biased_agent).ravel())  # environments are independent
    assert_frequencies(3 * first[:-1:2] + first[1::2], np.outer(biased_agent, biased_agent).ravel())  # and steps
    np.testing.assert_allclose(rollout.result[1], np.log(biased_agent)[rollout.action], atol=1e-6)


@pytest.mark.parametrize("env_id, env, start", [("Random-v0", "Random", 0), ("Offset-v0", "Counter", 2)])
def test_environments_get_the_actions_that_are_learned_from(train, spy, env_id, env, start):
    agent_calls, env_calls = spy(ppo.Agent, "get_action_and_value"), spy(getattr(environments, env), "step")
    train(env_id=env_id)
    stored = np.concatenate([call.action for call in rollouts(agent_calls)])
    taken = [call.action for call in env_calls[1:]]  # the first was a look at the environment before the run
    assert (stored + start).tolist() == taken and len(set(stored)) > 1


def test_each_rollout_plays_the_newest_policy(train, spy, monkeypatch):
    agent_calls = spy(ppo.Agent, "get_action_and_value")

    def prefer_action_1(optimizer):
        agent_calls[-1].self.actor[-1].bias.data[1] = 100.0

    monkeypatch.setattr(torch.optim.Adam, "step", prefer_action_1)
    train(env_id="Counter-v0")
    assert [set(call.action) for call in rollouts(agent_calls)] == [{0, 1}, {1}, {1}]


def test_agent_draws_actions_from_the_softmax(biased_agent):
    torch.manual_seed(0)
    action, *_ = ppo.Agent(3, 3).get_action_and_value(torch.zeros(4000, 3))
    assert_frequencies(action.numpy(), biased_agent)


def test_evaluation_draws_actions_from_the_softmax(spy, biased_agent):
    env_calls = spy(environments.Random, "step")
    evaluated("Random-v0", ppo.Agent(3, 3), episodes=800)
    assert len(env_calls) > 2000
    assert_frequencies([call.action for call in env_calls], biased_agent)


# ------------------------------------------------------------------------------------------------------------ VectorEnv


def play(env_id, actions):
    """Results of VectorEnv.step, (T, N) actions after a reset."""
    envs = ppo.VectorEnv(ppo.Args(env_id=env_id))
    first = envs.reset(list(range(actions.shape[1])))
    return first, [envs.step(row) for row in actions]


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Random-v0"])
def test_vector_env_equals_gymnasiums(env_id):
    actions = np.random.default_rng(0).integers(2, size=(500, 3))
    first, steps = play(env_id, actions)
    same_step = gym.vector.AutoresetMode.SAME_STEP
    reference = gym.vector.SyncVectorEnv([lambda: gym.make(env_id)] * 3, autoreset_mode=same_step)
    assert (first == reference.reset(seed=[0, 1, 2])[0]).all()
    for row, (observations, rewards, dones, truncated_obs, _) in zip(actions, steps):
        expected, expected_rewards, terminated, truncated, info = reference.step(row)
        assert (observations == expected).all()
        np.testing.assert_allclose(rewards, expected_rewards, rtol=1e-6)
        assert (dones == (terminated | truncated)).all()
        assert sorted(truncated_obs) == np.flatnonzero(truncated & ~terminated).tolist()
        assert all((info["final_obs"][i] == last).all() for i, last in truncated_obs.items())
    assert sum(dones.sum() for _, _, dones, _, _ in steps) > 30


def test_all_episodes_that_end_on_one_step_are_reported():
    _, steps = play("Counter-v0", np.tile([0, 1, 1], (8, 1)))
    assert [episodes for *_, episodes in steps] == [[]] * 7 + [[(0.0, 8), (8.0, 8), (8.0, 8)]]


def test_all_episodes_that_end_on_one_step_are_logged(train):
    folder = train(env_id="Counter-v0", num_envs=3, num_minibatches=3, total_timesteps=72).folder
    rows = list(csv.DictReader((folder / "episodes.csv").open()))
    assert [(int(row["global_step"]), int(row["episodic_length"])) for row in rows] == [
        (step, 8) for step in (24, 48, 72) for _ in range(3)
    ]


@pytest.mark.parametrize("env_id", ["Counter-v0", "LimitedCounter-v0"])
def test_each_episode_has_a_return_of_its_own(env_id):
    actions = np.repeat([[1, 0], [0, 1], [1, 1]], 8, axis=0)
    _, steps = play(env_id, actions)
    ended = [episodes for *_, episodes in steps if episodes]
    assert ended == [[(8.0, 8), (0.0, 8)], [(0.0, 8), (8.0, 8)], [(8.0, 8), (8.0, 8)]]


def test_a_reset_forgets_unfinished_episodes():
    envs = ppo.VectorEnv(ppo.Args(env_id="Counter-v0"))
    for _ in range(2):
        assert envs.reset([1]).tolist() == [[0]]
        results = [envs.step(np.array([1])) for _ in range(5)]
    assert envs.step(np.array([0]))[4] == [] and not any(dones.any() for _, _, dones, _, _ in results)
    assert [envs.step(np.array([0]))[4] for _ in range(2)] == [[], [(5.0, 8)]]


def test_a_reset_makes_environments_anew():
    envs = ppo.VectorEnv(ppo.Args(env_id="Worn-v0"))
    first = envs.reset([1, 2])
    used = list(envs.envs)
    assert envs.reset([1, 2]).tolist() == first.tolist()
    assert len(envs.envs) == 2 and not set(map(id, used)) & set(map(id, envs.envs))


@pytest.mark.parametrize(
    "env_id, last", [("Counter-v0", {}), ("EndAtLimit-v0", {}), ("LimitedCounter-v0", {0: [8.0], 1: [8.0]})]
)
def test_only_a_time_limit_hands_back_the_last_observation(env_id, last):
    _, steps = play(env_id, np.zeros((8, 2), int))
    assert [dones.tolist() for _, _, dones, _, _ in steps] == [[0, 0]] * 7 + [[1, 1]]
    assert [truncated_obs for _, _, _, truncated_obs, _ in steps[:-1]] == [{}] * 7
    observations, _, _, truncated_obs, _ = steps[-1]
    assert observations.tolist() == [[0.0], [0.0]]
    assert {i: observation.tolist() for i, observation in truncated_obs.items()} == last


def test_evaluation_counts_actions_from_their_start():
    agent = ppo.Agent(1, 2)
    agent.actor[-1].bias.data = torch.tensor([-100.0, 100.0])
    assert evaluated("Offset-v0", agent, episodes=1) == [(8.0, 8)]  # it asserts that actions are legal


def test_observations_of_any_shape_are_flattened(train):
    first, steps = play("Grid-v0", np.zeros((1, 2), int))
    assert first.tolist() == [[0] * 6] * 2 and steps[0][0].tolist() == [[1] * 6] * 2
    assert train(env_id="Grid-v0", bootstrap_truncated=True).policy_loss.size == 3
    assert len(evaluated("Grid-v0", ppo.Agent(6, 2), episodes=2)) == 2


# ---------------------------------------------------------------------------------------------------- seeds, evaluation


def test_no_episode_seed_comes_twice(train, spy):
    resets = spy(environments.Counter, "reset")
    for seed in (1, 2):
        train(env_id="Counter-v0", seed=seed, total_timesteps=6 * 16, checkpoints=6)
        evaluated("Counter-v0", ppo.Agent(1, 2), episodes=6, seed=seed)
    seeds = [call.seed for call in resets if getattr(call, "seed", None)]  # 0 is that of the look before the run
    assert len(seeds) == len(set(seeds)) == 2 * (6 * 2 + 6)


def generator_states():
    return random.getstate(), copied(np.random.get_state()), torch.get_rng_state().tolist()


def test_evaluation_repeats_and_leaves_generators_and_agent_alone():
    agent = ppo.Agent(4, 2)
    before, weights = repr(generator_states()), joint(agent.parameters())
    results = [evaluated("CartPole-v1", agent, episodes=3, seed=seed) for seed in (1, 1, 2)]
    assert results[0] == results[1] != results[2] and len(results[0]) == 3
    assert repr(generator_states()) == before and (joint(agent.parameters()) == weights).all()


def test_evaluation_reports_each_episodes_return_and_length():
    agent = ppo.Agent(1, 2)
    agent.actor[-1].bias.data = torch.tensor([-100.0, 100.0])
    assert evaluated("LimitedCounter-v0", agent, episodes=3) == [(8.0, 8)] * 3
