"""What ppo_atari_envpool.py adds to ppo_atari.py: EnvPool's games, the rows that reset them, compiled functions."""

import collections
import contextlib
import json
import os
import sys
from types import SimpleNamespace

import environments_atari  # noqa: F401 (registers them)
import envpool
import gymnasium as gym
import numpy as np
import ppo_atari
import ppo_atari_envpool as ppo
import pytest
import torch
import torch.nn as nn
from helpers import TESTS, assert_same_state, rows, run, state, type_here, words

SCRIPT = TESTS.parent / "cleanrl" / "ppo_atari_envpool.py"
SMALL = {
    "env_id": "Noise-v0", "total_timesteps": 144, "num_envs": 3, "num_steps": 8, "num_minibatches": 2,
    "update_epochs": 1, "checkpoints": 3, "num_threads": 1, "cuda": False,
}  # fmt: skip


def make_envs(env_id, **arguments):
    return ppo.VectorEnv(ppo.Args(env_id=env_id, env_threads=1, **arguments))


class Pool:
    """Environments of gymnasium in EnvPool's manner: seeds are given when they are made, and the step after the end of
    an episode resets it."""

    made = []  # noqa: RUF012

    def __init__(self, task_id, num_envs, seed, **options):
        def make():
            return gym.wrappers.FrameStackObservation(gym.make(task_id, disable_env_checker=True), 4)

        self.envs, self.seed = gym.vector.SyncVectorEnv([make] * num_envs), seed  # NEXT_STEP
        self.step, self.close = self.envs.step, self.envs.close
        self.made.append(self)

    def reset(self):
        return self.envs.reset(seed=self.seed)


@pytest.fixture
def train(monkeypatch, in_tmp_path):
    """Runs a small training on the tests' environments in this process; returns its folder."""
    config = collections.namedtuple("Config", "stack_num")(4)
    frames = gym.spaces.Box(0, 255, (4, 84, 84), np.uint8)
    spec = SimpleNamespace(config=config, observation_space=frames, action_space=gym.spaces.Discrete(3))
    monkeypatch.setattr(envpool, "list_all_envs", lambda: ["Noise-v0", "Catch-v0"])
    monkeypatch.setattr(envpool, "make_spec", lambda env_id, **options: spec)
    monkeypatch.setattr(envpool, "make_gymnasium", Pool)
    monkeypatch.setattr(Pool, "made", [])
    return lambda **arguments: ppo.main(ppo.Args(**SMALL | arguments))


def same_rows(one, other):
    return all(
        rows(one, name, without) == rows(other, name, without)
        for name, without in (("episodes.csv", ["seconds"]), ("metrics.csv", ["charts/SPS"]))
    )


# EnvPool's games
class OneFrameOfFire(gym.Wrapper):
    def reset(self, **arguments):
        self.env.reset(**arguments)
        return self.env.step(1)[::4]


@pytest.mark.parametrize(("game", "fire"), [("Pong", 0), ("Breakout", 0), ("MsPacman", 0), ("Breakout", 1)])
def test_frames_and_rewards_are_those_of_the_parent(monkeypatch, game, fire):
    """With one no-op and no FIRE on both sides, or no no-op and EnvPool's one frame of FIRE, up to the first end: from
    there on the no-ops are drawn differently."""
    preprocess = gym.wrappers.AtariPreprocessing

    def begin(env, noop_max, frame_skip):
        return preprocess(OneFrameOfFire(env), 0) if fire else preprocess(env, 1)

    monkeypatch.setattr(gym.wrappers, "AtariPreprocessing", begin)
    make, theirs = ppo_atari.make_env, ppo_atari.VectorEnv(ppo_atari.Args(env_id=f"{game}NoFrameskip-v4"))

    def make_without_opening(*arguments):
        env = make(*arguments)
        env.opening = []
        return env

    monkeypatch.setattr(ppo_atari, "make_env", make_without_opening)
    ours = make_envs(f"{game}-v5")
    assert ours.options["noop_max"] == 30 and ours.options["use_fire_reset"] and ours.options["episodic_life"]
    ours.options |= {"noop_max": 1, "use_fire_reset": bool(fire)}
    assert ours.action_space.n == theirs.action_space.n
    seen = [ours.reset([1, 2]), theirs.reset([1, 2])]
    assert (seen[0] == seen[1]).all() and ours.envs.spec.config.repeat_action_probability == 0.0
    rng, ends, paid = np.random.default_rng(fire), np.zeros(2, bool), 0
    for _ in range(300):
        actions = rng.integers(ours.action_space.n, size=2)
        (obs, rewards, dones, *_), (their_obs, their_rewards, their_dones, *_) = (
            ours.step(actions),
            theirs.step(actions),
        )
        assert (rewards == their_rewards)[~ends].all() and (dones == their_dones)[~ends].all()
        ends |= dones.astype(bool)
        assert (obs == their_obs)[~ends].all()
        paid += np.abs(rewards[~ends]).sum()
        if ends.all():
            break
    assert paid >= 1 and obs.std() > 5  # or the comparison said little


