"""benchmark/slurm.sh on a real Slurm of one machine. `make test-slurm` runs it; `make test` doesn't: it needs root."""

import contextlib
import csv
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from fake_runs import wait_until
from slurm_cluster import cluster, missing_programs

ROOT = Path(__file__).parents[2]
FAKE = ["--command", "python fake_ppo.py --hold 0", "--env-ids", "A", "B", "--num-seeds", "2"]

if missing_programs():
    pytest.skip(f"Slurm is not installed ({' '.join(missing_programs())}): see Makefile", allow_module_level=True)
if os.geteuid():
    pytest.skip("slurmd and slurmctld of this test run as root", allow_module_level=True)


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    with cluster(tmp_path_factory.mktemp("slurm")) as variables:
        yield variables | {"PATH": f"{Path(sys.executable).parent}:{variables['PATH']}"}


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The working folder: the repository's benchmark/ and the script that trains nothing."""
    monkeypatch.chdir(tmp_path)
    for name in ("benchmark", "cleanrl"):
        Path(name).symlink_to(ROOT / name)
    shutil.copy(ROOT / "tests" / "tools" / "fake_ppo.py", ".")
    return tmp_path


def type_here(slurm, *words):
    done = subprocess.run(words, env=slurm, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done
    return done.stdout.strip()


def submit(slurm, array, *words):
    sweep = ["benchmark/slurm.sh", "python", "benchmark/sweep.py", *words]
    return type_here(slurm, "sbatch", "--parsable", f"--array={array}", *sweep)


def has_ended(slurm, job):
    return lambda: not type_here(slurm, "squeue", "-h", "--array", "-j", job)


def job_of(slurm, task):
    shown = type_here(slurm, "scontrol", "-o", "show", "job", task)
    return dict(word.partition("=")[::2] for word in shown.split())


def steps_of(run):
    with (run / "metrics.csv").open() as file:
        return [int(row["global_step"]) for row in csv.DictReader(file)]


def test_a_task_that_loses_its_place_is_requeued_and_resumes(slurm, here):
    Path("hold").touch()
    number = submit(slurm, "0-3%2", *FAKE)
    wait_until(lambda: len(list(Path().glob("runs/*/checkpoints/2.npz"))) == 2)  # two at a time wait in the middle
    # While other tasks of the array wait, Slurm 22.05 delivers the signal and still answers "try again later", which
    # scancel would do every few seconds
    with contextlib.suppress(subprocess.TimeoutExpired):
        subprocess.run(["scancel", "--signal=TERM", f"{number}_0"], env=slurm, timeout=3)
    wait_until(lambda: "stopped" in Path(f"slurm-{number}_0.out").read_text())
    Path("hold").unlink()
    wait_until(has_ended(slurm, number))
    runs = sorted(Path().glob("runs/*__*"))
    assert [run.name.rsplit("__", 1)[0] for run in runs] == [f"{x}__fake_ppo__{seed}" for x in "AB" for seed in "12"]
    assert all(steps_of(run) == list(range(100, 2001, 100)) for run in runs)  # every update once
    assert "resumed from update" in Path(f"slurm-{number}_0.out").read_text()
    restarts = [job_of(slurm, f"{number}_{task}")["Restarts"] for task in range(4)]
    assert restarts == ["1", "0", "0", "0"]
    assert {job_of(slurm, f"{number}_{task}")["JobState"] for task in range(4)} == {"COMPLETED"}
    assert type_here(slurm, "python", "benchmark/sweep.py", *FAKE, "--left") == ""


def test_a_failed_run_fails_its_task_alone(slurm, here):
    words = ["--command", "python fake_ppo.py", "--env-ids", "Unknown", "A", "--num-seeds", "1"]
    number = submit(slurm, "0-2", *words)  # one task more than there are runs
    wait_until(has_ended(slurm, number))
    ends = [job_of(slurm, f"{number}_{task}") for task in range(3)]
    assert [job["JobState"] for job in ends] == ["FAILED", "COMPLETED", "COMPLETED"]
    assert ends[0]["ExitCode"] == "1:0" and "2 failed" not in Path(f"slurm-{number}_1.out").read_text()


@pytest.mark.parametrize("script", ["ppo", "ppo_numpy"])  # one sweep, and two
def test_a_shell_script_passes_the_signal_on(slurm, here, script):
    sizes = "--total-timesteps 20480 --checkpoints 2"
    words = [f"benchmark/{script}.sh", "--num-seeds", "1", "--command", f"python cleanrl/{script}.py {sizes}"]
    words += ["--env-ids", "CartPole-v1"]
    number = type_here(slurm, "sbatch", "--parsable", "--array=0", "--cpus-per-task=1", "benchmark/slurm.sh", *words)
    wait_until(lambda: list(Path().glob("runs/*/metrics.csv")) and steps_of(*Path().glob("runs/*__*"))[2:])
    with contextlib.suppress(subprocess.TimeoutExpired):
        subprocess.run(["scancel", "--signal=TERM", f"{number}_0"], env=slurm, timeout=3)
    wait_until(has_ended(slurm, number), 240)
    (run,) = Path().glob("runs/*__*")
    text = Path(f"slurm-{number}_0.out").read_text()
    assert "resumed from update" in text and "resumed from update 0\n" not in text  # it saved when it was told to stop
    assert steps_of(run) == list(range(512, 20481, 512))
    assert job_of(slurm, f"{number}_0")["Restarts"] == "1"
