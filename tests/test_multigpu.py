"""What the data-parallel scripts add: several processes learn what one would, and survive the loss of one."""

import atexit
import contextlib
import gc
import importlib
import json
import multiprocessing
import os
import runpy
import signal
import socket
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import filelock
import numpy as np
import ppo_atari
import ppo_atari_envpool
import ppo_atari_multigpu as ppo
import pytest
import torch
import torch.distributed.run
from helpers import TESTS, assert_resumes, assert_same_logs, assert_same_state, checkpoints, rows, state, train, words
from torch.distributed.launcher import elastic_launch

SCRIPT = TESTS.parent / "cleanrl" / "ppo_atari_multigpu.py"
WORKER = TESTS / "multigpu_worker.py"
# 12 updates of 32 steps, checkpoints after 3, 6, 9 and 12
SMALL = {
    "env_id": "environments_atari:Noise-v0", "total_timesteps": 384, "num_envs": 4, "num_steps": 8, "checkpoints": 4,
    "num_minibatches": 2, "update_epochs": 2, "anneal_lr": False, "exact_resume": True, "num_threads": 1,
    "device": "cpu",
}  # fmt: skip
FORK = multiprocessing.get_context("fork")


def start_job(*typed, **variables):
    """Starts a job of two processes in the current directory, as torchrun does, in forks of this process, which has
    loaded torch. stdout and stderr of the job go to files of these names."""
    if torch.distributed.is_initialized():  # alone, by another test; a fork would be in its group
        torch.distributed.destroy_process_group()
        atexit.unregister(torch.distributed.destroy_process_group)
    return start(run_ranks, list(map(str, typed)), variables)


def torchrun(*typed):
    """As start_job, by torchrun's own code, whose processes load everything: some five seconds. For what a process does
    at its end."""
    return start(torch.distributed.run.main, list(map(str, typed)), {})


def restarting_job(*typed, **variables):
    """As start_job, by what restarts torchrun's processes, but they are forks here too."""
    return start(run_agent, list(map(str, typed)), variables)


def start(function, argv, variables):
    process = FORK.Process(target=in_job, args=(function, argv, variables))
    process.output = Path("stdout").absolute(), Path("stderr").absolute()
    process.start()
    return process


def in_job(function, argv, variables):
    gc.freeze()  # what earlier tests left is not closed here: its threads are the parent's alone
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND), descriptor)
        setattr(sys, name, open(descriptor, "w", buffering=1, closefd=False))
    os.environ.update({"PYTHONPATH": str(TESTS), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **variables})
    function(argv)


