"""Layers one after another, forward and backward without autograd, whose own cost a small step feels.

A step of a few clients of a small model takes less than a millisecond on a CPU. Recording and walking autograd's graph,
with a callback into Python for each layer, is a good part of it: without, and with views of the rows that last, a round
of FedAvg (ten clients, MLP) takes 0.77 of the CPU time, with one client at a time 0.57 (one thread, a busy machine).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedveil.local.fused import hooked
from fedveil.local.layers import Layer
from fedveil.local.linear import Linear
from fedveil.local.objective import Loss

_nll = torch.ops.aten.nll_loss_forward.default
_nll_back = torch.ops.aten.nll_loss_backward.default
_softmax_back = torch.ops.aten._log_softmax_backward_data.default
_relu_back = torch.ops.aten.threshold_backward.default

IGNORED = -100
"""The target that ``torch.nn.functional.cross_entropy`` passes over."""


class Straight:
    """Linear layers with ReLU in between, and the cross-entropy of classes behind them.

    The operations are those that autograd would call, in its order: results are equal bit for bit.
    """

    def __init__(self, parts: list[nn.Module]) -> None:
        self.flattens = type(parts[0]) is nn.Flatten
        self.parts = parts[1:] if self.flattens else parts

    @classmethod
    def of(cls, module: nn.Module, loss: Loss) -> Straight | None:
        """What a module of folded layers comes down to; None where it is anything else."""
        parts = list(_laid_out(module))
        plain = all(type(part) in (Linear, nn.ReLU) for part in (parts[1:] if _flattens(parts[0]) else parts))
        heard = any(hooked(part) for part in module.modules())
        return cls(parts) if plain and not heard and loss is F.cross_entropy else None

    def fits(self, x: Tensor, y: Tensor) -> bool:
        """Whether each example is one vector with one class."""
        return not x.is_cuda and (self.flattens or x.dim() == 2) and y.dim() == 1 and not y.is_floating_point()

    def losses(self, x: Tensor, y: Tensor, shares: Tensor) -> Tensor:
        """Each example's loss; layers get to know the gradients of their sum, each times its share."""
        x = x.flatten(1) if self.flattens else x
        inputs = []
        for part in self.parts:
            inputs.append(x)
            if isinstance(part, Layer):
                part.frame.called.append(part)
                x = part.output(x)
            else:
                x = torch.relu(x)
        logs = torch.log_softmax(x, 1)
        losses, weight = _nll(logs, y, None, 0, IGNORED)
        g = _softmax_back(_nll_back(shares, logs, y, None, 0, IGNORED, weight), logs, 1, x.dtype)
        first = next(i for i, part in enumerate(self.parts) if isinstance(part, Layer))
        for i in range(len(self.parts) - 1, first - 1, -1):
            part, a = self.parts[i], inputs[i]
            if isinstance(part, Layer):
                back = part.back(a, g) if i > first else None
                part.frame.book(part, a, g)
            else:
                back = _relu_back(g, inputs[i + 1], 0) if i + 1 < len(inputs) else _relu_back(g, x, 0)
            g = back
        return losses  # type: ignore[no-any-return]


def _laid_out(module: nn.Module) -> Iterator[nn.Module]:
    """Modules in the order of their calls, where sequences do nothing but call them."""
    if type(module) is not nn.Sequential:
        yield module
        return
    for child in module:
        yield from _laid_out(child)


def _flattens(part: nn.Module) -> bool:
    return type(part) is nn.Flatten and (part.start_dim, part.end_dim) == (1, -1)
