"""Convolutions that see few numbers at a place, such as the first of a network, of many clients on a CUDA device.

Products of such long and thin matrices keep no library busy; here each number is read once and stays in registers.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from fedveil.local.unfold import Window

CHANNELS, PLACES = 16, 1024


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _forward(  # type: ignore[no-untyped-def]
    out, image, weight, bias, stride_w, stride_b, size, channels, C: tl.constexpr, H: tl.constexpr, W: tl.constexpr,
    DOWN: tl.constexpr, ACROSS: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    PH: tl.constexpr, PW: tl.constexpr, DH: tl.constexpr, DW: tl.constexpr, BIASED: tl.constexpr,
    CHANNELS: tl.constexpr, PLACES: tl.constexpr,
):  # fmt: skip
    example = tl.program_id(0).to(tl.int64)
    client = example // size
    o = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    place = tl.program_id(2) * PLACES + tl.arange(0, PLACES)
    y, x = (place // ACROSS) * SH - PH, (place % ACROSS) * SW - PW
    total = tl.zeros((CHANNELS, PLACES), dtype=tl.float32)
    for tap in tl.static_range(C * KH * KW):
        h, v = y + ((tap // KW) % KH) * DH, x + (tap % KW) * DW
        inside = (place < DOWN * ACROSS) & (h >= 0) & (h < H) & (v >= 0) & (v < W)
        start = image + example * (C * H * W) + (tap // (KH * KW)) * (H * W)
        seen = tl.load(start + h * W + v, mask=inside, other=0.0)
        known = tl.load(weight + client * stride_w + o * (C * KH * KW) + tap, mask=o < channels, other=0.0)
        total += known[:, None] * seen[None, :]
    if BIASED:
        total += tl.load(bias + client * stride_b + o, mask=o < channels, other=0.0)[:, None]
    where = (example * channels + o)[:, None] * (DOWN * ACROSS) + place[None, :]
    tl.store(out + where, total, mask=(o < channels)[:, None] & (place < DOWN * ACROSS)[None, :])


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _weights(  # type: ignore[no-untyped-def]
    out, shifts, image, gradient, channels, C: tl.constexpr, H: tl.constexpr, W: tl.constexpr,
    DOWN: tl.constexpr, ACROSS: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    PH: tl.constexpr, PW: tl.constexpr, DH: tl.constexpr, DW: tl.constexpr,
    CHANNELS: tl.constexpr, PLACES: tl.constexpr,
):  # fmt: skip
    example = tl.program_id(0).to(tl.int64)
    o = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    place = tl.arange(0, PLACES)
    y, x = (place // ACROSS) * SH - PH, (place % ACROSS) * SW - PW
    there = place < DOWN * ACROSS
    where = (example * channels + o)[:, None] * (DOWN * ACROSS) + place[None, :]
    g = tl.load(gradient + where, mask=(o < channels)[:, None] & there[None, :], other=0.0)
    tl.store(shifts + example * channels + o, tl.sum(g, axis=1), mask=o < channels)
    for tap in tl.static_range(C * KH * KW):
        h, v = y + ((tap // KW) % KH) * DH, x + (tap % KW) * DW
        inside = there & (h >= 0) & (h < H) & (v >= 0) & (v < W)
        start = image + example * (C * H * W) + (tap // (KH * KW)) * (H * W)
        seen = tl.load(start + h * W + v, mask=inside, other=0.0)
        found = tl.sum(g * seen[None, :], axis=1)
        tl.store(out + (example * channels + o) * (C * KH * KW) + tap, found, mask=o < channels)


def _geometry(image: Tensor, window: Window) -> tuple[int, ...]:
    places = window.places(image.shape[2], image.shape[3])
    return (*image.shape[1:], *places, *window.kernel, *window.stride, *window.padding, *window.dilation)


def forward(image: Tensor, weight: Tensor, bias: Tensor | None, window: Window) -> Tensor:
    """Each client's kernels ``(clients, out, in, ...)`` over its own images ``(clients · examples, in, ...)``."""
    image = image.contiguous()
    channels, (down, across) = weight.shape[1], window.places(image.shape[2], image.shape[3])
    out = image.new_empty(len(image), channels, down, across)
    block = min(PLACES, int(triton.next_power_of_2(down * across)))
    grid = (len(image), triton.cdiv(channels, CHANNELS), triton.cdiv(down * across, block))
    _forward[grid](
        out, image, weight, weight if bias is None else bias, weight.stride(0), 0 if bias is None else bias.stride(0),
        len(image) // len(weight), channels, *_geometry(image, window), BIASED=bias is not None,
        CHANNELS=CHANNELS, PLACES=block, num_warps=8,
    )  # fmt: skip
    return out


def weights(image: Tensor, gradient: Tensor, window: Window) -> tuple[Tensor, Tensor] | None:
    """Each example's gradients of kernel and shift; None where an image is too large for one program."""
    image, gradient = image.contiguous(), gradient.contiguous()
    channels, places = gradient.shape[1], gradient[0, 0].numel()
    if places > PLACES:
        return None
    out = image.new_empty(len(image), channels, image.shape[1], *window.kernel)
    shifts = image.new_empty(len(image), channels)
    _weights[len(image), triton.cdiv(channels, CHANNELS)](
        out, shifts, image, gradient, channels, *_geometry(image, window),
        CHANNELS=CHANNELS, PLACES=int(triton.next_power_of_2(places)), num_warps=8,
    )  # fmt: skip
    return out, shifts
