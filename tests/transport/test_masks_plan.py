"""Graph and threshold keep the promised probabilities, computed against counting and simulation."""

import math
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.transport.sessions import plan_for

from fedveil.core.errors import Refused
from fedveil.transport.masks.plan import _tail, choose
from fedveil.transport.masks.session import Session


def exact(population, marked, drawn, least):
    ways = sum(math.comb(marked, j) * math.comb(population - marked, drawn - j) for j in range(least, drawn + 1))
    return Fraction(ways, math.comb(population, drawn))


@given(st.integers(1, 300), st.data())
def test_tails_are_those_of_exact_counting(population, data):
    marked = data.draw(st.integers(0, population))
    drawn = data.draw(st.integers(1, population))
    least = data.draw(st.integers(0, drawn + 1))
    found, truth = _tail(population, marked, drawn, least), exact(population, marked, drawn, least)
    if truth == 0:
        assert found == -math.inf
    else:
        assert found == pytest.approx(math.log2(truth.numerator) - math.log2(truth.denominator), rel=1e-8, abs=1e-9)


@pytest.mark.parametrize("active", [False, True])
@pytest.mark.parametrize("n", [2, 3, 5, 10, 31, 100, 1000])
@pytest.mark.parametrize(("dropout", "collusion"), [(0.2, 0.1), (0.1, 0.0), (0.3, 0.2), (0.0, 0.3)])
def test_every_plan_keeps_its_promises(n, dropout, collusion, active):
    plan = choose(n, max_dropout=dropout, collusion=collusion, active=active)
    assert max(plan.log2_leak, plan.log2_abort) <= -40
    assert 2 * plan.threshold > plan.degree
    assert plan.least == n - math.floor(dropout * n + 1e-9)
    if active:
        assert 2 * plan.threshold > plan.degree + min(plan.colluders, plan.degree)
        assert plan.degree > plan.lost + plan.colluders
        assert plan.least >= plan.signatures > (n + plan.colluders) / 2


def test_a_smaller_degree_would_not_do():
    plan = choose(1000, max_dropout=0.2, collusion=0.1)
    smaller = plan.degree - 2
    try:
        found = choose(1000, max_dropout=0.2, collusion=0.1, degree=smaller)
    except Refused:
        return
    assert found.log2_abort > -40


def test_the_failures_happen_as_often_as_is_said():
    """At sizes where failures are frequent: 4,000 random rings; the bounds are union bounds, so never exceeded by far.

    An overshoot of 20 % of a probability above 0.05 has a chance below 1e-4.
    """
    n, degree, threshold, lost = 24, 4, 3, 6
    rng = np.random.default_rng(0)
    aborted = cut = 0
    for _ in range(4000):
        order = rng.permutation(n)
        gone = np.isin(order, np.arange(lost))
        near = np.stack([np.roll(gone, s) for s in (1, 2, -1, -2)]).sum(0)
        aborted += bool((degree - near < threshold)[~gone].any())
        alive = np.flatnonzero(~gone)
        gaps = np.diff(np.append(alive, alive[0] + n))
        cut += (gaps > degree // 2).sum() >= 2
    from fedveil.transport.masks.plan import _times

    assert aborted / 4000 <= 1.2 * 2 ** _times(n, _tail(n - 1, lost, degree, degree - threshold + 1))
    bound = 2 ** _times(math.comb(n, 2), _tail(n, lost, degree, degree))
    assert 0 < cut / 4000 <= 1.2 * bound


def test_no_ring_of_more_than_d_plus_a_can_be_cut():
    """Against an active server: every way to take D + A = degree − 1 of 9 clients away leaves the ring in one piece."""
    plan = choose(9, max_dropout=0.23, collusion=0.12, active=True, degree=4)
    assert (plan.lost, plan.colluders, plan.degree) == (2, 1, 4)
    session = Session(bytes(16), plan, 1, 32, tuple(bytes(32) for _ in range(9)))
    near = {i: session.neighbours(i) for i in range(9)}
    for taken in combinations(range(9), 3):
        left = set(range(9)) - set(taken)
        reached, edge = set(), {min(left)}
        while edge:
            reached |= edge
            edge = {j for i in edge for j in near[i] & left} - reached
        assert reached == left


@given(st.integers(2, 60), st.binary(min_size=16, max_size=16), st.sampled_from([0.0, 0.1, 0.2]))
def test_neighbours_are_mutual_and_as_many_as_planned(n, name, dropout):
    session = Session(name, plan_for(n, max_dropout=dropout), 1, 32)
    near = {i: session.neighbours(i) for i in range(n)}
    assert all(len(near[i]) == session.plan.degree and i not in near[i] for i in near)
    assert all(i in near[j] for i in near for j in near[i])


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"clients": 1}, "hides nobody"),
        ({"clients": 4, "collusion": 0.75}, "hides nobody"),
        ({"clients": 100, "max_dropout": 0.45, "collusion": 0.2}, "no threshold stands"),
        ({"clients": 100, "degree": 7}, "even number"),
        ({"clients": 100, "degree": 0}, "even number"),
        ({"clients": 100, "degree": 10}, "leak more often"),
        ({"clients": 100, "degree": 20, "active": True}, "leak more often"),
    ],
)
def test_what_cannot_be_promised_is_refused(settings, words):
    given_ = {"max_dropout": 0.2, "collusion": 0.1} | settings
    with pytest.raises(Refused, match=words):
        choose(given_.pop("clients"), **given_)
