"""Max pooling without overlap on a CUDA device: torch's backward pass takes ten times what its bytes take."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _forward(  # type: ignore[no-untyped-def]
    out, chosen, x, H: tl.constexpr, W: tl.constexpr, DOWN: tl.constexpr, ACROSS: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    image = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = place < DOWN * ACROSS
    start = x + image * (H * W) + (place // ACROSS) * (KH * W) + (place % ACROSS) * KW
    best = tl.load(start, mask=there, other=0.0)
    at = tl.zeros((BLOCK,), dtype=tl.int8)
    for k in tl.static_range(1, KH * KW):
        value = tl.load(start + (k // KW) * W + k % KW, mask=there, other=0.0)
        better = (value > best) | (value != value)  # as torch has it: the first of equals, and NaN is not lost
        best = tl.where(better, value, best)
        at = tl.where(better, k, at).to(tl.int8)
    tl.store(out + image * (DOWN * ACROSS) + place, best, mask=there)
    tl.store(chosen + image * (DOWN * ACROSS) + place, at, mask=there)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _backward(  # type: ignore[no-untyped-def]
    out, chosen, gradient, H: tl.constexpr, W: tl.constexpr, DOWN: tl.constexpr, ACROSS: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    image = tl.program_id(0).to(tl.int64)
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    h, w = n // W, n % W
    y, x = h // KH, w // KW
    seen = (n < H * W) & (y < DOWN) & (x < ACROSS)
    place = image * (DOWN * ACROSS) + y * ACROSS + x
    at = tl.load(chosen + place, mask=seen, other=-1)
    g = tl.load(gradient + place, mask=seen, other=0.0)
    tl.store(out + image * (H * W) + n, tl.where(at == (h % KH) * KW + w % KW, g, 0.0), mask=n < H * W)


def forward(x: Tensor, kernel: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """The largest of each window of contiguous ``x``, and which one it was."""
    height, width = x.shape[2:]
    down, across = height // kernel[0], width // kernel[1]
    out = x.new_empty(*x.shape[:2], down, across)
    chosen = torch.empty_like(out, dtype=torch.int8)
    block = min(BLOCK, triton.next_power_of_2(down * across))
    grid = (len(x) * x.shape[1], triton.cdiv(down * across, block))
    _forward[grid](out, chosen, x, height, width, down, across, *kernel, BLOCK=block)
    return out, chosen


def backward(gradient: Tensor, chosen: Tensor, like: tuple[int, ...], kernel: tuple[int, int]) -> Tensor:
    """The gradient of an input of this shape."""
    out = gradient.new_empty(like)
    block = min(BLOCK, triton.next_power_of_2(like[2] * like[3]))
    grid = (like[0] * like[1], triton.cdiv(like[2] * like[3], block))
    _backward[grid](out, chosen, gradient.contiguous(), *like[2:], *chosen.shape[2:], *kernel, BLOCK=block)
    return out
