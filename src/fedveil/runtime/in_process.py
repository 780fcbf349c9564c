"""Clients in this process, trained all at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from fedveil.core.intake import Instead
from fedveil.core.method import Method
from fedveil.core.parts import Moves, State, Uploads
from fedveil.core.round import Arrival, arrive, depart, nobody
from fedveil.core.stage import Context
from fedveil.privacy.ledger import Line
from fedveil.runtime.accounting import Bookkeeper
from fedveil.runtime.checkpoint import Progress
from fedveil.runtime.prepare import Training

Record = dict[str, Any]


@dataclass(frozen=True, eq=False)
class InProcess:
    """Clients in this process, trained by the run's engine."""

    training: Training

    @property
    def lenient(self) -> bool:
        """Attackers may send anything."""
        return self.training.attackers is not None

    def memory_size(self, dim: int) -> int:
        """The vector itself."""
        return dim

    def muster(self, number: int, cohort: Sequence[int]) -> None:
        """Everybody is here."""

    def carry_out(
        self, progress: Progress, ctx: Context, books: Bookkeeper, lines: Sequence[Line], record: Record
    ) -> tuple[Arrival, Tensor | None]:
        """Train, let uploads depart, and have them arrive."""
        training, server, watch = self.training, progress.server, self.training.watch
        cohort = [k for k in ctx.clients if k is not None]
        method = training.method if watch is None else watch.begin(ctx.round, cohort)
        held = progress.memory.gather(cohort) if method.local.remembers else None
        again = None if watch is None else watch.replay(ctx)
        moves, sent = _trained(training, method, server, held, ctx, books)
        record |= measures(moves) if moves else {}
        uploads, memory, instead = _uploads(training, method, sent, server, held, ctx)
        arrival = arrive(method, uploads, training.shares(cohort, moves), server, ctx, instead)
        if watch is not None and again is not None:
            heard = watch.hear(server, moves, uploads, arrival, held, again)
            arrival = replace(arrival, server=arrival.server | heard)
        return arrival, memory


def _trained(
    training: Training, method: Method, server: State, held: Tensor | None, ctx: Context, books: Bookkeeper
) -> tuple[Moves | None, Moves | None]:
    """The moves of a cohort (None: nobody came) as honest clients make them, and as dishonest ones change theirs."""
    attackers = training.attackers
    if not ctx.clients:
        return None, None
    drift = method.local.drift(held, server)
    moves = training.engine.train(method, server, drift, ctx)
    if attackers is None:
        return moves, moves
    return moves, attackers.retrain(
        method, server, drift, moves, ctx, lambda what, clients: books.streams(what, ctx.round, clients)
    )


def _uploads(
    training: Training, method: Method, moves: Moves | None, server: State, held: Tensor | None, ctx: Context
) -> tuple[Uploads, Tensor | None, Instead]:
    """What leaves the clients: uploads, their new memory, and what arrives instead of some."""
    uploads, memory = depart(method, moves or nobody(server["w"]), held, server, ctx)
    if training.attackers is None:
        return uploads, memory, {}
    uploads, instead = training.attackers.send(uploads, ctx)
    return uploads, memory, instead


def measures(moves: Moves) -> Record:
    """What a round's record says of local training."""

    def span(values: Tensor) -> Record:
        return {"mean": float(values.double().mean()), "min": float(values.min()), "max": float(values.max())}

    steps = moves.steps
    return {
        "train_loss": span(moves.loss),
        "move_norm": span(moves.delta.value.norm(dim=1)),
        "steps": {"min": int(steps.min()), "max": int(steps.max())},
    }
