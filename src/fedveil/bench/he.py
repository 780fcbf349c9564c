"""Aggregation under encryption by two servers, measured: what clients, servers and the dealer compute in one round."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch

from fedveil.aggregate.centered_clipping import centered_clipping
from fedveil.aggregate.evidence import sums
from fedveil.aggregate.krum import krum
from fedveil.aggregate.order import trimmed_mean
from fedveil.bench.clock import spread
from fedveil.bench.machine import about
from fedveil.transport.duo.client import Sealer, combine, decrypt, unsealed
from fedveil.transport.duo.dealer import Dealer, Keys, deal
from fedveil.transport.duo.link import pair, together
from fedveil.transport.duo.material import Mend
from fedveil.transport.duo.parameters import Plan
from fedveil.transport.duo.round import Round, Server
from fedveil.transport.duo.rules import RULES, Update
from fedveil.transport.he.keys import deal as deal_mean
from fedveil.transport.he.messages import Session
from fedveil.transport.he.parameters import Parameters
from fedveil.transport.he.roles import Client, Computer, Controller

Report = dict[str, Any]
Tell = Callable[[str], None]
Floats = np.ndarray[Any, np.dtype[np.float64]]
CLOSE = {"mean": 1e-6, "trimmed_mean": 1e-5, "krum": 1e-5, "centered_clipping": 1e-4}
"""How far a result may be from the plaintext one."""


@dataclass(frozen=True)
class Setting:
    """One round: clients, parameters, attackers that rules prepare for."""

    clients: int = 10
    length: int = 100_000
    byzantine: int = 2

    def vectors(self) -> Floats:
        """Uploads with a common part, within a norm of 1; the first ones point the other way."""
        rng = np.random.default_rng(0)
        common = rng.normal(size=self.length) / np.sqrt(self.length)
        x = 0.5 * common + 0.4 * rng.normal(size=(self.clients, self.length)) / np.sqrt(self.length)
        x[: self.byzantine] = -2 * common
        return np.asarray(x / np.maximum(1, np.linalg.norm(x, axis=1))[:, None])


@dataclass(frozen=True)
class Options:
    """What to measure, and how often."""

    settings: tuple[Setting, ...] = (Setting(10, 100_000, 2), Setting(20, 100_000, 4), Setting(10, 10_000, 2))
    repeats: int = 3
    quick: bool = False


@dataclass
class Times:
    """CPU seconds by what was done, and megabytes between the servers."""

    seconds: dict[str, float] = field(default_factory=dict)
    megabytes: dict[str, float] = field(default_factory=dict)
    dealer: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def spent(self, what: str, share: int = 1) -> Iterator[None]:
        """Add what this takes, divided by ``share``."""
        started = time.process_time()
        yield
        self.seconds[what] = self.seconds.get(what, 0.0) + (time.process_time() - started) / share


class Watched:
    """A dealer whose own work is counted apart: it is done before the round, elsewhere."""

    def __init__(self, keys: Keys) -> None:
        self._dealer, self.seconds, self.bytes = Dealer(keys.s1.seed, keys.s2.seed), 0.0, 0

    def __call__(self, label: str) -> Mend:
        """The dealer's part of one stage."""
        inner = self._dealer.mend(label)

        def more(kind: str, sizes: tuple[int, ...]) -> bytes:
            started = time.thread_time()
            found = inner(kind, sizes)
            self.seconds += time.thread_time() - started
            self.bytes += len(found)
            return found

        return more


def ours(setting: Setting, vectors: Floats, keys: Keys) -> Times:
    """A round with every statistic, rule and delivery; each result is compared with the plaintext one."""
    times, plan, n = Times(), keys.clients.plan, setting.clients
    sealer = Sealer(plan, keys.clients.public)
    with times.spent("client", n):
        bodies = [sealer(row) for row in vectors]
    times.seconds["bytes"] = len(bodies[0]) / setting.length
    dealer, ends = Watched(keys), pair()
    one, two = Server(keys.s1, ends[0]), Server(keys.s2, ends[1], dealer)

    def both(what: str, program: Callable[[Any], Any], places: tuple[Any, Any]) -> tuple[Any, Any]:
        dealt, sent, started = dealer.seconds, ends[0].traffic.bytes, time.process_time()
        found = together(lambda: program(places[0]), lambda: program(places[1]), ends)
        times.dealer[what] = dealer.seconds - dealt
        times.seconds[what] = time.process_time() - started - times.dealer[what]
        times.megabytes[what] = (ends[0].traffic.bytes - sent) / 1e6
        return found

    with times.spent("read uploads"):
        uploads = [(seat, unsealed(plan, body)) for seat, body in enumerate(bodies)]
    begun = both("shares, norm check", lambda s: s[0].round(0, s[1]), ((one, None), (two, uploads)))
    both("statistics", lambda r: r.sense(), begun)
    both("entropy", lambda r: r.indicate(), begun)
    wanted = plain(vectors, setting.byzantine, Times())
    for rule in RULES:
        updates = both(rule, _rule(rule), begun)
        with times.spent("deliver shares"):
            parts = [r.deliver(u) for r, u in zip(begun, updates, strict=True)]
        with times.spent("client combines", len(RULES)):
            found = combine(*parts)
        if np.abs(found - wanted[rule]).max() > CLOSE[rule]:
            raise RuntimeError(f"he: the encrypted {rule} is not the plaintext one")
    held = ((begun[0], updates[0]), (begun[1], updates[1]))
    switched, _ = both("deliver switched", lambda s: s[0].deliver(s[1], "switch"), held)
    with times.spent("client decrypts"):
        found = decrypt(keys.clients, switched)
    if np.abs(found - wanted[rule]).max() > CLOSE[rule]:
        raise RuntimeError("he: the switched result is not the plaintext one")
    times.seconds["deliver shares"] /= len(RULES)
    times.megabytes["from the dealer"] = dealer.bytes / 1e6
    return times


