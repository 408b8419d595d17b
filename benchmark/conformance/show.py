"""The differences of the matrix one by one, in a few lines each. Each function prints what it sees:

uv run --no-project --with skrl==2.1.1 --with gymnasium benchmark/conformance/show.py skrl_time_limit
"""

import inspect
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent / "adapters")]

import numpy as np  # noqa: E402
import scripted  # noqa: E402
import torch  # noqa: E402


def print_defaults(function, *names):
    parameters = inspect.signature(function).parameters
    print({name: parameters[name].default for name in names})


def print_first_ratio(adapter, **options):
    import details

    rows = details.report(adapter.record(**options))
    print(adapter.NAME, *[f"{row.name}: {row.verdict} {row.note}" for row in rows if row.name == "first ratio"])


def sb3_value_clip():
    """clip_range_vf: the loss is that of the clipped value alone, so that its gradient is 0 outside the range."""
    from stable_baselines3.ppo import PPO

    model = PPO("MlpPolicy", "CartPole-v1", n_steps=64, batch_size=64, n_epochs=1, clip_range_vf=1e-9, ent_coef=0.0)
    norms = []
    weight = model.policy.value_net.weight
    model.policy.optimizer.register_step_pre_hook(lambda *_: norms.append(float(weight.grad.norm())))
    model.learn(64)
    model.rollout_buffer.values[:] += 1.0  # now each value is outside the range
    model.train()
    print(f"gradient of the value head: {norms[0]:.3g} where values are inside the range, {norms[1]:.3g} outside")


def sb3_time_limit():
    """A time limit adds gamma times the value of the last observation to the reward."""
    import gymnasium as gym
    from stable_baselines3 import PPO

    env = gym.make("CartPole-v1", max_episode_steps=4)
    model = PPO("MlpPolicy", env, n_steps=4, batch_size=4).learn(4)
    print("rewards of an episode that a limit ended:", model.rollout_buffer.rewards[:, 0], "CartPole pays 1 a step")


def rsl_rl_ratio():
    """With normalized observations, the ratio in the first minibatch: 1 from 5.5.0 on, something else before."""
    import rsl_rl_

    print_first_ratio(rsl_rl_, obs_normalization=True)


def rsl_rl_minibatches():
    """Each epoch of an update has the same minibatches."""
    from rsl_rl.storage import RolloutStorage
    from tensordict import TensorDict

    storage = RolloutStorage("rl", 8, 1, TensorDict({"policy": torch.zeros(8, 1)}, [8]), [1])
    storage.observations["policy"][:] = torch.arange(8.0).reshape(1, 8, 1)
    storage.distribution_params = (torch.zeros(1, 8, 1),)
    for batch in storage.mini_batch_generator(2, num_epochs=3):
        print(batch.observations["policy"].flatten().int().tolist())


def rsl_rl_gradient_clip():
    """Actor and critic are clipped apart: each has the norm max_grad_norm, both together more."""
    import rsl_rl_

    gradients = rsl_rl_.record()["steps"][0]["gradients"]
    norms = {"actor": 0.0, "critic": 0.0}
    for name, gradient in gradients.items():
        part = "critic" if name.startswith("value") else "actor"
        norms[part] = np.hypot(norms[part], np.linalg.norm(gradient))
    print(norms, "together", np.hypot(*norms.values()), "max_grad_norm", scripted.HYPER["max_grad_norm"])


def rsl_rl_time_limit():
    """At a time limit, the value of the observation before the step is added, not that of the one after it."""
    from rsl_rl_ import TensorDict, make

    ppo = make()
    rows = TensorDict({"policy": torch.randn(4, ppo.critic.mlp.in_features)}, [4])
    ppo.act(rows)
    values = ppo.transition.values.flatten() * scripted.HYPER["gamma"]
    ppo.process_env_step(rows, torch.zeros(4), torch.ones(4), {"time_outs": torch.ones(4)})
    print("added, in units of gamma times the value before the step:", ppo.storage.rewards[0].flatten() / values)


