"""docs/build-it.md: the program runs after every step and does what the step is for; the last one computes what ppo.py
computes, and learns."""

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import build_it
import numpy as np
import ppo
import pytest
import torch

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "build-it.md").read_text("utf-8")
VERSIONS = build_it.versions()
STEPS = range(1, len(VERSIONS))
LAST = VERSIONS[-1]


def small(text, total_timesteps, **settings):
    """The program with fewer steps, and with other settings."""
    for name, value in ({"total_timesteps": total_timesteps} | settings).items():
        text, times = re.subn(rf"(?m)^{name} = [^#\n]+", f"{name} = {value}", text)
        assert times == 1, name
    return text


@pytest.fixture
def play(in_tmp_path, monkeypatch, capsys):
    """Runs a program in this process, four updates by default; returns its variables and what it printed."""

    def play(text, total_timesteps=4 * 512, **settings):
        Path("my_ppo.py").write_text(small(text, total_timesteps, **settings), "utf-8")
        monkeypatch.setattr(sys, "argv", ["my_ppo.py", "3"])
        with torch.random.fork_rng():
            variables = runpy.run_path("my_ppo.py", run_name="__main__")
        return variables, capsys.readouterr().out

    return play


@pytest.mark.parametrize("step", STEPS)
def test_it_runs_after_every_step(step, play):
    v, printed = play(VERSIONS[step])
    last = printed.splitlines()[-1]
    assert re.fullmatch(r"seed 3: mean return of the last 100 episodes: \d+\.\d", last)
    assert sum(v["ended"]) + v["running"].sum() == 4 * 512  # CartPole pays 1 a step: no step is lost or counted twice
    if step >= 2:  # a done marks the first observation of an episode; before any other, the cart went on at its speed
        obs = v["obs"]
        ahead = obs[:-1, :, 0] + 0.02 * obs[:-1, :, 1]
        goes_on = np.isclose(obs[1:, :, 0], ahead, atol=1e-6)
        assert 0 < v["dones"].sum() < 100 and (v["dones"][1:] == ~goes_on).all()
    if step >= 5:
        names = ("rewards", "values", "dones", "next_value", "next_done", "gamma", "gae_lambda")
        advantages, returns = ppo.compute_gae(*[v[name] for name in names])
        np.testing.assert_allclose(v["advantages"], advantages, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(v["returns"], returns, rtol=1e-5, atol=1e-5)
    if step >= 6:
        assert v["optimizer"].state_dict()["state"][0]["step"] == 4 * 4 * 4


def test_the_last_one_computes_what_ppo_py_computes(play):
    v, _ = play(LAST)
    indices = v["mb"]
    args = ppo.Args()
    names = ("obs", "actions", "log_probs", "values", "advantages", "returns")
    mb = ppo.Batch(*[v[f"b_{name}"][indices] for name in names])
    loss, debug = ppo.ppo_loss(v["log_prob"], v["entropy"], v["value"], mb, args.clip_coef, args)
    assert v["loss"].item() == pytest.approx(loss.item(), abs=1e-6)
    logged = [debug[f"losses/{name}"].item() for name in ("policy_loss", "value_loss", "entropy", "approx_kl")]
    assert v["losses"][-1] == pytest.approx(logged, abs=1e-6)
    settings = "gamma gae_lambda learning_rate update_epochs num_minibatches num_envs num_steps"
    for name in f"{settings} clip_coef vf_coef ent_coef max_grad_norm target_kl".split():
        assert v[name] == getattr(args, name), name
    gradients = torch.cat([p.grad.flatten() for p in v["agent"].parameters()])
    assert gradients.norm() <= v["max_grad_norm"] + 1e-5
    assert v["optimizer"].param_groups[0]["lr"] == pytest.approx(v["learning_rate"] / v["num_updates"])


def test_the_last_one_learns_as_typed(tmp_path):
    """At random an episode lasts 22 steps."""
    build = [sys.executable, ROOT / "docs" / "build_it.py", str(STEPS[-1])]
    text = subprocess.run(build, capture_output=True, text=True, check=True).stdout
    assert text == LAST and f"{len(LAST.splitlines())} lines" in PAGE
    (tmp_path / "my_ppo.py").write_text(small(text, 20 * 512), "utf-8")
    done = subprocess.run([sys.executable, "my_ppo.py", "2"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr
    assert float(done.stdout.split()[-1]) > 30


def test_seeds_of_a_step_are_trained_and_summed_up(monkeypatch, capsys):
    program = "import sys\nprint('seed', int(sys.argv[1]) * 500_000)\n"
    monkeypatch.setattr(build_it, "versions", lambda: ["", program])
    monkeypatch.setattr(sys, "argv", ["build_it.py", "1", "--seeds", "3"])
    build_it.main()
    assert capsys.readouterr().out == "step 1, 3 seeds: 50000 to 150000, mean 100000\n"


def test_what_is_measured_without_a_step_is_the_program_without_it(play):
    lines = [line for line in PAGE.splitlines() if line.startswith("sed ") and "whole.py > without" in line]
    assert len(lines) == 3
    for line in lines:
        Path("whole.py").write_text(LAST, "utf-8")
        subprocess.run(["bash", "-c", line], check=True)
        text = Path(line.split()[-1]).read_text("utf-8")
        assert 1 <= sum(old != new for old, new in zip(LAST.splitlines(), text.splitlines(), strict=True)) <= 2
        play(text, 512)


def test_the_answers_of_the_exercises_run_and_print_what_the_page_says(tmp_path):
    """They are edits of the last program; ratios are 1 before anything is learned, then 0.92 to 1.07."""
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    outputs = []
    for name in ("acrobot.py", "ratios.py"):
        (line,) = [line for line in PAGE.splitlines() if line.endswith(f"> {name}")]
        subprocess.run(["bash", "-c", line], cwd=tmp_path, env=environment, check=True)
        path = tmp_path / name
        path.write_text(path.read_text("utf-8").replace("500_000", "4_096"), "utf-8")
        done = subprocess.run([sys.executable, name], cwd=tmp_path, check=True, capture_output=True, text=True)
        outputs.append(done.stdout.split())
    assert outputs[0][-1] == "-500.0"  # Acrobot, after eight updates
    ratios = [float(word) for word in outputs[1][:32]]
    assert ratios[:2] == [1.0, 1.0] and ratios[2] < 1.0 < ratios[3]
    assert [round(x, 2) for x in ratios[-2:]] == [0.92, 1.07]
