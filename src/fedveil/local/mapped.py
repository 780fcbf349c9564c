"""The vmap tier: any module that ``torch.func`` can follow, for all clients at once (DESIGN 3)."""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import Tensor
from torch.func import functional_call, grad_and_value, vmap

from fedveil.core.method import Method
from fedveil.core.stage import PerSample
from fedveil.local.losses import per_example
from fedveil.local.objective import Objective
from fedveil.local.precision import Precision, products
from fedveil.local.schedule import Marks
from fedveil.local.steps import Into


class Mapped:
    """Gradients of a module that is mapped over clients, and over their examples where a stage asks for each."""

    def __init__(self, objective: Objective, precision: Precision = "float32") -> None:
        self.objective, self.layout, self.precision = objective, objective.layout, precision
        self.itemsize = next(objective.module.parameters()).element_size()
        self.held = 0
        """Not known; a client's own weights stand for it."""
        module, losses, loss = deepcopy(objective.module).train(), per_example(objective.loss), objective.loss

        def batch(weights: dict[str, Tensor], x: Tensor, y: Tensor, shares: Tensor) -> tuple[Tensor, Tensor]:
            each = losses(functional_call(module, weights, (x,)), y)
            return (each * shares).sum(), each

        def one(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            return loss(functional_call(module, weights, (x[None],)), y[None])

        self._batch = vmap(grad_and_value(batch, has_aux=True))
        self._each = vmap(vmap(grad_and_value(one), in_dims=(None, 0, 0)))

    def __call__(self, here: Tensor, x: Tensor, y: Tensor, marks: Marks, each: PerSample | None, into: Into) -> Tensor:
        """See :class:`~fedveil.local.cohort.Gradients`."""
        clients, width = len(here), marks.width
        if not width:
            into.put(torch.zeros((), dtype=here.dtype, device=here.device))
            return here.new_zeros(clients)
        real = torch.arange(width, device=here.device) < marks.counts[:, None]
        x, y = (values.view(clients, width, *values.shape[1:]) for values in (x, y))
        with products(self.precision):
            if each is None:
                shares = real / marks.counts.clamp_min(1)[:, None].to(here.dtype)
                found, (_, losses) = self._batch(self._named(here), x, y, shares)
            else:
                found, losses = self._each(self._named(here), x, y)
        if each is None:
            gradient = self._rows(found, 1).masked_fill_((marks.counts == 0)[:, None], 0)
        else:
            with products("float32"):
                gradient = _scaled_sum(self._rows(found, 2), real, each)
        into.put(gradient)
        return torch.where(real, losses.detach(), 0.0).sum(1)

    def footprint(self, method: Method, batch: int) -> int:
        """Bytes of a client's weights, copied a few times; one gradient for each example where a stage asks for it."""
        copies = 4 if method.on_step.per_sample is None else 4 + 2 * batch
        return self.layout.dim * self.itemsize * copies

    def twin(self) -> Mapped:
        """See :class:`~fedveil.local.cohort.Gradients`."""
        return Mapped(self.objective, self.precision)

    def _named(self, here: Tensor) -> dict[str, Tensor]:
        parts = torch.split(here, list(self.layout.sizes), dim=1)
        named = zip(self.layout.names, self.layout.shapes, parts, strict=True)
        return {name: part.view(len(here), *shape) for name, shape, part in named}

    def _rows(self, found: dict[str, Tensor], leading: int) -> Tensor:
        return torch.cat([found[name].flatten(leading) for name in self.layout.names], dim=leading)


def _scaled_sum(gradients: Tensor, real: Tensor, each: PerSample) -> Tensor:
    """Σ a_i·g_i of each client from ``(clients, examples, dim)``; a gradient that is not finite counts as zero."""
    norms = torch.linalg.vector_norm(gradients, dim=2, dtype=torch.float64)
    factors = torch.zeros_like(norms, dtype=gradients.dtype)
    factors[real] = each.factors(norms[real].to(gradients.dtype))  # whose rounding a clip allows for
    kept = real & torch.isfinite(norms)
    if not bool(kept.all()):
        gradients = gradients.masked_fill(~kept[:, :, None], 0)
    return torch.bmm(factors[:, None], gradients)[:, 0]