class Script:
    """An EnvPool of one game whose steps are written down as (raw reward, terminated, truncated, game over, lives)."""

    def __init__(self, steps):
        self.steps = iter(steps)

    def reset(self):
        return np.zeros((1, 4, 84, 84), np.uint8), {}

    def step(self, actions):
        reward, terminated, truncated, over, lives = next(self.steps)
        info = {"reward": np.array([reward]), "terminated": np.array([over]), "lives": np.array([lives])}
        flags = (np.array([bool(x)]) for x in (terminated, truncated))
        return np.full((1, 4, 84, 84), 7, np.uint8), np.array([reward]), *flags, info

    def close(self):
        pass


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
def test_returns_span_the_game_and_are_not_clipped(monkeypatch, steps, games, cut):
    monkeypatch.setattr(envpool, "make_gymnasium", lambda **options: Script(steps))
    envs = make_envs("Breakout-v5")
    envs.reset([1])
    ended, truncated_at = [], []
    for step, (reward, terminated, truncated, *_) in enumerate(steps):
        obs, rewards, dones, truncated_obs, episodes = envs.step([0])
        assert rewards == np.sign(reward) and dones == (terminated or truncated)
        ended += episodes
        truncated_at += [step] * len(truncated_obs)
        assert all((last == obs[i]).all() for i, last in truncated_obs.items())
    assert ended == games
    assert truncated_at == cut


def test_every_pool_has_seeds_of_its_own(train):
    train()
    train()
    seeds = [tuple(pool.seed) for pool in Pool.made if len(pool.seed) > 1]  # the first is validate's
    assert seeds[:3] == seeds[3:]  # at the start and after each checkpoint but the last
    train(seed=2)
    others = [pool.seed for pool in Pool.made if len(pool.seed) > 1][6:]
    assert len({seed for given in (*seeds[:3], *others) for seed in given}) == 6 * 3
    assert all(0 <= seed < 2**31 for given in seeds for seed in given)


def test_the_seeds_reach_the_games():
    def opening(seed):
        envs = make_envs("MsPacman-v5")
        frames = [envs.reset([seed]), *(envs.step(np.array([0]))[0] for _ in range(100))]

        return np.array(frames)

    assert (opening(4) == opening(4)).all()
    assert (opening(4) != opening(6)).any()


# The rows that reset
def poisoned(monkeypatch, when):
    """Spoils what the environments hand back wherever `when(dones before the step, dones after it)`."""
    step, before = ppo.VectorEnv.step, []

    def spoiled_step(envs, actions):
        resets = envs.resets.copy()
        obs, rewards, dones, *rest = step(envs, actions)
        rows_to_reset = when(resets, dones == 1)
        before.append(rows_to_reset.sum())
        rewards = np.where(when(resets, resets), 1e6, rewards)
        obs = np.where(rows_to_reset[:, None, None, None], np.uint8(255) - obs, obs)
        return obs, rewards, dones, *rest

    monkeypatch.setattr(ppo.VectorEnv, "step", spoiled_step)
    return before


@pytest.mark.parametrize(
    "options", [{}, {"norm_adv": False, "target_kl": 1e-9, "update_epochs": 3}, {"precision": "bf16"}]
)
def test_rows_that_reset_change_nothing(train, monkeypatch, options):
    clean = train(**options)
    with monkeypatch.context() as patch:
        spoiled = poisoned(patch, lambda resets, dones: dones)
        dirty = train(**options)
    assert sum(spoiled) > 20  # of 144
    assert_same_state(state(dirty, 6), state(clean, 6))
    assert same_rows(dirty, clean)  # all metrics, explained variance too
    with monkeypatch.context() as patch:
        poisoned(patch, lambda resets, dones: np.arange(3) == 1)
        other = train(**options)
    assert not torch.equal(state(other, 6)["model"]["critic.weight"], state(clean, 6)["model"]["critic.weight"])


