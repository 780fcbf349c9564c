"""Adaptive clipping: the norm follows a quantile of the clients' norms (Andrew et al. 2021; SPEC 4).

Each client also sends the bit b = 1 if it was *not* clipped. With the bits centred (b − ½, sensitivity ½), their
sum noised with deviation σ_b, and the constant expected cohort m as divisor,

    b̃ = ½ + (Σ(b − ½) + N(0, σ_b²))/m,    C ← C·exp(−η_C(b̃ − γ)).

Too many unclipped clients make b̃ > γ and C shrinks. (A shipping peer counts clipped clients and keeps the sign: its
C runs away.) A client that is zeroed out sends no bit either: its centred contribution is 0. The noised count is a
release of its own: multiplier 2σ_b, on the same sample as the moves, so the two must be charged as one
(:func:`fedveil.privacy.events.joint`); :meth:`AdaptiveClip.remaining` gives the multiplier that the moves need so
that together they cost z.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedveil.core.errors import Refused, positive
from fedveil.core.signal import Signal
from fedveil.core.stage import Context, Release
from fedveil.privacy.clip import Clip, row_norms
from fedveil.privacy.noise import FINE, power_of_two

CHANNEL = "unclipped"
"""The channel of the noised count, in the ledger."""


@dataclass(frozen=True)
class AdaptiveClip:
    """A clip with memory: :meth:`init` before the first round, :meth:`apply` once a round.

    ``cohort`` is m, the public expected number of clients; ``count_std`` is σ_b (the paper suggests m/20).
    """

    cohort: float
    count_std: float
    target: float
    start: float
    lr: float

    def __post_init__(self) -> None:
        positive(cohort=self.cohort, count_std=self.count_std, start=self.start, lr=self.lr)
        if not 0 < self.target < 1:
            raise Refused(f"target: a quantile of {self.target} is outside (0, 1); give 0.5 for the median")

    def init(self) -> Tensor:
        """The norm of the first round, as one number."""
        return torch.tensor([self.start], dtype=torch.float64)

    def apply(self, memory: Tensor, signal: Signal, ctx: Context) -> tuple[Tensor, Signal]:
        """Clip all rows at the remembered norm and learn the next one from their noised count.

        The norm is a function of released counts only, so it may be told to everybody. The count's noise comes from
        the server's stream: a round of an empty cohort needs it too.
        """
        if ctx.server is None:
            raise Refused("adaptive_clip: the server's stream is missing; give the context one")
        norm = float(memory)
        norms = row_norms(signal.value)
        bits = (torch.isfinite(norms) & (norms <= norm)).double() - 0.5
        grid = power_of_two(self.count_std * FINE)
        count = round((float(bits.sum()) + ctx.server.normal(0.0, self.count_std)) / grid) * grid
        ctx.releases.append(Release("client", 0.5, self.count_std, "gaussian", ctx.slot, CHANNEL, ctx.round))
        return torch.tensor([self.after(norm, count)], dtype=torch.float64), Clip(norm)(signal, ctx)

    def after(self, norm: float, count: float) -> float:
        """The next norm, from a noised sum of centred bits."""
        unclipped = 0.5 + count / self.cohort
        return norm * math.exp(-self.lr * (unclipped - self.target))

    def remaining(self, multiplier: float) -> float:
        """z_Δ = (z⁻² − (2σ_b)⁻²)^(−½): the moves' multiplier when moves and count together may cost z.

        >>> round(adaptive_clip(cohort=100, count_std=5.0).remaining(1.0), 4)
        1.005
        """
        positive(multiplier=multiplier)
        left = multiplier**-2 - (2 * self.count_std) ** -2
        if left <= 0:
            raise Refused(
                f"count_std: {self.count_std} spends more than the whole multiplier {multiplier}; "
                f"give more than {multiplier / 2}"
            )
        return 1 / math.sqrt(left)


def adaptive_clip(
    *, cohort: float, count_std: float | None = None, target: float = 0.5, start: float = 0.1, lr: float = 0.2
) -> AdaptiveClip:
    """A clip whose norm tracks the ``target`` quantile; defaults as in the paper (σ_b = m/20)."""
    return AdaptiveClip(cohort, cohort / 20 if count_std is None else count_std, target, start, lr)
