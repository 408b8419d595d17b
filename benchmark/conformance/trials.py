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
import ours_pictures  # noqa: E402
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
TURN_ON: dict[str, dict] = {
    "plus-1": {"bootstrap_truncated": True},
    "aux-1": {"anneal_clip": True},
    "aux-3": {"target_kl": 0.015},
}
SIZES = {"num_envs": 3, "num_steps": 6, "minibatches": 2, "epochs": 2, "updates": 24, "gamma": 0.9, "clip_coef": 0.1}


def flagged(script: str, **options) -> list[check.Result]:
    """What the check says of a training, but what is the same."""
    adapter = next(one for one in (ours, ours_pictures, ours_numpy) if script in one.OPTIONS["record"])
    with contextlib.redirect_stderr(io.StringIO()):  # tracebacks of scripts that no longer run
        results = check.check_record(adapter, "", {"name": script} | options)
        if script == "ppo_atari":
            results += [check.check_case(adapter, case) for case in vectors.load() if case["call"] == "atari"]
    return [one for one in results if one.verdict == "differs"]


def with_source(script: str, source: str, **options) -> list[check.Result]:
    """The same of another source of the script."""
    with tempfile.TemporaryDirectory() as folder:
        kept, our_scripts.FOLDER = our_scripts.FOLDER, Path(folder)
        (our_scripts.FOLDER / f"{script}.py").write_text(source, "utf-8")
        try:
            return flagged(script, **options)
        finally:
            our_scripts.FOLDER = kept


def try_ablations() -> int:
    tags = {case["name"]: case["tag"] for case in vectors.load()}
    counts = {"tried": 0, "flagged": 0, "named": 0}
    details = {"flagged": set(), "named": set()}
    for name, ablation in ablate.all_ablations().items():
        if not ablation.diff.is_file():
            continue
        script = next(iter(ablate.hunks(ablation.diff)))
        said = with_source(script, ablate.changed(ablation, script), **TURN_ON.get(ablation.tag, {}))
        found = {"flagged": bool(said)}
        found["named"] = any(ablation.tag in tags.get(one.what, one.what).split() for one in said)
        counts["tried"] += 1
        for what, is_so in found.items():
            counts[what] += is_so
            details[what] |= {ablation.tag} if is_so else set()
        mark = "named" if found["named"] else "flagged" if said else "missed"
        notes = "; ".join(f"{one.what}: {one.note}" for one in said)
        print(f"{name:18} {mark:8} {ablation.instead} | {notes[:150]}", flush=True)
    print(counts, {what: len(names) for what, names in details.items()}, "details")
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
        alarms[f"{script}, loss compiled"] = flagged(script, change=compile_loss)
        alarms[f"{script}, agent compiled"] = flagged(script, change=compile_agent)
        alarms[f"{script}, other sizes"] = flagged(script, **SIZES)
        alarms[f"{script}, another seed"] = flagged(script, seed=7)
        alarms[f"{script}, two threads"] = flagged(script, num_threads=2)
    for name, said in alarms.items():
        print(f"{name:44} {'; '.join(one.what for one in said) or 'no alarm'}")
    return int(any(alarms.values()))


if __name__ == "__main__":
    trials = {"ablations": try_ablations, "harmless": try_harmless}
    if sys.argv[1:2] == [] or sys.argv[1] not in trials:
        sys.exit(__doc__)
    sys.exit(trials[sys.argv[1]]())
