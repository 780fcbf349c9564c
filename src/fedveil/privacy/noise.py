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
from fedveil.core.native import kernel
from fedveil.core.signal import Signal
from fedveil.core.stage import Context, Drawn, Release, Replay
from fedveil.core.streams import device_key, drawable_on_device
from fedveil.core.team import share_out
from fedveil.privacy import discrete
from fedveil.privacy.events import SKELLAM_STEPS, Mechanism

Floats = np.ndarray[Any, np.dtype[np.float64]]
Draw = Callable[[np.random.Generator, Floats, float], None]
"""Fills a row with noise of this scale (in grid steps)."""

WIDE = (torch.float32, torch.float64)
"""What the compiled kernel takes."""
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
        raise Refused(
            f"{name}: the signal has no bound; put a clip before the noise, and where a robust rule stands between "
            "them take one with a bound: trimmed_mean, median, or any with aggregate.before=norm_bound"
        )
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
    # One pass; only a sum that is not finite asks for a closer look.
    total = signal.value.sum()
    if not bool(torch.isfinite(total)) and not bool(torch.isfinite(signal.value).all()):
        raise Refused(f"{name}: the signal is not finite, which no noise hides; put a clip before the noise")


@dataclass(frozen=True)
class PerClient:
    """A noise multiplier for each client, by number; for clients whose batches are drawn at different rates."""

    values: tuple[float, ...]

    def __post_init__(self) -> None:
        check_multiplier(min(self.values, default=0.0))
        check_multiplier(max(self.values, default=0.0))


Multiplier = float | PerClient
MOST = 1e9
"""Larger multipliers are refused: nothing is left but noise, and soon not even finite numbers."""


def check_multiplier(multiplier: Multiplier, name: str = "multiplier") -> None:
    """Refuse a multiplier that is no positive number, or one that drowns everything."""
    if isinstance(multiplier, PerClient):
        return
    positive(**{name: multiplier})
    if multiplier > MOST:
        raise Refused(f"{name}: {multiplier:g} leaves nothing but noise; give at most {MOST:g}")


def multipliers(name: str, multiplier: Multiplier, ctx: Context) -> list[float]:
    """The multiplier of each row."""
    if not isinstance(multiplier, PerClient):
        return [multiplier] * len(ctx.clients)
    if any(k is None or k >= len(multiplier.values) for k in ctx.clients):
        raise Refused(
            f"{name}: multipliers were given for {len(multiplier.values)} clients, but {list(ctx.clients)} are not "
            "all among them; give one number, or one for every client"
        )
    return [multiplier.values[k] for k in ctx.clients if k is not None]


def add_on_grid(value: Tensor, ctx: Context, draw: Draw, scales: list[float]) -> Tensor:
    """g·round((x + N)/g) for each row in float64, where g is ``FINE`` of the scale of the row's noise.

    A row of 101,770 float32 numbers takes 0.25 ms on one core, half of it uniform numbers; threads take a row each.
    On a CUDA device Gaussian noise of seeded streams is drawn there, by a generator that each stream keys.
    """
    streams = ctx.streams
    if value.is_cuda and value.numel() and draw is normal and drawable_on_device(streams):
        from fedveil.privacy import device_noise

        keys = torch.tensor([device_key(s) for s in streams], device=value.device)
        return device_noise.add_on_grid(value, keys, value.new_tensor(scales, dtype=torch.float64), FINE)
    value = value.detach()
    out, size = torch.empty_like(value), value.shape[1]

    def add(row: int, _: int) -> None:
        grid = power_of_two(scales[row] * FINE)
        noise = np.empty(size if value.is_cuda else min(size, BLOCK))
        for start in range(0, size, BLOCK):
            here = slice(start, min(start + BLOCK, size))
            block = noise[here] if value.is_cuda else noise[: here.stop - start]
            draw(streams[row], block, scales[row] / grid)
            if not value.is_cuda:
                onto(places[row, here], givens[row, here], block, grid)
        if value.is_cuda:
            onto(places[row], givens[row], noise, grid)

    # Views by numpy, once: for a block they would take as long as the block.
    compiled = None if value.is_cuda or value.stride(1) != 1 or value.dtype not in WIDE else kernel
    places, givens = (out.numpy(), value.numpy()) if compiled is not None else (out, value)

    def onto(place: Any, given: Any, noise: Floats, grid: float) -> None:
        if compiled is not None:
            compiled.onto(place, given, noise, grid)
            return
        # A power of two as a factor, and float64 sums of float32: both are exact.
        steps = torch.from_numpy(noise).to(given.device).add_(given, alpha=1 / grid)
        place.copy_(steps.round_().mul_(grid))

    if value.is_cuda or value.numel() < BLOCK:
        for row in range(len(scales)):
            add(row, 0)
    else:
        share_out(add, range(len(scales)))
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
    stds: list[float],
    release_bound: float,
    claimed: float | None = None,
) -> Signal:
    """Facts and ledger lines of a release: one line for all clients whose noise is alike."""
    assert signal.unit is not None
    alike: dict[float, list[int | None]] = {}
    for client, std in zip(ctx.clients, stds, strict=True):
        alike.setdefault(std, []).append(client)
    for std, clients in alike.items():
        who = tuple(k for k in clients if k is not None)
        line = Release(signal.unit, release_bound, std, mechanism, ctx.slot, ctx.channel, ctx.round, who or None)
        ctx.releases.append(replace(line, claimed=claimed))
    before = signal.noise_var
    variance: Tensor | float = max(stds, default=0.0) ** 2
    if len(alike) > 1:
        variance = torch.tensor(stds, dtype=torch.float64, device=value.device).square()[:, None]
    return replace(
        signal,
        value=value,
        bound=bound,
        noise_var=None if before is None else before + variance,
        released=True,
    )


