"""Small environments for the tests. In a process of its own, a script takes them as `--env-id environments:Counter-v0`
with tests/ on PYTHONPATH."""

import gymnasium as gym
import numpy as np


class Counter(gym.Env):
    """Observes the number of steps in the episode: 0, 1, … The reward is the action, counted from 0."""

    def __init__(self, length=None, start=0, observation_space=None, render_mode=None):
        self.length = length  # of an episode that ends by itself; None for one that only a time limit ends
        self.observation_space = observation_space or gym.spaces.Box(0, np.inf, (1,))
        self.action_space = gym.spaces.Discrete(2, start=start)
        self.observation = np.zeros(self.observation_space.shape, self.observation_space.dtype)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return self.observe(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.count += 1
        return self.observe(), float(action - self.action_space.start), self.count == self.length, False, {}

    def observe(self):
        self.observation[:] = self.count  # the same array each time, as in some environments
        return self.observation


class Random(gym.Env):
    """Observations and rewards are noise; one step in eight is a true end, one in eight a time limit."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space = gym.spaces.Discrete(3)

    def __init__(self, render_mode=None):
        pass

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        return self.observe(), {}

    def step(self, action):
        end = self.np_random.integers(8)
        return self.observe(), self.np_random.normal(), bool(end == 0), bool(end == 1), {}

    def observe(self):
        return self.np_random.normal(size=3).astype(np.float32)


class Broken(Counter):
    """A counter whose observations turn NaN after 20 steps."""

    def observe(self):
        return super().observe() + np.float32(np.nan if self.count > 20 else 0)


gym.register("Counter-v0", Counter, kwargs={"length": 8})
gym.register("LimitedCounter-v0", Counter, max_episode_steps=8)  # the same, but cut by a time limit
gym.register("EndAtLimit-v0", Counter, max_episode_steps=8, kwargs={"length": 8})  # a true end at the time limit
gym.register("Endless-v0", Counter)
gym.register("Offset-v0", Counter, kwargs={"length": 8, "start": 2})  # the actions are 2 and 3
gym.register(
    "Grid-v0", Counter, max_episode_steps=8, kwargs={"observation_space": gym.spaces.Box(0, 255, (2, 3), np.uint8)}
)
gym.register("Random-v0", Random)
gym.register("Broken-v0", Broken)
