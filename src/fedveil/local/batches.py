"""Which examples a client looks at in which step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from fedveil.core.errors import Refused, positive

Indices = np.ndarray[Any, np.dtype[np.int64]]
Drawing = Literal["shuffled", "poisson"]


@dataclass(frozen=True)
class Batching:
    """How a client walks through its examples, ``batch`` of them a step.

    ``shuffled``: an epoch visits every example once (its last batch may be smaller). ``poisson``: each example joins
    each step by itself with rate min(1, batch/n), so that a batch has ``batch`` examples only on average and may be
    empty; this is what private steps are accounted by (SPEC 3.1).

    Exactly one of ``steps`` (the same K for every client) and ``local_epochs`` (K differs with the client's
    size) is set; what runs is always a number of steps (SPEC 0).

    >>> Batching(batch=32, local_epochs=2).steps_for(100)
    8
    """

    batch: int
    steps: int | None = None
    local_epochs: int | None = None
    drawing: Drawing = "shuffled"

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

    def rate(self, examples: int) -> float:
        """The Poisson rate q = min(1, batch/n) of a client with this many examples."""
        return min(1.0, self.batch / examples)

    def batches(self, examples: int, rng: np.random.Generator) -> tuple[Indices, Indices]:
        """Order of visits, and where each step's batch ends in it."""
        steps = self.steps_for(examples)
        if self.drawing == "poisson":
            joins = bernoulli(steps * examples, self.rate(examples), rng)
            return joins % examples, np.searchsorted(joins, np.arange(1, steps + 1) * examples)
        per_epoch = -(-examples // self.batch)
        epochs = -(-steps // per_epoch)
        order = np.concatenate([rng.permutation(examples) for _ in range(epochs)])
        ends = np.minimum(np.arange(1, per_epoch + 1) * self.batch, examples)
        all_ends = (np.arange(epochs)[:, None] * examples + ends[None, :]).reshape(-1)[:steps]
        return order[: all_ends[-1]], all_ends

    def describe(self, sizes: Indices) -> str:
        """One line that says how many steps clients take, for the run's opening lines."""
        low, high = self.steps_for(int(sizes.min())), self.steps_for(int(sizes.max()))
        span = f"{low}" if low == high else f"{low} to {high}"
        each = f"{self.batch} examples" if self.drawing == "shuffled" else f"{self.batch} examples on average (Poisson)"
        if self.local_epochs is None:
            return f"{span} local steps of {each}"
        each = each.removesuffix(" examples")
        return f"{self.local_epochs} local epoch(s) of batches of {each} = {span} steps per client"


def bernoulli(trials: int, rate: float, rng: np.random.Generator) -> Indices:
    """Which of so many independent trials succeed, in order: distances between successes are geometric.

    Ten times fewer numbers are drawn than there are trials, at a rate of a tenth.

    >>> bernoulli(4, 1.0, np.random.default_rng(0)).tolist()
    [0, 1, 2, 3]
    """
    found: list[Indices] = []
    last = -1
    while last < trials:
        expected = (trials - last) * rate
        gaps = rng.geometric(rate, size=int(expected + 4 * expected**0.5) + 2)
        found.append(last + np.cumsum(gaps))
        last = int(found[-1][-1])
    places = np.concatenate(found)
    return places[: np.searchsorted(places, trials)]
