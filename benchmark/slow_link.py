"""Two machines on one: a command in two network namespaces, joined by a link of a given rate and delay (Linux, as root).

    python benchmark/slow_link.py --mbit 1000 --ms 0.2 --command "torchrun --nnodes=2 --nproc_per_node=1 --node-rank={rank} --master-addr={address} --master-port=29500 cleanrl/ppo_atari_multigpu.py"

Both ends are TUN devices, and this program carries the packets from one to the other: each waits until those before it
are through at that rate, and then for the delay, like `tc netem`, which not every kernel has. Ends with the status of the
command that fails first, whose fellow is ended, and removes both namespaces.
"""  # noqa: E501

import contextlib
import fcntl
import heapq
import os
import selectors
import shutil
import signal
import struct
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import tyro

NAMES, ADDRESSES = ("ppo-link-0", "ppo-link-1"), ("10.231.0.1", "10.231.0.2")
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000  # linux/if_tun.h
MTU = 60_000  # bytes; few packets, so that carrying them costs little


@dataclass
class Args:
    command: str  # typed in both namespaces; {rank} is 0 or 1, {address} that of the first
    mbit: float = 1000.0  # rate in each direction, in 10⁶ bits per second
    ms: float = 0.2  # delay in each direction, in milliseconds


def wrong(message: str) -> int:
    print(f"slow_link.py: error: {message}", file=sys.stderr)
    return 2


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def open_end(rank: int) -> int:
    """One end of the link, up in a namespace of its own; returns the descriptor that its packets go through."""
    name, address = NAMES[rank], ADDRESSES[rank]
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(descriptor, TUNSETIFF, struct.pack("16sH", f"ppo{rank}".encode(), IFF_TUN | IFF_NO_PI))
    ip("netns", "add", name)
    ip("link", "set", f"ppo{rank}", "netns", name)
    ip("-n", name, "addr", "add", f"{address}/24", "dev", f"ppo{rank}")
    ip("-n", name, "link", "set", f"ppo{rank}", "mtu", str(MTU), "txqueuelen", "10000", "up")
    ip("-n", name, "link", "set", "lo", "up")
    return descriptor


def carry(ends: list[int], mbit: float, ms: float, running) -> None:
    """Carries packets between the ends for as long as running() is true."""
    waiting, free, count = [], [0.0, 0.0], 0  # waiting: (time of arrival, number, end, packet)
    with selectors.DefaultSelector() as selector:
        for end in ends:
            selector.register(end, selectors.EVENT_READ)
        while running():
            pause = min(0.1, max(0.0, waiting[0][0] - time.perf_counter())) if waiting else 0.1
            for key, _ in selector.select(pause if pause > 5e-5 else 0):
                packet, to, now = os.read(key.fd, MTU + 100), 1 - ends.index(key.fd), time.perf_counter()
                free[to] = max(free[to], now) + 8e-6 * len(packet) / mbit
                heapq.heappush(waiting, (free[to] + 1e-3 * ms, count := count + 1, to, packet))
            while waiting and waiting[0][0] <= time.perf_counter():
                _, _, to, packet = heapq.heappop(waiting)
                os.write(ends[to], packet)


def main(args: Args) -> int:
    if sys.platform != "linux" or os.geteuid() or not shutil.which("ip"):
        return wrong("network namespaces need Linux, root and the program ip (Debian: iproute2); try sudo")
    if not args.mbit > 0 or not args.ms >= 0:
        return wrong(f"--mbit {args.mbit} --ms {args.ms}: the rate must be above 0, the delay 0 or more")
    if left := [name for name in NAMES if Path("/run/netns", name).exists()]:
        return wrong(f"{left[0]}: is there already; another call runs, or was killed: ip netns del {left[0]}")
    try:
        commands = [args.command.format(rank=rank, address=ADDRESSES[0]) for rank in (0, 1)]
    except (KeyError, IndexError, ValueError) as error:
        return wrong(f"--command: {error} in braces; only {{rank}} and {{address}} are filled in, write others doubled")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # by way of finally
    processes, ends = [], []
    try:
        for rank in (0, 1):
            ends.append(open_end(rank))
        for rank in (0, 1):
            environment = os.environ | {"GLOO_SOCKET_IFNAME": f"ppo{rank}", "TP_SOCKET_IFNAME": f"ppo{rank}"}
            command = ["ip", "netns", "exec", NAMES[rank], "sh", "-c", commands[rank]]
            processes.append(subprocess.Popen(command, env=environment, start_new_session=True))
        # Until both have ended, or one has failed, for which the other would wait
        carry(ends, args.mbit, args.ms, lambda: None in (codes := [one.poll() for one in processes]) and not any(codes))
        return next((process.returncode for process in processes if process.returncode), 0)
    except (OSError, subprocess.CalledProcessError) as error:
        return wrong(f"no link: {error}; a container needs /dev/net/tun and the capability NET_ADMIN")
    finally:
        running = [process for process in processes if process.poll() is None]
        for process in running:
            os.killpg(process.pid, signal.SIGTERM)  # torchrun ends what it started
        for process in running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=35)
            process.kill()
        for name in NAMES:
            subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Args, description=__doc__)))
