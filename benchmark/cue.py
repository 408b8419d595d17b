"""The smallest task that needs a memory: a cue is shown for one step, and ten observations later it decides."""

import gymnasium as gym
import numpy as np


class Cue(gym.Env):
    """Observes 1 or -1 in an episode's first step and 0 in the nine others. In the last one, action 1 pays 1 if the cue
    was 1, and action 0 if it was -1. Whoever doesn't remember gets 0.5 on average."""

    observation_space = gym.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, steps=10, render_mode=None):
        self.steps = steps

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.cue = 2 * int(self.np_random.integers(2)) - 1
        self.count = 0
        return np.array([self.cue], np.float32), {}

    def step(self, action):
        self.count += 1
        is_last = self.count == self.steps
        remembers = (action == 1) == (self.cue == 1)
        return np.zeros(1, np.float32), float(is_last and remembers), is_last, False, {}


gym.register("Cue-v0", Cue)
