"""Acceptance 1: composition theorems and single releases in closed form."""

from __future__ import annotations

import dp_accounting
import pytest

from fedveil.core.errors import Refused
from fedveil.privacy import analytic
from fedveil.privacy.accountants import epsilon, release_epsilon
from fedveil.privacy.composition import advanced, basic, drv, equal_optimal, kov_closed, optimal
from fedveil.privacy.events import Event, Poisson


def test_reference_values():
    slack = 1e-5
    assert basic([(0.1, 100)]) == pytest.approx(10)
    assert drv([(0.1, 100)], slack) == pytest.approx(5.850235, abs=1e-6)
    assert kov_closed([(0.1, 100)], slack) == pytest.approx(5.298110, abs=1e-6)
    assert equal_optimal(0.1, 100, slack) == pytest.approx(4.306791, abs=1e-6)
    left = 1 - (1 - 1e-5) / (1 - 1e-8) ** 100
    assert equal_optimal(0.1, 100, left) == pytest.approx(4.329637, abs=1e-6)
    assert drv([(0.5, 50)], slack) == pytest.approx(33.18, abs=5e-3)
    assert kov_closed([(0.5, 50)], slack) == pytest.approx(23.088318, abs=1e-6)
    assert equal_optimal(0.5, 50, slack) == pytest.approx(18.933283, abs=1e-6)
    assert equal_optimal(1, 10, slack) == pytest.approx(9.999771, abs=1e-6)
    assert drv([(0.01, 10_000)], slack) == pytest.approx(5.803543, abs=1e-6)
    assert equal_optimal(0.01, 10_000, slack) == pytest.approx(4.376385, abs=1e-6)


@pytest.mark.parametrize("parts", [[(0.5, 50)], [(0.1, 100)], [(0.3, 5), (1.0, 4), (0.01, 300)], [(400.0, 3)]])
def test_each_theorem_is_no_worse_than_the_one_before(parts):
    assert optimal(parts, 1e-5) <= advanced(parts, 1e-5) <= basic(parts)


def test_unequal_releases_agree_with_equal_ones():
    alike = optimal([(0.1, 60), (0.1 + 1e-9, 40)], 1e-5)
    assert alike == pytest.approx(equal_optimal(0.1, 100, 1e-5), rel=5e-3)
    assert alike >= equal_optimal(0.1, 100, 1e-5)


def test_pure_mechanisms_by_every_accountant():
    event = Event("pure", multiplier=1 / 0.1, count=100)
    assert epsilon(event, 1e-5, "basic") == pytest.approx(10)
    assert epsilon(event, 1e-5, "advanced") == pytest.approx(5.850235, abs=1e-6)
    assert epsilon(event, 1e-5, "optimal") == pytest.approx(4.306791, abs=1e-6)
    assert epsilon(event, 1e-5, "pld") == pytest.approx(4.306791, rel=5e-3)
    assert 4.306791 <= epsilon(event, 1e-5, "rdp") < 5.2


def test_laplace_is_charged_by_its_own_curve():
    event = Event("laplace", multiplier=2.0, count=50)
    assert epsilon(event, 1e-5, "basic") == pytest.approx(25)
    assert epsilon(event, 1e-5, "pld") < epsilon(event, 1e-5, "rdp") < epsilon(event, 1e-5, "optimal")
    sampled = Event("laplace", multiplier=2.0, sampling=Poisson(0.1), count=50)
    assert epsilon(sampled, 1e-5, "pld") < epsilon(sampled, 1e-5, "rdp") < epsilon(event, 1e-5, "rdp")
    assert epsilon(sampled, 1e-5, "basic") < 25


def test_advanced_is_never_worse_than_basic_for_real_events():
    for event in (
        Event("gaussian", 0.5, count=3),
        Event("gaussian", 20.0, count=400),
        Event("discrete_gaussian", 5.0, Poisson(0.1), 30),
        Event("skellam", 5.0, None, 30, grid_std=1000),
    ):
        by = [epsilon(event, 1e-5, name) for name in ("optimal", "advanced", "basic")]
        assert by[0] <= by[1] <= by[2]


