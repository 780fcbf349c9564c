"""One round in two halves: uploads depart from the clients, and arrive at the server (DESIGN 1)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torch import Tensor

from fedveil.core.errors import Refused
from fedveil.core.parts import MOVE, Moves, State, Uploads
from fedveil.core.signal import Signal
from fedveil.core.stage import Context

if TYPE_CHECKING:
    from fedveil.core.method import Method

BUFFERS = "buffers"
"""The channel of running statistics of normalisation layers; plain averaging, never under privacy."""


@dataclass(frozen=True, eq=False)
class Arrival:
    """The server's next state, the mean of every channel, and the bytes that clients sent."""

    server: State
    mean: dict[str, Signal]
    bytes_up: int


def depart(
    method: Method, moves: Moves, memory: Tensor | None, server: State, ctx: Context
) -> tuple[Uploads, Tensor | None]:
    """The clients' half after training: ``on_delta``, packing, ``on_upload``.

    What drift correction added to the move, −travel·drift, is known beforehand: it is taken out before
    ``on_delta`` and put back after it, so that a clip acts on what the data did (SPEC 3.1).
    """
    delta = moves.delta
    if len(method.on_delta):
        drift = method.local.drift(memory, server)
        known = 0.0 if drift is None else -moves.travel * drift
        delta = method.on_delta(delta.shifted(-known), ctx.at("on_delta")).shifted(known)
    uploads, memory = method.local.pack(delta, moves.travel, memory, server)
    uploads[MOVE] = method.on_upload(uploads[MOVE], ctx.at("on_upload"))
    if moves.buffers is not None:
        uploads[BUFFERS] = Signal(moves.buffers - server[BUFFERS])
    return uploads, memory


def arrive(method: Method, uploads: Uploads, weights: Tensor, share: float, server: State, ctx: Context) -> Arrival:
    """The server's half: open, aggregate, ``on_mean``, absorb; ``ctx`` has the server's single row."""
    delivery = method.transport.carry({name: s.value for name, s in uploads.items()}, weights)
    each = "each" in method.transport.reveals
    mean = {}
    for name, value in delivery.uploads.items():
        if each:
            mean[name] = method.aggregate(replace(uploads[name], value=value), weights)
        else:
            mean[name] = uploads[name].mean(weights, value)
    mean[MOVE] = method.on_mean(mean[MOVE], ctx.at("on_mean"))
    if ctx.releases:
        for name, signal in mean.items():
            if not signal.released:
                raise Refused(
                    f"{method.name}: channel {name!r} leaves the clients and no privacy mechanism acts on it; "
                    "put the noise where this channel is made, or use a local rule that does not send it"
                )
    after = method.local.absorb(server, mean, share)
    if BUFFERS in mean:
        after[BUFFERS] = server[BUFFERS] + mean[BUFFERS].value[0]
    return Arrival(after | ctx.memory, mean, delivery.bytes_up)
