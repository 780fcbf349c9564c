"""A method of your own: name the parts, and write the one that is missing.

    python examples/own_method.py

This one sends only the largest tenth of each client's move (a stage), and the server takes Adam's step instead of
the plain mean (a local rule: both halves of the algorithm side by side; Reddi et al. 2021).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

import fedveil
from fedveil.aggregate.mean import Mean
from fedveil.core.method import Method
from fedveil.core.parts import State
from fedveil.core.signal import Signal
from fedveil.core.stage import Context
from fedveil.local.rules import FedAvg
from fedveil.transport.plain import Plain


@dataclass(frozen=True)
class TopK:
    """Keep the largest ``share`` of the coordinates of every row; all clients at once, no loop."""

    share: float

    def __call__(self, signal: Signal, ctx: Context) -> Signal:
        kept = max(1, int(self.share * signal.dim))
        least = signal.value.abs().topk(kept, dim=1).values[:, -1:]
        value = torch.where(signal.value.abs() >= least, signal.value, 0.0)
        return replace(signal, value=value, noise_var=None)  # a non-linear step: the variance inside is unknown


@dataclass(frozen=True)
class FedAdam(FedAvg):
    """m ← β₁ m + (1−β₁) Δ; v ← β₂ v + (1−β₂) Δ²; w ← w + η_g m / (√v + τ)."""

    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3

    def start(self, w: Tensor) -> State:
        return {"w": w, "m": torch.zeros_like(w), "v": torch.zeros_like(w)}

    def absorb(self, server: State, mean: Mapping[str, Signal], share: float, travel: float) -> State:
        delta = mean["move"].value[0]
        m = self.beta1 * server["m"] + (1 - self.beta1) * delta
        v = self.beta2 * server["v"] + (1 - self.beta2) * delta.square()
        return {"w": server["w"] + self.server_lr * m / (v.sqrt() + self.tau), "m": m, "v": v}


def sparse_adam(*, share: float = 0.1, server_lr: float = 0.02) -> Method:
    """The recipe; on the command line: ``fedveil run method=own_method:sparse_adam method.share=0.2``."""
    return Method(
        name="sparse_adam",
        local=FedAdam(server_lr),
        on_upload=TopK(share),
        transport=Plain(),
        aggregate=Mean(),
        weights="examples",
    )


def main() -> None:
    result = fedveil.run(method=sparse_adam(share=0.2), data="digits", rounds=30, local_epochs=2)
    print(f"accuracy {result.accuracy:.3f} with a fifth of every move")


if __name__ == "__main__":
    main()
