# /// script
# requires-python = ">=3.11,<3.13"
# dependencies = [
#   "gym3==0.3.3",
#   "gymnasium==1.4.0",
#   "moviepy==2.2.1",
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
--bootstrap-truncated is gone; (2) NormalizedVectorEnv scales rewards by running statistics, which go into the
checkpoint; (3) IMPALA's residual network; (4) training can keep to some levels and be evaluated on others;
(5) --channels-last and --malloc-tuning; (6) train-procgen's hyperparameters.
Details: core-1 to core-12, atari-9, cont-8, cont-9, impala, aux-1 (--anneal-clip), aux-3 (--target-kl).
"""

import contextlib
import csv
import ctypes
import importlib.metadata
import importlib.util
import io
import json
import math
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections import deque
from dataclasses import asdict, dataclass, fields
from difflib import get_close_matches
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # read when numpy loads; the large products are torch's

import gymnasium as gym
import numpy as np
import torch
import torch.nn as nn
import tyro
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer import event_file_writer

# ------------------------------------------------------------------------------------------------------------ Arguments


@dataclass
class Args:
    # run
    exp_name: str = Path(__file__).stem  # name of the experiment, a part of the run folder's name
    seed: int = 1  # seed of the weights, the environments and the sampling
    torch_deterministic: bool = True  # on a GPU, only kernels that repeat bit for bit (on a CPU all do)
    cuda: bool = torch.cuda.is_available()  # train on the GPU
    track: bool = False  # send the run to Weights & Biases too
    wandb_project_name: str = "cleanRL"  # Weights & Biases project
    wandb_entity: str | None = None  # Weights & Biases team or user
    capture_video: bool = False  # record one evaluation episode at every checkpoint, as mp4
    checkpoints: int = 10  # checkpoints in a run, evenly spaced, the last one at its end
    resume: str | None = None  # run folder to go on with, from its last checkpoint
    evaluate: str | None = None  # run folder or checkpoint to play with, instead of training
    episodes: int = 10  # episodes that an evaluation plays, on training levels and on test levels each
    eval_start_level: int | None = None  # evaluate on test levels too, at checkpoints and by --evaluate: the first one
    eval_num_levels: int = 0  # number of test levels; 0: all from --eval-start-level on
    # environment
    env_id: str = "starpilot"  # name of the game
    distribution_mode: str = "easy"  # the kind of levels: easy or hard; some games have extreme, memory, exploration
    num_levels: int = 0  # number of levels to train on; 0: all of Procgen's, more than training can see
    start_level: int = 0  # first of them
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
    num_threads: int = os.cpu_count() or 1  # CPU threads of torch; another number changes the last bits of the results
    precision: str = "fp32"  # fp32 or bf16, of the convolutions and the layer of 256; bf16 is faster
    channels_last: bool = True  # the order of activations in memory: channels of a pixel together; off is slower
    malloc_tuning: bool = True  # let glibc keep freed memory instead of asking Linux for new pages; off is slower

    @property
    def batch_size(self) -> int:
        return self.num_envs * self.num_steps

    @property
    def num_updates(self) -> int:
        return self.total_timesteps // self.batch_size


def fail(message: str, status: int = 2):
    """Ends the program with one line on stderr. Status 2: the user can mend it. Status 1: the run broke."""
    print(f"{Path(__file__).name}: error: {' '.join(message.split())}", file=sys.stderr)
    raise SystemExit(status)


def parse_arguments() -> Args:
    """The command line; what tyro says of a mistake is cut down to one line."""
    try:
        with contextlib.redirect_stderr(io.StringIO()) as report:
            return tyro.cli(Args)
    except SystemExit as end:
        if not end.code:  # --help
            raise
    lines = [line.strip("│ \n") for line in report.getvalue().splitlines()[1:]]
    fail(" ".join(lines[: next((i for i, line in enumerate(lines) if line[:1] in "─╰"), None)]) + "; see --help")


def validate(args: Args) -> None:
    """Ends the program with one line at the first argument that can't work; nothing has been created by then."""
    counts = "total_timesteps num_envs num_steps num_minibatches update_epochs checkpoints episodes"
    for names, rule, legal in [
        (counts + " learning_rate clip_coef max_grad_norm target_kl", "above 0", lambda x: 0 < x < 2**63),
        ("seed ent_coef vf_coef", "of 0 or more", lambda x: 0 <= x < 2**63),
        ("num_levels start_level eval_num_levels eval_start_level", "from 0 to 2147483647", lambda x: 0 <= x < 2**31),
        ("gamma reward_gamma gae_lambda", "from 0 to 1", lambda x: 0 <= x <= 1),
        ("num_threads", "from 1 to 1024", lambda x: 1 <= x <= 1024),
    ]:
        for name in names.split():
            if (value := getattr(args, name)) is not None and not legal(value):
                fail(f"--{name.replace('_', '-')} {value}: must be a finite number {rule}")
    rollout = f"--num-envs {args.num_envs} --num-steps {args.num_steps}: a rollout of {args.batch_size} samples"
    if args.num_minibatches > args.batch_size:
        fail(f"{rollout} can't fill --num-minibatches {args.num_minibatches}; use {args.batch_size} or fewer")
    if args.batch_size % args.num_minibatches:
        fits = max(n for n in range(1, args.num_minibatches) if args.batch_size % n == 0)
        fail(f"{rollout} does not divide into --num-minibatches {args.num_minibatches}; {fits} would do")
    if args.num_updates < 1:
        fail(f"{rollout} is more than --total-timesteps {args.total_timesteps}; use {args.batch_size} or more")
    if args.cuda and not torch.cuda.is_available():
        fail(f"--cuda: torch {torch.__version__} finds no GPU; leave --cuda out, or install a CUDA build of torch")
    for flag, package in (("track", "wandb"), ("capture_video", "moviepy")):
        if getattr(args, flag) and importlib.util.find_spec(package) is None:
            fail(f"--{flag.replace('_', '-')}: the package {package} is not installed; pip install {package}")
    for name, choices in (("precision", ("fp32", "bf16")), ("distribution_mode", MODES)):
        if (value := getattr(args, name)) not in choices:
            fail(f"--{name.replace('_', '-')} {value}: must be {' or '.join(choices)}")
    games = load_procgen().ENV_NAMES
    if args.env_id not in games:
        near = ", ".join(get_close_matches(args.env_id, games, cutoff=0.5))
        fail(f"--env-id {args.env_id}: unknown. {'Near matches' if near else 'The games'}: {near or ', '.join(games)}")
    mode, fits = f"--distribution-mode {args.distribution_mode}", MODES[args.distribution_mode] or games
    if args.env_id not in fits:
        fail(f"{mode}: {args.env_id} has none; it is for {', '.join(fits)}; use easy or hard")
    chosen = args.num_levels or args.start_level or args.eval_start_level is not None
    if args.distribution_mode == "exploration" and chosen:
        fail(f"{mode}: has one level, its own; leave out --num-levels, --start-level and --eval-start-level")
    if args.start_level and not args.num_levels:
        fail(f"--start-level {args.start_level}: needs --num-levels; without it Procgen draws from all levels")
    if args.eval_num_levels and args.eval_start_level is None:
        fail(f"--eval-num-levels {args.eval_num_levels}: needs --eval-start-level, the first of them")
    for name, levels in level_sets(args).items():
        if levels.stop > NO_LEVEL:
            fail(f"{name} levels {levels.start} to {levels.stop - 1}: Procgen's last is {NO_LEVEL - 1}; take fewer")
    if args.eval_start_level is not None:
        training, test = level_sets(args).values()
        if max(training.start, test.start) < min(training.stop, test.stop):
            training, test = (f"{levels.start} to {levels.stop - 1}" for levels in (training, test))
            clash = f"the test levels {test} are not apart from the training levels {training}"
            mend = "take others" if args.num_levels else "train on few, say --num-levels 200"
            fail(f"--eval-start-level {args.eval_start_level}: {clash}; {mend}")


