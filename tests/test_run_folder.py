"""What a run writes: its folder, config.json, CSV files, TensorBoard events, videos, the status line, the tracker."""

import contextlib
import importlib
import importlib.metadata
import json
import os
import pty
import subprocess
import sys
import time
import tomllib
import types
import warnings
from pathlib import Path

import environments
import environments_cli
import imageio.v3 as iio
import numpy as np
import ppo
import pytest
import torch
from helpers import SCRIPT, SMALL, TESTS, checkpoints, rows, run, scalars, state, train, words
from packaging.requirements import Requirement
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

METRICS = [
    "global_step", "charts/episodic_return", "charts/episodic_length", "charts/reward", "charts/SPS",
    "charts/learning_rate", "losses/value_loss", "losses/policy_loss", "losses/entropy", "losses/old_approx_kl",
    "losses/approx_kl", "losses/clipfrac", "losses/explained_variance",
]  # fmt: skip


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    with contextlib.chdir(tmp_path_factory.mktemp("small")):
        return train().resolve()


def test_the_first_weights_are_drawn_with_the_runs_threads(in_tmp_path, monkeypatch):
    threads = []
    orthogonal = torch.nn.init.orthogonal_

    def noted(weight, gain):
        threads.append(torch.get_num_threads())
        return orthogonal(weight, gain)

    monkeypatch.setattr(torch.nn.init, "orthogonal_", noted)
    torch.set_num_threads(2)
    train()
    assert set(threads) == {1}


def test_the_folder_holds_everything(small):
    files = {path.name.split(".")[0] for path in small.iterdir()}
    assert files >= {"checkpoints", "videos", "config", "metrics", "episodes", "ppo", "events"}
    assert (small / "ppo.py").read_bytes() == SCRIPT.read_bytes()
    assert checkpoints(small) == [10, 20, 30, 40]
    end = json.loads((small / "end.json").read_text("utf-8"))
    assert end == {"end": "whole", "update": 40, "global_step": 1920}


@pytest.mark.parametrize("asked, updates", [(1, [40]), (3, [13, 27, 40]), (100, [*range(1, 41)]), (None, [40])])
def test_checkpoints_are_evenly_spaced_and_the_last_is_the_end(in_tmp_path, asked, updates):
    assert checkpoints(train(checkpoints=asked)) == updates  # None: few in a short run


def test_its_name_has_no_slashes_and_colons_and_two_of_one_second_are_two(in_tmp_path, monkeypatch):
    monkeypatch.setattr(time, "time", lambda: 1000.0)
    names = [train(env_id="environments:Random-v0", exp_name="a/b").name for _ in range(2)]
    assert names == ["environments_Random-v0__a_b__1__1000", "environments_Random-v0__a_b__1__1001"]


def test_config_json(in_tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["ppo.py", "--seed", "7"])
    folder = train(seed=7, num_threads=None)
    config = json.loads((folder / "config.json").read_text("utf-8"))
    assert config["script"] == "ppo" and config["command"] == "python ppo.py --seed 7"
    assert config["arguments"] == {**ppo.asdict(ppo.Args(**SMALL, seed=7)), "num_threads": None}
    assert config["versions"]["torch"] == importlib.metadata.version("torch")
    assert config["hardware"]["cores"] == os.cpu_count() and config["hardware"]["gpus"] == []


def test_metrics_csv(small):
    table = rows(small, "metrics.csv")
    assert list(table[0]) == METRICS
    assert [int(row["global_step"]) for row in table] == list(range(48, 1921, 48))
    episodes = rows(small, "episodes.csv")
    for row in table:
        step = int(row["global_step"])
        returns = [float(x["episodic_return"]) for x in episodes if step - 48 < int(x["global_step"]) <= step]
        assert float(row["charts/episodic_return"]) == pytest.approx(np.mean(returns), rel=1e-4)
    last = [float(row["episodic_return"]) for row in episodes[-100:]]
    assert len(episodes) > 200 and state(small, 40)["recent_returns"] == last


