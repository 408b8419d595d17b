"""The scripts without torch."""

import numpy as np
import our_scripts

NAME = "this project's numpy scripts"
OPTIONS = {"record": {name: {"name": name} for name in our_scripts.NAMES if name.endswith("numpy")}}


def named(parameters):
    """A copy of them by the names of reference.py."""
    copy = {}
    for name, x in parameters.state_dict().items():
        part, _, rest = name.partition(".")
        if rest:  # actor.2.weight, say, of the second layer
            number, _, kind = rest.partition(".")
            name = f"{ {'actor': 'policy', 'critic': 'value'}[part] }.{int(number) // 2}.{kind}"
        copy[name] = np.array(x, float)
    return copy


def record(name, **options):
    script = our_scripts.load_script(name)
    steps, acted, seen = [], [], {}

    class Agent(script.Agent):
        def get_action(self, obs, noise):
            acted.append(np.array(obs, float))
            return super().get_action(obs, noise)

        def evaluate_actions(self, obs, actions):
            seen.update(agent=self, observations=np.array(obs, float), actions=np.array(actions))
            return super().evaluate_actions(obs, actions)

        def backward(self, *derivatives):
            super().backward(*derivatives)
            seen["unclipped"] = named(self.gradients)

    class Adam(script.Adam):
        def step(self, gradient):
            step = {"gradients": named(seen["agent"].gradients), "learning_rate": self.param_groups[0]["lr"]}
            super().step(gradient)
            step["weights"] = named(seen["agent"].parameters)
            steps.append(step | {key: seen[key] for key in ("observations", "actions", "unclipped")})

    def keep(model, optimizer, envs):
        seen["initial"] = named(model)
        seen["own"] = {key: np.array(x) for key, x in model.state_dict().items()}

    script.Agent, script.Adam = Agent, Adam
    training = our_scripts.train(name, script, keep, options)
    return training | {"steps": steps, "acted": acted, "initial": seen["initial"], "own": seen["own"]}
