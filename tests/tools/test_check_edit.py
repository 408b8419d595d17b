"""check_edit.py names what is wrong with an edit, is silent where nothing is, and says what it couldn't compare."""

import os
import subprocess
import sys
from concurrent.futures.process import BrokenProcessPool
from types import SimpleNamespace

import check_edit
import numpy as np
import pytest
from runs import ROOT

RATIO = "every ratio is 1"
VALUE = "every value is the rollout's"
DRAWN = "actions are drawn"
PASSING = "agent and environments get what the other returned"
GAE = "compute_gae follows its definition"
ENDS = "compute_gae gets the ends"
ENDED = "episodes end, by a time limit"
ROWS = "rows of the batch"
LOSS = "the loss pulls"
MEMORY = "the memory is forgotten"
ANEW = "an episode begins anew"
MIXING = "environments don't mix"
PLAYER = "a loaded checkpoint"
OPTIMIZERS = "optimizers have all parameters"
SEED = "two runs with one seed"
RESUME = "killed and resumed"
KEPT = "run.keep names what changes"
ASYNC = "environments in processes"
CHECKS = 18  # lines that ppo.py gets

TEMPERATURE = ("return self.actor(obs).log_softmax(-1)", "return (self.actor(obs) / self.temperature).log_softmax(-1)")
TEMPERATURE_IN_AGENT = (
    "super().__init__()\n        obs_dim",
    "super().__init__()\n        self.temperature = 1.0\n        obs_dim",
)
STEP = ("envs.step(actions[step].cpu().numpy())", "envs.step(1 - actions[step].cpu().numpy())")
EMA = [
    ("import json\n", "import copy\nimport json\n"),
    ("    run.keep(", "    ema = copy.deepcopy(agent)\n    run.keep("),
    (
        "optimizer.step()\n",
        "optimizer.step()\n"
        "                for slow, fast in zip(ema.parameters(), parameters):\n"
        "                    slow.data.lerp_(fast.detach(), 0.01)\n",
    ),
]
RARE = [  # what a phase after every eighth update uses isn't kept
    ("    run.keep(", "    total = nn.Linear(1, 1)\n    run.keep("),
    (
        "# Log\n",
        "total.weight.data += update\n"
        "        if update % 8 == 0:\n"
        "            agent.critic[-1].bias.data += 0.001 * total.weight[0].detach()\n",
    ),
]
RETURNS = [  # to the end of the episode
    (
        "        b_returns =",
        "        ends = [*dones[1:], next_done]\n"
        "        following = next_value\n"
        "        for t in reversed(range(T)):\n"
        "            following = rewards[t] + args.gamma * (1.0 - ends[t]) * following\n"
        "            returns[t] = following\n"
        "        b_returns =",
    )
]
FILTER = [  # of actions, in VectorEnv
    ("    def step(self, actions", "    smooth = 0.0\n\n    def step(self, actions"),
    (
        "        observations, rewards, terminated, truncated, infos = self.vector.step(actions)\n",
        "        self.smooth = 0.6 * self.smooth + 0.4 * actions\n"
        "        observations, rewards, terminated, truncated, infos = self.vector.step(self.smooth)\n",
    ),
    (
        "        observations, _ = self.vector.reset(",
        "        self.smooth = 0.0\n        observations, _ = self.vector.reset(",
    ),
]
CRITIC_OPTIMIZER = [
    ("parameters = list(agent.parameters())", "parameters = list(agent.actor.parameters())"),
    ("    run.keep(", "    critic_optimizer = torch.optim.Adam(agent.critic.parameters())\n    run.keep("),
    ("envs=envs)", "envs=envs, critic_optimizer=critic_optimizer)"),
    ("optimizer.step()\n", "optimizer.step()\n                critic_optimizer.step()\n"),
]
REPLAY = [  # learns from the rollout before once more
    (
        "def train(",
        "class Last:\n"
        "    batch = None\n\n"
        "    def state_dict(self):\n"
        '        return {"batch": self.batch and list(self.batch)}\n\n'
        "    def load_state_dict(self, state):\n"
        '        self.batch = state["batch"] and Batch(*state["batch"])\n\n\n'
        "def train(",
    ),
    ("    run.keep(", "    last = Last()\n    run.keep("),
    ("envs=envs)", "envs=envs, last=last)"),
    ("randperm(args.batch_size,", "randperm(len(batch.obs),"),
    (
        "        # Learn, in",
        "        fresh = batch\n"
        "        if last.batch is not None:\n"
        "            batch = Batch(*(torch.cat(pair) for pair in zip(batch, last.batch)))\n"
        "        last.batch = Batch(*(x.clone() for x in fresh))\n"
        "        # Learn, in",
    ),
]
AUXILIARY = [  # a head that is learned in a phase after every eighth update
    ("        self.actor = mlp", "        self.aux = nn.Linear(obs_dim, 1)\n        self.actor = mlp"),
    ("    run.keep(", "    aux_optimizer = torch.optim.Adam(agent.aux.parameters())\n    run.keep("),
    ("envs=envs)", "envs=envs, aux_optimizer=aux_optimizer)"),
    (
        "# Log\n",
        "if update % 8 == 0:\n"
        "            aux_optimizer.zero_grad()\n"
        "            agent.aux(b_obs).square().mean().backward()\n"
        "            aux_optimizer.step()\n",
    ),
]
ONE_OF_EACH = [  # some of them in one update of six
    TEMPERATURE_IN_AGENT,
    TEMPERATURE,
    STEP,
    ("(log_probs + noise).argmax", "(log_probs + noise + torch.arange(self.num_actions)).argmax"),
    ("parameters = list(agent.parameters())", "parameters = list(agent.actor.parameters())"),
    ("continues = 1.0 - np.concatenate([dones[1:], next_done[None]])", "continues = np.ones_like(next_values)"),
    ("= compute_gae(rewards, values, dones,", "= compute_gae(rewards, values, np.roll(dones, 1, axis=0),"),
    ("        dones = ", "        rewards = rewards + 0.1 * observations[:, 0]\n        dones = "),
    (
        "        # Learn, in",
        "        agent.temperature = 2.0 if update == 3 else 1.0\n"
        "        if update == 4:\n"
        "            batch = batch._replace(values=batch.values + 1.0)\n"
        "        if update == 5:\n"
        "            batch = batch._replace(returns=batch.returns.flip(0))\n"
        "        args.ent_coef = -0.01 if update == 2 else 0.01\n"
        "        # Learn, in",
    ),
    ("# Log\n", "agent.temperature = 1.5 if update == args.num_updates else 1.0\n"),
]
# By name: script, replacements, what isn't ok in which line, and words after the script
QUICK = {  # `make test` runs these: one script that is right, and a mistake of each kind
    "none": ("ppo", [], {}),
    "one mistake for each check": (
        "ppo",
        ONE_OF_EACH,
        dict.fromkeys([RATIO, VALUE, DRAWN, PASSING, GAE, ENDS, ROWS, LOSS, ANEW, MIXING, PLAYER, OPTIMIZERS], "FAIL"),
    ),
    "a state that is not kept, and other rewards in processes": (
        "ppo",
        [
            ("    run.keep(", "    scale = nn.Linear(1, 1)\n    run.keep("),
            ("# Log\n", "scale.weight.data += update\n"),
            ('metrics = {"charts', 'metrics = {"charts/scale": scale.weight.item(), "charts'),
            (
                "        dones = ",
                "        rewards = rewards + isinstance(self.vector, gym.vector.AsyncVectorEnv)\n        dones = ",
            ),
        ],
        {RESUME: "FAIL", ASYNC: "FAIL"},
    ),
    "noise of a generator without a seed, and observations that mix": (
        "ppo",
        [
            ("# Log\n", "agent.critic[-1].bias.data += 0.01 * float(np.random.default_rng().random())\n"),
            (
                "        dones = ",
                "        observations += 0.1 * (np.roll(observations, 1, axis=0) - observations)\n        dones = ",
            ),
        ],
        {MIXING: "FAIL", SEED: "FAIL", RESUME: "--", ASYNC: "--"},
    ),
}
SELDOM = {
    "actions changed in train": ("ppo", [STEP], {PASSING: "FAIL"}),
    "none without torch": ("ppo_numpy", [], {}),
    "none with a memory": ("ppo_lstm", [], {}),
    "none, more updates": ("ppo", [], {}, "--updates", "12"),
    "gradients cleared after the step": (
        "ppo",
        [("optimizer.step()\n", "optimizer.step()\n                optimizer.zero_grad()\n")],
        {},
    ),
    "gradients of two minibatches in a step": (
        "ppo",
        [
            ("                optimizer.zero_grad()\n", ""),
            (
                "                optimizer.step()\n",
                "                if indices[0] % 2 == 0:\n"
                "                    optimizer.step()\n"
                "                    optimizer.zero_grad()\n",
            ),
        ],
        {},
    ),
    "gradients that pile up in a second optimizer": (  # and that a resume loses
        "ppo",
        CRITIC_OPTIMIZER,
        {OPTIMIZERS: "FAIL", RESUME: "FAIL"},
    ),
    "two optimizers": (
        "ppo",
        [
            *CRITIC_OPTIMIZER,
            ("optimizer.zero_grad()\n", "optimizer.zero_grad()\n                critic_optimizer.zero_grad()\n"),
        ],
        {},
    ),
    "an attribute that no environment has": (
        "ppo",
        [("# Anneal\n", 'envs.vector.set_attr("max_episode_steps", 10 + update)\n')],
        {PASSING: "FAIL"},
    ),
    "an attribute that the environments have": (
        "ppo",
        [("# Anneal\n", 'envs.vector.set_attr("_max_episode_steps", 10 + update)\n')],
        {PASSING: "--"},
    ),
    "an attribute that players get, too": (
        "ppo",
        [
            ("# Anneal\n", 'envs.vector.set_attr("_max_episode_steps", 10)\n'),
            (
                "        set_wrapper_statistics(self.vector, state)",
                '        self.vector.set_attr("_max_episode_steps", 10)\n'
                "        set_wrapper_statistics(self.vector, state)",
            ),
        ],
        {},
    ),
    "draws that prefer an action": (
        "ppo",
        [("(log_probs + noise).argmax", "(log_probs + noise + torch.arange(self.num_actions)).argmax")],
        {DRAWN: "FAIL"},
    ),
    "actions that the agent clips": (
        "ppo_continuous_action",
        [("actions = mean + std * noise", "actions = (mean + std * noise).clamp(-1, 1)")],
        {DRAWN: "FAIL"},
    ),
    "squashed actions": (  # their density changes by what the action alone decides, so no ratio does
        "ppo_continuous_action",
        [
            ("actions = mean + std * noise", "actions = torch.tanh(mean + std * noise)"),
            (
                "        log_prob = -0.5",
                "        actions = actions.clamp(-1 + 1e-6, 1 - 1e-6).atanh()\n        log_prob = -0.5",
            ),
        ],
        {},
    ),
    "a policy's loss of the wrong sign": (
        "ppo",
        [("policy_loss = -torch.min(", "policy_loss = torch.min(")],
        {LOSS: "FAIL"},
    ),
    "an entropy bonus of the wrong sign": ("ppo", [("- args.ent_coef * ", "+ args.ent_coef * ")], {LOSS: "FAIL"}),
    "a value's loss of the wrong sign, without torch": (
        "ppo_numpy",
        [("d_value = args.vf_coef / M * slope", "d_value = -args.vf_coef / M * slope")],
        {LOSS: "FAIL"},
    ),
    "a bound that takes the gradient of good actions": (
        "ppo",
        [
            (
                "-torch.min(advantages * ratio, advantages * clipped_ratio).mean()",
                "-torch.max(torch.min(advantages * ratio, advantages * clipped_ratio), 2 * advantages).mean()",
            )
        ],
        {LOSS: "FAIL"},
    ),
    "observations less the mean of all environments'": (
        "ppo",
        [
            (
                "return observations.astype(np.float32)",
                "return (observations - observations.mean(0)).astype(np.float32)",
                "everywhere",
            ),
            (
                'infos["final_obs"][i].astype(np.float32)',
                'infos["final_obs"][i] - np.mean([x for x in infos["final_obs"] if x is not None], axis=0)',
            ),
        ],
        {ANEW: "FAIL"},
    ),
    "rewards for what the next episode shows": (
        "ppo",
        [
            (
                "        dones = ",
                "        rewards = rewards + 0.1 * observations[:, 0]\n        dones = ",
            )
        ],
        {ANEW: "FAIL"},
    ),
    "a target that is trained": ("ppo", [("self.critic", "self.target", "everywhere")], {OPTIMIZERS: "--"}),
    "an attribute of the outermost wrapper": (
        "ppo",
        [("# Anneal\n", "for env in getattr(envs.vector, 'envs', []):\n            env.level = update\n")],
        {PASSING: "FAIL"},
    ),
    "numbers that don't reach the agent": (
        "ppo",
        [
            (
                "return observations.astype(np.float32)",
                "return observations.astype(np.float32) * np.float32([1, 0, 1, 0])",
                "everywhere",
            )
        ],
        {PASSING: "FAIL", ANEW: "FAIL"},
    ),
    "a Beta policy": (
        "ppo_continuous_action",
        [
            (
                "actions = mean + std * noise",
                "actions = 2 * torch.distributions.Beta(1 + mean.exp(), 1 + std.expand_as(mean)).sample() - 1",
            ),
            (
                "log_prob = -0.5 * ((actions - mean) / std).square() - std.log() - 0.5 * math.log(2 * math.pi)",
                "shape = 1 + mean.exp(), 1 + std.expand_as(mean)\n"
                "        log_prob = torch.distributions.Beta(*shape).log_prob((actions + 1) / 2)",
            ),
        ],
        {},
    ),
    "a filter that begins anew in all environments at once": (
        "ppo_continuous_action",
        [
            *FILTER,
            ("        truncated_obs = {}\n", "        truncated_obs = {}\n        self.smooth *= 1 - dones.max()\n"),
        ],
        {MIXING: "FAIL"},
    ),
    "environments that are stepped between rollouts": (
        "ppo",
        [("# Log\n", "envs.step(np.zeros(N, np.int64))\n")],
        {PASSING: "FAIL"},
    ),
    "environments that are stepped before each fresh start": (
        "ppo",
        [("# Log\n", "if update % 2 == 0:\n            envs.step(np.zeros(N, np.int64))\n")],
        {PASSING: "FAIL"},
    ),
    "environments that are stepped, and reset for each rollout": (
        "ppo",
        [
            ("# Log\n", "if update % 2 == 0:\n            envs.step(np.zeros(N, np.int64))\n"),
            ("        if fresh_episodes:", "        if fresh_episodes or update:"),
        ],
        {},
    ),
    "returns of their own": ("ppo", RETURNS, {ROWS: "--"}),
    "returns of their own that cross the ends of episodes": (
        "ppo",
        [*RETURNS, ("ends = [*dones[1:], next_done]", "ends = dones")],
        {ROWS: "--", MIXING: "FAIL"},
    ),
    "an error of each value for each return": (
        "ppo",
        [
            (
                "args.vf_coef * value_loss  #",
                "args.vf_coef * value_loss + (value[:, None] - mb.returns).square().mean()  #",
            )
        ],
        {LOSS: "FAIL"},
    ),
    "old log-probs computed anew in each epoch": (
        "ppo",
        [
            (
                "            epoch_start = len(logged)\n",
                "            epoch_start = len(logged)\n"
                "            if epoch_start:\n"
                "                with torch.no_grad():\n"
                "                    anew = agent.evaluate_actions(batch.obs, batch.actions)[0]\n"
                "                batch = batch._replace(log_probs=anew)\n",
            )
        ],
        {RATIO: "FAIL"},
    ),
    "the rollout before, once more": ("ppo", REPLAY, {ROWS: "--"}),
    "the rollout before, overwritten by the next": (
        "ppo",
        [*REPLAY, ("Batch(*(x.clone() for x in fresh))", "fresh")],
        {ROWS: "--", RESUME: "FAIL"},
    ),
    "a filter that begins anew with each episode": (
        "ppo_continuous_action",
        [
            *FILTER,
            ("        truncated_obs = {}\n", "        truncated_obs = {}\n        self.smooth[dones == 1] = 0.0\n"),
        ],
        {},
    ),
    "a filter that goes on after an episode": ("ppo_continuous_action", FILTER, {ANEW: "FAIL"}),
    "the next episode's observation at a time limit": (
        "ppo_continuous_action",
        [('self.normalize(infos["final_obs"][i])', "self.normalize(observations)[i]")],
        {ANEW: "FAIL"},
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
        {"metrics.csv repeats": "--"},
    ),
    "rewards normalized by a wrapper": (
        "ppo",
        [
            (
                "    check_spaces(env)",
                "    env = gym.wrappers.NormalizeReward(env, gamma=args.gamma)\n    check_spaces(env)",
            )
        ],
        {},
    ),
    "actions drawn by torch": (  # with no noise of the script's
        "ppo",
        [("(log_probs + noise).argmax(-1)", "torch.distributions.Categorical(logits=log_probs).sample()")],
        {},
    ),
    "actions and their log-probs by one method, as in CleanRL": (
        "ppo",
        [
            ("obs: torch.Tensor, noise: torch.Tensor):", "obs, noise=None, action=None):"),
            (
                "actions = (log_probs + noise).argmax(-1)",
                "actions = action if noise is None else (log_probs + noise).argmax(-1)",
            ),
            (
                "return actions, log_prob, self.get_value(obs)",
                "return actions, log_prob, -(log_probs.exp() * log_probs).sum(-1), self.get_value(obs)",
            ),
            ("    def evaluate_actions", "    def unused"),
            ("log_probs[step], acted_values[step] = agent", "log_probs[step], _, acted_values[step] = agent"),
            (
                "log_prob, entropy, value = agent.evaluate_actions(mb.obs, mb.actions)",
                "_, log_prob, entropy, value = agent.get_action_and_value(mb.obs, action=mb.actions)",
            ),
            ("actions, _, _ = self.agent", "actions, _, _, _ = self.agent"),
        ],
        {DRAWN: "--"},
    ),
    "an attribute that train changes": (
        "ppo",
        [TEMPERATURE, TEMPERATURE_IN_AGENT, ("# Anneal\n", "agent.temperature = 3.0 - update / args.num_updates\n")],
        {PLAYER: "FAIL"},
    ),
    "a temperature that an option switches on": (
        "ppo",
        [
            TEMPERATURE,
            TEMPERATURE_IN_AGENT,
            ("anneal_lr: bool = True", "anneal_temperature: bool = False\n    anneal_lr: bool = True"),
            ("# Anneal\n", "agent.temperature = 3.0 - update / args.num_updates if args.anneal_temperature else 1.0\n"),
        ],
        {PLAYER: "FAIL"},
        "--anneal-temperature",
    ),
    "observations changed in train": (
        "ppo",
        [("obs[step] = torch.from_numpy(next_obs)", "obs[step] = torch.from_numpy(next_obs * 3)")],
        {PASSING: "FAIL"},
    ),
    "actions changed by a player": (
        "ppo_numpy",
        [("        return self.agent.get_action(", "        return 1 - self.agent.get_action(")],
        {PASSING: "FAIL"},
    ),
    "the same noise in each step": ("ppo", [("obs[step], noise[step])", "obs[step], noise[0])")], {RATIO: "FAIL"}),
    "the same noise in each update": (
        "ppo",
        [("np.random.SeedSequence([args.seed, update]).generate_state(1).item()", "args.seed")],
        {RATIO: "FAIL"},
    ),
    "log-probs of other actions": (
        "ppo",
        [("return actions, log_prob, self.get_value(obs)", "return 1 - actions, log_prob, self.get_value(obs)")],
        {RATIO: "FAIL", DRAWN: "FAIL"},
    ),
    "old log-probs computed anew": (
        "ppo",
        [
            (
                "                loss, mb_metrics",
                "                mb = mb._replace(log_probs=log_prob.detach())\n                loss, mb_metrics",
            )
        ],
        {RATIO: "FAIL"},
    ),
    "values of another shape": (
        "ppo",
        [("return log_prob, entropy, self.get_value(obs)", "return log_prob, entropy, self.critic(obs)")],
        {VALUE: "FAIL", LOSS: "FAIL"},
    ),
    "dropout in the critic": (
        "ppo",
        [("self.critic(obs).squeeze(-1)", "nn.functional.dropout(self.critic(obs), 0.5, self.training).squeeze(-1)")],
        {VALUE: "FAIL"},
    ),
    "advantages that go on after an episode": (
        "ppo",
        [("continues = 1.0 - np.concatenate([dones[1:], next_done[None]])", "continues = np.ones_like(next_values)")],
        {GAE: "FAIL", MIXING: "FAIL"},
    ),
    "advantages along the other axis": (
        "ppo",
        [
            ("advantage = np.zeros_like(next_value)", "advantage = np.zeros(len(rewards), np.float32)"),
            ("reversed(range(len(rewards)))", "reversed(range(rewards.shape[1]))"),
            ("advantage = deltas[t] + decays[t] * advantage", "advantage = deltas[:, t] + decays[:, t] * advantage"),
            ("advantages[t] = advantage", "advantages[:, t] = advantage"),
        ],
        {GAE: "FAIL"},
    ),
    "the end of a rollout that isn't an end": (
        "ppo",
        [("[dones[1:], next_done[None]]", "[dones[1:], np.zeros_like(next_done)[None]]")],
        {GAE: "FAIL"},
    ),
    "returns without values": (
        "ppo",
        [("return advantages, advantages + values", "return advantages, advantages")],
        {GAE: "FAIL", ROWS: "FAIL"},
    ),
    "an estimator with weights, which are 1 on policy": (
        "ppo",
        [
            ("gamma: float, gae_lambda: float):", "gamma: float, gae_lambda: float, rhos):"),
            ("deltas = rewards +", "deltas = rhos * rewards +"),
            ("args.gamma, args.gae_lambda)", "args.gamma, args.gae_lambda, np.ones_like(rewards))"),
        ],
        {},
    ),
    "an estimator that takes something else": (
        "ppo",
        [
            ("gamma: float, gae_lambda: float):", "gamma: float, gae_lambda: float, bonus):"),
            ("deltas = rewards +", "deltas = bonus + rewards +"),
            ("args.gamma, args.gae_lambda)", "args.gamma, args.gae_lambda, 0.1)"),
        ],
        {GAE: "--"},
    ),
    "ends that compute_gae isn't given": (
        "ppo",
        [("dones[step] = next_done\n", "dones[step - 1] = next_done\n")],
        {ENDS: "FAIL", MIXING: "FAIL"},
    ),
    "the value before the last step": (
        "ppo",
        [("agent.get_value(torch.from_numpy(next_obs).to(device))", "agent.get_value(obs[-1])")],
        {ENDS: "FAIL"},
    ),
    "advantages environment by environment": (
        "ppo",
        [
            ("torch.from_numpy(advantages).to(device)", "torch.from_numpy(advantages.T.copy()).to(device)"),
            ("torch.from_numpy(returns).to(device)", "torch.from_numpy(returns.T.copy()).to(device)"),
        ],
        {ROWS: "FAIL", MIXING: "FAIL"},
    ),
    "advantages of the wrong sign": (
        "ppo",
        [("torch.from_numpy(advantages)", "torch.from_numpy(-advantages)")],
        {ROWS: "FAIL"},
    ),
    "advantages of which two are mixed": (
        "ppo",
        [
            (
                "        b_obs = obs",
                "        curious = compute_gae(rewards**2, values, 0 * dones, next_value, 0 * next_done, 0.9, 0.9)\n"
                "        advantages = advantages + 0.5 * curious[0] + 0.1 * rewards\n"
                "        b_obs = obs",
            )
        ],
        {ROWS: "--"},
    ),
    "a memory that goes on after an episode": (
        "ppo_lstm",
        [
            ("        lstm_state = lstm_state * (1 - dones)[:, None]", "        lstm_state = 1 * lstm_state"),
            ("        is_first = dones.clone()", "        dones = 0 * dones\n        is_first = dones.clone()"),
        ],
        {MEMORY: "FAIL"},
    ),
    "other names of the agent's methods": (
        "ppo_numpy",
        [("evaluate_actions(", "get_log_probs(", "everywhere"), ("get_action(", "choose_action(", "everywhere")],
        {RATIO: "--", VALUE: "--", PASSING: "--", ROWS: "--", LOSS: "--"},
    ),
    "an environment of its own": (
        "ppo",
        [("# Log\n", "tests = VectorEnv(args, 1)\n        tests.reset([1])\n        tests.close()\n")],
        {"train evaluates with players": "FAIL"},
    ),
    "episodes that never end": (
        "ppo",
        [
            ("    check_spaces(env)", "    env = Endless(env.unwrapped)\n    check_spaces(env)"),
            (
                "class VectorEnv:",
                "class Endless(gym.Wrapper):\n"
                "    def step(self, action):\n"
                "        obs, reward, _, _, info = self.env.step(action)\n"
                "        return obs, reward, False, False, info\n\n\n"
                "class VectorEnv:",
            ),
        ],
        {"episodes end": "--", ENDS: "--"},
    ),
    "a player that goes on learning statistics": (
        "ppo",
        [
            ("    check_spaces(env)", "    env = gym.wrappers.NormalizeObservation(env)\n    check_spaces(env)"),
            ("env.update_running_mean = False", "env.update_running_mean = True"),
        ],
        {PLAYER: "FAIL"},
    ),
    "an average of the weights that is played": ("ppo", [*EMA, ("model=agent", "model=ema, learner=agent")], {}),
    "an average of the weights that isn't": ("ppo", [*EMA, ("envs=envs)", "envs=envs, ema=ema)")], {PLAYER: "FAIL"}),
    "a layer that nobody learns": (
        "ppo",
        [("parameters = list(agent.parameters())", "parameters = list(agent.actor.parameters())")],
        {OPTIMIZERS: "FAIL"},
    ),
    "a layer whose gradient is cut off": (
        "ppo",
        [("return log_prob, entropy, self.get_value(obs)", "return log_prob, entropy, self.get_value(obs).detach()")],
        {OPTIMIZERS: "FAIL"},
    ),
    "a step of a second optimizer that is forgotten": (
        "ppo",
        [
            *AUXILIARY[:3],
            (
                "optimizer.zero_grad()\n",
                "loss = loss + agent.aux(mb.obs).square().mean()\n                optimizer.zero_grad()\n",
            ),
            (
                "parameters = list(agent.parameters())",
                "parameters = [*agent.actor.parameters(), *agent.critic.parameters()]",
            ),
        ],
        {OPTIMIZERS: "FAIL", KEPT: "--"},
    ),
    "rows that no minibatch has": (
        "ppo",
        [("randperm(args.batch_size,", "randperm(args.batch_size // 2,")],
        {RATIO: "FAIL"},
    ),
    "a batch with more rows than the rollout": (
        "ppo",
        [
            (
                "        # Learn, in",
                "        batch = Batch(*(torch.cat([x, x[:T]]) for x in batch))\n        # Learn, in",
            ),
            ("randperm(args.batch_size,", "randperm(len(batch.obs),"),
        ],
        {RATIO: "--", ROWS: "--"},
    ),
    "advantages of a target critic": (
        "ppo",
        [
            (
                "= compute_gae(rewards, values, dones, next_value",
                "= compute_gae(rewards, 0.5 * values, dones, 0.5 * next_value",
            )
        ],
        {},
    ),
    "a last value in other units": (
        "ppo",
        [("= compute_gae(rewards, values,", "= compute_gae(rewards, 0.5 * values,")],
        {ENDS: "FAIL"},
    ),
    "ends that a repeated action steps over": (
        "ppo",
        [
            (
                "        observations, rewards, terminated, truncated, infos = self.vector.step",
                "        self.vector.step(env_actions)\n"
                "        observations, rewards, terminated, truncated, infos = self.vector.step",
            )
        ],
        {ENDED: "FAIL", ANEW: "FAIL", MIXING: "FAIL"},
    ),
    "masks changed in train": (
        "ppo_multidiscrete",
        [("from_numpy(envs.masks)", "from_numpy(envs.masks * (np.arange(envs.masks.shape[1]) >= step % 2))")],
        {PASSING: "FAIL"},
    ),
    "a forward between evaluate_actions and backward": (
        "ppo_numpy",
        [
            (
                "                agent.backward(",
                "                agent.get_value(b_obs[:M])\n                agent.backward(",
            )
        ],
        {RATIO: "FAIL"},
    ),
    "an estimate of its own that mixes episodes": (
        "ppo",
        [
            ("gae_lambda: float):", "gae_lambda: float, horizon):"),
            ("args.gamma, args.gae_lambda)", "args.gamma, args.gae_lambda, 1)"),
            ("* next_values * continues", "* next_values"),
        ],
        {GAE: "FAIL"},
    ),
    "a network that nothing trains": (
        "ppo",
        [
            (
                "        self.actor = mlp",
                "        self.fixed = nn.Linear(1, 1).requires_grad_(False)\n        self.actor = mlp",
            )
        ],
        {KEPT: "--"},
    ),
    "a rare phase": ("ppo", AUXILIARY, {OPTIMIZERS: "--", KEPT: "--"}),
    "a rare phase, more updates": ("ppo", AUXILIARY, {}, "--updates", "18"),
    "a rare phase that uses what isn't kept": ("ppo", RARE, {KEPT: "--"}),
    "a rare phase that uses what isn't kept, more updates": ("ppo", RARE, {RESUME: "FAIL"}, "--updates", "18"),
    "steps that run.note doesn't see": (
        "ppo",
        [
            ("                run.note(next_obs, rewards[step], episodes)\n", ""),
            (
                "        run.log(metrics)",
                "        run.rewards, run.global_step = [0.0], update * T * N\n        run.log(metrics)",
            ),
        ],
        {RESUME: "--"},
    ),
    "no option for processes": (
        "ppo",
        [("    vectorization: Literal", "    vectors: Literal"), ("args.vectorization", "args.vectors")],
        {ASYNC: "--"},
    ),
}
CASES = [pytest.param(name, marks=() if name in QUICK else pytest.mark.seldom) for name in QUICK | SELDOM]


