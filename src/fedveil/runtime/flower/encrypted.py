"""Sums under CKKS with two servers on nodes of their own (SPEC 6.2): the computer adds, the controller opens.

The server carries ciphertexts from clients to the computer, and its half of the decryption to the controller, and
learns the sum. Each party reads its part of a folder of `fedveil keys new`, whose place its node config names
(``keys``); a simulation shares one folder.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack
import torch
from flwr.app import Context
from torch import Tensor

from fedveil.core.errors import Aborted, Refused
from fedveil.core.parts import Delivery, Uploads
from fedveil.core.stage import Context as Stance
from fedveil.runtime.flower.messages import Frame, Malformed, Order, decode, encode
from fedveil.runtime.flower.nodes import Nodes
from fedveil.runtime.prepare import Training
from fedveil.transport.he import Encrypted
from fedveil.transport.he.keys import read
from fedveil.transport.he.messages import Session
from fedveil.transport.he.roles import Client, Computer, Controller
from fedveil.transport.he.transport import note
from fedveil.transport.masks.rejected import Rejected

ROLES = ("computer", "controller")
Trainings = Callable[[Mapping[int, bytes], Tensor | None, int], dict[int, bytes | str]]


@dataclass(frozen=True)
class Summation:
    """What every party is told of one round's sum."""

    session: bytes
    clients: int
    length: int
    least: int
    keys: str

    def pack(self, *more: Any) -> bytes:
        """With more for one party."""
        out: bytes = msgpack.packb([self.session, self.clients, self.length, self.least, self.keys, *more])
        return out

    @classmethod
    def unpack(cls, data: bytes) -> tuple[Summation, list[Any]]:
        """The inverse; anything else is malformed."""
        try:
            session, clients, length, least, keys, *more = msgpack.unpackb(data)
        except (ValueError, TypeError, msgpack.UnpackException):
            raise Malformed("an order of a sum that is none") from None
        numbers = all(type(n) is int and n > 0 for n in (clients, length, least))
        if not (numbers and isinstance(session, bytes) and isinstance(keys, str)):
            raise Malformed("an order of a sum that is none")
        return cls(session, clients, length, least, keys), more


def check(transport: Encrypted) -> None:
    """Refuse keys that nobody could hand out."""
    if transport.keys is None:
        raise Refused(
            "transport.keys: parties on nodes of their own bring their own keys; make them with `fedveil keys new`, "
            "and give the folder"
        )


def carried(
    transport: Encrypted, nodes: Nodes, train: Trainings, uploads: Uploads, weights: Tensor, ctx: Stance
) -> Delivery:
    """The journey of a round's uploads; ``uploads`` has their facts."""
    if list(ctx.clients) == [None]:
        return transport.carry(uploads, weights, ctx)
    n = transport.enough(len(weights))
    length = sum(signal.dim for signal in uploads.values()) + 1
    task = Summation(os.urandom(16), n, length, transport.least, str(transport.keys))
    session = Session(task.session, read(Path(task.keys)).parameters, n, length)
    room = session.blocks * (2 * session.polynomial + 2**16) + 2**20
    frames: dict[int, bytes] = {}
    lost: dict[int, str] = {}
    sent = {seat: task.pack(seat) for seat in transport.stay(n, ctx)}
    for seat, answer in train(sent, weights / weights.max(), room).items():
        if isinstance(answer, str):
            lost[seat] = answer
        else:
            frames[seat] = answer
    opening, refused = _asked(nodes, "computer", task.pack(list(frames.values())), room)
    lost |= {list(frames)[place]: str(why) for place, why in refused}
    if lost:
        ctx.log["excluded"] = [{"client": ctx.clients[seat], "why": why} for seat, why in sorted(lost.items())]
    seats, total = _asked(nodes, "controller", task.pack(opening), 16 * length + 2**20)
    values = torch.frombuffer(bytearray(total), dtype=torch.float64).numpy()
    if len(values) != length or not set(seats) <= sent.keys():
        raise Aborted("the controller sent something else than a sum; look after its node")
    ctx.log["he"] = note(session, list(seats), len(opening))
    return transport.delivery(values, list(seats), uploads, weights, sum(map(len, frames.values())))


def _asked(nodes: Nodes, role: str, body: bytes, room: int) -> list[Any]:
    """One exchange with a server; what it cannot do ends the round."""
    try:
        reply = decode(Frame, nodes.ask_role(role, "query.sum", encode(Frame(role, body))), {}, room)[0]
        found: list[Any] = msgpack.unpackb(reply.frame)
    except (Malformed, ValueError, msgpack.UnpackException) as why:
        raise Aborted(f"the {role} sent something else than was asked for ({why}); look after its node") from None
    if found[:1] != ["done"] or len(found) != 3:
        raise Aborted(str(found[-1]) if found[:1] == ["aborted"] else f"the {role} sent something else than its part")
    return found[1:]


def upload(training: Training, order: Order, uploads: Uploads, context: Context) -> bytes:
    """A client's encrypted upload."""
    transport = training.method.transport
    assert isinstance(transport, Encrypted)
    task, more = Summation.unpack(order.frame)
    keys = read(_place(context, task))
    row = transport.rows(uploads, torch.tensor([1.0 if order.share is None else order.share]))[0]
    session = Session(task.session, keys.parameters, task.clients, task.length)
    return Client(session, int(more[0]), keys.public).upload(row)


def serve(message: Frame, context: Context) -> Frame:
    """A server's part: the computer adds what it can use, the controller completes the decryption of the sum."""
    task, more = Summation.unpack(message.frame)
    keys = read(_place(context, task))
    session = Session(task.session, keys.parameters, task.clients, task.length)
    try:
        if message.stage == "computer":
            computer, refused = Computer(session, keys.computer, task.least), []
            for place, frame in enumerate(more[0]):
                try:
                    computer.receive(frame)
                except Rejected as why:
                    refused.append([place, str(why)])
            body = msgpack.packb(["done", computer.close(), refused])
        elif message.stage == "controller":
            controller = Controller(session, keys.controller)
            total = controller.open(more[0])
            body = msgpack.packb(["done", controller.seats, total.tobytes()])
        else:
            raise Malformed(f"there is no party {message.stage[:20]!r}")
    except Aborted as why:
        body = msgpack.packb(["aborted", str(why)])
    return Frame(message.stage, body)


def _place(context: Context, task: Summation) -> Path:
    """The folder of keys: the node's own, or that of the simulation's settings."""
    own = context.node_config.get("keys")
    if own is None and context.node_config.get("role"):
        raise Refused("node config: keys is missing; name the folder of this party's keys")
    return Path(str(own if own is not None else task.keys))
