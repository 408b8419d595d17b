"""benchmark/scale.py and slow_link.py: the model of an update's cost, and two machines on one."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import ppo_atari_multigpu
import pytest
import report
import scale
import slow_link

ROOT = Path(__file__).parents[1]
COSTS = {"environment": [1e-5, 3e-6], "policy": [2e-5, 1e-6], "update": [5e-4, 2e-7]}


def measured(values, costs=COSTS):
    """What throughput.py --vary num-envs would write where an update takes these costs."""
    points, first = {}, {}
    for value in values:
        arguments = {"num_envs": value, "num_steps": 128, "update_epochs": 4, "num_minibatches": 4}
        ms = {
            "environment": 1e3 * 128 * (costs["environment"][0] + costs["environment"][1] * value),
            "policy": 1e3 * 128 * (costs["policy"][0] + costs["policy"][1] * value),
            "update": 1e3 * 16 * (costs["update"][0] + costs["update"][1] * 128 * value / 4),
        }
        points[str(value)] = {"script": {"ms": ms, "ms_per_update": sum(ms.values())}}
        first[str(value)] = {"script": {"arguments": arguments}}
    return {"medians": points, "rounds": [first], "options": {"script": "toy", "arguments": ""}}


def test_the_fit_finds_the_costs_that_made_the_measurement():
    costs = scale.fit(measured([4, 16, 64]))
    assert {part: pytest.approx(cost) for part, cost in COSTS.items()} == {k: list(v) for k, v in costs.items()}
    arguments = {"num_envs": 256, "num_steps": 128, "update_epochs": 4, "num_minibatches": 4}
    expected = measured([256])["medians"]["256"]["script"]["ms_per_update"]
    assert 1e3 * scale.predict(costs, arguments) == pytest.approx(expected)


def test_no_cost_is_below_zero():
    costs = scale.fit(measured([1, 2, 4], COSTS | {"policy": [-1e-6, 2e-6]}))
    assert costs["policy"][0] == 0 and costs["policy"][1] > 0


def test_a_ring_sends_almost_twice_the_bytes_however_long_it_is():
    assert scale.ring(1, 1.0, 1.0, size=8) == 0
    assert scale.ring(2, 0.5, 4.0, size=8) == 2 * 0.5 + 8 / 4
    assert scale.ring(1001, 0.0, 1.0, size=8) == pytest.approx(16, rel=1e-2)


def test_the_gradient_is_that_of_breakouts_network():
    agent = ppo_atari_multigpu.Agent(4)
    assert 4 * sum(parameter.numel() for parameter in agent.parameters()) == scale.GRADIENT


def test_the_page_follows_from_the_measurements():
    """And the model is within 20% of every point that was measured."""
    tables = scale.tables()
    page = (ROOT / "docs" / "scale.md").read_text()
    assert report.place_tables(page, tables) == page and all(table in page for table in tables.values())
    errors = [int(x) for x in re.findall(r"[+−±](\d+)%", "".join(tables.values()))]
    assert len(errors) >= 20 and max(errors) <= 20


TALK = """
import socket, sys, time
if sys.argv[1] == "0":
    with socket.create_server((sys.argv[2], 9)) as server:
        other, _ = server.accept()
        while data := other.recv(1 << 16):
            if data.endswith(b"?"):
                other.sendall(b"!")
else:
    for _ in range(100):
        try:
            other = socket.create_connection((sys.argv[2], 9))
            break
        except OSError:
            time.sleep(0.05)
    for size in (1, 1_000_000):
        start = time.perf_counter()
        other.sendall(b"." * (size - 1) + b"?")
        assert other.recv(1) == b"!"
        print(time.perf_counter() - start)
    other.close()
"""


def link(folder, command):
    words = [sys.executable, str(ROOT / "benchmark" / "slow_link.py"), "--mbit", "20", "--ms", "25"]
    return subprocess.run([*words, "--command", command], cwd=folder, capture_output=True, text=True, timeout=60)


@pytest.fixture
def namespaces():
    if os.geteuid() or not shutil.which("ip") or not Path("/dev/net/tun").exists():
        pytest.skip("needs Linux, root, the program ip and /dev/net/tun")
    if subprocess.run(["ip", "netns", "add", "ppo-try"], capture_output=True).returncode:
        pytest.skip("this container may make no network namespace")
    subprocess.run(["ip", "netns", "del", "ppo-try"], check=True)


def test_a_link_has_its_delay_and_its_rate(namespaces, tmp_path):
    (tmp_path / "talk.py").write_text(TALK)
    done = link(tmp_path, f"{sys.executable} talk.py {{rank}} {{address}}")
    assert done.returncode == 0, done.stderr
    there_and_back, megabyte = map(float, done.stdout.split())
    assert 0.05 <= there_and_back < 0.15
    assert 0.4 <= megabyte < 0.9  # 8 of 20 megabits a second, and the delay
    left = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
    assert "ppo-link" not in left


def test_a_command_that_fails_ends_the_link_with_its_status(namespaces, tmp_path):
    assert link(tmp_path, "test {rank} = 0 || exit 3; sleep 61").returncode == 3  # within a minute
    left = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
    assert "ppo-link" not in left
    assert not subprocess.run(["pgrep", "-fx", "sleep 61"], capture_output=True).stdout


def test_without_the_device_it_is_said_in_one_line(monkeypatch, capsys):
    def without(*_):
        raise FileNotFoundError(2, "No such file or directory", "/dev/net/tun")

    monkeypatch.setattr(slow_link, "open_end", without)
    monkeypatch.setattr(slow_link.os, "geteuid", lambda: 0)
    monkeypatch.setattr(slow_link.shutil, "which", lambda name: "/sbin/ip")
    monkeypatch.setattr(slow_link.subprocess, "run", lambda *_, **__: None)
    monkeypatch.setattr(slow_link.signal, "signal", lambda *_: None)
    assert slow_link.main(slow_link.Args(command="true")) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "/dev/net/tun" in line and "NET_ADMIN" in line


@pytest.mark.parametrize(
    ("tool", "typed", "said"),
    [
        ("slow_link.py", "--command true --mbit 0", "--mbit 0.0"),
        ("slow_link.py", "--command true --ms -1", "--ms -1.0"),
        ("slow_link.py", "--command ${HOME}", "only {rank} and {address} are filled in"),
        ("scale.py", "--links --rounds 0", "--rounds 0"),
        ("scale.py", "--all-reduce", "torchrun"),
    ],
)
def test_wrong_use_is_one_line(tool, typed, said, namespaces, tmp_path):
    command = [sys.executable, str(ROOT / "benchmark" / tool), *typed.split()]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and said in done.stderr, done
    assert done.stderr.startswith(f"{tool}: error: ") and not done.stdout
