"""ppo_continuous_action_gpu.py: its pendulum, what it does unlike its parent, and that nothing waits for the device."""

import json
import math
import os
import signal
import sys
import types
from functools import partial
from pathlib import Path

import gymnasium as gym
import numpy as np
import ppo_continuous_action as parent
import ppo_continuous_action_gpu as ppo
import pytest
import time_limits
import torch
from helpers import load_script, rows
from test_docs import blocks
from torch.utils._python_dispatch import TorchDispatchMode

SIMULATORS = Path(__file__).parents[1] / "benchmark" / "simulators"
sys.path.append(str(SIMULATORS))  # files for users to copy
import gymnasium_envs  # noqa: E402
import swing_up  # noqa: E402

HERE = "test_continuous_gpu"  # this module's classes are simulators: --env-id test_continuous_gpu:Lost
SMALL = {"device": "cpu", "num_envs": 16, "num_steps": 8, "total_timesteps": 16 * 8 * 3, "update_epochs": 2}


@pytest.fixture(autouse=True)
def find_simulators(monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path, str(SIMULATORS)])


class Run:
    """What train uses of a run, without a folder. Fresh episodes begin in the updates `fresh`."""

    def __init__(self, args, fresh=(1,)):
        self.args = args
        self.fresh = fresh
        self.logs = []
        self.episodes = []

    def keep(self, model, optimizer, envs):
        self.model = model
        self.optimizer = optimizer
        self.envs = envs

    def updates(self):
        for update in range(1, self.args.num_updates + 1):
            self.update = update
            yield update, update in self.fresh

    def note(self, *rollout):  # the parent's is another one
        self.episodes.append(rollout[-1])

    def log(self, metrics):
        self.logs.append({name: float(value) for name, value in metrics.items()})


def train(**arguments):
    run = Run(ppo.Args(**SMALL | arguments))
    ppo.train(run.args, run)
    return run


# ------------------------------------------------------------------------------------------------------- The simulators
def test_the_pendulum_is_gymnasiums_step_by_step():
    torch.manual_seed(1)
    envs = ppo.Pendulum(4, "cpu", max_episode_steps=50)
    singles = [gym.make("Pendulum-v1", max_episode_steps=50) for _ in range(4)]
    envs.reset(1)
    for env in singles:
        env.reset(seed=1)
    limits = 0
    for _ in range(110):
        for i, env in enumerate(singles):
            env.unwrapped.state = np.array([envs.angle[i].item(), envs.velocity[i].item()])
        actions = 3 * torch.randn(4, 1)  # beyond the bounds, too
        obs, rewards, terminated, truncated, final_obs = envs.step(actions)
        for i, env in enumerate(singles):
            expected_obs, reward, *ends, _ = env.step(actions[i].numpy())
            np.testing.assert_allclose(final_obs[i], expected_obs, atol=2e-6)
            assert abs(rewards[i].item() - reward) < 2e-5
            assert ends == [terminated[i].item(), truncated[i].item()]
            if truncated[i]:
                env.reset()
                limits += 1
        assert torch.equal(obs[~truncated], final_obs[~truncated])
        assert (envs.velocity[truncated].abs() <= 1).all() and (envs.ages[truncated] == 0).all()
    assert limits == 8


def test_the_pendulum_begins_where_gymnasiums_does():
    torch.manual_seed(1)
    envs = ppo.Pendulum(5000, "cpu")
    envs.reset(1)
    for numbers, limit in ((envs.angle, np.pi), (envs.velocity, 1.0)):  # both uniform
        assert abs(numbers.mean()) < 0.05 * limit
        assert numbers.std().item() == pytest.approx(limit / np.sqrt(3), rel=0.05)
        assert -limit <= numbers.min() and numbers.max() <= limit


def test_swing_up_moves_as_cartpole_does():
    torch.manual_seed(2)
    envs = swing_up.SwingUp(32, "cpu")
    envs.reset(1)
    env = gym.make("CartPole-v1").unwrapped
    states = torch.randn(32, 4)
    for sign in (-1.0, 1.0):
        envs.states = states
        after = envs.move(states, torch.full((32, 1), sign))
        _, rewards, terminated, _, _ = envs.step(torch.full((32, 1), sign))
        for i in range(32):
            env.reset(seed=1)
            env.state = tuple(states[i].double().tolist())
            obs, *_ = env.step(int(sign > 0))
            np.testing.assert_allclose(after[i], obs, atol=1e-5)
            assert terminated[i].item() == (abs(obs[0]) > 2.4)
            upright = (1 + math.cos(obs[2])) / 2
            assert abs(rewards[i].item() - (upright / (1 + 0.02 * obs[3] ** 2) - 10 * terminated[i].item())) < 1e-5


class Lost(ppo.Pendulum):
    """Loses the last observation of an episode."""

    def step(self, actions):
        return *super().step(actions)[:4], None


