"""Checks that an edited script is whole: that what acts is what learns, is kept, and is evaluated.

    python benchmark/check_edit.py cleanrl/ppo_mine.py
    python benchmark/check_edit.py cleanrl/ppo_mine.py --env-id Acrobot-v1 --anneal-clip
    python benchmark/check_edit.py cleanrl/ppo_mine.py --updates 24

Options after the script are its own, say one that switches your edit on; the sizes and the device are the check's.
Trains a few small updates of the script, several times, in short episodes. Prints a line for each check: ok, FAIL, or
-- if there was nothing to compare. Takes a minute or two.
Exit status: 0 no check has failed, 1 one has, 2 wrong arguments.
"""

import argparse
import copy
import csv
import functools
import importlib.util
import inspect
import json
import math
import os
import random
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext, suppress
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import gymnasium as gym
import numpy as np

UPDATES = 6  # by default
SIZES = {"num_envs": 8, "num_steps": 32, "checkpoints": 3, "num_threads": 1}
TIME_LIMIT = 19  # steps of an episode, so that some end in each rollout; prime, for edits that repeat actions
FRAME_LIMIT = 60  # the same in frames: Gymnasium's Atari games skip 4 a step, and up to 30 at the start
TOLERANCE = 1e-3  # of log-probs, entropies and values: networks round differently in batches of other sizes
CHANGING = ("seconds", "log_sizes", "args", "path")  # what two equal runs have of their own in a checkpoint
DRAWS = 40  # of actions at the same observations
FIRST_END = 7  # steps of the first environment's episodes where mixing is looked for
ACTING = ("get_action_and_value", "get_action")  # methods of Agent that draw actions, the second one without torch
METHODS = (*ACTING, "evaluate_actions", "get_value")


class NotCompared(Exception):
    """Says why a check had nothing to compare."""


class RolloutEnds(Exception):
    """Ends a training before it learns."""


class Failed(Exception):
    """Says what a script raised in another process: only there its own exceptions are known."""


def judge(check, *arguments) -> tuple[str, str]:
    """What a check finds, "ok", "FAIL" or "--", and why. It returns a problem, or "", or raises NotCompared."""
    try:
        problem = check(*arguments)
    except NotCompared as reason:
        return "--", str(reason)
    except Exception as error:  # what was edited can raise anything
        problem = describe(error)
    return ("FAIL", problem) if problem else ("ok", "")


# -------------------------------------------------------------------------------------------------- Small trainings
def load_script(path: Path):
    """The script as a module, under its own name: it names run folders and checkpoints by it."""
    sys.path.insert(0, str(path.parent))  # processes of environments find it there
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def in_process(script: Path, folder: Path, function, *arguments):
    """Calls the function with the script, as a module, in a fresh process that works in the folder: scripts change
    settings of the process that they run in."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(call, script, folder, function, *arguments).result()


def call(script: Path, folder: Path, function, *arguments):
    """Raises Failed for whatever the function raises."""
    sys.path.append(os.getcwd())  # --env-id mine:Mine-v0 finds mine.py where you start
    folder.mkdir(exist_ok=True)
    os.chdir(folder)
    log = os.open("output.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    try:
        return function(load_script(script), *arguments)
    except (Exception, SystemExit) as error:
        raise Failed(describe(error)) from None


def describe(error: BaseException) -> str:
    if isinstance(error, Failed):
        return str(error)
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def read_options(module, words: list[str]) -> list[str]:
    """The words, and a short time limit if the environments take one and have none of their own. Ends as the script
    does if it doesn't have these options."""
    args = make_args(module, words, UPDATES)
    limit = {"max_episode_steps": FRAME_LIMIT if getattr(module, "PICTURES", False) else TIME_LIMIT}
    limited = json.dumps({**limit, **json.loads(args.env_kwargs)})
    try:
        envs = module.VectorEnv(replace(args, env_kwargs=limited), 1)
        envs.reset(first_seed(envs))
        envs.close()
    except Exception:  # it takes no such argument
        return words
    return [*words, "--env-kwargs", limited]  # the last one counts


def first_seed(envs):
    """What reset of a single environment takes: a list of seeds, or a seed of simulators that share it."""
    return [1] if "seeds" in inspect.signature(envs.reset).parameters else 1


def make_args(module, words: list[str], updates: int, **sizes):
    """The script's arguments for a small training: the words, and sizes, of which those that it doesn't have are left
    out."""
    args, _ = module.read_arguments(words)
    steps = SIZES["num_envs"] * SIZES["num_steps"] * updates
    wanted = {**SIZES, "total_timesteps": steps, "device": "cpu", "exact_resume": True, **sizes}
    return replace(args, **{name: value for name, value in wanted.items() if hasattr(module.Args, name)})


def train_straight(module, words: list[str], updates: int) -> tuple[Path, list[tuple[str, str, str]], dict]:
    """Trains, and looks inside. Returns the run folder, each check's name with what it found, and facts for others."""
    gae = judge(try_gae, module)  # before it is watched
    watch = Watch(module)
    args = make_args(module, words, updates)
    run_folder = module.main(args)
    is_drawn = hasattr(module.Agent, ACTING[0]) and not watch.has_memory()  # without torch, log-probs come later
    draws = judge(watch.try_draws) if is_drawn else None  # before a player acts
    player = judge(watch.compare_player, run_folder)  # it plays, which others look at
    found = [
        ("in the first minibatch of each update, every ratio is 1", *judge(watch.compare_policies)),
        ("in the first minibatch of each update, every value is the rollout's", *judge(first_problem, watch.values)),
        ("agent and environments get what the other returned", *judge(watch.compare_passing)),
        ("episodes end, by a time limit too", *judge(watch.find_ends, "max_episode_steps" in args.env_kwargs)),
        ("compute_gae follows its definition", *gae),
        ("compute_gae gets the ends of the rollout's episodes", *judge(watch.compare_ends)),
        ("rows of the batch are in the order of the rollout", *judge(first_problem, watch.rows)),
        ("the loss pulls probabilities, values and entropy the right way", *judge(watch.compare_shapes)),
    ]
    if is_drawn:
        found.insert(2, ("actions are drawn as their log-probs say", *draws))
    if hasattr(module, "make_vector"):  # Gymnasium's, into which another simulator can be put
        found.append(("an episode begins anew after an end in step", *judge(watch.try_end, run_folder)))
    if watch.has_memory():
        found.append(("the memory is forgotten where an episode begins", *judge(watch.try_memory)))
    found += [
        ("a loaded checkpoint computes what the training agent does, and plays", *player),
        ("train evaluates with players, if at all", *judge(watch.find_environments)),
        ("optimizers have all parameters with gradients, and change them", *judge(watch.find_untrained)),
    ]
    facts = {
        "inexact": watch.has_normalized_rewards(),
        "unkept": watch.find_unkept(),
        "unchanged": watch.find_unchanged(),
        "shared": watch.shared,
        "has processes": hasattr(module, "make_vector"),  # EnvPool and Procgen have threads
        "has --vectorization": hasattr(module.Args, "vectorization"),
    }
    return Path.cwd() / run_folder, found, facts


def try_gae(module) -> str:
    """Holds compute_gae against its definition, in two environments whose episodes end in the middle and at the end."""
    rng = np.random.default_rng(1)
    rewards, values = rng.random((2, 5, 2), np.float32)
    next_value = rng.random(2, np.float32)
    ends = np.array([[0, 0], [1, 0], [0, 0], [0, 1], [0, 1]], np.float32)  # whether a step ends an episode
    dones = np.concatenate([np.ones((1, 2), np.float32), ends[:-1]])  # whether it begins one
    if not hasattr(module, "compute_gae"):
        raise NotCompared("there is no compute_gae")
    parameters = inspect.signature(module.compute_gae).parameters.values()
    names = [x.name for x in parameters if x.default is x.empty]
    usual = ["rewards", "values", "dones", "next_value", "next_done", "gamma", "gae_lambda"]
    if not set(usual) <= set(names):
        usual = names[:7]
    others = [name for name in names if name not in usual]  # an edit's own, of which 1 may change nothing

    def compute_gae(*inputs):
        return module.compute_gae(**dict(zip([*usual, *others], inputs)))

    inputs = [rewards, values, dones, next_value, ends[-1], 0.9, 0.8, *[np.ones_like(rewards) for _ in others]]
    outputs = call_with_arrays(compute_gae, inputs)
    expected = np.zeros((5, 2))
    for n in range(2):
        advantage = 0.0
        for t in reversed(range(5)):
            following = next_value[n] if t == 4 else values[t + 1, n]
            goes_on = 1.0 - ends[t, n]
            advantage = rewards[t, n] + 0.9 * goes_on * following - values[t, n] + 0.9 * 0.8 * goes_on * advantage
            expected[t, n] = advantage
    advantages, returns = outputs[0], outputs[-1]
    if advantages.shape == returns.shape == (5, 2):
        if np.abs(advantages - expected).max() < 1e-4 and np.abs(returns - advantages - values).max() < 1e-4:
            return ""
        if not mixes(compute_gae, inputs) and (others or np.abs(returns - advantages - values).max() < 1e-4):
            differs = f"with ones for {', '.join(others)}, it" if others else "it"
            raise NotCompared(f"{differs} isn't GAE; right only if your edit estimates advantages in another way")
    return (
        f"{mixes(compute_gae, inputs)}advantages of 5 steps in 2 environments are {in_text(advantages)} "
        f"instead of {in_text(expected)}, and returns are {in_text(returns)}"
    )


