"""What a person sees while a run goes on."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from fedveil.runtime.folder import Folder
from fedveil.runtime.prepare import Training

LINES = 20
"""Without a terminal, about this many lines are printed over the whole run."""


class Terminal:
    """A live line with round, accuracy, loss and time left; plain lines where there is no terminal."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.bar: Progress | None = None
        self.every = 1
        self.last: dict[str, Any] = {}
        self.recent: deque[float] = deque(maxlen=10)

    def opened(self, training: Training, folder: Folder, done: int, notes: Sequence[str]) -> None:
        """Print what is about to happen and start the bar."""
        for line in (*notes, *training.opening):
            self.console.print(line, highlight=False, soft_wrap=True)
        if done:
            self.console.print(f"going on after round {done}", highlight=False)
        rounds = training.settings.rounds
        self.every = max(1, rounds // LINES)
        self.total = rounds
        if self.console.is_terminal:
            self.bar = Progress(
                TextColumn("round"),
                MofNCompleteColumn(),
                BarColumn(bar_width=24),
                TextColumn("{task.description}"),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(),
                console=self.console,
            )
            self.task = self.bar.add_task("", total=rounds, completed=done)
            self.bar.start()

    def round(self, record: dict[str, Any]) -> None:
        """Show the newest accuracy, loss and (once there is one) epsilon."""
        self.last |= {k: record[k] for k in ("accuracy", "loss", "epsilon") if record.get(k) is not None}
        self.recent.append(record["seconds"])
        words = _words(self.last)
        if record.get("aborted"):
            self.console.print(
                f"round {record['round']} came to nothing: {record['aborted']}", highlight=False, soft_wrap=True
            )
        if self.bar is not None:
            self.bar.update(self.task, completed=record["round"], description=words)
        elif record["round"] % self.every == 0 or record["round"] == self.total:
            left = (self.total - record["round"]) * sum(self.recent) / len(self.recent)
            self.console.print(
                f"round {record['round']}/{self.total}  {words}  {left:.0f} s left",
                highlight=False,
                soft_wrap=True,
            )

    def closed(self, summary: dict[str, Any] | None) -> None:
        """Take the bar away."""
        if self.bar is not None:
            self.bar.stop()


def _words(scores: dict[str, Any]) -> str:
    words = []
    if "accuracy" in scores:
        words.append(f"accuracy {scores['accuracy']:.4f}")
    if "loss" in scores:
        words.append(f"loss {scores['loss']:.4f}")
    if "epsilon" in scores:
        spent = scores["epsilon"]
        budget = "" if spent["budget"] is None else f" of {spent['budget']:g}"
        words.append(f"epsilon {spent['epsilon']:.3f}{budget} ({spent['unit']}, {spent['observer']})")
    return "  ".join(words)


def conclude(console: Console, summary: dict[str, Any], rows: Sequence[Sequence[str]], report: str) -> None:
    """The end of a run: how good, how long, what is proved, and where to read more."""
    accuracy = "" if summary["accuracy"] is None else f"accuracy {summary['accuracy']:.4f}, "
    worst = "" if summary["worst10_accuracy"] is None else f"worst 10 % of clients {summary['worst10_accuracy']:.4f}, "
    loss = "" if summary["loss"] is None else f"loss {summary['loss']:.4f} "
    console.print(
        f"{summary['status']}: {accuracy}{worst}{loss}after {summary['rounds']} rounds in {summary['seconds']:.1f} s",
        highlight=False,
        soft_wrap=True,
    )
    console.print(statement_table(rows, "Privacy statement"))
    console.print(f"report: {report}", highlight=False, soft_wrap=True)


def statement_table(rows: Sequence[Sequence[str]], title: str) -> Table:
    """The rows of a statement, the premises in one column so that they fit a terminal."""
    table = Table(title=title, title_justify="left", box=SIMPLE)
    for head in ("observer", "unit", "epsilon", "delta", "status", "mechanism, sampling, accountant"):
        table.add_column(head, overflow="fold")
    for row in rows:
        premises = [] if row[4] == "none" else [row[5], f"sampling {row[6]}", row[7]]
        table.add_row(*row[:5], "; ".join(premises) or "-")
    return table
