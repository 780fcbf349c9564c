"""More noise than is charged, where a controller asks for it (SPEC 7.5)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from fedveil.core.errors import Refused, positive
from fedveil.core.signal import Signal
from fedveil.core.stage import Context
from fedveil.privacy.noise import add_on_grid, normal

NOISE = "noise"
"""The announced number: how many times as much noise, at least 1."""


@dataclass(frozen=True)
class Raised:
    """Tops noise that a mechanism has put in up to ``announced`` times its deviation, at most ``cap`` times.

    The first σ0 is a release and is charged as one; what comes on top is post-processing of it, so that the charge
    holds whatever was announced, and whoever announced it.
    """

    cap: float

    def __post_init__(self) -> None:
        positive(noise_cap=self.cap)
        if self.cap < 1:
            raise Refused(f"noise_cap: {self.cap:g} is below 1, and noise is only ever raised; give 1 or more")

    def factor(self, ctx: Context) -> float:
        """How many times as much noise this round holds."""
        return min(max(ctx.announced.get(NOISE, 1.0), 1.0), self.cap)

    def __call__(self, signal: Signal, ctx: Context) -> Signal:
        """Independent noise of variance v·(factor² − 1) on each row."""
        if not signal.released or signal.noise_var is None:
            raise Refused("noise_alpha: there is no noise of known size here to raise; set sigma above 0")
        variance = torch.as_tensor(signal.noise_var, dtype=torch.float64)
        if variance.dim() == 2 and variance.shape[1] != 1:
            raise Refused("noise_alpha: noise that differs by coordinate cannot be raised; set noise_alpha=0")
        factor = self.factor(ctx)
        if factor == 1.0:
            return signal
        more = variance.reshape(-1).expand(signal.rows) * (factor**2 - 1)
        value = add_on_grid(signal.value, ctx, normal, more.sqrt().tolist())
        return replace(signal, value=value, noise_var=signal.noise_var * factor**2)
