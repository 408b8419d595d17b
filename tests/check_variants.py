"""Keeps the scripts of cleanrl/ one family: what is copied stays equal, what differs is declared in variants.toml.

    python -m tests.check_variants                      check everything
    python -m tests.check_variants --fix                rewrite docs/diffs/ and the links of docs/details.md, then check
    python -m tests.check_variants --propagate ppo      carry what changed in cleanrl/ppo.py to its descendants
    python -m tests.check_variants --propose new ppo    print a manifest entry for cleanrl/new.py, a child of ppo.py

Each problem is one line, `file · section · what: what is wrong; how to mend it`, and where it helps the lines that
differ. Exit status: 0 all is well, 1 there are problems or conflicts, 2 wrong use or a manifest that can't be read.

A script is cut at its section rulers into sections, and a section into definitions: functions, the members of classes
(`VectorEnv.reset`; `VectorEnv.__doc__` is the class line with the docstring), assignments, and in `main` the steps that
a comment line heads (`main.Collect`). A definition that variants.toml doesn't declare is the same text as the parent's.

--propagate merges three ways, level by level: a child takes the change of its parent (for FROM, the working tree
against the revision of --since; below, what this very run changed). It merges by lines, and inside a line where a copy
has changed that very line; such lines are printed, to be read. All copies that merge cleanly are written, with their
diffs. A copy that conflicts stays as it is, and so do its descendants: either write the change into it by hand (the
numpy scripts say it in other words, and derive their gradients from it), run --propagate on it for its descendants,
and then --fix; or start again with --markers, which writes the conflicts into the file as git does.
"""

import argparse
import ast
import math
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections import defaultdict
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COMMAND = "python -m tests.check_variants"
SECTIONS = (
    "Header", "Arguments", "Environment", "Agent", "Advantages and loss", "Checkpoints", "Evaluation", "Training"
)  # fmt: skip
TAG = re.compile(r"\[([a-z]{3,}-\d+|impala)\]")
METRIC = re.compile(r"(?<![\w/])(?:charts|losses)/[A-Za-z]\w*")
TEST_LINK = re.compile(r"\[`(test_\w+)`\]\(\.\./tests/([\w/]+\.py)(?:#L(\d+))?\)")
FAMILIES = ["core", "atari", "cont", "lstm", "multi", "impala", "aux", "plus"]  # the tags, in the order of the details
LAST_LINES = ['if __name__ == "__main__":', "    main(parse_arguments())"]
Key = tuple[str, str]  # section, definition


class WrongUse(Exception):
    """What the caller can mend: one line on stderr, exit status 2."""


@dataclass(frozen=True)
class Definition:
    line: int  # of its first line in the file, from 1
    text: str


@dataclass
class Script:
    name: str
    text: str
    parent: str | None
    lines: int  # budget
    hunks: int  # budget of the diff to the parent
    tags: list[str]
    differs: dict[str, list[str]]  # section → definitions
    requires_python: str | None = None
    definitions: dict[Key, Definition] = field(default_factory=dict)
    tree: ast.Module | None = None

    @property
    def file(self) -> str:
        return f"cleanrl/{self.name}.py"

    def __post_init__(self):
        self.tag_lines = lines_of_tags(self.text)

    def declares(self, key: Key) -> bool:
        return any(covers(entry, key[1]) for entry in self.differs.get(key[0], []))


@cache
def lines_of_tags(text: str) -> dict[str, list[int]]:
    """The lines, from 1, on which each tag stands."""
    found = {}
    for number, line in enumerate(text.splitlines(), 1):
        for tag in dict.fromkeys(TAG.findall(line)):
            found.setdefault(tag, []).append(number)
    return found


def covers(entry: str, definition: str) -> bool:
    """`VectorEnv` covers all its members, `VectorEnv.reset` itself."""
    return definition == entry or definition.startswith(entry + ".")


def first_line(node: ast.AST) -> int:
    return min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", []))])


def name_of(node: ast.AST) -> str:
    if hasattr(node, "name"):
        return node.name
    targets = getattr(node, "targets", [getattr(node, "target", None)])
    if isinstance(targets[0], ast.Name):
        return targets[0].id
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        return ast.unparse(node.value.func)
    return "__main__" if isinstance(node, ast.If) and "__main__" in ast.unparse(node.test) else ast.unparse(node)[:40]


@cache
def cut(text: str) -> tuple[ast.Module, dict[Key, Definition]]:
    """The syntax tree and the definitions of a script, in its order; every line belongs to one of them. Raises
    ValueError if the rulers or the syntax are wrong."""
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise ValueError(f"line {error.lineno}: {error.msg}; mend it, the rest was not checked") from None
    lines = text.splitlines()
    rulers = [i for i, line in enumerate(lines) if re.match(r"# -{10,}", line)]
    expected = ["# " + "-" * (117 - len(name)) + " " + name for name in SECTIONS[1:]]
    if [lines[i] for i in rulers] != expected:
        wrong = [lines[i].lstrip("# -") for i in rulers if lines[i] not in expected]
        raise ValueError(
            f"its section rulers must be {', '.join(SECTIONS[1:])}, in this order, each 120 characters wide"
            + (f", and not {', '.join(wrong)}" if wrong else "")
            + "; copy them from cleanrl/ppo.py"
        )
    found = {}

    def add(section: str, name: str, start: int, end: int) -> None:
        while start < end and not lines[start].strip():
            start += 1
        content = "\n".join(lines[start:end]).rstrip("\n")
        if before := found.get((section, name)):  # a second definition of the same name
            content = f"{before.text}\n{content}"
            start = before.line - 1
        if content:
            found[section, name] = Definition(start + 1, content)

    metadata_end = next((i + 1 for i, line in enumerate(lines) if line == "# ///"), 0)
    docstring_end = tree.body[0].end_lineno if ast.get_docstring(tree) else metadata_end
    add("Header", "metadata", 0, metadata_end)
    add("Header", "docstring", metadata_end, docstring_end)
    add("Header", "imports", docstring_end, rulers[0])
    for section, start, end in zip(SECTIONS[1:], rulers, [*rulers[1:], len(lines)]):
        nodes = [node for node in tree.body if start < first_line(node) - 1 < end]
        start += 1
        for node, stop in zip(nodes, [*(node.end_lineno for node in nodes[:-1]), end]):
            name = name_of(node)
            if isinstance(node, ast.ClassDef):
                members = node.body[1:] if ast.get_docstring(node) else node.body
                head = max([node.lineno, *(base.end_lineno for base in node.bases)])
                head = node.body[0].end_lineno if ast.get_docstring(node) else head
                add(section, f"{name}.__doc__", start, head)
                start = head
                for member, member_stop in zip(members, [*(member.end_lineno for member in members[:-1]), stop]):
                    add(section, f"{name}.{name_of(member)}", start, member_stop)
                    start = member_stop
            elif name == "main":
                steps = [(start, "Begin")]
                for i in range(node.lineno, stop):
                    if heading := re.match(r"\s+# ([A-Z][^,]*)", lines[i]):
                        steps.append((i, heading[1]))
                closing = [i for i in range(steps[-1][0], stop) if re.match(" {4}(except|finally)", lines[i])]
                steps += [(closing[0], "End")] if closing else []
                for (step, heading), step_end in zip(steps, [*(step for step, _ in steps[1:]), stop]):
                    add(section, f"main.{heading}", step, step_end)
            else:
                add(section, name, start, stop)
            start = stop
    return tree, found


