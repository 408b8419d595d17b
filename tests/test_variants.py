"""The scripts are one family, and the checker notices where they stop being one. Each test below changes one thing in a
copy of the repository."""

import shutil
import subprocess
from pathlib import Path

import check_variants
import pytest

ROOT = Path(__file__).parents[1]
NAMES = sorted(path.stem for path in (ROOT / "cleanrl").glob("*.py"))
PPO, NUMPY, DISCRETE, ATARI, VISUAL = (
    f"cleanrl/ppo{name}.py" for name in ("", "_numpy", "_multidiscrete", "_atari", "_atari_visual")
)
MANIFEST, DETAILS = "tests/variants.toml", "docs/details.md"
EPSILON, OTHER = "correction=0) + 1e-8", "correction=0) + 1e-7"


def test_the_scripts_agree(capsys):
    assert check_variants.main([]) == 0, capsys.readouterr().out


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    """What the checker reads, committed to a repository of its own."""
    root = tmp_path_factory.mktemp("pristine")
    for pattern in "cleanrl/*.py docs/*.md docs/diffs/* tests/*.toml tests/test_*.py *.md *.txt *.toml".split():
        for path in ROOT.glob(pattern):
            (root / path.relative_to(ROOT)).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, root / path.relative_to(ROOT))
    commit(root)
    return root


def commit(root):
    words = "git init --quiet; git add --all; git -c user.name=a -c user.email=a@b.c commit --quiet -m change"
    subprocess.run(words, shell=True, cwd=root, check=True)


@pytest.fixture
def copy(pristine, tmp_path):
    shutil.copytree(pristine, tmp_path / "copy")
    return tmp_path / "copy"


@pytest.fixture
def check(copy, capsys):
    """Runs the checker on the copy; returns its exit status and what it says, without the lines of code."""

    def run(*words):
        capsys.readouterr()
        status = check_variants.main(list(words), copy)
        out, err = capsys.readouterr()
        return status, [line for line in (err or out).splitlines() if not line.startswith("    ")]

    return run


def change(root, file, old, new):
    text = (root / file).read_text()
    assert old in text, f"{file} has no {old!r} any more"
    (root / file).write_text(text.replace(old, new, 1))


def texts(root):
    return {name: (root / f"cleanrl/{name}.py").read_text() for name in NAMES}


