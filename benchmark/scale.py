"""What an update costs as environments and processes grow: a model of a few numbers, and what it says of more machines.

    python benchmark/scale.py           # the tables of docs/scale.md, from benchmark/results/growth
    python benchmark/scale.py --links   # first measures two processes over three links (Linux, as root; ten minutes)

An update of `num_steps` T, with N environments a process, B samples in a process's minibatch, and P processes takes

    T (e₀ + e₁ N)  +  T (p₀ + p₁ N)  +  epochs · minibatches · (u₀ + u₁ B + r(P))

seconds: stepping the environments, the policy's calls and what else a rollout does, and the minibatches, each with an
all-reduce of the gradient. e, p and u are fitted, with relative least squares and none below 0, to the medians that
`throughput.py --vary num-envs` measured; a ring's all-reduce of S bytes over a link of rate β and delay α is

    r(P) = 2 (P - 1) α + 2 (P - 1) / P · S / β
"""

import contextlib
import csv
import json
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import report  # first: it says what to install
import tyro
from report import markdown
from scipy.optimize import nnls
from throughput import PARTS, ROOT, describe_machine

RESULTS = ROOT / "benchmark" / "results" / "growth"
LINKS_FILE = ROOT / "benchmark" / "results" / "links.json"
PAGE = ROOT / "docs" / "scale.md"
GRADIENT = 4 * 1_686_693  # bytes of what ppo_atari_multigpu.py reduces on Breakout: the weights of its network
LINKS = {  # of two processes: megabits a second and milliseconds of delay, None: the loopback as it is
    "loopback": None, "1 Gbit/s, 0.2 ms": (1000.0, 0.2), "100 Mbit/s, 2 ms": (100.0, 2.0),
}  # fmt: skip
VARIED = ("processes", "num-envs")  # of ppo_atari_multigpu.py
UPDATES = 8  # of a training over a link, of which the last six are timed
PAPER = {  # name: machines, GPUs of a machine, α in s and β in bytes/s of the slowest link of the ring
    "1 GPU": (1, 1, 0.0, 1.0),
    "8 GPUs, one machine (NVLink: 10 µs, 200 GB/s)": (1, 8, 10e-6, 200e9),
    "8 machines of 8 GPUs (100 Gbit/s: 30 µs, 12 GB/s)": (8, 8, 30e-6, 12e9),
    "64 machines of 8 GPUs (100 Gbit/s: 30 µs, 12 GB/s)": (64, 8, 30e-6, 12e9),
}
GPU_UPDATE = 1024 / 6809  # s; LeanRL's published 6,809 steps/s of 8 games on an H100, as updates of 8 · 128 steps


@dataclass
class Args:
    links: bool = False  # measure all-reduce and training of two processes over LINKS first
    rounds: int = 3  # of these measurements, in turns
    all_reduce: bool = False  # print the milliseconds of one, as --links has torchrun start it


def fail(message: str):
    """Ends the program with one line on stderr and status 2."""
    print(f"scale.py: error: {' '.join(message.split())}", file=sys.stderr)
    raise SystemExit(2)


# --------------------------------------------------------------------------------------------------------------- Model
def per_update(part: str, arguments: dict) -> tuple[float, float]:
    """How often an update pays for a call of the part, and for each unit that the call grows with."""
    N, T = arguments["num_envs"], arguments["num_steps"]
    passes = arguments["update_epochs"] * arguments["num_minibatches"]
    return (passes, arguments["update_epochs"] * N * T) if part == "update" else (T, T * N)


def fit(measured: dict) -> dict[str, np.ndarray]:
    """Of each part the seconds of a call, and of each environment or sample in it."""
    result, first = {}, measured["rounds"][0]
    for part in PARTS:
        seconds = np.array([1e-3 * point["script"]["ms"][part] for point in measured["medians"].values()])
        counts = np.array([per_update(part, one["script"]["arguments"]) for one in first.values()])
        result[part] = nnls(counts / seconds[:, None], np.ones(len(seconds)))[0]
    return result


def predict(costs: dict[str, np.ndarray], arguments: dict) -> float:
    """Seconds of an update of one process."""
    return sum(float(np.dot(per_update(part, arguments), cost)) for part, cost in costs.items())


def ring(processes: int, delay: float, rate: float, size: float = GRADIENT) -> float:
    """Seconds of an all-reduce of `size` bytes over links of `delay` seconds and `rate` bytes a second."""
    return 2 * (processes - 1) * delay + 2 * (processes - 1) / processes * size / rate


