"""benchmark/tune.py as a user types it: trials are shared, go on after kills, are pruned, and fail in the open."""

import contextlib
import re
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import optuna
import pytest
import sweep
import tune
from optuna.trial import TrialState

from tests.fake_runs import updates, wait_until

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """A folder with the script that trains nothing, and its space."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(ROOT / "tests" / "fake_ppo.py", tmp_path)
    Path("space.toml").write_text("x = { low = 0.0, high = 1.0 }\n")
    sweep.read_folder.cache_clear()
    sweep.script_args.cache_clear()
    return tmp_path


def typed(*more, fake="", env_ids=("A",), trials=6, workers=2, confirm=0):
    words = ["--command", f"python fake_ppo.py {fake}", "--space", "space.toml", "--env-ids", *env_ids]
    words += ["--trials", str(trials), "--workers", str(workers), "--confirm", str(confirm), "--grace", "4"]
    return [*words, *more]


def start(name, *words):
    with open(name, "a") as output:
        return subprocess.Popen([sys.executable, ROOT / "benchmark" / "tune.py", *words], stdout=output, stderr=output)


def all_trials():
    storage = tune.Args().storage
    return tune.counted(optuna.load_study(study_name=None, storage=storage))  # of the only study


def assert_whole(trials, count, runs=1):
    """So many trials, each complete with the value of its hyperparameters, and every update made once."""
    assert len(trials) == len({trial.params["x"] for trial in trials}) == count
    for trial in trials:
        assert trial.state == TrialState.COMPLETE
        assert trial.value == pytest.approx(-abs(trial.params["x"] - 0.3) * 10.5, abs=1e-4)  # mean of 20 updates
    assert len(updates()) == len(set(updates())) == count * runs * 20


def search_of(*values, space=None, fake=""):
    """A search of these hyperparameters, in this process and without a file."""
    study = optuna.create_study(direction="maximize", pruner=optuna.pruners.MedianPruner(5, tune.POINTS // 4))
    for value in values:
        study.enqueue_trial(value)
    args = tune.Args(env_ids=["A"], command=f"python fake_ppo.py {fake}", trials=len(values), grace=2)
    space = {name: tune.distribution(name, x) for name, x in (space or {"x": {"low": 0.0, "high": 1.0}}).items()}
    return tune.Search(args, space, {"A": (0.0, 1.0)}, study, contextlib.nullcontext(), sweep.Sweep([], 1, 1, []))


# ----------------------------------------------------------------------------------------------------------- The search


def test_the_best_is_found_and_confirmed_on_fresh_seeds(tool_here):
    stdout, _ = tool_here(tune, *typed(trials=5, confirm=5))
    trials = all_trials()
    assert [trial.state for trial in trials] == [TrialState.COMPLETE] * 5 and "5 of 5 trials are complete" in stdout
    three = sorted(trials, key=lambda trial: trial.value)[-3:]
    assert f"\npython fake_ppo.py --x={three[-1].params['x']:.6g} --env-id A --seed 1\n" in stdout
    confirmed = {tuple(line.split()[1:3]) for line in updates() if line.split()[1] != "1"}
    values = ["0.9", *(str(float(f"{trial.params['x']:.6g}")) for trial in three)]
    assert confirmed == {(seed, value) for seed in "23456" for value in values}
    for trial in three:
        gain = 10.5 * (0.6 - abs(trial.params["x"] - 0.3))  # the fake has no noise
        interval = f"[{gain:.2f}, {gain:.2f}]".replace("-", "−")
        assert re.search(rf"trial {trial.number} .* {gain:.2f} +│ {re.escape(interval)}", stdout)
    made = len(updates())
    stdout, _ = tool_here(tune, *typed(trials=5))  # typed again it does nothing anew
    assert len(updates()) == made and "5 of 5 trials are complete" in stdout
    tool_here(tune, *typed(trials=6))
    assert len(updates()) == made + 20


def test_several_environments_and_seeds_make_one_score(tool_here):
    words = ["--num-seeds", "2", "--targets", "A=-10.5:0", "B=-21:0"]
    tool_here(tune, *typed(*words, env_ids=("A", "B"), trials=2))
    for trial in all_trials():
        value = -abs(trial.params["x"] - 0.3) * 10.5  # mean return of every run
        assert trial.value == pytest.approx(((value + 10.5) / 10.5 + (value + 21) / 21) / 2, abs=1e-4)
        first_half = ((-abs(trial.params["x"] - 0.3) * 15.5) + 10.5) / 10.5
        assert trial.intermediate_values[10] == pytest.approx(first_half, abs=1e-4)
        assert max(trial.intermediate_values) == 4 * tune.POINTS


def test_poor_trials_are_pruned():
    Path("hold").touch()  # in which runs from 0.6 on would wait for ever
    search = search_of(*({"x": 0.3 + 0.01 * i} for i in range(5)), {"x": 0.6}, {"x": 0.31}, fake="--hold 0.6")
    search.run()
    states = [trial.state for trial in search.study.trials]
    assert states == [TrialState.COMPLETE] * 5 + [TrialState.PRUNED] + [TrialState.COMPLETE]
    assert 5 <= search.study.trials[5].last_step <= 10
    assert len([line for line in updates() if " 0.6 " in line]) == 10


# ------------------------------------------------------------------------------------------------------ Kills and races


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_stopped_search_loses_no_trial_and_makes_none_twice(number):
    Path("hold").touch()
    words = typed("--num-seeds", "2", fake="--hold 0", trials=3)
    process = start("first.log", *words)
    wait_until(lambda: len(updates()) == 2 * 9)  # two trials are in the middle of their first run
    process.send_signal(number)
    assert process.wait(60) in (-number, 128 + number)
    assert len(all_trials()) == 2
    Path("hold").unlink()
    both = [start(name, *words) for name in ("second.log", "third.log")]  # each trial that waits is taken once
    assert [process.wait(120) for process in both] == [0, 0], Path("second.log").read_text()
    assert_whole(all_trials(), 3, runs=2)


def test_two_processes_share_the_trials():
    both = [start(name, *typed(trials=4)) for name in ("first.log", "second.log")]
    assert [process.wait(120) for process in both] == [0, 0], Path("second.log").read_text()
    assert_whole(all_trials(), 4)
    logs = [Path("first.log").read_text(), Path("second.log").read_text()]
    assert all("best: trial" in log for log in logs)
    ended = [log.count(": complete") - 1 for log in logs]  # without the line of the best
    assert sum(ended) == 4 and min(ended) > 0


def test_a_trial_that_another_process_gave_up_is_no_error():
    Path("hold").touch()
    search = search_of({"x": 0.5}, fake="--hold 0")
    with ThreadPoolExecutor() as pool:
        ended = pool.submit(search.run)
        wait_until(lambda: len(updates()) == 9)
        tune.continue_later(search.study, search.study.trials[0])
        Path("hold").unlink()
        ended.result()
    assert [trial.state for trial in search.study.trials] == [TrialState.FAIL, TrialState.COMPLETE]
    assert len(updates()) == 20


def test_lost_trials_are_continued_after_a_while(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(tune.time, "monotonic", lambda: clock[0])
    search = search_of({"x": 0.1}, {"x": 0.2}, {"x": 0.3}, {"x": 0.4})
    trials = [search.study.ask() for _ in range(4)]
    for trial in trials:
        trial.suggest_float("x", 0.0, 1.0)
    killed, given_up, alive, failed = trials
    search.study.tell(given_up, state=TrialState.FAIL)  # its process was killed before it queued the next
    failed.set_user_attr("error", "status 1")
    search.study.tell(failed, state=TrialState.FAIL)
    search.continue_lost()
    assert len(search.study.trials) == 4
    clock[0] = search.args.grace + 1
    alive.set_user_attr("sign", 1)
    search.continue_lost()
    waiting = [trial for trial in search.study.trials if trial.state == TrialState.WAITING]
    assert [trial.user_attrs["continues"] for trial in waiting] == [killed.number, given_up.number]
    assert [trial.number for trial in tune.counted(search.study)] == [alive.number, failed.number, 4, 5]
    again = search.study.ask()  # and is killed at once
    tune.continue_later(search.study, search.study.trials[again.number])
    assert [search.study.ask().suggest_float("x", 0.0, 1.0) for _ in range(2)] == [0.2, 0.1]


# ------------------------------------------------------------------------------------------------------------- Failures


def test_failures_are_counted_and_shown(capsys):
    space = {"crash": [True, False], "total-timesteps": [2000, 50]}
    values = [{"crash": crash, "total-timesteps": steps} for steps in (2000, 50) for crash in (True, False)]
    search = search_of(*values, space=space)
    search.run()
    assert [trial.state.name for trial in search.study.trials] == ["FAIL", "COMPLETE", "FAIL", "FAIL"]
    shown = capsys.readouterr().out
    assert re.search(r"^trial 0: fail \(ended with status 1 .*: fake_ppo: a crash in the middle\)", shown, re.MULTILINE)
    assert re.search(r"^trial 2: fail \(.*makes no update", shown, re.MULTILINE)


def test_every_scripts_space_fits_it():
    for script in sorted((ROOT / "cleanrl").glob("*.py")):
        args = tune.Args(env_ids=["A"], command=f"python {script}")
        space = tune.read_space(args, tune.make_jobs(args, {}, 1, 1)[0])
        ends = [getattr(one, "choices", None) or (one.low, one.high) for one in space.values()]
        for end in (0, -1):
            tune.make_jobs(args, dict(zip(space, [x[end] for x in ends])), 1, 1)
    script = ROOT / "cleanrl" / "ppo.py"
    args = tune.Args(env_ids=["A"], command=f"python {script} --gamma=0.9 --num_envs 8 --no-clip-vloss")
    assert not {"gamma", "num-envs", "clip-vloss"} & tune.read_space(args, tune.make_jobs(args, {}, 1, 1)[0]).keys()


TARGETS = "--targets: type for each environment the returns that score 0 and 1: --targets A=LOW:HIGH"


@pytest.mark.parametrize(
    "words, message",
    [
        (["--env-ids", "A", "B"], f"{TARGETS} B=LOW:HIGH"),
        (["--targets", "A=3:3"], TARGETS),
        (["--targets", "A=20:nan"], TARGETS),
        (["--targets", "A=20"], TARGETS),
        (["--targets", "B=1:3"], TARGETS),
        (["--env-ids"], "name the environments"),
        (["--trials", "0"], "must be 1 or more"),
        (["--space", "wrong.toml"], "--space: y = 3; write choices, [1, 2], or"),
        (["--space", "unknown.toml"], "fake_ppo.py does not take --y=3"),
        (["--command", "python fake_ppo.py --x 1"], "has nothing for fake_ppo.py that the command leaves open"),
        (["--storage", "postgresql+psycopg://x:secret@127.0.0.1:9/x"], "--storage: can't be opened"),
    ],
)
def test_a_mistake_is_one_line_and_creates_nothing(tool_here, here, monkeypatch, words, message):
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    Path("wrong.toml").write_text("y = 3\n")
    Path("unknown.toml").write_text("y = [3]\n")
    before = sorted(here.rglob("*"))
    with pytest.raises(ValueError, match=r"^[^\n]*$") as mistake:
        tool_here(tune, *typed(), *words)
    assert message in str(mistake.value) and "secret" not in str(mistake.value)
    assert [path for path in sorted(here.rglob("*")) if "__pycache__" not in str(path)] == before


def test_a_database_that_breaks_is_one_line_and_leaves_no_run_behind():
    Path("hold").touch()
    process = start("first.log", *typed(fake="--hold 0", trials=1))
    wait_until(lambda: len(updates()) == 9)
    Path("runs/tune.db").write_text("no database")
    assert process.wait(60) == 1
    _, line = Path("first.log").read_text().splitlines()  # the first says that the run runs
    assert line.startswith("tune.py: error: --storage: ")
    Path("hold").unlink()
    assert not any(sweep.is_held(lock) for lock in Path().glob("runs/*/lock"))


def test_a_mistake_as_typed():
    assert start("first.log", *typed("--space", "none.toml")).wait(60) == 2
    assert Path("first.log").read_text() == "tune.py: error: [Errno 2] No such file or directory: 'none.toml'\n"