class Columns(ppo.Pendulum):
    """The policy observes the first three columns, the critic the last three."""

    obs_dim = 5
    actor_columns = slice(0, 3)
    critic_columns = slice(2, 5)

    def observe(self):
        return torch.cat([super().observe(), self.angle[:, None], self.velocity[:, None]], dim=1)


class Both(ppo.Pendulum):
    """Says at its limits that they are true ends, too."""

    def step(self, actions):
        obs, rewards, _, truncated, final_obs = super().step(actions)
        return obs, rewards, truncated.clone(), truncated, final_obs


class Wrong(ppo.Pendulum):
    """Has or returns something else than the script needs."""

    def __init__(self, num_envs, device, what):
        super().__init__(num_envs, device)
        self.what = what
        if what == "unlimited":
            del self.max_episode_steps
        if what == "half":
            self.max_episode_steps = 20.5
        if what == "obs_dim":
            self.obs_dim = (3,)
        if what == "many":
            self.num_envs = 64
        if what == "list":
            self.actor_columns = [0, 1]
        if what == "empty":
            self.critic_columns = slice(3, 6)

    def reset(self, seed):
        obs = super().reset(seed)
        returned = {"tuple": (obs, {}), "dict": {"policy": obs}}
        return returned.get(self.what, obs)

    def step(self, actions):
        if self.what == "four":
            return super().step(actions)[:4]
        if self.what == "in place":
            actions *= 2.0
        obs, rewards, terminated, truncated, final_obs = super().step(actions)
        if self.what == "shape":
            rewards = rewards[:, None]
        if self.what == "float":
            terminated = terminated.float()
        if self.what == "numpy":
            rewards = rewards.numpy()
        if self.what == "infos":
            final_obs = {}
        if self.what == "overwritten":
            final_obs = obs
        return obs, rewards, terminated, truncated, final_obs


class Bare:
    """Has nothing that the script needs."""

    def __init__(self, num_envs, device): ...


class Randomized(ppo.Pendulum):
    """Draws a factor of its rewards when it is made."""

    def __init__(self, num_envs, device):
        super().__init__(num_envs, device)
        self.factor = torch.rand(num_envs)

    def step(self, actions):
        obs, rewards, *rest = super().step(actions)
        return obs, rewards * self.factor, *rest


class Broken(ppo.Pendulum):
    """Its third step observes or pays nan."""

    steps = 0

    def __init__(self, num_envs, device, what):
        super().__init__(num_envs, device)
        self.what = what

    def step(self, actions):
        obs, rewards, *rest = super().step(actions)
        self.steps += 1
        broken = math.nan if self.steps == 3 else 1.0
        return (obs * broken, rewards, *rest) if self.what == "obs" else (obs, rewards * broken, *rest)


class Short(ppo.Pendulum):
    """The first episode of environment i has i + 1 steps, the next one a step more. Every step pays 1."""

    def reset(self, seed):
        self.lengths = torch.arange(self.num_envs) + 1
        return super().reset(seed)

    def step(self, actions):
        obs, rewards, _, _, final_obs = super().step(actions)
        terminated = self.ages >= self.lengths
        self.lengths = self.lengths + terminated
        self.ages = torch.where(terminated, 0, self.ages)
        return obs, torch.ones_like(rewards), terminated, torch.zeros_like(terminated), final_obs


class Blown(Short):
    """Its last observations are nan; with "limits", its ends are time limits."""

    def __init__(self, num_envs, device, ends="true"):
        super().__init__(num_envs, device)
        self.ends = ends

    def step(self, actions):
        obs, rewards, ended, no, final_obs = super().step(actions)
        final_obs = torch.where(ended[:, None], math.nan, final_obs)
        return (obs, rewards, no, ended, final_obs) if self.ends == "limits" else (obs, rewards, ended, no, final_obs)


