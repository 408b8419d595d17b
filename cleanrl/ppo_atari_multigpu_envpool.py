# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "envpool>=1.2",
#   "gymnasium>=1.1.1",
#   "imageio[ffmpeg]>=2.34",
#   "numpy>=1.26.4",
#   "tensorboard>=2.16.2",
#   "torch>=2.6",
#   "tyro>=0.9.2",
# ]
# ///
"""PPO for Atari games by EnvPool, data-parallel: one process per GPU, on one machine or many.

    torchrun --standalone --nnodes=1 --nproc_per_node=2 cleanrl/ppo_atari_multigpu_envpool.py --env-id Breakout-v5
    torchrun --standalone --nnodes=1 --nproc_per_node=2 cleanrl/ppo_atari_multigpu_envpool.py --resume runs/RUN
    python cleanrl/ppo_atari_multigpu_envpool.py --evaluate runs/RUN

Parent: ppo_atari_envpool.py. Changes: (1) the environments are shared out among processes, which learn what one would:
gradients, advantage statistics, KL and metrics are averaged over them; (2) the first process reads and writes for all;
(3) a group that torchrun restarts goes on from the last checkpoint.
Details: core-1 to core-12, atari-1 to atari-9, aux-1 (--anneal-clip), aux-2, aux-3 (--target-kl), plus-1
(--bootstrap-truncated).
"""

import copy
import json
import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Literal, NamedTuple

