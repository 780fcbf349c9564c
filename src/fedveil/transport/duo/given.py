"""What each party is given before the first round: from a key centre in this process, or from folders (SPEC 7.1)."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from dataclasses import astuple, dataclass
from pathlib import Path

import msgpack

from fedveil.core.errors import Aborted, Refused
from fedveil.transport.duo.dealer import (
    ClientKeys,
    Dealer,
    Keys,
    Mends,
    ServerKeys,
    from_files,
    read_client,
    read_dealer,
    read_server,
)
from fedveil.transport.duo.parameters import Plan

CLIENTS, CONTROLLER, COMPUTER, DEALER, ROUNDS = "clients", "controller", "computer", "dealer", "rounds"
"""Folders of a key centre, and where in S2's lies what was dealt ahead."""
BEGUN = "rounds.begun"


@dataclass(frozen=True, eq=False)
class Given:
    """Keys of the clients, a message for either server, and where S2 has the key centre's part from.

    ``mends`` None: S2 has a folder of rounds that were dealt ahead, and the key centre is gone. ``begun``: a file with
    a byte for every attempt of a round under keys that outlive a run.
    """

    clients: ClientKeys
    servers: tuple[bytes, bytes]
    mends: Mends | None
    ahead: Path | None = None
    begun: Path | None = None

    @classmethod
    def fresh(cls, keys: Keys) -> Given:
        """By a key centre in this process, which answers S2 as long as the run goes on."""
        return cls(keys.clients, (_packed(keys.s1), _packed(keys.s2)), Dealer(keys.s1.seed, keys.s2.seed).mend)

    @classmethod
    def kept(cls, folder: Path) -> Given:
        """In the folders that ``fedveil keys duo`` wrote; either server opens its own."""
        clients = read_client(folder / CLIENTS)
        servers = tuple(msgpack.packb(str((folder / name).absolute())) for name in (CONTROLLER, COMPUTER))
        rounds = folder / COMPUTER / ROUNDS
        if rounds.is_dir():
            return cls(clients, (servers[0], servers[1]), None, rounds, folder / CLIENTS / BEGUN)
        if not (folder / DEALER).is_dir():
            raise Refused(
                f"transport.keys: {folder} has neither rounds that were dealt ahead nor a dealer; make keys with "
                "`fedveil keys duo`"
            )
        mends = read_dealer(folder / DEALER).mend
        return cls(clients, (servers[0], servers[1]), mends, None, folder / CLIENTS / BEGUN)

    def attempt(self, number: int) -> int:
        """What tells this attempt of a round from all others: randomness that was used once is never used again."""
        self._count()
        if self.ahead is None:
            return secrets.randbits(62)
        found = 0
        while not (self.ahead / f"{number}-{found}-begin.bin").exists():
            found += 1
            if found > 100:
                raise Aborted(f"no randomness is left for round {number} in {self.ahead}; deal more with --attempts")
        return found

    def _count(self) -> None:
        """Note that a round begins, or refuse: masks cover only so many openings under one key, over all runs."""
        if self.begun is None:
            return
        try:
            with os.fdopen(os.open(self.begun, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as file:
                if file.tell() >= self.clients.plan.most:
                    raise Refused(
                        f"transport.keys: {file.tell():,} rounds were begun under these keys, and masks cover no more; "
                        "make new keys"
                    )
                file.write(b".")
        except OSError as why:
            raise Refused(
                f"transport.keys: cannot write {self.begun} ({why.strerror}); let its owner run this"
            ) from None


def taken(message: bytes, ask: Callable[[], Mends]) -> tuple[ServerKeys, Mends | None]:
    """A server's side: its keys and, for S2, where the key centre's part comes from."""
    found = msgpack.unpackb(message)
    ahead = None
    if isinstance(found, str):
        keys, ahead = read_server(Path(found)), Path(found) / ROUNDS
    else:
        plan, *rest = found
        keys = ServerKeys(Plan.from_json(plan), *rest)
    if keys.first:
        return keys, None
    return keys, from_files(ahead) if ahead is not None and ahead.is_dir() else ask()


def _packed(keys: ServerKeys) -> bytes:
    _, *rest = astuple(keys)
    out: bytes = msgpack.packb([keys.plan.to_json(), *rest])
    return out
