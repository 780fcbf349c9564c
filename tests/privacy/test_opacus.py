"""Acceptance 1: agreement with an independent accountant on 30 random settings."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from tests.support import require

from fedveil.privacy import rdp
from fedveil.privacy.accountants import epsilon
from fedveil.privacy.events import Event, Poisson, tally

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # opacus and its imports warn about their own future
    require("opacus")
    from opacus.accountants import PRVAccountant
    from opacus.accountants.analysis import rdp as theirs

RNG = np.random.default_rng(2026)
SETTINGS = [
    (
        float(np.exp(RNG.uniform(np.log(1e-3), np.log(0.3)))),
        float(RNG.uniform(0.8, 4.0)),
        int(np.exp(RNG.uniform(np.log(10), np.log(3000)))),
    )
    for _ in range(30)
]
DELTA = 1e-5


@pytest.mark.parametrize(("q", "z", "steps"), SETTINGS)
def test_rdp_on_equal_orders(q: float, z: float, steps: int):
    orders = tuple(float(a) for a in [*range(2, 64), 96, 128, 200, 256])
    ours = rdp.to_epsilon(rdp.composed(tally(Event("gaussian", z, Poisson(q), steps)), orders), DELTA, orders)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "the optimal order is the largest alpha"
        curve = theirs.compute_rdp(q=q, noise_multiplier=z, steps=steps, orders=list(orders))
        other, _ = theirs.get_privacy_spent(orders=list(orders), rdp=curve, delta=DELTA)
    assert ours == pytest.approx(other, abs=1e-3)


@pytest.mark.parametrize(("q", "z", "steps"), SETTINGS)
def test_pld_against_prv(q: float, z: float, steps: int):
    accountant = PRVAccountant()
    accountant.history = [(z, q, steps)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        other = accountant.get_epsilon(delta=DELTA)
    # PRV reports the upper end of an interval of ±0.01
    assert abs(epsilon(Event("gaussian", z, Poisson(q), steps), DELTA, "pld") - other) <= 0.02
