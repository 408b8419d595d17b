"""Names what a recorded training computes, each part by itself: an error in one doesn't hide the others.

The gradients of the value function's own layers come from the value loss alone, those of the policy's from the policy
loss and the entropy bonus. For each of the two, the choices of reference.py's switches are looked for that give its
gradients in all steps. If none do, the returns are read from the gradients, and what follows from them is compared:
given its own returns, is the loss right? Gradients are compared before they are clipped; given those, is the clip?
"""

from typing import NamedTuple

import numpy as np
import reference
from replay import OWN, REWARDS, TOLERANCE, Replay, Row

GAE = "core-5 advantages and returns"
CLIP = "core-11 gradient clip"
TAGS = {  # the row of each switch
    "time limits": "plus-1 time limits", "late resets": "core-1 late resets", "done flags": "core-1 core-5 done flags",
    "rewards": "cont-8 cont-9 rewards", "LSTM": "lstm-3 lstm-5 LSTM", "advantages": "core-7 advantages",
    "policy loss": "core-8 policy loss", "old log-probs": "core-8 old log-probs", "clip range": "aux-1 clip range",
    "log-prob": "cont-1 cont-3 multi-1 log-prob", "masks": "aux-4 masks", "value loss": "core-9 value loss",
    "value's shape": "core-9 value's shape",
}  # fmt: skip
OF_POLICY = ["advantages", "policy loss", "old log-probs", "clip range", "log-prob", "masks"]
OF_VALUE = ["value loss", "value's shape", "clip range"]
TERMS = {"policy": ["policy", "entropy"], "value": ["value"]}
MOST = 3  # switches that deviate at once in one part


def switches_of(replay: Replay) -> dict:
    """Those that this training can show."""
    switches = reference.GAE_SWITCHES | reference.UPDATE_SWITCHES
    switches = {name: choices for name, choices in switches.items() if name not in ("value scale", "entropy bonus")}
    switches["rewards"] = list(REWARDS) if replay.record.get("normalizes") else ["as they are", "scaled, clipped"]
    switches["late resets"] = ["left out"] if replay.valid.all() else ["left out", "learned from"]
    switches["values and advantages"] = ["once", "anew in each epoch"]
    switches["old log-probs"] = ["of acting", "anew in each epoch", "anew in each step"]
    switches["clip range"] = ["constant", "annealed"]
    switches["LSTM"] = ["as it should be"]
    switches["masks"] = ["used"]
    if "lstm.weight_ih" in replay.record["initial"]:
        switches["LSTM"] = ["as it should be", "never reset", "learning starts from zeros"]
    if replay.record["kind"] == "multidiscrete":
        switches["masks"] = ["used", "ignored when learning"]
        switches["log-prob"] = ["sum", "mean", "mean, entropy too"]
    if replay.record["kind"] == "discrete":
        switches["log-prob"] = ["sum"]
    return switches


def belongs(name: str, part: str) -> bool:
    return name.startswith(part) or (part == "policy" and name == "log_std")


def flat(gradients: dict, part: str):
    return np.concatenate([gradients[name].flatten() for name in sorted(gradients) if belongs(name, part)])


class Fit(NamedTuple):
    chosen: dict
    factors: dict  # of the loss's terms: 1 is as expected
    error: float


