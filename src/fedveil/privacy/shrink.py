"""James-Stein shrinkage: less error for free, after the noise (SPEC 3.2).

For x = θ + noise of variance v per coordinate in m ≥ 3 dimensions, JS⁺(x) = max(0, 1 − (m−2)·v/‖x‖²)·x has a smaller
mean squared error than x for every θ (James and Stein 1961; Baranchik 1964 for the positive part). It reads nothing but
a released value and public facts, so it costs no privacy (Balle and Wang 2018 denoise the same way).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor

from fedveil.core.errors import Refused, one_of
from fedveil.core.flat import Layout
from fedveil.core.signal import Signal
from fedveil.core.stage import Context, Replay

Scope = Literal["layer", "model"]
Target = Literal["zero", "previous"]
LEAST = 10
"""A layer shorter than this is shrunk together with its neighbour."""


@lru_cache(maxsize=64)
def blocks(layout: Layout, scope: Scope) -> tuple[int, ...]:
    """Lengths of the parts that are shrunk by themselves: layers, short ones merged with a neighbour, or everything.

    >>> blocks(Layout(("weight", "bias", "head"), ((20, 3), (3,), (40,))), "layer")
    (63, 40)
    """
    if scope == "model" or not layout.sizes:
        return (layout.dim,)
    merged: list[int] = []
    for size in layout.sizes:
        if merged and min(merged[-1], size) < LEAST:
            merged[-1] += size
        else:
            merged.append(size)
    return tuple(merged)


def factors(squares: Tensor, m: Tensor, variance: Tensor) -> Tensor:
    """max(0, 1 − (m−2)·v/‖x‖²), and 1 where m < 3: from squared norms and lengths of blocks.

    >>> factors(torch.tensor([[40.0, 1.0, 4.0]]), torch.tensor([[12, 12, 2]]), torch.tensor([[1.0]])).tolist()
    [[0.75, 0.0, 1.0]]
    """
    noise = (m - 2).clamp_min(0) * variance
    return torch.where(squares > noise, 1 - noise / squares.clamp_min(torch.finfo(squares.dtype).tiny), 0.0).where(
        (m >= 3) & (variance > 0), 1.0
    )


@lru_cache(maxsize=64)
def _on(lengths: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor(lengths, device=device)


@dataclass(frozen=True)
class Shrink:
    """JS⁺ on every row: by layer, or on the whole vector (then it is no more than a step size).

    The variance is the signal's own ``noise_var``, so it is right at whatever station this stands. ``target`` zero
    shrinks towards what is public of the signal (the drift correction inside a move; mostly nothing), ``previous``
    towards the data's part of the last released mean move on top of that. The result's variance is unknown: it cannot
    be shrunk twice.
    The defaults are those that docs/results/dp-methods.md found best where shrinkage stands beside noisy steps.
    """

    scope: Scope = "model"
    target: Target = "previous"

    def __post_init__(self) -> None:
        one_of("shrink.scope", self.scope, ("layer", "model"))
        one_of("shrink.target", self.target, ("zero", "previous"))

    @property
    def looks_back(self) -> bool:
        """Whether it asks for the mean move of the last round."""
        return self.target == "previous"

    @property
    def replay(self) -> Replay:
        """Sums and products."""
        return "quiet"

    def __call__(self, signal: Signal, ctx: Context) -> Signal:
        """All rows at once, in float64."""
        if not signal.released:
            raise Refused("shrink: the signal holds no noise that a mechanism added; put it after the noise")
        if signal.noise_var is None:
            raise Refused(
                "shrink: the variance of the noise inside is unknown here (a clip, a robust rule or a shrink before)"
            )
        value = signal.value.double()
        variance = torch.as_tensor(signal.noise_var, dtype=torch.float64, device=value.device).reshape(-1, 1)
        if variance.shape[0] not in (1, signal.rows):
            raise Refused("shrink: the noise differs from coordinate to coordinate; give all of a row the same")
        centre = self._centre(signal, ctx)
        rest = value - centre
        lengths = blocks(ctx.layout, self.scope) if ctx.layout.dim == signal.dim else (signal.dim,)
        parts = torch.split(rest, list(lengths), dim=1)
        squares = torch.stack([part.square().sum(dim=1) for part in parts], dim=1)
        m = _on(lengths, value.device)
        kept = torch.repeat_interleave(factors(squares, m, variance), m, dim=1, output_size=signal.dim)
        shrunk = rest.mul_(kept).add_(centre).to(signal.value.dtype)
        return replace(signal, value=shrunk, noise_var=None)

    def _centre(self, signal: Signal, ctx: Context) -> Tensor | float:
        if self.target == "zero" or ctx.previous is None:
            return signal.public
        return signal.public + ctx.previous.double()


def shrink(*, scope: Scope = "model", target: Target = "previous") -> Shrink:
    """James-Stein shrinkage of released values."""
    return Shrink(scope, target)
