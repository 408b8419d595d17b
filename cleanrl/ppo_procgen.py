# /// script
# requires-python = ">=3.11,<3.13"
# dependencies = [
#   "gym3==0.3.3",
#   "gymnasium==1.4.0",
#   "imageio[ffmpeg]==2.38.1",
#   "numpy==2.4.6",
#   "procgen-mirror==0.10.7",
#   "tensorboard==2.21.0",
#   "torch==2.13.0",
#   "tyro==1.0.17",
# ]
# [tool.uv] # procgen-mirror and gym3 ask for older ones, without need
# override-dependencies = ["filelock==4.2.11", "gym==0.26.2", "numpy==2.4.6"]
# ///
"""PPO for the 16 games of Procgen, whose levels are drawn anew for each episode.

    python cleanrl/ppo_procgen.py --env-id starpilot
    python cleanrl/ppo_procgen.py --resume runs/RUN
    python cleanrl/ppo_procgen.py --evaluate runs/RUN
    python cleanrl/ppo_procgen.py --env-id starpilot --num-levels 200 --eval-start-level 200

Parent: ppo_atari.py. Changes: (1) Procgen steps all games at once, from one seed, and tells of no time limits, so
--vectorization and --bootstrap-truncated are gone; frames in colour, one at a time; (2) NormalizedVectorEnv scales
rewards by running statistics, which go into the checkpoint; (3) IMPALA's residual network; (4) training can keep to
some levels and be evaluated on others; (5) --channels-last and --malloc-tuning; (6) train-procgen's hyperparameters.
Details: core-1 to core-12, atari-9, cont-8, cont-9, impala, aux-1 (--anneal-clip), aux-3 (--target-kl).
"""

import copy
import ctypes
import math
import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read by CUDA; without it, sums do not repeat bit for bit
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # read when numpy loads; the large products are torch's

import gymnasium as gym
import numpy as np
import torch
import torch.nn as nn
import tyro

gym.logger.min_level = gym.logger.ERROR  # no warnings of versions that gymnasium calls out of date


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
    resume: str | None = None  # run folder to go on with, from its last checkpoint
    evaluate: str | None = None  # run folder or checkpoint to play with, instead of training
    episodes: int = 10  # episodes that an evaluation plays, on training levels and on test levels each
    # environment
    env_id: str = "starpilot"  # name of the game
    distribution_mode: Literal["easy", "hard", "extreme", "memory", "exploration"] = "easy"  # kind of levels
    num_levels: int = 0  # number of levels to train on; 0: all from --start-level on, more than training can see
    start_level: int = 0  # first of them
    eval_num_levels: int = 0  # number of test levels; 0: all from --eval-start-level on
    eval_start_level: int | None = None  # first of them; with it, checkpoints and --evaluate play on them too
    total_timesteps: int = 25_000_000  # steps in the run, over all environments
    num_envs: int = 64  # environments that are stepped together
    num_steps: int = 256  # steps of each environment in a rollout
    # PPO
    learning_rate: float = 5e-4  # step size of Adam
    anneal_lr: bool = False  # let the learning rate fall linearly
    gamma: float = 0.999  # discount factor
    reward_gamma: float = 0.99  # discount factor of the returns whose spread scales the rewards
    gae_lambda: float = 0.95  # lambda of generalised advantage estimation
    num_minibatches: int = 8  # minibatches in an epoch
    update_epochs: int = 3  # passes over each rollout
    norm_adv: bool = True  # normalise the advantages in each minibatch
    clip_coef: float = 0.2  # clip range of the probability ratio, and of the value with --clip-vloss
    anneal_clip: bool = False  # let the clip range fall linearly
    clip_vloss: bool = True  # clip the value loss
    ent_coef: float = 0.01  # weight of the entropy bonus
    vf_coef: float = 0.5  # weight of the value loss
    max_grad_norm: float = 0.5  # limit of the gradient's norm, over all parameters together
    target_kl: float | None = None  # end an update after an epoch whose mean approximate KL is above this, say 0.015
    # speed
    torch_deterministic: bool = True  # on a GPU, only kernels that repeat bit for bit (on a CPU all do)
    cuda: bool = True  # train on the GPU, where there is one
    num_threads: int | None = None  # CPU threads of torch, which change last bits; by default OMP_NUM_THREADS, or cores
    precision: Literal["fp32", "bf16"] = "fp32"  # of the convolutions and the layer of 256; bf16 is faster
    channels_last: bool = True  # the order of activations in memory: channels of a pixel together; off is slower
    malloc_tuning: bool = True  # let glibc keep freed memory instead of asking Linux for new pages; off is slower

    @property
    def batch_size(self) -> int:
        return self.num_envs * self.num_steps

    @property
    def num_updates(self) -> int:
        return self.total_timesteps // self.batch_size


# ---------------------------------------------------------------------------------------------------------- Environment
FRAME = gym.spaces.Box(0, 255, (64, 64, 3), np.uint8)
NO_LEVEL = 2**31 - 1  # levels are numbered from 0 to the one before
MODES = {  # the games that have it; Procgen ends the whole process at a mode that a game lacks
    "extreme": ["chaser", "dodgeball", "leaper", "starpilot"],
    "memory": ["caveflyer", "dodgeball", "heist", "jumper", "maze", "miner"],
    "exploration": ["caveflyer", "climber", "coinrun", "heist", "jumper", "leaper", "maze", "ninja"],
}


def load_procgen():
    """Procgen's module of environments."""
    try:
        from gym_notices.notices import notices

        notices.clear()  # Procgen imports the old gym, which would say at length that it is old
        import procgen.env
    except ImportError as error:
        raise ImportError(f"{error}; pip install --no-deps -r requirements-procgen.txt") from error
    return procgen.env


