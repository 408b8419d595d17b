"""PPO's arithmetic in plain numpy, in float64, with a switch for each variant that was found in some implementation;
switches.py has them.

Weights are a dict of arrays: policy.0.weight (outputs, inputs),
policy.0.bias, policy.1.weight and so on, with tanh between layers; value.0.weight alike; log_std (A,) of a Gaussian.
shared.0.weight and so on, each with tanh after it, are layers before both; lstm.weight_ih, lstm.weight_hh,
lstm.bias_ih, lstm.bias_hh, a shared LSTM.
"""

import itertools
from types import SimpleNamespace

import numpy as np
from switches import (
    GAE_SWITCHES,
    NORMALIZATIONS,
    STATISTICS_SWITCHES,
    UPDATE_SWITCHES,
    Advantages,
    AfterRollout,
    DoneFlags,
    EntropyBonus,
    EpsilonIs,
    Gamma,
    GradientClip,
    Lambda,
    LogProb,
    PolicyLoss,
    Returns,
    Rewards,
    Statistics,
    TimeLimits,
    Trace,
    TrueEnds,
    Update,
    ValueLoss,
    ValueScale,
    ValueShape,
    Variance,
    defaults,
)


# ---------------------------------------------------------------------------------------------------------- Advantages
def shifted(flags, before, how):
    """The flags (T, N) that a wrong index reads. `before` (N,) are those of the step before the rollout."""
    flags = flags.astype(bool)
    if how == DoneFlags.IGNORED:
        return np.zeros_like(flags)
    if how == DoneFlags.STEP_AFTER:
        return np.concatenate([flags[1:], flags[-1:]])
    if how == DoneFlags.THIS_STEP:
        return flags
    earlier = np.concatenate([before[None].astype(bool), flags[:-1]])
    if how == DoneFlags.STEP_BEFORE_LAST_RIGHT:
        earlier[-1] = flags[-1]
    return earlier


def discounted_sum(x, factors, last):
    """y[t] = x[t] + factors[t] y[t + 1], where the last step is followed by `last`."""
    y = np.zeros_like(x)
    for t in reversed(range(len(x))):
        last = x[t] + factors[t] * last
        y[t] = last
    return y


def gae(
    rewards, values, final_values, terminated, truncated, last_values, gamma, gae_lambda, switches=None, before=None
):
    """Advantages and returns, (T, N) each. All inputs are (T, N), but last_values (N,), those of the observation after
    the rollout. final_values[t] are the values of the last observation of an episode that ended in step t. `before`:
    terminated and truncated (N,) of the step before the rollout; only a variant reads them."""
    chosen = defaults(GAE_SWITCHES) | (switches or {})
    zeros = np.zeros_like(last_values)
    if before is None:
        before = (zeros + (chosen["done flags"] == DoneFlags.STEP_BEFORE_FIRST_MARKED), zeros)
    ends = shifted(terminated, before[0], chosen["done flags"])
    limits = shifted(truncated, before[1], chosen["done flags"]) & ~ends
    if chosen["after the rollout"] == AfterRollout.VALUE:
        ends, limits = ends.copy(), limits.copy()
        ends[-1] = limits[-1] = False
    after = {AfterRollout.ZERO: zeros, AfterRollout.LAST_STEP: values[-1]}.get(chosen["after the rollout"], last_values)
    next_values = np.concatenate([values[1:], after[None]])
    at_limit = {
        TimeLimits.BOOTSTRAPPED: final_values,
        TimeLimits.VALUE_BEFORE: values,
        TimeLimits.AS_AN_END: np.zeros_like(values),
    }
    at_end = {TrueEnds.LAST_OBSERVATION: final_values, TrueEnds.NEXT_EPISODE: next_values}
    following = np.where(limits, at_limit.get(chosen["time limits"], next_values), next_values)
    following = np.where(ends, at_end.get(chosen["true ends"], 0.0), following)
    goes_on = ~(ends | limits)
    if chosen["trace"] == Trace.LEAKS:
        goes_on = np.ones_like(ends)
    elif chosen["trace"] == Trace.LEAKS_AT_LIMITS or chosen["time limits"] == TimeLimits.FLOW_ON:
        goes_on = ~ends
    gae_lambda = {Lambda.ONE: 1.0, Lambda.ZERO: 0.0}.get(chosen["lambda"], gae_lambda)
    deltas = rewards + (1.0 if chosen["gamma"] == Gamma.NOT_IN_DELTA else gamma) * following - values
    decay = gae_lambda if chosen["gamma"] == Gamma.NOT_IN_TRACE else gamma * gae_lambda
    advantages = discounted_sum(deltas, decay * goes_on, zeros)
    cut = gamma * ~(ends | limits)
    returns = {
        Returns.OF_GAE: advantages + values,
        Returns.OF_NORMALIZED: normalize(advantages, Advantages.POPULATION) + values,
        Returns.OF_SAMPLE_NORMALIZED: normalize(advantages, Advantages.SAMPLE) + values,
        Returns.ADVANTAGES: advantages,
        Returns.DISCOUNTED: discounted_sum(rewards, cut, zeros),
        Returns.DISCOUNTED_BOOTSTRAPPED: discounted_sum(rewards, cut, after),
        Returns.ONE_STEP: deltas + values,
    }
    return advantages, returns[chosen["returns"]]


