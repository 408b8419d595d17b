"""Edits that researchers make (tests/changes/, shown on docs/make-it-your-own.md) do what they should, in each script.

Each edit is a diff of ppo.py. The other scripts get it by a three-way merge; where their text differs, by a diff
of their own, NAME.SCRIPT.diff. A script that an edit has nothing to do with isn't in the table below.
"""

import json
import re
import subprocess
import textwrap
from pathlib import Path

import check_variants
import every_script
import gymnasium as gym
import numpy as np
import pytest
import torch
from helpers import assert_same_state, load_script, rows, state

ROOT = Path(__file__).parents[1]
FAMILY = check_variants.load(ROOT)
CHANGES = ROOT / "tests" / "changes"
TINY = {"total_timesteps": 384, "num_envs": 4, "num_steps": 32, "num_minibatches": 2, "update_epochs": 2}
FRAMES = {"total_timesteps": 48, "num_envs": 2, "num_steps": 8, "num_minibatches": 2, "update_epochs": 1}
ENVIRONMENTS = {
    "ppo": {"env_id": "CartPole-v1"},
    "ppo_multidiscrete": {"env_id": "CartPole-v1"},
    "ppo_lstm": {"env_id": "CartPole-v1"},
    "ppo_continuous_action": {"env_id": "Pendulum-v1"},
    "ppo_continuous_action_lstm": {"env_id": "Pendulum-v1"},
    "ppo_continuous_action_gpu": {"env_id": "Pendulum", "device": "cpu"},
    "ppo_atari": {"env_id": "BreakoutNoFrameskip-v4", "device": "cpu"},
    "ppo_atari_visual": {"env_id": "BreakoutNoFrameskip-v4", "device": "cpu", "capture_video": False},
    "ppo_atari_lstm": {"env_id": "BreakoutNoFrameskip-v4", "device": "cpu"},
    "ppo_atari_envpool": {"env_id": "Breakout-v5", "device": "cpu"},
    "ppo_procgen": {"env_id": "coinrun", "device": "cpu"},
    "ppo_atari_multigpu": {"env_id": "BreakoutNoFrameskip-v4", "device": "cpu"},
}
VECTORS = ["ppo", "ppo_multidiscrete", "ppo_continuous_action"]
MEMORY = ["ppo_lstm", "ppo_continuous_action_lstm"]
PIXELS = ["ppo_atari", "ppo_atari_visual", "ppo_atari_lstm", "ppo_atari_multigpu"]
BATCHED = ["ppo_atari_envpool", "ppo_procgen"]  # their environments are no Gymnasium wrappers
SIMULATORS = ["ppo_continuous_action_gpu"]  # their environments hand over tensors
NONE = {  # why no edit is made in these
    "ppo_numpy": "its edits change gradients too: docs/gradients-by-hand.md",
    "ppo_continuous_action_numpy": "as ppo_numpy",
    "ppo_atari_multigpu_envpool": "its text is that of ppo_atari_multigpu and ppo_atari_envpool",
}
SCRIPTS = {
    "01_relu_network": [*VECTORS, *SIMULATORS],
    "02_module_added": [*VECTORS, *MEMORY, *PIXELS, *BATCHED, *SIMULATORS],
    "03_shared_trunk": VECTORS[:2],
    "04_temperature": [*VECTORS, *MEMORY, *PIXELS, *BATCHED, *SIMULATORS],
    "05_observation_scaling": ["ppo"],
    "06_adamw_groups": VECTORS[:2],
    "07_agent_zero_grad": [*VECTORS, *PIXELS, *BATCHED, *SIMULATORS],
    "08_extra_loss_of_obs": [*VECTORS, *PIXELS[:2], *BATCHED],
    "09_scalar_debug": [*VECTORS, *MEMORY, *PIXELS, *BATCHED, *SIMULATORS],
    "10_reward_wrapper": [*VECTORS, *MEMORY, *PIXELS],
    "11_normalize_observation": [*VECTORS[:2], *MEMORY[:1]],
    "12_forward_hook": [*VECTORS, *MEMORY, *PIXELS[:3], *BATCHED],
    "13_anneal_entropy": [*VECTORS, *PIXELS, *BATCHED, *SIMULATORS],
    "14_epsilon_mixture": ["ppo", "ppo_atari", "ppo_procgen"],
    "15_another_optimizer": [*VECTORS, *MEMORY, *PIXELS, *BATCHED, *SIMULATORS],
    "16_option_below_zero": ["ppo", "ppo_multidiscrete"],
    "17_gradient_norm": [*VECTORS, *MEMORY, *PIXELS[:3], *BATCHED, *SIMULATORS],
    "25_start_from": [*VECTORS, *PIXELS, *BATCHED, *SIMULATORS],
}
# `make test` trains all edits of ppo.py, and of other scripts those that would fail first; `make test-changes` all
CASES = []
for change, scripts in SCRIPTS.items():
    for script in scripts:
        is_first = change == "02_module_added" and script not in ("ppo_procgen", *PIXELS[1:])  # slow networks
        if change == "04_temperature":
            is_first = (CHANGES / f"{change}.{script}.diff").is_file()
        marks = () if script == "ppo" or is_first else pytest.mark.seldom
        CASES.append(pytest.param(change, script, marks=marks))


