"""Keeps the scripts of cleanrl/ one family: what is copied stays equal, what differs is declared in variants.toml.

    python -m tests.check_variants                      check everything
    python -m tests.check_variants --fix                rewrite docs/diffs/ and the links of docs/details.md, then check
    python -m tests.check_variants --propagate ppo      carry what changed in cleanrl/ppo.py to its descendants
    python -m tests.check_variants --propose new ppo    print a manifest entry for cleanrl/new.py, a child of ppo.py

Exit status: 0 all is well, 1 there are problems or conflicts, 2 wrong use, or a script or manifest that can't be read.

A script is cut at its rulers into sections, and these into definitions: functions, class members (`VectorEnv.reset`;
`VectorEnv.__doc__` is what stands before the first), assignments, and in `train` the steps that a comment line heads
(`train.Collect`). What variants.toml doesn't declare is the parent's text; so all that is below the double ruler is the
trunk's, byte for byte, but for the overrides that are declared.

--propagate takes the change of FROM since --since (HEAD) to its children, and theirs to their children: upstairs and in
overrides git merges three ways, and by words where a copy has changed the very line, which is printed, to be read; the
rest of downstairs is written anew. A copy that conflicts stays as it is, and so do its descendants.
"""

import argparse
import ast
import os
import re
import subprocess
import sys
import tempfile
import textwrap
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from difflib import unified_diff
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
COMMAND = "python -m tests.check_variants"
MANIFEST = "tests/variants.toml"
PACKAGES = {"cv2": "opencv-python-headless", "gym_notices": "procgen-mirror", "imageio_ffmpeg": "imageio"}  # by module
PACKAGES |= {"procgen": "procgen-mirror", "wandb": ""}  # wandb is only imported where a flag asks for it
LONGEST = 110  # lines of a function
TAG = re.compile(r"\[([a-z]{3,}-\d+|impala)\]")
METRIC = re.compile(r"(?<![\w/])(?:charts|losses)/[A-Za-z]\w*")
CODE_LINKS = re.compile(r"(<!-- code (\S+) -->\n)(?:.*\n)*?(<!-- end of code -->)")
TEST_LINK = re.compile(r"\[`(test_\w+)`\]\(\.\./tests/([\w/]+\.py)(?:#L\d+)?\)")


class WrongUse(Exception):
    """What the caller can mend: one line on stderr, exit status 2."""


# ------------------------------------------------------------------------------------------------ Scripts and manifest
class Key(NamedTuple):
    """Of a definition. A ruler is one too, called `# Agent` as in the file."""

    below: bool  # the double ruler
    section: str
    name: str

    def __str__(self) -> str:
        return f"{self.section} · {self.name}"


class Piece(NamedTuple):
    line: int  # of its first line in the file, from 1
    space: str  # the blank lines before it
    text: str


@cache
def cut(text: str) -> tuple[ast.Module, dict[Key, Piece]]:
    """The syntax tree of a script and its definitions, to one of which every line belongs. Raises SyntaxError."""
    tree = ast.parse(text)
    lines = text.splitlines(keepends=True)
    rulers = {i: ruler[1] for i, line in enumerate(lines, 1) if (ruler := re.match("# [-=]{20,} ([^:\n]+)", line))}
    double = [i for i in rulers if lines[i - 1].startswith("# ===")]
    if len(double) != 1:
        raise SyntaxError("there must be one double ruler, between PPO and the run, as in ppo.py", ("", 1, 1, ""))
    ends = {i: f"# {name}" for i, name in rulers.items()}  # last line of a definition → its name
    ends |= {i: "metadata" for i, line in enumerate(lines, 1) if line == "# ///\n"}
    for node in tree.body:
        name, end = name_of(node), node.end_lineno
        if node.lineno < min(rulers) or isinstance(node, ast.Import | ast.ImportFrom):
            name = "docstring" if node is tree.body[0] else "imports"
        elif isinstance(node, ast.ClassDef):
            ends |= {member.end_lineno: f"{name}.{name_of(member)}" for member in node.body[:-1]}
            head = node.body[0].end_lineno if ast.get_docstring(node) else node.body[0].lineno - 1
            ends[head], name = f"{name}.__doc__", f"{name}.{name_of(node.body[-1])}"
        elif name == "train":
            name = "train.Begin"
            for i in range(node.lineno, end):
                if heading := re.match(r"(?: {4}){1,2}# ([A-Z]\w*)", lines[i]):
                    ends[i], name = name, f"train.{heading[1]}"
        ends[end] = name
    ends[len(lines)] = ends.pop(max(ends))
    found, start, section = {}, 0, "Header"
    for end, name in sorted(ends.items()):
        section, content = "Main" if name == "__main__" else rulers.get(end, section), "".join(lines[start:end])
        key, code = Key(end >= double[0], section, name), content.lstrip("\n")
        space = content.removesuffix(code)
        before = found.get(key) or Piece(start + len(space) + 1, space, "")  # a name can be defined twice
        found[key] = before._replace(text=before.text + content if before.text else code)
        start = end
    return tree, found


