"""The two plots: accuracy against epsilon, and what James-Stein shrinkage changes."""

from __future__ import annotations

import math

from experiments.dp_methods.grid import FINAL, POOLED, STEIN_PAIRS, Entry
from experiments.dp_methods.numbers import Results, compare
from experiments.dp_methods.svg import Axis, Figure, Series

COLORS = {
    "dp_fedavg_local": "#d97706",
    "dp_fed_stein": "#3b82f6",
    "dp_scaffold": "#16a34a",
    "dp_scaffold_stein": "#b455e8",
}


def accuracy(results: Results) -> str:
    """Accuracy against epsilon: rows that protect records from the server, the ceilings, and the peer."""
    s = results.schedule
    series = []
    for entry in results.rows:
        if entry.kind == "central":
            continue
        panels = []
        for partition in s.partitions:
            where = POOLED if entry.kind == "peer" else partition
            points = []
            for epsilon in s.epsilons:
                found = results.spread(entry.label, where, epsilon if entry.budgeted else None)
                if found is not None:
                    points.append((epsilon, found.mean, found.sd if entry.budgeted else 0.0))
            panels.append(tuple(points))
        series.append(_styled(entry.label, entry, tuple(panels)))
    levels = [y for one in series for panel in one.points for _, y, _ in panel] or [0.0, 90.0]
    ticks = [v for v in (0, 25, 50, 75, 85, 90, 95, 98, 99) if v <= max(levels) + 2]
    return Figure(
        title="Test accuracy against epsilon (mean and standard deviation over seeds; the scale stretches upwards)",
        panels=s.partitions,
        series=tuple(series),
        x=_epsilons(s.epsilons),
        y=Axis(tuple((v, f"{v} %") for v in ticks), 0.0, min(99.5, max(levels) + 1.5), lambda v: -math.log(100.5 - v)),
        x_name="epsilon (non-private rows do not depend on it; Opacus trains on pooled data)",
        y_name="test accuracy",
    ).svg()


def stein(results: Results) -> str:
    """Paired differences, with shrinkage minus without."""
    s = results.schedule
    by_label = {entry.label: entry for entry in results.entries}
    series = []
    for pair in STEIN_PAIRS:
        found = compare(results, pair).differences
        panels = [tuple((e, d.mean, d.sd) for (where, e), d in found.items() if where == p) for p in s.partitions]
        if pair[0] in by_label:
            series.append(_styled(f"{pair[0]} − {_short(pair[1])}", by_label[pair[0]], tuple(panels)))
    ends = [y + side * half for one in series for p in one.points for _, y, half in p for side in (-1, 1)] or [0.0]
    step = _step(max(max(ends), 0.0) - min(min(ends), 0.0))
    low, high = math.floor(min(*ends, -step) / step), math.ceil(max(*ends, step) / step)
    return Figure(
        title="What James-Stein shrinkage changes (same seeds; mean and standard deviation of the difference)",
        panels=s.partitions,
        series=tuple(series),
        x=_epsilons(s.epsilons),
        y=Axis(tuple((k * step, f"{k * step:+g}") for k in range(low, high + 1)), low * step, high * step),
        x_name="epsilon",
        y_name="points of test accuracy",
        zero=0,
        columns=2,
    ).svg()


def _styled(name: str, entry: Entry, points: tuple[tuple[tuple[float, float, float], ...], ...]) -> Series:
    if entry.kind == "ceiling":
        dash = "dashed" if entry.method == "fedavg" else "dotted"
        return Series(f"{name}, not private", None, "none", dash, points)
    if entry.kind == "peer":
        return Series(f"{name}, trusted curator", None, "square", "solid", points)
    variant = entry.variant or ""
    last = variant.startswith("last")
    mark = "circle" if last else "triangle" if variant == FINAL else "square"
    dash = "dotted" if last else "dashed" if variant == FINAL else "solid"
    return Series(name, COLORS[entry.method], mark, dash, points)


def _epsilons(values: tuple[float, ...]) -> Axis:
    low, high = min(values), max(values)
    return Axis(tuple((v, f"{v:g}") for v in values), low, high if high > low else 2 * low, math.log)


def _step(span: float) -> float:
    """A round distance between ticks, for about six of them."""
    raw = max(span, 1.0) / 6
    power = 10.0 ** math.floor(math.log10(raw))
    return next(power * k for k in (1, 2, 5, 10) if power * k >= raw)


def _short(label: str) -> str:
    return label if not label.startswith("dp_scaffold/") else "dp_scaffold"