def normalize(advantages, how):
    """Advantages (M,), or (T, N) if each environment has statistics of its own."""
    rule = NORMALIZATIONS[how]
    axis = 0 if rule.over == "environment" else None
    normalized = advantages
    if rule.centered:
        normalized = normalized - advantages.mean(axis)
    if rule.divided:
        normalized = normalized / (advantages.std(axis, ddof=rule.ddof) + 1e-8)
    return normalized


def describe_split(indices, size):
    """What is to be said of a split: in each epoch, how often each sample is drawn and how large minibatches are;
    whether an epoch has the minibatches of the one before, and whether it is in order of time."""
    counts = np.array([np.bincount(np.concatenate(epoch), minlength=size) for epoch in indices])
    sizes = [len(batch) for epoch in indices for batch in epoch]
    as_sets = [sorted(sorted(int(sample) for sample in batch) for batch in epoch) for epoch in indices]
    repeated = [float(one == other) for one, other in itertools.pairwise(as_sets)]
    in_order = [float((np.diff(np.concatenate(epoch)) > 0).all()) for epoch in indices]
    return {"counts": counts, "sizes": np.array(sizes), "repeated": np.array(repeated), "in_order": np.array(in_order)}


# ------------------------------------------------------------------------------------------------------------ Networks
def layers_of(weights, part):
    """The weights and biases of "shared", "policy" or "value", from the first layer to the last."""
    count = sum(name.startswith(part) and name.endswith("weight") for name in weights)
    return [(weights[f"{part}.{i}.weight"], weights[f"{part}.{i}.bias"]) for i in range(count)]


def forward(weights, part, x):
    """Outputs (M, outputs) at inputs (M, D), and the inputs of each layer."""
    inputs = []
    for i, (weight, bias) in enumerate(layers_of(weights, part)):
        if i > 0:
            x = np.tanh(x)
        inputs.append(x)
        x = x @ weight.T + bias
    return x, inputs


def backward(weights, part, inputs, d_out):
    """Gradients of a network's weights, and of its inputs, from those of its outputs."""
    gradients = {}
    layers = layers_of(weights, part)
    for i in reversed(range(len(layers))):
        gradients[f"{part}.{i}.weight"] = d_out.T @ inputs[i]
        gradients[f"{part}.{i}.bias"] = d_out.sum(0)
        d_out = d_out @ layers[i][0]
        if i > 0:
            d_out = d_out * (1 - inputs[i] ** 2)
    return gradients, d_out


