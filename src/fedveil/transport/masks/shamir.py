"""Shamir's secret sharing of 32-byte secrets, many at once (SPEC 6.1).

Over the prime field of p = 2^31 − 1, in sixteen limbs of 16 bits: products of two elements fit into 64 bits, so that
plain integer arithmetic is exact. Fewer than ``threshold`` shares are uniformly distributed whatever the secret is.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

PRIME = 2**31 - 1
LIMBS = 16
SHARE = 4 * LIMBS
"""Bytes of one share."""

Elements = np.ndarray[Any, np.dtype[np.uint64]]
_P = np.uint64(PRIME)


def split(secrets: list[bytes], threshold: int, places: Elements) -> Elements:
    """Shares ``(places, secrets, limbs)`` of which any ``threshold`` give the secrets back.

    Places are the non-zero points at which the polynomials are read, all different, below 2^31 − 1.
    """
    limbs = np.stack([np.frombuffer(s, "<u2") for s in secrets]).astype(np.uint64)
    x = places.astype(np.uint64)[:, None, None]
    shares = np.zeros((len(places), *limbs.shape), np.uint64)
    for coefficient in _uniform((threshold - 1, *limbs.shape)):
        shares += coefficient
        shares *= x
        shares %= _P
    return (shares + limbs) % _P


def join(places: Elements, shares: Elements) -> list[bytes | None]:
    """The secrets of m polynomials, from ``places (m, t)`` and ``shares (m, t, limbs)``.

    None stands where shares do not fit.
    """
    weights = _at_zero(places.astype(np.uint64))
    limbs = np.zeros((len(places), LIMBS), np.uint64)
    for i in range(places.shape[1]):
        limbs += weights[:, i, None] * shares[:, i] % _P
    limbs %= _P
    fits = np.all(limbs < 2**16, axis=1).tolist()
    return [row.astype("<u2").tobytes() if ok else None for row, ok in zip(limbs, fits, strict=True)]


def to_bytes(share: Elements) -> bytes:
    """A share on the wire."""
    return share.astype("<u4").tobytes()


def from_bytes(data: bytes) -> Elements:
    """A share from the wire; what is no element of the field is taken modulo p, and then fits no secret."""
    return np.frombuffer(data, "<u4").astype(np.uint64) % _P


def _uniform(shape: tuple[int, ...]) -> Elements:
    """Uniform field elements from the operating system, by rejection."""
    count = int(np.prod(shape))
    out = np.frombuffer(os.urandom(4 * count), "<u4") >> np.uint32(1)
    while (bad := np.flatnonzero(out == PRIME)).size:
        out[bad] = np.frombuffer(os.urandom(4 * bad.size), "<u4") >> np.uint32(1)
    return out.reshape(shape).astype(np.uint64)


def _at_zero(x: Elements) -> Elements:
    """Lagrange's weights Π_{j≠i} x_j / (x_j − x_i) modulo p, row by row."""
    above, below = np.ones_like(x), np.ones_like(x)
    for j in range(x.shape[1]):
        other = x[:, j : j + 1]
        here = np.arange(x.shape[1]) == j
        above = above * np.where(here, np.uint64(1), other) % _P
        below = below * np.where(here, np.uint64(1), other + _P - x) % _P
    return above * _power(below % _P, PRIME - 2) % _P


def _power(base: Elements, exponent: int) -> Elements:
    """``base`` to the ``exponent`` modulo p: Fermat's inverse for p − 2."""
    out = np.ones_like(base)
    for bit in bin(exponent)[2:]:
        out = out * out % _P
        if bit == "1":
            out = out * base % _P
    return out
