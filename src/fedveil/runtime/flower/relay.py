"""Two-server aggregation over Flower (SPEC 7): the server carries sealed messages between parties on nodes.

It sees encrypted uploads, boxes that it cannot open, and both shares of a round's result: like every client it holds
the model, and nothing else that the servers know. S1's controller decides on S1's node.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgpack
import numpy as np
import orjson
import torch
from flwr.app import RecordDict
from torch import Tensor

from fedveil.core.errors import Aborted, Refused
from fedveil.core.parts import ANNOUNCED, MOVE, Aggregator, Controller, Delivery, State, Uploads
from fedveil.core.stage import Context as Stance
from fedveil.runtime.flower.messages import (
    Deal,
    Dealt,
    Here,
    Lock,
    Malformed,
    Meeting,
    Met,
    Spoken,
    Step,
    Task,
    decode,
    encode,
    pack,
)
from fedveil.runtime.flower.nodes import Nodes
from fedveil.runtime.flower.parties import CENTRE, ROLES, S1, S2
from fedveil.transport.duo.client import combine, decrypt, upload_bytes
from fedveil.transport.duo.dealer import ClientKeys
from fedveil.transport.duo.parameters import Plan
from fedveil.transport.duo.seen import Row, table
from fedveil.transport.duo.serving import SOURCE, shared
from fedveil.transport.duo.stream import Stream
from fedveil.transport.duo.transport import Duo, announced
from fedveil.transport.he.ring import Floats
from fedveil.transport.masks.crypto import seed
from fedveil.transport.masks.rejected import Rejected

MEMORY = "sealed"
"""Under this name the server keeps S1's memory, which it cannot read."""
SMALL = 2**20
ROOM = 2**31 - 1
"""Bytes of the longest message of a party."""
Trainings = Callable[[Mapping[int, bytes], Tensor | None, int], dict[int, bytes | str]]


class Gone(Aborted):
    """A party that did not answer."""


def check(transport: Duo) -> None:
    """Refuse what is there in process alone."""
    if transport.keys is not None or transport.processes:
        raise Refused(
            "transport: on nodes the key centre deals at every round, and S1 and S2 have processes of their own; leave "
            "transport.keys and transport.processes out, or set runtime=inline"
        )


def carried(
    transport: Duo,
    nodes: Nodes,
    settings: bytes,
    rule: Aggregator,
    memory: Tensor | None,
    train: Trainings,
    uploads: Uploads,
    weights: Tensor,
    ctx: Stance,
) -> Delivery:
    """The journey of a round's uploads; ``uploads`` has their facts, ``memory`` is what S1 has had kept for it."""
    if set(uploads) != {MOVE}:
        raise Refused(
            "transport: two servers carry one vector of each client, and this model sends more; set "
            "batch_norm=group_norm"
        )
    if list(ctx.clients) == [None]:
        raise Aborted("nobody came; two servers need 2 uploads or more")
    n, facts = len(weights), uploads[MOVE]
    rules = rule.rules if isinstance(rule, Controller) else (rule,)
    reads = rule.reads if isinstance(rule, Controller) else frozenset[str]()
    plan = transport.plan(n, facts.dim, rules)
    table = Table(nodes, settings, plan, bool(reads & SOURCE), ctx.round)
    lost = table.trying(transport.retries, table.gather)
    frames: dict[int, bytes] = {}
    excluded: dict[int, str] = {}
    for seat, answer in train(dict.fromkeys(range(n), table.lock), None, upload_bytes(plan) + SMALL).items():
        if isinstance(answer, str):
            excluded[seat] = answer
        else:
            frames[seat] = answer
    seats = list(frames)
    if len(seats) < 2:
        raise Aborted(f"{len(seats)} clients sent an upload that can be used; two servers need 2 or more")
    reference = None if ctx.previous is None else ctx.previous[0].detach().double().cpu().numpy()
    kept = b"" if memory is None else memory.cpu().numpy().tobytes()
    lost += table.trying(
        transport.retries - lost, lambda: table.round(list(frames.values()), reference, kept), again=table.gather
    )
    result = table.result(transport.delivery)
    refused = table.found[S2].get("refused", {})
    excluded |= {seats[place]: str(why) for place, why in refused.items()}
    if excluded:
        ctx.log["excluded"] = [{"client": ctx.clients[seat], "why": why} for seat, why in sorted(excluded.items())]
    arrived = [seat for place, seat in enumerate(seats) if place not in refused]
    said = table.found[S1]
    if said.get("noise"):
        ctx.log["noise"] = said["noise"]
    ctx.log["leakage"] = [*table.seen(), *announced(ctx)]
    ctx.log["duo"] = {
        "arrived": len(arrived),
        "between_servers": table.carried[S1, S2] + table.carried[S2, S1],
        "lost": lost,
        "steps": table.steps,
    } | ({"forgot": True} if said.get("forgot") else {})
    value = torch.from_numpy(np.ascontiguousarray(result))[None, :].to(facts.value)
    rows = None if len(arrived) == n else torch.tensor(arrived)
    return Delivery({MOVE: value}, sum(map(len, frames.values())), rows, 1.0, _learned(said))


