"""All scripts of cleanrl/, found by looking, and what the tests that go through all of them have to know of each."""

from pathlib import Path

import environments_atari  # noqa: F401 (registers them)

SCRIPTS = sorted(path.stem for path in Path(__file__).parents[1].glob("cleanrl/ppo*.py"))
FRAMES = [name for name in SCRIPTS if name.startswith(("ppo_atari", "ppo_procgen"))]  # what they learn from
PIXELS = {"env_id": "Noise-v0", "device": "cpu", "num_threads": 1}
GAMES = {"env_id": "Breakout-v5", "device": "cpu", "num_threads": 1, "env_threads": 1}
# The options with which a script trains on noise, or on what comes close to it: rewards and ends in each rollout
OPTIONS = {
    "ppo": {"env_id": "Random-v0"},
    "ppo_atari": PIXELS,
    "ppo_atari_envpool": GAMES,
    "ppo_atari_lstm": PIXELS,
    "ppo_atari_multigpu": PIXELS,
    "ppo_atari_multigpu_envpool": GAMES,
    "ppo_atari_visual": {**PIXELS, "capture_video": False},
    "ppo_continuous_action": {"env_id": "RandomBox-v0"},
    "ppo_continuous_action_gpu": {
        "env_id": "Pendulum",
        "env_kwargs": '{"max_episode_steps": 5}',
        "device": "cpu",
        "norm_obs": False,  # its statistics change between updates
    },
    "ppo_continuous_action_lstm": {"env_id": "RandomBox-v0"},
    "ppo_continuous_action_numpy": {"env_id": "RandomBox-v0"},
    "ppo_lstm": {"env_id": "Random-v0"},
    "ppo_multidiscrete": {"env_id": "Random-v0"},
    "ppo_numpy": {"env_id": "Random-v0"},
    "ppo_procgen": {"env_id": "bigfish", "device": "cpu", "num_threads": 1},
}


def options_of(name: str) -> dict:
    assert name in OPTIONS, f"cleanrl/{name}.py has no line in OPTIONS of tests/every_script.py: how it trains on noise"
    return OPTIONS[name]


def train_on_noise(script, **options):
    """A training with these options, but for what the script needs; returns its folder."""
    return script.main(script.Args(**{**options, **options_of(script.__name__)}))
