"""What reference.py computes, in another way, by torch in float64: autograd, its distributions, optimizer and LSTM,
and formulas and sums written out where the reference goes step by step. tests/test_conformance.py compares the two for
each choice of each switch.
"""

import torch
from switches import (
    Advantages,
    AfterRollout,
    DoneFlags,
    EntropyBonus,
    EpsilonIs,
    Gamma,
    GradientClip,
    Lambda,
    LogProb,
    Lstm,
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
)
from torch import distributions, nn
from torch.nn.functional import mse_loss, smooth_l1_loss


def tensors(x):
    if isinstance(x, dict):
        return {name: tensors(value) for name, value in x.items()}
    return torch.as_tensor(x) if hasattr(x, "shape") else x


# ---------------------------------------------------------------------------------------------------------- Advantages
def flag_at(flags, t, how, first=0):
    """The flag that a variant reads in step t of an environment's (T,)."""
    if how == DoneFlags.IGNORED:
        return 0
    if how == DoneFlags.STEP_AFTER:
        return flags[min(t + 1, len(flags) - 1)]
    is_right = how == DoneFlags.THIS_STEP or (how == DoneFlags.STEP_BEFORE_LAST_RIGHT and t == len(flags) - 1)
    if is_right:
        return flags[t]
    return flags[t - 1] if t > 0 else first


def value_after(i, n, t, end, limit, chosen):
    """What is taken for the value of what follows step t of environment n."""
    values, final = i["values"][:, n], i["final_values"][t, n]
    following = i["last_values"][n]
    if t + 1 < len(values):
        following = values[t + 1]
    elif chosen["after the rollout"] == AfterRollout.ZERO:
        following = 0.0
    elif chosen["after the rollout"] == AfterRollout.LAST_STEP:
        following = values[t]
    if end and chosen["true ends"] == TrueEnds.END:
        return 0.0
    if end:
        return final if chosen["true ends"] == TrueEnds.LAST_OBSERVATION else following
    if limit and chosen["time limits"] == TimeLimits.AS_AN_END:
        return 0.0
    if limit and chosen["time limits"] == TimeLimits.BOOTSTRAPPED:
        return final
    if limit and chosen["time limits"] == TimeLimits.VALUE_BEFORE:
        return values[t]
    return following


def trace_goes_on(end, limit, chosen):
    if chosen["trace"] == Trace.LEAKS:
        return True
    if chosen["trace"] == Trace.LEAKS_AT_LIMITS or chosen["time limits"] == TimeLimits.FLOW_ON:
        return not end
    return not end and not limit


def gae(i, chosen):
    """The advantages solve A_t = delta_t + gamma lambda c_t A_(t+1), a triangular system for each environment. A
    discounted sum is that of the rewards from step t on, each times the factors between."""
    i = tensors(i)
    T, N = i["rewards"].shape
    gamma_of_delta = 1.0 if chosen["gamma"] == Gamma.NOT_IN_DELTA else i["gamma"]
    decay = {Lambda.AS_GIVEN: i["gae_lambda"], Lambda.ONE: 1.0, Lambda.ZERO: 0.0}[chosen["lambda"]]
    decay *= 1.0 if chosen["gamma"] == Gamma.NOT_IN_TRACE else i["gamma"]
    advantages, one_step, sums, last_values = (torch.zeros(T, N, dtype=torch.float64) for _ in range(4))
    first = int(chosen["done flags"] == DoneFlags.STEP_BEFORE_FIRST_MARKED)
    for n in range(N):
        deltas, goes_on, is_cut = [], [], []
        for t in range(T):
            end = bool(flag_at(i["terminated"][:, n], t, chosen["done flags"], first))
            limit = bool(flag_at(i["truncated"][:, n], t, chosen["done flags"])) and not end
            if t == T - 1 and chosen["after the rollout"] == AfterRollout.VALUE:
                end = limit = False
            following = value_after(i, n, t, end, limit, chosen)
            deltas.append(float(i["rewards"][t, n] + gamma_of_delta * following - i["values"][t, n]))
            goes_on.append(float(trace_goes_on(end, limit, chosen)))
            is_cut.append(end or limit)
        deltas = torch.tensor(deltas, dtype=torch.float64)
        system = torch.eye(T).double() - torch.diag(decay * torch.tensor(goes_on).double()[:-1], 1)
        advantages[:, n] = torch.linalg.solve(system, deltas)
        one_step[:, n] = deltas + i["values"][:, n]
        after = {AfterRollout.ZERO: 0.0, AfterRollout.LAST_STEP: i["values"][-1, n]}
        last_value = after.get(chosen["after the rollout"], i["last_values"][n])
        for t in range(T):
            end_of_sum = next((k for k in range(t, T) if is_cut[k]), T)
            powers = i["gamma"] ** torch.arange(min(end_of_sum + 1, T) - t).double()
            sums[t, n] = (powers * i["rewards"][t : end_of_sum + 1, n]).sum()
            last_values[t, n] = i["gamma"] ** (T - t) * last_value if end_of_sum == T else 0.0
    centered = advantages - advantages.mean()
    returns = {
        Returns.OF_GAE: advantages + i["values"],
        Returns.OF_NORMALIZED: centered / (advantages.std(correction=0) + 1e-8) + i["values"],
        Returns.OF_SAMPLE_NORMALIZED: centered / (advantages.std(correction=1) + 1e-8) + i["values"],
        Returns.ADVANTAGES: advantages,
        Returns.DISCOUNTED: sums,
        Returns.DISCOUNTED_BOOTSTRAPPED: sums + last_values,
        Returns.ONE_STEP: one_step,
    }
    return {"advantages": advantages, "returns": returns[chosen["returns"]]}