def lstm_forward(weights, x, dones, state, resets=True):
    """The states after each step (T, 2, n, H), hidden and cell, at inputs (T, n, D); and what the backward pass needs.
    dones (T, n) mark the first observations of episodes, at which the state (2, n, H) is made zero."""
    states, kept = [], []
    for t in range(len(x)):
        keep = 1.0 - dones[t][:, None] * resets
        h, c = state * keep
        gates = x[t] @ weights["lstm.weight_ih"].T + weights["lstm.bias_ih"]
        gates = gates + h @ weights["lstm.weight_hh"].T + weights["lstm.bias_hh"]
        z_i, z_f, z_g, z_o = np.split(gates, 4, axis=1)
        i, f, o = 1 / (1 + np.exp(-np.array([z_i, z_f, z_o])))
        g = np.tanh(z_g)
        cell = f * c + i * g
        state = np.array([o * np.tanh(cell), cell])
        states.append(state)
        kept.append((h, c, i, f, g, o, cell, keep))
    return np.array(states), kept


def lstm_backward(weights, x, kept, d_hidden):
    """Gradients of the LSTM's weights, through all steps."""
    names = ("lstm.weight_ih", "lstm.weight_hh", "lstm.bias_ih", "lstm.bias_hh")
    gradients = {name: np.zeros_like(weights[name]) for name in names}
    d_h = np.zeros_like(d_hidden[0])
    d_c = np.zeros_like(d_h)
    for t in reversed(range(len(x))):
        h, c, i, f, g, o, cell, keep = kept[t]
        d_h = d_h + d_hidden[t]
        d_c = d_c + d_h * o * (1 - np.tanh(cell) ** 2)
        d_i = d_c * g * i * (1 - i)
        d_f = d_c * c * f * (1 - f)
        d_g = d_c * i * (1 - g**2)
        d_o = d_h * np.tanh(cell) * o * (1 - o)
        d_gates = np.concatenate([d_i, d_f, d_g, d_o], axis=1)
        gradients["lstm.weight_ih"] += d_gates.T @ x[t]
        gradients["lstm.weight_hh"] += d_gates.T @ h
        gradients["lstm.bias_ih"] += d_gates.sum(0)
        gradients["lstm.bias_hh"] += d_gates.sum(0)
        d_h = d_gates @ weights["lstm.weight_hh"] * keep
        d_c = d_c * f * keep
    return gradients


# ------------------------------------------------------------------------------------------------------- Distributions
def shares(how, components: int) -> tuple[float, float]:
    """What each component of an action counts in the log-prob, and in the entropy."""
    of_log_prob = 1 / components if how in (LogProb.MEAN, LogProb.MEAN_AND_ENTROPY) else 1.0
    of_entropy = 1 / components if how == LogProb.MEAN_AND_ENTROPY else 1.0
    return of_log_prob, of_entropy


def softmax(logits):
    """And its logarithm, (M, A) each."""
    moved = logits - logits.max(1, keepdims=True)
    log_p = moved - np.log(np.exp(moved).sum(1, keepdims=True))
    return np.exp(log_p), log_p


def categorical(logits, actions, nvec, masks=None, how=LogProb.SUM):
    """Log-probs and entropies (M,) of actions (M, C), one for each component; and their derivatives by the logits
    (M, S), where S is the sum of nvec. Masked logits become -1e8."""
    M = len(logits)
    if masks is not None:
        logits = np.where(masks, logits, -1e8)
    actions = np.asarray(actions, int).reshape(M, -1)
    share, entropy_share = shares(how, len(nvec))
    log_prob, entropy = np.zeros(M), np.zeros(M)
    d_log_prob, d_entropy = np.zeros_like(logits), np.zeros_like(logits)
    start = 0
    for component, size in enumerate(nvec):
        part = slice(start, start + size)
        first, _ = softmax(logits[:, part])
        p, log_p = softmax(first if how == LogProb.SOFTMAX_TWICE else logits[:, part])
        one_hot = np.eye(size)[actions[:, component]]
        h = -(p * log_p).sum(1)
        log_prob += share * (one_hot * log_p).sum(1)
        entropy += entropy_share * h
        by_log_prob, by_entropy = one_hot - p, -p * (log_p + h[:, None])
        if how == LogProb.SOFTMAX_TWICE:  # back through the first one
            by_log_prob = first * (by_log_prob - (first * by_log_prob).sum(1, keepdims=True))
            by_entropy = first * (by_entropy - (first * by_entropy).sum(1, keepdims=True))
        d_log_prob[:, part] = share * by_log_prob
        d_entropy[:, part] = entropy_share * by_entropy
        start += size
    return log_prob, entropy, d_log_prob, d_entropy