def test_the_loss_is_the_parents_on_the_rows_that_count():
    torch.manual_seed(0)
    columns = [torch.randn(64) for _ in range(7)]
    columns[0] = columns[3] + 0.1 * columns[0]  # log-probs near the old ones
    valid, coefficients = (torch.rand(64) < 0.8).float(), (True, True, 0.01, 0.5)
    for counted in (valid, torch.ones(64)):
        inputs = [x.clone().requires_grad_() for x in columns[:3]]
        loss, debug = ppo.ppo_loss(*inputs, *columns[3:], counted, torch.tensor(0.1), *coefficients)
        theirs = [x[counted == 1].clone().requires_grad_() for x in columns[:3]]
        their_loss, their_debug = ppo_atari.ppo_loss(
            *theirs, *(x[counted == 1] for x in columns[3:]), 0.1, *coefficients
        )
        assert debug.keys() == their_debug.keys() and 0.1 < their_debug["losses/clipfrac"].mean() < 0.9
        for name, x in debug.items():
            torch.testing.assert_close(x.mean(), their_debug[name].mean(), rtol=1e-4, atol=1e-6)
            assert x.shape == (64,) and not x[counted == 0].any()
            assert not x.requires_grad  # its autograd graph would outlive the minibatch, and hinder CUDA graphs
        torch.testing.assert_close(loss, their_loss, rtol=1e-4, atol=1e-6)
        gradients, their_gradients = torch.autograd.grad(loss, inputs), torch.autograd.grad(their_loss, theirs)
        for gradient, their_gradient in zip(gradients, their_gradients):
            torch.testing.assert_close(gradient[counted == 1], their_gradient, rtol=1e-4, atol=1e-7)
            assert not gradient[counted == 0].any()


def test_a_minibatch_of_resets_alone_teaches_nothing():
    columns = [torch.randn(8, requires_grad=i < 3) for i in range(7)]
    loss, debug = ppo.ppo_loss(*columns, torch.zeros(8), torch.tensor(0.1), True, True, 0.01, 0.5)
    assert all((gradient == 0).all() for gradient in torch.autograd.grad(loss, columns[:3]))
    assert not any(x.any() for x in debug.values())


@pytest.mark.parametrize("T", [1, 2, 5, 8, 33, 128])
def test_advantages_are_the_parents(T):
    rng = np.random.default_rng(T)
    rollout = [*rng.normal(size=(2, T, 4)), (rng.random((T, 4)) < 0.1).astype(float), rng.normal(size=4), np.eye(4)[0]]
    expected = ppo_atari.compute_gae(*rollout, 0.97, 0.9)
    for ours, theirs in zip(ppo.compute_gae(*map(torch.from_numpy, rollout), 0.97, 0.9), expected, strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-10, atol=1e-12)


def test_a_time_limit_is_bootstrapped_by_the_value_of_its_last_observation(train, monkeypatch):
    """Every step is cut by a time limit or only resets, so that all rewards carry the value of what was seen last."""
    seen, step, estimate = [], ppo.VectorEnv.step, ppo.compute_gae

    def limited_step(envs, actions):
        resets = envs.resets.copy()
        obs, rewards, *_ = step(envs, actions)
        envs.resets = ~resets
        cut = {i: obs[i] for i in np.flatnonzero(~resets)}
        return obs, rewards * 0, envs.resets.astype(np.float32), cut, []

    def noted(rewards, values, dones, *rest, **coefficients):
        seen.append((rewards.clone(), values.clone(), dones.clone()))
        return estimate(rewards, values, dones, *rest, **coefficients)

    monkeypatch.setattr(ppo.VectorEnv, "step", limited_step)
    monkeypatch.setattr(ppo, "compute_gae", noted)
    train(bootstrap_truncated=True, gamma=0.5)
    for rewards, values, dones in seen:
        assert dones[:, 0].tolist() == [0, 1] * 4
        torch.testing.assert_close(rewards[::2], 0.5 * values[1::2])
        assert not rewards[1::2].any()


