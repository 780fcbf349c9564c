"""Discrete noise: exact distributions, and probability ratios without sampling (acceptance 3)."""

from __future__ import annotations

import math
from decimal import Decimal

import numpy as np
import pytest
from scipy.special import ive, logsumexp
from scipy.stats import chi2

from fedveil.core.errors import Refused
from fedveil.privacy import discrete, rdp
from fedveil.privacy.accountants import epsilon
from fedveil.privacy.events import Event, Poisson

K = np.arange(-400, 401)


def log_gaussian(std: float) -> np.ndarray:
    weight = -(K**2) / (2 * std * std)
    return weight - logsumexp(weight)


def log_skellam(std: float) -> np.ndarray:
    """P(k) = e^{−μ} I_k(μ), μ = std²; ive is e^{−μ} I_k(μ)."""
    with np.errstate(divide="ignore"):
        return np.log(ive(np.abs(K).astype(float), std * std))


def shifted(log_p: np.ndarray, by: int) -> tuple[np.ndarray, np.ndarray]:
    """The distribution and its shift, on the points that both cover."""
    p, q = log_p[by:], log_p[:-by]
    keep = np.isfinite(p) & np.isfinite(q)
    return p[keep], q[keep]


def renyi(p: np.ndarray, q: np.ndarray, order: float) -> float:
    return float(logsumexp(order * p + (1 - order) * q)) / (order - 1)


def hockey_stick(p: np.ndarray, q: np.ndarray, eps: float) -> float:
    return float(np.sum(np.maximum(np.exp(p) - np.exp(eps + q), 0)))


def mixtures(p: np.ndarray, q: np.ndarray, rate: float) -> np.ndarray:
    return np.logaddexp(math.log1p(-rate) + q, math.log(rate) + p)


CASES = [("discrete_gaussian", log_gaussian, s, by) for s, by in ((2.0, 1), (5.0, 4), (20.0, 10))] + [
    ("skellam", log_skellam, s, by) for s, by in ((3.0, 1), (6.0, 4), (16.0, 10))
]


def event(name: str, std: float, by: int, **more) -> Event:
    # One coordinate that moves by `by` grid steps: Δ₂ = Δ₁ = by.
    extra = {"grid_std": std, "dim": 1} if name == "skellam" else {}
    return Event(name, std / by, **extra, **more)


@pytest.mark.parametrize(("name", "pmf", "std", "by"), CASES)
def test_renyi_curves_hold_exactly(name, pmf, std, by):
    p, q = shifted(pmf(std), by)
    orders = (2.0, 3.0, 5.0, 8.0)
    claim = rdp.one_step(event(name, std, by), orders)
    for order, bound in zip(orders, claim, strict=True):
        assert max(renyi(p, q, order), renyi(q, p, order)) <= bound * (1 + 1e-9)
    assert renyi(p, q, 2.0) > 0.75 * claim[0]


@pytest.mark.parametrize(("name", "pmf", "std", "by"), CASES)
@pytest.mark.parametrize("rate", [0.01, 0.3])
def test_sampled_renyi_curves_hold_exactly_in_both_directions(name, pmf, std, by, rate):
    p, q = shifted(pmf(std), by)
    mixed = mixtures(p, q, rate)
    orders = (2.0, 3.0, 5.0, 8.0)
    claim = rdp.one_step(event(name, std, by, sampling=Poisson(rate)), orders)
    for order, bound in zip(orders, claim, strict=True):
        assert renyi(q, mixed, order) <= renyi(mixed, q, order) * (1 + 1e-9) <= bound * (1 + 2e-9)


@pytest.mark.parametrize(("name", "pmf", "std", "by"), CASES)
@pytest.mark.parametrize("delta", [1e-3, 1e-6])
def test_probability_ratios_keep_the_claim(name, pmf, std, by, delta):
    p, q = shifted(pmf(std), by)
    claim = epsilon(event(name, std, by), delta)
    assert max(hockey_stick(p, q, claim), hockey_stick(q, p, claim)) <= delta
    mutant_p, mutant_q = shifted(pmf(0.8 * std), by)
    tight = next(e for e in np.linspace(0, 60, 6001) if hockey_stick(p, q, e) <= delta)
    assert hockey_stick(mutant_p, mutant_q, tight) > delta


