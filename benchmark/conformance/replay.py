"""A recorded training, laid out in rollouts, and the gradients of any variant on it.

A record is a dict:
    kind            "discrete", "pictures", "gaussian" or "multidiscrete"
    hyper           scripted.HYPER, or numbers of your own
    logs            of each environment, as scripted.ScriptedEnv writes them
    initial         the weights before the first step, under the names of reference.py
    steps           of each step of the optimizer, dicts of: gradients (as the optimizer got them), unclipped (before
                    that) and weights (after the step, by the same names), learning_rate, and the minibatch's
                    observations (M, D) as the network saw them. Optional: actions, where they aren't the environment's,
                    and fresh, the gradients of this step's backward pass alone
    acted           the observations (N, D) as the policy saw them at each step of the environments
    normalizes      optional, "observations" or "observations and rewards": what is normalized on purpose
    own             optional: the initial weights as the implementation draws them
    others          optional: what else is trained
    options         optional: choices of switches.py that are wanted in place of the first ones
"""

from functools import cache

import numpy as np
import reference
from scripted import SHOWN, mask_of, one_hot
from switches import (
    GAE_SWITCHES,
    MIXED_UP_WITH_OBSERVATIONS,
    NORMALIZATIONS,
    ClipRange,
    LateResets,
    LogProb,
    Lstm,
    Masks,
    OldLogProbs,
    Order,
    ValuesAndAdvantages,
)


class NotFinite(Exception):
    """NaN or infinity in a training."""


def broken_part(step: dict) -> str:
    """Where a step of the optimizer has NaN or infinity first, or nothing."""
    parts = {"unclipped": "gradient", "gradients": "clipped gradient", "weights": "new value"}
    for part, says in parts.items():
        for name, x in step[part].items():
            if not np.isfinite(x).all():
                return f"the {says} of {name}"
    return ""


