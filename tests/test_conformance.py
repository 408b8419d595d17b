"""benchmark/conformance: vectors of two sources, trainings that numpy replays, and differences by their names."""

import importlib.util
import json
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from command_line import UserError, one_line_errors

FOLDER = Path(__file__).parents[1] / "benchmark" / "conformance"
sys.path[:0] = [str(FOLDER), str(FOLDER / "adapters")]

import check  # noqa: E402
import details  # noqa: E402
import matrix  # noqa: E402
import our_scripts  # noqa: E402
import ours  # noqa: E402
import ours_numpy  # noqa: E402
import ours_pictures  # noqa: E402
import reference  # noqa: E402
import replay  # noqa: E402
import scripted  # noqa: E402
import scripted_game  # noqa: E402
import second_source  # noqa: E402
import spy  # noqa: E402
import switches  # noqa: E402
import trials  # noqa: E402
import vectors  # noqa: E402

CASES = vectors.load()
ADAPTERS = (ours, ours_pictures, ours_numpy)
TRAININGS = [(adapter, option) for adapter in ADAPTERS for option in adapter.OPTIONS["record"]]
SHORT = {"updates": 3}
SWITCHES = switches.GAE_SWITCHES | switches.UPDATE_SWITCHES | switches.STATISTICS_SWITCHES | switches.TRAINING_SWITCHES
ALL_CHOICES = {choice for choices in SWITCHES.values() for choice in choices if isinstance(choice, str)}


def as_arrays(x):
    if isinstance(x, dict):
        return {name: as_arrays(value) for name, value in x.items()}
    if isinstance(x, list):
        return [as_arrays(value) for value in x]
    return x.numpy() if hasattr(x, "numpy") else x


# ---------------------------------------------------------------------------------------------------------- The vectors
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_a_second_source_gives_the_same_numbers_for_every_choice(case):
    start = vectors.expected_choices(case)
    wrong = []
    for switch, choices in (vectors.VARIANTS[case["call"]] or {"": [""]}).items():
        for choice in choices:
            chosen = start | {switch: choice}
            got = as_arrays(getattr(second_source, case["call"])(case["inputs"], chosen))
            wanted = case["expected"] if chosen == start else vectors.answer(case, chosen)
            if not vectors.distance(got, wanted) < 1e-10:
                wrong.append((switch, choice))
    assert wrong == []


RNG = np.random.default_rng(3)


@pytest.mark.parametrize("how", switches.Rewards)
def test_a_second_source_scales_rewards_alike(how):
    rewards, dones = 2 * RNG.normal(size=(40, 3)), RNG.random((40, 3)) < 0.1
    rewards[38, 1] = 400.0
    wanted = second_source.scale_rewards(rewards, dones, 0.99, how).numpy()
    assert np.abs(reference.scale_rewards(rewards, dones, 0.99, how) - wanted).max() < 1e-10


@pytest.mark.parametrize("update", switches.Update)
def test_a_second_source_has_the_same_statistics_of_whole_rollouts(update):
    chosen = switches.defaults(switches.STATISTICS_SWITCHES) | {"update": update}
    observations = 3 * RNG.normal(size=(13, 2, 3)) + 5
    wanted = second_source.normalize_observations({"observations": observations}, chosen, rollout=4)["outputs"].numpy()
    assert np.abs(reference.running_normalize(observations, chosen, rollout=4)[0] - wanted).max() < 1e-10


@pytest.mark.parametrize("how", switches.Advantages)
def test_a_second_source_normalizes_whole_rollouts_alike(how):
    advantages = 2 * RNG.normal(size=(7, 3)) + 1
    wanted = second_source.normalize(torch.as_tensor(advantages), how).numpy()
    assert np.abs(reference.normalize(advantages, how) - wanted).max() < 1e-10


def test_each_variant_misses_a_vector_clearly():
    largest = {}
    for case in CASES:
        start = vectors.expected_choices(case)
        for switch, choices in vectors.VARIANTS[case["call"]].items():
            for choice in choices:
                away = vectors.distance(vectors.answer(case, start | {switch: choice}), case["expected"])
                variant = (case["call"], switch, choice)
                largest[variant] = max(largest.get(variant, 0.0), away if choice != start[switch] else 0.0)
    usual = {
        (call, switch, choices[0])
        for call, switches in vectors.VARIANTS.items()
        for switch, choices in switches.items()
    }
    usual -= {("gae", "time limits", "as an end")}  # which one vector doesn't want
    only_trainings_show = {("normalize_observations", "epsilon is", "outside")}
    assert {variant for variant, away in largest.items() if away < 2e-3} == usual | only_trainings_show


def load_reworded(tmp_path, monkeypatch):
    """Copies of the modules that compute by choices, with each choice's text turned round."""
    source = (FOLDER / "switches.py").read_text("utf-8")
    for choice in ALL_CHOICES:
        source = source.replace(f'= "{choice}"', f'= "{choice[::-1]} reworded"')
    (tmp_path / "switches.py").write_text(source, "utf-8")
    for name in ("reference", "vectors"):
        shutil.copy(FOLDER / f"{name}.py", tmp_path)
    modules = {}
    for name in ("switches", "reference", "vectors"):
        spec = importlib.util.spec_from_file_location(name, tmp_path / f"{name}.py")
        modules[name] = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, modules[name])
        spec.loader.exec_module(modules[name])
    return modules


def test_a_rewording_changes_no_arithmetic(tmp_path, monkeypatch):
    reworded = load_reworded(tmp_path, monkeypatch)
    for choices in reworded["switches"].UPDATE_SWITCHES.values():
        assert all(choice.endswith("reworded") for choice in choices)
    for case in CASES:
        for switch, choices in vectors.VARIANTS[case["call"]].items():
            for choice, other in zip(choices, reworded["vectors"].VARIANTS[case["call"]][switch]):
                wanted = vectors.answer(case, vectors.expected_choices(case) | {switch: choice})
                chosen = reworded["vectors"].expected_choices(case) | {switch: other}
                assert vectors.distance(reworded["vectors"].answer(case, chosen), wanted) == 0.0, (switch, choice)


def test_the_split_that_is_described_is_the_one_that_was_drawn():
    found = reference.describe_split([[[0, 1], [2, 3]], [[3, 2], [1, 0]], [[0, 0, 3], [2, 1]]], 4)
    assert found["counts"].tolist() == [[1, 1, 1, 1], [1, 1, 1, 1], [2, 1, 1, 1]]
    assert found["sizes"].tolist() == [2, 2, 2, 2, 3, 2]
    assert found["repeated"].tolist() == [1, 0]
    assert found["in_order"].tolist() == [1, 0, 0]


def test_the_vectors_are_those_that_are_drawn(tmp_path, monkeypatch):
    spec = importlib.util.spec_from_file_location("vectors_anew", FOLDER / "vectors.py")
    anew = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(anew)
    monkeypatch.setattr(anew, "FILE", tmp_path / "vectors.json")
    kept = {case["name"]: case for case in CASES}
    monkeypatch.setattr(anew, "atari", lambda i, chosen: kept[f"Atari, {i['of']}"]["expected"])  # no game is played
    anew.main()
    drawn = anew.load()
    assert [case["name"] for case in drawn] == list(kept)
    for case in drawn:
        other = kept[case["name"]]
        assert [case[key] for key in ("tag", "why", "call")] == [other[key] for key in ("tag", "why", "call")]
        assert_equal(case["inputs"], other["inputs"])
        assert vectors.distance(case["expected"], other["expected"]) < 1e-9


def assert_equal(one, other):
    if isinstance(one, dict):
        assert list(one) == list(other)
        for name in one:
            assert_equal(one[name], other[name])
    elif isinstance(one, np.ndarray) and one.dtype.kind == "f":
        assert np.abs(one - other).max() < 1e-9
    else:
        assert np.array_equal(one, other)


@pytest.mark.parametrize(("off", "verdict"), [(1e-5, "same"), (5e-5, "differs"), (-5e-5, "differs")])
@pytest.mark.parametrize(("name", "part"), [("observations", "outputs"), ("GAE, true ends", "returns")])
def test_a_difference_counts_from_a_few_hundred_thousandths_of_the_largest_number(
    name, part, off, verdict, monkeypatch
):
    """Libraries compute in float32."""
    monkeypatch.setattr(check, "explain", lambda case, got: ("", {}))
    case = next(case for case in CASES if case["name"] == name)
    largest = max(np.abs(x).max() for x in case["expected"].values())
    got = {key: x.copy() for key, x in case["expected"].items()}
    got[part][1, 0] += off * largest
    assert abs(largest - 1) > 0.5
    adapter = SimpleNamespace(**{case["call"]: lambda i: got})
    assert check.check_case(adapter, case).verdict == verdict


@pytest.mark.parametrize(
    ("name", "chosen"),
    [
        ("GAE, true ends", {"lambda": switches.Lambda.ONE}),
        ("time limits bootstrapped", {"trace": switches.Trace.LEAKS}),
        ("update, Discrete", {"Adam's ε": 1e-8}),
        ("update, Discrete", {"Adam's ε": 1e-7}),
        ("log-probs, Box", {"log-prob": switches.LogProb.LAPLACE}),
        ("observations", {"clip": np.inf}),
        ("observations", {"clip": 5.0}),
        ("observations", {"first count": 0.0}),
        ("observations", {"first count": 1.0}),
        ("observations", {"epsilon": 1e-2}),
        ("observations", {"epsilon": 1e-4}),
        ("observations, one environment",
         {"update": switches.Update.AFTER_USE, "clip": np.inf, "first count": 0.0, "epsilon": 1e-2}),
    ],
)  # fmt: skip
def test_what_a_vector_finds_is_told_by_switch(name, chosen):
    case = next(case for case in CASES if case["name"] == name)
    got = vectors.answer(case, vectors.expected_choices(case) | chosen)
    result = check.check_case(SimpleNamespace(**{case["call"]: lambda i: got}), case)
    assert result.verdict == "differs"
    assert {key: text for key, text in result.found.items() if text != "same"} == {
        key: f"{choice}" for key, choice in chosen.items()
    }
    assert all(f"{key} {choice}" in result.note for key, choice in chosen.items())


@pytest.mark.parametrize(("name", "is_found"), [("time limits as ends", True), ("time limits bootstrapped", False)])
def test_what_only_the_vector_wants_is_no_finding(name, is_found):
    case = next(case for case in CASES if case["name"] == name)
    found = check.check_case(SimpleNamespace(gae=lambda i: case["expected"]), case).found
    assert found.get("time limits") == ("same" if is_found else None)
    assert found["trace"] == found["lambda"] == "same"


def test_an_adapter_may_work_in_place_on_its_inputs():
    case = next(case for case in CASES if case["name"] == "GAE, true ends")

    def gae(i):
        got = vectors.answer(case | {"inputs": i | {"gae_lambda": 1.0}})
        i["rewards"] *= 0.0
        return got

    for _ in range(2):
        result = check.check_case(SimpleNamespace(gae=gae), case)
        assert (result.verdict, result.found["lambda"]) == ("differs", switches.Lambda.ONE)


