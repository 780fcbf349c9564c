"""The clients of the benchmark: random images in the shape of MNIST, so that there is nothing to download."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from fedveil.core.federation import Examples
from fedveil.core.streams import torch_seed

SHAPE = (1, 28, 28)
CLASSES = 10
TEST = 10_000


class People:
    """``population`` clients with ``samples`` examples each; a client's are drawn once and kept.

    >>> people = People(population=3, samples=5)
    >>> people.train(2).x.shape, people.sizes.tolist()
    (torch.Size([5, 1, 28, 28]), [5, 5, 5])
    """

    name = "random images in the shape of MNIST"
    input_shape: tuple[int, ...] = SHAPE
    classes = CLASSES
    private_statistics: str | None = None

    def __init__(self, *, population: int, samples: int, seed: int = 0) -> None:
        self.sizes: np.ndarray[Any, np.dtype[np.int64]] = np.full(population, samples, dtype=np.int64)
        self.seed = seed
        self.test = self._draw(TEST, "test")
        self._kept: dict[int, Examples] = {}

    @property
    def population(self) -> int:
        """Number of clients."""
        return len(self.sizes)

    def train(self, client: int) -> Examples:
        """A client's training examples, the same every time."""
        if client not in self._kept:
            self._kept[client] = self._draw(int(self.sizes[client]), int(client))
        return self._kept[client]

    def holdout(self, client: int) -> Examples:
        """Nothing is held out."""
        return Examples(torch.empty(0, *SHAPE), torch.empty(0, dtype=torch.int64))

    def client_names(self) -> Sequence[str] | None:
        """Nobody has a name."""
        return None

    def label_counts(self) -> np.ndarray[Any, np.dtype[np.int64]] | None:
        """Not counted."""
        return None

    def facts(self) -> Mapping[str, Any]:
        """Where the data comes from."""
        return {"source": self.name, "population": self.population, "samples": int(self.sizes[0])}

    def _draw(self, rows: int, who: str | int) -> Examples:
        generator = torch.Generator().manual_seed(torch_seed(self.seed, "bench", who))
        x = torch.rand(rows, *SHAPE, generator=generator)
        return Examples(x, torch.randint(0, CLASSES, (rows,), generator=generator))
