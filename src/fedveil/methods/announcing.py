"""A controller that also says how much noise clients add in the next round (SPEC 7.5)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from fedveil.core.errors import not_negative
from fedveil.core.parts import ANNOUNCED, Aggregator, Controller, Opened, State, View
from fedveil.core.signal import Signal
from fedveil.core.stage import Context
from fedveil.privacy.raised import NOISE


class Rule(Aggregator, Controller, Protocol):
    """What a controller is in a method: an aggregator as well."""


@dataclass(frozen=True)
class Announcing:
    """Announces σ_{t+1}/σ0 = min(cap, 1 + α·H_t), from what this round opened and nothing else.

    H is the entropy of the shares of the spread: Shannon's where it is opened, else that of order 2, −ln(Q/S²), which
    E, M and Q are enough for. Calm rounds have the highest entropy, so that they get the most noise: as published.
    """

    controller: Rule
    alpha: float
    cap: float

    def __post_init__(self) -> None:
        not_negative(noise_alpha=self.alpha)

    @property
    def name(self) -> str:
        """The controller's."""
        return str(getattr(self.controller, "name", type(self.controller).__name__))

    @property
    def needs(self) -> View:
        """What the controller needs."""
        return self.controller.needs

    @property
    def weighted(self) -> bool:
        """What the controller says."""
        return self.controller.weighted

    @property
    def least(self) -> int:
        """What the controller says."""
        return self.controller.least

    @property
    def looks_back(self) -> bool:
        """What the controller says."""
        return bool(getattr(self.controller, "looks_back", False))

    @property
    def rules(self) -> tuple[Aggregator, ...]:
        """Those of the controller."""
        return self.controller.rules

    @property
    def reads(self) -> frozenset[str]:
        """What the controller reads."""
        return self.controller.reads

    def check(self, rows: int) -> None:
        """As the controller does."""
        self.controller.check(rows)

    def __call__(self, uploads: Signal, weights: Tensor) -> Signal:
        """A controller needs to know the round."""
        raise TypeError("a controller chooses a rule; call what choose_by returns")

    def init(self) -> State:
        """What the controller knows."""
        return self.controller.init()

    def choose(self, memory: Mapping[str, Tensor], moves: Signal, ctx: Context) -> tuple[Aggregator, State]:
        """From single uploads nothing is announced: noise follows opened numbers only."""
        raise TypeError("noise is announced from opened numbers; use a transport that opens them")

    def choose_by(
        self, memory: Mapping[str, Tensor], opened: Opened, clients: int, ctx: Context
    ) -> tuple[Aggregator, State]:
        """The controller's choice, and the noise of the next round."""
        rule, after = self.controller.choose_by(memory, opened, clients, ctx)
        factor = min(self.cap, 1.0 + self.alpha * entropy(opened, clients))
        ctx.log["noise"] = {"now": ctx.announced.get(NOISE, 1.0), "next": factor}
        return rule, {**after, ANNOUNCED + NOISE: torch.tensor(factor, dtype=torch.float64)}


def entropy(opened: Opened, clients: int) -> float:
    """H, or the entropy of order 2; ln n where nothing is spread.

    >>> round(entropy({"E": 14.0, "M": 40.0, "Q": 25.0}, 4), 3) == round(math.log(4 * 4) - math.log(25), 3)
    False
    >>> entropy({"S": 1.0, "H": 0.5}, 4)
    0.5
    """
    most = math.log(max(clients, 1))
    if "H" in opened:
        return min(max(opened["H"], 0.0), most) if opened.get("S", 1.0) > 0 else most
    spread = opened["E"] - opened["M"] / max(clients, 1)
    if not (spread > 0 and opened["Q"] > 0):
        return most
    return min(max(2 * math.log(spread) - math.log(opened["Q"]), 0.0), most)
