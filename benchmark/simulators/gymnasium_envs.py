r"""Gymnasium's environments for ppo_continuous_action_gpu.py. Copy this file to where you start the script:

    python cleanrl/ppo_continuous_action_gpu.py --env-id gymnasium_envs:Gymnasium:HalfCheetah-v4 --num-envs 8 \
        --num-steps 256 --num-minibatches 32 --update-epochs 10 --learning-rate 3e-4 --total-timesteps 1e6

They run on the CPU, one after the other, and their arrays are copied to the device and back in every step. For
Gymnasium alone, ppo_continuous_action.py is the better script. The last observation of an episode is kept.
"""

import math
from functools import partial

import gymnasium as gym
import numpy as np
import torch


class Gymnasium:
    def __init__(self, num_envs: int, device: str, env_id: str, /, **options):
        make_one = partial(gym.make, env_id, disable_env_checker=True, **options)
        same_step = gym.vector.AutoresetMode.SAME_STEP
        self.vector = gym.vector.SyncVectorEnv([make_one] * num_envs, autoreset_mode=same_step)
        observations = self.vector.single_observation_space
        self.actions = self.vector.single_action_space
        if not isinstance(observations, gym.spaces.Box) or not isinstance(self.actions, gym.spaces.Box):
            raise ValueError(f"needs Box observations and actions, not {observations} and {self.actions}")
        self.num_envs = num_envs
        self.device = device
        self.obs_dim = math.prod(observations.shape)
        self.action_dim = math.prod(self.actions.shape)

    def to_tensor(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array.astype(np.float32)).to(self.device)  # a copy: vectors reuse their array

    def reset(self, seed: int) -> torch.Tensor:
        observations, _ = self.vector.reset(seed=seed)
        return self.to_tensor(observations.reshape(self.num_envs, -1))

    def step(self, actions: torch.Tensor):
        actions = actions.cpu().numpy().reshape(-1, *self.actions.shape)
        actions = actions.clip(self.actions.low, self.actions.high)
        observations, rewards, terminated, truncated, infos = self.vector.step(actions)
        final_obs = observations.copy()
        for i in np.flatnonzero(terminated | truncated):
            final_obs[i] = infos["final_obs"][i]
        return (
            self.to_tensor(observations.reshape(self.num_envs, -1)),
            self.to_tensor(rewards),
            torch.from_numpy(terminated).to(self.device),
            torch.from_numpy(truncated).to(self.device),
            self.to_tensor(final_obs.reshape(self.num_envs, -1)),
        )

    def close(self) -> None:
        self.vector.close()
