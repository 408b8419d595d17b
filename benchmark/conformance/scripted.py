"""Environments that follow a script, so that a training can be replayed whatever its random numbers were.

Each of the 4 environments shows a new one-hot vector at each step. Rewards and ends follow from the count of vectors
shown; ends are true ends and time limits, in the middle of a rollout and at its border. What happened is logged.
"""

from typing import ClassVar

import gymnasium as gym
import numpy as np

# A rollout has 8 steps of 4 environments. The learning rate is large, so that ratios and values leave the clip range;
# for networks with hidden layers it may be smaller
HYPER = {
    "num_envs": 4, "num_steps": 8, "updates": 20, "epochs": 3, "minibatches": 4, "learning_rate": 0.05, "gamma": 0.97,
    "gae_lambda": 0.9, "clip_coef": 0.2, "ent_coef": 0.02, "vf_coef": 0.5, "max_grad_norm": 0.5, "adam_eps": 1e-5,
    "annealed": True,
}  # fmt: skip
SHOWN = 16  # vectors of each environment; more than a rollout shows, so that within one each is seen once


class Script:
    """One environment, without any library. `log` has ("reset", vector, height) and ("step", action, reward,
    terminated, truncated, vector, height), where a vector is the number of the component that isn't 0, and height its
    value: 1, but for one outlier, which normalized observations have to clip. A reward is an outlier, too. ("late
    reset", vector, height) is a step of the vector that only began an episode."""

    def __init__(self, number, outliers=False):
        self.number = number
        self.outliers = outliers
        self.shown = 0
        self.log = []

    def show(self):
        self.shown += 1
        height = 50.0 if self.outliers and self.shown == 120 + self.number else 1.0
        return self.number * SHOWN + self.shown % SHOWN, height

    def reset(self, event="reset"):
        vector = self.show()
        self.log.append((event, *vector))
        return vector

    def step(self, action):
        vector = self.show()
        moment = 3 * self.shown + 5 * self.number
        reward = ((37 * moment) % 23) / 7.0 - 1.5
        if self.outliers and self.shown == 140 + self.number:
            reward = 1000.0
        terminated = moment % 11 == 4
        truncated = moment % 13 == 6 and not terminated
        self.log.append(("step", np.array(action).tolist(), reward, terminated, truncated, *vector))
        return vector, reward, terminated, truncated


class ScriptedEnv(gym.Env):
    """A script as a Gymnasium environment. `scripts` are of all that were made; empty it before a recording."""

    scripts: ClassVar[list] = []

    def __init__(self, kind="discrete", num_envs=HYPER["num_envs"], outliers=False):
        self.width = num_envs * SHOWN
        self.script = Script(0, outliers)
        self.scripts.append(self.script)
        self.observation_space = gym.spaces.Box(0, 1, (self.width,), np.float32)
        self.action_space = {
            "discrete": gym.spaces.Discrete(3),
            "gaussian": gym.spaces.Box(-1, 1, (2,), np.float32),
            "multidiscrete": gym.spaces.MultiDiscrete([2, 3]),
        }[kind]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if not self.script.log:  # numbered in the order of first use: some libraries make one more to look at
            self.script.number = sum(len(script.log) > 0 for script in self.scripts) % (self.width // SHOWN)
        return one_hot([self.script.reset()], self.width)[0], {}

    def step(self, action):
        vector, reward, terminated, truncated = self.script.step(action)
        return one_hot([vector], self.width)[0], reward, terminated, truncated, {}

    def action_masks(self):
        """Of the multidiscrete script: which values of its components are allowed."""
        return mask_of([self.script.log[-1][-2]])[0]

    @classmethod
    def logs(cls):
        return [script.log for script in cls.scripts if len(script.log) > 1]


class ScriptedVector:
    """Scripts that are stepped together. One whose episode ends is reset in the same step; or late, in the next one,
    which does nothing else."""

    def __init__(self, num_envs=HYPER["num_envs"], late=False):
        self.scripts = [Script(number) for number in range(num_envs)]
        self.width = num_envs * SHOWN
        self.late = late
        self.ended = np.zeros(num_envs, bool)

    def reset(self):
        return one_hot([script.reset() for script in self.scripts], self.width)

    def step(self, actions):
        """Observations (N, D), rewards, terminated, truncated (N,), and the observations before any reset (N, D)."""
        results = []
        for script, action, ended in zip(self.scripts, actions, self.ended):
            if self.late and ended:
                results.append((script.reset("late reset"), 0.0, False, False))
            else:
                results.append(script.step(action))
        last = [result[0] for result in results]
        rewards, terminated, truncated = (np.array([result[i] for result in results]) for i in (1, 2, 3))
        following = list(last)
        self.ended = terminated | truncated
        for n in np.flatnonzero(self.ended & ~self.late):
            following[n] = self.scripts[n].reset()
        return one_hot(following, self.width), rewards, terminated, truncated, one_hot(last, self.width)

    def logs(self):
        return [script.log for script in self.scripts]


def one_hot(vectors, width):
    rows = np.zeros((len(vectors), width), np.float32)
    for row, (vector, height) in zip(rows, vectors):
        row[vector] = height
    return rows


def mask_of(vectors):
    """Masks (M, 5) for MultiDiscrete([2, 3]): at odd vectors, a value of the second component is not allowed."""
    vectors = np.asarray(vectors)
    masks = np.ones((len(vectors), 5), bool)
    odd = np.flatnonzero(vectors % 2)
    masks[odd, 2 + vectors[odd] % 3] = False
    return masks


gym.register("Scripted-v0", ScriptedEnv)
