"""An Atari game that follows a script, for the details of preprocessing, and what an agent sees of it.

Nothing moves before FIRE. From then on the game counts its raw frames: their pictures, rewards and lost lives follow
from the count, so that no random number of no-ops changes them.
"""

from types import SimpleNamespace

import ale_py
import gymnasium as gym
import numpy as np

LOST_AT = (37, 61)  # raw frames at which one of three lives is lost
OVER_AT = 86
ACTIONS = [3, 2, 3, 3, 2, 2] * 4  # of the agent, each for 4 raw frames


class Game(ale_py.AtariEnv):
    """The parts of ale-py's interface that wrappers use. `begun` has the raw actions of every game."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}  # noqa: RUF012
    spec = None
    _frameskip = 1
    begun = []  # noqa: RUF012

    def __init__(self, frameskip=1, obs_type="rgb", render_mode=None):
        self.colors = obs_type == "rgb"
        self.observation_space = gym.spaces.Box(0, 255, (210, 160, 3) if self.colors else (210, 160), np.uint8)
        self.action_space = gym.spaces.Discrete(4)
        self.render_mode = render_mode
        self.ale = SimpleNamespace(lives=self.lives, getScreenGrayscale=self.draw)

    def get_action_meanings(self):
        return ["NOOP", "FIRE", "RIGHT", "LEFT"]

    def lives(self):
        return 0 if self.frame >= OVER_AT else 3 - sum(self.frame >= lost for lost in LOST_AT)

    def draw(self, buffer):
        y, x = np.mgrid[:210, :160]
        buffer[:] = (y + x + 31 * self.frame) % 256 // 2 + 60 * (self.frame % 2)

    def observe(self):
        picture = np.zeros((210, 160), np.uint8)
        self.draw(picture)
        return np.repeat(picture[..., None], 3, -1) if self.colors else picture

    def reset(self, *, seed=None, options=None):
        gym.Env.reset(self, seed=seed)
        self.frame, self.fired = 0, False
        self.begun.append([])
        return self.observe(), {}

    def step(self, action):
        self.begun[-1].append(int(action))
        self.fired = self.fired or action == 1
        self.frame += self.fired
        return self.observe(), 3.0 * (self.frame % 5 == 0 and self.fired), self.frame >= OVER_AT, False, {}


gym.register("ScriptedGame-v0", Game)


def play(reset, step) -> dict:
    """Plays a game, and four more that are only begun. reset(seed) gives an observation (84, 84, 4); step(action),
    that, a reward and whether the episode ended."""
    Game.begun.clear()
    stacks, rewards, dones = [reset(1)], [], []
    for action in ACTIONS:
        stack, reward, done = step(action)
        stacks.append(stack)
        rewards.append(float(reward))
        dones.append(float(done))
        if len(Game.begun) > 1:
            break
    first = Game.begun[0]
    for seed in range(2, 6):
        reset(seed)
    openings = [game.index(1) for game in Game.begun if 1 in game]
    # Some number of no-ops, from 1 to 30, that differs between games
    allowed = all(0 < count < 31 and not any(game[:count]) for count, game in zip(openings, Game.begun))
    start = openings[0] if 1 in first else 0
    # FIRE and RIGHT, for 4 raw frames each or for one
    fired = first[start : start + 8] == [1, 1, 1, 1, 2, 2, 2, 2] or first[start : start + 2] == [1, 2]
    return {
        "no-ops": np.array([float(allowed and len(set(openings)) > 1)]),
        "FIRE": np.array([float(fired)]),
        "raw actions": np.array(first[start + 8 : start + 24], float),
        "lives": np.array([*dones, len(rewards)]),
        "rewards": np.array(rewards),
        "frames": np.array([stacks[t][::12, ::12] for t in (4, 5, 6)], float),
    }
