"""The stage that makes every weight of a move private before it leaves the client (SPEC 5)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedveil.core.errors import Refused, one_of, positive
from fedveil.core.signal import Signal
from fedveil.core.stage import Context, Release
from fedveil.core.team import share_out
from fedveil.privacy import per_weight
from fedveil.privacy.per_weight import Mechanism, check_epsilon
from fedveil.privacy.ranges import Ranges, spread_out

Target = Literal["weights", "delta"]


@dataclass(frozen=True)
class PerWeight:
    """Each weight is clamped to its layer's public range, and reported by an ε-private mechanism of its own.

    mechanism
        ``two_point``: c ± r·k, one bit; ``hybrid``: less variance from ε = 1 on; ``clamp``: no mechanism at all, for
        telling what the clamp costs from what privacy costs.
    perturb
        ``weights``: what is reported is the client's weight y (as in the paper), ``delta``: its move y − w.
    cohort
        how many clients take part in a round: adaptive ranges of weights know how much noise a mean holds.

    The ledger line counts one release for every weight; its deviation is that at the centre of the range, in units
    of r. Noise depends on what it hides, so that the signal's ``noise_var`` is not known.
    """

    mechanism: Mechanism
    epsilon: float | None
    perturb: Target
    ranges: Ranges
    cohort: int

    def __post_init__(self) -> None:
        one_of("mechanism", self.mechanism, ("two_point", "hybrid", "clamp"))
        one_of("perturb", self.perturb, ("weights", "delta"))
        positive(cohort=self.cohort)
        if self.mechanism == "clamp":
            if self.epsilon is not None:
                raise Refused("mechanism: clamp adds no noise, so that privacy.epsilon means nothing; leave it out")
        elif self.epsilon is None:
            raise Refused(
                "privacy.epsilon: this method needs it: epsilon per weight and round, such as privacy.epsilon=1"
            )
        else:
            check_epsilon(self.epsilon)

    def init(self) -> Tensor:
        """No radius has been used before the first round."""
        return torch.zeros(0, dtype=torch.float64)

    def apply(self, memory: Tensor, signal: Signal, ctx: Context) -> tuple[Tensor, Signal]:
        """Report all rows; ranges of whole weights remember the radii that were used, by layer."""
        origin = torch.zeros(1, signal.dim) if ctx.weights is None else ctx.weights[None, :]
        origin = origin.to(signal.value) if self.perturb == "weights" else signal.value.new_zeros(1, 1)
        centres, radii, memory = self.range_of(memory, ctx)
        c = spread_out(centres.to(signal.value.device), ctx.layout)
        r = spread_out(radii.to(signal.value.device), ctx.layout)
        value = signal.value + origin
        told = replace(signal, value=value, bound=None, unit=None, noise_var=None)
        if self.mechanism == "clamp":
            told = replace(told, value=torch.clamp(value.double(), c - r, c + r).to(value) - origin, noise_var=0.0)
            return memory, told
        assert self.epsilon is not None
        t = ((value.double() - c) / r).cpu().numpy()
        if self.mechanism == "two_point":
            k = per_weight.reach(self.epsilon)
            levels = ((c - r * k).to(value) - origin, (c + r * k).to(value) - origin)
            bits = torch.from_numpy(self._upper(t, ctx)).to(value.device)
            told = replace(told, value=torch.where(bits, levels[1], levels[0]), levels=levels)
        else:
            told = replace(told, value=(c + r * self._hybrid(t, ctx).to(value.device)).to(value) - origin)
        who = tuple(k for k in ctx.clients if k is not None)
        deviation = per_weight.worst_variance(self.mechanism, self.epsilon) ** 0.5
        line = Release("client", 1.0, deviation, self.mechanism, ctx.slot, ctx.channel, ctx.round, who or None)
        ctx.releases.append(replace(line, count=signal.dim, epsilon=self.epsilon))
        return memory, replace(told, released=True)

    def range_of(self, memory: Tensor, ctx: Context) -> tuple[Tensor, Tensor, Tensor]:
        """Centre and radius of each layer in this round, from released values only; then what to remember."""
        ranges, layout = self.ranges, ctx.layout
        centres, radii = ranges.declared(layout)
        if ranges.kind == "adaptive" and ctx.weights is not None:
            if self.perturb == "delta":
                centres, radii = ranges.of_moves(ctx.weights, layout)
            else:
                noise = per_weight.worst_variance(self.mechanism, self.epsilon or 1.0) / self.cohort
                centres, radii = ranges.of_weights(ctx.weights, layout, memory.cpu(), noise)
        radii = ranges.shrunk(radii, ctx.round)
        return centres, radii, radii if self.perturb == "weights" and ranges.kind == "adaptive" else memory

    def _upper(self, t: per_weight.Floats, ctx: Context) -> per_weight.Bits:
        out = np.empty(t.shape, dtype=np.bool_)
        self._rows(t, out, ctx)
        return out

    def _hybrid(self, t: per_weight.Floats, ctx: Context) -> Tensor:
        out = np.empty(t.shape, dtype=np.float64)
        self._rows(t, out, ctx)
        return torch.from_numpy(out)

    def _rows(self, t: per_weight.Floats, out: per_weight.Floats | per_weight.Bits, ctx: Context) -> None:
        """Each row from its own stream, so that packing never changes a result; threads take a row each."""
        report = per_weight.upper if self.mechanism == "two_point" else per_weight.hybrid
        if len(ctx.streams) != len(t):
            raise Refused(f"{self.mechanism}: {len(t)} rows but {len(ctx.streams)} streams; give each row its own")
        epsilon = self.epsilon
        assert epsilon is not None

        def one(row: int, _: int) -> None:
            out[row] = report(t[row], epsilon, ctx.streams[row])

        share_out(one, range(len(t)))
