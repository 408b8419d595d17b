"""What a run leaves behind and shows on the way: folder, rows, events, status, videos, tracker."""

import contextlib
import dataclasses
import fcntl
import importlib.machinery
import importlib.metadata
import json
import math
import os
import platform
import pty
import re
import shutil
import struct
import subprocess
import sys
import termios
import time
import tomllib
import types
from pathlib import Path

import environments_cli
import imageio.v3 as iio
import numpy as np
import ppo
import pytest
from helpers import (
    SCRIPT,
    SMALL,
    TESTS,
    assert_same_state,
    checkpoints,
    fork,
    rows,
    run,
    scalars,
    state,
    train,
    words,
)
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

METRICS = [
    "charts/episodic_return", "charts/episodic_length", "charts/SPS", "charts/learning_rate",
    "losses/value_loss", "losses/policy_loss", "losses/entropy", "losses/old_approx_kl", "losses/approx_kl",
    "losses/clipfrac", "losses/explained_variance",
]  # fmt: skip


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """The folder of a small run."""
    with contextlib.chdir(tmp_path_factory.mktemp("small")):
        return train().resolve()


@pytest.fixture
def no_learning(monkeypatch):
    """Makes a run of nothing but its updates; each calls `update` and logs no more than its step."""

    def no_learning(update=lambda: None):
        def train(args, run):
            run.keep(rng=np.random.default_rng())
            for number, _ in run.updates():
                update()
                run.log(number * args.batch_size, {})

        monkeypatch.setattr(ppo, "train", train)

    return no_learning


# ----------------------------------------------------------------------------------------------------------- The folder


def test_the_folder_holds_everything(small):
    names = {path.name for path in small.iterdir()}
    (events,) = [name for name in names if name.startswith("events.out.tfevents.")]
    files = {"metrics.csv", "episodes.csv", "config.json", "ppo.py", "lock", "checkpoints", "videos"}
    assert names == files | {events}
    assert (small / "lock").read_text() == str(os.getpid())
    assert (small / "ppo.py").read_bytes() == SCRIPT.read_bytes()
    assert checkpoints(small) == [10, 20, 30, 40]


@pytest.mark.parametrize("checkpoints_asked, updates", [(1, [7]), (2, [4, 7]), (3, [2, 5, 7]), (50, range(1, 8))])
def test_checkpoints_are_evenly_spaced_and_the_last_is_the_end(in_tmp_path, checkpoints_asked, updates):
    assert checkpoints(train(total_timesteps=48 * 7 + 47, checkpoints=checkpoints_asked)) == list(updates)


@pytest.mark.parametrize(
    "steps, updates",
    [
        (500, [1]),  # of each environment, 500 in an update
        (19_500, [39]),
        (20_000, [20, 40]),
        (39_500, [26, 53, 79]),
        (10**6, range(200, 2001, 200)),
    ],
)
def test_by_default_no_checkpoint_comes_within_10000_steps_of_another(in_tmp_path, no_learning, capsys, steps, updates):
    """Each ends all episodes. Ten are enough."""
    no_learning()
    folder = train(checkpoints=None, num_envs=2, num_steps=500, total_timesteps=2 * steps)
    assert sorted(int(path.stem) for path in folder.glob("checkpoints/*.pt")) == list(updates)
    assert "--checkpoints" not in capsys.readouterr().out


@pytest.mark.parametrize("count, said", [(1, None), (2, None), (3, 6666), (5, 4000)])
def test_a_typed_number_of_checkpoints_is_obeyed_and_what_it_does_is_said(
    in_tmp_path, no_learning, capsys, count, said
):
    no_learning()
    folder = train(checkpoints=count, num_envs=2, num_steps=500, total_timesteps=40_000)  # 20,000 of each
    assert len(list(folder.glob("checkpoints/*.pt"))) == count
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("--checkpoints")]
    assert (
        lines
        == [f"--checkpoints {count}: each ends all episodes, so that none is longer than {said} steps"][: said or 0]
    )


