"""Ours: a round as a run computes it, without evaluation, checkpoint, ledger and report."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedveil.bench.scenario import Scenario, Setting
from fedveil.core.errors import Refused
from fedveil.core.method import Method
from fedveil.core.round import Shares, arrive, depart
from fedveil.core.stage import Chain, Context
from fedveil.core.streams import stream
from fedveil.core.walk import travel
from fedveil.local.choice import Facts, choose
from fedveil.local.objective import Objective, Sgd
from fedveil.methods.dp_fedavg_local import dp_fedavg_local
from fedveil.methods.fedavg import fedavg
from fedveil.methods.scaffold import scaffold
from fedveil.privacy.noise import Gaussian
from fedveil.runtime.memory import Memory

Streams = Callable[[str, int, Sequence[int]], list[np.random.Generator]]


def recipe(scenario: Scenario) -> Method:
    """The product's method of this scenario; without noise where ``sigma`` is 0."""
    if scenario.algorithm == "fedavg":
        return fedavg()
    if scenario.algorithm == "scaffold":
        return scaffold()
    noisy = dp_fedavg_local(
        algorithm_variant=scenario.algorithm,
        clip_norm=scenario.clip_norm,
        sigma=scenario.sigma or 1.0,
        batch=scenario.batch,
        travel=travel(scenario.lr, 0.0, scenario.steps),
        steps=scenario.steps,
    )
    if scenario.sigma:
        return noisy

    def without(slot: Chain) -> Chain:
        return Chain(tuple(stage for stage in slot if not isinstance(stage, Gaussian)))

    return dataclasses.replace(noisy, on_step=without(noisy.on_step), on_delta=without(noisy.on_delta))


def seeded_streams(seed: int) -> Streams:
    """Streams that repeat, as ``privacy.rng: seeded`` has them."""
    return lambda what, number, clients: [stream(seed, what, number, k) for k in clients]


def secure_streams() -> Streams:
    """Streams that nobody can repeat, as ``privacy.rng: secure`` has them."""
    from fedveil.privacy.rng import secure_generator

    return lambda what, number, clients: [secure_generator() for _ in clients]


class Ours:
    """The engine that ``engine=auto`` picks, and both halves of a round around it."""

    def __init__(self, setting: Setting, *, engine: str = "auto", streams: Streams | None = None) -> None:
        scenario = setting.scenario
        self.setting, self.method = setting, recipe(scenario)
        self.streams = streams or seeded_streams(scenario.seed)
        self.objective = Objective.of(setting.module(), F.cross_entropy)
        facts = Facts(
            self.objective,
            setting.federation,
            setting.batching,
            Sgd(scenario.lr),
            scenario.seed,
            **with_precision(setting.precision),
        )
        self.engine, self.reason = choose(engine, facts, self.method)
        self.server = self.method.local.start(self.objective.initial())
        first = self.server["w"]
        self.memory = Memory(first.numel(), first.dtype, first.device)
        self.sizes = torch.from_numpy(setting.federation.sizes)
        self.mean_travel = travel(scenario.lr, 0.0, scenario.steps)

    def round(self, number: int, clients: list[int]) -> None:
        """Everything that makes the next model of this one."""
        method, server, cohort = self.method, self.server, self.setting.scenario.cohort
        held = self.memory.gather(clients) if method.local.remembers else None
        ctx = Context(
            number,
            self.objective.layout,
            clients,
            self.streams("noise", number, clients),
            server=self.streams("server noise", number, [0])[0],
            batches=self.streams("batches", number, clients),
        )
        moves = self.engine.train(method, server, method.local.drift(held, server), ctx)
        uploads, memory = depart(method, moves, held, server, ctx)
        sizes = self.sizes[clients]
        shares = Shares(
            method.weigh(sizes, cohort),
            moves.travel,
            method.share(sizes, self.sizes, cohort),
            self.mean_travel,
            1.0 / cohort,
        )
        self.server = arrive(method, uploads, shares, server, ctx).server
        if memory is not None:
            self.memory.store(clients, memory)
        if not torch.isfinite(self.server["w"].sum()):
            raise Refused(f"bench: {self.setting.scenario.name} diverged in round {number}; lower its lr")

    def weights(self) -> Tensor:
        """The model as one vector."""
        return self.server["w"]


def with_precision(precision: str) -> dict[str, Any]:
    """``precision`` as an argument of ``Facts``, where the engine knows it."""
    known = any(field.name == "precision" for field in dataclasses.fields(Facts))
    if not known and precision != "float32":
        raise Refused(f"precision: this engine computes in float32 only, not in {precision}; leave --precision out")
    return {"precision": precision} if known else {}
