"""A client: seals its numbers under the public key, and puts results together (SPEC 7.2)."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from fedveil.core.errors import Refused
from fedveil.transport.duo.dealer import ClientKeys
from fedveil.transport.duo.lattice import Encryptor, ring
from fedveil.transport.duo.parameters import POINT, RESULTS, VECTORS, Plan
from fedveil.transport.duo.stream import Words
from fedveil.transport.he.ring import Floats, Residues
from fedveil.transport.masks.rejected import Malformed, Oversized

MAGIC = b"FVU1"
_RESULT = struct.Struct("<4s8sQd")
GUARD = 20
"""Bits below a result's that keep encryption's noise apart, where keys are switched."""


def upload_bytes(plan: Plan) -> int:
    """The length of every upload."""
    return len(MAGIC) + ring(VECTORS).size(2 * plan.blocks, VECTORS.levels)


class Sealer:
    """Encrypts uploads; it loads the public key once."""

    def __init__(self, plan: Plan, public: bytes) -> None:
        self.plan, self._ring = plan, ring(VECTORS)
        self._encrypt = Encryptor(self._ring, public)

    def __call__(self, values: Floats) -> bytes:
        """The ciphertexts of a float64 vector, its coordinates as coefficients."""
        plan, place = self.plan, self._ring
        if values.shape != (plan.length,):
            raise Refused(f"upload: {values.shape} numbers, and these keys are for {plan.length}; make new keys")
        reach = plan.bound * 2.0**16
        far = float(np.abs(values).max(initial=0.0))
        if not far <= reach:  # not a number is not within reach either
            raise Refused(f"upload: it holds {far:.4g}, far beyond the norm bound of {plan.bound:g}; clip it")
        whole = np.zeros(plan.blocks * place.degree, np.int64)
        whole[: plan.length] = np.rint(values * (2.0**POINT / plan.bound * place.primes[2]))
        moduli = place.moduli[: place.levels].view(np.int64)
        plain = place.forward((whole.reshape(plan.blocks, 1, place.degree) % moduli).view(np.uint64))
        return MAGIC + place.packed(self._encrypt(plain).reshape(2 * plan.blocks, place.levels, place.degree))


def seal(plan: Plan, public: bytes, values: Floats) -> bytes:
    """One upload; see :class:`Sealer`."""
    return Sealer(plan, public)(values)


def unsealed(plan: Plan, data: bytes) -> Residues:
    """An upload's polynomials ``(blocks, 2, primes, degree)``, or a :class:`Rejected` that says what is wrong."""
    if len(data) > upload_bytes(plan):
        raise Oversized(f"an upload of {len(data)} bytes; {upload_bytes(plan)} were expected")
    if len(data) < upload_bytes(plan) or data[: len(MAGIC)] != MAGIC:
        raise Malformed(f"an upload of {len(data)} bytes that is cut short, or not of this protocol")
    place = ring(VECTORS)
    found = place.unpacked(memoryview(data)[len(MAGIC) :], 2 * plan.blocks, VECTORS.levels)
    return found.reshape(plan.blocks, 2, VECTORS.levels, place.degree)


def result(how: str, unit: float, length: int, body: bytes) -> bytes:
    """A server's part of a result, for clients."""
    return _RESULT.pack(b"FVR1", how.encode(), length, unit) + body


def combine(one: bytes, two: bytes) -> Floats:
    """The result, from both servers' shares of it."""
    (unit, mine), (same, other) = _share(one), _share(two)
    if unit != same or mine.shape != other.shape:
        raise Malformed("two shares that do not belong together")
    found: Floats = (mine + other).view(np.int64).astype(np.float64) * np.float64(unit)
    return found


def _share(data: bytes) -> tuple[float, Words]:
    how, length, unit, body = _parsed(data)
    if how != b"share" or len(body) != 8 * length:
        raise Malformed("this is no share of a result")
    return unit, np.frombuffer(body, np.uint64)


def _parsed(data: bytes) -> tuple[bytes, int, float, bytes]:
    if len(data) < _RESULT.size or data[:4] != b"FVR1":
        raise Malformed("this is no part of a result")
    _, how, length, unit = _RESULT.unpack_from(data)
    return how.rstrip(b"\0"), length, unit, data[_RESULT.size :]


def decrypt(keys: ClientKeys, data: bytes) -> Floats:
    """The result, from a ciphertext that both servers switched to the clients' key."""
    how, length, unit, body = _parsed(data)
    place = ring(RESULTS)
    blocks = -(-length // place.degree)
    if how != b"switch" or length != keys.plan.length:
        raise Malformed("this is no result under the clients' key")
    parts = place.unpacked(body, 2 * blocks, RESULTS.levels).reshape(blocks, 2, RESULTS.levels, place.degree)
    decryptor = place.seal.Decryptor(place.context, place.load("SecretKey", keys.results))
    plain = np.stack([_opened(place, decryptor, both) for both in parts])
    low, high = place.backward(plain).transpose(1, 0, 2).reshape(2, -1)
    q, p = place.primes[:2]
    whole = low.astype(object) + q * ((high.astype(object) - low.astype(object)) * pow(q, -1, p) % p)
    rounded = ((whole + (1 << (GUARD - 1))) % (q * p)) >> GUARD
    kept = np.array([v % (1 << 64) for v in rounded[:length].tolist()], np.uint64)
    found: Floats = kept.view(np.int64).astype(np.float64) * np.float64(unit)
    return found


def _opened(place: Any, decryptor: Any, parts: Residues) -> Residues:
    out = place.seal.Plaintext()
    decryptor.decrypt(place.ciphertext(parts), out)
    found: Residues = place.residues(out, parts.shape[1:])
    return found