def test_its_name_has_no_slashes_and_colons(in_tmp_path):
    folder = train(env_id="environments:Random-v0", exp_name="a/b:c", seed=3, total_timesteps=48)
    assert folder.parent == Path("runs")
    assert re.fullmatch(r"environments_Random-v0__a_b_c__3__\d{10}", folder.name)
    assert abs(int(folder.name.split("__")[-1]) - time.time()) < 60


def test_config_json(in_tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["cleanrl/ppo.py", "--exp-name", "with spaces"])
    folder = train(exp_name="with spaces", total_timesteps=48)
    config = json.loads((folder / "config.json").read_text())
    assert config["arguments"] == dataclasses.asdict(
        ppo.Args(**SMALL | {"exp_name": "with spaces", "total_timesteps": 48})
    )
    assert config["command"] == "python cleanrl/ppo.py --exp-name 'with spaces'"
    versions = {
        name: importlib.metadata.version(name)
        for name in ("gymnasium", "ImageIO", "numpy", "tensorboard", "torch", "tyro")
    }
    assert config["versions"] == {"python": platform.python_version(), **versions}
    assert config["hardware"].keys() == {"cpu", "cores", "gpus"}
    assert config["hardware"]["cores"] == os.cpu_count()
    assert config["resolved"] == {}


def test_what_the_machine_decides_stands_beside_the_arguments(in_tmp_path, monkeypatch):
    """So that the same command is the same run on every machine."""
    monkeypatch.setattr(ppo.torch.cuda, "is_available", lambda: False)
    folder = train(num_threads=None, cuda=True, total_timesteps=48)  # a script whose default is "where there is one"
    config = json.loads((folder / "config.json").read_text())
    assert config["arguments"] == dataclasses.asdict(
        ppo.Args(**SMALL | {"num_threads": None, "cuda": True, "total_timesteps": 48})
    )
    assert config["resolved"] == {"num_threads": ppo.torch.get_num_threads(), "cuda": False}
    assert state(folder, 1)["args"].items() >= config["resolved"].items()


def test_gpus_in_config_json(in_tmp_path, monkeypatch):
    tool = Path("nvidia-smi")
    tool.write_text("#!/bin/sh\nprintf 'one GPU\\nanother GPU\\n'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(in_tmp_path), prepend=os.pathsep)
    config = json.loads((train(total_timesteps=48) / "config.json").read_text())
    assert config["hardware"]["gpus"] == ["one GPU", "another GPU"]


@pytest.mark.skipif(not shutil.which("git"), reason="needs git")
def test_the_commit_is_that_of_the_script(in_tmp_path, monkeypatch):
    def git(*words):
        identity = ["-c", "user.name=test", "-c", "user.email=test@localhost", "-c", "commit.gpgsign=false"]
        return subprocess.run(["git", *identity, *words], check=True, capture_output=True, text=True).stdout.strip()

    def commit():
        return json.loads((train(total_timesteps=48) / "config.json").read_text())["git_commit"]

    monkeypatch.setattr(ppo, "__file__", str(shutil.copy(SCRIPT, in_tmp_path / "ppo.py")))
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(in_tmp_path.parent))
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):  # set where a git hook runs the tests
        monkeypatch.delenv(name, raising=False)
    assert commit() is None
    git("init")
    git("add", "ppo.py")
    git("commit", "-m", "Add ppo.py")
    assert commit() == git("rev-parse", "HEAD")
    git("tag", "-a", "v1.0", "-m", "a release")
    assert commit() == git("rev-parse", "HEAD")
    Path("ppo.py").write_text("changed")
    assert commit() == git("rev-parse", "HEAD") + "-dirty"


def test_two_runs_of_the_same_second_get_two_folders(in_tmp_path, monkeypatch):
    monkeypatch.setattr(ppo.time, "time", lambda: 1_800_000_000.5)
    folders = [ppo.create_run_folder(ppo.Args(), ppo.Args(), ["python"]) for _ in range(3)]
    assert len(set(folders)) == 3
    assert all((folder / "checkpoints").is_dir() for folder in folders)