def gaussian(mean, log_std, actions, how=LogProb.SUM):
    """Log-probs and entropies (M,) of actions (M, A); their derivatives by the mean (M, A) and by log_std (M, A)."""
    std = np.exp(log_std)
    z = (actions - mean) / std
    log_probs = -0.5 * z**2 - log_std - 0.5 * np.log(2 * np.pi)
    d_mean, d_log_std = z / std, z**2 - 1
    entropies = log_std + 0.5 * np.log(2 * np.pi * np.e) + np.zeros_like(mean)
    if how == LogProb.LAPLACE:  # with the same standard deviation: its scale is std / sqrt(2)
        log_probs = -np.sqrt(2) * np.abs(z) - log_std - 0.5 * np.log(2)
        d_mean, d_log_std = np.sqrt(2) * np.sign(z) / std, np.sqrt(2) * np.abs(z) - 1
        entropies = 1 + 0.5 * np.log(2) + log_std + np.zeros_like(mean)
    share, entropy_share = shares(how, mean.shape[1])
    d_entropy = np.full_like(mean, entropy_share)
    return share * log_probs.sum(1), entropy_share * entropies.sum(1), share * d_mean, share * d_log_std, d_entropy


# -------------------------------------------------------------------------------------------------- Loss and gradients
def policy_loss(log_prob, old, advantages, clip_coef, how):
    """The loss, and its derivatives by log_prob (M,)."""
    direction = -1.0 if how == PolicyLoss.UPSIDE_DOWN else 1.0
    ratio = np.exp(direction * (log_prob - old))
    if how == PolicyLoss.BROADCAST:
        advantages = advantages[:, None]
    plain = advantages * ratio
    clipped = advantages * ratio.clip(1 - clip_coef, 1 + clip_coef)
    objective, active = {
        PolicyLoss.NOT_CLIPPED: (plain, np.full(plain.shape, True)),
        PolicyLoss.MAX: (np.maximum(plain, clipped), plain >= clipped),
        PolicyLoss.CLIPPED_ALONE: (clipped, plain == clipped),
    }.get(how, (np.minimum(plain, clipped), plain <= clipped))
    slope = -direction * np.where(active, plain, 0.0) / plain.size
    return -objective.mean(), slope.reshape(-1, len(ratio)).sum(0)


def value_loss(value, old, returns, clip_coef, how, shape=ValueShape.AS_RETURNS):
    """Half the mean square, if nothing else is chosen, and the derivatives by value (M,)."""
    M = len(value)
    if shape != ValueShape.AS_RETURNS:
        value = value[:, None]
    if shape == ValueShape.BROADCAST_WITH_OLD:
        old = old[:, None]
    error = value - returns
    clipped_error = old + (value - old).clip(-clip_coef, clip_coef) - returns
    square, clipped = error**2, clipped_error**2
    clipped_slope = 2 * clipped_error * (np.abs(value - old) <= clip_coef)
    square, slope = {
        ValueLoss.LARGER: (np.maximum(square, clipped), np.where(clipped > square, clipped_slope, 2 * error)),
        ValueLoss.SMALLER: (np.minimum(square, clipped), np.where(clipped < square, clipped_slope, 2 * error)),
        ValueLoss.NOT_CLIPPED: (square, 2 * error),
        ValueLoss.CLIPPED_ALONE: (clipped, clipped_slope),
        ValueLoss.SMOOTH_L1: (np.where(square < 1, square, 2 * np.abs(error) - 1), 2 * error.clip(-1, 1)),
        ValueLoss.UP_TO_10: (square.clip(0, 10), np.where(square > 10, 0.0, 2 * error)),
    }[how]
    return 0.5 * square.mean(), 0.5 * slope.reshape(M, -1).sum(1) / square.size