@pytest.fixture
def in_this_process(monkeypatch):
    """check_edit's trainings without its processes, each of which takes seconds to load torch."""

    def call_here(script, folder, function, *arguments):
        folder.mkdir(exist_ok=True)
        monkeypatch.chdir(folder)
        monkeypatch.setitem(sys.modules, script.stem, None)  # what other tests import comes back afterwards
        try:
            return function(check_edit.load_script(script), *arguments)
        except Killed:
            raise BrokenProcessPool from None
        except (Exception, SystemExit) as error:
            raise check_edit.Failed(check_edit.describe(error)) from error

    class Killed(BaseException):
        pass

    def die(status):
        raise Killed

    monkeypatch.setattr(check_edit, "in_process", call_here)
    monkeypatch.setattr(os, "_exit", die)
    monkeypatch.setattr(sys, "path", list(sys.path))


def edit(name, folder):
    script, replacements, *_ = (QUICK | SELDOM)[name]
    text = (ROOT / "cleanrl" / f"{script}.py").read_text("utf-8")
    for old, new, *everywhere in replacements:
        assert old in text, old
        text = text.replace(old, new, -1 if everywhere else 1)
    path = folder / f"{script}.py"
    path.write_text(text, "utf-8")
    return path


@pytest.mark.parametrize("name", CASES)
def test_an_edit_is_judged(name, tmp_path, in_this_process):
    path = edit(name, tmp_path)
    _, _, expected, *words = (QUICK | SELDOM)[name]
    updates = check_edit.UPDATES
    if words[:1] == ["--updates"]:
        updates = int(words[1])
        words = []
    words = check_edit.in_process(path, tmp_path / "options", check_edit.read_options, words)
    found = {}
    for check, verdict, why in check_edit.list_checks(path, tmp_path, words, updates):
        if verdict != "ok":
            found[check] = (verdict, why)
    for check, (verdict, why) in found.items():
        assert any(part in check and verdict == expected[part] for part in expected), found
        if name in QUICK and check.startswith("killed and resumed") and verdict == "FAIL":
            assert "scale has a state that changes and that run.keep doesn't name" in why, why
    assert len(found) == len(expected), found


