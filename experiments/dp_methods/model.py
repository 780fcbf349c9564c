"""The network of the image studies: small, so that noise in every coordinate is little noise in all."""

from __future__ import annotations

from torch import nn

Shape = tuple[int, ...]


def small_cnn(input_shape: Shape, classes: int) -> nn.Module:
    """2x2 pixels pooled, every image standardised by itself, 8 convolutions of 5x5; 2,218 parameters on MNIST.

    A mean and a variance of one image release nothing, and no example reaches another's input. Few parameters catch
    little noise in all, and inputs of one scale need fewer steps.

    >>> sum(p.numel() for p in small_cnn((1, 28, 28), 10).parameters())
    2218
    """
    channels, height, width = input_shape
    width, height = ((side // 2 - 4) // 2 for side in (width, height))
    return nn.Sequential(
        nn.AvgPool2d(2),
        nn.GroupNorm(1, channels, affine=False),
        nn.Conv2d(channels, 8, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(8 * height * width, classes),
    )
