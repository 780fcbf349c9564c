"""What two parties say to each other, and what either gets to see (SPEC 7.6).

A party's program is ordinary sequential code against a :class:`Link`. Every message has a kind and a place in the
conversation; one of another kind, or out of place, is :class:`~fedveil.transport.masks.rejected.Malformed`. Kinds say
how a body is protected: ``masked`` (uniform to whoever receives it), ``cipher`` (a ciphertext), ``reveal:NAME`` (a
share of a value that is opened under this name), ``tell:NAME`` (said in the clear). A program calls ``opened`` for all
it sees in the clear, so that what a run leaked is read off its record.
"""

from __future__ import annotations

import queue
import struct
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from fedveil.core.errors import Aborted
from fedveil.transport.masks.rejected import Malformed, Oversized

A = TypeVar("A")
B = TypeVar("B")

_HEAD = struct.Struct("<4sIHQ")
_MAGIC = b"FVD1"
LONGEST = 1 << 34
"""Bytes of the longest message that is read."""


@dataclass
class Opened:
    """What one party got to see in the clear, in order."""

    values: list[tuple[str, object]] = field(default_factory=list)

    def names(self) -> list[str]:
        """The names, each once, in the order of their first time."""
        return list(dict.fromkeys(name for name, _ in self.values))


@dataclass
class Traffic:
    """Messages and bytes sent and received, by kind."""

    sent: Counter[str] = field(default_factory=Counter)
    received: Counter[str] = field(default_factory=Counter)
    messages: int = 0

    @property
    def bytes(self) -> int:
        """All bytes, in both directions."""
        return self.sent.total() + self.received.total()


class Link(Protocol):
    """One party's end of a conversation."""

    record: Opened
    traffic: Traffic

    def send(self, kind: str, body: bytes) -> None:
        """Say something."""

    def receive(self, kind: str) -> bytes:
        """What the other says next, which must be of this kind."""

    def opened(self, name: str, value: object) -> None:
        """Note what this party now knows."""


class Framed(ABC):
    """A link over anything that carries frames of bytes in order: subclasses give ``put`` and ``get``."""

    def __init__(self) -> None:
        self.record, self.traffic = Opened(), Traffic()
        self._sent = self._received = 0

    @abstractmethod
    def put(self, frame: bytes) -> None:
        """Hand over one frame."""

    @abstractmethod
    def get(self) -> bytes:
        """The next frame; :class:`Aborted` if the other is gone."""

    def send(self, kind: str, body: bytes) -> None:
        """Say something."""
        name = kind.encode()
        self.put(_HEAD.pack(_MAGIC, self._sent, len(name), len(body)) + name + body)
        self._sent += 1
        self.traffic.messages += 1
        self.traffic.sent[kind] += len(body)

    def receive(self, kind: str) -> bytes:
        """What the other says next, which must be of this kind."""
        frame = self.get()
        if len(frame) > LONGEST:
            raise Oversized(f"a message of {len(frame)} bytes")
        if len(frame) < _HEAD.size:
            raise Malformed("a message without a header")
        magic, place, named, size = _HEAD.unpack_from(frame)
        start = _HEAD.size + named
        if magic != _MAGIC or len(frame) != start + size:
            raise Malformed("a message that is not of this protocol, or cut short")
        said = frame[_HEAD.size : start].decode("utf-8", "replace")
        if place != self._received or said != kind:
            raise Malformed(f"message {place} of kind {said!r}, but number {self._received}, {kind!r}, was expected")
        self._received += 1
        self.traffic.messages += 1
        self.traffic.received[kind] += size
        return frame[start:]

    def opened(self, name: str, value: object) -> None:
        """Note what this party now knows."""
        self.record.values.append((name, value))


class InProcess(Framed):
    """An end of a pair of queues between two threads."""

    def __init__(self, out: queue.SimpleQueue[bytes | None], back: queue.SimpleQueue[bytes | None]) -> None:
        super().__init__()
        self._out, self._back = out, back

    def put(self, frame: bytes) -> None:
        """Hand over one frame."""
        self._out.put(frame)

    def get(self) -> bytes:
        """The next frame; :class:`Aborted` if the other is gone."""
        frame = self._back.get()
        if frame is None:
            raise Aborted("the other server has left the conversation")
        return frame

    def close(self) -> None:
        """Tell the other that no more comes."""
        self._out.put(None)


def pair() -> tuple[InProcess, InProcess]:
    """Two ends of one conversation in a process."""
    there: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    back: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    return InProcess(there, back), InProcess(back, there)


def together(first: Callable[[], A], second: Callable[[], B], ends: tuple[InProcess, InProcess]) -> tuple[A, B]:
    """Run two programs at once, each in a thread; where one fails the other is told, and its error is raised."""
    found: list[object] = [None, None]
    failures: list[tuple[float, BaseException]] = []

    def run(place: int, program: Callable[[], object]) -> None:
        try:
            found[place] = program()
        except BaseException as why:
            failures.append((time.monotonic(), why))
            ends[place].close()

    thread = threading.Thread(target=run, args=(1, second), name="S2")
    thread.start()
    run(0, first)
    thread.join()
    if failures:
        raise min(failures, key=lambda f: f[0])[1]
    return found[0], found[1]  # type: ignore[return-value]
