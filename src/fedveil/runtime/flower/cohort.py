"""A cohort of Flower nodes in the place of clients in this process: the same round, over messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from flwr.app import RecordDict
from torch import Tensor

from fedveil.core.errors import Refused
from fedveil.core.parts import MOVE, Moves, State, Uploads
from fedveil.core.round import Arrival, arrive, depart, nobody
from fedveil.core.stage import Context
from fedveil.privacy.ledger import Line
from fedveil.runtime.accounting import Bookkeeper
from fedveil.runtime.checkpoint import Progress
from fedveil.runtime.flower.facts import filled, foresee, travels
from fedveil.runtime.flower.messages import Malformed, Order, Shapes, Trained, decode, encode
from fedveil.runtime.flower.node import PUBLIC, UPPER, kinds, pack_settings
from fedveil.runtime.flower.nodes import Nodes
from fedveil.runtime.inline import Record, sent_down
from fedveil.runtime.prepare import Training

Reports = dict[int, Trained]
"""What nodes said of their training, by row."""


def check(training: Training) -> None:
    """Refuse what cannot be done by clients that are apart from each other."""
    if training.attackers is not None:
        raise Refused("attack: attackers are simulated in process, where they see each other; set runtime=inline")
    method = training.method
    if method.on_step.remembers:
        raise Refused("runtime: a stage of on_step learns from one client for the next; set runtime=inline")
    releases = method.rehearse(training.objective.layout, training.cohort)[0]
    if any(r.clients is None and r.slot != "on_mean" for r in releases):
        raise Refused(
            "runtime: a stage with memory counts over all clients of a round, which nodes that are apart cannot; use a "
            "fixed clip, or runtime=inline"
        )


@dataclass(eq=False)
class NodeCohort:
    """Sends orders to the nodes of a round's clients, and brings in their uploads."""

    training: Training
    nodes: Nodes
    lenient: bool = True
    settings: bytes = field(init=False)

    def __post_init__(self) -> None:
        check(self.training)
        self.settings = pack_settings(self.training)

    def carry_out(
        self, progress: Progress, ctx: Context, books: Bookkeeper, lines: Sequence[Line], record: Record
    ) -> tuple[Arrival, Tensor | None]:
        """One round; ``memory`` rows hold the round in which an upload was used, of clients that keep memories."""
        training, server = self.training, progress.server
        cohort = [k for k in ctx.clients if k is not None]
        self.nodes.meet()
        facts = self._foreseen(books, server, ctx)
        ctx.releases.extend(replace(x.release, clients=x.clients) for x in lines if x.release.slot != "on_mean")
        uploads, instead, reports = self._gathered(progress, ctx, facts, lines)
        moves = self._moves(facts, cohort, reports, record)
        arrival = arrive(training.method, uploads, training.shares(cohort, moves), server, ctx, instead)
        return arrival, self._rounds(ctx)

    def _foreseen(self, books: Bookkeeper, server: State, ctx: Context) -> Uploads:
        if ctx.clients:
            return foresee(self.training, books.planner, server, ctx)
        w = server["w"]
        held = w.new_empty(0, w.numel()) if self.training.method.local.remembers else None
        return depart(self.training.method, nobody(w), held, server, ctx)[0]

    def _moves(self, facts: Uploads, cohort: list[int], reports: Reports, record: Record) -> Moves | None:
        """What is known of local training without looking into it."""
        if not cohort:
            return None
        training = self.training
        sizes = training.federation.sizes
        steps = torch.tensor([training.batching.steps_for(int(sizes[k])) for k in cohort])
        record["steps"] = {"min": int(steps.min()), "max": int(steps.max())}
        for name, values in (
            ("train_loss", [r.loss for r in reports.values() if r.loss is not None]),
            ("move_norm", [r.norm for r in reports.values() if r.norm is not None]),
        ):
            if values:
                record[name] = {"mean": sum(values) / len(values), "min": min(values), "max": max(values)}
        forgot = [cohort[row] for row, report in reports.items() if report.forgot]
        if forgot:
            record["forgot"] = forgot
        return Moves(facts[MOVE], travels(training, cohort, facts[MOVE].value), steps, torch.zeros(len(cohort)))

    def _rounds(self, ctx: Context) -> Tensor | None:
        if not self.training.method.local.remembers:
            return None
        return torch.full((len(ctx.clients), 1), float(ctx.round))

    def orders(
        self, progress: Progress, ctx: Context, rows: Sequence[int], journeys: Mapping[int, bytes] | None = None
    ) -> dict[int, RecordDict]:
        """An order for each of these rows whose node is there, by node."""
        state = sent(self.training, progress.server)
        out = {}
        for row in rows:
            client = ctx.clients[row]
            assert client is not None
            node = self.nodes.clients.get(client)
            if node is None:
                continue
            held = progress.memory.rows.get(client)
            order = Order(
                self.settings,
                ctx.round,
                client,
                len(ctx.clients),
                0 if held is None else int(held[0]),
                (journeys or {}).get(row, b""),
            )
            out[node] = encode(order, state)
        return out

    def read(
        self, ctx: Context, row: int, answer: RecordDict, lines: Sequence[Line], shapes: Shapes, limit: int
    ) -> tuple[Trained, dict[str, Tensor]]:
        """A node's report and tensors, checked against what it was asked for and what was charged."""
        client = ctx.clients[row]
        report, tensors = decode(Trained, answer, shapes, limit)
        if (report.round, report.client) != (ctx.round, client):
            raise Malformed(f"an answer of client {report.client} for round {report.round}")
        own = [x.release for x in lines if x.release.slot != "on_mean" and client in (x.clients or ())]
        if {made[:5]: made[5] for made in report.releases} != dict(kinds(own)):
            raise Malformed("it released other things than were charged")
        return report, tensors

    def _gathered(
        self, progress: Progress, ctx: Context, facts: Uploads, lines: Sequence[Line]
    ) -> tuple[Uploads, dict[int, str | None], Reports]:
        """Uploads as they came, one row per client; why some did not; and what nodes reported."""
        if not ctx.clients:
            return facts, {}, {}
        shapes, n = shapes_of(facts), len(ctx.clients)
        values = {name: signal.value.new_zeros(n, signal.dim) for name, signal in facts.items()}
        public = values[MOVE].new_zeros(n, facts[MOVE].dim) if PUBLIC in shapes else None
        orders = self.orders(progress, ctx, range(n))
        answers = self.nodes.exchange("train", orders)
        instead: dict[int, str | None] = {}
        reports: Reports = {}
        for row, client in enumerate(ctx.clients):
            assert client is not None
            answer = answers.get(self.nodes.clients.get(client, 0), "its node is not connected")
            if isinstance(answer, str):
                instead[row] = answer
                continue
            try:
                report, tensors = self.read(ctx, row, answer, lines, shapes, SMALL)
            except Malformed as problem:
                instead[row] = str(problem)
                continue
            if why := unusable(tensors):
                instead[row] = why
                continue
            reports[row] = report
            for name, signal in facts.items():
                if signal.levels is None:
                    values[name][row] = tensors[name]
                else:
                    low, high = (level[0] for level in signal.levels)
                    values[name][row] = torch.where(tensors[name + UPPER], high, low)
            if public is not None:
                public[row] = tensors[PUBLIC]
        return filled(facts, values, public), instead, reports


SMALL = 2**20
"""Bytes of a report without its tensors."""


def sent(training: Training, server: State) -> State:
    """What clients need of the server's state."""
    return {name: value for name, value in server.items() if sent_down(training.method, name)}


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
