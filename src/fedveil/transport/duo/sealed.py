"""Sealed conversations between parties that know each other's identities, over somebody who must not listen.

An identity is an X25519 and an Ed25519 key of one secret. Two parties that meet agree on keys by their identities and
by keys of this one meeting: nobody else can read or write in their names, and nothing of one meeting fits another.
Every box has a key of its own, made with a random salt, so that no key ever seals twice.
"""

from __future__ import annotations

import os

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from fedveil.transport.masks.crypto import KEY, Pair, derive, digest, seal, unseal
from fedveil.transport.masks.rejected import Malformed, Tampered

PUBLIC = 2 * KEY
"""Bytes of an identity as others know it."""


class Identity:
    """Who a party is, made of a secret of 32 bytes."""

    def __init__(self, secret: bytes) -> None:
        if len(secret) != KEY:
            raise Malformed(f"an identity of {len(secret)} bytes, not {KEY}")
        self._secret, self.pair = secret, Pair(derive(secret, b"fedveil duo agreement"))
        self._signs = Ed25519PrivateKey.from_private_bytes(derive(secret, b"fedveil duo signature"))
        self.public = self.pair.public + self._signs.public_key().public_bytes_raw()

    def sign(self, data: bytes) -> bytes:
        """A signature."""
        return self._signs.sign(data)

    def keep(self, data: bytes) -> bytes:
        """A box that only this party opens again: what it lets somebody else look after."""
        return boxed(derive(self._secret, b"fedveil duo memory"), 0, data)

    def kept(self, box: bytes) -> bytes:
        """The inverse of :meth:`keep`; :class:`Tampered` if it is none."""
        return unboxed(derive(self._secret, b"fedveil duo memory"), 0, box)


def signed(public: bytes, signature: bytes, data: bytes) -> None:
    """Refuse what the party with this public identity has not signed."""
    try:
        Ed25519PublicKey.from_public_bytes(public[KEY:]).verify(signature, data)
    except (InvalidSignature, ValueError):
        raise Tampered("a signature that does not fit") from None


class Channel:
    """One party's side of one meeting with another; ``mine`` and ``yours`` are the keys of this meeting."""

    def __init__(self, me: str, identity: Identity, mine: Pair, you: str, public: bytes, yours: bytes) -> None:
        if len(public) != PUBLIC or len(yours) != KEY:
            raise Malformed(f"keys of {you} that are none")
        purpose = b"fedveil duo meeting"
        secret = identity.pair.agree(public[:KEY], purpose) + mine.agree(yours, purpose)
        both = sorted([(me, identity.public + mine.public), (you, public + yours)])
        place = digest(b"".join(name.encode() + b"\0" + keys for name, keys in both))
        self._there = derive(secret, b"fedveil duo to " + you.encode() + b"\0" + place)
        self._back = derive(secret, b"fedveil duo to " + me.encode() + b"\0" + place)

    def seal(self, number: int, data: bytes) -> bytes:
        """The box with this number."""
        return boxed(self._there, number, data)

    def unseal(self, number: int, box: bytes) -> bytes:
        """What the other sealed in the box with this number, or :class:`Tampered`."""
        return unboxed(self._back, number, box)


def boxed(key: bytes, number: int, data: bytes) -> bytes:
    """Sealed under a key that is made for this box alone."""
    salt = os.urandom(KEY)
    return salt + seal(derive(key, salt), number, data, b"")


def unboxed(key: bytes, number: int, box: bytes) -> bytes:
    """The inverse of :func:`boxed`; :class:`Tampered` if it is none."""
    return unseal(derive(key, box[:KEY]), number, box[KEY:], b"")