def skrl_time_limit():
    """The default takes a time limit for no end: the next episode's value and advantages flow back into this one."""
    from skrl.agents.torch.ppo.ppo import compute_gae

    zeros, limit = torch.zeros(3, 1), torch.tensor([[True], [False], [False]])
    for bootstrap in (False, True):
        given = {"terminated": zeros.bool(), "truncated": limit, "values": zeros, "last_values": torch.zeros(1)}
        given["time_limit_bootstrap"] = bootstrap
        rewards = torch.tensor([[0.0], [0.0], [100.0]])  # the last two are the next episode's
        returns, _ = compute_gae(rewards=rewards, **given)
        print(f"time_limit_bootstrap={bootstrap}: a reward of 100 there adds {returns[0].item():.1f} here")


def skrl_ratio():
    """With RunningStandardScaler, statistics change while the first epoch learns: the first ratio isn't 1."""
    import skrl_

    print_first_ratio(skrl_, **skrl_.SCALER)


def skrl_value_clip():
    """value_clip: as stable-baselines3's, the loss is that of the clipped value alone."""
    import skrl_

    steps = skrl_.record(value_clip=1e-9)["steps"]  # after the first step, each value is outside the range
    norms = [np.linalg.norm(step["gradients"]["value.0.weight"]) for step in steps[:3]]
    print(f"gradient of the value's weights in the first three steps of an update: {norms}")


def torchrl_loss():
    """The critic's loss is smooth L1 unless it is named, and advantages are used as they are."""
    from torchrl.objectives import ClipPPOLoss

    print_defaults(ClipPPOLoss.__init__, "loss_critic_type", "normalize_advantage", "clip_value")


def tianshou_gradient_clip():
    """max_grad_norm is None unless it is given."""
    from tianshou.algorithm import PPO

    print_defaults(PPO.__init__, "max_grad_norm", "value_clip")


def rllib_advantages():
    """Advantages are normalized over the rollout and one row more for each episode, which is masked later."""
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner

    class Learner(PPOTorchLearner):
        def compute_loss_for_module(self, *, batch, **more):
            real, advantages = batch["loss_mask"], batch["advantages"]
            mean, std = advantages[real].mean(), advantages[real].std(correction=0)
            print(f"{int(real.sum())} steps and {int((~real).sum())} rows more: mean {mean:.3f}, std {std:.3f}")
            return super().compute_loss_for_module(batch=batch, **more)

    config = PPOConfig().environment("CartPole-v1").env_runners(num_env_runners=0).learners(num_learners=0)
    config.training(train_batch_size_per_learner=256, minibatch_size=None, num_epochs=1, learner_class=Learner)
    algorithm = config.build_algo()
    for _ in range(5):
        algorithm.train()
    algorithm.stop()


def rllib_time_limit():
    """The value of the last observation follows a time limit: it is in a row of its own after the episode's steps."""
    from ray.rllib.utils.postprocessing.value_predictions import compute_value_targets

    rewards, values, limit = np.zeros(3), np.array([0.0, 0.0, 100.0]), np.array([0.0, 1.0, 0.0])
    targets = compute_value_targets(values, rewards, np.zeros(3), limit, gamma=0.9, lambda_=1.0)
    print("targets of two steps without reward, before an observation that is worth 100:", targets[:2])


def rllib_value_clip():
    """vf_clip_param, 10 by default, limits the squared error: where it is larger, the critic learns nothing."""
    import rllib_
    import vectors

    inputs = next(case["inputs"] for case in vectors.load() if case["name"] == "update, Discrete")
    value = inputs["weights"]["value.0.weight"][0] + inputs["weights"]["value.0.bias"]
    for error in (3.1, 3.2):
        inputs["batch"]["returns"] = value - error
        gradient = rllib_.update(inputs, use_kl_loss=False)["steps"][0]["gradients"]["value.0.weight"]
        print(f"all values are off by {error}: the norm of their gradients is {np.linalg.norm(gradient):.3g}")


if __name__ == "__main__":
    shows = {name: show for name, show in globals().items() if name.startswith(("sb3", "rsl", "skrl", "t", "rllib"))}
    shows = {name: show for name, show in shows.items() if inspect.isfunction(show)}
    if sys.argv[1:2] == [] or sys.argv[1] not in shows:
        sys.exit("which one? " + ", ".join(shows))
    shows[sys.argv[1]]()
