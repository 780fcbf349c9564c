"""The sockets of a method: local rule, transport, aggregator (DESIGN 2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import numpy as np
from torch import Tensor

from fedveil.core.signal import Signal
from fedveil.core.stage import Context

View = Literal["each", "sum"]
"""What a server gets to see of the uploads: every single one, or only their weighted sum."""

State = dict[str, Tensor]
"""Named server vectors ``(dim,)``; ``"w"`` is the model."""

Uploads = dict[str, Signal]
"""What clients send, by channel, one row per client."""

Packed = tuple[Uploads, Tensor | None]
"""Uploads, and the clients' new memory."""

ANNOUNCED = "announced."
"""Numbers that a controller tells clients stand under such names in the server's state."""

MOVE = "move"
"""The channel that carries Δ = y − w; every method has it."""


@dataclass(frozen=True, eq=False)
class Moves:
    """What came out of local training, one row per client.

    ``travel`` (rows, 1) is the sum of the step coefficients: a constant gradient g moves the client by
    −travel·g (K·η without momentum). ``loss`` is the mean training loss of the examples that were looked at.
    """

    delta: Signal
    travel: Tensor
    steps: Tensor
    loss: Tensor
    buffers: Tensor | None = None


class LocalRule(Protocol):
    """Both halves of a local algorithm side by side: what a client does, and what the server makes of it."""

    @property
    def channels(self) -> tuple[str, ...]:
        """Names of the uploads, ``"move"`` first."""
        ...

    @property
    def remembers(self) -> bool:
        """Whether a client keeps a vector of the model's length between rounds."""
        ...

    def start(self, w: Tensor) -> State:
        """The server's state before the first round."""
        ...

    def drift(self, memory: Tensor | None, server: State) -> Tensor | None:
        """What every local step of this round adds to the gradient (rows, dim), known before the round."""
        ...

    @property
    def drift_is_public(self) -> bool:
        """Whether the observer knows what drift correction adds to a move, so that only the rest needs a clip."""
        ...

    @property
    def derived(self) -> tuple[str, ...]:
        """Channels that a server who sees single moves computes by itself, so that they need not be sent."""
        ...

    def pack(self, delta: Signal, raw: Signal, travel: Tensor, memory: Tensor | None, server: State) -> Packed:
        """Uploads and the clients' new memory, made from the move as it leaves ``on_delta``.

        ``raw`` is the move before ``on_delta``: for what stays with the client, and for published leaks.
        """
        ...

    def derive(self, move: Signal, travel: Tensor, server: State) -> Uploads:
        """The derived channels, made at the server from the moves as they arrived."""
        ...

    def absorb(self, server: State, mean: Mapping[str, Signal], share: float, travel: float) -> State:
        """The server's next state.

        ``share`` is the cohort's weight in the population, ``travel`` the population's mean travel.
        """
        ...


@dataclass(frozen=True, eq=False)
class Delivery:
    """What reached the server: matrices by channel, one row per client or one row for the weighted sum; bytes sent.

    ``arrived`` lists the rows of the uploads that arrived (None: all), and only they are in ``uploads``. ``weight`` is
    the sum of their weights as it arrived with a weighted sum (None: the server knows the weights). ``learned`` is what
    a controller elsewhere wants kept for it.
    """

    uploads: dict[str, Tensor]
    bytes_up: int
    arrived: Tensor | None = None
    weight: float | None = None
    learned: State | None = None


class Transport(Protocol):
    """How uploads travel, and what the server learns on the way."""

    @property
    def reveals(self) -> frozenset[View]:
        """The views that the server gets."""
        ...

    def remarks(self, cohort: int) -> list[str]:
        """What a reader of the privacy statement must know about rounds to which this many clients are invited.

        Refuses a cohort that it cannot serve.
        """
        ...

    def carry(self, uploads: Mapping[str, Signal], weights: Tensor, ctx: Context) -> Delivery:
        """The whole journey of one round; a transport that reveals only the sum applies the weights on the way.

        ``ctx`` is that of the clients, one row for each. Who does not arrive takes no part in the round; a journey
        that fails as a whole raises :class:`~fedveil.core.errors.Aborted`, and the model stays as it is.
        """
        ...