def estimate(rewards, values, dones, next_value, next_done, gamma, gae_lambda, keep=0.0, last=1.0, mixed=0.0):
    """GAE, of which a part `keep` crosses the ends of episodes and of which the end of the rollout counts `last`."""
    advantages = np.zeros_like(rewards)
    advantage, following, ended = 0.0, next_value, last * next_done
    for t in reversed(range(len(rewards))):
        goes_on = np.maximum(1.0 - ended, keep)
        advantage = rewards[t] + gamma * goes_on * following - values[t] + gamma * gae_lambda * goes_on * advantage
        advantages[t] = advantage
        following, ended = values[t], dones[t]
    advantages += mixed * rewards.mean(axis=1, keepdims=True)
    return advantages, advantages + values


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({}, ""),
        ({"keep": 1.0}, "what follows in environment 0 changes what is of another episode"),
        ({"last": 0.0}, "what follows in environment 1 changes what is of another episode"),
        ({"mixed": 0.1}, "what follows in environment 0 changes what is of another episode"),
    ],
)
def test_advantages_that_cross_ends_or_mix_environments_are_named(change, says):
    def compute_gae(rewards, values, dones, next_value, next_done, gamma, gae_lambda):
        return estimate(rewards, values, dones, next_value, next_done, gamma, gae_lambda, **change)

    said = check_edit.try_gae(SimpleNamespace(compute_gae=compute_gae))
    assert said.startswith(says) and bool(said) == bool(says)


