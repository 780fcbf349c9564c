"""Local algorithms: FedAvg and SCAFFOLD, client half and server half side by side (SPEC 1, 2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedveil.core.errors import fraction, positive
from fedveil.core.parts import MOVE, State, Uploads
from fedveil.core.signal import Signal

CONTROL = "control"


@dataclass(frozen=True)
class FedAvg:
    """McMahan et al. 2017: w ← w + η_g·mean Δ, optionally with server momentum (Hsu et al. 2019)."""

    server_lr: float = 1.0
    server_momentum: float = 0.0

    def __post_init__(self) -> None:
        positive(server_lr=self.server_lr)
        fraction(server_momentum=self.server_momentum)

    @property
    def channels(self) -> tuple[str, ...]:
        """The move alone."""
        return (MOVE,)

    @property
    def remembers(self) -> bool:
        """Clients keep nothing."""
        return False

    def start(self, w: Tensor) -> State:
        """The model, and a velocity when there is momentum."""
        state = {"w": w}
        if self.server_momentum:
            state["velocity"] = torch.zeros_like(w)
        return state

    def drift(self, memory: Tensor | None, server: State) -> Tensor | None:
        """No correction."""
        return None

    def pack(
        self, delta: Signal, travel: Tensor, memory: Tensor | None, server: State
    ) -> tuple[Uploads, Tensor | None]:
        """Upload Δ."""
        return {MOVE: delta}, memory

    def absorb(self, server: State, mean: Mapping[str, Signal], share: float) -> State:
        """V ← β v + mean Δ; w ← w + η_g v."""
        step = mean[MOVE].value[0]
        after = dict(server)
        if self.server_momentum:
            step = after["velocity"] = self.server_momentum * server["velocity"] + step
        after["w"] = server["w"] + self.server_lr * step
        return after


@dataclass(frozen=True)
class Scaffold(FedAvg):
    """Karimireddy et al. 2020, option II: steps follow g + c − c_k; the client keeps c_k between rounds."""

    @property
    def channels(self) -> tuple[str, ...]:
        """The move, and the change of the client's control variate."""
        return (MOVE, CONTROL)

    @property
    def remembers(self) -> bool:
        """Each client keeps c_k."""
        return True

    def start(self, w: Tensor) -> State:
        """The model and c = 0."""
        return {**super().start(w), "c": torch.zeros_like(w)}

    def drift(self, memory: Tensor | None, server: State) -> Tensor | None:
        """C − c_k."""
        assert memory is not None
        return server["c"] - memory

    def pack(
        self, delta: Signal, travel: Tensor, memory: Tensor | None, server: State
    ) -> tuple[Uploads, Tensor | None]:
        """c_k⁺ − c_k = −c − Δ/(K η), made from Δ as it leaves ``on_delta``; K η is the travel of the steps."""
        assert memory is not None
        change = (delta * (-1.0 / travel)).shifted(-server["c"])
        return {MOVE: delta, CONTROL: change}, memory + change.value

    def absorb(self, server: State, mean: Mapping[str, Signal], share: float) -> State:
        """C ← c + share·mean(c_k⁺ − c_k), beside the model's step."""
        after = super().absorb(server, mean, share)
        after["c"] = server["c"] + share * mean[CONTROL].value[0]
        return after
