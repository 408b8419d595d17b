"""More small environments, for the tests of the command line, the run folder, resume and learning."""

import sys

import gymnasium as gym
import numpy as np
from environments import Random


class Constant(gym.Env):
    """Observes zeros; an episode lasts 4 steps, each of reward 1. It knows no render mode, as gymnasium allows."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.count += 1
        return np.zeros(2, np.float32), 1.0, self.count == 4, False, {}


class Spoiled(Constant):
    """From the 160th step of all of them on, the reward is no number that can be learned from."""

    steps = 0

    def __init__(self, value, render_mode=None):
        self.value = value

    def step(self, action):
        Spoiled.steps += 1
        observation, reward, *ends = super().step(action)
        return observation, self.value if Spoiled.steps >= 160 else reward, *ends


class NoPicture(Constant):
    """Has a renderer that draws nothing."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}  # noqa: RUF012

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def render(self):
        return None


class Lying(Constant):
    """Returns what it is told to, whatever its spaces say."""

    def __init__(self, observation=(0.0, 0.0), next_observation=None, reward=1.0, values=5, observation_space=None):
        self.observation = observation
        self.next_observation = observation if next_observation is None else next_observation
        self.reward = reward
        self.values = values  # that step returns
        if observation_space is not None:
            self.observation_space = observation_space

    def reset(self, seed=None, options=None):
        _, info = super().reset(seed=seed)
        return self.observation, info

    def step(self, action):
        _, _, *others = super().step(action)
        return (self.next_observation, self.reward, *others)[: self.values]


class Quitting(Constant):
    """Ends Python, as a window that is closed does, in one of its methods, once it was called so many times."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}  # noqa: RUF012
    calls = 0  # of all of them

    def __init__(self, method, after=0, render_mode=None):
        self.method = method
        self.after = after
        self.render_mode = render_mode

    def call(self, method):
        if method == self.method:
            Quitting.calls += 1
            if Quitting.calls > self.after:
                sys.exit()

    def reset(self, seed=None, options=None):
        self.call("reset")
        return super().reset(seed=seed)

    def step(self, action):
        self.call("step")
        return super().step(action)

    def render(self):
        self.call("render")
        return np.zeros((32, 32, 3), np.uint8)

    def close(self):
        self.call("close")


class FailingReset(Constant):
    def reset(self, seed=None, options=None):
        raise RuntimeError("no simulator")


class Wordless(Constant):
    def reset(self, seed=None, options=None):
        raise NotImplementedError


class WrongShape(Constant):
    """Observes three numbers where it declares two."""

    def reset(self, seed=None, options=None):
        _, info = super().reset(seed=seed)
        return np.zeros(3), info


class Film(NoPicture):
    """Pictures of an odd size, with as many bright columns as steps were taken."""

    def render(self):
        picture = np.zeros((45, 61, 3), np.uint8)
        picture[:, : 10 * self.count] = 255
        return picture


class Floats(Film):
    """Draws floats from 0 to 1."""

    def render(self):
        return super().render() / 255


class Diary(Random):
    """Keeps (steps of its life, return, length) of every episode in `episodes`, and all diaries in `Diary.written`."""

    written = []  # noqa: RUF012

    def __init__(self, render_mode=None):
        self.life, self.episodes = 0, []
        self.written.append(self)

    def reset(self, seed=None, options=None):
        self.rewards = []
        return super().reset(seed, options)

    def step(self, action):
        observation, reward, terminated, truncated, info = super().step(action)
        self.life += 1
        self.rewards.append(reward)
        if terminated or truncated:
            self.episodes.append((self.life, sum(self.rewards), len(self.rewards)))
        return observation, reward, terminated, truncated, info


gym.register("Constant-v0", Constant)
gym.register("NaN-v0", Spoiled, kwargs={"value": np.nan})
gym.register("Infinite-v0", Spoiled, kwargs={"value": np.inf})
gym.register("NoPicture-v0", NoPicture)
gym.register("Lying-v0", Lying)
gym.register("Quitting-v0", Quitting)
gym.register("FailingReset-v0", FailingReset)
gym.register("Wordless-v0", Wordless)
gym.register("WrongShape-v0", WrongShape)
gym.register("Film-v0", Film)
gym.register("Floats-v0", Floats)
gym.register("Diary-v0", Diary)
