"""Draws the pictures of the pages, docs/images/*.svg, each from what the scripts compute.

    python docs/build/drawings.py

An SVG takes its colors from variables with two sets of values, for light and for dark. docs/hooks.py makes it a part
of its page, where the page's own switch decides.
"""

import argparse
import sys
from pathlib import Path
from xml.sax.saxutils import escape

import numpy as np

DOCS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(DOCS.parent / "cleanrl"))
import gallery  # noqa: E402
import ppo  # noqa: E402
import torch  # noqa: E402
from intervals import curve  # noqa: E402
from kept import kept_runs, read_json  # noqa: E402

COLORS = {  # of light, of dark
    "paper": ("#ffffff", "#1e2129"),
    "ink": ("#24292f", "#e6e8ef"), "soft": ("#5c6570", "#a9b1c0"), "line": ("#b4bcc6", "#59606e"),
    "blue": ("#0a5fc2", "#6cb0ff"), "blue-soft": ("#cfe4fc", "#1a3d6a"),
    "orange": ("#a84400", "#ffa357"), "orange-soft": ("#fde0c8", "#6a3a14"),
    "green": ("#1a7340", "#63cf8e"), "green-soft": ("#cdeeda", "#1b5234"),
    "violet": ("#7a3fbf", "#c79bff"), "violet-soft": ("#e8dafa", "#46306a"),
}  # fmt: skip


class Drawing:
    """An SVG of given size, in px. Colors are names of COLORS; y grows downwards."""

    def __init__(self, width: int, height: int, says: str):
        self.size = (width, height)
        self.says = says
        self.parts = []

    def add(self, name: str, content: str = "", style: str = "", **attributes) -> None:
        words = "".join(f' {key.replace("_", "-")}="{value}"' for key, value in attributes.items())
        style = f' style="{style}"' if style else ""
        self.parts.append(
            f"<{name}{words}{style}>{escape(content)}</{name}>" if content else f"<{name}{words}{style}/>"
        )

    def text(self, x, y, words, color="ink", size=15, anchor="middle", bold=False) -> None:
        weight = {"font_weight": "bold"} if bold else {}
        self.add("text", words, f"fill: var(--{color})", x=x, y=y, font_size=size, text_anchor=anchor, **weight)

    def line(self, points, color="ink", width=1.5, dashes="") -> None:
        path = "M" + " L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        dashed = {"stroke_dasharray": dashes} if dashes else {}
        self.add("path", style=f"stroke: var(--{color})", d=path, fill="none", stroke_width=width, **dashed)

    def box(self, x, y, width, height, fill="none", color="line", radius=0) -> None:
        style = f"fill: {'none' if fill == 'none' else f'var(--{fill})'}; stroke: var(--{color})"
        self.add(
            "rect", style=style, x=round(x, 1), y=round(y, 1), width=round(width, 1), height=round(height, 1), rx=radius
        )

    def arrow(self, points, color="ink", width=1.5, dashes="") -> None:
        """A line with a head at its end."""
        self.line(points, color, width, dashes)
        (x0, y0), (x1, y1) = points[-2:]
        along = np.array([x1 - x0, y1 - y0]) / np.hypot(x1 - x0, y1 - y0) * 8
        across = np.array([-along[1], along[0]]) / 2
        end = np.array([x1, y1])
        self.line([end - along + across, end, end - along - across], color, width)

    def save(self, path: Path) -> None:
        width, height = self.size
        light = " ".join(f"--{name}: {color};" for name, (color, _) in COLORS.items())
        dark = " ".join(f"--{name}: {color};" for name, (_, color) in COLORS.items())
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="drawing" viewBox="0 0 {width} {height}" width="{width}" '
            f'font-family="system-ui, sans-serif">\n<title>{escape(self.says)}</title>\n<style>\n'
            f"svg.drawing {{ {light} }}\n@media (prefers-color-scheme: dark) {{ svg.drawing {{ {dark} }} }}\n</style>\n"
        )
        path.write_text(head + "\n".join(self.parts) + "\n</svg>\n")


