"""A round at one of two servers: uploads to shares, statistics, a rule, a result (SPEC 7.2).

Both servers run the same program; S2 has the uploads, S1 learns what is opened. Uploads are masked once, x = e + a with
e known to both, and everything linear or quadratic is made of that: products of all pairs, and mixtures Σ c_i x_i whose
factors c are shared. An upload beyond the norm bound counts as zeros: it is multiplied by a bit that nobody sees.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

import msgpack
import numpy as np

from fedveil.core.errors import Aborted
from fedveil.transport.duo import fixed, rules, wide
from fedveil.transport.duo.check import within
from fedveil.transport.duo.convert import Halves
from fedveil.transport.duo.dealer import Mends, ServerKeys
from fedveil.transport.duo.deliver import Switch, delivered
from fedveil.transport.duo.entropy import Computer, Controller
from fedveil.transport.duo.link import Link
from fedveil.transport.duo.material import Material, gram
from fedveil.transport.duo.party import Party
from fedveil.transport.duo.rules import RULES, Rows, Update
from fedveil.transport.duo.stream import Stream, Words
from fedveil.transport.duo.wide import Wide
from fedveil.transport.he.ring import Residues
from fedveil.transport.masks.crypto import KEY, seed
from fedveil.transport.masks.rejected import Malformed

Delivery = Literal["shares", "switch"]


@dataclass(frozen=True)
class Seen:
    """What S1 has learnt of a round: E, M, Q, A, ‖r‖ (SPEC 7.3), S; or S (None: hidden) and H, rounded."""

    n: int
    energy: float | None = None
    common: float | None = None
    quartic: float | None = None
    along: float | None = None
    reference: float | None = None
    spread: float | None = None
    entropy: float | None = None


class Server:
    """A server, over all rounds: its keys, its link to the other, and at S2 where the dealer's part comes from.

    ``own`` is a fresh secret of which all randomness is made that it draws for itself and would need again, if its
    program had to be repeated from what it received.
    """

    def __init__(self, keys: ServerKeys, link: Link, mends: Mends | None = None, own: bytes | None = None) -> None:
        self.keys, self.link, self.first, self.plan = keys, link, keys.first, keys.plan
        self._mends, self.halves = mends, Halves(keys.vectors, keys.first)
        self.own = own or seed()
        self.mask = None if keys.first else Stream(self.own, "mask")
        self.used: set[str] = set()

    def material(self, label: str) -> Material:
        """The randomness of one stage of a round, which is used once."""
        if label in self.used:
            raise Aborted(f"round {label} was begun before; its randomness is used up; repeat it as a new attempt")
        self.used.add(label)
        if self.first:
            return Material(self.keys.seed, label)
        assert self._mends is not None
        return Material(self.keys.seed, label, self._mends(label))

    def round(
        self,
        number: int,
        uploads: Sequence[tuple[int, Residues]] | None = None,
        *,
        attempt: int = 0,
        reference: Update | None = None,
    ) -> Round:
        """Begin a round: S2 gives ``uploads``, checked by :func:`~fedveil.transport.duo.client.unsealed`, by seat."""
        return Round(self, f"{number}/{attempt}", uploads, reference)


class Round:
    """One round; the constructor takes uploads to shares and decides in secret which of them are too long."""

    def __init__(
        self,
        server: Server,
        label: str,
        uploads: Sequence[tuple[int, Residues]] | None,
        reference: Update | None,
    ) -> None:
        self.server, self.plan, self.link, self.first = server, server.plan, server.link, server.first
        self._label = label
        self.seats = self._said_seats(uploads)
        self.n = len(self.seats)
        self._party = party = self.party("begin")
        ciphers = self.n if uploads is None else [parts for _, parts in uploads]
        shares = server.halves.to_shares(self.link, ciphers, self.plan.blocks, server.mask)[:, : self.plan.length]
        last = np.zeros(self.plan.length, np.uint64) if reference is None else reference.share
        self._scale = 1.0 if reference is None else reference.unit / self.plan.unit
        self._rows, products = _masked(party, np.concatenate([shares, last[None]]))
        diagonal = products.diagonal()[: self.n].copy()
        fits = within(party, self._rows.share()[: self.n], diagonal, self.plan.longest, self._combinations())
        self._fits = party.numbers(fits, self.n)
        self._products = self._filtered(products)

    def party(self, stage: str) -> Party:
        """The server, for a stage of the round."""
        return Party(self.first, self.link, self.server.material(f"{self._label}/{stage}"))

    def _said_seats(self, uploads: Sequence[tuple[int, Residues]] | None) -> list[int]:
        if uploads is not None:
            seats = [seat for seat, _ in uploads]
            self.link.send("tell:seats", msgpack.packb(seats))
            return seats
        found: Any = None
        with suppress(ValueError, msgpack.UnpackException):
            found = msgpack.unpackb(self.link.receive("tell:seats"))
        if not isinstance(found, list) or not all(type(seat) is int for seat in found) or len(set(found)) < len(found):
            raise Malformed("a list of clients that is none")
        if not 2 <= len(found) <= self.plan.clients:
            raise Aborted(f"{len(found)} uploads arrived, of 2 to {self.plan.clients} that a round may have")
        self.link.opened("seats", found)
        return found

    def _combinations(self) -> bytes:
        """The seed of the random combinations; drawn after the uploads, so that no client could fit its own to it."""
        if self.first:
            drawn = Stream(self.server.own, f"{self._label}/combinations").bytes(KEY).tobytes()
            self.link.send("tell:combinations", drawn)
            return drawn
        found = self.link.receive("tell:combinations")
        if len(found) != KEY:
            raise Malformed("a seed of combinations that is none")
        return found

    def _filtered(self, products: Words) -> Words:
        """Products with zeros in place of uploads that are too long; the previous update always fits."""
        party, n = self._party, self.n
        one = np.array([int(self.first)], np.uint64)
        bits = np.concatenate([self._fits, one])
        left, right = np.triu_indices(n + 1)
        met = party.product(bits[left], bits[right])
        flat = party.product(met, products[left, right])
        found = np.zeros_like(products)
        found[left, right] = found[right, left] = flat
        return found

    def sense(self) -> Seen | None:
        """Open E, M, Q, A, ‖r‖² to S1, for ``detector=calibrated``; None at S2."""
        party, n, unit = self.party("sums"), self.n, self.plan.unit
        all_of = party.lifted(self._products)
        energy, common = all_of.diagonal()[:n].sum(), all_of[:n, :n].sum()
        deviations = fixed.deviations(all_of[:n, :n])
        quartic = party.product(deviations, deviations).sum()
        sums = wide.wide([energy, common, quartic, all_of[n, :n].sum(), all_of[n, n]])
        names = ("energy", "common", "quartic", "along", "reference")
        found = [party.reveal(name, sums[i : i + 1]) for i, name in enumerate(names)]
        if not self.first:
            return None
        e, m, q, a, r = (value[0] for value in found if value is not None)
        scale = unit * self._scale
        seen = Seen(n, e * unit**2, m * unit**2, q * unit**4 / n**4, a * unit * scale, max(0, r) ** 0.5 * scale)
        for name in names:
            self.link.opened(name, getattr(seen, name))
        return seen

    def indicate(self, *, hide_s: bool = False) -> Seen | None:
        """Open S (unless ``hide_s``) and the rounded entropy H to S1, for ``detector=source``; None at S2."""
        party, n = self.party("entropy"), self.n
        deviations = fixed.deviations(party.lifted(self._products[:n, :n].copy()))
        spread: Wide = wide.wide([deviations.sum()])
        opened = None if hide_s else party.reveal("spread", spread)
        shares = fixed.shares_of_one(party, deviations, spread)
        own = Stream(self.server.own, f"{self._label}/entropy")
        side = Controller(self.server.keys, party) if self.first else Computer(self.server.keys, party, own)
        entropy = side.entropy(shares)
        if not self.first:
            return None
        seen = Seen(n, spread=None if opened is None else opened[0] * (self.plan.unit / n) ** 2, entropy=entropy)
        for name in ("spread", "entropy"):
            if getattr(seen, name) is not None:
                self.link.opened(name, getattr(seen, name))
        return seen

    def announce(self, name: str, value: str | None = None) -> str:
        """S1 says in the clear what S2 must know, such as the rule; both get it."""
        if self.first:
            assert value is not None
            self.link.send(f"tell:{name}", value.encode())
            return value
        found = self.link.receive(f"tell:{name}").decode("utf-8", "replace")
        self.link.opened(name, found)
        return found

    def aggregate(self, rule: str) -> Update:
        """A share of what a rule makes of the uploads."""
        if rule not in RULES:
            raise Malformed(f"a rule {rule!r} that servers do not have; give one of {', '.join(RULES)}")
        stage = rules.Stage(self.party(rule), self.plan, self._rows, self._products[: self.n, : self.n], self._fits)
        return RULES[rule](stage)

    def deliver(self, update: Update, how: Delivery = "shares", noise: Words | None = None) -> bytes | None:
        """What goes to the clients: a share from each server; or, from S1 alone, a ciphertext under their key.

        ``noise``: this server's own, in units, modulo 2^64; the update that the next round refers to stays without.
        """
        if noise is not None:
            update = Update(update.share + noise, update.unit)
        if how == "shares":
            return delivered(update)
        return Switch(self.server.keys).delivered(self.link, self.first, update)


def _masked(party: Party, rows: Words) -> tuple[Rows, Words]:
    """Rows behind a mask that is opened, and shares of all products of two rows."""
    mask, squares = party.material.take("mask", *rows.shape)
    opened = party.joined(rows - mask)
    crossed = gram(opened, mask)
    products = crossed + crossed.T + squares
    if party.first:
        products = products + gram(opened, opened)
    return Rows(party.first, opened, mask), products
