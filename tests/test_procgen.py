"""What ppo_procgen.py adds to ppo_atari.py: Procgen's games and levels, scaled rewards, IMPALA's network, evaluation on
levels that training never saw."""

import itertools
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import ppo_procgen as ppo
import pytest
import torch
import torch.nn.functional as F
from helpers import assert_same_state, checkpoints, error_line, freed, rows, run, scalars, state, tree, type_here, words

procgen = pytest.importorskip(
    "procgen",
    reason="Procgen is not installed: pip install --no-deps -r requirements-procgen.txt, on Python 3.11 or 3.12",
    exc_type=ImportError,
)

SCRIPT = Path(ppo.__file__)
CARTPOLE = SCRIPT.parents[1] / "benchmark" / "agents" / "cartpole"
GAMES = [
    "bigfish", "bossfight", "caveflyer", "chaser", "climber", "coinrun", "dodgeball", "fruitbot",
    "heist", "jumper", "leaper", "maze", "miner", "ninja", "plunder", "starpilot",
]  # fmt: skip
# 6 updates of 48 steps, checkpoints after 2, 4 and 6; on this level of jumper an episode of a random agent has 6 steps
SMALL = {
    "env_id": "jumper", "num_levels": 1, "total_timesteps": 288, "num_envs": 3, "num_steps": 16, "num_minibatches": 2,
    "update_epochs": 1, "checkpoints": 3, "num_threads": 1, "cuda": False, "malloc_tuning": False,
}  # fmt: skip


def train(**arguments):
    return ppo.main(ppo.Args(**SMALL | arguments))


def make_envs(game="jumper", mode="easy", threads=1, **levels):
    return ppo.VectorEnv(ppo.Args(env_id=game, distribution_mode=mode, num_threads=threads, **levels))


def spy(monkeypatch, owner, name):
    """Records the arguments and the result of every call of owner.name."""
    calls, original = [], getattr(owner, name)

    def wrapper(*arguments, **options):
        result = original(*arguments, **options)
        calls.append((arguments, result))
        return result

    monkeypatch.setattr(owner, name, wrapper)
    return calls


def frames(envs, seed, steps=20, n=3):
    """All frames of some random play."""
    rng = np.random.default_rng(0)
    return np.array([envs.reset([seed] * n), *(envs.step(rng.integers(0, 15, n))[0] for _ in range(steps))])


def same_statistics(one, other):
    one, other = one["statistics"]["returns"], other["statistics"]["returns"]
    return all(torch.equal(one[name], other[name]) for name in ("mean", "var")) and one["count"] == other["count"]


# The games


@pytest.mark.parametrize("game", GAMES)
def test_every_game_steps_starts_anew_and_reports_its_episodes(game):
    n, rng, rewards, reported = 32, np.random.default_rng(0), [[] for _ in range(32)], []
    envs = make_envs(game, threads=2)
    raw = procgen.ProcgenGym3Env(num=n, env_name=game, distribution_mode="easy", rand_seed=5, num_threads=2)
    assert np.array_equal(envs.reset([10] * n), raw.observe()[1]["rgb"])  # the first seed, without its last bit
    for _ in range(1000):
        actions = rng.integers(0, 15, n)
        observations, paid, dones, truncated_obs, episodes = envs.step(actions)
        raw.act(actions)
        raw_rewards, raw_observations, first = raw.observe()
        assert observations.shape == (n, *envs.observation_space.shape) == (n, 64, 64, 3) and not truncated_obs
        assert observations.dtype == envs.observation_space.dtype == np.uint8
        assert np.array_equal(observations, raw_observations["rgb"])  # of a next episode where one ended
        assert np.array_equal(paid, raw_rewards) and np.array_equal(dones, first)
        for i in range(n):
            rewards[i].append(float(raw_rewards[i]))
        ended = [rewards[i] for i in np.flatnonzero(first)]
        assert episodes == [(pytest.approx(sum(episode), abs=1e-9), len(episode)) for episode in ended]
        for i in np.flatnonzero(first):
            rewards[i] = []
        reported += episodes
        if len(reported) >= 4:
            break
    assert len(reported) >= 4


