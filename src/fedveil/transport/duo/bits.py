"""Comparisons of shared numbers, on planes of bits: eight numbers to a byte, one gate for all numbers at once.

x ≥ 0 is a bit of the sum of two numbers, each known to one server; the carry c' = ((a ⊕ c) & (b ⊕ c)) ⊕ c costs one
gate a bit. Numbers are compared in few bits where they are known to be small.
"""

from __future__ import annotations

import numpy as np

from fedveil.transport.duo.material import Array, less
from fedveil.transport.duo.party import Party
from fedveil.transport.duo.stream import Bytes, Words
from fedveil.transport.duo.wide import octets


def planes(values: Array, bits: int) -> Bytes:
    """The lowest bits of each number, ``(bits, numbers/8)``; ``values`` is unsigned, or bytes ``(numbers, size)``."""
    octets = values if values.ndim == 2 else np.ascontiguousarray(values).view(np.uint8).reshape(len(values), -1)
    out = np.empty((bits, -(-len(octets) // 8)), np.uint8)
    for byte in range(-(-bits // 8)):
        column = np.ascontiguousarray(octets[:, byte])
        for bit in range(min(8, bits - 8 * byte)):
            out[8 * byte + bit] = np.packbits(column & np.uint8(1 << bit), bitorder="little")
    return out


def negative(party: Party, share: Array, bits: int) -> Bytes:
    """⊕-shares of whether numbers between −2^(bits−1) and 2^(bits−1) are below zero."""
    mine = planes(share, bits)
    carry = party.crossed(mine[0])
    width = mine.shape[1]
    a, b, c = (m.reshape(-1, width) for m in party.material.take("and", (bits - 2) * width))
    for bit in range(1, bits - 1):
        x, y = (mine[bit] ^ carry, carry) if party.first else (carry, mine[bit] ^ carry)
        carry = carry ^ _gate(party, x, y, (a[bit - 1], b[bit - 1], c[bit - 1]))
    found: Bytes = mine[-1] ^ carry
    return found


def digits(party: Party, share: Array, bits: int) -> Bytes:
    """⊕-shares of the lowest bits of numbers, the lowest first."""
    mine = planes(share, bits)
    carry = party.crossed(mine[0])
    out = [mine[0]]
    for bit in range(1, bits):
        out.append(mine[bit] ^ carry)
        x, y = (mine[bit] ^ carry, carry) if party.first else (carry, mine[bit] ^ carry)
        if bit + 1 < bits:
            carry = carry ^ party.both(x, y)
    return np.stack(out)


def _gate(party: Party, x: Bytes, y: Bytes, triple: tuple[Bytes, Bytes, Bytes]) -> Bytes:
    a, b, c = triple
    masked = np.empty((2, x.size), np.uint8)
    np.bitwise_xor(x, a, out=masked[0])
    np.bitwise_xor(y, b, out=masked[1])
    d, e = party.toggled(masked)
    found: Bytes = d & b
    found ^= e & a
    found ^= c
    if party.first:
        found ^= d & e
    return found


def inside(party: Party, share: Words, top: int) -> Bytes:
    """⊕-shares of whether 0 ≤ x ≤ ``top`` < 2^63, for any x modulo 2^64: its sign, and that of x − top − 1."""
    above = share - np.uint64(top + 1) * np.uint64(party.first)
    width = -(-share.size // 8)
    pad = 8 * width - share.size
    joined = np.concatenate([np.pad(share, (0, pad)), np.pad(above, (0, pad))])
    below, short = np.split(negative(party, joined, 64), 2)
    return party.both(~below if party.first else below, short)


def every(party: Party, bits: Bytes) -> Bytes:
    """⊕-shares of the & of all rows."""
    while len(bits) > 1:
        half = len(bits) // 2
        met = party.both(bits[:half].copy(), bits[half : 2 * half].copy())
        bits = np.concatenate([met, bits[2 * half :]])
    last: Bytes = bits[0]
    return last


def ranks(party: Party, rows: Array, bits: int) -> Words:
    """Shares modulo 2^8 of each number's place among its column's, from 0; of equal ones the upper row comes first.

    ``rows``: shares ``(rows, columns)`` of numbers that differ by less than 2^(bits−1), of any ring.
    """
    n, columns = rows.shape[:2]
    i, j = np.triu_indices(n, 1)
    width = -(-columns // 8)
    gap = np.zeros((len(i), 8 * width), rows.dtype)
    gap[:, :columns] = less(rows[j], rows[i])
    flat = octets(gap) if rows.dtype == object else gap.reshape(-1)
    later = party.numbers(negative(party, flat, bits), gap.size, 1).reshape(len(i), -1)[:, :columns]
    found = np.zeros((n, columns), np.uint8)
    for pair, (a, b) in enumerate(zip(i, j, strict=True)):  # later: row b < row a, so that a stands behind b
        found[a] += later[pair]
        found[b] -= later[pair]
        if party.first:
            found[b] += np.uint8(1)
    return found


def between(party: Party, places: Words, low: int, high: int) -> Bytes:
    """⊕-shares of whether low ≤ place < high, for places below 2^7; rows start on whole bytes."""
    rows, columns = places.shape
    width = -(-columns // 8)
    padded = np.pad(places, ((0, 0), (0, 8 * width - columns)))
    limits = (low, high) if low > 0 else (high,)
    moved = np.stack([padded - np.uint8(limit) * np.uint8(party.first) for limit in limits])
    found = negative(party, moved.reshape(-1), 8).reshape(len(limits), rows, width)
    kept: Bytes = found[0] ^ found[1] if low > 0 else found[0]
    return kept
