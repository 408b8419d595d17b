"""The trained agents of benchmark/agents in motion: the README's strip, the videos of docs/gallery.md, and the weights
of the CartPole that plays in that page.

    python benchmark/gallery.py                                play them all anew
    python benchmark/gallery.py --agents cartpole Taxi-v4      only these; the others' pictures stay as they are
    python benchmark/gallery.py --keep NAME runs/RUN           keep an agent first, as benchmark/agents/NAME

A kept agent is what is left of a run folder when all goes that `--evaluate` doesn't need: config.json, and checkpoints
without Adam's moments. By default that are the one nearest to a tenth and the last; of networks with checkpoints above
2 MB, which those for pixels have, all but the last are kept in half precision. Further run folders after the first give
their last checkpoint: a run of the same command and seed that ends after its first update, say, whose weights are the
long run's at that update. `--all-checkpoints` keeps all of the first one.
"""

import base64
import importlib.metadata
import itertools
import json
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import imageio.v2 as imageio
import imageio_ffmpeg
import numpy as np
import tyro
from PIL import Image, ImageOps
from shared import checkpoints, folded, portable, slim, write_whole

ROOT = Path(__file__).resolve().parent.parent
AGENTS = ROOT / "benchmark" / "agents"
# The README's six places
STRIP = ["CartPole", "LunarLanderContinuous", "HalfCheetah", "Breakout", "PongNoFrameskip", "Procgen"]
EPISODES = 10  # that each return is the mean of; the first of them is the one in the video
LARGE = 2_000_000  # bytes of a checkpoint above which all of an agent's but the last are kept in half precision
SECONDS = 12  # of an episode, at most, in the gallery
LONG = 60  # seconds of an episode that the strip shows from its middle on: games begin slowly
STRIP_SECONDS, STRIP_FPS, STRIP_SIZE = 6, 15, 200  # a square: the middle of a wide picture, the whole of a tall one


@dataclass
class Args:
    runs: tyro.conf.Positional[list[Path]] = field(default_factory=list)  # run folders of the agent to keep
    keep: str | None = None  # name of the agent to keep, from the run folders
    all_checkpoints: bool = False  # keep all checkpoints of the first run folder
    agents: list[str] = field(default_factory=list)  # agents to play; by default all


def fail(message: str):
    print(f"gallery.py: error: {' '.join(message.split())}", file=sys.stderr)
    raise SystemExit(2)


# --------------------------------------------------------------------------------------------------------- Kept agents


