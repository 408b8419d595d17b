"""The test vectors: inputs and outputs of each function that an adapter may have, and what known variants return.

    python benchmark/conformance/vectors.py   # draws the inputs anew and writes vectors.json

What only goes on from step to step of a training, such as minibatches, reward scaling or a memory, is left to the
replay. second_source.py computes the same numbers in another way, and tests/test_conformance.py compares the two.
"""

import json
import sys
from pathlib import Path

import numpy as np
import reference
from switches import GAE_SWITCHES, NORMALIZATIONS, STATISTICS_SWITCHES, UPDATE_SWITCHES, TimeLimits, defaults

FILE = Path(__file__).parent / "vectors.json"
OF_MINIBATCHES = [how for how, rule in NORMALIZATIONS.items() if rule.over == "minibatch"]
VARIANTS: dict[str, dict] = {  # the switches that a function can show
    "gae": GAE_SWITCHES,
    "update": UPDATE_SWITCHES | {"advantages": OF_MINIBATCHES, "Adam's ε": [1e-5, 1e-8, 1e-7]},
    "evaluate_actions": {"log-prob": UPDATE_SWITCHES["log-prob"]},
    "normalize_observations": STATISTICS_SWITCHES,
    "atari": {},
}
TIME_LIMITS = {"as an end": TimeLimits.AS_AN_END, "bootstrapped": TimeLimits.BOOTSTRAPPED}  # as the vectors have them
ALSO_IN_STEPS = {"fresh", "unclipped", "learning_rate", "observations", "actions"}  # of a spy, next to what is compared


# ---------------------------------------------------------------------------------------------------- What is expected
def expected_choices(case) -> dict:
    """A choice for each switch."""
    start = defaults(VARIANTS[case["call"]])
    return start | ({"time limits": TIME_LIMITS[case["inputs"]["time_limits"]]} if case["call"] == "gae" else {})


def gae(i, chosen):
    names = ("rewards", "values", "final_values", "terminated", "truncated", "last_values", "gamma", "gae_lambda")
    advantages, returns = reference.gae(*[i[name] for name in names], chosen)
    return {"advantages": advantages, "returns": returns}


def update(i, chosen):
    weights, state, steps, first = i["weights"], {}, [], None
    batch = i["batch"] | {"observations": np.eye(len(i["batch"]["advantages"]))}
    for rate in i["hyper"]["learning_rates"]:
        gradients, parts = reference.update(weights, batch, i["hyper"], i["kind"], chosen)
        weights = reference.adam(weights, gradients, state, rate, chosen["Adam's ε"])
        steps.append({"gradients": gradients, "weights": weights})
        first = first or parts
    return {"steps": steps, "first_step": first}


def evaluate_actions(i, chosen):
    if "log_std" in i:
        log_prob, entropy, *_ = reference.gaussian(i["outputs"], i["log_std"], i["actions"], chosen["log-prob"])
    else:
        arguments = (i["outputs"], i["actions"], i["nvec"], i.get("masks"), chosen["log-prob"])
        log_prob, entropy, *_ = reference.categorical(*arguments)
    return {"log_prob": log_prob, "entropy": entropy}


def normalize_observations(i, chosen):
    return {"outputs": reference.running_normalize(i["observations"], chosen)[0]}


def atari(i, chosen):
    """What our script sees of the game."""
    import ours_pictures

    return ours_pictures.atari(i)


def answer(case, chosen=None) -> dict:
    """The outputs of a variant, or what is expected."""
    return globals()[case["call"]](case["inputs"], chosen or expected_choices(case))


# ---------------------------------------------------------------------------------------------------- Files and numbers
def plain(x):
    """Arrays as lists, for JSON."""
    if isinstance(x, dict):
        return {name: plain(value) for name, value in x.items()}
    if isinstance(x, list):
        return [plain(value) for value in x]
    if isinstance(x, (np.ndarray, np.generic)):
        return plain(np.asarray(x).tolist())
    return float(f"{x:.11g}") if isinstance(x, float) else x


def arrays(x):
    """Lists of numbers as arrays."""
    if isinstance(x, dict):
        return {name: arrays(value) for name, value in x.items()}
    if isinstance(x, list) and isinstance(x[0], dict):
        return [arrays(value) for value in x]
    return np.array(x) if isinstance(x, list) else x


