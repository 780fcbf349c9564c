"""Rules on shares: mean, trimmed mean, Krum, centered clipping (SPEC 7.4). Nobody sees an upload, a distance or a rank.

Mean, Krum and centered clipping are mixtures Σ c_i x_i with shared factors; trimmed mean compares all pairs of values
of each coordinate.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedveil.core.errors import Aborted
from fedveil.transport.duo import fixed, wide
from fedveil.transport.duo.bits import between, negative, ranks
from fedveil.transport.duo.parameters import POINT, Plan
from fedveil.transport.duo.party import Party
from fedveil.transport.duo.stream import Bytes, Words
from fedveil.transport.duo.wide import RING, Wide

Rule = Literal["mean", "trimmed_mean", "krum", "centered_clipping"]
CHUNK = 1 << 13
"""Coordinates that are compared at a time: their planes stay in the cache."""
FACTOR = 22
"""Bits after the point of n²·c_i in centered clipping."""
LONGEST = 30
"""Bits of the length of a result in units: beside uploads, its products stay below 2^62."""
FAR = 1 << 61
"""Above all sums of distances: fewer than MOST, each of 2^54 at most."""


@dataclass(frozen=True)
class Rows:
    """All rows behind a mask: what both servers know, and the share of the mask."""

    first: bool
    opened: Words
    mask: Words

    def share(self) -> Words:
        """Shares of the rows."""
        return self.mask + self.opened if self.first else self.mask


@dataclass(frozen=True)
class Update:
    """A share of a result: its integers times ``unit`` are the numbers. Its length is below 2^LONGEST units."""

    share: Words
    unit: float


@dataclass(frozen=True)
class Stage:
    """What a rule works on: rows, products with zeros for uploads that are too long, and the bits of who fits."""

    party: Party
    plan: Plan
    rows: Rows
    products: Words
    fits: Words

    @property
    def n(self) -> int:
        """Uploads."""
        return len(self.fits)

    def enough(self, least: int) -> None:
        """Refuse fewer uploads than a rule needs."""
        if self.n < least:
            raise Aborted(
                f"declared_f: {self.n} uploads arrived, and this rule needs {least} against {self.plan.byzantine} "
                "attackers; lower declared_f, or let more clients take part"
            )

    def mixed(self, factors: Words) -> Words:
        """Shares of Σ c_i x_i."""
        party, rows, n = self.party, self.rows, self.n
        opened, mask = rows.opened[:n], rows.mask[:n]
        hidden, sums = party.material.take("mix", n, self.plan.length)
        known: Words = party.joined(factors - hidden)
        found: Words = np.einsum("i,ij->j", known, mask) + np.einsum("i,ij->j", hidden, opened) + sums
        if party.first:
            found += np.einsum("i,ij->j", known, opened)
        return found

    def filtered(self) -> Words:
        """Shares of the uploads, zeros in place of those that are too long."""
        party, rows, n = self.party, self.rows, self.n
        opened, mask = rows.opened[:n], rows.mask[:n]
        hidden, scaled = party.material.take("scale", n, self.plan.length)
        known: Words = party.joined(self.fits - hidden)
        found: Words = np.einsum("i,ij->ij", known, mask) + np.einsum("i,ij->ij", hidden, opened) + scaled
        if party.first:
            found += np.einsum("i,ij->ij", known, opened)
        return found


def _update(party: Party, share: Words, unit: float, times: float) -> Update:
    """An update ``times`` as long as the norm bound at most, with as many bits after the point as it may have."""
    bits = max(0, math.ceil(math.log2(1.001 * times)) + POINT - LONGEST)
    return Update(party.halved(share, bits) if bits else share, unit * 2.0**bits)


def mean(stage: Stage) -> Update:
    """Σ b_i x_i over n: an upload that is too long adds nothing, and n stays."""
    return _update(stage.party, stage.mixed(stage.fits), stage.plan.unit / stage.n, stage.n)


def trimmed_mean(stage: Stage) -> Update:
    """In every coordinate the mean without the f smallest and the f largest values."""
    f, n, length = stage.plan.byzantine, stage.n, stage.plan.length
    stage.enough(2 * f + 1)
    if f == 0:
        return mean(stage)
    rows = stage.filtered()
    parts = [_kept(stage.party, rows[:, at : at + CHUNK], f) for at in range(0, length, CHUNK)]
    return _update(stage.party, np.concatenate(parts), stage.plan.unit / (n - 2 * f), n)


def _kept(party: Party, rows: Words, f: int) -> Words:
    """The sum of what is left of each column; differences have POINT + 2 bits and a sign."""
    n, columns = rows.shape
    narrow = rows.astype(np.uint32)
    kept = between(party, ranks(party, narrow, POINT + 3), f, n - f)
    padded = np.pad(rows, ((0, 0), (0, 8 * kept.shape[1] - columns)))
    total: Words = _selected(party, kept, padded)[:, :columns].sum(axis=0, dtype=np.uint64)
    return total


def _selected(party: Party, bits: Bytes, rows: Words) -> Words:
    """Shares of bit·number, from packed shares of bits."""
    hidden, mask, number, masked = party.material.take("select", rows.size)
    turned = np.unpackbits(party.toggled(bits.reshape(-1) ^ hidden), bitorder="little").astype(np.uint64)
    flat = rows.reshape(-1)
    opened = party.joined(flat - mask)
    found: Words = turned * flat + (np.uint64(1) - turned - turned) * (number * opened + masked)
    return found.reshape(rows.shape)


def krum(stage: Stage) -> Update:
    """The upload with the least sum of squared distances to its n − f − 2 nearest others; ties as in the clear."""
    f, party, n = stage.plan.byzantine, stage.party, stage.n
    stage.enough(2 * f + 3)
    norms = stage.products.diagonal()
    distances = norms[:, None] + norms[None, :] - np.uint64(2) * stage.products
    others = distances[~np.eye(n, dtype=bool)].reshape(n, n - 1).T.copy()
    near = between(party, ranks(party, others, 2 * POINT + 6), 0, n - f - 2)
    width = near.shape[1] * 8
    picked = _selected(party, near, np.pad(others, ((0, 0), (0, width - n))))[:, :n]
    scores = party.lifted(picked.sum(axis=0, dtype=np.uint64))
    sums = party.lifted(distances.sum(axis=1, dtype=np.uint64))
    least = _least(party, scores, 64)
    best = party.product(scores, least).sum() % RING
    apart = (scores - party.shifted(wide.wide([best]), 20)[0] - best - int(party.first)) % RING
    tied = party.numbers(negative(party, wide.octets(apart), 66), n, wide.SIZE)
    rest = (sums + (FAR if party.first else 0) - tied * FAR) % RING
    chosen = _least(party, rest, 64)
    factors = np.array([int(v) % (1 << 64) for v in chosen], np.uint64)
    return _update(party, stage.mixed(party.product(factors, stage.fits)), stage.plan.unit, 1.0)


def _least(party: Party, values: Wide, bits: int) -> Wide:
    """Shares of 1 at the least value, the first of equal ones, and 0 elsewhere."""
    places = ranks(party, values[:, None], bits)
    return party.numbers(between(party, places.T.copy(), 0, 1)[0], len(values), wide.SIZE)


def centered_clipping(stage: Stage) -> Update:
    """One step from the mean: x̄ + mean_i w_i·(x_i − x̄), w_i = min(1, τ/‖x_i − x̄‖), τ the median of the norms.

    That is Σ c_i x_i with n²·c_i = n − Σ w_j + n·w_i.
    """
    party, n = stage.party, stage.n
    found = fixed.weights(party, fixed.deviations(party.lifted(stage.products)))
    whole = (n * found - found.sum() + ((n << fixed.SHARE) if party.first else 0)) % RING
    factors = party.shifted(whole, fixed.SHARE - FACTOR)
    kept = party.product(np.array([int(v) % (1 << 64) for v in factors], np.uint64), stage.fits)
    return _update(party, stage.mixed(kept), stage.plan.unit / n**2 / 2**FACTOR, n**2 * 2.0**FACTOR)


RULES: dict[str, Callable[[Stage], Update]] = {
    "mean": mean,
    "trimmed_mean": trimmed_mean,
    "krum": krum,
    "centered_clipping": centered_clipping,
}