def normalize(advantages, how):
    """Advantages (M,), or (T, N) of a rollout."""
    if how == Advantages.AS_THEY_ARE:
        return advantages
    if how == Advantages.CENTERED:
        return advantages - advantages.mean()
    of_sample = (Advantages.SAMPLE, Advantages.SAMPLE_OF_ROLLOUT, Advantages.SAMPLE_OF_ENVIRONMENT)
    by_environment = (Advantages.POPULATION_OF_ENVIRONMENT, Advantages.SAMPLE_OF_ENVIRONMENT)
    dim = 0 if how in by_environment else tuple(range(advantages.ndim))
    std, mean = torch.std_mean(advantages, dim=dim, correction=int(how in of_sample))
    if how == Advantages.DIVIDED:
        mean = 0.0
    return (advantages - mean) / (std + 1e-8)


# ------------------------------------------------------------------------------------------------------------- The loss
def distribution(outputs, i, how, log_std=None):
    """A distribution for each component of an action."""
    if log_std is not None and how == LogProb.LAPLACE:
        return [distributions.Laplace(outputs[:, c], (log_std[c].exp() / 2**0.5)) for c in range(len(log_std))]
    if log_std is not None:
        return [distributions.Normal(outputs[:, c], log_std[c].exp()) for c in range(len(log_std))]
    if "masks" in i:
        outputs = outputs.masked_fill(~i["masks"], -1e8)
    parts = outputs.split([int(n) for n in i["nvec"]], -1)
    if how == LogProb.SOFTMAX_TWICE:
        parts = [part.softmax(-1) for part in parts]
    return [distributions.Categorical(logits=part) for part in parts]


def log_prob_and_entropy(parts, actions, how):
    actions = actions.reshape(len(actions), -1)
    log_probs = torch.stack([part.log_prob(actions[:, c]) for c, part in enumerate(parts)])
    entropies = torch.stack([part.entropy() for part in parts])
    log_prob = log_probs.mean(0) if how in (LogProb.MEAN, LogProb.MEAN_AND_ENTROPY) else log_probs.sum(0)
    return log_prob, entropies.mean(0) if how == LogProb.MEAN_AND_ENTROPY else entropies.sum(0)


def evaluate_actions(i, chosen):
    i = tensors(i)
    parts = distribution(i["outputs"], i, chosen["log-prob"], i.get("log_std"))
    log_prob, entropy = log_prob_and_entropy(parts, i["actions"], chosen["log-prob"])
    return {"log_prob": log_prob, "entropy": entropy}


def policy_loss_of(log_prob, batch, clip, chosen):
    how = chosen["policy loss"]
    advantages = normalize(batch["advantages"], chosen["advantages"])
    ratio = (log_prob - batch["log_probs"]).exp()
    if how == PolicyLoss.UPSIDE_DOWN:
        ratio = 1 / ratio
    if how == PolicyLoss.BROADCAST:
        advantages = advantages.unsqueeze(1)
    losses = -advantages * ratio
    clipped = -advantages * ratio.clamp(1 - clip, 1 + clip)
    if how == PolicyLoss.NOT_CLIPPED:
        return losses.mean()
    if how == PolicyLoss.CLIPPED_ALONE:
        return clipped.mean()
    return (torch.min if how == PolicyLoss.MAX else torch.max)(losses, clipped).mean()