def in_text(x: np.ndarray) -> str:
    return str(x.astype(float).round(2).tolist())


def mixes(compute_gae, inputs: list) -> str:
    """Says so if what comes after the end in environment 0 of try_gae changes anything before it, or one environment
    the other one."""
    rewards, values, dones, next_value, *others = inputs
    before = call_with_arrays(compute_gae, inputs)
    for n, first in ((0, 2), (1, 0), (1, 5)):  # what changes: environment n from step `first` on, and what follows
        later = [rewards.copy(), values.copy(), dones, next_value.copy(), *others]
        later[0][first:, n] += 1
        later[1][first:, n] += 1
        later[3][n] += 1
        unchanged = np.ones((5, 2), bool)
        unchanged[first:, n] = False
        for one, other in zip(before, call_with_arrays(compute_gae, later)):
            if not np.allclose(one[unchanged], other[unchanged]):
                return f"what follows in environment {n} changes what is of another episode: "
    return ""


def call_with_arrays(function, inputs: list) -> list[np.ndarray]:
    """What the function returns, as arrays; it may take arrays or tensors."""
    torch = sys.modules.get("torch")
    for convert in [np.asarray, *([torch.from_numpy] if torch else [])]:
        try:
            return as_arrays(function(*[convert(x) if isinstance(x, np.ndarray) else x for x in inputs]))
        except Exception as error:
            reason = describe(error)
    raise NotCompared(f"it can't be called as in the original: {reason}")


def try_mixing(module, words: list[str]) -> tuple[str, str]:
    return judge(compare_mixing, module, words)


def compare_mixing(module, words: list[str]) -> str:
    """Trains three times for one update with simulators that show the same. In the second training, others of them show
    it, and their episodes end elsewhere: that must change nothing that belongs to the first environment. In the third,
    rewards after the end of its first episode are higher: that must not change the returns before it."""
    first = record_rollout(module, words, length=11, turn=11, later=0.0)
    second = record_rollout(module, words, length=5, turn=5, later=0.0)
    third = record_rollout(module, words, length=11, turn=11, later=1.0)
    returns = "the batch's returns"
    if returns in first and returns in third:
        if not is_linear(first[returns][:FIRST_END].ravel(), third[returns][:FIRST_END].ravel()):
            return f"{returns} of an episode depend on rewards after its end"
    for name, one in first.items():
        if name in (returns, "the batch's advantages"):  # those may be in other units; see try_gae
            continue
        other = second.get(name, np.empty(0))
        if one.shape != other.shape:
            raise NotCompared(f"{name} has shape {other.shape} instead of {one.shape} where episodes end elsewhere")
        if not is_linear(one.ravel(), other.ravel()):  # a common scale, as of returns, is right
            return f"{name} of one environment depend on what others show, or on where their episodes end"
    return ""


