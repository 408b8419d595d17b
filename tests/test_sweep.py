"""benchmark/sweep.py as a user types it: what is done is skipped, what was cut short goes on, what fails is told."""

import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import sweep
from helpers import rows, type_in_the_readmes_environment

ROOT = Path(__file__).parents[1]
SWEEP = ROOT / "benchmark" / "sweep.py"
NUMPY = f"python {ROOT / 'cleanrl' / 'ppo_numpy.py'}"
ENVIRONMENTS = ["CartPole-v1", "Acrobot-v1"]
TRAIN = ["--command", f"{NUMPY} --total-timesteps 2e4 --checkpoints 10", "--env-ids", *ENVIRONMENTS, "--workers", "2"]

# A script with a run folder and no training, which fails, waits or succeeds as --mode and its folder say
TOY = """
import json, os, shutil, signal, sys, time
from dataclasses import asdict, dataclass
from pathlib import Path

STEP = 10

@dataclass
class Args:
    exp_name: str = Path(__file__).stem
    env_id: str = "A"
    seed: int = 1
    mode: str = "good"
    total_timesteps: int = 4 * STEP
    learning_rate: float = 1e-3
    anneal: bool = True
    num_threads: int | None = None
    resume: str | None = None

    @property
    def num_updates(self) -> int:
        return self.total_timesteps // STEP

if __name__ == "__main__":
    import tyro
    args = tyro.cli(Args)
    print("threads", os.environ["OMP_NUM_THREADS"], flush=True)
    folder = Path(args.resume or f"runs/{args.env_id}__{args.exp_name}__{args.seed}__{time.time_ns()}")
    if not args.resume:
        (folder / "checkpoints").mkdir(parents=True)
        shutil.copy(__file__, folder)
        (folder / "config.json").write_text(json.dumps({"arguments": asdict(args)}))
    if args.mode == "fail_once" and not Path("failed").exists():
        Path("failed").touch()
        (folder / "checkpoints" / "2.npz").touch()
        sys.exit("toy: a crash after update 2")
    if args.mode == "stubborn":
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        Path("ready").touch()
        time.sleep(600)
    while args.mode == "wait" and not Path("go").exists():
        time.sleep(0.05)
    if args.mode == "silent":
        sys.exit(0)
    (folder / "checkpoints" / f"{args.num_updates}.npz").touch()
"""


def type_sweep(folder, *words, **options):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL, "text": True}
    return subprocess.Popen([sys.executable, str(SWEEP), *words], cwd=folder, **pipes | options)


def sweep_here(folder, *words, status=0):
    """Types a sweep and waits for its end, which must be `status`; returns its stdout and stderr."""
    process = type_sweep(folder, *words)
    stdout, stderr = process.communicate(timeout=300)
    assert process.returncode == status, (stdout, stderr)
    return stdout, stderr


def last(run):
    return sweep.last_checkpoint(run)


def run_folders(folder):
    return sorted(path.parent for path in Path(folder).glob("runs/*/config.json"))


def logs(folder):
    return {path.name.rsplit("__", 1)[0]: path.read_text() for path in Path(folder).glob("logs/*.log")}


def wait_until(condition, process):
    while not condition():
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)


def learned(run):
    """Weights and Adam's moments in the last checkpoint of ppo_numpy.py, and the state of its generator."""
    with np.load(run / "checkpoints" / f"{last(run)}.npz", allow_pickle=False) as content:
        checkpoint = dict(content)
    state = json.loads(str(checkpoint.pop("state")))
    assert {"actor.4.weight", "critic.4.weight", "adam_mean"} <= checkpoint.keys()
    return checkpoint, state["rng"]


def descendants(pid):
    """The ids of the processes that a process has started, and of those that these have."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [x for child in map(int, children) for x in (child, *descendants(child))]


def alive(pid):
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def updates_at_start(log):
    """The updates that were done at each of a run's starts."""
    return [int(update) for update in re.findall(r"updates, (\d+) done", log)]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    stdout, _ = sweep_here(folder, *TRAIN)
    assert stdout.splitlines()[-1] == "6 done"
    return folder


@pytest.fixture
def toy(tmp_path):
    (tmp_path / "toy.py").write_text(TOY)
    return tmp_path


# ------------------------------------------------------------------------------------------------------ Kills and stops


