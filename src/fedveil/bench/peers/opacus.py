"""Opacus: per-sample gradients by hooks, or ghost clipping; one client after another, on the same batches.

Favourable: one wrapped module and one optimiser for all clients, weights copied in place; no data loader, no
accountant.
"""

from __future__ import annotations

import importlib
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from fedveil.bench.loops import add_, copy_, private_move, sub
from fedveil.bench.scenario import Setting


class Opacus:
    """``GradSampleModule`` with ``DPOptimizer``, or their ghost clipping twins."""

    def __init__(self, setting: Setting, *, ghost: bool = False) -> None:
        self.setting, scenario = setting, setting.scenario
        module = setting.module().train()
        self.here: list[Tensor] = list(module.parameters())
        self.w = [p.detach().clone() for p in self.here]
        noise = scenario.sigma if scenario.algorithm == "step_noise" else 0.0
        sgd = torch.optim.SGD(self.here, lr=scenario.lr)
        limits: dict[str, Any] = {"max_grad_norm": scenario.clip_norm}
        options: dict[str, Any] = limits | {"noise_multiplier": noise, "expected_batch_size": scenario.batch}
        self.loss: Any
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            samples: Any = importlib.import_module("opacus.grad_sample")
            optimizers: Any = importlib.import_module("opacus.optimizers")
            if ghost:
                clipping: Any = importlib.import_module("opacus.utils.fast_gradient_clipping_utils")
                self.module = samples.GradSampleModuleFastGradientClipping(module, **limits)
                self.optimiser = optimizers.DPOptimizerFastGradientClipping(sgd, **options)
                self.loss = clipping.DPLossFastGradientClipping(self.module, self.optimiser, nn.CrossEntropyLoss())
            else:
                self.module = samples.GradSampleModule(module)
                self.optimiser = optimizers.DPOptimizer(sgd, **options)
                self.loss = nn.CrossEntropyLoss()

    def round(self, number: int, clients: list[int]) -> None:
        """Train each client from w, then add the mean of their moves."""
        scenario = self.setting.scenario
        total = [torch.zeros_like(p) for p in self.w]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for client in clients:
                with torch.no_grad():
                    copy_(self.here, self.w)
                for x, y in self.setting.visits(number, client):
                    self.optimiser.zero_grad()
                    self.loss(self.module(x), y).backward()
                    self.optimiser.step()
                with torch.no_grad():
                    move = list(sub(self.here, self.w))
                    if scenario.algorithm == "last_noise":
                        move = private_move(move, scenario.move_norm, scenario.sigma)
                    add_(total, move)
        add_(self.w, total, alpha=1 / len(clients))

    def weights(self) -> Tensor:
        """The model as one vector."""
        return torch.cat([p.reshape(-1) for p in self.w])
