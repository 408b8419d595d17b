"""RLlib, with the API stack that is the default now: steps of its learner on given minibatches."""

import gymnasium as gym
import numpy as np
import ray
import torch
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module import RLModuleSpec
from ray.rllib.core.rl_module.torch import TorchRLModule
from spy import Spy, layers, load

NAME = f"RLlib {ray.__version__}"
PLAIN = {"vf_clip_param": float("inf"), "use_kl_loss": False}
OPTIONS = {"update": {"use_kl_loss=False": {"use_kl_loss": False}, "the same, vf_clip_param=inf": PLAIN}}
NUMBERS = {
    "clip_param": "clip_coef",
    "vf_loss_coeff": "vf_coef",
    "entropy_coeff": "ent_coef",
    "grad_clip": "max_grad_norm",
}
COLUMNS = {"actions": "actions", "action_logp": "log_probs", "advantages": "advantages", "value_targets": "returns"}


class Linear(TorchRLModule):
    def setup(self):
        self.policy, self.value = torch.nn.Linear(12, 3), torch.nn.Linear(12, 1)

    def _forward(self, batch, **kwargs):
        return {"action_dist_inputs": self.policy(batch["obs"])}

    def compute_values(self, batch, embeddings=None):
        return self.value(batch["obs"])[..., 0]


def update(i, **options):
    if i["kind"] != "discrete":
        raise NotImplementedError("only with Discrete actions in this adapter")
    config = PPOConfig().rl_module(rl_module_spec=RLModuleSpec(module_class=Linear))
    config.training(**{name: i["hyper"][ours] for name, ours in NUMBERS.items()}, **options)
    spaces = gym.spaces.Box(-1, 1, (12,), np.float32), gym.spaces.Discrete(3)
    learner = config.build_learner(spaces={"default_policy": spaces})
    module = learner.module["default_policy"].unwrapped()
    named = layers("policy", module.policy) | layers("value", module.value)
    load(named, i["weights"])
    _, optimizer = learner.get_optimizers_for_module("default_policy")[0]
    spy = Spy(optimizer, named, module.policy)
    rows = {name: torch.as_tensor(i["batch"][ours]).float() for name, ours in COLUMNS.items()}
    rows |= {"obs": torch.eye(12), "action_dist_inputs": module.policy(torch.eye(12)).detach()}
    for rate in i["hyper"]["learning_rates"]:
        optimizer.param_groups[0]["lr"] = rate
        given = {"module_id": "default_policy", "config": learner.config, "batch": rows}
        loss = learner.compute_loss_for_module(**given, fwd_out=module.forward_train(rows))
        gradients = learner.compute_gradients({"default_policy": loss})
        learner.apply_gradients(learner.postprocess_gradients(gradients))
    return {"steps": spy.steps}
