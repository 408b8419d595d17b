"""Recipes, which are hyperparameters for an environment, confirmed on fresh seeds; and trained agents to watch.

    python benchmark/agents.py list                            the environments that have a recipe
    python benchmark/agents.py show LunarLander-v3             a recipe's command line
    python benchmark/agents.py run LunarLander-v3              runs it
    python benchmark/agents.py confirm LunarLander-v3          makes the five runs behind the table, by sweep.py
    python benchmark/agents.py keep LunarLander-v3             keeps them, and the agent of the median seed
    python benchmark/agents.py keep my_agent --run-folder runs/RUN    keeps the agent of any run
    python benchmark/agents.py play                            plays the gallery's agents: videos and the README's strip
    python benchmark/agents.py play my_agent                   only this one, which then is in the gallery
    python benchmark/agents.py rebuild                         fills docs/recipes.md, docs/gallery.md and README.md

Type them in the repository's root. Recipes are in benchmark/recipes.toml. What they reached is read from the kept runs
in benchmark/results: five seeds by which nothing was chosen. Kept runs of a recipe that was changed afterwards are its
earlier rounds. Agents are in benchmark/agents: a run's config.json and its last checkpoint, without the optimizer, and
of networks above 2 MB in half precision; evaluation.json has the returns of 100 episodes.
"""

import contextlib
import csv
import importlib.metadata
import io
import itertools
import json
import shlex
import shutil
import subprocess
import sys
import tempfile
import textwrap
import tomllib
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import shared
import tyro
from shared import RESULTS, ROOT, Run, checkpoints, fail, markdown

RECIPES = ROOT / "benchmark" / "recipes.toml"
AGENTS = ROOT / "benchmark" / "agents"
DOCS = ROOT / "docs"
README = ROOT / "README.md"
EXP_NAME = "recipes"  # of the runs behind the table
SEEDS = 5  # of those runs, from 101 or the recipe's first_seed on
LARGE = 2_000_000  # bytes of a checkpoint above which it is kept in half precision
KEPT_EPISODES = 100  # in evaluation.json
EPISODES = 10  # of which the gallery gives the mean; the first of them is in the video
CLIP_SECONDS = 12  # of an episode, at most, in the gallery
LONG = 60  # seconds of an episode that is shown from its middle on: games begin slowly
STRIP = ["CartPole", "LunarLanderContinuous", "HalfCheetah", "Breakout", "PongNoFrameskip", "coinrun"]  # in the README
STRIP_SECONDS, STRIP_FPS, STRIP_SIZE = 6, 15, 200


@dataclass
class Args:
    action: tyro.conf.Positional[Literal["list", "show", "run", "confirm", "keep", "play", "rebuild"]]  # what to do
    name: tyro.conf.Positional[str | None] = None  # environment of a recipe, or name of an agent
    seed: int = 1  # seed of `show` and `run`
    workers: int = 1  # runs of `confirm` at a time
    run_folder: Path | None = None  # run whose agent is kept


# -------------------------------------------------------------------------------------------------------------- Recipes
def read_recipes() -> dict[str, dict]:
    return tomllib.loads(RECIPES.read_text("utf-8"))


def recipe_of(env_id: str | None) -> dict:
    recipes = read_recipes()
    if env_id is None:
        fail(f"name an environment; there are recipes of {', '.join(recipes)}")
    if env_id not in recipes:
        fail(f"{env_id}: has no recipe; there are {', '.join(recipes)}; tune.py finds one")
    return recipes[env_id]


def command(recipe: dict, *more: str) -> list[str]:
    return ["python", f"cleanrl/{recipe['script']}.py", *more, *recipe["arguments"].split()]


def seeds_of(recipe: dict) -> list[int]:
    """Seeds by which nothing was chosen."""
    first = recipe.get("first_seed", 101)
    return list(range(first, first + SEEDS))


def wait_for(words: list[str]) -> int:
    """Runs a command line with this Python, for the user to watch. On Ctrl-C the command saves, which is waited for."""
    with subprocess.Popen([sys.executable, *words[1:]]) as process:
        while True:
            with contextlib.suppress(KeyboardInterrupt):
                return process.wait()


