"""Choosing by opened numbers: the same decisions, for the same rounds, as with every upload in sight."""

import math

import numpy as np
import pytest
import torch

from fedveil.aggregate.controllers import Adaptive, Published
from fedveil.aggregate.detectors import DETECTORS
from fedveil.aggregate.evidence import entropy, sums
from fedveil.core.errors import Refused
from fedveil.core.flat import Layout
from fedveil.core.signal import Signal
from fedveil.core.stage import Context
from fedveil.methods.announcing import Announcing
from fedveil.methods.announcing import entropy as announced_entropy


def rounds(count, lying=0, seed=0):
    rng = np.random.default_rng(seed)
    for i in range(count):
        rows = rng.normal(size=(10, 40)) + 1.0
        if i >= count // 2:
            rows[:lying] *= -6.0
        yield torch.from_numpy(rows)


def opened(rows, previous, reads):
    """What servers would open about these rows."""
    found, deviations = sums(rows, previous)
    every = {"E": found.energy, "M": found.common, "Q": found.quartic, "A": found.along, "R": found.reference**2}
    every |= {"S": found.spread, "H": entropy(deviations)}
    return {name: every[name] for name in reads}


@pytest.mark.parametrize(
    "rule",
    [
        Adaptive(byzantine=2, window=5, momentum=0.9),
        Adaptive(byzantine=2, window=5, detector="deficit", theta1=0.05, theta2=0.2, alarm="trimmed_mean"),
        Published(byzantine=2),
    ],
    ids=lambda r: r.name,
)
def test_a_run_by_opened_numbers_takes_the_same_decisions(rule):
    memory, other, previous = rule.init(), rule.init(), None
    kinds = set()
    for i, rows in enumerate(rounds(30, lying=2)):
        seen, blind = (Context(i, Layout(("w",), ((40,),)), [], [], previous=previous) for _ in range(2))
        chosen, memory = rule.choose(memory, Signal(rows), seen)
        r = None if previous is None else previous[0]
        again, other = rule.choose_by(other, opened(rows, r, rule.reads), 10, blind)
        assert chosen == again and seen.log["detector"]["why"] == blind.log["detector"]["why"]
        kinds.add(type(chosen))
        previous = rows.mean(0, keepdim=True)
    assert len(kinds) > 1, "the runs saw calm and alarm"


def test_the_neighbour_detector_reads_no_opened_number():
    assert not DETECTORS["neighbour"].reads
    assert not Adaptive(detector="neighbour", theta1=0.5, theta2=0.6).reads


def test_uploads_that_agree_are_calm_though_ciphertexts_round():
    e = 40.0
    numbers = {"E": e, "M": 10 * e * (1 - 1e-9), "Q": 1e-20, "A": e, "R": 1.0}
    found = DETECTORS["calibrated"].read(numbers, 10)
    assert not found.guarded and found.values["D2"] == 0.0
    numbers = {"S": 0.0, "H": 0.1}
    assert DETECTORS["source"].read(numbers, 10).values["H/ln n"] == 1.0


def test_noise_is_announced_from_what_was_opened_and_within_its_cap():
    rows = next(iter(rounds(1)))
    numbers = opened(rows, None, {"E", "M", "Q"}) | {"A": 0.0, "R": 0.0}
    _, deviations = sums(rows)
    shares = deviations / deviations.sum()
    assert announced_entropy(numbers, 10) == pytest.approx(-math.log(float(shares.square().sum())))
    ctx = Context(1, Layout(("w",), ((40,),)), [], [])
    inner = Adaptive(byzantine=2)
    for alpha, cap, expected in ((0.1, 9.0, 1 + 0.1 * announced_entropy(numbers, 10)), (5.0, 2.0, 2.0)):
        rule = Announcing(inner, alpha, cap)
        chosen, memory = rule.choose_by(rule.init(), numbers, 10, ctx)
        assert float(memory["announced.noise"]) == pytest.approx(expected)
        assert ctx.log["noise"] == {"now": 1.0, "next": pytest.approx(expected)}
        assert chosen == inner.choose_by(inner.init(), numbers, 10, ctx)[0]
    with pytest.raises(Refused, match="noise_alpha"):
        Announcing(inner, -1.0, 2.0)
