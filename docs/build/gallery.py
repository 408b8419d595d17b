"""Recipes, which are hyperparameters for an environment, confirmed on fresh seeds; and trained agents to watch.

    python docs/build/gallery.py rebuild                            fills docs/recipes.md, docs/gallery.md and README.md
    python docs/build/gallery.py keep NAME --run-folder runs/RUN    keeps the agent of a run
    python docs/build/gallery.py play                               plays the gallery's agents: videos, README's strip
    python docs/build/gallery.py play NAME                          only this one, which then is in the gallery

Recipes are in benchmark/recipes.toml. What they reached is read from the kept runs: sweep.py makes those, with
--exp-name recipes and five seeds by which nothing was chosen, and report.py --keep keeps them. Kept runs of a recipe
that was changed afterwards don't count. Agents are in benchmark/agents: a run's config.json and its last checkpoint,
without the optimizer, and of networks above 2 MB in half precision.
"""

import csv
import io
import json
import shlex
import shutil
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import blocks
import numpy as np
import tyro
from blocks import ROOT
from command_line import UserError, one_line_errors
from files import write_atomically
from intervals import mean_interval
from kept import RESULTS, kept_runs, portable
from pages import markdown, signed, spread
from runs import IN_TABLES, Run, checkpoints, defined_in, identity

RECIPES = ROOT / "benchmark" / "recipes.toml"
AGENTS = ROOT / "benchmark" / "agents"
DOCS = ROOT / "docs"
README = ROOT / "README.md"
EXP_NAME = "recipes"  # of the runs behind the table
SEEDS = 5  # of those runs
LARGE = 2_000_000  # bytes of a checkpoint above which it is kept in half precision
KEPT_EPISODES = 100  # in evaluation.json
EPISODES = 10  # of which the gallery gives the mean; the first of them is in the video
CLIP_SECONDS = 12  # of an episode, at most, in the gallery
LONG = 60  # seconds of an episode that is shown from its middle on: games begin slowly
STRIP = ["CartPole", "LunarLanderContinuous", "HalfCheetah", "Breakout", "PongNoFrameskip", "Walker2d"]  # in the README
STRIP_SIZE = 200  # pixels


@dataclass
class Args:
    action: tyro.conf.Positional[Literal["rebuild", "keep", "play"]]  # what to do
    name: tyro.conf.Positional[str | None] = None  # of an agent
    run_folder: Path | None = None  # run whose agent is kept


# -------------------------------------------------------------------------------------------------------------- Recipes
def read_recipes() -> dict[str, dict]:
    return tomllib.loads(RECIPES.read_text("utf-8"))


def command(recipe: dict, env_id: str, *more: str) -> list[str]:
    return ["python", f"cleanrl/{recipe['script']}.py", "--env-id", env_id, *more, *recipe["arguments"].split()]


def is_of(run: Run, env_id: str, recipe: dict) -> bool:
    """Whether a run is one of the recipe's: its script, arguments and seeds, of any version of the script."""
    kind = defined_in(ROOT / "cleanrl" / f"{recipe['script']}.py", "Args")
    arguments = asdict(tyro.cli(kind, args=recipe["arguments"].split()))
    usual = asdict(kind())
    own = identity(arguments)
    settings = {name: own[name] for name in own.keys() - IN_TABLES if own[name] != usual[name]}
    same = (run.script, run.env_id, run.settings) == (recipe["script"], env_id, settings)
    same = same and run.arguments["total_timesteps"] == arguments["total_timesteps"]
    first = recipe.get("first_seed", 101)
    return same and first <= run.seed < first + SEEDS


def newest(runs: list[Run]) -> list[Run]:
    """Of each seed the run that began last, as the ends of the names say."""
    of_seed = {}
    for run in sorted(runs, key=lambda run: run.name.rpartition("__")[2]):
        of_seed[run.seed] = run
    return [of_seed[seed] for seed in sorted(of_seed)]


