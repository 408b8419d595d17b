"""The torch scripts of this repository, as they are. CLEANRL may name a folder with other versions of them."""

import importlib.util
import json
import os
from pathlib import Path

import gymnasium as gym
import numpy as np
import scripted
import torch
import torch.distributed as dist
from spy import Spy, layers

FOLDER = Path(os.environ.get("CLEANRL", Path(__file__).parents[3] / "cleanrl"))
NAME = "this project's torch scripts"
PLAIN = ["ppo", "ppo_continuous_action", "ppo_multidiscrete"]
PICTURES = ["ppo_atari", "ppo_atari_visual", "ppo_atari_envpool", "ppo_atari_lstm", "ppo_procgen"]
PICTURES += ["ppo_atari_multigpu", "ppo_atari_multigpu_envpool"]
KINDS = {"ppo_continuous_action": "gaussian", "ppo_multidiscrete": "multidiscrete"}
OPTIONS = {"record": {script: {"script": script} for script in PLAIN + PICTURES}}


def load_script(name):
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Run:
    """What `train` needs of a run: it counts updates, and takes the optimizer as soon as it is there."""

    def __init__(self, updates, watch):
        self.count = updates
        self.watch = watch

    def keep(self, **objects):
        self.watch(**objects)

    def updates(self):
        for update in range(1, self.count + 1):
            yield update, update == 1

    def note(self, *step):
        pass

    def log(self, metrics):
        pass


class Pictures:
    """In place of a VectorEnv of pictures: a scripted vector as bytes."""

    late = False

    def __init__(self, args, num_envs):
        self.vector = scripted.ScriptedVector(num_envs, self.late)
        self.observation_space = gym.spaces.Box(0, 255, (8, 2 * num_envs, 1), np.uint8)
        self.action_space = gym.spaces.Discrete(3)

    def as_bytes(self, rows):
        return (255 * rows).astype(np.uint8).reshape(-1, *self.observation_space.shape)

    def reset(self, seeds):
        return self.as_bytes(self.vector.reset())

    def step(self, actions):
        observations, rewards, terminated, truncated, last = self.vector.step(actions)
        last = {n: self.as_bytes(last)[n] for n in np.flatnonzero(truncated)}
        return self.as_bytes(observations), rewards, (terminated | truncated).astype(np.float32), last, []


class LatePictures(Pictures):
    """As EnvPool does it: the step after an episode's end only begins the next one."""

    late = True


def make_agent(script, spies, is_picture):
    """The script's Agent, which marks when it acts. One that sees pictures has no convolutions before its heads."""

    class Agent(script.Agent):
        def __init__(self, envs, args):
            super().__init__(envs, args)
            if is_picture:
                self.network = torch.nn.Flatten()
                width = int(np.prod(envs.observation_space.shape))
                if hasattr(self, "lstm"):
                    self.lstm = torch.nn.LSTM(width, 8)
                    width = 8
                self.actor, self.critic = torch.nn.Linear(width, 3), torch.nn.Linear(width, 1)

        def get_action_and_value(self, *inputs):
            spies[0].acting = True
            outputs = super().get_action_and_value(*inputs)
            spies[0].acting = False
            return outputs

        def evaluate_actions(self, obs, actions, *more):
            spies[0].actions = actions.numpy().copy()
            return super().evaluate_actions(obs, actions, *more)

    return Agent


def make_args(module, hyper, kind, options):
    kwargs = {"kind": kind, "num_envs": hyper["num_envs"], "outliers": kind == "gaussian"}
    same = ("num_envs", "num_steps", "gamma", "gae_lambda", "learning_rate", "clip_coef", "ent_coef", "vf_coef")
    return module.Args(
        env_id="Scripted-v0", env_kwargs=json.dumps(kwargs), max_grad_norm=hyper["max_grad_norm"],
        total_timesteps=hyper["num_envs"] * hyper["num_steps"] * hyper["updates"],
        update_epochs=hyper["epochs"], num_minibatches=hyper["minibatches"],
        **{name: hyper[name] for name in same}, **options,
    )  # fmt: skip


def record(script, **options):
    """Trains for real, through `train(args, run)`, and returns what replay.py reads."""
    name, module = script, load_script(script)
    kind, is_picture = KINDS.get(name, "discrete"), name in PICTURES
    usual = {"ppo_procgen": {"annealed": False}, "ppo_atari_lstm": {"num_envs": 8}}  # 2 of 8 whole ones in a minibatch
    hyper = (
        scripted.HYPER | usual.get(name, {}) | {key: options.pop(key) for key in list(options) if key in scripted.HYPER}
    )
    spies, vectors, named, others = [], [], {}, []
    module.Agent = make_agent(module, spies, is_picture)
    if is_picture:
        module.VectorEnv = LatePictures if "envpool" in name else Pictures

    def watch(model, optimizer, envs):
        vectors.append(envs)
        named.update(layers("policy", model.actor) | layers("value", model.critic))
        if kind == "gaussian":
            named["log_std"] = model.log_std
        if hasattr(model, "lstm"):
            named.update({f"lstm.{n.removesuffix('_l0')}": p for n, p in model.lstm.named_parameters()})
        network = model.network if is_picture else model.actor
        spies.append(Spy(optimizer, named, network, after=is_picture))
        ours = {id(parameter) for parameter in named.values()}
        others.extend(n for n, parameter in model.named_parameters() if id(parameter) not in ours)

    scripted.ScriptedEnv.scripts.clear()
    args = make_args(module, hyper, kind, {"device": "cpu"} | options)
    if "multigpu" in name and not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    module.train(args, Run(hyper["updates"], watch))
    spy = spies[0]
    logs = vectors[0].vector.logs() if is_picture else scripted.ScriptedEnv.logs()
    return {
        "kind": kind, "hyper": hyper, "logs": logs, "initial": spy.initial, "steps": spy.steps, "others": others,
        "acted": spy.acted_by(hyper["num_envs"]), "normalizes": kind == "gaussian", "own_networks": not is_picture,
    }  # fmt: skip
