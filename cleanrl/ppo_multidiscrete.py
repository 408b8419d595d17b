# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "gymnasium[classic-control]==1.4.0",
#   "imageio[ffmpeg]==2.38.1",
#   "numpy==2.4.6",
#   "tensorboard==2.21.0",
#   "torch==2.13.0",
#   "tyro==1.0.17",
# ]
# ///
"""PPO for MultiDiscrete, MultiBinary or Discrete actions, with masks of the invalid ones.

    python cleanrl/ppo_multidiscrete.py --env-id CartPole-v1
    python cleanrl/ppo_multidiscrete.py --resume runs/RUN
    python cleanrl/ppo_multidiscrete.py --evaluate runs/RUN

Parent: ppo.py. Changes: (1) ComponentActions makes every such action a row of components, counted from 0; (2) the
policy is a softmax for each component, independent of the others; (3) actions that the environment's mask forbids have
no probability, in the rollout, the update and the evaluation. With a Discrete space and no mask it learns as ppo.py
does, bit for bit.
Details: core-1 to core-13, multi-1, aux-1 (--anneal-clip), aux-3 (--target-kl), aux-4, plus-1 (--bootstrap-truncated).
"""

import math
import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read by CUDA; without it, sums do not repeat bit for bit
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # read when numpy loads; threads only slow down products this small
os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pygame draws the videos without a display

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
    episodes: int = 10  # episodes that --evaluate plays
    # environment
    env_id: str = "CartPole-v1"  # Gymnasium id of the environment
    total_timesteps: int = 500_000  # steps in the run, over all environments
    num_envs: int = 4  # environments that are stepped together
    num_steps: int = 128  # steps of each environment in a rollout
    # PPO
    learning_rate: float = 2.5e-4  # step size of Adam
    anneal_lr: bool = True  # let the learning rate fall linearly
    gamma: float = 0.99  # discount factor
    gae_lambda: float = 0.95  # lambda of generalised advantage estimation
    num_minibatches: int = 4  # minibatches in an epoch
    update_epochs: int = 4  # passes over each rollout
    norm_adv: bool = True  # normalise the advantages in each minibatch
    clip_coef: float = 0.2  # clip range of the probability ratio, and of the value with --clip-vloss
    anneal_clip: bool = False  # let the clip range fall linearly
    clip_vloss: bool = True  # clip the value loss
    ent_coef: float = 0.01  # weight of the entropy bonus
    vf_coef: float = 0.5  # weight of the value loss
    max_grad_norm: float = 0.5  # limit of the gradient's norm, over all parameters together
    target_kl: float | None = None  # end an update after an epoch whose mean approximate KL is above this, say 0.015
    bootstrap_truncated: bool = False  # add gamma times the last observation's value at a time limit; off as published
    # speed
    torch_deterministic: bool = True  # on a GPU, only kernels that repeat bit for bit (on a CPU all do)
    cuda: bool = False  # train on the GPU; off, since layers of 64 units are faster on one CPU core
    num_threads: int = 1  # CPU threads of torch; layers this small gain hardly anything by more

    @property
    def batch_size(self) -> int:
        return self.num_envs * self.num_steps

    @property
    def num_updates(self) -> int:
        return self.total_timesteps // self.batch_size


# ---------------------------------------------------------------------------------------------------------- Environment
def make_env(env_id: str, render_mode: str | None = None) -> gym.Env:
    """One environment whose observations are vectors: images are flattened, a Discrete becomes a one-hot vector."""
    env = gym.make(env_id, disable_env_checker=True, **({"render_mode": render_mode} if render_mode else {}))
    if not isinstance(env.observation_space, gym.spaces.Box) or len(env.observation_space.shape) != 1:
        env = gym.wrappers.FlattenObservation(env)
    if not isinstance(env.action_space, (gym.spaces.MultiDiscrete, gym.spaces.MultiBinary, gym.spaces.Discrete)):
        raise ValueError(f"acts by {env.action_space}; use ppo_continuous_action.py, or wrap it into MultiDiscrete")
    return ComponentActions(env)