import gymnasium as gym
import numpy as np
import torch
import torch.distributed as dist
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
    episodes: int = 10  # episodes that --evaluate plays
    longest_episode: int = 30_000  # steps after which an episode of --evaluate or of a video is cut
    deterministic: bool = False  # let --evaluate take the most probable actions instead of drawing them
    debug: bool = False  # show the traceback of a mistake, too
    # environment
    env_id: str = "Breakout-v5"  # EnvPool id of the game
    env_kwargs: str = "{}"  # arguments of the environment as JSON, say '{"full_action_space": true}'
    total_timesteps: int | float = 10_000_000  # environment steps in total; a step of a game is 4 frames
    num_envs: int = 8  # environments that are stepped together, over all processes
    num_steps: int = 128  # steps of each environment in a rollout
    # processes
    backend: Literal["auto", "nccl", "gloo"] = "auto"  # between GPUs; auto: NCCL, or gloo if processes share one
    device_ids: tuple[int, ...] = ()  # GPU of each process on a machine, say 0 0 1 1; by default all its GPUs in turn
    # PPO
    learning_rate: float = 2.5e-4  # step size of Adam
    anneal_lr: bool = True  # anneal the learning rate linearly to 0
    gamma: float = 0.99  # discount factor
    gae_lambda: float = 0.95  # lambda of generalized advantage estimation
    num_minibatches: int = 4  # minibatches in an epoch
    update_epochs: int = 4  # passes over each rollout
    norm_adv: bool = True  # normalize the advantages in each minibatch
    clip_coef: float = 0.1  # clip range of the probability ratio, and of the value with --clip-vloss
    anneal_clip: bool = False  # anneal the clip range linearly to 0
    clip_vloss: bool = True  # clip the value loss
    ent_coef: float = 0.01  # weight of the entropy bonus
    vf_coef: float = 0.5  # weight of the value loss
    max_grad_norm: float = 0.5  # limit of the gradient's norm, over all parameters together
    target_kl: float | None = None  # end an update after an epoch whose mean approximate KL exceeds this, e.g. 0.015
    bootstrap_truncated: bool = False  # at a time limit, add gamma times the last observation's value to the reward
    # speed
    torch_deterministic: bool = True  # on a GPU, use only kernels that repeat bit for bit
    device: Literal["auto", "cpu", "cuda"] = "auto"  # auto: cuda if available
    num_threads: int | None = None  # CPU threads of torch, which affect rounding; None: 1 under torchrun
    precision: Literal["fp32", "bf16"] = "fp32"  # bf16: faster if a CPU has it; in fp32 only GPU convolutions use TF32
    env_threads: int | None = None  # CPU threads of EnvPool, on which no result depends; None: its share of the cores
    compile: bool = False  # compile the policy by torch.compile, which takes a minute or two at the start

    @property
    def batch_size(self) -> int:
        return self.num_envs * self.num_steps

    @property
    def num_updates(self) -> int:
        return int(self.total_timesteps // self.batch_size)


# ---------------------------------------------------------------------------------------------------------- Environment
class VectorEnv:
    """N games, stepped together in EnvPool's threads. The step after the end of an episode only begins the next one,
    whatever the action. An observation is the last 4 frames."""

    def __init__(self, args: Args, num_envs: int, render_mode: str | None = None):
        import envpool  # here, so that a missing package is named

        options = {"gray_scale": True, "use_combined_action": True}  # VizDoom's buttons as one Discrete action
        options["noop_max"] = 30  # [atari-1] no-ops at the start
        options["frame_skip"] = 4  # [atari-2] frame skip, maximum of the last two
        options["episodic_life"] = True  # [atari-3] lost lives end episodes
        options["use_fire_reset"] = True  # [atari-4] FIRE at the start
        options.update(img_height=84, img_width=84, use_inter_area_resize=True)  # [atari-5] frames of 84x84
        options["reward_clip"] = True  # [atari-6] rewards clipped to their sign
        options["stack_num"] = 4  # [atari-7] frame stack
        known = envpool.make_spec(args.env_id).config._fields  # VizDoom has no lives, say
        options = {name: value for name, value in options.items() if name in known}
        options.update(json.loads(args.env_kwargs))
        spec = envpool.make_spec(args.env_id, **options)
        frames, *size = spec.observation_space.shape  # (4, 84, 84)
        self.observation_space = gym.spaces.Box(0, 255, (*size, frames), np.uint8)
        self.action_space = spec.action_space
        check_spaces(self)
        options.update(num_envs=num_envs, batch_size=num_envs, render_mode=render_mode)
        options.update(num_threads=args.env_threads or share_of_cores())
        self.make = partial(envpool.make_gymnasium, args.env_id, **options)
        self.vector = SimpleNamespace(envs=[])  # reset makes the games

    def reset(self, seeds: list[int]) -> np.ndarray:
        """Makes N games, since EnvPool takes seeds, of 31 bits, only then. Returns observations, (N, 84, 84, 4)."""
        self.vector = self.make(seed=[seed % 2**31 for seed in seeds])
        self.vector.metadata = {**self.vector.metadata, "render_fps": 15}  # a video has one picture of four frames
        self.game_returns = np.zeros(len(seeds))
        self.game_lengths = np.zeros(len(seeds), np.int64)
        self.lives = np.zeros(len(seeds))
        self.resets = np.zeros(len(seeds), bool)  # where the next step only begins an episode
        observations, _ = self.vector.reset()
        return np.moveaxis(observations, 1, -1)

    def step(self, actions: np.ndarray):
        """Takes actions (N,). Returns observations (N, 84, 84, 4); rewards (N,); dones (N,), 1 at lost lives, true ends
        and time limits, where the next step will only begin an episode; the last observation of each episode that a
        time limit cut, by environment; "r", the return, and "l", the length, of each game that ended."""
        observations, rewards, terminated, truncated, info = self.vector.step(self.action_space.start + actions)
        observations = np.moveaxis(observations, 1, -1)
        self.game_returns += info.get("reward", rewards)  # an Atari game's own
        self.game_lengths += ~self.resets
        true_ends = info.get("terminated", terminated).astype(bool)  # a lost life is none
        lives = info.get("lives", self.lives)
        in_reset = self.resets & (lives > self.lives) & (self.game_lengths > 0)  # RoadRunner's no-ops can end a game
        episodes = []
        for i in np.flatnonzero(true_ends | truncated | in_reset):
            episodes.append({"r": float(self.game_returns[i]), "l": int(self.game_lengths[i])})
            self.game_returns[i] = 0.0
            self.game_lengths[i] = 0
        self.lives = lives
        self.resets = terminated | truncated
        truncated_obs = {i: observations[i] for i in np.flatnonzero(truncated & ~true_ends)}
        return observations, rewards, self.resets.astype(np.float32), truncated_obs, episodes

    def state_dict(self) -> dict:
        return {}

    def load_state_dict(self, state: dict) -> None:
        pass

    def close(self) -> None:
        self.vector = None  # EnvPool's threads end with it


# ---------------------------------------------------------------------------------------------------------------- Agent
def layer_init(layer: nn.Module, gain: float = math.sqrt(2)) -> nn.Module:
    nn.init.orthogonal_(layer.weight, gain)  # [core-2] orthogonal weights
    nn.init.zeros_(layer.bias)
    return layer


class Agent(nn.Module):
    def __init__(self, envs: VectorEnv, args: Args):
        super().__init__()
        self.num_actions = int(envs.action_space.n)
        self.network = nn.Sequential(  # [atari-8] CNN
            layer_init(nn.Conv2d(4, 32, 8, stride=4)), nn.ReLU(),  # (M, 32, 20, 20)
            layer_init(nn.Conv2d(32, 64, 4, stride=2)), nn.ReLU(),  # (M, 64, 9, 9)
            layer_init(nn.Conv2d(64, 64, 3)), nn.ReLU(),  # (M, 64, 7, 7)
            nn.Flatten(), layer_init(nn.Linear(64 * 7 * 7, 512)), nn.ReLU(),
        )  # fmt: skip
        self.actor = layer_init(nn.Linear(512, self.num_actions), gain=0.01)
        self.critic = layer_init(nn.Linear(512, 1), gain=1.0)
        self.dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[args.precision]
        self.obs_max = 255 if envs.observation_space.dtype == np.uint8 else 1  # floats are those of a scaling wrapper

    def forward(self, obs: torch.Tensor):
        """Log-probs of all A actions, (M, A), and values, (M,), at observations (M, 84, 84, 4) of bytes. This is the
        policy: acting, learning and evaluation all go through here."""
        images = obs.movedim(-1, 1).to(self.dtype) / self.obs_max  # [atari-9] scaled to 0..1
        with torch.autocast(obs.device.type, torch.bfloat16, enabled=self.dtype == torch.bfloat16):
            hidden = self.network(images)  # (M, 512)
        hidden = hidden.float()
        return self.actor(hidden).log_softmax(-1), self.critic(hidden).squeeze(-1)

    def get_value(self, obs: torch.Tensor) -> torch.Tensor:
        _, value = self(obs)
        return value

    def draw_noise(self, *shape: int) -> torch.Tensor:
        """Standard Gumbel noise, (*shape, A). One call draws it for a whole rollout, which is faster than per step."""
        return -torch.empty(*shape, self.num_actions).exponential_().log()

    def get_action_and_value(self, obs: torch.Tensor, noise: torch.Tensor):
        """Actions drawn from the policy, their log-probs and the values, (M,) each. Adding Gumbel noise (M, A) to the
        log-probs and taking the largest is a draw from the softmax (the Gumbel-max trick). With zeros
        (--deterministic), it is the most probable action."""
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
    obs: torch.Tensor  # (B, 84, 84, 4), bytes; in a minibatch M samples in place of B
    actions: torch.Tensor  # (B,) like all that follow
    log_probs: torch.Tensor  # of the actions, under the policy that drew them
    values: torch.Tensor  # as the critic predicted them then
    advantages: torch.Tensor
    returns: torch.Tensor
    valid: torch.Tensor  # 0 where the step only began an episode: nothing is learned from it; 1 elsewhere


def compute_gae(rewards, values, dones, next_value, next_done, gamma: float, gae_lambda: float):
    """Generalized advantage estimation (Schulman et al. 2016, equation 16) and the returns that follow from it.

    rewards, values, dones: (T, N), where dones[t] marks obs[t] as the last of an episode; next_value, next_done: (N,),
    of the observation after the rollout. Returns advantages and returns, (T, N) each.
    """
    next_values = np.concatenate([values[1:], next_value[None]])
    continues = 1.0 - np.concatenate([dones[1:], next_done[None]])  # 0 where the episode of step t ends with it
    deltas = rewards + gamma * next_values * continues - values
    decays = gamma * gae_lambda * continues
    advantages = np.zeros_like(rewards)
    advantage = np.zeros_like(next_value)
    for t in reversed(range(len(rewards))):  # [core-5] GAE
        advantage = deltas[t] + decays[t] * advantage
        advantages[t] = advantage
    return advantages, advantages + values


def ppo_loss(log_prob, entropy, value, mb: Batch, clip_coef: float, args: Args):
    """Loss of a minibatch (Schulman et al. 2017, equation 9; the clipped value loss is openai/baselines').

    log_prob, entropy, value: (M,), of the networks as they are now. Returns the loss and a dict of metrics, whose means
    over the minibatches of an update are logged.
    """
    # (M,), the average of weights @ x over the processes is a mean over the valid samples of all
    weights = mb.valid / average(mb.valid.sum()).clamp(min=1e-8)
    advantages = mb.advantages
    if args.norm_adv:  # [core-7] normalized advantages
        advantages = advantages - average(weights @ advantages)
        advantages = advantages / (average(weights @ advantages.square()).sqrt() + 1e-8)
    log_ratio = log_prob - mb.log_probs
    ratio = log_ratio.exp()
    clipped_ratio = ratio.clamp(1 - clip_coef, 1 + clip_coef)
    policy_loss = weights @ -torch.min(advantages * ratio, advantages * clipped_ratio)  # [core-8] clipped policy loss
    squared_error = (value - mb.returns).square()
    if args.clip_vloss:  # [core-9] clipped value loss
        clipped_value = mb.values + (value - mb.values).clamp(-clip_coef, clip_coef)
        squared_error = torch.max(squared_error, (clipped_value - mb.returns).square())
    value_loss = 0.5 * weights @ squared_error
    mean_entropy = weights @ entropy
    loss = policy_loss - args.ent_coef * mean_entropy + args.vf_coef * value_loss  # [core-10] one loss, entropy bonus
    with torch.no_grad():  # [core-12] what to watch
        metrics = {
            "losses/value_loss": value_loss,
            "losses/policy_loss": policy_loss,
            "losses/entropy": mean_entropy,
            "losses/old_approx_kl": weights @ -log_ratio,
            "losses/approx_kl": weights @ (ratio - 1 - log_ratio),
            "losses/clipfrac": weights @ ((ratio - 1).abs() > clip_coef).float(),
        }
    return loss, metrics


# ------------------------------------------------------------------------------------------------------------ Processes
def average(x: torch.Tensor) -> torch.Tensor:
    """The mean of a tensor over the processes, without its gradient. All must call it, in the same order."""
    total = x.detach().clone()
    dist.all_reduce(total)
    return total / dist.get_world_size()


def average_gradients(parameters: list[nn.Parameter]) -> None:
    """Averages the gradients over the processes, all in one vector. A missing one counts as 0."""
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    gradients = [torch.zeros_like(x) if x.grad is None else x.grad for x in trained]
    averages = average(torch.cat([gradient.flatten() for gradient in gradients]))
    for parameter, mean in zip(trained, averages.split([parameter.numel() for parameter in trained])):
        parameter.grad = mean.view_as(parameter)


def gather(x) -> list:
    """What each process has, in the order of their ranks."""
    gathered = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, x)
    return gathered


