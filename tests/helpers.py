"""What the tests of the command line, the run folder and resume share."""

import csv
import gc
import importlib.util
import os
import runpy
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from pathlib import Path
from unittest import mock

import environments_cli  # noqa: F401 (registers them)
import numpy as np
import ppo
import pytest
import torch
import torch.nn as nn
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

TESTS = Path(__file__).parent
SCRIPT = TESTS.parent / "cleanrl" / "ppo.py"
# 40 updates of 48 steps, checkpoints after 10, 20, 30 and 40; episodes of a few steps
SMALL = {
    "env_id": "Random-v0", "total_timesteps": 1920, "num_envs": 3, "num_steps": 16, "num_minibatches": 2,
    "update_epochs": 1, "checkpoints": 4, "bootstrap_truncated": True, "target_kl": 1.0,
}  # fmt: skip


def train(script=ppo, resume=None, **arguments):
    """A small run in this process, or the rest of the run in a folder; returns its folder."""
    if resume is None:
        return script.main(script.Args(**SMALL | arguments))
    return script.main(*script.read_arguments(words(resume=resume, **arguments)))


class HasLearnedError(Exception):
    """Ends a training."""


def learn(script, args, enough, episodes):
    """Trains until the mean return of the last `episodes` exceeds `enough`, which it must in the steps of args. Returns
    the returns of all episodes."""
    log = script.Run.log
    returns = []

    def log_and_look(run, metrics):
        returns.extend(episode["r"] for episode in run.episodes)
        log(run, metrics)
        if len(returns) >= episodes and np.mean(returns[-episodes:]) > enough:
            raise HasLearnedError

    with mock.patch.object(script.Run, "log", log_and_look), pytest.raises(HasLearnedError):
        script.main(args)
    return returns


def words(**arguments):
    """The arguments as they are typed."""
    typed = []
    for name, value in arguments.items():
        flag = name.replace("_", "-")
        if value is True:
            typed.append(f"--{flag}")
        elif value is False:
            typed.append(f"--no-{flag}")
        else:
            typed += [f"--{flag}", str(value)]
    return typed


def start(*typed, script=SCRIPT, **options):
    """Types a command line in the current directory; the environments of the tests can be imported there."""
    variables = {**os.environ, "PYTHONPATH": str(TESTS), **options.pop("env", {})}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
    return subprocess.Popen([sys.executable, str(script), *typed], env=variables, text=True, **pipes | options)


def run(*typed, status=0, **options):
    """Types a command line and waits for its end, which must be `status`; returns what it wrote to stdout, stderr."""
    process = start(*typed, **options)
    stdout, stderr = process.communicate(timeout=900)
    assert process.returncode == status, (stdout, stderr)
    return stdout, stderr


def type_here(*typed, script=SCRIPT):
    """Types a command line in this process, without the seconds that torch needs to load. A wrong one ends in
    SystemExit."""
    with mock.patch.object(sys, "argv", [str(script), *map(str, typed)]):
        runpy.run_path(str(script), run_name="__main__")


