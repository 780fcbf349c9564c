"""What detectors see: facts about the entropy, sums against their definitions, scores against a hand count."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedveil.aggregate.detectors import FLOORS, Calibrated, Deficit, Neighbour, Source, guard
from fedveil.aggregate.evidence import entropy, sums

SEEDS = st.integers(0, 10_000)


def cloud(n=10, dim=50, seed=0, scale=1.0):
    return scale * torch.from_numpy(np.random.default_rng(seed).normal(size=(n, dim)))


def published(x):
    """H by the book: squared distances to the mean, their shares, Shannon's sum."""
    d = ((x - x.mean(0)) ** 2).sum(1)
    p = d / d.sum()
    return float(-(p[p > 0] * p[p > 0].log()).sum())


def test_clients_with_equal_deviations_have_the_highest_entropy():
    x = torch.eye(10, dtype=torch.float64) * 3.0 + 7.0
    _, deviations = sums(x)
    assert entropy(deviations) == pytest.approx(math.log(10), abs=1e-12)
    assert Source().score(Source().measure(x, None), torch.empty(0, 1)) == pytest.approx(1.0)
    assert Deficit().measure(x, None).tensor().item() == pytest.approx(0.0, abs=1e-12)


def test_one_far_outlier_of_ten_has_entropy_0545():
    x = cloud(10, seed=1)
    x[3] += 1e6
    assert entropy(sums(x)[1]) == pytest.approx(0.545, abs=5e-4)
    exact = -0.9 * math.log(0.9) - 9 * math.log(1 / 90) / 90  # p = 9/10 and nine times 1/90
    assert entropy(sums(x)[1]) == pytest.approx(exact, abs=1e-5)


@pytest.mark.parametrize("n", [10, 20])
def test_half_of_the_clients_far_away_at_one_place_look_like_none(n):
    x = cloud(n, seed=2)
    x[: n // 2] = 1e6
    assert entropy(sums(x)[1]) == pytest.approx(math.log(n), abs=1e-4)
    assert Neighbour().score(Neighbour().measure(x, None), torch.empty(0, 1)) > 0.99, "copies give them away"


@pytest.mark.parametrize(("f", "expected"), [(1, 0.545), (2, 1.471), (3, 1.964), (4, 2.221), (5, 2.303)])
def test_entropy_falls_under_a_few_outliers_and_climbs_back_with_their_number(f, expected):
    x = cloud(10, seed=3)
    x[:f] = 1e6
    assert entropy(sums(x)[1]) == pytest.approx(expected, abs=6e-4)


@given(seed=SEEDS, n=st.integers(2, 15), shift=st.floats(-100, 100))
def test_sums_are_what_they_are_called(seed, n, shift):
    x, r = cloud(n, 9, seed) + shift, torch.from_numpy(np.random.default_rng(seed + 1).normal(size=9))
    found, deviations = sums(x, r)
    d = ((x - x.mean(0)) ** 2).sum(1)
    assert torch.allclose(deviations, d, rtol=1e-6, atol=1e-9 * float(x.square().sum()))
    assert found.energy == pytest.approx(float((x**2).sum()))
    assert found.common == pytest.approx(float((x.sum(0) ** 2).sum()), rel=1e-9, abs=1e-9)
    assert found.along == pytest.approx(float(x.sum(0) @ r), rel=1e-9, abs=1e-6)
    assert found.spread == pytest.approx(float(d.sum()), rel=1e-6)
    assert entropy(deviations) == pytest.approx(published(x), abs=1e-5)


@given(seed=SEEDS, factor=st.floats(1e-6, 1e6))
def test_scores_of_shape_do_not_depend_on_units(seed, factor):
    x, r = cloud(8, 20, seed), cloud(1, 20, seed + 1)[0]
    one, other = sums(x, r)[0], sums(factor * x, factor * r)[0]
    for name in ("concentration", "coherence", "direction"):
        assert getattr(one, name) == pytest.approx(getattr(other, name), rel=1e-6, abs=1e-9)
    assert other.size == pytest.approx(one.size + 2 * math.log(factor), abs=1e-6)


def test_sums_are_wide_enough_for_float32_uploads():
    """A spread of a ten-thousandth of the length, which squares in float32 would lose."""
    x = (1000 + 0.1 * cloud(10, 5000, seed=4)).float()
    found, deviations = sums(x)
    exact = ((x.double() - x.double().mean(0)) ** 2).sum(1)
    assert torch.allclose(deviations, exact, rtol=1e-4)
    assert found.spread == pytest.approx(float(exact.sum()), rel=1e-4)


@pytest.mark.parametrize("x", [torch.ones(10, 5) / 3, torch.zeros(10, 5), torch.full((1, 5), 2.0)])
def test_uploads_that_agree_are_calm(x):
    see = Calibrated()
    seen = see.measure(x, None)
    assert sums(x)[0].agree and not seen.guarded
    assert see.score(seen, torch.rand(20, 4, dtype=torch.float64)) == 0.0
    assert Source().measure(x, None).tensor().item() == 1.0, "H := ln n"


@pytest.mark.parametrize("far", [1e90, 1e155, 1e200])
def test_what_is_beyond_all_numbers_is_not_calm(far):
    x = cloud(10, seed=9)
    window = torch.from_numpy(np.random.default_rng(5).normal(size=(20, 4)))
    x[2] *= far
    assert Calibrated().score(Calibrated().measure(x, None), window) > 1e2
    assert Deficit().measure(x, None).tensor().item() > 1.7


def test_uploads_too_small_to_be_squared_twice_agree():
    x = cloud(10, seed=9, scale=1e-90)
    assert Calibrated().score(Calibrated().measure(x, None), torch.rand(20, 4, dtype=torch.float64)) == 0.0


def test_a_score_is_the_largest_robust_z():
    see, window = Calibrated(), torch.from_numpy(np.random.default_rng(5).normal(size=(20, 4)))
    seen = see.measure(cloud(10, seed=6), cloud(1, seed=7)[0])
    middle = np.median(window.numpy(), axis=0)
    deviation = 1.4826 * np.median(np.abs(window.numpy() - middle), axis=0)
    expected = (np.abs(seen.tensor().numpy() - middle) / np.maximum(deviation, FLOORS)).max()
    assert see.score(seen, window) == pytest.approx(expected)
    still = seen.tensor().repeat(20, 1)
    still[:, 1] += 0.2  # ln S moved by 0.2 against a floor of 0.05
    assert see.score(seen, still) == pytest.approx(4.0)


def test_the_guard_falls_for_a_few_far_outliers_only():
    x = cloud(10, 500, seed=8)
    assert not Calibrated().measure(x, None).guarded
    x[0] *= 10
    assert Calibrated().measure(x, None).guarded
    assert (guard(10), guard(20), guard(5)) == (0.5, 0.3, 0.5) and 0.3 < guard(14) < 0.5
