"""The lean loops: what a careful person writes with torch alone, one client after another.

One module is used for all clients, the data lies ready on the device, and nothing is measured or logged: the
fastest that such a loop can be, so that the ratio flatters nobody.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

from fedveil.bench.scenario import Setting

# Whole lists of tensors at once; torch's stubs do not know all their forms.
add_: Any = torch._foreach_add_
copy_: Any = torch._foreach_copy_
mul_: Any = torch._foreach_mul_
sub: Any = torch._foreach_sub
sub_: Any = torch._foreach_sub_


def channels_last(x: Tensor) -> Tensor:
    """The same images with channels innermost, also where there is one channel and torch would not notice."""
    channels, h, w = x.shape[1:]
    if channels == 1:
        return x.contiguous().as_strided(x.shape, (h * w, 1, w, 1))
    return x.contiguous(memory_format=torch.channels_last)


class Loop:
    """FedAvg or SCAFFOLD by autograd and in-place updates of all parameters at once."""

    def __init__(self, setting: Setting, *, innermost: bool = False) -> None:
        self.setting, self.innermost = setting, innermost
        self.module = setting.module().train()
        if innermost:
            self.module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.here: list[Tensor] = list(self.module.parameters())
        self.w = [p.detach().clone() for p in self.here]
        self.c = [torch.zeros_like(p) for p in self.w]
        self.own: dict[int, list[Tensor]] = {}

    def round(self, number: int, clients: list[int]) -> None:
        """Train each client from w, then add the mean of their moves."""
        total = [torch.zeros_like(p) for p in self.w]
        drifts = [torch.zeros_like(p) for p in self.w]
        for client in clients:
            with torch.no_grad():
                copy_(self.here, self.w)
            self._walk(number, client, drifts)
            with torch.no_grad():
                add_(total, self._finished(list(sub(self.here, self.w))))
        add_(self.w, total, alpha=1 / len(clients))
        if self.setting.scenario.algorithm == "scaffold":
            add_(self.c, drifts, alpha=1 / self.setting.scenario.population)

    def weights(self) -> Tensor:
        """The model as one vector, in the order of a contiguous layout."""
        return torch.cat([p.contiguous().view(-1) for p in self.w])

    def _walk(self, number: int, client: int, drifts: list[Tensor]) -> None:
        scenario, correction = self.setting.scenario, None
        visits = self.setting.visits(number, client)
        if scenario.algorithm == "scaffold":
            own = self.own.setdefault(client, [torch.zeros_like(p) for p in self.w])
            correction = sub(self.c, own)
        for x, y in visits:
            gradients = self._gradients(channels_last(x) if self.innermost else x, y)
            with torch.no_grad():
                if correction is not None:
                    add_(gradients, correction)
                add_(self.here, gradients, alpha=-scenario.lr)
        if correction is not None:
            # Option II: c_k' = c_k - c + (w - y) / (K lr)
            with torch.no_grad():
                change = sub(self.w, self.here)
                mul_(change, 1 / (len(visits) * scenario.lr))
                sub_(change, self.c)
                add_(self.own[client], change)
                add_(drifts, change)

    def _gradients(self, x: Tensor, y: Tensor) -> list[Tensor]:
        return list(torch.autograd.grad(F.cross_entropy(self.module(x), y), self.here))

    def _finished(self, move: list[Tensor]) -> list[Tensor]:
        """What a client sends."""
        return move


class ClippedLoop(Loop):
    """The same with every example's gradient clipped (``torch.func``), and noise in each step or on the move."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.names = [name for name, _ in self.module.named_parameters()]

        def one(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            return F.cross_entropy(functional_call(self.module, weights, (x[None],)), y[None])

        self.each = vmap(grad(one), in_dims=(None, 0, 0))

    def _gradients(self, x: Tensor, y: Tensor) -> list[Tensor]:
        scenario = self.setting.scenario
        found = self.each({n: p.detach() for n, p in zip(self.names, self.here, strict=True)}, x, y)
        singles = [found[name] for name in self.names]
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in singles]).norm(dim=0)
        factors = (scenario.clip_norm / norms).clamp(max=1.0)
        sums = [torch.tensordot(factors, g, dims=1) for g in singles]
        if scenario.algorithm == "step_noise":
            add_noise(sums, scenario.sigma * scenario.clip_norm)
        return [g.div_(scenario.batch) for g in sums]

    def _finished(self, move: list[Tensor]) -> list[Tensor]:
        scenario = self.setting.scenario
        return private_move(move, scenario.move_norm, scenario.sigma) if scenario.algorithm == "last_noise" else move


def add_noise(parts: list[Tensor], std: float) -> None:
    """Gaussian noise, the fast way: plain floating point, no grid."""
    if std:
        for part in parts:
            part.add_(torch.randn_like(part), alpha=std)


def private_move(move: list[Tensor], bound: float, sigma: float) -> list[Tensor]:
    """Clip a whole move and add noise to it once."""
    norm = torch.stack([part.norm() for part in move]).norm()
    factor = (bound / norm).clamp(max=1.0)
    for part in move:
        part.mul_(factor)
    add_noise(move, sigma * bound)
    return move
