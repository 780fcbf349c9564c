"""Hypothesis tests of privacy claims: the event is chosen on one half of the samples and judged on the other.

Clopper-Pearson bounds at confidence 1 − 1e-4, two directions and two bounds sharing the risk (SPEC 4).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from scipy.stats import beta

RISK = 1e-4


def low(hits: int, trials: int) -> float:
    """Lower Clopper-Pearson bound of a probability."""
    return 0.0 if hits == 0 else float(beta.ppf(RISK / 4, hits, trials - hits + 1))


def high(hits: int, trials: int) -> float:
    """Upper Clopper-Pearson bound of a probability."""
    return 1.0 if hits == trials else float(beta.ppf(1 - RISK / 4, hits + 1, trials - hits))


def _tests(with_it: np.ndarray, without: np.ndarray, score) -> Iterator[tuple[int, int, int]]:
    """Hits of the best threshold event, chosen on the first halves, in the second halves; for both directions."""
    for p, q in ((with_it, without), (without, with_it)):
        half = len(p) // 2
        first_p, first_q = np.sort(p[:half]), np.sort(q[:half])
        thresholds = np.quantile(np.concatenate([first_p, first_q]), np.linspace(0.001, 0.999, 400))
        above_p = half - np.searchsorted(first_p, thresholds, "left")
        above_q = half - np.searchsorted(first_q, thresholds, "left")
        best = max(
            (score(a, b, half), t, upper)
            for upper in (True, False)
            for t, a, b in zip(
                thresholds,
                above_p if upper else half - above_p,
                above_q if upper else half - above_q,
                strict=True,
            )
        )
        _, t, upper = best
        judge = (lambda x, t=t: int(np.sum(x >= t))) if upper else (lambda x, t=t: int(np.sum(x < t)))
        yield judge(p[half:]), judge(q[half:]), len(p) - half


def epsilon_shown(with_it: np.ndarray, without: np.ndarray, delta: float = 0.0) -> float:
    """The ε that these samples prove at least: ln((CP_low(p₁) − δ)/CP_up(p₀))."""

    def bound(a: int, b: int, n: int) -> float:
        return math.log(max(low(a, n) - delta, 1e-300) / high(b, n))

    return max(bound(a, b, n) for a, b, n in _tests(with_it, without, bound))


def delta_shown(with_it: np.ndarray, without: np.ndarray, epsilon: float) -> float:
    """The δ at ``epsilon`` that these samples prove at least: CP_low(p₁) − e^ε·CP_up(p₀)."""

    def bound(a: int, b: int, n: int) -> float:
        return low(a, n) - math.exp(epsilon) * high(b, n)

    return max(bound(a, b, n) for a, b, n in _tests(with_it, without, bound))
