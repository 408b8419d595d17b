"""benchmark/conformance: vectors of two sources, trainings that numpy replays, and differences by their names."""

import sys
from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).parents[1] / "benchmark" / "conformance"
sys.path[:0] = [str(FOLDER), str(FOLDER / "adapters")]

import check  # noqa: E402
import details  # noqa: E402
import matrix  # noqa: E402
import our_scripts  # noqa: E402
import ours  # noqa: E402
import ours_numpy  # noqa: E402
import replay  # noqa: E402
import scripted  # noqa: E402
import second_source  # noqa: E402
import vectors  # noqa: E402

CASES = list(vectors.load())
SCRIPTS = [(adapter, name) for adapter in (ours, ours_numpy) for name in adapter.OPTIONS["record"]]
SHORT = {"updates": 5}


def as_arrays(x):
    if isinstance(x, dict):
        return {name: as_arrays(value) for name, value in x.items()}
    if isinstance(x, list):
        return [as_arrays(value) for value in x]
    return x.numpy() if hasattr(x, "numpy") else x


# ---------------------------------------------------------------------------------------------------------- The vectors
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_a_second_source_gives_the_same_numbers(case):
    got = as_arrays(getattr(second_source, case["call"])(case["inputs"]))
    first_step = got.pop("first_step", {})
    assert vectors.distance(got, {name: case["expected"][name] for name in got}) < 1e-10
    for name, number in first_step.items():
        assert abs(number - case["first_step"][name]) < 1e-10


def test_each_variant_misses_the_vectors_that_are_meant_for_it():
    missed = set()
    for case in CASES:
        for switch, choices in vectors.switches_of(case["call"], case["inputs"]).items():
            for choice in choices[1:]:
                name = f"{switch}: {choice}"
                away = vectors.distance(
                    vectors.ANSWERS[case["call"]](case["inputs"], {switch: choice}), case["expected"]
                )
                if name in case["missed_by"]:
                    assert away == pytest.approx(case["missed_by"][name], rel=0.1)
                    missed.add((case["call"], name))
    every = {(call, f"{switch}: {choice}") for call, switches in vectors.VARIANTS.items()
             for switch, choices in switches.items() for choice in choices[1:]}  # fmt: skip
    of_rollouts = {
        (call, name) for call, name in every if call == "update" and ("rollout's" in name or "environment's" in name)
    }
    other = {
        ("normalize_observations", "epsilon is: outside"),
        ("normalize_observations", "update: after each rollout"),
    }
    assert every - missed <= of_rollouts | other  # only trainings show these


# ---------------------------------------------------------------------------------------------------------- The scripts
@pytest.mark.parametrize(("adapter", "name"), SCRIPTS, ids=lambda x: x if isinstance(x, str) else "")
def test_a_script_is_replayed(adapter, name):
    options = {} if "continuous" in name else SHORT  # its outliers come late
    rows = details.report(adapter.record(**adapter.OPTIONS["record"][name] | options))
    assert [row for row in rows if row.verdict != "same"] == []
    notes = {row.detail: row.note for row in rows}
    steps, _, error = notes["core-5 advantages and returns"].partition(" steps to ")
    assert steps == notes["steps"].partition(" of ")[0]
    assert float(error) < 2e-5


def changed(tmp_path, monkeypatch, before, after, script="ppo", **options):
    """The rows that differ with a line of a script changed."""
    source = (our_scripts.FOLDER / f"{script}.py").read_text("utf-8")
    assert source.count(before) == 1
    (tmp_path / f"{script}.py").write_text(source.replace(before, after), "utf-8")
    monkeypatch.setattr(our_scripts, "FOLDER", tmp_path)
    rows = details.report(our_scripts.record(script, **SHORT, **options))
    return {row.detail: row.note for row in rows if row.verdict == "differs"}


