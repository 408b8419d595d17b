# /// script
# requires-python = ">=3.11,<3.13"
# dependencies = [
#   "gym3>=0.3.3",
#   "gymnasium>=1.4",
#   "imageio[ffmpeg]>=2.38",
#   "numpy>=2.4",
#   "procgen-mirror>=0.10.7",
#   "tensorboard>=2.21",
#   "torch>=2.13",
#   "tyro>=1.0.17",
# ]
# [tool.uv]  # procgen-mirror and gym3 ask for older ones, without need
# override-dependencies = ["filelock>=3", "gym>=0.26.2", "numpy>=2.4"]
# ///
"""PPO for the 16 games of Procgen, which draw a level anew for each episode.

    python cleanrl/ppo_procgen.py --env-id starpilot
    python cleanrl/ppo_procgen.py --resume runs/RUN
    python cleanrl/ppo_procgen.py --evaluate runs/RUN
    python cleanrl/ppo_procgen.py --env-id starpilot --num-levels 200 --eval-start-level 200

Parent: ppo_atari.py. Changes: (1) Procgen steps all copies of a game at once, in color, and reports no time limits, so
--vectorization and --bootstrap-truncated are gone; (2) rewards are scaled by running statistics; (3) IMPALA's residual
network; (4) training can keep to some levels and be evaluated on others; (5) train-procgen's settings.
Details: core-1 to core-12, atari-9, cont-8, cont-9, impala, aux-1 (--anneal-clip), aux-3 (--target-kl).
"""

import json
import math
import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Literal, NamedTuple

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # CUDA needs it for products that repeat bit for bit
os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pygame draws the videos without a display

import gymnasium as gym
import numpy as np
import torch
import torch.nn as nn
import tyro


