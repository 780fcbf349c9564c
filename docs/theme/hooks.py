"""What MkDocs does with FedVeil's pages: formulas, flows, marks of code blocks, links into the source tree.

Everything is made while the site is built, so that a page loads nothing from elsewhere when it is read; the build fails
where one would.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from pathlib import Path
from typing import Any

import mmdr
from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^(?P<ticks>`{3,})(?P<info>[^`\n]*)\n(?P<body>.*?)^(?P=ticks)$", re.M | re.S)
MARKS = {"no-run": "not run by the tests", "slow": "a minute or more", "output": "what it printed"}
LOADS = re.compile(r"<(script|img|iframe|source|link)\b[^>]*\b(?:src|href)=[\"']?(?:https?:)?//[^>]*>")


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Draw the flows, show statements as tables, and turn what the tests read of a fence into words."""
    drawn = 0

    def fence(found: re.Match[str]) -> str:
        nonlocal drawn
        language, _, rest = found["info"].strip().partition(" ")
        words = {word.partition("=")[0] for word in shlex.split(rest)}
        if language == "mermaid":
            drawn += 1
            try:
                svg = mmdr.render(found["body"], node_spacing=30, rank_spacing=28).svg()
            except ValueError as problem:
                raise PluginError(f"{page.file.src_uri}: flow {drawn}: {problem}") from problem
            svg = svg.replace("merman", f"flow{drawn}")
            return f'<div class="flow" role="img">{svg}</div>\n'
        if language == "markdown" and "output" in words:
            return _statement(found["body"])
        notes = [text for word, text in MARKS.items() if word in words]
        title = re.search(r'title="[^"]*"', rest)
        shown = title[0] if title else (f'title="{", ".join(notes)}"' if notes else "")
        return f"{found['ticks']}{language or 'text'} {shown}\n{found['body']}{found['ticks']}"

    return _other_language(page.file.src_uri) + _links(FENCE.sub(fence, markdown), page)


def _other_language(name: str) -> str:
    """A link to the same page in the other language, where there is one."""
    other, words = (name.removeprefix("zh/"), "English") if name.startswith("zh/") else (f"zh/{name}", "中文")
    if not (ROOT / "docs" / other).is_file():
        return ""
    return f"[{words}]({os.path.relpath(other, os.path.dirname(name) or '.')}){{ .other-language }}\n\n"


def _statement(body: str) -> str:
    """A printed statement as what it is: a table and notes, without its heading."""
    lines = [line for line in body.splitlines() if not line.startswith("# ")]
    if lines and lines[-1].strip() == "...":
        lines[-1:] = ["", "*The notes under it are left out here.*"]
    return '<div class="statement" markdown="1">\n\n' + "\n".join(lines).strip() + "\n\n</div>\n"


def _links(markdown: str, page: Any) -> str:
    """Links that leave the documentation (into src, examples, tests) have no page: their text stays."""
    place = (ROOT / "docs" / page.file.src_uri).parent

    def link(found: re.Match[str]) -> str:
        target = (place / found["to"].partition("#")[0]).resolve()
        inside = (ROOT / "docs") in target.parents
        if inside or not target.exists():
            return found[0]
        return f"{found['text']} (`{target.relative_to(ROOT)}`)"

    return re.sub(r"(?<!!)\[(?P<text>[^\]\n]+)\]\((?P<to>\.\./[^)\s]+)\)", link, markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Formulas as MathML, which browsers draw by themselves."""

    def math(found: re.Match[str]) -> str:
        inner = found["tex"].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&").strip()
        block = found["tag"] == "div"
        made = convert(inner[2:-2], display="block" if block else "inline")
        if "\\" in made:
            raise PluginError(f"a formula has a command that becomes no MathML: {inner}")
        return f'<div class="formula">{made}</div>' if block else made

    return re.sub(r'<(?P<tag>div|span) class="arithmatex">(?P<tex>.*?)</(?P=tag)>', math, html, flags=re.S)


def on_post_page(output: str, *, page: Any, **_: Any) -> str:
    """Say which language a page is in, so that browsers choose fonts and voices that have it."""
    return output.replace('<html lang="en"', '<html lang="zh"', 1) if page.file.src_uri.startswith("zh/") else output


def on_post_build(config: Any, **_: Any) -> None:
    """Make Chinese findable, a character at a time; refuse a page that would load something from elsewhere."""
    index = Path(config["site_dir"]) / "search" / "search_index.json"
    if index.is_file():
        found = json.loads(index.read_text())
        for entry in found["docs"]:
            for field in ("title", "text"):
                entry[field] = re.sub(r"(?<=[\u4e00-\u9fff])(?=[\u4e00-\u9fff])", "\u200b", entry[field])
        index.write_text(json.dumps(found))
    for page in sorted(Path(config["site_dir"]).rglob("*.html")):
        for tag in LOADS.finditer(page.read_text()):
            if tag[1] != "link" or not re.search(r"rel=.?(?:canonical|next|prev|alternate)", tag[0]):
                raise PluginError(f"{page}: loads {tag[0]} from elsewhere; the site must stand by itself")
