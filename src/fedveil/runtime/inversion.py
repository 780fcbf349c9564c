"""Gradient inversion, for teaching: what a server makes of one upload, with and without protection.

Where a model begins with a linear layer W·x + b, the gradient of one example is the outer product of one vector with
(x, 1): every row of [∂W | ∂b] is a multiple of the example. A move after one step on one example is such a matrix, and
its leading right singular vector *is* the example (Phong et al. 2018 divide one row by its bias; the singular vector
uses all rows, which is as well as anybody can do under Gaussian noise). After a step on several examples a row is a
mixture, except where a ReLU neuron was excited by one of them alone: two such neurons give the same picture, and rows
that coincide are examples for certain (Boenisch et al. 2023). Nothing is trained for this, and nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fedveil.core.errors import Refused
from fedveil.core.parts import MOVE
from fedveil.core.round import depart
from fedveil.core.stage import Context
from fedveil.core.streams import stream
from fedveil.privacy.noise import PerClient
from fedveil.runtime.config import resolve
from fedveil.runtime.prepare import Training, prepare

EXACT = 0.999
"""A picture with at least this correlation is the example."""
SAME = 1e-3
"""Rows this close to each other, relative to their length, show the same picture."""
SHOWN = 8
"""Clients whose pictures are shown."""
CANDIDATES = 100
"""From so many examples the attacker has to pick the client's; by chance it succeeds once in as many."""
OWN = ("method", "transport", "batch", "steps", "local_epochs", "sampling", "rounds", "privacy.epsilon", "clip_norm")
"""Settings that the demonstration chooses itself."""


@dataclass(frozen=True)
class Protection:
    """What stands between an example and the server: its name, what it means in words, and its settings."""

    name: str
    words: str
    settings: tuple[str, ...]


LOCAL = "method=dp_fedavg_local"
PROTECTIONS = (
    Protection("nothing", "FedAvg, one step on one example", ("method=fedavg",)),
    Protection(
        "eight examples",
        "FedAvg, one step on eight examples: a mixture, in which single neurons give many of them away",
        ("method=fedavg", "batch=8"),
    ),
    Protection(
        "a clip alone",
        "the gradient is shortened to norm 0.1, and no noise is added: shorter, and just as clear",
        (LOCAL, "clip_norm=0.1", "sigma=1e-6"),
    ),
    Protection(
        "a promise of ε = 10,000",
        "noise in every step (dp_fedavg_local), for 30 rounds: a number, and no protection",
        (LOCAL, "privacy.epsilon=10000"),
    ),
    Protection("ε = 100", "noise in every step (dp_fedavg_local), for 30 rounds", (LOCAL, "privacy.epsilon=100")),
    Protection("ε = 8", "noise in every step (dp_fedavg_local), for 30 rounds", (LOCAL, "privacy.epsilon=8")),
    Protection(
        "secure aggregation",
        "FedAvg over masks: the server sees the sum of all clients' moves, and no single one",
        ("method=fedavg", "transport=masks"),
    ),
)


@dataclass(frozen=True, eq=False)
class View:
    """What the server makes of the uploads under one protection.

    ``pictures`` (clients, features) are the clearest that it finds, and ``likeness`` the correlation of each with the
    true example; ``picked`` is how many of these examples it picks out of ``CANDIDATES``. ``exact`` of the ``held``
    examples in all these uploads it reads off exactly.
    """

    protection: Protection
    pictures: Tensor
    likeness: tuple[float, ...]
    picked: int
    exact: int
    held: int
    sigma: float | None


@dataclass(frozen=True, eq=False)
class Inversion:
    """The whole demonstration: the true examples, and what each protection leaves of them."""

    data: str
    model: str
    shape: tuple[int, ...]
    originals: Tensor
    candidates: int
    views: tuple[View, ...]

    def to_json(self) -> dict[str, Any]:
        """Numbers without pictures."""
        return {
            "data": self.data,
            "model": self.model,
            "clients": len(self.originals),
            "candidates": self.candidates,
            "views": [
                {
                    "protection": v.protection.name,
                    "words": v.protection.words,
                    "likeness": [round(x, 4) for x in v.likeness],
                    "picked": v.picked,
                    "exact": v.exact,
                    "held": v.held,
                    "sigma": v.sigma,
                }
                for v in self.views
            ],
        }


def inversion(overrides: Sequence[str] = (), say: Callable[[str], None] = lambda text: None) -> Inversion:
    """Run one round under each protection and attack what arrives; ``say`` hears what is being done."""
    for text in overrides:
        name = text.split("=")[0].removeprefix("method.")
        if name in OWN:
            raise Refused(f"{name}: the demonstration sets it itself; data, model and seed are yours")
    views: list[View] = []
    originals, others, training = torch.zeros(0), torch.zeros(0), None
    for number, protection in enumerate(PROTECTIONS, start=1):
        say(f"{number}/{len(PROTECTIONS)}: {protection.name}")
        training = prepare(resolve(_settings(overrides, protection)))
        where = _first_layer(training)
        clients = list(range(min(SHOWN, training.federation.population)))
        if not len(originals):
            originals = torch.stack([_examples(training, k)[0] for k in clients])
            others = _others(training, CANDIDATES - 1)
        rows = _seen(training)
        readings = [_readings(row, where) for row in (rows if len(rows) == 1 else rows[clients])]
        found = [max(readings[k % len(readings)], key=partial(_likeness, originals[k])) for k in clients]
        pictures = torch.stack(found)
        likeness = tuple(_likeness(a, b) for a, b in zip(pictures, originals, strict=True))
        whose = [[k] for k in clients] if len(rows) > 1 else [list(range(training.cohort))]
        held = [torch.cat([_examples(training, k) for k in group]) for group in whose]
        exact = sum(
            any(_likeness(true, reading) > EXACT for reading in own)
            for own, examples in zip(readings, held, strict=True)
            for true in examples
        )
        picked = sum(_picks(a, b, others) for a, b in zip(pictures, originals, strict=True))
        sigma = training.sigma
        most = max(sigma.values) if isinstance(sigma, PerClient) else sigma
        views.append(View(protection, pictures, likeness, picked, exact, sum(map(len, held)), most))
    assert training is not None
    name = type(training.objective.module).__name__
    model = training.config["model"].get("build", name).split(":")[-1]
    shape = tuple(training.federation.input_shape)
    return Inversion(training.federation.name, model, shape, originals, 1 + len(others), tuple(views))


