"""What is done to uploads before a rule: nearest-neighbour mixing, bucketing, a bound on norms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from fedveil.aggregate.columns import matrix, mix
from fedveil.aggregate.distances import squared_distances
from fedveil.aggregate.norms import clip_norms
from fedveil.aggregate.rule import Rule, check_byzantine, check_enough, mean_public, noiseless
from fedveil.core.errors import Aborted, Refused, one_of, positive
from fedveil.core.parts import Aggregator, View
from fedveil.core.signal import Signal


def nearest_neighbour_mixing(x: Tensor, byzantine: int) -> Tensor:
    """Every upload becomes the mean of the n − f nearest to it, itself among them (Allouah et al. 2023); n ≥ 2f + 1."""
    x = matrix("nnm", x)
    check_enough("nnm", len(x), byzantine, 2 * byzantine + 1)
    nearest = squared_distances("nnm", x).fill_diagonal_(-1.0).topk(len(x) - byzantine, dim=1, largest=False).indices
    shares = torch.zeros(len(x), len(x), dtype=torch.float64, device=x.device)
    return mix(shares.scatter_(1, nearest, 1 / nearest.shape[1]), x)


def bucketing(x: Tensor, bucket: int, order: Tensor) -> Tensor:
    """Means of ``bucket`` uploads each, in this ``order`` (Karimireddy et al. 2022); the last one may be of fewer."""
    x = matrix("bucketing", x)
    return mix(_buckets(len(x), bucket, order).to(x.device), x)


def _buckets(rows: int, bucket: int, order: Tensor) -> Tensor:
    """Shares ``(buckets, rows)``."""
    place = torch.arange(rows) // bucket
    shares = torch.zeros(int(place[-1]) + 1, rows, dtype=torch.float64)
    shares[place, order] = 1.0
    return shares / shares.sum(dim=1, keepdim=True)


class Part(Protocol):
    """A step before the rule: rows to rows, none longer than the longest was."""

    @property
    def weighted(self) -> bool:
        """Whether the clients' weights still belong to the rows afterwards."""
        ...

    def least(self, rows: int) -> int:
        """The fewest uploads from which so many rows come."""
        ...

    def __call__(self, uploads: Signal) -> Signal:
        """The rows for the rule."""
        ...


@dataclass(frozen=True)
class NearestNeighbourMixing:
    """Every upload becomes the mean of the n − f nearest to it."""

    name: ClassVar[str] = "nnm"
    byzantine: int

    def __post_init__(self) -> None:
        check_byzantine(self.name, self.byzantine)

    @property
    def weighted(self) -> bool:
        """No."""
        return False

    def least(self, rows: int) -> int:
        """As many rows come out as go in."""
        return max(rows, 2 * self.byzantine + 1)

    def __call__(self, uploads: Signal) -> Signal:
        """One client may change every row, by any amount."""
        value = nearest_neighbour_mixing(uploads.value, self.byzantine)
        return _mixed(uploads, value).unbounded()


@dataclass(frozen=True)
class Bucketing:
    """Means of ``bucket`` uploads each, shuffled anew in every round by the server's stream."""

    name: ClassVar[str] = "bucketing"
    bucket: int = 2
    key: int | None = None
    """What this round's order is drawn by; None keeps the clients' own order."""

    def __post_init__(self) -> None:
        if self.bucket < 1:
            raise Refused(f"aggregate.bucket: {self.bucket} uploads make no bucket; give 1 or more")

    @property
    def weighted(self) -> bool:
        """No."""
        return False

    def least(self, rows: int) -> int:
        """All buckets but one are full."""
        return (rows - 1) * self.bucket + 1

    def __call__(self, uploads: Signal) -> Signal:
        """A client is in one bucket, which moves by bound/size."""
        order = np.arange(uploads.rows)
        if self.key is not None:
            order = np.random.Generator(np.random.SFC64(self.key)).permutation(order)
        value = bucketing(uploads.value, self.bucket, torch.from_numpy(order))
        smallest = uploads.rows % self.bucket or self.bucket
        mixed = _mixed(uploads, value)
        return mixed if mixed.bound is None else replace(mixed, bound=mixed.bound / smallest)


