"""docs/build-it.md: the program runs after every step and does what the step is for; the last one computes what ppo.py
computes and learns; the page says of it what is so."""

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
PAGE = (ROOT / "docs" / "build-it.md").read_text()
VERSIONS = build_it.versions()
STEPS = range(1, len(VERSIONS))
LAST = VERSIONS[-1]
BLOCKS = [block for _, block in build_it.BLOCK.findall(PAGE)]


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
        Path("my_ppo.py").write_text(small(text, total_timesteps, **settings))
        monkeypatch.setattr(sys, "argv", ["my_ppo.py", "3"])
        with torch.random.fork_rng():
            variables = runpy.run_path("my_ppo.py", run_name="__main__")
        return variables, capsys.readouterr().out

    return play


@pytest.mark.parametrize("step", STEPS)
def test_it_runs_after_every_step(step, play):
    v, printed = play(VERSIONS[step])
    assert re.fullmatch(r"seed 3: mean return of the last 100 episodes: \d+\.\d", printed.splitlines()[-1])
    assert sum(v["ended"]) + v["running"].sum() == 4 * 512  # CartPole pays 1 a step: no step is lost or counted twice
    if step >= 2:  # a done marks the first observation of an episode; before any other, the cart went on at its speed
        obs, ahead = v["obs"], v["obs"][:-1, :, 0] + 0.02 * v["obs"][:-1, :, 1]
        goes_on = np.isclose(obs[1:, :, 0], ahead, atol=1e-6)
        assert 0 < v["dones"].sum() < 100 and (v["dones"][1:] == ~goes_on).all()
    if step in (4, 5):  # nothing is learned yet, so the policy of the rollout is that of now
        with torch.no_grad():
            _, log_probs, _, values = v["agent"].get_action_and_value(
                torch.from_numpy(v["obs"]), torch.from_numpy(v["actions"])
            )
        np.testing.assert_allclose(v["log_probs"], log_probs, atol=1e-6)
        np.testing.assert_allclose(v["values"], values, atol=1e-6)
    if step >= 5:
        names = ("rewards", "values", "dones", "next_value", "next_done", "gamma", "gae_lambda")
        advantages, returns = ppo.compute_gae(*(v[name] for name in names))
        np.testing.assert_allclose(v["advantages"], advantages, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(v["returns"], returns, rtol=1e-5, atol=1e-5)
    if step >= 6:
        assert v["optimizer"].state_dict()["state"][0]["step"] == 4 * 4 * 4


def test_the_last_one_computes_what_ppo_py_computes(play):
    v, _ = play(LAST)
    mb, args = v["mb"], ppo.Args()
    batch = [v[f"b_{name}"][mb] for name in ("log_probs", "values", "advantages", "returns")]
    loss, debug = ppo.ppo_loss(
        v["log_prob"], v["entropy"], v["value"], *batch,
        args.clip_coef, args.norm_adv, args.clip_vloss, args.ent_coef, args.vf_coef,
    )  # fmt: skip
    assert v["loss"].item() == pytest.approx(loss.item(), abs=1e-6)
    logged = [debug[f"losses/{name}"].mean().item() for name in ("policy_loss", "value_loss", "entropy", "approx_kl")]
    assert v["losses"][-1] == pytest.approx(logged, abs=1e-6)
    for name in ("gamma", "gae_lambda", "learning_rate", "update_epochs", "num_minibatches", "num_envs", "num_steps",
                 "clip_coef", "vf_coef", "ent_coef", "max_grad_norm", "target_kl"):  # fmt: skip
        assert v[name] == getattr(args, name), name
    fresh = v["Agent"]()
    for network, last in ((fresh.actor, 0.01), (fresh.critic, 1.0)):
        gains = [torch.linalg.matrix_norm(layer.weight.detach(), 2).item() for layer in network[::2]]
        assert gains == pytest.approx([2**0.5, 2**0.5, last], abs=1e-5)


def test_the_norm_the_rate_and_the_kl_are_what_their_steps_say(play):
    v, _ = play(LAST)
    gradients = torch.cat([p.grad.flatten() for p in v["agent"].parameters()])
    assert gradients.norm() <= v["max_grad_norm"] + 1e-5
    assert v["optimizer"].param_groups[0]["lr"] == pytest.approx(v["learning_rate"] / v["num_updates"])
    assert v["optimizer"].param_groups[0]["eps"] == 1e-5
    rows = Path("my_ppo.csv").read_text().splitlines()
    assert len(rows) == 1 + v["num_updates"] and len({row.count(",") for row in rows}) == 1
    v, _ = play(LAST, target_kl="-1.0")
    assert len(v["losses"]) == v["num_minibatches"]  # one epoch, after which the KL is above


def test_the_last_one_learns_as_typed(tmp_path):
    """At random an episode lasts 22 steps."""
    build = [sys.executable, ROOT / "docs" / "build_it.py", str(STEPS[-1])]
    text = subprocess.run(build, capture_output=True, text=True, check=True).stdout
    assert text == LAST
    (tmp_path / "my_ppo.py").write_text(small(text, 20 * 512))
    done = subprocess.run([sys.executable, "my_ppo.py", "2"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr
    *_, line, end = done.stdout.splitlines()
    assert re.fullmatch(r" 10,240 steps: mean return [\d.]+, KL \d\.\de-\d\d", line)
    assert float(end.split()[-1]) > 30


def test_what_the_page_says_of_the_program():
    assert len(STEPS) == 13 and len(re.findall(r"^## \d+\. ", PAGE, re.M)) == 13
    assert f"{len(LAST.splitlines())} lines" in PAGE and 120 <= len(LAST.splitlines()) <= 140
    for number, block in enumerate(BLOCKS[1:], 2):
        assert 0 < len(re.findall(r"^[-+]", block, re.M)) <= 36, f"step {number} is more than a few lines"
    for text in VERSIONS[1:]:
        unused = [] if text is LAST else ["--ignore", "B007"]  # of a loop that a later step uses
        for words in (["check", *unused], ["format", "--check"]):
            ruff = [Path(sys.executable).with_name("ruff"), *words, "--stdin-filename", "my_ppo.py", "-"]
            done = subprocess.run(ruff, input=text, cwd=ROOT, capture_output=True, text=True)
            assert done.returncode == 0, done.stdout


def test_its_lines_are_where_the_page_says_in_ppo_py():
    """A row of the last table: step, code in backticks, link to the definition or tag in ppo.py, its code."""
    table = PAGE.partition("## Where it is in ppo.py")[2]
    rows = re.findall(r"^\| (\d+) \| `(.+?)` \| \[.+?\]\(\.\./cleanrl/ppo\.py#([\w-]+)\) \| `(.+?)` \|$", table, re.M)
    assert len(rows) == len(re.findall(r"^\| \d", table, re.M)) and {int(row[0]) for row in rows} == set(STEPS)
    source = (ROOT / "cleanrl" / "ppo.py").read_text()
    for step, mine, name, theirs in rows:
        added = "\n".join(re.findall(r"^\+(.*)", BLOCKS[int(step) - 1], re.M)) or BLOCKS[0]
        assert mine in added, f"step {step} brings no {mine}"
        if re.fullmatch(r"[a-z]+-\d+", name):
            where = "\n".join(re.findall(rf"^.*\[{name}\](?:.*\n){{2}}", source, re.M))  # the line and the next
        else:
            where = re.search(rf"(?ms)^(?:class|def) {name}\b.*?(?=^(?:class|def|# -))", source)[0]
        assert theirs in where, f"ppo.py#{name} holds no {theirs}"


def test_what_is_measured_without_a_step_is_the_program_without_it(play):
    commands = re.findall(r"^(sed .+ whole\.py) > without_\d+\.py$", PAGE, re.M)
    assert len(commands) == 3 and "sed 's/500_000/150_000/' my_ppo.py > whole.py" in PAGE and "= 500_000" in LAST
    for command in commands:
        Path("whole.py").write_text(LAST)
        text = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True).stdout
        assert 1 <= sum(old != new for old, new in zip(LAST.splitlines(), text.splitlines(), strict=True)) <= 2
        play(text, 512)


def test_the_page_shows_what_the_commands_printed(in_tmp_path):
    """benchmark/results/build_it.txt: the last line of each run, and at the end what awk found of seed 5's curve."""
    *lines, curve = (ROOT / "benchmark" / "results" / "build_it.txt").read_text().splitlines()
    found = [line.rsplit(": ", 1)[1] for line in lines]
    names = ("the whole program", "step 5 without", "step 7 without", "step 8 with")
    files = ("whole.py", "without_5.py", "without_7.py", "without_8.py")
    heads = [f"seed {seed}" for seed in range(1, 6)] + [f"{file}, seed {seed}" for file in files for seed in (1, 2, 3)]
    assert lines == [f"{head}: mean return of the last 100 episodes: {x}" for head, x in zip(heads, found, strict=True)]
    assert f"| mean return of the last 100 episodes | {' | '.join(found[:5])} |" in PAGE
    for i, name in enumerate(names):
        cells = " | ".join(found[5 + 3 * i : 8 + 3 * i])
        assert re.search(rf"^\| {name}.* \| {re.escape(cells)} \|$", PAGE, re.M), name
    first, best, calm = curve.split()
    assert f"Seed 5 first had 475 after {int(first):,} steps, {float(best):.1f} at its best" in PAGE
    assert (
        f"a KL below 0.001 in\n{float(calm):.3f} of its updates" in PAGE
        and "below 0.001 in 99 of 100 updates of seed 5" in PAGE
    )
    assert round(float(calm), 2) == 0.99
    command = re.search(r"^awk (?:.|\n)+? my_ppo\.csv$", PAGE, re.M)[0]
    rows = ((512, 20.5, 0.002), (1024, 480.0, 0.0005), (1536, 493.02, 0.0001), (2048, 476.0, 0.0))
    text = "step,return,policy_loss,value_loss,entropy,kl\n" + "".join(f"{x},{y},0,0,0,{kl}\n" for x, y, kl in rows)
    Path("my_ppo.csv").write_text(text)
    assert subprocess.run(["bash", "-c", command], capture_output=True, text=True).stdout == "1024 493.02 0.75\n"


def test_a_diff_that_does_not_fit_is_refused():
    text = "a = 1\nb = 2\na = 1\n"
    assert (
        build_it.apply("@@ top\n a = 1\n-b = 2\n+b = 3\n@@ end\n b = 3\n+c = 4\n", text)
        == "a = 1\nb = 3\nc = 4\na = 1\n"
    )
    for wrong in (" a = 1\n+c = 3\n", "-c = 3\n"):
        with pytest.raises(ValueError, match="should once"):
            build_it.apply(wrong, text)
