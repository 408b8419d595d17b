"""The numpy scripts: every gradient by hand against torch's autograd on their parents, and no torch at run time."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import ppo
import ppo_continuous_action
import ppo_continuous_action_numpy
import ppo_numpy
import pytest
import torch
from helpers import learn, load_script, logged, rows
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

PARENTS = {ppo_numpy: ppo, ppo_continuous_action_numpy: ppo_continuous_action}
both = pytest.mark.parametrize("script", PARENTS)
# Two checkpoints and a few seconds; episodes of 20 steps for the continuous one
SHORT = {
    ppo_numpy: ["--total-timesteps", "4096"],
    ppo_continuous_action_numpy: [
        *("--env-id", "Pendulum-v1", "--env-kwargs", '{"max_episode_steps": 20}', "--total-timesteps", "2048"),
        *("--num-envs", "2", "--num-steps", "128", "--num-minibatches", "4"),
    ],
}


def make_batch(script, spread, num_actions=3, M=64, dtype=np.float64):
    """An agent, torch's agent with the same weights, and a minibatch; `spread` is how far the policy has moved."""
    rng = np.random.default_rng(1)
    discrete = script is ppo_numpy
    spaces = SimpleNamespace(
        observation_space=gym.spaces.Box(-1, 1, (4,)),
        action_space=gym.spaces.Discrete(num_actions) if discrete else gym.spaces.Box(-1, 1, (num_actions,)),
    )
    agent = script.Agent(spaces, script.Args(), dtype)
    agent.parameters.vector += 0.3 * rng.normal(size=agent.parameters.vector.shape).astype(dtype)
    twin = PARENTS[script].Agent(spaces, PARENTS[script].Args()).to(torch.from_numpy(agent.parameters.vector).dtype)
    twin.load_state_dict({name: torch.tensor(array) for name, array in agent.parameters.state_dict().items()})
    obs = rng.normal(size=(M, 4)).astype(dtype)
    actions = rng.integers(num_actions, size=M) if discrete else rng.normal(size=(M, num_actions)).astype(dtype)
    log_prob, _, value = agent.evaluate_actions(obs, actions)
    old_log_probs = log_prob + spread * rng.normal(size=M)
    old_values = value + spread * rng.normal(size=M)
    others = [x.astype(dtype) for x in (old_log_probs, old_values, rng.normal(size=M), value + rng.normal(size=M))]
    return agent, twin, script.Batch(obs, actions, *others)


def as_tensors(script, batch):
    return PARENTS[script].Batch(*(torch.from_numpy(x) for x in batch))


@both
@pytest.mark.parametrize("spread", [0.0, 0.1, 1.0])  # nothing clipped, some, most
@pytest.mark.parametrize("norm_adv, clip_vloss", [(True, True), (False, True), (True, False)])
def test_every_gradient_equals_autograd(script, spread, norm_adv, clip_vloss):
    options = {"norm_adv": norm_adv, "clip_vloss": clip_vloss, "ent_coef": 0.01}
    agent, twin, batch = make_batch(script, spread)
    outputs = agent.evaluate_actions(batch.obs, batch.actions)
    *derivatives, debug = script.ppo_loss(*outputs, batch, 0.2, script.Args(**options))
    agent.backward(*derivatives)
    tensors = as_tensors(script, batch)
    outputs = twin.evaluate_actions(tensors.obs, tensors.actions)
    loss, torch_debug = PARENTS[script].ppo_loss(*outputs, tensors, 0.2, PARENTS[script].Args(**options))
    loss.backward()
    assert (torch_debug["losses/clipfrac"] > 0.5) == (spread == 1.0)
    assert agent.gradients.state_dict().keys() == dict(twin.named_parameters()).keys()
    for name, parameter in twin.named_parameters():
        theirs = parameter.grad.numpy()
        assert np.abs(agent.gradients[name] - theirs).max() <= 1e-6 * np.abs(theirs).max(), name
    assert debug.keys() == torch_debug.keys()
    for name, mean in torch_debug.items():
        np.testing.assert_allclose(np.mean(debug[name]), mean.item(), rtol=1e-9, atol=1e-12, err_msg=name)