# ---------------------------------------------------------------------------------------------------------- Environment


FRAME = gym.spaces.Box(0, 255, (64, 64, 3), np.uint8)
NO_LEVEL = 2**31 - 1  # levels are numbered from 0 to the one before
MODES = {  # the games that have it, where not all do; Procgen ends the whole process at a mode that a game lacks
    "easy": [],
    "hard": [],
    "extreme": ["chaser", "dodgeball", "leaper", "starpilot"],
    "memory": ["caveflyer", "dodgeball", "heist", "jumper", "maze", "miner"],
    "exploration": ["caveflyer", "climber", "coinrun", "heist", "jumper", "leaper", "maze", "ninja"],
}


def load_procgen():
    """Procgen's module of environments; ends the program with one line if it is not installed."""
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # it imports the old gym, which says at length that it is old
            import procgen.env
    except ImportError as error:
        fail(f"a package is missing: {error}; pip install --no-deps -r requirements-procgen.txt")
    return procgen.env


def level_sets(args: Args) -> dict[str, range]:
    """The levels to train on and, if they were asked for, those to test on."""
    sets = {"training": range(args.start_level, args.start_level + args.num_levels if args.num_levels else NO_LEVEL)}
    if args.distribution_mode == "exploration":
        level = load_procgen().EXPLORATION_LEVEL_SEEDS[args.env_id]
        sets = {"training": range(level, level + 1)}
    if (start := args.eval_start_level) is not None:
        sets["test"] = range(start, start + args.eval_num_levels if args.eval_num_levels else NO_LEVEL)
    return sets


