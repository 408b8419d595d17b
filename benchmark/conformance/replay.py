"""Replays a recorded training in numpy and says which details it shows.

A record is a dict:
    kind            "discrete", "gaussian" or "multidiscrete"
    hyper           scripted.HYPER, or numbers of your own
    logs            of each environment, as scripted.Script writes them
    initial         the weights before the first step, under the names of reference.py
    steps           of each step of the optimizer, dicts of: gradients and weights (before and after the step, by the
                    same names), learning_rate, and the minibatch's observations (M, D) as the network saw them;
                    actions where they aren't the environment's
    acted           optional: the observations (N, D) as the policy saw them at each step of the environments
    normalizes      optional, True if observations and rewards are normalized on purpose
    normalizes_observations   the same for observations alone
    own_networks    optional, True if the initial weights are the implementation's own
    others          optional: names of trained parameters that are none of the above
    options         optional: choices of reference.py's switches that are wanted in place of the first ones
    deviations      optional: from how many known variants the gradients may be put together, 6 by default
"""

import itertools
from functools import cache
from typing import NamedTuple

import numpy as np
import reference
from scripted import SHOWN, mask_of, one_hot

TOLERANCE = 2e-4  # of a step's largest gradient, or of the learning rate; float32 differs by some 1e-6
TAGS = {  # which detail a switch of reference.py is about
    "time limits": "plus-1", "trace": "core-5", "rollout's last flag": "core-5", "done flags": "core-1",
    "lambda": "core-5", "advantages": "core-7", "policy loss": "core-8", "value loss": "core-9",
    "value scale": "core-10", "entropy bonus": "core-10", "gradient clip": "core-11",
    "log-prob": "cont-1 cont-3 multi-1",
    "rewards": "cont-8 cont-9", "LSTM": "lstm-3 lstm-5", "clip range": "aux-1", "masks": "aux-4",
    "late resets": "core-1",
}  # fmt: skip
REWARDS = {  # arguments of reference.scale_rewards
    "scaled, clipped": {},
    "scaled": {"clip": np.inf},
    "clipped": {"scale": False},
    "scaled per environment": {"per_environment": True},
    "as they are": {"scale": False, "clip": np.inf},
}


NETWORKS = "core-13 cont-2 cont-4 atari-8 networks"


class Row(NamedTuple):
    detail: str
    verdict: str  # "same", "differs", "not there"
    note: str = ""
    found: dict | None = (
        None  # where the gradients are explained: the choice of each switch that isn't the expected one
    )


def far(got: dict, wanted: dict) -> float:
    """The largest difference, in units of the largest gradient; one below 0.02 is a sum of larger ones that cancel."""
    largest = max(np.abs(wanted[name]).max() for name in wanted)
    return max(np.abs(got[name] - wanted[name]).max() for name in wanted) / max(largest, 0.02)


