"""Central DP-FedAvg: clients clip their moves, a trusted server adds the noise (McMahan et al. 2018; SPEC 3.1)."""

from __future__ import annotations

from typing import Literal

from fedveil.aggregate.mean import Mean
from fedveil.core.errors import Refused, one_of, positive
from fedveil.core.method import Method
from fedveil.core.parts import Aggregator, Transport
from fedveil.core.stage import chain
from fedveil.local.rules import FedAvg, Scaffold
from fedveil.privacy.adaptive import adaptive_clip
from fedveil.privacy.clip import clip
from fedveil.privacy.noise import Multiplier, PerClient, check_multiplier, gaussian
from fedveil.transport.plain import Plain


def dp_fedavg_central(
    *,
    clip_norm: float,
    sigma: Multiplier,
    cohort: int,
    clipping: Literal["fixed", "adaptive"] = "fixed",
    drift: Literal["none", "scaffold"] = "none",
    server_lr: float = 1.0,
    server_momentum: float = 0.0,
    transport: Transport = Plain(),
    aggregate: Aggregator = Mean(),
) -> Method:
    """Σ clip(Δ_k)/n + N(0, (σC/n)²) with the expected cohort n as divisor; whole clients, towards the public.

    ``drift: scaffold`` corrects local steps by control variates that stay with the clients, so that only Poisson draws
    of clients amplify (docs/decisions/011); ``clipping: adaptive`` starts at ``clip_norm`` and follows the median of
    the moves' norms, the count being paid for out of sigma.
    """
    positive(clip_norm=clip_norm)
    one_of("drift", drift, ("none", "scaffold"))
    one_of("clipping", clipping, ("fixed", "adaptive"))
    if isinstance(sigma, PerClient):
        raise Refused("sigma: the server adds one noise for all clients; give one number")
    check_multiplier(sigma, "sigma")
    rule = FedAvg(server_lr, server_momentum)
    if drift == "scaffold":
        rule = Scaffold(server_lr, server_momentum, "private")
    if clipping == "adaptive":
        # The count is worth a tenth of what the moves tell: σ_b ≥ 1.58 σ takes at most 10 % of 1/σ².
        stage = adaptive_clip(cohort=cohort, start=clip_norm, count_std=max(cohort / 20, 10**0.5 * sigma / 2))
        on_delta, remaining = chain(stage), stage.remaining(sigma)
    else:
        on_delta, remaining = chain(clip(clip_norm)), sigma
    return Method(
        name="dp_fedavg_central",
        local=rule,
        transport=transport,
        aggregate=aggregate,
        on_delta=on_delta,
        on_mean=chain(gaussian(remaining)),
    )