class VectorEnv:
    """N copies of a game, which Procgen steps in threads of its own; each episode is played on one of the levels."""

    def __init__(
        self, env_id: str, num_envs: int, distribution_mode: str, levels: range, num_threads: int, video: bool = False
    ):
        self.options = {
            "num": num_envs, "env_name": env_id, "distribution_mode": distribution_mode,
            "num_threads": min(num_threads, num_envs), "render_mode": "rgb_array" if video else None,
        }  # fmt: skip
        if distribution_mode != "exploration":  # which has a level of its own
            self.options |= {"start_level": levels.start, "num_levels": len(levels)}
        self.action_space = gym.spaces.Discrete(15)

    def reset(self, seed: int) -> np.ndarray:
        """Starts a fresh episode in every environment. Returns the first observations, (N, 64, 64, 3)."""
        self.envs = load_procgen().ProcgenGym3Env(rand_seed=seed, **self.options)  # it takes no seed later
        self.returns, self.lengths = np.zeros(self.envs.num), np.zeros(self.envs.num, np.int64)
        return self.envs.observe()[1]["rgb"]

    def step(self, actions):
        """Steps each environment by its action. An episode that ends makes way for the next in the same step.

        Returns observations (N, 64, 64, 3); rewards (N,); dones (N,); (return, length) of each episode that ended.
        """
        self.envs.act(actions)
        rewards, observations, dones = self.envs.observe()
        self.returns += rewards
        self.lengths += 1
        episodes = [(float(self.returns[i]), int(self.lengths[i])) for i in np.flatnonzero(dones)]
        self.returns[dones], self.lengths[dones] = 0.0, 0
        return observations["rgb"], rewards, dones.astype(np.float32), episodes

    def render(self) -> np.ndarray:
        """The first environment's picture for people, (512, 512, 3)."""
        return self.envs.get_info()[0]["rgb"]


class RunningStatistics:
    """Mean and variance of all rows seen so far, in float64, by the parallel algorithm (Chan et al. 1979)."""

    def __init__(self, shape: tuple[int, ...]):
        self.mean, self.var, self.count = np.zeros(shape), np.ones(shape), 1e-4

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

    def __init__(self, *arguments, reward_gamma: float):
        super().__init__(*arguments)
        self.gamma = reward_gamma
        self.return_statistics = RunningStatistics(())  # of the discounted sums of rewards
        self.statistics = {"returns": self.return_statistics}

    def reset(self, seed: int) -> np.ndarray:
        observations = super().reset(seed)
        self.discounted_returns = np.zeros(len(observations))
        return observations

    def step(self, actions):
        observations, rewards, dones, episodes = super().step(actions)
        self.discounted_returns = self.discounted_returns * self.gamma + rewards
        self.return_statistics.update(self.discounted_returns)
        rewards = (rewards / np.sqrt(self.return_statistics.var + 1e-8)).clip(-10.0, 10.0)  # [cont-8] [cont-9]
        self.discounted_returns *= 1.0 - dones
        return observations, rewards, dones, episodes


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
            if noise is None:
                noise = -torch.empty_like(log_probs).exponential_().log()
            action = (log_probs + noise).argmax(-1)  # a draw from the softmax (Gumbel-max)
        log_prob = log_probs.gather(-1, action.unsqueeze(-1)).squeeze(-1)
        entropy = -(log_probs.exp() * log_probs).sum(-1)
        return action, log_prob, entropy, self.critic(hidden).squeeze(-1)


def flatten_parameters(agent: nn.Module) -> nn.Parameter:
    """Moves the parameters into one vector and their gradients into another, of which the layers keep views, so that
    gradient clipping and Adam are one operation each instead of one a layer."""
    flat = nn.Parameter(torch.cat([parameter.detach().flatten() for parameter in agent.parameters()]))
    flat.grad, end = torch.zeros_like(flat), 0
    for parameter in agent.parameters():
        start, end = end, end + parameter.numel()
        parameter.data = flat.data[start:end].view_as(parameter)
        parameter.grad = flat.grad[start:end].view_as(parameter)
    return flat


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
    Returns the loss and, by metric name, the debug variables: scalar tensors.
    """
    if norm_adv:  # [core-7]
        advantages = (advantages - advantages.mean()) / (advantages.std(correction=0) + 1e-8)
    log_ratio = log_prob - old_log_probs
    ratio = log_ratio.exp()
    clipped_ratio = ratio.clamp(1 - clip_coef, 1 + clip_coef)
    policy_loss = -torch.min(advantages * ratio, advantages * clipped_ratio).mean()  # [core-8]
    value_error = (value - returns).square()
    if clip_vloss:  # [core-9]
        clipped_value = old_values + (value - old_values).clamp(-clip_coef, clip_coef)
        value_error = torch.max(value_error, (clipped_value - returns).square())
    value_loss = 0.5 * value_error.mean()
    mean_entropy = entropy.mean()
    loss = policy_loss - ent_coef * mean_entropy + vf_coef * value_loss  # [core-10]
    with torch.no_grad():  # [core-12]
        debug = {
            "losses/value_loss": value_loss,
            "losses/policy_loss": policy_loss,
            "losses/entropy": mean_entropy,
            "losses/old_approx_kl": -log_ratio.mean(),
            "losses/approx_kl": (ratio - 1 - log_ratio).mean(),
            "losses/clipfrac": ((ratio - 1).abs() > clip_coef).float().mean(),
        }
    return loss, debug


# ---------------------------------------------------------------------------------------------------------- Checkpoints

METRICS = [
    "charts/episodic_return", "charts/episodic_length", "charts/SPS", "charts/learning_rate",
    "losses/value_loss", "losses/policy_loss", "losses/entropy", "losses/old_approx_kl", "losses/approx_kl",
    "losses/clipfrac", "losses/explained_variance",
]  # fmt: skip
EPISODE = ["global_step", "episodic_return", "episodic_length", "seconds"]
EVALUATION = ["global_step", "levels", "episodic_return", "episodic_length"]
CHECKPOINT = {
    "script": str, "args": dict, "update": int, "global_step": int, "seconds": float, "recent_returns": list,
    "model": dict, "optimizer": dict, "rng": dict, "torch_rng": torch.Tensor, "statistics": dict,
}  # fmt: skip


def write_whole(path: Path, content: bytes) -> None:
    """Writes a temporary file, which takes the place of `path` once it is on the disk: all of it or nothing."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


