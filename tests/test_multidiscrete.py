"""What ppo_multidiscrete.py adds to ppo.py: independent components, and masks of invalid actions. What it does not add
is ppo.py's to the bit, so the tests of ppo.py hold for it too."""

import itertools
from types import SimpleNamespace

import doors
import environments
import gymnasium as gym
import numpy as np
import ppo
import ppo_multidiscrete as multi
import pytest
import torch
from helpers import assert_resumes, assert_same_logs, assert_same_state, learn, state
from test_details import assert_frequencies

NVEC = [2, 4, 3]
MASK = [1, 1, 0, 1, 0, 1, 0, 0, 1]  # the last component has no choice
DOORS = ["Doors-info-v0", "Doors-method-v0", "Doors-rows-v0"]
TINY = {"total_timesteps": 192, "num_envs": 3, "num_steps": 32, "checkpoints": 1}


def tiny(env_id, **arguments):
    """A run of two updates; returns its folder."""
    return multi.main(multi.Args(env_id=env_id, **TINY | arguments))


def random_agent(obs_dim=3, nvec=NVEC):
    """An agent with logits far from 0."""
    torch.manual_seed(1)
    observation_space = gym.spaces.Box(-1, 1, (obs_dim,))
    envs = SimpleNamespace(observation_space=observation_space, action_space=gym.spaces.MultiDiscrete(nvec))
    agent = multi.Agent(envs, multi.Args())
    agent.actor[-1].bias.data = torch.randn(sum(nvec))
    return agent


def masks_of(mask, count):
    return torch.tensor(mask).bool().expand(count, -1)


def component_probabilities(logits, mask, nvec=NVEC):
    """The softmax of each component over what its mask allows, in float64."""
    weights = np.exp(np.asarray(logits, np.float64)) * mask
    return [part / part.sum() for part in np.split(weights, np.cumsum(nvec)[:-1])]


def joint_probabilities(logits, mask):
    """Of every joint action of NVEC, flat."""
    return np.einsum("a,b,c->abc", *component_probabilities(logits, mask)).ravel()


def joint_actions(rows_of_components):
    """The indices of actions (…, 3) in joint_probabilities."""
    return np.ravel_multi_index(np.moveaxis(np.asarray(rows_of_components), -1, 0), NVEC)


def assert_drawn(actions, probabilities):
    """As often as they should be, and what has no probability never."""
    assert (probabilities[actions] > 0).all()
    possible = np.flatnonzero(probabilities)
    assert_frequencies(np.searchsorted(possible, actions), probabilities[possible])


