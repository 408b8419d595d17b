"""What ppo_atari_envpool.py adds to ppo_atari.py: EnvPool's games, the steps that only begin an episode, --compile."""

import collections
import json
import os
from functools import partial
from types import SimpleNamespace

import cv2
import environments_atari  # noqa: F401 (registers them)
import envpool
import gymnasium as gym
import numpy as np
import ppo_atari
import ppo_atari_envpool as ppo
import pytest
import torch
from helpers import TESTS, assert_resumes, assert_same_state, logged, rows, state, type_here, words

SCRIPT = TESTS.parent / "cleanrl" / "ppo_atari_envpool.py"
# 6 updates of 24 steps, checkpoints after 2, 4 and 6
SMALL = {
    "env_id": "Noise-v0", "total_timesteps": 144, "num_envs": 3, "num_steps": 8, "num_minibatches": 2,
    "update_epochs": 1, "checkpoints": 3, "num_threads": 1, "device": "cpu",
}  # fmt: skip


def make_envs(env_id, num_envs, **arguments):
    return ppo.VectorEnv(ppo.Args(env_id=env_id, env_threads=1, **arguments), num_envs)


class Pool:
    """Environments of gymnasium in EnvPool's manner: seeds are given when they are made, and the step after the end of
    an episode only begins the next."""

    made = []  # noqa: RUF012
    metadata = {}  # noqa: RUF012

    def __init__(self, task_id, num_envs, seed, **options):
        def make():
            return gym.wrappers.FrameStackObservation(gym.make(task_id, disable_env_checker=True), 4)

        self.envs, self.seed = gym.vector.SyncVectorEnv([make] * num_envs), seed  # NEXT_STEP
        self.step = self.envs.step
        self.made.append(self)

    def reset(self):
        return self.envs.reset(seed=self.seed)


@pytest.fixture
def train(monkeypatch, in_tmp_path):
    """Runs a small training on the tests' environments in this process; returns its folder."""
    config = collections.namedtuple("Config", "stack_num")(4)
    frames = gym.spaces.Box(0, 255, (4, 84, 84), np.uint8)
    spec = SimpleNamespace(config=config, observation_space=frames, action_space=gym.spaces.Discrete(3))
    monkeypatch.setattr(envpool, "list_all_envs", lambda: ["Noise-v0"])
    monkeypatch.setattr(envpool, "make_spec", lambda env_id, **options: spec)
    monkeypatch.setattr(envpool, "make_gymnasium", Pool)
    monkeypatch.setattr(Pool, "made", [])
    return lambda **arguments: ppo.main(ppo.Args(**SMALL | arguments))


# EnvPool's games
class OneFrameOfFire(gym.Wrapper):
    def reset(self, **arguments):
        self.env.reset(**arguments)
        return self.env.step(1)[::4]


@pytest.mark.parametrize(("game", "fire"), [("Pong", 0), ("Breakout", 0), ("MsPacman", 0), ("Breakout", 1)])
def test_frames_and_rewards_are_those_of_the_parent(monkeypatch, game, fire):
    """With one no-op and no FIRE on both sides, or no no-op and EnvPool's one frame of FIRE, up to the first end: from
    there on the no-ops are drawn differently."""
    preprocess, make = gym.wrappers.AtariPreprocessing, ppo_atari.make_env

    def begin(env, **options):
        return preprocess(OneFrameOfFire(env), 0) if fire else preprocess(env, 1)

    def make_without_opening(*arguments):
        env = make(*arguments)
        env.env.opening = []
        return env

    monkeypatch.setattr(gym.wrappers, "AtariPreprocessing", begin)
    monkeypatch.setattr(ppo_atari, "make_env", make_without_opening)
    theirs = ppo_atari.VectorEnv(ppo_atari.Args(env_id=f"{game}NoFrameskip-v4"), 2)
    ours = make_envs(f"{game}-v5", 2)
    options = ours.make.keywords
    assert options["noop_max"] == 30 and options["use_fire_reset"] and options["episodic_life"]
    ours.make = partial(ours.make, noop_max=1, use_fire_reset=bool(fire))
    assert ours.action_space.n == theirs.action_space.n
    assert ours.observation_space == theirs.observation_space
    assert (ours.reset([1, 2]) == theirs.reset([1, 2])).all()
    assert ours.vector.spec.config.repeat_action_probability == 0.0
    rng, ends, paid = np.random.default_rng(fire), np.zeros(2, bool), 0
    for _ in range(300):
        actions = rng.integers(ours.action_space.n, size=2)
        obs, rewards, dones, *_ = ours.step(actions)
        their_obs, their_rewards, their_dones, *_ = theirs.step(actions)
        assert (rewards == their_rewards)[~ends].all() and (dones == their_dones)[~ends].all()
        ends |= dones.astype(bool)
        assert (obs == their_obs)[~ends].all()
        paid += np.abs(rewards[~ends]).sum()
        if ends.all():
            break
    assert paid >= 1 and obs.std() > 5  # or the comparison said little