# ----------------------------------------------------------------------------------------------------------- Each check
MISTAKES = [  # file, what is in it, what it becomes, what the one problem that says so says
    (ATARI, EPSILON, OTHER, "cleanrl/ppo_atari.py · Advantages and loss · ppo_loss: differs; cleanrl/ppo.py owns it"),
    (PPO, EPSILON, OTHER, "cleanrl/ppo_procgen.py · Advantages and loss · ppo_loss: differs; cleanrl/ppo.py owns it"),
    (DISCRETE, "    norm_adv: bool = ", "    norm: bool = ", "Arguments · Args.norm_adv: is missing; cleanrl/ppo.py"),
    (DISCRETE, "    # Log", "    # Write", "ppo_multidiscrete.py · Training · train.Write: is not in the parent"),
    (DISCRETE, "- Agent\n", "- Net\n", "ppo_multidiscrete.py · Net · # Net: is not in the parent; cleanrl/ppo.py"),
    (ATARI, "def attempt(", "def other():\n    pass\n\n\ndef attempt(", "Run · other: is not in the parent"),
    (NUMPY, "least = 1e-300", "least = 1e-200", "ppo_numpy.py · Run · validate: differs; cleanrl/ppo.py owns"),
    (NUMPY, "def fail(", "\ndef fail(", "ppo_numpy.py · downstairs: stands in another order"),
    (MANIFEST, '"ppo_loss",', '"ppo_loss", "make_env",', "is cleanrl/ppo.py's, but declared to differ; take it out"),
    (MANIFEST, '"evaluate", "# Num', '"evaluate", "fail", "# Num', "ppo_numpy.py · fail: is cleanrl/ppo.py's, but"),
    (ATARI, "    num_envs: int", "    new_flag: int = 1\n    num_envs: int", "Args.new_flag: nothing that it"),
    (ATARI, "envs = VectorEnv(args)", "envs = VectorEnv(args.x)", "ppo_atari.py · Training · train.Begin · line "),
    (NUMPY, "  # [core-3]", "", "ppo_numpy.py: [core-3] is in tests/variants.toml, but on no line"),
    (NUMPY, "# [core-3]", "# [core-3] [core-14]", "carries [core-14], which tests/variants.toml doesn't list"),
    (NUMPY, "core-1 to core-13", "core-1 to core-12", "Header · docstring: its line `Details:` lacks core-13"),
    (VISUAL, "Parent: ppo_atari.py", "Parent: ppo.py", "must say `Parent: ppo_atari.py`"),
    (NUMPY, '"losses/clipfrac"', '"losses/clip"', "docs/ppo.md's table of metrics lacks 'losses/clip'"),
    (NUMPY, '"losses/clipfrac"', '"clipfrac"', "ppo_numpy.py: writes no 'losses/clipfrac', as the trunk does"),
    ("docs/ppo.md", "| `losses/clipfrac`", "| `losses/clip`", "'losses/clip' is no metric of the scripts"),
    (ATARI, "numpy==", "numpy==1", "Header · metadata: has numpy==1"),
    (NUMPY, "gymnasium[classic-control]", "gymnasium[toy-text]", "metadata: has gymnasium[toy-text], but pyproject"),
    (NUMPY, 'requires-python = ">=3.11"', 'requires-python = ">=3.10"', "metadata: requires-python is '>=3.10'"),
    (NUMPY, "import tyro\n", "import scipy\nimport tyro\n", "ppo_numpy.py · Header · metadata: lacks scipy, which"),
    (NUMPY, "import tyro\n", "import ppo\nimport tyro\n", "imports another file of the repository"),
    (NUMPY, "import math\n", "import math\n" + "\n" * 99, "ppo_numpy.py: upstairs "),
    (NUMPY, "import fcntl\n", "import fcntl\n" + "\n" * 999, "ppo_numpy.py: lines "),
    (MANIFEST, "hunks = 16", "hunks = 6", "ppo_numpy.py: hunks "),
    (NUMPY, "    # Log\n", "    # Log\n" + "        pass\n" * 99, "train has "),
    (NUMPY, "class MLP:", "class MLP:  # small", "docs/diffs/ppo_numpy.diff: is not the diff from ppo.py to"),
    (DETAILS, "#L", "#L9", "docs/details.md: 1 of its lines link where"),
    (DETAILS, "[`test_weights_are", "[`test_are", "details.md · core-2: tests/test_details.py holds no test_are"),
    (DETAILS, "/test_details.py#L", "/test_other.py#L", "details.md · core-1: tests/test_other.py holds no"),
    (DETAILS, "\nWhy: ", "\n", "docs/details.md · core-1: lacks 'Why:'"),
    (DETAILS, '"core-13"></a>`core-13`', '"core-99"></a>`core-99`', "docs/details.md · core-13: has no section"),
    (DETAILS, '"core-13"></a>`core-13`', '"core-99"></a>`core-99`', "docs/details.md · core-99: is in no script"),
    (DETAILS, '"core-13"></a>', '"core-12"></a>', "docs/details.md · core-13: has no section"),
    (DETAILS, "`core-13` Separate", "Separate", "docs/details.md · core-13: has no section"),
]


@pytest.mark.parametrize("file, old, new, said", MISTAKES, ids=[said for *_, said in MISTAKES])
def test_a_mistake_is_one_line_that_says_where_it_is(copy, check, file, old, new, said):
    change(copy, file, old, new)
    status, lines = check()
    assert status == 1
    assert len([line for line in lines if said in line]) == 1, "\n".join(lines)


def test_a_flag_that_is_only_validated_does_nothing(copy, check):
    change(copy, ATARI, "    num_envs: int", "    new_flag: int = 1\n    num_envs: int")
    change(copy, ATARI, "    if args.batch_size %", "    if args.new_flag and args.batch_size %")
    assert any("Args.new_flag: nothing that it could change" in line for line in check()[1])


def test_every_line_belongs_to_one_definition():
    for text in texts(ROOT).values():
        pieces = check_variants.cut(text)[1].values()
        assert "".join(piece.space + piece.text for piece in pieces) == text