# -------------------------------------------------------------------------------------------- multi-1: the distribution
@pytest.mark.parametrize("nvec", [NVEC, [1, 5]])
@pytest.mark.parametrize("masked", [False, True])
def test_the_joint_distribution_is_the_product_of_the_components(nvec, masked):
    agent = random_agent(nvec=nvec)
    chance = np.random.default_rng(2)
    allowed = np.ones(sum(nvec))
    if masked:  # one value of each component, but for those that have only one
        allowed = np.concatenate([np.arange(n) != chance.integers(n) if n > 1 else [True] for n in nvec])
    joint = list(itertools.product(*map(range, nvec)))
    obs = torch.randn(1, 3).expand(len(joint), 3)
    log_prob, entropy, value = agent.evaluate_actions(obs, torch.tensor(joint), masks_of(allowed, len(joint)))
    parts = component_probabilities(agent.actor(obs)[0].detach(), allowed, nvec)
    expected = np.array([np.prod([part[x] for part, x in zip(parts, action)]) for action in joint])
    np.testing.assert_allclose(log_prob.exp().detach(), expected, rtol=1e-5, atol=1e-9)
    possible = expected[expected > 0]
    assert (len(possible) < len(joint)) == masked
    np.testing.assert_allclose(entropy.detach(), -(possible * np.log(possible)).sum(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(value, agent.get_value(obs))


def test_agent_draws_from_the_joint_distribution_and_without_noise_takes_the_most_probable():
    agent, draws = random_agent(), 20_000
    obs, masks = torch.zeros(draws, 3), masks_of(MASK, draws)
    actions, _, _ = agent.get_action_and_value(obs, agent.draw_noise(draws), masks)
    assert actions.shape == (draws, 3)
    joint = joint_probabilities(agent.actor(obs)[0].detach(), MASK)
    assert_drawn(joint_actions(actions), joint)
    best, _, _ = agent.get_action_and_value(obs[:1], torch.zeros(1, 9), masks[:1])
    assert joint_actions(best)[0] == joint.argmax()


# ------------------------------------------------------------------------------------------------ aux-4: masked actions
def test_masked_logits_have_no_gradient_and_the_others_do():
    agent, mask = random_agent(), torch.tensor(MASK).bool()
    actions, masks = torch.tensor([[0, 1, 2], [1, 3, 2]] * 4), mask.expand(8, -1)
    log_prob, entropy, value = agent.evaluate_actions(torch.randn(8, 3), actions, masks)
    mb = multi.Batch(None, actions, masks, *(torch.randn(8) for _ in range(4)))
    loss, _ = multi.ppo_loss(log_prob, entropy, value, mb, 1e9, multi.Args(ent_coef=0.5))
    loss.backward()
    gradient = agent.actor[-1].bias.grad
    free = mask & torch.tensor([True] * 6 + [False] * 3)  # a component without a choice has nothing to learn
    assert (gradient[~mask] == 0).all() and (gradient[free] != 0).all()
    assert (agent.actor[-1].weight.grad[~mask] == 0).all()


def test_masked_terms_leave_the_entropy():
    agent, mask = random_agent(), masks_of(MASK, 1)
    obs, action = torch.zeros(1, 3), torch.tensor([[0, 1, 2]])
    _, entropy, _ = agent.evaluate_actions(obs, action, mask)
    agent.actor[-1].bias.data[~mask[0]] = 1e4  # whatever they are
    log_prob, same_entropy, _ = agent.evaluate_actions(obs, action, mask)
    assert entropy.item() == same_entropy.item() > 0 and log_prob.isfinite().all()
    log_prob, entropy, _ = agent.evaluate_actions(obs, action, masks_of([1, 0, 0, 1, 0, 0, 0, 0, 1], 1))
    assert log_prob.item() == entropy.item() == 0.0


@pytest.mark.parametrize(
    "env_id, vectorization",
    [(DOORS[0], "sync"), (DOORS[1], "sync"), (DOORS[1], "async"), (DOORS[2], "async"), ("Doors-None-v0", "sync")],
)
def test_the_update_uses_the_masks_of_the_rollout(in_tmp_path, spy, env_id, vectorization):
    policy_calls, losses = spy(multi.Agent, "evaluate_actions"), spy(multi, "ppo_loss")
    tiny(env_id, learning_rate=0.01, vectorization=vectorization)
    assert len(policy_calls) == 2 * 16
    for call in policy_calls:
        expected = doors.Doors.masks(call.obs) if env_id in DOORS else np.ones((len(call.obs), 16))
        assert (call.masks == expected).all()
    for first in (losses[0], losses[16]):  # the first minibatch of each update: the ratio is 1
        np.testing.assert_allclose(first.log_prob, first.mb[3], atol=1e-5)
    assert min(call.log_prob.min() for call in losses) > -20


def test_a_trained_agent_takes_allowed_actions_too(in_tmp_path):
    """The environment asserts that they are allowed."""
    folder = tiny("Doors-method-v0")
    player = multi.load(folder)
    assert [multi.play(player, seed)["l"] for seed in range(20)] == [16] * 20
    player = multi.load(folder, deterministic=True)
    assert multi.play(player, 1) == multi.play(player, 1)


# --------------------------------------------------------------------------------------------------------- Environments
@pytest.mark.parametrize(
    "name, nvec",
    [("Discrete", [3]), ("MultiBinaryTable", [2] * 6), ("MultiDiscreteTable", [2, 3, 2, 4, 1, 2])],
)
def test_every_action_of_every_space_is_a_row_of_components(name, nvec):
    env = multi.make_env(multi.Args(env_id=f"Copy{name}-v0"))
    assert env.action_space == gym.spaces.MultiDiscrete(nvec)
    env.reset(seed=1)
    joint = list(itertools.product(*map(range, nvec)))
    environments.Copy.taken.clear()
    for row in joint:
        env.step(np.array(row))  # it asserts that it gets what it takes
    start = np.ravel(getattr(env.space, "start", 0))
    assert [tuple(np.ravel(action) - start) for action in environments.Copy.taken] == joint


@pytest.mark.parametrize(
    "offered",
    [
        np.array([True, False, False, True, True]),
        [1.0, 0.0, 0.0, 1.0, 1.0],
        (np.array([1, 0], np.int8), np.array([0, 1, 1], np.int8)),
    ],
)
def test_masks_are_read_in_every_form(offered):
    mask = multi.flatten_mask(offered, np.array([2, 3]))
    assert mask.dtype == bool and mask.tolist() == [True, False, False, True, True]
    mask = multi.flatten_mask(np.array([[1, 0], [0, 1], [1, 1]]), np.array([2, 2, 2]))  # a row a component
    assert mask.tolist() == [1, 0, 0, 1, 1, 1]


@pytest.mark.parametrize("mask", [np.ones(6), (np.ones(3), np.ones(2)), 1, [0.0, -np.inf, 0.0, 0.0, 0.0]], ids=str)
def test_a_mask_that_cannot_be_one_says_what_is_wanted(mask):
    with pytest.raises(ValueError, match="is not 5 values of 0 or 1, or a row of them for each component"):
        multi.flatten_mask(mask, np.array([2, 3]))


@pytest.mark.parametrize(
    "env_id, said", [("WrongMask-v0", "no value of component 0"), ("Pendulum-v1", "ppo_continuous_action.py for Box")]
)
def test_an_environment_that_does_not_fit_costs_one_line(refusal, env_id, said):
    line = refusal(multi, env_id=env_id, **TINY)
    assert f"--env-id {env_id}" in line and said in line


class OffersMethod(gym.Wrapper):
    """Allows the first value of each component only."""

    def action_masks(self):
        return np.array([True, False, True, False, False])


def test_a_wrapper_may_offer_the_mask():
    env = gym.make("Counter-v0", disable_env_checker=True)
    env.unwrapped.action_space = gym.spaces.MultiDiscrete([2, 3])
    env = multi.ComponentActions(gym.wrappers.TimeLimit(OffersMethod(env), 5))
    _, info = env.reset(seed=1)
    assert info["action_mask"].tolist() == [True, False, True, False, False]


# -------------------------------------------------------------------------------------------- The same as ppo.py's runs
@pytest.mark.parametrize(
    "arguments",
    [
        {"env_id": "Random-v0", "learning_rate": 0.01, "target_kl": 0.001, "anneal_clip": True, "norm_adv": False},
        {"env_id": "LimitedCounter-v0", "bootstrap_truncated": True, "ent_coef": 0.2, "clip_vloss": False},
    ],
    ids=lambda arguments: arguments["env_id"],
)
def test_a_discrete_space_without_a_mask_is_learned_as_by_ppo_bit_for_bit(in_tmp_path, arguments):
    sizes = {"total_timesteps": 8 * 64, "num_envs": 4, "num_steps": 16, "checkpoints": 2}
    one, other = (script.main(script.Args(**sizes | arguments)) for script in (ppo, multi))
    for update in (4, 8):
        assert_same_state(state(one, update), state(other, update))
    assert_same_logs(one, other)


def test_a_resumed_run_ends_as_the_undisturbed_one(in_tmp_path):
    assert_resumes(multi, tiny("Doors-info-v0", total_timesteps=384, checkpoints=2, exact_resume=True), after=2)


# ------------------------------------------------------------------------------------------------------------- Learning
def test_it_learns_which_tool_is_right(in_tmp_path):
    """Chance takes the right one of three that are not broken; with the mask, doors need no learning."""
    sizes = {"num_envs": 4, "num_steps": 64, "total_timesteps": 4096, "checkpoints": 1}
    args = multi.Args(env_id="Doors-info-v0", learning_rate=2.5e-3, **sizes)
    returns = learn(multi, args, enough=11, episodes=50)
    assert np.mean(returns[:20]) < 7
