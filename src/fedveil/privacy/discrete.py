"""The discrete Gaussian on the integers: exact distribution, a whole vector at a time (Canonne, Kamath, Steinke 2020).

P(k) ∝ exp(−k²/2σ²). A two-sided geometric proposal with scale t = ⌊σ⌋ + 1 is accepted with probability
exp(−(|y| − σ²/t)²/2σ²). Both random choices compare a uniform number with a known one. The comparison is made in
float64 on 53 random bits; the few that fall within the rounding error of the boundary are settled with more bits
and decimal arithmetic, so no draw depends on how floating point rounds. Unlike a scalar exact sampler, a vector's
draws are not timed one by one (Jin et al. 2021).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Context, Decimal, localcontext
from typing import Any, TypeVar

import numpy as np

from fedveil.core.errors import Refused

Integers = np.ndarray[Any, np.dtype[np.int64]]

BITS = 2.0**-53
"""Generator.random() returns k·2⁻⁵³ with k uniform: the first 53 bits of a uniform number."""

LARGEST = 2.0**40
"""Up to here float64 tells neighbouring integers apart with room to spare."""

_PRECISE = Context(prec=140)

T = TypeVar("T")


def discrete_gaussian(rng: np.random.Generator, std: float, size: int) -> Integers:
    """``size`` independent draws with parameter σ = ``std`` (a float stands for exactly its own binary value).

    >>> discrete_gaussian(np.random.default_rng(1), 2.0, 5).dtype
    dtype('int64')
    """
    if not 0 < std <= LARGEST:
        raise Refused(f"discrete Gaussian: a deviation of {std} grid steps is out of range; give 0 < std ≤ 2^40")
    scale = math.floor(std) + 1
    draws = np.empty(size, dtype=np.int64)
    filled = 0
    while filled < size:
        # About 0.76 of the proposals survive at large σ, fewer at small; a little more than needed, then again.
        count = int((size - filled) * 1.45) + 16
        proposal = two_sided_geometric(rng, scale, count)
        kept = proposal[_accepted(rng, proposal, std, scale)][: size - filled]
        draws[filled : filled + len(kept)] = kept
        filled += len(kept)
    return draws


def two_sided_geometric(rng: np.random.Generator, scale: int, size: int) -> Integers:
    """Discrete Laplace, P(k) ∝ exp(−|k|/scale); fewer than ``size`` come back (the second zero is thrown away)."""
    magnitude = _geometric(rng, scale, size)
    negative = rng.integers(0, 2, size=size, dtype=np.int8) == 1
    keep = ~(negative & (magnitude == 0))
    return np.asarray(np.where(negative, -magnitude, magnitude)[keep])


def _geometric(rng: np.random.Generator, scale: int, size: int) -> Integers:
    """P(k) ∝ exp(−k/scale) on k ≥ 0, as ⌊−scale·ln U⌋ with U in (u, u + 2⁻⁵³)."""
    u = rng.random(size)
    with np.errstate(divide="ignore"):
        high = -scale * np.log(u)
    low = -scale * np.log(u + BITS)
    # log is good to a few units in the last place, and values stay below 2^41·40
    slack = 2.0**-48 * (low + scale)
    found = np.floor(low - slack)
    unsure = np.flatnonzero(~(np.floor(high + slack) == found))
    result = np.where(np.isfinite(found), found, 0.0).astype(np.int64)
    for i in unsure:
        result[i] = _settle(rng, float(u[i]), lambda x: int((-scale * x.ln()).to_integral_value("ROUND_FLOOR")))
    return np.maximum(result, 0)


def _accepted(rng: np.random.Generator, proposal: Integers, std: float, scale: int) -> np.ndarray[Any, Any]:
    """Bernoulli(exp(−(|y| − σ²/t)²/2σ²)) for each proposal."""
    u = rng.random(len(proposal))
    distance = np.abs(proposal) - std * std / scale
    exponent = distance * distance / (2 * std * std)
    chance = np.exp(-exponent)
    # The distance is off by at most 2⁻⁵¹ of the larger term, hence the exponent by 2⁻⁵¹·|d|(|y|+σ)/σ²·few.
    error = 2.0**-49 * (1 + exponent + np.abs(distance) * (np.abs(proposal) + std) / (std * std)) * chance
    result = u + BITS <= chance - error
    for i in np.flatnonzero(~result & (u < chance + error)):
        y = abs(int(proposal[i]))

        def below(x: Decimal, y: int = y) -> bool:
            square = Decimal(std) * Decimal(std)
            gap = Decimal(y) - square / scale
            return bool(x < (-(gap * gap) / (2 * square)).exp())

        result[i] = _settle(rng, float(u[i]), below)
    return np.asarray(result, dtype=bool)


def _settle(rng: np.random.Generator, u: float, decide: Callable[[Decimal], T]) -> T:
    """Decide with 320 more random bits of the uniform number that starts with ``u``."""
    more = int.from_bytes(rng.bytes(40), "little")
    with localcontext(_PRECISE):
        return decide(Decimal(u) + (Decimal(more) + Decimal("0.5")) / Decimal(2) ** 373)


def skellam(rng: np.random.Generator, std: float, size: int) -> Integers:
    """``size`` draws of a difference of two equal Poissons with variance std².

    numpy's Poisson is a rejection sampler in float64, good to about 1e-8 of each probability at 2^16.
    """
    if not 0 < std <= 2.0**20:
        raise Refused(f"skellam: a deviation of {std} grid steps is out of range; give 0 < std ≤ 2^20")
    half = std * std / 2
    return np.asarray(rng.poisson(half, size) - rng.poisson(half, size), dtype=np.int64)
