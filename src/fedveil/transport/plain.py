"""The plain transport: the server receives and reads every upload."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from fedveil.core.parts import Delivery, View
from fedveil.core.signal import Signal
from fedveil.core.stage import Context


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
        """Hand over the matrices; weights are the aggregator's to apply."""
        rows = {name: signal.value for name, signal in uploads.items()}
        return Delivery(rows, sum(value.numel() * value.element_size() for value in rows.values()))
