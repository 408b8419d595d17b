"""Prints the program of docs/build-it.md as it is after a step: python docs/build_it.py 7 > my_ppo.py

With --seeds, it trains that program instead, 50,000 steps a seed, and prints the mean returns' range and their mean."""

import argparse
import re
import subprocess
import sys
import tempfile
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


def train(text: str, seeds: int) -> list[float]:
    """Mean return of the last 100 episodes of each seed after 50,000 steps."""
    returns = []
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "my_ppo.py")
        program.write_text(text.replace("500_000", "50_000"), "utf-8")
        for seed in range(1, seeds + 1):
            command = [sys.executable, program, str(seed)]
            done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, text=True, check=True)
            returns.append(float(done.stdout.split()[-1]))
    return returns


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    texts = versions()
    parser.add_argument("step", type=int, choices=range(1, len(texts)), help="the last step that it has")
    parser.add_argument("--seeds", type=int, help="train with the seeds 1 to SEEDS and print their returns")
    args = parser.parse_args()
    if not args.seeds:
        print(texts[args.step], end="")
        return
    returns = train(texts[args.step], args.seeds)
    mean = sum(returns) / len(returns)
    print(f"step {args.step}, {args.seeds} seeds: {min(returns):.0f} to {max(returns):.0f}, mean {mean:.0f}")


if __name__ == "__main__":
    main()