def name_of(node: ast.AST) -> str:
    if isinstance(node, ast.If):
        return "__main__"
    target = getattr(node, "target", None) or getattr(node, "targets", [node])[0]
    target = node.value.func if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) else target
    return getattr(node, "name", None) or ast.unparse(target).splitlines()[0].strip("()")


@cache
def visited(text: str) -> list[tuple[str, ast.AST]]:
    """The nodes of a script that the checks look at, each with the name of its function or class."""
    kinds = (ast.Attribute, ast.Import, ast.ImportFrom, ast.FunctionDef)
    return [(name_of(top), node) for top in cut(text)[0].body for node in ast.walk(top) if isinstance(node, kinds)]


@cache
def tag_lines(text: str) -> dict[str, list[int]]:
    lines = [*enumerate(text.splitlines(), 1)]
    return {tag: [i for i, line in lines if f"[{tag}]" in line] for tag in dict.fromkeys(TAG.findall(text))}


def upstairs(text: str) -> str:
    return text[: text.index("\n# ===") + 1]


@dataclass(eq=False)
class Script:
    path: Path
    parent: "Script | None"
    budget: dict[str, int]
    tags: str
    differs: list[str] = field(default_factory=list)
    downstairs: list[str] = field(default_factory=list)

    def __post_init__(self):
        self.name, self.file = self.path.stem, f"cleanrl/{self.path.name}"
        self.golden = self.path.parents[1] / f"docs/diffs/{self.name}.diff"
        if [*self.budget] != ["upstairs", "lines", "hunks"] or {type(x) for x in self.budget.values()} != {int}:
            raise ValueError("budget must have whole numbers as upstairs, lines and hunks")
        self.read(self.path.read_text())

    def read(self, text: str) -> None:
        try:
            (self.tree, self.pieces), self.text = cut(text), text
        except SyntaxError as error:
            raise WrongUse(f"{self.file}:{error.lineno}: {error.msg}; mend it first") from None

    def declares(self, key: Key) -> bool:
        return any(covers(entry, key) for entry in (self.downstairs if key.below else self.differs))

    def owner(self, key: Key) -> "Script":
        """The topmost script whose text of this definition this one shares by its declarations."""
        return self.parent.owner(key) if self.parent and not self.declares(key) else self

    def piece(self, key: Key) -> Piece:
        return self.pieces.get(key) or Piece(0, "", "")

    def place(self, line: int) -> str:
        """A line of the file as problems name it."""
        return f"{self.file} · {[key for key, piece in self.pieces.items() if piece.line <= line][-1]} · line {line}"

    def diff(self) -> str:
        return diff(self.parent.name, self.parent.text, self.name, self.text) if self.parent else ""


def covers(entry: str, key: Key) -> bool:
    """`VectorEnv` covers all its members, `VectorEnv.reset` itself, `# Torch` a section."""
    return entry in (key.name, f"# {key.section}") or key.name.startswith(f"{entry}.")


