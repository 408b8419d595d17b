"""What ppo_atari_visual.py adds to ppo_atari.py: the policy drawn beside the game. It plays as its parent does."""

import cv2
import environments_atari  # noqa: F401 (registers them)
import gymnasium as gym
import numpy as np
import ppo_atari
import ppo_atari_visual as ppo
import pytest
import torch
from helpers import TESTS, run, type_here, words

SCRIPT = TESTS.parent / "cleanrl" / "ppo_atari_visual.py"
ORANGE, GREY, EMPTY, GREEN, RED = (
    (190, 100, 20), (80, 80, 95), (40, 40, 40), (90, 210, 90), (240, 90, 90),
)  # fmt: skip
CURVE = slice(340, 420)  # rows of the panel
FRAMES = np.zeros((4, 84, 84), np.uint8)


def draw(names=("A",), probabilities=(1.0,), chosen=0, history=((0.0, 0.0, 3),)):
    """The panel, (420, 400, 3)."""
    picture = np.zeros((210, 160, 3), np.uint8)
    return ppo.draw_policy(picture, FRAMES, list(names), list(probabilities), chosen, list(history))[:, -400:]


def where(panel, colour):
    """Rows and columns of the pixels of a colour."""
    return np.nonzero((panel == colour).all(-1))


def curve(panel):
    """Rows and columns of the curve's pixels, light blue that is blurred at its edges."""
    return np.nonzero(panel[:, :, 2] > panel[:, :, 0].astype(int) + 60)


def bar(panel, colour):
    """Rows and length, in pixels, of the bars of a colour; text covers a part of them."""
    lengths = [np.ptp(columns) + 1 if len(columns := np.flatnonzero(x)) else 0 for x in (panel == colour).all(-1)]
    return np.flatnonzero(lengths), max(lengths)


def test_the_bars_are_as_long_as_the_actions_are_probable():
    panel = draw(["NOOP", "FIRE"], [0.25, 0.75], 1)
    (played, longest), (other, shorter) = bar(panel, ORANGE), bar(panel, GREY)
    assert other.max() < played.min()  # in the order of the names
    assert longest == pytest.approx(3 * shorter, abs=4) and 376 * 0.75 == pytest.approx(longest, abs=2)
    swapped = draw(["NOOP", "FIRE"], [0.25, 0.75], 0)
    assert bar(swapped, ORANGE)[1] == shorter and bar(swapped, GREY)[1] == longest
    for other in (draw(["NOOP", "LEFT"], [0.25, 0.75], 1), draw(["NOOP", "FIRE"], [0.25, 0.7501], 1)):
        changed = np.flatnonzero((other != panel).any((1, 2)))
        assert all(played.min() - 2 < changed) and all(changed < played.max() + 2)  # the name stands on its bar


def test_a_played_action_is_seen_however_improbable():
    assert bar(draw(["NOOP", "FIRE"], [1.0, 0.0], 1), ORANGE)[1] > 1


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
    assert np.ptp(where(drawn[:, -400:], ORANGE)[0]) > 12  # high enough for the name of its action


def test_the_game_and_the_frames_are_shown_as_they_are():
    rng = np.random.default_rng(0)
    picture = rng.integers(0, 256, (210, 160, 3)).astype(np.uint8)
    frames = rng.integers(0, 256, (4, 84, 84)).astype(np.uint8)
    drawn = ppo.draw_policy(picture, frames, ["A"], [1.0], 0, [(0.0, 0.0, 3)])
    assert drawn.shape == (420, 320 + 400, 3)
    assert (drawn[::2, :320:2] == picture).all() and (drawn[1::2, 1:320:2] == picture).all()  # twice as large
    for i, frame in enumerate(frames):
        shown = drawn[32:116, 332 + 97 * i : 416 + 97 * i]
        assert (shown == frame[:, :, None]).all()


def test_score_lives_and_decisions_are_written():
    panel = draw(history=[(0.0, 0.0, 3)])
    for other in ([(0.0, 7.0, 3)], [(0.0, 0.0, 2)], [(0.0, 0.0, 3)] * 2):
        changed = where(draw(history=other)[:30] != panel[:30], (True,) * 3)
        assert len(changed[0])


def test_the_curve_follows_the_values():
    panel = draw(history=[(0.0, 0.0, 3)] * 50 + [(1.0, 0.0, 3)] * 50)
    rows, columns = curve(panel)
    assert rows[columns < 150].min() > rows[columns > 250].max()  # low values lie lower
    assert columns.min() < 20 and columns.max() > 380  # 100 decisions fill the width
    rows, columns = curve(draw(history=[(1.0, 0.0, 3)] * 50))
    assert columns.max() < 210  # 50 fill the half of it
    assert (
        draw(history=[(9.0, 5.0, 4)] * 30 + [(0.0, 7.0, 3)] * 100)[CURVE] == draw(history=[(0.0, 7.0, 3)] * 100)[CURVE]
    ).all()


