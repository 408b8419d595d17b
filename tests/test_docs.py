"""The pages: every command runs, every example gives the output that is shown, every link leads somewhere, every
message of the scripts is explained, and the site builds without a warning.

In a page, ```bash blocks are commands, and other blocks that begin with one. A command that ends with the comment
`# long …` isn't run, nor is one with `# on a GPU` where there is none, nor a block after `<!-- long: why -->` or after
`<!-- tested: tests/test_x.py -->`, which names the test of such commands. `runs/RUN` is
the last run of the command's script. A ```python or ```diff block with a title is written to the file of that name, or
applied to it; a ```text block titled "output" is what the command before it prints.
"""

import ast
import importlib.util
import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import tomllib
from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import build_it
import drawings
import pytest
import torch

ROOT = Path(__file__).parents[1]
PAGES = [*sorted(ROOT.glob("docs/*.md")), ROOT / "README.md"]
SCRIPTS = sorted(path.stem for path in ROOT.glob("cleanrl/*.py"))
COMMAND = r"(?:python |torchrun |pip install |make |benchmark/|[A-Z_]+=\S+ (?:python|torchrun) )"
FENCE = re.compile(r"(?:^<!-- (long|tested): (.+?) -->\n\n?)?^```(\w+)(?: title=\"(.+?)\")?\n(.*?)^```$", re.M | re.S)
ELSEWHERE = {  # commands that prepare the environment, or serve until they are stopped, and where they are run
    "make train": "Makefile",
    "make test": ".ci/run",
    "make results": "tests/test_report.py",
    "source .venv/bin/activate": "Makefile",
    "tensorboard --logdir runs": "tests/helpers.py",
}


@dataclass
class Block:
    marker: str | None  # long or tested
    reason: str | None
    language: str
    title: str | None
    text: str


def blocks(page):
    text = re.sub(rf"^```\n(?={COMMAND})(.*?^```$)", r"```bash\n\1", page.read_text(), flags=re.M | re.S)
    text = re.sub(
        rf"(?<=\n\n)    {COMMAND}.*\n(?:    .*\n)*",
        lambda indented: "```bash\n" + re.sub("^    ", "", indented[0], flags=re.M) + "```\n",
        text,
    )
    return [Block(*match.groups()) for match in FENCE.finditer(text)]


ran = set()


def commands(text):
    """The commands of a bash block, without their comments; those marked as long are left out."""
    for line in text.replace("\\\n", " ").splitlines():
        command, _, comment = re.fullmatch(r"(.*?)(\s+#\s*(.*))?", line.strip()).groups()
        skipped = re.match("long" if torch.cuda.is_available() else "long|on a GPU", comment or "")
        if command and not command.startswith("#") and not skipped:
            yield command


# ------------------------------------------------------------------------------------------------------------ Commands


