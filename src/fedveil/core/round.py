"""One round in two halves: uploads depart from the clients, and arrive at the server (DESIGN 1)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedveil.core.errors import Aborted, Refused
from fedveil.core.intake import Instead, faults
from fedveil.core.parts import (
    ANNOUNCED,
    MOVE,
    Aggregator,
    Calculating,
    Controller,
    Delivery,
    Moves,
    Opened,
    Randomised,
    State,
    Uploads,
)
from fedveil.core.signal import Signal
from fedveil.core.stage import Context

if TYPE_CHECKING:
    from fedveil.core.method import Method

PREVIOUS = "previous"
"""The server's name for what the data did to the mean move of the last round (drift correction taken out, where it is
public), kept where a stage looks back at it."""

BUFFERS = "buffers"
"""The channel of running statistics of normalisation layers; plain averaging, never under privacy."""

LEARNED = "aggregate."
"""What a controller remembers stands under such names in the server's state; it is never sent to clients."""

MISSING = "uploads are missing, and the noise at the server was planned for all of them"


Carry = Callable[[Uploads, Tensor, Context], Delivery]
"""The journey of uploads with these weights."""


@dataclass(frozen=True, eq=False)
class Arrival:
    """The server's next state, the mean of every channel, the bytes that clients sent, and whose uploads arrived."""

    server: State
    mean: dict[str, Signal]
    bytes_up: int
    arrived: Tensor | None = None


def nobody(w: Tensor) -> Moves:
    """The moves of a Poisson cohort to which nobody came."""
    none = w.new_empty(0)
    return Moves(Signal(w.new_empty(0, w.numel())), none[:, None], none, none)


def _silenced(signal: Signal, rows: list[int]) -> Signal:
    """The same rows, zeros in place of unusable ones: noise was planned for a rule on so many (SPEC 0, zero_out)."""
    value = signal.value.clone()
    value[rows] = 0.0
    return replace(signal, value=value)


def depart(
    method: Method, moves: Moves, memory: Tensor | None, server: State, ctx: Context
) -> tuple[Uploads, Tensor | None]:
    """The clients' half after training: ``on_delta``, packing, ``on_upload``.

    What drift correction added to the move, −travel·drift, is taken out before ``on_delta`` and put back after it
    where the observer knows it, so that a clip acts on what the data did (SPEC 3.1).
    """
    delta = moves.delta
    drift = method.local.drift(memory, server) if len(method.on_delta) or method.reads_public else None
    known = -moves.travel * drift if drift is not None and method.local.drift_is_public else None
    if len(method.on_delta):
        delta = delta if known is None else delta.shifted(-known)
        delta = method.on_delta(delta, ctx.at("on_delta"))
        delta = delta if known is None else delta.shifted(known)
    if known is not None and method.reads_public:
        delta = replace(delta, public=known)
    uploads, memory = method.local.pack(delta, moves.delta, moves.travel, memory, server)
    if method.derives:
        uploads = {name: signal for name, signal in uploads.items() if name not in method.local.derived}
    else:
        uploads[MOVE] = method.on_upload(uploads[MOVE], ctx.at("on_upload"))
    if moves.buffers is not None:
        uploads[BUFFERS] = Signal(moves.buffers - server[BUFFERS])
    return uploads, memory


@dataclass(frozen=True, eq=False)
class Shares:
    """Public numbers about a cohort that the server aggregates with.

    ``weights`` of the rows; ``travel`` (rows, 1) of each; the cohort's ``share`` of the population; the
    population's ``mean_travel``; and ``fixed_weight``, 1 / expected cohort.
    """

    weights: Tensor
    travel: Tensor
    share: float
    mean_travel: float
    fixed_weight: float = 1.0

    def of(self, arrived: Tensor | None, *, fixed: bool) -> Shares:
        """Those of the uploads that arrived; weights sum to one again, unless the divisor is ``fixed``."""
        if arrived is None:
            return self
        kept, travel = self.weights[arrived], self.travel[arrived.to(self.travel.device)]
        if fixed:
            return replace(self, weights=kept, travel=travel)
        total = float(kept.sum())
        return replace(self, weights=kept / total, travel=travel, share=self.share * total)


