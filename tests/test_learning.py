"""The scripts learn."""

from pathlib import Path

import numpy as np
from helpers import rows, run, train


def test_it_learns_which_action_the_observation_shows(in_tmp_path):
    arguments = {"total_timesteps": 8192, "num_envs": 4, "num_steps": 64, "num_minibatches": 4, "update_epochs": 4}
    folder = train(env_id="Signpost-v0", learning_rate=3e-3, checkpoints=1, **arguments)
    returns = [float(row["episodic_return"]) for row in rows(folder, "episodes.csv")]
    assert np.mean(returns[:50]) < 8  # chance gives -5.3, perfection 16
    assert np.mean(returns[-50:]) > 14


def test_cartpole_is_learned_as_typed(in_tmp_path):
    """A fifth of the default steps; ppo_numpy.py, which computes the same, takes them all: test_numpy.py."""
    stdout, stderr = run("--total-timesteps", "100000", "--learning-rate", "1e-3")
    (folder,) = Path().glob("runs/CartPole-v1__ppo__1__*")
    returns = [float(row["episodic_return"]) for row in rows(folder, "episodes.csv")]
    assert np.mean(returns[:50]) < 50 and np.mean(returns[-50:]) > 300
    assert f"run folder: {folder}" in stdout
    assert stderr == ""
