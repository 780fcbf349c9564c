"""Scaling as a stage: the constant divisor of a sum of clipped gradients (SPEC 3.1)."""

from __future__ import annotations

from dataclasses import dataclass

from fedveil.core.signal import Signal
from fedveil.core.stage import Context, Replay


@dataclass(frozen=True)
class Scale:
    """Multiplies every row by a public constant; bound and noise go with it."""

    factor: float

    @property
    def replay(self) -> Replay:
        """A product."""
        return "quiet"

    def __call__(self, signal: Signal, ctx: Context) -> Signal:
        """All rows at once."""
        return signal * self.factor


def scale(factor: float) -> Scale:
    """Multiply by a public constant."""
    return Scale(factor)
