"""What the data-parallel scripts add: several processes learn what one would, and survive the loss of one."""

import gc
import json
import multiprocessing
import os
import re
import signal
import socket
import sys
import time
from pathlib import Path

import numpy as np
import ppo_atari
import ppo_atari_envpool
import ppo_atari_multigpu as ppo
import pytest
import torch
import torch.distributed.run
from helpers import TESTS, assert_same_state, rows, state, words

SCRIPT, WORKER = TESTS.parent / "cleanrl" / "ppo_atari_multigpu.py", TESTS / "multigpu_worker.py"
SMALL = {
    "env_id": "environments_atari:Noise-v0", "total_timesteps": 640, "num_envs": 4, "num_steps": 8, "checkpoints": 4,
    "num_minibatches": 2, "update_epochs": 2, "target_kl": 1e-3, "anneal_lr": False, "num_threads": 1, "cuda": False,
    "backend": "gloo",
}  # fmt: skip
STANDALONE = ("--standalone", "--nnodes=1", "--nproc_per_node=2")


def torchrun(*typed, options=STANDALONE, **variables):
    """Starts a job in the current directory: torchrun's own code, in a fork of this process, without the seconds that
    torch needs to load. stdout and stderr of the job go to files of these names."""
    process = multiprocessing.get_context("fork").Process(target=job, args=([*options, *map(str, typed)], variables))
    process.output = Path("stdout").absolute(), Path("stderr").absolute()
    process.start()
    return process


def job(argv, variables):
    gc.freeze()  # what earlier tests left is not closed here: its threads are the parent's alone
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
        setattr(sys, name, open(descriptor, "w", buffering=1, closefd=False))
    os.environ.update({"PYTHONPATH": str(TESTS), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **variables})
    torch.distributed.run.main(argv)


def end(process, status=0):
    """Waits for the end of a job, which must be `status`; a job that hangs is ended and fails the test."""
    process.join(120)
    if process.exitcode is None:
        process.terminate()  # torchrun hands the signal on
    stdout, stderr = (path.read_text() for path in process.output)
    assert process.exitcode == status, (stdout, stderr)
    return stdout, stderr


def workers(process):
    """The ids of a job's processes, by rank."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    ranks = {}
    for pid in children:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        if rank := [int(x.removeprefix(b"RANK=")) for x in variables if x.startswith(b"RANK=")]:
            ranks[rank[0]] = int(pid)
    return ranks


def wait_for(condition, process):
    """Returns once the condition holds, which must be within a minute and before the job ends."""
    deadline = time.monotonic() + 60
    while not condition():
        assert process.is_alive() and time.monotonic() < deadline, end(process)
        time.sleep(0.01)


def wait_for_updates(process, updates):
    wait_for(lambda: sum(x.read_text().count("\n") > updates for x in Path().glob("runs/*/metrics.csv")), process)


def assert_same_run(folder, other, last=20):
    assert_same_state(state(folder, last), state(other, last))
    assert rows(folder, "episodes.csv", ["seconds"]) == rows(other, "episodes.csv", ["seconds"])
    assert rows(folder, "metrics.csv", ["charts/SPS"]) == rows(other, "metrics.csv", ["charts/SPS"])


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """A job of two processes that nothing disturbed: its run folder, and the notes of both ranks."""
    before, here = Path.cwd(), tmp_path_factory.mktemp("pair")
    os.chdir(here)
    try:
        stdout, _ = end(torchrun(WORKER, "ppo_atari_multigpu", *words(**SMALL), FAST_CLOCK="1"))
    finally:
        os.chdir(before)
    (folder,) = here.glob("runs/*")
    assert stdout.count("100%") == 1 and f"run folder: runs/{folder.name}" in stdout  # one process speaks
    return folder, [torch.load(here / f"rank{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.fixture(autouse=True)
def no_process_group():
    """Each test joins its own."""
    yield
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


# One update
def joined(notes, columns):
    """The minibatches of both ranks, put together."""
    for first, second in zip(*(note["minibatches"] for note in notes), strict=True):
        both = [torch.cat(pair) for pair in zip(first[:columns], second[:columns])]
        yield *both, first[columns:]


def assert_the_same_updates(notes, agent, loss_of, columns):
    """Replays the noted minibatches in this process, each joined into one, by the parent's own loss."""
    parameters = ppo_atari.flatten_parameters(agent)
    parameters.data.copy_(notes[0]["weights"][0])
    debug, adam = [], torch.optim.Adam([parameters], lr=2.5e-4, eps=1e-5, fused=True)
    assert len(notes[0]["gradients"]) >= 4
    for i, (obs, actions, *from_rollout, coefficients) in enumerate(joined(notes, columns)):
        _, *outputs = agent.get_action_and_value(obs, actions)
        loss, mb_debug = loss_of(*outputs, *from_rollout, *coefficients)
        debug.append({name: x.mean().item() for name, x in mb_debug.items()})
        parameters.grad.zero_()
        loss.backward()
        torch.nn.utils.clip_grad_norm_([parameters], 0.5)
        largest = parameters.grad.abs().max()
        for note in notes:
            assert (note["gradients"][i] - parameters.grad).abs().max() < 2e-4 * largest
        adam.step()
        if i + 1 < len(notes[0]["weights"]):
            moved = (parameters - notes[0]["weights"][0]).abs().max()
            assert (notes[0]["weights"][i + 1] - parameters).abs().max() < 0.02 * moved
    return debug


