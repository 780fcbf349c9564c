"""What a round will release, before it runs: the ledger lines of a coming cohort, and claims about whole runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import torch

from fedveil.core.errors import Refused
from fedveil.core.parts import State
from fedveil.core.signal import Unit
from fedveil.core.stage import Release
from fedveil.data.cohorts import draw
from fedveil.local.batches import Batching
from fedveil.privacy.claims import Accounts, Observer
from fedveil.privacy.events import Poisson, Sampling, WithoutReplacement
from fedveil.privacy.ledger import Line, lines_of
from fedveil.privacy.noise import PerClient
from fedveil.runtime.prepare import Training


class Planner:
    """Knows from the recipe, the sizes and the sampling what each client will release; never looks at data."""

    def __init__(self, training: Training) -> None:
        self.training = training
        self._templates: dict[tuple[float, ...], list[Release]] = {}
        self._known: State = {}

    def template(self, server: State, client: int = 0) -> list[Release]:
        """What this client (and the server) releases in a round; one entry per local step is counted later."""
        method, known = self.training.method, remembered(server)
        if not method.private:
            return []
        if known and known is not self._known and not _alike(known, self._known):
            self._known, self._templates = known, {}
        noise = self.own_noise(client)
        if noise not in self._templates:
            layout = self.training.objective.layout
            self._templates[noise] = method.rehearse(layout, self.training.cohort, known, client)[0]
        return self._templates[noise]

    @cached_property
    def _own_noise(self) -> list[PerClient]:
        """Multipliers that differ by client."""
        method = self.training.method
        slots = (method.on_step, method.on_delta, method.on_upload, method.on_mean)
        found = (getattr(stage, "multiplier", None) for slot in slots for stage in slot)
        return [z for z in found if isinstance(z, PerClient)]

    def own_noise(self, client: int) -> tuple[float, ...]:
        """The multipliers that are this client's own, where they differ by client."""
        return tuple(z.values[client] for z in self._own_noise)

    @property
    def observer(self) -> Observer:
        """The strongest observer that something can be claimed against."""
        return "server" if self.training.method.local_privacy else "public"

    @cached_property
    def unit(self) -> Unit:
        """The unit of the budget: what was asked for, or the strongest one that the method protects."""
        own: Unit = "record" if any(r.unit == "record" for r in self.template({})) else "client"
        asked = self.training.settings.privacy.unit or own
        if asked == "client" and own == "record":
            raise Refused(
                f"privacy.unit: {self.training.method.name} protects records, not whole clients; "
                "set privacy.unit=record, or use a method that clips whole moves"
            )
        return asked

    @property
    def budget(self) -> float | None:
        """The epsilon at which the run ends; none where privacy.epsilon is a mechanism's own, per weight and round."""
        training = self.training
        return None if training.method.epsilon_per_weight is not None else training.settings.privacy.epsilon

    def lines(self, cohort: Sequence[int], server: State) -> tuple[Line, ...]:
        """The lines of a coming round with this cohort."""
        releases: list[Release] = [r for r in self.template(server) if r.clients is None]
        for client in cohort:
            for made in self.template(server, client):
                if made.clients is not None:
                    count = self._steps(client) if made.slot == "on_step" else 1
                    releases.append(replace(made, clients=(client,), count=made.count * count))
        samplings = self._samplings(cohort)
        if any(made.pool is not None for made in releases):
            # The noise of a sum tells how many shares are in it: given the number, any draw is one of that size.
            population = self.training.federation.population
            samplings[None] = WithoutReplacement(len(cohort), population) if len(cohort) < population else None
        return lines_of(releases, samplings, ("server", "public"))

    def refusal(self, accounts: Accounts, lines: Sequence[Line], *, first: bool) -> str | None:
        """None when the budget covers these lines as well; otherwise the reason why a round is not run."""
        privacy = self.training.settings.privacy
        if not lines:
            return None
        if first:  # an accountant that cannot handle these events says so now, and not at the end
            accounts.spent(self.observer, self.unit, lines, privacy.accountant)
        if self.budget is None:
            return None
        # pld is never above rdp, and slow: it is asked only when rdp says no.
        spent = accounts.spent(self.observer, self.unit, lines, "rdp") if privacy.accountant == "pld" else math.inf
        if spent > self.budget:
            spent = accounts.spent(self.observer, self.unit, lines, privacy.accountant)
        if spent <= self.budget:
            return None
        which = "first round alone" if first else "next round"
        return f"the {which} would spend epsilon {spent:.4g} of {self.budget:g}"

    @property
    def secret_cohorts(self) -> bool:
        """Whether cohorts must not follow from the seed: the claim towards the public rests on their draw."""
        method = self.training.method
        hidden = method.private and (not method.local_privacy or method.sums_only)
        return hidden and self.training.settings.privacy.rng == "secure"

    def cohort(self, number: int) -> list[int]:
        """The clients of a round, as the run's seed draws them; where they are secret, the same ones every time."""
        if self.secret_cohorts:
            return list(range(self.training.cohort))
        settings, population = self.training.settings, self.training.federation.population
        return [int(k) for k in draw(settings.seed, number, population, self.training.cohort, settings.selection)]

    def accounts(self) -> Accounts:
        """Empty accounts under the run's settings."""
        privacy, method = self.training.settings.privacy, self.training.method
        return Accounts(
            delta=privacy.delta,
            local=method.local_privacy,
            accountant=privacy.accountant,
            adjacency=privacy.adjacency,
            hidden=method.local.remembers and not method.local_privacy,
        )

    @property
    def _batching(self) -> Batching:
        return self.training.batching

    def _steps(self, client: int) -> int:
        return self._batching.steps_for(int(self.training.federation.sizes[client]))

    def _samplings(self, cohort: Sequence[int]) -> dict[int | None, Sampling]:
        settings, sizes = self.training.settings, self.training.federation.sizes
        return {
            None: client_sampling(self.training.cohort, len(sizes), settings.selection),
            **{k: record_sampling(self._batching, int(sizes[k])) for k in cohort},
        }


def client_sampling(cohort: int, population: int, selection: str) -> Sampling:
    """How clients come into a round."""
    if cohort == population:
        return None
    return Poisson(cohort / population) if selection == "poisson" else WithoutReplacement(cohort, population)


def record_sampling(batching: Batching, examples: int) -> Sampling:
    """How a client's records come into a step; shuffled batches give no amplification, so every step counts."""
    if batching.drawing != "poisson" or batching.rate(examples) == 1:
        return None
    return Poisson(batching.rate(examples))


def _alike(one: State, other: State) -> bool:
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


def remembered(server: State) -> State:
    """What stages with memory know, of all that the server keeps."""
    return {name: value for name, value in server.items() if name.startswith("on_")}
