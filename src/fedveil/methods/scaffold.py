"""SCAFFOLD: averaging with control variates against client drift (Karimireddy et al. 2020; SPEC 2)."""

from __future__ import annotations

from fedveil.aggregate.mean import Mean
from fedveil.core.method import Method, Weights
from fedveil.core.parts import Aggregator, Transport
from fedveil.local.rules import Scaffold
from fedveil.transport.plain import Plain


def scaffold(
    *,
    server_lr: float = 1.0,
    server_momentum: float = 0.0,
    weights: Weights = "uniform",
    transport: Transport = Plain(),
    aggregate: Aggregator = Mean(),
) -> Method:
    """Local steps follow g + c − c_k; clients upload their move and the change of their c_k."""
    return Method(
        name="scaffold",
        local=Scaffold(server_lr, server_momentum),
        transport=transport,
        aggregate=aggregate,
        weights=weights,
    )
