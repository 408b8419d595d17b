"""The torch scripts of this repository: their functions, and trainings through `train(args, run)`."""

from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import our_scripts
import scripted_game
import torch
from spy import Spy, describe, layers, load

NAME = "this project's torch scripts"
PICTURES = ["ppo_atari", "ppo_atari_visual", "ppo_atari_envpool", "ppo_atari_lstm", "ppo_procgen"]
PICTURES += ["ppo_atari_multigpu", "ppo_atari_multigpu_envpool"]
OPTIONS = {
    "record": {name: {"script": name} for name in ("ppo", "ppo_continuous_action", "ppo_multidiscrete", "ppo_lstm")}
}
OPTIONS["record"]["ppo --bootstrap-truncated"] = {"script": "ppo", "bootstrap_truncated": True}
OPTIONS["record"] |= {name: {"script": name, "is_picture": True} for name in PICTURES}
SCRIPTS = {"discrete": "ppo", "gaussian": "ppo_continuous_action", "multidiscrete": "ppo_multidiscrete"}
record = our_scripts.record


def gae(i):
    ended = (i["terminated"] | i["truncated"]).astype(float)
    dones = np.concatenate([np.zeros_like(ended[:1]), ended[:-1]])
    rewards = i["rewards"]
    if i["time_limits"] == "bootstrap":  # train's line with --bootstrap-truncated
        rewards = rewards + i["gamma"] * i["final_values"] * i["truncated"]
    compute_gae = our_scripts.load_script("ppo").compute_gae
    outputs = compute_gae(rewards, i["values"], dones, i["last_values"], ended[-1], i["gamma"], i["gae_lambda"])
    return dict(zip(("advantages", "returns"), outputs))


def make_agent(kind, width, outputs):
    """The script's agent in float64, with linear networks."""
    script = our_scripts.load_script(SCRIPTS[kind])
    space = {"discrete": gym.spaces.Discrete(outputs), "gaussian": gym.spaces.Box(-1, 1, (outputs,))}
    action_space = space.get(kind, gym.spaces.MultiDiscrete([2, 3]))
    envs = SimpleNamespace(observation_space=gym.spaces.Box(-1, 1, (width,)), action_space=action_space)
    agent = script.Agent(envs, script.Args()).double()
    agent.actor, agent.critic = torch.nn.Linear(width, outputs).double(), torch.nn.Linear(width, 1).double()
    return script, agent


def update(i):
    batch, hyper = {name: torch.as_tensor(x) for name, x in i["batch"].items()}, i["hyper"]
    script, agent = make_agent(i["kind"], len(batch["returns"]), len(i["weights"]["policy.0.bias"]))
    named = layers("policy", agent.actor) | layers("value", agent.critic)
    if i["kind"] == "gaussian":
        named["log_std"] = agent.log_std
    load(named, i["weights"])
    args = script.Args(**{name: hyper[name] for name in ("clip_coef", "ent_coef", "vf_coef")})
    optimizer = torch.optim.Adam(agent.parameters(), eps=1e-5)  # from here on train's lines
    spy = Spy(optimizer, named, agent.actor)
    batch["obs"] = torch.eye(len(batch["returns"])).double()
    mb = script.Batch(**{name: batch[name] for name in script.Batch._fields})
    masks = [mb.masks] if "masks" in batch else []
    for rate in hyper["learning_rates"]:
        optimizer.param_groups[0]["lr"] = rate
        outputs = agent.evaluate_actions(mb.obs, mb.actions, *masks)
        loss, _ = script.ppo_loss(*outputs, mb, args.clip_coef, args)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(agent.parameters(), hyper["max_grad_norm"])
        optimizer.step()
    return {"steps": spy.steps}


def evaluate_actions(i):
    kind = "gaussian" if "log_std" in i else "discrete" if len(i["nvec"]) == 1 else "multidiscrete"
    outputs = torch.as_tensor(i["outputs"])
    _, agent = make_agent(kind, outputs.shape[1], outputs.shape[1])
    agent.actor = torch.nn.Identity()
    if kind == "gaussian":
        load({"log_std": agent.log_std}, i)
    masks = [torch.as_tensor(i.get("masks", np.ones(outputs.shape, bool)))] if kind == "multidiscrete" else []
    with torch.no_grad():
        log_prob, entropy, _ = agent.evaluate_actions(outputs, torch.as_tensor(i["actions"]), *masks)
    return {"log_prob": log_prob.numpy(), "entropy": entropy.numpy()}


def atari(i):
    script = our_scripts.load_script("ppo_atari")
    envs = script.VectorEnv(script.Args(env_id="ScriptedGame-v0"), 1)

    def step(action):
        observations, rewards, dones, *_ = envs.step(np.array([action]))
        return observations[0], rewards[0], dones[0]

    outputs = scripted_game.play(lambda seed: envs.reset([seed])[0], step)
    return {i["of"]: outputs[i["of"]]}


def initial_weights(i):
    script = our_scripts.load_script(i["script"])
    space = gym.spaces.Discrete(i["actions"]) if i["discrete"] else gym.spaces.Box(-1, 1, (i["actions"],))
    shape = tuple(int(n) for n in i["observation"])
    observation_space = gym.spaces.Box(0, 255, shape, np.uint8 if len(shape) > 1 else np.float32)
    agent = script.Agent(SimpleNamespace(observation_space=observation_space, action_space=space), script.Args())
    return describe(dict(agent.named_parameters()), "actor", "critic")