def test_the_script_knows_the_library_s_games_modes_and_actions(in_tmp_path):
    assert ppo.load_procgen().ENV_NAMES == GAMES
    assert list(ppo.load_procgen().EXPLORATION_LEVEL_SEEDS.keys() ^ set(ppo.MODES["exploration"])) == []
    modes = ppo.load_procgen().DISTRIBUTION_MODE_DICT
    assert ppo.MODES.keys() == modes.keys() - {"easy", "hard"}
    assert modes.keys() == set(ppo.Args.__annotations__["distribution_mode"].__args__)
    envs = make_envs()
    envs.reset([0])
    assert envs.envs.ac_space.eltype.n == envs.action_space.n == 15
    for mode in modes:
        for game in ppo.MODES.get(mode, GAMES[:1]):
            frames(make_envs(game, mode=mode), seed=1, steps=2)  # Procgen would end this process at a wrong pair


def test_the_seed_seeds():
    one = frames(make_envs(), 2**32 - 1)
    assert np.array_equal(one, frames(make_envs(), 2**32 - 1))
    envs = make_envs()
    frames(envs, 3, n=2)
    assert np.array_equal(one, frames(envs, 2**32 - 1))  # whatever was played before
    assert np.array_equal(one, frames(make_envs(threads=4), 2**32 - 1))
    assert not np.array_equal(one[0], frames(make_envs(), 2**32 - 3, steps=0)[0])


def test_fresh_episodes_start_from_seeds_of_their_own(in_tmp_path, monkeypatch):
    resets = spy(monkeypatch, ppo.VectorEnv, "reset")
    small = {"num_levels": 0, "total_timesteps": 144}
    train(**small)
    train(**small, seed=2)
    resets = [(arguments[1], result) for arguments, result in resets if len(arguments[1]) == 3]  # not before the run
    seeds = [seeds[0] for seeds, _ in resets]
    assert len({seed >> 1 for seed in seeds}) == len(seeds) == 6  # at the start and after each checkpoint but the last
    firsts = [result for _, result in resets]
    assert not np.array_equal(firsts[0], firsts[1]) and not np.array_equal(firsts[0], firsts[3])


def level_numbers(envs):
    envs.reset([2] * 60)
    return [int(info["level_seed"]) for info in envs.envs.get_info()]


def test_episodes_are_played_on_the_levels_asked_for():
    assert set(level_numbers(make_envs("coinrun", num_levels=3, start_level=7))) == {7, 8, 9}
    assert set(level_numbers(make_envs("coinrun", start_level=2**31 - 2))) == {2**31 - 2}
    raw = procgen.ProcgenGym3Env(num=60, env_name="coinrun", rand_seed=1, num_levels=0, distribution_mode="easy")
    assert level_numbers(make_envs("coinrun")) == [info["level_seed"] for info in raw.get_info()]
    assert set(level_numbers(make_envs("coinrun", mode="exploration"))) == {1949448038}
    test = ppo.Args(env_id="coinrun", num_threads=1, num_levels=3, eval_start_level=4, eval_num_levels=2)
    assert set(level_numbers(ppo.VectorEnv(test, levels="test"))) == {4, 5}
    easy, hard = (make_envs("coinrun", mode, num_levels=1, start_level=7) for mode in ("easy", "hard"))
    assert not np.array_equal(easy.reset([1]), hard.reset([1]))


@pytest.mark.parametrize(
    ("flags", "training", "test"),
    [
        ({}, range(2**31 - 1), None),
        ({"num_levels": 200, "eval_start_level": 200}, range(200), range(200, 2**31 - 1)),
        ({"start_level": 200}, range(200, 2**31 - 1), None),
        ({"num_levels": 5, "start_level": 9, "eval_start_level": 2, "eval_num_levels": 7}, range(9, 14), range(2, 9)),
    ],
)
def test_the_flags_choose_the_levels(flags, training, test):
    sets = ppo.level_sets(ppo.Args(**flags))
    assert sets == {"training": training} | ({"test": test} if test else {})


