"""What the server knows of uploads before they come: bounds, noise and forms, from the recipe alone.

A node is not asked what its upload is worth: bounds decide how much noise the server adds. Facts never depend on
values, so that a dummy move, pushed through the client's half of the recipe, has those of every honest upload.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fedveil.core.parts import MOVE, Moves, State, Uploads
from fedveil.core.round import BUFFERS, depart
from fedveil.core.signal import Signal
from fedveil.core.stage import Context
from fedveil.core.streams import stream
from fedveil.core.walk import energy
from fedveil.local.steps import dress
from fedveil.runtime.planning import Planner
from fedveil.runtime.prepare import Training, travel_of


def travels(training: Training, clients: Sequence[int], like: Tensor) -> Tensor:
    """How far gradients carry each of these clients, (clients, 1)."""
    sizes = training.federation.sizes
    return like.new_tensor([[travel_of(training.settings, training.batching, int(sizes[k]))] for k in clients])


def foresee(training: Training, planner: Planner, server: State, ctx: Context) -> Uploads:
    """The coming uploads of ``ctx.clients``: zeros with true facts; ``ctx.memory`` is then that of the next round."""
    clients = [k for k in ctx.clients if k is not None]
    steps = [training.batching.steps_for(int(training.federation.sizes[k])) for k in clients]
    kinds: dict[tuple[object, ...], int] = {}
    found: list[Uploads] = []
    rows = []
    memory = dict(ctx.memory)
    for client, count in zip(clients, steps, strict=True):
        kind = (count, *planner.own_noise(client))
        if kind not in kinds:
            kinds[kind] = len(found)
            alone, learned = _one(training, server, ctx, client, count)
            found.append(alone)
            memory = memory if found[1:] else learned
        rows.append(kinds[kind])
    ctx.memory.update(memory)
    return {name: _together([found[i][name] for i in rows]) for name in found[0]}


def _one(training: Training, server: State, ctx: Context, client: int, steps: int) -> tuple[Uploads, dict[str, Tensor]]:
    method, sgd, w = training.method, training.settings.sgd, server["w"]
    alone = replace(ctx, clients=[client], streams=[stream(0, "rehearsal")], batches=[], cohort=len(ctx.clients))
    own = replace(alone, releases=[], memory=dict(ctx.memory), log={})
    zero = w.new_zeros(1, w.numel())
    far = travels(training, [client], w)
    facts: list[Signal] = []
    if len(method.on_step):
        first = method.on_step.per_sample
        gradient = first.summed(zero) if first else Signal(zero)
        fact = method.on_step(gradient, own.heading(far).at("on_step"))
        facts = [replace(fact, value=fact.value[:1])]
    else:
        facts = [Signal(zero)]
    delta = dress(zero, facts, w.new_tensor([[energy(sgd.lr, sgd.momentum, steps)]]))
    buffers = server[BUFFERS][None, :] if BUFFERS in server else None
    moves = Moves(delta, far, torch.tensor([steps]), torch.zeros(1), buffers)
    held = zero if method.local.remembers else None
    uploads, _ = depart(method, moves, held, server, own)
    return uploads, own.memory


def _together(signals: list[Signal]) -> Signal:
    """One row each; what they share is the first one's."""
    first, n = signals[0], len(signals)
    variance = first.noise_var
    if any(isinstance(s.noise_var, Tensor) for s in signals):
        columns = [torch.as_tensor(s.noise_var, dtype=first.value.dtype).reshape(1, -1) for s in signals]
        variance = torch.cat(columns)
    return replace(first, value=first.value.new_zeros(1, 1).expand(n, first.dim), noise_var=variance)


def filled(facts: Uploads, values: dict[str, Tensor], public: Tensor | None) -> Uploads:
    """The same facts with these values (and what is public of the moves), one row per client."""
    out = {name: replace(facts[name], value=value) for name, value in values.items()}
    if public is not None:
        out[MOVE] = replace(out[MOVE], public=public)
    return out
