"""What every part must do, whoever wrote it; new YAML files are picked up by themselves."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.support import blobs

import fedveil
from fedveil.core.flat import Layout
from fedveil.core.method import Method
from fedveil.core.parts import Controller
from fedveil.core.signal import Signal
from fedveil.core.stage import Context
from fedveil.runtime.build import build_aggregate
from fedveil.runtime.config import options, resolve
from fedveil.runtime.prepare import prepare

METHODS = [name for name in options("method") if name != "custom"]
AGGREGATORS = options("aggregate")
SHARES = ("apa_fl",)
"""Masks are secret and never repeated: results on shares agree to fixed point, not bit for bit."""


def noise(name, sigma=1.0):
    """A private method needs to be told how much noise it adds, and shared noise a transport that shows sums alone."""
    settings = resolve([f"method={name}"])["method"]
    if "split" in settings:  # private weight by weight, at an epsilon of its own
        return [f"privacy.epsilon={1 if sigma >= 1 else 8}"]
    hidden = ["transport=masks"] if name == "ddp_fedavg" else []
    return hidden + ([f"sigma={sigma}"] if "sigma" in settings else [])


def aggregator(name):
    rule = build_aggregate(resolve([f"aggregate={name}", "declared_f=1"])["aggregate"], 9)
    if not isinstance(rule, Controller):
        return rule

    def chosen(uploads, weights):
        ctx = Context(1, Layout(("w",), ((uploads.dim,),)), list(range(uploads.rows)), [])
        return rule.choose(rule.init(), uploads, ctx)[0](uploads, weights)

    return chosen


@pytest.mark.parametrize("name", METHODS)
def test_every_method_builds_and_has_its_own_name(name):
    method = prepare(resolve([f"method={name}", *noise(name)]), data=blobs()).method
    assert isinstance(method, Method)
    assert method.name.split("/")[0] == name


@pytest.mark.parametrize("name", METHODS)
def test_every_method_trains_a_toy(tmp_path, name):
    result = fedveil.run(
        *noise(name, 0.05),
        method=name,
        data=blobs(),
        model="logistic",
        rounds=20,
        cohort=4,
        lr=0.2,
        out=tmp_path / "run",
    )
    assert result.accuracy > 0.8
    assert result.history[-1]["loss"] < result.history[0]["loss"]


@pytest.mark.parametrize("name", METHODS)
def test_every_method_gives_the_same_model_for_the_same_seed(tmp_path, name):
    def train(seed, out):
        result = fedveil.run(*noise(name), method=name, data=blobs(), rounds=2, seed=seed, out=tmp_path / out)
        model = load_file(result.folder.model)
        return torch.cat([model[key].flatten() for key in sorted(model)])

    first, again, other = train(1, "a"), train(1, "b"), train(2, "c")
    if name in SHARES:
        assert torch.allclose(first, again, atol=1e-4) and not torch.allclose(first, other, atol=1e-2)
    else:
        assert torch.equal(first, again) and not torch.equal(first, other)


@pytest.mark.parametrize("name", AGGREGATORS)
def test_every_aggregator_is_permutation_invariant(name):
    rng = np.random.default_rng(0)
    rows = torch.from_numpy(rng.normal(size=(9, 6)))
    weights = torch.full((9,), 1 / 9, dtype=torch.float64)
    rule = aggregator(name)
    expected = rule(Signal(rows), weights).value
    assert expected.shape == (1, 6)
    for _ in range(5):
        order = torch.from_numpy(rng.permutation(9))
        assert torch.allclose(rule(Signal(rows[order]), weights[order]).value, expected)


@pytest.mark.parametrize("name", AGGREGATORS)
def test_every_aggregator_follows_a_shift(name):
    rows, shift = torch.randn(9, 6, generator=torch.Generator().manual_seed(0)), torch.arange(6.0)
    weights = torch.full((9,), 1 / 9, dtype=torch.float64)
    rule = aggregator(name)
    assert torch.allclose(
        rule(Signal(rows + shift), weights).value, rule(Signal(rows), weights).value + shift, atol=1e-5
    )


def test_no_part_unpickles():
    from pathlib import Path

    for path in Path(fedveil.__file__).parent.rglob("*.py"):
        text = path.read_text()
        for word in ("import pickle", "torch.load(", "allow_pickle=True", "torch.save("):
            assert word not in text, path