def level_sets(args: Args) -> dict[str, range]:
    """The levels to train on and, if they are asked for, those to test on; ValueError if there are no such levels."""
    asked = {"training": (args.start_level, args.num_levels)}
    if args.eval_start_level is not None:
        asked["test"] = (args.eval_start_level, args.eval_num_levels)
    sets = {name: range(first, first + number if number else NO_LEVEL) for name, (first, number) in asked.items()}
    for name, levels in sets.items():
        if not levels or levels.stop > NO_LEVEL:
            raise ValueError(f"{name} levels {levels.start} to {levels.stop - 1}: Procgen's last is {NO_LEVEL - 1}")
    training, test = sets["training"], sets.get("test", range(0))
    if max(training.start, test.start) < min(training.stop, test.stop):
        raise ValueError("trains on some of the test levels; test on others, or train on few, say --num-levels 200")
    if args.eval_num_levels and not test:
        raise ValueError("--eval-num-levels needs --eval-start-level, the first of them")
    return sets


class VectorEnv:
    """N copies of a game, which Procgen steps in threads of its own; each episode is played on one of the levels."""

    def __init__(self, args: Args, render_mode: str | None = None, levels: str = "training"):
        procgen, mode = load_procgen(), args.distribution_mode
        if args.env_id not in (games := MODES.get(mode, procgen.ENV_NAMES)):
            raise ValueError(f"the games with --distribution-mode {mode} are {', '.join(games)}")
        options = {"env_name": args.env_id, "distribution_mode": mode, "render_mode": render_mode}
        if mode != "exploration":
            played = level_sets(args)[levels]
            options |= {"start_level": played.start, "num_levels": len(played)}
        elif (args.num_levels, args.start_level, args.eval_num_levels, args.eval_start_level) != (0, 0, 0, None):
            raise ValueError("--distribution-mode exploration has one level, its own; leave out all other levels")
        self.make = partial(procgen.ProcgenGym3Env, num_threads=args.num_threads, **options)
        self.observation_space, self.action_space, self.metadata = FRAME, gym.spaces.Discrete(15), {"render_fps": 15}

    def reset(self, seeds: list[int]) -> np.ndarray:
        """Makes N games, which take the first seed for all of them. Returns observations (N, 64, 64, 3)."""
        self.envs = self.make(num=len(seeds), rand_seed=seeds[0] >> 1)  # Procgen takes 31 bits
        self.returns, self.lengths = np.zeros(len(seeds)), np.zeros(len(seeds), np.int64)
        return self.envs.observe()[1]["rgb"]

    def step(self, actions):
        """Steps each environment by its action. An episode that ends makes way for the next in the same step.

        Returns observations (N, 64, 64, 3); rewards (N,); dones (N,); an empty dict, since Procgen doesn't tell where a
        time limit cut an episode; (return, length) of each episode that ended.
        """
        self.envs.act(actions)
        rewards, observations, dones = self.envs.observe()
        self.returns += rewards
        self.lengths += 1
        episodes = [(float(self.returns[i]), int(self.lengths[i])) for i in np.flatnonzero(dones)]
        self.returns[dones], self.lengths[dones] = 0.0, 0
        return observations["rgb"], rewards, dones.astype(np.float32), {}, episodes

    def render(self) -> np.ndarray:
        """The first game's picture for people, (512, 512, 3)."""
        return self.envs.get_info()[0]["rgb"]


class RunningStatistics:
    """Mean and variance of all rows seen so far, in float64, by the parallel algorithm (Chan et al. 1979)."""

    def __init__(self, shape: tuple[int, ...]):
        self.mean, self.var, self.count = np.zeros(shape), np.ones(shape), 1e-4  # as in baselines

    def update(self, rows: np.ndarray) -> None:
        """Takes in rows (N, *shape)."""
        n = len(rows)
        batch_mean = rows.sum(0) / n
        deviation, delta, total = rows - batch_mean, batch_mean - self.mean, self.count + n
        squares = self.var * self.count + (deviation * deviation).sum(0) + delta * delta * (self.count * n / total)
        self.mean, self.var, self.count = self.mean + delta * (n / total), squares / total, total

    def state_dict(self) -> dict:
        return {"mean": torch.tensor(self.mean), "var": torch.tensor(self.var), "count": self.count}

    def load_state_dict(self, state: dict) -> None:
        if state["mean"].shape != self.mean.shape or state["var"].shape != self.mean.shape:
            raise ValueError(f"statistics of shape {tuple(state['mean'].shape)} instead of {self.mean.shape}")
        self.mean, self.var, self.count = state["mean"].numpy(), state["var"].numpy(), state["count"]


class NormalizedVectorEnv(VectorEnv):
    """Scales rewards by running statistics, pooled over the environments."""

    def __init__(self, args: Args):
        super().__init__(args)
        self.gamma = args.reward_gamma
        self.return_statistics = RunningStatistics(())  # of the discounted sums of rewards

    def state_dict(self) -> dict:
        return {"returns": self.return_statistics.state_dict()}

    def load_state_dict(self, state: dict) -> None:
        self.return_statistics.load_state_dict(state["returns"])

    def reset(self, seeds: list[int]) -> np.ndarray:
        self.discounted_returns = np.zeros(len(seeds))
        return super().reset(seeds)

    def step(self, actions):
        observations, rewards, dones, truncated_obs, episodes = super().step(actions)
        self.discounted_returns = self.discounted_returns * self.gamma + rewards
        self.return_statistics.update(self.discounted_returns)
        rewards = (rewards / np.sqrt(self.return_statistics.var + 1e-8)).clip(-10.0, 10.0)  # [cont-8] [cont-9]
        self.discounted_returns *= 1.0 - dones
        return observations, rewards, dones, truncated_obs, episodes


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
    def __init__(self, num_actions: int, precision: str = "fp32", channels_last: bool = True):
        super().__init__()
        layers = []
        for inputs, depth in ((3, 16), (16, 32), (32, 32)):  # [impala]
            layers += [glorot_init(nn.Conv2d(inputs, depth, 3, padding=1)), nn.MaxPool2d(3, stride=2, padding=1)]
            layers += [ResidualBlock(depth), ResidualBlock(depth)]  # (M, 16, 32, 32), (M, 32, 16, 16), (M, 32, 8, 8)
        layers += [nn.Flatten(), nn.ReLU(), glorot_init(nn.Linear(32 * 8 * 8, 256)), nn.ReLU()]
        self.network = nn.Sequential(*layers)
        self.actor = layer_init(nn.Linear(256, num_actions), gain=0.01)
        self.critic = layer_init(nn.Linear(256, 1), gain=1.0)
        self.dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[precision]
        self.memory_format = torch.channels_last if channels_last else torch.contiguous_format

    def get_hidden(self, obs: torch.Tensor) -> torch.Tensor:
        """What policy and value share, (M, 256), at observations (M, 64, 64, 3) of bytes."""
        obs = obs.permute(0, 3, 1, 2).contiguous(memory_format=self.memory_format)  # (M, 3, 64, 64)
        with torch.autocast(obs.device.type, torch.bfloat16, enabled=self.dtype == torch.bfloat16):
            return self.network(obs.to(self.dtype) / 255).float()  # [atari-9]

    def get_value(self, obs: torch.Tensor) -> torch.Tensor:
        return self.critic(self.get_hidden(obs)).squeeze(-1)

    def get_action_and_value(
        self, obs: torch.Tensor, action: torch.Tensor | None = None, noise: torch.Tensor | None = None
    ):
        """Action, log-prob, entropy and value, (M,) each, at observations (M, 64, 64, 3) of bytes. An action that is
        not given is drawn, from Gumbel `noise` (M, num_actions) if there is any."""
        hidden = self.get_hidden(obs)  # (M, 256)
        log_probs = self.actor(hidden).log_softmax(-1)  # (M, num_actions)
        if action is None:
            if noise is None:  # for other programs: training draws in numpy
                noise = -torch.empty_like(log_probs).exponential_().log()
            action = (log_probs + noise).argmax(-1)  # a draw from the softmax (Gumbel-max)
        log_prob = log_probs.gather(-1, action.unsqueeze(-1)).squeeze(-1)
        entropy = -(log_probs.exp() * log_probs).sum(-1)
        return action, log_prob, entropy, self.critic(hidden).squeeze(-1)