@pytest.mark.parametrize("killed", ["the sweep", "everything"])
def test_a_killed_sweep_ends_with_whole_runs_and_trains_nothing_twice(killed, undisturbed, tmp_path):
    first = type_sweep(tmp_path, *TRAIN)

    def is_in_the_middle():
        updates = [last(run) for run in run_folders(tmp_path)]
        return 39 in updates and any(4 <= update < 20 for update in updates)

    wait_until(is_in_the_middle, first)
    if killed == "everything":  # a power cut; the sweep stands still meanwhile, so that it starts nothing
        first.send_signal(signal.SIGSTOP)
    children = descendants(first.pid)
    if killed == "everything":
        for child in children:
            os.kill(child, signal.SIGKILL)
    saved = {run: last(run) for run in run_folders(tmp_path)}
    first.kill()
    assert first.wait() == -signal.SIGKILL
    first.stdout.close(), first.stderr.close()
    stdout, _ = sweep_here(tmp_path, *TRAIN)  # at once: runs may still be saving their last checkpoint
    assert "6 done" in stdout
    assert children and not any(map(alive, children))

    whole = [run for run in run_folders(tmp_path) if last(run) == 39]
    assert len(whole) == 6 and sum(0 < value < 39 for value in saved.values()) >= 1
    assert all(last(run) == 0 for run in run_folders(tmp_path) if run not in whole)  # killed before any checkpoint
    resumed = 0
    for run in whole:
        log = logs(tmp_path)[run.name.rsplit("__", 1)[0]]
        went_on = [update for update in updates_at_start(log) if update]
        assert log.count("# 2") == 1 + len(went_on) or run not in saved
        if 0 < saved.get(run, 0) < 39:
            # SIGTERM reaches the runs of a sweep that is killed alone: they save what they have, or are at their end
            assert went_on == [saved[run]] if killed == "everything" else went_on >= [saved[run]] or not went_on
        elif killed == "everything" or saved.get(run) == 39:  # else SIGTERM may have had it save its first checkpoint
            assert not went_on
        resumed += len(went_on)
        steps = [int(row["global_step"]) for row in rows(run, "metrics.csv")]
        assert steps == list(range(512, 39 * 512 + 1, 512))
        if killed == "everything":  # bit for bit what nobody disturbed
            (other,) = undisturbed.glob(f"runs/{run.name.rsplit('__', 1)[0]}__*")
            (arrays, generator), (same_arrays, same_generator) = learned(run), learned(other)
            for name, array in arrays.items():
                np.testing.assert_array_equal(array, same_arrays[name], err_msg=name)
            assert generator == same_generator
            assert rows(run, "episodes.csv", ["seconds"]) == rows(other, "episodes.csv", ["seconds"])
    assert resumed >= 1


def test_a_run_is_told_to_stop_when_its_sweep_is_killed(toy):
    process = type_sweep(toy, "--command", "python toy.py --mode wait", "--env-ids", "A", "--num-seeds", "1")
    wait_until(lambda: run_folders(toy), process)
    (child,) = descendants(process.pid)
    process.kill()
    process.communicate()
    end = time.monotonic() + 30
    while alive(child):
        assert time.monotonic() < end
        time.sleep(0.01)


def test_ctrl_c_saves_every_run_and_a_second_call_goes_on(tmp_path):
    command = f"{NUMPY} --total-timesteps 40000 --checkpoints 10"
    short = ["--command", command, "--env-ids", "CartPole-v1", "--num-seeds", "2"]
    process = type_sweep(tmp_path, *short, "--workers", "2", start_new_session=True)
    wait_until(lambda: [last(run) > 0 for run in run_folders(tmp_path)] == [True, True], process)
    children = descendants(process.pid)
    os.killpg(process.pid, signal.SIGINT)  # as the terminal does
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in stderr
    assert stdout.splitlines()[-1] == "2 stopped"
    assert len(children) >= 2 and not any(map(alive, children))
    saved = {}
    for run in run_folders(tmp_path):
        saved[run] = len(rows(run, "metrics.csv"))
        assert saved[run] == last(run) < 78  # not an update is lost
    status, _ = sweep_here(tmp_path, *short, "--status", status=1)
    assert all(f"can go on from update {update}" in status for update in saved.values())
    sweep_here(tmp_path, *short, "--workers", "2")
    assert run_folders(tmp_path) == sorted(saved) and all(last(run) == 78 for run in saved)
    for run, update in saved.items():
        assert updates_at_start(logs(tmp_path)[run.name.rsplit("__", 1)[0]]) == [0, update]


