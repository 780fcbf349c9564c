"""Whether an upload is within the norm bound, decided on shares and never opened (SPEC 7.4).

‖x‖² on shares is known modulo 2^64 only, so that an upload of huge numbers could pass for a short one. First comes a
test of ROWS random combinations p = Σ r_j x_j, with r_j = −1, 0, 1 at 1/4, 1/2, 1/4, drawn after the uploads:
|p| ≤ 6.75·L for each, L the bound. A coordinate with |x_j| > 13.5·L passes a row with probability 1/2 at most, since
of p, p + x_j and p − x_j (modulo 2^64) all that fit into a window of 13.5·L weigh 1/2. Without such a coordinate p does
not wrap around, and E p² = ‖x‖²/2, E p⁴ ≤ 3 (E p²)², so that by Paley and Zygmund p² exceeds a tenth of its mean with
probability 0.27 or more: an x longer than 30.2·L passes all rows with probability 0.73^ROWS < 2^−43 at most. What is
left has ‖x‖² < 2^62, and is compared exactly. An upload within the bound fails with probability 192·exp(−45) < 2^−57.
"""

from __future__ import annotations

import math

import numpy as np

from fedveil.transport.duo.bits import every, inside
from fedveil.transport.duo.party import Party
from fedveil.transport.duo.stream import Bytes, Stream, Words

ROWS = 96
WINDOW = 6.75
_COLUMNS = 1 << 14
_LIMBS = (22, 21, 21)


def within(party: Party, rows: Words, squares: Words, longest: int, seed: bytes) -> Bytes:
    """⊕-shares, packed, of whether rows have norms of at most ``longest``; ``squares``: shares of their squares."""
    width = 8 * -(-len(rows) // 8)
    pad = width - len(rows)
    reach = math.ceil(WINDOW * longest)
    moved = np.pad(combined(rows, seed), ((0, 0), (0, pad))) + np.uint64(reach) * np.uint64(party.first)
    small = every(party, inside(party, moved.reshape(-1), 2 * reach).reshape(ROWS, -1))
    return party.both(small, inside(party, np.pad(squares, (0, pad)), longest**2))


def combined(rows: Words, seed: bytes) -> Words:
    """The random combinations ``(ROWS, rows)`` modulo 2^64; parts of numbers are multiplied exactly in float64."""
    stream, total = Stream(seed, "combinations"), np.zeros((ROWS, len(rows)), np.uint64)
    for start in range(0, rows.shape[1], _COLUMNS):
        part = rows[:, start : start + _COLUMNS]
        bits = np.unpackbits(stream.bytes(2 * ROWS * _COLUMNS // 8).reshape(2, ROWS, -1), axis=2)
        factors = (bits[0].view(np.int8) - bits[1].view(np.int8))[:, : part.shape[1]].astype(np.float64)
        low = 0
        for size in _LIMBS:
            limb = ((part >> np.uint64(low)) & np.uint64((1 << size) - 1)).astype(np.float64)
            total += (factors @ limb.T).astype(np.int64).view(np.uint64) << np.uint64(low)
            low += size
    return total
