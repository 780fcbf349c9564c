"""Open-loop detection from cached trajectories: AUC of every detector on every attack, and false alarms."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from experiments.robust.trajectory import CALIBRATION, DECLARED, ROUNDS, Row, record
from fedveil.aggregate.controllers import Adaptive
from fedveil.aggregate.detectors import Calibrated, Measured, guard
from fedveil.aggregate.evidence import Sums
from fedveil.core.files import write_bytes
from fedveil.report.matrix import auc
from fedveil.report.words import duration

ALPHAS = (0.1, 0.5, 100.0)
SEEDS = (20, 21, 22, 23)
"""Fresh ones: window, drift and thresholds were chosen on seeds 0 to 2."""

DETECTORS = ("calibrated", "deficit", "neighbour", "source")


def places(root: Path, *, quick: bool = False) -> list[tuple[float, int, Path]]:
    """Every trajectory of the study and its file."""
    seeds, alphas = (SEEDS[:1], ALPHAS[1:2]) if quick else (SEEDS, ALPHAS)
    return [(a, s, root / f"{a:g}-{s}.json") for s in seeds for a in alphas]


def trajectories(console: Console, root: Path, *, quick: bool = False) -> None:
    """Record those that are not there."""
    root.mkdir(parents=True, exist_ok=True)
    wanted = places(root, quick=quick)
    missing = [p for p in wanted if read(p[2]) is None]
    console.print(f"{len(wanted) - len(missing)} of {len(wanted)} trajectories are there", highlight=False)
    started = time.perf_counter()
    for i, (alpha, seed, path) in enumerate(missing, start=1):
        write_bytes(path, json.dumps(record(alpha, seed)).encode())
        left = (time.perf_counter() - started) / i * (len(missing) - i)
        console.print(f"[{i}/{len(missing)}] alpha {alpha:g}, seed {seed} ({duration(left)} left)", highlight=False)


def read(path: Path) -> dict[str, Any] | None:
    """A trajectory; None where there is none of this length."""
    try:
        found: dict[str, Any] = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return found if len(found["rows"]["clean"]) == ROUNDS else None


@dataclass(frozen=True)
class Scores:
    """Scores of one trajectory: clean ones by round, and attacked ones by attack and f."""

    alpha: float
    seed: int
    calibration: list[float]
    clean: list[float]
    attacked: dict[tuple[str, int], list[float]]
    robust: float | None = None
    """Share of the rounds after the calibration phase that the default controller spends in alarm without attack."""


def measured(row: Row, n: int) -> Measured:
    """A row of a trajectory as the calibrated detector measures a round."""
    found = Sums(n, *row[:5])
    values = (found.concentration, found.size, found.coherence, found.direction)
    return Measured(dict(zip(Calibrated.features, values, strict=True)), found.concentration > guard(n))


def scores(found: dict[str, Any], alpha: float, seed: int, detector: str) -> Scores:
    """What a detector says of every round, the last clean ones lying beside it."""
    n, rows = found["n"], found["rows"]
    window = Adaptive().window
    if detector != "calibrated":
        simple = [_simple(row, n, detector) for row in rows["clean"]]
        lying = {_key(k): [_simple(row, n, detector) for row in v] for k, v in rows.items() if k != "clean"}
        return Scores(alpha, seed, simple[1:CALIBRATION], simple[CALIBRATION:], lying)
    see = Calibrated()
    clean = [measured(row, n) for row in rows["clean"]]
    table = torch.stack([m.tensor() for m in clean])
    # Round 1 has no update to compare with.
    own = [see.score(clean[t], table[t - window : t]) for t in range(window + 1, ROUNDS)]
    split = CALIBRATION - window - 1
    attacked = {
        _key(k): [
            see.score(measured(row, n), table[CALIBRATION + i - window : CALIBRATION + i]) for i, row in enumerate(v)
        ]
        for k, v in rows.items()
        if k != "clean"
    }
    return Scores(alpha, seed, own[:split], own[split:], attacked, alarmed(clean, table))


def alarmed(clean: Sequence[Measured], table: Tensor) -> float:
    """The default controller on the clean rounds: share of alarms after the calibration phase.

    Replays what it compares with and when; on a clean run the rule changes next to nothing in the trajectory.
    """
    rule = Adaptive(momentum=0.9)
    baseline, scored, alarms = list[Tensor](), list[float](), list[bool]()
    theta1, _ = thresholds([])
    for t in range(1, len(clean)):
        if len(baseline) < rule.window:
            baseline.append(table[t])
            continue
        score = rule.seen.score(clean[t], torch.stack(baseline))
        calibrating = t < CALIBRATION
        if calibrating:
            scored.append(score)
        else:
            alarms.append(score > theta1 or clean[t].guarded)
        if calibrating or (score <= rule.drift * theta1 and not clean[t].guarded):
            baseline = [*baseline[1:], table[t]]
        if t == CALIBRATION - 1:
            theta1, _ = thresholds(scored)
    return fmean(map(float, alarms))


def thresholds(scored: Sequence[float]) -> tuple[float, float]:
    """What the controller makes of the scores of its calibration phase."""
    if len(scored) < 100:
        return Calibrated().start(0.9)
    ordered = sorted(scored)
    return tuple(ordered[min(len(ordered), math.ceil(q * (len(ordered) + 1))) - 1] for q in (0.95, 0.99))  # type: ignore[return-value]


def aucs(all_scores: Sequence[Scores]) -> dict[str, dict[float, float]]:
    """AUC of every attack, for every alpha the mean over seeds and f; and under ``"least"`` the worst single one."""
    out: dict[str, dict[float, float]] = {}
    for attack in dict.fromkeys(k for k, _ in all_scores[0].attacked):
        out[attack] = {
            alpha: fmean(
                auc(s.attacked[attack, f], s.clean) or 0.0 for s in all_scores for f in DECLARED if s.alpha == alpha
            )
            for alpha in dict.fromkeys(s.alpha for s in all_scores)
        }
    return out


def false_alarms(all_scores: Sequence[Scores]) -> tuple[float, float]:
    """Shares of clean rounds after the calibration phase above each run's own θ1 and θ2, over all runs."""
    pairs = [(thresholds(s.calibration), s.clean) for s in all_scores]
    return tuple(fmean(float(x > theta[i]) for theta, clean in pairs for x in clean) for i in (0, 1))  # type: ignore[return-value]


def starting_false_alarms(all_scores: Sequence[Scores]) -> tuple[float, float]:
    """The same for the thresholds that a run starts with."""
    first = Calibrated().start(0.9)
    return tuple(fmean(float(x > first[i]) for s in all_scores for x in (*s.calibration, *s.clean)) for i in (0, 1))  # type: ignore[return-value]


def gathered(root: Path, *, quick: bool = False) -> Iterator[tuple[str, list[Scores]]]:
    """The scores of each detector on every trajectory that is there."""
    found = [(a, s, read(p)) for a, s, p in places(root, quick=quick)]
    for detector in DETECTORS:
        yield detector, [scores(t, a, s, detector) for a, s, t in found if t is not None]


def _key(name: str) -> tuple[str, int]:
    attack, _, f = name.rpartition(", ")
    return attack, int(f)


def _simple(row: Row, n: int, detector: str) -> float:
    entropy, ratio = row[5:7]
    return {"source": entropy / math.log(n), "deficit": math.log(n) - entropy, "neighbour": 1 - ratio}[detector]
