"""The table behind ``fedveil budget``: two of ε, noise and steps are given, every accountant finds the third.

>>> rows = budget(multiplier=1.1, steps=10_000, sampling=0.01, accountants=("rdp", "moments")).rows
>>> [(row.accountant, round(row.epsilon, 2)) for row in rows]
[('rdp', 5.63), ('moments', 6.28)]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from fedveil.core.errors import Refused, one_of, positive
from fedveil.privacy.accountants import ACCOUNTANTS
from fedveil.privacy.accountants import epsilon as spent
from fedveil.privacy.analytic import check_delta
from fedveil.privacy.events import LEAST, SKELLAM_STEPS, Adjacency, Event, Mechanism, Sampling, tally
from fedveil.privacy.search import COARSE, check_steps, max_steps, noise_multiplier, sampling_of

Unknown = Literal["epsilon", "multiplier", "steps"]


@dataclass(frozen=True)
class BudgetRow:
    """One accountant's answer; ``refused`` says why there is none."""

    accountant: str
    epsilon: float | None
    multiplier: float | None
    steps: int | None
    refused: str | None = None


@dataclass(frozen=True)
class BudgetTable:
    """All answers, and what was asked: ``solved`` is the column that was computed."""

    solved: Unknown
    sampling: Sampling
    delta: float
    mechanism: Mechanism
    adjacency: Adjacency
    rows: tuple[BudgetRow, ...]


def budget(
    *,
    epsilon: float | None = None,
    multiplier: float | None = None,
    steps: int | None = None,
    sampling: float | Sampling = 1.0,
    delta: float = 1e-5,
    accountants: Sequence[str] = tuple(ACCOUNTANTS),
    mechanism: Mechanism = "gaussian",
    adjacency: Adjacency = "zero_out",
) -> BudgetTable:
    """The third of ε, noise multiplier and steps, by every accountant side by side.

    ``sampling`` is a Poisson rate or a sampling of :mod:`fedveil.privacy.events`. Bad input is refused at once; an
    accountant that cannot handle the setting gets a row that says so.
    """
    given = {"epsilon": epsilon, "multiplier": multiplier, "steps": steps}
    unknown = [name for name, value in given.items() if value is None]
    if len(unknown) != 1:
        raise Refused("budget: give exactly two of epsilon, noise and steps; the third is computed")
    check_delta(delta)
    if epsilon is not None:
        positive(epsilon=epsilon)
    if multiplier is not None:
        positive(noise=multiplier)
        if multiplier < LEAST:
            raise Refused(f"noise: a multiplier of {multiplier:g} protects nothing; give at least {LEAST:g}")
    if steps is not None:
        check_steps(steps)
    for name in accountants:
        one_of("accountant", name, ACCOUNTANTS)
    drawn = sampling_of(sampling)
    grid_std = SKELLAM_STEPS if mechanism == "skellam" else None
    solved: Unknown = unknown[0]  # type: ignore[assignment]

    def answer(name: str) -> BudgetRow:
        row = BudgetRow(name, epsilon, multiplier, steps)
        options = {"mechanism": mechanism, "adjacency": adjacency, "grid_std": grid_std}
        try:
            if multiplier is None:
                assert epsilon is not None
                assert steps is not None
                found = noise_multiplier(epsilon, delta, drawn, steps, name, **options)  # type: ignore[arg-type]
                return replace(row, multiplier=found)
            if steps is None:
                assert epsilon is not None
                many = max_steps(epsilon, delta, drawn, multiplier, name, **options)  # type: ignore[arg-type]
                return replace(row, steps=many)
            event = Event(mechanism, multiplier, drawn, steps, adjacency, grid_std)
            return replace(row, epsilon=spent(event, delta, name))
        except Refused as refusal:
            return replace(row, refused=str(refusal))

    return BudgetTable(solved, drawn, delta, mechanism, adjacency, tuple(answer(name) for name in accountants))


def curve(
    *,
    multiplier: float,
    steps: int,
    sampling: float | Sampling = 1.0,
    delta: float = 1e-5,
    accountants: Sequence[str] = ("rdp", "pld", "moments"),
    points: int = 24,
    mechanism: Mechanism = "gaussian",
    adjacency: Adjacency = "zero_out",
) -> dict[str, list[tuple[int, float]]]:
    """ε after 1 .. ``steps`` steps for a plot; ``pld`` on its coarse loss grid, a little above its exact value.

    An accountant that cannot handle the setting has no line.
    """
    check_steps(steps)
    drawn = sampling_of(sampling)
    at = sorted({round(t) for t in np.geomspace(1, steps, points)})
    lines: dict[str, list[tuple[int, float]]] = {}
    grid_std = SKELLAM_STEPS if mechanism == "skellam" else None
    for name in accountants:
        one_of("accountant", name, ACCOUNTANTS)
        price = COARSE if name == "pld" else ACCOUNTANTS[name]
        try:
            lines[name] = [
                (t, price(tally(Event(mechanism, multiplier, drawn, t, adjacency, grid_std)), delta)) for t in at
            ]
        except Refused:
            continue
    return lines
