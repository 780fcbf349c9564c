"""Sealing to the server's key: HPKE (RFC 9180) with X25519, HKDF-SHA256 and ChaCha20-Poly1305, from ``cryptography``.

Each part has an encapsulated key of its own, so that no two of them can be told to come from one client.
"""

from __future__ import annotations

from functools import lru_cache

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hpke
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from fedveil.transport.shuffle.messages import VERSION, Malformed

OVERHEAD = 48
"""Bytes that sealing adds: an encapsulated key and a tag."""

SUITE = hpke.Suite(hpke.KEM.X25519, hpke.KDF.HKDF_SHA256, hpke.AEAD.CHACHA20_POLY1305)


@lru_cache(maxsize=1 << 16)
def _place(round: int, position: int) -> bytes:
    """What a seal is bound to: a part cannot be passed off as one about another position or round."""
    return b"fedveil shuffle" + VERSION.to_bytes(2, "big") + round.to_bytes(8, "big") + position.to_bytes(8, "big")


def seal(report: bytes, key: X25519PublicKey, round: int, position: int) -> bytes:
    """A report that only the holder of the private key can read."""
    return SUITE.encrypt(report, key, info=_place(round, position))


def unseal(sealed: bytes, key: X25519PrivateKey, round: int, position: int) -> bytes:
    """The report; what was changed, or sealed to another key, position or round, is malformed."""
    try:
        return SUITE.decrypt(sealed, key, info=_place(round, position))
    except (InvalidTag, ValueError):
        raise Malformed("a part was not sealed to this key, round and position, or was changed") from None
