"""What happened, apart from what it costs: the events that accountants charge (SPEC 0, 4).

An event is one mechanism, applied ``count`` times with the sampling that really ran. ``multiplier`` is the noise
divided by the sensitivity *of removing or zeroing one unit*; under ``replace`` the accountants double the
sensitivity themselves, so the same number is given there. Batches that are shuffled once per epoch get no
amplification: ``sampling=None`` and one count per epoch (Chua et al. 2024).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from fedveil.core.errors import Refused, one_of, positive
from fedveil.core.stage import Release

Mechanism = Literal["gaussian", "laplace", "discrete_gaussian", "skellam", "pure"]
Adjacency = Literal["zero_out", "add_remove", "replace"]
LEAST = 1e-5
"""Multipliers below this are refused: their epsilon is beyond 10^9."""
ACCOUNTANT_NAMES = ("rdp", "pld", "moments", "basic", "advanced", "optimal")
"""Named here, so that a run without a mechanism need not load the accountants."""
MECHANISMS = ("gaussian", "laplace", "discrete_gaussian", "skellam", "pure")
ADJACENCIES = ("zero_out", "add_remove", "replace")

SKELLAM_STEPS = 2.0**10
"""The ``skellam`` stage always has at least this many grid steps in one standard deviation of its noise."""


@dataclass(frozen=True)
class Poisson:
    """Each unit takes part independently with probability ``rate``."""

    rate: float

    def __post_init__(self) -> None:
        if not 0 < self.rate <= 1:
            raise Refused(f"sampling: a rate of {self.rate} is outside (0, 1]; give the share that takes part")


@dataclass(frozen=True)
class WithoutReplacement:
    """Exactly ``size`` of ``population`` units take part, all subsets being equally likely."""

    size: int
    population: int

    def __post_init__(self) -> None:
        if not 0 < self.size <= self.population:
            raise Refused(
                f"sampling: {self.size} of {self.population} cannot be drawn; give a size from 1 to the population"
            )

    @property
    def rate(self) -> float:
        """Share of units that take part."""
        return self.size / self.population


Sampling = Poisson | WithoutReplacement | None


@dataclass(frozen=True)
class Event:
    """One line for an accountant.

    multiplier
        standard deviation / l2 sensitivity (gaussian, discrete_gaussian, skellam); scale / l1 sensitivity
        (laplace); 1/ε (pure: any mechanism that is ε-differentially private for this event's own adjacency, such as
        LDP-FL's two-point one under ``replace``; without replacement: for ``replace``).
    grid_std
        skellam only: the noise's standard deviation in grid steps.
    dim
        skellam only: length of the vector; tightens Δ₁ = Δ₂·min(√d, Δ₂), never needed.

    >>> Event("gaussian", multiplier=1.1, sampling=Poisson(0.01), count=1000).sampling.rate
    0.01
    """

    mechanism: Mechanism
    multiplier: float
    sampling: Sampling = None
    count: int = 1
    adjacency: Adjacency = "zero_out"
    grid_std: float | None = None
    dim: int | None = None

    def __post_init__(self) -> None:
        one_of("mechanism", self.mechanism, MECHANISMS)
        one_of("adjacency", self.adjacency, ADJACENCIES)
        if not (math.isfinite(self.multiplier) and self.multiplier > 0):
            raise Refused(f"noise multiplier: {self.multiplier} gives no privacy; give a finite number above 0")
        if self.multiplier < LEAST:
            raise Refused(f"noise multiplier: {self.multiplier:g} protects nothing; give at least {LEAST:g}")
        if self.count < 0 or self.count != int(self.count):
            raise Refused(f"count: {self.count} is not a number of releases; give a whole number, 0 or above")
        if self.mechanism == "skellam":
            if self.grid_std is None:
                raise Refused("skellam: the grid is unknown; give grid_std, the noise in grid steps")
            positive(grid_std=self.grid_std)
        if self.sampling is not None and self.sampling.rate == 1:
            object.__setattr__(self, "sampling", None)  # everybody takes part: nothing is drawn
        if isinstance(self.sampling, WithoutReplacement) and self.adjacency == "add_remove":
            raise Refused(
                "sampling: drawing without replacement keeps the size public, which add_remove does not; "
                "use adjacency zero_out or replace, or Poisson sampling"
            )

    @property
    def rate(self) -> float:
        """Share of units that take part: 1 when nothing is sampled."""
        return 1.0 if self.sampling is None else self.sampling.rate

    @property
    def doubled(self) -> bool:
        """Whether the accountants must take twice the sensitivity (SPEC 4).

        Drawing without replacement always does: the unit that is missing makes room for another one.
        """
        if self.mechanism == "pure":
            return False
        return self.adjacency == "replace" or isinstance(self.sampling, WithoutReplacement)

    @property
    def effective(self) -> float:
        """The multiplier that holds for this event's neighbours."""
        return self.multiplier / 2 if self.doubled else self.multiplier

    @property
    def one(self) -> Event:
        """The same event, once."""
        return self if self.count == 1 else replace(self, count=1)


def tally(events: Event | Iterable[Event] | Mapping[Event, int]) -> dict[Event, int]:
    """How often each kind of event happened; the order of a composition never matters to an accountant.

    >>> list(tally([Event("gaussian", 1.0, count=2), Event("gaussian", 1.0)]).values())
    [3]
    """
    if isinstance(events, Event):
        events = [events]
    pairs = events.items() if isinstance(events, Mapping) else ((e, 1) for e in events)
    counts: dict[Event, int] = {}
    for event, times in pairs:
        if event.count * times:
            counts[event.one] = counts.get(event.one, 0) + event.count * times
    return counts


def joint(events: Iterable[Event]) -> Event:
    """Gaussian releases about the *same* sample, as the one release they amount to.

    Two channels of one round share their sample, so they must be joined before sampling amplifies them (composing
    two separately sampled events would claim too little): 1/z² = Σ 1/z_i² (Andrew et al. 2021, theorem 1).

    >>> joint([Event("gaussian", 2.0, Poisson(0.1)), Event("gaussian", 2.0, Poisson(0.1))]).multiplier
    1.4142135623730951
    """
    parts = list(events)
    first = parts[0].one
    for part in parts:
        same = (part.mechanism, part.sampling, part.adjacency) == ("gaussian", first.sampling, first.adjacency)
        if not same:
            raise Refused(
                "joint: only Gaussian releases with one sampling and one adjacency join; charge others separately"
            )
    return replace(first, multiplier=sum(e.count / e.multiplier**2 for e in parts) ** -0.5)


def event_of(release: Release, sampling: Sampling = None, adjacency: Adjacency = "zero_out") -> Event:
    """A ledger line as an event: multiplier = noise std / enforced sensitivity, as the noise stages wrote them.

    ``laplace`` lines carry the l1 sensitivity and a standard deviation of √2 times the scale. A line with an ε of its
    own holds for any two inputs, so that adjacency does not matter and nothing is doubled.
    """
    if release.epsilon is not None:
        return Event("pure", 1 / release.epsilon, None, release.count, "replace")
    if release.mechanism not in MECHANISMS or release.mechanism == "pure":
        raise Refused(f"release: {release.mechanism!r} is no noise mechanism of this room; build its Event yourself")
    multiplier = release.noise_std / release.bound
    if release.mechanism == "laplace":
        multiplier /= math.sqrt(2)
    skellam, pool = release.mechanism == "skellam", release.pool
    return Event(
        release.mechanism,  # type: ignore[arg-type]
        multiplier,
        sampling,
        release.count,
        adjacency,
        grid_std=(SKELLAM_STEPS if pool is None else pool.steps) if skellam else None,
        dim=pool.dim if skellam and pool is not None else None,
    )
