"""Centered clipping (Karimireddy et al. 2021), with a radius that follows the data (SPEC 7.4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedveil.aggregate.columns import matrix, mix, not_finite
from fedveil.aggregate.distances import gram_in_range, products, to_mixture
from fedveil.aggregate.norms import rough
from fedveil.aggregate.rule import Rule, check_byzantine
from fedveil.core.errors import Refused, positive

MOST = 1000
"""Steps of a centre that is followed until it stands still."""
STILL = 1e-7
"""A step shorter than this share of the radius is the last."""


def centered_clipping(
    x: Tensor, *, iterations: int | None = None, tau: float | None = None, centre: Tensor | None = None
) -> Tensor:
    """Steps c ← c + mean_i min(1, τ/‖x_i − c‖)·(x_i − c), from ``centre`` (None: the mean of the uploads).

    ``tau``: None takes the median of the deviations' norms, anew in every step. ``iterations``: None goes on until
    the centre stands still. f attackers who are very far away leave a share 2f/n of the error after each step from
    the mean: one step is for a centre that is good already.
    """
    x = matrix("centered_clipping", x)
    _check(iterations, tau)
    if centre is not None and centre.shape != x.shape[1:]:
        raise Refused(f"centered_clipping: a centre of shape {tuple(centre.shape)} is none; give {tuple(x.shape[1:])}")
    if iterations == 1:
        return _one_step(x, tau, centre)
    if centre is not None:
        return centre.to(x) + _mixed(x - centre.to(x), iterations, tau, at_zero=True)
    return _mixed(x, iterations, tau, at_zero=False)


def factors(norms: Tensor, tau: float | None) -> Tensor:
    """min(1, τ/‖x_i − c‖), in float64.

    >>> factors(torch.tensor([1.0, 2.0, 8.0]), None).tolist()
    [1.0, 1.0, 0.25]
    """
    wide = norms.double()
    radius = _median(wide) if tau is None else torch.as_tensor(tau, dtype=torch.float64, device=wide.device)
    clipped: Tensor = torch.where(wide > radius, radius / wide, 1.0)
    return clipped


def _median(norms: Tensor) -> Tensor:
    ordered, middle = norms.sort().values, len(norms) // 2
    between: Tensor = ordered[(len(norms) - 1) // 2] / 2 + ordered[middle] / 2
    return between


def _one_step(x: Tensor, tau: float | None, centre: Tensor | None) -> Tensor:
    """Three passes over the uploads: their mean, the deviations' norms, the mean of the clipped ones."""
    n = len(x)
    even = torch.full((n,), 1 / n, dtype=torch.float64, device=x.device)
    start = mix(even, x) if centre is None else centre.to(x)
    share = factors(_deviations(x, start), tau) / n
    moved = mix(share, x).add_(start, alpha=1 - float(share.sum()))
    if not bool(moved.isfinite().all()):
        raise not_finite("centered_clipping", x)
    return moved


def _deviations(x: Tensor, centre: Tensor) -> Tensor:
    """‖x_i − c‖ of every row."""
    norms = rough(x, centre)
    if not bool(norms.isfinite().all()):  # squares beyond the range of float32
        norms = torch.linalg.vector_norm(x.double() - centre.double(), dim=1)
    return norms


def _mixed(x: Tensor, iterations: int | None, tau: float | None, *, at_zero: bool) -> Tensor:
    """Many steps on the matrix of products, from zero or from the mean: the centre is Σ s_i x_i throughout."""
    n, name = len(x), "centered_clipping"
    found = gram_in_range(name, x) if at_zero else products(name, x)
    held = torch.full((n,), 0.0 if at_zero else 1 / n, dtype=torch.float64, device=x.device)
    for _ in range(MOST if iterations is None else iterations):
        norms = to_mixture(found, held)
        share = factors(norms, tau) / n
        step = share - held * share.sum()
        held = held + step
        if iterations is None and bool(step @ found @ step <= (STILL * (tau or _median(norms))) ** 2):
            break
    return mix(held, x)


def _check(iterations: int | None, tau: float | None) -> None:
    if iterations is not None and iterations < 1:
        raise Refused(f"aggregate.iterations: {iterations} steps lead nowhere; give 1 or more, or leave it out")
    if tau is not None:
        positive(**{"aggregate.tau": tau})


@dataclass(frozen=True)
class CenteredClipping(Rule):
    """The mean of deviations from a centre, none longer than τ, and again from there.

    ``tau`` None: the median deviation. ``iterations`` None: until the centre stands still.
    """

    name: ClassVar[str] = "centered_clipping"
    byzantine: int = 0
    iterations: int | None = None
    tau: float | None = None

    def __post_init__(self) -> None:
        check_byzantine(self.name, self.byzantine)
        _check(self.iterations, self.tau)

    def one(self, x: Tensor) -> Tensor:
        """See :func:`centered_clipping`."""
        return centered_clipping(x, iterations=self.iterations, tau=self.tau)
