"""The duo transport: two servers sense and carry out rules on uploads that neither can see (SPEC 7)."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedveil.core.errors import Aborted, Refused, one_of, positive
from fedveil.core.parts import MOVE, Aggregator, Delivery, Opened, View
from fedveil.core.signal import Signal
from fedveil.core.stage import Context
from fedveil.transport.duo.dealer import deal, read_client
from fedveil.transport.duo.given import CLIENTS, Given
from fedveil.transport.duo.lattice import ring
from fedveil.transport.duo.parameters import MOST, OPENED, VECTORS, Plan
from fedveil.transport.duo.rules import RULES
from fedveil.transport.duo.seen import TOLD, Row, table
from fedveil.transport.duo.serving import CALIBRATED, SOURCE, read_aloud
from fedveil.transport.duo.session import Outcome, Session
from fedveil.transport.duo.wire import Lost
from fedveil.transport.he.ring import Floats
from fedveil.transport.masks.rejected import Rejected

KEPT = 1000
"""Rounds that keys dealt in memory are for, where the ring allows as many; then new ones are dealt."""


@dataclass(frozen=True)
class Duo:
    """Uploads are encrypted; S1 and S2 hold shares of everything, and open what the controller reads to S1.

    keys
        a folder of ``fedveil keys duo``; None: the key centre deals when a run begins, in memory.
    processes
        whether S1 and S2 are processes of their own.
    delivery
        how the result reaches clients: each server's share (``shares``), or by collective key ``switch``.
    norm_bound
        the longest upload that counts, a longer one counts as zeros; None: R = clip + s(√d + √(2 ln(nT/β))) with s
        the deviation of the clients' noise (SPEC 7.4), T ``rounds`` and β ``beta``.
    hide_s
        whether S stays on shares where H is opened, instead of being opened with it.
    retries, patience
        how often a round is begun again after a server was lost, and after how many silent seconds it counts as lost.
    clip, noise_std
        what a method's clients do to an upload; a recipe fills them in.
    apart
        whether S1, S2 and the key centre are on nodes of their own; the runtime fills it in.
    """

    keys: str | None = None
    processes: bool = False
    delivery: Literal["shares", "switch"] = "shares"
    norm_bound: float | None = None
    rounds: int = 10_000
    beta: float = 1e-6
    hide_s: bool = False
    retries: int = 1
    patience: float = 600.0
    clip: float | None = None
    noise_std: float = 0.0
    apart: bool = False

    def __post_init__(self) -> None:
        one_of("transport.delivery", self.delivery, ("shares", "switch"))
        positive(**{"transport.rounds": self.rounds, "transport.patience": self.patience})
        if not 0 < self.beta < 1:
            raise Refused(f"transport.beta: {self.beta} is no probability; give more than 0, less than 1")
        if self.norm_bound is not None:
            positive(**{"transport.norm_bound": self.norm_bound})
        if self.retries < 0:
            raise Refused(f"transport.retries: {self.retries} is no number of times; give 0 or more")

    @property
    def name(self) -> str:
        """As it is called on the command line."""
        return "transport=duo"

    @property
    def reveals(self) -> frozenset[View]:
        """No upload, nor their sum."""
        return frozenset()

    @property
    def opens(self) -> frozenset[str]:
        """Sums over the uploads, and the entropy of their deviations."""
        return CALIBRATED | SOURCE

    @property
    def observers(self) -> tuple[str, ...]:
        """The two servers."""
        return ("S1", "S2")

    def longest(self, dim: int, clients: int) -> float:
        """The norm that an upload may have.

        An honest one is above R with probability at most β/(nT): of N(0, s²I) the norm passes s(√d + t) with
        probability at most exp(−t²/2).
        """
        if self.norm_bound is not None:
            return self.norm_bound
        if self.clip is None:
            raise Refused(
                "transport.norm_bound: an upload without a clip may have any length, and two servers need to know the "
                "longest that counts; give transport.norm_bound, or a move_norm to clip by"
            )
        return self.clip + self.noise_std * (
            math.sqrt(dim) + math.sqrt(2 * math.log(clients * self.rounds / self.beta))
        )

    def serves(self, rule: Aggregator) -> str | None:
        """Mean, trimmed mean, Krum, and one step of centered clipping with the median radius."""
        name = rule_name(rule)
        if name not in RULES:
            return f"on shares there are {', '.join(RULES)}, with nothing before them"
        if name == "centered_clipping" and getattr(rule, "iterations", 1) != 1:
            return "the servers take one step; set aggregate.iterations=1"
        if getattr(rule, "tau", None) is not None:
            return "the servers take the median deviation as its radius; leave aggregate.tau out"
        return None

    def remarks(self, cohort: int) -> list[str]:
        """Who is trusted with what."""
        ring(VECTORS)  # refuses where TenSEAL is missing
        if not 2 <= cohort <= MOST:
            raise Refused(f"cohort: {cohort} uploads cannot be aggregated by two servers; give 2 to {MOST}")
        self.longest(1, cohort)
        if self.keys is not None and (room := read_client(Path(self.keys) / CLIENTS).plan.clients) < cohort:
            raise Refused(
                f"transport.keys: {self.keys} is for {room} clients, and {cohort} take part in a round; make new keys"
            )
        dealt = ", in this process" if self.keys is None else f" into {self.keys}, and must have left"
        where = "each in a process of its own" if self.processes else "as threads of it"
        if self.apart:
            dealt, where = " on its node, anew in each round", "each on a node of its own, over sealed messages"
        return [
            "Two servers: uploads are encrypted (CKKS, 128-bit security), S1 and S2 hold shares of them, and open to "
            "S1 the numbers that its detector reads, as the leakage table of the report lists them. Neither learns an "
            "upload, a distance, a rank or which client was chosen, while both follow the protocol and do not work "
            "together; a server that deviates is not caught. Opened numbers are made of uploads as they left the "
            "clients: the clients' own noise covers them, where there is any, and nothing else does. The key centre "
            f"knows all that it dealt{dealt}; in this simulation S1 and S2 ran {where}."
        ]

    def carry(self, uploads: Mapping[str, Signal], weights: Tensor, ctx: Context) -> Delivery:
        """There is no journey without a rule."""
        raise TypeError("the two servers carry a rule out; call calculate")

    def calculate(
        self,
        uploads: Mapping[str, Signal],
        weights: Tensor,
        ctx: Context,
        reads: frozenset[str],
        rules: Sequence[Aggregator],
        decide: Callable[[Opened, int], Aggregator],
    ) -> Delivery:
        """Seal, sense, decide, carry out, put together; a round in which a server is lost is begun again."""
        if set(uploads) != {MOVE}:
            others = ", ".join(sorted(set(uploads) - {MOVE}))
            raise Refused(
                f"transport: two servers carry one vector of each client, and this model sends {others} as well; "
                "set batch_norm=group_norm"
            )
        signal, reads = uploads[MOVE], reads - {"S"} if self.hide_s else reads
        key = (self, self.plan(signal.rows, signal.dim, rules), bool(reads & SOURCE))
        frames, seats, excluded = sealed(_session(*key), signal.value.detach().double().cpu().numpy())
        if len(seats) < 2:
            raise Aborted(f"{len(seats)} clients sent an upload that can be used; two servers need 2 or more")
        reference = None if ctx.previous is None else ctx.previous[0].detach().double().cpu().numpy()

        opened_so_far: list[Row] = []

        def rule(opened: Mapping[str, float], clients: int) -> str:
            opened_so_far.extend(read_aloud(opened))
            ctx.log["leakage"] = table({"S1": opened_so_far})  # whatever comes of the round
            return named(decide(opened, clients), clients)

        outcome, lost = self._tried(key, frames, reads, rule, reference, ctx.round)
        excluded |= {seats[seat]: why for seat, why in outcome.refused.items()}
        if excluded:
            told = [{"client": ctx.clients[row], "why": why} for row, why in sorted(excluded.items())]
            ctx.log["excluded"] = [*ctx.log.get("excluded", []), *told]
        arrived = [seats[seat] for seat in outcome.seats]
        earlier = opened_so_far[: len(opened_so_far) - len(reads)]
        ctx.log["leakage"] = [*table({"": outcome.seen}, earlier), *announced(ctx)]
        ctx.log["duo"] = {"arrived": len(arrived), "between_servers": outcome.between, "lost": lost}
        value = torch.from_numpy(np.ascontiguousarray(outcome.result))[None, :].to(signal.value)
        kept = None if len(arrived) == signal.rows else torch.tensor(arrived)
        return Delivery({MOVE: value}, sum(map(len, frames)), kept, 1.0)

    def plan(self, clients: int, dim: int, rules: Sequence[Aggregator]) -> Plan:
        """What everybody knows beforehand: keys are dealt for it."""
        room = min(MOST, max(2, 1 << (clients - 1).bit_length()))
        byzantine = max((getattr(rule, "byzantine", 0) for rule in rules), default=0)
        blocks = -(-dim // VECTORS.degree)
        most = 2**OPENED // (room * blocks * VECTORS.degree)
        return Plan(room, dim, self.longest(dim, room), byzantine, min(KEPT, most))

    def _tried(
        self,
        key: Key,
        frames: list[bytes],
        reads: frozenset[str],
        rule: Callable[[dict[str, float], int], str],
        reference: Floats | None,
        number: int,
    ) -> tuple[Outcome, int]:
        """The round, begun again where a server was lost, and how often one was."""
        lost = 0
        while True:
            session = _session(*key)
            try:
                done = session.round(frames, reads, rule, reference=reference, delivery=self.delivery, number=number)
                return done, lost
            except BaseException as why:
                _replace(key, session)
                if isinstance(why, Rejected):
                    raise Aborted(f"a server said what it should not ({why}); the model stays") from None
                if not isinstance(why, Lost):
                    raise
                lost += 1
                if lost > self.retries:
                    raise Aborted(f"{why}; the model is that of the last complete round") from None


def announced(ctx: Context) -> list[Row]:
    """Who was told about the noise of the next round, where a controller said anything."""
    if "noise" not in ctx.log:
        return []
    row = {"what": "how many times the noise, in the next round", "value": ctx.log["noise"]["next"]}
    return [{"party": "S1", **row, "how": "its own decision"}, {"party": "clients", **row, "how": TOLD}]


def named(rule: Aggregator, clients: int) -> str:
    """How a rule is called among servers, if so many uploads are enough for it."""
    if clients < rule.least:
        raise Aborted(
            f"{rule_name(rule)} needs {rule.least} uploads, and {clients} came; lower declared_f, or let more clients "
            "take part"
        )
    return rule_name(rule)


def rule_name(rule: Aggregator) -> str:
    """How a rule is called among servers."""
    return str(getattr(rule, "name", type(rule).__name__.lower()))


def sealed(session: Session, rows: Floats) -> tuple[list[bytes], list[int], dict[int, str]]:
    """The frames of those who have one to send, and who has none: numbers beyond all keys have no encryption."""
    frames, seats, without = list[bytes](), list[int](), dict[int, str]()
    for place, row in enumerate(rows):
        try:
            frames.append(session.sealer(row))
            seats.append(place)
        except Refused as why:
            without[place] = str(why).split(";")[0]
    return frames, seats, without


Key = tuple[Duo, Plan, bool]
_sessions: dict[Key, Session] = {}
_lock = threading.Lock()
SESSIONS = 2
"""Pairs of servers that are kept at work; more of them are for other plans, or other runs."""


def _session(duo: Duo, plan: Plan, entropy: bool) -> Session:
    """The servers of this plan: those that are at work, or new ones with new keys."""
    with _lock:
        key = (duo, plan, entropy)
        if duo.keys is None and key in _sessions and _sessions[key].rounds >= _sessions[key].plan.rounds:
            _sessions.pop(key).close()
        if key not in _sessions:
            while len(_sessions) >= SESSIONS:
                _sessions.pop(next(iter(_sessions))).close()
            given = Given.fresh(deal(plan, entropy=entropy)) if duo.keys is None else _kept(duo.keys, plan)
            _sessions[key] = Session(given, processes=duo.processes, patience=duo.patience)
        return _sessions[key]


def _kept(folder: str, plan: Plan) -> Given:
    """Keys from a folder, which must be for what this run needs."""
    given = Given.kept(Path(folder))
    theirs = given.clients.plan
    if theirs.length != plan.length:
        raise Refused(
            f"transport.keys: {folder} is for {theirs.length:,} parameters, and the model has {plan.length:,}"
        )
    if plan.byzantine and theirs.byzantine != plan.byzantine:
        raise Refused(
            f"transport.keys: {folder} is for declared_f={theirs.byzantine}, and this run has {plan.byzantine}; make "
            "new keys, or change declared_f"
        )
    if theirs.bound < plan.bound * (1 - 1e-9):
        raise Refused(
            f"transport.keys: {folder} is for uploads of norms up to {theirs.bound:g}, and honest ones reach "
            f"{plan.bound:g} here; make new keys with `--bound {plan.bound:.6g}`"
        )
    return given


def _replace(key: Key, session: Session) -> None:
    """A session that failed is over; new servers take its keys."""
    with _lock:
        session.close()
        if _sessions.get(key) is session:
            _sessions[key] = session.again()
