"""docs/build/result_tables.py: the tables of the pages, from the kept runs and the measured speeds."""

from types import SimpleNamespace

import memory
import numpy as np
import pages
import pytest
import report
import result_tables
import torch
from command_line import UserError
from fake_runs import SCRIPT, cells_of, make_run, make_seeds, new_run
from kept import RESULTS, append_runs, kept_runs
from runs import ROOT, find_runs, release
from throughput import launch_rows, speed_rows


def test_published_numbers_stand_beside_runs_of_as_many_steps(tmp_path):
    sizes = {"env_id": "CartPole-v1", "num_envs": 500, "num_steps": 500, "updates": 7813}  # two updates of 250,000
    make_seeds(tmp_path / "runs", [490.0], total_timesteps=500_000, **sizes)
    make_seeds(tmp_path / "runs", [300.0], total_timesteps=250_000, number=2, **sizes)
    make_seeds(tmp_path / "runs", [500.0], total_timesteps=750_000, number=3, **sizes)
    header, *rows = result_tables.result_cells(result_tables.rows_of(find_runs([tmp_path / "runs"]))["ppo"])
    found = {row[0]: dict(zip(header, row)) for row in rows}
    label = "CartPole-v1, num_envs=500, num_steps=500"
    assert found[f"{label}, 500,000 steps"]["CleanRL, Nov 2023"] == "490.04 ± 6.12"
    assert found[f"{label}, 250,000 steps"]["CleanRL, Nov 2023"] == "–"
    assert found[f"{label}, 750,000 steps"]["CleanRL, Nov 2023"] == "–"


def test_every_published_number_has_a_column():
    published = result_tables.published_results()
    of_others = {"script", "steps", "environment", "minutes, Nov 2023"}
    assert {name for row in published.values() for name in row} - of_others == set(result_tables.PUBLISHED)
    hopper = published["ppo_continuous_action", "Hopper-v4"]
    assert hopper["CleanRL, first v2 table"] == "2231.12 ± 656.72"
    assert result_tables.published_range(hopper) == "2,050 to 2,520"  # the best is openai/baselines' on Hopper-v2


def test_kept_runs_make_the_same_table_as_their_folders(tmp_path):
    make_seeds(tmp_path / "runs", [10.0, 12.0, 11.0, 14.0, 9.0])
    found = find_runs([tmp_path / "runs"])
    append_runs(found, results=tmp_path / "kept")
    tables = []
    for runs in (found, kept_runs("results", tmp_path / "kept")):
        tables.append(result_tables.result_cells(result_tables.rows_of(runs)["ppo"]))
    assert tables[1][0][1] == f"ours, release {release()}" and tables[0][1] == tables[1][1]


def test_tables_name_the_releases_of_kept_runs(tmp_path):
    make_seeds(tmp_path / "runs", [10.0])
    make_seeds(tmp_path / "runs", [20.0], script=SCRIPT.replace("1000", "2000"), number=2)
    runs = find_runs([tmp_path / "runs"])
    runs[0].release = "0.2"
    header, row = result_tables.result_cells(result_tables.rows_of(runs[:1])["ppo"])
    assert header[1] == "ours, release 0.2" and row[0] == "Toy-v0"
    labels = [row.label for row in result_tables.rows_of(runs)["ppo"]]
    assert sorted(labels) == ["Toy-v0, release 0.2", f"Toy-v0, version {runs[1].version}"]  # and a folder
    runs[1].release = "0.3"
    (only,) = result_tables.rows_of(runs)["ppo"]  # the newer one
    assert only.runs == runs[1:] and only.label == "Toy-v0"
    other = [new_run("a", [1.0]), new_run("b", [1.0, 1.0]), new_run("c", [1.0])]
    other[1].release = other[2].release = "0.3"
    other[2].settings = {"gamma": 0.9}
    assert result_tables.latest(other) == other  # of another length or with other options, it is another experiment


