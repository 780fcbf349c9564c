"""Noise for a budget, before the first round: the smallest multipliers that keep every client within it (SPEC 3.1)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

from fedveil.core.errors import Refused
from fedveil.core.method import Method
from fedveil.privacy.events import Event, Poisson
from fedveil.privacy.noise import Multiplier, PerClient
from fedveil.runtime.folder import Folder, read_json, write_json
from fedveil.runtime.planning import Planner
from fedveil.runtime.prepare import Training

MANY = 40
"""With more kinds of clients than this, rates and counts are rounded up to a common grid before the search."""
GRIDS = (1.05, 1.1, 1.2, 1.4, 2.0)
"""Ratios of neighbouring grid points; the finest one with few enough kinds is taken."""

Kind = tuple[tuple[Event, int], ...]
"""What one client will have released over the whole run, at multiplier 1."""


def calibrate(training: Training, make: Callable[[Multiplier], Method], *, per_client: bool) -> Multiplier:
    """The multiplier, or one per client, under which ``rounds`` rounds cost at most ``privacy.epsilon``.

    Cohorts are drawn from the seed, so how often each client takes part is known before the run; where the cohort is
    a secret, every round counts for everybody. ``training.method`` is ``make(1.0)``.
    """
    rounds, planner = training.settings.rounds, Planner(training)
    everybody = range(training.federation.population)
    if not training.method.local_privacy:
        return _search(training, make, _kind(planner, 0, rounds))
    joined = Counter(k for number in range(1, rounds + 1) for k in planner.cohort(number))
    kinds = {k: _kind(planner, k, max(1, joined[k])) for k in everybody}
    exact = kinds
    for grid in GRIDS:
        if len(set(kinds.values())) <= MANY:
            break
        kinds = {k: _rounded_up(kind, grid) for k, kind in exact.items()}
    found = {kind: _search(training, make, kind) for kind in set(kinds.values())}
    if not per_client or len(found) == 1:
        return max(found.values())
    return PerClient(tuple(found[kinds[k]] for k in everybody))


def save_noise(folder: Folder, sigma: Multiplier) -> None:
    """Write what was calibrated into the run folder."""
    write_json(folder.noise, {"sigma": sigma.values if isinstance(sigma, PerClient) else sigma})


def load_noise(folder: Folder) -> Multiplier | None:
    """What was calibrated when the run began; None where nothing was."""
    if not folder.noise.exists():
        return None
    sigma = read_json(folder.noise, "sigma")["sigma"]
    each = sigma if isinstance(sigma, list) else [sigma]
    if not each or not all(type(z) in (int, float) for z in each):
        raise Refused(f"{folder.noise}: these are no noise multipliers; the run folder is damaged")
    return PerClient(tuple(map(float, each))) if isinstance(sigma, list) else float(sigma)


def _kind(planner: Planner, client: int, rounds: int) -> Kind:
    accounts = planner.accounts()
    events = accounts.events(planner.lines([client], {}), planner.unit)
    return tuple((event.one, event.count * rounds) for event in events)


def _rounded_up(kind: Kind, grid: float) -> Kind:
    def up(value: float) -> float:
        return float(grid ** math.ceil(math.log(value) / math.log(grid) - 1e-9))

    def coarser(event: Event) -> Event:
        if not isinstance(event.sampling, Poisson):
            return event
        return replace(event, sampling=Poisson(min(1.0, up(event.sampling.rate))))

    return tuple((coarser(event), math.ceil(up(count))) for event, count in kind)


def _search(training: Training, make: Callable[[Multiplier], Method], kind: Kind) -> float:
    """The smallest σ for this kind of client; the releases' own multipliers are read off the recipe at each σ."""
    from fedveil.privacy.search import smallest_multiplier

    privacy = training.settings.privacy
    assert privacy.epsilon is not None

    @lru_cache(maxsize=256)
    def noises(sigma: float) -> tuple[Event, ...]:
        planner = Planner(replace(training, method=make(sigma)))
        return tuple(planner.accounts().events(planner.lines([0], {}), planner.unit))

    def at(sigma: float) -> dict[Event, int]:
        return {
            replace(event, multiplier=noise.multiplier, grid_std=noise.grid_std): count
            for (event, count), noise in zip(kind, noises(sigma), strict=True)
        }

    return smallest_multiplier(at, privacy.epsilon, privacy.delta, privacy.accountant)
