"""What mkdocs reads from the repository when it builds the pages, so that no page repeats what a file already says.

- the navigation: the pages that are there, in the order of SECTIONS; any other page comes at the end
- `<!-- options ppo -->`, `<!-- details ppo -->`, `<!-- metrics ppo -->`, `<!-- result ppo -->`,
  `<!-- diff ppo_atari -->`: the options with their help, the tags with their lines, the explained metrics, table and
  curves of benchmark/results, docs/diffs/ppo_atari.diff. A page that is named after a script gets those that it does
  not place itself, at its end; `<!-- scripts a b -->` names others or more.
- `<!-- stages -->`: where the time goes, from the measurements of benchmark/results/throughput
- links out of docs/, `../cleanrl/ppo.py#L300`: to a page with the file's source and its line; `ppo.py#core-5` and
  `ppo.py#ppo_loss` are the lines with the tag and with the definition
- every tag of a detail, `core-5`, in pages and listings: a link to its section of details.md
- formulas in LaTeX, `$\\gamma$` and `$$…$$`: MathML, which needs neither a script nor a font from elsewhere
- pictures of docs/images/*.svg: a part of the page, so that they follow its colours
"""

import ast
import html
import json
import posixpath
import re
from pathlib import Path
from xml.etree import ElementTree

from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File
from mkdocs.utils import get_relative_url
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import TextLexer, get_lexer_for_filename
from pygments.util import ClassNotFound

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmark" / "results"
SECTIONS = {
    "Start": ["index"],
    "Scripts": [
        "ppo", "ppo_multidiscrete", "ppo_continuous_action", "ppo_numpy", "ppo_atari", "ppo_atari_lstm",
        "ppo_atari_envpool", "ppo_atari_multigpu", "ppo_procgen",
    ],
    "Understand": [
        "gallery", "build-it", "details", "ablations", "how-an-episode-ends", "gradients-by-hand", "speed", "scale",
    ],
    "Use": ["resume-evaluate-share", "tracking", "sweeps", "recipes", "make-it-your-own", "troubleshooting"],
}  # fmt: skip
PARTS = {
    "options": "Options", "details": "Details", "metrics": "Metrics", "result": "Results",
    "diff": "The diff to the parent",
}  # fmt: skip
LINK = re.compile(r"\]\((\.\./[^)#\s]+)(?:#L(\d+)(?:-L\d+)?)?\)")
NAMED = re.compile(r"\]\((\.\./[^)#\s]+\.py)#(?!L\d)([\w.-]+)\)")
TAG = re.compile(r"\b(?:core|atari|cont|lstm|multi|aux|plus)-\d+\b|(?<=\[)impala(?=\])")
HEADING = re.compile(r'^### <a id="([\w-]+)"></a>`\1` (.+)$', re.MULTILINE)
CODE = re.compile(r"^( *)(```+).*?^\1\2$|(`+)(?!`).+?(?<!`)\3(?!`)", re.MULTILINE | re.DOTALL)
FORMULA = re.compile(r"\$\$(.+?)\$\$|(?<![\\$\w])\$(?![\s$])([^$]+?)(?<![\s\\])\$(?!\w)", re.DOTALL)
NAMES = "log|exp|max|min|clip"  # of functions, in formulas
CHILDREN = {"mfrac": 2, "msup": 2, "msub": 2, "msubsup": 3, "mover": 2, "munder": 2, "munderover": 3}  # of MathML
LEFT_OUT = re.compile(r"steps|steps/s|minutes.*|IQM.*")  # columns of one machine, or that would hide the published ones


# ------------------------------------------------------------------------------------------------- What a script says


def source(script: str) -> str:
    path = ROOT / "cleanrl" / f"{script}.py"
    if not path.is_file():
        raise PluginError(f"docs: a page speaks of {script}, but there is no cleanrl/{script}.py")
    return path.read_text()


def cell(text: str) -> str:
    return text.replace("|", "\\|")