def row(*, script, release, seeds, settings=None):
    """A row of CartPole-v1 with published numbers; each run's result is its number of seeds."""
    runs = [new_run(f"{script}{seed}", [float(seeds)], seed=seed, exp_name=script) for seed in range(seeds)]
    for run in runs:
        run.release = release
        run.settings = settings or {}
    return result_tables.Row("CartPole-v1", runs, result_tables.published_results()[script, "CartPole-v1"])


def test_the_summary_shows_the_newest_release_and_of_one_release_more_seeds():
    def shown(torch, numpy):
        (found,) = cells_of(result_tables.summary_table({"ppo": torch, "ppo_numpy": [numpy]})).values()
        return found["ours"], found["release"], found["seeds"]

    torch = row(script="ppo", release="0.2", seeds=10)
    assert shown([torch], row(script="ppo_numpy", release="1.0", seeds=3)) == ("3.00", "1.0", "3")
    assert shown([torch], row(script="ppo_numpy", release="0.2", seeds=3)) == ("10.0", "0.2", "10")
    tuned = row(script="ppo", release="0.2", seeds=12, settings={"gamma": 0.9})
    for rows in ([torch, tuned], [tuned, torch]):  # the published options come first
        assert shown(rows, row(script="ppo_numpy", release="0.2", seeds=3)) == ("10.0", "0.2", "10")


def test_the_first_steps_of_longer_runs_are_as_they_were(tmp_path):
    """Until step 400, when none had diverged yet, and until step 900."""
    make_run(tmp_path / "runs", [1.0] * 50 + [9.0] * 50)
    make_run(tmp_path / "runs", [1.0] * 100, seed=2, total_timesteps=960, end="diverged", updates=8)
    runs = find_runs([tmp_path / "runs"])
    early = [result_tables.shortened(run, 400) for run in runs]
    assert [(run.total, run.end, run.result) for run in early] == [(400, "whole", 1.0)] * 2
    assert report.differing(runs) == {"total_timesteps"} and report.differing(early) == set()
    late = [result_tables.shortened(run, 900) for run in runs]
    assert [(run.total, run.end) for run in late] == [(900, "whole"), (900, "diverged")]
    assert late[0].result == pytest.approx((50 * 1 + 43 * 9) / 93)


def test_a_picture_has_minutes_if_the_machine_had_nothing_else_to_do(tmp_path):
    """Rows whose seeds took equally long, a little more than a quarter longer, unequally long, and of which nobody
    knows; a row whose returns are all the same has no curve."""
    of_rows = {"Even-v0": (0.1, 0.12), "Third-v0": (0.1, 0.13), "Busy-v0": (0.1, 0.2), "Old-v0": (None, None)}
    for env_id, paces in of_rows.items():
        for seed, pace in enumerate(paces, 1):
            make_run(tmp_path / "runs", [1.0, 2.0, 3.0], env_id=env_id, seed=seed, pace=pace)
    make_run(tmp_path / "runs", [1.0, 1.0, 1.0], env_id="Flat-v0", pace=None)
    append_runs(find_runs([tmp_path / "runs"]), results=tmp_path / "kept")
    rows = result_tables.rows_of(kept_runs("results", tmp_path / "kept"))["ppo"]
    assert [row.label for row in rows if result_tables.have_one_pace(row.runs)] == ["Even-v0"]
    result_tables.draw(rows, tmp_path / "picture.svg")
    picture = (tmp_path / "picture.svg").read_text()
    assert (picture.count("environment steps"), picture.count("minutes of training")) == (4, 1)
    assert "Flat-v0" not in picture
    assert "PolyCollection" in picture  # the band of a standard deviation over seeds
    even = next(row for row in rows if row.label == "Even-v0")
    even.runs[1].config["hardware"]["cores"] = 64
    assert not result_tables.have_one_pace(even.runs)


