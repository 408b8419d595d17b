"""What ppo_atari_visual.py adds to ppo_atari.py: the policy drawn beside the game. It plays as its parent does."""

import cv2
import environments_atari  # noqa: F401 (registers them)
import numpy as np
import ppo_atari
import ppo_atari_visual as ppo
import pytest
import torch
from helpers import TESTS, run, words

ORANGE, GREY = (255, 170, 60), (110, 110, 110)


def bars(drawn, colour):
    """Rows and length, in pixels, of the bars of a colour in a panel."""
    lengths = (drawn[:, 150:292] == colour).all(-1).sum(1)
    return np.flatnonzero(lengths > 3), lengths.max()


def test_the_bars_are_as_long_as_the_actions_are_probable():
    picture = np.random.default_rng(0).integers(0, 256, (210, 160, 3)).astype(np.uint8)
    drawn = ppo.draw_policy(picture, ["NOOP", "FIRE"], np.array([0.25, 0.75]), 1, [0.0, 1.0])
    assert drawn.shape == (420, 320 + 360, 3)
    assert (drawn[::2, :320:2] == picture).all()  # the game itself, twice as large
    panel = drawn[:, 320:]
    (played, longest), (other, shorter) = bars(panel, ORANGE), bars(panel, GREY)
    assert other.max() < played.min()  # in the order of the names
    assert longest == pytest.approx(140 * 0.75, abs=2) and shorter == pytest.approx(140 * 0.25, abs=2)
    swapped = ppo.draw_policy(picture, ["NOOP", "FIRE"], np.array([0.25, 0.75]), 0, [0.0, 1.0])[:, 320:]
    assert bars(swapped, ORANGE)[1] == shorter and bars(swapped, GREY)[1] == longest
    renamed = ppo.draw_policy(picture, ["NOOP", "LEFT"], np.array([0.25, 0.75]), 1, [0.0, 1.0])[:, 320:]
    changed = np.flatnonzero((renamed != panel).any((1, 2)))
    assert played.min() - 5 < changed.min() and changed.max() < played.max() + 5  # the name stands beside its bar


@pytest.mark.parametrize("names", [["A"], [f"action {i}" for i in range(18)]])
@pytest.mark.parametrize("shape", [(210, 160, 3), (84, 84, 3), (64, 100, 3)])
def test_any_picture_and_number_of_actions_fits(shape, names):
    drawn = ppo.draw_policy(np.zeros(shape, np.uint8), names, np.full(len(names), 1 / len(names)), 0, [2.0])
    assert drawn.shape[0] == 420 and drawn.shape[1] % 2 == 0
    panel = drawn[:, -360:]
    assert bars(panel, ORANGE)[0].max() < 320 and bars(panel, GREY)[0].max(initial=0) < 320  # above the value


def test_the_curve_follows_the_values():
    drawn = ppo.draw_policy(np.zeros((210, 160, 3), np.uint8), ["A"], np.ones(1), 0, [0.0] * 50 + [1.0] * 50)[:, 320:]
    rows, columns = np.nonzero(drawn[:, :, 2] > drawn[:, :, 0].astype(int) + 60)  # light blue, blurred at its edges
    assert rows[columns < 150].min() > rows[columns > 200].max()  # low values lie lower


def test_it_plays_as_the_parent_and_draws_each_decision(tmp_path):
    torch.manual_seed(0)
    agent = ppo.Agent(3)
    games = ppo.evaluate(agent, "Catch-v0", 4, 5, tmp_path / "game.mp4")
    assert games == ppo_atari.evaluate(agent, "Catch-v0", 4, 5)
    capture = cv2.VideoCapture(str(tmp_path / "game.mp4"))
    frames = [frame for whole, frame in iter(capture.read, (False, None))]
    assert len(frames) == 6 == games[0][1] and frames[0].shape == (420, 420 + 360, 3)
    columns = np.array([frame[:300, :420].mean((0, 2)).argmax() // 60 for frame in frames[1:5]])
    rows = np.array(
        [frame[:350, 60 * c : 60 * c + 60].mean((1, 2)).argmax() // 60 for c, frame in zip(columns, frames[1:])]
    )
    assert len(set(columns)) == 1 and (np.diff(rows) == 1).all()  # the ball falls a row a frame, in one column
    assert [path.name for path in tmp_path.iterdir()] == ["game.mp4"]


def test_as_typed_a_run_records_videos(in_tmp_path):
    options = dict(env_id="Noise-v0", total_timesteps=32, num_envs=2, num_steps=8, checkpoints=2, num_threads=1)
    script = TESTS.parent / "cleanrl" / "ppo_atari_visual.py"
    typed = words(**options | {"env_id": "environments_atari:Noise-v0"})
    _, stderr = run(*typed, script=script)
    assert stderr == ""
    (folder,) = in_tmp_path.glob("runs/*")
    assert sorted(path.name for path in (folder / "videos").iterdir()) == ["1.mp4", "2.mp4"]
    _, stderr = run(*typed, "--no-capture-video", "--seed", "2", script=script)
    (folder,) = in_tmp_path.glob("runs/*__2__*")
    assert not list((folder / "videos").iterdir())