@pytest.mark.parametrize(
    ("how", "nearest"), [(switches.LogProb.SUM, "what is expected"), (switches.LogProb.MEAN, "log-prob mean")]
)
def test_an_unknown_difference_says_what_is_nearest(how, nearest):
    case = next(case for case in CASES if case["name"] == "log-probs, Box")
    got = vectors.answer(case, {"log-prob": how})
    got["entropy"] = got["entropy"] + 0.01
    result = check.check_case(SimpleNamespace(evaluate_actions=lambda i: got), case)
    assert (result.verdict, result.found) == ("differs", {})
    assert result.note.endswith(f": {nearest}")


@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_choices_come_with_the_fewest_deviations_first_and_each_once(count):
    few = {"a": [1, 2, 3], "b": [1, 2], "c": [1, 2]}
    start = {"a": 2, "b": 1, "c": 1}
    chosen = list(switches.by_deviations(few, count, start))
    deviations = [sum(one[name] != start[name] for name in few) for one in chosen]
    assert deviations == sorted(deviations)
    assert [deviations.count(k) for k in range(4)] == [1, *[n if k < count else 0 for k, n in enumerate((4, 5, 2))]]
    assert len({tuple(one.items()) for one in chosen}) == len(chosen)
    assert all(one[name] in few[name] for one in chosen for name in few)


SAYS = {  # a telling word of each choice, in the order of the choices; the first is what the 37 details say
    switches.TimeLimits: ["as an end", "bootstrap", "flow", "next episode", "before"],
    switches.TrueEnds: ["end", "next episode", "last observation"],
    switches.Trace: ["cut", "limits", "all"],
    switches.AfterRollout: ["unless", "though", "zero", "last step"],
    switches.DoneFlags: ["this", "of the step before", "first", "last", "after", "ignored"],
    switches.Gamma: ["both", "not in delta", "not in the trace"],
    switches.Lambda: ["given", "1", "0"],
    switches.Returns: ["advantages + values", "normalized advantages +", "sample", "alone", "discounted rewards",
                       "last value", "one step"],
    switches.Advantages: ["population std", "sample std", "not normalized", "divided", "mean taken off",
                          "population std of the rollout", "sample std of the rollout",
                          "population std of each environment", "sample std of each environment"],
    switches.PolicyLoss: ["clipped", "not clipped", "max", "alone", "upside down", "(M, 1)"],
    switches.ValueLoss: ["larger", "not clipped", "clipped alone", "smaller", "L1", "up to 10"],
    switches.ValueShape: ["as the returns'", "(M, 1) against", "old values"],
    switches.ValueScale: ["1/2", "1"],
    switches.EntropyBonus: ["yes", "no", "wrong sign"],
    switches.GradientClip: ["joint", "actor and critic", "parameter", "number", "none"],
    switches.LogProb: ["sum", "mean", "entropy too", "Laplace", "softmax of the softmax"],
    switches.Update: ["before use", "after use", "after each rollout"],
    switches.EpsilonIs: ["inside", "outside"],
    switches.Variance: ["population", "sample"],
    switches.Statistics: ["shared", "per environment"],
    switches.Rewards: ["scaled, clipped", "scaled", "clipped", "per environment", "as they are"],
    switches.Lstm: ["should", "never reset", "from zeros"],
    switches.LateResets: ["left out", "learned"],
    switches.ValuesAndAdvantages: ["once", "each epoch"],
    switches.OldLogProbs: ["acting", "each epoch", "each step"],
    switches.ClipRange: ["constant", "annealed"],
    switches.Masks: ["used", "ignored"],
    switches.Order: ["one", "advantages and returns by environment", "advantages and returns by time",
                     "observations by environment", "observations by time"],
}  # fmt: skip


@pytest.mark.parametrize("kind", SAYS, ids=lambda kind: kind.__name__)
def test_a_choice_says_which_it_is(kind):
    for choice, word in zip(kind, SAYS[kind], strict=True):
        assert word in choice


def test_each_switch_has_all_its_choices():
    of_choices = [choices for choices in SWITCHES.values() if isinstance(choices[0], str)]
    assert {type(choices[0]): choices for choices in of_choices} == {kind: list(kind) for kind in SAYS}
    assert [len(choices) for choices in SWITCHES.values() if choices not in of_choices] == [3, 3, 3]


# Results that are right but for a part: the vector's name, and what is made of its expected result
def nan_returns(got):
    return got | {"returns": np.full_like(got["returns"], np.nan)}


def nan_after_the_first_step(part):
    def change(got):
        nan = {name: np.full_like(x, np.nan) for name, x in got["steps"][1][part].items()}
        return {"steps": [got["steps"][0], got["steps"][1] | {part: nan}]}

    return change


def misspelt_advantages(got):
    return {"advantage": 0 * got["advantages"], "returns": got["returns"]}


def misspelt_gradients(got):
    return {"steps": [{"gradient": {}, "weights": step["weights"]} for step in got["steps"]]}


def one_parameter(got):
    return {"steps": [{"weights": {"policy.0.weight": step["weights"]["policy.0.weight"]}} for step in got["steps"]]}


def weights_by_other_names(got):
    return {"steps": [{"weights": {"actor.weight": 0.0}} for step in got["steps"]]}


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("GAE, true ends", nan_returns),
        ("update, Discrete", nan_after_the_first_step("gradients")),
        ("update, Discrete", nan_after_the_first_step("weights")),
        ("GAE, true ends", misspelt_advantages),
        ("GAE, true ends", lambda got: {}),
        ("GAE, true ends", lambda got: tuple(got.values())),
        ("update, Discrete", misspelt_gradients),
        ("update, Discrete", weights_by_other_names),
        ("update, Discrete", one_parameter),
        ("update, Discrete", lambda got: {"steps": got["steps"][1:]}),
        ("update, Discrete", lambda got: {"steps": None}),
        ("GAE, true ends", lambda got: {name: x.T for name, x in got.items()}),
    ],
)
def test_nan_and_other_forms_differ(name, change, monkeypatch, capsys):
    monkeypatch.setattr(check, "explain", None)  # no variant is looked for, which would take long
    case = next(case for case in CASES if case["name"] == name)
    adapter = SimpleNamespace(**{case["call"]: lambda i: change(vectors.answer(case))})
    result = check.check_case(adapter, case)
    assert (result.verdict, result.found) == ("differs", {})
    assert result.note
    assert capsys.readouterr().err == ""  # no traceback


OF_A_SPY = ("fresh", "unclipped", "learning_rate", "observations", "actions")  # beside what is compared


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("GAE, true ends", lambda got: {"returns": got["returns"]}),
        ("update, Discrete", lambda got: {"steps": [step | dict.fromkeys(OF_A_SPY) for step in got["steps"]]}),
    ],
)
def test_a_part_may_be_left_out_and_steps_may_be_a_spys(name, change):
    case = next(case for case in CASES if case["name"] == name)
    adapter = SimpleNamespace(**{case["call"]: lambda i: change(vectors.answer(case))})
    assert check.check_case(adapter, case).verdict == "same"


@pytest.mark.parametrize(
    ("change", "seen"),
    [
        (lambda got: {"steps": got["steps"]}, {"value loss", "gradient clip", "Adam's ε"}),
        (lambda got: {"first_step": {"value_loss": got["first_step"]["value_loss"]}}, {"value loss"}),
        (lambda got: {"first_step": {"entropy": got["first_step"]["entropy"]}}, set()),
    ],
    ids=["steps", "value loss", "entropy"],
)
def test_only_what_is_compared_is_the_same(change, seen):
    case = next(case for case in CASES if case["name"] == "update, Discrete")
    adapter = SimpleNamespace(update=lambda i: change(vectors.answer(case)))
    result = check.check_case(adapter, case)
    interesting = {"value loss", "gradient clip", "Adam's ε"}
    assert result.verdict == "same"
    assert interesting & set(result.found) == seen
    assert all(name in result.note for name in interesting - seen)


def test_no_ops_that_are_the_same_in_every_game_are_seen(monkeypatch):
    reset = scripted_game.Game.reset
    monkeypatch.setattr(scripted_game.Game, "reset", lambda game, **options: reset(game, seed=1))
    (case,) = [case for case in CASES if case["name"] == "Atari, no-ops"]
    assert check.check_case(ours_pictures, case).verdict == "differs"


def begun_game(no_ops, opening, frames=4):
    """Of an agent whose games begin with so many no-ops, one number for each seed, and then with these raw actions."""
    game = scripted_game.Game("grayscale")

    def reset(seed):
        game.reset()
        for action in [0] * no_ops[(seed - 1) % len(no_ops)] + opening:
            game.step(action)
        return np.zeros((84, 84, 4))

    def step(action):
        done = [game.step(action)[2] for _ in range(frames)][-1]
        if done:
            reset(1)
        return np.zeros((84, 84, 4)), 0.0, done

    return scripted_game.play(reset, step)


@pytest.mark.parametrize(
    ("no_ops", "opening", "allowed", "fired"),
    [
        ([1, 30, 7], [1] * 4 + [2] * 4, 1, 1),
        ([1, 30, 7], [1, 2], 1, 1),
        ([7], [1] * 4 + [2] * 4, 0, 1),
        ([1, 31, 7], [1] * 4 + [2] * 4, 0, 1),
        ([1, 0, 7], [1] * 4 + [2] * 4, 0, 1),
        ([1, 29, 7], [3] + [1] * 4 + [2] * 4, 0, 1),
        ([1, 30, 7], [1] * 4 + [3] * 4, 1, 0),
        ([1, 30, 7], [], 0, 0),
    ],
    ids=["right", "right, one frame each", "always 7", "31", "none", "no no-op", "FIRE and LEFT", "no FIRE"],
)
def test_openings_of_games_are_judged(no_ops, opening, allowed, fired, monkeypatch):
    monkeypatch.setattr(scripted_game.Game, "observe", lambda game: None)
    played = begun_game(no_ops, opening)
    assert (played["no-ops"].tolist(), played["FIRE"].tolist()) == ([allowed], [fired])


# ---------------------------------------------------------------------------------------------------------- The scripts
def test_every_script_has_an_adapter():
    names = {arguments["name"] for adapter in ADAPTERS for arguments in adapter.OPTIONS["record"].values()}
    assert names == {path.stem for path in our_scripts.FOLDER.glob("ppo*.py")}


@pytest.mark.parametrize(("adapter", "option"), TRAININGS, ids=lambda x: x if isinstance(x, str) else "")
def test_a_script_is_replayed(adapter, option, monkeypatch):
    monkeypatch.setattr(details, "TOLERANCE", 2e-5)
    numbers = {"updates": 7} if "continuous" in option else SHORT  # its outliers come late
    rows = details.report(adapter.record(**adapter.OPTIONS["record"][option], **numbers))
    assert [row for row in rows if row.verdict != "same"] == []
    assert "advantages and returns" in [row.name for row in rows]