def test_an_update_without_episodes_has_no_episode_metrics_but_a_reward(in_tmp_path, spy):
    steps = spy(ppo.VectorEnv, "step")
    folder = train(env_id="Endless-v0")
    del steps[0]  # the look before training
    table = rows(folder, "metrics.csv")
    assert {row["charts/episodic_return"] for row in table} == {"nan"}
    rewards = np.reshape([call.result[1] for call in steps], (40, 48))  # by update
    np.testing.assert_allclose([float(row["charts/reward"]) for row in table], rewards.mean(1), rtol=1e-6)
    assert "charts/episodic_return" not in scalars(folder)


def test_episodes_csv_has_the_true_episodes(in_tmp_path, monkeypatch):
    monkeypatch.setattr(environments_cli.Diary, "written", [])
    folder = train(env_id="Diary-v0")
    lived = [diary for diary in environments_cli.Diary.written if diary.life > 100]
    assert len(lived) == 3
    true = sorted((3 * life, *rest) for diary in lived for life, *rest in diary.episodes if life <= 640)
    logged = sorted(
        (int(x["global_step"]), float(x["episodic_return"]), int(x["episodic_length"]))
        for x in rows(folder, "episodes.csv")
    )
    assert np.array(logged) == pytest.approx(np.array(true), rel=1e-5)


def test_events_are_the_rows(small):
    events = scalars(small)
    table = rows(small, "metrics.csv")
    assert events.keys() == set(METRICS[1:])
    for name in METRICS[1:]:
        values = [(int(row["global_step"]), pytest.approx(float(row[name]), rel=1e-5)) for row in table]
        assert events[name] == values


def test_tensorboard_shows_the_hyperparameters(small):
    events = EventAccumulator(str(small)).Reload()
    (event,) = events.Tensors("hyperparameters/text_summary")
    assert "|num_steps|16|" in event.tensor_proto.string_val[0].decode()


def test_metrics_may_come_go_and_have_any_name(in_tmp_path, monkeypatch):
    log = ppo.Run.log

    def log_others(run, metrics):
        metrics["my_loss"] = metrics.pop("losses/policy_loss")
        if run.update == 2:
            del metrics["losses/entropy"]
        if run.update % 5 == 0:
            metrics["losses/new"] = torch.tensor(float(run.update))
        log(run, metrics)

    monkeypatch.setattr(ppo.Run, "log", log_others)
    folder = train()
    train(resume=folder, total_timesteps=2400)
    table = rows(folder, "metrics.csv")
    renamed = [name.replace("losses/policy_loss", "my_loss") for name in METRICS]
    assert sorted(table[0]) == sorted(renamed) and len(table) == 50
    assert [row["losses/entropy"] == "nan" for row in table] == [update == 2 for update in range(1, 51)]
    assert len(scalars(folder)["my_loss"]) == 50
    assert scalars(folder)["losses/new"] == [(48 * update, update) for update in range(5, 51, 5)]


def test_a_metric_that_comes_late_says_where_it_is(in_tmp_path, monkeypatch, capsys):
    log = ppo.Run.log

    def log_later(run, metrics):
        if run.update > 1:
            metrics["losses/late"] = 1.0
        log(run, metrics)

    monkeypatch.setattr(ppo.Run, "log", log_later)
    train()
    lines = [line for line in capsys.readouterr().out.splitlines() if "losses/late" in line]
    assert len(lines) == 1 and "TensorBoard" in lines[0] and "metrics.csv" in lines[0]


def test_a_metric_may_have_a_gradient(in_tmp_path, monkeypatch):
    weight = torch.tensor([1e-4], requires_grad=True)
    log = ppo.Run.log

    def log_more(run, metrics):
        log(run, {**metrics, "tensor": (weight * 2).sum(), "array": np.float32(0.5), "whole": 3})

    monkeypatch.setattr(ppo.Run, "log", log_more)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        folder = train(total_timesteps=96)
    table = rows(folder, "metrics.csv")
    assert {(float(row["tensor"]), row["array"], row["whole"]) for row in table} == {(np.float32(2e-4), "0.5", "3.0")}
    assert {row["charts/learning_rate"] for row in table} == {"0.00025", "0.000125"}  # not rounded to float32


