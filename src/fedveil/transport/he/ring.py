"""SEAL, and nothing of it outside: polynomials as numpy arrays, ciphertexts as bytes.

Only public calls are used: ``save`` and ``load``, indexing, and SEAL's own arithmetic. What SEAL has no call for,
making an object out of given residues, goes through ``load`` of the uncompressed format, which checks what it reads.
Number-theoretic transforms, products and decodings are SEAL's.

Traps: ``save`` and ``load`` want a path, so that a secret would touch the disk (files in memory are used); the slots of
CKKS are powers of 3 in SEAL, not of 5; ``load`` takes ciphertexts of any level, size and scale (all are checked);
``secret_key().data()`` looks into an object that is gone unless the key is kept.
"""

from __future__ import annotations

import os
import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property, lru_cache
from types import ModuleType
from typing import Any

import numpy as np

from fedveil.core.errors import Refused
from fedveil.transport.he.parameters import Parameters
from fedveil.transport.masks.rejected import Malformed

Residues = np.ndarray[Any, np.dtype[np.uint64]]
Floats = np.ndarray[Any, np.dtype[np.float64]]

HEADER = struct.Struct("<HBBBBHQ")
"""Magic number, length of this header, version (two), compression, nothing, length of all."""
MAGIC = 0xA15E


def seal() -> ModuleType:
    """TenSEAL's binding of SEAL, which is an extra."""
    try:
        import tenseal.sealapi as module
    except ImportError:
        raise Refused("transport: he needs TenSEAL; install the extra with `pip install 'fedveil[he]'`") from None
    assert isinstance(module, ModuleType)
    return module


@contextmanager
def scratch(data: bytes = b"") -> Iterator[tuple[str, int]]:
    """The path of a file in memory (where there are none, of a file only we may read), and its number."""
    if hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd"):
        number = os.memfd_create("seal", os.MFD_CLOEXEC)
        path = f"/proc/self/fd/{number}"
    else:
        number, path = tempfile.mkstemp()
    try:
        os.pwrite(number, data, 0)
        yield path, number
    finally:
        os.close(number)
        if not path.startswith("/proc/"):
            os.unlink(path)


def dumped(thing: Any) -> bytes:
    """A SEAL object as SEAL writes it."""
    with scratch() as (path, number):
        thing.save(path)
        return os.pread(number, os.fstat(number).st_size, 0)


@lru_cache(maxsize=4)
def ring(parameters: Parameters) -> Ring:
    """The ring of these parameters; building one takes some milliseconds."""
    return Ring(parameters)


