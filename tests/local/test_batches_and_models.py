"""Walks through the examples, and the models that come along."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedveil.core.errors import Refused
from fedveil.core.streams import stream
from fedveil.local.batches import Batching
from fedveil.local.models import cnn, cnn_large, logistic, mlp


@given(st.integers(1, 60), st.integers(1, 20), st.integers(1, 3))
def test_an_epoch_visits_everything_once(examples, batch, epochs):
    order, ends = Batching(batch, None, epochs).batches(examples, stream(0))
    assert len(order) == ends[-1] == epochs * examples
    assert len(ends) == epochs * -(-examples // batch)
    for e in range(epochs):
        assert sorted(order[e * examples : (e + 1) * examples]) == list(range(examples))
    assert np.diff(ends, prepend=0).max() <= batch


@given(st.integers(1, 60), st.integers(1, 20), st.integers(1, 30))
def test_steps_are_counted_exactly(examples, batch, steps):
    order, ends = Batching(batch, steps).batches(examples, stream(0))
    assert len(ends) == steps
    assert len(order) == ends[-1]
    assert np.all(np.diff(ends, prepend=0) > 0)


def test_the_order_belongs_to_the_stream():
    for drawing in ("shuffled", "poisson"):
        draw = Batching(4, None, 1, drawing).batches
        assert np.array_equal(draw(30, stream(0, 1, 2))[0], draw(30, stream(0, 1, 2))[0])
        for other in ((1, 1, 2), (0, 2, 2), (0, 1, 3)):
            assert not np.array_equal(draw(30, stream(0, 1, 2))[0], draw(30, stream(*other))[0])


def test_poisson_batches_have_the_rate_that_is_accounted():
    """Sizes have the mean and variance of Bin(n, b/n), examples join alike, and neighbours independently (4 sigma)."""
    n, b, steps = 50, 20, 20_000
    batching = Batching(b, steps, drawing="poisson")
    q = batching.rate(n)
    order, ends = batching.batches(n, stream(3, "poisson"))
    sizes = np.diff(ends, prepend=0)
    assert len(sizes) == steps
    assert abs(sizes.mean() - n * q) < 4 * np.sqrt(n * q * (1 - q) / steps)
    variance = n * q * (1 - q)
    assert abs(sizes.var() / variance - 1) < 4 * np.sqrt(2 / steps)
    joins = np.zeros((steps, n), dtype=bool)
    joins[np.repeat(np.arange(steps), sizes), order] = True
    assert joins.sum() == len(order), "nobody joins a batch twice"
    assert np.abs(joins.mean(axis=0) - q).max() < 5 * np.sqrt(q * (1 - q) / steps)
    correlation = np.corrcoef(joins[:, 0], joins[:, 1])[0, 1]
    assert abs(correlation) < 4 / np.sqrt(steps)


def test_a_poisson_rate_is_never_above_one_and_a_batch_may_be_empty():
    assert Batching(32, 1, drawing="poisson").rate(10) == 1.0
    order, _ = Batching(32, 3, drawing="poisson").batches(10, stream(0))
    assert order.tolist() == [*range(10)] * 3
    sizes = np.diff(Batching(1, 400, drawing="poisson").batches(10, stream(0))[1], prepend=0)
    assert sizes.min() == 0


def test_steps_and_epochs_exclude_each_other():
    with pytest.raises(Refused, match="exactly one"):
        Batching(32, 5, 5)
    with pytest.raises(Refused, match="exactly one"):
        Batching(32)
    with pytest.raises(Refused, match="batch: 0"):
        Batching(0, 5)


def test_epochs_are_shown_as_steps():
    assert Batching(32, None, 2).describe(np.array([32, 100])) == (
        "2 local epoch(s) of batches of 32 = 2 to 8 steps per client"
    )
    assert Batching(32, 7).describe(np.array([32, 100])) == "7 local steps of 32 examples"


@pytest.mark.parametrize(
    ("build", "low", "high"),
    [(logistic, 7850, 7850), (mlp, 101_770, 101_770), (cnn, 18e3, 24e3), (cnn_large, 0.9e6, 1.1e6)],
)
def test_sizes_and_shapes_on_mnist(build, low, high):
    model = build((1, 28, 28), 10)
    assert low <= sum(p.numel() for p in model.parameters()) <= high
    assert model(torch.zeros(2, 1, 28, 28)).shape == (2, 10)
    assert not any(isinstance(m, nn.BatchNorm2d) for m in model.modules())


def test_models_on_digits():
    for build in (logistic, mlp, cnn, cnn_large):
        assert build((1, 8, 8), 10)(torch.zeros(2, 1, 8, 8)).shape == (2, 10)


def test_a_cnn_needs_images():
    with pytest.raises(Refused, match=r"cnn reads images.*model=mlp"):
        cnn((30,), 2)
