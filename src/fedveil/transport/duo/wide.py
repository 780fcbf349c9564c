"""Integers modulo 2^192, for the few numbers of a round that need room: products of squares, fixed point, masks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from fedveil.transport.duo.stream import Bytes

BITS = 192
SIZE = BITS // 8
RING = 1 << BITS

Wide = np.ndarray[Any, np.dtype[np.object_]]
"""Python's integers in an array, from 0 to 2^192 − 1."""


def wide(values: Iterable[int]) -> Wide:
    """An array of these integers, reduced."""
    listed = [int(v) % RING for v in values]
    out = np.empty(len(listed), object)
    out[:] = listed
    return out


def dump(values: Wide) -> bytes:
    """24 bytes each."""
    return b"".join(int(v).to_bytes(SIZE, "little") for v in values.reshape(-1))


def load(data: bytes | memoryview) -> Wide:
    """The inverse of :func:`dump`, flat."""
    view = bytes(data)
    return wide(int.from_bytes(view[i : i + SIZE], "little") for i in range(0, len(view), SIZE))


def octets(values: Wide) -> Bytes:
    """The bytes ``(len, 24)``, the lowest first."""
    return np.frombuffer(dump(values), np.uint8).reshape(-1, SIZE)


def signed(values: Wide) -> list[int]:
    """Each as the integer nearest to zero."""
    return [int(v) - RING if v >= RING // 2 else int(v) for v in values]
