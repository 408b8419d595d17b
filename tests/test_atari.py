"""What ppo_atari.py adds to ppo.py: the nine details, against games whose frames, rewards and lives are known and
against the emulator; bytes as storage, bfloat16, games in processes of their own."""

import contextlib
import gc
import json
import math
import os
import signal
import sys
import time
from itertools import pairwise
from pathlib import Path

import ale_py
import cv2
import environments_atari
import gymnasium as gym
import numpy as np
import ppo_atari as ppo
import pytest
import torch
import torch.nn as nn
from helpers import TESTS, assert_same_state, error_line, freed, rows, run, start, state, type_here, words

SCRIPT = TESTS.parent / "cleanrl" / "ppo_atari.py"
BREAKOUT, PONG = "BreakoutNoFrameskip-v4", "PongNoFrameskip-v4"
SMALL = {
    "env_id": "Noise-v0", "total_timesteps": 144, "num_envs": 3, "num_steps": 8, "num_minibatches": 2,
    "update_epochs": 1, "checkpoints": 3, "num_threads": 1, "cuda": False,
}  # fmt: skip


def train(**arguments):
    return ppo.main(ppo.Args(**SMALL | arguments))


def vector(env_id="FakeAtari-v0", vectorization="sync"):
    return ppo.VectorEnv(ppo.Args(env_id=env_id, vectorization=vectorization))


@pytest.fixture
def fake(monkeypatch):
    """Makes FakeAtari games, wrapped by make_env; the last one made is `fake.game`."""

    def make(**options):
        gym.registry["FakeAtari-v0"].kwargs = options
        env = ppo.make_env("FakeAtari-v0")
        make.game = env.unwrapped
        return env

    yield make
    gym.registry["FakeAtari-v0"].kwargs = {}


def opening(log):
    """How many no-ops a raw log begins with, and the rest of it."""
    noops = next((i for i, action in enumerate(log) if action), len(log))
    return noops, log[noops:]


def play(env, actions):
    """Steps the environment as VectorEnv does, resetting it at an end; the steps' results, with the reset's info."""
    results = []
    for action in actions:
        observation, reward, terminated, truncated, info = env.step(action)
        reset_info = env.reset()[1] if terminated or truncated else {}
        results.append((observation, reward, terminated, truncated, info | reset_info))
    return results


# [atari-1]
def test_a_game_begins_with_1_to_30_noops(fake):
    env = fake()
    counts = []
    for seed in range(300):
        env.reset(seed=seed)
        counts.append(opening(fake.game.log)[0])
    assert min(counts) == 1 and max(counts) == 30
    assert len(set(counts)) == 30
    first = [env.reset(seed=5) and opening(fake.game.log)[0] for _ in range(3)]
    assert len(set(first)) == 1  # the seed decides


# [atari-2]
def test_an_action_is_played_for_4_frames_whose_rewards_add_up(fake):
    env = fake(pay=lambda k: 10.0**-k if k > 40 else 0.0, fire=False, screen=lambda k: 200 * (k % 2))
    env.reset(seed=0)
    while len(fake.game.log) < 40:
        env.step(2)
    before = len(fake.game.log)
    observation, reward, *_ = env.step(3)
    assert fake.game.log[before:] == [3, 3, 3, 3]
    assert reward == pytest.approx(sum(10.0**-k for k in range(before + 1, before + 5) if k > 40))
    assert (observation == 200).all()  # frames flicker, the maximum of the last two doesn't


def test_the_maximum_is_that_of_the_last_two_of_the_4_frames(fake):
    for brightest in range(1, 5):
        env = fake(fire=False)
        env.reset(seed=0)
        start = len(fake.game.log)
        fake.game.screen = lambda k, lit=start + brightest: 250 if k == lit else 10
        assert (env.step(2)[0] == (250 if brightest >= 3 else 10)).all()


