"""A small SVG writer: panels with points, error bars and lines on a card that follows the reader's colour scheme."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

STYLE = """
text { font: 12px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; fill: #1f2328; }
.title { font-weight: 600; font-size: 13px; }
.faint { fill: #59636e; }
.card { fill: #ffffff; stroke: #d1d9e0; }
.grid { stroke: #e6eaef; } .axis { stroke: #818b98; }
.ink { stroke: #59636e; fill: #59636e; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; }
  .faint { fill: #9198a1; }
  .card { fill: #0d1117; stroke: #3d444d; }
  .grid { stroke: #21262d; } .axis { stroke: #656c76; }
  .ink { stroke: #9198a1; fill: #9198a1; }
}
"""
DASHES = {"solid": "", "dashed": "6 3", "dotted": "1.5 3"}


@dataclass(frozen=True)
class Series:
    """A line in every panel, and a line of the legend."""

    name: str
    color: str | None
    """None: a neutral one that follows the colour scheme."""
    mark: str = "circle"
    """circle, square, triangle, or none: then the first point is a level across the panel."""
    dash: str = "solid"
    points: tuple[tuple[tuple[float, float, float], ...], ...] = ()
    """For each panel (x, y, half the length of the error bar)."""


@dataclass(frozen=True)
class Axis:
    """Numbers to pixels; ``warp`` is the scale."""

    ticks: tuple[tuple[float, str], ...]
    low: float
    high: float
    warp: Callable[[float], float] = lambda value: value

    def share(self, value: float) -> float:
        """Where a value lies between low (0) and high (1)."""
        bounded = min(max(value, self.low), self.high)
        return (self.warp(bounded) - self.warp(self.low)) / (self.warp(self.high) - self.warp(self.low))


@dataclass(frozen=True)
class Figure:
    """Panels in a row above their common legend."""

    title: str
    panels: tuple[str, ...]
    series: tuple[Series, ...]
    x: Axis
    y: Axis
    x_name: str
    y_name: str
    zero: float | None = None
    columns: int = 3
    panel: tuple[int, int] = (290, 300)

    def svg(self) -> str:
        """The whole file."""
        width, height = self.panel
        left, top, gap, line = 62, 62, 26, 20
        rows = math.ceil(len(self.series) / self.columns)
        whole = max(left + len(self.panels) * (width + gap) + 4, 3 * 300)
        legend = top + height + 66
        tall = legend + rows * line + 4
        out = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {whole} {tall}" width="{whole}" height="{tall}" '
            f'role="img"><title>{escape(self.title)}</title><style>{STYLE}</style>',
            f'<rect class="card" x="0.5" y="0.5" width="{whole - 1}" height="{tall - 1}" rx="6"/>',
            _text(16, 24, self.title, "title"),
            _text(
                0,
                0,
                self.y_name,
                "faint",
                f'text-anchor="middle" transform="translate(18 {top + height / 2}) rotate(-90)"',
            ),
        ]
        for i, name in enumerate(self.panels):
            out += self._panel(i, name, left + i * (width + gap), top)
        out.append(_text(left, top + height + 38, self.x_name, "faint"))
        across = (whole - 32) / self.columns
        for i, series in enumerate(self.series):
            x, y = 16 + (i // rows) * across, legend + (i % rows) * line
            out += [_line(series, [(x, y), (x + 34, y)]), _mark(series, x + 17, y), _text(x + 42, y + 4, series.name)]
        return "\n".join([*out, "</svg>", ""])

    def _panel(self, number: int, name: str, left: float, top: float) -> list[str]:
        width, height = self.panel
        out = [_text(left + width / 2, top - 10, name, "title", 'text-anchor="middle"')]
        for value, label in self.y.ticks:
            y = top + height * (1 - self.y.share(value))
            kind = "axis" if value == self.zero else "grid"
            out.append(f'<path class="{kind}" d="M{left} {y:.1f}h{width}"/>')
            if number == 0:
                out.append(_text(left - 6, y + 4, label, "", 'text-anchor="end"'))
        for value, label in self.x.ticks:
            x = left + width * (0.08 + 0.84 * self.x.share(value))
            out.append(f'<path class="axis" d="M{x:.1f} {top + height}v4"/>')
            out.append(_text(x, top + height + 17, label, "", 'text-anchor="middle"'))
        out.append(f'<path class="axis" fill="none" d="M{left} {top}v{height}h{width}"/>')
        for i, series in enumerate(self.series):
            points = series.points[number] if number < len(series.points) else ()
            if series.mark == "none" and points:  # a level across the whole panel
                y = top + height * (1 - self.y.share(points[0][1]))
                out.append(_line(series, [(left, y), (left + width, y)]))
                continue
            aside = (i - (len(self.series) - 1) / 2) * min(4.0, 30 / len(self.series))
            places = []
            for value, level, half in points:
                x = left + width * (0.08 + 0.84 * self.x.share(value)) + aside
                y, low, high = (top + height * (1 - self.y.share(v)) for v in (level, level - half, level + half))
                places.append((x, y))
                if half:
                    out.append(f'<path {_paint(series)} stroke-width="1.2" d="M{x:.1f} {low:.1f}V{high:.1f}"/>')
            if places:
                out.append(_line(series, places))
            out += [_mark(series, x, y) for x, y in places]
        return out


def _paint(series: Series) -> str:
    return 'class="ink"' if series.color is None else f'stroke="{series.color}" fill="{series.color}"'


def _line(series: Series, places: Sequence[tuple[float, float]]) -> str:
    way = "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
    return (
        f'<path {_paint(series)} style="fill:none" stroke-width="1.6" '
        f'stroke-dasharray="{DASHES[series.dash]}" d="M{way}"/>'
    ).replace(' stroke-dasharray=""', "")


def _mark(series: Series, x: float, y: float) -> str:
    paint = _paint(series)
    if series.mark == "circle":
        return f'<circle {paint} cx="{x:.1f}" cy="{y:.1f}" r="3.4"/>'
    if series.mark == "square":
        return f'<rect {paint} x="{x - 3:.1f}" y="{y - 3:.1f}" width="6" height="6"/>'
    if series.mark == "triangle":
        return f'<path {paint} d="M{x - 4:.1f} {y + 3:.1f}h8l-4 -7z"/>'
    return ""


def _text(x: float, y: float, text: str, kind: str = "", more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" {more}>{escape(text)}</text>'
