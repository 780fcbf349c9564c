"""Canaries: orthonormal directions, insertion within the bound, and noise that is not all there."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedveil.core.errors import Refused
from fedveil.core.flat import Layout
from fedveil.core.signal import Signal
from fedveil.core.stage import Context, chain
from fedveil.core.streams import stream
from fedveil.privacy.canaries import Directions, Plant, Tampered, noisy, planted, room, tampered
from fedveil.privacy.clip import clip, clip_each
from fedveil.privacy.noise import gaussian


def drawn(dim, count):
    return Directions.drawn(dim, count, np.random.default_rng(0))


def dense(d):
    rows = torch.zeros(d.count, d.dim)
    for i in range(d.count):
        d.add(rows[i], torch.tensor([i]), 1.0)
    return rows


@settings(max_examples=20)
@given(st.integers(8, 1500), st.floats(0.01, 1.0))
def test_directions_are_orthonormal_and_products_find_them(dim, share):
    count = max(1, int(share * room(dim)))
    d = drawn(dim, count)
    rows = dense(d)
    assert torch.allclose(rows @ rows.T, torch.eye(count), atol=1e-5)
    found = d.products(3 * rows[:1] - 2 * rows[-1:])[0]
    expected = 3 * torch.eye(count, dtype=torch.float64)[0] - 2 * torch.eye(count, dtype=torch.float64)[-1]
    assert torch.allclose(found, expected, atol=1e-5)
    assert d.sphere >= 2


def test_a_canary_given_the_others_is_uniform_on_a_sphere():
    """Squared product with a fixed vector, in units of what the others leave of it: mean 1/sphere."""
    dim, count, target = 64, 32, torch.ones(1, 64) / 8
    shares = []
    for seed in range(400):
        d = Directions.drawn(dim, count, np.random.default_rng(seed))
        p = d.products(target)[0]
        left = d.lengths(target).square()[0] - p[1:].square().sum()
        shares.append(float(p[0] ** 2 / left))
    n = d.sphere
    assert n == 33
    deviation = (2 * (n - 1) / (n**2 * (n + 2)) / 400) ** 0.5
    assert abs(np.mean(shares) - 1 / n) < 4 * deviation


def test_too_many_are_refused_in_words():
    with pytest.raises(Refused, match=r"audit\.canaries: 500 directions do not fit .* at most 384"):
        drawn(650, 500)


def context(clients):
    streams = [stream(0, "test", k or 0) for k in clients]
    return Context(1, Layout(("w",), ((600,),)), clients, streams)


def test_canaries_join_whom_and_when_they_are_told_to():
    d = drawn(600, 20)
    plant = Plant(d, share=0.5)
    signal = Signal(torch.randn(3, 600), bound=2.0, unit="record")
    assert plant(signal, context([0, 1, 2])).value is signal.value, "nobody is on the way"
    plant.walks = {1: iter([torch.tensor([3, 7]), torch.tensor([], dtype=torch.long)])}
    after = plant(signal, context([0, 1, 2]))
    assert (after.bound, after.unit) == (2.0, "record")
    change = d.products(after.value - signal.value)
    assert torch.equal(change[[0, 2]], torch.zeros(2, 20, dtype=torch.float64))
    expected = torch.zeros(20, dtype=torch.float64)
    expected[[3, 7]] = 1.0  # half of the bound
    assert torch.allclose(change[1], expected, atol=1e-5)
    assert plant(signal, context([0, 1, 2])).value is signal.value, "the second step has none"


def test_they_stand_right_before_the_noise():
    plant = Plant(drawn(600, 2))
    slot = planted(chain(clip_each(1.0), gaussian(1.0)), plant)
    assert [type(s).__name__ for s in slot] == ["ClipEach", "Plant", "Gaussian"]
    assert slot.per_sample is not None and noisy(slot) and not noisy(chain(clip(1.0)))


@pytest.mark.parametrize("factor", [0.0, 0.5, 2.0])
def test_tampered_noise_says_that_it_is_whole(factor):
    slot = chain(clip(1.0), gaussian(3.0))
    x = Signal(torch.zeros(2, 600))
    whole_ctx, part_ctx = context([0, 1]), context([0, 1])
    whole, part = slot(x, whole_ctx), tampered(slot, factor)(x, part_ctx)
    assert torch.allclose(part.value, factor * whole.value)
    assert (part.noise_var, part.released, part.bound) == (whole.noise_var, True, whole.bound)
    assert part_ctx.releases == whole_ctx.releases
    assert isinstance(tampered(slot, factor).stages[1], Tampered)
    assert tampered(slot, 1.0) is slot
