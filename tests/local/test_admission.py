"""Which engine trains what, and why; whatever it is, it equals the sequential one."""

import re

import numpy as np
import pytest
import torch
from tests.local.engines import Reader, assert_alike, images, sentences, train
from tests.support import Quadratic, blobs
from torch import nn
from torch.nn import functional as F

import fedveil
from fedveil.core.errors import Refused
from fedveil.core.stage import chain
from fedveil.local.examples import ExampleGradients
from fedveil.local.objective import Objective
from fedveil.methods.fedavg import fedavg
from fedveil.privacy.clip import ClipEach

STEP = ["method=dp_fedavg_local", "sigma=0.3", "method.algorithm_variant=step_noise"]


class Net(nn.Module):
    """A small model to go wrong in different ways."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.c = nn.Linear(5, 6), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x):
        return self.c(torch.relu(self.b(self.first(x))))

    def first(self, x):
        return torch.relu(self.a(x))


class Tied(Net):
    def __init__(self):
        super().__init__()
        self.d = nn.Linear(6, 6)
        self.d.weight = self.b.weight

    def first(self, x):
        return self.d(super().first(x))


class Twice(Net):
    def first(self, x):
        return self.b(super().first(x))


class Idle(Net):
    def __init__(self):
        super().__init__()
        self.d = nn.Linear(6, 6)


class Normed(Net):
    def __init__(self):
        super().__init__()
        self.d = nn.BatchNorm1d(6)

    def first(self, x):
        return self.d(super().first(x))


class Centred(Net):
    def first(self, x):
        return super().first(x - x.mean(0))


class Reading(Net):
    def first(self, x):
        return super().first(x) * (1 + abs(x.mean().item()))


class Listing(Net):
    def first(self, x):
        return super().first(x) * (1 + abs(sum(x.mean(0).tolist())))


class Numbing(Net):
    def first(self, x):
        return super().first(x) * float(1 + abs(x.detach().numpy().mean()))


class Peaked(Net):
    """Mixes examples only where one of them is large, which a trial on ordinary ones does not show."""

    def first(self, x):
        peak = x.abs().max()
        return super().first(torch.where(peak > 1e3, x / peak, x))


class Branching(Net):
    def first(self, x):
        return super().first(x if x.sum() > 0 else -x)


class Dropping(Net):
    def __init__(self):
        super().__init__()
        self.d = nn.Dropout(0.3)

    def first(self, x):
        return self.d(super().first(x))


class Random(Net):
    def first(self, x):
        return F.dropout(super().first(x), 0.3, self.training)


class Bare(Net):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(6))

    def first(self, x):
        return super().first(x) * self.scale


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.cells, self.head = nn.GRU(1, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.cells(x[..., None])[0][:, -1])


class Hooked(Net):
    def __init__(self):
        super().__init__()
        self.a.register_forward_hook(double)


def double(module, args, out):
    return 2 * out


class Frozen(Net):
    def __init__(self):
        super().__init__()
        self.b.weight.requires_grad_(False)


class Still(Net):
    """A whole layer that is not trained is no layer of anybody's."""

    def __init__(self):
        super().__init__()
        self.b.requires_grad_(False)


class Quiet(Net):
    def __init__(self):
        super().__init__()
        self.d = nn.Dropout(0.0)

    def first(self, x):
        return self.d(super().first(x))


CASES = [
    (Net, "fold", "a trial step equals the sequential engine's"),
    (Still, "fold", "a trial step equals"),
    (Quiet, "fold", "a trial step equals"),
    (Tied, "vmap", "no fold: d.weight and b.weight are the same weights"),
    (Twice, "vmap", "no fold: .*layer 'b' was called 2 times"),
    (Idle, "vmap", "no fold: .*layer 'd' was called 0 times"),
    (Bare, "vmap", "no fold: parameter scale belongs to Bare, which has no folded layer"),
    (Hooked, "vmap", "no fold: a has hooks"),
    (Frozen, "vmap", "no fold: b is frozen in part"),
    (Normed, "sequential", "the model keeps a buffer"),
    (Centred, "sequential", "no fold: the answer for an example depends on the others .*; no vmap: the answer"),
    (Peaked, "sequential", "no fold: the answer for an example depends on the others .*; no vmap: the answer"),
    (Listing, "sequential", "forward looks at values of tensors"),
    (Numbing, "sequential", "forward looks at values of tensors"),
    (Reading, "sequential", "forward looks at values of tensors"),
    (Branching, "sequential", "forward looks at values of tensors"),
    (Dropping, "sequential", r"d draws numbers \(Dropout\)"),
    (Random, "sequential", "forward draws numbers"),
]


PRIVATE = [
    (Centred, "vmap", "no fold: the answer for an example depends on"),  # every example is a batch by itself
    (Peaked, "vmap", "no fold: the answer for an example depends on"),
    *(case for case in CASES if case[0] not in (Centred, Peaked, Normed)),  # running statistics are refused anyway
]