@pytest.fixture(scope="module")
def recorded():
    return ours.record("ppo", **SHORT)


@pytest.fixture(scope="module")
def recorded_box():
    return ours.record("ppo_continuous_action", updates=7)  # the outliers come late


@pytest.fixture(scope="module")
def trained_lstm():
    return ours.record("ppo_lstm", **SHORT)


@pytest.fixture
def recorded_lstm(trained_lstm):
    """A copy, since a replay sorts the samples of its steps."""
    return with_steps(trained_lstm, lambda step: {})


def record_of_changed(tmp_path, monkeypatch, before, after, name="ppo", adapter=ours, **options):
    """A training with a line of a script changed."""
    source = (our_scripts.FOLDER / f"{name}.py").read_text("utf-8")
    assert source.count(before) == 1
    (tmp_path / f"{name}.py").write_text(source.replace(before, after), "utf-8")
    monkeypatch.setattr(our_scripts, "FOLDER", tmp_path)
    return adapter.record(name, **SHORT | options)


def changed(*arguments, **options):
    """The rows that differ with a line of a script changed."""
    rows = details.report(record_of_changed(*arguments, **options))
    return {row.name: row.note for row in rows if row.verdict == "differs"}


@pytest.mark.parametrize(
    ("before", "after", "detail", "says"),
    [
        ("gain=0.01", "gain=1.0", "initial weights", "actor.4.weight"),
        ("self.critic = ", "self.b = nn.Parameter(torch.zeros(1)); self.critic = ", "networks", "also trained: b"),
        ("torch.randperm(args.batch_size", "torch.arange(args.batch_size", "minibatches", "always the same"),
        ("if args.anneal_lr:", "if not args.anneal_lr:", "learning rate", "constant"),
        ("rate * remaining", "rate * remaining**2", "learning rate", "from 1 to 0.111"),
        ("eps=1e-5", "eps=1e-8", "Adam's ε", "1e-08"),
        ("torch.optim.Adam(", "torch.optim.AdamW(", "Adam's ε", "not Adam"),
        ("            if args.anneal_lr:", "            optimizer.state.clear()\n            if args.anneal_lr:",
         "Adam's state", "lost before each rollout"),
        ("            epoch_start =", "            optimizer.state.clear()\n            epoch_start =",
         "Adam's state", "lost before each epoch"),
        ("                optimizer.zero_grad()\n",
         "                optimizer.zero_grad()\n                optimizer.state.clear()\n",
         "Adam's state", "lost before each step"),
        ("for indices in torch.randperm(args.batch_size, device=device).split(M):",
         "torch.manual_seed(update)\n            for indices in torch.randperm(args.batch_size).split(M):",
         "minibatches", "the same in each epoch"),
        (".log_softmax(-1)", ".softmax(-1).log_softmax(-1)", "log-prob", "of a softmax of the softmax"),
        ("batch = Batch(b_obs", "b_advantages, b_returns = b_advantages.reshape(T, N).T.flatten(), "
         "b_returns.reshape(T, N).T.flatten()\n        batch = Batch(b_obs", "order of samples",
         "advantages and returns by environment"),
        ("b_obs = obs.flatten(0, 1)", "b_obs = obs.transpose(0, 1).flatten(0, 1)", "order of samples",
         "observations by environment"),
        ("evaluate_actions(mb.obs", "evaluate_actions(1.5 * mb.obs", "first ratio", "0."),
        ("                optimizer.zero_grad()\n", "", "zero_grad", "missing"),
        ("nn.utils.clip_grad_norm_(parameters, args.max_grad_norm)",
         "[nn.utils.clip_grad_norm_(p, args.max_grad_norm) for p in parameters]", "gradient clip",
         "each parameter apart"),
        ("np.concatenate([dones[1:], next_done[None]])", "dones", "done flags",
         "of the step before, with the first marked"),
        ("rewards + gamma * next_values", "rewards + next_values", "gamma", "not in delta"),
        ("return advantages, advantages + values", "return advantages, deltas + values", "lambda",
         "for the value alone: 0"),
        ("std(correction=0)", "std()", "advantages", "sample std"),
        ("-torch.min(advantages", "-torch.max(advantages", "policy loss", "max in place of min"),
        ("log_prob - mb.log_probs", "log_prob - log_prob.detach()", "old log-probs", "anew in each step"),
        ("torch.max(squared_error, (clipped_value - mb.returns).square())", "(clipped_value - mb.returns).square()",
         "value loss", "clipped alone"),
        ("0.5 * squared_error.mean()", "squared_error.mean()", "value scale", "1"),
        ("- args.ent_coef * entropy.mean()", "+ args.ent_coef * entropy.mean()", "entropy bonus", "wrong sign"),
    ],
)  # fmt: skip
def test_a_difference_is_named(before, after, detail, says, tmp_path, monkeypatch):
    found = changed(tmp_path, monkeypatch, before, after)
    assert list(found) == [detail]
    assert found[detail].startswith(says)


@pytest.mark.parametrize(
    ("obs", "advantages", "says"),
    [
        ("b_obs", "b_advantages.reshape(T, N).T.flatten(), b_returns.reshape(T, N).T.flatten()",
         "observations by time, the rest by environment"),
        ("obs.transpose(0, 1).flatten(0, 1)", "b_advantages, b_returns",
         "advantages and returns by time, the rest by environment"),
    ],
)  # fmt: skip
def test_samples_in_other_orders_are_named(obs, advantages, says, tmp_path, monkeypatch):
    before = "Batch(b_obs, actions.flatten(), log_probs.flatten(), acted_values.flatten(), b_advantages, b_returns)"
    acted = "actions.T.flatten(), log_probs.T.flatten(), acted_values.T.flatten()"
    found = changed(tmp_path, monkeypatch, before, f"Batch({obs}, {acted}, {advantages})")
    assert found == {"order of samples": says}


def test_both_losses_unknown_mention_the_order_of_samples(tmp_path, monkeypatch):
    before = "return advantages, advantages + values"
    after = "advantages = np.sign(advantages) * advantages**2\n    return advantages, advantages + values"
    assert "order" in changed(tmp_path, monkeypatch, before, after)["advantages and returns"]


def test_a_training_without_an_entropy_bonus_raises_no_alarm():
    rows = details.report(ours.record("ppo", ent_coef=0.0, **SHORT))
    assert [row for row in rows if row.verdict != "same"] == []


def test_an_annealed_clip_range_is_named():
    record = ours.record("ppo", anneal_clip=True, **SHORT)
    found = {row.name: row.note for row in details.report(record | {"options": {}}) if row.verdict == "differs"}
    assert found == {"clip range": "annealed"}
    assert all(row.verdict == "same" for row in details.report(record))


def test_what_a_step_learns_from_is_computed_when_the_variant_says(recorded):
    """Step 17 is the second of the second epoch of the second rollout: 4 minibatches, 3 epochs."""
    replayed = replay.Replay(recorded)
    details.observations(replayed)
    batch = replayed.minibatches[17]
    log_probs, values = {}, {}
    for when in (12, 16):  # the beginnings of the rollout and of the epoch
        weights = replayed.weights_before(when)
        rows = replayed.rollout_inputs(1)[batch]
        seen = {"observations": rows, "actions": replayed.actions[1].flatten()[batch]}
        log_probs[when] = reference.evaluate(weights, seen, "discrete").log_prob
        values[when] = reference.values_of(weights, rows)

    start = switches.defaults(details.switches_of(replayed))

    def learned(**chosen):
        return replayed.minibatch(17, start | chosen)

    usual = learned()
    assert np.allclose(usual["log_probs"], log_probs[12]) and np.allclose(usual["values"], values[12])
    of_epoch = learned(**{"old log-probs": switches.OldLogProbs.EACH_EPOCH})
    assert np.allclose(of_epoch["log_probs"], log_probs[16]) and np.allclose(of_epoch["values"], values[12])
    assert np.array_equal(of_epoch["advantages"], usual["advantages"])
    assert learned(**{"old log-probs": switches.OldLogProbs.EACH_STEP})["log_probs"] is None
    anew = learned(**{"values and advantages": switches.ValuesAndAdvantages.EACH_EPOCH})
    assert np.allclose(anew["log_probs"], log_probs[12]) and np.allclose(anew["values"], values[16])
    assert not np.allclose(anew["advantages"], usual["advantages"])
    assert not np.allclose(log_probs[12], log_probs[16]) and not np.allclose(values[12], values[16])


def test_a_padded_minibatch_is_that_without_its_padding(recorded):
    steps = []
    for step in recorded["steps"]:
        padding = np.zeros((3, step["observations"].shape[1]))
        steps.append(step | {"observations": np.concatenate([step["observations"], padding])})
    row = details.minibatches(replay.Replay(recorded | {"steps": steps}))
    assert (row.verdict, row.note) == ("same", "")


def test_the_spy_adds_up_the_gradients_of_several_backward_passes():
    model = Small()
    optimizer = torch.optim.Adam(model.parameters())
    watching = spy.Spy(optimizer, model.named(), model.policy)
    for scale in (1.0, 2.0):
        (scale * model.policy(torch.ones(1, 3)).sum()).backward()
    optimizer.step()
    (step,) = watching.steps
    assert np.array_equal(step["fresh"]["policy.0.weight"], np.full((2, 3), 3.0))
    assert np.array_equal(step["unclipped"]["policy.0.weight"], np.full((2, 3), 3.0))


def test_masks_that_learning_ignores_are_named(tmp_path, monkeypatch):
    before, after = "mb.actions, mb.masks)", "mb.actions, torch.ones_like(mb.masks))"
    found = changed(tmp_path, monkeypatch, before, after, name="ppo_multidiscrete")
    assert found == {"masks": "ignored when learning"}


@pytest.mark.parametrize("how", switches.Lstm)
def test_a_second_source_has_the_same_memory(how):
    T, N, D, H = 5, 2, 3, 4
    shapes = {"weight_ih": (4 * H, D), "weight_hh": (4 * H, H), "bias_ih": (4 * H,), "bias_hh": (4 * H,)}
    weights = {f"lstm.{name}": 0.7 * RNG.normal(size=shape) for name, shape in shapes.items()}
    observations, state = RNG.normal(size=(T, N, D)), RNG.normal(size=(2, N, H))
    dones = np.zeros((T, N))
    dones[2, 0] = dones[4, 1] = 1
    hidden, last = second_source.lstm(weights, observations, dones, state, how)
    begin = state * (how != switches.Lstm.FROM_ZEROS)
    states, _ = reference.lstm_forward(weights, observations, dones, begin, how != switches.Lstm.NEVER_RESET)
    assert np.abs(states[:, 0] - hidden.numpy()).max() < 1e-10
    assert np.abs(states[-1] - last.numpy()).max() < 1e-10


def test_parameters_that_the_optimizer_lacks_are_seen(tmp_path, monkeypatch):
    with pytest.warns(UserWarning, match=r"value\.2\.bias"):
        found = changed(tmp_path, monkeypatch, "list(agent.parameters())", "list(agent.actor.parameters())")
    assert found["Adam's ε"].endswith("value.2.bias: never moved, does the optimizer have them?")