def options(script: str, unlike: str | None = None) -> str:
    """A table of Args: flag, default and inline help, by its groups; only what differs from the script `unlike`."""
    if unlike:
        head, *rows = options(script).splitlines()
        rows, others = (
            [row for row in table if row.startswith("| `--")] for table in (rows, options(unlike).splitlines())
        )
        new = [row for row in rows if row not in others and "`--exp-name" not in row]
        flags = [row.split("`")[1].split()[0] for row in rows]
        gone = [flag for row in others if (flag := row.split("`")[1].split()[0]) not in flags]
        text = f"Those of {unlike}.py" + (f", without `{'`, `'.join(gone)}`" if gone else "")
        return f"{text}, except:\n\n" + "\n".join([head, "|---|---|---|", *new]) + "\n" if new else f"{text}.\n"
    text = source(script)
    (args,) = (node for node in ast.parse(text).body if isinstance(node, ast.ClassDef) and node.name == "Args")
    lines, rows = text.splitlines(), ["| option | default | |", "|---|---|---|"]
    for number in range(args.lineno, args.end_lineno):
        line = lines[number]
        if group := re.fullmatch(r"    # (.+)", line):
            rows.append(f"| **{group[1]}** | | |")
        elif knob := re.fullmatch(r"    (\w+): (.+?) = (.+?)  # (.+)", line):
            name, kind, default, help_ = knob.groups()
            if default.startswith("Path(__file__)"):
                default = script
            default = default.replace("field(default_factory=list)", "[]")
            flag = f"--{name.replace('_', '-')}"
            rows.append(f"| `{flag}{'' if kind == 'bool' else ' ' + 'X'}` | `{cell(default)}` | {cell(help_)} |")
        elif line.startswith("    @property"):
            break
    known = [node.target.id for node in args.body if isinstance(node, ast.AnnAssign)]
    if len(known) != sum("`--" in row for row in rows):
        raise PluginError(
            f"docs: {script}.py: an option without an inline help; one knob a line, `name: type = default  # help`"
        )
    on = [name for name in known if re.search(rf"^    {name}: bool = True ", text, re.MULTILINE)]
    off = f" What is `True` is turned off by `--no-…`: `--no-{on[-1].replace('_', '-')}`." if on else ""
    return "\n".join(rows) + f"\n\n`python cleanrl/{script}.py --help` prints them too.{off}\n"


def details(script: str) -> str:
    """A table of the tags in the order of the file, each with its line."""
    rows = ["| detail | line | |", "|---|---|---|"]
    for number, line in enumerate(source(script).splitlines(), 1):
        for tag in re.findall(r"\[((?:core|atari|cont|lstm|multi|aux|plus|impala)(?:-\d+)?)\]", line.partition("#")[2]):
            code = re.sub(r"\s*#.*", "", line).strip() or line.strip()
            code = f"`` {cell(code)} ``" if "`" in code else f"`{cell(code)}`"
            rows.append(f"| `{tag}` | [{number}](../cleanrl/{script}.py#L{number}) | {code} |")
    return "\n".join(rows) + "\n"


def metrics(script: str) -> str:
    """The table of metrics on the page of ppo.py, as far as the script writes them."""
    names = re.findall(r"(?:charts|losses)/[A-Za-z_]+", source(script))
    page = (ROOT / "docs" / "ppo.md").read_text()
    rows, explained = ["| metric | meaning |", "|---|---|"], set()
    for cells, meaning in re.findall(r"^\| (`(?:charts|losses)/.+?) \| (.+) \|$", page, re.MULTILINE):
        if written := set(re.findall(r"`(.+?)`", cells)) & set(names):
            rows.append(f"| {cells} | {meaning} |")
            explained |= written
    if missing := set(names) - explained:
        raise PluginError(f"docs: {script}.py writes {', '.join(sorted(missing))}, which docs/ppo.md doesn't explain")
    return "\n".join(rows) + "\n\nLosses are means over all samples of all minibatches of the update.\n"


def results(name: str) -> str:
    """The table and the learning curves that benchmark/report.py made, or nothing."""
    if not (RESULTS / f"{name}.md").is_file():
        return ""
    rows = [[x.strip() for x in row.split("|")[1:-1]] for row in (RESULTS / f"{name}.md").read_text().splitlines()]
    columns = zip(*(row for row in rows if not set("".join(row)) <= {*"-:"}))
    kept = [i for i, (x, *cells) in enumerate(columns) if not LEFT_OUT.fullmatch(x) and {*cells} != {"–"}]
    table = "".join(f"| {' | '.join(row[i] for i in kept)} |\n" for row in rows)
    curves = (
        f"![learning curves, {name}](../benchmark/results/{name}.png)\n" if (RESULTS / f"{name}.png").is_file() else ""
    )
    return f"{table}\n{curves}"


