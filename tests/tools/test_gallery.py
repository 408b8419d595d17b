"""docs/build/gallery.py: recipes run and are kept, the committed agents play, and the pages say what is kept."""

import importlib
import json
import shutil
from functools import partial
from pathlib import Path

import gallery
import gymnasium as gym
import kept as tables
import numpy as np
import pytest
import runs
import torch
import tyro
from fake_runs import new_run

ROOT = Path(__file__).parents[2]
RECIPES = gallery.read_recipes()
KEPT = gallery.all_agents()
CARTPOLE = gallery.Agent(gallery.AGENTS / "cartpole")
SMALL = {"total_timesteps": 960, "num_envs": 3, "num_steps": 16, "num_minibatches": 2, "checkpoints": 10}
QUICK = {"Taxi-v4": 40, "Pendulum-v1": 10, "LunarLander-v3": 4, "FrozenLake8x8-v1": 40}  # episodes that take a second


@pytest.fixture
def agents_here(tool_here, tmp_path, monkeypatch):
    """gallery.py as typed below tmp_path, where it keeps agents, results and pages."""
    monkeypatch.setattr(gallery, "AGENTS", tmp_path / "agents")
    monkeypatch.setattr(gallery, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(gallery, "KEPT_EPISODES", 3)
    return partial(tool_here, gallery)


def train(script, **arguments):
    module = importlib.import_module(script)
    return module.main(module.Args(**SMALL | arguments))


# -------------------------------------------------------------------------------------------------------------- Recipes
@pytest.mark.parametrize("env_id", RECIPES)
def test_the_command_is_one_that_the_script_takes(env_id):
    _, script, *words = gallery.command(RECIPES[env_id], env_id)
    args = tyro.cli(runs.defined_in(ROOT / script, "Args"), args=words)
    assert args.env_id == env_id
    assert args.total_timesteps >= 50_000
    assert args.batch_size % args.num_minibatches == 0


def kept(seed, result, steps=512):
    """Keeps a run of the recipe below."""
    run = new_run(f"CartPole-v1__recipes__{seed}__{steps}", [float(result)] * 3, seed=seed, exp_name="recipes")
    run.arguments["total_timesteps"] = steps
    tables.append_runs([run], results=gallery.RESULTS)


@pytest.mark.parametrize(
    "results, said", [([9, 10, 11], "no"), ([9, 12, 14], "on average"), ([19, 20, 21], "yes"), ([10, 10, 10], "no")]
)
def test_reached_says_whether_the_interval_is_above_the_goal(agents_here, monkeypatch, results, said):
    """Runs of a recipe that was changed don't count."""
    recipe = {"script": "ppo_numpy", "arguments": "--total-timesteps 512", "goal": 10.5, "first_seed": 1}
    monkeypatch.setattr(gallery, "read_recipes", lambda: {"CartPole-v1": recipe})
    assert "| CartPole-v1 | – | – | not measured | 10.5 | – |" in gallery.recipes_tables()["recipes"]
    for seed, result in enumerate([*results, results[0], results[2]], start=1):
        kept(seed, result)
    kept(1, 3.0, steps=640)
    kept(2, 5.0, steps=640)
    table = gallery.recipes_tables()["recipes"]
    assert "| CartPole-v1 | 512 | 1–5 | " in table and f"| 10.5 | {said} |\n" in table and "640" not in table


# --------------------------------------------------------------------------------------------------------------- Agents
@pytest.mark.parametrize("script", ["ppo", "ppo_numpy"])
def test_a_kept_agent_plays_as_the_run_did(script, agents_here, monkeypatch):
    run = train(script)
    before = gallery.play(gallery.Agent(run), 3, seed=1)
    agents_here("keep", "mine", "--run-folder", run)
    agent = gallery.Agent(gallery.AGENTS / "mine")
    assert agent.returns == before
    (checkpoint,) = agent.folder.glob("checkpoints/*")
    assert checkpoint.name == runs.checkpoints(run)[-1].name
    whole = runs.checkpoints(run)[-1].stat().st_size
    assert checkpoint.stat().st_size < 0.45 * whole + 8000  # a third is left; the rest are names
    monkeypatch.setattr(gallery, "LARGE", 1000)
    agents_here("keep", "mine", "--run-folder", run)
    if script == "ppo":
        model = torch.load(checkpoint, weights_only=True)["model"]
        assert {x.dtype for x in model.values()} == {torch.float16}
    assert len(gallery.Agent(gallery.AGENTS / "mine").returns) == 3


def test_a_program_that_a_run_folder_names_is_not_started(agents_here):
    run = train("ppo_numpy")
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps(config | {"script": "../mine"}))
    assert "was trained by ../mine.py;" in agents_here("keep", "a", "--run-folder", run, status=2)[1]


