"""The numpy scripts: gradients written by hand against torch's autograd on their parents, and no torch at run time."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import ppo
import ppo_continuous_action
import ppo_continuous_action_numpy
import ppo_numpy
import pytest
import torch


def torch_twin(agent: ppo_numpy.Agent, obs_dim: int, num_actions: int) -> ppo.Agent:
    """ppo.py's agent with the same weights."""
    twin = ppo.Agent(obs_dim, num_actions).to(torch.float64 if agent.parameters.dtype == np.float64 else torch.float32)
    twin.load_state_dict({name: torch.from_numpy(weight.copy()) for name, weight in agent.state_dict().items()})
    return twin


def minibatch(rng, M, obs_dim, num_actions, dtype, spread):
    """Observations, actions and what a rollout would have stored; `spread` is how far the policy has moved."""
    agent = ppo_numpy.Agent(obs_dim, num_actions, rng, dtype)
    agent.parameters += 0.3 * rng.normal(size=agent.parameters.shape)
    obs = rng.normal(size=(M, obs_dim)).astype(dtype)
    actions = rng.integers(num_actions, size=M)
    _, log_prob, _, value = agent.get_action_and_value(obs, actions)
    old_log_probs = log_prob + spread * rng.normal(size=M)
    old_values = value + spread * rng.normal(size=M)
    advantages, returns = rng.normal(size=M), value + rng.normal(size=M)
    return agent, obs, [actions] + [x.astype(dtype) for x in (old_log_probs, old_values, advantages, returns)]


def gradients_of_both(agent, obs, rollout, clip_coef, norm_adv, clip_vloss, ent_coef=0.01, vf_coef=0.5):
    """The gradients by hand and by autograd, in the order of the parameters, and both debug dictionaries."""
    coefficients = (clip_coef, norm_adv, clip_vloss, ent_coef, vf_coef)
    _, *outputs = agent.get_action_and_value(obs, rollout[0])
    *derivatives, debug = ppo_numpy.ppo_loss(*outputs, *rollout[1:], *coefficients)
    agent.backward(*derivatives)
    twin = torch_twin(agent, obs.shape[1], agent.actor.weights[-1].size)
    tensors = [torch.from_numpy(x) for x in rollout]
    _, log_prob, entropy, torch_value = twin.get_action_and_value(torch.from_numpy(obs), tensors[0])
    loss, torch_debug = ppo.ppo_loss(log_prob, entropy, torch_value, *tensors[1:], *coefficients)
    loss.backward()
    torch_gradient = torch.cat([parameter.grad.flatten() for parameter in twin.parameters()]).numpy()
    return agent.gradient, torch_gradient, debug, torch_debug


@pytest.mark.parametrize("spread", [0.0, 0.1, 1.0])  # nothing clipped, some, most
@pytest.mark.parametrize("norm_adv, clip_vloss", [(True, True), (False, True), (True, False)])
@pytest.mark.parametrize("num_actions", [2, 7])
def test_every_gradient_equals_autograd(spread, norm_adv, clip_vloss, num_actions):
    rng = np.random.default_rng(1)
    agent, obs, rollout = minibatch(rng, 64, 4, num_actions, np.float64, spread)
    ours, theirs, debug, torch_debug = gradients_of_both(agent, obs, rollout, 0.2, norm_adv, clip_vloss)
    assert (torch_debug["losses/clipfrac"].mean() > 0.5) == (spread == 1.0)
    start = 0
    for weight in agent.critic.weights + agent.actor.weights:
        part = slice(start, start := start + weight.size)
        assert np.abs(ours[part] - theirs[part]).max() <= 1e-6 * np.abs(theirs[part]).max()
    assert debug.keys() == torch_debug.keys()
    for name, samples in torch_debug.items():
        np.testing.assert_allclose(debug[name], samples.numpy(), rtol=1e-9, atol=1e-12)


def test_gradient_equals_autograd_on_ties():
    """The old policy is the new one, so that both sides of every minimum and maximum are equal; and returns half-way
    between the value and its clipped twin, so that the two errors are equal although the clip is active."""
    rng = np.random.default_rng(2)
    agent, obs, (actions, old_log_probs, _, advantages, _) = minibatch(rng, 64, 4, 3, np.float64, 0.0)
    agent.critic.weights[4][:] = 0.0  # every value is the last bias
    agent.critic.weights[5][:] = 1.0
    old_values = np.where(np.arange(64) % 2, 0.5, 1.0)  # far from the value, and equal to it
    clipped = old_values + np.clip(1.0 - old_values, -0.25, 0.25)
    returns = (1.0 + clipped) / 2
    advantages[:8] = 0.0
    rollout = [actions, old_log_probs, old_values, advantages, returns]
    value = agent.get_value(obs)
    assert ((value - returns) ** 2 == (clipped - returns) ** 2).all() and (value != clipped).any()
    ours, theirs, *_ = gradients_of_both(agent, obs, rollout, 0.25, False, True)
    assert np.abs(ours - theirs).max() <= 1e-6 * np.abs(theirs).max()


