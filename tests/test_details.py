"""Each implementation detail of ppo.py against numpy or a closed form; each test fails when its detail is taken out."""

import json
import os
import signal
import threading
import time
from functools import wraps
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import environments
import environments_cli  # noqa: F401 (registers them)
import gymnasium as gym
import numpy as np
import ppo
import ppo_numpy
import pytest
import torch
from every_script import train_on_noise
from helpers import copied, rows
from test_run_folder import METRICS

TINY = dict(env_id="Random-v0", total_timesteps=48, num_envs=2, num_steps=8, checkpoints=1)  # 3 updates of 16 samples
ARGS = ppo.Args(**TINY)


@pytest.fixture
def train(in_tmp_path):
    """Runs a tiny training in this process; returns the columns of its metrics.csv, and the run folder as `folder`."""

    def train(**arguments):
        folder = ppo.main(ppo.Args(**TINY | arguments))
        table = rows(folder, "metrics.csv")
        columns = {name.split("/")[-1]: np.array([float(row[name]) for row in table]) for name in table[0]}
        return SimpleNamespace(folder=folder, **columns)

    return train


@pytest.fixture
def adam_steps(monkeypatch):
    """Lists the steps of Adam: its options, the joint gradient, and all parameters before and after."""
    step = torch.optim.Adam.step
    steps = []

    def spied(optimizer):
        (group,) = optimizer.param_groups
        options = {name: copied(group[name]) for name in ("lr", "eps", "betas", "weight_decay")}
        gradient = joint(parameter.grad for parameter in group["params"])
        before = joint(group["params"])
        step(optimizer)
        after = joint(group["params"])
        steps.append(SimpleNamespace(**options, gradient=gradient, before=before, after=after))

    monkeypatch.setattr(torch.optim.Adam, "step", spied)
    return steps


def joint(tensors):
    return np.concatenate([copied(tensor).ravel() for tensor in tensors])


def new_agent(obs_dim, num_actions):
    spaces = SimpleNamespace(
        observation_space=gym.spaces.Box(-1, 1, (obs_dim,)), action_space=gym.spaces.Discrete(num_actions)
    )
    return ppo.Agent(spaces, ARGS)


def rollouts(acting_calls, num_steps=TINY["num_steps"]):
    """What the agent saw and what it answered in each rollout: obs (T, N, D), the others (T, N)."""
    joined = []
    for start in range(0, len(acting_calls), num_steps):
        calls = acting_calls[start : start + num_steps]
        actions, log_probs, values = (np.stack(column) for column in zip(*[call.result for call in calls]))
        obs = np.stack([call.obs for call in calls])
        joined.append(SimpleNamespace(obs=obs, actions=actions, log_probs=log_probs, values=values))
    return joined


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
    acting_calls = spy(ppo.Agent, "get_action_and_value")
    gae_calls = spy(ppo, "compute_gae")
    train(env_id=env_id, num_steps=5, num_minibatches=2, total_timesteps=30)
    observed = [rollout.obs.reshape(5, 2).T.tolist() for rollout in rollouts(acting_calls, 5)]
    assert observed == [[[0, 1, 2, 3, 4]] * 2, [[5, 6, 7, 0, 1]] * 2, [[2, 3, 4, 5, 6]] * 2]
    dones = [call.dones.T.tolist() for call in gae_calls]
    assert dones == [[[1, 0, 0, 0, 0]] * 2, [[0, 0, 0, 1, 0]] * 2, [[0, 0, 0, 0, 0]] * 2]


def test_an_episode_that_ends_on_the_last_step_marks_the_next_rollout(train, spy):
    gae_calls = spy(ppo, "compute_gae")
    train(env_id="Counter-v0", num_steps=8)
    assert [call.next_done.tolist() for call in gae_calls] == [[1, 1]] * 3
    assert [call.dones[0].tolist() for call in gae_calls] == [[1, 1]] * 3


@pytest.mark.parametrize("exact_resume, observed", [(False, [0, 5, 2, 7]), (True, [0, 5, 0, 5])])
def test_only_exact_resume_starts_fresh_episodes_after_a_checkpoint(train, spy, exact_resume, observed):
    acting_calls = spy(ppo.Agent, "get_action_and_value")
    gae_calls = spy(ppo, "compute_gae")
    options = {"num_steps": 5, "num_minibatches": 2, "total_timesteps": 40, "checkpoints": 2}
    train(env_id="Counter-v0", exact_resume=exact_resume, **options)
    assert [rollout.obs[0, 0].item() for rollout in rollouts(acting_calls, 5)] == observed
    assert [call.dones[0].tolist() for call in gae_calls] == [[float(first == 0)] * 2 for first in observed]


# -------------------------------------------------------------------------------------------- core-2, core-13: networks


