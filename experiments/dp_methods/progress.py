"""How far the study is: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from experiments.dp_methods.cell import Record
from experiments.dp_methods.grid import Cell


class Display:
    """Cells done of all, the time left at the pace so far, and the last accuracy."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.started = time.perf_counter()
        self.computed = 0
        self.bar: Progress | None = None
        if console.is_terminal:
            columns = TextColumn("{task.fields[left]}"), TextColumn("{task.description}")
            self.bar = Progress(BarColumn(30), MofNCompleteColumn(), *columns, console=console)
            self.task = self.bar.add_task("", total=None, left="")

    def __enter__(self) -> Display:
        if self.bar is not None:
            self.bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: object, trace: TracebackType | None) -> None:
        if self.bar is not None:
            self.bar.stop()

    @property
    def seconds(self) -> float:
        """Since the start."""
        return time.perf_counter() - self.started

    def begin(self, done: int, total: int) -> None:
        """So many cells are there already."""
        self.console.print(f"{done} of about {total} cells are there", highlight=False)
        if self.bar is not None:
            self.bar.update(self.task, completed=done, total=total)

    def cell(self, cell: Cell, record: Record | None, done: int, total: int) -> None:
        """A cell has ended."""
        self.computed += 1
        left = f"{duration(self.seconds / self.computed * (total - done))} left"
        result = "FAILED" if record is None else record["status"]
        if record is not None and record["accuracy"] is not None:
            result = f"{100 * record['accuracy']:.1f} %"
        text = f"{cell}: {result}"
        if self.bar is not None:
            self.bar.update(self.task, completed=done, total=total, left=left, description=text)
        else:
            self.console.print(f"[{done}/{total}] {text} ({left})", highlight=False, markup=False, soft_wrap=True)


def duration(seconds: float) -> str:
    """Seconds in words.

    >>> duration(42), duration(600), duration(9000)
    ('42 s', '10 min', '2 h 30 min')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"