def test_gradient_equals_autograd_where_rounding_moves_the_clipped_value():
    """A value inside the clip range comes back from old + (value − old) with another last bit; in float32 that makes
    either of the two squared errors the larger one, and the gradient must not depend on which."""
    rng = np.random.default_rng(5)
    value, old_values = (rng.normal(size=100_000).astype(np.float32) * size for size in (1e-3, 0.1))
    rollout = [np.zeros_like(value), old_values, np.zeros_like(value), value + np.float32(0.001)]
    inside = np.abs(value - old_values) < 0.2
    clipped_error = old_values + (value - old_values) - rollout[3]
    assert (clipped_error[inside] ** 2 > (value - rollout[3])[inside] ** 2).mean() > 0.1
    zeros = np.zeros_like(value)
    _, _, ours, _ = ppo_numpy.ppo_loss(zeros, zeros, value, *rollout, 0.2, False, True, 0.0, 1.0)
    theirs = torch.from_numpy(value).requires_grad_()
    tensors = [torch.from_numpy(x) for x in (zeros, zeros, *rollout)]
    ppo.ppo_loss(*tensors[:2], theirs, *tensors[2:], 0.2, False, True, 0.0, 1.0)[0].backward()
    np.testing.assert_allclose(ours[inside], theirs.grad.numpy()[inside], rtol=1e-3)


@pytest.mark.parametrize("script", [ppo_numpy, ppo_continuous_action_numpy])
def test_nothing_is_computed_in_float64_by_accident(script, monkeypatch):
    rng = np.random.default_rng(6)
    agent = script.Agent(4, 2, rng)
    obs = rng.normal(size=(64, 4)).astype(np.float32)
    actions = rng.integers(2, size=64) if script is ppo_numpy else rng.normal(size=(64, 2)).astype(np.float32)
    _, *outputs = agent.get_action_and_value(obs, actions)
    rollout = [x + np.float32(0.1) for x in (outputs[0], outputs[2], *rng.normal(size=(2, 64)).astype(np.float32))]
    d_log_prob, _, d_value, _ = script.ppo_loss(*outputs, *rollout, 0.2, True, True, 0.01, 0.5)
    arriving = []
    monkeypatch.setattr(script.MLP, "backward", lambda self, d_out: arriving.append(d_out.dtype))
    agent.backward(d_log_prob, -0.01, d_value)
    assert {x.dtype for x in (*outputs, d_log_prob, d_value)} | {*arriving} == {np.dtype(np.float32)}


@pytest.mark.parametrize("spread", [0.0, 0.1, 1.0])
def test_every_gaussian_gradient_equals_autograd(spread):
    rng = np.random.default_rng(4)
    agent = ppo_continuous_action_numpy.Agent(5, 3, rng, np.float64)
    agent.parameters += 0.3 * rng.normal(size=agent.parameters.shape)
    obs, actions = rng.normal(size=(64, 5)), rng.normal(size=(64, 3))
    _, log_prob, _, value = agent.get_action_and_value(obs, actions)
    rollout = [log_prob + spread * rng.normal(size=64), value + spread * rng.normal(size=64)]
    rollout += [rng.normal(size=64), value + rng.normal(size=64)]
    coefficients = (0.2, True, True, 0.01, 0.5)
    _, *outputs = agent.get_action_and_value(obs, actions)
    *derivatives, debug = ppo_continuous_action_numpy.ppo_loss(*outputs, *rollout, *coefficients)
    agent.backward(*derivatives)
    twin = ppo_continuous_action.Agent(5, 3).double()
    twin.load_state_dict({name: torch.from_numpy(weight.copy()) for name, weight in agent.state_dict().items()})
    _, *outputs = twin.get_action_and_value(torch.from_numpy(obs), torch.from_numpy(actions))
    loss, torch_debug = ppo_continuous_action.ppo_loss(*outputs, *map(torch.from_numpy, rollout), *coefficients)
    loss.backward()
    gradients = dict(zip(agent.state_dict(), [agent.d_log_std, *agent.critic.gradients, *agent.actor.gradients]))
    for name, parameter in twin.named_parameters():
        theirs = parameter.grad.numpy()
        assert np.abs(gradients[name] - theirs).max() <= 1e-6 * np.abs(theirs).max(), name
    assert debug.keys() == torch_debug.keys()
    for name, samples in torch_debug.items():
        np.testing.assert_allclose(debug[name], samples.numpy(), rtol=1e-9, atol=1e-12)


