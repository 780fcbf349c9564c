"""Which examples a client looks at in which step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedveil.core.errors import Refused, positive
from fedveil.core.streams import stream

Indices = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class Batching:
    """Shuffled batches: an epoch visits every example once, in batches of ``batch`` (the last may be smaller).

    Exactly one of ``steps`` (the same K for every client) and ``local_epochs`` (K differs with the client's
    size) is set; what runs is always a number of steps (SPEC 0).

    >>> Batching(batch=32, local_epochs=2).steps_for(100)
    8
    """

    batch: int
    steps: int | None = None
    local_epochs: int | None = None

    def __post_init__(self) -> None:
        positive(batch=self.batch)
        if (self.steps is None) == (self.local_epochs is None):
            raise Refused(
                f"steps, local_epochs: {self.steps} and {self.local_epochs} were given; set exactly one of them"
            )
        positive(**({"steps": self.steps} if self.steps is not None else {"local_epochs": self.local_epochs or 0}))

    def steps_for(self, examples: int) -> int:
        """Number of local steps of a client with this many examples."""
        if self.steps is not None:
            return self.steps
        assert self.local_epochs is not None
        return self.local_epochs * -(-examples // self.batch)

    def batches(self, examples: int, seed: int, round: int, client: int) -> tuple[Indices, Indices]:
        """Order of visits, and where each step's batch ends in it, from the stream of (round, client)."""
        rng = stream(seed, "batches", round, client)
        per_epoch = -(-examples // self.batch)
        steps = self.steps_for(examples)
        epochs = -(-steps // per_epoch)
        order = np.concatenate([rng.permutation(examples) for _ in range(epochs)])
        ends = np.minimum(np.arange(1, per_epoch + 1) * self.batch, examples)
        all_ends = (np.arange(epochs)[:, None] * examples + ends[None, :]).reshape(-1)[:steps]
        return order[: all_ends[-1]], all_ends

    def describe(self, sizes: Indices) -> str:
        """One line that says how many steps clients take, for the run's opening lines."""
        low, high = self.steps_for(int(sizes.min())), self.steps_for(int(sizes.max()))
        span = f"{low}" if low == high else f"{low} to {high}"
        if self.local_epochs is None:
            return f"{span} local steps of {self.batch} examples"
        return f"{self.local_epochs} local epoch(s) of batches of {self.batch} = {span} steps per client"