class ComponentActions(gym.Wrapper):
    """Takes actions as rows of C components, each counted from 0, whatever the shape and the start of the environment's
    own action space. `mask` says which values are allowed at the latest observation: (sum(nvec),), by component.

    An environment offers masks of 0 and 1 as info["action_mask"], of reset and step, or by a method action_masks():
    sum(nvec) values by component, or a row for each component. An observation without a mask allows everything.
    """

    def __init__(self, env: gym.Env):
        super().__init__(env)
        self.space, self.start = env.action_space, getattr(env.action_space, "start", 0)
        binary = isinstance(self.space, gym.spaces.MultiBinary)
        values = 2 if binary else self.space.nvec if self.space.shape else self.space.n
        self.action_space = gym.spaces.MultiDiscrete(np.full(self.space.shape, values, np.int64).ravel())
        self.nvec = self.action_space.nvec.tolist()  # (C,)
        self.offsets = np.cumsum(self.nvec) - self.nvec  # (C,) where each component begins in a mask
        self.everything = np.ones(sum(self.nvec), bool)
        offered = env.has_wrapper_attr("action_masks")
        self.action_masks = env.get_wrapper_attr("action_masks") if offered else lambda: None
        if not callable(self.action_masks):
            kind = type(self.action_masks).__name__
            raise ValueError(f"its action_masks is of type {kind}; make it a method that returns the mask")

    def reset(self, **options):
        observation, info = self.env.reset(**options)
        self.mask = self.read_mask(info)
        return observation, info

    def step(self, action: np.ndarray):
        """Takes an action (C,)."""
        shape = self.space.shape  # () is Discrete's, which takes a number
        action = (action.reshape(shape) + self.start).astype(self.space.dtype) if shape else int(action[0] + self.start)
        observation, reward, terminated, truncated, info = self.env.step(action)
        if not (terminated or truncated):  # an episode's last may allow nothing, and nothing is chosen there
            self.mask = self.read_mask(info)
        return observation, reward, terminated, truncated, info

    def sample(self) -> np.ndarray:
        """An action (C,) that the mask allows."""
        return np.array([part.argmax() for part in np.split(self.mask, self.offsets[1:])])

    def read_mask(self, info: dict) -> np.ndarray:
        """The mask of an observation, (sum(nvec),); ends the program with one line if it can't be one."""
        mask, size = info.get("action_mask"), len(self.everything)
        if mask is None and (mask := self.action_masks()) is None:
            return self.everything
        try:
            rows = [np.ravel(row) for row in ([mask] if isinstance(mask, np.ndarray) and mask.ndim == 1 else mask)]
            flat = np.concatenate(rows)
        except (TypeError, ValueError):
            rows, flat = [], np.zeros(0)
        wrong = None
        if [len(row) for row in rows] not in ([size], [1] * size, self.nvec) or not ((flat == 0) | (flat == 1)).all():
            wrong = f"is not {size} values of 0 or 1, nor a row of them for each component of {self.nvec}"
        elif not (allows := np.logical_or.reduceat(flat, self.offsets)).all():
            wrong = f"allows no value of component {allows.argmin()}; it must allow one, or end the episode"
        if wrong:
            fail(f"--env-id {self.unwrapped.spec.id}: the environment's action mask {mask} {wrong}", status=1)
        return flat.astype(bool)


class VectorEnv:
    """N environments stepped in turn: gymnasium's SyncVectorEnv without its overhead of copies and merged infos."""

    def __init__(self, args: Args, render_mode: str | None = None):
        self.make = partial(make_env, args.env_id, render_mode)
        self.envs = [env := self.make()]  # for its spaces; reset makes those that are stepped
        self.observation_space, self.action_space, self.metadata = env.observation_space, env.action_space, env.metadata

    def reset(self, seeds: list[int]) -> np.ndarray:
        """Makes N environments, since a used one need not begin like a new one. Returns observations (N, obs_dim)."""
        for env in self.envs:
            env.close()
        self.envs = [self.make() for _ in seeds]
        self.returns, self.lengths = [0.0] * len(seeds), [0] * len(seeds)
        self.action_space.sample = self.envs[0].sample  # for a first step before there is a policy
        return np.array([env.reset(seed=seed)[0] for env, seed in zip(self.envs, seeds)])

    def step(self, actions):
        """Steps each environment by its action. An episode that ends makes way for the next in the same step.

        Returns observations (N, obs_dim); rewards (N,); dones (N,), at true ends and time limits alike; the last
        observation of each episode that a time limit cut, by environment; (return, length) of each that ended.
        """
        observations, truncated_obs, episodes = [], {}, []
        rewards, dones = np.zeros(len(self.envs)), np.zeros(len(self.envs), np.float32)
        for i, (env, action) in enumerate(zip(self.envs, actions)):
            observation, reward, terminated, truncated, _ = env.step(action)
            rewards[i] = reward
            self.returns[i] += float(reward)
            self.lengths[i] += 1
            if terminated or truncated:
                if not terminated:
                    truncated_obs[i] = np.array(observation)  # a copy, some environments reuse theirs
                episodes.append((self.returns[i], self.lengths[i]))
                self.returns[i], self.lengths[i], dones[i] = 0.0, 0, 1.0
                observation, _ = env.reset()
            observations.append(observation)
        return np.array(observations), rewards, dones, truncated_obs, episodes

    def render(self) -> np.ndarray:
        """The first environment's picture, (height, width, 3)."""
        return self.envs[0].render()