# ----------------------------------------------------------------------------------------------------------- The parent
@pytest.mark.parametrize(
    "env_id, bootstrap", [("Pendulum-v1", True), ("Pendulum-v1", False), ("Hopper-v4", True)]
)  # Hopper's episodes end, too
def test_it_learns_as_its_parent(monkeypatch, env_id, bootstrap):
    """Four updates of the whole train, and the weights agree to rounding. Neither normalizes: in the parent, the
    statistics change within a rollout."""
    options = json.dumps({"max_episode_steps": 23})
    common = {"num_envs": 3, "num_steps": 64, "total_timesteps": 3 * 64 * 4, "update_epochs": 3, "learning_rate": 3e-3}
    common |= {"env_kwargs": options, "num_minibatches": 4, "anneal_clip": True, "ent_coef": 0.01, "seed": 5}
    monkeypatch.setattr(parent.VectorEnv, "normalize", lambda self, obs: obs.astype(np.float32))
    monkeypatch.setattr(parent.RunningStatistics, "update", lambda self, rows: None)
    first = Run(parent.Args(env_id=env_id, bootstrap_truncated=bootstrap, **common), fresh=(1, 3))
    parent.train(first.args, first)

    args = ppo.Args(
        env_id=f"gymnasium_envs:Gymnasium:{env_id}",
        time_limits="final" if bootstrap else "none",
        norm_obs=False,
        norm_reward=False,
        device="cpu",
        **common,
    )
    second = Run(args, fresh=(1, 3))

    def reset(envs, seed):  # all environments have the parent's seeds
        torch.manual_seed(np.random.SeedSequence([args.seed, second.update]).generate_state(1).item())
        observations, _ = envs.simulator.vector.reset(seed=torch.randint(2**31, (3,)).tolist())
        envs.returns_and_lengths = torch.zeros(2, 3)
        return envs.simulator.to_tensor(observations)

    step = ppo.VectorEnv.step

    def clipped_step(envs, actions):  # the parent clips rewards
        obs, rewards, *rest = step(envs, actions)
        return obs, rewards.clamp(-10.0, 10.0), *rest

    monkeypatch.setattr(ppo.VectorEnv, "reset", reset)
    monkeypatch.setattr(ppo.VectorEnv, "step", clipped_step)
    ppo.train(args, second)
    expected = dict(first.model.named_parameters())
    for name, weights in second.model.named_parameters():
        torch.testing.assert_close(weights, expected[name], atol=2e-5, rtol=0)
    assert len(first.logs) == len(second.logs) == 4
    for theirs, ours in zip(first.logs, second.logs):
        for name, value in theirs.items():
            assert abs(ours[name] - value) < 1e-3 * max(1, abs(value)), name


def test_observations_are_normalized_as_by_its_parent():
    args = ppo.Args(**SMALL)
    agent = ppo.Agent(ppo.VectorEnv(args, 16), args)
    statistics = parent.RunningStatistics((3,))
    obs = torch.randn(512, 3) * torch.tensor([3.0, 0.1, 20.0]) + torch.tensor([1.0, -5.0, 0.3])
    for part in (obs[:200], obs[200:]):
        agent.obs_statistics.update(part)
        statistics.update(part.double().numpy())
    np.testing.assert_allclose(agent.obs_statistics.mean, statistics.mean, rtol=1e-5)
    np.testing.assert_allclose(agent.obs_statistics.var, statistics.var, rtol=1e-5)
    obs[0] = 1e6
    expected = ((obs.double().numpy() - statistics.mean) / np.sqrt(statistics.var + 1e-8)).clip(-10, 10)
    np.testing.assert_allclose(agent.normalize(obs), expected, atol=1e-4)
    agent.norm_obs = False
    assert agent.normalize(obs) is obs


def test_rewards_are_scaled_by_its_parents_statistics_at_the_end_of_the_rollout():
    envs = ppo.VectorEnv(ppo.Args(**SMALL), 4)
    envs.reset(1)
    statistics = parent.RunningStatistics(())
    sums = np.zeros(4)
    rng = np.random.default_rng(1)
    for _ in range(3):
        rewards = rng.normal(size=(50, 4)).astype(np.float32)
        ends = (rng.random((50, 4)) < 0.05).astype(np.float32)
        scaled = envs.scale_rewards(torch.from_numpy(rewards), torch.from_numpy(ends))
        for t in range(50):
            sums = 0.99 * sums + rewards[t]
            statistics.update(sums)
            sums *= 1 - ends[t]
        np.testing.assert_allclose(envs.return_statistics.var, statistics.var, rtol=1e-5)
        np.testing.assert_allclose(scaled, rewards / np.sqrt(statistics.var + 1e-8), rtol=1e-4)


def test_rewards_are_scaled_by_ends_and_then_get_the_values_at_time_limits(spy):
    scaling = spy(ppo.VectorEnv, "scale_rewards")
    crossing = spy(ppo, "cross_time_limits")
    estimating = spy(ppo, "compute_gae")
    train()
    for scaled, crossed, estimated in zip(scaling, crossing, estimating, strict=True):
        assert np.array_equal(crossed.rewards, scaled.result) and np.array_equal(estimated.rewards, crossed.result)
        assert np.array_equal(scaled.ends, [*estimated.dones[1:], estimated.next_done])


# ------------------------------------------------------------------------------------------------------ What is its own
def test_the_first_ratio_is_1():
    """In the first minibatch of each update: acting and learning see the same statistics, which do change."""
    run = train(num_minibatches=1, update_epochs=1)
    for metrics in run.logs:
        assert abs(metrics["losses/approx_kl"]) < 1e-6 and metrics["losses/clipfrac"] == 0
    assert run.model.obs_statistics.count > 3 * 128 - 1
    assert run.model.obs_statistics.var.max() > 0.1


