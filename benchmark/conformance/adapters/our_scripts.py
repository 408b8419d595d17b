"""How the scripts of this repository are trained."""

import importlib.util
import json
import sys
from pathlib import Path

import scripted
from switches import ClipRange, TimeLimits

FOLDER = Path(__file__).parents[3] / "cleanrl"
NAMES = sorted(path.stem for path in FOLDER.glob("ppo*.py"))
ALSO = {"epochs": "update_epochs", "minibatches": "num_minibatches"}  # the scripts' names for them
NO_ARGUMENTS = ("updates", "annealed", "adam_eps")
SIMULATORS = FOLDER.parent / "benchmark" / "simulators"  # a file of them runs Gymnasium
NOT_NORMALIZED = {"norm_obs": False, "norm_reward": False, "time_limits": "none"}  # of that script
BOOTSTRAPPED = ("time limits", TimeLimits.BOOTSTRAPPED)
WANTED = {
    "bootstrap_truncated": BOOTSTRAPPED,
    "time_limits": BOOTSTRAPPED,
    "anneal_clip": ("clip range", ClipRange.ANNEALED),
}


def kind_of(name):
    parts = {"continuous": "gaussian", "multidiscrete": "multidiscrete", "atari": "pictures", "procgen": "pictures"}
    return next((parts[part] for part in parts if part in name), "discrete")


def load_script(name):
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Run:
    """What `train` needs of a run."""

    def __init__(self, updates, keep):
        self.count = updates
        self.keep = keep

    def updates(self):
        return [(update, update == 1) for update in range(1, self.count + 1)]

    def note(self, *step): ...

    def log(self, metrics): ...


def without_trial(log):
    """A log without the step that ppo_continuous_action_gpu.py tries first, and the reset that may follow."""
    begins = 3 if log[2][0] == log[3][0] == "reset" else 2
    return log[begins:]


def train(name, script, keep, options):
    """Trains a loaded script with scripted.HYPER's numbers or those among the options. Returns a part of its record."""
    kind = kind_of(name)
    hyper = scripted.HYPER | {"annealed": name != "ppo_procgen"}  # as train-procgen
    if "lstm" in name:
        hyper["num_envs"] = 8  # 2 in each minibatch
    elif kind != "pictures":
        hyper["learning_rate"] = 0.02  # its own networks
    hyper |= {key: options[key] for key in options if key in hyper}
    is_gpu = name == "ppo_continuous_action_gpu"  # its statistics change at other moments than the replay's
    normalizes = kind == "gaussian" and not is_gpu
    environment = {"kind": kind, "num_envs": hyper["num_envs"], "outliers": normalizes}
    arguments = {ALSO.get(key, key): x for key, x in (options | hyper).items() if key not in NO_ARGUMENTS}
    total = hyper["num_envs"] * hyper["num_steps"] * hyper["updates"]
    env_id = "Scripted-v0"
    if is_gpu:
        sys.path.append(str(SIMULATORS))
        env_id = f"gymnasium_envs:Gymnasium:{env_id}"
        arguments = NOT_NORMALIZED | arguments
    args = script.Args(env_id=env_id, env_kwargs=json.dumps(environment), total_timesteps=total, **arguments)
    scripted.makers()  # forgets what was logged before
    script.train(args, Run(hyper["updates"], keep))
    wanted = dict(WANTED[key] for key in options if key in WANTED)
    logs = scripted.logs()
    if is_gpu:
        logs = [without_trial(log) for log in logs]
    record = {"kind": kind, "hyper": hyper, "logs": logs, "options": wanted}
    return record | ({"normalizes": "observations and rewards"} if normalizes else {})
