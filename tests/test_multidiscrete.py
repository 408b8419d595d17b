"""What ppo_multidiscrete.py adds to ppo.py: independent components, and masks of invalid actions. What it does not add
is ppo.py's to the bit, so the tests of ppo.py hold for it too."""

import itertools
from pathlib import Path
from types import SimpleNamespace

import environments
import gymnasium as gym
import numpy as np
import ppo
import ppo_multidiscrete as multi
import pytest
import torch
from helpers import error_line, rows, state
from test_details import assert_frequencies, spy  # noqa: F401 (a fixture)

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


@pytest.fixture
def stubborn_agent(monkeypatch):
    """Makes every new agent prefer each value the more, the later it comes in its component, whatever it observes."""
    init = multi.Agent.__init__

    def biased_init(agent, envs, args):
        init(agent, envs, args)
        agent.actor[-1].weight.data.zero_()
        agent.actor[-1].bias.data = torch.cat([0.5 * torch.arange(float(n)) for n in agent.nvec])

    monkeypatch.setattr(multi.Agent, "__init__", biased_init)


# -------------------------------------------------------------------------------------------- multi-1: the distribution
@pytest.mark.parametrize("nvec", [NVEC, [3], [2, 2, 2], [1, 5]])
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


@pytest.mark.parametrize("mask", [MASK, [1] * 9])
def test_agent_draws_from_the_joint_distribution_and_without_noise_takes_the_most_probable(mask):
    agent, draws = random_agent(), 20_000
    obs, masks = torch.zeros(draws, 3), masks_of(mask, draws)
    actions = agent.get_action(obs, agent.draw_noise(draws), masks)
    assert actions.shape == (draws, 3)
    joint = joint_probabilities(agent.actor(obs)[0].detach(), mask)
    assert_drawn(joint_actions(actions), joint)
    best = agent.get_action(obs[:1], torch.zeros(1, 9), masks[:1])
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


@pytest.mark.parametrize("env_id", DOORS)
def test_the_rollout_takes_allowed_actions_as_often_as_the_policy_says(in_tmp_path, spy, stubborn_agent, env_id):  # noqa: F811
    """The environment asserts that they are allowed."""
    policy_calls = spy(multi.Agent, "evaluate_actions")
    tiny(env_id, num_steps=4000, total_timesteps=12_000, update_epochs=1)
    rollout = policy_calls[0]
    masks = environments.Doors.masks(rollout.obs)
    assert (rollout.masks == masks).all()
    logits = np.concatenate([0.5 * np.arange(12), 0.5 * np.arange(4)])
    parts = [component_probabilities(logits, mask, [12, 4]) for mask in masks]
    for component, drawn in enumerate(rollout.actions.T):
        # of the three doors or tools that are allowed, which one: counted from the least likely
        chances = np.array([part[component][part[component] > 0] for part in parts])  # (B, 3), in ascending order
        positions = [(part[component][:value] > 0).sum() for part, value in zip(parts, drawn)]
        deviation = np.sqrt((chances * (1 - chances)).sum(0))
        assert (np.abs(np.bincount(positions, minlength=3) - chances.sum(0)) < 4 * deviation).all()


@pytest.mark.parametrize("env_id", [*DOORS, "Doors-None-v0"])
@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_the_update_uses_the_masks_of_the_rollout(in_tmp_path, spy, env_id, vectorization):  # noqa: F811
    policy_calls, losses = spy(multi.Agent, "evaluate_actions"), spy(multi, "ppo_loss")
    tiny(env_id, learning_rate=0.01, vectorization=vectorization)
    assert len(policy_calls) == 2 * (1 + 16)
    for call in policy_calls:
        expected = environments.Doors.masks(call.obs) if env_id in DOORS else np.ones((len(call.obs), 16))
        assert (call.masks == expected).all()
    for first in (losses[0], losses[16]):  # the first minibatch of each update: the ratio is 1
        np.testing.assert_allclose(first.log_prob, first.mb[3], atol=1e-5)
    assert min(call.log_prob.min() for call in losses) > -20


@pytest.mark.parametrize("env_id", DOORS)
def test_a_trained_agent_takes_allowed_actions_too(env_id, in_tmp_path):
    """The environment asserts that they are allowed."""
    folder = tiny(env_id)
    player = multi.load(folder)
    assert [player.play(seed)["l"] for seed in range(20)] == [16] * 20
    player = multi.load(folder, deterministic=True)
    assert player.play(1) == player.play(1)


