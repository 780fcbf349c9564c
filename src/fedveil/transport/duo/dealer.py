"""The key centre: keys for everybody, and correlated randomness for two servers (SPEC 7.1, 7.6).

It deals and leaves: the secret keys are written nowhere. It sees no ciphertext and no opened value. It knows both
seeds, so that with either server it could read everything; it must be gone, or not be asked, while rounds run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgpack
import numpy as np

from fedveil.core.errors import Refused
from fedveil.transport.duo.lattice import Ring, ring
from fedveil.transport.duo.link import Link
from fedveil.transport.duo.material import KINDS, Mend, Sizes, State, dump
from fedveil.transport.duo.parameters import RESULTS, SCALARS, VECTORS, Plan
from fedveil.transport.duo.stream import Stream
from fedveil.transport.he.keys import contents, owned, uniform
from fedveil.transport.he.ring import dumped
from fedveil.transport.masks.crypto import seed
from fedveil.transport.masks.rejected import Malformed, Replayed

FOLDERS = {"clients": "clients.key", "controller": "server.key", "computer": "server.key", "dealer": "seeds.key"}
"""A folder for each party, and the file in it."""


@dataclass(frozen=True)
class ClientKeys:
    """What every client has: the public key of uploads, and the secret key of results that were switched to it."""

    plan: Plan
    public: bytes
    results: bytes = field(repr=False)


@dataclass(frozen=True)
class ServerKeys:
    """What a server has: its seed, and its shares of the secret keys of uploads and of scalars.

    Under ``scalars_public`` S1 encrypts, and S2 makes ciphertexts fresh; ``relinearise`` is S2's, which computes with
    it. Empty where no entropy is asked for.
    """

    plan: Plan
    first: bool
    seed: bytes = field(repr=False)
    vectors: bytes = field(repr=False)
    results_public: bytes
    scalars: bytes = field(repr=False)
    scalars_public: bytes
    relinearise: bytes


@dataclass(frozen=True)
class Keys:
    """All that is dealt."""

    clients: ClientKeys
    s1: ServerKeys
    s2: ServerKeys


def deal(plan: Plan, *, entropy: bool = False) -> Keys:
    """New keys and seeds, from SEAL's generator and the operating system; ``entropy``: for ``detector=source`` too."""
    uploads = _Pair(ring(VECTORS), relinearise=False)
    deep = _Pair(ring(SCALARS), relinearise=True) if entropy else None
    results, secret = _public_key(ring(RESULTS))
    public = deep.public if deep else b""
    one = ServerKeys(plan, True, seed(), uploads.one, results, deep.one if deep else b"", public, b"")
    two = ServerKeys(
        plan, False, seed(), uploads.two, results, deep.two if deep else b"", public, deep.last if deep else b""
    )
    return Keys(ClientKeys(plan, uploads.public, dumped(secret)), one, two)


def _public_key(place: Ring) -> tuple[bytes, Any]:
    generator, public = place.seal.KeyGenerator(place.context), place.seal.PublicKey()
    generator.create_public_key(public)
    return dumped(public), generator.secret_key()


class _Pair:
    """A public key and two shares of its secret key: the first is uniform, and so is the second."""

    def __init__(self, place: Ring, *, relinearise: bool) -> None:
        generator, public = place.seal.KeyGenerator(place.context), place.seal.PublicKey()
        generator.create_public_key(public)
        self.public, self.last = dumped(public), b""
        if relinearise:
            keys = place.seal.RelinKeys()
            generator.create_relin_keys(keys)
            self.last = dumped(keys)
        whole = place.residues(generator.secret_key(), (len(place.primes), place.degree))[None, : place.levels]
        first = np.stack([uniform(q, place.degree) for q in place.primes[: place.levels]])[None]
        self.one, self.two = place.packed(first), place.packed(place.minus(whole, first))


class Dealer:
    """Makes what the second server needs so that its randomness fits the first one's, round by round.

    ``mend(label)`` gives a :data:`~fedveil.transport.duo.material.Mend` for one stage of one round; a stage is dealt
    once. ``label`` is ``round/attempt/stage``; stages of an attempt share the mask of its uploads.
    """

    def __init__(self, one: bytes, two: bytes) -> None:
        self._seeds, self._used, self._state = (one, two), set[str](), dict[str, State]()

    def mend(self, label: str) -> Mend:
        """The dealer's part of one stage."""
        if label in self._used:
            raise Replayed(f"randomness for {label} was dealt before; a repeated round is a new attempt")
        self._used.add(label)
        attempt = label.rsplit("/", 1)[0]
        if attempt not in self._state:
            self._state = {attempt: {}}
        state, streams = self._state[attempt], [Stream(seed, label) for seed in self._seeds]

        def more(kind: str, sizes: Sizes) -> bytes:
            one, two = (KINDS[kind].draw(s, first, sizes) for s, first in zip(streams, (True, False), strict=True))
            return dump(KINDS[kind].mend(state, one, two, sizes))

        return more


Mends = Callable[[str], Mend]
"""Where S2 has each stage's part from: :meth:`Dealer.mend`, or files."""


