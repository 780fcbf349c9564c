"""The ledger at work in a run: plan a round, charge it before it starts, check that it did what was charged."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import orjson
import torch

from fedveil.aggregate.mean import Mean
from fedveil.core.errors import Refused
from fedveil.core.parts import Calculating, Transport
from fedveil.core.scale import Scale
from fedveil.core.stage import Release
from fedveil.core.streams import stream
from fedveil.local.attackers import Attackers
from fedveil.privacy.averaging import Averaging
from fedveil.privacy.claims import Accounts
from fedveil.privacy.clip import ClipEach
from fedveil.privacy.ledger import Entry, Ledger, Line
from fedveil.privacy.noise import Gaussian, PerClient
from fedveil.privacy.rng import secure_generator
from fedveil.privacy.statement import Statement
from fedveil.privacy.weightwise import Shuffled, weightwise
from fedveil.runtime.checkpoint import Progress
from fedveil.runtime.folder import Folder
from fedveil.runtime.planning import Planner
from fedveil.runtime.prepare import LEAK, Training
from fedveil.transport.shuffle import Shuffle


class Bookkeeper:
    """Keeps the ledger of one run; without a mechanism its lines say that nothing was released under one."""

    def __init__(self, training: Training, folder: Folder, progress: Progress) -> None:
        self.folder, self.training = folder, training
        self.planner = Planner(training)
        self.privacy = training.settings.privacy
        self.ledger = Ledger.replay(folder.ledger)
        if progress.ledger not in self.ledger.heads:
            raise Refused(
                f"{folder.ledger}: it does not hold what was charged up to round {progress.round}; the ledger was lost "
                "or changed, and no claim can be made"
            )
        self.fingerprint = fingerprint(training)
        self._settle(progress)
        self.accounts = self.planner.accounts()
        for entry in self.ledger.entries:  # an interrupted attempt counts like any other
            self.accounts.add(entry.lines)

    def _settle(self, progress: Progress) -> None:
        """What was charged after the checkpoint: forgotten where it will be released again unchanged, else it stays."""
        entries, private = self.ledger.entries, self.training.method.private
        if any(e.fingerprint != self.fingerprint for e in entries) and (private or any(e.lines for e in entries)):
            raise Refused(
                "resume: settings, method, model or data are not those under which this run was charged so far, "
                "so that no claim would hold; resume it unchanged (rounds and privacy.epsilon in config.yaml may "
                "grow), or start a new run"
            )
        lost = sorted({e.round for e in entries if e.round > progress.round})
        if self.privacy.rng == "seeded" and not self._drifts(progress.round, lost):
            self.ledger.forget(progress.ledger)
            return
        for number in lost:
            self.ledger.interrupted(number)

    def _drifts(self, done: int, lost: Sequence[int]) -> bool:
        """Whether rounds that run again come to other moves, on which the same noise must not stand once more.

        Servers that compute on shares round at random. The first round after the checkpoint has the same uploads all
        the same; those behind it have not.
        """
        method = self.training.method
        return method.private and isinstance(method.transport, Calculating) and any(n > done + 1 for n in lost)

    def afford(self, lines: Sequence[Line]) -> str | None:
        """None when the budget covers these lines as well; otherwise the reason why the round is not run."""
        return self.planner.refusal(self.accounts, lines, first=not any(e.lines for e in self.ledger.entries))

    def charge(self, number: int, lines: Sequence[Line]) -> None:
        """Write the round into the ledger; from here on it is spent."""
        stamped = [replace(x, release=replace(x.release, round=number)) for x in lines]
        self.ledger.charge(number, stamped, self.fingerprint)
        self.accounts.add(stamped)

    def check(self, lines: Sequence[Line], made: Sequence[Release]) -> None:
        """The releases of a round must be those that were charged; anything else is a bug, and no claim holds."""
        planned: Counter[tuple[Any, ...]] = Counter()
        for line in lines:
            for client in line.clients if line.clients is not None else (None,):
                planned[_kind(line.release), client] += line.release.count
        alike: Counter[tuple[Any, ...]] = Counter()
        for release in made:
            alike[_kind(release), release.clients] += release.count
        actual: Counter[tuple[Any, ...]] = Counter()
        for (kind, clients), count in alike.items():
            for client in clients if clients is not None else (None,):
                actual[kind, client] += count
        if planned != actual:
            raise RuntimeError(f"ledger: a round released {dict(actual - planned)} that was not charged as such")

    def streams(self, what: str, number: int, cohort: Sequence[int]) -> list[np.random.Generator]:
        """A stream for each client: of its ``noise``, or of its ``batches``, whose draw must be as secret.

        A round that is charged once more, since its first attempt was lost, has streams of its own.
        """
        if self.training.method.private and self.privacy.rng == "seeded":
            lost = sum(e.round == number and e.status == "interrupted" for e in self.ledger.entries)
            what = f"{what}, attempt {lost + 1}" if lost else what
        return client_streams(self.training, what, number, cohort)

    def server_noise(self, number: int) -> np.random.Generator:
        """The stream of the server's noise."""
        if self.privacy.rng == "secure" and self.training.method.private:
            return secure_generator()
        return stream(self.training.settings.seed, "server noise", number)

    @property
    def claims(self) -> bool:
        """Whether anything is claimed at all."""
        tampered = self.training.settings.audit.noise != 1
        return self.training.method.private and not self.training.method.allow_leak and not tampered

    def spent(self) -> dict[str, Any] | None:
        """ε so far, for the round's record: the headline claim; by rdp where the accountant asked for is pld."""
        if not self.claims:
            return None
        name = "rdp" if self.privacy.accountant == "pld" else self.privacy.accountant
        return self._headline(self.accounts.spent(self.planner.observer, self.planner.unit, (), name), name)

    def final(self) -> dict[str, Any] | None:
        """The headline claim of the statement, by the accountant that was asked for."""
        if not self.claims:
            return None
        return self._headline(self.accounts.tight(self.planner.observer, self.planner.unit), self.privacy.accountant)

    def _headline(self, value: float, accountant: str) -> dict[str, Any]:
        out = {
            "epsilon": value,
            "observer": self.planner.observer,
            "unit": self.planner.unit,
            "budget": self.planner.budget,
        }
        return out | {"delta": self.privacy.delta, "accountant": accountant}

    def cohort_draw(self) -> np.random.Generator | None:
        """Where the cohort comes from: the seed, unless a secret draw of clients is what the claim rests on."""
        return secure_generator() if self.planner.secret_cohorts else None

    def rounds_left(self) -> int | None:
        """How many more rounds the budget covers for the client that has spent most, were it in all of them."""
        privacy, accounts, budget = self.privacy, self.accounts, self.planner.budget
        if budget is None or not self.training.method.private:
            return None
        from fedveil.privacy.search import rounds_left

        client = accounts.worst_client(self.planner.unit) or 0
        coming = accounts.events(self.planner.lines([client], {}), self.planner.unit)
        return rounds_left(accounts.tally(self.planner.unit, client), coming, budget, privacy.delta, privacy.accountant)

    def statement(self, notes: Sequence[str]) -> Statement:
        """The privacy statement of what has been charged so far."""
        missed = any(event.get("excluded") or event.get("missing") for event in self.folder.read_events())
        return state(self.planner, self.accounts, self.ledger.entries, notes, missed=missed)