@pytest.fixture(scope="module")
def python():
    """Types a command line of Python; see docs_commands.py. Returns exit status, stdout and stderr."""
    server = subprocess.Popen(
        [sys.executable, ROOT / "tests" / "docs_commands.py"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )

    def run(argv, folder, env):
        output, errors = folder / "stdout", folder / "stderr"
        job = {"argv": argv, "folder": str(folder), "env": env, "output": str(output), "errors": str(errors)}
        print(json.dumps(job), file=server.stdin, flush=True)
        return int(server.stdout.readline()), output.read_text(), errors.read_text()

    yield run
    server.stdin.close()
    server.wait(timeout=10)


def small(argv, folder):
    """Fewer steps and episodes for a script whose command doesn't say how many, and one thread."""
    flags, text = {word.split("=")[0] for word in argv}, (folder / argv[0]).read_text()
    if "    num_threads:" in text and not flags & {"--num-threads", "--resume"}:
        argv = [*argv, "--num-threads", "1"]
    if "--evaluate" in flags:
        return argv if "--episodes" in flags else [*argv, "--episodes", "1"]
    if flags & {"--total-timesteps", "--resume", "--help"}:
        return argv
    if "capture_video: bool = True" in text:
        argv = [*argv, "--no-capture-video"]
    environments = 8 if "--num-envs" in flags else int(re.search(r"    num_envs: int = (\d+)", text)[1])
    if environments > 4 and "--num-envs" not in flags:  # of games, which take a tenth of a second to load
        environments, argv = 2, [*argv, "--num-envs", "2"]
    sizes = (
        f"--num-steps 16 --num-minibatches 2 --update-epochs 1 --checkpoints 1 --total-timesteps {environments * 32}"
    )
    return argv + sizes.split()


def fill_in_run(argv, folder, python):
    """The last run of the script in place of runs/RUN; where there is none yet, a small one."""
    if "runs" in argv and not list(folder.glob("runs/*")):  # a tool that takes them all; other pages ran the scripts
        python(small(["cleanrl/ppo_numpy.py"], folder), folder, {})
    if not any("runs/RUN" in word for word in argv):
        return argv
    script = argv[0].rpartition("/")[2]
    mine = script if argv[0].startswith("cleanrl/") else "*.py"
    if not list(folder.glob(f"runs/*/{mine}")):
        python(small([argv[0]], folder), folder, {})
    runs = sorted(folder.glob(f"runs/*/{mine}"), key=lambda path: path.stat().st_mtime)
    assert runs, f"{argv}: no run of {script}"
    return [word.replace("runs/RUN", str(runs[-1].parent.relative_to(folder))) for word in argv]


def check_elsewhere(command):
    """Whether a command isn't run here, and then what it needs is there."""
    if command in ELSEWHERE:
        assert (ROOT / ELSEWHERE[command]).is_file()
        if command.startswith("make "):
            assert re.search(rf"^{command[5:]}:", (ROOT / "Makefile").read_text(), re.M), command
        return True
    if command.startswith("pip install"):
        words = shlex.split(command)[2:]
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        for word in words:
            if named := re.fullmatch(r"\.\[(.+)\]", word):
                assert set(named[1].split(",")) <= extras.keys(), command
            elif word.endswith(".txt"):
                assert (ROOT / word).is_file(), command
            else:
                assert word in ("-e", "-r", "--no-deps"), command
        return True
    return False


@pytest.mark.parametrize("page", PAGES[:-1], ids=lambda page: page.stem)  # the README's: test_readme.py
def test_commands_and_examples_of_a_page(page, python, tmp_path):
    for entry in ROOT.iterdir():
        if entry.name == "cleanrl":
            shutil.copytree(entry, tmp_path / entry.name, ignore=shutil.ignore_patterns("__pycache__"))
        elif entry.name not in ("runs", ".git", ".venv", "site"):
            (tmp_path / entry.name).symlink_to(entry)
    output = None
    for block in blocks(page):
        if block.marker == "tested":
            assert (ROOT / block.reason).is_file(), block.reason
        if block.marker:
            continue
        if block.title and block.language == "python":
            (tmp_path / block.title).write_text(block.text)
        elif block.title and block.language == "diff":
            path = tmp_path / block.title
            path.write_text(build_it.apply(block.text, path.read_text()))
        elif block.title == "output":
            assert output == block.text
        elif block.language == "bash":
            for command in commands(block.text):
                if check_elsewhere(command) or command in ran:
                    continue
                if any(command.startswith(f"python cleanrl/{script}.py") for script in SCRIPTS):
                    ran.add(command)  # nothing but the scripts decides what it does: once for all pages
                words = shlex.split(command)
                env = {}
                while "=" in words[0]:
                    name, _, value = words.pop(0).partition("=")
                    env[name] = value
                if words[0] == "python":
                    argv = fill_in_run(words[1:], tmp_path, python)
                    if argv[0].startswith("cleanrl/"):
                        argv = small(argv, tmp_path)
                    status, output, errors = python(argv, tmp_path, env)
                else:
                    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
                    done = subprocess.run(
                        ["bash", "-c", command],
                        cwd=tmp_path,
                        env=os.environ | {"PATH": path},
                        capture_output=True,
                        text=True,
                    )
                    status, output, errors = done.returncode, done.stdout, done.stderr
                assert status == 0, f"{command}\n{output}\n{errors}"


# --------------------------------------------------------------------------------------------------------------- Links


@cache
def text_of(path):
    return path.read_text()


@cache
def slugs(page):
    """The anchors of a page: its headings as mkdocs names them, and ids that are given."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)
    found = set(re.findall(r"""(?:\{[^}\n]*#|id=["'])([\w-]+)""", text))
    for heading in re.findall(r"^#+ (.+)$", text, re.M):
        plain = re.sub(r"\[(.+?)\]\(.+?\)|[`*]", r"\1", re.sub(r"\s*\{.*\}$", "", heading))
        found.add(re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower()))
    return found


@cache
def coming():
    """Pages that the navigation has a place for and that aren't written yet."""
    tree = ast.parse((ROOT / "docs" / "hooks.py").read_text())
    (sections,) = (
        ast.literal_eval(n.value) for n in tree.body if isinstance(n, ast.Assign) and n.targets[0].id == "SECTIONS"
    )
    named = {f"{name}.md" for names in sections.values() for name in names}
    return {name for name in named if not (ROOT / "docs" / name).exists()}


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=lambda page: page.stem)
def test_links_of_a_page_lead_to_files_lines_and_headings(page):
    text = re.sub(r"^```.*?^```$", "", text_of(page), flags=re.M | re.S)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"https?:|mailto:", link):
            continue
        name, _, anchor = link.partition("#")
        path = (page.parent / name).resolve() if name else page
        if page.parent.name == "docs" and name in coming():
            continue
        assert path.exists(), f"{page.name}: {link}"
        assert path.is_relative_to(ROOT), f"{page.name}: {link}"
        if line := re.fullmatch(r"L(\d+)(-L\d+)?", anchor):
            assert int(line[1]) <= text_of(path).count("\n"), f"{page.name}: {link}"
        elif anchor and path.suffix == ".py":
            assert re.search(rf"^(def|class) {anchor}\b|# .*\[{anchor}\]", path.read_text(), re.M), (
                f"{page.name}: {link}"
            )
        elif anchor and path.suffix == ".md":
            generated = (
                {"options", "details", "metrics", "results", "the-diff-to-the-parent"}
                if path.stem in SCRIPTS
                else set()
            )
            assert anchor in slugs(path) | generated, f"{page.name}: {link}"


