"""What one record can change in a move of several clipped steps: more than the source says, within what we prove."""

import math

import numpy as np
import pytest
import torch
from tests.support import blobs
from torch import nn

import fedveil
from fedveil.core.stage import Context
from fedveil.core.streams import stream
from fedveil.privacy.accountants import epsilon
from fedveil.privacy.events import Event
from fedveil.runtime.config import resolve
from fedveil.runtime.prepare import prepare

STEPS, BATCH, LR, CLIP = 5, 32, 0.1, 1.0


class Valley(nn.Module):
    """−|w|, smoothed: a gradient of full length away from zero, and none at zero.

    The record that decides on which side of zero the first step lands decides the direction of every later gradient
    of every other record.
    """

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        push, slope = x[:, :1], x[:, 1:2]
        return push * self.w - slope * torch.sqrt(self.w**2 + 1e-10)


def output(outputs, targets):
    return outputs.mean()


def move(last_push: float) -> torch.Tensor:
    """The move of a client whose records differ in one gradient: 31 that run away from zero, and one that decides."""
    x = np.zeros((BATCH, 2))
    x[:-1, 1] = 1.0  # gradient −w/√(w² + 1e-10): zero at w = 0, full length as soon as w has a sign
    x[-1, 0] = last_push
    data = fedveil.data.from_clients([(x, np.zeros(BATCH))], test=(x, np.zeros(BATCH)), classes=0, holdout=0.0)
    texts = [
        "method=dp_fedavg_local",
        "algorithm_variant=last_noise",
        "calibration=source",
        "sigma=1",
        f"steps={STEPS}",
    ]
    texts += [f"batch={BATCH}", f"lr={LR}", f"clip_norm={CLIP}", "dtype=float64"]
    parts = prepare(resolve(texts), data=data, model=Valley(), loss=output)
    draws = [stream(0)]
    ctx = Context(1, parts.objective.layout, [0], draws, batches=draws)
    return parts.engine.train(parts.method, parts.start(), None, ctx).delta.value[0]


def test_one_record_moves_a_client_far_beyond_the_sources_bound_and_within_ours():
    """Neighbours: the last record's gradient is +1, or −1 (replace), or zero (zero_out). K = 5, b = 32, full batches."""
    claimed = CLIP * STEPS * LR / BATCH
    bound = STEPS * LR * CLIP
    one, other, none = move(1.0), move(-1.0), move(0.0)
    replaced = float((one - other).norm())
    zeroed = float((one - none).norm())
    assert replaced > 40 * claimed, "the source's sensitivity is false"
    assert zeroed > 20 * claimed, "for zeroing as well"
    assert replaced > 1.5 * bound, "nor does the bound of a zeroed client cover a record"
    assert max(replaced, zeroed) <= 2 * bound, "twice the move's bound does: replacing the whole client"
    tight = 2 * LR * CLIP * (STEPS - 1) + 2 * LR * CLIP / BATCH
    assert replaced == pytest.approx(tight, rel=0.02), "the bound without smoothness is met"


def rows(result, status):
    return {(r.observer, r.unit): r for r in result.statement.rows if r.status == status}


def last_noise(tmp_path, *overrides):
    texts = ["method=dp_fedavg_local", "algorithm_variant=last_noise", "sigma=2", f"batch={BATCH}", f"lr={LR}"]
    return fedveil.run(
        *texts, *overrides, data=blobs(examples=40), model="logistic", rounds=3, cohort=4, out=tmp_path / "r"
    )


def test_the_statement_proves_what_holds_and_calls_the_sources_value_nominal(tmp_path):
    result = last_noise(tmp_path, "calibration=source", f"steps={STEPS}")
    proved, nominal = rows(result, "proved"), rows(result, "nominal")
    # s = C·K·η·σ/b against the move's bound K·η·C: multiplier σ/b
    held = epsilon(Event("gaussian", 2 / BATCH, count=3), 1e-5)
    assert proved["server", "client"].epsilon == pytest.approx(held, rel=1e-6)
    inside = epsilon(Event("gaussian", 1 / BATCH, count=3), 1e-5)
    assert proved["server", "record"].epsilon == pytest.approx(inside, rel=1e-6)
    paper = epsilon(Event("gaussian", 2.0, count=3), 1e-5)
    assert nominal["server", "record"].epsilon == pytest.approx(paper, rel=1e-6)
    assert "C·K·η/b" in nominal["server", "record"].note
    assert proved["server", "record"].epsilon > 100 * paper


def test_proved_calibration_protects_whole_clients(tmp_path):
    result = last_noise(tmp_path, "calibration=proved", f"steps={STEPS}")
    proved = rows(result, "proved")
    assert proved["server", "client"].epsilon == pytest.approx(epsilon(Event("gaussian", 2.0, count=3), 1e-5), rel=1e-6)
    assert not rows(result, "nominal")


def test_with_one_step_the_sources_noise_is_step_noise_and_proved_for_records(tmp_path):
    result = last_noise(tmp_path, "calibration=source", "steps=1")
    proved = rows(result, "proved")
    assert math.isfinite(proved["server", "record"].epsilon)
    assert proved["server", "record"].epsilon < epsilon(Event("gaussian", 2.0, count=3), 1e-5), "and batches amplify"
    assert rows(result, "nominal") == {}