def parent(script: str) -> str | None:
    found = re.search(r"^Parent: (\w+)\.py", source(script), re.MULTILINE)
    return found and found[1]


def fold(title: str, block: str) -> str:
    return f'??? note "{title}"\n\n' + "\n".join(f"    {line}" for line in block.splitlines()) + "\n"


def diff(script: str) -> str:
    """docs/diffs/{script}.diff, folded in; or nothing where there is none."""
    path = ROOT / "docs" / "diffs" / f"{script}.diff"
    if not path.is_file():
        return ""
    text = path.read_text().rstrip("\n")
    hunks = len(re.findall(r"^@@", text, re.MULTILINE))
    changes = re.search(r"^Parent: .*?Changes: (.+?)^(?:Details:|\"\"\")", source(script), re.MULTILINE | re.DOTALL)
    title = f"{script}.py against {parent(script)}.py: {hunks} hunks"
    block = f"````diff\n{text}\n````"
    intro = " ".join(changes[1].split()) + "\n\n" if changes else ""
    return intro + fold(title, block)


# -------------------------------------------------------------------------------------------------- What was measured


def measurements() -> dict[str, dict]:
    files = sorted(RESULTS.glob("throughput/*.json"), key=lambda path: (len(path.stem), path.stem))
    return {path.stem: json.loads(path.read_text()) for path in files}


def measured_sides(name: str, measured: dict) -> list[tuple[str, str, str]]:
    """The script and, where it was measured against other arguments, the script with them: the key of the numbers, that
    of the ratios, and the script as it was called."""
    sides = [("script", "ratios", "arguments"), ("against", "against_ratios", "against")]
    processes = measured["options"].get("processes", 1)
    times = {"script": f"{processes} × ", "against": "1 × "} if processes > 1 else {"script": "", "against": ""}
    return [
        (key, ratios, f"{times[key]}{name}.py {measured['options'].get(option) or ''}".strip())
        for key, ratios, option in sides
        if key in measured["medians"]
    ]


def stages() -> str:
    """ms of an update and where they go, in the script and in stable-baselines3 with one thread."""
    rows = ["| | ms an update | environment | policy | update |", "|---|---:|---:|---:|---:|"]
    for name, measured in measurements().items():
        labels = [(key, f"**{called}**") for key, _, called in measured_sides(name, measured)]
        for key, label in (*labels, ("1 thread", "stable-baselines3, 1 thread")):
            if side := measured["medians"].get(key):
                parts = " | ".join(f"{side['ms'][part]:.1f}" for part in ("environment", "policy", "update"))
                rows.append(f"| {label} | {side['ms_per_update']:.1f} | {parts} |")
    return "\n".join(rows) + "\n"


# --------------------------------------------------------------------------------------------------------- Into pages


def title(page: Path) -> str:
    text = page.read_text()
    found = re.search(r"^# (.+)$", text, re.MULTILINE)
    return found[1].replace("`", "") if found else page.stem


def on_config(config):
    docs = Path(config.docs_dir)
    left = {path.stem for path in docs.glob("*.md")}
    nav = []
    for section, names in SECTIONS.items():
        there = [name for name in names if name in left]
        left -= set(there)
        if section == "Scripts":  # a new script's page slots in
            there += sorted(name for name in left if (ROOT / "cleanrl" / f"{name}.py").is_file())
            left -= set(there)
        pages = [{title(docs / f"{name}.md"): f"{name}.md"} for name in there]
        if section == "Start":
            nav.append({section: "index.md"})
        elif pages:
            nav.append({section: pages})
    nav += [{title(docs / f"{name}.md"): f"{name}.md"} for name in sorted(left)]
    config.nav = nav
    return config


def target(link: str) -> tuple[Path, str]:
    """The file that a link out of docs/ names, and the address of its page below docs/."""
    path = posixpath.normpath(posixpath.join("docs", link))
    return ROOT / path, f"source/{path}"


def on_files(files, config):
    """Adds a page for each file of the repository that a page links to, and the pictures."""
    linked = {f"../cleanrl/{path.name}" for path in (ROOT / "cleanrl").glob("*.py")}
    for page in Path(config.docs_dir).glob("*.md"):
        text = page.read_text()
        linked |= {match[1].rstrip("/") for match in [*LINK.finditer(text), *NAMED.finditer(text)]}
    linked |= {f"../benchmark/results/{path.name}" for path in RESULTS.glob("*.png")}
    for link in sorted(linked):
        path, uri = target(link)
        if path.suffix in (".png", ".svg"):
            files.append(File.generated(config, uri, abs_src_path=str(path)))
        elif path.is_file():
            head = f"---\nsearch:\n  exclude: true\nhide: [toc]\n---\n\n# {uri.removeprefix('source/')}\n"
            files.append(File.generated(config, f"{uri}.md", content=head))
        elif not path.exists():
            raise PluginError(f"docs: a page links to {link}, which isn't there")
    return files


