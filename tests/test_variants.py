"""The scripts are one family, and the checker notices where they stop being one. Each test below changes one thing in a
copy of the repository."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import check_variants
import pytest

ROOT = Path(__file__).parents[1]
EPSILON = "advantages.std(correction=0) + 1e-8"


def test_the_scripts_agree(capsys):
    assert check_variants.main([]) == 0, capsys.readouterr().out


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    """What the checker reads, committed to a repository of its own."""
    root = tmp_path_factory.mktemp("pristine")
    for folder, pattern in (("cleanrl", "*.py"), ("docs", "*.md"), ("docs/diffs", "*.diff"), ("tests", "test_*.py")):
        (root / folder).mkdir(exist_ok=True)
        for path in (ROOT / folder).glob(pattern):
            shutil.copy(path, root / folder)
    for path in [*ROOT.glob("requirements*.txt"), ROOT / "pyproject.toml", ROOT / "README.md", ROOT / "Makefile"]:
        shutil.copy(path, root)
    for name in ("check_variants.py", "variants.toml"):
        shutil.copy(ROOT / "tests" / name, root / "tests")
    git(root, "init", "--quiet")
    commit(root)
    return root


def git(root, *words):
    subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b.c", *words], cwd=root, check=True)


def commit(root):
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", "change")


@pytest.fixture
def copy(pristine, tmp_path):
    shutil.copytree(pristine, tmp_path / "copy")
    return tmp_path / "copy"


@pytest.fixture
def check(copy, capsys):
    """Runs the checker on the copy; returns its exit status and the first line of each problem, or of stderr."""

    def run(*words):
        capsys.readouterr()
        status = check_variants.main(list(words), copy)
        out, err = capsys.readouterr()
        return status, [line for line in (err or out).splitlines() if not line.startswith("    ")]

    return run


def change(root, file, old, new, count=1):
    path = root / file
    text = path.read_text()
    assert old in text, f"{file} has no {old!r} any more"
    path.write_text(text.replace(old, new, count))


def the_problem(lines, *parts):
    """The only line of those that has all the parts."""
    found = [line for line in lines if all(part in line for part in parts)]
    assert len(found) == 1, "\n".join(lines)
    return found[0]


# ------------------------------------------------------------------------------------------------- A change in the loss


def test_a_change_in_one_copys_loss_fails_make_test_and_says_how_to_mend_it(copy):
    change(copy, "cleanrl/ppo_multidiscrete.py", EPSILON, EPSILON.replace("8", "7"))
    only = {**os.environ, "PYTEST_ADDOPTS": f"-p no:cacheprovider tests/{Path(__file__).name}::test_the_scripts_agree"}
    words = ["make", "test", f"BIN={Path(sys.executable).parent}", "--old-file=.venv/test"]
    made = subprocess.run(words, cwd=copy, env=only, capture_output=True, text=True)
    assert made.returncode == 2
    (line,) = re.findall(r"cleanrl/ppo_multidiscrete\.py · .*?tests/variants\.toml", made.stdout)[:1]
    assert line.startswith(
        "cleanrl/ppo_multidiscrete.py · Advantages and loss · ppo_loss: differs from cleanrl/ppo.py, which owns it; "
        "make the change there and carry it down with `python -m tests.check_variants --propagate ppo`, or undo it "
    )
    assert re.search(r"- cleanrl/ppo\.py:\d+: .*1e-8", made.stdout)
    assert re.search(r"\+ cleanrl/ppo_multidiscrete\.py:\d+: .*1e-7", made.stdout)


LOSS_CHANGES = [  # parts of lines of the trunk's ppo_loss; copies have the same part in lines that differ
    ("1e-8", "1e-7"),
    ("advantages - ", "advantages + "),
    ("clamp(1 - clip_coef", "clamp(1 + clip_coef"),
    ("policy_loss = -", "policy_loss = +"),
    ("torch.min(", "torch.max("),
    ("(value - old_values)", "(value + old_values)"),
    ("value_loss = 0.5 *", "value_loss = 0.6 *"),
    ("policy_loss - ent_coef", "policy_loss + ent_coef"),
    ("vf_coef * value_loss", "vf_coef / value_loss"),
    ('"losses/old_approx_kl": -', '"losses/old_approx_kl": +'),
    ("ratio - 1 - log_ratio", "ratio - 2 - log_ratio"),
    ("> clip_coef", "< clip_coef"),
]


@pytest.mark.parametrize("old, new", LOSS_CHANGES, ids=[old for old, _ in LOSS_CHANGES])
def test_one_token_of_the_trunks_loss_is_carried_into_every_copy_that_has_it(copy, capsys, old, new):
    texts = {path.stem: path.read_text() for path in (copy / "cleanrl").glob("*.py")}
    lines = {name: re.findall(f".*{re.escape(old)}.*", loss(text)) for name, text in texts.items()}
    assert len(lines["ppo"]) == 1
    lacking = {name for name in texts if not lines[name]}  # those say it in other words, or elsewhere
    assert len(texts) - len(lacking) >= 9
    parents = {name: script.parent for name, script in check_variants.Repository(copy).scripts.items()}
    differing = {name for name in texts if lines[name] != lines.get(parents[name], lines[name])} - lacking
    expected = {
        name: text if name in lacking else text.replace(loss(text), loss(text).replace(old, new, 1))
        for name, text in texts.items()
    }
    (copy / "cleanrl" / "ppo.py").write_text(expected["ppo"])
    status = check_variants.main(["--propagate", "ppo"], copy)
    out = capsys.readouterr().out
    assert {name: (copy / f"cleanrl/{name}.py").read_text() for name in texts} == expected
    conflicts = set(re.findall(r"^cleanrl/(\w+)\.py · .*: conflict; the file is left", out, re.MULTILINE))
    assert conflicts == lacking
    assert status == (1 if lacking else 0)
    # what was merged inside a line is shown, where it is now
    for name, number, before, after in re.findall(
        r"^cleanrl/(\w+)\.py:(\d+): merged inside a line .*read it\n    - (.*)\n    \+ (.*)", out, re.MULTILINE
    ):
        differing.remove(name)
        assert before.replace(old, new, 1) == after == expected[name].splitlines()[int(number) - 1]
    assert not differing
    # a second time there is nothing to do
    check_variants.main(["--propagate", "ppo"], copy)
    assert {name: (copy / f"cleanrl/{name}.py").read_text() for name in texts} == expected
    # what is left to do by hand is what the checker still reports
    check_variants.main([], copy)
    assert set(re.findall(r"^docs/diffs/(\w+)\.diff", capsys.readouterr().out, re.MULTILINE)) == lacking


def loss(text):
    return text[text.index("def ppo_loss(") :].partition("\n\n\n")[0]


def test_a_change_of_what_is_derived_by_hand_hints_at_the_gradients(copy, check):
    change(copy, "cleanrl/ppo.py", EPSILON, EPSILON.replace("8", "7"))
    change(copy, "cleanrl/ppo.py", "value_loss = 0.5 *", "value_loss = 0.6 *")
    lines = check("--propagate", "ppo")[1]
    hinted = {line.split(".py")[0] for line in lines if "its gradients are by hand" in line}
    assert hinted == {"cleanrl/ppo_numpy", "cleanrl/ppo_continuous_action_numpy"}
    assert "1e-8" in (copy / "cleanrl/ppo_numpy.py").read_text()  # all of the change or none


def test_propagate_is_a_command(copy):
    change(copy, "cleanrl/ppo.py", EPSILON, EPSILON.replace("8", "7"))
    typed = [sys.executable, "-m", "tests.check_variants"]
    before = subprocess.run(typed, cwd=copy, capture_output=True, text=True)
    assert before.returncode == 1
    assert "cleanrl/ppo.py · Advantages and loss · ppo_loss: was changed, but its copies were not" in before.stdout
    carried = subprocess.run([*typed, "--propagate", "ppo"], cwd=copy, capture_output=True, text=True)
    assert "cleanrl/ppo_atari.py: carried" in carried.stdout.splitlines()


OLD, NEW = ["    x = f(a, 0.5)\n", "    y = 1\n"], ["    x = f(a, 0.6)\n", "    y = 1\n"]


@pytest.mark.parametrize(
    "child, merged",
    [
        (["    x = w @ f(a, 0.5)\n"], ["    x = w @ f(a, 0.6)\n"]),
        (["    x = f(a, 0.5)  # [core-1]\n", "    y = 2\n"], ["    x = f(a, 0.6)  # [core-1]\n", "    y = 2\n"]),
        (["    x = w @ f(a, 0.6)\n"], ["    x = w @ f(a, 0.6)\n"]),  # has it already
        (["    x = f(a, 0.7)\n"], None),  # another value of the same
        (["    x = f(a)\n"], None),
        (["    z = f(a, 0.5)\n"], None),  # may be something else
        (["    x = f(a, 0.5, b)\n", "    x = f(a, 0.5, c)\n"], None),  # which of the two?
        ([], None),
    ],
)
def test_merges_inside_a_line(child, merged):
    assert check_variants.merge_inside(child, OLD, NEW) == merged


def test_lines_that_came_or_went_are_not_merged_inside():
    assert check_variants.merge_inside(["    x = w @ f(a, 0.5)\n"], OLD, [*NEW, "    z = 2\n"]) is None
    assert check_variants.merge_inside(["    x = w @ f(a, 0.5)\n"], OLD, NEW[:1]) is None


def test_a_change_that_fits_everywhere_leaves_no_problem_and_twice_is_as_once(copy, check):
    change(copy, "cleanrl/ppo.py", '".tmp"', '".part"')
    status, lines = check("--propagate", "cleanrl/ppo.py")
    assert status == 0, lines
    scripts = sorted((copy / "cleanrl").glob("*.py"))
    assert len([line for line in lines if line.endswith(": carried")]) == len(scripts) - 1
    texts = [path.read_text() for path in scripts]
    assert all('".part"' in text and '".tmp"' not in text for text in texts)
    status, lines = check("--propagate", "ppo")
    assert status == 0, lines
    assert len([line for line in lines if line.endswith(": has the change already")]) == len(scripts) - 1
    assert texts == [path.read_text() for path in scripts]


def test_an_older_revision_carries_what_was_committed_since(copy, check):
    change(copy, "cleanrl/ppo_atari.py", "FRAME = gym", "# a frame\nFRAME = gym")
    commit(copy)
    status, lines = check("--propagate", "ppo_atari")
    assert status == 2 and "is as in HEAD" in lines[0]
    status, lines = check("--propagate", "ppo_atari", "--since", "HEAD~1")
    assert "# a frame\nFRAME = gym" in (copy / "cleanrl" / "ppo_atari_visual.py").read_text()


def test_a_conflict_leaves_the_file_and_its_descendants_and_names_the_place(copy, check):
    line = "    mean_entropy = entropy.mean()\n"
    change(copy, "cleanrl/ppo_atari.py", line, "    mean_entropy = entropy.median()\n")
    commit(copy)
    change(copy, "cleanrl/ppo.py", line, "    mean_entropy = entropy.sum()\n")
    names = ("ppo_atari", "ppo_atari_visual", "ppo_atari_lstm")
    before = {name: (copy / f"cleanrl/{name}.py").read_text() for name in names}
    status, lines = check("--propagate", "ppo")
    assert status == 1
    the_problem(lines, "cleanrl/ppo_atari.py · Advantages and loss · ppo_loss: conflict", "--fix")
    the_problem(lines, "cleanrl/ppo_atari_visual.py: left as it is, since ppo_atari.py is")
    assert before == {name: (copy / f"cleanrl/{name}.py").read_text() for name in names}
    assert "entropy.sum()" in (copy / "cleanrl/ppo_multidiscrete.py").read_text()
    check("--propagate", "ppo", "--markers")
    marked = (copy / "cleanrl/ppo_atari.py").read_text()
    assert marked.count("<<<<<<< ") == 1 and "entropy.median()" in marked and "entropy.sum()" in marked


def test_a_change_in_the_middle_of_the_tree_is_reported_for_that_file_alone(copy, check):
    change(copy, "cleanrl/ppo_atari.py", EPSILON, EPSILON.replace("8", "7"))
    status, lines = check()
    assert status == 1
    assert the_problem(lines, "Advantages and loss").startswith("cleanrl/ppo_atari.py")
    assert not any("--fix" in line for line in lines)  # nobody is told to make the stray change official


# ----------------------------------------------------------------------------------------------------------- Each check

MISTAKES = {
    "a definition too many": (
        "cleanrl/ppo_numpy.py", "def merge_arguments(", "def other():\n    pass\n\n\ndef merge_arguments(",
        ["cleanrl/ppo_numpy.py · Checkpoints · other: is not in cleanrl/ppo.py"],
    ),
    "a definition too few": (
        "cleanrl/ppo_multidiscrete.py", "def write_whole(", "def write_all(",
        ["ppo_multidiscrete.py · Checkpoints · write_whole: is missing here"],
    ),
    "a declared difference that is none": (
        "tests/variants.toml", 'Header = ["docstring"]\nArguments = ["validate"]\nEnvironment = ["make_env"',
        'Header = ["docstring"]\nArguments = ["validate", "fail"]\nEnvironment = ["make_env"',
        ["cleanrl/ppo_multidiscrete.py · Arguments · fail: is declared to differ", "take it out"],
    ),
    "another order": (
        "cleanrl/ppo_atari.py", "    norm_adv: bool = True  # normalise the advantages in each minibatch\n", "",
        ["cleanrl/ppo_atari.py · Arguments · Args.norm_adv: is missing here"],
    ),
    "a ruler": (
        "cleanrl/ppo_numpy.py", "- Evaluation\n", "- Playing\n",
        ["cleanrl/ppo_numpy.py: its section rulers must be", "not Playing"],
    ),
    "no Python": ("cleanrl/ppo_numpy.py", "def main(", "def main((", ["cleanrl/ppo_numpy.py: line", "mend it"]),
    "a flag that is never read": (
        "cleanrl/ppo_procgen.py", "    malloc_tuning: bool", "    new_flag: int = 1\n    malloc_tuning: bool",
        ["cleanrl/ppo_procgen.py · Arguments · Args.new_flag: --new-flag is declared but nothing", "take it out"],
    ),
    "a flag that is not declared": (
        "cleanrl/ppo_numpy.py", "agent = Agent(", "agent = args.new_flag and Agent(",
        ["cleanrl/ppo_numpy.py · Training · line", "reads args.new_flag, which Args doesn't declare"],
    ),
    "a flag that only validate knows": (
        "cleanrl/ppo_numpy.py", '"seed ent_coef vf_coef"', '"seed ent_coef vf_coef old_flag"',
        ["cleanrl/ppo_numpy.py · Arguments · validate: names 'old_flag'"],
    ),
    "a tag that is gone": (
        "cleanrl/ppo_numpy.py", "  # [core-3]", "",
        ["cleanrl/ppo_numpy.py · tags: [core-3] is in tests/variants.toml, but on no line"],
    ),
    "an unknown tag": (
        "cleanrl/ppo_numpy.py", "# [core-3]", "# [core-3] [core-14]",
        ["cleanrl/ppo_numpy.py · Training · line", "carries [core-14], which tests/variants.toml doesn't list"],
    ),
    "a header without a tag": (
        "cleanrl/ppo_numpy.py", "Details: core-1 to core-13", "Details: core-1 to core-12",
        ["cleanrl/ppo_numpy.py · Header · docstring: its line `Details:` lacks core-13"],
    ),
    "a header with another parent": (
        "cleanrl/ppo_continuous_action_numpy.py", "Parent: ppo_continuous_action.py", "Parent: ppo_numpy.py",
        ["Header · docstring: must say `Parent: ppo_continuous_action.py`"],
    ),
    "a metric of another name": (
        "cleanrl/ppo_numpy.py", '"losses/clipfrac": ', '"losses/clip_fraction": ',
        ["cleanrl/ppo_numpy.py · Advantages and loss · line", "'losses/clip_fraction', which METRICS doesn't list"],
    ),
    "a list of other metrics": (
        "cleanrl/ppo_numpy.py", '"charts/SPS", "charts/learning_rate",', '"charts/learning_rate", "charts/SPS",',
        ["cleanrl/ppo_numpy.py · Checkpoints · METRICS: is not cleanrl/ppo.py's: their order differs"],
    ),
    "a metric that the README lacks": (
        "README.md", "| `charts/SPS` |", "| speed |", ["README.md · table of metrics: lacks 'charts/SPS'"],
    ),
    "a metric that only the README has": (
        "README.md", "| `losses/clipfrac` |", "| `losses/clip_fraction` |", ["README.md:", "is no metric"],
    ),
    "an old pin": (
        "cleanrl/ppo_atari.py", "numpy==2.4.6", "numpy==2.4.5",
        ["cleanrl/ppo_atari.py · Header · metadata: has numpy==2.4.5, but pyproject.toml has 2.4.6"],
    ),
    "an extra that is not offered": (
        "cleanrl/ppo_numpy.py", "gymnasium[classic-control]", "gymnasium[toy-text]",
        ["cleanrl/ppo_numpy.py · Header · metadata: has gymnasium[toy-text]"],
    ),
    "another Python": (
        "cleanrl/ppo_numpy.py", 'requires-python = ">=3.11"', 'requires-python = ">=3.12"',
        ["cleanrl/ppo_numpy.py · Header · metadata: requires-python is '>=3.12'"],
    ),
    "an import that the metadata lacks": (
        "cleanrl/ppo_numpy.py", "import tyro\n", "import scipy\nimport tyro\n",
        ["cleanrl/ppo_numpy.py · Header · metadata: lacks scipy"],
    ),
    "an import of another script": (
        "cleanrl/ppo_numpy.py", "import tyro\n", "import ppo\nimport tyro\n",
        ["cleanrl/ppo_numpy.py · Header · line", "imports another file of the repository"],
    ),
    "too many lines": (
        "cleanrl/ppo_numpy.py", "import contextlib\n", "import contextlib\n" + "\n" * 50,
        ["cleanrl/ppo_numpy.py: has", "lines, its budget in tests/variants.toml is"],
    ),
    "too many hunks": (
        "tests/variants.toml", "hunks = 18", "hunks = 17",
        ["cleanrl/ppo_numpy.py: differs from ppo.py in 18 hunks", "17"],
    ),
    "another last line": (
        "cleanrl/ppo_numpy.py", "    main(parse_arguments())\n", "    main(parse_arguments())\n    print()\n",
        ["cleanrl/ppo_numpy.py · Training: must end with"],
    ),
    "a stale diff": (
        "cleanrl/ppo_numpy.py", "class MLP:", "class MLP:  # small",
        ["docs/diffs/ppo_numpy.diff: is not the diff from ppo.py to ppo_numpy.py any more", "--fix"],
    ),
    "a link to another line": (
        "docs/details.md", "#L", "#L9", ["docs/details.md: links in 1 of its lines are not where", "--fix"],
    ),
    "a test that is not there": (
        "docs/details.md", "[`test_weights_are_orthogonal_and_biases_zero`]", "[`test_weights`]",
        ["docs/details.md · core-2: tests/test_details.py holds no test function test_weights"],
    ),
    "a test file that is not there": (
        "docs/details.md", "../tests/test_details.py#L", "../tests/test_other.py#L",
        ["docs/details.md · core-1: links ../tests/test_other.py, which is not there"],
    ),
    "a detail without a reason": ("docs/details.md", "\nWhy: ", "\n", ["docs/details.md · core-1: lacks 'Why:'"]),
    "a detail that is not explained": (
        "docs/details.md", "### `core-13`", "### `core-99`",
        ["docs/details.md · core-13: has no section"],
    ),
    "a detail that no script has": (
        "docs/details.md", "### `core-13`", "### `core-99`",
        ["docs/details.md · core-99: no script carries it"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line_that_says_where_it_is(copy, check, mistake):
    file, old, new, parts = MISTAKES[mistake]
    change(copy, file, old, new)
    status, lines = check()
    assert status == 1
    the_problem(lines, *parts)


def test_a_flag_that_is_only_validated_does_nothing(copy, check):
    file = "cleanrl/ppo_procgen.py"
    change(copy, file, "    malloc_tuning: bool", "    new_flag: int = 1\n    malloc_tuning: bool")
    change(copy, file, "    if args.num_minibatches > args.batch_size", "    if args.new_flag and args.batch_size")
    the_problem(check()[1], "Args.new_flag: --new-flag is declared but nothing but validate reads")


def test_definitions_in_another_order(copy, check):
    path = copy / "cleanrl" / "ppo_multidiscrete.py"
    metrics = re.search(r"EPISODE = .*\n", path.read_text())[0]
    change(copy, "cleanrl/ppo_multidiscrete.py", metrics, "")
    change(copy, "cleanrl/ppo_multidiscrete.py", "METRICS = [", metrics + "METRICS = [")
    status, lines = check()
    assert status == 1
    the_problem(lines, "cleanrl/ppo_multidiscrete.py · Checkpoints ·", "stands in another place than in cleanrl/ppo.py")


# ----------------------------------------------------------------------------------------------------- --fix, --propose


def test_fix_rewrites_diffs_and_links(copy, check):
    change(copy, "cleanrl/ppo_numpy.py", "class MLP:", "# small\nclass MLP:")
    (copy / "docs/diffs/gone.diff").write_text("")
    change(copy, "tests/test_details.py", "\n\n\ndef test_", "\n\n\n# one line more\ndef test_")
    assert check()[0] == 1
    status, lines = check("--fix")
    assert status == 0, lines
    assert "docs/diffs/ppo_numpy.diff: rewritten" in lines
    assert "docs/diffs/gone.diff: removed, there is no such script" in lines
    assert check()[0] == 0


def test_diffs_apply_and_hold_no_path_of_this_machine(copy):
    for diff in (copy / "docs" / "diffs").glob("*.diff"):
        parent = re.match(r"--- a/(\w+\.py)\n\+\+\+ b/(\w+\.py)\n", diff.read_text())
        assert parent[2] == f"{diff.stem}.py"
        shutil.copy(copy / "cleanrl" / parent[1], copy / "patched.py")
        git(copy, "init", "--quiet", "patch")
        shutil.copy(copy / "cleanrl" / parent[1], copy / "patch" / parent[1])
        text = diff.read_text().replace(f"+++ b/{parent[2]}", f"+++ b/{parent[1]}", 1)
        subprocess.run(["git", "apply", "-"], input=text, text=True, cwd=copy / "patch", check=True)
        assert (copy / "patch" / parent[1]).read_text() == (copy / "cleanrl" / parent[2]).read_text()


def test_a_new_script_is_noticed_and_its_proposed_entry_fits(copy, check, capsys):
    text = (copy / "cleanrl/ppo_numpy.py").read_text().replace("Parent: ppo.py", "Parent: ppo_numpy.py")
    (copy / "cleanrl/ppo_mine.py").write_text(text.replace("update_epochs: int = 4", "update_epochs: int = 8"))
    status, lines = check()
    assert status == 1
    the_problem(lines, "cleanrl/ppo_mine.py: has no entry", "--propose ppo_mine PARENT")
    assert check_variants.main(["--propose", "ppo_mine", "ppo_numpy"], copy) == 0
    entry = capsys.readouterr().out
    assert 'parent = "ppo_numpy"' in entry and 'Arguments = ["Args.update_epochs"]' in entry and "hunks = 2" in entry
    manifest = copy / "tests/variants.toml"
    manifest.write_text(f"{manifest.read_text()}\n{entry}")
    status, lines = check("--fix")
    assert status == 0, lines


@pytest.mark.parametrize("name", sorted(path.stem for path in (ROOT / "cleanrl").glob("*.py") if path.stem != "ppo"))
def test_the_manifest_declares_no_more_than_would_be_proposed(name, capsys):
    repo = check_variants.Repository(ROOT)
    script = repo.scripts[name]
    assert check_variants.main(["--propose", name, script.parent]) == 0
    proposed = check_variants.tomllib.loads(capsys.readouterr().out)["scripts"][name]
    assert {section: set(names) for section, names in proposed["differs"].items()} == {
        section: set(names) for section, names in script.differs.items()
    }


def test_every_line_of_a_script_belongs_to_a_definition():
    for path in (ROOT / "cleanrl").glob("*.py"):
        _, definitions = check_variants.cut(path.read_text())
        lines = sum(len([x for x in one.text.splitlines() if x.strip()]) for one in definitions.values())
        rulers = len(check_variants.SECTIONS) - 1
        assert lines + rulers == len([x for x in path.read_text().splitlines() if x.strip()]), path.name


# ----------------------------------------------------------------------------------------------------------- Wrong use


@pytest.mark.parametrize(
    "words, said",
    [
        (["--propagate", "ppo_other"], "ppo_other: no such script"),
        (["--propagate", "ppo"], "cleanrl/ppo.py is as in HEAD; change it first"),
        (["--propagate", "ppo", "--since", "nowhere"], "--since nowhere: git finds no cleanrl/ppo.py there"),
        (["--propagate", "ppo_numpy", "--since", "HEAD"], "cleanrl/ppo_numpy.py is as in HEAD"),
        (["--propose", "ppo_other", "ppo"], "cleanrl/ppo_other.py: no such file"),
        (["--propose", "ppo", "ppo"], "not its own parent"),
        (["--since", "HEAD"], "--since goes with --propagate"),
        (["--fix", "--propagate", "ppo"], "not allowed with"),
        (["ppo"], "unrecognized arguments: ppo"),
    ],
)
def test_wrong_use_is_one_line(check, words, said):
    status, lines = check(*words)
    assert status == 2
    assert len(lines) == 1 and said in lines[0]


@pytest.mark.parametrize(
    "old, new, said",
    [
        ("[scripts.ppo]", "[scripts.ppo", "tests/variants.toml: "),
        ('parent = "ppo_continuous_action"', 'parent = "ppo_other"', "its parent 'ppo_other' has no entry"),
        ("hunks = 18", "hunk = 18", "scripts.ppo_numpy: unknown key 'hunk'"),
        ("hunks = 18\n", "", "scripts.ppo_numpy: lacks 'hunks'"),
        ('"Advantages and loss" =', "Loss =", "differs has 'Loss', which is no section"),
        ('"core-1..13", "multi-1"', '"core-1-13", "multi-1"', "'core-1-13' is no tag"),
    ],
)
def test_a_wrong_manifest_is_one_line(copy, check, old, new, said):
    change(copy, "tests/variants.toml", old, new)
    status, lines = check()
    assert status == 2
    assert len(lines) == 1 and said in lines[0]