def is_linear(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether one array is the other in other units."""
    if not np.isfinite(one).all() or np.ptp(one) == 0:
        return np.array_equal(one, other, equal_nan=True)
    slope, offset = np.polyfit(one.astype(np.float64), other, 1)
    return bool(np.abs(slope * one + offset - other).max() <= TOLERANCE * max(1.0, np.abs(other).max()))


def record_rollout(module, words: list[str], length: int, turn: int, later: float) -> dict[str, np.ndarray]:
    """What passes between the first environment and the agent in one rollout, and its rows of the batch. length: of
    the others' episodes; turn: by how many places the others change what they show; later: what rewards get besides
    after the first episode's end."""
    make_vector, step, ppo_loss = module.make_vector, module.VectorEnv.step, module.ppo_loss
    args = make_args(module, words, 1, checkpoints=1, vectorization="sync")
    found = {"actions": [], "observations": [], "rewards": []}
    batches = []
    streams = []  # the first environment of each vector; the last one is of the training

    def make_streams(*arguments, **named):
        vector = make_vector(*arguments, **named)
        if isinstance(vector, gym.vector.SyncVectorEnv):
            others = vector.num_envs - 1
            for n, env in enumerate(vector.envs):
                number = 1 + (n - 1 + turn) % others if n else 0
                env.env = Stream(env.env, number, length if n else FIRST_END, later)
            streams.append(vector.envs[0].env)
        return vector

    def watched_step(envs, actions, *arguments, **named):
        outputs = step(envs, actions, *arguments, **named)
        if not batches and len(as_array(actions)) == args.num_envs:
            for values, x in zip(found.values(), (actions, *outputs[:2])):
                values.append(as_array(x).copy())
        return outputs

    def end_rollout(*arguments, **named):
        batches.extend(x for x in variables_of_train().values() if isinstance(x, module.Batch))
        raise RolloutEnds

    module.make_vector, module.VectorEnv.step, module.ppo_loss = make_streams, watched_step, end_rollout
    with suppress(RolloutEnds):
        module.main(args)
    module.make_vector, module.VectorEnv.step, module.ppo_loss = make_vector, step, ppo_loss
    if not batches or not streams:
        raise NotCompared("train doesn't call ppo_loss with a Batch, or VectorEnv's vector is not Gymnasium's")
    rollout = (args.num_steps, args.num_envs)
    batch = max(batches, key=lambda batch: as_array(batch.log_probs).size)
    for name in batch._fields:
        rows = as_array(getattr(batch, name))
        if rows.shape[:1] == (math.prod(rollout),):
            rows = rows.reshape(*rollout, *rows.shape[1:])
        if rows.shape[:2] == rollout:
            found[f"the batch's {name}"] = rows
    found["the simulator's actions"] = np.array(streams[-1].given)[:, None]
    if np.any(np.array(found["rewards"])[:, 1:]):  # an edit's own, by which the scale of all rewards changes
        del found["rewards"]
    return {name: np.array(values)[:, 0] for name, values in found.items()}


def train_and_die(module, words: list[str], updates: int) -> None:
    """Trains until the update after the second checkpoint, in which the process ends, as by kill -9."""
    note = module.Run.note

    def note_or_die(run, *arguments):
        if run.update > round(updates * 2 / 3):
            os._exit(9)
        note(run, *arguments)

    module.Run.note = note_or_die
    module.main(make_args(module, words, updates))


def resume(module) -> Path:
    """Goes on with the only run in the folder. Returns the run folder."""
    (run_folder,) = Path("runs").iterdir()
    module.main(*module.read_arguments(["--resume", str(run_folder)]))
    return Path.cwd() / run_folder


def train(module, words: list[str], updates: int, sizes: dict) -> Path:
    return Path.cwd() / module.main(make_args(module, words, updates, **sizes))


def compare_checkpoints(module, whole: Path, other: Path) -> str:
    """Where the last checkpoint of a run differs from the whole run's of the same update, or ""."""
    last = module.load_checkpoint(other)
    (same,) = (whole / "checkpoints").glob(f"{last['update']}.*")  # its ending says which library wrote it
    return first_difference(module.load_checkpoint(same), last, "")


# ------------------------------------------------------------------------------------------------ Inside a training
class Watch:
    """Notes what passes between the parts of a script while it trains."""

    def __init__(self, module):
        self.module = module
        self.phase = ""  # "rollout", or "play" while a player plays; what is asked besides isn't acted on
        self.kept = {}  # what run.keep was given, by name
        self.kept_states = {}  # their states then
        self.others = []  # what else has a state after the first update: variable's name, thing and state
        self.variables = {}  # of train, at the end of an update
        self.inputs = {}  # of the last call of each method of Agent, by the method's name
        self.used = set()  # ids of modules of torch that computed something
        self.with_gradient = set()  # ids of the parameters that ever had one
        self.with_numbers = set()  # and of those whose gradient wasn't all zeros
        self.initial = {}  # the numbers of each kept parameter at run.keep, by its id
        # Between agent and environments
        self.observed = {}  # what each VectorEnv returned last, by its id
        self.rolled_out = {}  # the same at the end of the latest rollout
        self.is_stale = False  # whether a rollout has begun with that, though the environments had gone on
        self.trained_in = set()  # ids of the VectorEnvs that rollouts step
        self.has_gone_on = False  # whether one of them was stepped since the rollout ended
        self.is_hidden = False  # whether after that, a fresh start came
        self.is_fresh = False  # whether this update's rollout begins with a reset in any case
        self.begins_right = False  # whether one began with what they had shown last, or with a reset of its own
        self.masks = {}  # its masks, if it has any
        self.drawn = None  # the actions that Agent returned last
        self.passed = set()  # (phase, what passed): observations to the agent, or actions to the environments
        self.changed = set()  # those of them that the other side had not returned
        self.noises = set()  # of all steps, as bytes
        self.ranges = {}  # by side, the smallest and largest of each number observed in rollouts
        self.unread = []  # names given to set_attr that no environment has
        self.attributes = {"train": set(), "play": set()}  # names given to set_attr, in training and by a player
        # The rollout of this update
        self.acted = []  # log-probs of its actions
        self.acted_values = []  # and values of what they answered
        self.earlier = np.empty(0, np.float32)  # log-probs of all rollouts before
        self.ends = []  # where episodes ended, (N,) for each step
        self.estimates = []  # what compute_gae returned
        self.is_last_valued = None  # whether get_value got the observation after it
        self.last_value = None  # and what it returned
        self.simulated = []  # where the simulators said that episodes end, in this call of VectorEnv.step
        self.counts = Counter()  # in all rollouts: ends, time limits, what compute_gae was given, noise
        # Learning
        self.learned = None  # log-probs of the last minibatch
        self.learned_values = None  # and its values
        self.learned_rows = set()  # log-probs of the samples in all minibatches of this update
        self.mixed = ""  # what a batch has besides the rollout
        self.left_out = []  # in each update, the share of the batch's rows that were in no minibatch
        self.is_first = False  # whether the next minibatch is the first of its update
        self.stepped = set()  # ids of parameters that an optimizer has changed by the gradient that they still have
        self.piled_up = set()  # and of those to whose old gradient the next one was added
        self.has_old_gradients = False  # whether an optimizer took a step with such sums
        self.shared = ""  # what is kept and overwritten
        self.ratios = []  # largest |log ratio| in the first minibatch of each update
        self.later_ratios = []  # and in all others
        self.strays = []  # how far log-probs in first minibatches are from those that acted
        self.later_strays = []  # and in all others
        self.values = []  # verdicts on values in first minibatches
        self.rows = []  # and on advantages and returns
        self.gradients = []  # and on the loss's gradients
        self.spread = ""  # where a tensor (M, 1) meets one of shape (M,)
        self.forwards = []  # methods of Agent since its last backward, which is the latest forward's
        self.watch_run(module.Run)
        self.watch_environments(module.VectorEnv)
        self.watch_attributes()
        self.watch_agent(module.Agent)
        self.watch_advantages()
        self.watch_loss()

    def watch_run(self, run_class) -> None:
        keep = run_class.keep
        updates = run_class.updates
        log = run_class.log

        def watched_keep(run, **objects):
            self.kept.update(objects)
            for name, thing in objects.items():
                self.kept_states[name] = copy.deepcopy(thing.state_dict())
                if callable(getattr(thing, "parameters", None)):  # a module of torch
                    self.watch_gradients(thing)
            keep(run, **objects)

        def watched_updates(run):
            for number, self.is_fresh in updates(run):
                self.is_hidden |= self.has_gone_on and self.is_fresh and number > 1
                self.has_gone_on &= not self.is_fresh
                self.is_first = True
                self.learned_rows = set()
                self.phase = "rollout"
                self.acted = []
                self.ends = []
                self.acted_values = []
                self.last_value = None
                self.estimates = []
                with self.watch_shapes():
                    yield number, self.is_fresh

        def watched_log(run, metrics):
            before, self.variables = self.variables, variables_of_train()
            self.note_left_out()
            self.earlier = np.concatenate([self.earlier, *self.acted])
            self.note_shared(before)
            if run.update == 1:
                for name, thing in self.list_unkept():
                    self.others.append((name, thing, copy.deepcopy(thing.state_dict())))
            log(run, metrics)

        run_class.keep = watched_keep
        run_class.updates = watched_updates
        run_class.log = watched_log

    def note_shared(self, before: dict) -> None:
        """Notes kept arrays that are train's own, (steps, environments, …), which the next rollout overwrites."""
        rollout = self.estimates[0][0].shape if self.estimates else None
        for name, thing in self.kept.items():
            for array in list_arrays(thing.state_dict()):
                for variable, value in self.variables.items():
                    is_lasting = value is before.get(variable) and tuple(getattr(value, "shape", ())[:2]) == rollout
                    if is_lasting and np.shares_memory(uncopied(array), uncopied(value)):
                        self.shared = f"{name} holds train's {variable}, which the next rollout overwrites: clone it"

    def watch_gradients(self, module) -> None:
        """Notes which parts are used and which parameters get a gradient; train may have cleared it later."""
        for part in module.modules():
            part.register_forward_pre_hook(self.note_use)
        for parameter in module.parameters():
            self.initial[id(parameter)] = as_array(parameter).copy()
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self.note_gradient)
                parameter.register_hook(functools.partial(self.note_old_gradient, parameter))
        importlib.import_module("torch.optim.optimizer").register_optimizer_step_pre_hook(self.note_step)

    def note_old_gradient(self, parameter, gradient) -> None:
        """Notes whether the gradient that comes is added to one that an optimizer has used."""
        if parameter.grad is None or parameter.grad.norm() == 0:
            self.piled_up.discard(id(parameter))
        elif id(parameter) in self.stepped:
            self.piled_up.add(id(parameter))
        self.stepped.discard(id(parameter))

    def note_step(self, optimizer, *arguments) -> None:
        used = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        self.has_old_gradients = self.has_old_gradients or bool(used & self.piled_up)
        self.stepped |= used

    def note_use(self, module, inputs) -> None:
        self.used.add(id(module))

    def note_gradient(self, parameter) -> None:
        self.with_gradient.add(id(parameter))
        if parameter.grad.norm() > 0:
            self.with_numbers.add(id(parameter))

    def watch_environments(self, envs_class) -> None:
        reset = envs_class.reset
        step = envs_class.step

        @functools.wraps(reset)
        def watched_reset(envs, *arguments, **named):
            obs = reset(envs, *arguments, **named)
            self.begins_right |= self.phase == "rollout" and not self.is_fresh
            self.observed[id(envs)] = as_array(obs).copy()
            self.masks[id(envs)] = getattr(envs, "masks", None)
            return obs

        def watched_step(envs, actions, *arguments, **named):
            if self.drawn is not None:
                self.compare_one("actions", as_array(actions), [self.drawn])
            self.watch_simulators(envs)
            self.simulated = []
            outputs = step(envs, actions, *arguments, **named)
            self.observed[id(envs)] = as_array(outputs[0]).copy()
            self.masks[id(envs)] = getattr(envs, "masks", None)
            if self.phase == "rollout" and not isinstance(envs, self.module.Player):
                self.trained_in.add(id(envs))
                self.note_ends(*outputs[2:4])
            self.has_gone_on |= not self.phase and id(envs) in self.trained_in
            return outputs

        envs_class.reset = watched_reset
        envs_class.step = watched_step

    def watch_attributes(self) -> None:
        """Notes what set_attr sets, and what it gives to environments that have nothing of that name."""
        set_attr = gym.vector.SyncVectorEnv.set_attr

        def watched(vector, name, values):
            if not all(vector.call("has_wrapper_attr", name)):
                self.unread.append(name)
            self.attributes["play" if self.phase == "play" else "train"].add(name)
            set_attr(vector, name, values)

        gym.vector.SyncVectorEnv.set_attr = watched

    def watch_simulators(self, envs) -> None:
        """Notes where Gymnasium's vector says that episodes end. An edit may step it more than once in a step."""
        vector = getattr(envs, "vector", None)
        if vector is None or "step" in vars(vector):
            return
        step = vector.step

        def watched_step(actions):
            outputs = step(actions)
            if len(outputs) == 5:
                self.note_range("environments", as_array(outputs[0]))
                self.simulated.append(as_array(outputs[2]) | as_array(outputs[3]))
            return outputs

        vector.step = watched_step

    def note_range(self, side: str, obs: np.ndarray) -> None:
        """Notes how much each number of observations, (N, …), varies."""
        low, high = obs.min(0), obs.max(0)
        if side in self.ranges and self.ranges[side][0].shape == low.shape:
            low, high = np.minimum(low, self.ranges[side][0]), np.maximum(high, self.ranges[side][1])
        self.ranges[side] = low, high

    def note_ends(self, dones, truncated) -> None:
        """truncated: by environment what a time limit cut, or for simulators on a GPU whether one did."""
        ends = as_array(dones) > 0
        if not isinstance(truncated, dict):
            ends = ends | (as_array(truncated) > 0)
            truncated = np.flatnonzero(as_array(truncated))
        for simulated in self.simulated:
            if simulated.shape == ends.shape and (simulated & ~ends).any():
                self.counts["ends lost"] += 1
        self.ends.append(ends)
        self.is_last_valued = None
        self.counts["ends"] += int(ends.sum())
        self.counts["time limits"] += len(truncated)

    def compare_one(self, what: str, given: np.ndarray, returned: list[np.ndarray]) -> None:
        """Notes whether observations or actions that one side gets are some that the other returned."""
        if self.phase:
            self.passed.add((self.phase, what))
            if not any(np.array_equal(given.ravel(), one.ravel()) for one in returned):
                self.changed.add((self.phase, what))

    def watch_agent(self, agent_class) -> None:
        for name in METHODS:
            if hasattr(agent_class, name):
                setattr(agent_class, name, self.watched_method(name, getattr(agent_class, name)))
        if hasattr(agent_class, "backward"):  # without torch
            agent_class.backward = self.watched_backward(agent_class.backward)

    def watched_backward(self, backward):
        def watched(agent, *arguments, **named):
            if "evaluate_actions" in self.forwards and self.forwards[-1] != "evaluate_actions":
                self.counts["backward of another forward"] += 1
            self.forwards = []
            return backward(agent, *arguments, **named)

        return watched

    def watched_method(self, name: str, method):
        signature = inspect.signature(method)

        @functools.wraps(method)
        def watched(agent, *arguments, **named):
            bound = signature.bind(agent, *arguments, **named)
            bound.apply_defaults()
            self.inputs[name] = [copied(x) for x in bound.args[1:]]
            outputs = method(*bound.args, **bound.kwargs)
            self.forwards.append(name)  # after those that it calls itself
            if name == "evaluate_actions":
                self.learned, self.learned_values = as_arrays(outputs)[0].ravel(), as_arrays(outputs)[2:3]
            elif name == "get_value":
                self.note_valued(as_array(bound.args[1]), as_arrays(outputs)[0])
            elif bound.arguments.get("action") is not None:  # as CleanRL's Agent evaluates actions
                self.learned, self.learned_values = as_arrays(outputs)[1].ravel(), as_arrays(outputs)[3:4]
            else:
                if bound.arguments.get("masks") is not None:
                    returned = [as_array(masks) for masks in self.masks.values() if masks is not None]
                    self.compare_one("masks", as_array(bound.arguments["masks"]), returned)
                self.note_acted(as_array(bound.args[1]), bound.arguments.get("noise"), as_arrays(outputs))
            return outputs

        return watched

    def note_acted(self, obs: np.ndarray, noise, outputs: list[np.ndarray]) -> None:
        self.drawn = outputs[0].copy()
        if self.phase == "rollout" and self.has_gone_on:
            self.begins_right |= any(np.array_equal(obs, latest) for latest in self.observed.values())
            self.has_gone_on = False
        if self.phase == "rollout" and not any(np.array_equal(obs, latest) for latest in self.observed.values()):
            self.is_stale |= any(np.array_equal(obs, latest) for latest in self.rolled_out.values())
        self.compare_one("observations", obs, list(self.observed.values()))
        if self.phase != "rollout":
            return
        self.note_range("agent", obs)
        if len(outputs) > 1:
            self.acted.append(outputs[1].ravel())
            self.acted_values += [x.ravel() for x in outputs[2:3]]
        if noise is not None and np.ptp(as_array(noise)) > 0:  # constant if an edit draws otherwise
            numbers = as_array(noise).tobytes()
            self.counts["old noise" if numbers in self.noises else "new noise"] += 1
            self.noises.add(numbers)

    def note_valued(self, obs: np.ndarray, value: np.ndarray) -> None:
        for latest in self.observed.values():
            if latest.shape == obs.shape:
                self.is_last_valued = bool(self.is_last_valued) or np.array_equal(latest, obs)
                if np.array_equal(latest, obs):
                    self.last_value = value.ravel()

    def watch_advantages(self) -> None:
        """Notes that a rollout has ended. Without compute_gae, it goes on until the loss."""
        compute_gae = getattr(self.module, "compute_gae", None)
        if compute_gae is None:
            return
        signature = inspect.signature(compute_gae)

        @functools.wraps(compute_gae)
        def watched_gae(*arguments, **named):
            self.phase = ""
            self.rolled_out = dict(self.observed)
            self.note_ends_given(signature.bind(*arguments, **named).arguments)
            outputs = compute_gae(*arguments, **named)
            self.estimates.append([x.copy() for x in as_arrays(outputs)])
            return outputs

        self.module.compute_gae = watched_gae

    def note_ends_given(self, inputs: dict) -> None:
        """Compares what compute_gae is given with what the steps of this rollout returned."""
        if self.is_last_valued is not None:
            self.counts["last value right" if self.is_last_valued else "last value wrong"] += 1
        if {"values", "next_value"} <= inputs.keys() and self.acted_values and self.last_value is not None:
            self.compare_units(as_array(inputs["values"]).ravel(), as_array(inputs["next_value"]).ravel())
        if not np.any(self.ends) or not {"dones", "next_done"} <= inputs.keys():
            return
        given = np.concatenate([as_array(inputs["dones"])[1:], as_array(inputs["next_done"])[None]])
        self.counts["ends right" if np.array_equal(given, np.array(self.ends)) else "ends wrong"] += 1

    def compare_units(self, values: np.ndarray, next_value: np.ndarray) -> None:
        """Notes whether values are the agent's in other units, such as those of the returns, and next_value isn't."""
        acted = np.concatenate(self.acted_values)
        if acted.shape != values.shape or next_value.shape != self.last_value.shape or np.ptp(acted) == 0:
            return
        slope, offset = np.polyfit(acted, values, 1)
        tolerance = TOLERANCE * max(1.0, np.abs(values).max())
        if np.abs(slope * acted + offset - values).max() <= tolerance:
            if np.abs(slope * self.last_value + offset - next_value).max() > tolerance:
                self.counts["other units"] += 1

    def watch_loss(self) -> None:
        ppo_loss = self.module.ppo_loss
        signature = inspect.signature(ppo_loss)

        def watched_loss(*arguments, **named):
            self.phase = ""
            outputs = ppo_loss(*arguments, **named)  # first, since it may call evaluate_actions itself
            batches = [x for x in [*arguments, *named.values()] if isinstance(x, self.module.Batch)]
            if batches and self.learned is not None:
                value = signature.bind(*arguments, **named).arguments.get("value")
                if value is not None:  # in the units of the batch
                    self.learned_values = [as_array(value)]
                is_first = self.is_first
                batch = {name: as_array(x) for name, x in batches[0]._asdict().items()}
                self.note_minibatch(batch)
                if is_first:
                    inputs = signature.bind(*arguments, **named).arguments
                    self.gradients.append(judge(compare_gradients, inputs, outputs, batch))
            return outputs

        self.module.ppo_loss = watched_loss

    def watch_shapes(self):
        """Notes where a tensor (M, 1) meets one of shape (M,), which without a word makes (M, M) of them."""
        torch = sys.modules.get("torch")
        script = inspect.getfile(self.module)
        if torch is None or "torch.compile(" in Path(script).read_text(encoding="utf-8"):  # it would trace this too
            return nullcontext()

        class Shapes(torch.overrides.TorchFunctionMode):
            def __torch_function__(mode, function, types, args=(), kwargs=None):
                output = function(*args, **(kwargs or {}))
                shapes = {tuple(x.shape) for x in args if isinstance(x, torch.Tensor)}
                for size in [shape[0] for shape in shapes if len(shape) == 1]:
                    is_spread = getattr(output, "shape", None) == (size, size) or function.__name__.endswith("_loss")
                    if size > SIZES["num_envs"] and (size, 1) in shapes and is_spread and not self.spread:
                        lines = [frame.lineno for frame in inspect.stack() if frame.filename == script]
                        place = f"in line {lines[0]} " if lines else ""
                        shape = f"of shape ({size}, 1) meets one of shape ({size},), which makes ({size}, {size})"
                        self.spread = f"{place}a tensor {shape}: squeeze the first"
                return output

        return Shapes()

    def compare_shapes(self) -> str:
        """The first mistake in what is learned from: of shapes, or of a gradient's direction."""
        return self.spread or first_problem(self.gradients)

    def note_minibatch(self, batch: dict[str, np.ndarray]) -> None:
        self.learned_rows.update(batch["log_probs"].ravel().tolist())
        is_older = np.isin(batch["log_probs"].ravel(), self.earlier)  # of an older policy, whose ratios aren't 1
        distances = np.abs(self.learned - batch["log_probs"].ravel())
        ratio = distances[~is_older].max(initial=0.0) if self.is_first else distances.max()
        if not self.is_first:
            self.later_ratios.append(ratio)
            if self.acted and not self.mixed:
                drawn = np.concatenate([*self.acted, self.earlier])
                self.later_strays.append(largest_distance(batch["log_probs"].ravel(), drawn))
            return
        self.is_first = False
        self.ratios.append(ratio)
        self.mixed = self.mixes_batch()
        if self.acted and not self.mixed:
            self.strays.append(largest_distance(batch["log_probs"].ravel(), np.concatenate(self.acted)))
        self.values.append(judge(self.look_at_values, batch))
        self.rows.append(judge(self.look_at_rows, batch))

    def whole_batch(self) -> np.ndarray | None:
        """The log-probs of all rows that train learns from, if it has a Batch of them."""
        batches = [x.log_probs for x in variables_of_train().values() if isinstance(x, self.module.Batch)]
        return max((as_array(x).ravel() for x in batches), key=len, default=None)

    def mixes_batch(self) -> str:
        """Says so if the batch isn't the rollout alone, as where an edit adds mirrored samples to it."""
        batch = self.whole_batch()
        acted = sum(len(x) for x in self.acted)
        if batch is None or len(batch) == acted or not acted:
            return ""
        return f"the batch has {len(batch)} rows, and the rollout {acted}"

    def note_left_out(self) -> None:
        batch = self.whole_batch()
        if batch is not None and self.learned_rows:
            self.left_out.append(np.mean([row not in self.learned_rows for row in batch.tolist()]))

    def look_at_values(self, batch: dict[str, np.ndarray]) -> str:
        """Compares the first minibatch's values with those that the rollout stored."""
        if not self.learned_values or "values" not in batch:
            raise NotCompared("evaluate_actions or Batch has no values")
        (learned,) = self.learned_values
        stored = batch["values"]
        if learned.shape != stored.shape:
            return f"evaluate_actions returns values {learned.shape}, the rollout's are {stored.shape}"
        is_older = np.isin(batch["log_probs"], self.earlier)
        distance = np.abs(learned - stored)[~is_older].max(initial=0.0)
        if not distance <= TOLERANCE * max(1.0, np.abs(stored).max()):  # values can be large
            return f"values that evaluate_actions returns are up to {distance:.3g} away from the rollout's"
        return ""

    def look_at_rows(self, batch: dict[str, np.ndarray]) -> str:
        """Whether returns, advantages and values in a row of the first minibatch are of one step."""
        if not {"returns", "advantages", "values"} <= batch.keys():
            raise NotCompared("Batch has no returns, advantages or values")
        if self.mixed:
            raise NotCompared(self.mixed)
        advantages, returns = batch["advantages"].ravel(), batch["returns"].ravel()
        differences = returns - batch["values"].ravel()
        slope, offset = np.polyfit(advantages, differences, 1)  # either may be scaled, or have another mean
        tolerance = TOLERANCE * max(1.0, np.abs(returns).max())
        if np.abs(offset + slope * advantages - differences).max() <= tolerance:
            return "" if slope > 0 else "advantages have the wrong sign: returns minus values are their opposite"
        if np.abs(returns - advantages).max() <= tolerance:
            return "returns are the advantages, without the values"
        acted = np.concatenate(self.acted) if self.acted else np.empty(0)
        for estimate in self.estimates:
            pairs = list(zip((advantages, returns), estimate))
            if len(pairs) < 2 or any(largest_distance(rows, all_of.ravel()) > 1e-5 for rows, all_of in pairs):
                continue
            if all(x.size == acted.size for x in estimate) and self.are_in_order(batch["log_probs"], pairs, acted):
                return ""  # compute_gae had other values than the batch, as those of a target network
            return "returns aren't advantages plus values: they are of other steps or environments"
        raise NotCompared("advantages or returns aren't what compute_gae returned, as where two are mixed")

    def are_in_order(self, log_probs: np.ndarray, pairs: list[tuple], acted: np.ndarray) -> bool:
        """Whether advantages and returns stand in the rows of the steps that they were computed for."""
        for i, log_prob in enumerate(log_probs.ravel()):
            steps = np.abs(acted - log_prob) <= 1e-6  # more than one, if it happened again
            if not any(all(abs(x.ravel()[t] - rows[i]) <= 1e-5 for rows, x in pairs) for t in np.flatnonzero(steps)):
                return False
        return True

    # ------------------------------------------------------------------------------------------------------ Findings
    def compare_policies(self) -> str:
        """Whether the policy that learns is the one that acted."""
        if not self.ratios:
            raise NotCompared("train doesn't call evaluate_actions, and ppo_loss with a Batch")
        if max(self.ratios) > TOLERANCE:
            ratio = math.exp(min(max(self.ratios), 700.0))
            return f"a ratio of the first minibatch is off 1 by a factor of {ratio:.3g}: acting and learning disagree"
        if max(self.later_ratios, default=1.0) == 0.0:
            return "all later ones are 1, too: the policy never changes, or the old log-probs are computed anew"
        if max(self.strays, default=0.0) > TOLERANCE:
            return f"log-probs that are learned from are {max(self.strays):.3g} away from those that acted"
        if max(self.later_strays, default=0.0) > TOLERANCE:
            return "old log-probs of later minibatches aren't those that acted: they are computed anew in an update"
        if self.left_out and np.median(self.left_out) > 0.1:
            return f"{np.median(self.left_out):.0%} of the batch's rows are in no minibatch"
        if self.counts["backward of another forward"]:
            return "Agent.backward follows another forward than evaluate_actions', and belongs to the latest"
        if not self.strays and self.mixed:
            raise NotCompared(self.mixed)
        if not self.strays and hasattr(self.module.Agent, ACTING[0]):
            raise NotCompared(f"train doesn't act by Agent.{ACTING[0]}")
        if self.counts["old noise"] > self.counts["new noise"]:
            return "most steps have the noise of an earlier step"
        return ""

    def find_lost(self) -> str:
        """What train sets in environments where nothing reads it, and what they show that the agent never sees."""
        if self.unread:
            return f"set_attr sets {self.unread[0]}, which no environment has: nothing reads it"
        if len(self.ranges) == 2:
            (low, high), (own_low, own_high) = self.ranges["environments"], self.ranges["agent"]
            lost = (low < high) & (own_low == own_high) if low.shape == own_low.shape else np.zeros(1)
            if lost.any():
                place = ", ".join(str(i) for i in np.argwhere(lost)[0])
                return f"number {place} of an observation changes, but not for the agent"
        for envs in self.kept.values():
            for env in getattr(getattr(envs, "vector", None), "envs", []):
                own = [name for name in vars(env) if name != "env" and not name.startswith("_")]
                if own and isinstance(env, self.module.OneOfMany):
                    return f"{own[0]} is set on the outermost wrapper, where nothing reads it; use set_attr"
        return ""

    def compare_passing(self) -> str:
        """Whether the agent sees what environments return, and they get the actions that it returns."""
        lost = self.find_lost()
        if lost:
            return lost
        if self.is_stale or (self.is_hidden and not self.begins_right):
            return "the training's environments are stepped between two rollouts: evaluate with a Player"
        passing = [("observations", "the agent gets"), ("actions", "the environments get")]
        if ("rollout", "masks") in self.passed:
            passing.append(("masks", "the agent gets"))
        for what, receiver in passing:
            in_training = ("rollout", what) in self.changed
            in_play = ("play", what) in self.changed
            if in_training and in_play:
                raise NotCompared(f"both train and Player change {what}")
            if in_training:
                return f"train changes {what} before {receiver} them, and --evaluate doesn't"
            if in_play:
                return f"Player changes {what} before {receiver} them, and train doesn't"
            for phase, who in (("rollout", "train"), ("play", "Player")):
                if (phase, what) not in self.passed:
                    raise NotCompared(f"{who} doesn't act by Agent.{' or '.join(ACTING)}, and VectorEnv.step")
        missing = self.attributes["train"] - self.attributes["play"]
        if missing:
            name = min(missing)
            text = f"train sets {name} in its environments, and a player never does: right only if the evaluation is to"
            raise NotCompared(f"{text} go without it; else put it into VectorEnv's state_dict")
        return ""

    def compare_ends(self) -> str:
        """Whether a call of compute_gae is given what the steps of the rollout returned."""
        if not self.counts["ends"]:
            raise NotCompared("no episode ended; try another --env-id or --env-kwargs")
        if self.counts["ends wrong"] and not self.counts["ends right"]:
            return "dones and next_done aren't where VectorEnv.step said that episodes end: dones[t] belongs to obs[t]"
        if self.counts["last value wrong"] and not self.counts["last value right"]:
            return "next_value isn't of the last observation that VectorEnv.step returned"
        if self.counts["other units"]:
            return "next_value isn't in the units of values: both come from the agent's values, by other numbers"
        if not self.counts["ends right"]:
            raise NotCompared("it is called without dones and next_done")
        return ""

    def find_model(self):
        """The Agent that run.keep calls model, or whose arrays it does: what players load."""
        model = self.kept.get("model")
        for thing in [*self.kept.values(), *self.variables.values()]:
            holds_model = any(x is model for x in getattr(thing, "__dict__", {}).values())
            if isinstance(thing, self.module.Agent) and (thing is model or holds_model):
                return thing
        raise NotCompared("what run.keep calls model is no Agent")

    def compare_player(self, run_folder: Path) -> str:
        """Whether a player that loads the last checkpoint computes what the training's model computes."""
        agent = self.find_model()
        if not self.inputs:
            raise NotCompared(f"train calls none of {', '.join(METHODS)}")
        if hasattr(agent, "eval"):
            agent.eval()  # as the player's: dropout and the like are off
        inputs = dict(self.inputs)
        self.phase = "play"
        player = self.module.load(run_folder)
        before = copy.deepcopy(player.state_dict())
        obs = player.reset(first_seed(player))
        for _ in range(50):
            obs = player.step(player.act(obs))[0]
        self.phase = ""
        after = copy.deepcopy(player.state_dict())
        player.close()
        for name, arguments in inputs.items():
            for own, loaded in zip(self.ask(agent, name, arguments), self.ask(player.agent, name, arguments)):
                distance = np.abs(own.astype(np.float64) - loaded).max()
                if not distance <= TOLERANCE:
                    return f"{name} of a loaded checkpoint is {distance:.3g} away from the training agent's"
        for name, thing in self.kept.items():
            if isinstance(thing, self.module.Agent) and thing is not agent and hasattr(thing, "modules"):
                if not self.used & {id(part) for part in thing.modules()}:
                    return f"nothing uses {name}: players load what run.keep calls model, so call {name} that"
        difference = first_difference(before, after, "state")
        if difference and self.observes_by_state(run_folder, after):
            return f"a player goes on learning statistics while it plays: {difference}"
        return ""

    def try_draws(self) -> str:
        """Whether actions are drawn as their log-probs say. If so, the gradient of log-probs is 0 on average over
        draws, also for log-probs that lack what only the action decides, such as the slope of a squashing function.
        Draws many actions at the last minibatch's observations."""
        asked = self.inputs.get("evaluate_actions")
        parameters = [list(inspect.signature(getattr(self.module.Agent, x, len)).parameters) for x in METHODS]
        acting, learning = parameters[0][1:], parameters[2][1:]
        if not asked or "actions" not in learning or not set(acting) - {"noise"} <= set(learning):
            raise NotCompared(f"Agent.{ACTING[0]} and evaluate_actions take other things")
        torch = sys.modules["torch"]
        agent = self.find_model()
        inputs = dict(self.inputs)
        given = dict(zip(learning, asked))
        weights = [parameter for parameter in agent.parameters() if parameter.requires_grad]
        gradients = []
        for _ in range(DRAWS):
            if "noise" in acting:
                given["noise"] = agent.draw_noise(len(given["actions"])).to(given["obs"].device)
            with torch.no_grad():
                given["actions"] = getattr(agent, ACTING[0])(*[given[name] for name in acting])[0]
            mean = agent.evaluate_actions(*[given[name] for name in learning])[0].mean()
            found = torch.autograd.grad(mean, weights, allow_unused=True)
            gradients.append([as_array(x) for x in found if x is not None])
        self.inputs = inputs  # of the training, for others
        for of_one in zip(*gradients):  # of each weight
            by_chance = np.var(of_one, 0, ddof=1).sum() / DRAWS
            if np.square(np.mean(of_one, 0)).sum() > 20 * by_chance:
                return "drawn actions aren't those of the distribution whose log-probs are learned"
        return ""

    def try_end(self, run_folder: Path) -> str:
        """Plays with a simulator that shows the same in each episode. An episode that begins in step must go on as one
        that begins by reset, and the last observation at a time limit must be what step returns without one."""
        player = self.module.load(run_folder, deterministic=True)
        if not isinstance(getattr(player, "vector", None), gym.vector.SyncVectorEnv):
            raise NotCompared("VectorEnv's vector is not Gymnasium's")
        simulator = Scripted(player.vector.envs[0].env)
        player.vector.envs[0].env = simulator
        fresh, _, _ = simulator.follow(player, player.reset(first_seed(player)), 4)
        _, uncut, _ = simulator.follow(player, player.reset(first_seed(player)), 3)
        simulator.length = 3
        limited, obs, cut = simulator.follow(player, player.reset(first_seed(player)), 3)
        simulator.length = None
        later, _, _ = simulator.follow(player, obs, 4)
        obs = player.reset(first_seed(player))
        simulator.length = 3
        simulator.first = 1000
        changed, _, _ = simulator.follow(player, obs, 3)
        player.close()
        if not np.any(fresh[::4]):
            return "all observations of a player are 0: with one environment alone, nothing is left of them"
        for i, pair in enumerate(zip(fresh, later)):
            if not np.allclose(*pair, rtol=0, atol=1e-5):
                what = ("observations", "the agent's actions", "the simulator's actions", "rewards")[i % 4]
                return f"{what} aren't what they are after reset: something goes on from the episode before"
        if not np.allclose(limited[-2], changed[-2], rtol=0, atol=1e-5):
            return "the reward of an episode's last step depends on the first observation of the next one"
        if isinstance(cut, dict) and not np.allclose(as_array(cut[0]), as_array(uncut)[0], rtol=0, atol=1e-5):
            return "the last observation at a time limit isn't what step returns without one"
        return ""

    def observes_by_state(self, run_folder: Path, state: dict) -> bool:
        """Whether a player with this state observes something else: statistics of rewards don't matter to it."""
        first = []
        for is_loaded in (False, True):
            player = self.module.load(run_folder)
            if is_loaded:
                player.load_state_dict(state)
            first.append(as_array(player.reset(first_seed(player))))
            player.close()
        return not np.array_equal(*first)

    def ask(self, agent, name: str, arguments: list) -> list[np.ndarray]:
        """What a method of an agent returns, as arrays. Equal agents draw the same."""
        seed_generators()
        return as_arrays(getattr(agent, name)(*[copied(x) for x in arguments]))

    def has_memory(self) -> bool:
        return "dones" in inspect.signature(getattr(self.module.Agent, ACTING[0], len)).parameters

    def try_memory(self) -> str:
        """Whether acting, told that an episode begins, gives the same for whatever the memory was."""
        if ACTING[0] not in self.inputs:
            raise NotCompared(f"train doesn't act by Agent.{ACTING[0]}")
        names = list(inspect.signature(getattr(self.module.Agent, ACTING[0])).parameters)[1:]
        outputs = []
        for change in (0.0, 1.0):
            arguments = []
            for name, x in zip(names, self.inputs[ACTING[0]]):
                if name == "dones":
                    x = x * 0 + 1
                elif name not in ("obs", "noise"):
                    x = x + change
                arguments.append(x)
            outputs.append(self.ask(self.find_model(), ACTING[0], arguments))
        if all(np.array_equal(*pair) for pair in zip(*outputs)):
            return ""
        return f"{ACTING[0]} with dones of 1 depends on the memory of the episode before"

    def find_environments(self) -> str:
        """Environments of train's own, which have other statistics than a player's."""
        kept = [id(thing) for thing in self.kept.values()]
        for name, value in self.variables.items():
            if isinstance(value, self.module.VectorEnv) and not isinstance(value, self.module.Player):
                if id(value) not in kept:
                    return f"{name} is a VectorEnv, whose statistics begin anew; evaluate with a Player"
        return ""

    def find_ends(self, is_limited: bool) -> str:
        """Whether episodes ended in the rollouts."""
        if self.counts["ends lost"]:
            return "VectorEnv.step returns dones of 0 where its simulators said, in that call, that an episode ended"
        if not self.counts["ends"]:
            raise NotCompared("none ended, so ends are in no check; try another --env-id or --env-kwargs")
        if is_limited and not self.counts["time limits"]:
            raise NotCompared("no time limit came, though --env-kwargs had max_episode_steps")
        return ""

    def list_unkept(self) -> list[tuple]:
        """Variables of train that have a state and are not in checkpoints, with their names."""
        kept = set()
        for thing in self.kept.values():
            kept |= {id(thing), *(id(part) for part in getattr(thing, "modules", list)())}
            if getattr(thing, "module", None) is not None:
                kept.add(id(thing.module))  # what a compiled or distributed module wraps
        found = []
        for name, value in self.variables.items():
            parts = list(value.values()) if isinstance(value, dict) else value
            parts = parts if isinstance(parts, list | tuple) else [value]
            for part in parts:
                if isinstance(part, self.module.Player) or not callable(getattr(part, "state_dict", None)):
                    continue
                holds_kept = any(id(x) in kept for x in getattr(part, "__dict__", {}).values())
                if id(part) not in kept and not holds_kept:
                    found.append((name, part))
        return found

    def find_unkept(self) -> str:
        """What train has from the first update to the last, changes, and isn't in checkpoints."""
        for name, thing, state in self.others:
            if first_difference(state, thing.state_dict(), "state"):
                return f"{name} has a state that changes and that run.keep doesn't name"
        return ""

    def find_unchanged(self) -> str:
        """What checkpoints have, and never changed, so that it doesn't matter whether they do."""
        for name, state in self.kept_states.items():
            if state and not first_difference(state, self.kept[name].state_dict(), "state"):
                return f"{name}, which run.keep names, never changed"
        optimized = self.list_optimized()
        for called, thing in self.kept.items():
            named = thing.named_parameters() if hasattr(thing, "named_parameters") else []
            for name, parameter in named:
                is_trained = parameter.requires_grad and id(parameter) in optimized
                is_trained = is_trained or id(parameter) in self.with_gradient
                if not is_trained and np.array_equal(as_array(parameter), self.initial[id(parameter)]):
                    return f"{called}'s {name}, which no optimizer trains, never changed"
        return ""

    def has_normalized_rewards(self) -> bool:
        """Whether make_env uses NormalizeReward, whose sum of rewards goes on through resets and isn't saved."""
        for thing in self.kept.values():
            for env in getattr(getattr(thing, "vector", None), "envs", []):
                if isinstance(env, gym.Wrapper) and env.has_wrapper_attr("return_rms"):
                    return True
        return False

    def list_optimized(self) -> set[int]:
        """The ids of all parameters that an optimizer has."""
        optimized = set()
        for thing in [*self.kept.values(), *self.variables.values()]:
            for group in getattr(thing, "param_groups", []):
                optimized |= {id(parameter) for parameter in group.get("params", [])}
        return optimized

    def find_untrained(self) -> str:
        """Parameters with a gradient that no optimizer uses or changes, and optimized ones without a gradient."""
        if self.has_old_gradients:
            return "an optimizer's step has gradients of earlier steps in it: zero_grad is missing"
        everything = [*self.kept.values(), *self.variables.values()]
        optimized = self.list_optimized()
        if not optimized:  # without torch, a model is arrays
            for name, array in self.kept["model"].state_dict().items():
                if np.array_equal(array, self.kept_states["model"][name]):
                    return f"the model's {name} is never changed"
        unused = ""
        for thing in everything:
            if not callable(getattr(thing, "named_parameters", None)):
                continue
            for name, parameter in thing.named_parameters():
                called = f"{type(thing).__name__}'s {name}"
                has_gradient = parameter.grad is not None or id(parameter) in self.with_gradient
                if id(parameter) not in optimized and has_gradient:
                    return f"{called} has a gradient, but no optimizer has it"
                if id(parameter) in optimized and not has_gradient and parameter.requires_grad:
                    owner = thing.get_submodule(name.rpartition(".")[0])
                    if owner is thing or id(owner) in self.used:
                        return f"{called} is in an optimizer, but never has a gradient"
                    unused = f"{called} is in an optimizer, but never used"
                if id(parameter) in optimized and id(parameter) in self.with_gradient - self.with_numbers:
                    unused = f"{called}'s gradient is always 0"
                if id(parameter) in self.with_numbers and id(parameter) in self.initial:
                    if np.array_equal(as_array(parameter), self.initial[id(parameter)]):
                        return f"{called} has gradients, but is never changed by them"
        if unused:
            raise NotCompared(f"{unused}; if a rare phase uses it, add --updates")
        for thing_name, thing in self.kept.items():
            named = thing.named_parameters() if hasattr(thing, "named_parameters") else []
            for name, parameter in named:
                if "target" in f"{thing_name}.{name}" and id(parameter) in optimized & self.with_numbers:
                    raise NotCompared(f"{thing_name}'s {name} is trained; right only if no target is meant")
        return ""


