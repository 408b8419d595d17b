"""Makes a virtual environment for each library, checks its adapter there, and fills the matrix of the page.

    python benchmark/conformance/matrix.py            # all; some minutes, 2 GB in .venv/conformance
    python benchmark/conformance/matrix.py skrl       # one
    python benchmark/conformance/matrix.py --page     # the page alone, from matrix.json

uv installs the packages; without one on PATH it is installed into a virtual environment of its own.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]
ENVIRONMENTS = ROOT / ".venv" / "conformance"
RESULTS = FOLDER / "matrix.json"
PAGE = ROOT / "docs" / "is-your-ppo-the-ppo.md"
COMMON = ["torch==2.13.0", "gymnasium"]
LIBRARIES = {  # by column: the adapter and the packages
    "stable-baselines3": ("sb3", ["stable-baselines3==2.9.2"]),
    "sb3-contrib": ("sb3_contrib_", ["sb3-contrib==2.9.2", "stable-baselines3==2.9.2"]),
    "rsl_rl": ("rsl_rl_", ["rsl-rl-lib==5.5.1"]),
    "rsl_rl, older": ("rsl_rl_", ["rsl-rl-lib==5.4.1"]),
    "skrl": ("skrl_", ["skrl==2.1.1"]),
    "Tianshou": ("tianshou_", ["tianshou==2.0.1"]),
    "TorchRL": ("torchrl_", ["torchrl==0.14.1"]),
    "RLlib": ("rllib_", ["ray[rllib]==2.60.0"]),
}


def find_uv() -> str:
    found = shutil.which("uv")
    if found:
        return found
    uv = ENVIRONMENTS / "uv" / "bin" / "uv"
    if not uv.exists():
        subprocess.run([sys.executable, "-m", "venv", uv.parents[1]], check=True)
        subprocess.run([uv.parent / "python", "-m", "pip", "install", "--quiet", "uv"], check=True)
    return str(uv)


def make_environment(name: str, packages: list[str]) -> str:
    """The Python of a virtual environment with these packages; it is made once."""
    folder = ENVIRONMENTS / name.replace(",", "").replace(" ", "_")
    python = folder / "bin" / "python"
    if not (folder / "done").exists():
        uv = find_uv()
        overrides = ENVIRONMENTS / "overrides.txt"  # no package may ask for another torch
        overrides.parent.mkdir(parents=True, exist_ok=True)
        overrides.write_text("torch==2.13.0\n", "utf-8")
        variables = dict(os.environ)
        if "PIP_FIND_LINKS" in variables:
            variables.setdefault("UV_FIND_LINKS", variables["PIP_FIND_LINKS"])
        subprocess.run([uv, "venv", "--quiet", "--clear", "--python", sys.executable, folder], check=True)
        install = [uv, "pip", "install", "--quiet", "--python", folder, "--overrides", overrides]
        subprocess.run([*install, *COMMON, *packages], check=True, env=variables)
        (folder / "done").touch()
    return str(python)


def run(column: str) -> dict:
    """The cells of a column, by option and detail, and the versions they hold for."""
    adapter, packages = LIBRARIES[column]
    python = make_environment(column, packages)
    rows = ENVIRONMENTS / "rows.json"
    rows.parent.mkdir(parents=True, exist_ok=True)
    rows.unlink(missing_ok=True)
    command = [python, FOLDER / "check.py", "--adapter", FOLDER / "adapters" / f"{adapter}.py", "--json", rows]
    subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": "1", "RAY_AUTH_MODE": "disabled"}, check=False)
    result = json.loads(rows.read_text("utf-8"))
    options = {}
    for row in result["rows"]:
        options.setdefault(row["option"], []).append(row)
    cells = {option: {detail: cell(mine, detail) for detail in DETAILS} for option, mine in options.items()}
    return {"name": result["name"], "packages": packages, "cells": cells}


# ------------------------------------------------------------------------------------------------------------- The page
DETAILS = {  # rows of the matrix: the switch of a vector, the row of a training, and what "same" means
    "time limits": ("time limits", "plus-1 time limits", "as an end"),
    "advantages": ("advantages", "core-7 advantages", "population std of the minibatch"),
    "policy loss": ("policy loss", "core-8 policy loss", "clipped"),
    "value loss": ("value loss", "core-9 value loss", "the larger of the plain and the clipped"),
    "value scale": ("value scale", "core-10 value scale", "½"),
    "entropy bonus": ("entropy bonus", "core-10 entropy bonus", "mean entropy"),
    "gradient clip": ("gradient clip", "core-11 gradient clip", "joint"),
    "Adam's ε": ("Adam's epsilon", "core-3 Adam", "1e-5"),
    "learning rate": (None, "core-4 annealed rate", "annealed to 0"),
    "minibatches": (None, "core-6 minibatches", "drawn anew in each epoch"),
    "observations": (
        None, "atari-9 cont-6 cont-7 observations", "normalized by statistics that all environments share",
    ),
    "first ratio": (None, "first ratio is 1", "1"),
}  # fmt: skip
SHORT = {
    "value of the next episode": "flows on into the next episode", "value of the current observation": "V(s) of before",
    "bootstrap": "bootstrapped", "1e-08": "1e-8", "rollout's sample std": "sample std of the rollout",
    "clipped value alone": "clipped alone",
    "update after each rollout, clip inf, first count 0.0, epsilon 0.01, epsilon is outside":
        "statistics change after each rollout, ε 0.01 outside the root, no clip",
    "in no way that is known": "statistics change while the first epoch learns",
    "an update's epochs have the same minibatches": "the same in each epoch",
    "0.95 at first, 0 at last": "from 0.95 to 0",
}  # fmt: skip
OTHERWISE = {  # what vectors can't see: show.py shows the first; the user writes the others, or the adapter does
    ("RLlib", "advantages"): "**std of the rollout and of one row more for each episode**",
    ("TorchRL", "gradient clip"): "–",
}


def said(row: dict, detail: str) -> str:
    """What a training's row says, as the page says it."""
    if row["verdict"] == "not there" or (row["verdict"] == "same" and row["note"] == "raw"):
        return ""
    if row["verdict"] == "same":
        return "same"
    if detail == "Adam's ε":
        return "1e-8"
    if detail == "first ratio":
        return row["note"].rpartition("ratio is ")[2]
    says, _, more = row["note"].removeprefix("normalized, ").partition(" (")[0].partition(";")[0].partition(": ")
    says = more if says == "changes in another way" else says
    return SHORT.get(says, says)


