"""For adapters of torch libraries: what an optimizer and a network see, through torch's public hooks."""

import warnings
from functools import partial

import numpy as np
import torch
from command_line import UserError
from replay import NotFinite, broken_part


def numbers(tensor):
    return torch.as_tensor(tensor).detach().double().cpu().numpy().copy()


class Spy:
    """Records steps of `optimizer` for replay.py. `named`: parameters by the names of reference.py. `network`: the
    module whose input (or output, with after=True) is the observations (M, D). An adapter may put a minibatch's actions
    into `actions`."""

    def __init__(self, optimizer, named: dict, network, after=False):
        self.named = named
        self.after = after
        self.steps = []
        self.acted = []
        self.learned = None
        self.actions = None
        trained = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        others = [name for name, parameter in named.items() if not any(parameter is other for other in trained)]
        if others:
            warnings.warn(f"the spy's optimizer doesn't have {', '.join(others)}", stacklevel=2)
        self.unnamed = []
        for parameter in trained:
            if not any(parameter is other for other in named.values()):
                self.unnamed.append(f"unnamed {tuple(parameter.shape)}")
        self.initial = {name: numbers(parameter) for name, parameter in named.items()}
        self.begin()
        for name, parameter in named.items():
            parameter.register_hook(partial(self.on_gradient, name))
            parameter.register_post_accumulate_grad_hook(partial(self.on_accumulated, name))
        optimizer.register_step_pre_hook(self.before_step)
        optimizer.register_step_post_hook(self.after_step)
        network.register_forward_hook(self.saw)

    @torch.compiler.disable
    def saw(self, module, inputs, output):
        observations = output if self.after else inputs[0]
        rows = numbers(observations).reshape(-1, observations.shape[-1])
        if torch.is_grad_enabled():
            self.learned = rows
        else:
            self.acted.append(rows)

    def begin(self):
        zeros = {name: np.zeros(parameter.shape) for name, parameter in self.named.items()}
        self.step = {"fresh": zeros, "unclipped": dict(zeros)}

    def on_gradient(self, name, gradient):
        self.step["fresh"][name] = self.step["fresh"][name] + numbers(gradient)

    def on_accumulated(self, name, parameter):
        self.step["unclipped"][name] = numbers(parameter.grad)

    def before_step(self, optimizer, args, kwargs):
        self.step["gradients"] = {}
        for name, parameter in self.named.items():
            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            self.step["gradients"][name] = numbers(gradient)

    def after_step(self, optimizer, args, kwargs):
        self.step["weights"] = {name: numbers(parameter) for name, parameter in self.named.items()}
        self.step["learning_rate"] = float(optimizer.param_groups[0]["lr"])
        self.step["observations"] = self.learned
        if self.actions is not None:
            self.step["actions"] = numbers(self.actions)
        self.steps.append(self.step)
        part = broken_part(self.step)
        if part:  # before the network's own checks stop the training somewhere else
            raise NotFinite(f"NaN or infinity, first in {part} in step {len(self.steps)}")
        self.begin()

    def record(self, hyper, logs, kind="discrete", **more):
        """What an adapter's record() returns. Raises UserError if the network saw no minibatch."""
        if self.learned is None:
            raise UserError(
                "the spy's network was never called with gradients; give the spy a module that is called as "
                "module(observations)"
            )
        acted = []  # not the observations of whole rollouts, and those that are asked for a value again once
        for rows in self.acted:
            if len(rows) == hyper["num_envs"] and not (acted and np.array_equal(rows, acted[-1])):
                acted.append(rows)
        more["others"] = more.get("others") or self.unnamed
        what = {"kind": kind, "hyper": hyper, "logs": logs, "initial": self.initial, "steps": self.steps}
        return what | {"acted": acted} | more


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