# ------------------------------------------------------------------------------------------------------------ Messages


@cache
def messages(script):
    """(line, pattern) of every message that the script can end with: its fixed parts, and anything between them."""
    tree = ast.parse((ROOT / "cleanrl" / f"{script}.py").read_text())
    texts = defaultdict(list)  # messages are put together from texts that were named before
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.value, ast.JoinedStr)
            and isinstance(node.targets[0], ast.Name)
        ):
            texts[node.targets[0].id].append(node.value)

    def patterns(node):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return [re.escape(" ".join(f"x{node.value}x".split())[1:-1])]
        if isinstance(node, ast.JoinedStr):
            return ["".join(parts) for parts in itertools.product(*map(patterns, node.values))]
        if isinstance(node, ast.FormattedValue) and isinstance(node.value, ast.Name) and node.value.id in texts:
            return [pattern for text in texts[node.value.id] for pattern in patterns(text)]
        if isinstance(node, ast.BinOp):
            return ["".join(parts) for parts in itertools.product(patterns(node.left), patterns(node.right))]
        return [".+"]

    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name))
    return [
        (call.lineno, re.sub(r"(\.\+)+", ".+", pattern))
        for call in calls
        if call.func.id == "fail"
        for pattern in patterns(call.args[0])
    ]


def explained():
    """(section, message) of the list on the page."""
    section = ""
    for line in (ROOT / "docs" / "troubleshooting.md").read_text().splitlines():
        if line.startswith("## "):
            section = line[3:]
        elif entry := re.match(r"- `(.+?)`", line):
            yield section, entry[1]


