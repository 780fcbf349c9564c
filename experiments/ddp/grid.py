"""What is compared, under which settings; every number that shapes the study stands here."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

STUDY = 1
"""Raise it when cells must be computed anew although no setting has changed."""

Settings = dict[str, Any]
BITS = 18
"""Sums are taken modulo 2^18."""
CLIENTS = 100
DELTA = 1e-5


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The runs on one data set: 100 clients, all of them in every round."""

    data: str
    title: str
    rounds: int
    batch: int
    goal: float
    """Accuracy in percent that central noise should reach at the largest budget."""
    steps: int = 5
    clip_norm: float = 1.0
    lrs: tuple[float, ...]
    epsilons: tuple[float, ...] = (2.0, 8.0)
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    tuning_seed: int = 100


SCHEDULES = {
    s.data: s
    for s in (
        Schedule(data="digits", title="digits", rounds=30, batch=16, goal=75.0, lrs=(0.5, 1.0, 2.0, 4.0)),
        Schedule(data="mnist", title="MNIST", rounds=20, batch=64, goal=85.0, lrs=(0.1, 0.3, 1.0, 3.0)),
    )
}


def quick(s: Schedule) -> Schedule:
    """A reduced version that shows that the study runs, no more."""
    return replace(s, rounds=2, lrs=s.lrs[1:2], epsilons=s.epsilons[-1:], seeds=(0,))


@dataclass(frozen=True)
class Row:
    """One way to add the noise."""

    label: str
    noise: Literal["central", "skellam", "discrete_gaussian"]
    max_dropout: float = 0.0
    collusion: float = 0.0
    dropout: float = 0.0
    whole_grid: bool = True
    """Whether it runs at every budget, or at the largest alone."""

    def settings(self) -> tuple[Settings, Settings | None]:
        """Method and transport."""
        if self.noise == "central":
            return {"name": "dp_fedavg_central"}, None
        transport = {"bits": BITS, "max_dropout": self.max_dropout, "collusion": self.collusion}
        return {"name": "ddp_fedavg", "noise": self.noise}, transport | {"name": "masks", "dropout": self.dropout}


CENTRAL = Row("central Gaussian, a trusted server", "central")
ROWS = (
    CENTRAL,
    Row("Skellam, all stay and nobody colludes", "skellam"),
    Row("Skellam, up to 10 may be lost and 5 collude", "skellam", 0.1, 0.05, whole_grid=False),
    Row("Skellam, up to 10 may be lost and 5 collude; 10 are lost", "skellam", 0.1, 0.05, 0.1, whole_grid=False),
    Row("discrete Gaussian, all stay and nobody colludes", "discrete_gaussian", whole_grid=False),
)


@dataclass(frozen=True)
class Cell:
    """One run."""

    data: str
    label: str
    epsilon: float
    seed: int
    lr: float
    settings: str
    """What reaches the run, as canonical JSON."""

    @cached_property
    def key(self) -> str:
        """Names the cell's file: a digest of everything that shapes its result."""
        return digest({"study": STUDY, "settings": json.loads(self.settings)})

    def __str__(self) -> str:
        """One line for people."""
        return f"{self.data}, {self.label}, ε = {self.epsilon:g}, seed {self.seed}, lr {self.lr:g}"


@dataclass(frozen=True)
class NoiseCell:
    """A measurement of the noise itself: many sums of moves that are all zero."""

    dim: int = 2**15
    rounds: int = 50
    epsilon: float = 8.0
    clients: int = CLIENTS

    @cached_property
    def key(self) -> str:
        """As of a run."""
        return digest({"study": STUDY, "noise": [self.dim, self.rounds, self.epsilon, self.clients, BITS, DELTA]})

    def __str__(self) -> str:
        """One line for people."""
        return "noise"


def digest(what: Mapping[str, Any]) -> str:
    """Sixteen bytes in hexadecimal."""
    return hashlib.blake2b(json.dumps(what, sort_keys=True).encode(), digest_size=16).hexdigest()


def cell(s: Schedule, row: Row, epsilon: float, seed: int, lr: float) -> Cell:
    """The run of a row."""
    method, transport = row.settings()
    settings: Settings = {
        "method": method | {"clip_norm": s.clip_norm},
        "data": {"name": s.data, "partition": "iid"},
        "model": "logistic",
        "population": CLIENTS,
        "cohort": CLIENTS,
        "rounds": s.rounds,
        "steps": s.steps,
        "batch": s.batch,
        "lr": lr,
        "seed": seed,
        "privacy": {"epsilon": epsilon, "delta": DELTA},
    }
    if transport is not None:
        settings["transport"] = transport
    return Cell(s.data, row.label, epsilon, seed, lr, json.dumps(settings, sort_keys=True))


def tuning(s: Schedule) -> list[Cell]:
    """Central noise at every learning rate, on a seed of its own."""
    return [cell(s, CENTRAL, epsilon, s.tuning_seed, lr) for epsilon in s.epsilons for lr in s.lrs]


def runs(s: Schedule, lrs: Mapping[float, float]) -> list[Cell]:
    """Every row at every budget and seed, all with the learning rate that was best for central noise."""
    return [
        cell(s, row, epsilon, seed, lrs[epsilon])
        for epsilon in s.epsilons
        for row in ROWS
        if row.whole_grid or epsilon == s.epsilons[-1]
        for seed in s.seeds
    ]
