"""What ppo_atari_lstm.py adds to ppo_atari.py: the five details of the LSTM, in acting, learning and evaluation."""

import shutil
from itertools import pairwise
from pathlib import Path

import environments_atari  # noqa: F401 (registers them)
import gymnasium as gym
import numpy as np
import ppo_atari
import ppo_atari_lstm as ppo
import pytest
import torch
from helpers import assert_same_state, error_line, rows, run, state, type_here, words

SCRIPT = Path(ppo.__file__)
# 3 updates of 32 samples, a checkpoint at the end
TINY = {
    "env_id": "Noise-v0", "total_timesteps": 96, "num_envs": 4, "num_steps": 8, "num_minibatches": 2,
    "update_epochs": 2, "checkpoints": 1, "num_threads": 1, "cuda": False,
}  # fmt: skip


@pytest.fixture
def train(in_tmp_path):
    return lambda **arguments: ppo.main(ppo.Args(**TINY | arguments))


def copied(x):
    """A copy of x, since the training reuses its buffers."""
    if isinstance(x, torch.Tensor):
        return x.detach().clone()
    if isinstance(x, list | tuple):
        return tuple(map(copied, x))
    return x.copy() if isinstance(x, np.ndarray) else x


@pytest.fixture
def spy(monkeypatch):
    """Lets spy(owner, name) list the calls of a function: its positional arguments, its result and whether it is in
    training, where gradients are on."""

    def spy(owner, name):
        function, calls = getattr(owner, name), []

        def spied(*args, **kwargs):
            arguments, in_training = copied(args), torch.is_grad_enabled()
            result = function(*args, **kwargs)
            calls.append((arguments, copied(result), in_training))
            return result

        monkeypatch.setattr(owner, name, spied)
        return calls

    return spy


def random_agent(num_actions=3, seed=1):
    """An agent whose policy and biases are far from their initial values, so that what the state holds shows."""
    torch.manual_seed(seed)
    agent = ppo.Agent(num_actions)
    with torch.no_grad():
        for parameter in (*agent.actor.parameters(), *agent.lstm.parameters()):
            parameter.add_(0.3 * torch.randn_like(parameter))
    return agent


def frames(steps, num_envs):
    return torch.randint(256, (steps * num_envs, 1, 84, 84), dtype=torch.uint8)


def no_dones(count):
    return np.zeros(count, np.float32)


def one_step_at_a_time(agent, obs, lstm_state, dones):
    """The hidden units and last state the plainest way: one environment after the other, step after step."""
    num_envs = lstm_state.shape[1]
    features = agent.network(obs / 255).view(-1, num_envs, 512)
    hidden, states = torch.zeros(len(features), num_envs, 128), []
    for env in range(num_envs):
        h, c = lstm_state[:, env]
        for t, feature in enumerate(features[:, env]):
            if dones.reshape(-1, num_envs)[t, env]:
                h, c = torch.zeros(128), torch.zeros(128)
            x = agent.lstm.weight_ih_l0 @ feature + agent.lstm.bias_ih_l0
            i, f, g, o = (x + agent.lstm.weight_hh_l0 @ h + agent.lstm.bias_hh_l0).chunk(4)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            hidden[t, env] = h
        states.append(torch.stack([h, c]))
    return hidden.flatten(0, 1), torch.stack(states, 1)


# -------------------------------------------------------------------------------------------- lstm-1, lstm-2: the agent


def test_number_of_parameters():
    assert sum(parameter.numel() for parameter in ppo.Agent(4).parameters()) == 2_007_333


def test_weights_of_the_lstm_are_orthogonal_and_biases_zero():
    lstm = ppo.Agent(4).lstm
    assert (lstm.input_size, lstm.hidden_size, lstm.num_layers) == (512, 128, 1)
    for weight in (lstm.weight_ih_l0.detach(), lstm.weight_hh_l0.detach()):  # (512, 512), (512, 128)
        torch.testing.assert_close(weight.T @ weight, torch.eye(weight.shape[1]), rtol=0, atol=1e-5)
    assert not lstm.bias_ih_l0.any() and not lstm.bias_hh_l0.any()