@pytest.mark.parametrize(
    "words, message",
    [
        (["keep", "mine"], "keep: needs a name for the agent, and --run-folder"),
        (["keep", "mine", "--run-folder", "runs"], "runs: is no run folder with config.json and checkpoints"),
        (["keep", "a/b", "--run-folder", "runs"], "a/b: takes letters, digits, - and _"),
        (["play", "nobody"], "nobody: is not in benchmark/agents"),
    ],
)
def test_a_mistake_is_one_line(agents_here, in_tmp_path, words, message):
    _, stderr = agents_here(*words, status=2)
    assert message in stderr and stderr.count("\n") == 1
    assert not any(in_tmp_path.iterdir())


@pytest.mark.parametrize("agent", KEPT, ids=lambda agent: agent.name)
def test_committed_agents_are_slim_and_fit_their_scripts(agent):
    if agent.checkpoint.suffix == ".npz":
        state = importlib.import_module(agent.script).read_state(agent.checkpoint)
        assert not any("optimizer" in name for name in state)
    else:
        state = torch.load(agent.checkpoint, map_location="cpu", weights_only=True)
        assert "optimizer" not in state
    assert len(list(agent.folder.glob("checkpoints/*"))) == 1
    assert state["script"] == agent.script
    for name in ("env_id", "seed", "total_timesteps"):
        assert state["args"][name] == agent.arguments[name]
    known = runs.defined_in(ROOT / "cleanrl" / f"{agent.script}.py", "Args").__dataclass_fields__
    assert state["args"].keys() == agent.arguments.keys() <= known.keys()
    text = (agent.folder / "config.json").read_text()
    assert not any(folder in text for folder in ("/tmp/", "/home/", "/work/", "/root/"))


@pytest.mark.parametrize("env_id", QUICK)
def test_an_agent_plays_as_the_page_says(env_id):
    if "Lunar" in env_id:
        pytest.importorskip("Box2D")
    agent = gallery.Agent(gallery.AGENTS / env_id)
    assert len(agent.returns) == 100
    played = gallery.play(agent, QUICK[env_id], seed=2)
    error = np.std(agent.returns, ddof=1) * np.sqrt(1 / len(played) + 1 / len(agent.returns))
    assert abs(np.mean(played) - np.mean(agent.returns)) <= 4 * error + 1e-9


# ---------------------------------------------------------------------------------------------------- Videos and pages
def test_the_pages_are_what_is_kept(tmp_path, monkeypatch):
    shutil.copytree(ROOT / "docs", tmp_path / "docs", ignore=shutil.ignore_patterns("*.mp4", "*.webp", "images"))
    shutil.copy(ROOT / "README.md", tmp_path)
    monkeypatch.setattr(gallery, "DOCS", tmp_path / "docs")
    monkeypatch.setattr(gallery, "README", tmp_path / "README.md")
    gallery.rebuild()
    for name in ("README.md", "docs/gallery.md", "docs/recipes.md"):
        page = (ROOT / name).read_text()
        assert (tmp_path / name).read_text() == page, f"{name}: run `python docs/build/gallery.py rebuild`"