class Scripted(gym.Wrapper):
    """Takes the place of an environment: the t-th observation of all its episodes is the same."""

    def __init__(self, env):
        super().__init__(env)
        self.length = None  # of an episode
        self.first = 0  # number of its first observation
        _, self.info = env.reset(seed=1)

    def observe(self) -> np.ndarray:
        space = self.observation_space
        return (100 * np.random.default_rng(self.t or self.first).random(space.shape)).astype(space.dtype)

    def reset(self, **named):
        self.t = 0
        return self.observe(), self.info

    def step(self, action):
        self.given = np.array(action)
        self.t += 1
        return self.observe(), 0.1 * self.t, False, self.t == self.length, self.info

    def follow(self, player, obs, steps: int):
        """What passes in these steps, the last observation, and what a time limit cut."""
        seed_generators()  # some agents draw though the player is deterministic
        passed = [as_array(obs).copy()]
        for _ in range(steps):
            actions = player.act(obs)
            obs, rewards, _, cut, _ = player.step(actions)
            passed += [as_array(x).copy() for x in (actions, self.given, rewards, obs)]
        return passed, obs, cut


class Stream(Scripted):
    """Goes on showing the same where an episode ends. Only the first environment has rewards."""

    def __init__(self, env, number: int, length: int, later: float):
        super().__init__(env)
        self.number = number
        self.length = length
        self.later = later
        self.given = []  # actions
        self.t = 0

    def observe(self) -> np.ndarray:
        space = self.observation_space
        return (100 * np.random.default_rng([self.number, self.t]).random(space.shape)).astype(space.dtype)

    def reset(self, **named):
        return self.observe(), self.info

    def step(self, action):
        self.given.append(np.array(action))
        self.t += 1
        is_end = self.t % self.length == 0
        info = {**self.info, "recorded": {"r": 1.0, "l": 1}} if is_end else self.info
        reward = 0.1 * self.t + self.later * (self.t > self.length)
        return self.observe(), reward * (self.number == 0), is_end, False, info