# ------------------------------------------------------------------------------------------------------------- Training
def train(args: Args, run: "Run") -> None:
    """Collects rollouts and learns from each. `run` does the rest: it counts updates, saves, resumes and logs."""
    rank = dist.get_rank()
    world_size = dist.get_world_size()
    # From here on, args is this process's share: its num_envs, batch_size and total_timesteps. So the lines below are
    # ppo_atari_envpool.py's. run.global_step counts the steps of all processes.
    args = copy.copy(args)
    args.num_envs //= world_size
    args.total_timesteps //= world_size
    device = torch.device(args.device)
    envs = VectorEnv(args, args.num_envs)
    torch.manual_seed(args.seed)  # for the initial weights
    agent = Agent(envs, args).to(device)
    parameters = list(agent.parameters())  # of all that learns: only these are averaged over the processes
    optimizer = torch.optim.Adam(parameters, lr=args.learning_rate, eps=1e-5, fused=True)  # [core-3] Adam's epsilon
    initial_rates = [group["lr"] for group in optimizer.param_groups]
    run.keep(model=agent, optimizer=optimizer, envs=envs)  # add what else changes: --resume loads it here
    for tensor in agent.state_dict().values():
        dist.broadcast(tensor, 0)  # [aux-2] the first one's weights; run.log checks that all keep the same
    if args.compile:
        agent.compile()  # its forward

    # T steps of N environments are a rollout of B = T * N samples, collected on the device; M of them are a minibatch
    T, N, M = args.num_steps, args.num_envs, args.batch_size // args.num_minibatches
    obs = torch.from_numpy(np.zeros((T, N, *envs.observation_space.shape), envs.observation_space.dtype)).to(device)
    actions = torch.zeros((T, N), dtype=torch.int64, device=device)
    log_probs = torch.zeros((T, N), device=device)
    acted_values = torch.zeros((T, N), device=device)
    rewards = np.zeros((T, N), np.float32)
    dones = np.zeros((T, N), np.float32)  # dones[t]: obs[t] is the first of an episode

    for update, fresh_episodes in run.updates():
        # Anneal
        remaining = 1.0 - (update - 1) / args.num_updates  # 1 in the first update, 1 / num_updates in the last
        clip_coef = args.clip_coef * remaining if args.anneal_clip else args.clip_coef  # [aux-1] annealed clip range
        for group, rate in zip(optimizer.param_groups, initial_rates):
            if args.anneal_lr:  # --no-anneal-lr: it stays, or a scheduler sets it
                group["lr"] = rate * remaining  # [core-4] annealed rate

        # Collect a rollout. Every update has its own seed, so that checkpoints need no generator's state
        torch.manual_seed(np.random.SeedSequence([args.seed, update, rank]).generate_state(1).item())  # [aux-2] by rank
        if fresh_episodes:  # when the run starts or resumes; with --exact-resume after each checkpoint, too
            next_obs = envs.reset(torch.randint(2**31, (N,)).tolist())
            next_done = np.zeros(N, np.float32)
        noise = agent.draw_noise(T, N).to(device)
        with torch.inference_mode(), torch.autocast(device.type, enabled=False):  # outermost: it keeps bf16 weights
            for step in range(T):  # [core-1] rollouts: obs and dones carry on from one to the next
                obs[step] = torch.from_numpy(next_obs)  # change obs in VectorEnv or Agent: --evaluate uses only these
                dones[step] = next_done
                actions[step], log_probs[step], acted_values[step] = agent.get_action_and_value(obs[step], noise[step])
                next_obs, rewards[step], next_done, truncated_obs, episodes = envs.step(actions[step].cpu().numpy())
                run.note(next_obs, rewards[step], episodes)
                if args.bootstrap_truncated and truncated_obs:  # [plus-1] time limits
                    last_obs = torch.from_numpy(np.stack(list(truncated_obs.values()))).to(device)
                    rewards[step, list(truncated_obs)] += args.gamma * agent.get_value(last_obs).cpu().numpy()
            next_value = agent.get_value(torch.from_numpy(next_obs).to(device)).cpu().numpy()

        # Advantages
        values = acted_values.cpu().numpy()
        advantages, returns = compute_gae(rewards, values, dones, next_value, next_done, args.gamma, args.gae_lambda)
        b_obs = obs.flatten(0, 1)  # (T, N, 84, 84, 4) to (B, 84, 84, 4)
        b_advantages = torch.from_numpy(advantages).to(device).flatten()
        b_returns = torch.from_numpy(returns).to(device).flatten()
        b_valid = torch.from_numpy(1.0 - dones).to(device).flatten()
        b_log_probs = log_probs.flatten()
        b_values = acted_values.flatten()
        batch = Batch(b_obs, actions.flatten(), b_log_probs, b_values, b_advantages, b_returns, b_valid)
        returns = returns[dones == 0]  # for the explained variance
        values = values[dones == 0]

        # Learn, in epochs of minibatches
        logged = []  # metrics of each minibatch
        for _ in range(args.update_epochs):
            epoch_start = len(logged)
            for indices in torch.randperm(args.batch_size, device=device).split(M):  # [core-6] shuffled minibatches
                mb = Batch(*(x.index_select(0, indices) for x in batch))  # faster than x[indices]
                log_prob, entropy, value = agent.evaluate_actions(mb.obs, mb.actions)
                loss, mb_metrics = ppo_loss(log_prob, entropy, value, mb, clip_coef, args)
                optimizer.zero_grad()
                loss.backward()
                average_gradients(parameters)  # [aux-2] data-parallel gradients
                nn.utils.clip_grad_norm_(parameters, args.max_grad_norm)  # [core-11] gradient's norm
                optimizer.step()
                # Metrics may be numbers, or tensors with a gradient
                logged.append({name: torch.as_tensor(x, device=device).detach() for name, x in mb_metrics.items()})
            epoch_kl = torch.stack([x["losses/approx_kl"] for x in logged[epoch_start:]]).mean()
            if args.target_kl is not None and average(epoch_kl) > args.target_kl:  # [aux-3] early stop
                break

        # Log
        metrics = {"charts/learning_rate": optimizer.param_groups[0]["lr"]}
        for name in logged[0]:  # each is a mean over the minibatches and the processes, which must log the same names
            metrics[name] = average(torch.stack([x[name] for x in logged]).float().mean()).item()
        returns = np.concatenate(gather(returns), axis=-1)  # of all processes
        values = np.concatenate(gather(values), axis=-1)
        metrics["losses/explained_variance"] = math.nan
        if returns.var() > 0:
            metrics["losses/explained_variance"] = 1 - (returns - values).var() / returns.var()
        run.log(metrics)


# ======================================================================== The run: nothing below is about PPO

import atexit
import csv
import importlib.metadata
import importlib.util
import os
import platform
import random
import shlex
import shutil
import signal
import sys
import threading
import time
import traceback
from contextlib import ExitStack, suppress
from dataclasses import asdict, replace
from functools import cache