def load(root: Path) -> dict[str, Script]:
    """The scripts of the manifest, each below its parent."""
    scripts, name = {}, "NAME"
    try:
        for name, entry in tomllib.loads((root / MANIFEST).read_text())["scripts"].items():
            if (parent := entry.pop("parent", None)) not in (None, *scripts):
                raise ValueError(f"its parent {parent!r} has no entry above it")
            scripts[name] = Script(root / f"cleanrl/{name}.py", scripts.get(parent), **entry)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        message = str(error).replace("Script.__init__() ", "").replace(f"{root}/", "")
        raise WrongUse(f"{MANIFEST}: scripts.{name}: {message}; its first lines say how an entry looks") from None
    return scripts


def git(*words: str, cwd: Path) -> subprocess.CompletedProcess:
    """Runs git without the user's settings of how diffs look."""
    bare = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    bare |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    return subprocess.run(["git", *words], cwd=cwd, env=bare, capture_output=True, text=True)


def git_on(texts: dict[str, str], *words: str) -> subprocess.CompletedProcess:
    """Runs git on files that hold these texts, in a folder of their own."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in texts.items():
            Path(folder, name).write_text(text)
        return git(*words, *texts, cwd=Path(folder))


@cache
def diff(name: str, text: str, other_name: str, other_text: str) -> str:
    """What `git diff -U3` says; nothing of a script and itself."""
    shown = git_on({f"{name}.py": text, f"{other_name}.py": other_text}, "diff", "--no-index", "-U3").stdout
    return shown[shown.find("--- ") :]


# --------------------------------------------------------------------------------------------------------------- Checks
def check_strays(scripts: dict[str, Script]) -> Iterator[str]:
    """A definition is its owner's text, or declared."""
    strays = defaultdict(list)  # owner, definition → scripts whose text is another
    for script in scripts.values():
        for key in dict.fromkeys([*(script.parent or script).pieces, *script.pieces]):
            owner = script.owner(key)
            if script.piece(key).text != owner.piece(key).text:
                strays[owner, key].append(script)
    for (owner, key), copies in strays.items():
        one, other = owner.piece(key), copies[0].piece(key)
        what = "is missing" if not other.text else "is not in the parent" if not one.text else "differs"
        yield (
            f"{', '.join(script.file for script in copies)} · {key}: {what}; {owner.file} owns it: make the change "
            f"there and carry it down with `{COMMAND} --propagate {owner.name}`, or undo it; if a script must differ, "
            f"add {key.name!r} to its `{'downstairs' if key.below else 'differs'}` in {MANIFEST}"
        )
        yield f"    {owner.file}:{one.line} → {copies[0].file}:{other.line}"
        lines = unified_diff(one.text.splitlines(), other.text.splitlines(), n=0, lineterm="")
        yield from [f"    {line}" for line in lines][3:23]


def check_declared(scripts: dict[str, Script]) -> Iterator[str]:
    """What is declared differs; what is not is one piece downstairs, its order and its blank lines too."""
    for script in scripts.values():
        parent, place = script.parent or script, f"[scripts.{script.name}] of {MANIFEST}"
        keys = dict.fromkeys([*parent.pieces, *script.pieces])
        changed = [key for key in keys if script.piece(key).text != parent.piece(key).text]
        for below, names in (False, script.differs), (True, script.downstairs):
            for name in names:
                if not any(key.below == below and covers(name, key) for key in changed):
                    yield f"{script.file} · {name}: is {parent.file}'s, but declared to differ; take it out of {place}"
        if not script.text.endswith(lower(script, parent.pieces, script.pieces)):
            yield f"{script.file} · downstairs: stands in another order than {parent.file}'s, or has other blank lines"


def lower(script: Script, theirs: dict[Key, Piece], own: dict[Key, Piece]) -> str:
    """The downstairs that a script should have: the parent's, with the overrides that it declares."""
    keys, last = [key for key in theirs if key.below], None
    for key in [key for key in own if key.below]:
        if key not in theirs:
            keys.insert(keys.index(last) + 1, key)
        last = key
    pieces = [(own if script.declares(key) else theirs).get(key) for key in keys]
    return "".join(piece.space + piece.text for piece in pieces if piece).lstrip("\n")