def test_two_processes_learn_what_one_would_from_the_same_samples(pair):
    folder, notes = pair
    agent = ppo_atari.Agent(3)
    debug = assert_the_same_updates(notes, agent, ppo_atari.ppo_loss, 6)
    minibatches = [minibatch for note in notes for minibatch in note["minibatches"][:2]]  # an epoch of the first update
    assert len({tuple(x[4].tolist()) for x in minibatches}) == 4 and all(len(x[0]) == 8 for x in minibatches)
    logged = rows(folder, "metrics.csv")[0]
    returns, values = (np.concatenate([minibatch[i].numpy() for minibatch in minibatches]) for i in (5, 3))
    explained = 1 - (returns - values).var() / returns.var()
    assert float(logged["losses/explained_variance"]) == pytest.approx(explained, abs=1e-5)
    first = [mb_debug for mb_debug, update in zip(debug, notes[0]["updates"]) if update == 1]
    for name in debug[0]:
        assert float(logged[name]) == pytest.approx(np.mean([x[name] for x in first]), rel=2e-3, abs=1e-6), name
    assert notes[0]["updates"] == notes[1]["updates"]  # both stopped at the same KL


def test_ranks_hold_the_same_weights_after_20_updates(pair):
    folder, notes = pair
    assert len(rows(folder, "metrics.csv")) == 20
    assert torch.equal(notes[0]["last_weights"], notes[1]["last_weights"])
    assert not torch.equal(notes[0]["last_weights"], notes[0]["weights"][0])
    saved = torch.cat([x.flatten() for x in state(folder, 20)["model"].values()])
    assert torch.equal(saved, notes[0]["last_weights"])


def test_no_seed_occurs_twice_over_ranks_and_each_samples_for_itself(pair):
    folder, notes = pair
    seeds = notes[0]["seeds"] + notes[1]["seeds"]
    assert len(seeds) == len(set(seeds)) == 4 * 4  # at the start and after each checkpoint but the last
    first, second = state(folder, 20)["rng"].values()
    assert first != second


def test_rank_0_logs_the_episodes_of_all_ranks_at_the_steps_of_all(pair, in_tmp_path):
    """These environments don't care for actions, so one process sees the same episodes as two."""
    folder = ppo.main(ppo.Args(**SMALL))
    ours, theirs = (rows(x, "episodes.csv", ["seconds"]) for x in (folder, pair[0]))
    assert len(ours) > 100 and sorted(map(str, ours)) == sorted(map(str, theirs))
    steps = [int(row["global_step"]) for row in theirs]
    assert steps == sorted(steps) and all(step % 4 == 0 for step in steps)


def test_the_episodes_of_all_ranks_are_timed_by_one_clock(pair):
    """The clock of the second rank runs three times as fast."""
    episodes = rows(pair[0], "episodes.csv")
    seconds = [float(row["seconds"]) for row in episodes]
    assert seconds == sorted(seconds)
    assert len({(row["global_step"], row["seconds"]) for row in episodes}) == len(
        {row["global_step"] for row in episodes}
    )


