"""Names what a recorded training computes, each part by itself: an error in one doesn't hide the others.

The gradients of the value function's own layers come from the value loss alone, those of the policy's from the policy
loss and the entropy bonus. For each of the two, the choices of switches.py are looked for that give its
gradients in all steps. If none do, those are looked for that give them in the first step of each rollout, where nothing
is clipped yet. Gradients are compared before they are clipped; given those, is the clip right?
"""

import itertools
from typing import NamedTuple

import numpy as np
import reference
from replay import Replay, broken_part
from switches import (
    GAE_SWITCHES,
    STATISTICS_SWITCHES,
    TRAINING_SWITCHES,
    UPDATE_SWITCHES,
    GradientClip,
    LateResets,
    LogProb,
    Lstm,
    Masks,
    Order,
    PolicyLoss,
    Rewards,
    Update,
    ValueLoss,
    by_deviations,
    defaults,
    describe,
)

TOLERANCE = 2e-4  # of a step's largest gradient; float32 differs by some 1e-6
SMALL = 0.02  # a gradient that is smaller is a sum of larger ones that cancel
MOST = 2  # switches that deviate at once in one part
UNKNOWN = "like no variant that is known"
BOTH_UNKNOWN = (
    f"{UNKNOWN}, or both losses are; or samples are in another order than their observations, or the networks aren't "
    "the reference's"
)
NEVER_CLIPPED = "the clip never acted: raise the learning rate"
TAGS = {  # of each switch's row
    "time limits": "plus-1", "late resets": "core-1", "done flags": "core-1 core-5", "rewards": "cont-8 cont-9",
    "LSTM": "lstm-3 lstm-5", "advantages": "core-7", "policy loss": "core-8", "old log-probs": "core-8",
    "clip range": "aux-1", "log-prob": "cont-1 cont-3 multi-1", "masks": "aux-4", "value loss": "core-9",
    "value's shape": "core-9", "order of samples": "core-6",
}  # fmt: skip
SWITCHES = {  # of each part of the loss; "both" are those that change advantages and returns
    "policy": [
        "advantages", "policy loss", "old log-probs", "clip range", "log-prob", "masks", "values and advantages",
    ],
    "value": ["value loss", "value's shape", "clip range", "values and advantages"],
    "both": [*GAE_SWITCHES, "rewards", "late resets", "LSTM", "order of samples"],
}  # fmt: skip
NOT_CLIPPED = {"policy loss": PolicyLoss.NOT_CLIPPED, "value loss": ValueLoss.NOT_CLIPPED}
TERMS = {"policy": ["policy", "entropy"], "value": ["value"]}
SCALES = {  # of each term: the row, and what a factor of 1 is known as
    "policy": ("core-8", "policy scale", 1.0), "entropy": ("core-10", "entropy bonus", None),
    "value": ("core-10", "value scale", 0.5),
}  # fmt: skip


class Row(NamedTuple):
    tag: str
    name: str
    verdict: str  # "same", "differs", "not there"
    note: str = ""


class Fit(NamedTuple):
    chosen: dict  # a choice for each switch
    factors: dict  # of the loss's terms: 1 is as expected
    in_all: bool = True  # of the steps, or in the first of each rollout


# ---------------------------------------------------------------------------------------- What can be read off a record
def compare(tag, name, differences: list[str], note="") -> Row:
    return Row(tag, name, "differs" if differences else "same", "; ".join(differences) or note)


def rollouts(replay: Replay) -> Row:
    wrong = []
    if not replay.complete:
        wrong.append("another number of environments or steps than asked for")
    elif replay.fresh_starts:
        wrong.append(f"{replay.fresh_starts} episodes are cut between rollouts")
    return compare("core-1", "rollouts", wrong)