def test_training_and_evaluation_play_on_their_levels(in_tmp_path, monkeypatch):
    made = spy(monkeypatch, ppo.load_procgen(), "ProcgenGym3Env")
    train(total_timesteps=48, checkpoints=1, start_level=3, eval_start_level=0, eval_num_levels=1, episodes=2)
    played = [(envs.num, envs.options["start_level"], envs.options["num_levels"]) for _, envs in made]
    assert played == [(1, 3, 1), (3, 3, 1), (2, 3, 1), (2, 0, 1)]  # before the run, in it, and its evaluation


# Scaled rewards


def make_scaled(monkeypatch, results):
    """A NormalizedVectorEnv of two environments that step to these (rewards, dones)."""
    steps = iter(results)

    def step(self, actions):
        rewards, dones = next(steps)
        return None, np.array(rewards, np.float32), np.array(dones, np.float32), {}, []

    monkeypatch.setattr(ppo.VectorEnv, "step", step)
    monkeypatch.setattr(ppo.VectorEnv, "reset", lambda self, seeds: np.zeros((2, 64, 64, 3), np.uint8))
    envs = ppo.NormalizedVectorEnv(ppo.Args(reward_gamma=0.9, num_threads=1))
    envs.reset([0, 0])
    return envs


def test_rewards_are_scaled_by_the_spread_of_the_discounted_return(monkeypatch):  # cont-8
    rng = np.random.default_rng(1)
    played = [(rng.normal(3, 10, 2), rng.integers(0, 4, 2) == 0) for _ in range(40)]
    envs, discounted, seen = make_scaled(monkeypatch, played), np.zeros(2), []
    for i, (rewards, dones) in enumerate(played):
        if i == 20:  # fresh episodes: the sums begin anew, the statistics go on
            envs.reset([1, 1])
            discounted = np.zeros(2)
        rewards = np.float32(rewards)
        discounted = 0.9 * discounted + rewards
        seen.extend(discounted)
        weight = len(seen) + 1e-4  # it starts as if 1e-4 rows of mean 0 and variance 1 had been seen
        mean = np.sum(seen) / weight
        var = (np.sum((np.array(seen) - mean) ** 2) + 1e-4 * (1 + mean**2)) / weight
        np.testing.assert_allclose(envs.step(None)[1], (rewards / np.sqrt(var + 1e-8)).clip(-10, 10), rtol=1e-6)
        discounted[dones] = 0.0


def test_scaled_rewards_are_clipped(monkeypatch):  # cont-9
    envs = make_scaled(monkeypatch, [((5.0, -5.0), (0, 0))])
    envs.return_statistics.var, envs.return_statistics.count = np.float64(1e-4), 1e12
    assert envs.step(None)[1].tolist() == [10.0, -10.0]


def test_training_scales_with_its_own_discount_and_reports_the_game_s_returns(in_tmp_path, monkeypatch):
    steps, made = spy(monkeypatch, ppo.VectorEnv, "step"), spy(monkeypatch, ppo.NormalizedVectorEnv, "__init__")
    gae = spy(monkeypatch, ppo, "compute_gae")
    folder = train(num_steps=48, total_timesteps=144)  # one rollout
    del steps[0]  # before the run
    reported = [float(row["episodic_return"]) for row in rows(folder, "episodes.csv")]
    assert reported == [episode[0] for _, result in steps for episode in result[4]]
    assert set(reported) == {0.0, 10.0}
    assert made[0][0][0].gamma == ppo.Args.reward_gamma == 0.99 and gae[0][0][5] == 0.999
    paid = np.concatenate([result[1] for _, result in steps])
    learned = gae[0][0][0].flatten()
    assert ((paid > 0) == (learned > 0)).all() and not np.isclose(paid[paid > 0], learned[paid > 0]).any()


# The network


