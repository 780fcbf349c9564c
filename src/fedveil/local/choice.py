"""Which engine trains a cohort, and why (DESIGN 3)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from fedveil.core.errors import Refused
from fedveil.core.federation import Federation
from fedveil.core.method import Method
from fedveil.local.admission import Unfit, inspect, inspect_layers, prove
from fedveil.local.batches import Batching
from fedveil.local.cohort import Cohort, Gradients
from fedveil.local.engine import Engine
from fedveil.local.fold import Folded
from fedveil.local.mapped import Mapped
from fedveil.local.objective import Objective, Sgd
from fedveil.local.precision import Precision
from fedveil.local.sequential import Sequential

Tier = Literal["fold", "vmap", "sequential"]
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)

CACHE = 14 * 2**20
"""Bytes that are worked on together on a CPU: about 25 clients of the MLP, 2 of a small CNN (measured)."""


@dataclass(frozen=True)
class Facts:
    """What every engine is made of."""

    objective: Objective
    federation: Federation
    batching: Batching
    sgd: Sgd
    seed: int
    precision: Precision = "float32"

    def sequential(self) -> Sequential:
        """The reference."""
        return Sequential(self.objective, self.federation, self.batching, self.sgd, self.seed, precision=self.precision)

    def cohort(self, gradients: Gradients, name: Tier) -> Cohort:
        """An engine that trains clients together."""
        budget = CACHE if self.on_cpu else torch.cuda.mem_get_info()[0] // 4
        return Cohort(self.sequential(), gradients, name, budget, replays=name == "fold" and not self.on_cpu)

    @property
    def on_cpu(self) -> bool:
        """Whether the model lies in main memory."""
        return next(self.objective.module.parameters()).device.type == "cpu"


def choose(wanted: str, facts: Facts, method: Method) -> tuple[Engine, str]:
    """The engine that was asked for, or with ``auto`` the one that is fastest as measured; and the reason."""
    if facts.precision == "bf16" and wanted in ("vmap", "sequential"):
        raise Refused(f"precision: bf16 is there for engine=fold alone, not for {wanted}; use tf32 or engine=auto")
    if wanted == "sequential":
        return facts.sequential(), "as asked"
    if wanted != "auto":
        try:
            return _attempt(wanted, facts, method), "as asked"  # type: ignore[arg-type]
        except Unfit as unfit:
            raise Refused(f"engine: {wanted} cannot train this: {unfit}; set engine=auto") from None
    if facts.on_cpu and method.on_step.per_sample is None and _convolutions(facts.objective.module):
        return facts.sequential(), "on a CPU, convolutions gain nothing from training clients together"
    reasons = []
    for tier in _order(facts):
        try:
            engine = _attempt(tier, facts, method)
        except Unfit as unfit:
            reasons.append(f"no {tier}: {unfit}")
        else:
            return engine, "; ".join([*reasons, "a trial step equals the sequential engine's"])
    if facts.precision == "bf16":
        raise Refused(f"precision: bf16 is there for folded layers alone ({'; '.join(reasons)}); use tf32 or float32")
    return facts.sequential(), "; ".join(reasons)


def _order(facts: Facts) -> Iterator[Tier]:
    yield "fold"
    yield "vmap"


def _attempt(tier: Tier, facts: Facts, method: Method) -> Engine:
    if method.on_step.remembers:
        raise Unfit("a stage of on_step learns from one client for the next")
    if facts.precision == "bf16" and tier != "fold":
        raise Unfit("precision=bf16 is there for folded layers alone")
    inspect(facts.objective)
    if tier == "fold":
        inspect_layers(facts.objective)
    make = Folded if tier == "fold" else Mapped
    together = tier == "fold" or method.on_step.per_sample is None  # vmap takes single examples one by one
    proved = prove(make, facts.objective, facts.federation, method, facts.precision, together=together)
    return facts.cohort(proved, tier)


def _convolutions(module: nn.Module) -> bool:
    return any(isinstance(part, CONVOLUTIONS) for part in module.modules())