# [atari-3]
def test_a_lost_life_ends_the_episode_and_the_game_goes_on_after_one_noop(fake):
    env = fake(losses=(100, 140, 180), lives=3, fire=False, pay=lambda k: float(k in (100, 140, 180)))
    env.reset(seed=3)
    results = play(env, [2] * 45)
    ends = [i for i, result in enumerate(results) if result[2]]
    games = fake.game.games
    assert len(games) == 2  # reset once, at the game's own end
    assert [game for *_, info in results if (game := info.get("game_return"))] == [3.0]  # the whole game's return
    noops, played = opening(games[0])
    length = math.ceil((100 - noops) / 4)  # steps of the first life
    assert ends[0] == length - 1
    assert played[4 * length : 4 * length + 8] == [0, 0, 0, 0, 2, 2, 2, 2]  # one no-op, which is 4 frames too
    assert len(ends) == 3
    assert [result[4]["game_length"] for result in results if "game_length" in result[4]] == [
        math.ceil((180 - noops) / 4)
    ]


def test_no_episode_ends_while_the_game_shows_no_life_before_its_end(fake):
    env = fake(losses=(100, 140), lives=2, linger=40, fire=False)
    env.reset(seed=0)
    results = play(env, [2] * 45)
    ends = [i for i, result in enumerate(results) if result[2]]
    noops, _ = opening(fake.game.games[0])
    assert ends == [math.ceil((100 - noops) / 4) - 1, math.ceil((180 - noops) / 4) - 2]  # the no-op was a step too


def test_an_extra_life_ends_nothing(fake):
    env = fake(lives=2, fire=False)
    env.reset(seed=0)
    fake.game.lives = 3
    assert not env.step(2)[2]
    fake.game.lives = 2
    assert env.step(2)[2]


def test_a_seeded_reset_starts_a_new_game_in_the_middle_of_one(fake):
    env = fake(losses=(100,), lives=2)
    env.reset(seed=0)
    play(env, [2] * 30)
    assert fake.game.lives == 1
    env.reset(seed=1)
    assert fake.game.lives == 2 and len(fake.game.games) == 2


# [atari-4]
def test_every_episode_of_a_game_with_fire_begins_with_it(fake):
    env = fake(losses=(100, 140), lives=2)
    env.reset(seed=0)
    assert opening(fake.game.log)[1] == [1, 1, 1, 1, 2, 2, 2, 2]
    play(env, [3] * 40)
    first, second = fake.game.games
    assert opening(second)[1][:12] == [1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3]
    lost = next(i for i, (a, b) in enumerate(pairwise(first)) if (a, b) == (3, 0)) + 1
    assert first[lost : lost + 12] == [0] * 4 + [1] * 4 + [2] * 4


def test_a_game_without_fire_is_left_alone(fake):
    env = fake(fire=False)
    env.reset(seed=0)
    assert opening(fake.game.log)[1] == []


OPENED = [1, 1, 1, 1, 2, 2, 2, 2]


@pytest.mark.parametrize(("end", "opened_by"), [(104, OPENED), (108, OPENED[4:]), (112, OPENED)])
def test_a_game_that_ends_while_it_is_opened_is_reported_and_started_anew(fake, end, opened_by):
    """The second life is lost by the no-op; by FIRE, after which openai/baselines goes on with action 2; or by that."""
    env = fake(losses=(100, end), lives=2, pay=lambda k: float(k == end))
    env.reset(seed=0)
    results = play(env, [3] * 30)
    (game,) = [info for *_, info in results if "game_return" in info]
    assert game["game_return"] == 1.0
    assert opening(fake.game.log)[1][: len(opened_by) + 4] == [*opened_by, 3, 3, 3, 3]
    assert len(fake.game.games) == 2
    envs = vector()
    envs.reset([0])
    assert [ended for _ in results for ended in envs.step([3])[4]] == [(1.0, game["game_length"])]