def place(part: str, names: list[str]) -> str:
    """What a comment of this kind is replaced by."""
    if part == "stages":
        return stages()
    make = {"options": options, "details": details, "metrics": metrics, "result": results, "diff": diff}
    return "\n".join(make[part](name) for name in names)


def line_of(path: Path, name: str) -> int:
    """The line of a Python file with the definition of this name, or with the tag."""
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if re.match(rf"(?:def|class) {re.escape(name)}\b", line) or f"[{name}]" in line.partition("#")[2]:
            return number
    raise PluginError(f"docs: a page links to {name} of {path.relative_to(ROOT)}, which has no such definition or tag")


def take_out_formulas(markdown: str, page) -> str:
    """The text with a word in place of each formula, so that Markdown leaves it alone; `put_in_formulas` knows them."""

    def mathml(match):
        latex, display = (match[1], "block") if match[1] else (match[2], "inline")
        made = convert(" ".join(latex.split()), display=display)
        if "\\" in made:  # a command that the library doesn't know is left as it is
            raise PluginError(f"docs: {page.file.src_uri}: no MathML for the formula {latex.strip()}")
        made = re.sub(rf"<mo>({NAMES})</mo>", r"<mi>\1</mi>", made)
        thin = '<mspace width="0.17em"/>'  # which TeX sets around log and the like
        made = re.sub(rf"(<mi>(?:{NAMES})</mi>)(?!<mo stretchy|</m)", rf"\1{thin}", made)
        made = re.sub(rf"(&#x02202;</mo>|</m(?:i|n|text|row)>)(?=<mi>(?:{NAMES})</mi>)", rf"\1{thin}", made)
        for node in ElementTree.fromstring(made).iter():
            if len(node) != CHILDREN.get(node.tag.rpartition("}")[2], len(node)):
                raise PluginError(f"docs: {page.file.src_uri}: wrong MathML of the formula {latex.strip()}")
        page.formulas.append(f'<span class="formula">{made}</span>' if display == "block" else made)
        return f"xFORMULA{len(page.formulas) - 1}x"

    parts, end = [], 0
    for code in CODE.finditer(markdown):
        parts += [FORMULA.sub(mathml, markdown[end : code.start()]), code[0]]
        end = code.end()
    return "".join([*parts, FORMULA.sub(mathml, markdown[end:])])


def put_in_formulas(text: str, page) -> str:
    return re.sub(r"xFORMULA(\d+)x", lambda match: page.formulas[int(match[1])], text)


def link_tags(text: str, page, config) -> str:
    """HTML in which every tag of a detail leads to its section; those in links and headings stay as they are."""
    names = dict(HEADING.findall((Path(config.docs_dir) / "details.md").read_text()))
    here = page.file.src_uri == "details.md"
    address = "" if here else get_relative_url("details.html", page.url)

    def link(match):
        if match[0] not in names:
            return match[0]
        name = html.escape(names[match[0]], quote=True)
        return f'<a class="tag" href="{address}#{match[0]}" title="{name}">{match[0]}</a>'

    parts, inside = re.split(r"(<[^>]*>)", text), []
    for i, part in enumerate(parts):
        if element := re.match(r"<(/?)(a|h\d|svg|math|script|style|button)\b", part):
            inside = inside[:-1] if element[1] else [*inside, element[2]]
        elif not inside and not part.startswith("<"):
            whole = part == "impala" and parts[i - 1 : i + 2 : 2] == ["<code>", "</code>"]
            parts[i] = link(re.match("impala", part)) if whole else TAG.sub(link, part)
    return "".join(parts)


def put_in_drawings(text: str, config) -> str:
    """HTML with the SVG itself in place of a picture of it. It is dark where the page is, not where the system is."""

    def drawing(match):
        svg = (Path(config.docs_dir) / "images" / f"{match[2]}.svg").read_text()
        dark = r"@media \(prefers-color-scheme: dark\) \{ (svg\.drawing \{.*?\}) \}"
        svg = re.sub(dark, r'[data-md-color-scheme="slate"] \1', svg)
        return svg.replace("<svg ", f'<svg role="img" aria-label="{match[1]}" ', 1)

    return re.sub(r'<img alt="([^"]*)" src="images/([\w-]+)\.svg" ?/?>', drawing, text)


