"""A task with masks, for ppo_multidiscrete.sh: `--env-id doors:Doors-info-v0`, with benchmark/ on PYTHONPATH."""

import gymnasium as gym
import numpy as np


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


for offers in ("info", "method", "rows", None):
    gym.register(f"Doors-{offers}-v0", Doors, kwargs={"offers": offers})
