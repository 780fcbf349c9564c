"""Privacy loss distributions: the tight figure, computed in one shot (Koskela et al. 2020; dp-accounting; SPEC 4).

A composition costs seconds, not milliseconds, so this is the accountant of reports, not of the round loop. Losses
lie on a grid of 1e-4, rounded so that ε is never under-reported; the grid is finer where ε is tiny and coarser where
the losses are so large that they would not fit in memory.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from dp_accounting import NeighboringRelation
from dp_accounting.pld import privacy_loss_distribution as losses
from dp_accounting.pld.common import DifferentialPrivacyParameters

from fedveil.core.errors import Refused
from fedveil.privacy.analytic import check_delta
from fedveil.privacy.events import Event, WithoutReplacement
from fedveil.privacy.rdp import rdp_epsilon

INTERVAL = 1e-4
"""Grid of the losses; halving it changes the reference values by less than 1e-4."""

POINTS = 2**20
"""A single release's losses fill at most about this many grid points."""

COMPOSED = 2**20
"""The epsilon of the whole composition spans at most this many grid points (ε up to 100 on the usual grid)."""

FINEST = 1e-6
"""The finest grid, for the smallest epsilons."""

LEAST = 0.01
"""Smaller multipliers have losses (in the thousands) whose exponentials overflow."""

MOST = 10**6
"""More sampled releases than this take minutes to compose."""


def refuse_unknown(event: Event) -> None:
    """Refuse what has no tight loss distribution here."""
    if isinstance(event.sampling, WithoutReplacement):
        raise Refused("pld: drawing without replacement has no loss distribution here; use the rdp accountant")
    if event.mechanism in ("discrete_gaussian", "skellam"):
        raise Refused(f"pld: {event.mechanism} on vectors has no loss distribution here; use the rdp accountant")
    if event.effective < LEAST:
        raise Refused(f"pld: losses overflow at a noise multiplier of {event.effective:g}; use the rdp accountant")
    if event.sampling is not None and event.mechanism == "laplace" and event.adjacency == "replace":
        raise Refused(
            "pld: Poisson-sampled laplace under adjacency replace has no loss distribution here; "
            "use adjacency zero_out, or the basic or advanced accountant"
        )


def largest_loss(event: Event) -> float:
    """About the largest privacy loss of one release that still counts."""
    z = event.effective
    return 0.5 / z**2 + 10 / z if event.mechanism == "gaussian" else 1 / z


@lru_cache(maxsize=64)
def one_step(event: Event, interval: float) -> Any:
    """The loss distribution of one release."""
    z, q = event.multiplier, event.rate
    if event.mechanism == "gaussian":
        relation = NeighboringRelation.REPLACE_ONE if event.doubled else NeighboringRelation.ADD_OR_REMOVE_ONE
        return losses.from_gaussian_mechanism(
            z, value_discretization_interval=interval, sampling_prob=q, neighboring_relation=relation
        )
    if event.mechanism == "laplace":
        return losses.from_laplace_mechanism(event.effective, value_discretization_interval=interval, sampling_prob=q)
    epsilon = math.log1p(q * math.expm1(1 / event.effective))
    return losses.from_privacy_parameters(
        DifferentialPrivacyParameters(epsilon, 0.0), value_discretization_interval=interval
    )


def merged(counts: Mapping[Event, int]) -> list[tuple[Event, int]]:
    """The composition with all unsampled Gaussian releases made one: 1/z² = Σ 1/z_i², exactly."""
    rest, precision = [], 0.0
    for event, times in counts.items():
        refuse_unknown(event)
        if event.mechanism == "gaussian" and event.sampling is None:
            precision += times / event.effective**2
        else:
            rest.append((event, times))
    return [(Event("gaussian", precision**-0.5), 1), *rest] if precision else rest


def fitting(parts: list[tuple[Event, int]], size: float) -> float:
    """The grid for an ε of about ``size``: 1e-4, finer below 0.1, coarser where it would need too many points."""
    spread = max(largest_loss(event) for event, _ in parts)
    interval = INTERVAL
    while interval > FINEST and size < 1000 * interval:
        interval /= 2
    while max(spread / POINTS, size / COMPOSED) > interval:
        interval *= 2
    return interval


def pld_epsilon(counts: Mapping[Event, int], delta: float, coarser: float = 1) -> float:
    """Epsilon by privacy loss distributions; on a ``coarser`` grid it is faster and a little larger."""
    check_delta(delta)
    parts = merged(counts)
    if not parts:
        return 0.0
    if sum(times for _, times in parts) > MOST:
        raise Refused(f"pld: more than {MOST} releases take too long to compose; use the rdp accountant")
    above = rdp_epsilon(dict(parts), delta)
    interval = coarser * fitting(parts, above)
    whole = losses.identity(value_discretization_interval=interval)
    for event, times in parts:
        step = one_step(event, interval)
        whole = whole.compose(step if times == 1 else step.self_compose(times))
    # Both are upper bounds; the grid can only lose to rdp where single losses are far below one grid step.
    return min(above, float(whole.get_epsilon_for_delta(delta)))
