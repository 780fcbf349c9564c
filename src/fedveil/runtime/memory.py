"""What clients remember between rounds: one vector per client that has ever taken part."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class Memory:
    """Rows by client number; a client that never took part remembers zeros, and costs nothing.

    >>> memory = Memory(dim=2, dtype=torch.float32)
    >>> memory.store([5], torch.ones(1, 2))
    >>> memory.gather([4, 5]).tolist()
    [[0.0, 0.0], [1.0, 1.0]]
    """

    def __init__(self, dim: int, dtype: torch.dtype, device: torch.device | str = "cpu") -> None:
        self.dim, self.dtype, self.device = dim, dtype, device
        self.rows: dict[int, Tensor] = {}
        self.changed: set[int] = set()

    def gather(self, clients: Sequence[int]) -> Tensor:
        """The vectors of these clients as ``(clients, dim)``."""
        out = torch.zeros(len(clients), self.dim, dtype=self.dtype, device=self.device)
        for i, client in enumerate(clients):
            if client in self.rows:
                out[i] = self.rows[client]
        return out

    def store(self, clients: Sequence[int], rows: Tensor) -> None:
        """Keep these rows, and note who changed since the last checkpoint."""
        for client, row in zip(clients, rows.clone(), strict=True):
            self.rows[client] = row
        self.changed.update(clients)
