"""What docs/how-an-episode-ends.md shows of time limits: does it matter which value follows one?

    python docs/build/time_limits.py ring                          # the values on a ring of states, in closed form
    python docs/build/time_limits.py train Corridor 1 2 3          # four trainings a seed, into time_limits.csv
    python docs/build/time_limits.py train Pendulum 1 2 3 4 5 6    # 450,000 steps each; half a minute each
    python docs/build/time_limits.py                               # the tables of the page, and the picture

Agents of ppo_continuous_action_gpu.py learn with a short time limit and are then evaluated with a long one. The file is
in benchmark/results.
"""

import argparse
import csv
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import blocks
import numpy as np
from files import write_atomically
from kept import RESULTS
from pages import markdown, pictures, save_picture

sys.path.insert(0, str(blocks.ROOT / "cleanrl"))
import ppo_continuous_action_gpu as ppo
import torch

MODES = {
    "none": "nothing, as at an end",
    "before": "$\\gamma$ times the value of the observation before",
    "drop": "the step is left out",
    "final": "$\\gamma$ times the value of the last observation",
}
WHO = {"none": "baselines, CleanRL", "before": "rsl_rl", "drop": "brax", "final": "stable-baselines3"}
TASKS = {  # time limits of the training and of the evaluation, and steps
    "Corridor": {"limit": 20, "long_limit": 400, "steps": 600_000},
    "Pendulum": {"limit": 25, "long_limit": 200, "steps": 450_000},
}
TABLE = RESULTS / "time_limits.csv"
HEADER = ["task", "time_limits", "seed", "mean_return", "predicted_value", "true_value"]
STATES = 10  # of the ring
GAMMA = 0.99


# ------------------------------------------------------------------------------------------------------------- The ring
def fixed_point(mode: str, limit: int, gae_lambda: float) -> np.ndarray:
    """The values (K,) with which GAE's advantages are 0 on average, on a ring of K states. Each step leads to the next
    state, and leaving state 0 pays 1. Episodes begin anywhere and are cut after `limit` steps."""
    step = np.roll(np.eye(STATES), 1, axis=1)
    pays = np.zeros(STATES)
    pays[0] = 1.0
    value_after = {"none": 0 * step, "before": np.eye(STATES), "drop": step, "final": step}[mode]  # a time limit
    matrix = np.zeros((STATES, STATES))
    vector = np.zeros(STATES)
    for left in range(1, limit + 1):  # steps until the limit
        for later in range(left):
            is_last = later == left - 1
            if is_last and mode == "drop":
                continue
            weight = (GAMMA * gae_lambda) ** later * np.linalg.matrix_power(step, later)
            following = value_after if is_last else step
            matrix += weight @ (GAMMA * following - np.eye(STATES))
            vector += weight @ pays
    return np.linalg.solve(matrix, -vector)


def mean_advantages(mode: str, limit: int, gae_lambda: float, values: np.ndarray) -> np.ndarray:
    """The mean advantage (K,) in each state that the script's own functions return for these values: 0 at the fixed
    point, where learning ends."""
    args = ppo.Args(time_limits=mode, gamma=GAMMA)
    states = (torch.arange(STATES) + torch.arange(limit + 1)[:, None]) % STATES  # (T + 1, N)
    rewards = (states[:-1] == 0).double()
    truncated = torch.zeros(limit, STATES, dtype=torch.bool)
    truncated[-1] = True
    dones = torch.zeros(limit, STATES).double()
    dones[0] = 1.0
    zeros = torch.zeros(STATES).double()
    of_states = torch.from_numpy(values)[states]
    crossed = ppo.cross_time_limits(rewards, of_states[:-1], of_states[1:], truncated, args)
    advantages, _ = ppo.compute_gae(crossed, of_states[:-1], dones, zeros, zeros + 1, GAMMA, gae_lambda)
    return zeros.index_add(0, states[:-1].flatten(), advantages.flatten() / limit).numpy()


def ring_table() -> str:
    """Markdown: mean and error of the values, by mode and limit."""
    header = ["what follows a time limit", "as in", "[`--time-limits`](ppo_continuous_action_gpu.md)"]
    header += [f"limit {limit}: mean value, largest error" for limit in (5, 50)]
    true = fixed_point("final", 5, 0.0)
    rows = []
    for mode, what in MODES.items():
        row = [what, WHO[mode], f"`{mode}`"]
        for limit in (5, 50):
            values = fixed_point(mode, limit, 0.0)
            row.append(f"{values.mean():.2f}, {np.abs(values - true).max():.2f}")
        rows.append(row)
    return markdown(header, rows)