def test_the_network_has_the_published_size():
    agent = ppo.Agent(15)
    assert sum(parameter.numel() for parameter in agent.parameters()) == 626_256


def test_the_layers_are_initialised_as_in_baselines():
    torch.manual_seed(1)
    agent, layers = ppo.Agent(15), []
    for name, layer in agent.network.named_modules():
        if isinstance(layer, (torch.nn.Conv2d, torch.nn.Linear)):
            layers.append(name)
            receptive = layer.weight[0, 0].numel()
            fans = receptive * (layer.weight.shape[0] + layer.weight.shape[1])
            bound = (6 / fans) ** 0.5  # uniform within Glorot's bound
            assert 0.9 * bound < layer.weight.abs().max() <= bound
            assert layer.weight.var().item() == pytest.approx(bound**2 / 3, rel=0.2)
            assert not layer.bias.any()
    assert len(layers) == 3 * 5 + 1
    assert torch.allclose(agent.actor.weight @ agent.actor.weight.T, 1e-4 * torch.eye(15), atol=1e-8)
    assert agent.critic.weight.norm().item() == pytest.approx(1.0)
    assert not agent.actor.bias.any() and not agent.critic.bias.any()


def plain_network(agent, obs):
    """IMPALA's network, written down from the paper's figure: the hidden layer at observations (M, 64, 64, 3)."""
    weights = iter([p.detach() for p in agent.network.parameters()])

    def conv(x):
        return F.conv2d(x, next(weights), next(weights), padding=1)

    x = torch.from_numpy(np.moveaxis(obs.numpy(), -1, 1).astype(np.float32) / 255)
    for _ in range(3):
        x = F.max_pool2d(conv(x), 3, 2, 1)
        for _ in range(2):
            x = x + conv(conv(x.clamp(min=0)).clamp(min=0))
    return F.linear(x.flatten(1).clamp(min=0), next(weights), next(weights)).clamp(min=0)


@pytest.mark.parametrize("channels_last", [True, False])
def test_the_network_is_impala_s_in_either_order_of_memory(channels_last):
    torch.manual_seed(1)
    agent = ppo.Agent(15, channels_last=channels_last)
    for parameter in agent.parameters():
        parameter.data += 0.02 * torch.randn_like(parameter)  # biases that are not 0
    order, strides = torch.channels_last if channels_last else torch.contiguous_format, []
    agent.network[0].register_forward_hook(lambda layer, x, y: strides.append(x[0].is_contiguous(memory_format=order)))
    obs = torch.randint(0, 256, (5, 64, 64, 3), dtype=torch.uint8)
    torch.testing.assert_close(agent.get_hidden(obs), plain_network(agent, obs), rtol=1e-4, atol=1e-5)
    assert strides == [True]
    obs[0, 0, 0] += 100
    assert not torch.equal(agent.get_hidden(obs)[0], agent.get_hidden(obs)[1])


def test_bf16_computes_the_network_in_bfloat16_and_the_rest_in_float32():
    torch.manual_seed(0)
    full, half = ppo.Agent(15), ppo.Agent(15, "bf16")
    half.load_state_dict(full.state_dict())
    seen = []
    for layer in half.network:
        layer.register_forward_hook(lambda layer, inputs, output: seen.append(output.dtype))
    obs, action = torch.randint(0, 256, (16, 64, 64, 3), dtype=torch.uint8), torch.arange(16) % 15
    results = [agent.get_action_and_value(obs, action) for agent in (full, half)]
    assert set(seen) == {torch.bfloat16}
    for i, (one, other) in enumerate(zip(*results)):
        assert one.dtype == other.dtype
        assert torch.allclose(one, other, atol=0.03) and (i == 0 or not torch.equal(one, other))


def test_the_ratio_of_the_first_minibatch_is_one(in_tmp_path, monkeypatch):
    losses = spy(monkeypatch, ppo, "ppo_loss")
    train(checkpoints=1, precision="bf16")
    for (log_prob, _, value, old_log_probs, old_values, *_), _ in losses[::2]:
        torch.testing.assert_close(log_prob, old_log_probs, rtol=0, atol=2e-3)
        torch.testing.assert_close(value, old_values, rtol=0, atol=5e-2)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc is Linux's")
