"""TorchRL: its advantage function and its loss. The loop around them, optimizer and gradient clip, is the user's."""

import importlib.metadata

import numpy as np
import torch
from spy import Spy, layers, load
from tensordict import TensorDict
from tensordict.nn import ProbabilisticTensorDictModule, ProbabilisticTensorDictSequential, TensorDictModule
from torch import distributions, nn
from torchrl.modules import ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value.functional import generalized_advantage_estimate

NAME = f"torchrl {importlib.metadata.version('torchrl')}"
OPTIONS = {
    "update": {
        "": {},
        "loss_critic_type=l2, normalize_advantage=True": {"loss_critic_type": "l2", "normalize_advantage": True},
        "the same, clip_value=True": {"loss_critic_type": "l2", "normalize_advantage": True, "clip_value": True},
    }
}


def gae(i):
    ended = (i["terminated"] | i["truncated"]).astype(bool)
    following = np.where(ended, i["final_values"], np.concatenate([i["values"][1:], i["last_values"][None]]))
    columns = (i["values"], following, i["rewards"], ended, i["terminated"].astype(bool))
    columns = [torch.as_tensor(x.T)[..., None] for x in columns]  # (N, T, 1)
    advantages, returns = generalized_advantage_estimate(i["gamma"], i["gae_lambda"], *columns)
    return {"advantages": advantages[..., 0].numpy().T, "returns": returns[..., 0].numpy().T}


class Gaussian(nn.Linear):
    def __init__(self, inputs, outputs):
        super().__init__(inputs, outputs)
        self.log_std = nn.Parameter(torch.zeros(outputs))

    def forward(self, x):
        mean = super().forward(x)
        return mean, self.log_std.exp().expand_as(mean)


def normal(loc, scale):
    return distributions.Independent(distributions.Normal(loc, scale), 1)


def update(i, **options):
    if i["kind"] == "multidiscrete":
        raise NotImplementedError("masks are the distribution's, which the user chooses")
    batch, hyper, M = i["batch"], i["hyper"], len(i["batch"]["returns"])
    value = nn.Linear(M, 1).double()
    if i["kind"] == "discrete":
        policy, keys, distribution = nn.Linear(M, 3).double(), ["logits"], distributions.Categorical
    else:
        policy, keys, distribution = Gaussian(M, 2).double(), ["loc", "scale"], normal
    draw = ProbabilisticTensorDictModule(keys, ["action"], distribution_class=distribution, return_log_prob=True)
    actor = ProbabilisticTensorDictSequential(TensorDictModule(policy, ["observation"], keys), draw)
    named = layers("policy", policy) | layers("value", value)
    if i["kind"] == "gaussian":
        named["log_std"] = policy.log_std
    load(named, i["weights"])
    loss = ClipPPOLoss(
        actor, ValueOperator(value, ["observation"]), clip_epsilon=hyper["clip_coef"], entropy_coeff=hyper["ent_coef"],
        critic_coeff=hyper["vf_coef"], **options,
    )  # fmt: skip
    optimizer = torch.optim.Adam(loss.parameters(), eps=1e-5)
    spy = Spy(optimizer, named, policy)
    names = {"action": "actions", "action_log_prob": "log_probs", "state_value": "values", "advantage": "advantages"}
    names["value_target"] = "returns"
    columns = {key: torch.as_tensor(batch[name]) for key, name in names.items()}
    for key in ("state_value", "advantage", "value_target"):
        columns[key] = columns[key][:, None]
    for rate in hyper["learning_rates"]:
        optimizer.param_groups[0]["lr"] = rate
        terms = loss(TensorDict({"observation": torch.eye(M).double(), **columns}, [M]))
        optimizer.zero_grad()
        (terms["loss_objective"] + terms["loss_critic"] + terms["loss_entropy"]).backward()
        nn.utils.clip_grad_norm_(loss.parameters(), hyper["max_grad_norm"])
        optimizer.step()
    return {"steps": spy.steps}