def draw_ring(path: Path) -> None:
    """The values of the ring's states by mode, for limits of 5 and 50 steps."""
    plt = pictures()
    figure, axes = plt.subplots(1, 2, figsize=(8.4, 3.0), sharey=True)
    labels = {"none": "none", "before": "before", "final": "final and drop: the true values"}
    for ax, limit in zip(axes, (5, 50)):
        for mode, label in labels.items():
            style = "--" if mode == "before" else "-"
            ax.plot(range(STATES), fixed_point(mode, limit, 0.0), style, label=label)
        ax.set_title(f"cut after {limit} steps", fontsize=10)
        ax.set_xlabel("state")
        ax.set_ylim(0, 12)
    axes[0].set_ylabel("value")
    axes[0].legend(fontsize=9, loc="center", bbox_to_anchor=(0.5, 0.5))  # between its curves
    save_picture(figure, path)


# -------------------------------------------------------------------------------------------------------- The trainings
class Corridor:
    """A place from 0 to 1. A step moves by up to 0.01 and costs 0.3 times the square of the action; from 0.9 on, each
    step pays 1."""

    obs_dim = 1
    action_dim = 1

    def __init__(self, num_envs: int, device: str, max_episode_steps: int):
        self.num_envs = num_envs
        self.device = device
        self.max_episode_steps = max_episode_steps

    def observe(self) -> torch.Tensor:
        return 2.0 * self.place[:, None] - 1.0

    def reset(self, seed: int) -> torch.Tensor:
        self.place = torch.rand(self.num_envs, device=self.device)
        self.ages = torch.zeros(self.num_envs, device=self.device, dtype=torch.int64)
        return self.observe()

    def step(self, actions: torch.Tensor):
        moves = actions[:, 0].clamp(-1.0, 1.0)
        self.place = (self.place + 0.01 * moves).clamp(0.0, 1.0)
        rewards = (self.place > 0.9).float() - 0.3 * moves.square()
        self.ages = self.ages + 1
        final_obs = self.observe()
        truncated = self.ages >= self.max_episode_steps
        self.place = torch.where(truncated, torch.rand_like(self.place), self.place)
        self.ages = torch.where(truncated, 0, self.ages)
        return self.observe(), rewards, torch.zeros_like(truncated), truncated, final_obs


class Unlogged:
    """What train uses of a run: it keeps what was learned, and writes nothing."""

    def __init__(self, args: ppo.Args):
        self.args = args

    def keep(self, **objects) -> None:
        self.kept = SimpleNamespace(**objects)

    def updates(self):
        for update in range(1, self.args.num_updates + 1):
            yield update, update == 1

    def note(self, *rollout) -> None: ...

    def log(self, metrics: dict) -> None: ...


def env_id(task: str) -> str:
    return task if task == "Pendulum" else f"time_limits:{task}"


def play(agent, args: ppo.Args, limit: int, steps: int) -> tuple[torch.Tensor, torch.Tensor]:
    """First observations (256, D) and rewards (T, 256) of 256 episodes."""
    options = json.dumps({"max_episode_steps": limit})
    args = ppo.Args(env_id=args.env_id, env_kwargs=options, stagger=False, device="cpu")
    envs = ppo.VectorEnv(args, 256)
    torch.manual_seed(10_000)
    first_obs = envs.reset(0)
    obs = first_obs
    rewards = torch.zeros(steps, 256)
    with torch.no_grad():
        for t in range(steps):
            actions, _, _ = agent.get_action_and_value(obs, agent.draw_noise(256))
            obs, rewards[t], _, _, _, _ = envs.step(actions)
    return first_obs, rewards


def train(task: str, mode: str, seed: int) -> list[float]:
    """Mean return of 256 episodes with the long limit, and the mean value of their first states: as predicted, and the
    discounted return of the same policy without a limit."""
    sizes = TASKS[task]
    args = ppo.Args(
        env_id=env_id(task),
        env_kwargs=json.dumps({"max_episode_steps": sizes["limit"]}),
        total_timesteps=sizes["steps"],
        num_envs=256,
        seed=seed,
        adaptive_kl=0.01,
        time_limits=mode,
        device="cpu",
    )
    run = Unlogged(args)
    ppo.train(args, run)
    agent = run.kept.model
    _, rewards = play(agent, args, sizes["long_limit"], sizes["long_limit"])
    mean_return = rewards.sum(0).mean().item()
    first_obs, rewards = play(agent, args, 10**6, 700)
    scale = (run.kept.envs.return_statistics.var + 1e-8).sqrt().item()
    with torch.no_grad():
        predicted = agent.get_value(first_obs).mean().item() * scale
    discounts = args.gamma ** torch.arange(700)
    return [mean_return, predicted, (discounts @ rewards).mean().item()]