def _learned(said: Mapping[str, Any]) -> State:
    """What S1 wants kept, and what it announces to clients."""
    out = State()
    if said.get("memory"):
        out[MEMORY] = torch.frombuffer(bytearray(said["memory"]), dtype=torch.uint8)
    for name, value in (said.get("announced") or {}).items():
        if not str(name).startswith(ANNOUNCED):
            raise Aborted("S1 announced what is no announcement; look after its node")
        out[str(name)] = torch.tensor(float(value), dtype=torch.float64)
    return out


@dataclass(eq=False)
class Table:
    """The three parties of one round, at which the server waits; whoever is lost, the round is begun again."""

    nodes: Nodes
    settings: bytes
    plan: Plan
    entropy: bool
    number: int
    session: bytes = field(default_factory=lambda: os.urandom(16))
    met: dict[str, Met] = field(default_factory=dict)
    keys: ClientKeys | None = None
    lock: bytes = b""
    boxes: dict[str, bytes] = field(default_factory=dict)
    found: dict[str, dict[str, Any]] = field(default_factory=dict)
    carried: dict[tuple[str, str], int] = field(default_factory=dict)
    steps: int = 0

    def trying(self, retries: int, what: Callable[[], None], again: Callable[[], None] | None = None) -> int:
        """Do this; where a party is lost begin again, so many times. How often one was lost."""
        lost = 0
        while True:
            try:
                if lost and again is not None:
                    again()
                what()
                return lost
            except Gone as why:
                lost += 1
                if lost > retries:
                    raise Aborted(f"{why}; the model is that of the last complete round") from None
                self.nodes.meet()

    def gather(self) -> None:
        """All parties meet, and the key centre deals, or seals anew what it dealt for this round."""
        asked = {role: encode(Meeting(role, self.number)) for role in ROLES}
        self.met = {role: self._read(Here, role, answer).met for role, answer in self._ask("meet", asked).items()}
        plan = orjson.dumps(self.plan.to_json())
        words = Deal(self.session, plan, self.entropy, {role: self.met[role] for role in (S1, S2)})
        answer = self._ask("deal", {CENTRE: encode(words)})[CENTRE]
        dealt = self._read(Dealt, CENTRE, answer)
        if dealt.boxes.keys() != {S1, S2}:
            raise Aborted("the key centre sent something else than keys; look after its node")
        if self.keys is not None and self.keys.public != dealt.public:
            raise Aborted("the key centre has lost this round's keys, under which clients have encrypted; it goes on")
        self.boxes, self.keys = dealt.boxes, ClientKeys(self.plan, dealt.public, dealt.results)
        self.lock = pack(Lock(self.session, plan, dealt.public, self.met[CENTRE][0], dealt.signature))

    def round(self, uploads: list[bytes], reference: Floats | None, memory: bytes) -> None:
        """Carry messages until both servers have their part of the result."""
        shares = {S1: b"", S2: b"", CENTRE: b""}
        if reference is not None:
            mask = Stream(seed(), "previous update").words(len(reference))
            shares |= zip((S1, S2), shared(self.plan, reference, mask), strict=True)
        self.found, self.carried = {}, {(a, b): 0 for a in ROLES for b in ROLES}
        asked = {
            role: encode(
                Task(
                    self.settings,
                    self.number,
                    len(uploads),
                    {other: self.met[other] for other in ROLES if other != role},
                    self.boxes.get(role, b""),
                    shares[role],
                    tuple(uploads) if role == S2 else (),
                    memory if role == S1 else b"",
                )
            )
            for role in ROLES
        }
        waiting = self._heard(self._ask("begin", asked))
        places = dict.fromkeys(ROLES, 0)
        while self.found.keys() != {S1, S2}:
            if not waiting:
                raise Aborted("S1 and S2 wait for each other; look after their nodes")
            steps = {role: encode(Step(places[role], tuple(boxes))) for role, boxes in waiting.items()}
            for role, boxes in waiting.items():
                places[role] += len(boxes)
            waiting = self._heard(self._ask("step", steps))

    def result(self, delivery: str) -> Floats:
        """What the clients put together of both servers' parts."""
        assert self.keys is not None
        one, two = (self.found[role].get("result") for role in (S1, S2))
        try:
            if not isinstance(one, bytes) or not isinstance(two, bytes):
                raise Malformed("no bytes")
            found = decrypt(self.keys, one) if delivery == "switch" else combine(one, two)
        except (Malformed, Rejected, ValueError) as why:
            raise Aborted(f"S1 and S2 sent something else than a result ({why}); look after their nodes") from None
        if found.shape != (self.plan.length,):
            raise Aborted("S1 and S2 sent a result of another length; look after their nodes")
        return found

    def seen(self) -> list[Row]:
        """What each party saw: S1 and S2 say what they received and opened, and keep the values to themselves."""
        parties: dict[str, list[Row]] = {role: list(self.found[role].get("seen", ())) for role in (S1, S2)}
        size = sum(len(self.found[role]["result"]) for role in (S1, S2))
        parties["clients"] = [{"what": "result of the round", "how": "told", "bytes": size}]
        parties[CENTRE] = [{"what": "sizes of what the servers compute", "how": "told"}]
        parties["relay"] = [
            {"what": "result of the round", "how": "told", "bytes": size},
            {"what": "messages between the parties", "how": "encrypted", "bytes": sum(self.carried.values())},
        ]
        return table(parties)

    def _heard(self, answers: Mapping[str, RecordDict]) -> dict[str, list[tuple[str, bytes]]]:
        """What was said, by receiver; a party that failed ends the round."""
        waiting: dict[str, list[tuple[str, bytes]]] = {}
        for role, answer in answers.items():
            spoken = self._read(Spoken, role, answer)
            if spoken.failed is not None:
                raise Aborted(f"{role}: {spoken.failed[:300]}")
            for receiver, box in spoken.boxes:
                if receiver not in ROLES or receiver == role:
                    raise Aborted(f"{role} speaks to nobody; look after its node")
                self.carried[role, receiver] += len(box)
                waiting.setdefault(receiver, []).append((role, box))
            if spoken.done is not None and role != CENTRE:
                self.found[role] = _mapping(role, spoken.done)
        self.steps += 1
        return {role: boxes for role, boxes in waiting.items() if role not in self.found}

    def _ask(self, kind: str, contents: Mapping[str, RecordDict]) -> dict[str, RecordDict]:
        """One exchange with some of the parties, all at once."""
        there = {role: self.nodes.roles.get(role) for role in contents}
        for role, node in there.items():
            if node is None:
                raise Gone(f"{role} is not connected")
        nodes = {node: role for role, node in there.items() if node is not None}
        answers = self.nodes.exchange(f"query.{kind}", {node: contents[role] for node, role in nodes.items()})
        out = {}
        for node, answer in answers.items():
            if isinstance(answer, str):
                raise Gone(f"no answer from {nodes[node]} ({answer})")
            out[nodes[node]] = answer
        return out

    def _read(self, kind: Any, role: str, answer: RecordDict) -> Any:
        try:
            return decode(kind, answer, {}, ROOM)[0]
        except Malformed as why:
            raise Aborted(f"{role} sent something else than was asked for ({why}); look after its node") from None


def _mapping(role: str, body: bytes) -> dict[str, Any]:
    try:
        found = msgpack.unpackb(body, strict_map_key=False)
    except (ValueError, msgpack.UnpackException):
        found = None
    if not isinstance(found, dict):
        raise Aborted(f"{role} sent something else than its part of a result; look after its node")
    return found