# Training
def test_a_resumed_run_ends_as_an_undisturbed_one_to_the_bit(train):
    options = {"bootstrap_truncated": True, "anneal_clip": True}
    undisturbed, folder = train(**options), train(**options)
    for last in (6, 4):
        (folder / "checkpoints" / f"{last}.pt").unlink()
    assert ppo.main(ppo.Args(resume=str(folder))) == folder
    assert_same_state(state(folder, 6), state(undisturbed, 6))
    assert same_rows(folder, undisturbed)


def test_games_of_envpool_resume_to_the_bit_on_any_number_of_threads(in_tmp_path):
    options = SMALL | {"env_id": "Breakout-v5", "num_steps": 32, "total_timesteps": 384, "checkpoints": 2}
    undisturbed, folder = (ppo.main(ppo.Args(**options, env_threads=threads)) for threads in (1, 3))
    assert_same_state(state(folder, 4), state(undisturbed, 4))
    (folder / "checkpoints" / "4.pt").unlink()
    ppo.main(ppo.Args(resume=str(folder)))
    assert_same_state(state(folder, 4), state(undisturbed, 4))


def test_compiled_functions_learn_the_same(train):
    plain, compiled = (
        train(total_timesteps=48, anneal_clip=True),
        train(total_timesteps=48, anneal_clip=True, compile=True),
    )
    assert rows(plain, "episodes.csv", ["seconds"]) == rows(compiled, "episodes.csv", ["seconds"])
    torch.manual_seed(1)
    initial, ours, theirs = ppo.Agent(3).state_dict(), state(compiled, 2)["model"], state(plain, 2)["model"]
    moved = max((theirs[name] - initial[name]).abs().max() for name in initial)
    assert all((ours[name] - theirs[name]).abs().max() < 0.02 * moved for name in initial)
    for one, other in zip(rows(plain, "metrics.csv"), rows(compiled, "metrics.csv"), strict=True):
        for name in one.keys() - {"charts/SPS"}:
            assert float(one[name]) == pytest.approx(float(other[name]), rel=1e-3, abs=1e-5, nan_ok=True), name


def test_a_recorded_function_reads_fresh_arguments_and_keeps_what_it_returned(monkeypatch):
    """Without a GPU, so with a stand-in for torch.cuda that runs the function again where a GPU would launch its graph.
    It says nothing of the GPU's side."""

    class Graph:
        def replay(self):
            for held, x in zip(recorded.result, recorded.function(*recorded.arguments), strict=True):
                held.copy_(x)

    stream = SimpleNamespace(wait_stream=lambda other: None)
    for name, stand_in in (("current_stream", lambda: stream), ("Stream", lambda: stream), ("CUDAGraph", Graph)):
        monkeypatch.setattr(torch.cuda, name, stand_in)
    for name in ("stream", "graph"):
        monkeypatch.setattr(torch.cuda, name, lambda _: contextlib.nullcontext())
    recorded = ppo.CudaGraph(lambda x, noise: (x + noise, x * 2))
    inputs = [(torch.full((3,), float(i)), torch.randn(3)) for i in range(8)]
    results = [recorded(*given) for given in inputs]
    assert recorded.graph is not None and len({id(result[0]) for result in results}) == 8
    for (x, noise), (total, double) in zip(inputs, results, strict=True):
        assert torch.equal(total, x + noise) and torch.equal(double, x * 2)
    assert torch.equal(inputs[3][0], torch.full((3,), 3.0))  # the caller's own tensors stay as they were


