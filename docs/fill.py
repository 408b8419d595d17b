"""Writes into the pages what the scripts say, so that GitHub shows it as the site does: options, metrics, details,
diffs, and the lines of code that pages quote.

    python docs/fill.py

A block begins with a comment, `<!-- options ppo_atari -->`, and ends with `<!-- end of options -->`. A link to a line
has the name of what is there as its title, `[ppo.py](../cleanrl/ppo.py#L211 "core-5")`: a detail's tag, or a definition
such as `Agent.get_action`. Its number is kept current. Results are other tools': report.py, ablate.py, agents.py.
"""

import ast
import os
import re
import sys
from dataclasses import asdict, fields
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmark"))
import shared  # noqa: E402

ORDER = (
    "ppo", "ppo_multidiscrete", "ppo_numpy", "ppo_continuous_action", "ppo_continuous_action_numpy", "ppo_atari",
    "ppo_atari_visual", "ppo_atari_lstm", "ppo_atari_envpool", "ppo_atari_multigpu", "ppo_atari_multigpu_envpool",
    "ppo_procgen",
)  # fmt: skip
MOST_LINES = 6  # of an excerpt
BLOCK = re.compile(r"^<!-- ((options|metrics|details|diff|code|lines|change) ([\w-]+)) -->$", re.MULTILINE)
TITLED = re.compile(r'(?<=\]\()((?:\.\./)?(cleanrl|tests)/(\w+)\.py)#L\d+ "([\w.-]+)"\)')
METRICS = {
    "charts/episodic_return": "return of the episodes that ended: each one in TensorBoard, their mean in `metrics.csv`",
    "charts/episodic_length": "their length in steps",
    "charts/reward": "mean reward of a step, as the agent gets it; there even where no episode ends",
    "charts/SPS": "environment steps per second of training so far, without checkpoints and videos",
    "charts/learning_rate": "Adam's step size",
    "losses/policy_loss": "the clipped objective, with its sign turned",
    "losses/value_loss": "half of the squared error of the values",
    "losses/entropy": "entropy of the policy; near 0, it always does the same",
    "losses/old_approx_kl": "mean of −log ρ, which estimates the KL divergence from the policy that played",
    "losses/approx_kl": "mean of ρ − 1 − log ρ, which estimates it too, and varies less",
    "losses/clipfrac": "share of the samples whose ratio ρ is outside the clip range",
    "losses/explained_variance": "1 for perfect values, 0 for values that know no more than the mean return",
}


@cache
def source(script: str, folder: str = "cleanrl") -> str:
    return (ROOT / folder / f"{script}.py").read_text("utf-8")


@cache
def tree(script: str, folder: str = "cleanrl") -> ast.Module:
    return ast.parse(source(script, folder))


def cell(text: str) -> str:
    return text.replace("|", "\\|")


def table(header: str, rows: list[str]) -> str:
    columns = header.count("|") - 1
    return "\n".join([header, "|" + "---|" * columns, *rows]) + "\n"


def fold(title: str, text: str) -> str:
    return f"<details markdown><summary>{title}</summary>\n\n{text}\n</details>\n"


# --------------------------------------------------------------------------------------------------- What a script says
def docstring_part(script: str, name: str) -> str:
    """What the docstring says after "Parent: ", "Changes: " or "Details: ", in one line; "" if it doesn't."""
    lines = []
    for line in ast.get_docstring(tree(script)).splitlines():
        found = f"{name}: " in line
        if lines and (not line.strip() or line.startswith("Details: ")):
            break
        if found or lines:
            lines.append(line.partition(f"{name}: ")[2] if found else line.strip())
    return " ".join(lines)


def parent(script: str) -> str | None:
    named = docstring_part(script, "Parent").partition(".py")[0]
    return named if named in ORDER else None


