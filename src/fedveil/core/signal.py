"""A vector that travels together with what is known about it (DESIGN: Signal)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

Unit = Literal["record", "client"]
"""What privacy protects: one training example, or all data of one client (SPEC 0)."""


@dataclass(frozen=True, eq=False)
class Signal:
    """Flat vectors, one row per client (a mean has one row), and the facts that hold for every row.

    bound
        how far, in l2, a row moves when one privacy unit comes or goes; None when nothing bounds it.
    unit
        the unit that ``bound`` speaks of; None exactly when ``bound`` is None.
    noise_var
        variance of the noise inside, per coordinate: a number, or a tensor that broadcasts against ``value``
        (rows of different noise: shape ``(rows, 1)``); None when a non-linear step made it unknown.
    released
        a privacy mechanism has paid for this value: everything computed from it alone is free.
    public
        a part of ``value`` that the observer knows beforehand and that holds none of this noise, such as what drift
        correction added to a move; shrinkage leaves it alone (SPEC 3.2).
    grid
        every value is a whole multiple of this number, as integer noise needs it: a transport that sums modulo 2^b
        carries such rows exactly (SPEC 6.3); None: real numbers.
    levels
        where every value is one of two that the observer knows beforehand: the lower and the upper one, each of
        shape ``(1, dim)``, so that one bit per value travels.

    >>> x = Signal(torch.ones(2, 3), bound=1.0, unit="record", noise_var=4.0)
    >>> y = x * 0.5
    >>> y.bound, y.noise_var
    (0.5, 1.0)
    """

    value: Tensor
    bound: float | None = None
    unit: Unit | None = None
    noise_var: Tensor | float | None = 0.0
    released: bool = False
    public: Tensor | float = 0.0
    grid: float | None = None
    levels: tuple[Tensor, Tensor] | None = None

    def __post_init__(self) -> None:
        if self.value.dim() != 2:
            raise ValueError(f"Signal: value has shape {tuple(self.value.shape)}; give (rows, dim)")
        if (self.bound is None) != (self.unit is None):
            raise ValueError("Signal: a bound needs the unit it speaks of, and a unit needs a bound")

    @property
    def rows(self) -> int:
        """How many clients (or means) there are."""
        return self.value.shape[0]

    @property
    def dim(self) -> int:
        """Length of each vector."""
        return self.value.shape[1]

    def __mul__(self, factor: float | Tensor) -> Signal:
        """Scale by a public number, or by one public number per row (shape ``(rows, 1)``)."""
        largest = float(factor.abs().max()) if isinstance(factor, Tensor) else abs(factor)
        return replace(
            self,
            value=self.value * factor,
            bound=None if self.bound is None else largest * self.bound,
            noise_var=None if self.noise_var is None else self.noise_var * factor**2,
            public=self.public * factor,
            grid=None if self.grid is None or isinstance(factor, Tensor) else self.grid * abs(factor) or None,
            levels=None,
        )

    __rmul__ = __mul__

    def __add__(self, other: Signal) -> Signal:
        """Sum of two signals with independent noise; a fact survives where both sides have it."""
        bounded = self.bound is not None and other.bound is not None and self.unit == other.unit
        known = self.noise_var is not None and other.noise_var is not None
        return Signal(
            self.value + other.value,
            bound=self.bound + other.bound if bounded else None,  # type: ignore[operator]
            unit=self.unit if bounded else None,
            noise_var=self.noise_var + other.noise_var if known else None,  # type: ignore[operator]
            released=self.released and other.released,
            public=self.public + other.public,
            grid=self.grid if self.grid == other.grid else None,
        )

    def shifted(self, public: Tensor | float) -> Signal:
        """Add a vector that the observer already knows: no fact changes."""
        return replace(self, value=self.value + public, grid=None, levels=None)

    def rows_at(self, index: Tensor) -> Signal:
        """These rows, in this order."""

        def of(fact: Tensor | float | None) -> Tensor | float | None:
            return fact[index.to(fact.device)] if isinstance(fact, Tensor) and fact.shape[:1] == (self.rows,) else fact

        public = of(self.public)
        assert public is not None
        return replace(self, value=self.value[index.to(self.value.device)], noise_var=of(self.noise_var), public=public)

    def unbounded(self) -> Signal:
        """The same value without its bound, for results that a sum of bounds does not bound."""
        return replace(self, bound=None, unit=None)

    def mean(self, weights: Tensor, value: Tensor | None = None) -> Signal:
        """Weighted sum of the rows, as one row, with weights that are public and usually sum to one.

        Where somebody else has summed the rows already (secure aggregation), ``value`` is that sum, shape (1, dim).

        A unit lives in one row, so the bound is that of the heaviest row; noise adds up as Σ w² v (SPEC 3.2).

        >>> Signal(torch.eye(2), bound=1.0, unit="client", noise_var=1.0).mean(torch.tensor([0.5, 0.5])).noise_var
        tensor([[0.5000]])
        """
        w = weights.to(self.value)
        variance = self.noise_var
        if variance is not None:
            each = torch.as_tensor(variance, dtype=self.value.dtype, device=self.value.device)
            each = each if each.dim() == 2 else each.reshape(1, -1)
            each = each.expand(self.rows, each.shape[1])
            variance = (w.square() @ each)[None, :]
            if not torch.any(variance):
                variance = 0.0
        return replace(
            self,
            value=(w @ self.value)[None, :] if value is None else value,
            bound=None if self.bound is None else self.bound * float(weights.abs().max()),
            noise_var=variance,
            public=(w @ self.public)[None, :] if isinstance(self.public, Tensor) else self.public,
            grid=None,
            levels=None,
        )