def test_a_game_that_the_last_action_of_its_opening_ends_is_opened_anew(fake):
    env = fake(losses=(100, 112), lives=2)
    env.reset(seed=0)
    play(env, [3] * 30)
    first, second = fake.game.games
    assert len(first) == 112 and opening(second)[1][:12] == [1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3]


# [atari-5]
def test_frames_are_84_by_84_means_of_the_area(fake):
    picture = np.random.default_rng(0).integers(0, 256, (210, 160)).astype(np.uint8)
    env = fake(screen=lambda k: picture)
    observation, _ = env.reset(seed=0)
    assert observation.shape == (84, 84) and observation.dtype == np.uint8

    def shares(pixels):
        edges, cells = np.arange(85) * pixels / 84, np.arange(pixels)
        overlap = np.minimum(edges[1:, None], cells + 1) - np.maximum(edges[:-1, None], cells)
        return overlap.clip(0) * 84 / pixels

    assert np.abs(shares(210) @ picture @ shares(160).T - observation).max() < 1


# [atari-6]
def test_training_sees_the_sign_of_the_reward_and_the_log_the_whole_games_return(fake):
    fake(losses=(200, 400), lives=2, pay=lambda k: 7.0 if k % 40 == 0 else -0.25 * (k % 40 == 20 and k > 40))
    envs = vector()
    envs.reset([1, 2])
    seen, games = [], []
    while len(games) < 2:
        _, rewards, _, _, ended = envs.step([3, 3])
        seen.append(rewards)
        games += ended
    assert set(np.unique(seen)) == {-1.0, 0.0, 1.0}
    assert [game[0] for game in games] == [10 * 7.0 - 9 * 0.25] * 2
    noops = [opening(game.games[0])[0] for game in environments_atari.FakeAtari.made[-2:]]
    assert sorted(length for _, length in games) == sorted(math.ceil((400 - n) / 4) for n in noops)


# [atari-7]
def test_an_observation_is_the_last_4_frames_and_the_first_frame_4_times_at_an_episodes_start(fake):
    fake(fire=False, losses=(100, 1000), lives=2)
    envs = vector()
    first = envs.reset([0])[0, :, 0, 0].tolist()
    assert first == [first[0]] * 4
    expected = first
    for _ in range(30):
        observation, _, dones, _, _ = envs.step([2])
        newest = int(observation[0, 3, 0, 0])
        expected = [newest] * 4 if dones[0] else [*expected[1:], newest]
        assert (observation[0] == np.array(expected)[:, None, None]).all()
        if dones[0]:
            assert newest == expected[0] and len(environments_atari.FakeAtari.made[-1].games) == 1
            break
    else:
        pytest.fail("no life was lost")


def test_the_last_observation_at_a_time_limit_is_the_stack_that_the_limit_cut(fake):
    fake(fire=False, limit=100)
    envs = vector()
    frames = [envs.reset([0, 1])[:, 3, 0, 0].tolist()]
    truncated = {}
    while not truncated:
        observations, _, dones, truncated, games = envs.step([2, 2])
        frames.append(observations[:, 3, 0, 0].tolist())
    for i, last in truncated.items():
        assert dones[i] and len(games) == len(truncated)
        before = [frame[i] for frame in frames[-4:-1]]
        assert last[:3, 0, 0].tolist() == before
        assert last[3, 0, 0] == environments_atari.FakeAtari.made[i - 2].screen(
            before[-1] + 4 if before[-1] < 96 else 98
        )


