"""For adapters of torch libraries: what an optimizer and a network see, through torch's public hooks."""

from functools import partial

import numpy as np
import torch


def numbers(tensor):
    return torch.as_tensor(tensor).detach().double().cpu().numpy().copy()


class Spy:
    """Records steps of `optimizer` for replay.py. `named`: parameters by the names of reference.py. `network`: the
    module whose input (or output, with after=True) is the observations (M, D). Policy and value may have an optimizer
    each: then `optimizer` is a list, and a step is recorded when both have made theirs."""

    def __init__(self, optimizer, named: dict, network, after=False):
        self.optimizers = optimizer if isinstance(optimizer, list) else [optimizer]
        self.named = named
        self.steps = []
        self.acted = []
        self.learned = None
        self.actions = None  # an adapter may put a minibatch's actions here
        self.acting = True  # an adapter may set it to False where a network is asked for values alone
        self.initial = self.read(lambda parameter: parameter)
        self.begin()
        for name, parameter in named.items():
            parameter.register_hook(partial(self.on_gradient, name))
            parameter.register_post_accumulate_grad_hook(partial(self.on_accumulated, name))
        for one in self.optimizers:
            one.register_step_pre_hook(self.before_step)
            one.register_step_post_hook(self.after_step)
        if after:
            network.register_forward_hook(lambda module, inputs, output: self.saw(output))
        else:
            network.register_forward_pre_hook(lambda module, inputs: self.saw(inputs[0]))

    def read(self, what):
        return {name: numbers(what(parameter)) for name, parameter in self.named.items()}

    @torch.compiler.disable
    def saw(self, observations):
        if torch.is_grad_enabled():
            self.learned = numbers(observations).reshape(-1, observations.shape[-1])
        elif self.acting:
            self.acted.append(numbers(observations).reshape(-1, observations.shape[-1]))

    def begin(self):
        zeros = {name: np.zeros(parameter.shape) for name, parameter in self.named.items()}
        self.step = {"gradients": {}, "fresh": zeros, "unclipped": dict(zeros)}
        self.stepped = set()

    def on_gradient(self, name, gradient):
        self.step["fresh"][name] = self.step["fresh"][name] + numbers(gradient)

    def on_accumulated(self, name, parameter):
        self.step["unclipped"][name] = numbers(parameter.grad)

    def before_step(self, optimizer, args, kwargs):
        mine = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        for name, parameter in self.named.items():
            if id(parameter) in mine:
                gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                self.step["gradients"][name] = numbers(gradient)

    def after_step(self, optimizer, args, kwargs):
        self.stepped.add(id(optimizer))
        if len(self.stepped) < len(self.optimizers):
            return
        rate = float(self.optimizers[0].param_groups[0]["lr"])
        self.step |= {"weights": self.read(lambda x: x), "learning_rate": rate, "observations": self.learned}
        if self.actions is not None:
            self.step["actions"] = self.actions
        self.steps.append(self.step)
        self.begin()

    def record(self, hyper, logs, kind="discrete", **more):
        """What an adapter's record() returns."""
        what = {"kind": kind, "hyper": hyper, "logs": logs, "initial": self.initial, "steps": self.steps}
        return what | {"acted": self.acted_by(hyper["num_envs"])} | more

    def acted_by(self, num_envs):
        """The observations of each step: not of whole rollouts, and those that are asked for a value again once."""
        steps = []
        for rows in self.acted:
            if len(rows) == num_envs and not (steps and np.array_equal(rows, steps[-1])):
                steps.append(rows)
        return steps


def load(named: dict, weights: dict):
    """Gives the parameters a vector's weights."""
    with torch.no_grad():
        for name, parameter in named.items():
            parameter.copy_(torch.as_tensor(weights[name]).reshape(parameter.shape))


def layers(part: str, module) -> dict:
    """The names of reference.py for the linear layers of a network."""
    linear = [layer for layer in module.modules() if isinstance(layer, torch.nn.Linear)]
    named = {}
    for i, layer in enumerate(linear):
        named[f"{part}.{i}.weight"], named[f"{part}.{i}.bias"] = layer.weight, layer.bias
    return named


def describe(parameters: dict, actor: str, critic: str) -> dict:
    """What the vectors of initial weights say: the number of parameters, the gains of orthogonal weights by their role,
    how far weights are from orthogonal, and the largest bias. `actor` and `critic` begin the last layers' names."""
    roles = {"hidden": [], "policy": [], "value": [], "LSTM": []}
    last = {}
    for name, parameter in parameters.items():
        if name.startswith((actor, critic)) and parameter.ndim > 1:
            last[name.startswith(critic)] = name
    largest_bias, skew = 0.0, 0.0
    for name, parameter in parameters.items():
        if parameter.ndim == 1:
            largest_bias = max(largest_bias, float(parameter.detach().abs().max()))
            continue
        matrix = numbers(parameter).reshape(len(parameter), -1)
        gram = matrix @ matrix.T if len(matrix) <= matrix.shape[1] else matrix.T @ matrix
        gain = gram.diagonal().mean() ** 0.5
        skew = max(skew, abs(gram / gain**2 - torch.eye(len(gram)).numpy()).max())
        role = "policy" if name == last.get(False) else "value" if name == last.get(True) else "hidden"
        roles["LSTM" if "lstm" in name else role].append(gain)
    count = sum(parameter.numel() for parameter in parameters.values())
    gains = {role: {"gain": float(sum(found) / len(found))} for role, found in roles.items() if found}
    return {
        "parameters": {"count": float(count)},
        **gains,
        "rest": {"1 + skew": 1 + skew, "1 + bias": 1 + largest_bias},
    }
