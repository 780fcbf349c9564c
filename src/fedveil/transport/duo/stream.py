"""Random numbers that two parties can make from a common seed: AES-256 in counter mode, from ``cryptography``."""

from __future__ import annotations

from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from fedveil.transport.masks.crypto import derive

Words = np.ndarray[Any, np.dtype[np.unsignedinteger[Any]]]
Bytes = np.ndarray[Any, np.dtype[np.uint8]]

_BLOCK = 1 << 17
_ZEROS = memoryview(bytes(_BLOCK))


class Stream:
    """A stream that belongs to a seed and a label: no two labels share any of it, and it never starts again."""

    def __init__(self, seed: bytes, label: str) -> None:
        key = derive(seed, b"fedveil duo " + label.encode())
        self._cipher = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()

    def bytes(self, count: int) -> Bytes:
        """The next bytes."""
        out = np.empty(count + 15, np.uint8)
        view = memoryview(out)  # type: ignore[arg-type]
        for start in range(0, count, _BLOCK):
            size = min(_BLOCK, count - start)
            self._cipher.update_into(_ZEROS[:size], view[start : start + size + 15])
        return out[:count]

    def words(self, shape: int | tuple[int, ...], dtype: Any = np.uint64) -> Words:
        """Uniform words of an unsigned type."""
        shape = (shape,) if isinstance(shape, int) else shape
        kind = np.dtype(dtype)
        found: Words = self.bytes(int(np.prod(shape)) * kind.itemsize).view(kind).reshape(shape)
        return found