import filelock  # comes with torch
import imageio.v2 as imageio
import torch.distributed.nn  # before there is a group, which its functions' defaults would keep alive
from torch.utils.tensorboard import SummaryWriter

with suppress(ImportError):  # torch's CPU build has none
    import triton  # noqa: F401  torch.optim would load it after Mesa, MuJoCo's renderer, and crash

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # CUDA needs it to repeat bit for bit
os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pygame draws the videos without a display

ACTION_SPACES = (gym.spaces.Discrete,)  # that this script can act in
LONG_EPISODE = 5_000  # steps after which play says that an episode is long
LONGEST_UNSAVED = 600  # seconds of training after which an interim checkpoint is saved
ENTRIES = (  # of a checkpoint, besides the states of kept objects
    "script args update global_step seconds is_interim built recent_returns columns log_sizes path".split()
)
RANGES = [  # names of options, and their smallest and largest value
    (["total_timesteps", "num_envs", "num_steps", "num_minibatches", "update_epochs"], 1, sys.maxsize),
    (["num_threads", "env_threads", "checkpoints", "episodes", "longest_episode"], 1, sys.maxsize),
    (["seed"], 0, 2**32 - 1),  # numpy's largest
    (["learning_rate", "clip_coef", "ent_coef", "vf_coef", "target_kl"], 0, sys.maxsize),
    (["gamma", "gae_lambda"], 0, 1),
    (["max_grad_norm"], 0, math.inf),
]


class UserError(ValueError):
    """A mistake that the user can fix: printed in one line, with exit status 2."""


# ----------------------------------------------------------------------------------------------- Environments
def check_spaces(envs: VectorEnv) -> None:
    """Raises UserError if this script can't learn in the spaces of EnvPool's task."""
    shape = envs.observation_space.shape
    if not isinstance(envs.action_space, ACTION_SPACES) or shape != (84, 84, 4):
        actions = type(envs.action_space).__name__
        hint = "needs four frames of 84x84 pixels and Discrete actions; use an Atari game"
        raise UserError(f"observes {shape} and has {actions} actions; {hint}")