def test_speed_is_told_by_medians_and_ranges():
    medians = {"script": {"steps_per_second": 2000.0, "ms_per_update": 1.5}, "1 thread": {"steps_per_second": 1000.0}}
    medians |= {"default threads": {"steps_per_second": 500.0}, "ratios": {"1 thread": 2.0, "default threads": 4.0}}
    medians["launch"] = {"first_row_seconds": 0.25, "peak_mb": 1234.0}
    of_rounds = [{"1 thread": x, "default threads": 2 * x} for x in (1.5, 2.0, 2.5)]
    rounds = [{"ratios": ratios, "against_ratios": ratios} for ratios in of_rounds]
    measured = {"arguments": {"env_id": "Toy-v0"}, "medians": medians, "rounds": rounds, "release": release()}
    measured["options"] = {"arguments": "--x 1", "against": None, "processes": 1}
    speeds = {"throughput/ppo": measured, "throughput/ppo_numpy": measured | {"release": "0.2"}}
    header, *rows = speed_rows(speeds)
    found = cells_of(pages.markdown(header, rows))
    row = found["ppo.py --x 1"]
    assert row["steps/s"] == "2,000" and row["stable-baselines3, 1 thread"] == "1,000: 2.0× (1.5–2.5)"
    assert "ppo_numpy.py --x 1, release 0.2" in found
    assert launch_rows(speeds)[1] == ["ppo.py --x 1", "0.2 s", "1,234 MB"]


def test_growth_is_told_for_each_number_of_environments():
    medians = {value: {"script": {"steps_per_second": speed}} for value, speed in {"4": 2000.0, "8": 3000.0}.items()}
    measured = {"options": {"vary": ["num-envs", "4", "8"], "script": "ppo", "arguments": ""}, "medians": medians}
    other = {"options": {"vary": ["num-threads", "1"]}}
    text = result_tables.growth_table({"ppo_num-envs": measured, "ppo_num-threads": other})
    assert text.splitlines()[2:] == ["| ppo.py | 4: 1.0×, 8: 1.5× |"]


def test_results_on_levels_are_kept_and_told_by_step(tmp_path):
    run = make_run(tmp_path / "runs", [10.0])
    rows = ["64,training,1.0,5", "64,training,3.0,5", "64,test,0.5,5", "128,training,4.0,5", "128,test,1.5,5"]
    (run / "levels.csv").write_text("\n".join(["global_step,levels,episodic_return,episodic_length", *rows, ""]))
    append_runs(find_runs([tmp_path / "runs"]), results=tmp_path / "kept")
    table = result_tables.table_by_step(result_tables.rows_of(kept_runs("results", tmp_path / "kept"))["ppo"])
    assert table.splitlines()[2:] == ["| Toy-v0 | 64 | 2.00 | 0.50 |", "| Toy-v0 | 128 | 4.00 | 1.50 |"]


def test_the_pages_have_the_tables_that_the_kept_runs_give(monkeypatch):
    """And a rebuild draws the pictures that they show."""
    text = {}
    drawn = {}
    monkeypatch.setattr(result_tables.blocks, "fill", lambda page, name, content: text.update({name: content}))
    monkeypatch.setattr(result_tables, "draw", lambda rows, path: drawn.update({path: rows}))
    monkeypatch.setattr(result_tables, "draw_comparison", lambda both, path, **look: drawn.update({path: look}))
    result_tables.rebuild()
    of_others = ("ablations_", "memory", "time_limits")
    assert drawn.keys() == {path for path in RESULTS.glob("*.svg") if not path.name.startswith(of_others)}
    assert {run.exp_name for row in drawn[RESULTS / "ppo.svg"] for run in row.runs} == {"ppo"}
    looks = [look for path, look in drawn.items() if "against" in path.name]
    assert looks == [{"paired": False, "deviation": True}] * len(result_tables.COMPARISONS)
    stale = []
    for page in [ROOT / "README.md", *ROOT.glob("docs/**/*.md")]:
        for block in page.read_text(encoding="utf-8").split("<!-- results ")[1:]:
            name, _, rest = block.partition(" -->\n")
            if not rest.startswith(text.get(f"results {name}", "no such table\n") + "<!-- end of results -->"):
                stale.append(f"{page.name}: {name}")
    assert stale == [], "run make results"