def test_a_run_that_starts_at_the_same_moment_is_left_alone(in_tmp_path, monkeypatch):
    monkeypatch.setattr(ppo.time, "time", lambda: 1_800_000_000.5)
    mkdir, theirs = os.mkdir, []

    def another_was_quicker(path, *mode):
        if not theirs and "1800000000" in str(path):
            theirs.append(Path(path, "1.pt" if Path(path).name == "checkpoints" else "checkpoints/1.pt"))
            os.makedirs(theirs[0].parent)
            theirs[0].write_text("theirs")
        mkdir(path, *mode)

    monkeypatch.setattr(os, "mkdir", another_was_quicker)
    with contextlib.suppress(SystemExit):
        assert train(total_timesteps=48) not in theirs[0].parents
    assert theirs[0].read_text() == "theirs"
    assert [str(path) for path in theirs[0].parent.rglob("*")] == [str(theirs[0])]


def test_the_script_alone_runs_without_wandb(in_tmp_path):
    shutil.copy(SCRIPT, "ppo.py")
    Path("broken").mkdir()
    Path("broken/wandb.py").write_text("raise RuntimeError('imported without --track')")
    stdout, stderr = run("--total-timesteps", "1024", script="ppo.py", env={"PYTHONPATH": "broken"})
    (folder,) = Path("runs").iterdir()
    assert f"run folder: {folder}" in stdout
    assert stderr == ""
    assert checkpoints(folder) == [2]


# ------------------------------------------------------------------------------------------------------ Rows and events


def test_metrics_csv(small):
    metrics = rows(small, "metrics.csv")
    assert list(metrics[0]) == ["global_step", *METRICS]
    assert [int(row["global_step"]) for row in metrics] == list(range(48, 1921, 48))
    assert all(np.isfinite([float(row[name]) for name in METRICS]).all() for row in metrics)
    assert float(metrics[0]["charts/learning_rate"]) == 2.5e-4
    assert float(metrics[-1]["charts/learning_rate"]) == pytest.approx(2.5e-4 / 40)


def test_episode_metrics_are_the_means_of_the_update(small):
    episodes = rows(small, "episodes.csv")
    for row in rows(small, "metrics.csv"):
        last = int(row["global_step"])
        ended = [episode for episode in episodes if last - 48 < int(episode["global_step"]) <= last]
        for name in ("return", "length"):
            mean = np.mean([float(episode[f"episodic_{name}"]) for episode in ended])
            assert float(row[f"charts/episodic_{name}"]) == pytest.approx(mean)


def test_an_update_without_episodes_has_no_episode_metrics(in_tmp_path):
    folder = train(env_id="Endless-v0", total_timesteps=96)
    assert [row["charts/episodic_return"] for row in rows(folder, "metrics.csv")] == ["nan", "nan"]
    assert rows(folder, "episodes.csv") == []
    assert "charts/episodic_return" not in scalars(folder)


def test_episodes_csv_has_the_true_episodes(in_tmp_path, monkeypatch):
    monkeypatch.setattr(environments_cli.Diary, "written", [])
    folder = train(env_id="Diary-v0", total_timesteps=96, num_envs=3, num_steps=32, checkpoints=1)
    diaries = [diary for diary in environments_cli.Diary.written if diary.life > 1]
    assert len(diaries) == 3
    true = [(3 * step, *episode) for diary in diaries for step, *episode in diary.episodes]
    assert len({step for step, *_ in true}) < len(true)  # several end on one step
    true.sort(key=lambda episode: episode[0])  # a stable sort: by environment within a step
    logged = rows(folder, "episodes.csv")
    assert list(logged[0]) == ["global_step", "episodic_return", "episodic_length", "seconds"]
    columns = (int, float, int)
    assert [tuple(kind(x) for kind, x in zip(columns, row.values())) for row in logged] == true
    seconds = [float(row["seconds"]) for row in logged]
    assert 0 < seconds[0] and seconds == sorted(seconds) and seconds[-1] < 10


def test_all_environments_may_end_on_one_step(in_tmp_path):
    folder = train(env_id="Counter-v0", num_envs=4, total_timesteps=64)
    assert [int(row["global_step"]) for row in rows(folder, "episodes.csv")] == [32] * 4 + [64] * 4


