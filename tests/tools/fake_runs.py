"""Run folders as a script leaves them, without a training, and runs of fake_ppo.py: for the tests of the tools."""

import json
import textwrap
import time
from pathlib import Path
from typing import Any

import numpy as np
from runs import Run

SCRIPT = textwrap.dedent(
    '''\
    """A script of which the tools read only its Args."""
    from dataclasses import dataclass


    @dataclass
    class Args:
        exp_name: str = "ppo"
        seed: int = 1
        env_id: str = "CartPole-v1"
        total_timesteps: int = 1000
        num_envs: int = 4
        num_steps: int = 16
        learning_rate: float = 2.5e-4
        checkpoints: int | None = None
        num_threads: int = 1


    # ================ The run: nothing below is about PPO
    print_nothing = True
    '''
)
USUAL: dict[str, Any] = {
    "exp_name": "ppo", "seed": 1, "env_id": "Toy-v0", "total_timesteps": 1000, "num_envs": 4, "num_steps": 16,
    "learning_rate": 2.5e-4, "checkpoints": None, "num_threads": 1,
}  # fmt: skip


def make_run(folder: Path, returns, script=SCRIPT, end="whole", updates=15, number=1, pace=0.02, **arguments) -> Path:
    """A run folder below `folder` whose episodes have these returns; `end` is None if it hasn't ended. 15 updates of 64
    steps are all of it, and each step takes `pace` seconds; None for episodes without their seconds."""
    arguments = USUAL | arguments
    env_id = arguments["env_id"].replace("/", "_").replace(":", "_")
    run = folder / f"{env_id}__{arguments['exp_name']}__{arguments['seed']}__{number}"
    run.mkdir(parents=True)
    (run / "ppo.py").write_text(script)
    config = {
        "script": "ppo", "arguments": arguments, "command": f"python {folder}/ppo.py --seed 1",
        "versions": {"numpy": np.__version__}, "hardware": {"machine": "Linux", "cores": 2, "gpus": []},
    }  # fmt: skip
    (run / "config.json").write_text(json.dumps(config))
    steps = np.linspace(4, 960, len(returns)).astype(int) if len(returns) else []
    rows = []
    for step, value in zip(steps, map(float, returns)):
        seconds = "" if pace is None else f"{step * pace:.3f}"
        rows.append(f"{step},{value!r},{step % 50 + 1},{seconds}")
    (run / "episodes.csv").write_text("\n".join(["global_step,episodic_return,episodic_length,seconds", *rows, ""]))
    rows = [f"{64 * (i + 1)},0.0" for i in range(updates)]
    (run / "metrics.csv").write_text("\n".join(["global_step,charts/episodic_return", *rows, ""]))
    if end is not None:
        how = {"end": end, "update": updates, "global_step": 64 * updates}
        (run / "end.json").write_text(json.dumps(how))
    return run


def make_seeds(folder: Path, results, **arguments) -> None:
    """A run for each result, whose last 100 episodes have it as their mean; the episodes before don't count."""
    for seed, result in enumerate(results, 1):
        returns = [-1000.0] * 20 + [result - 1, result + 1] * 50
        make_run(folder, returns, seed=seed, **arguments)


def cells_of(text: str, column: int = 0) -> dict[str, dict[str, str]]:
    """The rows of Markdown tables by the cell in this column, each a dictionary by the header above it."""
    found = {}
    header = None
    for line in text.splitlines():
        if not line.startswith("|"):
            header = None
        elif not line.startswith("|--"):
            cells = line.strip("| ").split(" | ")
            if header is None:
                header = cells
            else:
                found[cells[column]] = dict(zip(header, cells))
    return found


def new_run(name, returns, seed=1, exp_name="ppo_numpy"):
    """A run of ppo_numpy.py on CartPole that never was, of one step an episode, for the tables of kept runs."""
    count = len(returns)
    arguments = {"total_timesteps": count, "num_envs": 1, "num_steps": 1}
    return Run(
        name, "ppo_numpy", exp_name, "CartPole-v1", seed, "1", "0.2", arguments, {},
        np.arange(1, count + 1), np.array(returns, float),
    )  # fmt: skip


def updates():
    """The updates that runs of fake_ppo.py have made, a line each."""
    return Path("updates").read_text().splitlines() if Path("updates").exists() else []


def wait_until(condition, seconds=120):
    """Returns when the condition holds, which must be within so many seconds."""
    end = time.monotonic() + seconds
    while not condition():
        outputs = [*Path().glob("*.log"), *Path().glob("*.out"), *Path().glob("runs/logs/*.log")]
        assert time.monotonic() < end, "".join(path.read_text() for path in outputs)[-5000:]
        time.sleep(0.01)
