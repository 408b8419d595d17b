# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "brax==0.14.2",
#   "filelock",
#   "gymnasium[classic-control]==1.4.0",
#   "imageio[ffmpeg]>=2.38",
#   "jax==0.10.2",
#   "rich",
#   "rsl-rl-lib==5.5.1",
#   "stable-baselines3==2.9.2",
#   "tensorboard>=2.21",
#   "torch==2.13.0",
#   "tyro>=1.0.17",
# ]
# ///
"""Steps per second of PPO on Pendulum, on one core of the CPU, of this repository's scripts and other libraries'.

    uv run benchmark/simulator_speed.py                                # everything; half an hour on an idle machine
    uv run benchmark/simulator_speed.py --only ours brax --num-envs 1024 --rounds 1

Rollouts of 24 steps, 5 epochs of 4 minibatches, networks of 2 x 64 tanh. Each measurement is a process of its own, and
the libraries take turns. The first two updates, which compile and warm up, aren't counted. None writes logs; settings
without a counterpart stay at the library's defaults. It needs Linux, which keeps a process on one core.
"""

import contextlib
import functools
import importlib.metadata
import io
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import tyro
from command_line import UserError, one_line_errors, print_table
from files import write_atomically
from runs import release

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "cleanrl"))
LIBRARIES = {  # what the table calls them, and the package whose version it says
    "ours": ("`ppo_continuous_action_gpu.py`", None),
    "parent": ("`ppo_continuous_action.py`", None),
    "sb3": ("stable-baselines3", "stable-baselines3"),
    "rsl_rl": ("rsl_rl's runner", "rsl-rl-lib"),
    "brax": ("brax's PPO", "brax"),
}
STEPS = 24  # of a rollout
WARM_UP = 2  # updates that aren't counted
LARGEST = {"parent": 1024, "sb3": 1024}  # more environments than these take them minutes an update


@dataclass
class Args:
    only: tuple[str, ...] = tuple(LIBRARIES)  # libraries to measure; the first is the one that others are compared with
    num_envs: tuple[int, ...] = (64, 1024, 4096)  # environments that are stepped together
    rounds: int = 3  # rounds, each with one measurement of everything
    seconds: float = 20.0  # about how long a measurement takes, without its start
    output: Path | None = None  # JSON file to write
    measure: str | None = None  # a library to measure in this process; for the program's own use


class Clock:
    """Takes the time at the start of each update."""

    def __init__(self, num_envs: int, seconds: float):
        self.num_envs = num_envs
        self.seconds = seconds
        self.marks = []

    def mark(self) -> bool:
        """Notes that an update begins. Returns whether it was the last one to measure."""
        self.marks.append(time.perf_counter())
        return len(self.marks) > WARM_UP + 3 and self.marks[-1] - self.marks[WARM_UP] > self.seconds

    def speed(self) -> float:
        """Steps per second."""
        updates = len(self.marks) - 1 - WARM_UP
        return self.num_envs * STEPS * updates / (self.marks[-1] - self.marks[WARM_UP])


class Enough(Exception):
    """Ends a training that has been measured."""


class Run:
    """What train of this repository's scripts uses of a run."""

    def __init__(self, clock: Clock):
        self.clock = clock

    def keep(self, **objects) -> None: ...

    def updates(self):
        update = 0
        while not self.clock.mark():
            update += 1
            yield update, update == 1

    def note(self, *step) -> None: ...

    def log(self, metrics: dict) -> None: ...


def sizes(num_envs: int) -> dict:
    """The options that this repository's two scripts share."""
    steps = num_envs * STEPS * 10_000
    shared = {"num_minibatches": 4, "update_epochs": 5, "learning_rate": 1e-3, "num_threads": 1}
    return {"num_envs": num_envs, "num_steps": STEPS, "total_timesteps": steps} | shared


def measure_ours(num_envs: int, clock: Clock) -> float:
    import ppo_continuous_action_gpu as ppo

    ppo.train(ppo.Args(**sizes(num_envs), device="cpu", adaptive_kl=0.01), Run(clock))
    return clock.speed()


def measure_parent(num_envs: int, clock: Clock) -> float:
    import ppo_continuous_action as ppo

    ppo.train(ppo.Args(**sizes(num_envs), env_id="Pendulum-v1", bootstrap_truncated=True), Run(clock))
    return clock.speed()


