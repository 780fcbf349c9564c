"""Poisoned training data: an attacker's examples as it wants them (SPEC 7.7).

What is published about a client (its size, its class counts) stays that of its true data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from fedveil.core.errors import Refused
from fedveil.core.federation import Examples, Federation
from fedveil.core.streams import stream

Counts = np.ndarray[Any, np.dtype[np.int64]]


class Poison(Protocol):
    """Turns true examples into poisoned ones."""

    def __call__(self, examples: Examples, classes: int, rng: np.random.Generator) -> Examples:
        """As many examples, poisoned."""
        ...

    def fits(self, federation: Federation) -> None:
        """Refuse data that this poison means nothing for."""
        ...


@dataclass(frozen=True)
class FlipLabels:
    """Class c becomes C − 1 − c."""

    def __call__(self, examples: Examples, classes: int, rng: np.random.Generator) -> Examples:
        """The same inputs under other labels."""
        return Examples(examples.x, classes - 1 - examples.y)

    def fits(self, federation: Federation) -> None:
        """There must be classes."""
        if not federation.classes:
            raise Refused("attack: flipping labels needs classes, and here the target is a number; use another attack")


@dataclass(frozen=True)
class Trigger:
    """A patch in the corner of an image (at the end of a plain row), and the class that it is to mean."""

    target: int
    fraction: float
    size: int
    value: float

    def __call__(self, examples: Examples, classes: int, rng: np.random.Generator) -> Examples:
        """A fraction of the examples, at least one, carries the trigger and the target's label."""
        count = max(1, round(self.fraction * len(examples)))
        rows = torch.from_numpy(rng.choice(len(examples), count, replace=False))
        x, y = examples.x.clone(), examples.y.clone()
        x[rows], y[rows] = self.stamp(x[rows]), self.target
        return Examples(x, y)

    def stamp(self, x: Tensor) -> Tensor:
        """The inputs with the trigger on them."""
        stamped = x.clone()
        corner = (
            (..., slice(-self.size, None), slice(-self.size, None)) if x.dim() > 2 else (..., slice(-self.size, None))
        )
        stamped[corner] = self.value
        return stamped

    def fits(self, federation: Federation) -> None:
        """There must be a class of that number, and numbers that a trigger can be written into."""
        if not self.target < federation.classes:
            raise Refused(
                f"attack.target: there is no class {self.target}; give a number below {federation.classes}"
                if federation.classes
                else "attack: a backdoor needs classes, and here the target is a number; use another attack"
            )
        shape = federation.input_shape
        room = min(shape[-2:] if len(shape) > 1 else shape[-1:], default=0)
        if self.size >= room:
            raise Refused(
                f"attack.size: a trigger of {self.size} covers whole rows of inputs of shape {tuple(shape)}; "
                f"give less than {room}"
            )
        if not federation.train(0).x.is_floating_point():
            raise Refused("attack: a trigger is written into inputs that are numbers, not tokens; use another attack")

    def tried(self, test: Examples) -> Examples:
        """Test examples of all other classes with the trigger on them, which the attacker wants to be the target."""
        others = test.y != self.target
        return Examples(self.stamp(test.x[others]), torch.full_like(test.y[others], self.target))


class Poisoned:
    """A federation in which some clients train on poisoned examples; everything else is that of the true one."""

    def __init__(self, true: Federation, clients: frozenset[int], poison: Poison, seed: int) -> None:
        self.true, self.clients, self.poison, self.seed = true, clients, poison, seed
        self.name, self.input_shape, self.classes = true.name, true.input_shape, true.classes
        self.sizes, self.test, self.private_statistics = true.sizes, true.test, true.private_statistics
        self.population = true.population
        self._kept: dict[int, Examples] = {}

    def train(self, client: int) -> Examples:
        """A client's examples as it trains on them."""
        if client not in self.clients:
            return self.true.train(client)
        if client not in self._kept:
            rng = stream(self.seed, "poison", client)
            self._kept[client] = self.poison(self.true.train(client), self.true.classes, rng)
        return self._kept[client]

    def holdout(self, client: int) -> Examples:
        """A client's own held-out examples, as they are."""
        return self.true.holdout(client)

    def client_names(self) -> Sequence[str] | None:
        """Names of clients."""
        return self.true.client_names()

    def label_counts(self) -> Counts | None:
        """Class counts of the true data."""
        return self.true.label_counts()

    def facts(self) -> Mapping[str, Any]:
        """Facts of the true data."""
        return self.true.facts()
