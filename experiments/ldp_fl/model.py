"""The network of the study: two strided convolutions, small enough to train 200 clients on one core."""

from __future__ import annotations

from torch import nn


def small_cnn(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """11,274 parameters on 28x28 images."""
    channels, height, width = input_shape
    return nn.Sequential(
        nn.Conv2d(channels, 8, 5, stride=2, padding=2),
        nn.ReLU(),
        nn.Conv2d(8, 16, 5, stride=2, padding=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16 * -(-height // 4) * -(-width // 4), classes),
    )
