"""Two servers at work, in threads or in processes of their own, seen from whoever runs the rounds (SPEC 7.1, 7.2).

This side stands for the key centre (it deals, and answers S2's requests for randomness), for the clients (it hands
uploads over and puts results together) and for the evaluator, who deals shares of the previous update.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgpack

from fedveil.core.errors import Aborted
from fedveil.transport.duo.apart import Apart, start
from fedveil.transport.duo.client import Sealer, combine, decrypt
from fedveil.transport.duo.given import Given, taken
from fedveil.transport.duo.link import Framed, InProcess, pair
from fedveil.transport.duo.seen import Row, table
from fedveil.transport.duo.serving import (
    END,
    KEYS,
    REFERENCE_SHARE,
    ROUND,
    RULE,
    UPLOAD,
    Asking,
    answered,
    deal_on_request,
    serve,
    shared,
)
from fedveil.transport.duo.stream import Stream
from fedveil.transport.duo.wire import Wire
from fedveil.transport.he.ring import Floats
from fedveil.transport.masks.crypto import seed

Decide = Callable[[dict[str, float], int], str]
"""The rule's name, from the opened numbers and how many uploads are in them."""


@dataclass(frozen=True)
class Outcome:
    """The result of a round, whose uploads are in it, and what each party saw."""

    result: Floats
    seats: list[int]
    refused: dict[int, str]
    seen: list[Row]
    between: int
    """Bytes that the servers sent each other."""


class Session:
    """Two servers at work; a round that fails ends it. ``rounds`` were carried out with the same keys before."""

    def __init__(self, given: Given, *, processes: bool = False, patience: float = 120.0, rounds: int = 0) -> None:
        self.given, self.plan, self.rounds = given, given.clients.plan, rounds
        self.sealer = Sealer(self.plan, given.clients.public)
        self._settings: tuple[bool, float] = (processes, patience)
        self._apart: Apart | None = None
        self._ends: list[InProcess] = []
        if processes:
            self._apart = start(patience)
            self.orders: tuple[Framed, Framed] = self._apart.orders
            for wire, message in zip(self._apart.orders, given.servers, strict=True):
                wire.send(KEYS, message)
            dealing: Wire | InProcess = self._apart.dealer
        else:
            (s1, to_s1), (s2, to_s2), (first, second), (dealing, asking) = (pair() for _ in range(4))
            self.orders, self._ends = (s1, s2), [s1, s2, dealing]
            one, two = (taken(message, lambda: Asking(asking)) for message in given.servers)
            self._thread("S1", lambda: serve(*one, to_s1, first), first, to_s1)
            self._thread("S2", lambda: serve(*two, to_s2, second), second, to_s2)
        if given.mends is not None:
            mends = given.mends
            self._thread("key centre", lambda: deal_on_request(mends, dealing), dealing)

    @staticmethod
    def _thread(name: str, work: Callable[[], None], *ends: Wire | InProcess) -> None:
        def run() -> None:
            try:
                work()
            finally:  # whatever happened, nobody waits for this party any longer
                for end in ends:
                    end.close()

        threading.Thread(target=run, daemon=True, name=name).start()

    @property
    def processes(self) -> tuple[Any, ...]:
        """The servers' processes, where they have any."""
        return () if self._apart is None else self._apart.processes

    def again(self) -> Session:
        """New servers with the same keys, in place of servers that were lost."""
        processes, patience = self._settings
        return Session(self.given, processes=processes, patience=patience, rounds=self.rounds)

    def close(self) -> None:
        """Tell both servers that there are no more rounds."""
        try:
            for order in self.orders:
                order.send(ROUND, END)
        except Aborted:
            pass
        if self._apart is not None:
            self._apart.close()
        for end in self._ends:
            end.close()

    def round(
        self,
        uploads: Sequence[bytes],
        reads: Iterable[str],
        decide: Decide,
        *,
        reference: Floats | None = None,
        delivery: str = "shares",
        number: int = 0,
    ) -> Outcome:
        """Carry a round out; :class:`Aborted` where a server is lost or fails, and then this session is over."""
        s1, s2 = self.orders
        self.rounds += 1  # whatever comes of it: coefficients were opened
        order = {"number": number, "attempt": self.given.attempt(number), "reads": sorted(reads)}
        order |= {"delivery": delivery, "uploads": len(uploads)}
        shares = (b"", b"")
        if reference is not None:
            mask = Stream(seed(), "previous update").words(len(reference))
            shares = shared(self.plan, reference, mask)
        for end, share in zip(self.orders, shares, strict=True):
            end.send(ROUND, msgpack.packb(order))
            end.send(REFERENCE_SHARE, share)
        refused = {}
        for seat, upload in enumerate(uploads):
            s2.send(UPLOAD, upload)
            word, *why = answered(s2, "taken", "refused")
            if word == "refused":
                refused[seat] = str(why[0])
        _, opened, seats = answered(s1, "opened")
        rule = decide(opened, len(seats))
        s1.send(RULE, rule.encode())
        _, one, rows1 = answered(s1, "result")
        _, two, rows2 = answered(s2, "result")
        result = decrypt(self.given.clients, one) if delivery == "switch" else combine(one, two)
        parties: dict[str, list[Row]] = {"S1": rows1, "S2": rows2}
        parties["clients"] = [{"what": "result of the round", "how": "told", "bytes": len(one) + len(two)}]
        parties["key centre"] = [{"what": "sizes of what the servers compute", "how": "told"}]
        said = ((row, other) for rows, other in ((rows1, "S2"), (rows2, "S1")) for row in rows)
        between = sum(row.get("bytes", 0) for row, other in said if row["what"].endswith(f"from {other}"))
        return Outcome(result, seats, refused, table(parties), between)
