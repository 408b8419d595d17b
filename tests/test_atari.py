"""What ppo_atari.py adds to ppo.py: the nine details, against games whose frames, rewards and lives are known and
against the emulator; other environments with pictures; bfloat16."""

import math
from itertools import pairwise

import cv2
import environments_atari
import gymnasium as gym
import numpy as np
import ppo_atari as ppo
import pytest
import torch
import torch.nn as nn
from helpers import TESTS, assert_resumes, learn, rows, small_agent, type_here, words

SCRIPT = TESTS.parent / "cleanrl" / "ppo_atari.py"
BREAKOUT, PONG = "BreakoutNoFrameskip-v4", "PongNoFrameskip-v4"
# 6 updates of 24 steps, checkpoints after 2, 4 and 6
SMALL = {
    "env_id": "Noise-v0", "total_timesteps": 144, "num_envs": 3, "num_steps": 8, "num_minibatches": 2,
    "update_epochs": 1, "checkpoints": 3, "num_threads": 1, "device": "cpu",
}  # fmt: skip


def train(**arguments):
    return ppo.main(ppo.Args(**SMALL | arguments))


def make_env(env_id, **options):
    return ppo.make_env(ppo.Args(env_id=env_id, **options))


def vector(num_envs, env_id="FakeAtari-v0", vectorization="sync"):
    return ppo.VectorEnv(ppo.Args(env_id=env_id, vectorization=vectorization), num_envs)


def make_agent(num_actions=4, **options):
    envs = vector(1)
    envs.action_space = gym.spaces.Discrete(num_actions)
    return ppo.Agent(envs, ppo.Args(**options))


@pytest.fixture
def fake():
    """Makes FakeAtari games, wrapped by make_env; the last one made is `fake.game`."""

    def make(**options):
        gym.registry["FakeAtari-v0"].kwargs = options
        env = make_env("FakeAtari-v0")
        make.game = env.unwrapped
        assert make.game.options == (1, "grayscale")  # of ALE, which play a frame an action and draw no colors
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
    assert min(counts) == 1 and max(counts) == 30 and len(set(counts)) == 30
    counts = []
    for _ in range(3):
        env.reset(seed=5)
        counts.append(opening(fake.game.log)[0])
    assert len(set(counts)) == 1  # the seed decides


# [atari-2]
def test_an_action_is_played_for_4_frames_whose_rewards_add_up(fake):
    env = fake(pay=lambda k: 10.0**-k if k > 40 else 0.0, fire=False, screen=lambda k: 200 * (k % 2))
    env.reset(seed=0)
    while len(fake.game.log) < 40:
        env.step(2)
    before = len(fake.game.log)
    observation, _, _, _, _ = env.step(3)
    assert fake.game.log[before:] == [3, 3, 3, 3]
    wanted = sum(10.0**-k for k in range(before + 1, before + 5) if k > 40)
    assert env.get_wrapper_attr("episode_returns") == pytest.approx(wanted)
    assert (observation == 200).all()  # frames flicker, the maximum of the last two doesn't


# [atari-3]
def test_a_lost_life_ends_the_episode_and_the_game_goes_on_after_one_noop(fake):
    env = fake(losses=(100, 140, 180), lives=3, fire=False, pay=lambda k: float(k in (100, 140, 180)))
    env.reset(seed=3)
    results = play(env, [2] * 45)
    ends = [i for i, result in enumerate(results) if result[2]]
    games = fake.game.games
    assert len(games) == 2 and len(ends) == 3  # reset once, at the game's own end
    noops, played = opening(games[0])
    length = math.ceil((100 - noops) / 4)  # steps of the first life
    assert ends[0] == length - 1
    assert played[4 * length : 4 * length + 8] == [0, 0, 0, 0, 2, 2, 2, 2]  # one no-op, which is 4 frames too
    (episode,) = [result[4]["recorded"] for result in results if "recorded" in result[4]]
    assert (episode["r"], episode["l"]) == (3.0, math.ceil((180 - noops) / 4))  # of the whole game


