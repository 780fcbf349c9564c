"""From a resolved configuration to the parts of a run."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedveil import data as data_room
from fedveil.core.errors import Refused
from fedveil.core.federation import Federation
from fedveil.core.method import Method
from fedveil.local.engine import Engine
from fedveil.local.objective import Loss, Objective
from fedveil.local.sequential import Sequential
from fedveil.runtime.build import build
from fedveil.runtime.model import OWN, Task, build_objective
from fedveil.runtime.settings import Settings

COHORT = 10
SMALL = 500_000
"""Parameters below which one thread is the default."""


@dataclass(frozen=True, eq=False)
class Training:
    """Everything a runtime needs; built once, never changed."""

    config: Mapping[str, Any]
    settings: Settings
    method: Method
    federation: Federation
    objective: Objective
    engine: Engine
    engine_reason: str
    cohort: int

    @cached_property
    def sizes(self) -> Tensor:
        """Training examples of every client."""
        return torch.tensor(self.federation.sizes)

    @cached_property
    def initial_digest(self) -> str:
        """A digest of the weights that training starts from."""
        return hashlib.blake2b(self.objective.initial().cpu().numpy().tobytes(), digest_size=16).hexdigest()

    @property
    def threads(self) -> int:
        """Torch threads: what was asked for, or one for a small model.

        Small models gain little from a second thread, and where something else keeps a core busy the threads
        wait for each other: measured, a 20 k CNN step took 2.6 ms with one thread and 300 ms with two.
        """
        if self.settings.threads is not None:
            return self.settings.threads
        return 1 if self.objective.layout.dim < SMALL else torch.get_num_threads()

    @property
    def opening(self) -> list[str]:
        """What a person should know before the first round."""
        f, s = self.federation, self.settings
        sizes = f.sizes
        return [
            f"{self.method.name} on {f.name}: {f.population} clients with {sizes.min()} to {sizes.max()} examples, "
            f"{self.cohort} per round ({s.selection}), {s.rounds} rounds",
            f"{s.batching.describe(sizes)}; model of {self.objective.layout.dim:,} parameters; "
            f"engine {self.engine.name} ({self.engine_reason})",
        ]


def prepare(
    config: Mapping[str, Any],
    *,
    method: Method | None = None,
    model: nn.Module | None = None,
    data: Federation | None = None,
    loss: Loss | None = None,
) -> Training:
    """Build the parts that the configuration names, except those that are handed in ready-made."""
    settings = Settings.read(config)
    _check_kinds(method, data)
    if config.get("cwd") and config["cwd"] not in sys.path:
        sys.path.append(config["cwd"])  # import paths were written for the folder where the run began
    federation = data if data is not None else build_federation(config)
    cohort = _cohort(settings, federation)
    recipe = method if method is not None else build_method(config, settings)
    objective = build_objective(config, settings, Task.of(federation), model=model, loss=loss)
    if settings.stop.accuracy is not None and not federation.classes:
        raise Refused("stop.accuracy: there is no accuracy where the target is a number; use stop.patience")
    _refuse_leaks(settings, recipe, federation, objective)
    engine = Sequential(objective, federation, settings.batching, settings.sgd, settings.seed)
    reason = "the reference, the only tier so far" if settings.engine == "auto" else "as asked"
    return Training(config, settings, recipe, federation, objective, engine, reason, cohort)


def build_federation(config: Mapping[str, Any]) -> Federation:
    """The data that the configuration names, partitioned by the run's seed."""
    node = dict(config["data"])
    if OWN in node:
        raise Refused("data: this run's data was handed in from Python; hand it in again, as data=...")
    source = str(node.pop("source", None))
    try:
        return data_room.load(source, seed=config["seed"], population=config["population"], **node)
    except Refused as refusal:
        # The data room speaks of its own settings; a person knows them as data.alpha, data.path, ...
        raise Refused(f"data.{refusal}" if str(refusal).split(":")[0] in node else str(refusal)) from None


def _check_kinds(method: object, data: object) -> None:
    if method is not None and not isinstance(method, Method):
        raise Refused(f"method: {method!r} is not a Method; hand in what a recipe returns, or a name")
    if data is not None and not all(hasattr(data, name) for name in ("train", "holdout", "sizes", "test")):
        raise Refused(
            f"data: a {type(data).__name__} is not a federation; make one with fedveil.data.from_arrays or from_clients"
        )


def _cohort(settings: Settings, federation: Federation) -> int:
    population = federation.population
    if settings.population is not None and settings.population != population:
        raise Refused(f"population: {settings.population} was asked for, but the data has {population} clients")
    cohort = min(COHORT, population) if settings.cohort is None else settings.cohort
    if cohort > population:
        raise Refused(
            f"cohort: {cohort} clients per round are more than the population of {population}; "
            f"give at most {population}"
        )
    if int(federation.sizes.min()) < 1:
        empty = int(np.argmin(federation.sizes))
        raise Refused(f"data.min_samples: client {empty} has no training examples; set data.min_samples=1 or more")
    return cohort


def build_method(config: Mapping[str, Any], settings: Settings) -> Method:
    """The recipe that the configuration names, with its parts."""
    if OWN in config["method"]:
        raise Refused("method: this run's method was handed in from Python; hand it in again, as method=...")
    recipe = build(
        config["method"],
        "method",
        transport=build(config["transport"], "transport"),
        aggregate=build(config["aggregate"], "aggregate"),
        server_lr=settings.server_lr,
        server_momentum=settings.server_momentum,
        batch=settings.batch,
    )
    if not isinstance(recipe, Method):
        raise Refused(f"method.build: {config['method']['build']} returned {type(recipe).__name__}; return a Method")
    return recipe


def _refuse_leaks(settings: Settings, method: Method, federation: Federation, objective: Objective) -> None:
    if not method.private:
        if settings.privacy.epsilon is not None:
            raise Refused(
                f"privacy.epsilon: {method.name} has no privacy mechanism, so that no budget can hold; "
                "choose a private method, or leave the budget out"
            )
        return
    if objective.buffers.dim:
        raise Refused(
            f"model: {objective.buffers.names[0]} is a running statistic of the clients' data, which {method.name} "
            "does not protect; replace BatchNorm by GroupNorm"
        )
    if federation.private_statistics:
        raise Refused(
            f"data.scaling: {federation.private_statistics}, which {method.name} does not protect; "
            "scale by public bounds"
        )
    if settings.privacy.adjacency == "add_remove" and method.local_privacy:
        raise Refused(
            "privacy.adjacency: under add_remove a unit's presence is secret, but the server sees who takes part; "
            "use zero_out or replace"
        )
    if method.on_step.per_sample is not None:
        raise Refused(f"method: {method.name} looks at single examples, which this engine does not do yet")
    if settings.selection == "poisson" and not method.local_privacy:
        raise Refused(
            f"selection: under poisson the number of clients is not fixed, but {method.name} adds noise to a mean over "
            "those who came; use selection=fixed"
        )
    if settings.stop.wanted and not settings.stop.public_test:
        raise Refused(
            "stop: stopping early on the test set reveals something about it; set stop.public_test=true if that "
            "set is public, or leave stop.patience and stop.accuracy out"
        )