def fork(sabotage=None, **arguments):
    """Starts a small run in a child process, without the seconds that torch needs to load; returns its id. stdout and
    stderr go to files of these names. `sabotage` is called in the child first."""
    pid = os.fork()
    if pid:
        return pid
    gc.freeze()  # what earlier tests left is not closed here: its threads are the parent's alone
    status = 70
    try:
        for descriptor, name in ((1, "stdout"), (2, "stderr")):  # as a shell does it: some write to the descriptors
            os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
            setattr(sys, name, open(descriptor, "w", buffering=1, closefd=False))
        threading.excepthook = threading.__excepthook__  # pytest has put its own in place
        warnings.simplefilter("error", RuntimeWarning)  # it would be further lines on stderr
        if sabotage:
            sabotage()
        train(**arguments)
        status = 0
    except SystemExit as stop:
        status = stop.code
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def load_script(path):
    """The script in a file as a module of its own."""
    spec = importlib.util.spec_from_file_location(f"copy_of_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


def small_agent(script):
    """The script's agent with a network of frames that learns in seconds."""

    class SmallAgent(script.Agent):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            envs, _ = arguments
            inputs = self.network[0].in_channels * (envs.observation_space.shape[0] // 12) ** 2
            outputs = self.network[-2].out_features
            layers = nn.AvgPool2d(12), nn.Flatten(), script.layer_init(nn.Linear(inputs, outputs)), nn.ReLU()
            self.network = nn.Sequential(*layers)

    return SmallAgent


def copied(x):
    """A copy of x in numpy, since the training reuses its buffers."""
    if isinstance(x, torch.Tensor):
        return x.detach().numpy().copy()
    if isinstance(x, list | tuple):
        copies = map(copied, x)
        return type(x)(*copies) if hasattr(x, "_fields") else tuple(copies)
    if isinstance(x, dict):
        return {name: copied(value) for name, value in x.items()}
    return x.copy() if isinstance(x, np.ndarray) else x


def wait(pid):
    """The exit status of a forked run, negative for a signal, and its stderr."""
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return status, Path("stderr").read_text()


def running(pid):
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None


def wait_for_updates(pid, updates):
    """Returns once the only run has logged so many updates, or the process has ended."""
    while running(pid):
        files = list(Path().glob("runs/*/metrics.csv"))
        if files and files[0].read_text().count("\n") > updates:
            return
        time.sleep(0.001)


def error_line(stderr, script=ppo):
    lines = stderr.splitlines()
    assert len(lines) == 1, stderr
    assert lines[0].startswith(f"{script.__name__}.py: error: "), stderr
    return lines[0]


def tree(folder):
    """Every file below the folder with its bytes, and every folder."""
    return {path: path.read_bytes() if path.is_file() else None for path in Path(folder).rglob("*")}


def rows(folder, name, without=()):
    with open(folder / name, newline="") as file:
        return [{key: x for key, x in row.items() if key not in without} for row in csv.DictReader(file)]


def checkpoints(folder):
    """The updates whose checkpoints are there, each of them whole."""
    updates = sorted(int(path.stem) for path in (folder / "checkpoints").glob("*.pt"))
    assert all(state(folder, update)["update"] == update for update in updates)
    return updates


def state(folder, update):
    return torch.load(folder / "checkpoints" / f"{update}.pt", weights_only=True)


def scalars(folder):
    """(step, value) of each tag in the TensorBoard events, as TensorBoard shows them."""
    with tempfile.TemporaryDirectory() as ordered:
        # TensorBoard orders the files by the second in their names; here a run is resumed within the same second
        for i, file in enumerate(sorted(folder.glob("events.*"), key=lambda file: file.stat().st_mtime_ns)):
            shutil.copy(file, f"{ordered}/events.out.tfevents.{i:010}")
        events = EventAccumulator(ordered, size_guidance={"scalars": 0}).Reload()
        return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def assert_same_state(one, other):
    """Two checkpoints agree to the bit in all that training goes on from."""
    for name in ("update", "global_step", "recent_returns", "envs", "model", "optimizer"):
        torch.testing.assert_close(one[name], other[name], rtol=0, atol=0)


def logged(folder):
    """The rows of episodes.csv and metrics.csv without the clock."""
    return rows(folder, "episodes.csv", ["seconds"]), rows(folder, "metrics.csv", ["charts/SPS"])


def assert_same_logs(folder, other):
    assert logged(folder) == logged(other)


def assert_resumes(script, folder, after):
    """The run of the folder, cut off after the checkpoint of this update and resumed, ends as it did; its learning rate
    has fallen as it should. Returns the resumed run's folder."""
    updates = checkpoints(folder)
    cut = Path(shutil.copytree(folder, f"{folder}-cut"))
    for update in updates[updates.index(after) + 1 :]:
        (cut / "checkpoints" / f"{update}.pt").unlink()
    assert train(script, resume=cut) == cut
    assert checkpoints(cut) == updates
    assert_same_state(state(cut, updates[-1]), state(folder, updates[-1]))
    assert_same_logs(cut, folder)
    args = script.load_checkpoint(folder)["args"]
    remaining = 1 - np.arange(args.num_updates) / args.num_updates * args.anneal_lr
    rates = [float(row["charts/learning_rate"]) for row in rows(folder, "metrics.csv")]
    np.testing.assert_allclose(rates, args.learning_rate * remaining, rtol=1e-5)
    return cut


def assert_same_run(folder, undisturbed):
    """The same end, and the same rows and events on the way, but for the clock."""
    last = ppo.Args(**SMALL).num_updates
    assert_same_state(state(folder, last), state(undisturbed, last))
    assert_same_logs(folder, undisturbed)
    steps = [int(row["global_step"]) for row in rows(folder, "metrics.csv")]
    assert steps == sorted(set(steps))
    seconds = [float(row["seconds"]) for row in rows(folder, "episodes.csv")]
    assert seconds == sorted(seconds)  # the clock goes on too
    one = scalars(folder)
    other = scalars(undisturbed)
    assert one.keys() == other.keys()
    assert all(one[tag] == other[tag] for tag in one.keys() - {"charts/SPS"})
    assert [step for step, _ in one["charts/SPS"]] == steps
