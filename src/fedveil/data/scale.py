"""Bring columns of numbers to a common scale, with public bounds or with pooled (private) statistics."""

from __future__ import annotations

import numpy as np

from fedveil.core.errors import Refused
from fedveil.data.raw import POOLED, FloatArray

SCALINGS = ("bounds", "pooled", "none")


def between(values: FloatArray, low: float | FloatArray, high: float | FloatArray) -> FloatArray:
    """Map public bounds to 0 and 1, and clip what lies outside: no row can move another row's input.

    >>> between(np.array([0.0, 5.0, 12.0]), 0, 10).tolist()
    [0.0, 0.5, 1.0]
    """
    return np.clip((values - low) / (np.asarray(high) - low), 0.0, 1.0)


def standard(values: FloatArray) -> FloatArray:
    """Subtract the pooled mean and divide by the pooled standard deviation (of what is not missing).

    >>> standard(np.array([1.0, 3.0])).tolist()
    [-1.0, 1.0]
    """
    if np.isnan(values).all():
        return values
    spread = float(np.nanstd(values))
    return (values - float(np.nanmean(values))) / (spread if spread > 0 else 1.0)


def private_statistics(scaling: str) -> str | None:
    """What to declare for a scaling: a sentence for pooled statistics, None for public bounds.

    >>> private_statistics("bounds") is None
    True
    """
    return POOLED if scaling == "pooled" else None


def ordered(column: str, bounds: object) -> tuple[float, float]:
    """Read ``[low, high]`` of one column; refuse anything that is not two numbers in order."""
    if (
        isinstance(bounds, (list, tuple))
        and len(bounds) == 2
        and all(isinstance(b, (int, float)) and not isinstance(b, bool) and np.isfinite(b) for b in bounds)
        and bounds[0] < bounds[1]
    ):
        return float(bounds[0]), float(bounds[1])
    raise Refused(f"bounds: {bounds!r} for column {column!r} is not a range; give [low, high] with low below high")
