"""What server and nodes say to each other over Flower: typed, versioned, limited in size, and no pickle.

A message is one of the dataclasses below in msgpack, and named tensors as raw bytes beside it. Whatever does not have
the shape of what it claims to be is refused before anything is made of it.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import prod
from typing import Any, ClassVar, TypeVar

import msgpack
import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor

VERSION = 1
RECORD = "fedveil"
RAW = "fedveil.raw"
"""How tensors are written: little-endian numbers in order, or the bits of a row of booleans."""
LONGEST = 2**24
"""Bytes that a message may have beside its tensors, where nothing else is said."""

_TYPES = {"float32": torch.float32, "float64": torch.float64, "int64": torch.int64, "bool": torch.bool}
_NAMES = {kind: name for name, kind in _TYPES.items()}

Tensors = Mapping[str, Tensor]
Shapes = Mapping[str, tuple[torch.dtype, tuple[int, ...]]]
"""What tensors must look like, by name."""


class Malformed(ValueError):
    """A message that is not what its sender should have sent."""


Made = tuple[str, str, str, str, str, int]
"""A kind of release and how often: unit, mechanism, noise over bound, slot, channel, count."""


@dataclass(frozen=True)
class Hello:
    """Server to node: who are you? ``settings`` are those of the run, where the node brings its own data."""

    kind: ClassVar[str] = "hello"
    settings: bytes


@dataclass(frozen=True)
class Present:
    """Node to server: the client it is, or (client −1) the ``role`` that it has; what the public knows about it."""

    kind: ClassVar[str] = "present"
    client: int
    role: str
    examples: int
    key: bytes
    facts: dict[str, Any]


@dataclass(frozen=True)
class Order:
    """Server to node: train in this round, from the state beside it; ``frame`` is of the transport's protocol.

    ``remembered`` is the round from which the node's memory counts: the last one in which its upload was used; a run
    that is gone on with begins at round ``saved`` or later.
    ``share`` is what the upload counts in a sum, where uploads are weighted before they leave.
    """

    kind: ClassVar[str] = "order"
    settings: bytes
    round: int
    client: int
    cohort: int
    remembered: int
    saved: int
    share: float | None
    frame: bytes


@dataclass(frozen=True)
class Trained:
    """Node to server: what was released, and the upload beside it or in a ``frame`` of the transport's protocol.

    ``loss`` and ``norm`` are there only where a method protects nothing.
    """

    kind: ClassVar[str] = "trained"
    round: int
    client: int
    forgot: bool
    releases: tuple[Made, ...]
    loss: float | None
    norm: float | None
    frame: bytes


@dataclass(frozen=True)
class Invite:
    """Server to node: take a seat in a session of masks."""

    kind: ClassVar[str] = "invite"
    settings: bytes
    session: bytes
    clients: int
    length: int
    seat: int
    server: bytes


@dataclass(frozen=True)
class Frame:
    """Server to node and back: a frame of a transport's own protocol, for this ``stage`` of it."""

    kind: ClassVar[str] = "frame"
    stage: str
    frame: bytes


@dataclass(frozen=True)
class Opening:
    """Server to shuffler: a round begins; what :class:`~fedveil.transport.shuffle.messages.Open` says."""

    kind: ClassVar[str] = "opening"
    open: bytes


@dataclass(frozen=True)
class Opened:
    """Shuffler to server: the key to which clients seal their envelopes for it."""

    kind: ClassVar[str] = "opened"
    key: bytes


@dataclass(frozen=True)
class Keys:
    """Server to client, in the frame of an order: the server's key of this round, and the shuffler's."""

    kind: ClassVar[str] = "keys"
    server: bytes
    shuffler: bytes


@dataclass(frozen=True)
class Envelopes:
    """Server to shuffler: what clients sealed for it, by seat."""

    kind: ClassVar[str] = "envelopes"
    envelopes: dict[int, bytes]


