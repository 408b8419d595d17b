"""A run that was cut off in any way goes on; with --exact-resume it ends as if nothing had happened."""

import contextlib
import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import ppo
import pytest
import torch
from helpers import (
    SCRIPT,
    SMALL,
    assert_same_run,
    checkpoints,
    error_line,
    fork,
    rows,
    start,
    state,
    train,
    wait,
    wait_for_updates,
    words,
)

STOPPING = "\nstopping after this update\n"
EXACT = {"exact_resume": True}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The folder of a small run with --exact-resume that nothing disturbed."""
    with contextlib.chdir(tmp_path_factory.mktemp("undisturbed")):
        return train(**EXACT).resolve()


@pytest.fixture
def half(undisturbed, in_tmp_path):
    """The same, as it was at its checkpoint after update 20, with the rows of later updates."""
    shutil.copytree(undisturbed, "runs/half")
    for update in (30, 40):
        Path(f"runs/half/checkpoints/{update}.pt").unlink()
    return Path("runs/half")


def resume(folder, **changes):
    return ppo.main(ppo.Args(resume=str(folder), **changes))


# ------------------------------------------------------------------------------------------------- Reproducibility
def test_the_same_seed_gives_the_same_run_and_another_one_another(undisturbed, in_tmp_path):
    assert_same_run(train(**EXACT), undisturbed)
    other = train(**EXACT, seed=2)
    assert (state(other, 40)["model"]["actor.0.weight"] != state(undisturbed, 40)["model"]["actor.0.weight"]).any()
    assert rows(other, "episodes.csv") != rows(undisturbed, "episodes.csv")


@pytest.mark.parametrize("changes", [{"checkpoints": 2}, {"capture_video": True, "env_id": "Film-v0"}])
def test_checkpoints_and_videos_do_not_change_what_is_learned(in_tmp_path, changes):
    env_id = changes.get("env_id", "Random-v0")
    one = train(**changes)
    other = train(env_id=env_id, checkpoints=1)
    first, second = state(one, 40)["model"], state(other, 40)["model"]
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert rows(one, "episodes.csv", ["seconds"]) == rows(other, "episodes.csv", ["seconds"])


# ------------------------------------------------------------------------------------------------------------ Kill
@pytest.mark.parametrize("attempt", range(4))
def test_killed_at_random_moments(undisturbed, in_tmp_path, attempt):
    moment = random.Random(attempt)
    for _ in range(2):
        folders = list(Path().glob("runs/*"))
        if folders and checkpoints(folders[0]):
            pid = fork(resume=str(folders[0]))
        else:
            shutil.rmtree("runs", ignore_errors=True)
            pid = fork(**EXACT)
        wait_for_updates(pid, moment.randrange(11, 38))  # after the first checkpoint
        os.kill(pid, signal.SIGKILL)
        wait(pid)
    (folder,) = Path().glob("runs/*")
    resume(folder)
    assert_same_run(folder, undisturbed)


def test_keep_adds_to_what_is_kept():
    run = ppo.Run(ppo.Args())
    run.keep(one=torch.nn.Linear(1, 1))
    run.keep(other=torch.nn.Linear(1, 1))
    assert list(run.kept) == ["one", "other"]
    with pytest.raises(SystemExit):
        run.keep(coefficient=0.5)


def test_killed_while_it_writes_a_checkpoint(undisturbed, in_tmp_path):
    def kill_in_the_second():
        write_state = ppo.write_state

        def half_written(content, file):
            write_state(content, file)
            if content["update"] == 20:
                file.truncate(1000)
                os.kill(os.getpid(), signal.SIGKILL)

        ppo.write_state = half_written

    assert wait(fork(kill_in_the_second, **EXACT))[0] == -signal.SIGKILL
    (folder,) = Path().glob("runs/*")
    assert checkpoints(folder) == [10]
    resume(folder)
    assert_same_run(folder, undisturbed)


def test_rows_after_the_checkpoint_are_dropped_also_half_written_ones(undisturbed, half):
    for name in ("metrics.csv", "episodes.csv"):
        with open(half / name, "a") as file:
            file.write("123,4")
    resume(half)
    assert_same_run(half, undisturbed)


def test_missing_rows_are_noticed(half, capsys):
    (half / "episodes.csv").write_text("global_step,episodic_return,episodic_length,seconds\n")
    with pytest.raises(SystemExit) as stop:
        resume(half)
    assert stop.value.code == 2 and "rows from before the checkpoint are missing" in capsys.readouterr().err


def test_without_exact_resume_a_run_goes_on_the_same_each_time(in_tmp_path):
    folder = train()
    for name in ("one", "other"):
        shutil.copytree(folder, name)
        for update in (30, 40):
            Path(f"{name}/checkpoints/{update}.pt").unlink()
        resume(name)
    assert_same_run(Path("one"), Path("other"))


def test_a_process_of_an_environment_that_dies_ends_the_run_in_one_line(in_tmp_path):
    process = start(
        *words(**{**SMALL, "total_timesteps": 10**6, "vectorization": "async", "env_id": "environments:Random-v0"})
    )
    wait_for_updates(process.pid, 5)
    children = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True).stdout.split()
    os.kill(int(children[-1]), signal.SIGKILL)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "an environment's process died" in stderr
    assert not any(Path(f"/proc/{child}").exists() for child in children)


# ---------------------------------------------------------------------------------------------------- Other options
def test_typed_arguments_win_and_are_printed_and_noted(half, capsys):
    resume(half, total_timesteps=2400, learning_rate=1e-3)
    assert checkpoints(half)[-1] == 50
    printed = capsys.readouterr().out
    assert "from update 21 on: learning_rate 0.001 instead of 0.00025" in printed
    rates = [float(row["charts/learning_rate"]) for row in rows(half, "metrics.csv")]
    assert rates[20] == pytest.approx(1e-3 * 30 / 50)
    config = json.loads((half / "config.json").read_text())
    (note,) = config["resumed"]
    assert note["after_update"] == 20 and note["arguments"]["learning_rate"] == 1e-3
    assert config["arguments"]["learning_rate"] == 2.5e-4


def test_a_run_that_has_ended_says_so_and_how_to_go_on(undisturbed, in_tmp_path, capsys):
    shutil.copytree(undisturbed, "runs/whole")
    resume("runs/whole")
    assert "has ended; train it longer with --total-timesteps 1968 or more" in capsys.readouterr().out
    assert_same_run(Path("runs/whole"), undisturbed)


def test_a_run_folder_belongs_to_one_process(half, capsys):
    lock = ppo.filelock.FileLock(half / "lock")
    with lock, pytest.raises(SystemExit) as stop:
        ppo.Run(ppo.Args(**SMALL, resume=str(half)), ppo.load_checkpoint(half)).open()
    assert stop.value.code == 2 and "another process is training it" in error_line(capsys.readouterr().err)


def test_statistics_of_wrappers_outlive_the_fresh_environments_of_exact_resume(monkeypatch):
    make_env = ppo.make_env
    monkeypatch.setattr(ppo, "make_env", lambda *given: ppo.gym.wrappers.NormalizeObservation(make_env(*given)))
    envs = ppo.VectorEnv(ppo.Args(), 2)
    envs.reset([1, 2])
    envs.reset([3, 4])
    assert [count for _, _, count in envs.state_dict()["obs_rms"]] == pytest.approx([2, 2], abs=0.01)


def test_a_resumed_optimizer_keeps_the_options_of_an_edited_script():
    weight = torch.nn.Parameter(torch.ones(1))
    weight.grad = torch.ones(1)
    before = torch.optim.Adam([weight], lr=1e-3)
    before.step()
    after = torch.optim.AdamW([weight], lr=1e-4, weight_decay=0.1)
    saved = {"path": "1.pt", "optimizer": before.state_dict(), "optimizer_options": {"optimizer": before.param_groups}}
    ppo.restore({**saved, "args": ppo.Args(anneal_lr=False)}, optimizer=after)
    (group,) = after.param_groups
    assert (group["lr"], group["weight_decay"], after.state[weight]["step"]) == (1e-4, 0.1, 1)


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_an_environment_that_draws_from_numpys_own_generator_repeats_with_the_seed(in_tmp_path, vectorization):
    options = {"env_id": "environments:Careless-v0", "vectorization": vectorization}
    one, other = (train(**options, exp_name=name) for name in ("one", "other"))
    assert rows(one, "metrics.csv", ["charts/SPS"]) == rows(other, "metrics.csv", ["charts/SPS"])


def test_environments_in_processes_draw_different_numbers():
    args = ppo.Args(env_id="Careless-v0", vectorization="async")
    envs = ppo.VectorEnv(args, 3)
    assert len(set(envs.reset([1, 2, 3])[:, 0])) == 3
    envs.close()


# --------------------------------------------------------------------------------------------------------- Signals
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_a_signal_saves_the_update_and_says_how_to_go_on(in_tmp_path, number, vectorization):
    options = {"env_id": "environments:Random-v0", "total_timesteps": 48 * 3000, "vectorization": vectorization}
    process = start(*words(**SMALL | options), start_new_session=True)
    wait_for_updates(process.pid, 8)
    os.killpg(process.pid, number)  # as a terminal does it: to all processes
    stdout, stderr = process.communicate(timeout=60)
    assert (process.returncode, stderr) == (128 + number, STOPPING)
    (folder,) = Path().glob("runs/*")
    reached = len(rows(folder, "metrics.csv"))
    assert checkpoints(folder) == [reached]
    python, script, *arguments = shlex.split(stdout.strip().splitlines()[-1].split(": ", 1)[1])
    assert (python, script, arguments) == ("python", str(SCRIPT), ["--resume", str(folder)])
    resume(folder, total_timesteps=48 * (reached + 5))
    steps = [int(row["global_step"]) for row in rows(folder, "metrics.csv")]
    assert steps == list(range(48, 48 * (reached + 5) + 1, 48))


def test_exact_resume_holds_after_a_signal_too(undisturbed, in_tmp_path):
    def slow():
        compute_gae = ppo.compute_gae

        def slow_gae(*arguments):
            time.sleep(0.02)
            return compute_gae(*arguments)

        ppo.compute_gae = slow_gae

    pid = fork(slow, **EXACT)
    wait_for_updates(pid, 15)
    os.kill(pid, signal.SIGTERM)
    assert wait(pid) == (128 + signal.SIGTERM, STOPPING)
    (folder,) = Path().glob("runs/*")
    assert checkpoints(folder)[-1] in (10, 20, 30)
    resume(folder)
    assert_same_run(folder, undisturbed)


def test_the_second_signal_ends_the_run_at_once(in_tmp_path):
    def endless():
        ppo.compute_gae = lambda *_: time.sleep(600)

    pid = fork(endless)
    while not list(Path().glob("runs/*/metrics.csv")):
        time.sleep(0.01)
    time.sleep(0.5)
    os.kill(pid, signal.SIGTERM)
    time.sleep(0.3)
    os.kill(pid, signal.SIGTERM)
    assert wait(pid)[0] == -signal.SIGTERM


def test_handlers_files_and_lock_are_given_back(in_tmp_path, monkeypatch):
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    folder = train()
    monkeypatch.setattr(ppo, "compute_gae", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        train(exp_name="fails")
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    with ppo.filelock.FileLock(folder / "lock").acquire(blocking=False):
        pass


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), torch.OutOfMemoryError("too much")])
def test_a_full_disk_or_memory_ends_the_run_with_one_line_that_says_how_to_go_on(
    in_tmp_path, monkeypatch, capsys, error
):
    write_state = ppo.write_state

    def full(content, file):
        if content["update"] == 20:
            raise error
        write_state(content, file)

    monkeypatch.setattr(ppo, "write_state", full)
    with pytest.raises(SystemExit) as stop:
        train(**EXACT)
    (folder,) = Path().glob("runs/*")
    line = error_line(capsys.readouterr().err)
    assert stop.value.code == 1 and f"go on with --resume {folder}" in line and str(error) in line
    assert checkpoints(folder) == [10]


def test_a_full_disk_that_no_file_can_be_flushed_to_leaves_one_line_too(in_tmp_path, monkeypatch, capsys):
    def log(run, metrics):
        run.metrics_file.close()
        run.metrics_file = open("/dev/full", "w")
        print(0, file=run.metrics_file, flush=True)

    monkeypatch.setattr(ppo.Run, "log", log)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit):
        train()
    assert "No space left on device" in error_line(capsys.readouterr().err)
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_mistake_in_the_agent_ends_the_run_though_environments_have_processes(in_tmp_path):
    broken = f"import sys; sys.path.insert(0, {str(SCRIPT.parent)!r}); import ppo; ppo.Agent = None; "
    command = [sys.executable, "-c", broken + "ppo.main(ppo.Args(vectorization='async'))"]
    assert subprocess.run(command, capture_output=True, timeout=60).returncode == 1


def test_ctrl_c_ends_an_evaluation_quietly(half):
    process = start("--evaluate", str(half), "--episodes", "1000000", "--env-id", "environments:Random-v0")
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert (process.returncode, stderr) == (130, "")


def test_a_run_whose_reader_has_gone_saves_when_it_is_stopped(in_tmp_path):
    """As `python ppo.py | tee log` with Ctrl-C, which ends tee first."""
    process = start(*words(**{**SMALL, "env_id": "environments:Random-v0", "total_timesteps": 10**6}))
    wait_for_updates(process.pid, 5)
    process.stdout.close()
    process.stderr.close()
    process.send_signal(signal.SIGINT)
    process.wait(timeout=60)
    (folder,) = Path().glob("runs/*")
    assert checkpoints(folder) == [len(rows(folder, "metrics.csv"))]


def test_a_script_that_has_changed_says_so(half, capsys):
    (half / "ppo.py").write_text("# as it was")
    resume(half)
    assert "note: ppo.py has changed since this run began; runs/half/ppo.py has not" in capsys.readouterr().out


def test_a_rate_that_was_annealed_is_whole_again_without_annealing(half):
    resume(half, anneal_lr=False)
    assert float(rows(half, "metrics.csv")[-1]["charts/learning_rate"]) == ppo.Args().learning_rate
