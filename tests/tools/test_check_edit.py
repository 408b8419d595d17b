"""check_edit.py names what is wrong with an edit, and is silent where nothing is."""

import check_edit
import pytest
from runs import ROOT

pytestmark = pytest.mark.seldom  # a third of a minute each

TEMPERATURE = ("return self.actor(obs).log_softmax(-1)", "return (self.actor(obs) / self.temperature).log_softmax(-1)")
EDITS = {
    "none": ("ppo", [], ""),
    "none without torch": ("ppo_numpy", [], ""),
    "gradients cleared after the step": (
        "ppo",
        [("optimizer.step()\n", "optimizer.step()\n                optimizer.zero_grad()\n")],
        "",
    ),
    "a time and a greedy policy that are logged": (
        "ppo",
        [
            ("# Anneal\n", "started = time.perf_counter()\n"),
            ('metrics = {"charts', 'metrics = {"charts/elapsed": time.perf_counter() - started, "charts'),
            (
                "                optimizer.zero_grad()\n",
                "                greedy = agent.get_action_and_value(mb.obs, torch.zeros(M, agent.num_actions))[0]\n"
                '                mb_metrics["losses/greedy"] = (greedy == mb.actions).float().mean()\n'
                "                optimizer.zero_grad()\n",
            ),
        ],
        "",
    ),
    "rewards normalized by a wrapper": (
        "ppo",
        [
            (
                "    check_spaces(env)",
                "    env = gym.wrappers.NormalizeReward(env, gamma=args.gamma)\n    check_spaces(env)",
            )
        ],
        "",
    ),
    "an attribute that train changes": (
        "ppo",
        [
            TEMPERATURE,
            (
                "super().__init__()\n        obs_dim",
                "super().__init__()\n        self.temperature = 1.0\n        obs_dim",
            ),
            ("# Anneal\n", "agent.temperature = 3.0 - update / args.num_updates\n"),
        ],
        "a loaded checkpoint",
    ),
    "a temperature that an option switches on": (
        "ppo",
        [
            TEMPERATURE,
            ("anneal_lr: bool = True", "anneal_temperature: bool = False\n    anneal_lr: bool = True"),
            (
                "super().__init__()\n        obs_dim",
                "super().__init__()\n        self.temperature = 1.0\n        obs_dim",
            ),
            ("# Anneal\n", "agent.temperature = 3.0 - update / args.num_updates if args.anneal_temperature else 1.0\n"),
        ],
        "a loaded checkpoint",
        "--anneal-temperature",
    ),
    "observations changed in train": (
        "ppo",
        [("obs[step] = torch.from_numpy(next_obs)", "obs[step] = torch.from_numpy(next_obs * 3)")],
        "every ratio is 1",
    ),
    "values of another shape": (
        "ppo",
        [("return log_prob, entropy, self.get_value(obs)", "return log_prob, entropy, self.critic(obs)")],
        "every value is the rollout's",
    ),
    "dropout in the critic": (
        "ppo",
        [("self.critic(obs).squeeze(-1)", "nn.functional.dropout(self.critic(obs), 0.5, self.training).squeeze(-1)")],
        "every value is the rollout's",
    ),
    "advantages that go on after an episode": (
        "ppo",
        [("continues = 1.0 - np.concatenate([dones[1:], next_done[None]])", "continues = np.ones_like(next_values)")],
        "advantages end",
    ),
    "an environment of its own": (
        "ppo",
        [("# Log\n", "tests = VectorEnv(args, 1)\n        tests.reset([1])\n        tests.close()\n")],
        "evaluates with players",
    ),
    "a player that goes on learning statistics": (
        "ppo",
        [
            ("    check_spaces(env)", "    env = gym.wrappers.NormalizeObservation(env)\n    check_spaces(env)"),
            ("env.update_running_mean = False", "env.update_running_mean = True"),
        ],
        "a loaded checkpoint",
    ),
    "a layer that nobody learns": (
        "ppo",
        [("parameters = list(agent.parameters())", "parameters = list(agent.actor.parameters())")],
        "optimizers have all parameters",
    ),
    "a step of a second optimizer that is forgotten": (
        "ppo",
        [
            ("        self.actor = mlp", "        self.aux = nn.Linear(obs_dim, 1)\n        self.actor = mlp"),
            ("    run.keep(", "    aux_optimizer = torch.optim.Adam(agent.aux.parameters())\n    run.keep("),
            ("envs=envs)", "envs=envs, aux_optimizer=aux_optimizer)"),
            (
                "optimizer.zero_grad()\n",
                "loss = loss + agent.aux(mb.obs).square().mean()\n                optimizer.zero_grad()\n",
            ),
            (
                "parameters = list(agent.parameters())",
                "parameters = [*agent.actor.parameters(), *agent.critic.parameters()]",
            ),
        ],
        "optimizers have all parameters",
    ),
    "a state that is not kept": (
        "ppo",
        [
            ("    run.keep(", "    scale = nn.Linear(1, 1)\n    run.keep("),
            ("# Log\n", "scale.weight.data += update\n"),
            ('metrics = {"charts', 'metrics = {"charts/scale": scale.weight.item(), "charts'),
        ],
        "killed and resumed",
    ),
}


@pytest.mark.parametrize("name", EDITS)
def test_an_edit_is_judged(name, tmp_path):
    script, replacements, expected, *words = EDITS[name]
    text = (ROOT / "cleanrl" / f"{script}.py").read_text("utf-8")
    for old, new in replacements:
        assert old in text
        text = text.replace(old, new, 1)
    path = tmp_path / f"{script}.py"
    path.write_text(text, "utf-8")
    found = [check for check, problem in check_edit.list_checks(path, tmp_path, words) if problem]
    assert len(found) == bool(expected) and all(expected in check for check in found), found
