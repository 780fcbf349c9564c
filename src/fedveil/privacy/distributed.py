"""Distributed differential privacy: clients share out the noise, and a transport shows their sum alone (SPEC 6.3).

A client's clipped move is rotated, scaled to grid steps, rounded within a norm, and gets integer noise of variance
(σΔ₂)²/h, where Δ₂ is the norm that was enforced after rounding and h the number of honest shares that every sum holds
(Kairouz, Liu and Steinke 2021; Agarwal, Kairouz and Liu 2021). What travels are whole numbers, summed modulo 2^b.

- *Skellam*: h shares of variance (σΔ₂)²/h are one Skellam of variance (σΔ₂)², so its own bound holds as it is.
- *Discrete Gaussian*: a sum of them is none. Kairouz, Liu and Steinke (theorem 1) bound the price of that by
  τd/2 in zCDP, τ = 10·Σ_k exp(−2π²s²k/(k+1)) with s the deviation of one share in steps. Shares below 10 steps are
  refused; above, τ is below 10⁻⁴²⁰, nothing beside the rounding error of any float64.

Shares beyond h are independent of all else: they only add noise (post-processing). Wrapping modulo 2^b is
post-processing too: it costs accuracy, not privacy. The grid is chosen as fine as it can be with a chance below 2⁻⁴⁰
that any coordinate of a round wraps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fedveil.core.errors import Aborted, Refused, one_of
from fedveil.core.parts import Concealing
from fedveil.core.signal import Signal
from fedveil.core.stage import Context, Pool, Release
from fedveil.core.team import share_out
from fedveil.privacy import discrete
from fedveil.privacy.noise import check_multiplier, check_rows, needs_bound
from fedveil.privacy.rotation import padded, rotate, unrotate
from fedveil.privacy.rounding import enforced, round_within

Noise = Literal["skellam", "discrete_gaussian"]

WRAP = 2.0**-40
"""The largest chance that any coordinate of a round's sum wraps."""
COARSE = 1.25
"""A grid on which rounding lengthens a clipped move by more than this is refused."""
LEAST_SHARE = 10.0
"""Grid steps in one deviation of a discrete Gaussian share: fewer are refused."""
BITS = (8, 20)
"""Bits of a sum that are used: more are no use, and with few more sums would not be whole in float32."""

_SAMPLERS: dict[Noise, Callable[[np.random.Generator, float, int], np.ndarray[Any, np.dtype[np.int64]]]] = {
    "skellam": discrete.skellam,
    "discrete_gaussian": discrete.discrete_gaussian,
}


@dataclass(frozen=True)
class Grid:
    """The grid of one kind of move, chosen from public numbers only.

    ``per_unit`` steps make one unit; a rounded move has at most ``squared`` as its squared norm in steps; ``noise`` is
    the deviation of all honest shares together, ``share`` that of one; ``wrap`` bounds the chance of a wrap.
    """

    per_unit: float
    squared: float
    noise: float
    share: float
    wrap: float

    @property
    def norm(self) -> float:
        """Δ₂ in steps."""
        return math.sqrt(self.squared)


