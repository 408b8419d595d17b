"""benchmark/recipes.py: the committed page is what the kept runs and agents give, and the agents play as it says."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import gallery
import numpy as np
import ppo_numpy
import pytest
import recipes
import report
import sweep
from helpers import type_here
from shared import identity

ROOT = Path(__file__).parents[1]
RECIPES = recipes.read_recipes()
AGENTS = [env_id for env_id in RECIPES if recipes.agent_folder(env_id).is_dir()]
QUICK = {"Taxi-v4": 40, "Pendulum-v1": 10, "LunarLander-v3": 4, "FrozenLake8x8-v1": 40}  # episodes that take a second


def test_the_page_is_what_is_kept():
    page = recipes.PAGE.read_text()
    assert recipes.place(page, recipes.tables()) == page
    kept = report.load(report.RESULTS).get(recipes.NAME, {})
    assert kept.keys() <= RECIPES.keys() and {*AGENTS} <= kept.keys()
    assert sum(path.stat().st_size for path in recipes.AGENTS.rglob("*")) < 56e6
    for env_id, runs in kept.items():
        assert [run.seed for run in runs] == recipes.seeds(RECIPES[env_id])
        for run in runs:
            assert set(recipes.command(RECIPES[env_id])) <= set(shlex.split(run.config["command"]))


@pytest.mark.parametrize("env_id", RECIPES)
def test_the_command_is_one_that_the_script_takes(env_id, monkeypatch, tool_here):
    stdout, _ = tool_here(recipes, env_id, "--seed", 3)
    monkeypatch.chdir(ROOT)
    words = shlex.split(stdout)
    position = words.index("--env-id")
    assert words[position : position + 4] == ["--env-id", env_id, "--seed", "3"]
    del words[position : position + 4]
    (job,) = sweep.make_jobs(sweep.Args(env_ids=[env_id], command=shlex.join(words), num_seeds=1))
    assert job.arguments["total_timesteps"] >= 50_000


def test_a_recipe_runs(tool_here, monkeypatch, in_tmp_path):
    short = {"Toy": {"script": "ppo_numpy", "arguments": "--total-timesteps 512 --num-minibatches 2", "goal": 1}}
    (in_tmp_path / "cleanrl").symlink_to(ROOT / "cleanrl")
    monkeypatch.setattr(recipes, "read_recipes", lambda: {"CartPole-v1": short["Toy"]})
    tool_here(recipes, "CartPole-v1", "--run")
    (run,) = in_tmp_path.glob("runs/CartPole-v1__ppo_numpy__1__*")
    assert sweep.last_checkpoint(run) == 1


def test_the_agent_of_a_tables_median_seed_is_kept(tool_here, in_tmp_path, monkeypatch):
    sizes = "--num-envs 2 --num-steps 32 --total-timesteps 640 --num-minibatches 2 --checkpoints 10".split()
    for seed in (1, 2, 3):
        type_here(*sizes, "--seed", str(seed), script=ROOT / "cleanrl" / "ppo_numpy.py")
    for run in Path("runs").iterdir():
        report.keep_run(run, in_tmp_path / "results")
    monkeypatch.setattr(report, "RESULTS", in_tmp_path / "results")
    for tool in (recipes, gallery):
        monkeypatch.setattr(tool, "AGENTS", in_tmp_path / "agents")
    tool_here(recipes, "--keep-tables")
    runs = sorted(report.find_runs([Path("runs")]), key=lambda run: run.result)
    agent = gallery.Agent(in_tmp_path / "agents" / "ppo_numpy_CartPole-v1")
    assert agent.arguments["seed"] == runs[1].seed and runs[0].result < runs[1].result < runs[2].result
    assert len(json.loads((agent.folder / "evaluation.json").read_text())["returns"]) == 100
    assert [path.stem for path in gallery.checkpoints(agent.folder)] == ["1", "10"]
    shutil.rmtree(runs[1].folder)
    monkeypatch.setattr(recipes, "call", None)  # nothing is played again
    assert tool_here(recipes, "--keep-tables")[0] == ""
    shutil.rmtree(agent.folder)
    stdout, _ = tool_here(recipes, "--keep-tables")
    assert f"ppo_numpy, CartPole-v1: seed {runs[1].seed} is not below runs/" in stdout


def test_a_program_that_a_run_folder_names_is_not_started(in_tmp_path, capsys):
    type_here(*"--total-timesteps 256 --num-envs 2".split(), script=ROOT / "cleanrl" / "ppo_numpy.py")
    (folder,) = Path("runs").iterdir()
    config = json.loads((folder / "config.json").read_text())
    Path("mine.py").write_text("from pathlib import Path; Path(__file__).with_name('started').touch()")
    (folder / "config.json").write_text(
        json.dumps(config | {"command": f"python {Path('mine.py').resolve()} --seed 1"})
    )
    with pytest.raises(SystemExit) as stop:
        recipes.keep_agent(report.Run(folder), in_tmp_path / "agents" / "mine")
    assert stop.value.code == 2 and "mine.py, which isn't in cleanrl/" in capsys.readouterr().err
    assert not Path("started").exists()


def test_runs_of_a_recipe_that_was_changed_stay_as_an_earlier_round(tool_here, in_tmp_path, monkeypatch):
    sizes = "--num-envs 2 --num-steps 32 --num-minibatches 2 --checkpoints 1 --total-timesteps"
    recipe = {"script": "ppo_numpy", "arguments": f"{sizes} 640", "goal": 1}
    monkeypatch.setattr(report, "RESULTS", in_tmp_path / "results")
    monkeypatch.setattr(recipes, "SEEDS", 2)
    monkeypatch.setattr(recipes, "keep_agent", lambda run, agent: None)
    monkeypatch.setattr(recipes, "read_recipes", lambda: {"CartPole-v1": recipe})
    for steps, first in (640, 101), (640, 201), (1280, 201):
        recipe |= {"arguments": f"{sizes} {steps}", "first_seed": first}
        assert "| CartPole-v1 | – | – | not measured | 1 |" in recipes.tables()["recipes"]
        for seed in recipes.seeds(recipe):
            words = [*shlex.split(recipe["arguments"]), "--exp-name", recipes.NAME, "--seed", str(seed)]
            type_here(*words, script=ROOT / "cleanrl" / "ppo_numpy.py")
        for _ in range(2):  # the same ones can be kept again
            tool_here(recipes, "CartPole-v1", "--keep")
    kept, earlier = (
        {(run.total, run.seed) for run in report.find_runs([in_tmp_path / "results" / folder])}
        for folder in ("runs", "earlier_rounds")
    )
    assert kept == {(1280, 201), (1280, 202)}
    assert earlier == {(640, 101), (640, 102), (640, 201), (640, 202)}  # the last two: another recipe on the same seeds
    for seeds in ("101–102", "201–202"):
        assert f"| CartPole-v1 | 640 | {seeds} | " in recipes.tables()["rounds"]
    assert "| CartPole-v1 | 1,280 | 201–202 | " in recipes.tables()["recipes"]


@pytest.mark.parametrize(
    "arguments, said",
    [
        ({}, True),
        ({"gamma": 0.9, "gae_lambda": 0.8}, False),  # the other way round
        ({"norm_adv": False}, False),  # one more
        ({"seed": 106}, False),
        ({"checkpoints": 10}, True),  # as by default
        ({"checkpoints": 2}, False),
    ],
)
def test_a_run_confirms_the_recipe_with_its_arguments_alone(arguments, said):
    recipe = {"script": "ppo_numpy", "arguments": "--gamma 0.8 --gae-lambda 0.9", "goal": 1}
    given = vars(ppo_numpy.Args()) | {"exp_name": "recipes", "gamma": 0.8, "gae_lambda": 0.9, "seed": 101} | arguments
    run = SimpleNamespace(env_id="CartPole-v1", seed=given["seed"], identity=identity(given) | {"version": "any"})
    assert recipes.confirms(run, recipe) == said


def test_a_training_that_is_interrupted_saves_before_the_tool_ends(in_tmp_path):
    words = [sys.executable, str(ROOT / "benchmark" / "recipes.py"), "FrozenLake8x8-v1", "--run"]
    (in_tmp_path / "cleanrl").symlink_to(ROOT / "cleanrl")
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as tool:
        while not [*Path("runs").glob("*/metrics.csv")] or not next(Path("runs").glob("*/metrics.csv")).read_text():
            time.sleep(0.05)
        os.killpg(tool.pid, signal.SIGINT)  # as Ctrl-C does, to all in the terminal
        stdout, stderr = tool.communicate(timeout=60)
    assert "which is saved; go on with" in stdout and "Traceback" not in stderr and tool.returncode == 130
    assert [*Path("runs").glob("*/checkpoints/*.npz")]


@pytest.mark.parametrize(
    "results, said", [([9, 10, 11], "no"), ([11, 12, 13], "on average"), ([19, 20, 21], "yes"), ([10, 10, 10], "no")]
)
def test_reached_says_whether_the_interval_is_above_the_goal(monkeypatch, results, said):
    found = [SimpleNamespace(result=x, total=1, seed=101 + i, wall_seconds=1) for i, x in enumerate(results)]
    monkeypatch.setattr(report, "load", lambda path: {recipes.NAME: {"Toy-v0": found}})
    monkeypatch.setattr(recipes, "confirms", lambda run, recipe: True)
    recipe = {"script": "ppo_numpy", "arguments": "", "goal": 10.5}
    monkeypatch.setattr(recipes, "read_recipes", lambda: {"Toy-v0": recipe})
    assert f"| 10.5 | {said} |\n" in recipes.tables()["recipes"]


@pytest.mark.parametrize(
    "words, message",
    [
        (["Unknown-v0"], "Unknown-v0: has no recipe; there are "),
        (["--run"], "--run: needs an environment"),
        (["LunarLander-v3", "--run", "--keep"], "--run and --keep: choose one of them"),
        (["LunarLander-v3", "--rebuild"], "--rebuild LunarLander-v3: --rebuild is for all environments; leave out"),
        (["LunarLander-v3", "--keep-tables"], "--keep-tables LunarLander-v3: --keep-tables is for all environments"),
        (["LunarLander-v3", "--keep"], "runs: is not a folder"),
    ],
)
def test_a_mistake_is_one_line(tool_here, in_tmp_path, words, message):
    _, stderr = tool_here(recipes, *words, status=2)
    assert message in stderr and stderr.count("\n") == 1 and not any(in_tmp_path.iterdir())


@pytest.mark.parametrize("name", sorted({file.parents[1].name for file in recipes.AGENTS.glob("*/checkpoints/*.npz")}))
def test_agents_are_small_and_hold_no_moments(name):
    agent = recipes.AGENTS / name
    with np.load(gallery.checkpoints(agent)[-1], allow_pickle=False) as content:
        assert not content["adam_mean"].any() and content["actor.4.weight"].any()
        state = json.loads(str(content["state"]))
    config = json.loads((agent / "config.json").read_text())
    assert state["script"] == gallery.Agent(agent).script and state["args"]["env_id"] == config["arguments"]["env_id"]
    assert state["args"]["seed"] == config["arguments"]["seed"]
    text = (agent / "config.json").read_text()
    assert not re.search(r"/(tmp|home|work|root)/", text)


@pytest.mark.parametrize("env_id", [env_id for env_id in QUICK if env_id in AGENTS])
def test_an_agent_plays_as_the_page_says(env_id):
    measured = json.loads((recipes.agent_folder(env_id) / "evaluation.json").read_text())["returns"]
    assert len(measured) == 100
    script = f"cleanrl/{RECIPES[env_id]['script']}.py"
    words = ["--evaluate", str(recipes.agent_folder(env_id).relative_to(ROOT)), "--episodes", str(QUICK[env_id])]
    done = subprocess.run([sys.executable, script, *words, "--seed", "2"], cwd=ROOT, capture_output=True, text=True)
    played = [float(x) for x in re.findall(r"^episode \d+: return (\S+),", done.stdout, re.MULTILINE)]
    assert len(played) == QUICK[env_id], done.stderr
    error = np.std(measured, ddof=1) * np.sqrt(1 / len(played) + 1 / len(measured))
    assert abs(np.mean(played) - np.mean(measured)) <= 4 * error + 1e-9