# Lost processes
def test_killed_processes_cost_nothing_but_time(pair, in_tmp_path):
    """One before the first checkpoint, after which all start anew in their folder, and one between two checkpoints."""
    options = (*STANDALONE, "--max-restarts=3")
    process = torchrun(SCRIPT, *words(**SMALL), options=options, TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")
    wait_for_updates(process, 1)
    os.kill(workers(process)[0], signal.SIGKILL)
    wait_for_updates(process, 12)
    os.kill(workers(process)[1], signal.SIGKILL)
    stdout, _ = end(process)
    (folder,) = Path().glob("runs/*")
    starts = re.findall(r"20 updates, (\d+) done", stdout)  # the last at 20 if a process failed after the last update
    assert starts[:2] in (["0", "0"], ["0", "5"])  # 5 where this process got no core for a while
    assert starts[2] in ("10", "15") and starts[3:] in ([], ["20"])
    assert_same_run(folder, pair[0])


def test_a_rank_that_fails_ends_the_job(in_tmp_path):
    process = torchrun(WORKER, "ppo_atari_multigpu", *words(**SMALL | {"target_kl": 100.0}), FAILING_RANK="1")
    _, stderr = end(process, status=1)
    assert "this rank was told to fail" in stderr


def test_a_signal_to_one_rank_stops_all_at_the_same_update(in_tmp_path, capsys):
    process = torchrun(SCRIPT, *words(**SMALL | {"total_timesteps": 32 * 5000}))
    wait_for_updates(process, 2)
    rank_1 = workers(process)[1]
    os.kill(rank_1, signal.SIGTERM)
    time.sleep(0.005)
    os.kill(rank_1, signal.SIGTERM)  # torchrun hands signals on, so that a process can get each twice
    stdout, _ = end(process, status=1)
    (folder,) = Path().glob("runs/*")
    reached = len(rows(folder, "metrics.csv"))
    resume = f"torchrun --standalone --nproc_per_node=2 {SCRIPT} --resume {folder}"
    assert f"stopped after update {reached}, which is saved; go on with: {resume}\n" in stdout
    assert len(state(folder, reached)["rng"]) == 2
    command = json.loads((folder / "config.json").read_text())["command"]
    assert command.startswith(f"torchrun --standalone --nproc_per_node=2 {SCRIPT} --")
    with pytest.raises(SystemExit):
        ppo.main(ppo.Args(resume=str(folder), env_id=SMALL["env_id"]))
    assert "was written by 2 processes, not 1" in capsys.readouterr().err


def test_a_signal_during_a_video_ends_the_job_at_the_checkpoint_before_it(in_tmp_path):
    """torchrun hands SIGTERM to every rank, and kills what is left 30 seconds later."""
    process = torchrun(WORKER, "ppo_atari_multigpu", *words(**SMALL, capture_video=True), ENDLESS_VIDEO="1")
    wait_for(lambda: list(Path().glob("runs/*/checkpoints/5.pt")), process)
    time.sleep(0.5)
    stopped = time.monotonic()
    process.terminate()
    stdout, stderr = end(process, status=1)
    assert time.monotonic() - stopped < 25
    assert "stopped after update 5, which is saved" in stdout
    assert 'ppo_atari_multigpu.py", line' not in stderr  # of a traceback; torchrun writes its own
    (folder,) = Path().glob("runs/*")
    assert len(rows(folder, "metrics.csv")) == 5 and not list(folder.glob("videos/*"))


def test_two_nodes_train_as_one_does(pair, in_tmp_path):
    """Two agents on this machine, which share no folder: only the first rank reads and writes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    nodes = []
    for node in range(2):
        Path(f"node{node}").mkdir()
        os.chdir(f"node{node}")
        where = ("--node-rank", str(node), "--master-addr", "127.0.0.1", "--master-port", str(port))
        nodes.append(torchrun(SCRIPT, *words(**SMALL), options=("--nnodes=2", "--nproc_per_node=1", *where)))
        os.chdir("..")
    for process in nodes:
        end(process)
    (folder,) = Path().glob("node0/runs/*")
    assert_same_run(folder, pair[0])
    assert sorted(path.name for path in Path("node1").iterdir()) == ["stderr", "stdout"]


# The command line
def test_a_mistake_is_told_once(in_tmp_path):
    _, stderr = end(torchrun(SCRIPT, *words(**SMALL | {"num_envs": 3, "num_minibatches": 3})), status=1)
    (line,) = (line for line in stderr.splitlines() if "error: --" in line)
    assert line.startswith("ppo_atari_multigpu.py: error: --num-envs 3")
    assert line.endswith("minibatches of 8: must be multiples of the 2 processes")
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("arguments", "variables", "said"),
    [
        ({"device_ids": (0, 0)}, {}, "--device-ids 0 0: must name one of 0 GPUs"),
        ({"evaluate": "runs/some"}, {"RANK": "0", "WORLD_SIZE": "2"}, "--evaluate: takes one process"),
    ],
)
def test_a_mistake_gets_one_line_and_creates_nothing(in_tmp_path, monkeypatch, capsys, arguments, variables, said):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as ended:
        ppo.main(ppo.Args(**SMALL | arguments))
    stderr = capsys.readouterr().err
    assert ended.value.code == 2 and len(stderr.splitlines()) == 1 and said in stderr
    assert not list(in_tmp_path.iterdir())


@pytest.fixture
def gpus(monkeypatch):
    """A machine of two GPUs, and the processes of one machine that torchrun starts on it. Returns what they choose."""
    chosen = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setattr(torch.distributed, "init_process_group", chosen.append)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 0)

    def choose(rank, local_rank, processes, **arguments):
        for name, value in (("RANK", rank), ("LOCAL_RANK", local_rank), ("LOCAL_WORLD_SIZE", processes)):
            monkeypatch.setenv(name, str(value))
        chosen.clear()
        ppo.join_processes(ppo.Args(**arguments))
        ppo.choose_gpu(ppo.Args(**arguments))
        return chosen

    return choose


def test_the_gpu_of_a_process_goes_by_its_local_rank(gpus, capsys):
    assert gpus(5, 1, 2) == ["cpu:gloo,cuda:nccl", 1]
    assert gpus(6, 2, 4, device_ids=(0, 0, 1, 1), backend="gloo") == ["gloo", 1]
    for arguments in ({}, {"device_ids": (0, 0, 1, 1)}):  # two would have none, or share one, which NCCL refuses
        with pytest.raises(SystemExit):
            gpus(0, 0, 4, **arguments)
        said = "of 2 GPUs for each of 4 processes, another for each but with --backend gloo"
        assert said in capsys.readouterr().err


def test_without_cuda_no_process_needs_a_gpu(gpus):
    assert gpus(5, 1, 4, cuda=False) == ["gloo"]


def test_alone_it_says_so_and_a_resumed_run_ends_as_an_undisturbed_one(in_tmp_path, capsys):
    undisturbed, folder = ppo.main(ppo.Args(**SMALL)), ppo.main(ppo.Args(**SMALL))
    assert "runs as one process" in capsys.readouterr().out
    for last in (20, 15):
        (folder / "checkpoints" / f"{last}.pt").unlink()
    assert ppo.main(ppo.Args(resume=str(folder), env_id=SMALL["env_id"])) == folder
    assert_same_run(folder, undisturbed)
    ppo.main(ppo.Args(evaluate=str(folder), env_id=SMALL["env_id"], episodes=2))
    assert "over 2 episodes" in capsys.readouterr().out


# ppo_atari_multigpu_envpool.py
def test_envpool_games_are_learned_by_two_processes_as_by_one(in_tmp_path):
    options = SMALL | {"env_id": "Breakout-v5", "num_steps": 40, "total_timesteps": 160, "checkpoints": 1}
    options |= {"target_kl": 100.0, "env_threads": 1}
    end(torchrun(WORKER, "ppo_atari_multigpu_envpool", *words(**options)))
    notes = [torch.load(f"rank{rank}.pt", weights_only=True) for rank in range(2)]
    (folder,) = Path().glob("runs/*")
    assert torch.equal(notes[0]["last_weights"], notes[1]["last_weights"])
    seeds = notes[0]["seeds"] + notes[1]["seeds"]
    assert len(seeds) == len(set(seeds)) == 4
    assert len(state(folder, 1)["rng"]) == 2
    # the noted weights of the samples and normalised advantages are those of the joined minibatch
    agent = ppo_atari_envpool.Agent(4)

    def loss_of(log_prob, entropy, value, old_log_probs, old_values, advantages, returns, weights, *coefficients):
        weights = weights / 2  # their mean over two processes
        torch.testing.assert_close(weights.sum(), torch.tensor(1.0))
        torch.testing.assert_close(weights @ advantages, torch.tensor(0.0), atol=1e-5, rtol=0)
        torch.testing.assert_close(weights @ advantages.square(), torch.tensor(1.0), atol=1e-3, rtol=0)
        columns = (log_prob, entropy, value, old_log_probs, old_values, advantages, returns, (weights > 0).float())
        return ppo_atari_envpool.ppo_loss(*columns, coefficients[0], True, *coefficients[1:])

    assert_the_same_updates(notes, agent, loss_of, 7)
    masked = sum((minibatch[6] == 0).sum() for note in notes for minibatch in note["minibatches"][:2])
    assert masked >= 4  # every game lost a life