@both
def test_the_same_minibatches_give_the_weights_of_the_parent(script):
    agent, twin, batch = make_batch(script, 0.05, M=512, dtype=np.float32)
    before = agent.parameters.vector.copy()
    args = script.Args()
    adam = script.Adam(agent.parameters.vector, 2.5e-4, eps=1e-5)
    torch_adam = torch.optim.Adam(twin.parameters(), lr=2.5e-4, eps=1e-5)
    for indices in np.split(np.random.default_rng(3).permutation(512), 16) * 4:
        mb = script.Batch(*(x[indices] for x in batch))
        *derivatives, _ = script.ppo_loss(*agent.evaluate_actions(mb.obs, mb.actions), mb, 0.2, args)
        agent.backward(*derivatives)
        agent.gradients.vector *= min(1.0, 0.5 / (np.linalg.norm(agent.gradients.vector) + 1e-6))
        adam.step(agent.gradients.vector)
        tensors = as_tensors(script, mb)
        outputs = twin.evaluate_actions(tensors.obs, tensors.actions)
        torch_adam.zero_grad()
        PARENTS[script].ppo_loss(*outputs, tensors, 0.2, PARENTS[script].Args())[0].backward()
        torch.nn.utils.clip_grad_norm_(twin.parameters(), 0.5)
        torch_adam.step()
    moved = np.abs(agent.parameters.vector - before).max()
    theirs = torch.cat([parameter.detach().flatten() for parameter in twin.parameters()]).numpy()
    ours = np.concatenate([agent.parameters[name].ravel() for name, _ in twin.named_parameters()])
    assert moved > 0.005
    assert np.abs(ours - theirs).max() < 1e-3 * moved


@both
def test_gradients_are_clipped(script, in_tmp_path, spy):
    steps = spy(script.Adam, "step")
    sizes = {"total_timesteps": 64, "num_envs": 2, "num_steps": 8, "num_minibatches": 2, "checkpoints": 1}
    env_id = "CartPole-v1" if script is ppo_numpy else "Pendulum-v1"
    script.main(script.Args(env_id=env_id, max_grad_norm=0.01, **sizes))
    np.testing.assert_allclose([np.linalg.norm(call.gradient) for call in steps], 0.01, rtol=1e-3)


@both
def test_the_rate_given_to_adam_is_the_one_that_learns(script, in_tmp_path, monkeypatch):
    monkeypatch.setattr(script, "Adam", lambda parameters, lr, eps, adam=script.Adam: adam(parameters, 10 * lr, eps))
    env_id = "CartPole-v1" if script is ppo_numpy else "Pendulum-v1"
    sizes = {"total_timesteps": 32, "num_envs": 2, "num_steps": 8, "num_minibatches": 2}
    table = rows(script.main(script.Args(env_id=env_id, learning_rate=0.01, **sizes)), "metrics.csv")
    assert [float(row["charts/learning_rate"]) for row in table] == [0.1, 0.05]


@both
def test_nothing_is_computed_in_float64_by_accident(script, monkeypatch):
    agent, _, batch = make_batch(script, 0.1, dtype=np.float32)
    outputs = agent.evaluate_actions(batch.obs, batch.actions)
    d_log_prob, d_entropy, d_value, _ = script.ppo_loss(*outputs, batch, 0.2, script.Args())
    arriving = []
    monkeypatch.setattr(script.MLP, "backward", lambda self, d_out: arriving.append(d_out))
    agent.backward(d_log_prob, d_entropy, d_value)
    noise = agent.draw_noise(np.random.default_rng(1), 64)
    assert {x.dtype for x in (*outputs, d_log_prob, d_value, noise, *arriving)} == {np.dtype(np.float32)}


def test_initial_weights_are_orthogonal_with_the_published_gains():
    envs = ppo_numpy.VectorEnv(ppo_numpy.Args(), 1)
    parameters = ppo_numpy.Agent(envs, ppo_numpy.Args(), np.float64).parameters
    assert parameters.vector.size == 9_155
    for name, last_gain in (("critic", 1.0), ("actor", 0.01)):
        for layer, gain in ((0, 2**0.5), (2, 2**0.5), (4, last_gain)):
            weight = parameters[f"{name}.{layer}.weight"]
            product = weight @ weight.T if weight.shape[0] <= weight.shape[1] else weight.T @ weight
            np.testing.assert_allclose(product, gain**2 * np.eye(len(product)), atol=1e-12)
            assert not parameters[f"{name}.{layer}.bias"].any()


