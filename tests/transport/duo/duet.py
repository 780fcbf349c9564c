"""Both servers, a dealer and clients in one process."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from fedveil.transport.duo.client import Sealer, combine, unsealed
from fedveil.transport.duo.dealer import Dealer, Keys, deal
from fedveil.transport.duo.link import pair, together
from fedveil.transport.duo.parameters import Plan
from fedveil.transport.duo.round import Server


@lru_cache(maxsize=16)
def keys(clients: int, length: int, bound: float = 1.0, byzantine: int = 0, *, entropy: bool = False) -> Keys:
    """Keys are slow to make, and tests share them."""
    return deal(Plan(clients, length, bound, byzantine, 100), entropy=entropy)


class Duet:
    """S1 and S2 with a link between them."""

    def __init__(self, dealt: Keys) -> None:
        self.keys, self.plan = dealt, dealt.clients.plan
        self.ends = pair()
        self.one = Server(dealt.s1, self.ends[0])
        self.two = Server(dealt.s2, self.ends[1], Dealer(dealt.s1.seed, dealt.s2.seed).mend)
        self.seal = Sealer(self.plan, dealt.clients.public)

    def both(self, program, *pairs):
        """Run one program at both servers; ``pairs`` hold what S1 and what S2 is given."""
        firsts, seconds = [p[0] for p in pairs], [p[1] for p in pairs]
        return together(lambda: program(*firsts), lambda: program(*seconds), self.ends)

    def begin(self, uploads: np.ndarray, number: int = 0, reference=(None, None), attempt: int = 0):
        """A round of these uploads, at both servers."""
        parts = [(seat, unsealed(self.plan, self.seal(row))) for seat, row in enumerate(uploads)]
        return self.both(
            lambda server, given, last: server.round(number, given, attempt=attempt, reference=last),
            (self.one, self.two),
            (None, parts),
            reference,
        )

    def result(self, round, rule: str):
        """The clients' result, and both servers' shares of it."""
        updates = self.both(lambda r: r.aggregate(rule), round)
        return combine(round[0].deliver(updates[0]), round[1].deliver(updates[1])), updates


def cohort(rng, n: int, d: int, attackers: int = 0, kind: str = "sign_flip", bound: float = 1.0) -> np.ndarray:
    """Uploads with a common part, within the bound; the first ones lie."""
    common = rng.normal(size=d) / np.sqrt(d)
    x = 0.5 * common + rng.normal(size=(n, d)) / np.sqrt(d) * 0.4
    if attackers:
        honest = x[attackers:]
        x[:attackers] = {
            "sign_flip": -2 * common,
            "alie": honest.mean(0) - 1.5 * honest.std(0),
            "gaussian": rng.normal(size=(attackers, d)) / np.sqrt(d) * 3,
        }[kind]
    return bound * x / np.maximum(1, np.linalg.norm(x, axis=1))[:, None]
