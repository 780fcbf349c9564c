"""Rényi differential privacy: the accountant of the round loop (Mironov 2017; SPEC 4).

The curve of one release is computed once per setting and kept; a round then costs one vector addition and one
conversion. Orders: dp-accounting's own plus all integers 64..256 (its jump from 63 to 128 loses 33 % where the
rate is small and the noise large).

Where each curve comes from:

- Gaussian, nothing sampled: α/(2z²). Poisson: integer orders by the binomial sum (Mironov, Talwar and Zhang
  2019), fractional ones by dp-accounting.
- Laplace, discrete Gaussian, Skellam, Poisson-sampled: the same sum over their own moments, integer orders only.
  It bounds both directions because x → shift − x swaps the two output distributions (ibid., theorem 5).
- Without replacement: dp-accounting's bound (Wang, Balle and Kasiviswanathan 2019) *at half the multiplier*:
  release 0.6 takes the sensitivity C where replacing one unit needs 2C (google/differential-privacy #378).
- Poisson under ``replace``: the pair (1−q)N(0)+qN(±1), integrated numerically in both directions.
"""

from __future__ import annotations

import contextlib
import logging
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import dp_accounting
import numpy as np
from dp_accounting.rdp import rdp_privacy_accountant
from scipy.special import gammaln, logsumexp

from fedveil.core.errors import Refused
from fedveil.privacy.analytic import check_delta
from fedveil.privacy.events import Event, Poisson, WithoutReplacement

Array = np.ndarray[Any, np.dtype[np.float64]]
Counts = Mapping[Event, int]

LIBRARY_ORDERS: tuple[float, ...] = tuple(rdp_privacy_accountant.DEFAULT_RDP_ORDERS)
ORDERS: tuple[float, ...] = tuple(sorted({*LIBRARY_ORDERS, *map(float, range(64, 257))}))
"""dp-accounting's orders and all integers 64..256."""

REPLACE_ONE = dp_accounting.NeighboringRelation.REPLACE_ONE


class CoarseOrders(UserWarning):
    """The chosen Rényi orders report a larger epsilon than the mechanism costs."""


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep dp-accounting's note on orders that it leaves out (harmless: still an upper bound) off the screen."""
    logger = logging.getLogger("absl")

    def keep(record: logging.LogRecord) -> bool:
        return "_compute_log_a_frac" not in str(record.msg)

    logger.addFilter(keep)
    try:
        yield
    finally:
        logger.removeFilter(keep)


def _library(event: Any, orders: Array, relation: Any = None) -> Array:
    """dp-accounting's curve of one of its events."""
    kind = relation or dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
    with quiet():
        accountant = rdp_privacy_accountant.RdpAccountant(orders, kind)
        return np.asarray(accountant.compose(event).rdp, dtype=np.float64)


def plain(event: Event, orders: Array) -> Array:
    """The curve of one release of a mechanism that nothing samples."""
    z = event.effective
    if event.mechanism in ("gaussian", "discrete_gaussian"):
        return orders / (2 * z * z)
    if event.mechanism == "laplace":
        return _laplace(1 / z, orders)
    if event.mechanism == "pure":
        return _pure(1 / z, orders)
    return _skellam(event, orders)


def _laplace(epsilon: float, orders: Array) -> Array:
    """Mironov 2017, proposition 6; it is convex in ε, so one coordinate with all of the l1 shift is the worst."""
    a = orders
    first = np.log(a / (2 * a - 1)) + (a - 1) * epsilon
    second = np.log((a - 1) / (2 * a - 1)) - a * epsilon
    return np.asarray(np.logaddexp(first, second) / (a - 1))


def _pure(epsilon: float, orders: Array) -> Array:
    """Binary randomised response, which is the worst of all ε-private mechanisms (Kairouz, Oh, Viswanath 2015)."""
    a = orders
    p, r = -np.log1p(np.exp(-epsilon)), -np.log1p(np.exp(epsilon))
    return np.asarray(np.logaddexp(a * p + (1 - a) * r, a * r + (1 - a) * p) / (a - 1))


def _skellam(event: Event, orders: Array) -> Array:
    """Agarwal, Kairouz and Liu 2021, in grid units, integer orders only (SPEC 6.3).

    a·Δ₂²/2μ + min{((2a−1)·Δ₂² + 6Δ₁)/4μ², 3Δ₁/2μ} with Δ₁ = Δ₂·min(√d, Δ₂); μ is the noise variance.
    """
    assert event.grid_std is not None
    mu = event.grid_std**2
    two = event.grid_std / event.effective
    one = two * (two if event.dim is None else min(math.sqrt(event.dim), two))
    extra = np.minimum(((2 * orders - 1) * two**2 + 6 * one) / (4 * mu**2), 3 * one / (2 * mu))
    return np.where(orders == np.floor(orders), orders * two**2 / (2 * mu) + extra, np.inf)


