"""What the public gains by seeing means only, and what papers claim beyond what is proved (SPEC 3.1).

The public sees Σ_k (g_k + N_k): the noises of a cohort protect each of its records together. For a single local step
this is a theorem: a record of client k faces the Poisson-sampled Gaussian of multiplier √(Σ_j σ_j² − σ_a²), a being the
participant with the most noise besides k, who knows its own (for equal noise: σ√(n−1)). With more steps between
two means, each client's later gradients depend on its own noise, and the same formula is a claim, no theorem.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from fedveil.privacy.claims import Tally
from fedveil.privacy.events import Adjacency, Event, event_of
from fedveil.privacy.ledger import Entry, Line

Status = Literal["proved", "nominal"]


@dataclass(frozen=True)
class Averaging:
    """Whether a record's noise is averaged over the cohort for the public, and whether that is proved."""

    status: Status
    why: str


def averaged(entries: Iterable[Entry], adjacency: Adjacency) -> dict[int, Tally]:
    """Events of each client's records towards the public, if noises of a cohort add up.

    Where the effective multiplier changes from round to round, the smallest one counts for all of them.
    """
    least: dict[int, Event] = {}
    counts: dict[int, int] = {}
    for entry in entries:
        lines = [x for x in entry.lines if x.clients and x.release.slot == "on_step"]
        noise = {k: x.release.noise_std / x.release.bound for x in lines for k in x.clients or ()}
        for line in lines:
            event = event_of(line.release, line.sampling, adjacency)
            for client in line.clients or ():
                counts[client] = counts.get(client, 0) + event.count
                here = replace(event.one, multiplier=_together(noise, client))
                known = least.get(client)
                if known is None or here.multiplier < known.multiplier:
                    least[client] = here
    return {client: {event: counts[client]} for client, event in least.items()}


def _together(noise: dict[int, float], client: int) -> float:
    others = sorted(z for k, z in noise.items() if k != client)
    return math.sqrt(noise[client] ** 2 + sum(z * z for z in others[:-1]))


def claimed(entries: Iterable[Entry], adjacency: Adjacency) -> dict[int, Tally]:
    """Events of each client's records if the multipliers held that papers claim for them."""
    tallies: dict[int, Tally] = {}
    for entry in entries:
        for line in _claiming(entry.lines):
            assert line.release.claimed is not None
            event = Event("gaussian", line.release.claimed, None, 1, adjacency)
            for client in line.clients or ():
                tally = tallies.setdefault(client, {})
                tally[event] = tally.get(event, 0) + line.release.count
    return tallies


def _claiming(lines: Sequence[Line]) -> list[Line]:
    return [x for x in lines if x.release.claimed is not None]
