"""Graph and threshold for a number of clients, and the probability that they do not suffice (SPEC 6.1).

Clients stand on a ring in random order, each beside ``degree``/2 neighbours on either side; a complete graph where that
is not enough. Let D clients drop out and A collude, n in all. With random order, as long as dropping out and colluding
do not depend on it (Bell et al. 2020, section 4):

safe
    2·threshold > degree + a for every client, a being its colluding neighbours: those can never rebuild both secrets
    of a client, even if honest neighbours are lied to. P[fails] ≤ n·P[H(n−1, A, degree) ≥ 2·threshold − degree], H
    being hypergeometric.
connected
    honest survivors hang together, so that masks hide everything but the sum of them all. On a ring, two runs of
    degree/2 lost neighbours are needed to cut it: P[fails] ≤ C(n, 2)·P[``degree`` given clients are all lost].
    Against an active server this holds for every order: a ring of degree > D + A cannot be cut.
finishes
    every client keeps ``threshold`` neighbours to unmask it. P[fails] ≤ n·P[H(n−1, D, degree) > degree − threshold].

A round that does not finish is aborted, which costs time and no privacy.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.special import gammaln

from fedveil.core.errors import Refused

RISK = -40.0
"""log2 of the largest probability of failure that is accepted without asking."""

Logs = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Plan:
    """Parameters that everybody in a session knows, and what they are worth.

    ``colluders`` and ``lost`` are how many of ``clients`` may work with the server and may drop out; a sum holds at
    least ``least`` uploads. ``log2_leak`` and ``log2_abort`` bound, by random order, the probabilities that more than
    the sum could be learnt, and that a round with no more losses than planned does not finish.
    """

    clients: int
    degree: int
    threshold: int
    colluders: int
    lost: int
    active: bool
    log2_leak: float
    log2_abort: float

    @property
    def least(self) -> int:
        """How many uploads stand in every sum that is opened."""
        return self.clients - self.lost

    @property
    def signatures(self) -> int:
        """How many clients must sign a list of survivors: any two such groups share an honest client."""
        return (self.clients + self.colluders) // 2 + 1

    def words(self) -> str:
        """One sentence for people."""
        graph = "all others" if self.degree == self.clients - 1 else f"{self.degree} neighbours"
        return (
            f"{self.clients} clients, each masked against {graph}, threshold {self.threshold}; at least {self.least} "
            f"uploads in a sum; {self.colluders} may collude; probability of a leak {_chance(self.log2_leak)}, of a "
            f"round that fails though no more than {self.lost} clients drop out {_chance(self.log2_abort)}"
        )


def _chance(log2: float) -> str:
    return "0" if log2 == -math.inf else f"at most 2^{math.ceil(log2)}"


@lru_cache(maxsize=256)
def choose(
    clients: int,
    *,
    max_dropout: float,
    collusion: float,
    active: bool = False,
    degree: int | None = None,
    risk: float = RISK,
) -> Plan:
    """The smallest degree, with the smallest threshold for it, under which both failures are rarer than 2^risk.

    A ``degree`` that is given stands, if it is safe; how likely its rounds fail is then only told.
    """
    colluders, lost = math.floor(collusion * clients + 1e-9), math.floor(max_dropout * clients + 1e-9)
    if clients - lost - colluders < 2:
        raise Refused(
            f"cohort: a sum of {clients - lost} uploads, {colluders} of them known to the server, hides nobody; "
            "take more clients per round, or lower transport.max_dropout or transport.collusion"
        )
    whole = clients - 1
    if degree is not None:
        if degree < 1 or (degree % 2 and degree < whole):
            raise Refused(f"transport.degree: {degree} neighbours do not fit round a ring; give an even number")
        plan = _plan(clients, min(degree, whole), colluders, lost, active, risk)
        if plan is None or plan.log2_leak > risk:
            raise Refused(
                f"transport.degree: {degree} neighbours of {clients} clients may leak more often than 2^{risk:g}; "
                "give more, leave it out, or lower transport.collusion or transport.max_dropout"
            )
        return plan
    for candidate in [*range(2, whole, 2), whole]:
        plan = _plan(clients, candidate, colluders, lost, active, risk)
        if plan is not None and max(plan.log2_leak, plan.log2_abort) <= risk:
            return plan
    raise Refused(
        f"transport.max_dropout: no threshold stands {lost} losses and {colluders} colluders among {clients} clients; "
        "their shares must satisfy max_dropout + collusion / 2 < 1 / 2; lower them, or take more clients per round"
    )


def _plan(n: int, degree: int, colluders: int, lost: int, active: bool, risk: float) -> Plan | None:
    """The plan of this degree with its smallest safe threshold; None where there is none."""
    candidates = range(degree // 2 + 1, degree + 1)
    found = bisect_left(candidates, True, key=lambda t: _leak(n, degree, t, colluders, lost, active) <= risk)
    if found == len(candidates):
        return None
    threshold = candidates[found]
    leak = _leak(n, degree, threshold, colluders, lost, active)
    abort = _times(n, _tail(n - 1, lost, degree, degree - threshold + 1))
    return Plan(n, degree, threshold, colluders, lost, active, leak, abort)


def _leak(n: int, degree: int, threshold: int, colluders: int, lost: int, active: bool) -> float:
    """log2 of the probability that the plan gives away more than the sum."""
    if active:  # whatever the order
        safe = 2 * threshold > degree + min(colluders, degree) and degree > lost + colluders
        return -math.inf if safe else 0.0
    both = _times(n, _tail(n - 1, colluders, degree, max(2 * threshold - degree, 1)))
    if degree == n - 1:
        return both
    gone = lost + colluders
    cut = _times(math.comb(n, 2), _tail(n, gone, degree, degree))
    return min(0.0, float(np.logaddexp2(both, cut)))


def _times(count: int, log2: float) -> float:
    return min(0.0, math.log2(count) + log2)


def _tail(population: int, marked: int, drawn: int, least: int) -> float:
    """log2 P[at least ``least`` marked among ``drawn``], without replacement; −inf where it cannot happen.

    >>> round(2 ** _tail(10, 5, 2, 1), 6) == round(1 - (5 * 4) / (10 * 9), 6)
    True
    """
    low, high = max(least, drawn + marked - population, 0), min(marked, drawn)
    if low > high:
        return -math.inf
    if least <= drawn + marked - population or least <= 0:
        return 0.0
    j = np.arange(low, high + 1, dtype=np.float64)
    logs = _choose(marked, j) + _choose(population - marked, drawn - j) - _choose(population, np.array([drawn]))
    top = float(logs.max())
    return min(0.0, (top + math.log(float(np.exp(logs - top).sum()))) / math.log(2))


def _choose(n: int, k: Logs) -> Logs:
    out: Logs = gammaln(n + 1.0) - gammaln(k + 1.0) - gammaln(n - k + 1.0)
    return out
