"""Speeds of this repository's scripts and CleanRL's, in turns."""

import json
import sys
from pathlib import Path

import cleanrl_speed
import pytest
from command_line import UserError
from runs import ROOT

THEIRS = """import sys
print("SPS: 50")
print("SPS:", 100 if sys.argv[1:] == {arguments} else 0)
"""


@pytest.fixture
def args(tmp_path, monkeypatch) -> cleanrl_speed.Args:
    monkeypatch.setattr(cleanrl_speed, "MEASURED", {"ppo": ("CartPole-v1", 1024)})
    arguments = ["--env-id", "CartPole-v1", "--total-timesteps", "1024", "--seed", "1"]
    script = tmp_path / "cleanrl" / "ppo.py"
    script.parent.mkdir()
    script.write_text(THEIRS.format(arguments=arguments))
    python = Path(sys.executable)
    return cleanrl_speed.Args(cleanrl=tmp_path, python=python, only=("ppo",), rounds=2, output=tmp_path / "speed.json")


def test_both_train_in_turns_with_the_same_arguments(args, capsys):
    cleanrl_speed.main(args)
    speeds = json.loads(args.output.read_text("utf-8"))["scripts"]["ppo"]
    assert speeds["cleanrl"] == [100.0, 100.0]  # the last one it said
    assert len(speeds["ours"]) == 2 and min(speeds["ours"]) > 0
    assert "CartPole-v1" in capsys.readouterr().out


def test_a_table_has_the_ratios_of_the_rounds(monkeypatch):
    monkeypatch.setattr(cleanrl_speed, "MEASURED", {"ppo": ("CartPole-v1", 1024)})
    speeds = {"cleanrl": [100.0, 200.0, 300.0], "ours": [300.0, 400.0, 450.0]}
    _, row = cleanrl_speed.table({"scripts": {"ppo": speeds}})
    assert row == ["ppo.py", "CartPole-v1", "200", "400", "2.0× (1.5–3.0)"]


def test_a_script_of_theirs_that_breaks_is_one_line(args):
    (args.cleanrl / "cleanrl" / "ppo.py").write_text("raise SystemExit('no such module')")
    with pytest.raises(UserError, match=r"ended with status 1: no such module"):
        cleanrl_speed.main(args)
    with pytest.raises(UserError, match="there is no such file"):
        cleanrl_speed.main(cleanrl_speed.Args(cleanrl=ROOT / "docs", python=Path(sys.executable), only=("ppo",)))
