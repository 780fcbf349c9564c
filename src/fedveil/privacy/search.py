"""The same question asked backwards: noise for a target ε, steps for a target ε, rounds that are left (SPEC 4).

Every answer is on the safe side: the accountant in use, asked again at the returned value, stays within the target.
``pld`` is bracketed by ``rdp``, which is never smaller, searched on a coarse loss grid and polished on the fine one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from scipy.optimize import brentq

from fedveil.core.errors import Refused, one_of, positive
from fedveil.privacy.accountants import ACCOUNTANTS, Accountant
from fedveil.privacy.analytic import check_delta
from fedveil.privacy.events import Adjacency, Event, Mechanism, Poisson, Sampling, tally
from fedveil.privacy.pld import MOST, pld_epsilon
from fedveil.privacy.rdp import rdp_epsilon

LARGEST = 1e7
"""No search looks for more noise than this."""

MAX_STEPS = 10**9
"""A search for steps stops here (``pld``: at a million): nothing real has more."""

COARSE = partial(pld_epsilon, coarser=10)
FEW: tuple[float, ...] = (*map(float, range(2, 65)), 80.0, 96.0, 128.0, 192.0, 256.0, 512.0)
"""Whole orders, whose curves are quick to compute."""
PRECISION = 1e-4
"""Relative precision of a calibrated multiplier's epsilon."""


def check_target(epsilon: float, delta: float) -> None:
    """Refuse a target that means nothing."""
    positive(epsilon=epsilon)
    check_delta(delta)


def check_steps(steps: int) -> None:
    """Refuse a number of steps that is not a whole number above zero."""
    if not (0 < steps < math.inf) or steps != int(steps):
        raise Refused(f"steps: {steps} is not a number of steps; give a whole number above 0")


def sampling_of(rate: float | Sampling) -> Sampling:
    """A bare number is a Poisson rate."""
    return Poisson(rate) if isinstance(rate, int | float) else rate


def _bracket(cost: Callable[[float], float], target: float, accountant: str) -> tuple[float, float]:
    """Multipliers below and above the answer."""
    low = high = 1.0
    while cost(high) > target:
        high *= 2
        if high > LARGEST:
            raise Refused(
                f"epsilon: the {accountant} accountant cannot show {target:g} with any noise; ask for more, or use pld"
            )
    while cost(low) <= target:
        low /= 2
        if low < 1e-4:
            return 2 * low, 2 * low
    return low, high


def _smallest(cost: Callable[[float], float], target: float, low: float, high: float) -> float:
    """The smallest multiplier found whose cost is within the target; the cost falls with the noise."""
    if low == high:
        return high
    good = [high]

    def gap(log_z: float) -> float:
        z = math.exp(log_z)
        value = cost(z)
        if value <= target:
            good.append(z)
        return math.log(max(value, 1e-12) / target)

    root = math.exp(brentq(gap, math.log(low), math.log(high), xtol=1e-7, rtol=1e-10))
    for nudge in (1e-7, 1e-6, 1e-5, 1e-4):
        if min(good) <= root * (1 + 1e-6):
            break
        gap(math.log(root * (1 + nudge)))
    return min(good)


def noise_multiplier(
    epsilon: float,
    delta: float,
    q: float | Sampling,
    steps: int,
    accountant: str = "rdp",
    *,
    mechanism: Mechanism = "gaussian",
    adjacency: Adjacency = "zero_out",
    grid_std: float | None = None,
) -> float:
    """The smallest noise multiplier whose ``steps`` releases stay within ``epsilon`` at ``delta``.

    ``q`` is a Poisson rate, or a sampling of :mod:`fedveil.privacy.events`.

    >>> round(noise_multiplier(8.0, 1e-5, 0.01, 10_000), 3)
    0.917
    """
    check_steps(steps)
    sampling = sampling_of(q)
    return smallest_multiplier(
        lambda z: tally(Event(mechanism, z, sampling, steps, adjacency, grid_std)), epsilon, delta, accountant
    )


def smallest_multiplier(
    events: Callable[[float], Mapping[Event, int]], epsilon: float, delta: float, accountant: str = "rdp"
) -> float:
    """The smallest z for which ``events(z)`` stay within ``epsilon`` at ``delta``; their cost must fall with z."""
    check_target(epsilon, delta)
    one_of("accountant", accountant, ACCOUNTANTS)

    def cost(by: Accountant, z: float) -> float:
        return by(events(z), delta)

    if accountant == "pld":
        return _pld_multiplier(cost, epsilon)
    priced = partial(cost, ACCOUNTANTS[accountant])
    if accountant != "rdp":
        return _smallest(priced, epsilon, *_bracket(priced, epsilon, accountant))
    # Few orders cost a twentieth of all of them and never less epsilon: they lead close to the answer from above.
    rough = partial(cost, partial(rdp_epsilon, orders=FEW, warn=False))
    try:
        near = _smallest(rough, epsilon, *_bracket(rough, epsilon, accountant))
    except Refused:
        return _smallest(priced, epsilon, *_bracket(priced, epsilon, accountant))
    low = near * 0.97
    while priced(low) <= epsilon and low > 1e-4:
        low *= 0.9
    return _smallest(priced, epsilon, low, near)


