"""A recorded training, laid out in rollouts; details that can be read off it; and the gradients of any variant on it.

A record is a dict:
    kind            "discrete", "gaussian" or "multidiscrete"
    hyper           scripted.HYPER, or numbers of your own
    logs            of each environment, as scripted.Script writes them
    initial         the weights before the first step, under the names of reference.py
    steps           of each step of the optimizer, dicts of: gradients (as the optimizer got them) and weights (after
                    the step, by the same names), learning_rate, and the minibatch's observations (M, D) as the network
                    saw them; actions where they aren't the environment's. Also, or differences can't be named in steps
                    whose gradients were clipped: unclipped, the gradients before that, and fresh, those of this step's
                    backward pass alone
    acted           optional: the observations (N, D) as the policy saw them at each step of the environments
    normalizes      optional, True if observations and rewards are normalized on purpose
    normalizes_observations   the same for observations alone
    own_networks    optional, True if the initial weights are the implementation's own
    others          optional: names of trained parameters that are none of the above
    options         optional: choices of reference.py's switches that are wanted in place of the first ones
"""

import itertools
from functools import cache
from typing import NamedTuple

import numpy as np
import reference
from scripted import SHOWN, mask_of, one_hot

TOLERANCE = 2e-4  # of a step's largest gradient, or of the learning rate; float32 differs by some 1e-6
REWARDS = {  # arguments of reference.scale_rewards
    "scaled, clipped": {},
    "scaled": {"clip": np.inf},
    "clipped": {"scale": False},
    "scaled per environment": {"per_environment": True},
    "as they are": {"scale": False, "clip": np.inf},
}
OWN = "the program's own"  # returns, as its gradients show them

NETWORKS = "core-13 cont-2 cont-4 atari-8 networks"


class Row(NamedTuple):
    detail: str
    verdict: str  # "same", "differs", "not there"
    note: str = ""