class Ring:
    """Polynomials of one degree modulo several primes, as SEAL has them."""

    def __init__(self, parameters: Parameters) -> None:
        s = self.seal = seal()
        self.parameters, self.degree = parameters, parameters.degree
        chosen = s.EncryptionParameters(s.SCHEME_TYPE.CKKS)
        chosen.set_poly_modulus_degree(self.degree)
        chosen.set_coeff_modulus(s.CoeffModulus.Create(self.degree, list(parameters.primes)))
        self.context = s.SEALContext(chosen, True, s.SEC_LEVEL_TYPE.TC128)
        if not self.context.parameters_set():
            raise Refused(f"parameters: {self.context.parameters_error_message()}; take those of `fedveil keys new`")
        self.primes = [int(m.value()) for m in chosen.coeff_modulus()]
        self.level = tuple(self.context.first_parms_id())
        self.scale = 2.0**parameters.log_scale
        self.evaluator, self._encoder = s.Evaluator(self.context), s.CKKSEncoder(self.context)
        self._version = HEADER.unpack_from(dumped(chosen))[2:4]

    @property
    def levels(self) -> int:
        """How many primes hold data."""
        return self.parameters.levels

    def load(self, kind: str, data: bytes) -> Any:
        """A SEAL object from bytes that somebody sent; SEAL checks that it fits the context."""
        found = getattr(self.seal, kind)()
        try:
            with scratch(data) as (path, _):
                found.load(self.context, path)
        except (RuntimeError, ValueError, MemoryError, OverflowError):
            raise Malformed(f"this is no {kind} of these parameters") from None
        return found

    def fresh(self, data: bytes) -> Any:
        """A ciphertext as clients send it, and no other."""
        found = self.load("Ciphertext", data)
        fits = (
            tuple(found.parms_id()) == self.level
            and found.size() == 2
            and found.is_ntt_form()
            and found.scale == self.scale
        )
        if not fits:
            raise Malformed("a ciphertext of another level, size or scale than a fresh one")
        return found

    def residues(self, thing: Any, part: int = 0, primes: int | None = None) -> Residues:
        """One polynomial of a ciphertext (or a plaintext, or a key) as ``(primes, degree)`` residues."""
        primes = self.levels if primes is None else primes
        size = primes * self.degree
        flat = np.fromiter(map(thing.__getitem__, range(part * size, (part + 1) * size)), np.uint64, size)
        return flat.reshape(primes, self.degree)

    def ciphertext(self, parts: Residues, *, transformed: bool = True) -> Any:
        """A ciphertext of these residues ``(2, primes, degree)`` at the scale of uploads."""
        size, primes, degree = parts.shape
        head = np.array(self.level, np.uint64).tobytes() + bytes([transformed])
        head += struct.pack("<QQQdQ", size, degree, primes, self.scale, 1)
        return self.load("Ciphertext", self._framed(head + self._array(parts)))

    def secret(self, residues: Residues) -> bytes:
        """Residues modulo all primes in the format of a secret key; ``load`` makes one of it."""
        head = np.array(tuple(self.context.key_parms_id()), np.uint64).tobytes()
        return self._framed(head + struct.pack("<Qd", residues.size, 1.0) + self._array(residues))

    def transformed(self, residues: Residues) -> Residues:
        """The number-theoretic transform, by SEAL, of coefficients modulo the data's primes."""
        both = self.ciphertext(np.stack([residues, residues]), transformed=False)
        self.evaluator.transform_to_ntt_inplace(both)
        return self.residues(both)

    def add(self, a: Residues, b: Residues) -> Residues:
        """Sum modulo each prime; they have at most 60 bits."""
        return (a + b) % np.array(self.primes[: len(a)], np.uint64)[:, None]

    def packed(self, values: Floats) -> Any:
        """Up to ``degree`` numbers as the coefficients of a plaintext, at the scale of uploads.

        SEAL encodes the values that a polynomial takes at roots of unity: a Fourier transform away.
        """
        whole = np.zeros(self.degree)
        whole[: len(values)] = values
        points = np.fft.ifft(whole * np.exp(1j * self._turns), norm="forward")[self._slots]
        plain = self.seal.Plaintext()
        self._encoder.encode(points.tolist(), self.scale, plain)
        return plain

    def unpacked(self, plain: Any) -> Floats:
        """The inverse of :meth:`packed`."""
        points = np.empty(self.degree, complex)
        half = np.array(self._encoder.decode_complex(plain))
        points[self._slots], points[self.degree - 1 - self._slots] = half, half.conj()
        found: Floats = (np.fft.fft(points, norm="forward") * np.exp(-1j * self._turns)).real
        return found

    def flood(self) -> Residues:
        """The transform of a polynomial whose coefficients are uniform in [−2^B, 2^B), from the operating system."""
        bits = self.parameters.flood + 1
        size = -(-bits // 8)
        raw, mask = os.urandom(size * self.degree), 2**bits - 1
        whole = [
            (int.from_bytes(raw[i : i + size], "little") & mask) - 2 ** (bits - 1) for i in range(0, len(raw), size)
        ]
        return self.transformed(np.array([[v % q for v in whole] for q in self.primes[: self.levels]], np.uint64))

    @cached_property
    def _turns(self) -> Floats:
        return np.pi * np.arange(self.degree) / self.degree

    @cached_property
    def _slots(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Where SEAL's slots stand among the odd powers of the root of unity."""
        powers = [pow(3, i, 2 * self.degree) for i in range(self.degree // 2)]
        return (np.array(powers) - 1) // 2

    def _array(self, values: Residues) -> bytes:
        data = np.ascontiguousarray(values, np.uint64).tobytes()
        return self._framed(struct.pack("<Q", values.size) + data)

    def _framed(self, body: bytes) -> bytes:
        return HEADER.pack(MAGIC, HEADER.size, *self._version, 0, 0, HEADER.size + len(body)) + body
