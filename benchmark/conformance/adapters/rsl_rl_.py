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
HYPER, N = scripted.HYPER, scripted.HYPER["num_envs"]
OPTIONS = {"record": {"": {}, "use_clipped_value_loss=False": {"use_clipped_value_loss": False}}}
OPTIONS["record"]["normalize_advantage_per_mini_batch=True"] = {"normalize_advantage_per_mini_batch": True}
OPTIONS["record"]["obs_normalization=True"] = {"obs_normalization": True}


def make(obs_normalization=False, **options):
    """A PPO with linear networks."""
    width = N * scripted.SHOWN
    obs = TensorDict({"policy": torch.zeros(N, width)}, [N])
    groups = {"actor": ["policy"], "critic": ["policy"]}
    distribution = {"class_name": "GaussianDistribution", "std_type": "log"}
    common = {"hidden_dims": [1], "obs_normalization": obs_normalization}
    actor = MLPModel(obs, groups, "actor", 2, distribution_cfg=distribution, **common)
    critic = MLPModel(obs, groups, "critic", 1, **common)
    actor.mlp, critic.mlp = torch.nn.Linear(width, 2), torch.nn.Linear(width, 1)
    return PPO(
        actor, critic, RolloutStorage("rl", N, HYPER["num_steps"], obs, [2]), schedule="fixed", gamma=HYPER["gamma"],
        num_learning_epochs=HYPER["epochs"], num_mini_batches=HYPER["minibatches"], lam=HYPER["gae_lambda"],
        learning_rate=HYPER["learning_rate"], clip_param=HYPER["clip_coef"], value_loss_coef=HYPER["vf_coef"],
        entropy_coef=HYPER["ent_coef"], max_grad_norm=HYPER["max_grad_norm"], **options,
    )  # fmt: skip


def record(**options):
    torch.manual_seed(1)
    ppo = make(**options)
    named = layers("policy", ppo.actor.mlp) | layers("value", ppo.critic.mlp)
    named["log_std"] = next(parameter for name, parameter in ppo.actor.named_parameters() if "std" in name)
    spy = Spy(ppo.optimizer, named, ppo.actor.mlp)
    vector = scripted.make_vector("gaussian")
    rows, _ = vector.reset()
    ppo.train_mode()
    for _ in range(HYPER["updates"]):  # as runners/on_policy_runner.py
        with torch.inference_mode():
            for _ in range(HYPER["num_steps"]):
                actions = ppo.act(TensorDict({"policy": torch.as_tensor(rows)}, [N]))
                rows, rewards, terminated, truncated, _ = vector.step(actions.numpy())
                after = TensorDict({"policy": torch.as_tensor(rows)}, [N])
                limits = {"time_outs": torch.as_tensor(truncated).float()}
                ended = torch.as_tensor(terminated | truncated)
                ppo.process_env_step(after, torch.as_tensor(rewards).float(), ended, limits)
            ppo.compute_returns(after)
        ppo.update()
    normalizes = "observations" if options.get("obs_normalization") else ""
    return spy.record(HYPER, scripted.logs(), "gaussian", normalizes=normalizes)
