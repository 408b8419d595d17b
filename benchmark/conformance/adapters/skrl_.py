"""skrl: trainings of its PPO with a softmax policy."""

import importlib.metadata

import gymnasium as gym
import numpy as np
import scripted
import torch
from skrl.agents.torch.ppo import PPO, PPO_CFG
from skrl.memories.torch import RandomMemory
from skrl.models.torch import CategoricalMixin, DeterministicMixin, Model
from skrl.resources.preprocessors.torch import RunningStandardScaler
from spy import Spy, layers

NAME = f"skrl {importlib.metadata.version('skrl')}"
WIDTH = scripted.HYPER["num_envs"] * scripted.SHOWN
SCALER = {"observation_preprocessor": RunningStandardScaler, "observation_preprocessor_kwargs": {"size": WIDTH}}
OPTIONS = {
    "record": {
        "": {},
        "value_clip=0": {"value_clip": 0.0},
        "time_limit_bootstrap=True": {"time_limit_bootstrap": True},
        "RunningStandardScaler": SCALER,
    }
}


class Policy(CategoricalMixin, Model):
    def __init__(self, **spaces):
        Model.__init__(self, **spaces, device="cpu")
        CategoricalMixin.__init__(self)
        self.linear = torch.nn.Linear(WIDTH, 3)

    def compute(self, inputs, role):
        return self.linear(inputs["observations"]), {}


class Value(DeterministicMixin, Model):
    def __init__(self, **spaces):
        Model.__init__(self, **spaces, device="cpu")
        DeterministicMixin.__init__(self)
        self.linear = torch.nn.Linear(WIDTH, 1)

    def compute(self, inputs, role):
        return self.linear(inputs["observations"]), {}


def record(scale=1.0, shift=0.0, **options):
    """`scale` and `shift` make observations that are far from 0 and 1."""
    torch.manual_seed(1)
    hyper, N = scripted.HYPER, scripted.HYPER["num_envs"]
    spaces = {"observation_space": gym.spaces.Box(-np.inf, np.inf, (WIDTH,)), "action_space": gym.spaces.Discrete(3)}
    policy, value = Policy(**spaces), Value(**spaces)
    cfg = PPO_CFG(
        rollouts=hyper["num_steps"], learning_epochs=hyper["epochs"], mini_batches=hyper["minibatches"],
        discount_factor=hyper["gamma"], gae_lambda=hyper["gae_lambda"], learning_rate=hyper["learning_rate"],
        ratio_clip=hyper["clip_coef"], value_loss_scale=hyper["vf_coef"], grad_norm_clip=hyper["max_grad_norm"],
        entropy_loss_scale=hyper["ent_coef"], **{"value_clip": hyper["clip_coef"]} | options,
    )  # fmt: skip
    cfg.experiment.write_interval = cfg.experiment.checkpoint_interval = 0
    memory = RandomMemory(memory_size=hyper["num_steps"], num_envs=N)
    agent = PPO(models={"policy": policy, "value": value}, memory=memory, **spaces, device="cpu", cfg=cfg)
    agent.init()
    agent.enable_training_mode(True)
    spy = Spy(agent.optimizer, layers("policy", policy) | layers("value", value), policy.linear)
    vector = scripted.ScriptedVector()
    observations, T = torch.from_numpy(vector.reset()) * scale + shift, hyper["num_steps"] * hyper["updates"]
    for t in range(T):  # as trainers/torch/sequential.py
        agent.pre_interaction(timestep=t, timesteps=T)
        with torch.no_grad():
            actions, _ = agent.act(observations, None, timestep=t, timesteps=T)
            rows, rewards, terminated, truncated, last = vector.step(actions.numpy()[:, 0])
            # The next observation is the reset one, unless time limits are to be bootstrapped
            following = torch.from_numpy(last if options.get("time_limit_bootstrap") else rows) * scale + shift
            columns = [torch.as_tensor(x).reshape(N, 1) for x in (rewards.astype(np.float32), terminated, truncated)]
            agent.record_transition(
                observations=observations, states=None, actions=actions, rewards=columns[0], next_states=None,
                next_observations=following, terminated=columns[1], truncated=columns[2], infos={}, timestep=t,
                timesteps=T,
            )  # fmt: skip
        observations = torch.from_numpy(rows) * scale + shift
        agent.post_interaction(timestep=t, timesteps=T)
    return spy.record(hyper, vector.logs(), normalizes_observations="observation_preprocessor" in options)
