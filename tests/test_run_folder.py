"""What a run writes: its folder, config.json, CSV files, TensorBoard events, videos, the status line, the tracker."""

import contextlib
import importlib.metadata
import json
import os
import pty
import subprocess
import sys
import time
import tomllib
import types
from pathlib import Path

import environments_cli
import imageio.v3 as iio
import numpy as np
import ppo
import pytest
import torch
from helpers import SCRIPT, SMALL, TESTS, checkpoints, rows, run, scalars, train, words
from packaging.requirements import Requirement

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
    assert config["resolved"] == {"num_threads": ppo.torch.get_num_threads()}
    assert config["versions"]["torch"] == importlib.metadata.version("torch")
    assert config["hardware"]["cores"] == os.cpu_count() and config["hardware"]["gpus"] == []
    commit = subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=TESTS, text=True).strip()
    assert config["git_commit"].removesuffix("-dirty") == commit


def test_metrics_csv(small):
    table = rows(small, "metrics.csv")
    assert list(table[0]) == METRICS
    assert [int(row["global_step"]) for row in table] == list(range(48, 1921, 48))
    episodes = rows(small, "episodes.csv")
    for row in table:
        step = int(row["global_step"])
        returns = [float(x["episodic_return"]) for x in episodes if step - 48 < int(x["global_step"]) <= step]
        assert float(row["charts/episodic_return"]) == pytest.approx(np.mean(returns), rel=1e-4)


def test_an_update_without_episodes_has_no_episode_metrics_but_a_reward(in_tmp_path):
    folder = train(env_id="Endless-v0")
    table = rows(folder, "metrics.csv")
    assert {row["charts/episodic_return"] for row in table} == {"nan"}
    assert all(0.1 < float(row["charts/reward"]) < 0.9 for row in table)
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
    for name in METRICS[3:]:
        table = [(int(row["global_step"]), float(row[name])) for row in rows(small, "metrics.csv")]
        assert events[name] == [(step, pytest.approx(value, rel=1e-5)) for step, value in table]
    returns = [float(row["episodic_return"]) for row in rows(small, "episodes.csv")]
    assert [value for _, value in events["charts/episodic_return"]] == pytest.approx(returns, rel=1e-5)


def test_a_new_metric_in_the_middle_is_named_and_a_missing_one_is_nan(in_tmp_path, monkeypatch, capsys):
    log = ppo.Run.log

    def changed(self, metrics):
        if self.update == 2:
            del metrics["losses/entropy"]
        if self.update == 3:
            metrics["losses/new"] = 1.0
        log(self, metrics)

    monkeypatch.setattr(ppo.Run, "log", changed)
    with pytest.raises(SystemExit):
        train()
    assert "no column losses/new" in capsys.readouterr().err
    (folder,) = Path("runs").iterdir()
    assert rows(folder, "metrics.csv")[1]["losses/entropy"] == "nan"


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


# ----------------------------------------------------------------------------------------------------- Status line


def test_lines_in_a_file_and_a_live_line_on_a_terminal(in_tmp_path):
    stdout, stderr = run(*words(**{**SMALL, "env_id": "environments:Random-v0"}))
    assert stderr == "" and "100%  step 1,920" in stdout and "\r" not in stdout
    terminal, other_end = pty.openpty()
    command = [sys.executable, str(SCRIPT), *words(**{**SMALL, "env_id": "environments:Random-v0"})]
    process = subprocess.Popen(command, stdout=other_end, env={**os.environ, "PYTHONPATH": str(TESTS)})
    os.close(other_end)
    shown = b""
    with contextlib.suppress(OSError):  # the terminal's end
        while part := os.read(terminal, 4096):
            shown += part
    process.wait()
    lines = shown.decode().replace("\r\n", "\n").split("\n")
    status = [line for line in lines if "steps/s" in line]
    assert len(status) == 1 and "100%" in status[0].split("\r")[-1]


@pytest.mark.parametrize(
    "number, text", [(0.95, "0.950"), (0.0123, "0.0123"), (0, "0"), (12.34, "12.3"), (-5678.9, "-5,679")]
)
def test_numbers_have_three_significant_digits(number, text):
    assert ppo.three_digits(number) == text


