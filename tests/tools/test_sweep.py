"""benchmark/sweep.py as a user types it: what is done is skipped, what was cut short goes on, what fails is told."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from fnmatch import fnmatch
from pathlib import Path
from types import SimpleNamespace

import fake_ppo
import filelock
import pytest
import sweep
from command_line import UserError, one_line_errors, print_table
from fake_runs import updates, wait_until

ROOT = Path(__file__).parents[2]
FAKE = ROOT / "tests" / "tools" / "fake_ppo.py"
ONE = ["--env-ids", "A", "--num-seeds", "1"]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """A folder with the script that trains nothing."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(FAKE, tmp_path)
    sweep.read_folder.cache_clear()
    sweep.version_seen.cache_clear()
    sweep.defined_in.cache_clear()
    return tmp_path


def start(*words, fake="", **options):
    """Types a sweep of fake_ppo.py with these options of its own, unless another command is typed."""
    command = [] if "--command" in words else ["--command", f"python fake_ppo.py {fake}"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL, "text": True}
    return subprocess.Popen([sys.executable, ROOT / "benchmark" / "sweep.py", *command, *words], **pipes | options)


@pytest.fixture
def run(tool_here):
    """A sweep of fake_ppo.py with these options of its own, in this process; its exit status must be `status`. Returns
    its stdout and stderr."""

    def call(*words, fake="", status=0):
        return tool_here(sweep, "--command", f"python fake_ppo.py {fake}", *words, status=status)

    return call


def jobs_of(fake="", env_ids=("A",), num_seeds=1, **options):
    command = f"python fake_ppo.py {fake}"
    return sweep.make_jobs(sweep.Args(list(env_ids), command=command, num_seeds=num_seeds, **options))


def edit_the_script():
    source = Path("fake_ppo.py").read_text()
    Path("fake_ppo.py").write_text(source.replace("import json", "import json\n\nA_CONSTANT = 1", 1))


def runs():
    return sorted(path.parent for path in Path().glob("runs/*/config.json"))


def are_held(count):
    """Whether so many runs wait in their middle."""
    return lambda: len(updates()) == 9 * count


def logs():
    return {path.name.rsplit("__", 1)[0]: path.read_text() for path in Path().glob("runs/logs/*.log")}


def children(process):
    return [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


def alive(pid):
    return Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_bytes() != b""  # a zombie's


# ------------------------------------------------------------------------------------------------------ Kills and stops


def test_a_killed_sweep_goes_on_and_trains_nothing_twice(run):
    """The kernel tells its runs, which save a checkpoint; the same command, typed at once, waits for them."""
    Path("hold").touch()
    words = ["--env-ids", "A", "B", "--num-seeds", "2", "--workers", "2"]
    first = start(*words, fake="--hold 0")
    wait_until(are_held(2))
    pids = children(first)
    first.kill()
    first.communicate()
    Path("hold").unlink()
    stdout, _ = run(*words, fake="--hold 0")
    assert stdout.splitlines()[-1] == "4 done" and stdout.count("resumed from update") == 2
    assert len(pids) == 2 and not any(alive(pid) for pid in pids)
    assert len(runs()) == 4 and len(updates()) == len(set(updates())) == 4 * 20


def test_ctrl_c_saves_every_run_and_the_same_command_goes_on(run):
    Path("hold").touch()
    words = ["--env-ids", "A", "B", "C", "--num-seeds", "1", "--workers", "2"]
    process = start(*words, fake="--hold 0", start_new_session=True)
    wait_until(are_held(2))
    assert process.pid not in [os.getpgid(pid) for pid in children(process)]  # so they have it once, by the sweep
    os.killpg(process.pid, signal.SIGINT)  # as the terminal does
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130 and not stderr and stdout.splitlines()[-1] == "2 stopped, 1 queued"
    assert [sweep.last_checkpoint(folder) for folder in runs()] == [10, 10]
    assert [sweep.read_end(folder)["end"] for folder in runs()] == ["stopped", "stopped"]
    status, _ = run(*words, "--status", fake="--hold 0", status=1)
    assert status.count("can go on from update 10") == 2 and status.splitlines()[-1] == "2 interrupted, 1 queued"
    Path("hold").unlink()
    run(*words, fake="--hold 0 --num-threads 3")
    assert len(updates()) == len(set(updates())) == 3 * 20
    assert all("--num-threads 3 " in log for log in logs().values())  # what is typed now reaches resumed runs, too


def test_a_second_ctrl_c_ends_a_run_that_does_not_stop():
    Path("hold").touch()
    process = start(*ONE, fake="--hold 0 --stubborn")
    wait_until(are_held(1))
    (pid,) = children(process)
    process.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):  # it waits for the run to save its work
        process.wait(1)
    process.send_signal(signal.SIGINT)
    stdout, _ = process.communicate(timeout=30)
    assert process.returncode == 130 and "1 stopped" in stdout and not alive(pid)
    assert [sweep.read_end(folder) for folder in runs()] == [None]  # it could not even say so


