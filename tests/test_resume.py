"""A run that was cut off in any way and goes on ends as if nothing had happened."""

import contextlib
import os
import pty
import random
import re
import resource
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
    TESTS,
    assert_same_run,
    assert_same_state,
    checkpoints,
    error_line,
    fork,
    rows,
    run,
    running,
    start,
    state,
    train,
    tree,
    wait,
    wait_for_updates,
    words,
)

STOPPING = "\nstopping after this update\n"


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The folder of a small run that nothing disturbed."""
    with contextlib.chdir(tmp_path_factory.mktemp("undisturbed")):
        return train().resolve()


@pytest.fixture
def half(undisturbed, in_tmp_path):
    """The same, as it was at its checkpoint after update 20, with the rows of later updates."""
    shutil.copytree(undisturbed, "runs/half")
    for update in (30, 40):
        Path(f"runs/half/checkpoints/{update}.pt").unlink()
    return Path("runs/half")


def resume(folder):
    return ppo.main(ppo.Args(resume=str(folder)))


# ------------------------------------------------------------------------------------------------------ Reproducibility


def test_the_same_seed_gives_the_same_run(undisturbed, in_tmp_path):
    assert_same_run(train(), undisturbed)


def test_another_seed_gives_another_run(undisturbed, in_tmp_path):
    folder = train(seed=2)
    assert (state(folder, 40)["model"]["actor.0.weight"] != state(undisturbed, 40)["model"]["actor.0.weight"]).any()
    assert rows(folder, "episodes.csv") != rows(undisturbed, "episodes.csv")


def test_videos_do_not_change_the_training(in_tmp_path):
    short = {"env_id": "CartPole-v1", "total_timesteps": 192, "checkpoints": 2}
    with_videos, without = train(**short, capture_video=True), train(**short)
    assert len(list(with_videos.glob("videos/*.mp4"))) == 2
    assert_same_state(state(with_videos, 4), state(without, 4))
    assert rows(with_videos, "episodes.csv", ["seconds"]) == rows(without, "episodes.csv", ["seconds"])


def test_the_last_returns_of_a_checkpoint_are_those_of_episodes_csv(undisturbed):
    for update in checkpoints(undisturbed):
        saved = state(undisturbed, update)
        before = [row for row in rows(undisturbed, "episodes.csv") if int(row["global_step"]) <= saved["global_step"]]
        assert saved["recent_returns"] == [float(row["episodic_return"]) for row in before][-100:]


def test_fresh_episodes_start_from_seeds_of_their_own(in_tmp_path, monkeypatch):
    reset, seeds = ppo.VectorEnv.reset, []

    def noted_reset(self, given):
        if len(given) == 3:  # not the look at one environment before the run
            seeds.append(tuple(given))
        return reset(self, given)

    monkeypatch.setattr(ppo.VectorEnv, "reset", noted_reset)
    train()
    train()
    assert seeds[:4] == seeds[4:]  # at the start and after each checkpoint but the last
    train(seed=2)
    assert len({seed for given in (*seeds[:4], *seeds[8:]) for seed in given}) == 8 * 3


def test_the_last_returns_go_on_after_a_resume(in_tmp_path):
    folder = train(total_timesteps=48 * 4, checkpoints=2)
    wanted = state(folder, 4)["recent_returns"]
    assert len(state(folder, 2)["recent_returns"]) < len(wanted) < 100
    (folder / "checkpoints" / "4.pt").unlink()
    resume(folder)
    assert state(folder, 4)["recent_returns"] == wanted


# ---------------------------------------------------------------------------------------------------------------- Kills


@pytest.mark.parametrize("attempt", range(4))
def test_killed_at_random_moments(undisturbed, in_tmp_path, attempt):
    seed = random.SystemRandom().randrange(10**6)
    print("seed", seed)
    chance, statuses = random.Random(seed), []
    for kill in (True,) * 6 + (False,):
        folders = list(Path().glob("runs/*"))
        if folders and not checkpoints(folders[0]):
            shutil.rmtree(folders.pop())  # killed before it had saved anything: the user starts again
        pid = fork(resume=str(folders[0]) if folders else None)
        if kill:
            wait_for_updates(pid, chance.randrange(40))
            time.sleep(chance.uniform(0, 0.03))
            os.kill(pid, signal.SIGKILL)
        status, stderr = wait(pid)
        assert stderr == ""
        statuses.append(status)
    print("statuses", statuses)
    assert set(statuses) <= {0, -signal.SIGKILL}
    assert -signal.SIGKILL in statuses
    assert statuses[-1] == 0
    (folder,) = Path().glob("runs/*")
    assert_same_run(folder, undisturbed)


def test_killed_as_typed(undisturbed, in_tmp_path):
    process = start(*words(**SMALL | {"env_id": "environments:Random-v0"}))
    wait_for_updates(process.pid, 23)
    process.kill()
    process.communicate()
    (folder,) = Path().glob("runs/*")
    run("--resume", str(folder))
    assert_same_run(folder, undisturbed)


def test_killed_while_it_writes_a_checkpoint(undisturbed, in_tmp_path):
    def die_while_saving():
        open_file = Path.open

        def open_to_die(path, *mode, **options):
            file = open_file(path, *mode, **options)
            if path.name.startswith("30.pt"):

                def write_half(content):
                    os.write(file.fileno(), content[:50_000])
                    os.kill(os.getpid(), signal.SIGKILL)

                file.write = write_half
            return file

        Path.open = open_to_die

    assert wait(fork(die_while_saving)) == (-signal.SIGKILL, "")
    (folder,) = Path().glob("runs/*")
    (half_written,) = folder.glob("checkpoints/30.*")
    assert half_written.stat().st_size == 50_000
    assert checkpoints(folder) == [10, 20]
    (folder / "checkpoints" / "50.pt.tmp").write_bytes(b"half a checkpoint")
    resume(folder)
    assert_same_run(folder, undisturbed)


@pytest.mark.parametrize("half_row", ["1", "1008", "1008,0.5,0.25", "1008,0.5,", "\0\0", "\n", "\0\0\n"])
def test_a_half_written_last_row_is_dropped(undisturbed, half, half_row):
    for name in ("metrics.csv", "episodes.csv"):
        whole = (half / name).read_text().splitlines(keepends=True)
        kept = [row for row in whole[1:] if int(row.split(",")[0]) <= 960]
        (half / name).write_text("".join([whole[0], *kept, half_row]))
    resume(half)
    assert_same_run(half, undisturbed)


def test_environments_that_wear_out(in_tmp_path):
    """Some begin otherwise when they are used: all are made anew where fresh episodes start."""
    folder = train(env_id="Worn-v0")
    shutil.copytree(folder, "copy")
    for update in (30, 40):
        Path(f"copy/checkpoints/{update}.pt").unlink()
    resume("copy")
    assert_same_run(Path("copy"), folder)


# --------------------------------------------------------------------------------------------- One process a run folder


def test_a_run_folder_belongs_to_one_process(undisturbed, half, capsys):
    pid = fork(slow_down(60), resume=str(half))
    wait_for("slow")
    before = tree(half)
    with pytest.raises(SystemExit) as stop:
        resume(half)
    assert stop.value.code == 2
    line = error_line(capsys.readouterr().err)
    assert f"{half}: process {pid} is training it" in line
    assert tree(half) == before
    os.kill(pid, signal.SIGKILL)
    wait(pid)
    resume(half)
    assert_same_run(half, undisturbed)


def test_another_run_may_be_trained_beside_it(undisturbed, in_tmp_path):
    pid = fork(slow_down(60))
    wait_for("slow")
    folder = train()
    os.kill(pid, signal.SIGKILL)
    wait(pid)
    assert len(list(Path().glob("runs/*"))) == 2
    assert_same_run(folder, undisturbed)


# -------------------------------------------------------------------------------------------------------------- Signals


@pytest.mark.parametrize("number, env_id", [(signal.SIGINT, "Acrobot-v1"), (signal.SIGTERM, "environments:Random-v0")])
def test_a_signal_saves_the_update_and_says_how_to_go_on(in_tmp_path, number, env_id):
    typed = SMALL | {"env_id": env_id, "total_timesteps": 48 * 3000}
    process = start(*words(**typed))
    wait_for_updates(process.pid, 23)
    process.send_signal(number)
    stdout, stderr = process.communicate()
    assert (process.returncode, stderr) == (128 + number, STOPPING)
    (folder,) = Path().glob("runs/*")
    reached = len(rows(folder, "metrics.csv"))
    assert 23 <= reached < 750  # the first scheduled checkpoint
    assert checkpoints(folder) == [reached]
    assert f"stopped after update {reached}" in stdout
    python, script, *arguments = shlex.split(stdout.strip().splitlines()[-1].split(": ", 1)[1])
    assert (python, script) == ("python", str(SCRIPT))

    assert arguments == ["--resume", str(folder)]
    pid = fork(resume=str(folder), **typed)
    wait_for_updates(pid, reached + 5)
    os.kill(pid, number)
    assert wait(pid) == (128 + number, STOPPING)
    steps = [int(row["global_step"]) for row in rows(folder, "metrics.csv")]
    assert steps == list(range(48, 48 * len(steps) + 1, 48))
    assert len(steps) >= reached + 5
    assert checkpoints(folder) == [reached, len(steps)]


def read_line(stream, wanted):
    """Reads lines until one of them begins like this."""
    while not (line := stream.readline()).startswith(wanted):
        assert line, f"ended before {wanted}"


def test_the_second_signal_ends_the_process_at_once_and_so_does_the_first_of_an_evaluation(in_tmp_path):
    process = start(*words(env_id="CartPole-v1", total_timesteps=10**8, num_steps=10**6))  # one update takes minutes
    read_line(process.stdout, "runs/CartPole")
    while not int(re.search(r"SigCgt:\s*(\w+)", Path(f"/proc/{process.pid}/status").read_text())[1], 16) >> 14 & 1:
        time.sleep(0.01)  # until the run handles SIGTERM, which Python alone doesn't
    process.send_signal(signal.SIGINT)
    read_line(process.stderr, STOPPING.strip())
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=20)
    assert (process.returncode, stderr) == (-signal.SIGINT, "")
    agent = train(env_id="CartPole-v1", total_timesteps=192, checkpoints=1)
    process = start("--evaluate", str(agent), "--episodes", "1000000")
    read_line(process.stdout, "episode 0")
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=20)
    assert (process.returncode, stderr) == (-signal.SIGINT, "")


def wait_for(name):
    """Returns once a child has made the file."""
    deadline = time.monotonic() + 60
    while not Path(name).exists():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def slow_down(seconds):
    """Makes the updates of a child long enough to be met by a signal; the file `slow` says that it is in one."""

    def slow():
        compute_gae = ppo.compute_gae

        def slow_gae(*arguments):
            Path("slow").touch()
            time.sleep(seconds)
            return compute_gae(*arguments)

        ppo.compute_gae = slow_gae

    return slow


def test_a_run_that_a_signal_stopped_resumes_the_same_each_time(in_tmp_path):
    pid = fork(slow_down(0.03))
    wait_for_updates(pid, 15)
    os.kill(pid, signal.SIGTERM)
    assert wait(pid) == (128 + signal.SIGTERM, STOPPING)
    (folder,) = Path().glob("runs/*")
    shutil.copytree(folder, "copy")
    resume(folder)
    resume("copy")
    assert_same_run(Path("copy"), folder)


def test_the_second_signal_ends_the_run_at_once(in_tmp_path):
    pid = fork(slow_down(60))
    wait_for("slow")
    os.kill(pid, signal.SIGTERM)
    time.sleep(0.5)
    assert running(pid)
    os.kill(pid, signal.SIGTERM)
    assert wait(pid)[0] == -signal.SIGTERM


def wait_at_most(pid, seconds):
    """As wait, but for a process that should end soon."""
    deadline = time.monotonic() + seconds
    while running(pid):
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
    return wait(pid)


def test_a_signal_during_a_video_ends_the_run_at_once(in_tmp_path):
    pid = fork(env_id="SlowFilm-v0", capture_video=True, total_timesteps=48 * 8)
    wait_for("filming")
    os.kill(pid, signal.SIGTERM)
    assert wait_at_most(pid, 60) == (128 + signal.SIGTERM, "")
    (folder,) = Path().glob("runs/*")
    assert checkpoints(folder) == [2]
    assert len(rows(folder, "metrics.csv")) == 2  # no update after the video
    assert not list(folder.glob("videos/*"))
    stdout = Path("stdout").read_text()
    assert f"recording {folder}/videos/2.mp4\n" in stdout
    assert "stopped after update 2, which is saved" in stdout


def test_killed_during_a_video(in_tmp_path):
    pid = fork(env_id="SlowFilm-v0", capture_video=True, total_timesteps=48 * 8)
    wait_for("filming")
    os.kill(pid, signal.SIGKILL)
    wait(pid)
    (folder,) = Path().glob("runs/*")
    assert checkpoints(folder) == [2]  # saved before the video
    assert len(rows(folder, "metrics.csv")) == 2


def test_a_run_that_is_stopping_records_no_video(in_tmp_path):
    pid = fork(slow_down(0.2), env_id="SlowFilm-v0", capture_video=True)
    wait_for("slow")
    os.kill(pid, signal.SIGTERM)
    assert wait_at_most(pid, 60) == (128 + signal.SIGTERM, STOPPING)
    (folder,) = Path().glob("runs/*")
    assert checkpoints(folder) == [1]
    assert "recording" not in Path("stdout").read_text()
    assert not list(folder.glob("videos/*"))


def test_a_signal_while_a_checkpoint_is_saved(undisturbed, in_tmp_path):
    def signal_while_saving():
        snapshot = ppo.Run.snapshot

        def with_signal(run):
            if run.update == 20:
                os.kill(os.getpid(), signal.SIGTERM)
            return snapshot(run)

        ppo.Run.snapshot = with_signal

    assert wait(fork(signal_while_saving)) == (128 + signal.SIGTERM, STOPPING)
    (folder,) = Path().glob("runs/*")
    assert checkpoints(folder) == [10, 20]
    assert len(rows(folder, "metrics.csv")) == 20  # the run ends with the update that is saved already
    resume(folder)
    assert_same_run(folder, undisturbed)


def test_the_handlers_are_given_back(in_tmp_path):
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    train(total_timesteps=48)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


# ------------------------------------------------------------------------------------------------------------ Full disk


def limit_files(size):
    """A stand-in for a full disk: no file of the child grows beyond `size` bytes."""
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


@pytest.mark.parametrize("size", [1_000, 12_000, 60_000], ids=["rows", "events", "checkpoint"])
def test_a_full_disk_ends_the_run_with_one_line(undisturbed, half, size):
    status, stderr = wait(fork(limit_files(size), resume=str(half)))
    assert status == 1, stderr
    assert f"{half}: " in error_line(stderr)
    assert f"--resume {half}" in stderr
    assert checkpoints(half) == [10, 20]
    resume(half)
    assert_same_run(half, undisturbed)
    assert not list(half.rglob("*.tmp"))


@pytest.mark.parametrize("kind", [MemoryError, torch.OutOfMemoryError])
def test_too_little_memory_ends_the_run_with_one_line(in_tmp_path, monkeypatch, capsys, kind):
    def train_too_much(args, run):
        run.keep()
        next(run.updates())
        raise kind("Tried to allocate 20.00 GiB")

    monkeypatch.setattr(ppo, "train", train_too_much)
    with pytest.raises(SystemExit) as ended:
        train()
    line = error_line(capsys.readouterr().err)
    assert ended.value.code == 1 and line.endswith(": Tried to allocate 20.00 GiB"), "nothing was saved yet"


def test_a_full_disk_before_the_first_checkpoint(in_tmp_path):
    status, stderr = wait(fork(limit_files(SCRIPT.stat().st_size + 1)))
    assert status == 1, stderr
    assert "runs/Random-v0__ppo__1__" in error_line(stderr) and "--resume" not in stderr


def test_a_full_disk_at_the_start(in_tmp_path):
    status, stderr = wait(fork(limit_files(1_000)))
    assert status == 2, stderr
    assert "File too large" in error_line(stderr)


# ----------------------------------------------------------------------------------------------------- Shells and pipes


def test_a_run_whose_reader_has_gone_saves_when_it_is_stopped(in_tmp_path):
    """As in `… 2>&1 | tee log` and Ctrl-C, which ends tee first."""
    reader, writer = os.pipe()
    with Path("out").open("w") as out:
        process = start(
            *words(**SMALL | {"env_id": "environments:Random-v0", "total_timesteps": 10**9}), stdout=out, stderr=writer
        )
    os.close(writer)
    wait_for_updates(process.pid, 3)
    os.close(reader)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 130
    assert "which is saved; go on with" in Path("out").read_text() and [*Path("runs").glob("*/checkpoints/*.pt")]


@pytest.mark.parametrize("steps", ["1000000000000000000", "960"])
def test_without_an_output_and_with_a_far_end(in_tmp_path, steps):
    typed = shlex.join(
        [sys.executable, str(SCRIPT), *words(**SMALL | {"env_id": "environments:Random-v0", "total_timesteps": steps})]
    )
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    process = subprocess.Popen(["sh", "-c", f"exec {typed} >&-"], stderr=subprocess.PIPE, text=True, env=environment)
    if steps != "960":
        wait_for_updates(process.pid, 3)
        process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate(timeout=60)
    assert "Traceback" not in stderr and process.returncode == (0 if steps == "960" else 143)
    assert [*Path("runs").glob("*/checkpoints/*.pt")]


def test_a_background_job_of_a_terminal_records_its_videos(in_tmp_path):
    """ffmpeg must not touch the terminal: a job in the background that does is suspended, and the training with it."""
    typed = words(env_id="CartPole-v1", total_timesteps=512, num_envs=1, num_steps=128, checkpoints=2)
    command = shlex.join([sys.executable, str(SCRIPT), *typed, "--capture-video"])
    job = f"{command} > log 2>&1 & wait $!; echo ended $? > status"
    child, terminal = pty.fork()
    if not child:
        os.execvp("bash", ["bash", "--norc", "-mc", job])
    deadline = time.monotonic() + 90
    while not Path("status").is_file() and time.monotonic() < deadline:
        time.sleep(0.1)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(terminal)
    assert Path("status").read_text() == "ended 0\n", Path("log").read_text()
    assert sorted(path.name for path in Path("runs").glob("*/videos/*")) == ["2.mp4", "4.mp4"]
