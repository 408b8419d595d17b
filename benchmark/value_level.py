"""Do an agent's values follow their targets? Updates of ppo_procgen.py on one rollout, again and again.

    python benchmark/value_level.py runs/RUN
    python benchmark/value_level.py runs/RUN/checkpoints/203.pt --vf-coef 0.1

The agent plays one rollout by its run's arguments. Then it learns from it several times; before each update, advantages
and targets are computed anew, from the values that the update before left. Since the rewards stay as they are, the mean
value should go where the mean target is. Adam begins afresh. An update of 64 environments and 256 steps takes about a
minute.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import tyro
from shared import checkpoints

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "cleanrl"))

import ppo_procgen as ppo  # noqa: E402


@dataclass
class Args:
    agent: Annotated[Path, tyro.conf.Positional]  # run folder or checkpoint of ppo_procgen.py
    num_updates: int = 4  # updates on the rollout
    learning_rate: float | None = None  # instead of the run's
    vf_coef: float | None = None  # instead of the run's
    max_grad_norm: float | None = None  # instead of the run's
    clip_vloss: bool | None = None  # instead of the run's
    num_threads: int | None = None  # CPU threads of torch; by default OMP_NUM_THREADS, or cores
    seed: int = 1  # of the levels, the actions and the minibatches


def load(path: Path) -> dict:
    """The state in a checkpoint or in a folder's last one; ValueError if there is none of ppo_procgen.py."""
    found = [path] if path.is_file() else checkpoints(path)
    if not found:
        raise ValueError(f"{path}: holds no checkpoint; name a run folder or a checkpoint of ppo_procgen.py")
    try:
        state = torch.load(found[-1], map_location="cpu", weights_only=True)
        script = state["script"]
    except Exception as error:  # torch raises many kinds
        raise ValueError(f"{found[-1]}: is no checkpoint; name one of ppo_procgen.py") from error
    if script != "ppo_procgen":
        raise ValueError(f"{found[-1]}: was written by {script}.py; name a checkpoint of ppo_procgen.py")
    return state


def rollout(envs, agent, args: ppo.Args) -> tuple[torch.Tensor, torch.Tensor, np.ndarray, np.ndarray]:
    """One rollout: observations (T + 1, N, 64, 64, 3) and actions (T * N,); rewards (T, N), as training scales them;
    and what marks the observations that are an episode's first, (T + 1, N)."""
    seeds = np.random.SeedSequence(args.seed).generate_state(args.num_envs).tolist()
    obs, dones, actions, rewards = [np.array(envs.reset(seeds))], [np.ones(args.num_envs, np.float32)], [], []
    for _ in range(args.num_steps):
        with torch.no_grad():
            action = agent.get_action_and_value(torch.from_numpy(obs[-1]))[0]
        next_obs, reward, done, *_ = envs.step(action.numpy())
        obs.append(np.array(next_obs))
        dones.append(done)
        rewards.append(reward)
        actions.append(action)
    return torch.from_numpy(np.stack(obs)), torch.cat(actions), np.float32(rewards), np.stack(dones)


def main(chosen: Args) -> None:
    """Prints, update by update, the mean value, the mean target, and the mean value that the update left."""
    for name, least in (("num_updates", 1), ("num_threads", 1), ("seed", 0)):
        if (x := getattr(chosen, name)) is not None and x < least:
            raise ValueError(f"--{name.replace('_', '-')} {x}: must be {least} or more")
    state, names = load(chosen.agent), ("learning_rate", "vf_coef", "max_grad_norm", "clip_vloss")
    changes = {name: x for name in names if (x := getattr(chosen, name)) is not None}
    args = ppo.Args(**state["args"] | changes | {"seed": chosen.seed})
    args.num_threads = chosen.num_threads or torch.get_num_threads()
    torch.set_num_threads(args.num_threads)
    torch.manual_seed(args.seed)
    envs = ppo.NormalizedVectorEnv(args)
    envs.load_state_dict(state["statistics"])
    agent = ppo.Agent(int(envs.action_space.n), args.precision, args.channels_last)
    parameters = ppo.flatten_parameters(agent)
    agent.load_state_dict(state["model"])
    optimizer = torch.optim.Adam([parameters], lr=args.learning_rate, eps=1e-5, fused=True)
    all_obs, actions, rewards, dones = rollout(envs, agent, args)
    obs, size = all_obs[:-1].flatten(0, 1), args.batch_size // args.num_minibatches
    shown = ", ".join(f"{name} {getattr(args, name)}" for name in names)
    print(f"{state['global_step']:,} steps of training; {shown}; {int(dones[1:].sum())} episodes ended in the rollout")
    for update in range(1, chosen.num_updates + 1):
        with torch.no_grad():
            values = torch.stack([agent.get_value(x) for x in all_obs]).numpy()
            batches = zip(obs.split(size), actions.split(size), strict=True)
            old_log_probs = torch.cat([agent.get_action_and_value(x, action)[1] for x, action in batches])
        advantages, returns = ppo.compute_gae(
            rewards, values[:-1], dones[:-1], values[-1], dones[-1], args.gamma, args.gae_lambda
        )
        old_values, b_advantages, b_returns = (
            torch.from_numpy(x).flatten() for x in (values[:-1], advantages, returns)
        )
        errors = []
        for _ in range(args.update_epochs):
            for mb in torch.randperm(args.batch_size).split(size):
                _, log_prob, entropy, value = agent.get_action_and_value(obs[mb], actions[mb])
                loss, _ = ppo.ppo_loss(
                    log_prob, entropy, value, old_log_probs[mb], old_values[mb], b_advantages[mb], b_returns[mb],
                    args.clip_coef, args.norm_adv, args.clip_vloss, args.ent_coef, args.vf_coef,
                )  # fmt: skip
                errors.append((value.detach() - b_returns[mb]).mean().item())
                parameters.grad.zero_()
                loss.backward()
                parameters.grad.mul_((args.max_grad_norm / (parameters.grad.norm() + 1e-6)).clamp(max=1.0))
                optimizer.step()
        with torch.no_grad():
            after = torch.cat([agent.get_value(x) for x in obs.split(size)]).mean()
        print(
            f"update {update}: value {values[:-1].mean():.3f}, target {returns.mean():.3f} -> value {after:.3f}",
            flush=True,
        )
    print("value less target, minibatch by minibatch of the last update:", *(f"{x:+.2f}" for x in errors))


if __name__ == "__main__":
    try:
        main(tyro.cli(Args, description=__doc__))
    except (ValueError, ImportError) as error:  # a mistake in what was named, or no Procgen
        print(f"value_level.py: error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
