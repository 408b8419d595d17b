"""Draws the pages' curves and bars, docs/images/*.svg, each from results.

    python docs/build/drawings.py

The schematic pictures there, such as ppo_loop.svg, are files that are edited by hand. An SVG takes its colors from
variables with two sets of values, for light and for dark. docs/hooks.py makes it a part of its page, where the page's
own switch decides.
"""

import argparse
import csv
import sys
from pathlib import Path
from xml.sax.saxutils import escape

import numpy as np

DOCS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(DOCS.parent / "benchmark"))
import gallery  # noqa: E402
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


def ticks(low: float, high: float) -> list[float]:
    """Round numbers from low to high, at most six."""
    rough = (high - low) / 5
    power = 10.0 ** np.floor(np.log10(rough))
    apart = next(power * one for one in (1, 2, 5, 10) if power * one >= rough)
    first = int(np.ceil(low / apart - 1e-9))
    last = int(np.floor(high / apart + 1e-9))
    return [round(one * apart, 6) for one in range(first, last + 1)]


def draw_curves(drawing: Drawing, curves: list, low: float, high: float, label: str, colors: list[str]) -> None:
    """Curves of returns by steps, each a pair of arrays with a color of its own, and their axes; all curves have the
    same last step."""
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
    for (positions, returns), color in zip(curves, colors):
        points = [place(step, value) for step, value in zip(positions, returns) if np.isfinite(value)]
        drawing.line(points, color, 2 if len(curves) <= 5 else 1)


def cartpole_curve(folder: Path) -> None:
    """The twenty runs of ppo.py on CartPole-v1 that release 1.0 made."""
    drawing = Drawing(560, 304, "ppo.py on CartPole-v1: mean return of the last 100 episodes, twenty seeds, by steps")
    grid = np.linspace(0, 500_000, 126)
    curves = []
    for run in kept_runs("results", exp_name="ppo"):
        if (run.env_id, run.release) == ("CartPole-v1", "1.0"):
            curves.append((grid, curve(run.steps, run.returns, grid)))
    draw_curves(drawing, curves, 0, 500, "environment steps; a line for each of twenty seeds", ["blue"] * 20)
    drawing.save(folder / "cartpole_curve.svg")


def build_it_curve(folder: Path) -> None:
    """What my_ppo.py of docs/build-it.md printed, five seeds: docs/build_it_curve.csv."""
    drawing = Drawing(560, 304, "my_ppo.py on CartPole-v1: mean return of the last 100 episodes, five seeds, by steps")
    rows = np.loadtxt(DOCS / "build_it_curve.csv", delimiter=",", skiprows=1)
    curves = [(rows[:, 0], rows[:, column]) for column in range(1, rows.shape[1])]
    draw_curves(drawing, curves, 0, 500, "environment steps; a line for each of five seeds", ["green"] * 5)
    drawing.save(folder / "build_it_curve.svg")


def clip_curve(folder: Path) -> None:
    """ppo_numpy.py with large steps, with the clip and without, eight seeds each: docs/clip_curve.csv."""
    says = "With large steps: eight seeds with the clip reach 424 to 482, eight without it 9 to 441"
    drawing = Drawing(560, 304, says)
    rows = np.loadtxt(DOCS / "clip_curve.csv", delimiter=",", skiprows=1)
    curves = [(rows[:, 0], rows[:, column]) for column in range(1, rows.shape[1])]
    colors = ["blue"] * 8 + ["orange"] * 8
    draw_curves(drawing, curves, 0, 500, "environment steps; a line for each seed", colors)
    drawing.text(76, 52, "with the clip", "blue", 15, "start", bold=True)
    drawing.text(76, 74, "without it", "orange", 15, "start", bold=True)
    drawing.save(folder / "clip_curve.svg")


