"""Losses of single examples, for losses that are a mean over a batch."""

from __future__ import annotations

from torch import Tensor
from torch.func import vmap
from torch.nn import functional as F

from fedveil.local.objective import Loss, mse


def per_example(loss: Loss) -> Loss:
    """The term of each example ``(n,)``, of which ``loss`` is the mean.

    >>> import torch
    >>> outputs, targets = torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 1])
    >>> bool(torch.isclose(per_example(F.cross_entropy)(outputs, targets).mean(), F.cross_entropy(outputs, targets)))
    True
    """
    if loss is F.cross_entropy:
        return _cross_entropy
    if loss is mse:
        return _mse

    def one(output: Tensor, target: Tensor) -> Tensor:
        return loss(output[None], target[None])

    return vmap(one)


def _cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets, reduction="none")


def _mse(outputs: Tensor, targets: Tensor) -> Tensor:
    return (
        (outputs.view_as(targets) - targets).square().flatten(1).mean(1)
        if targets.dim() > 1
        else (outputs.view_as(targets) - targets).square()
    )
