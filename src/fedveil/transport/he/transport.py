"""The he transport: all parties of the encrypted sum in one process (SPEC 6.2)."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedveil.core.errors import Aborted, Refused, fraction, positive
from fedveil.core.parts import Delivery, View
from fedveil.core.signal import Signal
from fedveil.core.stage import Context
from fedveil.transport.he.keys import Keys, deal, read
from fedveil.transport.he.messages import Session
from fedveil.transport.he.parameters import LEAK, OPENED, Parameters
from fedveil.transport.he.ring import Floats
from fedveil.transport.he.roles import Client, Computer, Controller

REACH = 16.0
"""The largest size of a coordinate where nobody says another."""


@dataclass(frozen=True)
class Encrypted:
    """Uploads are encrypted, added by one server, and their sum is opened by two.

    keys
        a folder of `fedveil keys new`; None: the key centre deals when a run begins, in memory.
    reach
        the largest size of a coordinate, for keys that are dealt for the run (None: 16); keys of a folder have theirs.
    least
        uploads that a sum must hold, or else it stays encrypted.
    dropout
        the share of clients that drop out of a simulated round before they send.
    """

    keys: str | None = None
    reach: float | None = None
    least: int = 2
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if self.reach is not None:
            positive(**{"transport.reach": self.reach})
            if self.keys is not None:
                raise Refused(
                    "transport.reach: the keys of transport.keys were dealt for a reach of their own; leave it out, or "
                    f"make new keys with `fedveil keys new --reach {self.reach:g}`"
                )
        fraction(**{"transport.dropout": self.dropout})
        if self.least < 2:
            raise Refused(f"transport.least: a sum of {self.least} upload hides nothing; give 2 or more")

    @property
    def reveals(self) -> frozenset[View]:
        """The sum."""
        return frozenset({"sum"})

    def remarks(self, cohort: int) -> list[str]:
        """Who is trusted with what, and what an opening may give away beside the sum."""
        keys = self._keys(cohort)
        where = (
            "in this process, which held them all" if self.keys is None else f"for {keys.parameters.clients} clients"
        )
        return [
            "Homomorphic aggregation: uploads are added under CKKS encryption (128-bit security), and two servers "
            "open sums together. Neither learns a single upload as long as both follow the protocol and do not work "
            "together, and the key centre has left without a copy of the key. The computer could pass a single "
            f"upload off as a sum: that it does not is part of this trust. Keys were dealt {where}. Openings are "
            f"flooded: 2^{OPENED} opened coordinates are within 2^-{LEAK} of telling sums alone."
        ]

    def carry(self, uploads: Mapping[str, Signal], weights: Tensor, ctx: Context) -> Delivery:
        """The weighted sum over the clients that sent, and the sum of their weights.

        Clients encrypt c_k x_k and c_k with c_k = w_k / max w, so that neither server need know weights.
        """
        if list(ctx.clients) == [None]:  # nobody came: there is nobody to run the protocol with
            return Delivery({name: s.value * float(weights[0]) for name, s in uploads.items()}, 0)
        n = self.enough(len(weights))
        rows = self.rows(uploads, weights / weights.max())
        keys = self._keys(n)
        session = Session(os.urandom(16), keys.parameters, n, rows.shape[1])
        computer = Computer(session, keys.computer, self.least)
        sent = 0
        for seat in self.stay(n, ctx):
            frame = Client(session, seat, keys.public).upload(rows[seat])
            sent += len(frame)
            computer.receive(frame)
        opening = computer.close()
        controller = Controller(session, keys.controller)
        total = controller.open(opening)
        ctx.log["he"] = note(session, controller.seats, len(opening))
        return self.delivery(total, controller.seats, uploads, weights, sent)

    def enough(self, n: int) -> int:
        """Refuse rounds of so few clients that a sum would hide nobody."""
        if n < self.least:
            raise Aborted(f"{n} clients were drawn, fewer than transport.least={self.least}; take larger cohorts")
        return n

    def rows(self, uploads: Mapping[str, Signal], counts: Tensor) -> Floats:
        """What clients encrypt: c_k x_k and c_k."""
        counts = counts.double()
        values = torch.cat([s.value.detach().double().cpu() for s in uploads.values()], dim=1) * counts[:, None]
        return torch.cat([values, counts[:, None]], dim=1).numpy()

    def delivery(
        self, total: Floats, seats: list[int], uploads: Mapping[str, Signal], weights: Tensor, sent: int
    ) -> Delivery:
        """What the sum over these seats says; of ``uploads`` it reads lengths alone."""
        top, sums, start = float(weights.max()), {}, 0
        for name, signal in uploads.items():
            part = torch.from_numpy(np.ascontiguousarray(total[start : start + signal.dim]))
            sums[name] = (part * top)[None, :].to(signal.value)
            start += signal.dim
        arrived = None if len(seats) == len(weights) else torch.tensor(seats)
        return Delivery(sums, sent, arrived, float(total[-1]) * top)

    def _keys(self, clients: int) -> Keys:
        keys = (
            _dealt(_room(clients), self.reach or REACH) if self.keys is None else _kept(str(Path(self.keys).absolute()))
        )
        if clients > keys.parameters.clients:
            raise Refused(
                f"transport.keys: these keys are for sums of {keys.parameters.clients} clients, and {clients} take "
                f"part; make new ones with `fedveil keys new --clients {clients}`"
            )
        return keys

    def stay(self, n: int, ctx: Context) -> list[int]:
        """Who does not drop out of this simulated round."""
        if not self.dropout:
            return list(range(n))
        assert ctx.chance is not None
        lost = math.floor(self.dropout * n) + int(ctx.chance.random() < self.dropout * n % 1)
        return sorted(set(range(n)) - set(ctx.chance.choice(n, lost, replace=False).tolist()))


def note(session: Session, seats: list[int], between: int) -> dict[str, int]:
    """What the round's line says of a sum."""
    return {"blocks": session.blocks, "arrived": len(seats), "between_servers": between}


def _room(clients: int) -> int:
    """The next power of two, so that cohorts of many sizes share keys."""
    return 1 << max(1, (clients - 1).bit_length())


@lru_cache(maxsize=4)
def _dealt(clients: int, reach: float) -> Keys:
    return deal(Parameters(clients, reach))


@lru_cache(maxsize=4)
def _kept(folder: str) -> Keys:
    return read(Path(folder))
