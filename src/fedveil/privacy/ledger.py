"""The ledger: what was released, by whom, of whose data, under which sampling; one line per round (SPEC 0, 4).

A round is charged *before* anything of it is released: its line is on the disk first. Costs are never written here;
:mod:`fedveil.privacy.claims` computes them from the lines, so that a better accountant can be asked later.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import orjson

from fedveil.core.errors import Refused
from fedveil.core.files import write_bytes
from fedveil.core.stage import Pool, Release
from fedveil.privacy.events import Poisson, Sampling, WithoutReplacement

Status = Literal["charged", "interrupted"]


@dataclass(frozen=True)
class Line:
    """One kind of release in one round: ``release`` (its ``clients`` left out) by each of ``clients``.

    ``clients`` is None for a release that the server makes of everybody's data. ``sampling`` is how the unit came
    into the release: a record into a client's batch, or a client into the round's cohort (of a release that clients
    make together as well). ``observers`` see it.
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
            "claimed": r.claimed,
            "pool": None if r.pool is None else asdict(r.pool),
            "epsilon": r.epsilon,
            "clients": self.clients,
            "sampling": _sampling_to_json(self.sampling),
            "observers": self.observers,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any], round: int) -> Line:
        """The inverse of :meth:`to_json`."""
        clients, pool = data["clients"], data["pool"]
        release = Release(
            data["unit"], data["bound"], data["noise_std"], data["mechanism"], data["slot"], data["channel"], round,
            None, data["count"], data["claimed"], None if pool is None else Pool(**pool), data["epsilon"],
        )  # fmt: skip
        who = None if clients is None else tuple(clients)
        return cls(release, who, _sampling_from_json(data["sampling"]), tuple(data["observers"]))


@dataclass(frozen=True)
class Entry:
    """All releases of one attempt at one round (none, for a method without a mechanism).

    ``fingerprint`` stands for everything that shapes what is released: settings, method, model, data, versions.
    """

    round: int
    lines: tuple[Line, ...]
    fingerprint: str = ""
    status: Status = "charged"

    def to_json(self) -> dict[str, Any]:
        """A mapping for the journal."""
        releases = [line.to_json() for line in self.lines]
        return {"round": self.round, "status": "charged", "fingerprint": self.fingerprint, "releases": releases}


def lines_of(
    releases: Iterable[Release], samplings: dict[int | None, Sampling], observers: Sequence[str]
) -> tuple[Line, ...]:
    """Group single releases into lines: equal in everything but the client; repeated ones are counted."""
    counts: dict[tuple[Release, int | None], int] = {}
    for r in releases:
        kind = replace(r, clients=None, count=1)
        for client in (None,) if r.clients is None else r.clients:
            counts[kind, client] = counts.get((kind, client), 0) + r.count
    groups: dict[tuple[Release, Sampling], list[int | None]] = {}
    for (release, client), count in counts.items():
        sampling = samplings[client] if client is None or release.slot == "on_step" else None
        sampling = samplings[None] if release.pool is not None else sampling
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
    """The journal of a run, in memory and (given a path) on disk, one JSON line per charge.

    Every line carries a digest over itself and the line before it. The last one, ``head``, is kept by checkpoints:
    a ledger that was lost, cut or edited cannot pass for the one that the checkpoint was charged under.
    """

    path: Path | None = None
    entries: list[Entry] = field(default_factory=list)
    heads: list[str] = field(default_factory=lambda: [""])
    _texts: list[bytes] = field(default_factory=list)

    @property
    def head(self) -> str:
        """The digest of everything so far."""
        return self.heads[-1]

    def charge(self, round: int, lines: Sequence[Line], fingerprint: str = "") -> Entry:
        """Write a round's releases down, on the disk before this returns."""
        entry = Entry(round, tuple(lines), fingerprint)
        self._append(entry.to_json())
        self.entries.append(entry)
        return entry

    def interrupted(self, round: int) -> None:
        """Mark the charges of a round that did not complete; they stay charged, and the round is charged again."""
        self._append({"round": round, "status": "interrupted"})
        self._mark(round)

    def forget(self, head: str) -> None:
        """Drop everything after this head: rounds that will release the very same values again (``rng: seeded``)."""
        keep = self.heads.index(head)
        if keep == len(self._texts):
            return
        texts = self._texts[:keep]
        if self.path is not None:
            write_bytes(self.path, b"".join(texts))
        self.entries, self.heads, self._texts = [], [""], []
        for text in texts:
            self._read(text)

    @classmethod
    def replay(cls, path: Path) -> Ledger:
        """Read a journal back; a torn last line was never a charge, any other damage is refused."""
        ledger = cls(path)
        texts = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        if texts and not texts[-1].endswith(b"\n"):
            texts.pop()
            write_bytes(path, b"".join(texts))
        for number, text in enumerate(texts, 1):
            try:
                ledger._read(text)
            except (orjson.JSONDecodeError, KeyError, TypeError, ValueError):
                raise Refused(
                    f"{path}: line {number} is not what was written; the ledger is damaged and supports no claim"
                ) from None
        return ledger

    def _read(self, text: bytes) -> None:
        data = orjson.loads(text)
        digest = data.pop("digest")
        if digest != self._digest(data):
            raise ValueError("digest")
        self._texts.append(text)
        self.heads.append(digest)
        if "releases" not in data:
            self._mark(data["round"])
            return
        lines = tuple(Line.from_json(line, data["round"]) for line in data["releases"])
        self.entries.append(Entry(data["round"], lines, data["fingerprint"]))

    def _mark(self, round: int) -> None:
        self.entries = [replace(e, status="interrupted") if e.round == round else e for e in self.entries]

    def _digest(self, data: dict[str, Any]) -> str:
        return hashlib.blake2b(self.head.encode() + orjson.dumps(data), digest_size=16).hexdigest()

    def _append(self, data: dict[str, Any]) -> None:
        digest = self._digest(data)
        text = orjson.dumps(data | {"digest": digest}, option=orjson.OPT_APPEND_NEWLINE)
        if self.path is not None:
            with self.path.open("ab") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
        self._texts.append(text)
        self.heads.append(digest)


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
