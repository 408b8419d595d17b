# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "ale-py>=0.12",
#   "gymnasium>=1.4",
#   "imageio[ffmpeg]>=2.38",
#   "numpy>=2.4",
#   "opencv-python-headless>=5",
#   "tensorboard>=2.21",
#   "torch>=2.13",
#   "tyro>=1.0.17",
# ]
# ///
"""PPO for Atari games, with videos that show the policy beside the game: what it sees, how probable it makes each
action, and how much reward it expects.

    python cleanrl/ppo_atari_visual.py --env-id BreakoutNoFrameskip-v4
    python cleanrl/ppo_atari_visual.py --evaluate runs/RUN --capture-video

Parent: ppo_atari.py. Changes: (1) `draw_policy` puts a panel beside the game's picture; (2) `Player` draws it for
videos, one picture per decision; (3) videos are recorded, unless told not to with --no-capture-video.
Details: core-1 to core-12, atari-1 to atari-9, aux-1 (--anneal-clip), aux-3 (--target-kl), plus-1
(--bootstrap-truncated).
"""

import json
import math
import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # CUDA needs it for products that repeat bit for bit
os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pygame draws the videos without a display

import ale_py
import gymnasium as gym
import numpy as np
import torch
import torch.nn as nn
import tyro

gym.register_envs(ale_py)
ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # no banner for each game