def test_updates_may_go_unlogged(in_tmp_path, monkeypatch):
    whole = rows(train(exp_name="whole"), "episodes.csv", ["seconds"])
    log = ppo.Run.log

    def log_even(self, metrics):
        if self.update % 2 == 0:
            log(self, metrics)

    monkeypatch.setattr(ppo.Run, "log", log_even)
    folder = train()
    assert [int(row["global_step"]) for row in rows(folder, "metrics.csv")] == list(range(96, 1921, 96))
    assert rows(folder, "episodes.csv", ["seconds"]) == whole


def test_a_break_before_the_first_log_ends_the_run(in_tmp_path, monkeypatch):
    def broken(args, run):
        envs = ppo.VectorEnv(args, args.num_envs)
        run.keep(model=ppo.Agent(envs, args), envs=envs)
        for _ in run.updates():
            break

    monkeypatch.setattr(ppo, "train", broken)
    assert json.loads((train() / "end.json").read_text())["end"] == "break"


def test_logged_rewards_are_the_environments_where_time_limits_add_values_too(in_tmp_path):
    folders = [train(bootstrap_truncated=is_added, total_timesteps=96, checkpoints=1) for is_added in (False, True)]
    first, second = (rows(folder, "metrics.csv") for folder in folders)
    assert first[0]["charts/reward"] == second[0]["charts/reward"]
    assert first[0]["losses/value_loss"] != second[0]["losses/value_loss"]


def test_checkpoints_are_not_in_the_time_of_training(in_tmp_path, monkeypatch):
    """A step of the environments takes a second, and a checkpoint an hour."""
    now = [0.0]
    monkeypatch.setattr(ppo.time, "perf_counter", lambda: now[0])

    def takes(owner, name, seconds):
        method = getattr(owner, name)

        def timed(*arguments, **named):
            now[0] += seconds
            return method(*arguments, **named)

        monkeypatch.setattr(owner, name, timed)

    takes(ppo.VectorEnv, "step", 1.0)
    takes(ppo.Run, "save", 3600.0)
    folder = train()
    assert {float(row["charts/SPS"]) for row in rows(folder, "metrics.csv")} == {SMALL["num_envs"]}


# ----------------------------------------------------------------------------------------------------- Status line


def test_lines_in_a_file_and_a_live_line_on_a_terminal(in_tmp_path, capsys):
    train()
    stdout, stderr = capsys.readouterr()
    assert stderr == "" and "100%  step 1,920" in stdout and "\r" not in stdout
    terminal, other_end = pty.openpty()
    command = [sys.executable, str(SCRIPT), *words(**SMALL | {"env_id": "environments:Random-v0"})]
    process = subprocess.Popen(command, stdout=other_end, env={**os.environ, "PYTHONPATH": str(TESTS)})
    os.close(other_end)
    shown = b""
    with contextlib.suppress(OSError):  # the terminal's end
        while True:
            shown += os.read(terminal, 4096)
    process.wait()
    lines = shown.decode().replace("\r\n", "\n").split("\n")
    status = [line for line in lines if "steps/s" in line]
    assert len(status) == 1 and "100%" in status[0].split("\r")[-1]


# ------------------------------------------------------------------------------------------------ Videos, tracker


def test_a_video_at_every_checkpoint_shows_what_each_action_saw(in_tmp_path):
    folder = train(env_id="Film-v0", capture_video=True)
    assert sorted(path.name for path in folder.glob("videos/*")) == ["10.mp4", "20.mp4", "30.mp4", "40.mp4"]
    frames = iio.imread(folder / "videos" / "40.mp4")
    bright = [int((frame[:, :, 0] > 128).any(0).sum()) for frame in frames]
    assert bright == pytest.approx([0, 10, 20, 30], abs=3)


