"""Public ranges [c − r, c + r] of each layer: fixed, or learned from what was released (SPEC 5).

A layer is one tensor of the model. An adaptive range never looks at a client: it is computed from the global weights
(``perturb: weights``) or from the last mean move (``perturb: delta``), which everybody has seen already.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedveil.core.errors import Refused, one_of, positive
from fedveil.core.flat import Layout
from fedveil.core.method import DUMMY

Radius = float | list[float]
FASTEST = 2.0
"""A range that is known grows or shrinks by this factor in a round, at most."""
FLOOR = 0.01
"""It never falls below this share of ``radius``."""


@dataclass(frozen=True)
class Ranges:
    """How ranges are found.

    fixed
        the public ``centre`` and ``radius``, one for all layers or one for each.
    adaptive
        c = mean, r = width·√(mean square of v − c, less that of the noise in v), v being the layer of the released
        vector; at first ``radius``, and from then on within a factor of two of the round before.
    """

    kind: Literal["fixed", "adaptive"]
    radius: tuple[float, ...]
    centre: tuple[float, ...] = (0.0,)
    width: float = 3.0

    def __post_init__(self) -> None:
        one_of("range", self.kind, ("fixed", "adaptive"))
        for radius in self.radius:
            positive(radius=radius)
        positive(width=self.width)

    def first(self, layout: Layout) -> tuple[Tensor, Tensor]:
        """The declared centre and radius of each layer."""
        return _each("centre", self.centre, layout), _each("radius", self.radius, layout)

    def next(self, before: Tensor, released: Tensor, noise: float, layout: Layout) -> tuple[Tensor, Tensor]:
        """Centres and radii from a released vector that holds noise of ``noise``·r² in every coordinate."""
        centres, radii = self.about(released, layout, noise * before.square())
        bounded = torch.minimum(torch.maximum(radii, before / FASTEST), before * FASTEST)
        return centres, torch.maximum(bounded, FLOOR * self.first(layout)[1])

    def about(self, released: Tensor, layout: Layout, variance: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and width·spread of each layer, in float64."""
        parts = torch.split(released.double().reshape(-1), list(layout.sizes))
        centres = torch.stack([part.mean() for part in parts])
        squares = torch.stack([part.var(unbiased=False) for part in parts])
        return centres, self.width * (squares - variance).clamp_min(0.0).sqrt()


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
