"""From ledger lines to claims: who may conclude how much about which unit (SPEC 0, 3.1).

*Local* releases are made by a client, of its own data, before anything leaves it: they protect against the server,
and against everybody behind it (post-processing). *Central* ones are made by the server of everybody's data: they
protect against the public only, and there the draw of the cohort amplifies, because the public does not see it.

Where clients add their noise *together* and only the sum is shown, the releases are local ones: the server knows who
took part. The public does not, and towards it the draw of clients amplifies; how many took part the noise betrays, so
that a Poisson draw counts as one of its size (docs/decisions/015).

A client-unit release also bounds the record unit, at twice the sensitivity: changing a record may turn the whole move
into any other of the same length, which is replacing the client, not zeroing it (with several local steps this really
happens: ``tests/methods/test_sensitivity.py``). A record-unit release says nothing about the client unit (group privacy
over n_k records is no claim worth printing).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from fedveil.core.errors import Refused
from fedveil.core.signal import Unit
from fedveil.privacy.events import Adjacency, Event, Poisson, Sampling, event_of, joint
from fedveil.privacy.ledger import Entry, Line

Observer = Literal["server", "public"]
Tally = dict[Event, int]

OBSERVERS: tuple[Observer, ...] = ("server", "public")
UNITS: tuple[Unit, ...] = ("record", "client")


@dataclass(frozen=True)
class Spread:
    """ε over the clients that have released anything: the claim is the worst of them."""

    worst: float
    median: float
    least: float
    clients: int


@dataclass
class Accounts:
    """Running tallies of a ledger, and what they cost.

    ``local`` says whether every upload has passed a mechanism before it leaves the client; if not, the server is
    promised nothing, and the public what central releases give. ``hidden`` says that clients keep a state between
    rounds that the public cannot follow: what one sends then depends on when it was drawn before (docs/decisions/011).
    """

    delta: float
    local: bool
    accountant: str = "rdp"
    adjacency: Adjacency = "zero_out"
    of_client: dict[Unit, dict[int, Tally]] = field(default_factory=lambda: {"record": {}, "client": {}})
    of_all: dict[Unit, Tally] = field(default_factory=lambda: {"record": {}, "client": {}})
    hidden: bool = False
    of_pool: dict[Unit, Tally] = field(default_factory=lambda: {"record": {}, "client": {}})
    """Releases that clients make together, as the public sees them: it does not know whose shares are in them."""
    alone: bool = False
    """Some client has released something by itself, too."""
    unbounded: bool = False
    """Some local release has the record unit, so that nothing bounds a whole client."""
    _known: dict[tuple[frozenset[tuple[Event, int]], str], float] = field(default_factory=dict)

    @classmethod
    def replay(cls, entries: Iterable[Entry], **settings: object) -> Accounts:
        """The accounts of a whole journal; an interrupted attempt counts like any other."""
        accounts = cls(**settings)  # type: ignore[arg-type]
        for entry in entries:
            accounts.add(entry.lines)
        return accounts

    def add(self, lines: Sequence[Line]) -> None:
        """Charge the lines of one round."""
        for line in lines:
            if line.clients is None:
                continue
            for unit in UNITS if line.release.unit == "client" else UNITS[:1]:
                for client in line.clients:
                    _merge(self.of_client[unit].setdefault(client, {}), self._event(line, unit))
            self.unbounded |= line.release.unit == "record"
            self.alone |= line.release.pool is None
        for unit in UNITS:
            for event in self._pooled(lines, unit):
                _merge(self.of_pool[unit], event)
            for event in self._central(lines, unit):
                _merge(self.of_all[unit], event)

    def covers(self, observer: Observer, unit: Unit) -> bool:
        """Whether any finite claim can be made."""
        if self.local:
            return unit == "record" or not self.unbounded
        return observer == "public" and bool(self.of_all[unit])

    def spent(
        self, observer: Observer, unit: Unit, coming: Sequence[Line] = (), accountant: str | None = None
    ) -> float:
        """ε of the worst client (with a ``coming`` round: of its clients, after it); infinite without a claim."""
        accountant = accountant or self.accountant
        bounded = not any(x.clients and x.release.unit == "record" for x in coming)
        if self.local and self.covers(observer, unit) and (unit == "record" or bounded):
            clients = {k for x in coming for k in x.clients or ()} or self.of_client[unit]
            ours = {k: [x for x in coming if x.clients and k in x.clients] for k in clients}
            tallies = [self._after(self.tally(unit, k), self.events(ours[k], unit)) for k in clients]
            worst = max((self._cost(t, accountant) for t in tallies), default=0.0)
            return min(worst, self._hidden_among_all(unit, coming, accountant)) if observer == "public" else worst
        if not self.local and observer == "public":
            tally = self._after(self.of_all[unit], self.events(coming, unit))
            return self._cost(tally, accountant) if tally else math.inf
        return math.inf

    def drawn(self, unit: Unit) -> bool:
        """Whether it is the draw of clients that bounds what the public learns."""
        return self._hidden_among_all(unit) < self.spent("server", unit)

    def _hidden_among_all(self, unit: Unit, coming: Sequence[Line] = (), accountant: str | None = None) -> float:
        """ε of everybody alike, by the draw of clients, where all releases are made together; else infinite."""
        tally = self._after(self.of_pool[unit], self._pooled(coming, unit))
        if not tally or self.alone or self.hidden or any(x.clients and x.release.pool is None for x in coming):
            return math.inf
        try:
            return self._cost(tally, accountant or self.accountant)
        except Refused:  # no theorem for this draw
            return math.inf

    def tally(self, unit: Unit, client: int) -> Tally:
        """Everything that counts against one client (or against all of them alike)."""
        return self.of_client[unit].get(client, {}) if self.local else self.of_all[unit]

    def events(self, lines: Sequence[Line], unit: Unit) -> list[Event]:
        """Lines of one round as the events of each client in them."""
        if not self.local:
            return self._central(lines, unit)
        return [self._event(x, unit) for x in lines if x.clients and (unit == "record" or x.release.unit == "client")]

    def worst_client(self, unit: Unit) -> int | None:
        """The client that has spent most."""
        tallies = self.of_client[unit]
        return max(tallies, key=lambda k: self._cost(tallies[k], "rdp")) if self.local and tallies else None

    def spread(self, unit: Unit) -> Spread | None:
        """Worst, median and least ε over clients; None for central releases, where all have the same."""
        if not self.local or not self.of_client[unit]:
            return None
        costs = sorted(self._cost(t, "rdp") for t in self.of_client[unit].values())
        return Spread(costs[-1], costs[len(costs) // 2], costs[0], len(costs))

    def tight(self, observer: Observer, unit: Unit) -> float:
        """The worst client's ε by the slow accountant, asked only for clients that RDP cannot rule out."""
        if not self.local or self.accountant == "rdp" or not self.covers(observer, unit):
            return self.spent(observer, unit)
        tallies = {frozenset(t.items()): t for t in self.of_client[unit].values()}
        by_rdp = sorted(((self._cost(t, "rdp"), t) for t in tallies.values()), key=lambda pair: -pair[0])
        worst = 0.0
        for bound, tally in by_rdp:
            if bound <= worst and self.accountant == "pld":
                break
            worst = max(worst, self._cost(tally, self.accountant))
        return min(worst, self._hidden_among_all(unit)) if observer == "public" else worst

    def cost(self, tally: Tally) -> float:
        """ε of these events, by the accountant in use."""
        return self._cost(tally, self.accountant)

    def amplifying(self, line: Line, unit: Unit) -> Sampling:
        """The draw that counts for this unit: of batches for records, of clients for both; None where none may.

        With a hidden state only independent draws do, and only against zeroing (or removing) the unit.
        """
        if line.clients is not None:
            return line.sampling if line.release.unit == "record" else None
        adjacency = self._neighbours(line, unit)
        if self.hidden and adjacency != "add_remove":
            return line.sampling if adjacency == "zero_out" and isinstance(line.sampling, Poisson) else None
        return line.sampling

    def _neighbours(self, line: Line, unit: Unit) -> Adjacency:
        """Changing a record inside a client is replacing the client."""
        return "replace" if unit == "record" and line.release.unit == "client" else self.adjacency

    def _event(self, line: Line, unit: Unit) -> Event:
        """A line as an event about this unit."""
        return event_of(line.release, self.amplifying(line, unit), self._neighbours(line, unit))

    def _central(self, lines: Sequence[Line], unit: Unit) -> list[Event]:
        """Central lines of one round share one cohort: Gaussian ones are joined before the draw amplifies them."""
        central = [x for x in lines if x.clients is None and (unit == "record" or x.release.unit == "client")]
        events = [self._event(x, unit) for x in central]
        if sum(e.count for e in events) < 2:
            return events
        if all(e.mechanism == "gaussian" and e.sampling == events[0].sampling for e in events):
            return [joint(events)]
        return [replace(e, sampling=None) for e in events]  # no joint theorem: nothing is amplified

    def _pooled(self, lines: Sequence[Line], unit: Unit) -> list[Event]:
        """Releases that clients made together, amplified by the draw of clients if there is one in the round."""
        pooled = [x for x in lines if x.release.pool is not None]
        events = [event_of(x.release, x.sampling, self._neighbours(x, unit)) for x in pooled]
        return events if len(events) < 2 else [replace(e, sampling=None) for e in events]

    def _cost(self, tally: Tally, accountant: str) -> float:
        key = (frozenset(tally.items()), accountant)
        if key not in self._known:
            from fedveil.privacy.accountants import epsilon  # a second to load; only private runs need it

            self._known[key] = epsilon(tally, self.delta, accountant)
        return self._known[key]

    @staticmethod
    def _after(tally: Tally, events: Sequence[Event]) -> Tally:
        out = dict(tally)
        for event in events:
            _merge(out, event)
        return out


def _merge(tally: Tally, event: Event) -> None:
    tally[event.one] = tally.get(event.one, 0) + event.count