def test_a_second_ctrl_c_ends_a_run_that_does_not_stop(toy):
    words = ["--command", "python toy.py --mode stubborn", "--env-ids", "A", "--num-seeds", "1"]
    process = type_sweep(toy, *words)
    wait_until((toy / "ready").exists, process)
    (child,) = descendants(process.pid)
    process.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):  # it waits for the run to save its work
        process.wait(1)
    process.send_signal(signal.SIGINT)
    stdout, _ = process.communicate(timeout=30)
    assert process.returncode == 130 and "1 stopped" in stdout and not alive(child)


# ----------------------------------------------------------------------------------------------------- Recognising runs


def test_done_runs_are_recognised(undisturbed):
    before = {path: path.stat().st_mtime_ns for path in undisturbed.rglob("*") if path.is_file()}
    stdout, _ = sweep_here(undisturbed, *TRAIN)
    assert stdout.splitlines()[-1] == "6 done"
    assert before == {path: path.stat().st_mtime_ns for path in undisturbed.rglob("*") if path.is_file()}
    status, _ = sweep_here(undisturbed, *TRAIN, "--status")
    lines = [line for line in status.splitlines() if "CartPole-v1" in line]
    assert len(lines) == 3 and all("done" in line and "19,968 (100%)" in line for line in lines)
    (run,) = undisturbed.glob("runs/CartPole-v1__ppo_numpy__1__*")
    returns = [float(row["episodic_return"]) for row in rows(run, "episodes.csv")[-100:]]
    assert f"{np.mean(returns):.1f}" in lines[0]


def test_runs_of_other_arguments_or_another_source_do_not_count(toy):
    two = ["--command", "python toy.py", "--env-ids", "A", "B", "--num-seeds", "1"]
    sweep_here(toy, *two)
    sweep_here(toy, *two, "--status")
    other, _ = sweep_here(toy, "--command", "python toy.py --total-timesteps 50", *two[2:], "--status", status=1)
    assert "2 queued" in other
    (toy / "toy.py").write_text(TOY + "print('changed')\n")
    status, _ = sweep_here(toy, *two, "--status", status=1)
    assert "2 queued" in status and "another version of toy.py" in status
    sweep_here(toy, *two, "--status", "--any-source")
    sweep_here(toy, *two)
    assert len(run_folders(toy)) == 4


def test_runs_of_another_machine_and_of_other_comments_count(toy):
    """Neither threads, videos and the like nor a comment or the script's lower half make it another experiment."""
    one = ["--env-ids", "A", "--num-seeds", "1", "--command"]
    sweep_here(toy, *one, "python toy.py --num-threads 16")
    (toy / "toy.py").write_text(
        f"# a comment\n\n{TOY}# {'=' * 20} The run: nothing below is about PPO\nprint('more')\n"
    )
    stdout, _ = sweep_here(toy, *one, "python toy.py")
    assert stdout.splitlines()[-1] == "1 done" and len(run_folders(toy)) == 1
    sweep_here(toy, *one, "python toy.py", "--status")


@pytest.mark.parametrize(("typed", "done"), [("--checkpoints 1", True), ("", True), ("--checkpoints 2", False)])
def test_checkpoints_that_are_placed_by_default_are_those_that_are_typed(tmp_path, typed, done):
    sizes = "--total-timesteps 2048 --num-envs 2 --num-steps 32"
    one = ["--env-ids", "CartPole-v1", "--num-seeds", "1", "--command"]
    sweep_here(tmp_path, *one, f"{NUMPY} {sizes}")
    sweep_here(tmp_path, *one, f"{NUMPY} {sizes} {typed}", "--status", status=0 if done else 1)


def test_a_script_that_is_edited_while_it_runs(toy):
    words = ["--command", "python toy.py --mode wait", "--env-ids", "A", "B", "--num-seeds", "1"]
    process = type_sweep(toy, *words)
    wait_until(lambda: run_folders(toy), process)
    (toy / "toy.py").write_text(TOY + "print('changed')\n")
    (toy / "go").touch()
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 0 and "again" not in stdout, (stdout, stderr)
    sources = [(run / "toy.py").read_text() for run in run_folders(toy)]
    assert sources == [TOY, TOY + "print('changed')\n"]  # each run counts with the source that it was started with


