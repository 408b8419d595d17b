"""Scripts as a user types them: help, evaluation, and every wrong use, which costs one line and creates nothing."""

import contextlib
import dataclasses
import math
import pickle
import random
import re
import shutil
import signal
import sys
import warnings
import zipfile
from pathlib import Path

import numpy as np
import ppo
import pytest
import torch
from helpers import assert_same_state, checkpoints, error_line, fork, rows, run, state, train, tree, wait


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of a small run that ended, with settings that are not the default."""
    with contextlib.chdir(tmp_path_factory.mktemp("trained")):
        return train(seed=5, gamma=0.9, anneal_lr=False).resolve()


@pytest.fixture
def half(trained, in_tmp_path):
    """The same, as it was after half of its updates."""
    shutil.copytree(trained, "runs/half")
    for update in (30, 40):
        Path(f"runs/half/checkpoints/{update}.pt").unlink()
    return Path("runs/half")


@pytest.fixture
def type_here(monkeypatch):
    """Types words in this process, which is done before a new one has loaded torch."""

    def type_words(*typed):
        monkeypatch.setattr(sys, "argv", ["ppo.py", *map(str, typed)])
        return ppo.main(ppo.parse_arguments())

    return type_words


@pytest.fixture
def refused(in_tmp_path, capsys, type_here):
    """Types words that must cost one line and status 2, and leave every file as it was; returns the line."""

    def refused_words(*typed):
        before = tree(in_tmp_path)
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop, warnings.catch_warnings(record=True) as shown:
            warnings.simplefilter("always")
            type_here(*typed)
        stderr = capsys.readouterr().err
        assert stop.value.code == 2, stderr
        assert not [str(warning.message) for warning in shown]  # each would be two lines on stderr
        assert tree(in_tmp_path) == before
        return error_line(stderr)

    return refused_words


def assert_names(line, *parts):
    assert all(part in line for part in parts), line


# ---------------------------------------------------------------------------------------------------- Help and defaults


def test_help_names_every_argument():
    stdout, stderr = run("--help")
    assert stderr == ""
    help_text = " ".join(stdout.replace("│", " ").split())
    for field in dataclasses.fields(ppo.Args):
        assert f"--{field.name.replace('_', '-')}" in help_text
    assert "layers of 64 units are faster on one CPU core" in help_text  # why --cuda is off


def test_defaults_are_those_of_the_paper_and_cleanrl():
    published = {
        "exp_name": "ppo", "seed": 1, "torch_deterministic": True, "cuda": False, "track": False,
        "wandb_project_name": "cleanRL", "wandb_entity": None, "capture_video": False, "env_id": "CartPole-v1",
        "total_timesteps": 500_000, "learning_rate": 2.5e-4, "num_envs": 4, "num_steps": 128, "anneal_lr": True,
        "gamma": 0.99, "gae_lambda": 0.95, "num_minibatches": 4, "update_epochs": 4, "norm_adv": True,
        "clip_coef": 0.2, "clip_vloss": True, "ent_coef": 0.01, "vf_coef": 0.5, "max_grad_norm": 0.5,
        "target_kl": None, "anneal_clip": False, "bootstrap_truncated": False,
    }  # fmt: skip
    assert published.items() <= dataclasses.asdict(ppo.Args()).items()


# --------------------------------------------------------------------------------------------------- Wrong use as typed


@pytest.mark.parametrize(
    "typed, parts",
    [
        (["--env-id", "CartPol-v1"], ["CartPol-v1", "CartPole-v1"]),
        (["--env-id", "LunarLander-v2"], ["LunarLander-v2", "LunarLander-v3"]),  # gymnasium warns of old versions
        (["--num-envs", "nan"], ["--num-envs", "nan"]),
        (["--learning-rate", "nan"], ["--learning-rate nan", "finite"]),
        (["--cuda"], ["--cuda", "no GPU"]),
        (["--resume", "runs/missing"], ["--resume runs/missing"]),
        (["--evaluate", "runs/missing"], ["runs/missing", "there is no"]),
    ],
    ids=" ".join,
)
def test_wrong_use_as_typed(in_tmp_path, typed, parts):
    stdout, stderr = run(*typed, status=2, env={"CUDA_VISIBLE_DEVICES": ""})
    assert_names(error_line(stderr), *parts)
    assert stdout == ""
    assert not tree(in_tmp_path)


def test_an_unwritable_run_folder_as_typed(in_tmp_path):
    Path("runs").write_text("a file")
    stdout, stderr = run(status=2)
    assert_names(error_line(stderr), "runs/CartPole-v1__ppo__1__", "can't be written")
    assert stdout == ""
    assert tree(in_tmp_path) == {in_tmp_path / "runs": b"a file"}


@pytest.mark.parametrize("typed", [["--seeed", "3"], ["--seed", "three"], ["--seed"], ["--num-envs", "1.5"], ["ppo"]])
def test_words_that_are_no_arguments(refused, typed):
    assert_names(refused(*typed), typed[0], "--help")


# -------------------------------------------------------------------------------------------------------- Wrong numbers

COUNTS = "total_timesteps num_envs num_steps num_minibatches update_epochs checkpoints episodes num_threads".split()
ABOVE_0 = ["learning_rate", "clip_coef", "max_grad_norm", "target_kl"]
FROM_0 = ["ent_coef", "vf_coef"]
FROM_0_TO_1 = ["gamma", "gae_lambda"]


def test_every_number_is_in_a_list_of_this_test():
    numbers = {field.name for field in dataclasses.fields(ppo.Args) if field.type in (int, float, float | None)}
    assert numbers == {*COUNTS, *ABOVE_0, *FROM_0, *FROM_0_TO_1, "seed"}


@pytest.mark.parametrize(
    "name, value",
    [(name, value) for name in COUNTS for value in ("0", "-1")]
    + [(name, value) for name in ABOVE_0 for value in ("0", "-0.1", "nan", "inf", "-inf")]
    + [(name, value) for name in FROM_0 for value in ("-0.1", "nan", "inf", "-inf")]
    + [(name, value) for name in FROM_0_TO_1 for value in ("-0.1", "1.1", "nan", "inf", "-inf")]
    + [("seed", "-1")],
)
def test_a_number_out_of_range(refused, name, value):
    flag = f"--{name.replace('_', '-')}"
    line = refused(f"{flag}={value}")
    assert_names(line, flag, "must be a finite number")
    assert math.isclose(float(re.search(f"{flag} (\\S+):", line)[1]), float(value)) or value == "nan"


@pytest.mark.parametrize("name", [*FROM_0, *FROM_0_TO_1, "seed"])
def test_0_is_legal(name):
    ppo.validate(ppo.Args(**{name: 0}))


def test_more_threads_than_torch_can_count(refused):
    assert_names(refused("--num-threads", 2**40), "--num-threads", str(2**40))


@pytest.mark.parametrize(
    "typed, parts",
    [
        ("--num-envs 3 --num-steps 5", ["--num-envs 3", "--num-steps 5", "15", "--num-minibatches 4", "3 would do"]),
        ("--num-envs 3 --num-steps 7 --num-minibatches 20", ["21", "--num-minibatches 20", "7 would do"]),
        ("--num-minibatches 513", ["512", "--num-minibatches 513", "512 or fewer"]),
        ("--total-timesteps 511", ["512", "--total-timesteps 511", "512 or more"]),
    ],
)
def test_sizes_that_do_not_fit(refused, typed, parts):
    assert_names(refused(*typed.split()), *parts)


def test_sizes_that_just_fit():
    ppo.validate(ppo.Args(num_minibatches=512, total_timesteps=512))


# ---------------------------------------------------------------------------------------------------- Wrong environment


@pytest.mark.parametrize(
    "env_id, parts",
    [
        ("CartPole-v9", ["unknown", "CartPole-v1"]),
        ("cartpole-v1", ["unknown", "CartPole-v1"]),
        ("CartPole v1", ["unknown"]),
        ("", ["--env-id"]),
        ("no_such_module:CartPole-v1", ["no_such_module"]),
        ("a:b:c", ["a:b:c"]),
        (":CartPole-v1", [":CartPole-v1"]),
        ("Pendulum-v1", ["Box(-2.0, 2.0", "needs Discrete", "use ppo_continuous_action.py"]),
        ("MultiDiscrete-v0", ["MultiDiscrete([2 3])", "needs Discrete", "use ppo_multidiscrete.py"]),
        ("FrozenLake-v1", ["observes Discrete(16)", "needs a Box"]),
        ("Blackjack-v1", ["observes Tuple(", "needs a Box"]),
    ],
)
def test_an_environment_that_does_not_fit(refused, env_id, parts):
    assert_names(refused("--env-id", env_id), f"--env-id {env_id}", *parts)


def test_the_package_of_an_environment_is_missing(refused):
    line = refused("--env-id", "NeedsPackage-v0")
    assert_names(line, "--env-id NeedsPackage-v0", "no_such_package")
    assert "unknown" not in line  # the id is right


def test_box2d_is_missing(refused, monkeypatch):
    for name in [name for name in sys.modules if name.startswith(("Box2D", "gymnasium.envs.box2d"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "Box2D", None)
    assert_names(refused("--env-id", "LunarLander-v3"), "--env-id LunarLander-v3", "Box2D", "pip install")


@pytest.mark.parametrize(
    "package, env_id, flag",
    [
        ("pygame", "CartPole-v1", "--capture-video"),
        ("moviepy", "CartPole-v1", "--capture-video"),
        ("wandb", "CartPole-v1", "--track"),
    ],
)
def test_a_package_that_a_flag_needs_is_missing(refused, monkeypatch, package, env_id, flag):
    monkeypatch.setitem(sys.modules, package, None)
    assert_names(refused("--env-id", env_id, flag), package, "pip install")


@pytest.mark.parametrize("env_id", ["Random-v0", "OldMetadata-v0", "NeedsRenderer-v0"])
def test_an_environment_that_can_not_be_rendered(refused, env_id):
    line = refused("--env-id", env_id, "--capture-video")
    assert_names(line, env_id, "no_such_renderer" if env_id == "NeedsRenderer-v0" else "--capture-video")


def test_an_environment_without_render_modes_can_be_learned(in_tmp_path):
    train(env_id="Constant-v0", total_timesteps=48)


def test_cuda_without_a_gpu(refused, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert_names(refused("--cuda"), "--cuda", torch.__version__, "leave --cuda out")


# ---------------------------------------------------------------------------------------------------- Wrong run folders


@pytest.mark.parametrize("exists", [False, True])
def test_a_name_that_is_too_long(refused, exists):
    if exists:
        Path("runs").mkdir()
    refused("--exp-name", "x" * 300)


def test_runs_is_a_link_to_nowhere(in_tmp_path):
    """As after a disk was taken out. The alarm ends a search for a free name that never ends."""
    Path("runs").symlink_to("nowhere")
    status, stderr = wait(fork(lambda: signal.alarm(10)))
    assert status == 2, stderr
    assert_names(error_line(stderr), "runs/", "can't be written")
    assert not Path("nowhere").exists()


@pytest.mark.parametrize("flag", ["--resume", "--evaluate"])
def test_a_run_folder_without_checkpoints(refused, half, flag):
    shutil.rmtree(half / "checkpoints")
    assert_names(refused(flag, half), str(half), "checkpoint")
    (half / "checkpoints").mkdir()
    (half / "checkpoints" / "10.pt.tmp").write_text("half")
    assert_names(refused(flag, half), str(half), "checkpoint")


def test_resume_takes_a_run_folder(refused, half):
    checkpoint = half / "checkpoints" / "20.pt"
    assert_names(refused("--resume", checkpoint), f"--resume {checkpoint}", "run folder")
    assert_names(refused("--resume", half, "--evaluate", half), "--resume", "--evaluate")


@pytest.mark.parametrize("name", ["metrics.csv", "episodes.csv"])
def test_a_run_folder_without_its_rows(refused, half, name):
    (half / name).unlink()
    assert_names(refused("--resume", half), str(half), name)


@pytest.mark.parametrize("content", [b"global_step,episodic_return\nten,1\n", b"\xff\xfe\xfa"])
def test_a_run_folder_with_foreign_rows(refused, half, content):
    (half / "metrics.csv").write_bytes(content)
    assert_names(refused("--resume", half), "metrics.csv")


@pytest.mark.parametrize("typed", [["--resume"], ["--resume", "--gamma=0.9"]], ids=" ".join)
def test_resume_of_a_run_that_ended(trained, in_tmp_path, type_here, capsys, typed):
    shutil.copytree(trained, "run")
    before = tree(in_tmp_path)
    assert type_here(typed[0], "run", *typed[1:]) == Path("run")
    stdout, stderr = capsys.readouterr()
    assert_names(stdout, "run: is complete", "--evaluate run")
    assert stderr == ""
    assert tree(in_tmp_path) == before


# ------------------------------------------------------------------------------------ Arguments beside the checkpoint's


@pytest.mark.parametrize(
    "typed, parts",
    [
        ("--seed 6", ["--seed 6", "5"]),
        ("--seed 1", ["--seed 1", "5"]),  # the default
        ("--seed=1", ["--seed 1", "5"]),
        ("--gamma 0.99", ["--gamma 0.99", "0.9"]),  # the default
        ("--anneal-lr", ["--anneal-lr True", "False"]),  # the default
        ("--no-bootstrap-truncated", ["--bootstrap-truncated False", "True"]),  # the default
        ("--target-kl None", ["--target-kl None", "1.0"]),  # the default
        ("--total-timesteps 3840", ["--total-timesteps 3840", "1920"]),
        ("--env-id CartPole-v1", ["--env-id CartPole-v1", "Random-v0"]),  # the default
        ("--env-id Acrobot-v1", ["--env-id Acrobot-v1", "Random-v0"]),
    ],
)
def test_a_flag_that_contradicts_the_checkpoint(refused, half, typed, parts):
    assert_names(refused("--resume", half, *typed.split()), *parts, "leave the flag out")


@pytest.mark.parametrize("typed", ["--gamma 0.99", "--env-id CartPole-v1", "--no-clip-vloss"])
def test_a_flag_that_contradicts_the_evaluated_checkpoint(refused, half, typed):
    assert_names(refused("--evaluate", half, *typed.split()), typed.split()[0].replace("--no-", "--"))


def test_arguments_are_compared_without_a_command_line_too(in_tmp_path, half):
    with pytest.raises(SystemExit):
        ppo.main(ppo.Args(resume=str(half), seed=6))


@pytest.mark.parametrize("typed", ["", "--seed 5 --gamma=0.9 --no-anneal-lr --env-id Random-v0 --target-kl 1"])
def test_resume_needs_no_flags_and_takes_the_same_ones(half, type_here, typed):
    type_here("--resume", half, *typed.split())
    assert checkpoints(half) == [10, 20, 30, 40]


def test_words_that_are_no_flags_are_no_flags(half, type_here):
    half.rename("seed")
    type_here("--resume", "seed")
    assert checkpoints(Path("seed")) == [10, 20, 30, 40]


def test_a_checkpoint_that_imports_a_module(refused, half, type_here):
    Path("module_of_the_checkpoint.py").write_text("open('imported', 'w')")
    for update in (10, 20):
        change(half / "checkpoints" / f"{update}.pt", args={"env_id": "module_of_the_checkpoint:Random-v0"})
    sys.path.insert(0, "")
    try:
        for flag in ("--resume", "--evaluate"):
            assert_names(refused(flag, half), "module_of_the_checkpoint", "--env-id")
            assert not Path("imported").exists()
        type_here("--evaluate", half, "--env-id", "module_of_the_checkpoint:Random-v0")
        assert Path("imported").exists()
    finally:
        sys.path.remove("")


# -------------------------------------------------------------------------------------------- Damaged and hostile files


class Hostile:
    """Unpickled without care, it makes a file."""

    def __reduce__(self):
        return open, ("hacked", "w")


def change(file, path=(), **entries):
    """Changes entries of a checkpoint, at a path of keys inside; returns the content."""
    content = torch.load(file, weights_only=True)
    for name, value in entries.items():
        inside = content
        for key in path:
            inside = inside[key]
        inside[name] = {**inside[name], **value} if isinstance(value, dict) and value else value
    torch.save(content, file)
    return content


def truncate(file, part):
    file.write_bytes(file.read_bytes()[: int(part * file.stat().st_size)])


def other_zip(file):
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("notes.txt", "not a checkpoint")


DAMAGES = {
    "empty": lambda file: file.write_bytes(b""),
    "text": lambda file: file.write_text("not a checkpoint\n"),
    "1 % of it": lambda file: truncate(file, 0.01),
    "half of it": lambda file: truncate(file, 0.5),
    "99 % of it": lambda file: truncate(file, 0.99),
    "another zip": other_zip,
    "a number": lambda file: torch.save(3, file),
    "a list": lambda file: torch.save([1, 2], file),
    "a bare state dict": lambda file: torch.save(change(file)["model"], file),
    "hostile pickle": lambda file: file.write_bytes(pickle.dumps({"script": "ppo", "model": Hostile()})),
    "hostile old format": lambda file: torch.save(
        {"script": "ppo", "model": Hostile()}, file, _use_new_zipfile_serialization=False
    ),
    "hostile": lambda file: torch.save(torch.load(file, weights_only=True) | {"model": Hostile()}, file),
}


@pytest.mark.parametrize("flag", ["--resume", "--evaluate"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint(refused, half, flag, damage):
    file = half / "checkpoints" / "20.pt"
    DAMAGES[damage](file)
    assert_names(refused(flag, half), str(file), "not a whole checkpoint", "name another one")
    assert not Path("hacked").exists()


def test_no_flipped_byte_goes_unnoticed(trained, in_tmp_path, capsys):
    """Each is refused, or the content is the same, since zip files have bytes without meaning."""
    whole, wanted = (trained / "checkpoints" / "40.pt").read_bytes(), state(trained, 40)
    seed = random.SystemRandom().randrange(10**6)
    print("seed", seed)
    chance, file, refusals = random.Random(seed), Path("flipped.pt"), 0
    for position in chance.sample(range(len(whole)), 100):
        flipped = bytearray(whole)
        flipped[position] ^= 1 << chance.randrange(8)
        file.write_bytes(flipped)
        try:
            _, content = ppo.load_checkpoint(str(file))
        except SystemExit as stop:
            assert stop.code == 2
            refusals += 1
        else:
            assert content["args"] == wanted["args"]
            assert all(torch.equal(content["model"][name], wanted["model"][name]) for name in wanted["model"])
    assert refusals > 50
    assert capsys.readouterr().err.count("\n") == refusals


ADAM = ("optimizer", "state", 0)
TAMPERED = {
    "weights of another shape": {"model": {"actor.0.weight": torch.zeros(64, 4)}},
    "weights as text": {"model": {"actor.0.weight": "zeros"}},
    "other weights": {"model": {"actor.6.weight": torch.zeros(3)}},
    "no generator": {"rng": {}},
    "generator of another kind": {"rng": {"bit_generator": "MT19937"}},
    "short torch_rng": {"torch_rng": torch.zeros(3, dtype=torch.uint8)},
    "float torch_rng": {"torch_rng": torch.zeros(5056)},
    "update as text": {"update": "20"},
    "negative update": {"update": -20},
    "update after the end": {"update": 41},
    "negative step": {"global_step": -1},
    "step of another update": {"global_step": 48},
    "seconds as text": {"seconds": "1"},
    "seconds not finite": {"seconds": math.nan},
    "negative seconds": {"seconds": -1e9},
    "returns as text": {"recent_returns": ["1"]},
    "no returns": {"recent_returns": [None]},
    "unknown argument": {"args": {"learning_speed": 1}},
    "argument not as text": {"args": {3: 4}},
    "env_id as a number": {"args": {"env_id": 5}},
    "steps as text": {"args": {"num_steps": "16"}},
    "learning rate not finite": {"args": {"learning_rate": math.nan}},
    "unknown environment": {"args": {"env_id": "Rondom-v0"}},
    "another environment": {"args": {"env_id": "CartPole-v1"}},
    "Adam's means of another shape": {"path": ADAM, "exp_avg": torch.zeros(3)},
    "Adam's means as text": {"path": ADAM, "exp_avg": "zeros"},
    "Adam's means as integers": {"path": ADAM, "exp_avg": torch.zeros(10, dtype=torch.int64)},
    "Adam's step of another shape": {"path": ADAM, "step": torch.zeros(3)},
    "Adam's step as text": {"path": ADAM, "step": "3"},
}


@pytest.mark.parametrize("change_name", TAMPERED)
def test_a_tampered_checkpoint(refused, half, change_name):
    """In processes of their own, since some of these end without care in a crash."""
    file = half / "checkpoints" / "20.pt"
    change(file, **TAMPERED[change_name])
    before = tree(Path("runs"))
    status, stderr = wait(fork(resume=str(half), seed=5, gamma=0.9, anneal_lr=False))
    assert status == 2, stderr
    error_line(stderr)
    assert tree(Path("runs")) == before


@pytest.mark.parametrize("name", ["exp_avg", "exp_avg_sq"])
def test_means_of_adam_that_share_one_number(half, name):
    """The shape is right, but there is memory for one number only: to write them all would overwrite other memory."""
    file = half / "checkpoints" / "20.pt"
    parameters = len(state(half, 20)["optimizer"]["state"][0][name])
    change(file, path=ADAM, **{name: torch.zeros(1).expand(parameters)})
    status, stderr = wait(fork(resume=str(half), seed=5, gamma=0.9, anneal_lr=False))
    assert status in (0, 2), stderr
    assert stderr == "" if status == 0 else error_line(stderr)


@pytest.mark.parametrize("name", ppo.CHECKPOINT)
def test_a_checkpoint_that_lacks_an_entry(refused, half, name):
    file = half / "checkpoints" / "20.pt"
    content = change(file)
    del content[name]
    torch.save(content, file)
    assert_names(refused("--resume", half), str(file), name)


@pytest.mark.parametrize("path, name", [(ADAM, "exp_avg_sq"), (("args",), "gamma")])
def test_a_checkpoint_that_lacks_an_inner_entry(half, path, name):
    file = half / "checkpoints" / "20.pt"
    content = change(file)
    inside = content
    for key in path:
        inside = inside[key]
    del inside[name]
    torch.save(content, file)
    status, stderr = wait(fork(resume=str(half), seed=5, gamma=0.9, anneal_lr=False))
    assert status == 2, stderr
    assert_names(error_line(stderr), str(file))


@pytest.mark.parametrize("entry", [{"betas": "0.9"}, {"betas": (0.5, 0.5)}, {"eps": None}, {"amsgrad": True}])
def test_settings_of_adam_are_refused_or_not_used(trained, half, entry):
    """The arguments say them already."""
    change(half / "checkpoints" / "20.pt", path=("optimizer", "param_groups", 0), **entry)
    status, stderr = wait(fork(resume=str(half), seed=5, gamma=0.9, anneal_lr=False))
    if status == 0:
        assert_same_state(state(half, 40), state(trained, 40))
    else:
        assert status == 2, stderr
        error_line(stderr)


@pytest.mark.parametrize("flag", ["--resume", "--evaluate"])
def test_a_checkpoint_of_another_script(refused, half, flag):
    change(half / "checkpoints" / "20.pt", script="ppo_atari")
    assert_names(refused(flag, half), "20.pt", "ppo_atari.py")


# ------------------------------------------------------------------------------------------------ Numbers that run away


@pytest.mark.parametrize(
    "env_id, what",
    [
        ("NaN-obs-v0", "observation"),
        ("Infinite-obs-v0", "observation"),
        ("Huge-obs-v0", "observation"),
        ("NaN-reward-v0", "loss"),
        ("Infinite-reward-v0", "loss"),
        ("Huge-reward-v0", "loss"),
    ],
)
def test_what_is_not_finite_stops_the_run_and_leaves_the_last_checkpoint(in_tmp_path, env_id, what):
    status, stderr = wait(fork(env_id=env_id, checkpoints=20))  # the 61st step of the environments is in update 4
    assert status == 1, stderr
    (folder,) = Path().glob("runs/*")
    assert_names(error_line(stderr), "update 4:", what, str(folder))
    assert checkpoints(folder) == [2]
    assert all(weights.isfinite().all() for weights in state(folder, 2)["model"].values())
    assert len(rows(folder, "metrics.csv")) == 3
    ppo.main(ppo.Args(evaluate=str(folder), episodes=1))


# ----------------------------------------------------------------------------------------------------------- Evaluation


def evaluation(text):
    """Mean, standard deviation, mean length, and return and length of each episode, as printed."""
    summary = re.search(r"return (\S+) ± (\S+), length (\S+) over (\d+) episodes", text)
    episodes = re.findall(r"^episode (\d+): return (\S+), length (\d+)$", text, re.MULTILINE)
    assert [int(number) for number, *_ in episodes] == list(range(int(summary[4])))
    return [float(x) for x in summary.groups()[:3]], np.array(episodes, float)[:, 1:]


@pytest.fixture(scope="module")
def balanced(tmp_path_factory):
    """The folder of a short run of CartPole, whose return is its length."""
    with contextlib.chdir(tmp_path_factory.mktemp("balanced")):
        return train(env_id="CartPole-v1", total_timesteps=480, checkpoints=10).resolve()


def test_evaluate_as_typed(balanced, in_tmp_path, type_here, capsys):
    shutil.copytree(balanced, "run")
    before = tree(in_tmp_path)
    stdout, stderr = run("--evaluate", "run", "--episodes", "12")
    assert stderr == ""
    assert "run/checkpoints/10.pt: return" in stdout
    (mean, std, length), episodes = evaluation(stdout)
    assert len(episodes) == 12
    assert len(set(episodes[:, 0])) > 3
    assert (episodes[:, 0] == episodes[:, 1]).all()
    assert np.allclose([mean, std, length], [episodes.mean(), episodes[:, 0].std(), episodes.mean()], atol=0.05)
    type_here("--evaluate", "run", "--episodes", 12)
    assert capsys.readouterr().out == stdout  # the same twice
    assert tree(in_tmp_path) == before


def test_evaluate_one_checkpoint_with_another_seed(balanced, type_here, capsys):
    returns = []
    for name, *typed in (["10.pt"], ["9.pt", "--seed", 7]):
        assert type_here("--evaluate", balanced / "checkpoints" / name, *typed) is None
        stdout = capsys.readouterr().out
        assert f"checkpoints/{name}: return" in stdout
        returns.append(evaluation(stdout)[1][:, 0].tolist())
    assert returns[0] != returns[1]


def test_evaluate_with_a_video(balanced, in_tmp_path, type_here):
    shutil.copytree(balanced, "run")
    before = set(tree(in_tmp_path))
    type_here("--evaluate", "run", "--episodes", 1, "--capture-video")
    assert set(tree(in_tmp_path)) - before == {in_tmp_path / "run/checkpoints/10.mp4"}
