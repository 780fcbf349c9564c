"""A party's program that is held wherever it has to wait, so that somebody can carry its messages step by step.

Where parties cannot reach each other, and a party's process may be another one at each message, its program cannot
sit and wait. A desk runs it in a thread up to the point where it waits for a message that has not come, and hands over
what it has said so far. A program that draws its randomness from given secrets says and does the same when it is run
again with the same messages: a desk that was lost is replaced by one that is fed them all.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from fedveil.core.errors import Aborted
from fedveil.transport.duo.link import Framed

Frames = Sequence[tuple[str, bytes]]
"""Frames, each with the party that it comes from, or goes to."""


class Desk:
    """``start`` a program that speaks over :meth:`link`, then ``feed`` it; ``failure`` is why it failed."""

    def __init__(self, others: Iterable[str]) -> None:
        self.fed = 0
        self.found: object = None
        self.failure: BaseException | None = None
        self.ended = False
        self._state = threading.Condition()
        self._coming: dict[str, deque[bytes]] = {name: deque() for name in others}
        self._said: list[tuple[str, bytes]] = []
        self._waits: str | None = None
        self._closed = False

    def link(self, other: str) -> Framed:
        """One end of the conversation with another party."""
        return _End(self, other)

    def start(self, program: Callable[[], object]) -> None:
        """Run the program up to where it waits."""

        def run() -> None:
            found, failure = None, None
            try:
                found = program()
            except BaseException as why:
                failure = why
            with self._state:
                self.found, self.failure, self.ended = found, failure, True
                self._state.notify_all()

        threading.Thread(target=run, daemon=True, name="desk").start()
        self._rest()

    def feed(self, frames: Frames) -> None:
        """Hand frames over, by sender, and let the program go on up to where it waits again, or ends."""
        with self._state:
            for sender, frame in frames:
                self._coming[sender].append(frame)
            self.fed += len(frames)
            self._state.notify_all()
        self._rest()

    def said(self, since: int) -> list[tuple[str, bytes]]:
        """What it has said, by receiver, but for the first ones."""
        with self._state:
            return self._said[since:]

    def close(self) -> None:
        """End a program that waits: the others are gone."""
        with self._state:
            self._closed = True
            self._state.notify_all()

    def put(self, other: str, frame: bytes) -> None:
        """Say something."""
        with self._state:
            self._said.append((other, frame))

    def get(self, other: str) -> bytes:
        """The next frame of this sender; the program is held until it comes."""
        with self._state:
            self._waits = other
            self._state.notify_all()
            self._state.wait_for(lambda: self._coming[other] or self._closed)
            self._waits = None
            if not self._coming[other]:
                raise Aborted(f"{other} has left the conversation")
            return self._coming[other].popleft()

    def _rest(self) -> None:
        with self._state:
            self._state.wait_for(lambda: self.ended or (self._waits is not None and not self._coming[self._waits]))


class _End(Framed):
    def __init__(self, desk: Desk, other: str) -> None:
        super().__init__()
        self._desk, self._other = desk, other

    def put(self, frame: bytes) -> None:
        """Hand over one frame."""
        self._desk.put(self._other, frame)

    def get(self) -> bytes:
        """The next frame; :class:`Aborted` if the other is gone."""
        return self._desk.get(self._other)