def test_weights_are_orthogonal_and_biases_zero():
    agent = new_agent(4, 2)
    for network, gain in ((agent.critic, 1.0), (agent.actor, 0.01)):
        for layer, layer_gain in zip(network[::2], (2**0.5, 2**0.5, gain), strict=True):
            weight = copied(layer.weight)
            gram = weight @ weight.T if len(weight) <= weight.shape[1] else weight.T @ weight
            np.testing.assert_allclose(gram, layer_gain**2 * np.eye(len(gram)), atol=1e-5 * layer_gain**2)
            assert not layer.bias.any()


def test_training_starts_from_the_initial_weights(train, adam_steps):
    train(seed=5)
    torch.manual_seed(5)
    assert (adam_steps[0].before == joint(new_agent(3, 3).parameters())).all()


def test_policy_and_value_networks_share_nothing():
    agent = new_agent(4, 2)
    assert sum(parameter.numel() for parameter in agent.parameters()) == 9155
    log_prob, entropy, value = agent.evaluate_actions(torch.randn(8, 4), torch.zeros(8, dtype=torch.int64))
    value.sum().backward(retain_graph=True)
    assert all(parameter.grad is None for parameter in agent.actor.parameters())
    assert all(parameter.grad is not None for parameter in agent.critic.parameters())
    agent.zero_grad()
    (log_prob + entropy).sum().backward()
    assert all(parameter.grad is None for parameter in agent.critic.parameters())


def test_networks_have_two_layers_of_tanh():
    agent = new_agent(4, 2)
    obs = torch.randn(8, 4)
    for network in (agent.critic, agent.actor):
        w1, b1, w2, b2, w3, b3 = map(copied, network.parameters())
        assert w1.shape == (64, 4) and w2.shape == (64, 64)
        expected = np.tanh(np.tanh(obs.numpy() @ w1.T + b1) @ w2.T + b2) @ w3.T + b3
        np.testing.assert_allclose(copied(network(obs)), expected, atol=1e-6)


def test_log_prob_and_entropy_are_the_categorical_distributions(biased_agent):
    agent = new_agent(3, 3)
    obs = torch.randn(3, 3)
    log_prob, entropy, value = agent.evaluate_actions(obs, torch.tensor([0, 1, 2]))
    np.testing.assert_allclose(copied(log_prob), np.log(biased_agent), atol=1e-6)
    np.testing.assert_allclose(copied(entropy), [-(biased_agent * np.log(biased_agent)).sum()] * 3, atol=1e-6)
    np.testing.assert_allclose(copied(value), copied(agent.get_value(obs)))


# -------------------------------------------------------------------------------------------- core-3, core-4: optimizer


def test_adam_has_epsilon_1e_5_and_default_betas(train):
    folder = train().folder
    state = torch.load(folder / "checkpoints" / "3.pt", weights_only=True)
    (group,) = state["optimizer"]["param_groups"]
    assert group["eps"] == 1e-5 and group["betas"] == (0.9, 0.999)
    assert not group["weight_decay"] and not group["amsgrad"]


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
    rewards = rng.normal(size=(steps, envs))
    values = rng.normal(size=(steps, envs))
    next_value = rng.normal(size=envs)
    dones = (rng.random((steps + 1, envs)) < 0.2).astype(float)
    dones[-1] = [1, 0, 1, 0, 0]
    dones[:, 4] = 0
    return rewards, values, dones[:-1], next_value, dones[-1]


def td_errors(rewards, values, dones, next_value, next_done):
    later_values = np.vstack([values[1:], next_value])
    later_dones = np.vstack([dones[1:], next_done])
    return rewards + GAMMA * later_values * (1 - later_dones) - values


@pytest.mark.parametrize("gae_lambda", [0.95, 0.5])
def test_advantages_are_the_double_sum(gae_lambda):
    rollout = random_rollout()
    _, values, dones, _, next_done = rollout
    deltas = td_errors(*rollout)
    ends = np.vstack([dones[1:], next_done])
    expected = np.zeros_like(deltas)
    for t, env in np.ndindex(deltas.shape):
        for k in range(t, len(deltas)):
            expected[t, env] += (GAMMA * gae_lambda) ** (k - t) * deltas[k, env]
            if ends[k, env]:
                break
    advantages, returns = ppo.compute_gae(*rollout, GAMMA, gae_lambda)
    np.testing.assert_allclose(advantages, expected, rtol=1e-12)
    np.testing.assert_allclose(returns, expected + values, rtol=1e-12)


def test_lambda_1_gives_monte_carlo_returns():
    rollout = random_rollout()
    rewards, _, dones, next_value, next_done = rollout
    ends = np.vstack([dones[1:], next_done])
    expected = np.zeros_like(rewards)
    for t, env in np.ndindex(rewards.shape):
        ended = np.flatnonzero(ends[t:, env])
        length = ended[0] + 1 if len(ended) else len(rewards) - t
        expected[t, env] = sum(GAMMA**k * rewards[t + k, env] for k in range(length))
        expected[t, env] += 0 if len(ended) else GAMMA**length * next_value[env]
    np.testing.assert_allclose(ppo.compute_gae(*rollout, GAMMA, 1.0)[1], expected, rtol=1e-10)


