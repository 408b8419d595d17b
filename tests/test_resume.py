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

import environments
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
    load_script,
    rows,
    start,
    state,
    train,
    type_here,
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


def end_of(folder):
    """How other programs see that a run has ended."""
    return json.loads((folder / "end.json").read_text("utf-8"))["end"]


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
    torch.testing.assert_close(state(one, 40)["model"], state(other, 40)["model"], rtol=0, atol=0)
    assert rows(one, "episodes.csv", ["seconds"]) == rows(other, "episodes.csv", ["seconds"])


# ------------------------------------------------------------------------------------------------------------ Kill
@pytest.mark.parametrize("attempt", range(4))
def test_killed_at_random_moments(undisturbed, in_tmp_path, attempt):
    moment = random.Random(attempt)
    pid = fork(**EXACT)
    for _ in range(2):
        wait_for_updates(pid, moment.randrange(38))  # it may be before the first planned checkpoint
        os.kill(pid, signal.SIGKILL)
        wait(pid)
        (folder,) = Path().glob("runs/*")
        pid = fork(resume=folder)
    assert wait(pid) == (0, "")
    assert_same_run(folder, undisturbed)


def test_killed_while_it_writes_a_checkpoint(undisturbed, in_tmp_path):
    def kill_in_the_second():
        save = torch.save

        def half_written(content, file):
            save(content, file)
            if content["update"] == 20:
                file.truncate(1000)
                os.kill(os.getpid(), signal.SIGKILL)

        torch.save = half_written

    assert wait(fork(kill_in_the_second, **EXACT))[0] == -signal.SIGKILL
    (folder,) = Path().glob("runs/*")
    assert checkpoints(folder) == [10]
    train(resume=folder)
    assert_same_run(folder, undisturbed)


def test_rows_after_the_checkpoint_are_dropped_also_half_written_ones(undisturbed, half):
    for name in ("metrics.csv", "episodes.csv"):
        with open(half / name, "a") as file:
            file.write("123,4")
    train(resume=half)
    assert_same_run(half, undisturbed)


def test_without_exact_resume_a_run_goes_on_the_same_each_time(in_tmp_path):
    folder = train()
    for name in ("one", "other"):
        shutil.copytree(folder, name)
        for update in (30, 40):
            Path(f"{name}/checkpoints/{update}.pt").unlink()
        train(resume=name)
    assert_same_run(Path("one"), Path("other"))


@pytest.mark.parametrize("exact_resume, last", [(False, 34), (True, 30)])
def test_an_error_costs_what_was_learned_since_the_last_interim_checkpoint(
    in_tmp_path, monkeypatch, exact_resume, last
):
    """With --exact-resume, only planned checkpoints can be gone on from with the same bits."""
    monkeypatch.setattr(ppo, "LONGEST_UNSAVED", 0)
    step = environments.Random.step
    steps = []

    def crash(env, action):
        steps.append(action)
        if len(steps) > 2 + 48 * 34:  # two come before training
            raise RuntimeError("the simulator crashed")
        return step(env, action)

    monkeypatch.setattr(environments.Random, "step", crash)
    with pytest.raises(RuntimeError):
        train(exact_resume=exact_resume)
    monkeypatch.setattr(environments.Random, "step", step)
    (folder,) = Path().glob("runs/*")
    assert checkpoints(folder) == sorted({10, 20, 30, last})  # an interim one makes way for the next
    assert not (folder / "end.json").exists()
    train(resume=folder)
    assert checkpoints(folder) == [10, 20, 30, 40] and end_of(folder) == "whole"
    assert len(rows(folder, "metrics.csv")) == 40


def test_a_process_of_an_environment_that_dies_ends_the_run_and_the_others(in_tmp_path):
    options = {"env_id": "environments:Random-v0", "vectorization": "async", "total_timesteps": 10**6}
    process = start(*words(**SMALL | options))
    wait_for_updates(process.pid, 5)
    found = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True)
    children = found.stdout.split()
    os.kill(int(children[-1]), signal.SIGKILL)
    process.communicate(timeout=60)
    assert process.returncode == 1
    assert not any(Path(f"/proc/{child}").exists() for child in children)


# ---------------------------------------------------------------------------------------------------- Other options
def test_typed_arguments_win_and_are_noted(half):
    config = (half / "config.json").read_bytes()
    train(resume=half, total_timesteps=2400, learning_rate=1e-3)
    assert checkpoints(half)[-1] == 50
    rates = [float(row["charts/learning_rate"]) for row in rows(half, "metrics.csv")]
    assert rates[20] == pytest.approx(1e-3 * 30 / 50)
    assert json.loads((half / "resumed_after_20.json").read_text("utf-8"))["learning_rate"] == 1e-3
    assert (half / "config.json").read_bytes() == config