# -------------------------------------------------------------------------------------------------- Advantages and loss
def compute_gae(rewards, values, dones, next_value, next_done, gamma: float, gae_lambda: float):
    """Generalised advantage estimation (Schulman et al. 2016, equation 16) and the returns that follow from it.

    rewards, values, dones: (T, N), where dones[t] marks obs[t] as the first of an episode; next_value, next_done: (N,),
    of the observation after the rollout. Returns advantages and returns, (T, N) each.
    """
    next_values = np.concatenate([values[1:], next_value[None]])
    continues = 1.0 - np.concatenate([dones[1:], next_done[None]])  # 0 where the episode of step t ends with it
    deltas, decays = rewards + gamma * next_values * continues - values, gamma * gae_lambda * continues
    advantages, advantage = np.zeros_like(rewards), np.zeros_like(next_value)
    for t in reversed(range(len(rewards))):  # [core-5]
        advantages[t] = advantage = deltas[t] + decays[t] * advantage
    return advantages, advantages + values


def ppo_loss(
    log_prob, entropy, value, old_log_probs, old_values, advantages, returns,
    clip_coef: float, norm_adv: bool, clip_vloss: bool, ent_coef: float, vf_coef: float,
):  # fmt: skip
    """Loss of a minibatch (Schulman et al. 2017, equation 9; the clipped value loss is openai/baselines').

    The first three tensors come from the networks as they are now, the other four from the rollout; all are (M,).
    Returns the loss, a scalar, and by metric name the debug variables, (M,), whose means are logged.
    """
    if norm_adv:  # [core-7]
        advantages = (advantages - advantages.mean()) / (advantages.std(correction=0) + 1e-8)
    log_ratio = log_prob - old_log_probs
    ratio = log_ratio.exp()
    clipped_ratio = ratio.clamp(1 - clip_coef, 1 + clip_coef)
    policy_loss = -torch.min(advantages * ratio, advantages * clipped_ratio)  # [core-8]
    value_loss = (value - returns).square()
    if clip_vloss:  # [core-9]
        clipped_value = old_values + (value - old_values).clamp(-clip_coef, clip_coef)
        value_loss = torch.max(value_loss, (clipped_value - returns).square())
    loss = policy_loss.mean() - ent_coef * entropy.mean() + vf_coef * (0.5 * value_loss.mean())  # [core-10]
    with torch.no_grad():  # [core-12]
        debug = {
            "losses/value_loss": 0.5 * value_loss,
            "losses/policy_loss": policy_loss.detach(),
            "losses/entropy": entropy.detach(),
            "losses/old_approx_kl": -log_ratio,
            "losses/approx_kl": ratio - 1 - log_ratio,
            "losses/clipfrac": ((ratio - 1).abs() > clip_coef).float(),
        }
    return loss, debug


