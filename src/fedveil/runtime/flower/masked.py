"""Masks over Flower: the server relays frames, and clients train in the stage that brings their upload (SPEC 6.1).

Four exchanges make a round: keys, shares of secrets, training with the masked upload, and the shares that open the
sum. A client's secrets lie in its node's own state in between. A node that does not answer drops out at that stage.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

import msgpack
from flwr.app import ConfigRecord, Context, RecordDict
from torch import Tensor

from fedveil.core.errors import Refused
from fedveil.core.parts import Delivery, Uploads
from fedveil.core.stage import Context as Stance
from fedveil.runtime.flower.messages import Frame, Invite, Malformed, Order, decode, encode
from fedveil.runtime.flower.nodes import Nodes
from fedveil.runtime.prepare import Training
from fedveil.transport.masks import Masks
from fedveil.transport.masks.client import Client
from fedveil.transport.masks.messages import Header
from fedveil.transport.masks.rejected import Rejected
from fedveil.transport.masks.server import Server
from fedveil.transport.masks.session import Session
from fedveil.transport.masks.simulate import Traffic
from fedveil.transport.masks.transport import counted, note

STATE = "fedveil.masks"
SMALL = 2**20
"""Bytes of a report beside its frame."""
Trainings = Callable[[Mapping[int, bytes], Tensor | None, int], dict[int, bytes | str]]
"""Has the clients of these rows train, each with a frame and its share; their frames of limited size, or why none."""


def check(transport: Masks) -> None:
    """Refuse what nodes cannot do yet."""
    if transport.active_server:
        raise Refused(
            "transport.active_server: nodes have no list of each other's signature keys; leave it out, or set "
            "runtime=inline"
        )


def carried(
    transport: Masks, nodes: Nodes, settings: bytes, train: Trainings, uploads: Uploads, weights: Tensor, ctx: Stance
) -> Delivery:
    """The journey of a round's uploads, which the server never sees; ``uploads`` has their facts."""
    if list(ctx.clients) == [None]:
        return transport.carry(uploads, weights, ctx)
    n = len(weights)
    plan, counts = transport.planned(n), counted(weights)
    length = sum(signal.dim for signal in uploads.values()) + (counts is not None)
    server = Server(Session(os.urandom(16), plan, length, transport.bits))
    leaving, traffic = transport.leaving(n, ctx), Traffic()
    ctx.log["masks"] = note(plan, leaving, traffic)
    lost: dict[int, str] = {}
    frames: dict[int, bytes] = dict.fromkeys(range(n), b"")
    while server.stage != "done":
        stage = server.stage
        asked = {seat: frame for seat, frame in frames.items() if leaving.get(seat) != stage and seat not in lost}
        if stage == "advertise":
            answers = _asked(nodes, ctx, "query.invite", stage, {k: _invite(settings, server, k) for k in asked})
        elif stage == "mask":
            answers = train(asked, counts, server.session.payload + SMALL)
        else:
            contents = {seat: encode(Frame(stage, frame)) for seat, frame in asked.items()}
            answers = _asked(nodes, ctx, "query.masks", stage, contents)
        came = []
        for seat, answer in answers.items():
            try:
                if isinstance(answer, str):
                    raise Malformed(answer)
                if Header.read(answer).sender != seat:
                    raise Malformed("a frame from another seat")
                server.receive(answer)
                came.append(answer)
            except (Malformed, Rejected) as why:
                lost[seat] = f"{stage}: {why}"
        frames = server.close()
        traffic.count(stage, came, list(frames.values()))
    if lost:
        ctx.log["excluded"] = [{"client": ctx.clients[seat], "why": why} for seat, why in sorted(lost.items())]
    return transport.delivery(server.total, server.survivors, uploads, weights, traffic.up)


def _invite(settings: bytes, server: Server, seat: int) -> RecordDict:
    session = server.session
    return encode(Invite(settings, session.id, session.plan.clients, session.length, seat, server.key))


def _asked(
    nodes: Nodes, ctx: Stance, kind: str, stage: str, contents: Mapping[int, RecordDict]
) -> dict[int, bytes | str]:
    """One exchange, by seat: frames, or why there is none."""
    out: dict[int, bytes | str] = {}
    for seat, answer in nodes.ask(kind, {seat: ctx.clients[seat] for seat in contents}, contents).items():
        if isinstance(answer, str):
            out[seat] = answer
            continue
        try:
            reply = decode(Frame, answer, {})[0]
        except Malformed as why:
            out[seat] = str(why)
            continue
        out[seat] = reply.frame if reply.stage == stage else "an answer for another stage"
    return out


def accept(training: Training, invite: Invite, context: Context) -> Frame:
    """A node takes its seat: fresh secrets in its own state, and its first frame.

    The plan is the node's own, of its own settings: the server only says how many take part.
    """
    transport = _masks(training)
    plan = transport.plan(invite.clients)
    if not 0 <= invite.seat < invite.clients or len(invite.session) != 16:
        raise Malformed("an invitation to a seat that does not exist")
    client = Client(Session(invite.session, plan, invite.length, transport.bits), invite.seat, invite.server)
    frame = client.advertise()
    _keep(context, client, invite)
    return Frame("advertise", frame)


def answer(training: Training, message: Frame, context: Context) -> Frame:
    """A node's next frame."""
    client, invite = _kept(training, context)
    if message.stage == "share":
        reply = client.share(message.frame)
    elif message.stage == "unmask":
        reply = client.unmask(message.frame)
        del context.state[STATE]
        return Frame(message.stage, reply)
    else:
        raise Malformed(f"there is no stage {message.stage[:20]!r}")
    _keep(context, client, invite)
    return Frame(message.stage, reply)


def upload(training: Training, order: Order, uploads: Uploads, context: Context) -> bytes:
    """A node's upload under its masks."""
    client, invite = _kept(training, context)
    counts = None if order.share is None else next(iter(uploads.values())).value.new_tensor([order.share]).double()
    row, _ = _masks(training).words(uploads, counts, invite.clients)
    if row.shape[1] != invite.length:
        raise Malformed(f"a session for {invite.length} numbers, and an upload has {row.shape[1]}")
    frame = client.mask(order.frame, row[0])
    _keep(context, client, invite)
    return frame


def settings_of(context: Context) -> bytes:
    """The settings of the run under which the node has its seat."""
    record = context.state.config_records.get(STATE)
    settings = None if record is None else record.get("settings")
    if not isinstance(settings, bytes):
        raise Malformed("this node has no seat in a session")
    return settings


def _masks(training: Training) -> Masks:
    transport = training.method.transport
    if not isinstance(transport, Masks):
        raise Malformed("a message about masks in a run without them")
    return transport


def _keep(context: Context, client: Client, invite: Invite) -> None:
    seat = [invite.session, invite.clients, invite.length, invite.seat, invite.server]
    state = {"client": client.saved(), "seat": msgpack.packb(seat), "settings": invite.settings}
    context.state[STATE] = ConfigRecord(state)


def _kept(training: Training, context: Context) -> tuple[Client, Invite]:
    invite_settings, record = settings_of(context), context.state.config_records[STATE]
    invite = Invite(invite_settings, *msgpack.unpackb(record["seat"]))
    transport, client = _masks(training), record["client"]
    assert isinstance(client, bytes)
    session = Session(invite.session, transport.plan(invite.clients), invite.length, transport.bits)
    return Client.restored(client, session, invite.seat, invite.server), invite
