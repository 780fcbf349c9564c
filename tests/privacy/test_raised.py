"""Raised noise: what is charged stays σ0, what is added follows what was announced, and never falls below."""

import math

import pytest
import torch

from fedveil.core.errors import Refused
from fedveil.core.flat import Layout
from fedveil.core.signal import Signal
from fedveil.core.stage import Context, chain
from fedveil.core.streams import stream
from fedveil.privacy.clip import clip
from fedveil.privacy.noise import gaussian
from fedveil.privacy.raised import NOISE, Raised

DIM = 200_000


def at(announced):
    return Context(1, Layout(("w",), ((DIM,),)), [0], [stream(3, "raised")], slot="on_delta", announced=announced)


def made(announced, cap=3.0):
    ctx = at(announced)
    out = chain(clip(1.0), gaussian(0.5), Raised(cap))(Signal(torch.zeros(1, DIM, dtype=torch.float64)), ctx)
    return out, ctx.releases


@pytest.mark.parametrize(("told", "factor"), [({}, 1.0), ({NOISE: 2.0}, 2.0), ({NOISE: 9.0}, 3.0), ({NOISE: 0.1}, 1.0)])
def test_the_deviation_is_the_announced_one_within_its_limits_and_the_charge_is_the_first(told, factor):
    out, releases = made(told)
    # A deviation of 200,000 numbers is within 1 % of the true one except with probability 1e-9.
    assert float(out.value.std()) == pytest.approx(0.5 * factor, rel=0.01)
    assert math.sqrt(float(torch.as_tensor(out.noise_var))) == pytest.approx(0.5 * factor)
    assert [r.noise_std for r in releases] == [0.5]


def test_without_an_announcement_no_bit_changes():
    plain = chain(clip(1.0), gaussian(0.5))(Signal(torch.zeros(1, DIM, dtype=torch.float64)), at({}))
    assert torch.equal(made({})[0].value, plain.value)


def test_noise_that_is_not_there_cannot_be_raised():
    with pytest.raises(Refused, match="noise_alpha: there is no noise"):
        Raised(2.0)(Signal(torch.zeros(1, 3)), at({NOISE: 2.0}))
    with pytest.raises(Refused, match="noise_cap"):
        Raised(0.5)