class Small(torch.nn.Module):
    """A network of two layers, of which the first may be left unnamed."""

    def __init__(self):
        super().__init__()
        self.norm, self.policy, self.value = torch.nn.LayerNorm(3), torch.nn.Linear(3, 2), torch.nn.Linear(3, 1)

    def named(self):
        return spy.layers("policy", self.policy) | spy.layers("value", self.value)


def test_parameters_that_are_trained_but_not_named_are_told(recorded):
    model = Small()
    watching = spy.Spy(torch.optim.Adam(model.parameters()), model.named(), model.policy)
    model.policy(model.norm(torch.ones(1, 3))).sum().backward()
    others = watching.record(scripted.HYPER, [])["others"]
    assert others == ["unnamed (3,)", "unnamed (3,)"]
    rows = {row.name: row for row in details.report(with_longer_gradients(recorded) | {"others": others})}
    assert "unnamed (3,)" in rows["networks"].note
    assert rows["gradient clip"].verdict == "not there"


def with_longer_gradients(record):
    """As if other parameters made the norm longer, and the clipped gradients shorter."""
    steps = []
    for step in record["steps"]:
        shorter = {name: 0.9 * gradient for name, gradient in step["gradients"].items()}
        steps.append(step | {"gradients": shorter})
    return record | {"steps": steps}


def test_a_network_that_is_never_called_costs_one_line():
    model = Small()
    watching = spy.Spy(torch.optim.Adam(model.parameters()), model.named(), model.policy)
    with pytest.raises(UserError, match="never called with gradients"):
        check.check_record(SimpleNamespace(record=lambda: watching.record(scripted.HYPER, [])))


@pytest.mark.parametrize(
    ("name", "adapter", "before", "after"),
    [
        ("ppo_lstm", ours, "hidden.detach()], -1)", "hidden], -1)"),
        ("ppo_atari_lstm", ours_pictures, "self.critic(hidden)", "self.critic(hidden.detach())"),
    ],
)
def test_layers_that_a_loss_reaches_or_not_are_seen(name, adapter, before, after, tmp_path, monkeypatch):
    """The value's loss must not change the LSTM of a critic of its own, and must change the one that it shares."""
    assert list(changed(tmp_path, monkeypatch, before, after, name=name, adapter=adapter)) == ["shared layers"]


def test_episodes_that_are_cut_between_rollouts_are_seen(tmp_path, monkeypatch):
    record = record_of_changed(tmp_path, monkeypatch, "if fresh_episodes:", "if True:")
    assert details.rollouts(replay.Replay(record)).note == "8 episodes are cut between rollouts"


def test_an_unknown_loss_hides_no_other_row(tmp_path, monkeypatch):
    after = "(squared_error + (clipped_value - mb.returns).square()) / 2"
    found = changed(tmp_path, monkeypatch, "torch.max(squared_error, (clipped_value - mb.returns).square())", after)
    assert list(found) == ["value loss"]
    assert "known where" in found["value loss"]


@pytest.mark.parametrize(
    ("before", "after", "verdicts"),
    [
        ("return advantages, advantages + values", "return advantages, np.sign(advantages) + values",
         {"returns": "not there", "value loss": "differs"}),
        ("return actions, log_prob, self", "return actions, 0.9 * log_prob, self",
         {"first ratio": "not there", "advantages of GAE": "not there", "policy loss": "differs"}),
    ],
    ids=["returns", "old log-probs"],
)  # fmt: skip
def test_what_only_an_unknown_loss_shows_is_not_compared(before, after, verdicts, tmp_path, monkeypatch):
    rows = details.report(record_of_changed(tmp_path, monkeypatch, before, after))
    assert {row.name: row.verdict for row in rows if row.verdict != "same"} == verdicts


def test_a_clip_that_never_acts_is_not_the_same():
    rows = details.report(ours.record("ppo", learning_rate=3e-4, max_grad_norm=100.0, **SHORT))
    others = {row.name: row.verdict for row in rows if row.verdict != "same"}
    assert others == dict.fromkeys(("gradient clip", "policy loss", "value loss"), "not there")


def test_a_reordered_script_of_other_sizes_raises_no_alarm(tmp_path, monkeypatch):
    before = "policy_loss - args.ent_coef * entropy.mean() + args.vf_coef * value_loss"
    after = "args.vf_coef * value_loss + policy_loss - entropy.mean() * args.ent_coef"
    assert changed(tmp_path, monkeypatch, before, after, num_envs=3, num_steps=6, minibatches=2, gamma=0.9) == {}


def test_learning_from_steps_that_only_begin_an_episode_is_named(tmp_path, monkeypatch):
    before, after = "mb.valid / mb.valid.sum().clamp(min=1.0)", "torch.full_like(mb.valid, 1 / len(mb.valid))"
    found = changed(tmp_path, monkeypatch, before, after, name="ppo_atari_envpool", adapter=ours_pictures)
    assert found == {"late resets": "learned from"}


def test_the_script_of_the_environments_has_ends_and_limits_at_the_borders_too():
    replayed = replay.Replay(ours.record("ppo", updates=5))
    for ends in (replayed.terminated, replayed.truncated):
        assert ends[:, :-1].any()
        assert ends[:, -1].any()
    assert len(np.unique(replayed.vectors[0])) == scripted.HYPER["num_envs"] * scripted.HYPER["num_steps"]


@pytest.mark.parametrize(
    ("name", "normalizes", "unknown"),
    [
        ("ppo", "", ["observations"]),
        ("ppo_continuous_action", "observations and rewards", ["observations"]),
        ("ppo_continuous_action", "", ["observations", "first ratio", "gradients"]),
    ],
    ids=["raw", "normalized", "normalized, but taken for raw"],
)
def test_passes_that_are_no_acting_raise_no_alarm(name, normalizes, unknown):
    record = ours.record(name, **SHORT) | {"normalizes": normalizes}
    record["acted"] = [record["acted"][0], record["acted"][5], *record["acted"]]  # say for values at limits
    rows = details.report(record)
    assert {row.name: row.verdict for row in rows if row.verdict != "same"} == dict.fromkeys(unknown, "not there")


def with_nan(record, parts, begin, end, of="value"):
    """A copy of a record in which the value's numbers, or the policy's, are NaN from one step to another."""
    steps = list(record["steps"])
    for i in range(begin, end):
        steps[i] = dict(steps[i])
        for part in parts:
            nan = {name: np.full_like(x, np.nan) for name, x in steps[i][part].items() if name.startswith(of)}
            steps[i][part] = steps[i][part] | nan
    return record | {"steps": steps}


def test_a_record_with_nan_says_where_the_first_one_is(recorded):
    last = len(recorded["steps"])
    rows = details.report(with_nan(recorded, ("fresh", "unclipped", "gradients", "weights"), last - 8, last))
    differing = [row for row in rows if row.verdict == "differs"]
    assert [row.name for row in differing] == ["numbers"]
    assert differing[0].note.endswith(f"gradient of value.0.weight in step {last - 7} of {last}")
    assert "value loss" not in [row.name for row in rows]


def test_a_training_that_nan_would_stop_says_where_the_first_one_is(tmp_path, monkeypatch, capsys):
    after = "float('nan') * policy_loss - args.ent_coef * entropy"
    record = partial(record_of_changed, tmp_path, monkeypatch, "policy_loss - args.ent_coef * entropy", after)
    results = check.check_record(SimpleNamespace(record=record))
    assert [one.what for one in results] == ["training: numbers"]
    assert results[0].note.endswith("the gradient of policy.0.weight in step 1")
    assert capsys.readouterr().err == ""  # no traceback


def test_an_error_of_many_lines_costs_one_row(capsys):
    def record():
        raise ValueError("first\nsecond")

    assert check.check_record(SimpleNamespace(record=record))[0].note == "ValueError: first"
    assert "second" in capsys.readouterr().err


@pytest.mark.parametrize("part", ["unclipped", "gradients", "weights"])
def test_nan_in_any_part_of_a_record_is_seen(part, recorded):
    rows = details.report(with_nan(recorded, (part,), 5, 6))
    assert [row.name for row in rows if row.verdict == "differs"] == ["numbers"]


@pytest.mark.parametrize(
    ("part", "of", "row"),
    [
        ("weights", "value", details.adam),
        ("weights", "policy", details.first_ratio),
        ("unclipped", "value", details.zero_grad),
        ("unclipped", "value", details.clip),
    ],
)
def test_each_comparison_takes_nan_for_a_difference(part, of, row, recorded):
    replayed = replay.Replay(with_nan(recorded, (part,), 23, 24, of))
    details.observations(replayed)
    assert row(replayed).verdict == "differs"


def test_nothing_fits_nan(recorded):
    last = len(recorded["steps"])
    replayed = replay.Replay(with_nan(recorded, ("fresh",), last - 1, last))
    details.observations(replayed)
    search = details.Search(replayed)
    assert search.fit("value", search.wanted, search.every) is None
    assert search.fit("value", search.wanted, search.first)
    assert search.fit("policy", search.wanted, search.every)


def test_nan_in_shared_layers_differs(recorded_lstm):
    rows = details.report(with_nan(recorded_lstm, ("fresh",), 7, 8, of="lstm"))
    assert [row.name for row in rows if row.verdict == "differs"] == ["zero_grad", "shared layers"]


def test_actions_that_are_nan_differ_and_the_outlier_among_the_rewards_is_clipped(recorded_box):
    record = recorded_box | {"steps": [dict(step) for step in recorded_box["steps"]]}
    assert replay.Replay(record).scaled_rewards(switches.Rewards.SCALED).max() > 10
    assert details.stored_actions(replay.Replay(record))[0].verdict == "same"
    of_last_rollout = record["steps"][-record["hyper"]["epochs"] * record["hyper"]["minibatches"]]
    of_last_rollout["actions"] = np.full_like(of_last_rollout["actions"], np.nan)
    assert details.stored_actions(replay.Replay(record))[0].verdict == "differs"


def test_initial_weights_that_are_nan_differ():
    assert details.initialization({"actor.0.bias": np.array([0.0, np.nan])}).verdict == "differs"


def with_steps(record, change, only=None):
    """A copy of a record in which a function says what is new in each step of the optimizer, or in one alone."""
    steps = []
    for i, step in enumerate(record["steps"]):
        steps.append(step | (change(step) if only in (None, i) else {}))
    return record | {"steps": steps}


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("part", ["unclipped", "gradients", "weights"])
def test_one_number_that_is_not_finite_is_seen(part, number, recorded):
    def change(step):
        bias = step[part]["policy.2.bias"].copy()
        bias[-1] = number
        return {part: step[part] | {"policy.2.bias": bias}}

    found = details.first_broken(replay.Replay(with_steps(recorded, change, only=35)))
    says = {"unclipped": "gradient", "gradients": "clipped gradient", "weights": "new value"}[part]
    assert found == f"the {says} of policy.2.bias in step 36 of 36"
    assert details.first_broken(replay.Replay(recorded)) == ""


