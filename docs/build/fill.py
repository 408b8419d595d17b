"""Writes into the pages what the scripts say, so that GitHub shows it as the site does: options, metrics, details,
diffs, and the lines of code that pages quote.

    python docs/build/fill.py

A block begins with a comment, `<!-- options ppo_atari -->`, and ends with `<!-- end of options -->`. A link to a line
has the name of what is there as its title, `[ppo.py](../cleanrl/ppo.py#L211 "core-5")`: a detail's tag, or a definition
such as `Agent.get_action`. Its number is kept current, and so are the lengths of ppo.py. Results are filled in by
the other programs here and by docs/how_many_seeds.py.
"""

import argparse
import ast
import re
import sys
import textwrap
from dataclasses import asdict
from functools import cache
from pathlib import Path

from blocks import ROOT, fill
from files import write_atomically
from runs import defined_in

ORDER = (
    "ppo", "ppo_multidiscrete", "ppo_lstm", "ppo_numpy", "ppo_continuous_action", "ppo_continuous_action_lstm",
    "ppo_continuous_action_numpy", "ppo_continuous_action_gpu", "ppo_atari",
    "ppo_atari_visual", "ppo_atari_lstm", "ppo_atari_envpool", "ppo_atari_multigpu", "ppo_atari_multigpu_envpool",
    "ppo_procgen",
)  # fmt: skip
MOST_LINES = 6  # of an excerpt
MOST_COLUMNS = 92  # of its lines; a longer one loses its comment, but for the tags
BLOCK = re.compile(r"^<!-- ((options|metrics|details|diff|code|lines|change) ([\w-]+)) -->$", re.MULTILINE)
TITLED = re.compile(r'(?<=\]\()((?:\.\./)?(cleanrl|tests)/(\w+)\.py)#L\d+ "([\w.-]+)"\)')
LENGTHS = re.compile(r"\d+ lines of PPO, then \d+ that run it")
METRICS = {
    "charts/episodic_return": "mean return of the episodes that ended in the update; each one is in `episodes.csv`",
    "charts/episodic_length": "their length in steps",
    "charts/reward": "mean reward per step, as the agent sees it (clipped or scaled); exists even if no episode ends",
    "charts/SPS": "environment steps per second of training so far, without checkpoints and videos",
    "charts/time_limits": "share of time limits among the ends of episodes; 0 if all are true ends",
    "charts/learning_rate": "Adam's step size",
    "losses/policy_loss": "the clipped objective, negated",
    "losses/value_loss": "half of the squared error of the values",
    "losses/entropy": "entropy of the policy; near 0, a policy of Discrete actions always does the same thing",
    "losses/old_approx_kl": "mean of −log ρ, an estimate of the KL divergence from the policy that played",
    "losses/approx_kl": "mean of ρ − 1 − log ρ, a less noisy estimate of the same",
    "losses/clipfrac": "fraction of samples whose ratio ρ is outside the clip range",
    "losses/explained_variance": "1 if the values predict the returns perfectly, 0 if no better than their mean",
}

OWN_METRICS = {  # of one script, in the place of those above
    "ppo_continuous_action_gpu": {
        "charts/reward": "mean reward per step, as the simulator pays it, not scaled; exists even if no episode ends"
    },
}


@cache
def source(script: str, folder: str = "cleanrl") -> str:
    return (ROOT / folder / f"{script}.py").read_text("utf-8")


@cache
def tree(script: str, folder: str = "cleanrl") -> ast.Module:
    return ast.parse(source(script, folder))


def table(header: str, rows: list[str]) -> str:
    columns = header.count("|") - 1
    return "\n".join([header, "|" + "---|" * columns, *rows]) + "\n"


def fold(title: str, text: str) -> str:
    return f"<details markdown><summary>{title}</summary>\n\n{text}\n</details>\n"


# --------------------------------------------------------------------------------------------------- What a script says
def docstring_part(script: str, name: str) -> str:
    """What the docstring says after "Parent: " or "Changes: ", in one line; "" if it doesn't."""
    paragraphs = " ".join(ast.get_docstring(tree(script)).replace("\n\n", " Details: ").split())
    return paragraphs.partition(f"{name}: ")[2].partition(" Details: ")[0]


def parent(script: str) -> str:
    """Its parent's name; "none, …" of the trunk."""
    return docstring_part(script, "Parent").partition(".py")[0]


def option_rows(script: str) -> dict[str, str]:
    """The rows of the table of Args, by option: default, and help from the line's comment; and a row for each group."""
    defaults = asdict(defined_in(ROOT / "cleanrl" / f"{script}.py", "Args")())
    (definition,) = [node for node in tree(script).body if isinstance(node, ast.ClassDef) and node.name == "Args"]
    rows = {}
    for line in source(script).splitlines()[definition.lineno : definition.end_lineno]:
        name = line.strip().partition(":")[0]
        comment = line.partition("  # ")[2].replace("|", "\\|")
        if line.startswith("    # "):
            rows[line] = f"| **{line.strip(' #')}** | | |"
        elif name in defaults and line.startswith(f"    {name}: "):
            default = script if name == "exp_name" else defaults[name]
            flag = "--" + name.replace("_", "-")
            rows[flag] = f"| `{flag}` | `{default}` | {comment} |"
    return rows


def options(script: str) -> str:
    rows = option_rows(script)
    whole = table("| option | default | |", list(rows.values()))
    above = parent(script)
    if above not in ORDER:
        return whole
    before = option_rows(above)
    flags = [name for name in rows if name.startswith("--") and name != "--exp-name"]
    own = [rows[flag] for flag in flags if rows[flag] != before.get(flag)]
    gone = [f"`{name}`" for name in before if name.startswith("--") and name not in rows]
    text = f"The same as for [`{above}.py`]({above}.md#options)"
    if gone:
        text += f", without {', '.join(gone)}"
    if own:
        joint = ", and with" if gone else ", with"
        text += f"{joint} these new or changed options:\n\n" + table("| option | default | |", own)
    else:
        text += ".\n"
    return text + "\n" + fold("All options", whole)


