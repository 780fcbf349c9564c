"""Linear layers of many clients."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fedveil.local.layers import Layer, Views, gram_is_smaller, squared
from fedveil.local.steps import Into

LARGE = 2**14
"""Weights from which on a client's product on a CPU is worth a call of its own, which may leave out padding.

Five clients, 784 to 128, batches of 32 in a mean padded to 40, on one core of an EPYC: forward 0.25 ms instead of 0.39
for all at once (oneDNN, which is faster there than MKL), weights' gradients 0.31 instead of 0.35.
"""

_direct: Any = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
"""x Wᵀ + b by oneDNN for float32 numbers in ordinary memory; None where torch came without it."""


class Linear(Layer):
    """y = x Wᵀ + b, for inputs with any number of places between example and feature."""

    handles: ClassVar[type[nn.Module]] = nn.Linear

    def output(self, a: Tensor) -> Tensor:
        """One product per client."""
        rows, weight = self._rows(a), self.views["weight"].transpose(1, 2)
        if self.frame.in_turn and self._large and not self.frame.half:
            out = self._in_turn(rows)
        elif "bias" in self.views and not self.frame.half:
            out = torch.baddbmm(self.views["bias"][:, None], rows, weight)
        else:
            out = self.frame.product(rows, weight)
            out = out.add_(self.views["bias"][:, None]) if "bias" in self.views else out
        return out.view(*a.shape[:-1], -1)

    def back(self, a: Tensor, g: Tensor) -> Tensor:
        """G W."""
        return self.frame.product(self._rows(g), self.views["weight"]).view(a.shape)

    def singles(self, a: Tensor, g: Tensor) -> Views | None:
        """Only where an example has several places, too many for Gram matrices to be smaller."""
        if a.dim() == 2:
            return None
        a, g = a.flatten(1, -2), g.flatten(1, -2)
        if gram_is_smaller(a.shape[1], a.shape[2] * g.shape[2]):
            return None
        out = {"weight": torch.bmm(g.mT, a)}
        return out | {"bias": g.sum(1)} if "bias" in self.views else out

    def squares(self, a: Tensor, g: Tensor) -> Tensor:
        """(‖a‖² + 1)·‖g‖² for one place per example; Gram matrices over several places, in float64."""
        biased = "bias" in self.views
        if a.dim() == 2:
            return (squared(a) + float(biased)) * squared(g)
        a, g = a.flatten(1, -2).double(), g.flatten(1, -2).double()
        inner = torch.bmm(a, a.mT)
        return ((inner + 1 if biased else inner) * torch.bmm(g, g.mT)).sum((1, 2)).clamp_min(0)

    def add(self, a: Tensor, g: Tensor, into: dict[str, Into]) -> None:
        """Gᵀ A and Σ g."""
        rows, seen, to = self._rows(g), self._rows(a), into["weight"]
        if self.frame.half or (self.frame.in_turn and not self._large):
            to.put(self.frame.product(rows.mT, seen))
        elif self.frame.counts is not None:
            for i, count in enumerate(self.frame.counts):
                to.rows[i].addmm_(rows[i, :count].T, seen[i, :count], beta=to.beta, alpha=to.alpha)
        else:
            to.rows.baddbmm_(rows.mT, seen, beta=to.beta, alpha=to.alpha)
        if "bias" in into:
            into["bias"].put(rows.sum(1))

    @property
    def _large(self) -> bool:
        """Whether a client's product takes longer than a call."""
        return self.views["weight"][0].numel() >= LARGE

    def _in_turn(self, rows: Tensor) -> Tensor:
        """One client after another; zero for examples that are not real, where it is known."""
        weight, bias, counts = self.views["weight"], self.views.get("bias"), self.frame.counts
        out = rows.new_zeros(*rows.shape[:2], weight.shape[1])
        direct = _direct is not None and rows.dtype == torch.float32
        for i, own in enumerate(bias if bias is not None else [None] * len(rows)):
            count = rows.shape[1] if counts is None else counts[i]
            if not count:
                continue
            if direct:
                out[i, :count] = _direct(rows[i, :count], weight[i], own, "none", [], "")
            else:
                out[i, :count] = nn.functional.linear(rows[i, :count], weight[i], own)
        return out

    def _rows(self, x: Tensor) -> Tensor:
        return x.reshape(self.frame.clients, -1, x.shape[-1])
