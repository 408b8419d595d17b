"""benchmark/tune.py as a user types it: trials are shared, go on after kills, are pruned, and fail in the open."""

import gc
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import optuna
import pytest
import tune
import tyro
from helpers import type_in_the_readmes_environment
from optuna.trial import TrialState

ROOT = Path(__file__).parents[1]
write_page = tune.write_page

# A script with a run folder and no training, whose returns are the better the nearer x is to 0.3. It writes a line for
# every update that it makes, and waits after the tenth for as long as there is a file `hold` whose condition is true.
TOY = """
import contextlib, json, re, shutil, signal, sys, time
from dataclasses import asdict, dataclass
from pathlib import Path

@dataclass
class Args:
    exp_name: str = Path(__file__).stem
    env_id: str = "A"
    seed: int = 1
    total_timesteps: int = 2000
    num_envs: int = 1
    num_steps: int = 100
    x: float = 0.9
    crash: bool = False
    resume: str | None = None

    @property
    def num_updates(self) -> int:
        return self.total_timesteps // 100

if __name__ == "__main__":
    stop = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.append(1))
    words = " ".join(sys.argv[1:]).replace("=", " ")
    typed = {name.replace("-", "_"): x for name, x in re.findall(r"--([a-z-]+) ([^- ]+)", words)}
    kinds = {"seed": int, "total_timesteps": int, "x": float}
    args = Args(**{name: kinds.get(name, str)(x) for name, x in typed.items()}, crash="--crash" in words)
    folder = Path(args.resume or f"runs/{args.env_id}__{args.exp_name}__{args.seed}__{time.time_ns()}")
    first = 1
    if args.resume:
        args = Args(**json.loads((folder / "config.json").read_text())["arguments"])
        first += max(int(path.stem) for path in folder.glob("checkpoints/*"))
    else:
        (folder / "checkpoints").mkdir(parents=True)
        shutil.copy(__file__, folder)
        (folder / "episodes.csv").write_text("global_step,episodic_return,episodic_length,seconds\\n")
        (folder / "metrics.csv").write_text("global_step,charts/SPS\\n")
        (folder / "config.json").write_text(json.dumps({"arguments": asdict(args)}))
    if args.crash:
        sys.exit("toy: a crash")
    metrics, ended = (open(folder / name, "a") for name in ("metrics.csv", "episodes.csv"))
    with open("updates", "a") as log:
        for update in range(first, args.num_updates + 1):
            for step in (20, 40, 60, 80, 100):
                reward = -abs(args.x - 0.3) * (21 - update)
                print(update * 100 - 100 + step, reward, 20, 0.1, sep=",", file=ended, flush=True)
            print(update * 100, 1000.0, sep=",", file=metrics, flush=True)
            print(args.env_id, args.seed, args.x, args.exp_name, update, file=log, flush=True)
            with contextlib.suppress(FileNotFoundError):
                end = time.monotonic() + 30
                while update == 10 and not stop and eval(Path("hold").read_text(), vars(args)):
                    time.sleep(0.01 if time.monotonic() < end else sys.exit("toy: held for too long"))
            if stop:
                break
        (folder / "checkpoints" / f"{update}.npz").touch()
"""


@pytest.fixture
def toy(in_tmp_path, monkeypatch):
    Path("toy.py").write_text(TOY)
    Path("space.toml").write_text("x = { low = 0.0, high = 1.0 }\n")
    monkeypatch.setattr(optuna.samplers, "TPESampler", partial(optuna.samplers.TPESampler, seed=1))
    return in_tmp_path


@pytest.fixture
def tune_here(tool_here, toy, monkeypatch):
    monkeypatch.setattr(tune, "write_page", lambda *arguments: None)  # five megabytes
    return partial(tool_here, tune)


def typed(*more, env_ids=("A",), trials=6, workers=2, confirm=0):
    words = ["--command", "python toy.py", "--space", "space.toml", "--env-ids", *env_ids]
    return [*words, "--trials", str(trials), "--workers", str(workers), "--confirm", str(confirm), *more]