@cache
def visited(text: str) -> list[ast.AST]:
    """The nodes of a script that the checks look at."""
    kinds = (ast.Attribute, ast.Constant, ast.Import, ast.ImportFrom)
    return [node for node in ast.walk(cut(text)[0]) if isinstance(node, kinds)]


# ----------------------------------------------------------------------------------------------------------- Repository


def natural(tag: str) -> tuple[str, int]:
    """Sorts core-2 before core-10."""
    family, _, number = tag.partition("-")
    return family, int(number or 0)


def expand(tags: list[str]) -> list[str]:
    """["core-1..3", "impala"] → ["core-1", "core-2", "core-3", "impala"]. Raises ValueError."""
    expanded = []
    for tag in tags:
        if not (match := re.fullmatch(r"([a-z]+)-(\d+)(?:\.\.(\d+))?|impala", tag)):
            raise ValueError(f"{tag!r} is no tag; write core-1, core-1..13 or impala")
        if match[1]:
            numbers = range(int(match[2]), int(match[3] or match[2]) + 1)
            expanded += [f"{match[1]}-{number}" for number in numbers]
        else:
            expanded.append(tag)
    return expanded


class Repository:
    """The scripts with their manifest entries, in an order in which a parent comes before its children."""

    def __init__(self, root: Path):
        self.root, self.problems = root, []
        try:
            manifest = tomllib.loads((root / "tests" / "variants.toml").read_text())
            self.packages = manifest.pop("packages", {})
            self.optional_imports = manifest.pop("optional_imports", [])
            self.awaited = expand(manifest.pop("awaited", []))
            entries = manifest.pop("scripts")
            if manifest:
                raise ValueError(f"unknown key {next(iter(manifest))!r}")
            self.scripts = {}
            waiting = dict(entries)
            while ready := [name for name, x in waiting.items() if x.get("parent") in (None, *self.scripts)]:
                for name in ready:
                    self.scripts[name] = self.read_script(name, waiting.pop(name))
            for name, entry in waiting.items():
                raise ValueError(f"scripts.{name}: its parent {entry['parent']!r} has no entry, or is its descendant")
            if not self.scripts:
                raise ValueError("no scripts")
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            lacks = "no [scripts.NAME] or a key of it: " if isinstance(error, KeyError) else ""
            message = " ".join(f"{lacks}{error}".replace(f"{root}/", "").split())
            raise WrongUse(f"tests/variants.toml: {message}; its first lines say how an entry looks") from None
        for name in list(self.scripts):
            if not self.scripts[name].text:
                self.problem(f"cleanrl/{name}.py", "is not there; write it, or take out its entry in variants.toml")
                self.forget(name)
        for path in sorted((root / "cleanrl").glob("*.py")):
            if path.stem not in entries:
                propose = f"`{COMMAND} --propose {path.stem} PARENT` prints one"
                self.problem(f"cleanrl/{path.name}", f"has no entry in tests/variants.toml; {propose}")
        for name, script in list(self.scripts.items()):
            try:
                script.tree, script.definitions = cut(script.text)
            except ValueError as error:
                self.problem(script.file, str(error))
                self.forget(name)

    def read_script(self, name: str, entry: dict) -> Script:
        path = self.root / "cleanrl" / f"{name}.py"
        text = path.read_text() if path.is_file() else ""
        try:
            known = {"parent", "lines", "hunks", "tags", "differs", "requires-python"}
            if unknown := entry.keys() - known:
                raise ValueError(f"unknown key {min(unknown)!r}")
            differs = entry.get("differs", {})
            if unknown := differs.keys() - set(SECTIONS):
                raise ValueError(f"differs has {min(unknown)!r}, which is no section")
            for section, names in differs.items():
                if not isinstance(names, list) or not names or not all(isinstance(x, str) for x in names):
                    raise ValueError(f"differs.{section} must be a list of definitions")
            if differs and "parent" not in entry:
                raise ValueError("differs, but has no parent")
            hunks = entry["hunks"] if "parent" in entry else 0
            if not isinstance(entry["lines"], int) or not isinstance(hunks, int):
                raise ValueError("lines and hunks must be whole numbers")
            return Script(
                name, text, entry.get("parent"), entry["lines"], hunks, expand(entry["tags"]), differs,
                entry.get("requires-python"),
            )  # fmt: skip
        except KeyError as error:
            raise ValueError(f"scripts.{name}: lacks {error}") from None
        except (ValueError, TypeError, AttributeError) as error:
            raise ValueError(f"scripts.{name}: {error}") from None

    def forget(self, name: str) -> None:
        """Takes out a script that can't be checked, and its descendants."""
        for other in [x.name for x in self.children(name)]:
            self.forget(other)
        self.scripts.pop(name, None)

    def children(self, name: str) -> list[Script]:
        return [script for script in self.scripts.values() if script.parent == name]

    def descendants(self, name: str) -> list[Script]:
        """Level by level."""
        found = self.children(name)
        for script in found:
            found += self.children(script.name)
        return found

    def problem(self, where: str, message: str, *lines: str) -> None:
        self.problems.append("\n".join([f"{where}: {message}", *(f"    {line}" for line in lines)]))

    def owner(self, script: Script, key: Key) -> Script:
        """The topmost script whose text of this definition the script shares by its declarations."""
        while script.parent and not script.declares(key):
            script = self.scripts[script.parent]
        return script

    def golden(self, script: Script) -> Path:
        return self.root / "docs" / "diffs" / f"{script.name}.diff"


