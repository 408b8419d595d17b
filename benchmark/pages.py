"""How results are shown: numbers, Markdown tables, and pictures."""

import io
from pathlib import Path

import numpy as np
from files import write_atomically


def signed(number: float) -> str:
    """Two digits after the point, with a minus sign as print has it."""
    return f"{number:.2f}".replace("-", "−")


def spread(results: list[float]) -> str:
    """Mean ± standard deviation over seeds, of one seed the number alone."""
    if len(results) == 1:
        return signed(results[0])
    return f"{signed(float(np.mean(results)))} ± {np.std(results, ddof=1):.2f}"


def between(low: float, high: float) -> str:
    """An interval as a cell."""
    if not np.isfinite(low):
        return "–"
    return f"[{signed(low)}, {signed(high)}]"


def markdown(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [f"| {' | '.join(header)} |", f"|{'---|' * len(header)}"]
    for row in rows:
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines) + "\n"


def pictures():
    """matplotlib.pyplot for pictures that can be read on light and on dark pages: no background, gray text."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    gray = ("text.color", "axes.labelcolor", "axes.edgecolor", "axes.titlecolor", "xtick.color", "ytick.color")
    plt.rcParams.update(dict.fromkeys((*gray, "grid.color"), "#808080"))
    plt.rcParams.update({"axes.grid": True, "axes.axisbelow": True, "grid.alpha": 0.3, "legend.framealpha": 0})
    plt.rcParams.update({"axes.spines.top": False, "axes.spines.right": False})
    plt.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "ppo"})  # the reader's font; the same file again
    return plt


def save_picture(figure, path: Path) -> None:
    """Writes the figure as an SVG and closes it."""
    import matplotlib.pyplot as plt

    figure.tight_layout()
    content = io.BytesIO()
    figure.savefig(content, format="svg", transparent=True, metadata={"Date": None})
    write_atomically(path, content.getvalue())
    plt.close(figure)
