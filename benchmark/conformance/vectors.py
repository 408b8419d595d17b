"""What the calls of an adapter mean: the outputs that reference.py gives for their inputs, and the variants of each."""

import json
from pathlib import Path

import numpy as np
import reference

FILE = Path(__file__).parent / "vectors.json"
VARIANTS = {  # the switches that a call can show
    "gae": reference.GAE_SWITCHES,
    "update": reference.UPDATE_SWITCHES | {"Adam's epsilon": [1e-5, 1e-8, 1e-7]},
    "evaluate_actions": {"log-prob": reference.UPDATE_SWITCHES["log-prob"]},
    "normalize_observations": reference.STATISTICS_SWITCHES,
    "scale_rewards": {"clip": [10.0, np.inf], "scale": [True, False], "per_environment": [False, True]},
    "lstm": {"resets": [True, False]},
}


# ---------------------------------------------------------------------------------------------------- Files and numbers
def plain(x):
    """Arrays as lists, for JSON."""
    if isinstance(x, dict):
        return {name: plain(value) for name, value in x.items()}
    if isinstance(x, list):
        return [plain(value) for value in x]
    if isinstance(x, (np.ndarray, np.generic)):
        return plain(np.asarray(x).tolist())
    return float(f"{x:.12g}") if isinstance(x, float) else x


def arrays(x):
    """Lists of numbers as arrays."""
    if isinstance(x, dict):
        return {name: arrays(value) for name, value in x.items()}
    if isinstance(x, list) and isinstance(x[0], dict):
        return [arrays(value) for value in x]
    return np.array(x) if isinstance(x, list) else x


def load():
    """All cases."""
    for case in json.loads(FILE.read_text("utf-8")):
        yield case | {"inputs": arrays(case["inputs"]), "expected": arrays(case["expected"])}


def distance(got, wanted):
    """The largest difference, in units of the largest number wanted. Arrays of one dict are measured together."""
    if isinstance(wanted, list):
        return max(distance(one, other) for one, other in zip(got, wanted, strict=True))
    if isinstance(wanted, dict) and isinstance(next(iter(wanted.values())), (dict, list)):
        return max(distance(got[name], wanted[name]) for name in wanted)
    if not isinstance(wanted, dict):
        got, wanted = {"": got}, {"": wanted}
    if any(np.shape(got[name]) != np.shape(wanted[name]) for name in wanted):
        return np.inf
    largest = max(np.abs(wanted[name]).max() for name in wanted)
    return float(max(np.abs(got[name] - wanted[name]).max() for name in wanted) / largest)


# ---------------------------------------------------------------------------------------------------- What is expected
def gae(i, switches):
    names = ("rewards", "values", "final_values", "terminated", "truncated", "last_values", "gamma", "gae_lambda")
    wanted = {"time limits": i["time_limits"]} | switches
    advantages, returns = reference.gae(*[i[name] for name in names], wanted)
    return {"advantages": advantages, "returns": returns}


def update(i, switches):
    eps = switches.get("Adam's epsilon", i["hyper"]["adam_eps"])
    weights, state, steps = i["weights"], {}, []
    batch = i["batch"] | {"observations": np.eye(len(i["batch"]["advantages"]))}
    for rate in i["hyper"]["learning_rates"]:
        gradients = reference.update(weights, batch, i["hyper"], i["kind"], switches)["gradients"]
        weights = reference.adam(weights, gradients, state, rate, eps)
        steps.append({"gradients": gradients, "weights": weights})
    return {"steps": steps}


def evaluate_actions(i, switches):
    how = switches.get("log-prob", "sum")
    if "log_std" in i:
        log_prob, entropy, *_ = reference.gaussian(i["outputs"], i["log_std"], i["actions"], how)
    else:
        log_prob, entropy, *_ = reference.categorical(i["outputs"], i["actions"], i["nvec"], i.get("masks"), how)
    return {"log_prob": log_prob, "entropy": entropy}


def normalize_observations(i, switches):
    return {"outputs": reference.running_normalize(i["observations"], switches)[0]}


def scale_rewards(i, switches):
    return {"outputs": reference.scale_rewards(i["rewards"], i["dones"], i["gamma"], **switches)}


def lstm(i, switches):
    hidden, _, state = reference.lstm_forward(i["weights"], i["observations"], i["dones"], i["state"], **switches)
    return {"hidden": hidden, "state": state}


ANSWERS = {
    "gae": gae,
    "update": update,
    "evaluate_actions": evaluate_actions,
    "normalize_observations": normalize_observations,
    "scale_rewards": scale_rewards,
    "lstm": lstm,
}


def switches_of(call, inputs):
    """The switches that a case can show, the expected choice first."""
    switches = dict(VARIANTS.get(call, {}))
    if "log-prob" in switches:
        nvec = inputs.get("nvec", inputs.get("batch", {}).get("nvec", [0]))
        if inputs.get("kind") == "gaussian" or "log_std" in inputs:
            switches["log-prob"] = reference.UPDATE_SWITCHES["log-prob"]
        elif len(nvec) > 1:
            switches["log-prob"] = ["sum", "mean", "mean, entropy too"]
        else:
            del switches["log-prob"]
    if call == "update":  # a batch is one minibatch
        of_rollouts = ("rollout's", "each environment's")
        switches["advantages"] = [how for how in switches["advantages"] if not how.startswith(of_rollouts)]
    if call == "gae":
        first = inputs["time_limits"]
        switches["time limits"] = sorted(switches["time limits"], key=lambda choice: choice != first)
        if not inputs["truncated"].any():
            del switches["time limits"]
            switches["trace"] = ["cut", "leaks at all ends"]
    return switches