def initialization(own: dict) -> Row:
    """Of weights by a script's names: orthogonal, with gains by their role."""
    last = {name.partition(".")[0]: name for name, x in own.items() if x.ndim > 1}
    wrong = []
    for name, x in own.items():
        gain = {last.get("actor"): 0.01, last.get("critic"): 1.0}.get(name, np.sqrt(2))
        if name.startswith("lstm"):
            gain = 1.0
        if x.ndim == 1:
            error = np.abs(x).max()
        else:
            matrix = x.reshape(len(x), -1)
            small = matrix if len(matrix) <= matrix.shape[1] else matrix.T
            error = np.abs(small @ small.T / gain**2 - np.eye(len(small))).max()
        if not error <= 1e-4:  # NaN too
            wrong.append(name)
    return compare("core-2 lstm-1", "initial weights", wrong)


def networks(record: dict) -> Row:
    """Whether actor and critic have the parameters that they should, and share none."""
    layers = [reference.layers_of(record["initial"], part) for part in ("policy", "value")]
    pairs = itertools.product(*layers)
    shared = sum(one.size > 1 and np.array_equal(one, other) for (one, _), (other, _) in pairs)
    wrong = [f"actor and critic share {shared} layers"] if shared else []
    if record.get("others"):
        wrong.append(f"also trained: {', '.join(record['others'])}")
    body = any(name.startswith(("shared", "lstm")) for name in record["initial"])
    note = "policy and value share a body" if body else "policy and value are apart"
    return compare("core-13 cont-2 cont-4 atari-8 impala", "networks", wrong, note)