def test_the_same_rollout_and_minibatches_give_the_weights_of_ppo():
    rng = np.random.default_rng(3)
    agent, obs, rollout = minibatch(rng, 512, 4, 2, np.float32, 0.05)
    twin = torch_twin(agent, 4, 2)
    flat = ppo.flatten_parameters(twin)
    torch_adam = torch.optim.Adam([flat], lr=2.5e-4, eps=1e-5, fused=True)
    adam = ppo_numpy.Adam(agent.parameters, eps=1e-5)
    before = agent.parameters.copy()
    for indices in np.split(rng.permutation(512), 16) * 4:
        coefficients = (0.2, True, True, 0.01, 0.5)
        part = [x[indices] for x in rollout]
        _, *outputs = agent.get_action_and_value(obs[indices], part[0])
        *derivatives, _ = ppo_numpy.ppo_loss(*outputs, *part[1:], *coefficients)
        agent.backward(*derivatives)
        agent.gradient *= min(1.0, 0.5 / (np.linalg.norm(agent.gradient) + 1e-6))
        adam.step(agent.gradient, 2.5e-4)
        tensors = [torch.from_numpy(x) for x in part]
        _, log_prob, entropy, torch_value = twin.get_action_and_value(torch.from_numpy(obs[indices]), tensors[0])
        flat.grad.zero_()
        ppo.ppo_loss(log_prob, entropy, torch_value, *tensors[1:], *coefficients)[0].backward()
        torch.nn.utils.clip_grad_norm_([flat], 0.5)
        torch_adam.step()
    moved = np.abs(agent.parameters - before).max()
    assert moved > 0.005
    assert np.abs(agent.parameters - flat.detach().numpy()).max() < 1e-3 * moved


def test_initial_weights_are_orthogonal_with_the_published_gains():
    agent = ppo_numpy.Agent(4, 2, np.random.default_rng(1), np.float64)
    assert agent.parameters.size == 9_155
    for mlp, last_gain in ((agent.critic, 1.0), (agent.actor, 0.01)):
        for weight, bias, gain in zip(mlp.weights[::2], mlp.weights[1::2], (2**0.5, 2**0.5, last_gain)):
            product = weight @ weight.T if weight.shape[0] <= weight.shape[1] else weight.T @ weight
            np.testing.assert_allclose(product, gain**2 * np.eye(len(product)), atol=1e-12)
            assert not bias.any()


@pytest.mark.parametrize("script", [ppo_numpy, ppo_continuous_action_numpy])
def test_runs_without_torch_and_resumes_bit_for_bit(script, tmp_path):
    """In a process where importing torch is an error; the first of two checkpoints stands for a killed run."""
    (tmp_path / "torch.py").write_text("raise ImportError('torch is not wanted here')")
    environment = {"PYTHONPATH": str(tmp_path), "PATH": ""}

    def run(*arguments):
        command = [sys.executable, script.__file__, *arguments]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True).stdout

    run("--total-timesteps", "4096", "--checkpoints", "2")
    (folder,) = tmp_path.glob("runs/*")
    last = max(folder.glob("checkpoints/*.npz"), key=lambda path: int(path.stem))
    episodes = (folder / "episodes.csv").read_text()
    with np.load(last, allow_pickle=False) as saved:
        undisturbed = {name: saved[name] for name in saved.files}
    last.unlink()
    run("--resume", str(folder))
    with np.load(last, allow_pickle=False) as saved:
        assert set(saved.files) == set(undisturbed)
        for name in set(saved.files) - {"state"}:
            assert saved[name].tobytes() == undisturbed[name].tobytes()
        ours, theirs = json.loads(str(saved["state"])), json.loads(str(undisturbed["state"]))
        assert ours | {"seconds": 0} == theirs | {"seconds": 0}
    rows = zip(episodes.splitlines(), (folder / "episodes.csv").read_text().splitlines(), strict=True)
    assert all(a.rsplit(",", 1)[0] == b.rsplit(",", 1)[0] for a, b in rows)
    assert "over 2 episodes" in run("--evaluate", str(folder), "--episodes", "2")


@pytest.mark.parametrize("script", [ppo_numpy, ppo_continuous_action_numpy])
def test_wheel_list_has_no_torch(script):
    block = Path(script.__file__).read_text().split("# ///")[1]
    assert "numpy==" in block and "torch" not in block


def test_cartpole_is_learned(tmp_path):
    subprocess.run([sys.executable, ppo_numpy.__file__], cwd=tmp_path, check=True, capture_output=True)
    (episodes,) = tmp_path.glob("runs/*/episodes.csv")
    returns = np.loadtxt(episodes, delimiter=",", skiprows=1, usecols=1)
    means = np.convolve(returns, np.ones(100) / 100, mode="valid")
    assert means.max() >= 475 and returns[-100:].mean() >= 450