@pytest.mark.parametrize(("score", "colour", "other"), [(2.0, GREEN, RED), (-2.0, RED, GREEN)])
def test_a_reward_is_a_dot_on_the_curve_where_it_was_paid(score, colour, other):
    panel = draw(history=[(0.1 * i, score * (i >= 20), 3) for i in range(40)])[CURVE]
    rows, columns = where(panel, colour)
    assert np.ptp(rows) < 9 and np.ptp(columns) < 9 and not len(where(panel, other)[0])
    assert columns.mean() == pytest.approx(12 + 20 * 3.8, abs=1.5)
    rows_of_curve, columns_of_curve = curve(panel)
    near = abs(columns_of_curve - columns.mean()) < 8
    assert rows.mean() == pytest.approx(rows_of_curve[near].mean(), abs=4)


def test_a_lost_life_is_a_line_where_it_was_lost():
    still, lost = (draw(history=[(0.1 * i, 0.0, 3 - n * (i >= 20)) for i in range(40)])[CURVE] for n in (0, 1))
    rows, columns = np.nonzero((still != lost).any(-1))
    assert len(set(columns)) == 1 and columns[0] == 12 + 20 * 3.8 and np.ptp(rows) > 60


def test_it_plays_as_the_parent_and_draws_each_decision(tmp_path):
    torch.manual_seed(0)
    agent, args = ppo.Agent(3), ppo.Args(env_id="Catch-v0")
    games = list(ppo.evaluate(agent, args, 4, 5, tmp_path / "game.mp4"))
    assert games == list(ppo_atari.evaluate(agent, args, 4, 5))
    capture = cv2.VideoCapture(str(tmp_path / "game.mp4"))
    frames = [frame for whole, frame in iter(capture.read, (False, None))]
    assert capture.get(cv2.CAP_PROP_FPS) == 15
    assert len(frames) == 6 == games[0][1] and frames[0].shape == (420, 420 + 400, 3)
    columns = np.array([frame[:300, :420].mean((0, 2)).argmax() // 60 for frame in frames[1:5]])
    rows = np.array(
        [frame[:350, 60 * c : 60 * c + 60].mean((1, 2)).argmax() // 60 for c, frame in zip(columns, frames[1:])]
    )
    assert len(set(columns)) == 1 and (np.diff(rows) == 1).all()  # the ball falls a row a frame, in one column
    newest = frames[3][32:116, 420 + 12 + 97 * 3 :][:, :84].mean(-1)
    assert abs(newest - cv2.resize(frames[3][:420, :420], (84, 84)).mean(-1)).mean() < 8  # the frame of that picture
    assert [path.name for path in tmp_path.iterdir()] == ["game.mp4"]


def test_each_decision_is_drawn_with_its_probabilities_values_score_and_lives(tmp_path, monkeypatch):
    options = {"losses": (60, 120), "lives": 2, "pay": lambda k: 5.0 * (k in (50, 90))}
    monkeypatch.setattr(gym.registry["FakeAtari-v0"], "kwargs", options)
    agent, drawn, original = ppo.Agent(4), [], ppo.draw_policy

    def spied(picture, frames, names, probabilities, chosen, history):
        hidden = agent.get_hidden(torch.from_numpy(frames.copy())[None])
        assert probabilities == agent.actor(hidden).softmax(-1)[0].tolist()
        assert history[-1][0] == agent.critic(hidden).item()
        drawn.append((names, chosen, *history[-1][1:]))
        return original(picture, frames, names, probabilities, chosen, history)

    monkeypatch.setattr(ppo, "draw_policy", spied)
    (result, second) = ppo.evaluate(agent, ppo.Args(env_id="FakeAtari-v0"), 2, 1, tmp_path / "game.mp4")
    assert len(drawn) < second[1] + result[1] and result[0] == 10.0  # only the first game
    names, chosen, scores, lives = zip(*drawn)
    assert set(map(tuple, names)) == {("NOOP", "FIRE", "RIGHT", "LEFT")} and len(set(chosen)) == 4
    assert sorted(set(scores)) == [0.0, 5.0, 10.0] and list(scores) == sorted(scores)
    assert sorted(set(lives)) == [1, 2] and list(lives) == sorted(lives, reverse=True)


def test_as_typed_a_run_records_videos(in_tmp_path, capsys):
    options = dict(env_id="Noise-v0", total_timesteps=32, num_envs=2, num_steps=8, checkpoints=2, num_threads=1)
    typed = words(**options | {"env_id": "environments_atari:Noise-v0"})
    _, stderr = run(*typed, script=SCRIPT)
    assert stderr == ""
    (folder,) = in_tmp_path.glob("runs/*")
    assert sorted(path.name for path in (folder / "videos").iterdir()) == ["1.mp4", "2.mp4"]
    type_here("--evaluate", folder, "--episodes", 1, script=SCRIPT)
    stdout, stderr = capsys.readouterr()
    assert stderr == "" and f"video: {folder / 'checkpoints' / '2.mp4'}" in stdout
    type_here(*typed, "--no-capture-video", "--seed", "2", script=SCRIPT)
    (folder,) = in_tmp_path.glob("runs/*__2__*")
    assert not list((folder / "videos").iterdir())
