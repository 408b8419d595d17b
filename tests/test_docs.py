"""The pages: every command runs, every example gives the output that is shown, every link leads somewhere, what pages
repeat of the scripts is current, and the site builds without a warning and fits its screen.

In a page, ```bash blocks are commands. A line that ends with `# long …` isn't run, nor is one with `# on a GPU`, nor a
block after `<!-- long: why -->`, `<!-- not run: why -->` or `<!-- tested: tests/test_x.py -->`, which names the test of
such commands. `runs/RUN` is the last run of the command's script. A ```python or ```diff block with a title is written
to the file of that name, or applied to it; a ```text block titled "output" is what the command before it prints.
"""

import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

import build_it
import pytest

ROOT = Path(__file__).parents[1]
PAGES = [*sorted(ROOT.glob("docs/*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "AGENTS.md"]
BLOCK = re.compile(r'(?m)(?:^<!-- (long|tested|not run): (.+) -->\n)?^```(\w+)(?: title="(.+)")?\n((?s:.*?))^```$')
PREPARE = ("make", "pip", "source", "git", "cd", "tensorboard", "uv", "docker", "mkdir")  # not run by these tests


class Block(NamedTuple):
    marker: str  # long, tested, not run or ""
    reason: str
    language: str
    title: str
    text: str


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page."""
    return [Block(*found) for found in BLOCK.findall(page.read_text("utf-8"))]


def commands(text: str) -> list[str]:
    """The commands of a bash block without their comments; those marked as long or for a GPU are left out."""
    found = []
    for line in text.replace("\\\n", " ").splitlines():
        command, _, comment = line.partition("  # ")
        if command.strip() and not command.startswith("#") and not comment.startswith(("long", "on a GPU")):
            found.append(command.strip())
    return found


# ------------------------------------------------------------------------------------------------------------ Commands
@pytest.fixture(scope="module")
def python():
    """Types a command line of Python; see docs_commands.py. Returns exit status, stdout and stderr."""
    program = [sys.executable, ROOT / "tests" / "docs_commands.py"]
    server = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(argv, folder, env):
        output = folder / "stdout"
        errors = folder / "stderr"
        job = {"argv": argv, "folder": str(folder), "env": env, "output": str(output), "errors": str(errors)}
        print(json.dumps(job), file=server.stdin, flush=True)
        return int(server.stdout.readline()), output.read_text("utf-8"), errors.read_text("utf-8")

    yield run
    server.stdin.close()
    server.wait(timeout=60)


def small(argv: list[str]) -> list[str]:
    """A script's command with few steps and episodes: a tenth of those that it says, if it says how many, and at most
    8192 steps."""
    argv = list(argv)
    is_atari = argv[0].startswith("cleanrl/ppo_atari")
    for flag, least in (("--total-timesteps", 2048), ("--episodes", 1)):
        if flag in argv:
            value = argv.index(flag) + 1
            argv[value] = str(min(max(least, int(argv[value]) // 10), 8192))
    if "--total-timesteps" in argv and is_atari:  # 2048 are too many
        place = argv.index("--total-timesteps")
        del argv[place : place + 2]
    flags = {word.partition("=")[0] for word in argv}
    if "--evaluate" in flags:
        return argv if "--episodes" in flags else [*argv, "--episodes", "1"]
    if flags & {"--total-timesteps", "--resume", "--help"}:
        return argv
    if is_atari:
        if "--num-envs" not in flags:
            argv = [*argv, "--num-envs", "2"]
        argv = [*argv, "--no-capture-video", "--num-threads", "1"]
    if argv[0].endswith("_gpu.py"):
        argv = [*argv, "--num-envs", "8"]
    sizes = "--num-steps 16 --num-minibatches 2 --update-epochs 1 --checkpoints 1 --total-timesteps 128"
    return [*argv, *sizes.split()]


def fill_in_run(argv: list[str], folder: Path, python) -> list[str]:
    """The last run of the script, or for other programs of any script, in place of runs/RUN; where there is none yet, a
    small one."""
    if not any("runs/RUN" in word for word in argv):
        return argv
    script = "cleanrl/ppo.py"
    name = "*.py"
    if argv[0].startswith("cleanrl/"):
        script = argv[0]
        name = Path(script).name
    if not list(folder.glob(f"runs/*/{name}")):
        assert python(small([script]), folder, {})[0] == 0
    runs = sorted(folder.glob(f"runs/*/{name}"), key=lambda path: path.stat().st_mtime)
    argv = [word.replace("runs/RUN", str(runs[-1].parent.relative_to(folder))) for word in argv]
    for i, word in enumerate(argv):  # the number of a checkpoint is another one in a small run
        if "/checkpoints/" in word:
            argv[i] = str(next(iter((folder / word).parent.glob("*.pt"))))
    return argv


def check_preparation(words: list[str]) -> None:
    """A command that only prepares names targets, extras and files that there are."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    if words[0] == "make":
        targets = (ROOT / "Makefile").read_text("utf-8")
        assert all(f"\n{word}:" in targets for word in words[1:]), words
    for word in words[1:] if words[0] == "pip" else []:
        if word.startswith(".["):
            assert set(word[2:-1].split(",")) <= extras.keys(), words
        elif word.endswith(".txt"):
            assert (ROOT / word).is_file(), words


def type_in(command: str, folder: Path, python, exported: dict) -> str:
    """Types a command in the folder, made small; returns what it printed."""
    words = shlex.split(command, comments=True)
    if words[0] == "export":
        name, _, value = words[1].partition("=")
        exported[name] = value
        return ""
    env = dict(exported)
    while "=" in words[0]:
        name, _, value = words.pop(0).partition("=")
        env[name] = value
    if words[0] in PREPARE:
        check_preparation(words)
        return ""
    if words[0] == "python" and words[1] != "-c":
        argv = fill_in_run(words[1:], folder, python)
        if argv[0].startswith("cleanrl/"):
            argv = small(argv)
        status, output, errors = python(argv, folder, env)
    else:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        options = {"cwd": folder, "env": os.environ | {"PATH": path}, "capture_output": True, "text": True}
        done = subprocess.run(["bash", "-c", command], **options)
        status = done.returncode
        output = done.stdout
        errors = done.stderr
    assert status == 0, f"{command}\n{output}\n{errors}"
    return output


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_and_examples_of_a_page(page, python, tmp_path):
    for entry in ROOT.iterdir():
        if entry.name in ("cleanrl", "benchmark"):
            ignored = shutil.ignore_patterns("__pycache__", "results")
            shutil.copytree(entry, tmp_path / entry.name, ignore=ignored)
        elif entry.name not in ("runs", ".git", ".venv", "site"):
            (tmp_path / entry.name).symlink_to(entry)
    output = None
    exported = {}
    for block in blocks(page):
        if block.marker == "tested":
            assert (ROOT / block.reason).is_file(), block.reason
        if block.marker or block.title == "my_ppo.py":  # whose test is test_build_it.py
            continue
        if block.title and block.language == "python":
            (tmp_path / block.title).write_text(block.text, "utf-8")
        elif block.title and block.language == "diff":
            path = tmp_path / block.title
            path.write_text(build_it.apply(block.text, path.read_text("utf-8")), "utf-8")
        elif block.title == "output" and page.stem != "build-it":
            assert output == block.text
        elif block.language == "bash":
            for command in commands(block.text):
                for env_id, package in {"dm_control/": "shimmy", "LunarLander": "Box2D"}.items():
                    if env_id in command:  # not for every Python
                        pytest.importorskip(package)
                output = type_in(command, tmp_path, python, exported)


def test_the_loop_of_agents_md_trains_both_and_compares(tmp_path):
    """Its sweeps and its comparison, with a script that starts faster, fewer steps and seeds."""
    for name in ("cleanrl", "benchmark"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "results", "agents"))
    shutil.copy(tmp_path / "cleanrl" / "ppo_numpy.py", tmp_path / "cleanrl" / "ppo_mine.py")
    own = [block for block in blocks(ROOT / "AGENTS.md") if block.reason == "tests/test_docs.py"]
    typed = [line for block in own for line in commands(block.text)]
    assert [line.split()[1] for line in typed] == ["benchmark/sweep.py"] * 2 + ["benchmark/report.py"]
    for line in typed:
        line = line.replace("ppo.py", "ppo_numpy.py")
        words = shlex.split(line.replace("100000", "1024").replace("--num-seeds 10", "--num-seeds 1"))
        done = subprocess.run([sys.executable, *words[1:]], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    assert "5 seeds of each are needed" in (tmp_path / "comparison.md").read_text("utf-8")  # of whom it got 1


# --------------------------------------------------------------------------------------------------- What pages repeat
def test_what_pages_repeat_of_the_scripts_is_current(tmp_path):
    import fill

    shutil.copytree(ROOT / "docs", tmp_path / "docs", ignore=shutil.ignore_patterns("videos"))
    shutil.copy(ROOT / "README.md", tmp_path)
    copies = [tmp_path / "README.md", *sorted((tmp_path / "docs").glob("*.md"))]
    before = {page.name: page.read_text("utf-8") for page in copies}
    assert fill.fill_pages(copies) > 100
    changed = [page.name for page in copies if page.read_text("utf-8") != before[page.name]]
    assert not changed and not fill.missing, f"python docs/build/fill.py: {changed} {fill.missing}"


def test_a_stale_block_and_a_stale_line_are_replaced(tmp_path):
    import fill

    page = tmp_path / "page.md"
    page.write_text('[x](../cleanrl/ppo.py#L1 "core-8")\n<!-- options ppo -->\nx\n<!-- end of options -->\n', "utf-8")
    assert fill.fill_pages([page]) == 1
    text = page.read_text("utf-8")
    assert f'#L{fill.lines_of("ppo", "core-8")[0]} "core-8"' in text
    assert "\nx\n" not in text and "| `--gamma` | `0.99` | discount factor |" in text


@pytest.mark.parametrize("page", ["ppo-in-one-page", "build-it"])
def test_code_beside_a_link_is_the_scripts(page):
    """The last cell of a row with a link to ppo.py is a part of a line of it."""
    source = (ROOT / "cleanrl" / "ppo.py").read_text("utf-8")
    rows = [row for row in (ROOT / "docs" / f"{page}.md").read_text("utf-8").splitlines() if "ppo.py#L" in row]
    rows = [row.replace("\\|", "¦") for row in rows if row.startswith("| ")]
    assert len(rows) > 10
    for row in rows:
        assert row.split(" | ")[-1].strip(" |`").replace("¦", "|") in source, row


def test_messages_on_the_page_of_troubles_are_the_scripts():
    """A message of several words in a table's cell is in the scripts, piece by piece between its dots."""
    sources = "".join(path.read_text("utf-8") for path in ROOT.glob("cleanrl/*.py"))
    rows = [row for row in (ROOT / "docs" / "troubleshooting.md").read_text("utf-8").splitlines() if "…" in row]
    messages = [message for row in rows for message in row.rpartition(" | ")[0].split("`")[1::2]]
    assert len(messages) > 15
    for message in messages:
        assert " " not in message or all(piece in sources for piece in message.split("…")), message


# --------------------------------------------------------------------------------------------------------------- Links
def anchors(page: Path) -> set[str]:
    """The anchors of a page: its headings as mkdocs and GitHub name them, and ids that are given."""
    found = set()
    in_code = False
    for line in page.read_text("utf-8").splitlines():
        in_code ^= line.startswith("```")
        if line.startswith("#") and not in_code:
            plain = re.sub(r"<[^>]*>|[`*]", "", line.lstrip("#")).strip().lower()
            found.add(re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain)))
        found |= set(re.findall(r'id="([\w-]+)"', line))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_of_a_page_lead_to_files_lines_and_headings(page):
    text = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.M | re.S)
    for link in re.findall(r"\]\(([^)\s]+)(?: \"[^\"]*\")?\)", text):
        if link.startswith(("http:", "https:", "mailto:")):
            continue
        name, _, anchor = link.partition("#")
        path = (page.parent / name).resolve() if name else page
        assert path.exists() and path.is_relative_to(ROOT), f"{page.name}: {link}"
        if path.suffix == ".md" and anchor:
            assert anchor in anchors(path), f"{page.name}: {link}"


