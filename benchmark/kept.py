"""The kept results of this repository, which are tables.

`benchmark/results/runs.parquet` has a row for each run; the tables in `episodes` and `ablations` beside it have one for
each episode: its run, the step at which it ended, its return, and the seconds of training until then if they are known.
`speed.json` and `growth.json` hold measured speeds, by the measurement's name. Whoever writes one of them holds the
folder's lock.
"""

import io
import json
import shlex
import sys
from pathlib import Path
from typing import Any

import numpy as np
from command_line import UserError
from files import locked, write_atomically
from runs import ROOT, Run, release

RESULTS = ROOT / "benchmark" / "results"
PLAIN = ["script", "exp_name", "env_id", "seed", "version"]  # columns of runs.parquet that a Run has as they are
AS_JSON = ["arguments", "settings", "ablation", "evaluations"]  # and those that it has as JSON
ENCODINGS = {
    "step": "DELTA_BINARY_PACKED",
    "return": "BYTE_STREAM_SPLIT",
    "seconds": "BYTE_STREAM_SPLIT",
}  # a third of the bytes of Parquet's own choice


def read_table(path: Path):
    """A Parquet file as a data frame."""
    import pandas
    import pyarrow

    try:
        return pandas.read_parquet(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise UserError(f"{path}: is no whole table ({error}); `git checkout` brings it back") from None


def read_runs(results: Path = RESULTS):
    """The table of kept runs as a data frame, a row a run, with JSON as text; empty if there is none."""
    import pandas

    path = results / "runs.parquet"
    if path.is_file():
        return read_table(path)
    return pandas.DataFrame(columns=["run", "collection", "table", "exp_name"])


def kept_runs(collection: str, results: Path = RESULTS, exp_name: str | None = None) -> list[Run]:
    """The kept runs of a collection: "results", "ablations", "beside" (untouched runs of further machines for the
    ablations), "earlier_rounds" (of recipes) or "fp32"; or only those of a name, which is faster."""
    rows = read_runs(results)
    rows = rows[rows["collection"] == collection]
    if exp_name is not None:
        rows = rows[rows["exp_name"] == exp_name]
    runs = []
    for table, of_table in rows.groupby("table"):
        all_episodes = read_table(results / f"{table}.parquet")
        by_run = dict(list(all_episodes.groupby("run")))
        for row in of_table.to_dict("records"):
            episodes = by_run.get(row["run"], all_episodes[:0])
            steps = episodes["step"].to_numpy(dtype=float)
            run = _run_of_row(row, steps, episodes["return"].to_numpy(dtype=float))
            if "seconds" in episodes and episodes["seconds"].notna().all():
                run.seconds = episodes["seconds"].to_numpy(dtype=float)
            runs.append(run)
    return sorted(runs, key=lambda run: (run.exp_name, run.env_id, run.seed))


def append_runs(runs: list[Run], collection: str = "results", results: Path = RESULTS) -> int:
    """Adds runs to the tables, but those that are there, and returns how many. Their release is the present one unless
    they have one. runs.parquet comes last: episodes of a run without a row there are not read."""
    import pandas

    with locked(results):
        old = read_runs(results)
        new = _without_kept(runs, old, collection)
        if not new:
            return 0
        rows = pandas.DataFrame([_row(run, collection) for run in new.values()])
        for table, names in rows.groupby("table")["run"]:
            path = results / f"{table}.parquet"
            parts = []
            if path.is_file():
                before = read_table(path)
                parts.append(before[~before["run"].isin(new)])
            for name in names:
                columns = {"run": name, "step": new[name].steps, "return": new[name].returns}
                columns["seconds"] = np.nan if new[name].seconds is None else new[name].seconds
                kinds = {"step": "int32", "return": "float32", "seconds": "float32"}
                parts.append(pandas.DataFrame(columns).astype(kinds))
            _write_table(pandas.concat(parts), path, use_dictionary=["run"], column_encoding=ENCODINGS)
        _write_table(pandas.concat([old, rows]) if len(old) else rows, results / "runs.parquet")
    return len(new)


def portable(command: str) -> str:
    """A run's command with cleanrl/ instead of a script's whole path: a kept run names no folder of a machine."""
    words = shlex.split(command)
    for i, word in enumerate(words):
        if word.endswith(".py") and Path(word).is_absolute():
            words[i] = f"cleanrl/{Path(word).name}"
    return shlex.join(words)


def _without_kept(runs: list[Run], old, collection: str) -> dict[str, Run]:
    """The runs to add, by name. Says on stderr which it leaves out: those whose names are in the old table, and the
    same run under another name. Ablations have the same run once for each machine."""
    by_name = {row["run"]: row for row in old.to_dict("records")}
    no_episodes = np.empty(0)
    kept = {}
    if collection != "ablations":
        for row in by_name.values():
            if row["collection"] == collection:
                kept[_sameness(_run_of_row(row, no_episodes, no_episodes))] = row["run"]
    new = {}
    for run in runs:
        if run.name in by_name:
            row = by_name[run.name]
            until = "" if row["end"] == "whole" else f", {row['end']} at step {row['stopped_at']:,}"
            print(f"{run.name}: is kept already{until}; it is left out", file=sys.stderr)
        elif _sameness(run) in kept:
            print(f"{run.name}: is the same run as {kept[_sameness(run)]}; it is left out", file=sys.stderr)
        else:
            new[run.name] = run
            if collection != "ablations":
                kept[_sameness(run)] = run.name
    return new


def _sameness(run: Run) -> str:
    """What a run has in common with no other one: with both kept, one seed would count as two."""
    return json.dumps(run.identity | {"seed": run.seed, "release": run.release or release()}, sort_keys=True)


def _run_of_row(row: dict, steps: np.ndarray, returns: np.ndarray) -> Run:
    """The run of a row of runs.parquet and its episodes."""
    of_json = {name: json.loads(row[name]) for name in AS_JSON}
    of_row = {name: row[name] for name in PLAIN}
    return Run(
        name=row["run"],
        release=row["release"],
        end=row["end"],
        stopped_at=None if row["end"] == "whole" else int(row["stopped_at"]),
        steps=steps,
        returns=returns,
        config={"hardware": json.loads(row["hardware"])},
        **of_row,
        **of_json,
    )


def _row(run: Run, collection: str) -> dict:
    """A run as a row of runs.parquet."""
    table = f"ablations/{run.ablation['suite']}" if collection == "ablations" else f"episodes/{run.exp_name}"
    row: dict[str, Any] = {
        "run": run.name,
        "collection": collection,
        "table": table,
        "release": run.release or release(),
    }
    row["end"] = run.end
    row["stopped_at"] = -1 if run.stopped_at is None else run.stopped_at
    for name in PLAIN:
        row[name] = getattr(run, name)
    for name in AS_JSON:
        row[name] = json.dumps(getattr(run, name))
    for name in ("hardware", "versions"):
        row[name] = json.dumps(run.config.get(name, {}))
    row["command"] = portable(run.config.get("command", ""))
    return row


def _write_table(frame, path: Path, **options) -> None:
    """Writes a data frame, as small as it gets. Rows are ordered by run; those of a run keep their order."""
    content = io.BytesIO()
    frame = frame.sort_values("run", kind="stable")
    frame.to_parquet(content, index=False, compression="zstd", compression_level=22, **options)
    write_atomically(path, content.getvalue())


def read_json(name: str, results: Path = RESULTS) -> dict:
    """speed.json or growth.json as a dictionary of measurements by their names; empty if there is none."""
    path = results / name
    if not path.is_file():
        return {}
    return json.loads(path.read_text(encoding="utf-8"))


def write_json(name: str, measurement: str, measured: dict, results: Path = RESULTS) -> None:
    """Puts a measurement into speed.json or growth.json, a line each, in place of an earlier one of the name."""
    with locked(results):
        content = read_json(name, results) | {measurement: measured}
        lines = [f"{json.dumps(key)}: {json.dumps(content[key])}" for key in sorted(content)]
        write_atomically(results / name, "{\n" + ",\n".join(lines) + "\n}\n")