def clipped_objective(folder: Path) -> None:
    """The objective of one sample by its ratio, from ppo_loss."""
    drawing = Drawing(560, 300, "The clipped objective of a sample, for a positive and for a negative advantage")
    ratios = torch.linspace(0.5, 1.5, 101)
    clip_coef = 0.2
    args = ppo.Args(norm_adv=False, clip_vloss=False, ent_coef=0.0, vf_coef=0.0)
    for left, sign in ((20, 1.0), (300, -1.0)):
        objective = np.zeros(len(ratios))
        for i, ratio in enumerate(ratios):
            log_prob = ratio.log().reshape(1)
            zero = torch.zeros(1)
            sample = ppo.Batch(zero, zero, zero, zero, torch.full((1,), sign), zero)
            _, metrics = ppo.ppo_loss(log_prob, zero, zero, sample, clip_coef, args)
            objective[i] = -metrics["losses/policy_loss"].item()

        lowest = 0.5 if sign > 0 else -1.5

        def place(ratio, value, left=left, lowest=lowest):
            return left + 240 * (ratio - 0.5), 240 - 130 * (value - lowest)

        x0 = left
        x1 = left + 240
        edge = 1.2 if sign > 0 else 0.8
        flat = sorted((place(edge, 0)[0], x1 if sign > 0 else x0))
        drawing.box(flat[0], 70, flat[1] - flat[0], 170, fill="orange-soft", color="orange-soft")
        drawing.line([(x0, 240), (x1, 240)], "line")
        for ratio, label in ((0.8, "1 − ε"), (1.0, "1"), (1.2, "1 + ε")):
            x = place(ratio, 0)[0]
            drawing.line([(x, 70), (x, 246)], "line", 1, "3 3")
            drawing.text(x, 264, label, "soft", 14)
        drawing.line([place(ratio, sign * ratio) for ratio in (0.5, 1.5)], "soft", 1.5, "5 4")
        drawing.line([place(float(r), v) for r, v in zip(ratios, objective)], "blue", 3.5)
        x, y = place(1.0, sign)
        drawing.add("circle", style="fill: var(--blue)", cx=x, cy=y, r=6, data_advantage=sign)  # for clip.js
        drawing.text((x0 + x1) / 2, 24, "A > 0: it went well" if sign > 0 else "A < 0: it went badly", bold=True)
        drawing.text((flat[0] + flat[1]) / 2, 62, "gradient 0", "orange", 14)
        drawing.text((x0 + x1) / 2, 288, "ratio ρ", "soft", 14)
        middle = (flat[0] + flat[1]) / 2
        top = place(edge, sign * edge)[1]
        drawing.text(middle, top + 20, "objective", "ink", 14)
        drawing.text(middle - sign * 4, top - 36, "ρ A", "ink", 14)
    drawing.save(folder / "clipped_objective.svg")