class Script:
    """An EnvPool of one game whose steps are written down as (raw reward, terminated, truncated, game over, lives)."""

    metadata = {}  # noqa: RUF012

    def __init__(self, steps):
        self.steps = iter(steps)

    def reset(self):
        return np.zeros((1, 4, 84, 84), np.uint8), {}

    def step(self, actions):
        reward, terminated, truncated, over, lives = next(self.steps)
        info = {"reward": np.array([reward]), "terminated": np.array([over]), "lives": np.array([lives])}
        flags = (np.array([bool(x)]) for x in (terminated, truncated))
        return np.full((1, 4, 84, 84), 7, np.uint8), np.sign([reward]), *flags, info


@pytest.mark.parametrize(
    ("steps", "games", "cut"),
    [
        # a life is lost, then the game: one whole game, in which the step that resets is none
        ([(4, 0, 0, 0, 2), (1, 1, 0, 0, 1), (0, 0, 0, 0, 1), (7, 1, 0, 1, 0), (0, 0, 0, 0, 2)], [(12, 3)], []),
        # a time limit ends the game, and nothing of it reaches the next
        ([(4, 0, 1, 0, 2), (0, 0, 0, 0, 2), (7, 1, 0, 1, 0)], [(4, 1), (7, 1)], [0]),
        # the game is over in the very step of the time limit: a true end
        ([(4, 0, 1, 1, 0), (0, 0, 0, 0, 2), (7, 1, 0, 1, 0)], [(4, 1), (7, 1)], []),
        # the no-ops after a lost life cost the last one, and EnvPool starts another game without a word
        ([(4, 0, 0, 0, 2), (1, 1, 0, 0, 1), (0, 0, 0, 0, 3), (7, 1, 0, 1, 0), (0, 0, 0, 0, 3)], [(5, 2), (7, 1)], []),
    ],
)
def test_returns_span_the_game_and_are_not_clipped(steps, games, cut):
    envs = make_envs("Breakout-v5", 1)
    envs.make = lambda seed: Script(steps)
    envs.reset([1])
    ended, truncated_at = [], []
    for step, (reward, terminated, truncated, *_) in enumerate(steps):
        obs, rewards, dones, truncated_obs, episodes = envs.step(np.array([0]))
        assert rewards == np.sign(reward) and dones == (terminated or truncated)
        ended += [(episode["r"], episode["l"]) for episode in episodes]
        truncated_at += [step] * len(truncated_obs)
        assert all((last == obs[i]).all() for i, last in truncated_obs.items())
    assert ended == games
    assert truncated_at == cut


def test_the_seeds_reach_the_games():
    envs = make_envs("MsPacman-v5", 3)
    envs.reset([4, 4, 5])
    one, same, other = np.array([envs.step(np.zeros(3, np.int32))[0] for _ in range(60)]).swapaxes(0, 1)
    assert (one == same).all() and (one != other).any()


def test_every_start_has_seeds_of_its_own(train):
    train(exact_resume=True)
    seeds = [seed for pool in Pool.made if len(pool.seed) > 1 for seed in pool.seed]  # the first is the check's
    assert len(set(seeds)) == len(seeds) == 3 * 3  # at the start and after each checkpoint but the last
    assert all(0 <= seed < 2**31 for seed in seeds)


# The steps that only begin an episode
def poisoned(monkeypatch, when):
    """Spoils what the environments hand back wherever `when(dones before the step, dones after it)`."""
    step, spoiled = ppo.VectorEnv.step, []

    def spoiled_step(envs, actions):
        resets = envs.resets.copy()
        obs, rewards, dones, *rest = step(envs, actions)
        where = when(resets, dones == 1)
        spoiled.append(where.sum())
        rewards = np.where(when(resets, resets), 1e6, rewards)
        obs = np.where(where[:, None, None, None], np.uint8(255) - obs, obs)
        return obs, rewards, dones, *rest

    monkeypatch.setattr(ppo.VectorEnv, "step", spoiled_step)
    return spoiled


