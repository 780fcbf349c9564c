"""Krum and multi-Krum (Blanchard et al. 2017): uploads that lie near to many others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedveil.aggregate.columns import matrix, mix
from fedveil.aggregate.distances import squared_distances
from fedveil.aggregate.rule import Rule, check_byzantine, check_enough
from fedveil.core.errors import Refused

TIE = 1e-6
"""Scores that differ by less than this share are equal; then the sum of all distances decides."""


def scores(distances: Tensor, byzantine: int) -> Tensor:
    """The sum of the squared distances to the n − f − 2 nearest others (SPEC 7.4), from ``(clients, clients)``."""
    others = distances.clone().fill_diagonal_(torch.inf)
    return others.topk(len(others) - byzantine - 2, dim=1, largest=False).values.sum(dim=1)


def chosen(distances: Tensor, byzantine: int) -> int:
    """The row with the least score.

    With one neighbour two rows always share the least score, so that ties are no accident.
    """
    found = scores(distances, byzantine)
    tied = found <= found.min() * (1 + TIE)
    return int(torch.where(tied, distances.sum(dim=1), torch.inf).argmin())


def krum(x: Tensor, byzantine: int) -> Tensor:
    """The upload with the least sum of squared distances to its n − f − 2 nearest others; n ≥ 2f + 3."""
    x = matrix("krum", x)
    check_enough("krum", len(x), byzantine, 2 * byzantine + 3)
    return x[chosen(squared_distances("krum", x), byzantine)].clone()


def multi_krum(x: Tensor, byzantine: int, keep: int | None = None) -> Tensor:
    """The mean of the ``keep`` (n − f) uploads with the least scores; n ≥ 2f + 3."""
    x = matrix("multi_krum", x)
    check_enough("multi_krum", len(x), byzantine, 2 * byzantine + 3)
    found = scores(squared_distances("multi_krum", x), byzantine)
    count = len(x) - byzantine if keep is None else min(keep, len(x))
    return average_of(x, found.topk(count, largest=False).indices)


def average_of(x: Tensor, rows: Tensor) -> Tensor:
    """The mean of these rows."""
    shares = torch.zeros(len(x), dtype=torch.float64, device=x.device)
    shares[rows] = 1 / len(rows)
    return mix(shares, x)


@dataclass(frozen=True)
class Krum(Rule):
    """The upload that lies nearest to its n − f − 2 nearest others."""

    name: ClassVar[str] = "krum"

    byzantine: int

    def __post_init__(self) -> None:
        check_byzantine(self.name, self.byzantine)

    @property
    def least(self) -> int:
        """2f + 3."""
        return 2 * self.byzantine + 3

    def one(self, x: Tensor) -> Tensor:
        """See :func:`krum`."""
        return krum(x, self.byzantine)


@dataclass(frozen=True)
class MultiKrum(Rule):
    """The mean of the ``keep`` uploads with the least Krum scores (None: n − f)."""

    name: ClassVar[str] = "multi_krum"

    byzantine: int
    keep: int | None = None

    def __post_init__(self) -> None:
        check_byzantine(self.name, self.byzantine)
        if self.keep is not None and self.keep < 1:
            raise Refused(f"aggregate.keep: {self.keep} uploads make no mean; give 1 or more")

    @property
    def least(self) -> int:
        """2f + 3."""
        return 2 * self.byzantine + 3

    def check(self, rows: int) -> None:
        """Refuse to average more than those that may be honest."""
        super().check(rows)
        if self.keep is not None and self.keep > rows - self.byzantine:
            raise Refused(
                f"aggregate.keep: of {rows} uploads {self.byzantine} may be attackers', and {self.keep} are to be "
                f"averaged; give at most {rows - self.byzantine}, or lower declared_f"
            )

    def one(self, x: Tensor) -> Tensor:
        """See :func:`multi_krum`."""
        return multi_krum(x, self.byzantine, self.keep)
