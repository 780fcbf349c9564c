"""The steps of several clients side by side, and the examples they look at."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedveil.core.federation import Federation
from fedveil.local.batches import Indices

POOL = 2**30
"""Training examples of up to this many bytes are kept on the device between rounds."""


@dataclass(frozen=True, eq=False)
class Marks:
    """Which examples of a step are real, on the device: batches are padded to the same ``width``.

    ``counts`` says how many of each client's batch are real, ``real`` (clients · width) which (None: all), and
    ``empty`` whose batch has none (None: nobody's). Where a step must read nothing back, it notes in ``broken`` that
    a norm was not finite.
    """

    counts: Tensor
    width: int
    real: Tensor | None = None
    empty: Tensor | None = None
    broken: Tensor | None = None

    @classmethod
    def padded(cls, counts: Tensor, width: int, broken: Tensor | None = None) -> Marks:
        """Marks that are right whatever the counts are."""
        real = (torch.arange(width, device=counts.device) < counts[:, None]).view(-1)
        return cls(counts, width, real, counts == 0, broken)

    def only_real(self, values: Tensor) -> Tensor:
        """The values of real examples; zero elsewhere."""
        return values if self.real is None else torch.where(self.real, values, 0.0)


@dataclass(frozen=True, eq=False)
class Step:
    """One step of the first ``len(counts)`` clients; each batch is padded to the largest with its own first example.

    ``rows`` (clients · width) are positions of examples, ``counts`` says how many of each batch are real.
    """

    rows: Indices
    counts: Indices
    width: int

    def marks(self, device: torch.device) -> Marks:
        """The same facts on a device."""
        counts = torch.from_numpy(self.counts).to(device)
        if (self.counts == self.width).all():
            return Marks(counts, self.width)
        found = Marks.padded(counts, self.width)
        return replace(found, empty=None) if self.counts.all() else found


def in_order(walks: Sequence[tuple[Indices, Indices]]) -> list[int]:
    """Clients by number of steps, longest first; equal ones stay as they are."""
    return sorted(range(len(walks)), key=lambda i: -len(walks[i][1]))


def side_by_side(walks: Sequence[tuple[Indices, Indices]], starts: Sequence[int]) -> Iterator[Step]:
    """The steps of clients who are in order, each with its visits, its ends, and where its examples start."""
    # One more visit at each end, so that an empty batch has an example to be padded with.
    visits = np.concatenate([np.append(order, 0) + start for (order, _), start in zip(walks, starts, strict=True)])
    offsets = np.cumsum([0] + [len(order) + 1 for order, _ in walks[:-1]])
    lengths = np.array([len(ends) for _, ends in walks])
    longest = int(lengths.max())
    table = np.zeros((len(walks), longest + 1), dtype=np.int64)
    for i, (_, ends) in enumerate(walks):
        table[i, 1 : len(ends) + 1] = ends
    for t in range(longest):
        n = int(np.count_nonzero(lengths > t))
        begins, counts = table[:n, t], table[:n, t + 1] - table[:n, t]
        width = int(counts.max())
        columns = np.arange(width)
        within = np.where(columns < counts[:, None], columns, 0)
        yield Step(visits[((offsets[:n] + begins)[:, None] + within).reshape(-1)], counts, width)


Take = Callable[[Step], tuple[Tensor, Tensor]]
"""The examples of a step, client after client."""


class Pool:
    """Examples in the number format of the model.

    On another device all are kept there while they fit, where each client's start is known. In main memory each client
    is asked for its own, so that memory does not grow with the population.
    """

    def __init__(self, federation: Federation, like: Tensor) -> None:
        self.federation, self.like = federation, like
        self._kept: tuple[Tensor, Tensor] | None = None
        self._starts: np.ndarray[Any, Any] = np.concatenate([[0], np.cumsum(federation.sizes)])

    def of(self, clients: Sequence[int]) -> tuple[Tensor, Tensor, list[int]]:
        """Inputs and targets that hold the examples of these clients, and where each client's start."""
        if self._kept is None and self.stays:
            self._kept = self._gather(range(self.federation.population))
        if self._kept is not None:
            return *self._kept, [int(self._starts[k]) for k in clients]
        starts = np.cumsum([0] + [int(self.federation.sizes[k]) for k in clients[:-1]])
        return *self._gather(clients), starts.tolist()

    def apart(self, clients: Sequence[int]) -> Take:
        """Examples of these clients, whose steps count positions from each client's own first."""
        own = [self.federation.train(k) for k in clients]
        xs, ys = [self._placed(e.x) for e in own], self._placed(torch.cat([e.y for e in own]))
        starts = np.cumsum([0] + [len(x) for x in xs[:-1]])[:, None]
        room: list[Tensor] = []

        def take(step: Step) -> tuple[Tensor, Tensor]:
            n, rows = len(step.counts), torch.from_numpy(step.rows)
            if not room or len(room[0]) < len(rows):
                room[:] = [xs[0].new_empty(len(rows), *xs[0].shape[1:])]
            x = room[0][: len(rows)]
            for values, index, place in zip(
                xs, torch.split(rows, step.width), torch.split(x, step.width), strict=False
            ):
                torch.index_select(values, 0, index, out=place)
            return x, ys.index_select(0, torch.from_numpy((step.rows.reshape(n, -1) + starts[:n]).reshape(-1)))

        return take

    @cached_property
    def stays(self) -> bool:
        """Whether all examples stay on the device."""
        one = self.federation.train(0).x
        return int(self._starts[-1]) * one[0].numel() * self.like.element_size() <= POOL

    def _gather(self, clients: Sequence[int]) -> tuple[Tensor, Tensor]:
        parts = [self.federation.train(k) for k in clients]
        return tuple(self._placed(torch.cat(values)) for values in ([p.x for p in parts], [p.y for p in parts]))  # type: ignore[return-value]

    def _placed(self, values: Tensor) -> Tensor:
        return values.to(self.like.device, self.like.dtype if values.is_floating_point() else None)
