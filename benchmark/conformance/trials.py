"""Tries the check itself on this project's scripts, each in a copy that is changed.

    python benchmark/conformance/trials.py ablations   # with a detail taken out, benchmark/ablations/*.diff: flagged?
    python benchmark/conformance/trials.py harmless    # renamed, reordered, compiled, other sizes: no alarm?

Exit status 1 if a harmless change is flagged.
"""

import contextlib
import io
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
sys.path[:0] = [str(FOLDER), str(FOLDER / "adapters"), str(FOLDER.parent)]

import ablate  # noqa: E402
import check  # noqa: E402
import our_scripts  # noqa: E402
import ours  # noqa: E402
import ours_numpy  # noqa: E402
import torch  # noqa: E402
import vectors  # noqa: E402

# Whole-script renamings, and the same arithmetic written otherwise; each is a line as it is and as it becomes
HARMLESS = {
    "renamed": [("b_returns", "targets"), ("log_ratio", "difference"), ("next_done", "ended"), ("b_obs", "inputs")],
    "reordered": [
        ("policy_loss - args.ent_coef * entropy.mean() + args.vf_coef * value_loss",
         "args.vf_coef * value_loss + policy_loss - args.ent_coef * entropy.mean()"),
        ("torch.min(advantages * ratio, advantages * clipped_ratio).mean()",
         "torch.stack([advantages * ratio, advantages * clipped_ratio]).min(0).values.sum() / len(ratio)"),
        ("squared_error = (value - mb.returns).square()", "squared_error = (mb.returns - value) ** 2"),
    ],
}  # fmt: skip
TURN_ON = {"plus-1": {"bootstrap_truncated": True}, "aux-1": {"anneal_clip": True}, "aux-3": {"target_kl": 0.015}}
SIZES = {"num_envs": 3, "num_steps": 6, "minibatches": 2, "epochs": 2, "updates": 24, "gamma": 0.9, "clip_coef": 0.1}


def flagged(script: str, change=None, **options) -> list[str]:
    """What the check says of a training, but what is the same."""
    adapter = ours_numpy if script.endswith("numpy") else ours
    arguments = adapter.OPTIONS["record"][script] | options
    if change:
        arguments |= {"change": change}
    with contextlib.redirect_stderr(io.StringIO()):  # tracebacks of scripts that no longer run
        rows = check.check_record(adapter, arguments)
        said = [f"{row.detail}: {row.note}" for row in rows if row.verdict == "differs"]
        for case in vectors.load() if adapter is ours else ():
            if case["inputs"].get("script") == script or (case["call"] == "atari" and script == "ppo_atari"):
                verdict, note, _ = check.check_case(ours, case, {})
                said += [f"{case['tag']} {case['name']}: {note}"] if verdict == "differs" else []
    return said


def with_source(script: str, source: str, **options) -> list[str]:
    """The same of another source of the script."""
    with tempfile.TemporaryDirectory() as folder:
        kept, our_scripts.FOLDER = our_scripts.FOLDER, Path(folder)
        (our_scripts.FOLDER / f"{script}.py").write_text(source, "utf-8")
        try:
            return flagged(script, **options)
        finally:
            our_scripts.FOLDER = kept


def try_ablations() -> int:
    counts = {"flagged": 0, "named": 0, "tried": 0}
    flagged_tags, named_tags = set(), set()
    for name, ablation in ablate.all_ablations().items():
        if not ablation.diff.is_file():
            continue
        said = []
        for script in ablate.hunks(ablation.diff):
            if script in ours.OPTIONS["record"] | ours_numpy.OPTIONS["record"]:
                options = TURN_ON.get(ablation.tag, {})
                said = with_source(script, ablate.changed(ablation, script), **options)
                break
        counts["tried"] += 1
        named = any(ablation.tag in line.partition(":")[0].split() for line in said)
        counts["flagged"] += bool(said)
        counts["named"] += named
        flagged_tags |= {ablation.tag} if said else set()
        named_tags |= {ablation.tag} if named else set()
        mark = "named" if named else "flagged" if said else "missed"
        print(f"{name:18} {mark:8} {ablation.instead} | {'; '.join(said)[:150]}", flush=True)
    print(counts, len(flagged_tags), "details flagged,", len(named_tags), "named")
    return 0


def compile_loss(script):
    script.ppo_loss = torch.compile(script.ppo_loss, backend="aot_eager")


def compile_agent(script):
    class Compiled(script.Agent):
        def __init__(self, *args):
            super().__init__(*args)
            self.compile(backend="aot_eager")

    script.Agent = Compiled


def try_harmless() -> int:
    alarms = {}
    for script in ("ppo", "ppo_continuous_action", "ppo_atari"):
        source = (our_scripts.FOLDER / f"{script}.py").read_text("utf-8")
        for name, changes in HARMLESS.items():
            changed = source
            for before, after in changes:
                assert before in changed, (script, before)
                changed = changed.replace(before, after)
            alarms[f"{script}, {name}"] = with_source(script, changed)
        alarms[f"{script}, loss compiled"] = flagged(script, compile_loss)
        alarms[f"{script}, agent compiled"] = flagged(script, compile_agent)
        alarms[f"{script}, other sizes"] = flagged(script, **SIZES)
        alarms[f"{script}, another seed"] = flagged(script, seed=7)
        alarms[f"{script}, two threads"] = flagged(script, num_threads=2)
    for name, said in alarms.items():
        print(f"{name:44} {'; '.join(said) or 'no alarm'}")
    return int(any(alarms.values()))


if __name__ == "__main__":
    trials = {"ablations": try_ablations, "harmless": try_harmless}
    if sys.argv[1:2] == [] or sys.argv[1] not in trials:
        sys.exit(__doc__)
    sys.exit(trials[sys.argv[1]]())
