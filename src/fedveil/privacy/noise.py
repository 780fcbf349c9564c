"""Noise stages: the place where privacy is paid for (SPEC 4).

Every released value is a whole multiple of one grid step, a power of two chosen from public numbers only
(sensitivity, multiplier, length), whatever the input: a floating-point attack looks for values that one input can
produce and another cannot (Mironov 2012; Haney et al. 2022), and on a common grid there are none.

- ``gaussian``, ``laplace``: y = g·round((x + N)/g). Rounding comes after the noise, so it is post-processing and
  the sensitivity stays what the clip made it; for x on the grid this is x + g·round(N/g). g ≤ 2⁻²⁰ of the noise.
- ``discrete_gaussian``, ``skellam``: integers need the input on the grid *first*, and rounding a vector moves it
  by up to g√d/2, two neighbours by g√d apart: the enforced sensitivity is bound + g√d, the noise is calibrated to
  it, and both facts say so (at most 0.1 % for the discrete Gaussian; Skellam's grid is coarser).

Row i draws from its own ``ctx.streams[i]``; a whole row at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedveil.core.errors import Refused, positive
from fedveil.core.signal import Signal
from fedveil.core.stage import Context, Release
from fedveil.privacy import discrete
from fedveil.privacy.events import SKELLAM_STEPS, Mechanism

Draw = Callable[[np.random.Generator, int], np.ndarray[Any, Any]]

FINE = 2.0**-20
"""Grid of continuous noise, as a share of its scale: coarse beside float64's own grid of 2⁻⁵², fine beside noise."""


def power_of_two(value: float) -> float:
    """The largest power of two that is not above ``value``.

    >>> power_of_two(0.3), power_of_two(8.0)
    (0.25, 8.0)
    """
    return math.ldexp(0.5, math.frexp(value)[1])


def needs_bound(name: str, signal: Signal) -> float:
    """The sensitivity of a signal; one without is refused."""
    if signal.bound is None:
        raise Refused(f"{name}: the signal has no bound; put a clip before the noise")
    if not (math.isfinite(signal.bound) and signal.bound > 0):
        raise Refused(f"{name}: a bound of {signal.bound} cannot be protected; give the clip a norm above 0")
    return signal.bound


def check_rows(name: str, signal: Signal, ctx: Context) -> None:
    """Refuse to add noise that would protect nothing: missing streams, or values that swallow any noise."""
    if len(ctx.streams) != signal.rows or len(ctx.clients) != signal.rows:
        raise Refused(
            f"{name}: {signal.rows} rows but {len(ctx.streams)} streams and {len(ctx.clients)} clients; "
            "give each row its own"
        )
    if not bool(torch.isfinite(signal.value).all()):
        raise Refused(f"{name}: the signal is not finite, which no noise hides; put a clip before the noise")


def add_on_grid(value: Tensor, streams: list[np.random.Generator], draw: Draw, grid: float) -> Tensor:
    """g·round((x + N)/g) for each row in float64; ``draw`` gives N/g."""
    out = torch.empty_like(value)
    for row, stream in enumerate(streams):
        steps = torch.from_numpy(draw(stream, value.shape[1])).to(value.device, torch.float64)
        out[row] = steps.add_(value[row].double() / grid).round_().mul_(grid)
    return out


def round_to_grid(value: Tensor, grid: float) -> Tensor:
    """The nearest grid points, in float64."""
    return (value.double() / grid).round_().mul_(grid)


def _dress(
    signal: Signal,
    ctx: Context,
    value: Tensor,
    *,
    mechanism: Mechanism,
    bound: float,
    variance: float,
    std: float,
    release_bound: float,
) -> Signal:
    """Facts and ledger lines of a release."""
    assert signal.unit is not None
    for client in ctx.clients:
        ctx.releases.append(
            Release(signal.unit, release_bound, std, mechanism, ctx.slot, ctx.channel, ctx.round, client)
        )
    before = signal.noise_var
    return replace(
        signal,
        value=value,
        bound=bound,
        noise_var=None if before is None else before + variance,
        released=True,
    )


@dataclass(frozen=True)
class Gaussian:
    """Adds N(0, (multiplier·bound)²) to every coordinate, on the grid."""

    multiplier: float

    def __post_init__(self) -> None:
        positive(multiplier=self.multiplier)

    def __call__(self, signal: Signal, ctx: Context) -> Signal:
        """One release per row."""
        bound = needs_bound("gaussian", signal)
        check_rows("gaussian", signal, ctx)
        std = self.multiplier * bound
        grid = power_of_two(std * FINE)

        def draw(rng: np.random.Generator, dim: int) -> np.ndarray[Any, Any]:
            noise = rng.standard_normal(dim)
            noise *= std / grid
            return noise

        value = add_on_grid(signal.value, list(ctx.streams), draw, grid)
        return _dress(
            signal, ctx, value, mechanism="gaussian", bound=bound, variance=std**2, std=std, release_bound=bound
        )


