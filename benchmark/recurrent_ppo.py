"""Trains sb3-contrib's RecurrentPPO with its own defaults, for docs/memory.md; its episodes go to a CSV file.

python benchmark/recurrent_ppo.py --env-id no_velocity:CartPoleNoVelocity-v0 --seed 801
"""

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import tyro
from sb3_contrib import RecurrentPPO
from stable_baselines3.common.callbacks import BaseCallback


@dataclass
class Args:
    env_id: str = "no_velocity:CartPoleNoVelocity-v0"  # Gymnasium id
    total_timesteps: int = 300_000  # environment steps
    seed: int = 801  # of weights, environment and sampling
    folder: Path = Path(__file__).parent / "results" / "recurrent_ppo"  # of the CSV file


class Episodes(BaseCallback):
    """Writes down each episode that ends."""

    def __init__(self, rows):
        super().__init__()
        self.rows = rows
        self.returns = []

    def _on_step(self) -> bool:
        for info in self.locals["infos"]:
            if "episode" in info:
                self.returns.append(info["episode"]["r"])
                self.rows.writerow([self.num_timesteps, info["episode"]["r"], info["episode"]["l"]])
        return True


def main(args: Args) -> None:
    torch.set_num_threads(1)
    args.folder.mkdir(parents=True, exist_ok=True)
    name = args.env_id.rpartition(":")[2]
    path = args.folder / f"{name}_{args.seed}.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(["global_step", "episodic_return", "episodic_length"])
        episodes = Episodes(rows)
        model = RecurrentPPO("MlpLstmPolicy", args.env_id, seed=args.seed, device="cpu")
        model.learn(args.total_timesteps, episodes)
    print(f"{path}: mean return of the last 100 episodes {np.mean(episodes.returns[-100:]):.2f}")


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