def check_flags(script: Script) -> Iterator[str]:
    """Every field of Args is read, and only fields are. That a flag is validated or resolved doesn't make it work."""
    declared, read, used = {key.name for key in script.pieces if key.name.startswith("Args.")}, {}, {"Args.__doc__"}
    for function, node in visited(script.text):
        of = getattr(node, "value", None)
        of = getattr(of, "id", getattr(of, "attr", None))  # args.x, self.args.x
        if isinstance(node, ast.Attribute) and (of == "args" or (of == "self" and function == "Args")):
            read.setdefault(f"Args.{node.attr}", node.lineno)
            if function not in ("validate", "merge_arguments", "fit_to_machine"):
                used.add(f"Args.{node.attr}")
    for name in sorted(declared - used):
        yield f"{script.file} · Arguments · {name}: nothing that it could change reads it; use it, or take it out"
    for name in sorted(read.keys() - declared):
        yield f"{script.place(read[name])}: reads {name}, which is not declared; declare it, or don't read it"


def tags_of(text: str) -> list[str]:
    """'core-1 to core-3, impala' → ['core-1', 'core-2', 'core-3', 'impala']."""
    tags = []
    for impala, family, first, last in re.findall(r"(impala)|([a-z]{3,})-(\d+)(?:\s+to\s+\2-(\d+))?", text):
        tags += [impala] if impala else [f"{family}-{n}" for n in range(int(first), int(last or first) + 1)]
    return tags


def details_line(script: Script) -> str:
    """The tags in the header, without what is said about them."""
    found = re.search(r"^Details: (.*?)\.?(?:\n\n|\Z)", ast.get_docstring(script.tree) or "", re.S | re.M)
    return " ".join(re.sub(r"\s*\(.*?\)", "", found[1], flags=re.S).split()) if found else ""


def check_tags(script: Script) -> Iterator[str]:
    """The tags on the lines, those of the manifest and those of the header are the same."""
    found, declared, named = tag_lines(script.text), set(tags_of(script.tags)), set(tags_of(details_line(script)))
    for tag in sorted(found.keys() - declared):
        yield f"{script.place(found[tag][0])}: carries [{tag}], which {MANIFEST} doesn't list; correct either"
    for tag in sorted(declared - found.keys()):
        yield f"{script.file}: [{tag}] is in {MANIFEST}, but on no line; put it where it is implemented, or take it out"
    for tag in sorted(declared ^ named):
        what = f"its line `Details:` {'lacks' if tag in declared else 'names'} {tag}, unlike the tags in {MANIFEST}"
        yield f"{script.file} · Header · docstring: {what}; correct either"
    parent = f"Parent: {script.parent.name}.py" if script.parent else "Parent: none"
    if f"\n{parent}" not in script.text:
        yield f"{script.file} · Header · docstring: must say `{parent}`, as {MANIFEST} does; correct either"


def check_metrics(scripts: dict[str, Script], root: Path) -> Iterator[str]:
    """What the trunk writes is written by all; what any script writes is in the table of docs/ppo.md, and no more."""
    known, trunk = {}, {}  # metric → where it is written
    for script in scripts.values():
        written = {x[1]: x.start() for x in re.finditer(r'"((?:charts|losses)/\w+)"', script.text)}
        known = {name: script.place(script.text.count("\n", 0, i) + 1) for name, i in written.items()} | known
        trunk = trunk or written
        for name in sorted(trunk.keys() - written.keys()):
            yield f"{script.file}: writes no {name!r}, as the trunk does; metrics have one name in all scripts"
    page = (root / "docs" / "ppo.md").read_text()
    rows = "".join(re.findall(r"^\| metric \|.*\n\|[-| :]+\|\n((?:\|.*\n)+)", page, re.M)).splitlines()
    for name in sorted(known.keys() - {name for row in rows for name in METRIC.findall(row.split("|")[1])}):
        yield f"{known[name]}: docs/ppo.md's table of metrics lacks {name!r}; add or correct it"
    for path in [root / "README.md", *sorted((root / "docs").rglob("*.md"))]:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            for name in set(METRIC.findall(line)) - known.keys():
                yield f"{path.relative_to(root)}:{number}: {name!r} is no metric of the scripts; correct it"


