"""The kept agents play, the gallery shows what they play, and the CartPole in the page is Gymnasium's."""

import json
import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import gallery
import gymnasium as gym
import numpy as np
import ppo
import ppo_numpy
import pytest
import torch
from helpers import type_here

ROOT = Path(__file__).parents[1]
AGENTS = gallery.find_agents()
SHOWN = [agent for agent in AGENTS if (ROOT / "docs" / "videos" / f"{agent.name}.json").is_file()]
CARTPOLE = gallery.Agent(ROOT / "benchmark" / "agents" / "cartpole")
# No games from pixels
QUICK = [agent for agent in SHOWN if agent.playable and (agent.place < 3 or agent.place == len(gallery.STRIP))]


@pytest.fixture
def gallery_here(tool_here):
    return partial(tool_here, gallery)


def episodes(capsys):
    return [line for line in capsys.readouterr().out.splitlines() if line.startswith("episode")]


# --------------------------------------------------------------------------------------------------------- Kept agents


@pytest.mark.parametrize("script", [ppo, ppo_numpy], ids=["torch", "numpy"])
def test_a_kept_agent_plays_as_the_run_did(script, gallery_here, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(gallery, "AGENTS", tmp_path / "agents")
    monkeypatch.setattr(gallery, "show", lambda agent: None)
    monkeypatch.setattr(gallery, "write_pages", lambda agents: None)
    arguments = {"env_id": "CartPole-v1", "total_timesteps": 960, "num_envs": 3, "num_steps": 16}
    folders = []
    for updates in (20, 1):
        sizes = arguments | {"total_timesteps": updates * 48, "num_minibatches": 2, "checkpoints": 10}
        monkeypatch.setattr(sys, "argv", [f"{script.__name__}.py"])
        folders.append(script.main(script.Args(**sizes)))
    gallery_here("--keep", "mine", *folders)
    kept = tmp_path / "agents" / "mine"
    assert [path.stem for path in gallery.checkpoints(kept)] == ["1", "2", "20"]
    last = gallery.checkpoints(folders[0])[-1]
    # A third is left; a few kilobytes are names and the generators' states
    assert gallery.checkpoints(kept)[-1].stat().st_size < 0.4 * last.stat().st_size + 8000
    said = []
    for folder in (folders[0], kept):
        type_here("--evaluate", folder, "--episodes", "3", script=Path(script.__file__))
        said.append(episodes(capsys))
    before = said[0]
    assert before == said[1] and len(before) == 3
    monkeypatch.setattr(gallery, "LARGE", 1000)
    gallery_here("--keep", "mine", *folders)
    first, _, last = [path.stat().st_size for path in gallery.checkpoints(kept)]
    assert script is ppo_numpy or first < 0.6 * last + 8000  # half precision
    for path in gallery.checkpoints(kept):
        type_here("--evaluate", path, "--episodes", "3", script=Path(script.__file__))
        said = episodes(capsys)
        assert len(said) == 3
    assert said == before  # the last is as it was
    gallery_here("--keep", "mine", folders[0], "--all-checkpoints")
    assert len(gallery.checkpoints(kept)) == len(gallery.checkpoints(folders[0])) > 2


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--keep", "mine"], "--keep NAME and run folders go together"),
        (["runs"], "--keep NAME and run folders go together"),
        (["--keep", "a/b", "runs"], "--keep a/b: takes letters"),
        (["--keep", "mine", "runs"], "runs: is no run folder"),
        (["--agents", "nobody"], "--agents nobody: not in the gallery"),
    ],
)
def test_wrong_use_is_one_line(gallery_here, words, part):
    _, stderr = gallery_here(*words, status=2)
    assert stderr.count("\n") == 1 and part in stderr and stderr.startswith("gallery.py: error: ")


@pytest.mark.parametrize("name", ["9.pt", "9.npz"])
def test_a_damaged_checkpoint_is_one_line_and_nothing_is_kept(gallery_here, tmp_path, monkeypatch, name):
    monkeypatch.setattr(gallery, "AGENTS", tmp_path / "agents")
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    shutil.copy(CARTPOLE.folder / "config.json", run)
    (run / "checkpoints" / name).write_bytes(gallery.checkpoints(CARTPOLE.folder)[-1].read_bytes()[:1000])
    _, stderr = gallery_here("--keep", "mine", run, status=2)
    assert f"{name}: is not a whole checkpoint" in stderr and stderr.count("\n") == 1
    assert not (tmp_path / "agents").exists()