# ----------------------------------------------------------------------- The site, which `make test-site` looks through
class Anchors(HTMLParser):
    """What a built page links to, what it loads, and its ids."""

    def __init__(self, html):
        super().__init__()
        self.links, self.loads, self.ids, self.text = set(), set(), set(), html
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.ids |= {given[name] for name in ("id", "name") if given.get(name)}
        if tag == "a" and given.get("href"):
            self.links.add(given["href"])
        if tag in ("img", "script", "source", "video", "iframe") and given.get("src"):
            self.loads.add(given["src"])
        if given.get("poster"):
            self.loads.add(given["poster"])
        if tag == "link" and given.get("href") and given.get("rel") != "canonical":
            self.loads.add(given["href"])


@pytest.fixture(scope="module")
def site_folder(tmp_path_factory):
    """The pages as mkdocs builds them."""
    if not all(importlib.util.find_spec(name) for name in ("mkdocs", "material", "latex2mathml")):
        pytest.skip("mkdocs isn't installed; `make test` installs it, from requirements-docs.txt")
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder]
    env = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(build, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0 and "WARNING" not in done.stderr, done.stderr
    return folder


@pytest.mark.seldom
def test_every_link_of_the_site_leads_somewhere_and_nothing_is_loaded_from_elsewhere(site_folder):
    pages = {
        str(path.relative_to(site_folder)): Anchors(path.read_text("utf-8")) for path in site_folder.rglob("*.html")
    }
    files = {str(path.relative_to(site_folder)) for path in site_folder.rglob("*")}
    for name, page in pages.items():
        assert not [load for load in page.loads if load.startswith(("http:", "https:", "//"))], name
        assert "xFORMULA" not in page.text, name
        for link in page.links | page.loads if name != "404.html" else ():
            if link.startswith(("http:", "https:", "mailto:", "data:")):
                continue
            address, _, anchor = unquote(link).partition("#")
            target = os.path.normpath(Path(name).parent / address) if address else name
            assert target in files | {"."}, f"{name}: {link}"
            assert not anchor or target not in pages or anchor in pages[target].ids, f"{name}: {link}"


WIDER = """
const screen = document.documentElement.clientWidth, wider = [];
if (document.documentElement.scrollWidth > screen) wider.push("page: " + document.documentElement.scrollWidth);
for (const words of document.querySelectorAll("svg.drawing text")) {
    const box = words.getBBox(), whole = words.ownerSVGElement.viewBox.baseVal;
    if (box.x < 0 || box.y < 0 || box.x + box.width > whole.width || box.y + box.height > whole.height)
        wider.push("drawing: " + words.textContent);
}
for (const diff of document.querySelectorAll(".highlight:has(.gi, .gd)")) {
    const button = diff.appendChild(document.createElement("button"));
    button.className = "md-clipboard";
    if (button.offsetParent) wider.push("a button that copies a diff, with its + signs");
}
return [screen, wider];
"""


@pytest.mark.seldom
def test_no_page_is_wider_than_its_screen_and_no_button_copies_a_diff(site_folder, browser):
    for page in [*sorted(site_folder.glob("*.html")), site_folder / "source" / "cleanrl" / "ppo.py.html"]:
        for width in (1400, 390):
            size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
            browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
            browser.get(page.as_uri())
            screen, wider = browser.execute_script(WIDER)
            assert screen == width and not wider, f"{page.name}, {width} px: {wider}"


DOTS = """
const svg = document.querySelector(".clip svg"), slider = document.querySelector(".clip input"), on = [];
const lines = [...svg.querySelectorAll("path")].filter((path) => path.getAttribute("stroke-width") === "3.5");
for (const ratio of [0.5, 0.7, 1, 1.25, 1.5]) {
    slider.value = ratio;
    slider.dispatchEvent(new Event("input"));
    const circles = [...svg.querySelectorAll("circle")];
    const dots = circles.map((circle) => new DOMPoint(circle.cx.baseVal.value, circle.cy.baseVal.value));
    on.push(...lines.map((line, i) => line.isPointInStroke(dots[i])));
}
return [on, [...document.querySelectorAll(".clip output")].map((output) => output.innerText)];
"""


@pytest.mark.seldom
def test_the_clips_dots_move_on_the_lines_that_were_drawn(site_folder, browser):
    browser.get((site_folder / "ppo-in-one-page.html").as_uri())
    on, said = browser.execute_script(DOTS)
    assert on == [True] * 10
    assert said == ["min(1.50, 1.20) = 1.20\nflat: no gradient", "min(−1.50, −1.20) = −1.50\nthe gradient lowers ρ"]
    dot = browser.find_elements("css selector", ".clip circle")[1]
    ActionChains = importlib.import_module("selenium.webdriver").ActionChains
    ActionChains(browser).drag_and_drop_by_offset(dot, -150, 0).perform()
    ratio = float(browser.execute_script("return document.querySelector('.clip input').value"))
    assert 0.6 < ratio < 1.2


def test_drawings_are_what_their_script_draws(tmp_path):
    import drawings

    for draw in drawings.ALL:
        draw(tmp_path)
    drawn = {path.name: path.read_text("utf-8") for path in tmp_path.iterdir()}
    kept = {path.name: path.read_text("utf-8") for path in (ROOT / "docs" / "images").glob("*.svg")}
    by_hand = {"agent_and_environment", "clipped_objective", "dones_and_offsets", "gae_sum", "lstm_minibatches"}
    by_hand |= {"ppo_loop", "three_ends", "two_networks"}
    assert kept.keys() - drawn.keys() == {f"{name}.svg" for name in by_hand}
    assert drawn == {name: kept[name] for name in drawn}
