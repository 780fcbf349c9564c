"""A cohort of Flower nodes in the place of clients in this process: the same round, over messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from fedveil.core.errors import Refused
from fedveil.core.parts import MOVE, Moves, State, Uploads
from fedveil.core.round import LEARNED, Arrival, Carry, arrive, depart, nobody
from fedveil.core.stage import Context
from fedveil.privacy.ledger import Line
from fedveil.runtime.accounting import Bookkeeper
from fedveil.runtime.checkpoint import Progress
from fedveil.runtime.flower import encrypted, masked, parties, relay, shuffled
from fedveil.runtime.flower.facts import filled, foresee, travels
from fedveil.runtime.flower.messages import Malformed, Order, Shapes, Trained, decode, encode
from fedveil.runtime.flower.node import PUBLIC, UPPER, kinds, pack_settings
from fedveil.runtime.flower.nodes import Nodes
from fedveil.runtime.inline import Record, sent_down
from fedveil.runtime.prepare import Training
from fedveil.transport.duo.transport import Duo
from fedveil.transport.he import Encrypted
from fedveil.transport.masks import Masks
from fedveil.transport.shuffle import Shuffle

SMALL = 2**20
"""Bytes of a report beside its tensors and frame."""


def check(training: Training) -> None:
    """Refuse what cannot be done by clients that are apart from each other."""
    if training.attackers is not None:
        raise Refused("attack: attackers are simulated in process, where they see each other; set runtime=inline")
    if training.watch is not None:
        raise Refused("audit.canaries: canaries are planted in process; set runtime=inline, or leave them out")
    method = training.method
    if method.on_step.remembers:
        raise Refused("runtime: a stage of on_step learns from one client for the next; set runtime=inline")
    releases = method.rehearse(training.objective.layout, training.cohort)[0]
    if any(r.clients is None and r.slot != "on_mean" for r in releases):
        raise Refused(
            "runtime: a stage with memory counts over all clients of a round, which nodes that are apart cannot; use a "
            "fixed clip, or runtime=inline"
        )
    transport = method.transport
    if isinstance(transport, Masks):
        masked.check(transport)
    elif isinstance(transport, Shuffle):
        shuffled.check(transport)
    elif isinstance(transport, Encrypted):
        encrypted.check(transport)
    elif isinstance(transport, Duo):
        relay.check(transport)
    elif "each" not in transport.reveals:
        raise Refused(
            f"transport: {type(transport).__name__} has no parties on Flower nodes; use transport=plain, masks, he "
            "or shuffle, or set runtime=inline"
        )


def roles(training: Training) -> tuple[str, ...]:
    """Parties beside clients and server, each on a node of its own."""
    transport = training.method.transport
    if isinstance(transport, Encrypted):
        return encrypted.ROLES
    if isinstance(transport, Duo):
        return parties.ROLES
    return (shuffled.ROLE,) if isinstance(transport, Shuffle) else ()


@dataclass(eq=False)
class NodeCohort:
    """Sends orders to the nodes of a round's clients, and brings in their uploads.

    ``state`` is where nodes of a simulation keep what they remember, so that it outlives them.
    """

    training: Training
    nodes: Nodes
    state: Path | None = None
    lenient: bool = True
    settings: bytes = field(init=False)

    def __post_init__(self) -> None:
        check(self.training)
        method = self.training.method
        remembers = method.local.remembers or isinstance(method.transport, Duo)
        self.settings = pack_settings(self.training, self.state if remembers else None)

    def memory_size(self, dim: int) -> int:
        """The round whose upload was used last; the vector lies at its node."""
        return 1

    def muster(self, number: int, cohort: Sequence[int]) -> None:
        """Wait for somebody of the cohort, as many as a sum of theirs needs, and for the parties beside them."""
        transport, enough = self.training.method.transport, min(1, len(cohort))
        if isinstance(transport, Masks) and cohort:
            with suppress(Refused):  # a cohort that is too small for a plan is aborted in its round
                enough = transport.plan(len(cohort)).least
        self.nodes.wait_for(enough, frozenset(roles(self.training)), self.nodes.timeout, among=cohort)

    def carry_out(
        self, progress: Progress, ctx: Context, books: Bookkeeper, lines: Sequence[Line], record: Record
    ) -> tuple[Arrival, Tensor | None]:
        """One round. What the server remembers of a client is the last round in which its upload was used."""
        training, method, server = self.training, self.training.method, progress.server
        facts = self._foreseen(books, server, ctx)
        ctx.releases.extend(replace(x.release, clients=x.clients) for x in lines if x.release.slot != "on_mean")
        moves = self._moves(facts, ctx, record)
        round = Round(self, progress, ctx, lines, facts)
        uploads, instead, carry = facts, dict[int, str | None](), None
        try:
            if "each" not in method.transport.reveals:
                carry = round.journey()
            elif ctx.clients:
                uploads, instead = round.uploads()
            shares = training.shares([k for k in ctx.clients if k is not None], moves)
            arrival = arrive(method, uploads, shares, server, ctx, instead, carry)
            arrival = replace(arrival, bytes_up=arrival.bytes_up + round.beside)
        finally:
            round.tell(record)
        rounds = torch.full((len(ctx.clients), 1), float(ctx.round))
        return arrival, rounds if method.local.remembers else None

    def _foreseen(self, books: Bookkeeper, server: State, ctx: Context) -> Uploads:
        if ctx.clients:
            return foresee(self.training, books.planner, server, ctx)
        w = server["w"]
        held = w.new_empty(0, w.numel()) if self.training.method.local.remembers else None
        return depart(self.training.method, nobody(w), held, server, ctx)[0]

    def _moves(self, facts: Uploads, ctx: Context, record: Record) -> Moves | None:
        """What is known of local training without looking into it; None where nobody came."""
        cohort = [k for k in ctx.clients if k is not None]
        if not cohort:
            return None
        sizes, batching = self.training.federation.sizes, self.training.batching
        steps = torch.tensor([batching.steps_for(int(sizes[k])) for k in cohort])
        record["steps"] = {"min": int(steps.min()), "max": int(steps.max())}
        far = travels(self.training, cohort, facts[MOVE].value)
        return Moves(facts[MOVE], far, steps, torch.zeros(len(cohort)))


@dataclass(eq=False)
class Round:
    """One round's exchange with nodes; ``reports`` are those of nodes that trained as they should, by row."""

    cohort: NodeCohort
    progress: Progress
    ctx: Context
    lines: Sequence[Line]
    facts: Uploads
    reports: dict[int, Trained] = field(default_factory=dict, init=False)
    beside: int = 0
    """Bytes of public parts, which travel beside uploads."""

    @property
    def nodes(self) -> Nodes:
        """Who is there."""
        return self.cohort.nodes

    def journey(self) -> Carry:
        """How uploads travel that the server never sees one by one."""
        transport = self.cohort.training.method.transport
        settings = self.cohort.settings
        if isinstance(transport, Shuffle):
            return lambda uploads, weights, ctx: shuffled.carried(
                transport, self.nodes, self.frames, uploads, weights, ctx
            )
        if isinstance(transport, Encrypted):
            return lambda uploads, weights, ctx: encrypted.carried(
                transport, self.nodes, self.frames, uploads, weights, ctx
            )
        if isinstance(transport, Duo):
            rule, kept = self.cohort.training.method.aggregate, self.progress.server.get(LEARNED + relay.MEMORY)
            return lambda uploads, weights, ctx: relay.carried(
                transport, self.nodes, settings, rule, kept, self.frames, uploads, weights, ctx
            )
        assert isinstance(transport, Masks)  # check() has refused the others
        return lambda uploads, weights, ctx: masked.carried(
            transport, self.nodes, settings, self.frames, uploads, weights, ctx
        )

    def uploads(self) -> tuple[Uploads, dict[int, str | None]]:
        """Uploads that travel one by one, a row for each client; and why some did not come."""
        shapes, n = shapes_of(self.facts), len(self.ctx.clients)
        values = {name: signal.value.new_zeros(n, signal.dim) for name, signal in self.facts.items()}
        public = values[MOVE].new_zeros(n, self.facts[MOVE].dim) if PUBLIC in shapes else None
        instead: dict[int, str | None] = {}
        for row, found in self._trained(dict.fromkeys(range(n), b""), None, shapes, SMALL).items():
            why = found if isinstance(found, str) else unusable(found[1])
            if isinstance(found, str) or why:
                instead[row] = why
                continue
            self.reports[row], tensors = found
            for name, signal in self.facts.items():
                if signal.levels is None:
                    values[name][row] = tensors[name]
                else:
                    low, high = (level[0] for level in signal.levels)
                    values[name][row] = torch.where(tensors[name + UPPER], high, low)
            if public is not None:
                public[row] = tensors[PUBLIC]
                self.beside += tensors[PUBLIC].nbytes
        return filled(self.facts, values, public), instead

    def frames(self, sent: Mapping[int, bytes], counts: Tensor | None, limit: int) -> dict[int, bytes | str]:
        """Have the clients of these rows train and answer a transport's frame; their frames, or why there is none."""
        out: dict[int, bytes | str] = {}
        for row, found in self._trained(sent, counts, {}, limit).items():
            if isinstance(found, str):
                out[row] = found
            else:
                self.reports[row] = found[0]
                out[row] = found[0].frame
        return out

    def _trained(
        self, frames: Mapping[int, bytes], counts: Tensor | None, shapes: Shapes, limit: int
    ) -> dict[int, tuple[Trained, dict[str, Tensor]] | str]:
        """Send orders to these rows; what came back, checked against what was asked for and what was charged."""
        state = {k: v for k, v in self.progress.server.items() if sent_down(self.cohort.training.method, k)}
        clients = {row: self.ctx.clients[row] for row in frames}
        orders = {row: encode(self._order(row, frame, counts), state) for row, frame in frames.items()}
        out: dict[int, tuple[Trained, dict[str, Tensor]] | str] = {}
        for row, answer in self.nodes.ask("train", clients, orders).items():
            if isinstance(answer, str):
                out[row] = answer
                continue
            try:
                report, tensors = decode(Trained, answer, shapes, limit)
                self._check(row, report)
                out[row] = report, tensors
            except Malformed as why:
                out[row] = str(why)
        return out

    def _order(self, row: int, frame: bytes, counts: Tensor | None) -> Order:
        client = self.ctx.clients[row]
        assert client is not None
        held = self.progress.memory.rows.get(client)
        since = 0 if held is None else int(held[0])
        every = self.cohort.training.settings.checkpoint.every
        saved = (self.ctx.round - 1) // every * every
        share = None if counts is None else float(counts[row])
        clients = len(self.ctx.clients)
        return Order(self.cohort.settings, self.ctx.round, client, clients, since, saved, share, frame)

    def _check(self, row: int, report: Trained) -> None:
        client = self.ctx.clients[row]
        if (report.round, report.client) != (self.ctx.round, client):
            raise Malformed(f"an answer of client {report.client} for round {report.round}")
        own = [x.release for x in self.lines if x.release.slot != "on_mean" and client in (x.clients or ())]
        if {made[:5]: made[5] for made in report.releases} != dict(kinds(own)):
            raise Malformed("it released other things than were charged")

    def tell(self, record: Record) -> None:
        """What the round's line says of local training: what nodes told, where nothing of it is protected."""
        for name, values in (
            ("train_loss", [r.loss for r in self.reports.values() if r.loss is not None]),
            ("move_norm", [r.norm for r in self.reports.values() if r.norm is not None]),
        ):
            if values:
                record[name] = {"mean": sum(values) / len(values), "min": min(values), "max": max(values)}
        if forgot := [self.ctx.clients[row] for row, report in self.reports.items() if report.forgot]:
            record["forgot"] = forgot


def shapes_of(facts: Uploads) -> Shapes:
    """How an upload must look."""
    shapes = {}
    for name, signal in facts.items():
        if signal.levels is None:
            shapes[name] = (signal.value.dtype, (signal.dim,))
        else:
            shapes[name + UPPER] = (torch.bool, (signal.dim,))
    if isinstance(facts[MOVE].public, Tensor):
        shapes[PUBLIC] = (facts[MOVE].value.dtype, (facts[MOVE].dim,))
    return shapes


def unusable(tensors: Mapping[str, Tensor]) -> str | None:
    """Why numbers of the right shape cannot be used: not finite, or so large that no norm of them is."""
    for name, value in tensors.items():
        if value.is_floating_point() and not torch.isfinite(value.norm()):
            return f"{name}: {'too large' if bool(torch.isfinite(value).all()) else 'not finite'}"
    return None