# ------------------------------------------------------------------------------------------------------------ Arguments
@dataclass
class Args:
    # run
    exp_name: str = Path(__file__).stem  # name of the experiment, a part of the run folder's name
    seed: int = 1  # seed of the weights, the environments and the sampling
    track: bool = False  # send the run to Weights & Biases too
    wandb_project_name: str = "cleanRL"  # Weights & Biases project
    wandb_entity: str | None = None  # Weights & Biases team or user
    capture_video: bool = False  # record one evaluation episode at every checkpoint, as mp4
    checkpoints: int | None = None  # checkpoints in a run, evenly spaced; by default 10, in short runs fewer
    exact_resume: bool = False  # start new episodes after each checkpoint, so that resuming is bit-exact
    resume: str | None = None  # run folder to continue from its last checkpoint
    evaluate: str | None = None  # run folder or checkpoint to evaluate instead of training
    episodes: int = 10  # episodes that an evaluation plays, on training levels and on test levels each
    deterministic: bool = False  # let --evaluate take the most probable actions instead of drawing them
    debug: bool = False  # show the whole traceback of an error
    # environment
    env_id: str = "starpilot"  # name of the game
    env_kwargs: str = "{}"  # arguments of the game as JSON, say '{"use_backgrounds": false}'
    distribution_mode: Literal["easy", "hard", "extreme", "memory", "exploration"] = "easy"  # kind of levels
    num_levels: int = 0  # number of levels to train on; 0: all from --start-level on, more than training can see
    start_level: int = 0  # first of them
    eval_num_levels: int = 0  # number of test levels; 0: all from --eval-start-level on
    eval_start_level: int | None = None  # first of them; with it, checkpoints and --evaluate play on them too
    total_timesteps: int | float = 25_000_000  # steps of the run, over all environments
    num_envs: int = 64  # environments that are stepped together
    num_steps: int = 256  # steps of each environment in a rollout
    # PPO
    learning_rate: float = 5e-4  # step size of Adam
    anneal_lr: bool = False  # anneal the learning rate linearly to 0
    gamma: float = 0.999  # discount factor
    reward_gamma: float = 0.99  # discount factor of the returns whose spread scales the rewards
    gae_lambda: float = 0.95  # lambda of generalized advantage estimation
    num_minibatches: int = 8  # minibatches in an epoch
    update_epochs: int = 3  # passes over each rollout
    norm_adv: bool = True  # normalize the advantages in each minibatch
    clip_coef: float = 0.2  # clip range of the probability ratio, and of the value with --clip-vloss
    anneal_clip: bool = False  # anneal the clip range linearly to 0
    clip_vloss: bool = True  # clip the value loss
    ent_coef: float = 0.01  # weight of the entropy bonus
    vf_coef: float = 0.5  # weight of the value loss
    max_grad_norm: float = 0.5  # limit of the gradient's norm, over all parameters together
    target_kl: float | None = None  # end an update after an epoch whose mean approximate KL exceeds this, e.g. 0.015
    # speed
    torch_deterministic: bool = True  # on a GPU, use only kernels that repeat bit for bit
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"  # auto: cuda if available
    num_threads: int | None = None  # CPU threads of torch, which affect rounding; None: torch's default
    precision: Literal["fp32", "bf16"] = "fp32"  # of all but the last layers; bf16 is faster if the CPU has it

    @property
    def batch_size(self) -> int:
        return self.num_envs * self.num_steps

    @property
    def num_updates(self) -> int:
        return int(self.total_timesteps // self.batch_size)


# ---------------------------------------------------------------------------------------------------------- Environment
class RunningStatistics:
    """Mean and variance of all rows seen so far, in float64, by the parallel algorithm (Chan et al. 1979)."""

    def __init__(self, shape: tuple[int, ...]):
        self.mean = np.zeros(shape)
        self.var = np.ones(shape)
        self.count = 1e-4  # as in baselines

    def update(self, rows: np.ndarray) -> None:
        """Takes in rows (N, *shape)."""
        n = len(rows)
        batch_mean = rows.sum(0) / n
        deviation = rows - batch_mean
        delta = batch_mean - self.mean
        total = self.count + n
        squares = self.var * self.count + (deviation * deviation).sum(0) + delta * delta * (self.count * n / total)
        self.mean = self.mean + delta * (n / total)
        self.var = squares / total
        self.count = total

    def state_dict(self) -> dict:
        return {"mean": torch.tensor(self.mean), "var": torch.tensor(self.var), "count": self.count}

    def load_state_dict(self, state: dict) -> None:
        if state["mean"].shape != self.mean.shape or state["var"].shape != self.mean.shape:
            raise ValueError(f"statistics of shape {tuple(state['mean'].shape)} instead of {self.mean.shape}")
        self.mean = state["mean"].numpy()
        self.var = state["var"].numpy()
        self.count = state["count"]


class VectorEnv:
    """N copies of a game, which Procgen steps in threads of its own; each episode is played on one of the levels.

    Rewards are scaled by running statistics, which all copies share."""

    def __init__(self, args: Args, num_envs: int, render_mode: str | None = None):
        self.make = partial(make_games, args, num_envs, render_mode)
        self.observation_space = gym.spaces.Box(0, 255, (64, 64, 3), np.uint8)
        self.action_space = gym.spaces.Discrete(15)
        self.vector = SimpleNamespace(envs=[], metadata={"render_fps": 15})  # reset makes the games
        self.gamma = args.reward_gamma
        self.return_statistics = RunningStatistics(())  # of the discounted sums of the rewards of the episodes so far

    def reset(self, seeds: list[int]) -> np.ndarray:
        """Makes N games, which take the first seed for all of them. Returns observations (N, 64, 64, 3)."""
        self.vector = self.make(seeds[0])
        self.discounted_returns = np.zeros(len(seeds))
        self.episodic_returns = np.zeros(len(seeds))
        self.episodic_lengths = np.zeros(len(seeds), np.int64)
        _, observations, _ = self.vector.observe()
        return observations["rgb"]

    def step(self, actions: np.ndarray):
        """Takes actions (N,). Returns observations (N, 64, 64, 3); rewards (N,); dones (N,), 1 at true ends and time
        limits; an empty dict, since Procgen doesn't tell which ends are time limits; "r", the return, and "l", the
        length, of each episode that ended."""
        self.vector.act(actions)
        rewards, observations, dones = self.vector.observe()
        self.episodic_returns += rewards
        self.episodic_lengths += 1
        episodes = []
        for i in np.flatnonzero(dones):
            episodes.append({"r": float(self.episodic_returns[i]), "l": int(self.episodic_lengths[i])})
        self.episodic_returns[dones] = 0.0
        self.episodic_lengths[dones] = 0
        self.discounted_returns = self.gamma * self.discounted_returns + rewards
        self.return_statistics.update(self.discounted_returns)
        self.discounted_returns[dones] = 0.0
        rewards = (rewards / np.sqrt(self.return_statistics.var + 1e-8)).clip(-10.0, 10.0)  # [cont-8] [cont-9]
        return observations["rgb"], rewards, dones.astype(np.float32), {}, episodes

    def state_dict(self) -> dict:
        return {"returns": self.return_statistics.state_dict()}

    def load_state_dict(self, state: dict) -> None:
        self.return_statistics.load_state_dict(state["returns"])

    def close(self) -> None:
        self.vector = None  # Procgen's threads end with it


# ---------------------------------------------------------------------------------------------------------------- Agent
def layer_init(layer: nn.Module, gain: float = math.sqrt(2)) -> nn.Module:
    nn.init.orthogonal_(layer.weight, gain)  # [core-2]
    nn.init.zeros_(layer.bias)
    return layer


def glorot_init(layer: nn.Module) -> nn.Module:
    nn.init.xavier_uniform_(layer.weight)  # TensorFlow's default, which openai/baselines keeps for this network
    nn.init.zeros_(layer.bias)
    return layer


class ResidualBlock(nn.Module):
    def __init__(self, depth: int):
        super().__init__()
        self.conv1 = glorot_init(nn.Conv2d(depth, depth, 3, padding=1))
        self.conv2 = glorot_init(nn.Conv2d(depth, depth, 3, padding=1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv2(self.conv1(x.relu()).relu_()) + x


class Agent(nn.Module):
    def __init__(self, envs: VectorEnv, args: Args):
        super().__init__()
        self.num_actions = int(envs.action_space.n)
        layers = []
        for inputs, depth in ((3, 16), (16, 32), (32, 32)):  # [impala]
            layers += [glorot_init(nn.Conv2d(inputs, depth, 3, padding=1)), nn.MaxPool2d(3, stride=2, padding=1)]
            layers += [ResidualBlock(depth), ResidualBlock(depth)]  # (M, 16, 32, 32), (M, 32, 16, 16), (M, 32, 8, 8)
        layers += [nn.Flatten(), nn.ReLU(), glorot_init(nn.Linear(32 * 8 * 8, 256)), nn.ReLU()]
        self.network = nn.Sequential(*layers)
        self.actor = layer_init(nn.Linear(256, self.num_actions), gain=0.01)
        self.critic = layer_init(nn.Linear(256, 1), gain=1.0)
        self.dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[args.precision]
        self.obs_max = 255 if envs.observation_space.dtype == np.uint8 else 1  # floats are those of a scaling wrapper

    def forward(self, obs: torch.Tensor):
        """Log-probs of all A actions, (M, A), and values, (M,), at observations (M, 64, 64, 3) of bytes. This is the
        policy: acting, learning and evaluation all go through here."""
        images = obs.movedim(-1, 1).to(self.dtype) / self.obs_max  # [atari-9]
        with torch.autocast(obs.device.type, torch.bfloat16, enabled=self.dtype == torch.bfloat16):
            hidden = self.network(images)  # (M, 256)
        hidden = hidden.float()
        return self.actor(hidden).log_softmax(-1), self.critic(hidden).squeeze(-1)

    def get_value(self, obs: torch.Tensor) -> torch.Tensor:
        _, value = self(obs)
        return value

    def draw_noise(self, *shape: int) -> torch.Tensor:
        """Standard Gumbel noise, (*shape, A). One call draws it for a whole rollout, which is faster than per step."""
        return -torch.empty(*shape, self.num_actions).exponential_().log()

    def get_action(self, obs: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        """Actions drawn from the policy, (M,): adding Gumbel noise (M, A) to the log-probs and taking the largest is a
        draw from the softmax (the Gumbel-max trick). With zeros (--deterministic), it is the most probable action."""
        actions, _, _ = self.get_action_and_value(obs, noise)
        return actions

    def get_action_and_value(self, obs: torch.Tensor, noise: torch.Tensor):
        """Actions as above, their log-probs and the values, (M,) each: one forward pass gives all three."""
        log_probs, value = self(obs)
        actions = (log_probs + noise).argmax(-1)
        log_prob = log_probs.gather(-1, actions.unsqueeze(-1)).squeeze(-1)
        return actions, log_prob, value

    def evaluate_actions(self, obs: torch.Tensor, actions: torch.Tensor):
        """Log-probs of the actions, the policy's entropy and the values at the observations, (M,) each."""
        log_probs, value = self(obs)
        log_prob = log_probs.gather(-1, actions.unsqueeze(-1)).squeeze(-1)
        entropy = -(log_probs.exp() * log_probs).sum(-1)
        return log_prob, entropy, value


# -------------------------------------------------------------------------------------------------- Advantages and loss
class Batch(NamedTuple):
    obs: torch.Tensor  # (B, 64, 64, 3), bytes; in a minibatch M samples in place of B
    actions: torch.Tensor  # (B,) like all that follow
    log_probs: torch.Tensor  # of the actions, under the policy that drew them
    values: torch.Tensor  # as the critic predicted them then
    advantages: torch.Tensor
    returns: torch.Tensor


def compute_gae(rewards, values, dones, next_value, next_done, gamma: float, gae_lambda: float):
    """Generalized advantage estimation (Schulman et al. 2016, equation 16) and the returns that follow from it.

    rewards, values, dones: (T, N), where dones[t] marks obs[t] as the first of an episode; next_value, next_done: (N,),
    of the observation after the rollout. Returns advantages and returns, (T, N) each.
    """
    next_values = np.concatenate([values[1:], next_value[None]])
    continues = 1.0 - np.concatenate([dones[1:], next_done[None]])  # 0 where the episode of step t ends with it
    deltas = rewards + gamma * next_values * continues - values
    decays = gamma * gae_lambda * continues
    advantages = np.zeros_like(rewards)
    advantage = np.zeros_like(next_value)
    for t in reversed(range(len(rewards))):  # [core-5]
        advantage = deltas[t] + decays[t] * advantage
        advantages[t] = advantage
    return advantages, advantages + values


def ppo_loss(log_prob, entropy, value, mb: Batch, clip_coef: float, args: Args):
    """Loss of a minibatch (Schulman et al. 2017, equation 9; the clipped value loss is openai/baselines').

    log_prob, entropy, value: (M,), of the networks as they are now. Returns the loss and a dict of metrics, whose means
    over the minibatches of an update are logged.
    """
    advantages = mb.advantages
    if args.norm_adv:  # [core-7]
        advantages = (advantages - advantages.mean()) / (advantages.std(correction=0) + 1e-8)
    log_ratio = log_prob - mb.log_probs
    ratio = log_ratio.exp()
    clipped_ratio = ratio.clamp(1 - clip_coef, 1 + clip_coef)
    policy_loss = -torch.min(advantages * ratio, advantages * clipped_ratio).mean()  # [core-8]
    squared_error = (value - mb.returns).square()
    if args.clip_vloss:  # [core-9]
        clipped_value = mb.values + (value - mb.values).clamp(-clip_coef, clip_coef)
        squared_error = torch.max(squared_error, (clipped_value - mb.returns).square())
    value_loss = 0.5 * squared_error.mean()
    loss = policy_loss - args.ent_coef * entropy.mean() + args.vf_coef * value_loss  # [core-10]
    with torch.no_grad():  # [core-12]
        metrics = {
            "losses/value_loss": value_loss,
            "losses/policy_loss": policy_loss,
            "losses/entropy": entropy.mean(),
            "losses/old_approx_kl": -log_ratio.mean(),
            "losses/approx_kl": (ratio - 1 - log_ratio).mean(),
            "losses/clipfrac": ((ratio - 1).abs() > clip_coef).float().mean(),
        }
    return loss, metrics


# ------------------------------------------------------------------------------------------------------------- Training
def train(args: Args, run: "Run") -> None:
    """Collects rollouts and learns from each. `run` does the rest: it counts updates, saves, resumes and logs."""
    device = torch.device(args.device)
    envs = VectorEnv(args, args.num_envs)
    torch.manual_seed(args.seed)  # for the initial weights
    agent = Agent(envs, args).to(device)
    parameters = list(agent.parameters())
    optimizer = torch.optim.Adam(parameters, lr=args.learning_rate, eps=1e-5, fused=True)  # [core-3]
    initial_rates = [group["lr"] for group in optimizer.param_groups]
    run.keep(model=agent, optimizer=optimizer, envs=envs)  # add what else changes: --resume loads it here

    # T steps of N environments are a rollout of B = T * N samples, collected on the device; M of them are a minibatch
    T, N, M = args.num_steps, args.num_envs, args.batch_size // args.num_minibatches
    obs = torch.from_numpy(np.zeros((T, N, *envs.observation_space.shape), envs.observation_space.dtype)).to(device)
    actions = torch.zeros((T, N), dtype=torch.int64, device=device)
    log_probs = torch.zeros((T, N), device=device)
    acted_values = torch.zeros((T, N), device=device)
    rewards = np.zeros((T, N), np.float32)
    dones = np.zeros((T, N), np.float32)

    for update, fresh_episodes in run.updates():
        # Anneal
        remaining = 1.0 - (update - 1) / args.num_updates  # 1 in the first update, 1 / num_updates in the last
        clip_coef = args.clip_coef * remaining if args.anneal_clip else args.clip_coef  # [aux-1]
        for group, rate in zip(optimizer.param_groups, initial_rates):
            if args.anneal_lr:  # --no-anneal-lr leaves the rate to a scheduler
                group["lr"] = rate * remaining  # [core-4]

        # Collect a rollout. Every update has its own seed, so that checkpoints need no generator's state
        torch.manual_seed(np.random.SeedSequence([args.seed, update]).generate_state(1).item())
        if fresh_episodes:  # when the run starts or resumes; with --exact-resume after each checkpoint, too
            next_obs = envs.reset(torch.randint(2**31, (N,)).tolist())
            next_done = np.ones(N, np.float32)
        noise = agent.draw_noise(T, N).to(device)
        with torch.inference_mode(), torch.autocast(device.type, enabled=False):  # keeps forward's bf16 weights cached
            for step in range(T):  # [core-1] obs and dones carry on from one rollout to the next
                obs[step] = torch.from_numpy(next_obs)  # change it in VectorEnv or Agent: --evaluate uses only these
                dones[step] = next_done
                actions[step], log_probs[step], acted_values[step] = agent.get_action_and_value(obs[step], noise[step])
                next_obs, rewards[step], next_done, _, episodes = envs.step(actions[step].cpu().numpy())
                run.note(rewards[step], episodes)
            next_value = agent.get_value(torch.from_numpy(next_obs).to(device)).cpu().numpy()

        # Advantages
        values = acted_values.cpu().numpy()
        advantages, returns = compute_gae(rewards, values, dones, next_value, next_done, args.gamma, args.gae_lambda)
        b_obs = obs.flatten(0, 1)  # (T, N, 64, 64, 3) to (B, 64, 64, 3)
        b_advantages = torch.from_numpy(advantages).to(device).flatten()
        b_returns = torch.from_numpy(returns).to(device).flatten()
        batch = Batch(b_obs, actions.flatten(), log_probs.flatten(), acted_values.flatten(), b_advantages, b_returns)

        # Learn, in epochs of minibatches
        logged = []  # metrics of each minibatch
        for _ in range(args.update_epochs):
            for indices in torch.randperm(args.batch_size, device=device).split(M):  # [core-6]
                mb = Batch(*(x.index_select(0, indices) for x in batch))  # faster than x[indices]
                log_prob, entropy, value = agent.evaluate_actions(mb.obs, mb.actions)
                loss, mb_metrics = ppo_loss(log_prob, entropy, value, mb, clip_coef, args)
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(parameters, args.max_grad_norm)  # [core-11]
                optimizer.step()
                logged.append({name: torch.as_tensor(x, device=device).detach() for name, x in mb_metrics.items()})
            epoch_kl = torch.stack([x["losses/approx_kl"] for x in logged[-args.num_minibatches :]]).mean()
            if args.target_kl is not None and epoch_kl > args.target_kl:  # [aux-3]
                break

        # Log
        metrics = {"charts/learning_rate": optimizer.param_groups[0]["lr"]}
        for name in logged[0]:  # each is a mean over the minibatches
            metrics[name] = torch.stack([x[name] for x in logged]).float().mean().item()
        metrics["losses/explained_variance"] = math.nan
        if returns.var() > 0:
            metrics["losses/explained_variance"] = 1 - (returns - values).var() / returns.var()
        run.log(metrics)


# ======================================================================== The run: nothing below is about PPO

import importlib.metadata
import importlib.util
import platform
import random
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import asdict, fields, replace
from typing import NoReturn

import filelock  # comes with torch
import imageio.v2 as imageio
from torch.utils.tensorboard import SummaryWriter

NO_LEVEL = 2**31 - 1  # levels are numbered from 0 to the one before
MODES = {  # the games that have it
    "extreme": ["chaser", "dodgeball", "leaper", "starpilot"],
    "memory": ["caveflyer", "dodgeball", "heist", "jumper", "maze", "miner"],
    "exploration": ["caveflyer", "climber", "coinrun", "heist", "jumper", "leaper", "maze", "ninja"],
}
PICTURES = True  # whether this script learns from pictures
LONGEST_EPISODE = 30_000  # steps after which --evaluate and videos cut an episode off
RANGES = {  # smallest and largest value of options, also of the other scripts'
    **dict.fromkeys(("total_timesteps", "num_envs", "num_steps", "num_minibatches"), (1, sys.maxsize)),
    **dict.fromkeys(("update_epochs", "episodes", "checkpoints"), (1, sys.maxsize)),
    **dict.fromkeys(("num_levels", "start_level", "eval_num_levels", "eval_start_level"), (0, NO_LEVEL)),
    **dict.fromkeys(("num_threads", "env_threads"), (1, 1024)),
    **dict.fromkeys(("gamma", "gae_lambda", "reward_gamma"), (0, 1)),
    **dict.fromkeys(("learning_rate", "clip_coef", "ent_coef", "vf_coef"), (0, sys.maxsize)),
    "max_grad_norm": (0, math.inf),
    **dict.fromkeys(("target_kl", "seed"), (0, sys.maxsize)),
}


# ----------------------------------------------------------------------------------------------- Environments
def load_procgen():
    """Procgen's module of environments."""
    try:
        from gym_notices.notices import notices

        notices.clear()  # Procgen imports the old gym, which would say at length that it is old
        import procgen.env
    except ImportError as error:
        raise ImportError(f"{error}; pip install --no-deps -r requirements-procgen.txt") from error
    return procgen.env


def make_games(args: Args, num_envs: int, render_mode: str | None, seed: int):
    """N copies of the game, on the levels that the arguments name."""
    options = {"env_name": args.env_id, "distribution_mode": args.distribution_mode, "render_mode": render_mode}
    if args.distribution_mode != "exploration":  # which has one level, its own
        levels = level_range(args.start_level, args.num_levels)
        options.update(start_level=levels.start, num_levels=len(levels))
    options.update(json.loads(args.env_kwargs))
    options.update(num=num_envs, rand_seed=seed, num_threads=args.num_threads)
    return load_procgen().ProcgenGym3Env(**options)


def level_range(first: int, number: int) -> range:
    """Levels from the first on; 0: all that there are."""
    return range(first, first + number if number > 0 else NO_LEVEL)


def test_levels(args: Args) -> Args:
    """The arguments of an evaluation on the test levels."""
    return replace(args, start_level=args.eval_start_level, num_levels=args.eval_num_levels)


def check_levels(args: Args) -> None:
    """Raises ValueError if the game or its levels don't exist, or if test levels are trained on."""
    games = MODES.get(args.distribution_mode, load_procgen().ENV_NAMES)
    if args.env_id not in games:  # Procgen would end the whole process
        raise ValueError(f"the games with --distribution-mode {args.distribution_mode} are {', '.join(games)}")
    for name in ("distribution_mode", "start_level", "num_levels"):
        if name in json.loads(args.env_kwargs):
            raise ValueError(f"--env-kwargs sets {name}; use --{name.replace('_', '-')}")
    asked = (args.start_level, args.num_levels, args.eval_start_level, args.eval_num_levels)
    if args.distribution_mode == "exploration":
        if asked != (0, 0, None, 0):
            raise ValueError("--distribution-mode exploration has one level, its own; leave out all other levels")
        return
    training = level_range(args.start_level, args.num_levels)
    test = range(0)
    if args.eval_start_level is not None:
        test = level_range(args.eval_start_level, args.eval_num_levels)
    elif args.eval_num_levels > 0:
        raise ValueError("--eval-num-levels needs --eval-start-level, the first of them")
    for levels in (training, test):
        if levels.stop > NO_LEVEL or levels.start >= NO_LEVEL:
            raise ValueError(f"levels {levels.start} to {levels.stop - 1}: Procgen's last is {NO_LEVEL - 1}")
    if max(training.start, test.start) < min(training.stop, test.stop):
        raise ValueError("trains on some of the test levels; test others, or train on few, say --num-levels 200")


def freeze_statistics(vector: gym.vector.VectorEnv) -> None:
    """Lets NormalizeObservation and NormalizeReward use what they have learned, and learn nothing more."""
    for env in vector.envs:
        while isinstance(env, gym.Wrapper):
            if isinstance(env, gym.wrappers.NormalizeObservation | gym.wrappers.NormalizeReward):
                env.update_running_mean = False
            env = env.env


def picture(envs: VectorEnv) -> np.ndarray:
    """The first game as people see it, (512, 512, 3) bytes."""
    return envs.vector.get_info()[0]["rgb"]


def return_so_far(envs: VectorEnv) -> float:
    """The return of the first environment's episode until now."""
    return float(envs.episodic_returns[0])


# ------------------------------------------------------------------------------------------------- Evaluation
class Player:
    """A trained agent and an environment of its own, as --evaluate, videos and other programs use them.

    player = load("runs/RUN")
    obs = player.reset(seed=1)
    obs, rewards, dones, _, episodes = player.step(player.act(obs))
    """

    def __init__(self, checkpoint: dict, args: Args, render_mode: str | None = None):
        self.deterministic = args.deterministic
        self.device = torch.device(args.device)
        self.envs = VectorEnv(args, 1, render_mode)
        self.agent = Agent(self.envs, args).to(self.device)
        self.agent.eval()
        restore(checkpoint, model=self.agent, envs=self.envs)
        freeze_statistics(self.envs.vector)

    def reset(self, seed: int) -> np.ndarray:
        """Begins an episode. Returns observations (1, ...), as the agent gets them."""
        self.envs.is_new = True  # the same environment plays all episodes
        return self.envs.reset([seed])

    def act(self, obs: np.ndarray) -> np.ndarray:
        """Actions (1, ...) at observations (1, ...), for step."""
        noise = self.agent.draw_noise(1).to(self.device)
        if self.deterministic:
            noise = torch.zeros_like(noise)
        with torch.no_grad():
            return self.agent.get_action(torch.from_numpy(obs).to(self.device), noise).cpu().numpy()

    def step(self, actions: np.ndarray):
        """As VectorEnv.step; when an episode ends, the next one begins."""
        return self.envs.step(actions)

    def close(self) -> None:
        self.envs.close()

    def picture(self) -> np.ndarray:
        """What a video shows of this moment, (height, width, 3) bytes."""
        return picture(self.envs)

    def play(self, seed: int, writer=None) -> dict:
        """Plays an episode, with pictures for a video's writer. Returns its return "r" and length "l"."""
        obs = self.reset(seed)
        for _ in range(LONGEST_EPISODE):
            if writer:
                writer.append_data(self.picture())
            obs, _, _, _, episodes = self.step(self.act(obs))
            if episodes:
                return episodes[0]
        total = return_so_far(self.envs)
        print(f"episode stopped after {LONGEST_EPISODE:,} steps; its return so far is {total:.2f}")
        return {"r": total, "l": LONGEST_EPISODE}


def load(run: str | Path, render_mode: str | None = None, **options) -> Player:
    """A trained agent. `run`: run folder or checkpoint; `options`: Args to change, say deterministic=True.

    Sets torch's threads and draws actions from torch's generator. Raises ValueError if there is no such agent.
    """
    if render_mode == "human":
        os.environ.pop("SDL_VIDEODRIVER", None)  # pygame opens a window
    try:
        checkpoint = load_checkpoint(Path(run))
        args = resolve(replace(for_evaluation(checkpoint["args"]), **options))
        prepare(args)
        return Player(checkpoint, args, render_mode)
    except SystemExit:
        raise ValueError(f"{run}: can't be loaded; the line above says why") from None


def evaluate(checkpoint: dict, args: Args, episodes: int, video: Path | None = None) -> Iterator[dict]:
    """Plays episodes; yields "r" and "l" of each. `video`: mp4 of the first, whole or not there."""
    with closing(Player(checkpoint, args, "rgb_array" if video else None)) as player:
        seeds = episode_seeds(args, episodes)
        if video:
            yield film(player, seeds.pop(0), video)
        for seed in seeds:
            yield player.play(seed)


def film(player: Player, seed: int, video: Path) -> dict:
    """Plays an episode, and records it."""
    unfinished = video.with_suffix(".tmp.mp4")
    fps = player.envs.vector.metadata.get("render_fps", 30)
    try:
        with closing(imageio.get_writer(unfinished, fps=fps, macro_block_size=2)) as writer:
            episode = player.play(seed, writer)
        unfinished.replace(video)
    finally:
        unfinished.unlink(missing_ok=True)
    return episode


# ------------------------------------------------------------------------------------------------------ Torch
CHECKPOINT = ".pt"  # suffix of checkpoints
OUT_OF_MEMORY = (MemoryError, torch.OutOfMemoryError)


def write_state(state: dict, file) -> None:
    torch.save(state, file)


def read_state(path: Path) -> dict:
    """What write_state wrote. Runs no code that the file may hold."""
    return torch.load(path, map_location="cpu", weights_only=True)


def is_finite(model: nn.Module) -> bool:
    return all(bool(torch.isfinite(parameter).all()) for parameter in model.parameters())


def seed_others(*numbers: int) -> None:
    """Seeds the generators that no script draws from, but perhaps the environments."""
    seed = np.random.SeedSequence(numbers).generate_state(1).item()
    random.seed(seed)
    np.random.seed(seed)


def episode_seeds(args: Args, episodes: int) -> list[int]:
    """Seeds the random numbers of an evaluation, and draws a seed for each of its episodes."""
    seed_others(args.seed, 0)
    torch.manual_seed(np.random.SeedSequence([args.seed, 0]).generate_state(1).item())  # updates begin with 1
    return torch.randint(2**31, (episodes,)).tolist()


def resolve(args: Args) -> Args:
    """The arguments with what this machine decides: the device for auto, torch's own number of threads for None."""
    device = args.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    threads = args.num_threads or torch.get_num_threads()
    return replace(args, device=device, num_threads=threads, total_timesteps=int(args.total_timesteps))


def prepare(args: Args) -> str:
    """Sets threads and determinism of this process. Returns what it computes on."""
    keep_freed_memory()
    report_slow_bf16(args)
    torch.set_num_threads(args.num_threads)
    torch.use_deterministic_algorithms(args.device == "cuda" and args.torch_deterministic)
    threads = f"CPU, {args.num_threads} threads" if args.num_threads > 1 else "CPU, 1 thread"
    return torch.cuda.get_device_name() if args.device == "cuda" else threads


def keep_freed_memory() -> None:
    """Lets glibc, the C library of most Linuxes, use large blocks of memory again instead of asking for new ones."""
    if platform.libc_ver()[0] == "glibc":
        import ctypes

        glibc = ctypes.CDLL(None)
        glibc.mallopt(-4, 0)  # M_MMAP_MAX
        glibc.mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD


def report_slow_bf16(args: Args) -> None:
    """Says that this processor has no instructions for bfloat16: without them it is several times slower than fp32."""
    if args.precision == "bf16" and args.device == "cpu":
        capabilities = torch.cpu.get_capabilities()
        if not any("bf16" in name and has for name, has in capabilities.items()):
            print("--precision bf16 is slow on this CPU, which has no instructions for it; use the default, fp32")


def check_device(args: Args) -> None:
    if args.device == "cuda" and not torch.cuda.is_available():
        fail(f"--device cuda: torch {torch.__version__} finds no GPU; use --device cpu, or another torch")
    if args.device == "mps" and not torch.backends.mps.is_available():
        fail("--device mps: torch finds no Apple GPU; use --device cpu")
    # Loads Triton, where torch has it: after Mesa, which draws for MuJoCo and others, loading it would crash
    importlib.import_module("torch._dynamo")


# -------------------------------------------------------------------------------------------------------- Run
class Run:
    """What surrounds a training: run folder, checkpoints, resuming, logs, stop signals."""

    def __init__(self, args: Args, checkpoint: dict | None = None):
        self.typed = args  # as checkpoints keep them; in self.args, this machine has decided "auto" and None
        self.args = resolve(args)
        self.machine = prepare(self.args)
        seed_others(self.args.seed)  # before environments are made
        self.checkpoint = checkpoint  # the last one, to go on from or to record
        self.update = checkpoint["update"] if checkpoint else 0
        self.is_saved = True  # whether nothing was learned since the last checkpoint
        self.global_step = checkpoint["global_step"] if checkpoint else 0
        self.seconds = checkpoint["seconds"] if checkpoint else 0.0  # of training alone
        self.recent_returns = checkpoint["recent_returns"] if checkpoint else []
        self.columns = checkpoint["columns"] if checkpoint else []  # of metrics.csv, fixed by update 1
        self.episodes = []  # (global_step, return, length, seconds) of those that ended in this update
        self.rewards = []  # of each step in this update
        self.kept = {}
        self.optimizer_options = {}  # as the script gives them, by what is kept
        self.folder = None
        self.tracker = None
        self.stop_signal = None
        self.signal_handlers = {}
        self.last_status = -math.inf
        self.told_no_end = False
        self.launcher = ["python"]

    def keep(self, **objects) -> None:
        """Names what checkpoints hold: objects with a state_dict. A resumed run loads their states here."""
        for name, thing in objects.items():
            if not hasattr(thing, "state_dict"):
                fail(f"run.keep({name}=...): {type(thing).__name__} has no state_dict; keep an object that has one")
        self.kept.update(objects)
        self.optimizer_options.update({name: options_of(thing) for name, thing in objects.items()})
        if self.checkpoint:
            restore(self.checkpoint, **objects)

    def updates(self) -> Iterator[tuple[int, bool]]:
        """Yields the number of each update to do, and whether it has to start with fresh episodes.

        The first one has to: a resumed run has no half-played episodes. With --exact-resume each one after a
        checkpoint has to, so that a run ends with the same bits, whether it was resumed there or not.
        """
        args = self.args
        self.open()
        steps = args.num_updates * args.num_steps  # of each environment
        count = args.checkpoints or max(1, min(10, steps // 10_000))
        count = min(count, args.num_updates)
        planned = {round(args.num_updates * (i + 1) / count) for i in range(count)}
        fresh_episodes = True
        while self.update < args.num_updates:
            self.update += 1
            seed_others(args.seed, self.update)
            self.start_time = time.perf_counter() - self.seconds  # checkpoints and videos do not count
            self.is_saved = False
            yield self.update, fresh_episodes
            self.seconds = time.perf_counter() - self.start_time
            stop = self.stop_signal is not None  # asked once, since a signal can come at any line
            is_planned = self.update in planned
            # With --exact-resume only what was planned is saved: after another checkpoint, a resumed run would begin
            # fresh episodes where an undisturbed one goes on with its own
            if is_planned or (stop and not args.exact_resume):
                self.save()
                self.is_saved = True
            last = self.update == args.num_updates
            self.show_status(last=stop or last)
            if stop and not last:
                self.leave()
            if is_planned and args.capture_video:
                self.record_video()
            fresh_episodes = is_planned and args.exact_resume

    def finish(self) -> None:
        """Says where the run is; saves it first, if train has ended it between two checkpoints."""
        if not self.is_saved:
            self.save()
            self.show_status(last=True)
        print(f"run folder: {self.folder}")

    def leave(self) -> None:
        """Ends the process after a stop signal, with the command that goes on."""
        if self.checkpoint:
            script = Path(sys.argv[0]).as_posix()
            command = shlex.join([*self.launcher, script, "--resume", self.folder.as_posix()])
            print(f"stopped; update {self.checkpoint['update']} is saved, go on with: {command}")
        else:
            print("stopped before the first checkpoint: nothing is saved")
        sys.exit(128 + self.stop_signal)

    def open(self) -> None:
        """Makes the run folder, or cuts the logs of a resumed one back to the checkpoint, and opens them."""
        resumed = self.args.resume is not None
        if resumed:
            self.folder = Path(self.args.resume)
        else:
            self.folder = create_run_folder(self.typed, self.args, self.launcher, self.machine)
        self.lock = filelock.FileLock(self.folder / "lock")  # free again when this process ends, however
        try:
            self.lock.acquire(blocking=False)
        except filelock.Timeout:
            fail(f"{self.folder}: another process is training it")
        if self.args.track:
            self.start_tracker()
        if resumed:
            self.cut_back()
        self.tensorboard = SummaryWriter(str(self.folder), purge_step=self.global_step + 1)
        self.metrics_file = open(self.folder / "metrics.csv", "a", encoding="utf-8", newline="\n")
        self.episodes_file = open(self.folder / "episodes.csv", "a", encoding="utf-8", newline="\n")
        if threading.current_thread() is threading.main_thread():  # no other may handle signals
            for number in (signal.SIGINT, signal.SIGTERM):
                self.signal_handlers[number] = signal.signal(number, self.request_stop)
        print(f"{self.folder}: {self.args.num_updates} updates, {self.update} done; {self.machine}", flush=True)

    def cut_back(self) -> None:
        """Takes what was logged after the checkpoint out of the files, and notes changed arguments."""
        for name, size in self.checkpoint["log_sizes"].items():
            path = self.folder / name
            if not path.is_file() or path.stat().st_size < size:
                fail(f"{path}: rows from before the checkpoint are missing; restore the file or train anew")
            os.truncate(path, size)
        for name, value in asdict(self.checkpoint["args"]).items():
            now = getattr(self.typed, name)
            if name != "resume" and now != value:
                print(f"from update {self.update + 1} on: {name} {now} instead of {value}")
        config = json.loads((self.folder / "config.json").read_text("utf-8"))
        resumed = config.setdefault("resumed", [])
        resumed.append({"after_update": self.update, "arguments": asdict(self.typed)})
        write_text(self.folder / "config.json", json.dumps(config, indent=2))

    def close(self) -> None:
        """Closes files, processes and the tracker, and restores signal handlers, however the training ended."""
        for name in ("tensorboard", "metrics_file", "episodes_file"):
            if hasattr(self, name):
                with suppress(OSError):  # a full disk, which has been told
                    getattr(self, name).close()
        if hasattr(self, "lock"):
            self.lock.release()
        if "envs" in self.kept:
            self.kept["envs"].close()
        if self.tracker:
            self.tracker.finish()
        for number, handler in self.signal_handlers.items():
            signal.signal(number, handler)

    def request_stop(self, number: int, frame) -> None:
        self.stop_signal = number
        signal.signal(number, signal.SIG_DFL)  # a second one ends the process at once
        with suppress(OSError):  # nobody may read it any more
            os.write(2, b"\nstopping after this update\n")

    def note(self, rewards: np.ndarray, episodes: list[dict]) -> None:
        """Counts a step of all environments, and records the episodes that ended in it."""
        self.global_step += self.args.num_envs
        self.rewards += rewards.tolist()
        for episode in episodes:
            seconds = round(time.perf_counter() - self.start_time, 3)
            self.episodes.append((self.global_step, episode["r"], episode["l"], seconds))

    def log(self, metrics: dict[str, float]) -> None:
        """Writes the episodes that ended in this update, and its metrics, to CSV files and TensorBoard."""
        if not math.isfinite(metrics["losses/policy_loss"] + metrics["losses/value_loss"]):
            fail(f"update {self.update}: the loss is not finite; {self.folder} has what was saved before", 1)
        self.seconds = time.perf_counter() - self.start_time
        for step, episodic_return, length, seconds in self.episodes:
            print(step, episodic_return, length, seconds, sep=",", file=self.episodes_file)
            self.tensorboard.add_scalar("charts/episodic_return", episodic_return, step)
            self.tensorboard.add_scalar("charts/episodic_length", length, step)
        self.episodes_file.flush()
        returns = [episode[1] for episode in self.episodes]
        lengths = [episode[2] for episode in self.episodes]
        self.recent_returns = (self.recent_returns + returns)[-100:]
        metrics = {name: x.item() if hasattr(x, "item") else x for name, x in metrics.items()}  # tensors, too
        metrics = {"charts/reward": np.mean(self.rewards), "charts/SPS": self.global_step / self.seconds, **metrics}
        self.episodes = []
        self.rewards = []
        for name, value in metrics.items():
            if not math.isnan(value):
                self.tensorboard.add_scalar(name, value, self.global_step)
        row = {
            "charts/episodic_return": np.mean(returns) if returns else math.nan,
            "charts/episodic_length": np.mean(lengths) if lengths else math.nan,
            **metrics,
        }
        if not self.columns:
            self.columns = list(row)
            print("global_step", *self.columns, sep=",", file=self.metrics_file)
        for name in row:
            if name not in self.columns:
                fail(f"metrics.csv has no column {name}: log it in every update, if only as math.nan", 1)
        values = [row.get(name, math.nan) for name in self.columns]
        print(self.global_step, *values, sep=",", file=self.metrics_file, flush=True)
        steps = self.update * self.args.num_steps  # of each environment
        if not self.told_no_end and not self.recent_returns and steps >= 100_000:
            self.told_no_end = True
            print(f"no episode has ended in {steps:,} steps of each environment; see charts/reward instead")

    def show_status(self, last: bool) -> None:
        """A line that overwrites itself on a terminal; in a file, a line every 10 seconds."""
        on_terminal = sys.stdout.isatty()
        now = time.perf_counter()
        if last or now - self.last_status > (0.2 if on_terminal else 10):
            self.last_status = now
            done = self.update / self.args.num_updates
            minutes_left = (self.seconds / done - self.seconds) / 60
            mean_return = three_digits(np.mean(self.recent_returns)) if self.recent_returns else "none yet"
            speed = self.global_step / self.seconds
            status = f"{done:4.0%}  step {self.global_step:,}  {speed:,.0f} steps/s  "
            status += f"{minutes_left:.1f} min left  mean return {mean_return}"
            with suppress(BrokenPipeError):  # of `| tee log`, which Ctrl-C ends first
                print(status.ljust(79), end="\r" if on_terminal and not last else "\n", flush=True)

    def save(self) -> None:
        """Writes a checkpoint, once all that was logged before it is on the disk."""
        if not is_finite(self.kept["model"]):
            fail(f"update {self.update}: weights are not finite; {self.folder} has what was saved before", 1)
        self.tensorboard.flush()
        os.fsync(self.metrics_file.fileno())
        os.fsync(self.episodes_file.fileno())
        state = {
            "script": Path(__file__).stem,
            "args": asdict(replace(self.typed, resume=None)),
            "update": self.update,
            "global_step": self.global_step,
            "seconds": self.seconds,
            "recent_returns": self.recent_returns,
            "columns": self.columns,
            "log_sizes": {"metrics.csv": self.metrics_file.tell(), "episodes.csv": self.episodes_file.tell()},
            "optimizer_options": self.optimizer_options,
        }
        for name, thing in self.kept.items():
            state[name] = thing.state_dict()
        path = self.folder / "checkpoints" / f"{self.update}{CHECKPOINT}"
        unfinished = path.with_suffix(".tmp")
        with open(unfinished, "wb") as file:
            write_state(state, file)
            file.flush()
            os.fsync(file.fileno())
        try:
            saved = read_state(unfinished)
        except Exception as error:  # an object in run.keep has something else in its state_dict
            fail(f"checkpoints take tensors, numbers, text, lists and dicts: {describe(error)[:200]}", 1)
        unfinished.replace(path)  # it is there as a whole or not at all
        self.checkpoint = {**saved, "args": self.typed, "path": path}

    def record_video(self) -> None:
        """Plays an episode with the checkpoint just written. What fails here costs a video, not the run."""
        video = self.folder / "videos" / f"{self.update}.mp4"
        try:
            list(evaluate(self.checkpoint, self.args, 1, video))
            if self.tracker:
                import wandb

                self.tracker.log({"video": wandb.Video(str(video)), "global_step": self.global_step})
        except (Exception, SystemExit) as error:  # other people's code can raise anything
            print(f"warning: no video of update {self.update}: {describe(error)}", file=sys.stderr)

    def start_tracker(self) -> None:
        """Opens the run at Weights & Biases, which from then on follows what is written for TensorBoard."""
        import wandb

        wandb.tensorboard.patch(root_logdir=str(self.folder), pytorch=True)
        args = self.args
        name = self.folder.name
        where = {"project": args.wandb_project_name, "entity": args.wandb_entity, "name": name}
        run_id = "".join(letter if letter.isalnum() else "-" for letter in name)
        try:
            self.tracker = wandb.init(**where, id=run_id, resume="allow", config=asdict(args), save_code=True)
        except Exception as error:  # no network, no login
            fail(f"--track: {describe(error)}; nothing was trained; leave out --track, or log in", 1)

    def print_evaluation(self, args: Args, name: str = "evaluation") -> None:
        """Plays the episodes of --evaluate, and writes them to evaluation.csv, in place of earlier ones."""
        path = self.checkpoint["path"]
        folder = path.parent.parent if path.parent.name == "checkpoints" else path.parent
        video = folder / f"{name}.mp4" if args.capture_video else None
        rows = ["checkpoint,seed,episode,episodic_return,episodic_length"]
        returns = []
        for episode in evaluate(self.checkpoint, args, args.episodes, video):
            returns.append(episode["r"])
            print(f"episode {len(returns)}: return {episode['r']:.2f}, length {episode['l']}", flush=True)
            rows.append(f"{path.name},{args.seed},{len(returns)},{episode['r']},{episode['l']}")
        print(f"mean return {np.mean(returns):.2f} ± {np.std(returns):.2f} of {path}")
        if video:
            print(f"video: {video}")
        try:
            write_text(folder / f"{name}.csv", "\n".join(rows) + "\n")
        except OSError as error:  # the folder may be read-only
            print(f"warning: {name}.csv is not written: {error}", file=sys.stderr)


def options_of(thing) -> list[dict]:
    """An optimizer's options, such as its learning rate, by group of parameters; of other objects, none."""
    groups = getattr(thing, "param_groups", [])
    return [{name: value for name, value in group.items() if name != "params"} for group in groups]


def restore(checkpoint: dict, **objects) -> None:
    """Loads the state of each object from a checkpoint, under the object's name.

    An optimizer goes on with its last options, say a rate that train has lowered; but where the script gives
    another one than before, since it was edited or called with another argument, that one counts.
    """
    for name, thing in objects.items():
        options = options_of(thing)
        before = checkpoint.get("optimizer_options", {}).get(name, [{}] * len(options))  # {}: by an older script
        try:
            thing.load_state_dict(checkpoint[name])
            for i, given in enumerate(options):
                changed = {option: value for option, value in given.items() if before[i].get(option) != value}
                if checkpoint["args"].anneal_lr:  # the saved rate follows from the script's
                    changed["lr"] = given["lr"]
                thing.param_groups[i].update(changed)
        except Exception as error:  # what doesn't fit can raise anything
            fail(f"{checkpoint['path']}: doesn't fit this script and environment: {name}: {str(error)[:200]}")


def three_digits(number: float) -> str:
    """A number with at least three digits: 0.951, 12.3, 1,234."""
    if number == 0 or not math.isfinite(number):
        return f"{number:g}"
    decimals = min(6, max(0, 2 - math.floor(math.log10(abs(number)))))
    return f"{number:,.{decimals}f}"


def write_text(path: Path, text: str) -> None:
    """Replaces a file: it has the old text or the new one, whatever happens."""
    unfinished = path.with_suffix(".tmp")
    unfinished.write_text(text, "utf-8", newline="\n")
    unfinished.replace(path)


def create_run_folder(typed: Args, resolved: Args, launcher: list[str], machine: str) -> Path:
    """Makes runs/{env_id}__{exp_name}__{seed}__{time}, with all that it takes to repeat the run."""
    name = f"{typed.env_id}__{typed.exp_name}__{typed.seed}__".replace("/", "_").replace(":", "_")
    now = int(time.time())
    while (Path("runs") / f"{name}{now}").exists():  # begun in the same second
        now += 1
    folder = Path("runs") / f"{name}{now}"
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "videos").mkdir()
    write_text(folder / "episodes.csv", "global_step,episodic_return,episodic_length,seconds\n")
    shutil.copy(__file__, folder)
    packages = ("ale-py", "envpool", "gymnasium", "mujoco", "numpy", "procgen-mirror", "torch")
    versions = {"python": platform.python_version()}
    for package in packages:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    gpus = [machine] if getattr(resolved, "device", "cpu") == "cuda" else []
    decided = {name: value for name, value in asdict(resolved).items() if value != getattr(typed, name)}
    config = {
        "script": Path(__file__).stem,
        "arguments": {**asdict(typed), "total_timesteps": resolved.total_timesteps},
        "resolved": decided,
        "command": shlex.join([*launcher, *sys.argv]),
        "versions": versions,
        "hardware": {"cpu": processor(), "cores": os.cpu_count(), "gpus": gpus},
        "git_commit": git_commit(),
    }
    write_text(folder / "config.json", json.dumps(config, indent=2))
    return folder


def processor() -> str:
    """The processor's name; the kernel of Linux tells more than Python does."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def git_commit() -> str | None:
    """The commit of the repository that the script is in, if it is in one; -dirty if files have changed."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    folder = Path(__file__).resolve().parent
    try:
        return subprocess.check_output(command, cwd=folder, stderr=subprocess.DEVNULL, text=True).strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def load_checkpoint(path: Path) -> dict:
    """The checkpoint in a file, or the last one of a run folder. Runs no code that the file may hold."""
    if not path.exists():
        fail(f"{path}: there is no such file or folder")
    if path.is_dir():
        files = [file for file in path.glob(f"checkpoints/*{CHECKPOINT}") if file.stem.isdigit()]
        if not files:
            fail(f"{path}: has no checkpoints, {path / 'checkpoints'}/*{CHECKPOINT}")
        path = max(files, key=lambda file: int(file.stem))
    try:
        checkpoint = read_state(path)
        script = checkpoint["script"]
    except Exception as error:  # a file that is something else can raise anything
        fail(f"{path}: not a whole checkpoint: {describe(error)[:200]}; move it away, or name another")
    if script != Path(__file__).stem:
        fail(f"{path}: was written by {script}.py; use that script")
    known = {field.name for field in fields(Args)}
    checkpoint["args"] = Args(**{name: value for name, value in checkpoint["args"].items() if name in known})
    checkpoint["path"] = path
    return checkpoint


def for_evaluation(args: Args) -> Args:
    """A training's arguments, with the options of how and where to run back at their defaults."""
    options = ("seed", "episodes", "deterministic", "capture_video", "debug")
    options += ("device", "device_ids", "backend", "num_threads", "env_threads", "vectorization", "compile")
    defaults = Args()
    changes = {name: getattr(defaults, name) for name in options if hasattr(args, name)}
    return replace(args, resume=None, track=False, **changes)


# ---------------------------------------------------------------------------------------------- Procgen's run
class ProcgenRun(Run):
    """With --eval-start-level, a run that plays on training and test levels, at checkpoints and by --evaluate."""

    def open(self) -> None:
        super().open()
        if self.checkpoint:  # a stop or a kill can have come before its evaluation
            self.evaluate_levels()

    def save(self) -> None:
        super().save()
        if self.stop_signal is None:
            self.evaluate_levels()

    def evaluate_levels(self) -> None:
        """Brings levels.csv up to this checkpoint: a row an episode."""
        if self.args.eval_start_level is None:
            return
        path = self.folder / "levels.csv"
        rows = ["global_step,levels,episodic_return,episodic_length"]
        if path.exists():
            for row in path.read_text("utf-8").splitlines()[1:]:
                if int(row.partition(",")[0]) < self.global_step:  # a resumed run plays the others again
                    rows.append(row)
        for levels, args in (("training", self.args), ("test", test_levels(self.args))):
            episodes = []
            for episode in evaluate(self.checkpoint, args, args.episodes):
                episodes.append(episode)
                if self.stop_signal is not None:  # when the run goes on, it plays them again
                    return
            rows += [f"{self.global_step},{levels},{episode['r']},{episode['l']}" for episode in episodes]
            mean_return = np.mean([episode["r"] for episode in episodes])
            print(f"step {self.global_step:,}: mean return on the {levels} levels {mean_return:.2f}", flush=True)
        write_text(path, "\n".join(rows) + "\n")

    def print_evaluation(self, args: Args, name: str = "evaluation") -> None:
        """Plays on the training levels, then on the test levels if there are any."""
        super().print_evaluation(args, name)
        if args.eval_start_level is not None:
            print("on the test levels, which training never saw:")
            super().print_evaluation(test_levels(args), f"{name}_test_levels")


# ------------------------------------------------------------------------------------------------------- Main
def fail(message: str, status: int = 2) -> NoReturn:
    """Ends the program with one line. Status 2: the user can fix it. Status 1: the run broke."""
    print(f"{Path(__file__).name}: error: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(status)


def describe(error: Exception) -> str:
    """An error of other people's code in one line: what it is, and where it was raised if it says little."""
    text = f"{type(error).__name__}: {error}"
    if len(str(error)) < 40 and error.__traceback__:
        place = traceback.extract_tb(error.__traceback__)[-1]
        text += f" (raised in {place.filename}, line {place.lineno}; --debug shows all)"
    return text


def check_arguments(args: Args) -> None:
    """Ends the program at the first argument that cannot work, before anything is created."""
    for name, (least, most) in RANGES.items():
        value = getattr(args, name, None)
        if value is not None and not least <= value <= most:  # nan is in no range
            flag = name.replace("_", "-")
            limits = f"at least {least}" if most >= sys.maxsize else f"from {least} to {most}"
            fail(f"--{flag} {value}: must be a number, {limits}")
    batch = f"--num-envs {args.num_envs} * --num-steps {args.num_steps} = {args.batch_size}"
    if args.batch_size % args.num_minibatches != 0:
        fail(f"{batch}: must be a multiple of --num-minibatches {args.num_minibatches}")
    if args.num_updates < 1:
        fail(f"{batch}: must be at most --total-timesteps {args.total_timesteps}")
    if args.norm_adv and args.batch_size == args.num_minibatches:
        fail(f"{batch}: minibatches of one sample have no advantage left to normalize; use --no-norm-adv")
    if args.track and importlib.util.find_spec("wandb") is None:
        fail("--track: needs another package: pip install wandb")
    check_device(args)
    if not hasattr(gym.vector, "AutoresetMode"):  # some packages install an older one
        fail(f"gymnasium {gym.__version__}: is too old; pip install 'gymnasium>=1.4'")
    try:
        options = json.loads(args.env_kwargs)
    except ValueError as error:
        fail(f"--env-kwargs {args.env_kwargs}: not JSON, such as '{{\"option\": 1}}': {error}")
    if not isinstance(options, dict):
        fail(f"--env-kwargs {args.env_kwargs}: must be a JSON object, such as '{{\"option\": 1}}'")
    try:
        check_environment(args)
    except Exception as error:  # an unknown id, a missing package, no display: each raises something else
        if args.debug:
            raise
        hint = ""
        if isinstance(error, gym.error.UnregisteredEnv) and ":" not in args.env_id:
            hint = "; ids of other packages are written module:Name-v0"
            if not PICTURES:
                hint += ", and Atari games are for ppo_atari.py"
        elif args.capture_video and "render_mode" in str(error):
            hint = "; it can't be filmed: omit --capture-video"
        fail(f"--env-id {args.env_id}: {describe(error)}{hint}")


def check_environment(args: Args) -> None:
    """Looks for the game and its levels, takes a step and draws a picture. Raises what goes wrong."""
    args = resolve(args)
    check_levels(args)
    envs = VectorEnv(args, 1, "rgb_array" if args.capture_video else None)
    envs.reset([0])
    observations = envs.step(np.zeros(1, np.int64))[0]
    if observations.dtype != envs.observation_space.dtype:  # they would be cut to whole numbers
        declared = f"observation_space says {envs.observation_space.dtype}"
        raise ValueError(f"VectorEnv.step returns {observations.dtype}, but its {declared}; change both")
    if args.capture_video:
        picture(envs)
    envs.close()


def read_arguments() -> tuple[Args, dict | None]:
    """The arguments, and the checkpoint of --resume or --evaluate, which has all that is not typed."""
    words = []
    for word in sys.argv[1:]:
        if word in ("--cuda", "--no-cuda") and hasattr(Args, "device"):  # as CleanRL's users type it
            words += ["--device", "cuda" if word == "--cuda" else "cpu"]
        else:
            words.append(word)
    args = tyro.cli(Args, description=__doc__, args=words)
    if args.resume is None and args.evaluate is None:
        return args, None
    checkpoint = choose_checkpoint(args)
    saved = checkpoint["args"]
    if args.evaluate is not None:
        saved = for_evaluation(saved)
        # A run folder is trusted, since its script is there too; a lone checkpoint may be a stranger's
        if ":" in saved.env_id and args.env_id != saved.env_id and Path(args.evaluate).is_file():
            fail(f"--evaluate: its environment {saved.env_id} imports a module; add --env-id if you trust it")
    return tyro.cli(Args, description=__doc__, args=words, default=saved), checkpoint


def choose_checkpoint(args: Args) -> dict:
    """The checkpoint that --resume or --evaluate names."""
    if args.resume is not None and args.evaluate is not None:
        fail("use either --resume or --evaluate, not both")
    if args.resume is not None and (args.resume == "" or not Path(args.resume).is_dir()):
        fail(f"--resume {args.resume}: takes a run folder, runs/{{env_id}}__{{exp_name}}__{{seed}}__{{time}}")
    checkpoint = load_checkpoint(Path(args.evaluate if args.resume is None else args.resume))
    original = checkpoint["path"].parent.parent / Path(__file__).name  # as it was when the run began
    if original.is_file() and original.read_bytes() != Path(__file__).read_bytes():
        print(f"note: {Path(__file__).name} has changed since this run began; {original} has not")
    return checkpoint


def main(args: Args, checkpoint: dict | None = None) -> Path | None:
    """Trains, resumes or evaluates, as the arguments say. Returns the run folder of a training.

    Other programs pass Args alone; options left at their defaults then come from the checkpoint.
    """
    if checkpoint is None and (args.resume is not None or args.evaluate is not None):
        checkpoint = choose_checkpoint(args)
        defaults = asdict(Args())
        changed = {name: value for name, value in asdict(args).items() if value != defaults[name]}
        saved = checkpoint["args"] if args.evaluate is None else for_evaluation(checkpoint["args"])
        args = replace(saved, **changed)
    if args.resume is not None:
        saved = checkpoint["args"]
        if args.batch_size != saved.batch_size:
            fail("--num-envs and --num-steps: updates are counted in their product, which cannot change")
        if checkpoint["update"] >= args.num_updates:
            longer = (checkpoint["update"] + 1) * args.batch_size
            print(f"{args.resume}: has ended; train it longer with --total-timesteps {longer} or more")
            return Path(args.resume)
    check_arguments(args)
    run = ProcgenRun(args, checkpoint)
    try:
        if args.evaluate is not None:
            run.print_evaluation(run.args)
        else:
            train(run.args, run)
            run.finish()
    except (OSError, EOFError, *OUT_OF_MEMORY) as error:  # a full disk, an environment's process that died
        if args.debug:
            raise
        is_async = getattr(args, "vectorization", "sync") == "async"
        died = is_async and isinstance(error, ConnectionError | EOFError)
        what = "an environment's process died: " if died else ""
        can_resume = run.checkpoint is not None and args.evaluate is None
        hint = f"; what was saved is whole, go on with --resume {run.folder}" if can_resume else ""
        fail(f"{run.folder or args.env_id}: {what}{describe(error)}{hint}", 1)
    finally:
        run.close()
    return run.folder


if __name__ == "__main__":
    try:
        main(*read_arguments())
    except KeyboardInterrupt:  # while an evaluation plays
        sys.exit(130)
