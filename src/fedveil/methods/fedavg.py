"""Federated averaging (McMahan et al. 2017; SPEC 1)."""

from __future__ import annotations

from fedveil.aggregate.mean import Mean
from fedveil.core.method import Method, Weights
from fedveil.core.parts import Aggregator, Transport
from fedveil.local.rules import averaging
from fedveil.transport.plain import Plain


def fedavg(
    *,
    server_lr: float = 1.0,
    server_momentum: float = 0.0,
    client_momentum: float = 0.0,
    weights: Weights | None = None,
    transport: Transport = Plain(),
    aggregate: Aggregator = Mean(),
) -> Method:
    """Each client takes K steps of SGD from w; the server adds the weighted mean of their moves to w.

    ``weights`` None: by examples, or uniform where the aggregator counts every client once.
    """
    return Method(
        name="fedavg",
        local=averaging(server_lr, server_momentum, client_momentum),
        transport=transport,
        aggregate=aggregate,
        weights=weights or ("examples" if aggregate.weighted else "uniform"),
    )
