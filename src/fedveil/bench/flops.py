"""How much arithmetic a round cannot do without."""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from fedveil.bench.scenario import Scenario


def useful(module: nn.Module, example: Tensor) -> int:
    """FLOPs of training on one example: the matrix products of layers, forward once and backward twice.

    The first layer needs no gradient of its input. Elementwise work, norms, noise and the products that find
    per-example norms are left out: they are overhead, whoever spends them.

    >>> useful(nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10)), torch.zeros(1, 784))
    409088
    """
    counts: list[int] = []

    def count(layer: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
        weight = layer.weight
        assert isinstance(weight, Tensor)
        # Each output number of a convolution or a linear layer sums over one filter.
        counts.append(2 * output[0].numel() * prod(weight.shape[1:]))

    layers = [part for part in module.modules() if isinstance(part, (nn.Linear, nn.Conv2d))]
    hooks = [layer.register_forward_hook(count) for layer in layers]
    try:
        with torch.no_grad():
            module(example)
    finally:
        for hook in hooks:
            hook.remove()
    return 3 * sum(counts) - counts[0]


def of_round(scenario: Scenario, module: nn.Module, example: Tensor) -> int:
    """FLOPs of a whole round."""
    return useful(module, example) * scenario.examples
