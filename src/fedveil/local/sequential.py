"""The reference engine: one client after another, one plain SGD loop each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

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
from fedveil.local.batches import Batching
from fedveil.local.engine import Diverged
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

    def train(self, method: Method, server: State, drift: Tensor | None, ctx: Context) -> Moves:
        """Train ``ctx.clients`` in turn (see :class:`~fedveil.local.engine.Engine`)."""
        if method.on_step.per_sample is not None:
            raise NotImplementedError("per-sample stages come with the private methods")
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
            walk = _Walk(self.sgd, method.on_step, here, grad, None if drift is None else drift[i], ctx.row(i))
            total = torch.zeros((), dtype=w.dtype)
            # Models may draw numbers themselves (dropout): their stream belongs to (round, client) as well.
            torch.manual_seed(torch_seed(self.seed, "model", ctx.round, client))
            for x, y in self._batches(client, ctx.round):
                grad.zero_()
                loss = self._backward(x, y, ctx.round, client)
                walk.step()
                total += loss.detach()
            torch.sub(here, w, out=deltas[i])
            steps[i] = walk.taken
            losses[i] = total / walk.taken
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

    def _backward(self, x: Tensor, y: Tensor, round: int, client: int) -> Tensor:
        try:
            loss = self.objective.loss(self.objective.module(x), y)
            loss.backward()  # type: ignore[no-untyped-call]
        except Exception as problem:
            raise Refused(
                f"round {round}, client {client}: the model or the loss failed on {len(y)} example(s) "
                f"({type(problem).__name__}: {problem}); mend it, or change batch so that no batch is this small"
            ) from problem
        return loss

    def _placed(self, values: Tensor) -> Tensor:
        like = next(self.objective.module.parameters())
        return values.to(like.device, like.dtype) if values.is_floating_point() else values.to(like.device)

    def _path(self, steps: int) -> tuple[float, float, int]:
        return self.sgd.lr, self.sgd.momentum, steps

    def _batches(self, client: int, round: int) -> Iterator[tuple[Tensor, Tensor]]:
        data = self.federation.train(client)
        order, ends = self.batching.batches(len(data), self.seed, round, client)
        index = torch.from_numpy(order)
        x, y = self._placed(data.x[index]), self._placed(data.y[index])
        start = 0
        for end in ends.tolist():
            yield x[start:end], y[start:end]
            start = end


class _Walk:
    """The steps of one client: gradient → ``on_step`` → + drift → SGD, on flat vectors, in place."""

    def __init__(
        self, sgd: Sgd, on_step: Chain, here: Tensor, grad: Tensor, drift: Tensor | None, ctx: Context
    ) -> None:
        self.sgd, self.on_step, self.here, self.grad = sgd, on_step, here, grad
        self.drift, self.ctx = drift, ctx.at("on_step")
        self.velocity = torch.zeros_like(here) if sgd.momentum else None
        self.facts = Signal(grad[None, :])
        self.taken = 0

    @torch.no_grad()
    def step(self) -> None:
        g = self.grad
        if len(self.on_step):
            self.facts = self.on_step(Signal(g[None, :].clone()), self.ctx)
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