def test_advantages_are_computed_from_what_the_rollout_saw(train, spy):
    gae_calls = spy(ppo, "compute_gae")
    acting_calls = spy(ppo.Agent, "get_action_and_value")
    env_calls = spy(ppo.VectorEnv, "step")
    train(gamma=0.7, gae_lambda=0.6)
    env_calls = np.split(np.array(env_calls[1:]), 3)  # the first is the look before training
    for call, rollout, steps in zip(gae_calls, rollouts(acting_calls), env_calls, strict=True):
        assert (call.gamma, call.gae_lambda) == (0.7, 0.6)
        np.testing.assert_allclose(call.rewards, [step.result[1] for step in steps], rtol=1e-6)
        assert call.dones[1:].tolist() == [step.result[2].tolist() for step in steps[:-1]]
        assert call.next_done.tolist() == steps[-1].result[2].tolist()
        assert call.values.tolist() == rollout.values.tolist()


def test_a_rollout_bootstraps_from_the_next_observation(every_script, in_tmp_path, spy):
    gae_calls = spy(every_script, "compute_gae")
    sizes = TINY | {"num_minibatches": 2}
    train_on_noise(every_script, **sizes, learning_rate=0.0)  # the next rollout is valued by the same weights
    for call, later in pairwise(gae_calls):
        np.testing.assert_allclose(call.next_value, later.values[0], atol=1e-6)


# -------------------------------------------------------------------------------------------------- core-6: minibatches


def test_each_epoch_takes_every_sample_once_in_a_new_order(train, spy):
    """A sample is all that the rollout knows of it: what acted is what is learned from."""
    acting_calls = spy(ppo.Agent, "get_action_and_value")
    learning_calls = spy(ppo.Agent, "evaluate_actions")
    gae_calls = spy(ppo, "compute_gae")
    loss_calls = spy(ppo, "ppo_loss")
    train()
    for learned, loss in zip(learning_calls, loss_calls, strict=True):
        assert (learned.obs == loss.mb.obs).all() and (learned.actions == loss.mb.actions).all()
    minibatches = iter(loss_calls)
    orders = []
    for rollout, gae in zip(rollouts(acting_calls), gae_calls, strict=True):
        columns = [rollout.actions, rollout.log_probs, rollout.values, *gae.result]
        samples = np.column_stack([rollout.obs.reshape(16, -1), *[column.ravel() for column in columns]])
        for _ in range(ARGS.update_epochs):
            order = []
            for _ in range(ARGS.num_minibatches):
                same = (np.column_stack(next(minibatches).mb)[:, None] == samples).all(-1)  # (M, B)
                assert (same.sum(-1) == 1).all() and len(same) == 16 // ARGS.num_minibatches
                order += same.argmax(-1).tolist()
            orders.append(order)
    orders = np.array(orders)
    assert (np.sort(orders) == np.arange(16)).all()
    assert len({tuple(order) for order in [*orders.tolist(), range(16)]}) == len(orders) + 1 == 3 * 4 + 1


# ---------------------------------------------------------------------------------------------- core-7 to core-10: loss


def loss_of(clip_coef=0.2, options=None, **columns):
    """ppo_loss of a minibatch whose other columns are 0; of the policy alone unless options say more."""
    columns = {name: torch.as_tensor(x, dtype=torch.float32) for name, x in columns.items()}
    zeros = torch.zeros(len(next(iter(columns.values()))))
    now = [columns.pop(name, zeros) for name in ("log_prob", "entropy", "value")]
    mb = ppo.Batch(**dict.fromkeys(ppo.Batch._fields, zeros) | columns)
    args = ppo.Args(**{"norm_adv": False, "ent_coef": 0.0, "vf_coef": 0.0} | (options or {}))
    return ppo.ppo_loss(*now, mb, clip_coef, args)


def normalized(advantages):
    """The advantages that weigh the log-probs in the loss: at ratio 1, the gradient is -A / M."""
    log_prob = torch.zeros(len(advantages), requires_grad=True)
    loss_of(log_prob=log_prob, advantages=advantages, options={"norm_adv": True})[0].backward()
    return -log_prob.grad.numpy() * len(advantages)


@pytest.mark.parametrize("scale, shift", [(1.0, 0.0), (100.0, 50.0)])
def test_advantages_are_normalized_in_each_minibatch(scale, shift):
    advantages = scale * np.random.default_rng(0).normal(size=8) + shift
    expected = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    np.testing.assert_allclose(normalized(advantages), expected, rtol=1e-4, atol=1e-5)


