"""Layers that hold the weights of many clients, whose batches lie one after another (DESIGN 3).

A layer keeps its input ``a`` and gets the gradient ``g`` of its output; from both come each example's squared gradient
norm (*ghost* norms: Goodfellow 2015; Li et al. 2022) and each client's weighted sum of gradients, so one backward pass
is enough for private steps (book-keeping: Bu et al. 2023).
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedveil.core.native import squared_rows
from fedveil.local.precision import Precision
from fedveil.local.steps import Into
from fedveil.local.unfold import has_kernels

Views = dict[str, Tensor]
"""Weights of one layer by name, ``(clients, *shape)``; views of the flat rows."""


class Frame:
    """What the layers share during one step: how many clients, and who keeps the books."""

    def __init__(self) -> None:
        self.clients = 1
        self.in_turn = True
        """Whether convolutions take clients in turn, as is fastest on a CPU."""
        self.precision: Precision = "float32"
        """Of the products that a step is making."""
        self.into: dict[str, dict[str, Into]] = {}
        """Where gradients go, by layer and name."""
        self.blank: Tensor | None = None
        """Examples whose gradients count as zero, whatever they are."""
        self.counts: list[int] | None = None
        """How many examples of each client are real, where products may leave out the others; None: all are made."""
        self.books: list[tuple[Layer, Tensor, Tensor]] | None = None
        """Inputs and output gradients for later; None where gradients go straight to their place."""
        self.called: list[Layer] = []
        self.reached: set[Layer] = set()
        """Layers that the backward pass came to."""
        self.held = 0
        """Numbers that layers took in and gave out in this step."""

    def book(self, layer: Layer, a: Tensor, g: Tensor) -> None:
        """Take in what a layer's backward pass found."""
        self.reached.add(layer)
        self.held += a.numel() + 2 * g.numel() + layer.extra(a, g)
        if self.books is not None:
            self.books.append((layer, a, g))
        else:
            self.write(layer, a, g)

    def write(self, layer: Layer, a: Tensor, g: Tensor) -> None:
        """Put the sum of the examples' gradients into the rows."""
        if self.blank is not None:
            a = a.masked_fill(_over(self.blank, a), 0)
            g = g.masked_fill(_over(self.blank, g), 0)
        layer.add(a, g, self.targets(layer))

    def write_scaled(self, layer: Layer, a: Tensor, g: Tensor, singles: Views | None, factors: Tensor) -> None:
        """Put the sum of the examples' gradients, each times its factor, into the rows."""
        if singles is None:
            self.write(layer, a, g * _over(factors, g))
            return
        for name, into in self.targets(layer).items():
            values = (
                singles[name] if self.blank is None else singles[name].masked_fill(_over(self.blank, singles[name]), 0)
            )
            each = values.reshape(self.clients, -1, into.rows[0].numel())
            into.put(torch.bmm(factors.view(self.clients, 1, -1), each).view(into.rows.shape))

    def skip(self, layer: Layer) -> None:
        """A layer whose output the loss does not use: its gradient is zero."""
        for into in self.targets(layer).values():
            into.put(torch.zeros((), dtype=into.rows.dtype, device=into.rows.device))

    @property
    def half(self) -> bool:
        """Whether products are of numbers rounded to bfloat16."""
        return self.precision == "bf16"

    def operand(self, dtype: torch.dtype) -> torch.dtype:
        """The number format that factors of products may be made in."""
        return torch.bfloat16 if self.half else dtype

    def product(self, a: Tensor, b: Tensor) -> Tensor:
        """``torch.bmm``, in the precision of the step."""
        if self.half:
            return torch.bmm(a.bfloat16(), b.bfloat16(), out_dtype=torch.float32)
        return torch.bmm(a, b)

    def targets(self, layer: Layer) -> dict[str, Into]:
        """Where this layer's gradients go."""
        return self.into[layer.place]


def _over(examples: Tensor, values: Tensor) -> Tensor:
    return examples.view(-1, *[1] * (values.dim() - 1))


