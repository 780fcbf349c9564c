"""Acceptance 5: the adaptive norm finds its quantile from far below and far above."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from fedveil.core.errors import Refused
from fedveil.core.flat import Layout
from fedveil.core.signal import Signal
from fedveil.core.stage import Context
from fedveil.core.streams import stream
from fedveil.privacy.accountants import epsilon
from fedveil.privacy.adaptive import CHANNEL, adaptive_clip
from fedveil.privacy.events import event_of, joint

COHORT = 200


def moves(rng: np.random.Generator, median: float) -> torch.Tensor:
    direction = rng.normal(size=(COHORT, 20))
    direction /= np.linalg.norm(direction, axis=1, keepdims=True)
    lengths = median * np.exp(0.4 * rng.normal(size=(COHORT, 1)))
    return torch.from_numpy((direction * lengths).astype(np.float32))


@pytest.mark.parametrize("start", [0.1, 10.0])
@pytest.mark.parametrize("target", [0.5, 0.8])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_it_converges_to_the_quantile(start: float, target: float, seed: int):
    stage = adaptive_clip(cohort=COHORT, count_std=COHORT / 20, target=target, start=start, lr=0.2)
    state, rng = stage.init(), np.random.default_rng(seed)
    for t in range(60):
        ctx = Context(t, Layout((), ()), range(COHORT), [stream(0, i) for i in range(COHORT)], slot="on_delta")
        ctx.server = stream(seed, "server", t)
        used = float(state)
        state, out = stage.apply(state, Signal(moves(rng, 1.0)), ctx)
        assert out.bound == used
    assert float(state) == pytest.approx(math.exp(0.4 * {0.5: 0.0, 0.8: 0.8416}[target]), rel=0.1)


def test_its_sign_is_the_papers():
    stage = adaptive_clip(cohort=10, start=1.0)
    assert stage.after(1.0, count=5.0) < 1.0  # nobody was clipped: the norm shrinks
    assert stage.after(1.0, count=-5.0) > 1.0


def test_the_count_is_charged_and_the_parts_make_the_whole():
    stage = adaptive_clip(cohort=100, count_std=2.0)
    ctx = Context(7, Layout((), ()), [0, 1], [stream(0, 0), stream(0, 1)], slot="on_delta")
    ctx.server = stream(0, "server")
    stage.apply(stage.init(), Signal(torch.ones(2, 3)), ctx)
    (line,) = ctx.releases
    assert (line.channel, line.bound, line.noise_std, line.unit, line.clients) == (CHANNEL, 0.5, 2.0, "client", None)
    count = event_of(line)
    assert count.multiplier == 4.0
    rest = stage.remaining(1.2)
    assert rest > 1.2
    together = joint([count, count.__class__("gaussian", rest)])
    assert together.multiplier == pytest.approx(1.2)
    assert epsilon(together, 1e-5) == pytest.approx(epsilon([count, count.__class__("gaussian", rest)], 1e-5))


def test_the_divisor_is_constant_and_an_empty_round_is_noised():
    stage = adaptive_clip(cohort=100, start=1.0)
    none = Signal(torch.ones(0, 3))
    contexts = [Context(0, Layout((), ()), [], [], slot="on_delta", server=stream(s, "x")) for s in range(5)]
    states = {float(stage.apply(stage.init(), none, ctx)[0]) for ctx in contexts}
    assert len(states) == 5


def test_bad_settings_are_refused():
    for bad, word in (
        ({"cohort": 0}, "cohort"),
        ({"cohort": 10, "count_std": 0}, "count_std"),
        ({"cohort": 10, "target": 1.0}, "target"),
        ({"cohort": 10, "start": -1}, "start"),
        ({"cohort": 10, "lr": 0}, "lr"),
    ):
        with pytest.raises(Refused, match=word):
            adaptive_clip(**bad)
    with pytest.raises(Refused, match="count_std"):
        adaptive_clip(cohort=10, count_std=0.4).remaining(1.0)
