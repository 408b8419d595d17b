"""The torch scripts of this repository that see pictures: trainings of them, and what they see of a game."""

from functools import partial

import numpy as np
import our_scripts
import ours
import scripted
import scripted_game
import torch.distributed as dist
from gymnasium.vector import AutoresetMode

NAME = "this project's torch scripts for pictures"
MINE = [name for name in our_scripts.NAMES if our_scripts.kind_of(name) == "pictures"]
OPTIONS = {"record": {name: {"name": name} for name in MINE}}
PARAMETERS = {"ppo_atari_lstm": 2007204, "ppo_procgen": 623172}  # with 3 actions; those of the other Atari scripts:
NATURE = 1686180


class Pictures:
    """In place of a script's VectorEnv."""

    def __init__(self, args, num_envs, mode):
        self.vector = scripted.make_vector("pictures", num_envs, mode)
        self.observation_space = self.vector.single_observation_space
        self.action_space = self.vector.single_action_space

    def reset(self, seeds):
        return self.vector.reset()[0]

    def step(self, actions):
        observations, rewards, terminated, truncated, infos = self.vector.step(actions)
        last = infos.get("final_obs", observations)
        cut = {n: last[n] for n in np.flatnonzero(truncated)}
        return observations, rewards, (terminated | truncated).astype(np.float32), cut, []


def record(name, **options):
    if "multigpu" in name and not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    mode = AutoresetMode.NEXT_STEP if "envpool" in name else AutoresetMode.SAME_STEP
    training = ours.record(name, partial(Pictures, mode=mode), **options)
    count, wanted = sum(x.size for x in training["own"].values()), PARAMETERS.get(name, NATURE)
    if count != wanted:
        training["others"].append(f"{count} parameters in place of {wanted}")
    if name == "ppo_procgen":  # its initial weights aren't orthogonal
        training["own"] = {}
    return training


def atari(i):
    """What the agent sees of a scripted game."""
    script = our_scripts.load_script("ppo_atari")
    envs = script.VectorEnv(script.Args(env_id="ScriptedGame-v0"), 1)

    def step(action):
        observations, rewards, dones, *_ = envs.step(np.array([action]))
        return observations[0], rewards[0], dones[0]

    return {i["of"]: scripted_game.play(lambda seed: envs.reset([seed])[0], step)[i["of"]]}