def test_a_life_lost_at_the_time_limit_is_a_true_end(fake):
    fake(fire=False, limit=100, losses=(100, 1000), lives=2)
    envs, games = vector(), []
    envs.reset([0])
    while not games:
        _, _, dones, truncated, games = envs.step([2])
    assert dones[0] and not truncated


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_the_last_observation_at_a_time_limit_outlives_a_frame_that_the_environment_reuses(vectorization):
    """Noise draws every frame, the first of the next episode too, into the same array."""
    game, envs, cuts = gym.make("Noise-v0", disable_env_checker=True), vector("Noise-v0", vectorization), 0
    frame, _ = game.reset(seed=4)
    assert (envs.reset([4, 5])[0, 3] == frame).all()
    for _ in range(40):
        frame, _, terminated, truncated, _ = game.step(0)
        observations, _, dones, last, _ = envs.step([0, 0])
        assert dones[0] == (terminated or truncated) and (0 in last) == (truncated and not terminated)
        if 0 in last:
            assert (last[0][3] == frame).all()
            cuts += 1
        if dones[0]:
            frame, _ = game.reset()
        assert (observations[0, 3] == frame).all()
    envs.close()
    assert cuts >= 2


# [atari-8]
@pytest.mark.parametrize(("num_actions", "parameters"), [(4, 1_686_693), (6, 1_687_719), (9, 1_689_258)])
def test_the_network_is_natures(num_actions, parameters):
    agent = ppo.Agent(num_actions)
    assert sum(x.numel() for x in agent.parameters()) == parameters
    layers = [layer for layer in agent.network if not isinstance(layer, nn.ReLU | nn.Flatten)]
    shapes = [(x.out_channels, x.kernel_size[0], x.stride[0]) for x in layers[:3]]
    assert shapes == [(32, 8, 4), (64, 4, 2), (64, 3, 1)]
    gains = {**dict.fromkeys(layers, math.sqrt(2)), agent.actor: 0.01, agent.critic: 1.0}
    for layer, gain in gains.items():
        w = layer.weight.detach().flatten(1)
        w = w if w.shape[0] <= w.shape[1] else w.T
        assert torch.allclose(w @ w.T, gain**2 * torch.eye(len(w)), atol=1e-5)
        assert not layer.bias.any()
    assert (agent.get_hidden(torch.randint(0, 256, (5, 4, 84, 84), dtype=torch.uint8)) >= 0).all()  # a ReLU is last


# [atari-9]
def test_the_network_sees_frames_between_0_and_1(monkeypatch):
    agent, seen = ppo.Agent(4), []
    agent.network[0].register_forward_pre_hook(lambda layer, inputs: seen.append(inputs[0]))
    agent.get_value(torch.tensor([0, 51, 255], dtype=torch.uint8).view(3, 1, 1, 1).expand(3, 4, 84, 84))
    assert seen[0].amax((1, 2, 3)).tolist() == pytest.approx([0, 0.2, 1.0])


def test_the_rollout_is_kept_as_bytes_a_quarter_of_floats(in_tmp_path, monkeypatch):
    sizes, original = set(), ppo.Agent.get_action_and_value

    def spied(agent, obs, *arguments, **options):
        if options.get("noise") is not None:  # in a rollout
            sizes.add(obs.untyped_storage().nbytes())  # of all of the rollout, which obs is a view of
        return original(agent, obs, *arguments, **options)

    monkeypatch.setattr(ppo.Agent, "get_action_and_value", spied)
    train()
    assert sizes == {8 * 3 * 4 * 84 * 84}  # one byte a pixel


# The emulator
def independent_frames(game, seed, actions):
    """Frames, rewards and lives of the same game, from ale-py's raw interface alone."""
    env = gym.make(game, disable_env_checker=True).unwrapped
    env.reset(seed=seed)
    ale, table = env.ale, env.ale.getMinimalActionSet()
    for _ in range(env.np_random.integers(1, 31)):
        ale.act(table[0])

    def screen():
        return ale.getScreenGrayscale()

    results = [(cv2.resize(screen(), (84, 84), interpolation=cv2.INTER_AREA), 0.0, ale.lives())]
    for action in actions:
        total, shots = 0.0, []
        for _ in range(4):
            total += ale.act(table[action])
            shots.append(screen())
        frame = np.maximum(shots[-1], shots[-2])
        results.append((cv2.resize(frame, (84, 84), interpolation=cv2.INTER_AREA), total, ale.lives()))
    return results


