"""The reference engine: one client after another, one plain SGD loop each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
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
from fedveil.core.stage import Chain, Context
from fedveil.core.streams import torch_seed
from fedveil.core.walk import energy, travel
from fedveil.local.batches import Batching, Indices
from fedveil.local.engine import Diverged
from fedveil.local.examples import ExampleGradients
from fedveil.local.objective import Objective, Sgd, predict


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

    @cached_property
    def examples(self) -> ExampleGradients:
        """Gradients of single examples."""
        return ExampleGradients(self.objective)

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
            own = own.heading(travel(*self._path(len(ends))))
            walk = _Walk(self.sgd, method.on_step, here, grad, None if drift is None else drift[i], own)
            total, seen = torch.zeros((), dtype=w.dtype, device=w.device), 0
            # Models may draw numbers themselves (dropout): their stream belongs to (round, client) as well.
            torch.manual_seed(torch_seed(self.seed, "model", ctx.round, client))
            for x, y in self._batches(client, order, ends):
                with _explained(ctx.round, client, len(y)):
                    if each is None:
                        gradient, loss = Signal(grad[None, :]), self._backward(grad, x, y)
                    else:
                        summed, loss = self.examples.clipped_sum(here, x, y, each)
                        gradient = each.summed(summed[None, :])
                walk.step(gradient)
                total, seen = total + loss, seen + len(y)
            torch.sub(here, w, out=deltas[i])
            steps[i] = walk.taken
            losses[i] = total / max(seen, 1)
            if not method.private:  # who diverged is the client's secret; a clip or the global check deals with it
                if not torch.isfinite(losses[i]):
                    raise Diverged(ctx.round, client, "the training loss")
                if not torch.isfinite(deltas[i].sum()):
                    raise Diverged(ctx.round, client, "the trained model")
            facts.append(walk.facts)
            if self.objective.buffers.dim:
                buffers.append(read_buffers(self.objective.module, self.objective.buffers))
        paths = [(travel(*self._path(k)), energy(*self._path(k))) for k in steps.tolist()]
        delta = _dress(deltas, facts, w.new_tensor([[e] for _, e in paths]))
        far = w.new_tensor([[t] for t, _ in paths])
        return Moves(delta, far, steps, losses, torch.stack(buffers) if buffers else None)

    def bind(self, server: State) -> None:
        """The module's parameters become views of the server's vector."""
        bind_parameters(self.objective.module, self.objective.layout, server["w"])
        if self.objective.buffers.dim:
            write_buffers(self.objective.module, self.objective.buffers, server[BUFFERS])

    def outputs(self, server: State, x: Tensor) -> Tensor:
        """Answers of the model with the server's weights."""
        self.bind(server)
        return predict(self.objective, x)

    def _backward(self, grad: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Fill ``grad`` with the batch's mean gradient (zero for an empty batch); the sum of the losses."""
        grad.zero_()
        if not len(y):
            return grad.new_zeros(())
        loss = self.objective.loss(self.objective.module(x), y)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach() * len(y)

    def _placed(self, values: Tensor) -> Tensor:
        like = next(self.objective.module.parameters())
        return values.to(like.device, like.dtype) if values.is_floating_point() else values.to(like.device)

    def _path(self, steps: int) -> tuple[float, float, int]:
        return self.sgd.lr, self.sgd.momentum, steps

    def _batches(self, client: int, order: Indices, ends: Indices) -> Iterator[tuple[Tensor, Tensor]]:
        data = self.federation.train(client)
        index = torch.from_numpy(order)
        x, y = self._placed(data.x[index]), self._placed(data.y[index])
        start = 0
        for end in ends.tolist():
            yield x[start:end], y[start:end]
            start = end


@contextmanager
def _explained(round: int, client: int, examples: int) -> Iterator[None]:
    try:
        yield
    except Exception as problem:
        raise Refused(
            f"round {round}, client {client}: the model or the loss failed on {examples} example(s) "
            f"({type(problem).__name__}: {problem}); mend it, or change batch so that no batch is this small"
        ) from problem


class _Walk:
    """The steps of one client: gradient → ``on_step`` → + drift → SGD, on flat vectors, in place."""

    def __init__(
        self, sgd: Sgd, on_step: Chain, here: Tensor, grad: Tensor, drift: Tensor | None, ctx: Context
    ) -> None:
        self.sgd, self.on_step, self.here = sgd, on_step, here
        self.drift, self.ctx = drift, ctx.at("on_step")
        self.velocity = torch.zeros_like(here) if sgd.momentum else None
        self.facts = Signal(grad[None, :])
        self.taken = 0

    @torch.no_grad()
    def step(self, gradient: Signal) -> None:
        """One step along the batch's gradient, one row; the row may be overwritten."""
        g = gradient.value[0]
        if len(self.on_step):
            # A stage may hand its input on, and the gradient's own memory is written to below.
            self.facts = self.on_step(replace(gradient, value=gradient.value.clone()), self.ctx)
            g = self.facts.value[0]
        if self.drift is not None:
            g = g.add_(self.drift)
        if self.sgd.weight_decay:
            g = g.add_(self.here, alpha=self.sgd.weight_decay)
        if self.velocity is not None:
            g = self.velocity.mul_(self.sgd.momentum).add_(g)
        self.here.add_(g, alpha=-self.sgd.lr)
        self.taken += 1


def _dress(deltas: Tensor, facts: list[Signal], energy: Tensor) -> Signal:
    """Moves with the facts that survive K steps: noise adds up by the path's energy, bounds do not add up.

    Noise that was fed back through later gradients is left out of ``noise_var`` (first order, SPEC 3.2).
    """
    if not facts:
        return Signal(deltas)
    if any(f.noise_var is None for f in facts):
        variance = None
    else:
        each = [torch.as_tensor(f.noise_var, dtype=deltas.dtype) for f in facts]
        each = [v if v.dim() == 2 else v.view(1, 1) for v in each]
        variance = torch.cat(each) * energy if any(torch.any(v) for v in each) else 0.0
    return replace(Signal(deltas), noise_var=variance, released=all(f.released for f in facts))
