"""Checks that an edited script is whole: that what acts is what learns, is kept, and is evaluated.

    python benchmark/check_edit.py cleanrl/ppo_mine.py
    python benchmark/check_edit.py cleanrl/ppo_mine.py --env-id Acrobot-v1 --anneal-clip

Options after the script are its own, say one that switches your edit on; the sizes and the device are the check's.
Trains a few small updates of the script, several times, and prints a line for each check. Takes a minute or two.
Exit status: 0 all is well, 1 a check has failed, 2 wrong arguments.
"""

import argparse
import copy
import csv
import importlib.util
import inspect
import json
import math
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import gymnasium as gym
import numpy as np

UPDATES = 6
KILLED_IN = 4  # the update in which the second run is killed; checkpoints are after the updates 2, 4 and 6
SIZES = {"num_envs": 8, "num_steps": 32, "total_timesteps": 8 * 32 * UPDATES, "checkpoints": 3, "num_threads": 1}
TOLERANCE = 1e-3  # of log-probs, entropies and values: networks round differently in batches of other sizes
CHANGING = ("seconds", "log_sizes", "args", "path")  # what two equal runs have of their own in a checkpoint
METHODS = ("get_action_and_value", "evaluate_actions", "get_value")  # of Agent, if it has them


# -------------------------------------------------------------------------------------------------- Small trainings
def load_script(path: Path):
    """The script as a module, under its own name: it names run folders and checkpoints by it."""
    sys.path.insert(0, str(path.parent))  # processes of environments find it there
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def begin(script: Path, folder: Path):
    """Loads the script in a process of its own, which works in the folder and prints into its file."""
    sys.path.append(os.getcwd())  # --env-id mine:Mine-v0 finds mine.py where you start
    folder.mkdir(exist_ok=True)
    os.chdir(folder)
    log = os.open("output.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    return load_script(script)


def read_options(script: Path, words: list[str]) -> None:
    """Ends as the script does if it doesn't have these options."""
    load_script(script).read_arguments(words)


def make_args(module, words: list[str], **sizes):
    """The script's arguments for a small training: the words, and sizes, of which those that it doesn't have are left
    out."""
    args, _ = module.read_arguments(words)
    wanted = {**SIZES, "device": "cpu", "exact_resume": True, **sizes}
    return replace(args, **{name: value for name, value in wanted.items() if hasattr(module.Args, name)})


def train_straight(script: Path, folder: Path, words: list[str]) -> tuple[Path, dict]:
    """Trains, and looks inside. Returns the run folder and a problem, or "", by check."""
    module = begin(script, folder)
    watch = Watch(module)
    run_folder = module.main(make_args(module, words))
    found = {
        "policy": watch.compare_policies(),
        "values": watch.wrong_values,
        "player": watch.try_player(run_folder),
        "environments": watch.find_environments(),
        "unkept": watch.find_unkept(),
        "gradients": watch.find_untrained(),
        "advantages": try_gae(module),
        "inexact": watch.has_normalized_rewards(),
    }
    return folder / run_folder, found


def try_gae(module) -> str | None:
    """Whether advantages end with the episode: no reward or value after its last step may change them. None if an edit
    calls compute_gae in another way."""
    dones = np.zeros((4, 1), np.float32)
    dones[2] = 1.0  # steps 0 and 1 are of another episode
    end = np.zeros(1, np.float32)
    advantages = []
    for number in (0.0, 1.0):
        later = np.zeros((4, 1), np.float32)
        later[2:] = number
        try:
            outputs = module.compute_gae(later, later, dones, end, end, 0.9, 0.9)
            advantages.append(as_array(outputs[0])[:2])
        except Exception:  # it may take tensors, or another number of them
            return None
    return "" if np.array_equal(*advantages) else "compute_gae carries rewards or values over the end of an episode"


def train_and_die(script: Path, folder: Path, words: list[str]) -> None:
    """Trains until an update in which the process ends, as by kill -9."""
    module = begin(script, folder)
    note = module.Run.note

    def note_or_die(run, *arguments):
        if run.update > KILLED_IN:
            os._exit(9)
        note(run, *arguments)

    module.Run.note = note_or_die
    module.main(make_args(module, words))


def resume(script: Path, folder: Path) -> Path:
    """Goes on with the only run in the folder. Returns the run folder."""
    module = begin(script, folder)
    (run_folder,) = Path("runs").iterdir()
    module.main(*module.read_arguments(["--resume", str(run_folder)]))
    return folder / run_folder


def train(script: Path, folder: Path, words: list[str], sizes: dict) -> Path:
    module = begin(script, folder)
    return folder / module.main(make_args(module, words, **sizes))


def compare_checkpoints(script: Path, folder: Path, whole: Path, resumed: Path) -> str:
    """Where the last checkpoints of two runs differ, or ""."""
    module = begin(script, folder)
    return first_difference(module.load_checkpoint(whole), module.load_checkpoint(resumed), "")


def in_process(function, *arguments):
    """Calls the function in a fresh process: scripts change settings of the process that they run in."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(call, function, *arguments).result()


def call(function, *arguments):
    """Raises RuntimeError for whatever the function raises: only this process knows the script's own exceptions."""
    try:
        return function(*arguments)
    except (Exception, SystemExit) as error:
        raise RuntimeError(describe(error)) from None


def describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


# ------------------------------------------------------------------------------------------------ Inside a training
class Watch:
    """Notes what passes between the parts of a script while it trains."""

    def __init__(self, module):
        self.module = module
        self.kept = {}  # what run.keep was given, by name
        self.inputs = {}  # of the last call of each method of Agent, by the method's name
        self.acted = []  # log-probs of the actions of this update's rollout
        self.learned = None  # log-probs of the last minibatch
        self.learned_values = None  # and its values
        self.observed = {}  # what each VectorEnv returned last, by its id
        self.is_rollout = False  # whether a rollout runs; what the agent is asked later, it doesn't act on
        self.is_changed = False  # whether Agent acted on observations that no VectorEnv returned
        self.with_gradient = set()  # ids of the parameters that ever had one
        self.with_numbers = set()  # and of those whose gradient wasn't all zeros
        self.initial = {}  # the numbers of each kept parameter at run.keep, by its id
        self.is_first = False  # whether the next minibatch is the first of its update
        self.ratios = []  # largest |log ratio| in the first minibatch of each update
        self.strays = []  # how far log-probs in these minibatches are from those that acted
        self.wrong_values = ""  # how values in these minibatches differ from the rollout's
        self.variables = {}  # of train, at the end of an update
        self.watch_run(module.Run)
        self.watch_environments(module.VectorEnv)
        self.watch_agent(module.Agent)
        self.watch_advantages()
        self.watch_loss()

    def watch_run(self, run_class) -> None:
        keep = run_class.keep
        updates = run_class.updates
        log = run_class.log

        def watched_keep(run, **objects):
            self.kept.update(objects)
            for thing in objects.values():
                if callable(getattr(thing, "parameters", None)):  # a module of torch
                    self.watch_gradients(thing)
            keep(run, **objects)

        def watched_updates(run):
            for update in updates(run):
                self.is_first = True
                self.is_rollout = True
                self.acted = []
                yield update

        def watched_log(run, metrics):
            frame = inspect.currentframe()
            while frame.f_code.co_name != "train":
                frame = frame.f_back
            self.variables = dict(frame.f_locals)
            log(run, metrics)

        run_class.keep = watched_keep
        run_class.updates = watched_updates
        run_class.log = watched_log

    def watch_gradients(self, module) -> None:
        """Notes which parameters get a gradient; train may have cleared it when an update ends."""
        for parameter in module.parameters():
            self.initial[id(parameter)] = as_array(parameter).copy()
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self.note_gradient)

    def note_gradient(self, parameter) -> None:
        self.with_gradient.add(id(parameter))
        if parameter.grad.norm() > 0:
            self.with_numbers.add(id(parameter))

    def watch_environments(self, envs_class) -> None:
        reset = envs_class.reset
        step = envs_class.step

        def watched_reset(envs, *arguments, **named):
            obs = reset(envs, *arguments, **named)
            self.observed[id(envs)] = np.array(obs)
            return obs

        def watched_step(envs, *arguments, **named):
            outputs = step(envs, *arguments, **named)
            self.observed[id(envs)] = np.array(outputs[0])
            return outputs

        envs_class.reset = watched_reset
        envs_class.step = watched_step

    def watch_agent(self, agent_class) -> None:
        for name in METHODS:
            if hasattr(agent_class, name):
                setattr(agent_class, name, self.watched_method(name, getattr(agent_class, name)))

    def watched_method(self, name: str, method):
        signature = inspect.signature(method)

        def watched(agent, *arguments, **named):
            bound = signature.bind(agent, *arguments, **named)
            self.inputs[name] = [copied(x) for x in bound.args[1:]]
            outputs = method(*bound.args, **bound.kwargs)
            if name == "get_action_and_value" and self.is_rollout:
                self.acted.append(as_array(outputs[1]).ravel())
                obs = as_array(bound.args[1])
                self.is_changed |= not any(np.array_equal(obs, one) for one in self.observed.values())
            if name == "evaluate_actions":
                self.learned = as_array(outputs[0]).ravel()
                self.learned_values = as_array(outputs[2]) if len(outputs) > 2 else None
            return outputs

        return watched

    def watch_advantages(self) -> None:
        """Notes that a rollout has ended. Without compute_gae, it goes on until the next one."""
        compute_gae = getattr(self.module, "compute_gae", None)

        def watched_gae(*arguments, **named):
            self.is_rollout = False
            return compute_gae(*arguments, **named)

        if compute_gae is not None:
            self.module.compute_gae = watched_gae

    def watch_loss(self) -> None:
        ppo_loss = self.module.ppo_loss

        def watched_loss(*arguments, **named):
            outputs = ppo_loss(*arguments, **named)  # first, since it may call evaluate_actions itself
            batches = [x for x in [*arguments, *named.values()] if isinstance(x, self.module.Batch)]
            if self.is_first and batches and self.learned is not None:
                self.is_first = False
                stored = as_array(batches[0].log_probs).ravel()
                self.ratios.append(np.abs(self.learned - stored).max())
                if self.acted:
                    self.strays.append(largest_distance(stored, np.concatenate(self.acted)))
                if self.learned_values is not None and hasattr(batches[0], "values"):
                    self.watch_values(as_array(batches[0].values))
            return outputs

        self.module.ppo_loss = watched_loss

    def watch_values(self, stored: np.ndarray) -> None:
        """Compares the first minibatch's values with those that the rollout stored."""
        learned = self.learned_values
        if learned.shape != stored.shape:
            self.wrong_values = f"evaluate_actions returns values {learned.shape}, the rollout's are {stored.shape}"
            return
        distance = np.abs(learned - stored).max()
        if not distance <= TOLERANCE * max(1.0, np.abs(stored).max()):  # values can be large
            self.wrong_values = f"values that evaluate_actions returns are up to {distance:.3g} away from the rollout's"

    # ------------------------------------------------------------------------------------------------------ Findings
    def compare_policies(self) -> str:
        """Whether the policy that learns is the one that acted."""
        if not self.ratios:
            return "train doesn't call evaluate_actions and ppo_loss with a Batch, so nothing was compared"
        if max(self.ratios) > TOLERANCE:
            ratio = math.exp(max(self.ratios))
            return f"a ratio of the first minibatch is off 1 by a factor of {ratio:.3g}: acting and learning disagree"
        if not self.strays and hasattr(self.module.Agent, "get_action_and_value"):
            return "train doesn't act by Agent.get_action_and_value, so its log-probs weren't compared"
        if max(self.strays, default=0.0) > TOLERANCE:
            return f"log-probs that are learned from are {max(self.strays):.3g} away from those that acted"
        if self.is_changed:
            return "train changes observations before the agent sees them, and --evaluate doesn't"
        return ""

    def try_player(self, run_folder: Path) -> str:
        try:
            return self.compare_player(run_folder)
        except Exception as error:  # Player may not fit an edited Agent
            return describe(error)

    def compare_player(self, run_folder: Path) -> str:
        """Whether a player that loads the last checkpoint computes what the training agent computes."""
        agents = [x for x in self.variables.values() if isinstance(x, self.module.Agent)]
        if not agents:
            return "train has no Agent"
        agent = agents[0]
        if hasattr(agent, "eval"):
            agent.eval()  # as the player's: dropout and the like are off
        player = self.module.load(run_folder)
        for name, arguments in self.inputs.items():
            for own, loaded in zip(self.call(agent, name, arguments), self.call(player.agent, name, arguments)):
                distance = np.abs(own.astype(np.float64) - loaded).max()
                if not distance <= TOLERANCE:
                    return f"{name} of a loaded checkpoint is {distance:.3g} away from the training agent's"
        before = copy.deepcopy(player.state_dict())
        obs = player.reset([1])
        for _ in range(50):
            obs, _, _, _, _ = player.step(player.act(obs))
        after = copy.deepcopy(player.state_dict())
        player.close()
        difference = first_difference(before, after, "state")
        if difference and self.observes_by_state(run_folder, after):
            return f"a player goes on learning statistics while it plays: {difference}"
        return ""

    def observes_by_state(self, run_folder: Path, state: dict) -> bool:
        """Whether a player with this state observes something else: statistics of rewards don't matter to it."""
        first = []
        for is_loaded in (False, True):
            player = self.module.load(run_folder)
            if is_loaded:
                player.load_state_dict(state)
            first.append(player.reset([1]))
            player.close()
        return not np.array_equal(*first)

    def call(self, agent, name: str, arguments: list) -> list[np.ndarray]:
        """What a method of an agent returns, as arrays."""
        outputs = getattr(agent, name)(*[copied(x) for x in arguments])
        return [as_array(x) for x in (outputs if isinstance(outputs, tuple) else [outputs])]

    def find_environments(self) -> str:
        """Environments of train's own, which have other statistics than a player's."""
        kept = [id(thing) for thing in self.kept.values()]
        for name, value in self.variables.items():
            if isinstance(value, self.module.VectorEnv) and not isinstance(value, self.module.Player):
                if id(value) not in kept:
                    return f"{name} is a VectorEnv, whose statistics begin anew; evaluate with a Player"
        return ""

    def find_unkept(self) -> str:
        """Variables of train that have a state, and are not in checkpoints."""
        kept = set()
        for thing in self.kept.values():
            kept |= {id(thing), *(id(part) for part in getattr(thing, "modules", list)())}
            if getattr(thing, "module", None) is not None:
                kept.add(id(thing.module))  # what a compiled or distributed module wraps
        for name, value in self.variables.items():
            parts = list(value.values()) if isinstance(value, dict) else value
            parts = parts if isinstance(parts, list | tuple) else [value]
            for part in parts:
                if isinstance(part, self.module.Player) or not callable(getattr(part, "state_dict", None)):
                    continue
                holds_kept = any(id(x) in kept for x in getattr(part, "__dict__", {}).values())
                if id(part) not in kept and not holds_kept and part.state_dict():
                    return f"{name} has a state that run.keep doesn't name"
        return ""

    def has_normalized_rewards(self) -> bool:
        """Whether make_env uses NormalizeReward, whose sum of rewards goes on through resets and isn't saved."""
        for thing in self.kept.values():
            for env in getattr(getattr(thing, "vector", None), "envs", []):
                if isinstance(env, gym.Wrapper) and env.has_wrapper_attr("return_rms"):
                    return True
        return False

    def find_untrained(self) -> str:
        """Parameters with a gradient that no optimizer uses or changes, and optimized ones without a gradient."""
        everything = [*self.kept.values(), *self.variables.values()]
        optimized = {}
        for thing in everything:
            for group in getattr(thing, "param_groups", []):
                optimized |= {id(parameter): parameter for parameter in group.get("params", [])}
        for thing in everything:
            if not callable(getattr(thing, "named_parameters", None)):
                continue
            for name, parameter in thing.named_parameters():
                has_gradient = parameter.grad is not None or id(parameter) in self.with_gradient
                if id(parameter) not in optimized and has_gradient:
                    return f"{type(thing).__name__}'s {name} has a gradient, but no optimizer has it"
                if id(parameter) in optimized and not has_gradient and parameter.requires_grad:
                    return f"{type(thing).__name__}'s {name} is in an optimizer, but never has a gradient"
                if id(parameter) in self.with_numbers and id(parameter) in self.initial:
                    if np.array_equal(as_array(parameter), self.initial[id(parameter)]):
                        return f"{type(thing).__name__}'s {name} has gradients, but is never changed by them"
        return ""


