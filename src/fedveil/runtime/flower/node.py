"""What a node does: build its half of the run, train when it is told to, and remember (DESIGN 1)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import orjson
import torch
from flwr.app import Context
from torch import Tensor

from fedveil.core.errors import Refused
from fedveil.core.parts import ANNOUNCED, MOVE, Moves, State, Uploads
from fedveil.core.round import PREVIOUS, depart
from fedveil.core.stage import Context as Stance
from fedveil.core.stage import Release
from fedveil.privacy.noise import PerClient
from fedveil.runtime.accounting import client_streams
from fedveil.runtime.flower.budget import charge
from fedveil.runtime.flower.keeping import recall
from fedveil.runtime.flower.messages import Made, Order
from fedveil.runtime.flower.sites import Sites, at_node, nothing, own_data, task_of
from fedveil.runtime.planning import remembered
from fedveil.runtime.prepare import Training, prepare

PUBLIC = "public"
"""The name under which the public part of a move travels, where the server asks for it."""
NOBODY = -1
"""The client that a party without examples is."""
UPPER = ".upper"
"""Behind the name of a channel whose values are one of two: one bit for each travels."""


def pack_settings(training: Training, state: Path | None = None) -> bytes:
    """What a node must know to build the same run; ``state`` is where nodes of a simulation keep what they remember."""
    sigma, data = training.sigma, training.federation
    noise = list(sigma.values) if isinstance(sigma, PerClient) else sigma
    task = task_of(data) if isinstance(data, Sites) else None
    return orjson.dumps({"config": dict(training.config), "noise": noise, "task": task, "state": state and str(state)})


def place_of(settings: bytes, context: Context) -> Path | None:
    """Where a node keeps what must outlive its process: a folder that its own config names, one for each run.

    The server names folders in a simulation alone, where nodes share its data set and its machine.
    """
    found = orjson.loads(settings)
    own, number = context.node_config.get("state"), found["config"]["runtime"].get("id")
    if own is not None and number is not None and str(number).isalnum():
        return Path(str(own)) / str(number)
    return Path(found["state"]) if found["task"] is None and found["state"] else None


def run_of(settings: bytes, client: int, path: str | None) -> Training:
    """The run with these settings, built once in a process; for all clients where they share a known data set."""
    if orjson.loads(settings)["task"] is not None:
        return _built(settings, client, path)
    if path is not None:
        raise Refused("this site has data of its own, and the order is for a run on a shared data set")
    return _built(settings)


def run_of_party(settings: bytes) -> Training:
    """The same run at a party that has no examples."""
    return _built(settings, NOBODY) if orjson.loads(settings)["task"] is not None else _built(settings)


@lru_cache(maxsize=2)
def _built(settings: bytes, client: int | None = None, path: str | None = None) -> Training:
    found = orjson.loads(settings)
    noise, config, task = found["noise"], found["config"], found["task"]
    config["threads"] = max(1, int(config["runtime"].get("cpus") or 1))
    data = None
    if task is not None and client is not None:
        data = at_node(task, client, nothing(task) if client == NOBODY else own_data(config, client, path))
    return prepare(config, data=data, calibrated=PerClient(tuple(noise)) if isinstance(noise, list) else noise)


@dataclass(frozen=True, eq=False)
class Outcome:
    """What local training left: the upload, what was released, and what the client is to remember."""

    uploads: Uploads
    moves: Moves
    ctx: Stance
    memory: Tensor | None
    forgot: bool


def train(training: Training, order: Order, server: State, context: Context) -> Outcome:
    """One client's half of a round, as a run in process has it."""
    method, client = training.method, order.client
    between_sites = isinstance(training.federation, Sites)
    if between_sites and method.private and training.settings.privacy.rng != "secure":
        raise Refused("noise from a seed that the server knows protects nothing; set privacy.rng=secure")
    charged = charge(training, order, server, context)
    held, forgot = None, False
    if method.local.remembers:
        found = recall(context, order, place_of(order.settings, context))
        forgot = found is None and order.remembered > 0
        held = torch.zeros(1, training.objective.layout.dim, dtype=server["w"].dtype) if found is None else found
    ctx = Stance(
        order.round,
        training.objective.layout,
        [client],
        client_streams(training, "noise", order.round, [client]),
        memory=remembered(server),
        batches=client_streams(training, "batches", order.round, [client]),
        previous=server[PREVIOUS][None, :] if PREVIOUS in server else None,
        weights=server["w"],
        lenient=True,
        announced={n.removeprefix(ANNOUNCED): float(v) for n, v in server.items() if n.startswith(ANNOUNCED)},
        cohort=order.cohort,
    )
    with _quietly(training):
        moves = training.engine.train(method, server, method.local.drift(held, server), ctx)
        uploads, memory = depart(method, moves, held, server, ctx)
    if charged is not None and kinds(ctx.releases) != kinds(line.release for line in charged):
        raise Refused("this site has a budget, and the method released what was not charged")
    return Outcome(uploads, moves, ctx, memory, forgot)


@contextmanager
def _quietly(training: Training) -> Iterator[None]:
    """With the run's number of threads, and without drawing from anybody's stream."""
    before = torch.get_num_threads()
    with torch.random.fork_rng(devices=[]):
        torch.set_num_threads(training.threads)
        try:
            yield
        finally:
            torch.set_num_threads(before)


def tensors_of(uploads: Uploads) -> dict[str, Tensor]:
    """An upload as it travels by itself."""
    out: dict[str, Tensor] = {}
    for name, signal in uploads.items():
        if signal.levels is None:
            out[name] = signal.value[0]
        else:
            out[name + UPPER] = (signal.value == signal.levels[1])[0]
    public = uploads[MOVE].public
    if isinstance(public, Tensor):
        out[PUBLIC] = public.reshape(-1).to(uploads[MOVE].value)
    return out


def kinds(releases: Iterable[Release]) -> Counter[tuple[str, str, str, str, str]]:
    """How often each kind of release was made, per client."""
    found: Counter[tuple[str, str, str, str, str]] = Counter()
    for release in releases:
        ratio = f"{release.noise_std / release.bound:.9g}"
        found[release.unit, release.mechanism, ratio, release.slot, release.channel] += release.count
    return found


def made(releases: Iterable[Release]) -> tuple[Made, ...]:
    """The same as a message tells it."""
    return tuple((*kind, count) for kind, count in sorted(kinds(releases).items()))
