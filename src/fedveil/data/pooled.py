"""A federation held in memory, client after client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedveil.core.federation import Examples
from fedveil.data.raw import IntArray


@dataclass(eq=False, kw_only=True)
class Pooled:
    """A federation whose rows lie client after client, so that a client's examples are a view, never a copy.

    ``pool`` holds the training rows of all clients, client ``k`` those from ``starts[k]`` up to ``starts[k +
    1]``; ``kept`` and ``kept_starts`` are the same for the rows that clients hold out.
    """

    name: str
    input_shape: tuple[int, ...]
    classes: int
    sizes: IntArray
    test: Examples
    private_statistics: str | None
    pool: Examples = field(repr=False)
    starts: IntArray = field(repr=False)
    kept: Examples = field(repr=False)
    kept_starts: IntArray = field(repr=False)
    names: tuple[str, ...] | None = None
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def population(self) -> int:
        """Number of clients."""
        return len(self.sizes)

    def train(self, client: int) -> Examples:
        """A client's training examples, as views."""
        return _slice(self.pool, self.starts, client)

    def holdout(self, client: int) -> Examples:
        """A client's own held-out examples, as views; may be empty."""
        return _slice(self.kept, self.kept_starts, client)

    def client_names(self) -> Sequence[str] | None:
        """Names of natural clients."""
        return self.names

    def label_counts(self) -> IntArray | None:
        """Training examples per client and class; None for a regression."""
        if self.classes == 0:
            return None
        owner = np.repeat(np.arange(self.population), self.sizes)
        cells = np.bincount(owner * self.classes + self.pool.y.numpy(), minlength=self.population * self.classes)
        return cells.reshape(self.population, self.classes)

    def facts(self) -> Mapping[str, Any]:
        """Source, sizes, partition and its parameters."""
        return self.about


def _slice(pool: Examples, starts: IntArray, client: int) -> Examples:
    if not 0 <= client < len(starts) - 1:
        raise IndexError(f"client {client} does not exist; clients are numbered 0 to {len(starts) - 2}")
    rows = slice(int(starts[client]), int(starts[client + 1]))
    return Examples(pool.x[rows], pool.y[rows])
