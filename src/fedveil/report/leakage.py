"""The report's table of what each party saw, made of what the run logged that it opened and received (SPEC 7.6)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedveil.report.drawing import Plot
from fedveil.report.read import Run, items, number
from fedveil.report.words import figure, size, table, words

BEYOND = (
    "Everything in this table was written down by the run itself as it happened: a value at the moment when it was "
    "opened, a message when it was received. Assumed, and not shown by it: both servers follow the protocol and do not "
    "work together (together they read everything); the key centre has left without a copy of what it dealt (with "
    "either server, or with uploads, it reads everything); all messages travel inside TLS. All clients but one "
    "together with the opened numbers determine the length of the last one's upload: only its own noise bounds that."
)


@dataclass
class Seen:
    """One kind of thing that one party saw, over all rounds."""

    rounds: int = 0
    count: int = 0
    bytes: float = 0.0
    least: float | None = None
    most: float | None = None

    def add(self, entry: dict[str, Any]) -> None:
        """One round's."""
        self.rounds += 1
        self.count += int(number(entry, "count") or 1)
        self.bytes += number(entry, "bytes") or 0.0
        value = number(entry, "value")
        if value is not None:
            self.least = value if self.least is None else min(self.least, value)
            self.most = value if self.most is None else max(self.most, value)


def gather(run: Run) -> dict[tuple[str, str, str], Seen]:
    """Everything seen, by party, by what it is and by how it is hidden."""
    found: dict[tuple[str, str, str], Seen] = {}
    for event in run.events:
        for entry in items(event, "leakage"):
            if isinstance(entry, dict):
                key = (str(entry.get("party")), str(entry.get("what")), str(entry.get("how")))
                found.setdefault(key, Seen()).add(entry)
    return found


def leakage(run: Run, plots: list[Plot]) -> str:
    """What each party saw; nothing where no run of this kind wrote it down."""
    found = gather(run)
    if not found:
        return ""
    order = {"opened": 0, "told": 1}
    rows = [
        (
            words(party),
            words(what),
            words(how),
            _values(seen),
            f"{seen.rounds:,}",
            size(seen.bytes / seen.rounds) if seen.bytes else "–",
        )
        for (party, what, how), seen in sorted(
            found.items(), key=lambda pair: (pair[0][0], order.get(pair[0][2], 2), pair[0][1])
        )
    ]
    heads = ("Party", "What it saw", "How", "Values", "Rounds", "Bytes per round")
    return table(heads, rows) + f"<p>{BEYOND}</p>"


def _values(seen: Seen) -> str:
    if seen.least is None:
        return "–"
    return figure(seen.least) if seen.least == seen.most else f"{figure(seen.least)} to {figure(seen.most)}"