def test_parameters_are_parts_of_one_vector_and_refuse_what_does_not_fit():
    arrays = ppo_numpy.Arrays({"a": np.zeros((2, 3)), "b": np.zeros(2)}, np.float32)
    arrays["a"][1, 2] = 5.0
    assert arrays.vector.tolist() == [0, 0, 0, 0, 0, 5, 0, 0]
    with pytest.raises(TypeError):
        arrays["a"] = np.ones((2, 3))  # would no longer be in the vector
    with pytest.raises(ValueError, match="a is"):
        arrays.load_state_dict({"a": np.zeros((1, 3)), "b": np.zeros(2)})
    with pytest.raises(ValueError, match="has a instead of a, b"):
        arrays.load_state_dict({"a": np.zeros((2, 3))})


def test_environments_are_stepped_as_by_the_parent():
    """Observations and rewards by statistics, actions beyond their limits, last observations at time limits alone."""
    options = {"env_id": "InvertedPendulum-v4", "env_kwargs": '{"max_episode_steps": 5}', "gamma": 0.9}
    both = [
        script.VectorEnv(script.Args(**options), 2) for script in (ppo_continuous_action_numpy, ppo_continuous_action)
    ]
    np.testing.assert_equal(*[envs.reset([1, 2]) for envs in both])
    rng = np.random.default_rng(1)
    cuts = 0
    ends = 0
    for _ in range(30):
        actions = rng.normal(0, 3, (2, 1)).astype(np.float32)
        ours, theirs = [envs.step(actions) for envs in both]
        np.testing.assert_equal(ours, theirs)
        cuts += len(ours[3])
        ends += len(ours[4])
    assert 0 < cuts < ends


def test_tensorboard_gets_the_values_of_every_step(tmp_path):
    with ppo_numpy.SummaryWriter(str(tmp_path), purge_step=1) as writer:
        for step in (1, 2, 3):
            writer.add_scalar("charts/a", 10.0 * step, step)
            writer.add_scalar("charts/b", 20.0 * step, step)
    seen = EventAccumulator(str(tmp_path)).Reload()
    for name, value in (("charts/a", 10.0), ("charts/b", 20.0)):
        assert [(event.step, event.value) for event in seen.Scalars(name)] == [(i, value * i) for i in (1, 2, 3)]


