"""The scripts are one family, and the checker notices where they stop being one."""

import shutil
import subprocess
from pathlib import Path

import check_variants
import every_script
import pytest

ROOT = Path(__file__).parents[1]
LOSS = "        advantages = (advantages - advantages.mean()) / (advantages.std(correction=0) + 1e-8)\n"


def test_the_scripts_agree(capsys):
    assert check_variants.main([]) == 0, capsys.readouterr().out


def lacking(name: str, root: Path = ROOT) -> list[str]:
    """What a script of cleanrl/ must have beside it and hasn't."""
    parts = {
        "a line in SCRIPTS of tests/check_variants.py": name in check_variants.SCRIPTS,
        "a line in OPTIONS of tests/every_script.py": name in every_script.OPTIONS,
        f"a page, docs/{name}.md": (root / "docs" / f"{name}.md").is_file(),
        "a line in mkdocs.yml": f" {name}.md\n" in (root / "mkdocs.yml").read_text("utf-8"),
        "a link in the README": f"docs/{name}.md" in (root / "README.md").read_text("utf-8"),
        f"its sweep, benchmark/{name}.sh": (root / "benchmark" / f"{name}.sh").is_file(),
    }
    return [part for part, is_there in parts.items() if not is_there]


@pytest.mark.parametrize("name", every_script.SCRIPTS)
def test_a_script_has_all_that_belongs_to_it(name):
    assert not lacking(name), f"cleanrl/{name}.py lacks {'; '.join(lacking(name))}"


def test_what_a_new_script_lacks_is_named():
    assert len(lacking("ppo_new")) == 6


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    """The scripts, committed to a repository of their own, with the diffs as they should be."""
    root = tmp_path_factory.mktemp("pristine")
    shutil.copytree(ROOT / "cleanrl", root / "cleanrl", ignore=shutil.ignore_patterns("__pycache__"))
    (root / "docs/diffs").mkdir(parents=True)
    check_variants.fix(root)
    author = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    for words in (["init", "--quiet"], ["add", "--all"], [*author, "commit", "--quiet", "-m", "all"]):
        subprocess.run(["git", *words], cwd=root, check=True)
    return root


@pytest.fixture
def copy(pristine, tmp_path):
    return shutil.copytree(pristine, tmp_path / "copy")


def change(root, name, old, new):
    path = root / f"cleanrl/{name}.py"
    text = path.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), "utf-8")


def problems_of(root, name):
    return check_variants.problems_of(check_variants.load(root)[name])


@pytest.mark.parametrize(
    "old, new, said",
    [
        (LOSS, LOSS + "\n" * 99, "lines of PPO, "),
        (LOSS, LOSS.replace("1e-8", "1e-7"), "docs/diffs has another diff to its parent"),
        ("    is_bytes = ", "    _ = 1\n    is_bytes = ", "not ppo.py's: check_spaces"),
        ("    seed: int = 1", "    speed: int = 1  # of light\n    seed: int = 1", "option speed changes nothing"),
        ("  # [core-5] GAE", "", "the docstring's details and the tags on the lines differ: core-5"),
        ("import json\n", "from fcntl import lockf\n", "imports ['fcntl', 'lockf']"),
        ("        logged = []", "        logged = run and [] or [1]", "chooses a value"),
    ],
)
def test_a_mistake_is_named(copy, old, new, said):
    change(copy, "ppo_multidiscrete", old, new)
    assert sum(said in line for line in problems_of(copy, "ppo_multidiscrete")) >= 1


def test_a_change_of_the_trunk_is_carried_to_all_that_share_the_lines_and_stops_at_a_conflict(copy, capsys):
    before = {path.stem: path.read_text("utf-8") for path in (copy / "cleanrl").glob("*.py")}
    change(copy, "ppo_atari", LOSS, LOSS.replace("1e-8", "1e-6"))
    change(copy, "ppo", LOSS, LOSS.replace("1e-8", "1e-7"))
    assert check_variants.main(["--propagate", "ppo"], copy) == 1
    said = capsys.readouterr().out
    assert "cleanrl/ppo_atari.py: left as it is; merge by hand:\n<<<<<<< " in said and "1e-6" in said
    for name in ("ppo_multidiscrete", "ppo_continuous_action"):
        assert (copy / f"cleanrl/{name}.py").read_text("utf-8") == before[name].replace(
            LOSS, LOSS.replace("1e-8", "1e-7")
        )
        assert "1e-7" not in (copy / f"docs/diffs/{name}.diff").read_text("utf-8")  # it is in both
    for name in ("ppo_atari_lstm", "ppo_procgen"):  # they follow their parent, which is as it was changed
        assert (copy / f"cleanrl/{name}.py").read_text("utf-8") == before[name].replace(
            LOSS, LOSS.replace("1e-8", "1e-6")
        )


def test_since_a_revision_that_git_does_not_have_nothing_is_carried(copy, capsys):
    before = {path.stem: path.read_text("utf-8") for path in (copy / "cleanrl").glob("*.py")}
    change(copy, "ppo", LOSS, LOSS.replace("1e-8", "1e-7"))
    assert check_variants.main(["--propagate", "ppo", "--since", "tpyo"], copy) == 1
    said = capsys.readouterr().out
    assert "--since tpyo: fatal" in said and "<<<<<<<" not in said
    after = {path.stem: path.read_text("utf-8") for path in (copy / "cleanrl").glob("*.py")}
    assert {name for name in after if after[name] != before[name]} == {"ppo"}
