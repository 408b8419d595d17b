# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "filelock>=3.12",
#   "gymnasium[classic-control,mujoco]>=1.4",
#   "imageio[ffmpeg]>=2.38",
#   "mujoco>=3.17",
#   "numpy>=2.4",
#   "tensorboard>=2.21",
#   "tyro>=1.0.17",
# ]
# ///
"""PPO in numpy alone, for every Gymnasium environment with Box actions: MuJoCo, Box2D, dm_control, PyBullet, …

    python cleanrl/ppo_continuous_action_numpy.py --env-id HalfCheetah-v4
    python cleanrl/ppo_continuous_action_numpy.py --resume runs/RUN
    python cleanrl/ppo_continuous_action_numpy.py --evaluate runs/RUN

Parent: ppo_continuous_action.py. Changes: (1) Adam and every gradient by hand, without torch; (2) .npz checkpoints.
Details: core-1 to core-13, cont-1 to cont-9, aux-1 (--anneal-clip), aux-3 (--target-kl), plus-1
(--bootstrap-truncated).
"""

import json
import math
import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy reads it; threads only slow down products this small
os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pygame draws the videos without a display

import gymnasium as gym
import numpy as np
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
    deterministic: bool = False  # let --evaluate take the most probable actions instead of drawing them
    debug: bool = False  # show the whole traceback of an error
    # environment
    env_id: str = "HalfCheetah-v4"  # Gymnasium id of the environment
    env_kwargs: str = "{}"  # arguments of the environment as JSON, say '{"forward_reward_weight": 2.0}'
    total_timesteps: int | float = 1_000_000  # environment steps in total; 1e6 works too
    num_envs: int = 1  # environments that are stepped together
    num_steps: int = 2048  # steps of each environment in a rollout
    vectorization: Literal["sync", "async"] = "sync"  # async: each environment in a process, for slow simulators
    # PPO
    learning_rate: float = 3e-4  # step size of Adam
    anneal_lr: bool = True  # anneal the learning rate linearly to 0
    gamma: float = 0.99  # discount factor
    gae_lambda: float = 0.95  # lambda of generalized advantage estimation
    num_minibatches: int = 32  # minibatches in an epoch
    update_epochs: int = 10  # passes over each rollout
    norm_adv: bool = True  # normalize the advantages in each minibatch
    clip_coef: float = 0.2  # clip range of the probability ratio, and of the value with --clip-vloss
    anneal_clip: bool = False  # anneal the clip range linearly to 0
    clip_vloss: bool = True  # clip the value loss
    ent_coef: float = 0.0  # weight of the entropy bonus
    vf_coef: float = 0.5  # weight of the value loss
    max_grad_norm: float = 0.5  # limit of the gradient's norm, over all parameters together
    target_kl: float | None = None  # end an update after an epoch whose mean approximate KL exceeds this, e.g. 0.015
    bootstrap_truncated: bool = False  # at a time limit, add gamma times the last observation's value to the reward

    @property
    def batch_size(self) -> int:
        return self.num_envs * self.num_steps

    @property
    def num_updates(self) -> int:
        return int(self.total_timesteps // self.batch_size)


# ---------------------------------------------------------------------------------------------------------- Environment
def make_env(args: Args, render_mode: str | None = None) -> gym.Env:
    """One environment whose observations are vectors of numbers; a Dict or Tuple of numbers is flattened to one."""
    options = json.loads(args.env_kwargs)
    if render_mode:  # not every environment takes it
        options["render_mode"] = render_mode
    env = make_simulator(args.env_id, options)  # gym.make, for other packages' ids too
    if "RecordEpisodeStatistics" not in str(env):  # some packages record episodes themselves
        env = gym.wrappers.RecordEpisodeStatistics(env)  # wrap rewards after this: it logs the environment's own return
    check_spaces(env)  # wrappers that change spaces go above this line; those that end episodes, above the statistics
    if not isinstance(env.observation_space, gym.spaces.Box) or len(env.observation_space.shape) != 1:
        env = gym.wrappers.FlattenObservation(env)
    return env


class RunningStatistics:
    """Mean and variance of all rows seen so far, in float64, by the parallel algorithm (Chan et al. 1979)."""

    def __init__(self, shape: tuple[int, ...]):
        self.mean = np.zeros(shape)
        self.var = np.ones(shape)
        self.count = 1e-4  # as in baselines

    def update(self, rows: np.ndarray) -> None:
        """Takes in rows (N, *shape)."""
        n = len(rows)
        batch_mean = np.add.reduce(rows) / n  # faster than rows.sum(0)
        deviation = rows - batch_mean
        delta = batch_mean - self.mean
        total = self.count + n
        squares = self.var * self.count + np.add.reduce(deviation**2) + delta * delta * (self.count * n / total)
        self.mean = self.mean + delta * (n / total)
        self.var = squares / total
        self.count = total

    def state_dict(self) -> dict:
        return {"mean": np.asarray(self.mean), "var": np.asarray(self.var), "count": self.count}

    def load_state_dict(self, state: dict) -> None:
        if state["mean"].shape != self.mean.shape or state["var"].shape != self.mean.shape:
            raise ValueError(f"statistics of shape {state['mean'].shape} instead of {self.mean.shape}")
        self.mean = state["mean"]
        self.var = state["var"]
        self.count = state["count"]


class VectorEnv:
    """N environments, stepped together. One whose episode ends is reset in the same step.
    Observations are normalized and rewards are scaled by running statistics, which all environments share."""

    def __init__(self, args: Args, num_envs: int, render_mode: str | None = None):
        self.make = partial(make_vector, args, num_envs, partial(make_env, args, render_mode))
        self.vector = self.make()
        self.is_new = True
        self.observation_space = self.vector.single_observation_space
        self.action_space = self.vector.single_action_space
        self.gamma = args.gamma
        self.discounted_returns = np.zeros(num_envs)  # sums of the rewards of the episodes so far
        self.return_statistics = RunningStatistics(())  # of these sums
        self.obs_statistics = RunningStatistics(self.observation_space.shape)
        self.update_statistics = True  # evaluation leaves them as they are

    def reset(self, seeds: list[int]) -> np.ndarray:
        """Starts episodes in N new environments: used ones may reset differently. Returns (N, D), D numbers each."""
        if not self.is_new:
            statistics = self.state_dict()
            self.close()
            self.vector = self.make()
            self.load_state_dict(statistics)
        self.is_new = False
        observations, _ = self.vector.reset(seed=seeds)
        self.discounted_returns[:] = 0.0
        if self.update_statistics:
            self.obs_statistics.update(observations)
        return self.normalize(observations)

    def normalize(self, observations: np.ndarray) -> np.ndarray:
        """Observations with about mean 0 and variance 1 in each of the D columns."""
        centered = observations - self.obs_statistics.mean
        scaled = centered / np.sqrt(self.obs_statistics.var + 1e-8)  # [cont-6]
        return scaled.clip(-10.0, 10.0).astype(np.float32)  # [cont-7]

    def step(self, actions: np.ndarray):
        """Takes actions (N, A). Returns observations (N, D); rewards (N,); dones (N,), 1 at true ends and time limits;
        the last observation of each episode that a time limit cut, by environment; and the return "r" and length "l" of
        each episode that ended."""
        actions = actions.reshape(-1, *self.action_space.shape)
        actions = actions.clip(self.action_space.low, self.action_space.high)  # [cont-5] the loss uses the original
        observations, rewards, dones, truncated_obs, episodes = step_vector(self.vector, actions)
        if self.update_statistics:
            self.obs_statistics.update(observations)
            self.discounted_returns = self.gamma * self.discounted_returns + rewards
            self.return_statistics.update(self.discounted_returns)
            self.discounted_returns *= 1.0 - dones  # at time limits as well as at true ends
        rewards = (rewards / np.sqrt(self.return_statistics.var + 1e-8)).clip(-10.0, 10.0)  # [cont-8] [cont-9]
        truncated_obs = {i: self.normalize(last_obs) for i, last_obs in truncated_obs.items()}
        return self.normalize(observations), rewards, dones, truncated_obs, episodes

    def state_dict(self) -> dict:
        return {
            "observations": self.obs_statistics.state_dict(),
            "returns": self.return_statistics.state_dict(),
            "wrappers": get_statistics(self.vector),
        }

    def load_state_dict(self, state: dict) -> None:
        self.obs_statistics.load_state_dict(state["observations"])
        self.return_statistics.load_state_dict(state["returns"])
        set_statistics(self.vector, state["wrappers"])

    def close(self) -> None:
        close_vector(self.vector)


# ---------------------------------------------------------------------------------------------------------------- Agent
def init_mlp(rng: np.random.Generator, name: str, inputs: int, outputs: int, gain: float) -> dict[str, np.ndarray]:
    """Two hidden layers of 64 units and a last one, under the names that they have in ppo_continuous_action.py."""
    parameters = {}
    sizes = [(0, inputs, 64, math.sqrt(2)), (2, 64, 64, math.sqrt(2)), (4, 64, outputs, gain)]
    for layer, fan_in, fan_out, layer_gain in sizes:
        parameters[f"{name}.{layer}.weight"] = orthogonal(rng, fan_out, fan_in, layer_gain)  # [core-2]
        parameters[f"{name}.{layer}.bias"] = np.zeros(fan_out)
    return parameters


class MLP:
    """Two tanh layers and a linear one. A product by a.dot(b) takes half the time of a @ b where matrices are small."""

    def __init__(self, names, parameters: "Arrays", gradients: "Arrays"):
        self.parameters = [parameters[name] for name in names]
        self.gradients = [gradients[name] for name in names]

    def forward(self, x: np.ndarray) -> np.ndarray:
        """Outputs (M, outputs) at inputs (M, inputs). Keeps what backward needs, until the next forward."""
        W1, b1, W2, b2, W3, b3 = self.parameters
        self.x = x
        self.h1 = np.tanh(x.dot(W1.T) + b1)
        self.h2 = np.tanh(self.h1.dot(W2.T) + b2)
        return self.h2.dot(W3.T) + b3

    def backward(self, d_out: np.ndarray) -> None:
        """Writes the gradients of weights and biases, from the loss's derivatives by the outputs, (M, outputs).

        The chain rule, from the last layer to the first: for out = h W' + b, dW' = h' d_out, db is the sum of d_out
        over the samples, and dh = d_out W. For h = tanh(z), dh / dz = 1 - h^2.
        """
        _, _, W2, _, W3, _ = self.parameters
        dW1, db1, dW2, db2, dW3, db3 = self.gradients
        ones = np.ones(len(d_out), d_out.dtype)  # its product with a matrix is the sum over the samples, only faster
        self.h2.T.dot(d_out, out=dW3.T)
        ones.dot(d_out, out=db3)
        dz2 = d_out.dot(W3)
        dz2 *= 1.0 - self.h2 * self.h2
        self.h1.T.dot(dz2, out=dW2.T)
        ones.dot(dz2, out=db2)
        dz1 = dz2.dot(W2)
        dz1 *= 1.0 - self.h1 * self.h1
        self.x.T.dot(dz1, out=dW1.T)
        ones.dot(dz1, out=db1)


class Agent:
    def __init__(self, envs: VectorEnv, args: Args, dtype=np.float32):
        rng = np.random.default_rng(args.seed)  # for the initial weights
        obs_dim = envs.observation_space.shape[0]
        self.action_dim = math.prod(envs.action_space.shape)
        critic = init_mlp(rng, "critic", obs_dim, 1, gain=1.0)  # [core-13] [cont-4]
        actor = init_mlp(rng, "actor", obs_dim, self.action_dim, gain=0.01)
        arrays = {"log_std": np.zeros(self.action_dim), **critic, **actor}  # [cont-2]
        self.parameters = Arrays(arrays, dtype)
        self.gradients = Arrays(arrays, dtype)
        self.gradients.vector[:] = np.nan  # a parameter whose gradient backward doesn't write ends the run
        self.critic = MLP(critic, self.parameters, self.gradients)
        self.actor = MLP(actor, self.parameters, self.gradients)

    def get_value(self, obs: np.ndarray) -> np.ndarray:
        return self.critic.forward(obs)[:, 0]

    def get_mean_and_std(self, obs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Means (M, A) and standard deviations (A,) of the actions at observations (M, D). This is the policy: acting,
        learning and evaluation all go through here. What you change here changes its derivatives in `backward` too."""
        return self.actor.forward(obs), np.exp(self.parameters["log_std"])

    def draw_noise(self, rng: np.random.Generator, *shape: int) -> np.ndarray:
        """Standard normal noise, (*shape, A). One call draws it for a whole rollout, which is faster than per step."""
        return rng.standard_normal((*shape, self.action_dim), np.float32)

    def get_action(self, obs: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """Actions drawn from the policy with standard normal noise, (M, A) each. With --deterministic, it is zeros."""
        mean, std = self.get_mean_and_std(obs)
        return mean + std * noise

    def evaluate_actions(self, obs: np.ndarray, actions: np.ndarray):
        """Log-probs of the actions, entropy and values, (M,) each. Keeps what backward needs until the next forward."""
        mean, self.std = self.get_mean_and_std(obs)
        self.deviation = (actions - mean) / self.std  # (M, A)
        log_stds = np.log(self.std).sum()
        log_prob = -0.5 * (self.deviation**2 + math.log(2 * math.pi)).sum(-1) - log_stds  # [cont-1] [cont-3]
        entropy = np.full_like(log_prob, log_stds + 0.5 * math.log(2 * math.pi * math.e) * self.action_dim)
        return log_prob, entropy, self.get_value(obs)

    def backward(self, d_log_prob: np.ndarray, d_entropy: float, d_value: np.ndarray) -> None:
        """Writes `gradients`, from the loss's derivatives by what the last evaluate_actions returned: by log-prob (M,),
        entropy (one number for all) and value (M,).

        With u = (a - mean) / std, log p is the sum of -u^2 / 2 - log(std) - log(2 pi) / 2. So d log p / d mean is
        u / std, and d log p / d log(std) is u^2 - 1, as du / d log(std) = -u. The entropy has the derivative 1.
        """
        self.actor.backward(d_log_prob[:, None] * self.deviation / self.std)
        self.gradients["log_std"][:] = d_log_prob.dot(self.deviation**2 - 1.0) + d_entropy * len(d_value)
        self.critic.backward(d_value[:, None])


class Adam:
    """Kingma & Ba 2015, algorithm 1, in place on one vector."""

    def __init__(self, parameters: np.ndarray, lr: float, eps: float):
        self.parameters = parameters
        self.lr = lr
        self.eps = eps
        self.beta1 = 0.9
        self.beta2 = 0.999
        self.mean = np.zeros_like(parameters)
        self.variance = np.zeros_like(parameters)
        self.steps = 0

    def step(self, gradient: np.ndarray) -> None:
        self.steps += 1
        self.mean += (1.0 - self.beta1) * (gradient - self.mean)
        self.variance += (1.0 - self.beta2) * (gradient * gradient - self.variance)  # the mean of squares
        # Both averages start at zero; dividing by 1 - beta^steps makes up for it
        correction = math.sqrt(1.0 - self.beta2**self.steps)
        root = np.sqrt(self.variance) + self.eps * correction
        self.parameters -= self.lr * correction / (1.0 - self.beta1**self.steps) * self.mean / root

    def state_dict(self) -> dict:
        return {"steps": self.steps, "mean": self.mean, "variance": self.variance}

    def load_state_dict(self, state: dict) -> None:
        self.steps = int(state["steps"])
        self.mean[:] = state["mean"]
        self.variance[:] = state["variance"]


# -------------------------------------------------------------------------------------------------- Advantages and loss
class Batch(NamedTuple):
    obs: np.ndarray  # (B, D); in a minibatch M samples in place of B
    actions: np.ndarray  # (B, A)
    log_probs: np.ndarray  # (B,) like all that follow; of the actions, under the policy that drew them
    values: np.ndarray  # as the critic predicted them then
    advantages: np.ndarray
    returns: np.ndarray


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

    log_prob, entropy, value: (M,), of the networks as they are now. Returns the derivatives of policy_loss - ent_coef *
    mean(entropy) + vf_coef * value_loss by log_prob (M,), by each entropy (one number) and by value (M,); and by metric
    name scalars or arrays (M,) whose means over the minibatches of an update are logged.
    """
    M = len(value)
    advantages = mb.advantages
    if args.norm_adv:  # [core-7]
        advantages = advantages - advantages.sum() / M  # twice as fast as mean()
        advantages = advantages / (math.sqrt(advantages.dot(advantages) / M) + 1e-8)
    log_ratio = log_prob - mb.log_probs
    ratio = np.exp(log_ratio)

    # The policy loss is -mean(min(A r, A clip(r))). Its slope in r is A where A r is the smaller one or both are equal,
    # and 0 where A clip(r) is smaller: there r is out of range. With r = exp(log_prob - old), dr / d log_prob = r
    unclipped = advantages * ratio
    clipped = advantages * ratio.clip(1 - clip_coef, 1 + clip_coef)
    policy_losses = -np.minimum(unclipped, clipped)  # [core-8]
    d_log_prob = np.where(unclipped <= clipped, unclipped, 0.0) / -M

    # The value loss is mean(max((V - R)^2, (V_c - R)^2)) / 2, V_c the clipped value. Its slope in V is that of the
    # larger square, whose 2 the half cancels; V_c has the slope 1 inside its range and 0 outside
    error = value - mb.returns
    squared_error = error * error
    slope = error
    if args.clip_vloss:  # [core-9]
        change = value - mb.values
        clipped_error = mb.values + change.clip(-clip_coef, clip_coef) - mb.returns
        clipped_slope = np.where(np.abs(change) <= clip_coef, clipped_error, 0.0)
        clipped_square = clipped_error * clipped_error
        slope = np.where(squared_error >= clipped_square, error, clipped_slope)
        squared_error = np.maximum(squared_error, clipped_square)
    d_value = args.vf_coef / M * slope
    metrics = {  # [core-12]
        "losses/value_loss": 0.5 * squared_error,
        "losses/policy_loss": policy_losses,
        "losses/entropy": entropy,
        "losses/old_approx_kl": -log_ratio,
        "losses/approx_kl": ratio - 1 - log_ratio,
        "losses/clipfrac": np.abs(ratio - 1) > clip_coef,
    }
    return d_log_prob, -args.ent_coef / M, d_value, metrics  # [core-10]


# ------------------------------------------------------------------------------------------------------------- Training
@np.errstate(all="ignore")  # what is not finite ends the run with a line of its own
def train(args: Args, run: "Run") -> None:
    """Collects rollouts and learns from each. `run` does the rest: it counts updates, saves, resumes and logs."""
    envs = VectorEnv(args, args.num_envs)
    agent = Agent(envs, args)
    optimizer = Adam(agent.parameters.vector, args.learning_rate, eps=1e-5)  # [core-3]
    initial_rate = optimizer.lr
    run.keep(model=agent.parameters, optimizer=optimizer, envs=envs)  # add what else changes: --resume loads it here

    # T steps of N environments are a rollout of B = T * N samples, collected in numpy; M of them are a minibatch
    T, N, M = args.num_steps, args.num_envs, args.batch_size // args.num_minibatches
    obs = np.zeros((T, N, *envs.observation_space.shape), np.float32)
    actions = np.zeros((T, N, agent.action_dim), np.float32)
    rewards = np.zeros((T, N), np.float32)
    dones = np.zeros((T, N), np.float32)

    for update, fresh_episodes in run.updates():
        # Anneal
        remaining = 1.0 - (update - 1) / args.num_updates  # 1 in the first update, 1 / num_updates in the last
        clip_coef = args.clip_coef * remaining if args.anneal_clip else args.clip_coef  # [aux-1]
        if args.anneal_lr:
            optimizer.lr = initial_rate * remaining  # [core-4]

        # Collect a rollout. Every update has its own seed, so that checkpoints need no generator's state
        rng = np.random.default_rng([args.seed, update])
        if fresh_episodes:  # when the run starts or resumes; with --exact-resume after each checkpoint, too
            next_obs = envs.reset(rng.integers(2**31, size=N).tolist())  # new environments lose what set_attr changed
            next_done = np.ones(N, np.float32)
        noise = agent.draw_noise(rng, T, N)
        for step in range(T):  # [core-1] obs and dones carry on from one rollout to the next
            obs[step] = next_obs  # to change what is observed, edit VectorEnv or Agent: --evaluate uses only these
            dones[step] = next_done
            actions[step] = agent.get_action(next_obs, noise[step])
            next_obs, rewards[step], next_done, truncated_obs, episodes = envs.step(actions[step])
            run.note(rewards[step], episodes)
            if args.bootstrap_truncated and truncated_obs:  # [plus-1]
                last_obs = np.array(list(truncated_obs.values()), np.float32)
                rewards[step, list(truncated_obs)] += args.gamma * agent.get_value(last_obs)

        # Log-probs, values and advantages, all at once: the weights are still those that drew the actions
        b_obs = obs.reshape(args.batch_size, -1)  # (T, N, D) to (B, D)
        b_actions = actions.reshape(args.batch_size, -1)
        b_log_probs, _, b_values = agent.evaluate_actions(b_obs, b_actions)
        next_value = agent.get_value(next_obs)
        values = b_values.reshape(T, N)
        advantages, returns = compute_gae(rewards, values, dones, next_value, next_done, args.gamma, args.gae_lambda)
        batch = Batch(b_obs, b_actions, b_log_probs, b_values, advantages.reshape(-1), returns.reshape(-1))

        # Learn, in epochs of minibatches
        logged = []  # metrics of each minibatch
        for _ in range(args.update_epochs):
            for indices in rng.permutation(args.batch_size).reshape(-1, M):  # [core-6]
                mb = Batch(*(x.take(indices, axis=0) for x in batch))  # faster than x[indices]
                log_prob, entropy, value = agent.evaluate_actions(mb.obs, mb.actions)
                d_log_prob, d_entropy, d_value, mb_metrics = ppo_loss(log_prob, entropy, value, mb, clip_coef, args)
                agent.backward(d_log_prob, d_entropy, d_value)  # of the latest forward: have no other before it
                norm = math.sqrt(agent.gradients.vector.dot(agent.gradients.vector))
                agent.gradients.vector *= min(1.0, args.max_grad_norm / (norm + 1e-6))  # [core-11]
                optimizer.step(agent.gradients.vector)
                logged.append(mb_metrics)
            epoch_kl = np.mean([x["losses/approx_kl"] for x in logged[-args.num_minibatches :]])
            if args.target_kl is not None and epoch_kl > args.target_kl:  # [aux-3]
                break

        # Log
        metrics = {"charts/learning_rate": optimizer.lr}
        for name in logged[0]:  # each is a mean over the minibatches
            metrics[name] = float(np.mean([x[name] for x in logged]))
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

import filelock
import imageio.v2 as imageio
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.summary.writer import event_file_writer

ACTION_SPACES = (gym.spaces.Box,)  # that this script can act in
FAMILIES = {  # a part of the ids of another package's environments, its module, and what to install
    "dm_control/": ("shimmy", "shimmy[dm-control]"),
    "Bullet": ("pybullet_envs_gymnasium", "pybullet-envs-gymnasium"),
}
gym.logger.min_level = gym.logger.ERROR  # the published ids end in v4, which Gymnasium calls out of date
PICTURES = False  # whether this script learns from pictures
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


def make_simulator(env_id: str, options: dict) -> gym.Env:
    """gym.make, also for ids of other packages; where MuJoCo draws pictures, they follow the agent."""
    if "render_mode" in options and sys.platform == "linux":
        os.environ.setdefault("MUJOCO_GL", "egl")  # no display needed; read when MuJoCo is imported
    for part, (module, package) in FAMILIES.items():
        if part in env_id and ":" not in env_id:  # a module that is named is imported by Gymnasium
            if importlib.util.find_spec(module) is None:
                raise ImportError(f"{module} is not installed: pip install '{package}'")
            importlib.import_module(module)
    env = gym.make(env_id, disable_env_checker=True, **options)
    renderer = getattr(env.unwrapped, "mujoco_renderer", None)  # its own camera stays where the agent starts
    if renderer:
        for camera in range(renderer.model.ncam):
            if renderer.model.camera(camera).name == "track":
                renderer.camera_id = camera
    if "dm_control/" in env_id:
        env.unwrapped.render_kwargs["camera_id"] = 0  # the first one follows agents that move on
    return env


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
class Player:
    """A trained agent and an environment of its own, as --evaluate, videos and other programs use them.

    player = load("runs/RUN")
    obs = player.reset(seed=1)
    obs, rewards, dones, _, episodes = player.step(player.act(obs))
    """

    def __init__(self, checkpoint: dict, args: Args, render_mode: str | None = None):
        self.deterministic = args.deterministic
        self.rng = np.random.default_rng([args.seed, 0, 1])
        self.envs = VectorEnv(args, 1, render_mode)
        self.agent = Agent(self.envs, args)
        restore(checkpoint, model=self.agent.parameters, envs=self.envs)
        freeze_statistics(self.envs.vector)
        self.envs.update_statistics = False

    def reset(self, seed: int) -> np.ndarray:
        """Begins an episode. Returns observations (1, ...), as the agent gets them."""
        self.envs.is_new = True  # the same environment plays all episodes
        return self.envs.reset([seed])

    def act(self, obs: np.ndarray) -> np.ndarray:
        """Actions (1, ...) at observations (1, ...), for step."""
        noise = self.agent.draw_noise(self.rng, 1)
        if self.deterministic:
            noise = np.zeros_like(noise)
        return self.agent.get_action(obs, noise)

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


# ------------------------------------------------------------------------------------------------------ Numpy
CHECKPOINT = ".npz"  # suffix of checkpoints
OUT_OF_MEMORY = (MemoryError,)


def orthogonal(rng: np.random.Generator, outputs: int, inputs: int, gain: float) -> np.ndarray:
    """A random (outputs, inputs) matrix: its rows, or its columns if they are fewer, are orthogonal and of
    length gain."""
    q, r = np.linalg.qr(rng.standard_normal((max(outputs, inputs), min(outputs, inputs))))
    q *= np.sign(np.diag(r))  # so that every orthogonal matrix is equally likely
    return gain * (q if outputs >= inputs else q.T)


class Arrays:
    """Arrays by name, all parts of one vector: what is written to a part is in the vector, and vice versa.

    Adam and the gradient's norm take one operation for the vector, much quicker than one for each array.
    """

    def __init__(self, arrays: dict[str, np.ndarray], dtype):
        # By columns: forward multiplies by transposed weights, which are contiguous then: faster for few rows
        columns = [array.ravel(order="F") for array in arrays.values()]
        self.vector = np.concatenate(columns).astype(dtype)
        self.parts = {}
        start = 0
        for name, array in arrays.items():
            self.parts[name] = self.vector[start : start + array.size].reshape(array.shape, order="F")
            start += array.size

    def __getitem__(self, name: str) -> np.ndarray:
        return self.parts[name]

    def state_dict(self) -> dict:
        return self.parts

    def load_state_dict(self, state: dict) -> None:
        if state.keys() != self.parts.keys():
            raise ValueError(f"has {', '.join(state)} instead of {', '.join(self.parts)}")
        for name, part in self.parts.items():
            if state[name].shape != part.shape:
                raise ValueError(f"{name} is {state[name].shape} instead of {part.shape}")
            part[...] = state[name]


class SummaryWriter:
    """Writes scalars for TensorBoard, as torch's class of this name does."""

    def __init__(self, folder: str, purge_step: int):
        self.writer = event_file_writer.EventFileWriter(folder)
        self.writer.add_event(Event(step=purge_step, session_log={"status": "START"}))
        self.step = purge_step
        self.values = []

    def add_scalar(self, name: str, value: float, step: int) -> None:
        if step != self.step:
            self.write()
        self.step = step
        self.values.append({"tag": name, "simple_value": float(value)})

    def write(self) -> None:
        """All values of a step as one event, which takes a fifth of the time of an event for each."""
        if self.values:
            summary = {"value": self.values}
            self.writer.add_event(Event(wall_time=time.time(), step=self.step, summary=summary))
            self.values = []

    def flush(self) -> None:
        self.write()
        self.writer.flush()

    def close(self) -> None:
        self.write()
        self.writer.close()


def take_arrays(state: dict, path: str, arrays: dict) -> dict:
    """The state without its arrays, which go to `arrays` under names such as model/actor.0.weight."""
    rest = {}
    for name, value in state.items():
        if isinstance(value, np.ndarray):
            arrays[path + name] = value
        elif isinstance(value, dict):
            rest[name] = take_arrays(value, f"{path}{name}/", arrays)
        else:
            rest[name] = value
    return rest


def write_state(state: dict, file) -> None:
    """Arrays under their names, and all else as JSON text under the name state."""
    arrays = {}
    rest = take_arrays(state, "", arrays)
    np.savez(file, state=json.dumps(rest), **arrays)


def read_state(path: Path) -> dict:
    """What write_state wrote. Runs no code that the file may hold."""
    with np.load(path, allow_pickle=False) as content:
        state = json.loads(str(content["state"]))
        for entry in set(content.files) - {"state"}:
            names = entry.split("/")
            place = state
            for folder in names[:-1]:
                place = place[folder]
            place[names[-1]] = content[entry]
    return state


def is_finite(model: Arrays) -> bool:
    return bool(np.isfinite(model.vector).all())


def seed_others(*numbers: int) -> None:
    """Seeds the generators that no script draws from, but perhaps the environments."""
    seed = np.random.SeedSequence(numbers).generate_state(1).item()
    random.seed(seed)
    np.random.seed(seed)


def episode_seeds(args: Args, episodes: int) -> list[int]:
    """Seeds the environments' own random numbers for an evaluation, and draws a seed for each of its episodes."""
    seed_others(args.seed, 0)
    rng = np.random.default_rng([args.seed, 0])  # updates begin with 1
    return rng.integers(2**31, size=episodes).tolist()


def resolve(args: Args) -> Args:
    """The arguments with what this machine decides: nothing, here."""
    return replace(args, total_timesteps=int(args.total_timesteps))


def prepare(args: Args) -> str:
    """What this process computes on."""
    threads = os.environ["OPENBLAS_NUM_THREADS"]
    return "CPU, 1 thread" if threads == "1" else f"CPU, {threads} threads"


def check_device(args: Args) -> None:
    """Numpy needs none."""


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
