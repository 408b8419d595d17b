"""Children of a process that has loaded torch, and nothing of ours: the tests that this process ran before leave
environments whose threads a child of its own would wait for, and scripts that a child may want to change."""

import multiprocessing

CHILDREN = multiprocessing.get_context("forkserver")
CHILDREN.set_forkserver_preload(
    ["pytest", "torch._dynamo", "matplotlib.pyplot", "mujoco", "scipy.stats", "tensorboard"]
)
