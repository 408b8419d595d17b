"""RLlib, with the API stack that is the default now: its advantages, and steps of its learner on given minibatches."""

import gymnasium as gym
import numpy as np
import ray
import torch
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.apis import ValueFunctionAPI
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.core.rl_module.torch import TorchRLModule
from ray.rllib.utils.postprocessing.value_predictions import compute_value_targets
from spy import Spy, layers, load

NAME = f"RLlib {ray.__version__}"
PLAIN = {"vf_clip_param": float("inf"), "use_kl_loss": False}
OPTIONS = {"update": {"use_kl_loss=False": {"use_kl_loss": False}, "the same, vf_clip_param=inf": PLAIN}}


def gae(i):
    """By environment, cut into episodes, with one row more for each: the observation after its last step."""
    T, N = i["rewards"].shape
    advantages = np.zeros((T, N))
    for n in range(N):
        ended = (i["terminated"] | i["truncated"])[:, n].astype(bool)
        start = 0
        for t in range(T):
            if not ended[t] and t < T - 1:
                continue
            rows = slice(start, t + 1)
            last = i["final_values"][t, n] if ended[t] else i["last_values"][n]
            values = np.append(i["values"][rows, n], last)
            terminated, truncated = np.zeros(len(values)), np.zeros(len(values))
            terminated[-2], truncated[-2] = i["terminated"][t, n], 1 - i["terminated"][t, n]
            rewards = np.append(i["rewards"][rows, n], 0.0)
            targets = compute_value_targets(values, rewards, terminated, truncated, i["gamma"], i["gae_lambda"])
            advantages[rows, n] = (targets - values)[:-1]
            start = t + 1
    return {"advantages": advantages, "returns": advantages + i["values"]}


class Linear(TorchRLModule, ValueFunctionAPI):
    def setup(self):
        width, outputs = self.observation_space.shape[0], 3 if isinstance(self.action_space, gym.spaces.Discrete) else 4
        self.policy, self.value = torch.nn.Linear(width, outputs), torch.nn.Linear(width, 1)

    def _forward(self, batch, **kwargs):
        return {Columns.ACTION_DIST_INPUTS: self.policy(batch[Columns.OBS])}

    def compute_values(self, batch, embeddings=None):
        return self.value(batch[Columns.OBS])[..., 0]


def update(i, **options):
    if i["kind"] != "discrete":
        raise NotImplementedError("only with Discrete actions in this adapter")
    batch, hyper, M = i["batch"], i["hyper"], len(i["batch"]["returns"])
    config = PPOConfig().rl_module(rl_module_spec=RLModuleSpec(module_class=Linear)).training(
        clip_param=hyper["clip_coef"], vf_loss_coeff=hyper["vf_coef"], entropy_coeff=hyper["ent_coef"],
        grad_clip=hyper["max_grad_norm"], lr=hyper["learning_rates"][0], **options,
    )  # fmt: skip
    space = gym.spaces.Box(-1, 1, (M,), np.float32)
    learner = config.build_learner(spaces={"default_policy": (space, gym.spaces.Discrete(3))})
    module = learner.module["default_policy"].unwrapped()
    named = layers("policy", module.policy) | layers("value", module.value)
    load(named, i["weights"])
    _, optimizer = learner.get_optimizers_for_module("default_policy")[0]
    spy = Spy(optimizer, named, module.policy)
    t = {
        name: torch.as_tensor(x, dtype=torch.int64 if name == "actions" else torch.float32) for name, x in batch.items()
    }
    rows = {Columns.OBS: torch.eye(M), Columns.ACTIONS: t["actions"], Columns.ACTION_LOGP: t["log_probs"]}
    rows |= {"advantages": t["advantages"], "value_targets": t["returns"]}
    rows[Columns.ACTION_DIST_INPUTS] = module.policy(torch.eye(M)).detach()
    for rate in hyper["learning_rates"]:
        optimizer.param_groups[0]["lr"] = rate
        outputs = module.forward_train(rows)
        loss = learner.compute_loss_for_module(
            module_id="default_policy", config=learner.config, batch=rows, fwd_out=outputs
        )
        gradients = learner.compute_gradients({"default_policy": loss})
        learner.apply_gradients(learner.postprocess_gradients(gradients))
    return {"steps": spy.steps}