def load() -> list[dict]:
    """All cases: name, tag, why, call, inputs, expected."""
    cases = json.loads(FILE.read_text("utf-8"))
    return [case | {"inputs": arrays(case["inputs"]), "expected": arrays(case["expected"])} for case in cases]


class WrongForm(Exception):
    """A result hasn't the names, the shapes or the number of steps that are compared."""


def check_names(got, wanted: dict) -> None:
    """Raises WrongForm if `got` has a name that isn't wanted, or none that is, or only some parameters."""
    names = ", ".join(wanted)
    if not isinstance(got, dict):
        raise WrongForm(f"gives a {type(got).__name__}; needed is a dict of {names}")
    unknown = set(got) - set(wanted)
    if "gradients" in wanted:
        unknown -= ALSO_IN_STEPS
    if unknown or not set(got) & set(wanted):
        raise WrongForm(f"gives {', '.join(map(str, got)) or 'an empty dict'}; the names are {names}")
    missing = set(wanted) - set(got)
    if missing and "policy.0.weight" in wanted:
        raise WrongForm(f"gives no {', '.join(sorted(missing))}; needed are all parameters")


def distance(got, wanted) -> float:
    """The largest difference, in units of the largest number wanted; NaN if `got` has one. Arrays of one dict are
    measured together. `got` may leave some out, but no parameters; anything else raises WrongForm."""
    if isinstance(wanted, list):
        if not isinstance(got, (list, tuple)):
            raise WrongForm(f"gives a {type(got).__name__}; needed is a list of {len(wanted)} steps")
        if len(got) != len(wanted):
            raise WrongForm(f"gives {len(got)} steps; needed are {len(wanted)}")
        return float(np.max([distance(one, other) for one, other in zip(got, wanted)]))
    check_names(got, wanted)
    wanted = {name: wanted[name] for name in wanted if name in got}
    if isinstance(next(iter(wanted.values())), (dict, list)):
        return float(np.max([distance(got[name], wanted[name]) for name in wanted]))
    for name in wanted:
        shape, needed = tuple(np.shape(got[name])), np.shape(wanted[name])
        if shape != needed:
            raise WrongForm(f"{name} has shape {shape}, needed is {needed}")
    largest = max(np.abs(wanted[name]).max() for name in wanted)
    # np.max and not max, which drops NaN
    return float(np.max([np.abs(got[name] - wanted[name]).max() for name in wanted]) / largest)


# --------------------------------------------------------------------------------------------------------- Drawing them
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


def gae_cases():
    """Environment 0 ends never; 1 has true ends, also in the last step; 2 a time limit; 3 one in the last step."""
    T, N = 6, 4
    terminated, truncated = np.zeros((T, N), int), np.zeros((T, N), int)
    terminated[2, 1] = terminated[5, 1] = truncated[1, 2] = truncated[5, 3] = 1
    inputs = {
        "rewards": draw(T, N), "values": draw(T, N), "final_values": draw(T, N), "terminated": terminated,
        "truncated": truncated, "last_values": draw(N), "gamma": 0.99, "gae_lambda": 0.95, "time_limits": "as an end",
    }  # fmt: skip
    yield "gae", "time limits as ends", "core-5", "baselines treats a time limit as a true end.", inputs
    why = "An end cuts the value of what follows and the trace, in the last step too."
    yield "gae", "GAE, true ends", "core-5", why, inputs | {"truncated": np.zeros((T, N), int)}
    why = "The value of the last observation follows; the trace ends."
    yield "gae", "time limits bootstrapped", "plus-1", why, inputs | {"time_limits": "bootstrapped"}


def update_inputs(kind, on_policy, masked=False):
    M, A = 12, {"discrete": 3, "gaussian": 2, "multidiscrete": 5}[kind]
    weights = {"policy.0.weight": draw(A, M), "policy.0.bias": draw(A), "value.0.weight": draw(1, M)}
    weights["value.0.bias"] = draw(1)
    batch = {"advantages": draw(M, scale=2) + 0.5}
    if kind == "gaussian":
        weights["log_std"] = np.round(0.3 * rng.normal(size=A), 3)
        batch["actions"] = draw(M, A)
    elif kind == "discrete":
        batch["actions"] = rng.integers(0, A, M)
    else:
        batch |= {"actions": np.stack([rng.integers(0, 2, M), rng.integers(0, 3, M)], 1), "nvec": [2, 3]}
        batch["masks"] = draw_masks(batch["actions"])
    hyper = {"clip_coef": 0.2, "ent_coef": 0.01, "vf_coef": 0.5, "max_grad_norm": 0.2}
    hyper["learning_rates"] = [0.17] * 3 if on_policy else [0.02, 0.015]
    now = reference.evaluate(weights, batch | {"observations": np.eye(M)}, kind)
    batch["values"], batch["log_probs"] = now.value, now.log_prob
    if not on_policy:
        batch["values"] = draw_away(now.value, lambda x: np.abs(x - now.value) - 0.2, 0.3)
        batch["log_probs"] = draw_away(now.log_prob, lambda x: np.abs(np.exp(now.log_prob - x) - 1) - 0.2, 0.25)
    # Returns are what GAE makes of them, for libraries that compute advantages themselves from rewards and gamma = 0
    batch["returns"] = batch["advantages"] + batch["values"]
    return {"kind": kind, "weights": weights, "batch": batch, "hyper": hyper}