def clip_gradients(gradients, limit, how=GradientClip.JOINT):
    if how == GradientClip.EACH_NUMBER:
        return {name: gradient.clip(-limit, limit) for name, gradient in gradients.items()}
    actor = [name for name in gradients if not name.startswith("value")]
    critic = [name for name in gradients if name.startswith("value")]
    groups = {
        GradientClip.JOINT: [actor + critic],
        GradientClip.ACTOR_AND_CRITIC: [actor, critic],
        GradientClip.EACH_PARAMETER: [[name] for name in gradients],
        GradientClip.NONE: [],
    }
    clipped = dict(gradients)
    for group in groups[how]:
        norm = norm_of(gradients[name] for name in group)
        for name in group:
            clipped[name] = gradients[name] * min(1.0, limit / (norm + 1e-6))
    return clipped


def norm_of(gradients):
    return np.sqrt(sum((gradient**2).sum() for gradient in gradients))


def features(weights, x):
    """What policy and value have as inputs: x (M, D), or the outputs of the shared layers; and those layers' inputs."""
    outputs, inputs = forward(weights, "shared", x)
    return (np.tanh(outputs), inputs) if inputs else (x, inputs)


def has_own_critic(weights) -> bool:
    """Whether the value function sees the observations beside an LSTM's outputs; then its loss doesn't change the
    LSTM."""
    if "lstm.weight_hh" not in weights:
        return False
    return weights["value.0.weight"].shape[1] != weights["lstm.weight_hh"].shape[1]


def critic_inputs(weights, observations, outputs):
    """What the value function sees: an LSTM's outputs (..., H), or with a critic of its own the observations too."""
    return np.concatenate([observations, outputs], -1) if has_own_critic(weights) else outputs


def values_of(weights, x):
    """Of observations, or of an LSTM's outputs, (..., D)."""
    rows, _ = features(weights, x.reshape(-1, x.shape[-1]))
    return forward(weights, "value", rows)[0].reshape(x.shape[:-1])


def evaluate(weights, batch, kind, how=LogProb.SUM):
    """Log-probs, entropies and values (M,) of a batch, with what the backward pass needs. A batch with a `state` (2, n,
    H) is a sequence through an LSTM; one with `raw` observations has an LSTM's outputs in place of them."""
    x, kept = batch["observations"], None
    if "state" in batch:
        sequences = x.reshape(*batch["dones"].shape, -1)
        states, kept = lstm_forward(weights, sequences, batch["dones"], batch["state"], batch["resets"])
        x = states[:, 0].reshape(len(x), -1)
    x, shared_inputs = features(weights, x)
    outputs, policy_inputs = forward(weights, "policy", x)
    seen_by_critic = critic_inputs(weights, batch.get("raw", batch["observations"]), x)
    values, value_inputs = forward(weights, "value", seen_by_critic)
    if kind == "gaussian":
        log_prob, entropy, *derivatives = gaussian(outputs, weights["log_std"], batch["actions"], how)
    else:
        nvec = batch.get("nvec", [outputs.shape[1]])
        log_prob, entropy, *derivatives = categorical(outputs, batch["actions"], nvec, batch.get("masks"), how)
    return SimpleNamespace(
        log_prob=log_prob, entropy=entropy, value=values[:, 0], derivatives=derivatives, kept=kept, features=x,
        inputs={"shared": shared_inputs, "policy": policy_inputs, "value": value_inputs},
    )  # fmt: skip