def recipes_tables() -> dict[str, str]:
    """Markdown by the name of its block in docs/recipes.md."""
    runs = [run for run in kept_runs("results", RESULTS) if run.exp_name == EXP_NAME]
    reached = []
    commands = []
    for env_id, recipe in read_recipes().items():
        own = [run for run in runs if run.env_id == env_id and is_of(run, env_id, recipe)]
        goal = f"{recipe['goal']:g}".replace("-", "−")
        if not own:
            reached.append([env_id, "–", "–", "not measured", goal, "–"])
            continue
        mean, low, _ = mean_interval([run.result for run in newest(own)])
        verdict = "no"
        if mean >= recipe["goal"]:
            verdict = "yes" if low >= recipe["goal"] else "on average"
        reached.append([env_id, *facts_of(own), goal, verdict])
        commands.append(recipe_section(env_id, recipe))
    return {
        "recipes": markdown(["environment", "steps", "seeds", "return", "goal", "reached"], reached),
        "agents": markdown(["agent", "script", "steps", "seed", "return"], agents_rows()),
        "commands": "\n" + "\n".join(commands) + "\n",
    }


def recipe_section(env_id: str, recipe: dict) -> str:
    """A recipe's part of docs/recipes.md: its agent, the curves of its runs by drawings.py, and its command."""
    name = env_id.replace("/", "_")  # of the agent
    curves = f"Mean return of the last 100 episodes of {env_id}, a line for each seed"
    typed = folded(shlex.join(command(recipe, env_id)))
    return (
        f'### {env_id}\n\n<div class="motion recipe" title="click: it plays">\n'
        f"{clip_link(f'{name}_end', f'{env_id}, trained')}\n"
        f'<img alt="{curves}" src="images/recipe_{name}.svg" width="420">\n</div>\n\n'
        f"<!-- long: a whole training -->\n```bash\n{typed}\n```\n"
    )


def clip_link(name: str, says: str) -> str:
    """A clip's poster that links to it: GitHub shows no videos. docs/hooks.py makes a video of it for the site."""
    return f'<a href="videos/{name}.mp4"><img src="videos/{name}.webp" alt="{says}" width="260"></a>'


def agents_rows() -> list[list[str]]:
    """What the kept agents return, those of recipes first; mean and spread are those that --evaluate prints."""
    rows = []
    for agent in sorted(all_agents(), key=lambda agent: (agent.name.startswith("ppo_"), agent.name)):
        returns = agent.returns
        if returns:
            played = f"{signed(np.mean(returns))} ± {np.std(returns):.2f}"
            seed = str(agent.arguments["seed"])
            rows.append([f"`{agent.name}`", f"`{agent.script}.py`", f"{agent.last_step:,}", seed, played])
    return rows


def facts_of(runs: list[Run]) -> list[str]:
    """Steps, seeds, and mean ± standard deviation of a recipe's runs."""
    runs = newest(runs)
    seeds = f"{runs[0].seed}–{runs[-1].seed}"
    return [f"{runs[0].total:,}", seeds, spread([run.result for run in runs])]


def folded(typed: str) -> str:
    """A command line broken before options into lines that fit a page."""
    parts = typed.split(" --")
    lines = [parts[0]]
    for part in parts[1:]:
        if len(f"{lines[-1]} --{part}") > 96:
            lines.append("   ")
        lines[-1] += f" --{part}"
    return " \\\n".join(lines)


