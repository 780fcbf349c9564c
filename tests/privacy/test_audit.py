"""Statistics of audits: published and computed reference values, and that bounds hold where the truth is known."""

import math

import numpy as np
import pytest
from dp_accounting import get_epsilon_gaussian
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from fedveil.core.errors import Refused
from fedveil.privacy.audit import (
    above_null,
    cap,
    cosine_bound,
    guess,
    lower_bound,
    p_value,
    two_gaussians,
    usual_guesses,
    verdict,
)

# (canaries, guesses, right, delta) -> epsilon at 95 %; equal to another implementation's (jax-privacy, one run)
REFERENCES = {
    (1000, 100, 100, 0.0): 3.49297,
    (1000, 100, 100, 1e-5): 3.46538,
    (1000, 100, 90, 1e-5): 1.62614,
    (1000, 100, 75, 1e-5): 0.69947,
    (1000, 1000, 600, 1e-5): 0.29723,
    (1000, 1000, 750, 1e-5): 0.97637,
    (5000, 500, 500, 1e-5): 4.97776,
    (100, 100, 100, 1e-5): 3.49022,
    (100, 50, 45, 1e-3): 1.30379,
    (10000, 1000, 950, 1e-5): 2.69100,
}


@pytest.mark.parametrize(("what", "expected"), REFERENCES.items())
def test_the_reference_values_come_out_to_four_digits(what, expected):
    assert lower_bound(*what) == pytest.approx(expected, abs=1e-5)


def test_the_cap_is_about_the_logarithm_of_a_third_of_the_guesses():
    for guesses in (50, 100, 500, 5000):
        exact = -math.log(0.05 ** (-1 / guesses) - 1)  # q^r = 0.05
        assert (
            cap(guesses, guesses, 0.0)
            == pytest.approx(exact, abs=1e-6)
            == pytest.approx(math.log(guesses / 3), abs=0.05)
        )
        assert cap(guesses, guesses, 1e-5) <= cap(guesses, guesses, 0.0)


@given(st.integers(2, 2000), st.data())
def test_more_right_guesses_never_show_less(guesses, data):
    right = data.draw(st.integers(0, guesses))
    bound = lower_bound(2 * guesses, guesses, right, 1e-5)
    assert 0 <= bound <= cap(2 * guesses, guesses, 1e-5)
    if right:
        assert lower_bound(2 * guesses, guesses, right - 1, 1e-5) <= bound + 1e-9
    assert bound == 0 or p_value(2 * guesses, guesses, right, bound, 1e-5) == pytest.approx(0.05, abs=1e-6)
    assert lower_bound(2 * guesses, guesses, right, 1e-5, 0.99) <= bound + 1e-9


def test_the_p_value_is_the_theorem_summed_by_hand():
    m, r, v, epsilon, delta = 300, 40, 33, 1.2, 1e-4
    q = 1 / (1 + math.exp(-epsilon))
    mass = [binom.pmf(k, r, q) for k in range(r + 1)]
    worst = max(sum(mass[v - i : v]) / i for i in range(1, v + 1))
    assert p_value(m, r, v, epsilon, delta) == pytest.approx(sum(mass[v:]) + 2 * m * delta * worst, rel=1e-9)


def test_a_tight_mechanism_is_exceeded_in_no_more_than_one_of_twenty_audits():
    """Randomised response with ε = 1: nobody can do better, and the guesses are right with exactly that chance."""
    rng, runs, r, epsilon = np.random.default_rng(0), 4000, 200, 1.0
    right = rng.binomial(r, 1 / (1 + math.exp(-epsilon)), runs)
    bounds = np.array([lower_bound(r, r, v, 0.0) for v in range(r + 1)])[right]
    failures = int(np.sum(bounds > epsilon))
    assert failures <= binom.ppf(1 - 1e-4, runs, 0.05)
    assert failures >= binom.ppf(1e-4, runs, 0.02), "and it is not slack, either"


