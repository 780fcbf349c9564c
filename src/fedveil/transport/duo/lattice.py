"""SEAL's polynomials as arrays of residues, many at a time.

Transforms, encryptions and products of ciphertexts are SEAL's; sums and products of residues are numpy's. Objects go
in and out by SEAL's own format, in memory. Arrays are ``(polynomials, primes, degree)``.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Any

import numpy as np

from fedveil.core.errors import Refused
from fedveil.transport.duo.parameters import Lattice
from fedveil.transport.duo.stream import Bytes
from fedveil.transport.he.ring import HEADER, MAGIC, Residues, dumped, scratch, seal
from fedveil.transport.masks.rejected import Malformed

BATCH = 8
"""Polynomials that SEAL transforms at a time."""
FAST = 2**50
"""Below this, products of residues are exact in one step."""


@lru_cache(maxsize=8)
def ring(lattice: Lattice) -> Ring:
    """The ring of these parameters; building one takes some milliseconds."""
    return Ring(lattice)


class Ring:
    """Polynomials of one degree modulo several primes, as SEAL has them."""

    def __init__(self, lattice: Lattice) -> None:
        s = self.seal = seal()
        try:
            import zstandard
        except ImportError:
            raise Refused(
                "transport: duo needs zstandard; install the extra with `pip install 'fedveil[he]'`"
            ) from None
        self._zstandard = zstandard
        self.lattice, self.degree, self.levels = lattice, lattice.degree, lattice.levels
        chosen = s.EncryptionParameters(s.SCHEME_TYPE.CKKS)
        chosen.set_poly_modulus_degree(self.degree)
        chosen.set_coeff_modulus(s.CoeffModulus.Create(self.degree, list(lattice.primes)))
        self.context = s.SEALContext(chosen, True, s.SEC_LEVEL_TYPE.TC128)
        if not self.context.parameters_set():
            raise Refused(f"primes: {self.context.parameters_error_message()}; deal new keys")
        self.primes = [int(m.value()) for m in chosen.coeff_modulus()]
        self.moduli = np.array(self.primes, np.uint64)[:, None]
        self.identity: dict[int, list[int]] = {}
        level = self.context.first_context_data()
        while level is not None:
            self.identity[level.chain_index() + 1] = level.parms_id()
            level = level.next_context_data()
        self.evaluator, self.encoder = s.Evaluator(self.context), s.CKKSEncoder(self.context)
        self._ones = np.ones((1, self.levels, self.degree), np.uint64)
        self._version = HEADER.unpack_from(dumped(chosen))[2:4]

    def load(self, kind: str, data: bytes) -> Any:
        """A SEAL object from bytes that somebody sent; SEAL checks that it fits the context."""
        found = getattr(self.seal, kind)()
        try:
            with scratch(data) as (path, _):
                found.load(self.context, path)
        except (RuntimeError, ValueError, MemoryError, OverflowError):
            raise Malformed(f"this is no {kind} of these parameters") from None
        return found

    def ciphertext(self, parts: Residues, scale: float = 1.0, *, transformed: bool = True) -> Any:
        """A ciphertext of these residues, at the level of their number of primes."""
        size, primes, degree = parts.shape
        head = np.array(tuple(self.identity[primes]), np.uint64).tobytes() + bytes([transformed])
        head += struct.pack("<QQQdQ", size, degree, primes, scale, 1)
        data = self._framed(struct.pack("<Q", parts.size) + np.ascontiguousarray(parts, np.uint64).tobytes())
        return self.load("Ciphertext", self._framed(head + data))

    def residues(self, thing: Any, shape: tuple[int, ...]) -> Residues:
        """The residues of a ciphertext, plaintext or secret key, which are the end of what SEAL writes."""
        size = 8 * int(np.prod(shape))
        body = self._zstandard.ZstdDecompressor().decompress(dumped(thing)[HEADER.size :], max_output_size=size + 4096)
        return np.frombuffer(body, np.uint64, size // 8, len(body) - size).reshape(shape).copy()

    def parts(self, ciphertext: Any) -> Residues:
        """All polynomials of a ciphertext."""
        return self.residues(ciphertext, (ciphertext.size(), ciphertext.coeff_modulus_size(), self.degree))

    def forward(self, coefficients: Residues) -> Residues:
        """The number-theoretic transform of ``(polynomials, primes, degree)``."""
        return self._each(coefficients, transformed=False)

    def backward(self, values: Residues) -> Residues:
        """The inverse of :meth:`forward`."""
        return self._each(values, transformed=True)

    def _each(self, all_of: Residues, *, transformed: bool) -> Residues:
        change = self.evaluator.transform_from_ntt_inplace if transformed else self.evaluator.transform_to_ntt_inplace
        out = np.empty_like(all_of)
        for start in range(0, len(all_of), BATCH):
            some = all_of[start : start + BATCH]
            whole = len(some) > 1 and bool(some[1:].any())  # SEAL refuses a ciphertext that is only its first part
            held = self.ciphertext(some if whole else np.concatenate([some, self._ones]), transformed=transformed)
            change(held)
            out[start : start + len(some)] = self.parts(held)[: len(some)]
        return out

    def plus(self, a: Residues, b: Residues) -> Residues:
        """Sum modulo each prime, of arrays ``(..., primes, degree)``."""
        moduli = self.moduli[: a.shape[-2]]
        total = a + b
        np.subtract(total, moduli, out=total, where=total >= moduli)
        return total

    def minus(self, a: Residues, b: Residues) -> Residues:
        """Difference modulo each prime."""
        moduli = self.moduli[: a.shape[-2]]
        less = a < b
        total = a - b
        np.add(total, moduli, out=total, where=less)
        return total

    def times(self, a: Residues, b: Residues) -> Residues:
        """Product modulo each prime."""
        out: Residues = np.empty(np.broadcast_shapes(a.shape, b.shape), np.uint64)
        for place, prime in enumerate(self.primes[: a.shape[-2]]):
            out[..., place, :] = product(a[..., place, :], b[..., place, :], prime)
        return out

    def constants(self, values: Residues) -> list[int]:
        """The constant coefficient modulo each prime of one transformed polynomial: the mean of its values."""
        inverse = [pow(self.degree, -1, q) for q in self.primes]
        low = (values & np.uint64(0xFFFFFFFF)).sum(-1, dtype=np.uint64)
        high = (values >> np.uint64(32)).sum(-1, dtype=np.uint64)
        sums = [int(a) + (int(b) << 32) for a, b in zip(low, high, strict=True)]
        return [v * i % q for v, i, q in zip(sums, inverse, self.primes, strict=False)]

    def joined(self, residues: list[int]) -> int:
        """The integer nearest to zero with these residues."""
        modulus = int(np.prod([int(q) for q in self.primes[: len(residues)]], dtype=object))
        found = 0
        for value, q in zip(residues, self.primes, strict=False):
            rest = modulus // q
            found += value * rest * pow(rest, -1, q)
        found %= modulus
        return found - modulus if found > modulus // 2 else found

    def packed(self, residues: Residues) -> bytes:
        """Residues below their primes as few bytes as whole bytes allow."""
        return b"".join(
            np.ascontiguousarray(residues[..., place, :].copy().view(np.uint8).reshape(-1, 8)[:, :width]).tobytes()
            for place, width in enumerate(self.widths(residues.shape[-2]))
        )

    def unpacked(self, data: bytes | memoryview, count: int, primes: int) -> Residues:
        """The inverse of :meth:`packed`, as ``(count, primes, degree)``; :class:`Malformed` if they are none."""
        if len(data) != self.size(count, primes):
            raise Malformed(f"{len(data)} bytes of residues, not {self.size(count, primes)}")
        out, start, entries = np.zeros((count, primes, self.degree, 8), np.uint8), 0, count * self.degree
        flat: Bytes = np.frombuffer(data, np.uint8)
        for place, width in enumerate(self.widths(primes)):
            here = flat[start : start + entries * width].reshape(count, self.degree, width)
            out[:, place, :, :width] = here
            start += entries * width
        found = out.view(np.uint64)[..., 0]
        if not bool((found < self.moduli[:primes]).all()):
            raise Malformed("residues that are not below their prime")
        return found

    def size(self, count: int, primes: int) -> int:
        """Bytes of so many packed polynomials."""
        return count * self.degree * sum(self.widths(primes))

    def widths(self, primes: int) -> list[int]:
        """Bytes of one residue of each prime."""
        return [-(-q.bit_length() // 8) for q in self.primes[:primes]]

    def _framed(self, body: bytes) -> bytes:
        return HEADER.pack(MAGIC, HEADER.size, *self._version, 0, 0, HEADER.size + len(body)) + body


class Encryptor:
    """Encrypts integer polynomials under a public key, by SEAL's encryption of zero."""

    def __init__(self, place: Ring, public: bytes) -> None:
        self._ring = place
        self._encryptor = place.seal.Encryptor(place.context, place.load("PublicKey", public))

    def __call__(self, plain: Residues) -> Residues:
        """Ciphertexts ``(polynomials, 2, primes, degree)`` of transformed polynomials."""
        out = np.stack([self.zero(self._ring.levels) for _ in range(len(plain))])
        out[:, 0] = self._ring.plus(out[:, 0], plain)
        return out

    def zero(self, levels: int) -> Residues:
        """A fresh encryption of zero ``(2, levels, degree)``."""
        out = self._ring.seal.Ciphertext()
        self._encryptor.encrypt_zero(self._ring.identity[levels], out)
        return self._ring.parts(out)


def product(a: Residues, b: Residues, prime: int) -> Residues:
    """a·b modulo a prime of at most 60 bits, exactly: the quotient is estimated in floating point and mended."""
    if prime < FAST:
        return _close(a, b, prime)
    low, high = b & np.uint64((1 << 30) - 1), b >> np.uint64(30)
    shifted = _close(_close(a, high, prime), np.uint64(1 << 30), prime)
    total = shifted + _close(a, low, prime)
    np.subtract(total, np.uint64(prime), out=total, where=total >= np.uint64(prime))
    return total


def _close(a: Residues, b: Residues | np.uint64, prime: int) -> Residues:
    """The product where it is below 2^112 and the quotient below 2^52: the estimate errs by one at most."""
    q = np.uint64(prime)
    quotient = np.multiply(a.astype(np.float64), np.asarray(b).astype(np.float64) * (1.0 / prime)).astype(np.uint64)
    rest: Residues = a * b
    rest -= quotient * q
    np.add(rest, q, out=rest, where=rest.view(np.int64) < 0)
    np.subtract(rest, q, out=rest, where=rest >= q)
    return rest