def share_of_cores() -> int:
    """This process's share of the cores: torchrun may have started several on this machine."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, cores // int(os.environ.get("LOCAL_WORLD_SIZE", 1)))


# ------------------------------------------------------------------------------------------------- Evaluation
class Player(VectorEnv):
    """An environment and a trained agent that acts in it.

    player = load("runs/RUN")
    obs = player.reset([1])  # a seed
    obs, rewards, dones, _, episodes = player.step(player.act(obs))
    """

    def __init__(self, checkpoint: dict, args: Args, render_mode: str | None = None):
        super().__init__(args, 1, render_mode)
        self.args = args
        self.agent = Agent(self, args).to(args.device)
        self.agent.eval()
        load_state(self.agent, checkpoint, "model")
        load_state(self, checkpoint, "envs")
        for env in self.vector.envs:
            while isinstance(env, gym.Wrapper):
                env.update_running_mean = False  # NormalizeObservation and NormalizeReward learn no more
                env = env.env

    def act(self, obs: np.ndarray) -> np.ndarray:
        """Actions (1, ...) at observations (1, ...), for step."""
        noise = self.agent.draw_noise(1).to(self.args.device)
        if self.args.deterministic:
            noise = torch.zeros_like(noise)
        with torch.no_grad():
            obs = torch.from_numpy(obs).to(self.args.device)
            actions, _, _ = self.agent.get_action_and_value(obs, noise)
        return actions.cpu().numpy()


def load(run: str | Path, render_mode: str | None = None, **options) -> Player:
    """A trained agent. `run`: run folder or checkpoint; `options`: Args to change, say deterministic=True."""
    checkpoint = load_checkpoint(Path(run))
    return Player(checkpoint, replace(checkpoint["args"], **{"device": "cpu", **options}), render_mode)


def play(player: Player, seed: int, video: Path | None = None) -> dict:
    """Plays an episode. Returns its return "r", its length "l" and, after --longest-episode steps without an
    end, "is_cut": True. `video`: an mp4, complete or absent."""
    limit = player.args.longest_episode
    torch.manual_seed(seed)
    obs = player.reset([seed])
    with ExitStack() as closing:
        if video:
            unfinished = video.with_suffix(".tmp.mp4")
            closing.callback(unfinished.unlink, missing_ok=True)
            fps = player.vector.metadata.get("render_fps", 30)
            writer = imageio.get_writer(unfinished, fps=fps, macro_block_size=2)
            closing.callback(writer.close)
        for step in range(limit):
            if step == LONG_EPISODE:
                print(f"{step:,} steps in an episode; it is cut after --longest-episode {limit}", flush=True)
            if video:
                writer.append_data(player.vector.render()[0])
            obs, _, _, _, episodes = player.step(player.act(obs))
            if episodes:
                break
        if video:
            writer.close()
            unfinished.replace(video)
    if episodes:
        return {**episodes[0], "is_cut": False}
    return {"r": return_so_far(player), "l": limit, "is_cut": True}


def return_so_far(player: Player) -> float:
    return float(player.game_returns[0])


def evaluate(checkpoint: dict, args: Args) -> None:
    """Plays the episodes of --evaluate, and writes each one to evaluation.csv in the run folder."""
    path = checkpoint["path"]
    folder = path.parent.parent if path.parent.name == "checkpoints" else path.parent
    player = Player(checkpoint, args, "rgb_array" if args.capture_video else None)
    returns = []
    seeds = np.random.SeedSequence([args.seed, 0]).generate_state(args.episodes)  # 0 is no update's number
    with open(folder / "evaluation.csv", "w", encoding="utf-8", newline="\n") as file:
        print("checkpoint,seed,episode,episodic_return,episodic_length,is_cut", file=file)
        for number, seed in enumerate(seeds.tolist(), start=1):
            video = folder / "evaluation.mp4" if args.capture_video and number == 1 else None
            episode = play(player, seed, video)
            cut = " when it was cut" if episode["is_cut"] else ""
            print(f"episode {number}: return {episode['r']:.2f}, length {episode['l']}{cut}", flush=True)
            row = (path.name, args.seed, number, episode["r"], episode["l"], int(episode["is_cut"]))
            print(*row, sep=",", file=file, flush=True)
            returns.append(episode["r"])
    player.close()
    print(f"mean return {np.mean(returns):.2f} ± {np.std(returns):.2f} of {path}")


# -------------------------------------------------------------------------------------------------------- Run
class Run:
    """What surrounds a training: run folder, checkpoints, resuming, logs, stop signals."""

    def __init__(self, args: Args, checkpoint: dict | None = None):
        self.args = args
        self.checkpoint = checkpoint  # to go on from; after the first save, only what save notes of the last one
        self.update = checkpoint["update"] if checkpoint else 0
        self.global_step = checkpoint["global_step"] if checkpoint else 0
        self.seconds = checkpoint["seconds"] if checkpoint else 0.0  # of training alone
        self.recent_returns = checkpoint["recent_returns"] if checkpoint else []
        self.columns = checkpoint["columns"] if checkpoint else []  # of metrics.csv, fixed by the first row
        self.late_metrics = []  # that came after it
        self.episodes = []  # that ended in this update
        self.rewards = []  # of all steps in this update
        self.kept = {}
        self.built = {}  # by name, the options that train built each kept optimizer with
        self.tracker = None  # Weights & Biases' run
        self.stop_signal = None
        self.last_status = -math.inf
        self.closing = ExitStack()  # what has to be closed at the end

    def keep(self, **objects) -> None:
        """Names what checkpoints hold: `model`, `envs` and other objects with a state_dict. A resumed run
        loads their states here."""
        self.kept.update(objects)
        for name, thing in objects.items():
            if name in ENTRIES:
                raise UserError(f"run.keep({name}=...): checkpoints use this name themselves; take another one")
            built = [{**group, "params": None} for group in getattr(thing, "param_groups", [])]
            self.built[name] = built
            if self.checkpoint is None:
                continue
            load_state(thing, self.checkpoint, name)
            for i, before in enumerate(self.checkpoint["built"][name]):
                for option, value in built[i].items():
                    if value != before.get(option):  # typed or edited since; loading replaced it
                        thing.param_groups[i][option] = value

    def updates(self):
        """Yields the number of each update to do, and whether it starts with fresh episodes. The first one
        does, since checkpoints hold no half-played ones; with --exact-resume, so does each one after a
        checkpoint, so that a run resumed there ends with the same bits."""
        args = self.args
        self.open()
        count = args.checkpoints or max(1, min(10, args.num_updates * args.num_steps // 10_000))
        planned = {round(args.num_updates * (i + 1) / count) for i in range(count)}
        if self.checkpoint is None:
            self.save(is_interim=True)  # there is always one to go on from
        fresh_episodes = True
        while self.update < args.num_updates and self.stop_signal is None:
            self.update += 1
            self.start_time = time.perf_counter() - self.seconds  # checkpoints and videos do not count
            yield self.update, fresh_episodes
            self.seconds = time.perf_counter() - self.start_time
            if self.update < args.num_updates:
                self.show_status()
            fresh_episodes = args.exact_resume and self.update in planned
            unsaved = self.seconds - self.checkpoint["seconds"]
            if self.update in planned:
                self.save()
                if args.capture_video and self.stop_signal is None:
                    self.record_video()
            elif unsaved > LONGEST_UNSAVED and not args.exact_resume:  # there, only planned ones are exact
                self.save(is_interim=True)

    def finish(self) -> None:
        """Saves what was learned after the last checkpoint, and says how to go on."""
        is_saved = self.checkpoint["update"] == self.update
        if not is_saved and not (self.stop_signal and self.args.exact_resume):
            self.save()
        if self.update > 0:
            self.show_status(last=True)
        self.kept["envs"].close()
        print(f"run folder: {self.folder}")
        script = shlex.quote(Path(sys.argv[0]).as_posix())
        folder = shlex.quote(self.folder.as_posix())
        if self.stop_signal and self.update < self.args.num_updates:
            self.write_end("stopped")
            print(f"stopped; go on with: {launcher()} {script} --resume {folder}")
            sys.exit(128 + self.stop_signal)
        self.write_end("whole" if self.update >= self.args.num_updates else "break")
        print(f"play it: python {script} --evaluate {folder}")

    def write_end(self, how: str) -> None:
        """Records the end for other programs: whole, by a break in train, stopped by a signal, diverged."""
        text = json.dumps({"end": how, "update": self.update, "global_step": self.global_step})
        (self.folder / "end.json").write_text(text, "utf-8")

    def open(self) -> None:
        """Makes the run folder, or cuts the logs of a resumed one back to the checkpoint, and opens them."""
        args = self.args
        self.folder = Path(args.resume) if args.resume else create_run_folder(args)
        self.closing.enter_context(filelock.FileLock(self.folder / "lock", blocking=False))
        (self.folder / "end.json").unlink(missing_ok=True)
        if self.checkpoint:
            for name, size in self.checkpoint["log_sizes"].items():
                os.truncate(self.folder / name, size)
            arguments = json.dumps(asdict(args), indent=2)
            (self.folder / f"resumed_after_{self.update}.json").write_text(arguments, "utf-8")
        if args.track:
            import wandb

            self.tracker = wandb.init(
                project=args.wandb_project_name,
                entity=args.wandb_entity,
                name=self.folder.name,
                id=self.folder.name,
                resume="allow",
                config=asdict(args),
                sync_tensorboard=True,
            )
            self.closing.callback(self.tracker.finish)
            self.tracker.log_code(str(self.folder))  # the script's copy
        self.tensorboard = SummaryWriter(str(self.folder), purge_step=self.global_step + 1)
        table = "|name|value|\n|-|-|\n"
        table += "\n".join(f"|{name}|{value}|" for name, value in asdict(args).items())
        self.tensorboard.add_text("hyperparameters", table, self.global_step)
        self.metrics_file = open(self.folder / "metrics.csv", "a", encoding="utf-8", newline="\n")
        self.episodes_file = open(self.folder / "episodes.csv", "a", encoding="utf-8", newline="\n")
        for file in (self.tensorboard, self.metrics_file, self.episodes_file):
            self.closing.enter_context(file)
        for number in (signal.SIGINT, signal.SIGTERM):
            handler = signal.signal(number, self.request_stop)
            self.closing.callback(signal.signal, number, handler)
        print(f"{self.folder}: {args.num_updates} updates, {self.update} done; {args.device}", flush=True)

    def request_stop(self, number: int, frame) -> None:
        self.stop_signal = number
        signal.signal(number, signal.SIG_DFL)  # a second one of its kind ends the process at once
        with suppress(OSError):  # stderr may be closed
            os.write(2, b"\nstopping after this update\n")

    def note(self, obs: np.ndarray, rewards: np.ndarray, episodes: list[dict]) -> None:
        """Counts a step of all environments, checks what it returned, and writes down episodes that ended."""
        for name, values in (("observation", obs), ("reward", rewards)):
            if values.dtype.kind == "f" and not np.isfinite(values).all():
                number = np.argwhere(~np.isfinite(values))[0][0]
                raise UserError(f"update {self.update}, environment {number}: its {name} is not finite")
        self.global_step += self.args.num_envs
        self.rewards += rewards.tolist()
        self.episodes += episodes
        for episode in episodes:
            seconds = round(time.perf_counter() - self.start_time, 3)
            print(self.global_step, episode["r"], episode["l"], seconds, sep=",", file=self.episodes_file)

    def log(self, metrics: dict[str, float]) -> None:
        """Writes the metrics of this update to TensorBoard and, as one row, to metrics.csv."""
        weights = nn.utils.parameters_to_vector(self.kept["model"].parameters())
        if not weights.isfinite().all():
            self.write_end("diverged")
            raise UserError(f"update {self.update}: weights are not finite; try a smaller --learning-rate")
        self.seconds = time.perf_counter() - self.start_time
        returns = [episode["r"] for episode in self.episodes]
        self.recent_returns = (self.recent_returns + returns)[-100:]
        row = {
            "global_step": self.global_step,
            "charts/episodic_return": np.mean(returns or [math.nan]),
            "charts/episodic_length": np.mean([episode["l"] for episode in self.episodes] or [math.nan]),
            "charts/reward": np.mean(self.rewards),
            "charts/SPS": self.global_step / self.seconds,
            **{name: float(x.item() if hasattr(x, "item") else x) for name, x in metrics.items()},  # no gradient
        }
        self.episodes = []
        self.rewards = []
        for name, value in row.items():
            if name != "global_step" and not math.isnan(value):
                self.tensorboard.add_scalar(name, value, self.global_step)
        if not self.columns:
            self.columns = list(row)
            print(*self.columns, sep=",", file=self.metrics_file)
        for name in row:
            if name not in self.columns + self.late_metrics:
                self.late_metrics.append(name)
                print(f"note: {name} came after the first update: it is in TensorBoard, not in metrics.csv")
        options = {"restval": math.nan, "extrasaction": "ignore", "lineterminator": "\n"}
        csv.DictWriter(self.metrics_file, self.columns, **options).writerow(row)
        self.metrics_file.flush()
        self.episodes_file.flush()

    def show_status(self, last: bool = False) -> None:
        """A line that overwrites itself on a terminal; in a file, a line every 10 seconds."""
        on_terminal = sys.stdout.isatty()
        now = time.perf_counter()
        if last or now - self.last_status > (0.2 if on_terminal else 10):
            self.last_status = now
            done = self.update / self.args.num_updates
            minutes_left = (self.seconds / done - self.seconds) / 60
            mean_return = np.mean(self.recent_returns or [math.nan])
            speed = self.global_step / max(self.seconds, 1e-9)  # 0 if train ended before its first log
            status = f"{done:4.0%}  step {self.global_step:,}  {speed:,.0f} steps/s  "
            status += f"{minutes_left:.1f} min left  mean return {mean_return:,.2f}"
            print(status.ljust(79), end="\r" if on_terminal and not last else "\n", flush=True)

    def save(self, is_interim: bool = False) -> None:
        """Writes a checkpoint, complete or not at all. The next one replaces an interim one."""
        self.tensorboard.flush()
        for file in (self.metrics_file, self.episodes_file):  # resuming cuts them to what they are now
            file.flush()
            os.fsync(file.fileno())
        state = {
            "script": Path(__file__).stem,
            "args": asdict(replace(self.args, resume=None)),
            "update": self.update,
            "global_step": self.global_step,
            "seconds": self.seconds,
            "is_interim": is_interim,
            "built": self.built,
            "recent_returns": self.recent_returns,
            "columns": self.columns,
            "log_sizes": {"metrics.csv": self.metrics_file.tell(), "episodes.csv": self.episodes_file.tell()},
            **{name: thing.state_dict() for name, thing in self.kept.items()},
        }
        path = self.folder / "checkpoints" / f"{self.update}.pt"
        with open(path.with_suffix(".tmp"), "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        path.with_suffix(".tmp").replace(path)
        load_checkpoint(path)  # fails now if it can't be read back
        if self.checkpoint and self.checkpoint["is_interim"]:
            self.checkpoint["path"].unlink(missing_ok=True)
        self.checkpoint = {"path": path, "is_interim": is_interim, "update": self.update, "seconds": self.seconds}

    def record_video(self) -> None:
        """Plays an episode with the checkpoint just written. A failure here costs the video, not the run."""
        video = self.folder / "videos" / f"{self.update}.mp4"
        try:
            player = Player(load_checkpoint(self.checkpoint["path"]), self.args, "rgb_array")
            play(player, self.args.seed, video)
            player.close()
            if self.tracker:
                import wandb

                self.tracker.log({"video": wandb.Video(str(video)), "global_step": self.global_step})
        except (Exception, SystemExit) as error:  # other people's code can raise anything
            print(f"warning: no video of update {self.update}: {error!r}", file=sys.stderr)


def create_run_folder(args: Args) -> Path:
    """Makes runs/{env_id}__{exp_name}__{seed}__{time}, with all that it takes to repeat the run."""
    name = f"{args.env_id}__{args.exp_name}__{args.seed}__".replace("/", "_").replace(":", "_")
    now = int(time.time())
    while Path(f"runs/{name}{now}").exists():  # begun in the same second
        now += 1
    folder = Path(f"runs/{name}{now}")
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "videos").mkdir()
    (folder / "episodes.csv").write_text("global_step,episodic_return,episodic_length,seconds\n", "utf-8")
    shutil.copy(__file__, folder)
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    config = {
        "script": Path(__file__).stem,
        "arguments": asdict(args),
        "command": f"{launcher()} {shlex.join(sys.argv)}",
        "versions": {package.name: package.version for package in importlib.metadata.distributions()},
        "hardware": {"machine": platform.platform(), "cores": os.cpu_count(), "gpus": gpus},
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2), "utf-8")
    return folder


def load_checkpoint(path: Path) -> dict:
    """The checkpoint in a file, or the last one of a run folder. Runs no code that the file may hold."""
    if path.is_dir():
        files = [file for file in path.glob("checkpoints/*.pt") if file.stem.isdigit()]
        if not files:
            scripts = [file.name for file in path.glob("*.py")]  # a run folder has a copy of its own
            hint = f"this is a run of {scripts[0]}" if scripts else "give a run folder or a checkpoint"
            raise UserError(f"{path}: has no checkpoints of {Path(__file__).name}; {hint}")
        path = max(files, key=lambda file: int(file.stem))
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
        script = checkpoint["script"]
    except Exception as error:  # no file, or one that is something else, can raise anything
        hint = "no checkpoint, or run.keep got more than tensors, numbers, strings, lists and dicts"
        raise UserError(f"{path}: {type(error).__name__}: {hint}") from error
    if script != Path(__file__).stem:
        print(f"note: {path} was written by {script}.py")
    args = {name: value for name, value in checkpoint["args"].items() if name in vars(Args())}
    return {**checkpoint, "args": Args(**args), "path": path}


def load_state(thing, checkpoint: dict, name: str) -> None:
    """Gives an object the state that a checkpoint has under this name."""
    try:
        thing.load_state_dict(checkpoint[name])
    except (KeyError, RuntimeError, ValueError) as error:
        text = f"{checkpoint['path']}, which {checkpoint['script']}.py wrote: its {name} doesn't fit"
        raise UserError(f"{text}: {type(error).__name__}: {error}") from error


# ------------------------------------------------------------------------------------------------- Shared run
class SharedRun(Run):
    """A run of several processes: the first one opens, saves and writes, and the others follow it."""

    folder = None  # until the first process has opened it
    error = None  # that this process met in this update

    def updates(self):
        """As in the first process, which opens the folder, saves and decides when the run ends."""
        next_update = partial(next, super().updates(), None)
        announced = from_first(next_update)
        self.folder = gather(self.folder)[0]
        torchrun_note().write_text(str(self.folder), "utf-8")
        self.closing.callback(self.kept["envs"].close)  # in all processes, and however the run ends
        for number in (signal.SIGINT, signal.SIGTERM):
            handler = signal.signal(number, self.request_stop)
            self.closing.callback(signal.signal, number, handler)
        while announced is not None:
            self.update, fresh_episodes = announced
            self.start_time = time.perf_counter() - self.seconds
            yield self.update, fresh_episodes
            self.seconds = time.perf_counter() - self.start_time
            announced = from_first(next_update)

    def finish(self) -> None:
        from_first(super().finish)  # all end together, and with the same status

    def request_stop(self, number: int, frame) -> None:
        """Under torchrun, which hands signals on and kills 30 seconds later, further ones change nothing."""
        if "RANK" in os.environ:
            self.stop_signal = number
        else:
            super().request_stop(number, frame)

    def note(self, obs: np.ndarray, rewards: np.ndarray, episodes: list[dict]) -> None:
        """As Run's, but log writes, and raises the error: the others would wait for this process now."""
        try:
            super().note(obs, rewards, [])
        except UserError as error:
            self.error = error
        seconds = round(time.perf_counter() - self.start_time, 3)
        for episode in episodes:
            row = (self.global_step, episode["r"], episode["l"], seconds)
            self.episodes.append({**episode, "row": row})

    def log(self, metrics: dict[str, float]) -> None:
        """Brings together what all processes noted in this update; the first one writes it."""
        noted = gather((self.episodes, self.rewards, self.stop_signal, self.error))
        self.episodes = []
        self.rewards = []
        for rank, (episodes, rewards, stop_signal, error) in enumerate(noted):
            if error is not None:
                raise UserError(f"process {rank}: {error}")
            self.stop_signal = self.stop_signal or stop_signal
            if dist.get_rank() == 0:
                self.episodes += episodes
                self.rewards += rewards
        for row in sorted(episode["row"] for episode in self.episodes):
            print(*row, sep=",", file=self.episodes_file)
        from_first(partial(super().log, metrics))
        self.recent_returns = gather(self.recent_returns)[0]  # train may end by them, in all processes
        in_all(self.compare_weights)

    def compare_weights(self) -> None:
        """Raises UserError if this process has other weights or buffers than the first one has."""
        others = []
        for name, thing in self.kept.items():
            state = thing.state_dict() if isinstance(thing, nn.Module) else {}
            for key, tensor in state.items():
                own = tensor.float()
                first = own.clone()
                dist.broadcast(first, 0)
                if not (own - first).norm() <= 1e-3 * first.norm():  # unlike GPUs round differently
                    others.append(f"{name}.{key}")
        if others:
            text = f"update {self.update}: process {dist.get_rank()} has other weights than process 0"
            raise UserError(f"{text} in {', '.join(others)}; average gradients and buffers over all")