@dataclass(frozen=True)
class Shuffled:
    """Shuffler to server: batches in random order, how many parts came, and how many were left out, by reason."""

    kind: ClassVar[str] = "shuffled"
    batches: tuple[bytes, ...]
    arrived: int
    refused: dict[str, int]


Met = tuple[bytes, bytes]
"""A party's identity, and its key of one meeting."""


@dataclass(frozen=True)
class Meeting:
    """Server to S1, S2 and the key centre: you are about to meet."""

    kind: ClassVar[str] = "meeting"
    role: str
    round: int


@dataclass(frozen=True)
class Here:
    """The answer: who it is."""

    kind: ClassVar[str] = "here"
    met: Met


@dataclass(frozen=True)
class Deal:
    """Server to key centre: keys for this ``plan``; once for each ``session``, sealed anew for whoever meets."""

    kind: ClassVar[str] = "deal"
    session: bytes
    plan: bytes
    entropy: bool
    others: dict[str, Met]


@dataclass(frozen=True)
class Dealt:
    """The answer: what clients encrypt with, signed; what results are read with; a box for each server."""

    kind: ClassVar[str] = "dealt"
    public: bytes
    results: bytes
    signature: bytes
    boxes: dict[str, bytes]


@dataclass(frozen=True)
class Lock:
    """Server to client, in the frame of an order: the public key of uploads as the key centre has signed it."""

    kind: ClassVar[str] = "lock"
    session: bytes
    plan: bytes
    key: bytes
    identity: bytes
    signature: bytes


@dataclass(frozen=True)
class Task:
    """Server to S1, S2 and the key centre: a round's program, and what this party begins with."""

    kind: ClassVar[str] = "task"
    settings: bytes
    round: int
    cohort: int
    others: dict[str, Met]
    keys: bytes
    reference: bytes
    uploads: tuple[bytes, ...]
    memory: bytes


@dataclass(frozen=True)
class Step:
    """Server to party: boxes from others, in order."""

    kind: ClassVar[str] = "step"
    place: int
    boxes: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True)
class Spoken:
    """Party to server: boxes for others; ``done`` with what came of it, or why nothing did."""

    kind: ClassVar[str] = "spoken"
    boxes: tuple[tuple[str, bytes], ...]
    done: bytes | None
    failed: str | None


Words = (
    Hello
    | Present
    | Order
    | Trained
    | Invite
    | Frame
    | Opening
    | Opened
    | Keys
    | Envelopes
    | Shuffled
    | Meeting
    | Here
    | Deal
    | Dealt
    | Lock
    | Task
    | Step
    | Spoken
)
W = TypeVar("W", bound=Words)


def encode(words: Words, tensors: Tensors | None = None) -> RecordDict:
    """A message's content."""
    content: dict[str, Any] = {RECORD: ConfigRecord({"words": pack(words)})}
    if tensors:
        content["tensors"] = ArrayRecord({name: written(value) for name, value in tensors.items()})
    return RecordDict(content)


def decode(
    kind: type[W], content: RecordDict, shapes: Shapes | None = None, limit: int = LONGEST
) -> tuple[W, dict[str, Tensor]]:
    """The inverse; with ``shapes``, exactly these tensors must be there. Everything else is malformed."""
    config = content.config_records.get(RECORD)
    body = None if config is None else config.get("words")
    if not isinstance(body, bytes):
        raise Malformed("no message of FedVeil")
    if len(body) > limit:
        raise Malformed(f"a message of {len(body)} bytes, more than the {limit} that are allowed")
    record = content.array_records.get("tensors")
    arrays = {} if record is None else dict(record)
    if shapes is not None:
        _fits(arrays, shapes)
    tensors = {name: read_tensor(name, array) for name, array in arrays.items()}
    return unpack(kind, body), tensors


def pack(words: Words) -> bytes:
    """The body of a message."""
    body: bytes = msgpack.packb([VERSION, words.kind, [getattr(words, f.name) for f in fields(words)]])
    return body


