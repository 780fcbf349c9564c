"""What an attack's success says about epsilon: lower bounds that stand beside a claim (SPEC 8).

One run (Steinke, Nasr and Jagielski 2023, theorem 5.2): each of m canaries is in or out by a fair coin; an attacker who
sees only what the observer sees says of r of them, fixed beforehand, whether they are in. If v of r answers are right,
the claim (ε, δ) has the p-value

    p(ε) = P[Bin(r, q) ≥ v] + 2mδ·max_i P[v > Bin(r, q) ≥ v − i]/i,   q = 1/(1 + e^−ε),

and the lower bound is the largest ε whose p-value is below the risk. It holds although all canaries share one run.

Canary clients (Andrew et al. 2023): the cosine of a random direction that nobody sent with what was released has an
exactly known distribution, so that false alarms need not be counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy.optimize import brentq
from scipy.stats import beta, binom, norm

from fedveil.core.errors import Refused

Floats = np.ndarray[Any, np.dtype[np.float64]]
Coins = np.ndarray[Any, np.dtype[np.bool_]]

CONFIDENCE = 0.95
"""Of the bound that is shown."""
STRICT = 1 - 1e-4
"""Of the bound that a claim must not fall below: an honest run fails once in ten thousand audits."""
MOST = 700.0
"""No epsilon above this is looked for: e^ε leaves what numbers hold."""


def p_value(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """How likely so many right guesses are at most, if the claim holds.

    >>> round(p_value(1000, 100, 90, 1.62614, 1e-5), 4)
    0.05
    """
    q = 1 / (1 + math.exp(-epsilon))
    tail = float(binom.sf(right - 1, guesses, q))
    if delta == 0 or right == 0:
        return min(1.0, tail)
    fewer = np.arange(1, right + 1)
    between = binom.sf(right - fewer - 1, guesses, q) - tail
    return min(1.0, tail + 2 * canaries * delta * float(np.max(between / fewer)))


def lower_bound(canaries: int, guesses: int, right: int, delta: float, confidence: float = CONFIDENCE) -> float:
    """The largest ε that so many right guesses rule out; 0 where they rule out nothing.

    >>> round(lower_bound(1000, 100, 100, 1e-5), 5), lower_bound(1000, 100, 50, 1e-5)
    (3.46538, 0.0)
    """
    if not 0 <= right <= guesses <= canaries:
        raise Refused(f"audit: {right} right of {guesses} guesses about {canaries} canaries cannot be")
    return _largest(lambda epsilon: p_value(canaries, guesses, right, epsilon, delta), 1 - confidence)


def cap(canaries: int, guesses: int, delta: float, confidence: float = CONFIDENCE) -> float:
    """What guesses can show at most, all of them being right: about ln(r/3) at 95 %.

    >>> round(cap(1000, 100, 0.0), 4), round(math.log(100 / 3), 4)
    (3.493, 3.5066)
    """
    return lower_bound(canaries, guesses, guesses, delta, confidence)


def _largest(p: Callable[[float], float], risk: float) -> float:
    """The largest ε with p(ε) ≤ risk, for a p-value that grows with ε."""
    if p(0.0) > risk:
        return 0.0
    high = 1.0
    while p(high) <= risk:
        high *= 2
        if high > MOST:
            return MOST
    return float(brentq(lambda epsilon: p(epsilon) - risk, 0.0, high, xtol=1e-9))


@dataclass(frozen=True)
class Guessed:
    """How the guesses came out, and the scores from which and up to which "in" and "out" were said."""

    guesses: int
    right: int
    above: float
    below: float


def guess(scores: Floats, inside: Coins, guesses: int) -> Guessed:
    """Say "in" of the highest half of ``guesses`` scores, "out" of the lowest half, nothing of the others.

    >>> guess(np.array([3.0, 0.1, -0.2, 2.0]), np.array([True, False, False, False]), 2).right
    2
    """
    half = guesses // 2
    if guesses % 2 or not 1 <= half <= len(scores) // 2:
        raise Refused(f"audit.guesses: {guesses} of {len(scores)} canaries; give an even number from 2 to the canaries")
    order = np.argsort(scores, kind="stable")
    low, high = order[:half], order[-half:]
    right = int(np.sum(~inside[low])) + int(np.sum(inside[high]))
    return Guessed(2 * half, right, float(scores[high[0]]), float(scores[low[-1]]))


Verdict = Literal["holds", "violated", "no power"]


def verdict(claim: float, shown: float, most: float) -> Verdict:
    """What an audit says about a claim, from its lower bound and its cap.

    A claim above the cap could not have been caught: the audit has no power (SPEC 8).

    >>> verdict(4.0, 2.0, 5.0), verdict(4.0, 4.5, 5.0), verdict(8.0, 4.9, 5.0)
    ('holds', 'violated', 'no power')
    """
    if shown > claim:
        return "violated"
    return "no power" if claim >= most else "holds"


ABOVE = 0.5
"""So far above the claim the cap should be, where the canaries suffice."""
SHARE = 10
"""One canary in so many is guessed about: the surest ones (more guesses show less where noise is honest; measured)."""


def usual_guesses(canaries: int, claim: float, delta: float) -> int:
    """How many guesses to make; follows from public numbers alone, so that scores cannot influence it.

    >>> usual_guesses(5000, 4.0, 1e-5), usual_guesses(5000, 6.0, 1e-5), usual_guesses(100, 4.0, 1e-5)
    (500, 2404, 100)
    """
    most = canaries - canaries % 2
    guesses = min(most, max(2, canaries // SHARE // 2 * 2))
    while guesses < most and cap(canaries, guesses, delta) < claim + ABOVE:
        guesses = min(most, int(1.25 * guesses) // 2 * 2 + 2)
    return guesses


def above_null(cosine: Floats | float, dim: int) -> Floats:
    """P[cosine of an unseen random direction in ``dim`` dimensions ≥ this]: (1 + cos)/2 ~ Beta((d−1)/2, (d−1)/2).

    >>> round(float(above_null(0.0, 10)), 3)
    0.5
    """
    half = (dim - 1) / 2
    return np.asarray(beta.sf((1 + np.asarray(cosine, dtype=np.float64)) / 2, half, half))


THRESHOLDS = tuple(math.exp(-j / 2) for j in range(1, 81))
"""False-alarm rates of the thresholds that are tried, fixed beforehand; they share the risk."""


def cosine_bound(cosines: Floats, dim: int, rounds: int, delta: float, confidence: float = CONFIDENCE) -> float:
    """ln((1 − δ − FNR_high)/FPR) at the best threshold, from the largest cosine over rounds of each canary that is in.

    False alarms by the union bound over rounds, misses by Clopper and Pearson, which takes canaries as independent of
    each other. That holds only nearly, so that no verdict rests on this bound.

    >>> cosine_bound(np.linspace(-0.1, 0.1, 100), 200, 1, 1e-5)
    0.0
    """
    best, risk = 0.0, (1 - confidence) / len(THRESHOLDS)
    half = (dim - 1) / 2
    for alarms in THRESHOLDS:
        threshold = 2 * float(beta.isf(alarms / rounds, half, half)) - 1
        hits = int(np.sum(cosines >= threshold))
        caught = 0.0 if not hits else float(beta.ppf(risk, hits, len(cosines) - hits + 1))
        if caught > delta:
            best = max(best, math.log((caught - delta) / alarms))
    return best


def two_gaussians(null_std: float, mean: float, std: float, delta: float) -> float:
    """ε at which N(0, null_std²) and N(mean, std²) are told apart with δ: an *estimate*, not a bound.

    >>> round(two_gaussians(1.0, 1.0, 1.0, 1e-5), 4)
    4.3772
    """

    def excess(epsilon: float) -> float:
        return max(_hockey(epsilon, 0.0, null_std, mean, std), _hockey(epsilon, mean, std, 0.0, null_std)) - delta

    if excess(0.0) <= 0:
        return 0.0
    high = 1.0
    while excess(high) > 0:
        high *= 2
        if high > MOST:
            return MOST
    return float(brentq(excess, 0.0, high, xtol=1e-9))


def _hockey(epsilon: float, a: float, s: float, b: float, t: float) -> float:
    """P[L > ε] − e^ε·Q[L > ε] with L = ln p/q, p = N(a, s²), q = N(b, t²)."""
    # L(x) > ε  ⇔  u·x² + v·x + c > 0
    u = 0.5 / t**2 - 0.5 / s**2
    v = a / s**2 - b / t**2
    c = 0.5 * b**2 / t**2 - 0.5 * a**2 / s**2 + math.log(t / s) - epsilon
    if abs(u) * (s + t + abs(a - b)) ** 2 < 1e-12:
        if v == 0:
            return 0.0
        edge = -c / v
        inside = [(edge, math.inf)] if v > 0 else [(-math.inf, edge)]
    else:
        root = v * v - 4 * u * c
        if root < 0:
            inside = [(-math.inf, math.inf)] if u > 0 else []
        else:
            low, high = sorted(((-v - math.sqrt(root)) / (2 * u), (-v + math.sqrt(root)) / (2 * u)))
            inside = [(low, high)] if u < 0 else [(-math.inf, low), (high, math.inf)]

    def mass(mean: float, std: float) -> float:
        # In the upper tail 1 − cdf loses everything; sf does not.
        return sum(
            float(norm.sf(x, mean, std) - norm.sf(y, mean, std))
            if x > mean
            else float(norm.cdf(y, mean, std) - norm.cdf(x, mean, std))
            for x, y in inside
        )

    return mass(a, s) - math.exp(epsilon) * mass(b, t)
