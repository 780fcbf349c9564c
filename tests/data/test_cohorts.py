from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedveil.core.errors import Refused
from fedveil.data.cohorts import draw


def test_fixed_draws_that_many_different_clients_in_order() -> None:
    for round in range(50):
        clients = draw(0, round, 30, 7)
        assert clients.dtype == np.int64
        assert len(clients) == 7
        assert (np.diff(clients) > 0).all()
        assert 0 <= clients[0] <= clients[-1] < 30
    assert draw(0, 0, 5, 5).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("selection", ["fixed", "poisson"])
def test_a_draw_belongs_to_its_seed_and_round(selection: str) -> None:
    assert np.array_equal(draw(1, 2, 1000, 100, selection), draw(1, 2, 1000, 100, selection))
    assert not np.array_equal(draw(1, 2, 1000, 100, selection), draw(1, 3, 1000, 100, selection))
    assert not np.array_equal(draw(1, 2, 1000, 100, selection), draw(2, 2, 1000, 100, selection))


@pytest.mark.parametrize("selection", ["fixed", "poisson"])
def test_everybody_is_equally_likely(selection: str) -> None:
    rounds, population, cohort = 4000, 20, 5
    times = np.bincount(
        np.concatenate([draw(0, r, population, cohort, selection) for r in range(rounds)]), minlength=population
    )
    rate = cohort / population
    assert np.abs(times / rounds - rate).max() < 4.5 * np.sqrt(rate * (1 - rate) / rounds)


def test_poisson_clients_are_independent() -> None:
    rounds, population, cohort = 4000, 20, 5
    present = np.zeros((rounds, population))
    for r in range(rounds):
        present[r, draw(0, r, population, cohort, "poisson")] = 1
    rate = cohort / population
    assert present.sum(axis=1).var() == pytest.approx(population * rate * (1 - rate), rel=0.1)
    off = np.corrcoef(present.T)[~np.eye(population, dtype=bool)]
    assert np.abs(off).max() < 4.5 / np.sqrt(rounds)


def test_poisson_may_take_everybody() -> None:
    assert draw(0, 0, 8, 8, "poisson").tolist() == list(range(8))


def test_large_populations_are_fine() -> None:
    assert len(draw(0, 0, 10**6, 1000)) == 1000


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ((20, 30), "cohort: 30 clients per round is more than the population of 20; lower cohort"),
        ((20, 0), "cohort: 0 is not allowed"),
        ((0, 1), "population: 0 is not allowed"),
        ((20, 2.5), "cohort: 2.5 is not allowed"),
        ((20, 2, "possion"), "selection: 'possion' is unknown; did you mean 'poisson'"),
    ],
)
def test_refusals(setting: Any, message: str) -> None:
    with pytest.raises(Refused, match=message):
        draw(0, 0, *setting)
