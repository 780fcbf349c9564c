"""A few rounds of a method on an engine, without folders and reports."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from functools import cache, reduce
from typing import Any

import numpy as np
import torch
import yaml
from torch import Tensor, nn

import fedveil
from fedveil.core.federation import Federation
from fedveil.core.flat import read_buffers
from fedveil.core.parts import Moves
from fedveil.core.round import BUFFERS, PREVIOUS, arrive, depart
from fedveil.core.stage import Context, Release
from fedveil.core.streams import stream
from fedveil.runtime.config import resolve
from fedveil.runtime.memory import Memory
from fedveil.runtime.prepare import Training, prepare


@dataclass
class Trained:
    training: Training
    server: dict[str, Tensor]
    moves: list[Moves]
    releases: list[Release]


@cache
def _resolved(*texts: str) -> dict[str, Any]:
    return resolve(list(texts))


def configuration(*texts: str) -> dict[str, Any]:
    """What ``resolve`` makes of these settings, group by group, because composing takes half a second."""
    groups: dict[str, list[str]] = {"method": [], "model": []}
    config, plain = {}, {}
    for text in texts:
        name, _, value = text.partition("=")
        group = "method" if name == "sigma" else name.split(".")[0]
        if group in groups:
            groups[group].append(text)
        else:
            plain[name] = yaml.safe_load(value)
    config = deepcopy(_resolved(*groups["method"]))
    for name, value in plain.items():
        *path, last = name.split(".")
        reduce(dict.__getitem__, path, config)[last] = value
    config["model"] = deepcopy(_resolved(*groups["model"])["model"])
    return config


def train(
    data: Federation,
    *texts: str,
    engine: str = "auto",
    rounds: int = 3,
    chunk: int | None = None,
    replays: bool | None = None,
    device: str = "cpu",
    **own: Any,
):
    """Everything that these rounds leave behind, in float64."""
    fixed = [f"engine={engine}", "dtype=float64", f"cohort={min(3, data.population)}", f"device={device}"]
    training = prepare(configuration(*texts, *fixed), data=data, **own)
    if chunk is not None:
        training.engine.chunk = chunk
    if replays is not None:
        training.engine.replays = replays
    method, layout, seed = training.method, training.objective.layout, training.settings.seed
    server = method.local.start(training.objective.initial())
    if training.objective.buffers.dim:
        server[BUFFERS] = read_buffers(training.objective.module, training.objective.buffers)
    memory = Memory(layout.dim, torch.float64, torch.device(device))
    made, releases = [], []
    for number in range(1, rounds + 1):
        rng = np.random.default_rng(number)
        cohort = [int(k) for k in rng.permutation(data.population)[: training.cohort]]
        held = memory.gather(cohort) if method.local.remembers else None
        ctx = Context(
            number,
            layout,
            cohort,
            [stream(seed, "noise", number, k) for k in cohort],
            server=stream(seed, "server noise", number),
            batches=[stream(seed, "batches", number, k) for k in cohort],
            previous=server[PREVIOUS][None, :] if PREVIOUS in server else None,
        )
        moves = training.engine.train(method, server, method.local.drift(held, server), ctx)
        uploads, kept = depart(method, moves, held, server, ctx)
        server = arrive(method, uploads, training.shares(cohort, moves), server, ctx).server
        if kept is not None:
            memory.store(cohort, kept)
        made.append(moves)
        releases += ctx.releases
    return Trained(training, server, made, releases)


def assert_alike(a: Trained, b: Trained, tolerance: float = 1e-12) -> None:
    """Same model, same facts of every move."""
    assert a.server.keys() == b.server.keys()
    for name in a.server:
        assert torch.allclose(a.server[name], b.server[name], rtol=0, atol=tolerance), name
    for x, y in zip(a.moves, b.moves, strict=True):
        assert torch.allclose(x.delta.value, y.delta.value, rtol=0, atol=tolerance)
        assert torch.allclose(x.loss, y.loss, rtol=0, atol=tolerance)
        assert torch.equal(x.steps, y.steps)
        assert torch.equal(x.travel, y.travel)
        assert (x.delta.released, x.delta.bound) == (y.delta.released, y.delta.bound)
        assert (x.delta.noise_var is None) == (y.delta.noise_var is None)
        if x.delta.noise_var is not None:
            here, there = (torch.as_tensor(m.delta.noise_var, dtype=torch.float64).cpu() for m in (x, y))
            assert torch.allclose(here, there)
    assert counted(a.releases) == counted(b.releases)


def counted(releases: list[Release]) -> dict[Any, int]:
    """How often each client released what."""
    out: dict[Any, int] = {}
    for r in releases:
        for client in r.clients or (None,):
            key = (client, r.round, r.mechanism, r.slot, r.channel, r.bound, r.noise_std)
            out[key] = out.get(key, 0) + r.count
    return out


def images(clients: int = 4, side: int = 8, examples: int = 9) -> Federation:
    """Small noise pictures; clients have different sizes."""
    rng = np.random.default_rng(0)
    parts = [
        (rng.normal(size=(n, 1, side, side)), rng.integers(0, 3, n)) for n in (examples + 4 * k for k in range(clients))
    ]
    return fedveil.data.from_clients(parts, test=parts[0], classes=3, holdout=0.0, name="images")


def sentences(clients: int = 4, length: int = 5, words: int = 11) -> Federation:
    """Rows of word numbers; clients have different sizes."""
    rng = np.random.default_rng(0)
    parts = [
        (rng.integers(0, words, size=(n, length)), rng.integers(0, 3, n)) for n in (9 + 4 * k for k in range(clients))
    ]
    return fedveil.data.from_clients(parts, test=parts[0], classes=3, holdout=0.0, tokens=True, name="sentences")


class Reader(nn.Module):
    """Words, each normalised and transformed, then their mean."""

    def __init__(self, words: int = 11) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(words, 6, padding_idx=0)
        self.norm = nn.LayerNorm(6)
        self.inner = nn.Linear(6, 7)
        self.head = nn.Linear(7, 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.inner(self.norm(self.words(x)))).mean(dim=1))