@cache
def find_processes() -> tuple[dist.Store, int, int]:
    """Where the processes that torchrun started find each other, the rank of this one, and their number."""
    if "RANK" not in os.environ:
        return dist.HashStore(), 0, 1
    store, rank, processes = next(dist.rendezvous("env://"))
    if os.environ.get("LOCAL_WORLD_SIZE") == os.environ["WORLD_SIZE"]:  # on one machine
        # The store keeps addresses of processes that torchrun has ended: others must not find them
        store = dist.PrefixStore(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), store)
    return store, rank, processes


def join_processes(backend: str = "gloo") -> None:
    """Joins the processes that torchrun started, or is the only one. Called again, it changes the backend."""
    store, rank, processes = find_processes()
    if dist.is_initialized():
        dist.destroy_process_group()
    else:
        atexit.register(dist.destroy_process_group)
    store = dist.PrefixStore(backend, store)  # each group has its own addresses
    dist.init_process_group(backend, store=store, rank=rank, world_size=processes)
    if rank > 0:  # only the first prints
        sys.stdout = open(os.devnull, "w", encoding="utf-8")


def choose_devices(gpus: int, processes: int, device_ids: tuple[int, ...], backend: str):
    """The device of each process on a machine with so many GPUs, and the backend: "nccl" or "gloo".

    device_ids, backend: the options. By default processes take the GPUs in turn, and exchange tensors through
    NCCL, which allows one process on a GPU, or else through gloo. Raises UserError if that can't be had.
    """
    typed = f"--device-ids {' '.join(str(gpu) for gpu in device_ids)}"
    if device_ids and len(device_ids) != processes:
        raise UserError(f"{typed}: must name a GPU for each of the {processes} processes on this machine")
    if any(gpu not in range(gpus) for gpu in device_ids):
        raise UserError(f"{typed}: torch finds {gpus} GPUs on this machine, numbered from 0")
    if gpus == 0:
        return ["cpu"] * processes, "gloo"
    chosen = device_ids or [rank % gpus for rank in range(processes)]
    used = len(set(chosen))
    if backend == "nccl" and used < processes:
        raise UserError(f"--backend nccl: needs a GPU for each process, and {processes} have {used}; use auto or gloo")
    if backend == "nccl" and not dist.is_nccl_available():
        raise UserError(f"--backend nccl: torch {torch.__version__} comes without it; use auto or gloo")
    if backend == "auto":
        backend = "nccl" if used == processes and dist.is_nccl_available() else "gloo"
    return [f"cuda:{gpu}" for gpu in chosen], backend


