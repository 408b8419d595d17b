"""What the tools share: above all, what tells the runs of one experiment from those of another.

Two runs are seeds of one experiment if they agree in all arguments but the seed and NOT_IDENTITY, and in the version of
the script. `--num-threads 8`, say, makes the same experiment on a larger machine.
"""

import ast
import contextlib
import hashlib
import io
import itertools
import os
import re
import shlex
import textwrap
import tokenize
from pathlib import Path

# Arguments that concern only the machine, the speed, or what is recorded of a run
NOT_IDENTITY = frozenset(
    """cuda num_threads env_threads vectorization compile cuda_graphs channels_last malloc_tuning device_ids backend
    torch_deterministic track wandb_project_name wandb_entity capture_video resume evaluate episodes""".split()
)


def identity(arguments: dict) -> dict:
    """The arguments of a config.json that make the run what it is. `checkpoints` is their number, as the script places
    them if none is typed, since fresh episodes start after each."""
    kept = {name: x for name, x in arguments.items() if name not in NOT_IDENTITY}
    if {"checkpoints", "total_timesteps", "num_envs", "num_steps"} <= kept.keys():
        updates = kept["total_timesteps"] // (kept["num_envs"] * kept["num_steps"])
        by_default = min(10, updates * kept["num_steps"] // 10_000) or 1
        kept["checkpoints"] = min(kept["checkpoints"] or by_default, updates)
    return kept


def portable(command: str) -> str:
    """A run's command with cleanrl/ instead of the folder, if that was typed in full: no path of a machine is kept."""
    try:
        words = shlex.split(command)
    except ValueError:  # an open quote: nothing that a script wrote
        return command
    return shlex.join(f"cleanrl/{Path(x).name}" if x.endswith(".py") and x.startswith("/") else x for x in words)


def folded(command: str) -> str:
    """A command line broken before flags into lines that fit a page."""
    whole = re.sub(" (?!--)", "\0", command)
    how = {"subsequent_indent": "    ", "break_long_words": False, "break_on_hyphens": False}
    return " \\\n".join(textwrap.wrap(whole, 96, **how)).replace("\0", " ")


def write_whole(path: Path, content: str | bytes) -> None:
    """Writes a file beside its place and moves it there: what was there stays whole until the new one is. Makes the
    folder if there is none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.tmp")
    try:
        new.write_bytes(content.encode() if isinstance(content, str) else content)
        os.replace(new, path)
    finally:
        new.unlink(missing_ok=True)


def checkpoints(run: Path) -> list[Path]:
    """The checkpoints of a run folder, or of what is kept of one, by their updates."""
    found = [path for path in run.glob("checkpoints/*") if path.suffix in (".pt", ".npz") and path.stem.isdecimal()]
    return sorted(found, key=lambda path: int(path.stem))


@contextlib.contextmanager
def whole(checkpoint: Path):
    """While a checkpoint is read: any error becomes a ValueError that names the file."""
    try:
        yield
    except Exception as error:  # zipfile's, pickle's, numpy's and torch's
        raise ValueError(f"{checkpoint}: is not a whole checkpoint; copy it again, or delete it") from error


def slim(checkpoint: Path, half: bool = False) -> bytes:
    """A checkpoint whose moments of Adam are one zero in the file, which evaluation doesn't look at; with `half`, a
    torch script's weights in half precision, which fill the network's own as well. Raises ValueError for a damaged
    one."""
    import numpy as np

    content = io.BytesIO()
    if checkpoint.suffix == ".npz":
        with whole(checkpoint), np.load(checkpoint, allow_pickle=False) as arrays:
            state = dict(arrays)
        np.savez(content, **state | {name: np.zeros((), x.dtype) for name, x in state.items() if name[:5] == "adam_"})
        return content.getvalue()
    import torch

    with whole(checkpoint):
        state = torch.load(checkpoint, map_location="cpu", weights_only=True)
    for moments in state["optimizer"]["state"].values():
        moments.update({name: torch.zeros(()).expand(x.shape) for name, x in moments.items() if x.ndim})
    if half:
        state["model"] = {name: x.half() if x.is_floating_point() else x for name, x in state["model"].items()}
    torch.save(state, content)
    return content.getvalue()


def defaults(source: str) -> dict:
    """The defaults of a script's Args that are plain values; empty of a source without an Args that can be read."""
    try:
        classes = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == "Args"]
    except SyntaxError:
        return {}
    found = {}
    for node in classes[0].body if classes else ():
        if isinstance(node, ast.AnnAssign) and node.value is not None:
            try:
                found[node.target.id] = ast.literal_eval(node.value)
            except ValueError:  # computed, such as exp_name
                continue
    return found


def version(source: str) -> str:
    """Seven digits that tell the versions of a script apart: of what stands above its double ruler (of a script without
    one: of all), less comments, docstrings and empty lines."""
    upstairs = re.split(r"^# ====+ The run: ", source, maxsplit=1, flags=re.MULTILINE)[0]
    lines, before = upstairs.splitlines(), tokenize.NEWLINE
    try:
        tokens = [x for x in tokenize.generate_tokens(io.StringIO(upstairs).readline) if x.type != tokenize.NL]
        for token, after in itertools.pairwise(tokens):
            (row, column), (end, _) = token.start, token.end
            if token.type == tokenize.COMMENT:
                lines[row - 1] = lines[row - 1][:column]
                continue
            begins = before in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
            if begins and token.type == tokenize.STRING and after.type == tokenize.NEWLINE:  # a docstring
                lines[row - 1 : end] = [""] * (end - row + 1)
            before = token.type
    except (SyntaxError, tokenize.TokenError):  # no Python that could be run; it is taken as it is
        pass
    text = "\n".join(line.rstrip() for line in lines if line.strip())
    return hashlib.sha256(text.encode()).hexdigest()[:7]


def version_of_run(folder: Path, config: dict) -> str:
    """The version of the script that a run folder holds; of a kept run, the one that was noted when it was kept; of one
    that was kept before versions were noted, its commit."""
    sources = sorted(folder.glob("*.py"))
    known = version(sources[0].read_text(errors="replace")) if sources else config.get("version")
    return known or str(config.get("git_commit") or "unknown")[:7]


def script_words(words: list[str]) -> list[str]:
    """A script's command line as it understands it: 1e6 is 1000000."""
    return [re.sub(r"^(|--[\w-]+=)(\d+\.?\d*e\d+)$", lambda x: f"{x[1]}{float(x[2]):.15g}", word) for word in words]


def in_parallel(arguments: dict) -> bool:
    """Whether a script with these arguments steps its environments in worker processes or C++ threads."""
    return arguments.get("vectorization") == "async" or "env_threads" in arguments
