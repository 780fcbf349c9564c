"""Runs over nodes in this process, beside the same runs without Flower."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from tests.flower.loopback import Loopback

from fedveil.runtime.config import resolve
from fedveil.runtime.flower.client_app import app
from fedveil.runtime.flower.cohort import NodeCohort, roles
from fedveil.runtime.flower.nodes import Nodes
from fedveil.runtime.folder import Folder
from fedveil.runtime.inline import train
from fedveil.runtime.prepare import Training, prepare

SMALL = ("data=digits", "population=6", "cohort=4", "model=logistic", "steps=3", "batch=16", "rounds=3", "lr=0.5",
         "engine=sequential")  # fmt: skip


def training_of(*settings: str) -> Training:
    return prepare(resolve([*SMALL, *settings]))


def grid_for(training: Training, **options: Any) -> Loopback:
    count = training.federation.population
    others = [{"role": role, "partition-id": count + i} for i, role in enumerate(roles(training))]
    return Loopback(app, [{"partition-id": k} for k in range(count)] + others, **options)


def over_nodes(
    training: Training, out: Path, grid: Loopback | None = None, *, resume: bool = False, timeout: float = 0.2
):
    """A run over nodes: where it stands at the end, its summary, its folder and its grid."""
    grid = grid or grid_for(training)
    nodes = Nodes(grid, timeout=timeout, poll=0.001)
    nodes.wait_for(training.federation.population, frozenset(roles(training)))
    folder = Folder(out) if resume else Folder.create(out, "run")
    progress, summary = train(training, folder, resume=resume, clients=NodeCohort(training, nodes, folder.nodes))
    return progress, summary, folder, grid


def in_process(training: Training, out: Path):
    folder = Folder.create(out, "run")
    progress, summary = train(training, folder)
    return progress, summary, folder


def same(one: Folder, other: Folder, tolerance: float) -> None:
    """The same model, and the same ledger to the byte but for its fingerprints."""
    first, second = load_file(one.model), load_file(other.model)
    first = {name: value for name, value in first.items() if value.is_floating_point()}  # layers count their own calls
    for name, value in first.items():
        assert torch.allclose(value, second[name], rtol=0, atol=tolerance), (name, (value - second[name]).abs().max())
    assert releases(one) == releases(other)


def releases(folder: Folder) -> list[Any]:
    from fedveil.privacy.ledger import Ledger

    return [(e.round, e.status, e.lines) for e in Ledger.replay(folder.ledger).entries]
