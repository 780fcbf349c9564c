"""Training a whole cohort at once: what the batched tiers have in common (DESIGN 3)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from fedveil.core.federation import Federation
from fedveil.core.method import Method
from fedveil.core.parts import Moves, State
from fedveil.core.signal import Signal
from fedveil.core.stage import Context, PerSample
from fedveil.core.walk import travel
from fedveil.local.batches import Batching, Indices
from fedveil.local.engine import check_finite
from fedveil.local.objective import Objective, Sgd
from fedveil.local.schedule import Pool, Step, in_order, side_by_side
from fedveil.local.sequential import Sequential, explained
from fedveil.local.steps import Into, Walk, moves


class Gradients(Protocol):
    """Gradients of several clients at once, each at its own weights."""

    held: int
    """Numbers that a step holds for each example."""

    def __call__(self, here: Tensor, x: Tensor, y: Tensor, step: Step, each: PerSample | None, into: Into) -> Tensor:
        """Put each client's gradient ``into`` rows, and return the sum of each client's losses.

        ``here`` is ``(clients, dim)``; ``x`` and ``y`` hold one padded batch per client, one after another. The
        gradient is the mean over the batch's real examples, or with ``each`` the sum of its scaled ones; zero for an
        empty batch.
        """
        ...

    def footprint(self, method: Method, batch: int) -> int:
        """Bytes that one client needs in a step."""
        ...


@dataclass(eq=False)
class Cohort:
    """Trains clients together, a chunk of them at a time, as many as ``budget`` bytes hold.

    Packing never changes a result beyond rounding: clients share no sums, and streams belong to (round, client).
    """

    objective: Objective
    federation: Federation
    batching: Batching
    sgd: Sgd
    seed: int
    gradients: Gradients
    name: str
    budget: int
    chunk: int | None = None
    """Clients that are trained together; None: as many as the budget holds."""

    @cached_property
    def reference(self) -> Sequential:
        """The engine that this one must equal."""
        return Sequential(self.objective, self.federation, self.batching, self.sgd, self.seed)

    @cached_property
    def pool(self) -> Pool:
        """The examples, on the device."""
        return Pool(self.federation, next(self.objective.module.parameters()))

    def train(self, method: Method, server: State, drift: Tensor | None, ctx: Context) -> Moves:
        """Train ``ctx.clients`` side by side (see :class:`~fedveil.local.engine.Engine`)."""
        w = server["w"]
        clients = [k for k in ctx.clients if k is not None]
        walks = [
            self.batching.batches(int(self.federation.sizes[k]), stream)
            for k, stream in zip(clients, ctx.batches, strict=True)
        ]
        steps = torch.tensor([len(ends) for _, ends in walks])
        deltas, losses = w.new_empty(len(clients), w.numel()), torch.empty(len(clients), dtype=torch.float64)
        facts: list[Signal] = [Signal(deltas[:1])] * len(clients)
        order = in_order(walks)
        size = self.chunk or max(1, self.budget // self.gradients.footprint(method, self.batching.batch))
        for rows in (order[i : i + size] for i in range(0, len(order), size)):
            here = w.expand(len(rows), -1).clone()
            own = ctx.ordered(rows).heading(
                w.new_tensor([[travel(self.sgd.lr, self.sgd.momentum, int(steps[i]))] for i in rows])
            )
            walk = Walk(self.sgd, method.on_step, here, None if drift is None else drift[rows], own)
            found = self._walk(method, walk, [walks[i] for i in rows], [clients[i] for i in rows], ctx.round)
            deltas[rows] = here.sub_(w)
            losses[rows] = found.double().cpu()
            for i, known in zip(rows, walk.facts(), strict=True):
                facts[i] = known
        if not method.private:  # who diverged is the client's secret; a clip or the global check deals with it
            self._check(ctx, losses, deltas)
        return moves(self.sgd, deltas, facts, steps, losses)

    def bind(self, server: State) -> None:
        """The module's parameters become views of the server's vector."""
        self.reference.bind(server)

    def outputs(self, server: State, x: Tensor) -> Tensor:
        """Answers of the model with the server's weights."""
        return self.reference.outputs(server, x)

    def _walk(
        self, method: Method, walk: Walk, walks: list[tuple[Indices, Indices]], clients: list[int], round: int
    ) -> Tensor:
        """Take all steps of a chunk; the mean loss of each client."""
        x, y, starts = self.pool.of(clients)
        each, here = method.on_step.per_sample, walk.here
        straight = walk.factor is not None
        grad = here if straight else torch.empty_like(here)
        total = here.new_zeros(len(clients))
        for step in side_by_side(walks, starts):
            n = len(step.counts)
            index = torch.from_numpy(step.rows).to(x.device)
            into = walk.into(n) if straight else Into(grad[:n])
            with explained(round, clients[:n], int(step.counts.sum())):
                total[:n] += self.gradients(
                    here[:n], x.index_select(0, index), y.index_select(0, index), step, each, into
                )
            if straight:
                walk.arrived(n)
            else:
                walk.step(Signal(grad[:n]) if each is None else each.summed(grad[:n]))
        return total / total.new_tensor([max(len(order), 1) for order, _ in walks])

    def _check(self, ctx: Context, losses: Tensor, deltas: Tensor) -> None:
        if bool(torch.isfinite(losses).all()) and bool(torch.isfinite(deltas.sum())):
            return
        for client, loss, delta in zip(ctx.clients, losses, deltas, strict=True):
            check_finite(ctx.round, client, loss, delta)
