"""Steps of SGD on flat rows, and what is known about a move that is made of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import torch
from torch import Tensor

from fedveil.core.parts import Moves
from fedveil.core.scale import Scale
from fedveil.core.signal import Signal
from fedveil.core.stage import Chain, Context
from fedveil.core.walk import energy, travel
from fedveil.local.objective import Sgd


@dataclass(frozen=True)
class Into:
    """Where a gradient g goes: rows ← beta·rows + alpha·g; with beta = 0 what was there is not read."""

    rows: Tensor
    beta: float = 0.0
    alpha: float = 1.0

    def put(self, gradient: Tensor) -> None:
        """Add a gradient that lies in memory of its own."""
        if self.beta != 1:
            self.rows.zero_() if self.beta == 0 else self.rows.mul_(self.beta)
        self.rows.add_(gradient, alpha=self.alpha)


class Walk:
    """Clients on their way, one row each: gradient → ``on_step`` → + drift → SGD, on flat rows, in place.

    The first ``n`` rows take a step together, where ``n`` is the number of rows of the gradient.
    """

    def __init__(self, sgd: Sgd, on_step: Chain, here: Tensor, drift: Tensor | None, ctx: Context) -> None:
        self.sgd, self.on_step, self.here, self.drift = sgd, on_step, here, drift
        # Factors that come last are multiplied in place: fresh memory of this size costs more than the product.
        stages = on_step.stages
        kept = next((i for i in range(len(stages), 0, -1) if not isinstance(stages[i - 1], Scale)), 0)
        self._first, self._factors = Chain(stages[:kept]), stages[kept:]
        self.ctx = ctx.at("on_step")
        self.velocity = torch.zeros_like(here) if sgd.momentum else None
        self._last: dict[int, Signal] = {}

    @torch.no_grad()
    def step(self, gradient: Signal) -> None:
        """One step of the first rows along their gradients; the gradients may be overwritten."""
        n = gradient.rows
        gradient = self._first(gradient, self.ctx.first(n))
        g, here = gradient.value, self.here[:n]
        gradient = replace(gradient, value=g[:, :1])
        for stage in self._factors:
            assert isinstance(stage, Scale)
            gradient = gradient * stage.factor
            g = g.mul_(stage.factor)
        self._last[n] = gradient
        if self.drift is not None:
            g = g.add_(self.drift[:n])
        if self.sgd.weight_decay:
            g = g.add_(here, alpha=self.sgd.weight_decay)
        if self.velocity is not None:
            g = self.velocity[:n].mul_(self.sgd.momentum).add_(g)
        here.add_(g, alpha=-self.sgd.lr)

    @property
    def factor(self) -> float | None:
        """What the stages multiply every gradient by; None where they do anything else."""
        scales = [stage.factor if isinstance(stage, Scale) else None for stage in self.on_step.whole]
        return None if None in scales else prod(f for f in scales if f is not None)

    def into(self, n: int) -> Into:
        """Where gradients may go directly if all there is to them is a factor; :meth:`arrived` finishes the step."""
        factor = self.factor
        assert factor is not None
        if self.velocity is not None:
            return Into(self.velocity[:n], self.sgd.momentum, factor)
        return Into(self.here[:n], 1.0 - self.sgd.lr * self.sgd.weight_decay, -self.sgd.lr * factor)

    @torch.no_grad()
    def arrived(self, n: int) -> None:
        """The rest of a step whose gradients went ``into`` the rows."""
        here = self.here[:n]
        self.observe(n)
        if self.velocity is not None:
            velocity = self.velocity[:n]
            if self.drift is not None:
                velocity.add_(self.drift[:n])
            if self.sgd.weight_decay:
                velocity.add_(here, alpha=self.sgd.weight_decay)
            here.add_(velocity, alpha=-self.sgd.lr)
        elif self.drift is not None:
            here.add_(self.drift[:n], alpha=-self.sgd.lr)

    def observe(self, n: int) -> None:
        """Take note of what the stages do to the gradients of the first ``n`` rows; facts do not depend on values."""
        if len(self.on_step) and n not in self._last:
            each, alike = self.on_step.per_sample, torch.zeros_like(self.here[:n, :1])
            self._last[n] = self.on_step(Signal(alike) if each is None else each.summed(alike), self.ctx.first(n))

    def facts(self) -> list[Signal]:
        """What is known of each client's last gradient, one row each, where the first rows walk longest."""
        counts = sorted(self._last) or [len(self.here)]
        known = self._last or {counts[0]: Signal(self.here)}
        out = []
        for i in range(len(self.here)):
            last = known[next(n for n in counts if n > i)]
            variance = last.noise_var
            if isinstance(variance, Tensor) and variance.dim() == 2 and variance.shape[0] > 1:
                variance = variance[i : i + 1]
            out.append(replace(last, value=last.value[i : i + 1], noise_var=variance))
        return out


def dress(deltas: Tensor, facts: list[Signal], energy: Tensor) -> Signal:
    """Moves with the facts that survive K steps: noise adds up by the path's energy, bounds do not add up.

    ``energy`` is one number per row. Noise that was fed back through later gradients is left out of ``noise_var``
    (first order, SPEC 3.2).
    """
    if not facts:
        return Signal(deltas)
    variance: Tensor | float | None
    if any(f.noise_var is None for f in facts):
        variance = None
    elif not any(isinstance(f.noise_var, Tensor) for f in facts):
        column = deltas.new_tensor([[f.noise_var] for f in facts])
        variance = column * energy if any(f.noise_var for f in facts) else 0.0
    else:
        each = [torch.as_tensor(f.noise_var, dtype=deltas.dtype, device=deltas.device) for f in facts]
        column = torch.cat([v if v.dim() == 2 else v.view(1, 1) for v in each])
        variance = column * energy if bool(torch.any(column)) else 0.0
    return replace(Signal(deltas), noise_var=variance, released=all(f.released for f in facts))


def moves(
    sgd: Sgd, deltas: Tensor, facts: list[Signal], steps: Tensor, losses: Tensor, buffers: Tensor | None = None
) -> Moves:
    """What came out of local training, dressed in its facts."""
    paths = [(sgd.lr, sgd.momentum, k) for k in steps.tolist()]
    delta = dress(deltas, facts, deltas.new_tensor([[energy(*path)] for path in paths]))
    return Moves(delta, deltas.new_tensor([[travel(*path)] for path in paths]), steps, losses, buffers)
