"""ManiSkill for ppo_continuous_action_gpu.py, written from its sources and never run. Copy this file to where you
start the script:

    python cleanrl/ppo_continuous_action_gpu.py --device cuda --env-id maniskill_envs:ManiSkill:PushCube-v1

The last observations are in infos["final_observation"], only after steps in which an episode ended. On a CPU, ManiSkill
takes one environment: --num-envs 1.
"""

import gymnasium as gym
import mani_skill.envs  # noqa: F401  registers the tasks
import torch
from mani_skill.vector.wrappers.gymnasium import ManiSkillVectorEnv


class ManiSkill:
    def __init__(self, num_envs: int, device: str, task: str, **options):
        backend = "gpu" if device == "cuda" else "cpu"
        env = gym.make(task, num_envs=num_envs, obs_mode="state", sim_backend=backend, **options)
        self.env = ManiSkillVectorEnv(env, num_envs, auto_reset=True, ignore_terminations=False)
        self.num_envs = num_envs
        self.obs_dim = self.env.single_observation_space.shape[0]
        self.action_dim = self.env.single_action_space.shape[0]

    def reset(self, seed: int) -> torch.Tensor:
        obs, _ = self.env.reset(seed=seed)
        return obs

    def step(self, actions: torch.Tensor):
        obs, rewards, terminated, truncated, infos = self.env.step(actions.clamp(-1.0, 1.0))
        final_obs = infos.get("final_observation", obs)
        return obs, rewards, terminated, truncated, final_obs

    def close(self) -> None:
        self.env.close()