def compare_gradients(inputs: dict, outputs: tuple, batch: dict[str, np.ndarray]) -> str:
    """Whether a step against the loss's gradient, where all ratios are 1, makes better actions more probable than
    worse ones, brings values nearer to the returns and raises the entropy, if it has a bonus."""
    names = ("log_prob", "entropy", "value")
    if not inputs.keys() >= set(names) or not {"advantages", "returns"} <= batch.keys():
        raise NotCompared("ppo_loss takes no log_prob, entropy and value, or Batch has no advantages and returns")
    if hasattr(outputs[0], "backward"):
        gradients = []
        for name in names:
            gradient = None
            if inputs[name].requires_grad:
                grad = sys.modules["torch"].autograd.grad
                (gradient,) = grad(outputs[0], inputs[name], retain_graph=True, allow_unused=True)
            gradients.append(np.zeros(1) if gradient is None else as_array(gradient).ravel())
    else:
        gradients = [as_array(x).ravel() for x in outputs[:3]]  # without torch, ppo_loss returns them
    advantages = batch["advantages"].ravel()
    if len(gradients[0]) != len(advantages):
        raise NotCompared("the loss has no gradient for each log-prob, or they aren't the rows of the advantages")
    is_better = advantages > advantages.mean()
    if gradients[0][is_better].mean() > gradients[0][~is_better].mean():
        return "a step makes actions of higher advantages less probable: the policy's loss has the wrong sign"
    if np.mean(gradients[0][is_better] == 0) > 0.9:
        return "where ratios are 1, the loss has no gradient for actions of higher advantages"
    if gradients[1].sum() > 0:
        return "a step lowers the entropy: its bonus has the wrong sign"
    errors = as_array(inputs["value"]).ravel() - batch["returns"].ravel()
    if len(gradients[2]) == len(errors) and np.sum(gradients[2] * errors) < 0:
        return "a step takes values away from the returns: the value's loss has the wrong sign"
    return ""