@pytest.mark.parametrize(
    "options", [{}, {"norm_adv": False, "target_kl": 1e-9, "update_epochs": 3, "precision": "bf16"}]
)
def test_steps_that_only_begin_an_episode_change_nothing(train, monkeypatch, options):
    clean = train(**options)
    with monkeypatch.context() as patch:
        spoiled = poisoned(patch, lambda resets, dones: dones)
        dirty = train(**options)
    assert sum(spoiled) > 20  # of 144
    assert_same_state(state(dirty, 6), state(clean, 6))
    ours, theirs = logged(dirty), logged(clean)
    for row in (*ours[1], *theirs[1]):
        row.pop("charts/reward")  # of all steps, as the environments gave them
    assert ours == theirs  # all metrics, explained variance too
    with monkeypatch.context() as patch:
        poisoned(patch, lambda resets, dones: np.arange(3) == 1)
        other = train(**options)
    assert not torch.equal(state(other, 6)["model"]["critic.weight"], state(clean, 6)["model"]["critic.weight"])


def test_the_loss_is_the_parents_on_the_samples_that_count():
    torch.manual_seed(0)
    log_prob, entropy, value, *columns = torch.randn(7, 64)
    log_prob = columns[0] + 0.1 * log_prob  # near the old ones
    obs = actions = torch.zeros(64)
    for valid in ((torch.rand(64) < 0.8).float(), torch.ones(64)):
        counted = valid == 1
        inputs = [x.clone().requires_grad_() for x in (log_prob, entropy, value)]
        mb = ppo.Batch(obs, actions, *columns, valid)
        loss, debug = ppo.ppo_loss(*inputs, mb, 0.1, ppo.Args())
        theirs = [x[counted].clone().requires_grad_() for x in (log_prob, entropy, value)]
        their_mb = ppo_atari.Batch(*(x[counted] for x in mb[:6]))
        their_loss, their_debug = ppo_atari.ppo_loss(*theirs, their_mb, 0.1, ppo_atari.Args())
        assert debug.keys() == their_debug.keys() and 0.1 < their_debug["losses/clipfrac"] < 0.9
        for name, x in debug.items():
            torch.testing.assert_close(x, their_debug[name], rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(loss, their_loss, rtol=1e-4, atol=1e-6)
        gradients, their_gradients = torch.autograd.grad(loss, inputs), torch.autograd.grad(their_loss, theirs)
        for gradient, their_gradient in zip(gradients, their_gradients):
            torch.testing.assert_close(gradient[counted], their_gradient, rtol=1e-4, atol=1e-7)
            assert not gradient[~counted].any()


def test_a_minibatch_without_any_sample_that_counts_teaches_nothing():
    columns = [torch.randn(8, requires_grad=True) for _ in range(3)]
    mb = ppo.Batch(*(torch.randn(8) for _ in range(6)), torch.zeros(8))
    loss, debug = ppo.ppo_loss(*columns, mb, 0.1, ppo.Args())
    assert all((gradient == 0).all() for gradient in torch.autograd.grad(loss, columns))
    assert not any(x.any() for x in debug.values())


def test_a_time_limit_is_bootstrapped_by_the_value_of_its_last_observation(train, monkeypatch):
    """Every step is cut by a time limit or only resets, so that all rewards carry the value of what was seen last."""
    seen, step, estimate = [], ppo.VectorEnv.step, ppo.compute_gae

    def limited_step(envs, actions):
        resets = envs.resets.copy()
        obs, rewards, *_ = step(envs, actions)
        envs.resets = ~resets
        cut = {i: obs[i] for i in np.flatnonzero(~resets)}
        return obs, rewards * 0, envs.resets.astype(np.float32), cut, []

    def noted(rewards, values, dones, *rest):
        seen.append((rewards.copy(), values.copy(), dones.copy()))
        return estimate(rewards, values, dones, *rest)

    monkeypatch.setattr(ppo.VectorEnv, "step", limited_step)
    monkeypatch.setattr(ppo, "compute_gae", noted)
    train(bootstrap_truncated=True, gamma=0.5)
    for rewards, values, dones in seen:
        assert dones[:, 0].tolist() == [0, 1] * 4
        np.testing.assert_allclose(rewards[::2], 0.5 * values[1::2], rtol=1e-4, atol=1e-6)
        assert not rewards[1::2].any()


# Training
def test_a_resumed_run_ends_as_an_undisturbed_one_to_the_bit(train):
    assert_resumes(ppo, train(bootstrap_truncated=True, anneal_clip=True, exact_resume=True), after=2)


@pytest.mark.seldom  # half a minute of compiling
def test_a_compiled_policy_learns_the_same(train):
    options = {"total_timesteps": 48, "anneal_clip": True}
    plain, compiled = train(**options), train(**options, compile=True)
    assert logged(plain)[0] == logged(compiled)[0]
    for one, other in zip(logged(plain)[1], logged(compiled)[1], strict=True):
        for name in one:
            assert float(one[name]) == pytest.approx(float(other[name]), rel=1e-3, abs=1e-5, nan_ok=True), name
    weights = state(compiled, 2)["model"]
    assert weights.keys() == state(plain, 2)["model"].keys()  # and are loaded without a compiler


# The command line
def test_as_typed_it_trains_records_and_evaluates(in_tmp_path, capsys):
    options = SMALL | {"env_id": "Breakout-v5", "num_envs": 2, "total_timesteps": 16, "checkpoints": 1}
    type_here(*words(**options), script=SCRIPT)
    stdout, stderr = capsys.readouterr()
    (folder,) = in_tmp_path.glob("runs/Breakout-v5__ppo_atari_envpool__1__*")
    assert stderr == "" and "100%" in stdout
    assert json.loads((folder / "config.json").read_text())["versions"]["envpool"] == envpool.__version__
    typed = ["--evaluate", folder, "--episodes", 4, "--longest-episode", 100, "--capture-video", "--deterministic"]
    type_here(*typed, script=SCRIPT)
    stdout, stderr = capsys.readouterr()
    episode, *others = rows(folder, "evaluation.csv")
    assert len(others) == 3  # seeds of 32 bits, which EnvPool doesn't take, are among the first four
    assert stderr == "" and f"episode 1: return {float(episode['episodic_return']):.2f}" in stdout
    capture = cv2.VideoCapture(str(folder / "evaluation.mp4"))
    frames = int(capture.get(cv2.CAP_PROP_FRAME_COUNT))
    assert 0 <= frames - int(episode["episodic_length"]) <= 10 and capture.get(cv2.CAP_PROP_FPS) == 15
    whole, picture = capture.read()
    assert whole and picture.shape == (210, 160, 3) and picture.std() > 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"env_id": "Breakuot-v5"}, "has no such task"),
        ({"env_id": "CartPole-v1"}, "use an Atari game"),
        ({"compile": True}, "install absent-compiler"),
    ],
)
def test_a_mistake_gets_one_line_and_creates_nothing(refusal, monkeypatch, arguments, said):
    monkeypatch.setenv("CXX", "absent-compiler")
    assert said in refusal(ppo, **{"env_id": "Pong-v5", "device": "cpu"} | arguments)


