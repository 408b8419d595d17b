import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "cleanrl"))
import environments  # noqa: F401 (registers them)
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def bare_command_line(monkeypatch):
    """merge_arguments reads sys.argv, which otherwise holds pytest's flags."""
    monkeypatch.setattr(sys, "argv", ["ppo.py"])


@pytest.fixture
def in_tmp_path(tmp_path, monkeypatch):
    """Run folders go below tmp_path, the working directory of the test."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