def test_two_sweeps_at_once_share_the_runs(tmp_path):
    words = ["--command", f"{NUMPY} --total-timesteps 20000", "--env-ids", "CartPole-v1", "--num-seeds", "2"]
    both = [type_sweep(tmp_path, *words) for _ in range(2)]
    for process in both:
        stdout, stderr = process.communicate(timeout=120)
        assert process.returncode == 0 and stdout.splitlines()[-1] == "2 done", (stdout, stderr)
    assert len(run_folders(tmp_path)) == 2
    assert all(log.count("# 2") == 1 for log in logs(tmp_path).values())


def test_a_run_that_was_started_by_hand_is_waited_for(tmp_path):
    options = ["--total-timesteps", "40000", "--env-id", "CartPole-v1", "--seed", "1"]
    script = str(ROOT / "cleanrl" / "ppo_numpy.py")
    by_hand = subprocess.Popen([sys.executable, script, *options], cwd=tmp_path, stdout=subprocess.DEVNULL)
    wait_until(lambda: list(tmp_path.glob("runs/*/metrics.csv")), by_hand)
    words = ["--command", f"{NUMPY} --total-timesteps 40000", "--env-ids", "CartPole-v1", "--num-seeds", "1"]
    stdout, _ = sweep_here(tmp_path, *words)
    assert by_hand.wait() == 0
    assert "a process is writing to runs/CartPole-v1" in stdout and stdout.splitlines()[-1] == "1 done"
    assert len(run_folders(tmp_path)) == 1


# ------------------------------------------------------------------------------------------------------------- Failures


def test_a_wrong_environment_lets_the_others_finish(tmp_path):
    words = ["--command", f"{NUMPY} --total-timesteps 4.096e3", "--env-ids", "CartPool-v1", "CartPole-v1"]
    stdout, stderr = sweep_here(tmp_path, *words, "--num-seeds", "2", "--workers", "2", status=1)
    assert stdout.splitlines()[-1] in ("2 failed, 2 done", "2 done, 2 failed")
    assert len(run_folders(tmp_path)) == 2 and all(last(run) == 8 for run in run_folders(tmp_path))
    for seed in (1, 2):
        assert logs(tmp_path)[f"CartPool-v1__ppo_numpy__{seed}"].count("# 2") == 1  # a mistake stays one
        assert f"CartPool-v1 seed {seed}: ended with status 2;" in stderr
    assert stderr.count("Did you mean: `CartPole`?") >= 2 and "Traceback" not in stderr


def test_a_failed_run_is_resumed_once(toy):
    words = ["--command", "python toy.py --mode fail_once", "--env-ids", "A", "--num-seeds", "1"]
    stdout, _ = sweep_here(toy, *words)
    assert "ended with status 1, is tried again" in stdout and "resumed from update 2" in stdout
    (log,) = logs(toy).values()
    assert "a crash after update 2" in log and len(run_folders(toy)) == 1


def test_the_furthest_of_several_folders_goes_on(toy):
    words = ["--command", "python toy.py", "--env-ids", "A", "--num-seeds", "1"]
    sweep_here(toy, *words)
    (run,) = run_folders(toy)
    (run / "checkpoints" / "4.npz").rename(run / "checkpoints" / "3.npz")
    shutil.copytree(run, newer := run.with_name("A__toy__1__9"))
    (newer / "checkpoints" / "3.npz").rename(newer / "checkpoints" / "2.npz")
    stdout, _ = sweep_here(toy, *words)
    assert "resumed from update 3" in stdout and (last(run), last(newer)) == (4, 2)


def test_a_run_that_leaves_nothing_has_failed(toy):
    words = ["--command", "python toy.py --mode silent", "--env-ids", "A", "--num-seeds", "1"]
    stdout, stderr = sweep_here(toy, *words, status=1)
    assert "left no run" in stderr and "1 failed" in stdout and stdout.count("ended before its first checkpoint") == 2