def value_loss_of(value, batch, clip, chosen):
    how, old, returns = chosen["value loss"], batch["values"], batch["returns"]
    if chosen["value's shape"] != ValueShape.AS_RETURNS:
        value = value.unsqueeze(1)
    if chosen["value's shape"] == ValueShape.BROADCAST_WITH_OLD:
        old = old.unsqueeze(1)
    value, old, returns = torch.broadcast_tensors(value, old, returns)
    near = torch.min(torch.max(value, old - clip), old + clip)
    if how == ValueLoss.SMOOTH_L1:
        return smooth_l1_loss(value, returns)
    if how == ValueLoss.NOT_CLIPPED:
        return mse_loss(value, returns) / 2
    if how == ValueLoss.CLIPPED_ALONE:
        return mse_loss(near, returns) / 2
    squares = (value - returns) ** 2
    if how == ValueLoss.UP_TO_10:
        return squares.clamp(max=10.0).mean() / 2
    choose = torch.min if how == ValueLoss.SMALLER else torch.max
    return choose(squares, (near - returns) ** 2).mean() / 2


def loss_of(parameters, i, chosen):
    batch, hyper = i["batch"], i["hyper"]
    batch = {"nvec": [len(parameters["policy.0.bias"])]} | batch
    outputs = parameters["policy.0.weight"].T + parameters["policy.0.bias"]
    parts = distribution(outputs, batch, chosen["log-prob"], parameters.get("log_std"))
    log_prob, entropy = log_prob_and_entropy(parts, batch["actions"], chosen["log-prob"])
    value = parameters["value.0.weight"][0] + parameters["value.0.bias"]
    policy_loss = policy_loss_of(log_prob, batch, hyper["clip_coef"], chosen)
    value_loss = value_loss_of(value, batch, hyper["clip_coef"], chosen)
    loss = policy_loss + hyper["vf_coef"] * value_loss * (2 if chosen["value scale"] == ValueScale.ONE else 1)
    if chosen["entropy bonus"] == EntropyBonus.YES:
        loss = loss - hyper["ent_coef"] * entropy.mean()
    elif chosen["entropy bonus"] == EntropyBonus.WRONG_SIGN:
        loss = loss + hyper["ent_coef"] * entropy.mean()
    return {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy.mean(), "loss": loss}


def clip_gradients(parameters: dict, limit, how):
    """Clips in place, with torch's own functions."""
    if how == GradientClip.EACH_NUMBER:
        nn.utils.clip_grad_value_(parameters.values(), limit)
    elif how == GradientClip.JOINT:
        nn.utils.clip_grad_norm_(parameters.values(), limit)
    elif how == GradientClip.EACH_PARAMETER:
        for parameter in parameters.values():
            nn.utils.clip_grad_norm_([parameter], limit)
    elif how == GradientClip.ACTOR_AND_CRITIC:
        critic = [name for name in parameters if name.startswith("value")]
        nn.utils.clip_grad_norm_([parameters[name] for name in critic], limit)
        nn.utils.clip_grad_norm_([parameters[name] for name in parameters if name not in critic], limit)


def update(i, chosen):
    i = tensors(i)
    parameters = {name: weight.clone().requires_grad_() for name, weight in i["weights"].items()}
    optimizer = torch.optim.Adam(parameters.values(), eps=chosen["Adam's ε"])
    steps, first = [], None
    for rate in i["hyper"]["learning_rates"].tolist():
        scalars = loss_of(parameters, i, chosen)
        optimizer.zero_grad()
        scalars["loss"].backward()
        scalars["grad_norm"] = nn.utils.get_total_norm([parameter.grad for parameter in parameters.values()])
        first = first or {name: float(x.detach()) for name, x in scalars.items()}
        clip_gradients(parameters, i["hyper"]["max_grad_norm"], chosen["gradient clip"])
        optimizer.param_groups[0]["lr"] = rate
        gradients = {name: parameter.grad.clone() for name, parameter in parameters.items()}
        optimizer.step()
        weights = {name: parameter.detach().clone() for name, parameter in parameters.items()}
        steps.append({"gradients": gradients, "weights": weights})
    return {"steps": steps, "first_step": first}


# ------------------------------------------------------------------------------------------------------ The environment
def moments(batches, count, variance=Variance.POPULATION):
    """Mean and variance of all rows of the batches (K, N, D), and of `count` ghost rows with mean 0 and variance 1. The
    sample's variance makes each batch's own sum of squares N / (N - 1) times as large."""
    K, N = batches.shape[:2]
    if K == 0:
        return torch.zeros(batches.shape[2:]).double(), torch.ones(batches.shape[2:]).double()
    total = K * N + count
    mean = batches.sum((0, 1)) / total
    squares = count * (1 + mean**2) + ((batches - mean) ** 2).sum((0, 1))
    if variance == Variance.SAMPLE and N > 1:
        squares = squares + ((batches - batches.mean(1, keepdim=True)) ** 2).sum((0, 1)) / (N - 1)
    return mean, squares / total