# ------------------------------------------------------------------------------------------------------------ Arguments
@dataclass
class Args:
    # run
    exp_name: str = Path(__file__).stem  # name of the experiment, a part of the run folder's name
    seed: int = 1  # seed of the weights, the environments and the sampling
    track: bool = False  # send the run to Weights & Biases too
    wandb_project_name: str = "cleanRL"  # Weights & Biases project
    wandb_entity: str | None = None  # Weights & Biases team or user
    capture_video: bool = True  # record one evaluation game at every checkpoint, with the policy, as mp4
    checkpoints: int | None = None  # checkpoints in a run, evenly spaced; by default 10, in short runs fewer
    exact_resume: bool = False  # start new episodes after each checkpoint, so that resuming is bit-exact
    resume: str | None = None  # run folder to continue from its last checkpoint
    evaluate: str | None = None  # run folder or checkpoint to evaluate instead of training
    episodes: int = 10  # episodes that --evaluate plays
    deterministic: bool = False  # let --evaluate take the most probable actions instead of drawing them
    debug: bool = False  # show the whole traceback of an error
    # environment
    env_id: str = "BreakoutNoFrameskip-v4"  # Gymnasium id of the game or other environment
    env_kwargs: str = "{}"  # arguments of the environment as JSON, say '{"full_action_space": true}'
    total_timesteps: int | float = 10_000_000  # environment steps in total; a step of a game is 4 frames
    num_envs: int = 8  # environments that are stepped together
    num_steps: int = 128  # steps of each environment in a rollout
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
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"  # auto: cuda if available
    num_threads: int | None = None  # CPU threads of torch, which affect rounding; None: torch's default
    precision: Literal["fp32", "bf16"] = "fp32"  # of the CNN; bf16 is faster if the CPU has it; in fp32 GPUs use TF32
    vectorization: Literal["sync", "async"] = "sync"  # async: each environment in a process, for slow simulators

    @property
    def batch_size(self) -> int:
        return self.num_envs * self.num_steps

    @property
    def num_updates(self) -> int:
        return int(self.total_timesteps // self.batch_size)


# ---------------------------------------------------------------------------------------------------------- Environment
def make_env(args: Args, render_mode: str | None = None) -> gym.Env:
    """One environment that shows gray frames, (84, 84): a preprocessed Atari game, or any other one with pictures."""
    options = json.loads(args.env_kwargs)
    if render_mode:  # not every environment takes it
        options["render_mode"] = render_mode
    env = gym.make(args.env_id, disable_env_checker=True, **options)
    is_game = isinstance(env.unwrapped, ale_py.AtariEnv)
    if is_game:  # made again: ALE/...-v5 skips frames by itself, and colors that nobody looks at take time
        env.close()
        for name in ("frameskip", "obs_type"):
            if name in options:
                raise ValueError(f"this script sets {name} itself; leave it out of --env-kwargs")
        options.update(frameskip=1, obs_type="grayscale")
        env = gym.make(args.env_id, disable_env_checker=True, **options)
        env.metadata = {**env.metadata, "render_fps": 15}  # a video has one picture of four frames
        env = gym.wrappers.AtariPreprocessing(env, noop_max=30, frame_skip=4)  # [atari-1] [atari-2] [atari-5]
    if "RecordEpisodeStatistics" not in str(env):  # some packages record episodes themselves
        env = gym.wrappers.RecordEpisodeStatistics(env)  # wrap lives and rewards after this: it logs whole games
    check_spaces(env)  # wrappers that change spaces go above this line; those that end episodes, above the statistics
    if is_game:  # other rewards stay as they are
        env = gym.wrappers.TransformReward(EpisodicLife(env), np.sign)  # [atari-6]
    else:
        env = gym.wrappers.ResizeObservation(env, (84, 84))
        if env.observation_space.shape == (84, 84, 3):
            env = gym.wrappers.GrayscaleObservation(env)
        env = gym.wrappers.ReshapeObservation(env, (84, 84))
    return env


class EpisodicLife(gym.Wrapper):
    """Ends an episode with each life, while the game goes on to its end, and opens each by FIRE where a game has it."""

    def __init__(self, env: gym.Env):
        super().__init__(env)
        self.lives = 0
        self.game_over = True
        has_fire = env.unwrapped.get_action_meanings()[1:2] == ["FIRE"]
        self.opening = [1, 2] if has_fire else []  # openai/baselines follows FIRE with action 2

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        """Begins the game's next life; a new game if there is none to go on with, or a seed is given."""
        if self.game_over or seed is not None:
            observation, info = self.env.reset(seed=seed, options=options)
        else:
            observation, info = self.play(0)  # [atari-3] a no-op, and the next life is there
        for action in self.opening:  # [atari-4]
            observation, opening_info = self.play(action)
            info = {**info, **opening_info}  # keeps the statistics of a game that ended in it
        self.game_over = False
        self.lives = self.env.unwrapped.ale.lives()
        return observation, info

    def play(self, action: int):
        """Takes an action before the agent's first. A game that ends by it, which is rare, makes way for the next."""
        observation, _, terminated, truncated, info = self.env.step(action)
        if terminated or truncated:
            observation, _ = self.env.reset()
        return observation, info

    def step(self, action: int):
        observation, reward, terminated, truncated, info = self.env.step(action)
        self.game_over = terminated or truncated
        lives_before = self.lives
        self.lives = self.env.unwrapped.ale.lives()
        life_lost = 0 < self.lives < lives_before  # to learn from whole games, write False; reset presses FIRE
        return observation, reward, terminated or life_lost, truncated, info  # [atari-3]


class VectorEnv:
    """N environments, stepped together. One whose episode ends is reset in the same step.
    An observation is the last 4 frames."""

    def __init__(self, args: Args, num_envs: int, render_mode: str | None = None):
        self.make = partial(make_vector, args, num_envs, partial(make_env, args, render_mode))
        self.vector = self.make()
        self.is_new = True
        frame_space = self.vector.single_observation_space
        self.observation_space = gym.spaces.Box(0, 255, (*frame_space.shape, 4), frame_space.dtype)
        self.action_space = self.vector.single_action_space

    def reset(self, seeds: list[int]) -> np.ndarray:
        """Starts episodes in N new environments: used ones may reset differently. Returns (N, 84, 84, 4)."""
        if not self.is_new:
            statistics = self.state_dict()
            self.close()
            self.vector = self.make()
            self.load_state_dict(statistics)
        self.is_new = False
        frames, _ = self.vector.reset(seed=seeds)
        self.stack = np.repeat(frames[..., None], 4, axis=-1)
        return self.stack

    def step(self, actions: np.ndarray):
        """Takes actions (N,). Returns observations (N, 84, 84, 4); rewards (N,); dones (N,), 1 at lost lives, true ends
        and time limits; the last observation of each episode that a time limit cut, by environment; and the return "r"
        and length "l" of each game that ended."""
        env_actions = (self.action_space.start + actions).astype(self.action_space.dtype)
        frames, rewards, dones, last_frames, episodes = step_vector(self.vector, env_actions)
        before = self.stack[..., 1:]
        self.stack = np.concatenate([before, frames[..., None]], axis=-1)  # [atari-7]
        truncated_obs = {}
        for i, last_frame in last_frames.items():
            truncated_obs[i] = np.concatenate([before[i], last_frame[..., None]], axis=-1)
        self.stack[dones == 1] = frames[dones == 1][..., None]
        return self.stack, rewards, dones, truncated_obs, episodes

    def state_dict(self) -> dict:
        return get_statistics(self.vector)  # of NormalizeObservation and NormalizeReward, not of other wrappers

    def load_state_dict(self, state: dict) -> None:
        set_statistics(self.vector, state)

    def close(self) -> None:
        close_vector(self.vector)


# ---------------------------------------------------------------------------------------------------------------- Agent
def layer_init(layer: nn.Module, gain: float = math.sqrt(2)) -> nn.Module:
    nn.init.orthogonal_(layer.weight, gain)  # [core-2]
    nn.init.zeros_(layer.bias)
    return layer


class Agent(nn.Module):
    def __init__(self, envs: VectorEnv, args: Args):
        super().__init__()
        self.num_actions = int(envs.action_space.n)
        self.network = nn.Sequential(  # [atari-8]
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
        images = obs.movedim(-1, 1).to(self.dtype) / self.obs_max  # [atari-9]
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
    obs: torch.Tensor  # (B, 84, 84, 4), bytes; in a minibatch M samples in place of B
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
            next_obs = envs.reset(torch.randint(2**31, (N,)).tolist())  # new environments lose what set_attr changed
            next_done = np.ones(N, np.float32)
        noise = agent.draw_noise(T, N).to(device)
        with torch.inference_mode(), torch.autocast(device.type, enabled=False):  # keeps forward's bf16 weights cached
            for step in range(T):  # [core-1] obs and dones carry on from one rollout to the next
                obs[step] = torch.from_numpy(next_obs)  # change it in VectorEnv or Agent: --evaluate uses only these
                dones[step] = next_done
                actions[step], log_probs[step], acted_values[step] = agent.get_action_and_value(obs[step], noise[step])
                next_obs, rewards[step], next_done, truncated_obs, episodes = envs.step(actions[step].cpu().numpy())
                run.note(rewards[step], episodes)
                if args.bootstrap_truncated and truncated_obs:  # [plus-1]
                    last_obs = torch.from_numpy(np.stack(list(truncated_obs.values()))).to(device)
                    rewards[step, list(truncated_obs)] += args.gamma * agent.get_value(last_obs).cpu().numpy()
            next_value = agent.get_value(torch.from_numpy(next_obs).to(device)).cpu().numpy()

        # Advantages
        values = acted_values.cpu().numpy()
        advantages, returns = compute_gae(rewards, values, dones, next_value, next_done, args.gamma, args.gae_lambda)
        b_obs = obs.flatten(0, 1)  # (T, N, 84, 84, 4) to (B, 84, 84, 4)
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

import cv2
import filelock  # comes with torch
import imageio.v2 as imageio
from torch.utils.tensorboard import SummaryWriter

ACTION_SPACES = (gym.spaces.Discrete,)  # that this script can act in
PICTURES = True  # whether this script learns from pictures
GRAY = (130, 130, 130)
GREEN = (90, 210, 90)
RED = (240, 90, 90)
ORANGE = (190, 100, 20)
DARK = (80, 80, 95)
BLUE = (90, 200, 250)
LONGEST_EPISODE = 30_000  # steps after which --evaluate and videos cut an episode off
RANGES = {  # smallest and largest value of options, also of the other scripts'
    **dict.fromkeys(("total_timesteps", "num_envs", "num_steps", "num_minibatches"), (1, sys.maxsize)),
    **dict.fromkeys(("update_epochs", "episodes", "checkpoints"), (1, sys.maxsize)),
    **dict.fromkeys(("num_threads", "env_threads"), (1, 1024)),
    **dict.fromkeys(("gamma", "gae_lambda", "reward_gamma"), (0, 1)),
    **dict.fromkeys(("learning_rate", "clip_coef", "ent_coef", "vf_coef"), (0, sys.maxsize)),
    "max_grad_norm": (0, math.inf),
    **dict.fromkeys(("target_kl", "seed"), (0, sys.maxsize)),
}


# ----------------------------------------------------------------------------------------------- Environments
def make_vector(args: Args, num_envs: int, make_one) -> gym.vector.VectorEnv:
    """N environments in turn, or each in a process of its own. One alone never needs a process."""
    same_step = gym.vector.AutoresetMode.SAME_STEP
    if args.vectorization == "async" and num_envs > 1:
        import atexit

        seeds = np.random.randint(2**31, size=num_envs).tolist()  # of the environments' own random and np.random
        makers = [partial(make_in_process, make_one, os.getpid(), seed) for seed in seeds]
        vector = gym.vector.AsyncVectorEnv(makers, autoreset_mode=same_step)
        atexit.register(close_vector, vector)  # Python's own exit waits for processes that nobody has closed
        return vector
    return gym.vector.SyncVectorEnv([make_one] * num_envs, autoreset_mode=same_step)


def make_in_process(make_one, trainer: int, seed: int) -> gym.Env:
    """An environment whose process ignores stop signals: the trainer's process tells it when to end."""
    if os.getpid() != trainer:  # Gymnasium also makes one in the trainer's process, to see its spaces
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        seed_others(seed)
    env = make_one()
    return gym.wrappers.TransformObservation(env, np.copy, env.observation_space)  # some reuse their array


def step_vector(vector: gym.vector.VectorEnv, actions: np.ndarray):
    """Steps each environment with its action, of N. Where an episode ends, the next one begins in the same step.

    Returns observations (N, ...); rewards (N,); dones (N,), 1 at true ends and time limits; the last observation
    of each episode that a time limit cut, by environment; and "r" and "l" of each episode that ended, its return
    and length. Two ways that do the same: change rewards or observations by wrappers in make_env, not here.
    """
    if isinstance(vector, gym.vector.AsyncVectorEnv):
        observations, rewards, terminated, truncated, infos = vector.step(actions)
        truncated_obs = {i: infos["final_obs"][i] for i in np.flatnonzero(truncated & ~terminated)}
        dones = (terminated | truncated).astype(np.float32)
        return observations, rewards, dones, truncated_obs, ended_episodes(infos)
    observations = []  # a loop of our own, since SyncVectorEnv.step takes twice the time
    rewards = np.zeros(vector.num_envs)
    dones = np.zeros(vector.num_envs, np.float32)
    truncated_obs = {}
    episodes = []
    for i, env in enumerate(vector.envs):
        observation, rewards[i], terminated, truncated, info = env.step(actions[i])
        if terminated or truncated:
            dones[i] = 1.0
            if not terminated:
                truncated_obs[i] = np.array(observation)  # a copy, since some environments reuse theirs
            observation, reset_info = env.reset()
            for ended in (info, reset_info):  # a game can end inside reset, too
                if "episode" in ended:
                    episode = ended.pop("episode")
                    episodes.append({"r": float(episode["r"]), "l": int(episode["l"])})
        observations.append(observation)
    return np.array(observations), rewards, dones, truncated_obs, episodes


def close_vector(vector: gym.vector.VectorEnv) -> None:
    """Closes the environments, and ends their processes even if one hangs or has died."""
    if not isinstance(vector, gym.vector.AsyncVectorEnv):
        vector.close()
        return
    for pipe in vector.parent_pipes:
        with suppress(OSError, AttributeError):  # of a process that has died
            pipe.send(("close", None))  # as Gymnasium does, whose own close may wait forever
    for process in vector.processes:
        process.join(timeout=5)
        process.kill()
    vector.closed = True


def ended_episodes(infos: dict) -> list[dict]:
    """Return "r" and length "l" of each episode that ended in a step, from a vector environment's infos."""
    episodes = []
    for info in (infos.get("final_info", {}), infos):  # in infos itself if a game ended inside reset
        for i in np.flatnonzero(info.get("_episode", [])):
            episodes.append({"r": float(info["episode"]["r"][i]), "l": int(info["episode"]["l"][i])})
    return episodes


def get_statistics(vector: gym.vector.VectorEnv) -> dict:
    """What NormalizeObservation and NormalizeReward, if make_env uses them, know in each environment."""
    statistics = {}
    for name in ("obs_rms", "return_rms"):
        if all(vector.call("has_wrapper_attr", name)):
            statistics[name] = [(x.mean.tolist(), x.var.tolist(), x.count) for x in vector.get_attr(name)]
    return statistics


def set_statistics(vector: gym.vector.VectorEnv, statistics: dict) -> None:
    """Gives wrappers their statistics back; environments that weren't saved get those of the first."""
    for name, saved in statistics.items():
        running = list(vector.get_attr(name))
        for i, x in enumerate(running):
            mean, var, x.count = saved[i] if i < len(saved) else saved[0]
            x.mean = np.array(mean, x.mean.dtype)
            x.var = np.array(var, x.var.dtype)
        vector.set_attr(name, running)


def return_so_far(envs: VectorEnv) -> float:
    """The return of the first environment's episode until now."""
    return float(envs.vector.get_attr("episode_returns")[0])


def freeze_statistics(vector: gym.vector.VectorEnv) -> None:
    """Lets NormalizeObservation and NormalizeReward use what they have learned, and learn nothing more."""
    for env in vector.envs:
        while isinstance(env, gym.Wrapper):
            if isinstance(env, gym.wrappers.NormalizeObservation | gym.wrappers.NormalizeReward):
                env.update_running_mean = False
            env = env.env


def picture(envs: VectorEnv) -> np.ndarray:
    """The first environment as it looks now, (height, width, 3) bytes."""
    pixels = envs.vector.render()[0]
    if pixels is None:
        raise ValueError('draws no picture; omit --capture-video, or use load(run, render_mode="rgb_array")')
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape[2:] != (3,):
        kind = f"{pixels.dtype} {pixels.shape}" if isinstance(pixels, np.ndarray) else type(pixels).__name__
        raise ValueError(f"render() returned {kind}, not uint8 (height, width, 3); omit --capture-video")
    return pixels


def is_picture(space: gym.Space) -> bool:
    """Whether observations are pictures: bytes, from 32 x 32 pixels on, gray or in color."""
    is_bytes = isinstance(space, gym.spaces.Box) and space.dtype == np.uint8 and np.all(space.high == 255)
    return bool(is_bytes and len(space.shape) in (2, 3) and min(space.shape[:2]) >= 32)


def parts(space: gym.Space, name: str = "") -> list[tuple[str, gym.Space]]:
    """What a Dict or Tuple holds, also inside others, by keys such as ['a'][0]; of another space, itself."""
    if isinstance(space, gym.spaces.Dict):
        items = list(space.items())
    elif isinstance(space, gym.spaces.Tuple):
        items = list(enumerate(space))
    else:
        return [(name, space)]
    found = []
    for key, inner in items:
        found += parts(inner, f"{name}[{key!r}]")
    return found


def check_spaces(env: gym.Env) -> None:
    """Raises ValueError with what would help, if this script can't learn in the environment's spaces."""
    observation_space = env.observation_space
    action_space = env.action_space
    pictures = is_picture(observation_space)
    observes = type(observation_space).__name__
    fitting = None  # the script for these spaces
    if isinstance(action_space, gym.spaces.Discrete):
        fitting = "ppo_atari.py" if pictures else "ppo.py"
    elif isinstance(action_space, gym.spaces.Box) and not pictures:
        fitting = "ppo_continuous_action.py"
    elif isinstance(action_space, gym.spaces.MultiDiscrete | gym.spaces.MultiBinary) and not pictures:
        fitting = "ppo_multidiscrete.py"
    numbers = gym.spaces.Box | gym.spaces.Discrete | gym.spaces.MultiDiscrete | gym.spaces.MultiBinary
    for name, part in parts(observation_space):
        if not isinstance(part, numbers):
            kind = f"{type(part).__name__} in {observes}{name}"
            raise ValueError(f"observes {kind}, no numbers; a wrapper in make_env must drop it")
        if is_picture(part) and part is not observation_space:
            raise ValueError(f"observes a picture in {observes}{name}; a wrapper in make_env must return one")
    if not pictures and observation_space.shape is not None and len(observation_space.shape) == 3:
        first, height, width = observation_space.shape
        last = gym.spaces.Box(0, 255, (height, width, first), np.uint8)
        if first in (1, 3, 4) and observation_space.dtype == np.uint8 and is_picture(last):
            shapes = f"{observation_space.shape}, not {last.shape}"
            raise ValueError(f"observes pictures {shapes}; a wrapper in make_env must move the channels")
    if isinstance(action_space, gym.spaces.Box) and action_space.dtype not in (np.float32, np.float64):
        raise ValueError(f"has Box actions of {action_space.dtype}; a wrapper in make_env must take floats instead")
    if not isinstance(action_space, ACTION_SPACES) or pictures != PICTURES:
        what = f"pictures {observation_space.shape}" if pictures else f"{observes} of numbers"
        advice = f"use {fitting}" if fitting else "none here learns it; a wrapper in make_env must change it"
        raise ValueError(f"observes {what} and has {type(action_space).__name__} actions; {advice}")


# ------------------------------------------------------------------------------------------------- Evaluation
def draw_policy(game, frames, names: list[str], probabilities, chosen: int, history: list) -> np.ndarray:
    """The game's picture, (height, width, 3), 420 pixels high, and beside it from top to bottom: score and lives; the
    frames, (84, 84, 4), that the network sees, the newest on the right; a bar for each action, as long as it is
    probable, the chosen one in color; the values of the last 100 decisions, with a dot at each reward and a line at
    each lost life. `history` holds (value, score, lives) of the episode's decisions so far.
    """
    width = round(420 * game.shape[1] / game.shape[0] / 2) * 2  # even, as video formats ask
    game = cv2.resize(game, (width, 420), interpolation=cv2.INTER_NEAREST)
    panel = np.full((420, 400, 3), 24, np.uint8)
    values = np.array([decision[0] for decision in history[-100:]], float)
    scores = np.array([decision[1] for decision in history[-100:]], float)
    lives = np.array([decision[2] for decision in history[-100:]], float)
    write(panel, f"score {scores[-1]:g}    lives {lives[-1]:g}    decision {len(history)}", 12, 20)
    write(panel, "what the network sees", 258, 20, GRAY)
    for i in range(4):
        panel[32:116, 12 + 97 * i : 96 + 97 * i] = frames[:, :, i, None]

    columns = math.ceil(len(names) / 9)
    rows = math.ceil(len(names) / columns)
    wide = 382 // columns
    high = min(43, 174 // rows)
    for i, (name, probability) in enumerate(zip(names, probabilities)):
        x = 12 + wide * (i // rows)
        y = 130 + high * (i % rows)
        length = max(3, round((wide - 6) * probability))
        panel[y : y + high - 2, x : x + wide - 6] = 40
        panel[y : y + high - 2, x : x + length] = ORANGE if i == chosen else DARK
        write(panel, name, x + 6, y + high // 2 + 3)
        write(panel, f"{probability:.1%}", x + wide - 54, y + high // 2 + 3)

    write(panel, f"value {values[-1]:.2f}   from {values.min():.2f} to {values.max():.2f}", 12, 332)
    write(panel, "reward", 270, 332, GREEN)
    write(panel, "lost life", 330, 332, GRAY)
    spread = max(values.max() - values.min(), 1e-8)
    xs = (12 + 3.8 * np.arange(len(values))).astype(int)
    ys = (408 - 60 * (values - values.min()) / spread).astype(int)
    for i in np.flatnonzero(np.diff(lives) < 0) + 1:
        cv2.line(panel, (xs[i], 344), (xs[i], 412), GRAY)
    cv2.polylines(panel, [np.stack([xs, ys], axis=1)], False, BLUE, 1, cv2.LINE_AA)
    for i in np.flatnonzero(np.diff(scores)) + 1:
        color = GREEN if scores[i] > scores[i - 1] else RED
        cv2.circle(panel, (xs[i], ys[i]), 3, color, cv2.FILLED, cv2.LINE_AA)
    return np.concatenate([game, panel], axis=1)


def write(panel: np.ndarray, text: str, x: int, y: int, color=(235, 235, 235)) -> None:
    cv2.putText(panel, text, (x, y), cv2.FONT_HERSHEY_SIMPLEX, 0.4, color, 1, cv2.LINE_AA)


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

    def picture(self, obs: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """What a video shows of a decision: the game, and beside it the policy, (420, width, 3) bytes."""
        with torch.no_grad():
            log_probs, value = self.agent(torch.from_numpy(obs).to(self.device))
        env = self.envs.vector.envs[0]
        names = [f"action {i}" for i in range(log_probs.shape[1])]
        lives = 0
        if isinstance(env.unwrapped, ale_py.AtariEnv):
            names = env.unwrapped.get_action_meanings()
            lives = env.unwrapped.ale.lives()
        self.history.append((value.item(), env.get_wrapper_attr("episode_returns"), lives))
        probabilities = log_probs[0].exp().tolist()
        return draw_policy(picture(self.envs), obs[0], names, probabilities, int(actions[0]), self.history)

    def play(self, seed: int, writer=None) -> dict:
        """Plays an episode, with pictures for a video's writer. Returns its return "r" and length "l"."""
        obs = self.reset(seed)
        self.history = []  # value, score and lives at each decision of the episode
        for _ in range(LONGEST_EPISODE):
            actions = self.act(obs)
            if writer:
                writer.append_data(self.picture(obs, actions))
            obs, _, _, _, episodes = self.step(actions)
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
    report_sticky_actions(args)
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


def report_sticky_actions(args: Args) -> None:
    """Says that the game repeats actions at random, as ALE/...-v5 do: that makes returns lower than without."""
    options = json.loads(args.env_kwargs)
    env_id = args.env_id.rpartition(":")[2]  # without the name of its module
    if env_id in gym.registry:
        options = {**gym.spec(env_id).kwargs, **options}
    sticky = options.get("repeat_action_probability", 0)
    if sticky > 0:
        print(f"sticky actions: with probability {sticky} the game repeats its last action instead of the agent's")


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
    """Makes an environment, takes a step and draws a picture. Raises what goes wrong."""
    envs = VectorEnv(args, 1, "rgb_array" if args.capture_video else None)
    env = envs.vector.envs[0]
    observation, _ = env.reset(seed=0)
    declared = env.observation_space.shape
    if np.shape(observation) != declared:
        raise ValueError(f"declares observations of {declared}, and returned {np.shape(observation)}")
    if args.capture_video:
        picture(envs)
    reward = env.step(env.action_space.sample())[1]
    if np.ndim(reward) != 0:
        raise ValueError(f"returned {np.size(reward)} rewards as array; a wrapper in make_env must add them")
    while isinstance(env, gym.Wrapper):
        space = env.env.observation_space
        is_compound = isinstance(space, gym.spaces.Dict | gym.spaces.Tuple)
        if is_compound and isinstance(env, gym.wrappers.FlattenObservation):
            print(f"observations: {type(space).__name__}, flattened to {declared[0]} numbers")
        env = env.env
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
    run = Run(args, checkpoint)
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