def test_the_video_is_of_a_typical_episode(agents_here, monkeypatch, tmp_path):
    """The first of these returns is as far from the mean as the furthest, the second as usual."""
    returns = [0.0, *[10.0] * 9]
    monkeypatch.setattr(gallery, "DOCS", tmp_path)
    monkeypatch.setattr(
        gallery, "play", lambda agent, count, seed, video: returns if seed == 1 else [float(seed)] * count
    )
    clips = []
    monkeypatch.setattr(gallery, "write_clip", lambda video, clip: clips.append(clip) or 1.0)
    monkeypatch.setattr(gallery, "write_strip", lambda video, picture: None)
    gallery.show(CARTPOLE)
    facts = json.loads((tmp_path / "videos" / "cartpole.json").read_text())
    assert facts["end"] == {"steps": CARTPOLE.last_step, "shown": 8.0, "returns": returns, "seconds": 1.0}
    assert [clip.name for clip in clips] == ["cartpole_end.mp4"]


def test_a_clip_is_cut_from_the_middle_of_a_long_video_and_a_strip_repeats(tmp_path, monkeypatch):
    import imageio.v2 as imageio
    from PIL import Image

    video = tmp_path / "long.mp4"
    with imageio.get_writer(video, fps=15, macro_block_size=2) as writer:
        for i in range(15 * 30):  # gray until the middle, and a bar that moves, or WebP would join equal pictures
            picture = np.full((120, 600, 3), 255 if i > 15 * 14 else 128, np.uint8)
            picture[:, 250 + i % 60 : 280 + i % 60] = 0
            writer.append_data(picture)
    for longest, brightness in ((60, 128), (10, 255)):
        monkeypatch.setattr(gallery, "LONG", longest)
        assert gallery.write_clip(video, tmp_path / "clip.mp4") == pytest.approx(30, abs=0.2)
        with imageio.get_reader(tmp_path / "clip.mp4") as reader:
            facts = reader.get_meta_data()
        assert facts["duration"] == pytest.approx(gallery.CLIP_SECONDS, abs=0.2)
        assert facts["size"] == (400, 80)
        with Image.open(tmp_path / "clip.webp") as poster:
            assert poster.convert("L").getpixel((5, 40)) == pytest.approx(brightness, abs=6)
    gallery.write_strip(video, tmp_path / "strip.webp")
    with Image.open(tmp_path / "strip.webp") as picture:
        assert picture.size == (gallery.STRIP_SIZE, gallery.STRIP_SIZE)
        assert picture.info["loop"] == 0
        assert picture.n_frames == 6 * 15  # seconds, pictures a second
        assert picture.convert("L").getpixel((5, 100)) == pytest.approx(255, abs=6)


# ------------------------------------------------------------------------------------------- The CartPole in the page
@pytest.fixture
def page(browser, tmp_path):
    """A page with nothing but the CartPole."""
    scripts = ""
    for name in ("cartpole_weights.js", "cartpole.js"):
        scripts += f'<script src="{(ROOT / "docs" / "javascripts" / name).as_uri()}"></script>'
    (tmp_path / "page.html").write_text(f'<!DOCTYPE html><meta charset="utf-8"><div id="cartpole"></div>{scripts}')
    browser.get((tmp_path / "page.html").as_uri())
    return browser


def test_the_pages_dynamics_are_gymnasiums(page):
    """200 steps of noise, under which the pole turns over."""
    env = gym.make("CartPole-v1").unwrapped
    rng = np.random.default_rng(1)
    env.reset(seed=3)
    states = [env.state.tolist()]
    actions = rng.integers(2, size=200).tolist()
    ended = []
    for action in actions:
        env.steps_beyond_terminated = None  # or Gymnasium warns that the episode is over
        _, _, terminated, _, _ = env.step(action)
        states.append(env.state.tolist())
        ended.append(terminated)
    code = """let state = arguments[0]; const found = [state], fallen = [];
        for (const action of arguments[1]) {
          state = cartpole.step(state, action ? 10 : -10); found.push(state); fallen.push(cartpole.fallen(state));
        }
        return [found, fallen];"""
    found, fallen = page.execute_script(code, states[0], actions)
    np.testing.assert_allclose(found, states, rtol=0, atol=1e-6)
    assert fallen == ended and any(ended)
