"""A conversation between two processes: frames over a socket, begun by a token that only they were given.

Frames leave through a thread of their own, so that both may send long ones at the same time.
"""

from __future__ import annotations

import contextlib
import hmac
import queue
import socket
import struct
import threading

from fedveil.core.errors import Aborted
from fedveil.transport.duo.link import LONGEST, Framed
from fedveil.transport.masks.rejected import Foreign, Oversized

_LENGTH = struct.Struct("<Q")
_PIECE = 1 << 20
TOKEN = 32
"""Bytes of a token."""


class Lost(Aborted):
    """The other party has ended, or is silent for too long."""


class Wire(Framed):
    """One end of a socket; ``name`` is who is at the other end, ``patience`` the seconds that it may be silent."""

    def __init__(self, end: socket.socket, name: str, token: bytes, patience: float | None = None) -> None:
        super().__init__()
        self.name, self._socket = name, end
        self._socket.settimeout(patience)
        self._leaving: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._broken = threading.Event()
        self._writer = threading.Thread(target=self._write, daemon=True)
        self._writer.start()
        self.put(token)
        if not hmac.compare_digest(self.get(), token):
            raise Foreign(f"{name} does not know the token of this session")

    def put(self, frame: bytes) -> None:
        """Hand over one frame."""
        if self._broken.is_set():
            raise Lost(self._gone())
        self._leaving.put(_LENGTH.pack(len(frame)))
        self._leaving.put(frame)

    def get(self) -> bytes:
        """The next frame; :class:`Lost` if the other is gone, or silent for too long."""
        (length,) = _LENGTH.unpack(self._exactly(_LENGTH.size))
        if length > LONGEST:
            raise Oversized(f"a message of {length} bytes")
        return self._exactly(length)

    def close(self) -> None:
        """Send what is waiting, and hang up."""
        self._leaving.put(None)
        self._writer.join(timeout=5)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _write(self) -> None:
        while (data := self._leaving.get()) is not None:
            try:
                self._socket.sendall(data)
            except OSError:
                self._broken.set()
                return

    def _exactly(self, length: int) -> bytes:
        parts, missing = [], length
        while missing:
            try:
                part = self._socket.recv(min(missing, _PIECE))
            except OSError:
                part = b""
            if not part:
                raise Lost(self._gone())
            parts.append(part)
            missing -= len(part)
        return b"".join(parts)

    def _gone(self) -> str:
        return f"{self.name} has ended, or does not answer"
