"""Stages: small functions from signal to signal, and the chain that runs them (DESIGN: Stage, Release)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
from torch import Tensor

from fedveil.core.flat import Layout
from fedveil.core.signal import Signal, Unit

Slot = Literal["on_step", "on_delta", "on_upload", "on_mean"]


@dataclass(frozen=True)
class Pool:
    """Noise that clients add together, so that it protects their sum and nothing else (SPEC 6.3).

    ``honest`` shares of it count: every sum holds at least ``honest + colluding`` of them, of which the colluding
    clients know their own. ``steps`` is the deviation of the honest shares' sum in grid steps, ``dim`` the length of
    the vector. ``trust`` says in words what hides single uploads.
    """

    honest: int
    colluding: int
    steps: float
    dim: int
    trust: str


@dataclass(frozen=True)
class Release:
    """One line of the ledger: what a mechanism did, apart from what it costs.

    ``bound`` is the l2 sensitivity that was enforced, ``noise_std`` the deviation that was added, ``count`` how
    often; ``channel`` and ``slot`` say what left and where, ``clients`` whose data, each by itself (None: everybody's
    together). ``claimed`` is a noise multiplier that a paper claims for records and that nobody proved. ``pool``: the
    deviation is that of the sum of many clients' shares. ``epsilon`` is what each of the ``count`` releases costs where
    the mechanism is ε-private by itself, whatever it hides.
    """

    unit: Unit
    bound: float
    noise_std: float
    mechanism: str
    slot: Slot
    channel: str
    round: int
    clients: tuple[int, ...] | None = None
    count: int = 1
    claimed: float | None = None
    pool: Pool | None = None
    epsilon: float | None = None


@dataclass(frozen=True, eq=False)
class Drawn:
    """What a replayed step needs of its noise, one number per row on the device.

    ``keys`` (64 bits, drawn from each row's stream) say which noise it is, ``stds`` its deviation per coordinate.
    """

    keys: Tensor
    stds: Tensor


@dataclass
class Context:
    """What a stage may look at besides its input: where it stands, whose rows these are, and their randomness.

    ``streams`` holds one generator per row, owned by (round, client) or (round, server); a stage that draws
    numbers for row i takes them from ``streams[i]`` and from nowhere else; ``batches`` are the streams that choose
    each client's training examples. ``server`` is the stream of what the server draws. ``memory`` is what stages
    remember between rounds, made of released values only; ``previous`` is the mean move of the last round, released,
    without its public part.
    ``chance`` is the stream of what happens to a simulated round from outside, such as who drops out of it.
    ``weights`` is the global model (dim,) that clients start from.
    ``drawn`` stands for the streams where a step is replayed on a device. What parts put into ``log`` stands in the
    round's line of the event log. ``announced`` holds numbers that a controller made of what was opened in past rounds.
    Where it is ``lenient``, a client whose training diverged is left to the server, which excludes what it sends;
    otherwise the run ends with that client's number. ``cohort`` says how many clients take part in the round where
    these rows are not all of them (a node has its own row only).
    """

    round: int
    layout: Layout
    clients: Sequence[int | None]
    streams: Sequence[np.random.Generator]
    slot: Slot = "on_step"
    channel: str = "move"
    releases: list[Release] = field(default_factory=list)
    memory: dict[str, Tensor] = field(default_factory=dict)
    server: np.random.Generator | None = None
    batches: Sequence[np.random.Generator] = ()
    previous: Tensor | None = None
    drawn: Drawn | None = None
    chance: np.random.Generator | None = None
    weights: Tensor | None = None
    log: dict[str, Any] = field(default_factory=dict)
    announced: Mapping[str, float] = field(default_factory=dict)
    lenient: bool = False
    cohort: int | None = None

    def at(self, slot: Slot) -> Context:
        """The same context at another slot, writing to the same list of releases."""
        return replace(self, slot=slot)

    def at_server(self) -> Context:
        """The server's side of the same round: one row, the server's own stream."""
        assert self.server is not None
        return replace(self, clients=[None], streams=[self.server], slot="on_mean")

    def row(self, i: int) -> Context:
        """The context of one row alone."""
        return replace(
            self,
            clients=[self.clients[i]],
            streams=[self.streams[i]],
            batches=[self.batches[i]] if self.batches else (),
        )

    def first(self, n: int) -> Context:
        """The context of the first ``n`` rows."""
        if n == len(self.clients):
            return self
        previous = self.previous
        return replace(
            self,
            clients=self.clients[:n],
            streams=self.streams[:n],
            batches=self.batches[:n],
            previous=previous if previous is None or previous.shape[0] == 1 else previous[:n],
        )

    def ordered(self, rows: Sequence[int]) -> Context:
        """The context of these rows, in this order."""
        return replace(
            self,
            clients=[self.clients[i] for i in rows],
            streams=[self.streams[i] for i in rows],
            batches=[self.batches[i] for i in rows] if self.batches else (),
        )

    def heading(self, travel: Tensor | float) -> Context:
        """The same context for gradients: the previous move as the gradient that would have made it."""
        return self if self.previous is None else replace(self, previous=self.previous * (-1.0 / travel))


class Stage(Protocol):
    """A part of the journey: takes a signal, returns a signal whose facts are true of its value."""

    def __call__(self, signal: Signal, ctx: Context) -> Signal:
        """Transform all rows at once."""
        ...


Replay = Literal["no", "quiet", "draws"]
"""Whether what a stage does to values can be recorded once and replayed on a device, whoever the rows are then.

Such a stage decides nothing by values and reads none back. ``draws``: it takes ``ctx.drawn``, and then releases
nothing; the engine writes down what the same stage releases for the same clients.
"""


def replay(stage: Stage | PerSample | Remembering) -> Replay:
    """What a stage says of itself; one that says nothing cannot be replayed."""
    found: Replay = getattr(stage, "replay", "no")
    return found


@runtime_checkable
class Remembering(Protocol):
    """A stage with memory: it learns from released values of one round what it does in the next."""

    def init(self) -> Tensor:
        """What it knows before the first round."""
        ...

    def apply(self, memory: Tensor, signal: Signal, ctx: Context) -> tuple[Tensor, Signal]:
        """Transform all rows at once, and say what to remember."""
        ...


@runtime_checkable
class PerSample(Protocol):
    """A stage that looks at single training examples; only the first stage of ``on_step`` may be one.

    The engine never needs the per-sample gradients g_i themselves: it computes their norms, asks for factors
    a_i, and hands on Σ a_i·g_i with the facts of :meth:`summed`.
    """

    def factors(self, norms: Tensor) -> Tensor:
        """Factors for per-sample gradients of these l2 norms, in the same shape."""
        ...

    def summed(self, total: Tensor) -> Signal:
        """Dress the sum of scaled per-sample gradients, one row per client, in its facts."""
        ...


@dataclass(frozen=True)
class Chain:
    """Stages that run from left to right; a chain of nothing changes nothing."""

    stages: tuple[Stage | PerSample | Remembering, ...] = ()

    def __call__(self, signal: Signal, ctx: Context) -> Signal:
        """Run the stages that work on whole rows (a leading per-sample stage is the engine's to run)."""
        for i, stage in enumerate(self.whole):
            if self.remembers and isinstance(stage, Remembering):
                key = f"{ctx.slot}.{i}"
                known = ctx.memory[key] if key in ctx.memory else stage.init()
                ctx.memory[key], signal = stage.apply(known, signal, ctx)
            else:
                signal = stage(signal, ctx)  # type: ignore[operator]
        return signal

    def __len__(self) -> int:
        return len(self.stages)

    def __iter__(self) -> Iterator[Stage | PerSample | Remembering]:
        return iter(self.stages)

    @cached_property
    def per_sample(self) -> PerSample | None:
        """The leading stage, if it looks at single examples (looking it up takes longer than asking it)."""
        first = self.stages[0] if self.stages else None
        return first if isinstance(first, PerSample) else None

    @cached_property
    def whole(self) -> tuple[Stage | Remembering, ...]:
        """The stages that work on one row per client."""
        return self.stages[1:] if self.per_sample else self.stages  # type: ignore[return-value]

    @cached_property
    def remembers(self) -> bool:
        """Whether a stage learns from one call for the next."""
        return any(isinstance(stage, Remembering) for stage in self.whole)


def chain(*stages: Stage | PerSample | Remembering | Chain) -> Chain:
    """Put stages one after another; chains inside are laid flat, so that grouping never matters.

    >>> len(chain(chain(), chain(chain())))
    0
    """
    flat: list[Stage | PerSample | Remembering] = []
    for stage in stages:
        if isinstance(stage, Chain):
            flat.extend(stage.stages)
        else:
            flat.append(stage)
    return Chain(tuple(flat))
