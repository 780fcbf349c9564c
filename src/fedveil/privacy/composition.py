"""Composition theorems: what k releases of (ε, δ) cost together, knowing nothing else about them (SPEC 4).

- basic: Σ ε_i.
- advanced: Σ ε_i(e^{ε_i} − 1) + √(2 ln(1/δ̃) Σ ε_i²) (Dwork, Rothblum, Vadhan; Dwork and Roth 2014, 3.20), and
  never worse than basic.
- optimal: equal to the privacy of composed randomised response (Kairouz, Oh, Viswanath 2015); exact for equal
  releases, by loss distributions, rounded up, for unequal ones; never worse than advanced.

Every theorem gets a list of (ε_i, times) and the slack δ̃ that is left after the releases' own δ_i.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from dp_accounting.pld import privacy_loss_distribution as losses
from dp_accounting.pld.common import DifferentialPrivacyParameters
from scipy.optimize import brentq
from scipy.stats import binom

Parts = Sequence[tuple[float, int]]

MAX_TERMS = 5_000_000
"""Above this many equal releases the optimal sum is replaced by its closed upper bound."""


def basic(parts: Parts, slack: float = 0.0) -> float:
    """Σ ε_i; it needs no slack."""
    return math.fsum(epsilon * times for epsilon, times in parts)


def drv(parts: Parts, slack: float) -> float:
    """The bare advanced theorem, which can exceed basic composition.

    >>> round(drv([(0.1, 100)], 1e-5), 6), round(drv([(0.5, 50)], 1e-5), 2)
    (5.850235, 33.18)
    """
    if any(epsilon > 300 for epsilon, _ in parts):
        return math.inf
    squares = math.fsum(times * epsilon**2 for epsilon, times in parts)
    drift = math.fsum(times * epsilon * math.expm1(epsilon) for epsilon, times in parts)
    return drift + math.sqrt(2 * math.log(1 / slack) * squares)


def advanced(parts: Parts, slack: float) -> float:
    """The advanced theorem, never worse than basic."""
    return min(basic(parts), drv(parts, slack))


def kov_closed(parts: Parts, slack: float) -> float:
    """The closed upper bound of Kairouz, Oh and Viswanath 2015, theorem 3.5.

    >>> round(kov_closed([(0.1, 100)], 1e-5), 6)
    5.29811
    """
    squares = math.fsum(times * epsilon**2 for epsilon, times in parts)
    drift = math.fsum(times * epsilon * math.tanh(epsilon / 2) for epsilon, times in parts)
    root = math.log(math.e + math.sqrt(squares) / slack)
    return min(
        basic(parts),
        drift + math.sqrt(2 * squares * root),
        drift + math.sqrt(2 * squares * math.log(1 / slack)),
    )


def response_delta(total: float, epsilon: float, times: int) -> float:
    """δ at ``total`` of ``times`` randomised responses with ε each: Σ_l Bin(l)·(1 − e^{total − (k−2l)ε})₊."""
    # Terms count while (k − 2l)ε > total.
    last = math.ceil((times - total / epsilon) / 2)
    if last <= 0:
        return 0.0
    wrong = np.arange(min(last, times + 1))
    gap = total - (times - 2.0 * wrong) * epsilon
    weight = binom.pmf(wrong, times, 1 / (1 + math.exp(epsilon)))
    return float(np.sum(weight * -np.expm1(np.minimum(gap, 0.0))))


def equal_optimal(epsilon: float, times: int, slack: float) -> float:
    """The optimal composition of equal releases.

    >>> round(equal_optimal(0.1, 100, 1e-5), 6), round(equal_optimal(0.5, 50, 1e-5), 6)
    (4.306791, 18.933283)
    """
    if epsilon > 300 or times > MAX_TERMS:
        return kov_closed([(epsilon, times)], slack)
    if response_delta(0.0, epsilon, times) <= slack:
        return 0.0
    return float(brentq(lambda e: response_delta(e, epsilon, times) - slack, 0.0, epsilon * times, xtol=1e-10))


def optimal(parts: Parts, slack: float) -> float:
    """The optimal composition, never worse than advanced."""
    some = [(epsilon, times) for epsilon, times in parts if epsilon * times > 0]
    if not some:
        return 0.0
    best = min(advanced(some, slack), kov_closed(some, slack))
    if len({epsilon for epsilon, _ in some}) == 1:
        return min(best, equal_optimal(some[0][0], sum(times for _, times in some), slack))
    if best > 1000:
        return best
    interval = max(1e-5, best / 200_000)
    whole = losses.identity(value_discretization_interval=interval)
    for epsilon, times in some:
        step = losses.from_privacy_parameters(
            DifferentialPrivacyParameters(epsilon, 0.0), value_discretization_interval=interval
        )
        whole = whole.compose(step if times == 1 else step.self_compose(times))
    return min(best, float(whole.get_epsilon_for_delta(slack)))
