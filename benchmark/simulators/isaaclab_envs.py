"""Isaac Lab for ppo_continuous_action_gpu.py, written from its sources and never run. Copy this file to where you
start the script:

    ./isaaclab.sh -p cleanrl/ppo_continuous_action_gpu.py --env-id isaaclab_envs:IsaacLab:Isaac-Cartpole-v0

Its option compute_final_obs, of June 2026, keeps the last observations. Older versions lose them: final_obs is None
there, and the script asks for --time-limits before or drop. There are no --env-kwargs: edit config below. For a task of
your own, import its package here. The critic sees the group "critic" alone; if that holds only what is privileged, set
critic_columns to slice(None).
"""

from isaaclab.app import AppLauncher

launcher = AppLauncher(headless=True)  # before anything else of Isaac Lab is imported

import gymnasium as gym  # noqa: E402
import isaaclab_tasks  # noqa: E402, F401  registers the tasks
import torch  # noqa: E402
from isaaclab_tasks.utils import parse_env_cfg  # noqa: E402


class IsaacLab:
    def __init__(self, num_envs: int, device: str, task: str):
        config = parse_env_cfg(task, device="cuda:0" if device == "cuda" else device, num_envs=num_envs)
        self.keeps_final_obs = hasattr(config, "compute_final_obs")
        if self.keeps_final_obs:
            config.compute_final_obs = True
        self.env = gym.make(task, cfg=config).unwrapped  # Gymnasium's wrappers expect a single environment
        self.num_envs = num_envs
        self.max_episode_steps = int(self.env.max_episode_length)
        spaces = self.env.single_observation_space.spaces
        self.names = [name for name in ("policy", "critic") if name in spaces]
        sizes = [spaces[name].shape[0] for name in self.names]
        self.obs_dim = sum(sizes)
        self.action_dim = self.env.single_action_space.shape[0]
        self.actor_columns = slice(0, sizes[0])
        self.critic_columns = slice(self.obs_dim - sizes[-1], self.obs_dim)

    @property
    def ages(self) -> torch.Tensor:
        return self.env.episode_length_buf

    @ages.setter
    def ages(self, values: torch.Tensor) -> None:
        self.env.episode_length_buf[:] = values

    def join(self, obs: dict) -> torch.Tensor:
        return torch.cat([obs[name] for name in self.names], dim=1)

    def reset(self, seed: int) -> torch.Tensor:
        obs, _ = self.env.reset(seed=seed)
        return self.join(obs)

    def step(self, actions: torch.Tensor):
        obs, rewards, terminated, truncated, extras = self.env.step(actions)
        obs = self.join(obs)
        if not self.keeps_final_obs:
            return obs, rewards, terminated, truncated, None
        final_obs = obs
        if "final_obs" in extras:  # since the first reset; its other rows are older
            ended = (terminated | truncated)[:, None]
            final_obs = torch.where(ended, self.join(extras["final_obs"]), obs)
        return obs, rewards, terminated, truncated, final_obs

    def close(self) -> None:
        self.env.close()