def requirement(text: str) -> tuple[str, set[str], str | None]:
    """'Gymnasium[mujoco]==1.4.0' → name, extras, version."""
    match = re.match(r"([\w.-]+)(?:\[([^]]*)\])?\s*(?:==\s*([\w.+]+))?", text)
    return match[1].lower().replace("_", "-"), set((match[2] or "").replace(" ", "").split(",")) - {""}, match[3]


def check_metadata(scripts: dict[str, Script], root: Path) -> Iterator[str]:
    """The inline metadata (PEP 723) names what the script imports, in pyproject.toml's versions."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    pins, offered = {}, defaultdict(set)  # package → version and where it stands, extras
    for path in sorted(root.glob("requirements*.txt")):
        lines = [line for line in path.read_text().splitlines() if line and line[0] not in "#-"]
        pins |= {name: (version, path.name) for name, _, version in map(requirement, lines)}
    for line in sum(project["optional-dependencies"].values(), project["dependencies"]):
        name, extras, version = requirement(line)
        offered[name] |= extras
        pins |= {name: (version, "pyproject.toml")} if version else {}
    files = {path.stem for folder in ("cleanrl", "tests", "benchmark") for path in (root / folder).glob("*.py")}
    for script in scripts.values():
        place = f"{script.file} · Header · metadata"
        try:
            block = re.match(r"# /// script\n((?:#(?: .*)?\n)+?)# ///\n", script.text)
            metadata = tomllib.loads(re.sub(r"^# ?", "", block[1], flags=re.M))
            dependencies, python = [*map(requirement, metadata["dependencies"])], metadata["requires-python"]
        except (TypeError, KeyError, ValueError):
            yield f"{place}: is no inline metadata with requires-python and dependencies; see cleanrl/ppo.py"
            continue
        if not re.fullmatch(re.escape(project["requires-python"]) + "(,<.*)?", python):
            yield f"{place}: requires-python is {python!r}, but pyproject.toml has {project['requires-python']!r}"
        overrides = metadata.get("tool", {}).get("uv", {}).get("override-dependencies", [])
        for name, extras, version in [*dependencies, *map(requirement, overrides)]:
            pin, source = pins.get(name, (None, "pyproject.toml"))
            if not version or version != pin:
                yield f"{place}: has {name}=={version}, but {source} has {pin}; use one version"
            for extra in sorted(extras - offered[name]):
                yield f"{place}: has {name}[{extra}], but pyproject.toml has no such extra; use what it has"
        for node in [node for _, node in visited(script.text) if isinstance(node, ast.Import | ast.ImportFrom)]:
            names = [node.module] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            for module in {str(name).split(".")[0] for name in names} - sys.stdlib_module_names:
                package = PACKAGES.get(module, module.replace("_", "-"))
                if module in files:
                    yield f"{script.place(node.lineno)}: imports another file of the repository; copy what it needs"
                elif package and package not in {name for name, *_ in dependencies}:
                    yield f"{place}: lacks {package}, which line {node.lineno} imports; add it, pinned"


def sizes(script: Script) -> tuple[int, ...]:
    """Lines above the double ruler, lines of the file, hunks of the diff to the parent."""
    return upstairs(script.text).count("\n"), script.text.count("\n"), script.diff().count("\n@@")


def check_budgets(script: Script) -> Iterator[str]:
    for size, (name, budget) in zip(sizes(script), script.budget.items()):
        if size > budget:
            yield f"{script.file}: {name} {size}, {budget} in {MANIFEST}; shorten it, or raise that with a reason"
    for _, node in visited(script.text):
        if isinstance(node, ast.FunctionDef) and (size := node.end_lineno - node.lineno + 1) > LONGEST:
            yield f"{script.place(node.lineno)}: {node.name} has {size} lines, {LONGEST} are allowed; split it"


def check_diffs(scripts: dict[str, Script], root: Path) -> Iterator[str]:
    """docs/diffs/ holds every script's diff to its parent as it is."""
    for script in scripts.values():
        diff, kept = script.diff(), script.golden.read_text() if script.golden.is_file() else ""
        if kept != diff:
            what = f"is not the diff from {script.parent.name}.py to {script.name}.py"
            yield f"docs/diffs/{script.golden.name}: {what}; if it should be, run `{COMMAND} --fix` and commit the file"
            yield from [f"    {x}" for x in diff.splitlines() if x not in kept.splitlines() and x[0] in "+-"][:20]
    for path in sorted((root / "docs/diffs").glob("*.diff")):
        if path.stem not in scripts:
            yield f"docs/diffs/{path.name}: belongs to no script; remove it"


