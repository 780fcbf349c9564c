"""DP-ScaffoldStein: DP-SCAFFOLD with James-Stein shrinkage (SPEC 3)."""

from __future__ import annotations

from typing import Any, Literal, Unpack

from fedveil.aggregate.mean import Mean
from fedveil.core.method import Method
from fedveil.core.parts import Aggregator, Transport
from fedveil.local.rules import Scaffold
from fedveil.methods.noisy import STEIN, LocalNoise, control, shrinkage, slots, variant
from fedveil.privacy.shrink import Shrink
from fedveil.transport.plain import Plain


def dp_scaffold_stein(
    *,
    algorithm_variant: str | int = "step_noise_step_jse",
    jse_enabled: bool = True,
    shrink: Shrink | dict[str, Any] = {},  # noqa: B006  (read only)
    control_update: Literal["noisy", "clean"] = "noisy",
    allow_leak: bool = False,
    server_lr: float = 1.0,
    server_momentum: float = 0.0,
    transport: Transport = Plain(),
    aggregate: Aggregator = Mean(),
    **noise: Unpack[LocalNoise],
) -> Method:
    """DP-SCAFFOLD, with shrinkage of every noisy gradient, of each upload, or of their mean."""
    chosen = variant(algorithm_variant, STEIN)
    return Method(
        name=f"dp_scaffold_stein/{chosen}",
        local=Scaffold(server_lr, server_momentum, control(control_update, allow_leak, chosen)),
        transport=transport,
        aggregate=aggregate,
        allow_leak=allow_leak,
        **slots(chosen, shrinkage(jse_enabled, shrink), **noise),
    )
