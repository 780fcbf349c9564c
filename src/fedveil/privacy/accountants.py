"""The accountants, behind one question: what do these events cost at this δ? (SPEC 4)

``rdp`` is the accountant of the round loop, ``pld`` the tight figure for reports, ``moments`` the historical one;
``basic``, ``advanced`` and ``optimal`` know no more than one (ε, δ) per release. All give upper bounds; each
refuses what it has no proof for.

>>> round(epsilon(Event("gaussian", 1.1, Poisson(0.01), 10_000), 1e-5), 2)
5.63
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from fedveil.core.errors import Refused, one_of
from fedveil.privacy import composition, rdp
from fedveil.privacy.analytic import check_delta, gaussian_epsilon
from fedveil.privacy.events import Event, Poisson, tally
from fedveil.privacy.pld import pld_epsilon
from fedveil.privacy.rdp import moments_epsilon, rdp_epsilon

Counts = Mapping[Event, int]
Accountant = Callable[[Counts, float], float]
Theorem = Callable[[composition.Parts, float], float]

SPLITS = (0.01, 0.1, 0.5, 0.9, 0.99)
"""Shares of δ that go to the releases themselves; the rest is the theorem's slack. The best one counts."""


def release_epsilon(event: Event, delta: float) -> float:
    """ε of one release when δ of failure is allowed, amplified by sampling.

    Amplification: ε' = log(1 + q(e^ε − 1)), δ' = qδ, for Poisson sampling and for drawing without replacement
    (Balle, Barthe and Gaboardi 2018).
    """
    own = delta / event.rate
    if event.mechanism in ("laplace", "pure"):
        cost = 1 / event.effective
    elif own >= 1:
        return 0.0
    elif event.mechanism == "gaussian":
        cost = gaussian_epsilon(event.effective, own)
    else:
        plain = Event(event.mechanism, event.effective, grid_std=event.grid_std, dim=event.dim)
        cost = rdp.to_epsilon(rdp.one_step(plain), own)
    if event.sampling is None:
        return cost
    # log(1 + q(e^x − 1)) without overflow
    return math.log1p(event.rate * math.expm1(cost)) if cost < 500 else cost + math.log(event.rate)


def _compose(counts: Counts, delta: float, theorem: Theorem) -> float:
    check_delta(delta)
    approximate = sum(n for event, n in counts.items() if event.mechanism not in ("laplace", "pure"))

    def parts(share: float) -> list[tuple[float, int]]:
        return [(release_epsilon(event, share), n) for event, n in counts.items()]

    everything = composition.basic(parts(delta / approximate if approximate else delta))
    if theorem is composition.basic or not counts:
        return everything
    if not approximate:
        return min(everything, theorem(parts(delta), delta))
    # (1 − δ0)^k (1 − slack) = 1 − δ, with kδ0 bounded by the share s of δ
    costs = []
    for split in SPLITS:
        each = -math.expm1(math.log1p(-split * delta) / approximate)
        slack = -math.expm1(math.log1p(-delta) - math.log1p(-split * delta))
        if theorem is composition.advanced:  # its δ's add up
            each, slack = split * delta / approximate, (1 - split) * delta
        costs.append(theorem(parts(each), slack))
    return min(everything, *costs)


def basic_epsilon(counts: Counts, delta: float) -> float:
    """ε by adding up; each release that needs a δ gets an equal share."""
    return _compose(counts, delta, composition.basic)


def advanced_epsilon(counts: Counts, delta: float) -> float:
    """ε by advanced composition, never worse than basic."""
    return _compose(counts, delta, composition.advanced)


def optimal_epsilon(counts: Counts, delta: float) -> float:
    """ε by optimal composition of (ε, δ) releases, never worse than advanced."""
    return min(_compose(counts, delta, composition.optimal), _compose(counts, delta, composition.advanced))


ACCOUNTANTS: dict[str, Accountant] = {
    "rdp": rdp_epsilon,
    "pld": pld_epsilon,
    "moments": moments_epsilon,
    "basic": basic_epsilon,
    "advanced": advanced_epsilon,
    "optimal": optimal_epsilon,
}


def accountant(name: str) -> Accountant:
    """The accountant of this name; an unknown one is refused with the list."""
    one_of("accountant", name, ACCOUNTANTS)
    return ACCOUNTANTS[name]


def epsilon(
    events: Event | Iterable[Event] | Mapping[Event, int],
    delta: float,
    accountant: str = "rdp",
    orders: Sequence[float] | None = None,
) -> float:
    """What these events cost together, at this δ, by this accountant; events of different kinds compose.

    ``orders`` are Rényi orders of one's own, for ``rdp`` only; a list that loses more than 1 % gives a warning.
    """
    one_of("accountant", accountant, ACCOUNTANTS)
    check_delta(delta)
    counts = tally(events)
    if orders is None:
        return ACCOUNTANTS[accountant](counts, delta)
    if accountant != "rdp":
        raise Refused(f"orders: the {accountant} accountant has none; leave them out, or use rdp")
    return rdp_epsilon(counts, delta, orders)


class Spent:
    """A running composition: add events as they happen, ask for ε at any time in well under a millisecond (rdp).

    >>> spent = Spent()
    >>> spent.add(Event("gaussian", 1.1, Poisson(0.01)))
    >>> round(spent.epsilon(1e-5), 4)
    0.7751
    """

    def __init__(self, events: Event | Iterable[Event] | Mapping[Event, int] = ()) -> None:
        self.counts: dict[Event, int] = tally(events)

    def add(self, event: Event) -> None:
        """Charge one more event."""
        if event.count:
            self.counts[event.one] = self.counts.get(event.one, 0) + event.count

    def epsilon(self, delta: float, accountant: str = "rdp") -> float:
        """What has been spent so far."""
        return epsilon(self.counts, delta, accountant)


__all__ = ["ACCOUNTANTS", "Accountant", "Event", "Poisson", "Spent", "accountant", "epsilon", "release_epsilon"]