def test_velocities_are_read_by_a_map_that_was_fitted_to_other_episodes():
    rng = np.random.default_rng(1)
    episodes = []
    for _ in range(2):
        episodes.append({"states": rng.normal(size=(5, 12)), "velocities": rng.normal(size=(5, 2))})
    assert (memory.mean_explained(episodes, "states") < 0.5).all()  # noise; fitted to its own episode it would be 1
    for episode in episodes:
        episode["states"] = episode["velocities"] @ np.array([[2.0, 1.0], [1.0, 3.0]]) + 7.0
    assert memory.mean_explained(episodes, "states") == pytest.approx([1.0, 1.0])
    true = np.array([[1.0, 0.0], [2.0, 0.0], [3.0, 6.0]])
    read = np.array([[1.0, 0.0], [2.0, 3.0], [4.0, 6.0]])
    assert memory.explained(read, true) == pytest.approx([1 - 1 / 2, 1 - 9 / 24])


def test_what_an_agent_sees_and_remembers_is_read_with_the_velocities_of_the_same_moment():
    """A player whose observation, memory and velocities count the steps."""
    simulator = SimpleNamespace(state=None)

    class Player:
        vector = SimpleNamespace(envs=[SimpleNamespace(unwrapped=simulator)])

        def observe(self, step):
            self.now = step
            simulator.state = (0.1, 10.0 + step, 0.2, 20.0 + step)
            return np.array([[step, -step]])

        def reset(self, seeds):
            assert seeds == [5]
            return self.observe(0)

        def act(self, obs):
            self.lstm_state = torch.tensor([[[30.0 + self.now]], [[40.0 + self.now]]])

        def step(self, actions):
            return self.observe(self.now + 1), None, None, None, [{}] if self.now == 2 else []

    played = memory.play(Player(), 5)
    assert played["seen"].tolist() == [[0, 0], [1, -1]]
    assert played["states"].tolist() == [[30, 40], [31, 41]] and played["velocities"].tolist() == [[10, 20], [11, 21]]


def test_an_agent_has_one_color_in_all_panels_and_in_the_legend(monkeypatch, tmp_path):
    colors = []
    figures = []
    monkeypatch.setattr(memory, "variants", lambda: {task: {"no memory": [], "a memory": []} for task in memory.TASKS})
    monkeypatch.setattr(memory, "draw_curves", lambda panel, runs, color, name: colors.append((name, color)))
    monkeypatch.setattr(memory, "save_picture", lambda figure, path: figures.append(figure))
    memory.draw_agents(tmp_path / "memory.svg")
    *panels, last = figures[0].axes
    assert [panel.get_title() for panel in panels] == [memory.readable(task) for task in memory.TASKS]
    lines = last.get_legend().get_lines()
    legend = {line.get_label(): line.get_color() for line in lines}
    assert list(legend) == list(memory.VARIANTS.values()) and len(set(legend.values())) == len(legend)
    assert dict(colors) == {name: legend[name] for name in ("a memory", "no memory")}
    assert len(set(colors)) == 2


def test_of_each_seed_the_newest_run_of_the_newest_release_counts(monkeypatch):
    names = {"x__1": "ppo_lstm", "x__2": "ppo_lstm", "x__3": "ppo_lstm", "x__4": "ppo_tuned", "x__5": "ppo_no_memory"}
    runs = [new_run(name, [1.0], exp_name=exp_name) for name, exp_name in names.items()]
    runs[2].release = "0.1"
    monkeypatch.setattr(memory, "kept_runs", lambda collection: runs[::-1])
    assert memory.variants() == {"CartPole-v1": {"a memory": [runs[1]], "no memory": [runs[4]]}}


def test_agents_of_unequal_seeds_or_of_several_releases_make_no_table(monkeypatch):
    pair = [new_run("a", [1.0]), new_run("b", [1.0])]
    monkeypatch.setattr(memory, "variants", lambda: {"Acrobot-v1": {"a memory": pair, "no memory": pair[:1]}})
    with pytest.raises(UserError, match="Acrobot-v1: its agents"):
        memory.table()
    pair[1].release = "0.4"
    monkeypatch.setattr(memory, "variants", lambda: {"Acrobot-v1": {"a memory": pair[:1], "no memory": pair[1:]}})
    with pytest.raises(UserError, match="Acrobot-v1: its agents"):
        memory.table()


