"""benchmark/conformance: vectors of two sources, trainings that numpy replays, and differences by their names."""

import importlib.util
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


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("GAE, true ends", lambda got: {"returns": got["returns"]}),
        ("update, Discrete", lambda got: {"steps": [step | {"learning_rate": 0.02} for step in got["steps"]]}),
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


@pytest.fixture(scope="module")
def recorded():
    return ours.record("ppo", **SHORT)


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


def test_nan_in_shared_layers_differs():
    rows = details.report(with_nan(ours.record("ppo_lstm", **SHORT), ("fresh",), 7, 8, of="lstm"))
    assert [row.name for row in rows if row.verdict == "differs"] == ["zero_grad", "shared layers"]


def test_actions_that_are_nan_differ_and_the_outlier_among_the_rewards_is_clipped():
    record = ours.record("ppo_continuous_action", updates=7)
    assert replay.Replay(record).scaled_rewards(switches.Rewards.SCALED).max() > 10
    assert details.stored_actions(replay.Replay(record))[0].verdict == "same"
    of_last_rollout = record["steps"][-record["hyper"]["epochs"] * record["hyper"]["minibatches"]]
    of_last_rollout["actions"] = np.full_like(of_last_rollout["actions"], np.nan)
    assert details.stored_actions(replay.Replay(record))[0].verdict == "differs"


def test_initial_weights_that_are_nan_differ():
    assert details.initialization({"actor.0.bias": np.array([0.0, np.nan])}).verdict == "differs"


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
    matrix.fill("torchrl_", "torchrl 9.9", {"": {"gradient clip": "same", "policy loss": "same"}})
    (line,) = [line for line in matrix.PAGE.read_text("utf-8").splitlines() if line.startswith("| torchrl 9.9 ")]
    _, _, same, missing = line[2:-2].split(" | ")
    assert same == "policy loss" and "gradient clip" in missing  # the adapter's own clip is no finding


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
