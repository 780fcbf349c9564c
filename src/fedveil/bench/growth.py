"""How time and memory grow with the cohort and with the population: small clients, a process for each size."""

from __future__ import annotations

import statistics
from typing import Any

from fedveil.bench.alone import alone
from fedveil.bench.rivals import OURS
from fedveil.bench.scenario import Scenario

ROUNDS = 6
COHORTS = (10, 100, 1000)
POPULATIONS = (100, 1_000, 10_000, 100_000)


def sizes() -> dict[str, Scenario]:
    """What is measured, by name."""
    cohorts = {f"growth/cohort/{n}": _small(n, max(COHORTS)) for n in COHORTS}
    return cohorts | {f"growth/population/{n}": _small(10, n) for n in POPULATIONS}


def _small(cohort: int, population: int) -> Scenario:
    return Scenario("mlp", "fedavg", cohort=cohort, population=population, samples=50, data="synthetic")


def grow(scenario: Scenario, threads: int, rounds: int = ROUNDS) -> dict[str, Any]:
    """Seconds per round (the median after the first), and the memory of the process."""
    found = alone(scenario, OURS, rounds, threads)
    return {
        "cohort": scenario.cohort,
        "population": scenario.population,
        "seconds": statistics.median(found["seconds"]),
        "first_round": found["first"],
        "memory": found["memory"],
    }