def assert_events_are_the_rows(folder):
    events, metrics, episodes = scalars(folder), rows(folder, "metrics.csv"), rows(folder, "episodes.csv")
    assert set(events) == set(METRICS)
    for name in METRICS[2:]:
        expected = [(int(row["global_step"]), np.float32(row[name])) for row in metrics]
        assert events[name] == expected, name
    for name in ("episodic_return", "episodic_length"):
        expected = [(int(row["global_step"]), np.float32(row[name])) for row in episodes]
        assert events[f"charts/{name}"] == expected


def test_events_are_the_rows(small):
    assert_events_are_the_rows(small)


def test_events_are_the_rows_after_a_resume(small, in_tmp_path):
    shutil.copytree(small, "run")
    for update in (30, 40):
        Path(f"run/checkpoints/{update}.pt").unlink()
    ppo.main(ppo.Args(resume="run"))
    assert len(list(Path("run").glob("events*"))) == 2
    assert_events_are_the_rows(Path("run"))


def texts(folder):
    """The arguments as TensorBoard shows them, of each start of the run."""
    events = EventAccumulator(str(folder)).Reload()
    assert events.SummaryMetadata("arguments").plugin_data.plugin_name == "text"
    return [event.tensor_proto.string_val[0].decode() for event in events.Tensors("arguments")]


def test_tensorboard_shows_the_arguments(small, in_tmp_path):
    (text,) = texts(small)
    for name, x in dataclasses.asdict(ppo.Args(**SMALL)).items():
        assert f"{name}: {x}\n" in text
    shutil.copytree(small, "run")
    Path("run/checkpoints/40.pt").unlink()
    time.sleep(1.1)  # TensorBoard reads the files in the order of the seconds in their names
    ppo.main(ppo.Args(resume="run"))
    assert texts("run") == [text] * 2


# ------------------------------------------------------------------------------------------------------------ The clock


def test_seconds_and_steps_per_second_are_of_the_training_alone(in_tmp_path, monkeypatch):
    """Neither checkpoints nor videos count, in no place."""
    clock, save, record = [0.0], ppo.Run.save, ppo.Run.record
    monkeypatch.setattr(ppo.time, "perf_counter", lambda: clock[0])
    compute_gae = ppo.compute_gae

    def gae_in_a_second(*arguments):
        clock[0] += 1.0
        return compute_gae(*arguments)

    def slow(method):
        def slowed(run):
            method(run)
            clock[0] += 1000.0

        return slowed

    monkeypatch.setattr(ppo, "compute_gae", gae_in_a_second)
    monkeypatch.setattr(ppo.Run, "save", slow(save))
    monkeypatch.setattr(ppo.Run, "record", slow(record))
    arguments = {"env_id": "Film-v0", "capture_video": True, "total_timesteps": 48 * 6, "checkpoints": 3}
    folder = train(**arguments)
    assert len(list(folder.glob("videos/*.mp4"))) == 3
    assert [float(row["charts/SPS"]) for row in rows(folder, "metrics.csv")] == [48.0] * 6
    assert {float(row["seconds"]) for row in rows(folder, "episodes.csv")} == set(range(6))
    assert [state(folder, update)["seconds"] for update in (2, 4, 6)] == [2.0, 4.0, 6.0]
    for update in (4, 6):
        (folder / "checkpoints" / f"{update}.pt").unlink()
    clock[0] = -5e6  # of another day
    ppo.main(ppo.Args(resume=str(folder)))
    assert [float(row["charts/SPS"]) for row in rows(folder, "metrics.csv")] == [48.0] * 6
    assert {float(row["seconds"]) for row in rows(folder, "episodes.csv")} == set(range(6))


# --------------------------------------------------------------------------------------------------------------- Status

STATUS = (
    r" *(\d+)%  step ([\d,]+)  [\d,]+ steps/s  (?:\d+ days?, )?\d+:\d\d:\d\d left  "
    r"mean return of the last 100 episodes (-?[\d.]+|none yet)"
)


def statuses(text):
    """(percent, step, mean return) of each status line."""
    found = [re.fullmatch(STATUS, line) for line in re.split(r"[\r\n]+", text.replace("\033[K", ""))]
    return [(int(m[1]), int(m[2].replace(",", "")), m[3]) for m in found if m]