def run_ranks(argv):
    """Two processes, of which one that fails ends the other."""
    os.setsid()
    signal.signal(signal.SIGTERM, lambda *_: os.killpg(0, signal.SIGKILL))
    os.environ |= {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    ranks = [FORK.Process(target=run_rank, args=(argv, str(rank))) for rank in range(2)]
    for process in ranks:
        process.start()
    while any(process.is_alive() for process in ranks) and not any(process.exitcode for process in ranks):
        time.sleep(0.02)
    for process in ranks:
        process.terminate()
    for process in ranks:
        process.join(30)
        process.kill()
    sys.exit(int(any(process.exitcode for process in ranks)))


def run_agent(argv):
    standalone = ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--nproc_per_node=2"]
    options = torch.distributed.run.parse_args([*standalone, "--max-restarts=3", *argv])
    config, _, _ = torch.distributed.run.config_from_args(options)
    config.start_method = "fork"
    elastic_launch(config, run_rank)(argv)


def run_rank(argv, rank=None):
    """A process of a job. Its rank is in the environment if an agent starts it."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if rank is not None:
        os.environ |= {"RANK": rank, "LOCAL_RANK": rank}
    sys.argv = argv
    sys.path.insert(0, str(Path(argv[0]).resolve().parent))
    runpy.run_path(argv[0], run_name="__main__")


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


def end(process, status=0):
    """Waits for the end of a job, which must be `status`; a job that hangs is ended and fails the test."""
    process.join(180)
    if process.exitcode is None:
        process.terminate()  # which ends its processes too
    stdout, stderr = (path.read_text() for path in process.output)
    assert process.exitcode == status, (stdout, stderr)
    return stdout, stderr


def worker_ids(process):
    """The ids of a job's processes, by rank."""
    return [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


def wait_for_updates(process, updates):
    """Returns once a run has logged so many updates, which must be within two minutes and before the job ends."""
    deadline = time.monotonic() + 120
    while not any(path.read_text().count("\n") > updates for path in Path().glob("runs/*/metrics.csv")):
        assert process.is_alive() and time.monotonic() < deadline, end(process)
        time.sleep(0.01)


def assert_same_run(folder, other):
    assert_same_state(state(folder, 12), state(other, 12))
    assert_same_logs(folder, other)


def load_notes(folder):
    return [torch.load(folder / f"rank{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """A job of two processes that nothing disturbed: its run folder, and the notes of both ranks."""
    here = tmp_path_factory.mktemp("pair")
    with contextlib.chdir(here):
        stdout, _ = end(start_job(WORKER, "ppo_atari_multigpu", *words(**SMALL)))
    (folder,) = here.glob("runs/*")
    assert stdout.count("100%") == 1 and f"run folder: runs/{folder.name}" in stdout  # one process speaks
    return folder, load_notes(here)


# One update
def joined_minibatches(notes):
    """The minibatches of both ranks, put together."""
    for first, second in zip(*(note["minibatches"] for note in notes), strict=True):
        yield [torch.cat(columns) for columns in zip(first, second, strict=True)]


def assert_the_same_updates(notes, parent, num_actions):
    """Replays the noted minibatches in this process, each joined into one, by the parent's own agent and loss.
    Returns the metrics of each."""
    args = parent.Args()
    frames = SimpleNamespace(dtype=np.uint8)
    agent = parent.Agent(SimpleNamespace(observation_space=frames, action_space=SimpleNamespace(n=num_actions)), args)
    parameters = list(agent.parameters())
    for parameter, weights in zip(parameters, notes[0]["weights"][0], strict=True):
        parameter.data.copy_(weights)
    debug = []
    adam = torch.optim.Adam(parameters, lr=args.learning_rate, eps=1e-5, fused=True)
    flat = lambda tensors: torch.cat([x.detach().flatten() for x in tensors])  # noqa: E731
    for i, columns in enumerate(joined_minibatches(notes)):
        mb = parent.Batch(*columns)
        loss, mb_debug = parent.ppo_loss(*agent.evaluate_actions(mb.obs, mb.actions), mb, args.clip_coef, args)
        debug.append({name: torch.as_tensor(x).item() for name, x in mb_debug.items()})
        adam.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, args.max_grad_norm)
        gradient = flat([x.grad for x in parameters])
        for note in notes:
            assert (flat(note["gradients"][i]) - gradient).abs().max() < 2e-4 * gradient.abs().max()
        adam.step()
        if i + 1 < len(notes[0]["weights"]):
            start = flat(notes[0]["weights"][0])
            theirs = flat(notes[0]["weights"][i + 1])
            assert (theirs - flat(parameters)).abs().max() < 0.02 * (flat(parameters) - start).abs().max()
    return debug


def test_two_processes_learn_what_one_would_from_the_same_samples(pair):
    folder, notes = pair
    assert len(notes[0]["minibatches"]) == 8  # of two updates
    debug = assert_the_same_updates(notes, ppo_atari, num_actions=3)
    epoch = [minibatch for note in notes for minibatch in note["minibatches"][:2]]
    assert len({tuple(x[4].tolist()) for x in epoch}) == 4 and all(len(x[0]) == 8 for x in epoch)
    logged = rows(folder, "metrics.csv")[0]
    returns, values = (np.concatenate([minibatch[i].numpy() for minibatch in epoch]) for i in (5, 3))
    explained = 1 - (returns - values).var() / returns.var()
    assert float(logged["losses/explained_variance"]) == pytest.approx(explained, abs=1e-5)
    for name in debug[0]:
        mean = np.mean([x[name] for x in debug[:4]])
        assert float(logged[name]) == pytest.approx(mean, rel=2e-3, abs=1e-6), name


def test_ranks_begin_with_the_first_ones_weights_and_hold_the_same_at_the_end(pair):
    folder, (first, second) = pair
    assert all(torch.equal(one, other) for one, other in zip(first["weights"][0], second["weights"][0], strict=True))
    saved = state(folder, 12)["model"].values()
    for one, other, kept, before in zip(first["last_weights"], second["last_weights"], saved, first["weights"][0]):
        assert torch.equal(one, other) and torch.equal(one, kept) and not torch.equal(one, before)


def test_each_rank_has_seeds_of_its_own(pair):
    _, notes = pair
    seeds = notes[0]["seeds"] + notes[1]["seeds"]
    assert len(seeds) == len(set(seeds)) == 4 * 4  # at the start and after each checkpoint but the last


def test_each_rank_acts_with_noise_of_its_own_in_each_update(pair):
    _, notes = pair
    noises = notes[0]["noises"] + notes[1]["noises"]
    assert len(noises) == len(set(noises)) == 2 * 12 * 8


def test_each_rank_draws_numbers_of_its_own_from_python_and_numpy(pair):
    _, notes = pair
    drawn = notes[0]["drawn"] + notes[1]["drawn"]
    assert len(drawn) == len(set(drawn))


def test_rank_0_logs_the_episodes_and_rewards_of_all(pair):
    folder, notes = pair
    steps = [int(row["global_step"]) for row in rows(folder, "episodes.csv")]
    assert 60 < len(steps) and steps == sorted(steps) and all(step % 4 == 0 for step in steps)
    rewards = (torch.stack(notes[0]["rewards"]) + torch.stack(notes[1]["rewards"])).reshape(12, 8).sum(1) / 32
    logged = [float(row["charts/reward"]) for row in rows(folder, "metrics.csv")]
    assert logged == pytest.approx(rewards.tolist(), abs=1e-5)


@pytest.mark.parametrize(("target", "epochs"), [(0.01, 1), (0.02, 2)])
def test_the_kl_that_ends_an_update_and_the_steps_are_those_of_all_ranks(in_tmp_path, target, epochs):
    """0.015 on average, while one rank alone would stop at either target, and the other at none."""
    options = SMALL | {"total_timesteps": 64, "checkpoints": 1, "target_kl": target, "anneal_lr": True}
    end(start_job(WORKER, "ppo_atari_multigpu", *words(**options), KL="0.0 0.03"))
    for note in load_notes(in_tmp_path):
        assert note["steps"] == [2 * epochs] * 2
    (folder,) = Path().glob("runs/*")
    rates = [float(row["charts/learning_rate"]) for row in rows(folder, "metrics.csv")]
    assert rates == pytest.approx([2.5e-4, 1.25e-4])  # of the steps of all ranks


# Lost processes
def test_killed_processes_cost_nothing_but_time(pair, in_tmp_path):
    """One before the first planned checkpoint, and one between two checkpoints."""
    process = restarting_job(SCRIPT, *words(**SMALL))
    wait_for_updates(process, 1)
    os.kill(worker_ids(process)[0], signal.SIGKILL)
    wait_for_updates(process, 7)
    os.kill(worker_ids(process)[1], signal.SIGKILL)
    end(process)
    (folder,) = Path().glob("runs/*")
    assert_same_run(folder, pair[0])


def test_a_signal_to_one_rank_stops_all_at_the_same_update(in_tmp_path):
    """And the run goes on in any number of processes."""
    options = SMALL | {"total_timesteps": 32 * 5000, "exact_resume": False}
    process = start_job(SCRIPT, *words(**options))
    wait_for_updates(process, 2)
    _, rank_1 = worker_ids(process)
    os.kill(rank_1, signal.SIGTERM)
    time.sleep(0.005)
    os.kill(rank_1, signal.SIGTERM)  # torchrun hands signals on, so that a process can get each twice
    stdout, _ = end(process, status=1)
    (folder,) = Path().glob("runs/*")
    reached = len(rows(folder, "metrics.csv"))
    assert checkpoints(folder) == [reached]
    resume = f"torchrun --standalone --nproc_per_node=2 {SCRIPT} --resume {folder}"
    assert f"go on with: {resume}\n" in stdout
    assert json.loads((folder / "config.json").read_text())["command"].startswith(resume.partition(" --resume")[0])
    assert json.loads((folder / "end.json").read_text())["end"] == "stopped"
    train(ppo, resume=folder, total_timesteps=32 * (reached + 2))
    assert len(rows(folder, "metrics.csv")) == reached + 2


@pytest.mark.parametrize("stopped", [0, 1])
def test_a_stop_of_any_process_is_one_of_all(monkeypatch, stopped):
    noted = [([], [], signal.SIGTERM if rank == stopped else None, None) for rank in (0, 1)]
    answers = iter([noted, [[], []]])  # of all processes: what they noted, and the last returns
    monkeypatch.setattr(ppo, "gather", lambda own: next(answers))
    monkeypatch.setattr(ppo.dist, "get_rank", lambda: 0)
    monkeypatch.setattr(ppo, "from_first", lambda write: None)
    monkeypatch.setattr(ppo, "in_all", lambda compare: None)
    run = ppo.SharedRun(ppo.Args())
    run.log({})
    assert run.stop_signal == signal.SIGTERM


def test_a_run_that_ends_itself_by_its_returns_ends_in_all_processes(in_tmp_path):
    log = "        run.log(metrics)\n"
    stop = "        if len(run.recent_returns) >= 20:\n            break\n"
    Path("mine.py").write_text(SCRIPT.read_text("utf-8").replace(log, log + stop))
    end(start_job("mine.py", *words(**SMALL)))
    (folder,) = Path("runs").iterdir()
    updates = len(rows(folder, "metrics.csv"))
    assert updates < 12 and checkpoints(folder)[-1] == updates


def test_a_second_signal_to_a_process_that_torchrun_did_not_start_ends_it(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    before = signal.getsignal(signal.SIGTERM)
    ppo.SharedRun.__new__(ppo.SharedRun).request_stop(signal.SIGTERM, None)
    after = signal.signal(signal.SIGTERM, before)
    assert after == signal.SIG_DFL


def test_two_nodes_train_as_one_does(pair, in_tmp_path):
    """Two agents on this machine, which share no folder: only the first rank reads and writes. The group's threads end
    before Python does."""
    port = free_port()
    nodes = []
    for node in range(2):
        Path(f"node{node}").mkdir()
        os.chdir(f"node{node}")
        where = ("--node-rank", str(node), "--master-addr", "127.0.0.1", "--master-port", port)
        options = ("--nnodes=2", "--nproc_per_node=1", *where)
        nodes.append(torchrun(*options, WORKER, "ppo_atari_multigpu", *words(**SMALL)))
        os.chdir("..")
    for process in nodes:
        end(process)
    (folder,) = Path().glob("node0/runs/*")
    assert_same_run(folder, pair[0])
    assert sorted(path.name for path in Path("node1").iterdir()) == ["rank1.pt", "stderr", "stdout", "threads"]
    for node in range(2):
        # One that asks for Python's lock when Python ends would abort the process, now and then (signal 6)
        assert "gloo" not in Path(f"node{node}/threads").read_text()
    first = f"torchrun --nnodes=2 --node-rank=0 --master-addr=127.0.0.1 --master-port={port} --nproc_per_node=1 "
    assert json.loads((folder / "config.json").read_text())["command"].startswith(first)


# What goes wrong in one process
STEP = "                optimizer.step()\n"
AVERAGED = "    parameters = list(agent.parameters())"
NOTE = "                run.note("
NAN_REWARD = "                if rank == 1 and update == 4:\n                    rewards[step, 1] = math.nan\n"
OTHER_WEIGHTS = "process 1 has other weights than process 0 in "


@pytest.mark.parametrize(
    ("edits", "told"),
    [
        ({STEP: f"{STEP}                agent.critic.bias.data *= 1 + 1e-6 * rank\n"}, None),  # as GPUs may round
        (
            {AVERAGED: "    parameters = [*agent.network.parameters(), *agent.actor.parameters()]",
             STEP: f"{STEP}                for parameter in agent.critic.parameters():\n"
                   "                    parameter.data -= 1e-3 * parameter.grad\n"},
            f"{OTHER_WEIGHTS}model.critic.weight, model.critic.bias;",
        ),
        (
            {"(model=agent,": "(other=nn.Linear(1, 1), model=agent,",
             STEP: f'{STEP}                run.kept["other"].bias.data += rank\n'},
            f"{OTHER_WEIGHTS}other.bias;",
        ),
        (
            {"        self.actor =": '        self.register_buffer("total", torch.ones(()))\n        self.actor =',
             STEP: f"{STEP}                agent.total += batch.returns.sum()\n"},
            f"{OTHER_WEIGHTS}model.total;",
        ),
        ({NOTE: NAN_REWARD + NOTE}, "process 1: update 4, environment 1: its reward is not finite"),
    ],
    ids=["rounding", "a gradient that is not averaged", "another module", "a buffer", "a reward"],
)  # fmt: skip
def test_one_line_names_the_process_that_goes_astray(in_tmp_path, edits, told):
    text = SCRIPT.read_text("utf-8")
    for old, new in edits.items():
        assert text.count(old) == 1
        text = text.replace(old, new)
    Path("mine.py").write_text(text, "utf-8")
    _, stderr = end(start_job("mine.py", *words(**SMALL)), status=0 if told is None else 1)
    lines = [line for line in stderr.splitlines() if line.startswith("mine.py: error: ")]
    assert len(lines) == (told is not None)
    assert all(told in line for line in lines)
    assert "process 1:\n" not in stderr  # no traceback


def test_processes_that_wait_end_with_the_one_that_failed(in_tmp_path):
    """Together with the environments' processes, which ignore signals."""
    fail = '        if rank == 1 and update == 2:\n            raise RuntimeError("mine")\n        # Advantages\n'
    Path("mine.py").write_text(SCRIPT.read_text("utf-8").replace("        # Advantages\n", fail), "utf-8")
    begun = time.monotonic()
    job = start_job("mine.py", *words(**SMALL), "--vectorization=async")
    _, stderr = end(job, status=1)
    assert time.monotonic() - begun < 60
    assert "process 1:\n" in stderr and "RuntimeError: mine" in stderr
    assert "EOFError" not in stderr  # of an environment's process
    time.sleep(1)
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has just ended
            has_ended = (path / "cmdline").read_text() == ""  # and its parent has not asked how
            assert has_ended or os.getsid(int(path.name)) != job.pid


@pytest.mark.parametrize("mistake", ["sizes", "id", "lock"])
def test_a_mistake_is_told_once(pair, in_tmp_path, mistake):
    if mistake == "sizes":
        typed = words(**SMALL | {"num_envs": 3, "num_minibatches": 3})
        told = "--num-envs 3 and minibatches of 8: must be multiples of the 2 processes"
    elif mistake == "id":
        typed = words(**SMALL | {"env_id": "Nothing-v0"})
        told = "--env-id Nothing-v0"
    else:
        typed = ["--resume", str(pair[0]), "--total-timesteps=640"]
        told = str(pair[0] / "lock")
    before = sorted(pair[0].rglob("*"))
    with filelock.FileLock(pair[0] / "lock"):
        _, stderr = end(start_job(SCRIPT, *typed), status=1)
    (line,) = (line for line in stderr.splitlines() if line.startswith("ppo_atari_multigpu.py: error: "))
    assert told in line
    assert "process 1:\n" not in stderr  # no traceback
    assert not Path("runs").exists() and sorted(pair[0].rglob("*")) == before


# Devices
@pytest.fixture(params=["ppo_atari_multigpu", "ppo_atari_multigpu_envpool"])
def script(request, monkeypatch):
    """Each of the two scripts, with a torch that has NCCL."""
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    return importlib.import_module(request.param)


@pytest.mark.parametrize("gpus", range(5))
def test_processes_take_the_gpus_in_turn_and_use_nccl_if_none_is_shared(script, gpus):
    for processes in range(1, 9):
        devices, backend = script.choose_devices(gpus, processes, (), "auto")
        in_turn = [f"cuda:{gpu}" for gpu in range(gpus)] * 8 or ["cpu"] * 8
        assert devices == in_turn[:processes]
        assert backend == ("nccl" if processes <= gpus else "gloo")


@pytest.mark.parametrize(
    ("gpus", "device_ids", "backend", "chosen"),
    [
        (2, (0, 0, 1, 1), "auto", "gloo"),
        (4, (0, 0, 1, 1), "auto", "gloo"),
        (4, (3, 1), "auto", "nccl"),
        (4, (3, 1), "nccl", "nccl"),
        (4, (3, 1), "gloo", "gloo"),
        (1, (0,), "auto", "nccl"),
        (1, (0, 0), "gloo", "gloo"),
    ],
)
def test_device_ids_are_taken_as_typed(script, gpus, device_ids, backend, chosen):
    devices = [f"cuda:{gpu}" for gpu in device_ids]
    assert script.choose_devices(gpus, len(device_ids), device_ids, backend) == (devices, chosen)


def test_without_nccl_gpus_use_gloo(script, monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: False)
    assert script.choose_devices(2, 2, (), "auto") == (["cuda:0", "cuda:1"], "gloo")
    with pytest.raises(script.UserError, match=r"--backend nccl: torch .* comes without it; use auto or gloo"):
        script.choose_devices(2, 2, (), "nccl")


@pytest.mark.parametrize(
    ("gpus", "processes", "device_ids", "backend", "told"),
    [
        (2, 4, (), "nccl", "--backend nccl: needs a GPU for each process, and 4 have 2; use"),
        (2, 2, (1, 1), "nccl", "--backend nccl: needs a GPU for each process, and 2 have 1; use"),
        (2, 4, (0, 1), "auto", "--device-ids 0 1: must name a GPU for each of the 4 processes"),
        (2, 1, (0, 1), "auto", "--device-ids 0 1: must name a GPU for each of the 1 processes"),
        (2, 2, (1, 2), "auto", "--device-ids 1 2: torch finds 2 GPUs on this machine, numbered from 0"),
        (2, 2, (-1, 0), "gloo", "--device-ids -1 0: torch finds 2 GPUs"),
        (0, 2, (0, 0), "auto", "--device-ids 0 0: torch finds 0 GPUs"),
    ],
)
def test_a_choice_that_the_machine_does_not_allow_is_refused(script, gpus, processes, device_ids, backend, told):
    with pytest.raises(script.UserError) as error:
        script.choose_devices(gpus, processes, device_ids, backend)
    assert str(error.value).startswith(told)


@pytest.mark.parametrize(
    ("local_rank", "options", "everywhere", "taken", "joined"),
    [
        (0, {}, ["nccl", "nccl"], ["cuda:0"], ["cpu:gloo,cuda:nccl"]),
        (1, {}, ["nccl", "nccl"], ["cuda:1"], ["cpu:gloo,cuda:nccl"]),
        (1, {}, ["nccl", "gloo"], ["cuda:1"], []),  # on another machine, processes share a GPU
        (1, {"device_ids": (1, 1)}, ["gloo", "gloo"], ["cuda:1"], []),
        (0, {"device_ids": (1, 0), "backend": "gloo"}, ["gloo", "gloo"], ["cuda:1"], []),
        (1, {"device": "cpu", "device_ids": (1, 0, 0)}, ["gloo", "gloo"], [], []),  # no process needs a GPU
    ],
)
def test_a_process_takes_its_device_and_joins_all_others_by_one_backend(
    script, monkeypatch, capsys, local_rank, options, everywhere, taken, joined
):
    """On a machine of two GPUs and two processes. `everywhere`: what this and another machine would choose."""
    found = []
    again = []
    monkeypatch.setenv("LOCAL_RANK", str(local_rank))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", found.append)
    monkeypatch.setattr(torch.distributed, "get_backend_config", lambda: "cpu:gloo,cuda:gloo")
    monkeypatch.setattr(script, "in_all", lambda function: function())
    monkeypatch.setattr(script, "gather", lambda own: everywhere if own == everywhere[0] else pytest.fail(own))
    monkeypatch.setattr(script, "join_processes", again.append)
    args = script.Args(**{"device": "cuda"} | options)
    script.take_device(args)
    assert (found, again) == (taken, joined)
    used = options.get("device_ids", (0, 1))
    said = f"processes on cuda:{used[0]} cuda:{used[1]}, through {'NCCL' if joined else 'gloo'}\n"
    assert capsys.readouterr().out == (said if taken else "")
    assert args.backend == options.get("backend", "auto")  # a resumed run chooses anew


def test_processes_that_change_the_backend_learn_the_same(pair, in_tmp_path):
    """As with NCCL, which needs GPUs: they leave the group in which they found their arguments, and form another."""
    text = SCRIPT.read_text("utf-8")
    for old, new in {
        '["cpu"] * processes, "gloo"': '["cpu"] * processes, "nccl"',
        '"cpu:gloo,cuda:nccl"': '"cpu:gloo"',
    }.items():
        assert text.count(old) == 1
        text = text.replace(old, new)
    note = "    run = SharedRun(args, checkpoint)\n"
    assert text.count(note) == 1
    Path("mine.py").write_text(text.replace(note, f"{note}    print(dist.get_backend_config())\n"), "utf-8")
    stdout, _ = end(start_job("mine.py", *words(**SMALL)))
    assert stdout.splitlines().count("cpu:gloo") == 1
    (folder,) = Path().glob("runs/*")
    assert_same_run(folder, pair[0])


def test_a_gpu_that_is_named_and_not_there_is_a_mistake(refusal, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert "--device-ids 0: torch finds 0 GPUs" in refusal(ppo, **SMALL | {"device": "auto", "device_ids": (0,)})


# The command line
def test_alone_a_resumed_run_ends_as_an_undisturbed_one_and_is_evaluated(in_tmp_path, spy):
    folder = ppo.main(ppo.Args(**SMALL | {"total_timesteps": 128, "backend": "nccl"}))
    choices = spy(ppo, "choose_devices")
    assert_resumes(ppo, folder, after=2)
    assert [choice.backend for choice in choices] == ["nccl"]  # as typed when the run began
    ppo.main(*ppo.read_arguments(["--evaluate", str(folder), "--episodes=2"]))
    assert len(rows(folder, "evaluation.csv")) == 2


def test_a_gradient_that_a_process_lacks_counts_as_0(monkeypatch):
    monkeypatch.setattr(ppo, "average", lambda x: x / 2)
    here, elsewhere, frozen = (torch.nn.Parameter(torch.zeros(2, 3)) for _ in range(3))
    here.grad = torch.full((2, 3), 8.0)
    frozen.requires_grad_(False)
    ppo.average_gradients([here, elsewhere, frozen])
    assert (here.grad == 4).all() and (elsewhere.grad == 0).all() and frozen.grad is None


# ppo_atari_multigpu_envpool.py
def test_envpool_games_are_learned_by_two_processes_as_by_one(in_tmp_path):
    options = SMALL | {"env_id": "Breakout-v5", "num_steps": 80, "total_timesteps": 320, "checkpoints": 1}
    end(start_job(WORKER, "ppo_atari_multigpu_envpool", *words(**options, env_threads=1)))
    first, second = load_notes(in_tmp_path)
    assert all(torch.equal(one, other) for one, other in zip(first["last_weights"], second["last_weights"]))
    seeds = first["seeds"] + second["seeds"]
    assert len(seeds) == len(set(seeds)) == 4
    debug = assert_the_same_updates([first, second], ppo_atari_envpool, num_actions=4)
    (folder,) = Path().glob("runs/*")
    (logged,) = rows(folder, "metrics.csv")
    for name in debug[0]:
        assert float(logged[name]) == pytest.approx(np.mean([x[name] for x in debug]), rel=2e-3, abs=1e-6), name
    masked = [(minibatch[6] == 0).sum().item() for minibatch in joined_minibatches([first, second])]
    assert sum(masked[:2]) >= 4  # every game lost a life
    assert first["minibatches"][0][6].sum() != second["minibatches"][0][6].sum()  # as many samples of each don't count
