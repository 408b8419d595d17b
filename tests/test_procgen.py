"""What ppo_procgen.py adds to ppo_atari.py: Procgen's games and levels, scaled rewards, IMPALA's network, evaluation on
levels that training never saw."""

import contextlib
import gc
import os
import signal
import zlib
from pathlib import Path

import cv2
import numpy as np
import ppo_procgen as ppo
import pytest
import torch
import torch.nn.functional as F
from helpers import assert_resumes, checkpoints, learn, rows, run, small_agent, state, type_here, words

procgen = pytest.importorskip(
    "procgen",
    reason="Procgen is not installed: pip install --no-deps -r requirements-procgen.txt, on Python 3.11 or 3.12",
    exc_type=ImportError,
)

SCRIPT = Path(ppo.__file__)
# 6 updates of 48 steps, checkpoints after 2, 4 and 6; on this level of jumper an episode of a random agent has 6 steps
SMALL = {
    "env_id": "jumper", "num_levels": 1, "total_timesteps": 288, "num_envs": 3, "num_steps": 16, "num_minibatches": 2,
    "update_epochs": 1, "checkpoints": 3, "num_threads": 1, "device": "cpu",
}  # fmt: skip
TEST_LEVELS = {"eval_start_level": 3, "eval_num_levels": 1, "episodes": 2}  # its episodes are short too


@pytest.fixture(autouse=True, scope="module")
def what_is_loaded_is_no_garbage():
    """Games collect garbage before they are made, which would look at all that pytest holds each time."""
    gc.freeze()
    yield
    gc.unfreeze()


def train(**arguments):
    return ppo.main(ppo.Args(**SMALL | arguments))


def resume(folder):
    return ppo.main(*ppo.read_arguments(["--resume", str(folder)]))


def make_envs(game="jumper", mode="easy", threads=1, n=3, **levels):
    return ppo.VectorEnv(ppo.Args(env_id=game, distribution_mode=mode, num_threads=threads, **levels), n)


def make_agent(**options):
    return ppo.Agent(make_envs(), ppo.Args(**options))


def frames(envs, seed, steps=20):
    """All frames of some random play."""
    rng = np.random.default_rng(0)
    n = envs.vector.options["num"]
    return np.array([envs.reset([seed] * n), *(envs.step(rng.integers(0, 15, n))[0] for _ in range(steps))])


# The games
@pytest.mark.parametrize("game, episodes_of_one", [("coinrun", 1), ("fruitbot", 2)])  # coinrun's are long
def test_a_game_steps_starts_anew_and_reports_its_episodes(game, episodes_of_one):
    n = 32
    rng = np.random.default_rng(0)
    ended = np.zeros(n, int)  # episodes of each game
    returns = np.zeros(n)
    lengths = np.zeros(n, int)
    envs = make_envs(game, threads=2, n=n)
    raw = procgen.ProcgenGym3Env(num=n, env_name=game, distribution_mode="easy", rand_seed=5, num_threads=2)
    assert np.array_equal(envs.reset([5] * n), raw.observe()[1]["rgb"])
    for _ in range(1000):
        actions = rng.integers(0, 15, n)
        observations, _, dones, truncated_obs, episodes = envs.step(actions)
        raw.act(actions)
        raw_rewards, raw_observations, first = raw.observe()
        assert observations.shape == (n, *envs.observation_space.shape) == (n, 64, 64, 3)
        assert not truncated_obs
        assert observations.dtype == envs.observation_space.dtype == np.uint8
        assert np.array_equal(observations, raw_observations["rgb"])  # of a next episode where one ended
        assert np.array_equal(dones, first)
        returns += raw_rewards
        lengths += 1
        assert [episode["r"] for episode in episodes] == pytest.approx(returns[first], abs=1e-9)
        assert [episode["l"] for episode in episodes] == lengths[first].tolist()
        returns[first] = 0.0
        lengths[first] = 0
        ended += first
        if ended.max() == episodes_of_one:
            break
    assert ended.max() == episodes_of_one


def test_the_script_knows_the_library_s_games_modes_and_actions():
    library = ppo.load_procgen()
    assert set(ppo.MODES["exploration"]) == library.EXPLORATION_LEVEL_SEEDS.keys()
    modes = library.DISTRIBUTION_MODE_DICT
    assert ppo.MODES.keys() == modes.keys() - {"easy", "hard"}
    assert modes.keys() == set(ppo.Args.__annotations__["distribution_mode"].__args__)
    envs = make_envs()
    envs.reset([0])
    assert envs.vector.games.ac_space.eltype.n == envs.action_space.n == 15
    for mode in modes:
        for game in ppo.MODES.get(mode, ["bigfish"]):
            frames(make_envs(game, mode=mode), seed=1, steps=2)  # Procgen would end this process at a wrong pair