@pytest.mark.parametrize("game", [BREAKOUT, PONG, "MsPacmanNoFrameskip-v4"])
def test_frames_and_rewards_are_the_emulators(game):
    env = ppo.make_env(game)
    actions = np.random.default_rng(0).integers(env.action_space.n, size=60).tolist()
    expected = independent_frames(game, 7, [*env.opening, *actions])
    frame, _ = env.reset(seed=7)
    start = len(env.opening)
    assert (frame == expected[start][0]).all()
    for action, (frame, reward, lives) in zip(actions, expected[start + 1 :], strict=True):
        observation, paid, terminated, _, _ = env.step(action)
        assert (observation == frame).all() and paid == reward and env.lives() == lives
        if terminated:
            break


def test_after_a_lost_life_breakout_goes_on_with_one_life_less():
    env = ppo.make_env(BREAKOUT)
    env.reset(seed=0)
    assert env.opening == [1, 2]
    lives, scores, game = [env.lives()], [0.0], {}
    while "game_return" not in game:
        _, reward, terminated, truncated, game = env.step(int(env.np_random.integers(4)))
        scores[-1] += reward
        assert not truncated
        if terminated and "game_return" not in game:
            before = env.env.unwrapped.ale.getEpisodeFrameNumber()
            env.reset()
            lives.append(env.lives())
            assert env.env.unwrapped.ale.getEpisodeFrameNumber() == before + 12  # no-op, FIRE and 2, of 4 frames each
            scores.append(0.0)
    assert lives == [5, 4, 3, 2, 1]
    assert game["game_return"] == sum(scores)


@pytest.mark.parametrize("env_id", ["ALE/Breakout-v5", "ale_py:ALE/Breakout"])
def test_version_5_of_a_game_skips_frames_once_and_reports_its_sticky_actions(in_tmp_path, capsys, env_id):
    env = ppo.make_env(env_id)
    env.reset(seed=0)
    ale = env.unwrapped.ale
    before = ale.getEpisodeFrameNumber()
    env.step(0)
    assert ale.getEpisodeFrameNumber() == before + 4
    assert ale.getFloat("repeat_action_probability") == 0.25
    train(env_id=env_id, total_timesteps=24, checkpoints=1)
    assert f"{env_id}: sticky actions" in capsys.readouterr().out
    train(env_id=BREAKOUT, total_timesteps=24, checkpoints=1)
    assert "sticky" not in capsys.readouterr().out


def test_games_in_processes_of_their_own_play_as_in_one():
    results = {}
    for vectorization in ("sync", "async"):
        envs = vector("Noise-v0", vectorization)
        results[vectorization] = [envs.reset([4, 5, 6]).copy()]
        for _ in range(40):
            results[vectorization].append(
                [np.copy(x) if isinstance(x, np.ndarray) else x for x in envs.step([0, 1, 2])]
            )
        envs.close()
    assert (results["sync"][0] == results["async"][0]).all()
    for one, other in zip(results["sync"][1:], results["async"][1:], strict=True):
        assert all((a == b).all() for a, b in zip(one[:3], other[:3]))
        assert one[3].keys() == other[3].keys() and all((one[3][i] == other[3][i]).all() for i in one[3])
        assert one[4] == other[4]
    assert sum(len(step[4]) for step in results["sync"][1:]) > 10


def test_processes_end_even_in_the_middle_of_a_step(monkeypatch):
    envs, complaints = vector("Noise-v0", "async"), []
    monkeypatch.setattr(sys, "unraisablehook", complaints.append)
    envs.reset([4, 5])
    processes = envs.envs.processes
    envs.envs.step_async(np.zeros(2, int))  # a signal stops the wait for its answers
    envs.close()
    assert not any(process.is_alive() for process in processes)
    del envs
    gc.collect()
    assert not complaints


