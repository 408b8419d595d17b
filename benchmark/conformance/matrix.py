"""Checks each library in an environment of its own and fills its row of the page's matrix.

    python benchmark/conformance/matrix.py            # all; some minutes, 2 GB in uv's cache
    python benchmark/conformance/matrix.py skrl_      # one, by the name of its adapter

Needs uv, which makes the environments (pip install uv). The rows of CleanRL and baselines are kept: they are lines
of source that were read.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
sys.path.append(str(FOLDER.parent))

from command_line import UserError, one_line_errors  # noqa: E402

PAGE = FOLDER.parents[1] / "docs" / "is-your-ppo-the-ppo.md"
LIBRARIES = {  # packages by adapter
    "sb3": "stable-baselines3==2.9.2",
    "sb3_contrib_": "sb3-contrib==2.9.2",
    "rsl_rl_": "rsl-rl-lib==5.5.1",
    "skrl_": "skrl==2.1.1",
    "tianshou_": "tianshou==2.0.1",
    "torchrl_": "torchrl==0.14.1",
    "rllib_": "ray[rllib]==2.60.0",
}
OTHERWISE = {  # what the adapter does, and what vectors can't see: the page explains it
    "torchrl_": {"gradient clip": "–", "Adam's ε": "–"},
    "rllib_": {
        "advantages": "**std of the rollout and of one row more for each episode**",
        "time limits": "**bootstrapped**",
    },
}


def run(adapter: str) -> tuple[str, dict]:
    """The library's name with its version, and what was found by option."""
    if shutil.which("uv") is None:
        raise UserError("uv is not installed: pip install uv")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "results.json"
        uv = ["uv", "run", "--quiet", "--no-project", "--isolated", "--python", sys.executable]
        packages = ["--with", "torch==2.13.0", "--with", "gymnasium", "--with", LIBRARIES[adapter]]
        check = [FOLDER / "check.py", "--adapter", FOLDER / "adapters" / f"{adapter}.py", "--json", file]
        words = [*uv, *packages, "python", *map(str, check)]
        subprocess.run(words, env=os.environ | {"OMP_NUM_THREADS": "1"}, check=False)
        if not file.is_file():
            raise UserError(f"{adapter}: the check gave no results; it says why above", status=1)
        whole = json.loads(file.read_text("utf-8"))
    found = {}
    for result in whole["results"]:
        found[result["option"]] = result["found"] | found.get(result["option"], {})
    return whole["name"], found


def cell(found: dict, detail: str) -> str:
    """The default's finding, and those of the options that differ from it."""
    texts = []
    for option, of_option in found.items():
        finding = of_option.get(detail, "")
        if detail == "time limits" and not finding:
            finding = of_option.get("advantages and returns", "")
        text = finding if finding in ("", "same") else f"**{finding}**"
        if text and text not in [other.rpartition("`: ")[2] for other in texts]:
            texts.append(f"`{option}`: {text}" if option else text)
    return "; ".join(texts) or "–"


def row(name: str, findings: dict[str, str]) -> str:
    """The library's row, from a finding for each detail: what differs, what is the same, what wasn't compared."""
    differs = [f"{detail}: {text}" for detail, text in findings.items() if "**" in text]
    same = [detail for detail, text in findings.items() if "same" in text and "**" not in text]
    missing = [detail for detail, text in findings.items() if text == "–"]
    cells = [name, "<br>".join(differs), ", ".join(same), ", ".join(missing)]
    return f"| {' | '.join(text or '–' for text in cells)} |"


def fill(adapter: str, name: str, found: dict) -> None:
    """Writes a row of the page; the details are those of the table above it."""
    before, begin, rest = PAGE.read_text("utf-8").partition("<!-- matrix -->\n\n")
    table, end, after = rest.partition("\n\n<!-- end of matrix -->")
    ours = before.rpartition("| detail | this project |\n|---|---|\n")[2].strip()
    details = [line[2:].partition(" | ")[0] for line in ours.splitlines()]
    findings = {detail: cell(found, detail) for detail in details} | OTHERWISE.get(adapter, {})
    rows = table.splitlines()
    place = next(k for k, line in enumerate(rows) if line.startswith(f"| {name.partition(' ')[0]} "))
    rows[place] = row(name, findings)
    PAGE.write_text(before + begin + "\n".join(rows) + end + after, "utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("adapter", nargs="*", help=f"all, if none is named: {', '.join(LIBRARIES)}")
    args = parser.parse_args()
    unknown = [name for name in args.adapter if name not in LIBRARIES]
    if unknown:
        raise UserError(f"{' '.join(unknown)}: not a library's adapter; there are {', '.join(LIBRARIES)}")
    for adapter in args.adapter or LIBRARIES:
        fill(adapter, *run(adapter))
    return 0


if __name__ == "__main__":
    with one_line_errors():
        sys.exit(main())