@pytest.mark.parametrize(
    ("before", "after", "detail", "says"),
    [
        ("std(correction=0)", "std()", "core-7 advantages", "sample std"),
        ("0.5 * squared_error.mean()", "squared_error.mean()", "core-10 value scale", "1"),
        ("torch.max(squared_error, (clipped_value - mb.returns).square())", "(clipped_value - mb.returns).square()",
         "core-9 value loss", "clipped value alone"),
        ("decays = gamma * gae_lambda * continues", "decays = gamma * gae_lambda + 0 * continues", "core-5 trace",
         "leaks at all ends"),
        ("eps=1e-5", "eps=1e-8", "core-3 Adam", "like epsilon = 1e-08"),
        ("np.concatenate([dones[1:], next_done[None]])", "dones", "core-1 core-5 done flags",
         "of the step before, with the first marked"),
        ("rewards + gamma * next_values", "rewards + next_values", "core-5 gamma", "not in delta"),
        ("np.concatenate([values[1:], next_value[None]])", "np.concatenate([values[1:], 0 * next_value[None]])",
         "core-5 after the rollout", "zero"),
        ("- args.ent_coef * entropy.mean()", "+ args.ent_coef * entropy.mean()", "core-10 entropy bonus", "wrong sign"),
        ("-torch.min(advantages", "-torch.max(advantages", "core-8 policy loss", "max in place of min"),
        ("log_prob - mb.log_probs", "log_prob - log_prob.detach()", "core-8 old log-probs", "anew in each step"),
        ("squared_error = (value - mb.returns)", "value = value[:, None]; squared_error = (value - mb.returns)",
         "core-9 value's shape", "(M, 1) against (M,)"),
        ("                optimizer.zero_grad()\n", "", "zero_grad", "missing"),
        ("nn.utils.clip_grad_norm_(parameters, args.max_grad_norm)",
         "[nn.utils.clip_grad_norm_(p, args.max_grad_norm) for p in parameters]", "core-11 gradient clip",
         "each parameter apart"),
    ],
)  # fmt: skip
def test_a_difference_is_named(before, after, detail, says, tmp_path, monkeypatch):
    found = changed(tmp_path, monkeypatch, before, after)
    assert list(found) == [detail]
    assert found[detail].startswith(says)


@pytest.mark.parametrize(
    ("before", "after", "detail", "says"),
    [
        ("ratio = log_ratio.exp()", "ratio = (2 * log_ratio).exp()", "core-8 policy loss",
         "2 times as large where the ratio is 1"),
        ("torch.max(squared_error, (clipped_value - mb.returns).square())",
         "(squared_error + (clipped_value - mb.returns).square()) / 2",
         "core-9 value loss", "right in rollouts' first steps"),
        ("gamma * gae_lambda * continues", "gamma * gae_lambda**2 * continues", "core-5 returns",
         "right in 100% of an episode's last steps, 100% of rollouts' last steps, 0% of"),
    ],
)  # fmt: skip
def test_an_unknown_difference_hides_no_other_row(before, after, detail, says, tmp_path, monkeypatch):
    found = changed(tmp_path, monkeypatch, before, after)
    assert list(found) == [detail]
    assert says in found[detail]


def test_a_renamed_and_reordered_script_raises_no_alarm(tmp_path, monkeypatch):
    before = "policy_loss - args.ent_coef * entropy.mean() + args.vf_coef * value_loss"
    after = "args.vf_coef * value_loss + policy_loss - entropy.mean() * args.ent_coef"
    assert changed(tmp_path, monkeypatch, before, after, num_envs=3, num_steps=6, minibatches=2, gamma=0.9) == {}


def test_steps_that_only_begin_an_episode_are_seen():
    """As Gymnasium's vectors do it by default: the reset takes a step."""
    record = our_scripts.record("ppo_atari_envpool", is_picture=True, **SHORT)
    for log in record["logs"]:
        log[:] = [("reset", *event[1:]) if event[0] == "late reset" else event for event in log]
    assert "only begin an episode" in details.report(record)[0].note


def test_the_script_of_the_environments_has_ends_and_limits_at_the_borders_too():
    replayed = replay.Replay(our_scripts.record("ppo_atari", is_picture=True, updates=20))
    for ends in (replayed.terminated, replayed.truncated):
        assert ends[:, :-1].any()
        assert ends[:, -1].any()
    assert len(np.unique(replayed.vectors[0])) == scripted.HYPER["num_envs"] * scripted.HYPER["num_steps"]


# ------------------------------------------------------------------------------------------------------------- The tool
def run(monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["check.py", *map(str, words)])
    return check.main()


def test_the_exit_status_says_whether_anything_differs(tmp_path, monkeypatch, capsys):
    assert run(monkeypatch, "--adapter", FOLDER / "adapters" / "template.py") == 0
    wrong = "import vectors\nNAME = 'wrong'\ndef gae(i):\n    return vectors.gae(i | {'gae_lambda': 1.0}, {})\n"
    (tmp_path / "wrong.py").write_text(wrong, "utf-8")
    capsys.readouterr()
    assert run(monkeypatch, "--adapter", tmp_path / "wrong.py") == 1
    assert "lambda 1" in capsys.readouterr().out
    assert run(monkeypatch, "--adapter", tmp_path / "missing.py") == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_the_page_has_the_kept_results():
    results = matrix.json.loads(matrix.RESULTS.read_text("utf-8"))
    assert matrix.table(results) in matrix.PAGE.read_text("utf-8")
    assert set(results["libraries"]) == set(matrix.LIBRARIES)