# --------------------------------------------------------------------------------------------------------------- Checks


def changed_lines(one: Script, other: Script, key: Key) -> list[str]:
    """The lines of a definition that differ, - in `one` and + in `other`, with their places."""
    texts, shown = [], []
    for script in (one, other):
        definition = script.definitions.get(key, Definition(1, ""))
        texts.append((script.file, definition.line, definition.text.splitlines()))
    (file, line, a), (other_file, other_line, b) = texts
    for kind, i, j, k, n in SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        if kind != "equal":
            shown += [f"- {file}:{line + x}: {a[x]}" for x in range(i, j)]
            shown += [f"+ {other_file}:{other_line + x}: {b[x]}" for x in range(k, n)]
    return shown if len(shown) <= 20 else [*shown[:20], f"… and {len(shown) - 20} lines more"]


def check_family(repo: Repository) -> set[str]:
    """Definitions equal their owner's or are declared; what is declared differs. Returns the scripts whose diff to the
    parent can't be judged before that is mended."""
    strays = defaultdict(list)  # (owner, definition) → scripts whose text is another
    for script in repo.scripts.values():
        if not script.parent:
            continue
        parent = repo.scripts[script.parent]
        keys = dict.fromkeys([*parent.definitions, *script.definitions])
        for key in keys:
            owner = repo.owner(script, key)
            if owner is not script and not same(script, owner, key):
                strays[owner.name, key].append(script)
        for section, names in script.differs.items():
            for name in names:
                if not any(
                    key[0] == section and covers(name, key[1]) and not same(script, parent, key) for key in keys
                ):
                    repo.problem(
                        f"{script.file} · {section} · {name}",
                        f"is declared to differ from {parent.file}, but doesn't; take it out of "
                        f"[scripts.{script.name}.differs] in tests/variants.toml",
                    )
        for section in SECTIONS:
            order = [key for key in script.definitions if key[0] == section and key in parent.definitions]
            parents = [key for key in parent.definitions if key[0] == section and key in script.definitions]
            if order != parents:
                first = next(key[1] for key, other in zip(order, parents) if key != other)
                repo.problem(
                    f"{script.file} · {section} · {first}",
                    f"stands in another place than in {parent.file}; put the definitions into the parent's order",
                )
    disturbed = set()
    for (owner_name, key), scripts in strays.items():
        owner = repo.scripts[owner_name]
        sharers = [x for x in repo.descendants(owner_name) if repo.owner(x, key) is owner]
        disturbed |= {script.name for script in scripts}
        disturbed |= {child.name for script in scripts for child in repo.children(script.name)}
        texts = {script.definitions[key].text if key in script.definitions else None for script in scripts}
        place, propagate = f"{key[0]} · {key[1]}", f"`{COMMAND} --propagate {owner_name}`"
        if len(sharers) == len(scripts) > 1 and len(texts) == 1:
            names = ", ".join(f"{script.name}.py" for script in scripts)
            repo.problem(
                f"{owner.file} · {place}",
                f"was changed, but its copies were not ({names}); carry it down with {propagate}, or undo it",
                *changed_lines(scripts[0], owner, key),
            )
            continue
        for script in scripts:
            what = "differs from" if key in owner.definitions else "is not in"
            what = what if key in script.definitions else "is missing here, but not in"
            repo.problem(
                f"{script.file} · {place}",
                f"{what} {owner.file}, which owns it; make the change there and carry it down with {propagate}, or "
                f"undo it here; if this script must differ, add {key[1]!r} to {key[0]!r} in "
                f"[scripts.{script.name}.differs] of tests/variants.toml",
                *changed_lines(owner, script, key),
            )
    return disturbed


def same(one: Script, other: Script, key: Key) -> bool:
    a, b = one.definitions.get(key), other.definitions.get(key)
    return (a and a.text) == (b and b.text)


def check_flags(repo: Repository, script: Script) -> None:
    """Every field of Args is read, and only fields are read. That validate looks at a flag doesn't make it work."""
    args = next((node for node in script.tree.body if isinstance(node, ast.ClassDef) and node.name == "Args"), None)
    if args is None:
        return repo.problem(f"{script.file} · Arguments", "has no class Args; tyro reads the command line from it")
    flags = {node.target.id: node.lineno for node in args.body if isinstance(node, ast.AnnAssign)}
    methods = {node.name: node for node in args.body if isinstance(node, ast.FunctionDef)}
    read = defaultdict(list)  # name → lines
    for node in visited(script.text):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in ("args", "run"):
            read[node.attr].append(node.lineno)
    pending = [name for name in methods if name in read]
    for name in pending:
        for node in ast.walk(methods[name]):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
                if node.attr in methods and node.attr not in read:
                    pending.append(node.attr)
                read[node.attr].append(node.lineno)
    validate = next((node for node in script.tree.body if getattr(node, "name", "") == "validate"), args)
    validate_lines = range(validate.lineno, validate.end_lineno + 1) if validate is not args else ()
    for name in [*flags, *methods]:
        if all(line in validate_lines for line in read.get(name, [])):
            flag = f"--{name.replace('_', '-')}" if name in flags else f"the property {name}"
            repo.problem(
                f"{script.file} · Arguments · Args.{name}",
                f"{flag} is declared but nothing but validate reads args.{name}; use it, or take it out",
            )
    in_args = range(args.lineno, args.end_lineno + 1)
    for name in read.keys() - flags.keys() - methods.keys():
        if lines := [line for line in read[name] if line in in_args or is_args(script, line, name)]:
            repo.problem(
                f"{script.file} · {section_of(script, lines[0])} · line {lines[0]}",
                f"reads args.{name}, which Args doesn't declare; declare it in Arguments, or don't read it",
            )
    for node in script.tree.body:
        if getattr(node, "name", "") in ("validate", "merge_arguments"):
            for line, words in name_lists(node):
                if len(words & flags.keys()) and (unknown := words - flags.keys()):
                    repo.problem(
                        f"{script.file} · {section_of(script, line)} · {node.name}",
                        f"names {min(unknown)!r} among the arguments, which Args doesn't declare; take it out there",
                    )


