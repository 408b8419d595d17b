"""Classic tasks that show positions only: how fast things move, the agent has to find out from what it saw before."""

from functools import partial

import gymnasium as gym


def make(env_id, shown, stack=1, **options):
    env = gym.make(env_id, **options)
    space = env.observation_space
    positions = gym.spaces.Box(space.low[shown], space.high[shown])
    env = gym.wrappers.TransformObservation(env, lambda observation: observation[shown], positions)
    return gym.wrappers.FrameStackObservation(env, stack)  # the last few observations; 1: only the newest


gym.register("CartPoleNoVelocity-v0", partial(make, "CartPole-v1", [0, 2]))
gym.register("PendulumNoVelocity-v0", partial(make, "Pendulum-v1", [0, 1]))
gym.register("MountainCarContinuousNoVelocity-v0", partial(make, "MountainCarContinuous-v0", [0]))
