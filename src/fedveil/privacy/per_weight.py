"""Mechanisms that make every weight of an upload private by itself (SPEC 5; Sun, Qian and Chen 2021).

``two_point`` reports one of two values, so that one bit per weight travels; ``hybrid`` (Wang et al. 2019) has less
variance from ε = 1 on, and sends whole numbers. Both clamp a weight to its layer's public range first: beyond it the
published formula gives probabilities outside [0, 1], and no privacy.

Both work on t = (w − c)/r in [−1, 1], a row of a client at a time drawing from that client's own stream.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np

from fedveil.core.errors import Refused, positive

Floats = np.ndarray[Any, np.dtype[np.float64]]
Words = np.ndarray[Any, np.dtype[np.uint64]]
Bits = np.ndarray[Any, np.dtype[np.bool_]]

Mechanism = Literal["two_point", "hybrid", "clamp"]
MOST = 32.0
"""Above this ε the rarer of two values comes once in 10^14 reports: nothing is private."""

LEAST = 1e-6
"""Below this ε the two values are a million radii away, and nothing can be learned from them."""
WORDS = 2**64
STEPS = 2.0**-20
"""The hybrid's reports lie on a grid of this share of the range's radius (or a little less)."""


def check_epsilon(epsilon: float, setting: str = "privacy.epsilon") -> None:
    """Refuse an ε per weight that is no positive number, or one under which nothing is hidden, or nothing said."""
    positive(**{setting: epsilon})
    if epsilon < LEAST:
        raise Refused(f"{setting}: {epsilon:g} per weight and round says nothing; give at least {LEAST:g}")
    if epsilon > MOST:
        raise Refused(f"{setting}: {epsilon:g} per weight and round hides nothing; give at most {MOST:g}")


def rarest(epsilon: float) -> int:
    """⌈2⁶⁴/(e^ε + 1)⌉: of 2⁶⁴ equally likely words, how many give the rarer value at the end of the range.

    Counting words makes the ratio of probabilities at most e^ε exactly, with no rounding in it.
    """
    return math.ceil(WORDS * (math.exp(-epsilon) / (1.0 + math.exp(-epsilon))) * (1 + 2.0**-50))


def reach(epsilon: float) -> float:
    """K = (e^ε + 1)/(e^ε − 1): the two values are c ± r·k.

    >>> round(reach(1.0), 4)
    2.164
    """
    return 1 / math.tanh(epsilon / 2)


def thresholds(t: Floats, epsilon: float) -> Words:
    """How many of the 2⁶⁴ words report the upper value: 2⁶⁴·(1/2 + t/2k), kept between the ends of the range.

    What is no number counts as the centre.
    """
    least = rarest(epsilon)
    inside = np.clip(np.nan_to_num(t, nan=0.0), -1.0, 1.0)
    inside += 1.0
    inside *= (WORDS - 2 * least) / 2
    inside += least
    # Above 2⁶³ doubles are 2048 apart, so that the ends are set in whole numbers.
    words = np.minimum(inside, np.nextafter(float(WORDS), 0.0)).astype(np.uint64)
    return np.clip(words, np.uint64(least), np.uint64(WORDS - least))


def upper(t: Floats, epsilon: float, rng: np.random.Generator) -> Bits:
    """Whether each weight reports its upper value."""
    words = rng.integers(0, WORDS - 1, size=t.shape, dtype=np.uint64, endpoint=True)
    return np.less(words, thresholds(t, epsilon))


def share(epsilon: float) -> float:
    """How often the hybrid mechanism asks the piecewise one: 1 − e^{−ε/2} above ε = 0.61, never below."""
    return -math.expm1(-epsilon / 2) if epsilon > 0.61 else 0.0


def piecewise(t: Floats, epsilon: float, rng: np.random.Generator) -> Floats:
    """Wang et al. 2019, algorithm 2: uniform on [l, l + C − 1] with probability e^{ε/2}/(e^{ε/2} + 1), else beside it.

    C = (e^{ε/2} + 1)/(e^{ε/2} − 1), l = (C + 1)t/2 − (C − 1)/2; unbiased on [−1, 1], reports in [−C, C].
    """
    c = 1 / math.tanh(epsilon / 4)
    low: Floats = (c + 1) / 2 * t - (c - 1) / 2
    near = rng.random(t.shape) < 1 / (1 + math.exp(-epsilon / 2))
    u = rng.random(t.shape)
    # The rest is [−C, l) and (l + C − 1, C], of length C + 1 together: one stretch with the middle left out.
    rest = u * (c + 1) - c
    return np.where(near, low + u * (c - 1), rest + np.where(rest < low, 0.0, c - 1))


def hybrid(t: Floats, epsilon: float, rng: np.random.Generator) -> Floats:
    """The mixture of the piecewise and the two-point mechanism, rounded to a public grid (post-processing).

    Its probabilities are exact to the 2⁻⁵³ with which uniform numbers are drawn.
    """
    inside = np.clip(np.nan_to_num(t, nan=0.0), -1.0, 1.0)
    out = np.where(upper(inside, epsilon, rng), 1.0, -1.0) * reach(epsilon)
    if alpha := share(epsilon):
        out = np.where(rng.random(t.shape) < alpha, piecewise(inside, epsilon, rng), out)
    return np.asarray(np.round(out / STEPS) * STEPS)


def worst_variance(mechanism: Mechanism, epsilon: float) -> float:
    """The largest variance of one report, in units of r².

    >>> round(worst_variance("two_point", 10.0) / worst_variance("hybrid", 10.0), -1)
    110.0
    """
    if mechanism == "clamp":
        return 0.0
    two = reach(epsilon) ** 2
    alpha = share(epsilon)
    if mechanism == "two_point" or not alpha:
        return two
    e = math.exp(epsilon / 2)
    # α(t²/(e−1) + (e+3)/3(e−1)²) + (1−α)(k² − t²) is linear in t².
    flat = (e + 3) / (3 * (e - 1) ** 2)
    ends = [alpha * (t / (e - 1) + flat) + (1 - alpha) * (two - t) for t in (0.0, 1.0)]
    return max(ends)
