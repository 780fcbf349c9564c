"""In which number format products are computed on a CUDA device.

A performance setting, which never changes what is claimed: it reaches forward and backward passes alone. Norms of
single examples' gradients, and the sums that are clipped by them, are always computed in the format of the weights, so
that the bound holds for what is summed, whatever the gradients are.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, get_args

import torch

from fedveil.core.team import at_work

Precision = Literal["float32", "tf32", "bf16"]
PRECISIONS: tuple[str, ...] = get_args(Precision)


@contextmanager
def products(precision: str) -> Iterator[None]:
    """Products of float32 numbers inside are exact to rounding, or with ``tf32`` have 10 bits of each factor.

    >>> with products("float32"):
    ...     torch.ones(1) @ torch.ones(1)
    tensor(1.)
    """
    # Threads that share out work on a CPU would find each other's settings and leave them behind.
    if at_work() or not torch.backends.cuda.is_built():  # type: ignore[no-untyped-call]
        yield
        return
    backends: Any = torch.backends
    places = (backends.cuda.matmul, backends.cudnn.conv)
    before = [place.fp32_precision for place in places]
    for place in places:
        place.fp32_precision = "tf32" if precision == "tf32" else "ieee"
    try:
        yield
    finally:
        for place, value in zip(places, before, strict=True):
            place.fp32_precision = value