def gae_sum(folder: Path) -> None:
    """What each TD error weighs in the advantage of step t, from compute_gae: the derivative by the rewards."""
    drawing = Drawing(560, 386, "The TD errors in the advantage of step t, to the end of the rollout or episode")
    steps = 9
    ends = 4
    for top, done_at in ((30, None), (220, ends)):
        rewards = np.eye(steps)  # column k has a reward of 1 in step k
        dones = np.zeros((steps, steps))
        if done_at is not None:
            dones[done_at] = 1.0  # the first step of the next episode
        zeros = np.zeros(steps)
        advantages, _ = ppo.compute_gae(rewards, np.zeros((steps, steps)), dones, zeros, zeros, 0.99, 0.95)
        weights = advantages[0]
        base = top + 112
        if done_at is None:
            title = "In mid-episode: the sum reaches to the rollout's end"
        else:
            title = "An episode ends in step t + 3: the sum ends with it"
        drawing.text(14, top - 8, title, anchor="start", bold=True)
        for k, weight in enumerate(weights):
            x = 20 + 52 * k
            height = 90 * weight
            label = "δₜ" + (f"₊{chr(0x2080 + k)}" if k else "")
            if weight:
                drawing.box(x, base - height, 36, height, "blue-soft", "blue")
                drawing.text(x + 18, base - height - 6, f"{weight:.2f}", "blue", 13)
            else:
                drawing.text(x + 18, base - 8, "0", "soft", 14)
            drawing.text(x + 18, base + 20, label, "ink" if weight else "soft")
        drawing.line([(12, base), (20 + 52 * steps, base)], "line")
        if done_at is None:
            x = 20 + 52 * steps - 8
            drawing.line([(x, top + 6), (x, base + 6)], "orange", 2)
            drawing.text(x + 6, top + 52, "V(next", "orange", 14, "start")
            drawing.text(x + 6, top + 70, "obs)", "orange", 14, "start")
        else:
            x = 20 + 52 * ends - 8
            drawing.line([(x, top + 6), (x, base + 6)], "orange", 2)
            drawing.text(x + 8, top + 30, "continues = 0", "orange", 14, "start")
    drawing.text(14, 376, "bars: the weight (γλ)ᵏ, with γ = 0.99 and λ = 0.95", "soft", 14, "start")
    drawing.save(folder / "gae_sum.svg")


def dones_and_offsets(folder: Path) -> None:
    """Two rollouts of five steps of an environment whose episodes take eight; what it observes is its step."""
    says = "dones[t] marks an episode's first observation; the last pair is the next rollout's first"
    drawing = Drawing(560, 308, says)
    count = 0
    first = 1
    cell = 66
    left = 92
    for number, top in enumerate((34, 184)):
        drawing.text(8, top - 10, f"rollout {number + 1}", anchor="start", bold=True)
        for row, label in enumerate(("obs[t]", "dones[t]")):
            drawing.text(left - 10, top + 22 + 36 * row, label, "soft", 15, "end")
        for t in range(6):
            x = left + cell * t + (20 if t == 5 else 0)
            middle = x + (cell - 8) / 2
            fill, frame, ink = ("green-soft", "green", "green") if first else ("none", "line", "ink")
            for row, value in enumerate((count, first)):
                drawing.box(x, top + 36 * row, cell - 8, 32, fill, "orange" if t == 5 else frame, 4)
                drawing.text(middle, top + 22 + 36 * row, str(value), ink, bold=bool(first))
            drawing.text(middle, top + 88, "next" if t == 5 else f"t = {t}", "orange" if t == 5 else "soft", 14)
            if t < 5:
                count, first = (0, 1) if count == 7 else (count + 1, 0)
    x = left + cell * 5 + 20 + (cell - 8) / 2
    drawing.arrow([(x, 128), (x, 152), (left + 29, 152), (left + 29, 180)], "orange")
    drawing.text(left + 190, 146, "carries over: nothing is reset", "orange", 14)
    said = "In rollout 2, step 2 ends the episode, and obs[3] is the first of the next one."
    drawing.text(8, 298, said, "green", 14, "start")
    drawing.save(folder / "dones_and_offsets.svg")