def test_the_other_librarys_episodes_are_written_with_their_steps(monkeypatch, tmp_path, capsys):
    """recurrent_ppo.py, with a training that ends an episode of return i in one of two environments at each step."""
    recurrent_ppo = pytest.importorskip("recurrent_ppo", reason="needs sb3-contrib")

    class Model:
        def __init__(self, policy, env_id, seed, device):
            assert (policy, env_id, seed, device) == ("MlpLstmPolicy", "cue:Cue-v0", 7, "cpu")

        def learn(self, steps, callback):
            for i in range(1, steps + 1):
                callback.locals = {"infos": [{}, {"episode": {"r": float(i), "l": 10 * i}}]}
                callback.num_timesteps = 2 * i
                assert callback._on_step()

    monkeypatch.setattr(recurrent_ppo, "RecurrentPPO", Model)
    folder = tmp_path / "new" / "recurrent_ppo"
    recurrent_ppo.main(recurrent_ppo.Args(env_id="cue:Cue-v0", seed=7, total_timesteps=120, folder=folder))
    lines = (folder / "Cue-v0_7.csv").read_text().splitlines()
    assert lines[0] == "global_step,episodic_return,episodic_length" and len(lines) == 121
    assert lines[-1] == "240,120.0,1200"
    assert capsys.readouterr().out.endswith(" 70.50\n")  # the mean of the last hundred, 21 to 120
    monkeypatch.setattr(memory, "RESULTS", tmp_path / "new")
    assert memory.recurrent_ppo("cue:Cue-v0") == [70.5] and memory.recurrent_ppo("Acrobot-v1") == []


def test_the_page_on_memory_has_the_table_that_the_kept_runs_give():
    content = (ROOT / "docs" / "memory.md").read_text(encoding="utf-8")
    assert f"<!-- memory -->\n{memory.table()}<!-- end of memory -->" in content, "run make results"


def test_the_pages_tables_say_what_was_measured():
    """Numbers of the tables of release 0.2, by way of every step from the kept episodes to the table."""
    rows = result_tables.rows_of(kept_runs("results"))
    bullet = next(row for row in rows["ppo_continuous_action_numpy"] if row.runs[0].env_id == "HopperBulletEnv-v0")
    assert result_tables.spread(report.results(bullet.runs)) == "1827.38 ± 165.20" and len(bullet.runs) == 3
    summary = cells_of(result_tables.summary_table(rows))
    breakout = summary["Breakout-v5, precision=bf16"]
    assert (breakout["ours"], breakout["seeds"], breakout["published"]) == ("411", "1", "211 to 424")
    assert breakout["script"] == "[`ppo_atari_envpool.py`](docs/ppo_atari_envpool.md#results)"
    pusher = summary["Pusher-v4"]
    assert pusher["ours"] == "−51.9 ± 8.6" and pusher["published"] == "−56.8 to −40.4"


def test_the_overview_has_each_script_and_a_table_folds_what_is_published():
    rows = result_tables.rows_of(kept_runs("results"))
    lines = [line for line in result_tables.overview_table(rows).splitlines() if line.startswith("| Hopper-v4")]
    scripts = ["ppo_continuous_action", "ppo_continuous_action_numpy"]
    assert [f"[`{name}.py`]({name}.md#results)" in line for name, line in zip(scripts, lines)] == [True, True]
    narrow, _, folded = result_tables.result_table(rows["ppo_continuous_action"]).partition("<details")
    label = next(row.label for row in rows["ppo_continuous_action"] if row.runs[0].env_id == "Hopper-v4")
    assert cells_of(narrow)[label]["published"] == "2,050 to 2,520"
    assert f"| {label} | 2158.65 ± 302.33 (v2) | 2518.95 ± 850.46 |" in folded
    assert "details" not in result_tables.result_table(rows["ppo_multidiscrete"])