def take_device(args: Args) -> None:
    """Takes the device of this process, and joins the others through NCCL if that suits them all."""
    processes = int(os.environ.get("LOCAL_WORLD_SIZE", 1))  # on this machine
    gpus = 0
    device_ids = ()
    if args.device == "cuda":
        gpus = torch.cuda.device_count()
        device_ids = args.device_ids
    devices, backend = in_all(partial(choose_devices, gpus, processes, device_ids, args.backend))
    if args.device == "cuda":
        torch.cuda.set_device(devices[int(os.environ.get("LOCAL_RANK", 0))])
    suits_all = set(gather(backend)) == {"nccl"}
    if suits_all and "nccl" not in dist.get_backend_config():
        join_processes("cpu:gloo,cuda:nccl")
    if args.device == "cuda":
        print(f"processes on {' '.join(devices)}, through {'NCCL' if suits_all else 'gloo'}")


def from_first(function):
    """Calls a function in the first process alone. All get its result, or raise what it raised."""
    shared = [None, None]  # its result, and its error
    if dist.get_rank() == 0:
        try:
            shared[0] = function()
        except (UserError, filelock.Timeout, SystemExit) as error:
            shared[1] = error
    dist.broadcast_object_list(shared)
    result, error = shared
    if error is not None:
        raise error
    return result


def in_all(function):
    """Calls a function in all processes. Each gets its own result, or all raise the UserError of any."""
    result = None
    error = None
    try:
        result = function()
    except UserError as raised:
        error = raised
    for raised in gather(error):
        if raised is not None:
            raise raised
    return result


def torchrun_note() -> Path:
    """A file in torchrun's log folder, which outlives a restart: it holds the name of the run folder."""
    error_file = Path(os.environ.get("TORCHELASTIC_ERROR_FILE", ""))  # .../attempt_0/0/error.json
    folder = error_file.parent.parent.parent
    return folder / "run_folder" if folder.name else Path(os.devnull)


def launcher() -> str:
    """The command that started these processes, on the first machine."""
    if "RANK" not in os.environ:
        return "python"
    on_this_machine = int(os.environ.get("LOCAL_WORLD_SIZE", dist.get_world_size()))
    machines = dist.get_world_size() // on_this_machine
    where = "--standalone"
    if machines > 1:
        address = f"--master-addr={os.environ['MASTER_ADDR']} --master-port={os.environ['MASTER_PORT']}"
        where = f"--nnodes={machines} --node-rank=0 {address}"  # the other machines' ranks are 1, 2 and so on
    return f"torchrun {where} --nproc_per_node={on_this_machine}"


