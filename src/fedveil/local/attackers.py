"""Who attacks, from when on, and where that acts: between training and the journey of the uploads (SPEC 7.7)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, is_dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedveil.core.errors import Refused, positive
from fedveil.core.intake import Instead
from fedveil.core.method import Method
from fedveil.core.parts import Moves, State, Uploads
from fedveil.core.round import BUFFERS
from fedveil.core.stage import Context
from fedveil.core.streams import stream
from fedveil.local.attacks import Attack, Sight
from fedveil.local.engine import Engine

Streams = Callable[[str, Sequence[int]], list[np.random.Generator]]
"""Fresh streams of these clients, of their ``noise`` or of their ``batches``."""


def drawn(share: float, population: int, seed: int) -> frozenset[int]:
    """The attackers of a population, drawn from the run's seed.

    >>> len(drawn(0.2, 10, 0))
    2
    """
    if not 0 <= share <= 1:
        raise Refused(f"attack.share: {share} is not a share of the clients; give a number from 0 to 1")
    count = round(share * population)
    if share > 0 and not count:
        raise Refused(f"attack.share: {share} of {population} clients is nobody; give at least {1 / population:.2g}")
    return frozenset(stream(seed, "attackers").choice(population, count, replace=False).tolist())


def one_of_two(wanted: Tensor, levels: tuple[Tensor, Tensor], streams: Sequence[np.random.Generator]) -> Tensor:
    """Where one bit per value travels, an attacker sends bits as well: at random, right in the mean within the levels.

    What is not finite is sent as it is, for the server to refuse.
    """
    low, high = levels
    draws = torch.from_numpy(np.stack([stream.random(wanted.shape[1]) for stream in streams])).to(wanted.device)
    bits = torch.where(draws < (wanted.double() - low) / (high - low), high, low)
    return torch.where(torch.isfinite(wanted), bits, wanted)


@dataclass(frozen=True, eq=False)
class Attackers:
    """Dishonest clients; before round ``onset`` they behave like everybody else, bit for bit.

    ``engine`` trains them on their poisoned data, where their attack has any. Nothing that they do touches the random
    numbers of honest clients, whose uploads are the same with and without them in the same round.
    """

    name: str
    attack: Attack
    clients: frozenset[int]
    onset: int
    share: float
    seed: int
    engine: Engine | None = None

    def __post_init__(self) -> None:
        positive(**{"attack.onset": self.onset})

    def rows(self, ctx: Context) -> list[int]:
        """Which rows of a cohort attack in this round."""
        active = self.active(ctx.round)
        return [i for i, client in enumerate(ctx.clients) if client in active]

    def active(self, round: int) -> frozenset[int]:
        """Who attacks in this round."""
        return self.clients if round >= self.onset else frozenset()

    def among(self, clients: Sequence[int], round: int) -> int:
        """How many of these clients attack in this round."""
        return len(self.active(round).intersection(clients))

    def retrain(
        self, method: Method, server: State, drift: Tensor | None, moves: Moves, ctx: Context, streams: Streams
    ) -> Moves:
        """The moves of a cohort, those of attackers who poison their data trained anew.

        They follow the protocol otherwise: clipped, and with noise in their steps where the method has any.
        """
        rows = self.rows(ctx)
        if self.engine is None or not rows:
            return moves
        clients = [k for k in (ctx.clients[i] for i in rows) if k is not None]
        own = replace(
            ctx.ordered(rows), streams=streams("noise", clients), batches=streams("batches", clients), releases=[]
        )
        made = self.engine.train(method, server, None if drift is None else drift[rows], own)
        delta = moves.delta.value.clone()
        delta[rows] = made.delta.value
        buffers = moves.buffers
        if buffers is not None and made.buffers is not None:
            buffers = buffers.clone()
            buffers[rows] = made.buffers
        return replace(moves, delta=replace(moves.delta, value=delta), buffers=buffers)

    def send(self, uploads: Uploads, ctx: Context) -> tuple[Uploads, Instead]:
        """The uploads as they leave, and by row what leaves in place of an upload that has no proper shape.

        Attackers pass by their own clip and noise. Running statistics of normalisation layers are sent as they are.
        """
        rows = self.rows(ctx)
        if not rows:
            return uploads, {}
        others = [i for i in range(len(ctx.clients)) if i not in set(rows)]
        sent, odd = dict(uploads), dict[int, dict[str, Tensor] | None]()
        for name, signal in uploads.items():
            if name == BUFFERS:
                continue
            streams = [stream(self.seed, "attack", name, ctx.round, ctx.clients[i] or 0) for i in rows]
            # A blind attack is not even handed what it must not know; the number of honest clients is public.
            honest = signal.value[others] if self.attack.omniscient else torch.empty(len(others), 0)
            forged = self.attack.forge(Sight(signal.value[rows], honest, streams))
            if forged is None:
                odd |= dict.fromkeys(rows)
            elif forged.shape[1:] != signal.value.shape[1:]:
                for i, row in zip(rows, forged, strict=True):
                    kept = odd.get(i) or {}
                    odd[i] = {**kept, name: row}
            else:
                value = signal.value.clone()
                value[rows] = forged if signal.levels is None else one_of_two(forged, signal.levels, streams)
                sent[name] = replace(signal, value=value)
        return sent, odd

    def facts(self) -> dict[str, Any]:
        """What a summary says: the attack, who carries it out, and each of its settings."""
        own: dict[str, Any] = (
            asdict(self.attack) if is_dataclass(self.attack) and not isinstance(self.attack, type) else {}
        )
        known = {"name": self.name, "share": self.share, "onset": self.onset, "clients": sorted(self.clients)}
        return known | {"omniscient": self.attack.omniscient} | own
