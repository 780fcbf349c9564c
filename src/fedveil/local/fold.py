"""The fold tier: clients folded into the batch, each with weights of its own (DESIGN 3)."""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import Tensor, nn

from fedveil.core.flat import Layout
from fedveil.core.method import Method
from fedveil.core.stage import PerSample
from fedveil.local.conv import Conv2d
from fedveil.local.fused import FusedGroupNorm, fuse
from fedveil.local.layers import Embedding, Frame, GroupNorm, Layer, LayerNorm, Views, squared
from fedveil.local.linear import Linear
from fedveil.local.losses import per_example
from fedveil.local.objective import Objective
from fedveil.local.precision import Precision, products
from fedveil.local.schedule import Marks
from fedveil.local.steps import Into
from fedveil.local.straight import Straight

LAYERS: dict[type[nn.Module], type[Layer]] = {
    layer.handles: layer for layer in (Linear, Conv2d, GroupNorm, LayerNorm, Embedding)
}
"""Layers that hold weights, and what stands for them when clients are folded."""


FUSED: dict[type[Layer], type[Layer]] = {GroupNorm: FusedGroupNorm}
"""What stands for them where there are kernels."""


class Folded:
    """Gradients of a module whose layers were swapped for layers of many clients.

    The rest of the module's code runs as it is, on a batch that holds the examples of all clients; it must treat
    each example by itself, and call each layer once (``admission`` finds out).
    """

    def __init__(self, objective: Objective, precision: Precision = "float32") -> None:
        self.objective, self.layout, self.precision = objective, objective.layout, precision
        self.loss = per_example(objective.loss)
        like = next(objective.module.parameters())
        self.itemsize = like.element_size()
        self.frame = Frame()
        self.frame.in_turn = like.device.type == "cpu"
        self.module = nn.Sequential(deepcopy(objective.module)).train()  # so that every layer has a parent
        self.layers = swap(self.module, objective.layout, self.frame)
        self.straight = Straight.of(self.module, objective.loss)
        self._bound: tuple[Tensor, Into] | None = None
        """The rows that layers have views of."""
        self.held = 0
        """Numbers that a step holds for each example; known after the first step."""

    def __call__(self, here: Tensor, x: Tensor, y: Tensor, marks: Marks, each: PerSample | None, into: Into) -> Tensor:
        """See :class:`~fedveil.local.cohort.Gradients`."""
        frame, clients = self.frame, len(here)
        if not marks.width:
            into.put(torch.zeros((), dtype=here.dtype, device=here.device))
            return here.new_zeros(clients)
        self._bind(here, into)
        frame.books = None if each is None else []
        frame.blank = None
        if each is None and marks.empty is not None:
            frame.blank = marks.empty.repeat_interleave(marks.width)
        frame.precision = self.precision
        with products(self.precision):
            losses = self._losses(x, y, marks, mean=each is None)
        frame.precision = "float32"
        self._check_calls()
        self.held = self.held or frame.held // len(x)
        for layer in self.layers.values():
            if layer not in frame.reached:
                frame.skip(layer)
        if each is not None:
            with products("float32"):
                self._settle(each, marks)
        return marks.only_real(losses).view(clients, -1).sum(1)

    def _losses(self, x: Tensor, y: Tensor, marks: Marks, *, mean: bool) -> Tensor:
        """Each example's loss, after layers got to know gradients."""
        self.frame.counts = None
        if self.straight is not None and self.straight.fits(x, y):
            if marks.real is not None:
                self.frame.counts = marks.counts.tolist()
            return self.straight.losses(x, y, _shares(x.new_empty(len(x)), marks, mean=mean))
        with torch.enable_grad():
            losses = self.loss(self.module(x), y)
        losses.backward(_shares(losses, marks, mean=mean))  # type: ignore[no-untyped-call]
        return losses.detach()

    def footprint(self, method: Method, batch: int) -> int:
        """Bytes of a client's weights (twice where stages act on gradients) and of what its examples leave behind."""
        return (self.layout.dim * (2 if len(method.on_step) else 1) + self.held * batch) * self.itemsize

    def twin(self) -> Folded:
        """See :class:`~fedveil.local.cohort.Gradients`."""
        made = Folded(self.objective, self.precision)
        made.held = self.held
        return made

    def _bind(self, here: Tensor, into: Into) -> None:
        """Hand each layer its views of the rows."""
        frame = self.frame
        frame.clients, frame.called, frame.reached = len(here), [], set()
        if self._bound is not None and self._bound[0] is here and self._bound[1] is into:
            return
        weights, targets = self._views(here), self._views(into.rows)
        for place, layer in self.layers.items():
            layer.views = weights[place]
            frame.into[place] = {name: Into(rows, into.beta, into.alpha) for name, rows in targets[place].items()}
        self._bound = here, into

    def _views(self, rows: Tensor) -> dict[str, Views]:
        out: dict[str, Views] = {place: {} for place in self.layers}
        parts = torch.split(rows, list(self.layout.sizes), dim=1)
        for name, shape, part in zip(self.layout.names, self.layout.shapes, parts, strict=True):
            place, _, own = name.rpartition(".")
            out[place][own] = part.view(len(rows), *shape)
        return out

    @torch.no_grad()
    def _settle(self, each: PerSample, marks: Marks) -> None:
        """Norms, then factors, then sums: all from one backward pass."""
        frame, books = self.frame, self.frame.books
        assert books is not None
        singles = [layer.singles(a, g) for layer, a, g in books]
        squares = [
            layer.squares(a, g) if own is None else torch.stack([squared(v) for v in own.values()]).sum(0)
            for (layer, a, g), own in zip(books, singles, strict=True)
        ]
        norms = torch.stack(squares).sum(0).sqrt_()
        factors = marks.only_real(each.factors(norms.to(books[0][2].dtype)))  # whose rounding a clip allows for
        finite = torch.isfinite(norms)  # of padding as well: nothing times NaN is NaN
        if marks.broken is not None:
            marks.broken.logical_or_(~finite.all())
        elif not bool(finite.all()):
            frame.blank = ~finite
        for (layer, a, g), taken in zip(books, singles, strict=True):
            frame.write_scaled(layer, a, g, taken, factors.to(g.dtype))
        frame.books = None

    def _check_calls(self) -> None:
        if len(self.frame.called) != len(self.layers) or len(set(self.frame.called)) != len(self.layers):
            names = [layer.place for layer in self.frame.called]
            odd = next((p for p in self.layers if names.count(p) != 1), "")
            raise ValueError(f"layer {odd!r} was called {names.count(odd)} times in a step; set engine=sequential")


def _shares(losses: Tensor, marks: Marks, *, mean: bool) -> Tensor:
    """How much each example's loss counts in the backward pass."""
    if marks.real is None:
        return torch.full_like(losses, 1 / marks.width if mean else 1.0)
    if not mean:
        return marks.only_real(torch.ones_like(losses))
    share = 1 / marks.counts.to(losses).clamp_min(1)
    return marks.only_real(share.repeat_interleave(marks.width))


def swap(module: nn.Module, layout: Layout, frame: Frame) -> dict[str, Layer]:
    """Put layers of many clients in place of those that own the layout's parameters; they, by place.

    ``module`` is a container of the model, so that the model itself may be a layer.
    """
    layers: dict[str, Layer] = {}
    for place in dict.fromkeys(name.rpartition(".")[0] for name in layout.names):
        parent, _, own = f"0.{place}".rstrip(".").rpartition(".")
        original = module.get_submodule(f"0.{place}".rstrip("."))
        make = LAYERS[type(original)]
        make = make if frame.in_turn else FUSED.get(make, make)
        layers[place] = make(original, place, frame)
        setattr(module.get_submodule(parent), own, layers[place])
    if not frame.in_turn:
        fuse(module)
    return layers
