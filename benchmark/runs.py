"""Scripts and their run folders: arguments, versions, how a run ended, and its episodes.

A script writes what tools read: config.json with its arguments, resumed_after_N.json with those of each resume,
episodes.csv, metrics.csv and, when it ends, end.json, which says how: "whole", by a "break" in train, "stopped" by a
signal, or "diverged". Without end.json a run is still going or was cut off. Run folders of release 0.3 and before have
none either: that release's tools read them.
"""

import ast
import contextlib
import csv
import glob
import hashlib
import json
import runpy
import sys
import tomllib
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np
from command_line import UserError
from intervals import LAST

ROOT = Path(__file__).resolve().parent.parent
RULER = "= The run: nothing below is about PPO"  # ends the line between a script's two parts
IN_TABLES = frozenset(["exp_name", "env_id", "total_timesteps"])  # what a row of a table says anyway

# Arguments that concern only the machine, the speed, or what is recorded of a run, in this release or an earlier one.
# Two runs that agree in all others, and in the version of their script, are seeds of one experiment.
NOT_IDENTITY = frozenset(
    """backend capture_video channels_last compile cuda cuda_graphs debug deterministic device device_ids env_threads
    episodes eval_num_levels eval_start_level evaluate longest_episode malloc_tuning num_threads resume seed
    torch_deterministic track vectorization wandb_entity wandb_project_name""".split()
)


# -------------------------------------------------------------------------------------------------------------- Scripts
@cache
def defined_in(script: Path, name: str):
    """Args or read_arguments of a script, which is run as a module."""
    sys.path.insert(0, str(script.resolve().parent))  # for modules beside it, as Python itself does
    try:
        return runpy.run_path(str(script))[name]
    except Exception as error:  # whatever the user's script does as it is loaded
        reason = f"{type(error).__name__}: {error}"
        raise UserError(
            f"{script}: has no {name} that can be read ({reason}); name a script such as cleanrl/ppo.py"
        ) from error


def defaults(script: Path) -> dict:
    """The defaults of a script's Args that are plain values, without running it: a run folder can be from anywhere."""
    found = {}
    for node in ast.parse(script.read_text(encoding="utf-8")).body:
        if not isinstance(node, ast.ClassDef) or node.name != "Args":
            continue
        for one in node.body:
            if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name) and one.value is not None:
                with contextlib.suppress(ValueError):  # what is computed, such as exp_name
                    found[one.target.id] = ast.literal_eval(one.value)
    return found


def version(script: Path) -> str:
    """Twelve hex digits: a hash of the text above a script's ruler. Comments and docstrings count, so that every Python
    and system finds the same one; the header that tells `uv run` what to install and options that are no part of a
    run's identity don't."""
    text = script.read_text(encoding="utf-8", errors="replace")  # any kind of line end becomes \n
    above, _, _ = text.partition(RULER)
    _, _, above = above.rpartition("\n# ///\n")
    lines = [line for line in above.split("\n") if line.strip().partition(":")[0] not in NOT_IDENTITY]
    return hashlib.sha256("\n".join(lines).encode("utf-8")).hexdigest()[:12]


def release() -> str:
    """The version of this repository, as in "0.2"."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return project["version"].removesuffix(".0")


# ------------------------------------------------------------------------------------------------------------ Arguments
def plain(value):
    """A whole float as an int: a default of 1 and a typed 1.0 are one value, also as JSON."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def identity(arguments: dict) -> dict:
    """The arguments that make a run what it is, without its seed. How many checkpoints are saved counts only if fresh
    episodes begin after each."""
    kept = {name: plain(value) for name, value in arguments.items() if name not in NOT_IDENTITY}
    kept["total_timesteps"] = int(kept["total_timesteps"])  # 1e6 is a number too
    if not kept.get("exact_resume"):
        kept.pop("exact_resume", None)
        kept.pop("checkpoints", None)
    return kept


def planned_steps(arguments: dict) -> int:
    """The step at which a run with these arguments ends: that of its last whole update."""
    batch_size = int(arguments["num_envs"]) * int(arguments["num_steps"])
    return int(arguments["total_timesteps"]) // batch_size * batch_size


