"""What ppo_multidiscrete.py adds to ppo.py: independent components, and masks of invalid actions. What it does not add
is ppo.py's to the bit, so the tests of ppo.py hold for it too."""

import contextlib
import csv
import inspect
import itertools
import os
import shutil
import signal
import time
from dataclasses import asdict, fields
from pathlib import Path

import environments
import gymnasium as gym
import numpy as np
import ppo
import ppo_multidiscrete
import pytest
import torch
from helpers import (
    assert_same_run,
    assert_same_state,
    checkpoints,
    error_line,
    fork,
    rows,
    run,
    state,
    train,
    tree,
    type_here,
    wait,
    wait_for_updates,
)
from test_details import assert_frequencies, rollouts, spy  # noqa: F401 (a fixture)

NVEC = [2, 4, 3]
MASK = [1, 1, 0, 1, 0, 1, 0, 0, 1]  # the last component has no choice
DOORS = ["Doors-info-v0", "Doors-method-v0", "Doors-rows-v0"]
TINY = {"total_timesteps": 192, "num_envs": 3, "num_steps": 32, "checkpoints": 1}


def tiny(env_id, **arguments):
    """A run of two updates; returns its folder."""
    return ppo_multidiscrete.main(ppo_multidiscrete.Args(env_id=env_id, **TINY | arguments))


def evaluate(agent, env_id, episodes, seed):
    return list(ppo_multidiscrete.evaluate(agent, ppo_multidiscrete.Args(env_id=env_id), episodes, seed))


def random_agent(obs_dim=3, nvec=NVEC, scale=1.0):
    """An agent with logits far from 0."""
    torch.manual_seed(1)
    agent = ppo_multidiscrete.Agent(obs_dim, nvec)
    agent.actor[-1].bias.data = scale * torch.randn(sum(nvec))
    return agent


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