# ------------------------------------------------------------------------------------------------------------- Training
@np.errstate(all="ignore")  # what is not finite ends the run with a line of its own
def train(args: Args, run: "Run") -> None:
    """Collects rollouts and learns from each; `run` is all that isn't PPO, and says which update it is."""
    if args.malloc_tuning:
        mallopt = getattr(ctypes.CDLL(None), "mallopt", lambda *_: 0)  # glibc's, which then keeps what is freed
        _ = mallopt(-4, 0), mallopt(-1, 2**31 - 1)  # M_MMAP_MAX, M_TRIM_THRESHOLD
    torch.set_num_threads(args.num_threads)
    torch.use_deterministic_algorithms(args.cuda and args.torch_deterministic)
    torch.manual_seed(args.seed)
    rng = np.random.default_rng(np.random.SeedSequence(args.seed, spawn_key=(2,)))  # (0, …) envs, (1,) evaluation
    device = torch.device("cuda" if args.cuda else "cpu")

    envs = NormalizedVectorEnv(args)
    num_actions = int(envs.action_space.n)
    agent = Agent(num_actions, args.precision, args.channels_last).to(device)
    parameters = flatten_parameters(agent)  # one vector, of which the layers keep views
    flatten_parameters(acting := copy.deepcopy(agent).requires_grad_(False))  # a copy acts; flat too, for the same bits
    acting.network.to(agent.dtype)  # which load_state_dict casts once an update; agent's are cast anew in every call
    optimizer = torch.optim.Adam([parameters], lr=args.learning_rate, eps=1e-5, fused=True)  # [core-3]
    run.keep(model=agent, optimizer=optimizer, rng=rng, torch_rng=torch.default_generator, statistics=envs)
    run.play = partial(evaluate, agent, args)  # for --evaluate and --capture-video

    # T steps of N environments are a rollout of B = T · N samples, M samples a minibatch
    T, N, M = args.num_steps, args.num_envs, args.batch_size // args.num_minibatches
    obs = torch.zeros((T, N, *FRAME.shape), dtype=torch.uint8, device=device)
    actions = torch.zeros((T, N), dtype=torch.int64, device=device)
    acted_log_probs, acted_values = torch.zeros((T, N), device=device), torch.zeros((T, N), device=device)
    rewards, dones = np.zeros((T, N), np.float32), np.zeros((T, N), np.float32)
    for update, fresh_episodes in run.updates():
        # Anneal
        remaining = 1.0 - (update - 1) / args.num_updates  # 1 in the first update, 1 / num_updates in the last
        learning_rate = args.learning_rate * (remaining if args.anneal_lr else 1.0)  # [core-4]
        clip_coef = args.clip_coef * (remaining if args.anneal_clip else 1.0)  # [aux-1]
        optimizer.param_groups[0]["lr"] = learning_rate

        # Collect
        acting.load_state_dict(agent.state_dict())
        if fresh_episodes:  # after a checkpoint too: whoever resumes has no environments to go on with
            seeds = np.random.SeedSequence(args.seed, spawn_key=(0, update - 1)).generate_state(N)
            next_obs, next_done = envs.reset(seeds.tolist()), np.ones(N, np.float32)
        noise = torch.from_numpy(rng.gumbel(size=(T, N, num_actions)).astype(np.float32)).to(device)
        global_step = (update - 1) * args.batch_size
        for step in range(T):  # [core-1] obs and dones carry on from one rollout to the next
            obs[step], dones[step] = torch.from_numpy(next_obs), next_done
            acted = acting.get_action_and_value(obs[step], noise=noise[step])
            actions[step], acted_log_probs[step], _, acted_values[step] = acted
            env_actions = envs.action_space.start + actions[step].cpu().numpy()
            next_obs, rewards[step], next_done, _, ended = envs.step(env_actions)
            global_step += N
            run.note(global_step, ended)

        # Advantages
        with torch.no_grad():
            next_value = agent.get_value(torch.from_numpy(next_obs).to(device)).cpu().numpy()
        values = acted_values.cpu().numpy()
        advantages, returns = compute_gae(rewards, values, dones, next_value, next_done, args.gamma, args.gae_lambda)
        b_obs, b_actions = obs.flatten(0, 1), actions.flatten()  # (B, 64, 64, 3), (B,)
        b_log_probs, b_values = acted_log_probs.flatten(), acted_values.flatten()  # (B,)
        b_advantages, b_returns = (torch.from_numpy(x).to(device).flatten() for x in (advantages, returns))

        # Epochs of minibatches
        debug = []
        for _ in range(args.update_epochs):
            for mb in torch.from_numpy(rng.permutation(args.batch_size)).to(device).split(M):  # [core-6]
                _, log_prob, entropy, value = agent.get_action_and_value(b_obs.index_select(0, mb), b_actions[mb])
                loss, mb_debug = ppo_loss(
                    log_prob, entropy, value, b_log_probs[mb], b_values[mb], b_advantages[mb], b_returns[mb],
                    clip_coef, args.norm_adv, args.clip_vloss, args.ent_coef, args.vf_coef,
                )  # fmt: skip
                debug.append(mb_debug)
                parameters.grad.zero_()  # in place: the layers have views of it
                loss.backward()
                norm = parameters.grad.norm()
                parameters.grad.mul_((args.max_grad_norm / (norm + 1e-6)).clamp(max=1.0))  # [core-11]
                optimizer.step()
            epoch_kl = torch.cat([d["losses/approx_kl"] for d in debug[-args.num_minibatches :]]).mean()
            if args.target_kl is not None and epoch_kl > args.target_kl:  # [aux-3]
                break

        # Log
        metrics = {"charts/learning_rate": learning_rate}
        metrics |= {name: torch.cat([d[name] for d in debug]).mean().item() for name in debug[0]}
        run.check_finite(observation=next_obs, loss=list(metrics.values()), weight=parameters.norm().item())
        varies = returns.var() > 1e-12 * np.square(returns).mean()  # not by rounding alone
        metrics["losses/explained_variance"] = 1 - (returns - values).var() / returns.var() if varies else math.nan
        run.log(global_step, metrics)


# ================================================================================== The run: nothing below is about PPO

import contextlib
import fcntl
import gc
import importlib.metadata
import io
import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
import zipfile
from dataclasses import asdict, replace
from datetime import timedelta

import imageio.v2 as imageio
import imageio_ffmpeg
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.plugins.text.summary_v2 import text_pb
from tensorboard.summary.writer import event_file_writer as tensorboard


