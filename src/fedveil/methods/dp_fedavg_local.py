"""DP-FedAvg with noise at the clients, in every local step or on the whole move (SPEC 3)."""

from __future__ import annotations

from typing import Unpack

from fedveil.aggregate.mean import Mean
from fedveil.core.method import Method
from fedveil.core.parts import Aggregator, Transport
from fedveil.local.rules import averaging
from fedveil.methods.noisy import PLAIN, LocalNoise, slots, variant
from fedveil.transport.plain import Plain


def dp_fedavg_local(
    *,
    algorithm_variant: str | int = "step_noise",
    server_lr: float = 1.0,
    server_momentum: float = 0.0,
    client_momentum: float = 0.0,
    transport: Transport = Plain(),
    aggregate: Aggregator = Mean(),
    **noise: Unpack[LocalNoise],
) -> Method:
    """FedAvg whose clients clip every example and add their own noise, so that the server is not trusted."""
    chosen = variant(algorithm_variant, PLAIN)
    return Method(
        name=f"dp_fedavg_local/{chosen}",
        local=averaging(server_lr, server_momentum, client_momentum),
        transport=transport,
        aggregate=aggregate,
        **slots(chosen, None, **noise),
    )