def backpropagate(weights, batch, kind, seen, by_log_prob, by_entropy, by_value):
    """Gradients of the weights from derivatives by log-probs, entropies and values, (M,) each."""
    d_log_prob, *others = seen.derivatives
    by_outputs = by_log_prob[:, None] * d_log_prob
    gradients = {}
    if kind == "gaussian":
        d_log_std, d_entropy = others
        gradients["log_std"] = (by_log_prob[:, None] * d_log_std + by_entropy[:, None] * d_entropy).sum(0)
    else:
        by_outputs = by_outputs + by_entropy[:, None] * others[0]
    of_policy, by_features = backward(weights, "policy", seen.inputs["policy"], by_outputs)
    of_value, by_value_features = backward(weights, "value", seen.inputs["value"], by_value[:, None])
    if not has_own_critic(weights):
        by_features = by_features + by_value_features
    gradients |= of_policy | of_value
    if seen.inputs["shared"]:
        by_shared = by_features * (1 - seen.features**2)
        of_shared, _ = backward(weights, "shared", seen.inputs["shared"], by_shared)
        gradients |= of_shared
    if seen.kept:
        shape = batch["dones"].shape
        sequences = batch["observations"].reshape(*shape, -1)
        gradients |= lstm_backward(weights, sequences, seen.kept, by_features.reshape(*shape, -1))
    return gradients


def terms(weights, batch, hyper, kind, chosen):
    """What evaluate says, and the three terms of the loss, each with its derivatives by log-probs, entropies or values.
    batch: observations (M, D), actions, log_probs, values, advantages, returns."""
    seen = evaluate(weights, batch, kind, chosen["log-prob"])
    advantages = batch["advantages"]
    if NORMALIZATIONS[chosen["advantages"]].over == "minibatch":  # else they were normalized as rollouts
        advantages = normalize(advantages, chosen["advantages"])
    clip_coef, M = hyper["clip_coef"], len(seen.value)
    old = seen.log_prob if batch["log_probs"] is None else batch["log_probs"]
    loss_p, by_log_prob = policy_loss(seen.log_prob, old, advantages, clip_coef, chosen["policy loss"])
    loss_v, by_value = value_loss(
        seen.value, batch["values"], batch["returns"], clip_coef, chosen["value loss"], chosen["value's shape"]
    )
    by_entropy = np.full(M, -hyper["ent_coef"] / M)
    losses = {"policy": loss_p, "entropy": -hyper["ent_coef"] * seen.entropy.mean(), "value": hyper["vf_coef"] * loss_v}
    slopes = {"policy": by_log_prob, "entropy": by_entropy, "value": hyper["vf_coef"] * by_value}
    return seen, losses, slopes


def update(weights, batch, hyper, kind, switches=None):
    """One step's loss and clipped gradients, and what the loss was made of."""
    chosen = defaults(UPDATE_SWITCHES) | (switches or {})
    seen, losses, slopes = terms(weights, batch, hyper, kind, chosen)
    of_entropy = {EntropyBonus.YES: 1.0, EntropyBonus.NO: 0.0, EntropyBonus.WRONG_SIGN: -1.0}
    of_value = {ValueScale.HALF: 1.0, ValueScale.ONE: 2.0}
    factors = {
        "policy": 1.0,
        "entropy": of_entropy[chosen["entropy bonus"]],
        "value": of_value[chosen["value scale"]],
    }
    gradients = backpropagate(weights, batch, kind, seen, *[factors[name] * slopes[name] for name in factors])
    parts = {
        "policy_loss": losses["policy"], "value_loss": losses["value"] / hyper["vf_coef"],
        "entropy": seen.entropy.mean(), "loss": sum(factors[name] * losses[name] for name in factors),
        "grad_norm": norm_of(gradients.values()),
    }  # fmt: skip
    return clip_gradients(gradients, hyper["max_grad_norm"], chosen["gradient clip"]), parts


