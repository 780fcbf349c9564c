"""Rules by coordinate: trimmed mean and median (Yin et al. 2018).

Both are means of some of the ordered values of a coordinate. Where one value grows by δ, every ordered value grows or
stays, and together they grow by δ; so the mean of k of them moves by at most δ/k, *whatever the other uploads are*, and
the same holds for l2 norms over all coordinates. That is their sensitivity.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedveil.aggregate.columns import by_columns, matrix, not_finite
from fedveil.aggregate.rule import Rule, check_byzantine, check_enough


def trimmed_mean(x: Tensor, byzantine: int) -> Tensor:
    """In every coordinate the mean without the f smallest and the f largest values; n ≥ 2f + 1.

    >>> import torch
    >>> trimmed_mean(torch.tensor([[1.0], [2.0], [3.0], [100.0], [0.0]]), 1).tolist()
    [2.0]
    """
    x = matrix("trimmed_mean", x)
    check_enough("trimmed_mean", len(x), byzantine, 2 * byzantine + 1)
    if byzantine == 0:
        mean = x.mean(dim=0)
        if not bool(mean.isfinite().all()):
            raise not_finite("trimmed_mean", x)
        return mean
    return by_columns("trimmed_mean", x, lambda s: s[:, byzantine:-byzantine].mean(dim=1))


def median(x: Tensor) -> Tensor:
    """In every coordinate the middle value, or the mean of the two middle ones.

    >>> import torch
    >>> median(torch.tensor([[1.0, 5.0], [2.0, 0.0], [9.0, 1.0], [4.0, 2.0]])).tolist()
    [3.0, 1.5]
    """
    x = matrix("median", x)
    low, high = (len(x) - 1) // 2, len(x) // 2
    if low == high:
        return by_columns("median", x, lambda s: s[:, low])
    return by_columns("median", x, lambda s: s[:, low] / 2 + s[:, high] / 2)


@dataclass(frozen=True)
class TrimmedMean(Rule):
    """In every coordinate the mean without the f smallest and the f largest values."""

    name: ClassVar[str] = "trimmed_mean"

    byzantine: int

    def __post_init__(self) -> None:
        check_byzantine(self.name, self.byzantine)

    def one(self, x: Tensor) -> Tensor:
        """See :func:`trimmed_mean`."""
        return trimmed_mean(x, self.byzantine)

    def sensitivity(self, bound: float, rows: int) -> float:
        """bound/(n − 2f)."""
        return bound / (rows - 2 * self.byzantine)

    def reach(self, rows: int) -> float:
        """√(n/(n − 2f)): a coordinate's square is at most the mean of the squares that are kept."""
        return math.sqrt(rows / (rows - 2 * self.byzantine))


@dataclass(frozen=True)
class Median(Rule):
    """In every coordinate the middle value."""

    name: ClassVar[str] = "median"

    byzantine: int = 0

    def __post_init__(self) -> None:
        check_byzantine(self.name, self.byzantine)

    def one(self, x: Tensor) -> Tensor:
        """See :func:`median`."""
        return median(x)

    def sensitivity(self, bound: float, rows: int) -> float:
        """The whole bound for an odd number of uploads, half of it for an even one."""
        return bound if rows % 2 else bound / 2

    def reach(self, rows: int) -> float:
        """√2: at least half of the uploads have in a coordinate what the median has, or more."""
        return math.sqrt(2)
