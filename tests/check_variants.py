"""Keeps the scripts of cleanrl/ one family: copies stay equal, and every difference is meant.

    python -m tests.check_variants                    check everything
    python -m tests.check_variants --fix              write docs/diffs/ anew, then check
    python -m tests.check_variants --propagate ppo    carry what changed in cleanrl/ppo.py to its descendants

A script names its parent in its docstring (`Parent: ppo.py.`). Its diff to the parent is kept in docs/diffs/, where a
review sees it. Below the double ruler every definition is the parent's, but for the overrides in SCRIPTS.
Exit status: 0 all is well, 1 problems or conflicts.
"""

import argparse
import ast
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LONGEST_FUNCTION = 110  # lines
UNIX_ONLY = ("fcntl", "grp", "pwd", "resource", "termios")
# Lines above the double ruler, hunks of the diff to the parent, and overrides: the definitions below the ruler that are
# new, gone or not the parent's. "Player" is a whole class. Parents come before their children.
SCRIPTS = {
    "ppo": (331, 0, ""),
    "ppo_multidiscrete": (436, 13, "ACTION_SPACES Player.act flatten_mask take_first_step"),
    "ppo_continuous_action": (436, 12, """
        imports ACTION_SPACES FAMILIES __doc__ make_simulator note_far_bounds Player.__init__ check_arguments"""),
    "ppo_continuous_action_gpu": (462, 19, """
        imports __doc__ ACTION_SPACES FAMILIES PICTURES LONG_EPISODE RANGES OneOfMany make_vector close_vector
        get_episodes get_wrapper_statistics set_wrapper_statistics check_observation take_first_step check_spaces
        make_simulator note_far_bounds open_simulator check_simulator check_tensor Player play return_so_far load
        evaluate Run.__init__ Run.updates Run.note Run.log Run.record_video create_run_folder check_arguments
        read_arguments"""),
    "ppo_lstm": (420, 12, "RANGES Player check_arguments"),
    "ppo_continuous_action_lstm": (480, 12, "RANGES Player check_arguments"),
    "ppo_numpy": (466, 27, """
        imports __doc__ RANGES step_vector Player.__init__ Player.act play load Run.open Run.note Run.log
        Run.save create_run_folder load_checkpoint Arrays take_arrays write_state read_state orthogonal SummaryWriter
        check_arguments read_arguments main"""),
    "ppo_continuous_action_numpy": (488, 28, """
        imports __doc__ RANGES step_vector Player.__init__ Player.act play load Run.open Run.note Run.log
        Run.save create_run_folder load_checkpoint Arrays take_arrays write_state read_state orthogonal SummaryWriter
        check_arguments read_arguments main"""),
    "ppo_atari": (436, 14, "PICTURES keep_freed_memory main"),
    "ppo_atari_visual": (436, 10, """
        imports GRAY DARK BLUE GREEN ORANGE RED picture play draw_policy write"""),
    "ppo_atari_lstm": (471, 10, "Player check_arguments"),
    "ppo_atari_envpool": (466, 16, """
        imports PICTURES RANGES OneOfMany make_vector close_vector get_episodes
        get_wrapper_statistics set_wrapper_statistics check_observation take_first_step check_spaces share_of_cores
        return_so_far check_arguments"""),
    "ppo_atari_multigpu": (467, 17, """
        imports Run.finish create_run_folder SharedRun find_processes join_processes choose_devices take_device
        from_first in_all torchrun_note launcher check_arguments main __main__"""),
    "ppo_atari_multigpu_envpool": (486, 17, """
        imports Run.finish create_run_folder SharedRun find_processes join_processes choose_devices take_device
        from_first in_all torchrun_note launcher check_arguments main __main__"""),
    "ppo_procgen": (466, 16, """
        imports ACTION_SPACES PICTURES RANGES NO_LEVEL MODES OneOfMany make_vector close_vector get_episodes
        get_wrapper_statistics set_wrapper_statistics check_observation take_first_step Games load_procgen
        return_so_far
        check_spaces level_range test_levels evaluate ProcgenRun check_levels check_arguments main"""),
}  # fmt: skip