@pytest.mark.parametrize("carries_on", [True, False])
def test_a_time_limit_among_the_arguments_may_not_join_two_episodes(carries_on):
    def compute_gae(rewards, values, dones, truncations, last_values, next_value, next_done, gamma, gae_lambda):
        ends = np.concatenate([dones[1:], next_done[None]])
        rewards = rewards + gamma * truncations * ends * (0 if carries_on else last_values)
        keep = truncations.max() if carries_on else 0.0
        return estimate(rewards, values, dones, next_value, next_done, gamma, gae_lambda, keep=keep)

    try:
        said = check_edit.try_gae(SimpleNamespace(compute_gae=compute_gae))
    except check_edit.NotCompared as reason:
        said = f"not compared: {reason}"
    says = "what follows in environment 0" if carries_on else "not compared: with ones for truncations, last_values"
    assert said.startswith(says)


def test_another_estimate_that_keeps_to_its_episode_is_not_compared():
    def half_the_lambda(rewards, values, dones, next_value, next_done, gamma, gae_lambda):
        return estimate(rewards, values, dones, next_value, next_done, gamma, gae_lambda / 2)

    with pytest.raises(check_edit.NotCompared, match="it isn't GAE"):
        check_edit.try_gae(SimpleNamespace(compute_gae=half_the_lambda))


