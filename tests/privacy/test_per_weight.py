"""Mechanisms that act on single weights: the ratio of probabilities, exactly; no bias; the variance that is claimed."""

import math
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate
from tests.privacy.evidence import epsilon_shown

from fedveil.core.errors import Refused
from fedveil.privacy import per_weight
from fedveil.privacy.per_weight import WORDS, hybrid, piecewise, reach, share, thresholds, upper, worst_variance

EPSILONS = (0.01, 0.3, 0.61, 1.0, 2.0, 4.0, 10.0, 20.0)
OUTSIDE = (-1e30, -1e6, -40.0, -1.0001, -1.0, -0.3, 0.0, 1e-9, 0.7, 1.0, 1.0001, 3.0, 1e6, 1e30, math.inf, -math.inf)
SURE = 1e-12


def probabilities(w, c, r, epsilon, mechanism=thresholds):
    """The chance of the upper value for each w, as the mechanism draws it: a fraction of 2⁶⁴ words."""
    with np.errstate(over="ignore"):  # the largest numbers over a small radius are infinite, and clamped like any other
        t = (np.asarray(w, dtype=np.float64) - c) / r
    words = mechanism(t, epsilon)
    return [Fraction(int(n), WORDS) for n in words]


def worst_ratio(chances):
    """Over both reports: the largest ratio of their probabilities between any two inputs."""
    both = [chances, [1 - p for p in chances]]
    if any(not 0 < p < 1 for side in both for p in side):
        return math.inf
    return float(max(max(side) / min(side) for side in both))


def without_the_clamp(t, epsilon):
    """The published formula as public code has it, which leaves [0, 1] outside the range."""
    p = 0.5 + t / (2 * reach(epsilon))
    return [int(min(max(x, 0.0), 1.0) * WORDS) for x in np.nan_to_num(p, posinf=2.0, neginf=-1.0)]


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize(("c", "r"), [(0.0, 0.075), (0.0, 0.015), (-3.0, 1e-6), (0.25, 12.0)])
def test_no_report_is_more_than_e_to_epsilon_times_as_likely_for_any_two_weights(epsilon, c, r):
    weights = [*(c + r * x for x in OUTSIDE), *OUTSIDE, math.nan]
    assert worst_ratio(probabilities(weights, c, r, epsilon)) <= math.exp(epsilon) * (1 + SURE)


@given(
    w=st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=2, max_size=8),
    c=st.floats(-10, 10),
    r=st.floats(1e-6, 1e3),
    epsilon=st.floats(1e-3, 20),
)
def test_the_ratio_holds_for_any_weights_centre_and_radius(w, c, r, epsilon):
    assert worst_ratio(probabilities(w, c, r, epsilon)) <= math.exp(epsilon) * (1 + SURE)


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_the_ends_of_the_range_use_all_of_epsilon(epsilon):
    ratio = worst_ratio(probabilities([-1.0, 1.0], 0.0, 1.0, epsilon))
    assert ratio == pytest.approx(math.exp(epsilon), rel=1e-9)


def test_a_mechanism_that_forgets_the_clamp_is_caught():
    weights = [-0.3, 0.0, 0.3]  # four radii out
    assert worst_ratio(probabilities(weights, 0.0, 0.075, 1.0)) <= math.e * (1 + SURE)
    assert worst_ratio(probabilities(weights, 0.0, 0.075, 1.0, without_the_clamp)) > 2 * math.e


def test_samples_show_epsilon_and_not_more_and_catch_a_missing_clamp():
    """Split halves, confidence 1 − 1e-4, 200,000 samples a side."""
    n, epsilon = 200_000, 1.0
    rng = np.random.default_rng(0)
    reports = [upper(np.full(n, t), epsilon, rng).astype(float) for t in (-5.0, 5.0)]
    assert 0.95 < epsilon_shown(*reports) <= epsilon
    careless = [rng.random(n) < min(max(0.5 + t / (2 * reach(epsilon)), 0), 1) for t in (-1.5, 1.5)]
    assert epsilon_shown(*(x.astype(float) for x in careless)) > epsilon


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("t", [-1.0, 0.0, 0.4, 1.0])
def test_two_points_are_unbiased_with_the_stated_variance(epsilon, t):
    """Within 3 standard errors each (a fixed seed); w, c and r as in the paper's example."""
    c, r, n = 0.01, 0.075, 400_000
    rng = np.random.default_rng(int(1000 * epsilon + 10 * t) + 7)
    k = reach(epsilon)
    sample = np.where(upper(np.full(n, t), epsilon, rng), c + r * k, c - r * k)
    w, variance = c + r * t, r * r * k * k - (r * t) ** 2
    assert abs(sample.mean() - w) <= 3 * math.sqrt(variance / n)
    squares = (sample - w) ** 2
    assert abs(squares.mean() - variance) <= 3 * squares.std() / math.sqrt(n) + 1e-12