def patched(script: Path, diff: Path, folder: Path) -> Path:
    """A copy of the script with the diff applied."""
    copy = folder / script.name
    copy.write_bytes(script.read_bytes())
    subprocess.run(["patch", "--silent", "--no-backup-if-mismatch", copy, diff], check=True, stdout=subprocess.DEVNULL)
    return copy


def edited(script: str, change: str, folder: Path) -> Path:
    """A copy of the script with the change, by its own diff, its parent's, or ppo.py's."""
    parent = FAMILY[script].parent.name if script != "ppo" else "ppo"
    (folder / "edited").mkdir()
    path = ROOT / "cleanrl" / f"{script}.py"
    for owner in (script, parent, "ppo"):
        diff = CHANGES / (f"{change}.diff" if owner == "ppo" else f"{change}.{owner}.diff")
        if diff.exists():
            break
    if owner == script:
        return patched(path, diff, folder / "edited")
    (folder / "parent").mkdir()
    base = ROOT / "cleanrl" / f"{owner}.py"
    theirs = patched(base, diff, folder / "parent")
    merged = subprocess.run(["git", "merge-file", "-p", path, base, theirs], capture_output=True, text=True)
    assert merged.returncode == 0, f"{change} of {owner}.py conflicts with {script}.py {merged.returncode} times"
    result = folder / "edited" / path.name
    result.write_text(merged.stdout)
    return result


def metrics(folder: Path) -> dict[str, np.ndarray]:
    table = rows(folder, "metrics.csv")
    return {name: np.array([float(row[name]) for row in table]) for name in table[0]}


def checkpoint(folder: Path) -> dict:
    (path,) = folder.glob("checkpoints/*.pt")
    return torch.load(path, weights_only=True)


def first_weights(module, args) -> dict:
    torch.manual_seed(args.seed)
    envs = module.VectorEnv(args, args.num_envs)
    agent = module.Agent(envs, args)
    envs.close()
    return {name: value.clone() for name, value in agent.state_dict().items()}


def train(script: str, path: Path, **options):
    module = load_script(path)
    sizes = TINY if script in VECTORS else FRAMES  # three updates either way
    args = module.Args(**{**sizes, **ENVIRONMENTS[script], **options})
    return module, args, module.main(args)


def assert_acting_draws_from_what_is_learned(module, folder):
    """The share of an action among many draws is the probability that learning computes for it."""
    player = module.load(folder)
    obs = torch.from_numpy(player.reset([1])).repeat_interleave(4000, 0)
    noise = player.agent.draw_noise(len(obs))
    with torch.no_grad():
        actions, acting_log_prob, _ = player.agent.get_action_and_value(obs, noise)
        log_prob, _, _ = player.agent.evaluate_actions(obs, actions)
    player.close()
    torch.testing.assert_close(acting_log_prob, log_prob)
    first = (actions == actions[0]).reshape(len(obs), -1).all(-1)
    assert first.float().mean().item() == pytest.approx(log_prob[0].exp().item(), abs=0.04)