def test_an_agent_that_cannot_be_played_is_one_line(gallery_here, tmp_path, monkeypatch):
    monkeypatch.setattr(gallery, "AGENTS", tmp_path / "agents")
    run = tmp_path / "run"
    shutil.copytree(CARTPOLE.folder, run)
    config = (run / "config.json").read_text()
    (run / "config.json").write_text(config.replace("ppo.py", "mine.py"))
    _, stderr = gallery_here("--keep", "mine", run, status=2)
    assert f"{run}: was trained by mine.py, which isn't in cleanrl/" in stderr and stderr.count("\n") == 1
    assert not (tmp_path / "agents").exists()
    (tmp_path / "agents" / "bad").mkdir(parents=True)
    (tmp_path / "agents" / "bad" / "config.json").write_text("{}")
    _, stderr = gallery_here(status=2)
    assert "bad: no kept agent (KeyError: 'arguments')" in stderr and stderr.count("\n") == 1


def test_an_agent_that_needs_another_mujoco_keeps_its_videos(gallery_here, monkeypatch):
    played, pages = [], []
    monkeypatch.setattr(gallery, "show", lambda agent: played.append(agent.env_id))
    monkeypatch.setattr(gallery, "write_pages", pages.extend)
    monkeypatch.setattr(gallery, "write_weights", lambda agent, path: None)
    stdout, _ = gallery_here()
    assert stdout.startswith("ppo_continuous_action_numpy_Pusher-v4: needs mujoco==2.3.7") and stdout.count("\n") == 1
    assert {agent.env_id for agent in pages} - {*played} == {"Pusher-v4"}


@pytest.mark.parametrize("agent", QUICK, ids=lambda agent: agent.name)
def test_the_returns_of_the_gallery_are_those_of_the_kept_weights(agent, tmp_path, capsys):
    facts = json.loads((ROOT / "docs" / "videos" / f"{agent.name}.json").read_text())
    last = facts["end"]["returns"]
    script = ROOT / "cleanrl" / f"{agent.script}.py"
    type_here("--evaluate", agent.folder, "--episodes", gallery.EPISODES, script=script)
    played = [float(re.match(r"episode \d+: return (\S+),", line)[1]) for line in episodes(capsys)]
    # another machine rounds differently, and then episodes of MuJoCo are others: four deviations of such a difference
    spread = 4 * np.std(last) * np.sqrt(2 / len(last))
    assert np.mean(played) == pytest.approx(np.mean(last), rel=0.02, abs=spread)
    if agent.place < 3:  # the strip shows agents that can do it
        least = {"CartPole": 475, "LunarLanderContinuous": 200, "HalfCheetah": 2500}
        assert np.mean(last) > least[gallery.STRIP[agent.place]]


# --------------------------------------------------------------------------------------------------------------- Pages


def test_pages_are_what_the_gallery_writes(tmp_path):
    (tmp_path / "docs").mkdir()
    for name in ("README.md", "docs/gallery.md"):
        shutil.copy(ROOT / name, tmp_path / name)
    gallery.write_pages(SHOWN, tmp_path)
    for name in ("README.md", "docs/gallery.md"):
        assert (tmp_path / name).read_text() == (ROOT / name).read_text()


def test_of_a_run_that_was_stopped_the_page_says_how_far_it_came():
    assert "<b>At the end</b>: 499,712 steps" in gallery.section(CARTPOLE)
    stopped = gallery.Agent(CARTPOLE.folder)
    stopped.arguments = stopped.arguments | {"total_timesteps": 1_000_000}
    assert "<b>At 50%</b>: 499,712 steps" in gallery.section(stopped) and "At the end" not in gallery.section(stopped)


