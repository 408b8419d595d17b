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
LIBRARIES = {  # by column: the adapter and the packages; without packages it runs in this Python
    "this project": ("ours", []),
    "numpy scripts": ("ours_numpy", []),
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
    """The rows of check.py for a column, and the versions they hold for."""
    adapter, packages = LIBRARIES[column]
    python = make_environment(column, packages) if packages else sys.executable
    rows = ENVIRONMENTS / "rows.json"
    rows.parent.mkdir(parents=True, exist_ok=True)
    rows.unlink(missing_ok=True)
    command = [python, FOLDER / "check.py", "--adapter", FOLDER / "adapters" / f"{adapter}.py", "--json", rows]
    subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": "1", "RAY_AUTH_MODE": "disabled"}, check=False)
    result = json.loads(rows.read_text("utf-8")) | {"packages": packages}
    counts = {verdict: sum(row["verdict"] == verdict for row in result["rows"]) for verdict in ("same", "differs")}
    if not packages:  # the page's first column says what "same" means
        result["rows"] = [row for row in result["rows"] if row["verdict"] == "differs"]
    return result | counts


# ------------------------------------------------------------------------------------------------------------- The page
DETAILS = {  # rows of the matrix: the switch of reference.py or the row of the training; and what "same" means
    "time limits": ("time limits", "as an end"),
    "advantages": ("advantages", "population std of the minibatch"),
    "policy loss": ("policy loss", "clipped"),
    "value loss": ("value loss", "the larger of the plain and the clipped"),
    "value scale": ("value scale", "½"),
    "entropy bonus": ("entropy bonus", "mean entropy"),
    "gradient clip": ("gradient clip", "joint"),
    "Adam's ε": ("core-3 Adam", "1e-5"),
    "learning rate": ("core-4 annealed rate", "annealed to 0"),
    "minibatches": ("core-6 minibatches", "drawn anew in each epoch"),
    "observations": ("atari-9 cont-6 cont-7 observations", "normalized by statistics that all environments share"),
    "first ratio": ("first ratio is 1", "1"),
}
SHORT = {
    "value of the next episode": "flows on into the next episode", "value of the current observation": "V(s) of before",
    "bootstrap": "bootstrapped", "rollout's sample std": "sample std of the rollout",
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
FROM_TRAINING = ("Adam's ε", "learning rate", "minibatches", "observations", "first ratio")


def cell(rows: list[dict], option: str, detail: str) -> str:
    """What the rows of an option say of a detail; empty if they don't."""
    mine = [row for row in rows if row["option"] == option]
    wanted, _ = DETAILS[detail]
    for row in mine:
        if row["what"] == f"training: {wanted}":
            if detail == "observations" and row["note"] == "raw":
                return ""
            if row["verdict"] == "differs" and wanted == "core-3 Adam":
                return "1e-8"
            if row["verdict"] == "differs" and wanted == "first ratio is 1":
                return row["note"].rpartition("ratio is ")[2]
            if row["verdict"] == "differs":
                says, _, more = row["note"].removeprefix("normalized, ").partition(";")[0].partition(": ")
                says = more if says == "changes in another way" else says
                return SHORT.get(says, says)
            return row["verdict"] if row["verdict"] == "same" else ""
    if detail == "time limits" and any(row["what"] == "time limits as ends" for row in mine):
        mine = [row for row in mine if row["what"] == "time limits as ends"]
    trainings = [row["found"] for row in mine if row["found"] is not None and row["what"].startswith("training")]
    updates = [row["found"] for row in mine if row["found"] is not None and row["what"] == "three epochs, Discrete"]
    gaes = [row["found"] for row in mine if row["found"] is not None and row["what"] == "time limits as ends"]
    for found in trainings or (gaes if detail == "time limits" else updates):
        if detail == "Adam's ε":
            return "1e-8" if "Adam's epsilon" in found else ""
        if detail in FROM_TRAINING:
            return ""
        choice = found.get(wanted, "same")
        return SHORT.get(choice, choice)
    return ""


def cells(rows: list[dict], detail: str) -> str:
    """The default's cell, and those of the options that differ from it."""
    options = list(dict.fromkeys(row["option"] for row in rows))
    first = cell(rows, options[0], detail)
    text = [f"**{first}**" if first not in ("same", "") else first]
    last = first
    for option in options[1:]:
        other = cell(rows, option, detail)
        if other and other not in (first, last):
            last = other
            text.append(f"`{option}`: {other if other == 'same' else f'**{other}**'}")
    return "; ".join(part for part in text if part) or "–"


def table(results: dict) -> str:
    """The matrix in Markdown."""
    pinned = json.loads((FOLDER / "pinned.json").read_text("utf-8"))
    columns = [name for name in LIBRARIES if name in results and name not in ("numpy scripts", "rsl_rl, older")]
    heads = [results[name]["name"].removesuffix(", MaskablePPO") for name in columns[1:]]
    lines = ["| | this project | " + " | ".join([*heads, *pinned]) + " |", "|---" * (len(columns) + 3) + "|"]
    for detail, (_, same) in DETAILS.items():
        line = [detail, same]
        line += [OTHERWISE.get((name, detail)) or cells(results[name]["rows"], detail) for name in columns[1:]]
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
    results = json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else {}
    if words != ["--page"]:
        for column in words or LIBRARIES:
            if column not in LIBRARIES:
                sys.exit(f"matrix.py: error: {column}: there are {', '.join(LIBRARIES)}")
            results[column] = run(column)
            text = ",\n".join(f'"{name}": {json.dumps(results[name])}' for name in LIBRARIES if name in results)
            RESULTS.write_text("{" + text.replace("}, {", "},\n{") + "}\n", "utf-8")
    write_page(results)


if __name__ == "__main__":
    main()