def seed_generators() -> None:
    random.seed(1)
    np.random.seed(1)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(1)


def variables_of_train() -> dict:
    """The variables of the train that called, or nothing: another function may ask."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_name != "train":
        frame = frame.f_back
    return dict(frame.f_locals) if frame is not None else {}


def list_arrays(state) -> list:
    """All arrays and tensors of a state."""
    if isinstance(state, dict):
        state = list(state.values())
    if isinstance(state, list | tuple):
        return [x for part in state for x in list_arrays(part)]
    return [state] if hasattr(state, "shape") and hasattr(state, "ndim") else []


def uncopied(x) -> np.ndarray:
    """The same numbers at the same place, if they are on the CPU."""
    return x.detach().cpu().numpy() if hasattr(x, "detach") else np.asarray(x)


def copied(x):
    """A copy of an array or tensor; the script may write into its own."""
    if isinstance(x, np.ndarray):
        return x.copy()
    return x.detach().clone() if hasattr(x, "detach") else x


def as_array(x) -> np.ndarray:
    if hasattr(x, "detach"):
        x = x.detach().cpu().float().numpy()
    return np.asarray(x)


def as_arrays(outputs) -> list[np.ndarray]:
    """What a function returned, one thing or a tuple of them."""
    return [as_array(x) for x in (outputs if isinstance(outputs, tuple) else [outputs])]


def first_problem(verdicts: list[tuple[str, str]]) -> str:
    """What a check of each update finds in all of them."""
    for verdict, text in verdicts:
        if verdict == "FAIL":
            return text
    for _, text in verdicts or [("--", "train doesn't call evaluate_actions, and ppo_loss with a Batch")]:
        if text:
            raise NotCompared(text)
    return ""


def largest_distance(values: np.ndarray, others: np.ndarray) -> float:
    """The largest distance from a value to the nearest of the others."""
    distances = [np.abs(others - value).min() for value in values]
    return max(distances)


def first_difference(one, other, place: str) -> str:
    """Where two states differ, and how; "" if they don't."""
    if isinstance(one, dict) and isinstance(other, dict):
        for name in one.keys() | other.keys():
            if place or name not in CHANGING:
                found = first_difference(one.get(name), other.get(name), f"{place}.{name}" if place else str(name))
                if found:
                    return found
        return ""
    if isinstance(one, list | tuple) and isinstance(other, list | tuple) and len(one) == len(other):
        for i, pair in enumerate(zip(one, other)):
            found = first_difference(*pair, f"{place}[{i}]")
            if found:
                return found
        return ""
    if hasattr(one, "shape") and hasattr(other, "shape"):
        equal = np.array_equal(as_array(one), as_array(other))
        return "" if equal else f"{place} has other numbers"
    return "" if one == other else f"{place} is {other} instead of {one}"


