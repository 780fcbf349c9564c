"""The stage: what clients report, from ranges that nobody's data has touched."""

import numpy as np
import pytest
import torch

from fedveil.core.errors import Refused
from fedveil.core.flat import Layout
from fedveil.core.signal import Signal
from fedveil.core.stage import Context, chain
from fedveil.core.streams import stream
from fedveil.privacy import per_weight
from fedveil.privacy.events import Event, event_of
from fedveil.privacy.perturb import PerWeight
from fedveil.privacy.ranges import FASTEST, Ranges

LAYOUT = Layout(("a", "b", "c"), ((10, 20), (20,), (1,)))
FIXED = Ranges("fixed", (0.05,))
ADAPTIVE = Ranges("adaptive", (0.05,))


def stage(mechanism="two_point", epsilon=1.0, perturb="delta", ranges=FIXED, cohort=8):
    return PerWeight(mechanism, epsilon, perturb, ranges, cohort)


def context(rows=8, seed=0, **kw):
    return Context(1, LAYOUT, list(range(rows)), [stream(seed, "noise", k) for k in range(rows)], slot="on_delta", **kw)


def moves(rows=8, scale=0.03, seed=1):
    return Signal(torch.from_numpy(np.random.default_rng(seed).normal(0, scale, (rows, LAYOUT.dim))).float())


def test_two_values_are_reported_and_the_ledger_counts_every_weight():
    ctx = context()
    told = chain(stage())(moves(), ctx)
    k = per_weight.reach(1.0)
    assert told.released
    assert told.levels is not None
    assert torch.equal(told.value.unique(), torch.tensor([-0.05 * k, 0.05 * k]))
    assert bool(((told.value == told.levels[0]) | (told.value == told.levels[1])).all())
    (line,) = ctx.releases
    assert (line.unit, line.count, line.epsilon, line.clients) == ("client", LAYOUT.dim, 1.0, tuple(range(8)))
    assert event_of(line) == Event("pure", 1.0, None, LAYOUT.dim, "replace")


@pytest.mark.parametrize("mechanism", ["two_point", "hybrid"])
@pytest.mark.parametrize("perturb", ["delta", "weights"])
def test_the_mean_over_many_clients_is_that_of_the_clamped_values(mechanism, perturb):
    """Five standard errors; every coordinate at once."""
    rows = 4000
    w = torch.full((LAYOUT.dim,), 0.02)
    value = torch.linspace(-0.1, 0.1, LAYOUT.dim).expand(rows, -1)
    told = chain(stage(mechanism, 2.0, perturb, cohort=rows))(Signal(value), context(rows, weights=w))
    clamped = value[0].clamp(-0.05, 0.05) if perturb == "delta" else (value[0] + w).clamp(-0.05, 0.05) - w
    error = 0.05 * (per_weight.worst_variance(mechanism, 2.0) / rows) ** 0.5
    assert (told.value.mean(dim=0) - clamped).abs().max() < 5 * error


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0, 4.0])
@pytest.mark.parametrize("mechanism", ["two_point", "hybrid"])
def test_the_stage_adds_all_the_noise_that_its_ledger_line_claims(mechanism, epsilon):
    """The variance of reports about the centre is that of the ε in the ledger, neither more nor less (five errors)."""
    rows = 2000
    ctx = context(rows)
    told = chain(stage(mechanism, epsilon, cohort=rows))(Signal(torch.zeros(rows, LAYOUT.dim)), ctx)
    assert ctx.releases[0].epsilon == epsilon
    k, e, alpha = per_weight.reach(epsilon), np.exp(epsilon / 2), per_weight.share(epsilon)
    alpha = alpha if mechanism == "hybrid" else 0.0
    exact = alpha * (e + 3) / (3 * (e - 1) ** 2) + (1 - alpha) * k**2
    squares = (told.value.double() / 0.05).square()
    spread = float(squares.std()) / squares.numel() ** 0.5
    assert float(squares.mean()) == pytest.approx(exact, abs=5 * spread + 1e-5 * exact)


def test_the_clamp_alone_releases_nothing():
    ctx = context()
    told = chain(stage("clamp", None))(moves(scale=1.0), ctx)
    assert not told.released
    assert not ctx.releases
    assert told.value.abs().max() == pytest.approx(0.05)


def test_each_row_draws_from_its_own_stream():
    together = chain(stage())(moves(), context()).value
    for k in range(8):
        alone = Context(1, LAYOUT, [k], [stream(0, "noise", k)], slot="on_delta")
        assert torch.equal(chain(stage())(Signal(moves().value[k : k + 1]), alone).value[0], together[k])