class RunLog:
    """metrics.csv (a row an update), episodes.csv (a row an episode) and the TensorBoard events of a run folder. What
    they hold beyond the step `resumed_at` is dropped, since the run is about to do it again."""

    def __init__(self, folder: Path, resumed_at: int):
        self.files = {}
        for name, columns in (("metrics.csv", ["global_step", *METRICS]), ("episodes.csv", EPISODE)):
            rows = [",".join(columns) + "\n"]
            if resumed_at:  # a kill can leave half a row at the end
                written = (folder / name).read_text().splitlines(keepends=True)[1:]
                rows += [row for row in written if row.endswith("\n") and int(row.split(",")[0]) <= resumed_at]
            write_whole(folder / name, "".join(rows).encode())
            self.files[name] = (folder / name).open("a", newline="")
        self.events = event_file_writer.EventFileWriter(str(folder))
        self.events.add_event(Event(step=resumed_at + 1, session_log=SessionLog(status=SessionLog.START)))

    def write(self, global_step: int, metrics: dict[str, float], episodes: list[tuple]) -> None:
        """Adds an update, and the episodes that ended in it as rows of EPISODE."""
        points = [(step, dict(zip(METRICS, return_and_length))) for step, *return_and_length, _ in episodes]
        for step, scalars in [*points, (global_step, {name: metrics[name] for name in METRICS[2:]})]:
            summary = Summary(value=[Summary.Value(tag=name, simple_value=value) for name, value in scalars.items()])
            self.events.add_event(Event(wall_time=time.time(), step=step, summary=summary))
        csv.writer(self.files["episodes.csv"], lineterminator="\n").writerows(episodes)
        csv.writer(self.files["metrics.csv"], lineterminator="\n").writerow([global_step, *map(metrics.get, METRICS)])
        for file in self.files.values():
            file.flush()

    def sync(self) -> None:
        """Puts everything on the disk: a checkpoint counts on the rows before it."""
        self.events.flush()
        for file in self.files.values():
            os.fsync(file.fileno())

    def close(self) -> None:
        for file in (self.events, *self.files.values()):
            file.close()


