"""What plots are made of: plain mappings that plotly.js understands."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fedveil.report.read import Run, number

T = TypeVar("T")

POINTS = 1000  # most points of a line: a longer run is thinned, so that the page stays small
COLOURS = tuple(f"--c{i}" for i in range(1, 9))  # names of CSS variables; the page's script puts in the values


@dataclass(frozen=True)
class Plot:
    """One drawing with its title, a caption in words, and what plotly.js needs to draw it."""

    section: str
    title: str
    caption: str
    traces: list[dict[str, Any]]
    x: dict[str, Any] = field(default_factory=dict)
    y: dict[str, Any] = field(default_factory=dict)
    layout: dict[str, Any] = field(default_factory=dict)

    def figure(self) -> dict[str, Any]:
        """The figure as plotly.js takes it; colours are still names."""
        return {"data": self.traces, "layout": {"xaxis": self.x, "yaxis": self.y} | self.layout}


def thin(values: Sequence[T], most: int = POINTS) -> list[T]:
    """At most about this many values, evenly spread, the first and the last among them.

    >>> thin(list(range(10)), 4)
    [0, 3, 6, 9]
    """
    step = max(1, math.ceil((len(values) - 1) / max(1, most - 1)))
    return [*values[:-1:step], *values[-1:]]


def quantile(ordered: Sequence[float], q: float) -> float:
    """The value below which a fraction ``q`` of the ascending values lies (nearest rank)."""
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


def short(value: float) -> float:
    """A number in five digits, to keep the page small."""
    return float(f"{value:.5g}")


def label(name: str) -> str:
    """A name for plotly.js, which reads a little HTML in its labels."""
    return html.escape(name if len(name) <= 40 else name[:39] + "…", quote=False)


def columns(run: Run, *paths: tuple[str, ...]) -> list[list[float]]:
    """Round numbers and the values at these places, for the rounds that have them all."""
    rows = [[number(event, "round"), *(number(event, *path) for path in paths)] for event in run.events]
    full = thin([[short(v) for v in row if v is not None] for row in rows if None not in row])
    return [list(column) for column in zip(*full, strict=True)] or [[] for _ in range(len(paths) + 1)]


def line(x: list[float], y: list[float], name: str, colour: int, dash: str = "solid") -> dict[str, Any]:
    """A line over rounds or steps; a short one shows its points."""
    stroke = {"color": COLOURS[colour], "width": 2.5, "dash": dash}
    mode = "lines+markers" if len(x) <= 40 else "lines"
    symbol = ("circle", "diamond", "square", "triangle-up")[colour % 4]  # never told apart by colour alone
    marker = {"symbol": symbol, "size": 6, "color": COLOURS[colour]}
    return {"x": x, "y": y, "name": name, "mode": mode, "line": stroke, "marker": marker, "type": "scatter"}


def band(x: list[float], low: list[float], high: list[float], name: str, colour: int) -> dict[str, Any]:
    """The area between two lines; colours 1 and 3 have a soft version."""
    edges = {"x": x + x[::-1], "y": high + low[::-1], "fill": "toself", "line": {"width": 0}, "mode": "lines"}
    return edges | {"fillcolor": f"{COLOURS[colour]}-soft", "name": name, "hoverinfo": "skip", "type": "scatter"}


def round_axis(run: Run) -> dict[str, Any]:
    """The axis of the rounds."""
    return {"title": {"text": "Round"}, "tickformat": "d"} | ({"dtick": 1} if len(run.events) <= 10 else {})
