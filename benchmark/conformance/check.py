"""Compares an implementation of PPO with the test vectors and replays a training of it.

    python benchmark/conformance/check.py --adapter mine.py

adapters/template.py says how an adapter is written. Prints a row for each vector and each detail of the recorded
training: same; differs, by how much and like which known variant; not there. Exit status: 0 if nothing differs, 1 if
something does, 2 if the adapter can't be loaded or nothing was compared.
"""

import argparse
import copy
import importlib.util
import json
import math
import sys
import traceback
from pathlib import Path
from typing import NamedTuple

import details
import vectors
from replay import NotFinite
from switches import by_deviations, describe

sys.path.append(str(Path(__file__).resolve().parents[1]))

from command_line import UserError, one_line_errors

TOLERANCE = 2e-5  # libraries compute in float32
FUNCTIONS = (*vectors.VARIANTS, "record")  # those that an adapter may have


class Result(NamedTuple):
    what: str
    option: str
    verdict: str
    note: str
    found: dict  # what was found of each detail: "same" or a variant


def load_adapter(path: Path):
    """The adapter as a module. Raises UserError if it can't be loaded or has nothing to check."""
    sys.path[:0] = [str(Path(__file__).parent), str(path.parent)]
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # where dataclasses look for it
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # of other people's code
        if not isinstance(error, (ImportError, SyntaxError)):  # these say where
            traceback.print_exc()
        raise UserError(f"{path.name} can't be loaded: {type(error).__name__}: {error}") from error
    if not hasattr(module, "NAME"):
        raise UserError(f"{path.name} has no NAME; add one, as in NAME = 'my PPO'")
    if not any(hasattr(module, name) for name in FUNCTIONS):
        raise UserError(f"{path.name} has nothing to check; write one of the functions {', '.join(FUNCTIONS)}")
    unknown = [name for name in getattr(module, "OPTIONS", {}) if name not in FUNCTIONS]
    if unknown:
        raise UserError(f"{path.name}: OPTIONS has {', '.join(unknown)}; the functions are {', '.join(FUNCTIONS)}")
    return module


def shown(case, chosen: dict, got) -> list[str]:
    """The switches of which another choice gives other outputs, among those that there are."""
    names = []
    for name, choices in vectors.VARIANTS[case["call"]].items():
        others = [chosen | {name: choice} for choice in choices if choice != chosen[name]]
        if any(vectors.distance(got, vectors.answer(case, other)) >= TOLERANCE for other in others):
            names.append(name)
    return names


def findings(case, chosen: dict, got) -> dict:
    """What a choice is for each switch that the outputs show, but for those from which the case wants something
    else."""
    switches = vectors.VARIANTS[case["call"]]
    start = vectors.expected_choices(case)
    usual = [name for name in shown(case, chosen, got) if start[name] == switches[name][0]]
    return {name: "same" if chosen[name] == start[name] else f"{chosen[name]}" for name in usual}


def explain(case, got) -> tuple[str, dict]:
    """Which known variant gives these outputs, the one with the fewest deviations; and what that is for each switch."""
    if not vectors.VARIANTS[case["call"]]:
        return "", {}
    start = vectors.expected_choices(case)
    nearest, name = float("inf"), ""
    for chosen in by_deviations(vectors.VARIANTS[case["call"]], 4, start):
        away = vectors.distance(got, vectors.answer(case, chosen))
        if away < nearest:
            nearest, name = away, describe(chosen, start)
        if away < TOLERANCE:
            return name, findings(case, chosen, got)
    return f"like no variant that is known; nearest, to {nearest:.2g}: {name or 'what is expected'}", {}


def check_case(adapter, case, option="", arguments=None) -> Result:
    try:
        got = getattr(adapter, case["call"])(copy.deepcopy(case["inputs"]), **arguments or {})
        away = vectors.distance(got, case["expected"])
    except NotImplementedError as error:
        return Result(case["name"], option, "not there", str(error), {})
    except (vectors.WrongForm, NotFinite) as error:
        return Result(case["name"], option, "differs", str(error), {})
    except Exception as error:  # of other people's code
        traceback.print_exc()
        return Result(case["name"], option, "differs", one_line(error), {})
    if math.isnan(away):
        return Result(case["name"], option, "differs", "NaN", {})
    if away < TOLERANCE:
        chosen = vectors.expected_choices(case)
        seen = shown(case, chosen, got)
        unseen = [name for name in shown(case, chosen, case["expected"]) if name not in seen]
        note = f"to {away:.0e}" + (f"; not compared: {', '.join(unseen)}" if unseen else "")
        return Result(case["name"], option, "same", note, findings(case, chosen, got))
    says, found = explain(case, got)
    return Result(case["name"], option, "differs", f"by {away:.2g}: {says}".removesuffix(": "), found)


def one_line(error: Exception) -> str:
    """What the error is, for a row."""
    return f"{type(error).__name__}: {error}".partition("\n")[0]


def check_record(adapter, option="", arguments=None) -> list[Result]:
    try:
        rows = details.report(adapter.record(**arguments or {}))
    except UserError:
        raise
    except NotFinite as error:
        rows = [details.Row("", "numbers", "differs", str(error))]
    except Exception as error:
        traceback.print_exc()
        return [Result("training", option, "differs", one_line(error), {})]
    results = []
    for row in rows:
        found = {} if row.verdict == "not there" else {row.name: "same" if row.verdict == "same" else row.note}
        what = f"training: {row.tag} {row.name}".replace("  ", " ")
        results.append(Result(what, option, row.verdict, row.note, found))
    return results


def check(adapter) -> list[Result]:
    results = []
    options = getattr(adapter, "OPTIONS", {})
    for case in vectors.load():
        if hasattr(adapter, case["call"]):
            for option, arguments in options.get(case["call"], {"": {}}).items():
                results.append(check_case(adapter, case, option, arguments))
    if hasattr(adapter, "record"):
        for option, arguments in options.get("record", {"": {}}).items():
            results += check_record(adapter, option, arguments)
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--adapter", type=Path, required=True, help="a Python file")
    parser.add_argument("--json", type=Path, help="write the results to this file too")
    args = parser.parse_args()
    if args.adapter.suffix != ".py" or not args.adapter.is_file():
        raise UserError(f"--adapter {args.adapter}: there is no such Python file")
    adapter = load_adapter(args.adapter.resolve())
    results = check(adapter)
    print(f"{adapter.NAME}\n")
    width = max((len(f"{one.what} {one.option}") for one in results), default=0)
    for one in results:
        print(f"{one.what} {one.option}".ljust(width), one.verdict.ljust(9), one.note)
    if args.json:
        whole = {"name": adapter.NAME, "results": [one._asdict() for one in results]}
        args.json.write_text(json.dumps(whole), "utf-8")
    counts = {verdict: sum(one.verdict == verdict for one in results) for verdict in ("same", "differs", "not there")}
    print("\n" + ", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
    if counts["same"] + counts["differs"] == 0:
        raise UserError(f"{args.adapter.name}: nothing was compared")
    return 1 if counts["differs"] else 0


if __name__ == "__main__":
    with one_line_errors():
        sys.exit(main())
