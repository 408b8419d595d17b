"""Blocks of pages that tools fill, and where pages and tools are."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmark"))
from files import locked, write_atomically  # noqa: E402


def fill(page: Path, name: str, text: str) -> bool:
    """Puts the text into the block of this name of a page, between `<!-- results ppo -->` and `<!-- end of results -->`
    for the name "results ppo". Returns whether the page has the block; ValueError if the block has no end."""
    with locked(page.parent):
        content = page.read_text(encoding="utf-8")
        begin = f"<!-- {name} -->\n"
        before, found, rest = content.partition(begin)
        if not found:
            return False
        filled = before + begin + text + rest[rest.index(f"<!-- end of {name.split()[0]} -->") :]
        if filled != content:
            write_atomically(page, filled)
        return True
