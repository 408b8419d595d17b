"""stable-baselines3: trainings of its PPO, with Discrete actions and with Box actions in VecNormalize."""

import scripted
import stable_baselines3
from spy import Spy, layers
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

NAME = f"stable-baselines3 {stable_baselines3.__version__}"
OPTIONS = {
    "record": {
        "": {},
        "clip_range_vf=0.2": {"clip_range_vf": 0.2},
        "Box, VecNormalize": {"kind": "gaussian"},
        "linear learning_rate": {"learning_rate": lambda remaining: remaining * scripted.HYPER["learning_rate"]},
    }
}


def train(algorithm, kind, **options):
    hyper = scripted.HYPER
    scripted.ScriptedEnv.scripts.clear()
    make = [lambda: scripted.ScriptedEnv(kind, outliers=kind == "gaussian")]
    env = DummyVecEnv(make * hyper["num_envs"])
    if kind == "gaussian":
        env = VecNormalize(env, gamma=hyper["gamma"])
    same = {
        name: hyper[name] for name in ("learning_rate", "gamma", "gae_lambda", "ent_coef", "vf_coef", "max_grad_norm")
    }
    model = algorithm(
        "MlpPolicy", env, n_steps=hyper["num_steps"], n_epochs=hyper["epochs"], clip_range=hyper["clip_coef"],
        batch_size=hyper["num_envs"] * hyper["num_steps"] // hyper["minibatches"], device="cpu",
        policy_kwargs={"net_arch": []}, **same | options,
    )  # fmt: skip
    policy = model.policy
    named = layers("policy", policy.action_net) | layers("value", policy.value_net)
    if kind == "gaussian":
        named["log_std"] = policy.log_std
    spy = Spy(policy.optimizer, named, policy.action_net)
    evaluate_actions = policy.evaluate_actions

    def watch(observations, actions, **more):
        spy.actions = actions.numpy()
        return evaluate_actions(observations, actions, **more)

    policy.evaluate_actions = watch
    model.learn(hyper["num_envs"] * hyper["num_steps"] * hyper["updates"])
    return spy.record(hyper, scripted.ScriptedEnv.logs(), kind, normalizes=kind == "gaussian")


def record(kind="discrete", **options):
    return train(PPO, kind, **options)
