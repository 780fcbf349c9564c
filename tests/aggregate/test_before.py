"""Mixing, bucketing and the bound on norms, by hand and in a method."""

import math

import numpy as np
import pytest
import torch

import fedveil.aggregate as rules
from fedveil.aggregate.before import Before, Bucketing, NearestNeighbourMixing, NormBound, before
from fedveil.aggregate.krum import Krum
from fedveil.aggregate.mean import Mean
from fedveil.aggregate.order import Median, TrimmedMean
from fedveil.core.errors import Aborted, Refused
from fedveil.core.signal import Signal
from fedveil.core.streams import stream


def even(n):
    return torch.full((n,), 1 / n, dtype=torch.float64)


def test_mixing_by_hand():
    x = torch.tensor([[0.0], [1.0], [3.0], [50.0]])
    mixed = rules.nearest_neighbour_mixing(x, 1)
    assert mixed[:, 0].tolist() == pytest.approx([4 / 3, 4 / 3, 4 / 3, 18.0])


def test_every_upload_is_its_own_neighbour():
    """Also where colluders sent the same."""
    x = torch.tensor([[0.0], [0.0], [0.0], [0.0], [9.0]])
    assert rules.nearest_neighbour_mixing(x, 2)[:, 0].tolist() == pytest.approx([0, 0, 0, 0, 3])


def test_buckets_by_hand():
    x = torch.arange(5.0)[:, None]
    order = torch.tensor([4, 0, 3, 1, 2])
    assert rules.bucketing(x, 2, order)[:, 0].tolist() == [2.0, 2.0, 2.0]
    assert rules.bucketing(x, 3, order)[:, 0].tolist() == pytest.approx([7 / 3, 1.5])
    assert rules.bucketing(x, 1, order)[:, 0].tolist() == order.tolist()


def test_norms_are_bounded_for_every_input():
    rng = np.random.default_rng(0)
    for dtype in (np.float32, np.float64):
        x = torch.from_numpy((rng.normal(size=(50, 10_000)) * 10.0 ** rng.uniform(-6, 6, (50, 1))).astype(dtype))
        short = rules.clip_norms(x, 3.0)
        assert float(short.double().norm(dim=1).max()) <= 3.0 * (1 + 1e-15 * (dtype is np.float64))
        inside = x.double().norm(dim=1) <= 3.0
        assert torch.equal(short[inside], x[inside])
        turned = torch.nn.functional.cosine_similarity(short.double(), x.double())
        assert float(turned.min()) > 1 - 1e-6
    exactly = x.float()[:1].expand(50, -1) / x.float()[0].double().norm().float() * 3
    assert float(rules.clip_norms(exactly, 3.0).double().norm(dim=1).max()) <= 3.0
    far = torch.full((30, 10_000), 1e30)
    assert rules.clip_norms(far, 3.0).double().norm(dim=1).tolist() == pytest.approx([3.0] * 30, rel=1e-5)
    broken = torch.tensor([[1.0, math.nan], [math.inf, 0.0], [3e38, 3e38]])
    assert rules.clip_norms(broken, 1.0)[:2].tolist() == [[0.0, 0.0], [0.0, 0.0]]
    assert float(rules.clip_norms(broken, 1.0)[2].norm()) == pytest.approx(1.0)


def test_the_order_of_buckets_belongs_to_the_round():
    rule = Before((Bucketing(3),), Median())
    uploads = Signal(torch.from_numpy(np.random.default_rng(0).normal(size=(12, 4))))

    def found(seed, number):
        return rule.drawn(stream(seed, "server", number))(uploads, even(12)).value

    assert torch.equal(found(0, 1), found(0, 1))
    assert not torch.equal(found(0, 1), found(0, 2))
    assert not torch.equal(found(0, 1), found(1, 1))
    once = rule.drawn(stream(0, "server", 1))
    assert torch.equal(once(uploads, even(12)).value, once(uploads, even(12)).value), "all channels of a round alike"
    calm = Before((NormBound(1.0),), Median())
    rng = stream(0, "server", 1)
    assert calm.drawn(rng) is calm
    assert rng.random() == stream(0, "server", 1).random(), "who draws nothing leaves the stream as it was"


def test_parts_act_in_order():
    x = Signal(torch.tensor([[1.0], [1.0], [1.0], [1.0], [400.0], [1.0]], dtype=torch.float64))
    first = before(Mean(), ["norm_bound", "bucketing"], byzantine=None, bucket=3, norm_bound=4.0)
    after = before(Mean(), ["bucketing", "norm_bound"], byzantine=None, bucket=3, norm_bound=4.0)
    assert float(first(x, even(6)).value) == pytest.approx(1.5)
    assert float(after(x, even(6)).value) == pytest.approx((1.0 + 4.0) / 2)
    assert first.name == "Mean() of bucketing of norm_bound" or first.name.endswith("of bucketing of norm_bound")


def test_how_many_uploads_are_needed():
    assert Before((Bucketing(2),), Krum(1)).least == 9  # five buckets
    assert Before((NearestNeighbourMixing(4),), Median()).least == 9
    assert Before((NormBound(1.0),), TrimmedMean(2)).least == 5
    with pytest.raises(Aborted, match="krum of bucketing needs at least 9 uploads, and there are 8"):
        Before((Bucketing(2),), Krum(1))(Signal(torch.zeros(8, 2)), even(8))
    with pytest.raises(Refused, match="krum of bucketing needs at least 9 uploads, and there are 8 in a cohort"):
        Before((Bucketing(2),), Krum(1)).check(8)
    with pytest.raises(Aborted, match="krum needs at least 7 uploads against 2 attackers, and there are 6"):
        Krum(2)(Signal(torch.zeros(6, 2)), even(6))


def test_weights_count_for_means_alone():
    x, skewed = Signal(torch.tensor([[0.0], [1.0], [2.0]])), torch.tensor([0.5, 0.25, 0.25])
    assert float(Before((NormBound(9.0),), Mean())(x, skewed).value) == 0.75
    for rule in (Median(), Before((NearestNeighbourMixing(1),), Mean())):
        assert not rule.weighted
        with pytest.raises(Refused, match="counts every upload once; set weights=uniform"):
            rule(x, skewed)


@pytest.mark.parametrize(
    ("names", "settings", "message"),
    [
        ("nm", {}, "aggregate.before: 'nm' is unknown; .*allowed: bucketing, nnm, norm_bound"),
        ("norm_bound", {}, "aggregate.norm_bound: how long may an upload be"),
        ("norm_bound", {"norm_bound": -1.0}, "aggregate.norm_bound"),
        ("nnm", {}, "declared_f: nnm must know how many attackers to expect"),
        ("bucketing", {"bucket": 0}, "aggregate.bucket: 0 uploads"),
    ],
)
def test_mistakes_are_one_sentence(names, settings, message):
    given = {"byzantine": None, "bucket": 2, "norm_bound": None} | settings
    with pytest.raises(Refused, match=message):
        before(Median(), names, **given)
