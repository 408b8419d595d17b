"""What docs/memory.md shows: agents with and without a memory, and what an agent's memory knows.

    python docs/build/memory.py                  # the table and the curves, from the kept runs and recurrent_ppo/
    python docs/build/memory.py draw runs/RUN    # memory_state.svg, of one of CartPoleNoVelocity-v0

All files are in benchmark/results. The runs are those of benchmark/ppo_lstm.sh, ppo_continuous_action_lstm.sh and
popgym.sh, and of recurrent_ppo.py.
"""

import argparse
import csv
import math
import sys
from collections import defaultdict
from pathlib import Path

import blocks
import numpy as np
from command_line import UserError, one_line_errors
from gallery import newest
from kept import RESULTS, kept_runs
from pages import markdown, pictures, save_picture, spread
from report import COLORS, LAST, draw_curves, results
from runs import Run

VARIANTS = {  # by the end of --exp-name
    "_lstm": "a memory",
    "_no_memory": "no memory",
    "_stacked": "four observations",
    "_no_memory_same_options": "no memory *",
    "_stacked_same_options": "four observations *",
}
TASKS = [
    "CartPole-v1",
    "no_velocity:CartPoleNoVelocity-v0",
    "Acrobot-v1",
    "cue:Cue-v0",
    "LunarLander-v3",
    "no_velocity:PendulumNoVelocity-v0",
    "no_velocity:MountainCarContinuousNoVelocity-v0",
    "no_velocity:HalfCheetahNoVelocity-v0",
    "popgym:popgym-RepeatPreviousEasy-v0",
    "popgym:popgym-CountRecallEasy-v0",
    "popgym:popgym-PositionOnlyCartPoleEasy-v0",
]
SHOWN = 150  # steps of the last episode that are drawn


# -------------------------------------------------------------------------------------------- With a memory and without
def variants() -> dict[str, dict[str, list[Run]]]:
    """The kept runs of the tasks, of each seed the newest, by task and variant. Those with other names are left out."""
    found = defaultdict(lambda: defaultdict(list))
    for run in kept_runs("results"):
        if run.env_id in TASKS:
            for ending, variant in VARIANTS.items():
                if run.exp_name.endswith(ending):
                    found[run.env_id][variant].append(run)
    ordered = {}
    for task in TASKS:
        if task in found:
            of_task = {name: found[task][name] for name in VARIANTS.values() if name in found[task]}
            ordered[task] = {name: newest(of_latest_release(runs)) for name, runs in of_task.items()}
    return ordered


def of_latest_release(runs: list[Run]) -> list[Run]:
    latest = max(run.release for run in runs)
    return [run for run in runs if run.release == latest]


def recurrent_ppo(task: str) -> list[float]:
    """What each seed of RecurrentPPO reached in a task: the mean return of its last 100 episodes."""
    found = []
    for path in sorted((RESULTS / "recurrent_ppo").glob(f"{task.rpartition(':')[2]}_*.csv")):
        with path.open(encoding="utf-8") as file:
            returns = [float(row["episodic_return"]) for row in csv.DictReader(file)]
        found.append(float(np.mean(returns[-100:])))
    return found


def readable(task: str) -> str:
    """A task's name in the table and in the picture."""
    name = task.rpartition(":")[2].removeprefix("popgym-").rpartition("-v")[0]
    return name.replace("NoVelocity", " without velocities")


def table() -> str:
    """Markdown: what each agent reached in each task."""
    rows = []
    for task, of_task in variants().items():
        runs = [run for of_variant in of_task.values() for run in of_variant]
        seeds = {len(of_variant) for of_variant in of_task.values()}
        if len(seeds) > 1 or len({run.release for run in runs}) > 1:
            raise UserError(f"{task}: its agents have {sorted(seeds)} seeds, or are of several releases")
        cells = [spread(results(of_task[name])) if name in of_task else "" for name in VARIANTS.values()]
        rows.append([readable(task), f"{runs[0].total:,}", str(*seeds), *cells])
    text = markdown(["task", "steps", "seeds", *VARIANTS.values()], rows)
    for task in TASKS:
        theirs = recurrent_ppo(task)
        if theirs:
            text += f"\nsb3-contrib's RecurrentPPO with its defaults, {len(theirs)} seeds of {readable(task)}: "
            text += f"{spread(theirs)} after as many steps.\n"
    earlier = defaultdict(list)
    for run in kept_runs("results"):
        if run.env_id in TASKS and run.exp_name.endswith("_lstm") and run.release == "0.4":
            earlier[run.env_id].append(run)
    reached = [f"{readable(task)} {spread(results(earlier[task]))}" for task in TASKS if task in earlier]
    text += f"\nRelease 0.4's memory, whose LSTM served policy and value: {', '.join(reached)}.\n"
    return text


