"""The stand-alone engine of the source, on numpy and torch, with acceptance 8: bad input."""

from __future__ import annotations

import warnings
from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest
import torch

from fedveil.core.errors import Refused
from fedveil.privacy.accountants import epsilon
from fedveil.privacy.engine import (
    AccountingMethod,
    DifferentialPrivacyEngine,
    DifferentialPrivacyProtocol,
    DPConfig,
    NoiseMechanism,
    PrivacyBudget,
)
from fedveil.privacy.events import Event, Poisson
from fedveil.privacy.rdp import CoarseOrders


@pytest.fixture
def engine() -> DifferentialPrivacyEngine:
    return DifferentialPrivacyEngine(rng="seeded", seed=1)


def gradients(kind: str):
    rng = np.random.default_rng(0)
    arrays = {"w": rng.normal(size=(3, 4)), "b": rng.normal(size=4).astype(np.float32)}
    return arrays if kind == "numpy" else {name: torch.from_numpy(a) for name, a in arrays.items()}


def test_it_speaks_the_sources_protocol(engine):
    assert isinstance(engine, DifferentialPrivacyProtocol)
    config = DPConfig()
    assert (config.target_epsilon, config.target_delta, config.noise_multiplier) == (8.0, 1e-5, 1.1)
    with pytest.raises(FrozenInstanceError):
        config.target_epsilon = 1.0


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("mechanism", list(NoiseMechanism))
def test_noise_keeps_kind_shape_and_dtype(engine, kind: str, mechanism: NoiseMechanism):
    given = gradients(kind)
    noisy = engine.add_noise(given, DPConfig(mechanism=mechanism))
    assert list(noisy) == list(given)
    for name, value in given.items():
        assert type(noisy[name]) is type(value)
        assert noisy[name].shape == value.shape
        assert noisy[name].dtype == value.dtype
        assert not np.array_equal(np.asarray(noisy[name]), np.asarray(value))


@pytest.mark.parametrize("mechanism", list(NoiseMechanism))
def test_noise_has_the_promised_scale(engine, mechanism: NoiseMechanism):
    config = DPConfig(mechanism=mechanism, noise_multiplier=1.5, max_grad_norm=2.0)
    noise = engine.add_noise({"w": np.zeros(100_000)}, config)["w"]
    expected = 3.0 * (np.sqrt(2 * 100_000) if mechanism is NoiseMechanism.LAPLACE else 1.0)
    assert noise.std() == pytest.approx(expected, rel=0.02)


def test_secure_noise_cannot_be_drawn_again():
    zeros, config = {"w": np.zeros(50)}, DPConfig()
    first, second = (DifferentialPrivacyEngine().add_noise(zeros, config)["w"] for _ in range(2))
    assert not np.array_equal(first, second)
    seeded = [DifferentialPrivacyEngine(rng="seeded", seed=3).add_noise(zeros, config)["w"] for _ in range(2)]
    assert np.array_equal(*seeded)


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_clipping(engine, kind: str):
    given = gradients(kind)
    clipped, norm = engine.clip_gradients(given, 0.5)
    assert norm == pytest.approx(np.sqrt(sum(float((np.asarray(v) ** 2).sum()) for v in given.values())), rel=1e-6)
    length = np.sqrt(sum(float((np.asarray(v, dtype=np.float64) ** 2).sum()) for v in clipped.values()))
    assert 0.499 < length <= 0.5
    unchanged, _ = engine.clip_gradients(given, 100.0)
    assert all(np.array_equal(np.asarray(unchanged[name]), np.asarray(value)) for name, value in given.items())


def test_clipping_per_sample(engine):
    rng = np.random.default_rng(1)
    scale = np.array([0.01, 1, 10])[:, None]
    given = {"w": rng.normal(size=(3, 5)) * scale, "b": rng.normal(size=(3, 2)) * scale}
    clipped, norms = engine.clip_per_sample(given, 1.0)
    lengths = np.sqrt(sum((v**2).sum(axis=1) for v in clipped.values()))
    assert np.all(lengths <= 1.0)
    assert np.array_equal(clipped["w"][0], given["w"][0])
    assert norms[2] > 1 > norms[0]
    with pytest.raises(Refused, match="first axis"):
        engine.clip_per_sample({"w": np.zeros((3, 2)), "b": np.zeros((4, 2))}, 1.0)


