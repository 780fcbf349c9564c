"""What a run folder holds, and the plots drawn from it: plain mappings that plotly.js understands.

A new plot is one function ``Run -> Plot | None`` added to ``PLOTS``; None means nothing to draw.
"""

from __future__ import annotations

import html
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from omegaconf import OmegaConf

from fedveil.core.errors import Refused

T = TypeVar("T")

POINTS = 1000  # most points of a line: a longer run is thinned, so that the page stays small
CLIENTS = 200  # most clients drawn one by one; a larger population becomes a histogram
ROWS = 100  # most clients (and classes) in the heat map of a large population
COLOURS = tuple(f"--c{i}" for i in range(1, 9))  # names of CSS variables; the page's script puts in the values


@dataclass(frozen=True)
class Run:
    """The files of a run folder, as they were read; optional files are empty mappings when missing."""

    folder: Path
    config: dict[str, Any]
    config_text: str
    events: tuple[dict[str, Any], ...]
    clients: dict[str, Any]
    statement: dict[str, Any]
    summary: dict[str, Any]
    damaged: tuple[str, ...]

    def client(self, index: int) -> str:
        """A client's name, or its number where it has none."""
        names = items(self.clients, "names")
        return str(names[index]) if index < len(names) and names[index] is not None else f"client {index}"

    def last(self, *path: str) -> float | None:
        """The latest number recorded at this place of the events."""
        found = (number(event, *path) for event in reversed(self.events))
        return next((value for value in found if value is not None), None)


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


def read_run(folder: Path) -> Run:
    """Read a run folder, finished or not; refuse a folder that is none."""
    try:
        config_text = (folder / "config.yaml").read_text("utf-8")
        config = OmegaConf.to_container(OmegaConf.create(config_text))
    except OSError:
        raise _no_run(folder, "no config.yaml") from None
    except Exception:  # OmegaConf and its YAML parser share no base class
        raise _no_run(folder, "config.yaml is damaged") from None
    if not isinstance(config, dict) or all(value is None for value in config.values()):  # a bare word is YAML too
        raise _no_run(folder, "config.yaml is damaged")
    damaged: list[str] = []
    optional = {name: _mapping(folder / f"{name}.json", damaged) for name in ("clients", "statement", "summary")}
    settings = {str(key): value for key, value in config.items()}
    return Run(folder, settings, config_text, _events(folder), damaged=tuple(damaged), **optional)


def _no_run(folder: Path, why: str) -> Refused:
    return Refused(f"report: {folder} is not a run folder ({why}); give the folder that `fedveil run` printed")


def _events(folder: Path) -> tuple[dict[str, Any], ...]:
    try:
        lines = [line for line in (folder / "events.jsonl").read_bytes().split(b"\n") if line.strip()]
    except OSError:
        raise _no_run(folder, "no events.jsonl") from None
    rounds: dict[int, dict[str, Any]] = {}  # a resumed run may write a round twice: the later line counts
    for place, line in enumerate(lines, start=1):
        try:
            event = json.loads(line)
            rounds[int(event["round"])] = event
        except (ValueError, TypeError, KeyError, OverflowError):
            if place < len(lines):  # only the last line can be torn by a crash
                raise _no_run(folder, f"line {place} of events.jsonl is damaged") from None
    return tuple(rounds[r] for r in sorted(rounds))


def _mapping(path: Path, damaged: list[str]) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        return dict(json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError):
        damaged.append(path.name)
        return {}


def number(value: Any, *path: str) -> float | None:
    """The finite number at a place of nested mappings, or None.

    >>> number({"loss": {"mean": 0.5}}, "loss", "mean"), number({"loss": None}, "loss", "mean")
    (0.5, None)
    """
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return value


def items(value: Any, key: str) -> list[Any]:
    """The list under a key, empty when there is none."""
    found = value.get(key) if isinstance(value, dict) else None
    return found if isinstance(found, list) else []


def thin(values: Sequence[T], most: int = POINTS) -> list[T]:
    """At most about this many values, evenly spread, the first and the last among them.

    >>> thin(list(range(10)), 4)
    [0, 3, 6, 9]
    """
    step = max(1, math.ceil((len(values) - 1) / max(1, most - 1)))
    return [*values[:-1:step], *values[-1:]]


