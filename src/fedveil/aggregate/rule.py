"""What the robust rules share: which numbers of uploads they take, whom they count, which facts survive them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from fedveil.core.errors import Aborted, Refused, shown
from fedveil.core.parts import View
from fedveil.core.signal import Signal


def check_byzantine(name: str, byzantine: object) -> None:
    """Refuse a number of attackers that is no whole number, zero or above."""
    if byzantine is None:
        raise Refused(
            f"declared_f: {name} must know how many attackers to expect; give declared_f=1, or another number"
        )
    if not isinstance(byzantine, int) or isinstance(byzantine, bool) or byzantine < 0:
        raise Refused(f"declared_f: {shown(byzantine)} is no number of attackers; give a whole number, 0 or above")


def check_enough(name: str, rows: int, byzantine: int, least: int) -> None:
    """Refuse fewer uploads than a rule needs against so many attackers."""
    check_byzantine(name, byzantine)
    if rows < least:
        raise Refused(too_few(name, rows, byzantine, least))


def too_few(name: str, rows: int, byzantine: int, least: int) -> str:
    """Why so few uploads are refused."""
    return f"declared_f: {name} needs at least {least} uploads against {byzantine} attackers, and there are {rows}"


class Rule(ABC):
    """A rule that sees every upload and counts each once, whatever its client's number of examples is said to be.

    Subclasses are frozen dataclasses with a field ``byzantine`` (the setting ``declared_f``). Where fewer uploads
    arrive than the rule needs, the round comes to nothing.
    """

    name: ClassVar[str]
    byzantine: int

    @property
    def needs(self) -> View:
        """Every single upload."""
        return "each"

    @property
    def weighted(self) -> bool:
        """No: an attacker could claim any number of examples."""
        return False

    @property
    def least(self) -> int:
        """The fewest uploads that the rule takes."""
        return 2 * self.byzantine + 1

    def check(self, rows: int) -> None:
        """Refuse a cohort of so many clients when a run is built."""
        if rows < self.least:
            raise Refused(
                f"{too_few(self.name, rows, self.byzantine, self.least)} in a cohort; lower declared_f, or raise cohort"
            )

    @abstractmethod
    def one(self, x: Tensor) -> Tensor:
        """The pure rule, from ``(clients, dim)`` to ``(dim,)``."""

    def sensitivity(self, bound: float, rows: int) -> float | None:
        """How far the result moves where one row moves by ``bound``, whatever the others are; None if unbounded."""
        return None

    def reach(self, rows: int) -> float:
        """How many times as long as the longest row the result can be: 1 where it is a mixture of the rows."""
        return 1.0

    def __call__(self, uploads: Signal, weights: Tensor) -> Signal:
        """One row; noise inside has no known variance after a rule that is not linear."""
        if uploads.rows < self.least:
            raise Aborted(
                f"{too_few(self.name, uploads.rows, self.byzantine, self.least)}; "
                "lower declared_f, or let more clients take part"
            )
        if bool((weights != weights[0]).any()):
            raise Refused(f"weights: {self.name} counts every upload once; set weights=uniform")
        bound = None if uploads.bound is None else self.sensitivity(uploads.bound, uploads.rows)
        return Signal(
            self.one(uploads.value)[None, :].to(uploads.value.dtype),
            bound=bound,
            unit=None if bound is None else uploads.unit,
            noise_var=0.0 if noiseless(uploads) else None,
            released=uploads.released,
            public=mean_public(uploads),
        )


def noiseless(signal: Signal) -> bool:
    """Whether it is known that no noise is inside."""
    return signal.noise_var is not None and not bool(torch.as_tensor(signal.noise_var).any())


def mean_public(signal: Signal) -> Tensor | float:
    """What the observer knows of an aggregate beforehand: the mean of what it knows of the rows."""
    public = signal.public
    return public.mean(dim=0, keepdim=True) if isinstance(public, Tensor) and public.dim() == 2 else public