def is_args(script: Script, line: int, name: str) -> bool:
    """`run` is also what other things are called (subprocess.run has a value of another name, wandb's run not)."""
    return bool(re.search(rf"\bargs\.{name}\b", script.text.splitlines()[line - 1]))


@cache
def name_lists(function: ast.AST) -> list[tuple[int, set[str]]]:
    """Line and words of each literal list of argument names: sets, and texts of nothing but names."""
    inside_f = {id(x) for node in ast.walk(function) if isinstance(node, ast.JoinedStr) for x in ast.walk(node)}
    found = []
    for node in ast.walk(function):
        if isinstance(node, ast.Set) and all(isinstance(x, ast.Constant) for x in node.elts):
            found.append((node.lineno, {str(x.value) for x in node.elts}))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside_f:
            if re.fullmatch(r" ?[a-z_]+( [a-z_]+)*", node.value):
                found.append((node.lineno, set(node.value.split())))
    return found


def section_of(script: Script, line: int) -> str:
    """Section and definition of a line of the file."""
    before = [key for key, definition in script.definitions.items() if definition.line <= line]
    return before[-1][0] if before else SECTIONS[0]


def check_tags(repo: Repository, script: Script) -> None:
    """The tags on the lines, those of the manifest and those of the header are the same."""
    found, declared = script.tag_lines, set(script.tags)
    for tag in found.keys() - declared:
        line = found[tag][0]
        repo.problem(
            f"{script.file} · {section_of(script, line)} · line {line}",
            f"carries [{tag}], which tests/variants.toml doesn't list for it; add it to its tags there (and to the "
            "header's Details), or correct the tag",
        )
    for tag in sorted(declared - found.keys()):
        repo.problem(
            f"{script.file} · tags",
            f"[{tag}] is in tests/variants.toml, but on no line; put it on the line that implements the detail, or "
            "take it out of the tags",
        )
    docstring = ast.get_docstring(script.tree) or ""
    details = re.search(r"^Details: (.*?)(?:\n\n|\Z)", docstring, re.DOTALL | re.MULTILINE)
    named = set()
    for first, last, other in re.findall(
        r"([a-z]{3,}-\d+)(?:\s+to\s+([a-z]{3,}-\d+))?|\b(impala)\b",
        re.sub(r"\(.*?\)", "", details[1], flags=re.DOTALL) if details else "",
    ):
        named |= set(expand([f"{first}..{last.split('-')[1]}" if last else first or other]))
    if named != declared:
        odd = [f"lacks {tag}" for tag in sorted(declared - named, key=natural)]
        odd += [f"names {tag}" for tag in sorted(named - declared, key=natural)]
        repo.problem(
            f"{script.file} · Header · docstring",
            f"its line `Details:` {odd[0]}, unlike its tags in tests/variants.toml; correct either",
        )
    parent = re.search(r"^Parent: (?:none|(\w+)\.py)", docstring, re.MULTILINE)
    if not parent or parent[1] != script.parent:
        stated = f"{script.parent}.py" if script.parent else "none"
        repo.problem(
            f"{script.file} · Header · docstring",
            f"must say `Parent: {stated}`, as tests/variants.toml does; correct either",
        )


def check_metrics(repo: Repository) -> None:
    """One list of metrics in all scripts; what a script writes is in it, and what is in it is written; so for docs."""
    trunk = next(script for script in repo.scripts.values() if not script.parent)
    lists = {}
    for script in repo.scripts.values():
        nodes = [node for node in script.tree.body if isinstance(node, ast.Assign) and name_of(node) == "METRICS"]
        place = f"{script.file} · Checkpoints · METRICS"
        try:
            lists[script.name] = ast.literal_eval(nodes[0].value)
        except (IndexError, ValueError):
            repo.problem(place, "is not a list of names; write it as in cleanrl/ppo.py")
            continue
        inside = {id(x) for x in ast.walk(nodes[0])}
        written = defaultdict(int)
        for node in visited(script.text):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
                if METRIC.fullmatch(node.value):
                    written[node.value] = written[node.value] or node.lineno
        for name in written.keys() - set(lists[script.name]):
            repo.problem(
                f"{script.file} · {section_of(script, written[name])} · line {written[name]}",
                f"uses the metric {name!r}, which METRICS doesn't list; list it in METRICS, or correct the name",
            )
        for name in set(lists[script.name]) - written.keys():
            repo.problem(place, f"lists {name!r}, which nothing writes; write it, or take it out")
        if lists[script.name] != lists.get(trunk.name):
            odd = set(lists[script.name]) ^ set(lists.get(trunk.name, []))
            what = f"{min(odd)!r} is in one of them only" if odd else "their order differs"
            repo.problem(place, f"is not {trunk.file}'s: {what}; metrics have one name in all scripts")
    known = set(lists.get(trunk.name, []))
    documents = [repo.root / "README.md", *sorted((repo.root / "docs").rglob("*.md"))]
    tables = 0
    for path in documents:
        text, file = path.read_text(), path.relative_to(repo.root)
        for number, line in enumerate(text.splitlines(), 1):
            for name in METRIC.findall(line):
                if name not in known:
                    repo.problem(f"{file}:{number}", f"{name!r} is no metric of the scripts; correct the name")
        for table in re.findall(r"^\| metric \|.*\n\|[-| :]+\|\n((?:\|.*\n)+)", text, re.MULTILINE):
            tables += 1
            listed = {x for row in table.splitlines() for x in METRIC.findall(row.split("|")[1])}
            for name in sorted(known - listed):
                repo.problem(f"{file} · table of metrics", f"lacks {name!r}; add a row that says what it means")
    if not tables:
        repo.problem("README.md", "has no table of metrics (| metric | meaning |); write one")


def requirement(text: str) -> tuple[str, set[str], str | None]:
    """'Gymnasium[mujoco]==1.4.0' → name, extras, version."""
    match = re.match(r"([\w.-]+)(?:\[([^]]*)\])?\s*(?:==\s*([\w.+]+))?", text)
    extras = {extra.strip() for extra in (match[2] or "").split(",")} - {""}
    return re.sub(r"[-_.]+", "-", match[1]).lower(), extras, match[3]


