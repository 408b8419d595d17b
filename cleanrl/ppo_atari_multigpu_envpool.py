# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "envpool==1.2.5",
#   "gymnasium==1.4.0",
#   "moviepy==2.2.1",
#   "numpy==2.4.6",
#   "tensorboard==2.21.0",
#   "torch==2.13.0",
#   "tyro==1.0.17",
# ]
# ///
"""PPO for Atari games from pixels by EnvPool, data-parallel: one process per GPU, on one machine or many.

    torchrun --standalone --nnodes=1 --nproc_per_node=2 cleanrl/ppo_atari_multigpu_envpool.py --env-id Breakout-v5
    torchrun --standalone --nnodes=1 --nproc_per_node=2 cleanrl/ppo_atari_multigpu_envpool.py --resume runs/RUN
    python cleanrl/ppo_atari_multigpu_envpool.py --evaluate runs/RUN

Parent: ppo_atari_envpool.py. Changes: (1) the environments are shared out among processes, which learn what one would:
gradients, advantage statistics, KL and metrics are averaged over them; (2) the first process writes the run folder,
with the episodes and generators of all; (3) a group that torchrun restarts goes on from the last checkpoint.
Details: core-1 to core-12, atari-1 to atari-9, aux-1 (--anneal-clip), aux-2, aux-3 (--target-kl), plus-1
(--bootstrap-truncated).
"""

import atexit
import contextlib
import csv
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
import warnings
import zipfile
from collections import deque
from dataclasses import asdict, dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from types import SimpleNamespace

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # read when numpy loads; the large products are torch's

