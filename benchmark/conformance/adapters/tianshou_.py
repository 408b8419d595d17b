"""Tianshou: trainings of its PPO with a softmax policy."""

import importlib.metadata

import gymnasium as gym
import scripted
import torch
from spy import Spy, layers
from tianshou.algorithm import PPO
from tianshou.algorithm.modelfree.reinforce import DiscreteActorPolicy
from tianshou.algorithm.optim import TorchOptimizerFactory
from tianshou.data import Collector, VectorReplayBuffer
from tianshou.env import DummyVectorEnv
from tianshou.utils.torch_utils import policy_within_training_step

NAME = f"tianshou {importlib.metadata.version('tianshou')}"
OPTIONS = {
    "record": {"": {}, "value_clip=True": {"value_clip": True}, "max_grad_norm not given": {"max_grad_norm": None}}
}


class Actor(torch.nn.Linear):
    def forward(self, obs, state=None, info=None):
        return super().forward(torch.as_tensor(obs)), state


class Critic(torch.nn.Linear):
    def forward(self, obs, **_):
        return super().forward(torch.as_tensor(obs))


def record(**options):
    hyper = scripted.HYPER
    width, size = hyper["num_envs"] * scripted.SHOWN, hyper["num_envs"] * hyper["num_steps"]
    actor, critic = Actor(width, 3), Critic(width, 1)
    spies = []

    def make_optimizer(parameters):
        optimizer = torch.optim.Adam(parameters, lr=hyper["learning_rate"])  # as AdamOptimizerFactory's
        spies.append(Spy(optimizer, layers("policy", actor) | layers("value", critic), actor))
        return optimizer

    policy = DiscreteActorPolicy(actor=actor, action_space=gym.spaces.Discrete(3))
    given = {"eps_clip": hyper["clip_coef"], "max_grad_norm": hyper["max_grad_norm"]}
    given |= {name: hyper[name] for name in ("vf_coef", "ent_coef", "gamma", "gae_lambda")}
    algorithm = PPO(policy=policy, critic=critic, optim=TorchOptimizerFactory(make_optimizer), **given | options)
    envs = DummyVectorEnv(scripted.makers())
    collector = Collector(algorithm, envs, VectorReplayBuffer(size, hyper["num_envs"]))
    collector.reset()
    for _ in range(hyper["updates"]):  # as OnPolicyTrainer
        with policy_within_training_step(policy):
            collector.collect(n_step=size)
            algorithm.update(collector.buffer, size // hyper["minibatches"], hyper["epochs"])
        collector.reset_buffer(keep_statistics=True)
    return spies[0].record(hyper, scripted.logs())