@dataclass(frozen=True)
class Gaussian:
    """Adds N(0, (multiplier·bound)²) to every coordinate, on the grid.

    ``claimed`` goes into the ledger beside what was done: the multiplier that a paper claims for records.
    """

    multiplier: Multiplier
    claimed: float | None = None

    def __post_init__(self) -> None:
        check_multiplier(self.multiplier)

    @property
    def replay(self) -> Replay:
        """A key and a deviation for each row."""
        return "draws"

    def __call__(self, signal: Signal, ctx: Context) -> Signal:
        """One release per row."""
        bound = needs_bound("gaussian", signal)
        if ctx.drawn is not None:
            return self._replayed(signal, ctx.drawn)
        check_rows("gaussian", signal, ctx)
        stds = [z * bound for z in multipliers("gaussian", self.multiplier, ctx)]
        value = add_on_grid(signal.value, ctx, normal, stds)
        return _dress(
            signal, ctx, value, mechanism="gaussian", bound=bound, stds=stds, release_bound=bound, claimed=self.claimed
        )

    @staticmethod
    def _replayed(signal: Signal, drawn: Drawn) -> Signal:
        from fedveil.privacy import device_noise

        value = device_noise.add_on_grid(signal.value, drawn.keys, drawn.stds, FINE)
        before = signal.noise_var
        variance = None if before is None else before + drawn.stds.square()[:, None]
        return replace(signal, value=value, noise_var=variance, released=True)


BLOCK = 2**14
"""So many numbers are drawn at a time, to stay in the cache nearest to the core."""
LONG = 2**12
"""Blocks from this length on are drawn by Box and Muller's method."""


def normal(rng: np.random.Generator, noise: Floats, std: float) -> None:
    """N(0, std²): numpy's ziggurat for short blocks; for long ones √(−2 ln u)·(cos, sin)(2πv), in float64.

    The first takes 6.4 ns a number; vectorised, the second takes 6.0 in torch and 2.2 in C, 1.2 of them for uniform
    numbers. With 53 bits u reaches 8.6 deviations, beyond which lies 10⁻¹⁷. Its known weakness, that neighbouring
    values betray each other's last bits (Holohan and Braghin 2021), is gone on the grid.
    """
    if len(noise) < LONG:
        rng.standard_normal(out=noise)
        noise *= std
        return
    rng.random(out=noise)
    half = len(noise) // 2
    if kernel is not None:
        kernel.box_muller(noise[: 2 * half], std)
    else:
        _box_muller(noise[:half], noise[half : 2 * half], std)
    if len(noise) % 2:
        noise[-1] = std * rng.standard_normal()


def _box_muller(a: Floats, b: Floats, std: float) -> None:
    radius, angle = torch.from_numpy(a), torch.from_numpy(b)
    radius.add_(2.0**-54).log_().mul_(-2 * std * std).sqrt_()  # u + 2⁻⁵⁴ is above 0, and at most 1
    angle.mul_(2 * math.pi)
    first = torch.cos(angle)
    angle.sin_().mul_(radius)
    radius.mul_(first)


def _laplace(rng: np.random.Generator, noise: Floats, scale: float) -> None:
    noise[:] = rng.laplace(0.0, scale, len(noise))


@dataclass(frozen=True)
class Laplace:
    """Adds Laplace noise of scale multiplier·√d·bound, since the l1 sensitivity of d coordinates is up to √d·bound.

    ε = 1/multiplier for one release. The ledger line carries the l1 sensitivity as its bound, and √2·scale as its
    deviation. On long vectors a Gaussian is far cheaper.
    """

    multiplier: Multiplier

    def __post_init__(self) -> None:
        check_multiplier(self.multiplier)

    def __call__(self, signal: Signal, ctx: Context) -> Signal:
        """One release per row."""
        bound = needs_bound("laplace", signal)
        check_rows("laplace", signal, ctx)
        l1 = bound * math.sqrt(signal.dim)
        scales = [z * l1 for z in multipliers("laplace", self.multiplier, ctx)]
        stds = [math.sqrt(2) * scale for scale in scales]
        value = add_on_grid(signal.value, ctx, _laplace, scales)
        return _dress(signal, ctx, value, mechanism="laplace", bound=bound, stds=stds, release_bound=l1)


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
    steps = round_to_grid(signal.value, grid) / grid
    for row, stream in enumerate(ctx.streams):
        steps[row] += torch.from_numpy(sampler(stream, std / grid, signal.dim)).to(steps)
    value = steps.mul_(grid).to(signal.value.dtype)
    return _dress(signal, ctx, value, mechanism=name, bound=bound, stds=[std] * signal.rows, release_bound=bound)


def gaussian(multiplier: Multiplier, *, claimed: float | None = None) -> Gaussian:
    """Gaussian noise with deviation ``multiplier`` × the signal's bound."""
    return Gaussian(multiplier, claimed)


def laplace(multiplier: Multiplier) -> Laplace:
    """Laplace noise with scale ``multiplier`` × the signal's l1 bound."""
    return Laplace(multiplier)


def discrete_gaussian(multiplier: float) -> DiscreteGaussian:
    """Exact discrete Gaussian noise with deviation ``multiplier`` × the enforced bound."""
    return DiscreteGaussian(multiplier)


def skellam(multiplier: float) -> Skellam:
    """Skellam noise with deviation ``multiplier`` × the enforced bound."""
    return Skellam(multiplier)