# --------------------------------------------------------------------------------------------------------------- Agents
@dataclass
class Agent:
    """A folder of benchmark/agents."""

    folder: Path

    def __post_init__(self):
        self.name = self.folder.name
        self.config = json.loads((self.folder / "config.json").read_text("utf-8"))
        self.script = self.config["script"]
        self.arguments = self.config["arguments"]
        self.env_id = self.arguments["env_id"]
        self.batch_size = self.arguments["num_envs"] * self.arguments["num_steps"]
        self.checkpoint = checkpoints(self.folder)[-1]
        self.last_step = int(self.checkpoint.stem) * self.batch_size
        places = [i for i, start in enumerate(STRIP) if self.env_id.removeprefix("ALE/").startswith(start)]
        self.place = min(places, default=len(STRIP))  # in the README's strip, or behind it
        evaluation = self.folder / "evaluation.json"
        self.returns = json.loads(evaluation.read_text("utf-8"))["returns"] if evaluation.is_file() else []
        mujoco = self.config["versions"].get("mujoco", "")
        self.engine = f"mujoco=={mujoco}" if mujoco.startswith("2.") else ""  # Pusher-v4 refuses a 3

    @property
    def facts_file(self) -> Path:
        """What its videos show; an agent that has it is in the gallery."""
        return DOCS / "videos" / f"{self.name}.json"


def all_agents() -> list[Agent]:
    return [Agent(path.parent) for path in sorted(AGENTS.glob("*/config.json"))]


def gallery_agents() -> list[Agent]:
    """Those of the gallery, in the order of the strip and then of their environments."""
    shown = [agent for agent in all_agents() if agent.facts_file.is_file()]
    return sorted(shown, key=lambda agent: (agent.place, agent.env_id))


def slim(checkpoint: Path) -> bytes:
    """A checkpoint without its optimizer, in half precision if it is LARGE."""
    content = io.BytesIO()
    if checkpoint.suffix == ".npz":
        with np.load(checkpoint, allow_pickle=False) as arrays:
            kept = {name: arrays[name] for name in arrays.files if not name.startswith("optimizer")}
        np.savez_compressed(content, **kept)
        return content.getvalue()
    import torch

    state = torch.load(checkpoint, map_location="cpu", weights_only=True)
    del state["optimizer"]
    if sum(x.numel() * x.element_size() for x in state["model"].values()) > LARGE:
        state["model"] = {name: x.half() if x.is_floating_point() else x for name, x in state["model"].items()}
    torch.save(state, content)
    return content.getvalue()


def keep_agent(name: str, run: Path) -> None:
    """Makes benchmark/agents/NAME from a run folder, and plays KEPT_EPISODES."""
    if not name.replace("-", "_").isidentifier():
        raise UserError(f"{name}: takes letters, digits, - and _, since it names a folder")
    if not (run / "config.json").is_file() or not checkpoints(run):
        raise UserError(f"{run}: is no run folder with config.json and checkpoints; name one that has both")
    config = json.loads((run / "config.json").read_text("utf-8"))
    if config["script"] not in {file.stem for file in (ROOT / "cleanrl").glob("*.py")}:
        raise UserError(
            f"{run}: was trained by {config['script']}.py; put it into cleanrl/, so that the agent can play"
        )
    config["command"] = portable(config["command"])
    last = checkpoints(run)[-1]
    AGENTS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=AGENTS) as folder:  # an agent that is there goes when the new one is whole
        new = Path(folder, "agent")
        write_atomically(new / "checkpoints" / last.name, slim(last))
        write_atomically(new / "config.json", json.dumps(config, indent=2) + "\n")
        returns = play(Agent(new), KEPT_EPISODES, seed=1)
        played = {"run": run.resolve().name, "seed": 1, "returns": returns}
        write_atomically(new / "evaluation.json", json.dumps(played) + "\n")
        shutil.rmtree(AGENTS / name, ignore_errors=True)
        new.rename(AGENTS / name)
    print(f"{AGENTS / name}: return {np.mean(returns):.2f} ± {np.std(returns):.2f} in {KEPT_EPISODES} episodes")


