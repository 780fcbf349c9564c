"""Real numbers as whole numbers modulo 2^bits, and those as bytes (SPEC 6.1)."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedveil.transport.masks.crypto import Words
from fedveil.transport.masks.rejected import Malformed

Integers = np.ndarray[Any, np.dtype[np.int64]]
Reals = np.ndarray[Any, np.dtype[np.float64]]


def word(bits: int) -> np.dtype[np.unsignedinteger[Any]]:
    """The smallest unsigned word of at least this many bits."""
    return np.dtype(next(kind for size, kind in ((8, "u1"), (16, "<u2"), (32, "<u4"), (64, "<u8")) if bits <= size))


def centred(total: Words, bits: int) -> Integers:
    """Residues modulo 2^bits as numbers from −2^(bits−1) to 2^(bits−1) − 1.

    >>> centred(np.array([1, 15, 23], np.uint8), 4).tolist()
    [1, -1, 7]
    """
    high = np.uint64(64 - bits)
    out: Integers = (total.astype(np.uint64) << high).view(np.int64) >> np.int64(64 - bits)
    return out


def packed_size(count: int, bits: int) -> int:
    """Bytes of that many values: whole words as they are, others in groups of eight."""
    itemsize = word(bits).itemsize
    return count * itemsize if bits == 8 * itemsize else -(-count // 8) * bits


def pack(values: Words, bits: int) -> bytes:
    """Values below 2^bits, with no space between them.

    >>> pack(np.arange(8, dtype=np.uint8), 3).hex()
    '88c6fa'
    """
    if bits == 8 * values.itemsize:
        return values.tobytes()
    groups = np.zeros((-(-len(values) // 8), 8), values.dtype)
    groups.reshape(-1)[: len(values)] = values
    out = np.zeros((len(groups), bits), np.uint8)
    for column, place, shift in _pieces(bits):
        part = groups[:, column] >> -shift if shift < 0 else groups[:, column] << shift
        out[:, place] |= part.astype(np.uint8)
    return out.tobytes()


def unpack(data: bytes, count: int, bits: int) -> Words:
    """The inverse of :func:`pack`."""
    if len(data) != packed_size(count, bits):
        raise Malformed(f"an upload of {len(data)} bytes, not {packed_size(count, bits)}")
    kind = word(bits)
    if bits == 8 * kind.itemsize:
        return np.frombuffer(data, kind)
    raw = np.frombuffer(data, np.uint8).reshape(-1, bits).astype(kind)
    out = np.zeros((len(raw), 8), kind)
    for column, place, shift in _pieces(bits):
        out[:, column] |= raw[:, place] << -shift if shift < 0 else raw[:, place] >> shift
    values: Words = out.reshape(-1)[:count] & kind.type(2**bits - 1)
    return values


def _pieces(bits: int) -> list[tuple[int, int, int]]:
    """Which value of a group has a part in which byte, and how far to the left it lies there."""
    return [
        (value, byte, value * bits - 8 * byte)
        for value in range(8)
        for byte in range(value * bits // 8, -(-(value + 1) * bits // 8))
    ]
