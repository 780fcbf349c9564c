"""Acceptance 6: replacing one unit, and drawing without replacement, are never under-counted."""

from __future__ import annotations

import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from fedveil.privacy import rdp
from fedveil.privacy.accountants import ACCOUNTANTS, epsilon
from fedveil.privacy.events import Event, Poisson, WithoutReplacement

REPLACE = dp_accounting.NeighboringRelation.REPLACE_ONE


def test_without_replacement_pays_for_twice_the_sensitivity():
    drawn = WithoutReplacement(100, 10_000)
    assert epsilon(Event("gaussian", 1.1, drawn, 1000), 1e-5) == pytest.approx(15.566, abs=0.01)
    replaced = Event("gaussian", 1.1, drawn, 10_000, adjacency="replace")
    assert epsilon(replaced, 1e-5) == pytest.approx(64.5, abs=0.1)


def test_canary_the_library_still_takes_half_of_the_sensitivity():
    """When this fails, dp-accounting has fixed #378: stop halving the multiplier in rdp.py, or it counts twice."""
    accountant = RdpAccountant(neighboring_relation=REPLACE)
    accountant.compose(dp_accounting.GaussianDpEvent(1.0))
    assert accountant.get_epsilon(1e-5) == pytest.approx(4.7285, abs=1e-3)
    drawn = RdpAccountant(neighboring_relation=REPLACE)
    event = dp_accounting.SampledWithoutReplacementDpEvent(10_000, 100, dp_accounting.GaussianDpEvent(1.1))
    drawn.compose(event, 1000)
    assert drawn.get_epsilon(1e-5) == pytest.approx(3.190, abs=1e-3)


@pytest.mark.parametrize("name", list(ACCOUNTANTS))
def test_replacing_an_unsampled_unit_halves_the_multiplier(name: str):
    replaced = epsilon(Event("gaussian", 2.0, count=7, adjacency="replace"), 1e-5, name)
    assert replaced == pytest.approx(epsilon(Event("gaussian", 1.0, count=7), 1e-5, name), rel=1e-3)


def test_drawing_everybody_is_not_sampling():
    everybody = Event("gaussian", 2.0, WithoutReplacement(10, 10), 5)
    assert epsilon(everybody, 1e-5) == pytest.approx(epsilon(Event("gaussian", 2.0, count=5), 1e-5))


@pytest.mark.parametrize(("q", "z", "steps"), [(0.01, 1.1, 1000), (0.1, 2.0, 200), (0.5, 3.0, 20)])
def test_poisson_under_replace_is_above_the_tight_value(q: float, z: float, steps: int):
    event = Event("gaussian", z, Poisson(q), steps, adjacency="replace")
    library = PLDAccountant(REPLACE)
    library.compose(dp_accounting.PoissonSampledDpEvent(q, dp_accounting.GaussianDpEvent(z)), steps)
    tight = library.get_epsilon(1e-5)
    assert epsilon(event, 1e-5, "pld") == pytest.approx(tight, rel=1e-6)
    ours = epsilon(event, 1e-5)
    assert tight < ours < 1.3 * tight
    assert ours > epsilon(Event("gaussian", z, Poisson(q), steps), 1e-5)


def test_poisson_under_replace_against_quadrature():
    from scipy.integrate import quad

    q, z, a = 0.2, 1.3, 6.0

    def log_mixed(x: float, centre: float) -> float:
        parts = math.log(1 - q) - x**2 / (2 * z * z), math.log(q) - (x - centre) ** 2 / (2 * z * z)
        return float(np.logaddexp(*parts))

    area = quad(lambda x: math.exp(a * log_mixed(x, 1) + (1 - a) * log_mixed(x, -1)), -40, 40, limit=400)[0]
    exact = math.log(area / (z * math.sqrt(2 * math.pi))) / (a - 1)
    ours = rdp.one_step(Event("gaussian", z, Poisson(q), adjacency="replace"), (a,))
    np.testing.assert_allclose(ours, [exact], rtol=1e-8)


def test_replace_costs_more_than_zero_out_for_every_sampler():
    for sampling in (None, Poisson(0.05), WithoutReplacement(5, 100)):
        for name in ("rdp", "basic", "advanced", "optimal"):
            less, more = (
                epsilon(Event("gaussian", 3.0, sampling, 20, adjacency=a), 1e-5, name) for a in ("zero_out", "replace")
            )
            assert less <= more


def test_a_pure_mechanism_is_declared_for_its_own_neighbours():
    local = Event("pure", 1.0, count=10, adjacency="replace")
    for name in ("basic", "pld", "rdp"):
        assert epsilon(local, 1e-5, name) == epsilon(Event("pure", 1.0, count=10), 1e-5, name)