def three_ends(folder: Path) -> None:
    """The value that is taken for what would follow, by the reason why the experience stops."""
    drawing = Drawing(560, 330, "A true end, a time limit and the rollout's end, and the value of what follows")
    rows = [
        ("True end: the pole fell", "green", "value of what follows: 0", "nothing follows"),
        ("Time limit: cut after 500 steps", "orange", "0 as published; V(last observation)", "would have gone on"),
        ("The rollout's end: time to learn", "blue", "value of what follows: V(next_obs)", "does go on"),
    ]
    for i, (title, color, value, why) in enumerate(rows):
        y = 62 + 110 * i
        last = 16 + 44 * 6
        drawing.text(10, y - 36, title, color, anchor="start", bold=True)
        drawing.line([(16, y), (last, y)], "ink", 2)
        for k in range(6):
            drawing.add("circle", style="fill: var(--ink)", cx=16 + 44 * k, cy=y, r=5)
        if i == 0:
            drawing.box(last - 13, y - 13, 26, 26, "green-soft", "green", 4)
            drawing.text(last, y + 6, "✕", "green", 16)
        else:
            drawing.line([(last + 22, y - 20), (last + 22, y + 20)], color, 2.5)
            drawing.line([(last + 8, y), (last + 110, y)], "soft", 2, "5 5" if i == 1 else "")
            drawing.add("circle", style=f"fill: var(--{color})", cx=last, cy=y, r=7)
            for k in (1, 2):
                style = "fill: var(--paper); stroke: var(--soft)" if i == 1 else "fill: var(--ink)"
                drawing.add("circle", style=style, cx=last + 44 * k, cy=y, r=5)
        drawing.text(last + 126, y + 5, why, "soft", 14, "start")
        drawing.text(16, y + 32, value + (", with --bootstrap-truncated" if i == 1 else ""), "ink", 14, "start")
    drawing.save(folder / "three_ends.svg")


