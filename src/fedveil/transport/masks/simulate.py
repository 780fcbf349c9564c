"""A whole session in one process: clients and the server exchange bytes, and some clients drop out (SPEC 6.1)."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedveil.transport.masks.client import Client
from fedveil.transport.masks.crypto import Words
from fedveil.transport.masks.plan import Plan
from fedveil.transport.masks.server import STAGES, Server
from fedveil.transport.masks.session import Session


@dataclass
class Traffic:
    """Bytes by stage, of all clients together."""

    up: Counter[str] = field(default_factory=Counter)
    down: Counter[str] = field(default_factory=Counter)


def summed(plan: Plan, bits: int, rows: Words, leaving: Mapping[int, str], traffic: Traffic) -> tuple[Words, list[int]]:
    """The sum of rows modulo 2^bits over those whose upload arrived, and who they are.

    ``leaving`` says before which stage a client drops out; ``traffic`` is counted also where the session is aborted.
    """
    identities = [Ed25519PrivateKey.generate() for _ in rows] if plan.active else []
    members = tuple(key.public_key().public_bytes_raw() for key in identities)
    session = Session(os.urandom(16), plan, rows.shape[1], bits, members)
    server = Server(session)
    clients = {
        seat: Client(session, seat, server.key, identities[seat] if plan.active else None) for seat in range(len(rows))
    }
    frames: dict[int, bytes] = {}
    while server.stage != "done":
        stage = server.stage
        gone = STAGES.index(stage)
        for seat, client in clients.items():
            if (seat in leaving and STAGES.index(leaving[seat]) <= gone) or (frames and seat not in frames):
                continue
            answer = _answer(client, stage, frames.get(seat, b""), rows)
            traffic.up[stage] += len(answer)
            server.receive(answer)
        frames = server.close()
        traffic.down[stage] += sum(map(len, frames.values()))
    return server.total, server.survivors


def _answer(client: Client, stage: str, frame: bytes, rows: Words) -> bytes:
    if stage == "advertise":
        return client.advertise()
    if stage == "share":
        return client.share(frame)
    if stage == "mask":
        return client.mask(frame, rows[client.seat])
    return client.sign(frame) if stage == "sign" else client.unmask(frame)