# ----------------------------------------------------------------------------------------------------------- Evaluation
@torch.no_grad()
def evaluate(agent: Agent, args: Args, episodes: int, seed: int, video: Path | None = None, levels: str = "training"):
    """Plays episodes with actions drawn from the policy, on environments and random numbers of its own, such that
    agent, seed and `episodes` determine them. Yields (return, length) of each, of the game's own rewards; `video` is an
    mp4 for the first. Up to 64 are played at once, each in its own environment: the first to end are the short ones."""
    device, envs = next(agent.parameters()).device, VectorEnv(args, "rgb_array" if video else None, levels)
    *seeds, noise_seed = np.random.SeedSequence(seed, spawn_key=(1,)).generate_state(episodes // 64 + 2).tolist()
    rng = np.random.default_rng(noise_seed)
    pictures = imageio.get_writer(video, fps=15, macro_block_size=2) if video else None
    for start, batch_seed in zip(range(0, episodes, 64), seeds):
        n = min(64, episodes - start)
        observations, played = envs.reset([batch_seed] * n), [None] * n
        while None in played:
            if pictures and start == 0 and played[0] is None:
                pictures.append_data(envs.render())
            noise = torch.from_numpy(rng.gumbel(size=(n, envs.action_space.n)).astype(np.float32)).to(device)
            actions, *_ = agent.get_action_and_value(torch.from_numpy(observations).to(device), noise=noise)
            observations, _, dones, _, ended = envs.step(envs.action_space.start + actions.cpu().numpy())
            for i, episode in zip(np.flatnonzero(dones), ended):
                played[i] = played[i] or episode
        yield from played
    if video:
        pictures.close()


# ---------------------------------------------------------------------------------------------------------------- Torch
SUFFIX, write_state, NO_MEMORY = ".pt", torch.save, (MemoryError, torch.OutOfMemoryError)  # of checkpoints
read_state = partial(torch.load, map_location="cpu", weights_only=True)  # runs no code of the file


def flatten_parameters(agent: nn.Module) -> nn.Parameter:
    """Moves parameters and gradients into one vector each, with views in the layers: clip and Adam take one call."""
    flat = nn.Parameter(torch.cat([parameter.detach().flatten() for parameter in agent.parameters()]))
    flat.grad, sizes = torch.zeros_like(flat), [parameter.numel() for parameter in agent.parameters()]
    for parameter, data, grad in zip(agent.parameters(), flat.data.split(sizes), flat.grad.split(sizes)):
        parameter.data, parameter.grad = data.view_as(parameter), grad.view_as(parameter)
    return flat


def restore(kept: dict, state: dict) -> None:
    """Gives the objects in `kept` what a checkpoint has under their names."""
    for name, x in kept.items():
        if isinstance(x, np.random.Generator):
            x.bit_generator.state = state[name]
        elif isinstance(x, torch.optim.Adam):  # which would write beyond moments that are too short
            moments = {key: value.contiguous() for key, value in state[name]["state"][0].items()}
            shape = x.param_groups[0]["params"][0].shape
            if [moments[key].shape for key in ("step", "exp_avg", "exp_avg_sq")] != [(), shape, shape]:
                raise ValueError("Adam's moments are of another size")
            x.load_state_dict(x.state_dict() | {"state": {0: moments}})
        else:
            (x.set_state if hasattr(x, "set_state") else x.load_state_dict)(state[name])


def fit_to_machine(args: Args, resumed: bool = False) -> Args:
    """The arguments with what this machine decides: `cuda` is for where there is a GPU. A resumed run keeps to them."""
    gpu, threads = torch.cuda.is_available(), args.num_threads
    if args.cuda and not gpu and (resumed or "--cuda" in sys.argv):
        fail(f"--cuda: torch {torch.__version__} finds no GPU; leave --cuda out, or install a CUDA build of torch")
    return replace(args, cuda=args.cuda and gpu, num_threads=torch.get_num_threads() if threads is None else threads)


# ------------------------------------------------------------------------------------------------------------------ Run
class Run:
    """All that surrounds a training: run folder, checkpoints and resume, stop signals, status line, trackers."""

    def __init__(self, args: Args):
        self.typed, self.args, self.launcher = args, args, ["python"]
        self.state = self.folder = self.checkpoint = self.tracker = self.stop_signal = None
        self.update, self.global_step, self.seconds, self.recent_returns = 0, 0, 0.0, []
        self.resources, self.ended, self.recording = contextlib.ExitStack(), [], False
        self.clear, self.last_status = "\r\033[K" * bool(sys.stdout and sys.stdout.isatty()), -math.inf  # of a line
        if (args.resume, args.evaluate) != (None, None):
            self.checkpoint, self.state = self.load()
            self.args, self.folder = merge_arguments(args, self.state["args"]), self.checkpoint.parent.parent
        self.args = fit_to_machine(self.args, resumed=bool(args.resume))
        validate(self.args)
        gc.collect()  # what it tried: pybullet draws by its client 0, which must not go away later

    def load(self) -> tuple[Path, dict]:
        """The checkpoint that --resume or --evaluate names, a run folder's last one: its file and content."""
        path = Path(self.args.resume or self.args.evaluate or "''")
        file = max(path.glob(f"checkpoints/*{SUFFIX}"), key=lambda x: x.stem.isdigit() and int(x.stem), default=path)
        if (self.args.resume and self.args.evaluate) or (file == path and (self.args.resume or not path.is_file())):
            fail(f"{path}: --resume takes a folder with checkpoints/*{SUFFIX}, --evaluate it or one of them; not both")
        try:
            if damaged := zipfile.ZipFile(file).testzip():  # torch.load doesn't notice
                raise ValueError(f"{damaged} has a wrong checksum")
            state = read_state(file)
            if state["script"] != Path(__file__).stem:
                fail(f"{file}: was written by {state['script']}.py; use that script")
            state["args"] = asdict(Args(**state["args"]))  # with the defaults of arguments that came later
        except Exception as error:  # a damaged or hostile file can raise anything
            fail(f"{file}: not a whole checkpoint ({type(error).__name__}: {error}); move it away or name another")
        return file, state

    def keep(self, **kept) -> None:
        """Names what checkpoints hold: generators and all with a state_dict. A resumed run gets it back here."""
        self.kept = kept
        try:
            if state := self.state:
                restore(kept, state)
                vars(self).update({x: state[x] for x in ("update", "global_step", "seconds", "recent_returns")})
        except Exception as error:  # as in load
            fail(f"{self.checkpoint}: does not fit {self.args.env_id} ({type(error).__name__}: {error})")

    def updates(self):
        """Yields the number of each update to do, and whether fresh episodes start in it: in the first, and after each
        checkpoint, so that a resumed run needs no environment's inner state. With --evaluate there are none to do."""
        args, fresh_episodes, stopping = self.args, True, False
        if args.evaluate:
            return self.report()
        self.open()
        steps = args.num_updates * args.num_steps  # of each environment
        count = min(args.checkpoints or min(10, steps // 10_000) or 1, args.num_updates)
        if steps < 10_000 * count > 10_000:
            print(f"--checkpoints {count}: each ends all episodes, so that none is longer than {steps // count} steps")
        planned = {round(args.num_updates * (i + 1) / count) for i in range(count)}
        while self.update < args.num_updates and not stopping:
            self.update += 1
            self.start_time = time.perf_counter() - self.seconds  # checkpoints and videos are no training time
            yield self.update, fresh_episodes
            fresh_episodes = self.must_stop() or self.update in planned
            if fresh_episodes:
                self.save()
                if args.capture_video and not self.must_stop():
                    self.record()
                stopping = self.must_stop()  # asked only here, since a signal can come at any line
            self.show_status(last=stopping or self.update == args.num_updates)
        print(f"run folder: {self.folder}")
        if self.update < args.num_updates:
            resume = shlex.join([*self.launcher, sys.argv[0], "--resume", str(self.folder)])
            print(f"stopped after update {self.update}, which is saved; go on with: {resume}")
            raise SystemExit(128 + self.stop_signal)

    def report(self) -> None:
        """Plays the episodes of --evaluate, which Ctrl-C ends at once."""
        self.resources.callback(signal.signal, signal.SIGINT, signal.signal(signal.SIGINT, signal.SIG_DFL))
        video, results = self.checkpoint.with_suffix(".tmp.mp4") if self.args.capture_video else None, []
        for episode, (episodic_return, length) in enumerate(self.play(self.args.episodes, self.args.seed, video)):
            results.append((episodic_return, length))
            print(f"episode {episode}: return {episodic_return:.2f}, length {length}", flush=True)
        (mean, mean_length), (std, _) = np.mean(results, 0), np.std(results, 0)
        print(f"{self.checkpoint}: return {mean:.2f} ± {std:.2f}, length {mean_length:.1f} over {episode + 1} episodes")
        if video:
            print(f"video: {video.replace(self.checkpoint.with_suffix('.mp4'))}")

    def open(self) -> None:
        """Makes the run folder, or cuts the rows of a resumed one back to the checkpoint, and opens what is written."""
        self.folder = self.folder or create_run_folder(self.args, self.typed, self.launcher)
        lock = self.resources.enter_context((self.folder / "lock").open("a+"))
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # until this process ends, in whatever way
        except OSError:
            fail(f"{self.folder}: process {(self.folder / 'lock').read_text()} is training it; wait, or stop that one")
        lock.truncate(0)
        print(os.getpid(), end="", file=lock, flush=True)
        machine = "".join(f", {name} {x}" for name, x in vars(self.args).items() if name in ("cuda", "num_threads"))
        print(f"{self.folder}: {self.args.num_updates} updates, {self.update} done{machine}", flush=True)
        for file in (self.folder / "metrics.csv", self.folder / "episodes.csv") if self.state else ():
            rows = file.read_bytes().splitlines(keepends=True)  # a kill can leave half a row at the end
            kept = [row for row in rows[1:] if (x := re.match(rb"(\d+),.*\n", row)) and int(x[1]) <= self.global_step]
            os.truncate(file, sum(map(len, rows[:1] + kept)))
        if self.args.track:
            attempt(self.track)
        self.metrics = self.resources.enter_context((self.folder / "metrics.csv").open("a"))
        self.episodes = self.resources.enter_context((self.folder / "episodes.csv").open("a", buffering=1))
        threading.excepthook = lambda failure: None  # the writer's thread also hands its error to our next call
        self.events = self.resources.enter_context(contextlib.closing(tensorboard.EventFileWriter(str(self.folder))))
        self.events.add_event(Event(step=self.global_step + 1, session_log={"status": "START"}))
        lines = "".join(f"    {name}: {x}\n" for name, x in vars(self.args).items())
        self.add_event(self.global_step, {}, *text_pb("arguments", lines).value)
        for number in (signal.SIGINT, signal.SIGTERM):
            self.resources.callback(signal.signal, number, signal.signal(number, self.stop))

    def stop(self, number: int, frame) -> None:
        self.stop_signal = number
        signal.signal(number, signal.SIG_DFL)  # the next one ends the process at once
        if self.recording:
            raise KeyboardInterrupt  # all is saved, and a video can take minutes
        with contextlib.suppress(OSError):  # nobody may read it, and print could be in the middle of another line
            os.write(2, b"\nstopping after this update\n")

    def must_stop(self) -> bool:
        return self.stop_signal is not None

    def note(self, global_step: int, ended: list[tuple[float, int]]) -> None:
        """Takes down (return, length) of each episode that ended in this step; called after every step."""
        self.ended += [(global_step, *episode, round(time.perf_counter() - self.start_time, 3)) for episode in ended]

    def check_finite(self, **values) -> None:
        """Ends the run if a value is not finite, before it gets into a checkpoint."""
        if what := ", ".join(name for name, x in values.items() if not np.isfinite(x).all()):
            fail(f"update {self.update}: not finite: {what}; {self.folder} holds what was saved before", status=1)

    def log(self, global_step: int, metrics: dict[str, float]) -> None:
        """Adds an update's metrics, and the episodes that ended in it, to all that is written."""
        self.global_step, self.seconds = global_step, time.perf_counter() - self.start_time
        episodes, self.ended = self.ended, []
        for step, episodic_return, length, seconds in episodes:
            self.recent_returns = [*self.recent_returns[-99:], episodic_return]
            self.add_event(step, {"charts/episodic_return": episodic_return, "charts/episodic_length": length})
            print(step, episodic_return, length, seconds, sep=",", file=self.episodes)
        means = [np.mean([episode[i] for episode in episodes]) if episodes else math.nan for i in (1, 2)]
        self.add_event(global_step, metrics := {"charts/SPS": global_step / self.seconds} | metrics)
        if not self.metrics.tell():
            print("global_step,charts/episodic_return,charts/episodic_length", *metrics, sep=",", file=self.metrics)
        print(global_step, *means, *metrics.values(), sep=",", file=self.metrics, flush=True)

    def add_event(self, step: int, scalars: dict[str, float], *others) -> None:
        values = [*({"tag": name, "simple_value": x} for name, x in scalars.items()), *others]
        self.events.add_event(Event(wall_time=time.time(), step=step, summary={"value": values}))

    def save(self) -> None:
        """Writes a checkpoint, once all rows before it are on the disk."""
        self.events.flush()
        for file in (self.metrics, self.episodes):
            os.fsync(file.fileno())
        write_state(self.snapshot(), content := io.BytesIO())
        unfinished = self.folder / "checkpoints" / f"{self.update}{SUFFIX}.tmp"
        with unfinished.open("wb") as file:
            file.write(content.getvalue())
            file.flush()
            os.fsync(file.fileno())
        self.checkpoint = unfinished.replace(unfinished.with_suffix(""))  # is there as a whole, or not at all

    def snapshot(self) -> dict:
        progress = {name: getattr(self, name) for name in ("update", "global_step", "seconds", "recent_returns")}
        state = {"script": Path(__file__).stem, "args": asdict(self.args), **progress}
        for name, x in self.kept.items():
            numpy_state = isinstance(x, np.random.Generator) and x.bit_generator.state
            state[name] = numpy_state or (x.get_state() if hasattr(x, "get_state") else x.state_dict())
        return state

    def record(self) -> None:
        """Plays an episode for a video, which a stop signal breaks off."""
        with contextlib.suppress(KeyboardInterrupt):
            video, self.recording = self.folder / "videos" / f"{self.update}.mp4", True
            print(f"{self.clear}recording {video}", flush=True)
            list(self.play(1, self.args.seed, unfinished := video.with_suffix(".tmp.mp4")))
            unfinished.replace(video)
            command = [imageio_ffmpeg.get_ffmpeg_exe(), "-i", video, *"-nostdin -t 20 -vf fps=10,scale=240:-1".split()]
            gif = subprocess.run([*command, "-f", "gif", "-"], capture_output=True).stdout  # TensorBoard shows no mp4
            self.add_event(self.global_step, {}, {"tag": "video", "image": {"encoded_image_string": gif}})
            if self.tracker:
                mp4 = sys.modules["wandb"].Video
                attempt(lambda: self.tracker.log({"video": mp4(str(video)), "global_step": self.global_step}))
            self.recording = False
        video.with_suffix(".tmp.mp4").unlink(missing_ok=True)

    def show_status(self, last: bool) -> None:
        """A line that keeps changing on a terminal, and a line every 10 seconds in a file."""
        if last or time.perf_counter() - self.last_status > (0.2 if self.clear else 10):
            self.last_status, done = time.perf_counter(), self.update / self.args.num_updates
            left = timedelta(seconds=round(min(self.seconds / done - self.seconds, 1e12)))
            mean_return = f"{np.mean(self.recent_returns):.1f}" if self.recent_returns else "none yet"
            status = f"{done:4.0%}  step {self.global_step:,}  {self.global_step / self.seconds:,.0f} steps/s  "
            status += f"{left} left  mean return of the last 100 episodes {mean_return}"
            fits = status[: shutil.get_terminal_size().columns - 1] if self.clear else status
            print(f"{self.clear}{fits}", end="" if self.clear and not last else "\n", flush=True)

    def track(self) -> None:
        """Opens the run at Weights & Biases, which from then on follows the TensorBoard events."""
        import wandb

        wandb.tensorboard.patch(root_logdir=str(self.folder))
        where = {"project": self.args.wandb_project_name, "entity": self.args.wandb_entity, "name": self.folder.name}
        run_id = re.sub(r"\W", "-", self.folder.name)
        self.tracker = wandb.init(**where, id=run_id, resume="allow", config=asdict(self.args))
        self.resources.callback(attempt, self.tracker.finish)
        self.tracker.save(str(self.folder / Path(__file__).name), base_path=str(self.folder), policy="now")


def attempt(action, *arguments) -> None:
    """Calls Weights & Biases: whatever goes wrong with it costs a warning, never the training."""
    try:
        action(*arguments)
    except Exception as error:  # a tracker can fail in any way
        print(f"warning: Weights & Biases failed, training goes on: {error}", file=sys.stderr)


def create_run_folder(args: Args, typed: Args, launcher: list[str]) -> Path:
    """Makes runs/{env_id}__{exp_name}__{seed}__{time} with the script and all that is needed to repeat the run."""
    name, now = re.sub("[/:]", "_", f"{args.env_id}__{args.exp_name}__{args.seed}__"), int(time.time())
    folder = next(x for i in range(1024) if not (x := Path("runs", f"{name}{now + i}")).exists())
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "videos").mkdir()
    (folder / "episodes.csv").write_text("global_step,episodic_return,episodic_length,seconds\n")
    shutil.copy(__file__, folder)
    needs = re.findall(r'^#   "([\w-]+)', Path(__file__).read_text(), re.MULTILINE)  # the metadata on top
    versions = {one.name: one.version for name in needs for one in importlib.metadata.distributions(name=name)}
    shell = partial(subprocess.run, shell=True, cwd=Path(__file__).resolve().parent, capture_output=True, text=True)
    cpu = shell("grep -m 1 'model name' /proc/cpuinfo").stdout.partition(": ")[2].strip()
    gpus = shell("nvidia-smi --query-gpu=name --format=csv,noheader").stdout
    config = {
        "arguments": asdict(typed),
        "resolved": {name: x for name, x in asdict(args).items() if x != getattr(typed, name)},
        "command": shlex.join([*launcher, *sys.argv]),
        "versions": {"python": sys.version.split()[0], **versions},
        "hardware": {"cpu": cpu, "cores": os.cpu_count(), "gpus": gpus.splitlines()},
        "git_commit": shell("git describe --always --dirty --abbrev=40 --exclude='*'").stdout.strip() or None,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    return folder


def merge_arguments(args: Args, saved: dict) -> Args:
    """The checkpoint's arguments. Beside them the command line says how and where to evaluate, and nothing else."""
    machine = "cuda num_threads env_threads vectorization compile cuda_graphs channels_last malloc_tuning device_ids"
    free = {"evaluate", *(f"episodes seed capture_video backend {machine}".split() if args.evaluate else ())}
    if args.evaluate and args.eval_start_level is not None:  # other test levels than the run's
        free |= {"eval_start_level", "eval_num_levels"}
    typed = {word.split("=")[0][2:].replace("-", "_").removeprefix("no_") for word in sys.argv if word[:2] == "--"}
    if ":" in saved["env_id"] != args.env_id and args.evaluate and Path(args.evaluate).is_file():
        fail(f"--evaluate: its environment {saved['env_id']} imports a module; if you trust it, type --env-id as well")
    for name in saved.keys() - free - {"resume"}:
        value = getattr(args, name)
        if value != saved[name] and (name in typed or value != getattr(Args(), name)):
            fail(f"--{name.replace('_', '-')} {value}: the checkpoint has {saved[name]}; leave the flag out")
    return Args(**saved | {name: getattr(args, name) for name in free & saved.keys()})


def validate(args: Args) -> None:
    """Ends the program with one line at the first argument that can't work; nothing has been created by then."""
    for name, x in asdict(args).items():
        most = 1 if name in ("gamma", "gae_lambda", "reward_gamma") else 1024 if "threads" in name else 2**63 - 1
        least = 1e-300 * bool(re.match("total|num_(?!lev)|upd|check|episodes|learning_|clip_|max_|target_|env_t", name))
        if type(x) in (int, float) and not least <= x <= most:
            fail(f"--{name.replace('_', '-')} {x}: must be a number {'above 0, up' if least else 'from 0'} to {most}")
    if args.batch_size % args.num_minibatches or args.num_updates < 1:
        rule = f"--num-envs {args.num_envs} × --num-steps {args.num_steps} = {args.batch_size} must be a multiple of"
        fail(f"{rule} --num-minibatches {args.num_minibatches} and at most --total-timesteps {args.total_timesteps}")
    try:  # one reset and one step, compared with what the environment declares
        envs = VectorEnv(args, "rgb_array" if args.capture_video else None)
        observations = {"reset": envs.reset([0]), "step": envs.step(np.array([envs.action_space.sample()]))[0]}
        for method, x in observations.items():
            if x.astype(np.float32).shape[1:] != envs.observation_space.shape:
                raise ValueError(f"declares {envs.observation_space}, {method} returned {x.shape[1:]}")
        if args.capture_video and envs.render() is None:
            raise ValueError("renders no pictures; leave --capture-video out, or type --no-capture-video")
        if args.track:
            importlib.import_module("wandb")
    except Exception as error:  # an unknown id, a missing package, no display: each raises something else
        flags = f"--env-id {args.env_id}{' --capture-video' * args.capture_video}{' --track' * args.track}"
        unknown = "; other packages' are module:Name-v0, Atari games NameNoFrameskip-v4, for ppo_atari.py"
        fail(f"{flags}: {type(error).__name__}: {error}{unknown * isinstance(error, gym.error.UnregisteredEnv)}")


def fail(message: str, status: int = 2):
    """Ends the program with one line on stderr. Status 2: the user can mend it. Status 1: the run broke."""
    print(f"{Path(__file__).name}: error: {' '.join(message.split())}", file=sys.stderr)
    raise SystemExit(status)


def main(args: Args) -> Path | None:
    """Trains, resumes or evaluates, as the arguments say. Returns the run folder of a training."""
    run = ProcgenRun(args)
    try:
        with run.resources:  # files, signal handlers and tracker are given back however the training ends
            train(run.args, run)
    except (OSError, *NO_MEMORY) as error:  # a full disk, say
        hint = f"; what was saved is whole, go on by --resume {run.folder}" * bool(run.checkpoint and not args.evaluate)
        fail(f"{run.folder or 'runs'}: {error}{hint}", status=1 if run.folder else 2)
    return None if args.evaluate else run.folder


# ------------------------------------------------------------------------------------------------------- Procgen's run
class ProcgenRun(Run):
    """With --eval-start-level, a run that plays on training and on test levels, at checkpoints and by --evaluate."""

    def report(self) -> None:
        super().report()
        if self.args.eval_start_level is not None:
            print("on the test levels, which training never saw:")
            self.play, self.args = partial(self.play, levels="test"), replace(self.args, capture_video=False)
            super().report()

    def open(self) -> None:
        super().open()
        if self.state:
            self.evaluate_checkpoint()  # a stop or a kill can have come before that

    def save(self) -> None:
        super().save()
        self.evaluate_checkpoint()

    def evaluate_checkpoint(self) -> None:
        """Brings evaluation.csv up to the checkpoint: a row an episode. A stop signal breaks it off."""
        if self.args.eval_start_level is None or self.must_stop():
            return
        file, step = self.folder / "evaluation.csv", self.global_step
        rows = file.read_text().splitlines()[1:] if file.exists() else []
        rows = [row for row in rows if int(row.split(",")[0]) <= step]  # a resumed run does the others again
        with contextlib.suppress(KeyboardInterrupt):
            self.recording = True
            for name in () if rows and rows[-1].startswith(f"{step},") else level_sets(self.args):
                results = list(self.play(self.args.episodes, self.args.seed, levels=name))
                rows += [f"{step},{name},{episodic_return},{length}" for episodic_return, length in results]
                mean_return, _ = np.mean(results, 0)
                print(f"{self.clear}step {step:,}: mean return on the {name} levels {mean_return:.2f}", flush=True)
            with (unfinished := file.with_suffix(".tmp")).open("w") as lines:
                print("global_step,levels,episodic_return,episodic_length", *rows, sep="\n", file=lines, flush=True)
                os.fsync(lines.fileno())
            unfinished.replace(file)  # it is there as a whole, or as it was
            self.recording = False


if __name__ == "__main__":
    plain = partial(re.sub, r"^(|--[\w-]+=)(\d+\.?\d*e\d+)$", lambda x: f"{x[1]}{float(x[2]):.15g}")  # 1e6 → 1000000
    try:
        with contextlib.redirect_stdout(io.StringIO()) as page:
            args = tyro.cli(Args, description=__doc__, args=[plain(word) for word in sys.argv[1:]])
    finally:  # the page of --help gets the headings that Args has
        text = page.getvalue()
        for title, name in re.findall(r"^    # (.+)\n    (\w+):", Path(__file__).read_text(), re.MULTILINE):
            text = re.sub(rf"(?=^  --{name.replace('_', '-')}\b)", f"\n {title}\n", text, count=1, flags=re.M)
        print(text, end="")
    main(args)