def _settings(overrides: Sequence[str], protection: Protection) -> list[str]:
    """One step on one example (shuffled, so that it is the same one everywhere), all clients in the round."""
    usual = ["batch=1", "steps=1", "sampling=shuffled", "rounds=30", "model=mlp"]
    chosen = [text.split("=")[0] for text in protection.settings]
    kept = [text for text in usual if text.split("=")[0] not in chosen]
    chooses = any(text.startswith(("population=", "cohort=")) for text in overrides)
    everybody = [] if chooses else ["population=20", "cohort=20"]
    return [*kept, *everybody, *overrides, *protection.settings]


def _first_layer(training: Training) -> tuple[slice, slice, int]:
    """Where weight and bias of the first layer stand in the flat vector, and how many features it reads."""
    layout, features = training.objective.layout, 1
    for size in training.federation.input_shape:
        features *= size
    modules = training.objective.module.modules()
    layer = next((m for m in modules if not list(m.children()) and list(m.parameters())), None)
    if not isinstance(layer, nn.Linear) or layer.bias is None or layer.in_features != features:
        raise Refused(
            "model: the demonstration reads examples off a linear first layer with a bias; use model=mlp or logistic"
        )
    weight = features * layer.out_features
    if layout.sizes[0] != weight or layout.sizes[1] != layer.out_features:
        raise Refused("model: its first parameters are not those of its first layer; use model=mlp or logistic")
    return slice(0, weight), slice(weight, weight + layer.out_features), features


def _examples(training: Training, client: int) -> Tensor:
    """The examples that a client's first step looks at."""
    examples = training.federation.train(client)
    order, ends = training.batching.batches(len(examples), stream(training.settings.seed, "batches", 1, client))
    return examples.x[torch.from_numpy(order[: ends[0]])].flatten(1).double()


def _others(training: Training, count: int) -> Tensor:
    """Examples that nobody sent, among which the attacker has to find the one that was."""
    return training.federation.test.x[:count].flatten(1).double()


def _seen(training: Training) -> Tensor:
    """What the server gets in the first round: a row for each client, or one for all."""
    method, seed, server = training.method, training.settings.seed, training.start()
    cohort = list(range(training.cohort))
    ctx = Context(
        1,
        training.objective.layout,
        cohort,
        [stream(seed, "noise", 1, k) for k in cohort],
        server=stream(seed, "server noise", 1),
        batches=[stream(seed, "batches", 1, k) for k in cohort],
        chance=stream(seed, "chance", 1),
        weights=server["w"],
    )
    with torch.random.fork_rng(devices=[]):
        moves = training.engine.train(method, server, None, ctx)
    uploads, _ = depart(method, moves, None, server, ctx)
    delivery = method.transport.carry(uploads, training.shares(cohort, moves).weights, ctx)
    return delivery.uploads[MOVE].double().cpu()


def _example(row: Tensor, where: tuple[slice, slice, int]) -> Tensor:
    """The example that explains the move of the first layer best, up to what noise has done to it."""
    weight, bias, features = where
    matrix = torch.cat([row[weight].view(-1, features), row[bias][:, None]], dim=1)
    vector: Tensor = torch.linalg.svd(matrix, full_matrices=False)[2][0]
    scale = vector[-1]
    if scale.abs() < 1e-9 * vector.abs().max():
        return vector[:-1]
    return vector[:-1] / scale


def _readings(row: Tensor, where: tuple[slice, slice, int]) -> list[Tensor]:
    """All pictures that an upload gives: the singular vector's, and those that two rows or more agree on."""
    weight, bias, features = where
    excited = row[bias].abs() > 1e-6 * row[bias].abs().max()
    each = row[weight].view(-1, features)[excited] / row[bias][excited][:, None]
    apart = torch.cdist(each, each) / each.norm(dim=1).clamp_min(1e-12)
    pictures, left = [_example(row, where)], torch.ones(len(each), dtype=torch.bool)
    for i in range(len(each)):
        alike = left & (apart[i] < SAME)
        if left[i] and int(alike.sum()) > 1:
            pictures.append(each[i])
            left &= ~alike
    return pictures


def _likeness(found: Tensor, true: Tensor) -> float:
    a, b = found - found.mean(), true - true.mean()
    return float((a @ b) / (a.norm() * b.norm()).clamp_min(1e-12))


def _picks(found: Tensor, true: Tensor, others: Tensor) -> bool:
    """Whether the true example is more like what was found than all others are."""
    return _likeness(found, true) > max(_likeness(found, other) for other in others)
