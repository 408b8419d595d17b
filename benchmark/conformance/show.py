"""The differences of the matrix one by one, in a few lines each, without vectors or replays.

    .venv/conformance/skrl/bin/python benchmark/conformance/show.py skrl_time_limit

matrix.py makes the virtual environments. Each function prints what it sees.
"""

import sys

import numpy as np
import torch


def sb3_value_clip():
    """clip_range_vf: the loss is that of the clipped value alone, so that its gradient is 0 outside the range."""
    from stable_baselines3.ppo import PPO

    model = PPO("MlpPolicy", "CartPole-v1", n_steps=64, batch_size=64, n_epochs=1, clip_range_vf=1e-9, ent_coef=0.0)
    norms = []
    weight = model.policy.value_net.weight
    model.policy.optimizer.register_step_pre_hook(lambda *_: norms.append(float(weight.grad.norm())))
    model.learn(64)
    old = model.rollout_buffer
    old.values[:] += 1.0  # now each value is outside the range
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
    import details
    import rsl_rl_

    for row in details.report(rsl_rl_.record(normalizes=True, scale=5.0, shift=3.0)):
        if row.detail == "first ratio is 1":
            print(rsl_rl_.NAME, row.detail, row.verdict, row.note)


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
    import scripted

    step = rsl_rl_.record(**{})["steps"][0]["gradients"]
    norms = {part: np.sqrt(sum((step[n] ** 2).sum() for n in step if n.startswith("value") == (part == "critic")))
             for part in ("actor", "critic")}  # fmt: skip
    print(f"norms {norms}, together {np.hypot(*norms.values()):.3f}; max_grad_norm {scripted.HYPER['max_grad_norm']}")


def rsl_rl_time_limit():
    """At a time limit, the value of the observation before the step is added, not that of the one after it."""
    import scripted
    from rsl_rl_ import TensorDict, make

    ppo = make(scripted.HYPER, False, {})
    rows = TensorDict({"policy": torch.randn(4, ppo.critic.mlp.in_features)}, [4])
    ppo.act(rows)
    values = ppo.transition.values.flatten()
    ppo.process_env_step(rows, torch.zeros(4), torch.ones(4), {"time_outs": torch.ones(4)})
    print("added, in units of gamma times the value before the step:", ppo.storage.rewards[0].flatten() / values / 0.97)


def skrl_time_limit():
    """The default takes a time limit for no end: the next episode's value and advantages flow back into this one."""
    from skrl.agents.torch.ppo.ppo import compute_gae

    def first_advantage(reward_after, bootstrap):
        """Of two steps, between which a time limit ends an episode. The second's reward is the next episode's."""
        column = torch.tensor([[0.0], [0.0], [0.0]])
        rewards, no = torch.tensor([[0.0], [0.0], [reward_after]]), torch.zeros(3, 1, dtype=torch.bool)
        limit = torch.tensor([[True], [False], [False]])
        returns, _ = compute_gae(rewards=rewards, terminated=no, truncated=limit, values=column,
                                 last_values=torch.zeros(1), time_limit_bootstrap=bootstrap)  # fmt: skip
        return returns[0].item()

    for bootstrap in (False, True):
        changes = first_advantage(100.0, bootstrap) - first_advantage(0.0, bootstrap)
        print(f"time_limit_bootstrap={bootstrap}: 100 more in the next episode add {changes:.1f} to this one's return")


def skrl_ratio():
    """With RunningStandardScaler, statistics change while the first epoch learns: the first ratio isn't 1."""
    import details
    import skrl_

    for row in details.report(skrl_.record(**skrl_.SCALER, scale=5.0, shift=3.0)):
        if row.detail == "first ratio is 1":
            print(skrl_.NAME, row.detail, row.verdict, row.note)


def skrl_value_clip():
    """value_clip: as stable-baselines3's, the loss is that of the clipped value alone."""
    import skrl_

    steps = skrl_.record(value_clip=1e-9)["steps"]  # after the first step, each value is outside the range
    norms = [np.linalg.norm(step["gradients"]["value.0.weight"]) for step in steps[:3]]
    print(f"gradient of the value's weights in the first three steps of an update: {norms}")


def torchrl_loss():
    """The critic's loss is smooth L1 unless it is named, and advantages are used as they are."""
    import inspect

    from torchrl.objectives import ClipPPOLoss

    parameters = inspect.signature(ClipPPOLoss.__init__).parameters
    print({name: parameters[name].default for name in ("loss_critic_type", "normalize_advantage", "clip_value")})


def tianshou_gradient_clip():
    """max_grad_norm is None unless it is given."""
    import inspect

    from tianshou.algorithm import PPO

    parameters = inspect.signature(PPO.__init__).parameters
    print({name: parameters[name].default for name in ("max_grad_norm", "value_clip")})


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


def std_at_usual_sizes():
    """How much the sample standard deviation changes advantages, by the minibatch's size."""
    for M in (8, 64, 128, 256):
        print(f"minibatch of {M}: advantages are {1 - np.sqrt((M - 1) / M):.2%} smaller")


if __name__ == "__main__":
    sys.path[:0] = [__file__.rpartition("/")[0] or ".", (__file__.rpartition("/")[0] or ".") + "/adapters"]
    shows = {name: show for name, show in globals().items() if getattr(show, "__doc__", None) and name.islower()}
    shows = {name: show for name, show in shows.items() if callable(show)}
    if sys.argv[1:2] == [] or sys.argv[1] not in shows:
        sys.exit("which one? " + ", ".join(shows))
    shows[sys.argv[1]]()