def test_the_seed_seeds():
    one = frames(make_envs(), 2**31 - 1)
    envs = make_envs()
    frames(envs, 3)
    assert np.array_equal(one, frames(envs, 2**31 - 1))  # whatever was played before
    assert np.array_equal(one, frames(make_envs(threads=4), 2**31 - 1))
    assert not np.array_equal(one[0], frames(make_envs(), 2**31 - 2, steps=0)[0])
    assert frames(make_envs(), 2**32 - 1, steps=0).any()  # --evaluate's seeds have 32 bits, Procgen's 31


def level_numbers(envs):
    envs.reset([1] * 60)
    return [int(info["level_seed"]) for info in envs.vector.games.get_info()]


def test_episodes_are_played_on_the_levels_asked_for():
    assert set(level_numbers(make_envs("coinrun", n=60, num_levels=3, start_level=7))) == {7, 8, 9}
    assert set(level_numbers(make_envs("coinrun", n=60, start_level=2**31 - 2))) == {2**31 - 2}
    raw = procgen.ProcgenGym3Env(num=60, env_name="coinrun", rand_seed=1, num_levels=0, distribution_mode="easy")
    assert level_numbers(make_envs("coinrun", n=60)) == [info["level_seed"] for info in raw.get_info()]
    assert set(level_numbers(make_envs("coinrun", n=60, mode="exploration"))) == {1949448038}
    tested = ppo.test_levels(ppo.Args(env_id="coinrun", num_levels=3, eval_start_level=4, eval_num_levels=2))
    assert (tested.start_level, tested.num_levels) == (4, 2)
    easy = make_envs("coinrun", "easy", num_levels=1, start_level=7)
    hard = make_envs("coinrun", "hard", num_levels=1, start_level=7)
    assert not np.array_equal(easy.reset([1] * 3), hard.reset([1] * 3))


def test_an_option_of_the_game_reaches_it():
    plain = make_envs(num_levels=1)
    bare = make_envs(num_levels=1, env_kwargs='{"use_backgrounds": false}')
    assert not np.array_equal(plain.reset([1] * 3), bare.reset([1] * 3))


# Scaled rewards
class Played:
    """Two copies of a game that pay and end as written down."""

    def __init__(self, steps):
        self.steps = iter(steps)
        self.observations = np.zeros((2, 64, 64, 3), np.uint8)

    def reset(self, seed):
        return self.observations

    def step(self, actions):
        rewards, dones = next(self.steps)
        return self.observations, np.array(rewards, np.float32), np.array(dones, bool)


def test_rewards_are_scaled_by_the_spread_of_the_discounted_return():  # cont-8
    rng = np.random.default_rng(1)
    envs = make_envs(n=2, reward_gamma=0.9)
    discounted = np.zeros(2)
    seen = []
    for _ in range(2):  # fresh episodes: the sums begin anew, the statistics go on
        played = [(np.float32(rng.normal(3, 10, 2)), rng.integers(0, 4, 2) == 0) for _ in range(20)]
        envs.vector = Played(played)
        envs.reset([0, 0])
        discounted[:] = 0.0
        for rewards, dones in played:
            discounted = 0.9 * discounted + rewards
            seen.extend(discounted)
            weight = len(seen) + 1e-4  # it starts as if 1e-4 rows of mean 0 and variance 1 had been seen
            mean = np.sum(seen) / weight
            var = (np.sum((np.array(seen) - mean) ** 2) + 1e-4 * (1 + mean**2)) / weight
            expected = (rewards / np.sqrt(var + 1e-8)).clip(-10, 10)
            np.testing.assert_allclose(envs.step(None)[1], expected, rtol=1e-6)
            discounted[dones] = 0.0


def test_scaled_rewards_are_clipped():  # cont-9
    envs = make_envs(n=2)
    envs.vector = Played([((5.0, -5.0), (False, False))])
    envs.reset([0, 0])
    envs.return_statistics.var = np.float64(1e-4)
    envs.return_statistics.count = 1e12
    assert envs.step(None)[1].tolist() == [10.0, -10.0]


