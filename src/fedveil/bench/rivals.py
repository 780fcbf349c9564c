"""Who competes in which scenario, and what is needed to have them here."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from fedveil.bench.loops import ClippedLoop, Loop
from fedveil.bench.ours import Ours, secure_streams
from fedveil.bench.peers.opacus import Opacus
from fedveil.bench.peers.pfl import Pfl
from fedveil.bench.scenario import Scenario, Setting


class Contender(Protocol):
    """Somebody who can compute a round."""

    def round(self, number: int, clients: list[int]) -> None:
        """Make the next model of this one."""
        ...

    def weights(self) -> Tensor:
        """The model as one vector."""
        ...


OURS = "ours"
SECURE = "ours, secure streams"
FLOWER = "Flower simulation"


@dataclass(frozen=True)
class Rival:
    """One contender: who it is, where it takes part, and how to install what it needs."""

    name: str
    takes_part: Callable[[Scenario, str], bool]
    build: Callable[[Setting], Contender] | None
    """None: it runs in a process of its own."""
    module: str | None = None
    """What must be importable."""
    install: str = ""

    @property
    def installed(self) -> bool:
        """Whether it can run here."""
        return self.module is None or importlib.util.find_spec(self.module) is not None

    @property
    def missing(self) -> str:
        """What to say where it cannot."""
        return f"not installed; {self.install}"


def _images(scenario: Scenario) -> bool:
    return scenario.model.startswith("cnn")


BENCH = "pip install 'fedveil[bench]'"

RIVALS: tuple[Rival, ...] = (
    Rival(OURS, lambda s, d: True, Ours),
    Rival(
        SECURE,
        lambda s, d: s.private,
        lambda setting: Ours(setting, streams=secure_streams()),
        "randomgen",
        "pip install randomgen",
    ),
    Rival("loop", lambda s, d: not s.private, Loop),
    Rival(
        "loop, channels last",
        lambda s, d: not s.private and _images(s) and d == "cpu",
        lambda setting: Loop(setting, innermost=True),
    ),
    Rival("loop, torch.func", lambda s, d: s.private, ClippedLoop),
    Rival("Opacus hooks", lambda s, d: s.private, Opacus, "opacus", BENCH),
    Rival("Opacus ghost", lambda s, d: s.private, lambda setting: Opacus(setting, ghost=True), "opacus", BENCH),
    Rival(
        "pfl",
        lambda s, d: s.algorithm == "fedavg" and d == "cpu",
        Pfl,
        "pfl",
        f"{BENCH} && pip install --no-deps 'pfl>=0.6'",
    ),
    Rival(FLOWER, lambda s, d: s.algorithm == "fedavg" and d == "cpu", None, "flwr", "pip install 'fedveil[flower]'"),
)
"""Ours first: every ratio is by the seconds that ours took in the same repetition."""


def rivals(scenario: Scenario, device: str) -> list[Rival]:
    """Those who take part in a scenario on this kind of device."""
    return [rival for rival in RIVALS if rival.takes_part(scenario, device)]


def named(name: str) -> Rival:
    """The contender of this name."""
    return next(rival for rival in RIVALS if rival.name == name)