def test_an_episode_ends_and_a_time_limit_comes_in_tasks_that_have_none(tmp_path, in_this_process):
    path = edit("none", tmp_path)
    words = ["--env-id", "Acrobot-v1"]
    limited = check_edit.in_process(path, tmp_path / "options", check_edit.read_options, words)
    assert limited == [*words, "--env-kwargs", '{"max_episode_steps": 19}']
    words = [*words, "--env-kwargs", '{"max_episode_steps": 300}']
    own = check_edit.in_process(path, tmp_path / "options", check_edit.read_options, words)
    assert own[-1] == '{"max_episode_steps": 300}'


def test_missing_rows_and_other_columns_are_named():
    rows = [{"global_step": "1", "loss": "2"}, {"global_step": "2", "loss": "2"}]
    assert check_edit.different_rows(rows, rows, set()) == ""
    assert "1 rows" in check_edit.different_rows(rows, rows[:1], set())
    assert "other" in check_edit.different_rows(rows, [{"global_step": "1", "other": "2"}] * 2, set())
    assert (
        check_edit.different_rows(rows, [rows[0], {"global_step": "2", "loss": "3"}], set()) == "loss is 3 instead of 2"
    )
    assert check_edit.different_rows(rows, [rows[0], {"global_step": "2", "loss": "3"}], {"loss"}) == ""


