"""The model and the loss that every client minimises."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedveil.core.flat import Layout

Loss = Callable[[Tensor, Tensor], Tensor]
"""Mean over a batch of a term per example: ``loss(outputs, targets) -> scalar``."""


def mse(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean squared error of one number (or vector) per example."""
    return F.mse_loss(outputs.view_as(targets), targets)


LOSSES: dict[str, Loss] = {"cross_entropy": F.cross_entropy, "mse": mse}


@dataclass(frozen=True, eq=False)
class Objective:
    """A module, its flat layouts, and the loss; the module is scratch space whose weights an engine rebinds."""

    module: nn.Module
    loss: Loss
    layout: Layout
    buffers: Layout
    first: Tensor
    """The parameters that training starts from, as one flat vector."""

    @classmethod
    def of(cls, module: nn.Module, loss: Loss) -> Objective:
        """Read the layouts and the first weights off a module."""
        layout = Layout.of_parameters(module)
        first = layout.flatten({n: p.detach() for n, p in module.named_parameters()})
        return cls(module, loss, layout, Layout.of_buffers(module), first)

    def tensors(self) -> dict[str, Tensor]:
        """Everything that the module holds, by name: trained and frozen parameters, and buffers (for a file)."""
        return {name: t.detach().cpu().contiguous().clone() for name, t in self.module.state_dict().items()}

    def initial(self) -> Tensor:
        """A copy of the first weights."""
        return self.first.clone()


@dataclass(frozen=True)
class Sgd:
    """Local SGD as torch has it: v ← μ v + (g + λ y); y ← y − η v."""

    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0


@torch.inference_mode()
def predict(objective: Objective, x: Tensor, chunk: int = 1000) -> Tensor:
    """Outputs of the bound module in evaluation mode, a chunk at a time."""
    training = objective.module.training
    objective.module.eval()
    try:
        return torch.cat([objective.module(part) for part in x.split(chunk)])  # type: ignore[no-untyped-call]
    finally:
        objective.module.train(training)
