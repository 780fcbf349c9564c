"""The reference engine: one client after another, one plain SGD loop each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, replace
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
from fedveil.core.stage import Chain, Context, Release
from fedveil.core.streams import torch_seed
from fedveil.core.team import go_on, hands, share_out
from fedveil.core.walk import travel
from fedveil.local.batches import Batching, Indices
from fedveil.local.engine import check_finite
from fedveil.local.examples import ExampleGradients
from fedveil.local.innermost import gains, innermost
from fedveil.local.objective import Objective, Sgd, predict
from fedveil.local.precision import Precision, products
from fedveil.local.steps import Walk, moves


@dataclass(eq=False)
class Hand:
    """What one thread trains clients with: a module whose parameters and gradients are views of flat vectors.

    A step of SGD on the whole model is one operation then, and a client's move is one subtraction.
    """

    objective: Objective
    precision: Precision
    here: Tensor
    grad: Tensor

    @classmethod
    def of(cls, objective: Objective, precision: Precision, w: Tensor) -> Hand:
        """Ready to start from such weights."""
        return cls(objective, precision, torch.empty_like(w), torch.zeros_like(w))

    @cached_property
    def examples(self) -> ExampleGradients:
        """Gradients of single examples."""
        return ExampleGradients(self.objective, self.precision)

    def start(self, server: State) -> None:
        """Stand where the server's model stands."""
        bind_parameters(self.objective.module, self.objective.layout, self.here, self.grad)
        self.objective.module.train()
        self.here.copy_(server["w"])
        if self.objective.buffers.dim:
            write_buffers(self.objective.module, self.objective.buffers, server[BUFFERS])

    def step(self, walk: Walk, on_step: Chain, x: Tensor, y: Tensor) -> Tensor:
        """Take a step along the gradient of a batch; the sum of its losses."""
        each, grad = on_step.per_sample, self.grad
        if each is None:
            loss = self._backward(x, y)
            # A stage may hand its input on, and the gradient's own memory is written to.
            gradient = Signal(grad[None, :].clone() if len(on_step) else grad[None, :])
        else:
            summed, loss = self.examples.clipped_sum(self.here, x, y, each)
            gradient = each.summed(summed[None, :])
        walk.step(gradient)
        return loss

    def _backward(self, x: Tensor, y: Tensor) -> Tensor:
        """Fill ``grad`` with the batch's mean gradient (zero for an empty batch); the sum of the losses."""
        self.grad.zero_()
        if not len(y):
            return self.grad.new_zeros(())
        with products(self.precision):
            loss = self.objective.loss(self.objective.module(x), y)
            loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach() * len(y)


@dataclass(frozen=True, eq=False)
class _Trained:
    """What one client leaves behind, besides its move."""

    loss: Tensor
    steps: int
    facts: list[Signal]
    releases: list[Release]
    buffers: Tensor | None


@dataclass(eq=False)
class Sequential:
    """Every other engine must equal this one (DESIGN 3)."""

    objective: Objective
    federation: Federation
    batching: Batching
    sgd: Sgd
    seed: int
    name: str = "sequential"
    precision: Precision = "float32"
    trouble: str | None = None
    _twins: list[Objective] = field(default_factory=list, init=False)

    def train(self, method: Method, server: State, drift: Tensor | None, ctx: Context) -> Moves:
        """Train ``ctx.clients``, each by itself (see :class:`~fedveil.local.engine.Engine`).

        On a CPU as many are on their way at a time as torch has threads, unless one could learn of another.
        """
        w, count = server["w"], len(ctx.clients)
        deltas = w.new_empty(count, w.numel())
        alone = method.on_step.remembers or w.device.type != "cpu" or hands(count) == 1 or self.draws
        objectives = [self.objective] if alone else self._objectives(hands(count))
        made = [Hand.of(objective, self.precision, w) for objective in objectives]

        def one(i: int, hand: int) -> _Trained:
            if alone:
                # Models may draw numbers themselves (dropout): their stream belongs to (round, client) as well.
                torch.manual_seed(torch_seed(self.seed, "model", ctx.round, ctx.clients[i] or 0))
            return self._walk(
                made[hand], method, server, None if drift is None else drift[i : i + 1], ctx, i, deltas[i]
            )

        trained = [one(i, 0) for i in range(count)] if alone else share_out(one, range(count))
        facts = [fact for own in trained for fact in own.facts]
        ctx.releases.extend(release for own in trained for release in own.releases)
        steps, losses = torch.tensor([own.steps for own in trained]), torch.stack([own.loss for own in trained])
        buffers = [own.buffers for own in trained if own.buffers is not None]
        return moves(self.sgd, deltas, facts, steps, losses, torch.stack(buffers) if buffers else None)

    def _walk(
        self, hand: Hand, method: Method, server: State, drift: Tensor | None, ctx: Context, i: int, delta: Tensor
    ) -> _Trained:
        """Train the client of row ``i``; its move goes to ``delta``."""
        client = ctx.clients[i]
        assert client is not None
        hand.start(server)
        order, ends = self.batching.batches(int(self.federation.sizes[client]), ctx.batches[i])
        own = replace(ctx.row(i).heading(travel(self.sgd.lr, self.sgd.momentum, len(ends))), releases=[])
        walk = Walk(self.sgd, method.on_step, hand.here[None, :], drift, own)
        total, seen = delta.new_zeros(()), 0
        for x, y in self._batches(client, order, ends):
            go_on()
            with explained(ctx.round, [client], len(y)):
                total = total + hand.step(walk, method.on_step, x, y)
            seen += len(y)
        torch.sub(hand.here, server["w"], out=delta)
        loss = (total / max(seen, 1)).double().cpu()
        buffers = self.objective.buffers
        kept = read_buffers(hand.objective.module, buffers) if buffers.dim else None
        if not (
            method.private or ctx.lenient
        ):  # who diverged is the client's secret; a clip or the global check deals with it
            check_finite(ctx.round, client, loss, delta)
        return _Trained(loss, len(ends), walk.facts(), own.releases, kept)

    @cached_property
    def draws(self) -> bool:
        """Whether the model draws numbers in a step: all threads draw from one stream, so that there can be but one."""
        test = self.federation.test
        try:
            module, x, y = deepcopy(self.objective.module).train(), self._placed(test.x[:8]), self._placed(test.y[:8])
            with torch.random.fork_rng(devices=[]):
                before = torch.get_rng_state()
                self.objective.loss(module(x), y)
                return not torch.equal(before, torch.get_rng_state())
        except Exception:  # what cannot be found out, or copied
            return True

    def _objectives(self, count: int) -> list[Objective]:
        """The model, and copies of it for other threads."""
        while len(self._twins) < count - 1:
            self._twins.append(replace(self.objective, module=deepcopy(self.objective.module)))
        return [self.objective, *self._twins[: count - 1]]

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

    def _placed(self, values: Tensor) -> Tensor:
        like = next(self.objective.module.parameters())
        return values.to(like.device, like.dtype) if values.is_floating_point() else values.to(like.device)

    def _batches(self, client: int, order: Indices, ends: Indices) -> Iterator[tuple[Tensor, Tensor]]:
        data = self.federation.train(client)
        index = torch.from_numpy(order)
        x, y = self._placed(data.x[index]), self._placed(data.y[index])
        x = innermost(x) if self._convolves else x
        start = 0
        for end in ends.tolist():
            yield x[start:end], y[start:end]
            start = end

    @cached_property
    def _convolves(self) -> bool:
        return gains(self.objective.module)


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
