"""sweep.py --slurm on a real Slurm of one machine. `make test-slurm` runs it; `make test` doesn't, as it needs root."""

import contextlib
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import sweep
from helpers import rows
from slurm_cluster import cluster, missing_programs

ROOT = Path(__file__).parents[1]
UPDATES = 195
NUMPY = f"python {ROOT / 'cleanrl' / 'ppo_numpy.py'} --total-timesteps {512 * UPDATES} --checkpoints 10"

if missing := missing_programs():
    pytest.skip(f"Slurm is not installed ({' '.join(missing)}): apt-get install slurmctld slurmd slurm-client munge",
                allow_module_level=True)  # fmt: skip
if os.geteuid():
    pytest.skip("slurmd and slurmctld of this test run as root", allow_module_level=True)


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    with cluster(tmp_path_factory.mktemp("slurm")) as variables:
        yield variables


def type_here(folder, slurm, *words, status=0):
    done = subprocess.run(words, cwd=folder, env=slurm, capture_output=True, text=True, timeout=120)
    assert done.returncode == status, (done.stdout, done.stderr)
    return done.stdout


def type_sweep(folder, slurm, *words, **options):
    return type_here(folder, slurm, sys.executable, str(ROOT / "benchmark" / "sweep.py"), *words, **options)


def submit(folder, slurm, *words):
    return re.search(r"^Slurm job (\d+)", type_sweep(folder, slurm, *words, "--slurm"), re.MULTILINE)[1]


def wait_until(condition, folder, seconds=240):
    end = time.monotonic() + seconds
    while not condition():
        outputs = "".join(path.read_text() for path in folder.glob("logs/*"))
        assert time.monotonic() < end, outputs[-5000:]
        time.sleep(0.1)


def scontrol_show(folder, slurm, job):
    return type_here(folder, slurm, "scontrol", "-o", "show", "job", job)


def runs_of(folder, env_id, seed):
    return sorted(folder.glob(f"runs/{env_id}__ppo_numpy__{seed}__*"))


def test_a_task_that_loses_its_place_is_requeued_and_finishes(slurm, tmp_path):
    words = ["--command", NUMPY, "--env-ids", "CartPole-v1", "Acrobot-v1", "--num-seeds", "2"]
    options = ["--concurrency", "2", "--cpus", "1", "--minutes", "30", "--memory", "500", "--partition", "main"]
    number = submit(tmp_path, slurm, *words, *options)

    def lost_one():
        return [run for run in runs_of(tmp_path, "CartPole-v1", 1) if 0 < sweep.last_checkpoint(run) < UPDATES - 20]

    wait_until(lost_one, tmp_path)
    assert "running" in type_sweep(tmp_path, slurm, *words, "--status", status=1)
    # While other tasks of the array wait, Slurm 22.05 delivers the signal and still answers "try again later", which
    # scancel would do every few seconds
    with contextlib.suppress(subprocess.TimeoutExpired):
        subprocess.run(["scancel", "--signal=TERM", f"{number}_0"], env=slurm, timeout=3)
    queue = ["squeue", "-h", "--array", "-j", number]
    wait_until(lambda: not type_here(tmp_path, slurm, *queue), tmp_path)

    type_sweep(tmp_path, slurm, *words, "--status")  # status 0: every run is done
    for env_id in ("CartPole-v1", "Acrobot-v1"):
        for seed in (1, 2):
            (run,) = runs_of(tmp_path, env_id, seed)
            steps = [int(row["global_step"]) for row in rows(run, "metrics.csv")]
            assert steps == list(range(512, 512 * UPDATES + 1, 512))
    (log,) = tmp_path.glob("logs/CartPole-v1__ppo_numpy__1__*.log")
    stopped = re.findall(r"stopped after update (\d+),", log.read_text())
    assert len(stopped) == 1 and re.findall(r"updates, (\d+) done", log.read_text()) == ["0", *stopped]
    job = dict(word.partition("=")[::2] for word in scontrol_show(tmp_path, slurm, f"{number}_0").split())
    expected = {
        "JobState": "COMPLETED",
        "Restarts": "1",
        "TimeLimit": "00:30:00",
        "CPUs/Task": "1",
        "Partition": "main",
    }
    assert {name: job[name] for name in expected} == expected
    assert scontrol_show(tmp_path, slurm, number).count("Restarts=0") == 3
    again = type_sweep(tmp_path, slurm, *words, "--slurm")
    assert "nothing to submit" in again


def test_a_wrong_environment_fails_its_task_alone(slurm, tmp_path):
    command = ["--command", NUMPY.replace(str(512 * UPDATES), "4096")]
    words = [*command, "--env-ids", "CartPool-v1", "CartPole-v1", "--num-seeds", "1"]
    number = submit(tmp_path, slurm, *words, "--cpus", "2")
    wait_until(lambda: not type_here(tmp_path, slurm, "squeue", "-h", "--array", "-j", number), tmp_path)
    (run,) = runs_of(tmp_path, "CartPole-v1", 1)
    assert sweep.last_checkpoint(run) == 8
    job = scontrol_show(tmp_path, slurm, f"{number}_0")
    assert "JobState=FAILED" in job and "ExitCode=1:0" in job and "CPUs/Task=2" in job
    (output,) = tmp_path.glob("logs/slurm-*_0.out")
    assert "Did you mean: `CartPole`?" in output.read_text()
    assert "ended without a checkpoint: ppo_numpy.py: error" in type_sweep(
        tmp_path, slurm, *words, "--status", status=1
    )


def test_a_refusal_of_slurm_is_one_line(slurm, tmp_path):
    command = [sys.executable, str(ROOT / "benchmark" / "sweep.py"), "--command", NUMPY, "--env-ids", "CartPole-v1"]
    done = subprocess.run([*command, "--slurm", "--partition", "none"], cwd=tmp_path, env=slurm, capture_output=True)
    assert done.returncode == 2 and done.stderr.count(b"\n") == 1 and b"invalid partition" in done.stderr
