"""How good a model is: on the common test set, and client by client."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedveil.core.federation import Examples
from fedveil.core.parts import State
from fedveil.local.objective import Loss
from fedveil.local.poison import Trigger
from fedveil.runtime.prepare import Training

Accuracies = np.ndarray[Any, np.dtype[np.float64]]

MANY = 1000
"""In larger populations, accuracy by client is measured on this many clients, evenly spread."""


def score(outputs: Tensor, y: Tensor, loss: Loss) -> dict[str, float | None]:
    """Accuracy (None where the target is a number) and mean loss."""
    classified = not y.is_floating_point()
    hits = outputs.argmax(1).eq(y).double().mean() if classified else None
    return {"accuracy": None if hits is None else float(hits), "loss": float(loss(outputs, y))}


def test_scores(training: Training, server: State) -> dict[str, float | None]:
    """Scores of the global model on the common test set; None where there is none."""
    if not len(training.federation.test):
        return {"accuracy": None, "loss": None}
    test = _placed(training, training.federation.test)
    return score(training.engine.outputs(server, test.x), test.y, training.objective.loss)


def attack_success(training: Training, server: State) -> dict[str, float]:
    """How often a backdoor's trigger leads to its target class, over test examples of all others; no entry without."""
    attackers = training.attackers
    if attackers is None or not isinstance(attackers.attack.poison, Trigger):
        return {}
    tried = _placed(training, attackers.attack.poison.tried(training.federation.test))
    hits = training.engine.outputs(server, tried.x).argmax(1).eq(tried.y)
    return {"attack_success": float(hits.double().mean())}


def accuracy_by_client(training: Training, server: State) -> Accuracies | None:
    """Accuracy on each client's own held-out examples; NaN where a client has none, None where nobody has."""
    federation = training.federation
    if not federation.classes:
        return None
    population = federation.population
    asked = np.arange(population) if population <= MANY else np.linspace(0, population - 1, MANY).astype(np.int64)
    parts = [federation.holdout(int(k)) for k in asked]
    counts = np.array([len(p) for p in parts])
    if not counts.any():
        return None
    x, y = torch.cat([p.x for p in parts]), torch.cat([p.y for p in parts])
    pooled = _placed(training, Examples(x, y))
    hits = training.engine.outputs(server, pooled.x).argmax(1).eq(pooled.y).double().cpu().numpy()
    owner = np.repeat(np.arange(len(asked)), counts)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.bincount(owner, hits, minlength=len(asked)) / counts)


def spread(accuracies: Accuracies | None) -> dict[str, float] | None:
    """Mean, standard deviation, and the mean of the worst tenth (at least one client)."""
    if accuracies is None:
        return None
    known = np.sort(accuracies[~np.isnan(accuracies)])
    worst = known[: max(1, round(len(known) / 10))]
    return {"mean": float(known.mean()), "std": float(known.std()), "worst10": float(worst.mean())}


def _placed(training: Training, examples: Examples) -> Examples:
    device, dtype = training.settings.torch_device, training.settings.torch_dtype
    y = examples.y.to(device, dtype) if examples.y.is_floating_point() else examples.y.to(device)
    x = examples.x.to(device, dtype) if examples.x.is_floating_point() else examples.x.to(device)
    return Examples(x, y)
