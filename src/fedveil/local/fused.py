"""Layers that have kernels of their own on a CUDA device; in float32, where speed counts.

They equal the layers that they stand for to rounding. In float64 those themselves run, which is what is proved.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedveil.local.layers import GroupNorm, Layer, Views
from fedveil.local.unfold import has_kernels


class FusedGroupNorm(GroupNorm):
    """Normalisation, scale and shift together, a read and a write each way; and a ReLU, where one follows."""

    rectified = False
    """Whether this layer does the work of a ReLU behind it."""
    _moments: Tensor | None = None
    _found: Views | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Normalise each example, then scale and shift."""
        if self._fits(x):
            self._moments = x.new_empty(0)
            return Layer.forward(self, x)
        self._moments = None
        out = super().forward(x)
        return F.relu(out) if self.rectified else out

    def _fits(self, x: Tensor) -> bool:
        if x.dim() < 3 or not has_kernels(x):
            return False
        from fedveil.local import device_norm

        return device_norm.fits(x, self.original.num_groups)

    def output(self, a: Tensor) -> Tensor:
        """All of it, where there is a kernel."""
        if self._moments is None:
            return super().output(a)
        from fedveil.local import device_norm

        o = self.original
        out, self._moments = device_norm.forward(
            a.contiguous(), self.views["weight"], self.views.get("bias"), o.num_groups, o.eps, self.rectified
        )
        return out

    def back(self, a: Tensor, g: Tensor) -> Tensor:
        """The gradient of the input; those of scale and shift come along."""
        if self._moments is None:
            return super().back(a, g)
        out, self._found = self._backward(a, g)
        return out

    def singles(self, a: Tensor, g: Tensor) -> Views:
        """What came along."""
        if self._moments is None:
            return super().singles(a, g)
        found, self._found = self._found, None
        # Where examples were blanked since, or where nobody asked for the input's gradient.
        return self._backward(a, g)[1] if found is None or self.frame.blank is not None else found

    def _backward(self, a: Tensor, g: Tensor) -> tuple[Tensor, Views]:
        from fedveil.local import device_norm

        assert self._moments is not None
        weight, bias, groups = self.views["weight"], self.views.get("bias"), self.original.num_groups
        out, scales, shifts = device_norm.backward(
            a.contiguous(), g, weight, bias, self._moments, groups, self.rectified
        )
        return out, {"weight": scales} | ({"bias": shifts} if "bias" in self.views else {})


def hooked(module: nn.Module) -> bool:
    """Whether somebody listens to a module, which therefore stays as it is."""
    return bool(module._forward_hooks or module._forward_pre_hooks or module._backward_hooks)


def fuse(module: nn.Module) -> None:
    """Give pooling kernels of their own, and a ReLU right behind a fused layer to that layer."""
    for parent in list(module.modules()):
        before: nn.Module | None = None
        for name, child in list(parent.named_children()):
            if type(child) is nn.MaxPool2d and not hooked(child):
                pool = FusedMaxPool2d.of(child)
                setattr(parent, name, child if pool is None else pool)
            follows = type(parent) is nn.Sequential and isinstance(before, FusedGroupNorm)
            if follows and type(child) is nn.ReLU and not hooked(child):
                before.rectified = True  # type: ignore[union-attr]
                setattr(parent, name, nn.Identity())
            before = child


class _Pooled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, kernel: tuple[int, int]) -> Tensor:
        from fedveil.local import device_pool

        out, ctx.chosen = device_pool.forward(x.contiguous(), kernel)
        ctx.kernel, ctx.like = kernel, x.shape
        return out

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        from fedveil.local import device_pool

        return device_pool.backward(g, ctx.chosen, ctx.like, ctx.kernel), None


class FusedMaxPool2d(nn.Module):
    """Max pooling whose windows do not overlap."""

    def __init__(self, kernel: tuple[int, int]) -> None:
        super().__init__()
        self.kernel = kernel

    @classmethod
    def of(cls, original: nn.MaxPool2d) -> FusedMaxPool2d | None:
        """The same pooling; None where it is of another kind."""
        kernel, stride, padding, dilation = (
            (v, v) if isinstance(v, int) else tuple(v)
            for v in (original.kernel_size, original.stride, original.padding, original.dilation)
        )
        plain = kernel == stride and padding == (0, 0) and dilation == (1, 1)
        plain = plain and not (original.ceil_mode or original.return_indices) and kernel[0] * kernel[1] < 128
        return cls((kernel[0], kernel[1])) if plain else None

    def forward(self, x: Tensor) -> Tensor:
        """The largest of each window."""
        if x.dim() != 4 or not has_kernels(x) or x.shape[2] < self.kernel[0] or x.shape[3] < self.kernel[1]:
            return F.max_pool2d(x, self.kernel)
        out: Tensor = _Pooled.apply(x, self.kernel)  # type: ignore[no-untyped-call]
        return out
