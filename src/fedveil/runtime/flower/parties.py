"""S1, S2 and the key centre on nodes of their own (SPEC 7.1): what each of these nodes does.

Nodes cannot reach each other, so that the server carries what parties say, sealed from party to party: it sees who
speaks, and how much. (Keys must be hidden from it in any case. Most other messages are uniform to it; but what the key
centre tells S2 would open S2's masks to S1, if the server showed it.) A node's process may be another one at each
message. A party's program is held where it waits, and where that process is gone it is run again from the messages in
the node's own state: all that it draws and needs twice is made of a secret in that state.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgpack
import orjson
import torch
from flwr.app import ConfigRecord, Context
from safetensors import SafetensorError
from safetensors.torch import load, save

from fedveil.core.errors import Aborted, Refused
from fedveil.core.parts import ANNOUNCED, MOVE, Controller, State, Uploads
from fedveil.core.stage import Context as Stance
from fedveil.runtime.flower.messages import (
    Deal,
    Dealt,
    Here,
    Lock,
    Malformed,
    Meeting,
    Met,
    Order,
    Spoken,
    Step,
    Task,
    pack,
    unpack,
)
from fedveil.runtime.flower.node import place_of, run_of_party
from fedveil.runtime.prepare import Training
from fedveil.transport.duo.client import Sealer
from fedveil.transport.duo.dealer import Dealer, deal
from fedveil.transport.duo.desk import Desk
from fedveil.transport.duo.given import Given, taken
from fedveil.transport.duo.link import Framed, pair, together
from fedveil.transport.duo.parameters import Plan
from fedveil.transport.duo.sealed import Channel, Identity, signed
from fedveil.transport.duo.serving import (
    END,
    REFERENCE_SHARE,
    ROUND,
    RULE,
    UPLOAD,
    Asking,
    answered,
    deal_on_request,
    serve,
)
from fedveil.transport.duo.transport import Duo, named
from fedveil.transport.masks.crypto import Pair, digest, seed
from fedveil.transport.masks.rejected import Rejected

S1, S2, CENTRE = ROLES = ("S1", "S2", "key centre")
SELF, KNOWN, MEETING, DEALT, HEARD = (f"fedveil.duo.{name}" for name in ("self", "known", "meeting", "dealt", "heard"))
PINS = {S1: "S1", S2: "S2", CENTRE: "centre"}
"""The setting of a node config that pins a party's identity, in hex."""


def meet(message: Meeting, context: Context) -> Here:
    """A new meeting: whatever was begun before is over. Its key, and the secret of what is drawn in it, are new."""
    configured = context.node_config.get("role")
    if message.role not in ROLES or (configured != message.role and "partition-id" not in context.node_config):
        raise Malformed(f"this node is not the {message.role[:20]}")
    mine = Pair()
    for name in (MEETING, HEARD):
        context.state.pop(name, None)
    _clear(context, message.role)
    context.state[MEETING] = ConfigRecord({"role": message.role, "key": mine.private(), "own": seed()})
    return Here((_identity(context).public, mine.public))


def deal_keys(message: Deal, context: Context) -> Dealt:
    """The key centre: keys for a round, in a box for each server. The servers' halves are dealt once a session."""
    _role(context, CENTRE)
    record = context.state.config_records.get(DEALT)
    if record is None or record.get("session") != message.session:
        keys = deal(Plan.from_json(orjson.loads(message.plan)), entropy=message.entropy)
        body = [keys.clients.public, keys.clients.results, *Given.fresh(keys).servers, keys.s1.seed, keys.s2.seed]
        record = ConfigRecord({"session": message.session, "keys": msgpack.packb(body)})
        context.state[DEALT] = record
    public, results, *servers = msgpack.unpackb(_bytes(record, "keys"))[:4]
    identity = _identity(context)
    lock = Lock(message.session, message.plan, public, identity.public, b"")
    boxes = {
        name: _channel(context, name, message.others[name]).seal(0, body)
        for name, body in zip((S1, S2), servers, strict=True)
    }
    return Dealt(public, results, identity.sign(pack(lock)), boxes)


def upload(training: Training, order: Order, uploads: Uploads, context: Context) -> bytes:
    """A client's upload, encrypted under a key that the key centre has signed."""
    lock = unpack(Lock, order.frame)
    _pin(context, CENTRE, lock.identity)
    unsigned = Lock(lock.session, lock.plan, lock.key, lock.identity, b"")
    signed(lock.identity, lock.signature, pack(unsigned))
    if set(uploads) != {MOVE}:
        raise Refused("transport: two servers carry one vector of each client; set batch_norm=group_norm")
    seal = Sealer(Plan.from_json(orjson.loads(lock.plan)), lock.key)
    return seal(uploads[MOVE].value[0].detach().double().cpu().numpy())


def begin(message: Task, context: Context) -> Spoken:
    """A party begins its program, and says what it says before it has heard anything."""
    record = context.state.config_records.get(MEETING)
    if record is None or "task" in record:
        raise Malformed("a round begins with a meeting of its own")
    if message.others.keys() != set(ROLES) - {str(record["role"])}:
        raise Malformed("a round of S1, S2 and the key centre")
    record["task"] = pack(message)
    heard = context.state[HEARD] = ConfigRecord()
    return _spoken(context, record, heard)