def minibatches(replay: Replay) -> Row:
    """Each sample once an epoch, equal sizes, drawn anew in each epoch, not in order of time."""
    wrong = []
    if any(min(batch) < 0 for batch in replay.minibatches):
        wrong.append("observations that don't come before a step of the rollout")
    else:
        size, K, E = replay.N * replay.T, replay.hyper["minibatches"], replay.hyper["epochs"]
        epochs = [replay.minibatches[i : i + K] for i in range(0, len(replay.minibatches), K)]
        found = reference.describe_split(epochs, size)
        if (found["counts"] != 1).any():
            wrong.append("not every sample once an epoch")
        if (found["sizes"] != size // K).any():
            wrong.append("unequal sizes")
        repeated = found["repeated"]
        if len(repeated) and repeated.all():
            wrong.append("always the same minibatches: not shuffled")
        elif E > 1 and all(repeated[i] for i in range(len(repeated)) if (i + 1) % E):
            wrong.append("the same in each epoch")
    if not replay.has_lstm:
        return compare("core-6", "minibatches", wrong)
    if not all(is_sequential(replay, batch) for batch in replay.minibatches):
        wrong.append("not whole environments in order of time")
    return compare("lstm-4", "minibatches", wrong)


def is_sequential(replay, batch):
    """Whether it has whole environments in order of time."""
    n = len(batch) // replay.T
    return len(batch) == n * replay.T and (batch.reshape(replay.T, n) // replay.N == np.arange(replay.T)[:, None]).all()


def annealing(replay: Replay) -> Row:
    rates = np.array([step["learning_rate"] for step in replay.steps]) / replay.hyper["learning_rate"]
    wanted = 1 - np.arange(len(rates)) // replay.per_update / replay.U * replay.hyper["annealed"]
    if np.abs(rates - wanted).max() < 1e-6:
        return Row("core-4", "learning rate", "same")
    note = "constant" if np.ptp(rates) < 1e-6 else f"from {rates[0]:.3g} to {rates[-1]:.3g}"
    return Row("core-4", "learning rate", "differs", note)


def adam_errors(replay: Replay, eps: float, lost_every: int | None = None) -> tuple[float, float]:
    """How far the weights are from those of Adam: in units of the learning rate, and of what is tolerated. Tolerated is
    a thousandth of the rate, and half the distance of neighbors in float32, since weights are rounded. Adam's state may
    be lost every so many steps."""
    weights, state, of_rate, of_tolerance = replay.record["initial"], {}, 0.0, 0.0
    for i, step in enumerate(replay.steps):
        if lost_every and i % lost_every == 0:
            state = {}
        rate = max(step["learning_rate"], 1e-12)
        largest = np.max([np.abs(x).max() for x in step["weights"].values()])
        after = reference.adam(weights, step["gradients"], state, step["learning_rate"], eps)
        moved = np.max([np.abs(after[name] - step["weights"][name]).max() for name in after])  # max drops NaN
        of_rate = np.maximum(of_rate, moved / rate)
        of_tolerance = np.maximum(of_tolerance, moved / (1e-3 * rate + 6e-8 * largest))
        weights = step["weights"]
    return of_rate, of_tolerance


def adam(replay: Replay) -> Row:
    of_rate, of_tolerance = adam_errors(replay, replay.hyper["adam_eps"])
    if of_tolerance < 1:
        return Row("core-3", "Adam's ε", "same", f"{len(replay.steps)} steps to {of_rate:.0e} of the rate")
    epsilons = (1e-5, 1e-6, 1e-7, 1e-8)
    errors = {eps: adam_errors(replay, eps)[1] for eps in epsilons}
    best = min(errors, key=errors.get)
    if errors[best] < 1:
        return Row("core-3", "Adam's ε", "differs", f"{best:g}")
    initial = replay.record["initial"]
    unmoved = [name for name, x in initial.items() if all(np.array_equal(x, y["weights"][name]) for y in replay.steps)]
    if unmoved:
        return Row("core-3", "Adam's ε", "differs", f"{', '.join(unmoved)}: never moved, does the optimizer have them?")
    for what, every in {"rollout": replay.per_update, "epoch": replay.per_epoch, "step": 1}.items():
        for eps in epsilons:
            if adam_errors(replay, eps, every)[1] < 1:
                other = "" if eps == replay.hyper["adam_eps"] else f", ε {eps:g}"
                return Row("core-3", "Adam's state", "differs", f"lost before each {what}{other}")
    note = "not Adam with betas 0.9, 0.999 and an ε of 1e-5 to 1e-8 and no weight decay"
    return Row("core-3", "Adam's ε", "differs", note)


def observations(replay: Replay) -> Row:
    """What the policy saw when it acted: raw or normalized, and how."""
    tag, count = "atari-9 cont-6 cont-7", replay.U * replay.T
    passes = np.array(replay.record["acted"])
    acted = passes[:count]
    replay.inputs_known = True
    wanted = "normalized" if replay.record.get("normalizes") else "raw"
    # After the last step comes at most the pass for the value of what follows; more are no steps, say values at limits
    if acted.shape != replay.final.shape or len(passes) > count + 1:
        inputs, means, roots = next(ways_to_observe(replay, wanted, True)).normalized
        final = (replay.final - means[1:]) / roots[1:]
        replay.see(inputs, final if wanted == "raw" else final.clip(-10, 10))
        return Row(tag, "observations", "not there", f"acting isn't known: taken for {wanted}")
    for way in ways_to_observe(replay, wanted, acted.min() < 0):
        inputs, means, roots = way.normalized
        if np.abs(inputs[:-1] - acted).max() < 1e-3:  # the first that fits has the fewest deviations
            limit = np.abs(inputs).max()
            last = None
            if way.of_rollouts:  # the last observation's value still comes with the rollout's statistics
                last = (replay.raw[1:] - means[:-1]) / roots[:-1]
            replay.see(inputs, ((replay.final - means[1:]) / roots[1:]).clip(-limit, limit), last)
            name = "observations" if wanted == "normalized" else "raw observations"
            return compare(tag, name, [] if way.is_wanted else [way.says])
    replay.inputs_known = False
    replay.see(np.concatenate([acted, replay.raw[-1:]]), replay.final)
    return Row(tag, "observations", "differs", "in no way that is known")


class Way(NamedTuple):
    """How acting may have seen observations."""

    says: str
    normalized: tuple  # observations, means and roots, as reference.running_normalize returns them
    is_wanted: bool = False
    of_rollouts: bool = False  # statistics change after each rollout only


def ways_to_observe(replay: Replay, wanted: str, is_centered: bool):
    """Ways to see observations: the wanted one first, then those with the fewest deviations."""
    raw = replay.raw
    zeros, ones = np.zeros(raw.shape), np.ones(raw.shape)
    if wanted == "normalized":
        yield Way("normalized", reference.running_normalize(raw), is_wanted=True)
    yield Way("raw", (raw, zeros, ones), is_wanted=wanted == "raw")
    yield Way("raw, clipped", (raw.clip(-10, 10), zeros, ones))
    yield Way("times 255", (raw * 255, zeros, ones / 255))
    if not is_centered:
        return
    start = defaults(STATISTICS_SWITCHES)
    for chosen in by_deviations(STATISTICS_SWITCHES, len(start)):
        of_rollouts = chosen["update"] == Update.AFTER_ROLLOUT
        says = describe(chosen, start) or "normalized"
        yield Way(says, reference.running_normalize(raw, chosen, replay.T), of_rollouts=of_rollouts)


def first_ratio(replay: Replay) -> Row:
    """Whether learning sees what acting saw: then the ratio of a rollout's first minibatch is 1, if the log-probs that
    were kept are those of acting. Only the policy loss shows these."""
    ratios = [1.0]
    chosen = defaults(switches_of(replay))
    for i in range(0, len(replay.steps), replay.per_update):
        weights, learned = replay.weights_before(i), replay.seen_in(i, slice(None), chosen)
        acted = learned | {"observations": replay.rollout_inputs(i // replay.per_update)[replay.minibatches[i]]}
        log_probs = [reference.evaluate(weights, x, replay.kind).log_prob for x in (learned, acted)]
        ratios += list(np.exp(log_probs[0] - log_probs[1]))
    low, high = np.min(ratios), np.max(ratios)
    return compare("core-8", "first ratio", [] if high - low <= 1e-3 else [f"{low:.2f} to {high:.2f}"])


def stored_actions(replay: Replay) -> list[Row]:
    """Whether actions beyond the environment's bounds are learned from as they were drawn."""
    if replay.kind != "gaussian" or "actions" not in replay.steps[0]:
        return []
    learned = np.max([np.abs(replay.rollout_actions(u)).max() for u in range(replay.U)])
    done = np.abs(replay.actions).max()
    note = f"learned up to {learned:.2f}, done up to {done:.2f}"
    return [Row("cont-5", "actions", "same" if learned > done + 1e-3 and done <= 1 else "differs", note)]


# ---------------------------------------------------------------------------------------------- What explains gradients
def switches_of(replay: Replay) -> dict:
    """Those that this training can show, the wanted choice first."""
    switches = GAE_SWITCHES | UPDATE_SWITCHES | TRAINING_SWITCHES
    scaled = replay.record.get("normalizes") == "observations and rewards"
    if not scaled:
        switches["rewards"] = [Rewards.AS_THEY_ARE, Rewards.SCALED_CLIPPED]
    if not replay.has_lstm:
        switches["LSTM"] = [Lstm.RIGHT]
    else:
        switches["order of samples"] = [Order.ONE]  # a memory's minibatches say so in their own row
    if replay.kind != "multidiscrete":
        switches["masks"] = [Masks.USED]
    if replay.valid.all():
        switches["late resets"] = [LateResets.LEFT_OUT]
    other_kind = LogProb.SOFTMAX_TWICE if replay.kind == "gaussian" else LogProb.LAPLACE
    switches["log-prob"] = [choice for choice in switches["log-prob"] if choice != other_kind]
    for name, choice in replay.record.get("options", {}).items():
        switches[name] = sorted(switches[name], key=lambda other: other != choice)
    return switches


class Search:
    """For the choices that give a part's gradients."""

    def __init__(self, replay: Replay):
        self.replay = replay
        self.switches = switches_of(replay)
        self.wanted = defaults(self.switches)
        numbers = range(len(replay.steps))
        # The last of each rollout come first, since there most variants differ
        self.every = sorted(numbers, key=lambda i: -(i % replay.per_update))
        self.first = [i for i in numbers if i % replay.per_update == 0]
        self.got = {part: {i: flat(replay.fresh(i), part) for i in numbers} for part in TERMS}

    def fit(self, part, chosen, steps) -> Fit | None:
        """Whether the part's terms, each times one number, add up to the gradients of all these steps. Nothing fits
        NaN."""
        large = [i for i in steps if np.abs(self.got[part][i]).max() > SMALL] or steps
        apart = large[:: max(1, len(large) // 3)][:3]  # the factors follow from these
        columns, got = [], []
        for i in apart + [i for i in steps if i not in apart]:
            by_term = self.replay.gradients_by_term(i, chosen, TERMS[part])
            x, y = np.array([flat(gradients, part) for gradients in by_term]).T, self.got[part][i]
            if not np.isfinite(x).all() or not np.isfinite(y).all():
                return None
            if i in apart:
                columns.append(x)
                got.append(y)
                factors = np.linalg.lstsq(np.concatenate(columns), np.concatenate(got))[0]
            if np.abs(x @ factors - y).max() > TOLERANCE * max(np.abs(y).max(), SMALL):
                return None
        factors = dict(zip(TERMS[part], factors))
        if self.replay.hyper["ent_coef"] == 0:
            factors["entropy"] = 1.0
        return Fit(chosen, factors)

    def look(self, part, start, names, steps) -> Fit | None:
        """With the fewest deviations from `start` in these switches; where the policy's factor is 1, if there is one:
        a minibatch's population and sample deviation differ by a factor alone."""
        other = None
        for chosen in by_deviations({name: self.switches[name] for name in names}, MOST, start):
            fit = self.fit(part, chosen, steps)
            if fit and (part == "value" or min(abs(fit.factors["policy"] - 1), abs(fit.factors["policy"])) < 1e-3):
                return fit
            other = other or fit
        return other

    def explain(self, part, start) -> Fit | None:
        """Looks in all steps, then in those where nothing is clipped yet; first for what has `start`'s advantages."""
        for steps in (self.every, self.first):
            for beginning, names in ((start, SWITCHES[part]), (self.wanted, SWITCHES["both"] + SWITCHES[part])):
                fit = self.look(part, beginning, names, steps)
                if fit:
                    return fit._replace(in_all=steps is self.every)
        return None

    def clip_acted(self, part, fit: Fit) -> bool:
        """Whether the loss without its clip has other gradients."""
        name = f"{part} loss"
        is_clipped = fit.chosen[name] != NOT_CLIPPED[name]
        return not (is_clipped and self.fit(part, fit.chosen | {name: NOT_CLIPPED[name]}, self.every))

    def deviations(self, fit: Fit, names) -> list[Row]:
        """Rows of the switches that are not as expected."""
        names = [name for name in names if fit.chosen[name] != self.wanted[name]]
        return [Row(TAGS.get(name, "core-5"), name, "differs", fit.chosen[name]) for name in names]

    def gae_rows(self, value: Fit | None, policy: Fit | None) -> list[Row]:
        """Of what both losses contain. Where the two don't have the same, the row says which has it; where one isn't
        known, what it alone would show isn't compared."""
        tag, name = "core-5", "advantages and returns"
        if value is None and policy is None:
            return [Row(tag, name, "differs", BOTH_UNKNOWN)]
        of_value = self.deviations(value, SWITCHES["both"]) if value else []
        of_policy = self.deviations(policy, SWITCHES["both"]) if policy else []
        rows = []
        for row in of_value:
            is_common = row in of_policy or policy is None or row.name == "returns"
            rows.append(row if is_common else row._replace(note=f"for the value alone: {row.note}"))
        for row in of_policy:
            if row not in of_value and row.name != "returns":
                rows.append(row if value is None else row._replace(note=f"for the policy alone: {row.note}"))
        compared = [len(self.every if fit.in_all else self.first) for fit in (value, policy) if fit]
        note = f"in {min(compared)} steps"
        if value and policy:
            return rows or [Row(tag, name, "same", note)]
        if value:
            known, unknown, why = "returns", "advantages of GAE", "the policy loss isn't known"
        else:
            known, unknown, why = "advantages of GAE", "returns", "the value loss isn't known"
        rows = rows or [Row(tag, known, "same", note)]
        return [*rows, Row(tag, unknown, "not there", f"not compared: {why}")]

    def loss_rows(self, part, fit: Fit | None) -> list[Row]:
        name = f"{part} loss"
        if fit is None:
            return [Row(TAGS[name], name, "differs", f"{UNKNOWN}, in no step")]
        rows = self.deviations(fit, SWITCHES[part])
        if not fit.in_all:
            rows.append(Row(TAGS[name], name, "differs", f"{UNKNOWN}; known where the ratio is 1 and nothing clipped"))
        known = [row.name for row in rows]
        if part == "policy" and "advantages" not in known:
            rows.append(Row(TAGS["advantages"], "advantages", "same"))
        if name not in known:
            acted = self.clip_acted(part, fit)
            rows.append(Row(TAGS[name], name, "same") if acted else Row(TAGS[name], name, "not there", NEVER_CLIPPED))
        for term, factor in fit.factors.items():
            tag, name, expected = SCALES[term]
            size = factor * (self.replay.hyper["ent_coef"] if term == "entropy" else expected)
            note = {0.0: "no", -1.0: "wrong sign"}.get(round(factor, 2) + 0.0, f"{size:.4g}")
            rows.append(compare(tag, name, [note] if abs(factor - 1) > 1e-2 else []))
        return rows

    def shared_rows(self, value: Fit, policy: Fit) -> list[Row]:
        """Of layers that both losses reach."""
        if not any(name.startswith(("shared", "lstm")) for name in self.replay.record["initial"]):
            return []
        worst = 0.0
        for i in self.every:
            by_term = []
            for part, fit in (("policy", policy), ("value", value)):
                of_part = self.replay.gradients_by_term(i, fit.chosen, TERMS[part])
                by_term += zip([fit.factors[term] for term in TERMS[part]], of_part)
            whole = {name: sum(factor * of[name] for factor, of in by_term) for name in by_term[0][1]}
            worst = np.maximum(worst, far(self.replay.fresh(i), whole))
        note = "not the sum of the policy's and the value's gradients"
        return [compare("core-10", "shared layers", [] if worst <= TOLERANCE else [note])]

    def explain_both(self) -> tuple[Fit | None, Fit | None]:
        """The value's loss and the policy's."""
        value = self.explain("value", self.wanted)
        start = self.wanted | {name: value.chosen[name] for name in SWITCHES["both"]} if value else self.wanted
        return value, self.explain("policy", start)

    def rows(self, value: Fit | None, policy: Fit | None) -> list[Row]:
        """Of what makes a step's gradients."""
        rows = self.gae_rows(value, policy) + self.loss_rows("policy", policy) + self.loss_rows("value", value)
        if value and policy and value.in_all and policy.in_all:
            rows += self.shared_rows(value, policy)
        return rows


def flat(gradients: dict, part: str):
    names = [name for name in gradients if name.startswith(part) or (part == "policy" and name == "log_std")]
    return np.concatenate([gradients[name].flatten() for name in sorted(names)])


def far(got: dict, wanted: dict) -> float:
    """The largest difference, in units of the largest gradient; as `fit` has it."""
    largest = max(np.abs(wanted[name]).max() for name in wanted)
    return np.max([np.abs(got[name] - wanted[name]).max() for name in wanted]) / max(largest, SMALL)


def clip(replay: Replay) -> Row:
    """How the gradients that the optimizer got follow from those before the clip."""
    fitting = []
    for how in UPDATE_SWITCHES["gradient clip"]:
        clipped = [
            reference.clip_gradients(step["unclipped"], replay.hyper["max_grad_norm"], how) for step in replay.steps
        ]
        if all(far(step["gradients"], wanted) < TOLERANCE for step, wanted in zip(replay.steps, clipped)):
            fitting.append(how)
    if GradientClip.JOINT in fitting and GradientClip.NONE in fitting:
        return Row("core-11", "gradient clip", "not there", "no gradient was longer than the limit")
    if not fitting and replay.record.get("others"):
        return Row("core-11", "gradient clip", "not there", "parameters that aren't named count in the norm")
    wrong = [] if GradientClip.JOINT in fitting else [" or ".join(fitting) or UNKNOWN]
    return compare("core-11", "gradient clip", wrong)


def zero_grad(replay: Replay) -> Row:
    """Whether gradients of earlier steps are added to those of a step, or none are left when the optimizer steps."""
    distances = [far(step["unclipped"], replay.fresh(i)) for i, step in enumerate(replay.steps)]
    added = sum(not distance <= TOLERANCE for distance in distances)  # NaN too
    wrong = [f"missing: {added} of {len(replay.steps)} steps have gradients of earlier ones added"] if added else []
    if not any(np.any(x) for step in replay.steps for x in step["gradients"].values()):
        wrong.append("after backward: all gradients are 0 when the optimizer steps")
    return compare("", "zero_grad", wrong)


def first_broken(replay: Replay) -> str:
    """Where NaN or infinity is recorded first, or nothing."""
    for i, step in enumerate(replay.steps):
        part = broken_part(step)
        if part:
            return f"{part} in step {i + 1} of {len(replay.steps)}"
    return ""


def report(record: dict) -> list[Row]:
    """A row for each detail that a record shows."""
    replay = Replay(record)
    rows = [rollouts(replay)]
    if not replay.complete:
        return rows
    if record.get("own"):
        rows.append(initialization(record["own"]))
    of_networks = networks(record)
    wanted = replay.U * replay.hyper["epochs"] * replay.hyper["minibatches"]
    steps = f"{len(replay.steps)} of {wanted}"
    rows += [of_networks, compare("", "steps", [steps] if len(replay.steps) != wanted else [], steps)]
    rows += [minibatches(replay), annealing(replay)]
    broken = first_broken(replay)
    if broken:  # all that is computed from it would differ too
        return [*rows, Row("", "numbers", "differs", f"NaN or infinity, first in {broken}")]
    acting = observations(replay)
    rows += [adam(replay), acting, zero_grad(replay), clip(replay)]
    unknown = {
        "some parameters are shared, or aren't the reference's": of_networks.verdict == "differs",
        "the number of steps isn't the same in all rollouts": len(replay.steps) % (replay.U * replay.hyper["epochs"]),
        "minibatches aren't known": any(min(batch) < 0 for batch in replay.minibatches),
    }
    if not any(unknown.values()):
        ratio = first_ratio(replay)
        if acting.verdict == "not there" and ratio.verdict == "differs":  # what it was taken for is wrong
            ratio = ratio._replace(verdict="not there", note="acting isn't known")
            replay.inputs_known = False
        rows += [ratio, *stored_actions(replay)]
    unknown["the observations aren't known"] = not replay.inputs_known
    why = [says for says, is_so in unknown.items() if is_so]
    if why:
        return [*rows, Row("core-5 to core-10", "gradients", "not there", why[0])]
    search = Search(replay)
    value, policy = search.explain_both()
    if policy is None:  # then nothing says that the log-probs are those of acting
        unsure = Row("core-8", "first ratio", "not there", "the policy loss isn't known: old log-probs?")
        rows = [unsure if row == Row("core-8", "first ratio", "same") else row for row in rows]
    return rows + search.rows(value, policy)