# Training
@pytest.mark.parametrize("options", [{}, {"bootstrap_truncated": True, "vectorization": "async", "precision": "bf16"}])
def test_a_resumed_run_ends_as_an_undisturbed_one_to_the_bit(in_tmp_path, options):
    undisturbed = train(**options)
    folder = train(seed=1, **options)
    for last in (6, 4):
        (folder / "checkpoints" / f"{last}.pt").unlink()
    resumed = ppo.main(ppo.Args(resume=str(folder)))
    assert resumed == folder
    assert_same_state(state(folder, 6), state(undisturbed, 6))
    assert rows(folder, "episodes.csv", ["seconds"]) == rows(undisturbed, "episodes.csv", ["seconds"])
    assert rows(folder, "metrics.csv", ["charts/SPS"]) == rows(undisturbed, "metrics.csv", ["charts/SPS"])


def test_the_ratio_is_1_in_the_first_minibatch_of_every_update(in_tmp_path, monkeypatch):
    ratios, original = [], ppo.ppo_loss

    def spied(log_prob, entropy, value, old_log_probs, *rest):
        ratios.append((log_prob - old_log_probs).exp().detach())
        return original(log_prob, entropy, value, old_log_probs, *rest)

    monkeypatch.setattr(ppo, "ppo_loss", spied)
    train(learning_rate=1e-2)
    assert len(ratios) == 12
    assert all((ratio - 1).abs().max() < 1e-4 for ratio in ratios[::2])
    assert all((ratio - 1).abs().max() > 1e-4 for ratio in ratios[1::2])


def test_actions_are_drawn_from_the_softmax():
    torch.manual_seed(0)
    agent = ppo.Agent(3)
    agent.actor.bias.data = torch.tensor([0.0, 1.0, 2.0])
    agent.actor.weight.data.zero_()
    obs = torch.zeros((1, 4, 84, 84), dtype=torch.uint8)
    hidden = agent.get_hidden(obs).expand(4000, -1)
    agent.get_hidden = lambda obs: hidden  # the convolutions once, not for every draw
    gumbel = torch.from_numpy(np.random.default_rng(0).gumbel(size=(4000, 3)).astype(np.float32))
    for noise in (None, gumbel):
        action, log_prob, entropy, _ = agent.get_action_and_value(obs, noise=noise)
        p = torch.tensor([0.0, 1.0, 2.0]).softmax(0)
        assert (action.bincount(minlength=3) / 4000).tolist() == pytest.approx(p.tolist(), abs=0.03)
        assert torch.allclose(log_prob, p.log()[action], atol=1e-6)
        assert torch.allclose(entropy, -(p * p.log()).sum(), atol=1e-6)


def test_bf16_computes_the_convolutions_in_bfloat16_and_the_rest_in_float32():
    torch.manual_seed(0)
    full, half = ppo.Agent(6), ppo.Agent(6, "bf16")
    half.load_state_dict(full.state_dict())
    seen = []
    half.network.register_forward_hook(lambda layer, inputs, output: seen.append(output.dtype))
    obs = torch.randint(0, 256, (64, 4, 84, 84), dtype=torch.uint8)
    action = torch.arange(64) % 6
    results = [agent.get_action_and_value(obs, action) for agent in (full, half)]
    assert seen == [torch.bfloat16]
    for one, other in zip(*results):
        assert one.dtype == other.dtype
    for i in (1, 2, 3):
        assert torch.allclose(results[0][i], results[1][i], atol=0.02) and not torch.equal(results[0][3], results[1][3])


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_rollouts_act_by_the_weights_of_now_cast_once_an_update(in_tmp_path, monkeypatch, precision):
    act, trained, seen = ppo.Agent.get_action_and_value, [], []

    def spy(agent, obs, action=None, noise=None):
        result = act(agent, obs, action, noise)
        if noise is not None:
            seen.append([parameter.clone() for parameter in agent.parameters()])
            assert len(trained) == 1 and agent is not trained[0]
            for own, of_training in zip(agent.parameters(), trained[0].parameters()):
                assert torch.equal(own, of_training.to(own.dtype)) and not own.requires_grad
            half = agent.network[0].weight.dtype == torch.bfloat16
            assert half == (precision == "bf16") and agent.critic.weight.dtype == torch.float32
            with torch.no_grad():  # as by the weights themselves, which autocast casts in every call
                for one, other in zip(result, act(trained[0], obs, noise=noise)):
                    assert torch.equal(one, other)
        return result

    def keep(run, model, **kept):
        trained.append(model)
        return original(run, model=model, **kept)

    original = ppo.Run.keep
    monkeypatch.setattr(ppo.Agent, "get_action_and_value", spy)
    monkeypatch.setattr(ppo.Run, "keep", keep)
    train(precision=precision)
    assert len(seen) == 6 * 8 and not torch.equal(seen[0][0], seen[-1][0])


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc is Linux's")
def test_memory_that_is_freed_stays_with_the_process(in_tmp_path):
    assert freed(ppo, **SMALL | {"env_id": "environments_atari:Noise-v0", "total_timesteps": 24}) < 2**26