def test_an_episode_that_never_ends_is_cut_and_its_return_so_far_counts(train, monkeypatch):
    folder = train()
    step = ppo.VectorEnv.step
    returns = []

    def endless_step(envs, actions):
        result = step(envs, actions)
        returns.append(envs.game_returns[0])
        return *result[:4], []

    monkeypatch.setattr(ppo.VectorEnv, "step", endless_step)
    ppo.main(*ppo.read_arguments(["--evaluate", str(folder), "--episodes", "1", "--longest-episode", "3"]))
    (episode,) = rows(folder, "evaluation.csv")
    assert (episode["episodic_length"], episode["is_cut"]) == ("3", "1")
    assert float(episode["episodic_return"]) == returns[-1] != 0


def test_an_evaluation_needs_no_compiler(train, monkeypatch):
    folder = train()
    monkeypatch.setenv("CXX", "absent-compiler")
    ppo.main(*ppo.read_arguments(["--evaluate", str(folder), "--episodes", "1", "--compile"]))


def test_threads_follow_the_cores_that_the_process_may_use(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {3, 5, 6})
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # torchrun sets it, for torch
    assert ppo.VectorEnv(ppo.Args(), 1).make.keywords["num_threads"] == 3
    assert ppo.VectorEnv(ppo.Args(env_threads=2), 1).make.keywords["num_threads"] == 2
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert ppo.VectorEnv(ppo.Args(), 1).make.keywords["num_threads"] == 1
    with pytest.raises(ppo.UserError, match="--env-threads -1: must be at least 1"):  # EnvPool would end the process
        ppo.check_arguments(ppo.Args(env_threads=-1))