def confirm(env_id: str, recipe: dict, workers: int) -> int:
    trains = shlex.join(command(recipe, "--exp-name", EXP_NAME))
    sweep = ["python", str(ROOT / "benchmark" / "sweep.py"), "--command", trains, "--env-ids", env_id]
    sweep += ["--num-seeds", str(SEEDS), "--start-seed", str(seeds_of(recipe)[0]), "--workers", str(workers)]
    return wait_for(sweep)


def is_of(run: Run, env_id: str, recipe: dict) -> bool:
    """Whether a run is one of the recipe's: its script, arguments and seeds, of any version of the script."""
    script = ROOT / "cleanrl" / f"{recipe['script']}.py"
    kind = shared.script_args(script)
    arguments, usual = asdict(tyro.cli(kind, args=recipe["arguments"].split())), asdict(kind())
    settings = {}
    for name, value in shared.identity(arguments).items():
        if value != usual[name] and name not in shared.IN_TABLES:
            settings[name] = value
    same = (run.script, run.env_id, run.settings) == (recipe["script"], env_id, settings)
    same = same and run.arguments["total_timesteps"] == arguments["total_timesteps"]
    return same and run.seed in seeds_of(recipe)


def newest(runs: list[Run]) -> list[Run]:
    """Of each seed the run that began last, as the ends of the names say."""
    of_seed = {}
    for run in sorted(runs, key=lambda run: run.name.rpartition("__")[2]):
        of_seed[run.seed] = run
    return [of_seed[seed] for seed in sorted(of_seed)]