@pytest.mark.parametrize("perturb", ["delta", "weights"])
def test_adaptive_ranges_never_look_at_a_client(perturb):
    released = torch.from_numpy(np.random.default_rng(5).normal(0, 0.5, LAYOUT.dim)).float()
    seen = []
    for scale in (1e-4, 1e4):
        memory = {"on_delta.0": torch.tensor([0.02, 0.03, 0.04], dtype=torch.float64)}
        ctx = context(memory=memory, weights=released)
        told = chain(stage(perturb=perturb, ranges=ADAPTIVE))(moves(scale=scale), ctx)
        seen.append((ctx.memory["on_delta.0"], *told.levels))
    assert all(torch.equal(one, other) for one, other in zip(*seen, strict=True))
    other = chain(stage(perturb=perturb, ranges=ADAPTIVE))(moves(), context(memory={}, weights=3 * released))
    assert not torch.equal(other.levels[1], seen[0][2]), "but at what was released"


def test_ranges_of_moves_are_as_wide_as_weights_are_spread():
    layout = Layout(("a", "b"), ((40_000,), (5,)))
    weights = torch.cat([torch.from_numpy(np.random.default_rng(0).normal(3, 0.1, 40_000)), torch.full((5,), 7.0)])
    centre, radius = Ranges("adaptive", (0.05,), width=0.5).of_moves(weights, layout)
    assert centre.tolist() == [0.0, 0.0]
    assert radius.tolist() == pytest.approx([0.05, 0.005], rel=0.02), "a layer without spread keeps a tenth of radius"


def test_ranges_of_weights_leave_out_the_noise_that_was_added():
    """A layer of spread 0.01 under noise of a known variance: three deviations of the layer, not of the noise."""
    layout, n, r = Layout(("a",), ((40_000,),)), 100, 0.05
    noise = per_weight.worst_variance("two_point", 1.0) / n
    rng = np.random.default_rng(0)
    released = torch.from_numpy(rng.normal(0.004, 0.01, layout.dim) + rng.normal(0, r * noise**0.5, layout.dim))
    before = torch.tensor([r], dtype=torch.float64)
    centre, radius = Ranges("adaptive", (0.05,), width=3.0).of_weights(released, layout, before, noise)
    assert float(centre) == pytest.approx(0.004, abs=2e-4)
    assert float(radius) == pytest.approx(0.03, rel=0.05)


@pytest.mark.parametrize("scale", [0.0, 1e6])
def test_a_range_of_weights_changes_by_a_factor_of_two_at_most(scale):
    before = torch.full((3,), 0.05, dtype=torch.float64)
    _, radii = ADAPTIVE.of_weights(scale * torch.randn(LAYOUT.dim), LAYOUT, before, 0.1)
    assert bool((radii >= 0.05 / FASTEST).all()) and bool((radii <= 0.05 * FASTEST).all())


@pytest.mark.parametrize("kind", ["fixed", "adaptive"])
def test_ranges_shrink_by_a_public_factor(kind):
    ranges = Ranges(kind, (0.05,), decay=0.5)
    reach = []
    for number in (1, 3):
        ctx = context(weights=torch.linspace(-1, 1, LAYOUT.dim))
        ctx.round = number
        reach.append(chain(stage(ranges=ranges))(moves(), ctx).levels[1])
    assert torch.allclose(reach[1], reach[0] / 4)


def test_a_range_of_each_tensor():
    ranges = Ranges("fixed", (0.1, 0.2, 0.3), (0.0, 1.0, 2.0))
    told = chain(stage(ranges=ranges))(moves(), context())
    k = per_weight.reach(1.0)
    assert told.levels is not None
    assert told.levels[1][0, [0, 200, 220]].tolist() == pytest.approx([0.1 * k, 1 + 0.2 * k, 2 + 0.3 * k])
    with pytest.raises(Refused, match="radius: 2 numbers for the 3 tensors"):
        chain(stage(ranges=Ranges("fixed", (0.1, 0.2))))(moves(), context())


def test_what_is_no_number_reports_the_centre_like_any_other_value():
    rows = 2000
    value = torch.full((rows, LAYOUT.dim), float("nan"))
    told = chain(stage(cohort=rows))(Signal(value), context(rows)).value
    assert bool(torch.isfinite(told).all())
    assert float(told.mean()) == pytest.approx(0, abs=5 * 0.05 * per_weight.reach(1.0) / (rows * LAYOUT.dim) ** 0.5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epsilon": None}, "privacy.epsilon: this method needs it"),
        ({"epsilon": -1.0}, "privacy.epsilon"),
        ({"mechanism": "clamp"}, "mechanism: clamp adds no noise"),
        ({"mechanism": "three_point"}, "mechanism: 'three_point' is unknown"),
        ({"perturb": "gradients"}, "perturb"),
    ],
)
def test_refused(settings, message):
    with pytest.raises(Refused, match=message):
        stage(**settings)


@pytest.mark.parametrize(
    ("settings", "message"), [({"radius": (0.0,)}, "radius"), ({"decay": 1.1}, "decay"), ({"width": 0.0}, "width")]
)
def test_ranges_that_cannot_be_are_refused(settings, message):
    with pytest.raises(Refused, match=message):
        Ranges("fixed", **({"radius": (0.1,)} | settings))
