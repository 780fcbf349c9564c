"""Which cells there are to compute: a learning rate is found first, on a seed and a partition kept for that."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from experiments.dp_methods.cell import Record
from experiments.dp_methods.grid import Cell, Entry, Schedule, budgets, cell, places

Look = Callable[[Cell], Record | None]


@dataclass(frozen=True)
class Tuned:
    """The learning rate of an entry at a budget, or the cells that are still needed to tell."""

    lr: float | None
    missing: tuple[Cell, ...] = ()
    tried: tuple[float, ...] = ()

    @property
    def at_edge(self) -> bool:
        """Whether the best one is the smallest or the largest that was tried."""
        return self.lr is not None and self.lr in (self.tried[0], self.tried[-1])

    def text(self) -> str:
        """The learning rate as the page shows it."""
        return "–" if self.lr is None else f"{self.lr:g}" + (" (edge)" if self.at_edge else "")


@dataclass(frozen=True)
class Survey:
    """What is there, what can be computed now, and how many cells wait for a learning rate."""

    cells: tuple[Cell, ...]
    wanted: tuple[Cell, ...]
    later: int

    @property
    def done(self) -> int:
        """Cells that are there."""
        return len(self.cells) - len(self.wanted)

    @property
    def total(self) -> int:
        """Cells of the study, as far as is known."""
        return len(self.cells) + self.later


def tune(s: Schedule, entry: Entry, epsilon: float | None, look: Look) -> Tuned:
    """The best learning rate by test accuracy, the smaller of equals; the grid grows while it lies at an edge."""
    tried = sorted(s.lrs)
    for left in range(s.extensions, -1, -1):
        cells = [cell(s, entry, s.tuning_partition, epsilon, lr, s.tuning_seed) for lr in tried]
        records = [look(c) for c in cells]
        missing = tuple(c for c, r in zip(cells, records, strict=True) if r is None)
        if missing:
            return Tuned(None, missing, tuple(tried))
        scores = [-1.0 if r is None or r["status"] == "diverged" else r["accuracy"] for r in records]
        best = scores.index(max(scores))
        if left and best == len(tried) - 1:
            tried.append(tried[-1] * 2)
        elif left and best == 0:
            tried.insert(0, tried[0] / 2)
        else:
            break
    return Tuned(tried[best], (), tuple(tried))


def evaluation(s: Schedule, entry: Entry, epsilon: float | None, lr: float) -> Iterator[Cell]:
    """The cells of an entry at a budget, all partitions and seeds."""
    for partition in places(s, entry):
        for seed in s.seeds:
            yield cell(s, entry, partition, epsilon, lr, seed)


def survey(s: Schedule, entries: Sequence[Entry], look: Look) -> Survey:
    """All cells that can be named now, in groups that share what accountants remember."""
    cells: dict[str, Cell] = {}
    later = 0
    for entry in entries:
        for epsilon in budgets(s, entry):
            found = tune(s, entry, epsilon, look)
            tuning = [cell(s, entry, s.tuning_partition, epsilon, lr, s.tuning_seed) for lr in found.tried]
            cells |= {c.key: c for c in tuning}
            if found.lr is None:
                later += len(places(s, entry)) * len(s.seeds)
            else:
                cells |= {c.key: c for c in evaluation(s, entry, epsilon, found.lr)}
    wanted = sorted((c for c in cells.values() if look(c) is None), key=lambda c: c.group)
    return Survey(tuple(cells.values()), tuple(wanted), later)
