"""The torch scripts of this repository that see vectors, trained through `train(args, run)`."""

import our_scripts
import torch
from spy import Spy, layers, numbers

NAME = "this project's torch scripts"
MINE = [name for name in our_scripts.NAMES if "numpy" not in name and our_scripts.kind_of(name) != "pictures"]
OPTIONS = {"record": {name: {"name": name} for name in MINE}}
OPTIONS["record"]["ppo --bootstrap-truncated"] = {"name": "ppo", "bootstrap_truncated": True}
OPTIONS["record"]["ppo_continuous_action_gpu --time-limits final"] = {
    "name": "ppo_continuous_action_gpu",
    "time_limits": "final",
}


def watched(agent_class, own, spies):
    """The script's Agent, with the identity before its heads and a small LSTM. `own` gets its weights before that."""

    class Agent(agent_class):
        def __init__(self, envs, args):
            super().__init__(envs, args)
            own.update({name: numbers(parameter) for name, parameter in self.named_parameters()})
            if not hasattr(self, "network"):
                return
            has_own_critic = hasattr(self, "lstm") and isinstance(self.critic, torch.nn.Sequential)
            for name, part in list(self.named_children()):
                if isinstance(part, torch.nn.Sequential):
                    setattr(self, name, torch.nn.Flatten())
            obs_dim = envs.observation_space.shape[0]
            width = obs_dim
            if hasattr(self, "lstm"):
                self.lstm = torch.nn.LSTM(obs_dim, 8)
                width = 8
            self.actor = torch.nn.Linear(width, self.actor.out_features)
            self.critic = torch.nn.Linear(obs_dim + width if has_own_critic else width, 1)

        def set_scale(self, scale):
            """The values' scale stays 1: the replay knows no weights that change between steps of the optimizer."""

        def evaluate_actions(self, obs, actions, *more):
            spies[0].actions = actions
            return super().evaluate_actions(obs, actions, *more)

    return Agent


def record(name, vector_env=None, change=None, **options):
    """`change` may edit the loaded script first."""
    script = our_scripts.load_script(name)
    if change:
        change(script)
    if vector_env:
        script.VectorEnv = vector_env
    own, others, spies = {}, [], []
    script.Agent = watched(script.Agent, own, spies)

    def keep(model, optimizer, envs):
        named = layers("policy", model.actor) | layers("value", model.critic)
        for key, parameter in model.named_parameters():
            if key == "log_std" or key.startswith("lstm"):
                named[key.removesuffix("_l0")] = parameter
            elif not key.startswith(("actor", "critic")):
                others.append(key)
        network = getattr(model, "network", model.actor)
        spies.append(Spy(optimizer, named, network, after=network is not model.actor))

    training = our_scripts.train(name, script, keep, {"device": "cpu"} | options)
    return spies[0].record(**training, own=own, others=others)