def test_advantages_are_normalized_over_the_minibatch_or_the_rollout(spy):
    learned = spy(ppo, "ppo_loss")
    train(norm_adv="rollout", update_epochs=1)
    for update in range(3):
        minibatches = [torch.from_numpy(call.mb.advantages) for call in learned[4 * update : 4 * update + 4]]
        joint = torch.cat(minibatches)
        assert abs(joint.mean()) < 1e-5 and abs(joint.std() - 1) < 1e-4
        assert max(abs(part.mean()) for part in minibatches) > 1e-2  # but not each minibatch
    for norm_adv in ("minibatch", "rollout", "none"):
        args = ppo.Args(norm_adv=norm_adv)
        columns = torch.randn(6, 32)
        zeros = torch.zeros(32)
        mb = ppo.Batch(None, None, zeros, zeros, columns[4] + 3, zeros)
        _, metrics = ppo.ppo_loss(zeros, zeros, zeros, mb, 0.2, args)
        expected = 0.0 if norm_adv == "minibatch" else -mb.advantages.mean().item()
        assert abs(metrics["losses/policy_loss"].item() - expected) < 1e-6


@pytest.mark.parametrize("rate, adaptive_kl", [(1e-3, 1e-9), (1e-3, 1e9), (8e-3, 0.01), (2e-5, 1e-9)])
def test_the_learning_rate_follows_the_kl_divergence(spy, monkeypatch, rate, adaptive_kl):
    losses = spy(ppo, "ppo_loss")
    used = []
    step = torch.optim.Adam.step

    def spied(optimizer):
        used.append(optimizer.param_groups[0]["lr"].item())
        step(optimizer)

    monkeypatch.setattr(torch.optim.Adam, "step", spied)
    run = train(learning_rate=rate, adaptive_kl=adaptive_kl)
    expected = rate
    assert len(used) == len(losses) == 24
    for i, (call, lr) in enumerate(zip(losses, used)):
        kl = call.result[1]["losses/approx_kl"].item()
        if i % 8 == 0:  # an update's first minibatch tells nothing: the policy is the one that acted
            assert abs(kl) < 1e-6
        elif kl > 2 * adaptive_kl:
            expected = max(1e-5, expected / 1.5)
        elif kl < adaptive_kl / 2:
            expected = min(1e-2, expected * 1.5)
        assert abs(lr - expected) < 1e-4 * expected
    assert abs(run.logs[-1]["charts/learning_rate"] - expected) < 1e-4 * expected
    if adaptive_kl == 1e9:
        assert expected == 1e-2
    if rate == 2e-5:
        assert expected == 1e-5


def test_first_episodes_begin_at_random_ages():
    def lengths(stagger):
        options = {"num_envs": 64, "num_steps": 50, "total_timesteps": 3200, "env_kwargs": '{"max_episode_steps": 50}'}
        (episodes,) = train(**options, stagger=stagger).episodes
        return episodes[:, 1][episodes[:, 1].isfinite()]

    assert (lengths(False) == 50).all()
    assert lengths(True).unique().numel() > 20


@pytest.mark.parametrize("gae_lambda", [0.0, 0.95])
@pytest.mark.parametrize("mode", time_limits.MODES)
def test_values_at_time_limits_are_the_equations_solution(mode, gae_lambda):
    values = time_limits.fixed_point(mode, 5, gae_lambda)
    np.testing.assert_allclose(time_limits.mean_advantages(mode, 5, gae_lambda, values), 0, atol=1e-12)
    assert np.abs(time_limits.mean_advantages(mode, 5, gae_lambda, values + 0.1)).min() > 1e-4
    if gae_lambda == 0:  # as the page says: a smaller discount, or an environment that sometimes stands still
        step = np.roll(np.eye(10), 1, axis=1)
        leads_to = {"none": 0.8 * step, "before": 0.8 * step + 0.2 * np.eye(10)}.get(mode, step)
        np.testing.assert_allclose(values, np.linalg.solve(np.eye(10) - 0.99 * leads_to, np.eye(10)[0]))
    true = time_limits.fixed_point("final", 5, 0.0)
    assert abs(true.mean() - 10) < 1e-9
    if mode == "none":
        assert values.mean() < 0.5
    elif mode == "before":
        assert abs(values.mean() - 10) < 1e-9 and 0.1 < np.abs(values - true).max() < 0.2
    else:
        np.testing.assert_allclose(values, true, atol=1e-9)


def test_a_true_end_at_the_limits_step_is_a_true_end():
    run = train(env_id=f"{HERE}:Both", env_kwargs='{"max_episode_steps": 4}', stagger=False)
    assert run.logs[0]["charts/time_limits"] == 0.0


def test_the_log_tells_time_limits_from_ends():
    short = '{"max_episode_steps": 5}'
    assert train(env_kwargs=short).logs[0]["charts/time_limits"] == 1.0
    assert train(env_id=f"{HERE}:Short", num_steps=16).logs[0]["charts/time_limits"] == 0.0
    assert math.isnan(train(stagger=False).logs[0]["charts/time_limits"])  # nothing has ended


def test_policy_and_critic_observe_their_columns():
    agent = train(env_id=f"{HERE}:Columns").model
    obs = torch.randn(4, 5)
    of_the_critic = obs + torch.tensor([0.0, 0.0, 0.0, 1.0, 1.0])
    of_the_policy = obs + torch.tensor([1.0, 1.0, 0.0, 0.0, 0.0])
    assert torch.equal(agent.get_mean_and_std(obs)[0], agent.get_mean_and_std(of_the_critic)[0])
    assert not torch.equal(agent.get_value(obs), agent.get_value(of_the_critic))
    assert torch.equal(agent.get_value(obs), agent.get_value(of_the_policy))
    assert not torch.equal(agent.get_mean_and_std(obs)[0], agent.get_mean_and_std(of_the_policy)[0])


