"""Clipping bounds every input; its facts equal what is measured."""

from __future__ import annotations

import math

import hypothesis.extra.numpy as arrays
import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import example, given, settings

from fedveil.core.errors import Refused
from fedveil.core.flat import Layout
from fedveil.core.signal import Signal
from fedveil.core.stage import Context, PerSample
from fedveil.privacy.clip import clip, clip_each, clip_layers, row_norms, shorten

NOWHERE = Context(0, Layout(("a", "b"), ((2, 2), (3,))), [None], [])

rows = st.sampled_from([np.float32, np.float64]).flatmap(
    lambda kind: arrays.arrays(
        kind,
        st.tuples(st.integers(1, 4), st.just(7)),
        elements=st.floats(width=32 if kind == np.float32 else 64, allow_nan=True, allow_infinity=True),
    )
)


def exact_norms(value: torch.Tensor) -> list[float]:
    return [math.hypot(*row) for row in value.double().tolist()]


HUGE = np.array([[5.826548e33, 0, 0, 0, 0, 0, 0]], dtype=np.float32)
"""A row whose factor float32 holds with a few bits only."""


@settings(max_examples=200, deadline=None)
@given(rows, st.floats(1e-6, 1e6))
@example(HUGE, 1e-6)
def test_no_row_is_ever_longer_than_the_norm(value: np.ndarray, norm: float):
    out = clip(norm)(Signal(torch.from_numpy(value)), NOWHERE)
    assert all(length <= norm for length in exact_norms(out.value))
    again = clip(norm)(out, NOWHERE)
    assert torch.equal(again.value, out.value)


@settings(max_examples=100, deadline=None)
@given(rows, st.floats(1e-6, 1e6))
def test_no_layer_is_ever_longer_than_its_norm(value: np.ndarray, norm: float):
    stage = clip_layers([norm, 2 * norm])
    out = stage(Signal(torch.from_numpy(value)), NOWHERE)
    assert all(length <= norm for length in exact_norms(out.value[:, :4]))
    assert all(length <= 2 * norm for length in exact_norms(out.value[:, 4:]))
    assert out.bound == pytest.approx(math.sqrt(5) * norm)


def test_short_rows_stay_bit_for_bit_and_long_ones_keep_their_direction():
    value = torch.tensor([[0.3, 0.4], [30.0, 40.0], [0.0, 0.0], [math.inf, 1.0]])
    out = clip(1.0)(Signal(value), NOWHERE)
    assert torch.equal(out.value[[0, 2]], value[[0, 2]])
    torch.testing.assert_close(out.value[1], torch.tensor([0.6, 0.8]))
    assert not out.value[3].any()
    assert (out.bound, out.unit, out.noise_var, out.released) == (1.0, "client", 0.0, False)


def test_noise_through_a_clip_is_unknown():
    noisy = Signal(torch.ones(1, 2), bound=1.0, unit="record", noise_var=4.0, released=True)
    out = clip(1.0)(noisy, NOWHERE)
    assert out.noise_var is None
    assert out.released


def test_measured_sensitivity_of_a_sum_of_clipped_examples():
    stage = clip_each(0.7)
    assert isinstance(stage, PerSample)
    gradients = torch.randn(40, 50, generator=torch.Generator().manual_seed(0)) * torch.logspace(-3, 3, 40)[:, None]
    norms = row_norms(gradients)
    factors = stage.factors(norms.float())
    assert factors.dtype == torch.float32
    scaled = factors[:, None] * gradients
    total = stage.summed(scaled.sum(0, keepdim=True))
    without = (scaled.double().sum(0) - scaled.double()).float()
    moved = row_norms(scaled.double().sum(0) - without)
    assert (total.bound, total.unit) == (0.7, "record")
    assert float(moved.max()) <= 0.7 * (1 + 1e-5)
    assert float(moved.max()) > 0.7 * 0.999
    assert not stage.factors(torch.tensor([math.inf, math.nan])).any()


def test_measured_sensitivity_of_a_clipped_move():
    value = torch.randn(100, 30, generator=torch.Generator().manual_seed(1))
    out = clip(2.5)(Signal(value), NOWHERE)
    moved = row_norms(out.value).max()
    assert 0.999 * out.bound < moved <= out.bound


def test_layers_by_name_and_by_share():
    value = torch.full((1, 7), 100.0)
    named = clip_layers({"b": 3.0, "a": 4.0})(Signal(value), NOWHERE)
    assert float(row_norms(named.value[:, :4])) == pytest.approx(4.0, rel=1e-5)
    assert named.bound == 5.0
    shared = clip_layers(2.0)(Signal(value), NOWHERE)
    assert shared.bound == 2.0
    assert float(row_norms(shared.value)) == pytest.approx(2.0, rel=1e-5)


def test_bad_norms_are_refused():
    signal = Signal(torch.ones(1, 7))
    for bad, word in (
        (lambda: clip(0), "norm"),
        (lambda: clip(math.inf), "norm"),
        (lambda: clip_each(-1), "norm"),
        (lambda: clip_layers(0), "clip_layers"),
        (lambda: clip_layers([1.0, -1.0]), r"clip_layers\.1"),
        (lambda: clip_layers({"a": 1.0, "c": 1.0})(signal, NOWHERE), "name each layer"),
        (lambda: clip_layers([1.0])(signal, NOWHERE), "one per layer"),
    ):
        with pytest.raises(Refused, match=word):
            bad()


@pytest.mark.parametrize("norm", [1e-3, 1.0])
@pytest.mark.parametrize("size", [1e30, 1e36, 3e38])
def test_the_bound_holds_where_a_factor_has_no_full_float32(norm, size):
    """A factor below 2⁻¹²⁶ has few digits; the row becomes zero instead of a little too long."""
    rows = size * torch.randn(2, 20_000, generator=torch.Generator().manual_seed(0)).clamp(-1, 1)
    out = shorten(rows, norm)
    assert float(row_norms(out).max()) <= norm
    norms = torch.tensor([1e37, 1.0])
    assert (clip_each(1e-2).factors(norms) * norms).max() <= 1e-2