def test_evaluation_plays_whole_games_and_repeats_them(fake):
    fake(losses=(100, 140, 180), lives=3, pay=lambda k: 5.0 * (k % 60 == 0))
    agent = ppo.Agent(4)
    args = ppo.Args(env_id="FakeAtari-v0", vectorization="async")  # which one game at a time has no use for
    games = list(ppo.evaluate(agent, args, 3, seed=1))
    assert [game[0] for game in games] == [15.0] * 3  # unclipped, over all three lives
    assert [len(game.games) for game in environments_atari.FakeAtari.made[-3:]] == [2] * 3  # and one after the end
    assert games == list(ppo.evaluate(agent, args, 3, seed=1))


# The command line
def test_as_typed_it_trains_records_and_evaluates(in_tmp_path, capsys):
    options = SMALL | {"env_id": BREAKOUT, "num_envs": 2, "total_timesteps": 32, "checkpoints": 2}
    stdout, stderr = run(*words(**options), "--vectorization", "async", script=SCRIPT)
    (folder,) = in_tmp_path.glob("runs/BreakoutNoFrameskip-v4__ppo_atari__1__*")
    assert stderr == "" and "100%" in stdout and "sticky" not in stdout
    config = json.loads((folder / "config.json").read_text())
    assert config["versions"]["ale-py"] == ale_py.__version__
    type_here("--evaluate", folder, "--episodes", 1, "--capture-video", script=SCRIPT)
    stdout, stderr = capsys.readouterr()
    assert stderr == "" and "episode 0: return " in stdout
    (video,) = folder.glob("checkpoints/*.mp4")
    capture = cv2.VideoCapture(str(video))
    frames = int(capture.get(cv2.CAP_PROP_FRAME_COUNT))
    length = int(stdout.split("length ")[1].split()[0])
    assert abs(frames - length) <= 20 and capture.get(cv2.CAP_PROP_FPS) == 15
    whole, picture = capture.read()
    assert whole and picture.shape == (210, 160, 3) and picture.std() > 1  # the game itself, in colour


def start_in_a_group(updates, *typed):
    """Types a command line whose process gets its signals with all its workers, as from a terminal, `timeout`, torchrun
    or Slurm. Returns once the only run has logged so many updates, with the run folder."""
    process = start(*typed, script=SCRIPT, start_new_session=True)
    while not any(file.read_text().count("\n") > updates for file in Path().glob("runs/*/metrics.csv")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    return process, *Path().glob("runs/*")


def wait_for_workers(group):
    """Returns once no process of the group is left, but for those that have ended and nobody has waited for."""
    for _ in range(200):
        stats = []
        for file in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):  # of a process that ends meanwhile
                stats.append(file.read_text().rpartition(")")[2].split())
        if not any(int(process_group) == group and state != "Z" for state, _, process_group, *_ in stats):
            return
        time.sleep(0.05)
    pytest.fail("a worker is left")