class Waits(TorchDispatchMode):
    """Lists what would make the host wait for a GPU: items, masks as indices, tensors made of lists, copies."""

    NAMES = ("_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "equal", "lift_fresh", "unique")

    def __init__(self):
        super().__init__()
        self.found = []
        self.on = False

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.__name__.partition(".")[0]
        is_masked = name in ("index", "index_put_") and any(x is not None and x.dtype == torch.bool for x in args[1])
        is_copied = name in ("_to_copy", "copy_") and (kwargs or {}).get("device") == torch.device("cpu")
        if self.on and (name in self.NAMES or is_masked or is_copied):
            self.found.append(name)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("env_id", ["Pendulum", "swing_up:SwingUp"])
def test_nothing_waits_for_the_device_before_the_log(env_id):
    waits = Waits()

    class Watched(Run):
        def updates(self):
            for update, fresh_episodes in super().updates():
                waits.on = update > 1  # the first one makes the optimizer's state
                yield update, fresh_episodes

        def note(self, *rollout):
            waits.on = False

    options = {"env_kwargs": '{"max_episode_steps": 5}', "adaptive_kl": 0.01, "norm_adv": "rollout"}
    args = ppo.Args(**SMALL | options | {"env_id": env_id})
    with waits:
        ppo.train(args, Watched(args))
        assert waits.found == []
        waits.on = True
        torch.ones(1).item()
        assert waits.found == ["_local_scalar_dense"]  # it does notice


# ---------------------------------------------------------------------------------------------------------- The run
def die(update, how):
    """Ends the process by a signal when this update has learned."""
    note = ppo.Run.note

    def note_or_die(run, *rollout):
        note(run, *rollout)
        if run.update == update:
            os.kill(os.getpid(), how)

    ppo.Run.note = note_or_die


def end_of(args, sabotage):
    """The exit status of a training in a process of its own."""
    pid = os.fork()
    if pid == 0:
        status = 70
        try:
            sabotage()
            ppo.main(args)
        except SystemExit as stop:
            status = stop.code
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("env_id", ["swing_up:SwingUp", "gymnasium_envs:Gymnasium:Pendulum-v1"])
def test_a_killed_run_ends_with_the_same_bits(in_tmp_path, env_id, how):
    options = {"env_id": env_id, "total_timesteps": 128 * 12, "checkpoints": 4, "exact_resume": True}
    args = ppo.Args(**SMALL | options | {"adaptive_kl": 0.01, "env_kwargs": '{"max_episode_steps": 20}'})
    whole = ppo.main(args)
    status = end_of(args, partial(die, 8, how))
    assert status == (143 if how == signal.SIGTERM else -how)
    killed = max(Path("runs").iterdir())
    assert max(int(file.stem) for file in killed.glob("checkpoints/*.pt")) == 6
    assert ppo.main(*ppo.read_arguments(["--resume", str(killed)])) == killed
    states = [ppo.load_checkpoint(folder) for folder in (whole, killed)]
    assert states[0]["update"] == states[1]["update"] == 12
    for name, weights in states[0]["model"].items():
        assert torch.equal(weights, states[1]["model"][name]), name
    rates = [state["optimizer"]["param_groups"][0]["lr"] for state in states]
    assert rates[0] == rates[1] != 1e-3
    for table in ("metrics.csv", "episodes.csv"):
        timed = ("charts/SPS", "seconds")
        kept = [
            [{k: row[k] for k in row if k not in timed} for row in rows(folder, table)] for folder in (whole, killed)
        ]
        assert kept[0] == kept[1]
        assert kept[0]


def test_a_new_learning_rate_counts_when_a_run_is_resumed(in_tmp_path):
    folder = ppo.main(ppo.Args(**SMALL, anneal_lr=False, checkpoints=1))
    more = ["--resume", str(folder), "--total-timesteps", str(128 * 5), "--checkpoints", "1"]
    ppo.main(*ppo.read_arguments(more))
    ppo.main(*ppo.read_arguments([*more, "--total-timesteps", str(128 * 6), "--learning-rate", "0.002"]))
    rates = [float(row["charts/learning_rate"]) for row in rows(folder, "metrics.csv")]
    np.testing.assert_allclose(rates, [0.001] * 5 + [0.002], rtol=1e-6)


def test_episodes_are_listed_at_the_steps_where_they_ended_and_the_status_has_the_last_100(in_tmp_path):
    folder = ppo.main(ppo.Args(**SMALL | {"total_timesteps": 128 * 6}, env_kwargs='{"max_episode_steps": 5}'))
    episodes = rows(folder, "episodes.csv")
    steps = [int(row["global_step"]) for row in episodes]
    assert steps == sorted(steps) and set(steps) == set(range(16, 16 * 8 * 6 + 1, 16))  # some end in each
    returns = [float(row["episodic_return"]) for row in episodes]
    assert len(returns) > 120
    np.testing.assert_allclose(ppo.load_checkpoint(folder)["recent_returns"], returns[-100:], rtol=1e-5)


def test_all_episodes_are_evaluated_at_once_the_first_of_each_environment(in_tmp_path, capsys):
    folder = ppo.main(ppo.Args(**SMALL, env_id=f"{HERE}:Short"))
    ppo.main(*ppo.read_arguments(["--evaluate", str(folder), "--episodes", "7"]))
    lengths = [float(row["episodic_length"]) for row in rows(folder, "evaluation.csv")]
    assert lengths == [1, 2, 3, 4, 5, 6, 7]
    assert "mean return 4.00 ± 2.00" in capsys.readouterr().out
    ppo.main(*ppo.read_arguments(["--evaluate", str(folder), "--episodes", "7", "--longest-episode", "5"]))
    table = rows(folder, "evaluation.csv")
    assert [float(row["episodic_return"]) for row in table] == [1, 2, 3, 4, 5, 5, 5]
    assert [row["is_cut"] for row in table] == ["0"] * 5 + ["1"] * 2
    assert "2 of them cut" in capsys.readouterr().out


def test_a_loaded_agent_acts_as_it_was_saved(in_tmp_path):
    folder = ppo.main(ppo.Args(**SMALL))
    player = ppo.load(folder, num_envs=5, deterministic=True)
    saved = ppo.load_checkpoint(folder)["model"]
    obs = player.reset(3)
    assert (player.simulator.ages == 0).all()
    normal = (obs.double() - saved["obs_statistics.mean"]) / (saved["obs_statistics.var"] + 1e-8).sqrt()
    with torch.no_grad():
        expected = player.agent.actor(normal.clamp(-10, 10).float())
    torch.testing.assert_close(player.act(obs), expected, atol=1e-5, rtol=0)
    before = player.agent.obs_statistics.count.item()
    player.step(player.act(obs))
    assert player.agent.obs_statistics.count.item() == before == saved["obs_statistics.count"].item()


MISTAKES = [
    ("HalfCheetah-v4", "neither Pendulum nor my_file:MyEnvs"),
    ("nofile:Envs", "No module named 'nofile'"),
    ("gymnasium_envs:Gymnasium:CartPole-v1", "needs Box"),
    (f"{HERE}:Bare", "has no obs_dim, the number of columns of an observation"),
    (f"{HERE}:Lost", "loses the last observations; use --time-limits before, as rsl_rl does, or drop"),
    (f"{HERE}:Wrong:shape", "rewards are (16, 1), torch.float32, cpu; needed are (16,)"),
    (f"{HERE}:Wrong:float", "terminated are (16,), torch.float32"),
    (f"{HERE}:Wrong:numpy", "rewards are no tensor but ndarray"),
    (f"{HERE}:Wrong:unlimited", "has ages, but no whole max_episode_steps"),
    (f"{HERE}:Wrong:half", "has ages, but no whole max_episode_steps"),
    (f"{HERE}:Wrong:obs_dim", "has no obs_dim, the number of columns of an observation"),
    (f"{HERE}:Wrong:many", "reset's observations are (64, 3), torch.float32, cpu; needed are (16, 3)"),
    (f"{HERE}:Wrong:in place", "step changes the actions, from which the policy learns"),
    (f"{HERE}:Wrong:infos", "fifth value is a dict; needed are final_obs, no infos"),
    (f"{HERE}:Wrong:overwritten", "final_obs are its observations where an episode ended"),
    (f"{HERE}:Wrong:list", "actor_columns are [0, 1]; needed is a slice of the 3 columns"),
    (f"{HERE}:Wrong:empty", "critic_columns are slice(3, 6, None); needed is a slice of the 3 columns"),
    (f"{HERE}:Wrong:four", "step returns 4 values; needed are observations, rewards, terminated, truncated, final_obs"),
    (f"{HERE}:Wrong:tuple", "needed are observations only, no infos"),
    (f"{HERE}:Wrong:dict", "reset's observations are no tensor but dict; join the groups"),
]


@pytest.mark.parametrize("env_id, message", MISTAKES)
def test_what_the_simulator_lacks_is_one_clear_line(refusal, env_id, message):
    assert message in refusal(ppo, **SMALL, env_id=env_id)


def test_mistakes_are_one_clear_line(refusal):
    assert "must be a multiple" in refusal(ppo, **SMALL | {"num_minibatches": 7})
    assert "--adaptive-kl -1: must be at least 0" in refusal(ppo, **SMALL, adaptive_kl=-1)
    assert "--env-kwargs {a: 1}: is no JSON: Expecting" in refusal(ppo, **SMALL, env_kwargs="{a: 1}")
    assert "--env-kwargs 100: must be as" in refusal(ppo, **SMALL, env_kwargs="100")


def test_the_seed_is_set_before_the_simulator_is_made(in_tmp_path):
    """It may draw masses and friction there, from torch's generator."""
    for unrelated in (1, 2):
        torch.manual_seed(unrelated)
        ppo.main(ppo.Args(**SMALL, env_id=f"{HERE}:Randomized", exp_name=f"after_{unrelated}"))
    first, second = [rows(folder, "metrics.csv") for folder in sorted(Path("runs").iterdir())]
    assert [row["charts/reward"] for row in first] == [row["charts/reward"] for row in second]


@pytest.mark.parametrize("mode", ["before", "drop", "none"])
def test_it_learns_where_the_last_observation_is_lost(mode):
    assert len(train(env_id=f"{HERE}:Lost", time_limits=mode).logs) == 3


def test_nan_in_the_last_observation_of_a_true_end_does_no_harm():
    first, second = [dict(train(env_id=f"{HERE}:{name}").model.named_parameters()) for name in ("Short", "Blown")]
    for name, weights in first.items():
        assert torch.equal(weights, second[name])


@pytest.mark.parametrize(
    "env_id, what",
    [
        ("Broken:obs", "the simulator's observations"),
        ("Broken:rewards", "the simulator's rewards"),
        ("Blown:limits", "returns"),
    ],
)
def test_nan_ends_the_run(in_tmp_path, env_id, what):
    with pytest.raises(ppo.UserError, match=f"update 1: {what} are not finite"):
        ppo.main(ppo.Args(**SMALL, env_id=f"{HERE}:{env_id}"))


# ----------------------------------------------------------------------------------------------------------- The page
MLP, LOG, DEPLOY = [
    block.text for block in blocks(SIMULATORS.parents[1] / "docs" / "simulators.md") if block.reason.endswith("gpu.py")
]


class Logging(ppo.Pendulum):
    """Reports the mean of a reward's term, as mjlab and Isaac Lab do. The critic sees the first column."""

    critic_columns = slice(0, 1)

    def __init__(self, num_envs, device):
        super().__init__(num_envs, device)
        self.log = {"Episode_Reward/upright": torch.tensor(-0.5), "Curriculum/level": 3}


@pytest.fixture(scope="module")
def edited(tmp_path_factory):
    """The script with the page's network and reward terms."""
    source = Path(ppo.__file__).read_text("utf-8")
    before, _, rest = source.partition("def mlp(")
    source = before + MLP + "\n\nclass Agent" + rest.partition("class Agent")[2]
    line = next(line for line in source.splitlines(True) if 'metrics["charts/time_limits"] =' in line)
    path = tmp_path_factory.mktemp("edited") / "ppo_continuous_action_gpu.py"
    path.write_text(source.replace(line, line + LOG), "utf-8")
    return load_script(path)


def test_the_pages_network_has_the_gains_of_the_scripts(edited):
    args = edited.Args(**SMALL, env_id=f"{HERE}:Logging")
    agent = edited.Agent(edited.VectorEnv(args, 16), args)
    for network, inputs, outputs, gain in [(agent.actor, 3, 1, 0.01), (agent.critic, 1, 1, 1.0)]:
        linear = [layer for layer in network if isinstance(layer, torch.nn.Linear)]
        assert [layer.in_features for layer in linear] == [inputs, 512, 256, 128]
        assert [layer.out_features for layer in linear] == [512, 256, 128, outputs]
        assert [type(layer).__name__ for layer in network[1::2]] == ["ELU"] * 3
        for layer, expected in zip(linear, [2**0.5] * 3 + [gain]):
            torch.testing.assert_close(
                torch.linalg.svdvals(layer.weight), torch.tensor(expected).expand(min(layer.weight.shape))
            )
            assert (layer.bias == 0).all()


def test_the_pages_reward_terms_are_logged_and_its_policy_acts_as_the_agent(edited, in_tmp_path, monkeypatch):
    folder = edited.main(edited.Args(**SMALL, env_id=f"{HERE}:Logging"))
    table = rows(folder, "metrics.csv")
    assert {row["simulator/Episode_Reward/upright"] for row in table} == {"-0.5"}
    assert {row["simulator/Curriculum/level"] for row in table} == {"3.0"}
    monkeypatch.setitem(sys.modules, "ppo_continuous_action_gpu", edited)
    Path("deploy.py").write_text(DEPLOY, "utf-8")
    player = edited.load(folder, num_envs=5, deterministic=True)
    obs = player.reset(1)
    policy = load_script(Path("deploy.py")).Policy(edited.load_checkpoint(folder)["path"])
    torch.testing.assert_close(policy(obs), player.act(obs), atol=1e-6, rtol=0)


def test_the_pages_policy_has_the_columns_of_the_actor(in_tmp_path):
    folder = ppo.main(ppo.Args(**SMALL, env_id=f"{HERE}:Columns", checkpoints=1))
    Path("deploy_columns.py").write_text(DEPLOY.replace("slice(None)", "slice(0, 3)"), "utf-8")
    player = ppo.load(folder, num_envs=5, deterministic=True)
    obs = player.reset(1)
    policy = load_script(Path("deploy_columns.py")).Policy(ppo.load_checkpoint(folder)["path"])
    torch.testing.assert_close(policy(obs[:, :3]), player.act(obs), atol=1e-6, rtol=0)


# ---------------------------------------------------------------------------------------------------------- The adapter
class Alternating(gym.Env):
    """Observes its age; ends by itself in every other episode after 3 steps, else by its limit of 4."""

    observation_space = gym.spaces.Box(0, np.inf, (1, 2), np.float64)
    action_space = gym.spaces.Box(-0.5, 0.5, (1, 1), np.float32)
    episodes = 0

    def observe(self):
        return np.full((1, 2), self.age, np.float64)

    def reset(self, seed=None, options=None):
        self.age = 0
        self.episodes += 1
        return self.observe(), {}

    def step(self, action):
        assert self.action_space.contains(action)
        self.age += 1
        return self.observe(), float(action[0, 0]), self.age == 3 and self.episodes % 2 == 0, False, {}


gym.register("Alternating-v0", Alternating, max_episode_steps=4)


def test_gymnasiums_last_observations_are_kept():
    envs = gymnasium_envs.Gymnasium(2, "cpu", f"{HERE}:Alternating-v0")
    assert (envs.obs_dim, envs.action_dim) == (2, 1)
    assert torch.equal(envs.reset(1), torch.zeros(2, 2))
    seen = []
    for _ in range(7):
        obs, rewards, terminated, truncated, final_obs = envs.step(torch.full((2, 1), 3.0))
        assert torch.equal(rewards, torch.full((2,), 0.5))  # clipped
        seen.append((obs[0, 0].item(), final_obs[0, 1].item(), terminated[1].item(), truncated[1].item()))
    envs.close()
    expected = [(1, 1, False, False), (2, 2, False, False), (3, 3, False, False), (0, 4, False, True)]
    expected += [(1, 1, False, False), (2, 2, False, False), (0, 3, True, False)]
    assert seen == expected


class FakeIsaacLab:
    """What Isaac Lab's environment returns, as its sources say: two groups, and extras that stay from step to step."""

    num_envs = 3
    max_episode_length = 5.0
    single_action_space = gym.spaces.Box(-1, 1, (2,))
    single_observation_space = gym.spaces.Dict(
        {"policy": gym.spaces.Box(-9, 9, (1,)), "critic": gym.spaces.Box(-9, 9, (2,))}
    )

    def __init__(self, config):
        self.config = config
        self.unwrapped = self
        self.extras = {}

    def observe(self):
        ages = self.episode_length_buf.float()[:, None]
        return {"policy": ages, "critic": torch.cat([-ages, 10 * ages], dim=1)}

    def reset(self, seed):
        self.episode_length_buf = torch.zeros(self.num_envs, dtype=torch.int64)
        return self.observe(), self.extras

    def step(self, actions):
        self.episode_length_buf += 1
        truncated = self.episode_length_buf >= self.max_episode_length
        if truncated.any():
            if getattr(self.config, "compute_final_obs", False):
                self.extras["final_obs"] = self.observe()
            self.episode_length_buf[truncated] = 0
        return self.observe(), torch.ones(self.num_envs), torch.zeros_like(truncated), truncated, self.extras


@pytest.mark.parametrize("keeps", [True, False])
def test_isaac_labs_file_hands_out_what_its_environment_returns(monkeypatch, keeps):
    config = types.SimpleNamespace(**({"compute_final_obs": False} if keeps else {}))
    names = {"isaaclab.app": "AppLauncher", "isaaclab_tasks.utils": "parse_env_cfg"}
    for name in ("isaaclab", "isaaclab_tasks", *names):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    sys.modules["isaaclab.app"].AppLauncher = lambda headless: None
    sys.modules["isaaclab_tasks.utils"].parse_env_cfg = lambda task, device, num_envs: config
    monkeypatch.setattr(gym, "make", lambda task, cfg: FakeIsaacLab(cfg))
    envs = load_script(SIMULATORS / "isaaclab_envs.py").IsaacLab(3, "cpu", "Task-v0")
    assert (envs.obs_dim, envs.action_dim, envs.max_episode_steps) == (3, 2, 5)
    assert (envs.actor_columns, envs.critic_columns) == (slice(0, 1), slice(1, 3))
    envs.reset(1)
    envs.ages = torch.tensor([3, 0, 0])
    for limit in (False, True, False):
        obs, _, terminated, truncated, final_obs = envs.step(torch.zeros(3, 2))
        assert truncated.tolist() == [limit, False, False] and not terminated.any()
        if not keeps:
            assert final_obs is None
            continue
        assert final_obs[0].tolist() == ([5, -5, 50] if limit else obs[0].tolist())
        assert torch.equal(final_obs[1:], obs[1:])
    assert obs[:, 0].tolist() == [1, 3, 3]