# --------------------------------------------------------------------------------------------------------------- Videos
def play(agent: Agent, episodes: int, seed: int, video: Path | None = None) -> list[float]:
    """Plays by the script's --evaluate. Returns the episodes' returns; the first is shown in `video`."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / agent.name
        shutil.copytree(agent.folder, copy)
        words = [sys.executable, str(ROOT / "cleanrl" / f"{agent.script}.py"), "--evaluate", str(copy)]
        words += ["--episodes", str(episodes), "--seed", str(seed)]
        if video:
            words.append("--capture-video")
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
        if done.returncode:
            raise UserError(f"{agent.name}: can't be played: {done.stderr}")
        if video:
            shutil.copy(next(copy.rglob("*.mp4")), video)
        with open(copy / "evaluation.csv", encoding="utf-8", newline="") as file:
            returns = [float(row["episodic_return"]) for row in csv.DictReader(file)]
    return returns


def first_second(duration: float) -> float:
    """Where to begin in a video of so many seconds: games are shown from their middle on."""
    return duration / 2 if duration > LONG else 0.0


def ffmpeg(source: Path, target: Path, options: str, begin: float, filters: str = "null") -> None:
    """Makes the target from the source, of which it leaves out the first seconds."""
    import imageio_ffmpeg

    words = [imageio_ffmpeg.get_ffmpeg_exe(), "-y", "-v", "error", "-ss", str(begin), "-i", str(source)]
    subprocess.run([*words, "-vf", filters, *options.split(), str(target)], check=True)


def write_clip(video: Path, clip: Path) -> float:
    """A few seconds of the video, small, for a page, and its poster, from the clip's middle. Returns the seconds of the
    whole."""
    import imageio_ffmpeg

    _, duration = imageio_ffmpeg.count_frames_and_secs(str(video))
    begin = first_second(duration)
    options = f"-t {CLIP_SECONDS} -c:v libx264 -crf 30 -preset veryslow -pix_fmt yuv420p -an -movflags +faststart"
    filters = "scale='min(400,iw)':-2:flags=lanczos,fps='min(30,source_fps)'"
    ffmpeg(video, clip, options, begin, filters)
    middle = min(duration - begin, CLIP_SECONDS) / 2
    ffmpeg(clip, clip.with_suffix(".webp"), "-frames:v 1 -c:v libwebp -quality 60", middle)
    return duration


def write_strip(video: Path, picture: Path) -> None:
    """A few seconds of the video as an animated WebP that repeats: a square, the middle of a wide picture."""
    import imageio_ffmpeg

    _, duration = imageio_ffmpeg.count_frames_and_secs(str(video))
    size = STRIP_SIZE
    filters = f"fps=15,scale=-1:{size}:flags=lanczos,crop='min(iw,{size})':{size},pad={size}:{size}:-1:-1"
    options = "-t 6 -c:v libwebp_anim -loop 0 -quality 45 -compression_level 6"
    ffmpeg(video, picture, options, first_second(duration), filters)


def show(agent: Agent) -> None:
    """Plays an agent; writes the video of an episode, what it shows, and its part of the README's strip. The episode is
    a typical one: the first whose return is nearer to the mean of ten than that of most of them."""
    clip = DOCS / "videos" / f"{agent.name}_end.mp4"
    clip.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        video = Path(folder) / "video.mp4"
        returns = play(agent, EPISODES, 1, video)
        shown = returns[0]
        usual = np.median(np.abs(returns - np.mean(returns)))
        for seed in range(2, 20):
            if abs(shown - np.mean(returns)) <= usual:
                break
            (shown,) = play(agent, 1, seed, video)
        seconds = write_clip(video, clip)
        if agent.place < len(STRIP):
            write_strip(video, DOCS / "images" / f"strip_{agent.name}.webp")
    facts = json.loads(agent.facts_file.read_text("utf-8")) if agent.facts_file.is_file() else {}
    facts["end"] = {"steps": agent.last_step, "shown": shown, "returns": returns, "seconds": round(seconds, 1)}
    write_atomically(agent.facts_file, json.dumps(facts) + "\n")
    print(f"{agent.name}: return {np.mean(returns):.2f} ± {np.std(returns):.2f}, in the video {shown:.2f}")


# ---------------------------------------------------------------------------------------------------------------- Pages
def readable(x: float) -> str:
    digits = 0 if abs(x) >= 100 or x == round(x) else 1
    return f"{x:,.{digits}f}".replace("-", "−")


def section(agent: Agent) -> str:
    """An agent's part of docs/gallery.md. Of those before the end only the videos are left."""
    planned = agent.arguments["total_timesteps"] // agent.batch_size * agent.batch_size
    cells = []
    for stage, fact in json.loads(agent.facts_file.read_text("utf-8")).items():
        title = f"At {fact['steps'] / planned:.0%}"
        if stage == "start":
            title = "At the start"
        elif fact["steps"] == planned:  # or less, where the run was stopped
            title = "At the end"
        cut = ""
        if fact["seconds"] > CLIP_SECONDS + 1:
            cut = f" (its first {CLIP_SECONDS} s of {fact['seconds']:.0f})"
            if "shown" in fact and first_second(fact["seconds"]):  # videos of release 0.2 begin at the start
                cut = f" ({CLIP_SECONDS} s from its middle, of {fact['seconds']:.0f})"
        shown = readable(fact.get("shown", fact["returns"][0]))
        link = clip_link(f"{agent.name}_{stage}", f"{agent.env_id}, {title[0].lower()}{title[1:]}")
        cells.append(
            f"<td>{link}<br>\n<b>{title}</b>: {fact['steps']:,} steps. This episode: {shown}{cut}. "
            f"Mean of {len(fact['returns'])}: {readable(np.mean(fact['returns']))}</td>\n"
        )
    plays = f"python cleanrl/{agent.script}.py --evaluate benchmark/agents/{agent.name} --capture-video"
    needs = f"   # with {agent.engine}" if agent.engine else ""
    return (
        f'## {agent.env_id}\n\n<table class="motion" title="click: all play"><tr>\n{"".join(cells)}</tr></table>\n\n'
        f"<!-- tested: tests/tools/test_gallery.py -->\n```bash\n{plays}{needs}\n```\n"
    )