@pytest.mark.parametrize(
    "stops, sent",
    [
        ([signal.SIGINT], [signal.SIGINT]),
        ([signal.SIGINT, signal.SIGINT], [signal.SIGINT, "kill", "kill"]),
        ([signal.SIGTERM, signal.SIGTERM], [signal.SIGINT]),
        ([signal.SIGTERM, signal.SIGINT], [signal.SIGINT]),
    ],
)
def test_a_run_is_told_once_to_stop_and_only_a_second_ctrl_c_ends_it(stops, sent):
    found = []
    (job,) = jobs_of()
    job.process = SimpleNamespace(poll=lambda: None, send_signal=found.append, kill=lambda: found.append("kill"))
    one = sweep.Sweep([], 1, 1, [])
    one.running.append(job)
    for number in stops:
        one.stops.append(number)
        one.tick()
    one.tick()  # it takes its time
    assert found == sent


def test_signals_are_as_they_were_after_a_sweep():
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    with sweep.caught_signals() as caught:
        assert not {signal.getsignal(number) for number in numbers} & set(before)
        for number in numbers:
            signal.raise_signal(number)
    assert caught == list(numbers) and [signal.getsignal(number) for number in numbers] == before


# ----------------------------------------------------------------------------------------------------- Recognizing runs


def test_done_runs_are_recognized_and_left_as_they_are(run):
    run(*ONE)
    before = {path: path.stat().st_mtime_ns for path in Path().glob("runs/*__*/**/*")}
    stdout, _ = run(*ONE)
    assert stdout.splitlines()[-1] == "1 done" and len(updates()) == 20
    assert before == {path: path.stat().st_mtime_ns for path in Path().glob("runs/*__*/**/*")}
    status, _ = run(*ONE, "--status")
    header, row = (line.replace("┃", "│").split("│")[1:-1] for line in status.splitlines() if line[0] in "┃│")
    assert [name.strip() for name in header] == ["environment", "options", "seed", "state", "steps", "return", ""]
    mean_return = "-6.30"  # of all 40 episodes
    assert [cell.strip() for cell in row] == ["A", "", "1", "done", "2,000 (100%)", mean_return, ""]
    (runs()[0] / "metrics.csv").write_text("global_step\ngarbage\n")
    assert "1 done" in run(*ONE, "--status")[0]


def test_an_edited_script_makes_no_more_runs():
    Path("hold").touch()
    process = start("--env-ids", "A", "B", "--num-seeds", "1", fake="--hold 0")
    wait_until(are_held(1))
    edit_the_script()
    Path("hold").unlink()
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 1 and "A seed 1: done" in stdout and "was edited" in stderr and len(runs()) == 1


def test_an_interrupted_run_does_not_go_on_when_its_script_was_edited():
    fake_ppo.make_folder(fake_ppo.Args())
    (job,) = jobs_of()
    assert sweep.found_state(job) == ("interrupted", "can go on from update 0")
    edit_the_script()
    with pytest.raises(UserError, match="was edited"):
        sweep.Sweep([job], 1, 1, []).run()
    assert job.process is None


def test_runs_that_go_on_when_their_script_is_edited_end_first():
    """Both runs are held in their middle. One is ended, and its worker finds the script edited."""
    Path("hold").touch()
    words = ["--env-ids", "A", "B", "C", "--num-seeds", "1", "--workers", "2"]
    process = start(*words, fake="--hold 0")
    wait_until(are_held(2))
    edit_the_script()
    os.kill(children(process)[0], signal.SIGTERM)
    wait_until(lambda: len(children(process)) == 1)
    time.sleep(1)  # ten looks of the sweep
    Path("hold").unlink()
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 1 and "was edited" in stderr and len(runs()) == 2
    assert "A seed 1: failed" in stdout and "B seed 1: done" in stdout


def test_other_arguments_and_another_version_are_other_runs(tool_here, run):
    def status_of(fake=""):
        return tool_here(sweep, *ONE, "--status", "--command", f"python fake_ppo.py {fake}", status=None)[0]

    run(*ONE)
    assert "1 queued" in status_of("--x 0.5")
    source = Path("fake_ppo.py").read_text()
    Path("fake_ppo.py").write_text(f"{source}# below the ruler\nprint('more')\n")
    for same in ("", "--num-threads 16", "--device cpu", "--cuda", "--total-timesteps 2e3", "--checkpoints 3"):
        assert "1 done" in status_of(same)
    Path("fake_ppo.py").write_text(source.replace("import json", "import json\n\nA_CONSTANT = 1", 1))
    assert "1 queued" in status_of()
    run(*ONE)
    assert len(runs()) == 2