def test_cores_are_shared_out(toy):
    words = ["--command", "python toy.py", "--env-ids", "A", "--num-seeds", "1"]
    cores = len(os.sched_getaffinity(0))
    for i, (options, threads) in enumerate(
        [([], cores), (["--workers", "2"], max(1, cores // 2)), (["--threads", "3"], 3)]
    ):
        folder = toy / str(i)
        folder.mkdir()
        shutil.copy(toy / "toy.py", folder)
        sweep_here(folder, *words, *options)
        (log,) = logs(folder).values()
        assert f"threads {threads}\n" in log
    task = sweep.command_line(sweep.Args(cpus=3), "python", "sweep.py", ".")  # a cluster's task gets those of --cpus
    assert task[-2:] == ["--threads", "3"]


# ----------------------------------------------------------------------------------------------------- The command line


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ([], ["--env-ids", "one or more"]),
        (["--env-ids", "A", "A"], ["--env-ids A A", "once"]),
        (["--env-ids", "A", "--num-seeds", "0"], ["--num-seeds 0", "1 or more"]),
        (["--env-ids", "A", "--start-seed", "-1"], ["--start-seed -1"]),
        (["--env-ids", "A", "--workers", "no"], ["no"]),
        (["--env-ids", "A", "--command", "python pip.py"], ["there is no pip.py"]),
        (["--env-ids", "A", "--command", "python"], ["names no script"]),
        (["--env-ids", "A", "--command", "python 'toy.py"], ["quotes"]),
        (["--env-ids", "A", "--command", "python toy.py --seed 3"], ["--seed", "leave it out"]),
        (["--env-ids", "A", "--command", "python toy.py --modus x"], ["toy.py would not take it", "--modus"]),
        (["--env-ids", "A", "--command", "python toy.py --total-timesteps 3"], ["less than one update"]),
        (["--env-ids", "A", "--command", "python bare.py"], ["bare.py", "num_updates"]),
        (["--env-ids", "A", "--command", "no-such-program toy.py"], ["no-such-program"]),
        (["--env-ids", "A", "--command", "python broken.py"], ["no Python"]),
        (["--env-ids", "A", "--command", "python other.py"], ["class Args of other.py"]),
        (["--env-ids", "A", "--grid", "learning-rate"], ["--grid learning-rate", "learning-rate=1e-3,3e-4"]),
        (["--env-ids", "A", "--grid", "learning-rat=1"], ["toy.py would not take it", "--learning-rat"]),
        (["--env-ids", "A", "--grid", "learning-rate=1e-3,0.001"], ["learning-rate=0.001", "the same run"]),
        (["--env-ids", "A", "--grid", "num-threads=1,2"], ["num-threads=2", "the same run"]),
        (["--env-ids", "A", "--grid", "seed=1,2"], ["--seed", "leave it out"]),
        (["--env-ids", "A", "--grid", "learning-rate=1", "learning_rate=2"], ["learning-rate twice", "in one word"]),
        (["--env-ids", "A", "--folder", "nowhere"], ["--folder nowhere", "make it first"]),
        (["--env-ids", "A", "--partition", "x"], ["--partition", "a sweep on this machine"]),
        (["--env-ids", "A", "--slurm", "--job-queue", "x"], ["--job-queue", "--slurm"]),
        (["--env-ids", "A", "--slurm", "--status"], ["--slurm and --status"]),
        (["--env-ids", "A", "--slurm", "--minutes", "4"], ["--minutes 4", "type 5 or more"]),
        (["--env-ids", "A", "--slurm"], ["no sbatch here"]),
        (["--env-ids", "A", "--aws-batch"], ["--job-queue and --job-definition"]),
        (["--env-ids", "A", "--aws-batch", "--job-queue", "q", "--job-definition", "d"], ["absolute path"]),
        (["--env-ids", "A", "--task", "3"], ["--task 3", "from 0 to 2"]),
        (["--env-ids", "A", "--task", "²"], ["--task ²", "from 0 to 2"]),
        (["--env-ids", "A", "--task", "NO_SUCH_VARIABLE"], ["--task NO_SUCH_VARIABLE", "variable"]),
    ],
)
def test_wrong_use_is_one_line_and_creates_nothing(toy, words, parts, monkeypatch, capsys):
    (toy / "broken.py").write_text("def")
    (toy / "other.py").write_text("print('no arguments')")
    bare = "class Args:\n    exp_name: str = ''\n    env_id: str = ''\n    seed: int = 1\n"
    (toy / "bare.py").write_text(f"from dataclasses import dataclass\n@dataclass\n{bare}")
    before = sorted(toy.rglob("*"))
    monkeypatch.chdir(toy)
    monkeypatch.setenv("PATH", str(toy))
    command = [] if "--command" in words else ["--command", "python toy.py"]
    with pytest.raises(SystemExit) as stop:
        sweep.main(sweep.parse(sweep.Args, [*command, *words], ""))
    stdout, stderr = capsys.readouterr()
    assert stop.value.code == 2 and not stdout and stderr.count("\n") == 1, (stdout, stderr)
    assert stderr.startswith("sweep.py: error: ") and all(part in stderr for part in parts), stderr
    assert sorted(toy.rglob("*")) == before


def test_wrong_use_as_typed(toy):
    stdout, stderr = sweep_here(
        toy, "--env-ids", "A", "--command", "python toy.py --modus x", "--workers", "2", status=2
    )
    assert not stdout and stderr.count("\n") == 1 and "--modus" in stderr
    stdout, stderr = sweep_here(toy, "--worker", "2", status=2)
    assert not stdout and stderr.count("\n") == 1 and "--worker" in stderr
    (toy / "logs").write_text("a file")
    words = ["--env-ids", "A", "--command", "python toy.py"]
    for more in ([], ["--status"]):
        _, stderr = sweep_here(toy, *words, *more, status=1)
        assert stderr.count("\n") == 1 and "logs" in stderr and "Traceback" not in stderr


def test_a_grid_is_every_combination_of_its_values(toy):
    words = ["--command", "python toy.py", "--env-ids", "A", "--num-seeds", "2"]
    words += ["--grid", "learning-rate=1e-3,3e-4", "anneal=true,false"]
    sweep_here(toy, *words, "--task", "2")  # as on a cluster, whose tasks get the grid too
    args = sweep.parse(sweep.Args, words, "")
    assert sweep.command_line(args, "python", "sweep.py", ".")[-3:] == words[-3:]
    stdout, _ = sweep_here(toy, *words)
    assert stdout.splitlines()[-1] == "8 done"
    made = [json.loads((run / "config.json").read_text())["arguments"] for run in run_folders(toy)]
    points = {(one["learning_rate"], one["anneal"], one["seed"]) for one in made}
    assert points == {(rate, anneal, seed) for rate in (1e-3, 3e-4) for anneal in (True, False) for seed in (1, 2)}
    assert len(made) == 8 == len(list(toy.glob("logs/*.log")))
    status, _ = sweep_here(toy, *words, "--status")
    assert re.search(r"^A +learning-rate=3e-4 no-anneal +2  done +", status, re.MULTILINE)
    assert "arguments" in status and "arguments" not in sweep_here(toy, *words[:6], "--status")[0]  # without a grid


def test_a_task_is_one_run_of_the_sweep(toy):
    words = ["--command", "python toy.py", "--env-ids", "A", "B", "--num-seeds", "2"]
    sweep_here(toy, *words, "--task", "1")
    process = type_sweep(toy, *words, "--task", "TASK", env=os.environ | {"TASK": "2"})
    assert process.wait(timeout=60) == 0
    names = sorted(path.name.rsplit("__", 1)[0] for path in toy.glob("runs/*"))
    assert names == ["A__toy__2", "B__toy__1"]


def test_runs_of_another_folder(toy):
    (toy / "elsewhere").mkdir()
    words = ["--command", "python toy.py", "--env-ids", "A", "--num-seeds", "1", "--folder", "elsewhere"]
    sweep_here(toy, *words)
    sweep_here(toy, *words, "--status")
    assert len(run_folders(toy / "elsewhere")) == 1 and not (toy / "runs").exists()


def test_a_terminal_gets_a_live_table(tmp_path):
    words = ["--command", f"{NUMPY} --total-timesteps 20000", "--env-ids", "CartPole-v1", "--num-seeds", "2"]
    terminal, end = pty.openpty()
    size = os.environ | {"COLUMNS": "140", "LINES": "30", "TERM": "xterm"}
    process = type_sweep(tmp_path, *words, "--workers", "1", stdout=end, stderr=end, env=size)
    os.close(end)
    seen = b""
    try:
        while piece := os.read(terminal, 1 << 16):
            seen += piece
    except OSError:  # the terminal's other end is closed
        pass
    assert process.wait() == 0
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen.decode())
    assert re.search(r"CartPole-v1     1  running +[\d,]+ \(\d+%\) +[\d,]+ +[\d.]+", text), text[-3000:]
    assert re.search(r"CartPole-v1     2  queued", text)
    assert "2 done" in text.splitlines()[-2] + text.splitlines()[-1] and "1 queued, 1 running" in text
    assert seen.count(b"\x1b[4F\x1b[J") >= 2  # it is drawn in its place, four lines up