def option_rows(script: str) -> list[str]:
    """The rows of the table of Args: option, default, the help in the line's comment; a row for each group."""
    args = shared.script_args(ROOT / "cleanrl" / f"{script}.py")
    defaults = asdict(args())
    kinds = {field.name: field.type for field in fields(args)}
    lines = source(script).splitlines()
    (definition,) = [node for node in tree(script).body if isinstance(node, ast.ClassDef) and node.name == "Args"]
    rows = []
    for line in lines[definition.lineno : definition.end_lineno]:
        text, _, comment = line.partition("  # ")
        name = text.strip().partition(":")[0]
        if line.startswith("    # "):
            rows.append(f"| **{line.strip(' #')}** | | |")
        elif name in kinds and line.startswith(f"    {name}: "):
            default = script if name == "exp_name" else defaults[name]
            value = "" if kinds[name] is bool else " X"
            rows.append(f"| `--{name.replace('_', '-')}{value}` | `{default}` | {cell(comment)} |")
    return rows


def options(script: str) -> str:
    header = "| option | default | |"
    whole = table(header, option_rows(script))
    above = parent(script)
    if above is None:
        return whole
    before = option_rows(above)
    own = []
    for row in option_rows(script):
        if row not in before and row.startswith("| `") and not row.startswith("| `--exp-name"):
            own.append(row)
    kept = [row.split("`")[1] for row in option_rows(script) if "`" in row]
    gone = [f"`{row.split('`')[1].split()[0]}`" for row in before if "`" in row and row.split("`")[1] not in kept]
    text = f"Those of [`{above}.py`]({above}.md#options)"
    text += f", without {', '.join(gone)}" if gone else ""
    if own:
        text += ", with these new or changed:\n\n" + table(header, own)
    else:
        text += ".\n"
    return text + "\n" + fold("All options", whole)


def metrics(script: str) -> str:
    rows = []
    names = [node.value for node in ast.walk(tree(script)) if isinstance(node, ast.Constant)]
    written = {name for name in names if isinstance(name, str) and name.startswith(("charts/", "losses/"))}
    for name in METRICS:
        if name in written:
            rows.append(f"| `{name}` | {METRICS[name]} |")
    missing = {name for name in written if name not in METRICS and "{" not in name and not name.endswith("/")}
    if missing:
        shared.fail(f"{script}.py writes {', '.join(sorted(missing))}: explain it in METRICS of docs/fill.py")
    return table("| metric | |", rows)


# ------------------------------------------------------------------------------------------------------- Lines of code
def lines_of(script: str, name: str, folder: str = "cleanrl") -> list[int]:
    """The lines of a file with a detail's tag, or the one with a definition, `ppo_loss` or `Agent.get_action`."""
    numbers = [number for number, line in enumerate(source(script, folder).splitlines(), 1) if f"[{name}]" in line]
    nodes = tree(script, folder).body
    if not numbers:
        for part in name.split("."):
            found = [node for node in nodes if getattr(node, "name", None) == part]
            if not found:
                return []
            numbers = [found[0].lineno]
            nodes = found[0].body
    return numbers


def excerpt(script: str, number: int) -> str:
    """The largest statement of few lines around a line; with those before it, if it has less than three lines."""
    around = []
    for node in ast.walk(tree(script)):
        if isinstance(node, ast.stmt) and node.lineno <= number <= node.end_lineno:
            around.append(node)
    around.sort(key=lambda node: node.end_lineno - node.lineno)
    first = number
    last = number + MOST_LINES - 1
    short = [node for node in around if node.end_lineno - node.lineno < MOST_LINES]
    if short:
        chosen = short[-1]
        first = chosen.lineno
        last = chosen.end_lineno
        for before in reversed(statements_before(chosen, around)):
            if last - first < 2:
                first = before.lineno
    lines = source(script).splitlines()[first - 1 : last]
    indent = min(len(line) - len(line.lstrip()) for line in lines if line.strip())
    return "\n".join(line[indent:] for line in lines)


