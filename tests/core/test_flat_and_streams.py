"""Flat vectors and random streams."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedveil.core.flat import Layout, bind_parameters, read_buffers, write_buffers
from fedveil.core.streams import key, stream
from fedveil.core.walk import coefficients, energy, travel

shapes = st.lists(st.lists(st.integers(1, 4), max_size=3).map(tuple), min_size=1, max_size=5)


@given(shapes)
def test_flatten_and_named_are_inverse(sizes):
    layout = Layout(tuple(f"p{i}" for i in range(len(sizes))), tuple(sizes))
    flat = torch.arange(float(layout.dim))
    named = layout.named(flat)
    assert [tuple(t.shape) for t in named.values()] == sizes
    assert torch.equal(layout.flatten(named), flat)


def test_views_write_through():
    layout = Layout(("a", "b"), ((2, 2), (3,)))
    flat = torch.zeros(7)
    layout.named(flat)["b"].fill_(1.0)
    assert flat.tolist() == [0, 0, 0, 0, 1, 1, 1]


def test_binding_makes_the_module_follow_the_vector():
    module = nn.Linear(3, 2)
    layout = Layout.of_parameters(module)
    flat, grad = torch.zeros(layout.dim), torch.zeros(layout.dim)
    bind_parameters(module, layout, flat, grad)
    flat += 1.0
    assert float(module.weight.detach().sum()) == 6.0
    module(torch.ones(1, 3)).sum().backward()
    assert grad.tolist() == [1.0] * layout.dim


def test_tied_weights_appear_once():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(2, 2, bias=False)
            self.b = nn.Linear(2, 2, bias=False)
            self.b.weight = self.a.weight

    assert Layout.of_parameters(Tied()).dim == 4


def test_buffers_travel_without_their_counters():
    module = nn.BatchNorm1d(3)
    layout = Layout.of_buffers(module)
    assert layout.dim == 6
    values = torch.arange(6.0)
    write_buffers(module, layout, values)
    assert torch.equal(read_buffers(module, layout), values)


def test_a_vector_of_the_wrong_length_is_refused():
    with pytest.raises(ValueError, match="does not fit"):
        Layout(("a",), ((2,),)).named(torch.zeros(3))
    with pytest.raises(ValueError, match="a should have shape"):
        Layout(("a",), ((2,),)).flatten({"a": torch.zeros(3)})


@given(st.integers(0, 2**40), st.integers(0, 10_000), st.integers(0, 10_000))
def test_a_place_has_one_stream_and_two_places_have_two(seed, round, client):
    here = stream(seed, "noise", round, client).integers(0, 2**63, 4)
    assert np.array_equal(here, stream(seed, "noise", round, client).integers(0, 2**63, 4))
    for other in (
        (seed + 1, "noise", round, client),
        (seed, "batches", round, client),
        (seed, "noise", round + 1, client),
    ):
        assert not np.array_equal(here, stream(*other).integers(0, 2**63, 4))


def test_paths_do_not_run_together():
    assert key(0, 1, 23) != key(0, 12, 3)
    assert key(0, "1") != key(0, 1)


def test_streams_of_neighbouring_places_are_uncorrelated():
    """100 clients, 10,000 normals each: sample correlations exceed 5/√n with probability below 1e-3 in all."""
    draws = np.stack([stream(0, "noise", 1, k).normal(size=10_000) for k in range(100)])
    off = np.corrcoef(draws)[~np.eye(100, dtype=bool)]
    assert np.abs(off).max() < 5 / np.sqrt(10_000)


@given(st.floats(0.001, 1), st.floats(0, 0.95), st.integers(1, 40))
def test_the_walk_matches_sgd_step_by_step(lr, momentum, steps):
    rng = np.random.default_rng(steps)
    gradients = rng.normal(size=steps)
    y, velocity = 0.0, 0.0
    for g in gradients:
        velocity = momentum * velocity + g
        y -= lr * velocity
    a = coefficients(lr, momentum, steps)
    assert y == pytest.approx(-float(a @ gradients), rel=1e-9, abs=1e-12)
    assert travel(lr, momentum, steps) == pytest.approx(a.sum())
    assert energy(lr, momentum, steps) == pytest.approx((a**2).sum())