def test_the_strip_shows_an_episode_like_most(tmp_path, monkeypatch):
    """The first episode of seed 1 is far from the mean, that of seed 2 is not."""
    (tmp_path / "docs").mkdir()
    played, shown = {1: [0.0, *[10.0] * 9], 2: [9.0, *[5.0] * 9], 3: [8.9] * 10}, []
    monkeypatch.setattr(gallery, "ROOT", tmp_path)
    monkeypatch.setattr(gallery, "play", lambda agent, checkpoint, folder, seed=1: (played[seed], f"{seed}.mp4"))
    monkeypatch.setattr(gallery, "write_clip", lambda video, clip: 1.0)
    monkeypatch.setattr(gallery, "write_strip", lambda video, picture: shown.append(video))
    gallery.show(CARTPOLE)
    assert shown == ["2.mp4"]
    facts = json.loads((tmp_path / "docs" / "videos" / "cartpole.json").read_text())
    assert facts["end"]["returns"] == played[1]


def test_pictures_and_videos_are_there_and_small():
    strip = [ROOT / x for x in re.findall(r'<img src="(.+?)"', (ROOT / "README.md").read_text())]
    assert len(strip) == sum(agent.place < len(gallery.STRIP) for agent in SHOWN) >= 1
    assert sum(path.stat().st_size for path in strip) < 4e6
    videos = re.findall(r'<video src="(.+?)#', (ROOT / "docs" / "gallery.md").read_text())
    assert len(videos) == sum(len(agent.stages()) for agent in SHOWN)
    assert sum((ROOT / "docs" / path).stat().st_size for path in videos) < 10e6


def test_a_clip_is_cut_and_a_strip_repeats(tmp_path, monkeypatch):
    import imageio.v2 as imageio
    from PIL import Image

    video = tmp_path / "long.mp4"
    with imageio.get_writer(video, fps=15, macro_block_size=2) as writer:
        for i in range(15 * 14):
            picture = np.full((120, 600, 3), 255, np.uint8)
            picture[:, 250 + i % 60 : 280 + i % 60] = 0  # no two neighbours are equal, or WebP would make them one
            writer.append_data(picture)
    assert gallery.write_clip(video, tmp_path / "clip.mp4") == pytest.approx(14, abs=0.2)
    with imageio.get_reader(tmp_path / "clip.mp4") as reader:
        facts = reader.get_meta_data()
        assert facts["duration"] == pytest.approx(gallery.SECONDS, abs=0.2) and facts["size"] == (400, 80)
    gallery.write_strip(video, tmp_path / "strip.webp")
    with Image.open(tmp_path / "strip.webp") as picture:
        assert picture.size == (gallery.STRIP_SIZE, gallery.STRIP_SIZE) and picture.info["loop"] == 0
        assert picture.n_frames == gallery.STRIP_SECONDS * gallery.STRIP_FPS
        assert picture.convert("L").getpixel((110, 100)) > 200 > 50 > picture.convert("L").getpixel((40, 100))
    monkeypatch.setattr(gallery, "LONG", 10)
    gallery.write_strip(video, tmp_path / "strip.webp")
    with Image.open(tmp_path / "strip.webp") as picture:  # the bar is where it is after 7 of 14 seconds
        assert picture.convert("L").getpixel((110, 100)) < 50 < 200 < picture.convert("L").getpixel((40, 100))


# ------------------------------------------------------------------------------------------- The CartPole in the page


