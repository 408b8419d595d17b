"""The README: short, its numbers are the measured ones, and its blocks run in the environment that they make."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import report
from helpers import packages, site_of
from test_docs import blocks, commands, fill_in_run, small

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
TEXT = README.read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_it_is_short():
    read = re.sub(r"<.+?>|\]\(\S+?\)|^\|[-|: ]+\|$|[|]", " ", TEXT, flags=re.S | re.M)  # as it is when it is rendered
    assert 600 < len(read.split()) <= 900


def test_its_tables_follow_from_what_is_kept():
    tables = {
        "summary": report.summary_table(report.load(report.RESULTS)),
        "short_speed": report.short_speed_table(report.RESULTS),
    }
    assert report.place_tables(TEXT, tables) == TEXT and all(table in TEXT for table in tables.values())
    assert tables["summary"].count("\n") > 6 and tables["short_speed"].count("\n") == 2 + 5


def test_its_numbers_are_the_measured_ones():
    ratios = re.findall(r"\| ([\d.]+)× \(", report.short_speed_table(report.RESULTS))
    words = " ".join(TEXT.split())
    assert f"{min(ratios, key=float)} to {max(ratios, key=float)} times the steps per second" in words
    measured = json.loads((report.RESULTS / "time_to_return" / "ppo_numpy.json").read_text())
    target = f"{measured['options']['target']:g} in {measured['median_seconds']:.1f} s from the launch"
    assert f"`ppo_numpy.py` brings {measured['options']['env_id'].partition('-')[0]} to {target}" in words
    details = (ROOT / "docs" / "details.md").read_text()
    tags = set(re.findall(r"^### .*?`((?:core|atari|cont|lstm|multi)-\d+)`", details, re.M))
    assert f"**{len(tags)} details**" in words
    sections = re.split(r"^### .*?`((?:core|atari|cont|lstm|multi)-\d+)`", details, flags=re.M)[1:]
    measured = ["\nWorth: not" not in text.split("\n### ")[0] for text in sections[1::2]]
    assert f"[what {sum(measured)} are worth](docs/ablations.md)" in words
    for name in ("torch", "gymnasium", "numpy"):
        (pin,) = (pin for pin in PROJECT["dependencies"] if re.match(rf"{name}[=\[]", pin))
        assert f"{name} {'.'.join(pin.partition('==')[2].split('.')[:2])}" in words
    workflow = (ROOT / ".github" / "workflows" / "test.yml").read_text()
    tested = re.findall(r'"(3\.\d+)"', workflow)
    assert f"Python {tested[0]} to {tested[-1]}" in words and PROJECT["requires-python"] == f">={tested[0]}"
    assert "make test" in workflow


def test_the_version_is_one():
    version = PROJECT["version"]
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
    newest = re.search(r"^## ([\d.]+), ([\d-]+)$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert newest[1] == version and f"\ndate-released: {newest[2]}\n" in (ROOT / "CITATION.cff").read_text()


def test_what_github_reads_has_the_fields_that_it_asks_for():
    yaml = pytest.importorskip("yaml")  # mkdocs brings it
    (job,) = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text())["jobs"].values()
    assert {"run": "make test"} in job["steps"] and len(job["strategy"]["matrix"]["python"]) == 3
    for name in ("bug", "question"):
        form = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / f"{name}.yml").read_text())
        assert {"name", "description", "body"} <= form.keys()
        fields = [part for part in form["body"] if part["type"] != "markdown"]
        assert len({part["id"] for part in fields}) == len(fields) >= 3
        assert all(part["attributes"]["label"] for part in fields)
        assert all(isinstance(x, str) for part in fields for x in part["attributes"].get("options", []))
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors", "version", "license"} <= citation.keys()


# -------------------------------------------------------------------------------------------------------------- Blocks


class Server:
    """Runs Python command lines where nothing is installed but these distributions; see docs_commands.py."""

    def __init__(self, folder, names):
        site = site_of(folder, names)
        command = [sys.executable, "-S", ROOT / "tests" / "docs_commands.py"]
        environment = os.environ | {"PYTHONPATH": str(site)}
        self.process = subprocess.Popen(command, stdin=-1, stdout=-1, text=True, env=environment)

    def __call__(self, argv, folder, env):
        output, errors = folder / "stdout", folder / "stderr"
        job = {"argv": argv, "folder": str(folder), "env": env, "output": str(output), "errors": str(errors)}
        print(json.dumps(job), file=self.process.stdin, flush=True)
        return int(self.process.stdout.readline()), output.read_text(), errors.read_text()


def alone(argv, folder, names):
    """The same in a process of its own, since docs_commands.py needs torch."""
    site = site_of(folder / "-".join(["site", *names])[:100], names)
    environment = os.environ | {"PYTHONPATH": str(site)}
    command = [sys.executable, "-S", *argv]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def clone(tmp_path):
    for name in ("cleanrl", "benchmark"):
        ignored = shutil.ignore_patterns("__pycache__", "results")
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignored)
    return tmp_path


@pytest.fixture
def python(tmp_path):
    """What `make train` leaves: requirements.txt."""
    pins = [pin.split("==")[0] for pin in (ROOT / "requirements.txt").read_text().split()]
    server = Server(tmp_path / "site-packages", pins)
    yield server
    server.process.stdin.close()
    server.process.wait(timeout=10)


def test_its_blocks_run_in_the_environment_that_they_make(clone, python):
    ran, needs = [], [re.split(r"[=\[]", pin)[0] for pin in PROJECT["dependencies"]]
    for command in [
        command for block in blocks(README) if block.language == "bash" for command in commands(block.text)
    ]:
        words = shlex.split(command)
        if words[0] == "make":
            recipe = subprocess.run(
                ["make", "-n", "--no-print-directory", words[1]], cwd=ROOT, capture_output=True, text=True, check=True
            ).stdout
            words = shlex.split(recipe.splitlines()[-1])
            assert words[0] == ".venv/bin/python"
            words[0] = "python"
        if words[:2] == ["source", ".venv/bin/activate"] or words[1:3] == ["-m", "pytest"]:
            continue
        if words[:3] == ["pip", "install", "-e"]:
            (extra,) = re.fullmatch(r"\.\[(.+)\]", words[3]).groups()
            needs += PROJECT["optional-dependencies"][extra]
        elif words[0] == "tensorboard":
            assert "tensorboard" in packages(*needs)
        elif words[:2] == ["uv", "run"]:
            head = (clone / words[2]).read_text().partition('# ///\n"""')[0]  # the inline metadata, PEP 723
            named = packages(*re.findall(r'^#   "(.+)",$', head, re.M))
            argv = small(words[2:], clone)
            status, _, errors = python(argv, clone, {}) if "torch" in named else alone(argv, clone, named)
            assert status == 0, f"{command}\n{errors}"
            ran.append(words[2])
        else:
            assert words[0] == "python", command
            argv = fill_in_run(words[1:], clone, python)
            tool = argv[0].startswith("benchmark/")
            status, output, errors = (
                alone(argv, clone, packages(*needs)) if tool else python(small(argv, clone), clone, {})
            )
            assert status == 0, f"{command}\n{output}\n{errors}"
            ran.append(argv[0])
    assert ran.count("cleanrl/ppo.py") > 5 and {"benchmark/report.py", "cleanrl/ppo_numpy.py"} <= set(ran)
    assert list(clone.glob("benchmark/agents/cartpole/checkpoints/*.mp4")) and list(clone.glob("report/index.html"))
