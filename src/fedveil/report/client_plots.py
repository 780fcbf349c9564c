"""Plots of the clients: how well the final model serves them, and what they hold."""

from __future__ import annotations

from collections import Counter
from typing import Any

from fedveil.report.drawing import COLOURS, Plot, label, quantile, short, thin
from fedveil.report.read import Run, items, number
from fedveil.report.words import percent, share, table, words

CLIENTS = 200  # most clients drawn one by one; a larger population becomes a histogram
ROWS = 100  # most clients (and classes) in the heat map of a large population


def _spread(values: list[tuple[int, float]], run: Run, unit: str, top: float, colour: int) -> dict[str, Any]:
    """Sorted bars, one per client, or a histogram when there are too many."""
    if len(values) <= CLIENTS:
        ordered = sorted(values, key=lambda pair: pair[1])
        sizes = items(run.clients, "sizes")
        held = [number(sizes[i]) if i < len(sizes) else None for i, _ in ordered]
        about = [[label(run.client(i)), n if n is not None else "?"] for (i, _), n in zip(ordered, held, strict=True)]
        hover = "<b>%{customdata[0]}</b><br>%{y}<br>%{customdata[1]} examples<extra></extra>"
        bars = {"y": [short(v) for _, v in ordered], "customdata": about, "hovertemplate": hover}
        return {"type": "bar", "x": list(range(len(ordered))), "marker": {"color": COLOURS[colour]}} | bars
    width = top / 20 or 1.0
    counts = [0] * 20
    for _, value in values:
        counts[max(0, min(19, int(value / width)))] += 1
    hover = f"%{{y}} clients near %{{x:.3~g}} {unit}<extra></extra>"
    bars = {"y": counts, "x": [short((b + 0.5) * width) for b in range(20)], "hovertemplate": hover}
    return {"type": "bar", "width": short(0.94 * width), "marker": {"color": COLOURS[colour]}} | bars


def _client_axes(count: int, trace: dict[str, Any], title: str, **form: str) -> tuple[dict[str, Any], dict[str, Any]]:
    value = {"title": {"text": title}, **form}
    if count > CLIENTS:
        return value, {"title": {"text": "Clients"}}
    ticks: dict[str, Any] = {"showticklabels": False}
    if count <= 16:
        ticks = {"tickvals": trace["x"], "ticktext": [name for name, _ in trace["customdata"]]}
    return {"title": {"text": "Clients, sorted"}, **ticks}, value


def _known(run: Run, key: str) -> list[tuple[int, float]]:
    numbers = ((i, number(value)) for i, value in enumerate(items(run.clients, key)))
    return [(i, value) for i, value in numbers if value is not None]


def client_accuracy(run: Run) -> Plot | None:
    """Accuracy of the final model for each client, on its own held-out data."""
    values = _known(run, "accuracy")
    if not values:
        return None
    ordered = sorted(value for _, value in values)
    trace = _spread(values, run, "accuracy", 1.0, 0)
    x, y = _client_axes(len(values), trace, "Accuracy", tickformat=".0%", hoverformat=".2%")
    words = (
        f"The final model on each client's own held-out data: {len(values):,} clients, "
        f"lowest {share(ordered[0])}, median {share(quantile(ordered, 0.5))}, highest {share(ordered[-1])}."
    )
    return Plot("clients", "Accuracy per client", words, [trace], x, y, {"showlegend": False, "hovermode": "closest"})


def sizes(run: Run) -> Plot | None:
    """How many training examples the clients hold."""
    values = _known(run, "sizes")
    if not values:
        return None
    ordered = sorted(value for _, value in values)
    trace = _spread(values, run, "examples", ordered[-1], 1)
    x, y = _client_axes(len(values), trace, "Training examples")
    words = (
        f"{len(values):,} clients hold {sum(ordered):,.0f} training examples: smallest {ordered[0]:,.0f}, "
        f"median {quantile(ordered, 0.5):,.0f}, largest {ordered[-1]:,.0f}."
    )
    return Plot("clients", "Examples per client", words, [trace], x, y, {"showlegend": False, "hovermode": "closest"})


def classes(run: Run) -> Plot | None:
    """Which classes the clients hold: stacked bars for a few, a heat map for many."""
    table = items(run.clients, "label_counts")
    counts = [[int(number(v) or 0) for v in row] if isinstance(row, list) else [] for row in table]
    width = max((len(row) for row in counts), default=0)
    if not width:
        return None
    counts = [row + [0] * (width - len(row)) for row in counts]
    top = sorted(max(row) / sum(row) for row in counts if sum(row))
    words = ""
    if top:
        words = f"A client's most common class makes up {share(quantile(top, 0.5))} of its examples (median)."
    names = [label(run.client(i)) for i in range(len(counts))]
    if len(counts) <= 24 and width <= len(COLOURS):
        return _stacked(counts, names, words)
    return _heat(counts, names, words)


