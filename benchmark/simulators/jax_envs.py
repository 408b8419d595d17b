"""MuJoCo Playground and brax for ppo_continuous_action_gpu.py. Copy this file to where you start the script:

    python cleanrl/ppo_continuous_action_gpu.py --env-id jax_envs:Playground:CartpoleBalance
    python cleanrl/ppo_continuous_action_gpu.py --env-id jax_envs:Brax:inverted_pendulum

Both libraries overwrite the last observation of an episode when they reset; KeepFinalObs, below the reset, keeps it.
Both put an environment back into the state in which it first started, so few environments see few starts; info isn't
reset. Playground's full_reset, off as by default, would reset it, and with it what KeepFinalObs keeps.
"""

import os

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # JAX would reserve 75%, and torch needs room
import brax.envs
import jax
import torch
from brax.envs.wrappers import training


class KeepFinalObs:
    """A wrapper between the time limit and the reset, which leaves info as it is."""

    def __init__(self, env):
        self.env = env

    def __getattr__(self, name):
        return getattr(self.env, name)

    def reset(self, rng):
        state = self.env.reset(rng)
        return state.replace(info={**state.info, "final_obs": state.obs})

    def step(self, state, action):
        state = self.env.step(state, action)
        return state.replace(info={**state.info, "final_obs": state.obs})


class JaxEnvs:
    """N copies of env, a single environment; auto_reset is the wrapper that resets them."""

    def __init__(self, env, auto_reset, num_envs: int, device: str, max_episode_steps: int, action_repeat: int = 1):
        self.num_envs = num_envs
        self.jax_device = jax.devices("gpu" if device == "cuda" else "cpu")[0]
        self.action_dim = env.action_size
        size = env.observation_size
        self.names = []  # of observations in a dict
        sizes = [size]
        if isinstance(size, dict):
            self.names = [name for name in ("state", "privileged_state") if name in size]
            sizes = [jax.numpy.atleast_1d(jax.numpy.array(size[name]))[0].item() for name in self.names]
        self.obs_dim = sum(sizes)
        self.actor_columns = slice(0, sizes[0])
        self.critic_columns = slice(self.obs_dim - sizes[-1], self.obs_dim)  # all, if there is one kind
        env = training.EpisodeWrapper(training.VmapWrapper(env), max_episode_steps, action_repeat)
        env = auto_reset(KeepFinalObs(env))
        self.jit_reset = jax.jit(env.reset)
        self.jit_step = jax.jit(env.step)

    def join(self, obs) -> torch.Tensor:
        """Observations (N, D) as a tensor. Nothing is copied here: the script copies what it keeps."""
        if not self.names:
            return torch.from_dlpack(obs)
        return torch.cat([torch.from_dlpack(obs[name]) for name in self.names], dim=1)

    def reset(self, seed: int) -> torch.Tensor:
        with jax.default_device(self.jax_device):
            self.state = self.jit_reset(jax.random.split(jax.random.PRNGKey(seed), self.num_envs))
        return self.join(self.state.obs)

    def step(self, actions: torch.Tensor):
        actions = actions.clamp(-1.0, 1.0)  # a tensor of its own, since JAX may read it after torch went on
        with jax.default_device(self.jax_device):
            self.state = self.jit_step(self.state, jax.dlpack.from_dlpack(actions))
        truncated = torch.from_dlpack(self.state.info["truncation"]) > 0
        terminated = (torch.from_dlpack(self.state.done) > 0) & ~truncated
        rewards = torch.from_dlpack(self.state.reward)
        return self.join(self.state.obs), rewards, terminated, truncated, self.join(self.state.info["final_obs"])


class Playground(JaxEnvs):
    """options: of the task's config, say {"impl": "jax"} or {"episode_length": 500}."""

    def __init__(self, num_envs: int, device: str, task: str, **options):
        from mujoco_playground import registry, wrapper

        config = registry.get_default_config(task)
        config.update(options)
        env = registry.load(task, config=config)
        reset = wrapper.BraxAutoResetWrapper
        super().__init__(env, reset, num_envs, device, config.episode_length, config.action_repeat)


class Brax(JaxEnvs):
    def __init__(self, num_envs: int, device: str, task: str, max_episode_steps: int = 1000, **options):
        env = brax.envs.get_environment(task, **options)
        super().__init__(env, training.AutoResetWrapper, num_envs, device, max_episode_steps)
