"""benchmark/runs.py: versions and arguments of scripts, and how a run folder is read."""

import json

import filelock
import numpy as np
import pytest
import runs
from command_line import UserError
from fake_runs import SCRIPT, make_run
from files import locked


# -------------------------------------------------------------------------------------------------------------- Scripts
@pytest.fixture
def version_of(tmp_path):
    """The version of a script with this text."""

    def version(text):
        path = tmp_path / "script.py"
        path.write_text(text, newline="")
        return runs.version(path)

    return version


@pytest.mark.parametrize(
    "before, after",
    [
        ("print_nothing = True", "print_nothing = False"),  # below the ruler
        ("\n", "\r\n"),  # as git writes it on Windows
        ("    seed: int = 1\n", "    seed: int = 2\n    episodes: int = 10\n"),  # two runs may differ in them
        ('"""A script', '# /// script\n# dependencies = ["numpy"]\n# ///\n"""A script'),  # what `uv run` installs
    ],
)
def test_version_is_that_of_the_text_above_the_ruler(version_of, before, after):
    assert before in SCRIPT
    assert version_of(SCRIPT.replace(before, after)) == version_of(SCRIPT)


@pytest.mark.parametrize(
    "before, after", [("2.5e-4", "2.6e-4"), ('"""A script', '"""The script'), ("= The run", "= No ruler")]
)
def test_version_changes_with_the_text(version_of, before, after):
    assert version_of(SCRIPT.replace(before, after)) != version_of(SCRIPT)
    mine = SCRIPT.replace("@dataclass", "# ========= mine\n@dataclass", 1)  # no ruler
    assert version_of(mine.replace(before, after)) != version_of(mine)
    assert len(version_of(SCRIPT)) == 12 and int(version_of(SCRIPT), 16) >= 0


def test_every_python_finds_the_same_version(version_of):
    """0.3 hashed what ast.unparse wrote, which quotes f-strings otherwise from 3.12 on."""
    assert version_of("""print(f"{', '.join('ab')}")\n""") == "8c62098fd6c0"


def test_args_of_a_script_are_read_by_running_it_with_what_lies_beside_it(tmp_path):
    (tmp_path / "beside_it.py").touch()
    (tmp_path / "ppo.py").write_text(f"import beside_it\n{SCRIPT}")
    assert runs.defined_in(tmp_path / "ppo.py", "Args")().learning_rate == 2.5e-4
    assert runs.defined_in(tmp_path / "ppo.py", "Args") is runs.defined_in(tmp_path / "ppo.py", "Args")


@pytest.mark.parametrize("text", ["x = 1\n", "import no_such_package\n", "def f(:\n"])
def test_a_script_without_args_is_a_users_error(tmp_path, text):
    (tmp_path / "broken.py").write_text(text)
    with pytest.raises(UserError, match=r"broken\.py"):
        runs.defined_in(tmp_path / "broken.py", "Args")


def test_seeds_of_one_experiment_differ_in_machine_and_speed_only():
    one = {"seed": 1, "num_threads": 1, "device": "cpu", "gamma": 0.99, "total_timesteps": 1e6, "checkpoints": 3}
    other = {"seed": 2, "num_threads": 8, "cuda": True, "gamma": 0.99, "total_timesteps": 1_000_000, "checkpoints": 9}
    assert runs.identity(one) == runs.identity(other | {"exact_resume": False})
    whole = runs.identity(one | {"vf_coef": 1.0, "clip": True})  # typed, and below an int that is the default
    assert json.dumps(whole) == json.dumps(runs.identity(one | {"vf_coef": 1, "clip": True}))
    assert runs.identity(one) != runs.identity(other | {"gamma": 0.9})
    exact = one | {"exact_resume": True}
    assert runs.identity(one) != runs.identity(exact) != runs.identity(exact | {"checkpoints": 9})  # fresh episodes


OF_THE_MACHINE = """backend capture_video channels_last compile cuda cuda_graphs debug deterministic device device_ids
env_threads episodes eval_num_levels eval_start_level evaluate longest_episode malloc_tuning num_threads resume seed
torch_deterministic track vectorization wandb_entity wandb_project_name""".split()


def test_options_of_the_machine_the_speed_and_the_recording_are_not_of_the_experiment():
    """Of the scripts' options, all others are."""
    some = {"total_timesteps": 1000, "gamma": 0.9}
    for name in OF_THE_MACHINE:
        assert runs.identity(some | {name: 1}) == runs.identity(some), name
    for script in (runs.ROOT / "cleanrl").glob("*.py"):
        options = runs.defaults(script)
        left_out = options.keys() - runs.identity(options).keys()
        assert left_out - {"checkpoints", "exact_resume"} <= set(OF_THE_MACHINE), script