@pytest.mark.parametrize("method", list(AccountingMethod))
def test_reports(engine, method: AccountingMethod):
    config = DPConfig(accounting=method, noise_multiplier=3.0, sampling_rate=0.02)
    report = engine.compute_privacy_spent(config, 50)
    event = Event("gaussian", 3.0, Poisson(0.02), 50)
    assert report.epsilon_spent == epsilon(event, 1e-5, method.accountant)
    assert report.budget_remaining == pytest.approx(8.0 - report.epsilon_spent)
    assert report.num_compositions == 50
    assert report.accounting_method is method
    last = engine.compute_privacy_spent(config, 50 + report.estimated_rounds_left)
    assert last.epsilon_spent <= 8.0
    assert last.estimated_rounds_left == 0
    over = engine.compute_privacy_spent(config, 51 + report.estimated_rounds_left)
    assert over.epsilon_spent > 8.0
    assert (over.budget_remaining, over.estimated_rounds_left) == (0.0, 0)


@pytest.mark.parametrize("mechanism", list(NoiseMechanism))
def test_every_mechanism_is_accounted(engine, mechanism: NoiseMechanism):
    report = engine.compute_privacy_spent(DPConfig(mechanism=mechanism, noise_multiplier=2.0), 100)
    assert 0 < report.epsilon_spent < 8


def test_the_sources_orders_warn_once_with_the_loss(engine):
    config = DPConfig(renyi_orders=(2, 5, 10, 20, 50, 100), sampling_rate=0.1, noise_multiplier=1.0, target_epsilon=20)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        report = engine.compute_privacy_spent(config, 100)
    assert [w.category for w in caught] == [CoarseOrders]
    assert "50 % more" in str(caught[0].message)
    assert report.epsilon_spent == pytest.approx(11.83, abs=0.01)


def test_budget_until_it_is_spent(engine):
    config = DPConfig(noise_multiplier=2.0, sampling_rate=0.1)
    budget, rounds = PrivacyBudget(epsilon=1.5), 0
    left = engine.compute_privacy_spent(replace(config, target_epsilon=1.5), 1).estimated_rounds_left
    for _ in range(1 + left):
        assert engine.check_budget(budget)
        budget, rounds = engine.spend(budget, config), rounds + 1
    with pytest.raises(Refused, match="would spend epsilon"):
        engine.spend(budget, config)
    assert budget.rounds_consumed == rounds > 1
    assert budget.consumed_epsilon == epsilon(Event("gaussian", 2.0, Poisson(0.1), rounds), 1e-5) <= 1.5
    assert budget.consumed_delta == 1e-5
    report = engine.compute_privacy_spent(replace(config, target_epsilon=1.5), rounds)
    assert report.estimated_rounds_left == 0


def test_noise_calibration(engine):
    assert engine.get_noise_multiplier(8.0, 1e-5, 0.01, 10_000) == pytest.approx(0.916882, rel=1e-4)


def test_renyi_divergence(engine):
    assert engine.renyi_divergence(8.0, 2.0) == 1.0


def test_calibrated_scales(engine):
    ask = {"epsilon": 1.0, "delta": 1e-5, "sensitivity": 2.0}
    assert engine.calibrated_scale(NoiseMechanism.LAPLACE, **ask) == 2.0
    assert engine.calibrated_scale(NoiseMechanism.GAUSSIAN, **ask) == pytest.approx(2 * 3.730632, abs=1e-5)
    assert engine.calibrated_scale(NoiseMechanism.GAUSSIAN, classic=True, **ask) == pytest.approx(9.689610, abs=1e-5)
    with pytest.raises(Refused, match="analytic"):
        engine.calibrated_scale(NoiseMechanism.GAUSSIAN, classic=True, **(ask | {"epsilon": 8.0}))


