"""The scripts learn."""

from pathlib import Path

import numpy as np
import ppo
import ppo_multidiscrete
import pytest
from helpers import rows, run, train


@pytest.mark.parametrize("script", [ppo, ppo_multidiscrete])
def test_it_learns_which_action_the_observation_shows(in_tmp_path, script):
    arguments = {"total_timesteps": 8192, "num_envs": 4, "num_steps": 64, "num_minibatches": 4, "update_epochs": 4}
    folder = train(script, env_id="Signpost-v0", learning_rate=3e-3, checkpoints=1, **arguments)
    returns = [float(row["episodic_return"]) for row in rows(folder, "episodes.csv")]
    assert np.mean(returns[:50]) < 8  # chance gives -5.3, perfection 16
    assert np.mean(returns[-50:]) > 14


def test_cartpole_is_solved_with_the_default_arguments(in_tmp_path):
    stdout, stderr = run()
    (folder,) = Path().glob("runs/CartPole-v1__ppo__1__*")
    episodes = rows(folder, "episodes.csv")
    assert 499_000 < int(episodes[-1]["global_step"]) <= 500_000
    assert np.mean([float(row["episodic_return"]) for row in episodes[-100:]]) >= 475
    assert f"run folder: {folder}" in stdout
    assert stderr == ""