def cell(rows: list[dict], detail: str) -> str:
    """What the rows of an option say of a detail; empty if they don't."""
    switch, training, _ = DETAILS[detail]
    trained = {row["what"].removeprefix("training: "): row for row in rows if row["what"].startswith("training: ")}
    if training in trained:
        return said(trained[training], detail)
    if trained:
        return "same" if detail == "time limits" and "core-7 advantages" in trained else ""
    vector = "time limits as ends" if detail == "time limits" else "three epochs, Discrete"
    for row in rows:
        if row["what"] == vector and row["found"] is not None and switch:
            choice = str(row["found"].get(switch, "same"))
            return SHORT.get(choice, choice)
    return ""


def cells(of_options: dict, detail: str) -> str:
    """The default's cell, and those of the options that differ from it."""
    (_, first), *others = [(option, found[detail]) for option, found in of_options.items()]
    text = [f"**{first}**" if first not in ("same", "") else first]
    last = first
    for option, other in others:
        if other and other not in (first, last):
            last = other
            text.append(f"`{option}`: {other if other == 'same' else f'**{other}**'}")
    return "; ".join(part for part in text if part) or "–"


def table(results: dict) -> str:
    """The matrix in Markdown."""
    pinned = results["pinned"]
    columns = [name for name in LIBRARIES if name in results["libraries"] and name != "rsl_rl, older"]
    libraries = {name: results["libraries"][name] for name in columns}
    heads = [library["name"].removesuffix(", MaskablePPO") for library in libraries.values()]
    lines = ["| | this project | " + " | ".join([*heads, *pinned]) + " |", "|---" * (len(heads) + 4) + "|"]
    for detail, (_, _, same) in DETAILS.items():
        line = [detail, same]
        line += [OTHERWISE.get((name, detail)) or cells(one["cells"], detail) for name, one in libraries.items()]
        for one in pinned.values():
            choice, where = one["cells"].get(detail, ("–", ""))
            link = f"https://github.com/{one['repository']}/blob/{one['commit']}/{where}"
            text = choice if choice in ("same", "–") or choice == same else f"**{choice}**"
            line.append(f"[{text}]({link})" if where else text)
        lines.append("| " + " | ".join(line) + " |")
    return "\n".join(lines)


def write_page(results: dict) -> None:
    before, begin, rest = PAGE.read_text("utf-8").partition("<!-- matrix -->\n")
    _, end, after = rest.partition("\n<!-- end of matrix -->")
    assert begin and end, "the page has no place for the matrix"
    PAGE.write_text(f"{before}{begin}\n{table(results)}\n{end}{after}", "utf-8")


def main() -> None:
    words = sys.argv[1:]
    results = json.loads(RESULTS.read_text("utf-8"))  # "pinned" are lines of sources that were read, not run
    if words != ["--page"]:
        for column in words or LIBRARIES:
            if column not in LIBRARIES:
                sys.exit(f"matrix.py: error: {column}: there are {', '.join(LIBRARIES)}")
            results["libraries"][column] = run(column)
            RESULTS.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", "utf-8")
    write_page(results)


if __name__ == "__main__":
    main()
