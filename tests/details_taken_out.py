"""For each detail: the tests that docs/details.md names pass, and with the detail taken out one of them fails.

`make test-details` runs it, on copies of the repository in which the diffs of benchmark/ablations are applied.
"""

import itertools
import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree
from pathlib import Path

import ablate
import pytest

ROOT = Path(__file__).parents[1]
ABLATIONS = ablate.all_ablations()
TAKEN_OUT = [name for name, one in ABLATIONS.items() if one.diff.is_file()]


def named_tests() -> dict[str, list[str]]:
    """By tag: the tests that its section of docs/details.md links, [`test_name`](../tests/test_file.py#L1), as pytest
    takes them."""
    found = {}
    tag = ""
    for line in (ROOT / "docs" / "details.md").read_text("utf-8").splitlines():
        if line.startswith("#"):
            tag = line.partition('id="')[2].partition('"')[0]
        links = line.split("](../tests/")
        for before, after in itertools.pairwise(links):
            test = before.rpartition("[`")[2].removesuffix("`")
            file = after.partition("#")[0]
            if test.startswith("test_") and f"tests/{file}::{test}" not in found.setdefault(tag, []):
                found[tag].append(f"tests/{file}::{test}")
    return found


def run_tests(tests: list[str], sources: dict[str, str], folder: Path) -> tuple[int, list[str]]:
    """How many tests ran, and where and how those that failed ended, on a copy of the repository in which these scripts
    have these sources."""
    copy = folder / "repository"
    for part in ("cleanrl", "tests"):
        shutil.copytree(ROOT / part, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
    for part in ("pyproject.toml", "benchmark", "docs", "README.md"):
        (copy / part).symlink_to(ROOT / part)
    for script, source in sources.items():
        (copy / "cleanrl" / f"{script}.py").write_text(source, "utf-8")
    options = f"-q -p no:cacheprovider -p no:xdist --rootdir={copy} --junitxml={folder / 'ends.xml'}".split()
    command = [sys.executable, "-m", "pytest", *options, *tests]
    done = subprocess.run(command, cwd=copy, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    cases = list(xml.etree.ElementTree.parse(folder / "ends.xml").iter("testcase"))
    ends = [end.text.splitlines()[-1] for case in cases for end in [*case.iter("failure"), *case.iter("error")]]
    return len(cases), ends


def test_every_detail_is_taken_out_and_names_its_tests():
    tags = {ABLATIONS[name].tag for name in TAKEN_OUT}
    assert tags == {tag for tag, tests in named_tests().items() if tests}
    numbered = [tag for tag in tags if tag.partition("-")[0] in ("core", "atari", "cont", "lstm", "multi")]
    assert len(numbered) == 37


def test_the_named_tests_pass(tmp_path):
    tests = sorted({test for one in named_tests().values() for test in one})
    count, ends = run_tests(tests, {}, tmp_path)
    assert count >= len(tests)
    assert not ends


@pytest.mark.parametrize("name", TAKEN_OUT)
def test_a_test_fails_without_the_detail(name, tmp_path):
    """By a line of its own: a script that can't run proves nothing."""
    ablation = ABLATIONS[name]
    sources = {script: ablate.changed(ablation, script) for script in ablate.hunks(ablation.diff)}
    _, ends = run_tests(named_tests()[ablation.tag], sources, tmp_path)
    assert any("tests/" in end for end in ends), f"{name}.diff: {ends or 'no test fails'}"
