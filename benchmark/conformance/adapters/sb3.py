"""stable-baselines3: trainings of its PPO, with Discrete actions and with Box actions in VecNormalize."""

import scripted
import stable_baselines3
from spy import Spy, layers
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

NAME = f"stable-baselines3 {stable_baselines3.__version__}"
HYPER = scripted.HYPER
SAME = ("learning_rate", "gamma", "gae_lambda", "ent_coef", "vf_coef", "max_grad_norm")
OPTIONS = {
    "record": {
        "": {},
        "clip_range_vf=0.2": {"clip_range_vf": 0.2},
        "Box, VecNormalize": {"kind": "gaussian"},
        "linear learning_rate": {"learning_rate": lambda remaining: remaining * HYPER["learning_rate"]},
    }
}


def make(algorithm, kind, policy="MlpPolicy", **options):
    """A model with linear networks."""
    env = DummyVecEnv(scripted.makers(kind, outliers=kind == "gaussian"))
    if kind == "gaussian":
        env = VecNormalize(env, gamma=HYPER["gamma"])
    size = HYPER["num_envs"] * HYPER["num_steps"]
    arguments = {name: HYPER[name] for name in SAME} | {"policy_kwargs": {"net_arch": []}} | options
    return algorithm(
        policy, env, n_steps=HYPER["num_steps"], n_epochs=HYPER["epochs"], clip_range=HYPER["clip_coef"],
        batch_size=size // HYPER["minibatches"], device="cpu", **arguments,
    )  # fmt: skip


def train(model, kind, others=()):
    policy = model.policy
    named = layers("policy", policy.action_net) | layers("value", policy.value_net)
    named |= {name: parameter for name, parameter in policy.named_parameters() if name.startswith(("log_std", *others))}
    spy = Spy(policy.optimizer, named, policy.features_extractor)
    evaluate_actions = policy.evaluate_actions

    def watch(observations, actions, *more, **named):
        spy.actions = actions
        return evaluate_actions(observations, actions, *more, **named)

    policy.evaluate_actions = watch
    model.learn(HYPER["num_envs"] * HYPER["num_steps"] * HYPER["updates"])
    normalizes = "observations and rewards" if kind == "gaussian" else ""
    return spy.record(HYPER, scripted.logs(), kind, normalizes=normalizes, others=others)


def record(kind="discrete", **options):
    return train(make(PPO, kind, **options), kind)
