"""More small environments, for the tests of the command line, the run folder, resume and learning."""

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
    """From the 160th step of all of them on, an observation or a reward is no longer a number that can be learned from;
    a blink is one observation alone."""

    steps = 0

    def __init__(self, what, value, render_mode=None):
        self.what, self.value = what, value

    def reset(self, seed=None, options=None):
        observation, info = super().reset(seed=seed)
        return np.full(2, self.value) if self.what == "obs" and Spoiled.steps >= 160 else observation, info

    def step(self, action):
        Spoiled.steps += 1
        observation, reward, *ends = super().step(action)
        if self.what == "reward" and Spoiled.steps >= 160:
            reward = self.value
        elif (self.what == "obs" and Spoiled.steps >= 160) or (self.what == "blink" and Spoiled.steps == 160):
            observation = np.full(2, self.value)
        return observation, reward, *ends


class MultiDiscrete(Constant):
    action_space = gym.spaces.MultiDiscrete([2, 3])

    def __init__(self, render_mode=None):
        pass


class NoPicture(Constant):
    """Has a renderer that draws nothing."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}  # noqa: RUF012

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def render(self):
        return None


class NeedsRenderer(NoPicture):
    """Draws with a package that is not installed."""

    def render(self):
        import no_such_renderer  # noqa: F401


class FailingReset(Constant):
    def reset(self, seed=None, options=None):
        raise RuntimeError("no simulator")


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


class Worn(Random):
    """The more episodes one has begun, the larger are its observations, whatever the seed."""

    episodes = 0

    def reset(self, seed=None, options=None):
        self.episodes += 1
        return super().reset(seed, options)

    def observe(self):
        return super().observe() * np.float32(1.01**self.episodes)


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


class Signpost(gym.Env):
    """Shows which of three actions is right. The answer is paid for a step later: +1 if it was right, -1 if not."""

    observation_space = gym.spaces.Box(0, 1, (3,), np.float32)
    action_space = gym.spaces.Discrete(3)

    def __init__(self, render_mode=None):
        pass

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.count, self.pay = 0, 0.0
        return self.observe(), {}

    def step(self, action):
        reward, self.pay = self.pay, 1.0 if action == self.right else -1.0
        self.count += 1
        return self.observe(), reward, self.count == 17, False, {}

    def observe(self):
        self.right = int(self.np_random.integers(3))
        return np.eye(3, dtype=np.float32)[self.right]


gym.register("Constant-v0", Constant)
for what in ("obs", "blink", "reward"):
    for name, value in (("NaN", np.nan), ("Infinite", np.inf)):
        gym.register(f"{name}-{what}-v0", Spoiled, kwargs={"what": what, "value": value})
gym.register("MultiDiscrete-v0", MultiDiscrete)
gym.register("NeedsRenderer-v0", NeedsRenderer)
gym.register("NeedsPackage-v0", "no_such_package.envs:Env")
gym.register("NoPicture-v0", NoPicture)
gym.register("FailingReset-v0", FailingReset)
gym.register("WrongShape-v0", WrongShape)
gym.register("Film-v0", Film)
gym.register("Worn-v0", Worn)
gym.register("Diary-v0", Diary)
gym.register("Signpost-v0", Signpost)