class Script:
    """A file of cleanrl/, cut as the checks need it."""

    def __init__(self, path: Path, scripts: dict):
        self.name = path.stem
        self.path = path
        self.text = path.read_text("utf-8")
        self.tree = ast.parse(self.text)
        self.lines = self.text.splitlines()
        self.ruler = next(i for i, line in enumerate(self.lines, 1) if line.startswith("# ====="))  # its line
        self.docstring = ast.get_docstring(self.tree)
        self.parent = scripts.get(self.docstring.partition("\nParent: ")[2].partition(".py")[0])
        self.diff_path = path.parents[1] / "docs" / "diffs" / f"{self.name}.diff"

    def diff(self) -> str:
        """What git says about the script and its parent; nothing of the trunk."""
        if self.parent is None:
            return ""
        options = ["--no-index", "-U3", "--no-color", "--no-ext-diff", "--diff-algorithm=myers", "--no-prefix"]
        shown = git(self.path.parent, "diff", *options, self.parent.path.name, self.path.name)
        return shown[shown.find("--- ") :]

    def definitions(self) -> dict[str, str]:
        """What is below the ruler: each constant, function and method, with the comments above it."""
        found = {}
        start = self.ruler
        for node in self.tree.body:
            if node.end_lineno > self.ruler:
                prefix = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
                for member in node.body if isinstance(node, ast.ClassDef) else [node]:
                    name = prefix + name_of(member)
                    found[name] = found.get(name, "") + "\n".join(self.lines[start : member.end_lineno]).strip("\n")
                    start = member.end_lineno
        return found


def name_of(node: ast.stmt) -> str:
    if isinstance(node, ast.Import | ast.ImportFrom | ast.With):  # With: around an import of what may be missing
        return "imports"
    if isinstance(node, ast.Assign):
        return ast.unparse(node.targets[0])
    if isinstance(node, ast.Expr):
        return "__doc__"
    return "__main__" if isinstance(node, ast.If) else getattr(node, "name", type(node).__name__)


def load(root: Path) -> dict[str, Script]:
    scripts = {}
    for name in SCRIPTS:
        scripts[name] = Script(root / "cleanrl" / f"{name}.py", scripts)
    return scripts


def git(folder: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=folder, capture_output=True, encoding="utf-8").stdout


# --------------------------------------------------------------------------------------------------------------- Checks
def check_family(script: Script):
    """The diff to the parent, its size, and what is overridden."""
    most_lines, most_hunks, overrides = SCRIPTS[script.name]
    diff = script.diff()
    hunks = diff.count("\n@@ ")
    if script.ruler - 1 > most_lines or hunks > most_hunks:
        yield f"{script.ruler - 1} lines of PPO, {hunks} hunks; at most {most_lines} and {most_hunks}"
    if diff != (script.diff_path.read_text("utf-8") if script.diff_path.is_file() else ""):
        yield "docs/diffs has another diff to its parent: read what differs, then run with --fix"
    if script.parent is None:
        if script.name != "ppo":
            yield "its docstring names no parent that SCRIPTS has above it"
        return
    own = script.definitions()
    parents = script.parent.definitions()
    different = {name for name in [*own, *parents] if own.get(name) != parents.get(name)}
    declared = set(overrides.split())
    stray = {name for name in different if not declared & {name, name.partition(".")[0]}}
    needless = {
        name for name in declared if not different & {name} | {x for x in different if x.startswith(f"{name}.")}
    }
    if stray:
        yield f"not {script.parent.name}.py's: {', '.join(sorted(stray))}; carry the change, or declare an override"
    if needless:
        yield f"no overrides: {', '.join(sorted(needless))}; take them out of SCRIPTS"


def check_options(script: Script):
    """Every option is read somewhere, and not only to see whether its value is allowed."""
    read = set()
    for top in script.tree.body:
        if getattr(top, "name", "") not in ("check_arguments", "check_device"):
            read |= {node.attr for node in ast.walk(top) if isinstance(node, ast.Attribute)}
    for top in script.tree.body:
        if isinstance(top, ast.ClassDef) and top.name == "Args":
            for node in top.body:
                if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
                    continue
                if node.target.id not in read | {"debug"}:  # which shows tracebacks
                    yield f"the option {node.target.id} changes nothing"


def check_tags(script: Script):
    """The details that the docstring names are those on the lines."""
    on_lines = set()
    for line in script.lines[: script.ruler]:
        for part in line.partition("  # ")[2].split("[")[1:]:
            tag = part.partition("]")[0]
            if tag == "impala" or tag.rpartition("-")[2].isdigit():
                on_lines.add(tag)
    named = set()
    for item in script.docstring.partition("\nDetails: ")[2].rstrip(".").split(","):
        first, *rest = item.split()
        family, _, number = first.partition("-")
        last = rest[1].partition("-")[2] if rest[:1] == ["to"] else number
        named |= {f"{family}-{i}" for i in range(int(number), int(last) + 1)} if number else {family}
    if named != on_lines:
        yield f"the docstring's details and the tags on the lines differ: {', '.join(sorted(named ^ on_lines))}"


def check_style(script: Script):
    """Nothing that the house style excludes."""
    tests = set()  # conditions, in which `a and b or c` is what it says
    for node in ast.walk(script.tree):
        if isinstance(node, ast.If | ast.IfExp | ast.While | ast.Assert):
            tests.add(node.test)
        if isinstance(node, ast.comprehension):
            tests.update(node.ifs)
    for node in ast.walk(script.tree):
        excluded = excluded_construct(node)
        if excluded and node not in tests:
            yield f"line {getattr(node, 'lineno', '?')}: {excluded}"