@pytest.mark.parametrize(
    "one, other, sections, own",
    [
        ("ppo_numpy", "ppo_continuous_action_numpy", ["Numpy"], ["write_state", "read_state"]),
        ("ppo_atari_multigpu", "ppo_atari_multigpu_envpool", ["Processes", "Shared run"], []),
    ],
)
def test_twins_share_what_they_have_from_no_parent(one, other, sections, own):
    scripts = (check_variants.load(ROOT)[name] for name in (one, other))
    one, other = ({k: x.text for k, x in script.pieces.items() if k.section in sections} for script in scripts)
    assert {*one} == {*other} and {key.name for key in one if one[key] != other[key]} == {*own}


# ---------------------------------------------------------------------------------------------------------- Propagation
@pytest.mark.parametrize(
    "old, new",
    [
        (" + 1e-8", " + 1e-7"),
        ("advantages - ", "advantages + "),
        ("torch.min(", "torch.max("),
        (" * (0.5 * ", " * (0.6 * "),
        ("ratio - 1 - log_ratio", "ratio - 2 - log_ratio"),
    ],
)
def test_a_change_of_the_trunks_loss_is_carried_into_every_torch_script(copy, check, old, new):
    before = texts(copy)
    start = before["ppo"].index("def ppo_loss")
    (copy / PPO).write_text(before["ppo"][:start] + before["ppo"][start:].replace(old, new, 1))
    status, lines = check("--propagate", "ppo")
    after = texts(copy)
    for name in [name for name in NAMES if "numpy" not in name]:
        start = before[name].index("def ppo_loss")
        assert after[name] == before[name][:start] + before[name][start:].replace(old, new, 1)
    left = {
        name for name in NAMES if before[name] == after[name]
    }  # numpy's loss is in other words, with its derivative
    assert left == {name for name in NAMES if any(f"{name}.py" in line and ": conflict; " in line for line in lines)}
    assert status == (1 if left else 0), lines
    check("--propagate", "ppo")
    assert texts(copy) == after  # twice is as once


def test_downstairs_is_written_anew_but_for_overrides(copy, check):
    change(copy, VISUAL, "least = 1e-300", "least = 1e-200")
    change(copy, PPO, "least = 1e-300", "least = 1e-100")
    change(copy, PPO, "macro_block_size=2", "macro_block_size=16")  # in evaluate, an override of most
    status, lines = check("--propagate", PPO)
    assert status == 0, lines
    assert sum(line.endswith(": carried") for line in lines) == len(NAMES) - 1
    assert all("least = 1e-100" in text and "macro_block_size=16" in text for text in texts(copy).values())


def test_a_conflict_leaves_the_file_and_its_descendants_and_names_the_place(copy, check):
    change(copy, ATARI, EPSILON, "correction=0) + 1e-6")
    commit(copy)
    change(copy, PPO, EPSILON, OTHER)
    before = texts(copy)
    status, lines = check("--propagate", "ppo")
    assert status == 1
    assert any(f"{ATARI} · Advantages and loss · ppo_loss · line " in line and ": conflict; " in line for line in lines)
    assert f"{VISUAL}: left as it is, since ppo_atari.py is" in lines
    changed = {name for name, text in texts(copy).items() if text != before[name]}
    assert "ppo_continuous_action" in changed and not any("atari" in name for name in changed)


def test_an_older_revision_carries_what_was_committed_since(copy, check):
    change(copy, ATARI, "FRAME = gym", "# a frame\nFRAME = gym")
    commit(copy)
    check("--propagate", "ppo_atari", "--since", "HEAD~1")
    assert "# a frame\nFRAME = gym" in (copy / VISUAL).read_text()


OLD, NEW = "    x = f(a, 0.5)\n    y = 1\n", "    x = f(a, 0.6)\n    y = 1\n"


@pytest.mark.parametrize(
    "child, merged",
    [
        ("    x = w @ f(a, 0.5)\n", "    x = w @ f(a, 0.6)\n"),
        ("    x = f(a, 0.5)  # [core-1]\n    y = 2\n", "    x = f(a, 0.6)  # [core-1]\n    y = 2\n"),
        ("    x = w @ f(a, 0.6)\n", "    x = w @ f(a, 0.6)\n"),  # has it already
        ("    x = f(a, 0.7)\n", None),  # another value of the same
        ("    z = f(a, 0.5)\n", None),  # may be something else
        ("    x = f(a, 0.5, b)\n    x = f(a, 0.5, c)\n", None),  # which of the two?
    ],
)
def test_merges_by_words(child, merged):
    text = check_variants.merge(child, OLD, NEW, [], conflicts := [])
    assert (text == merged and not conflicts) if merged else conflicts
    check_variants.merge(child, OLD, NEW + "    z = 2\n", [], conflicts := [])
    assert conflicts  # lines that came or went


