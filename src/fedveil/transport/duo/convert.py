"""From ciphertexts to shares: a decryption by two, under a mask that only one of them knows (SPEC 7.2, 7.6).

S2 adds to a ciphertext's first part its half of the decryption and a mask r of 117 bits; S1 adds its own half and
reads m + r, which is within 2^−70 of telling nothing about m. Divided by the third prime (2^20, room for the
encryption's noise), S1 has the share m' + r', and S2 has −r', both modulo 2^64. The mask floods the error that an
opening would give away (Li and Micciancio).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedveil.transport.duo.lattice import Ring, product, ring
from fedveil.transport.duo.link import Link
from fedveil.transport.duo.parameters import MASK, VECTORS
from fedveil.transport.duo.stream import Stream, Words
from fedveil.transport.he.ring import Residues


class Halves:
    """One server's half of the decryption of uploads."""

    def __init__(self, share: bytes, first: bool) -> None:
        self.first, self._ring = first, ring(VECTORS)
        self._share = self._ring.unpacked(share, 1, VECTORS.levels)

    def to_shares(
        self, link: Link, uploads: Sequence[Residues] | int, blocks: int, mask: Stream | None = None
    ) -> Words:
        """Shares ``(uploads, blocks·degree)``; ``uploads`` are S2's ciphertexts, at S1 their number."""
        if isinstance(uploads, int):
            return np.stack([self._completed(link.receive("cipher"), blocks) for _ in range(uploads)])
        assert mask is not None
        return np.stack([self._begun(link, parts, mask) for parts in uploads])

    def _begun(self, link: Link, parts: Residues, mask: Stream) -> Words:
        place, (blocks, _, levels, degree) = self._ring, parts.shape
        low, more, rest = mask.words((3, blocks, degree))
        high: Words = more >> np.uint64(128 - MASK)
        rest = _modulo(more & np.uint64((1 << (128 - MASK)) - 1), rest, place.primes[2])
        residues = np.empty((blocks, levels, degree), np.uint64)
        for i, q in enumerate(place.primes[: levels - 1]):
            top = product(high, np.uint64((1 << 64) % q) + np.zeros_like(high), q) + low % np.uint64(q)
            residues[:, i] = product(top % np.uint64(q), np.full_like(top, place.primes[2]), q) + rest
            residues[:, i] %= np.uint64(q)
        residues[:, -1] = rest
        half = place.plus(place.plus(parts[:, 0], place.times(parts[:, 1], self._share)), place.forward(residues))
        link.send("cipher", place.packed(np.stack([half, parts[:, 1]])))
        share: Words = np.uint64(0) - low.reshape(-1)
        return share

    def _completed(self, data: bytes, blocks: int) -> Words:
        place = self._ring
        half, rest = place.unpacked(data, 2 * blocks, VECTORS.levels).reshape(2, blocks, VECTORS.levels, place.degree)
        return _divided(place, place.backward(place.plus(half, place.times(rest, self._share))))


def _modulo(high: Words, low: Words, prime: int) -> Words:
    """high·2^64 + low modulo a small prime: of 95 uniform bits, within 2^−75 of uniform."""
    p = np.uint64(prime)
    found: Words = (high % p * np.uint64((1 << 64) % prime) + low % p) % p
    return found


def _divided(place: Ring, residues: Residues) -> Words:
    """The integers with these residues, from 0 to the product of all primes, over the third prime; modulo 2^64."""
    q, p, last = place.primes[:3]
    cut = residues[:, 2]
    parts = [
        product((residues[:, i] + np.uint64(m) - cut) % np.uint64(m), np.full_like(cut, pow(last, -1, m)), m)
        for i, m in enumerate((q, p))
    ]
    more = product((parts[1] + np.uint64(p) - parts[0]) % np.uint64(p), np.full_like(cut, pow(q, -1, p)), p)
    found: Words = parts[0] + more * np.uint64(q)
    return found.reshape(-1)