def keep(name: str, runs: list[Path], all_checkpoints: bool) -> None:
    """Makes benchmark/agents/NAME from run folders; see above."""
    if not re.fullmatch(r"[\w-]+", name):
        fail(f"--keep {name}: takes letters, digits, - and _, since it names a folder")
    for run in runs:
        if not (run / "config.json").is_file() or not checkpoints(run):
            fail(f"{run}: is no run folder with config.json and checkpoints; name one that has both")
        if not (ROOT / "cleanrl" / f"{(script := Agent(run).script)}.py").is_file():
            fail(
                f"{run}: was trained by {script}.py, which isn't in cleanrl/; put it there, so that the agent can play"
            )
    kept = checkpoints(runs[0])
    if not all_checkpoints:
        last = int(kept[-1].stem)
        kept = [min(kept, key=lambda path: abs(int(path.stem) - last / 10)), kept[-1]]
    try:
        contents = {kept[-1].name: slim(kept[-1])}
        half = len(contents[kept[-1].name]) > LARGE
        for path in [*(checkpoints(run)[-1] for run in runs[1:]), *kept[:-1]]:
            contents.setdefault(path.name, slim(path, half))
    except ValueError as damaged:
        fail(str(damaged))
    config = json.loads((runs[0] / "config.json").read_text())
    config["command"] = portable(config["command"])
    AGENTS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=AGENTS) as folder:  # an agent that is there goes when the new one is whole
        new = Path(folder, "agent")
        (new / "checkpoints").mkdir(parents=True)
        for file, content in contents.items():
            (new / "checkpoints" / file).write_bytes(content)
        (new / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        shutil.rmtree(AGENTS / name, ignore_errors=True)
        new.rename(AGENTS / name)


@dataclass
class Agent:
    """A folder of benchmark/agents."""

    folder: Path

    def __post_init__(self):
        try:
            self.name, self.config = self.folder.name, json.loads((self.folder / "config.json").read_text())
            self.arguments, words = self.config["arguments"], shlex.split(self.config["command"])
            (script,) = [i for i, word in enumerate(words) if word.endswith(".py")]
            self.env_id, self.versions = self.arguments["env_id"], self.config["versions"]
            self.steps = self.arguments["num_envs"] * self.arguments["num_steps"]  # of an update
        except (OSError, ValueError, TypeError, KeyError) as error:
            fail(f"{self.folder}: no kept agent ({type(error).__name__}: {error}); keep it again, or move it away")
        self.script = Path(words[script]).stem
        self.command = shlex.join(["python", f"cleanrl/{self.script}.py", *words[script + 1 :]])

    @property
    def engine(self) -> str:
        """The MuJoCo that it needs, where that is an older one than requirements.txt has: Pusher-v4 refuses a 3."""
        version = self.versions.get("mujoco", "")
        return f"mujoco=={version}" if version.startswith("2.") else ""

    @property
    def playable(self) -> bool:
        return not self.engine or importlib.metadata.version("mujoco").startswith("2.")

    @property
    def place(self) -> int:
        """Where its environment stands in the strip, or, past its end, that it doesn't."""
        family = "Procgen" if self.script == "ppo_procgen" else self.env_id
        return next((i for i, start in enumerate(STRIP) if family.startswith((start, f"ALE/{start}"))), len(STRIP))

    def stages(self) -> dict[str, Path]:
        """The checkpoints to show: the first, the one nearest to a tenth, the last; of two or one there is less."""
        found = checkpoints(self.folder)
        last = int(found[-1].stem)
        if len(found) < 3:
            return dict(zip(["start", "end"][-len(found) :], found, strict=True))
        tenth = min(found[1:-1], key=lambda path: abs(int(path.stem) - last / 10))
        return {"start": found[0], "tenth": tenth, "end": found[-1]}


def find_agents() -> list[Agent]:
    """One agent of each environment, in the order of the strip; of several the one with most checkpoints."""
    best = {}
    for path in sorted(AGENTS.glob("*/config.json")):
        agent = Agent(path.parent)
        if agent.env_id not in best or len(checkpoints(agent.folder)) > len(checkpoints(best[agent.env_id].folder)):
            best[agent.env_id] = agent
    return sorted(best.values(), key=lambda agent: (agent.place, agent.env_id))


# -------------------------------------------------------------------------------------------------------------- Motion


def play(agent: Agent, checkpoint: Path, folder: Path, seed: int = 1) -> tuple[list[float], Path]:
    """Types `--evaluate` for the checkpoint; returns the episodes' returns and the video of the first."""
    copy = folder / agent.name / "checkpoints" / checkpoint.name  # the video is written beside it
    copy.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(checkpoint, copy)
    command = [sys.executable, f"cleanrl/{agent.script}.py", "--evaluate", copy.parents[1], "--capture-video"]
    command += ["--episodes", str(EPISODES), "--seed", str(seed)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        fail(f"{checkpoint}: {done.stderr}")
    copy.unlink()  # the next checkpoint is played in the same folder
    returns = [float(x) for x in re.findall(r"^episode \d+: return (\S+),", done.stdout, re.M)]
    return returns[:EPISODES], copy.with_suffix(".mp4")  # Procgen's test levels follow those of training


def write_clip(video: Path, clip: Path) -> float:
    """The video's first seconds, small, for a page; returns the seconds of the whole."""
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-y", "-v", "error", "-i", video, "-t", str(SECONDS)]
    size = "scale='min(400,iw)':-2:flags=lanczos,fps='min(30,source_fps)'"
    words = f"-vf {size} -c:v libx264 -crf 30 -preset veryslow -pix_fmt yuv420p -an -movflags +faststart"
    subprocess.run([*command, *shlex.split(words, posix=False), clip], check=True)
    with imageio.get_reader(video) as reader:
        return reader.get_meta_data()["duration"]


def write_strip(video: Path, picture: Path) -> None:
    """The video's first seconds, or of a long one those in its middle, as an animated WebP that repeats for ever."""
    pictures = []
    with imageio.get_reader(video) as reader:
        facts = reader.get_meta_data()
        resize = ImageOps.fit if facts["size"][0] > facts["size"][1] else partial(ImageOps.pad, color="black")
        first = int(facts["duration"] / 2 * facts["fps"]) if facts["duration"] > LONG else 0
        for i, frame in enumerate(itertools.islice(reader, first, first + int(STRIP_SECONDS * facts["fps"]))):
            if i >= len(pictures) * facts["fps"] / STRIP_FPS:
                pictures.append(resize(Image.fromarray(frame), (STRIP_SIZE, STRIP_SIZE), Image.Resampling.LANCZOS))
    options = {"save_all": True, "duration": round(1000 / STRIP_FPS), "loop": 0, "quality": 45, "method": 6}
    pictures[0].save(picture, append_images=pictures[1:], minimize_size=True, **options)


def number(x: float) -> str:
    digits = 0 if abs(x) >= 100 or x == round(x) else 1
    return f"{x:,.{digits}f}".replace("-", "−")


def show(agent: Agent) -> None:
    """Plays an agent, and writes its videos and what they show, docs/videos/NAME.json; and its place of the strip."""
    videos, facts = ROOT / "docs" / "videos", {}
    videos.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for stage, checkpoint in agent.stages().items():
            returns, video = play(agent, checkpoint, Path(folder))
            seconds = write_clip(video, videos / f"{agent.name}_{stage}.mp4")
            steps = int(checkpoint.stem) * agent.steps
            facts[stage] = {"steps": steps, "returns": returns, "seconds": round(seconds, 1)}
            print(f"{agent.name}, {stage}: {steps:,} steps, return {np.mean(returns):.2f} ± {np.std(returns):.2f}")
            if stage == "end" and agent.place < len(STRIP):
                seed, mean = 1, np.mean(returns)
                while abs(returns[0] - mean) > np.median(np.abs(returns - mean)):  # an episode unlike most
                    returns, video = play(agent, checkpoint, Path(folder), seed := seed + 1)
                write_strip(video, ROOT / "docs" / "images" / f"strip_{agent.name}.webp")
    write_whole(videos / f"{agent.name}.json", json.dumps(facts) + "\n")


# --------------------------------------------------------------------------------------------------------------- Pages


def section(agent: Agent) -> str:
    """An agent's part of docs/gallery.md, from docs/videos/NAME.json."""
    figures = []
    facts = json.loads((ROOT / "docs" / "videos" / f"{agent.name}.json").read_text())
    planned = agent.arguments["total_timesteps"] // agent.steps * agent.steps
    titles = {stage: f"At {fact['steps'] / planned:.0%}" for stage, fact in facts.items()}
    titles["start"] = "At the start"
    if facts["end"]["steps"] == planned:  # or less, where the run was stopped
        titles["end"] = "At the end"
    for stage, fact in facts.items():
        cut = f" (its first {SECONDS} s of {fact['seconds']:.0f})" if fact["seconds"] > SECONDS + 1 else ""
        shown = min(2, fact["seconds"] / 2)  # what stands there before a click: not three times the first frame
        video = f"videos/{agent.name}_{stage}.mp4#t={shown:.3g}"
        figures.append(
            f'<figure><video src="{video}" muted playsinline preload="metadata"></video>\n'
            f"<figcaption><b>{titles[stage]}</b>: {fact['steps']:,} steps. This episode: {number(fact['returns'][0])}"
            f"{cut}. Mean of {EPISODES}: {number(np.mean(fact['returns']))}</figcaption></figure>\n"
        )
    needs = agent.engine and f", with {agent.engine}"
    commands = f"{folded(agent.command)}   # trained it{needs}\n"
    commands += f"python cleanrl/{agent.script}.py --evaluate benchmark/agents/{agent.name} --capture-video\n"
    return (
        f'## {agent.env_id}\n\n<div class="motion" title="click: all play">\n{"".join(figures)}</div>\n\n'
        f"<!-- tested: tests/test_gallery.py -->\n```bash\n{commands}```\n"
    )


def between(text: str, name: str, content: str) -> str:
    """The text with what stands between its comments `<!-- name -->` and `<!-- end of name -->` replaced."""
    return re.sub(rf"(<!-- {name} -->\n).*?(<!-- end of {name} -->)", lambda m: m[1] + content + m[2], text, flags=re.S)


def write_pages(agents: list[Agent], root: Path = ROOT) -> None:
    """The README's strip and the gallery's sections, of the agents that have been played."""
    gallery, readme = root / "docs" / "gallery.md", root / "README.md"
    write_whole(gallery, between(gallery.read_text(), "gallery", "\n" + "\n".join(map(section, agents)) + "\n"))
    inside = [agent for agent in agents if agent.place < len(STRIP)]
    pictures = "".join(
        f'<img src="docs/images/strip_{agent.name}.webp" alt="{agent.env_id}" width="130">\n' for agent in inside
    )
    write_whole(readme, between(readme.read_text(), "strip", f"<p>\n{pictures}</p>\n"))


def write_weights(agent: Agent, path: Path) -> None:
    """The checkpoints of a ppo.py agent as JavaScript: layer by layer weight (outputs, inputs) and bias, as bytes."""
    import torch

    steps, weights = [], []
    for checkpoint in checkpoints(agent.folder):
        model = torch.load(checkpoint, map_location="cpu", weights_only=True)["model"]
        parts = {name: [x for key, x in model.items() if key.startswith(name)] for name in ("actor", "critic")}
        values = torch.cat([x.flatten() for name in ("actor", "critic") for x in parts[name]]).numpy()
        weights.append(base64.b64encode(values.astype("<f4").tobytes()).decode())
        steps.append(int(checkpoint.stem) * agent.steps)
    sizes = {name: [layers[0].shape[1], *(len(bias) for bias in layers[1::2])] for name, layers in parts.items()}
    content = {"steps": steps, "sizes": sizes, "weights": weights}
    write_whole(path, f"// Made by benchmark/gallery.py\nconst CARTPOLE = {json.dumps(content, indent=0)};\n")


def main(args: Args) -> None:
    if bool(args.keep) != bool(args.runs):
        fail("--keep NAME and run folders go together; type both or neither")
    if args.keep:
        keep(args.keep, args.runs, args.all_checkpoints)
    agents = find_agents()
    if args.keep and args.keep not in {agent.name for agent in agents}:
        print(f"{args.keep} is kept and not shown: another agent of its environment has as many checkpoints or more")
    if unknown := set(args.agents) - {agent.name for agent in agents}:
        fail(f"--agents {' '.join(sorted(unknown))}: not in the gallery, which has {' '.join(a.name for a in agents)}")
    for agent in agents:
        if (args.agents or args.keep) and agent.name not in (*args.agents, args.keep):
            continue
        if not agent.playable:
            print(f"{agent.name}: needs {agent.engine}, which docs/ppo_continuous_action.md installs; it isn't played")
        else:
            show(agent)
            if agent.name == "cartpole":
                write_weights(agent, ROOT / "docs" / "javascripts" / "cartpole_weights.js")
    write_pages([agent for agent in agents if (ROOT / "docs" / "videos" / f"{agent.name}.json").is_file()])


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