def test_the_rollout_draws_components_environments_and_steps_independently(in_tmp_path, spy, stubborn_agent):  # noqa: F811
    policy_calls = spy(multi.Agent, "evaluate_actions")
    tiny("CopyMultiDiscrete-v0", num_envs=2, num_steps=8000, total_timesteps=16_000, update_epochs=1)
    actions = policy_calls[0].actions
    joint = joint_probabilities(0.5 * np.array([0, 1, 0, 1, 2, 3, 0, 1, 2]), [1] * 9)
    assert_drawn(joint_actions(actions), joint)
    first, second = actions[:, 1].reshape(8000, 2).T
    middle = joint.reshape(NVEC).sum((0, 2))
    assert_drawn(4 * first + second, np.outer(middle, middle).ravel())
    assert_drawn(4 * first[:-1:2] + first[1::2], np.outer(middle, middle).ravel())


# --------------------------------------------------------------------------------------------------------- Environments
@pytest.mark.parametrize(
    "name, nvec",
    [
        ("Discrete", [3]),
        ("MultiBinary", [2] * 4),
        ("MultiBinaryTable", [2] * 6),
        ("MultiDiscrete", [2, 4, 3]),
        ("MultiDiscreteTable", [2, 3, 2, 4, 1, 2]),
    ],
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


def test_environments_get_the_actions_that_are_learned_from(in_tmp_path, spy):  # noqa: F811
    policy_calls = spy(multi.Agent, "evaluate_actions")
    environments.Copy.taken.clear()
    tiny("CopyMultiDiscreteTable-v0")
    stored = np.concatenate([call.actions for call in policy_calls if not call.in_training])
    start = gym.make("CopyMultiDiscreteTable-v0").action_space.start
    taken = np.array(environments.Copy.taken[-192:])
    assert (taken.reshape(192, 6) == stored + start.ravel()).all()


@pytest.mark.parametrize(
    "offered",
    [
        np.array([True, False, False, True, True]),
        np.array([1, 0, 0, 1, 1], np.int8),
        [1.0, 0.0, 0.0, 1.0, 1.0],
        (np.array([1, 0], np.int8), np.array([0, 1, 1], np.int8)),
        [[True, False], [False, True, True]],
    ],
)
def test_masks_are_read_in_every_form(offered):
    mask = multi.flatten_mask(offered, np.array([2, 3]))
    assert mask.dtype == bool and mask.tolist() == [True, False, False, True, True]


def test_a_mask_is_a_row_a_component_where_all_are_equal():
    mask = multi.flatten_mask(np.array([[1, 0], [0, 1], [1, 1]]), np.array([2, 2, 2]))
    assert mask.tolist() == [1, 0, 0, 1, 1, 1]


@pytest.mark.parametrize(
    "mask",
    [
        np.ones(4), np.ones(6), np.ones(2), (np.ones(3), np.ones(2)), np.ones((5, 5)), 1, "11111", [],
        np.array([0.0, -np.inf, 0.0, 0.0, 0.0]), np.array([1.0, 1.0, 1.0, 1.0, np.nan]), [[[1], [1, 0]], [1, 1, 1]],
    ],
    ids=str,
)  # fmt: skip
def test_a_mask_that_cannot_be_one_says_what_is_wanted(mask):
    with pytest.raises(ValueError, match="is not 5 values of 0 or 1, or a row of them for each component"):
        multi.flatten_mask(mask, np.array([2, 3]))


@pytest.mark.parametrize("mask, component", [([0, 0, 1, 0, 1], 0), ([1, 1, 0, 0, 0], 1)])
def test_a_mask_must_allow_a_value_of_each_component(mask, component, in_tmp_path, monkeypatch, capsys):
    spec = gym.envs.registration.EnvSpec("Wrong-v0", environments.WrongMask, kwargs={"mask": mask, "after": 0})
    monkeypatch.setitem(gym.registry, "Wrong-v0", spec)
    with pytest.raises(SystemExit) as stop:
        tiny("Wrong-v0")
    line = error_line(capsys.readouterr().err, multi)
    assert stop.value.code == 2 and "--env-id Wrong-v0" in line and f"no value of component {component}" in line
    assert not list(Path().iterdir())


class OffersMethod(gym.Wrapper):
    """Allows the first value of each component only."""

    def action_masks(self):
        return np.array([True, False, True, False, False])


def test_a_wrapper_may_offer_the_mask():
    env = gym.make("Counter-v0", disable_env_checker=True)
    env.unwrapped.action_space = gym.spaces.MultiDiscrete([2, 3])
    env = multi.ComponentActions(gym.wrappers.TimeLimit(OffersMethod(env), 5))
    assert env.reset(seed=1)[1]["action_mask"].tolist() == [True, False, True, False, False]


def test_with_its_mask_no_move_of_gymnasiums_taxi_runs_into_a_wall(in_tmp_path, spy):  # noqa: F811
    policy_calls = spy(multi.Agent, "evaluate_actions")
    tiny("Taxi-v4", num_envs=1, num_steps=64, num_minibatches=1, total_timesteps=64)
    positions = policy_calls[0].obs.argmax(-1)
    assert all(one != next_one for one, next_one in itertools.pairwise(positions))


class TupleActions(environments.Counter):
    def __init__(self, render_mode=None):
        super().__init__()
        self.action_space = gym.spaces.Tuple([gym.spaces.Discrete(2)] * 2)


gym.register("Tuple-v0", TupleActions)


@pytest.mark.parametrize(
    "env_id, part",
    [("Pendulum-v1", "use ppo_continuous_action.py"), ("CartPole-v9", "`v1`"), ("Tuple-v0", "a wrapper in make_env")],
)
def test_an_environment_that_does_not_fit(in_tmp_path, capsys, env_id, part):
    with pytest.raises(SystemExit) as stop:
        tiny(env_id)
    line = error_line(capsys.readouterr().err, multi)
    assert stop.value.code == 2 and f"--env-id {env_id}" in line and part in line, line
    assert not list(Path().iterdir())


# -------------------------------------------------------------------------------------------- The same as ppo.py's runs
@pytest.mark.parametrize(
    "arguments",
    [
        {"env_id": "CartPole-v1", "seed": 7, "anneal_clip": True, "norm_adv": False, "clip_vloss": False},
        {"env_id": "Random-v0", "learning_rate": 0.01, "target_kl": 0.001, "gamma": 0.9, "gae_lambda": 0.5},
        {"env_id": "LimitedCounter-v0", "bootstrap_truncated": True, "ent_coef": 0.2, "vf_coef": 1.0},
        {"env_id": "Offset-v0", "anneal_lr": False, "max_grad_norm": 0.01, "clip_coef": 0.05},
    ],
    ids=lambda arguments: arguments["env_id"],
)
def test_a_discrete_space_without_a_mask_is_learned_as_by_ppo_bit_for_bit(in_tmp_path, arguments):
    sizes = {"total_timesteps": 8 * 256, "num_envs": 4, "num_steps": 64, "checkpoints": 2}
    one, other = (script.main(script.Args(**sizes | arguments)) for script in (ppo, multi))
    for update in (4, 8):
        first, second = state(one, update), state(other, update)
        assert all(torch.equal(weights, second["model"][name]) for name, weights in first["model"].items())
    for name, clock in (("metrics.csv", "charts/SPS"), ("episodes.csv", "seconds")):
        assert rows(one, name, [clock]) == rows(other, name, [clock]) != []


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_a_resumed_run_ends_as_the_undisturbed_one(in_tmp_path, vectorization):
    folder = tiny("Doors-info-v0", total_timesteps=384, checkpoints=2, exact_resume=True, vectorization=vectorization)
    undisturbed = state(folder, 4)
    (folder / "checkpoints/4.pt").unlink()
    multi.main(multi.Args(resume=str(folder)))
    resumed = state(folder, 4)
    assert all(torch.equal(weights, resumed["model"][name]) for name, weights in undisturbed["model"].items())
    assert undisturbed["recent_returns"] == resumed["recent_returns"]


# ------------------------------------------------------------------------------------------------------------- Learning
LEARNS = {"num_envs": 4, "num_steps": 64, "learning_rate": 2.5e-3, "total_timesteps": 12_288, "checkpoints": 1}


def episodes_of(env_id, **arguments):
    """Steps and returns of a run's episodes."""
    folder = multi.main(multi.Args(env_id=env_id, **LEARNS | arguments))
    episodes = rows(folder, "episodes.csv")
    return [np.array([float(row[name]) for row in episodes]) for name in ("global_step", "episodic_return")]


@pytest.mark.parametrize("name", ["Discrete", "MultiBinary", "MultiDiscrete"])
def test_it_learns_to_copy(in_tmp_path, name):
    env = gym.make(f"Copy{name}-v0", disable_env_checker=True).unwrapped
    chance, perfect = 16 * (1 / env.nvec).sum(), 16 * len(env.nvec)
    _, returns = episodes_of(f"Copy{name}-v0", gamma=0.0)
    assert np.mean(returns[:20]) < chance + 0.15 * (perfect - chance)
    assert np.mean(returns[-50:]) > chance + 0.8 * (perfect - chance)


def test_masks_make_learning_at_least_twice_as_fast(in_tmp_path):
    """Steps until the last 50 episodes have a mean return of 12, three quarters of perfection."""
    reached = []
    for env_id in ("Doors-info-v0", "Doors-None-v0"):
        steps, returns = episodes_of(env_id)
        means = np.convolve(returns, np.ones(50) / 50, "valid")  # of episodes i to i + 49
        enough = np.flatnonzero(means >= 12)
        reached.append(steps[enough[0] + 49] if len(enough) else np.inf)
    masked, unmasked = reached
    assert masked <= LEARNS["total_timesteps"] / 3
    assert unmasked >= 2 * masked
