"""FedVeil's ledger as Flower's ``PrivacyAccountant`` (flwr 1.41, ``supercore.privacy_accounting``)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flwr.supercore.privacy_accounting import (
    GaussianPrivacyEvent,
    NeighboringRelation,
    PrivacyConfig,
    PrivacySpent,
    SamplingMethod,
)

from fedveil.core.errors import Refused
from fedveil.core.stage import Release
from fedveil.privacy.accountants import epsilon
from fedveil.privacy.analytic import check_delta
from fedveil.privacy.events import Adjacency, Event, Poisson, Sampling, WithoutReplacement, event_of, tally
from fedveil.privacy.ledger import Ledger, Line

SCHEMA = 1
ADJACENCY: dict[NeighboringRelation, Adjacency] = {
    NeighboringRelation.ADD_OR_REMOVE_ONE: "add_remove",
    NeighboringRelation.REPLACE_ONE: "replace",
}
HALVINGS = 200


@dataclass(frozen=True)
class _Meaning:
    """How Flower's configuration reads in FedVeil's words."""

    config: PrivacyConfig

    @property
    def adjacency(self) -> Adjacency:
        return ADJACENCY[self.config.neighboring_relation]

    def sampling(self, event: GaussianPrivacyEvent) -> Sampling:
        if event.population_size != self.config.population_size:
            raise ValueError(
                f"population_size: the event speaks of {event.population_size} clients and the accountant of "
                f"{self.config.population_size}; give both the same"
            )
        if self.config.sampling_method is SamplingMethod.POISSON:
            return Poisson(event.sample_size / event.population_size)
        if self.config.sampling_method is SamplingMethod.WITHOUT_REPLACEMENT:
            return WithoutReplacement(event.sample_size, event.population_size)
        return None

    def line(self, event: GaussianPrivacyEvent, count: int, number: int) -> Line:
        """Flower adds multiplier·clip / clients to the mean: noise over the bound of one client is the multiplier."""
        if isinstance(count, bool) or not isinstance(count, int) or count <= 0:
            raise ValueError(f"count: {count!r} is no number of releases; give a whole number above 0")
        z = event.noise_multiplier
        release = Release("client", 1.0, z, "gaussian", "on_mean", "move", number, None, count)
        return Line(release, None, self.sampling(event), ("public",))


class LedgerAccountant:
    """Counts what Flower's strategies release, by FedVeil's accountants, in a journal that outlives the process.

    ``accountant`` is ``rdp`` or ``pld`` (tight), or another of FedVeil's. With a ``journal`` every release is on the
    disk before the new model leaves the strategy, and a strategy that starts again under the same journal goes on
    counting where it stopped. Unit: a whole client; observer: the public, which sees the models, and not the server.
    """

    def __init__(self, config: PrivacyConfig, *, accountant: str = "pld", journal: str | Path | None = None) -> None:
        epsilon((), config.target_delta, accountant)  # refuses an accountant that there is not
        self._meaning, self._accountant = _Meaning(config), accountant
        self._ledger = Ledger() if journal is None else Ledger.replay(Path(journal))
        self._check_journal()
        self._mark = f"{config!r}"
        if any(entry.fingerprint != self._mark for entry in self._ledger.entries):
            raise Refused(
                f"{journal}: it was charged under another configuration; go on with that one, or begin another journal"
            )

    @property
    def config(self) -> PrivacyConfig:
        """What is counted: δ, the population, neighbours, how clients are drawn, the budget."""
        return self._meaning.config

    @property
    def num_releases(self) -> int:
        """Releases so far."""
        return sum(line.release.count for line in self._lines())

    def compose(self, event: GaussianPrivacyEvent, count: int = 1) -> None:
        """Charge ``count`` releases; with a journal they are on the disk when this returns."""
        self.charge([self._meaning.line(event, count, self._next)])

    def charge(self, lines: Sequence[Line]) -> None:
        """Charge releases of one round in FedVeil's own words, as :class:`FedVeilStrategy` does."""
        number = self._next
        stamped = [replace(line, release=replace(line.release, round=number)) for line in lines]
        self._ledger.charge(number, stamped, self._mark)

    def get_epsilon(self, delta: float) -> float:
        """ε of everything so far at this δ."""
        return epsilon(self._events(), delta, self._accountant)

    def get_delta(self, epsilon: float) -> float:
        """The smallest δ (to a thousandth of its logarithm) at which everything so far costs no more than this ε."""
        if isinstance(epsilon, bool) or not (math.isfinite(epsilon) and epsilon >= 0):
            raise ValueError(f"epsilon: {epsilon!r} is not allowed; give a finite number, 0 or above")
        if not self._events():
            return 0.0
        low, high = math.log(1e-250), math.log(1 - 1e-12)
        if self.get_epsilon(math.exp(high)) > epsilon:
            return 1.0
        for _ in range(HALVINGS):
            if high - low < 1e-3:
                break
            middle = (low + high) / 2
            low, high = (low, middle) if self.get_epsilon(math.exp(middle)) <= epsilon else (middle, high)
        return math.exp(high)

    def get_privacy_spent(self, delta: float | None = None) -> PrivacySpent:
        """What has been spent, in Flower's words."""
        delta = self.config.target_delta if delta is None else delta
        return PrivacySpent(self.get_epsilon(delta), delta, self.num_releases, self._accountant)

    def would_exceed(self, event: GaussianPrivacyEvent, max_epsilon: float | None = None, count: int = 1) -> bool:
        """Whether ``count`` more releases would cost more than the budget; nothing is charged."""
        return self.exceeded_by([self._meaning.line(event, count, self._next)], max_epsilon)

    def exceeded_by(self, lines: Sequence[Line], max_epsilon: float | None = None) -> bool:
        """The same for lines of FedVeil's."""
        limit = self.config.max_epsilon if max_epsilon is None else max_epsilon
        if limit is None:
            raise ValueError("max_epsilon: there is no budget; give one in PrivacyConfig, or here")
        if isinstance(limit, bool) or not (math.isfinite(limit) and limit > 0):
            raise ValueError(f"max_epsilon: {limit!r} is no budget; give a finite number above 0")
        events = tally([*self._events(), *(self._event(line) for line in lines)])
        return epsilon(events, self.config.target_delta, self._accountant) > limit

    def state_dict(self) -> dict[str, object]:
        """Everything in plain JSON values."""
        releases = [[line.to_json() for line in entry.lines] for entry in self._ledger.entries]
        return {"schema_version": SCHEMA, "backend": "fedveil", "config": self._mark, "releases": releases}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a saved state; where a journal is kept, it must tell the same story already."""
        if state.get("schema_version") != SCHEMA or state.get("backend") != "fedveil":
            raise ValueError("state: it was not saved by this accountant; give what its state_dict returned")
        if state.get("config") != self._mark:
            raise ValueError("state: it was saved under another configuration; give the accountant the same one")
        fresh = Ledger()
        try:
            for number, lines in enumerate(state["releases"], 1):
                fresh.charge(number, [Line.from_json(line, number) for line in lines], self._mark)
        except (KeyError, TypeError) as problem:
            raise ValueError(f"state: it is damaged ({problem}); give what state_dict returned") from None
        if self._ledger.path is None:
            self._ledger = fresh
        elif [entry.lines for entry in fresh.entries] != [entry.lines for entry in self._ledger.entries]:
            raise ValueError(f"state: {self._ledger.path} tells another story; go on with the journal alone")

    @property
    def _next(self) -> int:
        return len(self._ledger.entries) + 1

    def _lines(self) -> list[Line]:
        return [line for entry in self._ledger.entries for line in entry.lines]

    def _event(self, line: Line) -> Event:
        return event_of(line.release, line.sampling, self._meaning.adjacency)

    def _events(self) -> list[Event]:
        return [self._event(line) for line in self._lines()]

    def _check_journal(self) -> None:
        check_delta(self.config.target_delta)
        if self._ledger.path is not None and not self._ledger.path.absolute().parent.is_dir():
            raise Refused(f"journal: there is no folder {self._ledger.path.absolute().parent}; create it first")
