"""Models that come with FedVeil; every one can be trained privately (no batch statistics)."""

from __future__ import annotations

from math import prod

from torch import nn

from fedveil.core.errors import Refused, positive

Shape = tuple[int, ...]


def logistic(input_shape: Shape, classes: int) -> nn.Module:
    """Multinomial logistic regression (linear regression when ``classes`` is 0)."""
    return nn.Sequential(nn.Flatten(), nn.Linear(prod(input_shape), max(classes, 1)))


def mlp(input_shape: Shape, classes: int, *, hidden: int = 128) -> nn.Module:
    """One hidden layer of ReLU units; 101,770 parameters on MNIST."""
    positive(hidden=hidden)
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(prod(input_shape), hidden),
        nn.ReLU(),
        nn.Linear(hidden, max(classes, 1)),
    )


def cnn(input_shape: Shape, classes: int) -> nn.Module:
    """Two 3x3 convolutions with GroupNorm; about 20 thousand parameters on MNIST."""
    c, h, w = _image("cnn", input_shape)
    return nn.Sequential(
        nn.Conv2d(c, 16, 3, padding=1),
        nn.GroupNorm(4, 16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.GroupNorm(4, 32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * (h // 4) * (w // 4), max(classes, 1)),
    )


def cnn_large(input_shape: Shape, classes: int, *, hidden: int = 300) -> nn.Module:
    """Two 5x5 convolutions with GroupNorm and a hidden layer; about 1 million parameters on MNIST."""
    positive(hidden=hidden)
    c, h, w = _image("cnn_large", input_shape)
    return nn.Sequential(
        nn.Conv2d(c, 32, 5, padding=2),
        nn.GroupNorm(8, 32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2),
        nn.GroupNorm(8, 64),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * (h // 4) * (w // 4), hidden),
        nn.ReLU(),
        nn.Linear(hidden, max(classes, 1)),
    )


def _image(name: str, shape: Shape) -> tuple[int, int, int]:
    if len(shape) != 3 or min(shape[1:]) < 4:
        raise Refused(
            f"model: {name} reads images (channels, height, width) of at least 4x4, but the examples have shape "
            f"{shape}; use model=mlp or model=logistic"
        )
    return shape