def excluded_construct(node: ast.AST) -> str | None:
    if isinstance(node, ast.NamedExpr):
        return "assigns within an expression"
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        for side in (node.left, node.right):
            if isinstance(side, ast.JoinedStr | ast.BoolOp) or isinstance(getattr(side, "value", None), str | bool):
                return "multiplies text or conditions"
    if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or) and isinstance(node.values[0], ast.BoolOp):
        return "`a and b or c` chooses a value"
    if isinstance(node, ast.Assign) and len(node.targets) > 1:
        return "assigns to several names at once"
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple):
        if not all(len(ast.unparse(name)) == 1 for name in node.targets[0].elts):  # T, N, M = … is one thought
            return "several assignments on one line"
    if isinstance(node, ast.Call):
        called = ast.unparse(node.func)
        if called == "zip" and isinstance(node.args[0], ast.Starred):
            return "unpacks through zip(*…)"
        if called in ("eval", "exec") or (called.startswith("vars(") and called.endswith(".update")):
            return f"calls {called}"
    if isinstance(node, ast.Attribute) and node.attr.startswith("_") and node.attr[1] != "_":
        if ast.unparse(node.value) != "self" and node.attr not in ("_exit", "_fields"):
            return f"uses the private name {node.attr}"
    if isinstance(node, ast.Import | ast.ImportFrom):
        names = [getattr(node, "module", None)] + [alias.name for alias in node.names]
        if {"re", *UNIX_ONLY, *SCRIPTS} & set(names):
            return f"imports {names}"
    if isinstance(node, ast.FunctionDef) and node.end_lineno - node.lineno >= LONGEST_FUNCTION:
        return f"{node.name} has more than {LONGEST_FUNCTION} lines"
    return None


def problems_of(script: Script) -> list[str]:
    problems = []
    for check in (check_family, check_options, check_tags, check_style):
        problems += [f"cleanrl/{script.name}.py: {problem}" for problem in check(script)]
    return problems


def check_all(root: Path) -> list[str]:
    problems = []
    for script in load(root).values():
        problems += problems_of(script)
    for path in sorted((root / "cleanrl").glob("*.py")):
        if path.stem not in SCRIPTS:
            problems.append(f"cleanrl/{path.name}: has no line in SCRIPTS")
    return problems


# --------------------------------------------------------------------------------------------------------------- Change
def fix(root: Path) -> None:
    for script in load(root).values():
        if script.parent:
            script.diff_path.write_text(script.diff(), "utf-8")


def propagate(root: Path, name: str, since: str) -> list[str]:
    """Carries a script's change to its children, and theirs to their children. Returns the conflicts, or what git says
    where it doesn't have the revision."""
    family = {name}
    conflicts = []
    for child in load(root).values():
        if child.parent is None or child.parent.name not in family:
            continue
        family.add(child.name)
        with tempfile.TemporaryDirectory() as folder:
            old_parent = Path(folder) / "old_parent.py"
            words = ["git", "show", f"{since}:cleanrl/{child.parent.name}.py"]
            shown = subprocess.run(words, cwd=root, capture_output=True, encoding="utf-8")
            if shown.returncode:  # merged with nothing, all lines would conflict
                return [*conflicts, f"--since {since}: {shown.stderr.strip()}"]
            old_parent.write_text(shown.stdout, "utf-8")
            words = ["git", "merge-file", "-p", str(child.path), str(old_parent), str(child.parent.path)]
            merged = subprocess.run(words, capture_output=True, encoding="utf-8")
        if merged.returncode == 0:
            child.path.write_text(merged.stdout, "utf-8")
        else:
            conflicts.append(f"cleanrl/{child.name}.py: left as it is; merge by hand:")
            for part in merged.stdout.split("<<<<<<< ")[1:]:
                conflicts.append("<<<<<<< " + part.partition(">>>>>>> ")[0])
    return conflicts


def main(words: list[str] | None = None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fix", action="store_true", help="write docs/diffs/ anew")
    parser.add_argument("--propagate", metavar="SCRIPT", choices=SCRIPTS, help="carry its change to its descendants")
    parser.add_argument("--since", metavar="REVISION", default="HEAD", help="the change is what came since (HEAD)")
    chosen = parser.parse_args(words)
    problems = []
    if chosen.propagate:
        problems += propagate(root, chosen.propagate, chosen.since)
    if chosen.fix or chosen.propagate:
        fix(root)
    problems += check_all(root)
    print(*problems or [f"{len(SCRIPTS)} scripts are one family"], sep="\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
