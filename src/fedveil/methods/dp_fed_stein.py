"""DP-FedStein: DP-FedAvg with James-Stein shrinkage after the noise (SPEC 3)."""

from __future__ import annotations

from typing import Any, Unpack

from fedveil.aggregate.mean import Mean
from fedveil.core.method import Method
from fedveil.core.parts import Aggregator, Transport
from fedveil.local.rules import FedAvg
from fedveil.methods.noisy import STEIN, LocalNoise, shrinkage, slots, variant
from fedveil.privacy.shrink import Shrink
from fedveil.transport.plain import Plain


def dp_fed_stein(
    *,
    algorithm_variant: str | int = "step_noise_step_jse",
    jse_enabled: bool = True,
    shrink: Shrink | dict[str, Any] = {},  # noqa: B006  (read only)
    server_lr: float = 1.0,
    server_momentum: float = 0.0,
    transport: Transport = Plain(),
    aggregate: Aggregator = Mean(),
    **noise: Unpack[LocalNoise],
) -> Method:
    """DP-FedAvg, with shrinkage of every noisy gradient, of each upload, or of their mean."""
    chosen = variant(algorithm_variant, STEIN)
    return Method(
        name=f"dp_fed_stein/{chosen}",
        local=FedAvg(server_lr, server_momentum),
        transport=transport,
        aggregate=aggregate,
        **slots(chosen, shrinkage(jse_enabled, shrink), **noise),
    )