def lstm_minibatches(folder: Path) -> None:
    """Which samples go into which of four minibatches, without and with a memory."""
    drawing = Drawing(560, 298, "Minibatches of shuffled samples, and of whole environments in time order")
    environments = 8
    steps = 10
    side = 22
    colors = ("blue", "orange", "green", "violet")
    rng = np.random.default_rng(1)
    shuffled = rng.permutation(np.repeat(np.arange(4), environments * steps // 4)).reshape(environments, steps)
    whole = np.repeat(rng.permutation(np.repeat(np.arange(4), environments // 4))[:, None], steps, 1)
    dones = {(1, 4), (3, 7), (4, 2), (6, 5), (6, 9)}
    for left, title, owner in ((14, "No memory: single samples", shuffled), (316, "LSTM: whole environments", whole)):
        drawing.text(left, 24, title, anchor="start", bold=True)
        for i in range(environments):
            for t in range(steps):
                color = colors[owner[i, t]]
                drawing.box(left + side * t, 44 + side * i, side - 3, side - 3, f"{color}-soft", color, 3)
            if owner is whole:
                drawing.arrow([(left - 20, 53 + side * i), (left - 3, 53 + side * i)], "soft", 1.5)
        drawing.text(left, 240, "time →", "soft", 14, "start")
        drawing.text(left + side * steps, 240, f"{environments} environments", "soft", 14, "end")
    for i, t in sorted(dones):
        x = 316 + side * t - 1.5
        drawing.line([(x, 42 + side * i), (x, 43 + side * (i + 1))], "ink", 3)
    drawing.text(14, 270, "Color: the minibatch. Arrow: the state at the rollout's start.", "soft", 14, "start")
    drawing.text(14, 288, "Thick line: an episode ends, the state starts from 0.", "soft", 14, "start")
    drawing.save(folder / "lstm_minibatches.svg")


def ppo_loop(folder: Path) -> None:
    """The loop of PPO: collect, judge, learn, throw away."""
    drawing = Drawing(560, 420, "The loop of PPO: collect a rollout, compute advantages, learn, throw the rollout away")
    play = ("Take T steps in each of N", "environments, and keep", "all that happens.")
    judge = ("Was the action better than", "the critic expected? The", "advantage says how much.")
    learn = ("Go over the rollout K times.", "Make good actions likelier,", "but only a little.")
    throw_away = ("The policy has changed, so", "the rollout is out of date.", "Episodes simply go on.")
    boxes = [
        (20, 20, "blue", "1  Play", play),
        (300, 20, "green", "2  Judge", judge),
        (300, 240, "violet", "3  Learn", learn),
        (20, 240, "orange", "4  Throw away", throw_away),
    ]
    for x, y, color, title, lines in boxes:
        drawing.box(x, y, 240, 130, f"{color}-soft", color, 10)
        drawing.text(x + 16, y + 32, title, color, 19, "start", bold=True)
        for i, line in enumerate(lines):
            drawing.text(x + 16, y + 62 + 22 * i, line, "ink", 15, "start")
    drawing.arrow([(262, 85), (296, 85)], "soft", 2.5)
    drawing.arrow([(420, 152), (420, 236)], "soft", 2.5)
    drawing.arrow([(298, 305), (264, 305)], "soft", 2.5)
    drawing.arrow([(140, 238), (140, 154)], "soft", 2.5)
    drawing.text(430, 198, "advantages", "soft", 14, "start")
    drawing.text(150, 198, "new policy", "soft", 14, "start")
    drawing.text(280, 404, "One round is an update. A run has hundreds or thousands of them.", "soft", 14)
    drawing.save(folder / "ppo_loop.svg")


def ticks(low: float, high: float) -> list[float]:
    """Round numbers from low to high, at most six."""
    rough = (high - low) / 5
    power = 10.0 ** np.floor(np.log10(rough))
    apart = next(power * one for one in (1, 2, 5, 10) if power * one >= rough)
    first = int(np.ceil(low / apart - 1e-9))
    last = int(np.floor(high / apart + 1e-9))
    return [round(one * apart, 6) for one in range(first, last + 1)]


def draw_curves(drawing: Drawing, curves: list, low: float, high: float, label: str, color: str) -> None:
    """Curves of returns by steps, each a pair of arrays, and their axes; all curves have the same last step."""
    left = 60
    right = 530
    top = 34
    bottom = 250
    steps = curves[0][0][-1]

    def place(step, value):
        return left + (right - left) * step / steps, bottom - (bottom - top) * (value - low) / (high - low)

    drawing.text(8, 14, "mean return of the last 100 episodes", "soft", 14, "start")
    for value in ticks(low, high):
        y = place(0, value)[1]
        drawing.line([(left, y), (right, y)], "line", 1, "2 4")
        drawing.text(left - 8, y + 5, f"{value:,g}".replace("-", "−"), "soft", 14, "end")
    for step in ticks(0, steps):
        words = f"{step / 1e6:g}M" if step >= 1e6 else f"{step / 1e3:g}k"
        drawing.text(place(step, 0)[0], bottom + 22, words if step else "0", "soft", 14)
    drawing.text((left + right) / 2, bottom + 44, label, "soft", 14)
    for positions, returns in curves:
        points = [place(step, value) for step, value in zip(positions, returns) if np.isfinite(value)]
        drawing.line(points, color, 2 if len(curves) <= 5 else 1)


def cartpole_curve(folder: Path) -> None:
    """The twenty runs of ppo.py on CartPole-v1 that release 0.3 made."""
    drawing = Drawing(560, 304, "ppo.py on CartPole-v1: mean return of the last 100 episodes, twenty seeds, by steps")
    grid = np.linspace(0, 500_000, 126)
    curves = []
    for run in kept_runs("results"):
        if (run.exp_name, run.env_id, run.release) == ("ppo", "CartPole-v1", "0.3"):
            curves.append((grid, curve(run.steps, run.returns, grid)))
    draw_curves(drawing, curves, 0, 500, "environment steps; a line for each of twenty seeds", "blue")
    drawing.save(folder / "cartpole_curve.svg")


def build_it_curve(folder: Path) -> None:
    """What my_ppo.py of docs/build-it.md printed, five seeds: docs/build_it_curve.csv."""
    drawing = Drawing(560, 304, "my_ppo.py on CartPole-v1: mean return of the last 100 episodes, five seeds, by steps")
    rows = np.loadtxt(DOCS / "build_it_curve.csv", delimiter=",", skiprows=1)
    curves = [(rows[:, 0], rows[:, column]) for column in range(1, rows.shape[1])]
    draw_curves(drawing, curves, 0, 500, "environment steps; a line for each of five seeds", "green")
    drawing.save(folder / "build_it_curve.svg")


def other_curves(folder: Path) -> None:
    """The runs of docs/other-environments.md, from their tenth episode on: docs/*_curve.csv of these names."""
    shown = (
        ("vizdoom", -2, 1, "violet"),
        ("miniworld", 0, 1, "green"),
        ("crafter", 0, 4, "orange"),
        ("airstriker", 8, 13, "blue"),
    )
    for name, low, high, color in shown:
        drawing = Drawing(560, 304, f"ppo_atari.py in {name}: mean return of the last 100 episodes, by steps")
        rows = np.loadtxt(DOCS / f"{name}_curve.csv", delimiter=",", skiprows=1)
        draw_curves(drawing, [(rows[:, 0], rows[:, 1])], low, high, "environment steps; one seed", color)
        drawing.save(folder / f"{name}_curve.svg")


def recipe_curves(folder: Path) -> None:
    """The kept runs of each recipe, a picture for each environment."""
    runs = [run for run in kept_runs("results") if run.exp_name == gallery.EXP_NAME]
    for env_id, recipe in gallery.read_recipes().items():
        own = gallery.newest([run for run in runs if gallery.is_of(run, env_id, recipe)])
        grid = np.linspace(0, own[0].total, 101)
        curves = [(grid, curve(run.steps, run.returns, grid)) for run in own]
        values = np.array([values for _, values in curves])
        says = f"{env_id}: mean return of the last 100 episodes, five seeds, by steps"
        drawing = Drawing(560, 304, says)
        low, high = np.nanmin(values), np.nanmax(values)
        draw_curves(drawing, curves, low, high, "environment steps; a line for each of five seeds", "blue")
        drawing.save(folder / f"recipe_{env_id.replace('/', '_')}.svg")


def speed_bars(folder: Path) -> None:
    """How many times as fast as stable-baselines3 the scripts are, from benchmark/results/speed.json."""
    scripts = [
        ("ppo_numpy", "ppo_numpy.py", "CartPole"),
        ("ppo", "ppo.py", "CartPole"),
        ("ppo_continuous_action_numpy", "…_continuous_action_numpy", "HalfCheetah"),
        ("ppo_continuous_action", "ppo_continuous_action.py", "HalfCheetah"),
        ("ppo_lstm", "ppo_lstm.py", "CartPole; theirs: RecurrentPPO"),
        ("ppo_atari_envpool", "ppo_atari_envpool.py", "Breakout"),
        ("ppo_atari", "ppo_atari.py", "Breakout"),
    ]
    measured = read_json("speed.json")
    drawing = Drawing(560, 44 + 44 * len(scripts), "Steps per second, as multiples of stable-baselines3's")
    left = 222
    unit = 34
    for i, (script, name, game) in enumerate(scripts):
        medians = measured[f"throughput/{script}"]["medians"]
        faster = max(("default threads", "1 thread"), key=lambda setting: medians[setting]["steps_per_second"])
        ratio = medians.get("against_ratios", medians["ratios"])[faster]  # at the defaults, without bf16
        y = 34 + 44 * i
        drawing.text(left - 10, y + 14, name, "ink", 14, "end")
        drawing.text(left - 10, y + 30, game, "soft", 12, "end")
        drawing.box(left, y + 2, unit * ratio, 26, "blue-soft", "blue", 3)
        drawing.text(left + unit * ratio + 8, y + 20, f"{ratio:.1f}×", "blue", 15, "start", bold=True)
    drawing.line([(left + unit, 24), (left + unit, 30 + 44 * len(scripts))], "orange", 2, "5 4")
    drawing.text(left + unit, 16, "stable-baselines3 = 1", "orange", 14)
    drawing.save(folder / "speed_bars.svg")


ALL = (
    clipped_objective, gae_sum, dones_and_offsets, three_ends, lstm_minibatches, ppo_loop, cartpole_curve,
    build_it_curve, other_curves, recipe_curves, speed_bars,
)  # fmt: skip

if __name__ == "__main__":
    options = {"description": __doc__, "formatter_class": argparse.RawDescriptionHelpFormatter}
    argparse.ArgumentParser(**options).parse_args()  # --help
    for draw in ALL:
        draw(DOCS / "images")