def draw_masks(actions):
    """Masks (M, 5) of MultiDiscrete([2, 3]) that allow the actions (M, 2)."""
    masks = rng.random((len(actions), 5)) < 0.65
    masks[np.arange(len(actions))[:, None], actions + np.array([0, 2])] = True
    return masks


def update_cases():
    rows = "Row i of the policy's weight is sample i's logits, so its gradient is that of one sample."
    losses = "core-3 core-7 core-8 core-9 core-10 core-11"
    first = "As in a rollout's first minibatch, where each ratio is 1; then two more epochs."
    masks = "A masked value has no probability, no gradient and no share in the entropy."
    yield "update", "update, Discrete", losses, rows, update_inputs("discrete", on_policy=False)
    yield "update", "update, Box", f"{losses} cont-1 cont-3", rows, update_inputs("gaussian", on_policy=False)
    yield "update", "three epochs, Discrete", losses, first, update_inputs("discrete", on_policy=True)
    yield "update", "update, MultiDiscrete", "multi-1 aux-4", masks, update_inputs("multidiscrete", on_policy=False)


def distribution_cases():
    call = "evaluate_actions"
    inputs = {"outputs": draw(6, 4, scale=2), "actions": rng.integers(0, 4, 6), "nvec": [4]}
    yield call, "log-probs, Discrete", "core-10", "Of a softmax of logits.", inputs
    inputs = {"outputs": draw(6, 3), "actions": draw(6, 3), "log_std": draw(3, scale=0.3)}
    yield call, "log-probs, Box", "cont-1 cont-3", "Summed over the components of an action.", inputs
    actions = np.stack([rng.integers(0, 2, 6), rng.integers(0, 3, 6)], 1)
    inputs = {"outputs": draw(6, 5, scale=2), "actions": actions, "nvec": [2, 3], "masks": draw_masks(actions)}
    why = "Summed over the components; a masked value has no probability."
    yield call, "log-probs, masked", "multi-1 aux-4", why, inputs


def observation_cases():
    observations = draw(40, 3, 2) * [0.05, 20.0] + [0.0, 5.0]
    observations[38, 1] = [2.0, -900.0]
    why = "Statistics, which all environments share, take a step in before it is normalized; then comes the clip."
    yield "normalize_observations", "observations", "cont-6 cont-7", why, {"observations": observations}
    why = "The first count is 0.0001, so that the first observation comes out as 0.01 times its sign."
    alone = {"observations": draw(6, 1, 2) + np.array([0.0, 5.0])}
    yield "normalize_observations", "observations, one environment", "cont-6", why, alone


def atari_cases():
    tags = {"no-ops": "atari-1", "raw actions": "atari-2", "lives": "atari-3", "FIRE": "atari-4"}
    tags |= {"frames": "atari-5 atari-7", "rewards": "atari-6"}
    for of, tag in tags.items():
        yield "atari", f"Atari, {of}", tag, "scripted_game.py describes the game.", {"of": of}


def main():
    lines = []
    for cases in (gae_cases, update_cases, distribution_cases, observation_cases, atari_cases):
        for call, name, tag, why, inputs in cases():
            case = {"name": name, "tag": tag, "why": why, "call": call, "inputs": inputs}
            lines.append(json.dumps(plain(case | {"expected": answer(case)}), separators=(",", ":")))
    FILE.write_text("[\n" + ",\n".join(lines) + "\n]\n", "utf-8")


if __name__ == "__main__":
    sys.path[:0] = [str(FILE.parent / "adapters"), str(FILE.parents[1])]  # an adapter plays the game
    main()