def test_other_weights_are_the_parents():
    agent, layers = ppo.Agent(4), {}
    for name, layer in agent.named_modules():
        if hasattr(layer, "weight"):
            weight = layer.weight.detach().flatten(1)
            gram = weight @ weight.T if len(weight) <= weight.shape[1] else weight.T @ weight
            layers[name] = gram[0, 0].sqrt().item()
            torch.testing.assert_close(gram, layers[name] ** 2 * torch.eye(len(gram)), rtol=0, atol=1e-4)
            assert not layer.bias.any()
    gains = {f"network.{i}": 2**0.5 for i in (0, 2, 4, 7)} | {"actor": 0.01, "critic": 1.0}
    assert layers == pytest.approx(gains, rel=1e-4)
    assert agent.network[0].in_channels == 1  # no stack of frames


def test_initial_state_is_zero():
    state = ppo.Agent(4).initial_state(3)
    assert state.shape == (2, 3, 128) and not state.any() and not state.requires_grad


def test_flattened_parameters_stay_the_agents_and_begin_with_the_lstms():
    agent = random_agent()
    obs, dones = frames(3, 2), no_dones(6)
    before = agent.get_value(obs, agent.initial_state(2), dones)
    flat = ppo.flatten_parameters(agent)
    torch.testing.assert_close(agent.get_value(obs, agent.initial_state(2), dones), before, rtol=0, atol=1e-6)
    start = flat.data_ptr()
    for weight in agent.lstm.parameters():  # in the order and without the gaps that cuDNN needs
        assert weight.data_ptr() == start
        start += weight.numel() * 4
    agent.get_value(obs, agent.initial_state(2), dones).sum().backward()
    assert flat.grad[: 512 * 640].count_nonzero() > 0.5 * 512 * 640  # ReLU silences some
    with torch.no_grad():
        flat.zero_()
    assert not agent.get_value(obs, agent.initial_state(2), dones).any()


# --------------------------------------------------------------------------------- lstm-3: states end with the episodes


def done_patterns():
    """dones of 7 steps of 3 environments, (7, 3)."""
    none, all_ = np.zeros((7, 3), np.float32), np.ones((7, 3), np.float32)
    first, last, middle = none.copy(), none.copy(), none.copy()
    first[0, 1], last[-1, 2], middle[3] = 1, 1, 1
    noise = np.random.default_rng(1).random((7, 3))
    some = {f"{p} of all": (noise < p).astype(np.float32) for p in (0.1, 0.3, 0.6)}
    return {"none": none, "all": all_, "first": first, "last": last, "middle": middle} | some


@pytest.mark.parametrize("name", done_patterns())
def test_a_sequence_equals_its_steps(name):
    agent, dones = random_agent(), done_patterns()[name]
    obs, state = frames(7, 3), torch.randn(2, 3, 128)
    hidden, last_state = agent.get_hidden(obs, state, dones.flatten())
    wanted, wanted_state = one_step_at_a_time(agent, obs, state, dones)
    torch.testing.assert_close(hidden, wanted, rtol=0, atol=1e-5)
    torch.testing.assert_close(last_state, wanted_state, rtol=1e-5, atol=1e-5)
    stepped = []
    for step_obs, step_dones in zip(obs.split(3), dones):  # as in acting
        value, state = agent.get_value(step_obs, state, step_dones), agent.get_hidden(step_obs, state, step_dones)[1]
        stepped.append(value)
    torch.testing.assert_close(agent.critic(wanted).squeeze(-1), torch.cat(stepped), rtol=0, atol=1e-5)
    torch.testing.assert_close(state, wanted_state, rtol=1e-5, atol=1e-5)


def test_gradients_of_a_sequence_are_those_of_its_steps():
    agent, dones = random_agent(), done_patterns()["0.3 of all"]
    obs, state, weights = frames(7, 3), torch.randn(2, 3, 128), torch.randn(21, 128)
    (agent.get_hidden(obs, state, dones.flatten())[0] * weights).sum().backward()
    gradients = [parameter.grad.clone() for parameter in (*agent.network.parameters(), *agent.lstm.parameters())]
    agent.zero_grad()
    (one_step_at_a_time(agent, obs, state, dones)[0] * weights).sum().backward()
    for gradient, parameter in zip(gradients, (*agent.network.parameters(), *agent.lstm.parameters()), strict=True):
        torch.testing.assert_close(gradient, parameter.grad, rtol=0, atol=1e-4 * parameter.grad.abs().max().item())