def test_malloc_tuning_keeps_the_memory_that_is_freed(in_tmp_path):
    small = SMALL | {"total_timesteps": 48}
    assert freed(ppo, **small | {"malloc_tuning": True}) < 2**26 < 2**27 < freed(ppo, **small)


# Checkpoints and evaluation

TEST_LEVELS = {"eval_start_level": 3, "eval_num_levels": 1, "episodes": 2}  # its episodes are short too


def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(in_tmp_path):
    whole = train(precision="bf16", **TEST_LEVELS)
    cut = Path("cut")
    subprocess.run(["cp", "-r", whole, cut], check=True)
    for update in (4, 6):
        (cut / "checkpoints" / f"{update}.pt").unlink()
    ppo.main(ppo.Args(resume=str(cut)))
    assert checkpoints(cut) == [2, 4, 6]
    assert_same_state(state(cut, 6), state(whole, 6))
    assert same_statistics(state(cut, 6), state(whole, 6))
    assert rows(cut, "episodes.csv", ["seconds"]) == rows(whole, "episodes.csv", ["seconds"]) != []
    assert rows(cut, "metrics.csv", ["charts/SPS"]) == rows(whole, "metrics.csv", ["charts/SPS"])
    assert rows(cut, "evaluation.csv") == rows(whole, "evaluation.csv")
    one, other = scalars(cut), scalars(whole)
    assert all(one[tag] == other[tag] for tag in other.keys() - {"charts/SPS"})


def test_evaluation_and_videos_do_not_change_the_training(in_tmp_path):
    plain, watched = train(), train(capture_video=True, **TEST_LEVELS)
    assert_same_state(state(plain, 6), state(watched, 6))
    assert same_statistics(state(plain, 6), state(watched, 6))
    assert rows(plain, "episodes.csv", ["seconds"]) == rows(watched, "episodes.csv", ["seconds"])
    assert not (plain / "evaluation.csv").exists()
    assert sorted(file.name for file in watched.glob("videos/*")) == ["2.mp4", "4.mp4", "6.mp4"]


def test_checkpoints_are_evaluated_on_training_and_test_levels(in_tmp_path, monkeypatch, capsys):
    played, evaluate = [], ppo.evaluate

    def watched(*arguments, **options):
        for episode in evaluate(*arguments, **options):
            played.append(episode)
            yield episode

    monkeypatch.setattr(ppo, "evaluate", watched)
    folder = train(**TEST_LEVELS)
    written = rows(folder, "evaluation.csv")
    assert list(written[0]) == ["global_step", "levels", "episodic_return", "episodic_length"]
    assert [(row["global_step"], row["levels"]) for row in written] == [
        (str(step), name) for step in (96, 192, 288) for name in ("training", "test") for _ in range(2)
    ]
    assert [(float(row["episodic_return"]), int(row["episodic_length"])) for row in written] == played
    said = capsys.readouterr().out
    assert said.count("on the training levels") == said.count("on the test levels") == 3


@pytest.mark.parametrize("end", ["signal", "error"])
def test_a_run_that_ends_in_an_evaluation_has_saved_and_makes_up_for_it(in_tmp_path, monkeypatch, end):
    whole, evaluate = train(**TEST_LEVELS), ppo.evaluate

    def cut_short(*arguments, **options):
        (folder,) = in_tmp_path.glob("runs/*__cut__*")
        if checkpoints(folder) == [2, 4] and options["levels"] == "test":
            if end == "error":
                raise OSError("no space left on the device")
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60)
        yield from evaluate(*arguments, **options)

    monkeypatch.setattr(ppo, "evaluate", cut_short)
    with pytest.raises(SystemExit) as stop:
        train(**TEST_LEVELS, exp_name="cut")
    assert stop.value.code == (1 if end == "error" else 128 + signal.SIGTERM)
    (folder,) = in_tmp_path.glob("runs/*__cut__*")
    assert checkpoints(folder) == [2, 4] and len(rows(folder, "metrics.csv")) == 4
    assert rows(folder, "evaluation.csv") == rows(whole, "evaluation.csv")[:4]  # of checkpoint 2
    monkeypatch.setattr(ppo, "evaluate", evaluate)
    ppo.main(ppo.Args(resume=str(folder)))
    assert rows(folder, "evaluation.csv") == rows(whole, "evaluation.csv")
    assert_same_state(state(folder, 6), state(whole, 6))


