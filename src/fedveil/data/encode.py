"""Columns of a table as model inputs: scaled numbers, missing-value indicators, one-hot categories."""

from __future__ import annotations

import numpy as np

from fedveil.data.raw import FloatArray, IntArray
from fedveil.data.scale import between, standard


def scaled(values: FloatArray, scaling: str, bounds: tuple[float, float] | None, indicator: bool) -> FloatArray:
    """One numeric column as ``(rows, 1)``, or ``(rows, 2)`` with an indicator of what is missing (NaN).

    A missing value becomes the midpoint of the bounds, the pooled mean, or 0 when nothing is scaled.

    >>> scaled(np.array([0.0, np.nan, 10.0]), "bounds", (0.0, 10.0), True).tolist()
    [[0.0, 0.0], [0.5, 1.0], [1.0, 0.0]]
    """
    missing = np.isnan(values)
    if scaling == "bounds" and bounds is not None:
        column = np.where(missing, 0.5, between(values, *bounds))
    elif scaling == "pooled":
        column = np.where(missing, 0.0, standard(values))
    else:
        column = np.where(missing, 0.0, values)
    return np.stack([column, missing], axis=1) if indicator else column[:, None]


def one_hot(codes: IntArray, categories: int) -> FloatArray:
    """One column per category; a missing category (code -1) is a row of zeros.

    >>> one_hot(np.array([1, -1]), 2).tolist()
    [[0.0, 1.0], [0.0, 0.0]]
    """
    hot: FloatArray = (codes[:, None] == np.arange(categories)).astype(np.float64)
    return hot