@pytest.mark.seldom
@pytest.mark.parametrize(
    ("name", "status", "last"),
    [
        ("none", 0, f"{CHECKS} ok, 0 not compared, 0 failed"),
        ("a rare phase", 0, f"{CHECKS - 2} ok, 2 not compared, 0 failed"),
        ("actions changed in train", 1, f"{CHECKS - 1} ok, 0 not compared, 1 failed"),
    ],
)
def test_as_typed(name, status, last, tmp_path):
    words = [sys.executable, ROOT / "benchmark" / "check_edit.py", edit(name, tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (status, last), done.stdout + done.stderr


def test_too_few_updates_are_refused(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["check_edit.py", str(ROOT / "cleanrl" / "ppo.py"), "--updates", "5"])
    with pytest.raises(SystemExit) as stop:
        check_edit.main()
    assert stop.value.code == 2 and "must be at least 6" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("verdicts", "status", "last"),
    [
        (["ok", "ok"], 0, "2 ok, 0 not compared, 0 failed"),
        (["ok", "--"], 0, "1 ok, 1 not compared, 0 failed"),
        (["FAIL", "--", "ok"], 1, "1 ok, 1 not compared, 1 failed"),
    ],
)
def test_the_status_says_whether_a_check_has_failed(verdicts, status, last, capsys, monkeypatch):
    asked = []

    def list_checks(script, folder, words, updates):
        asked.append((script.name, words, updates))
        for verdict in verdicts:
            yield "a check", verdict, "why"

    monkeypatch.setattr(check_edit, "list_checks", list_checks)
    monkeypatch.setattr(check_edit, "in_process", lambda script, folder, function, words: [*words, "--limited"])
    words = [str(ROOT / "cleanrl" / "ppo.py"), "--anneal-clip", "--env-id", "Acrobot-v1", "--updates", "24"]
    monkeypatch.setattr(sys, "argv", ["check_edit.py", *words])
    assert check_edit.main() == status
    assert capsys.readouterr().out.splitlines()[-1] == last
    assert asked == [("ppo.py", ["--anneal-clip", "--env-id", "Acrobot-v1", "--limited"], 24)]
