"""benchmark/ablate.py: the diffs apply and do what flags do, gradients by hand follow, runs become tables; and the
quickest of the details are taken out. `make test-details` takes out all of them."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import ablate
import numpy as np
import ppo
import pytest
import report
import torch
from mutations import ABLATIONS, ROOT, assert_taken_out
from test_report import make_run

SUITES = ablate.manifest()[1]
QUICK = "core-2 core-5 core-7-rollout core-8 core-9 core-10 core-13 cont-3 cont-7 atari-4 lstm-2 multi-1".split()


def load(script, source, tmp_path):
    """The script with this source as a module."""
    path = tmp_path / f"{script}.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(f"{script}_changed", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclass looks it up
    spec.loader.exec_module(module)
    return module


# ------------------------------------------------------------------------------------------------------------ The diffs


def test_every_diff_applies_and_changes_more_than_comments():
    for ablation in ABLATIONS.values():
        for script, changes in ablate.hunks(ablation.diff).items():
            compile(ablate.changed(ablation, script), f"{script} without {ablation.name}", "exec")
            code = [[re.sub(r"\s*#.*", "", x).splitlines() for x in change] for change in changes]
            assert all(before != after for before, after in code)


def test_manifest_and_folder_agree():
    diffs = {path.stem for path in ablate.ABLATIONS.glob("*.diff")}
    assert diffs == {name for name, one in ABLATIONS.items() if one.diff.is_file()}
    for name, one in ABLATIONS.items():
        assert one.flag or name in diffs
        assert one.name.startswith(one.tag)
    for suite in SUITES.values():
        for name in suite["ablations"]:
            assert not ABLATIONS[name].idle
            assert ABLATIONS[name].flag or suite["script"] in ablate.hunks(ABLATIONS[name].diff)


@pytest.mark.parametrize("name", QUICK)
def test_a_test_fails_without_the_detail(name):
    assert_taken_out(name)


FLAGS = [name for name, one in ABLATIONS.items() if one.flag and one.diff.is_file() and not one.on]


def weights_after_two_updates(script, **arguments):
    small = {"total_timesteps": 128, "num_envs": 2, "num_steps": 32, "learning_rate": 0.01, "max_grad_norm": 0.05}
    folder = script.main(script.Args(**small | arguments, seed=3, checkpoints=1))
    state = torch.load(folder / "checkpoints" / "2.pt", weights_only=True)["model"]
    return torch.cat([x.flatten() for x in state.values()])


@pytest.mark.parametrize("name", FLAGS)
def test_flag_and_diff_do_the_same(name, in_tmp_path):
    """Two updates end with the same weights, which are not those of the untouched script."""
    flag, *value = ABLATIONS[name].flag.split()
    typed = {flag.removeprefix("--no-").strip("-").replace("-", "_"): float(value[0]) if value else False}
    changed = weights_after_two_updates(load("ppo", ablate.changed(ABLATIONS[name], "ppo"), in_tmp_path))
    torch.testing.assert_close(changed, weights_after_two_updates(ppo, **typed), rtol=1e-4, atol=1e-5)
    assert (changed - weights_after_two_updates(ppo)).abs().max() > 1e-3


BOTH = [
    (torch_script, numpy_script, name)
    for torch_script, numpy_script in (
        ("ppo", "ppo_numpy"),
        ("ppo_continuous_action", "ppo_continuous_action_numpy"),
    )
    for name, one in ABLATIONS.items()
    if {torch_script, numpy_script} <= ablate.hunks(one.diff).keys()
]


@pytest.mark.parametrize("torch_script, numpy_script, name", BOTH)
def test_gradients_by_hand_follow_the_change(torch_script, numpy_script, name, tmp_path):
    """Loss and networks of the changed numpy script have the gradient that autograd finds in the changed torch one."""
    theirs, ours = (load(x, ablate.changed(ABLATIONS[name], x), tmp_path) for x in (torch_script, numpy_script))
    rng = np.random.default_rng(1)
    agent, M = ours.Agent(5, 3, rng, np.float64), 64
    agent.parameters += 0.3 * rng.normal(size=agent.parameters.shape)
    obs = rng.normal(size=(M, 5))
    actions = rng.integers(3, size=M) if torch_script == "ppo" else rng.normal(size=(M, 3))
    _, log_prob, _, value = agent.get_action_and_value(obs, actions)
    old = [log_prob + 0.3 * rng.normal(size=M), value + 0.3 * rng.normal(size=M)]
    rollout = [x.copy() for x in (*old, rng.normal(size=M), value + rng.normal(size=M))]
    coefficients = (0.2, True, True, 0.01, 0.5)
    _, *outputs = agent.get_action_and_value(obs, actions)
    *derivatives, _ = ours.ppo_loss(*outputs, *rollout, *coefficients)
    agent.backward(*derivatives)
    twin = theirs.Agent(5, 3).double()
    twin.load_state_dict({key: torch.from_numpy(x.copy()) for key, x in agent.state_dict().items()})
    _, *outputs = twin.get_action_and_value(torch.from_numpy(obs), torch.from_numpy(actions))
    theirs.ppo_loss(*outputs, *map(torch.from_numpy, rollout), *coefficients)[0].backward()
    places = {x.__array_interface__["data"][0]: key for key, x in reversed(agent.state_dict().items())}
    start, checked = agent.parameters.__array_interface__["data"][0], 0
    parameters = dict(twin.named_parameters())
    for address, key in places.items():  # shared weights have several names, of which the first is autograd's
        gradient = parameters[key].grad.numpy().ravel()
        position = (address - start) // 8
        part = agent.gradient[position : position + gradient.size]
        assert np.abs(part - gradient).max() <= 1e-6 * np.abs(gradient).max(), key
        checked += gradient.size
    assert checked == sum(x.numel() for x in parameters.values())


# ------------------------------------------------------------------------------------------------------------- The runs


@pytest.fixture
def ablate_here(tool_here, monkeypatch, tmp_path):
    """ablate.py as typed, which keeps its runs and writes its pages below tmp_path."""
    docs, kept = tmp_path / "docs", tmp_path / "results" / "ablations"
    docs.mkdir()
    kept.mkdir(parents=True)
    for page in ("ablations.md", "details.md"):
        shutil.copy(ROOT / "docs" / page, docs)
    monkeypatch.setattr(ablate, "DOCS", docs)
    monkeypatch.setattr(ablate, "KEPT", kept)

    def main(args, main=ablate.main):
        if status := main(args):
            raise SystemExit(status)

    monkeypatch.setattr(ablate, "main", main)

    def call(*words, status=0):
        monkeypatch.chdir(tmp_path)  # which it leaves
        return tool_here(ablate, *words, status=status)

    return call


def test_from_runs_to_pages(ablate_here, tmp_path, monkeypatch):
    size = ["--arguments=--total-timesteps 1024 --checkpoints 1", "--num-seeds", "5"]
    words = [*size, "--env-ids", "CartPole-v1", "--only", "core-3"]
    stdout, _ = ablate_here("status", *words, status=1)
    assert "0 of 10 runs are done" in stdout
    stdout, _ = ablate_here("run", *words, "--workers", "2")
    names = [line.split()[1] for line in stdout.splitlines() if ": running" in line]
    assert names == ["untouched", "core-3"] * 5  # every script gets its first seed before its second
    assert "10 of 10 runs are done" in stdout
    stdout, _ = ablate_here("status", *words, "--start-seed", "5", "--num-seeds", "3", status=1)
    assert "2 of 6 runs are done" in stdout  # seed 5 of both
    runs = {path.name.split("__")[1] for path in tmp_path.glob("runs/ablations/runs/*")}
    assert runs == {"ppo_numpy", "ppo_numpy-without-core-3"}
    assert "running" not in ablate_here("run", *words)[0]  # typed again, there is nothing to do
    for added in (10, 0):
        assert f"{added} runs added" in ablate_here("keep", *words)[0]
    assert len(list(tmp_path.glob("results/ablations/runs/*/*/episodes.csv.gz"))) == 10
    for config in tmp_path.glob("results/ablations/runs/*/*/config.json"):
        assert str(tmp_path) not in config.read_text() and str(ROOT) not in config.read_text()
    for command in ablate_here("commands", *words)[0].splitlines():  # sweep.py alone finds the same runs done
        python = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        bash = ["bash", "-c", f"{command.removesuffix(')')} --status)"]
        assert subprocess.check_output(bash, cwd=tmp_path, env=python, text=True).endswith("5 done\n")
    ablate_here("report")
    page, details = ((tmp_path / "docs" / name).read_text() for name in ("ablations.md", "details.md"))
    section = page.split("### CartPole-v1")[1].split("### Acrobot-v1")[0]
    rows = [row.split(" | ") for row in section.splitlines() if row.startswith("| [")]
    assert [row[1] for row in rows] == ["ε = 1e-8"] and rows[0][-1] == "5 |"
    assert re.search(r"### .*core-3(.|\n)*?\nWorth: instead, ε = 1e-8: .+ on CartPole-v1", details)
    assert "Worth: not measured." in details.split("core-6", 1)[1].split("### ")[0]
    assert (tmp_path / "results" / "ablations_core.svg").stat().st_size > 1000
    shutil.rmtree(tmp_path / "runs")
    stdout, _ = ablate_here("run", *words, "--skip-kept")
    assert "running" not in stdout and "10 of 10 runs are done" in stdout
    assert "6 of 10 runs are done" in ablate_here("status", *words, "--skip-kept", "--start-seed", "3", status=1)[0]
    assert "0 of 10 runs are done" in ablate_here("status", *words, status=1)[0], "a reader's own runs"
    before = page, details
    ablate_here("report")
    assert before == tuple((tmp_path / "docs" / name).read_text() for name in ("ablations.md", "details.md"))


def test_a_run_that_diverges_counts_with_what_it_had(ablate_here, monkeypatch, tmp_path):
    shutil.copytree(ablate.ABLATIONS, tmp_path / "ablations")
    learning_rate = "        learning_rate = args.learning_rate"
    source = (ROOT / "cleanrl" / "ppo_numpy.py").read_text().splitlines(keepends=True)
    (before,) = (i for i, line in enumerate(source) if line.startswith(learning_rate))
    diff = ["--- a/cleanrl/ppo_numpy.py\n", "+++ b/cleanrl/ppo_numpy.py\n", f"@@ -{before},3 +{before},3 @@\n"]
    diff += [" " + source[before - 1], "-" + source[before], f"+{learning_rate} * (1e20 if update == 6 else 1.0)\n"]
    (tmp_path / "ablations" / "core-3.diff").write_text("".join([*diff, " " + source[before + 1]]))
    monkeypatch.setattr(ablate, "ABLATIONS", tmp_path / "ablations")
    words = ["--arguments=--total-timesteps 8192 --checkpoints 8", "--num-seeds", "1"]
    words += ["--env-ids", "CartPole-v1", "--only", "core-3"]
    _, stderr = ablate_here("run", *words, status=1)
    assert "update 6: not finite: loss" in stderr
    assert "2 runs added" in ablate_here("keep", *words)[0]
    ablate_here("report")
    page = (tmp_path / "docs" / "ablations.md").read_text()
    (row,) = (x for x in page.split("### CartPole-v1")[1].split("### ")[0].splitlines() if x.startswith("| [core-3]"))
    assert row.endswith("| 1, 1 diverged from step 2,560 on |")
    of_name = ablate.load(tmp_path / "results" / "ablations")["core"]["CartPole-v1"]
    until, run = of_name["core-3"][1], of_name[""][1]
    assert until.result == until.returns[-100:].mean() and until.steps[-1] <= 2560 < run.steps[-1]
    on_grid = report.curve(until.steps, until.returns, np.linspace(0, 8192, report.POINTS))
    assert on_grid[-1] == until.result and ablate.area(until) == pytest.approx(np.nanmean(on_grid))


@pytest.mark.parametrize(
    "words, line",
    [
        (["run", "--suite", "cor"], "--suite cor: there is none of this name; there are core, continuous"),
        (["run", "--only", "core-99"], "--only core-99: is not in the suite"),
        (["run", "--workers", "0"], "--workers 0: must be 1 or more"),
        (["run", "--start-seed", "-1"], "--start-seed -1: must be 0 or more"),
        (["run", "--env-ids", "Foo-v0"], "--env-ids Foo-v0: is not in the suite, which has CartPole-v1"),
        (["run", "--arguments=--anneal_lr"], "--arguments: hold --anneal-lr, which core-4 sets itself"),
        (["run", "--arguments=--bogus 3"], "--command, --grid: ppo_numpy.py would not take it"),
        (["commands", "--arguments=--total-timesteps 1"], "--command: 1 --total-timesteps are less than one update"),
        (["scripts", "--arguments='"], "--command .*: can't be split into words"),
    ],
)
def test_a_mistake_ends_in_one_line(ablate_here, words, line, tmp_path):
    _, stderr = ablate_here(*words, status=2)
    assert re.match(f"(ablate|sweep).py: error: {line}", stderr) and stderr.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_a_diff_that_no_longer_fits_is_named(monkeypatch, tmp_path, capsys):
    diff = (ablate.ABLATIONS / "core-3.diff").read_text()
    (tmp_path / "core-3.diff").write_text(diff.replace("eps=1e-5", "eps=1e-6"))
    monkeypatch.setattr(ablate, "ABLATIONS", tmp_path)
    with pytest.raises(SystemExit):
        ablate.changed(ABLATIONS["core-3"], "ppo")
    assert "core-3.diff: the lines of ppo.py that it changes" in capsys.readouterr().err


# --------------------------------------------------------------------------------------------------------- The measures


def kept_run(folder, name, seed, returns, base="abc", **more):
    """A kept run of an ablation on CartPole-v1."""
    exp_name = f"ppo_numpy-without-{name}" if name else "ppo_numpy"
    run = make_run(folder / f"{base}", seed, returns, env_id="CartPole-v1", exp_name=exp_name)
    report.keep_run(run, folder / "kept")
    kept = folder / "kept" / "runs" / exp_name / run.name
    what = {"suite": "core", "name": name, "base": base} | more
    config = json.loads((kept / "config.json").read_text()) | {"ablation": what, "version": f"{base} {name}"}
    (kept / "config.json").write_text(json.dumps(config))
    kept.rename(kept.with_name(f"{run.name}-{base}"))


def test_runs_of_a_diff_that_was_mended_are_kept_apart(tmp_path, capsys):
    for seed in (1, 2, 3):
        kept_run(tmp_path, "", seed, [1.0] * 200)
        kept_run(tmp_path, "core-3", seed, [float(seed)] * 200)
    other = next((tmp_path / "kept" / "runs").glob("*core-3/*__3__*")) / "config.json"
    other.write_text(other.read_text().replace('"version": "abc core-3"', '"version": "older"'))
    of_name = ablate.load(tmp_path / "kept")["core"]["CartPole-v1"]
    assert {*of_name["core-3"]} == {1, 2} and {*of_name[""]} == {1, 2, 3}
    assert "fewer runs of core-3 are of another diff" in capsys.readouterr().err


def test_a_change_is_compared_with_the_untouched_run_of_its_machine(ablate_here, tmp_path):
    """A second machine, from which what the first one kept is left out, but the untouched run beside new ones."""
    size = ["--arguments=--total-timesteps 1024 --checkpoints 1", "--env-ids", "CartPole-v1", "--num-seeds", "2"]
    ablate_here("run", *size, "--only", "core-3")
    ablate_here("keep", *size)
    kept = tmp_path / "results" / "ablations"
    first = next(kept.glob("runs/ppo_numpy/*__1__*"))
    shutil.rmtree(tmp_path / "runs")
    stdout, _ = ablate_here("run", *size, "--num-seeds", "1", "--only", "core-3", "core-8", "--skip-kept")
    assert [line.split()[1] for line in stdout.splitlines() if ": running" in line] == ["untouched", "core-8"]
    (made,) = (tmp_path / "runs" / "ablations" / "runs").glob("*ppo_numpy__1__*")
    rows = (made / "episodes.csv").read_text().replace(".0,", ".5,")  # as if this machine rounded otherwise
    (made / "episodes.csv").write_text(rows)
    for added in (2, 0):
        assert f"{added} runs added" in ablate_here("keep", *size, "--only", "core-8")[0]
    assert {path.name for path in kept.glob("beside/runs/ppo_numpy/*")} == {made.name} != {first.name}
    of_name = ablate.load(kept)["core"]["CartPole-v1"]
    beside = {name: ablate.compare(of_name[""], of_name[name]).beside for name in ("core-3", "core-8")}
    assert [run.folder.name for run in beside["core-3"]][:1] == [first.name] and len(beside["core-3"]) == 2
    assert [run.folder.name for run in beside["core-8"]] == [made.name]
    difference = of_name["core-8"][1].result - beside["core-8"][0].result
    assert ablate.compare(of_name[""], of_name["core-8"]).last.tolist() == [difference]
    rows = [row.split(" | ") for row in ablate.results_table(of_name).splitlines()[2:]]
    assert [row[-1] for row in rows] == ["2 |", "1, another machine |", "2 |", "1, another machine |"]


def test_differences_are_those_of_runs_with_the_same_seed(tmp_path):
    for seed in range(1, 7):
        kept_run(tmp_path, "", seed, [0.0] * 50 + [100.0 * seed] * 100)
        if seed < 6:
            kept_run(tmp_path, "core-3", seed, [0.0] * 50 + [100.0 * seed - 10 - seed] * 100)
            kept_run(tmp_path, "core-8", seed, [0.0] * 50 + [100.0 * seed + (-1) ** seed] * 100)
            kept_run(tmp_path, "core-9", seed, [0.0] * 50 + [100.0 * seed + seed] * 100)
    of_name = ablate.load(tmp_path / "kept")["core"]["CartPole-v1"]
    found = ablate.compare(of_name[""], of_name["core-3"])
    assert found.seeds == 5 and found.last.tolist() == [-11, -12, -13, -14, -15]
    low, high = ablate.interval(found.last)
    assert -15 <= low < -13 < high <= -11  # seeds' own spread, which is ten times as large, stays out
    assert -15 / 2 < found.area.mean() < -11 / 3  # the mean of the curve, which has half of the return half of the time
    row = ablate.results_table(of_name).splitlines()[3]
    assert row.startswith("| [core-3](details.md#core-3) | ε = 1e-8 | **−13.0 [−14.8, −11.2]** |")
    assert ablate.worth("core-3", ablate.load(tmp_path / "kept")).startswith(
        "Worth: instead, ε = 1e-8: worse on CartPole-v1 (**−13.0 [−14.8, −11.2]**; area under the curve **−"
    )
    suites = ablate.load(tmp_path / "kept")
    assert ablate.worth("core-6", suites) == "Worth: not measured."
    del suites["core"]["CartPole-v1"]["core-3"][1]
    assert ablate.worth("core-3", suites) == "Worth: not measured.", "four seeds have no interval"
    assert "| 4 of 5 seeds |" in ablate.list_of_all(suites)
    suites = ablate.load(tmp_path / "kept")
    assert ablate.in_short(suites).splitlines() == [
        "- **Worse**:",
        "    - ε = 1e-8 ([core-3](details.md#core-3)): CartPole-v1 **−13.0 [−14.8, −11.2]**.",
        "- **Better**:",
        "    - the plain squared error ([core-9](details.md#core-9)): CartPole-v1 **+3.00 [+1.20, +4.80]**.",
        "- **No difference seen at the end**: the ratio is not clipped ([core-8](details.md#core-8)).",
        "",
        "Of the 3 intervals behind this about 0 would leave out 0 by chance.",
    ]


def test_runs_of_other_arguments_are_no_baseline(tmp_path):
    for seed in range(1, 6):
        for name in ("", "core-3"):
            kept_run(tmp_path, name, seed, [500.0] * 200)
    kept_run(tmp_path, "", 6, [0.0] * 200, arguments="--total-timesteps 200")
    of_name = ablate.load(tmp_path / "kept")["core"]["CartPole-v1"]
    assert {*of_name[""]} == {1, 2, 3, 4, 5} and not ablate.compare(of_name[""], of_name["core-3"]).last.any()


def test_area_is_the_mean_of_the_curve(tmp_path):
    kept_run(tmp_path, "", 1, [10.0] * 400)
    kept_run(tmp_path, "core-3", 1, [0.0] * 200 + [10.0] * 200)
    of_name = ablate.load(tmp_path / "kept")["core"]["CartPole-v1"]
    # 0 up to step 200, rising over 100 episodes, then 10: on average 10 · (50 + 100) / 400
    assert ablate.compare(of_name[""], of_name["core-3"]).area[0] == pytest.approx(10 * 150 / 400 - 10, abs=0.1)


def test_too_few_seeds_have_no_interval():
    assert ablate.interval(np.array([1.0, 2.0, 1.0, 2.0])) is None
    assert ablate.interval(np.full(5, 2.0)) == (2.0, 2.0)
    assert ablate.in_words(np.array([1.0, 2.0])) == "+1.50"
    assert ablate.in_words(np.array([-1.0, 1.0, 0.0, 0.5, 0.5])).startswith("+0.20 [−0.")
    assert ablate.in_words(np.zeros(5)) == "0.00 [0.00, 0.00]"
    signs = {
        "better": [1, 2, 3, 4, 5],
        "worse": [-1, -2, -3, -4, -5],
        "no difference seen": [-1, 0, 2, 3, 4],
        "": [1, 2],
    }
    assert all(ablate.verdict(np.array(x, float)) == words for words, x in signs.items())


@pytest.mark.parametrize(("seeds", "least"), [(5, 0.88), (10, 0.92)])
def test_the_interval_holds_the_truth_nearly_as_often_as_it_says(seeds, least):
    """The plain percentiles of the bootstrap hold it less often."""
    samples = np.random.default_rng(1).normal(size=(400, seeds))
    held = [low <= 0 <= high for low, high in map(ablate.interval, samples)]
    assert np.mean(held) > least


def test_runs_of_another_version_are_left_out(tmp_path, capsys):
    for base, count in (("old", 1), ("new", 2)):
        for seed in range(1, count + 1):
            kept_run(tmp_path, "", seed, [1.0] * 100, base)
    of_name = ablate.load(tmp_path / "kept")["core"]["CartPole-v1"]
    assert len(of_name[""]) in (1, 2) and {one.config["ablation"]["base"] for one in of_name[""].values()} == {"new"}
    assert "fewer runs are of another version" in capsys.readouterr().err


def test_build_it_says_what_the_kept_runs_say():
    text = " ".join((ROOT / "docs" / "build-it.md").read_text().split())
    of_name = ablate.load(report.RESULTS / "ablations")["core"]["CartPole-v1"]
    found = {name: ablate.compare(of_name[""], runs) for name, runs in of_name.items()}
    said = {name: [ablate.verdict(x.last), ablate.verdict(x.area)] for name, x in found.items()}
    for name, tag in (("core-2-last-layer", "core-2"), ("core-6", "core-6"), ("core-10", "core-10")):
        assert f"[no harm is seen](details.md#{tag})" in text and said[name] == ["no difference seen"] * 2
    assert "[one seed of ten](details.md#core-9) collapse on CartPole" in text
    assert found["core-9"].seeds == 10 and (found["core-9"].last < -100).sum() == 1
    assert "one seed of ten then ended at 220, the others at 480 to 500: [too few to say](details.md#core-1)" in text
    ends = sorted(round(run.result) for run in of_name["core-1-off-by-one"].values())
    assert len(ends) == 10 and ends[0] == 220 and 479 < ends[1] and said["core-1-off-by-one"][0] == "no difference seen"
    assert "CartPole learns [more slowly](details.md#core-5)" in text and said["core-5-one-step"][1] == "worse"
    assert "CartPole forgives it" in text and said["core-8"] == ["no difference seen"] * 2
    untouched = np.mean([run.result for run in of_name[""].values()])
    lost = {name: -x.last.mean() / untouched for name, x in found.items()}
    assert "[half of the return](details.md#core-13), more than anything else" in text
    assert 0.45 < lost["core-13"] < 0.55 and max(lost, key=lost.get) == "core-13"
    assert "the constant rate is [faster on the way](details.md#core-4), and no difference is seen in the end" in text
    assert said["core-4"] == ["no difference seen", "better"]
    assert "of ten seeds on CartPole three collapse" in text
    assert found["core-11"].seeds == 10 and (found["core-11"].last < -100).sum() == 3
    of_name = ablate.load(report.RESULTS / "ablations")["core"]["LunarLander-v3"]
    assert "LunarLander [learns less](details.md#core-1) from it" in text
    assert ablate.verdict(ablate.compare(of_name[""], of_name["core-1-one-env"]).area) == "worse"


def test_the_page_agrees_with_the_two_studies_where_the_kept_runs_do():
    text = (ROOT / "docs" / "ablations.md").read_text().split("Where we agree:")[1].split("Before you compare")[0]
    suites, said = ablate.load(report.RESULTS / "ablations")["core"], {}
    for game, of_name in suites.items():
        found = {name: ablate.compare(of_name[""], runs) for name, runs in of_name.items() if name}
        said[game] = {name: (ablate.verdict(x.last), ablate.verdict(x.area)) for name, x in found.items()}
        assert min(found, key=lambda name: found[name].last.mean()) == "core-13", "nothing else is worth as much"
        for name in ("core-2-last-layer", "core-7", "core-8"):
            assert said[game][name][0] == "no difference seen"
        if game == "CartPole-v1":  # one run of ten that collapsed
            assert said[game]["core-9"][0] == "worse" and np.sort(found["core-9"].last)[:2] @ [1, -1] < -100
        if game == "LunarLander-v3":
            assert "end more than 100 points lower" in text and found["core-11"].last.mean() < -100
        if game == "Acrobot-v1":
            assert "ends higher on Acrobot, by two points" in text and 1.5 < found["core-4"].last.mean() < 2.5
    ends = {name: [said[game][name][0] for game in said] for name in ("core-2", "core-4", "core-9")}
    assert ends["core-2"] == ["no difference seen", "no difference seen", "worse"]
    assert ends["core-4"] == ["no difference seen", "better", "no difference seen"]
    assert ends["core-9"] == ["worse", "no difference seen", "better"]
    areas = {name: [said[game][name][1] for game in said] for name in ("core-2", "core-4", "core-9")}
    assert [*said] == ["CartPole-v1", "Acrobot-v1", "LunarLander-v3"]
    assert areas["core-2"] == ["worse", "better", "worse"]
    assert areas["core-4"] == ["better", "better", "no difference seen"]
    assert areas["core-9"] == ["no difference seen", "better", "better"]
    assert [said[game]["plus-1"][0] for game in said] == ["better", "no difference seen", "no difference seen"]
    page = (ROOT / "docs" / "ablations.md").read_text()
    mean = np.mean([one.result for one in suites["LunarLander-v3"][""].values()])
    assert f"mean of the last 100 episodes: {mean:.0f};" in page
    assert said["LunarLander-v3"]["core-1-off-by-one"] == ("better", "better") and "`dones` off by one" in page


def test_the_page_says_of_halfcheetah_what_the_kept_runs_do():
    of_name = ablate.load(report.RESULTS / "ablations")["continuous"]["HalfCheetah-v4"]
    found = {name: ablate.compare(of_name[""], runs) for name, runs in of_name.items() if name}
    text = " ".join((ROOT / "docs" / "ablations.md").read_text().split())
    ends = np.sort([round(run.result) for runs in of_name.values() for run in runs.values()])
    low, high = ends[ends < 2000], ends[ends > 2000]
    assert f"ends at {low[0]:,} to {low[-1]:,}, as {low.size} of these {ends.size} do" in text
    assert f"ends at {high[0]:,} to {high[-1]:,}." in text
    untouched = [run.result > 2000 for run in of_name[""].values()]
    assert "Of the untouched runs one of five leaves it" in text and (sum(untouched), len(untouched)) == (1, 5)
    bold = {name: x for name, x in found.items() if ablate.verdict(x.last) != "no difference seen"}
    assert {"core-2", "core-11", "cont-6", "cont-8"} == {name for name, x in bold.items() if (x.last < 0).all()}
    assert {"plus-1"} == {name for name, x in bold.items() if (x.last > 0).all()} and len(bold) == 5
    assert found["core-11"].last.mean() < -500 and "and more than 500 on HalfCheetah" in text
    for seed, run in of_name["cont-7"].items():
        assert np.array_equal(run.returns, of_name[""][seed].returns), "all five pairs of runs are the same"
    elsewhere = report.RESULTS / "runs" / "ppo_continuous_action_numpy_bootstrap_truncated"
    same = {run.seed: run.result for run in report.find_runs([elsewhere])}
    # not a second proof, but the same seeds; on another processor the last bits differ, and then the ends a little
    assert all(abs(run.result / same[seed] - 1) < 0.02 for seed, run in of_name["plus-1"].items())


def test_the_page_says_of_hopper_what_the_kept_runs_do():
    of_name = ablate.load(report.RESULTS / "ablations")["continuous"]["Hopper-v4"]
    found = {name: ablate.compare(of_name[""], runs) for name, runs in of_name.items() if name}
    text = " ".join((ROOT / "docs" / "ablations.md").read_text().split())
    ends = np.sort([round(run.result) for run in of_name[""].values()])
    assert f"end closer together, at {ends[0]:,} to {ends[-1]:,} without a change" in text
    worse = {name for name, x in found.items() if ablate.verdict(x.last) == "worse"}
    assert worse == {"cont-5", "cont-6", "cont-8", "core-5-one-step"} and "Four changes cost every seed" in text
    assert all((found[name].last < -300).all() for name in worse), "hundreds of points"
    left = {name: np.mean([run.result for run in of_name[name].values()]) for name in worse}
    assert {name for name in worse if left[name] < 0.3 * ends.mean()} == worse - {"cont-6"}, "nearly all"
    diverged = [run.config["stopped_at"] for run in of_name["cont-5"].values()]
    assert f"all five runs diverge, the first at step {min(diverged):,}" in text and len(diverged) == 5
    assert f"one-step TD errors end {-found['core-5-one-step'].last.mean():,.0f} points lower on Hopper" in text
    assert (found["plus-1"].last > 0).all() and "all five seeds do better with it" in text
    for name in ("cont-4", "cont-7", "core-11"):
        assert ablate.verdict(found[name].last) == "no difference seen"


def test_the_page_says_of_walker2d_what_the_kept_runs_do():
    suite = ablate.load(report.RESULTS / "ablations")["continuous"]
    text = " ".join((ROOT / "docs" / "ablations.md").read_text().split())
    found = {}
    for env_id, of_name in suite.items():
        found[env_id] = {name: ablate.compare(of_name[""], runs) for name, runs in of_name.items() if name}
    of_name, walker = suite["Walker2d-v4"], found["Walker2d-v4"]
    assert {x.seeds for x in walker.values()} == {5} and len(walker) == 19, "all of the suite"
    ends = np.sort([round(run.result) for run in of_name[""].values()])
    assert f"five runs without a change end at {ends[0]:,} to {ends[-1]:,}, further apart than on Hopper" in text
    worse = {name for name, x in walker.items() if ablate.verdict(x.last) == "worse"}
    of_hopper = {name for name, x in found["Hopper-v4"].items() if ablate.verdict(x.last) == "worse"}
    assert worse == of_hopper | {"cont-3", "cont-2"} and "six changes cost every seed: the four of Hopper" in text
    assert all((walker[name].last < 0).all() for name in worse)
    elsewhere = {ablate.verdict(found[env_id]["cont-3"].last) for env_id in ("HalfCheetah-v4", "Hopper-v4")}
    assert elsewhere == {"no difference seen"} and "of which nothing is seen on the other two tasks" in text
    assert sum("stopped_at" in run.config for run in of_name["cont-5"].values()) == 1
    assert "of `cont-5` one run of five diverges" in text
    ends = np.sort([round(run.result) for run in of_name["core-5"].values()])
    assert f"three seeds end at {ends[0]:,} to {ends[2]:,} and two at {ends[3]:,} and {ends[4]:,}" in text
    assert f"on Hopper, and {-walker['core-5-one-step'].last.mean():,.0f} on Walker2d" in text
    for name in ("cont-4", "cont-7", "core-11"):
        assert ablate.verdict(walker[name].last) == "no difference seen"
    assert (walker["plus-1"].last > 0).all()
    second = {name for name, x in walker.items() if any(run is not of_name[""][run.seed] for run in x.beside)}
    assert len(second) == 7 and "one of its seven rows" in text
    ends = sorted(round(run.result) for run in walker["core-7-rollout"].beside)
    assert f"the same five untouched seeds to {ends[0]:,} to {ends[4]:,}" in text
    seeds = round(of_name[""][1].result), round(walker["core-7-rollout"].beside[0].result)
    assert "untouched seed 1 ends at {:,} on one and at {:,} on another".format(*seeds) in text
    others = {}
    for name in second:
        others[name] = np.array([run.result - of_name[""][seed].result for seed, run in sorted(of_name[name].items())])
        said = [ablate.verdict(x) for x in (others[name], walker[name].last)]
        expected = {"core-7-rollout": ["better", "no difference seen"], "cont-2": ["no difference seen", "worse"]}
        assert said == expected.get(name, said[:1] * 2), name
    for name in ("core-7-rollout", "cont-2"):
        said = (f"{x.mean():+.0f} [{low:+.0f}, {high:+.0f}]" for x in (others[name], walker[name].last)
                for low, high in [ablate.interval(x)])  # fmt: skip
        assert "{} instead of {}".format(*said).replace("-", "−") in text
    page = " ".join((ROOT / "docs" / "how-an-episode-ends.md").read_text().split())
    plus = [found[env_id]["plus-1"].last for env_id in ("Hopper-v4", "Walker2d-v4")]
    said = (f"{x.mean():.0f} [{low:.0f}, {high:.0f}]" for x in plus for low, high in [ablate.interval(x)])
    assert "every seed does better with it](ablations.md#continuous-actions): by {} and by {}".format(*said) in page


def test_the_page_says_of_breakout_what_the_kept_runs_do():
    of_name = ablate.load(report.RESULTS / "ablations")["atari"]["BreakoutNoFrameskip-v4"]
    found = {name: ablate.compare(of_name[""], runs) for name, runs in of_name.items() if name}
    text = " ".join((ROOT / "docs" / "ablations.md").read_text().split())
    ends = {name: np.sort([run.result for run in runs.values()]) for name, runs in of_name.items()}
    assert len(found) == 9
    assert {x.seeds for x in found.values()} == {5}
    assert "which is {:.1f} to {:.1f} without a change".format(*ends[""][[0, 4]]) in text
    assert (
        "(`atari-2`), by which the run sees a quarter as much of the game, ends at {:.1f} to {:.1f}".format(
            *ends["atari-2"][[0, 4]]
        )
        in text
    )
    assert "(`atari-3`) at {:.1f} to {:.1f}".format(*ends["atari-3"][[0, 4]]) in text
    worse = {name for name, x in found.items() if ablate.verdict(x.last) == "worse"}
    assert worse == {"atari-2", "atari-3", "atari-6", "atari-8"} and all((found[name].last < 0).all() for name in worse)
    means = [found[name].last.mean() for name in ("atari-6", "atari-8", "atari-3", "atari-2")]
    assert means == sorted(means, reverse=True)
    assert "(`atari-8`), which ends at {:.1f} to {:.1f}".format(*ends["atari-8"][[0, 4]]) in text
    assert (ends["atari-1"] > 15).sum() == 4 and "four seeds of five end at 15 or more" in text
    assert ablate.verdict(found["atari-1"].last) == "better"
    below = ends["atari-7"][:3]
    assert "three end below their untouched runs, at {:.1f} to {:.1f}".format(*below[[0, 2]]) in text
    assert sorted(found["atari-7"].last)[2] < -1 and abs(sorted(found["atari-7"].last)[3]) < 1
    for name in ("atari-4", "atari-5", "atari-7", "atari-9"):
        assert ablate.verdict(found[name].last) == "no difference seen"
    assert found["atari-5"].last.mean() > 0 and found["atari-9"].last.mean() > 0


def test_the_page_says_of_the_lstm_what_the_kept_runs_do():
    of_name = ablate.load(report.RESULTS / "ablations")["lstm"]["BreakoutNoFrameskip-v4"]
    found = {name: ablate.compare(of_name[""], runs) for name, runs in of_name.items() if name}
    text = " ".join((ROOT / "docs" / "ablations.md").read_text().split())
    ends = {name: np.sort([run.result for run in runs.values()]) for name, runs in of_name.items()}
    assert {name: (ablate.verdict(x.last), x.seeds) for name, x in found.items()} == {
        "lstm-1": ("better", 5), "lstm-3": ("no difference seen", 5),
        "lstm-4": ("worse", 5), "lstm-5": ("no difference seen", 5),
    }  # fmt: skip
    four = *ends["lstm-4"][[0, 4]], *ends[""][[0, 4]]
    assert (found["lstm-4"].last < 0).all() and "at {:.1f} to {:.1f} instead of {:.1f} to {:.1f}".format(*four) in text
    one = found["lstm-1"].last
    assert one.min() > 0 and f"in every seed, by {one.min():.1f} to {one.max():.1f}" in text
    five = np.sort(np.abs(found["lstm-5"].last))
    assert found["lstm-5"].last.min() == -five[4] and five[3] < five[4] / 2
    assert f"four seeds within {five[3]:.1f} of the untouched script, and in one at {ends['lstm-5'][0]:.1f}" in text
    assert found["lstm-3"].last.mean() > 0 and "(`lstm-3`) the five seeds say nothing; the mean is higher" in text


def test_the_readme_and_the_changelog_count_the_details_that_are_measured():
    page = (ROOT / "docs" / "details.md").read_text()
    sections = re.findall(
        r'^### <a id="(?:core|atari|cont|lstm|multi)-\d+"></a>.*?(?=^##)', page, re.MULTILINE | re.DOTALL
    )
    worths = sum("\nWorth: instead, " in section for section in sections)
    assert len(sections) == 37
    assert f"[what {worths} are worth]" in (ROOT / "README.md").read_text()
    assert f" {worths} of 37 details are measured" in " ".join((ROOT / "CHANGELOG.md").read_text().split())


def test_pictures_are_logarithmic_only_where_one_effect_would_squeeze_the_others(monkeypatch):
    scales = {}

    def look(figure, path):
        for axis in figure.axes:
            scales[axis.get_title().partition(",")[0]] = axis.get_xscale(), "logarithmic" in axis.get_xlabel()

    monkeypatch.setattr(ablate.report, "save", look)
    kept = ablate.load(report.RESULTS / "ablations")
    for environments in (kept["core"], {"HalfCheetah-v4": kept["continuous"]["HalfCheetah-v4"]}):
        ablate.forest(environments, None)
    assert scales["CartPole-v1"] == scales["Acrobot-v1"] == ("symlog", True)
    assert scales["HalfCheetah-v4"] == ("linear", False), "all intervals are about as wide there"


def test_pages_are_what_the_kept_runs_say():
    for path, text in ablate.pages(ablate.KEPT).items():
        assert path.read_text() == text, f"{path.name}: run `python benchmark/ablate.py report`"