def test_the_last_update_ends_at_a_multiple_of_the_batch():
    assert runs.planned_steps({"num_envs": 4, "num_steps": 16, "total_timesteps": 1e3}) == 960
    assert runs.planned_steps({"num_envs": 4, "num_steps": 16, "total_timesteps": 1024}) == 1024


@pytest.mark.parametrize("text, expected", [("1.0.0", "1.0"), ("1.0.2", "1.0.2"), ("1.10.0", "1.10")])
def test_a_release_is_named_as_on_the_pages(tmp_path, monkeypatch, text, expected):
    (tmp_path / "pyproject.toml").write_text(f'[project]\nversion = "{text}"\n')
    monkeypatch.setattr(runs, "ROOT", tmp_path)
    assert runs.release() == expected


# ---------------------------------------------------------------------------------------------------------- Run folders
def test_a_run_folder_is_read(tmp_path):
    run = runs.run_of_folder(make_run(tmp_path, range(200), learning_rate=1e-3, total_timesteps=1e3))
    assert (run.script, run.exp_name, run.env_id, run.seed, run.total) == ("ppo", "ppo", "Toy-v0", 1, 1000)
    assert run.settings == {"learning_rate": 1e-3} and run.result == np.mean(range(100, 200))
    assert len(run.steps) == 200 and run.release is None and (run.end, run.stopped_at) == ("whole", None)


def test_a_run_that_was_stopped_is_as_long_as_it_got_and_is_none_of_the_whole_ones(tmp_path):
    whole, stopped, earlier = (
        runs.run_of_folder(make_run(tmp_path, [1.0], end=end, updates=updates, number=updates))
        for end, updates in (("whole", 15), ("stopped", 5), ("stopped", 4))
    )
    assert [(run.total, run.planned) for run in (whole, stopped, earlier)] == [(1000, 1000), (320, 1000), (256, 1000)]
    assert whole.identity != stopped.identity != earlier.identity


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"end": "whole"}', '{"end": "whole", "update": 3}'])
def test_an_end_that_was_cut_off_is_none(tmp_path, text):
    (tmp_path / "end.json").write_text(text)
    assert runs.read_end(tmp_path) is None


def test_checkpoints_are_ordered_by_their_updates(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    names = ["9.pt", "10.pt", "100.npz", "11.pt.tmp", ".12.pt", "13.json", "best.pt"]
    for name in names:
        (tmp_path / "checkpoints" / name).touch()
    assert [path.name for path in runs.checkpoints(tmp_path)] == names[:3]


def test_what_has_ended_is_what_the_run_recorded(tmp_path, capsys):
    for seed, end in enumerate(["whole", "break", "diverged", "stopped", None], 1):
        make_run(tmp_path, [1.0], end=end, updates=15 if end == "whole" else 5, seed=seed)
    found = {run.seed: run for run in runs.find_runs([tmp_path])}
    assert {seed: (run.end, run.stopped_at, run.total) for seed, run in found.items()} == {
        1: ("whole", None, 1000),
        2: ("break", 320, 1000),
        3: ("diverged", 320, 1000),
    }
    assert found[1].identity == found[2].identity == found[3].identity  # they are seeds of one experiment
    said = capsys.readouterr().err
    assert "was stopped, and can go on" in said and "has no end.json" in said and said.count("\n") == 2


def test_a_resume_with_other_arguments_makes_another_run(tmp_path):
    found = []
    for seed, first, rate in ((1, 2.0, 2.0), (2, 2.0, 1.0), (2, 3.0, 1.0)):
        folder = make_run(tmp_path, [1.0], seed=seed, number=first, learning_rate=first)
        arguments = json.loads((folder / "config.json").read_text())["arguments"]
        resumed = arguments | {"learning_rate": rate, "num_threads": 9, "resume": "runs/x"}
        (folder / "resumed_after_9.json").write_text(
            json.dumps(arguments | {"learning_rate": 5.0} if seed == 2 else resumed)
        )
        (folder / "resumed_after_10.json").write_text(json.dumps(resumed))
        found.append(runs.run_of_folder(folder))
    arguments = [run.arguments for run in found]
    assert "changed_on_resume" not in arguments[0] and arguments[0]["num_threads"] == 9
    assert arguments[1]["changed_on_resume"] == "learning_rate 2 to 5 to 1"
    assert arguments[1]["learning_rate"] == 1.0  # the last of them
    assert found[1].identity != found[2].identity  # it began otherwise
    assert len(runs.find_runs([tmp_path])) == 3


def test_a_resume_of_which_a_full_disk_left_an_empty_file_is_left_out(tmp_path):
    folder = make_run(tmp_path, [1.0])
    (folder / "resumed_after_9.json").touch()
    assert "changed_on_resume" not in runs.run_of_folder(folder).arguments


def test_half_a_row_is_left_out(tmp_path):
    folder = make_run(tmp_path, [1.0, 2.0, 3.0])
    text = (folder / "episodes.csv").read_text()
    (folder / "episodes.csv").write_text(text + "961,4.")
    assert list(runs.run_of_folder(folder).returns) == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    "file, text",
    [
        ("config.json", "{"),
        ("config.json", '{"arguments": {"exp_name": "ppo"}}'),
        ("episodes.csv", "global_step,episodic_return,episodic_length,seconds\n1,a lot,1,1\n"),
        ("config.json", '{"script": "ppo", "arguments": []}'),
        ("episodes.csv", "global_step,episodic_return,episodic_length,seconds\n1,,1,1\n"),
        ("episodes.csv", None),
        ("ppo.py", None),
    ],
)
def test_what_is_no_run_folder_is_left_out_by_name(tmp_path, capsys, file, text):
    whole = make_run(tmp_path, [1.0])
    damaged = make_run(tmp_path, [1.0], seed=2)
    (damaged / file).unlink()
    if text is not None:
        (damaged / file).write_text(text)
    assert [run.name for run in runs.find_runs([tmp_path])] == [whole.name]
    stderr = capsys.readouterr().err
    assert damaged.name in stderr and stderr.count("\n") == 1


