"""Writes vectors.json from reference.py and says by how much each variant misses each of them.

    python benchmark/conformance/make_vectors.py

second_source.py computes the same numbers in another way, and tests/test_conformance.py compares the two.
"""

import json
import sys

import numpy as np
import reference
from vectors import ANSWERS, FILE, distance, plain, switches_of

CLEARLY = 2e-3  # a vector is meant for the variants that miss it by more
rng = np.random.default_rng(2)


def draw(*shape, scale=1.0):
    """Off any grid, so that nothing lies at the border of a clip, where a rounding error would decide."""
    return np.round(scale * rng.normal(size=shape), 4) + 1e-5


def draw_away(center, distance, scale):
    """Near `center`, but not where distance(x) is 0."""
    while True:
        x = np.round(center + scale * rng.normal(size=center.shape), 4)
        if np.abs(distance(x)).min() > 5e-3:
            return x


def case(call, name, tag, why, inputs, **more):
    """A case with its expected outputs, and by how much each known variant misses them."""
    expected = ANSWERS[call](inputs, {})
    missed = {}
    for switch, choices in switches_of(call, inputs).items():
        for choice in choices[1:]:
            missed[f"{switch}: {choice}"] = distance(ANSWERS[call](inputs, {switch: choice}), expected)
    missed = {variant: float(f"{by:.2g}") for variant, by in missed.items() if by > CLEARLY}
    whole = {"name": name, "tag": tag, "why": why, "call": call, "inputs": plain(inputs), "expected": plain(expected)}
    return whole | plain(more) | {"missed_by": missed}


# ---------------------------------------------------------------------------------------------------------------- Cases
def gae_cases():
    """Environment 0 ends never; 1 has true ends, also in the last step; 2 a time limit; 3 one in the last step."""
    T, N = 6, 4
    terminated, truncated = np.zeros((T, N), int), np.zeros((T, N), int)
    terminated[2, 1] = terminated[5, 1] = truncated[1, 2] = truncated[5, 3] = 1
    inputs = {
        "rewards": draw(T, N), "values": draw(T, N), "final_values": draw(T, N), "terminated": terminated,
        "truncated": truncated, "last_values": draw(N), "gamma": 0.99,
    }  # fmt: skip
    no_limits = inputs | {"truncated": np.zeros((T, N), int)}
    ends = {"gae_lambda": 0.95, "time_limits": "end"}
    yield case(
        "gae", "GAE, true ends", "core-5", "An end cuts the value of what follows and the trace, in the last step too.",
        no_limits | ends
    )  # fmt: skip
    yield case(
        "gae", "time limits as ends", "core-5", "baselines treats a time limit as a true end.", inputs | ends,
    )  # fmt: skip
    yield case(
        "gae", "time limits bootstrapped", "plus-1", "The value of the last observation follows; the trace ends.",
        inputs | ends | {"time_limits": "bootstrap"}
    )  # fmt: skip


