"""An environment that follows a script, so that a training can be replayed whatever its random numbers were.

Each of the environments shows a new one-hot vector at each step. Rewards and ends follow from the number of vectors
shown. Ends are true ends and time limits, in the middle of a rollout and at its border. What happened is logged.
"""

from functools import partial
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
ACTION_SPACES = {
    "discrete": gym.spaces.Discrete(3),
    "pictures": gym.spaces.Discrete(3),
    "gaussian": gym.spaces.Box(-1, 1, (2,), np.float32),
    "multidiscrete": gym.spaces.MultiDiscrete([2, 3]),
}


class ScriptedEnv(gym.Env):
    """`log` has ("reset", vector, height) and ("step", action, reward, terminated, truncated, vector, height), where a
    vector is the number of the component that isn't 0, and height its value: 1, but for one outlier, which normalized
    observations have to clip. One reward is an outlier, too. Observations of "pictures" are bytes, 255 in place of 1.
    `made` are all environments since makers() was called."""

    made: ClassVar[list] = []

    def __init__(self, kind="discrete", num_envs=HYPER["num_envs"], outliers=False):
        self.outliers = outliers
        self.width = num_envs * SHOWN
        self.number = 0
        self.shown = 0
        self.log = []
        self.made.append(self)
        self.action_space = ACTION_SPACES[kind]
        self.observation_space = gym.spaces.Box(0, 1, (self.width,), np.float32)
        if kind == "pictures":
            self.observation_space = gym.spaces.Box(0, 255, (self.width,), np.uint8)

    def show(self, *event):
        """The next vector; what happened goes to the log with it."""
        self.shown += 1
        is_outlier = self.outliers and self.shown == 50 + self.number
        vector, height = self.number * SHOWN + self.shown % SHOWN, 50.0 if is_outlier else 1.0
        self.log.append((*event, vector, height))
        observation = one_hot([(vector, height)], self.width)[0] * self.observation_space.high[0]
        return observation.astype(self.observation_space.dtype)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if not self.log:  # numbered in the order of first use: some libraries make one more to look at
            self.number = sum(len(env.log) > 0 for env in self.made) % (self.width // SHOWN)
        return self.show("reset"), {}

    def step(self, action):
        moment = 3 * (self.shown + 1) + 5 * self.number
        is_outlier = self.outliers and self.shown == 59 + self.number
        reward = 1000.0 if is_outlier else ((37 * moment) % 23) / 7.0 - 1.5
        terminated = moment % 11 == 4
        truncated = moment % 13 == 6 and not terminated
        observation = self.show("step", np.array(action).tolist(), reward, terminated, truncated)
        return observation, reward, terminated, truncated, {}

    def action_masks(self):
        """Which values of the components of a MultiDiscrete action are allowed."""
        return mask_of([self.log[-1][-2]])[0]


def makers(kind="discrete", num_envs=HYPER["num_envs"], outliers=False):
    """Functions that make the environments, for a vector of them. What was logged before is forgotten."""
    ScriptedEnv.made.clear()
    return [partial(ScriptedEnv, kind, num_envs, outliers)] * num_envs


def make_vector(kind="discrete", num_envs=HYPER["num_envs"], mode=gym.vector.AutoresetMode.SAME_STEP):
    """Gymnasium's vector of them."""
    return gym.vector.SyncVectorEnv(makers(kind, num_envs), autoreset_mode=mode)


def logs():
    """What happened in each environment."""
    return [env.log for env in ScriptedEnv.made if len(env.log) > 1]


def one_hot(vectors, width):
    rows = np.zeros((len(vectors), width), np.float32)
    for row, (vector, height) in zip(rows, vectors):
        row[int(vector)] = height
    return rows


def mask_of(vectors):
    """Masks (M, 5) for MultiDiscrete([2, 3]): at odd vectors, a value of the second component is not allowed."""
    vectors = np.asarray(vectors)
    masks = np.ones((len(vectors), 5), bool)
    odd = np.flatnonzero(vectors % 2)
    masks[odd, 2 + vectors[odd] % 3] = False
    return masks


gym.register("Scripted-v0", ScriptedEnv)
