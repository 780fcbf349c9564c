"""A whole session in one process: clients and the server exchange bytes, and some clients drop out (SPEC 6.1)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedveil.transport.masks.client import Client
from fedveil.transport.masks.crypto import Words
from fedveil.transport.masks.plan import Plan
from fedveil.transport.masks.rejected import Rejected
from fedveil.transport.masks.server import Server
from fedveil.transport.masks.session import Session


@dataclass
class Traffic:
    """What went over the line, by stage: how many clients answered, and bytes of them all together."""

    stages: dict[str, dict[str, int]] = field(default_factory=dict)

    def count(self, stage: str, answers: list[bytes], replies: list[bytes]) -> None:
        """Add a stage."""
        up, down = sum(map(len, answers)), sum(map(len, replies))
        self.stages[stage] = {"clients": len(answers), "up": up, "down": down}

    @property
    def up(self) -> int:
        """Bytes that clients sent."""
        return sum(stage["up"] for stage in self.stages.values())


def summed(plan: Plan, bits: int, rows: Words, leaving: Mapping[int, str], traffic: Traffic) -> tuple[Words, list[int]]:
    """The sum of rows modulo 2^bits over those whose upload arrived, and who they are.

    ``leaving`` says before which stage a client drops out; one that cannot answer safely leaves by itself. ``traffic``
    is counted also where the session is aborted.
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
        for seat in [k for k, left in leaving.items() if left == stage]:
            clients.pop(seat, None)
        answers = []
        for seat, client in list(clients.items()):
            try:
                answers.append(_answer(client, stage, frames.get(seat, b""), rows))
            except Rejected:  # too few neighbours are left for it to be safe: it leaves as well
                del clients[seat]
        traffic.count(stage, answers, [])
        for answer in answers:
            server.receive(answer)
        frames = server.close()
        traffic.count(stage, answers, list(frames.values()))
    return server.total, server.survivors


def _answer(client: Client, stage: str, frame: bytes, rows: Words) -> bytes:
    if stage == "advertise":
        return client.advertise()
    if stage == "share":
        return client.share(frame)
    if stage == "mask":
        return client.mask(frame, rows[client.seat])
    return client.sign(frame) if stage == "sign" else client.unmask(frame)