def normalize_observations(i, chosen, rollout=1):
    observations = tensors(i)["observations"]
    if chosen["statistics"] == Statistics.PER_ENVIRONMENT:
        shared = chosen | {"statistics": Statistics.SHARED}
        columns = [{"observations": observations[:, [n]]} for n in range(observations.shape[1])]
        return {"outputs": torch.cat([normalize_observations(one, shared, rollout)["outputs"] for one in columns], 1)}
    outputs = []
    for t in range(len(observations)):
        seen = {Update.BEFORE_USE: t + 1, Update.AFTER_USE: t, Update.AFTER_ROLLOUT: t // rollout * rollout}
        batches = observations[: seen[chosen["update"]]]
        if chosen["update"] == Update.AFTER_ROLLOUT:  # each rollout is one batch
            batches = batches.reshape(-1, rollout * observations.shape[1], observations.shape[2])
        mean, variance = moments(batches, chosen["first count"], chosen["variance"])
        root = (variance + chosen["epsilon"]).sqrt()
        if chosen["epsilon is"] == EpsilonIs.OUTSIDE:
            root = variance.sqrt() + chosen["epsilon"]
        outputs.append(((observations[t] - mean) / root).clamp(-chosen["clip"], chosen["clip"]))
    return {"outputs": torch.stack(outputs)}


def scale_rewards(rewards, dones, gamma, how):
    """Each discounted return is a sum over the episode's rewards so far. rewards, dones: (T, N)."""
    rewards, dones = torch.as_tensor(rewards), torch.as_tensor(dones)
    if how == Rewards.AS_THEY_ARE:
        return rewards
    if how == Rewards.CLIPPED:
        return rewards.clamp(-10, 10)
    if how == Rewards.SCALED_PER_ENVIRONMENT:
        columns = range(rewards.shape[1])
        alone = [scale_rewards(rewards[:, [n]], dones[:, [n]], gamma, Rewards.SCALED_CLIPPED) for n in columns]
        return torch.cat(alone, 1)
    returns = torch.zeros_like(rewards)
    for n in range(rewards.shape[1]):
        start = 0
        for t in range(len(rewards)):
            powers = gamma ** torch.arange(t - start, -1, -1).double()
            returns[t, n] = (powers * rewards[start : t + 1, n]).sum()
            start = t + 1 if dones[t, n] else start
    variances = torch.stack([moments(returns[: t + 1, :, None], 1e-4)[1] for t in range(len(returns))])
    scaled = rewards / (variances + 1e-8).sqrt()
    return scaled if how == Rewards.SCALED else scaled.clamp(-10, 10)


def lstm(weights, observations, dones, state, how):
    """Outputs (T, N, H) and the last state (2, N, H), at observations (T, N, D) with dones (T, N), from a state."""
    weights, observations, dones, state = (tensors(x) for x in (weights, observations, dones, state))
    layer = nn.LSTM(observations.shape[2], state.shape[2]).double()
    layer.load_state_dict({f"{name.removeprefix('lstm.')}_l0": weight for name, weight in weights.items()})
    h, c = state[:1], state[1:]
    if how == Lstm.FROM_ZEROS:
        h, c = torch.zeros_like(h), torch.zeros_like(c)
    hidden = []
    for t in range(len(observations)):
        goes_on = 1.0 if how == Lstm.NEVER_RESET else (1 - dones[t])[None, :, None]
        output, (h, c) = layer(observations[t : t + 1], (h * goes_on, c * goes_on))
        hidden.append(output[0].detach())
    return torch.stack(hidden), torch.cat([h, c]).detach()


def atari(i, chosen):
    """stable-baselines3's wrappers; vectors.py takes the numbers from this project's, which are Gymnasium's."""
    import scripted_game
    from stable_baselines3.common.atari_wrappers import AtariWrapper
    from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack

    envs = VecFrameStack(DummyVecEnv([lambda: AtariWrapper(scripted_game.Game())]), 4)

    def reset(seed):
        envs.seed(seed)
        return envs.reset()[0]

    def step(action):
        observations, rewards, dones, _ = envs.step([action])
        return observations[0], rewards[0], dones[0]

    return {i["of"]: torch.as_tensor(scripted_game.play(reset, step)[i["of"]])}
