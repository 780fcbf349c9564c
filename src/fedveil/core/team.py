"""Work shared out among threads, each with its share of torch's own threads.

torch splits single operations among threads, which pays for large ones only; whole clients side by side have nothing
to wait for. numpy and torch let other threads run while they compute. Items share no memory that anybody writes to,
so that results do not depend on who worked on which item, or when.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Generic, TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")

_own = threading.local()
_kept: dict[int, ThreadPoolExecutor] = {}
"""The threads of this process, under its number: a process that was forked off has none of them."""


class CalledOff(Exception):
    """The run was interrupted, so that this item is not needed any more."""


def at_work() -> bool:
    """Whether this thread works for others, so that it shares out nothing itself."""
    return getattr(_own, "stop", None) is not None


def go_on() -> None:
    """To be called now and then by long work: ends it where it is not needed any more."""
    if at_work() and _own.stop.is_set():
        raise CalledOff


def hands(items: int) -> int:
    """How many threads share so many items: as many as torch may use (its ``set_num_threads``)."""
    return 1 if at_work() else max(1, min(items, torch.get_num_threads()))


def share_out(work: Callable[[Item, int], Result], items: Sequence[Item]) -> list[Result]:
    """``work(item, hand)`` for each item, in order; ``hand`` counts threads, so that each may have things of its own.

    Items are begun in order. Where one fails, no more are begun, and the failure of the first is raised; an interrupt
    waits for those at work.

    >>> share_out(lambda item, hand: item * item, [1, 2, 3])
    [1, 4, 9]
    """
    count = hands(len(items))
    if count == 1:
        return [work(item, 0) for item in items]
    return _Job(work, items, torch.get_num_threads() // count).done_by(count)


class _Job(Generic[Item, Result]):
    def __init__(self, work: Callable[[Item, int], Result], items: Sequence[Item], threads: int) -> None:
        self.work, self.items, self.threads = work, items, threads
        self.left = iter(range(len(items)))
        self.results: dict[int, Result] = {}
        self.failures: dict[int, BaseException] = {}
        self.stop, self.lock, self.changed = threading.Event(), threading.Lock(), False

    def done_by(self, count: int) -> list[Result]:
        threads = torch.get_num_threads()
        futures: list[Future[None]] = []
        try:
            for hand in range(count):
                futures.append(_threads(count).submit(self.take, hand))
            wait(futures)
        except BaseException:  # Ctrl-C: nobody may still write when the next round begins
            self.stop.set()
            wait(futures)
            raise
        finally:
            if self.changed:  # what a thread sets for itself, threads to come would have as well
                torch.set_num_threads(threads)
        if self.failures:
            raise self.failures[min(self.failures)]
        return [self.results[i] for i in range(len(self.items))]

    def take(self, hand: int) -> None:
        _own.stop = self.stop
        if torch.get_num_threads() != self.threads:
            torch.set_num_threads(self.threads)
            self.changed = True
        try:
            while not self.stop.is_set():
                with self.lock:
                    i = next(self.left, None)
                if i is None:
                    return
                try:
                    self.results[i] = self.work(self.items[i], hand)
                except BaseException as failure:
                    self.failures[i] = failure
                    self.left = iter(())
        finally:
            _own.stop = None


def _threads(count: int) -> ThreadPoolExecutor:
    kept = _kept.get(os.getpid())
    if kept is None or kept._max_workers < count:
        if kept is not None:
            kept.shutdown(wait=False)
        _kept.clear()
        kept = _kept[os.getpid()] = ThreadPoolExecutor(count, thread_name_prefix="fedveil")
    return kept
