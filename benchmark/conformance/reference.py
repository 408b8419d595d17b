"""PPO's arithmetic in plain numpy, in float64, with a switch for each variant that was found in some implementation.

The first choice of a switch is what the 37 details say. The others are real: docs/is-your-ppo-the-ppo.md names
where each was seen. Weights are a dict of arrays: policy.0.weight (outputs, inputs), policy.0.bias, policy.1.weight
and so on, with tanh between layers; value.0.weight alike; log_std (A,) of a Gaussian; lstm.weight_ih, lstm.weight_hh,
lstm.bias_ih, lstm.bias_hh of a shared LSTM.
"""

import numpy as np

GAE_SWITCHES = {
    "time limits": ["end", "bootstrap", "value of the next episode", "value of the current observation"],
    "trace": ["cut", "leaks at limits", "leaks at all ends"],
    "rollout's last flag": ["used", "ignored"],
    "done flags": ["of this step", "of the step before", "of the step after"],
    "lambda": ["as given", "1", "0"],
}
UPDATE_SWITCHES = {
    "advantages": [
        "population std", "sample std", "not normalized", "rollout's population std", "rollout's sample std",
    ],
    "policy loss": ["clipped", "not clipped"],
    "value loss": ["larger of both", "not clipped", "clipped value alone", "smooth L1", "squared error up to 10"],
    "value scale": ["1/2", "1"],
    "entropy bonus": ["yes", "no"],
    "gradient clip": ["joint", "actor and critic apart", "none"],
    "log-prob": ["sum", "mean", "mean, entropy too", "Laplace"],
}  # fmt: skip
STATISTICS_SWITCHES = {
    "update": ["before use", "after use", "after each rollout"],
    "clip": [10.0, np.inf, 5.0],
    "first count": [1e-4, 0.0, 1.0],
    "epsilon": [1e-8, 1e-2, 1e-4],
    "epsilon is": ["inside the root", "outside"],
    "variance": ["population", "sample"],
    "statistics": ["shared", "per environment"],
}


def defaults(switches: dict) -> dict:
    return {name: choices[0] for name, choices in switches.items()}


# ---------------------------------------------------------------------------------------------------------- Advantages
def gae(rewards, values, final_values, terminated, truncated, last_values, gamma, gae_lambda, switches=None):
    """Advantages and returns, (T, N) each. All inputs are (T, N), but last_values (N,), those of the observation after
    the rollout. final_values[t] are the values of the last observation of an episode that ended in step t."""
    chosen = defaults(GAE_SWITCHES) | (switches or {})
    T, N = rewards.shape
    if chosen["lambda"] != "as given":
        gae_lambda = float(chosen["lambda"])
    if chosen["done flags"] == "of the step before":
        terminated = np.concatenate([np.zeros((1, N)), terminated[:-1]])
        truncated = np.concatenate([np.zeros((1, N)), truncated[:-1]])
    if chosen["done flags"] == "of the step after":
        terminated = np.concatenate([terminated[1:], terminated[-1:]])
        truncated = np.concatenate([truncated[1:], truncated[-1:]])
    next_values = np.concatenate([values[1:], last_values[None]])
    advantages = np.zeros((T, N))
    advantage = np.zeros(N)
    for t in reversed(range(T)):
        ends = terminated[t].astype(bool)
        limits = truncated[t].astype(bool) & ~ends
        if chosen["rollout's last flag"] == "ignored" and t == T - 1:
            ends = limits = np.zeros(N, bool)
        at_limit = {
            "end": np.zeros(N),
            "bootstrap": final_values[t],
            "value of the next episode": next_values[t],
            "value of the current observation": values[t],
        }[chosen["time limits"]]
        following = np.where(ends, 0.0, np.where(limits, at_limit, next_values[t]))
        goes_on = ~(ends | limits)
        if chosen["trace"] == "leaks at limits":
            goes_on = ~ends
        if chosen["trace"] == "leaks at all ends":
            goes_on = np.ones(N)
        delta = rewards[t] + gamma * following - values[t]
        advantage = delta + gamma * gae_lambda * goes_on * advantage
        advantages[t] = advantage
    return advantages, advantages + values


