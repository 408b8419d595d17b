"""benchmark/ablate.py and docs/build/ablation_tables.py: diffs apply and do what flags do, and runs become tables."""

import json
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import ablate
import ablation_tables
import gymnasium as gym
import intervals
import kept as tables
import numpy as np
import pages
import ppo
import pytest
import torch
import tyro
from command_line import UserError
from fake_runs import new_run
from helpers import load_script
from runs import version

ROOT = Path(__file__).parents[2]
ABLATIONS = ablate.all_ablations()
SUITES = ablate.manifest()["suites"]


def load(script, source, folder):
    """The script with this source as a module."""
    path = folder / f"{script}.py"
    path.write_text(source)
    return load_script(path)


# ------------------------------------------------------------------------------------------------------------ The diffs
def test_every_diff_applies_and_changes_more_than_comments():
    for ablation in ABLATIONS.values():
        for script, changes in ablate.hunks(ablation.diff).items():
            compile(ablate.changed(ablation, script), f"{script} without {ablation.name}", "exec")
            for before, after in changes:
                code = [[line.partition("#")[0].rstrip() for line in part.splitlines()] for part in (before, after)]
                assert code[0] != code[1], ablation.name


def test_manifest_and_folder_agree():
    diffs = {path.stem for path in ablate.ABLATIONS.glob("*.diff")}
    assert diffs == {name for name, one in ABLATIONS.items() if one.diff.is_file()}
    for name, one in ABLATIONS.items():
        assert one.flag or name in diffs
        assert name.startswith(one.tag)
    for suite in SUITES.values():
        for name in suite["ablations"]:
            assert not ABLATIONS[name].idle
            assert ABLATIONS[name].flag or suite["script"] in ablate.hunks(ABLATIONS[name].diff)


def test_a_diff_as_git_writes_it_applies(monkeypatch, tmp_path):
    """Made as manifest.toml says, of an edit in two scripts."""
    shutil.copytree(ROOT / "cleanrl", tmp_path / "cleanrl", ignore=shutil.ignore_patterns("__pycache__"))
    git = ["git", "-C", str(tmp_path), "-c", "user.name=me", "-c", "user.email=me@example.org"]
    for words in (["init", "--quiet"], ["add", "cleanrl"], ["commit", "--quiet", "--message", "before"]):
        subprocess.run([*git, *words], check=True)
    edited = {}
    for script in ("ppo", "ppo_atari"):
        path = tmp_path / "cleanrl" / f"{script}.py"
        edited[script] = path.read_text().replace("eps=1e-5", "eps=1e-8")
        path.write_text(edited[script])
    written = subprocess.run([*git, "diff", "-U1", "cleanrl"], check=True, capture_output=True, text=True).stdout
    (tmp_path / "core-3.diff").write_text(written)
    monkeypatch.setattr(ablate, "ABLATIONS", tmp_path)
    for script, text in edited.items():
        assert ablate.changed(ABLATIONS["core-3"], script) == text


def test_a_diff_that_no_longer_fits_is_named(monkeypatch, tmp_path):
    diff = (ablate.ABLATIONS / "core-3.diff").read_text()
    (tmp_path / "core-3.diff").write_text(diff.replace("eps=1e-5", "eps=1e-6"))
    monkeypatch.setattr(ablate, "ABLATIONS", tmp_path)
    with pytest.raises(UserError, match=r"are in ppo\.py 0 times; make it anew"):
        ablate.changed(ABLATIONS["core-3"], "ppo")
    (tmp_path / "core-3.diff").write_text(diff)
    twice = 2 * (ROOT / "cleanrl" / "ppo.py").read_text()
    (tmp_path / "cleanrl").mkdir()
    (tmp_path / "cleanrl" / "ppo.py").write_text(twice)
    monkeypatch.setattr(ablate, "ROOT", tmp_path)
    with pytest.raises(UserError, match=r"are in ppo\.py 2 times; make it anew"):
        ablate.changed(ABLATIONS["core-3"], "ppo")


def weights_after_two_updates(script, **arguments):
    small = {"total_timesteps": 128, "num_envs": 2, "num_steps": 32, "learning_rate": 0.01, "max_grad_norm": 0.05}
    folder = script.main(script.Args(**small | arguments, seed=3, checkpoints=1))
    state = torch.load(folder / "checkpoints" / "2.pt", weights_only=True)["model"]
    return torch.cat([x.flatten() for x in state.values()])