def test_a_run_that_a_break_ended_is_done(run):
    stdout, _ = run(*ONE, fake="--early")
    assert "done, by a break in update 10" in stdout and stdout.splitlines()[-1] == "1 done"
    stdout, _ = run(*ONE, fake="--early")
    assert stdout.splitlines()[-1] == "1 done" and len(updates()) == 10
    assert "1,000 (50%)" in run(*ONE, "--status", fake="--early")[0]


def test_a_run_that_diverged_stays_as_it_is(run):
    for _ in range(2):
        stdout, stderr = run(*ONE, fake="--diverge", status=1)
        assert "diverged, in update 10" in stderr and stdout.splitlines()[-1] == "1 diverged"
    assert len(updates()) == 9 and len(runs()) == 1


def test_a_run_that_has_ended_needs_no_checkpoint(run):
    run(*ONE)
    for path in runs()[0].glob("checkpoints/*"):
        path.unlink()
    assert run(*ONE)[0].splitlines()[-1] == "1 done" and len(updates()) == 20


def test_a_run_without_an_end_goes_on_even_from_its_first_checkpoint(run):
    run(*ONE)
    (folder,) = runs()
    (folder / "end.json").write_text('{"end": "who')  # as if writing had been cut off
    for name in ("2", "20"):
        (folder / "checkpoints" / f"{name}.npz").unlink()
    assert "can go on from update 0" in run(*ONE, "--status", status=1)[0]
    assert "resumed from update 0" in run(*ONE)[0] and len(runs()) == 1


def test_a_folder_without_a_checkpoint_is_begun_anew(run):
    folder = fake_ppo.make_folder(fake_ppo.Args())
    (folder / "checkpoints" / "0.npz").unlink()
    status, _ = run(*ONE, "--status", status=1)
    assert status.splitlines()[-1] == "1 queued" and "0 (0%)" in status  # before its first update
    (folder / "metrics.csv").unlink()
    assert "0 (0%)" in run(*ONE, "--status", status=1)[0]


def test_folders_of_other_programs_are_passed_over(run):
    for i, text in enumerate(["[]", "{", '{"script": "fake_ppo", "arguments": {}}', '{"arguments": {"seed": 1}}']):
        Path(f"runs/{i}").mkdir(parents=True)
        Path(f"runs/{i}/config.json").write_text(text)
    Path("runs/empty").mkdir()
    assert run(*ONE, "--status", status=1)[0].splitlines()[-1] == "1 queued"


def test_what_another_process_makes_is_seen(run):
    """In a folder that isn't the furthest, and before there is one."""
    late, early = (fake_ppo.make_folder(fake_ppo.Args()) for _ in range(2))
    (late / "checkpoints" / "2.npz").touch()
    with filelock.FileLock(early / "lock"):
        assert "1 running" in run(*ONE, "--status", status=1)[0]
    assert "1 interrupted" in run(*ONE, "--status", status=1)[0]
    (job,) = jobs_of(env_ids=["B"])
    job.log.parent.mkdir(parents=True)
    with filelock.FileLock(job.log.with_suffix(".lock")):
        assert "1 running" in run("--env-ids", "B", "--num-seeds", "1", "--status", status=1)[0]


def test_of_folders_that_are_equally_far_the_one_that_was_written_last_goes_on():
    folders = [fake_ppo.make_folder(fake_ppo.Args()) for _ in range(2)]
    (job,) = jobs_of()
    for folder in [*folders, *folders]:
        later = max(one.stat().st_mtime for one in folders) + 1
        os.utime(folder, (later, later))
        assert sweep.matching_runs(job)[-1] == folder


