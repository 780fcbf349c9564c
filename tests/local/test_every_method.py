"""Every method on every tier equals the sequential engine to 1e-12 in float64, over three rounds, unequal sizes."""

from functools import cache

import numpy as np
import pytest
from tests.local.engines import assert_alike, images, train

import fedveil

STEIN = ("last_noise_server_jse", "step_noise_step_jse", "step_noise_final_jse")
VARIANTS = [("dp_fedavg_local", v) for v in ("last_noise", "step_noise")]
VARIANTS += [(m, v) for m in ("dp_fed_stein", "dp_scaffold", "dp_scaffold_stein") for v in STEIN]
METHODS = {
    "fedavg": ["method=fedavg"],
    "scaffold": ["method=scaffold"],
    "dp_fedavg_central": ["method=dp_fedavg_central", "sigma=0.3"],
    "ldp_fl": ["method=ldp_fl", "privacy.epsilon=2"],
    **{f"{m}/{v}": [f"method={m}", "sigma=0.3", f"method.algorithm_variant={v}"] for m, v in VARIANTS},
}
WALK = ["batch=4", "local_epochs=1", "momentum=0.5"]
LARGE = ("scaffold", "dp_fedavg_local/step_noise", "dp_scaffold_stein/last_noise_server_jse")
"""Methods whose 1 M-parameter model is compared in every run of the suite."""


@cache
def trained(model, method, engine):
    settings = [*METHODS[method], *WALK, f"model={model}"]
    if model == "cnn_large":
        return train(two_clients(), *settings, engine=engine)
    sizes = ["model.hidden=6"] if model == "mlp" else []
    return train(images(clients=3), *settings, *sizes, engine=engine)


def two_clients():
    """Eight and five pictures in the size of MNIST's, for a model of a million parameters."""
    rng = np.random.default_rng(0)
    parts = [(rng.normal(size=(n, 1, 28, 28)), rng.integers(0, 10, n)) for n in (8, 5)]
    return fedveil.data.from_clients(parts, test=parts[0], classes=10, holdout=0.0, name="two")


def check(model, method, tier):
    found = trained(model, method, tier)
    assert found.training.engine.name == tier
    assert_alike(found, trained(model, method, "sequential"))
    if "scaffold" in method:
        assert bool(found.server["c"].any()), "a correction of zero would show nothing"


@pytest.mark.parametrize("tier", ["fold", "vmap"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_tiers_agree(model, method, tier):
    check(model, method, tier)


@pytest.mark.parametrize("tier", ["fold", "vmap"])
@pytest.mark.parametrize("method", LARGE)
def test_tiers_agree_on_a_million_parameters(method, tier):
    check("cnn_large", method, tier)
    assert trained("cnn_large", method, tier).training.objective.layout.dim > 900_000


@pytest.mark.slow
@pytest.mark.parametrize("tier", ["fold", "vmap"])
@pytest.mark.parametrize("method", [m for m in METHODS if m not in LARGE])
def test_tiers_agree_on_a_million_parameters_whatever_the_method(method, tier):
    check("cnn_large", method, tier)
