"""benchmark/aws_batch.json: AWS takes it, and its command makes the run of a task's index, also when it is killed."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from fake_runs import wait_until
from runs import ROOT, checkpoints, last_step, read_config, read_end

DEFINITION = json.loads((ROOT / "benchmark" / "aws_batch.json").read_text("utf-8"))


def problems(value, shape, where):
    """What a request's model doesn't allow: unknown and missing members, wrong types, words that are no choice."""
    if shape.type_name == "structure":
        if not isinstance(value, dict):
            return [f"{where} is no structure"]
        found = [f"{where}.{name} is unknown" for name in value.keys() - shape.members.keys()]
        found += [f"{where}.{name} is missing" for name in set(shape.required_members) - value.keys()]
        for name in value.keys() & shape.members.keys():
            found += problems(value[name], shape.members[name], f"{where}.{name}")
        return found
    if shape.type_name == "list" and isinstance(value, list):
        return [one for i, item in enumerate(value) for one in problems(item, shape.member, f"{where}[{i}]")]
    if shape.type_name == "map" and isinstance(value, dict):
        return [one for name, item in value.items() for one in problems(item, shape.value, f"{where}.{name}")]
    if not isinstance(value, {"string": str, "integer": int, "boolean": bool}.get(shape.type_name, ())):
        return [f"{where} is no {shape.type_name}"]
    choices = getattr(shape, "enum", [])
    return [f"{where} is none of {choices}"] if choices and value not in choices else []


def request_of(command):
    """The request that a command of the AWS CLI makes: --job-name ppo --array-properties size=60 as a dictionary."""
    request = {}
    for option, value in zip(command[3::2], command[4::2], strict=True):
        first, *others = option.removeprefix("--").split("-")
        name = first + "".join(word.capitalize() for word in others)
        if "=" in value:
            key, _, text = value.partition("=")
            value = {key: int(text) if text.isdecimal() else text}
        request[name] = value
    return request


@pytest.fixture(scope="module")
def batch():
    """The model of the service, by which AWS's own clients check requests."""
    session = pytest.importorskip("botocore.session", reason="botocore is not installed: pip install -e '.[dev]'")
    return session.get_session().get_service_model("batch")


def test_the_definition_is_as_the_service_wants_it(batch):
    shape = batch.operation_model("RegisterJobDefinition").input_shape
    assert problems(DEFINITION, shape, "definition") == []
    for change in ({"retryStrategy": {"attempts": "10"}}, {"type": "array"}, {"image": "ppo"}):
        assert problems(DEFINITION | change, shape, "definition"), change


def test_the_pages_command_submits_as_many_tasks_as_the_sweep_has_runs(batch):
    page = (ROOT / "docs" / "sweeps.md").read_text("utf-8").replace("\\\n", " ")
    (register,) = re.findall(r"(?m)^aws batch register-job-definition .*$", page)
    assert register.split()[3:] == ["--cli-input-json", "file://benchmark/aws_batch.json"]
    (command,) = re.findall(r"(?m)^aws batch submit-job .*$", page)
    request = request_of(shlex.split(command))
    assert problems(request, batch.operation_model("SubmitJob").input_shape, "job") == []
    assert request["jobDefinition"] == DEFINITION["jobDefinitionName"]
    left = subprocess.run([ROOT / "benchmark" / "ppo.sh", "--left"], **typed(ROOT), capture_output=True, text=True)
    runs = left.stdout.split(",")
    assert request["arrayProperties"]["size"] == len(runs) > 1
    for name in request.get("parameters", DEFINITION["parameters"]):
        assert name in DEFINITION["parameters"]


def typed(folder, index=None):
    """Options of a process in this folder, as in the container: with `python`, and the variable that Batch sets."""
    variables = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    if index is not None:
        variables["AWS_BATCH_JOB_ARRAY_INDEX"] = str(index)
    return {"cwd": folder, "env": variables, "stdin": subprocess.DEVNULL}


@pytest.fixture
def task(in_tmp_path):
    """Starts the container's command as Batch does for task 1 of an array, with its output added to task.log."""
    for name in ("benchmark", "cleanrl"):
        Path(name).symlink_to(ROOT / name)

    def start(sweep):
        parameters = DEFINITION["parameters"] | {"sweep": f"benchmark/{sweep}.sh"}
        values = {f"Ref::{name}": value for name, value in parameters.items()}
        command = [values.get(word, word) for word in DEFINITION["containerProperties"]["command"]]
        with open("task.log", "a") as log:
            options = typed(in_tmp_path, index=1) | {"stdout": log, "stderr": log, "start_new_session": True}
            return subprocess.Popen(command, **options)

    return start


def wait_for_updates(count):
    """Returns when the task's run has made so many updates more."""
    before = steps()
    wait_until(lambda: steps() >= before + 512 * count)


def steps():
    return max((last_step(run) for run in Path().glob("runs/*__*/")), default=0)


def the_run():
    """The only run, which must be the sweep's second one."""
    (run,) = Path().glob("runs/*__*/")
    arguments = read_config(run)["arguments"]
    assert (arguments["env_id"], arguments["seed"]) == ("Acrobot-v1", 1)
    return run


def test_a_task_that_is_told_to_stop_saves_and_goes_on(task):
    """Only the first process has the signal, as in a container, and it is a script that waits for two sweeps."""
    for _ in range(2):
        process = task("ppo_numpy")
        wait_for_updates(2)
        process.terminate()
        assert process.wait(60) == 143  # with which Batch starts it again
        end = read_end(the_run())
        assert end["end"] == "stopped" and int(checkpoints(the_run())[-1].stem) == end["update"] > 0
    assert Path("task.log").read_text().count("resumed from update") == 1
    assert "resumed from update 0\n" not in Path("task.log").read_text()


def test_a_task_whose_machine_is_gone_goes_on(task):
    """Every process ends at once, and nothing is saved."""
    first = task("ppo_numpy")
    wait_for_updates(1)
    for pid in tree(first.pid):
        os.kill(pid, signal.SIGKILL)
    assert first.wait(60) == -signal.SIGKILL and read_end(the_run()) is None
    second = task("ppo_numpy")
    wait_until(lambda: "resumed from update" in Path("task.log").read_text())
    wait_for_updates(1)
    second.terminate()
    assert second.wait(60) == 143 and read_end(the_run())["end"] == "stopped"


def tree(pid):
    """A process and those that it started, directly or not."""
    found = [pid]
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        found += tree(int(child))
    return found
