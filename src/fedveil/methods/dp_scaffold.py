"""DP-SCAFFOLD: control variates made of released moves (Noble, Bellet and Dieuleveut 2022; SPEC 3)."""

from __future__ import annotations

from typing import Any, Literal

from fedveil.aggregate.mean import Mean
from fedveil.core.method import Method
from fedveil.core.parts import Aggregator, Transport
from fedveil.local.rules import Scaffold
from fedveil.methods.noisy import STEIN, Calibration, control, shrinkage, slots, variant
from fedveil.privacy.noise import Multiplier
from fedveil.privacy.shrink import Shrink
from fedveil.transport.plain import Plain


def dp_scaffold(
    *,
    clip_norm: float,
    sigma: Multiplier,
    batch: int,
    travel: float,
    steps: int | None = None,
    algorithm_variant: str | int = "step_noise_step_jse",
    calibration: Calibration = "proved",
    move_norm: float | None = None,
    jse_enabled: bool = False,
    shrink: Shrink | dict[str, Any] = {},  # noqa: B006  (read only)
    control_update: Literal["noisy", "clean"] = "noisy",
    allow_leak: bool = False,
    server_lr: float = 1.0,
    server_momentum: float = 0.0,
    transport: Transport = Plain(),
    aggregate: Aggregator = Mean(),
) -> Method:
    """SCAFFOLD whose clients clip every example and add their own noise; c_k is made of what was released."""
    chosen = variant(algorithm_variant, STEIN)
    return Method(
        name=f"dp_scaffold/{chosen}",
        local=Scaffold(server_lr, server_momentum, control(control_update, allow_leak, chosen)),
        transport=transport,
        aggregate=aggregate,
        allow_leak=allow_leak,
        **slots(
            chosen,
            clip_norm=clip_norm,
            sigma=sigma,
            batch=batch,
            travel=travel,
            steps=steps,
            calibration=calibration,
            move_norm=move_norm,
            jse=shrinkage(jse_enabled, shrink),
        ),
    )
