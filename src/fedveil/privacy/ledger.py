"""The ledger: what was released, by whom, of whose data, under which sampling; one line per round (SPEC 0, 4).

A round is charged *before* anything of it is released: its line is on the disk first. Costs are never written here;
:mod:`fedveil.privacy.claims` computes them from the lines, so that a better accountant can be asked later.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import orjson

from fedveil.core.errors import Refused
from fedveil.core.stage import Release
from fedveil.privacy.events import Poisson, Sampling, WithoutReplacement

Status = Literal["charged", "interrupted"]


@dataclass(frozen=True)
class Line:
    """One kind of release in one round: ``release`` (its ``client`` left out) by each of ``clients``.

    ``clients`` is None for a release that the server makes of everybody's data. ``sampling`` is how the unit came
    into the release: a record into a client's batch, or a client into the round's cohort. ``observers`` see it.
    """

    release: Release
    clients: tuple[int, ...] | None
    sampling: Sampling
    observers: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """A mapping for the journal."""
        r = self.release
        return {
            "unit": r.unit,
            "mechanism": r.mechanism,
            "bound": r.bound,
            "noise_std": r.noise_std,
            "slot": r.slot,
            "channel": r.channel,
            "count": r.count,
            "clients": self.clients,
            "sampling": _sampling_to_json(self.sampling),
            "observers": self.observers,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any], round: int) -> Line:
        """The inverse of :meth:`to_json`."""
        clients = data["clients"]
        release = Release(
            data["unit"], data["bound"], data["noise_std"], data["mechanism"], data["slot"], data["channel"], round,
            None, data["count"],
        )  # fmt: skip
        who = None if clients is None else tuple(clients)
        return cls(release, who, _sampling_from_json(data["sampling"]), tuple(data["observers"]))


@dataclass(frozen=True)
class Entry:
    """All releases of one attempt at one round."""

    round: int
    lines: tuple[Line, ...]
    status: Status = "charged"

    def to_json(self) -> dict[str, Any]:
        """A mapping for the journal."""
        return {"round": self.round, "status": self.status, "releases": [line.to_json() for line in self.lines]}


def lines_of(
    releases: Iterable[Release], samplings: dict[int | None, Sampling], observers: Sequence[str]
) -> tuple[Line, ...]:
    """Group single releases into lines: equal in everything but the client; repeated ones are counted."""
    counts: dict[tuple[Release, int | None], int] = {}
    for r in releases:
        key = (replace(r, client=None, count=1), r.client)
        counts[key] = counts.get(key, 0) + r.count
    groups: dict[tuple[Release, Sampling], list[int | None]] = {}
    for (release, client), count in counts.items():
        sampling = samplings[client] if client is None or release.slot == "on_step" else None
        groups.setdefault((replace(release, count=count), sampling), []).append(client)
    lines = []
    for (release, sampling), clients in groups.items():
        central = clients == [None]
        seen = tuple(o for o in observers if o != "server") if central else tuple(observers)
        who = None if central else tuple(k for k in clients if k is not None)
        lines.append(Line(release, who, sampling, seen))
    return tuple(lines)


@dataclass
class Ledger:
    """The journal of a run, in memory and (given a path) on disk, one JSON line per charge."""

    path: Path | None = None
    entries: list[Entry] = field(default_factory=list)

    def charge(self, round: int, lines: Sequence[Line]) -> Entry:
        """Write a round's releases down, on the disk before this returns."""
        entry = Entry(round, tuple(lines))
        self._append(entry.to_json())
        self.entries.append(entry)
        return entry

    def interrupted(self, round: int) -> None:
        """Mark the charges of a round that did not complete; they stay charged, and the round is charged again."""
        self._append({"round": round, "status": "interrupted"})
        self.entries = [replace(e, status="interrupted") if e.round == round else e for e in self.entries]

    def forget(self, after: int) -> None:
        """Drop charges of rounds after this one, which will release the very same values again (``rng: seeded``)."""
        kept = [e for e in self.entries if e.round <= after]
        if len(kept) == len(self.entries):
            return
        self.entries = kept
        if self.path is not None:
            temporary = self.path.with_name(f".{self.path.name}.tmp")
            temporary.write_bytes(b"".join(orjson.dumps(e.to_json(), option=orjson.OPT_APPEND_NEWLINE) for e in kept))
            temporary.replace(self.path)

    @classmethod
    def replay(cls, path: Path) -> Ledger:
        """Read a journal back; a torn last line was never a charge, any other damage is refused."""
        ledger = cls(path)
        lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        for number, text in enumerate(lines, 1):
            try:
                data = orjson.loads(text)
                if data["status"] == "interrupted" and "releases" not in data:
                    ledger.entries = [
                        replace(e, status="interrupted") if e.round == data["round"] else e for e in ledger.entries
                    ]
                    continue
                parts = tuple(Line.from_json(line, data["round"]) for line in data["releases"])
                ledger.entries.append(Entry(data["round"], parts, data["status"]))
            except (orjson.JSONDecodeError, KeyError, TypeError):
                if number == len(lines) and not text.endswith(b"\n"):
                    path.write_bytes(b"".join(lines[:-1]))
                    break
                raise Refused(
                    f"{path}: line {number} cannot be read; the ledger is damaged and no claim can be made"
                ) from None
        return ledger

    def _append(self, data: dict[str, Any]) -> None:
        if self.path is None:
            return
        with self.path.open("ab") as file:
            file.write(orjson.dumps(data, option=orjson.OPT_APPEND_NEWLINE))
            file.flush()
            os.fsync(file.fileno())


def _sampling_to_json(sampling: Sampling) -> dict[str, Any] | None:
    if isinstance(sampling, Poisson):
        return {"kind": "poisson", "rate": sampling.rate}
    if isinstance(sampling, WithoutReplacement):
        return {"kind": "without_replacement", "size": sampling.size, "population": sampling.population}
    return None


def _sampling_from_json(data: dict[str, Any] | None) -> Sampling:
    if data is None:
        return None
    if data["kind"] == "poisson":
        return Poisson(data["rate"])
    return WithoutReplacement(data["size"], data["population"])
