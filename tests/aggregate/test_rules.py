"""The rules as functions: what holds for all inputs, and vectors worked out by hand."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fedveil.aggregate as rules
from fedveil.aggregate.columns import WIDE
from fedveil.aggregate.distances import squared_distances
from fedveil.aggregate.krum import scores
from fedveil.core.errors import Refused

WITH_F = ("trimmed_mean", "krum", "multi_krum", "bulyan", "mda")
WITHOUT = ("median", "geometric_median", "centered_clipping")
NAMES = WITH_F + WITHOUT
CHOOSE = ("krum", "multi_krum", "bulyan", "mda")


def apply(name, x, f=2):
    rule = getattr(rules, name)
    return rule(x, f) if name in WITH_F else rule(x)


def one_step(x):
    return rules.centered_clipping(x, iterations=1)


def numbers(seed, n=13, d=7):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(n, d)))


SEEDS = st.integers(0, 2**32)
QUICK = settings(max_examples=40, deadline=None)


@pytest.mark.parametrize("name", NAMES)
@QUICK
@given(seed=SEEDS)
def test_the_order_of_clients_does_not_matter(name, seed):
    x = numbers(seed)
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(x)))
    assert torch.allclose(apply(name, x[order]), apply(name, x), atol=1e-7)


@pytest.mark.parametrize("name", NAMES)
@QUICK
@given(seed=SEEDS, shift=st.floats(-1e6, 1e6), scale=st.floats(1e-6, 1e6))
def test_shifts_and_scales_go_through(name, seed, shift, scale):
    x, by = numbers(seed), shift * numbers(seed + 1, 1)
    expected = apply(name, x)
    assert torch.allclose(apply(name, scale * x), scale * expected, rtol=1e-6, atol=1e-6 * scale)
    assert torch.allclose(apply(name, x + by) - by[0], expected, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_a_shift_goes_through_in_float32(name):
    """Squares of a large common part hold none of the differences: the origin has to move there."""
    x = (numbers(3) * 64).round() / 64
    shifted = (x + 4096).float()
    assert torch.equal(shifted.double() - 4096, x)
    assert torch.allclose(apply(name, shifted).double() - 4096, apply(name, x), atol=2e-3)


@pytest.mark.parametrize("name", NAMES)
def test_turning_all_signs_turns_the_result(name):
    x = numbers(5)
    assert torch.allclose(apply(name, -x), -apply(name, x), atol=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_equal_uploads_come_back(name):
    x = numbers(0, 1).expand(13, -1).contiguous()
    assert torch.allclose(apply(name, x), x[0], atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("far", [1e3, 1e9, 1e18, 1e30])
def test_two_of_thirteen_cannot_carry_the_result_away(name, far):
    """Of float32 numbers, whose squares overflow for the last two sizes."""
    x = numbers(1).float()
    honest = x[2:]
    x[0], x[1] = far, -far
    x[1, 0] = far
    spread = (honest - honest.mean(dim=0)).norm(dim=1).max()
    assert (apply(name, x) - honest.mean(dim=0)).norm() < spread
    alone = apply(name, torch.cat([honest, honest.mean(dim=0).expand(2, -1)]))
    assert (apply(name, x) - alone).norm() < 2 * spread


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_refused_by_number(name, bad):
    x = numbers(2)
    x[4, 3] = bad
    with pytest.raises(Refused, match=r"uploads 4 are not finite"):
        apply(name, x)
    with pytest.raises(Refused, match=r"uploads 4 are not finite"):
        one_step(x)
    with pytest.raises(Refused, match=r"uploads 4 are not finite"):
        rules.nearest_neighbour_mixing(x, 2)


@pytest.mark.parametrize(
    ("name", "f", "least"),
    [("trimmed_mean", 2, 5), ("krum", 2, 7), ("multi_krum", 1, 5), ("bulyan", 1, 7), ("mda", 3, 7)],
)
def test_too_few_uploads_are_refused(name, f, least):
    assert apply(name, numbers(0, least), f).shape == (7,)
    with pytest.raises(
        Refused, match=f"{name} needs at least {least} uploads against {f} attackers, and there are {least - 1}"
    ):
        apply(name, numbers(0, least - 1), f)
    for wrong in (-1, 1.5, True, None):
        with pytest.raises((Refused, TypeError)):
            getattr(rules, name)(numbers(0, 30), wrong)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("d", [1, 3])
def test_uploads_are_left_as_they_were(name, d):
    x = numbers(0, 13, d)
    before = x.clone()
    found = apply(name, x)
    found += 1
    assert torch.equal(x, before)


def test_columns_beyond_a_block_and_threads_change_nothing():
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(11, 12 * WIDE + 3)))
    ordered = x.sort(dim=0).values
    assert torch.allclose(rules.median(x), ordered[5])
    assert torch.allclose(rules.trimmed_mean(x, 3), ordered[3:-3].mean(dim=0))
    assert torch.allclose(squared_distances("x", x), torch.cdist(x, x).square(), rtol=1e-9, atol=1e-6)


def test_trimmed_mean_and_median_by_hand():
    x = torch.tensor([[1.0, -5.0], [4.0, 0.0], [2.0, 8.0], [100.0, 1.0], [3.0, 3.0]])
    assert rules.trimmed_mean(x, 1).tolist() == pytest.approx([3.0, 4 / 3])
    assert rules.trimmed_mean(x, 2).tolist() == [3.0, 1.0] == rules.median(x).tolist()
    assert rules.trimmed_mean(x, 0).tolist() == pytest.approx([22.0, 1.4])
    assert rules.median(x[:4]).tolist() == [3.0, 0.5]


def test_krum_by_hand():
    """n = 5, f = 1: two neighbours. Scores: 1+4, 1+1, 1+1+..., of points on a line."""
    x = torch.tensor([[0.0], [1.0], [2.0], [3.5], [50.0]])
    found = scores(squared_distances("krum", x), 1)
    assert found.tolist() == [5.0, 2.0, 3.25, 8.5, 46.5**2 + 48**2]
    assert rules.krum(x, 1).tolist() == [1.0]
    assert rules.multi_krum(x, 1, 2).tolist() == [1.5]
    assert rules.multi_krum(x, 1).tolist() == [1.625]


def test_nearest_to_the_mean_is_not_krum():
    """The mean lies beside a straggler; summing over *all* others picks it too. Krum stays in the cluster."""
    x = torch.tensor([[0.0, 0.0], [0.1, 0.0], [0.0, 0.1], [0.1, 0.1], [0.05, 0.05], [3.0, 0.0], [12.0, 0.0]])
    to_mean = (x - x.mean(dim=0)).norm(dim=1)
    everybody = torch.cdist(x, x).square().sum(dim=1)
    krum = rules.krum(x, 2)
    assert int(to_mean.argmin()) == int(everybody.argmin()) == 5
    assert krum.tolist() == x[4].tolist()


def test_krum_counts_n_minus_f_minus_2_neighbours():
    """One neighbour more, as some implementations have it, picks another upload here."""
    x = torch.tensor([[0.0], [1.0], [2.2], [2.9], [10.0]])
    ordered = torch.cdist(x, x).square().sort(dim=1).values
    assert int(ordered[:, 1:3].sum(dim=1).argmin()) != int(ordered[:, 1:4].sum(dim=1).argmin())
    assert rules.krum(x, 1).tolist() == x[int(ordered[:, 1:3].sum(dim=1).argmin())].tolist()


def test_bulyan_by_hand():
    """n = 7, f = 1: five picks; in each coordinate the three nearest their median."""
    x = torch.tensor([[0.0], [1.0], [2.0], [3.0], [4.0], [5.0], [99.0]])
    picked = sorted(rules_bulyan_picks(x, 1))
    assert 99.0 not in picked and len(picked) == 5
    middle = np.median(picked)
    expected = np.mean(sorted(picked, key=lambda v: abs(v - middle))[:3])
    assert rules.bulyan(x, 1).item() == pytest.approx(expected)


def rules_bulyan_picks(x, f):
    from fedveil.aggregate.bulyan import selected

    return x[selected(squared_distances("bulyan", x), f)][:, 0].tolist()


def test_bulyan_against_its_definition():
    from fedveil.aggregate.bulyan import selected

    for seed in range(20):
        x = numbers(seed, 15, 4)
        left, picked = list(range(15)), []
        for _ in range(9):
            rest = x[left]
            near = torch.cdist(rest, rest).square().sort(dim=1).values[:, 1 : max(len(left) - 3 - 2, 1) + 1]
            picked.append(left.pop(int(near.sum(dim=1).argmin())))
        assert sorted(selected(squared_distances("bulyan", x), 3).tolist()) == sorted(picked)
        kept = x[picked].numpy()
        near = np.argsort(np.abs(kept - np.median(kept, axis=0)), axis=0)[:3]
        assert rules.bulyan(x, 3).numpy() == pytest.approx(np.take_along_axis(kept, near, 0).mean(axis=0))


def test_geometric_median_by_hand():
    """Of a triangle with angles below 120° the point from which all sides are seen under 120°; on a line the median."""
    corners = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.5, math.sqrt(3) / 2]], dtype=torch.float64)
    assert torch.allclose(rules.geometric_median(corners), corners.mean(dim=0), atol=1e-7)
    wide = torch.tensor([[-3.0, 0.0], [3.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    assert torch.allclose(rules.geometric_median(wide), wide[2], atol=1e-4)  # an angle above 120° is the answer itself
    line = torch.tensor([[0.0], [1.0], [5.0], [100.0], [7.0]], dtype=torch.float64)
    assert rules.geometric_median(line).item() == pytest.approx(5.0, abs=1e-4)


@QUICK
@given(seed=SEEDS)
def test_nothing_near_the_geometric_median_is_nearer_to_all(seed):
    x = numbers(seed, 9, 3)
    found = rules.geometric_median(x)
    total = (x - found).norm(dim=1).sum()
    around = found + 1e-3 * numbers(seed + 1, 50, 3)
    assert bool((total <= torch.cdist(around, x).sum(dim=1) + 1e-9).all())


def test_centered_clipping_by_hand():
    """Mean 5, deviations 5, 4, 4, 13: τ = 4.5; the first and the last are clipped."""
    x = torch.tensor([[0.0], [1.0], [1.0], [18.0]], dtype=torch.float64)
    assert rules.centered_clipping(x, iterations=1).item() == pytest.approx(5 + (-4.5 - 4 - 4 + 4.5) / 4)
    assert rules.centered_clipping(x, iterations=1, tau=1.0).item() == pytest.approx(5 + (-1 - 1 - 1 + 1) / 4)
    zero = torch.zeros(1, dtype=torch.float64)
    assert rules.centered_clipping(x, iterations=1, tau=2.0, centre=zero).item() == pytest.approx((0 + 1 + 1 + 2) / 4)
    two = rules.centered_clipping(x, iterations=2, tau=2.0, centre=zero).item()
    assert two == pytest.approx(1 + (-1 + 0 + 0 + 2) / 4)
    assert rules.centered_clipping(x, tau=1e9).item() == pytest.approx(5.0)


@QUICK
@given(seed=SEEDS, steps=st.integers(1, 5), tau=st.sampled_from([None, 0.5, 3.0]), given=st.booleans())
def test_steps_on_products_are_steps_on_vectors(seed, steps, tau, given):
    x = numbers(seed)
    centre = numbers(seed + 1, 1)[0] if given else None
    at = x.mean(dim=0) if centre is None else centre
    for _ in range(steps):
        away = x - at
        norms = away.norm(dim=1)
        radius = np.median(norms.numpy()) if tau is None else tau
        at = at + (away * (radius / norms).clamp(max=1.0)[:, None]).mean(dim=0)
    assert torch.allclose(rules.centered_clipping(x, iterations=steps, tau=tau, centre=centre), at, atol=1e-7)


def test_centered_clipping_stands_still_in_the_end():
    x = numbers(8).float()
    x[0] = 1e6
    found = rules.centered_clipping(x)
    again = rules.centered_clipping(x, iterations=1, centre=found)
    assert torch.allclose(again, found, atol=1e-5)


def test_a_step_from_the_mean_leaves_2f_over_n_of_the_error():
    x = torch.zeros(10, 3, dtype=torch.float64)
    x[:3, 0] = 1e9
    left = [rules.centered_clipping(x, iterations=i)[0].item() for i in (1, 2, 3)]
    assert [left[0] / 3e8, left[1] / left[0], left[2] / left[1]] == pytest.approx([0.6, 0.6, 0.6])


def test_mda_by_hand():
    x = torch.tensor([[0.0], [1.0], [1.5], [4.0], [9.0]])
    assert rules.mda(x, 1).item() == pytest.approx(6.5 / 4)
    assert rules.mda(x, 2).item() == pytest.approx(2.5 / 3)
    assert rules.mda(x, 0).item() == pytest.approx(3.1)


def test_mda_refuses_what_cannot_be_tried():
    with pytest.raises(Refused, match=r"mda tries every set of uploads, 5.36e\+20 with 20 attackers among 100"):
        rules.mda(numbers(0, 100, 2), 20)
    assert rules.mda(numbers(0, 100, 2), 2).shape == (2,)


def test_other_shapes_and_formats():
    with pytest.raises(Refused, match=r"shape \(3,\); give \(clients, parameters\)"):
        rules.median(torch.zeros(3))
    with pytest.raises(Refused, match="one client at least"):
        rules.median(torch.zeros(0, 3))
    assert rules.median(torch.ones(3, 2, dtype=torch.bfloat16)).tolist() == [1.0, 1.0]
    assert rules.krum(torch.ones(5, 2).requires_grad_(), 1).requires_grad is False
    with pytest.raises(Refused, match="iterations: 0 steps"):
        rules.centered_clipping(numbers(0), iterations=0)
    with pytest.raises(Refused, match="tau"):
        rules.centered_clipping(numbers(0), tau=0.0)
    with pytest.raises(Refused, match="a centre of shape"):
        rules.centered_clipping(numbers(0), centre=torch.zeros(3))
