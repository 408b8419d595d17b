"""Details taken out: the tests that docs/details.md names for a detail are run on a copy of the repository in which
benchmark/ablations/ has changed a script, and have to fail there."""

import json
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

import ablate
import pytest
from children import CHILDREN

ROOT = Path(__file__).parents[1]
ABLATIONS = ablate.manifest()[0]
FAILURE = re.compile("(AssertionError|Failed) in its call")  # by what a test asserts, not by a script that can't run
TEST_LINK = re.compile(r"\[`(test_\w+)`\]\(\.\./tests/(test_\w+\.py)#L\d+\)")


def named_tests() -> dict[str, list[str]]:
    """By tag: the tests that its section of docs/details.md links, as pytest takes them."""
    parts = re.split(r"^### .*?\b([a-z]+-\d+|impala)\b.*\n", (ROOT / "docs" / "details.md").read_text(), flags=re.M)
    sections = zip(parts[1::2], parts[2::2], strict=True)
    return {tag: [f"tests/{file}::{test}" for test, file in TEST_LINK.findall(section)] for tag, section in sections}


class Recorder:
    """A plugin of pytest that takes down how each test ended: None, or what it raised."""

    def __init__(self, until_one_fails: bool):
        self.until_one_fails, self.ends = until_one_fails, {}

    def pytest_runtest_makereport(self, item, call):
        end = call.excinfo and f"{call.excinfo.typename} in its {call.when}: {call.excinfo.value}"
        self.ends[item.nodeid] = self.ends.get(item.nodeid) or end
        if self.until_one_fails and end and FAILURE.match(end):
            item.session.shouldstop = "one is enough"


def run_tests(tests: list[str], sources: dict[str, str], until_one_fails: bool = False) -> dict[str, str | None]:
    """How the tests end on a copy of the repository in which these scripts have these sources."""
    with tempfile.TemporaryDirectory() as folder:
        ends = Path(folder) / "ends.json"
        child = CHILDREN.Process(target=run_in_copy, args=(Path(folder), tests, sources, until_one_fails, ends))
        child.start()
        child.join()
        if not ends.is_file():
            raise RuntimeError((Path(folder) / "output").read_text())
        return json.loads(ends.read_text())


def run_in_copy(folder: Path, tests: list[str], sources: dict[str, str], until_one_fails: bool, ends: Path) -> None:
    output = os.open(folder / "output", os.O_WRONLY | os.O_CREAT)
    for descriptor in (1, 2):
        os.dup2(output, descriptor)
    sys.stdout, sys.stderr, sys.dont_write_bytecode = open(1, "w"), open(2, "w"), True
    copy = folder / "repository"
    for part in ("cleanrl", "tests"):
        shutil.copytree(ROOT / part, copy / part)  # with what Python and pytest have compiled
    for part in ("pyproject.toml", "benchmark", "docs", "README.md"):
        (copy / part).symlink_to(ROOT / part)
    for script, source in sources.items():
        (copy / "cleanrl" / f"{script}.py").write_text(source)
    sys.path[:] = [path for path in sys.path if not f"{path}/".startswith((f"{ROOT}/cleanrl/", f"{ROOT}/tests/"))]
    os.chdir(copy)
    recorder = Recorder(until_one_fails)
    pytest.main(["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--rootdir", str(copy), *tests], plugins=[recorder])
    ends.write_text(json.dumps(recorder.ends))


def assert_taken_out(name: str) -> None:
    """A test that docs/details.md names for the detail fails when the detail is taken out."""
    ablation = ABLATIONS[name]
    sources = {script: ablate.changed(ablation, script) for script in ablate.hunks(ablation.diff)}
    ends = run_tests(named_tests()[ablation.tag], sources, until_one_fails=True)
    assert any(end and FAILURE.match(end) for end in ends.values()), f"{name}.diff: no test fails: {ends}"
