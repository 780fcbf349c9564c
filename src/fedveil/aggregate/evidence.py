"""What uploads say about an attack: five sums over them, and numbers made of those (SPEC 7.3).

With g_i the uploads, ḡ their mean and d_i = ‖g_i − ḡ‖²: E = Σ‖g_i‖², M = ‖Σ g_i‖², Q = Σ d_i², A = ⟨Σ g_i, r⟩ with
r the previous update, and S = Σ d_i = E − M/n. They are all that a server needs to see, and few enough for one that
computes on ciphertexts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedveil.aggregate.columns import SMALL, matrix, spans
from fedveil.aggregate.distances import squared_distances
from fedveil.core.parts import Opened
from fedveil.core.team import share_out

GRID = 1e-12
"""A spread S below this share of E is rounding: the uploads agree."""
OPENED_GRID = 1e-7
"""The same share where the sums were opened by servers that compute on ciphertexts."""
WIDE = 4096
"""Columns that are summed in float64 at a time."""


@dataclass(frozen=True)
class Sums:
    """E, M, Q and A of n uploads, and the length of r (0: there is no previous update)."""

    n: int
    energy: float
    common: float
    quartic: float
    along: float
    reference: float
    grid: float = GRID

    @property
    def spread(self) -> float:
        """S = E − M/n."""
        return self.energy - self.common / self.n

    @property
    def agree(self) -> bool:
        """Whether the uploads are the same as far as numbers of this kind can tell: calm, whatever else."""
        return self.spread <= self.grid * self.energy or self.quartic <= 0

    @property
    def concentration(self) -> float:
        """D2 = ln n + ln(Q/S²): 0 where all deviate alike, ln n where one client is the whole spread."""
        return 0.0 if self.agree else math.log(self.n) + math.log(self.quartic) - 2 * math.log(self.spread)

    @property
    def size(self) -> float:
        """Ln S."""
        return math.log(self.spread) if not self.agree else -math.inf

    @property
    def coherence(self) -> float:
        """M/(nE): 1 where all uploads are the same, about 1/n where they have nothing in common."""
        return self.common / (self.n * self.energy) if self.energy > 0 else 1.0

    @property
    def direction(self) -> float:
        """The pooled cosine A/(√(nE)·‖r‖) of the uploads with the previous update; 0 without one."""
        length = math.sqrt(self.n * self.energy) * self.reference
        return self.along / length if length > 0 else 0.0


def sums(x: Tensor, previous: Tensor | None = None) -> tuple[Sums, Tensor]:
    """The sums over ``(clients, dim)`` uploads, and d_i of each, in float64."""
    x = matrix("detector", x)
    n = len(x)

    def part(here: slice, _: int) -> Tensor:
        block = x[:, here].double()
        total = block.sum(0)
        r = total.new_zeros(1) if previous is None else previous[here].to(total)
        return torch.cat([block.square().sum(1), block @ total, torch.stack([total @ total, (total * r).sum(), r @ r])])

    parts = spans(x.shape[1], WIDE)
    alone = x.is_cuda or x.numel() < SMALL
    found = torch.stack([part(here, 0) for here in parts] if alone else share_out(part, parts)).sum(0).cpu()
    norms, inner, (common, along, square) = found[:n], found[n : 2 * n], found[2 * n :].tolist()
    deviations = (norms - 2 / n * inner + common / n**2).clamp_min(0.0)
    quartic = float(deviations.square().sum())
    return Sums(n, float(norms.sum()), common, quartic, along, math.sqrt(square)), deviations


def from_opened(opened: Opened, clients: int) -> Sums:
    """The sums E, M, Q, A and R = ‖r‖² as servers opened them (A and R are 0 without a previous update)."""
    e, m, q, a = (opened[name] for name in "EMQA")
    return Sums(clients, e, m, q, a, math.sqrt(max(opened["R"], 0.0)), OPENED_GRID)


def entropy(deviations: Tensor) -> float:
    """H = −Σ p_i ln p_i with p_i = d_i/S; ln n where nothing deviates.

    >>> round(entropy(torch.ones(10)), 3) == round(math.log(10), 3)
    True
    """
    total = deviations.sum()
    if bool(total == 0):
        return math.log(len(deviations))
    return float(torch.special.entr(deviations.double() / total).sum())


def nearest(x: Tensor) -> float:
    """The least distance between two uploads, as a share of the mean one; colluding copies bring it to 0."""
    distances = squared_distances("detector", x).sqrt()
    n = len(x)
    if n < 2 or not bool(distances.sum() > 0):
        return 1.0
    mean = distances.sum() / (n * (n - 1))
    return float(distances.fill_diagonal_(math.inf).min() / mean)
