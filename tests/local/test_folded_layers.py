"""Folded layers against autograd, one client and one example at a time."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.local.engines import Reader
from torch import nn
from torch.nn import functional as F

from fedveil.core.signal import Signal
from fedveil.local.conv import Conv2d
from fedveil.local.fold import Folded
from fedveil.local.objective import Objective
from fedveil.local.schedule import Step
from fedveil.local.steps import Into

COUNTS, WIDTH = (3, 0, 2), 3


class Recorder:
    """Keeps the norms it is asked about; any factors will do, as long as they differ."""

    def factors(self, norms):
        self.norms = norms
        return 1 / (1 + norms)

    def summed(self, total):
        return Signal(total)


def truth(objective, here, x, y):
    """Gradients of single examples, client by client, ``(clients, width, dim)``."""
    rows = torch.zeros(len(here), WIDTH, here.shape[1], dtype=here.dtype)
    for i, w in enumerate(here):
        for j in range(COUNTS[i]):
            weights = {n: v.detach().requires_grad_() for n, v in objective.layout.named(w).items()}
            at = slice(i * WIDTH + j, i * WIDTH + j + 1)
            loss = objective.loss(torch.func.functional_call(objective.module, weights, (x[at],)), y[at])
            found = torch.autograd.grad(loss, list(weights.values()))
            rows[i, j] = torch.cat([g.reshape(-1) for g in found])
    return rows


def check(module, x, in_turn=True):
    objective = Objective.of(module.double(), F.cross_entropy)
    x = x.double() if x.is_floating_point() else x
    generator = torch.Generator().manual_seed(1)
    noise = torch.randn(len(COUNTS), objective.layout.dim, generator=generator, dtype=torch.float64)
    here = objective.initial() + 0.1 * noise
    y = torch.randint(0, 3, (len(x),), generator=generator)
    right = truth(objective, here, x, y)
    norms = right.norm(dim=2)
    marks = Step(np.arange(len(x)), np.array(COUNTS), WIDTH).marks(x.device)
    folded = Folded(objective)
    folded.frame.in_turn = in_turn

    plain = torch.full_like(here, torch.nan)
    folded(here, x, y, marks, None, Into(plain))
    divisor = torch.tensor(COUNTS).clamp_min(1)[:, None]
    assert torch.allclose(plain, right.sum(1) / divisor, rtol=0, atol=1e-12)

    each, scaled = Recorder(), torch.full_like(here, torch.nan)
    folded(here, x, y, marks, each, Into(scaled))
    real = torch.arange(WIDTH) < torch.tensor(COUNTS)[:, None]
    assert torch.allclose(each.norms.view(real.shape)[real], norms[real], rtol=1e-12, atol=1e-12)
    assert torch.allclose(scaled, (right / (1 + norms[..., None])).sum(1), rtol=0, atol=1e-12)

    onto = torch.ones_like(here)
    folded(here, x, y, marks, None, Into(onto, 0.5, -2.0))
    assert torch.allclose(onto, 0.5 - 2 * plain, rtol=0, atol=1e-12)


def inputs(*shape):
    return torch.randn(len(COUNTS) * WIDTH, *shape, generator=torch.Generator().manual_seed(0))


class Sequence(nn.Module):
    """A linear layer over several places, of which a mean is taken."""

    def __init__(self, features, width, bias):
        super().__init__()
        self.inner, self.head = nn.Linear(features, width, bias=bias), nn.Linear(width, 3)

    def forward(self, x):
        return self.head(torch.tanh(self.inner(x)).flatten(1, -2).mean(1))


@settings(max_examples=25)
@given(
    places=st.sampled_from([(1,), (2,), (5,), (2, 3)]),
    features=st.integers(1, 9),
    width=st.integers(1, 9),
    bias=st.booleans(),
)
def test_linear(places, features, width, bias):
    check(Sequence(features, width, bias), inputs(*places, features))


@settings(max_examples=40)
@given(
    groups=st.sampled_from([1, 2, 4]),
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    stride=st.integers(1, 3),
    padding=st.integers(0, 2),
    dilation=st.integers(1, 2),
    bias=st.booleans(),
    in_turn=st.booleans(),
    wide=st.booleans(),
)
def test_conv2d(groups, kernel, stride, padding, dilation, bias, in_turn, wide):
    channels = 32 if wide else 8  # wide ones go through Gram matrices
    conv = nn.Conv2d(4, channels, kernel, stride, padding, dilation, groups, bias)
    net = nn.Sequential(conv, nn.Tanh(), nn.AdaptiveAvgPool2d((2, 1)), nn.Flatten(), nn.Linear(2 * channels, 3))
    check(net, inputs(4, 6, 5), in_turn)


@pytest.mark.parametrize("in_turn", [True, False])
def test_padding_by_name(in_turn):
    for padding, kernel in (("same", 3), ("valid", 2)):
        conv = nn.Conv2d(2, 3, kernel, padding=padding)
        net = nn.Sequential(conv, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 3))
        check(net, inputs(2, 5, 5), in_turn)


def test_uneven_padding_is_not_folded():
    assert "pads one side" in Conv2d.problem(nn.Conv2d(2, 3, 2, padding="same"))
    assert "padding_mode" in Conv2d.problem(nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular"))


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_group_norm(groups):
    for shape in ((3, 4), (5,)):
        net = nn.Sequential(nn.GroupNorm(groups, 4), nn.Tanh(), nn.Flatten(), nn.Linear(4 * int(np.prod(shape)), 3))
        check(net, inputs(4, *shape))


@pytest.mark.parametrize("shape", [(6,), (2, 6)])
@pytest.mark.parametrize("bias", [True, False])
def test_layer_norm(shape, bias):
    norm = nn.LayerNorm(shape, bias=bias)
    check(nn.Sequential(nn.Unflatten(1, (3, 2, 6)), norm, nn.Tanh(), nn.Flatten(), nn.Linear(36, 3)), inputs(36))


def test_embedding():
    words = torch.randint(0, 11, (len(COUNTS) * WIDTH, 5), generator=torch.Generator().manual_seed(0))
    check(Reader(), words)