# --------------------------------------------------------------------------------------------------------- The details
def details(scripts: dict[str, Script], root: Path) -> tuple[Path, str, str, dict[tuple[str, str], int]]:
    """docs/details.md, a section a tag: the file, its text, the text with every link to its present line, and the lines
    of all tests by file and name."""
    path, code, tests = root / "docs/details.md", defaultdict(list), {}
    for script in scripts.values():
        for tag, lines in tag_lines(script.text).items():
            code[tag] += [f"[{script.name}.py:{line}](../cleanrl/{script.name}.py#L{line})" for line in lines]
    for file in (root / "tests").glob("test_*.py"):
        for number, line in enumerate(file.read_text().splitlines(), 1):
            if line.startswith("def test_"):
                tests[file.name, line[4 : line.index("(")]] = number
    text = path.read_text()
    fixed = CODE_LINKS.sub(lambda x: f"{x[1]}Code: {' · '.join(code[x[2]])}\n{x[3]}", text)
    fixed = TEST_LINK.sub(lambda x: f"[`{x[1]}`](../tests/{x[2]}#L{tests.get((x[2], x[1]), 0)})", fixed)
    return path, text, fixed, tests


def check_details(scripts: dict[str, Script], root: Path) -> Iterator[str]:
    """Each tag has a section with all its parts, and each section a tag; links lead to where tags and tests are."""
    _, text, fixed, tests = details(scripts, root)
    parts = re.split(r'^##(?:# <a id="([\w-]+)"></a>`\1` \S.*\n| .*\n)', text, flags=re.M)
    sections = {tag: part for tag, part in zip(parts[1::2], parts[2::2]) if tag}
    carried = {tag for script in scripts.values() for tag in tag_lines(script.text)}
    for tag in sorted(carried ^ sections.keys()):
        what = "has no section; say what it is, why, its source and its test" if tag in carried else "is in no script"
        yield f"docs/details.md · {tag}: {what}"
    for tag, section in sections.items():
        for part in ("\nWhy: ", "\nSource: ", f"\n<!-- code {tag} -->\n", "\nTest: [`test_"):
            if part not in section:
                yield f"docs/details.md · {tag}: lacks {part.strip()!r}; see the other sections"
        for test, file in TEST_LINK.findall(section):
            if (file, test) not in tests:
                yield f"docs/details.md · {tag}: tests/{file} holds no {test}; name a test that proves it"
    if changed := sum(a != b for a, b in zip(text.splitlines(), fixed.splitlines())):
        yield f"docs/details.md: {changed} of its lines link where tags and tests were; run `{COMMAND} --fix`"


# ---------------------------------------------------------------------------------------------------------- Propagation
def merge_file(*sides: str) -> tuple[str, bool]:
    """git's three-way merge by lines of child, old parent and new parent, and whether it is clean."""
    merged = git_on(dict(zip(("child", "old-parent", "new-parent"), sides)), "merge-file", "-p", "--diff3")
    return merged.stdout, merged.returncode == 0


def merge_words(*lines: str) -> str | None:
    """The three-way merge of a line by numbers, words, spaces and signs, if it is clean."""
    words = [re.findall(r"\d[\d_.]*(?:e[-+]?\d+)?|\w+|\s+|.", line.strip("\n")) for line in lines]
    text, clean = merge_file(*("".join(f"{word}\n" for word in line) for line in words))
    return text.replace("\n", "") + "\n" if clean else None