# ------------------------------------------------------------------------------------------------------------ Checks
def train_until_killed(script: Path, folder: Path, words: list[str], updates: int) -> bool:
    """Whether it was killed, as it should be."""
    try:
        in_process(script, folder, train_and_die, words, updates)
    except BrokenProcessPool:
        return True
    return False


def check_seed(script: Path, folder: Path, whole: Path, died: Path) -> str:
    """Whether two runs with one seed have the same bits, before any is killed."""
    difference = in_process(script, folder, compare_checkpoints, whole, died)
    if difference:
        return f"{difference} in a second run: something draws without a seed, or keeps a time"
    return ""


def check_resume(script: Path, folder: Path, died: Path, whole: Path, own: set[str], facts: dict) -> str:
    """Whether a killed and resumed run ends, and with the bits of one that ran straight, if it can be exact."""
    resumed = in_process(script, died, resume)
    if facts["inexact"]:
        return ""
    difference = in_process(script, folder / "compared", compare_checkpoints, whole, resumed)
    difference = difference or different_rows(read_metrics(whole), read_metrics(resumed), own)
    if difference:
        hint = facts["shared"] or facts["unkept"] or "something that changes isn't in run.keep"
        return f"{difference} after a kill and --resume: {hint}"
    return ""


def check_kept(facts: dict, updates: int) -> str:
    """Whether the resume could tell that something isn't kept."""
    if facts["unchanged"] or facts["unkept"]:
        what = facts["unchanged"] or f"{facts['unkept']}, and nothing depended on it"
        raise NotCompared(f"{what} in {updates} updates; for a rare phase, add --updates {4 * updates}")
    return ""