@pytest.mark.parametrize(
    "name", [name for name, one in ABLATIONS.items() if one.flag and one.diff.is_file() and not one.on]
)
def test_flag_and_diff_do_the_same(name, in_tmp_path):
    """Two updates end with the same weights, which are not those of the untouched script."""
    typed = tyro.cli(ppo.Args, args=ABLATIONS[name].flag.split())
    arguments = {key: value for key, value in vars(typed).items() if value != getattr(ppo.Args, key)}
    changed = weights_after_two_updates(load("ppo", ablate.changed(ABLATIONS[name], "ppo"), in_tmp_path))
    torch.testing.assert_close(changed, weights_after_two_updates(ppo, **arguments), rtol=1e-4, atol=1e-5)
    assert (changed - weights_after_two_updates(ppo)).abs().max() > 1e-3


BOTH = []
for torch_script, numpy_script in (("ppo", "ppo_numpy"), ("ppo_continuous_action", "ppo_continuous_action_numpy")):
    for name, one in ABLATIONS.items():
        if {torch_script, numpy_script} <= ablate.hunks(one.diff).keys():
            BOTH.append((torch_script, numpy_script, name))


@pytest.mark.parametrize("torch_script, numpy_script, name", BOTH)
def test_gradients_by_hand_follow_the_change(torch_script, numpy_script, name, tmp_path):
    """Loss and networks of the changed numpy script have the gradient that autograd finds in the changed torch one."""
    theirs = load(torch_script, ablate.changed(ABLATIONS[name], torch_script), tmp_path)
    ours = load(numpy_script, ablate.changed(ABLATIONS[name], numpy_script), tmp_path)
    rng = np.random.default_rng(1)
    action_space = gym.spaces.Discrete(3) if torch_script == "ppo" else gym.spaces.Box(-1, 1, (3,))
    envs = SimpleNamespace(observation_space=gym.spaces.Box(-1, 1, (5,)), action_space=action_space)
    args = ours.Args(ent_coef=0.01)
    agent = ours.Agent(envs, args, np.float64)
    M = 64
    agent.parameters.vector += 0.3 * rng.normal(size=agent.parameters.vector.shape)
    obs = rng.normal(size=(M, 5))
    actions = rng.integers(3, size=M) if torch_script == "ppo" else rng.normal(size=(M, 3))
    log_prob, _, value = agent.evaluate_actions(obs, actions)
    rollout = [log_prob + 0.3 * rng.normal(size=M), value + 0.3 * rng.normal(size=M), rng.normal(size=M)]
    mb = ours.Batch(obs, actions, *rollout, value + rng.normal(size=M))
    d_log_prob, d_entropy, d_value, _ = ours.ppo_loss(*agent.evaluate_actions(obs, actions), mb, 0.2, args)
    agent.backward(d_log_prob, d_entropy, d_value)
    twin = theirs.Agent(envs, theirs.Args()).double()
    for key, parameter in twin.named_parameters():  # a shared weight has its first name alone
        parameter.data = torch.from_numpy(agent.parameters[key].copy())
    batch = theirs.Batch(*[torch.from_numpy(x) for x in mb])
    outputs = twin.evaluate_actions(batch.obs, batch.actions)
    theirs.ppo_loss(*outputs, batch, 0.2, theirs.Args(ent_coef=0.01))[0].backward()
    checked = 0
    for key, parameter in twin.named_parameters():
        gradient = parameter.grad.numpy()
        assert np.abs(agent.gradients[key] - gradient).max() <= 1e-6 * np.abs(gradient).max(), key
        checked += gradient.size
    assert checked == agent.gradients.vector.size


# ------------------------------------------------------------------------------------------------------------- The runs
@pytest.fixture
def ablate_here(tool_here, tmp_path, monkeypatch):
    """ablate.py as typed, with short runs, which keeps them and writes its pages below tmp_path."""
    docs = tmp_path / "docs"
    results = tmp_path / "results"
    docs.mkdir()
    shutil.copy(ROOT / "docs" / "ablations.md", docs)
    (docs / "details.md").write_text(
        "<!-- worth core-3 -->\n<!-- end of worth -->\n<!-- worth core-6 -->\n<!-- end of worth -->\n"
    )
    monkeypatch.setattr(ablation_tables, "DOCS", docs)
    monkeypatch.setattr(ablation_tables, "RESULTS", results)
    monkeypatch.setattr(ablate, "RESULTS", results)
    monkeypatch.setitem(SUITES["core"], "arguments", "--total-timesteps 1024 --checkpoints 1")

    def call(*words, status=0):
        return tool_here(ablate, *words, status=status)

    return call