# ---------------------------------------------------------------------------------------------------------------- Agent
def mlp(inputs: int, outputs: int, gain: float) -> nn.Sequential:
    layers = [nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs)]
    for layer, layer_gain in zip(layers[::2], (math.sqrt(2), math.sqrt(2), gain)):
        nn.init.orthogonal_(layer.weight, layer_gain)  # [core-2]
        nn.init.zeros_(layer.bias)
    return nn.Sequential(*layers)


class Agent(nn.Module):
    def __init__(self, obs_dim: int, nvec: list[int]):
        super().__init__()
        self.critic = mlp(obs_dim, 1, gain=1.0)  # [core-13]
        self.actor = mlp(obs_dim, sum(nvec), gain=0.01)  # [multi-1] one head
        sizes, value = torch.tensor(nvec).unsqueeze(-1), torch.arange(max(nvec))  # (C, 1), (K,) with K = max(nvec)
        # (C, K) where each component's values are among the logits; a shorter component repeats its last one
        self.register_buffer("columns", sizes.cumsum(0) - sizes + value.minimum(sizes - 1), persistent=False)
        self.register_buffer("exists", value < sizes, persistent=False)  # (C, K) False at the repetitions

    def get_value(self, obs: torch.Tensor) -> torch.Tensor:
        return self.critic(obs).squeeze(-1)

    def get_action_and_value(
        self, obs: torch.Tensor, action: torch.Tensor | None = None, mask: torch.Tensor | None = None
    ):
        """Action (M, C), drawn if None; log-prob, entropy, value, (M,) each, at observations (M, obs_dim) whose masks
        are (M, sum(nvec)), or allow everything if None."""
        allowed = self.exists if mask is None else mask[:, self.columns] & self.exists
        logits = torch.where(allowed, self.actor(obs)[:, self.columns], -1e8)  # (M, C, K) [aux-4]
        log_probs = logits.log_softmax(-1)
        if action is None:
            action = log_probs.exp().flatten(0, 1).multinomial(1).view(len(obs), -1)  # for other programs
        log_prob = log_probs.gather(-1, action.unsqueeze(-1)).squeeze(-1).sum(-1)  # [multi-1]
        entropy = -(log_probs.exp() * log_probs).sum(-1).sum(-1)  # exp(-1e8) is 0, so masked terms are too
        return action, log_prob, entropy, self.get_value(obs)


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
    torch.set_num_threads(args.num_threads)
    torch.use_deterministic_algorithms(args.cuda and args.torch_deterministic)
    torch.manual_seed(args.seed)
    rng = np.random.default_rng(np.random.SeedSequence(args.seed, spawn_key=(2,)))  # (0, …) envs, (1,) evaluation
    device = torch.device("cuda" if args.cuda else "cpu")

    envs = VectorEnv(args)
    obs_dim, nvec = envs.observation_space.shape[0], envs.action_space.nvec.tolist()
    agent = Agent(obs_dim, nvec).to(device)
    parameters = flatten_parameters(agent)  # one vector, of which the layers keep views
    optimizer = torch.optim.Adam([parameters], lr=args.learning_rate, eps=1e-5, fused=True)  # [core-3]
    run.keep(model=agent, optimizer=optimizer, rng=rng, torch_rng=torch.default_generator)  # in checkpoints
    run.play = partial(evaluate, agent, args)  # for --evaluate and --capture-video

    # T steps of N environments are a rollout of B = T · N samples, M samples a minibatch; C = len(nvec) components
    T, N, M = args.num_steps, args.num_envs, args.batch_size // args.num_minibatches
    obs = np.zeros((T, N, obs_dim), np.float32)
    actions = np.zeros((T, N, len(nvec)), np.int64)
    masks = np.zeros((T, N, sum(nvec)), bool)
    rewards, dones = np.zeros((T, N), np.float32), np.zeros((T, N), np.float32)
    for update, fresh_episodes in run.updates():
        # Anneal
        remaining = 1.0 - (update - 1) / args.num_updates  # 1 in the first update, 1 / num_updates in the last
        learning_rate = args.learning_rate * (remaining if args.anneal_lr else 1.0)  # [core-4]
        clip_coef = args.clip_coef * (remaining if args.anneal_clip else 1.0)  # [aux-1]
        optimizer.param_groups[0]["lr"] = learning_rate

        # Collect
        if fresh_episodes:  # after a checkpoint too: whoever resumes has no environments to go on with
            seeds = np.random.SeedSequence(args.seed, spawn_key=(0, update - 1)).generate_state(N)
            next_obs, next_done = envs.reset(seeds.tolist()), np.ones(N, np.float32)
        policy = numpy_forward(agent.actor)  # the actor as a function of numpy arrays
        columns = agent.columns.cpu().numpy()
        noise = rng.gumbel(size=(T, N, sum(nvec))).astype(np.float32)
        global_step, truncated = (update - 1) * args.batch_size, []
        for step in range(T):  # [core-1] obs and dones carry on from one rollout to the next
            obs[step], dones[step] = next_obs, next_done
            masks[step] = [env.mask for env in envs.envs]
            logits = np.where(masks[step], policy(obs[step]), -1e8)  # (N, sum(nvec)) [aux-4]
            actions[step] = (logits + noise[step])[:, columns].argmax(-1)  # a draw from each softmax (Gumbel-max)
            next_obs, rewards[step], next_done, truncated_obs, ended = envs.step(actions[step])
            global_step += N
            truncated += [(step, env, last_obs) for env, last_obs in truncated_obs.items()]
            run.note(global_step, ended)

        # Values, log-probs and advantages, of the whole rollout at once
        b_obs = torch.from_numpy(obs).to(device).flatten(0, 1)  # (B, obs_dim)
        b_actions = torch.from_numpy(actions).to(device).flatten(0, 1)  # (B, C)
        b_masks = torch.from_numpy(masks).to(device).flatten(0, 1)  # (B, sum(nvec))
        with torch.no_grad():
            _, b_log_probs, _, b_values = agent.get_action_and_value(b_obs, b_actions, b_masks)
            next_value = agent.get_value(torch.tensor(next_obs, dtype=torch.float32, device=device)).cpu().numpy()
            if args.bootstrap_truncated and truncated:  # [plus-1]
                steps, indices, last_obs = zip(*truncated)
                last_values = agent.get_value(torch.tensor(np.array(last_obs), dtype=torch.float32, device=device))
                rewards[steps, indices] += args.gamma * last_values.cpu().numpy()
        values = b_values.cpu().numpy().reshape(T, N)
        advantages, returns = compute_gae(rewards, values, dones, next_value, next_done, args.gamma, args.gae_lambda)
        b_advantages, b_returns = (torch.from_numpy(x).to(device).flatten() for x in (advantages, returns))

        # Epochs of minibatches
        debug = []
        for _ in range(args.update_epochs):
            for mb in torch.from_numpy(rng.permutation(args.batch_size)).to(device).split(M):  # [core-6]
                _, log_prob, entropy, value = agent.get_action_and_value(b_obs[mb], b_actions[mb], b_masks[mb])
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
def numpy_forward(network: nn.Sequential):
    """The network as a function of numpy rows: for a few rows, torch's overhead is several times the arithmetic."""
    kinds = [(type(x), len([*x.parameters(recurse=False)])) for x in (network, *network.children())]
    if kinds != [(nn.Sequential, 0), *[(nn.Linear, 2), (nn.Tanh, 0)] * (len(kinds) // 2 - 1), (nn.Linear, 2)]:  # other
        return lambda x: network(torch.from_numpy(x).to(next(network.parameters()).device)).detach().cpu().numpy()
    *hidden, (weight, bias) = ([x.detach().cpu().numpy().T for x in layer.parameters()] for layer in network[::2])

    def forward(x: np.ndarray) -> np.ndarray:
        for hidden_weight, hidden_bias in hidden:
            x = np.tanh(x.dot(hidden_weight) + hidden_bias)
        return x.dot(weight) + bias

    return forward


def evaluate(agent: Agent, args: Args, episodes: int, seed: int, video: Path | None = None):
    """Plays episodes with actions drawn from the policy, on environments and random numbers of its own, such that
    agent, seed and `episodes` determine them. Yields (return, length) of each; `video` is an mp4 file for the first."""
    policy, envs = numpy_forward(agent.actor), VectorEnv(args, "rgb_array" if video else None)
    *seeds, noise_seed = np.random.SeedSequence(seed, spawn_key=(1,)).generate_state(episodes + 1).tolist()
    rng = np.random.default_rng(noise_seed)
    pictures = imageio.get_writer(video, fps=envs.metadata.get("render_fps", 30), macro_block_size=2) if video else None
    for episode, episode_seed in enumerate(seeds):
        observations, ended = envs.reset([episode_seed]), []
        while not ended:
            if video and episode == 0:
                pictures.append_data(envs.render())
            logits = np.where(envs.envs[0].mask, policy(observations.astype(np.float32)), -1e8)  # (1, sum(nvec))
            actions = (logits + rng.gumbel(size=logits.shape))[:, agent.columns.cpu().numpy()].argmax(-1)
            observations, _, _, _, ended = envs.step(actions)
        yield ended[0]
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
    run = Run(args)
    try:
        with run.resources:  # files, signal handlers and tracker are given back however the training ends
            train(run.args, run)
    except (OSError, *NO_MEMORY) as error:  # a full disk, say
        hint = f"; what was saved is whole, go on by --resume {run.folder}" * bool(run.checkpoint and not args.evaluate)
        fail(f"{run.folder or 'runs'}: {error}{hint}", status=1 if run.folder else 2)
    return None if args.evaluate else run.folder


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
