r"""A task of your own for ppo_continuous_action_gpu.py, to copy and change. It has true ends as well as a time limit:

    python cleanrl/ppo_continuous_action_gpu.py --env-id swing_up:SwingUp --device cpu --num-envs 256 \
        --total-timesteps 3e6

A pole hangs from a cart and is to be swung up. The episode ends if the cart leaves the track.
The command solves it: 441.6 ± 4.0 of 500 in five seeds.
"""

import math

import torch


class SwingUp:
    obs_dim = 5
    action_dim = 1

    def __init__(self, num_envs: int, device: str, *, max_episode_steps: int = 500):
        self.num_envs = num_envs
        self.device = device
        self.max_episode_steps = max_episode_steps
        # made here, once: to make a tensor of Python's numbers, the host waits for the device
        self.hanging = torch.tensor([0.0, 0.0, math.pi, 0.0], device=device)

    def draw_states(self) -> torch.Tensor:
        """Position, its velocity, angle, 0 upright, and its velocity at the start of an episode, (N, 4)."""
        return self.hanging + 0.1 * torch.rand(self.num_envs, 4, device=self.device) - 0.05

    def observe(self, states: torch.Tensor) -> torch.Tensor:
        position, speed, angle, turning = states.unbind(1)
        return torch.stack([position, speed, angle.cos(), angle.sin(), turning], dim=1)

    def reset(self, seed: int) -> torch.Tensor:
        self.states = self.draw_states()  # from torch's generator, which the script has seeded
        self.ages = torch.zeros(self.num_envs, device=self.device, dtype=torch.int64)
        return self.observe(self.states)

    def move(self, states: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        """The states after one step of Gymnasium's CartPole-v1, whose force is from -10 to 10 here."""
        _, speed, angle, turning = states.unbind(1)
        force = 10.0 * actions[:, 0].clamp(-1.0, 1.0)
        push = (force + 0.05 * turning.square() * angle.sin()) / 1.1
        inertia = 0.5 * (4.0 / 3.0 - 0.1 * angle.cos().square() / 1.1)
        turn = (9.8 * angle.sin() - angle.cos() * push) / inertia
        acceleration = push - 0.05 * turn * angle.cos() / 1.1
        return states + 0.02 * torch.stack([speed, acceleration, turning, turn], dim=1)

    def pay(self, states: torch.Tensor, terminated: torch.Tensor) -> torch.Tensor:
        """Rewards: 1 upright and at rest, 0 hanging, -10 at the end of the track. If turning cost nothing, whirling the
        pole round and round would pay half, and agents are content with that."""
        _, _, angle, turning = states.unbind(1)
        upright = 0.5 * (1.0 + angle.cos())
        return upright / (1.0 + 0.02 * turning.square()) - 10.0 * terminated

    def step(self, actions: torch.Tensor):
        states = self.move(self.states, actions)
        self.ages = self.ages + 1
        terminated = states[:, 0].abs() > 2.4
        rewards = self.pay(states, terminated)
        truncated = self.ages >= self.max_episode_steps
        final_obs = self.observe(states)
        ended = terminated | truncated  # no `if ended.any()`: to know it, the host would wait for the device
        self.states = torch.where(ended[:, None], self.draw_states(), states)
        self.ages = torch.where(ended, 0, self.ages)
        return self.observe(self.states), rewards, terminated, truncated, final_obs
