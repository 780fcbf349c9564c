"""Random rounding to whole numbers that keeps a norm (Kairouz, Liu and Steinke 2021, section 4.2).

⌊y + u⌋ with u uniform is unbiased, and lengthens a vector of d coordinates by more than the bound below with
probability at most β; such a draw is thrown away. What is enforced, exactly and on whole numbers, is the norm after
rounding: it is the sensitivity, whatever floating point did before. Throwing away biases the mean by a share of at
most about β of the rounding error.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

BETA = 1e-6
"""Chance that one draw of a row of full length is too long."""
TRIES = 100
"""After so many draws a row is rounded towards zero, which never makes it longer."""

Floats = np.ndarray[Any, np.dtype[np.float64]]


def enforced(norm: float, dim: int) -> float:
    """The squared norm after rounding, in steps: min{(C + √d)², C² + d/4 + √(2 ln 1/β)·(C + √d/2)}.

    >>> enforced(3000.0, 2**15) ** 0.5 / 3000 < 1.0015
    True
    """
    likely = norm**2 + dim / 4 + math.sqrt(2 * math.log(1 / BETA)) * (norm + math.sqrt(dim) / 2)
    return min((norm + math.sqrt(dim)) ** 2, likely)


def round_within(row: Floats, squared: float, rng: np.random.Generator) -> Floats:
    """Whole numbers near ``row`` whose squared norm is at most ``squared``."""
    for _ in range(TRIES):
        whole: Floats = np.floor(row + rng.random(len(row)))
        if _fits(whole, squared):
            return whole
    whole = np.trunc(row)
    return whole if _fits(whole, squared) else np.zeros_like(row)


def _fits(whole: Floats, squared: float) -> bool:
    """Sums of whole numbers up to 2⁵³ are exact in float64; longer rows do not fit any bound that is in use."""
    return float(whole @ whole) <= squared
