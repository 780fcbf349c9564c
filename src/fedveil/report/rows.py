"""A run as one row of a list or a comparison, and its course over the rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fedveil.report.drawing import short, thin
from fedveil.report.read import Run, dataset, name, number
from fedveil.report.statement import claims, holds
from fedveil.report.words import figure, words

PLAIN = "zero_out"
"""The adjacency that a promise does not mention."""


@dataclass(frozen=True)
class Row:
    """What tells a run apart, and what came of it; what is not known is None."""

    run: str
    status: str
    method: str
    data: str
    model: str
    attack: str
    aggregate: str
    transport: str
    seed: float | None
    rounds: float
    planned: float | None
    accuracy: float | None
    worst10: float | None
    loss: float | None
    epsilon: float | None
    promise: str | None
    bytes: float
    seconds: float
    promises: dict[str, float]

    def to_json(self) -> dict[str, Any]:
        """The row as a mapping."""
        return asdict(self)


def row(run: Run, label: str) -> Row:
    """The row of a run, finished or not; ``label`` is what the list calls it."""
    made = run.summary
    promises = promised(run)
    headline = _headline(run, promises)
    rounds, planned = number(made, "rounds"), number(run.config, "rounds")
    attack = _word(made.get("attack") if made else name(run.config, "attack"))
    return Row(
        run=label,
        status=_status(run),
        method=_word(made.get("method") or name(run.config, "method")),
        data=_word(dataset(run)),
        model=_word(name(run.config, "model")),
        attack="none" if attack == "unknown" else attack,
        aggregate=_word(name(run.config, "aggregate") or "mean"),
        transport=_word(name(run.config, "transport") or "plain"),
        seed=number(run.config, "seed"),
        rounds=len(run.events) if rounds is None else rounds,
        planned=planned,
        accuracy=_either(number(made, "accuracy"), run.last("accuracy")),
        worst10=_either(number(made, "worst10_accuracy"), run.last("client_accuracy", "worst10")),
        loss=_either(number(made, "loss"), run.last("loss")),
        epsilon=None if headline is None else headline[1],
        promise=None if headline is None else headline[0],
        bytes=number(sum((number(e, "bytes_up") or 0) + (number(e, "bytes_down") or 0) for e in run.events)) or 0,
        seconds=_either(number(made, "seconds"), number(sum(number(e, "seconds") or 0.0 for e in run.events))) or 0.0,
        promises=promises,
    )


def promised(run: Run) -> dict[str, float]:
    """ε of every promise of the statement; promises of different words do not compare, so the words are the key."""
    adjacency = run.config["privacy"].get("adjacency") if isinstance(run.config.get("privacy"), dict) else None
    found: dict[str, float] = {}
    for claim in claims(run):
        epsilon, delta = number(claim, "epsilon"), number(claim, "delta")
        if epsilon is None or holds(claim) == "none":
            continue
        parts = [f"{claim.get('unit')} towards {claim.get('observer')}", f"δ = {delta or 0:g}", holds(claim)]
        parts += [str(adjacency)] if adjacency not in (None, PLAIN) else []
        key = ", ".join(parts)
        found[key] = min(epsilon, found.get(key, epsilon))
    return found


def promise_of(mine: Row, *, front: bool = False) -> str:
    """ε of the headline and what it is about, as HTML; a run on the Pareto front is marked."""
    if mine.epsilon is None:
        return "–"
    mark = ' <span class="badge proved">Pareto</span>' if front else ""
    return f'{figure(mine.epsilon)}{mark}<br><span class="muted about">{words(mine.promise)}</span>'


def _headline(run: Run, promises: dict[str, float]) -> tuple[str, float] | None:
    """The promise that the budget speaks of; where there is none, the first that was proved."""
    spent = run.summary.get("epsilon")
    if isinstance(spent, dict):
        about = f"{spent.get('unit')} towards {spent.get('observer')},"
        for key, epsilon in promises.items():
            if key.startswith(about) and ", proved" in key:
                return key, epsilon
    proved = [(key, epsilon) for key, epsilon in promises.items() if ", proved" in key]
    return proved[0] if proved else None


def _status(run: Run) -> str:
    """One of finished, stopped early, interrupted, unfinished."""
    said = str(run.summary.get("status") or ("finished" if run.summary else "unfinished"))
    return next(
        (known for known in ("finished", "stopped early", "interrupted") if said.startswith(known)), "unfinished"
    )


def _word(value: Any) -> str:
    """A name for a column; a group of settings gives its own name."""
    if isinstance(value, dict):
        value = value.get("name")
    return "unknown" if value in (None, "") else str(value)[:80]


def _either(value: float | None, otherwise: float | None) -> float | None:
    return otherwise if value is None else value


def course(run: Run, points: int) -> dict[str, list[float]]:
    """Accuracy wherever it was measured, with the rounds, bytes and seconds that it had taken until then."""
    found, traffic, seconds = [], 0.0, 0.0
    for event in run.events:
        traffic += (number(event, "bytes_up") or 0) + (number(event, "bytes_down") or 0)
        seconds += number(event, "seconds") or 0.0
        at, accuracy = number(event, "round"), number(event, "accuracy")
        if at is not None and accuracy is not None and number(traffic + seconds) is not None:
            found.append((at, short(accuracy), short(traffic), short(seconds)))
    columns = list(zip(*thin(found, points), strict=True)) or [(), (), (), ()]
    return {key: list(values) for key, values in zip(("rounds", "accuracy", "bytes", "seconds"), columns, strict=True)}


def pareto(rows: Sequence[Row], promise: str) -> list[Row]:
    """Runs that no other one beats in both accuracy and this promise's ε, by ascending ε.

    The more private of two equally accurate runs stays, and the more accurate of two equally private ones.
    """
    front: list[Row] = []
    known = [r for r in rows if promise in r.promises and r.accuracy is not None]
    for candidate in sorted(known, key=lambda r: (r.promises[promise], -(r.accuracy or 0.0))):
        if not front or (candidate.accuracy or 0.0) > (front[-1].accuracy or 0.0):
            front.append(candidate)
    return front
