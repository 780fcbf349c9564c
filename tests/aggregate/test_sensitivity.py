"""The bounds that rules state are true: a search for inputs that move the result farther finds none, and some reach them."""

import math

import numpy as np
import pytest
import torch

from fedveil.aggregate.before import Before, Bucketing, NearestNeighbourMixing, NormBound
from fedveil.aggregate.bulyan import Bulyan
from fedveil.aggregate.centered_clipping import CenteredClipping
from fedveil.aggregate.geometric_median import GeometricMedian
from fedveil.aggregate.krum import Krum, MultiKrum
from fedveil.aggregate.mda import Mda
from fedveil.aggregate.mean import Mean
from fedveil.aggregate.order import Median, TrimmedMean
from fedveil.core.signal import Signal

R = 1.5
ENFORCED = NormBound(R)
OWN = {"trimmed_mean": TrimmedMean(2), "median": Median(), "mean": Mean()}
ENFORCING = {
    "krum": Krum(1),
    "multi_krum": MultiKrum(1),
    "bulyan": Bulyan(1),
    "geometric_median": GeometricMedian(),
    "centered_clipping": CenteredClipping(),
    "mda": Mda(2),
    "trimmed_mean": TrimmedMean(2),
}


def even(n):
    return torch.full((n,), 1 / n, dtype=torch.float64)


def worst(rule, n, d, *, short, tries=400):
    """The largest move of the result, over its bound, when one row of norm C = 1 (at most) becomes zero."""
    rng = np.random.default_rng(0)
    best, largest = None, 0.0
    for attempt in range(tries):
        if best is None or attempt % 4 == 0:
            x = rng.normal(size=(n, d)) * rng.choice([0.01, 0.5, 3.0], size=(n, 1))
            if attempt % 3 == 0:
                x = np.sign(x[:, :1]) * (x * 1e-3 + np.eye(d)[0] * rng.choice([1.0, 3.0]))
        else:
            x = best + rng.normal(size=(n, d)) * rng.choice([1e-3, 1e-2, 0.1])
        x[0] /= max(1.0, np.linalg.norm(x[0]))
        if short:
            x /= np.maximum(1.0, np.linalg.norm(x, axis=1, keepdims=True))
        zeroed = x.copy()
        zeroed[0] = 0
        one, other = (rule(Signal(torch.from_numpy(v), 1.0, "client"), even(n)) for v in (x, zeroed))
        assert one.bound == other.bound is not None and one.unit == "client"
        share = float((one.value - other.value).norm()) / one.bound
        assert share <= 1 + 1e-6
        if share > largest:
            best, largest = x, share
    return largest


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize("n", [8, 9])
def test_rules_with_a_bound_of_their_own_keep_it_whatever_the_others_send(name, n):
    assert worst(OWN[name], n, 3, short=False) > 0.6, "the search is too weak to say anything"


def test_the_bounds_of_trimmed_mean_and_median_are_reached():
    low, high = [-9.0, -9.0], [9.0, 9.0]
    ordered = torch.tensor([[1.0], *([v] for v in (*low, *high)), [0.5]], dtype=torch.float64)
    zeroed = ordered.clone()
    zeroed[0] = 0
    moved = TrimmedMean(2)(Signal(ordered, 1.0, "client"), even(6))
    assert moved.bound == 0.5 == float(moved.value - TrimmedMean(2)(Signal(zeroed), even(6)).value)
    middle = Median()(Signal(ordered[:5], 1.0, "client"), even(5))
    assert middle.bound == 1.0 == float(middle.value - Median()(Signal(zeroed[:5]), even(5)).value)


@pytest.mark.parametrize("name", ENFORCING)
def test_other_rules_have_a_bound_where_the_server_shortens_every_upload(name):
    rule = Before((ENFORCED,), ENFORCING[name])
    assert worst(rule, 9, 3, short=False, tries=200) > 0.05
    without_clip = rule(Signal(torch.randn(9, 3, dtype=torch.float64)), even(9))
    assert without_clip.unit == "client" and without_clip.bound is not None