@pytest.mark.parametrize("script", every_script.SCRIPTS)
def test_every_script_is_edited_or_says_why_not(script):
    groups = {
        "VECTORS": VECTORS,
        "MEMORY": MEMORY,
        "PIXELS": PIXELS,
        "BATCHED": BATCHED,
        "SIMULATORS": SIMULATORS,
        "NONE": NONE,
    }
    found = [name for name, group in groups.items() if script in group]
    assert len(found) == 1, f"cleanrl/{script}.py must be in one of {', '.join(groups)}: it is in {found}"
    assert (script in ENVIRONMENTS) == (found != ["NONE"])


@pytest.mark.parametrize(("change", "script"), CASES)
def test_a_change_works(in_tmp_path, change, script):
    if script == "ppo_procgen":
        pytest.importorskip("procgen")
    path = edited(script, change, in_tmp_path)
    module, args, folder = train(script, path)
    columns = metrics(folder)
    assert len(columns["global_step"]) == 3
    before = first_weights(module, args)
    after = checkpoint(folder)["model"]
    unmoved = [name for name in before if torch.equal(before[name], after[name])]
    if change == "05_observation_scaling":
        assert unmoved == ["obs_scale"]  # a buffer
    else:
        assert unmoved == []  # all is trained, whatever was added
    if script in ("ppo", "ppo_atari", "ppo_atari_envpool", "ppo_procgen"):
        assert_acting_draws_from_what_is_learned(module, folder)
    if change == "04_temperature":  # ten times colder: what is learned sees it
        assert abs(columns["losses/entropy"][0]) < {"ppo_continuous_action": 10}.get(script, 3)
    if change == "06_adamw_groups":
        assert columns["charts/critic_rate"] == pytest.approx(4 * columns["charts/learning_rate"])
    if change == "09_scalar_debug":
        assert columns["losses/clip_coef"] == pytest.approx(args.clip_coef)
        assert np.isfinite(columns["losses/total"]).all() and (columns["losses/ratio_max"] > 0.9).all()
    if change == "10_reward_wrapper" and script == "ppo":
        assert columns["charts/reward"] == pytest.approx(0.1)
        assert columns["charts/episodic_return"] == pytest.approx(columns["charts/episodic_length"])  # CartPole's own
    if change == "11_normalize_observation":
        steps = [count for _, _, count in checkpoint(folder)["envs"]["obs_rms"]]
        assert min(steps) >= args.total_timesteps // args.num_envs
    if change == "12_forward_hook":
        assert columns["charts/calls"][0] >= args.num_steps  # acting calls the network too
        assert np.all(np.diff(columns["charts/calls"]) >= args.num_steps)
    if change == "17_gradient_norm":
        assert (columns["losses/gradient_norm"] > 0).all() and np.isfinite(columns["losses/last_loss"]).all()


@pytest.mark.parametrize(("change", "factor"), [("18_scheduler", 0.99), ("20_adaptive_rate", 1.5)])
def test_a_rate_goes_on_where_it_was(in_tmp_path, change, factor):
    path = edited("ppo", change, in_tmp_path)
    options = {"anneal_lr": False, "exact_resume": True, "checkpoints": 3}
    module, _, whole = train("ppo", path, **options)
    rates = metrics(whole)["charts/learning_rate"]
    assert rates / rates[0] == pytest.approx([1, factor, factor**2])
    before = state(whole, 3)
    (whole / "checkpoints" / "3.pt").unlink()
    module.main(*module.read_arguments(["--resume", str(whole)]))
    assert (metrics(whole)["charts/learning_rate"] == rates).all()
    assert_same_state(state(whole, 3), before)


@pytest.mark.parametrize("script", ["ppo", pytest.param("ppo_atari_multigpu", marks=pytest.mark.seldom)])
def test_a_run_that_train_ends_is_saved(in_tmp_path, monkeypatch, script):
    module = load_script(edited(script, "19_early_stop", in_tmp_path))
    log = module.Run.log

    def log_more(run, metrics):
        log(run, metrics)
        run.recent_returns = [500.0] * 100

    monkeypatch.setattr(module.Run, "log", log_more)
    folder = module.main(module.Args(**TINY | ENVIRONMENTS[script]))
    assert [path.name for path in folder.glob("checkpoints/*")] == ["1.pt"] and len(rows(folder, "metrics.csv")) == 1
    assert json.loads((folder / "end.json").read_text("utf-8"))["end"] == "break"