def test_no_episode_ends_while_the_game_shows_no_life_before_its_end(fake):
    env = fake(losses=(100, 140), lives=2, linger=40, fire=False)
    env.reset(seed=0)
    ends = [i for i, result in enumerate(play(env, [2] * 45)) if result[2]]
    noops, _ = opening(fake.game.games[0])
    assert ends == [math.ceil((100 - noops) / 4) - 1, math.ceil((180 - noops) / 4) - 2]  # the no-op was a step too


def test_an_extra_life_ends_nothing(fake):
    env = fake(lives=2, fire=False)
    env.reset(seed=0)
    fake.game.lives = 3
    assert not env.step(2)[2]
    fake.game.lives = 2
    assert env.step(2)[2]


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
    fake(fire=False).reset(seed=0)
    assert opening(fake.game.log)[1] == []


@pytest.mark.parametrize(("end", "opened_by"), [(104, [1, 2]), (108, [2]), (112, [])])
def test_a_game_that_ends_while_it_is_opened_is_reported_and_makes_way_for_the_next(fake, end, opened_by):
    """The second life is lost by the no-op, by FIRE or by the action that follows it."""
    env = fake(losses=(100, end), lives=2, pay=lambda k: float(k == end))
    env.reset(seed=0)
    results = play(env, [3] * 30)
    (game,) = [info["recorded"] for *_, info in results if "recorded" in info]
    assert game["r"] == 1.0
    wanted = [action for action in [*opened_by, 3] for _ in range(4)]
    assert opening(fake.game.log)[1][: len(wanted)] == wanted
    assert len(fake.game.games) == 2
    envs = vector(1)
    envs.reset([0])
    reported = [episode for _ in results for episode in envs.step(np.array([3]))[4]]
    assert reported == [{"r": 1.0, "l": game["l"]}]


# [atari-6]
def test_training_sees_the_sign_of_the_reward_and_the_log_the_whole_games_return(fake):
    fake(losses=(200, 400), lives=2, pay=lambda k: 7.0 if k % 40 == 0 else -0.25 * (k % 40 == 20 and k > 40))
    envs = vector(2)
    envs.reset([1, 2])
    seen, games = [], []
    while len(games) < 2:
        _, rewards, _, _, ended = envs.step(np.array([3, 3]))
        seen.append(rewards)
        games += ended
    assert set(np.unique(seen)) == {-1.0, 0.0, 1.0}
    assert [game["r"] for game in games] == [10 * 7.0 - 9 * 0.25] * 2
    noops = [opening(game.games[0])[0] for game in environments_atari.FakeAtari.made[-2:]]
    assert sorted(game["l"] for game in games) == sorted(math.ceil((400 - n) / 4) for n in noops)


# [atari-7]
def test_an_observation_is_the_last_4_frames_and_the_first_frame_4_times_at_an_episodes_start(fake):
    fake(fire=False, losses=(100, 1000), lives=2)
    envs = vector(1)
    first = envs.reset([0])[0, 0, 0].tolist()
    assert first == [first[0]] * 4
    expected = first
    for _ in range(30):
        observation, _, dones, _, _ = envs.step(np.array([2]))
        newest = int(observation[0, 0, 0, 3])
        expected = [newest] * 4 if dones[0] else [*expected[1:], newest]
        assert (observation[0] == np.array(expected)).all()
        if dones[0]:
            assert len(environments_atari.FakeAtari.made[-1].games) == 1
            return
    pytest.fail("no life was lost")