@pytest.mark.parametrize(
    "change",
    [lambda logs: logs[:-1], lambda logs: [*logs[:-1], logs[-1][:20]], lambda logs: [*logs, logs[0]]],
    ids=["an environment less", "fewer steps", "an environment more"],
)
def test_a_log_that_lacks_something_costs_one_row(change, recorded):
    (row,) = details.report(recorded | {"logs": change(recorded["logs"])})
    assert (row.name, row.verdict) == ("rollouts", "differs")


def test_steps_of_the_environments_after_the_last_rollout_do_not_count(recorded):
    more = [[*log, *log[1:9]] for log in recorded["logs"]]
    row = details.rollouts(replay.Replay(recorded | {"logs": more}))
    assert row.verdict == "same"


def observation_of_no_step(record, replayed):
    """Step 5 has an observation that its rollout doesn't show."""
    other = next(n for n in range(64) if n not in replayed.vectors[0])
    observations = record["steps"][5]["observations"].copy()
    observations[0] = np.eye(64)[other]
    return with_steps(record, lambda step: {"observations": observations}, only=5)


@pytest.mark.parametrize(
    ("change", "differing", "why"),
    [
        (lambda record, _: record | {"steps": record["steps"][:-1]}, ["steps", "minibatches"], "number of steps"),
        (observation_of_no_step, ["minibatches"], "minibatches aren't known"),
        (lambda record, _: record | {"others": ["b"]}, ["networks"], "the reference's"),
        (lambda record, _: record | {"acted": [rows + 0.01 for rows in record["acted"]]},
         ["observations", "first ratio"], "observations aren't known"),
    ],
    ids=["a step less", "another observation", "another parameter", "acting saw something else"],
)  # fmt: skip
def test_what_can_not_be_replayed_says_why(change, differing, why, recorded):
    rows = details.report(change(recorded, replay.Replay(recorded)))
    assert [row.name for row in rows if row.verdict == "differs"] == differing
    assert rows[-1].verdict == "not there"
    assert why in rows[-1].note


def test_another_number_of_minibatches_is_told_and_the_rest_is_compared_anyway(recorded):
    rows = details.report(recorded | {"hyper": recorded["hyper"] | {"minibatches": 2}})
    assert {row.name: row.note for row in rows if row.verdict != "same"} == {
        "steps": "36 of 18", "minibatches": "not every sample once an epoch; unequal sizes"
    }  # fmt: skip


HALVES = [np.arange(16), np.arange(16, 32)]
OTHERS = [np.arange(0, 32, 2), np.arange(1, 32, 2)]


@pytest.mark.parametrize(
    ("batches", "epochs", "says"),
    [
        ([*HALVES, *OTHERS] * 2, 2, ""),
        ([*HALVES, *OTHERS], 1, ""),
        ([*HALVES, *HALVES, *OTHERS, *OTHERS], 2, "the same in each epoch"),
        ([*HALVES, *HALVES[::-1]], 1, "always the same minibatches: not shuffled"),
        ([*HALVES, *OTHERS[:1], *OTHERS[:1]] * 2, 2, "not every sample once an epoch"),
        ([*HALVES, OTHERS[0][1:], np.append(OTHERS[1], 0)] * 2, 2, "unequal sizes"),
        ([*HALVES, OTHERS[0], np.append(OTHERS[1][1:], -1)] * 2, 2, "observations that don't come before a step"),
    ],
)
def test_a_split_is_described(batches, epochs, says, recorded):
    replayed = replay.Replay(recorded)
    replayed.minibatches = batches
    replayed.hyper = replayed.hyper | {"epochs": epochs, "minibatches": 2}
    row = details.minibatches(replayed)
    assert row.verdict == ("differs" if says else "same")
    assert row.note.startswith(says)


def reordered(record, order):
    def change(step):
        return {name: step[name][order] for name in ("observations", "actions")}

    return with_steps(record, change)


def test_a_memorys_minibatch_may_have_one_step_of_its_environments_after_the_other(recorded_lstm):
    environments, steps = np.divmod(np.arange(16), 8)  # as the script has them
    replayed = seen_replay(reordered(recorded_lstm, np.lexsort((environments, steps))))
    assert details.minibatches(replayed).verdict == "same"
    search = details.Search(replayed)
    assert all(search.fit(part, search.wanted, [0, 1, 12]) for part in details.TERMS)


def test_a_memorys_minibatch_in_another_order_differs(recorded_lstm):
    order = np.arange(16)
    order[[1, 2]] = [2, 1]
    row = details.minibatches(replay.Replay(reordered(recorded_lstm, order)))
    assert (row.verdict, row.note) == ("differs", "not whole environments in order of time")


@pytest.mark.parametrize(
    ("rate", "verdict"), [(lambda rate: rate * (1 + 1e-7), "same"), (lambda rate: rate * (1 + 1e-4), "differs")]
)
def test_a_learning_rate_that_is_a_little_off_differs(rate, verdict, recorded):
    record = with_steps(recorded, lambda step: {"learning_rate": rate(step["learning_rate"])}, only=30)
    assert details.annealing(replay.Replay(record)).verdict == verdict


def test_a_learning_rate_that_is_another_than_the_one_given_differs(recorded):
    halved = with_steps(recorded, lambda step: {"learning_rate": 0.5 * step["learning_rate"]})
    assert [details.annealing(replay.Replay(record)).verdict for record in (recorded, halved)] == ["same", "differs"]


def with_adams_weights(record, eps, lost_every=100):
    """As if Adam had another ε, and forgot its state every so many steps."""
    weights, state, steps = record["initial"], {}, []
    for i, step in enumerate(record["steps"]):
        if i % lost_every == 0:
            state = {}
        weights = reference.adam(weights, step["gradients"], state, step["learning_rate"], eps)
        steps.append(step | {"weights": weights})
    return record | {"steps": steps}


@pytest.mark.parametrize(
    ("eps", "lost_every", "name", "note"),
    [
        (1e-6, 100, "Adam's ε", "1e-06"),
        (1e-7, 100, "Adam's ε", "1e-07"),
        (1e-8, 100, "Adam's ε", "1e-08"),
        (1e-8, 12, "Adam's state", "lost before each rollout, ε 1e-08"),
        (1e-5, 4, "Adam's state", "lost before each epoch"),
    ],
)
def test_what_adam_does_otherwise_gets_its_name(eps, lost_every, name, note, recorded):
    row = details.adam(replay.Replay(with_adams_weights(recorded, eps, lost_every)))
    assert (row.name, row.verdict, row.note) == (name, "differs", note)


def test_weights_that_are_off_by_a_hundredth_of_the_rate_are_not_adams(recorded):
    def change(step):
        bias = step["weights"]["policy.0.bias"].copy()
        bias[3] += 0.01 * step["learning_rate"]
        return {"weights": step["weights"] | {"policy.0.bias": bias}}

    record = with_steps(recorded, change, only=35)
    still = {"value.0.bias": recorded["initial"]["value.0.bias"]}  # in one step alone
    record = with_steps(record, lambda step: {"weights": step["weights"] | still}, only=0)
    row = details.adam(replay.Replay(record))
    assert (row.verdict, row.note[:8]) == ("differs", "not Adam")


@pytest.mark.parametrize("how", switches.GradientClip)
def test_a_clip_gets_its_name(how, recorded):
    limit = recorded["hyper"]["max_grad_norm"]
    record = with_steps(recorded, lambda step: {"gradients": reference.clip_gradients(step["unclipped"], limit, how)})
    row = details.clip(replay.Replay(record))
    is_joint = how == switches.GradientClip.JOINT
    assert (row.verdict, row.note) == (("same", "") if is_joint else ("differs", how))


def test_a_clip_that_fits_is_the_same_though_other_parameters_are_trained(recorded):
    assert details.clip(replay.Replay(recorded | {"others": ["b"]})).verdict == "same"


def times(part, name, factor):
    return lambda step: {part: step[part] | {name: factor * step[part][name]}}


@pytest.mark.parametrize(("part", "row"), [("gradients", details.clip), ("unclipped", details.zero_grad)])
def test_one_step_whose_gradient_is_off_by_a_thousandth_differs(part, row, recorded):
    def change(step):
        return {part: {name: 1.001 * gradient for name, gradient in step[part].items()}}

    assert row(replay.Replay(with_steps(recorded, change, only=35))).verdict == "differs"


def test_gradients_that_are_off_by_a_thousandth_fit_nothing(recorded):
    replayed = replay.Replay(with_steps(recorded, times("fresh", "value.0.weight", 1.001), only=35))
    details.observations(replayed)
    search = details.Search(replayed)
    assert search.fit("value", search.wanted, search.every) is None
    assert search.fit("policy", search.wanted, search.every)


def test_small_gradients_are_measured_as_if_they_were_two_hundredths():
    assert details.far({"a": np.array([1.0, 0.101])}, {"a": np.array([1.0, 0.1])}) == pytest.approx(1e-3)
    assert details.far({"a": np.array([0.101])}, {"a": np.array([0.1])}) == pytest.approx(1e-2)
    assert details.far({"a": np.array([1e-3])}, {"a": np.zeros(1)}) == pytest.approx(0.05)


def test_gradients_that_are_cleared_before_the_step_are_seen(recorded):
    def change(step):
        return {"gradients": {name: np.zeros_like(x) for name, x in step["gradients"].items()}}

    row = details.zero_grad(replay.Replay(with_steps(recorded, change)))
    assert (row.verdict, row.note[:14]) == ("differs", "after backward")
    assert details.zero_grad(replay.Replay(with_steps(recorded, change, only=3))).verdict == "same"


ORTHOGONAL = np.linalg.qr(np.random.default_rng(5).normal(size=(8, 4)))[0]  # (8, 4)
OWN = {
    "network.0.weight": 2**0.5 * ORTHOGONAL.T.reshape(4, 2, 2, 2), "actor.0.weight": 2**0.5 * ORTHOGONAL,
    "actor.0.bias": np.zeros(8), "actor.2.weight": 0.01 * ORTHOGONAL.T, "critic.0.weight": 2**0.5 * ORTHOGONAL,
    "critic.2.weight": ORTHOGONAL.T, "lstm.weight_ih_l0": ORTHOGONAL, "lstm.bias_ih_l0": np.zeros(8),
}  # fmt: skip


@pytest.mark.parametrize("name", OWN)
def test_initial_weights_that_are_a_hundredth_off_are_listed(name):
    assert details.initialization(OWN).verdict == "same"
    row = details.initialization(OWN | {name: 1.01 * OWN[name] + 0.01 * (OWN[name].ndim == 1)})
    assert (row.verdict, row.note) == ("differs", name)


def test_initial_rows_of_the_right_length_must_be_orthogonal_too():
    rows = np.random.default_rng(5).normal(size=(4, 8))
    rows = 2**0.5 * rows / np.linalg.norm(rows, axis=1, keepdims=True)
    assert details.initialization(OWN | {"network.0.weight": rows}).note == "network.0.weight"


