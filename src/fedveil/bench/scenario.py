"""What is measured: a model, an algorithm and a cohort; and everything that all contenders share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fedveil.bench.people import People
from fedveil.core.federation import Federation
from fedveil.core.streams import stream, torch_seed
from fedveil.core.walk import travel
from fedveil.data.cohorts import draw
from fedveil.local import models
from fedveil.local.batches import Batching, Indices

Algorithm = Literal["fedavg", "scaffold", "step_noise", "last_noise"]
ALGORITHMS: tuple[Algorithm, ...] = ("fedavg", "scaffold", "step_noise", "last_noise")
PRIVATE: tuple[Algorithm, ...] = ("step_noise", "last_noise")
"""Algorithms that clip single examples: noise in every step, or once on the move."""

MODELS: dict[str, Callable[[tuple[int, ...], int], nn.Module]] = {
    "mlp": models.mlp,
    "cnn": models.cnn,
    "cnn_large": models.cnn_large,
}


@dataclass(frozen=True)
class Scenario:
    """One row of the benchmark; ``sigma=0`` leaves the noise out, to compare weights.

    >>> Scenario("mlp", "fedavg").name, Scenario("mlp", "fedavg").steps
    ('mlp/fedavg/10', 19)
    """

    model: str
    algorithm: Algorithm
    cohort: int = 10
    population: int = 100
    samples: int = 600
    batch: int = 32
    lr: float = 0.1
    clip_norm: float = 1.0
    sigma: float = 1.0
    seed: int = 0
    data: Literal["images", "synthetic"] = "images"

    @property
    def name(self) -> str:
        """Model, algorithm, cohort."""
        return f"{self.model}/{self.algorithm}/{self.cohort}"

    @property
    def private(self) -> bool:
        """Whether single examples are clipped."""
        return self.algorithm in PRIVATE

    @property
    def batching(self) -> Batching:
        """One epoch; Poisson batches where examples are protected, as a run draws them."""
        return Batching(self.batch, None, 1, "poisson" if self.private else "shuffled")

    @property
    def steps(self) -> int:
        """Local steps of a client."""
        return self.batching.steps_for(self.samples)

    @property
    def move_norm(self) -> float:
        """The longest possible move of clipped steps, which ``last_noise`` is calibrated to."""
        return travel(self.lr, 0.0, self.steps) * self.clip_norm

    @property
    def examples(self) -> int:
        """Examples that a round looks at (in a mean, where batches are Poisson)."""
        return self.cohort * self.samples

    def quiet_and_small(self) -> Scenario:
        """The same without noise and with few examples, for the comparison of weights."""
        return replace(self, sigma=0.0, cohort=3, population=4, samples=70)

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


class Setting:
    """What all contenders of a scenario share: clients, first weights, cohorts, and the order of examples."""

    def __init__(
        self, scenario: Scenario, device: str = "cpu", dtype: torch.dtype = torch.float32, precision: str = "float32"
    ) -> None:
        self.scenario, self.device, self.dtype, self.precision = scenario, torch.device(device), dtype, precision
        self.batching = scenario.batching

    @cached_property
    def federation(self) -> Federation:
        """The clients."""
        scenario = self.scenario
        if scenario.data == "images":
            return People(population=scenario.population, samples=scenario.samples, seed=scenario.seed)
        from fedveil.data import load

        return load("synthetic", seed=scenario.seed, population=scenario.population, samples=scenario.samples)

    def module(self) -> nn.Module:
        """A fresh model with the scenario's first weights."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(torch_seed(self.scenario.seed, "initial weights"))
            made = MODELS[self.scenario.model](self.federation.input_shape, self.federation.classes)
        return made.to(self.device, self.dtype)

    def clients(self, number: int) -> list[int]:
        """Who takes part in this round."""
        scenario = self.scenario
        return [int(k) for k in draw(scenario.seed, number, scenario.population, scenario.cohort)]

    def batches(self, number: int, client: int) -> tuple[Indices, Indices]:
        """The order of a client's examples in this round, and where its batches end."""
        examples = int(self.federation.sizes[client])
        return self.batching.batches(examples, stream(self.scenario.seed, "batches", number, client))

    @cached_property
    def _placed(self) -> dict[int, tuple[Tensor, Tensor]]:
        return {}

    def examples(self, client: int) -> tuple[Tensor, Tensor]:
        """A client's examples on the device, kept there."""
        if client not in self._placed:
            data = self.federation.train(client)
            self._placed[client] = (data.x.to(self.device, self.dtype), data.y.to(self.device))
        return self._placed[client]

    def visits(self, number: int, client: int) -> list[tuple[Tensor, Tensor]]:
        """A client's batches of this round, in order."""
        order, ends = self.batches(number, client)
        x, y = self.examples(client)
        index = torch.from_numpy(order).to(self.device)
        x, y = x.index_select(0, index), y.index_select(0, index)
        sizes = [int(end) - int(start) for start, end in zip([0, *ends[:-1]], ends, strict=True)]
        return list(zip(torch.split(x, sizes), torch.split(y, sizes), strict=True))

    def finish(self) -> None:
        """Wait until the device has done what it was asked for."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
