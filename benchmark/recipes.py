"""Hyperparameters for an environment, confirmed on five seeds by which nothing was chosen.

    python benchmark/recipes.py                               what there is
    python benchmark/recipes.py LunarLander-v3                prints the command line
    python benchmark/recipes.py LunarLander-v3 --run          runs it
    python benchmark/recipes.py LunarLander-v3 --confirm      makes the five runs behind the table, by sweep.py
    python benchmark/recipes.py LunarLander-v3 --keep         keeps them, and the agent of the median seed
    python benchmark/recipes.py --keep-tables                 keeps the agents of the other results' median seeds
    python benchmark/recipes.py --rebuild                     rebuilds docs/recipes.md from what is kept

All of them belong into the repository's root. Recipes are in benchmark/recipes.toml, what they reached is read from the
runs in benchmark/results/runs/recipes. Where a recipe fell short, was changed and confirmed on other seeds, the earlier
runs are in benchmark/results/earlier_rounds, and stand in the page. Agents are in benchmark/agents, as gallery.py keeps
them; what is to be kept is looked for in all run folders below runs/.
"""

import contextlib
import json
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import tyro
from shared import folded, identity, version, write_whole

ROOT = Path(__file__).resolve().parent.parent
RECIPES, AGENTS, PAGE = ROOT / "benchmark" / "recipes.toml", ROOT / "benchmark" / "agents", ROOT / "docs" / "recipes.md"
NAME = "recipes"  # --exp-name of the runs behind the table
SEEDS = 5  # of those runs, from 101 or the recipe's first_seed on


@dataclass
class Args:
    env_id: tyro.conf.Positional[str | None] = None  # environment; none: all that have a recipe
    seed: int = 1  # seed in the command
    run: bool = False  # run the command instead of printing it
    confirm: bool = False  # make the runs behind the table, those that are not done
    workers: int = 1  # of them at a time
    keep: bool = False  # keep those runs in benchmark/results, and the agent of the median seed in benchmark/agents
    keep_tables: bool = False  # keep the agents of the median seeds of the other kept results, as far as runs/ has them
    rebuild: bool = False  # rebuild the tables of docs/recipes.md


def fail(message: str):
    print(f"recipes.py: error: {' '.join(message.split())}", file=sys.stderr)
    raise SystemExit(2)


def read_recipes() -> dict[str, dict]:
    return tomllib.loads(RECIPES.read_text())


def command(recipe: dict, *more: str) -> list[str]:
    return ["python", f"cleanrl/{recipe['script']}.py", *more, *recipe["arguments"].split()]


def seeds(recipe: dict) -> list[int]:
    """Seeds that nothing was chosen by."""
    first = recipe.get("first_seed", 101)
    return [*range(first, first + SEEDS)]


def call(words: list[str], **options) -> subprocess.CompletedProcess:
    """A command line, with the Python that runs this one."""
    return subprocess.run([sys.executable, *words[1:]], text=True, **options)


def show(words: list[str]) -> int:
    """A command line for the user to watch, who may press Ctrl-C: then it saves a checkpoint, which is waited for."""
    with subprocess.Popen([sys.executable, *words[1:]]) as process:
        while True:
            with contextlib.suppress(KeyboardInterrupt):
                return process.wait()


def confirm(env_id: str, recipe: dict, workers: int) -> int:
    trains = shlex.join(command(recipe, "--exp-name", NAME))
    how = f"--num-seeds {SEEDS} --start-seed {seeds(recipe)[0]} --workers {workers}"
    sweep = ["python", str(ROOT / "benchmark" / "sweep.py"), "--command", trains, "--env-ids", env_id, *how.split()]
    return show(sweep)


def agent_folder(name: str) -> Path:
    return AGENTS / re.sub("[/:]", "_", name)


def evaluation(agent: Path, script: str, episodes: int, seed: int) -> list[float]:
    """The returns of an agent, as the script's --evaluate plays it."""
    words = ["python", f"cleanrl/{script}.py", "--evaluate", str(agent)]
    words += ["--episodes", str(episodes), "--seed", str(seed)]
    done = call(words, cwd=ROOT, stdout=subprocess.PIPE, check=True)
    return [float(x) for x in re.findall(r"^episode \d+: return (\S+),", done.stdout, re.MULTILINE)]


