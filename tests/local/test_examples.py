"""Gradients of single examples: the same by every way, clipped as they should be, for modules of every kind."""

import math

import pytest
import torch
from tests.support import blobs
from torch import nn

import fedveil
from fedveil.core.errors import Refused
from fedveil.local.examples import ExampleGradients
from fedveil.local.models import cnn
from fedveil.local.objective import LOSSES, Objective
from fedveil.privacy.clip import clip_each
from fedveil.runtime.model import without_batch_norm


class Deciding(nn.Module):
    """Looks at a value to choose its way, which vmap cannot follow."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 3), nn.Linear(6, 3)

    def forward(self, x):
        return self.a(x) if float(x.sum()) > 0 else self.b(x)


class Twice(nn.Module):
    """One layer called twice, and a bare parameter."""

    def __init__(self):
        super().__init__()
        self.inner, self.head = nn.Linear(6, 6), nn.Linear(6, 3)
        self.shift = nn.Parameter(torch.full((6,), 0.1))

    def forward(self, x):
        return self.head(torch.tanh(self.inner(torch.relu(self.inner(x)) + self.shift)))


MODULES = {
    "linear": lambda: nn.Linear(6, 3),
    "mlp": lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(inplace=True), nn.Linear(8, 3)),
    "norms": lambda: nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3)),
    "image": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 2, 3)), nn.Conv2d(1, 4, 2, padding=1), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(48, 3)
    ),
    "deciding": Deciding,
    "twice": Twice,
}


def objective(name):
    torch.manual_seed(0)
    return Objective.of(MODULES[name]().double(), LOSSES["cross_entropy"])


def batch(n=7):
    g = torch.Generator().manual_seed(1)
    return torch.randn(n, 6, generator=g, dtype=torch.float64), torch.randint(0, 3, (n,), generator=g)


@pytest.mark.parametrize("name", MODULES)
def test_the_clipped_sum_is_that_of_single_backward_passes(name):
    made = objective(name)
    x, y = batch()
    examples = ExampleGradients(made)
    total, loss = examples.clipped_sum(made.initial(), x, y, clip_each(0.3))
    expected, losses = torch.zeros_like(total), 0.0
    for i in range(len(x)):
        made.module.zero_grad(set_to_none=True)
        one = made.loss(made.module(x[i : i + 1]), y[i : i + 1])
        one.backward()
        grads = [p.grad if p.grad is not None else torch.zeros_like(p) for p in made.module.parameters()]
        g = torch.cat([g.reshape(-1) for g in grads])
        expected += g * min(1.0, 0.3 / float(g.norm()))
        losses += float(one.detach())
    assert torch.allclose(total, expected, atol=1e-12)
    assert float(loss) == pytest.approx(losses)
    assert examples.name == ("one by one" if name == "deciding" else "vmap")


def test_a_chunk_at_a_time_gives_the_same_sum(monkeypatch):
    made = objective("mlp")
    x, y = batch(11)
    whole, _ = ExampleGradients(made).clipped_sum(made.initial(), x, y, clip_each(0.3))
    monkeypatch.setattr("fedveil.local.examples.CHUNK", made.layout.dim * 8 * 2)
    parts, _ = ExampleGradients(made).clipped_sum(made.initial(), x, y, clip_each(0.3))
    assert torch.allclose(whole, parts, atol=1e-14)


def test_an_empty_batch_sums_to_zero_and_an_infinite_gradient_counts_as_zero():
    made = objective("mlp")
    x, y = batch()
    total, loss = ExampleGradients(made).clipped_sum(made.initial(), x[:0], y[:0], clip_each(1.0))
    assert not total.any()
    assert float(loss) == 0
    clean, _ = ExampleGradients(made).clipped_sum(made.initial(), x[1:], y[1:], clip_each(1.0))
    x[0] = math.inf
    dirty, _ = ExampleGradients(made).clipped_sum(made.initial(), x, y, clip_each(1.0))
    assert torch.allclose(clean, dirty)


@pytest.mark.filterwarnings("ignore:Full backward hook is firing:UserWarning")
def test_a_step_agrees_with_opacus():
    """The clipped sum of one batch of a CNN against another library's hooks."""
    from tests.support import require

    require("opacus")
    from opacus.grad_sample import GradSampleModule

    torch.manual_seed(0)
    net = cnn((1, 8, 8), 10).double()
    made = Objective.of(net, LOSSES["cross_entropy"])
    x, y = torch.randn(9, 1, 8, 8, dtype=torch.float64), torch.randint(0, 10, (9,))
    ours, _ = ExampleGradients(made).clipped_sum(made.initial(), x, y, clip_each(0.5))
    wrapped = GradSampleModule(net, loss_reduction="sum")
    torch.nn.functional.cross_entropy(wrapped(x), y, reduction="sum").backward()
    rows = torch.cat([p.grad_sample.flatten(1) for p in wrapped.parameters()], dim=1)
    factors = (0.5 / rows.norm(dim=1)).clamp(max=1.0)
    assert torch.allclose(ours, factors @ rows, atol=1e-10)


def with_batch_norm():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))


def test_batch_norm_is_refused_with_the_way_out_and_replaced_when_asked(tmp_path):
    settings = {"method": "dp_fedavg_local", "sigma": 0.5, "data": blobs(), "rounds": 2, "steps": 2}
    with pytest.raises(Refused, match="set batch_norm=group_norm"):
        fedveil.run(model=with_batch_norm(), out=tmp_path / "a", **settings)
    frozen = nn.Sequential(nn.Linear(5, 16), nn.BatchNorm1d(16, track_running_stats=False), nn.Linear(16, 3))
    with pytest.raises(Refused, match="mixes the examples of a batch"):
        fedveil.run(model=frozen, out=tmp_path / "b", **settings)
    result = fedveil.run(model=with_batch_norm(), batch_norm="group_norm", out=tmp_path / "c", **settings)
    assert any(isinstance(m, nn.GroupNorm) for m in result.model.modules())
    again = fedveil.load(tmp_path / "c", model=with_batch_norm())
    assert torch.equal(again.outputs(blobs().test.x), result.outputs(blobs().test.x))


def test_group_norm_keeps_what_batch_norm_had_learned():
    norm = nn.BatchNorm2d(12)
    nn.init.constant_(norm.weight, 3.0)
    replaced = without_batch_norm(nn.Sequential(nn.Conv2d(1, 12, 1), norm))[1]
    assert isinstance(replaced, nn.GroupNorm)
    assert replaced.num_groups == 3
    assert torch.equal(replaced.weight, norm.weight)


@pytest.mark.parametrize("model", ["logistic", "mlp", "cnn"])
def test_secure_batches_and_noise_differ_from_run_to_run(tmp_path, model):
    def run(name, rng):
        settings = {"rounds": 1, "steps": 1, "cohort": 2, "sigma": 1.0, "privacy": {"rng": rng}}
        return fedveil.run(
            method="dp_fedavg_local", data="digits", model=model, out=tmp_path / name, **settings
        ).summary["model_hash"]

    assert run("a", "seeded") == run("b", "seeded")
    assert run("c", "secure") != run("d", "secure")
