"""One release in closed form: how much noise meets (ε, δ), and what a given noise costs (SPEC 4).

Gaussian: δ(ε) = Φ(1/2z − εz) − e^ε·Φ(−1/2z − εz), z = noise std / l2 sensitivity (Balle and Wang 2018), exact.
The classic rule z = √(2 ln(1.25/δ))/ε (Dwork and Roth 2014) is proved for ε ≤ 1 only and is *violated* from
ε ≈ 8.45 at δ = 1e-5, so it is refused above 1. Laplace: scale = l1 sensitivity / ε, δ = 0.
"""

from __future__ import annotations

import math

from scipy.optimize import brentq
from scipy.special import log_ndtr

from fedveil.core.errors import Refused, positive


def check_delta(delta: float) -> None:
    """Refuse a failure probability outside (0, 1)."""
    if not 0 < delta < 1:
        raise Refused(f"delta: {delta} is outside (0, 1); give a small number such as 1e-5, below 1/population")


def gaussian_log_delta(epsilon: float, multiplier: float) -> float:
    """Log δ(ε) of one Gaussian release, without underflow."""
    high = log_ndtr(0.5 / multiplier - epsilon * multiplier)
    low = log_ndtr(-0.5 / multiplier - epsilon * multiplier)
    ratio = epsilon + low - high
    return float(high + math.log1p(-math.exp(ratio))) if ratio < 0 else -math.inf


def gaussian_delta(epsilon: float, multiplier: float) -> float:
    """The exact δ of one Gaussian release at ε.

    >>> round(gaussian_delta(0.5, 1.0), 5)
    0.23842
    """
    return math.exp(gaussian_log_delta(epsilon, multiplier))


def gaussian_epsilon(multiplier: float, delta: float) -> float:
    """The exact ε of one Gaussian release at δ.

    >>> round(gaussian_epsilon(1.0, 1e-5), 6)
    4.377178
    """
    positive(multiplier=multiplier)
    check_delta(delta)
    goal = math.log(delta)
    if gaussian_log_delta(0.0, multiplier) <= goal:
        return 0.0
    high = 1.0
    while gaussian_log_delta(high, multiplier) > goal:
        high *= 2
    return float(brentq(lambda e: gaussian_log_delta(e, multiplier) - goal, 0.0, high, xtol=1e-12))


def analytic_gaussian(*, epsilon: float, delta: float, sensitivity: float) -> float:
    """The smallest noise std that is (ε, δ)-private, at any ε (Balle and Wang 2018).

    >>> round(analytic_gaussian(epsilon=8, delta=1e-5, sensitivity=1.0), 6)
    0.600229
    """
    positive(epsilon=epsilon, sensitivity=sensitivity)
    check_delta(delta)
    goal = math.log(delta)
    low = high = 1.0
    while gaussian_log_delta(epsilon, high) > goal:
        high *= 2
    while gaussian_log_delta(epsilon, low) <= goal:
        low /= 2
    root = brentq(lambda z: gaussian_log_delta(epsilon, z) - goal, low, high, xtol=1e-13, rtol=1e-12)
    return float(root) * sensitivity


def classic_gaussian(*, epsilon: float, delta: float, sensitivity: float) -> float:
    """The classic noise std Δ·√(2 ln(1.25/δ))/ε, proved for ε ≤ 1 and refused above.

    >>> round(classic_gaussian(epsilon=1, delta=1e-5, sensitivity=1.0), 6)
    4.844805
    """
    positive(epsilon=epsilon, sensitivity=sensitivity)
    check_delta(delta)
    if epsilon > 1:
        raise Refused(
            f"classic Gaussian: epsilon {epsilon:g} is above 1, where its proof ends; use the analytic Gaussian, "
            "which is exact at every epsilon"
        )
    return sensitivity * math.sqrt(2 * math.log(1.25 / delta)) / epsilon


def laplace_scale(*, epsilon: float, sensitivity: float) -> float:
    """The Laplace scale Δ/ε for an l1 sensitivity Δ."""
    positive(epsilon=epsilon, sensitivity=sensitivity)
    return sensitivity / epsilon