def test_layers_that_actor_and_critic_share_are_counted(recorded, recorded_lstm):
    initial = recorded["initial"]
    row = details.networks(recorded | {"initial": initial | {"value.0.weight": initial["policy.0.weight"].copy()}})
    assert (row.verdict, row.note) == ("differs", "actor and critic share 1 layers")
    notes = [details.networks(record).note for record in (recorded, recorded_lstm)]
    assert notes == ["policy and value are apart", "policy and value share a body"]


def acting(record, observations):
    """Acting, and the replay, if it saw these observations (T + 1, N, D)."""
    replayed = replay.Replay(record | {"acted": list(observations[:-1])})
    return details.observations(replayed), replayed


@pytest.mark.parametrize(
    "chosen",
    [
        {"update": switches.Update.AFTER_USE},
        {"update": switches.Update.AFTER_ROLLOUT},
        {"clip": np.inf},
        {"clip": 5.0},
        {"first count": 1.0},
        {"epsilon": 1e-4},
        {"epsilon": 1e-2, "epsilon is": switches.EpsilonIs.OUTSIDE},
        {"variance": switches.Variance.SAMPLE},
        {"statistics": switches.Statistics.PER_ENVIRONMENT},
    ],
)
def test_how_acting_normalizes_gets_its_name(chosen, recorded_box):
    raw = replay.Replay(recorded_box).raw
    row, _ = acting(recorded_box, reference.running_normalize(raw, chosen, rollout=8)[0])
    said = ", ".join(f"{name} {choice}" for name, choice in chosen.items())
    assert (row.verdict, row.note) == ("differs", said)


@pytest.mark.parametrize(
    ("wanted", "see", "says"),
    [
        ("observations", lambda raw: raw, "raw"),
        ("observations", lambda raw: reference.running_normalize(raw)[0] + 1e-4, ""),
        ("", lambda raw: reference.running_normalize(raw)[0], "normalized"),
        ("", lambda raw: raw.clip(-10, 10), "raw, clipped"),
        ("", lambda raw: 255 * raw, "times 255"),
        ("", lambda raw: raw + 1e-4, ""),
        ("", lambda raw: raw + 0.01, "in no way that is known"),
    ],
)
def test_what_acting_sees_gets_its_name(wanted, see, says, recorded_box):
    record = recorded_box | {"normalizes": wanted}
    row, replayed = acting(record, see(replay.Replay(record).raw))
    assert (row.verdict, row.note) == ("differs" if says else "same", says)
    if not says:
        assert row.name == ("observations" if wanted else "raw observations")
    assert replayed.inputs_known == (says != "in no way that is known")


@pytest.mark.parametrize("acted", [[0], [0, 0]], ids=["known", "taken for normalized"])
def test_the_last_observation_of_an_episode_is_seen_as_the_next_one(acted, recorded_box):
    """As far as both are the same observation: where no episode ends."""
    passes = recorded_box["acted"]
    replayed = replay.Replay(recorded_box | {"acted": [*passes, *[passes[k] for k in acted]]})
    details.observations(replayed)
    goes_on = ~(replayed.terminated | replayed.truncated)
    assert np.array_equal(replayed.final_inputs[goes_on], replayed.inputs[:, 1:][goes_on])
    assert np.abs(replayed.final_inputs).max() == 10


@pytest.mark.parametrize("of", ["recorded", "recorded_box", "recorded_lstm"])
def test_the_last_observation_of_an_episode_has_the_value_of_the_next_one(of, request):
    """As far as both are the same observation: where no episode ends."""
    replayed = seen_replay(request.getfixturevalue(of))
    _, values, finals, last = replayed.acted(1, 14, switches.Lstm.RIGHT, switches.LogProb.SUM)
    goes_on = ~(replayed.terminated | replayed.truncated)[1]
    assert np.allclose(finals[goes_on], np.concatenate([values[1:], last[None]])[goes_on])
    assert len(np.unique(finals[goes_on])) == goes_on.sum()


def test_the_value_after_a_rollout_has_the_rollouts_statistics_if_they_change_after_it(recorded_box):
    raw = replay.Replay(recorded_box).raw
    chosen = {"update": switches.Update.AFTER_ROLLOUT}
    seen, means, roots = reference.running_normalize(raw, chosen, rollout=8)
    _, replayed = acting(recorded_box, seen)
    assert np.allclose(replayed.inputs[:, :-1].reshape(seen[:-1].shape), seen[:-1])
    assert np.allclose(replayed.inputs[2, -1], (raw[24] - means[23]) / roots[23])
    assert not np.allclose(replayed.inputs[2, -1], replayed.inputs[3, 0], atol=0.01)


def test_learning_that_sees_a_little_more_than_acting_in_the_last_rollout_is_seen(recorded):
    def change(step):
        return {"observations": 1.03 * step["observations"]}

    ratios = [details.first_ratio(seen_replay(with_steps(recorded, change, only=i))) for i in (24, 25)]
    assert [row.verdict for row in ratios] == ["differs", "same"]


def seen_replay(record):
    replayed = replay.Replay(record)
    details.observations(replayed)
    return replayed


def test_actions_that_are_clipped_before_learning_or_not_before_the_step_differ(recorded_box):
    clipped = with_steps(recorded_box, lambda step: {"actions": step["actions"].clip(-1, 1)})
    assert details.stored_actions(replay.Replay(clipped))[0].verdict == "differs"
    replayed = replay.Replay(recorded_box)
    replayed.actions = 1.1 * replayed.actions
    (row,) = details.stored_actions(replayed)
    assert row.note.endswith("done up to 1.10")
    assert row.verdict == "differs"


def named_by_gradients(record, chosen, factor=1.0):
    """The rows that differ if a record's gradients are those that a variant has. Those of the policy loss come times a
    factor."""
    replayed = seen_replay(record)
    variant = switches.defaults(details.switches_of(replayed)) | chosen
    for i in range(len(replayed.steps)):
        by_term = []
        for terms in details.TERMS.values():
            by_term += replayed.gradients_by_term(i, variant, terms)
        by_term[0] = {name: factor * gradient for name, gradient in by_term[0].items()}
        replayed.steps[i] = replayed.steps[i] | {"fresh": {name: sum(x[name] for x in by_term) for name in by_term[0]}}
    return named_by(details.Search(replayed))


def named_by(search):
    rows = search.rows(*search.explain_both())
    return {row.name: (row.tag, row.note) for row in rows if row.verdict == "differs"}


def two_updates(record):
    """The beginning of a record of three."""
    count = len(record["steps"]) * 2 // 3
    hyper = record["hyper"] | {"updates": 2}
    return record | {"hyper": hyper, "steps": record["steps"][:count], "acted": record["acted"][:17]}


@pytest.mark.parametrize(
    ("switch", "choice", "tag"),
    [
        ("time limits", switches.TimeLimits.FLOW_ON, "plus-1"),
        ("true ends", switches.TrueEnds.NEXT_EPISODE, "core-5"),
        ("after the rollout", switches.AfterRollout.ZERO, "core-5"),
        ("done flags", switches.DoneFlags.STEP_AFTER, "core-1 core-5"),
        ("rewards", switches.Rewards.SCALED_CLIPPED, "cont-8 cont-9"),
        ("value's shape", switches.ValueShape.BROADCAST_WITH_OLD, "core-9"),
        ("advantages", switches.Advantages.SAMPLE_OF_ENVIRONMENT, "core-7"),
        ("values and advantages", switches.ValuesAndAdvantages.EACH_EPOCH, "core-5"),
        ("old log-probs", switches.OldLogProbs.EACH_EPOCH, "core-8"),
    ],
)
def test_gradients_of_a_variant_get_its_name(switch, choice, tag, recorded):
    assert named_by_gradients(two_updates(recorded), {switch: choice}) == {switch: (tag, choice)}


def test_two_deviations_in_one_loss_are_both_named(recorded):
    chosen = {"advantages": switches.Advantages.AS_THEY_ARE, "policy loss": switches.PolicyLoss.MAX}
    found = named_by_gradients(two_updates(recorded), chosen)
    assert {name: note for name, (_, note) in found.items()} == chosen


@pytest.mark.parametrize(("factor", "note"), [(2.0, "2"), (0.0, "no")])
def test_a_policy_loss_of_another_size_is_told(factor, note, recorded, monkeypatch):
    monkeypatch.setattr(details, "MOST", 1)  # a shorter search
    found = named_by_gradients(two_updates(recorded), {}, factor)
    assert found == {"policy scale": ("core-8", note)}


def never_reset(script):
    class Agent(script.Agent):
        def step(self, obs, lstm_state, dones):
            return super().step(obs, lstm_state, torch.zeros_like(dones))

        def unroll(self, obs, lstm_state, dones):
            return super().unroll(obs, lstm_state, torch.zeros_like(dones))

    script.Agent = Agent


def learn_from_zeros(script):
    class Agent(script.Agent):
        def unroll(self, obs, lstm_state, dones):
            return super().unroll(obs, torch.zeros_like(lstm_state), dones)

    script.Agent = Agent


@pytest.mark.parametrize(
    ("change", "choice"), [(never_reset, switches.Lstm.NEVER_RESET), (learn_from_zeros, switches.Lstm.FROM_ZEROS)]
)
def test_a_memory_that_is_wrong_gets_its_name(change, choice, monkeypatch):
    monkeypatch.setattr(details, "MOST", 1)  # a shorter search
    record = ours.record("ppo_lstm", change=change, updates=2)
    assert named_by(details.Search(seen_replay(record))) == {"LSTM": ("lstm-3 lstm-5", choice)}


@pytest.mark.parametrize(
    ("switch", "choice"),
    [("log-prob", switches.LogProb.LAPLACE), ("rewards", switches.Rewards.SCALED_PER_ENVIRONMENT)],
)
def test_gradients_of_a_variant_with_box_actions_get_its_name(switch, choice, recorded_box):
    record = recorded_box | {"hyper": recorded_box["hyper"] | {"updates": 2}, "steps": recorded_box["steps"][:24]}
    found = named_by_gradients(record | {"acted": recorded_box["acted"][:17]}, {switch: choice})
    assert found == {switch: (details.TAGS[switch], choice)}


@pytest.fixture(scope="module")
def search(recorded):
    return details.Search(seen_replay(recorded))


def fit_of(search, part, factors=None, in_all=True, **chosen):
    return details.Fit(search.wanted | chosen, factors or dict.fromkeys(details.TERMS[part], 1.0), in_all)