@dataclass(frozen=True)
class Laplace:
    """Adds Laplace noise of scale multiplier·√d·bound, since the l1 sensitivity of d coordinates is up to √d·bound.

    ε = 1/multiplier for one release. The ledger line carries the l1 sensitivity as its bound, and √2·scale as its
    deviation. On long vectors a Gaussian is far cheaper.
    """

    multiplier: float

    def __post_init__(self) -> None:
        positive(multiplier=self.multiplier)

    def __call__(self, signal: Signal, ctx: Context) -> Signal:
        """One release per row."""
        bound = needs_bound("laplace", signal)
        check_rows("laplace", signal, ctx)
        l1 = bound * math.sqrt(signal.dim)
        scale = self.multiplier * l1
        grid = power_of_two(scale * FINE)
        value = add_on_grid(signal.value, list(ctx.streams), lambda rng, dim: rng.laplace(0.0, scale / grid, dim), grid)
        return _dress(
            signal,
            ctx,
            value,
            mechanism="laplace",
            bound=bound,
            variance=2 * scale**2,
            std=math.sqrt(2) * scale,
            release_bound=l1,
        )


@dataclass(frozen=True)
class DiscreteGaussian:
    """Rounds to the grid and adds exact discrete Gaussian noise of multiplier·(bound + g√d)."""

    multiplier: float

    def __post_init__(self) -> None:
        positive(multiplier=self.multiplier)

    def grid(self, bound: float, dim: int) -> float:
        """g: at most 2⁻¹⁰ of the bound in all, and of the noise in one coordinate."""
        return power_of_two(2.0**-10 * min(bound / math.sqrt(dim), self.multiplier * bound))

    def __call__(self, signal: Signal, ctx: Context) -> Signal:
        """One release per row."""
        bound = needs_bound("discrete_gaussian", signal)
        grid = self.grid(bound, signal.dim)
        return _integer(signal, ctx, "discrete_gaussian", self.multiplier, grid, discrete.discrete_gaussian)


@dataclass(frozen=True)
class Skellam:
    """Rounds to the grid and adds Skellam noise of multiplier·(bound + g√d) (Agarwal, Kairouz and Liu 2021).

    The noise spans 2¹⁰ to 2¹⁷ grid steps, where numpy's Poisson is good to 1e-8, so that rounding may add up to
    multiplier·√d/2¹⁶ to the sensitivity (0.8 % for 65,536 coordinates at multiplier 2).
    """

    multiplier: float

    def __post_init__(self) -> None:
        positive(multiplier=self.multiplier)

    def grid(self, bound: float, dim: int) -> float:
        """g: fine beside the bound, but within 2⁻¹⁶ and 2⁻¹⁰ of the noise."""
        noise = self.multiplier * bound
        return power_of_two(min(noise / SKELLAM_STEPS, max(noise * 2.0**-16, 2.0**-10 * bound / math.sqrt(dim))))

    def __call__(self, signal: Signal, ctx: Context) -> Signal:
        """One release per row."""
        bound = needs_bound("skellam", signal)
        grid = self.grid(bound, signal.dim)
        return _integer(signal, ctx, "skellam", self.multiplier, grid, discrete.skellam)


def _integer(
    signal: Signal,
    ctx: Context,
    name: Mechanism,
    multiplier: float,
    grid: float,
    sampler: Callable[[np.random.Generator, float, int], np.ndarray[Any, Any]],
) -> Signal:
    """Round, add integer noise, scale back."""
    check_rows(name, signal, ctx)
    bound = needs_bound(name, signal) + grid * math.sqrt(signal.dim)
    std = multiplier * bound
    rounded = round_to_grid(signal.value, grid)
    noisy = add_on_grid(rounded, list(ctx.streams), lambda rng, dim: sampler(rng, std / grid, dim), grid)
    return _dress(
        signal,
        ctx,
        noisy.to(signal.value.dtype),
        mechanism=name,
        bound=bound,
        variance=std**2,
        std=std,
        release_bound=bound,
    )


def gaussian(multiplier: float) -> Gaussian:
    """Gaussian noise with deviation ``multiplier`` × the signal's bound."""
    return Gaussian(multiplier)


def laplace(multiplier: float) -> Laplace:
    """Laplace noise with scale ``multiplier`` × the signal's l1 bound."""
    return Laplace(multiplier)


def discrete_gaussian(multiplier: float) -> DiscreteGaussian:
    """Exact discrete Gaussian noise with deviation ``multiplier`` × the enforced bound."""
    return DiscreteGaussian(multiplier)


def skellam(multiplier: float) -> Skellam:
    """Skellam noise with deviation ``multiplier`` × the enforced bound."""
    return Skellam(multiplier)