def test_equal_advantages_are_normalized_to_0():
    assert not normalized(np.full(4, 3.0)).any() and not normalized(np.array([3.0])).any()


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
    assert debug["losses/policy_loss"].item() == pytest.approx(losses.mean())
    np.testing.assert_allclose(log_prob.grad * len(ratio), gradient, atol=1e-6)


def test_ratio_is_to_the_old_log_prob():
    loss, _ = loss_of(log_prob=np.log([0.3]), log_probs=np.log([0.25]), advantages=[1.0], clip_coef=0.5)
    assert loss.item() == pytest.approx(-1.2)


def test_ratio_is_1_until_the_first_step_of_each_update(train, spy):
    loss_calls = spy(ppo, "ppo_loss")
    train(learning_rate=0.01)
    for update in np.split(np.array(loss_calls), 3):
        np.testing.assert_allclose(update[0].log_prob, update[0].mb.log_probs, atol=1e-5)
        assert all(np.abs(call.log_prob - call.mb.log_probs).max() > 1e-3 for call in update[1:])


VALUES = [  # value, old value, return, loss at ε = 0.2, its gradient by the value
    (1.0, 0.0, 1.5, 1.3**2, 0.0),  # the clipped value is further off
    (1.0, 0.0, 0.0, 1.0, 2.0),  # the value itself is further off
    (-1.0, 0.0, -1.5, 1.3**2, 0.0),
    (0.1, 0.0, 0.5, 0.4**2, -0.8),  # within the clip range
]


def test_value_loss_takes_the_larger_of_the_clipped_and_the_plain_error():
    values, old_values, returns, losses, gradient = np.array(VALUES).T
    value = torch.tensor(values, dtype=torch.float32, requires_grad=True)
    loss, debug = loss_of(value=value, values=old_values, returns=returns, options={"vf_coef": 1.0})
    loss.backward()
    assert loss.item() == pytest.approx(0.5 * losses.mean())
    assert debug["losses/value_loss"].item() == pytest.approx(0.5 * losses.mean())
    np.testing.assert_allclose(value.grad * len(values), 0.5 * gradient, atol=1e-6)


def test_value_loss_without_clipping_is_half_the_squared_error():
    values, old_values, returns, *_ = np.array(VALUES).T
    plain = {"vf_coef": 1.0, "clip_vloss": False}
    loss, _ = loss_of(value=values, values=old_values, returns=returns, options=plain)
    assert loss.item() == pytest.approx(0.5 * np.square(values - returns).mean())


def test_loss_is_policy_loss_minus_entropy_plus_value_loss():
    names = "log_prob entropy value log_probs values advantages returns".split()
    columns = dict(zip(names, np.random.default_rng(0).normal(size=(len(names), 8))))
    loss, debug = loss_of(**columns, options={"norm_adv": True, "ent_coef": 0.3, "vf_coef": 0.7})
    names = ("policy_loss", "entropy", "value_loss")
    policy_loss, entropy, value_loss = (debug[f"losses/{x}"].item() for x in names)
    assert entropy == pytest.approx(columns["entropy"].mean())
    assert loss.item() == pytest.approx(policy_loss - 0.3 * entropy + 0.7 * value_loss)


def test_training_passes_its_coefficients_to_the_loss(train, spy):
    loss_calls = spy(ppo, "ppo_loss")
    options = {"norm_adv": False, "clip_vloss": False, "ent_coef": 0.02, "vf_coef": 0.7}
    train(clip_coef=0.3, **options)
    for call in loss_calls:
        assert call.clip_coef == 0.3 and {name: getattr(call.args, name) for name in options} == options


@pytest.mark.parametrize("options", [{}, {"norm_adv": False, "clip_vloss": False}])
def test_every_script_has_the_same_loss_and_advantages(every_script, options):
    names = "log_prob entropy value log_probs values advantages returns".split()
    columns = dict(zip(names, np.random.default_rng(0).normal(size=(len(names), 64)).astype(np.float32)))
    columns["valid"] = np.ones(64, np.float32)  # of EnvPool's scripts, as if all steps were learned from
    rollout = random_rollout()
    results = []
    for script in (ppo, every_script):
        is_numpy = "numpy" in script.__name__  # it returns the loss's gradients, which test_numpy.py compares
        convert = np.asarray if is_numpy else torch.from_numpy
        given = {name: convert(column) for name, column in columns.items()}
        mb = script.Batch(**{name: given.get(name) for name in script.Batch._fields})
        args = script.Args(ent_coef=0.3, vf_coef=0.7, **options)
        *loss, metrics = script.ppo_loss(*[given[name] for name in names[:3]], mb, 0.2, args)
        found = {name: np.mean(np.asarray(x)) for name, x in metrics.items()}
        if not is_numpy:
            found["loss"] = loss[0].item()
        if script.__name__ == "ppo_continuous_action_gpu":
            given_rollout = [torch.from_numpy(x) for x in rollout]
        else:
            given_rollout = rollout
        found["advantages"], found["returns"] = script.compute_gae(*given_rollout, 0.9, 0.8)
        results.append(found)
    one, other = results
    assert one.keys() - other.keys() <= {"loss"}
    for name in other:
        np.testing.assert_allclose(other[name], one[name], rtol=1e-5, err_msg=name)


