"""Cells on several processes; a group of cells stays with one process, whose accountants remember its curves."""

from __future__ import annotations

import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from itertools import groupby
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from experiments.dp_methods import cell as cells
from experiments.dp_methods.cell import Record
from experiments.dp_methods.grid import Cell

Outcome = tuple[Cell, Record | None, str]
"""A cell with its record, or with the reason why there is none."""


def results(work: Sequence[Cell], jobs: int) -> Iterator[Outcome]:
    """Every cell's outcome, as they come; with one job in this process."""
    if jobs == 1 or len(work) < 2:
        for cell in work:
            record, why = attempt(cell)
            yield cell, record, why
        return
    yield from _Pool(work, min(jobs, len(work))).run()


def attempt(cell: Cell) -> tuple[Record | None, str]:
    """The record of a cell, or why it failed."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return cells.compute(cell), ""
    except Exception:  # whatever it is: reported at the end, and the other cells go on
        return None, traceback.format_exc()
    finally:
        torch.set_num_threads(before)


class _Pool:
    """Hands cells to processes one by one; whoever is idle takes over half of the largest group that is left."""

    def __init__(self, work: Sequence[Cell], jobs: int) -> None:
        self.context = get_context("spawn")
        self.groups = [list(group) for _, group in groupby(work, key=lambda c: c.group)]
        self.groups.reverse()  # taken from the end
        self.jobs = jobs
        self.processes: dict[Connection, Any] = {}
        self.queues: dict[Connection, list[Cell]] = {}
        self.running: dict[Connection, Cell] = {}

    def run(self) -> Iterator[Outcome]:
        try:
            for _ in range(self.jobs):
                self._hire()
            while self.running:
                for ready in wait(list(self.running)):
                    assert isinstance(ready, Connection)
                    cell = self.running.pop(ready)
                    try:
                        record, why = ready.recv()
                    except EOFError:
                        record, why = None, "the process that computed this cell died\n"
                        self._replace(ready)
                    else:
                        self._feed(ready)
                    yield cell, record, why
        finally:
            for process in self.processes.values():
                process.terminate()
            for process in self.processes.values():
                process.join()

    def _hire(self, queue: Sequence[Cell] = ()) -> None:
        ours, theirs = self.context.Pipe()
        process = self.context.Process(target=_work, args=(theirs,), daemon=True)
        process.start()
        theirs.close()
        self.processes[ours], self.queues[ours] = process, list(queue)
        self._feed(ours)

    def _replace(self, dead: Connection) -> None:
        self.processes.pop(dead).join()
        self._hire(self.queues.pop(dead))

    def _feed(self, worker: Connection) -> None:
        if not self.queues[worker]:
            self.queues[worker] = self.groups.pop() if self.groups else self._half()
        if self.queues[worker]:
            self.running[worker] = self.queues[worker].pop(0)
            worker.send(self.running[worker])

    def _half(self) -> list[Cell]:
        longest = max(self.queues.values(), key=len)
        keep = len(longest) // 2
        taken, longest[keep:] = longest[keep:], []
        return taken


def _work(channel: Connection) -> None:
    """Compute what comes until the channel closes; Ctrl-C is the parent's, who then ends this process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # temporary folders are removed on the way out
    while True:
        try:
            cell = channel.recv()
        except EOFError:
            return
        channel.send(attempt(cell))
