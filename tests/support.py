"""What several tests need: optional extras, small federations, toy stages."""

from __future__ import annotations

import importlib
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedveil
from fedveil.core.errors import Aborted
from fedveil.core.federation import Federation
from fedveil.core.parts import Delivery, View
from fedveil.core.signal import Signal
from fedveil.core.stage import Context, Release

DATA = Path(os.environ["FEDVEIL_DATA"]) if os.environ.get("FEDVEIL_DATA") else None


def require(module: str, command: str = "make test") -> ModuleType:
    """Import an optional peer: missing, it fails in CI and skips elsewhere, naming the command that installs it."""
    try:
        return importlib.import_module(module)
    except ImportError as problem:
        reason = f"{module} is not installed ({problem}); `{command}` installs it"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason, allow_module_level=True)


def blobs(clients: int = 4, examples: int = 20, features: int = 5, classes: int = 3, seed: int = 0) -> Federation:
    """A small, skewed classification task; clients have different sizes."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(classes, features)) * 2
    parts = []
    for k in range(clients):
        y = rng.choice(classes, size=examples + 3 * k, p=rng.dirichlet(np.ones(classes)))
        parts.append((centres[y] + rng.normal(size=(len(y), features)), y))
    y = rng.integers(0, classes, 50)
    test = (centres[y] + rng.normal(size=(50, features)), y)
    return fedveil.data.from_clients(parts, test=test, classes=classes, name="blobs")


class Quadratic(nn.Module):
    """f(w) = w·x, so that mean squared error over scaled unit vectors is a quadratic in w."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(dim))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.w


@dataclass(frozen=True)
class ToyClip:
    """Clip whole rows; stands for the product's clip where only the core is under test."""

    norm: float
    unit: str = "client"

    def __call__(self, signal: Signal, ctx: Context) -> Signal:
        norms = signal.value.norm(dim=1, keepdim=True).clamp_min(1e-12)
        value = signal.value * (self.norm / norms).clamp(max=1.0)
        return replace(signal, value=value, bound=self.norm, unit=self.unit)


@dataclass(frozen=True)
class ToyNoise:
    """Gaussian noise that refuses an unbounded signal."""

    multiplier: float

    def __call__(self, signal: Signal, ctx: Context) -> Signal:
        if signal.bound is None or signal.unit is None:
            raise ValueError("toy noise: the signal has no bound; put a clip before the noise")
        std = self.multiplier * signal.bound
        noise = np.stack([s.normal(0.0, std, signal.dim) for s in ctx.streams])
        for client in ctx.clients:
            release = Release(
                signal.unit,
                signal.bound,
                std,
                "toy",
                ctx.slot,
                ctx.channel,
                ctx.round,
                None if client is None else (client,),
            )
            ctx.releases.append(release)
        assert signal.noise_var is not None and math.isfinite(std)
        return replace(
            signal,
            value=signal.value + torch.from_numpy(noise).to(signal.value),
            noise_var=signal.noise_var + std**2,
            released=True,
        )


@dataclass(frozen=True)
class ToyClipEach:
    """Per-sample clipping: factors from norms, facts for the sum."""

    norm: float

    def factors(self, norms: Tensor) -> Tensor:
        return (self.norm / norms.clamp_min(1e-12)).clamp(max=1.0)

    def summed(self, total: Tensor) -> Signal:
        return Signal(total, bound=self.norm, unit="record")


@dataclass(frozen=True)
class Kept:
    """How many uploads stand in every sum, and how many of them belong to colluders."""

    least: int
    colluders: int


@dataclass(frozen=True)
class ModularSum:
    """What secure aggregation comes to: whole numbers are summed modulo 2^bits, and only the sum is shown.

    Of the clients ``lost`` do not arrive; ``max_lost`` more and the round is aborted.
    """

    bits: int = 18
    max_lost: int = 0
    colluding: int = 0
    lost: int = 0
    trust: str = "semi-honest"

    @property
    def reveals(self) -> frozenset[View]:
        return frozenset({"sum"})

    def remarks(self, cohort: int) -> list[str]:
        return []

    def plan(self, clients: int) -> Kept:
        return Kept(clients - self.max_lost, self.colluding)

    def carry(self, uploads: Mapping[str, Signal], weights: Tensor, ctx: Context) -> Delivery:
        rows = next(iter(uploads.values())).rows
        if self.lost > self.max_lost:
            raise Aborted(f"{rows - self.lost} of {rows} uploads arrived; at least {rows - self.max_lost} are needed")
        arrived = torch.arange(rows - self.lost)
        sums = {}
        for name, signal in uploads.items():
            assert signal.grid is not None
            whole = np.rint(signal.value[: len(arrived)].double().numpy() / signal.grid).astype(np.int64)
            total = (whole % 2**self.bits).sum(0) % 2**self.bits
            centred = np.where(total >= 2 ** (self.bits - 1), total - 2**self.bits, total)
            sums[name] = torch.from_numpy(centred * signal.grid)[None, :].to(signal.value) * float(weights[0])
        return Delivery(sums, rows * self.bits // 8, arrived)