def adam(weights, gradients, state, learning_rate, eps=1e-5, beta1=0.9, beta2=0.999):
    """The weights after a step (Kingma & Ba 2015, algorithm 1). `state` is a dict, empty before the first step."""
    state["steps"] = state.get("steps", 0) + 1
    after = dict(weights)
    for name, gradient in gradients.items():
        mean = beta1 * state.get((name, "mean"), 0.0) + (1 - beta1) * gradient
        square = beta2 * state.get((name, "square"), 0.0) + (1 - beta2) * gradient**2
        state[name, "mean"], state[name, "square"] = mean, square
        mean = mean / (1 - beta1 ** state["steps"])
        square = square / (1 - beta2 ** state["steps"])
        after[name] = weights[name] - learning_rate * mean / (np.sqrt(square) + eps)
    return after


# -------------------------------------------------------------------------------------------------- Running statistics
class Running:
    """Mean and variance of all rows so far (Chan et al. 1979)."""

    def __init__(self, shape, first_count=1e-4, variance=Variance.POPULATION):
        self.mean, self.var, self.count = np.zeros(shape), np.ones(shape), first_count
        self.ddof = int(variance == Variance.SAMPLE)

    def update(self, rows):
        n, total = len(rows), self.count + len(rows)
        var = rows.var(0, ddof=min(self.ddof, n - 1))
        delta = rows.mean(0) - self.mean
        self.var = (self.var * self.count + var * n + delta**2 * self.count * n / total) / total
        self.mean = self.mean + delta * n / total
        self.count = total

    def root(self, epsilon=1e-8, where=EpsilonIs.INSIDE):
        return np.sqrt(self.var + epsilon) if where == EpsilonIs.INSIDE else np.sqrt(self.var) + epsilon


def running_normalize(batches, switches=None, rollout=1):
    """Normalized observations of raw ones, (T, N, D); and the means and roots by which each was, (T, N, D) too.
    `rollout` is its number of steps."""
    chosen = defaults(STATISTICS_SWITCHES) | (switches or {})
    if chosen["statistics"] == Statistics.PER_ENVIRONMENT:
        shared = chosen | {"statistics": Statistics.SHARED}
        alone = [running_normalize(batches[:, [n]], shared, rollout) for n in range(batches.shape[1])]
        return [np.concatenate(parts, axis=1) for parts in zip(*alone)]
    running = Running(batches.shape[2:], chosen["first count"], chosen["variance"])
    means, roots = [], []
    for t, rows in enumerate(batches):
        if chosen["update"] == Update.BEFORE_USE:
            running.update(rows)
        if chosen["update"] == Update.AFTER_ROLLOUT and t > 0 and t % rollout == 0:
            running.update(batches[t - rollout : t].reshape(-1, batches.shape[2]))
        means.append(np.broadcast_to(running.mean, rows.shape))
        roots.append(np.broadcast_to(running.root(chosen["epsilon"], chosen["epsilon is"]), rows.shape))
        if chosen["update"] == Update.AFTER_USE:
            running.update(rows)
    means, roots = np.array(means), np.array(roots)
    return ((batches - means) / roots).clip(-chosen["clip"], chosen["clip"]), means, roots


def scale_rewards(rewards, dones, gamma, how=Rewards.SCALED_CLIPPED):
    """Rewards (T, N) divided by the standard deviation of the discounted returns so far, then clipped."""
    if how == Rewards.SCALED_PER_ENVIRONMENT:
        columns = [scale_rewards(rewards[:, [n]], dones[:, [n]], gamma) for n in range(rewards.shape[1])]
        return np.concatenate(columns, axis=1)
    scaled = rewards
    if how in (Rewards.SCALED, Rewards.SCALED_CLIPPED):
        running = Running(())
        returns = np.zeros(rewards.shape[1])
        roots = []
        for reward, done in zip(rewards, dones):
            returns = gamma * returns + reward
            running.update(returns)
            roots.append(running.root())
            returns = returns * (1 - done)
        scaled = rewards / np.array(roots)[:, None]
    return scaled.clip(-10, 10) if how in (Rewards.CLIPPED, Rewards.SCALED_CLIPPED) else scaled