def arrive(
    method: Method,
    uploads: Uploads,
    shares: Shares,
    server: State,
    ctx: Context,
    instead: Instead | None = None,
    carry: Carry | None = None,
) -> Arrival:
    """The journey and the server's half of a round; ``ctx`` is that of the clients.

    Rows that the server cannot use, and those of which something else arrived (``instead``), take no part: they are
    logged, the others' weights sum to one without them, and a round that nobody is left of is aborted. Where noise at
    the server was planned for a rule on so many rows, zeros stand in their places, as in the neighbours' data.
    ``carry`` stands for the transport's own journey where clients are elsewhere.
    """
    kept: Tensor | None = None
    if found := faults(uploads, instead or {}):
        ctx.log["excluded"] = [{"client": ctx.clients[row], "why": why} for row, why in found.items()]
        kept = torch.tensor([row for row in range(uploads[MOVE].rows) if row not in found], dtype=torch.long)
        if not len(kept) and not method.fixed_divisor:
            whys = ", ".join(dict.fromkeys(found.values()))
            raise Aborted(f"the server could use none of {len(found)} uploads ({whys}); lower lr, or mend the clients")
        if method.fixed_divisor and not method.aggregate.weighted:
            uploads = {name: _silenced(signal, list(found)) for name, signal in uploads.items()}
        else:
            uploads = {name: signal.rows_at(kept) for name, signal in uploads.items()}
            shares, ctx = shares.of(kept, fixed=method.fixed_divisor), ctx.ordered(kept.tolist())
    came = uploads[MOVE].rows > 0
    if not came:
        # Nobody came, which must not show: one client whose move is zero leaves the same sum, and the same noise.
        uploads = {name: replace(s, value=s.value.new_zeros(1, s.dim)) for name, s in uploads.items()}
        shares = replace(shares, weights=shares.weights.new_full((1,), shares.fixed_weight))
        ctx = ctx.at_server()
    learned = State()
    if carry is None and isinstance(method.transport, Calculating):
        delivery, learned = _calculated(method, method.transport, uploads, shares, server, ctx)
    else:
        delivery = (carry or method.transport.carry)(uploads, shares.weights, ctx)
        learned = _kept(delivery.learned or State())
    if not came:
        delivery = replace(delivery, bytes_up=0)
    arrival = land(method, uploads, delivery, shares, server, ctx, learned)
    if kept is None:
        return arrival
    if not came:
        return replace(arrival, arrived=kept)
    return replace(arrival, arrived=kept if arrival.arrived is None else kept[arrival.arrived])