def test_plain_lines_at_intervals_in_a_file(in_tmp_path, monkeypatch, capsys):
    clock = iter(range(10**6))
    monkeypatch.setattr(ppo.time, "perf_counter", lambda: float(next(clock)))  # 2 s an update and more
    folder = train()
    stdout, stderr = capsys.readouterr()
    lines = statuses(stdout)
    assert "\r" not in stdout and "\033" not in stdout and stderr == ""
    assert 3 < len(lines) < 40
    opening, note, *_, closing = stdout.splitlines()
    assert opening == f"{folder}: 40 updates, 0 done, cuda False, num_threads 1"
    assert note.startswith("--checkpoints 4: ")
    assert closing == f"run folder: {folder}"
    assert len(stdout.splitlines()) == len(lines) + 3
    returns = [float(row["episodic_return"]) for row in rows(folder, "episodes.csv")]
    assert lines[-1] == (100, 1920, f"{np.mean(returns[-100:]):.1f}")


def on_a_terminal(columns, **arguments):
    """What a run wrote to a terminal."""
    terminal, end = pty.openpty()
    fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("4H", 24, columns, 0, 0))

    def take_terminal():
        os.environ.pop("COLUMNS", None)
        os.dup2(end, 1)
        sys.__stdout__ = sys.stdout  # where the width is asked for

    pid = fork(take_terminal, **arguments)
    os.close(end)
    written = b""
    with contextlib.suppress(OSError):  # at the end of the process
        while part := os.read(terminal, 65536):
            written += part
    os.close(terminal)
    assert os.waitpid(pid, 0)[1] == 0, Path("stderr").read_text()
    return written.decode().replace("\r\n", "\n")


def test_a_live_line_on_a_terminal(in_tmp_path):
    text = on_a_terminal(200, total_timesteps=48 * 150, checkpoints=1)
    (folder,) = Path("runs").iterdir()
    assert text.splitlines()[0] == f"{folder}: 150 updates, 0 done, cuda False, num_threads 1"
    assert text.count("\r\033[K") >= 2 and text.count("\r") == text.count("\r\033[K")
    assert text.endswith(f"\nrun folder: {folder}\n")
    assert text.count("\n") == 3
    assert statuses(text)[-1][:2] == (100, 48 * 150)


def test_the_live_line_fits_the_terminal(in_tmp_path):
    text = on_a_terminal(60, total_timesteps=48 * 20, checkpoints=1)
    lines = [line for line in re.split(r"\r\033\[K|\n", text) if re.match(r" *\d+%", line)]
    assert len(lines) >= 2
    assert {len(line) for line in lines} == {59}  # one column less than there are, since some terminals wrap then


@pytest.mark.parametrize("total, left", [(4, "0:00:03"), (3601, "1:00:00"), (100_001, "1 day, 3:46:40")])
def test_the_time_left_in_hours_minutes_and_seconds(in_tmp_path, no_learning, monkeypatch, capsys, total, left):
    clock, finished = [0.0], Exception()

    def update():
        if clock[0]:
            raise finished
        clock[0] = 1.0

    monkeypatch.setattr(ppo.time, "perf_counter", lambda: clock[0])
    no_learning(update)
    with contextlib.suppress(type(finished)):
        train(total_timesteps=48 * total, checkpoints=1)
    (line,) = [line for line in capsys.readouterr().out.splitlines() if " left " in line]
    assert line == f"{1 / total:4.0%}  step 48  48 steps/s  {left} left  mean return of the last 100 episodes none yet"


def test_no_episode_yet(in_tmp_path, capsys):
    train(env_id="Endless-v0", total_timesteps=48)
    assert statuses(capsys.readouterr().out) == [(100, 48, "none yet")]


def test_a_resumed_run_says_where_it_goes_on(small, in_tmp_path, capsys):
    shutil.copytree(small, "run")
    Path("run/checkpoints/40.pt").unlink()
    ppo.main(ppo.Args(resume="run"))
    assert capsys.readouterr().out.splitlines()[0] == "run: 40 updates, 30 done, cuda False, num_threads 1"