class Promise(Protocol):
    """What a transport that shows sums alone promises about one round; neither number falls with more clients."""

    @property
    def least(self) -> int:
        """How many uploads stand in every sum; with fewer the round is aborted."""
        ...

    @property
    def colluders(self) -> int:
        """How many of the clients may work with the observer, and still single uploads stay hidden."""
        ...


@runtime_checkable
class Concealing(Transport, Protocol):
    """A transport that shows sums alone, and says what it promises: noise can be shared out over it."""

    @property
    def bits(self) -> int:
        """Whole numbers are summed modulo 2^bits."""
        ...

    @property
    def trust(self) -> str:
        """What hides single uploads, and from whom, in words."""
        ...

    def plan(self, clients: int) -> Promise:
        """The promise of a round that so many clients begin."""
        ...


Opened = Mapping[str, float]
"""Numbers about a round's uploads that were opened to a server, by name (SPEC 7.6)."""


@runtime_checkable
class Calculating(Transport, Protocol):
    """A transport whose servers carry the rule out themselves, on uploads that no party sees (SPEC 7.2).

    It opens numbers by name, and no more of them than the aggregator reads.
    """

    @property
    def opens(self) -> frozenset[str]:
        """Names of the numbers that it can open."""
        ...

    @property
    def observers(self) -> tuple[str, ...]:
        """The servers, each of which is an observer of its own."""
        ...

    def serves(self, rule: Aggregator) -> str | None:
        """None where its servers can carry this rule out; else what they can, in words."""
        ...

    def calculate(
        self,
        uploads: Mapping[str, Signal],
        weights: Tensor,
        ctx: Context,
        reads: frozenset[str],
        rules: Sequence[Aggregator],
        decide: Callable[[Opened, int], Aggregator],
    ) -> Delivery:
        """The whole journey of one round: what is delivered is the result of the rule, one row by channel.

        ``decide`` is told the numbers of ``reads`` and how many uploads are in them, and says which rule they get; it
        is asked again where a round is retried; ``rules`` are those it may name. Who is excluded goes to ``ctx.log``.
        """
        ...


class Aggregator(Protocol):
    """A rule that makes one vector of many."""

    @property
    def needs(self) -> View:
        """What the rule must see."""
        ...

    @property
    def weighted(self) -> bool:
        """Whether it uses the weights; if not, every upload counts once, and their number must be no secret."""
        ...

    @property
    def least(self) -> int:
        """The fewest uploads that it takes."""
        ...

    def check(self, rows: int) -> None:
        """Refuse a cohort of so many clients when a run is built."""
        ...

    def __call__(self, uploads: Signal, weights: Tensor) -> Signal:
        """One row from ``(clients, dim)``; the weights sum to one."""
        ...


@runtime_checkable
class Randomised(Protocol):
    """An aggregator that draws something in every round."""

    def drawn(self, rng: np.random.Generator) -> Aggregator:
        """The rule of one round, the same for all channels; ``rng`` is the server's."""
        ...


@runtime_checkable
class Controller(Protocol):
    """An aggregator that looks at a round's moves, and at what it remembers, before it says which rule they get."""

    def init(self) -> State:
        """What it knows before the first round."""
        ...

    def choose(self, memory: Mapping[str, Tensor], moves: Signal, ctx: Context) -> tuple[Aggregator, State]:
        """The rule for all channels of this round, and what to remember; the reason goes to ``ctx.log``."""
        ...

    @property
    def rules(self) -> tuple[Aggregator, ...]:
        """The rules that may be chosen."""
        ...

    @property
    def reads(self) -> frozenset[str]:
        """Names of the opened numbers from which it can choose without seeing an upload; none: it must see each."""
        ...

    def choose_by(
        self, memory: Mapping[str, Tensor], opened: Opened, clients: int, ctx: Context
    ) -> tuple[Aggregator, State]:
        """The same choice from opened numbers alone; memory under names of ``ANNOUNCED`` is told to clients."""
        ...
