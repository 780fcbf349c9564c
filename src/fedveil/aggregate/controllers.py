"""Controllers: in every round they look at the uploads and choose the rule that aggregates them (SPEC 7.3, 7.4)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from fedveil.aggregate.centered_clipping import CenteredClipping
from fedveil.aggregate.detectors import DETECTORS, Detector, Measured, detector
from fedveil.aggregate.krum import Krum
from fedveil.aggregate.mean import Mean
from fedveil.aggregate.order import TrimmedMean
from fedveil.core.errors import Refused, one_of, positive
from fedveil.core.parts import Aggregator, Opened, View
from fedveil.core.signal import Signal
from fedveil.core.stage import Context

ENOUGH = 100
"""Scored rounds of a calibration phase from which its 99 % point is taken; with fewer, starting values stay."""

Memory = dict[str, Tensor]


@dataclass(frozen=True)
class Controller:
    """What both controllers are: they see every upload, and count each once under every rule."""

    @property
    def needs(self) -> View:
        """Every single upload."""
        return "each"

    @property
    def weighted(self) -> bool:
        """No, so that weights never change with the rule."""
        return False

    @property
    def looks_back(self) -> bool:
        """Whether the mean move of the last round is looked at."""
        return False

    @property
    def reads(self) -> frozenset[str]:
        """Opened numbers that are enough to choose by."""
        raise NotImplementedError

    @property
    def rules(self) -> tuple[Aggregator, ...]:
        """The rules that may be chosen."""
        raise NotImplementedError

    @property
    def least(self) -> int:
        """What the most demanding rule takes."""
        return max(rule.least for rule in self.rules)

    def check(self, rows: int) -> None:
        """Refuse a cohort that one of the rules is too small for."""
        for rule in self.rules:
            rule.check(rows)

    def __call__(self, uploads: Signal, weights: Tensor) -> Signal:
        """A controller needs to know the round."""
        raise TypeError("a controller chooses a rule; call what choose returns")


@dataclass(frozen=True, kw_only=True)
class Adaptive(Controller):
    """Mean while all is calm; on alarm, and until there is something to compare with, a robust rule.

    The first ``window`` rounds fill the baseline under the robust rule (fail-safe). Every later round is scored. The
    first ``calibration`` rounds are declared to be free of attackers: all their scores go into the thresholds, the
    95 and 99 % points, which are then frozen. Recomputed from rounds that the alarm itself called calm, they would
    fall until everything is an alarm.

    An alarm is a score above θ1, or a fallen guard. The baseline is the last ``window`` rounds without those whose
    score was above ``drift`` times θ1: training drifts, and a baseline that no alarmed round may enter soon alarms
    in every round; one that every alarmed round enters takes a lasting attack for normal (docs/decisions/017).
    ``iterations`` are steps of centered clipping (None: until the centre stands still).
    """

    byzantine: int = 0
    detector: str = "calibrated"
    calibration: int = 125
    window: int = 20
    drift: float = 1.5
    alarm: Literal["centered_clipping", "trimmed_mean"] = "centered_clipping"
    theta1: float | None = None
    theta2: float | None = None
    momentum: float = 0.0
    iterations: int | None = None
    seen: Detector = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "seen", detector(self.detector))
        if self.detector == "source":
            raise Refused(
                "aggregate.detector: the published entropy takes attacks for calm; use aggregate=source for it"
            )
        for name in ("calibration", "window"):
            if getattr(self, name) < 2:
                raise Refused(f"aggregate.{name}: {getattr(self, name)} rounds are too few; give 2 or more")
        positive(**{"aggregate.drift": self.drift})
        if self.iterations is not None and self.alarm != "centered_clipping":
            raise Refused("aggregate.iterations: they are those of centered clipping; set alarm=centered_clipping")
        one_of("aggregate.alarm", self.alarm, ("centered_clipping", "trimmed_mean"))
        if (self.theta1 is None) != (self.theta2 is None):
            raise Refused("aggregate.theta1: give theta1 and theta2 together, or neither")
        if self.theta1 is not None and self.theta2 is not None and not 0 < self.theta1 <= self.theta2:
            raise Refused(
                f"aggregate.theta1: {self.theta1} and {self.theta2} are no thresholds; give 0 < theta1 <= theta2"
            )
        if self.theta1 is None and self.calibration - self.window <= ENOUGH and self.seen.start(self.momentum) is None:
            raise Refused(
                f"aggregate.calibration: {self.detector} has no thresholds to start with; give theta1 and theta2, or "
                f"at least {ENOUGH + self.window + 1} rounds of calibration"
            )

    @property
    def name(self) -> str:
        """The controller and its detector."""
        return f"adaptive ({self.detector})"

    @property
    def looks_back(self) -> bool:
        """Yes: the pooled cosine compares with the last update."""
        return True

    @property
    def robust(self) -> Aggregator:
        """The rule of alarmed rounds."""
        if self.alarm == "trimmed_mean":
            return TrimmedMean(self.byzantine)
        return CenteredClipping(self.byzantine, self.iterations)

    @property
    def reads(self) -> frozenset[str]:
        """What its detector reads."""
        return self.seen.reads

    @property
    def rules(self) -> tuple[Aggregator, ...]:
        """The mean and the robust rule."""
        return (Mean(), self.robust)

    def init(self) -> Memory:
        """An empty baseline, no scores, and the thresholds to start with (NaN: none yet)."""
        theta = (self.theta1, self.theta2) if self.theta1 is not None else self.seen.start(self.momentum)
        start = (math.nan, math.nan) if theta is None or None in theta else theta
        return {
            "rounds": torch.zeros(1, dtype=torch.int64),
            "baseline": torch.full((self.window, len(self.seen.features)), math.nan, dtype=torch.float64),
            "scores": torch.full((self.calibration,), math.nan, dtype=torch.float64),
            "thresholds": torch.tensor(start, dtype=torch.float64),
        }

    def choose(self, memory: Mapping[str, Tensor], moves: Signal, ctx: Context) -> tuple[Aggregator, Memory]:
        """The rule of this round, and what to remember; score, thresholds, rule and reason go to the log."""
        previous = None if ctx.previous is None else ctx.previous[0]
        return self._choose(memory, self.seen.measure(moves.value, previous), ctx)

    def choose_by(
        self, memory: Mapping[str, Tensor], opened: Opened, clients: int, ctx: Context
    ) -> tuple[Aggregator, Memory]:
        """The same from what servers opened."""
        return self._choose(memory, self.seen.read(opened, clients), ctx)

    def _choose(self, memory: Mapping[str, Tensor], found: Measured, ctx: Context) -> tuple[Aggregator, Memory]:
        after = {name: value.clone().cpu() for name, value in memory.items()}
        number = int(after["rounds"]) + 1
        after["rounds"] += 1
        theta1, theta2 = after["thresholds"].tolist()
        known = after["baseline"][~after["baseline"].isnan().any(dim=1)]
        score, why, robust = None, "", True
        if ctx.previous is None and self.seen.compares:
            why = "warm-up: there is no update to compare with"
        elif len(known) < self.window and self.seen.compares:
            _push(after, found)
            why = f"warm-up: {len(known) + 1} of {self.window} rounds to compare with"
        else:
            score = self.seen.score(found, known)
            robust, why = self._judge(score, found, theta1, theta2)
            calibrating = number <= self.calibration
            if calibrating or (score <= self.drift * theta1 and not found.guarded):
                _push(after, found)
            if calibrating:
                after["scores"][number - 1] = score
        if number == self.calibration and self.theta1 is None:
            _calibrate(after)
        rule = self.robust if robust else Mean()
        ctx.log["detector"] = {
            "name": self.detector,
            "score": score,
            "theta1": None if math.isnan(theta1) else theta1,
            "theta2": None if math.isnan(theta2) else theta2,
            "rule": self.alarm if robust else "mean",
            "alarm": score is not None and robust,
            "why": why,
            "values": {k: v if math.isfinite(v) else None for k, v in found.values.items()},
        }
        return rule, after

    def _judge(self, score: float, found: Measured, theta1: float, theta2: float) -> tuple[bool, str]:
        """Whether this is an alarm, and why."""
        if found.guarded:
            return True, "alarm: D2 is above the guard"
        if math.isnan(theta1):
            return True, "calibration: there are no thresholds yet"
        if score > theta2:
            return True, "alarm: the score is above theta2"
        if score > theta1:
            return True, "alarm: the score is above theta1"
        return False, "calm"


def _push(memory: Memory, found: Measured) -> None:
    """Lay a round on the baseline, and drop the oldest."""
    memory["baseline"] = torch.cat([memory["baseline"][1:], _finite(found)[None, :]])


def _finite(found: Measured) -> Tensor:
    """The numbers; those that uploads which agree do not have are far below all others."""
    return torch.nan_to_num(found.tensor(), nan=0.0, neginf=-1e6)


def _calibrate(memory: Memory) -> None:
    """The 95 and 99 % points over all scored rounds of the phase, if there were enough of them.

    Of m scores the ⌈q(m + 1)⌉-th smallest: of rounds like these, a share of at most 1 − q lies above it.
    """
    scored = memory["scores"][~memory["scores"].isnan()].sort().values
    if len(scored) >= ENOUGH:
        places = [min(len(scored), math.ceil(q * (len(scored) + 1))) - 1 for q in (0.95, 0.99)]
        memory["thresholds"] = scored[places].clone()


@dataclass(frozen=True, kw_only=True)
class Published(Controller):
    """The published ladder: Mean, trimmed mean or Krum by the entropy H, where low counts as calm (SPEC 7.3).

    ``theta1`` and ``theta2`` are shares of ln n; the source gives none. Clean uploads have the highest H there is, so
    that they get Krum, and the strongest attacks get the mean: kept for the record and for comparison.
    """

    byzantine: int
    theta1: float = 0.6
    theta2: float = 0.85

    def __post_init__(self) -> None:
        if not 0 < self.theta1 <= self.theta2 <= 1:
            raise Refused(
                f"aggregate.theta1: {self.theta1} and {self.theta2} are no shares of ln n; "
                "give 0 < theta1 <= theta2 <= 1"
            )

    @property
    def name(self) -> str:
        """As it is called on the command line."""
        return "source"

    @property
    def rules(self) -> tuple[Aggregator, ...]:
        """The three rungs."""
        return (Mean(), TrimmedMean(self.byzantine), Krum(self.byzantine))

    @property
    def reads(self) -> frozenset[str]:
        """S and H."""
        return DETECTORS["source"].reads

    def init(self) -> Memory:
        """Nothing is remembered."""
        return {}

    def choose(self, memory: Mapping[str, Tensor], moves: Signal, ctx: Context) -> tuple[Aggregator, Memory]:
        """H < θ1: mean; θ1 ≤ H < θ2: trimmed mean; else Krum."""
        return self._choose(DETECTORS["source"].measure(moves.value, None), ctx)

    def choose_by(
        self, memory: Mapping[str, Tensor], opened: Opened, clients: int, ctx: Context
    ) -> tuple[Aggregator, Memory]:
        """The same from what servers opened."""
        return self._choose(DETECTORS["source"].read(opened, clients), ctx)

    def _choose(self, found: Measured, ctx: Context) -> tuple[Aggregator, Memory]:
        score = DETECTORS["source"].score(found, torch.empty(0, 1))
        rung = int(score >= self.theta1) + int(score >= self.theta2)
        rule = ("mean", "trimmed_mean", "krum")[rung]
        why = ("H is below theta1", "H is between theta1 and theta2", "H is above theta2")[rung]
        log: dict[str, Any] = {"name": "source", "score": score, "theta1": self.theta1, "theta2": self.theta2}
        ctx.log["detector"] = log | {"rule": rule, "alarm": rung > 0, "why": why, "values": found.values}
        return self.rules[rung], {}