def test_a_render_that_fails_later_costs_a_warning(in_tmp_path, monkeypatch, capsys):
    render = environments_cli.Film.render
    monkeypatch.setattr(environments_cli.Film, "render", lambda self: render(self) if self.count < 2 else None)
    folder = train(env_id="Film-v0", capture_video=True)
    assert capsys.readouterr().err.count("warning: ") == 4
    assert checkpoints(folder) == [10, 20, 30, 40] and not list(folder.glob("videos/*"))


def test_a_checkpoint_knows_the_sizes_of_what_is_on_the_disk(in_tmp_path, monkeypatch):
    """Episodes of updates that weren't logged wait in a buffer until then."""
    monkeypatch.setattr(ppo.Run, "log", lambda run, metrics: None)
    sizes = []

    def sync(descriptor):
        sizes.append(os.fstat(descriptor).st_size)
        fsync(descriptor)

    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", sync)
    folder = train()
    for i, update in enumerate((10, 20, 30, 40), start=1):  # the first save came before all updates
        metrics, episodes, _ = sizes[3 * i : 3 * i + 3]
        assert state(folder, update)["log_sizes"] == {"metrics.csv": metrics, "episodes.csv": episodes}
    assert episodes > 1000


def test_a_tracker_gets_the_arguments_and_an_end_whatever_happens(in_tmp_path, monkeypatch):
    calls = []

    def init(**options):
        calls.append(options)
        return types.SimpleNamespace(finish=lambda: calls.append("finish"), log_code=lambda folder: None)

    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=init, __spec__=True))
    monkeypatch.setattr(ppo, "compute_gae", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        train(track=True, seed=7)
    options, end = calls
    (folder,) = Path("runs").iterdir()
    assert options["id"] == folder.name and options["resume"] == "allow"  # a resumed run is the same one there
    assert options["config"]["seed"] == 7 and options["sync_tensorboard"]
    assert end == "finish"


@pytest.mark.parametrize("script", ["ppo", "ppo_numpy"])
def test_the_real_tracker_follows_a_run_offline_with_its_code_and_videos(in_tmp_path, script):
    pytest.importorskip("wandb")
    small = {name: SMALL[name] for name in SMALL if name != "checkpoints"}
    typed = words(**small | {"env_id": "environments_cli:Film-v0", "checkpoints": 2, "track": True})
    options = {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "HOME": str(in_tmp_path)}
    path = SCRIPT.with_name(f"{script}.py")
    _, stderr = run(*typed, "--capture-video", script=path, env=options)
    assert "rror" not in stderr and "no video" not in stderr
    (tracked,) = in_tmp_path.glob("wandb/offline-run-*")
    (file,) = tracked.glob("run-*.wandb")
    assert b"losses/policy_loss" in file.read_bytes()
    (code,) = [x for x in in_tmp_path.glob(".local/share/wandb/artifacts/staging/*") if x.is_file()]
    assert code.read_bytes() == path.read_bytes() and f"{script}.py".encode() in file.read_bytes()
    sent = sorted(x.read_bytes() for x in tracked.glob("files/media/videos/*.mp4"))
    assert sent == sorted(x.read_bytes() for x in in_tmp_path.glob("runs/*/videos/*.mp4")) and len(sent) == 2


def test_a_tracker_that_takes_no_video_costs_the_video_there(in_tmp_path, monkeypatch, capsys):
    tracker = types.SimpleNamespace(finish=lambda: None, log_code=lambda folder: None)  # has no log
    fake = types.SimpleNamespace(init=lambda **options: tracker, Video=lambda path: path, __spec__=True)
    monkeypatch.setitem(sys.modules, "wandb", fake)
    folder = train(env_id="Film-v0", track=True, capture_video=True)
    assert capsys.readouterr().err.count("warning: no video") == 4
    assert json.loads((folder / "end.json").read_text())["end"] == "whole"
    assert len(list(folder.glob("videos/*.mp4"))) == 4


# -------------------------------------------------------------------------------------------------------- Metadata


@pytest.mark.parametrize("script", sorted(SCRIPT.parent.glob("*.py")), ids=lambda script: script.stem)
def test_the_metadata_of_a_script_holds_here_and_names_what_it_imports(script):
    if script.stem == "ppo_procgen":
        pytest.importorskip("procgen")
    block = script.read_text("utf-8").split("# ///")[1].split("script\n", 1)[1]
    metadata = tomllib.loads("\n".join(line.removeprefix("#").strip() for line in block.splitlines()))
    for text in metadata["dependencies"]:
        requirement = Requirement(text)
        assert requirement.specifier.contains(importlib.metadata.version(requirement.name)), text
        assert "==" not in text
    named = {Requirement(text).name for text in metadata["dependencies"]}
    assert named >= {"numpy", "tyro"}
    assert ("gymnasium" in named) == ("\nimport gymnasium" in script.read_text("utf-8"))


# -------------------------------------------------------------------------------------- What can't be saved or learned


def test_a_state_that_could_not_be_read_back_is_refused_before_the_first_update(in_tmp_path, monkeypatch):
    class Statistics:
        def state_dict(self):
            return {"mean": np.float64(1.0)}

    keep = ppo.Run.keep
    monkeypatch.setattr(ppo.Run, "keep", lambda run, **kept: keep(run, **kept, statistics=Statistics()))
    with pytest.raises(ppo.UserError):
        train()
    (folder,) = Path("runs").iterdir()
    assert (folder / "metrics.csv").read_text() == ""


@pytest.mark.parametrize("script", ["ppo", "ppo_numpy"])
def test_a_name_that_checkpoints_use_themselves_is_refused(in_tmp_path, script):
    script = importlib.import_module(script)
    folder = script.main(script.Args(**SMALL | {"total_timesteps": 48}))
    own = script.load_checkpoint(folder).keys() - {"model", "optimizer", "envs"}
    assert len(own) > 8
    run = script.Run(script.Args())
    for name in own:
        with pytest.raises(script.UserError, match=name):
            run.keep(**{name: None})


@pytest.mark.parametrize("name, place", [("reward", 1), ("observation", 0)])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_is_named_with_its_update_and_environment(in_tmp_path, monkeypatch, name, place, value):
    step = environments.Random.step
    steps = []

    def spoil(env, action):
        steps.append(action)
        result = list(step(env, action))
        # In the update after 13 others, the second environment's sixth step; two come before training
        if len(steps) == 2 + 48 * 13 + 3 * 5 + 2:
            result[place] = result[place] * value
        return result

    monkeypatch.setattr(environments.Random, "step", spoil)
    with pytest.raises(ppo.UserError, match=f"update 14, environment 1: .*{name}"), np.errstate(all="ignore"):
        train()
    (folder,) = Path("runs").iterdir()
    assert len(rows(folder, "metrics.csv")) == 13


def test_weights_that_diverge_end_the_run_and_are_never_saved(in_tmp_path, monkeypatch):
    ppo_loss = ppo.ppo_loss
    losses = []

    def diverge(*arguments):
        loss, metrics = ppo_loss(*arguments)
        losses.append(loss)
        return loss / (len(losses) < 2 * 13), metrics  # from the 13th update on

    monkeypatch.setattr(ppo, "ppo_loss", diverge)
    with pytest.raises(ppo.UserError, match="update 13"):
        train(checkpoints=40)
    (folder,) = Path("runs").iterdir()
    assert json.loads((folder / "end.json").read_text("utf-8"))["end"] == "diverged"
    assert checkpoints(folder) == list(range(1, 13))
    assert all(weight.isfinite().all() for weight in state(folder, 12)["model"].values())