def test_what_the_two_losses_have_of_advantages_and_returns_is_told_apart(search):
    leaks, gamma = {"trace": switches.Trace.LEAKS}, {"gamma": switches.Gamma.NOT_IN_DELTA}
    alone = {"returns": switches.Returns.ADVANTAGES}

    def rows(value, policy):
        value = None if value is None else fit_of(search, "value", **value)
        policy = None if policy is None else fit_of(search, "policy", **policy)
        return {row.name: row.note for row in search.gae_rows(value, policy) if row.verdict == "differs"}

    assert rows({}, {}) == {}
    assert rows(leaks | alone, leaks | alone) == {"trace": leaks["trace"], "returns": alone["returns"]}
    assert rows(leaks | alone, gamma) == {
        "trace": f"for the value alone: {leaks['trace']}", "returns": alone["returns"],
        "gamma": f"for the policy alone: {gamma['gamma']}",
    }  # fmt: skip
    assert rows(leaks, None) == leaks
    assert rows(None, gamma | alone) == gamma
    assert list(rows(None, None)) == ["advantages and returns"]


def test_what_is_compared_of_advantages_and_returns_says_in_how_many_steps(search):
    whole, first = fit_of(search, "value"), fit_of(search, "policy", in_all=False)
    assert [row[1:] for row in search.gae_rows(whole, first)] == [("advantages and returns", "same", "in 3 steps")]
    whole = fit_of(search, "policy")
    assert search.gae_rows(fit_of(search, "value"), whole)[0].note == "in 36 steps"
    rows = [row[1:3] for row in search.gae_rows(None, whole)]
    assert rows == [("advantages of GAE", "same"), ("returns", "not there")]
    rows = [row[1:3] for row in search.gae_rows(fit_of(search, "value"), None)]
    assert rows == [("returns", "same"), ("advantages of GAE", "not there")]


def test_a_loss_that_is_known_in_first_steps_alone_differs_beside_what_else_does(search):
    sample = switches.Advantages.SAMPLE
    rows = search.loss_rows("policy", fit_of(search, "policy", in_all=False, advantages=sample))
    differing = [(row.name, row.note[:10]) for row in rows if row.verdict == "differs"]
    assert differing == [("advantages", sample), ("policy loss", "like no va")]
    (row,) = search.loss_rows("policy", None)
    assert (row.name, row.verdict) == ("policy loss", "differs")


@pytest.mark.parametrize(
    ("part", "factors", "says"),
    [
        ("policy", {"policy": 1.004, "entropy": 0.996}, {}),
        ("policy", {"policy": 0.98, "entropy": 1.02}, {"policy scale": "0.98", "entropy bonus": "0.0204"}),
        ("policy", {"policy": 1.0, "entropy": 0.0}, {"entropy bonus": "no"}),
        ("policy", {"policy": 1.0, "entropy": -0.001}, {"entropy bonus": "no"}),
        ("policy", {"policy": -1.0, "entropy": -1.0}, {"policy scale": "wrong sign", "entropy bonus": "wrong sign"}),
        ("value", {"value": 2.0}, {"value scale": "1"}),
        ("value", {"value": 0.5}, {"value scale": "0.25"}),
    ],
)
def test_the_factors_of_a_loss_are_told(part, factors, says, search):
    rows = search.loss_rows(part, fit_of(search, part, factors, in_all=False))
    found = {row.name: row.note for row in rows if row.verdict == "differs" and row.name in (*says, "policy scale")}
    assert found == says
    assert {row.name for row in rows if row.verdict == "same"} >= {details.SCALES[term][1] for term in factors} - set(
        says
    )


def test_what_the_spy_noted_is_not_changed_by_later_steps():
    model = Small().double()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    watching = spy.Spy(optimizer, model.named(), model.policy)
    weights = [model.policy.weight.detach().numpy().copy()]
    for scale in (1.0, 2.0):
        optimizer.zero_grad()
        (scale * model.policy(torch.ones(1, 3).double()).sum()).backward()
        torch.nn.utils.clip_grad_norm_(model.policy.parameters(), 0.5)
        optimizer.step()
        weights.append(model.policy.weight.detach().numpy().copy())
    noted = [watching.initial, *[step["weights"] for step in watching.steps]]
    assert all(np.array_equal(one["policy.0.weight"], other) for one, other in zip(noted, weights, strict=True))
    for step, scale in zip(watching.steps, (1.0, 2.0)):
        for part in ("fresh", "unclipped"):
            assert np.array_equal(step[part]["policy.0.bias"], [scale, scale])
        norm = np.sqrt(sum((x**2).sum() for x in step["gradients"].values()))
        assert norm == pytest.approx(0.5, rel=1e-4)
        assert not step["gradients"]["value.0.weight"].any()  # it had no gradient


def test_the_spy_keeps_passes_of_all_environments_without_repeats():
    model = Small()
    watching = spy.Spy(torch.optim.Adam(model.parameters()), model.named(), model.policy)
    one, two = torch.full((4, 3), 1.0), torch.full((4, 3), 2.0)
    with torch.no_grad():
        for rows in (one, two, two, torch.ones(8, 3), two, one):
            model.policy(rows)
    model.policy(torch.full((6, 3), 5.0)).sum()
    acted = watching.record(scripted.HYPER, [], others=["b"])
    assert [rows[0, 0] for rows in acted["acted"]] == [1, 2, 1]
    assert acted["others"] == ["b"]


@pytest.mark.parametrize("after", [False, True])
def test_the_spy_sees_what_comes_into_a_module_or_out_of_it(after):
    model = Small()
    watching = spy.Spy(torch.optim.Adam(model.parameters()), model.named(), model.norm, after)
    rows = torch.arange(6.0).reshape(2, 3)
    out = model.norm(rows)
    assert np.array_equal(watching.learned, (out if after else rows).detach().numpy())


def test_a_vectors_weights_are_loaded_in_the_parameters_shapes():
    parameter = torch.nn.Parameter(torch.zeros(2, 1))
    spy.load({"policy.0.weight": parameter}, {"policy.0.weight": np.array([1.0, 2.0]), "value.0.bias": np.zeros(1)})
    assert parameter.tolist() == [[1.0], [2.0]]


