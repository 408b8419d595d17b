"""A Slurm cluster of two nodes on this machine: munge, slurmctld and two slurmd on the loopback device. Needs root and
Debian's packages slurmctld, slurmd, slurm-client and munge."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

from fake_runs import wait_until

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "scancel", "squeue")
CONFIGURATION = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
# Credentials that expire soon: a requeued job waits for its old ones, for minutes by default
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdLogFile={folder}/slurmd-%n.log
SlurmdSpoolDir={folder}/spool-%n
ProctrackType=proctrack/cgroup
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0
JobRequeue=1
ReturnToService=2
KillWait=20
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={port1} CPUs=2 RealMemory=2000
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={port2} CPUs=2 RealMemory=2000
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing_programs() -> list[str]:
    return [name for name in PROGRAMS if not shutil.which(name)]


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[dict[str, str]]:
    """Starts the daemons and yields the environment variables for Slurm's commands; the daemons' logs are in the
    folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "state").mkdir()
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    controller_port, port1, port2 = free_ports(3)
    host = socket.gethostname().split(".")[0]
    ports = {"controller_port": controller_port, "port1": port1, "port2": port2}
    (folder / "slurm.conf").write_text(CONFIGURATION.format(folder=folder, host=host, **ports))
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")  # read though nothing here uses cgroups
    variables = os.environ | {"SLURM_CONF": str(folder / "slurm.conf")}
    # --force, since the folders of tests are closed to others, which munged calls insecure
    munged = ["munged", "--foreground", "--force", f"--socket={folder}/munge.socket", f"--key-file={key}"]
    munged += [f"--{name}={folder}/munge.{name.split('-')[0]}" for name in ("pid-file", "log-file", "seed-file")]
    daemons = []
    try:
        for command in (munged, ["slurmctld", "-D", "-c"], ["slurmd", "-D", "-N", "n1"], ["slurmd", "-D", "-N", "n2"]):
            with (folder / f"{'-'.join(command[:1] + command[3:4] * (command[0] == 'slurmd'))}.out").open("w") as out:
                daemons.append(subprocess.Popen(command, env=variables, stdout=out, stderr=out, start_new_session=True))
            if command is munged:
                wait_until((folder / "munge.socket").exists)

        def nodes_are_idle() -> bool:
            states = subprocess.run(["sinfo", "-h", "-N", "-o", "%T"], env=variables, capture_output=True, text=True)
            return states.stdout.split() == ["idle", "idle"]

        wait_until(nodes_are_idle)
        yield variables
    finally:
        with contextlib.suppress(subprocess.TimeoutExpired, AssertionError):  # what runs must not outlive the cluster
            subprocess.run(["scancel", "--user", "root"], env=variables, capture_output=True, timeout=10)
            jobs = ["squeue", "-h"]
            wait_until(lambda: not subprocess.run(jobs, env=variables, capture_output=True).stdout)
        for daemon in reversed(daemons):
            daemon.send_signal(signal.SIGTERM)
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
