"""Acceptance 3: hypothesis tests on samples. Claims hold, and 0.8 of the noise is caught, for every mechanism."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from tests.privacy.evidence import delta_shown, epsilon_shown

from fedveil.core.flat import Layout
from fedveil.core.signal import Signal
from fedveil.core.stage import Context
from fedveil.core.streams import stream
from fedveil.privacy.adaptive import adaptive_clip
from fedveil.privacy.analytic import gaussian_delta
from fedveil.privacy.noise import discrete_gaussian, gaussian, laplace, skellam

SAMPLES = 200_000
PROFILE = (0.0, 0.1, 0.25)


def sampled(make, multiplier: float, label: str) -> tuple[np.ndarray, np.ndarray]:
    """Independent draws of the one-dimensional mechanism, full sensitivity apart.

    A vector whose coordinates all move by the sensitivity stands for as many one-dimensional releases.
    """
    draws = []
    for moved in (1.0, 0.0):
        ctx = Context(0, Layout((), ()), [0], [stream(11, label, int(moved))])
        signal = Signal(torch.zeros(1, SAMPLES, dtype=torch.float64), bound=1.0, unit="client")
        noise = make(multiplier)(signal, ctx).value[0].numpy()
        draws.append(noise + moved * ctx.releases[0].bound)
    return draws[0], draws[1]


@pytest.mark.parametrize("make", [gaussian, discrete_gaussian, skellam], ids=lambda m: m.__name__)
@pytest.mark.parametrize("multiplier", [1.0, 3.7306])
def test_gaussian_like_mechanisms_keep_their_profile(make, multiplier: float):
    with_it, without = sampled(make, multiplier, "true")
    shown = {e: delta_shown(with_it, without, e) for e in PROFILE}
    claims = {e: gaussian_delta(e, multiplier) for e in PROFILE}
    assert all(shown[e] <= claims[e] for e in PROFILE)
    mutant = sampled(make, 0.8 * multiplier, "mutant")
    assert max(delta_shown(*mutant, e) - claims[e] for e in PROFILE) > 0


@pytest.mark.parametrize("claim", [0.5, 1.0, 2.0])
def test_laplace_keeps_its_epsilon(claim: float):
    shown = epsilon_shown(*sampled(laplace, 1 / claim, "true"))
    assert 0.8 * claim < shown <= claim
    assert epsilon_shown(*sampled(laplace, 0.8 / claim, "mutant")) > claim


def counts(noise: float, present: bool, draws: int, label: str) -> np.ndarray:
    """The noised count of adaptive clipping, read back from the norm that it releases."""
    stage = adaptive_clip(cohort=1.0, count_std=noise, start=1.0)
    value = torch.full((int(present), 4), 0.1)
    signal, memory = Signal(value), stage.init()
    who = [0] if present else []
    ctx = Context(0, Layout((), ()), who, [stream(5, "client")] * int(present), slot="on_delta")
    ctx.server = stream(5, label, int(present))
    norms = np.array([float(stage.apply(memory, signal, ctx)[0]) for _ in range(draws)])
    return stage.target - 0.5 - np.log(norms) / stage.lr


def test_adaptive_clippings_count_keeps_its_claim():
    """The centred bit has sensitivity ½: deviation σ_b is a multiplier of 2σ_b."""
    draws, noise = 20_000, 0.5
    claims = {e: gaussian_delta(e, 2 * noise) for e in PROFILE}
    with_it, without = (counts(noise, present, draws, "true") for present in (True, False))
    assert all(delta_shown(with_it, without, e) <= claims[e] for e in PROFILE)
    mutant = [counts(0.8 * noise, present, draws, "mutant") for present in (True, False)]
    assert max(delta_shown(*mutant, e) - claims[e] for e in PROFILE) > 0


def test_the_test_itself_has_power_and_no_bias():
    rng = np.random.default_rng(3)
    same = rng.normal(size=50_000), rng.normal(size=50_000)
    assert epsilon_shown(*same) < 0.1
    assert delta_shown(*same, 0.0) < 0.01
    apart = rng.normal(size=50_000) + 1, rng.normal(size=50_000)
    assert delta_shown(*apart, 0.0) > 0.36 > 0.9 * (math.erf(1 / (2 * math.sqrt(2))))