def _stacked(counts: list[list[int]], names: list[str], words: str) -> Plot:
    places = list(range(len(counts)))
    hover = {"text": names, "textposition": "none", "hovertemplate": "%{text}: %{y}"}
    traces: list[dict[str, Any]] = [
        {"type": "bar", "name": f"class {c}", "x": places, "y": [row[c] for row in counts]}
        | {"marker": {"color": COLOURS[c], "line": {"color": "--card", "width": 1}}}
        | hover
        for c in range(len(counts[0]))
    ]
    x = {"tickvals": places, "ticktext": names}
    layout = {"barmode": "stack", "hovermode": "closest", "legend": {"traceorder": "normal"}}
    y = {"title": {"text": "Training examples"}}
    return Plot("clients", "Classes per client", words, traces, x, y, layout)


def _heat(counts: list[list[int]], names: list[str], words: str) -> Plot:
    rows = list(range(len(counts)))
    kept = list(range(len(counts[0])))
    if len(rows) > CLIENTS:
        rows = thin(rows, ROWS)
        rows.sort(key=lambda i: (counts[i].index(max(counts[i])), -max(counts[i]) / (sum(counts[i]) or 1)))
        words += f" Drawn: {len(rows)} of {len(counts):,} clients, evenly spread, sorted by most common class."
    if len(kept) > ROWS:
        words += f" Drawn: the {ROWS} most common of {len(kept):,} classes."
        kept = sorted(sorted(kept, key=lambda c: -sum(row[c] for row in counts))[:ROWS])
    if len(set(names)) < len(names):
        names = [f"{name} ({i})" for i, name in enumerate(names)]
    z = [[round(counts[i][c] / (sum(counts[i]) or 1), 3) for c in kept] for i in rows]
    trace: dict[str, Any] = {"type": "heatmap", "z": z, "zmin": 0, "zmax": max(map(max, z)) or 1}
    trace |= {"x": [str(c) for c in kept], "y": [names[i] for i in rows]}
    trace |= {"customdata": [[counts[i][c] for c in kept] for i in rows]}
    trace |= {"xgap": 1, "ygap": 1 if len(rows) <= 60 else 0}
    trace |= {"colorscale": [[0, "--heat0"], [0.5, "--heat1"], [1, "--heat2"]]}
    trace |= {"colorbar": {"tickformat": ".0%", "thickness": 12, "outlinewidth": 0}}
    trace |= {"hovertemplate": "%{y}<br>class %{x}: %{customdata} examples (%{z:.1%})<extra></extra>"}
    x = {"title": {"text": "Class"}, "type": "category"} | ({"dtick": 1} if len(kept) <= 12 else {})
    y = {"type": "category", "autorange": "reversed"}
    layout = {"hovermode": "closest", "height": min(900, max(320, 14 * len(rows) + 110))}
    return Plot("clients", "Classes per client", words, [trace], x, y, layout)


def every_client(run: Run) -> str:
    """What each client holds, how well it is served, how often it took part; nothing for a large population."""
    held, accuracy, counts = (items(run.clients, key) for key in ("sizes", "accuracy", "label_counts"))
    if not 0 < len(held) <= CLIENTS:
        return ""
    joined = Counter(k for event in run.events for k in items(event, "clients") if isinstance(k, int))
    refused = [e.get("client") for event in run.events for e in items(event, "excluded") if isinstance(e, dict)]
    excluded = Counter(k for k in refused if isinstance(k, int))
    attack = run.summary.get("attack")
    attackers = items(attack, "clients")
    rows = []
    for i, examples in enumerate(held):
        mine = [number(v) or 0 for v in counts[i]] if i < len(counts) and isinstance(counts[i], list) else []
        most = f"class {mine.index(max(mine))} ({share(max(mine) / sum(mine))})" if sum(mine) else "–"
        rows.append(
            (
                words(run.client(i)),
                f"{number(examples) or 0:,.0f}",
                most,
                percent(number(accuracy[i]) if i < len(accuracy) else None),
                f"{joined[i]:,}",
                *(["attacker" if i in attackers else "honest"] if attackers else []),
                *([f"{excluded[i]:,}"] if excluded else []),
            )
        )
    heads = ("Client", "Examples", "Most common class", "Accuracy", "Rounds taken part")
    extra = (*(("Role",) if attackers else ()), *(("Uploads excluded",) if excluded else ()))
    return table((*heads, *extra), rows)
