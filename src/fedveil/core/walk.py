"""How far gradients carry a client: coefficients of SGD steps with momentum."""

from __future__ import annotations

from functools import lru_cache

import numpy as np


def coefficients(lr: float, momentum: float, steps: int) -> np.ndarray:
    """a_j such that K steps of SGD move by −Σ a_j g_j: a_j = lr·(1 − μ^(K−j)) / (1 − μ), torch's momentum.

    >>> coefficients(0.1, 0.0, 3).tolist()
    [0.1, 0.1, 0.1]
    """
    ages = np.arange(steps, 0, -1, dtype=np.float64)
    if momentum == 0.0:
        return np.full(steps, lr)
    return np.asarray(lr * (1.0 - momentum**ages) / (1.0 - momentum))


@lru_cache(maxsize=4096)
def travel(lr: float, momentum: float, steps: int) -> float:
    """Σ a_j: a constant gradient g moves the client by −travel·g (K·η without momentum; SPEC 2)."""
    return float(coefficients(lr, momentum, steps).sum())


@lru_cache(maxsize=4096)
def energy(lr: float, momentum: float, steps: int) -> float:
    """Σ a_j²: independent noise of variance v in every step's gradient becomes energy·v in the move (SPEC 3.2)."""
    return float(np.square(coefficients(lr, momentum, steps)).sum())
