"""Secure aggregation, measured: what a client and the server compute in one round, ours and Flower's primitives."""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from fedveil.bench.clock import ratios, spread
from fedveil.bench.machine import about
from fedveil.transport.masks.client import Client
from fedveil.transport.masks.crypto import add_mask
from fedveil.transport.masks.plan import choose
from fedveil.transport.masks.server import STAGES, Server
from fedveil.transport.masks.session import Session

Report = dict[str, Any]
Tell = Callable[[str], None]
STEP = 2.0**-20


@dataclass(frozen=True)
class Setting:
    """One round: how many clients, how long their uploads are, who drops out (after sharing), how many neighbours."""

    clients: int = 100
    length: int = 100_000
    dropout: float = 0.1
    degree: int = 20
    bits: int = 32

    @property
    def gone(self) -> set[int]:
        """Those who drop out before they upload, the worst time for the server."""
        return set(range(int(self.dropout * self.clients)))

    def vectors(self) -> Any:
        """Float uploads, a row for each client."""
        return np.random.default_rng(0).normal(scale=0.1, size=(self.clients, self.length)).astype(np.float32)


@dataclass
class Times:
    """CPU seconds: of one client (the mean of those who did a stage), and of the server, by stage."""

    client: dict[str, float] = field(default_factory=dict)
    server: dict[str, float] = field(default_factory=dict)
    bytes_up: float = 0.0

    @contextmanager
    def spent(self, who: str, stage: str, share: int = 1) -> Iterator[None]:
        """Add what this takes, divided by ``share``."""
        started = time.process_time()
        yield
        book = self.client if who == "client" else self.server
        book[stage] = book.get(stage, 0.0) + (time.process_time() - started) / share


@dataclass(frozen=True)
class Options:
    """What to measure: ``lengths`` of uploads (the goals speak of the first), and how often."""

    lengths: tuple[int, ...] = (100_000, 1_000_000)
    clients: int = 100
    repeats: int = 5
    peer_repeats: int = 2
    quick: bool = False


def ours(setting: Setting, vectors: Any) -> Times:
    """A round of ours with all its frames; the sum is checked."""
    n, times = setting.clients, Times()
    plan = choose(n, max_dropout=setting.dropout, collusion=1 / n, degree=min(setting.degree, n - 1))
    session = Session(os.urandom(16), plan, setting.length, setting.bits)
    with times.spent("server", "advertise"):
        server = Server(session)
    with times.spent("client", "advertise", n):
        clients = [Client(session, seat, server.key) for seat in range(n)]
    frames: dict[int, bytes] = {}
    total = np.zeros(setting.length, session.word)
    while server.stage != "done":
        stage = server.stage
        here = [c for c in clients if stage in STAGES[:2] or c.seat not in setting.gone]
        answers = []
        for client in here:
            with times.spent("client", stage, len(here)):
                if stage == "mask":
                    words = (vectors[client.seat] / np.float32(STEP)).astype(np.int64).astype(session.word)
                    answers.append(client.mask(frames[client.seat], words))
                elif stage == "advertise":
                    answers.append(client.advertise())
                else:
                    question = client.share if stage == "share" else client.unmask
                    answers.append(question(frames[client.seat]))
            if stage == "mask":
                total += words
        times.bytes_up += sum(map(len, answers)) / len(here)
        with times.spent("server", stage):
            for answer in answers:
                server.receive(answer)
            frames = server.close()
    if not np.array_equal(server.total, total):
        raise RuntimeError("secagg: the sum is wrong")
    return times