def measure_sb3(num_envs: int, clock: Clock) -> float:
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecNormalize

    class Mark(BaseCallback):
        def _on_rollout_start(self) -> None:
            if clock.mark():
                raise Enough

        def _on_step(self) -> bool:
            return True

    envs = VecNormalize(make_vec_env("Pendulum-v1", num_envs))
    options = {"n_steps": STEPS, "batch_size": num_envs * STEPS // 4, "n_epochs": 5, "learning_rate": 1e-3}
    with contextlib.suppress(Enough):
        PPO("MlpPolicy", envs, **options, device="cpu").learn(num_envs * STEPS * 10_000, callback=Mark())
    return clock.speed()


def measure_rsl_rl(num_envs: int, clock: Clock) -> float:
    """Its runner, on the pendulum of ppo_continuous_action_gpu.py."""
    import ppo_continuous_action_gpu as ppo
    from rsl_rl.env import VecEnv
    from rsl_rl.runners import OnPolicyRunner
    from tensordict import TensorDict

    class Pendulum(VecEnv):
        num_actions = 1
        max_episode_length = 200
        device = "cpu"
        cfg: dict = {}  # noqa: RUF012 (its runner reads it)

        def __init__(self):
            self.num_envs = num_envs
            self.simulator = ppo.Pendulum(num_envs, "cpu")
            self.obs = self.simulator.reset(0)
            self.steps = 0

        @property
        def episode_length_buf(self):
            return self.simulator.ages

        @episode_length_buf.setter
        def episode_length_buf(self, ages):
            self.simulator.ages = ages

        def get_observations(self):
            return TensorDict({"policy": self.obs}, batch_size=[num_envs])

        def step(self, actions):
            if self.steps % STEPS == 0 and clock.mark():
                raise Enough
            self.steps += 1
            self.obs, rewards, terminated, truncated, _ = self.simulator.step(actions)
            dones = (terminated | truncated).long()
            return self.get_observations(), rewards, dones, {"time_outs": truncated}

    network = {"class_name": "MLPModel", "hidden_dims": [64, 64], "activation": "tanh", "obs_normalization": True}
    normal = {"class_name": "GaussianDistribution", "init_std": 1.0, "std_type": "log"}
    algorithm = {"class_name": "PPO", "num_learning_epochs": 5, "num_mini_batches": 4, "schedule": "adaptive"}
    algorithm |= {"desired_kl": 0.01, "learning_rate": 1e-3, "rnd_cfg": None, "symmetry_cfg": None}
    config = {
        "num_steps_per_env": STEPS,
        "save_interval": 10**9,
        "obs_groups": {"actor": ["policy"], "critic": ["policy"]},
        "logger": "tensorboard",
        "actor": network | {"distribution_cfg": normal},
        "critic": network,
        "algorithm": algorithm,
    }
    runner = OnPolicyRunner(Pendulum(), config, log_dir=None, device="cpu")
    with contextlib.suppress(Enough), contextlib.redirect_stdout(io.StringIO()):
        runner.learn(10_000)
    return clock.speed()


def measure_brax(num_envs: int, clock: Clock) -> float:
    """Its PPO says only now and then how far it is, so it gets as many steps as were measured before in `seconds`."""
    import jax
    import jax.numpy as jnp
    from brax.envs.base import Env, State
    from brax.training.agents.ppo import networks, train

    def put_replicated(tree, devices):  # brax calls it, and jax has it no more
        return jax.tree.map(lambda x: jnp.broadcast_to(jnp.asarray(x)[None], (len(devices), *jnp.shape(x))), tree)

    jax.device_put_replicated = put_replicated

    class Pendulum(Env):
        observation_size = 3
        action_size = 1
        backend = "none"

        def observe(self, state):
            return jnp.stack([jnp.cos(state[0]), jnp.sin(state[0]), state[1]])

        def reset(self, rng):
            state = jax.random.uniform(rng, (2,), minval=-1, maxval=1) * jnp.array([jnp.pi, 1.0])
            return State(state, self.observe(state), jnp.zeros(()), jnp.zeros(()), {}, {})

        def step(self, state, action):
            angle, velocity = state.pipeline_state
            torque = 2.0 * jnp.clip(action[0], -1.0, 1.0)
            from_upright = jnp.mod(angle + jnp.pi, 2 * jnp.pi) - jnp.pi
            reward = -(from_upright**2 + 0.1 * velocity**2 + 0.001 * torque**2)
            velocity = jnp.clip(velocity + (15.0 * jnp.sin(angle) + 3.0 * torque) * 0.05, -8.0, 8.0)
            after = jnp.stack([angle + velocity * 0.05, velocity])
            return state.replace(pipeline_state=after, obs=self.observe(after), reward=reward, done=jnp.zeros(()))

    def train_for(updates: int) -> float:
        marks = []

        def note_step(step, *_):
            marks.append((step, time.perf_counter()))

        train.train(
            Pendulum(),
            num_timesteps=num_envs * STEPS * updates,
            episode_length=200,
            num_envs=num_envs,
            unroll_length=STEPS,
            batch_size=num_envs // 4,
            num_minibatches=4,
            num_updates_per_batch=5,
            learning_rate=1e-3,
            normalize_observations=True,
            num_evals=4,  # it compiles before the second one and before the third, from which on it is measured
            run_evals=False,
            clipping_epsilon=0.2,
            network_factory=functools.partial(
                networks.make_ppo_networks,
                policy_hidden_layer_sizes=(64, 64),
                value_hidden_layer_sizes=(64, 64),
                activation=jnp.tanh,
            ),
            log_training_metrics=False,
            policy_params_fn=note_step,
        )
        first_step, begin = marks[-2]
        last_step, end = marks[-1]
        return (last_step - first_step) / (end - begin)

    seen = train_for(12)
    return train_for(max(12, int(3 * clock.seconds * seen / (num_envs * STEPS))))


MEASURES = {
    "ours": measure_ours,
    "parent": measure_parent,
    "sb3": measure_sb3,
    "rsl_rl": measure_rsl_rl,
    "brax": measure_brax,
}


def measure(library: str, num_envs: int, seconds: float) -> float:
    """Measures in this process, which is then kept on one core. That comes before imports, which count the cores."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    import torch

    torch.set_num_threads(1)
    return MEASURES[library](num_envs, Clock(num_envs, seconds))


def measure_in_a_process(library: str, num_envs: int, seconds: float) -> float | None:
    """The speed, or None if the process failed; it has said why."""
    command = [sys.executable, __file__, "--measure", library, "--num-envs", str(num_envs), "--seconds", str(seconds)]
    done = subprocess.run(command, stdout=subprocess.PIPE, encoding="utf-8")
    return json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else None


def table(measured: dict) -> list[list[str]]:
    """A header and a row for each library: its speed as a multiple of the first one's, by number of environments, the
    median of the rounds' and their range; – where it wasn't measured."""
    all_speeds = measured["speeds"]
    first = next(iter(all_speeds))
    rows = [["environments", *(f"{int(num_envs):,}" for num_envs in all_speeds[first])]]
    for library, by_envs in all_speeds.items():
        name, _ = LIBRARIES[library]
        version = measured["versions"].get(library)
        cells = [f"{name}, {version}" if version else name]
        for num_envs, base in all_speeds[first].items():
            pairs = zip(by_envs.get(num_envs, []), base)
            ratios = [speed / of_first for speed, of_first in pairs if speed and of_first]
            if library == first:
                cells.append("1")
            elif ratios:
                cells.append(f"{statistics.median(ratios):.1f}× ({min(ratios):.1f}–{max(ratios):.1f})")
            else:
                cells.append("–")
        rows.append(cells)
    return rows


def main(args: Args) -> int:
    """Measures, and prints a table. Returns 1 if a measurement failed."""
    unknown = set(args.only) - set(LIBRARIES)
    if unknown or args.rounds < 1:
        raise UserError(f"--only takes {', '.join(LIBRARIES)}, and --rounds 1 or more")
    if args.measure:
        print(json.dumps(measure(args.measure, args.num_envs[0], args.seconds)))
        return 0
    packages = {library: LIBRARIES[library][1] for library in args.only}
    versions = {library: importlib.metadata.version(package) for library, package in packages.items() if package}
    cells = [(n, library) for n in args.num_envs for library in args.only if n <= LARGEST.get(library, n)]
    speeds: dict = {library: {} for library in args.only}
    failed = False
    for number in range(args.rounds):
        for num_envs, library in cells:
            speed = measure_in_a_process(library, num_envs, args.seconds)
            speeds[library].setdefault(str(num_envs), []).append(speed)
            failed = failed or speed is None
            shown = "failed" if speed is None else f"{speed:,.0f} steps/s"
            print(f"round {number + 1}: {library} {num_envs}: {shown}", flush=True)
    measured = {"release": release(), "versions": versions, "speeds": speeds}
    print_table(table(measured))
    if args.output:
        write_atomically(args.output, json.dumps(measured, indent=2) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    with one_line_errors():
        sys.exit(main(tyro.cli(Args, description=__doc__)))