def trained_by(agent: Agent) -> str:
    """Where an agent comes from: its part of the end of docs/gallery.md."""
    typed = folded(shlex.join(["python", *shlex.split(agent.config["command"])[1:]]))
    needs = f", with {agent.engine}" if agent.engine else ""
    return f"{agent.env_id}{needs}:\n\n<!-- long: a whole training -->\n```bash\n{typed}\n```\n"


def rebuild() -> None:
    """Fills the pages from what is kept."""
    agents = gallery_agents()
    blocks.fill(DOCS / "gallery.md", "gallery", "\n" + "\n".join(section(agent) for agent in agents) + "\n")
    blocks.fill(DOCS / "gallery.md", "commands of training", "\n" + "\n".join(map(trained_by, agents)) + "\n")
    pictures = ""
    for agent in agents:
        if agent.place < len(STRIP):
            pictures += f'<img src="docs/images/strip_{agent.name}.webp" alt="{agent.env_id}" width="15%">\n'
    blocks.fill(README, "strip", f"<p>\n{pictures}</p>\n")
    for name, text in recipes_tables().items():
        blocks.fill(DOCS / "recipes.md", f"table of {name}", text)


def play_again(name: str | None) -> None:
    """Plays one agent or all of the gallery, and fills the pages."""
    agents = gallery_agents() if name is None else [agent for agent in all_agents() if agent.name == name]
    if not agents:
        raise UserError(
            f"{name}: is not in benchmark/agents, which has {', '.join(agent.name for agent in all_agents())}"
        )
    for agent in agents:
        if agent.engine:
            print(f"{agent.name}: needs {agent.engine}, see docs/ppo_continuous_action_numpy.md; its videos stay")
        else:
            show(agent)
    rebuild()


def main(args: Args) -> None:
    """Does what is typed."""
    if args.action == "rebuild":
        rebuild()
    elif args.action == "play":
        play_again(args.name)
    else:
        if args.name is None or args.run_folder is None:
            raise UserError("keep: needs a name for the agent, and --run-folder")
        keep_agent(args.name, args.run_folder)


if __name__ == "__main__":
    with one_line_errors():
        main(tyro.cli(Args, description=__doc__))
