"""Keys, sealed boxes and masks: every primitive comes from ``cryptography``, every secret from the operating system."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedveil.transport.masks.rejected import Malformed, Tampered

KEY = 32
"""Bytes of a key, a seed or a digest."""
TAG = 16
"""Bytes that sealing adds."""
BLOCK = 1 << 17
"""Bytes of a mask that are made at once: they stay in a core's cache until they are added."""

Words = np.ndarray[Any, np.dtype[np.unsignedinteger[Any]]]

_ZEROS = memoryview(bytes(BLOCK))


class Pair:
    """An X25519 key pair; the private half leaves this object only to be shared out among neighbours."""

    def __init__(self, private: bytes | None = None) -> None:
        self._key = X25519PrivateKey.generate() if private is None else X25519PrivateKey.from_private_bytes(private)
        self.public = self._key.public_key().public_bytes_raw()

    def private(self) -> bytes:
        """The private half."""
        return self._key.private_bytes_raw()

    def agree(self, public: bytes, purpose: bytes, length: int = KEY) -> bytes:
        """A key for one purpose, which only this pair and the owner of ``public`` can make."""
        try:
            shared = self._key.exchange(X25519PublicKey.from_public_bytes(public))
        except ValueError:  # a point of small order
            raise Malformed("a public key that is none") from None
        return derive(shared, purpose, length)


def derive(secret: bytes, purpose: bytes, length: int = KEY) -> bytes:
    """HKDF-SHA256 of a secret, for one purpose."""
    return HKDF(hashes.SHA256(), length, None, purpose).derive(secret)


def digest(data: bytes) -> bytes:
    """SHA-256."""
    state = hashes.Hash(hashes.SHA256())
    state.update(data)
    return state.finalize()


def seed() -> bytes:
    """A secret from the operating system."""
    return os.urandom(KEY)


def seal(key: bytes, number: int, data: bytes, header: bytes) -> bytes:
    """AES-256-GCM; a key never seals twice under one ``number``."""
    return AESGCM(key).encrypt(number.to_bytes(12, "little"), data, header)


def unseal(key: bytes, number: int, box: bytes, header: bytes) -> bytes:
    """What was sealed, or :class:`Tampered`."""
    try:
        return AESGCM(key).decrypt(number.to_bytes(12, "little"), box, header)
    except (InvalidTag, ValueError):
        raise Tampered("a box that its seal does not fit") from None


def add_mask(total: Words, secret: bytes, *, subtract: bool = False) -> None:
    """Add to ``total``, modulo 2^word, the mask that belongs to a 16-byte secret: the stream of AES-128-CTR.

    A secret makes one mask only, so that the counter may start at zero.
    """
    stream = Cipher(algorithms.AES(secret), modes.CTR(bytes(16))).encryptor()
    per = min(BLOCK // total.itemsize, len(total))
    buffer = bytearray(per * total.itemsize + 15)
    words, change = np.frombuffer(buffer, total.dtype, per), np.subtract if subtract else np.add
    for start in range(0, len(total), per):
        part = total[start : start + per]
        stream.update_into(_ZEROS[: len(part) * total.itemsize], buffer)
        change(part, words[: len(part)], out=part)