def test_runs_are_made_environment_by_environment_and_there_seed_by_seed(in_tmp_path):
    only = ["core-3", "core-1-one-env", "plus-1"]
    suite = ablate.chosen(ablate.Args("run", only=only, env_ids=["Acrobot-v1", "CartPole-v1"], num_seeds=2))
    jobs = ablate.make_jobs(suite, anew=True)
    places = [(env_id, seed) for env_id in ("Acrobot-v1", "CartPole-v1") for seed in (1, 2)]
    expected = [(*place, name) for place in places for name in ("untouched", *only)]
    assert [(job.env_id, job.seed, job.point) for job in jobs] == expected
    untouched, diff, flag, on = jobs[:4]
    scripts = ["ppo_numpy", "ppo_numpy-without-core-3", "ppo_numpy", "ppo_numpy"]
    assert [job.script.stem for job in jobs[:4]] == scripts
    assert diff.script.read_text() == ablate.changed(ABLATIONS["core-3"], "ppo_numpy")
    assert flag.arguments["exp_name"] == "ppo_numpy-without-core-1-one-env"
    assert (untouched.arguments["num_envs"], flag.arguments["num_envs"]) == (4, 1)
    assert on.arguments["exp_name"] == "ppo_numpy-with-plus-1" and on.arguments["bootstrap_truncated"]


def test_from_runs_to_pages(ablate_here, tmp_path, monkeypatch):
    words = ["--env-ids", "CartPole-v1", "--num-seeds", "5", "--only", "core-3"]
    stdout, _ = ablate_here("run", *words, "--workers", "2")
    names = [line.split()[1] for line in stdout.splitlines() if ": running" in line]
    assert names == ["untouched", "core-3"] * 5  # every script gets its first seed before its second
    runs = {path.name.split("__")[1] for path in tmp_path.glob("runs/ablations/runs/*__*")}
    assert runs == {"ppo_numpy", "ppo_numpy-without-core-3"}
    assert "10 done, 4 queued" in ablate_here("status", *words[:3], "7", *words[4:])[0]
    assert "running" not in ablate_here("run", *words)[0]  # typed again, there is nothing to do
    ran = tmp_path / "runs" / "ablations" / "scripts" / "ppo_numpy.py"
    ran.write_text(f"{ran.read_text()}\n")  # as if the script had been edited since
    before = ran.read_text()
    ablate_here("status", *words)
    assert ran.read_text() == before
    shutil.copytree(ROOT / "cleanrl", tmp_path / "edited" / "cleanrl")
    now = tmp_path / "edited" / "cleanrl" / "ppo_numpy.py"
    now.write_text(now.read_text().replace("\nclass ", "\n# Edited after these runs\nclass ", 1))
    monkeypatch.setattr(ablate, "ROOT", tmp_path / "edited")
    for added in (10, 0):
        assert f"{added} runs added" in ablate_here("keep", *words)[0]
    of_ablations = tables.kept_runs("ablations", tmp_path / "results")
    assert {run.ablation["base"] for run in of_ablations} == {version(ran)}
    untouched = {run.seed: run.name for run in of_ablations if not run.ablation["name"]}
    changed = [run for run in of_ablations if run.ablation["name"]]
    assert len(changed) == 5 and all(run.ablation["beside"] == untouched[run.seed] for run in changed)
    kept = tables.read_runs(tmp_path / "results")
    assert len(kept) == 10 and set(kept["script"]) == {"ppo_numpy"}
    assert str(tmp_path) not in kept.to_json() and str(ROOT) not in kept.to_json()
    ablation_tables.report()
    page = (tmp_path / "docs" / "ablations.md").read_text()
    details = (tmp_path / "docs" / "details.md").read_text()
    section = page.split("### CartPole-v1")[1].split("### Acrobot-v1")[0]
    rows = [row.split(" | ") for row in section.splitlines() if row.startswith("| [")]
    assert [row[1] for row in rows] == ["ε = 1e-8"] and rows[0][-1] == "5 |"
    assert "ε = 1e-8: [CartPole-v1 " in details and "<!-- worth core-6 -->\n\nNo ablation.\n" in details
    assert (tmp_path / "results" / "ablations_core.svg").stat().st_size > 1000


