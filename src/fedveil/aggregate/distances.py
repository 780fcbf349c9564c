"""Distances between uploads, from one product of the matrix with itself.

With G = X Xᵀ: ‖x_i − x_j‖² = G_ii + G_jj − 2 G_ij, and for shares s the distance of x_i to Σ s_j x_j is
G_ii − 2 (G s)_i + sᵀ G s. Rules that combine uploads need no more, so that they iterate on an n × n matrix.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedveil.aggregate.columns import SMALL, not_finite, spans
from fedveil.core.errors import Refused
from fedveil.core.team import share_out

BLOCKS = 32
"""So many partial products are added up in float64."""
NARROW = 4096
"""Columns of a partial product, at least."""
CLOSE = 1e-2
"""Pairs closer than this share of their squared norms have much in common; with a fifth of them the origin moves."""


def gram(x: Tensor, origin: Tensor | None = None, scales: Tensor | None = None) -> Tensor:
    """X Xᵀ in float64, of rows seen from ``origin``, times ``scales``: partial products in X's own format."""

    def part(here: slice, _: int) -> Tensor:
        block = x[:, here]
        if origin is not None:
            block = block - origin[here]
        if scales is not None:
            block = block * scales[:, None]
        return block @ block.t()

    blocks = spans(x.shape[1], max(NARROW, -(-x.shape[1] // BLOCKS)))
    alone = x.is_cuda or x.numel() < SMALL
    parts = [part(here, 0) for here in blocks] if alone else share_out(part, blocks)
    total = torch.zeros(x.shape[0], x.shape[0], dtype=torch.float64, device=x.device)
    for product in parts:
        total += product
    return (total + total.t()) / 2


def products(name: str, x: Tensor) -> Tensor:
    """``(clients, clients)`` products in float64, seen from zero, or from an upload where most have much in common.

    Zero keeps products of honest uploads exact beside those of a huge one. A large common part would drown the
    differences; it is taken out by choosing as origin the upload whose median distance to the others is least, which
    a minority cannot place. Rows that are not finite are refused by number.
    """
    found = gram_in_range(name, x)
    norms, n = found.diagonal(), len(x)
    both = norms[:, None] + norms[None, :]
    distances = squared(found)
    close = (distances < CLOSE * both).fill_diagonal_(False)
    if n > 2 and bool(close.double().sum() > 0.2 * n * (n - 1)):
        origin = int(distances.median(dim=1).values.argmin())
        found = gram_in_range(name, x, x[origin])
    return found


def squared_distances(name: str, x: Tensor) -> Tensor:
    """All squared distances between rows, in float64."""
    return squared(products(name, x))


def squared(found: Tensor) -> Tensor:
    """Squared distances from products."""
    norms = found.diagonal()
    return (norms[:, None] + norms[None, :] - 2 * found).clamp_min_(0.0).fill_diagonal_(0.0)


def gram_in_range(name: str, x: Tensor, origin: Tensor | None = None) -> Tensor:
    """The products seen from ``origin``; where squares leave the format's range, rows are shortened first."""
    found = gram(x, origin)
    if bool(torch.isfinite(found).all()):
        return found
    largest = x.abs().amax(dim=1) + (0.0 if origin is None else origin.abs().max())
    if not bool(torch.isfinite(largest).all()):
        raise not_finite(name, x)
    scales = torch.ldexp(torch.ones_like(largest), -torch.frexp(largest).exponent)
    found = gram(x, origin, scales) / (scales.double()[:, None] * scales.double()[None, :])
    if not bool(torch.isfinite(found).all()):
        raise Refused(f"{name}: uploads are too long to be squared; scale them down")
    return found


def to_mixture(found: Tensor, shares: Tensor) -> Tensor:
    """The distance of every row to Σ s_j x_j, from products; shares sum to one unless the origin is zero."""
    towards = found @ shares
    return (found.diagonal() - 2 * towards + shares @ towards).clamp_min(0.0).sqrt()