def how_many_seeds(folder: Path) -> None:
    """How often an unchanged script seems to improve, by rule and number of seeds: docs/how_many_seeds_shares.csv."""
    says = "How often an unchanged script seems to improve, by the rule that judges and the number of seeds"
    drawing = Drawing(560, 356, says)
    with open(DOCS / "how_many_seeds_shares.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    colors = {"best of three": "orange", "higher mean": "violet", "no overlap of ±": "green", "compared": "blue"}
    drawing.text(24, 18, "called an improvement, though nothing changed", "soft", 14, "start")
    for left, env_id in ((60, "CartPole-v1"), (330, "Acrobot-v1")):
        own = [row for row in rows if row["env_id"] == env_id]
        drawing.text(left + 95, 46, env_id, bold=True)
        for share in (0, 0.25, 0.5, 0.75):
            y = 256 - 240 * share
            drawing.line([(left, y), (left + 200, y)], "line", 1, "2 4")
            drawing.text(left - 8, y + 5, f"{share:.0%}", "soft", 13, "end")
        for i, row in enumerate(own):
            drawing.text(left + 10 + 45 * i, 278, row["seeds"], "soft", 14)
        drawing.text(left + 100, 300, "seeds", "soft", 14)
        for rule, color in colors.items():
            first = 2 if rule == "compared" else int(rule == "no overlap of ±")
            points = [(left + 10 + 45 * i, 256 - 240 * float(row[rule])) for i, row in enumerate(own)][first:]
            drawing.line(points, color, 2.5)
            for x, y in points:
                drawing.add("circle", style=f"fill: var(--{color})", cx=x, cy=round(y, 1), r=4)
    for (rule, color), x in zip(colors.items(), (24, 166, 296, 446)):
        drawing.line([(x, 336), (x + 20, 336)], color, 3)
        drawing.text(x + 26, 341, rule, color, 14, "start")
    drawing.save(folder / "how_many_seeds.svg")


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
        draw_curves(drawing, [(rows[:, 0], rows[:, 1])], low, high, "environment steps; one seed", [color])
        drawing.save(folder / f"{name}_curve.svg")


def recipe_curves(folder: Path) -> None:
    """The kept runs of each recipe, a picture for each environment."""
    runs = kept_runs("results", exp_name=gallery.EXP_NAME)
    for env_id, recipe in gallery.read_recipes().items():
        own = gallery.newest([run for run in runs if gallery.is_of(run, env_id, recipe)])
        grid = np.linspace(0, own[0].total, 101)
        curves = [(grid, curve(run.steps, run.returns, grid)) for run in own]
        values = np.array([values for _, values in curves])
        says = f"{env_id}: mean return of the last 100 episodes, five seeds, by steps"
        drawing = Drawing(560, 304, says)
        low, high = np.nanmin(values), np.nanmax(values)
        draw_curves(drawing, curves, low, high, "environment steps; a line for each of five seeds", ["blue"] * 5)
        drawing.save(folder / f"recipe_{env_id.replace('/', '_')}.svg")


def speed_bars(folder: Path) -> None:
    """How many times as fast as stable-baselines3 the scripts are, from benchmark/results/speed.json."""
    scripts = [
        ("ppo", "ppo.py", "CartPole"),
        ("ppo_numpy", "ppo_numpy.py", "CartPole"),
        ("ppo_continuous_action", "ppo_continuous_action.py", "HalfCheetah"),
        ("ppo_continuous_action_numpy", "ppo_continuous_action_numpy.py", "HalfCheetah"),
        ("ppo_atari_envpool", "ppo_atari_envpool.py", "Breakout"),
        ("ppo_atari", "ppo_atari.py", "Breakout"),
        ("ppo_lstm", "ppo_lstm.py", "RecurrentPPO on CartPole"),
        ("ppo_continuous_action_lstm", "ppo_continuous_action_lstm.py", "RecurrentPPO on HalfCheetah"),
        ("ppo_atari_lstm", "ppo_atari_lstm.py", "RecurrentPPO on Breakout"),
    ]
    measured = read_json("speed.json")
    drawing = Drawing(610, 44 + 44 * len(scripts), "Steps per second, as multiples of stable-baselines3's")
    left = 270
    unit = 34
    for i, (script, name, game) in enumerate(scripts):
        medians = measured[f"throughput/{script}"]["medians"]
        faster = max(("default threads", "1 thread"), key=lambda setting: medians[setting]["steps_per_second"])
        ratio = medians.get("against_ratios", medians["ratios"])[faster]  # at the defaults, without bf16
        y = 34 + 44 * i
        drawing.text(left - 10, y + 14, name, "ink", 14, "end")
        release = measured[f"throughput/{script}"]["release"]
        drawing.text(left - 10, y + 30, f"{game}, release {release}", "soft", 12, "end")
        drawing.box(left, y + 2, unit * ratio, 26, "blue-soft", "blue", 3)
        drawing.text(left + unit * ratio + 8, y + 20, f"{ratio:.1f}×", "blue", 15, "start", bold=True)
    drawing.line([(left + unit, 24), (left + unit, 30 + 44 * len(scripts))], "orange", 2, "5 4")
    drawing.text(left + unit, 16, "stable-baselines3 = 1", "orange", 14)
    drawing.save(folder / "speed_bars.svg")


ALL = (cartpole_curve, build_it_curve, clip_curve, how_many_seeds, other_curves, recipe_curves, speed_bars)

if __name__ == "__main__":
    formatter = argparse.RawDescriptionHelpFormatter
    argparse.ArgumentParser(description=__doc__, formatter_class=formatter).parse_args()  # --help
    for draw in ALL:
        draw(DOCS / "images")
