"""Patches of images as columns of matrices (im2col), for convolutions of many clients on a CUDA device.

``torch.nn.functional.unfold`` takes one image after another there: 24 ms where one launch for all takes less than one.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional as F

Pair = tuple[int, int]


@dataclass(frozen=True)
class Window:
    """What a kernel sees, and how it moves; zeros lie around the image."""

    kernel: Pair
    stride: Pair
    padding: Pair
    dilation: Pair

    def places(self, height: int, width: int) -> Pair:
        """How many places there are, down and across."""
        down, across = (
            (n + 2 * p - d * (k - 1) - 1) // s + 1
            for n, k, s, p, d in zip(
                (height, width), self.kernel, self.stride, self.padding, self.dilation, strict=True
            )
        )
        return down, across


def patches(a: Tensor, window: Window, clients: int, dtype: torch.dtype | None = None) -> Tensor:
    """``(clients, inputs of a place, examples · places)`` from the images ``(clients · examples, channels, ...)``.

    With as many clients as images this is what ``torch.nn.functional.unfold`` gives.

    >>> a = torch.arange(9.0).view(1, 1, 3, 3)
    >>> patches(a, Window((2, 2), (1, 1), (0, 0), (1, 1)), 1)[0].tolist()[0]
    [0.0, 1.0, 3.0, 4.0]
    """
    size = len(a) // clients
    down, across = window.places(a.shape[2], a.shape[3])
    inputs = a.shape[1] * window.kernel[0] * window.kernel[1]
    if a.is_cuda and _triton():
        from fedveil.local import device_unfold

        out = a.new_empty(clients, inputs, size * down * across, dtype=dtype)
        device_unfold.fill(out, a.contiguous(), window, size, (down, across))
        return out
    flat = F.unfold(a, window.kernel, window.dilation, window.padding, window.stride)
    return (
        flat.reshape(clients, size, inputs, -1)
        .transpose(1, 2)
        .reshape(clients, inputs, -1)
        .to(dtype or a.dtype)
        .contiguous()
    )


def images(columns: Tensor, window: Window, like: Tensor) -> Tensor:
    """The transpose of :func:`patches`: images of the shape of ``like``, from ``(clients, inputs, examples · places)``.

    >>> a = torch.ones(1, 1, 3, 3)
    >>> images(torch.ones(1, 4, 4), Window((2, 2), (1, 1), (0, 0), (1, 1)), a)[0, 0].tolist()[1]
    [2.0, 4.0, 2.0]
    """
    clients, inputs = columns.shape[:2]
    size, places = len(like) // clients, window.places(like.shape[2], like.shape[3])
    if columns.is_cuda and _triton():
        from fedveil.local import device_unfold

        out = torch.empty_like(like, memory_format=torch.contiguous_format)
        device_unfold.gather(columns.contiguous(), out, window, size, places)
        return out
    flat = columns.reshape(clients, inputs, size, -1).transpose(1, 2).reshape(len(like), inputs, -1)
    return F.fold(flat, like.shape[2:], window.kernel, window.dilation, window.padding, window.stride)


def has_kernels(x: Tensor) -> bool:
    """Whether there are kernels of our own for this tensor: on a CUDA device, in float32, where speed counts."""
    return x.is_cuda and x.dtype == torch.float32 and _triton()


@cache
def _triton() -> bool:
    return importlib.util.find_spec("triton") is not None
