"""benchmark/tune.py as a user types it: trials go on after kills, are pruned, and fail in the open."""

import re
import shutil
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import fake_ppo
import optuna
import pytest
import sweep
import tune
from command_line import UserError
from fake_runs import updates, wait_until
from optuna.trial import TrialState

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """A folder with the script that trains nothing, and its space."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(ROOT / "tests" / "tools" / "fake_ppo.py", tmp_path)
    Path("space.toml").write_text("x = { low = 0.0, high = 1.0 }\n")
    sweep.read_folder.cache_clear()
    sweep.version_seen.cache_clear()
    sweep.defined_in.cache_clear()
    return tmp_path


def typed(*more, fake="", env_ids=("A",), trials=6, workers=2, confirm=0):
    words = ["--command", f"python fake_ppo.py {fake}", "--space", "space.toml", "--env-ids", *env_ids]
    words += ["--trials", str(trials), "--workers", str(workers), "--confirm", str(confirm)]
    return [*words, *more]


def start(name, *words):
    with open(name, "a") as output:
        return subprocess.Popen([sys.executable, ROOT / "benchmark" / "tune.py", *words], stdout=output, stderr=output)


def all_trials():
    return tune.counted(optuna.load_study(study_name=None, storage="sqlite:///runs/tune.db"))  # of the only study


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
    args = tune.Args(env_ids=["A"], command=f"python fake_ppo.py {fake}", trials=len(values))
    space = {name: tune.distribution(name, x) for name, x in (space or {"x": {"low": 0.0, "high": 1.0}}).items()}
    return tune.Search(args, space, {"A": (0.0, 1.0)}, study, sweep.Sweep([], 1, 1, []))


# ----------------------------------------------------------------------------------------------------------- The search


def test_the_best_is_found_and_confirmed_on_fresh_seeds(tool_here):
    stdout, _ = tool_here(tune, *typed(trials=5, confirm=2))
    trials = all_trials()
    assert [trial.state for trial in trials] == [TrialState.COMPLETE] * 5 and "5 of 5 trials are complete" in stdout
    three = sorted(trials, key=lambda trial: trial.value)[-3:]
    assert (
        f"\npython fake_ppo.py --exp-name fake_ppo_tune --x={three[-1].params['x']:.6g} --env-id A --seed 1\n" in stdout
    )
    confirmed = {tuple(line.split()[1:3]) for line in updates() if line.split()[1] != "1"}
    values = ["0.9", *(str(float(f"{trial.params['x']:.6g}")) for trial in three)]
    assert confirmed == {(seed, value) for seed in "23" for value in values}
    for trial in three:
        gain = 10.5 * (0.6 - abs(trial.params["x"] - 0.3))  # the fake has no noise
        shown = f"{gain:.2f}".replace("-", "−")
        assert re.search(rf"trial {trial.number} .*│ 2 seeds │ {shown} ", stdout)
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
        scores = [(value + 10.5) / 10.5, (value + 21) / 21]  # in A and B, with each seed
        assert trial.intermediate_values[20] == pytest.approx(scores[0], abs=1e-4)
        assert trial.intermediate_values[40] == pytest.approx(sum(scores) / 2, abs=1e-4)  # with the runs before it
        assert trial.intermediate_values[60] == pytest.approx((2 * scores[0] + scores[1]) / 3, abs=1e-4)


def test_poor_trials_are_pruned():
    Path("hold").touch()  # in which runs from 0.6 on would wait for ever
    search = search_of(*({"x": 0.3 + 0.01 * i} for i in range(5)), {"x": 0.6}, {"x": 0.31}, fake="--hold 0.6")
    search.run()
    states = [trial.state for trial in search.study.trials]
    assert states == [TrialState.COMPLETE] * 5 + [TrialState.PRUNED] + [TrialState.COMPLETE]
    assert 5 <= search.study.trials[5].last_step <= 10
    assert len([line for line in updates() if " 0.6 " in line]) == 10


def test_a_trial_is_pruned_below_the_median_of_five_and_after_a_quarter_of_its_run(monkeypatch):
    create_study = optuna.create_study

    def in_memory(storage, **how):
        return create_study(**how)

    monkeypatch.setattr(optuna, "create_study", in_memory)  # a file costs seconds
    study = tune.open_study("one")

    def is_pruned(value, point):
        trial = study.ask()
        trial.report(value, point)
        return trial.should_prune()

    def add(value):
        values = dict.fromkeys((4, 5, 20), value)
        study.add_trial(optuna.trial.create_trial(value=value, intermediate_values=values))

    for value in (1.0, 2.0, 9.0, 9.0):
        add(value)
    assert not is_pruned(0.0, 20)
    add(3.0)
    assert [is_pruned(0.0, 4), is_pruned(0.0, 5), is_pruned(2.9, 20), is_pruned(3.1, 20)] == [False, True, True, False]


def test_the_best_are_confirmed_on_seeds_that_no_trial_had(monkeypatch):
    made = []

    def make_runs(jobs, workers):
        made.append(([(job.seed, job.env_id, job.arguments["x"]) for job in jobs], workers))
        return 7

    monkeypatch.setattr(sweep, "make_runs", make_runs)
    args = tune.Args(["A"], "python fake_ppo.py", num_seeds=3, confirm=2, workers=4)
    space = {"x": tune.distribution("x", [0.25])}
    best = [optuna.trial.create_trial(value=1.0, params={"x": 0.25}, distributions=space)]
    with pytest.raises(SystemExit, match="7"):  # they have not ended
        tune.confirm(args, best)
    assert made == [([(4, "A", 0.9), (5, "A", 0.9), (4, "A", 0.25), (5, "A", 0.25)], 4)]


def test_a_search_is_that_of_its_script_arguments_space_targets_and_seeds():
    def name(fake="", low=0.0, targets=(0.0, 1.0), num_seeds=2):
        args = tune.Args(["A"], f"python fake_ppo.py {fake}", num_seeds=num_seeds)
        job = tune.make_jobs(args, {}, 1, num_seeds)[0]
        space = {"x": tune.distribution("x", {"low": low, "high": 1.0})}
        return tune.name_of_search(args, job, space, {"A": targets})

    one = name()
    assert one == name("--num-threads 3") and one.startswith("fake_ppo_")
    others = [name("--sizes 32"), name(low=0.1), name(targets=(0.0, 2.0)), name(num_seeds=3)]
    source = Path("fake_ppo.py").read_text()
    Path("fake_ppo.py").write_text(source.replace("import json", "import json\n\nA_CONSTANT = 1", 1))
    sweep.version_seen.cache_clear()
    assert len({one, *others, name()}) == 6


def test_runs_that_diverge_are_counted_where_the_best_are_confirmed(tool_here):
    """Seeds 2 to 6 confirm; where x is below 0.5, seed 3 diverges, and seed 4 before an episode has ended. Two trials
    are alike, and only one is confirmed."""
    fake = Path("fake_ppo.py")
    wanted = "args.x < 0.5 and (args.seed, update) in ((3, updates // 2), (4, 1))"
    fake.write_text(fake.read_text().replace("update == updates // 2 and args.diverge", wanted))
    Path("space.toml").write_text("x = [0.2]\n")
    stdout, stderr = tool_here(tune, *typed("--space", "space.toml", trials=2, confirm=5))
    rows = [line.split("│") for line in stdout.splitlines() if line.startswith("│")]
    defaults, trial = ([cell.strip() for cell in row[2:-1]] for row in rows)
    mean = -0.1 * (3 * 10.5 + 16) / 4  # the one that diverged had its first 9 updates
    assert defaults[:2] == ["defaults", "−6.30 ± 0.00"] and defaults[-2:] == ["5 seeds", "–"]
    assert trial[0] == "trial 0" and trial[1].startswith(f"{mean:.2f} ± ".replace("-", "−"))
    assert trial[-2:] == ["4 seeds, 1 diverged", f"{mean + 6.3:.2f}"]  # of so few there is no interval
    assert "A__fake_ppo_tune__4" in stderr and "no episode in it has ended; it is left out" in stderr


# ---------------------------------------------------------------------------------------------------------------- Kills
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
    assert start("second.log", *words).wait(120) == 0, Path("second.log").read_text()
    assert_whole(all_trials(), 3, runs=2)


def test_a_search_is_made_by_one_process_at_a_time():
    Path("hold").touch()
    words = typed(fake="--hold 0", trials=1)
    process = start("first.log", *words)
    wait_until(lambda: len(updates()) == 9)
    assert start("second.log", *words).wait(60) == 2
    assert "another process makes this search" in Path("second.log").read_text()
    Path("hold").unlink()
    assert process.wait(60) == 0
    assert_whole(all_trials(), 1)


# ------------------------------------------------------------------------------------------------------------- Failures


def test_failures_are_counted_and_shown(capsys):
    space = {"crash": [True, False], "total-timesteps": [2000, 50]}
    values = [{"crash": crash, "total-timesteps": steps} for steps in (2000, 50) for crash in (True, False)]
    search = search_of(*values, space=space)
    search.run()
    assert [trial.state.name for trial in search.study.trials] == ["FAIL", "COMPLETE", "FAIL", "FAIL"]
    shown = capsys.readouterr().out
    assert re.search(
        r"^trial 0: fail \(its process ended with status 1.*: fake_ppo: a crash in the middle\)", shown, re.MULTILINE
    )
    assert re.search(r"^trial 2: fail \(.*makes no update", shown, re.MULTILINE)


def test_a_trial_in_which_no_episode_ended_fails_and_says_so(capsys):
    search = search_of({"x": 0.3})
    trial = search.study.ask(search.space)
    jobs = tune.make_jobs(search.args, trial.params, 1, 1)
    fake_ppo.write_end(fake_ppo.make_folder(fake_ppo.Args(exp_name="fake_ppo_tune", x=0.3)), "whole", 20)
    jobs[0].state = "done"
    search.active.append(tune.ActiveTrial(trial, jobs))
    search.advance(search.active[0])
    assert not search.active and [one.state for one in tune.counted(search.study)] == [TrialState.FAIL]
    assert "no episode ended" in capsys.readouterr().out


def test_a_search_without_a_trial_that_is_complete_ends_with_status_1():
    search = search_of({"total-timesteps": 50}, space={"total-timesteps": [2000, 50]})
    with pytest.raises(UserError, match="no trial was completed") as error:
        tune.search(search.args, search.space, search.targets, search.study)
    assert error.value.status == 1


def test_runs_of_a_trial_have_the_name_that_was_typed_and_the_first_seed_first():
    args = tune.Args(["A", "B"], "python fake_ppo.py --exp-name mine")
    found = [(job.seed, job.env_id, job.arguments["exp_name"]) for job in tune.make_jobs(args, {"x": 0.3}, 4, 2)]
    assert found == [(4, "A", "mine"), (4, "B", "mine"), (5, "A", "mine"), (5, "B", "mine")]


def test_a_range_is_of_whole_numbers_if_both_its_ends_are():
    ends = {"low": 1, "high": 64, "log": True}
    assert tune.distribution("n", ends) == optuna.distributions.IntDistribution(1, 64, log=True)
    assert tune.distribution("n", ends | {"high": 2.5}) == optuna.distributions.FloatDistribution(1, 2.5, log=True)


@pytest.mark.parametrize(
    "script, table",
    [
        ("ppo_atari_envpool", "ppo_atari"),
        ("ppo_continuous_action_numpy", "ppo_continuous_action"),
        ("ppo_lstm", "ppo_lstm"),
        ("mine", "ppo"),
    ],
)
def test_a_script_has_the_space_whose_name_its_own_begins_with(script, table):
    source = ROOT / "cleanrl" / f"{'ppo' if script == 'mine' else script}.py"
    shutil.copy(source, f"{script}.py")
    args = tune.Args(["A"], f"python {script}.py")
    space = tomllib.loads((ROOT / "benchmark" / "spaces.toml").read_text())[table]
    wanted = {name: tune.distribution(name, one) for name, one in space.items()}
    assert tune.read_space(args, tune.make_jobs(args, {}, 1, 1)[0]) == wanted


def test_every_scripts_space_fits_it():
    for script in sorted((ROOT / "cleanrl").glob("*.py")):
        args = tune.Args(env_ids=["A"], command=f"python {script}")
        space = tune.read_space(args, tune.make_jobs(args, {}, 1, 1)[0])
        ends = [getattr(one, "choices", None) or (one.low, one.high) for one in space.values()]
        for end in (0, -1):
            tune.make_jobs(args, dict(zip(space, [x[end] for x in ends])), 1, 1)
        if "lstm" in script.stem and "num-envs" in space:  # a minibatch is of whole environments
            assert max(space["num-minibatches"].choices) <= min(space["num-envs"].choices)
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
        (["--targets", "A=-inf:3"], TARGETS),
        (["--trials", "0"], "must be 1 or more"),
        (["--num-seeds", "0"], "--num-seeds 0: must be 1 or more"),
        (["--workers", "0"], "--workers 0: must be 1 or more"),
        (["--space", "wrong.toml"], "--space: y = 3; write choices, [1, 2], or"),
        (["--space", "unknown.toml"], "--y=3"),
        (["--command", "python fake_ppo.py --x 1"], "has nothing for fake_ppo.py that the command leaves open"),
        (["--space", "none.toml"], "No such file"),
        (["--space", "fake_ppo.py"], "see benchmark/spaces.toml"),
    ],
)
def test_a_mistake_is_one_line_and_creates_nothing(tool_here, here, words, message):
    Path("wrong.toml").write_text("y = 3\n")
    Path("unknown.toml").write_text("y = [3]\n")
    before = sorted(here.rglob("*"))
    stdout, stderr = tool_here(tune, *typed(), *words, status=2)
    assert message in stderr and stderr.count("\n") == 1 and not stdout
    assert [path for path in sorted(here.rglob("*")) if "__pycache__" not in str(path)] == before
