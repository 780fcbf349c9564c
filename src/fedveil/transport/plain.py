"""The plain transport: the server receives and reads every upload."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedveil.core.parts import Delivery, View
from fedveil.core.signal import Signal
from fedveil.core.stage import Context

Packed = np.ndarray[Any, np.dtype[np.uint8]]


@dataclass(frozen=True)
class Plain:
    """Uploads reach the server as they are (over TLS in a deployment), one row per client."""

    @property
    def reveals(self) -> frozenset[View]:
        """Every single upload, hence also their sum."""
        return frozenset({"each", "sum"})

    def remarks(self, cohort: int) -> list[str]:
        """Nothing: the rows of a statement assume that the server sees every upload."""
        return []

    def carry(self, uploads: Mapping[str, Signal], weights: Tensor, ctx: Context) -> Delivery:
        """Hand over the matrices, of two-valued ones their bits; weights are the aggregator's to apply."""
        rows, sent = {}, 0
        for name, signal in uploads.items():
            if signal.levels is None:
                rows[name] = signal.value
                sent += signal.value.numel() * signal.value.element_size()
            else:
                packed = pack(signal.value == signal.levels[1])
                rows[name] = torch.where(unpack(packed, signal.dim).to(signal.value.device), *signal.levels[::-1])
                sent += packed.nbytes
        return Delivery(rows, sent)


def pack(bits: Tensor) -> Packed:
    """Rows of bits as bytes, eight to one."""
    return np.packbits(bits.cpu().numpy(), axis=1, bitorder="little")


def unpack(packed: Packed, dim: int) -> Tensor:
    """The inverse.

    >>> unpack(pack(torch.tensor([[True, False, True]])), 3).tolist()
    [[True, False, True]]
    """
    return torch.from_numpy(np.unpackbits(packed, axis=1, count=dim, bitorder="little").view(np.bool_))
