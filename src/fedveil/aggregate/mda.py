"""Minimum diameter averaging (El Mhamdi et al. 2018): the mean of the n − f uploads that lie closest."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from math import comb
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedveil.aggregate.columns import matrix
from fedveil.aggregate.distances import squared_distances
from fedveil.aggregate.krum import average_of
from fedveil.aggregate.rule import Rule, check_byzantine, check_enough
from fedveil.core.errors import Refused

SUBSETS = 200_000
"""More sets of uploads than this are not tried."""
CHUNK = 4096
"""Sets that are tried at a time."""
TIE = 1e-6
"""Diameters that differ by less than this share are equal."""


def mda(x: Tensor, byzantine: int) -> Tensor:
    """The mean of the n − f uploads whose two farthest are nearest to each other; n ≥ 2f + 1.

    Sets with the same two farthest uploads are common: of those the one with the least sum of squared distances counts.
    All C(n, f) sets are tried, so that more than 200,000 are refused.
    """
    x = matrix("mda", x)
    check_enough("mda", len(x), byzantine, 2 * byzantine + 1)
    check_subsets(len(x), byzantine)
    return average_of(x, closest(squared_distances("mda", x), byzantine))


def check_subsets(rows: int, byzantine: int) -> None:
    """Refuse more sets than can be tried."""
    if rows > byzantine and comb(rows, byzantine) > SUBSETS:
        raise Refused(
            f"declared_f: mda tries every set of uploads, {comb(rows, byzantine):.3g} with {byzantine} attackers among "
            f"{rows}, and at most {SUBSETS:,} are allowed; lower declared_f or cohort, or choose another rule"
        )


def closest(distances: Tensor, byzantine: int) -> Tensor:
    """The rows of the set, from all squared distances."""
    n, device = len(distances), distances.device
    if byzantine == 0:
        return torch.arange(n, device=device)
    table = np.fromiter(
        (row for left_out in combinations(range(n), byzantine) for row in left_out),
        np.int64,
        comb(n, byzantine) * byzantine,
    ).reshape(-1, byzantine)
    left_out = torch.from_numpy(table).to(device)
    first, second = torch.triu_indices(n, n, offset=1, device=device)
    order = distances[first, second].argsort(descending=True)
    first, second = first[order], second[order]
    sorted_pairs = distances[first, second]
    diameters, sums = [], []
    for here in torch.split(left_out, CHUNK):
        kept = torch.ones(len(here), n, dtype=torch.bool, device=device).scatter_(1, here, False)
        farthest = (kept[:, first] & kept[:, second]).to(torch.uint8).argmax(dim=1)
        diameters.append(sorted_pairs[farthest])
        weight = kept.double()
        sums.append(((weight @ distances) * weight).sum(dim=1))
    diameter = torch.cat(diameters)
    tied = diameter <= diameter.min() * (1 + TIE)
    best = int(torch.where(tied, torch.cat(sums), torch.inf).argmin())
    kept = torch.ones(n, dtype=torch.bool, device=device)
    kept[left_out[best]] = False
    return kept.nonzero()[:, 0]


@dataclass(frozen=True)
class Mda(Rule):
    """The mean of the n − f uploads with the smallest diameter."""

    name: ClassVar[str] = "mda"
    byzantine: int

    def __post_init__(self) -> None:
        check_byzantine(self.name, self.byzantine)

    def check(self, rows: int) -> None:
        """Refuse a cohort with too many sets, before anything runs."""
        super().check(rows)
        check_subsets(rows, self.byzantine)

    def one(self, x: Tensor) -> Tensor:
        """See :func:`mda`."""
        return mda(x, self.byzantine)