def test_an_environment_without_an_end_is_named(in_tmp_path, capsys):
    train(env_id="Endless-v0", num_envs=1, num_steps=10_000, total_timesteps=110_000, num_minibatches=2, target_kl=None)
    assert capsys.readouterr().out.count("no episode has ended in 100,000 steps") == 1


# ------------------------------------------------------------------------------------------------ Videos, tracker


def test_a_video_at_every_checkpoint_shows_what_each_action_saw(in_tmp_path):
    folder = train(env_id="Film-v0", capture_video=True)
    assert sorted(path.name for path in folder.glob("videos/*")) == ["10.mp4", "20.mp4", "30.mp4", "40.mp4"]
    frames = iio.imread(folder / "videos" / "40.mp4")
    bright = [int((frame[:, :, 0] > 128).any(0).sum()) for frame in frames]
    assert bright == pytest.approx([0, 10, 20, 30], abs=3)


def test_a_render_that_fails_later_costs_a_warning(in_tmp_path, monkeypatch, capsys):
    render = environments_cli.Film.render
    monkeypatch.setattr(environments_cli.Film, "render", lambda self: render(self) if self.count == 0 else None)
    folder = train(env_id="Film-v0", capture_video=True)
    monkeypatch.setattr(ppo, "restore", lambda *_, **__: ppo.fail("an agent that doesn't fit one environment"))
    train(env_id="Film-v0", capture_video=True, seed=2)
    assert capsys.readouterr().err.count("warning: no video of update") == 8
    assert checkpoints(folder) == [10, 20, 30, 40] and not list(folder.glob("videos/*"))


@pytest.fixture
def tracker(monkeypatch):
    """Pretends to be wandb; lists the calls."""
    calls = []

    def init(**options):
        calls.append(("init", options))
        return types.SimpleNamespace(
            log=lambda x: calls.append(("log", x)), finish=lambda: calls.append(("finish", {}))
        )

    patch = types.SimpleNamespace(patch=lambda **options: calls.append(("patch", options)))
    wandb = types.SimpleNamespace(init=init, tensorboard=patch, Video=lambda path: path, __spec__=True)
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    return calls


def test_the_tracker_gets_arguments_videos_and_an_end(in_tmp_path, tracker):
    folder = train(env_id="Film-v0", track=True, capture_video=True)
    names = [name for name, _ in tracker]
    assert names == ["patch", "init", *["log"] * 4, "finish"]
    options = tracker[1][1]
    assert options["name"] == folder.name and options["config"]["env_id"] == "Film-v0"
    assert options["project"] == "cleanRL" and options["resume"] == "allow"
    assert tracker[2][1] == {"video": str(folder / "videos" / "10.mp4"), "global_step": 480}


def test_a_tracker_that_cannot_start_ends_in_one_line(in_tmp_path, monkeypatch, tracker, capsys):
    def no_login(**_):
        raise RuntimeError("api_key not configured, and much more to read about it")

    monkeypatch.setattr(sys.modules["wandb"], "init", no_login)
    with pytest.raises(SystemExit) as stop:
        train(track=True)
    assert stop.value.code == 1 and "--track: RuntimeError: api_key not configured" in capsys.readouterr().err


def test_the_real_tracker_follows_a_run_offline(in_tmp_path):
    pytest.importorskip("wandb")
    options = {**SMALL, "env_id": "CartPole-v1", "track": True}
    _, stderr = run(*words(**options), env={"WANDB_MODE": "offline", "WANDB_SILENT": "true", "HOME": str(in_tmp_path)})
    assert "rror" not in stderr
    (file,) = in_tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    assert b"losses/policy_loss" in file.read_bytes()


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
    assert named >= {"gymnasium", "numpy", "tyro"}


def test_a_state_that_could_not_be_read_back_is_refused_when_it_is_saved(in_tmp_path, monkeypatch, capsys):
    class Statistics:
        def state_dict(self):
            return {"mean": np.float64(1.0)}

        def load_state_dict(self, state):
            pass

    keep = ppo.Run.keep
    monkeypatch.setattr(ppo.Run, "keep", lambda self, **kept: keep(self, **kept, statistics=Statistics()))
    with pytest.raises(SystemExit) as stop:
        train()
    assert stop.value.code == 1 and "checkpoints take tensors, numbers" in capsys.readouterr().err