# ----------------------------------------------------------------------------------------------------- --fix, --propose
def test_fix_rewrites_diffs_and_links(copy, check):
    change(copy, NUMPY, "class MLP:", "class MLP:  # small")
    change(copy, "tests/test_details.py", "\n\n\ndef test_", "\n\n\n# one line more\ndef test_")
    (copy / "docs/diffs/ppo_atari.diff").rename(copy / "docs/diffs/gone.diff")
    assert check()[1][-1] == "4 problems"
    status, lines = check("--fix")
    assert lines[:3] == [f"docs/{x}: rewritten" for x in ("details.md", "diffs/ppo_numpy.diff", "diffs/ppo_atari.diff")]
    assert status == 1 and lines[3:] == ["docs/diffs/gone.diff: belongs to no script; remove it", "1 problem"]


def test_a_new_script_is_noticed_and_its_proposed_entry_fits(copy, check, capsys):
    text = texts(copy)["ppo_numpy"].replace("Parent: ppo.py", "Parent: ppo_numpy.py")
    (copy / "cleanrl/ppo_mine.py").write_text(text.replace("update_epochs: int = 4", "update_epochs: int = 8"))
    assert any("ppo_mine.py: has no entry" in line and "--propose ppo_mine PARENT" in line for line in check()[1])
    assert check_variants.main(["--propose", "ppo_mine", "ppo_numpy"], copy) == 0
    entry = capsys.readouterr().out
    assert 'differs = ["docstring", "Args.update_epochs"]' in entry and "hunks = 2" in entry
    (copy / MANIFEST).write_text(f"{(copy / MANIFEST).read_text()}\n{entry}")
    status, lines = check("--fix")
    assert status == 0, lines


def test_the_manifest_declares_no_more_than_would_be_proposed(capsys):
    for name, script in check_variants.load(ROOT).items():
        if script.parent:
            assert check_variants.main(["--propose", name, script.parent.name]) == 0
            proposed = check_variants.tomllib.loads(capsys.readouterr().out)["scripts"][name]
            lists = [proposed.get("differs", []), proposed.get("downstairs", [])]
            assert [*map(set, lists)] == [{*script.differs}, {*script.downstairs}]


# ----------------------------------------------------------------------------------------------------------- Wrong use
@pytest.mark.parametrize(
    "words, file, old, new, said",
    [
        ("--propagate ppo_other", PPO, "", "", "--propagate ppo_other: takes one of ppo, ppo_"),
        ("--propagate ppo", PPO, "", "", "--since HEAD: cleanrl/ppo.py is as it was there; change it first"),
        ("--propagate ppo --since nowhere", PPO, "", "", "--since nowhere: git finds no cleanrl/ppo.py there"),
        ("--propose ppo_other ppo", PPO, "", "", "--propose ppo_other ppo: takes a file of cleanrl/"),
        ("--since HEAD", PPO, "", "", "--since goes with --propagate"),
        ("--fix --propagate ppo", PPO, "", "", "not allowed with"),
        ("", MANIFEST, "[scripts.ppo]", "[scripts.ppo", "tests/variants.toml: "),
        ("", MANIFEST, 'parent = "ppo_atari"', 'parent = "ppo_other"', "its parent 'ppo_other' has no entry above it"),
        ("", MANIFEST, "hunks = 16", "hunk = 16", "scripts.ppo_numpy: budget must have whole numbers"),
        ("", MANIFEST, "downstairs =", "below =", "unexpected keyword argument 'below'"),
        ("", MANIFEST, "[scripts.ppo_numpy]", "[scripts.ppo_other]", "scripts.ppo_other: [Errno 2] No such file"),
        ("", NUMPY, "def train(", "def train((", "cleanrl/ppo_numpy.py:"),
        ("", NUMPY, "\n# ====", "\n# === ", "cleanrl/ppo_numpy.py:1: there must be one double ruler"),
    ],
)
def test_wrong_use_and_what_cannot_be_read_is_one_line(copy, check, words, file, old, new, said):
    change(copy, file, old, new)
    status, lines = check(*words.split())
    assert status == 2
    assert len(lines) == 1 and said in lines[0]