def fork(name, words, sampler_seed=1):
    """The program as typed, in a child process without the seconds in which it loads. Returns its id."""
    if pid := os.fork():
        return pid
    gc.freeze()  # as helpers.fork
    status = 70
    try:
        for number in (1, 2):
            os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
        sys.stdout = sys.stderr = open(1, "w", buffering=1, closefd=False)
        optuna.samplers.TPESampler = partial(optuna.samplers.RandomSampler, sampler_seed)
        tune.write_page = lambda *arguments: None
        tune.main(tyro.cli(tune.Args, args=words))
        status = 0
    except SystemExit as end:
        status = end.code
    finally:
        os._exit(status)


def wait_for(condition):
    end = time.monotonic() + 60
    while not (answer := condition()):
        assert time.monotonic() < end
        time.sleep(0.01)
    return answer


def wait(pid):
    """The exit status, negative for a signal."""
    try:
        _, status = wait_for(lambda: (ended := os.waitpid(pid, os.WNOHANG))[0] and ended)
    except AssertionError:
        os.kill(pid, signal.SIGKILL)
        raise
    return os.waitstatus_to_exitcode(status)


def updates():
    return Path("updates").read_text().splitlines() if Path("updates").exists() else []


def all_trials(storage="sqlite:///runs/tune.db"):
    (name,) = optuna.get_all_study_names(storage)
    trials = optuna.load_study(study_name=name, storage=storage).trials
    return [trial for trial in trials if trial.state != TrialState.WAITING]  # one too many, asked for at the same time


def assert_whole(trials, count, runs=1):
    """So many trials, each complete, with the value that its hyperparameters have, and every update made once."""
    assert [trial.number for trial in trials] == list(range(count))
    for trial in trials:
        assert trial.state == TrialState.COMPLETE
        assert trial.value == pytest.approx(-abs(trial.params["x"] - 0.3) * 10.5, abs=1e-4)  # mean of 20 updates
    assert len({trial.params["x"] for trial in trials}) == count
    assert len(updates()) == len(set(updates())) == count * runs * 20


def test_the_best_is_found_shown_and_confirmed(tune_here, monkeypatch):
    monkeypatch.setattr(tune, "write_page", write_page)
    stdout, _ = tune_here(*typed(trials=5, confirm=2))
    trials = all_trials()
    best = max(trials, key=lambda trial: trial.value)
    lines = stdout.splitlines()
    assert sum(line.startswith("trial ") and "starts: x=" in line for line in lines) == 5 and "5 complete" in lines
    command = lines[lines.index(next(line for line in lines if line.startswith("best: "))) + 1]
    assert command == f"python toy.py --x={best.params['x']:.6g} --env-id A --seed 1"
    # The defaults and the best three, on seeds 2 and 3
    digest = re.compile(r"(?<=_trial\d)_[0-9a-f]{6}\b")
    confirmed = {tuple(digest.sub("", line).split()[:4]) for line in updates() if "_" in line.split()[3]}
    three = sorted(trials, key=lambda trial: trial.value)[-3:]
    wanted = [(0.9, "defaults"), *((float(f"{t.params['x']:.6g}"), f"trial{t.number}") for t in three)]
    study = lines[-1].removeprefix("page: runs/").removesuffix(".html")
    assert confirmed == {("A", seed, str(x), f"{study}_{name}") for seed in "23" for x, name in wanted}
    assert stdout.count("| B is better |") == 3  # no noise in the toy
    page = Path("runs", f"{study}.html").read_text()
    assert page.count("Plotly.newPlot(") >= 3 and page.count("| B is better |") == 3
    assert command in page and all(f"trial {n}: " in page for n in range(5))
    assert not re.search(r"<(script|link|img)\b[^>]*(src|href)=[\"']?(https?:)?//", page.replace("\\", ""))
    # Typed again it does nothing anew, and with a larger number it goes on
    made = len(updates())
    stdout, _ = tune_here(*typed(trials=5))
    assert "starts" not in stdout and len(updates()) == made and "page: " in stdout
    stdout, _ = tune_here(*typed(trials=6))
    assert stdout.count("starts: x=") == 1 and "6 complete" in stdout


def test_a_search_begun_anew_confirms_its_own_trials(toy):
    for sampler_seed in (1, 2):
        assert wait(fork("log", typed(trials=1, confirm=1), sampler_seed)) == 0, Path("log").read_text()
        Path("runs", "tune.db").unlink()
    assert len([*Path("runs").glob("*_trial0_*.md")]) == 2


