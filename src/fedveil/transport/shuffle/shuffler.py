"""The shuffler: collects a round's parts, forwards them together, in random order, without senders (SPEC 5).

It holds no key: what it sees are senders, positions, lengths and times. It runs in this process, or in one of its own:
``python -m fedveil.transport.shuffle`` reads framed messages from its standard input and answers on its output.
"""

from __future__ import annotations

import atexit
import contextlib
import subprocess
import sys
from collections import Counter
from typing import IO, Protocol

import msgpack

from fedveil.core.errors import Aborted
from fedveil.core.secret import secure_generator
from fedveil.transport.shuffle.messages import (
    CLOSE,
    REPORT,
    VERSION,
    Batch,
    Malformed,
    Open,
    Part,
    read_frame,
    write_frame,
)

ENVELOPE = 64
"""A message is no longer than its sealed part and this many bytes."""


class Shuffling(Protocol):
    """What the round asks of a shuffler, wherever it runs."""

    refused: Counter[str]

    def take(self, sender: int, message: bytes) -> None:
        """A message from this sender."""
        ...

    def release(self) -> list[bytes]:
        """The round is over: batches for the server."""
        ...


class Shuffler:
    """One round of collecting; a message that is not as it should be is left out and counted by its reason.

    Every part about a position has the same length, each sender has one part per position, and a position of which
    fewer than ``least`` parts came is withheld: its reports would hide in too small a crowd.
    """

    def __init__(self, opening: Open) -> None:
        self.opening = opening
        self.held: list[list[bytes]] = [[] for _ in opening.lengths]
        self.seen: set[tuple[int, int]] = set()
        self.refused: Counter[str] = Counter()
        self.limit = max(opening.lengths, default=0) + ENVELOPE

    def take(self, sender: int, message: bytes) -> None:
        """Keep a part, or count why not."""
        try:
            part = Part.decode(message, self.limit)
        except Malformed:
            self.refused["malformed"] += 1
            return
        if part.round != self.opening.round:
            self.refused["another round"] += 1
        elif part.position >= len(self.held):
            self.refused["no such position"] += 1
        elif len(part.sealed) != self.opening.lengths[part.position]:
            self.refused["another length"] += 1
        elif (sender, part.position) in self.seen:
            self.refused["sent twice"] += 1
        else:
            self.seen.add((sender, part.position))
            self.held[part.position].append(part.sealed)

    def release(self) -> list[bytes]:
        """A batch for each position of which enough parts came; forgets the round."""
        rng = secure_generator()
        batches = []
        for position in rng.permutation(len(self.held)).tolist():
            parts = self.held[position]
            if len(parts) >= self.opening.least:
                order = rng.permutation(len(parts)).tolist()
                batches.append(Batch(self.opening.round, position, tuple(parts[i] for i in order)).encode())
            elif parts:
                self.refused["too few"] += len(parts)
        self.held, self.seen = [[] for _ in self.held], set()
        return batches


class Apart:
    """The same shuffler in a process of its own, which shares nothing with the server but its pipes."""

    def __init__(self, opening: Open) -> None:
        self.refused: Counter[str] = Counter()
        self.process = _process()
        self._send(opening.encode())

    def take(self, sender: int, message: bytes) -> None:
        """Hand a message over, under the name that the connection would have."""
        self._send(envelope(sender, message))

    def release(self) -> list[bytes]:
        """Ask for the batches."""
        self._send(CLOSING)
        batches: list[bytes] = []
        try:
            while (frame := read_frame(self._pipe(self.process.stdout))) is not None:
                if not frame.startswith(REPORTING):
                    batches.append(frame)
                    continue
                self.refused.update(Counter(msgpack.unpackb(frame)[2]))
                return batches
        except Malformed:
            raise Aborted(GONE) from None
        raise Aborted(GONE)

    def _send(self, data: bytes) -> None:
        pipe = self._pipe(self.process.stdin)
        try:
            write_frame(pipe, data)
            if data == CLOSING:
                pipe.flush()
        except OSError:
            raise Aborted(GONE) from None

    @staticmethod
    def _pipe(stream: IO[bytes] | None) -> IO[bytes]:
        assert stream is not None
        return stream


GONE = "the shuffler's process has ended; the next round starts another one"
CLOSING = bytes(msgpack.packb([VERSION, CLOSE]))
REPORTING = bytes(msgpack.packb([VERSION, REPORT, {}]))[:-1]
_running: list[subprocess.Popen[bytes]] = []


def _process() -> subprocess.Popen[bytes]:
    """The shuffler's process: one for all rounds, another one if it has ended."""
    if not _running or _running[0].poll() is not None:
        _stop()
        command = [sys.executable, "-m", "fedveil.transport.shuffle"]
        # In a session of its own, so that Ctrl-C reaches the run alone: the shuffler ends with its input.
        pipe = subprocess.PIPE
        _running.append(subprocess.Popen(command, stdin=pipe, stdout=pipe, start_new_session=True))
    return _running[0]


@atexit.register
def _stop() -> None:
    while _running:
        process = _running.pop()
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):
                assert pipe is not None
                pipe.close()
        process.wait()


def envelope(sender: int, message: bytes) -> bytes:
    """A client's message with its sender, as one pipe carries those of all clients."""
    return sender.to_bytes(8, "big") + message


def serve(reader: IO[bytes], writer: IO[bytes]) -> None:
    """Round after round over a pair of streams: an opening, enveloped parts, a closing; then batches and a report."""
    while (first := read_frame(reader)) is not None:
        shuffler = Shuffler(Open.decode(first))
        while (frame := read_frame(reader)) is not None and frame != CLOSING:
            shuffler.take(int.from_bytes(frame[:8], "big"), frame[8:])
        for batch in shuffler.release():
            write_frame(writer, batch)
        write_frame(writer, bytes(msgpack.packb([VERSION, REPORT, dict(shuffler.refused)])))
        writer.flush()