def client_streams(training: Training, what: str, number: int, cohort: Sequence[int]) -> list[np.random.Generator]:
    """A stream for each client that belongs to (round, client), or a secret one where the run asks for such."""
    if training.settings.privacy.rng == "secure" and training.method.private:
        return [secure_generator() for _ in cohort]
    return [stream(training.settings.seed, what, number, k) for k in cohort]


PROVED = (
    "one local step and a plain mean: the public sees the sum of the cohort's noises, one participant knows its own"
)
NOMINAL = (
    "nominal: as if the noises of a cohort averaged out for the public in every local step (claimed in the manner of "
    "Noble et al. 2022); proved only for one step, no drift correction, equal noise and a plain mean"
)


def averaging(training: Training, *, missed: bool = False) -> Averaging | None:
    """What can be said about a cohort's noises towards the public; None where no noise stands in the steps.

    None as well where a mean may lack somebody's noise: where uploads were ``missed``, where only a sum arrives
    (clients may have dropped out of it), and under attack.
    """
    method, batching = training.method, training.batching
    if missed or training.attackers is not None or "each" not in method.transport.reveals:
        return None
    stages = tuple(method.on_step)
    noisy = [s for s in stages if isinstance(s, Gaussian)]
    if not noisy or method.weights != "uniform" or not isinstance(method.aggregate, Mean):
        return None
    one = all(batching.steps_for(int(n)) == 1 for n in set(training.federation.sizes.tolist()))
    linear = all(isinstance(s, ClipEach | Gaussian | Scale) for s in stages) and not method.on_delta.stages
    equal = not any(isinstance(s.multiplier, PerClient) for s in noisy)
    proved = one and linear and equal and not method.on_upload.stages and not method.local.remembers
    return Averaging("proved", PROVED) if proved else Averaging("nominal", NOMINAL)