def widen(text: str) -> str:
    """HTML in which curves of several panels have a class of their own: on a narrow screen they scroll, or nobody could
    read them."""

    def panels(match):
        svg = (ROOT / match[1]).with_suffix(".svg").read_text()
        inches = float(re.search(r'width="([\d.]+)pt"', svg)[1]) / 72
        return match[0].replace("<img ", '<img class="panels" ', 1) if inches > 6 else match[0]

    return re.sub(r'<img [^>]*src="(?:\.\./)*source/(benchmark/results/[\w/-]+)\.(?:png|svg)"', panels, text)


def on_page_markdown(markdown, page, config, files):
    if page.file.src_uri.startswith("source/"):
        return markdown
    markdown = HEADING.sub(r"### `\1` \2 {#\1}", markdown)
    page.formulas = []
    markdown = take_out_formulas(markdown, page)
    scripts = re.search(r"<!-- scripts (.+?) -->", markdown)
    stem = Path(page.file.src_uri).stem
    names = scripts[1].split() if scripts else [stem] if (ROOT / "cleanrl" / f"{stem}.py").is_file() else []
    for part, heading in PARTS.items():
        placed = set(" ".join(re.findall(rf"<!-- {part} (.+?) -->", markdown)).split())
        if part == "metrics" and (placed or "\n## Metrics\n" in markdown):
            continue
        missing = [name for name in (names[:1] if part == "metrics" else names) if name not in placed]
        if part == "result" and "<!-- results " in markdown:
            missing = []
        blocks = [(name, block) for name in missing if (block := place(part, [name]))]
        if part == "options":
            blocks = [(name, block if name == names[0] else options(name, unlike=names[0])) for name, block in blocks]
        if blocks:
            markdown += f"\n## {heading}\n"
        for name, block in blocks:
            if part == "details" and name != names[0]:  # the parent's, at other lines, and a few more
                markdown += "\n" + fold(f"Details of {name}.py", block)
            else:
                markdown += (f"\n### {heading} of {name}.py\n" if len(blocks) > 1 else "") + f"\n{block}"

    def fill(match):
        if match[1] not in {*PARTS, "stages"}:
            return match[0]
        return place(match[1], (match[2] or "").split())

    # a table that report.py keeps between two comments is left as it is
    markdown = re.sub(r"^<!-- (\w+)((?: \w+)*) -->\n(?!\|)", lambda m: fill(m) + "\n", markdown, flags=re.MULTILINE)
    markdown = take_out_formulas(markdown, page)  # the metrics' are another page's

    def link(match):
        path, uri = target(match[1].rstrip("/"))
        if path.is_dir():
            return f"]({match[1]})"
        uri = uri if path.suffix in (".png", ".svg") else f"{uri}.md"
        return f"]({uri}{'#L-' + match[2] if match[2] else ''})"

    markdown = NAMED.sub(lambda m: f"]({m[1]}#L{line_of(target(m[1])[0], m[2])})", markdown)
    markdown = LINK.sub(link, markdown)
    coming = {
        name for names in SECTIONS.values() for name in names if not (Path(config.docs_dir) / f"{name}.md").exists()
    }
    if coming:  # a page of the navigation that isn't written yet is named without a link
        markdown = re.sub(rf"\[([^\]]*)\]\((?:{'|'.join(coming)})\.md[^)]*\)", r"\1", markdown)
    return re.sub(r"\[([^\]]*)\]\(\.\./[^)]*\)", r"\1", markdown)  # a folder has no page


def on_page_content(html, page, config, files):
    if page.file.src_uri.startswith("source/"):
        path = ROOT / page.file.src_uri.removeprefix("source/").removesuffix(".md")
        try:
            lexer = get_lexer_for_filename(path.name)
        except ClassNotFound:
            lexer = TextLexer()
        formatter = HtmlFormatter(linenos="inline", lineanchors="L", anchorlinenos=True, cssclass="highlight source")
        return link_tags(html + highlight(path.read_text(), lexer, formatter), page, config)
    return widen(put_in_formulas(link_tags(put_in_drawings(html, config), page, config), page))