def merge(child: str, old: str, new: str, notes: list[str], conflicts: list[str]) -> str:
    """The three-way merge by lines; by words where it conflicts, and each line that the parent changed into one other
    has one counterpart, which begins with the same word."""

    def by_words(hunk: re.Match) -> str:
        lines, old, new = (side.splitlines(keepends=True) for side in hunk.groups())
        sound = len(old) == len(new)
        for a, b in [(a, b) for a, b in zip(old, new) if a != b]:
            alike = [i for i, line in enumerate(lines) if line.split()[:1] == a.split()[:1]]
            fits = {i: merged for i in alike if (merged := merge_words(lines[i], a, b))}
            sound = sound and len(fits) == 1
            for i, merged in fits.items() if sound else ():
                notes.extend([f"- {lines[i]}", f"+ {merged}"] if lines[i] not in (a, merged) else [])
                lines[i] = merged
        conflicts.extend([] if sound else [hunk[0]])
        return "".join(lines) if sound else hunk[0]

    if child == old or old == new:
        return new if child == old else child
    conflict = r"<{7} .*\n((?:.*\n)*?)\|{7} .*\n((?:.*\n)*?)={7}\n((?:.*\n)*?)>{7} .*\n"
    return re.sub(conflict, by_words, merge_file(child, old, new)[0])


def carry(child: Script, old_parent: str, new_parent: str, notes: list[str], conflicts: list[str]) -> str:
    """The child's text with its parent's change. Adds what is to be read, and what conflicts, to the lists."""
    own, old, new = dict(child.pieces), cut(old_parent)[1], cut(new_parent)[1]
    above = merge(*map(upstairs, (child.text, old_parent, new_parent)), notes, conflicts)
    for key in [key for key in own if key.below and child.declares(key) and key in old and key in new]:
        own[key] = own[key]._replace(text=merge(*(x[key].text for x in (own, old, new)), notes, conflicts))
    return above + lower(child, new, own)


def propagate(script: Script, scripts: dict[str, Script], since: str) -> set[str]:
    """Carries the change of a script to its descendants, see the top. Returns which are left as they are."""
    shown = git("show", f"{since}:./{script.path.name}", cwd=script.path.parent)
    if shown.returncode or shown.stdout == script.text:
        what = f"git finds no {script.file} there" if shown.returncode else f"{script.file} is as it was there"
        raise WrongUse(f"--since {since}: {what}; change it first, or name an older revision that has it")
    before, left = {script: shown.stdout}, set()
    for child in scripts.values():
        if child.parent in left:
            print(f"{child.file}: left as it is, since {child.parent.name}.py is")
            left.add(child)
        elif child.parent in before:
            old, notes, conflicts = child.text, [], []
            try:
                text = carry(child, before[child.parent], child.parent.text, notes, conflicts)
                child.read(text if not conflicts else old)
            except (SyntaxError, WrongUse) as error:
                conflicts.append(f"{error}\n")
            for block in conflicts:
                side = block.partition("\n")[2].partition("|||||||")[0] or "\n"
                place = child.place(old.partition(side)[0].count("\n") + 1)
                print(f"{place}: conflict; write the change by hand, then `{COMMAND} --propagate {child.name}`")
                print(textwrap.indent(block, "    "), end="")
                left.add(child)
            if not conflicts:
                print(f"{child.file}: {'has the change already' if text == old else 'carried'}")
                print(*(f"    {line}" for line in ["merged by words, read it:\n", *notes] if notes), sep="", end="")
                before[child] = old
                child.path.write_text(text)
    return left


# -------------------------------------------------------------------------------------------------------- Command line
def fix(scripts: dict[str, Script], root: Path, left: set[Script]) -> None:
    """Writes what follows from the scripts, but for those that are left: the diffs and the links of docs/details.md."""
    path, _, fixed, _ = details(scripts, root)
    files = {path: fixed} | {x.golden: x.diff() for x in scripts.values() if x.parent and x not in left}
    for path, text in files.items():
        if not path.is_file() or path.read_text() != text:
            path.write_text(text)
            print(f"{path.relative_to(root)}: rewritten")


