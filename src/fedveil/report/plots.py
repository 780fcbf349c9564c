"""The plots of a report. A new one is a function ``Run -> Plot | None`` in ``PLOTS``; None means nothing to draw."""

from __future__ import annotations

from collections.abc import Callable

from fedveil.report.client_plots import classes, client_accuracy, sizes
from fedveil.report.defence import score
from fedveil.report.drawing import Plot, band, columns, line, quantile, round_axis, short
from fedveil.report.read import Run, number
from fedveil.report.words import share


def accuracy(run: Run) -> Plot | None:
    """Accuracy on the global test set, and on the clients' own held-out data."""
    x, test = columns(run, ("accuracy",))
    at, mean, std = columns(run, ("client_accuracy", "mean"), ("client_accuracy", "std"))
    tail, worst = columns(run, ("client_accuracy", "worst10"))
    traces, words = [], []
    if at:
        low = [short(max(0.0, m - s)) for m, s in zip(mean, std, strict=True)]
        high = [short(min(1.0, m + s)) for m, s in zip(mean, std, strict=True)]
        traces += [band(at, low, high, "± one std", 1), line(at, mean, "client mean", 1, "dash")]
    if tail:
        traces.append(line(tail, worst, "worst 10 %", 2, "dot"))
    if x:
        traces.append(line(x, test, "test set", 0))
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
    return Plot("learning", "Accuracy", " ".join(words), traces, round_axis(run), y)


def loss(run: Run) -> Plot | None:
    """Loss on the test set, and the clients' training loss from lowest to highest."""
    x, test = columns(run, ("loss",))
    at, mean, low, high = columns(run, *(("train_loss", k) for k in ("mean", "min", "max")))
    traces = []
    if at:
        traces += [band(at, low, high, "training, lowest to highest", 1)]
        traces += [line(at, mean, "training mean", 1, "dash")]
    if x:
        traces.append(line(x, test, "test set", 0))
    if not traces:
        return None
    values = [*test, *mean, *low]
    wide = min(values) > 0 and max([*values, *high]) > 100 * min(values)
    words = f"Test loss is {test[-1]:.4g} after round {x[-1]:.0f}. " if x else ""
    words += "The band spans the clients of a round." if at else ""
    y = {"title": {"text": "Loss"}, "hoverformat": ".4g"} | ({"type": "log"} if wide else {})
    return Plot("learning", "Loss", words.strip(), traces, round_axis(run), y)


def norms(run: Run) -> Plot | None:
    """How far the clients move the model in a round."""
    x, mean, low, high = columns(run, *(("move_norm", k) for k in ("mean", "min", "max")))
    if not x:
        return None
    traces = [band(x, low, high, "lowest to highest", 3), line(x, mean, "mean", 3)]
    words = "Length (l2 norm) of the clients' moves: what one round of local training changes in the model."
    y = {"title": {"text": "Norm of the move"}, "hoverformat": ".4g", "rangemode": "tozero"}
    return Plot("learning", "Move norms", words, traces, round_axis(run), y)


def epsilon(run: Run) -> Plot | None:
    """What the run had spent of its privacy budget after each round."""
    x, spent = columns(run, ("epsilon", "epsilon"))
    if not x:
        return None
    told = next(event["epsilon"] for event in reversed(run.events) if number(event, "epsilon", "epsilon") is not None)
    traces = [line(x, spent, "spent", 0)]
    words = f"Spent after round {x[-1]:.0f}: ε = {spent[-1]:.4g}"
    budget = number(told, "budget")
    if budget is not None:
        ends = [x[0], x[-1]]
        mode = {"mode": "lines" if ends[0] < ends[1] else "markers"}
        traces.append(line(ends, [budget, budget], "budget", 1, "dash") | mode)
        words += f" of a budget of {budget:.4g}"
    delta = number(told, "delta")
    words += f" at δ = {delta:.4g}" if delta is not None else ""
    who = [str(told[key]) for key in ("unit", "observer") if isinstance(told.get(key), str)]
    words += f", per {who[0]} towards {who[1]}" if len(who) == 2 else ""
    words += ". Kept while the run goes on by a quick bound that may lie above the statement's ε."
    y = {"title": {"text": "ε spent"}, "hoverformat": ".4g", "rangemode": "tozero"}
    return Plot("privacy", "Privacy spent", words, traces, round_axis(run), y)


def seconds(run: Run) -> Plot | None:
    """Wall-clock time of the rounds."""
    x, y = columns(run, ("seconds",))
    if not x:
        return None
    words = f"Wall-clock seconds per round; the median round took {quantile(sorted(y), 0.5):.3g} s."
    axis = {"title": {"text": "Seconds"}, "rangemode": "tozero", "hoverformat": ".4g"}
    return Plot("cost", "Time per round", words, [line(x, y, "seconds", 2)], round_axis(run), axis)


def traffic(run: Run) -> Plot | None:
    """Bytes that travel in a round."""
    x, up, down = columns(run, ("bytes_up",), ("bytes_down",))
    if not x:
        return None
    traces = [line(x, up, "clients to server", 0), line(x, down, "server to clients", 1, "dash")]
    axis = {"title": {"text": "Bytes"}, "rangemode": "tozero", "tickformat": "~s", "hoverformat": ".4s"}
    return Plot(
        "cost", "Bytes per round", "What all clients of a round send and receive.", traces, round_axis(run), axis
    )


PLOTS: tuple[Callable[[Run], Plot | None], ...] = (
    epsilon,  # privacy
    *(accuracy, loss, norms),  # learning
    score,  # defence
    *(client_accuracy, sizes, classes),  # clients
    *(seconds, traffic),  # cost
)


def draw(run: Run) -> list[Plot]:
    """Every plot that this run has data for."""
    return [plot for plot in (make(run) for make in PLOTS) if plot is not None]
