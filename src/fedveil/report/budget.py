"""The page of ``fedveil budget --plot``: the answers, what they rest on, and ε over the steps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedveil.core.errors import Refused
from fedveil.privacy.budget import BudgetRow, BudgetTable
from fedveil.privacy.events import Sampling, WithoutReplacement
from fedveil.report.drawing import COLOURS, Plot, label, line, short
from fedveil.report.shell import document, figures, save, sections
from fedveil.report.words import figure, fold, words
from fedveil.report.words import table as grid

Lines = Mapping[str, Sequence[tuple[int, float]]]

WORDS = {"epsilon": "ε", "multiplier": "noise multiplier", "steps": "steps"}
NEIGHBOURS = {
    "zero_out": "what one unit contributes becomes zero",
    "add_remove": "one unit is added or removed",
    "replace": "one unit is exchanged for any other",
}


def write_budget_page(path: Path, table: BudgetTable, lines: Lines) -> Path:
    """Write the page to ``path`` and return it; ``lines`` holds (steps, ε) for each accountant to draw."""
    try:
        save(path, budget_page(table, lines))
    except OSError as error:
        raise Refused(f"plot: cannot write {path} ({error.strerror}); give another path") from None
    return path


def budget_page(table: BudgetTable, lines: Lines) -> str:
    """The whole page."""
    plot = epsilon_over_steps(table, lines)
    plots = [] if plot is None else [plot]
    empty = "<p>No accountant has a line to draw.</p>"
    parts = {
        "answers": answers(table),
        "premises": premises(table),
        "plot": figures("plot", plots) + every_point(lines) if plots else empty,
    }
    lead = f"{words(table.mechanism)} mechanism, computed: {WORDS[table.solved]}"
    return document("Privacy budget", lead, sections(parts), plots, nav=parts, kind="budget")


def answers(table: BudgetTable) -> str:
    """What every accountant answers, or why it does not."""
    heads = ["Accountant", "ε", "Noise multiplier", "Steps"]
    refusals = any(row.refused is not None for row in table.rows)
    rows = [_cells(row) + ([words(row.refused or "")] if refusals else []) for row in table.rows]
    return grid((*heads, "Refused because") if refusals else heads, rows)


def _cells(row: BudgetRow) -> list[str]:
    steps = "–" if row.steps is None else f"{row.steps:,}"
    return [words(row.accountant), _epsilon(row.epsilon), figure(row.multiplier, 6), steps]


def _epsilon(value: float | None) -> str:
    return "infinite" if value == math.inf else figure(value, 6)


def premises(table: BudgetTable) -> str:
    """What must be true of a training run for the answers to hold for it."""
    adjacency = words(table.adjacency)
    rows = [
        ("Mechanism", words(table.mechanism)),
        ("Adjacency", f"{adjacency}: {NEIGHBOURS[table.adjacency]}" if table.adjacency in NEIGHBOURS else adjacency),
        ("Sampling", sampled(table.sampling)),
        ("δ", f"{table.delta:g}"),
    ]
    return grid(("Premise", "Value"), rows)


def sampled(sampling: Sampling) -> str:
    """How the units of a release are drawn, in words."""
    if sampling is None or sampling.rate == 1:
        return "none: every unit takes part in every release"
    if isinstance(sampling, WithoutReplacement):
        return f"without replacement: exactly {sampling.size:,} of {sampling.population:,} units take part"
    return f"Poisson: each unit takes part independently with probability {sampling.rate:g}"


def epsilon_over_steps(table: BudgetTable, lines: Lines) -> Plot | None:
    """One line per accountant, over a logarithmic axis of steps."""
    finite = {name: [(t, e) for t, e in points if math.isfinite(e)] for name, points in lines.items()}
    traces = []
    for i, (name, points) in enumerate(finite.items()):
        if points:
            x, y = [float(t) for t, _ in points], [short(e) for _, e in points]
            traces.append(line(x, y, label(name), i % len(COLOURS), ("solid", "dash", "dot", "dashdot")[i % 4]))
    if not traces:
        return None
    shared = {row.multiplier for row in table.rows if row.refused is None}
    noise = f" {figure(shared.pop(), 6)}" if len(shared) == 1 and None not in shared else ""
    caption = f"ε after so many steps, all with the same noise multiplier{noise}, at δ = {table.delta:g}."
    if "pld" in finite:
        caption += " The line of pld is computed on a coarse grid and lies a little above its exact value."
    x_axis = {"type": "log", "title": {"text": "Steps"}}
    y_axis = {"title": {"text": "ε"}, "rangemode": "tozero", "hoverformat": ".4g"}
    return Plot("plot", "ε over steps", caption, traces, x_axis, y_axis)


def every_point(lines: Lines) -> str:
    """The numbers of the plot."""
    at = sorted({t for points in lines.values() for t, _ in points})
    found = {name: dict(points) for name, points in lines.items()}
    rows = [(f"{t:,}", *(_epsilon(points.get(t)) for points in found.values())) for t in at]
    return fold("Every point", grid(("Steps", *(words(name) for name in found)), rows))