def test_a_life_lost_at_the_time_limit_is_a_true_end(fake):
    fake(fire=False, limit=100, losses=(100, 1000), lives=2)
    envs, games = vector(1), []
    envs.reset([0])
    while not games:
        _, _, dones, truncated, games = envs.step(np.array([2]))
    assert dones[0] and not truncated


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_the_last_observation_at_a_time_limit_is_the_stack_that_the_limit_cut(vectorization):
    """Though Noise draws every frame, the first of the next episode too, into the same array."""
    game = gym.make("Noise-v0", disable_env_checker=True)
    envs = vector(2, "Noise-v0", vectorization)
    cuts = 0
    frame, _ = game.reset(seed=4)
    assert (envs.reset([4, 5])[0, :, :, 3] == frame).all()
    stack = [frame.copy()] * 4
    for _ in range(40):
        frame, reward, terminated, truncated, _ = game.step(0)
        stack = [*stack[1:], frame.copy()]
        observations, rewards, dones, last, _ = envs.step(np.array([0, 0]))
        assert dones[0] == (terminated or truncated) and (0 in last) == (truncated and not terminated)
        assert rewards[0] == reward  # no sign: it is no Atari game
        if 0 in last:
            assert (last[0] == np.stack(stack, -1)).all()
            cuts += 1
        if dones[0]:
            stack = [game.reset()[0].copy()] * 4
        assert (observations[0] == np.stack(stack, -1)).all()
    envs.close()
    assert cuts >= 2


# [atari-8]
@pytest.mark.parametrize(("num_actions", "parameters"), [(4, 1_686_693), (6, 1_687_719), (9, 1_689_258)])
def test_the_network_is_natures(num_actions, parameters):
    agent = make_agent(num_actions)
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
    assert isinstance(agent.network[-1], nn.ReLU)


# [atari-9]
def test_the_network_sees_frames_between_0_and_1_which_are_kept_as_bytes(in_tmp_path, monkeypatch):
    agent, seen = make_agent(), []
    agent.network[0].register_forward_pre_hook(lambda layer, inputs: seen.append(inputs[0]))
    frames = torch.tensor([0, 51, 255], dtype=torch.uint8).view(3, 1, 1, 1).expand(3, 84, 84, 4)
    assert torch.allclose(agent.get_value(frames), agent.get_value(frames.float()))  # an edit may shift them as floats
    assert seen[0].amax((1, 2, 3)).tolist() == pytest.approx([0, 0.2, 1.0])
    sizes, original = set(), ppo.Agent.get_action_and_value

    def spied(agent, obs, noise):
        sizes.add(obs.untyped_storage().nbytes())  # of all of the rollout, which obs is a view of
        return original(agent, obs, noise)

    monkeypatch.setattr(ppo.Agent, "get_action_and_value", spied)
    train(total_timesteps=24)
    assert sizes == {8 * 3 * 4 * 84 * 84}  # one byte a pixel


# The emulator, for [atari-2] and [atari-5] too
def independent_frames(game, seed, actions):
    """Frames, rewards and lives of the same game, from ale-py's raw interface alone."""
    env = gym.make(game, disable_env_checker=True).unwrapped
    env.reset(seed=seed)
    ale, table = env.ale, env.ale.getMinimalActionSet()
    for _ in range(env.np_random.integers(1, 31)):
        ale.act(table[0])
    screen = ale.getScreenGrayscale
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
    env = make_env(game)
    opened_by = env.get_wrapper_attr("opening")
    actions = np.random.default_rng(0).integers(env.action_space.n, size=60).tolist()
    expected = independent_frames(game, 7, [*opened_by, *actions])
    frame, _ = env.reset(seed=7)
    start = len(opened_by)
    assert (frame == expected[start][0]).all()
    for action, (frame, reward, lives) in zip(actions, expected[start + 1 :], strict=True):
        observation, paid, terminated, _, _ = env.step(action)
        assert (observation == frame).all() and paid == np.sign(reward) and env.unwrapped.ale.lives() == lives
        if terminated:
            break