class Search:
    """For the choices that give a part's gradients."""

    def __init__(self, replay: Replay):
        self.replay = replay
        self.switches = switches_of(replay)
        self.of_gae = [name for name in self.switches if name not in (*OF_POLICY, *OF_VALUE, "gradient clip")]
        self.wanted = reference.defaults(self.switches) | replay.record.get("options", {})
        known = [i for i in range(len(replay.steps)) if replay.fresh(i) is not None]
        # The last of each rollout come first, since there most variants differ
        self.every = sorted(known, key=lambda i: -(i % replay.per_update))
        self.first = [i for i in known if i % replay.per_update == 0]
        self.got = {part: {i: flat(replay.fresh(i), part) for i in known} for part in TERMS}

    def columns(self, i, part, chosen):
        """The gradients of each term, (P, terms)."""
        context, slopes, _ = self.replay.terms(i, chosen)
        found = []
        for term in TERMS[part]:
            alone = [slope if name == term else np.zeros_like(slope) for name, slope in slopes.items()]
            found.append(flat(reference.backpropagate(*context, *alone), part))
        return np.array(found).T

    def fit(self, part, chosen, steps) -> Fit | None:
        """Whether the terms, each times one number, add up to the gradients of all these steps."""
        if not steps:
            return None
        columns, got = [], []
        error = 0.0
        large = [i for i in steps if np.abs(self.got[part][i]).max() > 0.02] or list(steps)
        apart = large[:: max(1, len(large) // 3)][:3]  # the factors follow from these
        for i in apart + [i for i in steps if i not in apart]:
            x, y = self.columns(i, part, chosen), self.got[part][i]
            if i in apart:
                columns.append(x)
                got.append(y)
                factors = np.linalg.lstsq(np.concatenate(columns), np.concatenate(got))[0]
            error = max(error, np.abs(x @ factors - y).max() / max(np.abs(y).max(), 0.02))
            if error > TOLERANCE:
                return None
        factors = dict(zip(TERMS[part], factors))
        if self.replay.hyper["ent_coef"] == 0:
            factors["entropy"] = 1.0
        return Fit(chosen, factors, error)

    def look(self, part, start, names, steps, most=MOST) -> Fit | None:
        """With the fewest deviations from `start` in these switches; where the policy's factor is 1, if there is one:
        a minibatch's population and sample deviation differ by a factor alone."""
        other = None
        for chosen in reference.by_deviations({name: self.switches[name] for name in names}, most, start):
            fit = self.fit(part, chosen, steps)
            if fit and (part == "value" or min(abs(fit.factors["policy"] - 1), abs(fit.factors["policy"])) < 1e-3):
                return fit
            other = other or fit
        return other

    def readable(self):
        """Steps all of whose samples have returns that were read."""
        r = self.replay
        return [i for i in self.every if r.readable[i // r.per_update][r.minibatches[i]].all()]

    def look_with_own_returns(self) -> Fit | None:
        """Whether there are returns, one for each sample, that explain the value's gradients of all epochs."""
        has_trunk = any(name.startswith(("shared", "lstm")) for name in self.replay.record["initial"])
        if has_trunk or self.replay.hyper["epochs"] == 1:
            return None
        for factor in (1.0, 2.0):
            self.replay.read_own_returns(factor)
            for choice in ("larger of both", "not clipped", "clipped value alone"):
                fit = self.fit("value", self.wanted | {"returns": OWN, "value loss": choice}, self.readable())
                if fit and abs(fit.factors["value"] - factor) < 1e-2:
                    return fit
        return None

    def gae_of_own_returns(self) -> dict:
        """The choices that give the returns which were read, and else OWN."""
        r = self.replay
        switches = {name: self.switches[name] for name in self.of_gae}
        for chosen in reference.by_deviations(switches, MOST, self.wanted):
            if all(self.are_own(u, self.returns(u, chosen)).mean() > 0.98 for u in range(r.U)):
                return {name: chosen[name] for name in self.of_gae}
        return {"returns": OWN}

    def are_own(self, u, returns):
        """Which of a rollout's returns are those that were read, of samples of which they could be."""
        own, readable = self.replay.own_returns[u], self.replay.readable[u]
        return np.abs(returns - own)[readable] < 2e-3 * np.abs(own).max()

    def returns(self, u, chosen):
        """Of a rollout by a variant, (T * N,)."""
        r = self.replay
        how = tuple(chosen[name] for name in reference.GAE_SWITCHES)
        return r.advantages(u, u * r.per_update, how, chosen["rewards"], chosen["LSTM"])[1].flatten()

    def of_value(self) -> tuple[Fit | None, str]:
        """What explains the value's gradients, and how far: in "all" steps, in all but with its "own" returns, or in
        the "first" steps of rollouts, where nothing is clipped yet. What is found soonest comes first."""
        fit = self.look("value", self.wanted, [*OF_VALUE, "values and advantages"], self.every)
        if fit:
            return fit, "all"
        own = self.look_with_own_returns()
        if own:
            fit = self.look("value", own.chosen | self.gae_of_own_returns(), OF_VALUE, self.every, most=1)
            if fit and fit.chosen["returns"] != OWN:
                return fit, "all"
            return own, "own"
        names = [*self.of_gae, *OF_VALUE]
        fit = self.look("value", self.wanted, OF_VALUE, self.first)
        if fit:
            return fit, "first"
        fit = self.look("value", self.wanted, names, self.every)
        if fit:
            return fit, "all"
        return self.look("value", self.wanted, names, self.first), "first"

    def of_policy(self, value: Fit | None) -> tuple[Fit | None, str]:
        """The same of the policy. The advantages may be those that the value's returns were made of."""
        start = self.wanted
        own = value is not None and value.chosen["returns"] == OWN
        if value and not own:
            start = self.wanted | {name: value.chosen[name] for name in self.of_gae}
        fit = self.look("policy", start, OF_POLICY, self.every)
        if fit:
            return fit, "all"
        if own:
            fit = self.look("policy", self.wanted | {"returns": OWN}, OF_POLICY, self.readable())
            if fit:
                return fit, "own"
        fit = self.look("policy", start, OF_POLICY, self.first)
        if fit:
            return fit, "first"
        names = [*self.of_gae, *OF_POLICY]
        fit = self.look("policy", self.wanted, names, self.every)
        if fit:
            return fit, "all"
        return self.look("policy", self.wanted, names, self.first), "first"

    def undecided(self, policy: Fit, value: Fit) -> list[Row]:
        """Other choices that give the same gradients: this training doesn't tell them apart."""
        alike = []
        fits = {"value": value, "policy": policy}
        parts = {name: ["policy"] for name in OF_POLICY} | {name: ["value"] for name in OF_VALUE}
        parts |= {"clip range": ["value", "policy"], "returns": ["value"]}
        for name, choices in self.switches.items():
            for choice in choices if name != "gradient clip" else ():
                if all(self.is_alike(part, fits[part], name, choice) for part in parts.get(name, fits)):
                    alike.append(f"{name} {choice}")
        return [Row("not decided by this training", "not there", "; ".join(alike))] if alike else []

    def is_alike(self, part, fit, name, choice):
        """Whether another choice gives a part's gradients too."""
        if fit.chosen[name] == choice:
            return False
        other = self.fit(part, fit.chosen | {name: choice}, self.every)
        return other is not None and abs(other.factors[part] - fit.factors[part]) < 1e-3


# --------------------------------------------------------------------------------------------------------------- Rows
def one_backward_pass(replay: Replay) -> list[Row]:
    """Whether gradients of earlier steps are added to those of a step."""
    name = "zero_grad"
    if any("fresh" not in step or "unclipped" not in step for step in replay.steps):
        return []
    added, by_the_last = [], True
    for i, step in enumerate(replay.steps):
        if far(step["unclipped"], step["fresh"]) < TOLERANCE:
            continue
        added.append(i)
        last = replay.steps[i - 1]["gradients"]
        both = {name: step["fresh"][name] + last[name] for name in last}
        by_the_last = by_the_last and far(step["unclipped"], both) < TOLERANCE
    if not added:
        return [Row(name, "same")]
    note = f"in {len(added)} of {len(replay.steps)} steps, the gradients aren't those of the step's own loss"
    if by_the_last:
        note = f"missing: {len(added)} of {len(replay.steps)} steps add to the gradients of the step before"
    return [Row(name, "differs", note)]


def clip(replay: Replay, switches: dict, predicted: list | None = None) -> Row:
    """How the gradients that the optimizer got follow from those before the clip."""
    if all("unclipped" in step for step in replay.steps):
        predicted = [step["unclipped"] for step in replay.steps]
    if predicted is None:
        return Row(CLIP, "not there", "the gradients before the clip aren't recorded")
    if all(max(np.abs(x).max() for x in step["gradients"].values()) == 0 for step in replay.steps):
        return Row(CLIP, "differs", "all gradients are 0 when the optimizer steps: zero_grad comes after backward")
    limit = replay.hyper["max_grad_norm"]
    fitting = []
    for how in switches["gradient clip"]:
        pairs = [(step["gradients"], reference.clip_gradients(raw, limit, how))
                 for step, raw in zip(replay.steps, predicted)]  # fmt: skip
        if all(far(got, wanted) < TOLERANCE for got, wanted in pairs):
            fitting.append(how)
    if switches["gradient clip"][0] in fitting:
        alike = f"not told from: {', '.join(fitting[1:])}" if fitting[1:] else ""
        return Row(CLIP, "same", alike)
    note = " or ".join(fitting) or "from the gradients before it, like no variant that is known"
    return Row(CLIP, "differs", note)


def far(got: dict, wanted: dict) -> float:
    """The largest difference, in units of the largest gradient; one below 0.02 is a sum of larger ones that cancel."""
    largest = max(np.abs(wanted[name]).max() for name in wanted)
    return max(np.abs(got[name] - wanted[name]).max() for name in wanted) / max(largest, 0.02)


def where_returns_are_right(search: Search) -> str:
    """In which steps the program's own returns are as expected: where to look for an error in GAE."""
    r = search.replay
    wanted = np.array([search.returns(u, search.wanted) for u in range(r.U)]).reshape(r.U, r.T, r.N)
    own = r.own_returns.reshape(r.U, r.T, r.N)
    right = np.abs(own - wanted) < 1e-3 * np.abs(wanted).max()
    ended = r.terminated | r.truncated
    at_last = np.zeros(ended.shape, bool)
    at_last[:, -1] = True
    before_an_end = np.flip(np.cumsum(np.flip(ended, 1), 1), 1) > 0
    kinds = {
        "an episode's last steps": ended, "rollouts' last steps": at_last & ~ended,
        "other steps before an end": before_an_end & ~ended,
        "steps without an end after them in the rollout": ~before_an_end & ~at_last,
    }  # fmt: skip
    readable = r.readable.reshape(ended.shape)
    kinds = {name: kind & readable for name, kind in kinds.items() if (kind & readable).any()}
    return "right in " + ", ".join(f"{right[kind].mean():.0%} of {name}" for name, kind in kinds.items())


def deviation(search: Search, fit: Fit, name: str, prefix="") -> list[Row]:
    """A row if a switch is not as expected."""
    if fit.chosen[name] in (search.wanted[name], OWN):
        return []
    note = f"{prefix}{fit.chosen[name]} ({len(search.every)} steps to {fit.error:.0e})"
    return [Row(TAGS.get(name, f"core-5 {name}"), "differs", note)]


def factor_row(name: str, factor: float, expected: float) -> Row:
    """Of a term's coefficient, as a multiple of what is expected; `expected` is what a reader knows it as."""
    if abs(factor - 1) < 1e-2:
        return Row(name, "same")
    return Row(name, "differs", {0.0: "no", -1.0: "wrong sign"}.get(round(factor, 2) + 0.0, f"{factor * expected:.4g}"))


def gae_rows(search: Search, value: Fit | None, policy: Fit | None) -> list[Row]:
    own = value and value.chosen["returns"] == OWN
    known = [fit for fit in (value, policy) if fit and fit.chosen["returns"] != OWN]
    rows = []
    for name in search.of_gae:
        if len(known) == 2 and name != "returns" and value.chosen[name] != policy.chosen[name]:
            rows += deviation(search, value, name, "for the value: ")
            rows += deviation(search, policy, name, "for the policy: ")
        elif known and (name != "returns" or known[0] is value):
            rows += deviation(search, known[0], name)
    if own:
        note = f"like no variant that is known; {where_returns_are_right(search)}"
        rows.append(Row("core-5 returns", "differs", note))
    elif not known:
        rows.append(Row(GAE, "differs", "not told, since neither the policy's gradients nor the value's are known"))
    return rows or [Row(GAE, "same", f"{len(search.every)} steps to {max(fit.error for fit in known):.0e}")]


def policy_rows(search: Search, fit: Fit | None, how: str) -> list[Row]:
    if fit is None:
        return [Row("core-7 core-8 policy's gradients", "differs", "like no variant that is known, in no step")]
    found = {name: deviation(search, fit, name) for name in OF_POLICY if name != "clip range" or how == "all"}
    rows = found.pop("advantages") or [Row(TAGS["advantages"], "same")]
    loss = [row for some in found.values() for row in some]
    factor = fit.factors["policy"]
    if how == "first":
        size = "right" if abs(factor - 1) < 1e-2 else f"{factor:.4g} times as large"
        note = f"like no variant that is known; {size} where the ratio is 1"
        loss.append(Row(TAGS["policy loss"], "differs", note))
    elif abs(factor) < 1e-2:
        says = "no gradient, as where normalized advantages (M, 1) meet ratios (M,): their mean is 0"
        loss.append(Row(TAGS["policy loss"], "differs", says))
    elif abs(factor - 1) > 1e-2:
        loss.append(factor_row(TAGS["policy loss"], factor, 1.0))
    elif not loss:
        some = search.every[:: max(1, len(search.every) // 9)]
        beyond = np.mean([search.replay.beyond(i, fit.chosen) for i in some])
        loss = [Row(TAGS["policy loss"], "same", f"{beyond:.0%} of ratios beyond the clip range")]
    return rows + loss + [factor_row("core-10 entropy bonus", fit.factors["entropy"], search.replay.hyper["ent_coef"])]


def value_rows(search: Search, fit: Fit | None, how: str) -> list[Row]:
    if fit is None:
        return [Row(TAGS["value loss"], "differs", "like no variant that is known, in no step")]
    rows = [row for name in ("value loss", "value's shape") for row in deviation(search, fit, name)]
    if how == "first":
        rows.append(Row(TAGS["value loss"], "differs", "like no variant that is known; right in rollouts' first steps"))
    rows = rows or [Row(TAGS["value loss"], "same", "given the returns that it has" if how == "own" else "")]
    return [*rows, factor_row("core-10 value scale", fit.factors["value"], 0.5)]


def shared_rows(search: Search, predicted: list) -> list[Row]:
    """Of layers that both losses reach."""
    replay = search.replay
    if not any(name.startswith(("shared", "lstm")) for name in replay.record["initial"]):
        return []
    worst = max(far(replay.fresh(i), predicted[i]) for i in search.every)
    if worst < TOLERANCE:
        return [Row("core-13 shared layers", "same")]
    return [Row("core-13 shared layers", "differs", "not the sum of policy's and value's gradients")]


def losses(replay: Replay) -> list[Row]:
    """The rows of what makes a step's gradients."""
    search = Search(replay)
    unknown = None
    if not replay.inputs_known:
        unknown = "the observations aren't known"
    elif replay.late_resets and "actions" not in replay.steps[0]:
        unknown = "the actions of the steps that only begin an episode aren't known: set spy.actions"
    elif any(min(batch) < 0 for batch in replay.minibatches):
        unknown = "minibatches have observations that aren't the rollout's"
    elif len(replay.steps) % replay.U:
        unknown = "the number of steps isn't the same in all rollouts"
    if unknown:
        row = Row("core-5 to core-10 gradients", "not there", f"not replayed: {unknown}")
        return [row, clip(replay, search.switches), *one_backward_pass(replay)]
    value, value_how = search.of_value()
    policy, policy_how = search.of_policy(value)
    rows = gae_rows(search, value, policy) + policy_rows(search, policy, policy_how)
    rows += value_rows(search, value, value_how)
    predicted = None
    if value_how == policy_how == "all":
        chosen = value.chosen | {name: policy.chosen[name] for name in OF_POLICY}
        factors = policy.factors | value.factors
        predicted = [replay.gradients(i, chosen, factors) for i in range(len(replay.steps))]
        rows += shared_rows(search, predicted)
    rows += [clip(replay, search.switches, predicted), *one_backward_pass(replay)]
    if predicted and abs(policy.factors["policy"]) > 1e-2:
        rows += search.undecided(policy, value)
    return rows


def report(record: dict) -> list[Row]:
    """A row for each detail that a record shows."""
    replay = Replay(record)
    rows = [replay.rollouts()]
    if not replay.complete:
        return rows
    if record.get("own_networks"):
        rows.append(replay.initialization())
    rows += [replay.parameters(), replay.number_of_steps()]
    if rows[-2].verdict == "differs" or (record["kind"] == "gaussian" and "log_std" not in record["initial"]):
        return rows  # then there is nothing to replay
    rows.append(replay.observations())
    rows += [replay.split(), replay.annealing(), replay.optimizer(), replay.seen_again()]
    rows += [row for row in [replay.stored_actions()] if row]
    return rows + losses(replay)