@dataclass(frozen=True)
class NormBound:
    """The server shortens every upload to ``bound``, since an attacker does not clip."""

    name: ClassVar[str] = "norm_bound"
    bound: float

    def __post_init__(self) -> None:
        positive(**{"aggregate.norm_bound": self.bound})

    @property
    def weighted(self) -> bool:
        """Yes."""
        return True

    def least(self, rows: int) -> int:
        """As many rows come out as go in."""
        return rows

    def __call__(self, uploads: Signal) -> Signal:
        """A whole client fits into the bound; shortening never moves two rows apart."""
        bound, unit = uploads.bound, uploads.unit
        if bound is None or unit is None:
            bound, unit = self.bound, "client"
        elif unit == "client":
            bound = min(bound, self.bound)
        else:
            bound = min(bound, 2 * self.bound)
        noise = 0.0 if noiseless(uploads) else None
        value = clip_norms(uploads.value, self.bound).to(uploads.value.dtype)
        return Signal(value, bound, unit, noise, uploads.released)


def _mixed(uploads: Signal, value: Tensor) -> Signal:
    public = mean_public(uploads)
    noise = 0.0 if noiseless(uploads) else None
    return replace(uploads, value=value.to(uploads.value.dtype), noise_var=noise, public=public)


@dataclass(frozen=True)
class Before:
    """Parts, and the rule that sees what they made of the uploads.

    Where the server bounds every norm by R, a rule whose results are at most ``reach`` times as long as the longest row
    moves by 2·reach·R at most, whatever one client does: that is its bound where it has no better one.
    """

    parts: tuple[Part, ...]
    rule: Aggregator

    @property
    def name(self) -> str:
        """All names, in order."""
        return " of ".join(str(getattr(part, "name", part)) for part in (self.rule, *reversed(self.parts)))

    @property
    def needs(self) -> View:
        """Every single upload."""
        return "each"

    @property
    def weighted(self) -> bool:
        """Whether weights reach a rule that uses them."""
        return self.rule.weighted and all(part.weighted for part in self.parts)

    @property
    def least(self) -> int:
        """The fewest uploads that leave the rule enough rows."""
        rows = self.rule.least
        for part in reversed(self.parts):
            rows = part.least(rows)
        return rows

    def check(self, rows: int) -> None:
        """Refuse a cohort of so many clients when a run is built."""
        if rows < self.least:
            raise Refused(f"declared_f: {self._too_few(rows)} in a cohort; lower declared_f, or raise cohort")
        for part in self.parts:
            rows = -(-rows // part.bucket) if isinstance(part, Bucketing) else rows
        self.rule.check(rows)

    def drawn(self, rng: np.random.Generator) -> Before:
        """The rule of one round, with its own randomness; all channels of a round get the same."""
        if not any(isinstance(part, Bucketing) for part in self.parts):
            return self
        key = int(rng.integers(2**63))
        return replace(self, parts=tuple(replace(p, key=key) if isinstance(p, Bucketing) else p for p in self.parts))

    def __call__(self, uploads: Signal, weights: Tensor) -> Signal:
        """One row."""
        if uploads.rows < self.least:
            raise Aborted(f"{self._too_few(uploads.rows)}; lower declared_f, or let more clients take part")
        if not self.weighted and bool((weights != weights[0]).any()):
            raise Refused(f"weights: {self.name} counts every upload once; set weights=uniform")
        rows = uploads
        for part in self.parts:
            rows = part(rows)
        if not self.weighted:
            weights = torch.full((rows.rows,), 1 / rows.rows, dtype=torch.float64)
        result = self.rule(rows, weights)
        radius = min((part.bound for part in self.parts if isinstance(part, NormBound)), default=None)
        if result.bound is None and radius is not None and isinstance(self.rule, Rule):
            result = replace(result, bound=2 * self.rule.reach(rows.rows) * radius, unit=uploads.unit or "client")
        return result

    def _too_few(self, rows: int) -> str:
        return f"{self.name} needs at least {self.least} uploads, and there are {rows}"


PARTS = ("nnm", "bucketing", "norm_bound")


def before(
    rule: Aggregator, names: str | Sequence[str], *, byzantine: int | None, bucket: int, norm_bound: float | None
) -> Aggregator:
    """The rule with what comes before it, by name and in order."""
    parts: list[Part] = []
    for name in [names] if isinstance(names, str) else names:
        one_of("aggregate.before", name, PARTS)
        if name == "nnm":
            parts.append(NearestNeighbourMixing(byzantine))  # type: ignore[arg-type]  # None is refused in words
        elif name == "bucketing":
            parts.append(Bucketing(bucket))
        elif norm_bound is None:
            raise Refused(
                "aggregate.norm_bound: how long may an upload be? give aggregate.norm_bound=1, or another norm"
            )
        else:
            parts.append(NormBound(norm_bound))
    return Before(tuple(parts), rule) if parts else rule
