"""What travels between clients, shuffler and server: versioned msgpack messages of limited size (SPEC 5).

A part is one client's report about one position: a weight, or a layer. The position stands outside the seal, since
everybody sends one part for every position; what the report says stands inside.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, Any

import msgpack

VERSION = 1
LONGEST = 2**26
"""No message is longer than this many bytes."""
PART, BATCH, OPEN, CLOSE, REPORT = "p", "b", "o", "c", "r"


class Malformed(ValueError):
    """A message that is not what its sender should have sent; it is left out, and counted."""


@dataclass(frozen=True)
class Part:
    """Client to shuffler: a sealed report about one position."""

    round: int
    position: int
    sealed: bytes

    def encode(self) -> bytes:
        """As bytes on the wire."""
        return _pack(PART, self.round, self.position, self.sealed)

    @classmethod
    def decode(cls, data: bytes, limit: int = LONGEST) -> Part:
        """The inverse; anything else is malformed."""
        round, position, sealed = _unpack(PART, data, limit, (int, int, bytes))
        return cls(round, position, sealed)


@dataclass(frozen=True)
class Batch:
    """Shuffler to server: all sealed reports about one position, in random order and without senders."""

    round: int
    position: int
    sealed: tuple[bytes, ...]

    def encode(self) -> bytes:
        """As bytes on the wire."""
        return _pack(BATCH, self.round, self.position, list(self.sealed))

    @classmethod
    def decode(cls, data: bytes, limit: int = LONGEST) -> Batch:
        """The inverse; anything else is malformed."""
        round, position, sealed = _unpack(BATCH, data, limit, (int, int, list))
        if not all(isinstance(one, bytes) for one in sealed):
            raise Malformed("a batch holds something that is no sealed part")
        return cls(round, position, tuple(sealed))


@dataclass(frozen=True)
class Open:
    """Server to shuffler: a round begins; how long a sealed part about each position is, and the smallest batch."""

    round: int
    lengths: tuple[int, ...]
    least: int

    def encode(self) -> bytes:
        """As bytes on the wire."""
        return _pack(OPEN, self.round, list(self.lengths), self.least)

    @classmethod
    def decode(cls, data: bytes, limit: int = LONGEST) -> Open:
        """The inverse; anything else is malformed."""
        round, lengths, least = _unpack(OPEN, data, limit, (int, list, int))
        if not all(type(one) is int and 0 < one <= LONGEST for one in lengths) or least < 1:
            raise Malformed("a round cannot begin with such lengths or such a smallest batch")
        return cls(round, tuple(lengths), least)


def _pack(kind: str, *fields: Any) -> bytes:
    return bytes(msgpack.packb([VERSION, kind, *fields], use_bin_type=True))


def _unpack(kind: str, data: bytes, limit: int, types: Sequence[type]) -> list[Any]:
    if len(data) > limit:
        raise Malformed(f"a message of {len(data)} bytes is longer than the {limit} that are allowed")
    try:
        found = msgpack.unpackb(data, raw=False, use_list=True, max_bin_len=limit, max_array_len=limit)
    except (ValueError, msgpack.UnpackException):
        raise Malformed("a message is no msgpack") from None
    if not isinstance(found, list) or len(found) != len(types) + 2:
        raise Malformed("a message has other fields than it should")
    if found[0] != VERSION:
        raise Malformed(f"a message has version {found[0]!r}, this one reads {VERSION}")
    if found[1] != kind:
        raise Malformed(f"a message is of kind {found[1]!r}, not {kind!r}")
    for value, wanted in zip(found[2:], types, strict=True):
        if type(value) is not wanted or (type(value) is int and value < 0):
            raise Malformed(f"a field of a message is no {wanted.__name__} from 0 on")
    return found[2:]


def write_frame(stream: IO[bytes], data: bytes) -> None:
    """A message with its length before it."""
    stream.write(len(data).to_bytes(4, "big") + data)


def read_frame(stream: IO[bytes]) -> bytes | None:
    """The next message; None at the end. A length beyond the limit is malformed before anything of it is read."""
    head = stream.read(4)
    if len(head) < 4:
        return None
    length = int.from_bytes(head, "big")
    if length > LONGEST:
        raise Malformed(f"a message of {length} bytes is longer than the {LONGEST} that are allowed")
    body = stream.read(length)
    if len(body) < length:
        raise Malformed("a message ends before its length")
    return body
