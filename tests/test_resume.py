"""A run that was cut off in any way and goes on ends as if nothing had happened."""

import contextlib
import io
import os
import random
import resource
import shlex
import shutil
import signal
import time
from pathlib import Path

import ppo
import pytest
from helpers import (
    SCRIPT,
    SMALL,
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
    wait,
    wait_for_updates,
    words,
)


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
    run("--resume", str(folder), "--env-id", "environments:Random-v0")
    assert_same_run(folder, undisturbed)


def test_killed_while_it_writes_a_checkpoint(undisturbed, in_tmp_path):
    def die_while_saving():
        save = ppo.torch.save

        def save_half(content, file):
            save(content, whole := io.BytesIO())
            if content["update"] == 30:
                file.write(whole.getvalue()[:50_000])
                file.flush()
                os.kill(os.getpid(), signal.SIGKILL)
            file.write(whole.getvalue())

        ppo.torch.save = save_half

    assert wait(fork(die_while_saving)) == (-signal.SIGKILL, "")
    (folder,) = Path().glob("runs/*")
    assert checkpoints(folder) == [10, 20]
    (folder / "checkpoints" / "30.pt.tmp").write_bytes(b"half a checkpoint")  # in case the script writes elsewhere
    (folder / "checkpoints" / "50.pt.tmp").write_bytes(b"half a checkpoint")
    resume(folder)
    assert_same_run(folder, undisturbed)


@pytest.mark.parametrize("half_row", ["1", "1008", "1008,0.5,0.25", "1008,0.5,", "\0\0"])
def test_a_half_written_last_row_is_dropped(undisturbed, half, half_row):
    for name in ("metrics.csv", "episodes.csv"):
        whole = (half / name).read_text().splitlines(keepends=True)
        kept = [row for row in whole[1:] if int(row.split(",")[0]) <= 960]
        (half / name).write_text("".join([whole[0], *kept, half_row]))
    resume(half)
    assert_same_run(half, undisturbed)


# -------------------------------------------------------------------------------------------------------------- Signals


@pytest.mark.parametrize("number, env_id", [(signal.SIGINT, "Acrobot-v1"), (signal.SIGTERM, "environments:Random-v0")])
def test_a_signal_saves_the_update_and_says_how_to_go_on(in_tmp_path, number, env_id):
    process = start(*words(**SMALL | {"env_id": env_id, "total_timesteps": 48 * 3000}))
    wait_for_updates(process.pid, 23)
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=60)
    assert (process.returncode, stderr) == (128 + number, "")
    (folder,) = Path().glob("runs/*")
    reached = len(rows(folder, "metrics.csv"))
    assert 23 <= reached < 750  # the first scheduled checkpoint
    assert checkpoints(folder) == [reached]
    assert f"stopped after update {reached}" in stdout
    python, script, *arguments = shlex.split(stdout.strip().splitlines()[-1].split(": ", 1)[1])
    assert (python, script) == ("python", str(SCRIPT))

    process = start(*arguments)
    wait_for_updates(process.pid, reached + 5)
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=60)
    assert (process.returncode, stderr) == (128 + number, "")
    steps = [int(row["global_step"]) for row in rows(folder, "metrics.csv")]
    assert steps == list(range(48, 48 * len(steps) + 1, 48))
    assert len(steps) >= reached + 5
    assert checkpoints(folder) == [reached, len(steps)]


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
    assert wait(pid) == (128 + signal.SIGTERM, "")
    (folder,) = Path().glob("runs/*")
    shutil.copytree(folder, "copy")
    resume(folder)
    resume("copy")
    assert_same_run(Path("copy"), folder)


def test_the_second_signal_ends_the_run_at_once(in_tmp_path):
    pid = fork(slow_down(60))
    while not Path("slow").exists():
        time.sleep(0.001)
    os.kill(pid, signal.SIGTERM)
    time.sleep(0.5)
    assert running(pid)
    os.kill(pid, signal.SIGTERM)
    assert wait(pid)[0] == -signal.SIGTERM


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
    assert status in ((1, 2) if size == 1_000 else (1,)), stderr  # it has not even begun
    assert str(half) in error_line(stderr)
    assert status == 2 or f"--resume {half}" in stderr
    assert checkpoints(half) == [10, 20]
    assert not list(half.rglob("*.tmp"))
    resume(half)
    assert_same_run(half, undisturbed)


def test_a_full_disk_before_the_first_checkpoint(in_tmp_path):
    status, stderr = wait(fork(limit_files(SCRIPT.stat().st_size + 1)))
    assert status == 1, stderr
    assert "--resume" not in error_line(stderr)  # there is nothing to resume from


def test_a_full_disk_at_the_start_leaves_nothing(in_tmp_path):
    status, stderr = wait(fork(limit_files(1_000)))
    assert status == 2, stderr
    error_line(stderr)
    assert not Path("runs").exists()