def adam_options(optimizer):
    (group,) = optimizer.param_groups
    return group["lr"], group["weight_decay"], group["betas"]


def test_an_optimizer_goes_on_as_it_was_saved_but_for_what_is_built_differently_now():
    """Schedulers, and train, change rates; options are typed anew, and edited in the script."""
    weights = torch.nn.Linear(1, 1)

    def make_run(checkpoint, **options):
        run = ppo.Run(ppo.Args(), checkpoint)
        optimizer = torch.optim.AdamW(weights.parameters(), **options)
        run.keep(optimizer=optimizer)
        return run, optimizer

    first, optimizer = make_run(None, lr=1e-3, weight_decay=0.1)
    optimizer.param_groups[0]["lr"] = 1e-5
    state = {"update": 1, "global_step": 1, "seconds": 1.0, "recent_returns": [], "columns": [], "path": Path("1.pt")}
    checkpoint = {**state, "built": first.built, "optimizer": optimizer.state_dict()}
    _, same = make_run(checkpoint, lr=1e-3, weight_decay=0.1)
    assert adam_options(same) == (1e-5, 0.1, (0.9, 0.999))
    _, typed = make_run(checkpoint, lr=2e-3, weight_decay=0.1)
    assert adam_options(typed) == (2e-3, 0.1, (0.9, 0.999))
    second, edited = make_run(checkpoint, lr=1e-3, weight_decay=0.2, betas=(0.5, 0.9))
    assert adam_options(edited) == (1e-5, 0.2, (0.5, 0.9))
    checkpoint = {**state, "built": second.built, "optimizer": edited.state_dict()}
    _, again = make_run(checkpoint, lr=1e-3, weight_decay=0.2)
    assert adam_options(again) == (1e-5, 0.2, (0.9, 0.999))


def test_a_list_among_the_options_of_an_edited_script_is_kept(in_tmp_path):
    text = SCRIPT.read_text("utf-8").replace("import dataclass\n", "import dataclass, field\n")
    text = text.replace(
        "    env_id: str", "    milestones: list[int] = field(default_factory=lambda: [1])\n    env_id: str"
    )
    Path("edited.py").write_text(text, "utf-8")
    edited = load_script(Path("edited.py"))
    folder = edited.main(edited.Args(**SMALL, milestones=[3, 5]))
    assert edited.read_arguments(["--resume", str(folder)])[0].milestones == [3, 5]


def test_the_last_checkpoint_is_that_of_the_largest_number(half):
    shutil.copy(half / "checkpoints" / "20.pt", half / "checkpoints" / "9.pt")
    assert ppo.load_checkpoint(half)["path"].stem == "20"


def test_a_whole_run_has_nothing_left_to_do(undisturbed, in_tmp_path):
    shutil.copytree(undisturbed, "whole")
    train(resume="whole")
    assert_same_run(Path("whole"), undisturbed)
    assert end_of(Path("whole")) == "whole"


def test_a_run_folder_belongs_to_one_process(half, capsys):
    with ppo.filelock.FileLock(half / "lock"), pytest.raises(SystemExit) as stop:
        type_here("--resume", half)
    assert stop.value.code == 2 and str(half) in error_line(capsys.readouterr().err)
    assert checkpoints(half) == [10, 20]


def test_a_copy_that_was_edited_goes_on_with_an_older_run_and_says_so(half, capsys):
    text = SCRIPT.read_text("utf-8")
    gamma = "    gamma: float = 0.99"
    Path("my_ppo.py").write_text(text.replace(gamma, f"    my_option: int = 1\n{gamma}"), "utf-8")
    my_ppo = load_script(Path("my_ppo.py"))
    my_ppo.main(*my_ppo.read_arguments(["--evaluate", str(half), "--episodes", "1"]))
    assert "note: " in capsys.readouterr().out
    train(my_ppo, resume=half, my_option=2)
    assert "note: " in capsys.readouterr().out
    assert state(half, 40)["script"] == "my_ppo" and state(half, 40)["args"]["my_option"] == 2


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_an_environment_that_draws_from_numpys_own_generator_repeats_with_the_seed(in_tmp_path, vectorization):
    options = {"env_id": "environments:Careless-v0", "vectorization": vectorization}
    one, other = (train(**options, exp_name=name) for name in ("one", "other"))
    assert rows(one, "metrics.csv", ["charts/SPS"]) == rows(other, "metrics.csv", ["charts/SPS"])