def step(message: Step, context: Context) -> Spoken:
    """A party hears what others have said, goes on, and says what it says next."""
    records = context.state.config_records
    record, heard = records.get(MEETING), records.get(HEARD)
    if record is None or heard is None or message.place != len(heard):
        raise Malformed("a step of a round that is not going on here, or out of its place")
    held = _held(context, record, heard)
    for sender, box in message.boxes:
        if sender not in held.channels:
            raise Malformed("a box from nobody")
        number = record[f"from {sender}"] = _count(record, f"from {sender}") + 1
        heard[f"{len(heard):06d}"] = msgpack.packb([sender, held.channels[sender].unseal(number, box)])
    return _spoken(context, record, heard)


@dataclass(frozen=True, eq=False)
class Held:
    """A party's program in this process, the secret of its meeting, its conversations, and what S1 noted down."""

    own: bytes
    desk: Desk
    channels: dict[str, Channel]
    noted: list[dict[str, Any]] = field(default_factory=list)


_held_here: dict[tuple[int, str], Held] = {}
"""By node and role: a simulation's process has many nodes in turn."""


def _spoken(context: Context, record: ConfigRecord, heard: ConfigRecord) -> Spoken:
    held = _held(context, record, heard)
    desk, boxes, said = held.desk, [], _count(record, "said")
    for receiver, frame in desk.said(said):
        number = record[f"to {receiver}"] = _count(record, f"to {receiver}") + 1
        boxes.append((receiver, held.channels[receiver].seal(number, frame)))
    record["said"] = said + len(boxes)
    for told in held.noted[_count(record, "noted") :]:  # at once: the round may still come to nothing
        _note(place_of(unpack(Task, _bytes(record, "task")).settings, context), str(record["role"]), told)
    record["noted"] = len(held.noted)
    if not desk.ended:
        return Spoken(tuple(boxes), None, None)
    _clear(context, str(record["role"]))
    if desk.failure is not None:
        known = isinstance(desk.failure, Aborted | Refused | Rejected)
        return Spoken(tuple(boxes), None, str(desk.failure) if known else type(desk.failure).__name__)
    found: dict[str, Any] = desk.found  # type: ignore[assignment]
    return Spoken(tuple(boxes), msgpack.packb(found), None)


def _held(context: Context, record: ConfigRecord, heard: ConfigRecord) -> Held:
    """The program where this node stands: as it is held in this process, or run again up to there."""
    own, role = _bytes(record, "own"), str(record["role"])
    held = _held_here.get((context.node_id, role))
    if held is None or held.own != own:
        _clear(context, role)
        task = unpack(Task, _bytes(record, "task"))
        channels = {name: _channel(context, name, met) for name, met in task.others.items()}
        held = Held(own, Desk(task.others), channels)
        held.desk.start(_program(context, task, role, held))
        _held_here[context.node_id, role] = held
    held.desk.feed([tuple(msgpack.unpackb(_bytes(heard, name))) for name in sorted(heard)[held.desk.fed :]])
    return held


def _clear(context: Context, role: str) -> None:
    held = _held_here.pop((context.node_id, role), None)
    if held is not None:
        held.desk.close()


def _count(record: ConfigRecord, name: str) -> int:
    found = record.get(name, 0)
    assert isinstance(found, int)
    return found


def _program(context: Context, task: Task, role: str, held: Held) -> Callable[[], object]:
    desk = held.desk
    if role == CENTRE:
        record = context.state.config_records[DEALT]
        seeds = msgpack.unpackb(_bytes(record, "keys"))[4:]
        return lambda: deal_on_request(Dealer(*seeds).mend, desk.link(S2))
    training = run_of_party(task.settings)
    duo, rule = training.method.transport, training.method.aggregate
    if not isinstance(duo, Duo):
        raise Malformed("a round of two servers in a run without them")
    reads = rule.reads if isinstance(rule, Controller) else frozenset[str]()
    order = {
        "number": task.round,
        "attempt": _attempt(context, task),
        "reads": sorted(reads - {"S"} if duo.hide_s else reads),
        "delivery": duo.delivery,
        "uploads": len(task.uploads),
    }
    other = S2 if role == S1 else S1
    keys, mends = taken(held.channels[CENTRE].unseal(0, task.keys), lambda: Asking(desk.link(CENTRE)))
    if keys.first != (role == S1):
        raise Malformed("keys of the other server")
    orders, mine = pair()
    identity = _identity(context)

    def clerk() -> dict[str, Any]:
        return _carried_out(
            mine, order, task, _Controller(training, task, identity, held.noted) if role == S1 else None
        )

    def work() -> object:
        return together(clerk, lambda: serve(keys, mends, orders, desk.link(other), held.own), (mine, orders))[0]

    return work