def test_ones_own_runs_are_reported_beside_the_untouched_script(ablate_here, tmp_path):
    words = ["--env-ids", "CartPole-v1", "--num-seeds", "1", "--only", "core-3", "--total-timesteps", "2048"]
    ablate_here("run", *words)
    configs = [json.loads(path.read_text()) for path in tmp_path.glob("runs/ablations/runs/*/config.json")]
    assert [config["arguments"]["total_timesteps"] for config in configs] == [2048, 2048]  # not the suite's
    stdout, _ = ablate_here("report", *words)
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in stdout.splitlines() if line.startswith("│")]
    assert [row[:2] for row in rows] == [["CartPole-v1", "untouched"], ["CartPole-v1", "core-3, ε = 1e-8"]]
    assert float(rows[1][-1].replace("−", "-")) == pytest.approx(float(rows[1][2]) - float(rows[0][2]), abs=0.011)
    words[1] = "Acrobot-v1"
    assert "in no environment has a run of the untouched" in ablate_here("report", *words, status=1)[1]


def test_what_is_kept_of_a_run_that_broke(ablate_here, tmp_path, monkeypatch):
    """The loss of the changed script is not finite from update 6 on."""
    monkeypatch.setattr(ablate, "ABLATIONS", tmp_path / "ablations")
    monkeypatch.setitem(SUITES["core"], "arguments", "--total-timesteps 8192 --checkpoints 8")
    shutil.copytree(ROOT / "benchmark" / "ablations", tmp_path / "ablations")
    changed = ablate.changed(ABLATIONS["core-3"], "ppo_numpy")
    lines = changed.splitlines(keepends=True)
    (place,) = [i for i, line in enumerate(lines) if "# [core-4]" in line]
    change = 'optimizer.param_groups[0]["lr"] *= 1e60 if update == 6 else 1.0'
    hunk = f"@@ -1,2 +1,3 @@\n {lines[place]}+        {change}\n {lines[place + 1]}"
    diff = (tmp_path / "ablations" / "core-3.diff").read_text()
    (tmp_path / "ablations" / "core-3.diff").write_text(diff + hunk)
    words = ["--num-seeds", "1", "--env-ids", "CartPole-v1", "--only", "core-3"]
    ablate_here("run", *words, status=1)
    stdout, _ = ablate_here("keep", *words)
    assert "1 runs added" in stdout and "left out: 1 diverged; --broken" in stdout
    assert "core-3, ε = 1e-8" in ablate_here("report", *words)[0]  # what it had until then counts
    stdout, _ = ablate_here("keep", *words, "--broken")
    assert "1 runs added" in stdout and "left out" not in stdout
    ablation_tables.report()
    page = (tmp_path / "docs" / "ablations.md").read_text()
    (row,) = [x for x in page.split("### CartPole-v1")[1].split("### ")[0].splitlines() if x.startswith("| [core-3]")]
    assert "1, 1 diverged from step" in row
    (until,) = ablation_tables.load()["core"]["CartPole-v1"]["core-3"].runs
    assert until.steps[-1] == until.stopped_at < 8192
    assert until.result == until.returns[-100:].mean()


@pytest.mark.parametrize(
    "words, line",
    [
        (["run", "--suite", "cor"], "--suite cor: there is none of this name; there are core, continuous"),
        (["run", "--only", "core-99"], "core-99: not in the suite"),
        (["run", "--workers", "0"], "--num-seeds and --workers: must be 1 or more"),
        (["run", "--num-seeds", "0"], "--num-seeds and --workers: must be 1 or more"),
        (["status", "--env-ids", "Foo-v0"], "Foo-v0: not in the suite, which has CartPole-v1"),
        (["status"], "runs/ablations: holds no runs; make them by"),
    ],
)
def test_a_mistake_ends_in_one_line_and_makes_nothing(ablate_here, words, line, tmp_path):
    _, stderr = ablate_here(*words, status=2)
    assert line in stderr and stderr.count("\n") == 1
    assert not (tmp_path / "runs").exists()


# --------------------------------------------------------------------------------------------------------- The measures
def kept(folder, name, seed, returns, base="abc", made_by="", **more):
    """Keeps a run of an ablation on CartPole-v1, of 1 step an episode."""
    run = new_run(f"CartPole-v1__{name or 'ppo_numpy'}__{seed}__{base}{made_by}", returns, seed=seed)
    run.version = made_by or f"{base} {name}"
    run.ablation = {"suite": "core", "name": name, "base": base} | more
    tables.append_runs([run], "ablations", folder)