# --------------------------------------------------------------------------------------------------- Videos and tracker


def tracked_records(folder):
    """The records in a run's file of wandb, in LevelDB's log format: blocks of 32 KiB with parts of records."""
    from wandb.proto.wandb_internal_pb2 import Record

    (file,) = folder.glob("offline-run-*/run-*.wandb")
    content, position, record = file.read_bytes(), 7, b""
    while position + 7 <= len(content):
        if (left := 32768 - position % 32768) < 7:
            position += left
            continue
        _, length, part = struct.unpack_from("<IHB", content, position)
        record += content[position + 7 : position + 7 + length]
        position += 7 + length
        if part in (1, 4):  # a whole record, the last part of one
            yield Record.FromString(record)
            record = b""


@pytest.fixture(scope="module")
def tracked(tmp_path_factory):
    """The folder in which a tracked run with videos was typed, without network and display; its records."""
    pytest.importorskip("wandb")
    with contextlib.chdir(tmp_path_factory.mktemp("tracked")):
        arguments = words(
            track=True, capture_video=True, total_timesteps=2048, checkpoints=2, wandb_project_name="project"
        )
        environment = {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "DISPLAY": "", "HOME": str(Path.cwd())}
        _, stderr = run(*arguments, env=environment)
        assert "warning" not in stderr
        return Path.cwd(), list(tracked_records(Path("wandb")))