def test_normalization_is_kept_by_resume_and_frozen_in_evaluation(in_tmp_path):
    path = edited("ppo", "11_normalize_observation", in_tmp_path)
    module, _, folder = train("ppo", path)
    saved = checkpoint(folder)["envs"]["obs_rms"]
    player = module.load(folder)
    for seed in (1, 2):
        module.play(player, seed)
    assert player.state_dict()["obs_rms"] == saved[:1]
    module.main(*module.read_arguments(["--resume", str(folder), "--total-timesteps", "768"]))
    latest = torch.load(folder / "checkpoints" / "6.pt", weights_only=True)["envs"]["obs_rms"]
    assert all(now[2] >= before[2] + 96 for now, before in zip(latest, saved))


def test_an_annealed_entropy_bonus_reaches_the_loss(in_tmp_path, monkeypatch):
    path = edited("ppo", "13_anneal_entropy", in_tmp_path)
    module = load_script(path)
    seen = []
    loss = module.ppo_loss

    def spied(*arguments):
        seen.append(arguments[-2])
        return loss(*arguments)

    monkeypatch.setattr(module, "ppo_loss", spied)
    module.main(module.Args(**TINY))
    assert sorted(set(seen), reverse=True) == pytest.approx([0.01, 0.01 * 2 / 3, 0.01 / 3])


def test_an_option_may_be_below_zero(in_tmp_path):
    module, _, folder = train("ppo", edited("ppo", "16_option_below_zero", in_tmp_path), reward_offset=-1.0)
    assert metrics(folder)["charts/reward"] == pytest.approx(1.0)  # what the environment gives
    module.main(module.Args(**TINY, reward_offset=-0.5))


def test_the_loss_of_observations_is_used(in_tmp_path):
    """A term that is much larger than the others drives the values to 0."""
    diff = (CHANGES / "08_extra_loss_of_obs.diff").read_text().replace("0.01 * agent", "1000.0 * agent")
    (in_tmp_path / "strong.diff").write_text(diff)
    path = patched(ROOT / "cleanrl" / "ppo.py", in_tmp_path / "strong.diff", in_tmp_path)
    module, _, folder = train("ppo", path, total_timesteps=2560, learning_rate=3e-3)
    player = module.load(folder)
    obs = torch.from_numpy(player.reset([1]))
    assert abs(player.agent.get_value(obs).item()) < 0.3


