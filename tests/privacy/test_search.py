"""Calibration: noise, steps and rounds found by search stay within their target, and are nearly the best."""

from __future__ import annotations

import time

import pytest

from fedveil.core.errors import Refused
from fedveil.privacy.accountants import ACCOUNTANTS, epsilon
from fedveil.privacy.events import Event, Poisson, WithoutReplacement
from fedveil.privacy.search import max_steps, most, noise_multiplier, rounds_left


@pytest.mark.parametrize("name", list(ACCOUNTANTS))
@pytest.mark.parametrize(("target", "q", "steps"), [(8.0, 0.01, 300), (0.7, 0.2, 20)])
def test_noise_keeps_the_target_and_wastes_nothing(name: str, target: float, q: float, steps: int):
    z = noise_multiplier(target, 1e-5, q, steps, name)
    assert target * (1 - 5e-4) <= epsilon(Event("gaussian", z, Poisson(q), steps), 1e-5, name) <= target


def test_reference_calibrations_and_their_time():
    assert noise_multiplier(8, 1e-5, 0.01, 10_000) == pytest.approx(0.916882, rel=1e-4)
    start = time.process_time()
    assert noise_multiplier(8, 1e-5, 0.01, 10_000, "pld") == pytest.approx(0.882531, rel=2e-4)
    assert time.process_time() - start < 15


@pytest.mark.parametrize("name", list(ACCOUNTANTS))
def test_steps_are_exact(name: str):
    steps = max_steps(3.0, 1e-5, 0.05, 1.5, name)
    assert steps > 0
    assert epsilon(Event("gaussian", 1.5, Poisson(0.05), steps), 1e-5, name) <= 3.0
    assert epsilon(Event("gaussian", 1.5, Poisson(0.05), steps + 1), 1e-5, name) > 3.0


def test_rounds_left_count_what_was_spent():
    spent = [Event("gaussian", 1.0, Poisson(0.1), 20), Event("laplace", 20.0, count=3)]
    step = [Event("gaussian", 2.0, Poisson(0.1), 2), Event("laplace", 50.0)]
    left = rounds_left(spent, step, 8.0, 1e-5)

    def cost(k: int) -> float:
        return epsilon([*spent, Event("gaussian", 2.0, Poisson(0.1), 2 * k), Event("laplace", 50.0, count=k)], 1e-5)

    assert left > 10
    assert cost(left) <= 8.0 < cost(left + 1)
    assert rounds_left(spent, step, 0.1, 1e-5) == 0


def test_other_mechanisms_and_samplers_calibrate():
    drawn = WithoutReplacement(100, 10_000)
    z = noise_multiplier(4.0, 1e-5, drawn, 100)
    assert epsilon(Event("gaussian", z, drawn, 100), 1e-5) == pytest.approx(4.0, rel=1e-3)
    b = noise_multiplier(4.0, 1e-5, 1.0, 100, "pld", mechanism="laplace")
    assert epsilon(Event("laplace", b, count=100), 1e-5, "pld") == pytest.approx(4.0, rel=1e-3)
    s = noise_multiplier(4.0, 1e-5, 0.1, 100, mechanism="skellam", grid_std=2000.0)
    assert epsilon(Event("skellam", s, Poisson(0.1), 100, grid_std=2000.0), 1e-5) == pytest.approx(4.0, rel=1e-3)


def test_most_finds_the_last_fit_from_any_guess():
    for limit in (0, 1, 2, 7, 1000, 123_456):
        for guess in (1, 5, 1000, 10**6):
            assert most(lambda k, limit=limit: float(k > limit), 0.5, guess) == limit


def test_bad_targets_are_refused():
    for bad, word in (
        (lambda: noise_multiplier(0, 1e-5, 0.1, 10), "epsilon"),
        (lambda: noise_multiplier(1, 1.0, 0.1, 10), "delta"),
        (lambda: noise_multiplier(1, 1e-5, 0.0, 10), "sampling"),
        (lambda: noise_multiplier(1, 1e-5, 0.1, 0), "steps"),
        (lambda: noise_multiplier(1, 1e-5, 0.1, 2.5), "steps"),
        (lambda: noise_multiplier(1, 1e-5, 0.1, 10, "gdp"), "accountant"),
        (lambda: max_steps(1, 1e-5, 0.1, 0.0), "noise multiplier"),
        (lambda: rounds_left((), (), 1, 1e-5), "rounds left"),
        (lambda: noise_multiplier(1e-9, 1e-15, 1.0, 10), "cannot show"),
    ):
        with pytest.raises(Refused, match=word):
            bad()


def test_tiny_and_huge_targets_calibrate_too():
    for target, q, steps in ((0.002, 1e-3, 10), (300.0, 0.1, 5)):
        z = noise_multiplier(target, 1e-5, q, steps, "pld")
        assert 0.99 * target <= epsilon(Event("gaussian", z, Poisson(q), steps), 1e-5, "pld") <= target


def test_pld_stops_at_a_million_releases():
    assert max_steps(8.0, 1e-5, 1e-6, 1.0, "pld") == 10**6
    with pytest.raises(Refused, match="use the rdp accountant"):
        epsilon(Event("gaussian", 1.0, Poisson(1e-6), 10**6 + 1), 1e-5, "pld")
