"""Local steps recorded as CUDA graphs and replayed (DESIGN 3).

A step of a small model is a hundred launches of a few microseconds each, which take longer to issue than to run.
Recorded once for each shape, a step is one launch: it reads its batch, its counts and its noise from tables on the
device by a counter that lies there as well, so that the host reads and writes nothing until the last step is done.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from fedveil.core.signal import Signal
from fedveil.core.stage import Chain, Context, Drawn, PerSample, Release, replay
from fedveil.core.streams import device_keys, drawable_on_device, stream
from fedveil.local.objective import Sgd
from fedveil.local.schedule import Marks, Step
from fedveil.local.steps import Into, Walk

GRAINS = 8
"""Shapes for rows, so that clients who are done are carried along for an eighth of all rows at most."""


Shape = tuple[int, int, bool]
"""Rows, examples per batch, and whether a batch may be empty."""
Outcome = tuple[Tensor, Tensor, list[Signal]]


class Unrecordable(Exception):
    """Why steps cannot be recorded."""


class Gradients(Protocol):
    """What records itself: see :class:`~fedveil.local.cohort.Gradients`."""

    def __call__(self, here: Tensor, x: Tensor, y: Tensor, marks: Marks, each: PerSample | None, into: Into) -> Tensor:
        """Put gradients into rows; the sums of losses."""
        ...


def recordable(on_step: Chain, ctx: Context) -> bool:
    """Whether the stages of a step can be replayed with the noise of these streams."""
    kinds = [replay(stage) for stage in on_step]
    draws = kinds.count("draws")
    return "no" not in kinds and (draws == 0 or (draws == 1 and drawable_on_device(ctx.streams)))


@dataclass(frozen=True)
class Room:
    """How many rows, steps and examples per batch fit."""

    rows: int
    steps: int
    width: int

    @classmethod
    def around(cls, steps: Sequence[Step], batch: int) -> Room:
        """Room for these steps, and some more where batches are drawn at random."""
        width = max(step.width for step in steps)
        spare = width if width == batch else max(width, batch + int(4 * batch**0.5))
        return cls(len(steps[0].counts), 1 << (len(steps) - 1).bit_length(), _rounded(max(spare, 1)))

    def holds(self, other: Room) -> bool:
        """Whether nothing of the other is larger."""
        return self.rows >= other.rows and self.steps >= other.steps and self.width >= other.width

    def shape(self, step: Step) -> tuple[int, int]:
        """Rows and width under which a step is recorded, a little more than it needs."""
        grain = -(-self.rows // GRAINS)
        rows = min(self.rows, -(-len(step.counts) // grain) * grain)
        return rows, min(self.width, _rounded(max(step.width, 1)))


def _rounded(width: int) -> int:
    """Up to a multiple of an eighth of the power of two below."""
    grain = max(1, (1 << width.bit_length()) // 16)
    return -(-width // grain) * grain


@dataclass(eq=False)
class Recording:
    """The steps of one method on one pool of examples, in buffers that stay where they are."""

    gradients: Gradients
    sgd: Sgd
    on_step: Chain
    x: Tensor
    y: Tensor
    like: Tensor
    """The weights that clients start from."""
    room: Room

    def __post_init__(self) -> None:
        device, room, dim = self.like.device, self.room, self.like.numel()
        self.here = self.like.new_zeros(room.rows, dim)
        self.total = self.like.new_zeros(room.rows)
        self.clock = torch.zeros(1, dtype=torch.int64, device=device)
        self.broken = torch.zeros((), dtype=torch.bool, device=device)
        self.visits = torch.zeros(room.steps, room.rows, room.width, dtype=torch.int64, device=device)
        self.counts = torch.zeros(room.steps, room.rows, dtype=torch.int64, device=device)
        self.keys = torch.zeros(room.steps, room.rows, dtype=torch.int64, device=device)
        self.stds = torch.ones(room.rows, dtype=torch.float64, device=device)
        self.drift: Tensor | None = None
        self.previous: Tensor | None = None
        self.graphs: dict[Shape, torch.cuda.CUDAGraph] = {}
        self.pool = torch.cuda.graph_pool_handle()

    @property
    def draws(self) -> bool:
        """Whether a stage adds noise."""
        return any(replay(stage) == "draws" for stage in self.on_step)

    def run(
        self, ctx: Context, steps: Sequence[Step], lengths: Sequence[int], w: Tensor, drift: Tensor | None
    ) -> Outcome | None:
        """Moves, sums of losses and facts of the clients of ``ctx``, who are in order.

        ``lengths`` says how many steps each one takes. None if a norm was not finite; then, and after
        :class:`Unrecordable`, streams are where they were.
        """
        states = [s.bit_generator.state for s in ctx.streams] if self.draws else []
        found = None
        try:
            self._place("drift", drift)
            self._place("previous", ctx.previous)
            found = self._replay(ctx, steps, lengths, w)
        except RuntimeError as problem:
            raise Unrecordable(str(problem).strip().splitlines()[0]) from problem
        finally:
            if found is None:
                for generator, state in zip(ctx.streams, states, strict=False):
                    generator.bit_generator.state = state
        return found

    def _replay(self, ctx: Context, steps: Sequence[Step], lengths: Sequence[int], w: Tensor) -> Outcome | None:
        facts, releases, stds = self._facts(ctx, steps)
        self._load(ctx, steps, lengths, stds)
        shapes = [self._shape(step) for step in steps]
        for shape in dict.fromkeys(shapes):
            if shape not in self.graphs:
                self.here[:] = w
                self._record(shape, ctx)
        self._start(w)
        ends = torch.empty_like(self.here[: len(lengths)])
        for i, shape in enumerate(shapes):
            self.graphs[shape].replay()
            now, left = len(steps[i].counts), len(steps[i + 1].counts) if i + 1 < len(steps) else 0
            if left < now:
                torch.sub(self.here[left:now], w, out=ends[left:now])
        if bool(self.broken):
            return None
        ctx.releases.extend(releases)
        return ends, self.total[: len(lengths)].clone(), facts

    def _shape(self, step: Step) -> Shape:
        plain = self.on_step.per_sample is None
        return *self.room.shape(step), plain and not step.counts.all()

    def _place(self, name: str, value: Tensor | None) -> None:
        """Copy a tensor into the buffer of this name; another shape makes another recording necessary."""
        kept = getattr(self, name)
        if value is None:
            if kept is not None:
                self._forget(name, None)
            return
        rows = self.room.rows if value.shape[0] > 1 else 1
        if kept is None or kept.shape != (rows, value.shape[1]):
            self._forget(name, value.new_zeros(rows, value.shape[1]))
            kept = getattr(self, name)
        kept[: len(value)] = value

    def _forget(self, name: str, value: Tensor | None) -> None:
        setattr(self, name, value)
        self.graphs.clear()
        self.pool = torch.cuda.graph_pool_handle()  # nobody holds the old one any more
        self.__dict__.pop("walk", None)

    def _facts(
        self, ctx: Context, steps: Sequence[Step]
    ) -> tuple[list[Signal], list[Release], dict[int | None, float]]:
        """What the stages say of these clients' gradients, release in all steps, and add to each."""
        fake = stream(0, "facts")
        own = replace(ctx, streams=[fake] * len(ctx.clients), previous=None, releases=[])
        walk = Walk(self.sgd, self.on_step, torch.zeros(len(ctx.clients), 1, dtype=self.like.dtype), None, own)
        times: dict[int, int] = {}
        for step in steps:
            times[len(step.counts)] = times.get(len(step.counts), 0) + 1
        releases: list[Release] = []
        stds: dict[int | None, float] = {}
        for n in sorted(times):
            own.releases.clear()
            walk.observe(n)
            releases += [replace(r, count=r.count * times[n]) for r in own.releases]
            stds |= {k: r.noise_std for r in own.releases for k in r.clients or ()}
        return walk.facts(), releases, stds

    def _load(self, ctx: Context, steps: Sequence[Step], lengths: Sequence[int], stds: dict[int | None, float]) -> None:
        """Fill the tables."""
        room = self.room
        visits = np.zeros((len(steps), room.rows, room.width), dtype=np.int64)
        counts = np.zeros((len(steps), room.rows), dtype=np.int64)
        for i, step in enumerate(steps):
            n = len(step.counts)
            visits[i, :n, : step.width] = step.rows.reshape(n, step.width)
            counts[i, :n] = step.counts
        self.visits[: len(steps)] = torch.from_numpy(visits)
        self.counts[: len(steps)] = torch.from_numpy(counts)
        if self.draws:
            keys = np.zeros((len(steps), room.rows), dtype=np.int64)
            for row, (generator, length) in enumerate(zip(ctx.streams, lengths, strict=True)):
                keys[:length, row] = device_keys(generator, length)
            self.keys[: len(steps)] = torch.from_numpy(keys)
            self.stds[: len(lengths)] = torch.tensor([stds[k] for k in ctx.clients], dtype=torch.float64)

    def _start(self, w: Tensor) -> None:
        self.here[:] = w
        for buffer in (self.total, self.clock, self.broken):
            buffer.zero_()
        if self.walk.velocity is not None:
            self.walk.velocity.zero_()

    @cached_property
    def walk(self) -> Walk:
        """The clients' way, in buffers."""
        nobody = Context(0, self._layout, [None] * self.room.rows, [])
        return Walk(self.sgd, self.on_step, self.here, self.drift, nobody)

    def _record(self, shape: Shape, ctx: Context) -> None:
        self._layout = ctx.layout
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self.clock.zero_()
            self._step(*shape)  # libraries set themselves up, kernels are compiled
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool):
            self._step(*shape)
        self.graphs[shape] = graph

    def _step(self, n: int, width: int, empties: bool) -> None:
        """One step of the first ``n`` rows, reading nothing back; ``empties`` tells whether a batch may be empty."""

        def now(table: Tensor) -> Tensor:
            return table.index_select(0, self.clock)[0]

        walk, each = self.walk, self.on_step.per_sample
        index = now(self.visits[:, :n, :width]).reshape(-1)
        marks = Marks.padded(now(self.counts[:, :n]), width, self.broken)
        marks = marks if empties else replace(marks, empty=None)
        drawn = Drawn(now(self.keys[:, :n]), self.stds[:n]) if self.draws else None
        previous = self.previous if self.previous is None or len(self.previous) == 1 else self.previous[:n]
        walk.ctx = replace(walk.ctx, clients=[None] * n, drawn=drawn, previous=previous)
        straight = walk.factor is not None
        into = walk.into(n) if straight else Into(torch.empty_like(self.here[:n]))
        x, y = self.x.index_select(0, index), self.y.index_select(0, index)
        self.total[:n] += self.gradients(self.here[:n], x, y, marks, each, into)
        if straight:
            walk.arrived(n)
        else:
            walk.step(Signal(into.rows) if each is None else each.summed(into.rows))
        self.clock += 1
