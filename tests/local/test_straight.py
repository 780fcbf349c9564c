"""Layers in a row without autograd, against autograd."""

import numpy as np
import pytest
import torch
from tests.local.test_folded_layers import COUNTS, WIDTH, Recorder, check, inputs
from torch import nn
from torch.nn import functional as F

from fedveil.local import linear
from fedveil.local.fold import Folded
from fedveil.local.objective import Objective
from fedveil.local.schedule import Step
from fedveil.local.steps import Into


def small():
    return nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.ReLU(), nn.Sequential(nn.Linear(5, 4), nn.ReLU()))


def large(bias=True):
    return nn.Sequential(nn.Flatten(), nn.Linear(160, 128, bias=bias), nn.ReLU(), nn.Linear(128, 3, bias=bias))


def both(module, x, counts=COUNTS, each=None, dtype=torch.float64):
    """Gradients and losses without autograd, and with it."""
    objective = Objective.of(module.to(dtype), F.cross_entropy)
    generator = torch.Generator().manual_seed(1)
    noise = torch.randn(len(counts), objective.layout.dim, generator=generator, dtype=torch.float64)
    here = objective.initial() + 0.1 * noise.to(dtype)
    y = torch.randint(0, 3, (len(x),), generator=generator)
    marks = Step(np.arange(len(x)), np.array(counts), WIDTH).marks(x.device)
    found = []
    for straight in (True, False):
        folded = Folded(objective)
        assert folded.straight is not None
        folded.straight = folded.straight if straight else None
        rows = torch.ones_like(here)
        losses = folded(here, x.to(dtype), y, marks, each, Into(rows, 0.5, -2.0))
        found.append((rows, losses))
    return found


@pytest.mark.parametrize("each", [None, Recorder()])
@pytest.mark.parametrize("counts", [COUNTS, (WIDTH,) * 3])
@pytest.mark.parametrize("module", [small, large])
def test_equals_autograd(module, counts, each):
    x = inputs(2, 80) if module is large else inputs(6)
    (rows, losses), (right, right_losses) = both(module(), x, counts, each)
    assert torch.allclose(rows, right, rtol=0, atol=1e-12)
    assert torch.allclose(losses, right_losses, rtol=0, atol=1e-12)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("direct", [True, False])
def test_large_layers_leave_out_padding(bias, direct, monkeypatch):
    """In float64 against single gradients; in float32, where oneDNN multiplies, against float64."""
    if not direct:
        monkeypatch.setattr(linear, "_direct", None)
    check(large(bias), inputs(160))
    module = large(bias)
    (wide, _), _ = both(module, inputs(160))
    (narrow, _), _ = both(module, inputs(160), dtype=torch.float32)
    assert torch.allclose(narrow.double(), wide, rtol=0, atol=1e-4)


def test_only_what_is_known_goes_without_autograd():
    def made(module, loss=F.cross_entropy):
        return Folded(Objective.of(module, loss)).straight

    assert made(small()) is not None
    assert made(nn.Linear(6, 3)) is not None
    assert made(nn.Sequential(nn.Linear(6, 3), nn.Tanh())) is None
    assert made(nn.Sequential(nn.Flatten(0), nn.Linear(6, 3))) is None
    assert made(small(), lambda outputs, targets: F.cross_entropy(outputs, targets)) is None
    heard = small()
    heard[2].register_forward_hook(lambda *_: None)
    assert made(heard) is None


def test_several_places_go_through_autograd():
    """An input of another shape than the layers were made for without autograd."""
    straight = Folded(Objective.of(nn.Sequential(nn.Linear(6, 3)), F.cross_entropy)).straight
    y = torch.zeros(2, dtype=torch.int64)
    assert straight.fits(torch.zeros(2, 6), y)
    assert not straight.fits(torch.zeros(2, 4, 6), y)
    assert not straight.fits(torch.zeros(2, 6), torch.zeros(2, 3))
    assert not straight.fits(torch.zeros(2, 6), y[:, None])