@pytest.fixture
def page(browser, tmp_path):
    """A page with nothing but the CartPole."""
    scripts = "".join(
        f'<script src="{(ROOT / "docs" / "javascripts" / name).as_uri()}"></script>'
        for name in ("cartpole_weights.js", "cartpole.js")
    )
    (tmp_path / "page.html").write_text(f'<!DOCTYPE html><meta charset="utf-8"><div id="cartpole"></div>{scripts}')
    browser.get((tmp_path / "page.html").as_uri())
    yield browser
    errors = [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
    assert not errors, errors


@pytest.mark.parametrize("actor", ["kept agent", "noise"])
def test_the_dynamics_are_gymnasiums(page, actor):
    """200 steps with the same actions, of an agent that stays up and of noise, under which the pole turns over."""
    env, rng = gym.make("CartPole-v1").unwrapped, np.random.default_rng(1)
    agent = ppo.Agent(4, 2)
    last = gallery.checkpoints(CARTPOLE.folder)[-1]
    agent.load_state_dict(torch.load(last, weights_only=True)["model"])
    observation, actions, states, ended = env.reset(seed=3)[0], [], [], []
    states.append(env.state.tolist())
    for _ in range(200):
        draw = agent.get_action_and_value(torch.tensor(observation)[None])[0].item()
        actions.append(draw if actor == "kept agent" else int(rng.integers(2)))
        env.steps_beyond_terminated = None  # or Gymnasium warns that the episode is over
        observation, _, terminated, _, _ = env.step(actions[-1])
        states.append(env.state.tolist())
        ended.append(terminated)
    assert any(ended) == (actor == "noise")
    code = """let state = arguments[0]; const found = [state], fallen = [];
        for (const action of arguments[1]) {
          state = cartpole.step(state, action ? 10 : -10); found.push(state); fallen.push(cartpole.fallen(state));
        }
        return [found, fallen];"""
    found, fallen = page.execute_script(code, states[0], actions)
    np.testing.assert_allclose(found, states, rtol=0, atol=1e-6)
    assert fallen == ended


def test_the_networks_are_the_kept_agents(page):
    rng, agent = np.random.default_rng(1), ppo.Agent(4, 2)
    states = rng.uniform(-1, 1, (20, 4)).astype(np.float32)
    kept = gallery.checkpoints(CARTPOLE.folder)
    steps = page.execute_script("return CARTPOLE.steps")
    assert steps == [int(path.stem) * CARTPOLE.steps for path in kept] and len(steps) >= 10
    for i, path in enumerate(kept):
        agent.load_state_dict(torch.load(path, weights_only=True)["model"])
        code = "const both = cartpole.networks(arguments[0]); return arguments[1].map((x) => cartpole.policy(both, x))"
        found = page.execute_script(code, i, states.tolist())
        with torch.no_grad():
            probabilities = agent.actor(torch.tensor(states)).softmax(-1)
            values = agent.get_value(torch.tensor(states))
        np.testing.assert_allclose([x["probabilities"] for x in found], probabilities, atol=1e-5)
        np.testing.assert_allclose([x["value"] for x in found], values, rtol=1e-4, atol=1e-4)


def test_slider_keys_and_buttons_do_what_they_say(page):
    wait = (
        "const done = arguments[0]; setTimeout(() => done(document.querySelector('.cartpole-read').textContent), 400)"
    )
    first = page.execute_async_script(wait)
    assert re.match(r"step \d+ of 500", first) and page.execute_async_script(wait) != first  # it plays
    page.execute_script("document.querySelector('.play').click()")
    page.execute_async_script(wait)
    assert page.execute_async_script(wait) == page.execute_async_script(wait)  # it stands still
    page.execute_script("const s = document.querySelector('input'); s.value = 0; s.dispatchEvent(new Event('input'))")
    steps = page.execute_script("return CARTPOLE.steps[0].toLocaleString('en')")
    assert page.execute_script("return document.querySelector('output').textContent").startswith(f"after {steps} steps")
    red = """const c = document.querySelector('canvas');
        const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
        let red = 0; for (let i = 0; i < d.length; i += 4) red += d[i] > 200 && d[i + 1] < 90 && d[i + 3] > 250;
        return red"""
    page.execute_script("document.querySelector('.play').click()")
    for kind, pushed in (("keydown", True), ("keyup", False)):
        page.execute_script(f"dispatchEvent(new KeyboardEvent('{kind}', {{key: 'ArrowRight'}}))")
        page.execute_async_script(wait)
        assert (page.execute_script(red) > 0) == pushed


def test_the_page_needs_no_build_step():
    lines = (ROOT / "docs" / "javascripts" / "cartpole.js").read_text().splitlines()
    assert len(lines) < 150 and not any(re.match(r"\s*(import|export) ", line) for line in lines)


def test_make_gallery_is_the_command():
    done = subprocess.run(["make", "-n", "gallery"], cwd=ROOT, capture_output=True, text=True)
    assert "python benchmark/gallery.py" in done.stdout


def test_a_checkpoint_of_an_agent_is_kept_slim():
    for agent in AGENTS:
        for path in gallery.checkpoints(agent.folder):
            assert path.stat().st_size < 1.1 * len(gallery.slim(path)) + 2000, path
