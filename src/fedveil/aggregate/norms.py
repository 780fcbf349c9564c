"""Lengths of uploads, in one pass over them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fedveil.aggregate.columns import SMALL, matrix, spans
from fedveil.core.team import share_out

WIDE = 2048
"""Columns that are squared at a time."""
ROUGH = 2e-5
"""More than the relative error of norms that were squared in float32: 2,048 squares are added in 16 lanes or more."""


def clip_norms(x: Tensor, bound: float) -> Tensor:
    """Rows no longer than ``bound``; a shorter one stays as it is, one that is not finite becomes zero.

    A row that is too long is scaled to just below the bound, so that rounding cannot carry it over. Of large float32
    matrices only the rows near the bound are measured in float64.
    """
    x = matrix("norm_bound", x)
    below: Tensor | float = 1 - 4 * torch.finfo(x.dtype).eps
    if x.dtype == torch.float64 or x.numel() < SMALL:
        norms = exact(x)
    else:
        norms = rough(x)
        near = ~((norms / bound - 1).abs() > ROUGH) | ~norms.isfinite()
        norms[near] = exact(x[near])
        below = torch.where(near, below, 1 - 2 * ROUGH)
    scale = torch.where(norms > bound, below * bound / norms, 1.0)
    scale = torch.where(norms.isfinite(), scale, 0.0)
    scaled = x * scale[:, None].to(x.dtype)
    return scaled if bool(norms.isfinite().all()) else torch.where(scale[:, None] > 0, scaled, 0.0)


def exact(x: Tensor) -> Tensor:
    """The l2 norm of each row, squared and added up in float64."""

    def part(here: slice, _: int) -> Tensor:
        return x[:, here].double().square().sum(dim=1)

    return _added(x, part)


def rough(x: Tensor, origin: Tensor | None = None) -> Tensor:
    """The distance of each row from ``origin`` (None: zero), squared in its own format and added up in float64."""
    kept: dict[tuple[int, int], Tensor] = {}  # fresh memory for every block costs more than the arithmetic

    def part(here: slice, hand: int) -> Tensor:
        block = x[:, here]
        if origin is not None:
            if (hand, block.shape[1]) not in kept:
                kept[hand, block.shape[1]] = torch.empty(block.shape, dtype=x.dtype, device=x.device)
            place = kept[hand, block.shape[1]]
            block = torch.sub(block, origin[here], out=place)
        squares: Tensor = torch.linalg.vector_norm(block, dim=1).double().square()
        return squares

    return _added(x, part)


def _added(x: Tensor, part: Callable[[slice, int], Tensor]) -> Tensor:
    alone = x.is_cuda or x.numel() < SMALL
    parts = [part(slice(None), 0)] if alone else share_out(part, spans(x.shape[1], WIDE))
    return torch.stack(parts).sum(dim=0).sqrt()
