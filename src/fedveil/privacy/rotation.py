"""The randomised Hadamard rotation: every coordinate carries an equal share of a vector (SPEC 6.3).

y = H·D·x/√n, where H is the n×n Walsh-Hadamard matrix, D a diagonal of random signs, and x padded with zeros to n, a
power of two. Lengths and inner products stay, and a coordinate of y has deviation ‖x‖/√n whatever x was, so that sums
need little room (Suresh et al. 2017). The signs are public: they belong to the round, and no privacy rests on them.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from fedveil.core.streams import stream

FACTOR = 2**6
"""The matrix is applied as a Kronecker product of factors up to this size: few passes over memory, all of them BLAS."""


def padded(dim: int) -> int:
    """The smallest power of two that is not below ``dim``.

    >>> padded(650), padded(1024)
    (1024, 1024)
    """
    return 1 << max(0, dim - 1).bit_length()


def rotate(value: Tensor, round: int) -> Tensor:
    """Rows ``(n, dim)`` as rotated rows ``(n, padded(dim))`` in float64."""
    size = padded(value.shape[1])
    wide = torch.zeros(value.shape[0], size, dtype=torch.float64, device=value.device)
    wide[:, : value.shape[1]] = value
    return hadamard(wide.mul_(signs(round, size).to(value.device)))


def unrotate(value: Tensor, dim: int, round: int) -> Tensor:
    """The inverse of :func:`rotate`, in float64."""
    size = value.shape[1]
    return hadamard(value.double()).mul_(signs(round, size).to(value.device))[:, :dim]


def hadamard(value: Tensor) -> Tensor:
    """Rows times H/√n, which is its own inverse.

    >>> hadamard(torch.tensor([[1.0, 0.0, 0.0, 0.0]]))
    tensor([[0.5000, 0.5000, 0.5000, 0.5000]])
    """
    rows, size = value.shape
    if size != padded(size):
        raise ValueError(f"hadamard: {size} coordinates are no power of two; pad them")
    done = 1
    while done < size:
        factor = min(FACTOR, size // done)
        matrix = _matrix(factor).to(value)
        value = torch.matmul(matrix, value.reshape(-1, factor, done)).reshape(rows, size)
        done *= factor
    return value


@lru_cache(maxsize=8)
def _matrix(size: int) -> Tensor:
    """H/√size (Sylvester)."""
    matrix = torch.ones(1, 1, dtype=torch.float64)
    while len(matrix) < size:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return matrix / math.sqrt(size)


@lru_cache(maxsize=4)
def signs(round: int, size: int) -> Tensor:
    """±1 for each coordinate: known to everybody, other ones in every round."""
    bits = stream(0, "rotation", round).integers(0, 2, size=size)
    return torch.from_numpy(bits).mul_(2).sub_(1).double()
