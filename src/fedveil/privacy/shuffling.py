"""What shuffling adds to reports that are private by themselves (SPEC 5): exact sums, no closed forms.

n clients send one ε₀-private report each, and the observer sees the reports without knowing whose they are. Replacing
one client's data is then at most as visible as telling (A + Δ, C + 1) from (A + 1 − Δ, C + 1), where C ~ Bin(n − 1, γ)
others cannot be told from noise, A ~ Bin(C, 1/2), and Δ ~ Bernoulli(e^{ε₀}/(e^{ε₀} + 1)):

- ``binary``: γ = 2/(e^{ε₀} + 1), for reports of one of two values (the privacy blanket; Balle et al. 2019);
- ``generic``: γ = e^{−ε₀}, for any ε₀-private report (clones; Feldman, McMillan and Talwar 2021).

Reports about different coordinates and rounds are permuted by themselves, and compose.

>>> round(shuffled_epsilon(100, 1.0, 1e-5), 4)
0.4436
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np
from scipy.special import logsumexp
from scipy.stats import binom

from fedveil.core.errors import Refused, one_of, positive
from fedveil.privacy.analytic import check_delta
from fedveil.privacy.rdp import ORDERS, Array, to_epsilon

Kind = Literal["binary", "generic"]
MOST = 50_000
"""Larger crowds count as this many: others only help."""
TAIL = 1e-25
"""Terms below this are left out, and their mass counts against δ."""
FINE: tuple[float, ...] = tuple(sorted({*ORDERS, *(1 + x / 1000 for x in range(11, 100))}))
"""Rényi orders; those next to 1 decide where ε is in the hundreds."""


class Crowd(NamedTuple):
    """One report of every client about one coordinate: ``n`` clients, ε₀ of the report, the kind of randomiser."""

    n: int
    epsilon: float
    kind: Kind = "binary"


@lru_cache(maxsize=64)
def pair(crowd: Crowd) -> tuple[Array, Array, float]:
    """The log probabilities of the two distributions, and a bound on the mass that was left out of each."""
    n, epsilon, kind = crowd
    one_of("kind", kind, ("binary", "generic"))
    positive(clients=n, epsilon=epsilon)
    n = min(n, MOST)
    if epsilon > 500:
        raise Refused(f"epsilon: {epsilon:g} per report is beyond what shuffling can help; it amplifies nothing")
    blanket = 2 / (math.exp(epsilon) + 1) if kind == "binary" else math.exp(-epsilon)
    often, seldom = -math.log1p(math.exp(-epsilon)), -epsilon - math.log1p(math.exp(-epsilon))
    cs = np.arange(n)
    log_c = binom.logpmf(cs, n - 1, blanket)
    first, second = [], []
    for c in cs[log_c > math.log(TAIL)]:
        reach = 2 + math.ceil(math.sqrt(c * -math.log(TAIL) / 2))  # Hoeffding
        a = np.arange(max(0, c // 2 - reach), min(c + 1, (c + 1) // 2 + reach) + 1)
        with_one, without = log_c[c] + binom.logpmf(a - 1, c, 0.5), log_c[c] + binom.logpmf(a, c, 0.5)
        first.append(np.logaddexp(often + with_one, seldom + without))
        second.append(np.logaddexp(seldom + with_one, often + without))
    return np.concatenate(first), np.concatenate(second), 4 * (n + 1) * TAIL


def shuffled_epsilon(n: int, epsilon: float, delta: float, kind: Kind = "binary") -> float:
    """ε of one shuffled report; adjacency replace, the other n − 1 clients honest, the shuffler trusted."""
    check_delta(delta)
    if epsilon > 500:
        return epsilon
    p, q, lost = pair(Crowd(n, epsilon, kind))
    low, high = 0.0, epsilon
    for _ in range(60):
        middle = (low + high) / 2
        if np.maximum(np.exp(p) - np.exp(q + middle), 0.0).sum() + lost <= delta:  # the pair is its own mirror image
            high = middle
        else:
            low = middle
    return high


@lru_cache(maxsize=256)
def curve(crowd: Crowd) -> Array:
    """The Rényi curve of one shuffled report."""
    p, q, _ = pair(crowd)
    out = np.array([logsumexp(a * p + (1 - a) * q) / (a - 1) for a in FINE])
    out.setflags(write=False)
    return out


def composed_epsilon(counts: Mapping[Crowd, int], delta: float) -> float:
    """ε of so many shuffled reports of one client, about different coordinates and rounds.

    >>> round(composed_epsilon({Crowd(100, 1.0): 21_840 * 10}, 1e-5), -1)
    2020.0
    """
    check_delta(delta)
    if not counts:
        return 0.0
    lost = sum(times * pair(crowd)[2] for crowd, times in counts.items())
    if lost >= delta / 2:
        raise Refused(f"delta: {delta:g} is too small for so many reports; give a larger one")
    total = np.sum([times * curve(crowd) for crowd, times in counts.items()], axis=0)
    return min(to_epsilon(total, delta - lost, FINE), sum(crowd.epsilon * n for crowd, n in counts.items()))
