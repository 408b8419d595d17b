"""How the scripts of this repository are trained and watched. CLEANRL may name a folder with other versions of them."""

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
KINDS = {"ppo_continuous_action": "gaussian", "ppo_continuous_action_numpy": "gaussian"}
KINDS["ppo_multidiscrete"] = "multidiscrete"
OWN_NETWORKS = {"learning_rate": 0.02}
DIFFERENT = {  # from scripted.HYPER
    "ppo": OWN_NETWORKS, "ppo_numpy": OWN_NETWORKS, "ppo_multidiscrete": OWN_NETWORKS,
    "ppo_continuous_action": OWN_NETWORKS, "ppo_continuous_action_numpy": OWN_NETWORKS,
    "ppo_procgen": {"annealed": False},  # as train-procgen
    "ppo_lstm": {"num_envs": 8}, "ppo_atari_lstm": {"num_envs": 8},  # a minibatch has 2 whole ones
}  # fmt: skip


def load_script(name):
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def hyper_of(name, options):
    """The numbers of a training; those among the options are taken out of them."""
    given = {key: options.pop(key) for key in list(options) if key in scripted.HYPER}
    return scripted.HYPER | DIFFERENT.get(name, {}) | given


def make_args(script, kind, hyper, options):
    kwargs = {"kind": kind, "num_envs": hyper["num_envs"], "outliers": kind == "gaussian"}
    same = ("num_envs", "num_steps", "gamma", "gae_lambda", "learning_rate", "clip_coef", "ent_coef", "vf_coef")
    return script.Args(
        env_id="Scripted-v0", env_kwargs=json.dumps(kwargs), max_grad_norm=hyper["max_grad_norm"],
        total_timesteps=hyper["num_envs"] * hyper["num_steps"] * hyper["updates"],
        update_epochs=hyper["epochs"], num_minibatches=hyper["minibatches"],
        **{name: hyper[name] for name in same}, **options,
    )  # fmt: skip


class Run:
    """What `train` needs of a run. `watch` gets what is kept, before the first step."""

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


def watched(agent_class, spies):
    """The script's Agent, which says when it acts and what it learns from. What it has before its heads, convolutions
    say, becomes the identity, and its LSTM becomes small."""

    class Agent(agent_class):
        def __init__(self, envs, args):
            super().__init__(envs, args)
            if hasattr(self, "network"):
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


def record(script, is_picture=False, change=None, **options):
    """Trains a torch script through `train(args, run)`. `change` may edit the loaded script first."""
    name, script = script, load_script(script)
    kind, hyper = KINDS.get(name, "discrete"), hyper_of(name, options)
    wanted = {"time limits": "bootstrap"} if options.get("bootstrap_truncated") else {}
    wanted |= {"clip range": "annealed"} if options.get("anneal_clip") else {}
    if change:
        change(script)
    spies, vectors, others = [], [], []
    script.Agent = watched(script.Agent, spies)
    if is_picture:
        script.VectorEnv = LatePictures if "envpool" in name else Pictures
    if "multigpu" in name and not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)

    def watch(model, optimizer, envs):
        vectors.append(envs)
        named = layers("policy", model.actor) | layers("value", model.critic)
        if isinstance(getattr(model, "log_std", None), torch.nn.Parameter):
            named["log_std"] = model.log_std
        if hasattr(model, "lstm"):
            named |= {f"lstm.{n.removesuffix('_l0')}": weight for n, weight in model.lstm.named_parameters()}
        replaced = hasattr(model, "network")
        spies.append(Spy(optimizer, named, model.network if replaced else model.actor, after=replaced))
        known = {id(parameter) for parameter in named.values()}
        others.extend(n for n, parameter in model.named_parameters() if id(parameter) not in known)

    scripted.ScriptedEnv.scripts.clear()
    script.train(make_args(script, kind, hyper, {"device": "cpu"} | options), Run(hyper["updates"], watch))
    logs = vectors[0].vector.logs() if is_picture else scripted.ScriptedEnv.logs()
    own_networks = hyper["learning_rate"] == OWN_NETWORKS["learning_rate"]
    more = {"others": others, "options": wanted, "normalizes": kind == "gaussian", "own_networks": own_networks}
    return spies[0].record(hyper, logs, kind, **more)