# -------------------------------------------------------------------------------------------------------------- Tables
def percent(ratio: float) -> str:
    return f"{ratio - 1:+.0%}".replace("-", "−") if abs(ratio - 1) >= 0.005 else "±0%"


def model_table(files: list[Path]) -> str:
    """The costs of each script, and how far the model is from each point that was measured."""
    rows = []
    for file in files:
        measured = json.loads(file.read_text())
        costs, errors = fit(measured), []
        for value, point in measured["medians"].items():
            arguments = measured["rounds"][0][value]["script"]["arguments"]
            error = percent(point["script"]["ms_per_update"] / (1e3 * predict(costs, arguments)))
            errors.append(f"{value}: {error}")
        script = f"{measured['options']['script']}.py {measured['options']['arguments']}".strip()
        numbers = [f"{x:,.0f}" if (x := 1e6 * each) >= 100 else f"{x:.3g}" for part in PARTS for each in costs[part]]
        rows.append([script, *numbers, ", ".join(errors)])
    header = ["script", "e₀, µs", "e₁", "p₀", "p₁", "u₀", "u₁", "steps/s, model against measured, by environments"]
    return markdown(header, rows)


def processes_table(several: dict, alone: dict, all_reduce_ms: float) -> str:
    """The update of P processes, from that of one process with its share of the environments and the all-reduce."""
    costs, rows = fit(alone), []
    for value, point in several["medians"].items():
        arguments, processes = several["rounds"][0][value]["script"]["arguments"], int(value)
        seconds = predict(costs, arguments | {"num_envs": arguments["num_envs"] // processes})
        if processes > 1:
            seconds += per_update("update", arguments)[0] * 1e-3 * all_reduce_ms
        ms = point["script"]["ms_per_update"]
        steps = arguments["num_envs"] * arguments["num_steps"]
        rows.append([value, f"{steps / seconds:,.0f}", f"{1e3 * steps / ms:,.0f}", percent(ms / (1e3 * seconds))])
    return markdown(["processes", "steps/s, model", "measured", "model against measured"], rows)


def links_table(measured: dict) -> str:
    """Over each link: the all-reduce and the speed of two processes, as the model has them and as measured."""
    arguments, rows = measured["arguments"], []
    passes = arguments["update_epochs"] * arguments["num_minibatches"]
    steps = arguments["num_envs"] * arguments["num_steps"]
    base = measured["links"]["loopback"]
    update = steps / statistics.median(base["steps_per_second"])
    for name, one in measured["links"].items():
        extra = 0.0 if LINKS[name] is None else ring(2, 1e-3 * LINKS[name][1], 1e6 / 8 * LINKS[name][0])
        reduce, speed = statistics.median(one["all_reduce_ms"]), statistics.median(one["steps_per_second"])
        predicted = steps / (update + passes * extra)
        modelled = [f"{statistics.median(base['all_reduce_ms']) + 1e3 * extra:.0f} ms", f"{predicted:,.0f}"]
        error = percent(predicted / speed)
        if LINKS[name] is None:  # what the others are predicted from
            *modelled, error = "–", "–", "–"
        span = f"{speed:,.0f} ({min(one['steps_per_second']):,.0f}–{max(one['steps_per_second']):,.0f})"
        rows.append([name, modelled[0], f"{reduce:.0f} ms", modelled[1], span, error])
    header = ["link", "all-reduce, model", "measured", "steps/s, model", "measured (range)", "model against measured"]
    return markdown(header, rows)


def paper_table(passes: int = 16, steps: int = 1024) -> str:
    """Weak scaling on paper: every GPU adds an update of its own size, and waits for `passes` all-reduces."""
    rows = []
    for name, (machines, gpus, delay, rate) in PAPER.items():
        processes = machines * gpus
        cells = [f"{processes:,}"]
        for calls in (passes, passes // 4):
            seconds = GPU_UPDATE + calls * (ring(processes, delay, rate) if processes > 1 else 0.0)
            speed = processes * steps / seconds
            cells += [f"{speed:,.0f}", f"{GPU_UPDATE / seconds:.0%}"]
        rows.append([name, *cells])
    header = ["", "GPUs", "steps/s", "of linear", "steps/s with a quarter of the minibatches", "of linear"]
    return markdown(header, rows)


# --------------------------------------------------------------------------------------------------------------- Links
TRAINING = "--num-threads 1 --backend gloo --no-cuda --checkpoints 1"


def all_reduce(count: int = 20) -> None:
    """Prints the milliseconds of an all-reduce of the gradient; torchrun starts this in each process."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    gradient, times = torch.ones(GRADIENT // 4), []
    for _ in range(count):
        dist.barrier()
        start = time.perf_counter()
        dist.all_reduce(gradient)
        times.append(1e3 * (time.perf_counter() - start))
    if dist.get_rank() == 0:
        print(f"all-reduce: {statistics.median(times)}")
    dist.destroy_process_group()


def over_link(link: tuple[float, float] | None, command: str) -> str:
    """What the first of two processes prints, each on a machine of its own as far as they can tell."""
    nodes = "--nnodes=2 --nproc_per_node=1 --node-rank={rank} --master-addr={address} --master-port=29731"
    python = shlex.quote(sys.executable)
    typed = f"{python} -m torch.distributed.run {nodes} {command}"
    if link is None:
        typed = f"{python} -m torch.distributed.run --standalone --nnodes=1 --nproc_per_node=2 {command}"
        words = ["sh", "-c", typed]
    else:
        tool = str(ROOT / "benchmark" / "slow_link.py")
        words = [sys.executable, tool, "--mbit", str(link[0]), "--ms", str(link[1]), "--command", typed]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, capture_output=True, text=True, env=environment)
    if done.returncode:
        fail(f"{typed}: status {done.returncode}: {done.stderr[-600:]}")
    return done.stdout


def measure_links(rounds: int) -> dict:
    """All-reduce and training of two processes over each link, in turns."""
    script = str(ROOT / "cleanrl" / "ppo_atari_multigpu.py")
    found = {name: {"all_reduce_ms": [], "steps_per_second": []} for name in LINKS}
    result = {"rounds": rounds, **describe_machine(), "links": found}
    for number in range(rounds):
        for name, link in LINKS.items():
            printed = over_link(link, f"{shlex.quote(str(Path(__file__).resolve()))} --all-reduce")
            found[name]["all_reduce_ms"].append(float(printed.partition("all-reduce: ")[2].split()[0]))
            with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
                over_link(link, f"{shlex.quote(script)} --total-timesteps {UPDATES * 1024} {TRAINING}")
                (run,) = Path("runs").iterdir()
                result["arguments"] = json.loads((run / "config.json").read_text())["arguments"]
                with open(run / "metrics.csv", newline="") as file:
                    ends = [(int(row["global_step"]), float(row["charts/SPS"])) for row in csv.DictReader(file)]
            (steps, speed), (all_steps, mean_speed) = ends[1], ends[-1]  # each the mean since the start
            found[name]["steps_per_second"].append((all_steps - steps) / (all_steps / mean_speed - steps / speed))
            print(f"round {number + 1}, {name}: { ({k: v[-1] for k, v in found[name].items()}) }", file=sys.stderr)
    return result


def tables() -> dict[str, str]:
    """Those of the page, by their names there."""
    files = [
        file for file in RESULTS.glob("*_num-envs.json") if json.loads(file.read_text())["options"]["processes"] == 1
    ]
    files.sort(key=lambda file: (len(file.stem), file.stem))
    made = {"scale_model": model_table(files), "scale_paper": paper_table()}
    if LINKS_FILE.is_file():
        links = json.loads(LINKS_FILE.read_text())
        several, alone = (json.loads((RESULTS / f"ppo_atari_multigpu_{name}.json").read_text()) for name in VARIED)
        loopback = statistics.median(links["links"]["loopback"]["all_reduce_ms"])
        made["scale_links"], made["scale_processes"] = links_table(links), processes_table(several, alone, loopback)
    return made


def main(args: Args) -> None:
    if args.all_reduce and "RANK" not in os.environ:
        fail("--all-reduce: is for torchrun, which --links starts; use that")
    if args.links and (sys.platform != "linux" or os.geteuid() or not shutil.which("ip") or args.rounds < 1):
        fail(f"--links --rounds {args.rounds}: needs Linux, root, the program ip, and one round or more; try sudo")
    if args.all_reduce:
        all_reduce()
        return
    if args.links:
        report.write_whole(LINKS_FILE, json.dumps(measure_links(args.rounds), indent=1) + "\n")
    report.write_whole(PAGE, report.place_tables(PAGE.read_text(), tables()))
    print("\n".join(tables().values()))


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
