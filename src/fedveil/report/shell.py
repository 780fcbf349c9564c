"""The document around a page: one HTML file that holds all it needs and asks the network for nothing.

The live page shows the same documents ``linked``: their scripts and styles come from the same server as files, so that
a browser keeps them and a strict content policy holds.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from html import escape
from importlib import import_module, metadata, resources
from pathlib import Path
from typing import Any

from fedveil.report.drawing import Plot
from fedveil.report.words import words

POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"

THEME = '<button class="theme" type="button" hidden>Dark colours</button>'


def document(
    title: str,
    lead: str,
    body: str,
    plots: Sequence[Plot],
    notices: str = "",
    nav: Iterable[str] = (),
    kind: str = "report",
    *,
    scripts: Sequence[str] = (),
    data: Mapping[str, Any] | None = None,
    linked: bool = False,
    above: str = "",
    drawing: bool | None = None,
) -> str:
    """The whole page around a body; all texts are safe HTML already, ``nav`` names the sections to link to.

    ``scripts`` are assets that run after the plots, with ``data`` as JSON by element id; ``above`` stands before the
    title; ``drawing`` brings the plotting library along, by default where there are plots.
    """
    told = {"plots": [p.figure() for p in plots], **(data or {})}
    blocks = "".join(
        f'<script type="application/json" id="{name}">{_json(value)}</script>' for name, value in told.items()
    )
    links = "".join(f'<li><a href="#{n}">{n.capitalize()}</a></li>' for n in nav)
    bar = f'<nav aria-label="Sections"><ul>{links}</ul></nav>' if links else ""
    policy = "" if linked else f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
    files = [*(["plotly.js"] if (bool(plots) if drawing is None else drawing) else []), "report.js", *scripts]
    if linked:
        style = '<link rel="stylesheet" href="/assets/report.css">'
        early = '<script src="/assets/theme.js"></script>'
        late = "".join(f'<script defer src="/assets/{name}"></script>' for name in files)
    else:
        style = f"<style>{stylesheet()}</style>"
        early = f"<script>{asset('theme.js')}</script>"
        late = "".join(f"<script>{asset(name)}</script>" for name in files)
    foot = f"Written by FedVeil {words(metadata.version('fedveil'))}. This page loads nothing from elsewhere."
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
{policy}
<title>{title} – FedVeil {kind}</title>
<link rel="icon" href="data:,">
{style}
{early}
</head>
<body>
<a class="skip" href="#content">Skip to the content</a>
<div class="wrap">
<header><div class="top"><p class="brand">{above}FedVeil {kind}</p>{THEME}</div>
<h1>{title}</h1><p class="lead">{lead}</p>
{bar}<div id="notices">{notices}</div></header>
<main id="content" tabindex="-1">{body}</main>
<footer>{foot}</footer>
</div>
{blocks}
{late}
</body>
</html>
"""


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")


def sections(parts: Mapping[str, str]) -> str:
    """Named sections, each under its heading."""
    return "".join(
        f'<section id="{n}" aria-labelledby="{n}-title"><h2 id="{n}-title">{n.capitalize()}</h2>{part}</section>'
        for n, part in parts.items()
    )


def figures(section: str, plots: Sequence[Plot]) -> str:
    """The plots of a section; nothing when it has none."""
    made = "".join(figure_of(i, plot) for i, plot in enumerate(plots, start=1) if plot.section == section)
    hint = "<noscript><p>The plots need JavaScript; the tables hold the numbers.</p></noscript>"
    return f'{hint}<div class="grid">{made}</div>' if made else ""


def figure_of(number: int, plot: Plot) -> str:
    """The place of a plot, with its title and caption; a screen reader hears both instead of the drawing."""
    name = f"plot-{number}"
    heard = f'role="img" aria-labelledby="{name}-title" aria-describedby="{name}-words"'
    return (
        f'<figure aria-labelledby="{name}-title"><figcaption><h3 id="{name}-title">{plot.title}</h3>'
        f'<p id="{name}-words">{escape(plot.caption)}</p></figcaption>'
        f'<div class="plot" id="{name}" {heard}></div></figure>'
    )


def save(path: Path, page: str) -> None:
    """Write a page in one step: readers see the old one or the new one; what cannot be written is an ``OSError``."""
    data = page.encode("utf-8", "replace")
    if path.exists() and not path.is_file():  # a device such as /dev/stdout is written to, never replaced
        path.write_bytes(data)
        return
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        draft.write_bytes(data)
        os.replace(draft, path)
    except OSError:
        with suppress(OSError):  # it may never have been there
            draft.unlink()
        raise


@cache
def asset(file: str) -> str:
    """A style sheet or script that lies beside this module, or the plotting library."""
    return plotly() if file == "plotly.js" else resources.files("fedveil.report").joinpath(file).read_text("utf-8")


@cache
def stylesheet() -> str:
    """The colours and shapes of every page; dark where the reader or the system asks for it, never in print."""
    dark = asset("dark.css")
    asked = dark.replace(":root", ":root[data-theme=dark]:not([data-print])")
    system = dark.replace(":root", ":root:not([data-theme=light], [data-print])")
    return (
        f"{asset('report.css')}@media screen {{{asked}}}\n@media screen and (prefers-color-scheme: dark) {{{system}}}\n"
    )


def plotly() -> str:
    """The plotting library, safe inside a script element."""
    offline = import_module("plotly.offline")  # only now: most commands write no report
    return str(offline.get_plotlyjs()).replace("</script", "<\\/script").replace("<!--", "<\\!--")
