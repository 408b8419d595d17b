"""Classic tasks that show positions only: how fast things move, the agent has to find out from what it saw before."""

from functools import partial

import gymnasium as gym
import numpy as np


class HoldAction(gym.Wrapper):
    """Takes each action for a few steps, whose rewards are summed up."""

    def __init__(self, env, steps):
        super().__init__(env)
        self.steps = steps

    def step(self, action):
        total = 0.0
        for _ in range(self.steps):
            observation, reward, terminated, truncated, info = self.env.step(action)
            total += reward
            if terminated or truncated:
                break
        return observation, total, terminated, truncated, info


def make(env_id, shown, scale=1, reward_scale=1, stack=1, hold=1, **options):
    env = gym.make(env_id, **options)
    env = HoldAction(env, hold)
    env = gym.wrappers.TransformReward(env, lambda reward: reward_scale * reward)
    space = env.observation_space
    scale = np.array(scale, np.float32)
    positions = gym.spaces.Box(space.low[shown] * scale, space.high[shown] * scale)
    env = gym.wrappers.TransformObservation(env, lambda observation: observation[shown] * scale, positions)
    return gym.wrappers.FrameStackObservation(env, stack)  # the last few observations; 1: only the newest


# In a step, a balanced pole turns by hundredths of a radian, and its cart moves by as little. Values of up to 100 would
# drown the policy in a network for both
cart_pole = partial(make, "CartPole-v1", [0, 2], scale=[4, 20], reward_scale=0.02)
gym.register("CartPoleNoVelocity-v0", cart_pole)
# Noise that changes in each step hardly ever brings the car up the hill, and a pendulum up only later
gym.register("PendulumNoVelocity-v0", partial(make, "Pendulum-v1", [0, 1], hold=2))
gym.register("MountainCarContinuousNoVelocity-v0", partial(make, "MountainCarContinuous-v0", [0], hold=5))
gym.register("HalfCheetahNoVelocity-v0", partial(make, "HalfCheetah-v4", list(range(8))))