# --------------------------------------------------------------------------------------------------------- Whole runs
def run(folder, path, *words, status=0):
    """Runs a script in a process where importing torch is an error. Returns its stdout, or stderr if it must fail."""
    (folder / "torch.py").write_text("raise ImportError('torch is not wanted here')")
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    done = subprocess.run([sys.executable, path, *words], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == status, done.stderr
    return done.stderr if status else done.stdout


def last_checkpoint(folder):
    return max(folder.glob("checkpoints/*.npz"), key=lambda path: int(path.stem))


@both
def test_runs_without_torch_and_resumes_bit_for_bit(script, tmp_path):
    run(tmp_path, script.__file__, *SHORT[script], "--checkpoints", "2", "--exact-resume")
    (folder,) = tmp_path.glob("runs/*")
    path = last_checkpoint(folder)
    undisturbed = script.read_state(path)
    logs = logged(folder)
    path.unlink()  # as if the run had been killed after the first one
    run(tmp_path, script.__file__, "--resume", str(folder))
    resumed = script.read_state(path)
    for state in (undisturbed, resumed):
        del state["seconds"], state["log_sizes"]
    np.testing.assert_equal(resumed, undisturbed)
    assert logged(folder) == logs

    words = ("--evaluate", str(folder), "--episodes", "2")
    drawn = [run(tmp_path, script.__file__, *words) for _ in range(2)]
    assert drawn[0] == drawn[1] and "mean return" in drawn[0]
    assert run(tmp_path, script.__file__, *words, "--deterministic") != drawn[0]
    assert len((folder / "evaluation.csv").read_text().splitlines()) == 3
    assert script.read_state(path)["script"] == json.loads((folder / "config.json").read_text())["script"]
    assert "torch" not in Path(script.__file__).read_text().split("# ///")[1]


def test_checkpoints_are_not_unpickled(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    for name, content in (("1", {"state": np.array([object()])}), ("2", {"weights": np.zeros(3)})):
        np.savez(tmp_path / "checkpoints" / f"{name}.npz", **content)
        error = run(tmp_path, ppo_numpy.__file__, "--evaluate", f"checkpoints/{name}.npz", status=2)
        assert "no checkpoint" in error and error.count("\n") == 1


def changed(script, folder, *changes):
    """A copy of the script in which texts are replaced; each is there once."""
    text = Path(script.__file__).read_text()
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    (folder / "changed.py").write_text(text)
    return folder / "changed.py"


@both
def test_wrappers_in_make_env_leave_the_logged_return_alone_and_keep_their_statistics(script, tmp_path):
    wrappers = "    env = gym.wrappers.TransformReward(env, lambda reward: 0.001 * reward)\n"
    wrappers += "    env = gym.wrappers.NormalizeObservation(env)\n"
    path = changed(script, tmp_path, ("    check_spaces(env)", f"{wrappers}    check_spaces(env)"))
    run(tmp_path, path, *SHORT[script])
    (folder,) = tmp_path.glob("runs/*")
    episodes = np.loadtxt(folder / "episodes.csv", delimiter=",", skiprows=1)
    if script is ppo_numpy:
        np.testing.assert_array_equal(episodes[:, 1], episodes[:, 2])  # CartPole pays 1 a step
    else:
        assert episodes[:, 1].mean() < -10
    state = script.read_state(last_checkpoint(folder))["envs"]
    counts = [count for _, _, count in state.get("wrappers", state)["obs_rms"]]
    assert min(counts) > 4096 / 4
    assert "mean return" in run(tmp_path, path, "--evaluate", str(folder), "--episodes", "1")


def test_a_parameter_without_a_gradient_ends_the_run(tmp_path):
    path = changed(
        ppo_numpy,
        tmp_path,
        ("arrays = {**critic, **actor}", 'arrays = {**critic, **actor, "scale": np.ones(1)}'),
        (
            "        return self.actor.forward(obs)\n",
            '        return self.parameters["scale"] * self.actor.forward(obs)\n',
        ),
    )
    assert "not finite" in run(tmp_path, path, *SHORT[ppo_numpy], status=2)


def test_a_temperature_reaches_acting_and_learning(tmp_path):
    """Frequencies of drawn actions are the probabilities of evaluate_actions, in the script as changed."""
    line = "        return self.actor.forward(obs)\n"
    script = load_script(changed(ppo_numpy, tmp_path, (line, line.replace("(obs)", "(obs) / 0.001"))))
    agent = script.Agent(script.VectorEnv(script.Args(), 1), script.Args())
    obs = np.tile(np.float32([0.5, 1.0, -0.1, 0.4]), (20_000, 1))
    actions = agent.get_action(obs, agent.draw_noise(np.random.default_rng(1), len(obs)))
    log_prob, _, _ = agent.evaluate_actions(obs[:1], np.zeros(1, np.int64))
    assert abs(np.exp(log_prob[0]) - 0.5) > 0.05  # the policy without it is nearly even
    assert abs(np.mean(actions == 0) - np.exp(log_prob[0])) < 0.02


def test_cartpole_is_learned(in_tmp_path):
    learn(ppo_numpy, ppo_numpy.Args(), enough=475, episodes=100)


@pytest.mark.parametrize("script, mean, std", [(ppo_numpy, 0.577, 1.283), (ppo_continuous_action_numpy, 0.0, 1.0)])
def test_noise_is_standard_gumbel_or_normal(script, mean, std):
    noise = script.Agent.draw_noise(SimpleNamespace(num_actions=2, action_dim=2), np.random.default_rng(1), 50_000)
    assert noise.mean() == pytest.approx(mean, abs=0.02) and noise.std() == pytest.approx(std, abs=0.02)