class Replay:
    def __init__(self, record: dict):
        self.record = record
        self.kind = "discrete" if record["kind"] == "pictures" else record["kind"]
        self.hyper = record["hyper"]
        self.steps = record["steps"]
        self.inputs_known = True  # whether see() was told what the network saw
        self.has_lstm = "lstm.weight_ih" in record["initial"]
        self.N, self.T, self.U = self.hyper["num_envs"], self.hyper["num_steps"], self.hyper["updates"]
        # Steps of the optimizer in an epoch and in a rollout: as they were done, where that is regular
        self.per_epoch = self.hyper["minibatches"]
        if len(self.steps) % (self.U * self.hyper["epochs"]) == 0:
            self.per_epoch = len(self.steps) // (self.U * self.hyper["epochs"])
        self.per_update = self.per_epoch * self.hyper["epochs"]
        self.read_logs()
        if self.complete:
            self.find_minibatches()

    def read_logs(self):
        """By number of rollout, step and environment: what happened, and which vectors were shown."""
        self.fresh_starts = 0
        columns = [self.read_log(log)[: self.U * self.T] for log in self.record["logs"]]
        self.complete = len(columns) == self.N and all(len(column) == self.U * self.T for column in columns)
        if not self.complete:
            return

        def grid(name):
            values = np.array([[column[t][name] for column in columns] for t in range(self.U * self.T)])
            return values.reshape(self.U, self.T, *values.shape[1:])

        self.rewards, self.terminated, self.truncated = grid("reward"), grid("terminated"), grid("truncated")
        self.valid = grid("valid")  # False where a step only began an episode
        self.actions, self.vectors = grid("action"), grid("vector")[..., 0].astype(int)
        ended = (self.terminated | self.truncated).reshape(-1, self.N)
        self.starts = np.concatenate([np.ones((1, self.N)), ended])  # 1 at an episode's first observation
        vectors, following, last = (grid(name) for name in ("vector", "following", "final"))
        rows = [*vectors.reshape(-1, self.N, 2), following[-1, -1]]
        self.raw = np.array([one_hot(row, self.N * SHOWN) for row in rows], float)  # (U * T + 1, N, D)
        self.final = np.array([one_hot(row, self.N * SHOWN) for row in last.reshape(-1, self.N, 2)], float)

    def read_log(self, log) -> list[dict]:
        """The steps of an environment. A reset may take a step of its vector, as with Gymnasium's NEXT_STEP."""
        resets_take_steps = sum(event[0] == "step" for event in log) < self.U * self.T < len(log)
        steps, ended, before = [], True, None
        for event in log:
            after = event[-2:]
            if event[0] == "step":
                _, action, reward, terminated, truncated, *_ = event
                steps.append({"vector": before, "action": action, "reward": reward, "valid": True})
                ended = terminated or truncated
                steps[-1] |= {"terminated": terminated, "truncated": truncated, "final": after, "following": after}
            elif steps and resets_take_steps:
                of_reset = {"vector": before, "reward": 0.0, "valid": False, "terminated": False, "truncated": False}
                steps.append(steps[-1] | of_reset | {"final": after, "following": after})
                ended = False
            else:
                self.fresh_starts += not ended
                ended = False
                if steps:
                    steps[-1]["following"] = after
            before = after
        return steps

    def find_minibatches(self):
        """Of each step of the optimizer, the samples of its minibatch: positions in the flattened rollout, -1 where the
        observation isn't one of those before a step."""
        self.minibatches = []
        for i, step in enumerate(self.steps):
            shown = self.vectors[min(i // self.per_update, self.U - 1)].flatten()
            position = {vector: where for where, vector in enumerate(shown)}
            rows = [row for row in step["observations"] if row.any()]  # not those that only fill up
            batch = np.array([position.get(int(row.argmax()), -1) for row in rows])
            if self.has_lstm and len(batch) == len(step["observations"]) and self.in_time_order(batch):
                order = batch.argsort()  # all environments' first steps, then all second ones
                batch = batch[order]
                for name in ("observations", "actions"):
                    if name in step:
                        step[name] = step[name][order]
            self.minibatches.append(batch)

    def in_time_order(self, batch) -> bool:
        """Whether the samples of each environment are. One environment may come after the other."""
        return all((np.diff(batch[batch % self.N == n]) > 0).all() for n in range(self.N))

    def see(self, inputs, final_inputs, last=None):
        """Takes observations (U * T + 1, N, D), and those at episodes' ends (U * T, N, D), as the network saw them.
        `last` (U * T, N, D) are those after a step that come after a rollout's end, where they differ."""
        rollouts = [inputs[u * self.T : (u + 1) * self.T + 1] for u in range(self.U)]
        self.inputs = np.array(rollouts)  # (U, T + 1, N, D)
        self.final_inputs = final_inputs.reshape(self.U, self.T, self.N, -1)
        if last is not None:
            self.inputs[:, -1] = last.reshape(self.final_inputs.shape)[:, -1]

    def rollout_inputs(self, u):
        return self.inputs[u, :-1].reshape(self.N * self.T, -1)

    def weights_before(self, i):
        return self.steps[i - 1]["weights"] if i else self.record["initial"]

    @cache  # noqa: B019 (a replay lives as long as its program)
    def rollout_actions(self, u, order=Order.ONE):
        """Those that were drawn, (T * N, C): the environment's, unless the record has the originals. In which order
        learning took them matters only for these."""
        actions = self.actions[u].reshape(self.N * self.T, -1).astype(float)
        for i in range(u * self.per_update, u * self.per_update + self.per_epoch):
            if "actions" in self.steps[i]:
                batch = self.minibatches[i]
                if order in MIXED_UP_WITH_OBSERVATIONS:
                    batch = self.mixed_up(batch, order)
                actions[batch] = np.reshape(self.steps[i]["actions"], (len(batch), -1))
        return actions

    # --------------------------------------------------------------------------------------------------- Acting
    def of_space(self, u, batch, chosen):
        """What a MultiDiscrete policy needs besides observations and actions."""
        if self.kind != "multidiscrete":
            return {}
        masks = {"masks": mask_of(self.vectors[u].flatten()[batch])}
        return {"nvec": [2, 3]} | (masks if chosen["masks"] == Masks.USED else {})

    @cache  # noqa: B019
    def through_lstm(self, u, how):
        """An LSTM's outputs (T + 1, N, H) in a rollout, those at the ends of episodes (T, N, H), and its states before
        the rollout and after it (2, N, H)."""
        weights = self.weights_before(u * self.per_update)
        first = np.zeros((2, self.N, weights["lstm.weight_hh"].shape[1]))
        if u > 0:
            first = self.through_lstm(u - 1, how)[3]
        starts = self.starts[u * self.T : (u + 1) * self.T + 1]
        states, _ = reference.lstm_forward(weights, self.inputs[u], starts, first, how != Lstm.NEVER_RESET)
        following = np.moveaxis(states[:-1], 0, 1).reshape(2, self.T * self.N, -1)
        finals = self.final_inputs[u].reshape(1, self.T * self.N, -1)
        at_ends, _ = reference.lstm_forward(weights, finals, np.zeros((1, self.T * self.N)), following)
        return states[:, 0], at_ends[0, 0].reshape(self.T, self.N, -1), first, states[-2]

    @cache  # noqa: B019
    def acted(self, u, i, lstm, log_prob, order=Order.ONE):
        """Log-probs (T * N,) and values (T, N) of a rollout by the weights before step i, the values of the last
        observations of episodes (T, N), and those of the observations after the rollout (N,)."""
        weights, inputs, finals = self.weights_before(i), self.inputs[u], self.final_inputs[u]
        if self.has_lstm:
            inputs, finals, _, _ = self.through_lstm(u, lstm)
        rows = inputs[:-1].reshape(self.N * self.T, -1)
        batch = {"observations": rows, "raw": self.rollout_inputs(u), "actions": self.rollout_actions(u, order)}
        batch |= self.of_space(u, slice(None), {"masks": Masks.USED})
        log_probs = reference.evaluate(weights, batch, self.kind, log_prob).log_prob
        if self.has_lstm:
            inputs = reference.critic_inputs(weights, self.inputs[u], inputs)
            finals = reference.critic_inputs(weights, self.final_inputs[u], finals)
        values = reference.values_of(weights, inputs)
        return log_probs, values[:-1], reference.values_of(weights, finals), values[-1]

    @cache  # noqa: B019
    def scaled_rewards(self, how):
        flat = self.rewards.reshape(-1, self.N)
        return reference.scale_rewards(flat, self.starts[1:], self.hyper["gamma"], how).reshape(self.rewards.shape)

    @cache  # noqa: B019
    def advantages(self, u, i, how, rewards, lstm):
        """And returns, (T, N) each. `how` has a choice for each GAE switch."""
        _, values, finals, last = self.acted(u, i, lstm, LogProb.SUM)
        before = (self.terminated[u - 1, -1], self.truncated[u - 1, -1]) if u > 0 else None
        return reference.gae(
            self.scaled_rewards(rewards)[u], values, finals, self.terminated[u], self.truncated[u], last,
            self.hyper["gamma"], self.hyper["gae_lambda"], dict(zip(GAE_SWITCHES, how)), before,
        )  # fmt: skip

    # ------------------------------------------------------------------------------------------------- Learning
    def minibatch(self, i, chosen):
        """What step i learns from by a variant: a choice for each switch."""
        u = i // self.per_update
        batch, learned = self.minibatches[i], slice(None)
        if chosen["late resets"] == LateResets.LEFT_OUT:
            learned = self.valid[u].flatten()[batch]
            batch = batch[learned]
        start_of_rollout, start_of_epoch = u * self.per_update, i - i % self.per_epoch
        anew = chosen["values and advantages"] == ValuesAndAdvantages.EACH_EPOCH
        when = start_of_epoch if anew else start_of_rollout
        _, values, *_ = self.acted(u, when, chosen["LSTM"], LogProb.SUM)
        how = tuple(chosen[name] for name in GAE_SWITCHES)
        advantages, returns = self.advantages(u, when, how, chosen["rewards"], chosen["LSTM"])
        if NORMALIZATIONS[chosen["advantages"]].over != "minibatch":
            advantages = reference.normalize(advantages, chosen["advantages"])
        when = start_of_epoch if chosen["old log-probs"] == OldLogProbs.EACH_EPOCH else start_of_rollout
        order = chosen["order of samples"]
        judged = self.mixed_up(batch, order)
        of_acting = judged if order in MIXED_UP_WITH_OBSERVATIONS else batch
        old = None
        if chosen["old log-probs"] != OldLogProbs.EACH_STEP:
            old = self.acted(u, when, chosen["LSTM"], chosen["log-prob"], order)[0][of_acting]
        return self.seen_in(i, learned, chosen) | {
            "values": values.flatten()[of_acting], "advantages": advantages.flatten()[judged],
            "returns": returns.flatten()[judged], "log_probs": old,
        }  # fmt: skip

    def mixed_up(self, batch, order):
        """The samples whose numbers are taken for those of the batch, where not all are in one order."""
        if order == Order.ONE:
            return batch
        if order in (Order.ADVANTAGES_BY_ENVIRONMENT, Order.OBSERVATIONS_BY_TIME):
            return batch % self.T * self.N + batch // self.T
        return batch % self.N * self.T + batch // self.N

    def seen_in(self, i, learned, chosen):
        """The part of a minibatch that the network needs."""
        u, batch, order = i // self.per_update, self.minibatches[i][learned], chosen["order of samples"]
        acted = self.mixed_up(batch, order) if order in MIXED_UP_WITH_OBSERVATIONS else batch
        actions = self.rollout_actions(u, order)[acted]
        seen = {"observations": self.steps[i]["observations"][learned], "actions": actions}
        if self.has_lstm:  # whole environments in order of time
            n = batch[: len(batch) // self.T] % self.N
            seen["dones"] = self.starts[u * self.T : (u + 1) * self.T, n]
            seen["state"] = self.through_lstm(u, chosen["LSTM"])[2][:, n]
            seen["state"] = seen["state"] * (chosen["LSTM"] != Lstm.FROM_ZEROS)
            seen["resets"] = chosen["LSTM"] != Lstm.NEVER_RESET
        return seen | self.of_space(u, batch, chosen)

    def gradients_by_term(self, i, chosen, terms) -> list[dict]:
        """Of step i, before they are clipped: those of each term of the loss."""
        weights, minibatch = self.weights_before(i), self.minibatch(i, chosen)
        hyper = self.hyper
        if chosen["clip range"] == ClipRange.ANNEALED:
            hyper = hyper | {"clip_coef": hyper["clip_coef"] * (1 - i // self.per_update / self.U)}
        seen, _, slopes = reference.terms(weights, minibatch, hyper, self.kind, chosen)
        gradients = []
        for term in terms:
            alone = [slope * (name == term) for name, slope in slopes.items()]
            gradients.append(reference.backpropagate(weights, minibatch, self.kind, seen, *alone))
        return gradients

    def fresh(self, i):
        """The gradients of step i's backward pass."""
        return self.steps[i].get("fresh", self.steps[i]["unclipped"])