def _pld_multiplier(cost: Callable[[Accountant, float], float], target: float) -> float:
    """Calibrate by loss distributions with two or three fine evaluations."""
    rough = partial(cost, COARSE)
    try:
        by_rdp = partial(cost, ACCOUNTANTS["rdp"])
        low = high = _smallest(by_rdp, target, *_bracket(by_rdp, target, "rdp"))
    except Refused:
        low = high = 1.0
    while rough(high) > target:
        high *= 1.25
        if high > LARGEST:
            raise Refused(f"epsilon: no noise is known to reach {target:g}; ask for more")
    while low > 1e-4 and rough(low) <= target:
        low *= 0.85
    start = _smallest_coarse(rough, target, low, high)
    # The fine grid costs a little less than the coarse one; secant steps in log z take up the difference.
    slope = math.log(max(rough(start * 0.99), 1e-12) / max(rough(start), 1e-12)) / math.log(0.99)
    fine = partial(cost, pld_epsilon)
    z, value = start, fine(start)
    while value > target:
        z *= 1.001
        value = fine(z)
    bad = 0.0
    for _ in range(8):
        if value >= target * (1 - PRECISION):
            break
        aim = math.log(target * (1 - PRECISION / 2) / max(value, 1e-12))
        shorter = z * math.exp(max(-0.1, aim / min(slope, -1e-3)))
        if shorter <= bad:
            shorter = math.sqrt(bad * z)
        tried = fine(shorter)
        if tried > target:
            bad = shorter
        else:
            slope = math.log(tried / value) / math.log(shorter / z) if 0 < value < tried else slope
            z, value = shorter, tried
    return z


def _smallest_coarse(cost: Callable[[float], float], target: float, low: float, high: float) -> float:
    """Like :func:`_smallest`, to a thousandth: the coarse grid is worth no more."""
    while high / low > 1.001:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if cost(middle) <= target else (middle, high)
    return high


def most(cost: Callable[[int], float], target: float, guess: int = 1, limit: int = MAX_STEPS) -> int:
    """The largest k in 0..limit with cost(k) ≤ target, exactly, for a cost that grows with k."""

    def fits(k: int) -> bool:
        return cost(k) <= target

    guess = max(1, min(guess, limit))
    if fits(guess):
        low, width = guess, max(1, guess // 256)
        while low < limit and fits(min(low + width, limit)):
            low, width = min(low + width, limit), width * 4
        if low == limit:
            return limit
        high = min(low + width, limit)
    else:
        high, width = guess, max(1, guess // 256)
        while high - width > 0 and not fits(high - width):
            high, width = high - width, width * 4
        low = max(0, high - width)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def max_steps(
    epsilon: float,
    delta: float,
    q: float | Sampling,
    multiplier: float,
    accountant: str = "rdp",
    *,
    mechanism: Mechanism = "gaussian",
    adjacency: Adjacency = "zero_out",
    grid_std: float | None = None,
) -> int:
    """How many releases fit into ``epsilon`` at ``delta``; 0 when not even one does.

    >>> max_steps(5.6321, 1e-5, 0.01, 1.1)
    10000
    """
    return rounds_left(
        (), Event(mechanism, multiplier, sampling_of(q), 1, adjacency, grid_std), epsilon, delta, accountant
    )


def rounds_left(
    spent: Event | Iterable[Event] | Mapping[Event, int],
    step: Event | Iterable[Event] | Mapping[Event, int],
    epsilon: float,
    delta: float,
    accountant: str | Accountant = "rdp",
) -> int:
    """How many more rounds, each costing ``step``, fit into the budget after ``spent``: exact for this accountant."""
    check_target(epsilon, delta)
    if isinstance(accountant, str):
        one_of("accountant", accountant, ACCOUNTANTS)
    before, more = tally(spent), tally(step)
    if not more:
        raise Refused("rounds left: a round that releases nothing has no end; give the events of one round")

    def cost(by: Accountant, k: int) -> float:
        counts = dict(before)
        for event, times in more.items():
            counts[event] = counts.get(event, 0) + k * times
        return by({event: n for event, n in counts.items() if n}, delta)

    guess, limit = 1, MAX_STEPS
    if accountant == "pld":
        limit = max(0, MOST - sum(before.values())) // max(1, sum(more.values()))
        if limit == 0:
            return 0
        guess = most(partial(cost, ACCOUNTANTS["rdp"]), epsilon, 1, limit)
        guess = most(partial(cost, COARSE), epsilon, guess, limit)
    by = ACCOUNTANTS[accountant] if isinstance(accountant, str) else accountant
    return most(partial(cost, by), epsilon, guess, limit)