def test_environments_in_processes_draw_different_numbers():
    envs = ppo.VectorEnv(ppo.Args(env_id="Careless-v0", vectorization="async"), 3)
    observations = envs.reset([1, 2, 3])
    envs.close()
    assert len(set(observations[:, 0])) == 3


# --------------------------------------------------------------------------------------------------------- Signals
@pytest.mark.parametrize(
    "number, vectorization", [(signal.SIGINT, "sync"), (signal.SIGINT, "async"), (signal.SIGTERM, "async")]
)
def test_a_signal_saves_the_update_and_says_how_to_go_on(in_tmp_path, number, vectorization):
    options = {"env_id": "environments:Random-v0", "total_timesteps": 48 * 3000, "vectorization": vectorization}
    process = start(*words(**SMALL | options), start_new_session=True)
    wait_for_updates(process.pid, 8)
    os.killpg(process.pid, number)  # as a terminal does it: to all processes
    stdout, stderr = process.communicate(timeout=60)
    assert (process.returncode, stderr) == (128 + number, STOPPING)
    (folder,) = Path().glob("runs/*")
    reached = len(rows(folder, "metrics.csv"))
    assert checkpoints(folder) == [reached] and end_of(folder) == "stopped"
    python, script, *arguments = shlex.split(stdout.strip().splitlines()[-1].split(": ", 1)[1])
    assert (python, script, arguments) == ("python", str(SCRIPT), ["--resume", str(folder)])
    train(resume=folder, total_timesteps=48 * (reached + 5))
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
    train(resume=folder)
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


def test_a_run_that_fails_gives_back_handlers_and_lock_and_does_not_look_whole(half, monkeypatch):
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    monkeypatch.setattr(ppo, "compute_gae", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        train(resume=half)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
    assert not (half / "end.json").exists()
    with ppo.filelock.FileLock(half / "lock").acquire(blocking=False):
        pass


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
    process = start(*words(**SMALL | {"env_id": "environments:Random-v0", "total_timesteps": 10**6}))
    wait_for_updates(process.pid, 5)
    process.stdout.close()
    process.stderr.close()
    process.send_signal(signal.SIGINT)
    process.wait(timeout=60)
    (folder,) = Path().glob("runs/*")
    assert checkpoints(folder) == [len(rows(folder, "metrics.csv"))]


# --------------------------------------------------------------------------------------- At which update it happens
def signal_in(monkeypatch, update):
    """The run gets SIGTERM while it is in this update."""
    compute_gae = ppo.compute_gae
    updates = []

    def interrupted(*arguments):
        updates.append(len(updates) + 1)
        if updates[-1] == update:
            os.kill(os.getpid(), signal.SIGTERM)
        return compute_gae(*arguments)

    monkeypatch.setattr(ppo, "compute_gae", interrupted)


def test_a_run_that_gets_a_signal_in_its_last_update_is_whole(in_tmp_path, monkeypatch, capsys):
    signal_in(monkeypatch, 40)
    folder = train()
    assert checkpoints(folder)[-1] == 40 and end_of(folder) == "whole"
    assert "play it: " in capsys.readouterr().out


def test_a_run_that_gets_a_signal_ends_without_another_video(in_tmp_path, monkeypatch):
    signal_in(monkeypatch, 20)  # whose checkpoint is planned
    with pytest.raises(SystemExit):
        train(env_id="Film-v0", capture_video=True)
    (folder,) = Path().glob("runs/*")
    assert checkpoints(folder) == [10, 20]
    assert [path.name for path in folder.glob("videos/*")] == ["10.mp4"]


def test_interim_checkpoints_are_ten_minutes_apart_and_after_planned_ones(in_tmp_path, monkeypatch, spy):
    """Of a run whose updates take 100 seconds each."""
    learned = spy(ppo, "compute_gae")
    monkeypatch.setattr(ppo.time, "perf_counter", lambda: 100.0 * len(learned))
    saved = []
    save = ppo.Run.save

    def noted_save(run, **options):
        saved.append(run.update)
        save(run, **options)

    monkeypatch.setattr(ppo.Run, "save", noted_save)
    train(checkpoints=2)
    assert saved == [0, 7, 14, 20, 27, 34, 40]
