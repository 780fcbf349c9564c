"""The ledger at work in a run: plan a round, charge it before it starts, check that it did what was charged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from fedveil.core.errors import Refused
from fedveil.core.parts import State
from fedveil.core.signal import Unit
from fedveil.core.stage import Release
from fedveil.core.streams import stream
from fedveil.privacy.claims import Accounts, Observer
from fedveil.privacy.events import Poisson, Sampling, WithoutReplacement
from fedveil.privacy.ledger import Ledger, Line, lines_of
from fedveil.privacy.rng import secure_generator
from fedveil.privacy.statement import Statement
from fedveil.runtime.folder import Folder
from fedveil.runtime.prepare import Training


class Bookkeeper:
    """Keeps the ledger of one run; a run without a mechanism has an empty one."""

    def __init__(self, training: Training, folder: Folder, after: int) -> None:
        self.training = training
        privacy = training.settings.privacy
        self.privacy = privacy
        self._template: list[Release] | None = None
        self.ledger = Ledger.replay(folder.ledger)
        if privacy.rng == "seeded":
            # What ran after the checkpoint runs again with the same noise: the same release, one charge.
            self.ledger.forget(after)
        else:
            for lost in sorted({e.round for e in self.ledger.entries if e.round > after}):
                self.ledger.interrupted(lost)
        self.accounts = Accounts.replay(
            self.ledger.entries,
            delta=privacy.delta,
            local=training.method.local_privacy,
            accountant="rdp",
            adjacency=privacy.adjacency,
        )

    def template(self, server: State) -> list[Release]:
        """What one client (and the server) releases in a round; one entry per local step is counted later."""
        known = self.remembered(server)
        if self._template is None or known:
            layout, method = self.training.objective.layout, self.training.method
            self._template = method.rehearse(layout, self.training.cohort, known)[0] if method.private else []
        return self._template

    @staticmethod
    def remembered(server: State) -> State:
        """What stages with memory know, of all that the server keeps."""
        return {name: value for name, value in server.items() if name.startswith("on_")}

    @property
    def observer(self) -> Observer:
        """The strongest observer that something can be claimed against."""
        return "server" if self.training.method.local_privacy else "public"

    @cached_property
    def unit(self) -> Unit:
        """The unit of the budget: what was asked for, or the strongest one that the method protects."""
        own: Unit = "record" if any(r.unit == "record" for r in self.template({})) else "client"
        asked = self.privacy.unit or own
        if asked == "client" and own == "record":
            raise Refused(
                f"privacy.unit: {self.training.method.name} protects records, not whole clients; "
                "set privacy.unit=record, or use a method that clips whole moves"
            )
        return asked

    def plan(self, cohort: Sequence[int], server: State) -> tuple[Line, ...]:
        """The lines of a coming round with this cohort."""
        releases: list[Release] = []
        for made in self.template(server):
            if made.client is None:
                releases.append(made)
                continue
            for client in cohort:
                count = self._steps(client) if made.slot == "on_step" else 1
                releases.append(replace(made, client=client, count=made.count * count))
        return lines_of(releases, self._samplings(cohort), ("server", "public"))

    def afford(self, lines: Sequence[Line]) -> str | None:
        """None when the budget covers these lines as well; otherwise the reason why the round is not run."""
        budget, accounts = self.privacy.epsilon, self.accounts
        if not lines:
            return None
        if not self.ledger.entries:
            # An accountant that cannot handle these events says so now, and not at the end.
            accounts.spent(self.observer, self.unit, lines, self.privacy.accountant)
        if budget is None:
            return None
        spent = accounts.spent(self.observer, self.unit, lines, "rdp")
        if self.privacy.accountant != "rdp" and (spent > budget or self.privacy.accountant != "pld"):
            spent = accounts.spent(self.observer, self.unit, lines, self.privacy.accountant)
        if spent <= budget:
            return None
        which = "next round" if self.ledger.entries else "first round alone"
        return f"the {which} would spend epsilon {spent:.4g} of {budget:g}"

    def charge(self, number: int, lines: Sequence[Line]) -> None:
        """Write the round into the ledger; from here on it is spent."""
        if lines:
            stamped = [replace(x, release=replace(x.release, round=number)) for x in lines]
            self.ledger.charge(number, stamped)
            self.accounts.add(stamped)

    def check(self, lines: Sequence[Line], made: Sequence[Release]) -> None:
        """The releases of a round must be those that were charged; anything else is a bug, and no claim holds."""
        planned: Counter[tuple[Any, ...]] = Counter()
        for line in lines:
            for client in line.clients if line.clients is not None else (None,):
                planned[_kind(line.release, client)] += line.release.count
        actual: Counter[tuple[Any, ...]] = Counter()
        for release in made:
            actual[_kind(release, release.client)] += release.count
        if planned != actual:
            raise RuntimeError(f"ledger: a round released {dict(actual - planned)} that was not charged as such")

    def noise(self, number: int, cohort: Sequence[int]) -> list[np.random.Generator]:
        """Streams for the clients' noise."""
        if self.privacy.rng == "secure" and self.training.method.private:
            return [secure_generator() for _ in cohort]
        return [stream(self.training.settings.seed, "noise", number, k) for k in cohort]

    def server_noise(self, number: int) -> np.random.Generator:
        """The stream of the server's noise."""
        if self.privacy.rng == "secure" and self.training.method.private:
            return secure_generator()
        return stream(self.training.settings.seed, "server noise", number)

    def spent(self) -> dict[str, Any] | None:
        """ε so far, for the round's record: the headline claim, by RDP, which never understates it."""
        if not self.training.method.private:
            return None
        value = self.accounts.spent(self.observer, self.unit)
        out = {"epsilon": value, "observer": self.observer, "unit": self.unit, "budget": self.privacy.epsilon}
        return out | {"delta": self.privacy.delta}

    def rounds_left(self) -> int | None:
        """How many more rounds the budget covers for the client that has spent most, were it in all of them."""
        privacy, accounts = self.privacy, self.accounts
        if privacy.epsilon is None or not self.training.method.private:
            return None
        from fedveil.privacy.search import rounds_left

        client = accounts.worst_client(self.unit) or 0
        coming = accounts.events(self.plan([client], {}), self.unit)
        return rounds_left(
            accounts.tally(self.unit, client), coming, privacy.epsilon, privacy.delta, privacy.accountant
        )

    def statement(self, notes: Sequence[str]) -> Statement:
        """The privacy statement of what has been charged so far."""
        privacy = self.privacy
        self.accounts.accountant = privacy.accountant
        out = Statement.of(self.accounts, self.ledger.entries, notes, rng=privacy.rng)
        self.accounts.accountant = "rdp"
        return out

    def _steps(self, client: int) -> int:
        return self.training.settings.batching.steps_for(int(self.training.federation.sizes[client]))

    def _samplings(self, cohort: Sequence[int]) -> dict[int | None, Sampling]:
        settings, population = self.training.settings, self.training.federation.population
        by_server: Sampling = (
            Poisson(self.training.cohort / population)
            if settings.selection == "poisson"
            else WithoutReplacement(self.training.cohort, population)
        )
        # Shuffled batches give no amplification; counting every step as a full release is safe.
        return {None: by_server, **dict.fromkeys(cohort)}


def _kind(release: Release, client: int | None) -> tuple[Any, ...]:
    ratio = float(f"{release.noise_std / release.bound:.9g}")
    return release.unit, release.mechanism, ratio, release.slot, release.channel, client