def create_run_folder(args: Args) -> Path:
    """Makes runs/{env_id}__{exp_name}__{seed}__{time} with the script and all that is needed to repeat the run."""
    cpu_info = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    cpu = re.search("model name\t: (.*)", cpu_info)
    describe = ["describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]  # the commit, not the nearest tag
    git = ["git", "-C", str(Path(__file__).resolve().parent), *describe]
    commit = subprocess.run(git, capture_output=True, text=True).stdout.strip() if shutil.which("git") else ""
    needs = re.findall(r'^#   "([\w-]+)', Path(__file__).read_text(), re.MULTILINE)  # the metadata on top
    versions = {one.name: one.version for one in importlib.metadata.distributions() if one.name in needs}
    gpu = torch.cuda.get_device_name() if args.cuda else None
    config = {
        "arguments": asdict(args),
        "command": shlex.join(["python", *sys.argv]),
        "versions": {"python": platform.python_version(), **versions},
        "hardware": {"cpu": cpu and cpu[1], "cores": os.cpu_count(), "gpu": gpu},
        "git_commit": commit or None,
    }
    name, started = re.sub("[/:]", "_", f"{args.env_id}__{args.exp_name}__{args.seed}__"), int(time.time())
    first_run = not Path("runs").exists()
    folder = Path("runs", f"{name}{started}")
    try:
        folder.parent.mkdir(exist_ok=True)
        while True:
            with contextlib.suppress(FileExistsError):  # taken by a run that started in the same second
                folder.mkdir()
                break
            started += 1
            folder = Path("runs", f"{name}{started}")
        (folder / "checkpoints").mkdir()
        (folder / "videos").mkdir()
        shutil.copy(__file__, folder)
        write_whole(folder / "config.json", json.dumps(config, indent=2).encode())
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        if first_run:
            with contextlib.suppress(OSError):  # other runs are in it by now
                folder.parent.rmdir()
        fail(f"{folder}: can't be written ({error.strerror}); start where a folder runs/ can be, with room on the disk")
    return folder


def load_checkpoint(path: str) -> tuple[Path, dict]:
    """Reads a checkpoint, or a run folder's last one, and never runs code from it. Returns the file and its content;
    ends the program with one line if it is missing, damaged or another script's."""
    file = Path(path)
    if file.is_dir():
        found = [checkpoint for checkpoint in file.glob("checkpoints/*.pt") if checkpoint.stem.isdigit()]
        file = max(found, key=lambda checkpoint: int(checkpoint.stem), default=file / "checkpoints" / "*.pt")
    if not file.is_file():
        fail(f"{path}: there is no {file}; name a run folder that has saved a checkpoint, or a checkpoint")
    try:
        if (damaged := zipfile.ZipFile(file).testzip()) is not None:
            raise ValueError(f"{damaged} has a wrong checksum")
        state = torch.load(file, map_location="cpu", weights_only=True)
        if state["script"] != Path(__file__).stem:
            fail(f"{file}: was written by {state['script']}.py; use that script")
        wrong = [name for name, kind in CHECKPOINT.items() if not isinstance(state[name], kind)]
        run, numbers = Args(**state["args"]), {float: int | float, float | None: int | float | None}
        for field in fields(Args):
            if not isinstance(state["args"][field.name], numbers.get(field.type, field.type)):
                wrong.append(field.name)
        if not 0 < state["update"] <= run.num_updates or state["global_step"] != state["update"] * run.batch_size:
            wrong.append("update or global_step")
        if not 0 <= state["seconds"] < math.inf or not all(isinstance(x, float) for x in state["recent_returns"]):
            wrong.append("seconds or recent_returns")
        if wrong:
            raise ValueError(f"unfit {', '.join(wrong)}")
    except Exception as error:  # a damaged or hostile file can raise anything
        fail(f"{file}: not a whole checkpoint of this script ({type(error).__name__}: {error}); name another one")
    return file, state


def merge_arguments(args: Args, saved: dict) -> Args:
    """The arguments that the checkpoint was made with. The command line chooses how to evaluate, and nothing else."""
    free = {"resume", "evaluate"}
    free |= {"episodes", "seed", "cuda", "capture_video", "num_threads"} if args.evaluate else set()
    typed = {
        word.split("=")[0].strip("-").replace("-", "_").removeprefix("no_") for word in sys.argv if word[:2] == "--"
    }
    typed |= {field.name for field in fields(Args) if getattr(args, field.name) != field.default}
    free |= {"eval_start_level", "eval_num_levels"} & typed if args.evaluate else set()
    for name in saved.keys() & typed - free:
        if (value := getattr(args, name)) != saved[name]:
            fail(f"--{name.replace('_', '-')} {value}: the checkpoint has {saved[name]}; leave the flag out")
    return Args(**{name: getattr(args, name) if name in free else value for name, value in saved.items()})


# ----------------------------------------------------------------------------------------------------------- Evaluation


@torch.no_grad()
def evaluate(agent: Agent, args: Args, levels: range, episodes: int, video: Path | None = None) -> list[tuple]:
    """Plays episodes on the levels with actions drawn from the policy, on environments and random numbers of its own:
    the same agent and seed give the same episodes. `video` is an mp4 file for the first. Returns each (return, length),
    of the game's own rewards."""
    device, results, batch = next(agent.parameters()).device, [], 64
    *seeds, noise_seed = np.random.SeedSequence(args.seed, spawn_key=(1,)).generate_state(episodes // batch + 2)
    rng = np.random.default_rng(noise_seed)
    with contextlib.ExitStack() as stack:
        if video:
            from moviepy.video.io.ffmpeg_writer import FFMPEG_VideoWriter

            unfinished = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=video.parent)), video.name)
            writer = FFMPEG_VideoWriter(str(unfinished), (512, 512), fps=15)
        for start in range(0, episodes, batch):
            n = min(batch, episodes - start)  # each of these plays one episode: a count of n would favour the short
            envs = VectorEnv(args.env_id, n, args.distribution_mode, levels, args.num_threads, bool(video))
            observation, ended = envs.reset(int(seeds[start // batch] >> 1)), [None] * n
            while None in ended:
                if video and results == [] and ended[0] is None:
                    writer.write_frame(envs.render())
                noise = torch.from_numpy(rng.gumbel(size=(n, envs.action_space.n)).astype(np.float32)).to(device)
                action, *_ = agent.get_action_and_value(torch.from_numpy(observation).to(device), noise=noise)
                observation, _, dones, episodes_ended = envs.step(envs.action_space.start + action.cpu().numpy())
                for i, episode in zip(np.flatnonzero(dones), episodes_ended):
                    ended[i] = ended[i] or episode
            results += ended
        if video:
            writer.close()
            unfinished.replace(video)
    return results


def record_evaluation(agent: Agent, args: Args, folder: Path, global_step: int) -> None:
    """Evaluates on training and test levels; adds a row an episode to the run folder's evaluation.csv, from which it
    drops rows of this step and later, since a resumed run does them again."""
    file, rows, means = folder / "evaluation.csv", [",".join(EVALUATION) + "\n"], {}
    if file.exists():
        rows += [row for row in file.read_text().splitlines(True)[1:] if int(row.split(",")[0]) < global_step]
    for name, levels in level_sets(args).items():
        results = evaluate(agent, args, levels, args.episodes)
        rows += [f"{global_step},{name},{episode_return},{length}\n" for episode_return, length in results]
        means[name] = np.mean([episode_return for episode_return, _ in results])
    write_whole(file, "".join(rows).encode())
    print(f"step {global_step:,}: mean return", ", ".join(f"on the {k} levels {v:.2f}" for k, v in means.items()))


# ------------------------------------------------------------------------------------------------------------- Training


def attempt(action, *arguments, **options):
    """Calls the tracker: whatever goes wrong with it costs a warning, never the training."""
    try:
        return action(*arguments, **options)
    except Exception as error:  # a tracker can fail in any way
        print(f"warning: Weights & Biases failed, training goes on: {error}", file=sys.stderr)


def start_tracker(args: Args, folder: Path):
    """Opens the run at Weights & Biases, which from then on follows the TensorBoard events, and uploads the script."""
    import wandb

    wandb.tensorboard.patch(root_logdir=str(folder))
    where = {"project": args.wandb_project_name, "entity": args.wandb_entity, "name": folder.name}
    tracker = wandb.init(**where, id=re.sub(r"\W", "-", folder.name), resume="allow", config=asdict(args))
    tracker.save(str(folder / Path(__file__).name), base_path=str(folder), policy="now")
    return tracker


def track_video(tracker, video: Path, global_step: int) -> None:
    import wandb

    tracker.log({"video": wandb.Video(str(video)), "global_step": global_step})


def tune_malloc() -> None:
    """Has glibc keep and reuse all memory that is freed. Otherwise each large activation is given back to Linux and
    taken anew page by page, a good part of an update's time on a CPU. Without glibc there is nothing to do."""
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL("libc.so.6").mallopt
        for parameter, value in ((-4, 0), (-1, 2**31 - 1), (-2, 2**28)):  # M_MMAP_MAX, M_TRIM_THRESHOLD, M_TOP_PAD
            mallopt(parameter, value)


@np.errstate(all="ignore")  # what is not finite ends the run with a line of its own
def main(args: Args) -> Path | None:
    """Trains, resumes or evaluates, as the arguments say. Returns the run folder of a training."""
    if args.resume or args.evaluate:
        if args.resume and (args.evaluate or not Path(args.resume).is_dir()):
            fail(f"--resume {args.resume}: takes a run folder, and no --evaluate beside it")
        checkpoint, state = load_checkpoint(args.resume or args.evaluate)
        args = merge_arguments(args, state["args"])
    validate(args)
    if args.malloc_tuning:
        tune_malloc()
    torch.set_num_threads(args.num_threads)
    if args.cuda and args.torch_deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    device = torch.device("cuda" if args.cuda else "cpu")

    # Set up
    levels = level_sets(args)
    where = (args.env_id, args.num_envs, args.distribution_mode, levels["training"], args.num_threads)
    envs = NormalizedVectorEnv(*where, reward_gamma=args.reward_gamma)
    num_actions = int(envs.action_space.n)
    torch.manual_seed(args.seed)
    rng = np.random.default_rng(np.random.SeedSequence(args.seed, spawn_key=(2,)))
    agent = Agent(num_actions, args.precision, args.channels_last).to(device)
    parameters = flatten_parameters(agent)
    optimizer = torch.optim.Adam([parameters], lr=args.learning_rate, eps=1e-5, fused=True)  # [core-3]
    update, global_step, seconds, recent_returns = 0, 0, 0.0, deque(maxlen=100)
    if args.resume or args.evaluate:
        try:
            agent.load_state_dict(state["model"])
            moments = {name: value.contiguous() for name, value in state["optimizer"]["state"][0].items()}
            if [moments[name].shape for name in ("step", "exp_avg", "exp_avg_sq")] != [(), *2 * [parameters.shape]]:
                raise ValueError("Adam's state is of another size")
            optimizer.load_state_dict(optimizer.state_dict() | {"state": {0: moments}})
            rng.bit_generator.state = state["rng"]
            torch.set_rng_state(state["torch_rng"])
            for name, statistics in envs.statistics.items():
                statistics.load_state_dict(state["statistics"][name])
        except Exception as error:  # as in load_checkpoint
            fail(f"{checkpoint}: does not fit {args.env_id} ({type(error).__name__}: {error}); name another one")
        update, global_step, seconds = state["update"], state["global_step"], state["seconds"]
        recent_returns.extend(state["recent_returns"])
    if args.evaluate:
        video, means = checkpoint.with_suffix(".mp4") if args.capture_video else None, []
        for name, played in levels.items():
            results = np.array(evaluate(agent, args, played, args.episodes, None if means else video))  # (episodes, 2)
            for episode, (episodic_return, length) in enumerate(results):
                print(f"episode {episode}: return {episodic_return:.2f}, length {length:.0f}")
            (mean, mean_length), (std, _) = results.mean(0), results.std(0)
            means.append(mean)
            where = f"on the {name} levels {played.start} to {played.stop - 1}"
            summary = f"return {mean:.2f} ± {std:.2f}, length {mean_length:.1f} over {args.episodes} episodes {where}"
            print(f"{checkpoint}: {summary}")
        if len(means) == 2:
            print(f"{checkpoint}: the return is {means[0] - means[1]:.2f} higher on the training levels")
        return None
    if args.resume:
        folder, args.resume = checkpoint.parent.parent, None
        if update == args.num_updates:
            print(f"{folder}: is complete; see what it learned with --evaluate {folder}")
            return folder
        if missing := [name for name in ("metrics.csv", "episodes.csv") if not (folder / name).is_file()]:
            fail(f"{folder}: lacks {' and '.join(missing)}, which a resumed run adds to; name a whole run folder")
        print(f"{folder}: goes on after update {update} of {args.num_updates}, step {global_step:,}")
    else:
        folder = create_run_folder(args)
    tracker = attempt(start_tracker, args, folder) if args.track else None
    try:
        log = RunLog(folder, resumed_at=global_step)
    except (OSError, ValueError) as error:
        fail(f"{folder}: metrics.csv or episodes.csv can't be read or written ({error}); mend it or start anew")
    num_checkpoints = min(args.checkpoints, args.num_updates)
    checkpoint_updates = {round(args.num_updates * (i + 1) / num_checkpoints) for i in range(num_checkpoints)}
    resume_command = shlex.join(["python", sys.argv[0], "--resume", str(folder)])
    stop_signals, handlers = [], {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def stop_after_update(number, frame):
        stop_signals.append(number)
        signal.signal(number, handlers[number])  # the next one ends the run at once

    for number in handlers:
        signal.signal(number, stop_after_update)
    threading.excepthook = lambda failure: None  # the event writer's thread also hands its error to our next call

    # T = num_steps, N = num_envs, B = T · N samples in a rollout
    T, N = args.num_steps, args.num_envs
    obs = torch.zeros((T, N, *FRAME.shape), dtype=torch.uint8, device=device)
    actions = torch.zeros((T, N), dtype=torch.int64, device=device)
    acted_log_probs, acted_values = torch.zeros((T, N), device=device), torch.zeros((T, N), device=device)
    rewards, dones = np.zeros((T, N), np.float32), np.zeros((T, N), np.float32)
    fresh_episodes, start_time, last_status = True, time.perf_counter() - seconds, -math.inf
    try:
        while update < args.num_updates:
            update += 1
            # Anneal
            remaining = 1.0 - (update - 1) / args.num_updates  # 1 in the first update, 1 / num_updates in the last
            learning_rate = args.learning_rate * (remaining if args.anneal_lr else 1.0)  # [core-4]
            clip_coef = args.clip_coef * (remaining if args.anneal_clip else 1.0)  # [aux-1]
            optimizer.param_groups[0]["lr"] = learning_rate

            # Collect
            if fresh_episodes:  # after every checkpoint, so that a resumed run needs no environment's inner state
                seed = np.random.SeedSequence(args.seed, spawn_key=(0, update - 1)).generate_state(1)[0]
                next_obs, next_done = envs.reset(int(seed >> 1)), np.ones(N, np.float32)  # Procgen takes 31 bits
            noise = torch.from_numpy(rng.gumbel(size=(T, N, num_actions)).astype(np.float32)).to(device)
            episodes = []
            for step in range(T):  # [core-1] obs and dones carry on from one rollout to the next
                obs[step], dones[step] = torch.from_numpy(next_obs), next_done
                with torch.no_grad():
                    acted = agent.get_action_and_value(obs[step], noise=noise[step])
                actions[step], acted_log_probs[step], _, acted_values[step] = acted
                env_actions = envs.action_space.start + actions[step].cpu().numpy()
                next_obs, rewards[step], next_done, ended = envs.step(env_actions)
                global_step += args.num_envs
                for episode in ended:
                    episodes.append((global_step, *episode, round(time.perf_counter() - start_time, 3)))

            # Advantages
            with torch.no_grad():
                next_value = agent.get_value(torch.from_numpy(next_obs).to(device)).cpu().numpy()
            values = acted_values.cpu().numpy()
            next_step = (next_value, next_done)
            advantages, returns = compute_gae(rewards, values, dones, *next_step, args.gamma, args.gae_lambda)
            b_advantages, b_returns = (torch.from_numpy(x).to(device).flatten() for x in (advantages, returns))
            b_obs, b_actions = obs.flatten(0, 1), actions.flatten()  # (B, 64, 64, 3), (B,)
            b_log_probs, b_values = acted_log_probs.flatten(), acted_values.flatten()  # (B,)

            # Epochs of minibatches
            debug = []
            for _ in range(args.update_epochs):
                permutation = torch.from_numpy(rng.permutation(args.batch_size)).to(device)  # [core-6]
                rollout = (b_obs, b_actions, b_log_probs, b_values, b_advantages, b_returns)
                shuffled = (x[permutation].split(args.batch_size // args.num_minibatches) for x in rollout)
                for mb_obs, mb_actions, *from_rollout in zip(*shuffled):
                    _, log_prob, entropy, value = agent.get_action_and_value(mb_obs, mb_actions)
                    coefficients = (clip_coef, args.norm_adv, args.clip_vloss, args.ent_coef, args.vf_coef)
                    loss, mb_debug = ppo_loss(log_prob, entropy, value, *from_rollout, *coefficients)
                    debug.append(mb_debug)
                    parameters.grad.zero_()
                    loss.backward()
                    norm = parameters.grad.norm()
                    parameters.grad.mul_((args.max_grad_norm / (norm + 1e-6)).clamp(max=1.0))  # [core-11]
                    optimizer.step()
                epoch_kl = torch.stack([d["losses/approx_kl"] for d in debug[-args.num_minibatches :]]).mean()
                if args.target_kl is not None and epoch_kl > args.target_kl:  # [aux-3]
                    break

            # Log
            seconds = time.perf_counter() - start_time
            metrics = {name: torch.stack([d[name] for d in debug]).mean().item() for name in debug[0]}
            finite = {
                "a loss": np.isfinite(list(metrics.values())).all(),
                "a weight": parameters.isfinite().all(),
            }
            if what := " and ".join(name for name, is_finite in finite.items() if not is_finite):
                fail(f"update {update}: {what} is not finite; {folder} keeps the checkpoints before it", status=1)
            variance, varies = returns.var(), returns.var() > 1e-12 * np.square(returns).mean()  # not by rounding alone
            recent_returns.extend(episode[1] for episode in episodes)
            metrics |= {
                "losses/explained_variance": 1 - (returns - values).var() / variance if varies else math.nan,
                "charts/episodic_return": np.mean([episode[1] for episode in episodes]) if episodes else math.nan,
                "charts/episodic_length": np.mean([episode[2] for episode in episodes]) if episodes else math.nan,
                "charts/SPS": global_step / seconds,
                "charts/learning_rate": learning_rate,
            }
            log.write(global_step, metrics, episodes)

            # Checkpoint
            stopping = bool(stop_signals)  # read once: a signal can come at any line
            fresh_episodes = stopping or update in checkpoint_updates
            if fresh_episodes:
                if args.eval_start_level is not None and update in checkpoint_updates:
                    record_evaluation(agent, args, folder, global_step)
                log.sync()
                state = {
                    "script": Path(__file__).stem, "args": asdict(args), "update": update, "global_step": global_step,
                    "seconds": seconds, "recent_returns": list(recent_returns),
                    "model": agent.state_dict(), "optimizer": optimizer.state_dict(),
                    "rng": rng.bit_generator.state, "torch_rng": torch.get_rng_state(),
                    "statistics": {name: statistics.state_dict() for name, statistics in envs.statistics.items()},
                }  # fmt: skip
                torch.save(state, content := io.BytesIO())
                write_whole(folder / "checkpoints" / f"{update}.pt", content.getvalue())
                if args.capture_video:
                    evaluate(agent, args, levels["training"], 1, video := folder / "videos" / f"{update}.mp4")
                    if tracker:
                        attempt(track_video, tracker, video, global_step)

            # Status
            live = sys.stdout.isatty()
            if time.perf_counter() - last_status > (0.2 if live else 10) or update == args.num_updates or stopping:
                last_status = time.perf_counter()
                steps_per_second = global_step / seconds
                left = (args.num_updates - update) * args.batch_size / steps_per_second
                mean_return = f"{np.mean(recent_returns):.1f}" if recent_returns else "none yet"
                status = f"{update / args.num_updates:4.0%}  step {global_step:,}  {steps_per_second:,.0f} steps/s  "
                status += f"{left:.0f} s left  mean return of the last 100 episodes {mean_return}"
                print(f"\r{status}\033[K" if live else status, end="" if live else "\n", flush=True)
            if stopping:
                break
    except OSError as error:
        go_on = f"go on with: {resume_command}" if any((folder / "checkpoints").iterdir()) else "start anew"
        fail(f"{folder}: {error}; what was saved is whole. When it is mended, {go_on}", status=1)
    finally:
        threading.excepthook = threading.__excepthook__
        for number, handler in handlers.items():
            signal.signal(number, handler)
        with contextlib.suppress(OSError):  # on a full disk; the last checkpoint has synced all that belongs to it
            log.close()
        if tracker:
            attempt(tracker.finish)
            attempt(sys.modules["wandb"].tensorboard.unpatch)
    print("\n" if live else "", f"run folder: {folder}", sep="")
    if stopping and update < args.num_updates:
        print(f"stopped after update {update}, which is saved; go on with: {resume_command}")
        raise SystemExit(128 + stop_signals[0])
    return folder


if __name__ == "__main__":
    main(parse_arguments())
