"""Patches of all images in one launch on a CUDA device: each number is read where it lies and written once."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from fedveil.local.unfold import Pair, Window

ROWS, PLACES = 8, 256


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _kernel(  # type: ignore[no-untyped-def]
    out, a, inputs, size, C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, DOWN: tl.constexpr, ACROSS: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    DH: tl.constexpr, DW: tl.constexpr, ROWS: tl.constexpr, PLACES: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0).to(tl.int64)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    place = tl.program_id(2) * PLACES + tl.arange(0, PLACES)
    channel, i, j = row // (KH * KW), (row // KW) % KH, row % KW
    y = (place // ACROSS)[None, :] * SH + (i * DH - PH)[:, None]
    x = (place % ACROSS)[None, :] * SW + (j * DW - PW)[:, None]
    wanted = (row < inputs)[:, None] & (place < DOWN * ACROSS)[None, :]
    inside = wanted & (y >= 0) & (y < H) & (x >= 0) & (x < W)
    value = tl.load(a + (n * C + channel[:, None]) * (H * W) + y * W + x, mask=inside, other=0.0)
    client, example = n // size, n % size
    start = ((client * inputs + row) * size + example) * (DOWN * ACROSS)
    tl.store(out + start[:, None] + place[None, :], value.to(out.dtype.element_ty), mask=wanted)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _gather(  # type: ignore[no-untyped-def]
    out, columns, inputs, size, C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, DOWN: tl.constexpr,
    ACROSS: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr,
    PW: tl.constexpr, DH: tl.constexpr, DW: tl.constexpr, PLACES: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * PLACES + tl.arange(0, PLACES)
    channel, h, w = at // (H * W), (at // W) % H, at % W
    client, example = n // size, n % size
    total = tl.zeros((PLACES,), dtype=out.dtype.element_ty)
    for tap in tl.static_range(KH * KW):
        y, x = h + PH - (tap // KW) * DH, w + PW - (tap % KW) * DW
        seen = (at < C * H * W) & (y >= 0) & (y < DOWN * SH) & (x >= 0) & (x < ACROSS * SW)
        if SH > 1 or SW > 1:
            seen = seen & (y % SH == 0) & (x % SW == 0)
        row = client * inputs + channel * (KH * KW) + tap
        place = (row * size + example) * (DOWN * ACROSS) + (y // SH) * ACROSS + x // SW
        total += tl.load(columns + place, mask=seen, other=0.0).to(out.dtype.element_ty)
    tl.store(out + n * (C * H * W) + at, total, mask=at < C * H * W)


def gather(columns: Tensor, out: Tensor, window: Window, size: int, places: Pair) -> None:
    """Add up, for every number of an image, all that its patches say of it."""
    number = out[0].numel()
    geometry = (*out.shape[1:], *places, *window.kernel, *window.stride, *window.padding, *window.dilation)
    grid = (len(out), triton.cdiv(number, PLACES))
    _gather[grid](out, columns, columns.shape[1], size, *geometry, PLACES=PLACES)


def fill(out: Tensor, a: Tensor, window: Window, size: int, places: Pair) -> None:
    """Write the patches of ``size`` images per client."""
    grid = (len(a), triton.cdiv(out.shape[1], ROWS), triton.cdiv(places[0] * places[1], PLACES))
    geometry = (*a.shape[1:], *places, *window.kernel, *window.stride, *window.padding, *window.dilation)
    _kernel[grid](out, a, out.shape[1], size, *geometry, ROWS=ROWS, PLACES=PLACES)