def sampled(rate: float, moment: Callable[[Array], Array], order: int) -> float:
    """Poisson sampling at one integer order: log Σ_k C(α,k)(1−q)^{α−k} q^k E[(P/Q)^k] / (α−1).

    ``moment`` gives log E_Q[(P/Q)^k] = (k−1)·rdp(k), or an upper bound of it.
    """
    k = np.arange(order + 1.0)
    log_moment = np.zeros(order + 1)
    log_moment[2:] = moment(k[2:])
    comb = gammaln(order + 1) - gammaln(k + 1) - gammaln(order - k + 1)
    terms = comb + k * math.log(rate) + (order - k) * math.log1p(-rate) + log_moment
    return max(0.0, float(logsumexp(terms))) / (order - 1)


def _poisson(event: Event, orders: Array) -> Array:
    q = event.rate
    unsampled = plain(event, orders)
    if event.adjacency == "replace":
        if event.mechanism != "gaussian":
            raise Refused(
                f"rdp: Poisson sampling of {event.mechanism} under adjacency replace has no bound here; "
                "use adjacency zero_out, or the basic or advanced accountant"
            )
        return np.minimum(_poisson_replace(q, event.multiplier, orders), unsampled)

    def moment(k: Array) -> Array:
        return (k - 1) * plain(event, k)

    whole = orders == np.floor(orders)
    curve = np.full(len(orders), np.inf)
    curve[whole] = [sampled(q, moment, int(a)) for a in orders[whole]]
    if event.mechanism == "gaussian" and not whole.all():
        gaussian = dp_accounting.GaussianDpEvent(event.multiplier)
        curve[~whole] = _library(dp_accounting.PoissonSampledDpEvent(q, gaussian), orders[~whole])
    return np.asarray(np.minimum(curve, unsampled))


def _poisson_replace(q: float, z: float, orders: Array) -> Array:
    """Replacing one unit under Poisson sampling: P = (1−q)N(0,z²)+qN(1,z²) against its mirror image.

    This is the pair that dp-accounting's PLD uses. The trapezoid rule is exact to rounding on such smooth,
    fast-falling integrands; the tilted mass lies within (2α+1)/2 of the middle.
    """

    def log_density(x: Array, centre: float) -> Array:
        mixed = np.logaddexp(math.log1p(-q) - x**2 / (2 * z * z), math.log(q) - (x - centre) ** 2 / (2 * z * z))
        return np.asarray(mixed - math.log(z * math.sqrt(2 * math.pi)))

    curve = np.empty(len(orders))
    for i, a in enumerate(orders):
        reach = 2 * a + 1 + 12 * z
        count = int(min(400_000, max(4001, 24 * reach / min(z, 1.0))))
        x = np.linspace(-reach, reach, count)
        power = a * log_density(x, 1.0) + (1 - a) * log_density(x, -1.0)
        curve[i] = max(0.0, float(logsumexp(power) + math.log(x[1] - x[0]))) / (a - 1)
    return curve


def _drawn(event: Event, orders: Array) -> Array:
    """Drawing without replacement, any mechanism (Wang, Balle and Kasiviswanathan 2019, theorem 9, with ε(∞) = ∞).

    1 + γ²C(α,2)·min{4(e^{ε(2)} − 1), 2e^{ε(2)}} + Σ_{j≥3} 2γ^j C(α,j)·e^{(j−1)ε(j)}, integer orders α; ε(j) is the
    curve for *replacing* one unit, since the one that is missing makes room for another. Orders up to 64.
    """
    gamma, unsampled = event.rate, replace(event, sampling=None, adjacency="replace")
    top = 64
    j = np.arange(2.0, top + 1)
    moments = (j - 1) * plain(unsampled, j)
    heads = math.log(2) + moments
    heads[0] = min(math.log(4) + moments[0] + math.log(-math.expm1(-moments[0])), heads[0])
    curve = np.full(len(orders), np.inf)
    for i, a in enumerate(orders):
        if a == math.floor(a) and 2 <= a <= top:
            k = j[: int(a) - 1]
            comb = gammaln(a + 1) - gammaln(k + 1) - gammaln(a - k + 1)
            curve[i] = np.logaddexp(0.0, logsumexp(comb + k * math.log(gamma) + heads[: len(k)])) / (a - 1)
    return curve