def test_a_run_that_is_stopping_is_not_evaluated(in_tmp_path, monkeypatch):
    compute_gae = ppo.compute_gae
    monkeypatch.setattr(ppo, "compute_gae", lambda *x: os.kill(os.getpid(), signal.SIGTERM) or compute_gae(*x))
    with pytest.raises(SystemExit):
        train(**TEST_LEVELS, checkpoints=6)
    (folder,) = in_tmp_path.glob("runs/*")
    assert checkpoints(folder) == [1] and not (folder / "evaluation.csv").exists()


def test_evaluations_are_no_training_time(in_tmp_path, monkeypatch):
    evaluations, clock = spy(monkeypatch, ppo, "evaluate"), time.perf_counter
    monkeypatch.setattr(ppo.time, "perf_counter", lambda: clock() + 1000 * len(evaluations))
    folder = train(**TEST_LEVELS)
    assert len(evaluations) == 6 and state(folder, 6)["seconds"] < 1000
    assert all(float(row["seconds"]) < 1000 for row in rows(folder, "episodes.csv"))


def test_evaluation_plays_the_first_episode_of_each_environment_with_frozen_weights():
    torch.manual_seed(0)
    agent, args = ppo.Agent(15), ppo.Args(env_id="jumper", num_threads=1, num_levels=1)
    agent.get_hidden = lambda obs: obs[:, ::4, ::4, 0].flatten(1).float() / 255  # quicker than convolutions
    agent.actor.weight.data *= 30
    before = {name: weight.clone() for name, weight in agent.state_dict().items()}
    results = list(ppo.evaluate(agent, args, 66, seed=1))
    assert len(results) == 66 and results[:64] == list(ppo.evaluate(agent, args, 64, seed=1))
    assert results[:64] != list(ppo.evaluate(agent, args, 64, seed=2))
    tested = replace(args, start_level=1, eval_start_level=0, eval_num_levels=1)
    assert results[:64] == list(ppo.evaluate(agent, tested, 64, seed=1, levels="test"))
    assert all(torch.equal(weight, before[name]) for name, weight in agent.state_dict().items())
    # by hand: the same draws, and one environment after the other
    *seeds, noise_seed = np.random.SeedSequence(1, spawn_key=(1,)).generate_state(3)
    rng, returns, envs, expected = np.random.default_rng(noise_seed), np.zeros(64), make_envs(num_levels=1), {}
    observation, length = envs.reset([int(seeds[0])] * 64), 0
    while len(expected) < 64:
        with torch.no_grad():
            logits = agent.actor(agent.get_hidden(torch.from_numpy(observation))).numpy()
        observation, rewards, dones, *_ = envs.step((logits + rng.gumbel(size=(64, 15)).astype(np.float32)).argmax(-1))
        returns, length = returns + rewards, length + 1
        for i in np.flatnonzero(dones):
            expected.setdefault(i, (returns[i], length))
    assert results[:64] == [expected[i] for i in range(64)]