def test_training_scales_with_its_own_discount_and_reports_the_game_s_returns(in_tmp_path, spy):
    gae = spy(ppo, "compute_gae")
    made = spy(ppo.VectorEnv, "__init__")
    folder = train(num_steps=48, total_timesteps=144)  # one rollout
    returns = [float(row["episodic_return"]) for row in rows(folder, "episodes.csv")]
    assert len(returns) > 5 and set(returns) == {0.0, 10.0}
    assert made[-1].self.gamma == 0.99 and gae[0].gamma == 0.999
    learned = gae[0].rewards
    assert (learned > 0).sum() == sum(value > 0 for value in returns) and not (learned == 10.0).all()


# The network
def test_the_network_has_the_published_size():
    assert sum(parameter.numel() for parameter in make_agent().parameters()) == 626_256


def test_the_layers_are_initialized_as_in_baselines():
    torch.manual_seed(1)
    agent = make_agent()
    layers = 0
    for layer in agent.network.modules():
        if isinstance(layer, torch.nn.Conv2d | torch.nn.Linear):
            layers += 1
            fans = layer.weight[0, 0].numel() * (layer.weight.shape[0] + layer.weight.shape[1])
            bound = (6 / fans) ** 0.5  # uniform within Glorot's bound
            assert 0.9 * bound < layer.weight.abs().max() <= bound
            assert layer.weight.var().item() == pytest.approx(bound**2 / 3, rel=0.2)
            assert not layer.bias.any()
    assert layers == 3 * 5 + 1
    assert torch.allclose(agent.actor.weight @ agent.actor.weight.T, 1e-4 * torch.eye(15), atol=1e-8)
    assert agent.critic.weight.norm().item() == pytest.approx(1.0)
    assert not agent.actor.bias.any() and not agent.critic.bias.any()


def plain_network(agent, obs):
    """IMPALA's network, written down from the paper's figure: the hidden layer at observations (M, 64, 64, 3)."""
    weights = iter([parameter.detach() for parameter in agent.network.parameters()])

    def conv(x):
        return F.conv2d(x, next(weights), next(weights), padding=1)

    x = torch.from_numpy(np.moveaxis(obs.numpy(), -1, 1).astype(np.float32) / 255)
    for _ in range(3):
        x = F.max_pool2d(conv(x), 3, 2, 1)
        for _ in range(2):
            x = x + conv(conv(x.clamp(min=0)).clamp(min=0))
    return F.linear(x.flatten(1).clamp(min=0), next(weights), next(weights)).clamp(min=0)


