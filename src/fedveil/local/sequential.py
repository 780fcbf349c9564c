"""The reference engine: one client after another, one plain SGD loop each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from fedveil.core.errors import Refused
from fedveil.core.federation import Federation
from fedveil.core.flat import bind_parameters, read_buffers, write_buffers
from fedveil.core.method import Method
from fedveil.core.parts import Moves, State
from fedveil.core.round import BUFFERS
from fedveil.core.signal import Signal
from fedveil.core.stage import Context
from fedveil.core.streams import torch_seed
from fedveil.core.walk import travel
from fedveil.local.batches import Batching, Indices
from fedveil.local.engine import check_finite
from fedveil.local.examples import ExampleGradients
from fedveil.local.objective import Objective, Sgd, predict
from fedveil.local.precision import Precision, products
from fedveil.local.steps import Walk, moves


@dataclass(eq=False)
class Sequential:
    """Every other engine must equal this one (DESIGN 3).

    The module's parameters and gradients are views of two flat vectors, so a step of SGD on the whole model is
    one operation, and a client's move is one subtraction.
    """

    objective: Objective
    federation: Federation
    batching: Batching
    sgd: Sgd
    seed: int
    name: str = "sequential"
    precision: Precision = "float32"

    @cached_property
    def examples(self) -> ExampleGradients:
        """Gradients of single examples."""
        return ExampleGradients(self.objective, self.precision)

    def train(self, method: Method, server: State, drift: Tensor | None, ctx: Context) -> Moves:
        """Train ``ctx.clients`` in turn (see :class:`~fedveil.local.engine.Engine`)."""
        each = method.on_step.per_sample
        w = server["w"]
        rows = len(ctx.clients)
        deltas = w.new_empty(rows, w.numel())
        losses = torch.empty(rows, dtype=torch.float64)
        steps = torch.empty(rows, dtype=torch.int64)
        facts: list[Signal] = []
        buffers = []
        here, grad = torch.empty_like(w), torch.zeros_like(w)
        bind_parameters(self.objective.module, self.objective.layout, here, grad)
        self.objective.module.train()
        for i, client in enumerate(ctx.clients):
            assert client is not None
            here.copy_(w)
            if self.objective.buffers.dim:
                write_buffers(self.objective.module, self.objective.buffers, server[BUFFERS])
            own = ctx.row(i)
            order, ends = self.batching.batches(int(self.federation.sizes[client]), own.batches[0])
            own = own.heading(travel(self.sgd.lr, self.sgd.momentum, len(ends)))
            walk = Walk(self.sgd, method.on_step, here[None, :], None if drift is None else drift[i : i + 1], own)
            total, seen = torch.zeros((), dtype=w.dtype, device=w.device), 0
            # Models may draw numbers themselves (dropout): their stream belongs to (round, client) as well.
            torch.manual_seed(torch_seed(self.seed, "model", ctx.round, client))
            for x, y in self._batches(client, order, ends):
                with explained(ctx.round, [client], len(y)):
                    if each is None:
                        loss = self._backward(grad, x, y)
                        # A stage may hand its input on, and the gradient's own memory is written to.
                        gradient = Signal(grad[None, :].clone() if len(method.on_step) else grad[None, :])
                    else:
                        summed, loss = self.examples.clipped_sum(here, x, y, each)
                        gradient = each.summed(summed[None, :])
                walk.step(gradient)
                total, seen = total + loss, seen + len(y)
            torch.sub(here, w, out=deltas[i])
            steps[i] = len(ends)
            losses[i] = total / max(seen, 1)
            facts.extend(walk.facts())
            if self.objective.buffers.dim:
                buffers.append(read_buffers(self.objective.module, self.objective.buffers))
            if not method.private:  # who diverged is the client's secret; a clip or the global check deals with it
                check_finite(ctx.round, client, losses[i], deltas[i])
        return moves(self.sgd, deltas, facts, steps, losses, torch.stack(buffers) if buffers else None)

    def bind(self, server: State) -> None:
        """The module's parameters become views of the server's vector."""
        bind_parameters(self.objective.module, self.objective.layout, server["w"])
        if self.objective.buffers.dim:
            write_buffers(self.objective.module, self.objective.buffers, server[BUFFERS])

    def outputs(self, server: State, x: Tensor) -> Tensor:
        """Answers of the model with the server's weights."""
        self.bind(server)
        with products("float32"):
            return predict(self.objective, x)

    def _backward(self, grad: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Fill ``grad`` with the batch's mean gradient (zero for an empty batch); the sum of the losses."""
        grad.zero_()
        if not len(y):
            return grad.new_zeros(())
        with products(self.precision):
            loss = self.objective.loss(self.objective.module(x), y)
            loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach() * len(y)

    def _placed(self, values: Tensor) -> Tensor:
        like = next(self.objective.module.parameters())
        return values.to(like.device, like.dtype) if values.is_floating_point() else values.to(like.device)

    def _batches(self, client: int, order: Indices, ends: Indices) -> Iterator[tuple[Tensor, Tensor]]:
        data = self.federation.train(client)
        index = torch.from_numpy(order)
        x, y = self._placed(data.x[index]), self._placed(data.y[index])
        start = 0
        for end in ends.tolist():
            yield x[start:end], y[start:end]
            start = end


@contextmanager
def explained(round: int, clients: Sequence[int], examples: int) -> Iterator[None]:
    """Say in which step of whom a model or a loss failed."""
    try:
        yield
    except Exception as problem:
        who = f"client {clients[0]}" if len(clients) == 1 else f"clients {', '.join(map(str, clients))}"
        raise Refused(
            f"round {round}, {who}: the model or the loss failed on {examples} example(s) "
            f"({type(problem).__name__}: {problem}); mend it, or change batch so that no batch is this small"
        ) from problem
