"""Training a cohort at once equals training one client after another (DESIGN 3)."""

from collections import Counter
from functools import cache

import numpy as np
import pytest
import torch
from tests.local.engines import Reader, assert_alike, images, sentences, train
from tests.support import ToyClip, blobs

import fedveil
from fedveil.core import team
from fedveil.core.stage import chain
from fedveil.local.engine import Diverged
from fedveil.methods.fedavg import fedavg

METHODS = {
    "fedavg": ["method=fedavg"],
    "scaffold": ["method=scaffold"],
    **{
        f"{name}-{variant}": [f"method={name}", "sigma=0.3", f"method.algorithm_variant={variant}"]
        for name, variant in [
            ("dp_fedavg_local", "step_noise"),
            ("dp_fedavg_local", "last_noise"),
            ("dp_fed_stein", "step_noise_step_jse"),
            ("dp_scaffold_stein", "last_noise_server_jse"),
            ("dp_scaffold_stein", "step_noise_final_jse"),
        ]
    },
    "dp_fedavg_central": ["method=dp_fedavg_central", "sigma=0.3"],
}
WALKS = {
    "epochs": ["batch=6", "local_epochs=2"],
    "poisson": ["batch=3", "steps=5", "sampling=poisson", "momentum=0.5", "weight_decay=0.01"],
}
MODELS = ["logistic", "mlp", "cnn", "reader"]


@cache
def trained(model, method, walk, engine, chunk=None):
    settings = [*METHODS[method], *WALKS[walk]]
    if model == "reader":
        return train(sentences(), *settings, engine=engine, chunk=chunk, model=Reader())
    data = images(clients=3) if model.startswith("cnn") else blobs()
    sizes = ["model.hidden=6"] if model == "mlp" else []
    return train(data, *settings, f"model={model}", *sizes, engine=engine, chunk=chunk)


@pytest.mark.parametrize("walk", WALKS)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("model", MODELS)
def test_folding_equals_the_sequential_engine(model, method, walk):
    folded = trained(model, method, walk, "fold")
    assert folded.training.engine.name == "fold"
    assert_alike(folded, trained(model, method, walk, "sequential"))


@pytest.mark.parametrize("engine", ["fold", "vmap", "sequential"])
@pytest.mark.parametrize("method", ["scaffold", "dp_fedavg_local-step_noise", "dp_fed_stein-step_noise_step_jse"])
@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_threads_change_no_result(model, method, engine, monkeypatch):
    """Each thread has clients of its own, and clients their own streams."""
    alone = trained(model, method, "poisson", engine)
    shared = []
    monkeypatch.setattr("fedveil.core.team._Job.take", counted(shared))
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        together = trained.__wrapped__(model, method, "poisson", engine)
    finally:
        torch.set_num_threads(before)
    assert len(shared) >= 2
    assert_alike(together, alone)
    assert charged(together.releases) == charged(alone.releases)


def charged(releases):
    """How often each client released what in which round."""
    counts = Counter()
    for r in releases:
        for client in r.clients or (None,):
            counts[r.round, client, r.slot, r.mechanism, r.bound, r.noise_std] += r.count
    return counts


def counted(calls):
    take = team._Job.take

    def counting(job, hand):
        calls.append(hand)
        take(job, hand)

    return counting