def statements_before(statement: ast.stmt, around: list[ast.stmt]) -> list[ast.stmt]:
    """The statements before one in the block that it is in, without a docstring."""
    for node in around:
        block = getattr(node, "body", [])
        if statement in block:
            before = block[: block.index(statement)]
            is_function = isinstance(node, ast.FunctionDef)
            return before[1:] if is_function and ast.get_docstring(node) else before
    return []


def code(tag: str) -> str:
    """The lines of a detail in the first script that has it."""
    owners = [script for script in ORDER if lines_of(script, tag)]
    if not owners:
        shared.fail(f"docs: no script has the tag [{tag}]")
    return f"```python\n{excerpt(owners[0], lines_of(owners[0], tag)[0])}\n```\n"


def lines(tag: str) -> str:
    """Links to all lines of a detail."""
    links = []
    for script in ORDER:
        links += [f"[{script}.py:{number}](../cleanrl/{script}.py#L{number})" for number in lines_of(script, tag)]
    return " · ".join(links) + "\n"


def details(script: str) -> str:
    """A table of the tags in the order of the file, each with its line."""
    pages = (ROOT / "docs" / "details.md").read_text("utf-8").splitlines()
    tags = [line.split('"')[1] for line in pages if line.startswith('### <a id="')]
    rows = []
    for number, line in enumerate(source(script).splitlines(), 1):
        for tag in tags:
            if f"[{tag}]" in line and "#" in line:
                text = line.partition("  # ")[0].strip() or line.strip()
                link = f"[{number}](../cleanrl/{script}.py#L{number})"
                rows.append(f"| [{tag}](details.md#{tag}) | {link} | `` {cell(text)} `` |")
    return fold(f"{len(rows)} tagged lines", table("| detail | line | |", rows))


def diff(script: str) -> str:
    path = ROOT / "docs" / "diffs" / f"{script}.diff"
    hunks = sum(line.startswith("@@") for line in path.read_text("utf-8").splitlines())
    above = parent(script)
    changes = docstring_part(script, "Changes").replace("(1) ", "\n1. ", 1)
    for number in range(2, 12):
        changes = changes.replace(f" ({number}) ", f"\n{number}. ", 1)
    return f"Against [`{above}.py`]({above}.md):\n{changes}\n\n[The diff](diffs/{script}.diff) has {hunks} hunks.\n"


def change(name: str) -> str:
    """An edit of tests/changes without the file names at its head."""
    lines = (ROOT / "tests" / "changes" / f"{name}.diff").read_text("utf-8").splitlines()
    hunks = [line for line in lines if not line.startswith(("--- ", "+++ "))]
    return "```diff\n" + "\n".join(hunks) + "\n```\n"


# ------------------------------------------------------------------------------------------------------------ The pages
KINDS = {
    "options": options,
    "metrics": metrics,
    "details": details,
    "diff": diff,
    "code": code,
    "lines": lines,
    "change": change,
}


missing = []  # what links name and isn't there


def current_link(match) -> str:
    path, folder, file, name = match.groups()
    numbers = lines_of(file, name, folder)
    if not numbers:
        missing.append(f"{folder}/{file}.py has no {name}, to which a page links")
        return match[0]
    return f'{path}#L{numbers[0]} "{name}")'


def fill_pages(pages: list[Path]) -> int:
    """Fills the blocks and links of the pages; returns how many blocks there are."""
    blocks = 0
    made = {}
    for page in pages:
        text = page.read_text("utf-8")
        current = TITLED.sub(current_link, text)
        if current != text:
            shared.write_atomically(page, current)
        for name, kind, what in BLOCK.findall(current):
            if name not in made:
                made[name] = KINDS[kind](what)
            blocks += shared.fill(page, name, f"\n{made[name]}\n")
    return blocks


if __name__ == "__main__":
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
    count = fill_pages([ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))])
    for what in missing:
        print(what, file=sys.stderr)
    print(f"docs/fill.py: {count} blocks are current")
    sys.exit(bool(missing))
