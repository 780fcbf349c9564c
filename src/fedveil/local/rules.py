"""Local algorithms: FedAvg and SCAFFOLD, client half and server half side by side (SPEC 1, 2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from fedveil.core.errors import fraction, positive
from fedveil.core.parts import MOVE, Packed, State, Uploads
from fedveil.core.signal import Signal

CONTROL = "control"
Control = Literal["released", "clean", "private"]


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

    @property
    def drift_is_public(self) -> bool:
        """There is none."""
        return True

    @property
    def derived(self) -> tuple[str, ...]:
        """Nothing."""
        return ()

    def pack(self, delta: Signal, raw: Signal, travel: Tensor, memory: Tensor | None, server: State) -> Packed:
        """Upload Δ."""
        return {MOVE: delta}, memory

    def derive(self, move: Signal, travel: Tensor, server: State) -> Uploads:
        """Nothing."""
        return {}

    def absorb(self, server: State, mean: Mapping[str, Signal], share: float, travel: float) -> State:
        """V ← β v + mean Δ; w ← w + η_g v."""
        step = mean[MOVE].value[0]
        after = dict(server)
        if self.server_momentum:
            step = after["velocity"] = self.server_momentum * server["velocity"] + step
        after["w"] = server["w"] + self.server_lr * step
        return after


@dataclass(frozen=True)
class Momentum(FedAvg):
    """FedAvg whose clients send m_k ← β·m_k + (1 − β)·Δ and keep m_k between rounds (Karimireddy et al. 2021).

    Averaging over its own past makes an honest client's upload steadier, so that an attacker's stands out; a robust
    rule without such a memory can be led astray a little in every round. Made of released moves only, m_k is released.
    """

    client_momentum: float = 0.9

    def __post_init__(self) -> None:
        super().__post_init__()
        fraction(client_momentum=self.client_momentum)

    @property
    def remembers(self) -> bool:
        """Each client keeps m_k."""
        return True

    def pack(self, delta: Signal, raw: Signal, travel: Tensor, memory: Tensor | None, server: State) -> Packed:
        """Upload m_k; it holds noise of many rounds, whose variance is not followed. Bounds hold: β + (1 − β) = 1."""
        assert memory is not None
        kept = self.client_momentum * memory + (1.0 - self.client_momentum) * delta.value
        variance = delta.noise_var
        silent = variance is not None and not bool(torch.as_tensor(variance).any())
        return {MOVE: replace(delta, value=kept, noise_var=0.0 if silent else None)}, kept


def averaging(server_lr: float, server_momentum: float, client_momentum: float) -> FedAvg:
    """FedAvg, with momentum at the clients where it is asked for."""
    if client_momentum == 0:
        return FedAvg(server_lr, server_momentum)
    return Momentum(server_lr, server_momentum, client_momentum)


@dataclass(frozen=True)
class Scaffold(FedAvg):
    """Karimireddy et al. 2020, option II: steps follow g + c − c_k; the client keeps c_k between rounds.

    control
        what c_k is made of (SPEC 3.1, 3.4). ``released``: the move as it leaves ``on_delta``, from which the server
        computes the change of c_k as well. ``clean``: the move before it, sent beside it, from which the server solves
        for the clean move: a published mistake, kept as a demonstration. ``private``: the server never learns c_k and
        moves c by the mean alone; for noise at the server or under secure aggregation.
    """

    control: Control = "released"

    @property
    def channels(self) -> tuple[str, ...]:
        """The move, and the change of the client's control variate."""
        return (MOVE,) if self.control == "private" else (MOVE, CONTROL)

    @property
    def remembers(self) -> bool:
        """Each client keeps c_k."""
        return True

    @property
    def drift_is_public(self) -> bool:
        """The server can follow c_k, unless it is made of what the server never sees."""
        return self.control == "released"

    @property
    def derived(self) -> tuple[str, ...]:
        """Where the server sees single moves, it computes the change of c_k by itself."""
        return (CONTROL,) if self.control == "released" else ()

    def start(self, w: Tensor) -> State:
        """The model and c = 0."""
        return {**super().start(w), "c": torch.zeros_like(w)}

    def drift(self, memory: Tensor | None, server: State) -> Tensor | None:
        """C − c_k."""
        assert memory is not None
        return server["c"] - memory

    def pack(self, delta: Signal, raw: Signal, travel: Tensor, memory: Tensor | None, server: State) -> Packed:
        """Δ, the change of c_k, and the new c_k."""
        assert memory is not None
        change = self._change(raw if self.control == "clean" else delta, travel, server)
        uploads = {MOVE: delta, CONTROL: change}
        return {name: uploads[name] for name in self.channels}, memory + change.value

    def derive(self, move: Signal, travel: Tensor, server: State) -> Uploads:
        """The change of c_k from the upload."""
        return {CONTROL: self._change(move, travel, server)}

    def absorb(self, server: State, mean: Mapping[str, Signal], share: float, travel: float) -> State:
        """C ← c + share·mean(c_k⁺ − c_k), beside the model's step; c_k private: mean(…) = −c − mean Δ/(K η)."""
        after = super().absorb(server, mean, share, travel)
        known = mean[CONTROL] if CONTROL in mean else self._change(mean[MOVE], travel, server)
        after["c"] = server["c"] + share * known.value[0]
        return after

    @staticmethod
    def _change(delta: Signal, travel: Tensor | float, server: State) -> Signal:
        """c_k⁺ − c_k = −c − Δ/(K η); K η is the travel of the steps."""
        return (replace(delta, public=0.0) * (-1.0 / travel)).shifted(-server["c"])