def test_what_follows_a_done_equals_a_fresh_run():
    agent, dones = random_agent(), no_dones(16).reshape(8, 2)
    dones[3, 0] = 1
    obs = frames(8, 2)
    hidden = agent.get_hidden(obs, torch.randn(2, 2, 128), dones.flatten())[0].view(8, 2, 128)
    fresh, _ = agent.get_hidden(obs.view(8, 2, 1, 84, 84)[3:, 0], agent.initial_state(1), no_dones(5))
    torch.testing.assert_close(hidden[3:, 0], fresh, rtol=0, atol=1e-5)
    fresh, _ = agent.get_hidden(obs.view(8, 2, 1, 84, 84)[3:, 1], agent.initial_state(1), no_dones(5))
    assert (hidden[3:, 1] - fresh).abs().max() > 0.01  # the other environment remembers


def test_the_lstm_runs_once_a_stretch_between_episode_ends(spy):
    agent, dones = random_agent(), no_dones(64).reshape(32, 2)
    dones[[0, 10, 10, 20], [0, 0, 1, 1]] = 1
    calls = spy(torch.nn.LSTM, "forward")
    agent.get_hidden(frames(32, 2), agent.initial_state(2), dones.flatten())
    assert [args[1].shape[0] for args, _, _ in calls] == [10, 10, 12]


def test_bf16_is_near_fp32():
    agent, dones = random_agent(), done_patterns()["0.3 of all"].flatten()
    obs, state = frames(7, 3), torch.randn(2, 3, 128)
    wanted = agent.get_value(obs, state, dones)
    agent.dtype = torch.bfloat16
    value = agent.get_value(obs, state, dones)
    assert value.dtype == torch.float32
    assert 0 < (value - wanted).abs().max() < 0.1 * wanted.std()


# ------------------------------------------------------------------------------------------------------------ Acting


def acting(calls):
    """The calls of get_action_and_value in a rollout."""
    return [call for call in calls if not call[2]]


def test_states_are_handed_on_over_steps_and_rollouts_and_reset_after_a_checkpoint(train, spy):
    calls, gae_calls = spy(ppo.Agent, "get_action_and_value"), spy(ppo, "compute_gae")
    train(total_timesteps=128, checkpoints=2)
    states = [(args[2], result[-1]) for args, result, _ in acting(calls)]
    for fresh in (0, 16):
        assert not states[fresh][0].any()  # [lstm-2]
    for t, ((_, after), (before, _)) in enumerate(pairwise(states), 1):
        assert torch.equal(after, before) == (t != 16)
    given = np.array([args[3] for args, _, _ in acting(calls)])  # (4 · T, N)
    dones = np.concatenate([args[2] for args, _, _ in gae_calls])
    np.testing.assert_array_equal(given, dones)
    assert 0 < dones[1:16].mean() < 1 and not dones[[8, 24]].all()  # episodes go on from a rollout to the next


def test_observations_are_single_frames(train, spy):
    calls = spy(ppo.Agent, "get_action_and_value")
    train(env_id="Clock-v0", total_timesteps=32)
    levels = [args[1] for args, _, _ in acting(calls)]
    assert all(obs.shape == (4, 1, 84, 84) and obs.dtype == torch.uint8 for obs in levels)
    assert [obs.unique().tolist() for obs in levels] == [[20 * (t % 5)] for t in range(8)]


def test_next_value_is_that_of_the_state_after_the_rollout(train, spy):
    calls, gae_calls = spy(ppo.Agent, "get_action_and_value"), spy(ppo, "compute_gae")
    values = spy(ppo.Agent, "get_value")
    train()
    assert len(values) == len(gae_calls) == 3
    for (value_args, _, _), (gae_args, _, _), (_, acted, _) in zip(values, gae_calls, acting(calls)[7::8], strict=True):
        assert torch.equal(value_args[2], acted[-1])
        np.testing.assert_array_equal(value_args[3], gae_args[4])
    for (value_args, _, _), (args, _, _) in zip(values, acting(calls)[8::8]):  # the next rollout starts from the same
        assert all(np.array_equal(a, b) for a, b in zip(value_args[1:], args[1:4], strict=True))


def test_bootstrap_truncated_takes_the_state_before_the_reset(train, spy, monkeypatch):
    agent = random_agent()
    episode = torch.arange(6, dtype=torch.uint8).repeat_interleave(84 * 84).view(6, 1, 84, 84) * 20
    with torch.no_grad():
        value = agent.get_value(episode, agent.initial_state(1), no_dones(6))[-1].item()  # frames 0 to 5 in a row
        forgetful = agent.get_value(episode[-1:], agent.initial_state(1), no_dones(1)).item()
    assert abs(value - forgetful) > 0.01
    monkeypatch.setattr(ppo, "Agent", lambda *_: agent)
    gae_calls = spy(ppo, "compute_gae")
    train(env_id="Clock-v0", total_timesteps=32, bootstrap_truncated=True)
    wanted = np.zeros((8, 4))
    wanted[4] = 0.99 * value
    np.testing.assert_allclose(gae_calls[0][0][0], wanted, atol=1e-5)