@dataclass(frozen=True)
class Distribute:
    """Rotates, rounds and noises every client's move; what leaves are whole numbers of ``bits`` bits.

    multiplier
        σ: deviation of the honest shares' sum, in units of the norm after rounding.
    fewest, most
        the smallest and the largest cohort.
    honest, colluding
        of every sum: how many shares count, and how many beside them belong to colluders.
    trust
        what hides single uploads, in words.
    """

    multiplier: float
    fewest: int
    most: int
    honest: int
    colluding: int
    bits: int
    noise: Noise
    trust: str

    sums_only = True
    """A single upload has a share of the noise, which protects nothing by itself."""

    def __post_init__(self) -> None:
        check_multiplier(self.multiplier)
        one_of("noise", self.noise, _SAMPLERS)
        if not BITS[0] <= self.bits <= BITS[1]:
            raise Refused(f"transport.bits: {self.bits} bits hold no sum with its noise; give 18 or more")
        if not 0 < self.honest <= self.fewest - self.colluding:
            raise Refused(
                f"transport.collusion: of {self.fewest} clients {self.colluding} may collude and others be lost, which "
                f"leaves {self.honest} honest shares of noise; lower transport.max_dropout too, or take larger cohorts"
            )

    def grid(self, bound: float, dim: int) -> Grid:
        """The finest grid on which sums of moves of this norm and length do not wrap."""
        found = finest(self.multiplier, dim, self.most, self.honest, self.bits)
        if found.norm > COARSE * found.per_unit:
            enough = (b for b in range(self.bits, BITS[1] + 1) if self._fine_at(b, dim))
            more = next(enough, None)
            todo = "take a larger privacy.epsilon, or fewer rounds" if more is None else f"give {more} or more"
            raise Refused(
                f"transport.bits: {self.bits} bits hold the sum of {self.most} clients and its noise only on a grid so "
                f"coarse that rounding would lengthen a move by {found.norm / found.per_unit - 1:.0%}; {todo}"
            )
        if self.noise == "discrete_gaussian" and found.share < LEAST_SHARE:
            raise Refused(
                f"noise: a client's share of the discrete Gaussian would span {found.share:.2g} grid steps, for which "
                "nothing useful is proved; use noise=skellam, or more bits"
            )
        return replace(found, per_unit=found.per_unit / bound)

    def _fine_at(self, bits: int, dim: int) -> bool:
        there = finest(self.multiplier, dim, self.most, self.honest, bits)
        return there.norm <= COARSE * there.per_unit

    def __call__(self, signal: Signal, ctx: Context) -> Signal:
        """One share per row; a ledger line that speaks of their sum."""
        bound = needs_bound("distribute", signal)
        if signal.unit != "client":
            raise Refused("distribute: it protects whole clients; put a clip of whole moves before it")
        check_rows("distribute", signal, ctx)
        drawn = signal.rows if ctx.cohort is None else ctx.cohort
        if ctx.round and not self.fewest <= drawn <= self.most:  # rehearsals have one row
            raise Aborted(
                f"{drawn} clients were drawn, and noise is shared out among {self.fewest} to {self.most}; larger "
                "cohorts vary less"
            )
        size = padded(signal.dim)
        grid = self.grid(bound, size)
        value = self._rounded(rotate(signal.value, ctx.round).mul_(grid.per_unit), grid, ctx)
        real = grid.norm / grid.per_unit
        pool = Pool(self.honest, self.colluding, grid.noise, size, self.trust)
        for client in ctx.clients:
            who = None if client is None else (client,)
            ctx.releases.append(
                Release("client", real, self.multiplier * real, self.noise, ctx.slot, ctx.channel, ctx.round, who,
                        pool=pool)
            )  # fmt: skip
        return Signal(value.to(signal.value.dtype), grid.norm, "client", grid.share**2, released=True, grid=1.0)

    def _rounded(self, rows: Tensor, grid: Grid, ctx: Context) -> Tensor:
        steps, draw = rows.cpu().numpy(), _SAMPLERS[self.noise]

        def add(row: int, _: int) -> None:
            rng = ctx.streams[row]
            steps[row] = round_within(steps[row], grid.squared, rng)
            steps[row] += draw(rng, grid.share, steps.shape[1])

        share_out(add, range(len(steps)))
        return torch.from_numpy(steps).to(rows.device)


@dataclass(frozen=True)
class Restore:
    """What the server makes of the mean of :class:`Distribute`'s rows: steps to units, rotation undone."""

    before: Distribute
    norm: float

    def __call__(self, signal: Signal, ctx: Context) -> Signal:
        """One row."""
        step = 1.0 / self.before.grid(self.norm, signal.dim).per_unit
        value = unrotate(signal.value, ctx.layout.dim, ctx.round).to(signal.value.dtype)
        return replace(signal, value=value) * step


def distribute(
    multiplier: float,
    *,
    norm: float,
    fewest: int,
    most: int,
    transport: Concealing,
    noise: Noise = "skellam",
) -> tuple[Distribute, Restore]:
    """The clients' stage and the server's, for cohorts of ``fewest`` to ``most`` and what the transport promises."""
    smallest, largest = transport.plan(fewest), transport.plan(most)
    honest, colluding = smallest.least - largest.colluders, largest.colluders
    stage = Distribute(
        multiplier, fewest, most, honest, colluding, min(transport.bits, BITS[1]), noise, transport.trust
    )
    return stage, Restore(stage, norm)


@lru_cache(maxsize=256)
def finest(multiplier: float, dim: int, most: int, honest: int, bits: int) -> Grid:
    """The finest grid for moves of norm 1 whose round wraps with a chance of at most ``WRAP``."""
    low, high = 0.0, 2.0**bits
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _at(middle, multiplier, dim, most, honest, bits).wrap <= WRAP else (low, middle)
    if low == 0.0:
        raise Refused(
            f"transport.bits: {bits} bits are too few for the noise of a sum of {most} clients; give 18 or more, or "
            "take a larger privacy.epsilon"
        )
    return _at(low, multiplier, dim, most, honest, bits)


def _at(per_unit: float, multiplier: float, dim: int, most: int, honest: int, bits: int) -> Grid:
    """The grid with so many steps to a unit, and its chance of a wrap.

    A coordinate of the sum is that of the rotated moves, at most t with probability 1 − 2·exp(−t²d/2(nC)²) over the
    signs (Hoeffding); rounding, at most 1 for each client; and noise, by the Chernoff bound of the Skellam of
    variance μ, exp(−t·asinh(t/μ) + √(t² + μ²) − μ), which is above that of a discrete Gaussian.
    """
    squared = enforced(per_unit, dim)
    noise = multiplier * math.sqrt(squared)
    share = noise / math.sqrt(honest)
    room = 2.0 ** (bits - 1) - 1 - most
    signal = most * per_unit / math.sqrt(dim) * math.sqrt(2 * math.log(4 * dim / WRAP))
    left = room - signal
    if left <= 0:
        return Grid(per_unit, squared, noise, share, 1.0)
    mu = most * share**2
    exponent = left * math.asinh(left / mu) - left**2 / (math.hypot(left, mu) + mu)
    return Grid(per_unit, squared, noise, share, min(1.0, WRAP / 2 + 2 * dim * math.exp(-exponent)))