def metrics(script: str) -> str:
    texts = METRICS | OWN_METRICS.get(script, {})
    return table("| metric | |", [f"| `{name}` | {text} |" for name, text in texts.items() if name in source(script)])


# ------------------------------------------------------------------------------------------------------- Lines of code
def lines_of(script: str, name: str, folder: str = "cleanrl") -> list[int]:
    """The lines of a file with a detail's tag, or the one with a definition, `ppo_loss` or `Agent.get_action`."""
    lines = source(script, folder).splitlines()
    numbers = [number for number, line in enumerate(lines, 1) if f"[{name}]" in line.partition("#")[2]]
    nodes: list = tree(script, folder).body
    if not numbers:
        for part in name.split("."):
            found = [node for node in nodes if getattr(node, "name", None) == part]
            if not found:
                return []
            numbers = [found[0].lineno]
            nodes = found[0].body
    return numbers


def lengths() -> str:
    """How many lines ppo.py has above its ruler and below."""
    lines = source("ppo").splitlines()
    ruler = next(i for i, line in enumerate(lines) if line.startswith("# ===="))
    return f"{ruler} lines of PPO, then {len(lines) - ruler - 1} that run it"


def excerpt(script: str, number: int) -> str:
    """The largest statement of few lines around a line; with those before it, if it has less than three lines."""
    text = source(script).splitlines()
    blocks = [node for node in ast.walk(tree(script)) if isinstance(node, ast.stmt | ast.mod) and hasattr(node, "body")]
    for node in blocks:  # from large to small
        for place, statement in enumerate(node.body):
            if statement.lineno <= number <= statement.end_lineno < statement.lineno + MOST_LINES:
                first = statement.lineno
                before = [other.lineno for other in node.body[:place]]
                while before and statement.end_lineno - first < 2 and '"""' not in text[before[-1] - 1]:
                    first = before.pop()
                return "\n".join(shortened(line) for line in dedented(text[first - 1 : statement.end_lineno]))
    lines = dedented(text[number - 1 : number - 1 + MOST_LINES])
    indent = lines[-1][: len(lines[-1]) - len(lines[-1].lstrip())]
    return "\n".join([shortened(line) for line in lines] + [f"{indent}..."])  # the statement goes on


def dedented(lines: list[str]) -> list[str]:
    return textwrap.dedent("\n".join(lines)).splitlines()


def shortened(line: str) -> str:
    """A line; a long one without its comment, but with its tags."""
    if len(line) <= MOST_COLUMNS:
        return line
    code, _, comment = line.partition("  # ")
    tags = [word for word in comment.replace("]", "] ").split() if word.startswith("[") and word.endswith("]")]
    return f"{code}  # {' '.join(tags)}" if tags else code


def code(tag: str) -> str:
    """The lines of a detail in the first script that has it."""
    script = next(script for script in ORDER if lines_of(script, tag))
    return f"```python\n{excerpt(script, lines_of(script, tag)[0])}\n```\n"


def lines(tag: str) -> str:
    """Links to all lines of a detail."""
    found = [(script, number) for script in ORDER for number in lines_of(script, tag)]
    return " · ".join(f"[{script}.py:{n}](../cleanrl/{script}.py#L{n})" for script, n in found) + "\n"


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
                rows.append(f"| [{tag}](details.md#{tag}) | {link} | `` {text} `` |")
    return fold(f"{len(rows)} tagged lines", table("| detail | line | |", rows))


def diff(script: str) -> str:
    text = (ROOT / "docs" / "diffs" / f"{script}.diff").read_text("utf-8")
    above = parent(script)
    changes = docstring_part(script, "Changes").replace("(1) ", "\n1. ", 1)
    for number in range(2, 12):
        changes = changes.replace(f" ({number}) ", f"\n{number}. ", 1)
    hunks = text.count("\n@@")
    compared = f"Compared with [`{above}.py`]({above}.md):\n{changes}"
    return f"{compared}\n\n[The diff](diffs/{script}.diff) has {hunks} hunks.\n"


def change(name: str) -> str:
    """An edit of tests/changes without the file names at its head, and a link to it."""
    path = f"tests/changes/{name}.diff"
    lines = (ROOT / path).read_text("utf-8").splitlines()
    hunks = "\n".join(line for line in lines if not line.startswith(("--- ", "+++ ")))
    return f"[`{path}`](../{path}):\n\n```diff\n{hunks}\n```\n"


# ------------------------------------------------------------------------------------------------------------ The pages
KINDS = {function.__name__: function for function in (options, metrics, details, diff, code, lines, change)}
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
    count = 0
    for page in pages:
        text = page.read_text("utf-8")
        current = LENGTHS.sub(lengths(), TITLED.sub(current_link, text))
        if current != text:
            write_atomically(page, current)
        for name, kind, what in BLOCK.findall(current):
            count += fill(page, name, f"\n{KINDS[kind](what)}\n")
    return count


if __name__ == "__main__":
    formatter = argparse.RawDescriptionHelpFormatter
    argparse.ArgumentParser(description=__doc__, formatter_class=formatter).parse_args()  # --help
    count = fill_pages([ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))])
    for what in missing:
        print(what, file=sys.stderr)
    print(f"docs/build/fill.py: {count} blocks are current")
    sys.exit(bool(missing))