def test_a_folder_that_cannot_be_written_is_one_line(toy):
    Path("logs").write_text("a file")
    command = [sys.executable, str(ROOT / "benchmark" / "tune.py"), *typed(trials=1)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert re.fullmatch(r"tune\.py: error: .*logs.*; what was saved is whole\. .*", done.stderr.splitlines()[-1])


def test_several_environments_and_seeds_make_one_score(tune_here):
    tune_here(*typed("--num-seeds", "2", "--targets", "A=-10.5:0", "B=-21:0", env_ids=("A", "B"), trials=2))
    for trial in all_trials():
        value = -abs(trial.params["x"] - 0.3) * 10.5  # mean return of every run
        assert trial.value == pytest.approx(((value + 10.5) / 10.5 + (value + 21) / 21) / 2, abs=1e-4)
        assert max(trial.intermediate_values) == 4 * 20
        first_run_half = ((-abs(trial.params["x"] - 0.3) * 15.5) + 10.5) / 10.5
        assert trial.intermediate_values[10] == pytest.approx(first_run_half, abs=1e-4)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_stopped_search_goes_on(toy, number):
    assert wait(fork("before", typed("--num-seeds", "2", trials=2))) == 0
    Path("hold").write_text("seed == 2")
    words = typed("--num-seeds", "2", trials=5)
    pid = fork("first", words, sampler_seed=3)
    wait_for(lambda: len(updates()) == 80 + 2 * 30)  # trials 2 and 3 are in the middle of their second runs
    os.kill(pid, number)
    assert wait(pid) in (-number, 128 + number)
    states = [trial.state for trial in all_trials()]
    assert states == [TrialState.COMPLETE] * 2 + [TrialState.RUNNING] * 2
    Path("hold").unlink()
    assert wait(fork("second", words, sampler_seed=2)) == 0
    assert re.findall(r"trial (\d): goes on: ", Path("second").read_text()) == ["2", "3"]
    assert_whole(all_trials(), 5, runs=2)


def share(storage):
    """Two processes that make trials of two at a time, of which none can end before each has begun two."""
    Path("hold").write_text("True")
    pids = [
        fork(name, typed("--storage", storage, trials=7), sampler_seed=i) for i, name in enumerate(["first", "second"])
    ]
    wait_for(lambda: len(updates()) == 4 * 10)
    Path("hold").unlink()
    assert [wait(pid) for pid in pids] == [0, 0], (Path("first").read_text(), Path("second").read_text())
    logs = [Path(name).read_text() for name in ("first", "second")]
    started = [re.findall(r"^trial (\d+): starts", log, re.MULTILINE) for log in logs]
    assert all(started) and sorted(started[0] + started[1]) == list("0123456")
    assert all("7 complete" in log and "best: trial " in log for log in logs)  # each waits for the other's
    assert_whole(all_trials(storage), 7)


def test_two_processes_share_the_trials(toy):
    share("sqlite:///shared.db")


@pytest.fixture
def postgres():
    """The URL of a PostgreSQL server of our own, which listens to a socket in its folder alone."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb")) or [shutil.which("initdb")]
    if found[-1] is None:
        pytest.skip("there is no initdb: apt-get install postgresql")
    programs, folder = Path(found[-1]).parent, Path(tempfile.mkdtemp(prefix="tune"))
    user = []
    if os.geteuid() == 0:  # as whom it doesn't run
        shutil.chown(folder, "postgres")
        user = ["runuser", "-u", "postgres", "--"]
    control = [*user, str(programs / "pg_ctl"), "-D", str(folder / "data"), "-w"]
    quiet = {"check": True, "stdout": subprocess.DEVNULL, "cwd": folder}
    subprocess.run([*user, found[-1], "-D", folder / "data", "-A", "trust", "-U", "tuner", "--no-sync"], **quiet)
    subprocess.run([*control, "-l", folder / "log", "-o", f"-k {folder} -c listen_addresses= -F", "start"], **quiet)
    yield f"postgresql+psycopg://tuner@/postgres?host={folder}"
    subprocess.run([*control, "-m", "immediate", "stop"], **quiet)
    shutil.rmtree(folder)


def test_postgresql_holds_the_trials_too(toy, postgres):
    share(postgres)


def test_a_trial_of_another_machine_is_taken_over_when_it_gives_no_sign_of_life(toy, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(tune.time, "monotonic", lambda: clock[0])
    study = optuna.create_study()
    tuner = tune.Tuner(tune.Args(env_ids=["A"], command="python toy.py"), {}, study, None)

    def is_orphan(owner, seconds, beats=None):
        """Whether a trial of this owner is given up so many seconds after it was seen first, and after each beat."""
        trial = study.ask()
        if owner is not None:
            trial.set_user_attr("owner", owner)
        answers = [tuner.is_orphan(study.get_trials()[trial.number])]
        for beat in range(beats or 1):
            if beats:
                trial.set_user_attr("beat", beat)
            answers.append(tuner.is_orphan(study.get_trials()[trial.number]))
            clock[0] += seconds
        return [*answers, tuner.is_orphan(study.get_trials()[trial.number])]

    ended = subprocess.Popen(["true"])
    ended.wait()
    assert is_orphan("another machine 4711", tune.GRACE - 1) == [False] * 3
    assert is_orphan("another machine 4711", tune.GRACE - 1, beats=3) == [False] * 5
    assert is_orphan("another machine 4711", tune.GRACE + 1) == [False, False, True]
    assert is_orphan(None, tune.GRACE + 1) == [False, False, True]  # killed before it could say who it was
    assert is_orphan("", 1) == [True] * 3  # stopped by a signal
    assert is_orphan(f"{tuner.place} {ended.pid}", 1) == [True] * 3
    assert is_orphan(f"{tuner.place} {os.getppid()}", 1) == [False] * 3
    assert is_orphan(tuner.owner, 1) == [True] * 3  # ours, and not among the active: of another life with the same id


def test_poor_runs_are_pruned(tune_here, monkeypatch):
    class WorseAndWorse(optuna.samplers.RandomSampler):
        def sample_independent(self, study, trial, name, distribution):
            return 0.3 + 0.05 * trial.number

    monkeypatch.setattr(optuna.samplers, "TPESampler", WorseAndWorse)
    Path("hold").write_text("x > 0.52")
    stdout, _ = tune_here(*typed(trials=8, workers=1))
    trials = all_trials()
    pruned = [trial for trial in trials if trial.state == TrialState.PRUNED]
    complete = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    assert [trial.number for trial in pruned] == [5, 6, 7] and len(complete) == 5
    assert f"{len(complete)} complete" in stdout and f"{len(pruned)} pruned" in stdout
    reached = {f"{x:.6g}": max(int(line.split()[4]) for line in updates() if line.split()[2] == f"{x:.6g}")
               for x in (trial.params["x"] for trial in trials)}  # fmt: skip
    for trial in pruned:
        assert 5 <= trial.last_step <= reached[f"{trial.params['x']:.6g}"] == 10
        others = sorted(x.intermediate_values[trial.last_step] for x in complete if x.number < trial.number)
        assert trial.value < others[len(others) // 2]
    assert all(reached[f"{trial.params['x']:.6g}"] == 20 for trial in complete)
    Path("hold").unlink()
    stdout, _ = tune_here(*typed("--no-prune", trials=9))  # the same search
    assert [trial.state for trial in all_trials()][8:] == [TrialState.COMPLETE]


def test_failures_are_counted_and_shown(tune_here, monkeypatch):
    Path("space.toml").write_text("crash = [true, false]\ntotal-timesteps = [2000, 50]\n")

    class EachOnce(optuna.samplers.RandomSampler):
        def sample_independent(self, study, trial, name, distribution):
            return trial.number % 2 == 0 if name == "crash" else (2000, 50)[trial.number // 2]

    monkeypatch.setattr(optuna.samplers, "TPESampler", EachOnce)
    stdout, _ = tune_here(*typed(trials=4))
    trials = all_trials()
    crashed = [t for t in trials if t.params["crash"] and t.params["total-timesteps"] == 2000]
    refused = [t for t in trials if t.params["total-timesteps"] == 50]
    assert crashed and refused and len(trials) == 4
    assert {t.number for t in trials if t.state == TrialState.FAIL} == {t.number for t in crashed + refused}
    assert f"{len(crashed) + len(refused)} failed" in stdout
    for trial in crashed:
        assert re.search(rf"^trial {trial.number}: failed \(.*2 times: toy: a crash; logs/.*\.log\): ", stdout, re.M)
    for trial in refused:
        assert re.search(rf"^trial {trial.number}: failed \(.*less than one update", stdout, re.MULTILINE)


def test_a_search_in_which_all_fails_ends_soon(tune_here):
    Path("space.toml").write_text("crash = [true]\n")
    for more in (0, 1):  # typed again it tries once more
        stdout, stderr = tune_here(*typed(trials=20, workers=1), status=1)
        assert stdout.count("failed") == (1 if more else tune.HOPELESS) and len(all_trials()) == tune.HOPELESS + more
        assert "error: the first 5 trials failed" in stderr and "toy: a crash" in stderr and stderr.count("\n") == 1


def test_every_scripts_space_fits_it(in_tmp_path):
    for script in sorted((ROOT / "cleanrl").glob("*.py")):
        args = tune.Args(env_ids=["A"], command=f"python {script}")
        space = tune.read_space(args, script)
        for end in (0, -1):
            tune.make_trial(
                args, {name: (getattr(x, "choices", None) or (x.low, x.high))[end] for name, x in space.items()}
            )
    args = tune.Args(env_ids=["A"], command="python ppo_numpy.py --gamma=0.9 --num-envs 8 --no-clip-vloss")
    assert not {"gamma", "num-envs", "clip-vloss"} & tune.read_space(args, Path("ppo_numpy.py")).keys()


@pytest.mark.parametrize(
    "words, message",
    [
        (["--env-ids", "A", "B"], "of several environments each needs its own: A B"),
        (["--env-ids", "A", "--targets", "A=3:3"], "--targets A=3:3: write an environment and the returns"),
        (["--env-ids", "A", "--targets", "A=500:20"], "--targets A=500:20: write an environment and the returns"),
        (["--env-ids", "A", "--targets", "A=20:nan"], "--targets A=20:nan: write an environment and the returns"),
        (["--env-ids", "A", "--targets", "B=1:3"], "--targets B=1:3: of several environments each needs its own: A"),
        (["--env-ids"], "--env-ids : needs one or more environments"),
        (["--env-ids", "A", "--trials", "0"], "--trials 0: must be 1 or more"),
        (["--env-ids", "A", "--command", "python none.py"], "there is no none.py"),
        (["--env-ids", "A", "--space", "none.toml"], "--space none.toml: can't be read"),
        (["--env-ids", "A", "--space", "wrong.toml"], "y = 3 is no list of choices and no range"),
        (["--env-ids", "A", "--space", "unknown.toml"], "toy.py would not take it"),
        (["--env-ids", "A", "--command", "python toy.py --x 1"], "has nothing for toy.py that the command leaves open"),
        (
            ["--env-ids", "A", "--space", "steps.toml", "--command", "python toy.py --num_steps=100"],
            "has nothing for toy",
        ),
        (["--env-ids", "A", "--storage", "sqlite"], "--storage: can't be opened"),
        (["--env-ids", "A", "--storage", "postgresql+psycopg://x:secret@127.0.0.1:9/x"], "--storage: can't be opened"),
    ],
)
def test_a_mistake_is_one_line(tune_here, tmp_path, monkeypatch, words, message):
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    Path("wrong.toml").write_text("y = 3\n")
    Path("unknown.toml").write_text("y = [3]\n")
    Path("steps.toml").write_text("num-steps = [100]\n")
    before = sorted(tmp_path.rglob("*"))
    _, stderr = tune_here("--command", "python toy.py", "--space", "space.toml", *words, status=2)
    assert stderr.startswith("sweep.py: error: ") and message in stderr and stderr.count("\n") == 1
    assert "secret" not in stderr and sorted(tmp_path.rglob("*")) == before


def test_the_program_itself(toy):
    done = type_in_the_readmes_environment(toy, "tune.py", *typed())
    assert done.returncode == 2 and done.stderr == "tune.py: error: optuna is not installed; pip install -e '.[tune]'\n"
    program = [sys.executable, str(ROOT / "benchmark" / "tune.py")]
    wrong = subprocess.run([*program, *typed("--workers", "0")], capture_output=True, text=True)
    assert (wrong.returncode, wrong.stderr) == (2, "tune.py: error: --workers 0: must be 1 or more\n")
