"""Prints the program of docs/build-it.md as it is after a step: python docs/build_it.py 7 > my_ppo.py"""

import argparse
import re
from pathlib import Path

PAGE = Path(__file__).with_name("build-it.md")
BLOCK = re.compile(r"^```(\w+) title=\"my_ppo\.py\"\n(.*?)^```$", re.M | re.S)
HUNK = re.compile(r"^@@.*\n", re.M)


def apply(diff: str, text: str) -> str:
    """The text with the hunks of a diff without line numbers; a line with @@ begins a hunk. Raises ValueError unless
    the text has the lines that a hunk keeps and removes exactly once."""
    for hunk in HUNK.split(diff):
        if not hunk:
            continue
        lines = [line or " " for line in hunk.splitlines()]
        old = "".join(f"{line[1:]}\n" for line in lines if line[0] != "+")
        new = "".join(f"{line[1:]}\n" for line in lines if line[0] != "-")
        times = f"\n{text}".count(f"\n{old}")
        if times != 1:
            raise ValueError(f"the text has these lines {times} times, not once:\n{old}")
        text = f"\n{text}".replace(f"\n{old}", f"\n{new}")[1:]
    return text


def versions() -> list[str]:
    """The program after each step, from the empty file before the first."""
    texts = [""]
    for language, block in BLOCK.findall(PAGE.read_text()):
        texts.append(apply(block, texts[-1]) if language == "diff" else block)
    return texts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    texts = versions()
    parser.add_argument("step", type=int, choices=range(1, len(texts)), help="the last step that it has")
    print(texts[parser.parse_args().step], end="")


if __name__ == "__main__":
    main()