def test_tracked_metrics_and_arguments(tracked):
    folder, records = tracked
    (run_folder,) = folder.glob("runs/*")
    history = [
        {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        for record in records
        if record.HasField("history")
    ]
    for row in rows(run_folder, "metrics.csv"):
        (logged,) = [x for x in history if "losses/entropy" in x and x["global_step"] == int(row["global_step"])]
        assert all(logged[name] == pytest.approx(float(row[name]), rel=1e-4) for name in METRICS[2:])
    returns = [x["charts/episodic_return"] for x in history if "charts/episodic_return" in x]
    assert returns[-1] == float(rows(run_folder, "episodes.csv")[-1]["episodic_return"])
    (opened,) = [record.run for record in records if record.HasField("run")]
    assert (opened.project, opened.display_name) == ("project", run_folder.name)
    config = {update.key: json.loads(update.value_json) for update in opened.config.update}
    assert config.items() >= json.loads((run_folder / "config.json").read_text())["arguments"].items()


def test_tracked_files(tracked):
    folder, records = tracked
    paths = [file.path for record in records for file in record.files.files]
    assert "ppo.py" in paths
    assert len([path for path in paths if path.endswith(".mp4")]) == 2
    (uploaded,) = folder.glob("wandb/offline-run-*/files/ppo.py")
    assert uploaded.read_bytes() == SCRIPT.read_bytes()


def test_a_video_at_every_checkpoint(tracked):
    (run_folder,) = tracked[0].glob("runs/*")
    videos = sorted(run_folder.glob("videos/*"))
    assert [video.name for video in videos] == ["2.mp4", "4.mp4"]
    assert checkpoints(run_folder) == [2, 4]
    for video in videos:
        frames = iio.imread(video, plugin="FFMPEG")  # (frames, height, width, 3)
        assert len(frames) > 5
        assert frames.shape[1:] == (400, 600, 3)
        assert len({frame.tobytes() for frame in frames}) > 5


def test_a_video_shows_what_each_action_saw(in_tmp_path, capsys):
    """Film-v0's pictures have as many bright columns of 10 as steps were taken, and sides that codecs don't take."""
    folder = train(env_id="Film-v0", capture_video=True, total_timesteps=48 * 2, checkpoints=1)
    assert [path.name for path in folder.glob("videos/*")] == ["2.mp4"]
    assert f"recording {folder}/videos/2.mp4\n" in capsys.readouterr().out
    frames = iio.imread(folder / "videos" / "2.mp4", plugin="FFMPEG")[:, :44, :60]  # (frames, height, width, 3)
    assert frames.shape == (4, 44, 60, 3)
    bright = (frames > 128).mean((1, 2, 3)) * 6
    np.testing.assert_allclose(bright, [0, 1, 2, 3], atol=0.1)


def test_tensorboard_shows_the_video(in_tmp_path):
    folder = train(env_id="CartPole-v1", capture_video=True, total_timesteps=48 * 4, checkpoints=2)
    images = EventAccumulator(str(folder)).Reload().Images("video")
    assert [image.step for image in images] == [96, 192]
    for image, update in zip(images, (2, 4)):
        length = len(iio.imread(folder / "videos" / f"{update}.mp4", plugin="FFMPEG"))
        frames = iio.imread(image.encoded_image_string, extension=".gif")
        assert frames.shape == (math.ceil(length / 5), 160, 240, 3)  # 10 pictures a second of 50
        assert len({frame.tobytes() for frame in frames}) > 1


@pytest.mark.parametrize("failing", ["tensorboard.patch", "init", "save", "log", "Video", "finish"])
def test_training_goes_on_when_the_tracker_fails(in_tmp_path, monkeypatch, capsys, failing):
    def call(name):
        def called(*arguments, **options):
            calls.append(name)
            if name == failing:
                raise RuntimeError("no network today")
            return tracker

        return called

    calls, tracker = [], types.SimpleNamespace(save=call("save"), log=call("log"), finish=call("finish"))
    wandb = types.ModuleType("wandb")
    wandb.__spec__ = importlib.machinery.ModuleSpec("wandb", None)
    wandb.init, wandb.Video = call("init"), call("Video")
    wandb.tensorboard = types.SimpleNamespace(patch=call("tensorboard.patch"))
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    arguments = {"env_id": "Film-v0", "total_timesteps": 48 * 2, "checkpoints": 2}
    folder = train(track=True, capture_video=True, **arguments)
    lines = capsys.readouterr().err.splitlines()
    assert failing in calls
    assert len(lines) == calls.count(failing)
    assert all("training goes on: no network today" in line for line in lines)
    assert_same_state(state(folder, 2), state(train(**arguments), 2))


# ------------------------------------------------------------------------------------------------------------- Metadata


def canonical(requirement):
    """'Gymnasium[classic-control]==1.4.0' → name, version; spaces and extras don't matter."""
    match = re.match(r"([\w.-]+)(?:\[[^]]*\])?\s*(?:==\s*([\w.+]+))?", requirement)
    return re.sub(r"[-_.]+", "-", match[1]).lower(), match[2]


@pytest.mark.parametrize("script", sorted(SCRIPT.parent.glob("*.py")), ids=lambda script: script.name)
def test_the_metadata_agrees_with_the_project(script):
    block = re.search(r"^# /// script\n((?:#(?: .*)?\n)+?)# ///$", script.read_text(), re.MULTILINE)[1]
    metadata = tomllib.loads("".join(line[2:] if line[:2] == "# " else line[1:] for line in block.splitlines(True)))
    project = tomllib.loads((TESTS.parent / "pyproject.toml").read_text())["project"]
    files = [TESTS.parent / f"requirements-{part}.txt" for part in ("procgen", "all")]  # the first goes in by itself
    requirements = [line for file in files for line in file.read_text().splitlines()]
    pins = dict(canonical(line) for line in requirements if line and not line.startswith(("#", "-")))
    offered = [project["dependencies"], *project["optional-dependencies"].values()]
    names = {canonical(requirement)[0] for group in offered for requirement in group}
    names |= {canonical(line)[0] for line in files[0].read_text().splitlines() if not line.startswith("#")}
    assert metadata["requires-python"].startswith(project["requires-python"])  # Procgen has no wheels past 3.12
    for requirement in metadata["dependencies"]:
        name, version = canonical(requirement)
        assert name in names
        assert version == pins[name], name


def test_the_extra_of_procgen_is_what_goes_beside_its_two_packages():
    lines = (TESTS.parent / "requirements-procgen.txt").read_text().splitlines()
    pins = {line for line in lines if not line.startswith(("#", "gym3==", "procgen-mirror=="))}
    assert len(lines) > len(pins) == 4
    assert pins == set(
        tomllib.loads((TESTS.parent / "pyproject.toml").read_text())["project"]["optional-dependencies"]["procgen"]
    )
