"""What the parties say to each other: typed, versioned, limited in size; they travel inside TLS (SPEC 7.6)."""

from __future__ import annotations

from dataclasses import astuple, dataclass, fields
from itertools import pairwise
from typing import Any, ClassVar, TypeVar

import msgpack

from fedveil.transport.he.parameters import Parameters
from fedveil.transport.masks.rejected import Foreign, Malformed, Oversized, Replayed

MAGIC, VERSION = "fedveil-he", 1
SLACK = 4096
"""Bytes that SEAL's headers and msgpack may add to a polynomial."""


@dataclass(frozen=True)
class Session:
    """One summation among ``clients``, each with ``length`` numbers; ``id`` is 16 random bytes that name it."""

    id: bytes
    parameters: Parameters
    clients: int
    length: int

    @property
    def blocks(self) -> int:
        """How many ciphertexts an upload has."""
        return -(-self.length // self.parameters.degree)

    @property
    def polynomial(self) -> int:
        """Bytes of a polynomial's residues."""
        return 8 * self.parameters.levels * self.parameters.degree


@dataclass(frozen=True)
class Upload:
    """A client's encrypted numbers, from client ``seat`` to the computer."""

    kind: ClassVar[str] = "upload"
    seat: int
    blocks: list[bytes]


@dataclass(frozen=True)
class Opening:
    """The computer's half of the decryption of the sum: per block c₀ + c₁s₂ + flood and c₁; who is in the sum."""

    kind: ClassVar[str] = "opening"
    halves: list[bytes]
    rests: list[bytes]
    seats: list[int]


Message = Upload | Opening
M = TypeVar("M", Upload, Opening)


def limit(kind: type[Message], session: Session) -> int:
    """Bytes of the longest honest frame of this kind."""
    return session.blocks * (2 * session.polynomial + SLACK) + 9 * session.clients + SLACK


def encode(session: Session, message: Message) -> bytes:
    """A frame."""
    out: bytes = msgpack.packb([MAGIC, VERSION, session.id, message.kind, *astuple(message)])
    return out


def decode(session: Session, kind: type[M], frame: bytes) -> M:
    """The message in a frame, which must be of this session and kind."""
    if not isinstance(frame, bytes):
        raise Malformed("a frame that is no bytes")
    if len(frame) > limit(kind, session):
        raise Oversized(f"{kind.kind} of {len(frame)} bytes")
    try:
        raw: Any = msgpack.unpackb(frame)
    except (ValueError, TypeError, OverflowError, msgpack.UnpackException):
        raise Malformed(f"a frame of {kind.kind} that is no msgpack") from None
    if not isinstance(raw, list) or len(raw) < 4 or raw[:2] != [MAGIC, VERSION]:
        raise Malformed(f"a frame of another protocol or version; this is version {VERSION}")
    if raw[2] != session.id:
        raise Foreign("a frame of another session")
    if raw[3] != kind.kind:
        raise Replayed(f"a frame of kind {raw[3]!r}, but {kind.kind} was expected")
    if len(raw) != 4 + len(fields(kind)):
        raise Malformed(f"{kind.kind}: {len(fields(kind))} fields were expected")
    checks = {"int": _is_seat, "list[bytes]": _are_bytes, "list[int]": _are_seats}
    for value, field in zip(raw[4:], fields(kind), strict=True):
        if not checks[str(field.type)](value, session):
            raise Malformed(f"{kind.kind}: {field.name} is not what it should be")
    return kind(*raw[4:])


def _is_seat(value: object, session: Session) -> bool:
    return type(value) is int and 0 <= value < session.clients


def _are_bytes(value: object, session: Session) -> bool:
    return isinstance(value, list) and len(value) == session.blocks and all(isinstance(b, bytes) for b in value)


def _are_seats(value: object, session: Session) -> bool:
    if not isinstance(value, list) or not all(_is_seat(seat, session) for seat in value):
        return False
    return all(a < b for a, b in pairwise(value))