def state(
    planner: Planner, accounts: Accounts, entries: Sequence[Entry], notes: Sequence[str], *, missed: bool = False
) -> Statement:
    """The statement that these charges support under this method; ``missed``: some uploads did not arrive."""
    method, privacy = planner.training.method, planner.training.settings.privacy
    notes = (*method.transport.remarks(planner.training.cohort), *notes)
    if method.allow_leak:
        return Statement.void(LEAK, notes)
    summed = "each" not in method.transport.reveals
    averages = averaging(planner.training, missed=missed)
    servers = method.transport.observers if isinstance(method.transport, Calculating) else ()
    statement = Statement.of(
        accounts, entries, notes, rng=privacy.rng, averaging=averages, summed=summed, servers=servers
    )
    told = shuffled(method.transport, planner.training.attackers)
    return weightwise(statement, entries, privacy.delta, told)


def shuffled(transport: Transport, attackers: Attackers | None = None) -> Shuffled | None:
    """What the statement says about the shuffler, where there is one; simulated attackers are no crowd to hide in."""
    if not isinstance(transport, Shuffle):
        return None
    told = Shuffled(transport.split == "weight", transport.least, transport.seal)
    return told if attackers is None else replace(told, attackers=attackers.among)


MANY = 1000
"""In larger populations, the data of this many clients, evenly spread, stands for all."""
UNSHAPING = ("rounds", "out", "overrides", "cwd", "evaluate", "checkpoint", "stop", "data", "privacy", "runtime")
"""Settings that change nothing of what a round releases (data is compared by content, privacy.rng by itself)."""


def fingerprint(training: Training) -> str:
    """A digest of everything that shapes releases; equal in every process that would release the same values."""
    federation, settings = training.federation, training.settings
    data = hashlib.blake2b(federation.sizes.tobytes(), digest_size=16)
    if training.method.private:
        for client in np.linspace(0, federation.population - 1, min(federation.population, MANY)).astype(int):
            examples = federation.train(int(client))
            data.update(np.ascontiguousarray(examples.x.numpy()).data)
            data.update(np.ascontiguousarray(examples.y.numpy()).data)
    method = re.sub(r" at 0x[0-9a-f]+", "", repr(training.method))
    parts: list[Any] = [
        {k: v for k, v in training.config.items() if k not in UNSHAPING},
        settings.privacy.rng,
        method,
        training.threads,
        training.cohort,
        torch.__version__,
        training.initial_digest,
        data.hexdigest(),
    ]
    return hashlib.blake2b(orjson.dumps(parts, default=str), digest_size=16).hexdigest()


def _kind(release: Release) -> tuple[Any, ...]:
    ratio = float(f"{release.noise_std / release.bound:.9g}")
    return release.unit, release.mechanism, ratio, release.slot, release.channel
