"""What the tools share at the command line: a user's mistakes in one line, words, and tables on the terminal."""

import contextlib
import shlex
import sys
from pathlib import Path

OPTIONAL = ("matplotlib", "optuna", "pandas", "psutil", "pyarrow", "rich", "scipy", "stable_baselines3")


class UserError(Exception):
    """What the user can fix: it costs one line and an exit status, 2 for what was typed and 1 for what happened."""

    def __init__(self, message: str, status: int = 2):
        super().__init__(message)
        self.status = status


@contextlib.contextmanager
def one_line_errors():
    """Ends the program with one line for a UserError or an optional package that is missing, and with none for Ctrl-C.
    Whatever else is raised is a bug or rare, and keeps its traceback."""
    try:
        yield
    except UserError as error:
        end(str(error), error.status)
    except ModuleNotFoundError as error:
        if error.name not in OPTIONAL:
            raise
        end(f"{error.name} is not installed: pip install -e '.[benchmark,tune]'", 2)
    except KeyboardInterrupt:
        raise SystemExit(130) from None


def end(message: str, status: int) -> None:
    """Ends the program with one line on stderr, which begins with the name of the tool that was typed."""
    print(f"{Path(sys.argv[0]).name}: error: {' '.join(message.split())}", file=sys.stderr)
    raise SystemExit(status)


def words_of(option: str, typed: str) -> list[str]:
    """The words of a command line that was typed as one string."""
    try:
        return shlex.split(typed)
    except ValueError as error:
        raise UserError(f"{option} {typed}: {error}; end the quote, or put another kind around it") from None


def with_values(words: list[str], options: tuple[str, ...]) -> list[str]:
    """The words of a command line, in which the value of one of these options may begin with a dash: --arguments
    "--gamma 0.9" becomes --arguments="--gamma 0.9"."""
    joined = []
    for word in words:
        if joined and joined[-1] in options:
            joined[-1] = f"{joined[-1]}={word}"
        else:
            joined.append(word)
    return joined


def print_table(rows: list[list[str]], title: str | None = None) -> None:
    """Prints a table to the terminal; the first row is the header."""
    from rich.console import Console
    from rich.table import Column, Table

    columns = [Column(name, overflow="fold") for name in rows[0]]
    shown = Table(*columns, title=title, title_justify="left")
    for row in rows[1:]:
        shown.add_row(*row)
    width = None if sys.stdout.isatty() else 200
    Console(width=width, markup=False, highlight=False).print(shown)