def draw_agents(path: Path) -> None:
    """A panel for each task, in which each agent has a curve."""
    plt = pictures()
    columns = 3
    rows = math.ceil(len(TASKS) / columns)
    figure, axes = plt.subplots(rows, columns, figsize=(9.0, 2.3 * rows))
    for panel, (task, of_task) in zip(axes.flat, variants().items()):
        for color, name in zip(COLORS, VARIANTS.values()):
            if name in of_task:
                draw_curves(panel, of_task[name], color, name)
        panel.set_title(readable(task), fontsize=9)
        panel.tick_params(labelsize=8)
        panel.set_xlabel("")
    for panel in axes.flat[len(TASKS) :]:
        panel.set_axis_off()
    lines = [plt.Line2D([], [], color=color, label=name) for color, name in zip(COLORS, VARIANTS.values())]
    axes.flat[-1].legend(handles=lines, fontsize=10, loc="center")
    figure.supylabel(f"return, last {LAST} episodes", fontsize=10)
    figure.supxlabel("environment steps", fontsize=10)
    save_picture(figure, path)


def rebuild() -> None:
    """Writes the table and the curves."""
    blocks.fill(blocks.ROOT / "docs" / "memory.md", "memory", table())
    draw_agents(RESULTS / "memory.svg")


# -------------------------------------------------------------------------------------------------- What a memory knows
def play(player, seed: int) -> dict[str, np.ndarray]:
    """An episode: the observations (T, 2), the LSTM's states (T, 2 * H) after them, and the simulator's velocities
    (T, 2) of cart and pole at the same moments."""
    seen, states, velocities = [], [], []
    obs = player.reset([seed])
    simulator = player.vector.envs[0].unwrapped
    episodes = []
    while not episodes:
        _, cart_velocity, _, pole_velocity = simulator.state
        actions = player.act(obs)
        seen.append(obs[0])
        states.append(player.lstm_state.flatten().numpy())
        velocities.append([cart_velocity, pole_velocity])
        obs, _, _, _, episodes = player.step(actions)
    return {"seen": np.array(seen), "states": np.array(states), "velocities": np.array(velocities)}


def with_constant(inputs: np.ndarray) -> np.ndarray:
    return np.hstack([inputs, np.ones((len(inputs), 1))])


def reading(episodes: list[dict], name: str, i: int) -> np.ndarray:
    """The velocities of episode i as a linear map reads them that was fitted to the others."""
    others = episodes[:i] + episodes[i + 1 :]
    inputs = np.concatenate([episode[name] for episode in others])
    velocities = np.concatenate([episode["velocities"] for episode in others])
    weights, *_ = np.linalg.lstsq(with_constant(inputs), velocities, rcond=None)
    return with_constant(episodes[i][name]) @ weights


def explained(predicted: np.ndarray, true: np.ndarray) -> np.ndarray:
    """The part of each column's variance that is explained, R²."""
    return 1 - ((predicted - true) ** 2).sum(0) / ((true - true.mean(0)) ** 2).sum(0)


def mean_explained(episodes: list[dict], name: str) -> np.ndarray:
    """R² of each velocity, the mean over the episodes."""
    found = []
    for i, episode in enumerate(episodes):
        found.append(explained(reading(episodes, name, i), episode["velocities"]))
    return np.mean(found, axis=0)


def draw(run: Path) -> None:
    sys.path[:0] = [str(blocks.ROOT / "cleanrl"), str(blocks.ROOT / "benchmark")]
    import ppo_lstm
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(1)  # of the actions' noise
    player = ppo_lstm.load(run)
    episodes = [play(player, seed) for seed in range(1, 12)]
    player.close()
    in_memory = mean_explained(episodes, "states")
    in_observation = mean_explained(episodes, "seen")
    print(f"R² of the cart's and the pole's velocity: read from the memory {in_memory[0]:.2f} and {in_memory[1]:.2f},")
    print(f"from the observation alone {in_observation[0]:.2f} and {in_observation[1]:.2f}")
    last = episodes[-1]
    from_memory = reading(episodes, "states", len(episodes) - 1)
    from_observation = reading(episodes, "seen", len(episodes) - 1)

    plt = pictures()
    figure, (above, below) = plt.subplots(2, 1, sharex=True, figsize=(7, 4.6))
    above.plot(last["seen"][:SHOWN, 1], color="tab:blue")
    above.set_title("what it sees: the pole's angle, rad", fontsize=10)
    below.plot(last["velocities"][:SHOWN, 1], color="tab:gray", linewidth=3, alpha=0.6, label="the simulator's")
    below.plot(from_memory[:SHOWN, 1], color="tab:orange", linewidth=1.2, label="read from the memory")
    below.plot(from_observation[:SHOWN, 1], color="tab:blue", linewidth=1.0, label="read from the observation")
    below.set_title("what it doesn't see: the pole's angular velocity, rad/s", fontsize=10)
    below.set_xlabel("step of an episode")
    below.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.3), frameon=False, ncols=3)
    save_picture(figure, RESULTS / "memory_state.svg")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", nargs="?", choices=["draw"])
    parser.add_argument("path", nargs="?", type=Path, help="run folder")
    options = parser.parse_args()
    if options.command and options.path is None:
        parser.error("draw: name a run folder")
    with one_line_errors():
        if options.command == "draw":
            draw(options.path)
        else:
            rebuild()
