"""What reports weight by weight cost a client: as the paper counts, composed, and shuffled (SPEC 5).

>>> [round(row.epsilon) for row in ldp_budget(clients=100, epsilon=1.0, dim=21_840, rounds=10)][1]
218400
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedveil.core.errors import Refused, one_of, positive
from fedveil.privacy.analytic import check_delta
from fedveil.privacy.events import Event
from fedveil.privacy.per_weight import check_epsilon
from fedveil.privacy.rdp import plain, to_epsilon
from fedveil.privacy.shuffling import FINE, Crowd, Kind, composed_epsilon, shuffled_epsilon


@dataclass(frozen=True)
class LdpRow:
    """One way to count: over how many reports, at which delta, under which trust."""

    what: str
    trust: str
    epsilon: float
    delta: float
    status: Literal["proved", "nominal"]
    why: str


def ldp_budget(
    *,
    clients: int,
    epsilon: float,
    dim: int,
    rounds: int,
    delta: float = 1e-5,
    mechanism: str = "two_point",
    split: str = "weight",
) -> tuple[LdpRow, ...]:
    """ε of a client that takes part in every round with ``dim`` weights, each reported with ``epsilon`` of its own."""
    for name, value in (("clients", clients), ("dim", dim), ("rounds", rounds)):
        if value < 1:
            raise Refused(f"{name}: {value} is not a number of {name}; give 1 or more")
    positive(epsilon=epsilon)
    check_epsilon(epsilon, "epsilon")
    check_delta(delta)
    one_of("mechanism", mechanism, ("two_point", "hybrid"))
    one_of("split", split, ("weight", "layer"))
    reports = dim * rounds
    kind: Kind = "binary" if mechanism == "two_point" else "generic"
    bound = "exact for reports of two values" if kind == "binary" else "clones, for any report"
    everything = f"{dim:,} weights, {rounds} rounds"
    event = Event("pure", 1 / epsilon, adjacency="replace")
    composed = to_epsilon(reports * plain(event, np.asarray(FINE)), delta, FINE)
    rows = [
        LdpRow("1 weight, 1 round", "nobody", epsilon, 0.0, "nominal", "the paper's figure; no claim about a client"),
        LdpRow(everything, "nobody", epsilon * reports, 0.0, "proved", "basic composition"),
        LdpRow(everything, "nobody", min(composed, epsilon * reports), delta, "proved", "composed by rdp"),
    ]
    if split == "layer":
        return *rows, LdpRow(
            everything, "shuffler", rows[2].epsilon, delta, "proved", "a message holds a whole layer: no amplification"
        )
    crowd = Crowd(clients, epsilon, kind)
    one = shuffled_epsilon(clients, epsilon, delta, kind)
    return (
        *rows,
        LdpRow("1 weight, 1 round", "shuffler", one, delta, "proved", bound),
        LdpRow(f"{dim:,} weights, 1 round", "shuffler", composed_epsilon({crowd: dim}, delta), delta, "proved", bound),
        LdpRow(everything, "shuffler", composed_epsilon({crowd: reports}, delta), delta, "proved", bound),
    )
