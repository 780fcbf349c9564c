"""Every private method and variant, and one round of one of them taken apart."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

import fedveil
from fedveil.core.parts import MOVE
from fedveil.core.round import arrive, depart
from fedveil.core.stage import Context
from fedveil.core.streams import stream
from fedveil.methods.noisy import PLAIN, STEIN
from fedveil.runtime.config import resolve
from fedveil.runtime.prepare import prepare

VARIANTS = [
    *(("dp_fedavg_local", v) for v in PLAIN),
    *((m, v) for m in ("dp_fed_stein", "dp_scaffold", "dp_scaffold_stein") for v in STEIN),
]
IDS = [f"{m}-{v}" for m, v in VARIANTS]
BATCH, STEPS, LR, CLIP, SIGMA = 8, 3, 0.1, 0.7, 1.5


class Flat(nn.Module):
    """An output that is linear in the weights: a gradient is its input, whatever the weights and their noise are."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(dim))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.w


def mean_output(outputs: Tensor, targets: Tensor) -> Tensor:
    """A loss whose gradient is the mean input."""
    return outputs.mean()


def silent(dim: int, sizes=(10, 20, 40)):
    """Clients whose gradients are all zero, so that a move is nothing but noise."""
    parts = [(np.zeros((n, dim)), np.zeros(n)) for n in sizes]
    return fedveil.data.from_clients(parts, test=parts[0], classes=0, name="silent")


def constant(gradients: np.ndarray, examples: int = BATCH):
    """Clients with a gradient each that is the same for all their examples and weights; a batch is all they have."""
    parts = [(np.tile(g, (examples, 1)), np.zeros(examples)) for g in gradients]
    return fedveil.data.from_clients(parts, test=parts[0], classes=0, holdout=0.0, name="constant")


def training(method: str, variant: str, data, dim: int, *overrides: str):
    """The parts of a run of this variant on a linear model."""
    texts = [f"method={method}", f"algorithm_variant={variant}", f"sigma={SIGMA}", f"clip_norm={CLIP}"]
    texts += [f"steps={STEPS}", f"lr={LR}", f"batch={BATCH}", f"cohort={data.population}", "dtype=float64"]
    return prepare(resolve([*texts, *overrides]), data=data, model=Flat(dim), loss=mean_output)


def context(parts, server, number, cohort):
    """Where these clients stand in this round."""
    return Context(
        number,
        parts.objective.layout,
        cohort,
        [stream(7, "noise", number, k) for k in cohort],
        server=stream(7, "server", number),
        batches=[stream(7, "batches", number, k) for k in cohort],
        previous=server["previous"][None, :] if "previous" in server else None,
    )


def one_round(parts, method=None, server=None, memory=None, number=1, cohort=None):
    """Moves, uploads and arrival of one round of the cohort (everybody), and the memories of its members.

    ``method`` may differ from the one that was prepared.
    """
    method = method or parts.method
    server = server or parts.start()
    cohort = list(range(parts.federation.population)) if cohort is None else cohort
    if memory is None and method.local.remembers:
        memory = torch.zeros(len(cohort), server["w"].numel(), dtype=server["w"].dtype)
    ctx = context(parts, server, number, cohort)
    moves = parts.engine.train(method, server, method.local.drift(memory, server), ctx)
    uploads, memory = depart(method, moves, memory, server, ctx)
    arrival = arrive(method, uploads, parts.shares(cohort, moves), server, ctx)
    return moves, uploads, arrival, memory, ctx


__all__ = [
    "BATCH",
    "CLIP",
    "IDS",
    "LR",
    "MOVE",
    "SIGMA",
    "STEPS",
    "VARIANTS",
    "Flat",
    "constant",
    "context",
    "one_round",
    "silent",
    "training",
]