def belongs(section, script):
    """Whether the messages of a section can be the script's: "Only in a.py and b.py" names those that say them."""
    return not section.startswith("Only in ") or f"{script}.py" in section.split()


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_message_is_explained(script):
    assert len(messages(script)) >= 10
    known = [message for section, message in explained() if belongs(section, script)]
    for line, pattern in messages(script):
        assert any(re.fullmatch(pattern, message) for message in known), (
            f"{script}.py:{line}: a message that docs/troubleshooting.md doesn't list: {pattern}"
        )


def test_every_explained_message_exists():
    for section, message in explained():
        scripts = [script for script in SCRIPTS if belongs(section, script)]
        sources = [" ".join((ROOT / "cleanrl" / f"{script}.py").read_text().split()) for script in scripts]
        printed = any(max(message.split("…"), key=len).strip() in source for source in sources)
        patterns = [pattern for script in scripts for _, pattern in messages(script)]
        words = len(re.findall("[a-z]", re.sub(r"--[\w-]+", "", message))) > 12  # else ".+: .+" may be the one meant
        telling = [x for x in patterns if not words or len(re.findall("[a-z]", x)) > 12]
        failing = any(re.fullmatch(pattern, message) for pattern in telling)
        assert not scripts or failing or (section == "During a run" and printed), f"no script says: {message}"


# ---------------------------------------------------------------------------------------------------------------- Site


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
        if tag == "link" and given.get("href") and given.get("rel") != "canonical":
            self.loads.add(given["href"])


@pytest.fixture(scope="module")
def site_folder(tmp_path_factory):
    """The pages as mkdocs builds them."""
    if not all(importlib.util.find_spec(name) for name in ("mkdocs", "material", "latex2mathml")):
        pytest.skip("mkdocs isn't installed; `make test` installs it, from requirements-docs.txt")
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder]
    done = subprocess.run(
        build, cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True
    )
    assert done.returncode == 0 and "WARNING" not in done.stderr, done.stderr
    return folder


@pytest.fixture(scope="module")
def site(site_folder):
    """The built pages by their names, and the names of all files."""
    pages = {str(path.relative_to(site_folder)): Anchors(path.read_text()) for path in site_folder.rglob("*.html")}
    return pages, {str(path.relative_to(site_folder)) for path in site_folder.rglob("*")}


def test_every_link_of_the_site_leads_somewhere(site):
    pages, files = site
    some = 0
    for name, page in pages.items():
        if name == "404.html":  # its links start at the address of the site
            continue
        folder = Path(name).parent
        for link in page.links | page.loads:
            if re.match(r"https?:|mailto:|data:", link):
                continue
            address, _, anchor = unquote(link).partition("#")
            target = os.path.normpath(folder / address) if address else name
            assert target in files | {"."}, f"{name}: {link}"
            if anchor and target in pages:
                some += 1
                assert anchor in pages[target].ids, f"{name}: {link}"
    assert some > 100


def test_pages_load_nothing_from_elsewhere(site):
    pages, _ = site
    assert not {load for page in pages.values() for load in page.loads if re.match(r"(https?:)?//", load)}
    assert not any("fonts.g" in page.text for page in pages.values())


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_has_a_page_with_its_options_details_and_diff(script, site):
    owners = [page.stem for page in PAGES if re.search(rf"<!-- scripts .*\b{script}\b.* -->", page.read_text())]
    page = site[0][f"{owners[0] if owners else script}.html"]
    text = (ROOT / "cleanrl" / f"{script}.py").read_text()
    knobs = re.findall(r"^    (\w+): [^=\n]+ = .+?  # (.+)$", text, re.M)
    assert len(knobs) > 25
    for name, help_ in knobs:
        assert f"<code>--{name.replace('_', '-')}" in page.text, name
        assert help_.split("`")[0].split("'")[0].split("&")[0].split("<")[0] in page.text, help_
    for number, line in enumerate(text.splitlines(), 1):
        if re.search(r"#.*\[(core|atari|cont|lstm|multi|aux|plus)-\d+\]", line):
            assert f"source/cleanrl/{script}.py.html#L-{number}" in page.links, line
    assert f"source/cleanrl/{script}.py.html" in {link.partition("#")[0] for link in page.links}
    if (ROOT / "docs" / "diffs" / f"{script}.diff").is_file():
        assert f"{script}.py against" in page.text