def test_the_chance_is_the_formula_of_the_paper():
    t = np.linspace(-1, 1, 41)
    for epsilon in EPSILONS[:6]:  # beyond, the paper's way to write it loses digits
        e = math.exp(epsilon)
        paper = (t * (e - 1) + (e + 1)) / (2 * (e + 1))
        assert np.allclose([float(p) for p in probabilities(t, 0.0, 1.0, epsilon)], paper, rtol=1e-12, atol=0)


def density(x, t, epsilon):
    """Of the piecewise mechanism, written down once more."""
    c = (math.exp(epsilon / 2) + 1) / (math.exp(epsilon / 2) - 1)
    low = (c + 1) / 2 * t - (c - 1) / 2
    near = math.exp(epsilon / 2) / (math.exp(epsilon / 2) + 1)
    return near / (c - 1) if low <= x <= low + c - 1 else (1 - near) / (c + 1)


@pytest.mark.parametrize("epsilon", [0.7, 1.0, 4.0])
def test_the_piecewise_density_is_private_and_unbiased(epsilon):
    c = 1 / math.tanh(epsilon / 4)
    xs = np.linspace(-c, c, 4001)
    values = np.array([[density(x, t, epsilon) for x in xs] for t in np.linspace(-1, 1, 21)])
    assert (values.max(axis=0) / values.min(axis=0)).max() <= math.exp(epsilon) * (1 + SURE)
    for t in (-1.0, 0.2, 1.0):
        low = (c + 1) / 2 * t - (c - 1) / 2
        breaks = [-c, low, low + c - 1, c]
        mean = sum(
            integrate.quad(lambda x, t=t: x * density(x, t, epsilon), a + 1e-12, b - 1e-12)[0]
            for a, b in pairwise(breaks)
            if b - a > 1e-9
        )
        assert mean == pytest.approx(t, abs=1e-6)


@pytest.mark.parametrize("epsilon", [0.7, 1.0, 4.0])
def test_piecewise_samples_follow_the_density(epsilon):
    """Chi-square over 30 equal bins below its 1 − 1e-4 quantile."""
    from scipy.stats import chi2

    n, t, c = 300_000, 0.35, 1 / math.tanh(epsilon / 4)
    sample = piecewise(np.full(n, t), epsilon, np.random.default_rng(3))
    assert np.abs(sample).max() <= c
    edges = np.linspace(-c, c, 31)
    low = (c + 1) / 2 * t - (c - 1) / 2
    near = math.exp(epsilon / 2) / (math.exp(epsilon / 2) + 1)
    inside = np.clip(np.minimum(edges[1:], low + c - 1) - np.maximum(edges[:-1], low), 0, None)
    expected = n * (inside * near / (c - 1) + (np.diff(edges) - inside) * (1 - near) / (c + 1))
    found = np.histogram(sample, edges)[0]
    assert np.sum((found - expected) ** 2 / expected) < chi2.ppf(1 - 1e-4, 29)


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 4.0, 10.0])
@pytest.mark.parametrize("t", [-1.0, 0.0, 0.5])
def test_the_hybrid_is_unbiased_and_no_worse_than_its_worst_variance(epsilon, t):
    """Four standard errors of the mean, and of the variance that Wang et al. derive."""
    n = 200_000
    sample = hybrid(np.full(n, t), epsilon, np.random.default_rng(11))
    e, alpha, k = math.exp(epsilon / 2), share(epsilon), reach(epsilon)
    exact = alpha * (t * t / (e - 1) + (e + 3) / (3 * (e - 1) ** 2)) + (1 - alpha) * (k * k - t * t)
    assert abs(sample.mean() - t) < 4 * math.sqrt(exact / n)
    squares = (sample - t) ** 2
    assert abs(squares.mean() - exact) < 4 * squares.std() / math.sqrt(n) + 1e-6  # the grid
    assert exact <= worst_variance("hybrid", epsilon) * (1 + 1e-9)


def test_the_hybrid_lies_on_one_grid_whatever_its_input():
    sample = hybrid(np.linspace(-3, 3, 1001), 2.0, np.random.default_rng(0)) / per_weight.STEPS
    assert np.array_equal(sample, np.round(sample))


def test_samples_of_the_hybrid_show_no_more_than_epsilon():
    rng = np.random.default_rng(5)
    n = 100_000
    assert epsilon_shown(hybrid(np.full(n, -9.0), 2.0, rng), hybrid(np.full(n, 9.0), 2.0, rng)) <= 2.0


@pytest.mark.parametrize(
    ("epsilon", "two", "mixed"),
    [
        (0.3, 45.11, 45.11),
        (1, 4.683, 4.289),
        (2, 1.724, 1.042),
        (4, 1.076, 0.219),
        (8, 1.001, 0.0249),
        (10, 1.0, 0.009),
    ],
)
def test_worst_variances_of_the_literature(epsilon, two, mixed):
    assert worst_variance("two_point", epsilon) == pytest.approx(two, rel=5e-3)
    assert worst_variance("hybrid", epsilon) == pytest.approx(mixed, rel=1e-2)


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan, math.inf, 40.0, 1e-7])
def test_an_epsilon_that_hides_nothing_or_is_none_is_refused(epsilon):
    with pytest.raises(Refused, match="privacy.epsilon"):
        per_weight.check_epsilon(epsilon)
