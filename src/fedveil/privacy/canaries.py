"""Canaries: records or clients that an auditor adds, to see whether they can be told from the outside (SPEC 8).

A canary stands for a record whose gradient, or for a client whose move, is a direction of the auditor's choice, as long
as the clip lets through. That is the worst that a claim allows, and the noise has to hide it. Directions are
orthonormal, so that canaries do not hide each other: the model's coordinates are shuffled and cut into blocks, and each
block has a random orthonormal basis of its own, of which canaries use a part. Within its block, and given the other
canaries, a canary's direction is uniform on a sphere.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fedveil.core.errors import Refused
from fedveil.core.signal import Signal
from fedveil.core.stage import Chain, Context, PerSample, Remembering, Stage, chain
from fedveil.privacy.noise import DiscreteGaussian, Gaussian, Laplace, Skellam

BLOCK = 256
"""Coordinates of a block: its basis costs next to nothing, and its sphere has enough dimensions."""
FULL = 0.75
"""Canaries use at most this share of the directions, so that the others tell how much noise there is."""
LONG = 10.0
"""Canaries are so many times longer than the clip lets through, so that a clip that does not hold is seen."""


@dataclass(frozen=True, eq=False)
class Directions:
    """Orthonormal directions in ``dim`` coordinates: ``places`` (blocks, size), ``basis`` (blocks, each, size)."""

    dim: int
    count: int
    places: Tensor
    basis: Tensor

    @classmethod
    def drawn(cls, dim: int, count: int, rng: np.random.Generator) -> Directions:
        """``count`` of them, spread evenly over blocks.

        >>> d = Directions.drawn(600, 100, np.random.default_rng(0))
        >>> tuple(d.basis.shape), d.sphere
        ((1, 100, 256), 157)
        """
        size = min(dim, BLOCK)
        blocks = max(1, min(dim // size, math.ceil(2 * count / size)))
        each = math.ceil(count / blocks)
        if each > FULL * size:
            raise Refused(
                f"audit.canaries: {count} directions do not fit into a model of {dim:,} parameters; "
                f"give at most {room(dim)}, or a larger model"
            )
        places = rng.permutation(dim)[: blocks * size].reshape(blocks, size)
        basis = np.linalg.qr(rng.standard_normal((blocks, size, each)))[0]
        return cls(dim, count, torch.from_numpy(places), torch.from_numpy(basis).float().mT.contiguous())

    @property
    def sphere(self) -> int:
        """Dimensions of the sphere on which a canary's direction is uniform, given the others."""
        return self.basis.shape[2] - self.basis.shape[1] + 1

    def products(self, rows: Tensor) -> Tensor:
        """Inner products of every row with every direction, ``(rows, count)``, in float64."""
        parts = rows[:, self.places.to(rows.device)].double()
        found: Tensor = torch.einsum("nbi,bji->nbj", parts, self.basis.to(rows.device).double())
        return found.flatten(1)[:, : self.count]

    def lengths(self, row: Tensor) -> Tensor:
        """The length of a vector (1, dim) within the block of each direction, ``(count,)``, in float64."""
        norms: Tensor = row[0, self.places.to(row.device)].double().norm(dim=1)
        return norms.repeat_interleave(self.basis.shape[1])[: self.count]

    def add(self, row: Tensor, which: Tensor, length: float) -> None:
        """Add ``length`` times the sum of these directions to a vector ``(dim,)``, in place."""
        factors = torch.zeros(self.basis.shape[:2])
        factors.view(-1)[which] = length
        row[self.places.to(row.device)] += torch.einsum("bj,bji->bi", factors, self.basis).to(row)


def room(dim: int) -> int:
    """The most canaries that a model of this size has directions for.

    >>> room(650), room(9610)
    (384, 7104)
    """
    size = min(dim, BLOCK)
    return (dim // size) * int(FULL * size)


class Plant:
    """A stage right before the noise: adds the canaries that are in and take part, each as long as one unit may be.

    ``walks`` says for each client (None: the server) which directions join at each coming call; who is not in it gets
    nothing. ``share`` is what the method's own clip leaves of a canary's length, in units of the bound.
    """

    def __init__(self, directions: Directions, share: float = 1.0) -> None:
        self.directions, self.share = directions, share
        self.walks: Mapping[int | None, Iterator[Tensor]] = {}
        self.before: Tensor | None = None
        """What came to the server's noise without canaries."""

    def __call__(self, signal: Signal, ctx: Context) -> Signal:
        """The same facts: each canary stays within the bound of one unit."""
        if signal.dim != self.directions.dim:  # a method that is being built is tried out on a dummy
            return signal
        rows = [(i, which) for i, k in enumerate(ctx.clients) if k in self.walks and len(which := next(self.walks[k]))]
        if ctx.slot == "on_mean":
            self.before = signal.value
        if not rows:
            return signal
        assert signal.bound is not None
        value = signal.value.clone()
        for i, which in rows:
            self.directions.add(value[i], which, self.share * signal.bound)
        return replace(signal, value=value, grid=None, levels=None)

    def __repr__(self) -> str:
        return f"Plant({self.directions.count})"


@dataclass(frozen=True)
class Tampered:
    """A noise stage that adds ``factor`` times its noise and says that it added all: what audits must find out."""

    noise: Stage
    factor: float

    def __call__(self, signal: Signal, ctx: Context) -> Signal:
        """The facts are those of the whole noise."""
        whole = self.noise(signal, ctx)
        return replace(whole, value=signal.value + self.factor * (whole.value - signal.value), grid=None)

    @cached_property
    def multiplier(self) -> object:
        """What the stage claims to add."""
        return getattr(self.noise, "multiplier", None)


NOISES = (Gaussian, Laplace, DiscreteGaussian, Skellam)


def noisy(slot: Chain) -> bool:
    """Whether a noise stage stands here."""
    return any(isinstance(stage, NOISES) for stage in slot)


def planted(slot: Chain, plant: Plant) -> Chain:
    """The slot with canaries added right before its first noise."""
    place = next(i for i, stage in enumerate(slot) if isinstance(stage, NOISES))
    return chain(*slot.stages[:place], plant, *slot.stages[place:])


def tampered(slot: Chain, factor: float) -> Chain:
    """The slot with so much of its noise."""

    def of(stage: Stage | PerSample | Remembering) -> Stage | PerSample | Remembering:
        return Tampered(stage, factor) if isinstance(stage, NOISES) else stage

    return chain(*(of(stage) for stage in slot)) if factor != 1 else slot
