"""skrl: trainings of its PPO with a softmax policy."""

import importlib.metadata

import scripted
import torch
from skrl.agents.torch.ppo import PPO, PPO_CFG
from skrl.envs.wrappers.torch import wrap_env
from skrl.memories.torch import RandomMemory
from skrl.models.torch import CategoricalMixin, DeterministicMixin, Model
from skrl.resources.preprocessors.torch import RunningStandardScaler
from skrl.trainers.torch import SequentialTrainer
from spy import Spy, layers

NAME = f"skrl {importlib.metadata.version('skrl')}"
HYPER, WIDTH = scripted.HYPER, scripted.HYPER["num_envs"] * scripted.SHOWN
SCALER = {"observation_preprocessor": RunningStandardScaler, "observation_preprocessor_kwargs": {"size": WIDTH}}
OPTIONS = {"record": {"": {}, "value_clip=0": {"value_clip": 0.0}, "RunningStandardScaler": SCALER}}
OPTIONS["record"]["time_limit_bootstrap=True"] = {"time_limit_bootstrap": True}


def make_model(mixin, outputs, spaces):
    class Linear(mixin, Model):
        def __init__(self):
            Model.__init__(self, **spaces, device="cpu")
            mixin.__init__(self)
            self.linear = torch.nn.Linear(WIDTH, outputs)

        def compute(self, inputs, role):
            return self.linear(inputs["observations"]), {}

    return Linear()


def record(**options):
    torch.manual_seed(1)
    env = wrap_env(scripted.make_vector(), wrapper="gymnasium")
    spaces = {"observation_space": env.observation_space, "action_space": env.action_space}
    models = {"policy": make_model(CategoricalMixin, 3, spaces), "value": make_model(DeterministicMixin, 1, spaces)}
    cfg = PPO_CFG(
        rollouts=HYPER["num_steps"], learning_epochs=HYPER["epochs"], mini_batches=HYPER["minibatches"],
        discount_factor=HYPER["gamma"], gae_lambda=HYPER["gae_lambda"], learning_rate=HYPER["learning_rate"],
        ratio_clip=HYPER["clip_coef"], value_loss_scale=HYPER["vf_coef"], grad_norm_clip=HYPER["max_grad_norm"],
        entropy_loss_scale=HYPER["ent_coef"], **{"value_clip": HYPER["clip_coef"]} | options,
    )  # fmt: skip
    cfg.experiment.write_interval = cfg.experiment.checkpoint_interval = 0
    memory = RandomMemory(memory_size=HYPER["num_steps"], num_envs=HYPER["num_envs"])
    agent = PPO(models=models, memory=memory, **spaces, device="cpu", cfg=cfg)
    named = layers("policy", models["policy"]) | layers("value", models["value"])
    spy = Spy(agent.optimizer, named, models["policy"].linear)
    how_long = {"timesteps": HYPER["num_steps"] * HYPER["updates"], "disable_progressbar": True, "headless": True}
    SequentialTrainer(env=env, agents=agent, cfg=how_long).train()
    normalizes = "observations" if "observation_preprocessor" in options else ""
    return spy.record(HYPER, scripted.logs(), normalizes=normalizes)
