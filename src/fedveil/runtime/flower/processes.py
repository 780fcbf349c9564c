"""Everything that a run has started ends with it, whoever its parent is by then."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PATIENCE = 10.0
"""Seconds that processes have to end by themselves, and again after being asked to."""
ADOPT = 36
"""Linux: orphans below this process become its children, instead of getting lost."""

Process = tuple[int, str]
"""Number, and when it began: a number that is used again is another process."""


@contextmanager
def nothing_left() -> Iterator[None]:
    """Afterwards no process is there that was started, directly or not, inside."""
    before = set(_below())
    _adopt(True)
    try:
        yield
    finally:
        left = _ended(before)
        for number in (signal.SIGTERM, signal.SIGKILL):
            for process in left:
                with suppress(ProcessLookupError):
                    os.kill(process[0], number)
            left = left and _ended(before)
        _adopt(False)


def _adopt(wanted: bool) -> None:
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(ADOPT, int(wanted), 0, 0, 0)


def _ended(before: set[Process]) -> set[Process]:
    """Those that are still there when the patience is over."""
    end = time.monotonic() + PATIENCE
    while (left := set(_below()) - before) and time.monotonic() < end:
        for number, _ in left:
            with suppress(ChildProcessError):
                os.waitpid(number, os.WNOHANG)  # the dead leave for good
        time.sleep(0.05)
    return left


def _below() -> Iterator[Process]:
    """All processes below this one."""
    children: dict[int, list[int]] = {}
    begun: dict[int, str] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            number = int(stat.parent.name)
            children.setdefault(int(fields[1]), []).append(number)
            begun[number] = fields[19]
    queue = [os.getpid()]
    while queue:
        for child in children.get(queue.pop(), []):
            queue.append(child)
            yield child, begun[child]
