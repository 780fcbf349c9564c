"""On a CUDA device: every rule says what it says on the CPU, and controllers and shuffled reports run there."""

import numpy as np
import pytest
import torch
from tests.aggregate.test_rules import NAMES, apply
from tests.support import blobs

import fedveil
import fedveil.aggregate as rules
from fedveil.aggregate.detectors import DETECTORS

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")


def both(n=13, d=5000):
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(n, d)))
    x[:2] *= 30
    return x, x.cuda()


@pytest.mark.parametrize("name", NAMES)
def test_a_rule_says_the_same_and_stays_on_the_device(name):
    here, there = both()
    found = apply(name, there)
    assert found.is_cuda
    assert torch.allclose(found.cpu(), apply(name, here), atol=1e-8)


def test_what_comes_before_a_rule_says_the_same():
    here, there = both()
    for before in (
        lambda x: rules.nearest_neighbour_mixing(x, 2),
        lambda x: rules.bucketing(x, 3, torch.arange(13)),
        lambda x: rules.clip_norms(x, 2.0),
    ):
        assert before(there).is_cuda and torch.allclose(before(there).cpu(), before(here), atol=1e-8)


@pytest.mark.parametrize("name", DETECTORS)
def test_a_detector_sees_the_same(name):
    here, there = both()
    previous = torch.ones(5000, dtype=torch.float64)
    seen = (DETECTORS[name].measure(x, previous.to(x)) for x in (here, there))
    one, other = (s.tensor() for s in seen)
    assert torch.allclose(one, other)


@pytest.mark.parametrize("aggregate", ["adaptive", "source", "krum"])
@pytest.mark.parametrize("attack", ["alie", "min_max", "label_flip", "malformed", "gaussian"])
def test_attacked_runs_go_on(tmp_path, aggregate, attack):
    rule = {"name": aggregate, "declared_f": 1} | ({"window": 2} if aggregate == "adaptive" else {})
    told = {"name": attack, "share": 0.13, "onset": 3}
    settings = {"data": blobs(8), "model": "mlp", "rounds": 5, "cohort": 8, "device": "cuda"}
    result = fedveil.run(aggregate=rule, attack=told, out=tmp_path / "run", **settings)
    assert result.summary["rounds"] == 5 and not any("aborted" in event for event in result.history)


@pytest.mark.parametrize("transport", ["plain", "shuffle"])
@pytest.mark.parametrize("mechanism", ["two_point", "hybrid"])
@pytest.mark.parametrize("perturb", ["weights", "delta"])
def test_reports_by_weight_run(tmp_path, transport, mechanism, perturb):
    result = fedveil.run(
        f"transport={transport}",
        f"mechanism={mechanism}",
        f"perturb={perturb}",
        method="ldp_fl",
        privacy={"epsilon": 4.0},
        data=blobs(8),
        model="logistic",
        rounds=3,
        cohort=8,
        device="cuda",
        out=tmp_path / "run",
    )
    assert result.summary["rounds"] == 3 and np.isfinite(result.summary["loss"])