@pytest.mark.parametrize("walk", WALKS)
@pytest.mark.parametrize("method", ["scaffold", "dp_fed_stein-step_noise_step_jse", "dp_fedavg_central"])
@pytest.mark.parametrize("model", MODELS)
def test_mapping_equals_the_sequential_engine(model, method, walk):
    mapped = trained(model, method, walk, "vmap")
    assert mapped.training.engine.name == "vmap"
    assert_alike(mapped, trained(model, method, walk, "sequential"))


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["fold", "vmap"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("model", ["cnn_large"])
def test_a_large_model_as_well(model, method, engine):
    settings = [*METHODS[method], *WALKS["poisson"], f"model={model}", "model.hidden=20"]
    a, b = (train(images(side=12), *settings, engine=e) for e in (engine, "sequential"))
    assert_alike(a, b)


@pytest.mark.parametrize("engine", ["fold", "vmap"])
@pytest.mark.parametrize("method", ["scaffold", "dp_scaffold_stein-step_noise_final_jse"])
@pytest.mark.parametrize("walk", WALKS)
def test_packing_changes_nothing(method, walk, engine):
    together = trained("mlp", method, walk, engine)
    for chunk in (1, 2):
        assert_alike(trained("mlp", method, walk, engine, chunk), together)


@pytest.mark.parametrize("engine", ["fold", "vmap"])
def test_a_target_that_is_a_number(engine):
    rng = np.random.default_rng(0)
    parts = [(rng.normal(size=(n, 4)), rng.normal(size=n)) for n in (5, 9, 14)]
    data = fedveil.data.from_clients(parts, test=parts[0], classes=0, holdout=0.0)
    texts = ["model=mlp", "batch=4", "lr=0.05"]
    assert_alike(train(data, *texts, engine=engine), train(data, *texts, engine="sequential"))


def crooked(outputs, targets):
    """A loss of one's own."""
    return torch.nn.functional.cross_entropy(outputs, targets, label_smoothing=0.1) + outputs.square().mean()


@pytest.mark.parametrize("engine", ["fold", "vmap"])
@pytest.mark.parametrize("method", ["fedavg", "dp_fedavg_local-last_noise"])
def test_a_loss_of_ones_own(method, engine):
    a, b = (train(blobs(), *METHODS[method], "batch=6", loss=crooked, engine=e) for e in (engine, "sequential"))
    assert_alike(a, b)


@pytest.mark.parametrize("engine", ["fold", "vmap"])
def test_a_stage_on_plain_gradients(engine):
    method = fedavg()
    method = type(method)(
        name="clipped", local=method.local, transport=method.transport, aggregate=method.aggregate,
        on_step=chain(ToyClip(0.1)),
    )  # fmt: skip
    a, b = (train(blobs(), "batch=6", "momentum=0.5", method=method, engine=e) for e in (engine, "sequential"))
    assert_alike(a, b)


def broken(rows):
    """Three clients, the second of whom has numbers that no model survives."""
    rng = np.random.default_rng(0)
    parts = [(rng.normal(size=(n, 5)), rng.integers(0, 3, n)) for n in (6, 9, 12)]
    data = fedveil.data.from_clients(parts, test=parts[0], classes=3, holdout=0.0)
    data.train(1).x[:rows] = float("inf")
    return data


@pytest.mark.parametrize("engine", ["fold", "vmap", "sequential"])
def test_broken_examples_count_as_zero_under_a_clip(engine):
    """Gradients that are not finite must not reach anybody's model, and nobody may hear of them."""
    data = broken(4)
    texts = [*METHODS["dp_fedavg_local-last_noise"], "batch=3", "local_epochs=2", "model=mlp", "model.hidden=4"]
    found = train(data, *texts, engine=engine, rounds=1)
    assert bool(torch.isfinite(found.server["w"]).all())
    expected = train(data, *texts, engine="sequential", rounds=1)
    assert torch.allclose(found.server["w"], expected.server["w"], rtol=0, atol=1e-12)


@pytest.mark.parametrize("engine", ["fold", "vmap"])
def test_who_diverged_is_named(engine):
    data = broken(4)
    with pytest.raises(Diverged, match="round 1, client 1: the training loss"):
        train(data, "method=fedavg", "model=logistic", engine=engine)


def test_a_broken_neighbour_touches_nobody():
    """A padded or empty batch of one client never carries another client's numbers."""
    data = broken(9)
    walk = ["batch=2", "steps=6", "sampling=poisson", "model=mlp"]
    methods = ("dp_fedavg_central", "dp_fedavg_local-last_noise")
    for engine, texts in [(e, [*METHODS[m], *walk]) for e in ("fold", "vmap") for m in methods]:
        found, expected = (train(data, *texts, engine=e, rounds=1) for e in (engine, "sequential"))
        a, b = found.moves[0].delta.value, expected.moves[0].delta.value
        assert torch.equal(torch.isfinite(a), torch.isfinite(b))
        assert torch.allclose(a.nan_to_num(), b.nan_to_num(), rtol=0, atol=1e-12)