def keep_recipe(env_id: str, recipe: dict) -> None:
    """Keeps the recipe's runs below runs/, and the agent of the median one."""
    now = shared.version(ROOT / "cleanrl" / f"{recipe['script']}.py")
    runs = shared.find_runs([Path("runs")]) if Path("runs").is_dir() else []
    runs = newest([run for run in runs if run.ended and run.version == now and is_of(run, env_id, recipe)])
    if len(runs) != SEEDS:
        fail(f"{env_id}: {len(runs)} of the seeds {seeds_of(recipe)} have ended below runs/; make them by `confirm`")
    median = sorted(runs, key=lambda run: run.result)[SEEDS // 2]
    keep_agent(env_id.replace("/", "_").replace(":", "_"), Path("runs") / median.name)
    print(f"{shared.append_runs(runs, results=RESULTS)} runs added to {RESULTS}")


def recipes_tables() -> dict[str, str]:
    """Markdown by the name of its block in docs/recipes.md."""
    runs = [*shared.kept_runs("results", RESULTS), *shared.kept_runs("earlier_rounds", RESULTS)]
    earlier = {run.name: run for run in runs if run.exp_name == EXP_NAME}  # those of a recipe are taken out below
    reached, commands = [], []
    for env_id, recipe in read_recipes().items():
        own = [run for run in earlier.values() if run.env_id == env_id and is_of(run, env_id, recipe)]
        for run in own:
            del earlier[run.name]
        goal = f"{recipe['goal']:g}".replace("-", "−")
        if not own:
            reached.append([env_id, "–", "–", "not measured", goal, "–"])
            continue
        mean, low, _ = shared.mean_interval([run.result for run in newest(own)])
        verdict = "no"
        if mean >= recipe["goal"]:
            verdict = "yes" if low >= recipe["goal"] else "on average"
        reached.append([env_id, *facts_of(own), goal, verdict])
        commands.append(folded(shlex.join(command(recipe, "--env-id", env_id))))
    rounds = {}
    for run in earlier.values():
        settings = json.dumps(run.settings, sort_keys=True)
        rounds.setdefault((run.env_id, run.seed // 100, settings), []).append(run)
    header = ["environment", "steps", "seeds", "return"]
    return {
        "recipes": markdown([*header, "goal", "reached"], reached),
        "rounds": markdown(header, [[key[0], *facts_of(rounds[key])] for key in sorted(rounds)]),
        "agents": markdown(["agent", "script", "steps", "seed", "return"], agents_rows()),
        "commands": "<!-- long: whole trainings -->\n```bash\n" + "\n".join(commands) + "\n```\n",
    }


def agents_rows() -> list[list[str]]:
    """What the kept agents return, those of recipes first; mean and spread are those that --evaluate prints."""
    rows = []
    for agent in sorted(all_agents(), key=lambda agent: (agent.name.startswith("ppo_"), agent.name)):
        returns = agent.returns
        if returns:
            spread = f"{shared.signed(np.mean(returns))} ± {np.std(returns):.2f}"
            seed = str(agent.arguments["seed"])
            rows.append([f"`{agent.name}`", f"`{agent.script}.py`", f"{agent.last_step:,}", seed, spread])
    return rows


def facts_of(runs: list[Run]) -> list[str]:
    """Steps, seeds, and mean ± standard deviation of a recipe's runs."""
    runs = newest(runs)
    results = [run.result for run in runs]
    seeds = f"{runs[0].seed}–{runs[-1].seed}"
    return [f"{runs[0].total:,}", seeds, f"{shared.signed(np.mean(results))} ± {np.std(results, ddof=1):.2f}"]


def folded(typed: str) -> str:
    """A command line broken before options into lines that fit a page."""
    words = []
    for word in typed.split(" "):
        if word.startswith("--") or not words:
            words.append(word)
        else:
            words[-1] += f"\0{word}"  # an option stays with its values
    lines = textwrap.wrap(" ".join(words), 96, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
    return " \\\n".join(lines).replace("\0", " ")


# --------------------------------------------------------------------------------------------------------------- Agents
@dataclass
class Agent:
    """A folder of benchmark/agents."""

    folder: Path

    def __post_init__(self):
        try:
            self.config = json.loads((self.folder / "config.json").read_text("utf-8"))
            self.script = self.config["script"]
            self.arguments = self.config["arguments"]
            self.env_id = self.arguments["env_id"]
            self.batch_size = self.arguments["num_envs"] * self.arguments["num_steps"]
            self.checkpoint = checkpoints(self.folder)[-1]
        except (OSError, ValueError, TypeError, KeyError, IndexError) as error:
            fail(f"{self.folder}: is no kept agent ({type(error).__name__}: {error}); keep it again, or move it away")
        self.name = self.folder.name
        self.last_step = int(self.checkpoint.stem) * self.batch_size

    @property
    def returns(self) -> list[float]:
        """Those of KEPT_EPISODES, if they are kept."""
        path = self.folder / "evaluation.json"
        return json.loads(path.read_text("utf-8"))["returns"] if path.is_file() else []

    @property
    def engine(self) -> str:
        """The MuJoCo that it needs, where that is an older one than the installed: Pusher-v4 refuses a 3."""
        needed = self.config["versions"].get("mujoco", "")
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            if needed.startswith("2.") and not importlib.metadata.version("mujoco").startswith("2."):
                return f"mujoco=={needed}"
        return ""

    @property
    def place(self) -> int | None:
        """The place of its environment in the README's strip."""
        for i, start in enumerate(STRIP):
            if self.env_id.removeprefix("ALE/").startswith(start):
                return i
        return None

    @property
    def facts_file(self) -> Path:
        """What its videos show; an agent that has it is in the gallery."""
        return DOCS / "videos" / f"{self.name}.json"


def all_agents() -> list[Agent]:
    return [Agent(path.parent) for path in sorted(AGENTS.glob("*/config.json"))]


def gallery_agents() -> list[Agent]:
    """Those of the gallery, in the order of the strip and then of their environments."""
    shown = [agent for agent in all_agents() if agent.facts_file.is_file()]
    return sorted(shown, key=lambda agent: (len(STRIP) if agent.place is None else agent.place, agent.env_id))


def slim(checkpoint: Path) -> bytes:
    """A checkpoint without its optimizer, in half precision if it is LARGE."""
    content = io.BytesIO()
    try:
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
    except Exception as error:  # zipfile's, pickle's, numpy's and torch's
        fail(f"{checkpoint}: is no whole checkpoint ({type(error).__name__}); copy it again, or delete it")


def keep_agent(name: str, run: Path) -> None:
    """Makes benchmark/agents/NAME from a run folder, and plays KEPT_EPISODES."""
    if not name.replace("-", "_").isidentifier():
        fail(f"{name}: takes letters, digits, - and _, since it names a folder")
    if not (run / "config.json").is_file() or not checkpoints(run):
        fail(f"{run}: is no run folder with config.json and checkpoints; name one that has both")
    config = json.loads((run / "config.json").read_text("utf-8"))
    script = config.get("script")
    if script not in {file.stem for file in (ROOT / "cleanrl").glob("*.py")}:
        fail(f"{run}: was trained by {script}.py, which isn't in cleanrl/; put it there, so that the agent can play")
    config["command"] = shared.portable(config["command"])
    last = checkpoints(run)[-1]
    content = slim(last)
    AGENTS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=AGENTS) as folder:  # an agent that is there goes when the new one is whole
        new = Path(folder, "agent")
        shared.write_atomically(new / "checkpoints" / last.name, content)
        shared.write_atomically(new / "config.json", json.dumps(config, indent=2) + "\n")
        returns = play(Agent(new), KEPT_EPISODES, seed=1)
        played = {"run": run.resolve().name, "seed": 1, "returns": returns}
        shared.write_atomically(new / "evaluation.json", json.dumps(played) + "\n")
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
            fail(f"{agent.name}: can't be played: {done.stderr}")
        if video:
            shutil.copy(next(copy.rglob("*.mp4")), video)
        with open(copy / "evaluation.csv", encoding="utf-8", newline="") as file:
            returns = [float(row["episodic_return"]) for row in csv.DictReader(file)]
    return returns


def first_second(duration: float) -> float:
    """Where to begin in a video of so many seconds: games are shown from their middle on."""
    return duration / 2 if duration > LONG else 0.0


def write_clip(video: Path, clip: Path) -> float:
    """A few seconds of the video, small, for a page, and its poster. Returns the seconds of the whole."""
    import imageio.v2 as imageio
    import imageio_ffmpeg

    with imageio.get_reader(video) as reader:
        duration = reader.get_meta_data()["duration"]
    command = [
        imageio_ffmpeg.get_ffmpeg_exe(),
        "-y",
        "-v",
        "error",
        "-ss",
        str(first_second(duration)),
        "-i",
        str(video),
    ]
    command += ["-t", str(CLIP_SECONDS), "-vf", "scale='min(400,iw)':-2:flags=lanczos,fps='min(30,source_fps)'"]
    command += "-c:v libx264 -crf 30 -preset veryslow -pix_fmt yuv420p -an -movflags +faststart".split()
    subprocess.run([*command, str(clip)], check=True)
    write_poster(clip)
    return duration


def write_poster(clip: Path) -> None:
    """A picture from the clip's middle, which a page shows until it plays."""
    import imageio.v2 as imageio
    from PIL import Image

    with imageio.get_reader(clip) as reader:
        frames = [frame for frame in reader]  # list() would first ask for their number
    Image.fromarray(frames[len(frames) // 2]).save(clip.with_suffix(".webp"), quality=60, method=6)


def write_strip(video: Path, picture: Path) -> None:
    """A few seconds of the video as an animated WebP that repeats: a square, the middle of a wide picture."""
    import imageio.v2 as imageio
    from PIL import Image, ImageOps

    pictures = []
    with imageio.get_reader(video) as reader:
        facts = reader.get_meta_data()
        width, height = facts["size"]
        resize = ImageOps.fit if width > height else partial(ImageOps.pad, color="black")
        first = int(first_second(facts["duration"]) * facts["fps"])
        for i, frame in enumerate(itertools.islice(reader, first, first + int(STRIP_SECONDS * facts["fps"]))):
            if i >= len(pictures) * facts["fps"] / STRIP_FPS:
                pictures.append(resize(Image.fromarray(frame), (STRIP_SIZE, STRIP_SIZE), Image.Resampling.LANCZOS))
    options = {"save_all": True, "duration": round(1000 / STRIP_FPS), "loop": 0, "quality": 45, "method": 6}
    pictures[0].save(picture, append_images=pictures[1:], minimize_size=True, **options)


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
        if agent.place is not None:
            write_strip(video, DOCS / "images" / f"strip_{agent.name}.webp")
    facts = json.loads(agent.facts_file.read_text("utf-8")) if agent.facts_file.is_file() else {}
    facts["end"] = {"steps": agent.last_step, "shown": shown, "returns": returns, "seconds": round(seconds, 1)}
    shared.write_atomically(agent.facts_file, json.dumps(facts) + "\n")
    print(f"{agent.name}: return {np.mean(returns):.2f} ± {np.std(returns):.2f}, in the video {shown:.2f}")


# ---------------------------------------------------------------------------------------------------------------- Pages
def number(x: float) -> str:
    digits = 0 if abs(x) >= 100 or x == round(x) else 1
    return f"{x:,.{digits}f}".replace("-", "−")


def section(agent: Agent) -> str:
    """An agent's part of docs/gallery.md. Of those before the end only the videos are left."""
    planned = agent.arguments["total_timesteps"] // agent.batch_size * agent.batch_size
    figures = []
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
        shown = number(fact.get("shown", fact["returns"][0]))
        file = f"videos/{agent.name}_{stage}"
        figures.append(
            f'<figure><video src="{file}.mp4" poster="{file}.webp" muted playsinline preload="none"></video>\n'
            f"<figcaption><b>{title}</b>: {fact['steps']:,} steps. This episode: {shown}{cut}. "
            f"Mean of {len(fact['returns'])}: {number(np.mean(fact['returns']))}</figcaption></figure>\n"
        )
    trained = folded(shlex.join(["python", *shlex.split(agent.config["command"])[1:]]))
    needs = f", with {agent.engine}" if agent.engine else ""
    plays = f"python cleanrl/{agent.script}.py --evaluate benchmark/agents/{agent.name} --capture-video"
    return (
        f'## {agent.env_id}\n\n<div class="motion" title="click: all play">\n{"".join(figures)}</div>\n\n'
        f"<!-- tested: tests/test_agents.py -->\n```bash\n{trained}   # trained it{needs}\n{plays}\n```\n"
    )


def rebuild() -> None:
    """Fills the pages from what is kept."""
    agents = gallery_agents()
    shared.fill(DOCS / "gallery.md", "gallery", "\n" + "\n".join(section(agent) for agent in agents) + "\n")
    pictures = ""
    for agent in agents:
        if agent.place is not None:
            pictures += f'<img src="docs/images/strip_{agent.name}.webp" alt="{agent.env_id}" width="130">\n'
    shared.fill(README, "strip", f"<p>\n{pictures}</p>\n")
    for name, text in recipes_tables().items():
        shared.fill(DOCS / "recipes.md", f"table of {name}", text)


def play_again(name: str | None) -> None:
    """Plays one agent or all of the gallery, and fills the pages."""
    agents = gallery_agents() if name is None else [agent for agent in all_agents() if agent.name == name]
    if not agents:
        fail(f"{name}: is not in benchmark/agents, which has {', '.join(agent.name for agent in all_agents())}")
    for agent in agents:
        if agent.engine:
            print(f"{agent.name}: needs {agent.engine}, see docs/ppo_continuous_action.md; its videos stay as they are")
        else:
            show(agent)
    rebuild()


def main(args: Args) -> int:
    """Does what is typed; returns the exit status."""
    if args.name and args.action in ("list", "rebuild"):
        fail(f"{args.action} {args.name}: is about all of them; leave out {args.name}")
    if args.run_folder and args.action != "keep":
        fail(f"{args.action} --run-folder {args.run_folder}: only `keep` takes a run folder")
    if args.action == "list":
        print("\n".join(read_recipes()))
    elif args.action == "rebuild":
        rebuild()
    elif args.action == "play":
        play_again(args.name)
    elif args.action == "keep" and args.run_folder:
        keep_agent(args.name or args.run_folder.name, args.run_folder)
    elif args.action == "keep":
        keep_recipe(args.name, recipe_of(args.name))
    elif args.action == "confirm":
        return confirm(args.name, recipe_of(args.name), args.workers)
    else:
        words = command(recipe_of(args.name), "--env-id", args.name, "--seed", str(args.seed))
        print(shlex.join(words), flush=True)
        if args.action == "run":
            return wait_for(words)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(tyro.cli(Args, description=__doc__)))