@pytest.fixture
def results(tmp_path, monkeypatch):
    monkeypatch.setattr(ablation_tables, "RESULTS", tmp_path)
    return tmp_path


def test_differences_are_those_of_runs_with_the_same_seed(results):
    for seed in range(1, 7):
        kept(results, "", seed, [0.0] * 50 + [100.0 * seed] * 100)
        if seed < 6:
            kept(results, "core-3", seed, [0.0] * 50 + [100.0 * seed - 10 - seed] * 100)
            kept(results, "core-8", seed, [0.0] * 50 + [100.0 * seed + (-1) ** seed] * 100)
    suites = ablation_tables.load()
    cells = suites["core"]["CartPole-v1"]
    assert cells["core-3"].last.tolist() == [-11, -12, -13, -14, -15]
    _, low, high = intervals.mean_interval(cells["core-3"].last)
    assert -15 <= low < -13 < high <= -11  # the seeds' own spread, which is ten times as large, stays out
    assert -15 / 2 < cells["core-3"].area.mean() < -11 / 3  # the curve has half of the return half of the time
    row = ablation_tables.results_table(cells).splitlines()[3]
    assert row.startswith("| [core-3](details.md#core-3) | ε = 1e-8 | **−13.0 [−14.8, −11.2]** |")
    assert ablation_tables.worth("core-3", suites) == "ε = 1e-8: [CartPole-v1 ▼ −13.0](ablations.md)\n"
    assert ablation_tables.worth("core-8", suites) == "the ratio is not clipped: [CartPole-v1 ≈](ablations.md)\n"
    assert ablation_tables.worth("core-6", suites) == "No ablation.\n"
    assert "| ε = 1e-8 | ▼ −13.0 |" in ablation_tables.heat_map(suites)
    assert "0 of these 2 intervals" in ablation_tables.heat_map(suites)


def test_a_change_is_compared_with_the_untouched_run_of_its_machine(results):
    """The second machine's untouched run of a seed is kept beside the first's."""
    for seed in (1, 2):
        kept(results, "", seed, [10.0] * 100)
        kept(results, "core-3", seed, [12.0] * 100)
    kept(results, "", 1, [20.0] * 100, made_by="abc ")
    kept(results, "core-8", 1, [21.0] * 100, beside="CartPole-v1__ppo_numpy__1__abcabc ")
    cells = ablation_tables.load()["core"]["CartPole-v1"]
    assert [cells[name].last.tolist() for name in ("", "core-3", "core-8")] == [[0.0, 0.0], [2.0, 2.0], [1.0]]
    seeds = [row.rpartition(" | ")[2] for row in ablation_tables.results_table(cells).splitlines()[2:]]
    assert seeds == ["2 |", "1, another machine |", "2 |", "1, another machine |"]


def test_area_is_the_mean_of_the_curve(results):
    kept(results, "", 1, [10.0] * 400)
    kept(results, "core-3", 1, [0.0] * 200 + [10.0] * 200)
    cells = ablation_tables.load()["core"]["CartPole-v1"]
    # 0 up to step 200, rising over 100 episodes, then 10: on average 10 · (50 + 100) / 400
    assert cells["core-3"].area[0] == pytest.approx(10 * 150 / 400 - 10, abs=0.1)


def test_runs_of_fewer_kinds_are_left_out(results, capsys):
    """Another length, another version of the script, and a diff that was mended."""
    for seed in range(1, 4):
        kept(results, "", seed, [1.0] * 100)
        kept(results, "core-3", seed, [2.0] * 100, made_by="mended" if seed < 3 else "older")
    kept(results, "", 4, [5.0] * 200)
    kept(results, "", 5, [5.0] * 100, base="old")
    cells = ablation_tables.load()["core"]["CartPole-v1"]
    assert [run.seed for run in cells[""].runs] == [1, 2, 3]
    assert [run.seed for run in cells["core-3"].runs] == [1, 2]
    assert cells["core-3"].last.tolist() == [1.0, 1.0]
    assert capsys.readouterr().out.count("left out") == 2


def test_words_for_differences():
    assert ablation_tables.in_words(np.array([1.0, 2.0])) == "+1.50", "too few seeds for an interval"
    assert [ablation_tables.number(x) for x in (-0.001, 12.34, -1234.5, 99.96)] == ["0.00", "+12.3", "−1234", "+100.0"]
    samples = ([1, 2, 3, 4, 5], [-1, -2, -3, -4, -5], [-1, 0, 2, 3, 4], [1, 2])
    found = [ablation_tables.seen_in(np.array(sample, float)) for sample in samples]
    assert found == ["better", "worse", "no difference seen", ""]


