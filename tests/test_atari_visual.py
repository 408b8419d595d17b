"""What ppo_atari_visual.py adds to ppo_atari.py: the policy drawn beside the game. It plays as its parent does."""

import cv2
import environments_atari  # noqa: F401 (registers them)
import gymnasium as gym
import numpy as np
import ppo_atari
import ppo_atari_visual as ppo
import pytest
import torch
from helpers import TESTS, assert_same_logs, assert_same_state, state, type_here, words

SCRIPT = TESTS.parent / "cleanrl" / "ppo_atari_visual.py"
EMPTY = (40, 40, 40)
CURVE = slice(340, 420)  # rows of the panel
FRAMES = np.zeros((84, 84, 4), np.uint8)
TINY = {
    "env_id": "environments_atari:Noise-v0", "total_timesteps": 32, "num_envs": 2, "num_steps": 8, "checkpoints": 2,
    "num_threads": 1, "device": "cpu",
}  # fmt: skip


def draw(names=("A",), probabilities=(1.0,), chosen=0, history=((0.0, 0.0, 3),)):
    """The panel, (420, 400, 3)."""
    picture = np.zeros((210, 160, 3), np.uint8)
    return ppo.draw_policy(picture, FRAMES, list(names), list(probabilities), chosen, list(history))[:, -400:]


def where(panel, color):
    """Rows and columns of the pixels of a color."""
    return np.nonzero((panel == color).all(-1))


def curve(panel):
    """Rows and columns of the curve's pixels, light blue that is blurred at its edges."""
    return np.nonzero(panel[:, :, 2] > panel[:, :, 0].astype(int) + 60)


def bar(panel, color):
    """Rows and length, in pixels, of the bars of a color; text covers a part of them."""
    columns = [np.flatnonzero(row) for row in (panel == color).all(-1)]
    lengths = [np.ptp(one) + 1 if len(one) else 0 for one in columns]
    return np.flatnonzero(lengths), max(lengths)


def test_the_bars_are_as_long_as_the_actions_are_probable_and_the_chosen_one_has_a_color():
    panel = draw(["NOOP", "FIRE"], [0.25, 0.75], 1)
    (chosen, longest), (other, shorter) = bar(panel, ppo.ORANGE), bar(panel, ppo.DARK)
    assert other.max() < chosen.min()  # in the order of the names
    assert longest == pytest.approx(3 * shorter, abs=4) and 376 * 0.75 == pytest.approx(longest, abs=2)
    swapped = draw(["NOOP", "FIRE"], [0.25, 0.75], 0)
    assert bar(swapped, ppo.ORANGE)[1] == shorter and bar(swapped, ppo.DARK)[1] == longest
    assert bar(draw(["NOOP", "FIRE"], [1.0, 0.0], 1), ppo.ORANGE)[1] > 1  # however improbable


@pytest.mark.parametrize("names", [["A"], [f"action {i}" for i in range(18)], [f"{i}" for i in range(50)]])
@pytest.mark.parametrize("shape", [(210, 160, 3), (84, 84, 3), (64, 100, 3)])
def test_any_picture_and_number_of_actions_fits(shape, names):
    probabilities = [0.5 / len(names)] * len(names)
    drawn = ppo.draw_policy(np.zeros(shape, np.uint8), FRAMES, names, probabilities, 0, [(2.0, 0, 0)])
    assert drawn.shape[0] == 420 and drawn.shape[1] % 2 == 0
    empty = (drawn[:, -400:] == EMPTY).all(-1)  # the rest of a bar's width
    rows, columns = np.flatnonzero(empty.sum(1) > 40), np.flatnonzero(empty[120:320].sum(0) > 1)
    assert 116 < rows.min() and rows.max() < 320  # between the frames and the value
    assert columns.min() > 11 and columns.max() < 390
    assert np.ptp(where(drawn[:, -400:], ppo.ORANGE)[0]) > 12  # high enough for the name of its action


def test_the_game_and_the_frames_are_shown_as_they_are():
    rng = np.random.default_rng(0)
    picture = rng.integers(0, 256, (210, 160, 3)).astype(np.uint8)
    frames = rng.integers(0, 256, (84, 84, 4)).astype(np.uint8)
    drawn = ppo.draw_policy(picture, frames, ["A"], [1.0], 0, [(0.0, 0.0, 3)])
    assert drawn.shape == (420, 320 + 400, 3)
    assert (drawn[::2, :320:2] == picture).all() and (drawn[1::2, 1:320:2] == picture).all()  # twice as large
    for i in range(4):
        shown = drawn[32:116, 332 + 97 * i : 416 + 97 * i]
        assert (shown == frames[:, :, i, None]).all()


