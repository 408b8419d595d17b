"""Classic tasks that show positions only: how fast things move, the agent has to find out from what it saw before."""

from functools import partial

import gymnasium as gym


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


def make(env_id, shown, stack=1, hold=1, **options):
    env = gym.make(env_id, **options)
    env = HoldAction(env, hold)
    space = env.observation_space
    positions = gym.spaces.Box(space.low[shown], space.high[shown], dtype=space.dtype)
    env = gym.wrappers.TransformObservation(env, lambda observation: observation[shown], positions)
    return gym.wrappers.FrameStackObservation(env, stack)  # the last few observations; 1: only the newest


gym.register("CartPoleNoVelocity-v0", partial(make, "CartPole-v1", [0, 2]))
# Noise that changes in each step hardly ever swings the pole up or brings the car up the hill: actions are held
gym.register("PendulumNoVelocity-v0", partial(make, "Pendulum-v1", [0, 1], hold=2))
gym.register("MountainCarContinuousNoVelocity-v0", partial(make, "MountainCarContinuous-v0", [0], hold=5))
gym.register("HalfCheetahNoVelocity-v0", partial(make, "HalfCheetah-v4", list(range(8))))
