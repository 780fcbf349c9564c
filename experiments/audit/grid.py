"""What is audited, under which settings; every number that shapes the study stands here."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

STUDY = 1
"""Raise it when cells must be computed anew although no setting has changed."""
CANARIES = 5000
ROUNDS = 30
DELTA = 1e-5
SEEDS = tuple(range(20))
FEW = tuple(range(5))
RATIO = 1.4
"""With half the noise the mean lower bound should be at least so many times that of honest runs."""

Settings = dict[str, Any]

LOCAL: Settings = {"method": {"name": "dp_fedavg_local"}}
CENTRAL: Settings = {"method": {"name": "dp_fedavg_central"}, "cohort": 20}
MAIN = {"dp_fedavg_local": LOCAL, "dp_fedavg_central": CENTRAL}
"""Records towards the server, half of the 20 clients a round; whole clients towards the public, all of them."""


def _method(name: str, **settings: Any) -> Settings:
    return {"method": {"name": name} | settings}


OTHERS: dict[str, Settings] = {
    "dp_fedavg_local, last_noise": _method("dp_fedavg_local", algorithm_variant="last_noise"),
    "dp_fedavg_central, 10 of 20 clients drawn": _method("dp_fedavg_central"),
    "dp_fedavg_central, Poisson draws, 100 rounds": _method("dp_fedavg_central")
    | {"selection": "poisson", "rounds": 100},
    "dp_fedavg_central, adaptive clip": _method("dp_fedavg_central", clipping="adaptive") | {"cohort": 20},
    "dp_scaffold, step_noise_step_jse without JSE": _method("dp_scaffold", algorithm_variant="step_noise_step_jse"),
    "dp_fed_stein, step_noise_final_jse": _method("dp_fed_stein", algorithm_variant="step_noise_final_jse"),
    "dp_fed_stein, step_noise_step_jse": _method("dp_fed_stein", algorithm_variant="step_noise_step_jse"),
    "dp_scaffold_stein, step_noise_final_jse": _method("dp_scaffold_stein", algorithm_variant="step_noise_final_jse"),
    "dp_fedavg_local on a CNN": _method("dp_fedavg_local") | {"model": "cnn"},
}


@dataclass(frozen=True)
class Condition:
    """A claim, and how much of its noise is really added."""

    label: str
    epsilon: float
    noise: float


HONEST = Condition("honest", 4.0, 1.0)
OFF = Condition("noise off", 4.0, 0.0)
HALF = Condition("half the noise", 4.0, 0.5)
SMALL = Condition("honest, ε = 1", 1.0, 1.0)
QUARTER = Condition("a quarter of the noise, ε = 1", 1.0, 0.25)
CONDITIONS = (HONEST, OFF, HALF, SMALL, QUARTER)


@dataclass(frozen=True)
class Cell:
    """One audited run."""

    label: str
    condition: Condition
    seed: int
    settings: str
    """What reaches the run, as canonical JSON."""

    @cached_property
    def key(self) -> str:
        """Names the cell's file: a digest of everything that shapes its result."""
        text = json.dumps({"study": STUDY, "settings": json.loads(self.settings)}, sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def __str__(self) -> str:
        """One line for people."""
        return f"{self.label}, {self.condition.label}, seed {self.seed}"


def cell(label: str, settings: Settings, condition: Condition, seed: int, canaries: int = CANARIES) -> Cell:
    """The run of a method under a condition."""
    whole = {"rounds": ROUNDS} | settings
    whole |= {
        "data": {"name": "digits"},
        "seed": seed,
        "privacy": {"epsilon": condition.epsilon, "delta": DELTA},
        "audit": {"canaries": canaries, "noise": condition.noise},
    }
    return Cell(label, condition, seed, json.dumps(whole, sort_keys=True))


def main_cells(seeds: Sequence[int] = SEEDS) -> list[Cell]:
    """Every condition and seed of the two methods that the verdicts speak of."""
    return [cell(label, s, condition, seed) for label, s in MAIN.items() for condition in CONDITIONS for seed in seeds]


def other_cells(seeds: Sequence[int] = FEW) -> list[Cell]:
    """Honest runs and runs without noise of other methods."""
    return [
        cell(label, s, condition, seed) for label, s in OTHERS.items() for condition in (HONEST, OFF) for seed in seeds
    ]