def land(
    method: Method,
    uploads: Uploads,
    delivery: Delivery,
    shares: Shares,
    server: State,
    ctx: Context,
    learned: State | None = None,
) -> Arrival:
    """The server's half: derive, ``on_upload``, aggregate, ``on_mean``, absorb; it reads only facts of ``uploads``.

    ``learned`` is what a controller remembers where the rule was carried out on the way.

    ``on_upload`` is post-processing of each upload: it acts here where the server derives other channels from the
    upload as it was sent, and otherwise before the upload leaves.
    """
    arrived, kept, learned = delivery.arrived, 1.0, learned or State()
    if delivery.weight is not None and not method.fixed_divisor:
        kept = delivery.weight
    if arrived is not None:
        fixed = method.fixed_divisor
        if fixed and not method.aggregate.weighted:
            raise Aborted(MISSING)
        if delivery.weight is None and not fixed:
            kept = float(shares.weights[arrived].sum())
        shares = shares.of(arrived, fixed=fixed)
        uploads, ctx = {name: s.rows_at(arrived) for name, s in uploads.items()}, ctx.ordered(arrived.tolist())
    mean = {}
    if "each" in method.transport.reveals:
        rows = {name: replace(uploads[name], value=value) for name, value in delivery.uploads.items()}
        if method.derives:
            rows |= method.local.derive(rows[MOVE], shares.travel, server)
            rows[MOVE] = method.on_upload(rows[MOVE], ctx.at("on_upload"))
        rule, learned = _rule(method, rows[MOVE], server, ctx)
        mean = {name: rule(signal, shares.weights) for name, signal in rows.items()}
    else:
        mean = {name: uploads[name].mean(shares.weights, value / kept) for name, value in delivery.uploads.items()}
        if isinstance(method.transport, Calculating) and not method.aggregate.weighted:
            mean = {name: _unlike_a_mean(signal) for name, signal in mean.items()}
    ctx = ctx.at_server()
    mean[MOVE] = method.on_mean(mean[MOVE], ctx)
    if ctx.releases and not method.allow_leak:
        for name, signal in mean.items():
            if not signal.released:
                raise Refused(
                    f"{method.name}: channel {name!r} leaves the clients and no privacy mechanism acts on it; "
                    "put the noise where this channel is made, or use a local rule that does not send it"
                )
    after = method.local.absorb(server, mean, shares.share, shares.mean_travel)
    if BUFFERS in mean:
        after[BUFFERS] = server[BUFFERS] + mean[BUFFERS].value[0]
    if method.looks_back:
        # This round's correction is added to it again wherever it is read, so that the last one's must go.
        after[PREVIOUS] = (mean[MOVE].value - mean[MOVE].public)[0]
    return Arrival(after | ctx.memory | learned, mean, delivery.bytes_up, arrived)


def _rule(method: Method, moves: Signal, server: State, ctx: Context) -> tuple[Aggregator, State]:
    """The aggregator of this round, and what the server is to remember of choosing it."""
    rule = method.aggregate
    if isinstance(rule, Controller):
        if moves.bound is not None and not moves.released and len(method.on_mean):
            raise Refused(
                f"{method.name}: the aggregator chooses its rule by looking at uploads before any noise, which noise "
                "at the server does not cover; let the clients add the noise, or use one rule for all rounds"
            )
        chosen, found = rule.choose(_known(rule, server), moves, ctx)
        return chosen, _kept(found)
    if isinstance(rule, Randomised) and ctx.server is not None:
        rule = rule.drawn(ctx.server)
    return rule, {}


def _calculated(
    method: Method, transport: Calculating, uploads: Uploads, shares: Shares, server: State, ctx: Context
) -> tuple[Delivery, State]:
    """A journey on which the servers carry out the rule, chosen from what they open; and what to remember of that."""
    rule, learned = method.aggregate, State()
    reads = rule.reads if isinstance(rule, Controller) else frozenset[str]()

    def decide(opened: Opened, clients: int) -> Aggregator:
        nonlocal learned
        if not isinstance(rule, Controller):
            return rule
        chosen, learned = rule.choose_by(_known(rule, server), opened, clients, ctx)
        return chosen

    rules = rule.rules if isinstance(rule, Controller) else (rule,)
    delivery = transport.calculate(uploads, shares.weights, ctx, reads, rules, decide)
    return delivery, _kept(learned)


def _known(rule: Controller, server: State) -> State:
    """What a controller remembers."""
    return {n.removeprefix(LEARNED): v for n, v in server.items() if n.startswith(LEARNED)} or rule.init()


def _kept(found: State) -> State:
    """What a controller remembers, under the names of the server's state."""
    return {name if name.startswith(ANNOUNCED) else LEARNED + name: value for name, value in found.items()}


def _unlike_a_mean(signal: Signal) -> Signal:
    """A result of which it is not known which rule made it: facts that no rule keeps are dropped."""
    silent = signal.noise_var is not None and not bool(torch.as_tensor(signal.noise_var).any())
    return replace(signal, bound=None, unit=None, noise_var=0.0 if silent else None)
