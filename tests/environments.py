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


class Careless(Random):
    """Draws from numpy's global generator, which Gymnasium doesn't seed, also when it is made."""

    def __init__(self):
        super().__init__()
        self.shift = np.random.random()

    def observe(self):
        return (self.shift + np.random.random(3)).astype(np.float32)


class Doors(gym.Env):
    """An example where masks matter. A robot stands before 12 doors and carries 4 tools; an action is a door and a
    tool, MultiDiscrete([12, 4]). In each of an episode's 16 steps three doors are open, behind them waits work for one
    of the tools, and another tool is broken. The work pays 1, if the door is open and the tool is the right one.

    The observation shows the open doors, the right tool and the broken one. What the right tool looks like has to be
    learned; that closed doors and broken tools lead to nothing has to be learned as well, unless a mask says so.
    `offers` is how the mask is offered: by "info", by the "method" action_masks, as "rows" a component, or not at all,
    None. Who is offered a mask may not break it.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}  # noqa: RUF012
    observation_space = gym.spaces.Box(0, 1, (12 + 4 + 4,), np.float32)
    action_space = gym.spaces.MultiDiscrete([12, 4])

    def __init__(self, offers="info", render_mode=None):
        self.offers, self.render_mode = offers, render_mode
        if offers == "method":
            self.action_masks = lambda: self.mask

    @staticmethod
    def masks(observations):
        """What is allowed at observations (…, 20): (…, 16)."""
        doors, _, broken = np.split(np.asarray(observations), [12, 16], axis=-1)
        return np.concatenate([doors == 1, broken == 0], axis=-1)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return self.observe()

    def step(self, action):
        assert self.action_space.contains(action), action
        door, tool = action
        if self.offers:
            assert self.mask[door] and self.mask[12 + tool], f"{action} is not allowed by {self.mask}"
        reward = float(self.open[door] and tool == self.right)
        self.count += 1
        observation, info = self.observe()
        if self.count == 16 and self.offers:  # when the work is over, nothing is allowed
            self.mask, info = np.zeros(16, bool), {"action_mask": np.zeros(16, np.int8)}
        return observation, reward, self.count == 16, False, info

    def observe(self):
        self.open = np.zeros(12, np.float32)
        self.open[self.np_random.choice(12, 3, replace=False)] = 1
        self.right, broken = self.np_random.choice(4, 2, replace=False)
        observation = np.concatenate([self.open, np.eye(4)[self.right], np.eye(4)[broken]]).astype(np.float32)
        self.mask = self.masks(observation)
        offered = {"info": self.mask.astype(np.int8), "rows": (self.mask[:12], self.mask[12:])}
        return observation, {"action_mask": offered[self.offers]} if self.offers in offered else {}

    def render(self):
        return np.full((32, 32, 3), self.count, np.uint8)


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
gym.register("Careless-v0", Careless)
gym.register("WrongMask-v0", WrongMask)
for offers in ("info", "method", "rows", None):
    gym.register(f"Doors-{offers}-v0", Doors, kwargs={"offers": offers})
for name, space in {
    "Discrete": gym.spaces.Discrete(3, start=2),
    "MultiBinary": gym.spaces.MultiBinary(4),
    "MultiBinaryTable": gym.spaces.MultiBinary((2, 3)),
    "MultiDiscrete": gym.spaces.MultiDiscrete([2, 4, 3]),
    "MultiDiscreteTable": gym.spaces.MultiDiscrete([[2, 3, 2], [4, 1, 2]], start=[[0, 5, -1], [1, 0, 2]]),
}.items():
    gym.register(f"Copy{name}-v0", Copy, kwargs={"action_space": space})
