"""What mkdocs does to the pages beyond Markdown. What the pages say is in them already: docs/build/fill.py writes the
blocks that repeat the scripts, and GitHub shows the same text.

- links out of docs/, `../cleanrl/ppo.py#L211`, and to docs/diffs lead to a page with the file's source
- a link to a diff is followed by the diff, folded; the search leaves out all diffs
- formulas, `$\\gamma$` and `$$…$$`, become MathML, which needs no script and no font from elsewhere
- pictures of docs/images/*.svg become a part of the page, so that they follow its colors
- a picture that links to a video becomes the video; those of the front page's strip play by themselves
- cells of tables with ▼ or ▲ alone get a color; so does each environment in a link to the ablations
"""

import logging
import posixpath
import re
from pathlib import Path

from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import TextLexer, get_lexer_for_filename
from pygments.util import ClassNotFound

LOG = logging.getLogger("mkdocs.plugins.docs")  # a warning fails a strict build
ROOT = Path(__file__).resolve().parents[1]
WIDE = ("index.md", "details.md")  # pages that need the room of the table of contents
PICTURES = (".png", ".svg", ".webp")
LINK = re.compile(r'\]\(((?:\.\./|diffs/)[^)#\s]+)(?:#L(\d+))?(?: "[^"]*")?\)')
FOLDER = re.compile(r"\[([^\]]*)\]\((\.\./[^)#\s]+)\)")
DIFF = re.compile(r"^.*\]\(diffs/(\w+)\.diff\).*$", re.MULTILINE)
DRAWING = re.compile(r'<img alt="([^"]*)" src="images/([\w-]+)\.svg"[^>]*>')
CLIP = re.compile(r'<a href="(videos/[\w-]+)\.mp4"><img [^>]*?alt="([^"]*)"[^>]*></a>')
WORSE = re.compile(r"<td>▼(?=[^▲≈]*?</td>)")  # but for cells that say different things of different environments
BETTER = re.compile(r"<td>▲(?=[^▼≈]*?</td>)")
EFFECTS = re.compile(r'<a href="ablations\.html">([^<]*[▼▲≈][^<]*)</a>')
COLORS = {"▼": "worse", "▲": "better", "≈": "alike"}
COMMANDS = re.compile(r'(?s)<div class="language-bash.*?</div>')
FLAGS = re.compile(r"<code>[^<]*--[^<]*</code>")  # in a sentence
TEXT = re.compile(r"(?<=>)[^<>]+(?=<)")
CODE = re.compile(r"^( *)(```+).*?^\1\2$|(`+)(?!`).+?(?<!`)\3(?!`)", re.MULTILINE | re.DOTALL)
FORMULA = re.compile(r"\$\$(.+?)\$\$|(?<![\\$\w])\$(?![\s$])([^$]+?)(?<![\s\\])\$(?!\w)", re.DOTALL)
THIN_SPACE = '<mspace width="0.17em"></mspace>'
FUNCTIONS = ("log", "exp", "max", "min", "clip")  # in formulas


def target(link: str) -> tuple[Path, str]:
    """The file that a link of a page names, and the address of its page on the site."""
    path = posixpath.normpath(posixpath.join("docs", link))
    return ROOT / path, f"source/{path}"


def on_config(config):
    """Each block of code names its language, so that the stylesheet knows which are commands."""
    config.mdx_configs["pymdownx.highlight"]["pygments_lang_class"] = True
    return config


def on_files(files, config):
    """Adds a page for each file of the repository that a page links to, and the pictures."""
    linked = {f"../cleanrl/{path.name}" for path in (ROOT / "cleanrl").glob("*.py")}
    for page in Path(config.docs_dir).glob("*.md"):
        for match in LINK.finditer(page.read_text("utf-8")):
            linked.add(match[1].rstrip("/"))
    for link in sorted(linked):
        path, uri = target(link)
        if not path.exists():
            LOG.warning(f"a page links to {link}, which isn't there")
        elif path.suffix in PICTURES:
            files.append(File.generated(config, uri, abs_src_path=str(path)))
        elif path.is_file():
            head = f"---\nsearch:\n  exclude: true\nhide: [toc]\n---\n\n# {uri.removeprefix('source/')}\n"
            files.append(File.generated(config, f"{uri}.md", content=head))
    return files


def on_page_markdown(markdown, page, config, files):
    if page.file.src_uri.startswith("source/"):
        return markdown
    if page.file.src_uri in WIDE:
        page.meta["hide"] = ["toc"]
    page.formulas = []
    markdown = markdown.replace("  # fmt: skip\n", "\n")  # it is for ruff alone
    markdown = take_out_formulas(markdown, page)
    markdown = DIFF.sub(unfold_diff, markdown)
    markdown = FOLDER.sub(without_folder, markdown)
    return LINK.sub(link_to_source, markdown)


def without_folder(match) -> str:
    """The words of a link to a folder, which has no page; another link as it is."""
    path, _ = target(match[2].rstrip("/"))
    return match[1] if path.is_dir() else match[0]