def flower(setting: Setting, vectors: Any) -> Times:
    """A round of Flower's primitives, without messages; the sum is checked as far as masks that cancel show it."""
    from fedveil.bench.peers import flower_secagg as peer

    n, times, gone = setting.clients, Times(), setting.gone
    plan = choose(n, max_dropout=setting.dropout, collusion=1 / n, degree=min(setting.degree, n - 1))
    session = Session(os.urandom(16), plan, setting.length, setting.bits)
    near = {seat: session.neighbours(seat) for seat in range(n)}
    clients = [peer.Client(seat, near[seat], plan.threshold) for seat in range(n)]
    with times.spent("client", "advertise", n):
        publics = {c.seat: c.advertise() for c in clients}
    with times.spent("client", "share", n):
        sealed = {c.seat: c.share({j: publics[j] for j in near[c.seat]}) for c in clients}
    here = [c for c in clients if c.seat not in gone]
    boxes = {c.seat: {j: sealed[j][c.seat] for j in near[c.seat]} for c in here}
    with times.spent("client", "mask", len(here)):
        uploads = [c.mask(boxes[c.seat], vectors[c.seat]) for c in here]
    with times.spent("server", "mask"):
        total = peer.zeros(setting.length)
        for upload in uploads:
            total = peer.add(total, upload)
    alive = set(range(n)) - gone
    with times.spent("client", "unmask", len(here)):
        opened = {c.seat: c.unmask(alive, gone) for c in here}
    with times.spent("server", "unmask"):
        total = peer.unmasked(total, opened, publics, near, gone)
    mean = total[0] / len(here) * (2 * peer.CLIP / peer.TARGET) - peer.CLIP
    if np.abs(mean - vectors[sorted(alive)].mean(0)).max() > 1e-4:
        raise RuntimeError("secagg: the peer's sum is wrong")
    return times


def masks(setting: Setting) -> dict[str, float]:
    """Seconds of a client's masks, made and added, and of the bare cipher stream as long as they are."""
    key, words, count = os.urandom(16), np.zeros(setting.length, np.uint32), setting.degree + 1
    zeros, out = bytes(words.nbytes), bytearray(words.nbytes + 15)

    def timed(work: Callable[[], object]) -> float:
        work()
        started = time.process_time()
        for _ in range(5 * count):
            work()
        return (time.process_time() - started) / 5

    def stream() -> None:
        Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor().update_into(zeros, out)

    return {"masks": timed(lambda: add_mask(words, key)), "floor": timed(stream)}


def run(options: Options, tell: Tell = lambda words: None) -> Report:
    """Measure everything, contenders in turns."""
    has_flower = importlib.util.find_spec("flwr") is not None
    rows = []
    for length in options.lengths:
        setting = Setting(clients=options.clients, length=length)
        vectors = setting.vectors()
        mine, theirs, floors = [], [], []
        for turn in range(options.repeats):
            tell(f"{length:,} parameters: ours, {turn + 1} of {options.repeats}")
            mine.append(ours(setting, vectors))
            floors.append(masks(setting))
            if has_flower and turn < options.peer_repeats and length == options.lengths[0]:
                tell(f"{length:,} parameters: Flower's primitives, {turn + 1} of {options.peer_repeats}")
                theirs.append(flower(setting, vectors))
        rows.append(_row(setting, mine, theirs, floors))
    report: Report = {"about": about("cpu", 1, "uint32"), "quick": options.quick, "rows": rows}
    if not has_flower:
        report["missing"] = "Flower is not installed; pip install 'fedveil[flower]'"
    return report


def _row(setting: Setting, mine: list[Times], theirs: list[Times], floors: list[dict[str, float]]) -> Report:
    out: Report = {"setting": asdict(setting), "bytes_up": mine[0].bytes_up, "ours": _stages(mine)}
    out["masks"] = {name: spread([f[name] for f in floors]) for name in ("masks", "floor")}
    out["masks"]["ratio"] = spread([f["masks"] / f["floor"] for f in floors])
    if theirs:
        out["flower"] = _stages(theirs)
        for who in ("client", "server"):
            sums = [[sum(getattr(t, who).values()) for t in side] for side in (theirs, mine)]
            out["flower"][who]["times_ours"] = ratios(*sums)
    return out


def _stages(times: list[Times]) -> Report:
    return {
        who: {
            "total": spread([sum(getattr(t, who).values()) for t in times]),
            "stages": {s: spread([getattr(t, who)[s] for t in times])["median"] for s in getattr(times[0], who)},
        }
        for who in ("client", "server")
    }
