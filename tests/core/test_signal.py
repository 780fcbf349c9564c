"""The facts of a signal stay true of its value under every operation."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedveil.core.signal import Signal

factors = st.floats(-4, 4, allow_nan=False).filter(lambda a: abs(a) > 1e-3)


def moved(rows: int, dim: int, bound: float, seed: int) -> torch.Tensor:
    """A change of exactly length ``bound`` in one row: one unit comes or goes."""
    rng = np.random.default_rng(seed)
    change = np.zeros((rows, dim))
    direction = rng.normal(size=dim)
    change[rng.integers(rows)] = bound * direction / np.linalg.norm(direction)
    return torch.from_numpy(change)


@given(factors, st.floats(0.1, 5), st.integers(0, 100))
def test_scaling_scales_the_sensitivity_and_the_variance(a, bound, seed):
    x = torch.from_numpy(np.random.default_rng(seed).normal(size=(3, 8)))
    change = moved(3, 8, bound, seed)
    signal = Signal(x, bound=bound, unit="record", noise_var=2.0, released=True) * a
    other = Signal(x + change) * a
    assert math.isclose(float((other.value - signal.value).norm()), signal.bound, rel_tol=1e-9)
    assert math.isclose(signal.noise_var, 2.0 * a * a)
    assert signal.released


@given(st.lists(st.floats(0.01, 3), min_size=2, max_size=6), st.floats(0.1, 5), st.integers(0, 100))
def test_a_mean_is_bounded_by_its_heaviest_row(raw, bound, seed):
    weights = torch.tensor(raw, dtype=torch.float64) / sum(raw)
    x = torch.from_numpy(np.random.default_rng(seed).normal(size=(len(raw), 8)))
    mean = Signal(x, bound=bound, unit="client").mean(weights)
    far = [float((Signal(x + c).mean(weights).value - mean.value).norm()) for c in each_row(len(raw), bound, seed)]
    assert math.isclose(max(far), mean.bound, rel_tol=1e-9)


def each_row(rows, bound, seed):
    change = moved(1, 8, bound, seed)
    for i in range(rows):
        full = torch.zeros(rows, 8, dtype=torch.float64)
        full[i] = change[0]
        yield full


def test_the_variance_of_a_mean_equals_the_measured_one():
    """200,000 draws: the variance's standard error is √(2/n) = 0.32 %; 3 of them are allowed."""
    rng = np.random.default_rng(5)
    std = np.array([[1.0], [0.5], [2.0]])
    noise = torch.from_numpy(rng.normal(size=(3, 200_000)) * std)
    weights = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    mean = Signal(noise, noise_var=torch.from_numpy(std**2)).mean(weights)
    claimed = float(mean.noise_var)
    assert claimed == pytest.approx(0.2**2 + 0.25 * 0.25 + 0.09 * 4)
    assert float(mean.value.var()) == pytest.approx(claimed, rel=3 * math.sqrt(2 / 200_000))


def test_sums_keep_only_what_both_sides_know():
    x = torch.ones(1, 2)
    known = Signal(x, bound=1.0, unit="record", noise_var=1.0, released=True)
    assert (known + known).bound == 2.0
    assert (known + known).noise_var == 2.0
    assert (known + Signal(x)).bound is None
    assert not (known + Signal(x)).released
    assert (known + Signal(x, noise_var=None)).noise_var is None
    assert (known + Signal(x, bound=1.0, unit="client")).bound is None


def test_a_public_shift_changes_no_fact():
    x = Signal(torch.ones(2, 3), bound=1.0, unit="client", noise_var=3.0, released=True)
    y = x.shifted(torch.arange(3.0))
    assert (y.bound, y.unit, y.noise_var, y.released) == (1.0, "client", 3.0, True)
    assert torch.equal(y.value, x.value + torch.arange(3.0))


def test_a_bound_needs_its_unit():
    with pytest.raises(ValueError, match="unit"):
        Signal(torch.ones(1, 2), bound=1.0)
    with pytest.raises(ValueError, match="rows, dim"):
        Signal(torch.ones(2))


def test_variances_of_every_shape_that_broadcasts():
    x, w = torch.zeros(2, 3, dtype=torch.float64), torch.tensor([0.5, 0.5], dtype=torch.float64)
    for variance in (1.0, torch.ones(3), torch.ones(1, 3), torch.ones(2, 1), torch.ones(2, 3)):
        mean = Signal(x, noise_var=variance).mean(w)
        assert torch.allclose(torch.as_tensor(mean.noise_var), torch.tensor(0.5, dtype=torch.float64))