def unfold_diff(match) -> str:
    """A line that links to a diff, and the diff below it, folded."""
    text = (ROOT / "docs" / "diffs" / f"{match[1]}.diff").read_text("utf-8")
    lines = "\n".join(f"    {line}" for line in text.splitlines())
    return f'{match[0]}\n\n??? note "Show the diff"\n\n    ````diff\n{lines}\n    ````\n'


def link_to_source(match) -> str:
    """A link out of docs/ as one to the page of the file's source."""
    path, uri = target(match[1].rstrip("/"))
    if path.suffix in PICTURES:
        return f"]({uri})"
    return f"]({uri}.md{f'#L-{match[2]}' if match[2] else ''})"


def take_out_formulas(markdown: str, page) -> str:
    """The text with a word in place of each formula, which Markdown leaves alone; page.formulas gets the MathML."""

    def mathml(match):
        display = "block" if match[1] else "inline"
        latex = " ".join((match[1] or match[2]).split())
        made = convert(latex, display=display)
        if "\\" in made:
            raise PluginError(f"docs: {page.file.src_uri}: no MathML for the formula {latex}")
        for name in FUNCTIONS:
            made = made.replace(f"<mo>{name}</mo>", f"<mi>{name}</mi>")
        made = made.replace("<mi>log</mi>", f"{THIN_SPACE}<mi>log</mi>{THIN_SPACE}")
        page.formulas.append(f'<span class="formula">{made}</span>' if display == "block" else made)
        return f"xFORMULA{len(page.formulas) - 1}x"

    parts = []
    end = 0
    for code in CODE.finditer(markdown):
        parts += [FORMULA.sub(mathml, markdown[end : code.start()]), code[0]]
        end = code.end()
    return "".join([*parts, FORMULA.sub(mathml, markdown[end:])])


def on_page_content(html, page, config, files):
    if page.file.src_uri.startswith("source/"):
        return html + source(ROOT / page.file.src_uri.removeprefix("source/").removesuffix(".md"))
    for number, formula in enumerate(page.formulas):
        html = html.replace(f"xFORMULA{number}x", formula)
    html = WORSE.sub('<td class="worse">▼', html)
    html = BETTER.sub('<td class="better">▲', html)
    html = EFFECTS.sub(chips, html)
    html = COMMANDS.sub(whole_words, html)
    html = FLAGS.sub(whole_flags, html)
    html = html.replace('<div class="language-diff', '<div data-search-exclude class="language-diff')
    how = 'autoplay loop preload="auto"' if page.file.src_uri == "index.md" else 'preload="none"'
    video = rf'<video src="\1.mp4" poster="\1.webp" title="\2" aria-label="\2" muted playsinline {how}></video>'
    return DRAWING.sub(drawing, CLIP.sub(video, html))


def whole_flags(match) -> str:
    """Code whose flags don't break at a hyphen."""
    return TEXT.sub(lambda text: re.sub(r"(?<!\S)--\S+", r'<span class="flag">\g<0></span>', text[0]), match[0])


def whole_words(match) -> str:
    """Commands whose flags and names don't break at a hyphen."""
    marked = whole_flags(match)
    return TEXT.sub(lambda text: re.sub(r"(?<!\S)[^\s-]\S*-\S*", r'<span class="word">\g<0></span>', text[0]), marked)


def chips(match) -> str:
    """A link for each environment of `CartPole-v1 ≈ · LunarLander-v3 ▼ −50.3`, without its version."""
    made = ""
    for effect in match[1].split(" · "):
        name, change = effect.split(" ", 1)
        kind = COLORS[change[0]]
        effect = f"{re.sub('(NoFrameskip|-info)?-v[0-9]+$', '', name)} {change}"
        made += f'<a class="chip {kind}" href="ablations.html">{effect}</a> '
    return made


def drawing(match) -> str:
    """The SVG itself in place of a picture of it: dark where the page is, not where the system is."""
    svg = (ROOT / "docs" / "images" / f"{match[2]}.svg").read_text("utf-8")
    before, dark, after = svg.partition("@media (prefers-color-scheme: dark) { svg.drawing {")
    if dark:
        colors, _, after = after.partition("} }")
        svg = f'{before}[data-md-color-scheme="slate"] svg.drawing {{{colors}}}{after}'
    return svg.replace("<svg ", f'<svg role="img" aria-label="{match[1]}" ', 1)


def source(path: Path) -> str:
    """The page of a file: its text with a number at each line, which links can name, and details' tags as links."""
    try:
        lexer = get_lexer_for_filename(path.name)
    except ClassNotFound:
        lexer = TextLexer()
    formatter = HtmlFormatter(linenos="inline", lineanchors="L", anchorlinenos=True, cssclass="highlight source")
    html = highlight(path.read_text("utf-8"), lexer, formatter)
    up = "../" * len(path.relative_to(ROOT).parents)
    for line in (ROOT / "docs" / "details.md").read_text("utf-8").splitlines():
        if line.startswith('### <a id="'):
            tag = line.split('"')[1]
            html = html.replace(f"[{tag}]", f'[<a class="tag" href="{up}details.html#{tag}">{tag}</a>]')
    return html