def test_the_curve_follows_the_values_of_the_last_100_decisions():
    panel = draw(history=[(0.0, 0.0, 3)] * 50 + [(1.0, 0.0, 3)] * 50)
    rows, columns = curve(panel)
    assert rows[columns < 150].min() > rows[columns > 250].max()  # low values lie lower
    assert columns.min() < 20 and columns.max() > 380  # 100 decisions fill the width
    assert curve(draw(history=[(1.0, 0.0, 3)] * 50))[1].max() < 210  # 50 fill the half of it
    longer = draw(history=[(9.0, 5.0, 4)] * 30 + [(0.0, 7.0, 3)] * 100)
    assert (longer[CURVE] == draw(history=[(0.0, 7.0, 3)] * 100)[CURVE]).all()


@pytest.mark.parametrize(("score", "color", "other"), [(2.0, ppo.GREEN, ppo.RED), (-2.0, ppo.RED, ppo.GREEN)])
def test_a_reward_is_a_dot_on_the_curve_where_it_was_paid(score, color, other):
    panel = draw(history=[(0.1 * i, score * (i >= 20), 3) for i in range(40)])[CURVE]
    rows, columns = where(panel, color)
    assert np.ptp(rows) < 9 and np.ptp(columns) < 9 and not len(where(panel, other)[0])
    assert columns.mean() == pytest.approx(12 + 20 * 3.8, abs=1.5)


def test_a_lost_life_is_a_line_where_it_was_lost():
    still, lost = (draw(history=[(0.1 * i, 0.0, 3 - n * (i >= 20)) for i in range(40)])[CURVE] for n in (0, 1))
    rows, columns = np.nonzero((still != lost).any(-1))
    assert len(set(columns)) == 1 and columns[0] == 12 + 20 * 3.8 and np.ptp(rows) > 60


@pytest.mark.parametrize("options", [{}, {"bootstrap_truncated": True, "anneal_clip": True, "precision": "bf16"}])
def test_it_trains_as_the_parent_to_the_bit(in_tmp_path, options):
    scripts = (ppo, ppo_atari)
    one, other = (script.main(script.Args(**TINY | options, capture_video=False)) for script in scripts)
    for update in (1, 2):
        assert_same_state(state(one, update), state(other, update))
    assert_same_logs(one, other)


def test_it_plays_as_the_parent_and_draws_each_decision(in_tmp_path, monkeypatch, spy):
    options = {"losses": (60, 120), "lives": 2, "pay": lambda k: 5.0 * (k in (50, 90))}
    monkeypatch.setattr(gym.registry["FakeAtari-v0"], "kwargs", options)
    folder = ppo.main(ppo.Args(**TINY | {"env_id": "FakeAtari-v0", "capture_video": False}))
    checkpoint = ppo.load_checkpoint(folder)
    player = ppo.Player(checkpoint, checkpoint["args"], "rgb_array")
    parent = ppo_atari.Player(checkpoint, checkpoint["args"])
    drawn, original = [], ppo.draw_policy

    def spied(game, frames, names, probabilities, chosen, history):
        drawn.append((frames, names, probabilities, chosen, *history[-1]))
        return original(game, frames, names, probabilities, chosen, history)

    monkeypatch.setattr(ppo, "draw_policy", spied)
    stepped = spy(player, "step")
    game = ppo.play(player, 1, in_tmp_path / "game.mp4")
    assert [call.actions.tolist() for call in stepped] == [[chosen] for _, _, _, chosen, *_ in drawn]
    assert game == ppo_atari.play(parent, 1)
    length = len(drawn)
    assert length < game["l"] and game["r"] == 10.0  # without its no-ops and openings
    agent = player.agent
    frames, names, probabilities, chosen, values, scores, lives = (list(column) for column in zip(*drawn))
    with torch.no_grad():
        log_probs, value = agent(torch.from_numpy(np.stack(frames)))
    assert np.allclose(probabilities, log_probs.exp(), atol=1e-5) and np.allclose(values, value, atol=1e-5)
    assert names[0] == ["NOOP", "FIRE", "RIGHT", "LEFT"] and set(chosen) == {0, 1, 2, 3}
    assert sorted(set(scores)) == [0.0, 5.0, 10.0] and scores == sorted(scores)
    assert set(lives) == {1, 2} and lives == sorted(lives, reverse=True)
    capture = cv2.VideoCapture(str(in_tmp_path / "game.mp4"))
    assert int(capture.get(cv2.CAP_PROP_FRAME_COUNT)) == length and capture.get(cv2.CAP_PROP_FPS) == 15


def test_as_typed_a_run_records_videos_unless_told_not_to(in_tmp_path, capsys):
    type_here(*words(**TINY), script=SCRIPT)
    assert capsys.readouterr().err == ""
    (folder,) = in_tmp_path.glob("runs/*")
    assert sorted(path.name for path in (folder / "videos").iterdir()) == ["1.mp4", "2.mp4"]
    capture = cv2.VideoCapture(str(folder / "videos" / "1.mp4"))
    assert capture.read()[1].shape == (420, 420 + 400, 3)
    type_here(*words(**TINY), "--no-capture-video", "--seed", 2, script=SCRIPT)
    (folder,) = in_tmp_path.glob("runs/*__2__*")
    assert not list((folder / "videos").iterdir())
