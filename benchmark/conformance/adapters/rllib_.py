"""RLlib: trainings of its PPO, with the API stack that is the default now."""

import gymnasium as gym
import ray
import scripted
import torch
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.apis import ValueFunctionAPI
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.core.rl_module.torch import TorchRLModule
from spy import Spy, layers

NAME = f"RLlib {ray.__version__}"
OPTIONS = {"record": {"": {}, "vf_clip_param=inf, use_kl_loss=False": {"vf_clip_param": float("inf"), "use_kl_loss": False}}}


class Linear(TorchRLModule, ValueFunctionAPI):
    def setup(self):
        width = self.observation_space.shape[0]
        self.policy, self.value = torch.nn.Linear(width, 3), torch.nn.Linear(width, 1)

    def _forward(self, batch, **kwargs):
        return {Columns.ACTION_DIST_INPUTS: self.policy(batch[Columns.OBS])}

    def compute_values(self, batch, embeddings=None):
        return self.value(batch[Columns.OBS])[..., 0]


def record(**options):
    hyper = scripted.HYPER
    scripted.ScriptedEnv.scripts.clear()
    size = hyper["num_envs"] * hyper["num_steps"]
    given = {"lr": hyper["learning_rate"], "gamma": hyper["gamma"], "lambda_": hyper["gae_lambda"]}
    given |= {"clip_param": hyper["clip_coef"], "vf_loss_coeff": hyper["vf_coef"], "entropy_coeff": hyper["ent_coef"]}
    given |= {"grad_clip": hyper["max_grad_norm"], "num_epochs": hyper["epochs"], "train_batch_size_per_learner": size}
    config = (
        PPOConfig()
        .environment("Scripted-v0")
        .env_runners(num_env_runners=0, num_envs_per_env_runner=hyper["num_envs"], rollout_fragment_length=hyper["num_steps"])
        .learners(num_learners=0)
        .rl_module(rl_module_spec=RLModuleSpec(module_class=Linear))
        .training(minibatch_size=size // hyper["minibatches"], **given | options)
    )
    algorithm = config.build_algo()
    learner = algorithm.learner_group.get_learner() if hasattr(algorithm.learner_group, "get_learner") else algorithm.learner_group._learner
    module = learner.module["default_policy"].unwrapped()
    named = layers("policy", module.policy) | layers("value", module.value)
    spy = Spy(learner.get_optimizers_for_module("default_policy")[0][1], named, module.policy)
    for _ in range(hyper["updates"]):
        algorithm.train()
    algorithm.stop()
    return {"kind": "discrete", "hyper": hyper, "logs": scripted.ScriptedEnv.logs(), "initial": spy.initial, "steps": spy.steps}
