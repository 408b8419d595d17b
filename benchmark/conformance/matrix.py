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
    return json.loads(rows.read_text("utf-8")) | {"packages": packages}


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


if __name__ == "__main__":
    main()
