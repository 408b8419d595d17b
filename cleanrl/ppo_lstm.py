# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "gymnasium[classic-control]>=1.1.1",
#   "imageio[ffmpeg]>=2.34",
#   "numpy>=1.26.4",
#   "tensorboard>=2.16.2",
#   "torch>=2.6",
#   "tyro>=0.9.2",
# ]
# ///
"""PPO with a memory, an LSTM, for environments that observe numbers and have Discrete actions.

    python cleanrl/ppo_lstm.py --env-id CartPole-v1
    python cleanrl/ppo_lstm.py --resume runs/RUN
    python cleanrl/ppo_lstm.py --evaluate runs/RUN

Parent: ppo.py. Changes: (1) the policy has an LSTM, whose state is zero when an episode begins and goes on from step to
step, in evaluation too; (2) the critic reads the LSTM's outputs beside the observation, but its loss doesn't change the
LSTM; (3) its loss is in units of a scale, the size of the newest rollout's returns; (4) a minibatch is made of whole
environments in time order, and learning runs the LSTM over them again; (5) 8 environments, a learning rate of 1e-3.
Details: core-1 to core-13, lstm-1 to lstm-5, aux-1 (--anneal-clip), aux-3 (--target-kl), plus-1
(--bootstrap-truncated).
"""