def share(value: float) -> str:
    """A fraction as a percentage."""
    return f"{100 * value:.1f} %"


def quantile(ordered: Sequence[float], q: float) -> float:
    """The value below which a fraction ``q`` of the ascending values lies (nearest rank)."""
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


def _short(value: float) -> float:
    return float(f"{value:.5g}")


def _label(name: str) -> str:
    """A name for plotly.js, which reads a little HTML in its labels."""
    return html.escape(name if len(name) <= 40 else name[:39] + "…", quote=False)


def _columns(run: Run, *paths: tuple[str, ...]) -> list[list[float]]:
    """Round numbers and the values at these places, for the rounds that have them all."""
    rows = [[number(event, "round"), *(number(event, *path) for path in paths)] for event in run.events]
    full = thin([[_short(v) for v in row if v is not None] for row in rows if None not in row])
    return [list(column) for column in zip(*full, strict=True)] or [[] for _ in range(len(paths) + 1)]


def _line(x: list[float], y: list[float], name: str, colour: int, dash: str = "solid") -> dict[str, Any]:
    line = {"color": COLOURS[colour], "width": 2.5, "dash": dash}
    mode = "lines+markers" if len(x) <= 40 else "lines"
    symbol = ("circle", "diamond", "square", "triangle-up")[colour % 4]  # never told apart by colour alone
    marker = {"symbol": symbol, "size": 6, "color": COLOURS[colour]}
    return {"x": x, "y": y, "name": name, "mode": mode, "line": line, "marker": marker, "type": "scatter"}


def _band(x: list[float], low: list[float], high: list[float], name: str, colour: int) -> dict[str, Any]:
    edges = {"x": x + x[::-1], "y": high + low[::-1], "fill": "toself", "line": {"width": 0}, "mode": "lines"}
    return edges | {"fillcolor": f"{COLOURS[colour]}-soft", "name": name, "hoverinfo": "skip", "type": "scatter"}


def _rounds(run: Run) -> dict[str, Any]:
    return {"title": {"text": "Round"}, "tickformat": "d"} | ({"dtick": 1} if len(run.events) <= 10 else {})


def accuracy(run: Run) -> Plot | None:
    """Accuracy on the global test set, and on the clients' own held-out data."""
    x, test = _columns(run, ("accuracy",))
    at, mean, std = _columns(run, ("client_accuracy", "mean"), ("client_accuracy", "std"))
    tail, worst = _columns(run, ("client_accuracy", "worst10"))
    traces, words = [], []
    if at:
        low = [_short(max(0.0, m - s)) for m, s in zip(mean, std, strict=True)]
        high = [_short(min(1.0, m + s)) for m, s in zip(mean, std, strict=True)]
        traces += [_band(at, low, high, "± one std", 1), _line(at, mean, "client mean", 1, "dash")]
    if tail:
        traces.append(_line(tail, worst, "worst 10 %", 2, "dot"))
    if x:
        traces.append(_line(x, test, "test set", 0))
        best = max(range(len(x)), key=test.__getitem__)
        words.append(
            f"Test accuracy is {share(test[-1])} after round {x[-1]:.0f}; the best was {share(test[best])} "
            f"in round {x[best]:.0f}."
        )
    if at:
        words.append("The band is one standard deviation of the accuracy between clients.")
    if not traces:
        return None
    y = {"tickformat": ".0%", "title": {"text": "Accuracy"}, "hoverformat": ".2%"}
    return Plot("learning", "Accuracy", " ".join(words), traces, _rounds(run), y)


