"""Shuffle bounds: published values to three digits, and against the mechanism itself, summed exactly."""

import math

import numpy as np
import pytest
from scipy.stats import binom

from fedveil.core.errors import Refused
from fedveil.privacy import shuffling
from fedveil.privacy.ldp_budget import ldp_budget
from fedveil.privacy.shuffling import Crowd, composed_epsilon, pair, shuffled_epsilon


@pytest.mark.parametrize(
    ("n", "epsilon", "delta", "kind", "value"),
    [
        (1000, 1.0, 1e-6, "generic", 0.18241),
        (10_000, 1.0, 1e-6, "generic", 0.05301),
        (10_000, 4.0, 1e-6, "generic", 0.60091),
        (100, 1.0, 1e-5, "generic", 0.55319),
        (1000, 1.0, 1e-6, "binary", 0.14867),
        (10_000, 1.0, 1e-6, "binary", 0.04321),
        (10_000, 4.0, 1e-6, "binary", 0.41081),
        (100, 1.0, 1e-5, "binary", 0.4436),
        (100, 0.5, 1e-5, "binary", 0.18161),
        (100, 0.3, 1e-5, "binary", 0.0986),
        (200, 4.0, 1e-5, "binary", 3.9996),
        (500, 10.0, 1e-5, "binary", 10.0),
    ],
)
def test_one_report(n, epsilon, delta, kind, value):
    assert shuffled_epsilon(n, epsilon, delta, kind) == pytest.approx(value, rel=5e-4)


@pytest.mark.parametrize(
    ("n", "epsilon", "dim", "rounds", "one", "every"),
    [
        (100, 1.0, 21_840, 10, 262, 2_021),
        (100, 0.3, 21_840, 10, 32.9, 184),
        (200, 4.0, 21_840, 15, 7_997, 113_030),
        (500, 10.0, 100_000, 15, 979_868, 1.47e7),
    ],
)
def test_compositions(n, epsilon, dim, rounds, one, every):
    crowd = Crowd(n, epsilon)
    assert composed_epsilon({crowd: dim}, 1e-5) == pytest.approx(one, rel=5e-3)
    assert composed_epsilon({crowd: dim * rounds}, 1e-5) == pytest.approx(every, rel=5e-3)


def test_the_pair_adds_up_to_one_and_is_its_own_mirror_image():
    for crowd in (Crowd(1, 1.0), Crowd(2, 1.0), Crowd(300, 2.0), Crowd(300, 2.0, "generic")):
        p, q, lost = pair(crowd)
        assert np.exp(p).sum() == pytest.approx(1, abs=1e-9)
        assert sorted(np.round(np.exp(p), 12)) == sorted(np.round(np.exp(q), 12))
        assert lost < 1e-20


@pytest.mark.parametrize(("n", "epsilon"), [(2, 1.0), (10, 0.5), (40, 1.0), (40, 3.0)])
def test_the_bound_covers_the_real_mechanism(n, epsilon):
    """The observer of n shuffled bits sees how many are 1; one client goes from the lower end to the upper one."""
    p, delta = math.exp(epsilon) / (1 + math.exp(epsilon)), 1e-3
    claim = shuffled_epsilon(n, epsilon, delta)
    worst = 0.0
    for ones in range(n):
        others = np.convolve(binom.pmf(range(ones + 1), ones, p), binom.pmf(range(n - ones), n - 1 - ones, 1 - p))
        here, there = np.convolve(others, [1 - p, p]), np.convolve(others, [p, 1 - p])
        worst = max(worst, np.maximum(here - math.exp(claim) * there, 0).sum())
    assert worst <= delta * (1 + 1e-9)
    assert worst > 0.5 * delta, "a bound that is never nearly reached would be no test"


def test_more_clients_hide_better_and_nobody_alone_is_hidden():
    values = [shuffled_epsilon(n, 1.0, 1e-5) for n in (1, 2, 10, 100, 1000)]
    assert values == sorted(values, reverse=True)
    assert values[0] == pytest.approx(1.0, abs=1e-4)
    assert shuffled_epsilon(100, 1.0, 1e-5) < shuffled_epsilon(100, 1.0, 1e-5, "generic")


def test_a_whole_layer_in_a_message_is_not_amplified():
    assert shuffled_epsilon(100, 218.0, 1e-5, "generic") == pytest.approx(218, rel=1e-3)
    assert shuffled_epsilon(100, 20_000.0, 1e-5, "generic") == 20_000.0


def test_crowds_of_different_rounds_compose():
    both = composed_epsilon({Crowd(100, 1.0): 500, Crowd(90, 1.0): 500}, 1e-5)
    assert composed_epsilon({Crowd(100, 1.0): 1000}, 1e-5) < both < composed_epsilon({Crowd(90, 1.0): 1000}, 1e-5)
    assert composed_epsilon({}, 1e-5) == 0.0


def test_what_is_left_out_counts_against_delta():
    with pytest.raises(Refused, match="delta"):
        composed_epsilon({Crowd(100, 1.0): 10**6}, 1e-17)


def test_a_crowd_beyond_what_is_summed_counts_as_the_largest(monkeypatch):
    monkeypatch.setattr(shuffling, "MOST", 50)
    assert np.array_equal(pair(Crowd(77, 1.5))[0], pair(Crowd(50, 1.5))[0])


def test_the_calculator():
    rows = ldp_budget(clients=100, epsilon=1.0, dim=21_840, rounds=10)
    assert [r.status for r in rows] == ["nominal", *["proved"] * 5]
    assert (rows[0].epsilon, rows[1].epsilon, rows[1].delta) == (1.0, 218_400.0, 0.0)
    assert rows[2].epsilon == pytest.approx(102_971, rel=2e-3)
    assert rows[-1].epsilon == pytest.approx(2_021, rel=0.05)
    layer = ldp_budget(clients=100, epsilon=1.0, dim=21_840, rounds=10, split="layer")
    assert layer[-1].epsilon == rows[2].epsilon
    hybrid = ldp_budget(clients=100, epsilon=1.0, dim=21_840, rounds=10, mechanism="hybrid")
    assert rows[-1].epsilon < hybrid[-1].epsilon < rows[2].epsilon


@pytest.mark.parametrize(
    ("setting", "value"),
    [("clients", 0), ("epsilon", 0.0), ("epsilon", 99.0), ("dim", 0), ("rounds", -1), ("delta", 2.0)],
)
def test_the_calculator_refuses(setting, value):
    with pytest.raises(Refused, match=setting):
        ldp_budget(**({"clients": 10, "epsilon": 1.0, "dim": 5, "rounds": 1, "delta": 1e-5} | {setting: value}))
