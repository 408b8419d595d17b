"""Compares an implementation of PPO with the test vectors and replays a training of it.

    python benchmark/conformance/check.py --adapter mine.py

adapters/template.py says how an adapter is written. Prints a row for each vector and each detail of the recorded
training: same; differs, by how much and like which known variant; not there. Exit status: 0 if nothing differs, 1 if
something does, 2 if the adapter can't be loaded.
"""

import argparse
import importlib.util
import json
import sys
import traceback
from pathlib import Path

import details
import reference
import vectors

TOLERANCE = 2e-5  # libraries compute in float32


def load_adapter(path: Path):
    sys.path[:0] = [str(Path(__file__).parent), str(path.parent)]
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def explain(case, got) -> tuple[str, dict | None]:
    """Which known variant gives these outputs, the one with the fewest deviations; and the choices that make it."""
    call, inputs = case["call"], case["inputs"]
    if call not in vectors.ANSWERS:
        return "", None
    nearest = (float("inf"), "")
    switches = vectors.switches_of(call, inputs)
    for chosen in reference.by_deviations(switches, 4):
        away = vectors.distance(got, pick(vectors.ANSWERS[call](inputs, chosen), got))
        name = reference.describe(chosen, switches)
        if away < TOLERANCE:
            return name, {switch: choice for switch, choice in chosen.items() if choice != switches[switch][0]}
        nearest = min(nearest, (away, name))
    return f"like no variant that is known; nearest, to {nearest[0]:.2g}: {nearest[1] or 'what is expected'}", None


def pick(expected, got):
    """The outputs that an adapter returns: it may leave some out."""
    if not isinstance(expected, dict):
        return expected
    return {name: expected[name] for name in expected if name in got}


def check_case(adapter, case, options):
    """Verdict, note, and the choices found."""
    try:
        got = getattr(adapter, case["call"])(case["inputs"], **options)
        expected = pick(case["expected"], got)
        away = vectors.distance(got, expected)
    except NotImplementedError as error:
        return "not there", str(error), None
    except Exception as error:  # of other people's code
        traceback.print_exc()
        return "differs", f"{type(error).__name__}: {error}", None
    if away < TOLERANCE:
        return "same", f"to {away:.0e}", {}
    says, found = explain(case, got)
    return "differs", f"by {away:.2g}: {says}", found


def check_record(adapter, options):
    try:
        return details.report(adapter.record(**options))
    except Exception as error:
        traceback.print_exc()
        return [details.Row("training", "differs", f"{type(error).__name__}: {error}")]


def check(adapter, only="") -> list[dict]:
    """A dict for each row: what, option, verdict, note; and of vectors, the choices found."""
    rows = []

    def add(what, option, verdict, note, found=None):
        rows.append({"what": what, "option": option, "verdict": verdict, "note": note, "found": found})

    options = getattr(adapter, "OPTIONS", {})
    for case in vectors.load():
        if not hasattr(adapter, case["call"]) or only not in case["name"]:
            continue
        for label, arguments in options.get(case["call"], {"": {}}).items():
            add(case["name"], label, *check_case(adapter, case, arguments))
    if hasattr(adapter, "record") and only in "training":
        for label, arguments in options.get("record", {"": {}}).items():
            for row in check_record(adapter, arguments):
                add(f"training: {row.detail}", label, row.verdict, row.note)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--adapter", type=Path, required=True, help="a Python file")
    parser.add_argument("--only", default="", help="a part of a vector's name, or: training")
    parser.add_argument("--json", type=Path, help="write the rows to this file too")
    args = parser.parse_args()
    if not args.adapter.is_file():
        print(f"check.py: error: --adapter {args.adapter}: no such file", file=sys.stderr)
        return 2
    adapter = load_adapter(args.adapter.resolve())
    rows = check(adapter, args.only)
    print(f"{adapter.NAME}\n")
    width = max((len(f"{row['what']} {row['option']}") for row in rows), default=0)
    for row in rows:
        print(f"{row['what']} {row['option']}".ljust(width), row["verdict"].ljust(9), row["note"])
    if args.json:
        args.json.write_text(json.dumps({"name": adapter.NAME, "rows": rows}, indent=1) + "\n", "utf-8")
    counts = {verdict: sum(row["verdict"] == verdict for row in rows) for verdict in ("same", "differs", "not there")}
    print("\n" + ", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
    return 1 if counts["differs"] else 0


if __name__ == "__main__":
    sys.exit(main())