def test_the_pins_of_the_pages_are_the_projects():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    pins = (ROOT / "requirements-docs.txt").read_text().split()
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", pin) for pin in pins)
    assert set(extras["docs"]) <= set(pins)


def test_speed_is_what_was_measured(site):
    for path in ROOT.glob("benchmark/results/throughput/*.json"):
        measured = json.loads(path.read_text())["medians"]["script"]["steps_per_second"]
        assert f"{measured:,.0f}" in site[0]["speed.html"].text, path.name


class Tags(HTMLParser):
    """The tags of details in the text of a page, each with the link that it stands in, or None; not those of headings,
    drawings and formulas."""

    TAG = re.compile(r"\b(?:core|atari|cont|lstm|multi|aux|plus)-\d+\b|(?<=\[)impala(?=\])")

    def __init__(self, html):
        super().__init__()
        self.inside, self.link, self.headings, self.tags = [], None, [], []
        self.feed(re.search(r"<article.*?</article>", html, re.S)[0])

    def handle_starttag(self, tag, attributes):
        if re.fullmatch(r"h\d|svg|math|script|style", tag):
            self.inside.append(tag)
            self.headings += [""] if tag == "h3" else []
        elif tag == "a":
            self.link = dict(attributes).get("href") or self.link

    def handle_endtag(self, tag):
        if self.inside and tag == self.inside[-1]:
            self.inside.pop()
        elif tag == "a":
            self.link = None

    def handle_data(self, text):
        if "h3" in self.inside:
            self.headings[-1] += text
        elif not self.inside:
            self.tags += [(tag, self.link) for tag in self.TAG.findall(text)]


def test_every_tag_of_a_page_or_listing_links_to_its_section(site):
    pages, _ = site
    sections = dict(
        re.findall(r'^### <a id="([\w-]+)"></a>`\1` (.+)$', (ROOT / "docs" / "details.md").read_text(), re.M)
    )
    assert len(sections) >= 43 and set(sections) <= pages["details.html"].ids
    headings = Tags(pages["details.html"].text).headings
    assert [heading.rstrip("¶") for heading in headings] == [f"{tag} {name}" for tag, name in sections.items()]
    some = {}
    for name, page in pages.items():
        if name == "404.html":
            continue
        address = os.path.relpath("details.html", Path(name).parent) if name != "details.html" else ""
        tags = [(tag, link) for tag, link in Tags(page.text).tags if tag in sections]
        for tag, link in tags:
            # or a link of the page itself, to the line or the diff of the tag
            assert link and (link == f"{address}#{tag}" or link.startswith("source/")), f"{name}: {tag}: {link}"
        some[name] = len(tags)
    assert all(some[f"source/cleanrl/{script}.py.html"] > 20 for script in SCRIPTS)
    assert some["ppo.html"] > 15 and some["details.html"] > 5 and some["ppo_atari_lstm.html"] > 20
    assert f'<a class="tag" href="#core-13" title="{sections["core-13"]}">' in pages["details.html"].text


def test_formulas_are_mathml(site):
    pages, _ = site
    for name, page in pages.items():
        assert "xFORMULA" not in page.text, name
        prose = re.sub(r"<(pre|code|script|style|svg).*?</\1>", "", page.text, flags=re.S)
        assert not re.search(r"\$\S|\\(frac|text|log|gamma|lambda)", prose), name
    assert pages["gradients-by-hand.html"].text.count("<math ") > 80 and pages["details.html"].text.count("<math ") > 30
    assert "<mi>&#x003B3;</mi>" in pages["details.html"].text


