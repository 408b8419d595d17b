"""rsl_rl, of the version that is installed: trainings of its PPO, which knows Gaussian policies alone."""

import importlib.metadata

import scripted
import torch
from rsl_rl.algorithms import PPO
from rsl_rl.models import MLPModel
from rsl_rl.storage import RolloutStorage
from spy import Spy, layers
from tensordict import TensorDict

NAME = f"rsl_rl {importlib.metadata.version('rsl-rl-lib')}"
OPTIONS = {
    "record": {
        "": {},
        "normalize_advantage_per_mini_batch=True": {"normalize_advantage_per_mini_batch": True},
        "use_clipped_value_loss=False": {"use_clipped_value_loss": False},
        "obs_normalization=True": {"normalizes": True},
    }
}


def make(hyper, normalizes, options):
    """A PPO with linear networks."""
    width = hyper["num_envs"] * scripted.SHOWN
    obs = TensorDict({"policy": torch.zeros(hyper["num_envs"], width)}, [hyper["num_envs"]])
    groups = {"actor": ["policy"], "critic": ["policy"]}
    distribution = {"class_name": "GaussianDistribution", "std_type": "log"}
    common = {"hidden_dims": [1], "obs_normalization": normalizes}
    actor = MLPModel(obs, groups, "actor", 2, distribution_cfg=distribution, **common)
    critic = MLPModel(obs, groups, "critic", 1, **common)
    actor.mlp, critic.mlp = torch.nn.Linear(width, 2), torch.nn.Linear(width, 1)
    storage = RolloutStorage("rl", hyper["num_envs"], hyper["num_steps"], obs, [2])
    return PPO(
        actor, critic, storage, schedule="fixed", num_learning_epochs=hyper["epochs"], gamma=hyper["gamma"],
        num_mini_batches=hyper["minibatches"], lam=hyper["gae_lambda"], learning_rate=hyper["learning_rate"],
        clip_param=hyper["clip_coef"], value_loss_coef=hyper["vf_coef"], entropy_coef=hyper["ent_coef"],
        max_grad_norm=hyper["max_grad_norm"], **options,
    )  # fmt: skip


def record(normalizes=False, scale=1.0, shift=0.0, **options):
    """`scale` and `shift` make observations that are far from 0 and 1."""
    torch.manual_seed(1)
    hyper = scripted.HYPER
    ppo = make(hyper, normalizes, options)
    named = layers("policy", ppo.actor.mlp) | layers("value", ppo.critic.mlp)
    named["log_std"] = next(parameter for name, parameter in ppo.actor.named_parameters() if "std" in name)
    spy = Spy(ppo.optimizer, named, ppo.actor.mlp)
    vector = scripted.ScriptedVector()
    ppo.train_mode()

    def as_seen(observations):
        return TensorDict({"policy": torch.from_numpy(observations) * scale + shift}, [hyper["num_envs"]])

    observations = as_seen(vector.reset())
    for _ in range(hyper["updates"]):  # as runners/on_policy_runner.py
        with torch.inference_mode():
            for _ in range(hyper["num_steps"]):
                actions = ppo.act(observations)
                rows, rewards, terminated, truncated, _ = vector.step(actions.numpy())
                observations, ended = as_seen(rows), torch.from_numpy(terminated | truncated)
                limits = torch.from_numpy(truncated).float()
                ppo.process_env_step(observations, torch.from_numpy(rewards).float(), ended, {"time_outs": limits})
            ppo.compute_returns(observations)
        ppo.update()
    return spy.record(hyper, vector.logs(), "gaussian", normalizes_observations=normalizes)