class Replay:
    """What a record says, laid out in rollouts; and the arithmetic of any variant on it."""

    def __init__(self, record: dict):
        self.record = record
        self.hyper = record["hyper"]
        self.steps = record["steps"]
        self.N, self.T, self.U = self.hyper["num_envs"], self.hyper["num_steps"], self.hyper["updates"]
        self.width = self.N * SHOWN
        # Steps of the optimizer in a rollout and in an epoch: what was done, where that is regular
        self.per_update = self.hyper["epochs"] * self.hyper["minibatches"]
        if len(self.steps) % self.U == 0:
            self.per_update = len(self.steps) // self.U
        self.per_epoch = self.hyper["minibatches"]
        if self.per_update % self.hyper["epochs"] == 0:
            self.per_epoch = self.per_update // self.hyper["epochs"]
        self.read_logs()
        self.find_minibatches()

    def read_logs(self):
        """By number of rollout, step and environment: what happened, and which vectors were shown."""
        self.fresh_starts, self.late_resets = 0, 0
        columns = []
        for log in self.record["logs"]:
            column, last, ended = [], None, True
            count = sum(event[0] == "step" for event in log)
            # Gymnasium's NEXT_STEP: a reset takes a step of the vector
            is_late = count < self.U * self.T <= len(log) - 1
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
        self.minibatches = []
        for i, step in enumerate(self.steps):
            position = {}
            if self.complete:
                shown = self.vectors[min(i // self.per_update, self.U - 1)].flatten()
                position = {vector: where for where, vector in enumerate(shown)}
            self.minibatches.append([position.get(int(row.argmax()), -1) for row in step["observations"]])

    def is_a_step_late(self):
        """Whether what is learned from are the observations after the steps."""
        following = self.raw[1:].argmax(-1).reshape(self.U, -1)
        return all(
            set(step["observations"].argmax(1)) <= set(following[min(i // self.per_update, self.U - 1)])
            for i, step in enumerate(self.steps)
        )

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
        if any(min(batch) < 0 for batch in self.minibatches) and self.is_a_step_late():
            wrong.append("the observations after the steps are learned from, not those before them")
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
        rates = np.array([step["learning_rate"] for step in self.steps]) / self.hyper["learning_rate"]
        wanted = 1 - np.arange(len(rates)) // self.per_update / self.U * self.hyper["annealed"]
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
        if errors[best] < 5e-3:
            return Row("core-3 Adam", "differs", f"like epsilon = {best:g}, to {errors[best]:.0e}")
        return Row("core-3 Adam", "differs", "from its gradients, like Adam with no epsilon that is known")

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
        for chosen in reference.by_deviations(reference.STATISTICS_SWITCHES, 5):
            name = reference.describe(chosen, reference.STATISTICS_SWITCHES)
            yield f"normalized, {name}", reference.running_normalize(self.raw, chosen, self.T)

    def seen_again(self):
        """Whether learning sees what acting saw. The ratio of the first minibatch must be 1."""
        worst, ratios = 0.0, []
        for i, (step, batch) in enumerate(zip(self.steps, self.minibatches)):
            if min(batch) < 0:
                continue
            u = i // self.per_update
            worst = max(worst, np.abs(step["observations"] - self.rollout_inputs(u)[batch]).max())
            if i % self.per_update == 0:
                weights = self.weights_before(i)
                log_prob = self.log_probs(weights, u, batch, step["observations"])
                ratios.append(np.exp(log_prob - self.log_probs(weights, u, batch, self.rollout_inputs(u)[batch])))
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
        first = slice(u * self.per_update, u * self.per_update + self.per_epoch)
        for step, batch in zip(self.steps[first], self.minibatches[first]):
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

    def log_probs(self, weights, u, batch, observations, how="sum", chosen=None):
        x = {"observations": observations, "actions": self.rollout_actions(u)[batch]}
        x |= self.extras(u, batch, weights, chosen or {})
        return reference.evaluate(weights, x, self.record["kind"], how).log_prob

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
        state = np.zeros((2, self.N, self.record["initial"]["lstm.weight_hh"].shape[1]))
        if u > 0:
            state = self.lstm_after(u - 1, how)
        weights = self.weights_before(u * self.per_update)
        inputs = self.inputs[u * self.T : (u + 1) * self.T]
        hidden, _, _ = reference.lstm_forward(weights, inputs, self.starts[u], state, how != "never reset")
        return state, hidden

    @cache  # noqa: B019 (a replay lives as long as its program)
    def lstm_after(self, u, how):
        state, _ = self.lstm_rollout(u, how)
        weights = self.weights_before(u * self.per_update)
        inputs = self.inputs[u * self.T : (u + 1) * self.T]
        return reference.lstm_forward(weights, inputs, self.starts[u], state, how != "never reset")[2]

    @cache  # noqa: B019
    def scaled_rewards(self, how):
        flat = self.rewards.reshape(-1, self.N)
        dones = (self.terminated | self.truncated).reshape(-1, self.N)
        return reference.scale_rewards(flat, dones, self.hyper["gamma"], **REWARDS[how]).reshape(self.rewards.shape)

    @cache  # noqa: B019
    def acted(self, u, i, lstm, log_prob):
        """Log-probs (T * N,) and values (T, N) of a rollout by the weights before step i, the values of the last
        observations of episodes (T, N), and those of the observations after the rollout (N,)."""
        weights = self.weights_before(i)
        inputs = self.inputs[u * self.T : (u + 1) * self.T + 1]
        if self.before_update is not None:
            inputs = np.concatenate([inputs[:-1], self.before_update[[(u + 1) * self.T - 1]]])
        finals = self.final_inputs[u * self.T : (u + 1) * self.T]
        everything = list(range(self.N * self.T))
        if "lstm.weight_ih" in weights:
            log_probs, inputs, finals = self.lstm_features(weights, u, inputs, finals, lstm)
        else:
            log_probs = self.log_probs(weights, u, everything, self.rollout_inputs(u), log_prob)
        values = reference.values_of(weights, inputs)
        return log_probs, values[:-1], reference.values_of(weights, finals), values[-1]

    @cache  # noqa: B019
    def advantages(self, u, i, how, rewards, lstm):
        """And returns, (T, N) each. `how` has a choice for each GAE switch."""
        _, values, finals, last = self.acted(u, i, lstm, "sum")
        before = (self.terminated[u - 1, -1], self.truncated[u - 1, -1]) if u > 0 else None
        return reference.gae(
            self.scaled_rewards(rewards)[u], values, finals, self.terminated[u], self.truncated[u], last,
            self.hyper["gamma"], self.hyper["gae_lambda"], dict(zip(reference.GAE_SWITCHES, how)), before,
        )  # fmt: skip

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

    def minibatch(self, i, chosen):
        """What step i learns from by a variant: a choice for each switch."""
        u = i // self.per_update
        batch, weights = np.array(self.minibatches[i]), self.weights_before(i)
        learned = np.ones(len(batch), bool)
        if chosen["late resets"] == "left out":
            learned = self.valid[u].flatten()[batch]
        batch = batch[learned]
        start_of_epoch = i - i % self.per_update % self.per_epoch
        start_of_rollout = u * self.per_update
        lstm = chosen.get("LSTM", "as it should be")
        when = start_of_epoch if chosen["values and advantages"] == "anew in each epoch" else start_of_rollout
        _, values, *_ = self.acted(u, when, lstm, "sum")
        if chosen["returns"] == OWN:
            returns = self.own_returns[u].reshape(self.T, self.N)
            advantages = returns - values
        else:
            how = tuple(chosen[name] for name in reference.GAE_SWITCHES)
            advantages, returns = self.advantages(u, when, how, chosen["rewards"], lstm)
        if chosen["advantages"].startswith(("rollout's", "each environment's")):
            advantages = reference.normalize(advantages, chosen["advantages"])
        when = start_of_epoch if chosen["old log-probs"] == "anew in each epoch" else start_of_rollout
        log_probs = self.acted(u, when, lstm, chosen["log-prob"])[0][batch]
        if chosen["old log-probs"] == "anew in each step":
            log_probs = None
        flat = {"values": values, "advantages": advantages, "returns": returns}
        minibatch = {name: x.flatten()[batch] for name, x in flat.items()} | {"log_probs": log_probs}
        minibatch["observations"] = self.steps[i]["observations"][learned]
        minibatch["actions"] = self.rollout_actions(u)[batch]
        return weights, minibatch | self.extras(u, batch, weights, chosen)

    def terms(self, i, chosen):
        """The arguments of reference.backpropagate for step i, the derivatives of each term of the loss, and ratios."""
        weights, minibatch = self.minibatch(i, chosen)
        hyper = self.hyper
        if chosen["clip range"] == "annealed":
            hyper = hyper | {"clip_coef": hyper["clip_coef"] * (1 - i // self.per_update / self.U)}
        switches = {name: chosen[name] for name in reference.UPDATE_SWITCHES if name in chosen}
        seen, _, slopes, ratio = reference.terms(weights, minibatch, hyper, self.record["kind"], switches)
        return (weights, minibatch, self.record["kind"], seen), slopes, ratio

    def gradients(self, i, chosen, factors):
        """Those of the whole loss, before they are clipped."""
        context, slopes, _ = self.terms(i, chosen)
        return reference.backpropagate(*context, *[factors[name] * slopes[name] for name in slopes])

    def beyond(self, i, chosen):
        return np.mean(np.abs(self.terms(i, chosen)[2] - 1) > self.hyper["clip_coef"])

    def fresh(self, i):
        """The gradients of step i's backward pass, None if they aren't known."""
        step = self.steps[i]
        if "fresh" in step or "unclipped" in step:
            return step.get("fresh") or step["unclipped"]
        norm = np.sqrt(sum((gradient**2).sum() for gradient in step["gradients"].values()))
        return step["gradients"] if norm < 0.999 * self.hyper["max_grad_norm"] else None

    # ------------------------------------------------------------------------------------------- The program's own
    @cache  # noqa: B019
    def value_slopes(self, i):
        """The loss's derivative by each sample's value, (M,), as the gradients of the value's first layer show it;
        and the values. Observations of a minibatch are linearly independent, so that the layer tells samples apart."""
        x, weights = self.steps[i]["observations"], self.weights_before(i)
        values, inputs = reference.forward(weights, "value", x)
        of_layer = (self.fresh(i)["value.0.weight"] @ np.linalg.pinv(x)).T
        by_layer = reference.by_first_layer(weights, "value", inputs)
        return (of_layer * by_layer).sum(1) / (by_layer**2).sum(1), values[:, 0]

    def read_own_returns(self, factor):
        """Returns (U, T * N) from the first gradient of each sample that isn't 0, if the loss is the squared error."""
        self.own_returns = np.full((self.U, self.T * self.N), np.nan)
        for i, batch in enumerate(self.minibatches):
            if self.fresh(i) is None:
                continue
            slopes, values = self.value_slopes(i)
            returns = values - slopes * len(batch) / (factor * self.hyper["vf_coef"])
            of_rollout = self.own_returns[i // self.per_update]
            new = np.isnan(of_rollout[batch]) & (np.abs(slopes) > 1e-6)
            of_rollout[np.array(batch)[new]] = returns[new]
        self.readable = ~np.isnan(self.own_returns)
        self.own_returns = np.nan_to_num(self.own_returns)