@pytest.mark.parametrize("mean", [0.5, 1.0, 3.0])
def test_two_equal_gaussians_have_the_epsilon_of_the_gaussian_mechanism(mean):
    assert two_gaussians(1.0, mean, 1.0, 1e-5) == pytest.approx(get_epsilon_gaussian(1 / mean, 1e-5), abs=1e-6)
    assert two_gaussians(2.0, 2 * mean, 2.0, 1e-5) == pytest.approx(two_gaussians(1.0, mean, 1.0, 1e-5), abs=1e-6)


def test_gaussians_of_unequal_width_are_told_apart_by_it():
    grid = np.linspace(-30, 30, 600_001)

    def by_hand(epsilon, s, mean, t):
        p = np.exp(-(grid**2) / (2 * s * s)) / s
        q = np.exp(-((grid - mean) ** 2) / (2 * t * t)) / t
        width = (grid[1] - grid[0]) / math.sqrt(2 * math.pi)
        return max(np.sum(np.maximum(a - math.exp(epsilon) * b, 0)) * width for a, b in ((p, q), (q, p)))

    for s, mean, t in ((1.0, 0.0, 1.5), (1.0, 0.7, 1.2), (1.2, 0.7, 1.0)):
        found = two_gaussians(s, mean, t, 1e-3)
        assert found > 0
        assert by_hand(found, s, mean, t) == pytest.approx(1e-3, rel=1e-3)


def test_the_cosine_of_an_unseen_direction_has_the_stated_distribution():
    rng, dim, n = np.random.default_rng(1), 30, 20_000
    x = rng.normal(size=(n, dim))
    cosines = x[:, 0] / np.linalg.norm(x, axis=1)
    for threshold in (0.0, 0.2, 0.4):
        hits, p = int(np.sum(cosines >= threshold)), float(above_null(threshold, dim))
        assert binom.ppf(1e-4, n, p) <= hits <= binom.ppf(1 - 1e-4, n, p)


def test_the_cosine_bound_holds_for_noise_and_sees_canaries():
    rng, dim, rounds = np.random.default_rng(2), 128, 10
    exceeded = 0
    for _ in range(100):
        noise = rng.normal(size=(200, rounds))
        rest = rng.chisquare(dim - 1, size=(200, rounds))
        exceeded += cosine_bound((noise / np.sqrt(noise**2 + rest)).max(axis=1), dim, rounds, 1e-5) > 0
    assert exceeded <= binom.ppf(1 - 1e-4, 100, 0.05)
    assert cosine_bound(np.full(200, 0.9), dim, rounds, 1e-5) > 30


def test_guesses_are_the_surest_canaries():
    scores = np.array([5.0, -3.0, 0.1, 4.0, -0.1, -2.0])
    inside = np.array([True, False, True, False, False, True])
    found = guess(scores, inside, 4)
    assert (found.guesses, found.right) == (4, 2)  # 5 and 4 are said to be in, −3 and −2 to be out
    assert (found.above, found.below) == (4.0, -2.0)
    for wrong in (0, 3, 7, 8):
        with pytest.raises(Refused, match=r"audit\.guesses"):
            guess(scores, inside, wrong)


def test_the_number_of_guesses_makes_room_above_the_claim():
    for canaries, claim in ((5000, 4.0), (5000, 6.0), (400, 1.0)):
        guesses = usual_guesses(canaries, claim, 1e-5)
        assert guesses % 2 == 0 and cap(canaries, guesses, 1e-5) >= claim + 0.5
    assert usual_guesses(101, 9.0, 1e-5) == 100, "as many as there are, where no number is enough"


def test_verdicts():
    assert verdict(4.0, 3.9, 5.0) == "holds"
    assert verdict(4.0, 4.1, 5.0) == "violated"
    assert verdict(5.0, 4.9, 4.9) == "no power"
    with pytest.raises(Refused, match="cannot be"):
        lower_bound(10, 5, 6, 0.0)