import json
import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

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
    episodes: int = 10  # episodes that --evaluate plays
    longest_episode: int = 30_000  # steps after which an episode of --evaluate or of a video is cut
    deterministic: bool = False  # let --evaluate take the most probable actions instead of drawing them
    debug: bool = False  # show the traceback of a mistake, too
    # environment
    env_id: str = "CartPole-v1"  # Gymnasium id of the environment
    env_kwargs: str = "{}"  # arguments of the environment as JSON, say '{"sutton_barto_reward": true}'
    total_timesteps: int | float = 500_000  # environment steps in total; 1e6 works too
    num_envs: int = 8  # environments that are stepped together
    num_steps: int = 128  # steps of each environment in a rollout
    # PPO
    hidden_size: int = 64  # size of the LSTM's h and c, what the agent remembers
    learning_rate: float = 1e-3  # step size of Adam
    anneal_lr: bool = True  # anneal the learning rate linearly to 0
    gamma: float = 0.99  # discount factor
    gae_lambda: float = 0.95  # lambda of generalized advantage estimation
    num_minibatches: int = 4  # minibatches in an epoch
    update_epochs: int = 4  # passes over each rollout
    norm_adv: bool = True  # normalize the advantages in each minibatch
    clip_coef: float = 0.2  # clip range of the probability ratio, and of the value with --clip-vloss
    anneal_clip: bool = False  # anneal the clip range linearly to 0
    clip_vloss: bool = True  # clip the value loss
    ent_coef: float = 0.01  # weight of the entropy bonus
    vf_coef: float = 0.5  # weight of the value loss
    max_grad_norm: float = 0.5  # limit of the gradient's norm, over all parameters together
    target_kl: float | None = None  # end an update after an epoch whose mean approximate KL exceeds this, e.g. 0.015
    bootstrap_truncated: bool = False  # at a time limit, add gamma times the last observation's value to the reward
    # speed
    torch_deterministic: bool = True  # on a GPU, use only kernels that repeat bit for bit
    device: Literal["auto", "cpu", "cuda", "mps"] = "cpu"  # small layers are faster on a CPU; auto: cuda if available
    num_threads: int | None = 1  # CPU threads of torch; small layers don't gain from more than 1; None: torch's default
    vectorization: Literal["sync", "async"] = "sync"  # async: each environment in a process, for slow simulators

    @property
    def batch_size(self) -> int:
        return self.num_envs * self.num_steps

    @property
    def num_updates(self) -> int:
        return int(self.total_timesteps // self.batch_size)


# ---------------------------------------------------------------------------------------------------------- Environment
INFOS = ()  # names of infos that an edit of VectorEnv reads, such as ("success",); all others are dropped


def make_env(args: Args, render_mode: str | None = None) -> gym.Env:
    """One environment whose observations are vectors of numbers; a Dict or Tuple of numbers is flattened to one."""
    options = json.loads(args.env_kwargs)
    if render_mode:  # not every environment takes it
        options["render_mode"] = render_mode
    env = gym.make(args.env_id, disable_env_checker=True, **options)
    env = gym.wrappers.RecordEpisodeStatistics(env, stats_key="recorded")  # the logged return; wrap rewards after it
    check_spaces(env)  # your wrappers that change spaces go above here; those that end episodes, above the statistics
    if env.observation_space != gym.spaces.flatten_space(env.observation_space):
        env = gym.wrappers.FlattenObservation(env)
    return env


class VectorEnv:
    """N environments, stepped together. One whose episode ends is reset in the same step."""

    def __init__(self, args: Args, num_envs: int, render_mode: str | None = None):
        self.vector = make_vector(args, num_envs, partial(make_env, args, render_mode))
        self.observation_space = self.vector.single_observation_space
        self.action_space = self.vector.single_action_space

    def reset(self, seeds: list[int]) -> np.ndarray:
        """Starts an episode in each environment. Returns observations (N, D), D numbers each."""
        observations, _ = self.vector.reset(seed=seeds)
        return observations.astype(np.float32)

    def step(self, actions: np.ndarray):
        """Takes actions (N,). Returns observations (N, D); rewards (N,); dones (N,), 1 at true ends and time limits;
        the last observation of each episode that a time limit cut, by environment; and the return "r" and length "l" of
        each episode that ended."""
        env_actions = (self.action_space.start + actions).astype(self.action_space.dtype)
        observations, rewards, terminated, truncated, infos = self.vector.step(env_actions)
        dones = (terminated | truncated).astype(np.float32)
        truncated_obs = {}
        if "final_obs" in infos:  # an episode ended
            for i in np.flatnonzero(truncated & ~terminated):
                truncated_obs[i] = infos["final_obs"][i].astype(np.float32)
        return observations.astype(np.float32), rewards, dones, truncated_obs, get_episodes(infos)

    def state_dict(self) -> dict:
        return get_wrapper_statistics(self.vector)

    def load_state_dict(self, state: dict) -> None:
        set_wrapper_statistics(self.vector, state)

    def close(self) -> None:
        close_vector(self.vector)


# ---------------------------------------------------------------------------------------------------------------- Agent
def layer_init(layer: nn.Module, gain: float = math.sqrt(2)) -> nn.Module:
    nn.init.orthogonal_(layer.weight, gain)  # [core-2] orthogonal weights
    nn.init.zeros_(layer.bias)
    return layer


class Agent(nn.Module):
    def __init__(self, envs: VectorEnv, args: Args):
        super().__init__()
        obs_dim = envs.observation_space.shape[0]
        self.num_actions = int(envs.action_space.n)
        self.network = nn.Sequential(layer_init(nn.Linear(obs_dim, 64)), nn.Tanh())
        self.lstm = nn.LSTM(64, args.hidden_size)  # [lstm-1] orthogonal weights of the LSTM
        for parameter in self.lstm.parameters():
            if parameter.ndim == 2:
                nn.init.orthogonal_(parameter)
            else:
                nn.init.zeros_(parameter)
        self.actor = layer_init(nn.Linear(args.hidden_size, self.num_actions), gain=0.01)
        first = layer_init(nn.Linear(obs_dim + args.hidden_size, 64))
        second = layer_init(nn.Linear(64, 64))
        last = layer_init(nn.Linear(64, 1), gain=1.0)
        self.critic = nn.Sequential(first, nn.Tanh(), second, nn.Tanh(), last)  # [core-13] two networks
        self.register_buffer("scale", torch.ones(()))  # of the values: the critic predicts multiples of it

    def initial_state(self, num_envs: int) -> torch.Tensor:
        """The LSTM's h and c before an episode, (2, N, H). Where one begins, step and unroll make them zero, too."""
        return torch.zeros(2, num_envs, self.lstm.hidden_size, device=self.actor.weight.device)  # [lstm-2] zero state

    def step(self, obs: torch.Tensor, lstm_state: torch.Tensor, dones: torch.Tensor):
        """The LSTM's outputs, (N, H), at one step of N environments, and its new state, (2, N, H). dones, (N,), are 1
        where an episode begins."""
        lstm_state = lstm_state * (1 - dones)[:, None]  # [lstm-3] zero where an episode begins
        outputs, (h, c) = self.lstm(self.network(obs)[None], (lstm_state[0:1], lstm_state[1:2]))
        return outputs[0], torch.cat([h, c])

    def unroll(self, obs: torch.Tensor, lstm_state: torch.Tensor, dones: torch.Tensor) -> torch.Tensor:
        """The LSTM's outputs, (M, H), at M / N steps of N environments: all steps of the first environment, then all
        of the second, and so on. lstm_state, (2, N, H), is the state before them.

        What one step after the other would give, mostly faster: the LSTM runs over all episodes side by side, padded
        to the length of the longest. One long episode beside many short ones costs time and memory."""
        steps = len(obs) // lstm_state.shape[1]
        is_first = dones.clone()
        is_first[::steps] = 1  # of an episode, or of what these steps hold of it
        firsts = is_first.nonzero().flatten()  # (E,), of E episodes
        states = lstm_state.new_zeros(2, len(firsts), lstm_state.shape[2])  # [lstm-3] zero where an episode begins
        states[:, firsts % steps == 0] = lstm_state * (1 - dones[::steps])[:, None]  # others go on
        episodes = torch.arange(len(obs), device=obs.device).tensor_split(firsts[1:].tolist())
        rows = nn.utils.rnn.pad_sequence(episodes, padding_value=-1)  # (steps of the longest, E), of obs; -1 is padding
        outputs, _ = self.lstm(self.network(obs)[rows], (states[0:1], states[1:2]))
        return outputs.transpose(0, 1)[rows.T >= 0]  # without the padding, episode after episode

    def forward(self, obs: torch.Tensor, hidden: torch.Tensor):
        """Log-probs of all A actions, (M, A), and values, (M,), at observations, (M, D), and the LSTM's outputs there,
        (M, H). This is the policy: acting, learning and evaluation all go through here."""
        seen = torch.cat([obs, hidden.detach()], -1)  # detached: the value's loss doesn't change the LSTM
        return self.actor(hidden).log_softmax(-1), self.critic(seen).squeeze(-1) * self.scale

    @torch.no_grad()
    def set_scale(self, scale: torch.Tensor) -> None:
        """Changes the scale, and the critic's last layer so that all values stay what they are (van Hasselt et al.
        2016, PopArt, here without a shift)."""
        for parameter in self.critic[-1].parameters():
            parameter *= self.scale / scale
        self.scale.copy_(scale)

    def get_value(self, obs: torch.Tensor, lstm_state: torch.Tensor, dones: torch.Tensor) -> torch.Tensor:
        hidden, _ = self.step(obs, lstm_state, dones)
        _, value = self(obs, hidden)
        return value

    def draw_noise(self, *shape: int) -> torch.Tensor:
        """Standard Gumbel noise, (*shape, A). One call draws it for a whole rollout, which is faster than per step."""
        return -torch.empty(*shape, self.num_actions).exponential_().log()

    def get_action_and_value(
        self, obs: torch.Tensor, noise: torch.Tensor, lstm_state: torch.Tensor, dones: torch.Tensor
    ):
        """Actions drawn from the policy by the Gumbel-max trick (as ppo.py explains), their log-probs and the values,
        (M,) each, and the LSTM's new state. With zeros as noise, it is the most probable action."""
        hidden, lstm_state = self.step(obs, lstm_state, dones)
        log_probs, value = self(obs, hidden)
        actions = (log_probs + noise).argmax(-1)
        log_prob = log_probs.gather(-1, actions.unsqueeze(-1)).squeeze(-1)
        return actions, log_prob, value, lstm_state

    def evaluate_actions(self, obs: torch.Tensor, actions: torch.Tensor, lstm_state: torch.Tensor, dones: torch.Tensor):
        """Log-probs of the actions, the policy's entropy and the values at the observations, (M,) each."""
        log_probs, value = self(obs, self.unroll(obs, lstm_state, dones))
        log_prob = log_probs.gather(-1, actions.unsqueeze(-1)).squeeze(-1)
        entropy = -(log_probs.exp() * log_probs).sum(-1)
        return log_prob, entropy, value


# -------------------------------------------------------------------------------------------------- Advantages and loss
class Batch(NamedTuple):
    obs: torch.Tensor  # (T, N, D); in a minibatch M samples in place of (T, N)
    actions: torch.Tensor  # (T, N) like all that follow
    dones: torch.Tensor
    log_probs: torch.Tensor  # of the actions, under the policy that drew them
    values: torch.Tensor  # as the critic predicted them then, divided by the scale
    advantages: torch.Tensor
    returns: torch.Tensor  # divided by the scale


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
    for t in reversed(range(len(rewards))):  # [core-5] GAE
        advantage = deltas[t] + decays[t] * advantage
        advantages[t] = advantage
    return advantages, advantages + values


def ppo_loss(log_prob, entropy, value, mb: Batch, clip_coef: float, args: Args):
    """Loss of a minibatch (Schulman et al. 2017, equation 9; the clipped value loss is openai/baselines').

    log_prob, entropy, value: (M,), of the networks as they are now. Returns the loss and a dict of metrics, whose means
    over the minibatches of an update are logged.
    """
    advantages = mb.advantages
    if args.norm_adv:  # [core-7] normalized advantages
        advantages = (advantages - advantages.mean()) / (advantages.std(correction=0) + 1e-8)
    log_ratio = log_prob - mb.log_probs
    ratio = log_ratio.exp()
    clipped_ratio = ratio.clamp(1 - clip_coef, 1 + clip_coef)
    policy_loss = -torch.min(advantages * ratio, advantages * clipped_ratio).mean()  # [core-8] clipped policy loss
    squared_error = (value - mb.returns).square()
    if args.clip_vloss:  # [core-9] clipped value loss
        clipped_value = mb.values + (value - mb.values).clamp(-clip_coef, clip_coef)
        squared_error = torch.max(squared_error, (clipped_value - mb.returns).square())
    value_loss = 0.5 * squared_error.mean()
    loss = policy_loss - args.ent_coef * entropy.mean() + args.vf_coef * value_loss  # [core-10] one loss, entropy bonus
    with torch.no_grad():  # [core-12] what to watch
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
    optimizer = torch.optim.Adam(parameters, lr=args.learning_rate, eps=1e-5, fused=True)  # [core-3] Adam's epsilon
    initial_rates = [group["lr"] for group in optimizer.param_groups]
    run.keep(model=agent, optimizer=optimizer, envs=envs)  # add what else changes: --resume loads it here

    # T steps of N environments are a rollout, collected on the device. A minibatch is all steps of some environments,
    # in order: learning rebuilds the LSTM's state at a step from the steps before it, and from the one at the rollout's
    # start. That one is approximate: it stays as older weights made it, and no gradient goes back beyond it.
    T, N = args.num_steps, args.num_envs
    envs_per_minibatch = N // args.num_minibatches
    obs = torch.zeros((T, N, *envs.observation_space.shape), device=device)
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
        torch.manual_seed(np.random.SeedSequence([args.seed, update]).generate_state(1).item())
        if fresh_episodes:  # when the run starts or resumes; with --exact-resume after each checkpoint, too
            next_obs = envs.reset(torch.randint(2**31, (N,)).tolist())
            next_done = np.ones(N, np.float32)
            lstm_state = agent.initial_state(N)  # (2, N, H)
        first_state = lstm_state.clone()  # learning starts from it; cloned, since autograd rejects inference tensors
        noise = agent.draw_noise(T, N).to(device)
        with torch.inference_mode():
            for step in range(T):  # [core-1] rollouts: obs and dones carry on from one to the next
                obs[step] = torch.from_numpy(next_obs)  # change obs in VectorEnv or Agent: --evaluate uses only these
                dones[step] = next_done
                done = torch.from_numpy(next_done).to(device)
                acted = agent.get_action_and_value(obs[step], noise[step], lstm_state, done)
                actions[step], log_probs[step], acted_values[step], lstm_state = acted
                next_obs, rewards[step], next_done, truncated_obs, episodes = envs.step(actions[step].cpu().numpy())
                run.note(next_obs, rewards[step], episodes)
                if args.bootstrap_truncated and truncated_obs:  # [plus-1] time limits
                    last_obs = torch.from_numpy(np.stack(list(truncated_obs.values()))).to(device)
                    last_state = lstm_state[:, list(truncated_obs)]
                    last_value = agent.get_value(last_obs, last_state, torch.zeros(len(last_obs), device=device))
                    rewards[step, list(truncated_obs)] += args.gamma * last_value.cpu().numpy()
            done = torch.from_numpy(next_done).to(device)
            next_value = agent.get_value(torch.from_numpy(next_obs).to(device), lstm_state, done).cpu().numpy()

        # Advantages
        values = acted_values.cpu().numpy()
        advantages, returns = compute_gae(rewards, values, dones, next_value, next_done, args.gamma, args.gae_lambda)
        b_dones = torch.from_numpy(dones).to(device)
        b_advantages = torch.from_numpy(advantages).to(device)
        b_returns = torch.from_numpy(returns).to(device)
        # With values and returns of about 1, whatever the rewards, a value loss doesn't drown the policy's in the
        # gradient's norm, and one range fits both clips
        agent.set_scale(b_returns.square().mean().sqrt().clamp(min=1e-4))
        b_values = acted_values / agent.scale
        batch = Batch(obs, actions, b_dones, log_probs, b_values, b_advantages, b_returns / agent.scale)

        # Learn, in epochs of minibatches
        logged = []  # metrics of each minibatch
        for _ in range(args.update_epochs):
            epoch_start = len(logged)
            for indices in torch.randperm(N, device=device).split(envs_per_minibatch):  # [core-6] shuffled minibatches
                mb = Batch(*(x.transpose(0, 1)[indices].flatten(0, 1) for x in batch))  # [lstm-4] in order of time
                mb_state = first_state.index_select(1, indices)  # [lstm-5] from here, states are rebuilt
                log_prob, entropy, value = agent.evaluate_actions(mb.obs, mb.actions, mb_state, mb.dones)
                loss, mb_metrics = ppo_loss(log_prob, entropy, value / agent.scale, mb, clip_coef, args)
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(parameters, args.max_grad_norm)  # [core-11] gradient's norm
                optimizer.step()
                # Metrics may be numbers, or tensors with a gradient
                logged.append({name: torch.as_tensor(x, device=device).detach() for name, x in mb_metrics.items()})
            epoch_kl = torch.stack([x["losses/approx_kl"] for x in logged[epoch_start:]]).mean()
            if args.target_kl is not None and epoch_kl > args.target_kl:  # [aux-3] early stop
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
from contextlib import ExitStack, suppress
from dataclasses import asdict, replace

import filelock  # comes with torch
import imageio.v2 as imageio
from torch.utils.tensorboard import SummaryWriter

with suppress(ImportError):  # torch's CPU build has none
    import triton  # noqa: F401  torch.optim would load it after Mesa, MuJoCo's renderer, and crash

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # CUDA needs it to repeat bit for bit
os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pygame draws the videos without a display

ACTION_SPACES = (gym.spaces.Discrete,)  # that this script can act in
PICTURES = False  # whether it learns from pictures
LONG_EPISODE = 5_000  # steps after which play says that an episode is long
LONGEST_UNSAVED = 600  # seconds of training after which an interim checkpoint is saved
ENTRIES = (  # of a checkpoint, besides the states of kept objects
    "script args update global_step seconds is_interim built recent_returns columns log_sizes path".split()
)
RANGES = [  # names of options, and their smallest and largest value
    (["total_timesteps", "num_envs", "num_steps", "num_minibatches", "update_epochs"], 1, sys.maxsize),
    (["num_threads", "checkpoints", "episodes", "longest_episode", "hidden_size"], 1, sys.maxsize),
    (["seed"], 0, 2**32 - 1),  # numpy's largest
    (["learning_rate", "clip_coef", "ent_coef", "vf_coef", "target_kl"], 0, sys.maxsize),
    (["gamma", "gae_lambda"], 0, 1),
    (["max_grad_norm"], 0, math.inf),
]


class UserError(ValueError):
    """A mistake that the user can fix: printed in one line, with exit status 2."""


# ----------------------------------------------------------------------------------------------- Environments
class OneOfMany(gym.Wrapper):
    """One of a vector's environments. The vector merges infos, so what no script reads is dropped here."""

    def __init__(self, make_one, trainer: int, seed: int):
        if os.getpid() != trainer:  # in a process of its own, which the trainer ends
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            random.seed(seed)
            np.random.seed(seed)
        env = make_one()
        if len(env.observation_space.shape or ()) == 1 and env.observation_space.dtype.kind != "f":
            env = gym.wrappers.FlattenObservation(env)  # casts: whole numbers come in any type
        super().__init__(env)

    def reset(self, **arguments):
        observation, info = self.env.reset(**arguments)
        return observation, self.get_used(info)

    def step(self, action):
        observation, reward, terminated, truncated, info = self.env.step(action)
        if terminated or truncated:
            observation = np.array(observation)  # some environments reuse their array, in reset too
        return observation, reward, terminated, truncated, self.get_used(info)

    def get_used(self, info: dict) -> dict:
        used = {name: info[name] for name in INFOS if name in info}
        if "recorded" in info:  # the episode ended
            used["episode"] = {"r": info["recorded"]["r"], "l": info["recorded"]["l"]}
        return used


def make_vector(args: Args, num_envs: int, make_one) -> gym.vector.VectorEnv:
    """N environments in turn, or each in a process of its own. A single one stays in this process."""
    seeds = np.random.randint(2**31, size=num_envs).tolist()  # of the processes' random and np.random
    makers = [partial(OneOfMany, make_one, os.getpid(), seed) for seed in seeds]
    same_step = gym.vector.AutoresetMode.SAME_STEP
    if args.vectorization == "sync" or num_envs == 1:
        return gym.vector.SyncVectorEnv(makers, copy=False, autoreset_mode=same_step)  # VectorEnv copies
    vector = gym.vector.AsyncVectorEnv(makers, autoreset_mode=same_step)
    atexit.register(close_vector, vector)  # Python's own exit would wait for the processes
    return vector


def close_vector(vector: gym.vector.VectorEnv) -> None:
    """Closes the environments. Their processes are killed: one that hangs can't be asked to end."""
    if isinstance(vector, gym.vector.AsyncVectorEnv):
        for process in vector.processes:
            process.kill()
        vector.closed = True
    with suppress(SystemExit):  # a package may call quit()
        vector.close()


def get_episodes(infos: dict) -> list[dict]:
    """The return "r" and length "l" of each episode that ended in a step, from the vector's infos."""
    episodes = []
    for info in (infos.get("final_info", {}), infos):  # in infos itself if one ended inside reset
        if "_episode" in info:
            for i in np.flatnonzero(info["_episode"]):
                episodes.append({"r": float(info["episode"]["r"][i]), "l": int(info["episode"]["l"][i])})
    return episodes


def get_wrapper_statistics(vector: gym.vector.VectorEnv) -> dict:
    """What NormalizeObservation and NormalizeReward, if make_env uses them, know in each environment."""
    state = {}
    for name in ("obs_rms", "return_rms"):
        if all(vector.call("has_wrapper_attr", name)):
            state[name] = [(x.mean.tolist(), x.var.tolist(), x.count) for x in vector.get_attr(name)]
    return state


def set_wrapper_statistics(vector: gym.vector.VectorEnv, state: dict) -> None:
    for name, saved in state.items():
        running = list(vector.get_attr(name))
        for i, x in enumerate(running):
            mean, var, x.count = saved[i % len(saved)]  # there may be more environments now
            x.mean = np.array(mean, x.mean.dtype)
            x.var = np.array(var, x.var.dtype)
        vector.set_attr(name, running)


def check_observation(observation, space: gym.Space) -> None:
    """Raises UserError if it isn't finite numbers of the space's type and shape. Bounds don't matter."""
    if isinstance(space, gym.spaces.Dict | gym.spaces.Tuple):
        for name in space if isinstance(space, gym.spaces.Dict) else range(len(space)):
            check_observation(observation[name], space[name])
        return
    if space.shape is None:
        raise UserError(f"observes {type(space).__name__}, and scripts learn from numbers only")
    came = np.asarray(observation)
    cast = came.astype(space.dtype)
    is_rounded = cast.dtype.kind != "f" and np.any(cast != came)
    if came.shape != space.shape or is_rounded or not np.isfinite(cast).all():
        text = f"observes {came.dtype} {came.shape} from {came.min()} to {came.max()}"
        raise UserError(f"{text}, but its observation_space says {space.dtype} {space.shape}")


def take_first_step(envs: VectorEnv) -> None:
    """Raises UserError if the one environment observes other than it says, or its reward is not a number."""
    env = envs.vector.envs[0]
    while isinstance(env, gym.Wrapper):
        is_first = isinstance(env, gym.wrappers.RecordEpisodeStatistics)  # of make_env's wrappers
        env = env.env
        if is_first:
            break
    observation, _ = env.reset(seed=0)
    check_observation(observation, env.observation_space)
    observation, reward, _, _, _ = env.step(env.action_space.sample())
    check_observation(observation, env.observation_space)
    if np.ndim(reward) > 0 or not hasattr(reward, "__float__"):
        raise UserError(f"its reward is {reward!r}, which is not a number")
    envs.reset([0])
    envs.step(np.zeros((1, *envs.action_space.shape), np.float32))


def check_spaces(env: gym.Env) -> None:
    """Raises UserError if this script can't learn in the environment's spaces."""
    space = env.observation_space
    is_bytes = isinstance(space, gym.spaces.Box) and space.dtype == np.uint8
    is_picture = is_bytes and len(space.shape) in (2, 3) and sorted(space.shape)[-2] >= 32  # shorter side
    if is_picture and len(space.shape) == 3 and space.shape[2] not in (1, 3):
        raise UserError(f"observes pictures {space.shape}; ppo_atari.py needs 1 or 3 channels, and these last")
    if isinstance(env.action_space, (gym.spaces.Tuple, gym.spaces.Dict)):
        raise UserError(f"no script takes {type(env.action_space).__name__} actions; make them one space by a wrapper")
    if not isinstance(env.action_space, ACTION_SPACES) or is_picture != PICTURES:
        observes = f"pictures {space.shape}" if is_picture else "no pictures"
        hint = "use ppo_atari.py for pictures, else ppo.py for Discrete actions, ppo_multidiscrete.py for "
        hint += "MultiDiscrete and MultiBinary, ppo_continuous_action.py for Box; see docs/can-i-use-it.md"
        raise UserError(f"observes {observes} and has {type(env.action_space).__name__} actions; {hint}")


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
        self.lstm_state = self.agent.initial_state(1)

    def reset(self, seeds: list[int]) -> np.ndarray:
        self.lstm_state = self.agent.initial_state(1)
        return super().reset(seeds)

    def step(self, actions: np.ndarray):
        result = super().step(actions)
        if result[2].any():  # dones
            self.lstm_state = self.agent.initial_state(1)
        return result

    def act(self, obs: np.ndarray) -> np.ndarray:
        """Actions (1, ...) at observations (1, ...), for step."""
        noise = self.agent.draw_noise(1).to(self.args.device)
        if self.args.deterministic:
            noise = torch.zeros_like(noise)
        with torch.no_grad():
            obs = torch.from_numpy(obs).to(self.args.device)
            dones = torch.zeros(1, device=self.args.device)  # reset and step empty the memory
            acted = self.agent.get_action_and_value(obs, noise, self.lstm_state, dones)
        actions, _, _, self.lstm_state = acted
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
    return float(player.vector.get_attr("episode_returns")[0])  # RecordEpisodeStatistics'


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
        command = shlex.join(["python", Path(sys.argv[0]).as_posix()])
        folder = shlex.quote(self.folder.as_posix())
        if self.stop_signal and self.update < self.args.num_updates:
            self.write_end("stopped")
            print(f"stopped; go on with: {command} --resume {folder}")
            sys.exit(128 + self.stop_signal)
        self.write_end("whole" if self.update >= self.args.num_updates else "break")
        print(f"play it: {command} --evaluate {folder}")

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
        "command": shlex.join(["python", *sys.argv]),
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
    if args.num_envs % args.num_minibatches != 0:
        text = f"--num-envs {args.num_envs}: must be a multiple of --num-minibatches {args.num_minibatches}"
        raise UserError(f"{text}, which are made of whole environments")
    if args.num_updates < 1:
        raise UserError(f"{batch}: must be at most --total-timesteps {args.total_timesteps}")
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not available.get(args.device, True):
        raise UserError(f"--device {args.device}: torch {torch.__version__} finds none; use --device cpu")
    if args.track and importlib.util.find_spec("wandb") is None:
        raise UserError("--track: needs another package: pip install wandb")
    sys.path.append(os.getcwd())  # --env-id mine:Mine-v0 finds mine.py where you start
    registered = set(gym.registry)
    hint = ""
    try:
        envs = VectorEnv(args, 1, "rgb_array" if args.capture_video else None)
        hint = "gymnasium.utils.env_checker may say more; "
        take_first_step(envs)
        if args.capture_video and envs.vector.render()[0] is None:
            raise UserError("draws no picture; use --no-capture-video")
        envs.close()
    except (Exception, SystemExit) as error:  # an unknown id, a missing package, no display, a call of quit()
        text = str(error).rstrip(".")
        if not isinstance(error, UserError):
            if isinstance(error, gym.error.UnregisteredEnv):
                ids = sorted(set(gym.registry) - registered)
                hint = "ids of other packages are written module:Name-v0; for Atari games see ppo_atari.py; "
                if ":" in args.env_id:  # the module is there, but perhaps for gym, which Gymnasium replaced
                    hint = f"its module registers {', '.join(ids) or 'nothing; see docs/other-environments.md'}; "
            elif args.capture_video:
                hint += "if it can't draw, add --no-capture-video; "
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
    check_arguments(args)
    args = replace(args, total_timesteps=int(args.total_timesteps))
    if args.device == "auto":
        args.device = "cuda" if torch.cuda.is_available() else "cpu"
    random.seed(args.seed)  # some environments draw from Python's and numpy's own generators
    np.random.seed(args.seed)
    torch.set_num_threads(args.num_threads or torch.get_num_threads())
    torch.use_deterministic_algorithms(args.device == "cuda" and args.torch_deterministic)
    torch.utils.deterministic.fill_uninitialized_memory = False  # it is for finding bugs, and takes time
    if args.evaluate is not None:
        without_exit(evaluate, checkpoint, args)
        return None
    if threading.current_thread() is not threading.main_thread():
        raise UserError("signals reach only the main thread; train there, or in a multiprocessing.Process")
    if checkpoint and "built" not in checkpoint:
        raise UserError("an older version began this run; go on with the copy of the script in its folder")
    if checkpoint and checkpoint["args"].batch_size != args.batch_size:
        raise UserError("--num-envs and --num-steps: their product, which counts updates, cannot change")
    if checkpoint and checkpoint["args"].env_id != args.env_id:
        text = f"--resume goes on with --env-id {checkpoint['args'].env_id}; for another one, start a run with"
        raise UserError(f"{text} load_checkpoint({args.resume!r})['model']: docs/make-it-your-own.md")
    run = Run(args, checkpoint)
    with run.closing:
        without_exit(train, args, run)
        run.finish()
    return run.folder


if __name__ == "__main__":
    try:
        main(*read_arguments())
    except KeyboardInterrupt:  # before a training or in an evaluation
        sys.exit(130)
    except (UserError, filelock.Timeout) as error:  # Timeout: another process trains in this folder
        if "--debug" in sys.argv:
            raise
        print(f"{Path(__file__).name}: error: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)