class Replay:
    """What a record says, laid out in rollouts; and the arithmetic of any variant on it."""

    def __init__(self, record: dict):
        self.record = record
        self.hyper = record["hyper"]
        self.steps = record["steps"]
        self.N, self.T, self.U = self.hyper["num_envs"], self.hyper["num_steps"], self.hyper["updates"]
        self.width = self.N * SHOWN
        self.read_logs()
        self.find_minibatches()

    def read_logs(self):
        """By number of rollout, step and environment: what happened, and which vectors were shown."""
        self.fresh_starts, self.late_resets = 0, 0
        columns = []
        for log in self.record["logs"]:
            column, last, ended = [], None, True
            count = sum(event[0] == "step" for event in log)
            is_late = (
                count < self.U * self.T <= len(log) - 1
            )  # Gymnasium's NEXT_STEP: a reset takes a step of the vector
            for event in log:
                if is_late and event[0] == "reset" and column:
                    event = ("late reset", *event[1:])
                    self.late_resets += 1
                if event[0] == "reset":
                    self.fresh_starts += not ended
                    last, ended = event[1:], False
                    if column:
                        column[-1]["following"] = last
                    continue
                if event[0] == "late reset":
                    event = ("step", column[-1]["action"], 0.0, False, False, *event[1:])
                    valid = False
                else:
                    valid = True
                _, action, reward, terminated, truncated, vector, height = event
                step = {"vector": last, "action": action, "reward": reward, "terminated": terminated, "valid": valid}
                last, ended = (vector, height), terminated or truncated
                column.append(step | {"truncated": truncated, "final": last, "following": last})
            columns.append(column[: self.U * self.T])
        self.complete = len(columns) == self.N and all(len(column) == self.U * self.T for column in columns)
        if not self.complete:
            return
        rows = list(zip(*columns))

        def grid(name):
            values = np.array([[step[name] for step in row] for row in rows])
            return values.reshape(self.U, self.T, *values.shape[1:])

        self.rewards, self.terminated, self.truncated = grid("reward"), grid("terminated"), grid("truncated")
        self.valid = grid("valid")  # False where a step only began an episode
        self.actions, self.vectors = grid("action"), grid("vector")[..., 0].astype(int)
        self.starts = np.zeros((self.U, self.T, self.N))  # 1 where an episode's first observation is shown
        ended = (self.terminated | self.truncated).reshape(self.U * self.T, self.N)
        self.starts.reshape(-1, self.N)[0] = 1
        self.starts.reshape(-1, self.N)[1:] = ended[:-1]
        shown = [one_hot([step["vector"] for step in row], self.width) for row in rows]
        shown.append(one_hot([step["following"] for step in rows[-1]], self.width))
        self.raw = np.array(shown, float)  # (U * T + 1, N, D)
        self.final = np.array([one_hot([step["final"] for step in row], self.width) for row in rows], float)

    def find_minibatches(self):
        """Of each step of the optimizer, the samples of its minibatch: positions in the flattened rollout."""
        per_update = self.hyper["epochs"] * self.hyper["minibatches"]
        self.minibatches = []
        for i, step in enumerate(self.steps):
            u = min(i // per_update, self.U - 1)
            position = (
                {vector: where for where, vector in enumerate(self.vectors[u].flatten())} if self.complete else {}
            )
            self.minibatches.append([position.get(int(row.argmax()), -1) for row in step["observations"]])

    # ------------------------------------------------------------------------------------------- One detail each
    def rollouts(self):
        if not self.complete:
            return Row("core-1 rollouts", "differs", "another number of environments or steps than asked for")
        if self.fresh_starts:
            return Row("core-1 rollouts", "differs", f"{self.fresh_starts} episodes are cut between rollouts")
        if self.late_resets:
            note = f"{self.late_resets} steps only begin an episode: the vector has Gymnasium's NEXT_STEP autoreset"
            return Row("core-1 rollouts", "differs", note)
        return Row("core-1 rollouts", "same")

    def initialization(self):
        worst, says = 0.0, ""
        for part, last_gain in (("policy", 0.01), ("value", 1.0)):
            layers = reference.layers_of(self.record["initial"], part)
            for i, (weight, bias) in enumerate(layers):
                gain = last_gain if i == len(layers) - 1 else np.sqrt(2)
                small = weight if weight.shape[0] <= weight.shape[1] else weight.T
                gram = small @ small.T / gain**2
                error = max(np.abs(gram - np.eye(len(gram))).max(), np.abs(bias).max())
                if error > worst:
                    worst, says = error, f"{part}.{i}.weight times its transpose is {gram[0, 0]:.3g} gain²"
        return Row("core-2 initial weights", "same" if worst < 1e-4 else "differs", says if worst > 1e-4 else "")

    def parameters(self):
        """Whether actor and critic have the parameters that they should, and share none."""
        named = self.record["initial"]
        names = [
            (one, other) for one in named for other in named if one.startswith("policy") and one.endswith("weight")
        ]
        names = [(one, other) for one, other in names if other.startswith("value")]
        shared = [one for one, other in names if named[one].size > 1 and np.array_equal(named[one], named[other])]
        notes = [f"actor and critic share {', '.join(shared)}"] if shared else []
        if self.record.get("others"):
            notes.append(f"also trained: {', '.join(self.record['others'])}")
        return Row(NETWORKS, "differs" if notes else "same", "; ".join(notes))

    def split(self):
        """Minibatches: each sample once an epoch, equal sizes, drawn anew in each epoch, not in order of time."""
        M, per_epoch = self.N * self.T // self.hyper["minibatches"], self.hyper["minibatches"]
        epochs = [self.minibatches[i : i + per_epoch] for i in range(0, len(self.minibatches), per_epoch)]
        wrong = []
        if any(sorted(itertools.chain(*epoch)) != list(range(self.N * self.T)) for epoch in epochs):
            wrong.append("not every sample once an epoch")
        if any(len(batch) != M for batch in self.minibatches):
            wrong.append("unequal sizes")
        as_sets = [sorted(tuple(sorted(batch)) for batch in epoch) for epoch in epochs]
        pairs = list(itertools.pairwise(as_sets))
        same = sum(one == two for (i, (one, two)) in enumerate(pairs) if (i + 1) % self.hyper["epochs"])
        of = sum((i + 1) % self.hyper["epochs"] > 0 for i in range(len(pairs)))
        if all(one == as_sets[0] for one in as_sets):
            wrong.append("always the same minibatches: not shuffled")
        elif of and same == of:
            wrong.append("an update's epochs have the same minibatches")
        sequences = "lstm.weight_ih" in self.record["initial"]
        if sequences and any(not self.whole_environments(batch) for batch in self.minibatches):
            wrong.append("not whole environments in order of time (lstm-4)")
        tag = "lstm-4 sequential minibatches" if sequences else "core-6 minibatches"
        return Row(tag, "differs" if wrong else "same", ", ".join(wrong))

    def whole_environments(self, batch):
        grid = np.array(batch).reshape(-1, len(batch) // self.T) if len(batch) % self.T == 0 else np.zeros((1, 1))
        return len(grid) == self.T and (grid // self.N == np.arange(self.T)[:, None]).all()

    def number_of_steps(self):
        wanted = self.U * self.hyper["epochs"] * self.hyper["minibatches"]
        differs = len(self.steps) != wanted
        return Row("steps", "differs" if differs else "same", f"{len(self.steps)} of {wanted}")

    def annealing(self):
        per_update = self.hyper["epochs"] * self.hyper["minibatches"]
        rates = np.array([step["learning_rate"] for step in self.steps]) / self.hyper["learning_rate"]
        wanted = 1 - np.arange(len(rates)) // per_update / self.U * self.hyper["annealed"]
        if np.abs(rates - wanted).max() < 1e-6:
            return Row("core-4 annealed rate", "same")
        says = "constant" if np.ptp(rates) < 1e-6 else "changes in another way"
        return Row("core-4 annealed rate", "differs", f"{says}: {rates[0]:.4g} at first, {rates[-1]:.4g} at last")

    def optimizer(self):
        errors = {}
        for eps in (1e-5, 1e-8, 1e-7, 1e-6):
            weights, state, errors[eps] = self.record["initial"], {}, 0.0
            for step in self.steps:
                names = step["gradients"]
                after = reference.adam(weights, names, state, step["learning_rate"], eps)
                moved = max(np.abs(after[name] - step["weights"][name]).max() for name in names)
                errors[eps] = max(errors[eps], moved / max(step["learning_rate"], 1e-12))
                weights = step["weights"]
        best = min(errors, key=errors.get)
        wanted = self.hyper["adam_eps"]
        if errors[wanted] < 5e-3:
            return Row("core-3 Adam", "same", f"{len(self.steps)} steps to {errors[wanted]:.0e} of the rate")
        note = (
            f"like epsilon = {best:g}, to {errors[best]:.0e}"
            if errors[best] < 5e-3
            else "like no epsilon that is known"
        )
        return Row("core-3 Adam", "differs", note)

    # ------------------------------------------------------------------------------------------- What the network sees
    def observations(self):
        """What the policy saw when it acted: raw or normalized, and how."""
        self.inputs, self.final_inputs, self.inputs_known = self.raw, self.final, True
        self.before_update = None
        if "acted" not in self.record or len(self.record["acted"]) < self.U * self.T:
            return Row("atari-9 cont-6 cont-7 observations", "not there", "acting isn't recorded")
        acted = np.array(self.record["acted"][: self.U * self.T])
        normalizes = self.record.get("normalizes") or self.record.get("normalizes_observations")
        wanted = "normalized" if normalizes else "raw"
        nearest = (np.inf, "", None)
        for name, choice in self.ways_to_observe(wanted):
            error = np.abs(choice[0][:-1] - acted).max()
            if error < nearest[0]:
                nearest = (error, name, choice)
            if error < 1e-3:  # the first that fits has the fewest deviations
                break
        error, name, (self.inputs, means, roots) = nearest
        self.inputs_known = error < 1e-3
        if not self.inputs_known:
            self.inputs = np.concatenate([acted, self.inputs[-1:]])
            return Row(
                "atari-9 cont-6 cont-7 observations",
                "differs",
                f"in no way that is known; nearest, to {error:.2g}: {name}",
            )
        if "after each rollout" in name:  # the last observation's value still comes with the rollout's own statistics
            self.before_update = (self.raw[1:] - means[:-1]) / roots[:-1]
        limit = np.abs(self.inputs).max()
        self.final_inputs = ((self.final - means[1:]) / roots[1:]).clip(-limit, limit)
        return Row("atari-9 cont-6 cont-7 observations", "same" if name == wanted else "differs", name)

    def ways_to_observe(self, first):
        """Names, and as reference.running_normalize returns them: observations, means and roots."""
        zeros, ones = np.zeros(self.raw.shape), np.ones(self.raw.shape)
        if first == "normalized":
            yield "normalized", reference.running_normalize(self.raw)
        yield "raw", (self.raw, zeros, ones)
        yield "raw, clipped", (self.raw.clip(-10, 10), zeros, ones)
        yield "times 255", (self.raw * 255, zeros, ones / 255)
        for chosen in by_deviations(reference.STATISTICS_SWITCHES, 5):
            name = describe(chosen, reference.STATISTICS_SWITCHES)
            yield f"normalized, {name}", reference.running_normalize(self.raw, chosen, self.T)

    def seen_again(self):
        """Whether learning sees what acting saw. The ratio of the first minibatch must be 1."""
        per_update = self.hyper["epochs"] * self.hyper["minibatches"]
        worst, ratios = 0.0, []
        for i, (step, batch) in enumerate(zip(self.steps, self.minibatches)):
            if min(batch) < 0:
                continue
            u = i // per_update
            worst = max(worst, np.abs(step["observations"] - self.rollout_inputs(u)[batch]).max())
            if i % per_update == 0:
                weights = self.weights_before(i)
                log_prob = self.evaluate(weights, u, batch, step["observations"])
                ratios.append(np.exp(log_prob - self.evaluate(weights, u, batch, self.rollout_inputs(u)[batch])))
        if worst < 1e-3:
            return Row("first ratio is 1", "same")
        low, high = min(x.min() for x in ratios), max(x.max() for x in ratios)
        note = f"learning sees other observations than acting did: the first ratio is {low:.2f} to {high:.2f}"
        return Row("first ratio is 1", "differs", note)

    def rollout_inputs(self, u):
        return self.inputs[u * self.T : (u + 1) * self.T].reshape(self.N * self.T, -1)

    def weights_before(self, i):
        return self.steps[i - 1]["weights"] if i else self.record["initial"]

    def rollout_actions(self, u):
        """As they are learned from: the environment's, unless the record has the originals."""
        actions = self.actions[u].reshape(self.N * self.T, -1)
        if "actions" not in self.steps[0]:
            return actions
        actions = actions.astype(float)
        per_update = self.hyper["epochs"] * self.hyper["minibatches"]
        for step, batch in zip(
            self.steps[u * per_update :][: self.hyper["minibatches"]], self.minibatches[u * per_update :]
        ):
            actions[batch] = np.reshape(step["actions"], (len(batch), -1))
        return actions

    def stored_actions(self):
        """Whether actions beyond the environment's bounds are learned from as they were drawn."""
        if self.record["kind"] != "gaussian" or "actions" not in self.steps[0]:
            return None
        largest = max(np.abs(self.rollout_actions(u)).max() for u in range(self.U))
        done = np.abs(self.actions).max()
        if largest > done + 1e-3 and np.abs(self.actions).max() <= 1:
            return Row("cont-5 actions", "same", f"learned up to {largest:.2f}, done up to {done:.2f}")
        return Row("cont-5 actions", "differs", f"learned up to {largest:.2f}, done up to {done:.2f}")

    def evaluate(self, weights, u, batch, observations, how="sum"):
        x = {
            "observations": observations,
            "actions": self.rollout_actions(u)[batch],
            **self.extras(u, batch, weights, {}),
        }
        return reference.evaluate(weights, x, self.record["kind"], how)[0][0]

    # ------------------------------------------------------------------------------------------- Gradients
    def extras(self, u, batch, weights, chosen):
        """What some networks and action spaces need besides observations and actions."""
        more = {}
        if self.record["kind"] == "multidiscrete":
            more["nvec"] = [2, 3]
            if chosen.get("masks") != "ignored when learning":
                more["masks"] = mask_of(self.vectors[u].flatten()[batch])
        if "lstm.weight_ih" in weights:
            n = np.array(batch[: max(1, len(batch) // self.T)]) % self.N
            more["dones"] = self.starts[u].reshape(self.T, self.N)[:, n]
            first, _ = self.lstm_rollout(u, chosen.get("LSTM", "as it should be"))
            more["state"] = first[:, n] * (chosen.get("LSTM") != "learning starts from zeros")
            more["resets"] = chosen.get("LSTM") != "never reset"
        return more

    def lstm_rollout(self, u, how):
        """The LSTM's state at a rollout's start, and its hidden states in it, the last observation's included."""
        per_update = self.hyper["epochs"] * self.hyper["minibatches"]
        state = np.zeros((2, self.N, self.record["initial"]["lstm.weight_hh"].shape[1]))
        if u > 0:
            state = self.lstm_after(u - 1, how)
        weights = self.weights_before(u * per_update)
        inputs = self.inputs[u * self.T : (u + 1) * self.T]
        hidden, _, _ = reference.lstm_forward(weights, inputs, self.starts[u], state, how != "never reset")
        return state, hidden

    @cache  # noqa: B019 (a replay lives as long as its program)
    def lstm_after(self, u, how):
        state, _ = self.lstm_rollout(u, how)
        weights = self.weights_before(u * self.hyper["epochs"] * self.hyper["minibatches"])
        inputs = self.inputs[u * self.T : (u + 1) * self.T]
        return reference.lstm_forward(weights, inputs, self.starts[u], state, how != "never reset")[2]

    def scaled_rewards(self, how):
        flat = self.rewards.reshape(-1, self.N)
        dones = (self.terminated | self.truncated).reshape(-1, self.N)
        return reference.scale_rewards(flat, dones, self.hyper["gamma"], **REWARDS[how]).reshape(self.rewards.shape)

    @cache  # noqa: B019
    def rollout(self, u, how, rewards, lstm, log_prob):
        """Values, log-probs, advantages and returns of a rollout, flattened. `how` has a choice for each GAE switch."""
        weights = self.weights_before(u * self.hyper["epochs"] * self.hyper["minibatches"])
        inputs = self.inputs[u * self.T : (u + 1) * self.T + 1]
        if self.before_update is not None:
            inputs = np.concatenate([inputs[:-1], self.before_update[[(u + 1) * self.T - 1]]])
        finals = self.final_inputs[u * self.T : (u + 1) * self.T]
        everything = list(range(self.N * self.T))
        log_probs = self.evaluate(weights, u, everything, self.rollout_inputs(u), log_prob)
        if "lstm.weight_ih" in weights:
            log_probs, inputs, finals = self.lstm_features(weights, u, inputs, finals, lstm)

        def value(x):
            return reference.forward(weights, "value", x.reshape(-1, x.shape[-1]))[0].reshape(x.shape[:-1])

        switches = dict(zip(reference.GAE_SWITCHES, how))
        advantages, returns = reference.gae(
            self.scaled_rewards(rewards)[u], value(inputs[:-1]), value(finals), self.terminated[u], self.truncated[u],
            value(inputs[-1]), self.hyper["gamma"], self.hyper["gae_lambda"], switches,
        )  # fmt: skip
        flat = {"values": value(inputs[:-1]), "advantages": advantages, "returns": returns}
        return {name: x.flatten() for name, x in flat.items()} | {"log_probs": log_probs}

    def lstm_features(self, weights, u, inputs, finals, how):
        """The hidden states in place of the observations."""
        resets = how != "never reset"
        state, _ = self.lstm_rollout(u, how)
        hidden, kept, after = reference.lstm_forward(weights, inputs[:-1], self.starts[u], state, resets)
        done = (self.terminated[u, -1] | self.truncated[u, -1]).astype(float)
        last, _, _ = reference.lstm_forward(weights, inputs[-1:], done[None], after, resets)
        # The state after step t, for the last observation of an episode that ended there
        after_step = [np.array([hidden[t], kept[t][6]]) for t in range(self.T)]
        zeros = np.zeros((1, self.N))
        final = [reference.lstm_forward(weights, finals[t : t + 1], zeros, after_step[t])[0] for t in range(self.T)]
        outputs, _ = reference.forward(weights, "policy", hidden.reshape(self.N * self.T, -1))
        actions = self.rollout_actions(u)
        log_probs = reference.categorical(outputs, actions, [outputs.shape[1]])[0]
        return log_probs, np.concatenate([hidden, last]), np.concatenate(final)

    def gradients(self, i, chosen):
        """Those of step i by a variant: a choice for each switch."""
        u = i // (self.hyper["epochs"] * self.hyper["minibatches"])
        batch, weights = np.array(self.minibatches[i]), self.weights_before(i)
        learned = np.ones(len(batch), bool)
        if chosen["late resets"] == "left out":
            learned = self.valid[u].flatten()[batch]
        batch = batch[learned]
        gae_choices = tuple(chosen[name] for name in reference.GAE_SWITCHES)
        lstm = chosen.get("LSTM", "as it should be")
        rollout = self.rollout(u, gae_choices, chosen["rewards"], lstm, chosen["log-prob"])
        minibatch = {name: values[batch] for name, values in rollout.items()}
        if chosen["advantages"].startswith("rollout's"):
            minibatch["advantages"] = reference.normalize(rollout["advantages"], chosen["advantages"])[batch]
        minibatch["observations"] = self.steps[i]["observations"][learned]
        minibatch["actions"] = self.rollout_actions(u)[batch]
        minibatch |= self.extras(u, batch, weights, chosen)
        hyper = self.hyper
        if chosen["clip range"] == "annealed":
            hyper = hyper | {"clip_coef": hyper["clip_coef"] * (1 - u / self.U)}
        switches = {name: chosen[name] for name in reference.UPDATE_SWITCHES}
        return reference.update(weights, minibatch, hyper, self.record["kind"], switches)

    def error(self, chosen, steps):
        worst = 0.0
        for i in steps:
            if min(self.minibatches[i]) < 0:
                return np.inf
            worst = max(worst, far(self.gradients(i, chosen)["gradients"], self.steps[i]["gradients"]))
            if worst > TOLERANCE:
                break
        return worst

    def losses(self):
        """The gradients of all steps; where they differ, like which variant."""
        switches = reference.GAE_SWITCHES | reference.UPDATE_SWITCHES | {"clip range": ["constant", "annealed"]}
        rewards = list(REWARDS) if self.record.get("normalizes") else ["as they are", "scaled, clipped"]
        switches["rewards"] = rewards
        switches["late resets"] = ["left out"] if self.valid.all() else ["left out", "learned from"]
        if self.record["kind"] == "multidiscrete":
            switches["masks"] = ["used", "ignored when learning"]
            switches["log-prob"] = ["sum", "mean", "mean, entropy too"]
        if self.record["kind"] == "discrete":
            switches["log-prob"] = ["sum"]
        if "lstm.weight_ih" in self.record["initial"]:
            switches["LSTM"] = ["as it should be", "never reset", "learning starts from zeros"]
        if not self.inputs_known:
            return [
                Row("core-5 to core-11 gradients", "not there", "not replayed, since the observations aren't known")
            ]
        if self.late_resets and "actions" not in self.steps[0]:
            note = (
                "not replayed, since the actions of the steps that only begin an episode aren't known: set spy.actions"
            )
            return [Row("core-5 to core-11 gradients", "not there", note)]
        everything = range(len(self.steps))
        probes = [0, self.hyper["epochs"] * self.hyper["minibatches"] - 1, len(self.steps) // 2, len(self.steps) - 1]
        as_wanted = reference.defaults(switches) | self.record.get("options", {})
        error = self.error(as_wanted, everything)
        if error < TOLERANCE:
            beyond = np.mean([self.beyond(i, as_wanted) for i in probes[1:]])
            note = f"{len(self.steps)} steps to {error:.0e}; {beyond:.0%} of ratios beyond the clip range"
            return [Row("core-5 to core-11 gradients", "same", note, {}), *self.undecided(as_wanted, switches)]
        for chosen in by_deviations(switches, self.record.get("deviations", 6), as_wanted):
            if self.error(chosen, probes) < TOLERANCE and self.error(chosen, everything) < TOLERANCE:
                found = {name: chosen[name] for name in switches if chosen[name] != as_wanted[name]}
                note = f"{len(self.steps)} steps to {self.error(chosen, everything):.0e}"
                rows = [Row(f"{TAGS[name]} {name}", "differs", f"{choice} ({note})") for name, choice in found.items()]
                rows[0] = rows[0]._replace(found=found)
                return rows + self.undecided(chosen, switches)
        note = f"like no variant that is known; {self.directions(as_wanted)}"
        return [Row("core-5 to core-11 gradients", "differs", note)]

    def directions(self, chosen):
        """In how many steps the gradients of policy and value have at least the right direction: where to look."""
        per_update = self.hyper["epochs"] * self.hyper["minibatches"]
        right = {"value": [], "policy": []}
        for i in range(len(self.steps)):
            wanted = self.gradients(i, chosen)["gradients"]
            for part, found in right.items():
                vectors = []
                for gradients in (self.steps[i]["gradients"], wanted):
                    vector = np.concatenate(
                        [gradients[name].flatten() for name in sorted(wanted) if name.startswith(part)]
                    )
                    vectors.append(vector / max(np.linalg.norm(vector), 1e-12))
                found.append(np.abs(vectors[0] - vectors[1]).max() < 1e-3)
        says = "the direction is right in"
        for part, found in right.items():
            first = np.mean(found[::per_update])
            says += f" {np.mean(found):.0%} of the {part}'s steps ({first:.0%} of the first in a rollout)"
        return says.replace(") ", "), ")

    def undecided(self, chosen, switches):
        """Other choices that give the same gradients: this training doesn't tell them apart."""
        alike = []
        for name, choices in switches.items():
            for choice in choices:
                other = chosen | {name: choice}
                if choice != chosen[name] and self.error(other, range(len(self.steps))) < TOLERANCE:
                    alike.append(f"{name} {choice}")
        return [Row("not decided by this training", "not there", "; ".join(alike))] if alike else []

    def beyond(self, i, chosen):
        return np.mean(np.abs(self.gradients(i, chosen)["ratio"] - 1) > self.hyper["clip_coef"])


def by_deviations(switches, most, start=None):
    """All choices that differ from `start` in at most so many switches, those with the fewest first."""
    start = start or reference.defaults(switches)
    yield dict(start)
    for count in range(1, most + 1):
        for names in itertools.combinations(switches, count):
            others = [[choice for choice in switches[name] if choice != start[name]] for name in names]
            for choices in itertools.product(*others):
                yield start | dict(zip(names, choices))


def describe(chosen, switches):
    return ", ".join(f"{name} {choice}" for name, choice in chosen.items() if choice != switches[name][0])


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
    return rows + replay.losses()
