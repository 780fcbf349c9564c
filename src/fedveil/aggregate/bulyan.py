"""Bulyan (El Mhamdi et al. 2018): Krum chooses whom to listen to, and in every coordinate the middle of them counts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedveil.aggregate.columns import by_columns, matrix
from fedveil.aggregate.distances import squared_distances
from fedveil.aggregate.krum import chosen
from fedveil.aggregate.rule import Rule, check_byzantine, check_enough


def bulyan(x: Tensor, byzantine: int) -> Tensor:
    """Of θ = n − 2f uploads, which Krum picks one after another, the mean of the θ − 2f values nearest the median.

    n ≥ 4f + 3, so that Krum has enough to choose from to the last.
    """
    x = matrix("bulyan", x)
    check_enough("bulyan", len(x), byzantine, 4 * byzantine + 3)
    picked = selected(squared_distances("bulyan", x), byzantine)
    return by_columns("bulyan", x[picked], lambda s: nearest_the_median(s, len(picked) - 2 * byzantine))


def selected(distances: Tensor, byzantine: int) -> Tensor:
    """The n − 2f rows that Krum picks, each out of those that are left."""
    left = torch.arange(len(distances), device=distances.device)
    picked = []
    for _ in range(len(distances) - 2 * byzantine):
        among = distances[left[:, None], left[None, :]]
        # The last few picks have too few others left for n − f − 2 neighbours; one is the least that says anything.
        row = chosen(among, min(byzantine, max(len(left) - 3, 0))) if len(left) > 2 else 0
        picked.append(left[row])
        left = torch.cat([left[:row], left[row + 1 :]])
    return torch.stack(picked)


def nearest_the_median(ordered: Tensor, count: int) -> Tensor:
    """The mean of the ``count`` values of each row nearest to its median; rows are in ascending order.

    They stand side by side: of all windows of that length it is the one whose farther end is nearest.
    """
    n = ordered.shape[1]
    middle = (ordered[:, (n - 1) // 2] / 2 + ordered[:, n // 2] / 2)[:, None]
    windows = n - count + 1
    reach = torch.maximum(middle - ordered[:, :windows], ordered[:, count - 1 :] - middle)
    start = reach.argmin(dim=1, keepdim=True)
    place = torch.arange(n, device=ordered.device)[None, :]
    inside = (place >= start) & (place < start + count)
    return torch.where(inside, ordered, 0.0).sum(dim=1) / count


@dataclass(frozen=True)
class Bulyan(Rule):
    """Krum's n − 2f picks, and in every coordinate the mean of the values nearest their median."""

    name: ClassVar[str] = "bulyan"

    byzantine: int

    def __post_init__(self) -> None:
        check_byzantine(self.name, self.byzantine)

    @property
    def least(self) -> int:
        """4f + 3."""
        return 4 * self.byzantine + 3

    def one(self, x: Tensor) -> Tensor:
        """See :func:`bulyan`."""
        return bulyan(x, self.byzantine)

    def reach(self, rows: int) -> float:
        """√((n − 2f)/(n − 4f)): of the picks, so many count in a coordinate."""
        return math.sqrt((rows - 2 * self.byzantine) / (rows - 4 * self.byzantine))