def _attempt(context: Context, task: Task) -> int:
    """What tells this attempt of a round from all others: made of keys that each party drew for it."""
    mine = Pair(_bytes(context.state.config_records[MEETING], "key")).public
    return int.from_bytes(digest(b"".join(sorted([mine, *(met[1] for met in task.others.values())])))[:7], "little")


def _carried_out(mine: Framed, order: dict[str, Any], task: Task, controller: _Controller | None) -> dict[str, Any]:
    """Give a server its orders for one round, decide where it is S1, and take what came of it."""
    mine.send(ROUND, msgpack.packb(order))
    mine.send(REFERENCE_SHARE, task.reference)
    refused = {}
    out: dict[str, Any] = {}
    if controller is None:
        for seat, frame in enumerate(task.uploads):
            mine.send(UPLOAD, frame)
            word, *why = answered(mine, "taken", "refused")
            if word == "refused":
                refused[seat] = str(why[0])
        out["refused"] = refused
    else:
        _, opened, seats = answered(mine, "opened")
        rule, out = controller.decide(opened, len(seats))
        mine.send(RULE, rule.encode())
    _, result, rows = answered(mine, "result")
    mine.send(ROUND, END)
    seen = [{k: v for k, v in row.items() if k not in ("value", "said")} for row in rows]
    return out | {"result": result, "seen": seen}


class _Controller:
    """S1's controller: what it remembers stands in a box that the server keeps and cannot open."""

    def __init__(self, training: Training, task: Task, identity: Identity, noted: list[dict[str, Any]]) -> None:
        self._training, self._task, self._identity, self._noted = training, task, identity, noted

    def decide(self, opened: dict[str, float], clients: int) -> tuple[str, dict[str, Any]]:
        """The rule's name, and what others may know: its memory sealed, what is announced; what it notes is its own."""
        rule = self._training.method.aggregate
        if not isinstance(rule, Controller):
            return named(rule, clients), {}
        known, forgot = self._known(rule)
        ctx = Stance(
            self._task.round,
            self._training.objective.layout,
            [None] * self._task.cohort,
            [],
            previous=torch.zeros(1, 1) if self._task.reference else None,
            announced={n.removeprefix(ANNOUNCED): float(v) for n, v in known.items() if n.startswith(ANNOUNCED)},
        )
        chosen, learned = rule.choose_by(known, opened, clients, ctx)
        self._noted.append({"round": self._task.round, "clients": clients, "opened": opened} | ctx.log)
        memory = self._identity.keep(save({name: value.contiguous() for name, value in learned.items()}))
        announced = {name: float(value) for name, value in learned.items() if name.startswith(ANNOUNCED)}
        return named(chosen, clients), {
            "memory": memory,
            "forgot": forgot,
            "announced": announced,
            "noise": ctx.log.get("noise"),
        }

    def _known(self, rule: Controller) -> tuple[State, bool]:
        if not self._task.memory:
            return rule.init(), False
        try:
            return load(self._identity.kept(self._task.memory)), False
        except (Rejected, SafetensorError):
            return rule.init(), True


def _note(place: Path | None, role: str, told: dict[str, Any]) -> None:
    """What S1 has seen and decided, in a file of its own."""
    if place is not None:
        place.mkdir(parents=True, exist_ok=True, mode=0o700)
        with (place / f"{role}.jsonl").open("ab") as file:
            file.write(orjson.dumps(told, option=orjson.OPT_SERIALIZE_NUMPY) + b"\n")


def _role(context: Context, role: str) -> None:
    record = context.state.config_records.get(MEETING)
    if record is None or record["role"] != role:
        raise Malformed(f"this node is not the {role}, or has not met anybody")


def _identity(context: Context) -> Identity:
    """Who this node is: by the file that its node config names (``key``), else for this run."""
    path = context.node_config.get("key")
    if path is not None:
        return Identity(Path(str(path)).read_bytes())
    if SELF not in context.state:
        context.state[SELF] = ConfigRecord({"secret": seed()})
    return Identity(_bytes(context.state.config_records[SELF], "secret"))


def _channel(context: Context, you: str, met: Met) -> Channel:
    """The conversation with another party in this meeting."""
    record = context.state.config_records[MEETING]
    _pin(context, you, met[0])
    return Channel(str(record["role"]), _identity(context), Pair(_bytes(record, "key")), you, *met)


def _pin(context: Context, role: str, public: bytes) -> None:
    """Refuse another identity than the node config says; in a simulation, than this node saw at first."""
    if KNOWN not in context.state:
        context.state[KNOWN] = ConfigRecord()
    known = context.state.config_records[KNOWN]
    configured = context.node_config.get(PINS[role])
    if configured is None and "partition-id" not in context.node_config:
        raise Malformed(f"the node config does not say who the {role} is ({PINS[role]}), and the server is not asked")
    wanted = known.setdefault(role, public) if configured is None else bytes.fromhex(str(configured))
    if wanted != public:
        raise Malformed(f"the {role}'s identity is not the one that this node was told of, or knew before")


def _bytes(record: ConfigRecord, name: str) -> bytes:
    found = record.get(name)
    if not isinstance(found, bytes):
        raise Malformed(f"this node has no {name}")
    return found
