"""The document around a report: one HTML page that holds all it needs and asks the network for nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from html import escape
from importlib import import_module, metadata, resources
from pathlib import Path

from fedveil.report.drawing import Plot
from fedveil.report.words import words

POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"


def document(
    title: str,
    lead: str,
    body: str,
    plots: Sequence[Plot],
    notices: str = "",
    nav: Iterable[str] = (),
    kind: str = "report",
) -> str:
    """The whole page around a body; all texts are safe HTML already, ``nav`` names the sections to link to."""
    data = json.dumps([p.figure() for p in plots], separators=(",", ":")).replace("<", "\\u003c")
    links = "".join(f'<li><a href="#{n}">{n.capitalize()}</a></li>' for n in nav)
    bar = f'<nav aria-label="Sections"><ul>{links}</ul></nav>' if links else ""
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<title>{title} – FedVeil {kind}</title>
<link rel="icon" href="data:,">
<style>{asset("report.css")}</style>
</head>
<body>
<a class="skip" href="#content">Skip to the content</a>
<div class="wrap">
<header><p class="brand">FedVeil {kind}</p><h1>{title}</h1><p class="lead">{lead}</p>
{bar}{notices}</header>
<main id="content">{body}</main>
<footer>Written by FedVeil {words(metadata.version("fedveil"))}. This page loads nothing from elsewhere.</footer>
</div>
<script type="application/json" id="plots">{data}</script>
{f"<script>{plotly()}</script>" if plots else ""}
<script>{asset("report.js")}</script>
</body>
</html>
"""


def sections(parts: Mapping[str, str]) -> str:
    """Named sections, each under its heading."""
    return "".join(
        f'<section id="{n}" aria-labelledby="{n}-title"><h2 id="{n}-title">{n.capitalize()}</h2>{part}</section>'
        for n, part in parts.items()
    )


def figures(section: str, plots: Sequence[Plot]) -> str:
    """The plots of a section; nothing when it has none."""
    made = "".join(
        f'<figure aria-labelledby="plot-{i}-title"><figcaption><h3 id="plot-{i}-title">{plot.title}</h3>'
        f'<p>{escape(plot.caption)}</p></figcaption><div class="plot" id="plot-{i}"></div></figure>'
        for i, plot in enumerate(plots, start=1)
        if plot.section == section
    )
    hint = "<noscript><p>The plots need JavaScript; the tables hold the numbers.</p></noscript>"
    return f'{hint}<div class="grid">{made}</div>' if made else ""


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


def asset(file: str) -> str:
    """A style sheet or script that lies beside this module."""
    return resources.files("fedveil.report").joinpath(file).read_text("utf-8")


def plotly() -> str:
    """The plotting library, safe inside a script element."""
    offline = import_module("plotly.offline")  # only now: most commands write no report
    return str(offline.get_plotlyjs()).replace("</script", "<\\/script").replace("<!--", "<\\!--")
