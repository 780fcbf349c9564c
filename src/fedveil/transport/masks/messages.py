"""What clients and the server say to each other: typed, versioned, limited in size, sealed (SPEC 6.1).

A frame is a header, then the body in msgpack, sealed with AES-GCM under a key that only this client and the server
have, with the header as its associated data. Frames of one direction are numbered, and the number is the nonce.
"""

from __future__ import annotations

import struct
from dataclasses import astuple, dataclass, fields
from typing import Any, ClassVar, TypeVar

import msgpack

from fedveil.transport.masks.crypto import KEY, TAG, Pair, seal, unseal
from fedveil.transport.masks.plan import Plan
from fedveil.transport.masks.rejected import Foreign, Malformed, Oversized, Replayed
from fedveil.transport.masks.shamir import SHARE

MAGIC, VERSION = b"FVSA", 1
SERVER = 2**32 - 1
SIGNATURE = 64
BOX = 2 * SHARE + TAG
"""Bytes of a sealed pair of shares."""

_HEADER = struct.Struct("<4sBBIII16s")

Table = dict[int, bytes]


@dataclass(frozen=True)
class Advert:
    """The public keys of a client: ``sealing`` shares, and ``masking`` uploads; signed where the server may lie."""

    kind: ClassVar[int] = 1
    sealing: bytes
    masking: bytes
    signature: bytes


@dataclass(frozen=True)
class Roster:
    """The keys of a client's neighbours that advertised."""

    kind: ClassVar[int] = 2
    adverts: Table


@dataclass(frozen=True)
class Shares:
    """A client's two secrets, shared out in a sealed box for each neighbour; ``promise`` is a digest of its seed."""

    kind: ClassVar[int] = 3
    boxes: Table
    promise: bytes


@dataclass(frozen=True)
class Boxes:
    """The boxes that neighbours sealed for a client."""

    kind: ClassVar[int] = 4
    boxes: Table


@dataclass(frozen=True)
class Masked:
    """A client's upload under all its masks."""

    kind: ClassVar[int] = 5
    values: bytes


@dataclass(frozen=True)
class Survivors:
    """Whose uploads arrived, and who shared its secrets and then dropped out; a bit for each seat."""

    kind: ClassVar[int] = 6
    alive: bytes
    gone: bytes


@dataclass(frozen=True)
class Signed:
    """A client's signature of the list of survivors that it was shown."""

    kind: ClassVar[int] = 7
    signature: bytes


@dataclass(frozen=True)
class Signatures:
    """Everybody's signatures of that list."""

    kind: ClassVar[int] = 8
    signatures: Table


@dataclass(frozen=True)
class Opened:
    """The shares that a client hands over: of the seeds of survivors, of the keys of those who are gone."""

    kind: ClassVar[int] = 9
    seeds: Table
    keys: Table


Message = Advert | Roster | Shares | Boxes | Masked | Survivors | Signed | Signatures | Opened
M = TypeVar("M", Advert, Roster, Shares, Boxes, Masked, Survivors, Signed, Signatures, Opened)