SHELL_SCRIPTS = sorted(path.name for path in (ROOT / "benchmark").glob("*.sh"))


def test_every_script_has_a_sweep_that_the_page_names():
    scripts = {path.stem for path in (ROOT / "cleanrl").glob("*.py")}
    page = (ROOT / "docs" / "sweeps.md").read_text()
    assert {f"{script}.sh" for script in scripts} == set(SHELL_SCRIPTS)
    for name in SHELL_SCRIPTS:
        assert f"`{name}`" in page or f"`benchmark/{name}`" in page, name


@pytest.mark.parametrize("name", SHELL_SCRIPTS)
def test_shell_scripts_as_typed(name, tmp_path):
    """Each says what it would run; the fast ones run a shortened sweep."""
    for folder in ("benchmark", "cleanrl"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    scripts = re.findall(r"cleanrl/\w+\.py", (ROOT / "benchmark" / name).read_text())
    assert scripts
    if missing := [script for script in scripts if not (ROOT / script).is_file()]:
        pytest.skip(f"{' '.join(missing)} is not in this version")
    path = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}

    def type_it(*words):
        command = [f"benchmark/{name}", *words]
        return subprocess.run(command, cwd=tmp_path, env=os.environ | path, capture_output=True, text=True, timeout=300)

    status = type_it("--status")
    assert status.returncode == 1 and "queued" in status.stdout and not status.stderr, status
    if name == "ppo_numpy.sh":
        short = ["--num-seeds", "1", "--command", "python cleanrl/ppo_numpy.py --total-timesteps 2048"]
        done = type_it(*short)
        assert done.returncode == 0 and re.findall(r"^\d+ done$", done.stdout, re.M) == ["3 done", "1 done"], done
        assert json.loads(next(tmp_path.glob("runs/*/config.json")).read_text())["arguments"]["total_timesteps"] == 2048


