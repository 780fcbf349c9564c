"""Timing that is fair on a machine whose speed changes: contenders take turns, and ratios stay within a turn."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fedveil.bench.machine import timed
from fedveil.bench.rivals import Contender
from fedveil.bench.scenario import Setting

MOST = 50
"""Rounds of one turn, at most."""


@dataclass
class Runner:
    """A contender, the number of its next round, and what its rounds took."""

    name: str
    contender: Contender
    setting: Setting
    number: int = 0
    first: float = 0.0
    rounds: int = 1
    seconds: list[float] = field(default_factory=list)
    """Per round, the mean of each turn."""

    def warm_up(self, clients: list[int], times: int, budget: float) -> None:
        """Rounds that do not count; how long the first took; and how many later ones fill a turn."""
        took = self.first = self._one(clients)
        for _ in range(times - 1):
            took = self._one(clients)
        share = len(clients) / self.setting.scenario.cohort
        self.rounds = max(1, min(MOST, round(budget * share / max(took, 1e-9))))

    def turn(self) -> float:
        """Seconds per round."""

        def work() -> None:
            for _ in range(self.rounds):
                self.number += 1
                self.contender.round(self.number, self.setting.clients(self.number))

        self.seconds.append(timed(work, self.setting.device.type) / self.rounds)
        return self.seconds[-1]

    def _one(self, clients: list[int]) -> float:
        self.number += 1
        return timed(lambda: self.contender.round(self.number, clients), self.setting.device.type)


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Median, least and most.

    >>> spread([3.0, 1.0, 2.0])
    {'median': 2.0, 'min': 1.0, 'max': 3.0}
    """
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def ratios(theirs: Sequence[float], ours: Sequence[float]) -> dict[str, Any]:
    """How many times as long they took, turn by turn."""
    return spread([their / our for their, our in zip(theirs, ours, strict=False)])
