"""Training a whole cohort at once: what the batched tiers have in common (DESIGN 3)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from fedveil.core.method import Method
from fedveil.core.parts import Moves, State
from fedveil.core.signal import Signal
from fedveil.core.stage import Context, PerSample, Release
from fedveil.core.team import go_on, hands, share_out
from fedveil.core.walk import travel
from fedveil.local.batches import Indices
from fedveil.local.engine import check_finite
from fedveil.local.recording import Outcome, Recording, Room, Unrecordable, recordable
from fedveil.local.schedule import Marks, Pool, Step, Take, in_order, side_by_side
from fedveil.local.sequential import Sequential, explained
from fedveil.local.steps import Into, Walk, moves


class Gradients(Protocol):
    """Gradients of several clients at once, each at its own weights."""

    held: int
    """Numbers that a step holds for each example."""

    def __call__(self, here: Tensor, x: Tensor, y: Tensor, marks: Marks, each: PerSample | None, into: Into) -> Tensor:
        """Put each client's gradient ``into`` rows, and return the sum of each client's losses.

        ``here`` is ``(clients, dim)``; ``x`` and ``y`` hold one padded batch per client, one after another. The
        gradient is the mean over the batch's real examples, or with ``each`` the sum of its scaled ones; zero for an
        empty batch.
        """
        ...

    def footprint(self, method: Method, batch: int) -> int:
        """Bytes that one client needs in a step."""
        ...

    def twin(self) -> Gradients:
        """The same for another thread."""
        ...


@dataclass(frozen=True, eq=False)
class _Chunk:
    """Clients who train together, in order: those with most steps first."""

    ctx: Context
    walks: list[tuple[Indices, Indices]]
    clients: list[int]
    drift: Tensor | None

    def take(self, pool: Pool) -> tuple[Take, list[Step]]:
        """All steps, and how to get the examples of one."""
        if pool.like.device.type == "cpu":
            return pool.apart(self.clients), list(side_by_side(self.walks, [0] * len(self.walks)))
        x, y, starts = pool.of(self.clients)

        def take(step: Step) -> tuple[Tensor, Tensor]:
            index = torch.from_numpy(step.rows).to(x.device)
            return x.index_select(0, index), y.index_select(0, index)

        return take, list(side_by_side(self.walks, starts))


@dataclass(eq=False)
class Cohort:
    """Trains clients together, a chunk of them at a time, as many as ``budget`` bytes hold.

    On a CPU each thread has a chunk of its own: nobody waits for anybody within a step. Packing never changes a result
    beyond rounding: clients share no sums, and streams belong to (round, client).
    """

    reference: Sequential
    """The engine that this one must equal."""
    gradients: Gradients
    name: str
    budget: int
    chunk: int | None = None
    """Clients that are trained together; None: as many as the budget holds."""
    replays: bool = False
    """Whether steps are recorded and replayed, where there is a CUDA device."""
    trouble: str | None = field(default=None, init=False)
    """Why they no longer are."""
    _recording: Recording | None = field(default=None, init=False)
    _others: list[Gradients] = field(default_factory=list, init=False)
    """Twins of ``gradients`` for other threads."""

    @cached_property
    def pool(self) -> Pool:
        """The examples, on the device."""
        return Pool(self.reference.federation, next(self.reference.objective.module.parameters()))

    def train(self, method: Method, server: State, drift: Tensor | None, ctx: Context) -> Moves:
        """Train ``ctx.clients`` side by side (see :class:`~fedveil.local.engine.Engine`)."""
        w, sgd, batching = server["w"], self.reference.sgd, self.reference.batching
        clients = [k for k in ctx.clients if k is not None]
        walks = [
            batching.batches(int(self.reference.federation.sizes[k]), stream)
            for k, stream in zip(clients, ctx.batches, strict=True)
        ]
        steps = torch.tensor([len(ends) for _, ends in walks])
        deltas, losses = w.new_empty(len(clients), w.numel()), torch.empty(len(clients), dtype=torch.float64)
        facts: list[Signal] = [Signal(deltas[:1])] * len(clients)
        chunks = self._chunks(in_order(walks), self.gradients.footprint(method, batching.batch), w)
        released: list[list[Release]] = [[] for _ in chunks]
        twins = self._twins(hands(len(chunks)) if w.device.type == "cpu" else 1)

        def train(number: int, hand: int) -> None:
            rows = chunks[number]
            own = ctx.ordered(rows).heading(w.new_tensor([[travel(sgd.lr, sgd.momentum, int(steps[i]))] for i in rows]))
            own = replace(own, releases=released[number])
            chunk = _Chunk(
                own, [walks[i] for i in rows], [clients[i] for i in rows], None if drift is None else drift[rows]
            )
            deltas[rows], found, known = self._walk(method, w, chunk, twins[hand])
            losses[rows] = found.double().cpu()
            for i, fact in zip(rows, known, strict=True):
                facts[i] = fact

        if len(twins) > 1:
            share_out(train, range(len(chunks)))
        else:
            for number in range(len(chunks)):
                train(number, 0)
        ctx.releases.extend(release for own in released for release in own)
        if not (
            method.private or ctx.lenient
        ):  # who diverged is the client's secret; a clip or the global check deals with it
            self._check(ctx, losses, deltas)
        return moves(sgd, deltas, facts, steps, losses)

    def bind(self, server: State) -> None:
        """The module's parameters become views of the server's vector."""
        self.reference.bind(server)

    def outputs(self, server: State, x: Tensor) -> Tensor:
        """Answers of the model with the server's weights."""
        return self.reference.outputs(server, x)

    def _chunks(self, order: list[int], bytes_each: int, w: Tensor) -> list[list[int]]:
        """Who trains together, those with most steps first; dealt out like cards where threads share them."""
        size = self.chunk or max(1, self.budget // bytes_each)
        if w.device.type != "cpu" or hands(len(order)) == 1:
            return [order[i : i + size] for i in range(0, len(order), size)]
        each = hands(len(order))
        count = -(-len(order) // size) if self.chunk else -(-len(order) // (size * each)) * each
        count = min(count, len(order))
        return [order[i::count] for i in range(count)]

    def _twins(self, count: int) -> list[Gradients]:
        while len(self._others) < count - 1:
            self._others.append(self.gradients.twin())
        return [self.gradients, *self._others[: count - 1]]

    def _walk(self, method: Method, w: Tensor, chunk: _Chunk, gradients: Gradients) -> Outcome:
        """Take all steps of a chunk: each client's move, mean loss, and what is known of its last gradient."""
        take, steps = chunk.take(self.pool)
        found = self._replayed(method, w, chunk, steps) or self._one_by_one(method, w, chunk, gradients, take, steps)
        deltas, total, facts = found
        return deltas, total / total.new_tensor([max(len(order), 1) for order, _ in chunk.walks]), facts

    def _one_by_one(
        self, method: Method, w: Tensor, chunk: _Chunk, gradients: Gradients, take: Take, steps: list[Step]
    ) -> Outcome:
        """Each operation of each step is issued by itself."""
        here = w.expand(len(chunk.clients), -1).clone()
        walk = Walk(self.reference.sgd, method.on_step, here, chunk.drift, chunk.ctx)
        each, straight = method.on_step.per_sample, walk.factor is not None
        grad = here if straight else torch.empty_like(here)
        total = here.new_zeros(len(here))
        n = -1
        for step in steps:
            go_on()
            if n != len(step.counts):  # the same tensors while the same clients walk, so that views of them last
                n = len(step.counts)
                into, now = walk.into(n) if straight else Into(grad[:n]), here[:n]
            with explained(chunk.ctx.round, chunk.clients[:n], int(step.counts.sum())):
                total[:n] += gradients(now, *take(step), step.marks(w.device), each, into)
            if straight:
                walk.arrived(n)
            else:
                walk.step(Signal(grad[:n]) if each is None else each.summed(grad[:n]))
        return here.sub_(w), total, walk.facts()

    def _replayed(self, method: Method, w: Tensor, chunk: _Chunk, steps: list[Step]) -> Outcome | None:
        """The same from recorded steps; None where there is nothing to replay them on, or where that went wrong."""
        if not (self.replays and w.is_cuda and self.pool.stays and steps and recordable(method.on_step, chunk.ctx)):
            return None
        room, kept = Room.around(steps, self.reference.batching.batch), self._recording
        if kept is None or kept.on_step is not method.on_step or not kept.room.holds(room):
            self._recording = None  # its memory goes first
            x, y, _ = self.pool.of(chunk.clients)
            kept = Recording(self.gradients, self.reference.sgd, method.on_step, x, y, w, room)
            self._recording = kept
        try:
            return kept.run(chunk.ctx, steps, [len(ends) for _, ends in chunk.walks], w, chunk.drift)
        except Unrecordable as problem:
            self.replays, self.trouble, self._recording = False, f"steps cannot be recorded ({problem})", None
            return None

    def _check(self, ctx: Context, losses: Tensor, deltas: Tensor) -> None:
        if bool(torch.isfinite(losses).all()) and bool(torch.isfinite(deltas.sum())):
            return
        for client, loss, delta in zip(ctx.clients, losses, deltas, strict=True):
            check_finite(ctx.round, client, loss, delta)