def test_environments_are_numbered_as_they_are_used():
    to_look_at, *envs = [make() for make in [*scripted.makers(), *scripted.makers()][:5]]
    assert to_look_at.log == []
    assert [np.flatnonzero(env.reset()[0]).item() // scripted.SHOWN for env in envs] == [0, 1, 2, 3]
    for env in envs:
        env.step(0)
    assert scripted.logs() == [env.log for env in envs]
    scripted.makers()
    assert scripted.logs() == []


# ---------------------------------------------------------------------------------------------------------- The trials
def test_a_trial_tells_what_differs_and_gives_the_scripts_back(monkeypatch):
    results = [check.Result("training", "", verdict, "", {}) for verdict in ("same", "differs", "not there")]
    seen = []

    def check_record(adapter, option, arguments):
        seen.append((arguments, (our_scripts.FOLDER / "ppo.py").read_text("utf-8")))
        return list(results)

    monkeypatch.setattr(check, "check_record", check_record)
    before = our_scripts.FOLDER
    assert trials.with_source("ppo", "changed", updates=3) == [results[1]]
    assert seen == [({"name": "ppo", "updates": 3}, "changed")]
    assert our_scripts.FOLDER == before
    monkeypatch.setattr(check, "check_case", lambda adapter, case: results[1]._replace(what=case["name"]))
    games = [case["name"] for case in CASES if case["call"] == "atari"]
    assert [one.what for one in trials.flagged("ppo_atari")] == ["training", *games]


@pytest.mark.parametrize("alarm", [None, ("ppo_atari", {"num_threads": 2})])
def test_harmless_changes_fail_with_any_alarm(alarm, monkeypatch, capsys):
    tried = []

    def flagged(script, **options):
        tried.append((script, options))
        source = (our_scripts.FOLDER / f"{script}.py").read_text("utf-8")
        tried[-1] += (source != (FOLDER.parents[1] / "cleanrl" / f"{script}.py").read_text("utf-8"),)
        return [check.Result("training: rollouts", "", "differs", "", {})] if tried[-1][:2] == alarm else []

    monkeypatch.setattr(trials, "flagged", flagged)
    assert trials.try_harmless() == (0 if alarm is None else 1)
    assert len(tried) == 21  # the page says so
    assert all(is_changed != bool(options) for _, options, is_changed in tried)
    assert capsys.readouterr().out.count("no alarm") == (21 if alarm is None else 20)


def test_an_ablation_counts_as_named_if_a_row_has_its_tag(monkeypatch, capsys):
    def with_source(script, source, **options):
        if options == {"bootstrap_truncated": True}:
            return []
        return [check.Result(what, "", "differs", "", {}) for what in ("training: core-4 rate", "Atari, lives")]

    monkeypatch.setattr(trials, "with_source", with_source)
    assert trials.try_ablations() == 0
    marks = [line.split()[:2] for line in capsys.readouterr().out.splitlines() if line[:2] != "{'"]
    assert [name for name, mark in marks if mark == "named"] == ["core-4", "atari-3"]
    assert [name for name, mark in marks if mark == "missed"] == ["plus-1"]
    assert "core-1-off-by-one" in [name for name, mark in marks if mark == "flagged"]


# ------------------------------------------------------------------------------------------------------------- The tool
def run(monkeypatch, *words):
    """The exit status."""
    monkeypatch.setattr(sys, "argv", ["check.py", *map(str, words)])
    try:
        with one_line_errors():
            return check.main()
    except SystemExit as end:
        return end.code


def test_the_exit_status_says_whether_anything_differs(tmp_path, monkeypatch, capsys):
    assert run(monkeypatch, "--adapter", FOLDER / "adapters" / "template.py") == 0
    wrong = (
        "import vectors\nNAME = 'wrong'\ndef gae(i):\n    case = {'call': 'gae', 'inputs': i | {'gae_lambda': 1.0}}\n"
    )
    (tmp_path / "wrong.py").write_text(wrong + "    return vectors.answer(case)\n", "utf-8")
    capsys.readouterr()
    assert run(monkeypatch, "--adapter", tmp_path / "wrong.py") == 1
    assert "lambda 1" in capsys.readouterr().out
    assert run(monkeypatch, "--adapter", tmp_path / "missing.py") == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


GAE = "def gae(i):\n    return vectors.answer({'call': 'gae', 'inputs': i})\n"


@pytest.mark.parametrize(
    "source",
    [
        "import no_such_package\nNAME = 'mine'\n",
        "NAME = 'mine'\ndef gae(i)\n",
        f"import vectors\n{GAE}",
        "NAME = 'mine'\ndef compute_gae(i): ...\ndef records(): ...\n",
        f"import vectors\nNAME = 'mine'\nOPTIONS = {{'gaes': {{'': {{}}}}}}\n{GAE}",
    ],
    ids=["missing package", "syntax error", "no NAME", "misspelt functions", "misspelt option"],
)
def test_an_adapter_that_checks_nothing_costs_one_line(source, tmp_path, monkeypatch, capsys):
    (tmp_path / "mine.py").write_text(source, "utf-8")
    assert run(monkeypatch, "--adapter", tmp_path / "mine.py") == 2
    printed = capsys.readouterr()
    assert (printed.out, len(printed.err.splitlines())) == ("", 1)


def test_an_error_of_an_adapter_keeps_its_traceback(tmp_path, monkeypatch, capsys):
    (tmp_path / "mine.py").write_text("NAME = 1 / 0\n", "utf-8")
    assert run(monkeypatch, "--adapter", tmp_path / "mine.py") == 2
    assert 'mine.py", line 1' in capsys.readouterr().err


@pytest.mark.parametrize(
    "source",
    ["def gae(i): raise NotImplementedError('none')\n", "OPTIONS = {'record': {}}\ndef record(): ...\n"],
    ids=["all not there", "no options"],
)
def test_an_adapter_of_which_nothing_is_compared_fails(source, tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(f"NAME = 'mine'\n{source}", "utf-8")
    assert run(monkeypatch, "--adapter", tmp_path / "mine.py") == 2


def test_an_adapter_may_have_dataclasses(tmp_path, monkeypatch):
    head = "from __future__ import annotations\nfrom dataclasses import dataclass\nimport vectors\nNAME = 'mine'\n"
    source = f"{head}@dataclass\nclass Settings:\n    gamma: float = 0.99\n{GAE}"
    (tmp_path / "mine.py").write_text(source, "utf-8")
    assert run(monkeypatch, "--adapter", tmp_path / "mine.py") == 0


def test_an_adapter_may_import_a_file_beside_it(tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    (tmp_path / "my_gae_beside_it.py").write_text(f"import vectors\n{GAE}", "utf-8")
    (tmp_path / "mine.py").write_text("from my_gae_beside_it import gae\nNAME = 'mine'\n", "utf-8")
    assert run(monkeypatch, "--adapter", tmp_path / "mine.py") == 0


def test_the_results_are_printed_counted_and_written(tmp_path, monkeypatch, capsys):
    source = (
        "import vectors\nNAME = 'mine'\nOPTIONS = {'gae': {'': {}, 'all': {'gae_lambda': 1.0}}}\n"
        "def gae(i, gae_lambda=None):\n    if i['time_limits'] == 'bootstrapped':\n        raise NotImplementedError\n"
        "    inputs = i | ({'gae_lambda': gae_lambda} if gae_lambda else {})\n"
        "    return vectors.answer({'call': 'gae', 'inputs': inputs})\n"
    )
    (tmp_path / "mine.py").write_text(source, "utf-8")
    file = tmp_path / "results.json"
    assert run(monkeypatch, "--adapter", tmp_path / "mine.py", "--json", file) == 1
    lines = capsys.readouterr().out.splitlines()
    assert (lines[0], lines[-1]) == ("mine", "2 same, 2 differs, 2 not there")
    whole = json.loads(file.read_text("utf-8"))
    results = [(one["what"], one["option"], one["verdict"]) for one in whole["results"]]
    assert whole["name"] == "mine"
    assert results == [
        ("time limits as ends", "", "same"), ("time limits as ends", "all", "differs"),
        ("GAE, true ends", "", "same"), ("GAE, true ends", "all", "differs"),
        ("time limits bootstrapped", "", "not there"), ("time limits bootstrapped", "all", "not there"),
    ]  # fmt: skip
    assert [one["found"].get("lambda") for one in whole["results"]] == ["same", "1", "same", "1", None, None]
    for result, line in zip(results, lines[2:]):
        assert all(word in line for word in result)


def test_each_option_of_a_training_has_its_rows_and_findings(monkeypatch):
    rows = {
        "": [details.Row("core-3", "Adam's ε", "same", "36 steps"), details.Row("", "steps", "not there", "why")],
        "other": [details.Row("core-3", "Adam's ε", "differs", "1e-08")],
    }
    monkeypatch.setattr(details, "report", lambda record: record)
    options = {"record": {option: {"which": option} for option in rows}}
    results = check.check(SimpleNamespace(OPTIONS=options, record=lambda which: rows[which]))
    assert results == [
        check.Result("training: core-3 Adam's ε", "", "same", "36 steps", {"Adam's ε": "same"}),
        check.Result("training: steps", "", "not there", "why", {}),
        check.Result("training: core-3 Adam's ε", "other", "differs", "1e-08", {"Adam's ε": "1e-08"}),
    ]


@pytest.mark.parametrize(
    "words", [["check.py", "--adapter", "none.py"], ["matrix.py", "skrl"]], ids=["check", "matrix"]
)
def test_a_mistake_at_the_command_line_costs_one_line(words):
    done = subprocess.run([sys.executable, FOLDER / words[0], *words[1:]], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1


def test_a_librarys_row_says_what_differs_what_is_the_same_and_what_was_not_compared(monkeypatch, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(matrix.PAGE.read_text("utf-8"), "utf-8")
    monkeypatch.setattr(matrix, "PAGE", page)
    before = page.read_text("utf-8").splitlines()
    found = {"": {"policy loss": "same", "value loss": "not clipped"}, "clipped=True": {"value loss": "same"}}
    matrix.fill("skrl_", "skrl 9.9", found)
    changed = [line for line in page.read_text("utf-8").splitlines() if line not in before]
    assert len(changed) == 1 and len(page.read_text("utf-8").splitlines()) == len(before)
    name, differs, same, missing = changed[0][2:-2].split(" | ")
    assert (name, same) == ("skrl 9.9", "policy loss")
    assert differs == "value loss: **not clipped**; `clipped=True`: same"
    assert missing.startswith("time limits, advantages, value scale") and "loss" not in missing


def test_what_the_page_explains_about_a_library_replaces_what_vectors_say(monkeypatch, tmp_path):
    monkeypatch.setattr(matrix, "PAGE", Path(shutil.copy(matrix.PAGE, tmp_path)))
    found = {"gradient clip": "same", "policy loss": "same", "Adam's ε": "1e-08"}
    matrix.fill("torchrl_", "torchrl 9.9", {"": found})
    (line,) = [line for line in matrix.PAGE.read_text("utf-8").splitlines() if line.startswith("| torchrl 9.9 ")]
    _, _, same, missing = line[2:-2].split(" | ")
    assert same == "policy loss"
    assert "gradient clip, Adam's ε" in missing  # the adapter's own clip is no finding


def test_what_the_page_explains_about_rllib_is_kept(monkeypatch, tmp_path):
    monkeypatch.setattr(matrix, "PAGE", Path(shutil.copy(matrix.PAGE, tmp_path)))
    matrix.fill("rllib_", "RLlib 9.9", {"": {"advantages": "same", "policy loss": "same", "Adam's ε": "1e-08"}})
    (line,) = [line for line in matrix.PAGE.read_text("utf-8").splitlines() if line.startswith("| RLlib 9.9 ")]
    _, differs, same, _ = line[2:-2].split(" | ")
    assert [text.partition(": **")[0] for text in differs.split("<br>")] == ["time limits", "advantages", "Adam's ε"]
    assert same == "policy loss"


def test_the_page_has_the_versions_that_are_checked():
    table = matrix.PAGE.read_text("utf-8").partition("<!-- matrix -->")[2].splitlines()
    versions = [line.split(" | ")[0].rpartition(" ")[2] for line in table if line.startswith("| ")][1:]
    assert versions[: len(matrix.LIBRARIES)] == [package.rpartition("=")[2] for package in matrix.LIBRARIES.values()]


def test_the_matrix_knows_its_libraries(monkeypatch):
    filled = []
    monkeypatch.setattr(matrix, "run", lambda adapter: (adapter, {}))
    monkeypatch.setattr(matrix, "fill", lambda adapter, name, found: filled.append(adapter))
    monkeypatch.setattr(sys, "argv", ["matrix.py"])
    assert matrix.main() == 0
    assert filled == list(matrix.LIBRARIES)
    monkeypatch.setattr(sys, "argv", ["matrix.py", "sb3", "skrl"])
    with pytest.raises(UserError, match="skrl_"):
        matrix.main()
    assert filled == list(matrix.LIBRARIES)
    assert all((FOLDER / "adapters" / f"{name}.py").is_file() for name in filled)


def test_a_library_whose_check_gives_no_results_fills_no_column(monkeypatch):
    monkeypatch.setattr(matrix.shutil, "which", lambda name: name)
    monkeypatch.setattr(matrix.subprocess, "run", lambda *arguments, **options: None)
    with pytest.raises(UserError, match="sb3"):
        matrix.run("sb3")
    monkeypatch.setattr(matrix.shutil, "which", lambda name: None)
    with pytest.raises(UserError, match="pip install uv"):
        matrix.run("sb3")


def test_a_cell_has_the_default_and_the_options_that_differ():
    found = {"": {"advantages": "sample std"}, "one": {"advantages": "sample std"}, "other": {"advantages": "same"}}
    assert matrix.cell(found, "advantages") == "**sample std**; `other`: same"
    assert matrix.cell(found, "value loss") == "–"


@pytest.mark.parametrize(
    ("found", "detail", "text"),
    [
        ({"": {}, "one": {"value loss": "clipped alone"}, "other": {"value loss": "clipped alone"}}, "value loss",
         "`one`: **clipped alone**"),
        ({"": {"advantages and returns": "same"}}, "time limits", "same"),
        ({"": {"advantages and returns": "same", "time limits": "bootstrapped"}}, "time limits", "**bootstrapped**"),
        ({"": {"advantages and returns": "same"}}, "advantages", "–"),
    ],
)  # fmt: skip
def test_a_cell_has_each_finding_once(found, detail, text):
    assert matrix.cell(found, detail) == text


def test_what_is_the_same_with_an_option_alone_is_the_same():
    findings = {"value loss": "`clip=True`: same", "advantages": "same", "gradient clip": "–"}
    assert matrix.row("mine 1.0", findings) == "| mine 1.0 | – | value loss, advantages | gradient clip |"


def test_a_library_is_checked_with_its_package_and_what_vectors_found_comes_first(monkeypatch):
    said = []

    def check_library(words, env, check):
        said.extend(words)
        of_options = [("", "same"), ("clip=True", "clipped alone"), ("", "not clipped")]
        results = [{"option": option, "found": {"value loss": text}} for option, text in of_options]
        results.append({"option": "", "found": {"learning rate": "constant"}})
        file = Path(words[words.index("--json") + 1])
        file.write_text(json.dumps({"name": "skrl 9.9", "results": results}), "utf-8")

    monkeypatch.setattr(matrix.shutil, "which", lambda name: name)
    monkeypatch.setattr(matrix.subprocess, "run", check_library)
    assert matrix.run("skrl_") == (
        "skrl 9.9",
        {"": {"value loss": "same", "learning rate": "constant"}, "clip=True": {"value loss": "clipped alone"}},
    )
    assert matrix.LIBRARIES["skrl_"] in said
    assert said[said.index("--adapter") + 1] == str(FOLDER / "adapters" / "skrl_.py")


def test_a_check_that_gives_no_results_is_no_mistake_at_the_command_line(monkeypatch):
    monkeypatch.setattr(matrix.shutil, "which", lambda name: name)
    monkeypatch.setattr(matrix.subprocess, "run", lambda *arguments, **options: None)
    with pytest.raises(UserError) as error:
        matrix.run("sb3")
    assert error.value.status == 1
