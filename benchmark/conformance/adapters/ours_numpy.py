"""The scripts without torch, as they are."""

import numpy as np
import our_scripts
import scripted

NAME = "this project's numpy scripts"
OPTIONS = {"record": {name: {"script": name} for name in ("ppo_numpy", "ppo_continuous_action_numpy")}}


def named(parameters):
    """A copy of them by the names of reference.py."""
    arrays, copy = parameters.state_dict(), {}
    for part, name in (("policy", "actor"), ("value", "critic")):
        for i in range(3):
            for kind in ("weight", "bias"):
                copy[f"{part}.{i}.{kind}"] = np.array(arrays[f"{name}.{2 * i}.{kind}"], float)
    if "log_std" in arrays:
        copy["log_std"] = np.array(arrays["log_std"], float)
    return copy


def record(script, **options):
    name, module = script, our_scripts.load_script(script)
    kind, hyper = our_scripts.KINDS.get(name, "discrete"), our_scripts.hyper_of(name, options)
    steps, acted, seen = [], [], {}

    class Agent(module.Agent):
        def get_action(self, obs, noise):
            acted.append(np.array(obs, float))
            return super().get_action(obs, noise)

        def evaluate_actions(self, obs, actions):
            seen.update(agent=self, observations=np.array(obs, float), actions=np.array(actions))
            return super().evaluate_actions(obs, actions)

        def backward(self, *derivatives):
            super().backward(*derivatives)
            seen["unclipped"] = named(self.gradients)

    class Adam(module.Adam):
        def step(self, gradient):
            step = {"gradients": named(seen["agent"].gradients), "learning_rate": self.param_groups[0]["lr"]}
            super().step(gradient)
            step["weights"] = named(seen["agent"].parameters)
            steps.append(step | {name: seen[name] for name in ("observations", "actions", "unclipped")})

    def watch(model, optimizer, envs):
        seen["initial"] = named(model)

    module.Agent, module.Adam = Agent, Adam
    scripted.ScriptedEnv.scripts.clear()
    module.train(our_scripts.make_args(module, kind, hyper, options), our_scripts.Run(hyper["updates"], watch))
    return {
        "kind": kind, "hyper": hyper, "logs": scripted.ScriptedEnv.logs(), "initial": seen["initial"], "steps": steps,
        "acted": acted, "normalizes": kind == "gaussian", "own_networks": True,
    }  # fmt: skip
