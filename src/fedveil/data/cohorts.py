"""Who takes part in a round: drawn from (seed, round) alone, so that every method meets the same clients."""

from __future__ import annotations

import numpy as np

from fedveil.core.errors import Refused, one_of
from fedveil.core.streams import stream
from fedveil.data.raw import IntArray

SELECTIONS = ("fixed", "poisson")


RARE = 1e-3
"""Poisson cohorts outside of :func:`usual_sizes` come this rarely, on either side."""


def usual_sizes(population: int, cohort: int, selection: str) -> tuple[int, int]:
    """The smallest and the largest cohort to be expected.

    >>> usual_sizes(100, 20, "fixed"), usual_sizes(100, 20, "poisson")
    ((20, 20), (9, 33))
    """
    if selection == "fixed" or cohort == population:
        return cohort, cohort
    from scipy.stats import binom  # half a second to load, which most runs do not need

    low, high = (int(binom.ppf(p, population, cohort / population)) for p in (RARE, 1 - RARE))
    return max(1, low), high


def draw(
    seed: int,
    round: int,
    population: int,
    cohort: int,
    selection: str = "fixed",
    rng: np.random.Generator | None = None,
) -> IntArray:
    """The clients of one round, in ascending order; with an ``rng`` of one's own they do not follow from the seed.

    ``fixed`` draws exactly ``cohort`` clients without replacement; ``poisson`` takes each client
    independently with probability ``cohort / population`` (its number is binomial, and may be 0).

    >>> draw(0, 1, population=10, cohort=3)
    array([2, 3, 5])
    """
    one_of("selection", selection, SELECTIONS)
    for name, value in (("population", population), ("cohort", cohort)):
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
            raise Refused(f"{name}: {value!r} is not allowed; give a whole number from 1 up")
    if cohort > population:
        raise Refused(
            f"cohort: {cohort} clients per round is more than the population of {population}; lower cohort "
            f"to at most {population}, or raise population"
        )
    rng = rng or stream(seed, "cohort", round)
    # Given how many of the independent coins fall heads, who they are is a uniform draw: no coin per client.
    count = cohort if selection == "fixed" else int(rng.binomial(population, cohort / population))
    return np.sort(rng.choice(population, size=count, replace=False, shuffle=False))
