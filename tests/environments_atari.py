"""Games for the tests of the pixel scripts: one with the emulator's interface, whose every frame, reward and life is
known, and small tasks of 84×84 frames."""

from types import SimpleNamespace

import ale_py
import gymnasium as gym
import numpy as np


class FakeAtari(ale_py.AtariEnv):
    """A game with the parts of ale-py's interface that the script uses. `log` holds the raw actions since the game
    began, `games` every log so far, `made` the instances that have been reset. Raw frame k shows the brightness
    `screen(k)`; a raw step pays `pay(k)`."""

    observation_space = gym.spaces.Box(0, 255, (210, 160), np.uint8)
    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}  # noqa: RUF012
    _frameskip = 1
    made = []  # noqa: RUF012 (the test has no other hold of the instances)

    def __init__(self, losses=(), lives=1, screen=lambda k: k % 256, pay=lambda k: 0.0, fire=True, limit=None,
                 linger=0, render_mode=None, frameskip=4, obs_type="rgb"):  # fmt: skip
        self.losses, self.start_lives, self.screen, self.pay = losses, lives, screen, pay
        self.limit, self.linger, self.render_mode = limit, linger, render_mode
        self.options = frameskip, obs_type  # those of AtariEnv, which this game only takes down
        self.meanings = ["NOOP", "FIRE", "RIGHT", "LEFT"] if fire else ["NOOP", "UP", "RIGHT", "LEFT"]
        self.action_space = gym.spaces.Discrete(4)
        self.games, self.lives = [], 0
        self.ale = SimpleNamespace(lives=lambda: self.lives, getScreenGrayscale=self.draw)

    def draw(self, buffer):
        buffer[:] = self.screen(len(self.log))

    def get_action_meanings(self):
        return self.meanings

    def reset(self, seed=None, options=None):
        gym.Env.reset(self, seed=seed)
        self.log, self.lives = [], self.start_lives
        self.made += [] if self.games else [self]
        self.games.append(self.log)
        return self.observe(), {}

    def step(self, action):
        self.log.append(int(action))
        frame = len(self.log)
        self.lives -= frame in self.losses
        last_loss = self.losses[-1] if self.losses else np.inf
        over = self.lives == 0 and frame >= last_loss + self.linger  # some games show no life for a while before
        return self.observe(), self.pay(frame), over, not over and frame == self.limit, {}

    def observe(self):
        return np.full((210, 160), self.screen(len(self.log)), np.uint8)

    def render(self):
        return np.full((210, 160, 3), self.screen(len(self.log)), np.uint8)


class Pixels(gym.Env):
    """84×84 frames with no emulator below them."""

    observation_space = gym.spaces.Box(0, 255, (84, 84), np.uint8)
    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}  # noqa: RUF012

    def __init__(self, render_mode=None):
        self.render_mode, self.frame = render_mode, np.zeros((84, 84), np.uint8)

    def render(self):
        return np.repeat(self.frame[:, :, None], 3, 2)


class Noise(Pixels):
    """Frames and rewards are noise; one step in eight is a true end, one in eight a time limit."""

    action_space = gym.spaces.Discrete(3)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        return self.observe(), {}

    def step(self, action):
        end = self.np_random.integers(8)
        return self.observe(), self.np_random.normal() * 3, bool(end == 0), bool(end == 1), {}

    def observe(self):
        self.frame[:] = self.np_random.integers(0, 256, (84, 84), np.uint8)
        return self.frame  # the same array each time, as in some environments


class Picture(gym.Env):
    """Noise of any shape; an episode has 5 steps, and each pays 3.5."""

    action_space = gym.spaces.Discrete(3)
    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}  # noqa: RUF012

    def __init__(self, shape=(60, 80, 3), render_mode=None):
        self.observation_space = gym.spaces.Box(0, 255, tuple(shape), np.uint8)
        self.render_mode = render_mode

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return self.draw(), {}

    def step(self, action):
        self.count += 1
        return self.draw(), 3.5, self.count == 5, False, {}

    def draw(self):
        self.picture = self.np_random.integers(0, 256, self.observation_space.shape, np.uint8)
        return self.picture

    def render(self):
        return np.full((60, 80, 3), 50 * self.count, np.uint8)


class Catch(Pixels):
    """A ball falls from the top, a row of 12 pixels a step; the paddle in the lowest row moves left, stays or moves
    right, 12 pixels a step. The return is 3 for a ball that is caught, and -3 for one that is missed."""

    action_space = gym.spaces.Discrete(3)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.row, self.ball, self.paddle = 0, *self.np_random.integers(7, size=2)
        return self.draw(), {}

    def step(self, action):
        self.row, self.paddle = self.row + 1, min(max(self.paddle + int(action) - 1, 0), 6)
        over = self.row == 6
        return self.draw(), (3.0 if self.ball == self.paddle else -3.0) if over else 0.0, over, False, {}

    def draw(self):
        self.frame = np.zeros((84, 84), np.uint8)
        for row, column in ((self.row, self.ball), (6, self.paddle)):
            self.frame[12 * row : 12 * row + 12, 12 * column : 12 * column + 12] = 255
        return self.frame


class Cue(Pixels):
    """The first frame, left or right half bright, tells which of two actions is right; the other frames are black. Each
    of the last 4 of 8 steps pays +1 for the right action and -1 for the wrong one: more than 4 frames after the cue."""

    action_space = gym.spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.count, self.right, self.frame = 0, int(self.np_random.integers(2)), np.zeros((84, 84), np.uint8)
        self.frame[:, 42 * self.right : 42 * self.right + 42] = 255
        return self.frame, {}

    def step(self, action):
        self.count, self.frame = self.count + 1, np.zeros((84, 84), np.uint8)
        reward = (1.0 if action == self.right else -1.0) if self.count > 4 else 0.0
        return self.frame, reward, self.count == 8, False, {}


class Clock(Pixels):
    """A frame's gray level is 20 times the number of steps in the episode; a time limit cuts it after 5. No rewards."""

    action_space = gym.spaces.Discrete(3)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return self.draw(), {}

    def step(self, action):
        self.count += 1
        return self.draw(), 0.0, False, self.count == 5, {}

    def draw(self):
        self.frame = np.full((84, 84), 20 * self.count, np.uint8)
        return self.frame


gym.register("FakeAtari-v0", FakeAtari)
gym.register("Noise-v0", Noise)
gym.register("Picture-v0", Picture)
gym.register("Catch-v0", Catch)
gym.register("Cue-v0", Cue)
gym.register("Clock-v0", Clock)