def kept_rows() -> list[dict]:
    """The rows of time_limits.csv."""
    if not TABLE.is_file():
        return []
    with TABLE.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def train_all(task: str, seeds: list[int]) -> None:
    """Adds what is missing of these seeds to time_limits.csv."""
    torch.set_num_threads(1)
    for seed in seeds:
        for mode in MODES:
            rows = kept_rows()
            if any((row["task"], row["time_limits"], row["seed"]) == (task, mode, str(seed)) for row in rows):
                continue
            numbers = [f"{number:.2f}" for number in train(task, mode, seed)]
            rows.append(dict(zip(HEADER, [task, mode, str(seed), *numbers])))
            print(*rows[-1].values(), flush=True)
            rows.sort(key=lambda row: (row["task"], list(MODES).index(row["time_limits"]), int(row["seed"])))
            lines = [",".join(HEADER)] + [",".join(row.values()) for row in rows]
            write_atomically(TABLE, "\n".join(lines) + "\n")


# ------------------------------------------------------------------------------------------------------------- The page
ABOUT = {
    "Corridor": "In *Corridor*, each step beyond 0.9 pays 1 and each move costs a little, so only an agent that looks "
    "over 20 steps ahead moves there.",
    "Pendulum": "In *Pendulum*, the built-in one, it takes longer than 25 steps to swing up.",
}
PICTURE = "![Mean returns by what follows a time limit](../benchmark/results/time_limits.svg)"


def returns_of(task: str, mode: str) -> list[float]:
    rows = [row for row in kept_rows() if row["task"] == task and row["time_limits"] == mode]
    return [float(row["mean_return"]) for row in rows]


def trained() -> list[str]:
    """The tasks of which there are trainings."""
    return [task for task in TASKS if returns_of(task, "final")]


def trained_part() -> str:
    """Markdown: the returns of each seed, by task and mode, and the picture; without trainings, that there are none."""
    tasks = trained()
    if not tasks:
        return "There are no trainings with this release yet.\n"
    header = ["what follows a time limit"]
    for task in tasks:
        sizes = TASKS[task]
        header.append(f"{task}: limit {sizes['limit']}, played for {sizes['long_limit']}")
    rows = []
    for mode, what in MODES.items():
        cells = [", ".join(f"{x:.0f}".replace("-", "−") for x in returns_of(task, mode)) for task in tasks]
        rows.append([f"{what} (`{mode}`)", *cells])
    about = [ABOUT[task] for task in tasks]
    about.append("Each number is the mean return of 256 episodes of one seed:")
    return "\n".join(about) + f"\n\n{markdown(header, rows)}\n{PICTURE}\n"


def draw(path: Path) -> None:
    """A point for each seed, by task and mode."""
    tasks = trained()
    plt = pictures()
    figure, axes = plt.subplots(1, len(tasks), figsize=(4.2 * len(tasks), 3.2), squeeze=False)
    for ax, task in zip(axes[0], tasks):
        for place, mode in enumerate(MODES):
            returns = returns_of(task, mode)
            ax.scatter([place] * len(returns), returns, s=30, alpha=0.6, linewidths=0)
        ax.set_xticks(range(len(MODES)), list(MODES))
        ax.set_title(f"{task}: limit {TASKS[task]['limit']}, played for {TASKS[task]['long_limit']}", fontsize=10)
        ax.set_xlabel("--time-limits")
        ax.set_ylabel("mean return")
    save_picture(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", nargs="?", choices=["ring", "train"])
    parser.add_argument("task", nargs="?", choices=TASKS)
    parser.add_argument("seeds", nargs="*", type=int)
    chosen = parser.parse_args()
    if chosen.action == "train" and not chosen.seeds:
        parser.error("train: name a task and seeds")
    if chosen.action == "ring":
        print(ring_table())
    elif chosen.action == "train":
        train_all(chosen.task, chosen.seeds)
    else:
        page = blocks.ROOT / "docs" / "how-an-episode-ends.md"
        blocks.fill(page, "ring", ring_table())
        blocks.fill(page, "time-limits", trained_part())
        draw_ring(RESULTS / "time_limits_ring.svg")
        if trained():
            draw(RESULTS / "time_limits.svg")


if __name__ == "__main__":
    main()