class Layer(nn.Module):
    """A layer of many clients: examples come client after client, as many for each."""

    def __init__(self, original: nn.Module, place: str, frame: Frame) -> None:
        super().__init__()
        self.place, self.frame = place, frame
        self.names = tuple(name for name, p in original.named_parameters() if p.requires_grad)
        self.views: Views = {}
        object.__setattr__(self, "original", original)  # not a child: its weights are not looked at

    original: Any

    @staticmethod
    def problem(original: Any) -> str | None:
        """What about this layer cannot be folded; None if nothing."""
        return None

    def forward(self, x: Tensor) -> Tensor:
        """The layer's output."""
        if x.dim() < 1 or not len(x) or len(x) % self.frame.clients:
            raise ValueError(f"{self.place}: {len(x)} rows do not divide among {self.frame.clients} clients")
        self.frame.called.append(self)
        out: Tensor = _Call.apply(x, _token(x), self)  # type: ignore[no-untyped-call]
        return out

    def output(self, a: Tensor) -> Tensor:
        """The output for this input."""
        raise NotImplementedError

    def back(self, a: Tensor, g: Tensor) -> Tensor | None:
        """The gradient of the input."""
        raise NotImplementedError

    def singles(self, a: Tensor, g: Tensor) -> Views | None:
        """Gradients of single examples ``(examples, *shape)`` by name; None where :meth:`squares` is cheaper."""
        return None

    def squares(self, a: Tensor, g: Tensor) -> Tensor:
        """‖g_i‖² of each example in float64, over this layer's weights, without the gradients themselves."""
        raise NotImplementedError

    def add(self, a: Tensor, g: Tensor, into: dict[str, Into]) -> None:
        """Put Σ of the examples' gradients of each client into its row, by name."""
        raise NotImplementedError

    def extra(self, a: Tensor, g: Tensor) -> int:
        """Numbers that a step holds besides inputs, outputs and their gradients."""
        return 0

    def by_client(self, x: Tensor) -> Tensor:
        """``(clients, examples, ...)``."""
        return x.reshape(self.frame.clients, -1, *x.shape[1:])


def _token(x: Tensor) -> Tensor:
    """Makes autograd call back even where the input needs no gradient."""
    return torch.empty(0, device=x.device, requires_grad=True)


class _Call(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, token: Tensor, layer: Layer) -> Tensor:
        ctx.layer, ctx.a = layer, x.detach()
        return layer.output(ctx.a)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, None, None]:
        back = ctx.layer.back(ctx.a, g) if ctx.needs_input_grad[0] else None
        ctx.layer.frame.book(ctx.layer, ctx.a, g)
        return back, None, None


def squared(x: Tensor) -> Tensor:
    """Squared norm of each example, in float64."""
    if has_kernels(x):
        from fedveil.local import device_norm

        return device_norm.squares(x.reshape(len(x), -1))
    return squared_rows(x.reshape(len(x), -1))


def gram_is_smaller(places: int, size: int) -> bool:
    """Whether two float64 matrices of places by places are smaller than a gradient of this size."""
    return 4 * places * places < size


class Affine(Layer):
    """x·w + b after a normalisation that has no weights of its own."""

    def output(self, a: Tensor) -> Tensor:
        """Each client's scale and shift."""
        x, shape = self.by_client(a), self.shape(a)
        weight = self.views["weight"].view(shape)
        out = torch.addcmul(self.views["bias"].view(shape), x, weight) if "bias" in self.views else x * weight
        return out.view(a.shape)

    def back(self, a: Tensor, g: Tensor) -> Tensor:
        """G·w."""
        return (self.by_client(g) * self.views["weight"].view(self.shape(a))).view(a.shape)

    def singles(self, a: Tensor, g: Tensor) -> Views:
        """Gradients are no longer than the channels: they are taken one by one."""
        out = {"weight": self.each(a * g)}
        return out | {"bias": self.each(g)} if "bias" in self.views else out

    def add(self, a: Tensor, g: Tensor, into: dict[str, Into]) -> None:
        """Σ a·g and Σ g."""
        for name, values in self.singles(a, g).items():
            into[name].put(self.by_client(values).sum(1))

    def shape(self, a: Tensor) -> tuple[int, ...]:
        """A weight's shape beside ``(clients, examples, ...)``."""
        raise NotImplementedError

    def each(self, x: Tensor) -> Tensor:
        """Sum over the places that share a weight, ``(examples, *weight)``."""
        raise NotImplementedError