def keep_agent(run, agent: Path) -> None:
    """Keeps the weights of a run (of report.py) at its first update, near a tenth and at the end, and the returns of
    100 episodes. Its folder has no checkpoint of the first update, which is made again by the same command."""
    import gallery
    import report

    words, steps = shlex.split(report.reproduction(run)), run.arguments["num_envs"] * run.arguments["num_steps"]
    words[1] = str(script := ROOT / "cleanrl" / Path(words[1]).name)
    if not script.is_file():  # a program that a file names isn't started
        fail(f"{run.folder}: was made by {script.name}, which isn't in cleanrl/; its agent can't be kept")
    with tempfile.TemporaryDirectory() as folder:
        words += ["--total-timesteps", str(steps), "--checkpoints", "1"]
        call(words, cwd=folder, check=True, stdout=subprocess.DEVNULL)
        gallery.keep(agent.name, [run.folder, *Path(folder).glob("runs/*")], all_checkpoints=False)
    returns = evaluation(agent, Path(words[1]).stem, episodes=100, seed=1)
    played = {"run": run.folder.name, "seed": 1, "returns": returns}
    write_whole(agent / "evaluation.json", json.dumps(played) + "\n")


def median(runs: list):
    return sorted(runs, key=lambda run: run.result)[len(runs) // 2]


def confirms(run, recipe: dict) -> bool:
    """Whether a run (of report.py) is one of the recipe's, with its arguments and one of its seeds, of any version of
    the script."""
    import sweep

    words = ["python", str(ROOT / "cleanrl" / f"{recipe['script']}.py"), "--exp-name", NAME]
    trains = shlex.join([*words, *recipe["arguments"].split()])
    how = sweep.Args(env_ids=[run.env_id], command=trains, num_seeds=1, start_seed=run.seed)
    wanted = identity(sweep.make_jobs(how)[0].arguments)
    return run.seed in seeds(recipe) and {name: run.identity.get(name) for name in wanted} == wanted


def keep(env_id: str, recipe: dict) -> None:
    """Keeps the environment's runs below runs/, and the agent of the median one. Those kept before go, or, if they are
    of other seeds or another recipe, to the earlier rounds."""
    import report

    report.TOOL = Path(__file__).name  # which stands in the error messages
    now = version((ROOT / "cleanrl" / f"{recipe['script']}.py").read_text())
    runs = [run for run in report.find_runs([Path("runs")]) if run.script == NAME and run.env_id == env_id]
    runs = [run for run in runs if run.is_complete and run.version == now and confirms(run, recipe)]
    if len(runs) != SEEDS:
        fail(f"{env_id}: {len(runs)} of the seeds {seeds(recipe)} have ended below runs/; make them with --confirm")
    for run in runs:
        report.keep_run(run.folder, report.RESULTS)
    for old in (report.RESULTS / "runs" / NAME).glob(f"{agent_folder(env_id).name}__*"):
        if old.name in {run.folder.name for run in runs}:
            continue
        if not confirms(report.Run(old), recipe):  # or of the recipe, by an older version of the script
            shutil.copytree(old, report.RESULTS / "earlier_rounds" / old.name, dirs_exist_ok=True)
        shutil.rmtree(old)
    keep_agent(median(runs), agent_folder(env_id))


def keep_tables() -> None:
    """Keeps the agent of each script's and environment's median seed in the published tables."""
    import report

    present = {json.dumps(run.identity, sort_keys=True): run for run in report.find_runs([Path("runs")])}
    for label, environments in report.load(report.RESULTS).items():
        for env_id, runs in environments.items():
            if (label, env_id) not in report.published_results():
                continue
            agent, run = agent_folder(f"{label}_{env_id}"), median(runs)
            wanted, played = json.dumps(run.identity, sort_keys=True), agent / "evaluation.json"
            if played.is_file() and json.loads(played.read_text()).get("run") == run.folder.name:
                continue  # it is kept
            if wanted in present:
                keep_agent(present[wanted], agent)
            else:
                print(f"{label}, {env_id}: seed {run.seed} is not below runs/; its agent isn't kept")


def tables() -> dict[str, str]:
    """Markdown by the name of its place in the page: what the recipes reached, and what their agents return."""
    import gallery
    import numpy as np
    import report
    from scipy.stats import t

    def spread(x, ddof: int = 1) -> str:
        return f"{report.signed(np.mean(x))} ± {np.std(x, ddof=ddof):.2f}"

    def span(runs) -> str:
        return f"{min(run.seed for run in runs)}–{max(run.seed for run in runs)}"

    kept, reached, rounds, agents, commands = report.load(report.RESULTS).get(NAME, {}), [], [], [], []
    for env_id, recipe in read_recipes().items():
        cells = ["–", "–", "not measured", f"{recipe['goal']:g}".replace("-", "−"), "–"]
        if runs := [run for run in kept.get(env_id, []) if confirms(run, recipe)]:
            results = [run.result for run in runs]
            cells[:3] = f"{runs[0].total:,}", span(runs), spread(results)
            lowest = np.mean(results) - t.ppf(0.975, len(results) - 1) * np.std(results, ddof=1) / len(results) ** 0.5
            sure, on_average = lowest >= recipe["goal"], np.mean(results) >= recipe["goal"]
            cells[4] = "yes" if sure else "on average" if on_average else "no"
            commands.append(folded(shlex.join(command(recipe, "--env-id", env_id))))
        reached.append([env_id, *cells])
    header = ["environment", "steps", "seeds", "return", "goal", "reached"]
    by_round = defaultdict(list)
    earlier = report.RESULTS / "earlier_rounds"
    for run in report.find_runs([earlier]) if earlier.is_dir() else ():
        arguments = {name: x for name, x in run.identity.items() if name not in ("seed", "version")}
        by_round[run.env_id, run.seed // 100, json.dumps(arguments, sort_keys=True)].append(run)
    for (env_id, *_), runs in sorted(by_round.items()):
        rounds.append([env_id, f"{runs[0].total:,}", span(runs), spread([run.result for run in runs])])
    for file in sorted(AGENTS.glob("*/evaluation.json"), key=lambda file: (file.parent.name.startswith("ppo_"), file)):
        agent, returns = gallery.Agent(file.parent), json.loads(file.read_text())["returns"]
        steps = f"{int(gallery.checkpoints(agent.folder)[-1].stem) * agent.steps:,}"
        result = spread(returns, ddof=0)  # as --evaluate prints it
        agents.append([f"`{agent.name}`", f"`{agent.script}.py`", steps, str(agent.arguments["seed"]), result])
    fence = "<!-- long: whole trainings -->\n```bash\n" + "\n".join(commands) + "\n```\n"
    return {
        "recipes": report.markdown(header, reached),
        "rounds": report.markdown(["environment", "steps", "seeds", "return"], rounds),
        "commands": fence if commands else "",
        "agents": report.markdown(["agent", "script", "steps", "seed", "return"], agents),
    }


def place(text: str, tables: dict[str, str]) -> str:
    """The page with every table between its two comments replaced."""
    for name, table in tables.items():
        pattern = rf"(<!-- table of {name} -->\n).*?(<!-- end of table -->)"
        text = re.sub(pattern, lambda match, table=table: match[1] + table + match[2], text, flags=re.DOTALL)
    return text


def main(args: Args) -> None:
    recipes = read_recipes()
    actions = ("run", "confirm", "keep", "keep_tables", "rebuild")
    if len(chosen := [f"--{name.replace('_', '-')}" for name in actions if getattr(args, name)]) > 1:
        fail(f"{' and '.join(chosen)}: choose one of them")
    if args.env_id not in (None, *recipes):
        fail(f"{args.env_id}: has no recipe; there are {', '.join(recipes)}; tune.py finds one")
    if args.env_id and (args.keep_tables or args.rebuild):
        fail(f"{chosen[0]} {args.env_id}: {chosen[0]} is for all environments; leave out {args.env_id}")
    if args.rebuild:
        write_whole(PAGE, place(PAGE.read_text(), tables()))
    elif args.keep_tables:
        keep_tables()
    elif args.env_id is None and (args.run or args.keep):
        fail(f"{chosen[0]}: needs an environment")
    elif args.confirm:
        status = 0
        for env_id in [args.env_id] if args.env_id else recipes:
            status = max(status, confirm(env_id, recipes[env_id], args.workers))
            if status > 1:  # a mistake or Ctrl-C; 1 is a failed run
                break
        raise SystemExit(status)
    elif args.env_id is None:
        print(*recipes, sep="\n")
    elif args.keep:
        keep(args.env_id, recipes[args.env_id])
    else:
        words = command(recipes[args.env_id], "--env-id", args.env_id, "--seed", str(args.seed))
        print(shlex.join(words), flush=True)
        if args.run:
            raise SystemExit(show(words))


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