def read_config(folder: Path) -> dict:
    """The config.json of a run folder, with the arguments of its last resume if there was one. If a resume changed what
    the run is, they have one more, changed_on_resume, which says what it was before: a run that had them from its first
    step on is another run, and so is one that began otherwise.
    Raises OSError or ValueError if it isn't whole."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if not isinstance(config, dict) or not isinstance(config.get("arguments"), dict) or "script" not in config:
        raise ValueError("config.json isn't that of a script")
    resumes = sorted(folder.glob("resumed_after_*.json"), key=lambda path: int(path.stem.rpartition("_")[2]))
    of_resumes = []
    for path in resumes:
        with contextlib.suppress(ValueError):  # cut short by a full disk; that resume ended before its first update
            of_resumes.append(json.loads(path.read_text(encoding="utf-8")))
    missing = {"exp_name", "env_id", "seed", "total_timesteps", "num_envs", "num_steps"} - config["arguments"].keys()
    if missing:
        raise ValueError(f"config.json has no {', '.join(sorted(missing))}")
    first = config["arguments"]
    if of_resumes:
        config["arguments"] = of_resumes[-1]
    changes = changes_of([identity(one) for one in [first, *of_resumes]])
    if changes:
        config["arguments"] = config["arguments"] | {"changed_on_resume": changes}
    return config


def changes_of(stages: list[dict]) -> str:
    """What of the arguments changed from one stage of a run to the next, as in "gamma 0.9 to 0.99"."""
    texts = []
    for name in sorted({name for stage in stages for name in stage}):
        values = []
        for stage in stages:
            value = stage.get(name, "–")
            if not values or value != values[-1]:
                values.append(value)
        if len(values) > 1:
            texts.append(f"{name} {' to '.join(map(str, values))}")
    return "; ".join(texts)


# ---------------------------------------------------------------------------------------------------------- Run folders
@dataclass(eq=False)
class Run:
    """A run: a folder's, or a kept one."""

    name: str  # of its folder
    script: str  # file name of the script without .py, ppo_numpy; for ablations, of the untouched one
    exp_name: str
    env_id: str
    seed: int
    version: str  # of the script that ran
    release: str | None  # of a kept run: the release of the repository with which it was made
    arguments: dict
    settings: dict  # what of identity(arguments), but for IN_TABLES, is not the script's default
    steps: np.ndarray = field(repr=False)  # (E,) at which its episodes ended
    returns: np.ndarray = field(repr=False)  # (E,)
    end: str = "whole"  # or break, diverged, stopped
    stopped_at: int | None = None  # the last step, unless the end is whole
    ablation: dict = field(default_factory=dict)  # suite, name ("" is untouched), base, beside
    config: dict = field(default_factory=dict, repr=False)  # of a folder: its config.json
    evaluations: list = field(default_factory=list, repr=False)  # [step, levels, return] of Procgen's at checkpoints
    seconds: np.ndarray | None = field(default=None, repr=False)  # (E,) of training when its episodes ended, if known

    @property
    def identity(self) -> dict:
        """What seeds of one experiment have in common. Where a run ended by itself is a result, and doesn't count."""
        cut_at = self.stopped_at if self.end == "stopped" else None
        return identity(self.arguments) | {"version": self.version, "stopped_at": cut_at}

    @property
    def planned(self) -> int:
        """The environment steps that it was to make."""
        return int(self.arguments["total_timesteps"])

    @property
    def total(self) -> int:
        """The environment steps that its curve has: what was planned, or where it was stopped."""
        return self.stopped_at if self.end == "stopped" else self.planned

    @property
    def result(self) -> float:
        """Mean return of the last 100 episodes, NaN without any."""
        return float(self.returns[-LAST:].mean()) if len(self.returns) else float("nan")


def read_end(folder: Path) -> dict | None:
    """How a folder's run ended: its end.json; None as long as there is none."""
    try:
        end = json.loads((folder / "end.json").read_text(encoding="utf-8"))
        return {"end": end["end"], "update": int(end["update"]), "global_step": int(end["global_step"])}
    except (OSError, ValueError, KeyError, TypeError):  # not there, or cut off while it was written
        return None


def checkpoints(run: Path) -> list[Path]:
    """The checkpoints of a run folder, ordered by their updates."""
    found = [path for path in run.glob("checkpoints/*") if path.suffix in (".pt", ".npz") and path.stem.isdecimal()]
    return sorted(found, key=lambda path: int(path.stem))


def read_log(path: Path) -> str:
    """The text of a CSV file that a process may be writing, without half a last row."""
    text = path.read_text(encoding="utf-8")
    return text[: text.rfind("\n") + 1]