def test_krum_moves_by_almost_twice_the_norm():
    """Two camps of equal strength: one client decides which of them is heard."""
    a = torch.tensor([1.0, 0.0])
    camps = torch.stack([a, a, a, a, -0.999 * a, -0.999 * a, -0.999 * a])
    jump = camps.clone()
    jump[3] = 0
    rule = Before((NormBound(1.0),), Krum(2))
    one, other = (rule(Signal(x, 1.0, "client"), even(7)) for x in (camps, jump))
    assert one.bound == 2.0
    assert 1.99 < float((one.value - other.value).norm()) <= 2.0


@pytest.mark.parametrize("rule", [Krum(1), MultiKrum(1), Bulyan(1), GeometricMedian(), CenteredClipping(), Mda(1)])
def test_without_enforced_norms_the_others_have_none(rule):
    """An attacker does not clip: one honest client then moves Krum from one far point to another."""
    for unit in ("client", "record"):
        found = rule(Signal(torch.randn(9, 2), 1.0, unit), even(9))
        assert found.bound is None and found.unit is None


def test_mixing_takes_the_bound_away_and_bucketing_shares_it():
    x = Signal(torch.randn(9, 3, dtype=torch.float64), 1.0, "record")
    assert Before((NearestNeighbourMixing(2),), TrimmedMean(2))(x, even(9)).bound is None
    mixed = Before((ENFORCED, NearestNeighbourMixing(2)), TrimmedMean(2))(x, even(9))
    assert mixed.bound == pytest.approx(2 * R * math.sqrt(9 / 5)) and mixed.unit == "record"
    assert worst(Before((ENFORCED, NearestNeighbourMixing(2)), TrimmedMean(2)), 9, 3, short=False, tries=100) > 0.01
    bucketed = Before((Bucketing(2),), TrimmedMean(1))
    assert bucketed(x, even(9)).bound == pytest.approx(1 / 3)  # five buckets, the last of one client
    assert worst(bucketed, 8, 3, short=False) > 0.4


@pytest.mark.parametrize(
    ("rule", "n"), [(TrimmedMean(3), 8), (Median(), 8), (Median(), 9), (Bulyan(2), 11), (Krum(2), 8)]
)
def test_no_result_is_longer_than_the_rule_says(rule, n):
    """Each coordinate of many is pushed by rows that spend all of their length on it."""
    rng = np.random.default_rng(1)
    longest = 0.0
    for d in (2, 5, 30):
        for _ in range(60):
            x = (rng.random((n, d)) < rng.choice([0.3, 0.5, 0.7])) * 1.0 + 1e-9 * rng.normal(size=(n, d))
            x /= np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)
            longest = max(longest, float(rule.one(torch.from_numpy(x)).norm()))
    assert 0.9 < longest <= rule.reach(n) + 1e-6


def test_facts_of_the_result():
    """Noise is unknown after a rule that is not linear, known to be none where there was none; released stays."""
    x = torch.randn(9, 4)
    known = torch.randn(9, 4)
    noisy = Median()(Signal(x, 1.0, "client", noise_var=2.0, released=True, public=known), even(9))
    assert noisy.noise_var is None and noisy.released and noisy.bound == 1.0
    assert torch.equal(noisy.public, known.mean(dim=0, keepdim=True))
    quiet = Krum(1)(Signal(x, noise_var=torch.zeros(9, 1)), even(9))
    assert quiet.noise_var == 0.0 and not quiet.released
    bounded = NormBound(2.0)
    assert bounded(Signal(x)).bound == 2.0 and bounded(Signal(x)).unit == "client"
    assert bounded(Signal(x, 1.0, "client")).bound == 1.0
    assert bounded(Signal(x, 9.0, "record")).bound == 4.0