# --------------------------------------------------------------------- lstm-4, lstm-5: minibatches and rebuilt states


@pytest.mark.parametrize("num_envs, num_minibatches", [(4, 2), (6, 3), (3, 1), (4, 4)])
def test_minibatches_are_whole_environments_in_time_order(train, spy, num_envs, num_minibatches):
    sizes = {"num_envs": num_envs, "num_minibatches": num_minibatches, "num_steps": 8, "update_epochs": 4}
    calls = spy(ppo.Agent, "get_action_and_value")
    train(total_timesteps=num_envs * 8, **sizes)
    rollout = [(args[1], args[3], result[0]) for args, result, _ in acting(calls)]
    minibatches = [args for args, _, in_training in calls if in_training]
    obs, dones, actions = (np.stack(x) for x in zip(*rollout))  # (T, N, …)
    orders = []
    for epoch in range(4):
        order = []
        for _, mb_obs, _, mb_dones, mb_actions in minibatches[epoch * num_minibatches :][:num_minibatches]:
            mb_obs, mb_actions = (x.unflatten(0, (8, -1)).numpy() for x in (mb_obs, mb_actions))
            for i in range(num_envs // num_minibatches):
                env = next((env for env in range(num_envs) if np.array_equal(obs[:, env], mb_obs[:, i])), None)
                assert env is not None
                assert np.array_equal(dones[:, env], mb_dones[:, i])
                assert np.array_equal(actions[:, env], mb_actions[:, i])
                order.append(env)
        assert sorted(order) == list(range(num_envs))
        orders.append(order)
    if num_envs > num_minibatches > 1:
        assert len({tuple(order) for order in orders}) > 1  # a new order each epoch


def test_ratio_is_1_in_the_first_minibatch_of_every_update(train, spy):
    losses, gae_calls = spy(ppo, "ppo_loss"), spy(ppo, "compute_gae")
    train(total_timesteps=32 * 6, learning_rate=1e-3, checkpoints=2)
    first, later = losses[::4], losses[3::4]
    assert len(first) == 6
    for (log_prob, _, value, old_log_probs, old_values, *_), _, _ in first:
        assert ((log_prob - old_log_probs).exp() - 1).abs().max() < 1e-4
        torch.testing.assert_close(value, old_values, rtol=0, atol=1e-4)
    assert all(((args[0] - args[3]).exp() - 1).abs().max() > 1e-3 for args, _, _ in later)
    assert all(0 < args[2][1:].mean() < 1 for args, _, _ in gae_calls)  # ends in the middle of every rollout
    assert any(not args[2][0].all() for args, _, _ in gae_calls)  # and episodes from one rollout to the next


# --------------------------------------------------------------------------------------------- Resume and evaluation


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_resumed_run_ends_as_if_nothing_had_happened(train, in_tmp_path, precision):
    options = {"bootstrap_truncated": True, "target_kl": 1.0, "anneal_clip": True, "precision": precision}
    whole = train(total_timesteps=128, checkpoints=2, **options)
    shutil.copytree(whole, "half")
    Path("half/checkpoints/4.pt").unlink()
    ppo.main(ppo.Args(resume="half"))
    assert_same_state(state(Path("half"), 4), state(whole, 4))
    assert rows(Path("half"), "metrics.csv", ["charts/SPS"]) == rows(whole, "metrics.csv", ["charts/SPS"])
    assert rows(Path("half"), "episodes.csv", ["seconds"]) == rows(whole, "episodes.csv", ["seconds"])


def test_evaluation_plays_with_the_state(spy):
    agent = random_agent(2)
    calls = spy(ppo.Agent, "get_action_and_value")
    args = ppo.Args(env_id="Cue-v0")
    results = list(ppo.evaluate(agent, args, 3, seed=1))
    assert [length for _, length in results] == [8] * 3
    for t, ((_, _, lstm_state, dones), _, _) in enumerate(calls):
        assert dones.item() == (t % 8 == 0)
        assert torch.equal(lstm_state, calls[t - 1][1][-1]) if t % 8 else not lstm_state.any()
    assert list(ppo.evaluate(agent, args, 3, seed=1)) == results


def test_a_memory_changes_what_evaluation_plays(monkeypatch):
    agent, args, get_hidden = random_agent(2), ppo.Args(env_id="Cue-v0"), ppo.Agent.get_hidden
    results = list(ppo.evaluate(agent, args, 10, seed=1))
    monkeypatch.setattr(
        ppo.Agent, "get_hidden", lambda self, obs, state, dones: get_hidden(self, obs, 0 * state, dones)
    )
    assert list(ppo.evaluate(agent, args, 10, seed=1)) != results


def test_evaluation_resets_the_state_at_a_lost_life(spy, monkeypatch):
    monkeypatch.setattr(gym.registry["FakeAtari-v0"], "kwargs", {"losses": (60, 120), "lives": 2})
    calls, steps = spy(ppo.Agent, "get_action_and_value"), spy(ppo.VectorEnv, "step")
    assert len(list(ppo.evaluate(random_agent(4), ppo.Args(env_id="FakeAtari-v0"), 1, seed=1))) == 1
    given = [args[3].item() for args, _, _ in calls]
    assert sum(given) == 2 and given == [1, *(result[2].item() for _, result, _ in steps[:-1])]


def test_as_typed_it_trains_on_a_game_and_evaluates(in_tmp_path, capsys):
    options = TINY | {"env_id": "PongNoFrameskip-v4", "total_timesteps": 32, "precision": "bf16"}
    _, stderr = run(*words(**options), "--vectorization", "async", script=SCRIPT)
    assert stderr == "" and list(in_tmp_path.glob("runs/PongNoFrameskip-v4__ppo_atari_lstm__1__*/checkpoints/1.pt"))
    folder = ppo.main(ppo.Args(**TINY | {"env_id": "environments_atari:Cue-v0"}))
    typed = ["--evaluate", str(folder), "--env-id", "environments_atari:Cue-v0", "--episodes", "2", "--capture-video"]
    type_here(*typed, script=SCRIPT)
    stdout, stderr = capsys.readouterr()
    assert stderr == "" and "over 2 episodes" in stdout
    assert list(folder.glob("checkpoints/*.mp4"))


# ----------------------------------------------------------------------------------------------------------- Wrong use


@pytest.mark.parametrize(("num_envs", "num_minibatches"), [(6, 4), (8, 16), (7, 2)])
def test_environments_that_do_not_divide_into_minibatches(in_tmp_path, capsys, num_envs, num_minibatches):
    with pytest.raises(SystemExit) as stop:
        type_here(*words(num_envs=num_envs, num_minibatches=num_minibatches), script=SCRIPT)
    line = error_line(capsys.readouterr().err, ppo)
    assert stop.value.code == 2 and "whole environments" in line
    assert f"--num-envs {num_envs} must be a multiple of --num-minibatches {num_minibatches}" in line
    assert not list(in_tmp_path.iterdir())


def test_a_checkpoint_of_the_parent(train, capsys):
    folder = train(total_timesteps=32)
    with pytest.raises(SystemExit):
        ppo_atari.main(ppo_atari.Args(evaluate=str(folder)))
    assert "was written by ppo_atari_lstm.py; use that script" in error_line(capsys.readouterr().err, ppo_atari)


# ------------------------------------------------------------------------------------------------------------ Learning


def test_it_learns_what_only_a_memory_solves(in_tmp_path):
    sizes = {"num_envs": 16, "num_steps": 16, "total_timesteps": 4096, "checkpoints": 1}
    folder = ppo.main(ppo.Args(env_id="Cue-v0", learning_rate=2e-3, num_threads=1, cuda=False, **sizes))
    returns = [float(row["episodic_return"]) for row in rows(folder, "episodes.csv")]
    assert np.mean(returns[-128:]) > 3.4  # 4 is perfect, chance gives 0


def test_the_parent_does_not_see_what_it_would_need():
    """The four frames that ppo_atari.py stacks, where Cue pays: the same after either cue."""
    envs = ppo_atari.VectorEnv(ppo_atari.Args(env_id="Cue-v0", num_envs=8))
    cues, seen = envs.reset(list(range(8))).copy(), []
    for _ in range(7):
        seen.append(envs.step(np.zeros(8, int))[0].copy())
    assert len({cue.tobytes() for cue in cues}) == 2 and np.any(seen[2]) and not np.any(seen[3:])