class GroupNorm(Affine):
    """Group normalisation, where each client has its own scale and shift."""

    handles: ClassVar[type[nn.Module]] = nn.GroupNorm

    def forward(self, x: Tensor) -> Tensor:
        """Normalise each example, then scale and shift."""
        return super().forward(F.group_norm(x, self.original.num_groups, eps=self.original.eps))

    def shape(self, a: Tensor) -> tuple[int, ...]:
        """Channels."""
        return (self.frame.clients, 1, a.shape[1], *[1] * (a.dim() - 2))

    def each(self, x: Tensor) -> Tensor:
        """Sum over positions."""
        return x.flatten(2).sum(2) if x.dim() > 2 else x


class LayerNorm(Affine):
    """Layer normalisation, where each client has its own scale and shift."""

    handles: ClassVar[type[nn.Module]] = nn.LayerNorm

    def forward(self, x: Tensor) -> Tensor:
        """Normalise, then scale and shift."""
        return super().forward(F.layer_norm(x, self.original.normalized_shape, eps=self.original.eps))

    def shape(self, a: Tensor) -> tuple[int, ...]:
        """The last dimensions."""
        own = tuple(self.original.normalized_shape)
        return (self.frame.clients, 1, *[1] * (a.dim() - 1 - len(own)), *own)

    def each(self, x: Tensor) -> Tensor:
        """Sum over places."""
        between = x.dim() - 1 - len(self.original.normalized_shape)
        return x.sum(tuple(range(1, 1 + between))) if between else x


class Embedding(Layer):
    """One table of vectors per client."""

    handles: ClassVar[type[nn.Module]] = nn.Embedding

    @staticmethod
    def problem(original: Any) -> str | None:
        """Settings that change gradients or weights on the way."""
        odd = original.max_norm is not None or original.scale_grad_by_freq or original.sparse
        return "has max_norm, scale_grad_by_freq or sparse" if odd else None

    def output(self, a: Tensor) -> Tensor:
        """Rows of each client's table."""
        return self.views["weight"][self._owner(a), a]

    def back(self, a: Tensor, g: Tensor) -> None:
        """Numbers of words have no gradient."""
        return

    def squares(self, a: Tensor, g: Tensor) -> Tensor:
        """Σ over pairs of places that hold the same word."""
        words = a.flatten(1) if a.dim() > 1 else a[:, None]
        g = self._used(a, g).reshape(*words.shape, -1).double()
        same = words[:, :, None] == words[:, None, :]
        return (torch.bmm(g, g.mT) * same).sum((1, 2)).clamp_min(0)

    def add(self, a: Tensor, g: Tensor, into: dict[str, Into]) -> None:
        """Each place adds to its word."""
        to = into["weight"]
        to.rows.mul_(to.beta) if to.beta else to.rows.zero_()
        to.rows.index_put_((self._owner(a), a), self._used(a, g) * to.alpha, accumulate=True)

    def _owner(self, a: Tensor) -> Tensor:
        k = self.frame.clients
        owner = torch.arange(k, device=a.device).repeat_interleave(len(a) // k)
        return owner.view(-1, *[1] * (a.dim() - 1)).expand(a.shape)

    def _used(self, a: Tensor, g: Tensor) -> Tensor:
        idle = self.original.padding_idx
        return g if idle is None else g.masked_fill((a == idle)[..., None], 0)
