"""Each script trains for a moment, resumes and evaluates, with the packages that are here. `make test-oldest` and
`make test-newest` run this; what `make test` runs says more of the pinned ones."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPTS = sorted(path.name for path in (ROOT / "cleanrl").glob("*.py"))
SIZES = ["--num-envs", "2", "--num-steps", "16", "--num-minibatches", "1", "--update-epochs", "1", "--checkpoints", "1"]


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_trains_resumes_and_evaluates(script, in_tmp_path):
    def type_(*words):
        command = [sys.executable, str(ROOT / "cleanrl" / script), *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=1800)
        assert done.returncode == 0, done.stdout + done.stderr

    films = "continuous" in script and not script.endswith("_gpu.py")
    task = ["--env-id", "InvertedPendulum-v4", "--capture-video"] if films else []
    type_(*SIZES, "--total-timesteps", "64", *task)
    (run,) = in_tmp_path.glob("runs/*__*/")
    type_("--resume", str(run), "--total-timesteps", "96")
    type_("--evaluate", str(run), "--episodes", "1")
    assert (run / "metrics.csv").read_text().count("\n") == 4  # the header and three updates
    assert list(run.glob("videos/*.mp4")) or not films