@pytest.mark.parametrize(
    ("make", "tier", "reason", "texts"),
    [(*case, ["method=scaffold"]) for case in CASES] + [(*case, STEP) for case in PRIVATE],
    ids=[f"{case[0].__name__}-plain" for case in CASES] + [f"{case[0].__name__}-private" for case in PRIVATE],
)
def test_the_best_tier_that_fits(make, tier, reason, texts):
    found = train(blobs(), *texts, "batch=6", model=make(), rounds=2)
    assert found.training.engine.name == tier
    assert re.search(reason, found.training.engine_reason), found.training.engine_reason
    assert_alike(found, train(blobs(), *texts, "batch=6", model=make(), rounds=2, engine="sequential"))


def test_a_model_that_is_one_layer():
    found = train(blobs(), "batch=6", model=nn.Linear(5, 3))
    assert found.training.engine.name == "fold"


def test_bare_parameters_of_the_model_itself():
    rng = np.random.default_rng(0)
    parts = [(rng.normal(size=(n, 4)), rng.normal(size=n)) for n in (5, 9)]
    data = fedveil.data.from_clients(parts, test=parts[0], classes=0, holdout=0.0)
    found = train(data, "batch=4", model=Quadratic(4))
    assert found.training.engine.name == "vmap"
    assert "no fold: parameter w belongs to Quadratic" in found.training.engine_reason
    assert_alike(found, train(data, "batch=4", model=Quadratic(4), engine="sequential"))


@pytest.mark.parametrize(
    ("engine", "make", "why"),
    [
        ("fold", Tied, "are the same weights"),
        ("vmap", Branching, "forward looks at values of tensors"),
        ("vmap", Dropping, "draws numbers"),
        ("fold", Normed, "keeps a buffer"),
    ],
)
def test_a_tier_that_cannot_be_had_is_refused(engine, make, why):
    with pytest.raises(Refused, match=rf"^engine: {engine} cannot train this: .*{why}.*; set engine=auto$"):
        train(blobs(), model=make(), engine=engine, rounds=1)


def test_convolutions_are_folded_on_a_cpu_only_where_examples_are_clipped():
    plain, clipped = (train(images(), "model=cnn", *texts, rounds=1) for texts in ([], STEP))
    assert plain.training.engine.name == "sequential"
    assert "on a CPU, convolutions" in plain.training.engine_reason
    assert clipped.training.engine.name == "fold"


def test_other_modules():
    found = train(sentences(), model=Reader(), rounds=1)
    assert found.training.engine.name == "fold"
    found = train(blobs(), "batch=6", model=Recurrent(), rounds=1)
    assert_alike(found, train(blobs(), "batch=6", model=Recurrent(), rounds=1, engine="sequential"))


class Learning:
    """A stage that remembers."""

    def __call__(self, signal, ctx):
        return signal

    def init(self):
        return torch.zeros(1)

    def apply(self, memory, signal, ctx):
        return memory + 1, signal


def test_a_stage_that_learns_from_one_client_for_the_next_goes_one_by_one():
    plain = fedavg()
    method = type(plain)(
        name="learning", local=plain.local, transport=plain.transport, aggregate=plain.aggregate,
        on_step=chain(Learning()),
    )  # fmt: skip
    found = train(blobs(), method=method, rounds=1)
    assert found.training.engine.name == "sequential"
    assert "learns from one client for the next" in found.training.engine_reason


class Worded(nn.Module):
    def __init__(self, max_norm=None):
        super().__init__()
        self.words = nn.Embedding(20, 4, max_norm=max_norm)
        self.out = nn.Linear(4, 3)

    def forward(self, x):
        return self.out(self.words(x).mean(1))


def test_a_model_that_writes_to_its_weights_is_refused_where_examples_are_protected():
    """What a forward pass writes goes by clip and noise: norms of a word's row would tell who used the word."""
    with pytest.raises(Refused, match=r"forward pass writes to words.weight .*max_norm"):
        train(sentences(), *STEP, "batch=6", model=Worded(max_norm=1.0))
    train(sentences(), *STEP, "batch=6", model=Worded(), rounds=1)
    train(sentences(), "method=fedavg", "batch=6", model=Worded(max_norm=1.0), rounds=1)


def test_single_gradients_are_taken_on_a_copy_of_the_weights():
    objective = Objective.of(Worded(max_norm=1.0), nn.functional.cross_entropy)
    here = 10 * torch.ones(objective.layout.dim)
    x, y = torch.tensor([[1, 2], [3, 4]]), torch.tensor([0, 1])
    ExampleGradients(objective).clipped_sum(here, x, y, ClipEach(1.0))
    assert torch.equal(here, 10 * torch.ones_like(here))


def test_hooks_on_parameters_are_refused():
    model = nn.Linear(5, 3)
    model.weight.register_hook(lambda g: g * 0)
    with pytest.raises(Refused, match="parameter weight has a hook"):
        train(blobs(), "batch=6", model=model)


def test_a_model_that_cannot_be_copied_is_refused_in_words():
    with pytest.warns(FutureWarning, match="weight_norm"):
        model = nn.utils.weight_norm(nn.Linear(5, 3))
    with pytest.raises(Refused, match="parametrizations.weight_norm"):
        train(blobs(), "batch=6", model=model)