def check_async(script: Path, folder: Path, words: list[str], updates: int, own: set[str]) -> str:
    """Whether environments in processes give the rows of metrics.csv that they give in turn."""
    rows = []
    for vectorization in ("sync", "async"):
        sizes = {"vectorization": vectorization}
        rows.append(read_metrics(in_process(script, folder / vectorization, train, words, updates, sizes)))
    difference = different_rows(rows[0], rows[1], own)
    return f"with --vectorization async, {difference}" if difference else ""


def find_own(whole: Path, died: Path) -> set[str]:
    """Columns of metrics.csv that differ between equal runs, before any kill: times that an edit measures, say."""
    own = {"charts/SPS"}
    for row, other in zip(read_metrics(whole), read_metrics(died)):
        own |= {name for name, value in row.items() if value != other.get(name)}
    return own


def different_rows(rows: list[dict[str, str]], others: list[dict[str, str]], own: set[str]) -> str:
    """Where the rows of two metrics.csv differ, but for columns that each run has of its own, or ""."""
    if len(rows) != len(others) or rows[0].keys() != others[0].keys():
        return f"metrics.csv has {len(others)} rows of {list(others[0])} instead of {len(rows)} of {list(rows[0])}"
    for row, other in zip(rows, others):
        for name, value in row.items():
            if value != other[name] and name not in own:
                return f"{name} is {other[name]} instead of {value}"
    return ""


def read_metrics(run_folder: Path) -> list[dict[str, str]]:
    with open(run_folder / "metrics.csv", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def check_processes(script: Path, folder: Path, words: list[str], updates: int) -> str:
    """Whether two processes under torchrun train. They compare their parameters themselves."""
    folder.mkdir()
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    command += [*words, "--device", "cpu", "--backend", "gloo"]
    steps = SIZES["num_envs"] * SIZES["num_steps"] * updates
    for name, value in {**SIZES, "total_timesteps": steps}.items():
        command += [f"--{name.replace('_', '-')}", str(value)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(command, cwd=folder, capture_output=True, encoding="utf-8", env=environment)
    if done.returncode == 0:
        return ""
    said = [line for line in done.stderr.splitlines() if "error" in line.lower()] or ["it says nothing"]
    return f"ends with status {done.returncode}: {said[0]}"


def list_checks(script: Path, folder: Path, words: list[str], updates: int = UPDATES):
    """Yields the name of each check, "ok", "FAIL" or "--", and why."""
    try:
        whole, found, facts = in_process(script, folder / "straight", train_straight, words, updates)
        died = folder / "died"
        is_killed = train_until_killed(script, died, words, updates)
    except Failed as error:
        yield "it trains, saves and loads", "FAIL", str(error)
        return
    yield from found
    if facts["has processes"]:
        yield "environments don't mix", *in_process(script, folder / "mixing", try_mixing, words)
    (died_run,) = (died / "runs").iterdir()
    own = find_own(whole, died_run)
    seed = judge(check_seed, script, folder / "compared", whole, died_run)
    yield "two runs with one seed have the same bits", *seed
    differs = "two runs with one seed differ already" if seed[0] == "FAIL" else ""
    name = "killed and resumed with --exact-resume, a run has the same bits"
    if facts["inexact"]:
        name = "killed and resumed, a run goes on; inexactly with NormalizeReward: take it out to compare bits"
    if differs or not is_killed:
        resumed = "--", differs or "train never called run.note in the update of the kill"
    else:
        resumed = judge(check_resume, script, folder, died, whole, own, facts)
    yield name, *resumed
    if resumed[0] == "ok":
        yield "run.keep names what changes, and all of that did", *judge(check_kept, facts, updates)
    if own != {"charts/SPS"} and not differs:
        yield (
            "metrics.csv repeats",
            "--",
            f"{', '.join(sorted(own - {'charts/SPS'}))} differs without a kill, as times do",
        )
    if facts["has processes"]:
        in_processes = "--", differs or "the script has no --vectorization"
        if facts["has --vectorization"] and not differs:
            in_processes = judge(check_async, script, folder, words, updates // 2, own)
        yield "environments in processes give the same rows", *in_processes
    if "torch.distributed" in script.read_text("utf-8"):
        found = judge(check_processes, script, folder / "processes", words, updates)
        yield "two processes under torchrun train", *found


def main() -> int:
    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=style, allow_abbrev=False)
    parser.add_argument("script", type=Path, help="the edited script")
    parser.add_argument("--env-id", help="environment to train on; the script's default if left out")
    parser.add_argument("--env-kwargs", help="its arguments as JSON")
    parser.add_argument("--updates", type=int, default=UPDATES, help="more than 6 for what happens rarely (default: 6)")
    chosen, words = parser.parse_known_args()
    if not chosen.script.is_file():
        parser.error(f"{chosen.script}: there is no such file")
    if chosen.updates < UPDATES:
        parser.error(f"--updates {chosen.updates}: must be at least {UPDATES}")
    if chosen.env_id:
        words += ["--env-id", chosen.env_id]
    if chosen.env_kwargs:
        try:
            json.loads(chosen.env_kwargs)
        except ValueError as error:
            parser.error(f"--env-kwargs {chosen.env_kwargs}: is no JSON ({error}); write it like '{{\"size\": 5}}'")
        words += ["--env-kwargs", chosen.env_kwargs]
    script = chosen.script.resolve()
    counts = Counter()
    with tempfile.TemporaryDirectory() as folder:
        try:  # the script says itself which option is wrong
            limited = in_process(script, Path(folder) / "options", read_options, words)
        except Failed as error:
            parser.error(f"{script.name} {' '.join(words)}: {error}")
        for name, verdict, text in list_checks(script, Path(folder), limited, chosen.updates):
            counts[verdict] += 1
            why = {"ok": "", "--": f": not compared: {text}", "FAIL": f": {text}"}[verdict]
            print(f"{verdict:<6}{name}{why}", flush=True)
    print(f"{counts['ok']} ok, {counts['--']} not compared, {counts['FAIL']} failed")
    return 1 if counts["FAIL"] else 0


if __name__ == "__main__":
    sys.exit(main())
