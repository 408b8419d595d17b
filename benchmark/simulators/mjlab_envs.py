"""mjlab for ppo_continuous_action_gpu.py. Copy this file to where you start the script:

    python cleanrl/ppo_continuous_action_gpu.py --env-id mjlab_envs:Mjlab:Mjlab-Cartpole-Swingup

With auto_reset=False, a step returns the last observations, and what ended is reset here, which simulates forward once
more. Older than 1.6, mjlab gave all environments another frame when it reset some. There are no --env-kwargs: edit
config below. For a task of your own, import its package here. The critic sees the group "critic" alone; if that holds
only what is privileged, set critic_columns to slice(None).
"""

import mjlab.tasks  # noqa: F401  registers the tasks
import torch
from mjlab.envs import ManagerBasedRlEnv
from mjlab.tasks.registry import load_env_cfg


class Mjlab:
    def __init__(self, num_envs: int, device: str, task: str):
        config = load_env_cfg(task)
        config.scene.num_envs = num_envs
        config.auto_reset = False
        self.env = ManagerBasedRlEnv(config, "cuda:0" if device == "cuda" else device)
        self.num_envs = num_envs
        self.max_episode_steps = int(self.env.max_episode_length)
        self.action_dim = self.env.action_manager.total_action_dim
        groups = self.env.observation_manager.group_obs_dim
        self.names = [name for name in ("actor", "policy", "critic") if name in groups]
        sizes = [groups[name][0] for name in self.names]
        self.obs_dim = sum(sizes)
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
        obs, rewards, terminated, truncated, _ = self.env.step(actions)
        final_obs = self.join(obs)
        rewards, terminated, truncated = rewards.clone(), terminated.clone(), truncated.clone()  # a reset clears them
        ended = terminated | truncated
        numbers = ended.nonzero().squeeze(-1)  # the host waits here, as in mjlab's own step
        if len(numbers) == 0:
            return final_obs, rewards, terminated, truncated, final_obs
        obs, _ = self.env.reset(env_ids=numbers)
        first_obs = torch.where(ended[:, None], self.join(obs), final_obs)  # the others' noise would be drawn anew
        return first_obs, rewards, terminated, truncated, final_obs

    def close(self) -> None:
        self.env.close()
