"""TorchRL: its advantage function and its loss. The loop around them, optimizer and gradient clip, is the user's."""

import importlib.metadata

import numpy as np
import torch
from spy import Spy, layers, load
from tensordict import TensorDict
from tensordict.nn import ProbabilisticTensorDictModule, ProbabilisticTensorDictSequential, TensorDictModule
from torch import nn
from torchrl.modules import ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value.functional import generalized_advantage_estimate

NAME = f"torchrl {importlib.metadata.version('torchrl')}"
L2 = {"loss_critic_type": "l2", "normalize_advantage": True}
OPTIONS = {"update": {"": {}, "loss_critic_type=l2, normalize_advantage=True": L2}}
OPTIONS["update"]["the same, clip_value=True"] = L2 | {"clip_value": True}
NAMES = {"action": "actions", "action_log_prob": "log_probs", "state_value": "values", "advantage": "advantages"}
NAMES["value_target"] = "returns"


def gae(i):
    ended = (i["terminated"] | i["truncated"]).astype(bool)
    following = np.where(ended, i["final_values"], np.concatenate([i["values"][1:], i["last_values"][None]]))
    columns = (i["values"], following, i["rewards"], ended, i["terminated"].astype(bool))
    columns = [torch.as_tensor(x.T)[..., None] for x in columns]  # (N, T, 1)
    advantages, returns = generalized_advantage_estimate(i["gamma"], i["gae_lambda"], *columns)
    return {"advantages": advantages[..., 0].numpy().T, "returns": returns[..., 0].numpy().T}


def update(i, **options):
    if i["kind"] != "discrete":
        raise NotImplementedError("other distributions are the user's")
    batch, hyper, M = i["batch"], i["hyper"], len(i["batch"]["returns"])
    policy, value = nn.Linear(M, 3).double(), nn.Linear(M, 1).double()
    named = layers("policy", policy) | layers("value", value)
    load(named, i["weights"])
    draw = ProbabilisticTensorDictModule(
        ["logits"], ["action"], distribution_class=torch.distributions.Categorical, return_log_prob=True
    )
    actor = ProbabilisticTensorDictSequential(TensorDictModule(policy, ["observation"], ["logits"]), draw)
    loss = ClipPPOLoss(
        actor, ValueOperator(value, ["observation"]), clip_epsilon=hyper["clip_coef"], entropy_coeff=hyper["ent_coef"],
        critic_coeff=hyper["vf_coef"], **options,
    )  # fmt: skip
    optimizer = torch.optim.Adam(loss.parameters(), eps=1e-5)
    spy = Spy(optimizer, named, policy)
    columns = {key: torch.as_tensor(batch[name]) for key, name in NAMES.items()}
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