def check_metadata(repo: Repository) -> None:
    """The inline metadata (PEP 723) names what the script imports, in pyproject.toml's versions."""
    project = tomllib.loads((repo.root / "pyproject.toml").read_text())["project"]
    pins, extras_of, sources = {}, defaultdict(set), {}
    for path in sorted(repo.root.glob("requirements*.txt")):
        for line in path.read_text().splitlines():
            if line and not line.startswith(("#", "-")):
                name, _, version = requirement(line)
                pins[name], sources[name] = version, path.name
    offered = [x for group in (project["dependencies"], *project["optional-dependencies"].values()) for x in group]
    for line in offered:
        name, extras, version = requirement(line)
        extras_of[name] |= extras
        if version:
            pins[name], sources[name] = version, "pyproject.toml"
    files = {path.stem for folder in ("cleanrl", "tests", "benchmark") for path in (repo.root / folder).glob("*.py")}
    for script in repo.scripts.values():
        place = f"{script.file} · Header · metadata"
        block = re.match(r"# /// script\n((?:#(?: .*)?\n)+?)# ///\n", script.text)
        try:
            metadata = tomllib.loads(re.sub(r"^# ?", "", block[1], flags=re.MULTILINE))
            dependencies = [requirement(line) for line in metadata["dependencies"]]
            python = metadata["requires-python"]
        except (TypeError, KeyError, ValueError):
            repo.problem(place, "is no inline metadata with requires-python and dependencies; see cleanrl/ppo.py")
            continue
        expected = script.requires_python or project["requires-python"]
        if python != expected or not expected.startswith(project["requires-python"]):
            repo.problem(
                place,
                f"requires-python is {python!r}, but pyproject.toml has {project['requires-python']!r}; if the script "
                "needs a narrower one, give its entry in tests/variants.toml a requires-python too",
            )
        overrides = metadata.get("tool", {}).get("uv", {}).get("override-dependencies", [])
        for name, extras, version in [*dependencies, *map(requirement, overrides)]:
            if name not in pins:
                repo.problem(place, f"{name} is not offered by pyproject.toml; add it to an extra, or take it out here")
            elif version != pins[name]:
                repo.problem(place, f"has {name}=={version}, but {sources[name]} has {pins[name]}; use one version")
            for extra in sorted(extras - extras_of[name]):
                repo.problem(place, f"has {name}[{extra}], but pyproject.toml has no such extra; use what it has")
        names = {name for name, _, _ in dependencies}
        for node in visited(script.text):
            if isinstance(node, ast.Import):
                modules = [alias.name.split(".")[0] for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                modules = [(node.module or "").split(".")[0] if not node.level else script.name]
            else:
                continue
            for module in modules:
                if module in files:
                    repo.problem(
                        f"{script.file} · {section_of(script, node.lineno)} · line {node.lineno}",
                        "imports another file of the repository; a script must run alone: copy what it needs",
                    )
                elif module not in sys.stdlib_module_names and module not in repo.optional_imports:
                    package = repo.packages.get(module, module)
                    if package not in names:
                        repo.problem(place, f"lacks {package}, which line {node.lineno} imports; add it, pinned")


def check_golden(repo: Repository, disturbed: set[str]) -> None:
    """docs/diffs/ holds every script's diff to its parent, as it is, within the budgets of lines and hunks."""
    for script in repo.scripts.values():
        count = script.text.count("\n")
        if count > script.lines:
            repo.problem(
                script.file,
                f"has {count} lines, its budget in tests/variants.toml is {script.lines}; shorten it, or raise the "
                "budget with a reason",
            )
        if script.text.splitlines()[-2:] != LAST_LINES:
            repo.problem(f"{script.file} · Training", f"must end with {LAST_LINES[0]!r} and {LAST_LINES[1].strip()!r}")
        if not script.parent:
            continue
        diff = diff_to_parent(repo, script)
        hunks = len(re.findall("^@@", diff, re.MULTILINE))
        if hunks > script.hunks and script.name not in disturbed:
            repo.problem(
                script.file,
                f"differs from {script.parent}.py in {hunks} hunks (diff -U3), its budget in tests/variants.toml is "
                f"{script.hunks}; keep more of the parent's text, or raise the budget with a reason",
            )
        golden = repo.golden(script)
        kept = golden.read_text() if golden.is_file() else None
        if kept != diff and script.name not in disturbed:
            what = f"is not the diff from {script.parent}.py to {script.name}.py any more" if kept else "is missing"
            was = set((kept or "").splitlines())
            now = [line for line in diff.splitlines() if line not in was and line[:1] in "+-"] if kept else []
            repo.problem(
                f"docs/diffs/{golden.name}",
                f"{what}; if the difference is meant, run `{COMMAND} --fix` and commit the file",
                *now[:10],
                *([f"… and {len(now) - 10} lines more"] if len(now) > 10 else []),
            )
    for path in sorted((repo.root / "docs" / "diffs").glob("*.diff")):
        if path.stem not in repo.scripts or not repo.scripts[path.stem].parent:
            repo.problem(f"docs/diffs/{path.name}", f"belongs to no script with a parent; run `{COMMAND} --fix`")


# --------------------------------------------------------------------------------------------------------- The details


class Details:
    """docs/details.md: a section a tag. Its prose is written by hand; --fix keeps the lines of its links."""

    def __init__(self, repo: Repository):
        self.repo, self.path = repo, repo.root / "docs" / "details.md"
        self.text = self.path.read_text() if self.path.is_file() else ""

    def sections(self) -> dict[str, str]:
        parts = re.split(r"^### `([\w-]+)`\n", self.text, flags=re.MULTILINE)
        return {tag: re.split(r"^## ", part, flags=re.MULTILINE)[0] for tag, part in zip(parts[1::2], parts[2::2])}

    def code(self, tag: str) -> str:
        """The generated line with a link to every line that carries the tag."""
        links = [
            f"[{script.name}.py:{line}](../cleanrl/{script.name}.py#L{line})"
            for script in self.repo.scripts.values()
            for line in script.tag_lines.get(tag, [])
        ]
        return "Code: " + (" · ".join(links) if links else "no script carries it yet.")

    def test_line(self, file: str, test: str) -> int | None:
        path = self.repo.root / "tests" / file
        found = re.search(rf"^def {test}\(", path.read_text(), re.MULTILINE) if path.is_file() else None
        return found and path.read_text()[: found.start()].count("\n") + 1

    def fixed(self) -> str:
        """The text with every link to its present line; a link to a test that isn't there stays."""

        def code(match: re.Match) -> str:
            return f"<!-- code {match[1]} -->\n{self.code(match[1])}\n<!-- end of code -->"

        def test(match: re.Match) -> str:
            line = self.test_line(match[2], match[1])
            return f"[`{match[1]}`](../tests/{match[2]}#L{line})" if line else match[0]

        text = re.sub(r"<!-- code (\S+) -->\n(?:.*\n)*?<!-- end of code -->", code, self.text)
        return TEST_LINK.sub(test, text)

    def check(self) -> None:
        repo, sections = self.repo, self.sections()
        carried = {tag for script in repo.scripts.values() for tag in script.tag_lines}
        for tag in sorted(carried - sections.keys(), key=natural):
            repo.problem(f"docs/details.md · {tag}", "has no section; say what it is, why, its source and its test")
        for tag in sorted(carried & set(repo.awaited), key=natural):
            repo.problem(
                f"docs/details.md · {tag}",
                "a script carries it now; take it out of `awaited` in tests/variants.toml",
            )
        for tag, section in sections.items():
            place = f"docs/details.md · {tag}"
            if tag not in carried and tag not in repo.awaited:
                repo.problem(place, "no script carries it; take the section out, or add the tag to `awaited`")
            for part in ("**", "\nWhy: ", "\nSource: ", f"\n<!-- code {tag} -->\n", "\nTest: "):
                if part not in section:
                    repo.problem(place, f"lacks {part.strip()!r}; see the other sections")
            tests = TEST_LINK.findall(section.partition("\nTest: ")[2])
            if tag in repo.awaited:
                continue
            if not tests:
                repo.problem(place, "links no test; write Test: [`test_name`](../tests/test_file.py)")
            for test, file, _ in tests:
                if not (repo.root / "tests" / file).is_file():
                    repo.problem(place, f"links ../tests/{file}, which is not there; name the file that holds the test")
                elif not self.test_line(file, test):
                    repo.problem(place, f"tests/{file} holds no test function {test}; name one that proves the detail")
        lines = [x for x in zip(self.text.splitlines(), self.fixed().splitlines()) if x[0] != x[1]]
        if lines:
            links = [re.findall(r"\[[^]]*\]\(\S*?\)", line) for line in lines[0]]
            gone, new = [x for x in links[0] if x not in links[1]], [x for x in links[1] if x not in links[0]]
            repo.problem(
                "docs/details.md",
                f"links in {len(lines)} of its lines are not where tags and tests are now; run `{COMMAND} --fix`",
                *[f"- {link}" for link in gone],
                *[f"+ {link}" for link in new],
            )

    def write(self) -> bool:
        fixed = self.fixed()
        if fixed != self.text:
            self.path.write_text(fixed)
        changed, self.text = fixed != self.text, fixed
        return changed


# ------------------------------------------------------------------------------------------------------------------ Git


def git(*words: str, cwd: Path) -> subprocess.CompletedProcess:
    """Runs git without the user's and the repository's settings of how diffs look."""
    bare = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    elsewhere = {"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"}
    inherited = {name: value for name, value in os.environ.items() if name not in elsewhere}
    try:
        return subprocess.run(["git", *words], cwd=cwd, env=inherited | bare, capture_output=True, text=True)
    except FileNotFoundError:
        raise WrongUse("git is not installed; diffs and merges need it") from None


def diff_to_parent(repo: Repository, script: Script) -> str:
    parent = repo.scripts[script.parent]
    return unified_diff(parent.name, parent.text, script.name, script.text)


@cache
def unified_diff(name: str, text: str, other_name: str, other_text: str) -> str:
    """What `diff -U3` prints, with labels a/parent.py and b/script.py, and without the names of this machine."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, f"{name}.py").write_text(text)
        Path(folder, f"{other_name}.py").write_text(other_text)
        words = ("--no-index", "--no-color", "--no-ext-diff", "-U3", f"{name}.py", f"{other_name}.py")
        diff = git("diff", *words, cwd=Path(folder)).stdout
    return diff[diff.find("--- ") :] if diff else ""


@dataclass
class Merge:
    text: str = ""  # with markers around what conflicts
    inside: list[tuple[int, str, str]] = field(default_factory=list)  # lines merged inside: number in text, old, new
    conflicts: list[tuple[str, list[str]]] = field(default_factory=list)  # section and definition, both sides' lines


def merge_file(child: str, old_parent: str, new_parent: str) -> tuple[str, bool]:
    """git's three-way merge by lines, and whether it is clean."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in (("child", child), ("old_parent", old_parent), ("new_parent", new_parent)):
            Path(folder, name).write_text(text)
        merged = git("merge-file", "-p", "--diff3", "child", "old_parent", "new_parent", cwd=Path(folder))
    if merged.returncode < 0 or merged.returncode > 127:
        raise WrongUse(f"git merge-file failed: {merged.stderr.strip()}")
    return merged.stdout, merged.returncode == 0


def merge(child: str, old_parent: str, new_parent: str) -> Merge:
    """The three-way merge by lines, and inside the lines where that conflicts."""
    result, childs, starts, side = Merge(), [], [], None  # childs: the merge, with the child's side of each conflict
    for line in merge_file(child, old_parent, new_parent)[0].splitlines(keepends=True):
        if line.startswith("<<<<<<< "):
            side, marked, sides = "child", "", {"child": [], "old parent": [], "new parent": []}
        elif side and line.startswith("||||||| "):
            side = "old parent"
        elif side == "old parent" and line == "=======\n":
            side = "new parent"
        elif side and line.startswith(">>>>>>> "):
            lines = merge_inside(*sides.values())
            if lines is None:
                starts.append((len(childs) + 1, sides))
                result.text += marked + line
                childs += sides["child"]
            else:
                for old, new in zip(sides["child"], lines):
                    result.text += new
                    if new != old and old not in sides["old parent"]:
                        result.inside.append((result.text.count("\n"), old, new))
                childs += lines
            side = None
            continue
        elif not side:
            result.text += line
            childs.append(line)
            continue
        else:
            sides[side].append(line)
        marked += line
    try:
        places = list(cut("".join(childs))[1].items())
    except ValueError:
        places = []
    for start, sides in starts:
        last = max(start, start + len(sides["child"]) - 1)
        before = [" · ".join(key) for key, definition in places if definition.line <= last]
        block = [f"{side + ':':<12}{line}".rstrip("\n") for side, lines in sides.items() for line in lines]
        result.conflicts.append((before[-1] if before else "somewhere", block))
    return result


def merge_inside(child: list[str], old_parent: list[str], new_parent: list[str]) -> list[str] | None:
    """The child's side of a conflict with the parent's change inside its lines; None where that is unsure.

    A line that the parent changed into one other has to have one counterpart: the same line, or else the only line
    that begins with the same word and whose own differences leave the changed tokens and their neighbours alone.
    """
    merged, changed = list(child), []
    for kind, i, j, k, n in SequenceMatcher(None, old_parent, new_parent, autojunk=False).get_opcodes():
        if kind != "equal" and j - i != n - k:
            return None
        changed += zip(old_parent[i:j], new_parent[k:n]) if kind != "equal" else []
    for old, new in changed:
        candidates = [x for x, line in enumerate(child) if line in (old, new)]
        candidates = candidates or [x for x, line in enumerate(child) if line.split()[:1] == old.split()[:1]]
        fits = [(x, text) for x in candidates if (text := merge_line(child[x], old, new))]
        if len(fits) != 1 or merged[fits[0][0]] != child[fits[0][0]]:
            return None
        merged[fits[0][0]] = fits[0][1]
    return merged


def merge_line(child: str, old_parent: str, new_parent: str) -> str | None:
    """A line with the parent's change; as it is if it has it already; None if the two conflict."""
    if merged := merge_tokens(child, old_parent, new_parent):
        return merged
    without = merge_tokens(child, new_parent, old_parent)
    return child if without and without != child and merge_tokens(without, old_parent, new_parent) == child else None


def merge_tokens(child: str, old_parent: str, new_parent: str) -> str | None:
    """A line, merged by numbers, words, spaces and signs; None if it conflicts, which changes that touch do, unless the
    child inserts beside a token that the parent replaced."""
    token = r"\d[\d_.]*(?:e[-+]?\d+)?|\w+|\s+|[^\w\s]"
    base, *sides = (re.findall(token, line) for line in (old_parent, child, new_parent))
    edits = {}  # from, to in base → tokens, of the child or the parent
    for side in sides:
        for kind, i, j, k, n in SequenceMatcher(None, base, side, autojunk=False).get_opcodes():
            if kind == "equal" or edits.get((i, j)) == side[k:n]:
                continue
            for start, end in edits if side is sides[1] else ():
                beside = start == end and i < j and start in (i, j)
                if start <= j and i <= end and not beside:
                    return None
            edits[i, j] = side[k:n]
    for (i, j), tokens in sorted(edits.items(), reverse=True):
        base[i:j] = tokens
    return "".join(base)


def by_hand(child: Script, old_parent: str, new_parent: str) -> bool:
    """Whether the parent's change concerns a derivative that the child writes out itself, having no autograd."""
    if re.search("^import torch", child.text, re.MULTILINE):
        return False
    try:
        old, new = cut(old_parent)[1], cut(new_parent)[1]
    except ValueError:
        return False
    changed = [key for key in {**old, **new} if key not in old or key not in new or old[key].text != new[key].text]
    return any(key[0] in ("Agent", "Advantages and loss") and child.declares(key) for key in changed)


def propagate(repo: Repository, source: str, since: str, markers: bool) -> bool:
    """Carries the change of a script to its descendants, see the top. Returns whether there was no conflict."""
    script = find(repo, source)
    shown = git("show", f"{since}:./{script.file}", cwd=repo.root)
    if shown.returncode:
        reason = shown.stderr.strip().splitlines()[0] if shown.stderr.strip() else "git failed"
        raise WrongUse(f"--since {since}: git finds no {script.file} there ({reason}); name a revision that has it")
    if shown.stdout == script.text:
        raise WrongUse(f"{script.file} is as in {since}; change it first, or name an older revision with --since")
    if not repo.children(script.name):
        raise WrongUse(f"{script.file} has no children; there is nothing to carry its change to")
    before, after = {script.name: shown.stdout}, {script.name: script.text}
    conflicting = []
    for child in repo.descendants(script.name):
        parent = child.parent
        if parent not in after:
            print(f"{child.file}: left as it is, since {parent}.py is")
            continue
        merged = merge(child.text, before[parent], after[parent])
        clean = not merged.conflicts
        try:
            ast.parse(merged.text)
        except SyntaxError as error:
            if clean:
                print(f"{child.file}: the merge is no Python any more, line {error.lineno}; carry the change by hand")
            clean = False
        derived = by_hand(child, before[parent], after[parent])
        hint = "; its gradients are by hand: change what depends on it, tests/test_numpy.py compares" if derived else ""
        if clean or markers:
            for line, old, new in merged.inside:
                said = f"{child.file}:{line}: merged inside a line that differs from {parent}.py's; read it"
                print(f"{said}\n    - {old}    + {new}", end="")
        if clean:
            before[child.name], after[child.name] = child.text, merged.text
            print(f"{child.file}: {'has the change already' if merged.text == child.text else 'carried'}{hint}")
            continue
        conflicting.append(child)
        for place, block in merged.conflicts:
            outcome = "is marked in the file, choose there" if markers else "the file is left as it is, edit it by hand"
            below = (
                f"`{COMMAND} --propagate {child.name}` for its descendants and " if repo.children(child.name) else ""
            )
            mend = f"{outcome}{hint}; then {below}`{COMMAND} --fix`"
            print("\n".join([f"{child.file} · {place}: conflict; {mend}", *(f"    {line}" for line in block)]))
        if markers:
            (repo.root / child.file).write_text(merged.text)
    for name, text in after.items():
        changed = repo.scripts[name]
        if text != changed.text:
            (repo.root / changed.file).write_text(text)
            changed.text = text
    for name in after:
        if repo.scripts[name].parent:
            write_golden(repo, repo.scripts[name])
    if not conflicting:
        Details(repo).write()
    return not conflicting


# ------------------------------------------------------------------------------------------------------- Command line


def find(repo: Repository, name: str) -> Script:
    """The script of a name or a path."""
    stem = Path(name).stem
    if stem not in repo.scripts:
        broken = next((x for x in repo.problems if x.startswith(f"cleanrl/{stem}.py")), None)
        raise WrongUse(broken or f"{name}: no such script; tests/variants.toml has {', '.join(repo.scripts)}")
    return repo.scripts[stem]


def write_golden(repo: Repository, script: Script) -> None:
    golden, diff = repo.golden(script), diff_to_parent(repo, script)
    golden.parent.mkdir(parents=True, exist_ok=True)
    if not golden.is_file() or golden.read_text() != diff:
        golden.write_text(diff)
        print(f"docs/diffs/{golden.name}: rewritten")


def fix(repo: Repository) -> None:
    """Writes what follows from the scripts: the diffs and the links of docs/details.md."""
    for script in repo.scripts.values():
        if script.parent:
            write_golden(repo, script)
    for path in (repo.root / "docs" / "diffs").glob("*.diff"):
        if not (repo.root / "cleanrl" / f"{path.stem}.py").is_file():
            path.unlink()
            print(f"docs/diffs/{path.name}: removed, there is no such script")
    if Details(repo).write():
        print("docs/details.md: links rewritten")


def propose(repo: Repository, name: str, parent_name: str) -> None:
    """Prints the manifest entry of a script as it is: what differs, its tags, and its size as its budget."""
    parent, path = find(repo, parent_name), repo.root / "cleanrl" / f"{Path(name).stem}.py"
    if not path.is_file():
        raise WrongUse(f"cleanrl/{path.name}: no such file; write the script first")
    if path.stem == parent.name:
        raise WrongUse(f"{name}: a script is not its own parent")
    script = Script(path.stem, path.read_text(), parent.name, 0, 0, [], {})
    try:
        script.tree, script.definitions = cut(script.text)
    except ValueError as error:
        raise WrongUse(f"{script.file}: {error}") from None
    tags, differs = defaultdict(list), defaultdict(list)
    for tag in script.tag_lines:
        family, _, number = tag.partition("-")
        tags[family].append(int(number or 0))
    ranges = []
    for family, numbers in sorted(tags.items(), key=lambda item: [*FAMILIES, item[0]].index(item[0])):
        for number in sorted(numbers):
            if number - 1 in numbers and ranges[-1][0] == family:
                ranges[-1][2] = number
            else:
                ranges.append([family, number, number])
    written = [f if not a else f"{f}-{a}" if a == b else f"{f}-{a}..{b}" for f, a, b in ranges]
    keys = list(dict.fromkeys([*script.definitions, *parent.definitions]))
    for key in keys:
        if not same(script, parent, key):
            owner = key[1].partition(".")[0]
            members = [other for other in keys if other[0] == key[0] and covers(owner, other[1])]
            whole = len(members) > 1 and not any(same(script, parent, member) for member in members)
            entry = owner if whole and key[0] != "Header" else key[1]
            if entry not in differs[key[0]]:
                differs[key[0]].append(entry)

    def array(words: list[str], indent: str = "    ") -> str:
        """In one line if it fits, else in several of 120 characters."""
        lines, quoted = [""], [f'"{word}"' for word in words]
        if len(", ".join(quoted)) < 85:
            return f"[{', '.join(quoted)}]"
        for word in quoted:
            if len(lines[-1]) + len(word) > 112:
                lines.append("")
            lines[-1] += f"{word}, "
        return "[\n" + "".join(f"{indent}{line.rstrip()}\n" for line in lines) + "]"

    hunks = len(re.findall("^@@", diff_to_parent(repo, script), re.MULTILINE))
    lines = math.ceil(len(script.text.splitlines()) / 10 + 0.5) * 10  # room for a line or two
    print(f'[scripts.{script.name}]\nparent = "{parent.name}"\nlines = {lines}')
    print(f"hunks = {hunks}\ntags = {array(written)}")
    project = tomllib.loads((repo.root / "pyproject.toml").read_text())["project"]
    if (python := re.search(r'^# requires-python = "(.*)"', script.text, re.MULTILINE)) is not None:
        if python[1] != project["requires-python"]:
            print(f'requires-python = "{python[1]}"')
    print(f"\n[scripts.{script.name}.differs]")
    for section in SECTIONS:
        if differs[section]:
            key = section if section.isalpha() else f'"{section}"'
            print(f"{key} = {array(differs[section])}")


def check(repo: Repository) -> list[str]:
    """Every problem of the repository, as texts; the first line of each says what, where and how to mend it."""
    if any(not script.parent for script in repo.scripts.values()):
        disturbed = check_family(repo)
        for script in repo.scripts.values():
            check_flags(repo, script)
            check_tags(repo, script)
        check_metrics(repo)
        check_metadata(repo)
        check_golden(repo, disturbed)
        Details(repo).check()
    return repo.problems


class Parser(argparse.ArgumentParser):
    def error(self, message: str):
        raise WrongUse(f"{message}; see --help")


def main(words: list[str] | None = None, root: Path = ROOT) -> int:
    parser = Parser(prog=COMMAND, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    actions = parser.add_mutually_exclusive_group()
    actions.add_argument("--fix", action="store_true", help="rewrite docs/diffs/ and the links of docs/details.md")
    actions.add_argument("--propagate", metavar="FROM", help="carry the change of this script to its descendants")
    actions.add_argument("--propose", nargs=2, metavar=("NAME", "PARENT"), help="print a manifest entry")
    parser.add_argument("--since", metavar="REV", help="with --propagate: what FROM is compared with (default HEAD)")
    parser.add_argument("--markers", action="store_true", help="with --propagate: write conflicts into the files")
    try:
        chosen = parser.parse_args(words)
        if not chosen.propagate and (chosen.since or chosen.markers):
            parser.error(f"{'--since' if chosen.since else '--markers'} goes with --propagate")
        repo = Repository(root)
        clean = True
        if chosen.propose:
            propose(repo, *chosen.propose)
            return 0
        if chosen.fix:
            fix(repo)
        if chosen.propagate:
            clean = propagate(repo, chosen.propagate, chosen.since or "HEAD", chosen.markers)
        problems = check(Repository(root))
    except WrongUse as mistake:
        print(f"check_variants: error: {' '.join(str(mistake).split())}", file=sys.stderr)
        return 2
    if problems:
        print("\n".join(problems))
        print(f"{len(problems)} problem{'s' if len(problems) > 1 else ''}")
    elif clean:
        print(f"{len(repo.scripts)} scripts agree with tests/variants.toml, docs/diffs/ and docs/details.md")
    return 0 if clean and not problems else 1


if __name__ == "__main__":
    sys.exit(main())