WORSE = np.array([-5.0, -6.0, -7.0, -8.0, -9.0])
ALIKE = np.array([-2.0, -1.0, 0.0, 1.0, 3.0])


def test_a_picture_has_dots_for_the_last_episodes_and_rings_for_the_area_with_their_intervals():
    _, (axis, wide) = pages.pictures().subplots(1, 2)
    few = np.array([1.0, 2.0])
    cells = [ablation_tables.Cell([], [], WORSE, ALIKE), None, ablation_tables.Cell([], [], few, -WORSE)]
    ablation_tables.draw_column(axis, cells)
    found = []
    for interval, dot in zip(axis.lines[1::2], axis.lines[2::2]):
        ends = (*interval.get_xdata(), *dot.get_xdata(), *dot.get_ydata())
        found.append([dot.get_color(), interval.get_color(), dot.get_fillstyle(), *ends])
    expected = []
    for differences, color, style, y in (
        (WORSE, "tab:red", "full", -0.15),
        (ALIKE, "#808080", "none", 0.15),
        (few, "#808080", "full", 1.85),
        (-WORSE, "tab:blue", "none", 2.15),
    ):
        mean, low, high = intervals.mean_interval(differences)
        if differences is few:
            low = high = mean
        expected.append([color, color, style, low, high, mean, y])
    assert found == expected
    assert axis.get_xscale() == "linear"
    ablation_tables.draw_column(wide, [*cells, ablation_tables.Cell([], [], 1000 * WORSE, ALIKE)])
    assert wide.get_xscale() == "symlog" and wide.get_xlim()[0] < -9000


def test_a_row_of_a_picture_has_the_name_of_its_ablation(monkeypatch, tmp_path):
    figures = []
    columns = []
    monkeypatch.setattr(ablation_tables, "save_picture", lambda figure, path: figures.append(figure))
    monkeypatch.setattr(ablation_tables, "draw_column", lambda axis, cells: columns.append(cells))
    clip, epsilon, whole = (ablation_tables.Cell([None] * seeds, [], WORSE, WORSE) for seeds in (5, 5, 7))
    suite = {"cue:Cue-v0": {"core-8": clip, "core-3": epsilon}, "Acrobot-v1": {"core-7": whole, "core-3": epsilon}}
    ablation_tables.forest(suite, tmp_path / "forest.svg")
    left, right = figures[0].axes
    assert [axis.get_title() for axis in (left, right)] == ["Cue-v0, 5 seeds", "Acrobot-v1, 5 to 7 seeds"]
    labels = [f"{name}  {ABLATIONS[name].title}" for name in ("core-3", "core-7", "core-8")]
    assert [label.get_text() for label in left.get_yticklabels()] == labels
    assert columns == [[epsilon, None, clip], [epsilon, whole, None]]
    assert left.get_ylim() == (2.5, -0.5)  # the first one above


def empty_blocks(page, kind):
    """Leaves nothing in a page's blocks of this kind, so that each must be filled."""
    kept = []
    is_inside = False
    for line in page.read_text().splitlines():
        if line == f"<!-- end of {kind} -->":
            is_inside = False
        if not is_inside:
            kept.append(f"{line}\n")
        if line.startswith(f"<!-- {kind} "):
            is_inside = True
    page.write_text("".join(kept))


def test_the_committed_page_is_what_the_kept_runs_say(tmp_path, monkeypatch):
    shutil.copytree(ROOT / "docs", tmp_path / "docs", ignore=shutil.ignore_patterns("videos", "images"))
    (tmp_path / "results").symlink_to(ROOT / "benchmark" / "results")
    monkeypatch.setattr(ablation_tables, "DOCS", tmp_path / "docs")
    drawn = []
    monkeypatch.setattr(ablation_tables, "forest", lambda suite, path: drawn.append(path.name))
    for name, kind in (("ablations.md", "ablations"), ("details.md", "worth")):
        empty_blocks(tmp_path / "docs" / name, kind)
    ablation_tables.report()
    assert drawn == [f"ablations_{name}.svg" for name in SUITES]
    for name in ("ablations.md", "details.md"):
        page = (ROOT / "docs" / name).read_text()
        assert (tmp_path / "docs" / name).read_text() == page, f"{name}: run `python docs/build/ablation_tables.py`"