def copied(x):
    """A copy of an array or tensor; the script may write into its own."""
    if isinstance(x, np.ndarray):
        return x.copy()
    return x.detach().clone() if hasattr(x, "detach") else x


def as_array(x) -> np.ndarray:
    if hasattr(x, "detach"):
        x = x.detach().cpu().float().numpy()
    return np.asarray(x)


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
def train_until_killed(script: Path, folder: Path, words: list[str]) -> None:
    try:
        in_process(train_and_die, script, folder, words)
    except BrokenProcessPool:  # killed, as it should be
        pass


def check_resume(script: Path, folder: Path, died: Path, whole: Path, own: set[str], is_exact: bool) -> str:
    """Whether a killed and resumed run ends, and with the bits of one that ran straight, if it can be exact."""
    try:
        resumed = in_process(resume, script, died)
        if not is_exact:
            return ""
        difference = in_process(compare_checkpoints, script, folder / "compared", whole, resumed)
        difference = difference or different_rows(read_metrics(whole), read_metrics(resumed), own)
    except RuntimeError as error:
        return str(error)
    if difference:
        return f"{difference} after a kill and --resume: something that changes isn't in run.keep"
    return ""


def check_async(script: Path, folder: Path, words: list[str], own: set[str]) -> str:
    """Whether environments in processes give the rows of metrics.csv that they give in turn."""
    rows = []
    for vectorization in ("sync", "async"):
        sizes = {"vectorization": vectorization, "total_timesteps": SIZES["total_timesteps"] // 2}
        try:
            rows.append(read_metrics(in_process(train, script, folder / vectorization, words, sizes)))
        except RuntimeError as error:
            return f"--vectorization {vectorization}: {error}"
    difference = different_rows(*rows, own)
    return f"with --vectorization async, {difference}" if difference else ""


def find_own(whole: Path, died: Path) -> set[str]:
    """Columns of metrics.csv that differ between equal runs, before any kill: times that an edit measures, say."""
    own = {"charts/SPS"}
    for run_folder in died.glob("runs/*"):
        for row, other in zip(read_metrics(whole)[:KILLED_IN], read_metrics(run_folder)):
            own |= {name for name, value in row.items() if value != other[name]}
    return own


def different_rows(rows: list[dict[str, str]], others: list[dict[str, str]], own: set[str]) -> str:
    """Where the rows of two metrics.csv differ, but for columns that each run has of its own, or ""."""
    for row, other in zip(rows, others):
        for name, value in row.items():
            if value != other[name] and name not in own:
                return f"{name} is {other[name]} instead of {value}"
    return ""


def read_metrics(run_folder: Path) -> list[dict[str, str]]:
    with open(run_folder / "metrics.csv", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def check_processes(script: Path, folder: Path, words: list[str]) -> str:
    """Whether two processes under torchrun train. They compare their parameters themselves."""
    folder.mkdir()
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    command += [*words, "--device", "cpu", "--backend", "gloo"]
    for name, value in SIZES.items():
        command += [f"--{name.replace('_', '-')}", str(value)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(command, cwd=folder, capture_output=True, encoding="utf-8", env=environment)
    if done.returncode == 0:
        return ""
    said = [line for line in done.stderr.splitlines() if "error" in line.lower()] or ["it says nothing"]
    return f"ends with status {done.returncode}: {said[0]}"


def list_checks(script: Path, folder: Path, words: list[str]):
    """Yields the name of each check and the problem that it found, or ""."""
    try:
        whole, found = in_process(train_straight, script, folder / "straight", words)
    except RuntimeError as error:
        yield "it trains, saves and loads", str(error)
        return
    yield "in the first minibatch of each update, every ratio is 1", found["policy"]
    yield "in the first minibatch of each update, every value is the rollout's", found["values"]
    if found["advantages"] is not None:
        yield "advantages end with their episode", found["advantages"]
    yield "a loaded checkpoint computes what the training agent does, and plays", found["player"]
    yield "train evaluates with players, if at all", found["environments"]
    yield "optimizers have all parameters with gradients, and change them", found["gradients"]
    died = folder / "died"
    train_until_killed(script, died, words)
    own = find_own(whole, died)
    problem = check_resume(script, folder, died, whole, own, is_exact=not found["inexact"])
    if problem and found["unkept"]:
        problem += f"; {found['unkept']}"
    if found["inexact"]:
        yield "killed and resumed, a run goes on; inexactly with NormalizeReward: take it out to compare bits", problem
    else:
        yield "killed and resumed with --exact-resume, a run has the same bits", problem
    text = script.read_text("utf-8")
    if "    vectorization:" in text:
        yield "environments in processes give the same rows", check_async(script, folder, words, own)
    if "torch.distributed" in text:
        yield "two processes under torchrun train", check_processes(script, folder / "processes", words)


def main() -> int:
    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=style, allow_abbrev=False)
    parser.add_argument("script", type=Path, help="the edited script")
    parser.add_argument("--env-id", help="environment to train on; the script's default if left out")
    parser.add_argument("--env-kwargs", help="its arguments as JSON")
    chosen, words = parser.parse_known_args()
    if not chosen.script.is_file():
        parser.error(f"{chosen.script}: there is no such file")
    if chosen.env_id:
        words += ["--env-id", chosen.env_id]
    if chosen.env_kwargs:
        try:
            json.loads(chosen.env_kwargs)
        except ValueError as error:
            parser.error(f"--env-kwargs {chosen.env_kwargs}: is no JSON ({error}); write it like '{{\"size\": 5}}'")
        words += ["--env-kwargs", chosen.env_kwargs]
    try:
        in_process(read_options, chosen.script.resolve(), words)  # it says itself which option is wrong
    except RuntimeError as error:
        parser.error(f"{chosen.script.name} {' '.join(words)}: {error}")
    problems = 0
    with tempfile.TemporaryDirectory() as folder:
        for name, problem in list_checks(chosen.script.resolve(), Path(folder), words):
            problems += bool(problem)
            print(f"FAIL  {name}: {problem}" if problem else f"ok    {name}", flush=True)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
