"""Against byzfl, on 200 random inputs for every rule that both have; where its variant differs, the test says how."""

import numpy as np
import pytest
import torch
from tests.support import require

import fedveil.aggregate as rules
from fedveil.aggregate.distances import squared_distances
from fedveil.bench.peers import byzfl as peer

if not peer.installed():
    require("byzfl")
byzfl = peer.load()


def inputs():
    """Sizes, attackers and directions vary; in half of them the first f uploads are far off."""
    for seed in range(200):
        rng = np.random.default_rng(seed)
        f = int(rng.integers(0, 4))
        n = int(rng.integers(4 * f + 3, 4 * f + 9))
        x = torch.from_numpy(rng.normal(size=(n, int(rng.integers(2, 40))))).float()
        if seed % 2:
            x[:f] += 10 * torch.from_numpy(rng.normal(size=x.shape[1])).float()
        yield x, f


def agree(mine, theirs, **tolerance):
    for x, f in inputs():
        assert torch.allclose(mine(x, f), theirs(x.clone(), f), **({"atol": 1e-5} | tolerance)), (x.shape, f)


def test_trimmed_mean():
    agree(rules.trimmed_mean, lambda x, f: byzfl.TrMean(f)(x))


def test_median():
    agree(lambda x, f: rules.median(x), lambda x, f: byzfl.Median()(x))


def test_krum_with_one_neighbour_more():
    """byzfl sums over n − f − 1 neighbours, which is Krum with f − 1 attackers; with Blanchard's n − f − 2 it differs."""
    differ = 0
    for x, f in inputs():
        if f:
            assert torch.equal(rules.krum(x, f - 1), byzfl.Krum(f)(x))
            differ += not torch.equal(rules.krum(x, f), byzfl.Krum(f)(x))
    assert differ > 5


def test_multi_krum_with_one_neighbour_more():
    for x, f in inputs():
        if f:
            assert torch.allclose(rules.multi_krum(x, f - 1, keep=len(x) - f), byzfl.MultiKrum(f)(x), atol=1e-5)


def test_geometric_median():
    """byzfl takes three steps with distances of at least 0.1; given enough, and less, it arrives at the same point."""
    agree(
        lambda x, f: rules.geometric_median(x.double()).float(),
        lambda x, f: byzfl.GeometricMedian(nu=1e-7, T=3000)(x),
        atol=2e-3,
    )


@pytest.mark.parametrize("steps", [1, 3])
def test_centered_clipping_with_a_fixed_radius_from_zero(steps):
    """byzfl starts at zero with a radius of 100; ours at the mean with the median deviation."""
    agree(
        lambda x, f: rules.centered_clipping(x, iterations=steps, tau=2.0, centre=torch.zeros(x.shape[1])),
        lambda x, f: byzfl.CenteredClipping(L=steps, tau=2.0)(x),
    )


def test_mda():
    """byzfl takes the first set of several with the same diameter, which is common; ours the one with the least spread."""
    same = 0
    for x, f in inputs():
        if len(x) > 12:
            continue
        mine, theirs = rules.mda(x, f), byzfl.MDA(f)(x)
        distances = squared_distances("mda", x)
        sets = {name: _members(x, f, found) for name, found in (("mine", mine), ("theirs", theirs))}
        diameters = [float(distances[rows][:, rows].max()) for rows in sets.values()]
        assert diameters[0] == pytest.approx(diameters[1], rel=1e-5)
        sums = [float(distances[rows][:, rows].sum()) for rows in sets.values()]
        assert sums[0] <= sums[1] * (1 + 1e-6)
        same += sets["mine"] == sets["theirs"]
    assert same > 20


def _members(x, f, mean):
    """The set of n − f uploads with this mean."""
    from itertools import combinations

    subsets = [list(rows) for rows in combinations(range(len(x)), len(x) - f)]
    away = [float((x[rows].mean(dim=0) - mean).norm()) for rows in subsets]
    assert min(away) < 1e-4
    return subsets[int(np.argmin(away))]


def test_nearest_neighbour_mixing():
    agree(rules.nearest_neighbour_mixing, lambda x, f: byzfl.NNM(f)(x))


def test_bucketing():
    """byzfl shuffles by torch's global state: the same order gives the same buckets."""
    for seed, (x, f) in enumerate(inputs()):
        size = 1 + f
        torch.manual_seed(seed)
        theirs = byzfl.Bucketing(size)(x.clone())
        torch.manual_seed(seed)
        assert torch.allclose(rules.bucketing(x, size, torch.randperm(len(x))), theirs, atol=1e-6)


def test_norm_bound():
    agree(lambda x, f: rules.clip_norms(x, 2.0), lambda x, f: byzfl.Clipping(2.0)(x))