KLS = [  # of an update's minibatches, two in each of three epochs, at a target of 0.01; and how many are taken
    ([0.015, 0.0, 0.0202, 0.0, 0.0, 0.0], 4),  # an epoch's mean counts: no first or last one, and no earlier epoch
    ([0.0198, 0.0] * 3, 6),  # hardly below the target
] * 2


def test_rates_epochs_and_metrics_of_each_update(every_script, in_tmp_path, spy, monkeypatch, adam_steps):
    ppo_loss = every_script.ppo_loss
    advantages = spy(every_script, "compute_gae")
    taken = []  # minibatches of each update

    @wraps(ppo_loss)
    def with_kl(*arguments):
        *loss, metrics = ppo_loss(*arguments)
        if len(taken) < len(advantages):
            taken.append(0)
        kls, _ = KLS[len(taken) - 1]
        taken[-1] += 1
        return *loss, metrics | {"losses/approx_kl": kls[taken[-1] - 1]}

    monkeypatch.setattr(every_script, "ppo_loss", with_kl)
    losses = spy(every_script, "ppo_loss")
    sizes = {"total_timesteps": 64, "num_envs": 2, "num_steps": 8, "num_minibatches": 2, "update_epochs": 3}
    options = {"learning_rate": 0.004, "anneal_lr": True, "anneal_clip": True, "target_kl": 0.01}
    options |= {"gamma": 0.8, "gae_lambda": 0.7, "max_grad_norm": 1e-3, "checkpoints": 1}
    folder = train_on_noise(every_script, **sizes, **options)
    assert taken == [count for _, count in KLS]
    assert {(call.gamma, call.gae_lambda) for call in advantages} == {(0.8, 0.7)}
    table = rows(folder, "metrics.csv")
    rates = [float(row["charts/learning_rate"]) for row in table]
    np.testing.assert_allclose(rates, [0.004, 0.003, 0.002, 0.001], rtol=1e-5)
    clip_coefs = np.array([0.2, 0.15, 0.1, 0.05]) / 0.2 * every_script.Args.clip_coef
    np.testing.assert_allclose([call.clip_coef for call in losses], np.repeat(clip_coefs, taken))
    if "numpy" not in every_script.__name__:  # test_numpy.py has theirs
        np.testing.assert_allclose([step.lr for step in adam_steps], np.repeat(rates, taken), rtol=1e-5)
        assert {(step.eps, step.betas, step.weight_decay) for step in adam_steps} == {(1e-5, (0.9, 0.999), 0)}
        norms = [np.linalg.norm(step.gradient) for step in adam_steps]
        assert max(norms) == pytest.approx(1e-3, rel=1e-3)  # of all parameters together
    of_updates = np.split(np.array(losses), np.cumsum(taken)[:-1])
    for metric in ("losses/value_loss", "losses/entropy", "losses/old_approx_kl", "losses/approx_kl"):
        means = [np.mean([np.mean(call.result[-1][metric]) for call in update]) for update in of_updates]
        np.testing.assert_allclose([float(row[metric]) for row in table], means, rtol=1e-4, atol=1e-6)
    explained = []
    for call in advantages:
        learned = np.ones(call.values.shape, bool)
        if "envpool" in every_script.__name__:  # a step that only begins an episode isn't learned from
            learned = call.dones == 0
        values, returns = call.values[learned], call.result[1][learned]
        explained.append(1 - (returns - values).var() / returns.var())
    logged = [float(row["losses/explained_variance"]) for row in table]
    np.testing.assert_allclose(logged, explained, rtol=1e-4, atol=1e-5)
    assert_whole_run_folder(every_script, folder)


def assert_whole_run_folder(script, folder):
    """What other programs read of a run of 4 updates with one checkpoint, by any script."""
    name = Path(script.__file__).name
    config = json.loads((folder / "config.json").read_text("utf-8"))
    assert config["script"] == name.removesuffix(".py") and config["arguments"]["learning_rate"] == 0.004
    assert (folder / name).read_bytes() == Path(script.__file__).read_bytes()
    metrics = list(rows(folder, "metrics.csv")[0])
    assert [metric for metric in metrics if metric != "charts/time_limits"] == METRICS
    header = (folder / "episodes.csv").read_text("utf-8").splitlines()[0]
    assert header == "global_step,episodic_return,episodic_length,seconds"
    assert json.loads((folder / "end.json").read_text("utf-8")) == {"end": "whole", "update": 4, "global_step": 64}
    (checkpoint,) = (folder / "checkpoints").iterdir()
    loaded = script.load_checkpoint(checkpoint)
    assert checkpoint.stem == "4" and loaded["update"] == 4 and loaded["args"].env_id == config["arguments"]["env_id"]


