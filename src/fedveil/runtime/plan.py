"""What a run would do, without doing it: noise, epsilon, affordable rounds, time (``fedveil run ... --plan``)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch

from fedveil.core.errors import Aborted
from fedveil.core.round import arrive, depart
from fedveil.core.stage import Context
from fedveil.core.streams import stream
from fedveil.privacy.claims import Accounts
from fedveil.privacy.ledger import Entry
from fedveil.privacy.statement import Statement
from fedveil.runtime.accounting import state
from fedveil.runtime.evaluate import test_scores
from fedveil.runtime.planning import Planner
from fedveil.runtime.prepare import Training


@dataclass(frozen=True)
class Noise:
    """One mechanism of a round: where it stands, what it protects, and how much it adds over all clients."""

    slot: str
    mechanism: str
    unit: str
    bound: tuple[float, float]
    multiplier: tuple[float, float]
    std: tuple[float, float]
    times: tuple[int, int]
    """Releases per client and round."""


@dataclass(frozen=True)
class Plan:
    """Everything that ``--plan`` prints.

    ``rounds`` is how many of the ``asked`` rounds the budget covers, ``affordable`` how many it would cover at least
    (exactly, where ``ends``; None without a budget); ``statement`` is that of a run of ``rounds``; ``seconds`` is an
    estimate from a trial round, or a second one if the first is short; nothing of them is kept.
    """

    opening: tuple[str, ...]
    noise: tuple[Noise, ...]
    asked: int
    rounds: int
    affordable: int | None
    ends: bool
    stopped: str | None
    statement: Statement
    seconds: float


def plan(training: Training) -> Plan:
    """Walk through all rounds on paper: the same lines, accounts and budget as in the run."""
    planner, rounds = Planner(training), training.settings.rounds
    accounts, entries, stopped = planner.accounts(), list[Entry](), None
    for number in range(1, rounds + 1):
        lines = planner.lines(planner.cohort(number), {})
        stopped = planner.refusal(accounts, lines, first=number == 1)
        if stopped:
            break
        accounts.add(lines)
        entries.append(Entry(number, lines))
    statement = state(planner, accounts, entries, ())
    seconds = _trial(training, planner) * len(entries)
    affordable, ends = (len(entries), True) if stopped else _beyond(planner, accounts, rounds)
    opening, noise = tuple(training.opening), _noise(planner)
    return Plan(opening, noise, rounds, len(entries), affordable, ends, stopped, statement, seconds)


FURTHER = 1000
"""So many rounds beyond those that were asked for are looked at."""


def _beyond(planner: Planner, accounts: Accounts, rounds: int) -> tuple[int | None, bool]:
    """How many rounds the budget covers, and whether it covers no more; the accounts are charged with them."""
    privacy = planner.training.settings.privacy
    if planner.budget is None or not planner.training.method.private:
        return None, False
    quick = "rdp" if privacy.accountant == "pld" else privacy.accountant  # pld is slow, and allows more at most
    for number in range(rounds + 1, rounds + FURTHER + 1):
        lines = planner.lines(planner.cohort(number), {})
        if lines and accounts.spent(planner.observer, planner.unit, lines, quick) > planner.budget:
            return number - 1, quick == privacy.accountant
        accounts.add(lines)
    return rounds + FURTHER, False


def _noise(planner: Planner) -> tuple[Noise, ...]:
    """One line per mechanism, with the least and the most over clients."""
    if not planner.training.method.private:
        return ()
    cohorts = range(planner.training.federation.population)
    lines = planner.lines(cohorts, {})
    kinds = dict.fromkeys((x.release.slot, x.release.mechanism, x.release.unit, x.release.channel) for x in lines)
    found = []
    for kind in kinds:
        alike = [
            x.release for x in lines if (x.release.slot, x.release.mechanism, x.release.unit, x.release.channel) == kind
        ]
        found.append(
            Noise(
                *kind[:3],
                _span([r.bound for r in alike]),
                _span([r.noise_std / r.bound for r in alike]),
                _span([r.noise_std for r in alike]),
                _counts([r.count for r in alike]),
            )
        )
    return tuple(found)


def _span(values: Sequence[float]) -> tuple[float, float]:
    return min(values), max(values)


def _counts(values: Sequence[int]) -> tuple[int, int]:
    return min(values), max(values)


SHORT = 5.0
"""Seconds from which a trial round is not repeated: what is set up only once weighs little in it."""


def _trial(training: Training, planner: Planner) -> float:
    """Seconds of one round, by doing it; nothing of it is kept."""
    before = torch.get_num_threads()
    torch.set_num_threads(training.threads)
    try:
        first = _one_round(training, planner)
        return first if first >= SHORT else _one_round(training, planner)
    finally:
        torch.set_num_threads(before)


def _one_round(training: Training, planner: Planner) -> float:
    method, seed = training.method, training.settings.seed
    cohort = planner.cohort(1) or [0]
    started = time.perf_counter()
    server = training.start()
    memory = torch.zeros(len(cohort), server["w"].numel()).to(server["w"]) if method.local.remembers else None
    streams = [stream(seed, "trial", k) for k in cohort]
    ctx = Context(
        1,
        training.objective.layout,
        cohort,
        streams,
        server=stream(seed, "trial"),
        batches=streams,
        weights=server["w"],
        chance=stream(seed, "trial", "chance"),
    )
    with torch.random.fork_rng(devices=[]):
        moves = training.engine.train(method, server, method.local.drift(memory, server), ctx)
    with suppress(Aborted):  # it takes its time all the same
        uploads, _ = depart(method, moves, memory, server, ctx)
        arrive(method, uploads, training.shares(cohort, moves), server, ctx)
    trained = time.perf_counter() - started
    test_scores(training, server)
    return trained + (time.perf_counter() - started - trained) / training.settings.evaluate.every