def test_laplace_sampled_curve_against_quadrature():
    from scipy.integrate import quad

    rate, b = 0.2, 1.5
    claim = rdp.one_step(Event("laplace", b, Poisson(rate)), (2.0, 6.0))
    for order, bound in zip((2.0, 6.0), claim, strict=True):

        def ratio(x: float) -> float:
            return 1 - rate + rate * math.exp((abs(x) - abs(x - 1)) / b)

        forward = quad(
            lambda x, a=order: math.exp(-abs(x) / b) / (2 * b) * ratio(x) ** a, -60, 60, points=(0, 1), limit=200
        )[0]
        back = quad(
            lambda x, a=order: math.exp(-abs(x) / b) / (2 * b) * ratio(x) ** (1 - a), -60, 60, points=(0, 1), limit=200
        )[0]
        assert math.log(forward) / (order - 1) == pytest.approx(bound, rel=1e-7)
        assert math.log(back) / (order - 1) <= bound


def fits(draws: np.ndarray, log_p: np.ndarray) -> float:
    """Chi-square over cells of at least 20 expected draws, as a p-value."""
    expected = len(draws) * np.exp(log_p)
    big = expected >= 20
    observed = np.bincount(np.clip(draws - K[0], 0, len(K) - 1), minlength=len(K))
    cells = np.append(observed[big], observed[~big].sum()), np.append(expected[big], expected[~big].sum())
    keep = cells[1] > 5
    statistic = float(np.sum((cells[0][keep] - cells[1][keep]) ** 2 / cells[1][keep]))
    return float(chi2.sf(statistic, keep.sum() - 1))


@pytest.mark.parametrize("std", [0.4, 0.7, 1.0, 2.7, 12.0, 50.0])
def test_discrete_gaussian_has_its_exact_distribution(std: float):
    draws = discrete.discrete_gaussian(np.random.default_rng(7), std, 400_000)
    assert fits(draws, log_gaussian(std)) > 1e-4
    assert fits(draws, log_gaussian(1.03 * std)) < 1e-4


@pytest.mark.parametrize("std", [1.0, 4.0, 30.0])
def test_skellam_has_its_distribution(std: float):
    draws = discrete.skellam(np.random.default_rng(8), std, 400_000)
    assert fits(draws, log_skellam(std)) > 1e-4
    assert fits(draws, log_skellam(1.03 * std)) < 1e-4


class Scripted:
    """A generator whose uniform numbers are given: it forces the draws that floats cannot decide."""

    def __init__(self, uniform: float, more: bytes) -> None:
        self.uniform, self.more, self.asked = uniform, more, 0

    def random(self, size: int) -> np.ndarray:
        return np.full(size, self.uniform)

    def bytes(self, count: int) -> bytes:
        self.asked += 1
        return self.more


def test_draws_on_the_edge_are_settled_with_more_bits():
    # The 53-bit number whose cell holds exp(−1/3): more bits decide on which side U lies.
    edge = math.floor((Decimal(-1) / 3).exp() * 2**53) / 2**53
    above, below = Scripted(edge, b"\xff" * 40), Scripted(edge, b"\x00" * 40)
    assert discrete._geometric(above, 3, 1)[0] == 0
    assert discrete._geometric(below, 3, 1)[0] == 1
    assert (above.asked, below.asked) == (1, 1)
    clear = Scripted(0.5, b"")
    assert discrete._geometric(clear, 3, 1)[0] == 2
    assert clear.asked == 0
    # σ = 2, t = 3, y = 3: accepted with probability exp(−(3 − 4/3)²/8)
    chance = (-((Decimal(3) - Decimal(4) / 3) ** 2) / 8).exp()
    edge = math.floor(chance * 2**53) / 2**53
    assert not discrete._accepted(Scripted(edge, b"\xff" * 40), np.array([3]), 2.0, 3)[0]
    assert discrete._accepted(Scripted(edge, b"\x00" * 40), np.array([3]), 2.0, 3)[0]
    assert discrete._geometric(Scripted(0.0, b"\x01" + b"\x00" * 39), 3, 1)[0] > 3 * 200


def test_wide_noise_keeps_its_variance():
    draws = discrete.discrete_gaussian(np.random.default_rng(9), 3e7, 500_000) / 3e7
    assert abs(draws.var() - 1) < 3 * math.sqrt(2 / 500_000)
    assert abs(draws.mean()) < 3 / math.sqrt(500_000)


def test_out_of_range_is_refused():
    for sampler in (discrete.discrete_gaussian, discrete.skellam):
        for std in (0.0, -1.0, 2.0**50, math.nan):
            with pytest.raises(Refused, match="out of range"):
                sampler(np.random.default_rng(0), std, 3)