# ------------------------------------------------------------------------------------------- core-11: gradient clipping


@pytest.fixture
def true_gradients(monkeypatch, spy):
    """Lets true_gradients(scale) scale the loss; returns the list of its gradients before they are clipped."""
    agent_calls = spy(ppo.Agent, "evaluate_actions")
    loss_of_minibatch = ppo.ppo_loss
    gradients = []

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
    ratio = np.array([0.5, 0.75, 0.81, 1.0, 1.19, 1.5])
    log_prob = torch.tensor(np.log(ratio), dtype=torch.float32, requires_grad=True)
    _, debug = loss_of(log_prob=log_prob, advantages=np.ones(6), entropy=np.arange(6.0))
    assert debug["losses/old_approx_kl"].item() == pytest.approx(-np.log(ratio).mean(), rel=1e-4)
    assert debug["losses/approx_kl"].item() == pytest.approx((ratio - 1 - np.log(ratio)).mean(), rel=1e-4)
    assert debug["losses/clipfrac"].item() == pytest.approx(3 / 6)
    assert debug["losses/entropy"].item() == 2.5


def test_logged_metrics_are_means_over_all_samples(train, spy):
    loss_calls = spy(ppo, "ppo_loss")
    metrics = train(learning_rate=0.01)
    for name in ("policy_loss", "value_loss", "entropy", "old_approx_kl", "approx_kl", "clipfrac"):
        samples = np.reshape([call.result[1][f"losses/{name}"] for call in loss_calls], (3, 16))
        assert np.ptp(samples, axis=1).all()  # no minibatch is like the others
        np.testing.assert_allclose(getattr(metrics, name), samples.mean(1), rtol=1e-4, atol=1e-6)


def test_explained_variance_is_nan_when_returns_do_not_vary(train):
    metrics = train(num_envs=1, num_steps=1, num_minibatches=1, total_timesteps=3, norm_adv=False)
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
    loss_of_minibatch = ppo.ppo_loss
    taken = []

    def with_given_kl(*columns):
        loss, debug = loss_of_minibatch(*columns)
        taken.append(kls[len(taken)])
        return loss, debug | {"losses/approx_kl": torch.tensor(taken[-1])}

    monkeypatch.setattr(ppo, "ppo_loss", with_given_kl)
    train(num_minibatches=2, update_epochs=3, total_timesteps=16, **arguments)
    return len(taken)


@pytest.mark.parametrize(
    "kls, taken",
    [
        ([0.03, 0.0] * 3, 2),  # the last minibatch alone is below
        ([0.0, 0.015] * 3, 6),  # the last minibatch alone is above
        ([0.0, 0.0, 0.03, 0.0, 0.0, 0.0], 4),  # the mean over both epochs is below
        ([0.0099] * 6, 6),  # hardly below the target
    ],
)
def test_update_ends_after_an_epoch_whose_mean_kl_is_above_the_target(train, monkeypatch, kls, taken):
    assert minibatches_taken(train, monkeypatch, kls, target_kl=0.01) == taken


@pytest.fixture
def reward_gains(in_tmp_path, spy, monkeypatch):
    """Runs reward_gains(env_id, …); returns what each reward gained on its way into compute_gae and V(8), by update."""

    def reward_gains(env_id, script=ppo, **arguments):
        env_calls = spy(script.VectorEnv, "step")
        noises = spy(script.Agent, "draw_noise")
        compute_gae = script.compute_gae
        updates = []

        def compare(rewards, *rest):
            from_env = np.array([call.result[1] for call in env_calls[-len(rewards) :]])
            agent = noises[-1].self
            last_obs = np.array([[8.0]], np.float32)
            last_value = agent.get_value(torch.from_numpy(last_obs) if script is ppo else last_obs).item()
            updates.append((rewards - from_env, last_value))
            return compute_gae(rewards, *rest)

        monkeypatch.setattr(script, "compute_gae", compare)
        options = {"num_steps": 20, "total_timesteps": 120, "learning_rate": 0.01}
        script.main(script.Args(**TINY | options | arguments | {"env_id": env_id}))
        return updates

    return reward_gains


