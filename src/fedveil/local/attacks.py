"""What attackers send in place of their uploads (SPEC 7.7).

An attack is a function of what its clients know: their own uploads as the protocol made them, and for an omniscient
one every honest upload of the round as well. Attackers work together; their numbers are drawn from streams of their
own. Those that poison their training data name the poison, and may change the upload besides.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from fedveil.core.errors import Refused, not_negative, positive
from fedveil.local.poison import FlipLabels, Poison, Trigger


@dataclass(frozen=True, eq=False)
class Sight:
    """What attackers know about one channel of a round.

    ``own`` (attackers, dim) is what the protocol made of their data, ``honest`` (others, dim) everybody else's
    uploads, ``streams`` the attackers' random streams.
    """

    own: Tensor
    honest: Tensor
    streams: Sequence[np.random.Generator]

    @property
    def cohort(self) -> int:
        """Clients of the round."""
        return len(self.own) + len(self.honest)


class Attack(Protocol):
    """What a set of dishonest clients does from its onset on."""

    @property
    def omniscient(self) -> bool:
        """Whether it reads the honest uploads; a blind one knows its own only."""
        ...

    @property
    def poison(self) -> Poison | None:
        """What it does to its training data."""
        ...

    def forge(self, sight: Sight) -> Tensor | None:
        """What is sent instead of ``sight.own``, one row per attacker; None: nothing is sent.

        Rows of another length are sent as they are, for the server to refuse.
        """
        ...


@dataclass(frozen=True)
class Blind:
    """Knows its own upload only, and trains on its own data."""

    @property
    def omniscient(self) -> bool:
        """No."""
        return False

    @property
    def poison(self) -> Poison | None:
        """None."""
        return None


@dataclass(frozen=True)
class Omniscient(Blind):
    """Reads all honest uploads of the round before it writes its own."""

    @property
    def omniscient(self) -> bool:
        """Yes."""
        return True

    @staticmethod
    def seen(sight: Sight) -> Tensor:
        """The honest uploads in float64; where nobody else is there, what the attackers would have sent."""
        return (sight.honest if len(sight.honest) else sight.own).double()


@dataclass(frozen=True, kw_only=True)
class SignFlip(Blind):
    """Sends −factor·Δ."""

    factor: float = 1.0

    def __post_init__(self) -> None:
        positive(**{"attack.factor": self.factor})

    def forge(self, sight: Sight) -> Tensor:
        """Each its own move, turned round."""
        return -self.factor * sight.own


@dataclass(frozen=True, kw_only=True)
class GaussianNoise(Blind):
    """Sends noise of ``factor`` times the length of its own upload, which stands for an honest one."""

    factor: float = 10.0

    def __post_init__(self) -> None:
        positive(**{"attack.factor": self.factor})

    def forge(self, sight: Sight) -> Tensor:
        """Independent noise for each attacker; its expected squared length is (factor·‖Δ‖)²."""
        dim = sight.own.shape[1]
        std = self.factor * sight.own.double().norm(dim=1, keepdim=True) / math.sqrt(dim)
        noise = np.stack([stream.standard_normal(dim) for stream in sight.streams])
        sent: Tensor = (torch.from_numpy(noise).to(std) * std).to(sight.own)
        return sent


@dataclass(frozen=True)
class Zero(Blind):
    """Sends zeros."""

    def forge(self, sight: Sight) -> Tensor:
        """No move at all."""
        return torch.zeros_like(sight.own)


@dataclass(frozen=True, kw_only=True)
class LabelFlip(Blind):
    """Follows the protocol on flipped labels: class c becomes C − 1 − c."""

    @property
    def poison(self) -> Poison | None:
        """Flipped labels."""
        return FlipLabels()

    def forge(self, sight: Sight) -> Tensor:
        """As the protocol made it."""
        return sight.own


@dataclass(frozen=True, kw_only=True)
class Scaling(Blind):
    """Model replacement: its own move times ``factor``, by default cohort / attackers (Bagdasaryan et al. 2020).

    With ``flip`` the move was trained on flipped labels, so that a plain mean ends at a model of those.
    """

    factor: float | None = None
    flip: bool = True

    def __post_init__(self) -> None:
        if self.factor is not None:
            positive(**{"attack.factor": self.factor})

    @property
    def poison(self) -> Poison | None:
        """Flipped labels, where asked for."""
        return FlipLabels() if self.flip else None

    def forge(self, sight: Sight) -> Tensor:
        """factor·Δ."""
        return (sight.cohort / len(sight.own) if self.factor is None else self.factor) * sight.own


@dataclass(frozen=True, kw_only=True)
class Alie(Omniscient):
    """A little is enough (Baruch et al. 2019): honest mean − z·honest deviation, in every coordinate."""

    z: float = 1.5

    def __post_init__(self) -> None:
        not_negative(**{"attack.z": self.z})

    def forge(self, sight: Sight) -> Tensor:
        """All attackers send the same."""
        seen = self.seen(sight)
        return (seen.mean(0) - self.z * seen.std(0, correction=0)).to(sight.own).expand_as(sight.own)


@dataclass(frozen=True, kw_only=True)
class Ipm(Omniscient):
    """Inner product manipulation (Xie et al. 2020): −factor·honest mean."""

    factor: float = 2.0

    def __post_init__(self) -> None:
        positive(**{"attack.factor": self.factor})

    def forge(self, sight: Sight) -> Tensor:
        """All attackers send the same."""
        return (-self.factor * self.seen(sight).mean(0)).to(sight.own).expand_as(sight.own)


@dataclass(frozen=True, kw_only=True)
class MinMax(Omniscient):
    """Min-max (Shejwalkar and Houmansadr 2021): the honest mean m + γ·p, as far as the honest are from each other.

    γ is the largest with max_i ‖m + γp − g_i‖ ≤ max_ij ‖g_i − g_j‖. ``direction`` p is ``mean`` (−m/‖m‖), ``std``
    (minus the deviation of each coordinate) or ``sign`` (−sign m).
    """

    direction: Literal["mean", "std", "sign"] = "mean"

    def forge(self, sight: Sight) -> Tensor:
        """All attackers send the same; γ is the smallest positive root of one quadratic per honest upload."""
        seen = self.seen(sight)
        mean = seen.mean(0)
        away = {"mean": -mean, "std": -seen.std(0, correction=0), "sign": -mean.sign()}[self.direction]
        length = away.norm()
        if not bool(length > 0):
            return mean.to(sight.own).expand_as(sight.own)
        p, apart = away / length, mean - seen
        along, square = apart @ p, apart.square().sum(1)
        gram = seen @ seen.T
        norms = gram.diagonal()
        widest = (norms[:, None] + norms[None, :] - 2 * gram).max().clamp_min(0)
        gamma = (-along + (along.square() + (widest - square).clamp_min(0)).sqrt()).min()
        sent: Tensor = (mean + gamma * p).to(sight.own).expand_as(sight.own)
        return sent


@dataclass(frozen=True, kw_only=True)
class Backdoor(Blind):
    """Teaches the model that a trigger means ``target`` (Bagdasaryan et al. 2020); sends ``boost`` times its move.

    The trigger sets the last ``size`` features of each row and column (of an image) to ``value``; a ``fraction`` of
    the attacker's examples carries it.
    """

    target: int = 0
    fraction: float = 0.5
    size: int = 3
    value: float = 1.0
    boost: float = 1.0

    def __post_init__(self) -> None:
        positive(**{"attack.boost": self.boost, "attack.size": self.size})
        if not 0 < self.fraction <= 1:
            raise Refused(
                f"attack.fraction: {self.fraction} is not a share of examples; give a number above 0, at most 1"
            )
        not_negative(**{"attack.target": self.target})

    @property
    def poison(self) -> Trigger:
        """The trigger, and the label that goes with it."""
        return Trigger(self.target, self.fraction, self.size, self.value)

    def forge(self, sight: Sight) -> Tensor:
        """boost·Δ."""
        return sight.own if self.boost == 1 else self.boost * sight.own


@dataclass(frozen=True, kw_only=True)
class Malformed(Blind):
    """Sends what no server can use: NaN, infinity, a row of another length, or nothing."""

    kind: Literal["nan", "inf", "wrong_shape", "silent"] = "nan"

    def forge(self, sight: Sight) -> Tensor | None:
        """One coordinate is broken, or the row is one number too long, or there is none."""
        if self.kind == "silent":
            return None
        if self.kind == "wrong_shape":
            return torch.cat([sight.own, sight.own[:, :1]], 1)
        rows = sight.own.clone()
        rows[:, 0] = math.nan if self.kind == "nan" else math.inf
        return rows
