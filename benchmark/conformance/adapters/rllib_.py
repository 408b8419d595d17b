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
    """With one row more after each episode: the observation after its last step."""
    T, N = i["rewards"].shape
    ended = i["terminated"] | i["truncated"]
    returns = np.zeros((T, N))
    for n in range(N):
        after = np.union1d(np.flatnonzero(ended[:, n]), T - 1) + 1
        last = [i["final_values"][t - 1, n] if ended[t - 1, n] else i["last_values"][n] for t in after]
        truncated = np.zeros(T)
        truncated[after - 1] = 1 - i["terminated"][after - 1, n]
        columns = [(i["values"][:, n], last), (i["rewards"][:, n], 0.0), (i["terminated"][:, n], 0), (truncated, 0)]
        columns = [np.insert(column.astype(float), after, rows) for column, rows in columns]
        targets = compute_value_targets(*columns, i["gamma"], i["gae_lambda"])
        returns[:, n] = np.delete(targets, after + np.arange(len(after)))
    return {"advantages": returns - i["values"], "returns": returns}


class Linear(TorchRLModule, ValueFunctionAPI):
    def setup(self):
        self.policy = torch.nn.Linear(self.observation_space.shape[0], 3)
        self.value = torch.nn.Linear(self.observation_space.shape[0], 1)

    def _forward(self, batch, **kwargs):
        return {Columns.ACTION_DIST_INPUTS: self.policy(batch[Columns.OBS])}

    def compute_values(self, batch, embeddings=None):
        return self.value(batch[Columns.OBS])[..., 0]


def update(i, **options):
    if i["kind"] != "discrete":
        raise NotImplementedError("only with Discrete actions in this adapter")
    hyper, M = i["hyper"], len(i["batch"]["returns"])
    config = PPOConfig().rl_module(rl_module_spec=RLModuleSpec(module_class=Linear)).training(
        clip_param=hyper["clip_coef"], vf_loss_coeff=hyper["vf_coef"], entropy_coeff=hyper["ent_coef"],
        grad_clip=hyper["max_grad_norm"], **options,
    )  # fmt: skip
    space = gym.spaces.Box(-1, 1, (M,), np.float32)
    learner = config.build_learner(spaces={"default_policy": (space, gym.spaces.Discrete(3))})
    module = learner.module["default_policy"].unwrapped()
    named = layers("policy", module.policy) | layers("value", module.value)
    load(named, i["weights"])
    _, optimizer = learner.get_optimizers_for_module("default_policy")[0]
    spy = Spy(optimizer, named, module.policy)
    batch = {name: torch.as_tensor(x).float() for name, x in i["batch"].items()}
    rows = {
        Columns.OBS: torch.eye(M),
        Columns.ACTIONS: batch["actions"].long(),
        Columns.ACTION_LOGP: batch["log_probs"],
    }
    rows |= {"advantages": batch["advantages"], "value_targets": batch["returns"]}
    rows[Columns.ACTION_DIST_INPUTS] = module.policy(torch.eye(M)).detach()
    for rate in hyper["learning_rates"]:
        optimizer.param_groups[0]["lr"] = rate
        given = {"module_id": "default_policy", "config": learner.config, "batch": rows}
        loss = learner.compute_loss_for_module(**given, fwd_out=module.forward_train(rows))
        gradients = learner.compute_gradients({"default_policy": loss})
        learner.apply_gradients(learner.postprocess_gradients(gradients))
    return {"steps": spy.steps}
