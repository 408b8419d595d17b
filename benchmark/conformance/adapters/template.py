"""A template: copy it, fill in what your PPO has, and delete the rest.

    python benchmark/conformance/check.py --adapter mine.py

As it is, it passes: each function returns what this project's reference does. Every input is a numpy array or a number.
"""

import vectors

NAME = "my PPO"
OPTIONS = {}  # {"update": {"": {}, "my_option=True": {"my_option": True}}} calls update twice, with these arguments


def gae(i):
    """Advantages and returns, (T, N) each, of rewards, values, terminated and truncated, (T, N), and last_values, (N,),
    those of the observations after the rollout. final_values (T, N) are the values of the last observations of episodes
    that ended; i["time_limits"] is "end" or "bootstrap"."""
    return vectors.gae(i, {})


def update(i):
    """Gradient steps on the whole of i["batch"]: actions, log_probs, values, advantages, returns, (M,) each. The policy
    and the value function are one linear layer each, whose first weights are i["weights"], on observations that are the
    rows of np.eye(M); i["kind"] is "discrete", "gaussian" with a log_std of its own, or "multidiscrete" with masks.
    i["hyper"] has clip_coef, vf_coef, ent_coef, max_grad_norm, and learning_rates, one for each step.

    Returns {"steps": [{"gradients": {...}, "weights": {...}}, ...]}: after each step the clipped gradients and the new
    weights, under the names of i["weights"]. spy.Spy records them from a torch optimizer; adapters/ours.py uses it."""
    return vectors.update(i, {})


def evaluate_actions(i):
    """Log-probs and entropies, (M,) each, of i["actions"] by a policy whose network says i["outputs"]."""
    return vectors.evaluate_actions(i, {})


def normalize_observations(i):
    """i["observations"], (T, N, D), of a reset and T - 1 steps of N environments, as the agent sees them, in
    {"outputs": ...}; scale_rewards is the same for rewards and dones (T, N)."""
    return vectors.normalize_observations(i, {})


# def record():
#     """Trains 20 updates in scripted.ScriptedEnv or scripted.ScriptedVector, and returns what replay.py's first lines
#     describe. adapters/sb3.py is an example with a library's own loop; adapters/rsl_rl_.py, with the loop written out.
#     """
