"""Sessions that tests can reach into: every frame is kept, and clients leave when a test says so."""

from __future__ import annotations

import os

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedveil.transport.masks.client import Client
from fedveil.transport.masks.encoding import word
from fedveil.transport.masks.plan import choose
from fedveil.transport.masks.server import Server
from fedveil.transport.masks.session import Session


def plan_for(n, **settings):
    return choose(n, **({"max_dropout": 0.2, "collusion": 0.0} | settings))


def numbers(n, length, bits, seed=0):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 2**bits, (n, length), dtype=np.uint64).astype(word(bits))


def total_of(rows, who, bits):
    return rows[list(who)].astype(np.uint64).sum(0) % np.uint64(2**bits)


class Play:
    """One session of n clients, stage by stage."""

    def __init__(self, plan, rows, bits, name=None):
        self.rows = rows
        self.identities = [Ed25519PrivateKey.generate() for _ in rows] if plan.active else [None] * len(rows)
        members = tuple(k.public_key().public_bytes_raw() for k in self.identities) if plan.active else ()
        self.session = Session(name or os.urandom(16), plan, rows.shape[1], bits, members)
        self.server = Server(self.session)
        self.clients = {i: self.client(i) for i in range(len(rows))}
        self.frames = {}
        self.seen = []
        """Every frame that the server was sent."""

    def client(self, seat):
        return Client(self.session, seat, self.server.key, self.identities[seat])

    def answer(self, seat, frame=None):
        client, stage = self.clients[seat], self.server.stage
        frame = self.frames.get(seat) if frame is None else frame
        if stage == "advertise":
            return client.advertise()
        if stage == "mask":
            return client.mask(frame, self.rows[seat])
        return {"share": client.share, "sign": client.sign, "unmask": client.unmask}[stage](frame)

    def step(self, without=()):
        """Everybody who is left answers, except those who leave now; then the stage ends."""
        for seat in without:
            self.clients.pop(seat, None)
        for seat in self.clients:
            frame = self.answer(seat)
            self.seen.append(frame)
            self.server.receive(frame)
        self.frames = self.server.close()
        return self.frames

    def until(self, stage):
        while self.server.stage != stage:
            self.step()
        return self

    def finish(self):
        self.until("done")
        return self.server.total
