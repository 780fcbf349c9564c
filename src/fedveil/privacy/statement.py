"""The privacy statement: what is proved towards whom, computed from the ledger (SPEC 0)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from fedveil.core.signal import Unit
from fedveil.core.stage import Release

Status = Literal["proved", "nominal", "none"]

OBSERVERS = ("server", "public")
UNITS: tuple[Unit, ...] = ("record", "client")


@dataclass(frozen=True)
class Row:
    """What one observer can learn about one unit: epsilon at delta, and the theorem's premises."""

    observer: str
    unit: Unit
    epsilon: float
    delta: float | None
    status: Status
    mechanism: str
    sampling: str
    accountant: str


@dataclass(frozen=True)
class Statement:
    """All rows of a run, and notes on what they do not cover."""

    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, releases: Sequence[Release], notes: Sequence[str] = ()) -> Statement:
        """The statement that these releases support; nothing is claimed for what no accountant has covered."""
        names = sorted({r.mechanism for r in releases})
        mechanism = f"{', '.join(names)} (not accounted)" if names else "none"
        rows = tuple(
            Row(observer, unit, math.inf, None, "none", mechanism, "none", "none")
            for observer in OBSERVERS
            for unit in UNITS
        )
        return cls(rows, tuple(notes))

    def headline(self) -> str:
        """The statement in one line.

        >>> Statement.of([]).headline()
        'no privacy is claimed (server, public: none)'
        """
        claims = [r for r in self.rows if r.status == "proved"]
        if not claims:
            return f"no privacy is claimed ({', '.join(dict.fromkeys(r.observer for r in self.rows))}: none)"
        return "; ".join(f"({r.epsilon:.2f}, {r.delta:g})-DP per {r.unit} towards {r.observer}, proved" for r in claims)

    def to_json(self) -> dict[str, Any]:
        """A mapping for ``statement.json``; an infinite epsilon is null."""
        rows = [asdict(r) | {"epsilon": r.epsilon if math.isfinite(r.epsilon) else None} for r in self.rows]
        return {"rows": rows, "notes": list(self.notes)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Statement:
        """The inverse of :meth:`to_json`."""
        rows = (Row(**(r | {"epsilon": math.inf if r["epsilon"] is None else r["epsilon"]})) for r in data["rows"])
        return cls(tuple(rows), tuple(data["notes"]))

    def to_markdown(self) -> str:
        """A table for ``statement.md``."""
        head = ["observer", "unit", "epsilon", "delta", "status", "mechanism", "sampling", "accountant"]
        lines = ["# Privacy statement", "", "| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
        lines += ["| " + " | ".join(cells(r)) + " |" for r in self.rows]
        lines += ["", *(f"- {note}" for note in self.notes)]
        return "\n".join(lines) + "\n"


def cells(row: Row) -> list[str]:
    """A row as words, for tables."""
    epsilon = f"{row.epsilon:.3f}" if math.isfinite(row.epsilon) else "infinite"
    delta = "-" if row.delta is None else f"{row.delta:g}"
    return [row.observer, row.unit, epsilon, delta, row.status, row.mechanism, row.sampling, row.accountant]
