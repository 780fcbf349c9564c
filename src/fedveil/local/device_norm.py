"""Norms on a CUDA device, each number read once: squared norms, and group normalisation with its gradients."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

LARGEST = 2**14
"""Numbers of a group that one program holds."""


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _forward(  # type: ignore[no-untyped-def]
    out, moments, x, weight, bias, stride_w, stride_b, size, eps, groups, own, places,
    BIASED: tl.constexpr, RECTIFIED: tl.constexpr, CHANNELS: tl.constexpr, PLACES: tl.constexpr,
):  # fmt: skip
    example, group = tl.program_id(0).to(tl.int64), tl.program_id(1)
    c, p = tl.arange(0, CHANNELS)[:, None], tl.arange(0, PLACES)[None, :]
    there = (c < own) & (p < places)
    start = (example * groups + group) * own * places
    value = tl.load(x + start + c * places + p, mask=there, other=0.0)
    number = own * places
    mean = tl.sum(tl.sum(value, axis=1), axis=0) / number
    centred = tl.where(there, value - mean, 0.0)
    inverse = 1.0 / tl.sqrt(tl.sum(tl.sum(centred * centred, axis=1), axis=0) / number + eps)
    tl.store(moments + (example * groups + group) * 2, mean)
    tl.store(moments + (example * groups + group) * 2 + 1, inverse)
    client, channel = example // size, group * own + c
    scale = tl.load(weight + client * stride_w + channel, mask=c < own, other=0.0)
    y = centred * inverse * scale
    if BIASED:
        y += tl.load(bias + client * stride_b + channel, mask=c < own, other=0.0)
    if RECTIFIED:
        y = tl.where(y <= 0, 0.0, y)  # NaN stays
    tl.store(out + start + c * places + p, y, mask=there)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _backward(  # type: ignore[no-untyped-def]
    out, scales, shifts, moments, x, gradient, weight, bias, stride_w, stride_b, size, groups, own, places,
    BIASED: tl.constexpr, RECTIFIED: tl.constexpr, CHANNELS: tl.constexpr, PLACES: tl.constexpr,
):  # fmt: skip
    example, group = tl.program_id(0).to(tl.int64), tl.program_id(1)
    c, p = tl.arange(0, CHANNELS)[:, None], tl.arange(0, PLACES)[None, :]
    there = (c < own) & (p < places)
    start = (example * groups + group) * own * places
    mean = tl.load(moments + (example * groups + group) * 2)
    inverse = tl.load(moments + (example * groups + group) * 2 + 1)
    g = tl.load(gradient + start + c * places + p, mask=there, other=0.0)
    value = tl.load(x + start + c * places + p, mask=there, other=0.0)
    normal = tl.where(there, (value - mean) * inverse, 0.0)
    client = example // size
    scale = tl.load(weight + client * stride_w + group * own + c, mask=c < own, other=0.0)
    if RECTIFIED:
        y = normal * scale
        if BIASED:
            y += tl.load(bias + client * stride_b + group * own + c, mask=c < own, other=0.0)
        g = tl.where(y <= 0, 0.0, g)
    channel = group * own + tl.arange(0, CHANNELS)
    known = tl.arange(0, CHANNELS) < own
    tl.store(scales + example * groups * own + channel, tl.sum(g * normal, axis=1), mask=known)
    tl.store(shifts + example * groups * own + channel, tl.sum(g, axis=1), mask=known)
    g *= scale
    number = own * places
    along = tl.sum(tl.sum(g, axis=1), axis=0) / number
    across = tl.sum(tl.sum(g * normal, axis=1), axis=0) / number
    tl.store(out + start + c * places + p, inverse * (g - along - normal * across), mask=there)


def _shape(x: Tensor, groups: int) -> tuple[int, int, dict[str, int]]:
    own, places = x.shape[1] // groups, x[0, 0].numel()
    tile = {"CHANNELS": triton.next_power_of_2(own), "PLACES": triton.next_power_of_2(places)}
    return own, places, tile | {"num_warps": 8 if tile["CHANNELS"] * tile["PLACES"] >= 4096 else 4}


def fits(x: Tensor, groups: int) -> bool:
    """Whether a group is small enough for one program."""
    _, _, tile = _shape(x, groups)
    return bool(tile["CHANNELS"] * tile["PLACES"] <= LARGEST)


def forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, groups: int, eps: float, rectified: bool
) -> tuple[Tensor, Tensor]:
    """The output for contiguous ``x``, rectified if asked, and mean and inverse deviation of each example's groups."""
    own, places, tile = _shape(x, groups)
    out, moments = x.new_empty(x.shape), x.new_empty(len(x), groups, 2)
    _forward[(len(x), groups)](
        out, moments, x, weight, weight if bias is None else bias, weight.stride(0),
        0 if bias is None else bias.stride(0), len(x) // len(weight), eps, groups, own, places,
        BIASED=bias is not None, RECTIFIED=rectified, **tile,
    )  # fmt: skip
    return out, moments


def backward(
    x: Tensor, gradient: Tensor, weight: Tensor, bias: Tensor | None, moments: Tensor, groups: int, rectified: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradient of the input, and each example's gradients of scale and shift ``(examples, channels)``."""
    own, places, tile = _shape(x, groups)
    out, scales, shifts = x.new_empty(x.shape), x.new_empty(x.shape[:2]), x.new_empty(x.shape[:2])
    _backward[(len(x), groups)](
        out, scales, shifts, moments, x, gradient.contiguous(), weight, weight if bias is None else bias,
        weight.stride(0), 0 if bias is None else bias.stride(0), len(x) // len(weight), groups, own, places,
        BIASED=bias is not None, RECTIFIED=rectified, **tile,
    )  # fmt: skip
    return out, scales, shifts


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _squares(out, x, length, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    total = tl.zeros((BLOCK,), dtype=tl.float64)
    for first in range(0, length, BLOCK):
        at = first + tl.arange(0, BLOCK)
        value = tl.load(x + row * length + at, mask=at < length, other=0.0).to(tl.float64)
        total += value * value
    tl.store(out + row, tl.sum(total, axis=0))


def squares(x: Tensor) -> Tensor:
    """Each row's sum of squares, in float64 (torch writes the row down in float64 first)."""
    out = torch.empty(len(x), dtype=torch.float64, device=x.device)
    block = min(1024, triton.next_power_of_2(x.shape[1]))
    _squares[(len(x),)](out, x.contiguous(), x.shape[1], BLOCK=block)
    return out
