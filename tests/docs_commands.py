"""Runs Python command lines, each in a fork of one process that has loaded torch, so that twenty commands don't load it
twenty times. Reads jobs from stdin, a line of JSON each, and answers with the exit status.

A job: argv (without python), folder, env, output (a file for stdout) and errors (one for stderr)."""

import json
import os
import runpy
import sys
import traceback
from pathlib import Path

os.environ["OPENBLAS_NUM_THREADS"] = "1"

import gymnasium  # noqa: F401
import torch
import torch._dynamo  # which torch.optim loads
import tyro  # noqa: F401
from tensorboard.summary.writer import event_file_writer  # noqa: F401

torch.set_num_threads(1)  # no pool of threads, which a fork would lose


def run(job: dict) -> int:
    """The job in this process; returns its exit status."""
    for number, name in ((1, "output"), (2, "errors")):
        os.dup2(os.open(job[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    os.chdir(job["folder"])
    os.environ.update(job["env"])
    sys.argv = job["argv"]
    more = [str(Path(folder).resolve()) for folder in job["env"].get("PYTHONPATH", "").split(":") if folder]
    sys.path[:1] = [str(Path(sys.argv[0]).resolve().parent), *more]
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


for line in sys.stdin:
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            status = run(json.loads(line))
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(status)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
