"""Numbers with a point, on shares modulo 2^192: roots, shares of a whole, weights (SPEC 7.2, 7.4).

Only a few numbers of a round need this, so that precision is free: 48 bits after the point, cut off by each server on
its own share.
"""

from __future__ import annotations

import numpy as np

from fedveil.transport.duo import wide
from fedveil.transport.duo.bits import between, negative, ranks
from fedveil.transport.duo.party import Party
from fedveil.transport.duo.stream import Words
from fedveil.transport.duo.wide import RING, Wide

POINT = 48
"""Bits after the point while a root is sought."""
SIZES = 38
"""Squares are below 4^SIZES."""
ROOT = POINT + SIZES
"""Bits after the point of 1/√x."""
SHARE = 30
"""Bits after the point of a share of the whole."""
STEPS = 5
"""Newton's steps: errors of 0.1, 0.02, 3e-4, 2e-7, 5e-14."""


def deviations(products: Wide) -> Wide:
    """n²·‖x_i − x̄‖², from the products of all rows: n² G_ii − 2n Σ_j G_ij + Σ G."""
    n = len(products)
    found: Wide = (n * n * products.diagonal() - 2 * n * products.sum(axis=1) + products.sum()) % RING
    return found


def inverse_roots(party: Party, x: Wide) -> Wide:
    """1/√x with ROOT bits after the point, of integers 0 ≤ x < 4^SIZES; for x = 0 nothing is promised but 0.

    x is at least 4^t for t < s, of which shares of bits tell s: x = z·4^s with 1/4 ≤ z < 1. Newton's iteration from a
    line finds 1/√z.
    """
    above = _powers(party, x)
    steps = [above[t] - above[t + 1] for t in range(SIZES)]
    small = sum(step * (1 << 2 * (SIZES - 1 - t)) for t, step in enumerate(steps))
    shrink = sum(step * (1 << (SIZES - 1 - t)) for t, step in enumerate(steps))
    z = party.shifted(party.product(x, small % RING), 2 * SIZES - POINT)
    y = _line(party, z)
    for _ in range(STEPS):
        square = party.shifted(party.product(y, y), POINT)
        rest = _plus(party, -party.shifted(party.product(square, z), POINT), 3 << POINT)
        y = party.shifted(party.product(y, rest), POINT + 1)
    return party.product(y, shrink % RING)


def _line(party: Party, z: Wide) -> Wide:
    """2.2 − 1.25 z."""
    return _plus(party, -5 * party.shifted(z, 2), int(2.2 * (1 << POINT)))


def _plus(party: Party, x: Wide, constant: int) -> Wide:
    found: Wide = (x + (constant if party.first else 0)) % RING
    return found


def _powers(party: Party, x: Wide) -> list[Wide]:
    """Shares of whether x ≥ 4^t, for t from 0 to SIZES."""
    n = len(x)
    moved = np.concatenate([_plus(party, x, -(1 << 2 * t)) for t in range(SIZES)])
    below = party.numbers(negative(party, wide.octets(moved), 2 * SIZES + 2), len(moved), wide.SIZE)
    above = _plus(party, -below, 1).reshape(SIZES, n)
    return [*above, wide.wide([0] * n)]


def shares_of_one(party: Party, x: Wide, total: Wide) -> Wide:
    """x_i/Σx with SHARE bits after the point: Σx is inverted on shares, and need not be opened."""
    n = len(x)
    inverse = inverse_roots(party, total)
    both = wide.wide([inverse[0]] * n)
    once = party.shifted(party.product(x, both), ROOT - POINT)
    return party.shifted(party.product(once, both), POINT + ROOT - SHARE)


def weights(party: Party, squares: Wide) -> Wide:
    """min(1, τ/√x_i) with SHARE bits after the point, τ the median of the √x_i; 0 for x_i = 0 beyond the median."""
    n = len(squares)
    roots = inverse_roots(party, squares)
    lengths = party.shifted(party.product(squares, roots), ROOT - SHARE)
    places = ranks(party, squares[:, None], 2 * SIZES + 2)
    low, high, far = (_picked(party, places, a, b) for a, b in (((n - 1) // 2,) * 2, (n // 2,) * 2, (n // 2, n)))
    radius = (party.product(low + high, lengths)).sum() % RING
    cut = party.shifted(party.product(far, roots), ROOT - SHARE - POINT)
    ratio = party.shifted(party.product(wide.wide([radius] * n), cut), POINT + SHARE + 1)
    found: Wide = (_plus(party, -far * (1 << SHARE), 1 << SHARE) + ratio) % RING
    return found


def _picked(party: Party, places: Words, low: int, high: int) -> Wide:
    """Shares of whether a place is from ``low`` to ``high``."""
    bits = between(party, places.T.copy(), low, max(high, low + 1))
    found: Wide = party.numbers(bits[0], len(places), wide.SIZE)
    return found
