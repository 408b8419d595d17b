"""What other people's environments do differently: each has a message or just works. And docs/other-environments.md has
what tests/other_environments.toml lists."""

import tomllib
from pathlib import Path

import environments_cli
import gymnasium as gym
import numpy as np
import ppo
import pytest
from helpers import rows

ROOT = Path(__file__).parents[1]


class Compound(environments_cli.Constant):
    observation_space = gym.spaces.Dict(board=gym.spaces.Box(0, 1, (2,)), text=gym.spaces.Text(5))


class Historian(environments_cli.Constant):
    """Has an attribute of the name that Gymnasium's wrapper uses, and takes actions of its own integers only."""

    action_space = gym.spaces.Discrete(2, dtype=np.int32)
    episode_returns = ()

    def step(self, action):
        assert self.action_space.contains(action), action
        return super().step(action)


gym.register("Historian-v0", Historian)


def record(**options):
    return gym.wrappers.RecordEpisodeStatistics(environments_cli.Constant())


gym.register("Recorded-v0", record)
gym.register("RecordedAndCut-v0", record, max_episode_steps=3)  # its own recorder misses the cut ones


@pytest.mark.parametrize(
    "env_id, score", [("Recorded-v0", "4.0"), ("RecordedAndCut-v0", "3.0"), ("Historian-v0", "4.0")]
)
def test_an_environment_that_records_its_own_episodes_or_only_seems_to(in_tmp_path, env_id, score):
    folder = ppo.main(ppo.Args(env_id=env_id, total_timesteps=512))
    assert {row["episodic_return"] for row in rows(folder, "episodes.csv")} == {score}
    ppo.main(*ppo.read_arguments(["--evaluate", str(folder), "--episodes", "1"]))


def test_the_page_has_the_commands_and_files_of_the_list():
    page = (ROOT / "docs" / "other-environments.md").read_text("utf-8")
    listed = tomllib.loads((ROOT / "tests" / "other_environments.toml").read_text("utf-8"))["environment"]
    for environment in listed:
        assert f"`{environment['command']}`" in page
        assert environment.get("module", "").strip() in page
