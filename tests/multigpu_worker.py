"""One process of a job, as torchrun starts it: `multigpu_worker.py SCRIPT ARGUMENTS` runs a script of the collection
and notes in rankN.pt what it was given and what it did."""

import atexit
import importlib
import os
import random
import sys
from pathlib import Path

import numpy as np
import torch
import tyro

sys.path.insert(0, str(Path(__file__).parents[1] / "cleanrl"))
name = sys.argv.pop(1)
sys.modules.pop(name, None)  # in a fork, it has been used
script = importlib.import_module(name)
rank = int(os.environ["RANK"])
notes = {what: [] for what in "seeds noises rewards minibatches gradients weights steps drawn".split()}
reset = script.VectorEnv.reset
env_step = script.VectorEnv.step
loss = script.ppo_loss
gae = script.compute_gae
adam_step = torch.optim.Adam.step
NOTED = 8  # optimizer steps whose minibatches, gradients and weights are kept


class OtherAgent(script.Agent):
    """Begins with other weights in each process."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        for parameter in self.parameters():
            parameter.data += 0.01 * rank

    def get_action_and_value(self, obs, noise):
        if len(noise) > 1:  # not the one of check_arguments
            notes["noises"].append(noise.numpy().tobytes())
        return super().get_action_and_value(obs, noise)


def noted_reset(envs, seeds):
    if len(seeds) > 1:  # not the one of check_arguments
        notes["seeds"] += seeds
        notes["drawn"] += [random.random(), np.random.random()]
    return reset(envs, seeds)


def noted_env_step(envs, actions):
    result = env_step(envs, actions)
    if len(actions) > 1:
        notes["rewards"].append(torch.as_tensor(result[1]).sum())
    return result


def noted_gae(*arguments):
    notes["steps"].append(0)  # optimizer steps in this update
    return gae(*arguments)


def noted_loss(log_prob, entropy, value, mb, clip_coef, args):
    if len(notes["minibatches"]) < NOTED:
        notes["minibatches"].append([x.clone() for x in mb])
    result, debug = loss(log_prob, entropy, value, mb, clip_coef, args)
    if "KL" in os.environ:  # of each rank
        debug["losses/approx_kl"] = float(os.environ["KL"].split()[rank])
    return result, debug


def noted_adam_step(optimizer):
    parameters = optimizer.param_groups[0]["params"]
    if len(notes["gradients"]) < NOTED:
        notes["weights"].append([x.detach().clone() for x in parameters])
        notes["gradients"].append([x.grad.clone() for x in parameters])
    adam_step(optimizer)
    notes["steps"][-1] += 1
    notes["last_weights"] = parameters


def note_threads():
    """Of a process that is no fork: forks skip what is registered for Python's end."""
    Path("threads").write_text("".join(path.read_text() for path in Path("/proc/self/task").glob("*/comm")))


script.Agent = OtherAgent
script.VectorEnv.reset = noted_reset
script.VectorEnv.step = noted_env_step
script.ppo_loss = noted_loss
script.compute_gae = noted_gae
torch.optim.Adam.step = noted_adam_step
atexit.register(note_threads)  # runs after what the script registers later
script.main(tyro.cli(script.Args))
notes["last_weights"] = [x.detach() for x in notes["last_weights"]]
torch.save(notes, f"rank{rank}.pt")