def test_after_a_lost_life_breakout_goes_on_with_one_life_less():
    env = make_env(BREAKOUT)
    env.reset(seed=0)
    ale = env.unwrapped.ale
    lives, scores, info = [ale.lives()], 0.0, {}
    while "recorded" not in info:
        _, reward, terminated, truncated, info = env.step(int(env.np_random.integers(4)))
        scores += reward  # the lowest bricks pay 1, and random play reaches no others
        assert not truncated
        if terminated and "recorded" not in info:
            before = ale.getEpisodeFrameNumber()
            env.reset()
            lives.append(ale.lives())
            assert ale.getEpisodeFrameNumber() == before + 12  # no-op, FIRE and 2, of 4 frames each
    assert lives == [5, 4, 3, 2, 1]
    assert info["recorded"]["r"] == scores


def test_version_5_of_a_game_skips_frames_once():
    env_id = "ALE/Breakout-v5"
    env = make_env(env_id)
    env.reset(seed=0)
    ale = env.unwrapped.ale
    before = ale.getEpisodeFrameNumber()
    env.step(0)
    assert ale.getEpisodeFrameNumber() == before + 4
    assert ale.getFloat("repeat_action_probability") == 0.25
    with pytest.raises(ValueError, match="sets frameskip itself"):
        make_env(env_id, env_kwargs='{"frameskip": 2}')


# Pictures of other environments
@pytest.mark.parametrize("shape", [(60, 80, 3), (60, 80, 1), (60, 80)])
def test_pictures_of_any_size_become_gray_frames_and_rewards_stay_as_they_are(shape):
    env = make_env("Picture-v0", env_kwargs=f'{{"shape": {list(shape)}}}')
    assert env.observation_space == gym.spaces.Box(0, 255, (84, 84), np.uint8)
    frame, _ = env.reset(seed=0)
    picture = env.unwrapped.picture.reshape(*shape[:2], -1).astype(float)
    gray = picture @ ([0.2125, 0.7154, 0.0721] if shape[2:] == (3,) else [1.0])
    assert frame.shape == (84, 84) and frame.dtype == np.uint8
    assert abs(frame.astype(float) - cv2.resize(gray, (84, 84), interpolation=cv2.INTER_AREA)).max() < 2
    assert env.step(1)[1] == 3.5


# Training
def test_a_resumed_run_ends_as_an_undisturbed_one_to_the_bit(in_tmp_path):
    options = {"bootstrap_truncated": True, "vectorization": "async", "precision": "bf16", "exact_resume": True}
    assert_resumes(ppo, train(**options), after=2)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_acting_and_learning_go_by_the_same_policy(in_tmp_path, spy, precision):
    """The ratio is exactly 1 in the first minibatch of every update: the weights that act are cast as those that learn,
    and anew after each update."""
    losses = spy(ppo, "ppo_loss")
    train(learning_rate=1e-2, precision=precision)
    changes = [np.abs(np.exp(call.log_prob - call.mb.log_probs) - 1).max() for call in losses]
    assert len(changes) == 12 and max(changes[::2]) < 1e-4 < min(changes[1::2])


def test_actions_are_drawn_from_the_softmax():
    torch.manual_seed(0)
    agent = make_agent(3)
    agent.actor.bias.data = torch.tensor([0.0, 1.0, 2.0])
    agent.actor.weight.data.zero_()
    obs = torch.zeros((100, 84, 84, 4), dtype=torch.uint8)
    p = torch.tensor([0.0, 1.0, 2.0]).softmax(0)
    with torch.no_grad():
        actions = torch.cat([agent.get_action_and_value(obs, agent.draw_noise(100))[0] for _ in range(10)])
        assert (actions.bincount(minlength=3) / 1000).tolist() == pytest.approx(p.tolist(), abs=0.06)
        actions, log_prob, value = agent.get_action_and_value(obs, agent.draw_noise(100))
        assert torch.allclose(log_prob, p.log()[actions], atol=1e-6)
        evaluated, entropy, evaluated_value = agent.evaluate_actions(obs, actions)
    assert torch.equal(evaluated, log_prob) and torch.equal(evaluated_value, value)
    assert torch.allclose(entropy, -(p * p.log()).sum(), atol=1e-6)