def limit(kind: type[Message], plan: Plan, payload: int) -> int:
    """Bytes of the longest honest frame of this kind; ``payload`` is the length of an upload."""
    n, k = plan.clients, plan.degree
    body = {
        Advert: 2 * KEY + SIGNATURE,
        Roster: k * (2 * KEY + SIGNATURE + 8),
        Shares: k * (BOX + 8) + KEY,
        Boxes: k * (BOX + 8),
        Masked: payload,
        Survivors: 2 * (n // 8 + 1),
        Signed: SIGNATURE,
        Signatures: n * (SIGNATURE + 8),
        Opened: k * (SHARE + 8),
    }[kind]
    return _HEADER.size + KEY + TAG + body + 64


def encode(message: Message) -> bytes:
    """The body of a frame."""
    out: bytes = msgpack.packb(astuple(message))
    return out


def decode(kind: type[M], body: bytes) -> M:
    """The message in a body; anything but bytes and tables of bytes by seat is refused."""
    try:
        raw: Any = msgpack.unpackb(body, strict_map_key=False)
    except (ValueError, TypeError, OverflowError, msgpack.UnpackException):
        raise Malformed(f"a body of {kind.__name__} that is no msgpack") from None
    types = [f.type for f in fields(kind)]
    if not isinstance(raw, list) or len(raw) != len(types):
        raise Malformed(f"{kind.__name__}: {len(types)} fields were expected")
    for value, wanted in zip(raw, types, strict=True):
        if not (isinstance(value, bytes) if wanted == "bytes" else _is_table(value)):
            raise Malformed(f"{kind.__name__}: a field of another type")
    return kind(*raw)


def _is_table(value: object) -> bool:
    return isinstance(value, dict) and all(
        type(seat) is int and 0 <= seat < SERVER and isinstance(item, bytes) for seat, item in value.items()
    )


@dataclass(frozen=True)
class Header:
    """Where a frame comes from and goes to."""

    kind: int
    sender: int
    recipient: int
    number: int
    session: bytes

    @classmethod
    def read(cls, frame: bytes) -> Header:
        """The header of a frame."""
        if not isinstance(frame, bytes) or len(frame) < _HEADER.size:
            raise Malformed("a frame without a whole header")
        magic, version, kind, sender, recipient, number, session = _HEADER.unpack_from(frame)
        if magic != MAGIC or version != VERSION:
            raise Malformed(f"a frame of another protocol or version; this is version {VERSION}")
        return cls(kind, sender, recipient, number, session)

    def write(self) -> bytes:
        """The header as bytes."""
        return _HEADER.pack(MAGIC, VERSION, self.kind, self.sender, self.recipient, self.number, self.session)


class Channel:
    """One client's line to the server, or the server's to one client; it refuses what is not the next frame.

    Opening a frame changes nothing: that the next one is expected follows from having answered.
    """

    def __init__(self, pair: Pair, other: bytes, plan: Plan, payload: int, session: bytes, seat: int, *, me: int):
        secret = pair.agree(other, b"fedveil masks channel" + session + seat.to_bytes(4, "little"), 2 * KEY)
        up, down = secret[:KEY], secret[KEY:]
        self._out, self._in = (down, up) if me == SERVER else (up, down)
        self._me, self._other = me, seat if me == SERVER else SERVER
        self._plan, self._payload, self._session = plan, payload, session
        self.sent = 0

    def seal(self, message: Message, prefix: bytes = b"") -> bytes:
        """The next frame; a ``prefix`` stands open between its header and its sealed body."""
        head = Header(message.kind, self._me, self._other, self.sent, self._session).write() + prefix
        frame = head + seal(self._out, self.sent, encode(message), head)
        self.sent += 1
        return frame

    def open(self, kind: type[M], frame: bytes, prefix: int = 0) -> M:
        """The message in the next frame, which must be of this kind."""
        header = Header.read(frame)
        if (header.session, header.sender, header.recipient) != (self._session, self._other, self._me):
            raise Foreign("a frame of another session, from or to somebody else")
        # Both sides take turns, and the client begins.
        if header.kind != kind.kind or header.number != self.sent - (self._me != SERVER):
            raise Replayed(f"frame {header.number} of kind {header.kind}, but {kind.__name__} was expected")
        if len(frame) > limit(kind, self._plan, self._payload):
            raise Oversized(f"{kind.__name__} of {len(frame)} bytes")
        start = _HEADER.size + prefix
        return decode(kind, unseal(self._in, header.number, frame[start:], frame[:start]))


def prefix_of(frame: bytes, length: int) -> bytes:
    """What stands open between header and body."""
    found = frame[_HEADER.size : _HEADER.size + length]
    if len(found) < length:
        raise Malformed("a frame without a whole key")
    return found


def sized(items: Table, length: int, seats: set[int], what: str) -> None:
    """Refuse a table that is not exactly about these seats, with items of this length."""
    if items.keys() != seats or any(len(item) != length for item in items.values()):
        raise Malformed(f"{what}: other seats or lengths than expected")
