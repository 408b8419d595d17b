"""The numbers of vectors.json again, from torch in float64: autograd, its distributions, optimizer and LSTM; sums
written out where reference.py goes step by step. tests/test_conformance.py compares the two."""

import itertools

import torch
from torch import distributions, nn


def tensors(x):
    if isinstance(x, dict):
        return {name: tensors(value) for name, value in x.items()}
    return torch.as_tensor(x) if hasattr(x, "shape") else x


def gae(i):
    """The advantages solve A_t = delta_t + gamma lambda c_t A_(t+1), a triangular system for each environment."""
    i = tensors(i)
    T, N = i["rewards"].shape
    advantages = torch.zeros(T, N, dtype=torch.float64)
    for n in range(N):
        ends, limits = i["terminated"][:, n] == 1, i["truncated"][:, n] == 1
        following = torch.cat([i["values"][1:, n], i["last_values"][n : n + 1]])
        following = torch.where(limits, i["final_values"][:, n] * (i["time_limits"] == "bootstrapped"), following)
        following = torch.where(ends, 0.0, following)
        delta = i["rewards"][:, n] + i["gamma"] * following - i["values"][:, n]
        goes_on = (~(ends | limits)).double()[:-1]
        system = torch.eye(T).double() - torch.diag(i["gamma"] * i["gae_lambda"] * goes_on, 1)
        advantages[:, n] = torch.linalg.solve(system, delta)
    return {"advantages": advantages, "returns": advantages + i["values"]}


def split(i):
    """Of indices drawn by torch."""
    size, minibatches = i["size"], i["minibatches"]
    epochs = torch.stack([torch.randperm(size) for _ in range(i["epochs"])])
    sizes = [len(batch) for epoch in epochs for batch in epoch.split(size // minibatches)]
    repeated = [float(torch.equal(one, other)) for one, other in itertools.pairwise(epochs)]
    in_order = [float(torch.equal(epoch, epoch.sort().values)) for epoch in epochs]
    counts = [torch.bincount(epoch, minlength=size) for epoch in epochs]
    found = {"sizes": torch.tensor(sizes), "repeated": torch.tensor(repeated), "in_order": torch.tensor(in_order)}
    return found | {"counts": torch.stack(counts)}


def distribution(outputs, i, log_std=None):
    if log_std is not None:
        return distributions.Independent(distributions.Normal(outputs, log_std.exp()), 1)
    if "masks" in i:
        outputs = outputs.masked_fill(~i["masks"], -1e8)
    return [distributions.Categorical(logits=part) for part in outputs.split([int(n) for n in i["nvec"]], -1)]


def log_prob_and_entropy(policy, actions):
    if isinstance(policy, list):
        actions = actions.reshape(len(actions), -1)
        log_prob = sum(part.log_prob(actions[:, c]) for c, part in enumerate(policy))
        return log_prob, sum(part.entropy() for part in policy)
    return policy.log_prob(actions), policy.entropy()


def evaluate_actions(i):
    i = tensors(i)
    policy = distribution(i["outputs"], i, i.get("log_std"))
    log_prob, entropy = log_prob_and_entropy(policy, i["actions"])
    return {"log_prob": log_prob, "entropy": entropy}


def loss_of(parameters, i):
    batch, hyper = i["batch"], i["hyper"]
    batch = {"nvec": [len(parameters["policy.0.bias"])]} | batch
    policy = distribution(
        (parameters["policy.0.weight"].T + parameters["policy.0.bias"]), batch, parameters.get("log_std")
    )
    log_prob, entropy = log_prob_and_entropy(policy, batch["actions"])
    value = parameters["value.0.weight"][0] + parameters["value.0.bias"]
    advantages = batch["advantages"]
    advantages = (advantages - advantages.mean()) / (advantages.std(correction=0) + 1e-8)
    ratio, clip = (log_prob - batch["log_probs"]).exp(), hyper["clip_coef"]
    policy_loss = torch.max(-advantages * ratio, -advantages * ratio.clamp(1 - clip, 1 + clip)).mean()
    near = torch.min(torch.max(value, batch["values"] - clip), batch["values"] + clip)
    value_loss = 0.5 * torch.max((value - batch["returns"]) ** 2, (near - batch["returns"]) ** 2).mean()
    loss = policy_loss - hyper["ent_coef"] * entropy.mean() + hyper["vf_coef"] * value_loss
    return {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy.mean(), "loss": loss}


def update(i):
    i = tensors(i)
    parameters = {name: weight.clone().requires_grad_() for name, weight in i["weights"].items()}
    optimizer = torch.optim.Adam(parameters.values(), eps=1e-5)
    steps, first = [], None
    for rate in i["hyper"]["learning_rates"].tolist():
        scalars = loss_of(parameters, i)
        optimizer.zero_grad()
        scalars["loss"].backward()
        scalars["grad_norm"] = nn.utils.clip_grad_norm_(parameters.values(), i["hyper"]["max_grad_norm"])
        first = first or {name: float(x.detach()) for name, x in scalars.items()}
        optimizer.param_groups[0]["lr"] = rate
        gradients = {name: parameter.grad.clone() for name, parameter in parameters.items()}
        optimizer.step()
        weights = {name: parameter.detach().clone() for name, parameter in parameters.items()}
        steps.append({"gradients": gradients, "weights": weights})
    return {"steps": steps, "first_step": first}


def moments(rows, count=1e-4):
    """Mean and variance of all rows, and of `count` ghost rows with mean 0 and variance 1."""
    total = len(rows) + count
    mean = rows.sum(0) / total
    return mean, (count * (1 + mean**2) + ((rows - mean) ** 2).sum(0)) / total


def normalize_observations(i):
    observations = tensors(i)["observations"]
    outputs = []
    for t in range(len(observations)):
        mean, variance = moments(observations[: t + 1].flatten(0, 1))
        outputs.append(((observations[t] - mean) / (variance + 1e-8).sqrt()).clamp(-10, 10))
    return {"outputs": torch.stack(outputs)}


def scale_rewards(i):
    """Each discounted return is a sum over the episode's rewards so far."""
    i = tensors(i)
    rewards, dones, gamma = i["rewards"], i["dones"], i["gamma"]
    returns = torch.zeros_like(rewards)
    for n in range(rewards.shape[1]):
        start = 0
        for t in range(len(rewards)):
            powers = gamma ** torch.arange(t - start, -1, -1).double()
            returns[t, n] = (powers * rewards[start : t + 1, n]).sum()
            start = t + 1 if dones[t, n] else start
    deviations = torch.stack([moments(returns[: t + 1].flatten())[1].add(1e-8).sqrt() for t in range(len(returns))])
    return {"outputs": (rewards / deviations[:, None]).clamp(-10, 10)}


def lstm(i):
    i = tensors(i)
    T, _, D = i["observations"].shape
    layer = nn.LSTM(D, i["state"].shape[-1]).double()
    layer.load_state_dict({f"{name.removeprefix('lstm.')}_l0": weight for name, weight in i["weights"].items()})
    h, c = i["state"][:1], i["state"][1:]
    hidden = []
    for t in range(T):
        goes_on = (1 - i["dones"][t])[None, :, None]
        output, (h, c) = layer(i["observations"][t : t + 1], (h * goes_on, c * goes_on))
        hidden.append(output[0].detach())
    return {"hidden": torch.stack(hidden), "state": torch.cat([h, c]).detach()}


def atari(i):
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