import envpool
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
    episodes: int = 10  # episodes that --evaluate plays
    # environment
    env_id: str = "Breakout-v5"  # EnvPool id of the game
    total_timesteps: int = 10_000_000  # steps in the run, over all environments; a step is 4 frames
    num_envs: int = 8  # environments that are stepped together
    num_steps: int = 128  # steps of each environment in a rollout
    # PPO
    learning_rate: float = 2.5e-4  # step size of Adam
    anneal_lr: bool = True  # let the learning rate fall linearly
    gamma: float = 0.99  # discount factor
    gae_lambda: float = 0.95  # lambda of generalised advantage estimation
    num_minibatches: int = 4  # minibatches in an epoch
    update_epochs: int = 4  # passes over each rollout
    norm_adv: bool = True  # normalise the advantages in each minibatch
    clip_coef: float = 0.1  # clip range of the probability ratio, and of the value with --clip-vloss
    anneal_clip: bool = False  # let the clip range fall linearly
    clip_vloss: bool = True  # clip the value loss
    ent_coef: float = 0.01  # weight of the entropy bonus
    vf_coef: float = 0.5  # weight of the value loss
    max_grad_norm: float = 0.5  # limit of the gradient's norm, over all parameters together
    target_kl: float | None = None  # end an update after an epoch whose mean approximate KL is above this, say 0.015
    bootstrap_truncated: bool = False  # add the value of the last observation at a time limit; off as published
    # speed
    cores = max(1, (os.cpu_count() or 1) // int(os.environ.get("LOCAL_WORLD_SIZE", 1)))  # of this machine, a process
    backend: str = "nccl" if torch.cuda.is_available() else "gloo"  # nccl or gloo, between processes
    device_ids: tuple = ()  # GPU of each process of this machine, as in 0 0 1 1; by default 0 1 2 …
    num_threads: int = cores  # CPU threads of torch, each process; another number changes the last bits of the results
    precision: str = "fp32"  # fp32 or bf16, of the convolutions and the layer of 512; bf16 is faster
    env_threads: int = cores  # CPU threads of EnvPool, each process; the results don't depend on them
    compile: bool = False  # compile policy, advantages and update by torch.compile, for a minute or two at the start
    cuda_graphs: bool = False  # launch policy, advantages and update as one CUDA graph each

    @property
    def batch_size(self) -> int:
        return self.num_envs * self.num_steps

    @property
    def num_updates(self) -> int:
        return self.total_timesteps // self.batch_size


def fail(message: str, status: int = 2):
    """Ends the program with one line on stderr. Status 2: the user can mend it. Status 1: the run broke."""
    if os.environ.get("RANK", "0") != "0":  # the first process mostly says the same, and torchrun then ends this one
        time.sleep(3)
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
        ("gamma gae_lambda", "from 0 to 1", lambda x: 0 <= x <= 1),
        ("num_threads env_threads", "from 1 to 1024", lambda x: 1 <= x <= 1024),
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
    if args.precision not in ("fp32", "bf16"):
        fail(f"--precision {args.precision}: must be fp32 or bf16")
    if args.cuda_graphs and not args.cuda:
        fail("--cuda-graphs: needs a GPU, and --cuda; leave --cuda-graphs out")
    if args.compile and shutil.which(compiler := os.environ.get("CXX", "g++")) is None:
        fail(f"--compile: needs a C++ compiler, but there is no {compiler}; install one, or name another by CXX")
    env = make_spec(args.env_id)
    if env.observation_space != FRAMES:
        fail(f"--env-id {args.env_id}: observes {env.observation_space}, but this script needs Atari or {FRAMES}")
    if not isinstance(env.action_space, gym.spaces.Discrete):
        fail(f"--env-id {args.env_id}: acts by {env.action_space}, but this script needs Discrete; use another game")
    if args.capture_video:
        try:
            game = envpool.make_gymnasium(args.env_id, num_envs=1, render_mode="rgb_array")
            game.reset()
            game.render()
        except Exception as error:  # a graphics library can fail in any way
            fail(f"--capture-video: {args.env_id} can't be rendered: {error}; mend it or leave --capture-video out")


# ---------------------------------------------------------------------------------------------------------- Environment


FRAME = gym.spaces.Box(0, 255, (84, 84), np.uint8)
FRAMES = gym.spaces.Box(0, 255, (4, *FRAME.shape), np.uint8)  # an observation


def make_spec(env_id: str) -> SimpleNamespace:
    """EnvPool's configuration of a task, with our options in it, and its spaces; ends the program with one line if
    there is none."""
    if env_id not in (known := envpool.list_all_envs()):
        near = ", ".join(get_close_matches(env_id, known, cutoff=0.5))
        fail(f"--env-id {env_id}: unknown to EnvPool {envpool.__version__}. {near and 'Near matches: '}{near}")
    options = {"noop_max": 30, "frame_skip": 4, "gray_scale": True, "stack_num": 4}  # [atari-1] [atari-2] [atari-7]
    options |= {"img_height": 84, "img_width": 84, "use_inter_area_resize": True}  # [atari-5]
    options |= {"use_combined_action": True}  # one Discrete action instead of VizDoom's vector of buttons
    try:
        with warnings.catch_warnings(action="ignore"):  # of spaces that we don't use
            has = envpool.make_spec(env_id).config._fields
            if "use_fire_reset" in has:  # Atari
                options |= {"episodic_life": True, "use_fire_reset": True}  # [atari-3] [atari-4]
            spec = envpool.make_spec(env_id, **{name: value for name, value in options.items() if name in has})
            return SimpleNamespace(
                config=spec.config, observation_space=spec.observation_space, action_space=spec.action_space
            )
    except Exception as error:  # of a package or a library that the task needs
        fail(f"--env-id {env_id}: EnvPool can't make it: {error}; mend it or use another task")


class VectorEnv:
    """N tasks stepped together by EnvPool's threads, with the last 4 frames as an observation and the sign of the
    reward as the reward. The step after the end of an episode resets it, whatever the action."""

    def __init__(self, env_id: str, num_envs: int, env_threads: int = 1, video_folder: str | None = None):
        spec = make_spec(env_id)
        self.action_space, self.envs, self.video, self.video_folder = spec.action_space, None, None, video_folder
        self.options = {"num_envs": num_envs, "batch_size": num_envs, "num_threads": env_threads, "task_id": env_id}
        self.options = spec.config._asdict() | self.options | {"render_mode": "rgb_array" if video_folder else None}
        del self.options["seed"], self.options["env_seed"]

    def reset(self, seeds: list[int]) -> np.ndarray:
        """Starts a fresh game in every environment. Returns the first observations, (N, 4, 84, 84)."""
        self.envs = None  # ends the old ones' threads
        seeds = [seed >> 1 for seed in seeds]  # EnvPool's are int32, and given when environments are made
        self.envs = envpool.make_gymnasium(**self.options, seed=seeds)
        observations, _ = self.envs.reset()
        self.game_returns, self.game_lengths = np.zeros(len(seeds)), np.zeros(len(seeds), np.int64)
        self.resets, self.lives = np.zeros(len(seeds), bool), np.zeros(len(seeds))  # where the next step resets
        if self.video_folder and not os.listdir(self.video_folder):
            from moviepy.video.io.ffmpeg_writer import FFMPEG_VideoWriter

            first = self.envs.render()[0]
            self.video = FFMPEG_VideoWriter(f"{self.video_folder}/game.mp4", first.shape[1::-1], fps=15)
            self.video.write_frame(first)
        return observations

    def step(self, actions):
        """Steps each environment by its action, or resets it if its episode ended in the step before.

        Returns observations (N, 4, 84, 84); rewards (N,); dones (N,), at lost lives, true ends and time limits alike,
        which also say that the next step resets; the last observation of each episode that a time limit cut, by
        environment; (unclipped return, length) of each game that ended.
        """
        observations, rewards, terminated, truncated, info = self.envs.step(actions)
        self.game_returns += info.get("reward", rewards)
        self.game_lengths += ~self.resets
        true_ends = info.get("terminated", terminated).astype(bool)  # a lost life is none
        lives = info.get("lives", self.lives)
        in_reset = self.resets & (lives > self.lives) & (self.game_lengths > 0)  # RoadRunner's no-ops can end a game
        ended = np.flatnonzero(true_ends | truncated | in_reset)
        episodes = [(float(self.game_returns[i]), int(self.game_lengths[i])) for i in ended]
        self.game_returns[ended], self.game_lengths[ended] = 0.0, 0
        self.resets, self.lives = terminated | truncated, lives
        if self.video:
            self.video.write_frame(self.envs.render()[0])
            if 0 in ended:
                self.video = self.video.close()
        truncated_obs = {i: observations[i] for i in np.flatnonzero(truncated & ~true_ends)}
        return observations, np.sign(rewards), self.resets.astype(np.float32), truncated_obs, episodes  # [atari-6]


# ---------------------------------------------------------------------------------------------------------------- Agent


def layer_init(layer: nn.Module, gain: float = math.sqrt(2)) -> nn.Module:
    nn.init.orthogonal_(layer.weight, gain)  # [core-2]
    nn.init.zeros_(layer.bias)
    return layer


class Agent(nn.Module):
    def __init__(self, num_actions: int, precision: str = "fp32"):
        super().__init__()
        self.network = nn.Sequential(  # [atari-8]
            layer_init(nn.Conv2d(4, 32, 8, stride=4)), nn.ReLU(),  # (M, 32, 20, 20)
            layer_init(nn.Conv2d(32, 64, 4, stride=2)), nn.ReLU(),  # (M, 64, 9, 9)
            layer_init(nn.Conv2d(64, 64, 3)), nn.ReLU(),  # (M, 64, 7, 7)
            nn.Flatten(), layer_init(nn.Linear(64 * 7 * 7, 512)), nn.ReLU(),
        )  # fmt: skip
        self.actor = layer_init(nn.Linear(512, num_actions), gain=0.01)
        self.critic = layer_init(nn.Linear(512, 1), gain=1.0)
        self.dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[precision]

    def get_hidden(self, obs: torch.Tensor) -> torch.Tensor:
        """What policy and value share, (M, 512), at observations (M, 4, 84, 84) of bytes."""
        with torch.autocast(obs.device.type, torch.bfloat16, enabled=self.dtype == torch.bfloat16):
            return self.network(obs.to(self.dtype) / 255).float()  # [atari-9]

    def get_value(self, obs: torch.Tensor) -> torch.Tensor:
        return self.critic(self.get_hidden(obs)).squeeze(-1)

    def get_action_and_value(
        self, obs: torch.Tensor, action: torch.Tensor | None = None, noise: torch.Tensor | None = None
    ):
        """Action, log-prob, entropy and value, (M,) each, at observations (M, 4, 84, 84) of bytes. An action that is
        not given is drawn, from Gumbel `noise` (M, num_actions) if there is any."""
        hidden = self.get_hidden(obs)  # (M, 512)
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

    rewards, values, dones: (T, N), where dones[t] marks obs[t] as the last of an episode, which ended in step t - 1;
    next_value, next_done: (N,), of the observation after the rollout. Returns advantages and returns, (T, N) each. The
    sum over later steps is built up in sweeps that reach twice as far each, which is few operations for a GPU.
    """
    continues = 1.0 - torch.cat([dones[1:], next_done[None]])  # (T, N), 0 where the episode of step t ends with it
    decay = gamma * gae_lambda * continues
    advantages = rewards + gamma * torch.cat([values[1:], next_value[None]]) * continues - values
    for sweep in range((len(rewards) - 1).bit_length()):  # [core-5]
        reach = 2**sweep
        later_advantages, later_decay = (nn.functional.pad(x[reach:], (0, 0, 0, reach)) for x in (advantages, decay))
        advantages, decay = advantages + decay * later_advantages, decay * later_decay
    return advantages, advantages + values


def join_minibatches(advantages: torch.Tensor, valid: torch.Tensor, norm_adv: bool):
    """Normalised advantages (M,) of this process's part of a minibatch, and the weights (M,) by which a mean over its
    valid rows, averaged over the processes, is the mean over those of all parts. It stays out of CUDA graphs."""
    weights = valid / average(valid.sum()).clamp(min=1e-8)
    if norm_adv:  # [core-7]
        advantages = advantages - average(weights @ advantages)
        advantages = advantages / (average(weights @ advantages.square()).sqrt() + 1e-8)
    return advantages, weights


def ppo_loss(
    log_prob, entropy, value, old_log_probs, old_values, advantages, returns, weights,
    clip_coef: torch.Tensor, clip_vloss: bool, ent_coef: float, vf_coef: float,
):  # fmt: skip
    """Loss of a minibatch (Schulman et al. 2017, equation 9; the clipped value loss is openai/baselines').

    The first three tensors come from the networks as they are now, the other five from the rollout; all are (M,).
    `weights` are those of a mean, 0 at rows that reset an environment, which nothing is learned from.
    Returns the loss and, by metric name, the debug variables: scalar tensors.
    """
    log_ratio = log_prob - old_log_probs
    ratio = log_ratio.exp()
    clipped_ratio = ratio.clamp(1 - clip_coef, 1 + clip_coef)
    policy_loss = -weights @ torch.min(advantages * ratio, advantages * clipped_ratio)  # [core-8]
    value_error = (value - returns).square()
    if clip_vloss:  # [core-9]
        clipped_value = old_values + (value - old_values).clamp(-clip_coef, clip_coef)
        value_error = torch.max(value_error, (clipped_value - returns).square())
    value_loss = 0.5 * weights @ value_error
    mean_entropy = weights @ entropy
    loss = policy_loss - ent_coef * mean_entropy + vf_coef * value_loss  # [core-10]
    with torch.no_grad():  # [core-12]
        debug = {
            "losses/value_loss": value_loss,
            "losses/policy_loss": policy_loss,
            "losses/entropy": mean_entropy,
            "losses/old_approx_kl": -weights @ log_ratio,
            "losses/approx_kl": weights @ (ratio - 1 - log_ratio),
            "losses/clipfrac": weights @ ((ratio - 1).abs() > clip_coef).float(),
        }
    return loss, debug


class CudaGraph:
    """A function of tensors that is recorded once and then launched whole. It reads its arguments from where the first
    were: random numbers must be among them, since a replay would draw the same again."""

    def __init__(self, function):
        self.function, self.warm_ups, self.graph = function, 3, None

    def __call__(self, *arguments: torch.Tensor):
        if self.warm_ups:  # calls like any other, while libraries choose their kernels and memory
            self.warm_ups -= 1
            current, side = torch.cuda.current_stream(), torch.cuda.Stream()
            side.wait_stream(current)
            with torch.cuda.stream(side):
                result = self.function(*arguments)
            current.wait_stream(side)
            return result
        if self.graph is None:
            self.graph, self.arguments = torch.cuda.CUDAGraph(), [x.clone() for x in arguments]
            with torch.cuda.graph(self.graph):  # records, and runs nothing
                self.result = self.function(*self.arguments)
        for recorded, given in zip(self.arguments, arguments):
            recorded.copy_(given)
        self.graph.replay()
        if isinstance(self.result, dict):
            return {name: x.clone() for name, x in self.result.items()}
        return tuple(x.clone() for x in self.result)  # the next replay overwrites its own


# ---------------------------------------------------------------------------------------------------------- Checkpoints

METRICS = [
    "charts/episodic_return", "charts/episodic_length", "charts/SPS", "charts/learning_rate",
    "losses/value_loss", "losses/policy_loss", "losses/entropy", "losses/old_approx_kl", "losses/approx_kl",
    "losses/clipfrac", "losses/explained_variance",
]  # fmt: skip
EPISODE = ["global_step", "episodic_return", "episodic_length", "seconds"]
CHECKPOINT = {
    "script": str, "args": dict, "update": int, "global_step": int, "seconds": float, "recent_returns": list,
    "model": dict, "optimizer": dict, "rng": dict, "torch_rng": torch.Tensor,
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
    free = {"resume", "evaluate", "episodes"}
    free |= {"seed", "cuda", "capture_video", "num_threads"} if args.evaluate else set()
    typed = {
        word.split("=")[0].strip("-").replace("-", "_").removeprefix("no_") for word in sys.argv if word[:2] == "--"
    }
    typed |= {field.name for field in fields(Args) if getattr(args, field.name) != field.default}
    if ":" in saved["env_id"] and args.env_id != saved["env_id"]:
        fail(
            f"the checkpoint's environment {saved['env_id']} imports a module; if you trust it, type --env-id yourself"
        )
    for name in saved.keys() & typed - free:
        if (value := getattr(args, name)) != saved[name]:
            fail(f"--{name.replace('_', '-')} {value}: the checkpoint has {saved[name]}; leave the flag out")
    return Args(**{name: getattr(args, name) if name in free else value for name, value in saved.items()})


# ----------------------------------------------------------------------------------------------------------- Evaluation


@torch.no_grad()
def evaluate(agent: Agent, env_id: str, episodes: int, seed: int, video: Path | None = None) -> list[tuple[float, int]]:
    """Plays whole games with actions drawn from the policy, on an environment and random numbers of its own: the same
    agent and seed give the same games. `video` is an mp4 file for the first. Returns each (unclipped return, steps)."""
    device, results = next(agent.parameters()).device, []
    *seeds, noise_seed = np.random.SeedSequence(seed, spawn_key=(1,)).generate_state(episodes + 1).tolist()
    rng = np.random.default_rng(noise_seed)
    with tempfile.TemporaryDirectory(dir=video and video.parent) as unfinished:
        envs = VectorEnv(env_id, 1, video_folder=unfinished if video else None)
        for episode_seed in seeds:
            observation, games = envs.reset([episode_seed]), []
            while not games:
                noise = torch.from_numpy(rng.gumbel(size=(1, envs.action_space.n)).astype(np.float32)).to(device)
                action, *_ = agent.get_action_and_value(torch.from_numpy(observation).to(device), noise=noise)
                observation, _, _, _, games = envs.step(envs.action_space.start + action.cpu().numpy())
            results.append(games[0])
        envs.envs.close()  # ends the video
        if video:
            next(Path(unfinished).glob("*.mp4")).replace(video)
    return results


# ------------------------------------------------------------------------------------------------------------- Training


dist = torch.distributed


def join_processes(args: Args) -> None:
    """Joins the processes that torchrun started, and takes a GPU of this machine, if there are any. Only the first of
    all processes speaks. RANK counts over all machines, LOCAL_RANK and LOCAL_WORLD_SIZE on this one."""
    if args.backend not in ("nccl", "gloo") or (args.backend == "nccl" and not torch.cuda.is_available()):
        fail(f"--backend {args.backend}: must be gloo, or nccl where torch finds a GPU; leave --backend out")
    here, gpus = int(os.environ.get("LOCAL_WORLD_SIZE", 1)), torch.cuda.device_count()
    chosen = args.device_ids or range(here)
    if (args.device_ids or gpus) and (len(chosen) < here or not {*map(str, chosen)} <= {*map(str, range(gpus))}):
        ids = " ".join(map(str, chosen))
        fail(f"--device-ids {ids}: must name one of this machine's {gpus} GPUs for each of its {here} processes")
    if gpus:
        torch.cuda.set_device(int(chosen[int(os.environ.get("LOCAL_RANK", 0))]))
    if "RANK" in os.environ:
        if args.evaluate:
            fail("--evaluate: takes one process; start it by python instead of torchrun")
        dist.init_process_group(args.backend)
        atexit.register(dist.destroy_process_group)
    elif not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        if not args.evaluate:
            print("runs as one process; start the script by torchrun for more")
    if dist.get_rank():
        sys.stdout = open(os.devnull, "w")


def average(x: torch.Tensor) -> torch.Tensor:
    """The mean of a tensor over the processes, in place of it."""
    dist.all_reduce(x)
    return x.div_(dist.get_world_size())


def gather(rows: torch.Tensor) -> list[torch.Tensor]:
    """What each process has, in the order of their ranks; the number of rows may differ."""
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    lengths = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(dist.get_world_size())]
    dist.all_gather(lengths, torch.tensor([len(rows)], device=device))
    padded = torch.zeros((int(max(lengths)) + 1, *rows.shape[1:]), dtype=rows.dtype, device=device)
    padded[: len(rows)] = rows
    gathered = [torch.empty_like(padded) for _ in lengths]
    dist.all_gather(gathered, padded)
    return [x[: int(length)].cpu() for x, length in zip(gathered, lengths)]


def gather_bytes(content: bytes) -> list[bytes]:
    return [x.numpy().tobytes() for x in gather(torch.tensor(list(content), dtype=torch.uint8))]


def from_first(content: bytes) -> bytes:
    """What the first process has."""
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    try:
        dist.broadcast(length := torch.tensor(len(content), device=device), 0)
        received = torch.zeros(int(length) + 1, dtype=torch.uint8, device=device)  # never empty
        if dist.get_rank() == 0:
            received[:-1] = torch.from_numpy(np.frombuffer(content, np.uint8).copy())
        dist.broadcast(received, 0)
    except RuntimeError as error:
        fail(f"the first process has ended: {error}", status=1)
    return received[:-1].cpu().numpy().tobytes()


def load_from_first(path: str) -> tuple[Path, dict]:
    """What load_checkpoint gives the first process. The others' machines may have other disks."""
    file, content = b"", b""
    if dist.get_rank() == 0:
        checkpoint, _ = load_checkpoint(path)
        file, content = str(checkpoint).encode(), checkpoint.read_bytes()
    file, content = from_first(file), from_first(content)
    return Path(file.decode()), torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)


class NoLog:
    """The RunLog of all processes but the first."""

    def write(self, *_) -> None:
        pass

    close = write


def torchrun_agents() -> list[str]:
    """The torchrun agents of all machines, each of which outlives the processes that it starts and restarts."""
    file = os.environ.get("TORCHELASTIC_ERROR_FILE")  # …/AGENT/attempt_0/0/error.json
    return sorted({name.decode() for name in gather_bytes(Path(file).parents[2].name.encode() if file else b"")} - {""})


def find_run_folder(agents: list[str]) -> Path | None:
    """The run folder that processes of the same torchrun agents made, before these were started in their place."""
    for file in Path("runs").glob("*/torchrun.json"):
        with contextlib.suppress(OSError, ValueError):
            if set(json.loads(file.read_text())) & set(agents):
                return file.parent
    return None


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


@np.errstate(all="ignore")  # what is not finite ends the run with a line of its own
def main(args: Args) -> Path | None:
    """Trains, resumes or evaluates, as the arguments say. Returns the run folder of a training."""
    join_processes(args)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    agents = torchrun_agents()
    replaced = find_run_folder(agents) if rank == 0 else None
    if replaced and any((replaced / "checkpoints").glob("*.pt")):
        args.resume = str(replaced)
    args.resume = from_first((args.resume or "").encode()).decode() or None
    if args.resume or args.evaluate:
        if args.resume and (args.evaluate or not (rank or Path(args.resume).is_dir())):
            fail(f"--resume {args.resume}: takes a run folder, and no --evaluate beside it")
        checkpoint, state = load_from_first(args.resume or args.evaluate)
        state["args"] |= {"backend": args.backend, "device_ids": args.device_ids}  # of these machines
        args = merge_arguments(args, state["args"])
    validate(args)
    torch.set_num_threads(args.num_threads)
    if args.cuda and args.torch_deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    device = torch.device("cuda" if args.cuda else "cpu")

    # Set up
    minibatch = args.batch_size // args.num_minibatches
    if args.num_envs % world_size or minibatch % world_size:
        shares = f"--num-envs {args.num_envs} with minibatches of {minibatch} can't be shared evenly"
        fail(f"{shares} by {world_size} processes; use multiples of that, or fewer processes")
    envs = VectorEnv(args.env_id, args.num_envs // world_size, args.env_threads)
    num_actions = int(envs.action_space.n)
    torch.manual_seed(args.seed)
    rng = np.random.default_rng(np.random.SeedSequence(args.seed, spawn_key=(2, rank)))
    agent = Agent(num_actions, args.precision).to(device)
    parameters = flatten_parameters(agent)
    dist.broadcast(parameters.data, 0)  # [aux-2] the same seed gave the same, if torch is the same everywhere
    optimizer = torch.optim.Adam([parameters], lr=args.learning_rate, eps=1e-5, fused=True)  # [core-3]
    update, global_step, seconds, recent_returns = 0, 0, 0.0, deque(maxlen=100)
    if args.resume and len(state["rng"]) != world_size:
        fail(f"{checkpoint}: was written by {len(state['rng'])} processes, not {world_size}; start as many by torchrun")
    if args.resume or args.evaluate:
        state["rng"] = state["rng"].get(rank)
        try:
            agent.load_state_dict(state["model"])
            moments = {name: value.contiguous() for name, value in state["optimizer"]["state"][0].items()}
            if [moments[name].shape for name in ("step", "exp_avg", "exp_avg_sq")] != [(), *2 * [parameters.shape]]:
                raise ValueError("Adam's state is of another size")
            optimizer.load_state_dict(optimizer.state_dict() | {"state": {0: moments}})
            rng.bit_generator.state = state["rng"]
            torch.set_rng_state(state["torch_rng"])
        except Exception as error:  # as in load_checkpoint
            fail(f"{checkpoint}: does not fit {args.env_id} ({type(error).__name__}: {error}); name another one")
        update, global_step, seconds = state["update"], state["global_step"], state["seconds"]
        recent_returns.extend(state["recent_returns"])
    if args.evaluate:
        video = checkpoint.with_suffix(".mp4") if args.capture_video else None
        results = np.array(evaluate(agent, args.env_id, args.episodes, args.seed, video))  # (episodes, 2)
        for episode, (episodic_return, length) in enumerate(results):
            print(f"episode {episode}: return {episodic_return:.2f}, length {length:.0f}")
        (mean, mean_length), (std, _) = results.mean(0), results.std(0)
        print(f"{checkpoint}: return {mean:.2f} ± {std:.2f}, length {mean_length:.1f} over {args.episodes} episodes")
        return None
    if args.resume:
        folder, args.resume = checkpoint.parent.parent, None
        if update == args.num_updates:
            print(f"{folder}: is complete; see what it learned with --evaluate {folder}")
            return folder
        missing = [name for name in ("metrics.csv", "episodes.csv") if not (folder / name).is_file()]
        if missing and rank == 0:
            fail(f"{folder}: lacks {' and '.join(missing)}, which a resumed run adds to; name a whole run folder")
        print(f"{folder}: goes on after update {update} of {args.num_updates}, step {global_step:,}")
    else:
        folder = (replaced or create_run_folder(args)) if rank == 0 else Path()
        if rank == 0:
            write_whole(folder / "torchrun.json", json.dumps(agents).encode())
        folder = Path(from_first(str(folder).encode()).decode())
    tracker = attempt(start_tracker, args, folder) if args.track and rank == 0 else None
    try:
        log = RunLog(folder, resumed_at=global_step) if rank == 0 else NoLog()
    except (OSError, ValueError) as error:
        fail(f"{folder}: metrics.csv or episodes.csv can't be read or written ({error}); mend it or start anew")
    num_checkpoints = min(args.checkpoints, args.num_updates)
    checkpoint_updates = {round(args.num_updates * (i + 1) / num_checkpoints) for i in range(num_checkpoints)}
    trust = ["--env-id", args.env_id] if ":" in args.env_id else []  # see merge_arguments
    resume_command = shlex.join(["python", sys.argv[0], "--resume", str(folder), *trust])
    stop_signals, handlers = [], {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def stop_after_update(number, frame):
        stop_signals.append(number)
        if "RANK" not in os.environ:  # torchrun hands every signal on, and so repeats a Ctrl-C
            signal.signal(number, handlers[number])  # the next one ends the run at once

    for number in handlers:
        signal.signal(number, stop_after_update)
    threading.excepthook = lambda failure: None  # the event writer's thread also hands its error to our next call

    def act(obs, noise):
        with torch.no_grad():
            return agent.get_action_and_value(obs, noise=noise)

    def estimate(rewards, values, dones, next_value, next_done):
        return compute_gae(rewards, values, dones, next_value, next_done, args.gamma, args.gae_lambda)

    def loss_of(mb_obs, mb_actions, *from_rollout):
        _, log_prob, entropy, value = agent.get_action_and_value(mb_obs, mb_actions)
        coefficients = (args.clip_vloss, args.ent_coef, args.vf_coef)
        return ppo_loss(log_prob, entropy, value, *from_rollout, *coefficients)

    def gradient(*minibatch):
        loss, mb_debug = loss_of(*minibatch)
        parameters.grad.zero_()
        loss.backward()
        return mb_debug

    if args.compile:
        act, estimate, loss_of = map(torch.compile, (act, estimate, loss_of))
    if args.cuda_graphs:
        act, estimate, gradient = map(CudaGraph, (act, estimate, gradient))

    # T = num_steps, N = num_envs of this process, B = T · N samples in its part of a rollout
    T, N = args.num_steps, args.num_envs // world_size
    channels_last = torch.zeros((T, N, *FRAME.shape, 4), dtype=torch.uint8, device=device)  # what convolutions prefer
    obs = channels_last.permute(0, 1, 4, 2, 3)  # (T, N, 4, 84, 84)
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
            clip_coef = torch.tensor(clip_coef, device=device)  # a number would stay as it was recorded or compiled
            optimizer.param_groups[0]["lr"] = learning_rate

            # Collect
            if fresh_episodes:  # after every checkpoint, so that a resumed run needs no environment's inner state
                seeds = np.random.SeedSequence(args.seed, spawn_key=(0, update - 1)).generate_state(args.num_envs)
                seeds = seeds[rank * N : (rank + 1) * N]  # [aux-2]
                next_obs, next_done = envs.reset(seeds.tolist()), np.zeros(N, np.float32)  # 1 where a step will reset
            noise = torch.from_numpy(rng.gumbel(size=(T, N, num_actions)).astype(np.float32)).to(device)
            episodes, truncated = [], []
            for step in range(T):  # [core-1] obs and dones carry on from one rollout to the next
                obs[step], dones[step] = torch.from_numpy(next_obs), next_done
                actions[step], acted_log_probs[step], _, acted_values[step] = act(obs[step], noise[step])
                env_actions = envs.action_space.start + actions[step].cpu().numpy()
                next_obs, rewards[step], next_done, truncated_obs, ended = envs.step(env_actions)
                global_step += args.num_envs
                truncated += [(step, env, last_obs) for env, last_obs in truncated_obs.items()]
                for episode in ended:
                    episodes.append((global_step, *episode, round(time.perf_counter() - start_time, 3)))

            # Advantages
            with torch.no_grad():
                next_value = agent.get_value(torch.from_numpy(next_obs).to(device))
                if args.bootstrap_truncated and truncated:  # [plus-1]
                    steps, indices, last_obs = zip(*truncated)
                    last_values = agent.get_value(torch.from_numpy(np.array(last_obs)).to(device))
                    rewards[steps, indices] += args.gamma * last_values.cpu().numpy()
            was_reset, seen_rewards = torch.from_numpy(dones).to(device), torch.from_numpy(rewards).to(device)
            next_step = (next_value, torch.from_numpy(next_done).to(device))
            advantages, returns = estimate(seen_rewards, acted_values, was_reset, *next_step)
            b_advantages, b_returns = advantages.flatten(), returns.flatten()  # (B,)
            b_obs, b_actions = obs.flatten(0, 1), actions.flatten()  # (B, 4, 84, 84), (B,)
            b_log_probs, b_values = acted_log_probs.flatten(), acted_values.flatten()  # (B,)
            b_valid = 1.0 - was_reset.flatten()  # (B,)
            returns, values = (x.cpu().numpy()[dones == 0] for x in (returns, acted_values))

            # Epochs of minibatches
            debug = []
            for _ in range(args.update_epochs):
                permutation = torch.from_numpy(rng.permutation(T * N)).to(device)  # [core-6]
                rollout = (b_obs, b_actions, b_log_probs, b_values, b_advantages, b_returns, b_valid)
                shuffled = (x[permutation].split(T * N // args.num_minibatches) for x in rollout)
                for *minibatch, mb_advantages, mb_returns, mb_valid in zip(*shuffled):
                    mb_advantages, weights = join_minibatches(mb_advantages, mb_valid, args.norm_adv)
                    debug.append(gradient(*minibatch, mb_advantages, mb_returns, weights, clip_coef))
                    average(parameters.grad)  # [aux-2]
                    norm = parameters.grad.norm()
                    parameters.grad.mul_((args.max_grad_norm / (norm + 1e-6)).clamp(max=1.0))  # [core-11]
                    optimizer.step()
                epoch_kl = torch.stack([d["losses/approx_kl"] for d in debug[-args.num_minibatches :]]).mean()
                if args.target_kl is not None and average(epoch_kl) > args.target_kl:  # [aux-3]
                    break

            # Log
            seconds = time.perf_counter() - start_time
            means = average(torch.stack([torch.stack([d[name] for d in debug]).mean() for name in debug[0]]))
            metrics = dict(zip(debug[0], means.tolist()))
            finite = {
                "a loss": np.isfinite(list(metrics.values())).all(),
                "a weight": parameters.isfinite().all(),
            }
            if what := " and ".join(name for name, is_finite in finite.items() if not is_finite):
                fail(f"update {update}: {what} is not finite; {folder} keeps the checkpoints before it", status=1)
            both = torch.from_numpy(np.stack([returns, values], -1))
            returns, values = torch.cat(gather(both.flatten(0, -2))).T.numpy()  # (samples of all processes,)
            rows = torch.cat(gather(torch.tensor(episodes, dtype=torch.float64).reshape(-1, 4)))
            rows = sorted(rows.tolist(), key=lambda row: row[0])  # as they ended, and then by rank
            episodes = [(int(step), episodic_return, int(length), when) for step, episodic_return, length, when in rows]
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
            received = int(max(gather(torch.tensor(stop_signals[:1] or [0]))))  # once: a signal can come at any line
            if stopping := received > 0:
                stop_signals.insert(0, received)
            fresh_episodes = stopping or update in checkpoint_updates
            if fresh_episodes:
                rngs = dict(enumerate(map(json.loads, gather_bytes(json.dumps(rng.bit_generator.state).encode()))))
            if fresh_episodes and rank == 0:
                log.sync()
                state = {
                    "script": Path(__file__).stem, "args": asdict(args), "update": update, "global_step": global_step,
                    "seconds": seconds, "recent_returns": list(recent_returns),
                    "model": agent.state_dict(), "optimizer": optimizer.state_dict(),
                    "rng": rngs, "torch_rng": torch.get_rng_state(),
                }  # fmt: skip
                torch.save(state, content := io.BytesIO())
                write_whole(folder / "checkpoints" / f"{update}.pt", content.getvalue())
                if args.capture_video:
                    evaluate(agent, args.env_id, 1, args.seed, video := folder / "videos" / f"{update}.mp4")
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
