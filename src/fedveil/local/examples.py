"""Gradients of single training examples, for any module (SPEC 3.1)."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor
from torch.func import functional_call, grad_and_value, vmap

from fedveil.core.stage import PerSample
from fedveil.local.objective import Objective
from fedveil.local.precision import Precision, products

CHUNK = 2**28
"""Per-sample gradients are held for about this many bytes at a time."""

Gradients = tuple[Tensor, Tensor]
"""One flat gradient per example ``(b, dim)``, and one loss per example ``(b,)``."""


class ExampleGradients:
    """Flat gradients of single examples at given weights.

    All examples of a chunk go through ``torch.func.vmap`` together; a module that vmap cannot follow (control flow on
    values, writing into fresh tensors) takes them one by one.
    """

    def __init__(self, objective: Objective, precision: Precision = "float32") -> None:
        self.objective, self.precision = objective, precision
        self.name: str | None = None
        """How gradients are taken, once it has been found out: ``vmap`` or ``one by one``."""

    def clipped_sum(self, here: Tensor, x: Tensor, y: Tensor, stage: PerSample) -> tuple[Tensor, Tensor]:
        """Σ a_i·g_i ``(dim,)`` with the stage's factors, and the sum of the losses; an empty batch sums to zero.

        A gradient that is not finite counts as zero: the bound must hold for every example.
        """
        total, loss = torch.zeros_like(here), here.new_zeros(())
        rows = max(1, CHUNK // (here.numel() * here.element_size()))
        for part_x, part_y in zip(torch.split(x, rows), torch.split(y, rows), strict=True) if len(x) else ():
            with products(self.precision):
                gradients, losses = self._gradients(here, part_x, part_y)
            norms = torch.linalg.vector_norm(gradients, dim=1, dtype=torch.float64)
            factors = stage.factors(norms.to(gradients.dtype))  # whose rounding a clip allows for
            if not bool(torch.isfinite(norms).all()):
                gradients = torch.where(torch.isfinite(norms)[:, None], gradients, 0.0)
            with products("float32"):
                total += factors @ gradients
            loss += losses.sum()
        return total, loss

    def _gradients(self, here: Tensor, x: Tensor, y: Tensor) -> Gradients:
        if self.name is None:
            self.name = "vmap"
            try:
                return self._together(here, x, y)
            except Exception:  # whatever vmap cannot follow; a broken module fails below as well, and says how
                self.name = "one by one"
        return self._together(here, x, y) if self.name == "vmap" else self._one_by_one(here, x, y)

    @cached_property
    def _each(self) -> Callable[..., tuple[dict[str, Tensor], Tensor]]:
        module, loss = self.objective.module, self.objective.loss

        def one(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            return loss(functional_call(module, weights, (x[None],)), y[None])

        return vmap(grad_and_value(one), in_dims=(None, 0, 0), randomness="different")

    def _together(self, here: Tensor, x: Tensor, y: Tensor) -> Gradients:
        layout = self.objective.layout
        gradients, losses = self._each(layout.named(here.clone()), x, y)  # whatever a module does to its weights
        return torch.cat([gradients[name].flatten(1) for name in layout.names], dim=1), losses.detach()

    def _one_by_one(self, here: Tensor, x: Tensor, y: Tensor) -> Gradients:
        layout, module = self.objective.layout, self.objective.module
        gradients, losses = here.new_empty(len(x), here.numel()), here.new_empty(len(x))
        for i in range(len(x)):
            weights = {name: view.detach().requires_grad_() for name, view in layout.named(here.clone()).items()}
            loss = self.objective.loss(functional_call(module, weights, (x[i : i + 1],)), y[i : i + 1])
            # A parameter that this example does not touch has no gradient.
            found = torch.autograd.grad(loss, list(weights.values()), allow_unused=True)
            parts = [torch.zeros_like(w) if g is None else g for g, w in zip(found, weights.values(), strict=True)]
            gradients[i] = torch.cat([part.reshape(-1) for part in parts])
            losses[i] = loss.detach()
        return gradients, losses
