"""APA-FL: attackers are sensed and stopped on uploads that no server ever sees (SPEC 7)."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Unpack, cast

from fedveil.aggregate.controllers import Adaptive
from fedveil.core.errors import Refused, not_negative, positive
from fedveil.core.method import Method
from fedveil.core.parts import Aggregator, Controller, Transport
from fedveil.core.stage import chain
from fedveil.local.rules import averaging
from fedveil.methods.announcing import Announcing, Rule
from fedveil.methods.noisy import PLAIN, LocalNoise, Slots, slots, variant
from fedveil.privacy.clip import clip
from fedveil.privacy.noise import PerClient
from fedveil.privacy.raised import Raised
from fedveil.transport.duo.transport import Duo


def apa_fl(
    *,
    transport: Transport,
    aggregate: Aggregator,
    algorithm_variant: str | int = "last_noise",
    noise_alpha: float = 0.0,
    noise_cap: float = 2.0,
    client_momentum: float = 0.0,
    server_lr: float = 1.0,
    server_momentum: float = 0.0,
    **noise: Unpack[LocalNoise],
) -> Method:
    """FedAvg on encrypted uploads: clients clip and add their own noise, two servers sense and carry out rules.

    ``sigma`` 0: no noise, and nothing is claimed. ``noise_alpha``, ``noise_cap``: σ_t = σ0·min(cap, 1 + α·H_{t−1});
    the ledger charges σ0.
    """
    if not isinstance(transport, Duo):
        raise Refused(
            "transport: apa_fl senses attackers on uploads that no server sees, which takes transport=duo; to let one "
            "server see them all, use method=dp_fedavg_local (or fedavg) with aggregate=adaptive"
        )
    not_negative(noise_alpha=noise_alpha)
    chosen, quiet = variant(algorithm_variant, PLAIN), noise["sigma"] == 0
    if isinstance(aggregate, Adaptive) and aggregate.alarm == "centered_clipping" and aggregate.iterations is None:
        aggregate = replace(aggregate, iterations=1)
    if noise_alpha and quiet:
        raise Refused("noise_alpha: with sigma=0 there is no noise to raise; leave noise_alpha out")
    if noise_alpha and not isinstance(aggregate, Controller):
        raise Refused(
            "noise_alpha: noise follows what a controller reads; use aggregate=adaptive or source, or noise_alpha=0"
        )
    if noise_alpha and isinstance(aggregate, Controller):
        aggregate = Announcing(cast(Rule, aggregate), noise_alpha, noise_cap)
    if not quiet:
        parts = slots(chosen, None, **noise)
    elif transport.norm_bound is None or noise.get("move_norm") is not None:
        parts = Slots(on_delta=chain(clip(_length(**noise))))
    else:
        parts = Slots()
    if transport.norm_bound is None:
        transport = _checking(transport, chosen, noise_cap if noise_alpha else 1.0, **noise)
    if noise_alpha:
        parts["on_delta"] = chain(parts.get("on_delta", chain()), Raised(noise_cap))
    return Method(
        name=f"apa_fl/{'no_noise' if quiet else chosen}",
        local=averaging(server_lr, server_momentum, client_momentum),
        transport=transport,
        aggregate=aggregate,
        **parts,
    )


def _length(**noise: Unpack[LocalNoise]) -> float:
    """What a whole move is clipped to."""
    given = noise.get("move_norm")
    bound = noise["travel"] * noise["clip_norm"] if given is None else given
    positive(move_norm=bound)
    return bound


def _checking(transport: Duo, chosen: str, raised: float, **noise: Unpack[LocalNoise]) -> Duo:
    """The transport with what an honest upload holds: a clipped move, and noise (SPEC 7.4).

    With noise in the steps a move is a sum over Poisson batches, of which twice the expected size is allowed for.
    """
    sigma = noise["sigma"]
    largest = raised * (max(sigma.values) if isinstance(sigma, PerClient) else sigma)
    if largest == 0 or chosen == "last_noise":
        bound = _length(**noise)
        return replace(transport, clip=bound, noise_std=largest * bound)
    far = noise["travel"] * noise["clip_norm"]
    return replace(
        transport, clip=2 * far, noise_std=largest * far / (math.sqrt(noise.get("steps") or 1) * noise["batch"])
    )
