"""The task of both studies: Fashion-MNIST at 14 x 14, 12,000 examples on ten clients, an MLP of 6,634 parameters."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from torch import Tensor, nn
from torch.nn import functional as F

from fedveil.core.federation import Federation
from fedveil.data.arrays import from_arrays
from fedveil.data.idx import fashion_mnist
from fedveil.local.models import mlp

CLIENTS = 10
TRAIN, TEST = 12_000, 2_000
HIDDEN = 32


@lru_cache(maxsize=1)
def pooled() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A fixed sample of the images, each the mean of 2 x 2 pixels."""
    raw = fashion_mnist()
    rng = np.random.default_rng(0)
    rows, held = rng.permutation(len(raw.x))[:TRAIN], rng.permutation(len(raw.test.x))[:TEST]
    return F.avg_pool2d(raw.x[rows], 2), raw.y[rows], F.avg_pool2d(raw.test.x[held], 2), raw.test.y[held]


def federation(alpha: float, seed: int) -> Federation:
    """Ten clients with Dirichlet labels; every partition seed is another run's."""
    x, y, test_x, test_y = pooled()
    return from_arrays(
        x.numpy(), y.numpy(), test_x=test_x.numpy(), test_y=test_y.numpy(), name="fashion_mnist_14",
        population=CLIENTS, partition="dirichlet", alpha=alpha, min_samples=64, holdout=0.0, seed=seed,
    )  # fmt: skip


def model(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """784/4 inputs, 32 ReLU units, 10 classes."""
    return mlp(input_shape, classes, hidden=HIDDEN)
