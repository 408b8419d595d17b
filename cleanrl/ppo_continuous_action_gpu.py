# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "numpy>=1.26.4",
#   "tensorboard>=2.16.2",
#   "torch>=2.6",
#   "tyro>=0.9.2",
# ]
# ///
"""PPO for simulators that step thousands of environments on one device and return torch tensors. Experimental.

    python cleanrl/ppo_continuous_action_gpu.py --device cuda      # 4,096 pendulums; needs no simulator
    python cleanrl/ppo_continuous_action_gpu.py --device cuda --env-id my_file:MyEnvs
    python cleanrl/ppo_continuous_action_gpu.py --resume runs/RUN
    python cleanrl/ppo_continuous_action_gpu.py --evaluate runs/RUN

Parent: ppo_continuous_action.py. Changes: (1) environments take and return tensors on the device, and the script waits
for it only to log; (2) the agent normalizes observations, by statistics that change between updates, and rewards are
scaled after the rollout; (3) time limits are bootstrapped by default; (4) the learning rate can follow the policy's KL
divergence; (5) thousands of environments, short rollouts; no videos.
Details: core-1 to core-13, cont-1 to cont-9, aux-1 (--anneal-clip), aux-3 (--target-kl), plus-1 to plus-6.
"""

import importlib
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

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
    checkpoints: int | None = None  # checkpoints in a run, evenly spaced; by default 10, in short runs fewer
    exact_resume: bool = False  # start new episodes after each checkpoint, so that resuming is bit-exact
    resume: str | None = None  # run folder to continue from its last checkpoint
    evaluate: str | None = None  # run folder or checkpoint to evaluate instead of training
    episodes: int = 64  # episodes that --evaluate plays, all at once
    longest_episode: int = 30_000  # steps after which an episode of --evaluate is cut
    deterministic: bool = False  # let --evaluate take the most probable actions instead of drawing them
    debug: bool = False  # show the traceback of a mistake, too
    # environment
    env_id: str = "Pendulum"  # Pendulum, or your class: my_file:MyEnvs, or my_file:MyEnvs:TASK with a first argument
    env_kwargs: str = "{}"  # arguments of the environments as JSON, say '{"max_episode_steps": 100}'
    total_timesteps: int | float = 10_000_000  # environment steps in total; 1e7 works too
    num_envs: int = 4096  # environments that are stepped together
    num_steps: int = 24  # steps of each environment in a rollout
    stagger: bool = True  # start the first episodes at random ages, or all would reach their time limits together
    # PPO
    learning_rate: float = 1e-3  # step size of Adam
    anneal_lr: bool = True  # anneal the learning rate linearly to 0
    adaptive_kl: float | None = None  # replaces --anneal-lr: let the rate keep the KL divergence near this, say 0.01
    gamma: float = 0.99  # discount factor
    gae_lambda: float = 0.95  # lambda of generalized advantage estimation
    num_minibatches: int = 4  # minibatches in an epoch
    update_epochs: int = 5  # passes over each rollout
    norm_adv: Literal["minibatch", "rollout", "none"] = "minibatch"  # over what the advantages are normalized
    norm_obs: bool = True  # normalize observations by running statistics
    norm_reward: bool = True  # scale rewards by the running deviation of their discounted sums
    clip_coef: float = 0.2  # clip range of the probability ratio, and of the value with --clip-vloss
    anneal_clip: bool = False  # anneal the clip range linearly to 0
    clip_vloss: bool = True  # clip the value loss
    ent_coef: float = 0.0  # weight of the entropy bonus
    vf_coef: float = 0.5  # weight of the value loss
    max_grad_norm: float = 0.5  # limit of the gradient's norm, over all parameters together
    target_kl: float | None = None  # end an update after an epoch whose mean approximate KL exceeds this; slows a GPU
    time_limits: Literal["final", "before", "drop", "none"] = "final"  # after it: V(final_obs), V(obs), step dropped, 0
    # speed
    torch_deterministic: bool = True  # on a GPU, use only kernels that repeat bit for bit; in the simulator, too
    device: Literal["auto", "cpu", "cuda"] = "auto"  # where environments and networks are; auto: cuda if available
    num_threads: int | None = 1  # CPU threads of torch; None: torch's default

    @property
    def batch_size(self) -> int:
        return self.num_envs * self.num_steps

    @property
    def num_updates(self) -> int:
        return int(self.total_timesteps // self.batch_size)


# --------------------------------------------------------------------------------------------------------- Environments
# N environments on a device. They have obs_dim and action_dim, the columns D of observations and A of actions, and
#   reset(seed) -> observations (N, D)
#   step(actions (N, A)) -> observations (N, D), rewards (N,), terminated (N,), truncated (N,), final_obs (N, D) or None
# All are float32, but terminated and truncated, which are bool. Actions are not bounded. What ends is reset in the same
# step: its observation is the first of the next episode, and its row of final_obs the last of this one. In rows where
# nothing ended, final_obs equals observations. It is None if the simulator loses the last observations. Optional are
#   actor_columns, critic_columns: slices of the D columns, if policy and critic observe different things
#   ages (N,), the steps of the episodes so far, and max_episode_steps, for --stagger; and close()
def make_envs(args: Args, num_envs: int):
    """The simulator. This is the place to change for another one, if --env-id my_file:MyEnvs isn't enough."""
    options = json.loads(args.env_kwargs)
    if args.env_id == "Pendulum":
        return Pendulum(num_envs, args.device, **options)
    if ":" not in args.env_id:
        raise UserError("is neither Pendulum nor my_file:MyEnvs; docs/simulators.md has files for other simulators")
    module, name, *task = args.env_id.split(":", 2)
    return getattr(importlib.import_module(module), name)(num_envs, args.device, *task, **options)


class Pendulum:
    """Gymnasium's Pendulum-v1, many times at once."""

    obs_dim = 3
    action_dim = 1

    def __init__(self, num_envs: int, device: str, max_episode_steps: int = 200):
        self.num_envs = num_envs
        self.device = device
        self.max_episode_steps = max_episode_steps

    def draw_states(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Angles, 0 upright, and angular velocities at the start of an episode, (N,) each."""
        numbers = 2 * torch.rand(2, self.num_envs, device=self.device) - 1  # from torch's generator, which is seeded
        return math.pi * numbers[0], numbers[1]

    def observe(self) -> torch.Tensor:
        return torch.stack([self.angle.cos(), self.angle.sin(), self.velocity], dim=1)

    def reset(self, seed: int) -> torch.Tensor:
        self.angle, self.velocity = self.draw_states()
        self.ages = torch.zeros(self.num_envs, device=self.device, dtype=torch.int64)
        return self.observe()

    def step(self, actions: torch.Tensor):
        torque = actions[:, 0].clamp(-2.0, 2.0)  # [cont-5] clipped, but not in the loss
        from_upright = torch.remainder(self.angle + math.pi, 2 * math.pi) - math.pi
        rewards = -(from_upright.square() + 0.1 * self.velocity.square() + 0.001 * torque.square())
        self.velocity = (self.velocity + (15.0 * self.angle.sin() + 3.0 * torque) * 0.05).clamp(-8.0, 8.0)
        self.angle = self.angle + self.velocity * 0.05
        self.ages = self.ages + 1
        final_obs = self.observe()
        terminated = torch.zeros_like(rewards, dtype=torch.bool)
        truncated = self.ages >= self.max_episode_steps  # no `if truncated.any()`: the host would wait for the device
        first_angle, first_velocity = self.draw_states()
        self.angle = torch.where(truncated, first_angle, self.angle)
        self.velocity = torch.where(truncated, first_velocity, self.velocity)
        self.ages = torch.where(truncated, 0, self.ages)
        return self.observe(), rewards, terminated, truncated, final_obs


class RunningStatistics(nn.Module):
    """Mean and variance of all rows so far: of each batch in float32, merged in float64 (Chan et al. 1979)."""

    def __init__(self, shape: tuple[int, ...]):
        super().__init__()
        self.register_buffer("mean", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("var", torch.ones(shape, dtype=torch.float64))
        self.register_buffer("count", torch.tensor(1e-4, dtype=torch.float64))  # as in baselines

    def update(self, rows: torch.Tensor) -> None:
        """Takes in rows (n, *shape)."""
        n = len(rows)
        batch_var, batch_mean = torch.var_mean(rows, dim=0, correction=0)
        delta = batch_mean - self.mean
        total = self.count + n
        squares = self.var * self.count + batch_var * n + delta * delta * (self.count * n / total)
        self.mean.copy_(self.mean + delta * (n / total))
        self.var.copy_(squares / total)
        self.count.copy_(total)


class VectorEnv:
    """The simulator, with the returns and lengths of its episodes and the statistics that scale rewards."""

    def __init__(self, args: Args, num_envs: int):
        self.simulator = open_simulator(args, num_envs)  # make_envs, and whether it can do what the script needs
        self.num_envs = num_envs
        self.gamma = args.gamma
        self.stagger = args.stagger
        self.return_statistics = RunningStatistics(()).to(args.device)  # of the discounted sums of rewards

    def reset(self, seed: int) -> torch.Tensor:
        """Starts an episode in each environment. Returns observations (N, D), D numbers each."""
        obs = self.simulator.reset(seed)
        self.returns_and_lengths = torch.zeros(2, self.num_envs, device=obs.device)  # of the episodes so far
        self.discounted_returns = torch.zeros(self.num_envs, device=obs.device)
        if self.stagger and "ages" in dir(self.simulator):  # [plus-6] staggered; hasattr would hide a property's error
            self.simulator.ages = torch.randint_like(self.simulator.ages, self.simulator.max_episode_steps)
        return obs

    def step(self, actions: torch.Tensor):
        """Takes actions (N, A). Returns observations (N, D); rewards (N,); terminated (N,), true ends; truncated (N,),
        time limits; final_obs (N, D), what the step led to, also where an episode ended, or None; and episodes (2, N),
        returns and lengths of the episodes that ended, nan for the others."""
        obs, rewards, terminated, truncated, final_obs = self.simulator.step(actions)
        truncated = truncated & ~terminated  # a true end at the limit's step is a true end
        ended = terminated | truncated
        self.returns_and_lengths = self.returns_and_lengths + torch.stack([rewards, torch.ones_like(rewards)])
        episodes = self.returns_and_lengths.masked_fill(~ended, math.nan)
        self.returns_and_lengths = self.returns_and_lengths.masked_fill(ended, 0.0)
        return obs, rewards, terminated, truncated, final_obs, episodes

    def scale_rewards(self, rewards: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        """Scales the rewards (T, N) of a rollout; ends (T, N) is 1 where an episode ended, by time limits too."""
        sums = torch.empty_like(rewards)
        for t in range(len(rewards)):
            sums[t] = self.gamma * self.discounted_returns + rewards[t]
            self.discounted_returns = sums[t] * (1.0 - ends[t])
        self.return_statistics.update(sums.flatten())  # [plus-3] of the whole rollout first
        scale = torch.rsqrt(self.return_statistics.var + 1e-8).float()  # [cont-8] scaled rewards
        return (rewards * scale).clamp(-10.0, 10.0)  # [cont-9] clipped rewards

    def state_dict(self) -> dict:
        return self.return_statistics.state_dict()

    def load_state_dict(self, state: dict) -> None:
        self.return_statistics.load_state_dict(state)

    def close(self) -> None:
        if hasattr(self.simulator, "close"):
            self.simulator.close()


# ---------------------------------------------------------------------------------------------------------------- Agent
def mlp(inputs: int, outputs: int, gain: float) -> nn.Sequential:
    layers = [nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs)]
    for layer, layer_gain in zip(layers[::2], (math.sqrt(2), math.sqrt(2), gain)):
        nn.init.orthogonal_(layer.weight, layer_gain)  # [core-2] orthogonal weights
        nn.init.zeros_(layer.bias)
    return nn.Sequential(*layers)


class Agent(nn.Module):
    def __init__(self, envs: VectorEnv, args: Args):
        super().__init__()
        simulator = envs.simulator
        self.actor_columns = getattr(simulator, "actor_columns", slice(None))
        self.critic_columns = getattr(simulator, "critic_columns", slice(None))
        columns = range(simulator.obs_dim)
        self.action_dim = simulator.action_dim
        self.norm_obs = args.norm_obs
        self.obs_statistics = RunningStatistics((simulator.obs_dim,))  # with the weights in checkpoints
        self.critic = mlp(len(columns[self.critic_columns]), 1, gain=1.0)  # [core-13] [cont-4] two networks
        self.actor = mlp(len(columns[self.actor_columns]), self.action_dim, gain=0.01)
        self.log_std = nn.Parameter(torch.zeros(self.action_dim))  # [cont-2] one deviation for all observations

    def normalize(self, obs: torch.Tensor) -> torch.Tensor:
        """Observations (M, D) with about mean 0 and variance 1 in each column."""
        if not self.norm_obs:
            return obs
        scale = torch.rsqrt(self.obs_statistics.var + 1e-8).float()
        scaled = (obs - self.obs_statistics.mean.float()) * scale  # [cont-6] normalized observations
        return scaled.clamp(-10.0, 10.0)  # [cont-7] clipped observations

    def get_value(self, obs: torch.Tensor) -> torch.Tensor:
        return self.critic(self.normalize(obs)[:, self.critic_columns]).squeeze(-1)

    def get_mean_and_std(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Means (M, A) and standard deviations (A,) of the actions at observations (M, D). This is the policy: acting,
        learning and evaluation all go through here. Deviations that depend on the observation, (M, A), work too."""
        mean = self.actor(self.normalize(obs)[:, self.actor_columns])
        return mean, self.log_std.exp()

    def draw_noise(self, *shape: int) -> torch.Tensor:
        """Standard normal noise, (*shape, A). One call draws it for a whole rollout, which is faster than per step."""
        return torch.randn(*shape, self.action_dim, device=self.log_std.device)

    def get_action_and_value(self, obs: torch.Tensor, noise: torch.Tensor):
        """Actions drawn from the policy with standard normal noise, (M, A) each, their log-probs and the values, (M,)
        each. With --deterministic, the noise is zeros."""
        mean, std = self.get_mean_and_std(obs)
        actions = mean + std * noise
        return actions, self.get_log_prob(actions, mean, std), self.get_value(obs)

    def get_log_prob(self, actions: torch.Tensor, mean: torch.Tensor, std: torch.Tensor) -> torch.Tensor:
        """Log-probs (M,) of actions (M, A)."""
        log_prob = -0.5 * ((actions - mean) / std).square() - std.log() - 0.5 * math.log(2 * math.pi)  # [cont-1] normal
        return log_prob.sum(-1)  # [cont-3] independent components

    def evaluate_actions(self, obs: torch.Tensor, actions: torch.Tensor):
        """Log-probs of the actions, the policy's entropy and the values at the observations, (M,) each."""
        mean, std = self.get_mean_and_std(obs)
        entropies = std.log() + 0.5 * math.log(2 * math.pi * math.e)  # of each component
        return self.get_log_prob(actions, mean, std), entropies.sum(-1).expand(len(obs)), self.get_value(obs)


# -------------------------------------------------------------------------------------------------- Advantages and loss
class Batch(NamedTuple):
    obs: torch.Tensor  # (B, D); in a minibatch M samples in place of B
    actions: torch.Tensor  # (B, A)
    log_probs: torch.Tensor  # (B,) like all that follow; of the actions, under the policy that drew them
    values: torch.Tensor  # as the critic predicted them then
    advantages: torch.Tensor
    returns: torch.Tensor


def cross_time_limits(rewards, values, final_values, truncated, args: Args) -> torch.Tensor:
    """Adds to the reward of a step that the limit cut the value of what would have followed; compute_gae then treats it
    as an end. Takes and returns tensors (T, N).

    values: of the observations before the steps; final_values: of those that they led to, before any reset."""
    if args.time_limits == "final":  # [plus-1] the episode would have gone on from the last observation
        return rewards + args.gamma * torch.where(truncated, final_values, 0.0)  # nan may stand where a true end is
    if args.time_limits == "before":  # nearly the same: from the observation before it, as in rsl_rl
        return rewards + args.gamma * torch.where(truncated, values, 0.0)
    if args.time_limits == "drop":  # its advantage is 0, before they are normalized, as in brax
        return torch.where(truncated, values, rewards)
    return rewards  # none: a time limit is an end, as in baselines


def compute_gae(rewards, values, dones, next_value, next_done, gamma: float, gae_lambda: float):
    """Generalized advantage estimation (Schulman et al. 2016, equation 16) and the returns that follow from it.

    rewards, values, dones: (T, N), where dones[t] marks obs[t] as the first of an episode; next_value, next_done: (N,),
    of the observation after the rollout. Returns advantages and returns, (T, N) each.
    """
    next_values = torch.cat([values[1:], next_value[None]])
    continues = 1.0 - torch.cat([dones[1:], next_done[None]])  # 0 where the episode of step t ends with it
    deltas = rewards + gamma * next_values * continues - values
    decays = gamma * gae_lambda * continues
    advantages = torch.zeros_like(rewards)
    advantage = torch.zeros_like(next_value)
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
    if args.norm_adv == "minibatch":  # [core-7] normalized advantages
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
    for group in optimizer.param_groups:  # not before keep, which compares and loads plain numbers
        group["lr"] = torch.as_tensor(group["lr"], device=device)  # there, it changes without making the host wait

    # T steps of N environments are a rollout of B = T * N samples, collected on the device; M of them are a minibatch
    T, N, M = args.num_steps, args.num_envs, args.batch_size // args.num_minibatches
    obs = torch.zeros((T, N, envs.simulator.obs_dim), device=device)
    actions = torch.zeros((T, N, agent.action_dim), device=device)
    log_probs = torch.zeros((T, N), device=device)
    values = torch.zeros((T, N), device=device)
    final_values = torch.zeros((T, N), device=device)
    rewards = torch.zeros((T, N), device=device)
    dones = torch.zeros((T, N), device=device)  # dones[t]: obs[t] is the first of an episode
    truncated = torch.zeros((T, N), device=device, dtype=torch.bool)
    episodes = torch.zeros((T, 2, N), device=device)  # returns and lengths, nan where none ended

    for update, fresh_episodes in run.updates():
        # Anneal
        remaining = 1.0 - (update - 1) / args.num_updates  # 1 in the first update, 1 / num_updates in the last
        clip_coef = args.clip_coef * remaining if args.anneal_clip else args.clip_coef  # [aux-1] annealed clip range
        for group, rate in zip(optimizer.param_groups, initial_rates):
            if args.anneal_lr and args.adaptive_kl is None:
                group["lr"].fill_(rate * remaining)  # [core-4] annealed rate

        # Collect a rollout. Every update has its own seed, so that checkpoints need no generator's state
        torch.manual_seed(np.random.SeedSequence([args.seed, update]).generate_state(1).item())
        if fresh_episodes:  # when the run starts or resumes; with --exact-resume after each checkpoint, too
            next_obs = envs.reset(torch.randint(2**31, ()).item())
            next_done = torch.ones(N, device=device)
        noise = agent.draw_noise(T, N)
        with torch.no_grad():  # not inference_mode: simulators keep tensors and change them elsewhere
            for step in range(T):  # [core-1] rollouts: obs and dones carry on from one to the next
                obs[step] = next_obs  # a copy: simulators may reuse their tensors
                dones[step] = next_done
                actions[step], log_probs[step], values[step] = agent.get_action_and_value(obs[step], noise[step])
                next_obs, reward, terminated, truncated[step], final_obs, episodes[step] = envs.step(actions[step])
                rewards[step] = reward
                next_done = (terminated | truncated[step]).float()
                if args.time_limits == "final":  # not of the cut ones alone: to find them, the host would wait
                    final_values[step] = agent.get_value(final_obs)
            next_value = agent.get_value(next_obs)

            # Advantages
            ends = torch.cat([dones[1:], next_done[None]])
            scaled = envs.scale_rewards(rewards, ends) if args.norm_reward else rewards
            scaled = cross_time_limits(scaled, values, final_values, truncated, args)
            advantages, returns = compute_gae(scaled, values, dones, next_value, next_done, args.gamma, args.gae_lambda)
            if args.norm_adv == "rollout":  # [plus-5] normalized once, as in rsl_rl
                advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        b_obs = obs.flatten(0, 1)  # (T, N, D) to (B, D)
        b_actions = actions.flatten(0, 1)
        batch = Batch(b_obs, b_actions, log_probs.flatten(), values.flatten(), advantages.flatten(), returns.flatten())

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
                nn.utils.clip_grad_norm_(parameters, args.max_grad_norm)  # [core-11] gradient's norm
                if args.adaptive_kl is not None and logged:  # [plus-4] not yet in the first minibatch, whose KL is 0
                    distance = mb_metrics["losses/approx_kl"] / args.adaptive_kl
                    factor = torch.where(distance > 2.0, 1 / 1.5, torch.where(distance < 0.5, 1.5, 1.0))
                    for group in optimizer.param_groups:
                        group["lr"].mul_(factor).clamp_(1e-5, 1e-2)
                optimizer.step()
                # Metrics may be numbers, or tensors with a gradient
                logged.append({name: torch.as_tensor(x, device=device).detach() for name, x in mb_metrics.items()})
            epoch_kl = torch.stack([x["losses/approx_kl"] for x in logged[epoch_start:]]).mean()
            if args.target_kl is not None and epoch_kl > args.target_kl:  # [aux-3] early stop
                break
        agent.obs_statistics.update(b_obs)  # [plus-2] not before learning: what acted is what must learn

        # Log
        metrics = {"charts/learning_rate": optimizer.param_groups[0]["lr"]}
        metrics["charts/time_limits"] = truncated.float().sum() / ends.sum()  # share of the ends that are time limits
        for name in logged[0]:  # each is a mean over the minibatches
            metrics[name] = torch.stack([x[name] for x in logged]).float().mean()
        explained_variance = 1 - (returns - values).var() / returns.var()
        metrics["losses/explained_variance"] = torch.where(returns.var() > 0, explained_variance, math.nan)
        run.note(b_obs, rewards, returns, episodes)  # the host waits for the device, here and in the next line
        numbers = torch.stack(list(metrics.values())).tolist()
        run.log(dict(zip(metrics, numbers)))


# ======================================================================== The run: nothing below is about PPO

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
import warnings
from contextlib import ExitStack, suppress
from dataclasses import asdict, replace

import filelock  # comes with torch
from torch.utils.tensorboard import SummaryWriter

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # CUDA needs it to repeat bit for bit
warnings.filterwarnings("ignore", ".*-v4 is out of date")  # Gymnasium says so of the ids with published results

LONGEST_UNSAVED = 600  # seconds of training after which an interim checkpoint is saved
ENTRIES = (  # of a checkpoint, besides the states of kept objects
    "script args update global_step seconds is_interim built recent_returns columns log_sizes path".split()
)
RANGES = [  # names of options, and their smallest and largest value
    (["total_timesteps", "num_envs", "num_steps", "num_minibatches", "update_epochs"], 1, sys.maxsize),
    (["num_threads", "checkpoints", "episodes", "longest_episode"], 1, sys.maxsize),
    (["seed"], 0, 2**32 - 1),  # numpy's largest
    (["learning_rate", "clip_coef", "ent_coef", "vf_coef", "target_kl", "adaptive_kl"], 0, sys.maxsize),
    (["gamma", "gae_lambda"], 0, 1),
    (["max_grad_norm"], 0, math.inf),
]


class UserError(ValueError):
    """A mistake that the user can fix: printed in one line, with exit status 2."""


# ----------------------------------------------------------------------------------------------- Environments
def open_simulator(args: Args, num_envs: int):
    """What make_envs returns, after a trial step. UserError if it can't be made or can't do what the script
    needs, before there is a run folder. Isaac Lab makes one simulation in a process, so it is not made twice."""
    sys.path.append(os.getcwd())  # --env-id mine:Mine finds mine.py where you start
    torch.manual_seed(args.seed)  # some draw masses and friction when they are made
    try:
        simulator = make_envs(args, num_envs)
        check_simulator(simulator, args, num_envs)
    except (Exception, SystemExit) as error:  # an unknown id, a missing package, a call of quit()
        text = str(error).rstrip(".")
        if not isinstance(error, UserError):
            text = f"{type(error).__name__}: {text or 'no message'}; --debug shows where"
        raise UserError(f"--env-id {args.env_id} --env-kwargs {args.env_kwargs}: {text}") from error
    return simulator


def check_simulator(simulator, args: Args, num_envs: int) -> None:
    """Raises UserError if the simulator lacks something, or a reset or a step returns what the script can't use."""
    for name, what in (("obs_dim", "an observation"), ("action_dim", "an action")):
        if not isinstance(getattr(simulator, name, None), int):
            raise UserError(f"has no {name}, the number of columns of {what}")
    for name in ("actor_columns", "critic_columns"):
        columns = getattr(simulator, name, slice(None))
        if not isinstance(columns, slice) or len(range(simulator.obs_dim)[columns]) == 0:
            raise UserError(f"its {name} are {columns}; needed is a slice of the {simulator.obs_dim} columns")
    first_obs = simulator.reset(0)
    if isinstance(first_obs, tuple):
        raise UserError("its reset returns a tuple; needed are observations only, no infos")
    obs_shape = (num_envs, simulator.obs_dim)
    check_tensor("reset's observations", first_obs, obs_shape, torch.float32, args)
    staggers = args.stagger and "ages" in dir(simulator)
    if staggers:
        if not isinstance(getattr(simulator, "max_episode_steps", None), int):
            raise UserError("has ages, but no whole max_episode_steps to draw them from; add it, or use --no-stagger")
        simulator.ages = torch.full_like(simulator.ages, simulator.max_episode_steps - 1)  # the step ends episodes
    actions = torch.full((num_envs, simulator.action_dim), 3.0, device=args.device)
    returned = simulator.step(actions)
    if not (actions == 3.0).all():
        raise UserError("its step changes the actions, from which the policy learns; change a copy of them")
    if len(returned) != 5:
        names = "observations, rewards, terminated, truncated, final_obs (or None)"
        raise UserError(f"its step returns {len(returned)} values; needed are {names}")
    obs, rewards, terminated, truncated, final_obs = returned
    if final_obs is None and args.time_limits == "final":
        raise UserError("loses the last observations; use --time-limits before, as rsl_rl does, or drop")
    check_tensor("observations", obs, obs_shape, torch.float32, args)
    check_tensor("rewards", rewards, (num_envs,), torch.float32, args)
    check_tensor("terminated", terminated, (num_envs,), torch.bool, args)
    check_tensor("truncated", truncated, (num_envs,), torch.bool, args)
    if final_obs is not None:
        if isinstance(final_obs, dict):
            raise UserError("its fifth value is a dict; needed are final_obs, no infos")
        check_tensor("final_obs", final_obs, obs_shape, torch.float32, args)
        ended = terminated | truncated
        if staggers and ended.any() and torch.equal(obs[ended], final_obs[ended]):
            raise UserError("its final_obs are its observations where an episode ended; reset there in the same step")


def check_tensor(name: str, values, shape: tuple, dtype: torch.dtype, args: Args) -> None:
    if not isinstance(values, torch.Tensor):
        hint = "; join the groups to one tensor, as mjlab_envs.py does" if hasattr(values, "keys") else ""
        raise UserError(f"its {name} are no tensor but {type(values).__name__}{hint}")
    device = torch.device(args.device).type
    if (tuple(values.shape), values.dtype, values.device.type) != (shape, dtype, device):
        got = f"{tuple(values.shape)}, {values.dtype}, {values.device}"
        raise UserError(f"its {name} are {got}; needed are {shape}, {dtype}, {device}")


# ------------------------------------------------------------------------------------------------- Evaluation
class Player(VectorEnv):
    """Environments and a trained agent that acts in them.

    player = load("runs/RUN", num_envs=1)
    obs = player.reset(1)  # a seed
    obs, *_ = player.step(player.act(obs))
    """

    def __init__(self, checkpoint: dict, args: Args, num_envs: int):
        super().__init__(args, num_envs)
        self.args = args
        self.stagger = False
        self.agent = Agent(self, args).to(args.device)
        self.agent.eval()
        load_state(self.agent, checkpoint, "model")
        load_state(self, checkpoint, "envs")

    def act(self, obs: torch.Tensor) -> torch.Tensor:
        """Actions (N, A) at observations (N, D), for step."""
        noise = self.agent.draw_noise(self.num_envs)
        if self.args.deterministic:
            noise = torch.zeros_like(noise)
        with torch.no_grad():
            actions, _, _ = self.agent.get_action_and_value(obs, noise)
        return actions


def load(run: str | Path, num_envs: int = 1, **options) -> Player:
    """A trained agent. `run`: run folder or checkpoint; `options`: Args to change, say deterministic=True."""
    checkpoint = load_checkpoint(Path(run))
    return Player(checkpoint, replace(checkpoint["args"], **{"device": "cpu", **options}), num_envs)


def evaluate(checkpoint: dict, args: Args) -> None:
    """Plays the episodes of --evaluate, all at once, and writes them to evaluation.csv in the run folder."""
    path = checkpoint["path"]
    folder = path.parent.parent if path.parent.name == "checkpoints" else path.parent
    player = Player(checkpoint, args, args.episodes)
    torch.manual_seed(np.random.SeedSequence([args.seed, 0]).generate_state(1).item())  # 0 is no update's number
    obs = player.reset(torch.randint(2**31, ()).item())
    first = torch.full((2, args.episodes), math.nan)  # of each environment, so that short ones don't count more
    for _ in range(args.longest_episode):
        obs, _, _, _, _, episodes = player.step(player.act(obs))
        first = torch.where(first.isnan(), episodes.cpu(), first)
        if not first.isnan().any():
            break
    is_cut = first[0].isnan()  # after --longest-episode steps without an end
    first = torch.where(is_cut, player.returns_and_lengths.cpu(), first)
    player.close()
    rows = ["checkpoint,seed,episode,episodic_return,episodic_length,is_cut"]
    for i, (episodic_return, length) in enumerate(first.T.tolist()):
        rows.append(f"{path.name},{args.seed},{i + 1},{episodic_return},{length:.0f},{int(is_cut[i])}")
    print(f"{args.episodes} episodes, {is_cut.sum()} of them cut, mean length {first[1].mean():.1f}")
    print(f"mean return {first[0].mean():.2f} ± {first[0].std(correction=0):.2f} of {path}")
    (folder / "evaluation.csv").write_text("\n".join(rows) + "\n", "utf-8")


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
        self.mean_reward = math.nan  # of all steps in this update
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

    def note(self, obs, rewards, returns, episodes) -> None:
        """Counts the steps of a rollout, checks what they returned, and writes down episodes that ended.

        obs: (B, D); rewards, and returns as learned: (T, N); episodes: (T, 2, N), nan where none ended. Waits
        for the device."""
        for name, values in (("observations", obs), ("rewards", rewards)):
            if not values.isfinite().all():
                raise UserError(f"update {self.update}: the simulator's {name} are not finite")
        if not returns.isfinite().all():  # although the rewards are, and the weights were
            text = "returns are not finite; is the simulator's final_obs, where a time limit cut an episode?"
            raise UserError(f"update {self.update}: {text}")
        first_step = self.global_step + self.args.num_envs
        self.global_step += self.args.batch_size
        self.mean_reward = rewards.mean().item()
        ended = episodes.cpu().numpy()
        steps, environments = np.nonzero(~np.isnan(ended[:, 0]))
        self.episodes = ended[steps, :, environments]  # (episodes, 2), returns and lengths
        seconds = round(time.perf_counter() - self.start_time, 3)
        for step, (episodic_return, length) in zip(steps.tolist(), self.episodes.tolist()):
            number = first_step + step * self.args.num_envs
            print(number, episodic_return, int(length), seconds, sep=",", file=self.episodes_file)

    def log(self, metrics: dict[str, float]) -> None:
        """Writes the metrics of this update to TensorBoard and, as one row, to metrics.csv."""
        weights = nn.utils.parameters_to_vector(self.kept["model"].parameters())
        if not weights.isfinite().all():
            self.write_end("diverged")
            raise UserError(f"update {self.update}: weights are not finite; try a smaller --learning-rate")
        self.seconds = time.perf_counter() - self.start_time
        returns, lengths = np.reshape(self.episodes, (-1, 2)).T.tolist()
        self.recent_returns = (self.recent_returns + returns)[-100:]
        row = {
            "global_step": self.global_step,
            "charts/episodic_return": np.mean(returns or [math.nan]),
            "charts/episodic_length": np.mean(lengths or [math.nan]),
            "charts/reward": self.mean_reward,
            "charts/SPS": self.global_step / self.seconds,
            **{name: float(x.item() if hasattr(x, "item") else x) for name, x in metrics.items()},  # no gradient
        }
        self.episodes = []
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


def create_run_folder(args: Args) -> Path:
    """Makes runs/{env_id}__{exp_name}__{seed}__{time}, with all that it takes to repeat the run."""
    name = f"{args.env_id}__{args.exp_name}__{args.seed}__".replace("/", "_").replace(":", "_")
    now = int(time.time())
    while Path(f"runs/{name}{now}").exists():  # begun in the same second
        now += 1
    folder = Path(f"runs/{name}{now}")
    (folder / "checkpoints").mkdir(parents=True)
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
    if args.batch_size % args.num_minibatches != 0:
        raise UserError(f"{batch}: must be a multiple of --num-minibatches {args.num_minibatches}")
    if args.num_updates < 1:
        raise UserError(f"{batch}: must be at most --total-timesteps {args.total_timesteps}")
    try:
        options = json.loads(args.env_kwargs)
    except json.JSONDecodeError as error:
        raise UserError(f"--env-kwargs {args.env_kwargs}: is no JSON: {error}") from error
    if not isinstance(options, dict):
        raise UserError(f"--env-kwargs {args.env_kwargs}: must be as '{{\"max_episode_steps\": 100}}'")
    if args.device == "cuda" and not torch.cuda.is_available():
        raise UserError(f"--device {args.device}: torch {torch.__version__} finds none; use --device cpu")
    if args.track and importlib.util.find_spec("wandb") is None:
        raise UserError("--track: needs another package: pip install wandb")


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
        saved = replace(saved, device=Args.device, seed=Args.seed, track=False)
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
