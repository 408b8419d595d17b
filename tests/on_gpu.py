"""The torch scripts on a GPU. `make test-gpu` runs it where torch finds one."""

import importlib

import pytest
import torch
from every_script import SCRIPTS
from helpers import SCRIPT, assert_resumes, assert_same_logs, assert_same_state, checkpoints, run, state
from test_continuous_gpu import Run

SMALL = {"device": "cuda", "num_envs": 2, "num_steps": 32, "num_minibatches": 2, "total_timesteps": 256}  # 4 updates

if not torch.cuda.is_available():
    pytest.skip("torch finds no GPU", allow_module_level=True)


ONE_PROCESS = [name for name in SCRIPTS if not name.endswith("_numpy") and "multigpu" not in name]


@pytest.mark.parametrize("name", ONE_PROCESS)
def test_a_run_repeats_bit_for_bit_and_goes_on_on_a_cpu(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    script = importlib.import_module(name)
    arguments = script.Args(**SMALL, checkpoints=2, exact_resume=True)
    arguments.capture_video = False  # ppo_atari_visual.py makes videos by default
    one, other = script.main(arguments), script.main(arguments)
    assert_same_logs(one, other)
    assert_same_state(state(one, 4), state(other, 4))
    assert_resumes(script, one, 2)
    script.main(script.Args(resume=str(one), device="cpu", total_timesteps=320))
    assert checkpoints(one) == [2, 4, 5]


def test_no_update_of_the_script_for_simulators_waits_for_the_gpu():
    """From the first step of a rollout to the log; the first update makes the optimizer's state."""
    script = importlib.import_module("ppo_continuous_action_gpu")

    class Watched(Run):
        def updates(self):
            for update, fresh_episodes in super().updates():
                torch.cuda.set_sync_debug_mode("default" if update == 1 else "error")
                yield update, fresh_episodes

        def note(self, *rollout):
            torch.cuda.set_sync_debug_mode("default")

    arguments = {"num_envs": 4096, "num_steps": 24, "total_timesteps": 4096 * 24 * 3, "adaptive_kl": 0.01}
    args = script.Args(**arguments, device="cuda", norm_adv="rollout", env_kwargs='{"max_episode_steps": 10}')
    run = Watched(args)
    try:
        script.train(args, run)
        torch.cuda.set_sync_debug_mode("error")
        with pytest.raises(RuntimeError):
            torch.ones(1, device="cuda").item()  # it does notice
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len(run.logs) == 3


def test_two_processes_share_a_gpu(tmp_path):
    torchrun = ["torch.distributed.run", "--standalone", "--nnodes=1", "--nproc_per_node=2"]
    typed = ["--device", "cuda", "--device-ids", "0", "0", "--total-timesteps", "2048"]
    run(*torchrun, str(SCRIPT.with_name("ppo_atari_multigpu.py")), *typed, script="-m", cwd=tmp_path)
    (folder,) = tmp_path.glob("runs/*")
    assert checkpoints(folder) == [2]
