"""What is public about one session: its plan, its length, its graph, and who may sign (SPEC 6.1)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from fedveil.transport.masks.crypto import Words, add_mask, derive, digest
from fedveil.transport.masks.encoding import packed_size, word
from fedveil.transport.masks.plan import Plan
from fedveil.transport.masks.rejected import Malformed, Tampered

Seats = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class Session:
    """One summation among the clients on ``plan.clients`` seats, of ``length`` numbers modulo 2^``bits``.

    ``id`` is 16 random bytes and names the session; it also puts the ring in order, so that nobody need be told who
    neighbours whom. A client takes part in one session of a name only. ``members``
    are the clients' long-term signature keys by seat, known beforehand, where the server is not trusted to follow the
    protocol.
    """

    id: bytes
    plan: Plan
    length: int
    bits: int
    members: tuple[bytes, ...] = ()

    def __post_init__(self) -> None:
        if self.plan.active and len(self.members) != self.plan.clients:
            raise ValueError("Session: against an active server, every seat needs a known signature key")

    @cached_property
    def binding(self) -> bytes:
        """What signatures speak of: this session among these members, with these parameters."""
        numbers = f"{self.plan} {self.length} {self.bits}".encode()
        return self.id + digest(b"".join(self.members)) + digest(numbers)

    @property
    def payload(self) -> int:
        """Bytes of an upload."""
        return packed_size(self.length, self.bits)

    @property
    def word(self) -> np.dtype[np.unsignedinteger[Any]]:
        """The type of what is summed."""
        return word(self.bits)

    @cached_property
    def ring(self) -> Seats:
        """The seats in their order round the ring."""
        keys: Words = np.zeros(self.plan.clients, np.uint64)
        add_mask(keys, derive(self.id, b"fedveil masks ring", 16))
        return np.argsort(keys, kind="stable")

    @cached_property
    def _place(self) -> Seats:
        return np.argsort(self.ring)

    def neighbours(self, seat: int) -> set[int]:
        """Those that a client is masked against."""
        n, k = self.plan.clients, self.plan.degree
        if k == n - 1:
            return set(range(n)) - {seat}
        half = np.arange(1, k // 2 + 1)
        return set(self.ring[(self._place[seat] + np.concatenate([half, -half])) % n].tolist())

    def seed_key(self, seed: bytes) -> bytes:
        """The secret of a client's own mask."""
        return derive(seed, b"fedveil masks own" + self.id, 16)

    @property
    def pair_purpose(self) -> bytes:
        """What two clients agree on a mask for."""
        return b"fedveil masks pair" + self.id

    @property
    def box_purpose(self) -> bytes:
        """What two clients agree on a key for, to seal shares."""
        return b"fedveil masks box" + self.id

    def box_header(self, sender: int, recipient: int) -> bytes:
        """Associated data of a box of shares."""
        return self.id + sender.to_bytes(4, "little") + recipient.to_bytes(4, "little")

    def advert_words(self, seat: int, sealing: bytes, masking: bytes) -> bytes:
        """What a client signs of its keys."""
        return b"fedveil masks advert" + self.binding + seat.to_bytes(4, "little") + sealing + masking

    def list_words(self, alive: bytes, gone: bytes) -> bytes:
        """What a client signs of the list of survivors."""
        return b"fedveil masks survivors" + self.binding + alive + gone

    def check_signature(self, seat: int, signature: bytes, words: bytes) -> None:
        """Refuse what the owner of a seat did not sign."""
        try:
            Ed25519PublicKey.from_public_bytes(self.members[seat]).verify(signature, words)
        except (InvalidSignature, ValueError):
            raise Tampered(f"a signature that is not that of client {seat}") from None

    def bitmap(self, seats: set[int]) -> bytes:
        """A set of seats on the wire."""
        marks = np.zeros(self.plan.clients, np.uint8)
        marks[list(seats)] = 1
        return np.packbits(marks).tobytes()

    def seats(self, bitmap: bytes) -> set[int]:
        """The inverse of :meth:`bitmap`."""
        n = self.plan.clients
        if len(bitmap) != -(-n // 8):
            raise Malformed("a list of seats of another length")
        found = set(np.flatnonzero(np.unpackbits(np.frombuffer(bitmap, np.uint8))).tolist())
        if found and max(found) >= n:
            raise Malformed("a list with seats that do not exist")
        return found