@pytest.mark.parametrize("script", [ppo, ppo_numpy])
def test_bootstrap_truncated_adds_the_value_of_the_last_observation_at_a_time_limit(reward_gains, script):
    at_limit = np.arange(60).reshape(3, 20) % 8 == 7
    gains = reward_gains("LimitedCounter-v0", script, bootstrap_truncated=True, gamma=0.8)
    assert max(abs(last_value) for _, last_value in gains) > 0.05
    for (gain, last_value), limits in zip(gains, at_limit, strict=True):
        expected = np.where(limits, 0.8 * last_value, 0.0)
        np.testing.assert_allclose(gain, np.column_stack([expected, expected]), atol=1e-6)


@pytest.mark.parametrize("script", [ppo, ppo_numpy])
@pytest.mark.parametrize("env_id", ["Counter-v0", "EndAtLimit-v0"])
def test_bootstrap_truncated_adds_nothing_at_a_true_end(reward_gains, env_id, script):
    assert not any(gain.any() for gain, _ in reward_gains(env_id, script, bootstrap_truncated=True))


def test_a_time_limit_counts_as_a_true_end_by_default(reward_gains):
    assert not any(gain.any() for gain, _ in reward_gains("LimitedCounter-v0"))


# ------------------------------------------------------------------------------------------------------------- Sampling


def evaluated(env_id, agent, episodes, seed=1):
    """The episodes that an agent plays, the first one with this seed."""
    checkpoint = {"model": agent.state_dict(), "envs": {}, "path": "here"}
    player = ppo.Player(checkpoint, ppo.Args(env_id=env_id))
    return [ppo.play(player, seed + i) for i in range(episodes)]


def assert_frequencies(actions, probabilities):
    frequencies = np.bincount(actions, minlength=len(probabilities)) / len(actions)
    deviation = np.sqrt(probabilities * (1 - probabilities) / len(actions))
    assert (np.abs(frequencies - probabilities) < 4 * deviation).all(), frequencies


def test_rollout_draws_actions_from_the_softmax(train, spy, biased_agent):
    acting_calls = spy(ppo.Agent, "get_action_and_value")
    train(num_steps=2000, num_envs=2, total_timesteps=4000, update_epochs=1)
    (rollout,) = rollouts(acting_calls, 2000)
    assert_frequencies(rollout.actions.ravel(), biased_agent)
    first, second = rollout.actions.T
    assert_frequencies(3 * first + second, np.outer(biased_agent, biased_agent).ravel())  # environments are independent
    assert_frequencies(3 * first[:-1:2] + first[1::2], np.outer(biased_agent, biased_agent).ravel())  # and steps
    np.testing.assert_allclose(rollout.log_probs, np.log(biased_agent)[rollout.actions], atol=1e-6)


@pytest.mark.parametrize("env_id, env, start", [("Random-v0", "Random", 0), ("Offset-v0", "Counter", 2)])
def test_environments_get_the_actions_that_are_learned_from(train, spy, env_id, env, start):
    acting_calls = spy(ppo.Agent, "get_action_and_value")
    env_calls = spy(getattr(environments, env), "step")
    train(env_id=env_id)
    drawn = np.stack([rollout.actions for rollout in rollouts(acting_calls)])
    taken = [call.action for call in env_calls][2:]  # without the two steps that are looked at before training
    assert (drawn + start).ravel().tolist() == taken and len(set(taken)) > 1


def test_evaluation_draws_actions_from_the_softmax(spy, biased_agent):
    env_calls = spy(environments.Random, "step")
    evaluated("Random-v0", new_agent(3, 3), episodes=300)
    assert len(env_calls) > 800
    assert_frequencies([call.action for call in env_calls], biased_agent)


# ------------------------------------------------------------------------------------------------------------ VectorEnv


class Informed(environments.Counter):
    """Gives infos of seven kinds that no script reads and that Gymnasium's vectors can't merge."""

    def reset(self, seed=None, options=None):
        observation, _ = super().reset(seed, options)
        return observation, self.make_infos()

    def step(self, action):
        *result, _ = super().step(action)
        return *result, self.make_infos()

    def make_infos(self):
        once = bool(self.np_random.random() < 0.5)
        return {
            "arrays of many sizes": np.zeros(self.np_random.integers(1, 9)),
            "an array or a number": np.zeros(3) if once else 1.0,
            "a number or a string": 1 if once else "one",
            "a dict or a number": {"x": 1} if once else 1,
            "dicts in dicts": {"a": {"b": np.zeros(self.np_random.integers(1, 9))}},
            "final_info": "its own",
            "episode": {"number": 1} if once else 1,
        }


gym.register("Informed-v0", Informed, kwargs={"length": 8})


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_infos_that_no_script_reads_are_no_trouble(train, vectorization):
    folder = train(env_id="Informed-v0", vectorization=vectorization).folder
    assert [row["episodic_length"] for row in rows(folder, "episodes.csv")] == ["8"] * 2 * 3


