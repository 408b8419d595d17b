# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "brax==0.14.2",
#   "filelock",
#   "gymnasium[classic-control]==1.4.0",
#   "imageio[ffmpeg]>=2.38",
#   "jax==0.10.2",
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
without a counterpart stay at the library's defaults.
"""

import contextlib
import functools
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

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "cleanrl"))
LIBRARIES = ("ours", "parent", "sb3", "rsl_rl", "brax")
STEPS = 24  # of a rollout
WARM_UP = 2  # updates that aren't counted
ONE_THREAD = {  # variables of the processes that measure
    "OMP_NUM_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
}
LARGEST = {"parent": 1024, "sb3": 1024}  # more environments than these take them minutes an update


@dataclass
class Args:
    only: tuple[str, ...] = LIBRARIES  # libraries to measure
    num_envs: tuple[int, ...] = (64, 1024, 4096)  # environments that are stepped together
    rounds: int = 3  # measurements of each, whose median is shown
    seconds: float = 20.0  # about how long a measurement takes, without its start
    measure: str | None = None  # a library to measure in this process; for the program's own use


class Clock:
    """Takes the time at the start of each update."""

    def __init__(self, num_envs: int, seconds: float):
        self.num_envs = num_envs
        self.seconds = seconds
        self.marks = []

    def mark(self) -> bool:
        """Notes that an update begins. Returns whether it was the last one to measure."""
        self.marks.append((time.perf_counter(), time.process_time()))
        return len(self.marks) > WARM_UP + 3 and self.marks[-1][0] - self.marks[WARM_UP][0] > self.seconds

    def result(self) -> dict:
        """Steps per second of the clock and of the process's own time."""
        return rates(self.num_envs * STEPS * (len(self.marks) - 1 - WARM_UP), self.marks[WARM_UP], self.marks[-1])


def rates(steps: int, begin: tuple[float, float], end: tuple[float, float]) -> dict:
    return {"steps_per_second": steps / (end[0] - begin[0]), "per_cpu_second": steps / (end[1] - begin[1])}


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


def measure_ours(num_envs: int, clock: Clock) -> dict:
    import ppo_continuous_action_gpu as ppo

    ppo.train(ppo.Args(**sizes(num_envs), device="cpu", adaptive_kl=0.01), Run(clock))
    return clock.result()


def measure_parent(num_envs: int, clock: Clock) -> dict:
    import ppo_continuous_action as ppo

    ppo.train(ppo.Args(**sizes(num_envs), env_id="Pendulum-v1", bootstrap_truncated=True), Run(clock))
    return clock.result()


def measure_sb3(num_envs: int, clock: Clock) -> dict:
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
    return clock.result()


def measure_rsl_rl(num_envs: int, clock: Clock) -> dict:
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
    return clock.result()


def measure_brax(num_envs: int, clock: Clock) -> dict:
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

    def train_for(updates: int) -> dict:
        marks = []

        def note_step(step, *_):
            marks.append((step, (time.perf_counter(), time.process_time())))

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
        return rates(last_step - first_step, begin, end)

    seen = train_for(12)
    return train_for(max(12, int(3 * clock.seconds * seen["steps_per_second"] / (num_envs * STEPS))))


MEASURES = {
    "ours": measure_ours,
    "parent": measure_parent,
    "sb3": measure_sb3,
    "rsl_rl": measure_rsl_rl,
    "brax": measure_brax,
}


def measure(library: str, num_envs: int, seconds: float) -> dict:
    """Measures in this process."""
    import torch

    torch.set_num_threads(1)
    return MEASURES[library](num_envs, Clock(num_envs, seconds))


def measure_in_a_process(library: str, num_envs: int, seconds: float) -> dict | None:
    """The result, or None if the process failed; it has said why."""
    command = [sys.executable, __file__, "--measure", library, "--num-envs", str(num_envs), "--seconds", str(seconds)]
    done = subprocess.run(command, env=os.environ | ONE_THREAD, stdout=subprocess.PIPE, encoding="utf-8")
    return json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else None


def main(args: Args) -> int:
    unknown = set(args.only) - set(LIBRARIES)
    if unknown:
        print(f"simulator_speed.py: error: --only {' '.join(sorted(unknown))}: there are {', '.join(LIBRARIES)}")
        return 2
    if args.measure:
        print(json.dumps(measure(args.measure, args.num_envs[0], args.seconds)))
        return 0
    cells = [(n, library) for n in args.num_envs for library in args.only if n <= LARGEST.get(library, n)]
    results = {cell: [] for cell in cells}
    failed = False
    for number in range(args.rounds):
        for num_envs, library in cells:
            result = measure_in_a_process(library, num_envs, args.seconds)
            if result is None:
                failed = True
                continue
            results[num_envs, library].append(result)
            print(f"round {number + 1}: {library} {num_envs}: {result['per_cpu_second']:,.0f} steps/s", flush=True)
    print("\n| environments | library | steps per second of CPU time (range) | of the clock |\n|---|---|---|---|")
    for (num_envs, library), found in results.items():
        if found:
            speeds = [x["per_cpu_second"] for x in found]
            spread = f"{statistics.median(speeds):,.0f} ({min(speeds):,.0f}–{max(speeds):,.0f})"
            clock = statistics.median(x["steps_per_second"] for x in found)
            print(f"| {num_envs:,} | {library} | {spread} | {clock:,.0f} |")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Args, description=__doc__)))