BAD = {
    "epsilon": lambda e: DPConfig(target_epsilon=0),
    "epsilon below 0": (lambda e: PrivacyBudget(epsilon=-1), "epsilon"),
    "epsilon nan": (lambda e: PrivacyBudget(epsilon=float("nan")), "epsilon"),
    "delta 0": (lambda e: DPConfig(target_delta=0), "delta"),
    "delta 1": (lambda e: PrivacyBudget(epsilon=1, delta=1.0), "delta"),
    "q 0": (lambda e: DPConfig(sampling_rate=0), "sampling"),
    "q 2": (lambda e: DPConfig(sampling_rate=2), "sampling"),
    "noise 0": (lambda e: DPConfig(noise_multiplier=0), "noise_multiplier"),
    "norm 0": (lambda e: DPConfig(max_grad_norm=0), "max_grad_norm"),
    "orders": (lambda e: DPConfig(renyi_orders=(1,)), "renyi_orders"),
    "clip at 0": (lambda e: e.clip_gradients({"w": np.ones(2)}, 0), "max_norm"),
    "infinite": (lambda e: e.add_noise({"w": np.array([1.0, np.inf])}, DPConfig()), "'w' holds infinite"),
    "undefined": (lambda e: e.clip_gradients({"w": torch.tensor([np.nan])}, 1.0), "'w' holds infinite"),
    "integers": (lambda e: e.add_noise({"w": np.arange(3)}, DPConfig()), "'w' holds int64"),
    "nothing": (lambda e: e.add_noise({}, DPConfig()), "gradients"),
    "spent": (lambda e: e.spend(PrivacyBudget(1.0, consumed_epsilon=1.0), DPConfig()), "already spent"),
    "other config": (
        lambda e: e.spend(PrivacyBudget(5.0, consumed_epsilon=1.0), DPConfig()),
        "nobody knows what the epsilon",
    ),
    "negative": (lambda e: PrivacyBudget(1.0, consumed_epsilon=-1.0), "consumed_epsilon"),
    "steps": (lambda e: e.compute_privacy_spent(DPConfig(), 0), "steps"),
    "target": (lambda e: e.get_noise_multiplier(0, 1e-5, 0.1, 10), "epsilon"),
    "alpha": (lambda e: e.renyi_divergence(1.0, 1.0), "alpha"),
    "sigma": (lambda e: e.renyi_divergence(2.0, 0.0), "sigma"),
    "seed": (lambda e: DifferentialPrivacyEngine(rng="seeded"), "rng"),
    "rng": (lambda e: DifferentialPrivacyEngine(rng="fast"), "rng"),
}


@pytest.mark.parametrize("case", list(BAD))
def test_bad_input_gets_one_clear_sentence(engine, case: str):
    bad = BAD[case]
    call, word = bad if isinstance(bad, tuple) else (bad, "target_epsilon")
    with pytest.raises(Refused, match=word) as refusal:
        call(engine)
    sentence = str(refusal.value)
    assert "\n" not in sentence
    assert 20 < len(sentence) < 220
    assert ";" in sentence


def test_steps_of_different_configurations_add_up():
    """One quiet step and a hundred sampled ones cost what they cost together, by the accountant in use."""
    from fedveil.privacy.accountants import epsilon
    from fedveil.privacy.events import Event, Poisson

    engine, budget = DifferentialPrivacyEngine(rng="seeded", seed=0), PrivacyBudget(epsilon=5.0)
    budget = engine.spend(budget, DPConfig(noise_multiplier=8.0, sampling_rate=1.0))
    budget = engine.spend(budget, DPConfig(noise_multiplier=1.1117, sampling_rate=0.001), num_steps=100)
    both = [Event("gaussian", 8.0), Event("gaussian", 1.1117, Poisson(0.001), 100)]
    assert budget.consumed_epsilon == pytest.approx(epsilon(both, budget.delta))
    assert budget.rounds_consumed == 101
