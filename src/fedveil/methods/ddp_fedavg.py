"""Distributed DP-FedAvg: clients share out the noise of their sum, and nobody is trusted (SPEC 6.3)."""

from __future__ import annotations

from typing import Literal

from fedveil.aggregate.mean import Mean
from fedveil.core.errors import Refused, positive
from fedveil.core.method import Method
from fedveil.core.parts import Aggregator, Concealing, Transport
from fedveil.core.stage import chain
from fedveil.local.rules import FedAvg
from fedveil.privacy.clip import clip
from fedveil.privacy.distributed import distribute
from fedveil.privacy.noise import Multiplier, PerClient


def ddp_fedavg(
    *,
    clip_norm: float,
    sigma: Multiplier,
    transport: Transport,
    fewest: int,
    most: int,
    noise: Literal["skellam", "discrete_gaussian"] = "skellam",
    server_lr: float = 1.0,
    server_momentum: float = 0.0,
    aggregate: Aggregator = Mean(),
) -> Method:
    """Σ clip(Δ_k) + noise of deviation σC, in whole numbers modulo 2^b; whole clients, towards server and public.

    ``fewest`` and ``most`` are the sizes of a cohort. The noise counts as far as the transport promises that honest
    shares of it stand in every sum; with more of them there is more noise. b is the transport's, at most 20.
    """
    positive(clip_norm=clip_norm)
    if isinstance(sigma, PerClient):
        raise Refused("sigma: clients share out one noise; give one number")
    if not isinstance(transport, Concealing) or "each" in transport.reveals:
        raise Refused(
            "transport: the clients of ddp_fedavg share out the noise, which protects their sum only, and this "
            "transport shows the server every single upload; set transport=masks, or use method=dp_fedavg_local"
        )
    at_client, at_server = distribute(sigma, norm=clip_norm, fewest=fewest, most=most, transport=transport, noise=noise)
    return Method(
        name="ddp_fedavg",
        local=FedAvg(server_lr, server_momentum),
        transport=transport,
        aggregate=aggregate,
        on_delta=chain(clip(clip_norm), at_client),
        on_mean=chain(at_server),
    )
