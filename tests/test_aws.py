"""sweep.py --aws-batch against moto, a local server that answers as AWS does. `make test-aws` installs it."""

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

boto3 = pytest.importorskip("boto3", reason="boto3 is not installed; make test-aws installs and runs")
server = pytest.importorskip("moto.server", reason="moto is not installed; make test-aws installs and runs")
responses = pytest.importorskip("moto.batch.responses")

ROOT = Path(__file__).parents[1]
SWEEP = ["--env-ids", "CartPole-v1", "Acrobot-v1", "--num-seeds", "3", "--command", "python cleanrl/ppo.py --gamma 0.9"]
BATCH = ["--aws-batch", "--job-queue", "queue", "--job-definition", "definition", "--folder", "/mnt/runs"]


@pytest.fixture(scope="module")
def aws():
    """Environment variables that lead boto3 to a local server with a queue and a job definition."""
    local = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    local.start()
    host, port = local.get_host_and_port()
    url = f"http://{host}:{port}"
    no_docker = json.dumps({"batch": {"use_docker": False}}).encode()  # jobs count as done at once
    urllib.request.urlopen(urllib.request.Request(f"{url}/moto-api/config", data=no_docker)).close()
    names = {"AWS_ENDPOINT_URL": url, "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
    names |= {"AWS_DEFAULT_REGION": "eu-central-1"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in names.items():
            patch.setenv(name, value)
        trust = {"Effect": "Allow", "Principal": {"Service": "batch.amazonaws.com"}, "Action": "sts:AssumeRole"}
        policy = json.dumps({"Version": "2012-10-17", "Statement": [trust]})
        role = boto3.client("iam").create_role(RoleName="batch", AssumeRolePolicyDocument=policy)["Role"]["Arn"]
        batch = boto3.client("batch")
        batch.create_compute_environment(computeEnvironmentName="machines", type="UNMANAGED", serviceRole=role)
        order = [{"order": 1, "computeEnvironment": "machines"}]
        batch.create_job_queue(jobQueueName="queue", state="ENABLED", priority=1, computeEnvironmentOrder=order)
        image = {"image": "ppo", "vcpus": 1, "memory": 512, "command": ["true"]}
        batch.register_job_definition(jobDefinitionName="definition", type="container", containerProperties=image)
        yield batch
    local.stop()


@pytest.fixture
def requests(monkeypatch):
    """The bodies of the requests to submit a job; moto doesn't describe all that it was sent."""
    answer, bodies = responses.BatchResponse.submitjob, []

    def record(response):
        bodies.append(json.loads(response.body))
        return answer(response)

    monkeypatch.setattr(responses.BatchResponse, "submitjob", record)
    return bodies


def submit(*words, status=0, **variables):
    command = [sys.executable, "benchmark/sweep.py", *words]
    environment = os.environ | variables
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == status, (done.stdout, done.stderr)
    return done.stdout, done.stderr


def described(batch, stdout):
    number = stdout.removeprefix("AWS Batch job ").split(":")[0]
    (job,) = batch.describe_jobs(jobs=[number])["jobs"]
    return job


def test_an_array_job_with_a_task_for_every_run(aws, requests):
    stdout, _ = submit(*SWEEP, *BATCH, "--cpus", "2", "--memory", "4000", "--gpus", "1", "--minutes", "90")
    assert stdout.endswith(": 6 tasks\n")
    job = described(aws, stdout)
    assert job["jobName"] == "sweep-ppo" and job["arrayProperties"]["size"] == 6
    assert "definition" in job["jobDefinition"] and "queue" in job["jobQueue"]
    assert job["timeout"] == {"attemptDurationSeconds": 5400}
    (request,) = requests
    requirements = {one["type"]: one["value"] for one in request["containerOverrides"]["resourceRequirements"]}
    assert requirements == {"VCPU": "2", "MEMORY": "4000", "GPU": "1"}
    retry = request["retryStrategy"]
    assert retry["attempts"] == 10 and retry["evaluateOnExit"][-1] == {"onReason": "*", "action": "EXIT"}
    assert {"onExitCode": "143", "action": "RETRY"} in retry["evaluateOnExit"]


def test_the_command_of_a_task_makes_its_run(aws, tmp_path):
    """The submitted command, as the container types it, trains the run of its index in the folder that was named: one
    environment, seed and point of the grid."""
    script = tmp_path / "toy.py"
    script.write_text(
        "import json, shutil, sys\nfrom dataclasses import asdict, dataclass\nfrom pathlib import Path\n"
        "@dataclass\nclass Args:\n    exp_name: str = 'toy'\n    env_id: str = ''\n    seed: int = 0\n"
        "    gamma: float = 1\n    total_timesteps: int = 1\n    num_updates = 1\n"
        "if __name__ == '__main__':\n    import tyro\n    args = tyro.cli(Args)\n"
        "    run = Path(f'runs/{args.env_id}{args.seed}{args.gamma}')\n    (run / 'checkpoints').mkdir(parents=True)\n"
        "    shutil.copy(__file__, run)\n    (run / 'checkpoints' / '1.pt').touch()\n"
        "    (run / 'config.json').write_text(json.dumps({'arguments': asdict(args)}))\n"
    )
    words = ["--env-ids", "A", "B", "--num-seeds", "2", "--grid", "gamma=0.5,0.9", "--command", f"python {script}"]
    stdout, _ = submit(*words, *BATCH[:-1], str(tmp_path))
    program, *command = described(aws, stdout)["container"]["command"]
    assert program == "python" and command[-2:] == ["--task", "AWS_BATCH_JOB_ARRAY_INDEX"]
    for index in range(8):
        variables = os.environ | {"AWS_BATCH_JOB_ARRAY_INDEX": str(index)}
        subprocess.run([sys.executable, *command], cwd=ROOT, env=variables, check=True, capture_output=True, timeout=60)
        assert len(list(tmp_path.glob("runs/*"))) == index + 1
    names = sorted(path.name for path in tmp_path.glob("runs/*"))
    assert names == sorted(f"{env_id}{seed}{gamma}" for env_id in "AB" for seed in (1, 2) for gamma in (0.5, 0.9))


def test_one_run_is_a_job_without_an_array(aws):
    stdout, _ = submit("--env-ids", "CartPole-v1", "--num-seeds", "1", *BATCH)
    job = described(aws, stdout)
    assert "arrayProperties" not in job and job["container"]["command"][-2:] == ["--task", "0"]


def test_a_refusal_is_one_line(aws):
    wrong = [*BATCH[:2], "no-such-queue", *BATCH[3:]]
    stdout, stderr = submit(*SWEEP, *wrong, status=2)
    assert not stdout and stderr.count("\n") == 1 and "no-such-queue" in stderr, stderr
    stdout, stderr = submit(*SWEEP, *BATCH, status=2, AWS_ENDPOINT_URL="http://127.0.0.1:9")
    assert not stdout and stderr.count("\n") == 1 and "127.0.0.1:9" in stderr, stderr