def test_as_typed_it_trains_evaluates_on_unseen_levels_and_films_them(in_tmp_path, capsys):
    stdout, stderr = run(*words(**SMALL | {"checkpoints": 1}), script=SCRIPT)
    (folder,) = in_tmp_path.glob("runs/jumper__ppo_procgen__1__*")
    assert stderr == "" and "100%" in stdout
    before = tree(folder)
    typed = ["--evaluate", str(folder), "--episodes", "2"]
    type_here(*typed, "--eval-start-level", 3, "--eval-num-levels", 1, script=SCRIPT)
    stdout, stderr = capsys.readouterr()
    assert stderr == "" and tree(folder) == before  # it writes nothing
    training, test = stdout.split("on the test levels, which training never saw:\n")
    for part in (training, test):
        assert part.count("episode ") == 2 and part.count(f"{folder}/checkpoints/6.pt: return ") == 1
    type_here(*typed, "--capture-video", script=SCRIPT)
    stdout = capsys.readouterr().out
    assert "test levels" not in stdout
    (video,) = folder.glob("checkpoints/*.mp4")
    capture = cv2.VideoCapture(str(video))
    length = int(stdout.split("episode 0: return ")[1].split("length ")[1].split()[0])
    assert int(capture.get(cv2.CAP_PROP_FRAME_COUNT)) == length and capture.get(cv2.CAP_PROP_FPS) == 15
    whole, picture = capture.read()
    assert whole and picture.shape == (512, 512, 3) and picture.std() > 10  # the game, drawn for people


# Mistakes


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"env_id": "CartPole-v1"}, "--distribution-mode easy are bigfish, bossfight, caveflyer"),
        ({"distribution_mode": "memory", "env_id": "bigfish"}, "--distribution-mode memory are caveflyer, dodgeball"),
        ({"distribution_mode": "exploration"}, "leave out all other levels"),
        ({"distribution_mode": "exploration", "num_levels": 0, "eval_start_level": 0}, "leave out all other levels"),
        ({"num_levels": -1}, "--num-levels -1: must be"),
        ({"num_levels": 2**31 - 5, "start_level": 5}, "training levels 5 to 2147483647: Procgen's last is 2147483646"),
        ({"num_levels": 0, "start_level": 2**31 - 1}, "Procgen's last is 2147483646"),
        ({"eval_num_levels": 5}, "needs --eval-start-level"),
        ({"num_levels": 10, "eval_start_level": 9}, "trains on some of the test levels"),
        ({"num_levels": 0, "eval_start_level": 9}, "say --num-levels 200"),
        ({"reward_gamma": 1.5}, "--reward-gamma 1.5"),
    ],
)
def test_a_mistake_gets_one_line_and_creates_nothing(in_tmp_path, capsys, flags, said):
    with pytest.raises(SystemExit) as stop:
        train(**flags)
    assert stop.value.code == 2 and said in error_line(capsys.readouterr().err, ppo)
    assert not list(in_tmp_path.iterdir())


def test_a_mistake_as_typed(in_tmp_path):
    _, stderr = run("--env-id", "starpilt", status=2, script=SCRIPT)
    assert "plunder, starpilot" in error_line(stderr, ppo)  # and not a word of the old gym that Procgen imports
    for typed in ("--distribution-mode medium", "--precision fp8"):
        with pytest.raises(SystemExit) as stop:
            type_here(*typed.split(), script=SCRIPT)
        assert stop.value.code == 2
    assert not list(in_tmp_path.iterdir())


def test_without_procgen_it_says_how_to_install_it(in_tmp_path, monkeypatch, capsys):
    for name in [name for name in sys.modules if name.split(".")[0] == "procgen"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "procgen", None)
    with pytest.raises(SystemExit) as stop:
        train()
    assert stop.value.code == 2
    assert "pip install --no-deps -r requirements-procgen.txt" in error_line(capsys.readouterr().err, ppo)


def test_a_resumed_run_keeps_its_episodes_and_levels(in_tmp_path, capsys):
    folder = train(**TEST_LEVELS)
    for update in (4, 6):
        (folder / "checkpoints" / f"{update}.pt").unlink()
    for flags in ({"episodes": 5}, {"eval_start_level": 6}, {"num_levels": 2}):
        with pytest.raises(SystemExit) as stop:
            ppo.main(ppo.Args(resume=str(folder), **flags))
        assert stop.value.code == 2 and "leave the flag out" in error_line(capsys.readouterr().err, ppo)


