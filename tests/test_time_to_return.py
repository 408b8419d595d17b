"""benchmark/time_to_return.py as a user types it. Absolute times are the machine's, so none is asserted."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[1] / "benchmark" / "time_to_return.py"


def time_to_return(folder, *arguments):
    return subprocess.run(
        [sys.executable, str(TOOL), *arguments], cwd=folder, capture_output=True, text=True, timeout=300
    )


def wait_for(condition):
    """What the condition returns, once it is true."""
    start = time.monotonic()
    while not (found := condition()):
        assert time.monotonic() - start < 60
        time.sleep(0.02)
    return found


def test_sigterm_leaves_nothing_behind(tmp_path):
    arguments = [*"--script ppo_numpy --target 10000 --output x.json".split(), "--arguments=--num-steps 64"]
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    tool = subprocess.Popen([sys.executable, str(TOOL), *arguments], cwd=tmp_path, env=environment)
    try:
        (pid,) = wait_for(lambda: [x.read_text() for x in tmp_path.glob("*/runs/*/lock") if x.read_text()])
        tool.terminate()
        assert tool.wait(60) == 143
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid), 0)
        assert not list(tmp_path.iterdir())
    finally:
        tool.kill()


def test_a_run_is_watched_until_its_mean_return_is_reached(tmp_path):
    output = tmp_path / "times" / "one.json"
    arguments = ["--arguments=--num-envs 8 --checkpoints 1", "--target", "60", "--num-seeds", "2"]
    done = time_to_return(tmp_path, "--script", "ppo_numpy", *arguments, "--output", str(output))
    assert done.returncode == 0, done.stderr
    measured = json.loads(output.read_text())
    assert [run["seed"] for run in measured["runs"]] == [1, 2]
    for run in measured["runs"]:
        assert run["mean_return"] >= 60 and run["env_id"] == "CartPole-v1"
        assert run["seconds"] > 0.3  # Python alone and its imports take longer
    assert measured["median_seconds"] == sum(run["seconds"] for run in measured["runs"]) / 2
    assert done.stdout.startswith(f"median {measured['median_seconds']:.1f} s")
    assert [path.name for path in tmp_path.iterdir()] == ["times"]  # the runs leave nothing behind


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--script", "ppo_nunpy"], "--script ppo_nunpy: unknown; cleanrl/ has "),
        (["--num-seeds", "0"], "--num-seeds 0 --limit 600.0 --target 475.0: must be 1 or more"),
        (["--target", "nan"], "--target nan: must be 1 or more, above 0, and a number"),
        (["--arguments=--total-timesteps 2048"], "s, not --target 475.0; choose another"),
        (["--arguments='"], "--arguments ': has a quote without its second one"),
        (["--output", "/dev/null/x.json"], "--output /dev/null/x.json: can't be written; name a file"),
        (["--output", "new/x.json", "--arguments=--gamma 2"], "ended with status 2: ppo_numpy.py: error: --gamma 2.0"),
        (["--num-seeds", "1", "--limit", "1.5", "--target", "501"], ", not --target 501.0; choose another"),
    ],
)
def test_a_mistake_gets_one_line(tmp_path, arguments, said):
    done = time_to_return(tmp_path, *arguments)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and said in done.stderr
    assert not list(tmp_path.iterdir())