def update_case(kind, name, tag, why, M, on_policy, masked=False):
    A = {"discrete": 3, "gaussian": 2, "multidiscrete": 5}[kind]
    weights = {"policy.0.weight": draw(A, M), "policy.0.bias": draw(A), "value.0.weight": draw(1, M)}
    weights["value.0.bias"] = draw(1)
    batch = {
        "advantages": draw(M, scale=2) + 0.5,
        "log_probs": np.zeros(M),
        "values": np.zeros(M),
        "returns": np.zeros(M),
    }
    if kind == "gaussian":
        weights["log_std"] = np.round(0.3 * rng.normal(size=A), 3)
        batch["actions"] = draw(M, A)
    elif kind == "discrete":
        batch["actions"] = rng.integers(0, A, M)
    else:
        batch["actions"] = np.stack([rng.integers(0, 2, M), rng.integers(0, 3, M)], 1)
        batch["nvec"] = [2, 3]
    if masked:
        masks = rng.random((M, A)) < 0.7
        chosen = batch["actions"] + [0, 2]
        masks[np.arange(M)[:, None], chosen] = True
        batch["masks"] = masks
    hyper = {"clip_coef": 0.2, "ent_coef": 0.01, "vf_coef": 0.5, "max_grad_norm": 0.2, "adam_eps": 1e-5}
    hyper["learning_rates"] = [0.17] * 3 if on_policy else [0.02, 0.015, 0.01]
    now = reference.evaluate(weights, batch | {"observations": np.eye(M)}, kind)
    log_prob, value = now.log_prob, now.value
    batch["values"], batch["log_probs"] = value, log_prob
    if not on_policy:
        batch["values"] = draw_away(value, lambda x: np.abs(x - value) - 0.2, 0.3)
        batch["log_probs"] = draw_away(log_prob, lambda x: np.abs(np.exp(log_prob - x) - 1) - 0.2, 0.25)
    # Returns are what GAE makes of them, for libraries that compute advantages themselves from rewards and gamma = 0
    batch["returns"] = batch["advantages"] + batch["values"]
    inputs = {"kind": kind, "on_policy": on_policy, "weights": weights, "batch": batch, "hyper": hyper}
    first = reference.update(weights, batch | {"observations": np.eye(M)}, hyper, kind)
    scalars = {name: first[name] for name in ("policy_loss", "value_loss", "entropy", "loss", "grad_norm")}
    scalars["entropy"] = scalars["entropy"].mean()
    return case("update", name, tag, why, inputs, first_step=scalars)


def update_cases():
    rows = "Row i of the policy's weight is sample i's logits, so its gradient is that of one sample."
    losses = "core-3 core-7 core-8 core-9 core-10 core-11"
    first = "As in a rollout's first minibatch, where each ratio is 1; then two more epochs."
    yield update_case("discrete", "update, Discrete", losses, rows, 12, False)
    yield update_case("gaussian", "update, Box", f"{losses} cont-1 cont-3", rows, 12, False)
    yield update_case("discrete", "three epochs, Discrete", losses, first, 12, True)
    masks = "A masked value has no probability, no gradient and no share in the entropy."
    yield update_case("multidiscrete", "update, MultiDiscrete with masks", "multi-1 aux-4", masks, 12, False, True)


def distribution_cases():
    yield case(
        "evaluate_actions", "log-probs, Discrete", "core-10", "Of a softmax of logits.",
        {"outputs": draw(6, 4, scale=2), "actions": rng.integers(0, 4, 6), "nvec": [4]},
    )  # fmt: skip
    yield case(
        "evaluate_actions", "log-probs, Box", "cont-1 cont-3", "Summed over the components of an action.",
        {"outputs": draw(6, 3), "actions": draw(6, 3), "log_std": draw(3, scale=0.3)},
    )  # fmt: skip
    actions = np.stack([rng.integers(0, 2, 6), rng.integers(0, 3, 6)], 1)
    masks = rng.random((6, 5)) < 0.6
    masks[np.arange(6)[:, None], actions + np.array([0, 2])] = True
    inputs = {"outputs": draw(6, 5, scale=2), "actions": actions, "nvec": [2, 3]}
    why = "Summed over the components; a masked value has no probability."
    yield case("evaluate_actions", "log-probs, MultiDiscrete", "multi-1", why, inputs)
    yield case("evaluate_actions", "log-probs, masked", "multi-1 aux-4", why, inputs | {"masks": masks})