def step_through(env_id, actions, vectorization="sync", script=ppo):
    """Results of VectorEnv.step, (T, N) actions after a reset."""
    num_envs = actions.shape[1]
    envs = script.VectorEnv(script.Args(env_id=env_id, vectorization=vectorization), num_envs)
    first = envs.reset(list(range(num_envs)))
    steps = [envs.step(row) for row in actions]
    envs.close()
    return first, steps


@pytest.mark.parametrize("script", [ppo, ppo_numpy])
@pytest.mark.parametrize("env_id", ["CartPole-v1", "environments:Random-v0"])  # from 3.14 on, processes are not forks
def test_processes_give_what_the_loop_gives(env_id, script):
    actions = np.random.default_rng(0).integers(2, size=(200, 3))
    first, steps = step_through(env_id, actions, script=script)
    other_first, other_steps = step_through(env_id, actions, "async", script)
    assert (first == other_first).all()
    for one, other in zip(steps, other_steps, strict=True):
        for x, y in zip(one[:3], other[:3]):
            assert x.dtype == y.dtype and (x == y).all()
        assert one[3].keys() == other[3].keys() and all((one[3][i] == other[3][i]).all() for i in one[3])
        assert one[4] == other[4]
    assert sum(len(step[4]) for step in steps) > 5


def test_processes_that_hang_do_not_hang_the_end():
    envs = ppo.VectorEnv(ppo.Args(env_id="Counter-v0", vectorization="async"), 2)
    envs.reset([1, 2])
    hanging = envs.vector.processes[1]
    os.kill(hanging.pid, signal.SIGSTOP)
    rescue = threading.Timer(20, hanging.kill)
    rescue.start()
    start = time.monotonic()
    envs.close()
    hanging.join()
    rescue.cancel()
    assert time.monotonic() - start < 20


def test_observations_of_any_shape_are_flattened(train):
    first, steps = step_through("Grid-v0", np.zeros((1, 2), int))
    assert first.tolist() == [[0] * 6] * 2 and steps[0][0].tolist() == [[1] * 6] * 2
    assert train(env_id="Grid-v0", bootstrap_truncated=True).policy_loss.size == 3


# ---------------------------------------------------------------------------------------------------- seeds, evaluation


def test_no_episode_seed_comes_twice(train, spy):
    resets = spy(environments.Counter, "reset")
    for seed in (1, 2):
        folder = train(env_id="Counter-v0", seed=seed, total_timesteps=6 * 16, checkpoints=6, exact_resume=True).folder
        ppo.main(*ppo.read_arguments(["--evaluate", str(folder), "--seed", str(seed), "--episodes", "6"]))
    seeds = [call.seed for call in resets if getattr(call, "seed", None)]  # 0 is that of the look before a run
    assert len(seeds) == len(set(seeds)) == 2 * (6 * 2 + 6)


def test_each_seed_update_and_step_draws_numbers_of_its_own(every_script, in_tmp_path, spy):
    acts = spy(every_script.Agent, "get_action" if "numpy" in every_script.__name__ else "get_action_and_value")
    resets = spy(every_script.VectorEnv, "reset")
    sizes = TINY | {"num_minibatches": 2, "update_epochs": 1}
    for seed in (1, 2):
        train_on_noise(every_script, **sizes, seed=seed)
    noises = {call.noise.tobytes() for call in acts}
    assert len(noises) == len(acts) == 2 * 3 * TINY["num_steps"]
    if every_script.__name__ == "ppo_continuous_action_gpu":  # one seed for all environments
        assert len({call.seed for call in resets}) == 2
        return
    first, second = [call.seeds for call in resets if len(call.seeds) == 2]
    assert len({*first, *second}) == 2 * 2


def test_evaluation_repeats():
    agent = new_agent(4, 2)
    one, again, other = (evaluated("CartPole-v1", agent, episodes=3, seed=seed) for seed in (1, 1, 2))
    assert one == again != other


def test_a_player_has_left_training_mode(train, monkeypatch):
    class Forgetful(ppo.Agent):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            self.actor.append(torch.nn.Dropout(0.5))

    monkeypatch.setattr(ppo, "Agent", Forgetful)
    player = ppo.load(train().folder)
    obs = torch.from_numpy(player.reset([1])).expand(100, -1)
    log_probs = player.agent.get_log_probs(obs)
    assert (log_probs == log_probs[0]).all()


def test_each_environment_gets_its_own_statistics_back(monkeypatch):
    make_env = ppo.make_env
    monkeypatch.setattr(ppo, "make_env", lambda *given: gym.wrappers.NormalizeObservation(make_env(*given)))
    envs = ppo.VectorEnv(ARGS, 2)
    envs.reset([1, 2])
    envs.step(np.zeros(2, int))
    others = ppo.VectorEnv(ARGS, 2)
    others.load_state_dict(envs.state_dict())
    one, other = others.state_dict()["obs_rms"]
    assert [one, other] == envs.state_dict()["obs_rms"] and one != other