def _rule(name: str) -> Callable[[Round], Update]:
    return lambda round: round.aggregate(name)


def plain(vectors: Floats, byzantine: int, times: Times) -> dict[str, Floats]:
    """The same in the clear: statistics and every rule, in float64."""
    x = torch.from_numpy(vectors)
    rules: dict[str, Callable[[], torch.Tensor]] = {
        "mean": lambda: x.mean(0),
        "trimmed_mean": lambda: trimmed_mean(x, byzantine),
        "krum": lambda: krum(x, byzantine),
        "centered_clipping": lambda: centered_clipping(x, iterations=1),
    }
    with times.spent("statistics"):
        sums(x)
    found = {}
    for rule, work in rules.items():
        with times.spent(rule):
            found[rule] = work().numpy()
    return found


def mean_alone(setting: Setting, vectors: Floats) -> Times:
    """`transport=he`: uploads are added under encryption, and two servers open the sum; nothing is sensed."""
    times, n = Times(), setting.clients
    keys = deal_mean(Parameters(n))
    session = Session(os.urandom(16), keys.parameters, n, setting.length)
    clients = [Client(session, seat, keys.public) for seat in range(n)]
    with times.spent("client", n):
        frames = [client.upload(row) for client, row in zip(clients, vectors, strict=True)]
    times.seconds["bytes"] = len(frames[0]) / setting.length
    computer, controller = Computer(session, keys.computer), Controller(session, keys.controller)
    with times.spent("servers"):
        for frame in frames:
            computer.receive(frame)
        total = controller.open(computer.close())
    _close(total / n, vectors)
    return times


def tenseal_mean(setting: Setting, vectors: Floats) -> Times:
    """TenSEAL's own vectors: everybody has the secret key but the server, which adds; its usual 128-bit parameters.

    One vector holds as many numbers as a ciphertext has slots; longer ones it would split in the same way.
    """
    import tenseal

    times, n = Times(), setting.clients
    context = tenseal.context(tenseal.SCHEME_TYPE.CKKS, 8192, coeff_mod_bit_sizes=[60, 40, 40])
    context.global_scale = 2**40
    pieces = range(0, setting.length, 4096)
    with times.spent("client", n):
        bodies = [
            [tenseal.ckks_vector(context, row[i : i + 4096].tolist()).serialize() for i in pieces] for row in vectors
        ]
    times.seconds["bytes"] = sum(map(len, bodies[0])) / setting.length
    with times.spent("servers"):
        totals = [tenseal.ckks_vector_from(context, part) for part in bodies[0]]
        for body in bodies[1:]:
            totals = [total + tenseal.ckks_vector_from(context, part) for total, part in zip(totals, body, strict=True)]
    with times.spent("client decrypts"):
        found = np.concatenate([total.decrypt() for total in totals])
    _close(found / n, vectors)
    return times


def _close(mean: Floats, vectors: Floats) -> None:
    if np.abs(mean - vectors.mean(0)).max() > 1e-5:
        raise RuntimeError("he: a mean under encryption is wrong")


def run(options: Options, tell: Tell = lambda words: None) -> Report:
    """Measure everything, contenders in turns."""
    rows = []
    for setting in options.settings:
        vectors = setting.vectors()
        keys = deal(Plan(setting.clients, setting.length, 1.0, setting.byzantine, 10), entropy=True)
        found: dict[str, list[Times]] = {"ours": [], "he": [], "tenseal": [], "plain": []}
        for turn in range(options.repeats):
            tell(f"{setting.clients} clients, {setting.length:,} parameters: {turn + 1} of {options.repeats}")
            found["ours"].append(ours(setting, vectors, keys))
            found["he"].append(mean_alone(setting, vectors))
            found["tenseal"].append(tenseal_mean(setting, vectors))
            clear = Times()
            plain(vectors, setting.byzantine, clear)
            found["plain"].append(clear)
        rows.append({"setting": asdict(setting)} | {name: _row(times) for name, times in found.items()})
    return {"about": about("cpu", 1, "float64"), "quick": options.quick, "rows": rows}


def _row(times: list[Times]) -> Report:
    return {
        part: {what: spread([getattr(t, part)[what] for t in times]) for what in getattr(times[0], part)}
        for part in ("seconds", "megabytes", "dealer")
    }