def test_the_network_is_impala_s():
    torch.manual_seed(1)
    agent = make_agent()
    hidden = []
    for parameter in agent.parameters():
        parameter.data += 0.02 * torch.randn_like(parameter)  # biases that are not 0
    agent.network.register_forward_hook(lambda network, inputs, output: hidden.append(output))
    obs = torch.randint(0, 256, (5, 64, 64, 3), dtype=torch.uint8)
    value = agent.get_value(obs)
    torch.testing.assert_close(hidden[0], plain_network(agent, obs), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(value, agent.critic(hidden[0]).squeeze(-1))


def test_bf16_computes_the_network_in_bfloat16_and_the_rest_in_float32():
    torch.manual_seed(0)
    full = make_agent()
    half = make_agent(precision="bf16")
    seen = []
    half.load_state_dict(full.state_dict())
    for layer in half.network:
        layer.register_forward_hook(lambda layer, inputs, output: seen.append(output.dtype))
    obs = torch.randint(0, 256, (16, 64, 64, 3), dtype=torch.uint8)
    actions = torch.arange(16) % 15
    results = zip(full.evaluate_actions(obs, actions), half.evaluate_actions(obs, actions), strict=True)
    for one, other in results:
        assert other.dtype == torch.float32
        assert torch.allclose(one, other, atol=0.03) and not torch.equal(one, other)
    assert set(seen) == {torch.bfloat16}


# Training
def test_what_the_rollout_saw_is_what_is_learned_from(in_tmp_path, spy):
    resets = spy(ppo.VectorEnv, "reset")
    steps = spy(ppo.VectorEnv, "step")
    noises = spy(ppo.Agent, "draw_noise")
    acts = spy(ppo.Agent, "get_action_and_value")
    last_values = spy(ppo.Agent, "get_value")
    gaes = spy(ppo, "compute_gae")
    losses = spy(ppo, "ppo_loss")
    train(total_timesteps=144, checkpoints=1)  # 3 updates of 2 minibatches
    T, N = 16, 3
    resets = [call for call in resets if len(call.seeds) == N]  # not the check of the arguments
    steps = [call for call in steps if len(call.actions) == N]
    assert len(resets) == 1 and len(steps) == 3 * T
    observations = [resets[0].result, *(call.result[0] for call in steps)]  # before each step, and after the last
    dones = np.array([np.ones(N), *(call.result[2] for call in steps)])
    assert 0 < dones[1:].mean() < 1
    for update in range(3):
        rollout = range(update * T, (update + 1) * T)
        gae = gaes[update]
        for t, i in enumerate(rollout):
            np.testing.assert_array_equal(acts[i].obs, observations[i])
            np.testing.assert_array_equal(acts[i].noise, noises[update].result[t])
            np.testing.assert_array_equal(steps[i].actions, acts[i].result[0])
        np.testing.assert_array_equal(gae.rewards, [steps[i].result[1].astype(np.float32) for i in rollout])
        np.testing.assert_array_equal(gae.values, [acts[i].result[2] for i in rollout])
        np.testing.assert_array_equal(gae.dones, [dones[i] for i in rollout])
        np.testing.assert_array_equal(last_values[update].obs, observations[rollout.stop])
        np.testing.assert_array_equal(gae.next_value, last_values[update].result)
        np.testing.assert_array_equal(gae.next_done, dones[rollout.stop])
        seen = []
        for t, i in enumerate(rollout):
            actions, log_probs, values = acts[i].result
            advantages, returns = (x[t] for x in gae.result)
            seen += samples(observations[i], actions, log_probs, values, advantages, returns)
        learned = []
        for call in losses[2 * update : 2 * update + 2]:
            learned += samples(*call.mb)
        assert len(set(learned)) > 30 and sorted(learned) == sorted(seen)
    assert len({call.result.tobytes() for call in noises}) == 3  # each update has a seed of its own


def samples(obs, *numbers):
    """A tuple for each sample of a batch; its picture is a number."""
    pictures = [zlib.crc32(picture.tobytes()) for picture in obs]
    return list(zip(pictures, *(x.tolist() for x in numbers), strict=True))


# Checkpoints and evaluation
@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of a run that nothing disturbed."""
    with contextlib.chdir(tmp_path_factory.mktemp("whole")):
        return train(exact_resume=True, **TEST_LEVELS).absolute()


def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(whole):
    cut = assert_resumes(ppo, whole, after=2)
    assert state(cut, 6)["envs"]["returns"]["count"] == pytest.approx(288 + 1e-4)
    assert rows(cut, "levels.csv") == rows(whole, "levels.csv")


def test_checkpoints_are_evaluated_on_training_and_test_levels_without_a_trace_in_training(in_tmp_path, capsys):
    plain = train()
    watched = train(capture_video=True, **TEST_LEVELS)
    said = capsys.readouterr().out
    assert said.count("on the training levels") == said.count("on the test levels") == 3
    assert rows(plain, "episodes.csv", ["seconds"]) == rows(watched, "episodes.csv", ["seconds"])
    assert rows(plain, "metrics.csv", ["charts/SPS"]) == rows(watched, "metrics.csv", ["charts/SPS"])
    assert not (plain / "levels.csv").exists()
    assert sorted(file.name for file in watched.glob("videos/*")) == ["2.mp4", "4.mp4", "6.mp4"]
    written = rows(watched, "levels.csv")
    assert list(written[0]) == ["global_step", "levels", "episodic_return", "episodic_length"]
    assert [(row["global_step"], row["levels"]) for row in written] == [
        (str(step), name) for step in (96, 192, 288) for name in ("training", "test") for _ in range(2)
    ]
    type_here("--evaluate", watched, script=SCRIPT)
    again = rows(watched, "evaluation.csv") + rows(watched, "evaluation_test_levels.csv")
    for name in ("episodic_return", "episodic_length"):
        assert [row[name] for row in written[-4:]] == [row[name] for row in again]


def test_a_signal_breaks_an_evaluation_off_and_the_resumed_run_makes_up_for_it(whole, in_tmp_path, monkeypatch):
    play = ppo.play
    played = []

    def play_until_stopped(player, seed):
        played.append(seed)
        if len(played) == 6:  # of the second checkpoint's four
            os.kill(os.getpid(), signal.SIGTERM)
        return play(player, seed)

    with monkeypatch.context() as patch:
        patch.setattr(ppo, "play", play_until_stopped)
        with pytest.raises(SystemExit) as stop:
            train(exact_resume=True, exp_name="cut", **TEST_LEVELS)
    assert stop.value.code == 128 + signal.SIGTERM and len(played) == 6
    (folder,) = in_tmp_path.glob("runs/*__cut__*")
    assert checkpoints(folder) == [2, 4]
    assert rows(folder, "levels.csv") == rows(whole, "levels.csv")[:4]  # of checkpoint 2
    resume(folder)
    assert rows(folder, "levels.csv") == rows(whole, "levels.csv")


def test_as_typed_it_trains_evaluates_on_unseen_levels_and_films_them(in_tmp_path, capsys):
    stdout, stderr = run(*words(**SMALL | {"checkpoints": 1}), script=SCRIPT)
    (folder,) = in_tmp_path.glob("runs/jumper__ppo_procgen__1__*")
    assert stderr == "" and "100%" in stdout
    typed = ["--evaluate", str(folder), "--episodes", "2"]
    type_here(*typed, "--eval-start-level", 3, "--eval-num-levels", 1, script=SCRIPT)
    stdout, stderr = capsys.readouterr()
    assert stderr == "" and len(rows(folder, "evaluation_test_levels.csv")) == 2
    for part in stdout.split("on the test levels, which training never saw:\n"):
        assert part.count("episode ") == 2 and part.count(f"of {folder}/checkpoints/6.pt") == 1
    type_here(*typed, "--capture-video", script=SCRIPT)
    assert "test levels" not in capsys.readouterr().out
    first = rows(folder, "evaluation.csv")[0]
    capture = cv2.VideoCapture(str(folder / "evaluation.mp4"))
    assert int(capture.get(cv2.CAP_PROP_FRAME_COUNT)) == int(first["episodic_length"])
    assert capture.get(cv2.CAP_PROP_FPS) == 15
    whole, picture = capture.read()
    assert whole and picture.shape == (512, 512, 3) and picture.std() > 10  # the game, drawn for people


# Mistakes
@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"env_id": "CartPole-v1"}, "--distribution-mode easy are bigfish, bossfight, caveflyer"),
        ({"distribution_mode": "memory", "env_id": "bigfish"}, "--distribution-mode memory are caveflyer, dodgeball"),
        ({"distribution_mode": "exploration", "num_levels": 0, "eval_start_level": 0}, "leave out all other levels"),
        ({"num_levels": -1}, "--num-levels -1: must be"),
        ({"num_levels": 2**31 - 5, "start_level": 5}, "levels 5 to 2147483647: Procgen's last is 2147483646"),
        ({"env_kwargs": '{"num_levels": 5}'}, "multiple values for keyword argument 'num_levels'"),
        ({"eval_num_levels": 5}, "needs --eval-start-level"),
        ({"num_levels": 10, "eval_start_level": 9}, "trains on some of the test levels"),
        ({"num_levels": 0, "eval_start_level": 9}, "train on fewer (--num-levels)"),
    ],
)
def test_a_mistake_gets_one_line_and_creates_nothing(refusal, flags, said):
    assert said in refusal(ppo, **SMALL | flags)


def test_pictures_that_do_not_fit_their_space_are_refused(refusal, monkeypatch):
    monkeypatch.setattr(ppo.VectorEnv, "step", lambda envs, actions: (np.zeros((1, 64, 64, 3)),))
    assert "VectorEnv.step returns float64, but its observation_space says uint8" in refusal(ppo, **SMALL)


def test_without_procgen_it_says_how_to_install_it(refusal, monkeypatch):
    for name in [name for name in ppo.sys.modules if name.split(".")[0] == "procgen"]:
        monkeypatch.delitem(ppo.sys.modules, name)
    monkeypatch.setitem(ppo.sys.modules, "procgen", None)
    assert "pip install --no-deps -r requirements-procgen.txt" in refusal(ppo, **SMALL)


def test_without_opengl_it_says_what_is_missing(refusal, monkeypatch):
    def make(**options):
        raise OSError("cannot load library 'libenv.so': libGL.so.1: cannot open shared object file")

    monkeypatch.setattr(procgen.env, "ProcgenGym3Env", make)
    assert "libGL.so.1: cannot open shared object file" in refusal(ppo, **SMALL)


# Learning
def test_it_learns_a_level_of_jumper(in_tmp_path, monkeypatch):
    monkeypatch.setattr(ppo, "Agent", small_agent(ppo))
    sizes = {"num_envs": 16, "num_steps": 32, "num_minibatches": 4, "update_epochs": 3, "total_timesteps": 3072}
    args = ppo.Args(**SMALL | sizes | {"checkpoints": 1})
    learn(ppo, args, enough=9.2, episodes=100)  # the carrot pays 10; drawn at random, actions reach it in 7 games of 10
