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
    features, size = _convolutions("cnn", input_shape, kernel=3, widths=(16, 32), groups=4)
    return nn.Sequential(*features, nn.Linear(size, max(classes, 1)))


def cnn_large(input_shape: Shape, classes: int, *, hidden: int = 300) -> nn.Module:
    """Two 5x5 convolutions with GroupNorm and a hidden layer; about 1 million parameters on MNIST."""
    positive(hidden=hidden)
    features, size = _convolutions("cnn_large", input_shape, kernel=5, widths=(32, 64), groups=8)
    return nn.Sequential(*features, nn.Linear(size, hidden), nn.ReLU(), nn.Linear(hidden, max(classes, 1)))


def _convolutions(
    name: str, shape: Shape, *, kernel: int, widths: tuple[int, ...], groups: int
) -> tuple[list[nn.Module], int]:
    """Blocks of convolution, GroupNorm, ReLU and pooling, flattened; and how many numbers come out."""
    before, height, width = _image(name, shape)
    layers: list[nn.Module] = []
    for channels in widths:
        layers += [
            nn.Conv2d(before, channels, kernel, padding=kernel // 2),
            nn.GroupNorm(groups, channels),
            nn.ReLU(),
            nn.MaxPool2d(2),
        ]
        before, height, width = channels, height // 2, width // 2
    return [*layers, nn.Flatten()], before * height * width


def _image(name: str, shape: Shape) -> tuple[int, int, int]:
    if len(shape) != 3 or min(shape[1:]) < 4:
        raise Refused(
            f"model: {name} reads images (channels, height, width) of at least 4x4, but the examples have shape "
            f"{shape}; use model=mlp or model=logistic"
        )
    return shape
