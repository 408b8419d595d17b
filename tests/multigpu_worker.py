"""One process of a job, as torchrun starts it: `multigpu_worker.py SCRIPT ARGUMENTS` runs a script of the collection
and notes in rankN.pt what it was given and what it did."""

import importlib
import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import torch
import tyro

sys.path.insert(0, str(Path(__file__).parents[1] / "cleanrl"))
script, rank = importlib.import_module(sys.argv.pop(1)), int(os.environ["RANK"])
notes = {"seeds": [], "minibatches": [], "updates": [], "gradients": [], "weights": []}
update = 0
reset, loss, step = script.VectorEnv.reset, script.ppo_loss, torch.optim.Adam.step
act, gae = script.Agent.get_action_and_value, script.compute_gae


def noted_reset(envs, seeds):
    notes["seeds"] += seeds if seeds != [0] else []  # which validate gives
    return reset(envs, seeds)


def noted_gae(*arguments, **coefficients):
    global update
    update += 1
    return gae(*arguments, **coefficients)


def noted_act(agent, obs, action=None, noise=None):
    if action is not None and len(notes["minibatches"]) < 8:
        notes["minibatches"].append([obs.clone(), action.clone()])
        notes["updates"].append(update)
    return act(agent, obs, action, noise)


def noted_loss(*arguments):
    if len(notes["minibatches"][-1]) == 2:
        notes["minibatches"][-1] += [x.clone() if isinstance(x, torch.Tensor) else x for x in arguments[3:]]
    return loss(*arguments)


def noted_step(optimizer):
    (weights,) = optimizer.param_groups[0]["params"]
    if len(notes["gradients"]) < 8:
        notes["weights"].append(weights.detach().clone())
        notes["gradients"].append(weights.grad.clone())
    elif os.environ.get("FAILING_RANK") == str(rank):
        raise RuntimeError("this rank was told to fail")
    step(optimizer)
    notes["last_weights"] = weights


def endless_video(*_):
    time.sleep(1000)
    yield


script.VectorEnv.reset, script.ppo_loss, torch.optim.Adam.step = noted_reset, noted_loss, noted_step
script.Agent.get_action_and_value, script.compute_gae = noted_act, noted_gae
if rank and "FAST_CLOCK" in os.environ:  # as of a process that waits less for its environments
    script.time = SimpleNamespace(**vars(time) | {"perf_counter": lambda: 3 * time.perf_counter()})
if "ENDLESS_VIDEO" in os.environ:
    script.evaluate = endless_video
script.main(tyro.cli(script.Args))
torch.save(notes | {"last_weights": notes["last_weights"].detach()}, f"rank{rank}.pt")
