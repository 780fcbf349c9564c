"""The randomised Hadamard rotation: an isometry that spreads every vector, and rounding that keeps a norm."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import hadamard as matrix

from fedveil.core.streams import stream
from fedveil.privacy.rotation import hadamard, padded, rotate, signs, unrotate
from fedveil.privacy.rounding import BETA, enforced, round_within


@pytest.mark.parametrize("size", [1, 2, 8, 64, 128, 512])
def test_it_is_the_walsh_hadamard_matrix(size):
    rows = torch.from_numpy(stream(1, "x").normal(size=(3, size)))
    expected = rows @ torch.from_numpy(matrix(size).astype(float)) / math.sqrt(size)
    assert torch.allclose(hadamard(rows), expected, atol=1e-12)


def test_other_lengths_are_refused():
    with pytest.raises(ValueError, match="power of two"):
        hadamard(torch.zeros(1, 12))


@given(st.integers(1, 5000), st.integers(1, 4), st.integers(1, 10**6))
@settings(max_examples=60)
def test_it_keeps_lengths_and_inner_products_and_is_undone(dim, rows, round):
    x = torch.from_numpy(stream(dim, "x", rows).normal(size=(rows, dim)))
    y = rotate(x, round)
    assert y.shape == (rows, padded(dim))
    assert torch.allclose(y @ y.T, x @ x.T, rtol=1e-10, atol=1e-10 * dim)
    assert torch.allclose(unrotate(y, dim, round), x, atol=1e-12)


def test_one_large_coordinate_is_spread_evenly_and_rounds_have_their_own_signs():
    x = torch.zeros(1, 1000)
    x[0, 17] = 3.0
    y = rotate(x, 5)
    assert torch.allclose(y.abs(), torch.full_like(y, 3.0 / 32))
    dense = torch.ones(1, 1024)
    assert rotate(dense, 1).abs().max() < 6  # √(2 ln(2·1024/1e-4)) = 5.8 deviations of 1
    assert not torch.equal(signs(1, 1024), signs(2, 1024))
    assert signs(1, 4096).mean().abs() < 4 / 64


@given(st.integers(1, 300), st.floats(0.01, 1e4), st.integers(0, 10**6))
@settings(max_examples=150)
def test_rounded_rows_are_whole_near_and_within_the_norm(dim, norm, seed):
    rng = stream(seed, "row")
    row = rng.normal(size=dim)
    row *= norm / np.linalg.norm(row)
    squared = enforced(norm, dim)
    whole = round_within(row, squared, rng)
    assert np.all(whole == np.floor(whole))
    assert np.all(np.abs(whole - row) <= 1)
    assert sum(int(v) ** 2 for v in whole) <= squared
    assert squared <= (norm + math.sqrt(dim)) ** 2 * (1 + 1e-12)


def test_rounding_is_unbiased():
    """Mean of 20,000 roundings of each coordinate within 4.9 standard errors: 64 tests at a risk of 1e-6 each."""
    rng, times = stream(3, "rounding"), 20_000
    row = rng.normal(size=64) * 5
    squared = enforced(float(np.linalg.norm(row)), 64)
    mean = sum(round_within(row, squared, rng) for _ in range(times)) / times
    share = row - np.floor(row)
    error = np.sqrt(share * (1 - share) / times)
    assert np.all(np.abs(mean - row) <= 4.9 * error + BETA)


def test_hardly_a_draw_is_thrown_away():
    rng, row = stream(4, "rounding"), np.full(4096, 0.5)
    squared = enforced(float(np.linalg.norm(row)), 4096)
    assert all(np.sum(np.floor(row + rng.random(4096)) ** 2) <= squared for _ in range(1000))


def test_a_norm_that_no_draw_meets_rounds_towards_zero():
    rng = stream(5, "rounding")
    assert round_within(np.array([1.5, -2.5]), 5.0, rng).tolist() in ([1, -2], [1.0, -2.0])
    assert round_within(np.array([9.0, 9.0]), 5.0, rng).tolist() == [0, 0]
    assert round_within(np.array([math.nan, 1.0]), 5.0, rng).tolist() == [0, 0]
