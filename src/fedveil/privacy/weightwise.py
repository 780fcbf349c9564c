"""Statement rows of uploads that are private weight by weight: the paper's ε, and what shuffling adds (SPEC 5)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from fedveil.core.errors import Refused
from fedveil.privacy.ledger import Entry, Line
from fedveil.privacy.shuffling import Crowd, composed_epsilon
from fedveil.privacy.statement import Row, Statement

ALONE = "server alone"
"""The observer who sees shuffled reports, and does not work together with the shuffler."""

NOMINAL = (
    "nominal for a client: the paper's epsilon holds for one weight in one round, and a client sends every weight in "
    "every round; the rows of the server compose them"
)
NOBODY_TRUSTED = "the shuffler is not trusted: reports compose over all weights and rounds"
BY_LAYER = (
    "Shuffling claims nothing here: with split=layer a message is one report of all weights of a layer, private at the "
    "sum of their epsilons, and shuffling such reports amplifies nothing."
)
UNSEALED = (
    "Parts were permuted in process and not sealed (transport.seal=false): a simulation of the shuffler's effect, "
    "which hides nothing by itself."
)
TIMES = (
    "The shuffler learns who takes part, and which weight a part is about, not what it says; it forwards a round's "
    "parts together and in random order, so that times tell the server nothing about senders."
)


@dataclass(frozen=True)
class Shuffled:
    """How reports were shuffled: parts of single weights or whole layers; a weight of which fewer than ``least`` of
    the cohort's parts arrive is withheld by the shuffler. ``attackers`` of these clients do so in a given round.
    """

    by_weight: bool
    least: float
    sealed: bool
    attackers: Callable[[Sequence[int], int], int] = lambda clients, round: 0

    def crowd(self, clients: int, lying: int = 0) -> int:
        """The fewest honest reports among which one is hidden: nobody hides behind what an attacker sends.

        >>> Shuffled(True, 0.9, True).crowd(15), Shuffled(True, 0.9, True).crowd(15, lying=5)
        (14, 9)
        """
        return max(1, math.ceil(self.least * clients - 1e-9) - lying)


def weightwise(statement: Statement, entries: Sequence[Entry], delta: float, shuffled: Shuffled | None) -> Statement:
    """The statement with the rows and notes that only reports weight by weight have."""
    lines = [line for entry in entries for line in entry.lines if line.release.epsilon is not None and line.clients]
    if not lines:
        return statement
    rows, notes = list(statement.rows), [composition(lines)]
    if shuffled is not None:
        rows = [replace(r, note=f"{NOBODY_TRUSTED}; {r.note}") if r.observer == "server" else r for r in rows]
        notes.append(TIMES if shuffled.sealed else UNSEALED)
        if shuffled.by_weight:
            try:
                rows.append(_shuffled(lines, delta, shuffled))
            except Refused as why:  # what has run keeps its other rows
                notes.append(f"Shuffling claims nothing here: {why}.")
        else:
            notes.append(BY_LAYER)
    each = max(line.release.epsilon or 0.0 for line in lines)
    mechanism = ", ".join(dict.fromkeys(line.release.mechanism for line in lines))
    rows.append(Row("server", "client", each, 0.0, "nominal", f"{mechanism} (one weight)", "none", "none", NOMINAL))
    return replace(statement, rows=tuple(rows), notes=(*notes, *statement.notes))


def composition(lines: Sequence[Line]) -> str:
    """The sum in words: privacy.epsilon is that of one weight in one round."""
    spent: dict[int, float] = {}
    rounds: dict[int, int] = {}
    for line in lines:
        for client in line.clients or ():
            spent[client] = spent.get(client, 0.0) + (line.release.epsilon or 0.0) * line.release.count
            rounds[client] = rounds.get(client, 0) + 1
    worst = max(spent, key=spent.__getitem__)
    release = lines[-1].release
    return (
        f"privacy.epsilon={release.epsilon:g} is meant per weight and round, as in the paper: with {release.count:,} "
        f"weights, the client that took part most often ({rounds[worst]} rounds) has spent {spent[worst]:,.0f} at "
        "delta 0. The rows hold for any change of a client's data (adjacency replace), and for its records as well."
    )


def _shuffled(lines: Sequence[Line], delta: float, shuffled: Shuffled) -> Row:
    tallies: dict[int, dict[Crowd, int]] = {}
    for line in lines:
        assert line.clients is not None
        assert line.release.epsilon is not None
        kind = "binary" if line.release.mechanism == "two_point" else "generic"
        lying = shuffled.attackers(line.clients, line.release.round)
        crowd = Crowd(shuffled.crowd(len(line.clients), lying), line.release.epsilon, kind)  # type: ignore[arg-type]
        for client in line.clients:
            tally = tallies.setdefault(client, {})
            tally[crowd] = tally.get(crowd, 0) + line.release.count
    different = {frozenset(t.items()): t for t in tallies.values()}
    fewest = min(crowd.n for tally in different.values() for crowd in tally)
    mechanism = ", ".join(dict.fromkeys(line.release.mechanism for line in lines))
    return Row(
        ALONE,
        "client",
        max(composed_epsilon(tally, delta) for tally in different.values()),
        delta,
        "proved",
        f"{mechanism}, shuffled by weight",
        "none",
        "shuffle, rdp",
        f"trusts that the shuffler does not work with the server, and that the others are honest: every report is one "
        f"of at least {fewest} honest ones about its weight; composed over weights and rounds, adjacency replace",
    )
