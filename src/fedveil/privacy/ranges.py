"""Public ranges [c − r, c + r] of each layer: fixed, or learned from what was released (SPEC 5).

A layer is one tensor of the model. An adaptive range never looks at a client: it is computed from the global weights,
which everybody has seen already.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedveil.core.errors import Refused, one_of, positive
from fedveil.core.flat import Layout
from fedveil.core.method import DUMMY

Radius = float | list[float]
FASTEST = 2.0
"""A range of weights grows or shrinks by this factor in a round, at most."""
FLOOR = 0.1
"""A range never falls below this share of the declared radius."""


@dataclass(frozen=True)
class Ranges:
    """How ranges are found; every radius is multiplied by ``decay`` after each round.

    fixed
        the public ``centre`` and ``radius``, one for all layers or one for each.
    adaptive
        from the spread of each layer of the global weights: ``width`` times as much, and never below a tenth of
        ``radius``. The noise that the last round left in whole weights is taken out first.
    """

    kind: Literal["fixed", "adaptive"]
    radius: tuple[float, ...]
    centre: tuple[float, ...] = (0.0,)
    width: float = 0.5
    decay: float = 1.0

    def __post_init__(self) -> None:
        one_of("range", self.kind, ("fixed", "adaptive"))
        for radius in self.radius:
            positive(radius=radius)
        for centre in self.centre:
            if not math.isfinite(centre):
                raise Refused(f"centre: {centre} is no number; give the middle of the range")
        positive(width=self.width)
        if not 0 < self.decay <= 1:
            raise Refused(f"decay: {self.decay} is not a factor by which ranges shrink; give more than 0, at most 1")

    def declared(self, layout: Layout) -> tuple[Tensor, Tensor]:
        """The declared centre and radius of each layer, before any decay."""
        return _each("centre", self.centre, layout), _each("radius", self.radius, layout)

    def shrunk(self, radii: Tensor, round: int) -> Tensor:
        """Radii as they are in this round; rounds count from 1."""
        return radii * self.decay ** max(0, round - 1)

    def of_moves(self, weights: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
        """Around zero, as wide as ``width`` deviations of the layer's weights."""
        _, spread = about(weights, layout)
        return torch.zeros_like(spread), self._least(self.width * spread, layout)

    def of_weights(self, weights: Tensor, layout: Layout, before: Tensor, noise: float) -> tuple[Tensor, Tensor]:
        """Around the layer's mean, ``width`` deviations wide; ``weights`` hold noise of variance ``noise``·before².

        Where no radius was used ``before`` (an empty tensor), the weights are initial ones without noise.
        """
        centre, spread = about(weights, layout)
        if not len(before):
            return centre, torch.maximum(self.width * spread, self.declared(layout)[1])
        radii = self.width * (spread.square() - noise * before.square()).clamp_min(0.0).sqrt()
        return centre, self._least(torch.minimum(torch.maximum(radii, before / FASTEST), before * FASTEST), layout)

    def _least(self, radii: Tensor, layout: Layout) -> Tensor:
        return torch.maximum(radii, FLOOR * self.declared(layout)[1])


def about(released: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
    """Mean and deviation of each layer, in float64."""
    parts = torch.split(released.double().reshape(-1).cpu(), list(layout.sizes))
    return torch.stack([p.mean() for p in parts]), torch.stack([p.std(correction=0) for p in parts])


def spread_out(by_layer: Tensor, layout: Layout) -> Tensor:
    """A number per layer as one per weight, shape (1, dim)."""
    return torch.repeat_interleave(by_layer, torch.tensor(layout.sizes, device=by_layer.device))[None, :]


def _each(setting: str, values: tuple[float, ...], layout: Layout) -> Tensor:
    if layout is DUMMY:  # a rehearsal before the model is known
        values = values[:1]
    if len(values) not in (1, len(layout.names)):
        raise Refused(
            f"{setting}: {len(values)} numbers for the {len(layout.names)} tensors of the model "
            f"({', '.join(layout.names)}); give one number, or one for each"
        )
    return torch.tensor(values, dtype=torch.float64).expand(len(layout.names)).clone()
