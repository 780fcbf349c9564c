"""Numbers, mappings and tables as safe HTML in words that read well; everything from a file passes through here."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from html import escape
from typing import Any


def words(value: Any) -> str:
    """Anything from a file as safe, short text; null is a dash."""
    if isinstance(value, float):
        value = f"{value:.6g}"
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else str(value)
    return "–" if value is None else escape(text if len(text) <= 2000 else text[:2000] + " …")


def share(value: float) -> str:
    """A fraction as a percentage."""
    return f"{100 * value:.1f} %"


def percent(value: float | None) -> str:
    """A fraction in percent, a dash where there is none."""
    return "–" if value is None else share(value)


def figure(value: float | None, digits: int = 4) -> str:
    """A number in a few digits, a dash where there is none."""
    return "–" if value is None else f"{value:.{digits}g}"


def size(value: float | None) -> str:
    """Bytes in a unit that reads well.

    >>> size(1536), size(3_200_000)
    ('1.54 kB', '3.2 MB')
    """
    if value is None or not math.isfinite(value):
        return "–"
    power = min(4, int(math.log10(value) // 3)) if value >= 1 else 0
    return f"{value / 1000**power:.3g} {('bytes', 'kB', 'MB', 'GB', 'TB')[power]}"


def duration(seconds: float | None) -> str:
    """Seconds as a person says them.

    >>> duration(4.2), duration(75), duration(7300)
    ('4.2 s', '1 min 15 s', '2 h 1 min')
    """
    if seconds is None or not seconds >= 60 or seconds == math.inf:
        return "–" if seconds is None or not math.isfinite(seconds) else f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def pairs(mapping: Mapping[str, Any]) -> list[tuple[str, str]]:
    """A free mapping as safe rows of a table."""
    rows = []
    for key, value in mapping.items():
        inner = pairs(value) if isinstance(value, dict) and value else []
        rows += [(f"{words(key)}.{name}", text) for name, text in inner] or [(words(key), words(value))]
    return rows


def table(heads: Iterable[str], rows: Iterable[Iterable[str]], style: str = "plain") -> str:
    """A table of cells that are already safe; the first cell names the row."""
    head = "".join(f'<th scope="col">{text}</th>' for text in heads)
    body = ""
    for row in rows:
        first, *others = row
        body += f'<tr><th scope="row">{first}</th>{"".join(f"<td>{cell}</td>" for cell in others)}</tr>'
    inner = f'<table class="{style}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
    return f'<div class="scroll" role="group" aria-label="Table" tabindex="0">{inner}</div>'


def fold(title: str, body: str) -> str:
    """A part that opens on request; nothing when it is empty."""
    return f"<details><summary>{title}</summary>{body}</details>" if body else ""