def test_mixed_events_compose_by_theorems():
    mixed = [Event("laplace", 5.0, count=10), Event("gaussian", 8.0, Poisson(0.2), 40), Event("pure", 10.0)]
    costs = {name: epsilon(mixed, 1e-5, name) for name in ("pld", "rdp", "optimal", "advanced", "basic")}
    assert costs["pld"] < costs["rdp"] < costs["optimal"] <= costs["advanced"] <= costs["basic"]


def test_amplification_of_one_release():
    import math

    assert release_epsilon(Event("pure", 1.0, Poisson(0.1)), 1e-9) == pytest.approx(math.log1p(0.1 * math.expm1(1)))


SIGMAS = {
    1e-5: {0.1: 30.749566, 0.5: 7.031827, 1: 3.730632, 2: 1.993812, 4: 1.081162, 8: 0.600229, 10: 0.499889, 20: 0.290041},
    1e-6: {0.1: 36.304690, 0.5: 8.057618, 1: 4.224679, 2: 2.230476, 4: 1.193519, 8: 0.652935, 10: 0.541087, 20: 0.309085},
}  # fmt: skip


@pytest.mark.parametrize(("delta", "eps"), [(d, e) for d, row in SIGMAS.items() for e in row])
def test_analytic_gaussian(delta: float, eps: float):
    sigma = analytic.analytic_gaussian(epsilon=eps, delta=delta, sensitivity=1.0)
    assert sigma == pytest.approx(SIGMAS[delta][eps], abs=1e-6)
    assert sigma == pytest.approx(dp_accounting.get_sigma_gaussian(eps, delta), rel=1e-6)
    assert analytic.gaussian_epsilon(sigma, delta) == pytest.approx(eps, rel=1e-6)
    assert analytic.analytic_gaussian(epsilon=eps, delta=delta, sensitivity=3.0) == pytest.approx(3 * sigma)


def test_exact_epsilon_of_one_gaussian():
    assert analytic.gaussian_epsilon(1.0, 1e-5) == pytest.approx(4.377178095681, abs=1e-9)


def test_the_classic_rule_is_refused_where_its_proof_ends():
    assert analytic.classic_gaussian(epsilon=0.1, delta=1e-5, sensitivity=1) == pytest.approx(48.448053, abs=1e-6)
    assert analytic.classic_gaussian(epsilon=0.5, delta=1e-5, sensitivity=2) == pytest.approx(19.379221, abs=1e-5)
    with pytest.raises(Refused, match="analytic"):
        analytic.classic_gaussian(epsilon=1.01, delta=1e-5, sensitivity=1)


def test_the_classic_rule_is_violated_at_large_epsilon():
    assert analytic.gaussian_delta(10, 0.484481) == pytest.approx(2.27e-5, rel=5e-3)
    assert analytic.gaussian_delta(20, 0.242240) == pytest.approx(1.53e-3, rel=5e-3)


def test_laplace_scale():
    assert analytic.laplace_scale(epsilon=0.5, sensitivity=3.0) == 6.0


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"epsilon": 0, "delta": 1e-5, "sensitivity": 1}, "epsilon"),
        ({"epsilon": -1, "delta": 1e-5, "sensitivity": 1}, "epsilon"),
        ({"epsilon": 1, "delta": 0, "sensitivity": 1}, "delta"),
        ({"epsilon": 1, "delta": 1, "sensitivity": 1}, "delta"),
        ({"epsilon": 1, "delta": 1e-5, "sensitivity": 0}, "sensitivity"),
    ],
)
def test_bad_input(arguments, word: str):
    for rule in (analytic.analytic_gaussian, analytic.classic_gaussian):
        with pytest.raises(Refused, match=word):
            rule(**arguments)
