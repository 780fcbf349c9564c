"""How suspicious a round looks: detectors that turn its uploads into one score (SPEC 7.3).

A detector measures a round, and scores what it measured, the most recent calm rounds lying beside it where it compares
with them. A score above a threshold is an alarm. Measured: ``docs/results/robust.md``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from fedveil.aggregate.evidence import Sums, entropy, from_opened, nearest, sums
from fedveil.core.errors import one_of
from fedveil.core.parts import Opened

SPREAD = 1.4826
"""A normal deviation in median absolute deviations."""
FLOORS = (0.01, 0.05, 0.01, 0.01)
"""The least scale against which a change of D2, ln S, M/(nE) and the pooled cosine counts."""
LOUD = 1e9
"""The score of a round that cannot be measured."""
GUARDS = ((10, 0.5), (20, 0.3))
"""D2 above which a round of so many clients is alarming whatever came before; the last also holds beyond."""


@dataclass(frozen=True)
class Measured:
    """What a detector saw in a round: the numbers that it compares, by name, and whether the guard fell."""

    values: dict[str, float]
    guarded: bool = False

    def tensor(self) -> Tensor:
        """The numbers, in order."""
        return torch.tensor(list(self.values.values()), dtype=torch.float64)


class Detector(Protocol):
    """One way to look at a round."""

    name: ClassVar[str]
    features: ClassVar[tuple[str, ...]]
    compares: ClassVar[bool]
    """Whether a score needs calm rounds to compare with."""
    reads: ClassVar[frozenset[str]]
    """Names of the opened numbers that are enough for it; none: it must see the uploads."""

    def measure(self, x: Tensor, previous: Tensor | None) -> Measured:
        """Look at ``(clients, dim)`` uploads, and at the update of the last round."""
        ...

    def read(self, opened: Opened, clients: int) -> Measured:
        """The same from opened numbers about so many uploads."""
        ...

    def score(self, measured: Measured, calm: Tensor) -> float:
        """High is suspicious; ``calm`` (rounds, features) was measured in earlier rounds."""
        ...

    def start(self, momentum: float) -> tuple[float, float] | None:
        """Thresholds until a calibration phase has ended; None where nobody knows any."""
        ...


@dataclass(frozen=True)
class Calibrated:
    """The largest robust z of D2, ln S, M/(nE) and the pooled cosine, all made of five sums.

    z = |x − median|/max(1.4826·MAD, floor) over the calm rounds.
    """

    name: ClassVar[str] = "calibrated"
    features: ClassVar[tuple[str, ...]] = ("D2", "ln S", "M/(nE)", "cosine")
    compares: ClassVar[bool] = True
    reads: ClassVar[frozenset[str]] = frozenset({"E", "M", "Q", "A", "R"})

    def measure(self, x: Tensor, previous: Tensor | None) -> Measured:
        """Where the uploads agree S is below the grid, and D2 and ln S say nothing: calm."""
        return self._measured(sums(x, previous)[0])

    def read(self, opened: Opened, clients: int) -> Measured:
        """From E, M, Q, A and R."""
        return self._measured(from_opened(opened, clients))

    def _measured(self, found: Sums) -> Measured:
        values = (found.concentration, found.size, found.coherence, found.direction)
        return Measured(dict(zip(self.features, values, strict=True)), found.concentration > guard(found.n))

    def score(self, measured: Measured, calm: Tensor) -> float:
        """0 where uploads agree; numbers that were not there in calm rounds are left out of the comparison.

        What cannot be measured, since it is beyond all numbers, is no calm.
        """
        now = measured.tensor()
        if measured.values["ln S"] == -math.inf:
            return 0.0
        if not bool(torch.isfinite(now).all()):
            return LOUD
        known = calm[torch.isfinite(calm).all(dim=1)]
        if not len(known):
            return 0.0
        middle = known.quantile(0.5, dim=0)
        deviation = SPREAD * (known - middle).abs().quantile(0.5, dim=0)
        scale = torch.maximum(deviation, torch.tensor(FLOORS, dtype=torch.float64))
        return float(((now - middle).abs() / scale).max())

    def start(self, momentum: float) -> tuple[float, float]:
        """The 95 and 99 % points of clean runs on Fashion-MNIST, with and without momentum at the clients."""
        return (3.7, 4.3) if momentum >= 0.5 else (4.9, 6.4)


@dataclass(frozen=True)
class Source:
    """H as published, where low counts as calm. It is backwards: clean uploads have the highest H there is."""

    name: ClassVar[str] = "source"
    features: ClassVar[tuple[str, ...]] = ("H/ln n",)
    compares: ClassVar[bool] = False
    reads: ClassVar[frozenset[str]] = frozenset({"S", "H"})

    def measure(self, x: Tensor, previous: Tensor | None) -> Measured:
        """H as a share of its largest value ln n; 1 where uploads agree, and for one upload."""
        return Measured({"H/ln n": _share_of_entropy(x)})

    def read(self, opened: Opened, clients: int) -> Measured:
        """From H, which is ln n where S is below the grid."""
        return Measured({"H/ln n": _opened_share(opened, clients)})

    def score(self, measured: Measured, calm: Tensor) -> float:
        """The share itself."""
        return measured.values["H/ln n"]

    def start(self, momentum: float) -> None:
        """The source gives none."""


@dataclass(frozen=True)
class Deficit:
    """ln n − H, the entropy turned round: a few far outliers raise it, half of the clients at one place do not."""

    name: ClassVar[str] = "deficit"
    features: ClassVar[tuple[str, ...]] = ("ln n - H",)
    compares: ClassVar[bool] = False
    reads: ClassVar[frozenset[str]] = frozenset({"S", "H"})

    def measure(self, x: Tensor, previous: Tensor | None) -> Measured:
        """0 where all deviate alike."""
        return self._measured(_share_of_entropy(x), len(x))

    def read(self, opened: Opened, clients: int) -> Measured:
        """From H."""
        return self._measured(_opened_share(opened, clients), clients)

    @staticmethod
    def _measured(share: float, clients: int) -> Measured:
        return Measured({"ln n - H": (1.0 - share) * math.log(max(clients, 2))})

    def score(self, measured: Measured, calm: Tensor) -> float:
        """The deficit itself."""
        return measured.values["ln n - H"]

    def start(self, momentum: float) -> None:
        """It depends on how different the clients are."""


@dataclass(frozen=True)
class Neighbour:
    """1 − least / mean distance of two uploads: colluders who send copies have it at 1."""

    name: ClassVar[str] = "neighbour"
    features: ClassVar[tuple[str, ...]] = ("least/mean distance",)
    compares: ClassVar[bool] = False
    reads: ClassVar[frozenset[str]] = frozenset()

    def measure(self, x: Tensor, previous: Tensor | None) -> Measured:
        """The ratio; 1 where all uploads agree."""
        return Measured({"least/mean distance": nearest(x)})

    def read(self, opened: Opened, clients: int) -> Measured:
        """It needs the distances themselves."""
        raise TypeError("the nearest neighbour is not among what is opened")

    def score(self, measured: Measured, calm: Tensor) -> float:
        """Low ratios are suspicious."""
        return 1.0 - measured.values["least/mean distance"]

    def start(self, momentum: float) -> None:
        """It depends on how different the clients are."""


DETECTORS: dict[str, Detector] = {d.name: d for d in (Calibrated(), Source(), Deficit(), Neighbour())}


def detector(name: str) -> Detector:
    """The detector of this name."""
    one_of("aggregate.detector", name, DETECTORS)
    return DETECTORS[name]


def guard(clients: int) -> float:
    """The D2 that is alarming by itself; between the two sizes that were measured on the line in 1/n.

    >>> guard(10), guard(20), guard(1000)
    (0.5, 0.3, 0.3)
    """
    (few, high), (many, low) = GUARDS
    if clients >= many:
        return low
    if clients <= few:
        return high
    part = (1 / clients - 1 / many) / (1 / few - 1 / many)
    return low + part * (high - low)


def _share_of_entropy(x: Tensor) -> float:
    found, deviations = sums(x)
    if found.agree or found.n < 2:
        return 1.0
    share = entropy(deviations) / math.log(found.n)
    return share if math.isfinite(share) else 0.0  # beyond all numbers: as one upload far from all others


def _opened_share(opened: Opened, clients: int) -> float:
    """S may be hidden; without it a round in which nothing is spread cannot be told from one upload that is."""
    return 1.0 if clients < 2 or not opened.get("S", 1.0) > 0 else opened["H"] / math.log(clients)