def normalize(advantages, how):
    if how.endswith("population std"):
        return (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    if how.endswith("sample std"):
        return (advantages - advantages.mean()) / (advantages.std(ddof=1) + 1e-8)
    return advantages


# ------------------------------------------------------------------------------------------------------------ Networks
def layers_of(weights, part):
    """The weights and biases of "policy" or "value", from the first layer to the last."""
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
    """Hidden states (T, n, H) at inputs (T, n, D). dones (T, n) mark the first observations of episodes, at which the
    state (2, n, H) is made zero. Also what the backward pass needs."""

    def sigmoid(z):
        return 1 / (1 + np.exp(-z))

    h, c = state
    hidden, kept = [], []
    for t in range(len(x)):
        keep = 1.0 - dones[t][:, None] * resets
        h, c = h * keep, c * keep
        gates = x[t] @ weights["lstm.weight_ih"].T + weights["lstm.bias_ih"]
        gates = gates + h @ weights["lstm.weight_hh"].T + weights["lstm.bias_hh"]
        i, f, g, o = np.split(gates, 4, axis=1)
        i, f, g, o = sigmoid(i), sigmoid(f), np.tanh(g), sigmoid(o)
        h_before, c_before = h, c
        c = f * c + i * g
        h = o * np.tanh(c)
        hidden.append(h)
        kept.append((h_before, c_before, i, f, g, o, c, keep))
    return np.array(hidden), kept, np.array([h, c])


def lstm_backward(weights, x, kept, d_hidden):
    """Gradients of the LSTM's weights, through all steps."""
    names = ("lstm.weight_ih", "lstm.weight_hh", "lstm.bias_ih", "lstm.bias_hh")
    gradients = {name: np.zeros_like(weights[name]) for name in names}
    d_h = np.zeros_like(d_hidden[0])
    d_c = np.zeros_like(d_h)
    for t in reversed(range(len(x))):
        h_before, c_before, i, f, g, o, c, keep = kept[t]
        d_h = d_h + d_hidden[t]
        d_c = d_c + d_h * o * (1 - np.tanh(c) ** 2)
        d_i = d_c * g * i * (1 - i)
        d_f = d_c * c_before * f * (1 - f)
        d_g = d_c * i * (1 - g**2)
        d_o = d_h * np.tanh(c) * o * (1 - o)
        d_gates = np.concatenate([d_i, d_f, d_g, d_o], axis=1)
        gradients["lstm.weight_ih"] += d_gates.T @ x[t]
        gradients["lstm.weight_hh"] += d_gates.T @ h_before
        gradients["lstm.bias_ih"] += d_gates.sum(0)
        gradients["lstm.bias_hh"] += d_gates.sum(0)
        d_h = d_gates @ weights["lstm.weight_hh"] * keep
        d_c = d_c * f * keep
    return gradients


# ------------------------------------------------------------------------------------------------------- Distributions
def categorical(logits, actions, nvec, masks=None, how="sum"):
    """Log-probs and entropies (M,) of actions (M, C), one for each component; and their derivatives by the logits
    (M, S), where S is the sum of nvec. Masked logits become -1e8."""
    M = len(logits)
    if masks is not None:
        logits = np.where(masks, logits, -1e8)
    actions = np.asarray(actions, int).reshape(M, -1)
    share = 1 / len(nvec) if how.startswith("mean") else 1.0
    entropy_share = 1 / len(nvec) if how == "mean, entropy too" else 1.0
    log_prob, entropy = np.zeros(M), np.zeros(M)
    d_log_prob, d_entropy = np.zeros_like(logits), np.zeros_like(logits)
    start = 0
    for component, size in enumerate(nvec):
        part = slice(start, start + size)
        shifted = logits[:, part] - logits[:, part].max(1, keepdims=True)
        log_p = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
        p = np.exp(log_p)
        one_hot = np.eye(size)[actions[:, component]]
        h = -(p * log_p).sum(1)
        log_prob += share * (one_hot * log_p).sum(1)
        entropy += entropy_share * h
        d_log_prob[:, part] = share * (one_hot - p)
        d_entropy[:, part] = -entropy_share * p * (log_p + h[:, None])
        start += size
    if masks is not None:
        d_log_prob, d_entropy = d_log_prob * masks, d_entropy * masks
    return log_prob, entropy, d_log_prob, d_entropy


def gaussian(mean, log_std, actions, how="sum"):
    """Log-probs and entropies (M,) of actions (M, A); their derivatives by the mean (M, A) and by log_std (M, A)."""
    std = np.exp(log_std)
    z = (actions - mean) / std
    log_probs = -0.5 * z**2 - log_std - 0.5 * np.log(2 * np.pi)
    d_mean, d_log_std = z / std, z**2 - 1
    entropies = log_std + 0.5 * np.log(2 * np.pi * np.e) + np.zeros_like(mean)
    if how == "Laplace":  # with the same standard deviation: its scale is std / sqrt(2)
        log_probs = -np.sqrt(2) * np.abs(z) - log_std - 0.5 * np.log(2)
        d_mean, d_log_std = np.sqrt(2) * np.sign(z) / std, np.sqrt(2) * np.abs(z) - 1
        entropies = 1 + 0.5 * np.log(2) + log_std + np.zeros_like(mean)
    share = 1 / mean.shape[1] if how.startswith("mean") else 1.0
    entropy_share = 1 / mean.shape[1] if how == "mean, entropy too" else 1.0
    d_entropy = np.full_like(mean, entropy_share)
    return share * log_probs.sum(1), entropy_share * entropies.sum(1), share * d_mean, share * d_log_std, d_entropy


# -------------------------------------------------------------------------------------------------- Loss and gradients
def policy_loss(log_prob, old, advantages, clip_coef, how):
    """The loss, its derivatives by log_prob (M,), and the ratios."""
    ratio = np.exp(log_prob - old)
    plain = advantages * ratio
    clipped = advantages * ratio.clip(1 - clip_coef, 1 + clip_coef)
    if how == "not clipped":
        clipped = plain
    active = plain <= clipped
    return -np.minimum(plain, clipped).mean(), np.where(active, -plain, 0.0) / len(ratio), ratio


def value_loss(value, old, returns, clip_coef, how, scale):
    """The loss and its derivatives by value (M,)."""
    error = value - returns
    square, slope = error**2, 2 * error
    clipped_error = old + (value - old).clip(-clip_coef, clip_coef) - returns
    clipped_slope = 2 * clipped_error * (np.abs(value - old) <= clip_coef)
    if how == "larger of both":
        slope = np.where(clipped_error**2 > square, clipped_slope, slope)
        square = np.maximum(square, clipped_error**2)
    elif how == "clipped value alone":
        square, slope = clipped_error**2, clipped_slope
    elif how == "smooth L1":
        small = np.abs(error) < 1
        square = np.where(small, error**2, 2 * np.abs(error) - 1)
        slope = np.where(small, 2 * error, 2 * np.sign(error))
    elif how == "squared error up to 10":
        slope = np.where(square > 10, 0.0, slope)
        square = square.clip(0, 10)
    factor = {"1/2": 0.5, "1": 1.0}[scale]
    return factor * square.mean(), factor * slope / len(value)


def clip_gradients(gradients, limit, how):
    actor = [name for name in gradients if not name.startswith("value")]
    critic = [name for name in gradients if name.startswith("value")]
    groups = {"joint": [actor + critic], "actor and critic apart": [actor, critic], "none": []}[how]
    clipped = dict(gradients)
    for group in groups:
        norm = np.sqrt(sum((gradients[name] ** 2).sum() for name in group))
        for name in group:
            clipped[name] = gradients[name] * min(1.0, limit / (norm + 1e-6))
    return clipped


def evaluate(weights, batch, kind, how="sum"):
    """Log-probs, entropies and values (M,) of a batch, with what the backward pass needs."""
    x = batch["observations"]
    kept = None
    if "lstm.weight_ih" in weights:
        sequences = x.reshape(*batch["dones"].shape, -1)
        hidden, kept, _ = lstm_forward(weights, sequences, batch["dones"], batch["state"], batch.get("resets", True))
        x = hidden.reshape(len(x), -1)
    outputs, policy_inputs = forward(weights, "policy", x)
    values, value_inputs = forward(weights, "value", x)
    if kind == "gaussian":
        distribution = gaussian(outputs, weights["log_std"], batch["actions"], how)
    else:
        nvec = batch.get("nvec", [outputs.shape[1]])
        distribution = categorical(outputs, batch["actions"], nvec, batch.get("masks"), how)
    return distribution, values[:, 0], policy_inputs, value_inputs, kept


def update(weights, batch, hyper, kind, switches=None):
    """One step's loss and gradients. batch: observations (M, D), actions, log_probs, values, advantages, returns."""
    chosen = defaults(UPDATE_SWITCHES) | (switches or {})
    distribution, value, policy_inputs, value_inputs, kept = evaluate(weights, batch, kind, chosen["log-prob"])
    log_prob, entropy, d_log_prob, *d_outputs = distribution
    advantages = batch["advantages"]
    if not chosen["advantages"].startswith("rollout's"):  # then they are normalized already
        advantages = normalize(advantages, chosen["advantages"])
    clip_coef, M = hyper["clip_coef"], len(value)
    loss_p, by_log_prob, ratio = policy_loss(log_prob, batch["log_probs"], advantages, clip_coef, chosen["policy loss"])
    loss_v, by_value = value_loss(
        value, batch["values"], batch["returns"], clip_coef, chosen["value loss"], chosen["value scale"]
    )
    ent_coef = hyper["ent_coef"] if chosen["entropy bonus"] == "yes" else 0.0
    by_outputs = by_log_prob[:, None] * d_log_prob
    gradients = {}
    if kind == "gaussian":
        d_log_std, d_entropy = d_outputs
        gradients["log_std"] = (by_log_prob[:, None] * d_log_std - ent_coef / M * d_entropy).sum(0)
    else:
        by_outputs = by_outputs - ent_coef / M * d_outputs[0]
    of_policy, d_policy_x = backward(weights, "policy", policy_inputs, by_outputs)
    of_value, d_value_x = backward(weights, "value", value_inputs, hyper["vf_coef"] * by_value[:, None])
    gradients |= of_policy | of_value
    if kept is not None:
        shape = batch["dones"].shape
        sequences = batch["observations"].reshape(*shape, -1)
        gradients |= lstm_backward(weights, sequences, kept, (d_policy_x + d_value_x).reshape(*shape, -1))
    loss = loss_p - ent_coef * entropy.mean() + hyper["vf_coef"] * loss_v
    norm = np.sqrt(sum((gradient**2).sum() for gradient in gradients.values()))
    return {
        "log_prob": log_prob, "entropy": entropy, "value": value, "ratio": ratio, "loss": loss,
        "policy_loss": loss_p, "value_loss": loss_v, "grad_norm": norm, "unclipped": gradients,
        "gradients": clip_gradients(gradients, hyper["max_grad_norm"], chosen["gradient clip"]),
    }  # fmt: skip


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
    """Mean and variance of all rows so far, (Chan et al. 1979)."""

    def __init__(self, shape, first_count, variance="population"):
        self.mean, self.var, self.count = np.zeros(shape), np.ones(shape), first_count
        self.ddof = 1 if variance == "sample" else 0

    def update(self, rows):
        n, total = len(rows), self.count + len(rows)
        var = rows.var(0, ddof=min(self.ddof, n - 1))
        delta = rows.mean(0) - self.mean
        self.var = (self.var * self.count + var * n + delta**2 * self.count * n / total) / total
        self.mean = self.mean + delta * n / total
        self.count = total

    def root(self, epsilon, where):
        return np.sqrt(self.var + epsilon) if where == "inside the root" else np.sqrt(self.var) + epsilon


def running_normalize(batches, switches=None, rollout=1):
    """Normalized observations of raw ones, (T, N, D); and the means and roots by which each was, (T, N, D) too.
    `rollout` is its number of steps."""
    chosen = defaults(STATISTICS_SWITCHES) | (switches or {})
    if chosen["statistics"] == "per environment":
        shared = chosen | {"statistics": "shared"}
        alone = [running_normalize(batches[:, [n]], shared, rollout) for n in range(batches.shape[1])]
        return [np.concatenate(parts, axis=1) for parts in zip(*alone)]
    running = Running(batches.shape[2:], chosen["first count"], chosen["variance"])
    means, roots = [], []
    for t, rows in enumerate(batches):
        if chosen["update"] == "before use":
            running.update(rows)
        if chosen["update"] == "after each rollout" and t > 0 and t % rollout == 0:
            running.update(batches[t - rollout : t].reshape(-1, batches.shape[2]))
        means.append(np.broadcast_to(running.mean, rows.shape))
        roots.append(np.broadcast_to(running.root(chosen["epsilon"], chosen["epsilon is"]), rows.shape))
        if chosen["update"] == "after use":
            running.update(rows)
    means, roots = np.array(means), np.array(roots)
    return ((batches - means) / roots).clip(-chosen["clip"], chosen["clip"]), means, roots


def scale_rewards(rewards, dones, gamma, clip=10.0, per_environment=False, scale=True):
    """Rewards (T, N) divided by the standard deviation of the discounted returns so far, then clipped."""
    if not scale:
        return rewards.clip(-clip, clip)
    if per_environment:
        columns = [scale_rewards(rewards[:, [n]], dones[:, [n]], gamma, clip) for n in range(rewards.shape[1])]
        return np.concatenate(columns, axis=1)
    running = Running((), 1e-4)
    returns = np.zeros(rewards.shape[1])
    scaled = []
    for reward, done in zip(rewards, dones):
        returns = gamma * returns + reward
        running.update(returns)
        scaled.append((reward / np.sqrt(running.var + 1e-8)).clip(-clip, clip))
        returns = returns * (1 - done)
    return np.array(scaled)