class Told(gym.Env):
    """Observes how many steps the episode has, from 1 on. Infos tell twice and three times that number, how long a step
    takes, and at the end of an episode, after four steps, whether its last action was 1. Pays 1 a step."""

    observation_space = gym.spaces.Box(0, 100, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 1
        return np.full(1, self.count, np.float32), {"privileged": np.array([2.0, 3.0])}

    def step(self, action):
        self.count += 1
        info = {"privileged": np.array([2.0, 3.0]) * self.count, "duration": float(self.count), "unread": "told"}
        if self.count == 5:
            info["success"] = action == 1
        return np.full(1, self.count, np.float32), 1.0, self.count == 5, False, info


class ToldBox(Told):
    """The same for Box actions; above 0 is 1."""

    action_space = gym.spaces.Box(-1, 1, (1,), np.float32)

    def step(self, action):
        return super().step(int(action[0] > 0))


gym.register("Told-v0", Told)
gym.register("ToldBox-v0", ToldBox)
gym.register("ToldLimited-v0", Told, max_episode_steps=3)
VECTORIZATIONS = pytest.mark.parametrize("vectorization", ["sync", "async"])


def test_a_categorical_draws_the_same_actions(in_tmp_path):
    """Torch draws it by the same noise, though at each step."""
    path = edited("ppo", "21_categorical", in_tmp_path)
    for seed in (1, 2):
        module, _, folder = train("ppo", path, seed=seed)
        _, _, unedited = train("ppo", ROOT / "cleanrl" / "ppo.py", seed=seed)
        assert rows(folder, "episodes.csv", ["seconds"]) == rows(unedited, "episodes.csv", ["seconds"])
        for name, values in metrics(unedited).items():
            if name != "charts/SPS":
                np.testing.assert_allclose(metrics(folder)[name], values, rtol=1e-3, atol=1e-4)
    player = module.load(folder, deterministic=True)
    obs = player.reset([1])
    most_probable = player.agent.actor(torch.from_numpy(obs)).argmax().item()
    assert {player.act(obs).item() for _ in range(20)} == {most_probable}
    player.args.deterministic = False
    assert {player.act(obs).item() for _ in range(40)} == {0, 1}


@VECTORIZATIONS
@pytest.mark.parametrize("script", ["ppo", "ppo_numpy", "ppo_continuous_action", "ppo_continuous_action_numpy"])
def test_a_metric_comes_from_infos(in_tmp_path, script, vectorization):
    path = edited(script, "22_metric_from_info", in_tmp_path)
    module = load_script(path)
    succeeded = []
    step = module.VectorEnv.step

    def noted(envs, actions):
        result = step(envs, actions)
        if len(actions) > 1:  # not the look before training
            succeeded.extend(np.ravel(actions)[result[2] == 1] > 0)
        return result

    module.VectorEnv.step = noted
    env_id = "ToldBox-v0" if "continuous" in script else "Told-v0"
    options = {"env_id": f"{__name__}:{env_id}", "vectorization": vectorization}
    folder = module.main(module.Args(**TINY | options))
    wanted = np.reshape(succeeded, (3, 32)).mean(1)  # an episode of each environment ends in every fourth step
    assert metrics(folder)["charts/success"] == pytest.approx(wanted)
    assert 0 < wanted.mean() < 1


@VECTORIZATIONS
def test_a_number_of_every_step_comes_from_infos(in_tmp_path, vectorization):
    page = (ROOT / "docs" / "make-it-your-own.md").read_text("utf-8")
    lines = re.search(r"(?s)```python\n(for info, rows.*?)```", page)[1].replace("speed", "duration")
    text = (ROOT / "cleanrl" / "ppo.py").read_text("utf-8")
    for old, new in {
        "INFOS = ()": 'INFOS = ("duration",)',
        "        self.vector = make_vector": "        self.durations = []\n        self.vector = make_vector",
        "        truncated_obs = {}\n": textwrap.indent(lines, " " * 8) + "        truncated_obs = {}\n",
        "        run.log(metrics)": '        metrics["charts/duration"] = np.mean(envs.durations)\n'
        "        envs.durations.clear()\n        run.log(metrics)",
    }.items():
        assert text.count(old) == 1
        text = text.replace(old, new)
    path = in_tmp_path / "ppo.py"
    path.write_text(text, "utf-8")
    module = load_script(path)
    options = {"env_id": f"{__name__}:Told-v0", "vectorization": vectorization}
    folder = module.main(module.Args(**TINY | options))
    assert metrics(folder)["charts/duration"] == pytest.approx([3.5] * 3)  # 2, 3, 4 and 5 in each episode


@VECTORIZATIONS
def test_only_the_critic_sees_what_is_privileged(in_tmp_path, spy, vectorization):
    module = load_script(edited("ppo", "23_asymmetric_critic", in_tmp_path))
    calls = spy(module.Agent, "get_value")  # acting, learning and time limits
    options = {"env_id": f"{__name__}:ToldLimited-v0", "vectorization": vectorization, "bootstrap_truncated": True}
    folder = module.main(module.Args(**TINY | options))
    seen = np.concatenate([call.obs for call in calls])
    assert seen.tolist() == (seen[:, :1] * [1, 2, 3]).tolist()
    assert set(seen[:, 0].tolist()) == {1, 2, 3, 4}  # 4: the last observations, which a time limit cut
    agent = module.load(folder).agent
    obs = torch.from_numpy(seen[:10])
    other = obs * torch.tensor([1.0, 9.0, 9.0])
    assert torch.equal(agent.get_log_probs(obs), agent.get_log_probs(other))
    assert not torch.isclose(agent.get_value(obs), agent.get_value(other)).any()
    module.main(*module.read_arguments(["--evaluate", str(folder), "--episodes", "1"]))


@VECTORIZATIONS
@pytest.mark.parametrize("env_id, episode", [("Told-v0", [2, 3, 4, 5]), ("ToldLimited-v0", [2, 3, 4])])
def test_a_long_step_discounts_more(in_tmp_path, spy, vectorization, env_id, episode):
    module = load_script(edited("ppo", "24_steps_of_different_length", in_tmp_path))
    rollouts = spy(module, "compute_gae")
    values = spy(module.Agent, "get_value")
    options = {"env_id": f"{__name__}:{env_id}", "vectorization": vectorization, "bootstrap_truncated": True}
    module.main(module.Args(**TINY | options, gamma=0.9, learning_rate=0.0))
    rewards = rollouts[0].rewards
    durations = rollouts[0].durations
    assert durations.T.tolist() == [(episode * 32)[:32]] * 4
    if env_id == "ToldLimited-v0":  # the last step's duration discounts the value of the last observation
        last_value = next(call.result[0] for call in values if call.obs[0] == 4)
        np.testing.assert_allclose(rewards[2::3], 1 + 0.9**4 * last_value, rtol=1e-5)
    ones = np.ones((2, 1))
    durations = np.array([[2.0], [3.0]])
    _, returns = module.compute_gae(ones, 0 * ones, 0 * ones, ones[0], 0 * ones[0], durations, 0.9, 1.0)
    np.testing.assert_allclose(returns, [[1 + 0.9**2 * (1 + 0.9**3)], [1 + 0.9**3]])


def test_steps_of_one_length_are_as_before(in_tmp_path):
    """The edited compute_gae with durations of 1 is the unedited one."""
    module = load_script(edited("ppo", "24_steps_of_different_length", in_tmp_path))
    unedited = load_script(ROOT / "cleanrl" / "ppo.py")
    rng = np.random.default_rng(1)
    rewards, values = rng.normal(size=(2, 9, 3))
    dones = (rng.random((10, 3)) < 0.3).astype(float)
    rollout = rewards, values, dones[:9], rng.normal(size=3), dones[9]
    before = unedited.compute_gae(*rollout, 0.9, 0.8)
    after = module.compute_gae(*rollout, np.ones((9, 3)), 0.9, 0.8)
    np.testing.assert_allclose(after, before, rtol=1e-12)


def test_a_new_run_begins_with_trained_weights(in_tmp_path, monkeypatch):
    path = edited("ppo", "25_start_from", in_tmp_path)
    module, _, first = train("ppo", path)
    trained = checkpoint(first)["model"]
    options = {"env_kwargs": '{"sutton_barto_reward": true}', "checkpoints": 2}
    _, _, folder = train("ppo", path, start_from=str(first), learning_rate=0.0, **options)
    after = state(folder, 3)["model"]
    assert all(torch.equal(after[name], trained[name]) for name in trained)
    assert len(rows(folder, "metrics.csv")) == 3  # a run of its own
    (folder / "checkpoints" / "3.pt").unlink()
    first.rename("gone")  # going on doesn't need it, nor does it begin anew
    module.main(*module.read_arguments(["--resume", str(folder), "--learning-rate", "0.001"]))
    assert not torch.equal(state(folder, 3)["model"]["actor.0.weight"], trained["actor.0.weight"])


@pytest.mark.parametrize("script", ["ppo_numpy", "ppo_continuous_action", "ppo_continuous_action_numpy"])
def test_a_new_run_begins_with_trained_weights_and_statistics(in_tmp_path, script):
    """Its first checkpoint has the weights, which a learning rate of 0 leaves, and statistics that count on."""
    module = load_script(edited(script, "25_start_from", in_tmp_path))
    env_id = "Pendulum-v1" if "continuous" in script else "CartPole-v1"
    first = module.main(module.Args(**TINY, env_id=env_id))
    trained = module.load_checkpoint(first)
    folder = module.main(module.Args(**TINY, env_id=env_id, start_from=str(first), learning_rate=0.0))
    after = module.load_checkpoint(folder)
    assert trained["model"].keys() == after["model"].keys()
    assert all((after["model"][name] == trained["model"][name]).all() for name in trained["model"])
    if "continuous" in script:
        once, twice = (saved["envs"]["observations"]["count"] for saved in (trained, after))
        assert twice == pytest.approx(2 * once, rel=1e-3)