ASYNC = SMALL | {"env_id": "environments_atari:Noise-v0", "vectorization": "async"}


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stop_signal_to_all_processes_ends_the_run_with_a_checkpoint(in_tmp_path, number, status):
    process, folder = start_in_a_group(2, *words(**ASYNC | {"total_timesteps": 10_008, "checkpoints": 1}))
    os.killpg(process.pid, number)
    stdout, stderr = process.communicate(timeout=60)
    assert (process.returncode, stderr) == (status, "\nstopping after this update\n")
    assert "go on with: python" in stdout
    (checkpoint,) = (folder / "checkpoints").iterdir()
    assert int(checkpoint.stem) == len(rows(folder, "metrics.csv"))
    wait_for_workers(process.pid)


def test_a_killed_run_leaves_no_worker_and_ends_as_an_undisturbed_one_to_the_bit(in_tmp_path):
    options = {"total_timesteps": 480, "checkpoints": 5, "bootstrap_truncated": True}
    undisturbed = train(**ASYNC | options | {"vectorization": "sync"}).rename("undisturbed")
    process, folder = start_in_a_group(5, *words(**ASYNC | options))
    process.kill()
    assert process.wait() == -signal.SIGKILL
    wait_for_workers(process.pid)
    run("--resume", str(folder), script=SCRIPT)
    assert_same_state(state(folder, 20), state(undisturbed, 20))
    assert rows(folder, "episodes.csv", ["seconds"]) == rows(undisturbed, "episodes.csv", ["seconds"])


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("--env-id BreakoutNoFrameskop-v4", "Did you mean: `BreakoutNoFrameskip`?"),
        ("--env-id CartPole-v1", "not Box(0, 255, (84, 84), uint8); use an Atari game, or ppo.py"),
        ("--num-envs 3 --num-minibatches 5", "must be a multiple of --num-minibatches 5"),
    ],
)
def test_a_mistake_gets_one_line_and_creates_nothing(in_tmp_path, capsys, typed, said):
    with pytest.raises(SystemExit) as stop:
        type_here(*typed.split(), script=SCRIPT)
    assert stop.value.code == 2 and said in error_line(capsys.readouterr().err, ppo)
    assert not list(in_tmp_path.iterdir())


def test_without_ale_py_one_line_names_it(in_tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "ale_py", None)
    with pytest.raises(SystemExit) as stop:
        train(env_id=BREAKOUT)
    assert stop.value.code == 2 and "ale_py" in error_line(capsys.readouterr().err, ppo)
    assert not list(in_tmp_path.iterdir())


@pytest.mark.parametrize("typed", ["--precision fp8", "--vectorization threads"])
def test_choices_are_checked(in_tmp_path, capsys, typed):
    with pytest.raises(SystemExit) as stop:
        type_here(*typed.split(), script=SCRIPT)
    assert stop.value.code == 2 and typed.split()[1] in capsys.readouterr().err
    assert not list(in_tmp_path.iterdir())


def test_it_learns_to_catch_a_ball(in_tmp_path):
    sizes = {"num_envs": 16, "num_steps": 32, "num_minibatches": 4, "update_epochs": 2, "total_timesteps": 8192}
    folder = train(env_id="Catch-v0", learning_rate=2e-3, checkpoints=1, **sizes)
    returns = [float(row["episodic_return"]) for row in rows(folder, "episodes.csv")]
    assert np.mean(returns[:200]) < -1  # chance catches about one ball in four
    assert np.mean(returns[-200:]) > -0.5  # six standard errors above it


def test_the_picture_of_the_game_is_upright(fake):
    """A frame of Breakout as the network sees it: the score at the top, dark; the walls at the sides, bright."""
    env = ppo.make_env(BREAKOUT)
    frame, _ = env.reset(seed=0)
    assert frame[30:80, 0:3].mean() > 100 > frame[45:70, 10:70].mean()