def read_episodes(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """The steps at which a folder's episodes ended, and their returns. Raises OSError, ValueError or KeyError."""
    steps = []
    returns = []
    for row in csv.DictReader(read_log(folder / "episodes.csv").splitlines()):
        steps.append(float(row["global_step"] or "nothing"))
        returns.append(float(row["episodic_return"] or "nothing"))
    return np.array(steps), np.array(returns)


def read_seconds(folder: Path) -> np.ndarray | None:
    """The seconds of training at which a folder's episodes ended; None if its episodes.csv doesn't have them."""
    rows = list(csv.DictReader(read_log(folder / "episodes.csv").splitlines()))
    if not all(row.get("seconds") for row in rows):
        return None
    return np.array([float(row["seconds"]) for row in rows])


def read_levels(folder: Path) -> list:
    """[step, levels, return] of each episode in a folder's levels.csv, which ppo_procgen.py writes."""
    path = folder / "levels.csv"
    rows = csv.DictReader(read_log(path).splitlines()) if path.is_file() else []
    return [[int(row["global_step"]), row["levels"], float(row["episodic_return"])] for row in rows]


def last_step(folder: Path) -> int:
    """The last step in a run folder's metrics.csv, 0 before the first update."""
    path = folder / "metrics.csv"
    rows = read_log(path).splitlines()[1:] if path.is_file() else []
    return int(float(rows[-1].split(",")[0])) if rows else 0


def run_of_folder(folder: Path) -> Run:
    """The run of a run folder, which must have ended. Raises ValueError if it hasn't, or if it is no whole one."""
    try:
        config = read_config(folder)
        arguments = config["arguments"]
        script = folder / f"{config['script']}.py"
        usual = defaults(script)
        steps, returns = read_episodes(folder)
        seconds = read_seconds(folder)
        evaluations = read_levels(folder)
    except (OSError, SyntaxError, ValueError, KeyError) as error:
        raise ValueError(f"{folder}: is no whole run folder ({type(error).__name__}: {error})") from None
    end = read_end(folder)
    if end is None:
        raise ValueError(f"{folder}: has no end.json: it has not ended, or release 0.3 or an earlier one made it")
    own = identity(arguments)
    settings = {}
    for name in sorted(own.keys() - IN_TABLES):
        if name not in usual or own[name] != usual[name]:
            settings[name] = arguments[name]  # as the tables of kept runs have it
    return Run(
        name=folder.resolve().name,
        script=script.stem,
        exp_name=arguments["exp_name"],
        env_id=arguments["env_id"],
        seed=arguments["seed"],
        version=version(script),
        release=None,
        arguments=arguments,
        settings=settings,
        steps=steps,
        returns=returns,
        end=end["end"],
        stopped_at=None if end["end"] == "whole" else end["global_step"],
        config=config,
        evaluations=evaluations,
        seconds=seconds,
    )


def find_runs(paths: list[Path]) -> list[Run]:
    """The runs at and below the paths that have ended: whole, by a break, or because they diverged. Says on stderr
    which it leaves out: others, those in which no episode ended, what can't be read, and the older of two that are the
    same run."""
    folders = []
    for path in paths:
        if not path.exists():
            raise UserError(f"{path}: there is no such folder")
        pattern = f"{glob.escape(str(path))}/**/config.json"
        for config in glob.glob(pattern, recursive=True):  # as Path.rglob, but it follows links
            folders.append(Path(config).parent.resolve())
    found = {}
    without_episodes = 0
    for folder in sorted(dict.fromkeys(folders), key=lambda folder: folder.name):
        try:
            run = run_of_folder(folder)
        except ValueError as reason:
            print(f"{' '.join(str(reason).split())}; it is left out", file=sys.stderr)
            continue
        if run.end == "stopped":
            print(f"{folder}: was stopped, and can go on; it is left out", file=sys.stderr)
        elif len(run.returns) == 0:
            without_episodes += 1
            print(f"{folder}: no episode in it has ended; it is left out", file=sys.stderr)
        else:
            same = json.dumps(run.identity | {"seed": run.seed}, sort_keys=True)
            if same in found:
                print(f"{found[same].name}: is the same run as {run.name}; the older is left out", file=sys.stderr)
            found[same] = run
    where = " ".join(map(str, paths)) or "nothing"
    if not found and without_episodes:
        ended = "the run that has ended" if without_episodes == 1 else f"the {without_episodes} runs that have ended"
        raise UserError(f"{where}: no episode ended in {ended}, so there is no return; train for more steps")
    if not found:
        raise UserError(f"{where}: holds no run that has ended; name folders of runs")
    return sorted(found.values(), key=lambda run: (run.exp_name, run.env_id, run.seed))