class SmallAgent(ppo.Agent):
    """The agent with a network that learns in seconds."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        layers = nn.AvgPool2d(12), nn.Flatten(), ppo.layer_init(nn.Linear(4 * 7 * 7, 512)), nn.ReLU()
        self.network = nn.Sequential(*layers)


def test_it_learns_to_catch_a_ball(train, monkeypatch):
    monkeypatch.setattr(ppo, "Agent", SmallAgent)
    sizes = {"num_envs": 16, "num_steps": 32, "num_minibatches": 4, "update_epochs": 4, "total_timesteps": 15_360}
    folder = train(env_id="Catch-v0", learning_rate=2e-3, checkpoints=1, **sizes)
    returns = [float(row["episodic_return"]) for row in rows(folder, "episodes.csv")]
    assert np.mean(returns[:200]) < 0  # chance catches about one ball in four
    assert np.mean(returns[-200:]) > 1


# The command line
def test_as_typed_it_trains_records_resumes_and_evaluates(in_tmp_path, capsys):
    cv2 = pytest.importorskip("cv2")
    options = SMALL | {"env_id": "Breakout-v5", "num_envs": 2, "total_timesteps": 32, "checkpoints": 2}
    stdout, stderr = run(*words(**options), script=SCRIPT)
    (folder,) = in_tmp_path.glob("runs/Breakout-v5__ppo_atari_envpool__1__*")
    assert stderr == "" and "100%" in stdout
    assert json.loads((folder / "config.json").read_text())["versions"]["envpool"] == envpool.__version__
    (folder / "checkpoints" / "2.pt").unlink()
    type_here("--resume", folder, script=SCRIPT)
    capsys.readouterr()
    type_here("--evaluate", folder, "--episodes", 1, "--capture-video", script=SCRIPT)
    stdout, stderr = capsys.readouterr()
    assert stderr == "" and "episode 0: return " in stdout
    (video,) = folder.glob("checkpoints/*.mp4")
    capture = cv2.VideoCapture(str(video))
    length = int(stdout.split("length ")[1].split()[0])
    frames = int(capture.get(cv2.CAP_PROP_FRAME_COUNT))
    assert 0 <= frames - length <= 10 and capture.get(cv2.CAP_PROP_FPS) == 15
    whole, picture = capture.read()
    assert whole and picture.shape == (210, 160, 3) and picture.std() > 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"env_id": "Breakuot-v5"}, "has no such task; envpool.list_all_envs() names all"),
        ({"env_id": "CartPole-v1"}, "use an Atari game"),
        ({"env_id": "BigfishEasy-v0"}, "EnvPool Procgen requires the system Qt 5"),
        ({"cuda_graphs": True}, "--cuda-graphs: needs a GPU"),
        ({"compile": True}, "there is no absent-compiler; install one"),
        ({"env_threads": 0}, "--env-threads 0: must be"),
    ],
)
def test_a_mistake_gets_one_line_and_creates_nothing(in_tmp_path, monkeypatch, capsys, arguments, said):
    monkeypatch.setenv("CXX", "absent-compiler")
    with pytest.raises(SystemExit) as end:
        ppo.main(ppo.Args(**{"env_id": "Pong-v5", "cuda": False} | arguments))
    stderr = capsys.readouterr().err
    assert end.value.code == 2 and len(stderr.splitlines()) == 1 and said in stderr, stderr
    assert stderr.startswith("ppo_atari_envpool.py: error: --")
    assert not list(in_tmp_path.iterdir())


def test_a_missing_envpool_is_named(in_tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "envpool", None)
    with pytest.raises(SystemExit) as end:
        ppo.main(ppo.Args())
    stderr = capsys.readouterr().err
    assert end.value.code == 2 and len(stderr.splitlines()) == 1 and "envpool" in stderr.partition("Error")[2]


def test_another_task_of_envpool_with_such_pixels_is_legal():
    envs = make_envs("SimplerBasic-v1")  # VizDoom
    assert envs.observation_space.shape == (4, 84, 84) and isinstance(envs.action_space, gym.spaces.Discrete)


def test_checkpoints_of_compiled_and_recorded_runs_are_evaluated_without(train, capsys):
    folder = train(total_timesteps=48)
    for file in folder.glob("checkpoints/*.pt"):
        state = torch.load(file, weights_only=True)
        state["args"] |= {"compile": True, "cuda_graphs": True, "cuda": True, "env_threads": 16}
        torch.save(state, file)
    ppo.main(ppo.Args(evaluate=str(folder), episodes=1))
    assert "over 1 episodes" in capsys.readouterr().out


def test_threads_follow_the_cores_that_the_process_may_use(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {3, 5, 6})
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # torchrun sets it, for torch
    assert ppo.VectorEnv(ppo.Args()).options["num_threads"] == 3
    assert ppo.VectorEnv(ppo.Args(env_threads=2)).options["num_threads"] == 2
    for processes, threads in (("2", 1), ("8", 1)):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", processes)
        assert ppo.VectorEnv(ppo.Args()).options["num_threads"] == threads
