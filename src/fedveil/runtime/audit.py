"""Auditing a finished run that was trained with canaries: claim, lower bound, cap, verdict (SPEC 8)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedveil.core.errors import Refused
from fedveil.privacy.audit import (
    CONFIDENCE,
    STRICT,
    Verdict,
    cap,
    cosine_bound,
    guess,
    lower_bound,
    p_value,
    two_gaussians,
    usual_guesses,
    verdict,
)
from fedveil.runtime.folder import Folder, read_json

KEYS = ("unit", "observer", "slot", "noise", "inside", "scores", "cosines", "sphere", "claims")
BINS = 60


@dataclass(frozen=True)
class Histogram:
    """How many canaries that are in, and that are out, have which score."""

    edges: tuple[float, ...]
    inside: tuple[int, ...]
    outside: tuple[int, ...]
    above: float
    below: float
    """From ``above`` on "in" was guessed, up to ``below`` "out"."""


@dataclass(frozen=True)
class Audited:
    """What an audit found out about one run.

    ``bound`` is the lower bound at 95 % and ``strict`` that at 1 − 1e-4; ``chance`` is how likely so many right guesses
    are at most, if the claim holds; ``estimate`` is the ε that two Gaussians fitted to the scores would have: no bound.
    ``cosine`` is the bound from canary clients' cosines with the released updates (Andrew et al. 2023).
    ``switched_off`` is the bound of the same run without noise, where that was tried.
    """

    folder: str
    method: str
    data: str
    rounds: int
    accuracy: float | None
    unit: str
    observer: str
    noise: float
    claim: float
    delta: float
    canaries: int
    inside: int
    guesses: int
    right: int
    bound: float
    strict: float
    chance: float
    cap: float
    estimate: float
    cosine: float | None
    verdict: Verdict
    histogram: Histogram
    switched_off: float | None = None

    @property
    def powerless(self) -> bool:
        """Whether the same audit was blind to a run without any noise."""
        return self.switched_off is not None and self.switched_off <= self.claim

    @property
    def in_words(self) -> str:
        """The verdict in plain words."""
        claim, bound = f"ε = {self.claim:.4g}", f"ε ≥ {self.bound:.3g}"
        who = f"{self.right} of {self.guesses} guesses were right"
        if self.verdict == "violated":
            return (
                f"VIOLATED: {who}, which rules out the claim of {claim} ({bound} at {CONFIDENCE:.0%}). If the claim "
                f"held, so many right guesses would come up with a chance of {self.chance:.2g} at most."
            )
        if self.verdict == "no power":
            why = (
                "the same run with its noise switched off looks no worse"
                if self.powerless
                else f"so many guesses can show ε ≥ {self.cap:.3g} at most; give more canaries"
            )
            return f"NO POWER: this audit could not have caught the claim of {claim}, since {why}."
        return (
            f"HOLDS: {who}; the attack shows {bound} (at {CONFIDENCE:.0%}), below the claim of {claim}. An audit finds "
            "errors, it proves nothing: the truth lies between the two."
        )

    def to_json(self) -> dict[str, Any]:
        """A mapping for ``audit.json``; infinities become null there."""
        return asdict(self) | {"in_words": self.in_words, "confidence": CONFIDENCE, "strict_confidence": STRICT}


def audit(place: str | Path, guesses: int | None = None) -> Audited:
    """Audit a run folder; ``guesses`` is fixed beforehand, by default from the claim and the number of canaries."""
    folder = Folder.existing(place)
    if not folder.summary.is_file():
        raise Refused(f"{place}: the run has not finished; go on with `fedveil resume {place}`")
    if not folder.canaries.is_file():
        raise Refused(
            f"{place}: this run was trained without canaries, so that there is nothing to find; train it with "
            "`fedveil run ... audit.canaries=5000`"
        )
    found = read_json(folder.canaries, *KEYS)
    summary = read_json(folder.summary, "method", "data", "rounds", "accuracy")
    claim = _claim(found)
    scores = np.array(found["scores"], dtype=np.float64)
    inside = np.array(found["inside"], dtype=np.bool_)
    if scores.shape != inside.shape or not np.isfinite(scores).all():
        raise Refused(f"{folder.canaries}: scores and coins do not fit each other; the run folder is damaged")
    many, delta, epsilon = len(scores), float(claim["delta"]), float(claim["epsilon"])
    made = guess(scores, inside, usual_guesses(many, epsilon, delta) if guesses is None else guesses)
    bound = lower_bound(many, made.guesses, made.right, delta)
    most = cap(many, made.guesses, delta)
    return Audited(
        folder=str(place),
        method=summary["method"],
        data=summary["data"],
        rounds=summary["rounds"],
        accuracy=summary["accuracy"],
        unit=found["unit"],
        observer=found["observer"],
        noise=found["noise"],
        claim=epsilon,
        delta=delta,
        canaries=many,
        inside=int(inside.sum()),
        guesses=made.guesses,
        right=made.right,
        bound=bound,
        strict=lower_bound(many, made.guesses, made.right, delta, STRICT),
        chance=p_value(many, made.guesses, made.right, epsilon, delta),
        cap=most,
        estimate=_estimate(scores[inside], scores[~inside], delta),
        cosine=_cosine(found, inside, summary["rounds"], delta),
        verdict=verdict(epsilon, bound, most),
        histogram=_histogram(scores, inside, made.above, made.below),
    )


def with_power(found: Audited, switched_off: float) -> Audited:
    """The same audit, knowing the bound of the same run without noise; a blind one does not hold."""
    tried = replace(found, switched_off=switched_off)
    return replace(tried, verdict="no power") if tried.powerless and found.verdict == "holds" else tried


def _claim(found: Mapping[str, Any]) -> Mapping[str, Any]:
    """The proved row of the statement that the canaries are about."""
    for row in found["claims"]:
        same = (row["observer"], row["unit"]) == (found["observer"], found["unit"])
        if same and row["status"] == "proved" and row["epsilon"] is not None:
            return dict(row)
    raise Refused(
        f"audit: nothing is proved about a {found['unit']} towards {found['observer']} in this run, "
        "so that there is no claim to audit"
    )


def _estimate(inside: np.ndarray[Any, Any], outside: np.ndarray[Any, Any], delta: float) -> float:
    if min(len(inside), len(outside)) < 2 or not (outside.std() > 0 and inside.std() > 0):
        return math.inf
    # Some canaries join more often than others, which widens their scores: the noise is that of the others.
    spread = float(outside.std())
    return two_gaussians(spread, float(inside.mean() - outside.mean()), spread, delta)


def _cosine(found: Mapping[str, Any], inside: np.ndarray[Any, Any], rounds: int, delta: float) -> float | None:
    if found["cosines"] is None or not inside.any():
        return None
    return cosine_bound(np.array(found["cosines"], dtype=np.float64)[inside], found["sphere"], rounds, delta)


def _histogram(scores: np.ndarray[Any, Any], inside: np.ndarray[Any, Any], above: float, below: float) -> Histogram:
    edges = np.linspace(scores.min(), max(scores.max(), scores.min() + 1e-9), BINS + 1)
    counts = [np.histogram(part, edges)[0] for part in (scores[inside], scores[~inside])]
    return Histogram(
        tuple(float(f"{x:.5g}") for x in edges),
        tuple(int(n) for n in counts[0]),
        tuple(int(n) for n in counts[1]),
        above,
        below,
    )