def test_a_sweep_in_the_environment_that_make_train_makes(toy):
    words = ["--command", "python toy.py", "--env-ids", "A", "--num-seeds", "1"]
    done = type_in_the_readmes_environment(toy, "sweep.py", *words)
    assert done.returncode == 0 and done.stdout.endswith("1 done\n"), done
    done = type_in_the_readmes_environment(toy, "sweep.py", *words, "--status")
    assert done.returncode == 0 and "done" in done.stdout and not done.stderr, done


@pytest.mark.parametrize("name", ["ppo_atari_multigpu.sh", "ppo_atari_multigpu_envpool.sh"])
def test_runs_of_several_processes_are_recognised_and_share_their_threads(name, tmp_path):
    """The command as it stands in the shell script, but for the sizes."""
    pytest.importorskip("ale_py")
    if "envpool" in name:
        pytest.importorskip("envpool")
    (tmp_path / "cleanrl").symlink_to(ROOT / "cleanrl")
    text = (ROOT / "benchmark" / name).read_text()
    command, env_id = re.search(r'--command "(.+?)"', text)[1], re.search(r"--env-ids (\S+)", text)[1]
    sizes = "--total-timesteps 128 --num-envs 4 --num-steps 32 --num-minibatches 1 --update-epochs 1"
    words = ["--command", f"{command} {sizes}", "--env-ids", env_id, "--num-seeds", "1", "--threads", "2"]
    stdout, _ = sweep_here(tmp_path, *words)
    assert stdout.splitlines()[-1] == "1 done" and "again" not in stdout
    sweep_here(tmp_path, *words, "--status")
    (run,) = run_folders(tmp_path)
    config = json.loads((run / "config.json").read_text())
    assert config["arguments"]["num_threads"] is None and config["resolved"]["num_threads"] == 1  # two of two
    assert config["arguments"].get("env_threads") is None