def loss(run: Run) -> Plot | None:
    """Loss on the test set, and the clients' training loss from lowest to highest."""
    x, test = _columns(run, ("loss",))
    at, mean, low, high = _columns(run, *(("train_loss", k) for k in ("mean", "min", "max")))
    traces = []
    if at:
        traces += [_band(at, low, high, "training, lowest to highest", 1)]
        traces += [_line(at, mean, "training mean", 1, "dash")]
    if x:
        traces.append(_line(x, test, "test set", 0))
    if not traces:
        return None
    values = [*test, *mean, *low]
    wide = min(values) > 0 and max([*values, *high]) > 100 * min(values)
    words = f"Test loss is {test[-1]:.4g} after round {x[-1]:.0f}. " if x else ""
    words += "The band spans the clients of a round." if at else ""
    y = {"title": {"text": "Loss"}, "hoverformat": ".4g"} | ({"type": "log"} if wide else {})
    return Plot("learning", "Loss", words.strip(), traces, _rounds(run), y)


def norms(run: Run) -> Plot | None:
    """How far the clients move the model in a round."""
    x, mean, low, high = _columns(run, *(("move_norm", k) for k in ("mean", "min", "max")))
    if not x:
        return None
    traces = [_band(x, low, high, "lowest to highest", 3), _line(x, mean, "mean", 3)]
    words = "Length (l2 norm) of the clients' moves: what one round of local training changes in the model."
    y = {"title": {"text": "Norm of the move"}, "hoverformat": ".4g", "rangemode": "tozero"}
    return Plot("learning", "Move norms", words, traces, _rounds(run), y)


def _spread(values: list[tuple[int, float]], run: Run, unit: str, top: float, colour: int) -> dict[str, Any]:
    """Sorted bars, one per client, or a histogram when there are too many."""
    if len(values) <= CLIENTS:
        ordered = sorted(values, key=lambda pair: pair[1])
        sizes = items(run.clients, "sizes")
        held = [number(sizes[i]) if i < len(sizes) else None for i, _ in ordered]
        about = [[_label(run.client(i)), n if n is not None else "?"] for (i, _), n in zip(ordered, held, strict=True)]
        hover = "<b>%{customdata[0]}</b><br>%{y}<br>%{customdata[1]} examples<extra></extra>"
        bars = {"y": [_short(v) for _, v in ordered], "customdata": about, "hovertemplate": hover}
        return {"type": "bar", "x": list(range(len(ordered))), "marker": {"color": COLOURS[colour]}} | bars
    width = top / 20 or 1.0
    counts = [0] * 20
    for _, value in values:
        counts[max(0, min(19, int(value / width)))] += 1
    hover = f"%{{y}} clients near %{{x:.3~g}} {unit}<extra></extra>"
    bars = {"y": counts, "x": [_short((b + 0.5) * width) for b in range(20)], "hovertemplate": hover}
    return {"type": "bar", "width": _short(0.94 * width), "marker": {"color": COLOURS[colour]}} | bars


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
    names = [_label(run.client(i)) for i in range(len(counts))]
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


def seconds(run: Run) -> Plot | None:
    """Wall-clock time of the rounds."""
    x, y = _columns(run, ("seconds",))
    if not x:
        return None
    words = f"Wall-clock seconds per round; the median round took {quantile(sorted(y), 0.5):.3g} s."
    axis = {"title": {"text": "Seconds"}, "rangemode": "tozero", "hoverformat": ".4g"}
    return Plot("cost", "Time per round", words, [_line(x, y, "seconds", 2)], _rounds(run), axis)


def traffic(run: Run) -> Plot | None:
    """Bytes that travel in a round."""
    x, up, down = _columns(run, ("bytes_up",), ("bytes_down",))
    if not x:
        return None
    traces = [_line(x, up, "clients to server", 0), _line(x, down, "server to clients", 1, "dash")]
    axis = {"title": {"text": "Bytes"}, "rangemode": "tozero", "tickformat": "~s", "hoverformat": ".4s"}
    return Plot("cost", "Bytes per round", "What all clients of a round send and receive.", traces, _rounds(run), axis)


PLOTS: tuple[Callable[[Run], Plot | None], ...] = (
    *(accuracy, loss, norms),  # learning
    *(client_accuracy, sizes, classes),  # clients
    *(seconds, traffic),  # cost
)


def draw(run: Run) -> list[Plot]:
    """Every plot that this run has data for."""
    return [plot for plot in (make(run) for make in PLOTS) if plot is not None]
