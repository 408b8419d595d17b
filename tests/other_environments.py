"""Tries other people's environments as a new user would, and fills the table of docs/other-environments.md.

    make test-environments
    python tests/other_environments.py --only vizdoom crafter    # fills nothing

tests/other_environments.toml lists packages and commands. uv installs them, into one virtual environment; packages that
change Gymnasium or MuJoCo have one of their own. Each command trains for some thousand steps, with a video if the
environment can be filmed, and its agent is evaluated. The status is 1 if something happens that the list doesn't say.
"""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

import tyro

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "docs" / "build"))
import blocks  # noqa: E402
from command_line import UserError, one_line_errors  # noqa: E402
from pages import markdown  # noqa: E402

LIST = Path(__file__).with_suffix(".toml")
PAGE = ROOT / "docs" / "other-environments.md"
ATARI = ("ale-py", "opencv-python-headless")  # what ppo_atari.py needs besides requirements.txt


@dataclass
class Args:
    only: tuple[str, ...] = ()  # packages to try; by default all, and then the page's table is filled
    steps: int = 2048  # of each training
    minutes: int = 15  # that a training or an evaluation may take
    folder: Path = ROOT / ".venv" / "others"  # where the virtual environments are; uv is in its bin


def type_in(words: list, folder: Path, minutes: int, env: dict | None = None) -> tuple[int, str]:
    """Types a command. Returns its status and what it wrote to stderr; ends its whole family when the time is over."""
    options = {"cwd": folder, "env": env, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(list(map(str, words)), start_new_session=True, **options)
    try:
        _, stderr = process.communicate(timeout=60 * minutes)
        return process.returncode, stderr
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return 1, f"no end in {minutes} minutes"


def install(environment: dict, args: Args) -> tuple[Path, str]:
    """Installs the package, once. Returns its virtual environment, and why it can't be had or ""."""
    package = environment["package"]
    folder = args.folder / (package if environment.get("own") else "shared")
    done = folder / f"installed-{package}"
    if done.is_file():
        return folder, done.read_text("utf-8")
    uv = shutil.which("uv", path=f"{args.folder / 'bin'}{os.pathsep}{os.environ['PATH']}")
    into = [uv, "pip", "install", "--python", folder]
    steps = [[*into, package]]
    if "then" in environment:
        steps.append([*into, environment["then"]])
    if not folder.is_dir():
        steps.insert(0, [uv, "venv", "--python", sys.executable, folder])
        steps.insert(1, [*into, "-r", ROOT / "requirements.txt", *ATARI])
    for step in steps:
        status, stderr = type_in(step, args.folder, args.minutes)
        if status != 0:
            lines = [line for line in stderr.splitlines() if "rror:" in line]
            done.write_text(lines[0] if lines else stderr[-200:], "utf-8")
            return folder, done.read_text("utf-8")
    done.touch()
    return folder, ""


def version(environment: dict, args: Args) -> str:
    """The package's version in its virtual environment, "" if it isn't there."""
    folder, _ = install(environment, args)
    name = environment["package"]
    code = f"import importlib.metadata as m; print(m.version({name!r}))"
    done = subprocess.run([folder / "bin" / "python", "-c", code], capture_output=True, text=True)
    return done.stdout.strip()


def complaint(script: str, stderr: str) -> str:
    """The line with which the script ended; if it has none, the last line of a traceback, marked as one."""
    lines = stderr.strip().splitlines() or ["nothing was said"]
    for line in lines:
        if line.startswith(f"{script}: error: "):
            return line.removeprefix(f"{script}: error: ")
    return f"TRACEBACK {lines[-1]}" if "Traceback" in stderr else f"UNCLEAR {lines[-1]}"


def try_one(environment: dict, args: Args) -> tuple[bool, str]:
    """Trains and evaluates. Returns whether it went as the list says, and what happened."""
    folder, missing = install(environment, args)
    if missing:
        return environment.get("missing", "\n") in missing, f"can't be installed: {missing}"
    work = args.folder / "work" / environment["package"]
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    script, *words = shlex.split(environment["command"])
    env = {**os.environ, "OMP_NUM_THREADS": "1"}  # more threads crawl where cores are shared
    if "module" in environment:
        (work / "mine.py").write_text(environment["module"].lstrip(), "utf-8")
    program = [folder / "bin" / "python", ROOT / "cleanrl" / script]
    video = [] if "film" in environment else ["--capture-video"]
    training = [*program, *words, "--total-timesteps", args.steps, *video]
    status, stderr = type_in(training, work, args.minutes, env)
    runs = sorted(work.glob("runs/*"))
    if status != 0:
        said = complaint(script, stderr).replace(f"{folder}/", "")
        if said.startswith("--env-id "):
            said = said.partition("}: ")[2]  # after the arguments
        expected = environment.get("says")
        as_listed = status == 2 and expected is not None and expected in said and not runs
        return as_listed, said
    if video and not list(work.glob("runs/*/videos/*.mp4")):
        return False, f"no video: {complaint(script, stderr)}"
    status, stderr = type_in([*program, "--evaluate", runs[0], "--episodes", 1], work, args.minutes, env)
    if status != 0:
        return False, f"--evaluate: {complaint(script, stderr)}"
    return "says" not in environment, "works" if video else f"works; no video: {environment['film']}"


SHORT = {  # what the long messages on spaces come to, by a part of each
    "MultiDiscrete actions; use": "MultiDiscrete actions: use `ppo_multidiscrete.py`",
    "no script takes Tuple actions": "Tuple actions: no script",
    "has Discrete actions; use": "the pictures are in a Dict: see `mine.py`",
}


def table(rows: list[list[str]]) -> str:
    """Markdown; what doesn't work is at the end."""
    shown = []
    for package, command, result in sorted(rows, key=lambda row: not row[2].startswith("works")):
        found = [text for part, text in SHORT.items() if part in result]
        if found:
            result = found[0]
        elif not result.startswith("works"):
            result = f"`{result.replace('`', '')}`"
        shown.append([package, f"`{command}`", result])
    return markdown(["package", "command, after `python cleanrl/`", "result"], shown)


def modules(environments: list[dict]) -> str:
    """The files mine.py, folded."""
    text = ""
    for environment in environments:
        if "module" in environment:
            title = f"<details markdown><summary>mine.py for {environment['package']}</summary>"
            text += f'{title}\n\n```python title="mine.py"\n{environment["module"].lstrip()}```\n\n</details>\n\n'
    return text


def main(args: Args) -> int:
    environments = tomllib.loads(LIST.read_text("utf-8"))["environment"]
    known = {environment["package"] for environment in environments}
    for name in args.only:
        if name not in known:
            raise UserError(f"--only {name}: is not in {LIST.name}")
    chosen = [environment for environment in environments if not args.only or environment["package"] in args.only]
    args.folder.mkdir(parents=True, exist_ok=True)
    rows = []
    failed = 0
    for environment in chosen:
        as_listed, result = try_one(environment, args)
        failed += not as_listed
        name = f"{environment['package']} {version(environment, args)}".strip()
        name += f", {environment['then']}" if "then" in environment else ""
        rows.append([name, environment["command"], result])
        print("as listed" if as_listed else "NOT AS LISTED", *rows[-1], sep=" | ", flush=True)
    if not args.only:
        blocks.fill(PAGE, "environments", table(rows))
        blocks.fill(PAGE, "modules", modules(environments))
    print(f"{len(rows) - failed} of {len(rows)} as listed")
    return int(failed > 0)


if __name__ == "__main__":
    with one_line_errors():
        sys.exit(main(tyro.cli(Args, description=__doc__)))