def statistics_cases():
    observations = draw(40, 3, 2) * [0.05, 20.0] + [0.0, 5.0]
    observations[38, 1] = [2.0, -900.0]
    yield case(
        "normalize_observations", "observations", "cont-6 cont-7",
        "Statistics, which all environments share, take a step in before it is normalized; then comes the clip.",
        {"observations": observations},
    )  # fmt: skip
    yield case(
        "normalize_observations", "observations, one environment", "cont-6",
        "The first count is 0.0001, so that the first observation comes out as 0.01 times its sign.",
        {"observations": draw(6, 1, 2) + np.array([0.0, 5.0])},
    )  # fmt: skip
    rewards, dones = draw(40, 3, scale=2), np.zeros((40, 3), int)
    dones[3, 0] = dones[6, 2] = 1
    rewards[38, 1] = 400.0
    why = "Divided by the deviation of the discounted returns, which begin anew with an episode. No mean is taken off."
    yield case("scale_rewards", "rewards", "cont-8 cont-9", why, {"rewards": rewards, "dones": dones, "gamma": 0.99})


def lstm_cases():
    T, N, D, H = 5, 2, 3, 4
    shapes = {"weight_ih": (4 * H, D), "weight_hh": (4 * H, H), "bias_ih": (4 * H,), "bias_hh": (4 * H,)}
    weights = {f"lstm.{name}": draw(*shape, scale=0.7) for name, shape in shapes.items()}
    dones = np.zeros((T, N), int)
    dones[2, 0] = dones[4, 1] = 1
    inputs = {"weights": weights, "observations": draw(T, N, D), "dones": dones, "state": draw(2, N, H)}
    why = "The state is zero before an episode's first observation, in the middle of a sequence too."
    yield case("lstm", "LSTM with resets", "lstm-3 lstm-5", why, inputs)


def initial_cases():
    gains = {"hidden": {"gain": 2**0.5}, "policy": {"gain": 0.01}, "value": {"gain": 1.0}}
    mlp = "Orthogonal weights, biases of 0, and two networks of two hidden layers with 64 units."
    cnn = "Orthogonal weights, biases of 0, and one network whose features the actor and the critic share."
    networks = [
        ("ppo", "core-2 core-13", [4], 2, True, 9155, mlp),
        ("ppo_continuous_action", "core-2 cont-2 cont-4", [17], 6, False, 11085, mlp),
        ("ppo_atari", "core-2 atari-8", [84, 84, 4], 4, True, 1686693, cnn),
        ("ppo_atari_lstm", "core-2 lstm-1", [84, 84, 1], 4, True, 2007333, cnn),
        ("ppo_procgen", "impala", [64, 64, 3], 15, True, 626256, cnn),
    ]
    for script, tag, observation, actions, discrete, count, why in networks:
        inputs = {"script": script, "observation": observation, "actions": actions, "discrete": discrete}
        expected = {"parameters": {"count": count}, **gains, "rest": {"1 + skew": 1.0, "1 + bias": 1.0}}
        if tag == "impala":  # the paper's network has torch's own initial weights
            expected = {"parameters": {"count": count}}
        elif "lstm" in tag:
            expected["LSTM"] = {"gain": 1.0}
        whole = {"name": f"initial weights, {script}", "tag": tag, "why": why, "call": "initial_weights"}
        yield whole | {"inputs": inputs, "expected": expected, "missed_by": {}}


def atari_cases():
    tags = {"no-ops": "atari-1", "raw actions": "atari-2", "lives": "atari-3", "FIRE": "atari-4"}
    tags |= {"frames": "atari-5 atari-7", "rewards": "atari-6"}
    sys.path.insert(0, str(FILE.parent / "adapters"))
    import ours

    for of, tag in tags.items():
        whole = {"name": f"Atari, {of}", "tag": tag, "why": "scripted_game.py describes the game.", "call": "atari"}
        yield whole | {"inputs": {"of": of}, "expected": plain(ours.atari({"of": of})), "missed_by": {}}


if __name__ == "__main__":
    every = [gae_cases, update_cases, distribution_cases, statistics_cases, lstm_cases, initial_cases, atari_cases]
    lines = [json.dumps(one) for cases in every for one in cases()]
    FILE.write_text("[\n" + ",\n".join(lines) + "\n]\n", "utf-8")
