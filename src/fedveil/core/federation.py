"""What every room may ask of the data: examples, and who holds them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Examples:
    """Inputs and targets, row by row: ``x`` is ``(n, *input_shape)``, ``y`` is ``(n,)`` class numbers or values."""

    x: Tensor
    y: Tensor

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y):
            raise ValueError(f"Examples: {len(self.x)} inputs but {len(self.y)} targets")

    def __len__(self) -> int:
        return len(self.y)


class Federation(Protocol):
    """A population of clients, each with its own examples, and a test set that belongs to nobody."""

    name: str
    input_shape: tuple[int, ...]
    classes: int
    """Number of classes; 0 when the target is a number."""
    sizes: np.ndarray[Any, np.dtype[np.int64]]
    """Training examples of each client, shape ``(population,)``; public."""
    test: Examples
    """Held out from everybody, the yardstick of a run."""
    private_statistics: str | None
    """Why inputs depend on pooled private statistics (such as a pooled mean), or None if they do not."""

    @property
    def population(self) -> int:
        """Number of clients."""
        ...

    def train(self, client: int) -> Examples:
        """A client's training examples."""
        ...

    def holdout(self, client: int) -> Examples:
        """A client's own held-out examples; may be empty."""
        ...

    def client_names(self) -> Sequence[str] | None:
        """Names of clients where they have any (hospitals)."""
        ...

    def label_counts(self) -> np.ndarray[Any, np.dtype[np.int64]] | None:
        """Training examples per client and class, ``(population, classes)``; None when not known cheaply."""
        ...

    def facts(self) -> Mapping[str, Any]:
        """What the report says about the data: source, sizes, partition and its parameters."""
        ...
