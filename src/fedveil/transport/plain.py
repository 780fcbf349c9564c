"""The plain transport: the server receives and reads every upload."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from fedveil.core.parts import Delivery, View


@dataclass(frozen=True)
class Plain:
    """Uploads reach the server as they are (over TLS in a deployment), one row per client."""

    @property
    def reveals(self) -> frozenset[View]:
        """Every single upload, hence also their sum."""
        return frozenset({"each", "sum"})

    def carry(self, uploads: Mapping[str, Tensor], weights: Tensor) -> Delivery:
        """Hand over the matrices; weights are the aggregator's to apply."""
        sent = sum(value.numel() * value.element_size() for value in uploads.values())
        return Delivery(dict(uploads), sent)