def test_links_are_followed_and_a_folder_that_is_not_there_is_named(tmp_path):
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "one").symlink_to(make_run(tmp_path / "runs", [1.0]))
    assert len(runs.find_runs([tmp_path / "links"])) == 1
    with pytest.raises(UserError, match="typo: there is no such folder"):
        runs.find_runs([tmp_path / "links", tmp_path / "typo"])


def test_of_two_that_are_the_same_run_one_stays(tmp_path, capsys):
    make_run(tmp_path, [1.0], number=1)
    make_run(tmp_path, [2.0], number=2)
    make_run(tmp_path, [3.0], number=3, updates=3, end="stopped")  # begun last, and not ended
    make_run(tmp_path, [4.0], number=4, learning_rate=1.0)
    make_run(tmp_path, [], number=5, learning_rate=2.0)
    assert sorted(run.returns[0] for run in runs.find_runs([tmp_path])) == [2.0, 4.0]
    assert capsys.readouterr().err.count("left out") == 3


def test_of_copies_in_several_places_the_one_that_began_last_stays(tmp_path, capsys):
    make_run(tmp_path / "a", [2.0], number=2)
    make_run(tmp_path / "b", [1.0], number=1)
    (run,) = runs.find_runs([tmp_path])
    assert run.returns[0] == 2.0
    assert capsys.readouterr().err == "Toy-v0__ppo__1__1: is the same run as Toy-v0__ppo__1__2; the older is left out\n"


def test_runs_are_found_once_and_in_order(tmp_path, capsys):
    """By name, environment and seed, as numbers; also in a folder whose name would be a pattern."""
    wanted = [("a", "A", 2), ("a", "A", 10), ("a", "B", 1), ("b", "A", 1)]
    for number, (exp_name, env_id, seed) in enumerate(reversed(wanted)):
        make_run(tmp_path / "[runs] *", [1.0], number=number, exp_name=exp_name, env_id=env_id, seed=seed)
    found = runs.find_runs([tmp_path / "[runs] *", tmp_path])
    assert [(run.exp_name, run.env_id, run.seed) for run in found] == wanted
    assert not capsys.readouterr().err
    assert len(runs.find_runs([tmp_path / "[runs] *"])) == 4


def test_a_report_runs_no_script_of_a_run_folder(tmp_path):
    text = SCRIPT.replace("from dataclasses", "import no_such_package\nraise SystemExit(3)\nfrom dataclasses")
    run = runs.run_of_folder(make_run(tmp_path, [1.0], script=text, num_envs=8, total_timesteps=1920))
    assert run.settings == {"num_envs": 8}  # Args are read all the same


def test_runs_in_which_no_episode_ended_are_told_from_those_that_have_not_ended(tmp_path):
    make_run(tmp_path / "whole", [])
    make_run(tmp_path / "whole", [], seed=2)
    make_run(tmp_path / "late", [1.0], end=None)
    with pytest.raises(UserError, match="no episode ended in the 2 runs that have ended"):
        runs.find_runs([tmp_path / "whole"])
    with pytest.raises(UserError, match="holds no run that has ended"):
        runs.find_runs([tmp_path / "late"])


# -------------------------------------------------------------------------------------------------------------- Writers
def test_a_folder_has_one_writer_at_a_time(tmp_path):
    with locked(tmp_path / "new"), pytest.raises(filelock.Timeout):
        filelock.FileLock(tmp_path / "new" / ".lock", blocking=False).acquire()
    with locked(tmp_path / "new"), locked(tmp_path / "other"):
        pass
