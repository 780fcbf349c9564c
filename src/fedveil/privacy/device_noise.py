"""Gaussian noise drawn on a CUDA device: all rows in one launch, by Philox (Salmon et al. 2011) as Triton has it.

Number j of a row is a function of the row's key and of j alone, so that neither packing nor the order in which blocks
run changes it. Each Philox block gives 128 bits, and so two normals in float64: √(−2 ln u)·(cos, sin)(2πv) with 53 bits
in u and in v, as on the CPU.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 512


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _kernel(out, value, keys, stds, dim, half, FINE: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    a, b, c, d = tl.randint4x(tl.load(keys + row), i)
    u = ((a.to(tl.uint64) << 32) | b.to(tl.uint64)) >> 11
    v = ((c.to(tl.uint64) << 32) | d.to(tl.uint64)) >> 11
    radius = tl.sqrt(-2.0 * tl.log((u.to(tl.float64) + 1.0) * 1.1102230246251565e-16))
    angle = v.to(tl.float64) * (6.283185307179586 * 1.1102230246251565e-16)
    std = tl.load(stds + row)
    # The largest power of two that is not above FINE·std: its exponent alone.
    grid = ((std * FINE).to(tl.int64, bitcast=True) & 0x7FF0000000000000).to(tl.float64, bitcast=True)
    inverse, scale = 1.0 / grid, std / grid * radius
    place = row * dim + i
    first = i < half
    x = tl.load(value + place, mask=first, other=0.0).to(tl.float64)
    steps = tl.floor(x * inverse + scale * tl.cos(angle) + 0.5)
    tl.store(out + place, (steps * grid).to(out.dtype.element_ty), mask=first)
    second = half + i < dim
    x = tl.load(value + place + half, mask=second, other=0.0).to(tl.float64)
    steps = tl.floor(x * inverse + scale * tl.sin(angle) + 0.5)
    tl.store(out + place + half, (steps * grid).to(out.dtype.element_ty), mask=second)


def add_on_grid(value: Tensor, keys: Tensor, stds: Tensor, fine: float) -> Tensor:
    """g·⌊(x + N(0, std²))/g + ½⌋ for each row, where g is the largest power of two up to ``fine`` of its deviation.

    ``keys`` (int64) and ``stds`` (float64) have one number per row; nothing is read back from the device.
    """
    value = value.contiguous()
    out = torch.empty_like(value)
    rows, dim = value.shape
    half = (dim + 1) // 2
    _kernel[(rows, triton.cdiv(half, BLOCK))](out, value, keys, stds, dim, half, FINE=fine, BLOCK=BLOCK)
    return out