def test_a_run_in_another_folder_is_resumed_there(monkeypatch):
    Path("elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    folder = fake_ppo.make_folder(fake_ppo.Args())
    monkeypatch.chdir("..")
    (job,) = sweep.make_jobs(sweep.Args(["A"], f"python {FAKE}", num_seeds=1), Path("elsewhere"))
    sweep.Sweep([job], 1, 1, []).run()
    assert job.state == "done" and sweep.matching_runs(job) == [Path("elsewhere") / folder]
    assert not Path("runs").exists()


def test_a_lock_that_cannot_be_opened_is_held_by_nobody(monkeypatch):
    def no_lock(path, blocking):
        raise PermissionError("of somebody else")

    Path("lock").touch()
    monkeypatch.setattr(sweep.filelock, "FileLock", no_lock)
    assert not sweep.is_held(Path("lock"))


def test_news_of_a_run_is_told_once(capsys):
    (job,) = jobs_of()
    for note in ("first", "first", "second"):
        job.becomes("elsewhere", note)
    assert capsys.readouterr().out == "A seed 1: elsewhere, first\nA seed 1: elsewhere, second\n"


def test_each_run_has_a_log_of_its_own():
    found = []
    for fake in ("", "--x 0.5"):
        found += [job.log for job in jobs_of(fake, env_ids=["ALE/Pong-v5", "mine:Pong-v5"], num_seeds=2)]
    edit_the_script()
    sweep.version_seen.cache_clear()
    found += [job.log for job in jobs_of(env_ids=["ALE/Pong-v5"])]
    assert len(set(found)) == 9 and {log.parent for log in found} == {Path("runs/logs")}
    assert not any(":" in log.name for log in found)  # of which Windows makes no files


def test_the_furthest_of_several_folders_goes_on(run):
    run(*ONE)
    (folder,) = runs()
    (folder / "end.json").unlink()
    (folder / "checkpoints" / "20.npz").rename(folder / "checkpoints" / "9.npz")
    newer = shutil.copytree(folder, folder.with_name("A__fake_ppo__1__9"))
    (newer / "checkpoints" / "9.npz").unlink()
    (newer / "end.json").write_text('{"end": "stopped", "update": 2, "global_step": 200}')  # no reason to prefer it
    stdout, _ = run(*ONE)
    assert "resumed from update 9" in stdout
    assert [sweep.last_checkpoint(one) for one in (folder, newer)] == [20, 2]


def test_a_folder_that_has_ended_comes_before_one_with_a_later_checkpoint(tool_here, run):
    run(*ONE)
    (folder,) = runs()
    cut_off = shutil.copytree(folder, folder.with_name("A__fake_ppo__1__9"))
    (cut_off / "end.json").unlink()
    (folder / "checkpoints" / "20.npz").unlink()
    stdout, _ = tool_here(sweep, *ONE, "--status", "--command", "python fake_ppo.py")
    assert stdout.splitlines()[-1] == "1 done"


def test_two_sweeps_at_once_share_the_runs():
    words = ["--env-ids", "A", "B", "C", "--num-seeds", "2"]
    both = [start(*words) for _ in range(2)]
    for process in both:
        stdout, stderr = process.communicate(timeout=120)
        assert process.returncode == 0 and stdout.splitlines()[-1] == "6 done", (stdout, stderr)
    assert len(runs()) == 6 and len(updates()) == len(set(updates())) == 6 * 20


def test_a_run_that_was_started_by_hand_is_waited_for(run):
    Path("hold").touch()
    variables = os.environ | {"OMP_NUM_THREADS": "1"}
    by_hand = subprocess.Popen([sys.executable, "fake_ppo.py", "--hold", "0", "--seed", "1"], env=variables)
    wait_until(are_held(1))
    process = start(*ONE, fake="--hold 0")
    assert "elsewhere, a process is writing to runs/A__fake_ppo__1" in process.stdout.readline()
    assert "1 running" in run(*ONE, "--status", fake="--hold 0", status=1)[0]
    Path("hold").unlink()
    stdout, _ = process.communicate(timeout=60)
    assert by_hand.wait() == 0 and stdout.splitlines()[-1] == "1 done" and len(updates()) == 20


# ------------------------------------------------------------------------------------------------------------- Failures


def test_a_run_that_fails_does_not_stop_the_others_and_is_resumed_by_the_same_command(run):
    words = ["--env-ids", "Unknown", "A", "B", "--num-seeds", "1"]
    (log,) = [job.log for job in jobs_of("--crash")]
    log.parent.mkdir(parents=True)
    log.write_text("".join(f"line {i} of an earlier start\n" for i in range(1, 31)))
    stdout, stderr = run(*words, fake="--crash", status=1)
    assert "line 30 of" in stderr and "line 1 of" not in stderr
    assert stdout.splitlines()[-1] == "3 failed"
    assert "Unknown seed 1: failed, its process ended with status 2" in stderr
    assert "A seed 1: failed, its process ended with status 1" in stderr
    assert "fake_ppo: a crash in the middle" in stderr  # the end of its log
    Path("once").touch()
    stdout, _ = run(*words, fake="--crash", status=1)
    assert stdout.splitlines()[-1] == "1 failed, 2 done" and stdout.count("resumed from update 2") == 2
    assert len(runs()) == 2 and logs()["A__fake_ppo__1"].count("# 2") == 2


def test_a_run_that_cannot_start_leaves_the_others_alone(run):
    (job,) = jobs_of()
    job.log.mkdir(parents=True)  # in place of a full disk, on which a log can't be opened either
    sweep.Sweep([job], 1, 1, []).run()
    assert job.state == "failed" and not sweep.is_held(job.log.with_suffix(".lock"))
    stdout, _ = run("--env-ids", "A", "B", "--num-seeds", "1", "--workers", "2", status=1)
    assert "A seed 1: failed" in stdout and stdout.splitlines()[-1] == "1 failed, 1 done"


def test_an_error_of_the_sweep_itself_leaves_no_run_behind(monkeypatch):
    def sleep(seconds):
        raise RuntimeError("not planned")

    Path("hold").touch()
    (job,) = jobs_of("--hold 0")
    monkeypatch.setattr(sweep.time, "sleep", sleep)
    with pytest.raises(RuntimeError, match="not planned"):
        sweep.Sweep([job], 1, 1, []).run()
    assert job.process.poll() is not None and not sweep.is_held(job.log.with_suffix(".lock"))


# ----------------------------------------------------------------------------------------------------- The command line


def test_a_grid_is_every_combination_of_its_values(run):
    words = ["--env-ids", "A", "--num-seeds", "2", "--grid", "x=0.3,0.4", "exact_resume=true,false"]
    assert run(*words, "--left")[0] == "0,1,2,3,4,5,6,7\n"
    run(*words, "--task", "2")  # as in a job array
    assert run(*words, "--left")[0] == "0,1,3,4,5,6,7\n"
    for outside in ("--task=8", "--task=-1"):
        assert "nothing to do" in run(*words, outside)[0] and len(runs()) == 1
    stdout, _ = run(*words, "--workers", "4")
    assert stdout.splitlines()[-1] == "8 done" and len(runs()) == 8
    assert "A x=0.4_exact_resume=false seed 2: done\n" in stdout
    assert len({line.rpartition(" ")[0] for line in updates()}) == 8 and len(updates()) == 8 * 20
    assert run(*words, "--left")[0] == "\n"
    names = {path.name.split("__")[1] for path in runs()}
    assert "fake_ppo_x=0.3_exact_resume=true" in names and len(names) == 4  # each point has one


def test_runs_that_cannot_go_on_are_not_left(run):
    for seed, how in enumerate(["diverged", "stopped", "whole", "break"], 1):
        fake_ppo.write_end(fake_ppo.make_folder(fake_ppo.Args(seed=seed)), how, 2)
    assert run("--env-ids", "A", "--num-seeds", "5", "--left")[0] == "1,4\n"


def test_the_first_seed_of_everything_comes_first():
    jobs = jobs_of(env_ids=["A", "B"], num_seeds=2, start_seed=7, grid=["x=0.3,0.4"])
    runs = [(7, "A", 0.3), (7, "A", 0.4), (7, "B", 0.3), (7, "B", 0.4)]
    runs += [(8, "A", 0.3), (8, "A", 0.4), (8, "B", 0.3), (8, "B", 0.4)]
    assert [(job.seed, job.env_id, job.arguments["x"]) for job in jobs] == runs
    usual = sweep.make_jobs(sweep.Args(["A"], command="python fake_ppo.py"))
    assert [job.seed for job in usual] == [1, 2, 3]


def test_a_points_name_is_added_to_the_one_that_was_typed():
    assert [job.arguments["exp_name"] for job in jobs_of("--exp-name mine", grid=["x=0.3"])] == ["mine_x=0.3"]
    assert [job.arguments["exp_name"] for job in jobs_of(grid=["exp-name=a", "x=0.3,0.4"])] == ["a", "a"]


def test_a_run_may_be_of_one_update_but_not_of_more_steps_than_can_be_counted():
    (job,) = jobs_of("--num-envs 10 --num-steps 10 --total-timesteps 100")
    assert sweep.planned_steps(job.arguments) == 100
    with pytest.raises(UserError, match="makes no update, or too many"):
        jobs_of("--total-timesteps 1e30")


def test_a_script_reads_its_words_itself():
    typed = "--cuda False --track --capture-video True --anneal-lr False".split()  # CleanRL's
    arguments = sweep.read_arguments(ROOT / "cleanrl" / "ppo.py", typed)
    assert (arguments["device"], arguments["capture_video"], arguments["anneal_lr"]) == ("cpu", True, False)
    with pytest.raises(UserError, match="does not take --kle-stop"):
        sweep.read_arguments(ROOT / "cleanrl" / "ppo.py", ["--kle-stop"])


def test_words_of_a_command():
    assert sweep.split_command("python a.py --x b.py") == (["python", "a.py"], ["--x", "b.py"])
    assert sweep.grid_words("clip-vloss", "False") == ["--no-clip-vloss"]
    assert sweep.grid_words("clip-vloss", "True") == ["--clip-vloss"]
    assert sweep.named('{"wind_power": 1.5, "gravity": -1e+1}') == "wind_power-1.5,gravity--1e+1"


def test_a_table_shows_what_is_in_brackets(capsys):
    print_table([["interval"], ["[a, b]"], ["[bold]"]])
    stdout = capsys.readouterr().out
    assert stdout.count("interval") == stdout.count("[a, b]") == stdout.count("[bold]") == 1


def test_values_of_a_grid_may_be_json():
    grid = ['env-kwargs={"a":1,"b":[2, 3]},{}', "sizes=[64,64],[32]", "x=0.3,0.4"]
    jobs = jobs_of(grid=grid)
    assert len(jobs) == 2 * 2 * 2
    assert {job.arguments["env_kwargs"] for job in jobs} == {'{"a":1,"b":[2, 3]}', "{}"}
    assert {tuple(job.arguments["sizes"]) for job in jobs} == {(64, 64), (32,)}
    assert jobs[0].arguments["exp_name"] == "fake_ppo_env-kwargs=a-1,b-2,3_sizes=64,64_x=0.3"


@pytest.mark.parametrize("options, workers", [([], 1), (["--workers", "2"], 2), (["--threads", "3"], None)])
@pytest.mark.parametrize("slurm", [None, 8])
def test_cores_are_shared_out(options, workers, slurm, monkeypatch, run):
    if slurm:
        monkeypatch.setenv("SLURM_CPUS_PER_TASK", str(slurm))
    run(*ONE, *options)
    cores = slurm or len(os.sched_getaffinity(0))
    threads = 3 if workers is None else max(1, cores // workers)
    assert f"threads {threads} GPU" in logs()["A__fake_ppo__1"]
    assert sweep.Sweep([], 99, None, []).threads == 1  # more workers than cores


def test_each_worker_has_a_gpu_of_its_own():
    Path("hold").touch()
    words = ["--env-ids", "A", "B", "C", "--num-seeds", "1", "--gpus", "3", "5"]
    process = start(*words, fake="--hold 0")
    wait_until(are_held(2))
    Path("hold").unlink()
    process.communicate(timeout=60)
    seen = [log.split("GPU ")[1].split()[0] for _, log in sorted(logs().items())]
    assert seen[:2] == ["3", "5"] and seen[2] in "35"


def test_a_run_gets_the_gpu_that_the_fewest_have():
    one = sweep.Sweep([], 4, 1, [], ("0", "1"))
    jobs = jobs_of(num_seeds=4)
    for job in jobs:
        job.gpu = one.free_gpu()
        one.running.append(job)
    assert [job.gpu for job in jobs] == ["0", "1", "0", "1"]
    one.running = [jobs[1]]  # the one on GPU 0 has ended first
    assert one.free_gpu() == "0"
    one.running = [jobs[0], jobs[2]]
    assert one.free_gpu() == "1"


def test_as_many_runs_are_made_at_a_time_as_there_are_gpus_or_workers(run, monkeypatch):
    asked = []

    def make_runs(jobs, workers, threads, gpus):
        asked.append((workers, threads, gpus))
        return 0

    monkeypatch.setattr(sweep, "make_runs", make_runs)
    run(*ONE)
    run(*ONE, "--gpus", "0", "1")
    run(*ONE, "--gpus", "0", "1", "--workers", "4", "--threads", "3")
    run(*ONE, "--gpus", "0", fake="--device cpu --cuda")  # as CleanRL's users type it
    assert asked == [(1, None, ()), (2, None, ("0", "1")), (4, 3, ("0", "1")), (1, None, ("0",))]


def test_runs_find_the_programs_of_this_python_first(tool_here, monkeypatch):
    Path("programs").mkdir()
    Path("programs/python").write_text("#!/bin/bash\necho the python of somebody else\nexit 1\n")
    Path("programs/python").chmod(0o755)
    monkeypatch.setenv("PATH", f"{Path('programs').resolve()}:{os.environ['PATH']}")
    tool_here(sweep, *ONE, "--command", "env python fake_ppo.py")
    assert sweep.PATH.split(os.pathsep)[0] == str(Path(sys.executable).parent)


WRONG = [
    ([], "name the environments, as in --env-ids CartPole-v1"),
    (["--env-ids", ""], "name the environments"),
    (["--env-ids", "A", "A"], "A is the same run twice"),
    (["--env-ids", "A", "--num-seeds", "0"], "must be 1 or more"),
    (["--env-ids", "A", "--workers", "0"], "--workers 0: must be 1 or more"),
    (["--env-ids", "A", "--threads", "0"], "--threads 0: must be 1 or more"),
    (["--env-ids", "A", "--command", "python"], "names no script"),
    (["--env-ids", "A", "--command", "./fake_ppo.py"], "no program ./fake_ppo.py; begin with python"),
    (["--env-ids", "A", "--command", "CUDA_VISIBLE_DEVICES=1 python fake_ppo.py"], "--gpus gives each run a GPU"),
    (["--env-ids", "A", "--command", "python fake_ppo.py --seed 3"], "leave out --seed"),
    (["--env-ids", "A", "--command", "python fake_ppo.py --env_id=B"], "leave out --env-id"),
    (["--env-ids", "A", "--command", "python fake_ppo.py --gym-id B"], "leave out --gym-id"),
    (["--env-ids", "A", "--command", "python fake_ppo.py --resume runs/x"], "leave out --resume"),
    (["--env-ids", "A", "--command", "python fake_ppo.py --evaluate runs/x"], "leave out --evaluate"),
    (["--env-ids", "A", "--grid", "seed=4,5"], "leave out --seed"),
    (["--env-ids", "A", "--command", "python fake_ppo.py --x much"], "fake_ppo.py does not take --x much"),
    (["--env-ids", "A", "--command", "python fake_ppo.py --total-timesteps 3"], "makes no update"),
    (["--env-ids", "A", "--command", "python fake_ppo.py --num-envs 0"], "makes no update"),
    (["--env-ids", "A", "--command", 'python fake_ppo.py "--x'], "end the quote"),
    (["--env-ids", "A", "--command", "python toy.py"], "toy.py"),
    (["--env-ids", "A", "--command", "python fake_ppo.py --device cpu", "--gpus", "0"], "has no --device cuda"),
    (["--env-ids", "A", "--grid", "x"], "--grid x: write an option and its values"),
    (["--env-ids", "A", "--grid", "x="], "--grid x=: write an option and its values"),
    (["--env-ids", "A", "--grid", "=3"], "--grid =3: write an option and its values"),
    (["--env-ids", "A", "--grid", "x=1", "x=2"], "--grid x=2: write an option and its values, once"),
    (["--env-ids", "A", "--grid", 'env-kwargs={"a":1,"b":'], "must be JSON"),
    (["--env-ids", "A", "--grid", "env-kwargs={a:1,b:2}"], "must be JSON"),
    (["--env-ids", "A", "--grid", 'env-kwargs={"a":1}x'], "x follows a JSON value"),
    (["--env-ids", "A", "--grid", 'env-kwargs={"a":1},{"a": 1}'], "would be called env-kwargs=a-1"),
    (["--env-ids", "A", "--grid", "x=0.1,1e-1"], "two of its points are the same"),
]


@pytest.mark.parametrize("words, message", WRONG)
def test_wrong_use_is_one_line_and_creates_nothing(here, tool_here, words, message):
    Path("fake_ppo.py").chmod(0o644)
    before = sorted(here.rglob("*"))
    command = [] if "--command" in words else ["--command", "python fake_ppo.py"]
    stdout, stderr = tool_here(sweep, *command, *words, status=2)
    assert message in stderr and stderr.count("\n") == 1 and not stdout
    assert [path for path in sorted(here.rglob("*")) if "__pycache__" not in str(path)] == before


def test_a_bug_of_the_sweep_keeps_its_traceback(tool_here, monkeypatch):
    def grid_points(grid):
        raise ValueError("a bug")

    monkeypatch.setattr(sweep, "grid_points", grid_points)
    with pytest.raises(ValueError, match="a bug"):
        tool_here(sweep, *ONE, "--command", "python fake_ppo.py")


@pytest.mark.parametrize(
    "error, status, said",
    [
        (UserError("in two\n  lines"), 2, "ppo.py: error: in two lines\n"),
        (UserError("it went wrong", status=1), 1, "ppo.py: error: it went wrong\n"),
        (
            ModuleNotFoundError(name="rich"),
            2,
            "ppo.py: error: rich is not installed: pip install -e '.[benchmark,tune]'\n",
        ),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_what_a_user_can_mend_is_one_line_and_a_status(capsys, error, status, said):
    with pytest.raises(SystemExit) as ended, one_line_errors():
        raise error
    assert ended.value.code == status and capsys.readouterr() == ("", said)


def test_a_package_that_is_not_optional_keeps_its_traceback():
    with pytest.raises(ModuleNotFoundError), one_line_errors():
        raise ModuleNotFoundError(name="my_package")


def test_a_script_that_cannot_be_read_as_typed():
    process = start(*ONE, "--command", "python toy.py")
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 2 and not stdout and stderr.startswith("sweep.py: error: ") and stderr.count("\n") == 1


def test_shell_scripts_are_sweeps_of_their_scripts(tmp_path, monkeypatch):
    """Each runs every sweep that it holds, with what is typed after it, and the script takes the options."""
    monkeypatch.chdir(ROOT)
    python = tmp_path / "python"
    python.write_text('#!/bin/bash\nfor word in "$@"; do echo "$word"; done\necho\n')
    python.chmod(0o755)
    scripts = sorted(path.stem for path in (ROOT / "cleanrl").glob("*.py"))
    assert sorted(path.stem for path in Path("benchmark").glob("ppo*.sh")) == scripts
    variables = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    for script in scripts:
        done = subprocess.run(
            [f"benchmark/{script}.sh", "--workers", "3"], env=variables, capture_output=True, text=True
        )
        sweeps = [words.splitlines() for words in done.stdout.split("\n\n") if words.strip()]
        assert sweeps and not done.returncode
        swept = set()  # the scripts with a memory have their parents beside them
        for tool, *words in sweeps:
            args = sweep.tyro.cli(sweep.Args, args=words)
            assert tool == "benchmark/sweep.py" and args.workers == 3
            swept |= {job.script.stem for job in sweep.make_jobs(args)}
        assert script in swept and swept <= set(scripts)


# ------------------------------------------------------------------------------------------------- Slurm and AWS Batch


@pytest.fixture
def slurm_task(here):
    """Starts benchmark/slurm.sh as a task of a job array, with this command, where srun starts a step in its place and
    scontrol says what it is asked."""
    programs = {"srun": 'echo $$ >step\nexec "$@"\n', "scontrol": 'echo "scontrol $*"\n'}
    Path("programs").mkdir()
    for name, text in programs.items():
        Path("programs", name).write_text(f"#!/bin/bash\n{text}")
        Path("programs", name).chmod(0o755)
    variables = os.environ | {"PATH": f"{here}/programs:{os.environ['PATH']}"}
    variables |= {"SLURM_ARRAY_TASK_ID": "7", "SLURM_JOB_ID": "99", "SLURM_CPUS_PER_TASK": "2"}
    how = {"env": variables, "stdout": subprocess.PIPE, "stdin": subprocess.DEVNULL, "text": True}

    def task(text):
        Path("command.sh").write_text(text)
        words = [ROOT / "benchmark" / "slurm.sh", "bash", "command.sh", "two words"]
        return subprocess.Popen(words, start_new_session=True, **how)

    return task


@pytest.mark.parametrize("status, requeued", [(0, ""), (1, ""), (143, "scontrol requeue 99\n"), (130, "")])
def test_a_task_of_slurm_makes_its_run_and_only_a_stopped_one_is_requeued(slurm_task, status, requeued):
    process = slurm_task(f'printf "%s\\n" "$SRUN_CPUS_PER_TASK" "$@"\nexit {status}\n')
    stdout, _ = process.communicate(timeout=60)
    assert process.returncode == status and stdout == f"2\ntwo words\n--task\n7\n{requeued}"


def test_a_task_that_slurm_signals_saves_before_it_is_requeued(slurm_task):
    """Only the first process of the step has the signal."""
    process = slurm_task('trap "sleep 0.2; echo saved; exit 143" TERM\ntouch begun\nwhile true; do sleep 0.02; done\n')
    wait_until(Path("begun").exists)
    os.kill(int(Path("step").read_text()), signal.SIGTERM)
    stdout, _ = process.communicate(timeout=60)
    assert process.returncode == 143 and stdout == "saved\nscontrol requeue 99\n"


def test_a_task_of_slurm_may_be_requeued_and_has_its_signal_in_time():
    lines = (ROOT / "benchmark" / "slurm.sh").read_text().splitlines()
    options = {word for line in lines if line.startswith("#SBATCH ") for word in line.split()[1:]}
    assert {"--requeue", "--open-mode=append", "--signal=TERM@120", "--ntasks=1"} <= options
    assert "120 s before the limit" in (ROOT / "docs" / "sweeps.md").read_text()


def test_aws_batch_starts_a_task_again_that_was_stopped_or_whose_machine_is_gone():
    definition = json.loads((ROOT / "benchmark" / "aws_batch.json").read_text())
    retries = definition["retryStrategy"]

    def action(**ended):
        """That of the first rule of which every pattern fits, as the service has it."""
        for rule in retries["evaluateOnExit"]:
            patterns = {name: pattern for name, pattern in rule.items() if name != "action"}
            if all(fnmatch(ended.get(name, ""), pattern) for name, pattern in patterns.items()):
                return rule["action"]
        return None

    assert action(onExitCode="143") == action(onStatusReason="Host EC2 (instance i-1) terminated.") == "RETRY"
    assert [action(onExitCode=status) for status in ("1", "2", "137")] == ["EXIT"] * 3
    assert retries["attempts"] == 10  # as the page says
    container = definition["containerProperties"]
    sizes = {one["type"]: one["value"] for one in container["resourceRequirements"]}
    assert container["command"][-2:] == ["--threads", sizes["VCPU"]]
    assert container["mountPoints"][0]["sourceVolume"] == container["volumes"][0]["name"]
