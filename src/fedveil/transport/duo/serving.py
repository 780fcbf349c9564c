"""A server's side of a run: orders come in, rounds are carried out, answers go out (SPEC 7.2).

The same loop runs in a thread of a simulation and in a process of its own. S1 is told whose update to compare with and
which rule to take, once it has said what was opened; S2 takes in uploads one by one. At the end of a round either says
what it has seen in it, as its conversations noted it down.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from typing import Any

import msgpack
import numpy as np

from fedveil.core.errors import Aborted, Refused
from fedveil.transport.duo.client import unsealed
from fedveil.transport.duo.dealer import Mends, ServerKeys
from fedveil.transport.duo.link import Framed, Link, Opened, Traffic
from fedveil.transport.duo.material import Mend, Sizes
from fedveil.transport.duo.parameters import Plan
from fedveil.transport.duo.round import Round, Seen, Server
from fedveil.transport.duo.rules import Update
from fedveil.transport.duo.seen import Row, numbers, opened
from fedveil.transport.duo.wire import Lost
from fedveil.transport.he.ring import Residues
from fedveil.transport.masks.rejected import Malformed, Rejected

SUMS = {"E": "energy", "M": "common", "Q": "quartic", "A": "along"}
CALIBRATED = frozenset({*SUMS, "R"})
SOURCE = frozenset({"S", "H"})
"""What a detector may read, by the names of SPEC 7.3; R = ‖r‖²."""
ROUND, REFERENCE_SHARE, UPLOAD, RULE, ANSWER = (
    "tell:round",
    "masked:previous update",
    "cipher:uploads",
    "own:rule",
    "answer",
)
KEYS, END = "dealt:keys", b""
FAR = 2.0**29
"""The longest previous update, in units: squares of integers stay below 2^62."""


def serve(keys: ServerKeys, mends: Mends | None, orders: Framed, peer: Framed, own: bytes | None = None) -> None:
    """Rounds until the end is ordered, or until one fails: then the conversation with the other server is over."""
    server = Server(keys, peer, mends, own)
    while (order := orders.receive(ROUND)) != END:
        for link in (orders, peer):
            link.record, link.traffic = Opened(), Traffic()
        try:
            _round(server, orders, msgpack.unpackb(order))
        except (Aborted, Refused, Rejected) as why:
            answer(orders, "failed", str(why), isinstance(why, Lost))
            return


def _round(server: Server, orders: Framed, order: dict[str, Any]) -> None:
    reference = _reference(server.plan, orders.receive(REFERENCE_SHARE))
    uploads = None if server.first else _uploads(server.plan, orders, order["uploads"])
    made = server.round(order["number"], uploads, attempt=order["attempt"], reference=reference)
    reads = frozenset(order["reads"])
    seen = _sensed(made, reads)
    if server.first:
        answer(orders, "opened", {} if seen is None else named(seen, reads), made.seats)
        rule = orders.receive(RULE).decode()
        made.announce("rule", rule)
    else:
        rule = made.announce("rule")
    result = made.deliver(made.aggregate(rule), order["delivery"])
    links: list[tuple[str, Link]] = [("the clients", orders), ("S2" if server.first else "S1", server.link)]
    answer(orders, "result", result or b"", numbers(links))


def _sensed(made: Round, reads: frozenset[str]) -> Seen | None:
    if not reads:
        return None
    return made.sense() if reads <= CALIBRATED else made.indicate(hide_s="S" not in reads)


def named(seen: Seen, reads: frozenset[str]) -> dict[str, float]:
    """What was opened, by the names that detectors read."""
    every = {letter: getattr(seen, name) for letter, name in SUMS.items()}
    every |= {"R": None if seen.reference is None else seen.reference**2, "S": seen.spread, "H": seen.entropy}
    return {letter: float(every[letter]) for letter in sorted(reads)}


def read_aloud(numbers: Mapping[str, float]) -> list[Row]:
    """Opened numbers as S1 opened them, for rounds of which it cannot say itself what it has seen."""
    names = {**SUMS, "R": "reference", "S": "spread", "H": "entropy"}
    return [opened(names[letter], math.sqrt(value) if letter == "R" else value) for letter, value in numbers.items()]


def _uploads(plan: Plan, orders: Framed, count: int) -> list[tuple[int, Residues]]:
    """Uploads that can be used; about each its client is told whether it was taken."""
    found = []
    for seat in range(count):
        try:
            found.append((seat, unsealed(plan, orders.receive(UPLOAD))))
        except Rejected as why:
            answer(orders, "refused", str(why))
        else:
            answer(orders, "taken")
    return found


def _reference(plan: Plan, body: bytes) -> Update | None:
    if not body:
        return None
    return Update(np.frombuffer(body, np.uint64), plan.unit)


def shared(plan: Plan, vector: np.ndarray[Any, Any], mask: np.ndarray[Any, Any]) -> tuple[bytes, bytes]:
    """Shares of the previous update for both servers, by somebody who has it; ``mask`` is uniform.

    What a rule made of uploads within the bound is not much longer than the bound; a vector beyond that is scaled.
    """
    whole = np.asarray(vector, np.float64) / plan.unit
    length = float(np.linalg.norm(whole))
    if length > FAR:
        whole = whole * (FAR / length)
    integers = np.rint(whole).astype(np.int64).view(np.uint64)
    return mask.tobytes(), (integers - mask).tobytes()


def answer(orders: Framed, *words: Any) -> None:
    """Say something to whoever gave the order."""
    orders.send(ANSWER, msgpack.packb(list(words)))


def answered(orders: Framed, *expected: str) -> list[Any]:
    """The next answer, which must be one of these; a server that failed ends the round."""
    word, *rest = msgpack.unpackb(orders.receive(ANSWER))
    if word == "failed":
        raise (Lost if rest[1] else Aborted)(str(rest[0]))
    if word not in expected:
        raise Malformed(f"an answer {word!r}, but {' or '.join(expected)} was expected")
    return [word, *rest]


class Asking:
    """Where S2 has the key centre's part from while a run goes on: the key centre answers, stage by stage."""

    def __init__(self, link: Framed) -> None:
        self._link = link

    def __call__(self, label: str) -> Mend:
        """The key centre's part of one stage."""

        def more(kind: str, sizes: Sizes) -> bytes:
            self._link.send("tell:stage", msgpack.packb([label, kind, list(sizes)]))
            return self._link.receive("dealt")

        return more


def deal_on_request(mends: Mends, link: Framed) -> None:
    """The key centre's side of :class:`Asking`, until the other is gone; it learns sizes, and nothing else."""
    stages: dict[str, Mend] = {}
    with contextlib.suppress(Aborted):
        while True:
            label, kind, sizes = msgpack.unpackb(link.receive("tell:stage"))
            if label not in stages:
                stages = {label: mends(label)}
            link.send("dealt", stages[label](kind, tuple(sizes)))