def test_statistics_of_another_shape_are_one_line(in_tmp_path, capsys):
    folder = train(checkpoints=1)
    content = state(folder, 6)
    content["statistics"]["returns"]["var"] = torch.ones(4, dtype=torch.float64)
    torch.save(content, folder / "checkpoints" / "6.pt")
    with pytest.raises(SystemExit) as stop:
        ppo.main(ppo.Args(evaluate=str(folder)))
    assert stop.value.code == 2 and "does not fit" in error_line(capsys.readouterr().err, ppo)


# Learning


def test_it_learns_a_level_of_jumper(in_tmp_path):
    envs, rng = make_envs(num_levels=1), np.random.default_rng(0)
    envs.reset([2] * 64)
    chance = [episode[0] for _ in range(200) for episode in envs.step(rng.integers(0, 15, 64))[4]]
    assert np.mean(chance) < 7.5  # a jump too few or too many misses the carrot, which pays 10
    sizes = {"num_envs": 16, "num_steps": 32, "num_minibatches": 4, "update_epochs": 3, "total_timesteps": 3072}
    folder = train(**sizes, precision="bf16", checkpoints=1)
    returns = [float(row["episodic_return"]) for row in rows(folder, "episodes.csv")]
    assert np.mean(returns[-200:]) > 9.5


def test_value_level_learns_from_one_rollout_again_and_again(tmp_path, monkeypatch):
    """benchmark/value_level.py: targets follow from the values that the update before left; no step, no move."""
    monkeypatch.chdir(tmp_path)
    folder = train(total_timesteps=48, checkpoints=1)
    tool = [sys.executable, str(SCRIPT.parents[1] / "benchmark" / "value_level.py")]

    def values(*flags):
        command = [*tool, str(folder), "--num-updates", "3", "--num-threads", "1", *flags]
        lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
        assert len(lines) == 5 and len(lines[4].split(": ")[1].split()) == 2  # minibatches
        return [[float(x) for x in re.findall(r"-?\d+\.\d{3}", line)] for line in lines[1:4]]

    moved = values()
    assert all(before[2] == after[0] != before[0] for before, after in itertools.pairwise(moved))
    assert {before == left for before, _, left in values("--learning-rate", "0")} == {True}
    assert values("--vf-coef", "2") != moved
    (tmp_path / "empty").mkdir()
    for agent, what in (("empty", "holds no checkpoint"), (SCRIPT, "is no checkpoint"), (CARTPOLE, "by ppo.py")):
        done = subprocess.run([*tool, str(agent)], capture_output=True, text=True)
        assert done.returncode == 2 and what in done.stderr and done.stderr.count("\n") == 1, done.stderr


def test_the_page_shows_what_value_level_printed():
    """The table of docs/ppo_procgen.md, and the swing that its text names, from benchmark/results/value_level.txt."""
    root = SCRIPT.parents[1]
    page, *parts = (
        (root / "docs" / "ppo_procgen.md").read_text(),
        *re.split(
            r"^(?=[\d,]+ steps of training)",
            (root / "benchmark" / "results" / "value_level.txt").read_text(),
            flags=re.M,
        )[1:],
    )
    settings = ("as in the run", "`--vf-coef 0.1`", "`--learning-rate 2.5e-4`", "`--clip-vloss False`")
    assert len(parts) == len(settings)
    for part, setting in zip(parts, settings):
        numbers = [
            [float(x) for x in line] for line in re.findall(r"value ([\d.]+), target ([\d.]+) -> value ([\d.]+)", part)
        ]
        assert all(0.15 < value - target < 0.25 for value, target, _ in numbers)
        cells = [numbers[0][0], *(after for _, _, after in numbers)]
        assert f"| {setting} | {' | '.join(f'{x:.2f}' for x in cells)} |" in page
    swing = [float(x) for x in parts[0].splitlines()[-1].split(":")[1].split()]
    assert f"between −{-min(swing)} and\n+{max(swing)} within" in page
