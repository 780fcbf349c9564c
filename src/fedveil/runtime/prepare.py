"""From a resolved configuration to the parts of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedveil import data as data_room
from fedveil.core.errors import Refused, one_of
from fedveil.core.federation import Federation
from fedveil.core.method import Method
from fedveil.core.streams import torch_seed
from fedveil.local.engine import Engine
from fedveil.local.objective import LOSSES, Loss, Objective
from fedveil.local.sequential import Sequential
from fedveil.runtime.build import build
from fedveil.runtime.settings import Settings

COHORT = 10
SMALL = 500_000
"""Parameters below which one thread is the default."""
OWN = "own"
"""Marks a part in ``config.yaml`` that was handed in from Python and is no setting."""


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
    federation = data if data is not None else build_federation(config)
    cohort = _cohort(settings, federation)
    recipe = method if method is not None else build_method(config, settings)
    shape, classes = federation.input_shape, federation.classes
    objective = build_objective(config, settings, shape, classes, model=model, loss=loss)
    if classes and objective.loss is LOSSES["mse"]:
        raise Refused(f"loss: mse needs targets that are numbers, {federation.name} has classes; use cross_entropy")
    _refuse_leaks(settings, recipe, federation, objective)
    engine = Sequential(objective, federation, settings.batching, settings.sgd, settings.seed)
    reason = "the reference, the only tier so far" if settings.engine == "auto" else "as asked"
    return Training(config, settings, recipe, federation, objective, engine, reason, cohort)


def build_federation(config: Mapping[str, Any]) -> Federation:
    """The data that the configuration names, partitioned by the run's seed."""
    node = dict(config["data"])
    if OWN in node:
        raise Refused("data: this run's data was handed in from Python; hand it in again, as data=...")
    source = str(node.pop("source"))
    try:
        return data_room.load(source, seed=config["seed"], population=config["population"], **node)
    except Refused as refusal:
        # The data room speaks of its own settings; a person knows them as data.alpha, data.path, ...
        raise Refused(f"data.{refusal}" if str(refusal).split(":")[0] in node else str(refusal)) from None


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


def build_objective(
    config: Mapping[str, Any],
    settings: Settings,
    input_shape: tuple[int, ...],
    classes: int,
    *,
    model: nn.Module | None = None,
    loss: Loss | None = None,
) -> Objective:
    """The model for inputs and classes like these, with initial weights that belong to the run's seed."""
    if loss is None:
        if settings.loss == OWN:
            raise Refused("loss: this run's loss was handed in from Python; hand it in again, as loss=...")
        one_of("loss", settings.loss, LOSSES)
    if model is None:
        if OWN in config["model"]:
            raise Refused("model: this run's model was handed in from Python; hand it in again, as model=...")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(torch_seed(settings.seed, "initial weights"))
            given = {"input_shape": input_shape, "classes": classes}
            model = build(config["model"], "model", **given)
    if not isinstance(model, nn.Module):
        raise Refused(f"model.build: {config['model']['build']} returned {type(model).__name__}; return a Module")
    model = model.to(settings.torch_device, settings.torch_dtype)
    _try_out(model, input_shape, classes)
    objective = Objective.of(model, loss or LOSSES[settings.loss])
    if not objective.layout.dim:
        raise Refused("model: it has no trainable parameters; give a model with requires_grad parameters")
    return objective


def _try_out(module: nn.Module, input_shape: tuple[int, ...], classes: int) -> None:
    """One forward pass, so that a model that does not fit the data fails before the run and in words."""
    like = next(module.parameters(), torch.zeros(()))
    sample = torch.zeros(2, *input_shape, dtype=like.dtype, device=like.device)
    training = module.training
    module.eval()
    try:
        with torch.no_grad():
            outputs = module(sample)
    except (RuntimeError, ValueError, TypeError, IndexError) as problem:
        raise Refused(
            f"model: it does not accept inputs of shape {input_shape} "
            f"({str(problem).splitlines()[0]}); choose another model or reshape the data"
        ) from None
    finally:
        module.train(training)
    if classes and (outputs.dim() != 2 or outputs.shape[1] < classes):
        raise Refused(
            f"model: its outputs have shape {tuple(outputs.shape[1:])} per example, but the data has "
            f"{classes} classes; give one output per class"
        )


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