def serve(mends: Mends, link: Link) -> None:
    """A dealer in a process of its own: answer S2 until it is done. It is told sizes, and nothing else."""
    open_ones: dict[str, Mend] = {}
    while asked := link.receive("ask"):
        label, kind, sizes = _question(asked)
        if label not in open_ones:
            open_ones = {label: mends(label)}
        link.send("mend", open_ones[label](kind, sizes))


def _question(body: bytes) -> tuple[str, str, Sizes]:
    try:
        label, kind, sizes = msgpack.unpackb(body)
    except (ValueError, TypeError, msgpack.UnpackException):
        raise Malformed("a question to the dealer that is none") from None
    if not isinstance(label, str) or kind not in KINDS or not all(type(size) is int and size > 0 for size in sizes):
        raise Malformed("a question to the dealer about a kind or sizes that there are not")
    return label, kind, tuple(sizes)


def asking(link: Link) -> Mends:
    """At S2: the dealer at the other end of a link; an empty question (``link.send("ask", b"")``) ends it."""

    def mends(label: str) -> Mend:
        def more(kind: str, sizes: Sizes) -> bytes:
            link.send("ask", msgpack.packb([label, kind, list(sizes)]))
            return link.receive("mend")

        return more

    return mends


class Recorder:
    """Keeps what was asked for, stage by stage: sizes alone, the same in every round of a plan."""

    def __init__(self, mends: Mends) -> None:
        self.asked: dict[str, list[tuple[str, Sizes]]] = {}
        self._mends = mends

    def __call__(self, label: str) -> Mend:
        """The dealer's part of one stage, noted."""
        inner, asked = self._mends(label), self.asked.setdefault(label, [])

        def more(kind: str, sizes: Sizes) -> bytes:
            asked.append((kind, tuple(sizes)))
            return inner(kind, sizes)

        return more


def record(mend: Mend, asked: Iterable[tuple[str, Sizes]], path: Path) -> None:
    """Deal a whole stage ahead, into a file that only its owner may read."""
    owned(path, b"".join(msgpack.packb([kind, list(sizes), mend(kind, sizes)]) for kind, sizes in asked))


def from_files(folder: Path) -> Mends:
    """What was dealt ahead; each file is deleted when it is opened, so that nothing is used twice."""

    def mends(label: str) -> Mend:
        path = folder / (label.replace("/", "-") + ".bin")
        try:
            data = path.read_bytes()
            path.unlink()
        except OSError:
            raise Refused(
                f"keys: no randomness is left for {label} in {folder}; deal more rounds with `fedveil keys`"
            ) from None
        parts = msgpack.Unpacker(max_buffer_size=len(data) + 1)
        parts.feed(data)

        def more(kind: str, sizes: Sizes) -> bytes:
            try:
                had, lengths, body = parts.unpack()
            except msgpack.OutOfData:
                raise Replayed(f"{label} asks for more randomness than was dealt") from None
            if had != kind or tuple(lengths) != tuple(sizes):
                raise Replayed(f"{label} asks for {kind} {sizes}, and {had} {lengths} was dealt")
            assert isinstance(body, bytes)
            return body

        return more

    return mends


def write(keys: Keys, folder: Path) -> None:
    """A folder for each party; only their owner may read them. ``dealer`` is for dealing ahead, then it is deleted."""
    if folder.exists() and any(folder.iterdir()):
        raise Refused(f"--out: {folder} is not empty, and old keys are not overwritten; give another folder")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    plan = keys.clients.plan.to_json()
    for name, data in (
        ("clients", [plan, keys.clients.public, keys.clients.results]),
        ("controller", _listed(keys.s1)),
        ("computer", _listed(keys.s2)),
        ("dealer", [plan, keys.s1.seed, keys.s2.seed]),
    ):
        (folder / name).mkdir(mode=0o700)
        owned(folder / name / FOLDERS[name], msgpack.packb(data))


def _listed(keys: ServerKeys) -> list[Any]:
    return [
        keys.plan.to_json(),
        keys.first,
        keys.seed,
        keys.vectors,
        keys.results_public,
        keys.scalars,
        keys.scalars_public,
        keys.relinearise,
    ]


def read_client(folder: Path) -> ClientKeys:
    """A client's keys, from its own folder."""
    plan, public, results = _read(folder / FOLDERS["clients"], 3)
    return ClientKeys(Plan.from_json(plan), public, results)


def read_server(folder: Path) -> ServerKeys:
    """A server's keys, from its own folder."""
    plan, *rest = _read(folder / FOLDERS["controller"], 8)
    return ServerKeys(Plan.from_json(plan), *rest)


def read_dealer(folder: Path) -> Dealer:
    """The key centre again, from what it kept: it must be deleted before rounds run."""
    _, one, two = _read(folder / FOLDERS["dealer"], 3)
    return Dealer(one, two)


def _read(path: Path, fields: int) -> list[Any]:
    data = contents(path)
    try:
        found = msgpack.unpackb(data)
    except (ValueError, msgpack.UnpackException):
        found = None
    if not isinstance(found, list) or len(found) != fields or not all(isinstance(v, bytes | bool) for v in found[1:]):
        raise Refused(f"keys: {path} is damaged; make new keys")
    return found