def _without_replacement(event: Event, orders: Array) -> Array:
    if event.mechanism in ("discrete_gaussian", "skellam"):
        undrawn = replace(event, sampling=None)  # never amplifying is sound as well; zeroing then has sensitivity C
        return np.asarray(np.minimum(_drawn(event, orders), plain(undrawn, orders)))
    if event.mechanism != "gaussian":
        raise Refused(
            f"rdp: drawing {event.mechanism} releases without replacement has no bound here; use Poisson sampling, "
            "or the basic or advanced accountant"
        )
    # Never amplifying is always sound; zeroing then keeps the sensitivity C.
    own = orders / (2 * (event.multiplier if event.adjacency == "zero_out" else event.effective) ** 2)
    known = np.isin(orders, LIBRARY_ORDERS)  # the bound costs O(α²) steps of Python per order
    curve = np.full(len(orders), np.inf)
    sampling = event.sampling
    assert isinstance(sampling, WithoutReplacement)
    gaussian = dp_accounting.GaussianDpEvent(event.effective)
    drawn = dp_accounting.SampledWithoutReplacementDpEvent(sampling.population, sampling.size, gaussian)
    curve[known] = _library(drawn, orders[known], REPLACE_ONE)
    return np.asarray(np.minimum(curve, own))


@lru_cache(maxsize=4096)
def one_step(event: Event, orders: tuple[float, ...] = ORDERS) -> Array:
    """The Rényi curve of one release, computed once per setting."""
    alphas = np.asarray(orders, dtype=np.float64)
    if event.sampling is None:
        curve = plain(event, alphas)
    elif isinstance(event.sampling, Poisson):
        curve = _poisson(event, alphas)
    else:
        curve = _without_replacement(event, alphas)
    curve.setflags(write=False)
    return curve


def composed(counts: Counts, orders: tuple[float, ...] = ORDERS) -> Array:
    """The Rényi curve of everything that happened: curves add up."""
    total = np.zeros(len(orders))
    for event, times in counts.items():
        total += times * one_step(event, orders)
    return total


@lru_cache(maxsize=64)
def _conversion(orders: tuple[float, ...], delta: float) -> Array:
    a = np.asarray(orders)
    offset = np.log1p(-1 / a) - np.log(delta * a) / (a - 1)
    return np.where(a > 1.01, offset, np.inf)


def to_epsilon(curve: Array, delta: float, orders: tuple[float, ...] = ORDERS) -> float:
    """The tight conversion ε = rdp(α) + log((α−1)/α) − (log δ + log α)/(α−1) (Canonne, Kamath, Steinke 2020).

    Zero where the Kullback-Leibler bound δ ≤ √(1 − e^{−rdp}) already gives δ, as in dp-accounting.
    """
    if np.any(delta**2 + np.expm1(-curve) > 0):
        return 0.0
    return max(0.0, float(np.min(curve + _conversion(orders, delta))))


def classic_epsilon(curve: Array, delta: float, orders: tuple[float, ...]) -> float:
    """The classic conversion ε = rdp(α) + log(1/δ)/(α−1) of Mironov 2017 and Abadi et al. 2016."""
    return max(0.0, float(np.min(curve + math.log(1 / delta) / (np.asarray(orders) - 1))))


def rdp_epsilon(counts: Counts, delta: float, orders: Sequence[float] | None = None, *, warn: bool = True) -> float:
    """Epsilon by Rényi accounting; own ``orders`` that lose more than 1 % give a warning with the loss."""
    check_delta(delta)
    if not counts:
        return 0.0
    if orders is None:
        return to_epsilon(composed(counts), delta)
    chosen = tuple(float(a) for a in orders)
    if not chosen or min(chosen) <= 1:
        raise Refused("orders: Rényi orders lie above 1; give numbers such as (2, 4, 8, 16, 32, 64)")
    reported = to_epsilon(composed(counts, chosen), delta, chosen)
    best = to_epsilon(composed(counts), delta) if warn else reported
    if reported > 1.01 * best:
        warnings.warn(
            f"orders: these {len(chosen)} Rényi orders report epsilon {reported:.4g} where the default ones show "
            f"{best:.4g} ({100 * (reported / best - 1) if best else math.inf:.0f} % more); use the default orders",
            CoarseOrders,
            stacklevel=2,
        )
    return reported


MOMENT_ORDERS: tuple[float, ...] = tuple(map(float, range(2, 34)))


def moments_epsilon(counts: Counts, delta: float) -> float:
    """The moments accountant of Abadi et al. 2016: λ = 1..32, ε = min_λ (Σ α(λ) + log(1/δ))/λ, α(λ) = λ·rdp(λ+1).

    It is kept for comparison with published tables; ``rdp`` is never worse.
    """
    check_delta(delta)
    if not counts:
        return 0.0
    return classic_epsilon(composed(counts, MOMENT_ORDERS), delta, MOMENT_ORDERS)
