"""Central DP-SGD by Opacus on the pooled training examples: record unit, a trusted curator who sees all data."""

from __future__ import annotations

import importlib.util
import math
import warnings
from typing import Any

import torch
from torch.nn import functional as F

import fedveil
from experiments.dp_methods import model as own
from fedveil.core.streams import torch_seed
from fedveil.local import models


def available() -> bool:
    """Whether Opacus can be imported."""
    return importlib.util.find_spec("opacus") is not None


def train(
    *,
    peer: str,
    data: str,
    model: str,
    population: int,
    steps: int,
    batch: int,
    clip_norm: float,
    epsilon: float,
    delta: float,
    accountant: str,
    lr: float,
    seed: int,
) -> dict[str, Any]:
    """Poisson batches, per-sample clip, noise at the smallest multiplier that keeps the budget (all by ``peer``)."""
    assert peer == "opacus"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Opacus and its imports warn about their own future
        from opacus import GradSampleModule
        from opacus.accountants import create_accountant
        from opacus.accountants.utils import get_noise_multiplier
        from opacus.optimizers import DPOptimizer

        x, y, test = _pooled(data, population, seed)
        rate = batch / len(x)
        sigma = get_noise_multiplier(
            target_epsilon=epsilon, target_delta=delta, sample_rate=rate, steps=steps, accountant=accountant
        )
        torch.manual_seed(torch_seed(seed, "initial weights"))
        build = getattr(own, model, None) or getattr(models, model)
        module = GradSampleModule(build(tuple(x.shape[1:]), int(y.max()) + 1))
        generator = torch.Generator().manual_seed(torch_seed(seed, "pooled batches"))
        optimizer = DPOptimizer(
            torch.optim.SGD(module.parameters(), lr=lr),
            noise_multiplier=sigma,
            max_grad_norm=clip_norm,
            expected_batch_size=batch,
            generator=generator,
        )
        spent = create_accountant(accountant)
        for _ in range(steps):
            spent.step(noise_multiplier=sigma, sample_rate=rate)
            chosen = torch.rand(len(x), generator=generator) < rate
            optimizer.zero_grad()
            F.cross_entropy(module(x[chosen]), y[chosen]).backward()
            optimizer.step()
        with torch.no_grad():
            scores = module(test.x)
        reached = spent.get_epsilon(delta)
    loss = float(F.cross_entropy(scores, test.y))
    claim = {"observer": "public", "unit": "record", "epsilon": reached, "delta": delta, "status": "proved"}
    return {
        "status": "finished" if math.isfinite(loss) else "diverged",
        "accuracy": float(scores.argmax(1).eq(test.y).double().mean()),
        "worst10": None,
        "loss": loss,
        "rounds": steps,
        "statement": [claim | {"accountant": accountant, "note": "add or remove one record; the curator is trusted"}],
        "sigma": [sigma, sigma],
    }


def _pooled(name: str, population: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, Any]:
    """All training examples of a federation, and the test set that its federated runs of this seed have as well."""
    federation = fedveil.data.load(name, seed=seed, population=population, partition="iid")
    parts = [federation.train(k) for k in range(federation.population)]
    return torch.cat([p.x for p in parts]), torch.cat([p.y for p in parts]), federation.test
