"""The geometric median: the point with the least sum of distances to the uploads (Pillutla et al. 2022)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedveil.aggregate.columns import matrix, mix
from fedveil.aggregate.distances import products, to_mixture
from fedveil.aggregate.rule import Rule, check_byzantine

MOST = 1000
"""Steps, at most; each works on an n × n matrix."""
STILL = 1e-8
"""A step shorter than this share of the median distance is the last."""
NEAR = 1e-8
"""Distances below this share of their median count as that, so that the point may stand on an upload."""


def geometric_median(x: Tensor) -> Tensor:
    """argmin_z Σ‖x_i − z‖, by Weiszfeld's steps z ← Σ x_i/‖x_i − z‖ / Σ 1/‖x_i − z‖ until it stands still.

    >>> found = geometric_median(torch.tensor([[0.0, 0.0], [0.0, 0.0], [0.0, 0.0], [9.0, 7.0]]))
    >>> bool(found.norm() < 1e-5)
    True
    """
    x = matrix("geometric_median", x)
    return mix(shares(products("geometric_median", x)), x)


def shares(found: Tensor) -> Tensor:
    """How much of each upload the geometric median holds, from the products of the uploads."""
    n = len(found)
    held = torch.full((n,), 1 / n, dtype=torch.float64, device=found.device)
    for _ in range(MOST):
        far = to_mixture(found, held)
        middle = far.median()
        if not bool(middle > 0):
            return held if not bool(far.any()) else (far == 0).double() / (far == 0).sum()
        pull = 1 / far.clamp_min(NEAR * middle)
        step = pull / pull.sum() - held
        held = held + step
        if bool(step @ found @ step <= (STILL * middle) ** 2):
            break
    return held


@dataclass(frozen=True)
class GeometricMedian(Rule):
    """The point with the least sum of distances to the uploads; fewer than half of them cannot carry it away."""

    name: ClassVar[str] = "geometric_median"
    byzantine: int = 0

    def __post_init__(self) -> None:
        check_byzantine(self.name, self.byzantine)

    def one(self, x: Tensor) -> Tensor:
        """See :func:`geometric_median`."""
        return geometric_median(x)
