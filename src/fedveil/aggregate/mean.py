"""The weighted mean of the uploads."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedveil.core.parts import View
from fedveil.core.signal import Signal


@dataclass(frozen=True)
class Mean:
    """Σ w_k x_k, the only rule that a sum of the uploads is enough for."""

    @property
    def needs(self) -> View:
        """The sum."""
        return "sum"

    @property
    def weighted(self) -> bool:
        """Yes."""
        return True

    @property
    def least(self) -> int:
        """One upload has a mean."""
        return 1

    def check(self, rows: int) -> None:
        """Any cohort will do."""

    def __call__(self, uploads: Signal, weights: Tensor) -> Signal:
        """One row: the weighted mean, with its facts."""
        return uploads.mean(weights)