@pytest.mark.parametrize("nvec", [NVEC, [3], [2, 2, 2], [1, 5]])
@pytest.mark.parametrize("masked", [False, True])
def test_the_joint_distribution_is_the_product_of_the_components(nvec, masked):
    agent = random_agent(nvec=nvec)
    chance = np.random.default_rng(2)
    allowed = np.ones(sum(nvec))
    if masked:  # one value of each component, but for those that have only one
        allowed = np.concatenate([np.arange(n) != chance.integers(n) if n > 1 else [True] for n in nvec])
    joint = list(itertools.product(*map(range, nvec)))
    obs, mask = torch.randn(1, 3).expand(len(joint), 3), torch.tensor(allowed).bool().expand(len(joint), -1)
    _, log_prob, entropy, value = agent.get_action_and_value(obs, torch.tensor(joint), mask if masked else None)
    parts = component_probabilities(agent.actor(obs)[0].detach(), allowed, nvec)
    expected = np.array([np.prod([part[x] for part, x in zip(parts, action)]) for action in joint])
    np.testing.assert_allclose(log_prob.exp().detach(), expected, rtol=1e-5, atol=1e-9)
    assert log_prob.exp().sum().item() == pytest.approx(1.0, abs=1e-6)
    possible = expected[expected > 0]
    assert (len(possible) < len(joint)) == masked
    np.testing.assert_allclose(entropy.detach(), -(possible * np.log(possible)).sum(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(value, agent.get_value(obs))


def test_one_head_holds_the_logits_of_all_components():
    agent = ppo_multidiscrete.Agent(4, NVEC)
    assert agent.actor[-1].out_features == sum(NVEC)
    assert [name for name, _ in agent.named_parameters()] == [name for name, _ in ppo.Agent(4, 9).named_parameters()]
    assert agent.state_dict().keys() == ppo.Agent(4, 9).state_dict().keys()
    assert sum(parameter.numel() for parameter in ppo_multidiscrete.Agent(4, [2]).parameters()) == 9155


@pytest.mark.parametrize("mask", [MASK, [1] * 9, None])
def test_agent_draws_from_the_joint_distribution(mask):
    agent, draws = random_agent(), 20_000
    obs = torch.zeros(draws, 3)
    masks = None if mask is None else torch.tensor(mask).bool().expand(draws, -1)
    action, log_prob, *_ = agent.get_action_and_value(obs, mask=masks)
    assert action.shape == (draws, 3)
    joint = joint_probabilities(agent.actor(obs)[0].detach(), mask or [1] * 9)
    assert_drawn(joint_actions(action), joint)
    np.testing.assert_allclose(log_prob.exp().detach(), joint[joint_actions(action)], rtol=1e-5)


# ------------------------------------------------------------------------------------------------ aux-4: masked actions


def test_masked_logits_have_no_gradient_and_the_others_do():
    agent, mask = random_agent(), torch.tensor(MASK).bool()
    obs, action = torch.randn(8, 3), torch.tensor([[0, 1, 2], [1, 3, 2]] * 4)
    _, log_prob, entropy, value = agent.get_action_and_value(obs, action, mask.expand(8, -1))
    columns = [torch.randn(8) for _ in range(4)]
    loss, _ = ppo_multidiscrete.ppo_loss(log_prob, entropy, value, *columns, 1e9, True, True, 0.5, 0.5)
    loss.backward()
    gradient = agent.actor[-1].bias.grad
    free = mask & torch.tensor([True] * 6 + [False] * 3)  # a component without a choice has nothing to learn
    assert (gradient[~mask] == 0).all() and (gradient[free] != 0).all()
    assert (agent.actor[-1].weight.grad[~mask] == 0).all()


def test_masked_terms_leave_the_entropy():
    agent, mask = random_agent(), torch.tensor(MASK).bool().expand(1, -1)
    action = torch.tensor([[0, 1, 2]])
    _, _, entropy, _ = agent.get_action_and_value(torch.zeros(1, 3), action, mask)
    agent.actor[-1].bias.data[~mask[0]] = 1e4  # whatever they are
    _, log_prob, same_entropy, _ = agent.get_action_and_value(torch.zeros(1, 3), action, mask)
    assert entropy.item() == same_entropy.item() > 0 and log_prob.isfinite().all()
    only = torch.tensor([[True, False, False, True, False, False, False, False, True]])
    _, log_prob, entropy, _ = agent.get_action_and_value(torch.zeros(1, 3), action, only)
    assert log_prob.item() == entropy.item() == 0.0


@pytest.fixture
def stubborn_agent(monkeypatch):
    """Makes every new agent prefer each value the more, the later it comes in its component, whatever it observes."""
    init = ppo_multidiscrete.Agent.__init__

    def biased_init(agent, obs_dim, nvec):
        init(agent, obs_dim, nvec)
        agent.actor[-1].weight.data.zero_()
        agent.actor[-1].bias.data = torch.cat([0.5 * torch.arange(float(n)) for n in nvec])

    monkeypatch.setattr(ppo_multidiscrete.Agent, "__init__", biased_init)


@pytest.mark.parametrize("env_id", DOORS)
def test_the_rollout_takes_allowed_actions_as_often_as_the_policy_says(in_tmp_path, spy, stubborn_agent, env_id):  # noqa: F811
    """The environment asserts that they are allowed."""
    agent_calls = spy(ppo_multidiscrete.Agent, "get_action_and_value")
    tiny(env_id, num_steps=4000, total_timesteps=12_000, update_epochs=1)
    (rollout,) = rollouts(agent_calls)
    masks = environments.Doors.masks(rollout.obs)
    assert (rollout.mask == masks).all()
    logits = np.concatenate([0.5 * np.arange(12), 0.5 * np.arange(4)])
    parts = [component_probabilities(logits, mask, [12, 4]) for mask in masks]
    for component, drawn in enumerate(rollout.action.T):
        # of the three doors or tools that are allowed, which one: counted from the least likely
        chances = np.array([part[component][part[component] > 0] for part in parts])  # (B, 3), in ascending order
        positions = [(part[component][:value] > 0).sum() for part, value in zip(parts, drawn)]
        deviation = np.sqrt((chances * (1 - chances)).sum(0))
        assert (np.abs(np.bincount(positions, minlength=3) - chances.sum(0)) < 4 * deviation).all()
    expected = [np.log(part[0][door] * part[1][tool]) for part, (door, tool) in zip(parts, rollout.action)]
    np.testing.assert_allclose(rollout.result[1], expected, atol=1e-4)


@pytest.mark.parametrize("env_id", DOORS)
def test_the_update_uses_the_masks_of_the_rollout(in_tmp_path, spy, env_id):  # noqa: F811
    agent_calls, loss_calls = spy(ppo_multidiscrete.Agent, "get_action_and_value"), spy(ppo_multidiscrete, "ppo_loss")
    tiny(env_id, learning_rate=0.01)
    assert len(agent_calls) == 2 * (1 + 16)
    for call in agent_calls:
        assert (call.mask == environments.Doors.masks(call.obs)).all() and call.mask.mean() < 0.5
    for update in np.split(np.array(loss_calls), 2):
        np.testing.assert_allclose(update[0].log_prob, update[0].old_log_probs, atol=1e-5)  # the ratio is 1
        assert all(call.log_prob.min() > -20 for call in update)


def test_without_a_mask_everything_is_allowed(in_tmp_path, spy):  # noqa: F811
    agent_calls = spy(ppo_multidiscrete.Agent, "get_action_and_value")
    tiny("Doors-None-v0")
    assert all(call.mask.shape[1:] == (16,) and call.mask.all() for call in agent_calls)
    assert len(set(np.concatenate([call.action[:, 0] for call in agent_calls]))) == 12


@pytest.mark.parametrize("env_id", DOORS)
def test_evaluation_takes_allowed_actions_too(env_id):
    """The environment asserts that they are allowed."""
    agent = random_agent(20, [12, 4], scale=10.0)
    results = [evaluate(agent, env_id, episodes=20, seed=seed) for seed in (1, 1, 2)]
    assert results[0] == results[1] != results[2] and all(length == 16 for _, length in results[0])


def test_evaluation_draws_from_the_components(spy, stubborn_agent):  # noqa: F811
    environments.Copy.taken.clear()
    agent = ppo_multidiscrete.Agent(9, NVEC)
    evaluate(agent, "CopyMultiDiscrete-v0", episodes=500, seed=1)
    assert len(environments.Copy.taken) == 8000
    joint = joint_probabilities(agent.actor[-1].bias.detach(), [1] * 9)
    assert_drawn(joint_actions(environments.Copy.taken), joint)


def test_the_rollout_draws_components_and_environments_independently(in_tmp_path, spy, stubborn_agent):  # noqa: F811
    agent_calls = spy(ppo_multidiscrete.Agent, "get_action_and_value")
    tiny("CopyMultiDiscrete-v0", num_envs=2, num_steps=8000, total_timesteps=16_000, update_epochs=1)
    (rollout,) = rollouts(agent_calls)
    joint = joint_probabilities(0.5 * np.array([0, 1, 0, 1, 2, 3, 0, 1, 2]), [1] * 9)
    assert_drawn(joint_actions(rollout.action), joint)
    first, second = rollout.action[:, 1].reshape(8000, 2).T
    middle = joint.reshape(NVEC).sum((0, 2))
    assert_drawn(4 * first + second, np.outer(middle, middle).ravel())
    assert_drawn(4 * first[:-1:2] + first[1::2], np.outer(middle, middle).ravel())  # steps too


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
    env = ppo_multidiscrete.make_env(f"Copy{name}-v0")
    assert env.action_space == gym.spaces.MultiDiscrete(nvec)
    env.reset(seed=1)
    space, joint = env.space, list(itertools.product(*map(range, nvec)))
    environments.Copy.taken.clear()
    for row in joint:
        env.step(np.array(row))  # it asserts that it gets what it takes
    start = np.ravel(getattr(space, "start", 0))
    assert [tuple(np.ravel(action) - start) for action in environments.Copy.taken] == joint
    for action in environments.Copy.taken:
        assert type(action) is int if name == "Discrete" else action.dtype == space.dtype


def test_environments_get_the_actions_that_are_learned_from(in_tmp_path, spy):  # noqa: F811
    agent_calls = spy(ppo_multidiscrete.Agent, "get_action_and_value")
    environments.Copy.taken.clear()
    tiny("CopyMultiDiscreteTable-v0")
    stored = np.concatenate([call.action for call in rollouts(agent_calls)])
    start = environments.gym.make("CopyMultiDiscreteTable-v0").action_space.start
    taken = np.array(environments.Copy.taken[1:])  # the first was a look at the environment before the run
    assert (taken.reshape(192, 6) == stored + start.ravel()).all()
    assert (stored != stored[0]).any(0).tolist() == [True] * 4 + [False, True]  # the fifth has one value


def masks_of(offered, nvec):
    """The mask that a wrapped environment reads, if it is offered so."""
    env = gym.make("Endless-v0", disable_env_checker=True)
    env.unwrapped.action_space = gym.spaces.MultiDiscrete(nvec)
    components = ppo_multidiscrete.ComponentActions(env)
    return components.read_mask({"action_mask": offered})


@pytest.mark.parametrize(
    "offered",
    [
        np.array([True, False, False, True, True]),
        np.array([1, 0, 0, 1, 1], np.int8),
        np.array([1.0, 0.0, 0.0, 1.0, 1.0]),
        [1, 0, 0, 1, 1],
        (np.array([1, 0], np.int8), np.array([0, 1, 1], np.int8)),
        [[True, False], [False, True, True]],
    ],
)
def test_masks_are_read_in_every_form(offered):
    mask = masks_of(offered, [2, 3])
    assert mask.dtype == bool and mask.tolist() == [True, False, False, True, True]


def test_a_mask_is_a_row_a_component_where_all_are_equal():
    assert masks_of(np.array([[1, 0], [0, 1], [1, 1]]), [2, 2, 2]).tolist() == [1, 0, 0, 1, 1, 1]


class OffersMethod(gym.Wrapper):
    """Allows the first value of each component only."""

    def action_masks(self):
        return np.array([True, False, True, False, False])


def test_a_wrapper_may_offer_the_mask():
    env = gym.make("Counter-v0", disable_env_checker=True)
    env.unwrapped.action_space = gym.spaces.MultiDiscrete([2, 3])
    env = ppo_multidiscrete.ComponentActions(gym.wrappers.TimeLimit(OffersMethod(env), 5))
    env.reset(seed=1)
    assert env.mask.tolist() == [True, False, True, False, False]


def test_gymnasiums_taxi(in_tmp_path, spy):  # noqa: F811
    """With the mask, no move of the taxi runs into a wall, so that every one changes the observation."""
    steps = spy(ppo_multidiscrete.ComponentActions, "step")
    tiny("Taxi-v4")
    positions = [call.result[0].argmax() for call in steps[1 : 1 + 3 * 32 : 3]]  # of the first environment
    assert len(positions) == 32 and all(one != next_one for one, next_one in itertools.pairwise(positions))


WRONG = {  # of MultiDiscrete([2, 3])
    "too short": np.ones(4),
    "too long": np.ones(6),
    "one a component": np.ones(2),
    "rows in the wrong order": (np.ones(3), np.ones(2)),
    "a table": np.ones((5, 5)),
    "a number": 1,
    "text": "11111",
    "empty": [],
    "to be added to the logits": np.array([0.0, -np.inf, 0.0, 0.0, 0.0]),
    "not a number": np.array([1.0, 1.0, 1.0, 1.0, np.nan]),
    "ragged": [[[1], [1, 0]], [1, 1, 1]],
}
WRONG = {name: (mask, "is not 5 values of 0 or 1") for name, mask in WRONG.items()} | {
    "nothing of the first": (np.array([0, 0, 1, 0, 1]), "allows no value of component 0"),
    "nothing of the last": (np.array([1, 1, 0, 0, 0]), "allows no value of component 1"),
}


@pytest.fixture
def offer(monkeypatch):
    """Lets Wrong-v0 offer this mask from a step of its life on."""

    def offer(mask, after):
        spec = gym.envs.registration.EnvSpec("Wrong-v0", environments.WrongMask, kwargs={"mask": mask, "after": after})
        monkeypatch.setitem(gym.registry, "Wrong-v0", spec)

    return offer


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_mask_is_one_line_and_leaves_no_folder(in_tmp_path, offer, capsys, name):
    mask, message = WRONG[name]
    offer(mask, after=0)
    with pytest.raises(SystemExit) as stop:
        tiny("Wrong-v0")
    line = error_line(capsys.readouterr().err, ppo_multidiscrete)
    assert stop.value.code == 1 and "--env-id Wrong-v0" in line and message in line
    assert not tree(in_tmp_path)


@pytest.mark.parametrize("name", ["too short", "nothing of the first"])
def test_a_mask_that_goes_wrong_ends_the_run_and_keeps_its_checkpoints(in_tmp_path, offer, capsys, name):
    mask, message = WRONG[name]
    offer(mask, after=20)
    with pytest.raises(SystemExit) as stop:
        tiny("Wrong-v0", num_steps=16, checkpoints=3)  # environments are new after updates 1 and 3
    assert stop.value.code == 1 and message in error_line(capsys.readouterr().err, ppo_multidiscrete)
    (folder,) = Path("runs").iterdir()
    assert checkpoints(folder) == [1] and len(rows(folder, "metrics.csv")) == 2


# ------------------------------------------------------------------------------------------------------------ Wrong use


class Odd(environments.Counter):
    def __init__(self, action_space, render_mode=None):
        super().__init__(length=8)
        self.action_space = action_space


class MasksAttribute(gym.Wrapper):
    """A wrapper that keeps a mask where a method is expected."""

    action_masks = np.ones(16, bool)


class NoMasks(gym.Wrapper):
    action_masks = None


gym.register("Box-v0", Odd, kwargs={"action_space": gym.spaces.Box(-1, 1, (2,))})
gym.register("MasksAttribute-v0", lambda **options: MasksAttribute(gym.make("Doors-None-v0", **options)))
gym.register("NoMasks-v0", lambda **options: NoMasks(gym.make("Doors-None-v0", **options)))
gym.register("Tuple-v0", Odd, kwargs={"action_space": gym.spaces.Tuple([gym.spaces.Discrete(2)] * 2)})


@pytest.mark.parametrize(
    "env_id, parts",
    [
        ("Box-v0", ["acts by Box(", "use ppo_continuous_action.py"]),
        ("Tuple-v0", ["acts by Tuple(", "wrap it into MultiDiscrete"]),
        ("MasksAttribute-v0", ["action_masks is of type ndarray", "make it a method"]),
        ("NoMasks-v0", ["action_masks is of type NoneType", "make it a method"]),
        ("CartPole-v9", ["`v9`", "`v1`"]),
    ],
)
def test_an_environment_that_does_not_fit(in_tmp_path, capsys, env_id, parts):
    with pytest.raises(SystemExit) as stop:
        tiny(env_id)
    line = error_line(capsys.readouterr().err, ppo_multidiscrete)
    assert stop.value.code == 2 and f"--env-id {env_id}" in line and all(part in line for part in parts), line
    assert not tree(in_tmp_path)


@pytest.mark.parametrize("env_id", ["CopyMultiBinary-v0", "CopyMultiDiscreteTable-v0"])
def test_ppo_names_this_script(in_tmp_path, capsys, env_id):
    with pytest.raises(SystemExit):
        ppo.main(ppo.Args(env_id=env_id))
    assert "or ppo_multidiscrete.py" in error_line(capsys.readouterr().err)


@pytest.mark.parametrize("flag", ["resume", "evaluate"])
def test_a_checkpoint_of_ppo(in_tmp_path, capsys, flag):
    folder = train(total_timesteps=96)
    with pytest.raises(SystemExit) as stop:
        ppo_multidiscrete.main(ppo_multidiscrete.Args(**{flag: str(folder)}))
    assert stop.value.code == 2
    assert "was written by ppo.py; use that script" in error_line(capsys.readouterr().err, ppo_multidiscrete)


# -------------------------------------------------------------------------------------------- The same as ppo.py's runs


@pytest.mark.parametrize(
    "arguments",
    [
        {"env_id": "CartPole-v1"},
        {"env_id": "CartPole-v1", "seed": 7, "anneal_clip": True, "norm_adv": False, "clip_vloss": False},
        {"env_id": "Random-v0", "learning_rate": 0.01, "target_kl": 0.001, "gamma": 0.9, "gae_lambda": 0.5},
        {"env_id": "LimitedCounter-v0", "bootstrap_truncated": True, "ent_coef": 0.2, "vf_coef": 1.0},
        {"env_id": "Offset-v0", "anneal_lr": False, "max_grad_norm": 0.01, "clip_coef": 0.05},
        {"env_id": "Grid-v0", "num_minibatches": 1, "update_epochs": 7},
    ],
    ids=lambda arguments: arguments["env_id"],
)
def test_a_discrete_space_without_a_mask_is_learned_as_by_ppo_bit_for_bit(in_tmp_path, capsys, arguments):
    sizes = {"total_timesteps": 8 * 256, "num_envs": 4, "num_steps": 64, "checkpoints": 2}
    folders = [script.main(script.Args(**sizes | arguments)) for script in (ppo, ppo_multidiscrete)]
    for update in (4, 8):
        assert_same_state(*[state(folder, update) for folder in folders])
    for name, clock in (("metrics.csv", "charts/SPS"), ("episodes.csv", "seconds")):
        first, second = (rows(folder, name, [clock]) for folder in folders)
        assert first == second != []
    printed = []
    for script, folder in zip((ppo, ppo_multidiscrete), folders):
        capsys.readouterr()
        script.main(script.Args(evaluate=str(folder), episodes=3))
        printed.append(capsys.readouterr().out.splitlines()[:3])
    assert printed[0] == printed[1] and printed[0][2].startswith("episode 2: return")


def test_the_rest_of_the_script_is_ppos():
    """Word for word, so that what is tested of ppo.py holds here."""
    own = {"make_env", "VectorEnv", "Agent", "evaluate", "train"}
    definitions = {
        name: x for name, x in vars(ppo).items()
        if (inspect.isfunction(x) or inspect.isclass(x)) and x.__module__ == "ppo" and name not in own
    }  # fmt: skip
    assert len(definitions) > 13
    for name, definition in definitions.items():
        assert inspect.getsource(getattr(ppo_multidiscrete, name)) == inspect.getsource(definition), name
    ours, theirs = asdict(ppo_multidiscrete.Args()), asdict(ppo.Args())
    assert ours == theirs | {"exp_name": "ppo_multidiscrete"}
    assert [field.type for field in fields(ppo_multidiscrete.Args)] == [field.type for field in fields(ppo.Args)]


# ----------------------------------------------------------------------------------------------- Checkpoints and videos


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The folder of a small run with masks that nothing disturbed."""
    with contextlib.chdir(tmp_path_factory.mktemp("undisturbed")):
        return train(ppo_multidiscrete, env_id="Doors-info-v0").resolve()


def test_a_resumed_run_ends_as_the_undisturbed_one(undisturbed, in_tmp_path):
    shutil.copytree(undisturbed, "run")
    for update in (30, 40):
        Path(f"run/checkpoints/{update}.pt").unlink()
    ppo_multidiscrete.main(ppo_multidiscrete.Args(resume="run"))
    assert_same_run(Path("run"), undisturbed)


def test_a_killed_run_ends_as_the_undisturbed_one(undisturbed, in_tmp_path):
    pid = fork(script=ppo_multidiscrete, env_id="Doors-info-v0")
    wait_for_updates(pid, 23)
    time.sleep(0.005)
    os.kill(pid, signal.SIGKILL)
    assert wait(pid) == (-signal.SIGKILL, "")
    (folder,) = Path().glob("runs/*")
    assert wait(fork(script=ppo_multidiscrete, resume=str(folder), env_id="Doors-info-v0")) == (0, "")
    assert_same_run(folder, undisturbed)


def test_videos_do_not_change_the_training(undisturbed, in_tmp_path):
    folder = train(ppo_multidiscrete, env_id="Doors-info-v0", capture_video=True)
    assert_same_state(state(folder, 40), state(undisturbed, 40))
    videos = sorted(folder.glob("videos/*.mp4"))
    assert [video.name for video in videos] == ["10.mp4", "20.mp4", "30.mp4", "40.mp4"]
    assert all(video.stat().st_size > 500 for video in videos)


def test_evaluation_of_the_loaded_file_equals_evaluation_after_training(in_tmp_path, spy, capsys):  # noqa: F811
    agent_calls = spy(ppo_multidiscrete.Agent, "get_value")
    folder = tiny("Doors-info-v0")
    after_training = evaluate(agent_calls[-1].self, "Doors-info-v0", 5, seed=1)
    capsys.readouterr()
    ppo_multidiscrete.main(ppo_multidiscrete.Args(evaluate=str(folder), episodes=5))
    lines = [f"episode {i}: return {x:.2f}, length {length}" for i, (x, length) in enumerate(after_training)]
    assert capsys.readouterr().out.splitlines()[:5] == lines


@pytest.mark.parametrize("flag", ["resume", "evaluate"])
def test_a_checkpoint_of_another_action_space(undisturbed, in_tmp_path, capsys, flag):
    shutil.copytree(undisturbed, "run")
    content = state(Path("run"), 40)
    content["args"]["env_id"] = "CopyMultiDiscrete-v0"
    torch.save(content, "run/checkpoints/40.pt")
    with pytest.raises(SystemExit) as stop:
        ppo_multidiscrete.main(ppo_multidiscrete.Args(**{flag: "run"}))
    assert stop.value.code == 2
    assert "does not fit CopyMultiDiscrete-v0" in error_line(capsys.readouterr().err, ppo_multidiscrete)


def test_it_trains_and_evaluates_as_typed(in_tmp_path, capsys):
    script, env_id = ppo_multidiscrete.__file__, "environments:Doors-method-v0"
    stdout, stderr = run("--env-id", env_id, "--total-timesteps", "1024", script=script)
    (folder,) = Path().glob("runs/environments_Doors-method-v0__ppo_multidiscrete__1__*")
    assert f"run folder: {folder}" in stdout and stderr == "" and checkpoints(folder) == [2]
    type_here("--evaluate", folder, "--env-id", env_id, "--episodes", 3, script=script)
    stdout, stderr = capsys.readouterr()
    assert "length 16.0 over 3 episodes" in stdout and stderr == ""


# ------------------------------------------------------------------------------------------------------------- Learning

LEARNS = {"num_envs": 4, "num_steps": 64, "learning_rate": 2.5e-3, "total_timesteps": 12_288, "checkpoints": 1}


def episodes_of(env_id, **arguments):
    """Steps and returns of a run's episodes."""
    folder = ppo_multidiscrete.main(ppo_multidiscrete.Args(env_id=env_id, **LEARNS | arguments))
    with (folder / "episodes.csv").open() as file:
        return np.array([(float(row["global_step"]), float(row["episodic_return"])) for row in csv.DictReader(file)]).T


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
        steps, returns = episodes_of(env_id, seed=1)
        means = np.convolve(returns, np.ones(50) / 50, "valid")  # of episodes i to i + 49
        enough = np.flatnonzero(means >= 12)
        reached.append(steps[enough[0] + 49] if len(enough) else np.inf)
    masked, unmasked = reached
    assert masked <= LEARNS["total_timesteps"] / 3  # measured: a quarter
    assert unmasked >= 2 * masked  # measured: six times and more
