"""A template: copy it, fill in what your PPO has, and delete the rest.

    python benchmark/conformance/check.py --adapter mine.py

As it is, it passes: each function returns what this project's reference does. Every input is a numpy array or a number.
Where your PPO lacks a case of a function, say masks in update, raise NotImplementedError("why"): the row says "not
there", and nothing fails. The page shows how a training is recorded, by a function record().
"""

import vectors

NAME = "my PPO"
OPTIONS = {}  # {"update": {"": {}, "my_option=True": {"my_option": True}}} calls update twice, with these arguments


def gae(i):
    """Returns {"advantages": (T, N), "returns": (T, N)}, or one of the two.

    i["rewards"], i["values"], i["terminated"] and i["truncated"] are (T, N); i["last_values"] (N,) are those of the
    observations after the rollout. If i["time_limits"] is "as an end", a truncated step is an end like any other; if it
    is "bootstrapped", i["final_values"] (T, N) has the values of the last observations of episodes that ended."""
    return vectors.answer({"call": "gae", "inputs": i})


def update(i):
    """Gradient steps on the whole of i["batch"]: actions, log_probs, values, advantages, returns, (M,) each, but
    actions (M, 2) unless i["kind"] is "discrete". The policy and the value function are one linear layer each, whose
    first weights are i["weights"], on observations that are the rows of np.eye(M); i["kind"] is "discrete", "gaussian"
    with a log_std of its own, or "multidiscrete" with masks.
    i["hyper"] has clip_coef, vf_coef, ent_coef, max_grad_norm, and learning_rates, one for each step.

    Returns {"steps": [{"gradients": {...}, "weights": {...}}, ...]}: after each step the clipped gradients and the new
    weights, under the names of i["weights"]. spy.Spy records them from a torch optimizer, as in torchrl_.py."""
    return vectors.answer({"call": "update", "inputs": i})


def evaluate_actions(i):
    """Returns {"log_prob": (M,), "entropy": (M,)} of i["actions"] by a policy whose network says i["outputs"]: logits
    of the parts i["nvec"] (of them all, for a single Discrete), where i["masks"] allow a value; or means, if there is
    i["log_std"]."""
    return vectors.answer({"call": "evaluate_actions", "inputs": i})


def normalize_observations(i):
    """Returns {"outputs": (T, N, D)}: i["observations"], of a reset and T - 1 steps of N environments, as the agent
    sees them."""
    return vectors.answer({"call": "normalize_observations", "inputs": i})