# ------------------------------------------------------------------------------------------------------- Main
def check_arguments(args: Args) -> None:
    """Raises UserError at the first argument that cannot work, before anything is created."""
    for names, least, most in RANGES:
        for name in names:
            value = getattr(args, name)
            if value is not None and not least <= value <= most:  # nan is in no range
                limits = f"at least {least}" if most >= sys.maxsize else f"from {least} to {most}"
                raise UserError(f"--{name.replace('_', '-')} {value}: must be {limits}")
    batch = f"--num-envs {args.num_envs} * --num-steps {args.num_steps} = {args.batch_size}"
    if args.batch_size % args.num_minibatches != 0:
        raise UserError(f"{batch}: must be a multiple of --num-minibatches {args.num_minibatches}")
    if args.num_updates < 1:
        raise UserError(f"{batch}: must be at most --total-timesteps {args.total_timesteps}")
    processes = dist.get_world_size()
    minibatch = args.batch_size // args.num_minibatches
    if args.evaluate is None and (args.num_envs % processes or minibatch % processes):
        shares = f"--num-envs {args.num_envs} and minibatches of {minibatch}"
        raise UserError(f"{shares}: must be multiples of the {processes} processes")
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not available.get(args.device, True):
        raise UserError(f"--device {args.device}: torch {torch.__version__} finds none; use --device cpu")
    if args.track and importlib.util.find_spec("wandb") is None:
        raise UserError("--track: needs another package: pip install wandb")
    compiler = os.environ.get("CXX", "g++")
    if args.compile and args.evaluate is None and shutil.which(compiler) is None:
        raise UserError(f"--compile: needs a C++ compiler; install {compiler}, or name another by CXX")
    try:
        import envpool

        if args.env_id not in envpool.list_all_envs():
            hint = "games are written Breakout-v5, and envpool.list_all_envs() names all"
            raise UserError(f"EnvPool {envpool.__version__} has no such task; {hint}")
        envs = VectorEnv(args, 1, "rgb_array" if args.capture_video else None)
        envs.reset([0])
        returned = envs.step(np.zeros(1, np.int64))[0].dtype
        if returned != envs.observation_space.dtype:  # the rollout would cut them to whole numbers
            declared = f"observation_space says {envs.observation_space.dtype}"
            raise UserError(f"VectorEnv.step returns {returned}, but its {declared}; change both")
        if args.capture_video and envs.vector.render()[0] is None:
            raise UserError("draws no picture; use --no-capture-video")
        envs.close()
    except (Exception, SystemExit) as error:  # an unknown id, a missing package, no display, a call of quit()
        text = str(error).rstrip(".")
        if not isinstance(error, UserError):
            hint = "if it can't draw, add --no-capture-video; " if args.capture_video else ""
            text = f"{type(error).__name__}: {text or 'no message'}; {hint}--debug shows where"
        raise UserError(f"--env-id {args.env_id} --env-kwargs {args.env_kwargs}: {text}") from error


def read_arguments(words: list[str] | None = None) -> tuple[Args, dict | None]:
    """The arguments, and the checkpoint of --resume or --evaluate, whose arguments are the defaults then."""
    typed = sys.argv[1:] if words is None else words
    words = []
    for word in typed:  # some are as CleanRL's users, and readers of the article of 2020, type them
        if word in ("--kle-stop", "--gae"):
            raise UserError(f"{word}: now --target-kl 0.03 ends an update early, and --gae-lambda 1 leaves out GAE")
        if word == "False" and words:  # --track False
            words[-1] = words[-1].replace("--", "--no-", 1)
        elif word != "True":
            words.append(word)
    today = {"--gym-id": "--env-id", "--prod-mode": "--track", "--no-prod-mode": "--no-track"}
    today |= {"--cuda": "--device=cuda", "--no-cuda": "--device=cpu"}
    words = [today.get(word, word) for word in words]
    args = tyro.cli(Args, description=__doc__, args=words)
    if args.resume is None and args.evaluate is None:
        return args, None
    if args.resume is not None and args.evaluate is not None:
        raise UserError("--resume and --evaluate: give one of them")
    if args.resume is not None and not Path(args.resume).is_dir():
        raise UserError(f"--resume {args.resume}: takes a run folder")
    checkpoint = load_checkpoint(Path(args.evaluate if args.resume is None else args.resume))
    saved = checkpoint["args"]
    if args.evaluate is not None:  # it may happen on another machine
        saved = replace(saved, device=Args.device, seed=Args.seed, capture_video=False, track=False)
        # A run folder counts as the user's own; a lone checkpoint may be a stranger's
        if ":" in saved.env_id and args.env_id != saved.env_id and Path(args.evaluate).is_file():
            raise UserError(f"its environment {saved.env_id} imports a module; add --env-id if you trust it")
    return tyro.cli(Args, description=__doc__, args=words, default=saved), checkpoint


def without_exit(function, *arguments) -> None:
    """Calls the function. A package that ends Python in it, with status 0, must not look like a success."""
    try:
        function(*arguments)
    except SystemExit as error:
        raise UserError(f"something called sys.exit({error.code}); --debug shows where") from error


def main(args: Args, checkpoint: dict | None = None) -> Path | None:
    """Trains, resumes or evaluates, as the arguments say. Returns the run folder of a training."""
    if checkpoint is None and (args.resume is not None or args.evaluate is not None):
        raise UserError("from a program, call main(*read_arguments(['--resume', folder]))")
    if not dist.is_initialized():  # another program calls this
        join_processes()
    in_all(partial(check_arguments, args))
    args = replace(args, total_timesteps=int(args.total_timesteps))
    if args.device == "auto":
        names_gpus = args.device_ids and args.evaluate is None  # take_device refuses ids that aren't there
        args.device = "cuda" if names_gpus or torch.cuda.is_available() else "cpu"
    random.seed(f"{args.seed} {dist.get_rank()}")  # some environments draw from Python's and numpy's own
    np.random.seed([args.seed, dist.get_rank()])
    torch.set_num_threads(args.num_threads or torch.get_num_threads())
    torch.use_deterministic_algorithms(args.device == "cuda" and args.torch_deterministic)
    torch.utils.deterministic.fill_uninitialized_memory = False  # it is for finding bugs, and takes time
    keep_freed_memory()
    if args.evaluate is not None:
        if dist.get_rank() == 0:
            without_exit(evaluate, checkpoint, args)
        return None
    if threading.current_thread() is not threading.main_thread():
        raise UserError("signals reach only the main thread; train there, or in a multiprocessing.Process")
    take_device(args)
    if checkpoint and "built" not in checkpoint:
        raise UserError("an older version began this run; go on with the copy of the script in its folder")
    if checkpoint and checkpoint["args"].batch_size != args.batch_size:
        raise UserError("--num-envs and --num-steps: their product, which counts updates, cannot change")
    if checkpoint and checkpoint["args"].env_id != args.env_id:
        text = f"--resume goes on with --env-id {checkpoint['args'].env_id}; for another one, start a run with"
        raise UserError(f"{text} load_checkpoint({args.resume!r})['model']: docs/make-it-your-own.md")
    run = SharedRun(args, checkpoint)
    with run.closing:
        without_exit(train, args, run)
        run.finish()
    return run.folder


def keep_freed_memory() -> None:
    """Lets glibc, the C library of most Linuxes, keep large blocks that were freed, and use them again."""
    if platform.libc_ver()[0] == "glibc":
        import ctypes

        glibc = ctypes.CDLL(None)
        glibc.mallopt(-4, 0)  # M_MMAP_MAX
        glibc.mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD


if __name__ == "__main__":
    join_processes()
    if torchrun_note().is_file():  # torchrun has started these processes in place of others
        sys.argv += ["--resume", torchrun_note().read_text("utf-8")]
    try:
        main(*from_first(read_arguments))
        sys.exit(0)
    except KeyboardInterrupt:  # before a training or in an evaluation
        sys.exit(130)
    except (UserError, filelock.Timeout) as error:  # Timeout: another process trains in this folder
        if "--debug" in sys.argv:
            traceback.print_exc()
        if dist.get_rank() > 0:  # the first one says it, too, if all raised it; then torchrun ends this one
            time.sleep(10)
        print(f"{Path(__file__).name}: error: {' '.join(str(error).split())}", file=sys.stderr)
        status = 2
    except Exception:
        print(f"process {dist.get_rank()}:", file=sys.stderr)
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    os._exit(status)  # an exit that leaves the group could wait for processes that wait for this one