def test_bf16_computes_the_convolutions_in_bfloat16_and_the_rest_in_float32():
    torch.manual_seed(0)
    full, half = make_agent(6), make_agent(6, precision="bf16")
    half.load_state_dict(full.state_dict())
    seen = []
    half.network.register_forward_hook(lambda layer, inputs, output: seen.append(output.dtype))
    obs = torch.randint(0, 256, (64, 84, 84, 4), dtype=torch.uint8)
    results = [agent.evaluate_actions(obs, torch.arange(64) % 6) for agent in (full, half)]
    assert seen == [torch.bfloat16]
    for one, other in zip(*results, strict=True):
        assert one.dtype == other.dtype == torch.float32
        assert torch.allclose(one, other, atol=0.02)
    assert not torch.equal(results[0][2], results[1][2])


def test_evaluation_plays_whole_games_and_repeats_them(fake, in_tmp_path):
    fake(losses=(100, 140, 180), lives=3, pay=lambda k: 5.0 * (k % 60 == 0))
    folder = train(env_id="FakeAtari-v0", total_timesteps=24, checkpoints=1)
    player = ppo.load(folder)
    games = [ppo.play(player, seed) for seed in (1, 2, 3)]
    assert [game["r"] for game in games] == [15.0] * 3  # without signs, over all three lives
    assert games == [ppo.play(player, seed) for seed in (1, 2, 3)]


def test_it_learns_to_catch_a_ball(in_tmp_path, monkeypatch):
    monkeypatch.setattr(ppo, "Agent", small_agent(ppo))
    sizes = {"num_envs": 16, "num_steps": 32, "num_minibatches": 4, "update_epochs": 4, "total_timesteps": 6144}
    options = SMALL | sizes | {"env_id": "Catch-v0", "learning_rate": 4e-3, "vf_coef": 0.05, "checkpoints": 1}
    returns = learn(ppo, ppo.Args(**options), enough=-0.7, episodes=200)
    assert np.mean(returns[:200]) < -1.5  # chance catches about one ball in four; four standard errors below


# The command line
def test_as_typed_it_trains_records_and_evaluates(in_tmp_path, capsys):
    options = SMALL | {"env_id": BREAKOUT, "num_envs": 2, "total_timesteps": 16, "checkpoints": 1}
    type_here(*words(**options), "--vectorization", "async", script=SCRIPT)
    (folder,) = in_tmp_path.glob("runs/BreakoutNoFrameskip-v4__ppo_atari__1__*")
    stdout, stderr = capsys.readouterr()
    assert stderr == "" and "100%" in stdout
    type_here("--evaluate", folder, "--episodes", 1, "--capture-video", script=SCRIPT)
    assert capsys.readouterr().err == ""
    (episode,) = rows(folder, "evaluation.csv")
    capture = cv2.VideoCapture(str(folder / "evaluation.mp4"))
    frames = int(capture.get(cv2.CAP_PROP_FRAME_COUNT))
    assert abs(frames - int(episode["episodic_length"])) <= 20 and capture.get(cv2.CAP_PROP_FPS) == 15
    whole, picture = capture.read()
    assert whole and picture.shape == (210, 160, 3) and picture.std() > 1  # the game itself, in color


@pytest.mark.parametrize("shape", ["[3, 64, 64]", "[64, 64, 4]"])
def test_pictures_with_other_channels_need_a_wrapper(refusal, shape):
    assert "1 or 3 channels, and these last" in refusal(ppo, env_id="Picture-v0", env_kwargs=f'{{"shape": {shape}}}')


def test_pictures_of_few_pixels_are_not_for_this_script(refusal):
    assert "observes no pictures" in refusal(ppo, env_id="Picture-v0", env_kwargs='{"shape": [16, 16, 3]}')