def unpack(kind: type[W], body: bytes) -> W:
    """The inverse; what has other fields or types is malformed."""
    try:
        raw: Any = msgpack.unpackb(body, use_list=False, strict_map_key=False)
    except (ValueError, TypeError, OverflowError, msgpack.UnpackException):
        raise Malformed("a message that is no msgpack") from None
    if not isinstance(raw, tuple) or len(raw) != 3 or raw[0] != VERSION:
        raise Malformed(f"a message of another version; this is version {VERSION}")
    hints = _hints(kind)
    if raw[1] != kind.kind or not isinstance(raw[2], tuple) or len(raw[2]) != len(hints):
        raise Malformed(f"a message that is no {kind.kind!r}")
    for (name, hint), value in zip(hints.items(), raw[2], strict=True):
        if not _is(value, hint):
            raise Malformed(f"{kind.kind}: {name} has another type than it should")
    return kind(*raw[2])


_known: dict[str, dict[str, Any]] = {}


def _hints(kind: Any) -> dict[str, Any]:
    if kind.kind not in _known:
        hints = typing.get_type_hints(kind)
        _known[kind.kind] = {f.name: hints[f.name] for f in fields(kind)}
    return _known[kind.kind]


def _is(value: object, hint: Any) -> bool:
    """Whether a value that msgpack gave has this type."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return True
    if origin in (typing.Union, types.UnionType):
        return any(_is(value, one) for one in inner)
    if origin is tuple:
        if not isinstance(value, tuple):
            return False
        if inner[1:] == (...,):
            return all(_is(one, inner[0]) for one in value)
        return len(value) == len(inner) and all(map(_is, value, inner))
    if origin is dict:
        return isinstance(value, dict) and all(_is(k, inner[0]) and _is(v, inner[1]) for k, v in value.items())
    if hint is float:
        return type(value) in (float, int)
    return type(value) is hint


def written(value: Tensor) -> Array:
    """A tensor as it travels, and as a node keeps it."""
    flat = value.detach().cpu().contiguous()
    name = _NAMES[flat.dtype]
    if name == "bool":
        data = np.packbits(flat.numpy().reshape(-1), bitorder="little").tobytes()
    else:
        data = flat.numpy().tobytes()
    return Array(dtype=name, shape=tuple(flat.shape), stype=RAW, data=data)


def _fits(arrays: Mapping[str, Array], shapes: Shapes) -> None:
    """Refuse other tensors than these, before any is read."""
    for name in sorted(arrays.keys() ^ shapes.keys()):
        raise Malformed(f"{name}: {'not asked for' if name in arrays else 'missing'}")
    for name, (kind, shape) in shapes.items():
        array = arrays[name]
        if tuple(array.shape) != tuple(shape):
            raise Malformed(f"{name}: shape {tuple(array.shape)} instead of {tuple(shape)}")
        if array.dtype != _NAMES[kind]:
            raise Malformed(f"{name}: numbers of type {array.dtype[:20]} instead of {_NAMES[kind]}")


def read_tensor(name: str, array: Array) -> Tensor:
    """The inverse; what does not have as many bytes as its shape says is malformed."""
    kind, shape = _TYPES.get(array.dtype), tuple(array.shape)
    if array.stype != RAW or kind is None or any(side < 0 for side in shape):
        raise Malformed(f"{name}: no tensor as FedVeil writes them")
    count = prod(shape)
    wanted = -(-count // 8) if kind is torch.bool else count * kind.itemsize
    if len(array.data) != wanted:
        raise Malformed(f"{name}: {len(array.data)} bytes instead of {wanted}")
    if kind is torch.bool:
        bits = np.unpackbits(np.frombuffer(array.data, np.uint8), count=count, bitorder="little")
        return torch.from_numpy(bits.view(np.bool_)).reshape(shape)
    if not count:
        return torch.empty(shape, dtype=kind)
    return torch.frombuffer(bytearray(array.data), dtype=kind).reshape(shape)
