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


class RandomBox(Random):
    action_space = gym.spaces.Box(-1, 1, (2,))


class Careless(Random):
    """Draws from numpy's global generator, which Gymnasium doesn't seed, also when it is made."""

    def __init__(self):
        super().__init__()
        self.shift = np.random.random()

    def observe(self):
        return (self.shift + np.random.random(3)).astype(np.float32)


class Copy(gym.Env):
    """Shows random digits, one for each component of its action space, whichever that is, as one-hot vectors. Pays 1
    for each that the action repeats. Keeps all actions in `Copy.taken`, as they came."""

    taken = []  # noqa: RUF012

    def __init__(self, action_space, render_mode=None):
        self.action_space = action_space
        values = 2 if isinstance(action_space, gym.spaces.MultiBinary) else getattr(action_space, "nvec", None)
        self.nvec = np.full(action_space.shape, action_space.n if values is None else values).ravel()
        self.observation_space = gym.spaces.Box(0, 1, (int(self.nvec.sum()),), np.float32)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return self.observe(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        Copy.taken.append(action)
        self.count += 1
        right = np.ravel(action - getattr(self.action_space, "start", 0)) == self.digits
        return self.observe(), float(right.sum()), self.count == 16, False, {}

    def observe(self):
        self.digits = self.np_random.integers(self.nvec)
        return np.concatenate([np.eye(n)[digit] for n, digit in zip(self.nvec, self.digits)]).astype(np.float32)


class WrongMask(Counter):
    """A counter whose mask allows no first component."""

    def __init__(self, render_mode=None):
        super().__init__()
        self.action_space = gym.spaces.MultiDiscrete([2, 3])

    def reset(self, seed=None, options=None):
        observation, _ = super().reset(seed, options)
        return observation, {"action_mask": [0, 0, 1, 0, 1]}


gym.register("Counter-v0", Counter, kwargs={"length": 8})
gym.register("LimitedCounter-v0", Counter, max_episode_steps=8)  # the same, but cut by a time limit
gym.register("EndAtLimit-v0", Counter, max_episode_steps=8, kwargs={"length": 8})  # a true end at the time limit
gym.register("Endless-v0", Counter)
gym.register("Offset-v0", Counter, kwargs={"length": 8, "start": 2})  # the actions are 2 and 3
gym.register(
    "Grid-v0", Counter, max_episode_steps=8, kwargs={"observation_space": gym.spaces.Box(0, 255, (2, 3), np.uint8)}
)
gym.register("Random-v0", Random)
gym.register("RandomBox-v0", RandomBox)
gym.register("Careless-v0", Careless)
gym.register("WrongMask-v0", WrongMask)
for name, space in {
    "Discrete": gym.spaces.Discrete(3, start=2),
    "MultiBinary": gym.spaces.MultiBinary(4),
    "MultiBinaryTable": gym.spaces.MultiBinary((2, 3)),
    "MultiDiscrete": gym.spaces.MultiDiscrete([2, 4, 3]),
    "MultiDiscreteTable": gym.spaces.MultiDiscrete([[2, 3, 2], [4, 1, 2]], start=[[0, 5, -1], [1, 0, 2]]),
}.items():
    gym.register(f"Copy{name}-v0", Copy, kwargs={"action_space": space})
