"""James-Stein shrinkage: the formula, its edges, and less error than no shrinkage at every signal-to-noise ratio."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedveil.core.errors import Refused
from fedveil.core.flat import Layout
from fedveil.core.signal import Signal
from fedveil.core.stage import Context
from fedveil.privacy.shrink import LEAST, blocks, shrink

WHERE = Context(1, Layout((), ()), [None], [])


def noisy(value, variance=1.0, **kw):
    return Signal(value, noise_var=variance, released=True, **kw)


def layout(*sizes):
    return Layout(tuple(f"p{i}" for i in range(len(sizes))), tuple((n,) for n in sizes))


def here(*sizes):
    return Context(1, layout(*sizes), [None], [])


def test_the_factor_is_that_of_the_formula_in_float64():
    x = torch.full((1, 1000), 1.5, dtype=torch.float32)
    out = shrink()(noisy(x, 0.01), WHERE)
    factor = 1 - 998 * 0.01 / (1000 * 2.25)
    assert out.value.dtype == torch.float32
    assert torch.allclose(out.value, x * factor, rtol=1e-7)
    assert out.noise_var is None
    assert out.released
    # In float32, ‖x‖² of 10^8 equal terms of 1e-4 would stop growing; float64 keeps it.
    tiny = torch.full((1, 200_000), 1e-25, dtype=torch.float32)
    kept = shrink()(noisy(tiny, 1e-60), WHERE).value
    assert torch.allclose(kept, tiny, rtol=1e-6), "squares that float32 cannot hold (1e-50) still count"


@given(st.integers(1, 2), st.floats(0.01, 100))
def test_fewer_than_three_numbers_are_left_alone(m, variance):
    x = torch.linspace(0.1, 1, m, dtype=torch.float64)[None, :]
    assert torch.equal(shrink()(noisy(x, variance), WHERE).value, x)


@given(st.integers(3, 60), st.floats(0.01, 10))
def test_what_is_shorter_than_its_noise_becomes_zero(m, variance):
    """‖x‖² ≤ (m−2)v: the positive part; a negative factor would turn the vector round."""
    x = torch.full((1, m), math.sqrt((m - 2) * variance / m) * 0.999, dtype=torch.float64)
    assert not shrink()(noisy(x, variance), WHERE).value.any()
    assert not shrink()(noisy(torch.zeros(1, m), variance), WHERE).value.any()


@settings(max_examples=40, deadline=None)
@given(st.sampled_from([3, 5, 10, 100]), st.floats(-2, 2), st.integers(0, 10**6))
def test_the_mean_squared_error_is_never_above_that_of_the_noise(m, log_snr, seed):
    """Over θ with ‖θ‖² = m·v·10^s, 4,000 draws: E‖JS⁺(x) − θ‖² ≤ E‖x − θ‖², paired, four standard errors."""
    g = torch.Generator().manual_seed(seed)
    draws = 4000
    theta = torch.randn(1, m, generator=g, dtype=torch.float64)
    theta *= math.sqrt(m * 10**log_snr) / theta.norm()
    x = theta + torch.randn(draws, m, generator=g, dtype=torch.float64)
    shrunk = shrink(scope="model")(noisy(x), WHERE).value
    gain = (x - theta).square().sum(1) - (shrunk - theta).square().sum(1)
    assert float(gain.mean()) > -4 * float(gain.std()) / math.sqrt(draws)
    if log_snr < 0 and m >= 10:
        assert float(gain.mean()) > 0.2 * m, "where the noise is louder than the signal it helps a great deal"


def test_the_known_risks_in_three_dimensions():
    """JS⁺ in three dimensions, at θ = 0 and where the signal is as strong as the noise: 1.60 and 2.45 against 3."""
    g = torch.Generator().manual_seed(0)
    for length, expected in ((0.0, 1.60), (math.sqrt(3), 2.45)):
        theta = torch.tensor([[length, 0.0, 0.0]], dtype=torch.float64)
        x = theta + torch.randn(400_000, 3, generator=g, dtype=torch.float64)
        risk = float((shrink()(noisy(x), WHERE).value - theta).square().sum(1).mean())
        assert risk == pytest.approx(expected, abs=0.02)


def test_layers_are_shrunk_by_themselves_and_short_ones_with_a_neighbour():
    assert blocks(layout(60, 3, 40, 10), "layer") == (63, 40, 10)
    assert blocks(layout(3, 60), "layer") == (63,)
    assert blocks(layout(2, 2, 2), "layer") == (6,)
    assert blocks(layout(60, 3, 40), "model") == (103,)
    assert min(blocks(layout(5, 20, 9, 30, 1), "layer")) >= LEAST
    loud, quiet = torch.full((1, 50), 3.0), torch.full((1, 50), 0.1)
    out = shrink(scope="layer")(noisy(torch.cat([loud, quiet], dim=1)), here(50, 50)).value
    assert torch.allclose(out[:, :50], loud * (1 - 48 / 450))
    assert not out[:, 50:].any()
    together = shrink(scope="model")(noisy(torch.cat([loud, quiet], dim=1)), here(50, 50)).value
    assert torch.allclose(together[:, 50:] / quiet, together[:, :50] / loud), "one factor: no more than a step size"


def test_a_target_moves_the_centre():
    x = torch.full((1, 40), 5.0, dtype=torch.float64) + torch.randn(1, 40, generator=torch.Generator().manual_seed(0))
    at = torch.full((1, 40), 5.0, dtype=torch.float64)
    ctx = Context(2, Layout((), ()), [None], [], previous=at)
    near = shrink(target="previous")(noisy(x), ctx).value
    assert float((near - at).norm()) < 0.7 * float((x - at).norm())
    assert torch.equal(
        shrink(target="previous")(noisy(x), WHERE).value, shrink(target="zero")(noisy(x), WHERE).value
    ), "round one"
    public = shrink()(noisy(x, public=at), WHERE).value
    assert torch.allclose(public, near)


def test_a_mean_of_unequal_noise_has_the_variance_that_the_formula_needs():
    """Σ w_k² v_k."""
    rows = noisy(torch.zeros(3, 20), torch.tensor([[1.0], [4.0], [9.0]]))
    mean = rows.mean(torch.tensor([0.5, 0.3, 0.2]))
    assert float(mean.noise_var) == pytest.approx(0.25 * 1 + 0.09 * 4 + 0.04 * 9)


@pytest.mark.parametrize(
    ("signal", "message"),
    [
        (Signal(torch.ones(1, 5), noise_var=1.0), "holds no noise that a mechanism added"),
        (Signal(torch.ones(1, 5), noise_var=None, released=True), "variance of the noise inside is unknown"),
        (Signal(torch.ones(1, 5), noise_var=torch.ones(1, 5), released=True), "differs from coordinate to coordinate"),
    ],
)
def test_what_cannot_be_shrunk_is_refused(signal, message):
    with pytest.raises(Refused, match=message):
        shrink()(signal, WHERE)


def test_nothing_is_shrunk_twice():
    once = shrink()(noisy(torch.ones(1, 5)), WHERE)
    with pytest.raises(Refused, match="unknown"):
        shrink()(once, WHERE)