def test_result_tables_have_no_column_of_the_machine(site):
    pages, _ = site
    for name in ("ppo.html", "ppo_continuous_action.html", "ppo_numpy.html"):
        tables = re.findall(r"<th>environment</th>\n<th>ours</th>.*?</tr>", pages[name].text, re.S)
        assert tables and all("baselines PPO" in table for table in tables), name
        assert not any(re.search(r"minutes|steps/s", table) for table in tables), name
    (table,) = re.findall(
        r"<th>environment</th>\n<th>steps</th>.*?<th>reached</th>.*?</tr>", pages["recipes.html"].text, re.S
    )
    assert not re.search(r"minutes|steps/s", table)


# ---------------------------------------------------------------------------------------------------------- In pictures


def test_drawings_are_what_their_script_draws(tmp_path):
    for draw in drawings.ALL:
        draw(tmp_path)
    drawn = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert drawn == {path.name: path.read_text() for path in (ROOT / "docs" / "images").glob("*.svg")}
    used = "".join(page.read_text() for page in PAGES)
    assert len(drawn) == 5 and all(f"](images/{name})" in used for name in drawn)


def luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    parts = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


def test_drawings_are_readable_in_both_colour_schemes():
    """WCAG asks for a contrast of 4.5 for text. The background is the theme's or a soft colour."""
    for i in (0, 1):
        colours = {name: pair[i] for name, pair in drawings.COLOURS.items()}
        paper = colours["paper"]
        for name in ("ink", "soft", "blue", "orange", "green", "violet"):
            for background in (paper, colours.get(f"{name}-soft", paper)):
                light, dark = sorted((luminance(colours[name]), luminance(background)), reverse=True)
                assert (light + 0.05) / (dark + 0.05) > 4.5, (name, background)


WIDER = """
const screen = document.documentElement.clientWidth, wider = [];
if (document.documentElement.scrollWidth > screen) wider.push("page: " + document.documentElement.scrollWidth);
for (const table of document.querySelectorAll("article table")) {
    const heads = [...table.querySelectorAll("th")].map(th => th.textContent);
    const box = table.closest(".md-typeset__scrollwrap");
    if (heads.includes("ours") && box.scrollWidth > box.clientWidth) wider.push("results: " + box.scrollWidth);
}
for (const words of document.querySelectorAll("svg.drawing text")) {
    const box = words.getBBox(), whole = words.ownerSVGElement.viewBox.baseVal;
    if (box.x < 0 || box.y < 0 || box.x + box.width > whole.width || box.y + box.height > whole.height)
        wider.push("drawing: " + words.textContent);
}
for (const math of document.querySelectorAll(".formula"))
    if (math.scrollWidth > math.clientWidth) wider.push("formula: " + math.textContent);
return [screen, wider];
"""


def test_no_page_is_wider_than_its_screen(site_folder, browser):
    pages = [*sorted(site_folder.glob("*.html")), site_folder / "source" / "cleanrl" / "ppo.py.html"]
    for page in pages:
        for width in (1400, 390):
            size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
            browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
            if width == 1400:
                browser.get(page.as_uri())
            for _ in range(50):  # until the theme has put its tables into boxes that scroll
                if browser.execute_script("return !document.querySelector('article :not(.md-typeset__table) > table')"):
                    break
                time.sleep(0.1)
            screen, wider = browser.execute_script(WIDER)
            if width == 390:  # tables and formulas scroll in themselves
                wider = [found for found in wider if found.startswith("page")]
            assert screen == width and not wider, f"{page.name} at {width}: {wider}"


def test_drawings_follow_the_colour_scheme_of_the_page(site_folder, browser):
    browser.get((site_folder / "how-an-episode-ends.html").as_uri())
    fill = "return getComputedStyle(document.querySelector('svg.drawing text[style*=green]')).fill"
    found = []
    for scheme, i in (("default", 0), ("slate", 1)):
        browser.execute_script("document.body.setAttribute('data-md-color-scheme', arguments[0])", scheme)
        red, green, blue = (int(drawings.COLOURS["green"][i][k : k + 2], 16) for k in (1, 3, 5))
        found.append(browser.execute_script(fill) == f"rgb({red}, {green}, {blue})")
    assert found == [True, True]