def propose(script: Script) -> None:
    """Prints the manifest entry of a script as it is: what differs, its tags, and its size as its budget."""
    lists, keys = {"differs": [], "downstairs": []}, dict.fromkeys([*script.pieces, *script.parent.pieces])
    same = [key for key in keys if script.piece(key).text == script.parent.piece(key).text]
    for key in [key for key in keys if key not in same]:
        names = (f"# {key.section}", key.name.partition(".")[0], key.name)
        widest = next(x for x in names if not any(other.below == key.below and covers(x, other) for other in same))
        lists["downstairs" if key.below else "differs"].append(f'"{widest}"'.replace(" ", "\0"))
    budget = ", ".join(f"{name} = {size}" for name, size in zip(script.budget, sizes(script)))
    print(f'[scripts.{script.name}]\nparent = "{script.parent.name}"\nbudget = {{ {budget} }}')
    print(f'tags = "{details_line(script)}"')
    for title, names in [item for item in lists.items() if item[1]]:
        array = f"{title} = [{', '.join(dict.fromkeys(names))}]"
        print(textwrap.fill(array, 120, subsequent_indent="    ", break_on_hyphens=False).replace("\0", " "))


def check(scripts: dict[str, Script], root: Path) -> list[str]:
    """Every problem of the repository: what, where and how to mend it. Lines of code below one are indented."""
    problems = [*check_strays(scripts)] or [*check_declared(scripts), *check_diffs(scripts, root)]
    for script in scripts.values():
        problems += [*check_flags(script), *check_tags(script), *check_budgets(script)]
    problems += [*check_metrics(scripts, root), *check_metadata(scripts, root), *check_details(scripts, root)]
    for name in sorted(path.stem for path in (root / "cleanrl").glob("*.py") if path.stem not in scripts):
        problems.append(f"cleanrl/{name}.py: has no entry in {MANIFEST}; --propose {name} PARENT prints one")
    return problems


def main(words: list[str] | None = None, root: Path = ROOT) -> int:
    def wrong(message: str):
        raise WrongUse(f"{message}; see --help")

    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__, formatter_class=raw)
    parser.error = wrong
    actions = parser.add_mutually_exclusive_group()
    actions.add_argument("--fix", action="store_true", help="rewrite docs/diffs/ and the links of docs/details.md")
    actions.add_argument("--propagate", metavar="FROM", help="carry the change of this script to its descendants")
    actions.add_argument("--propose", nargs=2, metavar=("NAME", "PARENT"), help="print a manifest entry")
    parser.add_argument("--since", metavar="REV", help="with --propagate: what FROM is compared with (default HEAD)")
    try:
        chosen, left = parser.parse_args(words), set()
        if chosen.since and not chosen.propagate:
            wrong("--since goes with --propagate")
        scripts = load(root)
        if chosen.propose:
            name, parent = (Path(name).stem for name in chosen.propose)
            if name == parent or parent not in scripts or not (path := root / f"cleanrl/{name}.py").is_file():
                wrong(f"--propose {name} {parent}: takes a file of cleanrl/ and its parent of {', '.join(scripts)}")
            propose(Script(path, scripts[parent], {"upstairs": 0, "lines": 0, "hunks": 0}, ""))
            return 0
        if chosen.propagate:
            if (name := Path(chosen.propagate).stem) not in scripts:
                wrong(f"--propagate {name}: takes one of {', '.join(scripts)}")
            left = propagate(scripts[name], scripts, chosen.since or "HEAD")
        if chosen.fix or chosen.propagate:
            fix(scripts, root, left)
        problems = check(scripts, root)
    except WrongUse as mistake:
        print(f"check_variants: error: {' '.join(str(mistake).split())}", file=sys.stderr)
        return 2
    if problems:
        count = sum(line[0] != " " for line in problems)
        print(*problems, f"{count} problem{'s' * (count > 1)}", sep="\n")
    elif not left:
        print(f"{len(scripts)} scripts agree with {MANIFEST}, docs/diffs/ and docs/details.md")
    return 1 if left or problems else 0


if __name__ == "__main__":
    sys.exit(main())
